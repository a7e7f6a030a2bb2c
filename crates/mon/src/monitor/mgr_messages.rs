//! What the manager tells: that it lives, and what it knows.

use super::session::Session;
use super::{Inner, now};
use crate::state::{Change, Pending};
use denc::Decode;
use messages::MgrDigest;
use std::rc::Rc;
use types::log::LogPriority;
use types::{EntityType, IntervalSet, MgrMap, ServiceMap};

impl Inner {
    pub(super) fn mgr_digest(&self, session: &Rc<Session>, m: MgrDigest) {
        if session.name.kind != EntityType::MGR || session.name.id != m.name || !session.may("mgr", "w") {
            tracing::warn!(peer = %session.name, "a digest from somebody who may not send it");
            return;
        }
        let state = self.committed();
        let active = state.mgr.active_gid;
        // One of the active manager's name was started in its place: nobody waits for the process that is gone.
        let other = active != m.gid && state.mgr.active_name != m.name;
        if active != 0 && other && state.mgr.available && self.mgr_is_fresh() {
            tracing::debug!("a second manager, {}, waits", m.name);
            return;
        }
        self.mgr_beacon.set(Some(now()));
        let digest = match m.pg_digest.is_empty() {
            true => None,
            false => match pgmap::Digest::from_bytes(&m.pg_digest) {
                Ok(d) => Some(Rc::new(d)),
                Err(e) => {
                    tracing::warn!("unreadable digest: {e}");
                    None
                }
            },
        };
        {
            let mut stats = self.stats.borrow_mut();
            stats.health = m.health.clone();
            stats.stamp = now();
            if !m.commands.is_empty() {
                match serde_json::from_slice::<serde_json::Map<_, _>>(&m.commands) {
                    Ok(commands) => stats.commands = Rc::new(commands),
                    Err(e) => tracing::warn!("unreadable command descriptions of the manager: {e}"),
                }
            }
            if let Some(d) = &digest {
                stats.digest = Some(d.clone());
            }
        }
        let services = match m.service_map.is_empty() {
            true => None,
            false => ServiceMap::from_bytes(&m.service_map).ok(),
        };
        self.change_and_forget(|p| {
            let old = p.state().mgr.clone();
            let mut map = MgrMap {
                active_gid: m.gid,
                active_name: m.name.clone(),
                active_addrs: m.addrs.clone(),
                available: m.available,
                services: m.services.clone(),
                active_mgr_features: session.conn.features().0,
                ..(*old).clone()
            };
            if map != *old {
                if old.active_gid != m.gid {
                    map.active_change = p.now();
                    self.log_line(p, LogPriority::INFO, format!("Activating manager daemon {}", m.name));
                }
                map.epoch = old.epoch.next();
                p.put(Change::MgrMap(Box::new(map)));
            }
            if p.state().mgr_metadata.get(&m.name) != Some(&m.metadata) {
                p.put(Change::MgrMetadata(m.name.clone(), Some(m.metadata.clone())));
            }
            if let Some(map) = services
                && map.epoch > p.state().services.epoch
            {
                p.put(Change::ServiceMap(Box::new(map)));
            }
            if let Some(d) = digest {
                self.prune_purged_snaps(p, &d);
                self.check_quotas(p, &d);
                self.note_created(p, &d);
                self.step_pg_nums(p, &d);
            }
        });
    }

    fn mgr_is_fresh(&self) -> bool {
        let grace = self.conf.borrow().u64("mon_mgr_beacon_grace");
        self.mgr_beacon.get().is_some_and(|t| now().since(t).as_secs() < grace)
    }

    /// A manager that stopped sending is not available any more.
    pub(super) fn check_mgr(&self) {
        let state = self.committed();
        if !state.mgr.available || self.mgr_is_fresh() {
            return;
        }
        if self.mgr_beacon.get().is_none() {
            // This monitor has just started: the manager gets its grace from now on.
            self.mgr_beacon.set(Some(now()));
            return;
        }
        self.change_and_forget(|p| {
            let name = p.state().mgr.active_name.clone();
            let mut map = (*p.state().mgr).clone();
            map.epoch = map.epoch.next();
            map.available = false;
            map.active_gid = 0;
            map.active_name = String::new();
            map.active_addrs = Default::default();
            map.active_change = p.now();
            p.put(Change::MgrMap(Box::new(map)));
            self.log_line(p, LogPriority::WARN, format!("Manager daemon {name} is unresponsive. No standby daemons available."));
        });
    }

    /// Snapshots of which no OSD has anything left leave the map.
    fn prune_purged_snaps(&self, p: &mut Pending, digest: &pgmap::Digest) {
        let most = self.conf.borrow().u64("mon_max_snap_prune_per_epoch");
        let purged: Vec<_> = p
            .osd()
            .removed_snaps_queue
            .iter()
            .filter_map(|(pool, queue)| {
                let both = queue.intersection(digest.purged_snaps.get(pool)?);
                let mut some = IntervalSet::new();
                let mut left = most;
                for (start, len) in both.iter() {
                    let take = len.min(left);
                    if take > 0 {
                        some.insert(start, take);
                    }
                    left -= take;
                }
                (!some.is_empty()).then_some((*pool, some))
            })
            .collect();
        for (pool, snaps) in purged {
            p.purge_snaps(pool, &snaps);
        }
    }

    /// Pools come nearer to the number of groups that they should have.
    fn step_pg_nums(&self, p: &mut Pending, digest: &pgmap::Digest) {
        for (id, step) in crate::pg_num::steps(p.osd(), digest, &self.conf.borrow()) {
            let epoch = p.osd_epoch();
            if let crate::pg_num::Step::Unmap(groups) = &step {
                for pg in groups {
                    p.osd_mut().pg_upmap.remove(pg);
                    p.osd_mut().pg_upmap_items.remove(pg);
                }
            }
            if let Some(pool) = p.osd_mut().pools.get_mut(&id) {
                crate::pg_num::take(pool, step, epoch);
            }
        }
    }

    /// Groups that were active once exist.
    fn note_created(&self, p: &mut Pending, digest: &pgmap::Digest) {
        let waiting: Vec<_> = digest
            .active_pgs
            .iter()
            .filter(|pg| p.state().creating.get(&pg.pool).is_some_and(|seeds| seeds.contains(&pg.seed)))
            .copied()
            .collect();
        if !waiting.is_empty() {
            super::osd_messages::note_created(p, waiting);
        }
    }
}
