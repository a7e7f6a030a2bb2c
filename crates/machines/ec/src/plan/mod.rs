//! What an operation on an object reads from shards, and tells them to change.
//!
//! A plan is made without any bytes ([`WritePlan::new`], [`ReadPlan::new`], [`RebuildPlan::new`]).
//! The primary reads what the plan says, puts it into [`Pieces`] together with what it has in
//! memory, and the plan makes of it what shards are told, or what the client gets.

mod pieces;
mod read;
mod write;

pub use pieces::Pieces;
pub use read::{ReadPlan, RebuildPlan};
pub use write::{Band, Change, How, ShardOp, ShardWrite, WritePlan};

use crate::extents::Extents;
use crate::layout::Layout;
use crate::shards::{Shard, ShardSet};
use std::collections::BTreeMap;
use std::ops::Range;
use thiserror::Error;

/// Which bytes of which shards.
pub type ShardExtents = BTreeMap<Shard, Extents>;

/// What is known of an object's shards when an operation on it is planned.
#[derive(Clone, Copy, Debug)]
pub struct Sources<'a> {
    /// Shards that are there, in the version that the object has.
    pub available: ShardSet,
    /// The one on this OSD: no message goes to it.
    pub local: Option<Shard>,
    /// Those of `available` that are better left alone: their OSDs are late or loaded.
    pub slow: ShardSet,
    /// Bytes of shards that are in memory here, whether or not the shards are there.
    pub cached: &'a ShardExtents,
}

/// Why there is no plan, or it cannot be carried out.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PlanError {
    /// Fewer than `k` shards are there.
    #[error("shards {available:?} are there, and any {k} are needed")]
    TooFew {
        /// What is there.
        available: ShardSet,
        /// How many are needed.
        k: usize,
    },
    /// The end of the range is no number of 64 bits.
    #[error("{length} bytes at {offset}: expected an end below 2^64")]
    TooLarge {
        /// Where the range begins.
        offset: u64,
        /// Its length in bytes.
        length: u64,
    },
    /// The plan asked for bytes that are not in [`Pieces`].
    #[error("bytes {range:?} of shard {shard} were asked for and are not there")]
    Lacking {
        /// Of which shard.
        shard: Shard,
        /// Which bytes.
        range: Range<u64>,
    },
    /// The new bytes are not as many as the change says.
    #[error("{found} bytes to write, and the plan is for {expected}")]
    Length {
        /// What the plan is for.
        expected: u64,
        /// What came.
        found: u64,
    },
    /// The code has another number of shards than the layout.
    #[error("a plan for k={} m={} and a code of k={} m={}", .plan.0, .plan.1, .code.0, .code.1)]
    OtherCode {
        /// `k` and `m` of the plan.
        plan: (usize, usize),
        /// `k` and `m` of the code.
        code: (usize, usize),
    },
}

/// Shards that are computed from others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rebuild {
    /// Which bytes, the same on all shards.
    pub range: Range<u64>,
    /// What is computed.
    pub want: ShardSet,
    /// From `k` shards: bytes that are read, in memory, or known to be zero.
    pub sources: ShardSet,
}

/// What a plan costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Shards that read their device.
    pub device_reads: u64,
    /// Shards that write their device.
    pub device_writes: u64,
    /// Shards of other OSDs that are asked or told.
    pub messages: u64,
    /// Bytes read from devices, written to them, and sent.
    pub bytes: u64,
}

/// Bytes that cost as much as one operation of a device, or one message.
const OPERATION_BYTES: u64 = 64 << 10;

impl Cost {
    /// In bytes.
    pub fn total(&self) -> u64 {
        (self.device_reads + self.device_writes + self.messages)
            .saturating_mul(OPERATION_BYTES)
            .saturating_add(self.bytes)
    }

    /// Sizes come from clients, so that the sum may be no number of 64 bits.
    fn add_bytes(&mut self, bytes: u64, times: u64) {
        self.bytes = self.bytes.saturating_add(bytes.saturating_mul(times));
    }
}

/// What an object is in a moment, as far as a plan cares.
#[derive(Clone, Copy)]
struct Object<'a> {
    layout: Layout,
    size: u64,
    sources: Sources<'a>,
}

