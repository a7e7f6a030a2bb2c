//! Where the objects and rows of a PG's copy are in the store, and what makes, cuts and joins its
//! collection.

use bytes::{BufMut, Bytes, BytesMut};
use pg::{Join, ObjectChunk, SplitOff, snap_mapper};
use store::{Coll, Key, RowRange, Transaction, Window, WriteHint};
use types::{ObjectId, PgId, PoolId, ShardId, SnapId, SpgId};

/// Bits of a collection's number that tell the pool.
const POOL_BITS: u32 = 24;
const _: () = assert!(PoolId::LAST.0 == (1 << POOL_BITS) - 1);

/// Whether collections can be numbered for a pool. No pool has any that says no: monitors give no
/// such number.
pub fn has_collections(pool: PoolId) -> bool {
    (1..=PoolId::LAST.0).contains(&pool.0)
}

/// The collection of a copy: 24 bits of pool, 8 bits of position plus one, 32 bits of seed. Only
/// for pools that have collections.
pub fn coll_of(id: SpgId) -> Coll {
    debug_assert!(has_collections(id.pgid.pool), "{id}");
    // NONE is -1, so it becomes 0.
    let position = id.shard.0.wrapping_add(1) as u8;
    let pool = (id.pgid.pool.0 as u64) << (64 - POOL_BITS);
    Coll(pool | u64::from(position) << 32 | u64::from(id.pgid.seed))
}

/// The copy of a collection, `None` for the OSD's own collection.
pub fn id_of(coll: Coll) -> Option<SpgId> {
    let pool = PoolId((coll.0 >> (64 - POOL_BITS)) as i64);
    let shard = ShardId(((coll.0 >> 32) as u8 as i8).wrapping_sub(1));
    let known = has_collections(pool) && shard.0 >= ShardId::NONE.0;
    known.then_some(SpgId { pgid: PgId { pool, seed: coll.0 as u32 }, shard })
}

/// Key of a PG's own object: before every object of a pool.
pub const META_KEY: &[u8] = b"\0pg";

/// Whether a key is none of an object: the PG's own object, and what is set aside of objects.
pub(crate) fn is_own_key(key: &[u8]) -> bool {
    key == META_KEY || key.starts_with(objops::coded::ASIDE)
}

/// Seed of the space of a pool: no PG can have it.
const SPACE: u32 = u32::MAX;

/// Where the keys of a pool's objects with this reversed hash begin.
fn bound(pgid: PgId, reversed: u32) -> Key {
    let mut key = BytesMut::with_capacity(13);
    floor(pgid, &mut key);
    key.put_u32(reversed);
    key.freeze()
}

fn floor(pgid: PgId, out: &mut BytesMut) {
    // As [`types::ObjectId::to_key`] begins.
    out.put_u8(0);
    out.put_u64(pgid.pool.0 as u64 ^ 1 << 63);
}

/// The part of the space of its pool and position that a copy has, of `pg_num`.
pub(crate) fn window_of(id: SpgId, pg_num: u32) -> Window {
    let pgid = id.pgid;
    let mut low = BytesMut::with_capacity(9);
    floor(pgid, &mut low);
    let bits = pgid.split_bits(pg_num);
    let first = pgid.seed.reverse_bits();
    let last = first | u32::MAX.checked_shr(bits).unwrap_or(0);
    let end = last.checked_add(1).map(|end| bound(pgid, end));
    Window {
        space: coll_of(SpgId { pgid: PgId { seed: SPACE, ..pgid }, ..id }),
        floor: low.freeze(),
        start: bound(pgid, first),
        end,
    }
}

/// Adds what makes the collection of a new PG out of its parent's.
pub(crate) fn split_off(t: &mut Transaction, parent: SpgId, meta: &Key, child: SplitOff) {
    let id = SpgId { pgid: child.pgid, ..parent };
    let window = window_of(id, child.pg_num);
    let (parent, coll) = (coll_of(parent), coll_of(id));
    t.split(parent, window.start.clone(), coll);
    t.touch(coll, meta);
    let rows = |tag: u8, skip: usize| RowRange {
        start: Bytes::copy_from_slice(&[tag]),
        end: Bytes::copy_from_slice(&[tag + 1]),
        skip,
        lo: window.start.clone(),
        hi: window.end.clone(),
    };
    t.omap_move(parent, meta, rows(snap_mapper::BY_SNAP, 9), coll, meta);
    t.omap_move(parent, meta, rows(snap_mapper::BY_OBJECT, 1), coll, meta);
    t.omap_set(coll, meta, child.rows.set.into_vec());
}

