//! The rules by which the OSD map changes: what commands, messages of OSDs and the leader's rounds
//! share.
//!
//! Functions change the map of a batch in place. What follows from the epoch (`up_from`, `down_at`,
//! `down_stamp`) is left to the incremental map, which sets it when it is applied.

use crate::lag;
use crate::state::Pending;
use conf::Config;
use std::collections::{BTreeMap, BTreeSet};
use types::osdmap::Osd;
use types::pool::flag as pool_flag;
use types::rados::{OSD_IN, osd_state as state, osdmap_flag as flag};
use types::{EntityAddrVec, Epoch, Fsid, OsdId, OsdMap, PgId, PoolId, Utime};

/// Shorthand that the rules need beside the map's own methods.
pub trait OsdMapExt {
    /// OSDs that exist.
    fn osds(&self) -> impl Iterator<Item = OsdId>;
    /// State bits, 0 for an OSD without a place.
    fn state_bits(&self, osd: OsdId) -> u32;
    /// Identity of an OSD's store.
    fn uuid(&self, osd: OsdId) -> Option<Fsid>;
    /// How many OSDs are in.
    fn num_in(&self) -> usize;
    /// Number of the pool of that name.
    fn pool_id(&self, name: &str) -> Option<PoolId>;
}

impl OsdMapExt for OsdMap {
    fn osds(&self) -> impl Iterator<Item = OsdId> {
        (0..self.max_osd()).map(OsdId).filter(|o| self.exists(*o))
    }
    fn state_bits(&self, osd: OsdId) -> u32 {
        self.osd(osd).map_or(0, |o| o.state)
    }
    fn uuid(&self, osd: OsdId) -> Option<Fsid> {
        self.osd(osd).map(|o| o.uuid)
    }
    fn num_in(&self) -> usize {
        self.osds().filter(|o| self.is_in(*o)).count()
    }
    fn pool_id(&self, name: &str) -> Option<PoolId> {
        self.pool_by_name(name)
    }
}

/// The map of a new cluster, without its identity.
pub fn blank_map(conf: &Config) -> OsdMap {
    use types::Release;
    OsdMap {
        flags: flag::SORTBITWISE
            | flag::RECOVERY_DELETES
            | flag::PURGED_SNAPDIRS
            | flag::PGLOG_HARDLIMIT,
        full_ratio: conf.f64("mon_osd_full_ratio") as f32,
        backfillfull_ratio: conf.f64("mon_osd_backfillfull_ratio") as f32,
        nearfull_ratio: conf.f64("mon_osd_nearfull_ratio") as f32,
        require_min_compat_client: Release::LUMINOUS,
        require_osd_release: Release::SQUID,
        crush_version: 1,
        erasure_code_profiles: [(
            "default".to_owned(),
            [("k", "2"), ("m", "2"), ("plugin", "jerasure"), ("technique", "reed_sol_van")]
                .into_iter()
                .map(|(k, v)| (k.to_owned(), v.to_owned()))
                .collect(),
        )]
        .into(),
        ..Default::default()
    }
}

fn slot(osd: OsdId) -> Option<usize> {
    usize::try_from(osd.0).ok()
}

fn osd_mut(p: &mut Pending, osd: OsdId) -> Option<&mut Osd> {
    p.osd_mut().osds.get_mut(slot(osd)?)
}

/// Makes room for OSDs below `max`, or takes it away.
pub fn set_max_osd(p: &mut Pending, max: i32) {
    let n = usize::try_from(max).unwrap_or(0);
    if p.osd().osds.len() == n {
        return;
    }
    let map = p.osd_mut();
    map.osds.resize(n, Osd::default());
    map.weights.resize(n, 0);
    if let Some(a) = &mut map.primary_affinity {
        a.resize(n, OsdMap::ONE);
    }
}

/// The lowest number that no OSD has.
pub fn free_id(p: &Pending) -> OsdId {
    (0..).map(OsdId).find(|o| !p.osd().exists(*o) && may_create(p, *o)).unwrap_or(OsdId(0))
}

