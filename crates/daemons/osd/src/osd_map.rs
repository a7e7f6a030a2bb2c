//! The OSDMap as the cluster map of this OSD.

use crate::collections::has_collections;
use crate::map::{ClusterMap, PoolOps};
use crate::scrubs::ScrubRules;
use bytes::Bytes;
use objops::object::{PoolRules, StockRefusals};
use pg::{MapView, Mapping, Members, MergeMeta, PoolKind, PoolView};
use rustc_hash::FxHashMap;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use types::{
    EntityAddr, EntityAddrVec, Epoch, IntervalSet, ObjectId, OsdId, OsdMap, PgId, PgPool, PoolId,
    SnapId, pool,
};

/// One epoch. What operations ask again and again is worked out once.
pub struct MapAt {
    map: Rc<OsdMap>,
    pools: FxHashMap<PoolId, Rc<PoolOps>>,
    /// How served pools keep their objects.
    kinds: FxHashMap<PoolId, PoolKind>,
    mappings: RefCell<FxHashMap<PgId, Mapping>>,
}

impl MapAt {
    /// Views a map.
    pub fn new(map: Rc<OsdMap>) -> Rc<Self> {
        let pools =
            map.pools.iter().map(|(id, p)| (*id, Rc::new(pool_ops(&map, *id, p)))).collect();
        let kinds =
            map.pools.iter().filter_map(|(id, p)| Some((*id, kind_of(&map, *id, p)?))).collect();
        Rc::new(MapAt { map, pools, kinds, mappings: RefCell::default() })
    }

    /// The map itself.
    pub fn osd_map(&self) -> &Rc<OsdMap> {
        &self.map
    }
}

fn pool_ops(map: &OsdMap, id: PoolId, p: &types::PgPool) -> PoolOps {
    let full = map.has_flag(types::rados::osdmap_flag::FULL) || p.has_flag(pool::flag::FULL);
    PoolOps {
        rules: PoolRules {
            full,
            full_quota: p.has_flag(pool::flag::FULL_QUOTA),
            write_dont_need: p.has_flag(pool::flag::WRITE_FADVISE_DONTNEED),
            stock: (!p.is_replicated()).then(|| StockRefusals {
                append_unit: (!p.has_flag(pool::flag::EC_OVERWRITES) && p.stripe_width > 0)
                    .then_some(p.stripe_width.into()),
            }),
        },
        pool_snapc: p.is_pool_snaps_mode().then(|| p.snap_context()),
        last_force_op_resend: p.last_force_op_resend,
        name: map.pool_names.get(&id).cloned().unwrap_or_default(),
        applications: p.application_metadata.clone(),
        min_compat_client: map.require_min_compat_client.0,
        require_osd_release: map.require_osd_release.0,
        stripe_width: p.stripe_width.into(),
    }
}

/// How a pool keeps its objects; `None` if its PGs are not instantiated here: it has a number that
/// no collection can have, or a profile that monitors would not accept.
fn kind_of(map: &OsdMap, id: PoolId, pool: &PgPool) -> Option<PoolKind> {
    if !has_collections(id) {
        return None;
    }
    if pool.is_replicated() {
        return Some(PoolKind::Replicated);
    }
    let mut settings = map.erasure_code_profiles.get(&pool.erasure_code_profile)?.clone();
    let profile = ec::Profile::normalize(&mut settings).ok()?;
    let unit = u64::from(pool.stripe_width) / profile.k as u64;
    let layout = ec::Layout::new(profile.k, profile.m, unit).ok()?;
    let fits = layout.shards().len() == usize::from(pool.size)
        && layout.stripe_width() == u64::from(pool.stripe_width);
    fits.then_some(PoolKind::Erasure(pg::Erasure { layout, technique: profile.technique }))
}

