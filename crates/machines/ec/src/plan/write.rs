//! Changes of an object.

use super::{Cost, Gathered, Object, Pieces, PlanError, Rebuild, ShardExtents, Sources, bands};
use crate::code::Recipes;
use crate::layout::Layout;
use crate::shards::{Shard, ShardSet};
use std::borrow::Cow;
use std::ops::Range;

/// What is done to an object's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Bytes are written; the object grows if need be.
    Write {
        /// Where, in bytes.
        offset: u64,
        /// How many bytes.
        length: u64,
    },
    /// Bytes become zero; the object does not grow.
    Zero {
        /// Where, in bytes.
        offset: u64,
        /// How many bytes.
        length: u64,
    },
    /// The object ends there; what it gains is zero.
    Truncate {
        /// Its new size in bytes.
        size: u64,
    },
    /// The object consists of new bytes.
    Replace {
        /// Its new size in bytes.
        length: u64,
    },
}

/// How parity gets right in a band.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// It is computed of all data. Where each data shard changes, nothing is read for that.
    Encode,
    /// It is changed as data changed.
    Delta,
}

/// A range of shard offsets in which the same data shards change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Band {
    /// Which bytes, the same on all shards.
    pub range: Range<u64>,
    /// Data shards that change over the whole range.
    pub changed: ShardSet,
    /// How parity gets right.
    pub how: How,
}

/// What a shard is told to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShardOp {
    /// To end at `size` at the latest. A shorter shard stays as it is.
    Cut {
        /// Bytes that are left.
        size: u64,
    },
    /// To have these bytes.
    Write {
        /// Where.
        offset: u64,
        /// What.
        bytes: Vec<u8>,
    },
    /// To have zeroes; a shorter shard need not grow.
    Zero {
        /// Where.
        offset: u64,
        /// How many bytes.
        length: u64,
    },
    /// To XOR its bytes with these; bytes behind its end count as zeroes. This must be done once.
    Xor {
        /// Where.
        offset: u64,
        /// With what.
        bytes: Vec<u8>,
    },
}

/// What is done to one shard, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardWrite {
    /// Which shard.
    pub shard: Shard,
    /// May be empty: a shard that leads has the object info, which changes.
    pub ops: Vec<ShardOp>,
}

/// How to change an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WritePlan {
    layout: Layout,
    change: Change,
    size_after: u64,
    /// What changes on each data shard, by shard.
    changed: Vec<(Shard, Range<u64>)>,
    /// Where shards end at the latest, where that changes what is stored.
    cuts: Vec<(Shard, u64)>,
    bands: Vec<Band>,
    reads: ShardExtents,
    rebuilds: Vec<Rebuild>,
    available: ShardSet,
    written: ShardSet,
    cost: Cost,
}

impl WritePlan {
    /// Plans a change of an object of `size` bytes: what costs least.
    pub fn new(
        layout: Layout,
        change: Change,
        size: u64,
        sources: Sources<'_>,
    ) -> Result<WritePlan, PlanError> {
        let draft = Draft::new(layout, change, size, sources)?;
        let mut best: Option<WritePlan> = None;
        for choice in 0..1 << draft.open.len() {
            let plan = draft.plan(choice)?;
            if best.as_ref().is_none_or(|b| plan.cost.total() < b.cost.total()) {
                best = Some(plan);
            }
        }
        Ok(best.expect("there is at least one choice"))
    }

    /// What to read from which shard before anything is written.
    pub fn reads(&self) -> &ShardExtents {
        &self.reads
    }

    /// Where what changes, and how parity follows.
    pub fn bands(&self) -> &[Band] {
        &self.bands
    }

    /// The object's size afterwards.
    pub fn size_after(&self) -> u64 {
        self.size_after
    }

    /// The shards that the change is about, whether they are there or not: those whose bytes
    /// change, and those that have the object info. A log entry names them.
    pub fn written(&self) -> ShardSet {
        self.written
    }