/// Whether an OSD may come into being in this batch. One epoch cannot tell that an OSD went and
/// another came with its number.
pub fn may_create(p: &Pending, osd: OsdId) -> bool {
    p.osd().exists(osd) || !p.osd_before().exists(osd)
}

/// Makes an OSD exist: new, out and down.
pub fn create(p: &mut Pending, osd: OsdId, uuid: Option<Fsid>) {
    if osd.0 >= p.osd().max_osd() {
        set_max_osd(p, osd.0 + 1);
    }
    let Some(o) = osd_mut(p, osd) else { return };
    o.state = state::EXISTS | state::NEW | (o.state & !state::DESTROYED);
    o.uuid = uuid.unwrap_or(o.uuid);
}

/// Makes an OSD not exist.
pub fn remove(p: &mut Pending, osd: OsdId) {
    if let Some(o) = osd_mut(p, osd) {
        *o = Osd::default();
    }
    let map = p.osd_mut();
    if let Some(w) = slot(osd).and_then(|i| map.weights.get_mut(i)) {
        *w = 0;
    }
    if let Some(a) = slot(osd).and_then(|i| map.primary_affinity.as_mut()?.get_mut(i)) {
        *a = OsdMap::ONE;
    }
    forget_in_placement(p, osd);
}

/// Keeps an OSD's number but forgets the OSD.
pub fn destroy(p: &mut Pending, osd: OsdId) {
    if let Some(o) = osd_mut(p, osd) {
        o.state |= state::DESTROYED;
        o.uuid = Fsid::default();
    }
}

fn forget_in_placement(p: &mut Pending, osd: OsdId) {
    let map = p.osd_mut();
    map.pg_upmap.retain(|_, osds| !osds.contains(&osd));
    map.pg_upmap_items.retain(|_, items| items.iter().all(|(from, to)| *from != osd && *to != osd));
    map.pg_upmap_primaries.retain(|_, primary| *primary != osd);
}

/// Whether the rules allow to mark an OSD down because others, or its silence, say so.
pub fn may_mark_down(map: &OsdMap, conf: &Config, osd: OsdId) -> bool {
    if map.has_flag(flag::NODOWN) || map.effective_osd_flags(osd) & state::NODOWN != 0 {
        return false;
    }
    let all = map.osds().count();
    if all == 0 {
        return false;
    }
    let up = map.osds().filter(|o| map.is_up(*o)).count();
    let ratio = conf.f64("mon_osd_min_up_ratio");
    // As in Ceph the limit is meant for large clusters: it never protects the last few OSDs.
    (up as f64 - 1.0) / all as f64 >= ratio || up <= 3
}

/// Whether the rules allow to mark an OSD out because it is down.
pub fn may_mark_out(map: &OsdMap, osd: OsdId) -> bool {
    !map.has_flag(flag::NOOUT) && map.effective_osd_flags(osd) & state::NOOUT == 0
}

/// OSDs that the batch marks down, long after they were down before: that they were slow then says
/// nothing any more.
pub fn forget_old_lag(p: &mut Pending, conf: &Config) {
    if !p.changes_osd_map() {
        return;
    }
    let now = p.now();
    let old = |o: &OsdId| {
        p.osd_before().is_up(*o)
            && !p.osd().is_up(*o)
            && p.osd().osd(*o).is_some_and(|x| lag::is_old(&x.xinfo, conf, now))
    };
    let old: Vec<OsdId> = p.osd().osds().filter(old).collect();
    for osd in old {
        if let Some(o) = osd_mut(p, osd) {
            (o.xinfo.laggy_probability, o.xinfo.laggy_interval) = (0, 0);
        }
    }
}

/// Whether an OSD and everything below the smallest of its ancestors that is at least of this type
/// is down (Ceph: `OSDMap::containing_subtree_is_down`).
pub fn subtree_is_down(map: &OsdMap, osd: OsdId, kind: u16) -> bool {
    let mut current = osd.0;
    for _ in 0..=map.crush.buckets().count() {
        if map.crush.leaves(current).iter().any(|o| map.is_up(OsdId(*o))) {
            return false;
        }
        if map.crush.item_type(current).is_some_and(|t| t >= kind) {
            return true;
        }
        match map.crush.parent(current) {
            Some(bucket) => current = bucket.id,
            None => return false,
        }
    }
    false
}

