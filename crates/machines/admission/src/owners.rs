//! The owners of objects: a table of rules from pool, namespace and name to a key.
//!
//! Objects with the same key in the same pool and namespace have the same owner: an image, a
//! subvolume, a bucket. A key of the names of an owner's data is what [`messages::TenantShare`] and
//! [`messages::ImageData`] have as `prefix`. A tenant of no pool has ids of buckets there, with
//! commas between them. The rules of RBD and of RGW are there from the beginning; others join with
//! [`Owners::add`].
//!
//! Looking an object up compares the beginnings of names, and allocates nothing.

use bytes::Bytes;
use smallvec::SmallVec;
use std::ops::Deref;
use types::PoolId;

/// What an owner is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An image of RBD.
    Image,
    /// A subvolume of a file system.
    Subvolume,
    /// A bucket of a gateway.
    Bucket,
}

/// What an object is to its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It holds data. Ceilings of the owner count what is done with it.
    Data,
    /// It tells of the owner. What is done with it waits for no ceiling.
    About,
}

/// Where the key stands in a name that a rule fits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Everything before the last such byte, which must stand behind the rule's beginning and at
    /// least one more byte.
    BeforeLast(u8),
    /// Everything before the first such byte behind the rule's beginning.
    BeforeFirst(u8),
    /// What stands behind the rule's beginning, up to the first such byte or the name's end, with
    /// this text before it. It must not be empty.
    Behind(&'static [u8], u8),
    /// Nothing: all objects of the namespace have one owner.
    Nothing,
    /// The id of a bucket behind the rule's beginning, with this byte or, if it may end there, the
    /// name's end after it.
    BucketId {
        /// What follows the id.
        before: u8,
        /// The id may be the end of the name.
        ends: bool,
    },
}

/// One rule. It fits objects of its pool and namespaces with names that begin as it says, if they
/// have a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What owners it finds.
    pub kind: Kind,
    /// What the objects are to them.
    pub role: Role,
    /// The pool of the objects; `None` for any.
    pub pool: Option<PoolId>,
    /// The beginning of the objects' namespace; empty for any.
    pub namespace: Bytes,
    /// The beginning of the objects' names; empty for any.
    pub begins: Bytes,
    /// Where the key is.
    pub key: Part,
}

/// A key: a part of the object's name, or made of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Key<'a> {
    /// A part of the name.
    Name(&'a [u8]),
    /// Something else before a part of the name.
    Made(SmallVec<[u8; 64]>),
}

impl Deref for Key<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Key::Name(part) => part,
            Key::Made(key) => key,
        }
    }
}

/// The owner of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner<'a> {
    /// What it is.
    pub kind: Kind,
    /// What the object is to it.
    pub role: Role,
    /// Tells owners of a pool and namespace apart.
    pub key: Key<'a>,
}

impl Rule {
    fn key<'a>(&self, pool: PoolId, namespace: &[u8], name: &'a [u8]) -> Option<Key<'a>> {
        let rest = name.strip_prefix(&self.begins[..])?;
        if self.pool.is_some_and(|p| p != pool) || !namespace.starts_with(&self.namespace) {
            return None;
        }
        let begins = self.begins.len();
        match &self.key {
            Part::BeforeLast(byte) => {
                let at = rest.iter().rposition(|b| b == byte).filter(|at| *at > 0)?;
                name.get(..begins + at).map(Key::Name)
            }
            Part::BeforeFirst(byte) => {
                let at = rest.iter().position(|b| b == byte).filter(|at| begins + at > 0)?;
                name.get(..begins + at).map(Key::Name)
            }
            Part::Behind(text, byte) => {
                let part = rest.split(|b| b == byte).next().filter(|part| !part.is_empty())?;
                let mut key = SmallVec::from_slice(text);
                key.extend_from_slice(part);
                Some(Key::Made(key))
            }
            Part::Nothing => Some(Key::Name(b"")),
            Part::BucketId { before, ends } => {
                let length = bucket_id(rest)?;
                let fits = match rest.get(length) {
                    Some(byte) => byte == before,
                    None => *ends,
                };
                rest.get(..length).filter(|_| fits).map(Key::Name)
            }
        }
    }
}

