//! Placement groups' names, and the arithmetic of splitting them.

use crate::dump::Dump;
use crate::object::ObjectId;
use crate::{OsdId, PoolId, SnapId};
use bytes::BytesMut;
use denc::{Decode, Encode, Features, Reader, Result};
use denc_derive::Denc;
use serde_json::{Value, json};
use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

/// A number modulo the number of groups, stable while that number grows (Ceph: `ceph_stable_mod`).
/// `mask` is the smallest 2^n - 1 that is not below `count - 1`.
pub fn stable_mod(x: u32, count: u32, mask: u32) -> u32 {
    let low = x & mask;
    if low < count { low } else { x & (mask >> 1) }
}

/// Bits needed to write `n` (Ceph: `cbits`).
pub fn bits_of(n: u32) -> u32 {
    u32::BITS - n.leading_zeros()
}

/// The mask that goes with `count` groups in [`stable_mod`].
pub fn mask_of(count: u32) -> u32 {
    let bits = bits_of(count.wrapping_sub(1));
    1u32.checked_shl(bits).map_or(u32::MAX, |n| n - 1)
}

/// A placement group (Ceph: `pg_t`, `osd/osd_types.h`): a version byte, pool, seed, and a field
/// that is -1 since "preferred" OSDs are gone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct PgId {
    /// The pool.
    pub pool: PoolId,
    /// Placement seed: which group of the pool. May be a full object hash before it is folded.
    pub seed: u32,
}

impl PgId {
    /// Group `seed` of `pool`.
    pub const fn new(pool: PoolId, seed: u32) -> Self {
        PgId { pool, seed }
    }

    /// The group that this one is split from, when there are only `pg_num` (Ceph: `get_ancestor`).
    pub fn ancestor(self, pg_num: u32) -> PgId {
        let bits = bits_of(pg_num);
        let mask = 1u32.checked_shl(bits).map_or(u32::MAX, |n| n - 1);
        PgId { seed: stable_mod(self.seed, pg_num, mask), ..self }
    }

    /// The group that takes this one in when it is merged; `None` for group 0.
    pub fn parent(self) -> Option<PgId> {
        let bits = bits_of(self.seed).checked_sub(1)?;
        Some(PgId { seed: self.seed & !(u32::MAX << bits), ..self })
    }

    /// The groups that come out of this one when the pool grows from `old` to `new` groups.
    pub fn split_children(self, old: u32, new: u32) -> Vec<PgId> {
        if self.seed >= old || new <= old {
            return Vec::new();
        }
        // A child has the parent's seed in its low bits, with at least one more bit set above.
        let step = 1u64 << (bits_of(old) - 1);
        let mut children = Vec::new();
        let mut seed = u64::from(self.seed) % step;
        while seed < u64::from(new) {
            let child = PgId { seed: seed as u32, ..self };
            if child.seed >= old && child.ancestor(old) == self {
                children.push(child);
            }
            seed += step;
        }
        children
    }

    /// When the pool shrinks from `old` to `new` groups: where this group goes, if it goes.
    pub fn merge_target(self, old: u32, new: u32) -> Option<PgId> {
        if self.seed >= old || self.seed < new || new == 0 {
            return None;
        }
        let mut target = self;
        while target.seed >= new {
            target = target.parent()?;
        }
        Some(target)
    }

    /// How many low bits of an object's hash decide that it is in this group of `pg_num`.
    pub fn split_bits(self, pg_num: u32) -> u32 {
        if pg_num <= 1 {
            return 0;
        }
        let bits = bits_of(pg_num);
        let half = 1u32 << (bits - 1);
        if self.seed % half < pg_num % half { bits } else { bits - 1 }
    }

    /// Before every object of the group (Ceph: `get_hobj_start`).
    pub fn first_object(self) -> ObjectId {
        ObjectId { pool: self.pool, hash: self.seed, ..ObjectId::MIN }
    }

