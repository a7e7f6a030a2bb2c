//! Transactions: a list of changes that happens as a whole or not at all.

use crate::types::{AllocHint, BLOCK, Buffers, Coll, Key, WriteHint};
use crate::window::{RowRange, Window};
use bytes::Bytes;
use smallvec::{SmallVec, smallvec};

/// What can be changed of one object. Writers of objects have no other vocabulary: changes are
/// handed to the store as they are, and travel between stores as they are.
///
/// What gives an object something (`Touch`, `Write`, `Xor`, `Zero`, `Truncate`, `CloneOf`,
/// `CloneButRows`, `CloneParts`, `CloneRange`, `SetAttrs`, `OmapSet`, `OmapHeader`, `Hint`) creates
/// it when it does not exist. All others fail with [`crate::StoreError::NoObject`] then, and the
/// whole transaction with them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are named after what they are; ranges are bytes")]
pub enum Change {
    /// Makes the object exist.
    Touch,
    /// Removes the object with all that belongs to it.
    Remove,
    /// Writes bytes; the object grows if needed. A single whole block is kept as it is, for as long
    /// as the store likes: it should not be a small part of a large buffer.
    Write { off: u64, data: Buffers, hint: WriteHint },
    /// Replaces bytes by what they are XOR these; what is behind the end or in holes counts as
    /// zeros. The object grows if needed.
    Xor { off: u64, data: Buffers },
    /// Changes nothing. The whole transaction fails with [`crate::StoreError::Unexpected`] if the
    /// attribute does not have this value before it.
    Expect { attr: Bytes, value: Bytes },
    /// Makes a range read as zeros and frees its whole blocks; the object grows if needed.
    Zero { off: u64, len: u64 },
    /// Sets the size; a longer object reads zeros at its end.
    Truncate { size: u64 },
    /// Makes the object equal to another one of the collection (data, attributes, omap); data is
    /// shared, not copied.
    CloneOf { from: Key },
    /// Gives the object data, attributes, omap header and hint of another one of the collection;
    /// data is shared, not copied. Its omap rows stay as they are.
    CloneButRows { from: Key },
    /// Gives the object size, attributes, omap header and hint of another one of the collection,
    /// and data of these ranges of blocks, `[first, end)`; data is shared, not copied. Its other
    /// data and its omap rows stay as they are: nothing of it may lie behind the new size.
    CloneParts { from: Key, blocks: Vec<(u32, u32)> },
    /// Makes the range at `to_off` equal to a range of another object of the collection. What that
    /// does not have reads as zeros. Block-aligned parts are shared, not copied.
    CloneRange { from: Key, off: u64, len: u64, to_off: u64 },
    /// Sets attributes.
    SetAttrs(SmallVec<[(Bytes, Bytes); 2]>),
    /// Removes one attribute; one that is absent is no error.
    RmAttr(Bytes),
    /// Removes all attributes.
    ClearAttrs,
    /// Sets omap rows.
    OmapSet(Vec<(Bytes, Bytes)>),
    /// Removes omap rows; absent ones are no error.
    OmapRm(Vec<Bytes>),
    /// Removes the omap rows in `[start, end)`; no `end` means all from `start` on.
    OmapRmRange { start: Bytes, end: Option<Bytes> },
    /// Removes all omap rows and the header.
    OmapClear,
    /// Sets the omap header.
    OmapHeader(Bytes),
    /// Notes what the client expects of the object.
    Hint(AllocHint),
}

/// Blocks that a store keeps back for each object that was changed, until a checkpoint has it.
const OBJECT_BLOCKS: u64 = 5;