    /// The shards that were there when this was planned.
    pub fn available(&self) -> ShardSet {
        self.available
    }

    /// What the change costs.
    pub fn cost(&self) -> Cost {
        self.cost
    }

    /// What each shard that is there is told, of what was read and of the new bytes (empty unless
    /// the change is [`Change::Write`] or [`Change::Replace`]).
    pub fn shard_writes(
        &self,
        recipes: &mut Recipes,
        mut pieces: Pieces,
        new: &[u8],
    ) -> Result<Vec<ShardWrite>, PlanError> {
        let fresh = self.fresh(new)?;
        if matches!(self.change, Change::Replace { .. }) {
            // Old bytes are at hand perhaps, and count for nothing.
            pieces = Pieces::new(self.layout, 0);
        }
        pieces.rebuild(recipes, &self.rebuilds)?;
        let mut out = Writes::to(self.written.and(self.available));
        for &(shard, size) in &self.cuts {
            out.push(shard, ShardOp::Cut { size });
        }
        if !self.layout.parity().and(self.available).is_empty() {
            for band in &self.bands {
                match band.how {
                    How::Encode => self.encode(band, recipes, &pieces, &fresh, &mut out)?,
                    How::Delta => self.apply_delta(band, recipes, &pieces, &fresh, &mut out)?,
                }
            }
        }
        for (shard, offset, bytes) in fresh.0 {
            match self.change {
                Change::Zero { .. } => {
                    out.push(shard, ShardOp::Zero { offset, length: bytes.len() as u64 });
                }
                // It was cut off.
                Change::Truncate { .. } => (),
                Change::Write { .. } | Change::Replace { .. } => {
                    out.push(shard, ShardOp::Write { offset, bytes });
                }
            }
        }
        Ok(out.0)
    }

    /// Cuts the new bytes of the object into those of each data shard that changes.
    fn fresh(&self, new: &[u8]) -> Result<Fresh, PlanError> {
        let (start, expected, zero) = match self.change {
            Change::Write { offset, length } => (offset, length, false),
            Change::Replace { length } => (0, length, false),
            Change::Zero { .. } | Change::Truncate { .. } => (0, 0, true),
        };
        let found = new.len() as u64;
        if found != expected {
            return Err(PlanError::Length { expected, found });
        }
        let of_shard = |(shard, range): &(Shard, Range<u64>)| {
            let mut bytes = vec![0; (range.end - range.start) as usize];
            if !zero {
                self.layout.pieces(*shard, range.clone(), |on_shard, in_object, n| {
                    bytes[(on_shard - range.start) as usize..][..n as usize]
                        .copy_from_slice(&new[(in_object - start) as usize..][..n as usize]);
                });
            }
            (*shard, range.start, bytes)
        };
        Ok(Fresh(self.changed.iter().map(of_shard).collect()))
    }

    /// Parity of a band from all of its data.
    fn encode(
        &self,
        band: &Band,
        recipes: &mut Recipes,
        pieces: &Pieces,
        fresh: &Fresh,
        out: &mut Writes,
    ) -> Result<(), PlanError> {
        let range = &band.range;
        let parity = self.layout.parity();
        let data: Vec<Cow<'_, [u8]>> = self
            .layout
            .data()
            .iter()
            .map(|s| match band.changed.contains(s) {
                true => Ok(Cow::Borrowed(fresh.get(s, range))),
                false => pieces.get(s, range.clone()),
            })
            .collect::<Result<_, _>>()?;
        let mut encoded = vec![vec![0; (range.end - range.start) as usize]; parity.len()];
        recipes.code().encode(
            &data.iter().map(|d| &d[..]).collect::<Vec<_>>(),
            &mut encoded.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>(),
        );
        for (shard, bytes) in parity.iter().zip(encoded) {
            out.push(shard, ShardOp::Write { offset: range.start, bytes });
        }
        Ok(())
    }