    /// After every object of the group, of which the pool has `pg_num` (Ceph: `get_hobj_end`).
    pub fn end_object(self, pg_num: u32) -> ObjectId {
        let bits = self.split_bits(pg_num);
        let start = u64::from(self.seed.reverse_bits());
        let end = (start | (0xffff_ffff_u64 >> bits)) + 1;
        match u32::try_from(end) {
            Ok(end) => ObjectId {
                pool: self.pool,
                hash: end.reverse_bits(),
                snap: SnapId::NOSNAP,
                ..ObjectId::MIN
            },
            Err(_) => ObjectId::MAX,
        }
    }

    /// Whether an object with this hash belongs here, given [`PgId::split_bits`].
    pub fn contains_hash(self, split_bits: u32, hash: u32) -> bool {
        let mask = 1u32.checked_shl(split_bits).map_or(u32::MAX, |n| n - 1);
        hash & mask == self.seed & mask
    }
}

impl Encode for PgId {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        1u8.encode(out, f);
        self.pool.encode(out, f);
        self.seed.encode(out, f);
        (-1i32).encode(out, f);
    }
}
impl Decode for PgId {
    fn decode(r: &mut Reader) -> Result<Self> {
        r.skip("pg_t version", 1)?;
        let pg = PgId { pool: r.get()?, seed: r.get()? };
        r.skip("pg_t preferred", 4)?;
        Ok(pg)
    }
}
impl fmt::Display for PgId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:x}", self.pool.0 as u64, self.seed)
    }
}
impl Dump for PgId {
    fn dump(&self) -> Value {
        json!({"pool": self.pool.0 as u64, "seed": self.seed})
    }
}
impl serde::Serialize for PgId {
    fn serialize<S: serde::Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}
impl<'de> serde::Deserialize<'de> for PgId {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        let text = <String as serde::Deserialize>::deserialize(d)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// The text is not a placement group.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is not a placement group like 1.7f")]
pub struct ParsePgIdError(String);

impl FromStr for PgId {
    type Err = ParsePgIdError;

    fn from_str(s: &str) -> std::result::Result<Self, ParsePgIdError> {
        let bad = || ParsePgIdError(s.to_owned());
        let (pool, seed) = s.split_once('.').ok_or_else(bad)?;
        let digits = !seed.is_empty() && seed.bytes().all(|b| b.is_ascii_hexdigit());
        let pool: u64 = pool.parse().map_err(|_| bad())?;
        let seed = u32::from_str_radix(seed, 16).map_err(|_| bad())?;
        if !digits {
            return Err(bad());
        }
        Ok(PgId { pool: PoolId(pool as i64), seed })
    }
}

/// Which shard of an erasure-coded group (Ceph: `shard_id_t`, one signed byte).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Denc)]
pub struct ShardId(pub i8);

impl ShardId {
    /// The group is replicated.
    pub const NONE: ShardId = ShardId(-1);
}
impl Default for ShardId {
    fn default() -> Self {
        Self::NONE
    }
}

/// A placement group or a shard of it (Ceph: `spg_t`, version 1).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Denc)]
#[denc(version = 1, compat = 1)]
pub struct SpgId {
    /// The group.
    pub pgid: PgId,
    /// The shard.
    pub shard: ShardId,
}

impl From<PgId> for SpgId {
    fn from(pgid: PgId) -> Self {
        SpgId { pgid, shard: ShardId::NONE }
    }
}
impl fmt::Display for SpgId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pgid.fmt(f)?;
        match self.shard {
            ShardId::NONE => Ok(()),
            ShardId(shard) => write!(f, "s{}", shard as u8),
        }
    }
}
impl FromStr for SpgId {
    type Err = ParsePgIdError;

    fn from_str(s: &str) -> std::result::Result<Self, ParsePgIdError> {
        let Some((pgid, shard)) = s.split_once('s') else {
            return Ok(SpgId::from(s.parse::<PgId>()?));
        };
        let shard = shard.parse::<u8>().map_err(|_| ParsePgIdError(s.to_owned()))?;
        Ok(SpgId { pgid: pgid.parse()?, shard: ShardId(shard as i8) })
    }
}
impl Dump for SpgId {
    fn dump(&self) -> Value {
        crate::dump::shown(self)
    }
}

