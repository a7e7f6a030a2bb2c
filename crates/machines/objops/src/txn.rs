//! What an operation changes, apart from where it is stored.
//!
//! A primary works out [`Mutations`] once, in the vocabulary of the store. It applies them to its
//! own store as a [`store::Transaction`], and sends them to its replicas, which decode them into
//! the same vocabulary and do the same with their own collection. Bytes of data travel beside the
//! encoded list, so that they are never copied.

use crate::small::SMALL_BYTES;
use bytes::{BufMut, Bytes, BytesMut};
use denc::{DecodeError, Encode, Features, Reader};
use smallvec::SmallVec;
use store::{AllocHint, Buffers, Change, Coll, Key, Op, Transaction, WriteHint};
use types::{ObjectId, SnapId};

/// Changes of a few objects of one PG, in order: what a client's request, or the PG itself, does to
/// the store. The changes are those of the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mutations {
    targets: SmallVec<[ObjectId; 2]>,
    steps: SmallVec<[(u8, Change); 4]>,
    /// Clones that now belong to other snapshots.
    snaps: Vec<(u8, SnapsChange)>,
}

/// The snapshots of a clone change, and with them rows of the snap mapper.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapsChange {
    /// Before the change, empty for a new clone.
    pub old: Vec<SnapId>,
    /// After the change, empty for a removed clone.
    pub new: Vec<SnapId>,
}

/// Mutations as they travel to a replica.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WireMutations {
    /// The encoded list.
    pub meta: Bytes,
    /// Data of the writes, one after the other.
    pub data: Vec<Bytes>,
}

const ENCODING_VERSION: u8 = 2;

impl Mutations {
    /// No changes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty() && self.snaps.is_empty()
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

    /// Notes that a clone now belongs to other snapshots.
    pub fn push_snaps(&mut self, clone: &ObjectId, old: Vec<SnapId>, new: Vec<SnapId>) {
        let t = self.target(clone);
        self.snaps.push((t, SnapsChange { old, new }));
    }

    /// Clones that now belong to other snapshots.
    pub fn snaps(&self) -> impl Iterator<Item = (&ObjectId, &SnapsChange)> {
        self.snaps.iter().map(|(t, c)| (&self.targets[usize::from(*t)], c))
    }

    /// Bytes of data written.
    pub fn bytes_written(&self) -> u64 {
        self.steps
            .iter()
            .map(|(_, c)| {
                if let Change::Write { data, .. } | Change::Xor { data, .. } = c {
                    data.len()
                } else {
                    0
                }
            })
            .sum()
    }

    /// Whether the changes may take blocks of a store, whatever objects have.
    pub fn takes_blocks(&self) -> bool {
        self.steps.iter().any(|(_, c)| c.takes_blocks())
    }

    /// Bytes of a store that the changes may take.
    pub fn room(&self) -> u64 {
        let changes: u64 = self.steps.iter().map(|(_, c)| c.room()).sum();
        store::object_room(self.targets.len() as u64) + changes
    }

