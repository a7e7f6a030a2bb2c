//! What the manager tells: that it lives, and what it knows.

use super::Inner;
use super::clock::now;
use super::session::Session;
use crate::mgr_map;
use crate::state::{Change, ManagerCommands, Pending};
use denc::Decode;
use messages::{MgrBeacon, MgrDigest};
use std::rc::Rc;
use std::time::{Duration, Instant};
use types::log::LogPriority;
use types::{EntityType, IntervalSet, ServiceMap};

impl Inner {
    /// Whether a session is that manager's.
    fn is_manager(&self, session: &Session, name: &str) -> bool {
        let is = session.name.kind == EntityType::MGR
            && session.name.id == name
            && session.may("mgr", "w");
        if !is {
            tracing::warn!(peer = %session.name, "a message of a manager, from a peer that is none or another one");
        }
        is
    }

    pub(super) fn mgr_beacon(&self, session: &Rc<Session>, mut m: MgrBeacon) {
        if !self.is_manager(session, &m.name) || m.fsid != self.committed().monmap.fsid {
            return;
        }
        self.mgr_watch.borrow_mut().heard(m.gid);
        // Its work is done over the connections that have the address of this one.
        m.clients = vec![session.conn.peer_addrs()];
        m.features = session.conn.features().0;
        self.change_and_forget(|p| {
            for (prio, text) in mgr_map::beacon(p, &self.conf.borrow(), &m) {
                self.log_line(p, prio, text);
            }
        });
    }

    pub(super) fn mgr_digest(&self, session: &Rc<Session>, m: MgrDigest) {
        if !self.is_manager(session, &m.name) {
            return;
        }
        if self.committed().mgr.active_gid != m.gid {
            tracing::debug!("a digest of {}, which is not active", m.name);
            return;
        }
        self.mgr_watch.borrow_mut().heard(m.gid);
        self.manager_is_at(m.gid, m.session, &session.conn);
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
            if let Some(d) = &digest {
                stats.digest = Some(d.clone());
            }
        }
        let services = match m.service_map.is_empty() {
            true => None,
            false => ServiceMap::from_bytes(&m.service_map).ok(),
        };
        self.change_and_forget(|p| {
            if p.state().mgr.active_gid != m.gid {
                return;
            }
            if m.available && !p.state().mgr.available {
                self.log_line(
                    p,
                    LogPriority::INFO,
                    format!("Manager daemon {} is now available", m.name),
                );
            }
            mgr_map::change(p, |map| {
                map.active_addrs = m.addrs.clone();
                map.available = m.available;
                map.services = m.services.clone();
                map.active_mgr_features = session.conn.features().0;
                map.clients = mgr_map::clients(&[session.conn.peer_addrs()]);
            });
            if p.state().mgr_metadata.get(&m.name) != Some(&m.metadata) {
                p.put(Change::MgrMetadata(m.name.clone(), Some(m.metadata.clone())));
            }
            if !m.commands.is_empty() && *p.state().manager_commands.json() != m.commands {
                match ManagerCommands::read(m.commands.clone()) {
                    Ok(_) => p.put(Change::ManagerCommands(m.commands.clone())),
                    Err(e) => tracing::warn!("unreadable command descriptions of the manager: {e}"),
                }
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
                if let Some(line) = crate::moves::step(p, &d) {
                    self.log_line(p, LogPriority::INFO, line);
                }
                self.step_pg_nums(p, &d);
            }
        });
    }

    /// Managers that stopped sending are replaced.
    pub(super) fn check_mgr(&self) {
        let (grace, pause) = {
            let conf = self.conf.borrow();
            (
                Duration::from_secs(conf.u64("mon_mgr_beacon_grace")),
                Duration::from_secs(conf.u64("mgr_tick_period")),
            )
        };
        self.change_and_forget(|p| {
            let map = p.state().mgr.clone();
            let known: Vec<u64> = map
                .standbys
                .keys()
                .copied()
                .chain((map.active_gid != 0).then_some(map.active_gid))
                .collect();
            let silent = self.mgr_watch.borrow_mut().silent(
                &known,
                Instant::now(),
                grace,
                grace.saturating_sub(pause),
            );
            for (prio, text) in mgr_map::round(p, &self.conf.borrow(), |gid| silent.contains(&gid))
            {
                self.log_line(p, prio, text);
            }
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

    /// Pools come nearer to the number of PGs that they should have.
    fn step_pg_nums(&self, p: &mut Pending, digest: &pgmap::Digest) {
        // A movement job knows the PGs as they are.
        if crate::moves::open(&p.state().moves).is_some() {
            return;
        }
        for (id, step) in crate::pg_num::steps(p.osd(), digest, &self.conf.borrow()) {
            let epoch = p.osd_epoch();
            if let crate::pg_num::Step::Unmap(groups) = &step {
                for pg in groups {
                    p.osd_mut().pg_upmap.remove(pg);
                    p.osd_mut().pg_upmap_items.remove(pg);
                    p.osd_mut().pg_upmap_primaries.remove(pg);
                }
            }
            if let Some(pool) = p.osd_mut().pools.get_mut(&id) {
                crate::pg_num::take(pool, step, epoch);
            }
        }
    }

    /// PGs that were active once exist.
    fn note_created(&self, p: &mut Pending, digest: &pgmap::Digest) {
        let waiting: Vec<_> = digest
            .active_pgs
            .iter()
            .filter(|pg| {
                p.state().creating.get(&pg.pool).is_some_and(|seeds| seeds.contains(&pg.seed))
            })
            .copied()
            .collect();
        if !waiting.is_empty() {
            super::osd_messages::note_created(p, waiting);
        }
    }
}
