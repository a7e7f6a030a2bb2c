//! Names of shards, and sets of them.

use denc::{BufMut, BytesMut, Decode, DecodeError, Encode, Features, Reader};
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

/// How many bytes follow, and the bitmap without zeroes at its end: an empty set is one byte.
impl Encode for ShardSet {
    fn encode(&self, out: &mut BytesMut, _: Features) {
        let n = (u128::BITS - self.0.leading_zeros()).div_ceil(8) as usize;
        out.put_u8(n as u8);
        out.put_slice(&self.0.to_le_bytes()[..n]);
    }
}

impl Decode for ShardSet {
    fn decode(r: &mut Reader) -> denc::Result<ShardSet> {
        let n = usize::from(r.get::<u8>()?);
        let mut bits = [0; 16];
        let bytes = r.bytes("a set of shards", n)?;
        let Some(place) = bits.get_mut(..n) else {
            return Err(DecodeError::Invalid { what: "bytes of a set of shards", found: n as u64 });
        };
        place.copy_from_slice(&bytes);
        Ok(ShardSet::from_bits(u128::from_le_bytes(bits)))
    }
}

impl fmt::Debug for ShardSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use denc::Bytes;

    #[test]
    fn sets_have_no_more_bytes_than_they_need() {
        for (shards, bytes) in [
            (&[][..], &[0][..]),
            (&[0], &[1, 1]),
            (&[0, 4, 5], &[1, 0x31]),
            (&[9], &[2, 0, 2]),
            (&[126], &[16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x40]),
        ] {
            let set: ShardSet = shards.iter().copied().collect();
            let mut out = BytesMut::new();
            set.encode(&mut out, Features::ALL);
            assert_eq!(out, bytes);
            assert_eq!(ShardSet::from_bytes(&out.freeze()), Ok(set));
        }
    }

    #[test]
    fn bytes_that_are_no_set_are_refused() {
        for bytes in [&[][..], &[1], &[17; 18], &[255], &[0, 0]] {
            assert!(ShardSet::from_bytes(&Bytes::copy_from_slice(bytes)).is_err(), "{bytes:?}");
        }
    }
}