impl Change {
    /// Blocks that the change may take at once, whatever the object has.
    pub(crate) fn blocks(&self) -> u64 {
        let partial = |off: u64, end: u64| {
            let (first, last) = (!off.is_multiple_of(BLOCK), !end.is_multiple_of(BLOCK));
            u64::from(first) + u64::from(last && (!first || off / BLOCK != end / BLOCK))
        };
        match self {
            Change::Write { off, data, .. } | Change::Xor { off, data } => {
                (off % BLOCK + data.len()).div_ceil(BLOCK)
            }
            Change::Zero { off, len } => partial(*off, off.saturating_add(*len)),
            Change::Truncate { size } => partial(*size, *size),
            Change::CloneRange { off, to_off, len, .. } if off % BLOCK == to_off % BLOCK => {
                partial(*to_off, to_off.saturating_add(*len))
            }
            Change::CloneRange { to_off, len, .. } => (to_off % BLOCK + len).div_ceil(BLOCK),
            _ => 0,
        }
    }

    /// Whether the change may take blocks.
    pub fn takes_blocks(&self) -> bool {
        self.blocks() > 0
    }

    /// Bytes of attributes and omap that the change carries.
    fn row_bytes(&self) -> u64 {
        let rows =
            |r: &[(Bytes, Bytes)]| r.iter().map(|(k, v)| (k.len() + v.len()) as u64).sum::<u64>();
        match self {
            Change::SetAttrs(attrs) => rows(attrs),
            Change::OmapSet(r) => rows(r),
            Change::OmapHeader(header) => header.len() as u64,
            _ => 0,
        }
    }

    /// Bytes of a store that the change may take, besides those of its object
    /// ([`object_room`]): the blocks of data, and what is kept back for rows until a checkpoint has
    /// them.
    pub fn room(&self) -> u64 {
        self.blocks() * BLOCK + self.row_bytes() * 2
    }
}

/// Bytes of a store that are kept back for so many objects that are changed.
pub fn object_room(objects: u64) -> u64 {
    objects.saturating_mul(OBJECT_BLOCKS * BLOCK)
}

/// One operation. Later operations of a transaction see the effects of earlier ones.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are named after what they are")]
pub enum Op {
    /// Makes a collection; it must not exist.
    CreateCollection { coll: Coll },
    /// Removes a collection; it must be empty.
    RemoveCollection { coll: Coll },
    /// Makes a collection that has a range of a space; nothing of the range may be another's. Or
    /// makes an ordinary collection one with a space of its own number; all its keys from the floor
    /// on must be in the range.
    CreateWindow { coll: Coll, window: Window },
    /// Makes a collection of the keys from `at` on of `coll`, which has a range of a space. No
    /// object is moved.
    Split { coll: Coll, at: Key, new: Coll },
    /// Gives the range of `from` to its neighbour `into`; `from` is gone then. It may have no
    /// object below the floor. No object is moved, unless they are of different spaces; then no
    /// later operation of the transaction may be about those.
    Merge { from: Coll, into: Coll },
    /// Changes one object.
    Object { coll: Coll, key: Key, change: Change },
    /// Moves omap rows to another object, where they replace rows of the same keys.
    OmapMove { coll: Coll, key: Key, range: RowRange, to: Coll, to_key: Key },
    /// Renames an object, also into another collection; the destination must not exist.
    Move { from: Coll, from_key: Key, to: Coll, to_key: Key },
}

/// A list of operations that is applied as a whole or not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// In the order of application.
    pub ops: Vec<Op>,
}

impl Transaction {
    /// An empty transaction.
    pub fn new() -> Transaction {
        Transaction::default()
    }

    /// True when nothing would change.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Appends all operations of `other`.
    pub fn append(&mut self, mut other: Transaction) {
        self.ops.append(&mut other.ops);
    }

    /// Bytes of data, attributes and omap that the transaction carries.
    pub fn payload_bytes(&self) -> u64 {
        self.changes()
            .map(|change| match change {
                Change::Write { data, .. } | Change::Xor { data, .. } => data.len(),
                _ => change.row_bytes(),
            })
            .sum()
    }

