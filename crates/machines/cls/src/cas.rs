//! Chunks of deduplicated data and the references to them (Ceph: `cls/cas`).

use crate::context::Object;
use crate::method::{Class, RD, RD_WR, decode, encode, method};
use bytes::{BufMut, Bytes, BytesMut};
use denc::{Decode, DecodeError, Encode, Features, Reader};
use denc_derive::Denc;
use std::collections::BTreeMap;
use types::ObjectId;
use types::errno::Errno;

/// The class.
pub static CLASS: Class = Class {
    name: "cas",
    methods: &[
        method!("chunk_create_or_get_ref", RD_WR, create_or_get_ref),
        method!("chunk_get_ref", RD_WR, get_ref),
        method!("chunk_put_ref", RD_WR, put_ref),
        method!("references_chunk", RD, references_chunk),
    ],
};

const ATTR: &[u8] = b"chunk_refs";

/// A chunk that exists must have the same bytes (`FLAG_VERIFY`).
pub const FLAG_VERIFY: u64 = 1;

/// Input of `chunk_create_or_get_ref` (Ceph: `cls_cas_chunk_create_or_get_ref_op`,
/// `cls/cas/cls_cas_ops.h`, version 1).
#[derive(Clone, Debug, Default, Denc)]
#[denc(version = 1, compat = 1)]
pub struct CreateOrGetRefOp {
    /// The object that refers.
    pub source: ObjectId,
    /// [`FLAG_VERIFY`].
    pub flags: u64,
    /// The chunk.
    pub data: Bytes,
}

/// Input of `chunk_get_ref` and `chunk_put_ref` (Ceph: `cls_cas_chunk_get_ref_op`,
/// `cls_cas_chunk_put_ref_op`, version 1).
#[derive(Clone, Debug, Default, Denc)]
#[denc(version = 1, compat = 1)]
pub struct RefOp {
    /// The object that refers.
    pub source: ObjectId,
}

/// The references to a chunk (Ceph: `chunk_refs_t`, `cls/cas/cls_cas_internal.h`, version 1).
/// References are counted by object; the coarser forms are read and kept if another program wrote
/// them.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ChunkRefs {
    /// Ceph: `chunk_refs_by_object_t`, version 1.
    ByObject(BTreeMap<ObjectId, u64>),
    /// By pool and the low bits of the hash (Ceph: `chunk_refs_by_hash_t`, version 1).
    ByHash { total: u64, hash_bits: u32, by_hash: BTreeMap<(i64, u32), u64> },
    /// Ceph: `chunk_refs_by_pool_t`, version 1.
    ByPool { total: u64, by_pool: BTreeMap<i64, u64> },
    /// Ceph: `chunk_refs_count_t`, version 1.
    Count(u64),
}

impl Default for ChunkRefs {
    fn default() -> Self {
        ChunkRefs::ByObject(BTreeMap::new())
    }
}

/// Counts one up.
fn up<K: Ord>(counts: &mut BTreeMap<K, u64>, key: K) {
    let n = counts.entry(key).or_default();
    *n = n.saturating_add(1);
}

/// Counts one down; false if there was none.
fn down<K: Ord>(counts: &mut BTreeMap<K, u64>, key: &K) -> bool {
    match counts.get_mut(key) {
        Some(n) if *n > 1 => *n -= 1,
        Some(_) => drop(counts.remove(key)),
        None => return false,
    }
    true
}

/// The bits of a hash that count.
fn mask(hash_bits: u32) -> u32 {
    u32::MAX.checked_shr(32u32.saturating_sub(hash_bits)).unwrap_or(0)
}

impl ChunkRefs {
    fn get(&mut self, o: ObjectId) {
        match self {
            ChunkRefs::ByObject(refs) => up(refs, o),
            ChunkRefs::ByHash { total, hash_bits, by_hash } => {
                up(by_hash, (o.pool.0, o.hash & mask(*hash_bits)));
                *total = total.saturating_add(1);
            }
            ChunkRefs::ByPool { total, by_pool } => {
                up(by_pool, o.pool.0);
                *total = total.saturating_add(1);
            }
            ChunkRefs::Count(n) => *n = n.saturating_add(1),
        }
    }

