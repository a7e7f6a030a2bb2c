//! What metadata servers (MDS) tell: that they live, and what they ask for.

use super::Inner;
use super::session::Session;
use crate::commands::pool;
use crate::mds_map::{self, Reply};
use crate::state::ClusterState;
use denc::{Encode, Features};
use messages::{MdsBeacon, MdsLoadTargets, MdsMapMsg, Paxos, RemoveSnaps};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};
use types::fsmap::MdsMap;
use types::{EntityType, PoolId, SnapId};

/// The map of a metadata server that holds no rank: without a file system, with itself if it
/// waits.
pub(super) fn map_without_rank(state: &ClusterState, gid: Option<u64>) -> MdsMap {
    let mut map = MdsMap::none();
    map.epoch = state.fs.epoch;
    let waits = gid.and_then(|gid| Some((gid, state.fs.standby_daemons.get(&gid)?)));
    if let Some((gid, info)) = waits {
        map.mds_info.insert(gid, info.clone());
        map.epoch = state.fs.standby_epochs.get(&gid).copied().unwrap_or(map.epoch);
    }
    map
}

impl Inner {
    fn is_mds(&self, session: &Session) -> bool {
        let is = session.name.kind == EntityType::MDS && session.may("mds", "x");
        if !is {
            tracing::warn!(peer = %session.name, "a message of an MDS from a peer that is none");
        }
        is
    }

    pub(super) fn mds_beacon(&self, session: &Rc<Session>, m: MdsBeacon, tid: u64) {
        if !self.is_mds(session) || m.fsid != self.committed().monmap.fsid {
            return;
        }
        let addrs = session.conn.peer_addrs();
        if addrs.0.iter().all(|a| a.port() == 0) {
            tracing::warn!(peer = %session.name, "a beacon from an address without a port");
            return;
        }
        {
            let mut watch = self.mds_watch.borrow_mut();
            watch.beacons.heard(m.gid);
            watch.health.insert(m.gid, m.health.clone());
        }
        let (s, inner, asked) = (session.clone(), self.me(), m.clone());
        self.change(
            |p| {
                let (reply, lines) = mds_map::beacon(p, &self.conf.borrow(), &asked, &addrs);
                for (prio, text) in lines {
                    self.log_line(p, prio, text);
                }
                reply
            },
            move |reply| {
                let (Ok(reply), Some(inner)) = (reply, inner) else { return };
                match reply {
                    Reply::None => {}
                    Reply::Beacon(epoch) => {
                        let answer = MdsBeacon {
                            paxos: Paxos(epoch.0.into()),
                            fsid: m.fsid,
                            gid: m.gid,
                            state: m.state,
                            seq: m.seq,
                            name: m.name,
                            features: types::features::SUPPORTED.0,
                            ..MdsBeacon::default()
                        };
                        inner.send(&s.conn, &answer, tid);
                    }
                    Reply::NotInMap => {
                        let map = MdsMap::none();
                        let answer = MdsMapMsg {
                            fsid: m.fsid,
                            epoch: map.epoch,
                            map: map.to_bytes(s.conn.features()),
                            fs_name: String::new(),
                        };
                        inner.send(&s.conn, &answer, tid);
                    }
                }
            },
        );
    }

    pub(super) fn mds_load_targets(&self, session: &Rc<Session>, m: &MdsLoadTargets) {
        if !self.is_mds(session) {
            return;
        }
        self.change_and_forget(|p| {
            let holds = p.state().fs.daemon(m.gid).is_some_and(|i| i.rank >= 0);
            if !holds {
                return;
            }
            let mut e = mds_map::Edit::new(p, &self.conf.borrow());
            if let Some(info) = e.daemon(m.gid) {
                info.export_targets = m.targets.clone();
            }
            e.finish();
        });
    }