/// An OSD in its role for a group (Ceph: `pg_shard_t`, version 1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Denc)]
#[denc(version = 1, compat = 1)]
pub struct PgShard {
    /// The OSD; -1 if undefined.
    pub osd: OsdId,
    /// The shard it holds.
    pub shard: ShardId,
}

impl Default for PgShard {
    fn default() -> Self {
        PgShard { osd: OsdId(-1), shard: ShardId::NONE }
    }
}
impl From<OsdId> for PgShard {
    fn from(osd: OsdId) -> Self {
        PgShard { osd, shard: ShardId::NONE }
    }
}
impl PartialOrd for PgShard {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for PgShard {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.osd, self.shard).cmp(&(other.osd, other.shard))
    }
}
impl fmt::Display for PgShard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.osd {
            OsdId(-1) => return f.write_str("?"),
            OsdId::NONE => f.write_str("NONE")?,
            osd => osd.fmt(f)?,
        }
        match self.shard {
            ShardId::NONE => Ok(()),
            ShardId(shard) => write!(f, "({})", shard as u8),
        }
    }
}
impl Dump for PgShard {
    fn dump(&self) -> Value {
        match self.shard {
            ShardId::NONE => json!({"osd": self.osd.0 as u32}),
            ShardId(shard) => json!({"osd": self.osd.0 as u32, "shard": shard as u8}),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pg(seed: u32) -> PgId {
        PgId::new(PoolId(1), seed)
    }

    #[test]
    fn text_and_bytes() {
        let pg = PgId::new(PoolId(3), 0x1f);
        assert_eq!(pg.to_string(), "3.1f");
        assert_eq!("3.1f".parse::<PgId>().unwrap(), pg);
        let bytes = pg.to_bytes(Features::ALL);
        assert_eq!(bytes.as_ref(), [1, 3, 0, 0, 0, 0, 0, 0, 0, 0x1f, 0, 0, 0, 255, 255, 255, 255]);
        assert_eq!(PgId::from_bytes(&bytes).unwrap(), pg);
        let shard: SpgId = "3.1fs2".parse().unwrap();
        assert_eq!(
            (shard.pgid, shard.shard, shard.to_string().as_str()),
            (pg, ShardId(2), "3.1fs2")
        );
        for bad in ["", "3", "3.", ".1", "3.g", "3.+1", "-1.0"] {
            assert!(bad.parse::<PgId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn masks_cover_the_count() {
        for (count, mask) in [(1, 0), (2, 1), (3, 3), (8, 7), (9, 15), (12, 15)] {
            assert_eq!(mask_of(count), mask, "{count}");
        }
    }

    proptest! {
        /// Brute force over all groups says the same about splits, merges and object ranges.
        #[test]
        fn splitting_is_folding(old in 1u32..70, more in 0u32..70, hash in any::<u32>()) {
            let new = old + more;
            let fold = |hash, count| stable_mod(hash, count, mask_of(count));
            for seed in 0..old {
                let children: Vec<_> = (old..new).filter(|&s| fold(s, old) == seed).map(pg).collect();
                prop_assert_eq!(pg(seed).split_children(old, new), children.clone());
                for child in children {
                    prop_assert_eq!(child.merge_target(new, old), Some(pg(seed)));
                }
            }
            let home = pg(fold(hash, new));
            for seed in 0..new {
                let here = pg(seed);
                let inside = here == home;
                prop_assert_eq!(here.contains_hash(here.split_bits(new), hash), inside);
                let object = ObjectId { pool: PoolId(1), hash, name: "x".into(), ..ObjectId::MIN };
                prop_assert_eq!(here.first_object() <= object && object < here.end_object(new), inside);
            }
        }
    }
}