    /// Drops a reference; false if there is none.
    fn put(&mut self, o: &ObjectId) -> bool {
        let found = match self {
            ChunkRefs::ByObject(refs) => return down(refs, o),
            ChunkRefs::ByHash { total, hash_bits, by_hash } => {
                let found = down(by_hash, &(o.pool.0, o.hash & mask(*hash_bits)));
                *total = total.saturating_sub(found.into());
                found
            }
            ChunkRefs::ByPool { total, by_pool } => {
                let found = down(by_pool, &o.pool.0);
                *total = total.saturating_sub(found.into());
                found
            }
            ChunkRefs::Count(n) => {
                let found = *n > 0;
                *n = n.saturating_sub(1);
                found
            }
        };
        if let ChunkRefs::ByHash { total: 0, .. }
        | ChunkRefs::ByPool { total: 0, .. }
        | ChunkRefs::Count(0) = self
        {
            // Back to full resolution.
            *self = ChunkRefs::default();
        }
        found
    }

    fn is_empty(&self) -> bool {
        match self {
            ChunkRefs::ByObject(refs) => refs.is_empty(),
            ChunkRefs::ByHash { by_hash, .. } => by_hash.is_empty(),
            ChunkRefs::ByPool { by_pool, .. } => by_pool.is_empty(),
            ChunkRefs::Count(n) => *n == 0,
        }
    }
}

/// Seven bits in a byte, the lowest first; the high bit says that another byte follows
/// (`denc_varint`).
fn put_varint(out: &mut BytesMut, mut v: u64) {
    while v > 0x7f {
        out.put_u8(v as u8 | 0x80);
        v >>= 7;
    }
    out.put_u8(v as u8);
}

fn get_varint(r: &mut Reader) -> denc::Result<u64> {
    let mut v = 0;
    for shift in (0..64).step_by(7) {
        let b: u8 = r.get()?;
        v |= u64::from(b & 0x7f) << shift;
        if b & 0x80 == 0 {
            return Ok(v);
        }
    }
    Err(DecodeError::Invalid { what: "varint", found: v })
}

/// Sign in the lowest bit, magnitude above it (`denc_signed_varint`).
fn put_signed(out: &mut BytesMut, v: i64) {
    put_varint(out, v.unsigned_abs() << 1 | u64::from(v < 0));
}

fn get_signed(r: &mut Reader) -> denc::Result<i64> {
    let v = get_varint(r)?;
    let magnitude = (v >> 1) as i64;
    Ok(if v & 1 == 1 { -magnitude } else { magnitude })
}

impl Encode for ChunkRefs {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        denc::envelope(out, 1, 1, |out| match self {
            ChunkRefs::ByObject(refs) => {
                out.put_u8(1);
                denc::envelope(out, 1, 1, |out| {
                    let total: u64 = refs.values().sum();
                    out.put_u32_le(
                        u32::try_from(total).expect("an attribute holds under 2^32 references"),
                    );
                    for (o, n) in refs {
                        (0..*n).for_each(|_| o.encode(out, f));
                    }
                });
            }
            ChunkRefs::ByHash { total, hash_bits, by_hash } => {
                out.put_u8(2);
                denc::envelope(out, 1, 1, |out| {
                    put_varint(out, *total);
                    put_varint(out, (*hash_bits).into());
                    put_varint(out, by_hash.len() as u64);
                    for ((pool, hash), n) in by_hash {
                        put_signed(out, *pool);
                        out.put_slice(&hash.to_le_bytes()[..hash_bytes(*hash_bits)]);
                        put_varint(out, *n);
                    }
                });
            }
            ChunkRefs::ByPool { total, by_pool } => {
                out.put_u8(4);
                denc::envelope(out, 1, 1, |out| {
                    put_varint(out, *total);
                    put_varint(out, by_pool.len() as u64);
                    for (pool, n) in by_pool {
                        put_signed(out, *pool);
                        put_varint(out, *n);
                    }
                });
            }
            ChunkRefs::Count(n) => {
                out.put_u8(5);
                denc::envelope(out, 1, 1, |out| n.encode(out, f));
            }
        });
    }
}

