//! A monitor: one map after the other. That it is away for a while, and that messages are lost with a session, is the
//! world's part.

use std::collections::BTreeMap;
use std::rc::Rc;

use pg::{MapRef, MapView, Mapping, MergeMeta, PoolView};
use types::{Epoch, Eversion, IntervalSet, OsdId, PgId, PoolId, SnapId};

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
    /// Snapshots of pools.
    pub snaps: BTreeMap<PoolId, PoolSnaps>,
}

impl MapModel {
    /// An OSD, if it is in the map.
    pub fn osd(&self, osd: OsdId) -> Option<&OsdState> {
        self.osds.get(usize::try_from(osd.0).ok()?).filter(|o| o.exists)
    }

    /// Incarnation of an OSD if it is up.
    pub fn incarnation(&self, osd: OsdId) -> Option<u64> {
        self.osd(osd).filter(|o| o.up).map(|o| o.incarnation)
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
        let mut ranked: Vec<_> = (0..self.osds.len())
            .filter(|&i| self.osds[i].exists && self.osds[i].is_in)
            .map(|i| (mix(mix(pg.pool.0 as u64) ^ u64::from(seed) << 20 ^ i as u64), OsdId(i as i32)))
            .collect();
        ranked.sort();
        let up: Vec<_> = ranked.iter().take(pool.size as usize).map(|r| r.1).filter(|&o| self.is_up(o)).collect();
        let temp: Vec<_> = self.pg_temp.get(&pg).into_iter().flatten().copied().filter(|&o| self.is_up(o)).collect();
        let acting = if temp.is_empty() { up.clone() } else { temp };
        Mapping { up_primary: up.first().copied(), primary: acting.first().copied(), up, acting }
    }
}

/// What OSDs and faults tell the monitor.
#[derive(Clone, Debug)]
pub enum MonMsg {
    /// A process started; whether its disk is a new one.
    Boot(OsdId, u64, bool),
    /// A process is silent, or (for sure) dead.
    Failed(OsdId, u64, bool),
    /// `MOSDAlive`.
    UpThru(OsdId, u64, Epoch),
    /// `MOSDPGTemp`.
    PgTemp(PgId, Vec<OsdId>, Epoch),
    /// Operator: take an OSD out, or in again.
    SetIn(OsdId, bool),
    /// Operator: set or clear `nobackfill`.
    NoBackfill(bool),
    /// Operator: set or clear `norecover`.
    NoRecover(bool),
    /// The store of an OSD is full, or not any more.
    Full(OsdId, bool),
    /// Operator: the data of an OSD that is down are lost.
    Lost(OsdId),
    /// An OSD wants all maps from this one on.
    Subscribe(OsdId, Epoch),
    /// Operator: an OSD of this number is to come.
    Add(OsdId),
    /// Operator: an OSD that is down goes for ever.
    Purge(OsdId),
    /// Operator: another size and `min_size`.
    Size(PoolId, u32, u32),
    /// Operator: create a pool.
    CreatePool(PoolId, PoolView),
    /// Operator: change `pg_num`; `pgp_num` stays as it is, or goes first when PGs are to be joined (one at a time).
    PgNum(PoolId, u32),
    /// A PG is ready to be joined: in which map, at which version, on which OSDs.
    Ready(PgId, Epoch, Eversion, Vec<OsdId>),
    /// Operator: make `pgp_num` what `pg_num` is.
    PgpNum(PoolId),
    /// Operator: delete a pool.
    DeletePool(PoolId),
    /// Operator: a snapshot of a pool.
    MakeSnap(PoolId),
    /// Operator: remove a snapshot.
    RemoveSnap(PoolId, SnapId),
    /// All PGs have trimmed a snapshot.
    SnapPurged(PoolId, SnapId),
    /// Old maps go, up to this one.
    Trim(Epoch),
}

/// The monitor.
#[derive(Debug)]
pub struct Monitor {
    /// Older maps are not handed out any more. OSDs have their own.
    pub oldest: Epoch,
    /// Every epoch from 1 on.
    pub history: Vec<Rc<MapModel>>,
    /// Since when PGs wait to be joined.
    pending_since: Epoch,
    ready: BTreeMap<PgId, (Epoch, Eversion, Vec<OsdId>)>,
}

