//! What an operation changes, apart from where it is stored.
//!
//! A primary works out [`Mutations`] once. It applies them to its own store as a
//! [`store::Transaction`], and sends them to its replicas, which do the same with their own
//! collection. Bytes of data travel beside the encoded list, so that they are never copied.

use crate::small::SMALL_BYTES;
use bytes::{BufMut, Bytes, BytesMut};
use denc::{DecodeError, Encode, Features, Reader};
use smallvec::SmallVec;
use store::{AllocHint, Coll, Key, Op, Transaction, WriteHint};
use types::{ObjectId, SnapId};

/// One change of one object. The object is created if a change gives it something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Makes it exist.
    Touch,
    /// Removes it with everything that belongs to it.
    Remove,
    /// Writes bytes.
    Write {
        /// Where.
        offset: u64,
        /// What.
        data: Bytes,
        /// The client will not read them soon.
        dont_need: bool,
    },
    /// Makes a range read as zeros.
    Zero {
        /// Where.
        offset: u64,
        /// Bytes.
        length: u64,
    },
    /// Sets the size.
    Truncate {
        /// Bytes.
        size: u64,
    },
    /// Sets attributes.
    SetAttrs(SmallVec<[(Bytes, Bytes); 2]>),
    /// Removes an attribute.
    RmAttr(Bytes),
    /// Sets omap rows.
    OmapSet(Vec<(Bytes, Bytes)>),
    /// Sets the omap header.
    OmapHeader(Bytes),
    /// Removes omap rows.
    OmapRm(Vec<Bytes>),
    /// Removes the omap rows in `[start, end)`.
    OmapRmRange {
        /// First.
        start: Bytes,
        /// Behind the last.
        end: Bytes,
    },
    /// Removes all omap rows and the header.
    OmapClear,
    /// Becomes a copy of another object of the same PG.
    CloneOf(ObjectId),
    /// Notes what the client expects.
    Hint {
        /// Bytes of the object.
        object_size: u64,
        /// Bytes of a write.
        write_size: u64,
        /// `CEPH_OSD_ALLOC_HINT_FLAG_*`.
        flags: u32,
    },
    /// The clone now belongs to other snapshots: brings the snap mapper's rows up to date.
    Snaps {
        /// Before, empty for a new clone.
        old: Vec<SnapId>,
        /// After, empty for a removed clone.
        new: Vec<SnapId>,
    },
}

/// Changes of a few objects of one PG, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mutations {
    targets: SmallVec<[ObjectId; 2]>,
    steps: SmallVec<[(u8, Change); 4]>,
}

/// Mutations as they travel to a replica.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WireMutations {
    /// The encoded list.
    pub meta: Bytes,
    /// Data of the writes, one after the other.
    pub data: Vec<Bytes>,
}

const ENCODING_VERSION: u8 = 1;

impl Mutations {
    /// No changes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// The changes in order.
    pub fn iter(&self) -> impl Iterator<Item = (&ObjectId, &Change)> {
        self.steps.iter().map(|(t, c)| (&self.targets[usize::from(*t)], c))
    }

    /// Appends a change.
    pub fn push(&mut self, oid: &ObjectId, change: Change) {
        let t = self.target(oid);
        self.steps.push((t, change));
    }

    /// Puts a change before all others: a clone is made of the object as it was.
    pub fn push_front(&mut self, oid: &ObjectId, change: Change) {
        let t = self.target(oid);
        self.steps.insert(0, (t, change));
    }

    /// Bytes of data written.
    pub fn bytes_written(&self) -> u64 {
        self.steps
            .iter()
            .map(|(_, c)| if let Change::Write { data, .. } = c { data.len() as u64 } else { 0 })
            .sum()
    }