/// How many bytes of a hash are stored.
fn hash_bytes(bits: u32) -> usize {
    bits.div_ceil(8).min(4) as usize
}

impl Decode for ChunkRefs {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        let (_, mut r) = r.envelope("chunk_refs_t", 1)?;
        let kind: u8 = r.get()?;
        let (_, mut r) = r.envelope("chunk references", 1)?;
        match kind {
            1 => {
                let mut refs = BTreeMap::new();
                r.get::<Vec<ObjectId>>()?.into_iter().for_each(|o| up(&mut refs, o));
                Ok(ChunkRefs::ByObject(refs))
            }
            2 => {
                let total = get_varint(&mut r)?;
                let bits = get_varint(&mut r)?;
                let hash_bits = u32::try_from(bits).ok().filter(|b| *b <= 32);
                let hash_bits =
                    hash_bits.ok_or(DecodeError::Invalid { what: "hash bits", found: bits })?;
                let mut by_hash = BTreeMap::new();
                for _ in 0..get_varint(&mut r)? {
                    let pool = get_signed(&mut r)?;
                    let stored = r.bytes("hash", hash_bytes(hash_bits))?;
                    let mut hash = [0; 4];
                    hash[..stored.len()].copy_from_slice(&stored);
                    by_hash.insert((pool, u32::from_le_bytes(hash)), get_varint(&mut r)?);
                }
                Ok(ChunkRefs::ByHash { total, hash_bits, by_hash })
            }
            4 => {
                let total = get_varint(&mut r)?;
                let mut by_pool = BTreeMap::new();
                for _ in 0..get_varint(&mut r)? {
                    let pool = get_signed(&mut r)?;
                    by_pool.insert(pool, get_varint(&mut r)?);
                }
                Ok(ChunkRefs::ByPool { total, by_pool })
            }
            5 => Ok(ChunkRefs::Count(r.get()?)),
            _ => Err(DecodeError::Invalid { what: "kind of chunk references", found: kind.into() }),
        }
    }
}

/// ENOENT if there is no chunk.
async fn load(object: Object<'_>) -> Result<ChunkRefs, Errno> {
    match object.getxattr(ATTR).await {
        Ok(stored) => decode(stored, Errno::EIO),
        Err(Errno::ENODATA) => Ok(ChunkRefs::default()),
        Err(e) => Err(e),
    }
}

async fn store(object: Object<'_>, refs: &ChunkRefs) -> Result<(), Errno> {
    object.setxattr(ATTR, encode(refs)).await
}

async fn create_or_get_ref(object: Object<'_>, op: CreateOrGetRefOp) -> Result<(), Errno> {
    let mut refs = match load(object).await {
        Err(Errno::ENOENT) => {
            object.write_full(op.data).await?;
            ChunkRefs::default()
        }
        Err(e) => return Err(e),
        Ok(refs) => {
            if op.flags & FLAG_VERIFY != 0 && object.read(0, 0).await? != op.data {
                return Err(Errno::ENOMSG);
            }
            refs
        }
    };
    refs.get(op.source);
    store(object, &refs).await
}

async fn get_ref(object: Object<'_>, op: RefOp) -> Result<(), Errno> {
    let mut refs = load(object).await?;
    refs.get(op.source);
    store(object, &refs).await
}

async fn put_ref(object: Object<'_>, op: RefOp) -> Result<(), Errno> {
    let mut refs = load(object).await?;
    if !refs.put(&op.source) {
        return Err(Errno::ENOLINK);
    }
    if refs.is_empty() {
        return object.remove().await;
    }
    store(object, &refs).await
}