/// Marks an OSD down. False if it is not up.
pub fn mark_down(p: &mut Pending, osd: OsdId) -> bool {
    if !p.osd().is_up(osd) {
        return false;
    }
    // Where it was up in no epoch, no daemon must learn of that process.
    let before = p.osd_before().osd(osd).filter(|_| !p.osd_before().is_up(osd)).cloned();
    let unseen = before.is_some() || p.osd_before().osd(osd).is_none();
    if let Some(o) = osd_mut(p, osd) {
        o.state &= !state::UP;
        if unseen {
            let b = before.unwrap_or_default();
            let (state, uuid) = (o.state, o.uuid);
            *o = Osd { state, uuid, ..b };
        }
    }
    let now = p.now();
    p.osd_mut().last_up_change = now;
    true
}

/// Notes that an OSD's process is gone for sure: leases need not be waited out.
pub fn mark_dead(p: &mut Pending, osd: OsdId) {
    let epoch = p.osd_epoch();
    if let Some(o) = osd_mut(p, osd) {
        o.xinfo.dead_epoch = epoch;
    }
}

/// Gives up an OSD's data. Returns the epoch that it is lost from.
pub fn mark_lost(p: &mut Pending, osd: OsdId) -> Epoch {
    let epoch = p.osd().osd(osd).map_or(Epoch(0), |o| o.info.down_at);
    if let Some(o) = osd_mut(p, osd) {
        o.info.lost_at = epoch;
    }
    epoch
}

/// Sets an OSD's reweight.
pub fn set_weight(p: &mut Pending, osd: OsdId, weight: u32) {
    let old = p.osd().weight_fixed(osd);
    if old == weight {
        return;
    }
    let now = p.now();
    let map = p.osd_mut();
    if (old == 0) != (weight == 0) {
        map.last_in_change = now;
    }
    if let Some(w) = slot(osd).and_then(|i| map.weights.get_mut(i)) {
        *w = weight;
    }
    if weight != 0
        && let Some(o) = osd_mut(p, osd)
    {
        o.state &= !(state::AUTOOUT | state::NEW);
        o.xinfo.old_weight = 0;
    }
}

/// Marks an OSD in, with the weight that it had before it was marked out automatically.
pub fn mark_in(p: &mut Pending, osd: OsdId) {
    let old = p.osd().osd(osd).map_or(0, |o| o.xinfo.old_weight);
    set_weight(p, osd, if old > 0 { old } else { OSD_IN });
}

/// Marks an OSD out because it stayed down; it comes back in when it boots.
pub fn mark_out_automatically(p: &mut Pending, osd: OsdId) {
    let old = p.osd().weight_fixed(osd);
    set_weight(p, osd, 0);
    if let Some(o) = osd_mut(p, osd) {
        o.state |= state::AUTOOUT;
        o.xinfo.old_weight = old;
    }
}

/// Sets the bits of `mask` in an OSD's state to those of `value`.
pub fn set_bits(p: &mut Pending, osd: OsdId, mask: u32, value: u32) {
    let old = p.osd().state_bits(osd);
    let comes_up = p.osd().is_up(osd) && !p.osd_before().is_up(osd);
    // Coming up takes the order to stop back; in one epoch it cannot be given again.
    let value = if comes_up { value & !state::STOP } else { value };
    let new = old & !mask | value & mask;
    if new != old
        && let Some(o) = osd_mut(p, osd)
    {
        o.state = new;
    }
}

/// Sets an OSD's primary affinity.
pub fn set_primary_affinity(p: &mut Pending, osd: OsdId, affinity: u32) {
    if p.osd().primary_affinity_fixed(osd) == affinity {
        return;
    }
    let map = p.osd_mut();
    let n = map.osds.len();
    let all = map.primary_affinity.get_or_insert_with(|| vec![OsdMap::ONE; n]);
    if let Some(a) = slot(osd).and_then(|i| all.get_mut(i)) {
        *a = affinity;
    }
}