impl MapView for MapAt {
    fn epoch(&self) -> Epoch {
        self.map.epoch
    }
    fn exists(&self, osd: OsdId) -> bool {
        self.map.exists(osd)
    }
    fn is_up(&self, osd: OsdId) -> bool {
        self.map.is_up(osd)
    }
    fn up_from(&self, osd: OsdId) -> Epoch {
        self.map.osd(osd).map_or(Epoch(0), |o| o.info.up_from)
    }
    fn up_thru(&self, osd: OsdId) -> Epoch {
        self.map.osd(osd).map_or(Epoch(0), |o| o.info.up_thru)
    }
    fn lost_at(&self, osd: OsdId) -> Epoch {
        self.map.osd(osd).map_or(Epoch(0), |o| o.info.lost_at)
    }
    fn pool(&self, id: PoolId) -> Option<PoolView> {
        // A PG of a pool that is not served has no place here.
        let kind = *self.kinds.get(&id)?;
        let p = self.map.pool(id)?;
        Some(PoolView {
            kind,
            size: p.size.into(),
            min_size: p.min_size.into(),
            pg_num: p.pg_num,
            // The pool's creation is the oldest of its changes that the map still tells.
            created: p.last_change.min(self.map.epoch),
            pg_num_pending: p.pg_num_pending,
            merged: (p.last_pg_merge_meta.ready_epoch > Epoch(0)).then(|| {
                let meta = &p.last_pg_merge_meta;
                MergeMeta {
                    source: meta.source_pgid,
                    source_version: meta.source_version,
                    target_version: meta.target_version,
                }
            }),
        })
    }
    fn removed_snaps(&self, pool: PoolId) -> IntervalSet {
        self.map.removed_snaps_queue.get(&pool).cloned().unwrap_or_default()
    }
    fn dead_epoch(&self, osd: OsdId) -> Epoch {
        self.map.osd(osd).map_or(Epoch(0), |o| o.xinfo.dead_epoch)
    }
    fn read_lease(&self, id: PoolId) -> Option<Duration> {
        match self.map.pool(id)?.opts.get("read_lease_interval")? {
            types::pool_opts::PoolOptValue::Double(seconds) => {
                Duration::try_from_secs_f64(*seconds).ok()
            }
            _ => None,
        }
    }
    fn is_full(&self, osd: OsdId) -> bool {
        self.map.osd(osd).is_some_and(|o| o.state & types::rados::osd_state::FULL != 0)
    }
    fn trims_snaps(&self) -> bool {
        !self.map.has_flag(types::rados::osdmap_flag::NOSNAPTRIM)
    }
    fn recovery_priority(&self, id: PoolId) -> i32 {
        match self.map.pool(id).and_then(|p| p.opts.get("recovery_priority")) {
            Some(types::pool_opts::PoolOptValue::Int(n)) => i32::try_from(*n).unwrap_or(0),
            _ => 0,
        }
    }
    fn recovers(&self) -> bool {
        !self.map.has_flag(types::rados::osdmap_flag::NORECOVER)
    }
    fn backfills(&self) -> bool {
        !self.map.has_flag(types::rados::osdmap_flag::NOBACKFILL)
    }
    fn rebalances(&self) -> bool {
        !self.map.has_flag(types::rados::osdmap_flag::NOREBALANCE)
    }
    fn mapping(&self, pg: PgId) -> Mapping {
        if let Some(m) = self.mappings.borrow().get(&pg) {
            return m.clone();
        }
        let placed = self.map.pg_to_up_acting(pg);
        let replicated = self.map.pool(pg.pool).is_none_or(PgPool::is_replicated);
        let members = |osds: Vec<OsdId>| match replicated {
            true => Members::whole(osds),
            false => Members::positioned(osds),
        };
        let (up, acting) = (members(placed.up), members(placed.acting));
        let m = Mapping {
            up_primary: up.on(placed.up_primary),
            primary: acting.on(placed.acting_primary),
            up,
            acting,
        };
        self.mappings.borrow_mut().insert(pg, m.clone());
        m
    }
}

impl ClusterMap for MapAt {
    fn pools(&self) -> Vec<PoolId> {
        self.map.pools.keys().copied().filter(|id| self.kinds.contains_key(id)).collect()
    }
    fn pool_ops(&self, pool: PoolId) -> Option<Rc<PoolOps>> {
        self.pools.get(&pool).cloned()
    }
    fn fold(&self, raw: PgId) -> Option<PgId> {
        Some(self.map.pool(raw.pool)?.raw_pg_to_pg(raw))
    }
    fn object(
        &self,
        pool: PoolId,
        namespace: &Bytes,
        name: &Bytes,
        key: &Bytes,
        snap: SnapId,
    ) -> Option<ObjectId> {
        let p = self.map.pool(pool)?;
        let named = if key.is_empty() { name } else { key };
        let hash = p.hash_key(named, namespace);
        Some(ObjectId::with_hash(pool, namespace.clone(), name.clone(), key.clone(), snap, hash))
    }
    fn is_blocklisted(&self, addr: &EntityAddr) -> bool {
        self.map.is_blocklisted(addr)
    }
    fn snap_removed(&self, pool: PoolId, snap: SnapId) -> bool {
        self.map.removed_snaps_queue.get(&pool).is_some_and(|s| s.contains(snap.0))
    }
    fn scrub_rules(&self, id: PoolId) -> ScrubRules {
        use types::pool::PoolOptValue;
        use types::rados::osdmap_flag;
        let pool = self.map.pool(id);
        let flagged = |flag| pool.is_some_and(|p| p.has_flag(flag));
        let interval = |name| match pool?.opts.get(name)? {
            PoolOptValue::Double(seconds) if *seconds > 0.0 => Some(*seconds),
            _ => None,
        };
        ScrubRules {
            no_scrub: self.map.has_flag(osdmap_flag::NOSCRUB) || flagged(pool::flag::NOSCRUB),
            no_deep_scrub: self.map.has_flag(osdmap_flag::NODEEP_SCRUB)
                || flagged(pool::flag::NODEEP_SCRUB),
            min_interval: interval("scrub_min_interval"),
            max_interval: interval("scrub_max_interval"),
            deep_interval: interval("deep_scrub_interval"),
        }
    }
    fn addrs(&self, osd: OsdId) -> EntityAddrVec {
        self.map.osd(osd).map(|o| o.cluster_addrs.clone()).unwrap_or_default()
    }
}
