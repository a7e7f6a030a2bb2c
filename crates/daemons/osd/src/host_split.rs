//! Groups that come out of others, or become part of them, on this OSD.
//!
//! The collections of a pool's groups are ranges of one space of the store, because objects are
//! ordered by their reversed hashes: a split cuts a range and moves no object. Where copies have
//! positions, each position has a space of its own. See `docs/decisions/0010-pg-num.md`.

use crate::core::{Core, wall_now};
use crate::host::{PgHost, coll_of};
use bytes::{BufMut, Bytes, BytesMut};
use pg::{Event, Join, MapRef, Pg, SplitOff, snap_mapper};
use std::cell::RefMut;
use std::collections::BTreeMap;
use std::rc::Rc;
use store::{Key, RowRange, Transaction, Window};
use types::{PgId, SpgId};

/// Seed of the space of a pool: no group can have it.
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

/// Adds what makes the collection of a new group out of its parent's.
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

/// Adds what makes the collections of several groups one.
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

impl Core {
    /// Groups that become part of others with the next map.
    pub(crate) fn join_groups(&self, map: &MapRef) {
        let mut joins: BTreeMap<SpgId, Vec<Rc<PgHost>>> = BTreeMap::new();
        for host in self.hosts() {
            if let Some(target) = host.with_pg(|pg| pg.target_in(&**map)) {
                joins.entry(SpgId { pgid: target, ..host.id }).or_default().push(host);
            } else if host.with_pg(|pg| pg.takes_in(&**map)) {
                joins.entry(host.id).or_default();
            }
        }
        for (target, sources) in joins {
            for source in &sources {
                // What waits there comes again: the clients see the same map.
                source.interval_changed();
                let waiting = std::mem::take(&mut source.st.borrow_mut().waiting_active);
                waiting.iter().for_each(|op| self.drop_request(op));
                source.leave_places();
                self.forget_host(source.id);
            }
            let host = match (self.host(target), sources.first()) {
                (Some(host), _) => host,
                (None, Some(source)) => {
                    let conf = self.settings().pg.clone();
                    let remains = source
                        .with_pg(|pg| Pg::remains(self.whoami, target.pgid, pg, conf, wall_now()));
                    self.add_loaded(remains)
                }
                (None, None) => continue,
            };
            // A step of a removal that is under way does not know of what is joined now.
            host.generation.set(host.generation.get() + 1);
            {
                let mut parts: Vec<RefMut<'_, _>> =
                    sources.iter().map(|s| s.st.borrow_mut()).collect();
                let mut parts: Vec<&mut Pg> = parts.iter_mut().map(|st| &mut st.pg).collect();
                host.st.borrow_mut().pg.join(&mut parts, map, wall_now());
            }
            let usable = host.with_pg(|pg| !pg.info().removing);
            tracing::info!(osd = self.whoami.0, pg = %target, of = sources.len() + 1, usable, epoch = map.epoch().0, "joined");
            host.pump();
        }
    }

    /// Gives a group the next map. Returns the groups that came out of it, which have the map, too.
    pub(crate) fn next_map_of(&self, host: &Rc<PgHost>, map: &MapRef) -> Vec<Rc<PgHost>> {
        if host.with_pg(|pg| pg.children_in(&**map).is_empty()) {
            host.handle(Event::AdvanceMap(map.clone()));
            return Vec::new();
        }
        let children = host.st.borrow_mut().pg.split(map, wall_now());
        tracing::info!(osd = self.whoami.0, pg = %host.pgid, into = children.len() + 1, epoch = map.epoch().0, "split");
        // The transaction of the whole comes first.
        host.pump();
        children.into_iter().map(|pg| self.add_host(pg)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{ObjectId, PoolId, SnapId};

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
                    assert!(oid.to_key() >= w.floor && crate::host::META_KEY < &w.floor[..]);
                }
            }
        }
    }
}
