//! Which byte of an object is where.

use crate::shards::{Shard, ShardSet};
use std::ops::Range;
use thiserror::Error;

/// A stripe unit is a multiple of this: the block of the store, which has a checksum of its own.
pub const UNIT_ALIGN_BYTES: u64 = 4096;

/// How objects of a pool are cut.
///
/// ```text
/// object   | 0 | 1 | 2 | 3 | 4 | 5 | 6 |     units of stripe_unit bytes, k = 2, m = 1
/// shard 0  | 0 | 2 | 4 | 6 |
/// shard 1  | 1 | 3 | 5 |                     nothing is padded
/// shard 2  | P | P | P | P |                 parity is as long as shard 0
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    k: u8,
    m: u8,
    unit: u64,
}

/// Why there is no such layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum LayoutError {
    /// The stripe unit is not whole blocks.
    #[error("stripe_unit={0}: expected a multiple of {align} bytes below 4 GiB", align = UNIT_ALIGN_BYTES)]
    Unit(u64),
    /// Too few or too many shards.
    #[error("k={0} m={1}: expected k and m of at least 1 and at most {max} together", max = ShardSet::SHARDS_MAX)]
    Shape(usize, usize),
}

impl Layout {
    /// `k` data shards, `m` of parity, `unit` bytes of a stripe on each.
    pub fn new(k: usize, m: usize, unit: u64) -> Result<Layout, LayoutError> {
        if k == 0 || m == 0 || k.saturating_add(m) > ShardSet::SHARDS_MAX {
            return Err(LayoutError::Shape(k, m));
        }
        if unit == 0 || !unit.is_multiple_of(UNIT_ALIGN_BYTES) || unit > u64::from(u32::MAX) {
            return Err(LayoutError::Unit(unit));
        }
        Ok(Layout { k: k as u8, m: m as u8, unit })
    }

    /// How many shards hold data.
    pub fn k(&self) -> usize {
        self.k.into()
    }

    /// How many shards hold parity.
    pub fn m(&self) -> usize {
        self.m.into()
    }

    /// Bytes of a stripe on one shard.
    pub fn unit(&self) -> u64 {
        self.unit
    }

    /// Bytes of an object in a stripe (Ceph: `pg_pool_t::stripe_width`).
    pub fn stripe_width(&self) -> u64 {
        self.unit * u64::from(self.k)
    }

    /// All shards.
    pub fn shards(&self) -> ShardSet {
        ShardSet::first(self.k() + self.m())
    }

    /// The shards with data.
    pub fn data(&self) -> ShardSet {
        ShardSet::first(self.k())
    }

    /// The shards with parity.
    pub fn parity(&self) -> ShardSet {
        self.shards().without(self.data())
    }

    /// The shards that hold object info, attributes and omap, one of which leads: the first with
    /// data, and all with parity. Each write changes all of them.
    pub fn primary_capable(&self) -> ShardSet {
        self.parity().or(ShardSet::one(0))
    }

    /// Bytes on a shard of an object of `size` bytes. A shard may be stored shorter: what is behind
    /// its end is zero.
    pub fn shard_size(&self, shard: Shard, size: u64) -> u64 {
        let data = if shard < self.k { u64::from(shard) } else { 0 };
        let (stripes, rest) = (size / self.stripe_width(), size % self.stripe_width());
        stripes * self.unit + rest.saturating_sub(data * self.unit).min(self.unit)
    }

    /// Where a byte of an object is: data shard, and offset on it.
    pub fn locate(&self, offset: u64) -> (Shard, u64) {
        let (stripe, rest) = (offset / self.stripe_width(), offset % self.stripe_width());
        ((rest / self.unit) as Shard, stripe * self.unit + rest % self.unit)
    }

    /// Which byte of an object is at an offset of a data shard.
    pub fn object_offset(&self, shard: Shard, offset: u64) -> u64 {
        offset / self.unit * self.stripe_width() + u64::from(shard) * self.unit + offset % self.unit
    }

    /// The bytes of a data shard that hold a range of an object: always one range.
    pub fn extent(&self, shard: Shard, range: &Range<u64>) -> Range<u64> {
        self.shard_size(shard, range.start)..self.shard_size(shard, range.end)
    }

    /// Calls `f` with each piece of a range of a data shard that is in one unit: where it begins on
    /// the shard and in the object, and its length.
    pub fn pieces(&self, shard: Shard, range: Range<u64>, mut f: impl FnMut(u64, u64, u64)) {
        let mut at = range.start;
        while at < range.end {
            let end = (at / self.unit + 1).saturating_mul(self.unit).min(range.end);
            f(at, self.object_offset(shard, at), end - at);
            at = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_of_shards() {
        let l = Layout::new(2, 1, 4096).unwrap();
        let sizes = |size| [0, 1, 2].map(|s| l.shard_size(s, size));
        assert_eq!(sizes(0), [0, 0, 0]);
        assert_eq!(sizes(100), [100, 0, 100]);
        assert_eq!(sizes(4097), [4096, 1, 4096]);
        assert_eq!(sizes(8192), [4096, 4096, 4096]);
        assert_eq!(sizes(8192 + 10), [4106, 4096, 4106]);
    }

    #[test]
    fn what_is_refused() {
        for unit in [0, 1, 4095, 6000, 1 << 32] {
            assert_eq!(Layout::new(2, 1, unit), Err(LayoutError::Unit(unit)));
        }
        for (k, m) in [(0, 1), (2, 0), (126, 2), (usize::MAX, 1)] {
            assert_eq!(Layout::new(k, m, 4096), Err(LayoutError::Shape(k, m)));
        }
    }

    proptest! {
        #[test]
        fn each_byte_has_one_place(
            k in 1usize..7, units in 1u64..4, start in 0u64..200_000, len in 0u64..60_000,
        ) {
            let l = Layout::new(k, 2, units * 4096).unwrap();
            let (shard, at) = l.locate(start);
            prop_assert_eq!(l.object_offset(shard, at), start);
            prop_assert_eq!(l.shard_size(shard, start), at);
            prop_assert_eq!(l.shard_size(shard, start + 1), at + 1);
            let range = start..start + len;
            let mut found = Vec::new();
            for s in l.data().iter() {
                let extent = l.extent(s, &range);
                l.pieces(s, extent.clone(), |on_shard, in_object, n| {
                    assert_eq!(l.locate(in_object), (s, on_shard));
                    assert_eq!(l.locate(in_object + n - 1), (s, on_shard + n - 1));
                    found.push(in_object..in_object + n);
                });
                prop_assert!(extent.end <= l.shard_size(k as u8, range.end));
            }
            found.sort_by_key(|r| r.start);
            let whole = found.into_iter().try_fold(start, |at, r| (r.start == at).then_some(r.end));
            prop_assert_eq!(whole, Some(range.end));
        }
    }
}
