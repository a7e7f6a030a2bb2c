//! What monitors are told, and what their leader makes of it: one map after the other.

use std::collections::BTreeMap;
use std::rc::Rc;

use pg::{MapRef, MapView, MergeMeta, PoolView};
use types::{Epoch, Eversion, OsdId, PgId, PoolId, SnapId};

use crate::bug::Bug;
use crate::map::{MapModel, OsdState};

/// What OSDs, operators and faults tell the monitors.
#[derive(Clone, Debug)]
pub enum MonMsg {
    /// A process wants to be up; whether its disk is a new one, and which map it has.
    Boot(OsdId, u64, bool, Epoch),
    /// A process is silent, or (for sure) dead.
    Failed(OsdId, u64, bool),
    /// `MOSDAlive`: up to which map it knows itself alive.
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
    /// Operator: change `pg_num`; `pgp_num` stays as it is, or goes first when PGs are to be joined
    /// (one at a time).
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

/// What becomes of the monitors' state.
#[derive(Debug)]
pub struct Draft {
    /// New maps.
    pub maps: Vec<Rc<MapModel>>,
    /// Older maps are not handed out any more.
    pub oldest: Epoch,
}

/// What the monitors have agreed on, and how they decide. Which of them know it is
/// [`crate::quorum`]'s part.
#[derive(Debug)]
pub struct Monitor {
    /// Older maps are not handed out any more. OSDs have their own.
    pub oldest: Epoch,
    /// Every epoch from 1 on.
    history: Vec<Rc<MapModel>>,
    /// What the manager was told; it is not the monitors' to keep.
    ready: BTreeMap<PgId, (Epoch, Eversion, Vec<OsdId>)>,
    bug: Bug,
}

impl Monitor {
    /// A cluster of OSDs that have not started.
    pub fn new(osds: usize, bug: Bug) -> Self {
        Self {
            oldest: Epoch(1),
            history: vec![Rc::new(MapModel::first(osds))],
            ready: BTreeMap::new(),
            bug,
        }
    }

    /// What a leader would make of messages. Nothing of it is agreed on.
    pub fn draft(&mut self, messages: impl IntoIterator<Item = MonMsg>) -> Draft {
        let (agreed, oldest) = (self.history.len(), self.oldest);
        messages.into_iter().for_each(|msg| self.handle(msg));
        Draft {
            maps: self.history.split_off(agreed),
            oldest: std::mem::replace(&mut self.oldest, oldest),
        }
    }

    /// A map is agreed on. It follows on what was.
    pub fn commit(&mut self, map: &Rc<MapModel>) {
        assert_eq!(map.epoch, self.map().epoch.next(), "an agreed map follows on the one before");
        self.history.push(map.clone());
    }

    /// Maps before this one go.
    pub fn trim(&mut self, oldest: Epoch) {
        self.oldest = self.oldest.max(oldest);
    }

    /// Whether a process asks to be up that had not even heard that it, or a later one of its
    /// number, was up.
    pub fn is_late_boot(&self, msg: &MonMsg) -> bool {
        let MonMsg::Boot(osd, incarnation, _, has) = *msg else { return false };
        let map = self.map();
        map.up_from(osd) > has && map.incarnation(osd) != Some(incarnation)
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

    fn handle(&mut self, msg: MonMsg) {
        let map = self.map().clone();
        // It was asked before, and what became of it may be over.
        if self.is_late_boot(&msg) && self.bug != Bug::LateBoot {
            return;
        }
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
            // Each monitor hands out the maps that it has.
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
                let Some(pool) = map
                    .pools
                    .get(&id)
                    .filter(|p| (p.size, p.min_size) != (size, min_size))
                    .copied()
                else {
                    return;
                };
                self.publish(|m| {
                    m.pools.insert(id, PoolView { size, min_size, ..pool });
                });
            }
            MonMsg::Boot(osd, ..) if map.osd(osd).is_none() => {}
            MonMsg::Boot(osd, incarnation, new_disk, _) => {
                if map.osd(osd).is_some_and(|o| o.up && o.incarnation == incarnation) {
                    return;
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
                    self.publish(|m| m.osds[osd.0 as usize].up_thru = epoch);
                }
            }
            MonMsg::PgTemp(pg, want, _) => {
                let fits = map.pools.get(&pg.pool).is_some_and(|p| want.len() <= p.size as usize);
                if fits && map.pg_temp.get(&pg).cloned().unwrap_or_default() != want {
                    self.publish(|m| {
                        if want.is_empty() {
                            m.pg_temp.remove(&pg)
                        } else {
                            m.pg_temp.insert(pg, want)
                        };
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
                let Some(pool) = map.pools.get(&id).filter(|p| p.pg_num != n && n > 0).copied()
                else {
                    return;
                };
                if n < pool.pg_num {
                    if pool.pg_num_pending != pool.pg_num {
                        return;
                    }
                    let pending = pool.pg_num - 1;
                    self.publish(|m| {
                        let pgp_num =
                            m.pgp_num.get(&id).copied().unwrap_or(pool.pg_num).min(pending);
                        m.pgp_num.insert(id, pgp_num);
                        m.pools.insert(id, PoolView { pg_num_pending: pending, ..pool });
                        m.pending_since = m.epoch;
                    });
                    return;
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
    }

    /// Lowers `pg_num` if both PGs that are to be joined were ready on OSDs that still have them.
    fn join_ready(&mut self, id: PoolId) {
        let map = self.map().clone();
        let Some(pool) = map.pools.get(&id).filter(|p| p.pg_num_pending < p.pg_num).copied() else {
            return;
        };
        let source = PgId { pool: id, seed: pool.pg_num - 1 };
        let target = source.merge_target(pool.pg_num, pool.pg_num - 1).expect("the last one goes");
        let (Some(s), Some(t)) = (self.ready.get(&source), self.ready.get(&target)) else { return };
        let alive = |o: &OsdId| map.is_up(*o) && map.up_from(*o) <= s.0.min(t.0);
        if s.0 < map.pending_since
            || t.0 < map.pending_since
            || s.2 != t.2
            || !s.2.iter().all(alive)
        {
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
        // As the monitors do: no OSD acts beyond the size.
        let MapModel { pg_temp, pools, .. } = &mut map;
        pg_temp
            .retain(|pg, want| pools.get(&pg.pool).is_some_and(|p| want.len() <= p.size as usize));
        self.history.push(Rc::new(map));
    }
}