    /// Parity of a band from what changes of its data.
    fn apply_delta(
        &self,
        band: &Band,
        recipes: &mut Recipes,
        pieces: &Pieces,
        fresh: &Fresh,
        out: &mut Writes,
    ) -> Result<(), PlanError> {
        let range = &band.range;
        let old: Vec<(Shard, Cow<'_, [u8]>)> = band
            .changed
            .iter()
            .map(|s| Ok((s, pieces.get(s, range.clone())?)))
            .collect::<Result<_, _>>()?;
        let changes: Vec<(Shard, &[u8], &[u8])> =
            old.iter().map(|(s, old)| (*s, &old[..], fresh.get(*s, range))).collect();
        for shard in self.layout.parity().and(self.available).iter() {
            let mut bytes = vec![0; (range.end - range.start) as usize];
            recipes.code().apply_changes(shard, &changes, &mut bytes);
            out.push(shard, ShardOp::Xor { offset: range.start, bytes });
        }
        Ok(())
    }
}

/// New bytes of each data shard that changes, in one piece, and where they begin.
struct Fresh(Vec<(Shard, u64, Vec<u8>)>);

impl Fresh {
    /// The new bytes of a shard in a band in which it changes.
    fn get(&self, shard: Shard, range: &Range<u64>) -> &[u8] {
        let (_, at, bytes) =
            self.0.iter().find(|(s, ..)| *s == shard).expect("a band's shards change");
        &bytes[(range.start - at) as usize..][..(range.end - range.start) as usize]
    }
}

/// What the shards that are there and that the change is about are told.
struct Writes(Vec<ShardWrite>);

impl Writes {
    fn to(shards: ShardSet) -> Writes {
        Writes(shards.iter().map(|shard| ShardWrite { shard, ops: Vec::new() }).collect())
    }

    /// Tells a shard something; one that is not there is told nothing.
    fn push(&mut self, shard: Shard, op: ShardOp) {
        if let Some(w) = self.0.iter_mut().find(|w| w.shard == shard) {
            w.ops.push(op);
        }
    }
}

/// A change whose bands are known, and of which it is open how parity follows in some of them.
struct Draft<'a> {
    object: Object<'a>,
    change: Change,
    size_after: u64,
    changed: Vec<(Shard, Range<u64>)>,
    cuts: Vec<(Shard, u64)>,
    bands: Vec<(Range<u64>, ShardSet)>,
    /// Indices of bands that need old bytes either way. The start and the end of a change are in
    /// one stripe each, so there are at most four.
    open: Vec<usize>,
    parity: ShardSet,
}