    /// The blocks that the changes cover only in part, as far as an object has them: object, and
    /// where the block is.
    pub fn edges(&self) -> impl Iterator<Item = (&ObjectId, u64)> {
        const B: u64 = store::BLOCK;
        self.steps.iter().flat_map(|(target, change)| {
            let (from, to) = match change {
                Change::Write { offset, data, .. } => {
                    (*offset, offset.saturating_add(data.len() as u64))
                }
                Change::Zero { offset, length } => (*offset, offset.saturating_add(*length)),
                Change::Truncate { size } => (*size, *size),
                _ => (0, 0),
            };
            let first = (from % B != 0).then_some(from / B * B);
            let last = (to % B != 0).then_some(to / B * B).filter(|l| Some(*l) != first);
            let oid = self.targets.get(usize::from(*target));
            first.into_iter().chain(last).filter_map(move |at| Some((oid?, at)))
        })
    }

    fn target(&mut self, oid: &ObjectId) -> u8 {
        // At most a head, its clone and the next older clone: a handful.
        if let Some(i) = self.targets.iter().position(|t| t == oid) {
            return i as u8;
        }
        self.targets.push(oid.clone());
        (self.targets.len() - 1) as u8
    }

    /// As operations of the store, appended to `t`. Rows of the snap mapper belong to the PG:
    /// `snaps` adds them, given a clone and its old and new snapshots.
    pub fn into_store(
        self,
        coll: Coll,
        t: &mut Transaction,
        mut snaps: impl FnMut(&mut Transaction, &ObjectId, &[SnapId], &[SnapId]),
    ) {
        let keys: SmallVec<[Key; 2]> = self.targets.iter().map(ObjectId::to_key).collect();
        t.ops.reserve(self.steps.len());
        for (target, change) in self.steps {
            let key = keys[usize::from(target)].clone();
            t.ops.push(match change {
                Change::Touch => Op::Touch { coll, key },
                Change::Remove => Op::Remove { coll, key },
                Change::Write { offset, data, dont_need } => {
                    let hint = if dont_need { WriteHint::DontNeed } else { WriteHint::Normal };
                    Op::Write { coll, key, off: offset, data: data.into(), hint }
                }
                Change::Zero { offset, length } => Op::Zero { coll, key, off: offset, len: length },
                Change::Truncate { size } => Op::Truncate { coll, key, size },
                Change::SetAttrs(attrs) => Op::SetAttrs { coll, key, attrs: attrs.into_vec() },
                Change::RmAttr(name) => Op::RmAttr { coll, key, name },
                Change::OmapSet(rows) => Op::OmapSet { coll, key, rows },
                Change::OmapHeader(header) => Op::OmapHeader { coll, key, header },
                Change::OmapRm(rows) => Op::OmapRm { coll, key, rows },
                Change::OmapRmRange { start, end } => {
                    Op::OmapRmRange { coll, key, start, end: Some(end) }
                }
                Change::OmapClear => Op::OmapClear { coll, key },
                Change::CloneOf(from) => Op::Clone { coll, from: from.to_key(), to: key },
                Change::Hint { object_size, write_size, flags } => {
                    Op::Hint { coll, key, hint: AllocHint { object_size, write_size, flags } }
                }
                Change::Snaps { old, new } => {
                    snaps(t, &self.targets[usize::from(target)], &old, &new);
                    continue;
                }
            });
        }
    }

