//! Names of shards, and sets of them.

use std::fmt;

/// Which shard of an object: `0..k` hold data, `k..k + m` parity (Ceph: `shard_id_t`).
pub type Shard = u8;

/// A set of shards. Ceph's shard is one signed byte, so that there are at most 127.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardSet(u128);

impl ShardSet {
    /// No shard.
    pub const EMPTY: ShardSet = ShardSet(0);
    /// How many shards an object can have.
    pub const SHARDS_MAX: usize = 127;

    /// Shards `0..n`; `n` is at most [`ShardSet::SHARDS_MAX`].
    pub fn first(n: usize) -> ShardSet {
        assert!(n <= Self::SHARDS_MAX, "a set of {n} shards");
        ShardSet((1 << n) - 1)
    }

    /// One shard.
    pub fn one(shard: Shard) -> ShardSet {
        let mut set = ShardSet::EMPTY;
        set.insert(shard);
        set
    }

    /// Whether the shard is in the set.
    pub fn contains(self, shard: Shard) -> bool {
        usize::from(shard) < Self::SHARDS_MAX && self.0 & (1 << shard) != 0
    }

    /// Puts a shard into the set.
    pub fn insert(&mut self, shard: Shard) {
        assert!(usize::from(shard) < Self::SHARDS_MAX, "shard {shard}");
        self.0 |= 1 << shard;
    }

    /// Takes a shard out of the set.
    pub fn remove(&mut self, shard: Shard) {
        if self.contains(shard) {
            self.0 &= !(1 << shard);
        }
    }

    /// How many shards are in the set.
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether the set is empty.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// What is in both.
    pub fn and(self, other: ShardSet) -> ShardSet {
        ShardSet(self.0 & other.0)
    }

    /// What is in either.
    pub fn or(self, other: ShardSet) -> ShardSet {
        ShardSet(self.0 | other.0)
    }

    /// What is in this set and not in the other.
    pub fn without(self, other: ShardSet) -> ShardSet {
        ShardSet(self.0 & !other.0)
    }

    /// Whether each shard of this set is in the other.
    pub fn is_within(self, other: ShardSet) -> bool {
        self.without(other).is_empty()
    }

    /// The shards in order.
    pub fn iter(self) -> impl Iterator<Item = Shard> + Clone {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let next = rest.trailing_zeros();
            (rest != 0).then(|| {
                rest &= rest - 1;
                next as Shard
            })
        })
    }

    /// As a bitmap: bit `i` for shard `i`.
    pub fn bits(self) -> u128 {
        self.0
    }

    /// From a bitmap; bit 127 names no shard and is dropped.
    pub fn from_bits(bits: u128) -> ShardSet {
        ShardSet(bits & (u128::MAX >> 1))
    }
}

impl FromIterator<Shard> for ShardSet {
    fn from_iter<I: IntoIterator<Item = Shard>>(shards: I) -> ShardSet {
        let mut set = ShardSet::EMPTY;
        shards.into_iter().for_each(|s| set.insert(s));
        set
    }
}

impl fmt::Debug for ShardSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}