impl Monitor {
    /// A cluster of OSDs that have not started.
    pub fn new(osds: usize) -> Self {
        let osds = vec![OsdState { exists: true, is_in: true, ..OsdState::default() }; osds];
        let map = MapModel { epoch: Epoch(1), osds, pools: BTreeMap::new(), pg_temp: BTreeMap::new(), nobackfill: false, norecover: false, pgp_num: BTreeMap::new(), snaps: BTreeMap::new() };
        Self { oldest: Epoch(1), history: vec![Rc::new(map)], pending_since: Epoch(0), ready: BTreeMap::new() }
    }

    /// The newest map.
    pub fn map(&self) -> &Rc<MapModel> {
        self.history.last().expect("there is always a first map")
    }

    /// A map by epoch.
    pub fn at(&self, epoch: Epoch) -> Option<Rc<MapModel>> {
        self.history.get((epoch.0 as usize).checked_sub(1)?).cloned()
    }

    /// A map by epoch, for a PG.
    pub fn view(&self, epoch: Epoch) -> Option<MapRef> {
        self.at(epoch).map(|m| m as MapRef)
    }

    /// Takes a message. Returns how many new epochs there are.
    pub fn handle(&mut self, msg: MonMsg) -> usize {
        let before = self.history.len();
        let map = self.map().clone();
        match msg {
            MonMsg::NoBackfill(on) => {
                if map.nobackfill != on {
                    self.publish(|m| m.nobackfill = on);
                }
            }
            MonMsg::NoRecover(on) => {
                if map.norecover != on {
                    self.publish(|m| m.norecover = on);
                }
            }
            MonMsg::Full(osd, full) => {
                if map.osd(osd).is_some_and(|o| o.full != full) {
                    self.publish(|m| m.osds[osd.0 as usize].full = full);
                }
            }
            MonMsg::Lost(osd) => {
                if !map.is_up(osd) {
                    // As Ceph does: what it was thought to have served is over.
                    self.publish(|m| {
                        let epoch = m.epoch;
                        m.osds[osd.0 as usize].lost_at = epoch;
                    });
                }
            }
            // The world hands out maps.
            MonMsg::Subscribe(..) => {}
            MonMsg::Trim(oldest) => self.oldest = self.oldest.max(oldest),
            MonMsg::Add(osd) => {
                if map.osd(osd).is_none() {
                    self.publish(|m| {
                        let at = osd.0 as usize;
                        m.osds.resize(m.osds.len().max(at + 1), OsdState::default());
                        let o = &mut m.osds[at];
                        (o.exists, o.is_in, o.full) = (true, true, false);
                    });
                }
            }
            MonMsg::Purge(osd) => {
                if map.osd(osd).is_some_and(|o| !o.up) {
                    self.publish(|m| m.osds[osd.0 as usize].exists = false);
                }
            }
            MonMsg::Size(id, size, min_size) => {
                let Some(pool) = map.pools.get(&id).filter(|p| (p.size, p.min_size) != (size, min_size)).copied() else { return 0 };
                self.publish(|m| {
                    m.pools.insert(id, PoolView { size, min_size, ..pool });
                });
            }
            MonMsg::Boot(osd, ..) if map.osd(osd).is_none() => {}
            MonMsg::Boot(osd, incarnation, new_disk) => {
                if map.osd(osd).is_some_and(|o| o.up && o.incarnation == incarnation) {
                    return 0;
                }
                if map.is_up(osd) {
                    self.publish(|m| m.osds[osd.0 as usize].up = false);
                }
                self.publish(|m| {
                    let epoch = m.epoch;
                    let o = &mut m.osds[osd.0 as usize];
                    o.up = true;
                    o.incarnation = incarnation;
                    o.up_from = epoch;
                    if new_disk {
                        o.lost_at = epoch;
                    }
                });
            }
            MonMsg::Failed(osd, incarnation, dead) => {
                if map.incarnation(osd) == Some(incarnation) {
                    self.publish(|m| {
                        let epoch = m.epoch;
                        let o = &mut m.osds[osd.0 as usize];
                        o.up = false;
                        if dead {
                            o.dead_epoch = epoch;
                        }
                    });
                }
            }
            MonMsg::UpThru(osd, incarnation, epoch) => {
                if map.incarnation(osd) == Some(incarnation) && map.up_thru(osd) < epoch {
                    // Up to the present: the process is alive now.
                    let now = map.epoch;
                    self.publish(|m| m.osds[osd.0 as usize].up_thru = now);
                }
            }
            MonMsg::PgTemp(pg, want, _) => {
                let fits = map.pools.get(&pg.pool).is_some_and(|p| want.len() <= p.size as usize);
                if fits && map.pg_temp.get(&pg).cloned().unwrap_or_default() != want {
                    self.publish(|m| {
                        if want.is_empty() { m.pg_temp.remove(&pg) } else { m.pg_temp.insert(pg, want) };
                    });
                }
            }
            MonMsg::SetIn(osd, is_in) => {
                if map.osd(osd).is_some_and(|o| o.is_in != is_in) {
                    self.publish(|m| m.osds[osd.0 as usize].is_in = is_in);
                }
            }
            MonMsg::CreatePool(id, mut view) => self.publish(|m| {
                view.created = m.epoch;
                m.pools.insert(id, view);
            }),
            MonMsg::PgNum(id, n) => {
                let Some(pool) = map.pools.get(&id).filter(|p| p.pg_num != n && n > 0).copied() else { return 0 };
                if n < pool.pg_num {
                    if pool.pg_num_pending != pool.pg_num {
                        return 0;
                    }
                    let pending = pool.pg_num - 1;
                    self.publish(|m| {
                        let pgp_num = m.pgp_num.get(&id).copied().unwrap_or(pool.pg_num).min(pending);
                        m.pgp_num.insert(id, pgp_num);
                        m.pools.insert(id, PoolView { pg_num_pending: pending, ..pool });
                    });
                    self.pending_since = self.map().epoch;
                    self.ready.clear();
                    return self.history.len() - before;
                }
                self.publish(|m| {
                    m.pgp_num.entry(id).or_insert(pool.pg_num);
                    m.pools.insert(id, PoolView { pg_num: n, pg_num_pending: n, ..pool });
                });
            }
            MonMsg::Ready(pgid, epoch, version, mut acting) => {
                acting.sort();
                self.ready.insert(pgid, (epoch, version, acting));
                self.join_ready(pgid.pool);
            }
            MonMsg::PgpNum(id) => {
                let joining = map.pools.get(&id).is_some_and(|p| p.pg_num_pending != p.pg_num);
                if map.pgp_num.contains_key(&id) && !joining {
                    self.publish(|m| {
                        m.pgp_num.remove(&id);
                    });
                }
            }
            MonMsg::MakeSnap(id) => {
                if map.pools.contains_key(&id) {
                    self.publish(|m| m.snaps.entry(id).or_default().make());
                }
            }
            MonMsg::RemoveSnap(id, snap) => {
                if map.snaps.get(&id).is_some_and(|s| s.live.contains(&snap)) {
                    self.publish(|m| m.snaps.entry(id).or_default().remove(snap));
                }
            }
            MonMsg::SnapPurged(id, snap) => {
                if map.removed_snaps(id).contains(snap.0) {
                    self.publish(|m| m.snaps.entry(id).or_default().removed.remove(snap.0, 1));
                }
            }
            MonMsg::DeletePool(id) => self.publish(|m| {
                m.pools.remove(&id);
                m.pgp_num.remove(&id);
                m.pg_temp.retain(|pg, _| pg.pool != id);
            }),
        }
        self.history.len() - before
    }