/// The length of the id of a bucket that begins a name: `ZONE.GATEWAY.NUMBER`, a UUID and two
/// decimal numbers (Ceph: `RGWRados::create_bucket_id`).
fn bucket_id(name: &[u8]) -> Option<usize> {
    const UUID_BYTES: usize = 36;
    // Most names are of something else: they are told by one byte.
    if name.get(UUID_BYTES) != Some(&b'.') {
        return None;
    }
    let uuid = name[..UUID_BYTES].iter().enumerate().all(|(at, byte)| match at {
        8 | 13 | 18 | 23 => *byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    });
    let digits = |from: usize| {
        let count = name.get(from..)?.iter().take_while(|b| b.is_ascii_digit()).count();
        (count > 0).then_some(from + count)
    };
    let gateway = digits(UUID_BYTES + 1).filter(|_| uuid)?;
    digits(gateway + 1).filter(|_| name.get(gateway) == Some(&b'.'))
}

/// The table.
#[derive(Clone, Debug)]
pub struct Owners(Vec<Rule>);

/// The key of an image: what its data objects' names begin with.
const RBD_DATA: &[u8] = b"rbd_data.";

impl Default for Owners {
    /// The rules of RBD and RGW.
    ///
    /// Data objects of images are called `rbd_data.ID.NUMBER`, with a pool before the id if the
    /// data has a pool of its own. Objects that tell of an image end with its id, and those of a
    /// snapshot of its object map with that behind it (Ceph: `RBD_HEADER_PREFIX`,
    /// `RBD_OBJECT_MAP_PREFIX` of `include/rbd_types.h`); they are found for data in the same pool.
    ///
    /// The rules of RGW: objects of a bucket are called `MARKER_KEY`, those of its index
    /// `.dir.ID[.GENERATION][.SHARD]`. Marker and id are the same until the bucket is resharded.
    /// Work with the index is work with the bucket: lists and deletes are little else.
    fn default() -> Self {
        let rule = |begins: &'static [u8], role, key| Rule {
            kind: Kind::Image,
            role,
            pool: None,
            namespace: Bytes::new(),
            begins: Bytes::from_static(begins),
            key,
        };
        let about = Part::Behind(RBD_DATA, b'.');
        let bucket = |begins, before, ends| Rule {
            kind: Kind::Bucket,
            ..rule(begins, Role::Data, Part::BucketId { before, ends })
        };
        Owners(vec![
            rule(RBD_DATA, Role::Data, Part::BeforeLast(b'.')),
            rule(b"rbd_header.", Role::About, about.clone()),
            rule(b"rbd_object_map.", Role::About, about),
            bucket(b".dir.", b'.', true),
            bucket(b"", b'_', false),
        ])
    }
}

impl Owners {
    /// Adds a rule. Of several that fit, the first one counts.
    pub fn add(&mut self, rule: Rule) {
        self.0.push(rule);
    }