/// Adds what makes the collections of several PGs one.
pub(crate) fn join_into(t: &mut Transaction, id: SpgId, meta: &Key, join: Join) {
    let target = coll_of(id);
    for (part, here) in join.parts {
        let part = SpgId { pgid: part, ..id };
        let coll = coll_of(part);
        if here {
            for (tag, skip) in [(snap_mapper::BY_SNAP, 9), (snap_mapper::BY_OBJECT, 1)] {
                let (start, end) =
                    (Bytes::copy_from_slice(&[tag]), Bytes::copy_from_slice(&[tag + 1]));
                t.omap_move(
                    coll,
                    meta,
                    RowRange { start, end, skip, lo: Bytes::new(), hi: None },
                    target,
                    meta,
                );
            }
            t.remove(coll, meta);
        } else {
            // What it would have had.
            t.create_window(coll, window_of(part, join.pg_num));
        }
        t.merge(coll, target);
    }
    t.omap_rm_range(target, meta, pg::rows::FIRST_ROW, None);
    t.omap_set(target, meta, join.rows.set.into_vec());
}

pub(crate) fn put_rows(
    t: &mut Transaction,
    coll: Coll,
    meta: &Key,
    set: Vec<(Bytes, Bytes)>,
    remove: Vec<Bytes>,
) {
    if !remove.is_empty() {
        t.omap_rm(coll, meta, remove);
    }
    if !set.is_empty() {
        t.omap_set(coll, meta, set);
    }
}

/// Writes a part of a recovered object.
pub(crate) fn push_chunk(
    coll: Coll,
    t: &mut Transaction,
    mut chunk: ObjectChunk,
    mut snaps: impl FnMut(&mut Transaction, &ObjectId, &[SnapId], &[SnapId]),
) {
    let key = chunk.oid.to_key();
    if chunk.first() {
        t.touch(coll, &key).remove(coll, &key);
        if chunk.attrs.is_empty() {
            // Of an object that has no shard here.
            return;
        }
        t.touch(coll, &key);
        t.truncate(coll, &key, chunk.size);
        t.set_attrs(coll, &key, std::mem::take(&mut chunk.attrs));
        if !chunk.omap_header.is_empty() {
            t.omap_header(coll, &key, chunk.omap_header.clone());
        }
    }
    let mut at = 0usize;
    for &(offset, length) in &chunk.extents {
        // The sum of the extents is the length of the data; what is beyond it was never sent.
        let end = at.saturating_add(length as usize).min(chunk.data.len());
        t.write(coll, &key, offset, chunk.data.slice(at..end), WriteHint::DontNeed);
        at = end;
    }
    if !chunk.omap.is_empty() {
        t.omap_set(coll, &key, std::mem::take(&mut chunk.omap));
    }
    if chunk.last && !chunk.snaps.is_empty() {
        snaps(t, &chunk.oid, &[], &chunk.snaps);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collections_and_groups_are_one_to_one() {
        let pgid = PgId { pool: types::PoolId(7), seed: 0x1f };
        for pool in [1, 7, (1 << POOL_BITS) - 1] {
            for (seed, shard) in [(0, -1), (0x1f, 0), (u32::MAX, 5), (3, i8::MAX)] {
                let pgid = PgId { pool: PoolId(pool), seed };
                let id = SpgId { pgid, shard: ShardId(shard) };
                assert_eq!(id_of(coll_of(id)), Some(id));
            }
        }
        assert!(!has_collections(PoolId(1 << POOL_BITS)) && !has_collections(PoolId(0)));
        assert_eq!(id_of(Coll(0)), None);
        assert_eq!(id_of(Coll(u64::MAX)), None);
        assert!(META_KEY < &pgid.first_object().to_key()[..]);
    }

    #[test]
    fn windows_of_a_pool_are_its_whole_space() {
        for pg_num in 1..70 {
            let mut all: Vec<Window> = (0..pg_num)
                .map(|seed| window_of(PgId::new(PoolId(3), seed).into(), pg_num))
                .collect();
            all.sort_by(|a, b| a.start.cmp(&b.start));
            assert_eq!(all[0].start, bound(PgId::new(PoolId(3), 0), 0));
            for pair in all.windows(2) {
                assert_eq!(pair[0].end.as_ref(), Some(&pair[1].start), "{pg_num}");
            }
            assert_eq!(all[all.len() - 1].end, None);
        }
    }

    #[test]
    fn objects_are_in_the_window_of_their_group() {
        for pg_num in [1, 2, 3, 7, 8, 12, 64] {
            for i in 0..500u32 {
                let hash = i.wrapping_mul(0x9e37_79b9);
                let oid = ObjectId::with_hash(
                    PoolId(3),
                    Bytes::new(),
                    "x".into(),
                    Bytes::new(),
                    SnapId::NOSNAP,
                    hash,
                );
                let seed = types::pgid::stable_mod(hash, pg_num, types::pgid::mask_of(pg_num));
                for other in 0..pg_num {
                    let w = window_of(PgId::new(PoolId(3), other).into(), pg_num);
                    assert_eq!(w.covers(&oid.to_key()), other == seed);
                    assert!(oid.to_key() >= w.floor && META_KEY < &w.floor[..]);
                }
            }
        }
    }
}
