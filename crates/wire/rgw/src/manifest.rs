//! Where the data of an object is: its manifest.
//!
//! An object has a head, with the first bytes and the attributes, and a tail of stripes. The
//! manifest says by rules how the stripes are named. An object that was uploaded in parts has an
//! empty head, and rules for its parts.

use crate::bucket::{BucketKey, Placement};
use crate::names::{NS_MULTIPART, NS_SHADOW, ObjName};
use bytes::{Bytes, BytesMut};
use denc::{Decode, Encode, Features, Reader};
use denc_derive::Denc;
use std::collections::BTreeMap;

/// An object of a bucket (Ceph: `rgw_obj`, `rgw/rgw_common.h`, version 6).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BucketObject {
    /// The bucket.
    pub bucket: BucketKey,
    /// The object.
    pub name: ObjName,
}

impl Encode for BucketObject {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        denc::envelope(out, 6, 6, |out| {
            (&self.bucket, &self.name.ns).encode(out, f);
            (&self.name.name, &self.name.instance).encode(out, f);
        });
    }
}

impl Decode for BucketObject {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        const WHAT: &str = "rgw_obj";
        let (v, mut r) = r.envelope(WHAT, 6)?;
        if v < 6 {
            return Err(denc::DecodeError::TooOld { what: WHAT, struct_v: v, oldest: 6 });
        }
        let (bucket, ns) = r.get()?;
        let (name, instance) = r.get()?;
        Ok(BucketObject { bucket, name: ObjName { name, instance, ns } })
    }
}

/// Data that an old manifest names itself (Ceph: `RGWObjManifestPart`, `rgw/rgw_obj_manifest.h`,
/// version 2).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 2, compat = 2, oldest = 2)]
pub struct ExplicitPart {
    /// The object with the data.
    pub object: BucketObject,
    /// Where in it the data begins.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
}

/// How stripes from an offset on are named (Ceph: `RGWObjManifestRule`, `rgw/rgw_obj_manifest.h`,
/// version 2).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 2, compat = 1)]
pub struct Rule {
    /// The first part; 0 for an object that has none.
    pub start_part: u32,
    /// Where it begins.
    pub start_offset: u64,
    /// Bytes of each part; 0 for one part without end.
    pub part_size: u64,
    /// Bytes of each stripe.
    pub stripe_size: u64,
    /// The prefix of names, if not the manifest's.
    #[denc(since = 2)]
    pub prefix: Bytes,
}

/// Where an object's data is (Ceph: `RGWObjManifest`, `rgw/rgw_obj_manifest.h`, version 7).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    /// Bytes of the object.
    pub size: u64,
    /// Data by offset, of old objects.
    pub explicit_parts: BTreeMap<u64, ExplicitPart>,
    /// The data is where `explicit_parts` says.
    pub explicit: bool,
    /// The head.
    pub object: BucketObject,
    /// Bytes in the head.
    pub head_size: u64,
    /// Bytes that fit into the head.
    pub max_head_size: u64,
    /// What names of stripes begin with.
    pub prefix: Bytes,
    /// How stripes are named, by where they begin.
    pub rules: BTreeMap<u64, Rule>,
    /// The bucket of the tail: another one than the head's after a copy.
    pub tail_bucket: BucketKey,
    /// The version in names of stripes: another one than the head's after a copy.
    pub tail_instance: Bytes,
    /// Where the head is.
    pub head_placement: Placement,
    /// Where the tail is.
    pub tail_placement: Placement,
}

const VERSION: u8 = 7;

impl Encode for Manifest {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        denc::envelope(out, VERSION, 6, |out| {
            (self.size, &self.explicit_parts, self.explicit).encode(out, f);
            (&self.object, self.head_size, self.max_head_size).encode(out, f);
            (&self.prefix, &self.rules).encode(out, f);
            let bucket = Some(&self.tail_bucket).filter(|b| **b != self.object.bucket);
            bucket.encode(out, f);
            let instance = Some(&self.tail_instance).filter(|i| **i != self.object.name.instance);
            instance.encode(out, f);
            (&self.head_placement, &self.tail_placement).encode(out, f);
        });
    }
}