/// Notes that an OSD was alive in an epoch: PGs that need it may go active.
pub fn set_up_thru(p: &mut Pending, osd: OsdId, epoch: Epoch) {
    if p.osd().osd(osd).is_some_and(|o| o.info.up_thru < epoch)
        && let Some(o) = osd_mut(p, osd)
    {
        o.info.up_thru = epoch;
    }
}

/// Sets or removes a temporary acting set, as an OSD asks for it.
pub fn set_pg_temp(p: &mut Pending, pg: PgId, wanted: &[OsdId]) {
    let map = p.osd();
    let Some(pool) = map.pools.get(&pg.pool) else { return };
    if pg.seed >= pool.pg_num {
        return;
    }
    // An OSD that went away meanwhile cannot act. The request comes again, without it.
    if wanted.iter().any(|o| o.is_some() && !map.is_up(*o)) {
        return;
    }
    if map.pg_temp.get(&pg).map(Vec::as_slice).unwrap_or_default() == wanted {
        return;
    }
    let map = p.osd_mut();
    match wanted.is_empty() {
        true => drop(map.pg_temp.remove(&pg)),
        false => drop(map.pg_temp.insert(pg, wanted.to_vec())),
    }
    // An OSD that was primary for a while was so for the old acting set.
    map.primary_temp.remove(&pg);
}

/// What an OSD that boots tells.
#[derive(Clone, Debug)]
pub struct Boot {
    /// Its number.
    pub osd: OsdId,
    /// Identity of its store.
    pub uuid: Fsid,
    /// The addresses for clients.
    pub client_addrs: EntityAddrVec,
    /// Where other OSDs reach it.
    pub cluster_addrs: EntityAddrVec,
    /// The addresses for heartbeats on the cluster network.
    pub hb_back_addrs: EntityAddrVec,
    /// The addresses for heartbeats on the public network.
    pub hb_front_addrs: EntityAddrVec,
    /// Its features.
    pub features: u64,
    /// Epoch in which its store was mounted.
    pub mounted: Epoch,
    /// Epoch until which it was clean.
    pub clean_thru: Epoch,
    /// Epoch in which this process was marked up before, 0 if never.
    pub boot_epoch: Epoch,
    /// The newest map that it had when it asked.
    pub has: Epoch,
    /// When it compared its snapshots last.
    pub last_purged_snaps_scrub: Utime,
}

/// The outcome of a boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Booted {
    /// It is up in the next epoch.
    Yes,
    /// It was up already.
    Already,
    /// Its previous process was marked down; the boot must be tried again in the next epoch.
    MarkedDownFirst,
    /// It was asked for before this OSD came up last, and what became of that may be over. An OSD
    /// that still wants to be up asks again when it has the maps since.
    Late,
    /// It may not come up.
    Refused,
}

