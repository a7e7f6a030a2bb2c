use super::OsdMap;
use super::mapping::Scratch;
use crate::{Epoch, OsdId, PgId, PoolId};
use std::collections::BTreeMap;

/// Where every placement group lives, computed once for a map (Ceph: `OSDMapMapping`). A look-up is
/// an index into one vector.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OsdMapMapping {
    /// The map's epoch.
    pub epoch: Epoch,
    pools: BTreeMap<PoolId, PoolTable>,
}

/// One row for each group: both primaries, the sizes of both sets, then room for the members of
/// both.
#[derive(Clone, Debug, PartialEq)]
struct PoolTable {
    /// Largest set that a row has room for.
    width: usize,
    pg_num: u32,
    rows: Vec<OsdId>,
}

const HEAD: usize = 4;
/// Pools from outside may claim any number of groups; more than this are mapped one by one.
const PG_NUM_MAX: u32 = 1 << 20;

/// Where one placement group lives; as [`super::UpActing`], borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement<'a> {
    /// The up set.
    pub up: &'a [OsdId],
    /// Its primary, -1 for none.
    pub up_primary: OsdId,
    /// The acting set.
    pub acting: &'a [OsdId],
    /// Its primary, -1 for none.
    pub acting_primary: OsdId,
}

impl OsdMapMapping {
    /// Maps all groups of all pools.
    pub fn new(map: &OsdMap) -> Self {
        let mut scratch = Scratch::default();
        let tables = map.pools.keys().map(|id| (*id, PoolTable::new(map, *id, &mut scratch)));
        OsdMapMapping { epoch: map.epoch, pools: tables.collect() }
    }

    /// Follows the map from `old` to `new`. Pools are mapped again only if something changed that
    /// they depend on.
    pub fn update(&mut self, old: &OsdMap, new: &OsdMap) {
        let states = |m: &OsdMap| m.osds.iter().map(|o| o.state & 3).collect::<Vec<_>>();
        let same = self.epoch == old.epoch
            && (std::sync::Arc::ptr_eq(&old.crush, &new.crush) || old.crush == new.crush)
            && old.weights == new.weights
            && old.primary_affinity == new.primary_affinity
            && states(old) == states(new)
            && old.pg_upmap == new.pg_upmap
            && old.pg_upmap_items == new.pg_upmap_items
            && old.pg_upmap_primaries == new.pg_upmap_primaries;
        if !same {
            *self = OsdMapMapping::new(new);
            return;
        }
        let mut scratch = Scratch::default();
        self.epoch = new.epoch;
        self.pools.retain(|id, _| new.pools.contains_key(id));
        for (id, pool) in &new.pools {
            let shape = |p: &crate::PgPool| {
                (
                    p.kind,
                    p.size,
                    p.crush_rule,
                    p.pg_num,
                    p.pgp_num,
                    p.has_flag(crate::pool::flag::HASHPSPOOL),
                )
            };
            let unchanged = old.pool(*id).is_some_and(|p| shape(p) == shape(pool));
            let temps = |m: &OsdMap| {
                let range = PgId::new(*id, 0)..=PgId::new(*id, u32::MAX);
                let a: Vec<_> =
                    m.pg_temp.range(range.clone()).map(|(k, v)| (*k, v.clone())).collect();
                let b: Vec<_> = m.primary_temp.range(range).map(|(k, v)| (*k, *v)).collect();
                (a, b)
            };
            if !unchanged || temps(old) != temps(new) {
                self.pools.insert(*id, PoolTable::new(new, *id, &mut scratch));
            }
        }
    }

    /// Where a group lives. `None` for groups that do not exist (or in pools too large for a
    /// table).
    #[inline]
    pub fn get(&self, pg: PgId) -> Option<Placement<'_>> {
        self.pools.get(&pg.pool)?.get(pg.seed)
    }

    /// All groups of all pools with their places.
    pub fn iter(&self) -> impl Iterator<Item = (PgId, Placement<'_>)> {
        self.pools.iter().flat_map(|(id, table)| {
            (0..table.pg_num).filter_map(|seed| Some((PgId::new(*id, seed), table.get(seed)?)))
        })
    }

    /// How many groups each OSD is acting for.
    pub fn pgs_by_osd(&self) -> BTreeMap<OsdId, usize> {
        let mut count = BTreeMap::new();
        for (_, p) in self.iter() {
            for osd in p.acting.iter().filter(|o| o.is_some()) {
                *count.entry(*osd).or_default() += 1;
            }
        }
        count
    }
}

impl PoolTable {
    fn new(map: &OsdMap, id: PoolId, scratch: &mut Scratch) -> Self {
        let empty = PoolTable { width: 0, pg_num: 0, rows: Vec::new() };
        let Some(pool) = map.pool(id) else { return empty };
        if pool.pg_num > PG_NUM_MAX {
            return empty;
        }
        // Sets made by hand may be larger than the pool's size.
        let range = PgId::new(id, 0)..=PgId::new(id, u32::MAX);
        let temp = map.pg_temp.range(range.clone()).map(|(_, v)| v.len());
        let upmap = map.pg_upmap.range(range).map(|(_, v)| v.len());
        let width = temp.chain(upmap).max().unwrap_or(0).max(usize::from(pool.size)).min(WIDTH_MAX);
        let stride = HEAD + 2 * width;
        let mut rows = Vec::with_capacity(stride * pool.pg_num as usize);
        for seed in 0..pool.pg_num {
            let Some((up, acting)) = map.map_pg(PgId::new(id, seed), scratch) else { return empty };
            let end = rows.len() + stride;
            let (n_up, n_acting) = (scratch.up.len().min(width), scratch.acting.len().min(width));
            rows.extend([up, acting, n_up as i32, n_acting as i32].map(OsdId));
            rows.extend(scratch.up.iter().take(n_up).map(|o| OsdId(*o)));
            rows.extend(scratch.acting.iter().take(n_acting).map(|o| OsdId(*o)));
            rows.resize(end, OsdId::NONE);
        }
        PoolTable { width, pg_num: pool.pg_num, rows }
    }

    #[inline]
    fn get(&self, seed: u32) -> Option<Placement<'_>> {
        if seed >= self.pg_num {
            return None;
        }
        let stride = HEAD + 2 * self.width;
        let row = self.rows.get(seed as usize * stride..(seed as usize + 1) * stride)?;
        let (head, members) = row.split_at(HEAD);
        let (n_up, n_acting) = (head[2].0 as usize, head[3].0 as usize);
        Some(Placement {
            up: &members[..n_up],
            up_primary: head[0],
            acting: &members[n_up..n_up + n_acting],
            acting_primary: head[1],
        })
    }
}

/// Sets larger than this are cut; pools have at most 255 members.
const WIDTH_MAX: usize = 1024;
