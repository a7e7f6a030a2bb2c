//! Replaying the log: records are read ahead, what they need is brought in at the same time, then
//! they are applied in order.

use super::nodes;
use super::record::{FRESH, Resolved, SAME, op};
use super::state::State;
use crate::alloc::Run;
use crate::codec::{Decoded, Take, corrupt};
use crate::dev::Device;
use crate::error::StoreError;
use crate::log::records;
use crate::tree::{Miss, NodePtr};
use crate::types::{AllocHint, BLOCK, Coll, Key};
use crate::window::{RowRange, Window};
use bytes::Bytes;
use smallvec::SmallVec;

/// One step of a record.
pub(super) enum Step {
    Collection { coll: Coll, exists: bool },
    CreateWindow { coll: Coll, window: Window },
    Split { coll: Coll, at: Key, new: Coll },
    Merge { from: Coll, into: Coll },
    Resolved { coll: Coll, key: Key, fresh: bool, change: Owned },
}

/// A [`Resolved`] as it is read from the log.
pub(super) enum Owned {
    Touch,
    Put {
        lblk: u32,
        segs: SmallVec<[Run; 4]>,
        crcs: Vec<u32>,
        size: u64,
        inline: Option<Vec<Bytes>>,
    },
    Punch {
        lo: u32,
        hi: u32,
    },
    Size(u64),
    Remove,
    Clone {
        to: Key,
        rows: bool,
    },
    Share {
        lblk: u32,
        n: u32,
        to: Key,
        to_lblk: u32,
        size: u64,
    },
    Parts {
        to: Key,
        blocks: Vec<(u32, u32)>,
    },
    SetAttrs(Vec<(Bytes, Bytes)>),
    RmAttr(Bytes),
    ClearAttrs,
    OmapSet(Vec<(Bytes, Bytes)>),
    OmapRm(Vec<Bytes>),
    OmapRmRange {
        start: Bytes,
        end: Option<Bytes>,
    },
    OmapClear,
    OmapHeader(Bytes),
    Move {
        to: Coll,
        to_key: Key,
    },
    Hint(AllocHint),
    OmapMove {
        range: RowRange,
        to: Coll,
        to_key: Key,
    },
}