impl<'a> Draft<'a> {
    fn new(
        layout: Layout,
        change: Change,
        size: u64,
        sources: Sources<'a>,
    ) -> Result<Draft<'a>, PlanError> {
        let mut object = Object { layout, size, sources };
        object.check()?;
        let end = |offset: u64, length: u64| {
            offset.checked_add(length).ok_or(PlanError::TooLarge { offset, length })
        };
        let extents = |range: Range<u64>| -> Vec<(Shard, Range<u64>)> {
            layout.data().iter().map(|s| (s, layout.extent(s, &range))).collect()
        };
        let sizes =
            |size: u64| layout.shards().iter().map(move |s| (s, layout.shard_size(s, size)));
        let (mut changed, size_after, cuts) = match change {
            Change::Write { length: 0, .. } => (Vec::new(), size, Vec::new()),
            Change::Write { offset, length } => {
                let end = end(offset, length)?;
                (extents(offset..end), size.max(end), Vec::new())
            }
            Change::Zero { offset, length } => {
                let end = end(offset, length)?.min(size);
                (extents(offset.min(end)..end), size, Vec::new())
            }
            Change::Truncate { size: new } if new >= size => (Vec::new(), new, Vec::new()),
            Change::Truncate { size: new } => {
                // Parity is computed anew of what is left, where data shards have lost bytes that
                // are in front of its new end.
                let parity_end = layout.shard_size(layout.k() as Shard, new);
                let lost =
                    |s| layout.shard_size(s, new)..layout.shard_size(s, size).min(parity_end);
                let cuts = sizes(new).filter(|(s, end)| *end < layout.shard_size(*s, size));
                (layout.data().iter().map(|s| (s, lost(s))).collect(), new, cuts.collect())
            }
            Change::Replace { length } => {
                // Nothing of the old object counts: it is as if it were new.
                object.size = 0;
                let cuts = sizes(size).filter(|(_, end)| *end > 0).map(|(s, _)| (s, 0));
                (extents(0..length), length, cuts.collect())
            }
        };
        changed.retain(|(_, range)| !range.is_empty());
        let bands = bands(&changed);
        let parity = layout.parity().and(sources.available);
        let needs_old = |(range, shards): &(Range<u64>, ShardSet)| {
            let others = layout.data().without(*shards);
            others.iter().any(|s| !object.unknown(s, range).is_empty())
        };
        let open = match parity.is_empty() {
            true => Vec::new(),
            false => (0..bands.len()).filter(|&i| needs_old(&bands[i])).collect(),
        };
        Ok(Draft { object, change, size_after, changed, cuts, bands, open, parity })
    }

    /// The plan in which open band `i` is [`How::Delta`] if bit `i` of `choice` is set.
    fn plan(&self, choice: u32) -> Result<WritePlan, PlanError> {
        let layout = self.object.layout;
        let mut bands = Vec::with_capacity(self.bands.len());
        let mut needs = Vec::with_capacity(self.open.len());
        for (i, (range, changed)) in self.bands.iter().enumerate() {
            let open = self.open.iter().position(|&o| o == i);
            let delta = open.is_some_and(|bit| choice >> bit & 1 != 0);
            if open.is_some() {
                let need = if delta { *changed } else { layout.data().without(*changed) };
                needs.push((range.clone(), need));
            }
            let how = if delta { How::Delta } else { How::Encode };
            bands.push(Band { range: range.clone(), changed: *changed, how });
        }
        let Gathered { reads, rebuilds } = self.object.gather(&needs)?;
        let bytes_change = self.changed.iter().map(|(s, _)| *s);
        let cut = self.cuts.iter().map(|(s, _)| *s);
        let written = bytes_change.chain(cut).collect::<ShardSet>().or(layout.primary_capable());
        let mut plan = WritePlan {
            layout,
            change: self.change,
            size_after: self.size_after,
            changed: self.changed.clone(),
            cuts: self.cuts.clone(),
            bands,
            reads,
            rebuilds,
            available: self.object.sources.available,
            written,
            cost: Cost::default(),
        };
        plan.cost = self.cost(&plan);
        Ok(plan)
    }

    fn cost(&self, plan: &WritePlan) -> Cost {
        let object = &self.object;
        let mut cost = object.read_cost(&plan.reads);
        let remote = |shard| u64::from(object.sources.local != Some(shard));
        let length = |r: &Range<u64>| r.end - r.start;
        let sends_bytes = matches!(self.change, Change::Write { .. } | Change::Replace { .. });
        for shard in plan.written.and(plan.available).iter() {
            cost.device_writes += 1;
            cost.messages += remote(shard);
            for (_, range) in plan.changed.iter().filter(|(s, _)| *s == shard && sends_bytes) {
                cost.add_bytes(length(range), 1 + remote(shard));
            }
        }
        let parity_end = object.layout.shard_size(object.layout.k() as Shard, object.size);
        for shard in self.parity.iter() {
            let mut reads = false;
            for band in &plan.bands {
                cost.add_bytes(length(&band.range), 1 + remote(shard));
                let old = band.range.start..band.range.end.min(parity_end);
                if band.how == How::Delta && !old.is_empty() {
                    reads = true;
                    cost.add_bytes(length(&old), 1);
                }
            }
            cost.device_reads += u64::from(reads);
        }
        cost
    }
}

#[cfg(test)]
#[path = "write_test.rs"]
mod tests;