impl Object<'_> {
    fn check(&self) -> Result<(), PlanError> {
        let (available, k) = (self.sources.available, self.layout.k());
        if available.and(self.layout.shards()).len() < k {
            return Err(PlanError::TooFew { available, k });
        }
        Ok(())
    }

    /// Bytes of a range of a shard that are neither in memory nor behind the end.
    fn unknown(&self, shard: Shard, range: &Range<u64>) -> Extents {
        let end = range.end.min(self.layout.shard_size(shard, self.size));
        let stored = range.start..end.max(range.start);
        match self.sources.cached.get(&shard) {
            Some(cached) => cached.missing(stored),
            None => Extents::from(stored),
        }
    }

    /// How to come by all bytes of `needs`: what to read, and what to rebuild from it.
    fn gather(&self, needs: &[(Range<u64>, ShardSet)]) -> Result<Gathered, PlanError> {
        let mut g = Gathered::default();
        for (range, need) in needs {
            for shard in need.and(self.sources.available).iter() {
                g.read(shard, &self.unknown(shard, range));
            }
        }
        for (range, need) in needs {
            let mut lost = ShardSet::EMPTY;
            let mut lacking = Extents::new();
            for shard in need.without(self.sources.available).iter() {
                for part in self.unknown(shard, range).iter() {
                    lacking.insert(part);
                    lost.insert(shard);
                }
            }
            let (Some(first), Some(last)) = (lacking.iter().next(), lacking.iter().last()) else {
                continue;
            };
            let range = first.start..last.end;
            let sources = self.rebuild_from(&range, &g)?;
            for shard in sources.iter() {
                g.read(shard, &self.unknown(shard, &range));
            }
            g.rebuilds.push(Rebuild { range, want: lost, sources });
        }
        Ok(g)
    }

    /// The `k` shards that are cheapest to rebuild from.
    fn rebuild_from(&self, range: &Range<u64>, g: &Gathered) -> Result<ShardSet, PlanError> {
        let s = &self.sources;
        let mut ranked: Vec<(u8, Shard)> = Vec::new();
        for shard in self.layout.shards().iter() {
            let unknown = self.unknown(shard, range);
            let read = |r| g.reads.get(&shard).is_some_and(|e| e.missing(r).is_empty());
            let rank = if unknown.is_empty() {
                0
            } else if !s.available.contains(shard) {
                continue;
            } else if unknown.iter().all(read) {
                1
            } else if s.local == Some(shard) {
                2
            } else if !s.slow.contains(shard) {
                3
            } else {
                4
            };
            ranked.push((rank, shard));
        }
        let k = self.layout.k();
        if ranked.len() < k {
            return Err(PlanError::TooFew { available: s.available, k });
        }
        ranked.sort_unstable();
        Ok(ranked[..k].iter().map(|(_, shard)| *shard).collect())
    }

    fn read_cost(&self, reads: &ShardExtents) -> Cost {
        let mut cost = Cost::default();
        for (&shard, extents) in reads {
            let remote = u64::from(self.sources.local != Some(shard));
            cost.device_reads += 1;
            cost.messages += remote;
            cost.add_bytes(extents.bytes(), 1 + remote);
        }
        cost
    }
}

#[derive(Clone, Debug, Default)]
struct Gathered {
    reads: ShardExtents,
    rebuilds: Vec<Rebuild>,
}

impl Gathered {
    fn read(&mut self, shard: Shard, extents: &Extents) {
        for range in extents.iter() {
            self.reads.entry(shard).or_default().insert(range);
        }
    }
}

/// Cuts shard offsets where the set of shards changes: each shard has one range (or none).
fn bands(ranges: &[(Shard, Range<u64>)]) -> Vec<(Range<u64>, ShardSet)> {
    let ranges = || ranges.iter().filter(|(_, r)| !r.is_empty());
    let mut cuts: Vec<u64> = ranges().flat_map(|(_, r)| [r.start, r.end]).collect();
    cuts.sort_unstable();
    cuts.dedup();
    cuts.windows(2)
        .map(|w| {
            let inside = |r: &Range<u64>| r.start <= w[0] && w[1] <= r.end;
            (w[0]..w[1], ranges().filter(|(_, r)| inside(r)).map(|(s, _)| *s).collect())
        })
        .filter(|(_, shards): &(_, ShardSet)| !shards.is_empty())
        .collect()
}