impl Owned {
    fn change(&self) -> Resolved<'_> {
        match self {
            Owned::Touch => Resolved::Touch,
            Owned::Put { lblk, segs, crcs, size, inline } => {
                Resolved::Put { lblk: *lblk, segs, crcs, size: *size, inline: inline.as_deref() }
            }
            Owned::Punch { lo, hi } => Resolved::Punch { lo: *lo, hi: *hi },
            Owned::Size(size) => Resolved::Size(*size),
            Owned::Remove => Resolved::Remove,
            Owned::Clone { to, rows } => Resolved::Clone { to, rows: *rows },
            Owned::Share { lblk, n, to, to_lblk, size } => {
                Resolved::Share { lblk: *lblk, n: *n, to, to_lblk: *to_lblk, size: *size }
            }
            Owned::Parts { to, blocks } => Resolved::Parts { to, blocks },
            Owned::SetAttrs(rows) => Resolved::SetAttrs(rows),
            Owned::RmAttr(name) => Resolved::RmAttr(name),
            Owned::ClearAttrs => Resolved::ClearAttrs,
            Owned::OmapSet(rows) => Resolved::OmapSet(rows),
            Owned::OmapRm(rows) => Resolved::OmapRm(rows),
            Owned::OmapRmRange { start, end } => Resolved::OmapRmRange { start, end: end.as_ref() },
            Owned::OmapClear => Resolved::OmapClear,
            Owned::OmapHeader(header) => Resolved::OmapHeader(header),
            Owned::Move { to, to_key } => Resolved::Move { to: *to, to_key },
            Owned::Hint(hint) => Resolved::Hint(*hint),
            Owned::OmapMove { range, to, to_key } => Resolved::OmapMove { range, to: *to, to_key },
        }
    }

    /// The other object that it is about.
    fn other(&self, coll: Coll) -> Option<(Coll, &Key)> {
        match self {
            Owned::Clone { to, .. } | Owned::Share { to, .. } | Owned::Parts { to, .. } => {
                Some((coll, to))
            }
            Owned::Move { to, to_key } | Owned::OmapMove { to, to_key, .. } => Some((*to, to_key)),
            _ => None,
        }
    }

    fn read(tag: u8, r: &mut Take<'_>) -> Result<Owned, StoreError> {
        Ok(match tag {
            op::TOUCH => Owned::Touch,
            op::PUT_INLINE | op::PUT_DIRECT => Self::read_put(tag == op::PUT_INLINE, r)?,
            op::PUNCH => Owned::Punch { lo: r.var32()?, hi: r.var32()? },
            op::SIZE => Owned::Size(r.var()?),
            op::REMOVE => Owned::Remove,
            op::CLONE => Owned::Clone { to: copied(r)?, rows: true },
            op::CLONE_BUT_ROWS => Owned::Clone { to: copied(r)?, rows: false },
            op::SHARE => {
                let (lblk, n) = (r.var32()?, r.var32()?);
                let to = copied(r)?;
                let (to_lblk, size) = (r.var32()?, r.var()?);
                if lblk.checked_add(n).is_none() || to_lblk.checked_add(n).is_none() {
                    return Err(corrupt("log record"));
                }
                Owned::Share { lblk, n, to, to_lblk, size }
            }
            op::CLONE_PARTS => {
                let to = copied(r)?;
                let n = r.count(2)?;
                let mut blocks = Vec::with_capacity(n);
                for _ in 0..n {
                    let (lo, hi) = (r.var32()?, r.var32()?);
                    if lo > hi {
                        return Err(corrupt("log record"));
                    }
                    blocks.push((lo, hi));
                }
                Owned::Parts { to, blocks }
            }
            op::SET_ATTRS => Owned::SetAttrs(pairs(r)?),
            op::RM_ATTR => Owned::RmAttr(copied(r)?),
            op::CLEAR_ATTRS => Owned::ClearAttrs,
            op::OMAP_SET => Owned::OmapSet(pairs(r)?),
            op::OMAP_RM => {
                let n = r.count(1)?;
                Owned::OmapRm((0..n).map(|_| copied(r)).collect::<Decoded<_>>()?)
            }
            op::OMAP_RM_RANGE => {
                let start = copied(r)?;
                let end = if r.u8()? != 0 { Some(copied(r)?) } else { None };
                Owned::OmapRmRange { start, end }
            }
            op::OMAP_CLEAR => Owned::OmapClear,
            op::OMAP_HEADER => Owned::OmapHeader(copied(r)?),
            op::MOVE => Owned::Move { to: Coll(r.var()?), to_key: copied(r)? },
            op::HINT => Owned::Hint(AllocHint {
                object_size: r.var()?,
                write_size: r.var()?,
                flags: r.var32()?,
            }),
            op::OMAP_MOVE => Owned::OmapMove {
                range: RowRange::decode(r)?,
                to: Coll(r.var()?),
                to_key: copied(r)?,
            },
            _ => return Err(corrupt("log record with an unknown operation")),
        })
    }

    fn read_put(inline: bool, r: &mut Take<'_>) -> Result<Owned, StoreError> {
        let (lblk, size) = (r.var32()?, r.var()?);
        let n = r.count(2)?;
        let mut segs: SmallVec<[Run; 4]> = SmallVec::with_capacity(n);
        let mut blocks = 0usize;
        for _ in 0..n {
            let run = (r.var()?, r.var32()?);
            blocks = blocks.checked_add(run.1 as usize).ok_or_else(|| corrupt("log record"))?;
            segs.push(run);
        }
        let each = if inline { 4 + BLOCK as usize } else { 4 };
        if blocks.checked_mul(each).is_none_or(|need| need > r.left())
            || lblk.checked_add(blocks as u32).is_none()
        {
            return Err(corrupt("log record"));
        }
        let crcs = (0..blocks).map(|_| r.u32()).collect::<Decoded<Vec<u32>>>()?;
        let inline = if inline {
            // One copy for all blocks, so that the log's memory is not kept.
            let all = Bytes::copy_from_slice(&r.slice(blocks * BLOCK as usize)?);
            Some(
                (0..blocks)
                    .map(|i| all.slice(i * BLOCK as usize..(i + 1) * BLOCK as usize))
                    .collect(),
            )
        } else {
            None
        };
        Ok(Owned::Put { lblk, segs, crcs, size, inline })
    }
}

