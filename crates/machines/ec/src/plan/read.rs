//! Reads of an object, and shards that are computed anew.

use super::{Cost, Object, Pieces, PlanError, Rebuild, ShardExtents, Sources, bands};
use crate::code::Recipes;
use crate::layout::Layout;
use crate::shards::{Shard, ShardSet};
use std::ops::Range;

/// How to read a range of an object: only shards that hold it, unless one is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadPlan {
    layout: Layout,
    range: Range<u64>,
    reads: ShardExtents,
    rebuilds: Vec<Rebuild>,
    cost: Cost,
}

impl ReadPlan {
    /// Plans a read of `length` bytes at `offset` of an object of `size` bytes. What is behind the
    /// end is not read.
    pub fn new(
        layout: Layout,
        offset: u64,
        length: u64,
        size: u64,
        sources: Sources<'_>,
    ) -> Result<ReadPlan, PlanError> {
        let object = Object { layout, size, sources };
        let range = offset.min(size)..offset.saturating_add(length).min(size);
        if !range.is_empty() {
            object.check()?;
        }
        let ranges: Vec<(Shard, Range<u64>)> =
            layout.data().iter().map(|s| (s, layout.extent(s, &range))).collect();
        let gathered = object.gather(&bands(&ranges))?;
        let cost = object.read_cost(&gathered.reads);
        Ok(ReadPlan { layout, range, reads: gathered.reads, rebuilds: gathered.rebuilds, cost })
    }

    /// What to read from which shard.
    pub fn reads(&self) -> &ShardExtents {
        &self.reads
    }

    /// What has to be computed.
    pub fn rebuilds(&self) -> &[Rebuild] {
        &self.rebuilds
    }

    /// What the read costs.
    pub fn cost(&self) -> Cost {
        self.cost
    }

    /// The bytes asked for, of what was read.
    pub fn assemble(
        &self,
        recipes: &mut Recipes,
        mut pieces: Pieces,
    ) -> Result<Vec<u8>, PlanError> {
        pieces.rebuild(recipes, &self.rebuilds)?;
        let start = self.range.start;
        let mut out = vec![0; (self.range.end - start) as usize];
        for shard in self.layout.data().iter() {
            let extent = self.layout.extent(shard, &self.range);
            if extent.is_empty() {
                continue;
            }
            let bytes = pieces.get(shard, extent.clone())?;
            self.layout.pieces(shard, extent.clone(), |on_shard, in_object, n| {
                out[(in_object - start) as usize..][..n as usize]
                    .copy_from_slice(&bytes[(on_shard - extent.start) as usize..][..n as usize]);
            });
        }
        Ok(out)
    }
}

/// How to compute a range of shards anew, for recovery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RebuildPlan {
    range: Range<u64>,
    want: ShardSet,
    reads: ShardExtents,
    rebuilds: Vec<Rebuild>,
    cost: Cost,
}

impl RebuildPlan {
    /// Plans bytes `range` of the shards `want`, which are not available, of an object of `size`
    /// bytes.
    pub fn new(
        layout: Layout,
        want: ShardSet,
        range: Range<u64>,
        size: u64,
        sources: Sources<'_>,
    ) -> Result<RebuildPlan, PlanError> {
        let sources = Sources { available: sources.available.without(want), ..sources };
        let object = Object { layout, size, sources };
        object.check()?;
        let gathered = object.gather(&[(range.clone(), want)])?;
        let cost = object.read_cost(&gathered.reads);
        let (reads, rebuilds) = (gathered.reads, gathered.rebuilds);
        Ok(RebuildPlan { range, want, reads, rebuilds, cost })
    }

    /// What to read from which shard.
    pub fn reads(&self) -> &ShardExtents {
        &self.reads
    }

    /// What the reads cost.
    pub fn cost(&self) -> Cost {
        self.cost
    }

    /// The bytes of each wanted shard, as long as the range.
    pub fn compute(
        &self,
        recipes: &mut Recipes,
        mut pieces: Pieces,
    ) -> Result<Vec<(Shard, Vec<u8>)>, PlanError> {
        pieces.rebuild(recipes, &self.rebuilds)?;
        self.want.iter().map(|s| Ok((s, pieces.get(s, self.range.clone())?.into_owned()))).collect()
    }
}