    /// The blocks that the changes cover only in part, as far as an object has them: object, and
    /// where the block is.
    pub fn edges(&self) -> impl Iterator<Item = (&ObjectId, u64)> {
        const B: u64 = store::BLOCK;
        self.steps.iter().flat_map(|(target, change)| {
            let (from, to) = match change {
                Change::Write { off, data, .. } => (*off, off.saturating_add(data.len())),
                Change::Zero { off, len } => (*off, off.saturating_add(*len)),
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
        t.ops.extend(self.steps.into_iter().map(|(target, change)| Op::Object {
            coll,
            key: keys[usize::from(target)].clone(),
            change,
        }));
        for (target, change) in &self.snaps {
            snaps(t, &self.targets[usize::from(*target)], &change.old, &change.new);
        }
    }

    /// The form that goes to replicas.
    pub fn to_wire(&self) -> WireMutations {
        let f = Features::ALL;
        let mut out = BytesMut::with_capacity(512);
        let mut data = Vec::new();
        out.put_u8(ENCODING_VERSION);
        out.put_u8(self.targets.len() as u8);
        for t in &self.targets {
            t.encode(&mut out, f);
        }
        out.put_u32_le(self.steps.len() as u32);
        for (target, change) in &self.steps {
            out.put_u8(*target);
            codec::encode(change, &mut out, &mut data);
        }
        out.put_u32_le(self.snaps.len() as u32);
        for (target, change) in &self.snaps {
            out.put_u8(*target);
            change.old.encode(&mut out, f);
            change.new.encode(&mut out, f);
        }
        WireMutations { meta: out.freeze(), data }
    }

    /// Reads what [`Mutations::to_wire`] wrote; `data` may be cut into other pieces.
    pub fn from_wire(meta: &Bytes, data: &[Bytes]) -> denc::Result<Self> {
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
            let target = m.known_target(&mut r)?;
            m.steps.push((target, codec::decode(&mut r, &mut pieces)?));
        }
        for _ in 0..r.count(WHAT, 9)? {
            let target = m.known_target(&mut r)?;
            m.snaps.push((target, SnapsChange { old: r.get()?, new: r.get()? }));
        }
        r.expect_end(WHAT)?;
        Ok(m)
    }

    fn known_target(&self, r: &mut Reader) -> denc::Result<u8> {
        let target: u8 = r.get()?;
        if usize::from(target) < self.targets.len() {
            Ok(target)
        } else {
            Err(DecodeError::Invalid { what: WHAT, found: target.into() })
        }
    }
}

const WHAT: &str = "Mutations";

/// The wire form of one change: a tag and its arguments. Data of writes stands beside the list.
mod codec {
    use super::*;

    const TOUCH: u8 = 0;
    const REMOVE: u8 = 1;
    const WRITE: u8 = 2;
    const ZERO: u8 = 3;
    const TRUNCATE: u8 = 4;
    const SET_ATTRS: u8 = 5;
    const RM_ATTR: u8 = 6;
    const OMAP_SET: u8 = 7;
    const OMAP_HEADER: u8 = 8;
    const OMAP_RM: u8 = 9;
    const OMAP_RM_RANGE: u8 = 10;
    const OMAP_CLEAR: u8 = 11;
    const CLONE_OF: u8 = 12;
    const HINT: u8 = 13;
    const CLONE_RANGE: u8 = 14;
    const CLEAR_ATTRS: u8 = 15;
    const XOR: u8 = 16;
    const CLONE_BUT_ROWS: u8 = 17;
    const EXPECT: u8 = 18;
    const CLONE_PARTS: u8 = 19;

    /// Hints of writes, as numbers.
    const HINTS: [WriteHint; 3] = [WriteHint::Normal, WriteHint::DontNeed, WriteHint::WillNeed];

    pub(super) fn encode(change: &Change, out: &mut BytesMut, beside: &mut Vec<Bytes>) {
        let f = Features::ALL;
        match change {
            Change::Touch => out.put_u8(TOUCH),
            Change::Remove => out.put_u8(REMOVE),
            Change::Write { off, data, hint } => {
                out.put_u8(WRITE);
                out.put_u64_le(*off);
                out.put_u32_le(data.len() as u32);
                out.put_u8(HINTS.iter().position(|h| h == hint).unwrap_or_default() as u8);
                beside.extend(data.iter().cloned());
            }
            Change::Xor { off, data } => {
                out.put_u8(XOR);
                out.put_u64_le(*off);
                out.put_u32_le(data.len() as u32);
                beside.extend(data.iter().cloned());
            }
            Change::Expect { attr, value } => {
                out.put_u8(EXPECT);
                attr.encode(out, f);
                value.encode(out, f);
            }
            Change::Zero { off, len } => {
                out.put_u8(ZERO);
                out.put_u64_le(*off);
                out.put_u64_le(*len);
            }
            Change::Truncate { size } => {
                out.put_u8(TRUNCATE);
                out.put_u64_le(*size);
            }
            Change::SetAttrs(attrs) => {
                out.put_u8(SET_ATTRS);
                attrs[..].encode(out, f);
            }
            Change::RmAttr(name) => {
                out.put_u8(RM_ATTR);
                name.encode(out, f);
            }
            Change::ClearAttrs => out.put_u8(CLEAR_ATTRS),
            Change::OmapSet(rows) => {
                out.put_u8(OMAP_SET);
                rows.encode(out, f);
            }
            Change::OmapHeader(header) => {
                out.put_u8(OMAP_HEADER);
                header.encode(out, f);
            }
            Change::OmapRm(rows) => {
                out.put_u8(OMAP_RM);
                rows.encode(out, f);
            }
            Change::OmapRmRange { start, end } => {
                out.put_u8(OMAP_RM_RANGE);
                start.encode(out, f);
                end.encode(out, f);
            }
            Change::OmapClear => out.put_u8(OMAP_CLEAR),
            Change::CloneOf { from } => {
                out.put_u8(CLONE_OF);
                from.encode(out, f);
            }
            Change::CloneButRows { from } => {
                out.put_u8(CLONE_BUT_ROWS);
                from.encode(out, f);
            }
            Change::CloneParts { from, blocks } => {
                out.put_u8(CLONE_PARTS);
                from.encode(out, f);
                blocks.encode(out, f);
            }
            Change::CloneRange { from, off, len, to_off } => {
                out.put_u8(CLONE_RANGE);
                from.encode(out, f);
                (*off, *len).encode(out, f);
                to_off.encode(out, f);
            }
            Change::Hint(AllocHint { object_size, write_size, flags }) => {
                out.put_u8(HINT);
                out.put_u64_le(*object_size);
                out.put_u64_le(*write_size);
                out.put_u32_le(*flags);
            }
        }
    }

    pub(super) fn decode(r: &mut Reader, pieces: &mut Pieces<'_>) -> denc::Result<Change> {
        Ok(match r.get::<u8>()? {
            TOUCH => Change::Touch,
            REMOVE => Change::Remove,
            WRITE => {
                let off = r.get()?;
                let length: u32 = r.get()?;
                let number: u8 = r.get()?;
                let hint = *HINTS
                    .get(usize::from(number))
                    .ok_or(DecodeError::Invalid { what: WHAT, found: number.into() })?;
                Change::Write { off, data: Buffers::from(pieces.take(length as usize)?), hint }
            }
            XOR => {
                let off = r.get()?;
                let length: u32 = r.get()?;
                Change::Xor { off, data: Buffers::from(pieces.take(length as usize)?) }
            }
            EXPECT => Change::Expect { attr: r.get()?, value: r.get()? },
            ZERO => Change::Zero { off: r.get()?, len: r.get()? },
            TRUNCATE => Change::Truncate { size: r.get()? },
            SET_ATTRS => Change::SetAttrs(r.get::<Vec<(Bytes, Bytes)>>()?.into()),
            RM_ATTR => Change::RmAttr(r.get()?),
            CLEAR_ATTRS => Change::ClearAttrs,
            OMAP_SET => Change::OmapSet(r.get()?),
            OMAP_HEADER => Change::OmapHeader(r.get()?),
            OMAP_RM => Change::OmapRm(r.get()?),
            OMAP_RM_RANGE => Change::OmapRmRange { start: r.get()?, end: r.get()? },
            OMAP_CLEAR => Change::OmapClear,
            CLONE_OF => Change::CloneOf { from: r.get()? },
            CLONE_BUT_ROWS => Change::CloneButRows { from: r.get()? },
            CLONE_PARTS => Change::CloneParts { from: r.get()?, blocks: r.get()? },
            CLONE_RANGE => Change::CloneRange {
                from: r.get()?,
                off: r.get()?,
                len: r.get()?,
                to_off: r.get()?,
            },
            HINT => Change::Hint(AllocHint {
                object_size: r.get()?,
                write_size: r.get()?,
                flags: r.get()?,
            }),
            tag => return Err(DecodeError::Invalid { what: WHAT, found: tag.into() }),
        })
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
            |off, len| Change::Write { off, data: vec![0; len].into(), hint: WriteHint::Normal };
        assert!(edges(vec![write(0, 8192), Change::Touch]).is_empty());
        assert_eq!(edges(vec![write(100, 8)]), [0]);
        assert_eq!(
            edges(vec![write(5000, 8192), Change::Zero { off: 8192, len: 1 }]),
            [4096, 12288, 8192]
        );
        assert_eq!(
            edges(vec![Change::Truncate { size: 4097 }, Change::Truncate { size: 4096 }]),
            [4096]
        );
        assert_eq!(edges(vec![Change::Zero { off: 1, len: u64::MAX }]).len(), 2);
    }

    #[test]
    fn the_wire_form_round_trips_whatever_the_cut() {
        let oid = ObjectId::default();
        let mut m = Mutations::new();
        m.push(&oid, Change::Touch);
        let bytes = |b: &'static [u8]| Bytes::from_static(b);
        let write = |off, data, hint| Change::Write { off, data: bytes(data).into(), hint };
        let row = || (bytes(b"_"), bytes(b"x"));
        let from = oid.to_key();
        for change in [
            write(7, b"hello", WriteHint::DontNeed),
            write(90, b"world!", WriteHint::WillNeed),
            Change::Xor { off: 9, data: bytes(b"xor").into() },
            Change::Expect { attr: bytes(b"_"), value: bytes(b"info") },
            Change::CloneButRows { from: from.clone() },
            Change::CloneParts { from: from.clone(), blocks: vec![(0, 1), (7, 9)] },
            Change::Zero { off: 1, len: 2 },
            Change::Truncate { size: 3 },
            Change::SetAttrs(vec![row()].into()),
            Change::RmAttr(bytes(b"_")),
            Change::ClearAttrs,
            Change::OmapSet(vec![row(), row()]),
            Change::OmapHeader(bytes(b"header")),
            Change::OmapRm(vec![bytes(b"a")]),
            Change::OmapRmRange { start: bytes(b"a"), end: Some(bytes(b"b")) },
            Change::OmapRmRange { start: bytes(b"a"), end: None },
            Change::OmapClear,
            Change::CloneRange { from: from.clone(), off: 1, len: 2, to_off: 3 },
            Change::Hint(AllocHint { object_size: 1, write_size: 2, flags: 3 }),
            Change::Remove,
        ] {
            m.push(&oid, change);
        }
        m.push_front(&oid, Change::CloneOf { from });
        m.push_snaps(&oid, vec![], vec![SnapId(3), SnapId(2)]);
        let wire = m.to_wire();
        assert_eq!(wire.data.len(), 3);
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
