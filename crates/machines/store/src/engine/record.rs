//! Log records: one transaction each, as resolved operations.
//!
//! A record says what was done, not what was asked for: where data went, with which checksums. Each
//! operation is a tag byte, its object (or only the tag with [`SAME`] set when it is the object of
//! the operation before) and its arguments. [`FRESH`] says that the object was not there: replay
//! need not look for it on the device.

use super::state::State;
use crate::alloc::Run;
use crate::codec::{Put, corrupt};
use crate::error::StoreError;
use crate::types::{AllocHint, Coll, Key};
use crate::window::{RowRange, Window};
use bytes::Bytes;

/// The operation's object is the one of the operation before.
pub(super) const SAME: u8 = 0x80;

/// There was no such object before the operation. Never together with [`SAME`].
pub(super) const FRESH: u8 = 0x40;

/// Tags of the operations.
pub(super) mod op {
    pub const CREATE_COLL: u8 = 1;
    pub const REMOVE_COLL: u8 = 2;
    pub const TOUCH: u8 = 3;
    pub const PUT_INLINE: u8 = 4;
    pub const PUT_DIRECT: u8 = 5;
    pub const PUNCH: u8 = 6;
    pub const SIZE: u8 = 7;
    pub const REMOVE: u8 = 8;
    pub const CLONE: u8 = 9;
    pub const SHARE: u8 = 10;
    pub const SET_ATTRS: u8 = 11;
    pub const RM_ATTR: u8 = 12;
    pub const CLEAR_ATTRS: u8 = 13;
    pub const OMAP_SET: u8 = 14;
    pub const OMAP_RM: u8 = 15;
    pub const OMAP_RM_RANGE: u8 = 16;
    pub const OMAP_CLEAR: u8 = 17;
    pub const OMAP_HEADER: u8 = 18;
    pub const MOVE: u8 = 19;
    pub const HINT: u8 = 20;
    pub const CREATE_WINDOW: u8 = 21;
    pub const SPLIT: u8 = 22;
    pub const MERGE: u8 = 23;
    pub const OMAP_MOVE: u8 = 24;
    pub const CLONE_BUT_ROWS: u8 = 25;
    pub const CLONE_PARTS: u8 = 26;
}