    /// The form that goes to replicas.
    pub fn to_wire(&self) -> WireMutations {
        let f = Features::ALL;
        let mut out = BytesMut::with_capacity(512);
        let mut all = Vec::new();
        out.put_u8(ENCODING_VERSION);
        out.put_u8(self.targets.len() as u8);
        for t in &self.targets {
            t.encode(&mut out, f);
        }
        out.put_u32_le(self.steps.len() as u32);
        for (target, change) in &self.steps {
            out.put_u8(*target);
            match change {
                Change::Touch => out.put_u8(0),
                Change::Remove => out.put_u8(1),
                Change::Write { offset, data, dont_need } => {
                    out.put_u8(2);
                    out.put_u64_le(*offset);
                    out.put_u32_le(data.len() as u32);
                    out.put_u8(u8::from(*dont_need));
                    all.push(data.clone());
                }
                Change::Zero { offset, length } => {
                    out.put_u8(3);
                    out.put_u64_le(*offset);
                    out.put_u64_le(*length);
                }
                Change::Truncate { size } => {
                    out.put_u8(4);
                    out.put_u64_le(*size);
                }
                Change::SetAttrs(attrs) => {
                    out.put_u8(5);
                    attrs[..].encode(&mut out, f);
                }
                Change::RmAttr(name) => {
                    out.put_u8(6);
                    name.encode(&mut out, f);
                }
                Change::OmapSet(rows) => {
                    out.put_u8(7);
                    rows.encode(&mut out, f);
                }
                Change::OmapHeader(h) => {
                    out.put_u8(8);
                    h.encode(&mut out, f);
                }
                Change::OmapRm(rows) => {
                    out.put_u8(9);
                    rows.encode(&mut out, f);
                }
                Change::OmapRmRange { start, end } => {
                    out.put_u8(10);
                    start.encode(&mut out, f);
                    end.encode(&mut out, f);
                }
                Change::OmapClear => out.put_u8(11),
                Change::CloneOf(from) => {
                    out.put_u8(12);
                    from.encode(&mut out, f);
                }
                Change::Hint { object_size, write_size, flags } => {
                    out.put_u8(13);
                    out.put_u64_le(*object_size);
                    out.put_u64_le(*write_size);
                    out.put_u32_le(*flags);
                }
                Change::Snaps { old, new } => {
                    out.put_u8(14);
                    old.encode(&mut out, f);
                    new.encode(&mut out, f);
                }
            }
        }
        WireMutations { meta: out.freeze(), data: all }
    }

    /// Reads what [`Mutations::to_wire`] wrote; `data` may be cut into other pieces.
    pub fn from_wire(meta: &Bytes, data: &[Bytes]) -> denc::Result<Self> {
        const WHAT: &str = "Mutations";
        let mut r = Reader::new(meta.clone());
        let mut pieces = Pieces { data, at: 0 };
        let version: u8 = r.get()?;
        if version != ENCODING_VERSION {
            return Err(DecodeError::Invalid { what: WHAT, found: version.into() });
        }
        let n: u8 = r.get()?;
        let mut m = Mutations::new();
        for _ in 0..n {
            m.targets.push(r.get()?);
        }
        for _ in 0..r.count(WHAT, 2)? {
            let target: u8 = r.get()?;
            if usize::from(target) >= m.targets.len() {
                return Err(DecodeError::Invalid { what: WHAT, found: target.into() });
            }
            let change = match r.get::<u8>()? {
                0 => Change::Touch,
                1 => Change::Remove,
                2 => {
                    let offset = r.get()?;
                    let length: u32 = r.get()?;
                    let dont_need = r.get()?;
                    Change::Write { offset, data: pieces.take(length as usize)?, dont_need }
                }
                3 => Change::Zero { offset: r.get()?, length: r.get()? },
                4 => Change::Truncate { size: r.get()? },
                5 => Change::SetAttrs(r.get::<Vec<(Bytes, Bytes)>>()?.into()),
                6 => Change::RmAttr(r.get()?),
                7 => Change::OmapSet(r.get()?),
                8 => Change::OmapHeader(r.get()?),
                9 => Change::OmapRm(r.get()?),
                10 => Change::OmapRmRange { start: r.get()?, end: r.get()? },
                11 => Change::OmapClear,
                12 => Change::CloneOf(r.get()?),
                13 => Change::Hint { object_size: r.get()?, write_size: r.get()?, flags: r.get()? },
                14 => Change::Snaps { old: r.get()?, new: r.get()? },
                tag => return Err(DecodeError::Invalid { what: WHAT, found: tag.into() }),
            };
            m.steps.push((target, change));
        }
        r.expect_end(WHAT)?;
        Ok(m)
    }
}