impl Decode for Manifest {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        const WHAT: &str = "RGWObjManifest";
        let (v, mut r) = r.envelope(WHAT, VERSION)?;
        if v < 3 {
            return Err(denc::DecodeError::TooOld { what: WHAT, struct_v: v, oldest: 3 });
        }
        let mut m = Manifest::default();
        (m.size, m.explicit_parts, m.explicit) = r.get()?;
        (m.object, m.head_size, m.max_head_size) = r.get()?;
        (m.prefix, m.rules) = r.get()?;
        m.tail_bucket = match v {
            ..4 => BucketKey::default(),
            4..6 => r.get()?,
            6.. => r.get::<Option<BucketKey>>()?.unwrap_or_else(|| m.object.bucket.clone()),
        };
        m.tail_instance = match v {
            ..5 => m.object.name.instance.clone(),
            5 => r.get()?,
            6.. => r.get::<Option<Bytes>>()?.unwrap_or_else(|| m.object.name.instance.clone()),
        };
        if v >= 7 {
            (m.head_placement, m.tail_placement) = r.get()?;
        }
        Ok(m)
    }
}

/// Some of an object's bytes, in one object of RADOS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where they begin in the object.
    pub offset: u64,
    /// How many.
    pub length: u64,
    /// Where they are.
    pub place: Place,
    /// Where they begin there.
    pub place_offset: u64,
}

/// An object of RADOS with data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The head.
    Head,
    /// An object of the tail: in [`Manifest::tail_bucket`] and [`Manifest::tail_placement`], or
    /// named by an old manifest.
    Tail(Box<BucketObject>),
}

impl Manifest {
    /// It names no data (Ceph: `RGWObjManifest::empty`).
    pub fn is_empty(&self) -> bool {
        if self.explicit { self.explicit_parts.is_empty() } else { self.rules.is_empty() }
    }

    /// Of an object that is written as a whole. `prefix` must be new.
    pub fn simple(
        object: BucketObject,
        head: &Placement,
        tail: &Placement,
        prefix: Bytes,
        max_head_size: u64,
        stripe_size: u64,
    ) -> Self {
        let rule = Rule { start_offset: max_head_size, stripe_size, ..Rule::default() };
        Manifest {
            max_head_size,
            prefix,
            rules: BTreeMap::from([(0, rule)]),
            tail_bucket: object.bucket.clone(),
            tail_instance: object.name.instance.clone(),
            head_placement: head.clone(),
            tail_placement: tail.clone(),
            object,
            ..Manifest::default()
        }
    }

    /// Of a part of an upload: of the object `object`, with a prefix that names the upload.
    pub fn part(
        object: BucketObject,
        tail: &Placement,
        prefix: Bytes,
        number: u32,
        stripe_size: u64,
    ) -> Self {
        let rule = Rule { start_part: number, stripe_size, ..Rule::default() };
        Manifest {
            prefix,
            rules: BTreeMap::from([(0, rule)]),
            tail_bucket: object.bucket.clone(),
            tail_instance: object.name.instance.clone(),
            tail_placement: tail.clone(),
            object,
            ..Manifest::default()
        }
    }

    /// There is data behind the head.
    pub fn has_tail(&self) -> bool {
        if self.explicit {
            return self.explicit_parts.values().any(|p| p.object != self.object);
        }
        self.size > self.head_size
    }

    /// Sets how long the object became.
    pub fn set_size(&mut self, size: u64) {
        self.size = size;
        self.head_size = size.min(self.max_head_size);
    }

    fn tail(&self, prefix: &[u8], part: u64, stripe: u64) -> Place {
        let base = if prefix.is_empty() { &self.prefix[..] } else { prefix };
        let (suffix, ns) = match (part, stripe) {
            (0, s) => (s.to_string(), NS_SHADOW),
            (p, 0) => (format!(".{p}"), NS_MULTIPART),
            (p, s) => (format!(".{p}_{s}"), NS_SHADOW),
        };
        let bucket = if self.tail_bucket.name.is_empty() {
            self.object.bucket.clone()
        } else {
            self.tail_bucket.clone()
        };
        let name = ObjName {
            name: [base, suffix.as_bytes()].concat().into(),
            instance: self.tail_instance.clone(),
            ns: Bytes::from_static(ns),
        };
        Place::Tail(Box::new(BucketObject { bucket, name }))
    }