/// Marks an OSD up (Ceph: `OSDMonitor::preprocess_boot`, `prepare_boot`).
pub fn boot(p: &mut Pending, conf: &Config, b: &Boot) -> Booted {
    let osd = b.osd;
    let map = p.osd();
    if osd.0 < 0 || osd.0 >= map.max_osd() {
        return Booted::Refused;
    }
    let known = map.osd(osd).cloned().unwrap_or_default();
    let exists = map.exists(osd);
    if exists && !known.uuid.is_zero() && known.uuid != b.uuid {
        return Booted::Refused;
    }
    if map.is_destroyed(osd)
        || map.has_flag(flag::NOUP)
        || map.effective_osd_flags(osd) & (state::NOUP | state::STOP) & !state::STOP != 0
    {
        return Booted::Refused;
    }
    if map.is_up(osd)
        && known.client_addrs == b.client_addrs
        && known.cluster_addrs == b.cluster_addrs
    {
        return Booted::Already;
    }
    // A follower passes a boot on again when its leader is gone, executed or not. Done twice, the
    // second one could mark a process up that was marked down meanwhile and does not know it;
    // others would take it for one that does, and not wait for its lease.
    if exists && known.info.up_from > b.has {
        return Booted::Late;
    }
    if map.is_up(osd) {
        mark_down(p, osd);
        return Booted::MarkedDownFirst;
    }
    // Down and up in one epoch would hide the restart from all others, and so would gone and back.
    if p.osd_before().is_up(osd) || !may_create(p, osd) {
        return Booted::MarkedDownFirst;
    }
    // An OSD that boots with an old process's epoch was marked down meanwhile; it is told by the
    // map.
    let auto_in = {
        let weight = map.weight_fixed(osd);
        let is_new = known.state & state::NEW != 0 || !exists;
        let auto_out = known.state & state::AUTOOUT != 0;
        let noin = map.has_flag(flag::NOIN) || map.effective_osd_flags(osd) & state::NOIN != 0;
        weight == 0
            && !noin
            && (is_new && conf.bool("mon_osd_auto_mark_new_in")
                || auto_out && conf.bool("mon_osd_auto_mark_auto_out_in")
                || conf.bool("mon_osd_auto_mark_in"))
    };
    let (now, epoch) = (p.now(), p.osd_epoch());
    // The process that was marked down lived on: its addresses are drawn when it starts.
    let lived = b.boot_epoch.0 > 0
        && known.client_addrs == b.client_addrs
        && known.cluster_addrs == b.cluster_addrs;
    let Some(o) = osd_mut(p, osd) else { return Booted::Refused };
    lag::note_boot(&mut o.xinfo, conf, lived, now);
    if exists && known.info.up_from.0 > 0 && b.boot_epoch.0 == 0 {
        // Its store was never up, but another one was under its number: what that held is gone. No
        // primary may take this OSD for a witness of what was written then.
        o.info.lost_at = epoch;
    }
    o.state = (o.state | state::EXISTS | state::UP) & !state::STOP;
    o.uuid = b.uuid;
    o.client_addrs = b.client_addrs.clone();
    o.cluster_addrs = b.cluster_addrs.clone();
    o.hb_back_addrs = b.hb_back_addrs.clone();
    o.hb_front_addrs = b.hb_front_addrs.clone();
    o.xinfo.features = b.features;
    o.xinfo.last_purged_snaps_scrub = b.last_purged_snaps_scrub;
    let better = b.mounted > o.info.last_clean_begin
        || b.mounted == o.info.last_clean_begin && b.clean_thru > o.info.last_clean_end;
    if better && b.boot_epoch.0 == 0 && b.mounted.0 > 0 {
        o.info.last_clean_begin = b.mounted;
        o.info.last_clean_end = b.clean_thru;
    }
    p.osd_mut().last_up_change = now;
    if auto_in {
        mark_in(p, osd);
    }
    Booted::Yes
}

/// Sets the full flags of pools from the states of the OSDs that their rules can reach (Ceph:
/// `OSDMonitor::encode_pending`, `OSDMap::get_full_pools`). Does nothing if the batch does not
/// change the map.
pub fn update_full_pools(p: &mut Pending) {
    if !p.changes_osd_map() {
        return;
    }
    let map = p.osd();
    let levels = [
        (state::FULL, pool_flag::FULL),
        (state::BACKFILLFULL, pool_flag::BACKFILLFULL),
        (state::NEARFULL, pool_flag::NEARFULL),
    ];
    let mask = pool_flag::FULL | pool_flag::BACKFILLFULL | pool_flag::NEARFULL;
    let any = map
        .osds()
        .any(|o| map.state_bits(o) & (state::FULL | state::BACKFILLFULL | state::NEARFULL) != 0);
    let mut changes = Vec::new();
    for (id, pool) in &map.pools {
        let mut wanted = 0;
        if any && let Some(rule) = map.crush.rule(pool.crush_rule.into()) {
            let reach: BTreeSet<i32> =
                rule.takes().flat_map(|root| map.crush.leaves(root)).collect();
            let states = reach
                .iter()
                .map(|o| OsdId(*o))
                .filter(|o| map.is_up(*o) && map.is_in(*o))
                .map(|o| map.state_bits(o));
            let all = states.fold(0, |a, s| a | s);
            // Only the worst level is shown.
            if let Some((_, bit)) = levels.iter().find(|(s, _)| all & s != 0) {
                wanted = *bit;
            }
        }
        if pool.has_flag(pool_flag::FULL_QUOTA) {
            // The quota takes precedence over levels of space.
            wanted = pool_flag::FULL;
        }
        if pool.flags & mask != wanted {
            changes.push((*id, pool.flags & !mask | wanted));
        }
    }
    let epoch = p.osd_epoch();
    for (id, flags) in changes {
        if let Some(pool) = p.osd_mut().pools.get_mut(&id) {
            pool.flags = flags;
            pool.last_change = epoch;
        }
    }
}