/// Data in pieces that need not be cut where the writes are.
struct Pieces<'a> {
    data: &'a [Bytes],
    /// Bytes used of the first piece.
    at: usize,
}

impl Pieces<'_> {
    fn take(&mut self, length: usize) -> denc::Result<Bytes> {
        let short = |left| DecodeError::Short { what: "Mutations data", needed: length, left };
        let mut parts: SmallVec<[Bytes; 1]> = SmallVec::new();
        let mut left = length;
        let part = self.data.first().is_some_and(|first| first.len() > length);
        while left > 0 {
            let first = self.data.first().ok_or_else(|| short(length - left))?;
            let n = left.min(first.len() - self.at);
            if n > 0 {
                parts.push(first.slice(self.at..self.at + n));
            }
            self.at += n;
            left -= n;
            if self.at == first.len() {
                self.data = &self.data[1..];
                self.at = 0;
            }
        }
        Ok(match parts.len() {
            0 => Bytes::new(),
            // Data of several writes in one piece: see `own_small_data`.
            1 if part && (aligned::PAGE..=SMALL_BYTES).contains(&length) => {
                aligned::AlignedBuf::copy_of(&parts[0]).freeze()
            }
            1 => parts.remove(0),
            _ => parts.concat().into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_are_what_is_covered_in_part() {
        let oid = ObjectId::default();
        let edges = |changes: Vec<Change>| {
            let mut m = Mutations::new();
            changes.into_iter().for_each(|c| m.push(&oid, c));
            m.edges().map(|(_, at)| at).collect::<Vec<_>>()
        };
        let write =
            |offset, len| Change::Write { offset, data: vec![0; len].into(), dont_need: false };
        assert!(edges(vec![write(0, 8192), Change::Touch]).is_empty());
        assert_eq!(edges(vec![write(100, 8)]), [0]);
        assert_eq!(
            edges(vec![write(5000, 8192), Change::Zero { offset: 8192, length: 1 }]),
            [4096, 12288, 8192]
        );
        assert_eq!(
            edges(vec![Change::Truncate { size: 4097 }, Change::Truncate { size: 4096 }]),
            [4096]
        );
        assert_eq!(edges(vec![Change::Zero { offset: 1, length: u64::MAX }]).len(), 2);
    }

    #[test]
    fn the_wire_form_round_trips_whatever_the_cut() {
        let oid = ObjectId::default();
        let mut m = Mutations::new();
        m.push(&oid, Change::Touch);
        m.push(
            &oid,
            Change::Write { offset: 7, data: Bytes::from_static(b"hello"), dont_need: true },
        );
        m.push(
            &oid,
            Change::Write { offset: 90, data: Bytes::from_static(b"world!"), dont_need: false },
        );
        m.push(
            &oid,
            Change::SetAttrs(vec![(Bytes::from_static(b"_"), Bytes::from_static(b"x"))].into()),
        );
        m.push(
            &oid,
            Change::OmapRmRange { start: Bytes::from_static(b"a"), end: Bytes::from_static(b"b") },
        );
        m.push_front(&oid, Change::CloneOf(oid.clone()));
        m.push(&oid, Change::Snaps { old: vec![], new: vec![SnapId(3), SnapId(2)] });
        let wire = m.to_wire();
        assert_eq!(wire.data.len(), 2);
        let joined: Bytes = wire.data.concat().into();
        for cut in 0..=joined.len() {
            let pieces = [joined.slice(..cut), joined.slice(cut..)];
            assert_eq!(Mutations::from_wire(&wire.meta, &pieces).unwrap(), m);
        }
        assert!(Mutations::from_wire(&wire.meta, &[joined.slice(..10)]).is_err());
        for n in 0..wire.meta.len() {
            assert!(
                Mutations::from_wire(&wire.meta.slice(..n), std::slice::from_ref(&joined)).is_err()
            );
        }
    }
}