    fn changes(&self) -> impl Iterator<Item = &Change> {
        self.ops.iter().filter_map(|op| match op {
            Op::Object { change, .. } => Some(change),
            _ => None,
        })
    }

    /// Bytes of a store that the transaction may take, objects that it changes included.
    pub fn room(&self) -> u64 {
        let mut objects: Vec<&Key> = self
            .ops
            .iter()
            .filter_map(|op| if let Op::Object { key, .. } = op { Some(key) } else { None })
            .collect();
        objects.sort_unstable();
        objects.dedup();
        object_room(objects.len() as u64) + self.changes().map(Change::room).sum::<u64>()
    }

    /// See [`Op::CreateCollection`].
    pub fn create_collection(&mut self, coll: Coll) -> &mut Self {
        self.push(Op::CreateCollection { coll })
    }

    /// See [`Op::RemoveCollection`].
    pub fn remove_collection(&mut self, coll: Coll) -> &mut Self {
        self.push(Op::RemoveCollection { coll })
    }

    /// See [`Op::CreateWindow`].
    pub fn create_window(&mut self, coll: Coll, window: Window) -> &mut Self {
        self.push(Op::CreateWindow { coll, window })
    }

    /// See [`Op::Split`].
    pub fn split(&mut self, coll: Coll, at: Key, new: Coll) -> &mut Self {
        self.push(Op::Split { coll, at, new })
    }

    /// See [`Op::Merge`].
    pub fn merge(&mut self, from: Coll, into: Coll) -> &mut Self {
        self.push(Op::Merge { from, into })
    }

    /// See [`Op::OmapMove`].
    pub fn omap_move(
        &mut self,
        coll: Coll,
        key: &Key,
        range: RowRange,
        to: Coll,
        to_key: &Key,
    ) -> &mut Self {
        self.push(Op::OmapMove { coll, key: key.clone(), range, to, to_key: to_key.clone() })
    }

    /// See [`Change::Touch`].
    pub fn touch(&mut self, coll: Coll, key: &Key) -> &mut Self {
        self.object(coll, key, Change::Touch)
    }

    /// See [`Change::Write`].
    pub fn write(
        &mut self,
        coll: Coll,
        key: &Key,
        off: u64,
        data: impl Into<Buffers>,
        hint: WriteHint,
    ) -> &mut Self {
        self.object(coll, key, Change::Write { off, data: data.into(), hint })
    }

    /// See [`Change::Xor`].
    pub fn xor(&mut self, coll: Coll, key: &Key, off: u64, data: impl Into<Buffers>) -> &mut Self {
        self.object(coll, key, Change::Xor { off, data: data.into() })
    }

    /// See [`Change::Expect`].
    pub fn expect_attr(
        &mut self,
        coll: Coll,
        key: &Key,
        attr: impl Into<Bytes>,
        value: impl Into<Bytes>,
    ) -> &mut Self {
        let (attr, value) = (attr.into(), value.into());
        self.object(coll, key, Change::Expect { attr, value })
    }

    /// See [`Change::CloneButRows`].
    pub fn clone_but_rows(&mut self, coll: Coll, from: &Key, to: &Key) -> &mut Self {
        self.object(coll, to, Change::CloneButRows { from: from.clone() })
    }

    /// See [`Change::CloneParts`].
    pub fn clone_parts(
        &mut self,
        coll: Coll,
        from: &Key,
        to: &Key,
        blocks: Vec<(u32, u32)>,
    ) -> &mut Self {
        self.object(coll, to, Change::CloneParts { from: from.clone(), blocks })
    }

    /// See [`Change::Zero`].
    pub fn zero(&mut self, coll: Coll, key: &Key, off: u64, len: u64) -> &mut Self {
        self.object(coll, key, Change::Zero { off, len })
    }

    /// See [`Change::Truncate`].
    pub fn truncate(&mut self, coll: Coll, key: &Key, size: u64) -> &mut Self {
        self.object(coll, key, Change::Truncate { size })
    }