    /// Lowers `pg_num` if both PGs that are to be joined were ready on OSDs that still have them.
    fn join_ready(&mut self, id: PoolId) {
        let map = self.map().clone();
        let Some(pool) = map.pools.get(&id).filter(|p| p.pg_num_pending < p.pg_num).copied() else { return };
        let source = PgId { pool: id, seed: pool.pg_num - 1 };
        let target = source.merge_target(pool.pg_num, pool.pg_num - 1).expect("the last one goes");
        let (Some(s), Some(t)) = (self.ready.get(&source), self.ready.get(&target)) else { return };
        let alive = |o: &OsdId| map.is_up(*o) && map.up_from(*o) <= s.0.min(t.0);
        if s.0 < self.pending_since || t.0 < self.pending_since || s.2 != t.2 || !s.2.iter().all(alive) {
            return;
        }
        let merged = Some(MergeMeta { source, source_version: s.1, target_version: t.1 });
        self.publish(|m| {
            m.pools.insert(id, PoolView { pg_num: pool.pg_num - 1, merged, ..pool });
            m.pg_temp.remove(&source);
        });
    }

    fn publish(&mut self, change: impl FnOnce(&mut MapModel)) {
        let mut map = MapModel::clone(self.map());
        map.epoch = Epoch(map.epoch.0 + 1);
        change(&mut map);
        // As the monitors do: nobody acts beyond the size.
        let MapModel { pg_temp, pools, .. } = &mut map;
        pg_temp.retain(|pg, want| pools.get(&pg.pool).is_some_and(|p| want.len() <= p.size as usize));
        self.history.push(Rc::new(map));
    }
}