/// How many chunks of the object's manifest are the named one. There are no manifests, so there are
/// none.
async fn references_chunk(_: Object<'_>, _: Bytes) -> Result<(), Errno> {
    Err(Errno::ENOLINK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestObject;
    use types::{PoolId, SnapId};

    fn source(name: &'static str, pool: i64) -> ObjectId {
        ObjectId::new(PoolId(pool), "", name, "", SnapId::NOSNAP)
    }

    fn make(
        o: &mut TestObject,
        name: &'static str,
        data: &'static str,
        flags: u64,
    ) -> Result<(), Errno> {
        let op = CreateOrGetRefOp { source: source(name, 1), flags, data: data.into() };
        o.exec("cas", "chunk_create_or_get_ref", &op).map(drop)
    }

    fn reference(o: &mut TestObject, method: &str, name: &'static str) -> Result<(), Errno> {
        o.exec("cas", method, &RefOp { source: source(name, 1) }).map(drop)
    }

    #[test]
    fn the_last_reference_takes_the_chunk_along() {
        let mut o = TestObject::new();
        assert_eq!(reference(&mut o, "chunk_get_ref", "a"), Err(Errno::ENOENT));
        make(&mut o, "a", "data", 0).unwrap();
        make(&mut o, "b", "other", 0).unwrap();
        assert_eq!(o.stored.data, b"data");
        assert_eq!(make(&mut o, "c", "other", FLAG_VERIFY), Err(Errno::ENOMSG));
        make(&mut o, "b", "data", FLAG_VERIFY).unwrap();
        assert_eq!(reference(&mut o, "chunk_put_ref", "c"), Err(Errno::ENOLINK));
        for name in ["b", "a"] {
            reference(&mut o, "chunk_put_ref", name).unwrap();
            assert!(o.stored.exists);
        }
        reference(&mut o, "chunk_get_ref", "d").unwrap();
        for name in ["b", "d"] {
            reference(&mut o, "chunk_put_ref", name).unwrap();
        }
        assert!(!o.stored.exists);
        assert_eq!(reference(&mut o, "chunk_put_ref", "b"), Err(Errno::ENOENT));
        assert_eq!(o.exec("cas", "references_chunk", &Bytes::new()), Err(Errno::ENOLINK));
    }

    #[test]
    fn every_form_of_references_is_kept() {
        let a = source("a", -3);
        let hash = a.hash & mask(13);
        for refs in [
            ChunkRefs::ByObject(BTreeMap::from([(a.clone(), 2)])),
            ChunkRefs::ByHash {
                total: 2,
                hash_bits: 13,
                by_hash: BTreeMap::from([((-3, hash), 2)]),
            },
            ChunkRefs::ByPool { total: 2, by_pool: BTreeMap::from([(-3, 2)]) },
            ChunkRefs::Count(2),
        ] {
            let mut o = TestObject::new();
            o.stored.exists = true;
            o.stored.xattrs.insert(Bytes::from_static(ATTR), encode(&refs));
            assert_eq!(decode::<ChunkRefs>(encode(&refs), Errno::EIO).unwrap(), refs);
            for _ in 0..2 {
                assert!(o.stored.exists, "{refs:?}");
                o.exec("cas", "chunk_put_ref", &RefOp { source: a.clone() }).unwrap();
            }
            assert!(!o.stored.exists, "{refs:?}");
        }
    }

    #[test]
    fn numbers_of_any_size_survive() {
        for v in [0, 1, -1, 63, 64, -64, 1 << 40, i64::MAX >> 1, -(i64::MAX >> 1)] {
            let mut out = BytesMut::new();
            put_signed(&mut out, v);
            assert_eq!(get_signed(&mut Reader::new(out.freeze())).unwrap(), v);
        }
        assert!(get_varint(&mut Reader::new(Bytes::from_static(&[0xff; 20]))).is_err());
    }
}
