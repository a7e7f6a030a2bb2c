//! The map of the cluster, in one of its epochs.

use std::collections::BTreeMap;

use pg::{Backend, MapView, Mapping, Members, PoolKind, PoolView};
use types::{Epoch, IntervalSet, OsdId, PgId, PoolId};

use crate::rng::mix;
use crate::snaps::PoolSnaps;

/// An OSD in the map.
#[derive(Clone, Debug, Default)]
pub struct OsdState {
    /// It is in the map.
    pub exists: bool,
    /// Up.
    pub up: bool,
    /// Takes part in placement.
    pub is_in: bool,
    /// Incarnation of the process that is up: stands for its address.
    pub incarnation: u64,
    /// Last marked up.
    pub up_from: Epoch,
    /// Known alive until.
    pub up_thru: Epoch,
    /// Came with an empty disk.
    pub lost_at: Epoch,
    /// Its process was known to be gone.
    pub dead_epoch: Epoch,
    /// Its store is full.
    pub full: bool,
}

/// One epoch of the map.
#[derive(Clone, Debug)]
pub struct MapModel {
    /// Its epoch.
    pub epoch: Epoch,
    /// OSDs by number.
    pub osds: Vec<OsdState>,
    /// Pools.
    pub pools: BTreeMap<PoolId, PoolView>,
    /// Acting sets that primaries asked for.
    pub pg_temp: BTreeMap<PgId, Vec<OsdId>>,
    /// The flag.
    pub nobackfill: bool,
    /// The flag.
    pub norecover: bool,
    /// `pgp_num` of pools where it is not `pg_num`.
    pub pgp_num: BTreeMap<PoolId, u32>,
    /// Since when groups wait to be joined.
    pub pending_since: Epoch,
    /// Snapshots of pools.
    pub snaps: BTreeMap<PoolId, PoolSnaps>,
}

impl MapModel {
    /// The first map: OSDs that have not started.
    pub fn first(osds: usize) -> Self {
        let osds = vec![OsdState { exists: true, is_in: true, ..OsdState::default() }; osds];
        Self {
            epoch: Epoch(1),
            osds,
            pools: BTreeMap::new(),
            pg_temp: BTreeMap::new(),
            nobackfill: false,
            norecover: false,
            pgp_num: BTreeMap::new(),
            pending_since: Epoch(0),
            snaps: BTreeMap::new(),
        }
    }

    /// An OSD, if it is in the map.
    pub fn osd(&self, osd: OsdId) -> Option<&OsdState> {
        self.osds.get(usize::try_from(osd.0).ok()?).filter(|o| o.exists)
    }

    /// Incarnation of an OSD if it is up.
    pub fn incarnation(&self, osd: OsdId) -> Option<u64> {
        self.osd(osd).filter(|o| o.up).map(|o| o.incarnation)
    }
}

impl MapModel {
    /// For each position in turn the best OSD by hash that is not taken; a hole if that is down.
    fn positions(&self, pg: PgId, seed: u32, pool: &PoolView, rules: &dyn Backend) -> Mapping {
        let mut up = Vec::new();
        let mut taken = Vec::new();
        for position in 0..u64::from(pool.size) {
            let hash = |i: usize| {
                mix(mix(pg.pool.0 as u64) ^ u64::from(seed) << 20 ^ position << 10 ^ i as u64)
            };
            let best = (0..self.osds.len())
                .filter(|i| self.osds[*i].exists && self.osds[*i].is_in && !taken.contains(i))
                .min_by_key(|i| hash(*i));
            taken.extend(best);
            let osd = best.map(|i| OsdId(i as i32)).filter(|o| self.is_up(*o));
            up.push(osd.unwrap_or(OsdId::NONE));
        }
        let temp: Vec<OsdId> = self
            .pg_temp
            .get(&pg)
            .into_iter()
            .flatten()
            .map(|o| if self.is_up(*o) { *o } else { OsdId::NONE })
            .collect();
        let acting = if temp.iter().any(|o| o.is_some()) { temp } else { up.clone() };
        let (up, acting) = (Members::positioned(up), Members::positioned(acting));
        let leads = |set: &Members| set.iter().copied().find(|c| rules.leads(c.shard));
        Mapping { up_primary: leads(&up), primary: leads(&acting), up, acting }
    }
}

impl MapView for MapModel {
    fn epoch(&self) -> Epoch {
        self.epoch
    }
    fn exists(&self, osd: OsdId) -> bool {
        self.osd(osd).is_some()
    }
    fn is_up(&self, osd: OsdId) -> bool {
        self.osd(osd).is_some_and(|o| o.up)
    }
    fn up_from(&self, osd: OsdId) -> Epoch {
        self.osd(osd).map_or(Epoch(0), |o| o.up_from)
    }
    fn up_thru(&self, osd: OsdId) -> Epoch {
        self.osd(osd).map_or(Epoch(0), |o| o.up_thru)
    }
    fn lost_at(&self, osd: OsdId) -> Epoch {
        self.osd(osd).map_or(Epoch(0), |o| o.lost_at)
    }
    fn dead_epoch(&self, osd: OsdId) -> Epoch {
        self.osd(osd).map_or(Epoch(0), |o| o.dead_epoch)
    }
    fn is_full(&self, osd: OsdId) -> bool {
        self.osd(osd).is_some_and(|o| o.full)
    }
    fn recovers(&self) -> bool {
        !self.norecover
    }
    fn backfills(&self) -> bool {
        !self.nobackfill
    }
    fn pool(&self, pool: PoolId) -> Option<PoolView> {
        self.pools.get(&pool).copied()
    }
    fn removed_snaps(&self, pool: PoolId) -> IntervalSet {
        self.snaps.get(&pool).map(|s| s.removed.clone()).unwrap_or_default()
    }
    /// The `size` best of a ranking by hash, without those that are down.
    fn mapping(&self, pg: PgId) -> Mapping {
        let Some(pool) = self.pools.get(&pg.pool) else { return Mapping::default() };
        let pgp_num = self.pgp_num.get(&pg.pool).copied().unwrap_or(pool.pg_num);
        let seed = types::pgid::stable_mod(pg.seed, pgp_num, types::pgid::mask_of(pgp_num));
        if let PoolKind::Erasure(rules) = pool.kind {
            return self.positions(pg, seed, pool, &rules);
        }
        let mut ranked: Vec<_> = (0..self.osds.len())
            .filter(|&i| self.osds[i].exists && self.osds[i].is_in)
            .map(|i| {
                (mix(mix(pg.pool.0 as u64) ^ u64::from(seed) << 20 ^ i as u64), OsdId(i as i32))
            })
            .collect();
        ranked.sort();
        let up: Vec<_> = ranked
            .iter()
            .take(pool.size as usize)
            .map(|r| r.1)
            .filter(|&o| self.is_up(o))
            .collect();
        let temp: Vec<_> = self
            .pg_temp
            .get(&pg)
            .into_iter()
            .flatten()
            .copied()
            .filter(|&o| self.is_up(o))
            .collect();
        let acting = if temp.is_empty() { up.clone() } else { temp };
        let (up, acting) = (Members::whole(up), Members::whole(acting));
        Mapping { up_primary: up.first().copied(), primary: acting.first().copied(), up, acting }
    }
}