    /// The stripe at an offset. `None` behind the end, and where the manifest makes no sense.
    fn at(&self, offset: u64) -> Option<Piece> {
        if offset >= self.size {
            return None;
        }
        if self.explicit {
            let (start, part) = self.explicit_parts.range(..=offset).next_back()?;
            let next = self.explicit_parts.range(offset + 1..).next().map_or(self.size, |n| *n.0);
            let length = (next.min(self.size) - start).min(part.size);
            if offset - start >= length {
                return None;
            }
            let head = part.object == self.object || (*start == 0 && self.head_size > 0);
            let place = if head { Place::Head } else { Place::Tail(Box::new(part.object.clone())) };
            return Some(Piece { offset: *start, length, place, place_offset: part.offset });
        }
        if offset < self.head_size {
            let length = self.head_size.min(self.size);
            return Some(Piece { offset: 0, length, place: Place::Head, place_offset: 0 });
        }
        let (key, rule) =
            (self.rules.range(..=offset).next_back()).or_else(|| self.rules.iter().next())?;
        // Of the first rule of a simple object the key is 0, and the offset is behind the head.
        let start = rule.start_offset.min(offset);
        let next_rule =
            self.rules.range(key + 1..).next().map_or(u64::MAX, |(_, r)| r.start_offset);
        let parts = (offset - start).checked_div(rule.part_size).unwrap_or(0);
        let part = u64::from(rule.start_part) + parts;
        let part_offset = start + parts * rule.part_size;
        let mut stripe = (offset - part_offset).checked_div(rule.stripe_size).unwrap_or(0);
        let stripe_offset = part_offset + stripe * rule.stripe_size;
        if part == 0 && self.head_size > 0 {
            stripe += 1;
        }
        let mut end = self.size.min(next_rule);
        if rule.stripe_size > 0 {
            end = end.min(stripe_offset.saturating_add(rule.stripe_size));
        }
        if rule.part_size > 0 {
            end = end.min(part_offset.saturating_add(rule.part_size));
        }
        let length = end.checked_sub(stripe_offset).filter(|l| *l > offset - stripe_offset)?;
        let place = self.tail(&rule.prefix, part, stripe);
        Some(Piece { offset: stripe_offset, length, place, place_offset: 0 })
    }