    /// Snapshots of a file system that nothing refers to any more.
    pub(super) fn remove_snaps(&self, session: &Rc<Session>, m: RemoveSnaps, tid: u64) {
        // The profile of metadata servers has this command, and no other right to write.
        if !session.allows("osd", "osd pool rmsnap", &BTreeMap::new(), "rw") {
            tracing::warn!(peer = %session.name, "may not remove snapshots");
            return;
        }
        let (s, inner, asked) = (session.clone(), self.me(), m.snaps.clone());
        self.change(
            |p| {
                for (id, snaps) in &asked {
                    let id = PoolId(i64::from(*id));
                    for &snap in snaps {
                        if p.state().snap_is_removed(id, SnapId(snap)) || p.removes_snap(id, snap) {
                            continue;
                        }
                        if !p.osd().pools.contains_key(&id) {
                            break;
                        }
                        let epoch = p.osd_epoch();
                        pool::change(p, id, |known| {
                            known.flags |= types::pool::flag::SELFMANAGED_SNAPS;
                            known.snap_seq = known.snap_seq.max(SnapId(snap));
                            known.snap_epoch = epoch;
                        });
                        p.remove_snap(id, snap);
                    }
                }
            },
            move |r| {
                if let (Ok(()), Some(inner)) = (r, inner) {
                    inner.send(&s.conn, &m, tid);
                }
            },
        );
    }

    /// Metadata servers that stopped sending are replaced; ranks are filled.
    pub(super) fn check_mds(&self) {
        if self.committed().fs.mds_roles.is_empty() {
            return;
        }
        let seconds = |name| {
            Duration::try_from_secs_f64(self.conf.borrow().f64(name)).unwrap_or(Duration::MAX)
        };
        let (grace, pause) = (seconds("mds_beacon_grace"), seconds("mds_beacon_interval"));
        // A round in time is no sign of a monitor that was held up, however short the grace is.
        let rounds = Duration::from_secs(2 * self.conf.borrow().u64("mon_tick_interval"));
        let away_after = grace.saturating_sub(pause).max(rounds);
        self.change_and_forget(|p| {
            let known: Vec<u64> = p.state().fs.mds_roles.keys().copied().collect();
            let now = Instant::now();
            let (silent, replace) = {
                let mut watch = self.mds_watch.borrow_mut();
                watch.health.retain(|gid, _| known.contains(gid));
                let latest = watch.beacons.latest(now);
                let replace = latest.is_some_and(|age| age < pause.max(grace / 2));
                (watch.beacons.silent(&known, now, grace, away_after), replace)
            };
            let round = mds_map::round(p, &self.conf.borrow(), |g| silent.contains(&g), replace);
            for (prio, text) in round {
                self.log_line(p, prio, text);
            }
        });
    }

    /// The map that a subscriber to `mdsmap` or `mdsmap.ID` gets; `None` if there is none for it.
    pub(super) fn mds_map_for(
        &self,
        state: &ClusterState,
        s: &Session,
        what: &str,
    ) -> Option<MdsMap> {
        if s.name.kind == EntityType::MDS {
            let addrs = s.conn.peer_addrs();
            let gid = state.fs.daemons().find(|i| i.addrs == addrs).map(|i| i.gid);
            let role = gid.and_then(|gid| state.fs.mds_roles.get(&gid)).copied().unwrap_or(-1);
            return match state.fs.filesystems.get(&role) {
                Some(fs) => Some(fs.map.clone()),
                None => Some(map_without_rank(state, gid)),
            };
        }
        let id = match what.strip_prefix("mdsmap.") {
            Some(id) => id.parse().ok()?,
            None => state.fs.legacy_client_fscid,
        };
        s.seen(state.clone()).fs.filesystems.get(&id).map(|fs| fs.map.clone())
    }
}

/// An MDS map as bytes for a peer.
pub(super) fn message(state: &ClusterState, map: &MdsMap, f: Features) -> MdsMapMsg {
    MdsMapMsg {
        fsid: state.monmap.fsid,
        epoch: map.epoch,
        map: map.to_bytes(f),
        fs_name: if map.enabled { map.fs_name.clone() } else { String::new() },
    }
}