/// Makes clients find the copies that lead PGs of erasure-coded pools. Clients take the first OSD
/// of the acting set; a copy leads only if it is the first shard with data, or has parity. Where
/// these differ the map has a temporary primary. Does nothing if the batch does not change the map.
pub fn lead_coded(p: &mut Pending) {
    if !p.changes_osd_map() {
        return;
    }
    let map = p.osd();
    let coded: Vec<(PoolId, u32, usize)> = map
        .pools
        .iter()
        .filter(|(_, pool)| !pool.is_replicated())
        .filter_map(|(id, pool)| {
            let mut settings = map.erasure_code_profiles.get(&pool.erasure_code_profile)?.clone();
            let profile = ec::Profile::normalize(&mut settings).ok()?;
            Some((*id, pool.pg_num, profile.k))
        })
        .collect();
    if coded.is_empty() {
        return;
    }
    let bare = OsdMap { primary_temp: BTreeMap::new(), ..map.clone() };
    let mut changes: Vec<(PgId, Option<OsdId>)> = Vec::new();
    for (pool, pg_num, k) in coded {
        for seed in 0..pg_num {
            let pg = PgId { pool, seed };
            let placed = bare.pg_to_up_acting(pg);
            let leads = |(position, osd): (usize, &OsdId)| {
                ((position == 0 || position >= k) && osd.is_some()).then_some(*osd)
            };
            let able: Vec<OsdId> = placed.acting.iter().enumerate().filter_map(leads).collect();
            let wanted = match able.first() {
                Some(first) if !able.contains(&placed.acting_primary) => Some(*first),
                _ => None,
            };
            if map.primary_temp.get(&pg).copied() != wanted {
                changes.push((pg, wanted));
            }
        }
    }
    for (pg, wanted) in changes {
        match wanted {
            Some(osd) => drop(p.osd_mut().primary_temp.insert(pg, osd)),
            None => drop(p.osd_mut().primary_temp.remove(&pg)),
        }
    }
}

/// Removes temporary placements that are pointless by now (Ceph: `OSDMap::clean_temps`). Does
/// nothing if the batch does not change the map.
pub fn clean_temps(p: &mut Pending) {
    if !p.changes_osd_map() || p.osd().pg_temp.is_empty() && p.osd().primary_temp.is_empty() {
        return;
    }
    let map = p.osd();
    let pointless: Vec<PgId> = map
        .pg_temp
        .iter()
        .filter(|(pg, osds)| {
            let Some(pool) = map.pools.get(&pg.pool) else { return true };
            pg.seed >= pool.pg_num
                || osds.iter().all(|o| map.is_down(*o))
                || osds.len() > usize::from(pool.size)
                || map.pg_to_raw_up(**pg).0 == **osds
        })
        .map(|(pg, _)| *pg)
        .collect();
    let without_primary: Vec<PgId> =
        map.primary_temp.iter().filter(|(_, o)| map.is_down(**o)).map(|(pg, _)| *pg).collect();
    for pg in pointless {
        p.osd_mut().pg_temp.remove(&pg);
    }
    for pg in without_primary {
        p.osd_mut().primary_temp.remove(&pg);
    }
}