    /// See [`Change::Remove`].
    pub fn remove(&mut self, coll: Coll, key: &Key) -> &mut Self {
        self.object(coll, key, Change::Remove)
    }

    /// See [`Change::CloneOf`].
    pub fn clone_object(&mut self, coll: Coll, from: &Key, to: &Key) -> &mut Self {
        self.object(coll, to, Change::CloneOf { from: from.clone() })
    }

    /// See [`Change::CloneRange`].
    pub fn clone_range(
        &mut self,
        coll: Coll,
        from: &Key,
        off: u64,
        len: u64,
        to: &Key,
        to_off: u64,
    ) -> &mut Self {
        self.object(coll, to, Change::CloneRange { from: from.clone(), off, len, to_off })
    }

    /// Sets one attribute; see [`Change::SetAttrs`].
    pub fn set_attr(
        &mut self,
        coll: Coll,
        key: &Key,
        name: impl Into<Bytes>,
        value: impl Into<Bytes>,
    ) -> &mut Self {
        self.object(coll, key, Change::SetAttrs(smallvec![(name.into(), value.into())]))
    }

    /// See [`Change::SetAttrs`].
    pub fn set_attrs(&mut self, coll: Coll, key: &Key, attrs: Vec<(Bytes, Bytes)>) -> &mut Self {
        self.object(coll, key, Change::SetAttrs(attrs.into()))
    }

    /// See [`Change::RmAttr`].
    pub fn rm_attr(&mut self, coll: Coll, key: &Key, name: impl Into<Bytes>) -> &mut Self {
        self.object(coll, key, Change::RmAttr(name.into()))
    }

    /// See [`Change::ClearAttrs`].
    pub fn clear_attrs(&mut self, coll: Coll, key: &Key) -> &mut Self {
        self.object(coll, key, Change::ClearAttrs)
    }

    /// See [`Change::OmapSet`].
    pub fn omap_set(&mut self, coll: Coll, key: &Key, rows: Vec<(Bytes, Bytes)>) -> &mut Self {
        self.object(coll, key, Change::OmapSet(rows))
    }

    /// See [`Change::OmapRm`].
    pub fn omap_rm(&mut self, coll: Coll, key: &Key, rows: Vec<Bytes>) -> &mut Self {
        self.object(coll, key, Change::OmapRm(rows))
    }

    /// See [`Change::OmapRmRange`].
    pub fn omap_rm_range(
        &mut self,
        coll: Coll,
        key: &Key,
        start: impl Into<Bytes>,
        end: Option<Bytes>,
    ) -> &mut Self {
        self.object(coll, key, Change::OmapRmRange { start: start.into(), end })
    }

    /// See [`Change::OmapClear`].
    pub fn omap_clear(&mut self, coll: Coll, key: &Key) -> &mut Self {
        self.object(coll, key, Change::OmapClear)
    }

    /// See [`Change::OmapHeader`].
    pub fn omap_header(&mut self, coll: Coll, key: &Key, header: impl Into<Bytes>) -> &mut Self {
        self.object(coll, key, Change::OmapHeader(header.into()))
    }

    /// See [`Op::Move`].
    pub fn move_object(&mut self, from: Coll, from_key: &Key, to: Coll, to_key: &Key) -> &mut Self {
        self.push(Op::Move { from, from_key: from_key.clone(), to, to_key: to_key.clone() })
    }

    /// See [`Change::Hint`].
    pub fn alloc_hint(&mut self, coll: Coll, key: &Key, hint: AllocHint) -> &mut Self {
        self.object(coll, key, Change::Hint(hint))
    }

    /// Appends a change of an object.
    pub fn object(&mut self, coll: Coll, key: &Key, change: Change) -> &mut Self {
        self.push(Op::Object { coll, key: key.clone(), change })
    }

    fn push(&mut self, op: Op) -> &mut Self {
        self.ops.push(op);
        self
    }
}
