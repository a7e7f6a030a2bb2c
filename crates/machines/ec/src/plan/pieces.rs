//! Bytes of shards that are at hand.

use super::{PlanError, Rebuild};
use crate::code::Recipes;
use crate::extents::Extents;
use crate::layout::Layout;
use crate::shards::Shard;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

/// Bytes of an object's shards as they were when an operation on it was planned: what was read, and
/// what was in memory.
#[derive(Clone, Debug)]
pub struct Pieces {
    layout: Layout,
    size: u64,
    /// By shard and offset; each as long as the range that it stands for.
    bytes: BTreeMap<(Shard, u64), Vec<u8>>,
}

impl Pieces {
    /// Nothing yet of an object of `size` bytes.
    pub fn new(layout: Layout, size: u64) -> Pieces {
        Pieces { layout, size, bytes: BTreeMap::new() }
    }

    /// Puts a range of a shard there. A shard that is stored shorter gives fewer bytes; the rest is
    /// zero.
    pub fn insert(&mut self, shard: Shard, range: Range<u64>, bytes: impl Into<Vec<u8>>) {
        let mut bytes = bytes.into();
        bytes.resize((range.end - range.start) as usize, 0);
        self.bytes.insert((shard, range.start), bytes);
    }

    /// A range of a shard. What is behind the shard's end is zero.
    pub fn get(&self, shard: Shard, range: Range<u64>) -> Result<Cow<'_, [u8]>, PlanError> {
        let of_shard = || self.bytes.range((shard, 0)..=(shard, range.end)).rev();
        let pieces = || of_shard().map(|((_, at), b)| (*at..at + b.len() as u64, b));
        let whole = pieces().find(|(p, _)| p.start <= range.start && range.end <= p.end);
        if let Some((p, bytes)) = whole {
            let from = (range.start - p.start) as usize;
            return Ok(Cow::Borrowed(&bytes[from..][..(range.end - range.start) as usize]));
        }
        let end = self.layout.shard_size(shard, self.size);
        let mut lacking = Extents::from(range.start..range.end.min(end));
        let mut out = vec![0; (range.end - range.start) as usize];
        for (p, bytes) in pieces() {
            let part = p.start.max(range.start)..p.end.min(range.end);
            if !part.is_empty() {
                let n = (part.end - part.start) as usize;
                out[(part.start - range.start) as usize..][..n]
                    .copy_from_slice(&bytes[(part.start - p.start) as usize..][..n]);
                lacking.remove(part);
            }
        }
        match lacking.iter().next() {
            Some(range) => Err(PlanError::Lacking { shard, range }),
            None => Ok(Cow::Owned(out)),
        }
    }

    /// Computes what was lost and puts it there.
    pub(super) fn rebuild(
        &mut self,
        recipes: &mut Recipes,
        rebuilds: &[Rebuild],
    ) -> Result<(), PlanError> {
        let code = (recipes.code().k(), recipes.code().m());
        let plan = (self.layout.k(), self.layout.m());
        if code != plan {
            return Err(PlanError::OtherCode { plan, code });
        }
        for r in rebuilds {
            let recipe = recipes
                .get(r.sources, r.want)
                .map_err(|_| PlanError::TooFew { available: r.sources, k: self.layout.k() })?;
            let length = (r.range.end - r.range.start) as usize;
            let sources: Vec<Cow<'_, [u8]>> = recipe
                .sources()
                .iter()
                .map(|s| self.get(s, r.range.clone()))
                .collect::<Result<_, _>>()?;
            let mut out = vec![vec![0; length]; r.want.len()];
            recipe.apply(
                &sources.iter().map(|s| &s[..]).collect::<Vec<_>>(),
                &mut out.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>(),
            );
            for (shard, bytes) in r.want.iter().zip(out) {
                self.insert(shard, r.range.clone(), bytes);
            }
        }
        Ok(())
    }
}
