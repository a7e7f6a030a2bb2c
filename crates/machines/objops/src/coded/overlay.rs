//! What changes of an object's data come to: what is left of old bytes, and what lies over them.

use std::collections::BTreeMap;
use std::ops::Range;
use store::{Buffers, Change, WriteHint};
use types::ObjectId;

/// Which object's old bytes count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Base {
    /// There are none.
    Nothing,
    /// The object's own.
    Own,
    /// Those of the object that it became a copy of.
    Other(ObjectId),
}

/// Bytes that lie over old ones.
#[derive(Clone, Debug)]
enum Patch {
    Bytes(Buffers, WriteHint),
    Zero(u64),
}

impl Patch {
    fn len(&self) -> u64 {
        match self {
            Patch::Bytes(data, _) => data.len(),
            Patch::Zero(len) => *len,
        }
    }

    fn slice(&self, off: u64, len: u64) -> Patch {
        match self {
            Patch::Bytes(data, hint) => Patch::Bytes(data.slice(off, len), *hint),
            Patch::Zero(_) => Patch::Zero(len),
        }
    }
}

/// Changes of one object, added up.
#[derive(Clone, Debug)]
pub(super) struct Overlay {
    base: Base,
    base_size: u64,
    /// Old bytes count up to here.
    kept: u64,
    size: u64,
    exists: bool,
    remade: bool,
    patches: BTreeMap<u64, Patch>,
}

impl Overlay {
    /// Nothing changes yet of an object of this size, or of none.
    pub(super) fn new(size: Option<u64>) -> Overlay {
        let base = if size.is_some() { Base::Own } else { Base::Nothing };
        let bytes = size.unwrap_or(0);
        Overlay {
            base,
            base_size: bytes,
            kept: bytes,
            size: bytes,
            exists: size.is_some(),
            remade: false,
            patches: BTreeMap::new(),
        }
    }

    /// Adds a change; `source` is the object that a copy is made of, and its size.
    pub(super) fn add(
        &mut self,
        change: &Change,
        source: Option<(ObjectId, u64)>,
    ) -> Result<(), &'static str> {
        match change {
            Change::Remove => {
                *self = Overlay { remade: true, ..Overlay::new(None) };
                return Ok(());
            }
            Change::CloneOf { .. } => {
                let (oid, size) = source.ok_or("a copy of nothing")?;
                *self =
                    Overlay { remade: true, base: Base::Other(oid), ..Overlay::new(Some(size)) };
            }
            Change::Write { off, data, hint } if !data.is_empty() => {
                let end = off.checked_add(data.len()).ok_or("a write behind all offsets")?;
                self.put(*off, Patch::Bytes(data.clone(), *hint));
                self.size = self.size.max(end);
            }
            Change::Zero { off, len } => {
                let end = off.checked_add(*len).ok_or("zeroes behind all offsets")?;
                if *len > 0 {
                    self.put(*off, Patch::Zero(*len));
                }
                self.size = self.size.max(end);
            }
            Change::Truncate { size } => {
                self.remove(*size..u64::MAX);
                self.kept = self.kept.min(*size);
                self.size = *size;
            }
            Change::CloneRange { .. } => return Err("a copy of a range"),
            Change::CloneButRows { .. } => return Err("a copy without rows"),
            Change::CloneParts { .. } => return Err("a copy of parts"),
            Change::Xor { .. } => return Err("a change by XOR"),
            Change::Expect { .. } => return Err("a condition"),
            Change::RmAttr(_)
            | Change::ClearAttrs
            | Change::OmapRm(_)
            | Change::OmapRmRange { .. }
            | Change::OmapClear => return Ok(()),
            Change::Touch
            | Change::Write { .. }
            | Change::SetAttrs(_)
            | Change::OmapSet(_)
            | Change::OmapHeader(_)
            | Change::Hint(_) => {}
        }
        self.exists = true;
        Ok(())
    }

    fn put(&mut self, off: u64, patch: Patch) {
        self.remove(off..off + patch.len());
        self.patches.insert(off, patch);
    }

    /// Nothing lies over a range any more.
    fn remove(&mut self, range: Range<u64>) {
        let before = self.patches.range(..range.start).next_back();
        let mut cut: Vec<u64> = before.map(|(off, _)| *off).into_iter().collect();
        cut.extend(self.patches.range(range.clone()).map(|(off, _)| *off));
        for off in cut {
            let Some(patch) = self.patches.remove(&off) else { continue };
            let end = off + patch.len();
            if off < range.start {
                self.patches.insert(off, patch.slice(0, end.min(range.start) - off));
            }
            if end > range.end {
                let from = range.end.max(off);
                self.patches.insert(from, patch.slice(from - off, end - from));
            }
        }
    }

    pub(super) fn base(&self) -> &Base {
        &self.base
    }

    pub(super) fn base_size(&self) -> u64 {
        self.base_size
    }

    pub(super) fn kept(&self) -> u64 {
        self.kept
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    pub(super) fn exists(&self) -> bool {
        self.exists
    }

    /// Whether the object was removed, or replaced by a copy, on the way.
    pub(super) fn remade(&self) -> bool {
        self.remade
    }

    /// Whether it has other bytes than it had.
    pub(super) fn changes_data(&self) -> bool {
        self.remade || self.kept < self.base_size || !self.patches.is_empty()
    }

    /// Ranges in which bytes are others than those of the base, which ends in zeroes.
    pub(super) fn changed(&self) -> impl Iterator<Item = Range<u64>> {
        let gone = self.kept..self.base_size;
        let patches = self.patches.iter().map(|(off, p)| *off..*off + p.len());
        patches.chain((!gone.is_empty()).then_some(gone))
    }

    pub(super) fn zeroes(&self) -> impl Iterator<Item = Range<u64>> {
        self.patches.iter().filter_map(|(off, p)| match p {
            Patch::Zero(len) => Some(*off..off + len),
            Patch::Bytes(..) => None,
        })
    }

    pub(super) fn writes(&self) -> impl Iterator<Item = (u64, &Buffers, WriteHint)> {
        self.patches.iter().filter_map(|(off, p)| match p {
            Patch::Bytes(data, hint) => Some((*off, data, *hint)),
            Patch::Zero(_) => None,
        })
    }

    /// The parts of a range that are old bytes, in order.
    pub(super) fn old_parts(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let range = range.start..range.end.min(self.kept);
        let mut old = ec::Extents::new();
        if self.base != Base::Nothing && !range.is_empty() {
            old.insert(range.clone());
            let before = self.patches.range(..range.start).next_back();
            for (off, p) in before.into_iter().chain(self.patches.range(range)) {
                old.remove(*off..off + p.len());
            }
        }
        old.iter().collect::<Vec<_>>().into_iter()
    }

    /// Copies new bytes of a range to `out`; what is none stays as it is.
    pub(super) fn new_bytes(&self, start: u64, out: &mut [u8]) {
        let end = start + out.len() as u64;
        let before = self.patches.range(..start).next_back();
        for (off, patch) in before.into_iter().chain(self.patches.range(start..end)) {
            let part = (*off).max(start)..(off + patch.len()).min(end);
            let Patch::Bytes(data, _) = patch else { continue };
            if part.is_empty() {
                continue;
            }
            let mut at = (part.start - start) as usize;
            for piece in data.slice(part.start - off, part.end - part.start).iter() {
                out[at..at + piece.len()].copy_from_slice(piece);
                at += piece.len();
            }
        }
    }
}