    /// The owner of an object.
    #[inline]
    pub fn of<'a>(&self, pool: PoolId, namespace: &[u8], name: &'a [u8]) -> Option<Owner<'a>> {
        self.0.iter().find_map(|rule| {
            let key = rule.key(pool, namespace, name)?;
            Some(Owner { kind: rule.kind, role: rule.role, key })
        })
    }

    /// The key of the image that an object has data of.
    #[inline]
    pub fn image<'a>(&self, pool: PoolId, namespace: &[u8], name: &'a [u8]) -> Option<Key<'a>> {
        let owner = self.of(pool, namespace, name)?;
        (owner.kind == Kind::Image && owner.role == Role::Data).then_some(owner.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(owners: &Owners, name: &str) -> Option<(Role, String)> {
        let owner = owners.of(PoolId(1), b"", name.as_bytes())?;
        Some((owner.role, String::from_utf8_lossy(&owner.key).into_owned()))
    }

    #[test]
    fn images_are_recognised() {
        let owners = Owners::default();
        let data = |key: &str| Some((Role::Data, key.to_owned()));
        assert_eq!(of(&owners, "rbd_data.10ab.0000"), data("rbd_data.10ab"));
        assert_eq!(of(&owners, "rbd_data.2.10ab.0000"), data("rbd_data.2.10ab"));
        for name in
            ["rbd_header.10ab", "rbd_object_map.10ab", "rbd_object_map.10ab.0000000000000004"]
        {
            assert_eq!(of(&owners, name), Some((Role::About, "rbd_data.10ab".into())), "{name}");
        }
        for name in [
            "rbd_data.",
            "rbd_data..",
            "rbd_data.10ab",
            "rbd_dat",
            "",
            "xrbd_data.a.b",
            "rbd_header.",
            "rbd_header",
            "rbd_id.name",
            "rbd_object_map..1",
        ] {
            assert_eq!(of(&owners, name), None, "{name}");
        }
    }

    #[test]
    fn buckets_are_recognised() {
        let owners = Owners::default();
        let id = "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9.4123.17";
        let found = |name: String| {
            let owner = owners.of(PoolId(1), b"", name.as_bytes())?;
            let key = String::from_utf8_lossy(&owner.key).into_owned();
            Some((owner.kind, owner.role, key))
        };
        let bucket = Some((Kind::Bucket, Role::Data, id.to_owned()));
        for name in [
            format!("{id}_key"),
            format!("{id}_"),
            format!("{id}__shadow_.x_1"),
            format!(".dir.{id}"),
            format!(".dir.{id}.0"),
            format!(".dir.{id}.2.10"),
        ] {
            assert_eq!(found(name.clone()), bucket, "{name}");
        }
        for name in [
            id.to_owned(),
            format!("{id}.1_key"),
            format!("x{id}_key"),
            format!("{}_key", id.replace('-', ".")),
            format!("{}_key", id.replace(".17", ".")),
            format!("{}_key", id.replace(".17", "")),
            format!(".dir.{id}_1"),
            ".dir.x.1.2.3".to_owned(),
            format!(".bucket.meta.b:{id}"),
        ] {
            assert_eq!(found(name.clone()), None, "{name}");
        }
    }

    #[test]
    fn others_join() {
        let mut owners = Owners::default();
        let bucket = |begins: &'static [u8], role, key| Rule {
            kind: Kind::Bucket,
            role,
            pool: Some(PoolId(1)),
            namespace: Bytes::new(),
            begins: Bytes::from_static(begins),
            key,
        };
        owners.add(bucket(b".dir.", Role::About, Part::Behind(b"", b'.')));
        owners.add(bucket(b"", Role::Data, Part::BeforeFirst(b'_')));
        owners.add(Rule {
            kind: Kind::Subvolume,
            role: Role::Data,
            pool: None,
            namespace: Bytes::from_static(b"fsvolumens_"),
            begins: Bytes::new(),
            key: Part::Nothing,
        });
        assert_eq!(of(&owners, "marker-1_a_b"), Some((Role::Data, "marker-1".into())));
        assert_eq!(of(&owners, ".dir.marker-1.7"), Some((Role::About, "marker-1".into())));
        assert_eq!(of(&owners, "_x"), None, "a bucket has a marker");
        assert_eq!(of(&owners, "rbd_data.1_2.3"), Some((Role::Data, "rbd_data.1_2".into())));
        assert_eq!(owners.of(PoolId(2), b"", b"marker-1_a"), None);
        let subvolume = owners.of(PoolId(2), b"fsvolumens_a", b"10000000000.00000000").unwrap();
        assert_eq!((subvolume.kind, subvolume.key.len()), (Kind::Subvolume, 0));
        assert_eq!(owners.image(PoolId(1), b"", b"marker-1_a"), None);
        assert!(owners.image(PoolId(1), b"", b"rbd_data.1.2").is_some());
        assert_eq!(owners.image(PoolId(1), b"", b"rbd_header.1"), None);
    }
}