/// The steps of all records of a batch.
pub(super) fn steps(payload: &Bytes) -> Result<Vec<Step>, StoreError> {
    let mut out = Vec::new();
    for record in records(payload)? {
        let mut r = Take::new(&record);
        let mut object: Option<(Coll, Key)> = None;
        while r.left() > 0 {
            let tag = r.u8()?;
            let plain = tag & !(SAME | FRESH);
            if plain == op::CREATE_COLL || plain == op::REMOVE_COLL {
                out.push(Step::Collection {
                    coll: Coll(r.var()?),
                    exists: plain == op::CREATE_COLL,
                });
                continue;
            }
            match plain {
                op::CREATE_WINDOW => {
                    let coll = Coll(r.var()?);
                    out.push(Step::CreateWindow { coll, window: Window::decode(&mut r)? });
                    continue;
                }
                op::SPLIT => {
                    let coll = Coll(r.var()?);
                    out.push(Step::Split { coll, at: copied(&mut r)?, new: Coll(r.var()?) });
                    continue;
                }
                op::MERGE => {
                    out.push(Step::Merge { from: Coll(r.var()?), into: Coll(r.var()?) });
                    continue;
                }
                _ => {}
            }
            if tag & SAME == 0 {
                object = Some((Coll(r.var()?), copied(&mut r)?));
            }
            let (coll, key) =
                object.clone().ok_or_else(|| corrupt("log record without an object"))?;
            out.push(Step::Resolved {
                coll,
                key,
                fresh: tag & FRESH != 0,
                change: Owned::read(plain, &mut r)?,
            });
        }
    }
    Ok(out)
}

impl State {
    /// Replays one step.
    pub(super) fn replay(&mut self, step: &Step) -> Result<(), StoreError> {
        match step {
            Step::Collection { coll, exists: true } => self.create_collection(*coll, None),
            Step::CreateWindow { coll, window } => {
                self.create_collection(*coll, Some(window.clone()))
            }
            Step::Split { coll, at, new } => return self.split_collection(*coll, at, *new),
            Step::Merge { from, into } => return self.merge_collections(*from, *into),
            Step::Collection { coll, exists: false } => self.remove_collection(*coll),
            Step::Resolved { coll, key, fresh, change } => {
                if let Owned::Put { segs, .. } = change {
                    segs.iter().try_for_each(|run| self.check_run(*run))?;
                }
                let slot =
                    if *fresh { self.fresh_slot(*coll, key) } else { self.slot(*coll, key)? };
                self.apply(*coll, slot, &change.change())?;
            }
        }
        Ok(())
    }

    /// The slot of an object that is not there.
    fn fresh_slot(&mut self, coll: Coll, key: &Key) -> u32 {
        let place = self.place(coll, key);
        match self.slots.find(place, key) {
            Some(slot) => slot,
            None => self.slots.insert(place, key.clone(), None),
        }
    }

    /// Brings in the objects that steps are about, reading what they need from the device at the
    /// same time. What could not be brought in is read when the step is replayed.
    pub(super) async fn prefetch(&mut self, dev: &Device, steps: &[Step]) {
        let mut wanted: Vec<(Coll, &Key)> = Vec::new();
        for step in steps {
            if let Step::Resolved { coll, key, fresh, change } = step {
                wanted.extend((!fresh).then_some((*coll, key)));
                wanted.extend(change.other(*coll));
            }
        }
        // Each round gets one level of the tree further; the bound is for caches too small for a
        // round.
        for _ in 0..8 {
            let mut missing: Vec<NodePtr> = Vec::new();
            wanted.retain(|(coll, key)| match self.lookup(*coll, key) {
                Ok(_) => false,
                Err(Miss(ptr)) => {
                    missing.push(ptr);
                    true
                }
            });
            missing.sort_unstable_by_key(NodePtr::key);
            missing.dedup_by_key(|p| p.key());
            if missing.is_empty() {
                return;
            }
            if nodes::read(dev, &missing, |ptr, bytes| self.loaded(ptr, bytes)).await.is_err() {
                return;
            }
        }
    }
}

fn pairs(r: &mut Take<'_>) -> Decoded<Vec<(Bytes, Bytes)>> {
    let n = r.count(2)?;
    (0..n).map(|_| Ok((copied(r)?, copied(r)?))).collect()
}

/// A string that does not keep the log's memory.
fn copied(r: &mut Take<'_>) -> Decoded<Bytes> {
    Ok(Bytes::copy_from_slice(&r.blob()?))
}