/// A resolved operation on one object.
#[derive(Debug)]
pub(super) enum Resolved<'a> {
    Touch,
    Put { lblk: u32, segs: &'a [Run], crcs: &'a [u32], size: u64, inline: Option<&'a [Bytes]> },
    Punch { lo: u32, hi: u32 },
    Size(u64),
    Remove,
    Clone { to: &'a Key, rows: bool },
    Share { lblk: u32, n: u32, to: &'a Key, to_lblk: u32, size: u64 },
    Parts { to: &'a Key, blocks: &'a [(u32, u32)] },
    SetAttrs(&'a [(Bytes, Bytes)]),
    RmAttr(&'a Bytes),
    ClearAttrs,
    OmapSet(&'a [(Bytes, Bytes)]),
    OmapRm(&'a [Bytes]),
    OmapRmRange { start: &'a Bytes, end: Option<&'a Bytes> },
    OmapClear,
    OmapHeader(&'a Bytes),
    Move { to: Coll, to_key: &'a Key },
    Hint(AllocHint),
    OmapMove { range: &'a RowRange, to: Coll, to_key: &'a Key },
}

/// Writes one record, remembering the object of the operation before.
pub(super) struct RecordWriter<'a, W: Put> {
    out: &'a mut W,
    last: Option<(Coll, Key)>,
}

impl<'a, W: Put> RecordWriter<'a, W> {
    pub(super) fn new(out: &'a mut W) -> Self {
        RecordWriter { out, last: None }
    }

    pub(super) fn collection(&mut self, coll: Coll, exists: bool) {
        self.out.u8(if exists { op::CREATE_COLL } else { op::REMOVE_COLL });
        self.out.var(coll.0);
    }

    pub(super) fn create_window(&mut self, coll: Coll, window: &Window) {
        self.out.u8(op::CREATE_WINDOW);
        self.out.var(coll.0);
        window.encode(self.out);
    }

    pub(super) fn split(&mut self, coll: Coll, at: &Key, new: Coll) {
        self.out.u8(op::SPLIT);
        self.out.var(coll.0);
        self.out.blob(at);
        self.out.var(new.0);
    }

    pub(super) fn merge(&mut self, from: Coll, into: Coll) {
        self.out.u8(op::MERGE);
        self.out.var(from.0);
        self.out.var(into.0);
    }

    fn head(&mut self, tag: u8, coll: Coll, key: &Key, fresh: bool) {
        if self.last.as_ref().is_some_and(|(c, k)| *c == coll && k == key) {
            self.out.u8(tag | SAME);
        } else {
            self.out.u8(if fresh { tag | FRESH } else { tag });
            self.out.var(coll.0);
            self.out.blob(key);
            self.last = Some((coll, key.clone()));
        }
    }

    fn pairs(&mut self, rows: &[(Bytes, Bytes)]) {
        self.out.var(rows.len() as u64);
        for (k, v) in rows {
            self.out.blob(k);
            self.out.blob(v);
        }
    }

    /// Writes an operation; `fresh` if there is no such object before it.
    pub(super) fn change(&mut self, coll: Coll, key: &Key, fresh: bool, change: &Resolved<'_>) {
        let mut head = |tag| self.head(tag, coll, key, fresh);
        match change {
            Resolved::Touch => head(op::TOUCH),
            Resolved::Put { lblk, segs, crcs, size, inline } => {
                head(if inline.is_some() { op::PUT_INLINE } else { op::PUT_DIRECT });
                self.out.var((*lblk).into());
                self.out.var(*size);
                self.out.var(segs.len() as u64);
                for (at, n) in *segs {
                    self.out.var(*at);
                    self.out.var((*n).into());
                }
                for c in *crcs {
                    self.out.u32(*c);
                }
                for b in inline.unwrap_or_default() {
                    self.out.bytes(b);
                }
            }
            Resolved::Punch { lo, hi } => {
                head(op::PUNCH);
                self.out.var((*lo).into());
                self.out.var((*hi).into());
            }
            Resolved::Size(size) => {
                head(op::SIZE);
                self.out.var(*size);
            }
            Resolved::Remove => head(op::REMOVE),
            Resolved::Clone { to, rows } => {
                head(if *rows { op::CLONE } else { op::CLONE_BUT_ROWS });
                self.out.blob(to);
            }
            Resolved::Share { lblk, n, to, to_lblk, size } => {
                head(op::SHARE);
                self.out.var((*lblk).into());
                self.out.var((*n).into());
                self.out.blob(to);
                self.out.var((*to_lblk).into());
                self.out.var(*size);
            }
            Resolved::Parts { to, blocks } => {
                head(op::CLONE_PARTS);
                self.out.blob(to);
                self.out.var(blocks.len() as u64);
                for (lo, hi) in *blocks {
                    self.out.var((*lo).into());
                    self.out.var((*hi).into());
                }
            }
            Resolved::SetAttrs(attrs) => {
                head(op::SET_ATTRS);
                self.pairs(attrs);
            }
            Resolved::RmAttr(name) => {
                head(op::RM_ATTR);
                self.out.blob(name);
            }
            Resolved::ClearAttrs => head(op::CLEAR_ATTRS),
            Resolved::OmapSet(rows) => {
                head(op::OMAP_SET);
                self.pairs(rows);
            }
            Resolved::OmapRm(rows) => {
                head(op::OMAP_RM);
                self.out.var(rows.len() as u64);
                rows.iter().for_each(|r| self.out.blob(r));
            }
            Resolved::OmapRmRange { start, end } => {
                head(op::OMAP_RM_RANGE);
                self.out.blob(start);
                self.out.u8(end.is_some().into());
                if let Some(end) = end {
                    self.out.blob(end);
                }
            }
            Resolved::OmapClear => head(op::OMAP_CLEAR),
            Resolved::OmapHeader(h) => {
                head(op::OMAP_HEADER);
                self.out.blob(h);
            }
            Resolved::Move { to, to_key } => {
                head(op::MOVE);
                self.out.var(to.0);
                self.out.blob(to_key);
            }
            Resolved::Hint(h) => {
                head(op::HINT);
                self.out.var(h.object_size);
                self.out.var(h.write_size);
                self.out.var(h.flags.into());
            }
            Resolved::OmapMove { range, to, to_key } => {
                head(op::OMAP_MOVE);
                range.encode(self.out);
                self.out.var(to.0);
                self.out.blob(to_key);
            }
        }
    }
}

impl State {
    /// Does to memory what a resolved operation says. The object and what it shares are in memory
    /// already, or are brought in while the thread waits.
    pub(super) fn apply(
        &mut self,
        coll: Coll,
        slot: u32,
        change: &Resolved<'_>,
    ) -> Result<(), StoreError> {
        match change {
            Resolved::Touch => drop(self.modify(slot)),
            Resolved::Put { lblk, segs, crcs, size, inline } => {
                self.families_of(slot)?;
                self.put(slot, *lblk, segs, crcs, *size, *inline);
            }
            Resolved::Punch { lo, hi } => {
                self.families_of(slot)?;
                self.punch(slot, *lo, *hi);
            }
            Resolved::Size(size) => self.set_size(slot, *size),
            Resolved::Remove => {
                self.families_of(slot)?;
                self.remove(slot);
            }
            Resolved::Clone { to, rows } => {
                let to = self.slot(coll, to)?;
                self.families_of(slot)?;
                self.families_of(to)?;
                self.clone_object(slot, to, *rows)?;
            }
            Resolved::Parts { to, blocks } => {
                let to = self.slot(coll, to)?;
                self.families_of(slot)?;
                self.families_of(to)?;
                self.clone_parts(slot, to, blocks)?;
            }
            Resolved::Share { lblk, n, to, to_lblk, size } => {
                let to = self.slot(coll, to)?;
                self.families_of(slot)?;
                self.families_of(to)?;
                self.share_range(slot, *lblk, *n, to, *to_lblk, *size);
            }
            Resolved::SetAttrs(attrs) => {
                let o = self.modify(slot);
                // Copies: the record outlives the message that these may be slices of.
                let own = |b: &Bytes| Bytes::copy_from_slice(b);
                attrs.iter().for_each(|(k, v)| o.set_attr(own(k), own(v)));
            }
            Resolved::RmAttr(name) => self.modify(slot).rm_attr(name),
            Resolved::ClearAttrs => self.modify(slot).attrs.clear(),
            Resolved::OmapSet(rows) => self.omap_set(slot, rows),
            Resolved::OmapRm(rows) => self.omap_rm(slot, rows),
            Resolved::OmapRmRange { start, end } => {
                self.omap_rm_range(slot, start, end.map(|e| &e[..]))
            }
            Resolved::OmapClear => self.omap_clear(slot),
            Resolved::OmapHeader(h) => self.omap_header(slot, Bytes::copy_from_slice(h)),
            Resolved::Move { to, to_key } => {
                let to = self.slot(*to, to_key)?;
                self.move_object(slot, to);
            }
            Resolved::Hint(h) => self.modify(slot).hint = *h,
            Resolved::OmapMove { range, to, to_key } => {
                let to = self.slot(*to, to_key)?;
                self.omap_move(slot, range, to)?;
            }
        }
        Ok(())
    }

    /// A run from the device lies inside the data area.
    pub(super) fn check_run(&self, (start, n): Run) -> Result<(), StoreError> {
        let end = start.checked_add(n.into());
        if n == 0 || start < self.data_start || end.is_none_or(|e| e > self.blocks) {
            return Err(corrupt("block number out of range"));
        }
        Ok(())
    }
}