    /// The pieces of a range, in order; the whole object's with `0, u64::MAX`. Ends early if the
    /// manifest makes no sense.
    pub fn pieces(&self, offset: u64, length: u64) -> impl Iterator<Item = Piece> + '_ {
        let end = offset.saturating_add(length).min(self.size);
        let mut at = offset;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let mut piece = self.at(at)?;
            let skip = at - piece.offset;
            piece.offset = at;
            piece.place_offset += skip;
            piece.length = (piece.length - skip).min(end - at);
            at += piece.length;
            Some(piece)
        })
    }

    /// Where the stripe that begins at `offset` is to be written, while the object grows: how long
    /// it may become, and where it is.
    pub fn next_stripe(&self, offset: u64) -> Option<Piece> {
        let mut growing = self.clone();
        growing.set_size(offset.saturating_add(1));
        if offset < self.max_head_size {
            let place = Place::Head;
            return Some(Piece { offset: 0, length: self.max_head_size, place, place_offset: 0 });
        }
        let mut piece = growing.at(offset)?;
        piece.length = self.rules.values().next()?.stripe_size;
        Some(piece)
    }

    /// Appends the manifest of the next part of an upload. `false` if one of both is of an old
    /// form.
    #[must_use]
    pub fn append(&mut self, next: &Manifest) -> bool {
        if self.explicit || next.explicit {
            return false;
        }
        if self.rules.is_empty() {
            *self = Manifest { head_placement: Placement::default(), ..next.clone() };
            return true;
        }
        for rule in next.rules.values() {
            let mut rule = rule.clone();
            if rule.part_size == 0 {
                rule.part_size = next.size - rule.start_offset.min(next.size);
            }
            let prefix = if rule.prefix.is_empty() { &next.prefix } else { &rule.prefix };
            rule.prefix = if *prefix == self.prefix { Bytes::new() } else { prefix.clone() };
            rule.start_offset += self.size;
            let size = self.size;
            let Some(mut last) = self.rules.last_entry() else { return false };
            let last = last.get_mut();
            if last.part_size == 0 {
                last.part_size = size - last.start_offset.min(size);
            }
            let follows = last.part_size > 0
                && last.part_size == rule.part_size
                && last.stripe_size == rule.stripe_size
                && last.prefix == rule.prefix
                && u64::from(rule.start_part)
                    == u64::from(last.start_part)
                        + (rule.start_offset - last.start_offset) / last.part_size;
            if !follows {
                self.rules.insert(rule.start_offset, rule);
            }
        }
        self.size += next.size;
        true
    }

    /// The parts of an object that was uploaded in parts: number, offset and length.
    pub fn parts(&self) -> Vec<(u32, u64, u64)> {
        let mut found = Vec::new();
        if self.explicit {
            return found;
        }
        let mut rules = self.rules.values().peekable();
        while let Some(rule) = rules.next() {
            let end = rules.peek().map_or(self.size, |r| r.start_offset).min(self.size);
            if rule.start_part == 0 || rule.start_offset > end {
                continue;
            }
            let size = if rule.part_size == 0 { end - rule.start_offset } else { rule.part_size };
            let (mut at, mut number) = (rule.start_offset, rule.start_part);
            loop {
                let length = size.min(end - at);
                found.push((number, at, length));
                at += length;
                number += 1;
                if at >= end || length == 0 {
                    break;
                }
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn object(name: &'static str) -> BucketObject {
        let bucket = BucketKey { name: "b".into(), marker: "M".into(), ..BucketKey::default() };
        BucketObject { bucket, name: ObjName::plain(name) }
    }

    fn names(m: &Manifest, offset: u64, length: u64) -> Vec<(String, u64, u64, u64)> {
        let name = |p: &Place| match p {
            Place::Head => "head".to_owned(),
            Place::Tail(o) => String::from_utf8(o.name.oid().to_vec()).unwrap(),
        };
        m.pieces(offset, length)
            .map(|p| (name(&p.place), p.offset, p.length, p.place_offset))
            .collect()
    }

    fn simple(size: u64) -> Manifest {
        let p = Placement { name: "default-placement".into(), storage_class: Bytes::new() };
        let mut m = Manifest::simple(object("big"), &p, &p, ".x_".into(), 4 * MIB, 4 * MIB);
        m.set_size(size);
        m
    }

    #[test]
    fn stripes_of_a_simple_object() {
        let m = simple(9 * MIB);
        let want = [
            ("head".to_owned(), 0, 4 * MIB, 0),
            ("_shadow_.x_1".to_owned(), 4 * MIB, 4 * MIB, 0),
            ("_shadow_.x_2".to_owned(), 8 * MIB, MIB, 0),
        ];
        assert_eq!(names(&m, 0, u64::MAX), want);
        let across = [
            ("head".to_owned(), 4 * MIB - 1, 1, 4 * MIB - 1),
            ("_shadow_.x_1".to_owned(), 4 * MIB, 5, 0),
        ];
        assert_eq!(names(&m, 4 * MIB - 1, 6), across);
        assert_eq!(names(&m, 8 * MIB + 7, 100), [("_shadow_.x_2".to_owned(), 8 * MIB + 7, 100, 7)]);
        assert!(names(&m, 9 * MIB, 1).is_empty());
        assert_eq!(names(&simple(5), 0, 10), [("head".to_owned(), 0, 5, 0)]);
        assert!(names(&simple(0), 0, 10).is_empty());
        assert!(!simple(4 * MIB).has_tail() && m.has_tail());
    }

    #[test]
    fn stripes_are_read_where_they_were_written() {
        let mut m = simple(0);
        for offset in (0..12 * MIB).step_by(4 << 20) {
            let next = m.next_stripe(offset).unwrap();
            m.set_size(offset + 1);
            let read = m.pieces(offset, 1).next().unwrap();
            assert_eq!(next.place, read.place, "{offset}");
            assert_eq!(next.length, 4 * MIB);
        }
        // Without a head, as where head and tail are in different pools.
        m.max_head_size = 0;
        m.rules.get_mut(&0).unwrap().start_offset = 0;
        m.set_size(5 * MIB);
        let got: Vec<String> = names(&m, 0, u64::MAX).into_iter().map(|p| p.0).collect();
        assert_eq!(got, ["_shadow_.x_0", "_shadow_.x_1"]);
    }

    fn part(number: u32, size: u64, prefix: &'static str) -> Manifest {
        let p = Placement { name: "default-placement".into(), storage_class: Bytes::new() };
        let mut m = Manifest::part(object("mp"), &p, prefix.into(), number, 4 * MIB);
        m.set_size(size);
        m
    }

    #[test]
    fn parts_become_an_object() {
        let mut whole = Manifest::default();
        for (number, size) in [(1, 5 * MIB), (2, 5 * MIB), (3, 1000)] {
            assert!(whole.append(&part(number, size, "mp.2~u")));
        }
        assert_eq!(whole.rules.len(), 2, "equal parts share a rule");
        let want: Vec<_> = [
            ("_multipart_mp.2~u.1", 0, 4 * MIB),
            ("_shadow_mp.2~u.1_1", 4 * MIB, MIB),
            ("_multipart_mp.2~u.2", 5 * MIB, 4 * MIB),
            ("_shadow_mp.2~u.2_1", 9 * MIB, MIB),
            ("_multipart_mp.2~u.3", 10 * MIB, 1000),
        ]
        .map(|(n, o, l)| (n.to_owned(), o, l, 0))
        .into();
        assert_eq!(names(&whole, 0, u64::MAX), want);
        let spans = [(1, 0, 5 * MIB), (2, 5 * MIB, 5 * MIB), (3, 10 * MIB, 1000)];
        assert_eq!(whole.parts(), spans);
        assert!(simple(9 * MIB).parts().is_empty());
    }

    #[test]
    fn a_part_that_was_uploaded_again_has_a_prefix_of_its_own() {
        let mut whole = Manifest::default();
        for m in [part(1, MIB, "mp.2~u"), part(2, MIB, "mp.other"), part(3, MIB, "mp.2~u")] {
            assert!(whole.append(&m));
        }
        let got: Vec<String> = names(&whole, 0, u64::MAX).into_iter().map(|p| p.0).collect();
        assert_eq!(got, ["_multipart_mp.2~u.1", "_multipart_mp.other.2", "_multipart_mp.2~u.3"]);
        // Numbers may have gaps.
        let mut gaps = Manifest::default();
        for n in [2, 3, 7] {
            assert!(gaps.append(&part(n, MIB, "p")));
        }
        assert_eq!(gaps.parts(), [(2, 0, MIB), (3, MIB, MIB), (7, 2 * MIB, MIB)]);
    }

    #[test]
    fn senseless_manifests_end() {
        let mut m = simple(9 * MIB);
        m.rules.clear();
        assert_eq!(names(&m, 0, u64::MAX).len(), 1);
        m.rules.insert(0, Rule::default());
        assert_eq!(names(&m, 0, u64::MAX).len(), 2, "one stripe without end");
        m.explicit = true;
        assert!(names(&m, 0, u64::MAX).is_empty());
        let part = ExplicitPart { object: object("x"), offset: 3, size: 1 };
        m.explicit_parts.insert(0, part);
        m.head_size = 0;
        assert_eq!(names(&m, 0, u64::MAX), [("x".to_owned(), 0, 1, 3)]);
    }
}
