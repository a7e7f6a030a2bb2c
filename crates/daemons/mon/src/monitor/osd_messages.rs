//! What OSDs tell: that they boot, live, die, and what they need from the map.

use super::Inner;
use super::clock::now;
use super::osd_watch::Rules;
use super::session::Session;
use crate::osd_state::{self, Boot, OsdMapExt};
use crate::state::{Change, Pending};
use messages::{OsdFailure, OsdMarkMeDown, Payload};
use std::rc::Rc;
use types::log::LogPriority;
use types::rados::osd_state as osd_bits;
use types::{Epoch, OsdId, PgId};

impl Inner {
    /// The OSD of a session that may act as one.
    fn osd_of(&self, s: &Session) -> Option<OsdId> {
        let osd = s.osd()?;
        if !s.may("osd", "x") {
            tracing::warn!(peer = %s.name, "may not act as an OSD");
            return None;
        }
        Some(osd)
    }

    fn heard_of(&self, osd: OsdId) {
        let mut w = self.osd_watch.borrow_mut();
        let interval = w.last_report.get(&osd).map_or(0, |(_, i)| *i);
        w.last_report.insert(osd, (now(), interval));
    }

    pub(super) fn osd_boot(&self, s: &Rc<Session>, m: messages::OsdBoot) {
        let Some(osd) = self.osd_of(s) else { return };
        let state = self.committed();
        if m.superblock.cluster_fsid != state.monmap.fsid || m.superblock.whoami != osd {
            tracing::warn!(%osd, "boots with the identity of another OSD or cluster");
            return;
        }
        if osd.0 < 0 || osd.0 >= state.osd.map().max_osd() {
            tracing::warn!(%osd, "boots, but is not below max_osd");
            return;
        }
        self.heard_of(osd);
        let boot = Boot {
            osd,
            uuid: m.superblock.osd_fsid,
            client_addrs: s.conn.peer_addrs(),
            cluster_addrs: m.cluster_addrs,
            hb_back_addrs: m.hb_back_addrs,
            hb_front_addrs: m.hb_front_addrs,
            features: m.osd_features,
            mounted: m.superblock.mounted,
            clean_thru: m.superblock.clean_thru,
            boot_epoch: m.boot_epoch,
            has: Epoch(u32::try_from(m.paxos.0).unwrap_or(0)),
            last_purged_snaps_scrub: m.superblock.last_purged_snaps_scrub,
        };
        self.try_boot(s.clone(), boot, m.metadata, 2);
    }

    /// Whether an OSD has newer maps than the monitors ever made. OSDs learn of maps from monitors,
    /// so these lost some.
    fn is_ahead(&self, p: &mut Pending, osd: OsdId, has: Epoch) -> bool {
        let newest = p.osd_before().epoch;
        if has > newest && self.osd_watch.borrow_mut().ahead.insert(osd) {
            let text = format!(
                "osd.{osd} has OSD map {has}, and the monitors lost all after {newest}: it is not marked up"
            );
            self.log_line(p, LogPriority::ERROR, text);
        }
        has > newest
    }

    /// An OSD that the map still has as up, at another address, is marked down first: one epoch
    /// cannot tell both.
    fn try_boot(&self, s: Rc<Session>, boot: Boot, metadata: crate::state::Metadata, tries: u32) {
        let (osd, known) = (boot.osd, boot.has);
        let outcome = std::cell::Cell::new(osd_state::Booted::Refused);
        let result = &outcome;
        let conf = self.conf.clone();
        let inner = self.me();
        self.change(
            |p| {
                if self.is_ahead(p, osd, known) {
                    return osd_state::Booted::Refused;
                }
                result.set(osd_state::boot(p, &conf.borrow(), &boot));
                if result.get() == osd_state::Booted::Yes {
                    if p.state().osd_metadata.get(&osd) != Some(&metadata) {
                        p.put(Change::OsdMetadata(osd, Some(metadata.clone())));
                    }
                    self.log_line(
                        p,
                        LogPriority::INFO,
                        format!("osd.{osd} {} boot", boot.client_addrs),
                    );
                }
                result.get()
            },
            {
                let (s, boot, metadata) = (s.clone(), boot.clone(), metadata.clone());
                move |r| match (r, inner) {
                    (Ok(osd_state::Booted::MarkedDownFirst), Some(inner)) if tries > 0 => {
                        inner.try_boot(s, boot, metadata, tries - 1);
                    }
                    (Ok(osd_state::Booted::Yes | osd_state::Booted::Already), Some(inner)) => {
                        inner.osd_watch.borrow_mut().booted(osd, now());
                        inner.send_osd_latest(&s, known);
                    }
                    (Err(_), _) => s.conn.lose(),
                    _ => {}
                }
            },
        );
    }

    /// Brings a session up to the newest OSD map, from the epoch that it has.
    fn send_osd_latest(&self, s: &Session, known: Epoch) {
        if !s.conn.is_direct() {
            // An OSD subscribes to every map, and its own monitor sends them.
            return;
        }
        let state = self.committed();
        let has = Epoch(known.0.max(s.osd_epoch.get()));
        if has >= state.osd.last() {
            return;
        }
        match has.0 {
            0 => self.send_full_map(&state, s),
            _ => self.send_maps_from(&state, s, has.next()),
        }
        s.osd_epoch.set(state.osd.last().0);
        if let Some(sub) = s.subs.borrow_mut().get_mut("osdmap") {
            sub.next = sub.next.max(u64::from(state.osd.last().0) + 1);
        }
    }

    pub(super) fn osd_beacon(&self, s: &Session, m: messages::OsdBeacon) {
        let Some(osd) = self.osd_of(s) else { return };
        let state = self.committed();
        let map = state.osd.map();
        if !map.is_up(osd) {
            // It does not know that it is down; the maps will tell it.
            let has = Epoch(u32::try_from(m.paxos.0).unwrap_or(0));
            if has > map.epoch {
                self.change_and_forget(|p| {
                    self.is_ahead(p, osd, has);
                });
            }
            return self.send_osd_latest(s, has);
        }
        let mut w = self.osd_watch.borrow_mut();
        w.last_report.insert(osd, (now(), u64::try_from(m.report_interval).unwrap_or(0)));
        w.has_map.insert(osd, Epoch(u32::try_from(m.paxos.0).unwrap_or(0)));
        for pg in &m.pgs {
            w.last_epoch_clean.report(map, *pg, m.min_last_epoch_clean);
        }
    }

    pub(super) fn osd_alive(&self, s: &Rc<Session>, m: messages::OsdAlive) {
        let Some(osd) = self.osd_of(s) else { return };
        self.heard_of(osd);
        let has = Epoch(u32::try_from(m.paxos.0).unwrap_or(0));
        let addrs = s.conn.peer_addrs();
        let (inner, s) = (self.me(), s.clone());
        self.change(
            |p| {
                if p.osd().is_up(osd) && p.osd().client_addrs(osd) == Some(&addrs) {
                    osd_state::set_up_thru(p, osd, Epoch(has.0.max(m.want.0)));
                }
            },
            move |r| match (r, inner) {
                (Ok(()), Some(inner)) => inner.send_osd_latest(&s, has),
                (Err(_), _) => s.conn.lose(),
                _ => {}
            },
        );
    }

    pub(super) fn osd_failure(&self, s: &Session, m: OsdFailure) {
        let Some(reporter) = self.osd_of(s) else { return };
        let state = self.committed();
        let map = state.osd.map();
        let about_this_process =
            map.is_up(m.target) && map.client_addrs(m.target) == Some(&m.target_addrs);
        if m.fsid != state.monmap.fsid || !map.is_up(reporter) || !about_this_process {
            return self.send_osd_latest(s, m.epoch);
        }
        if m.flags & OsdFailure::FAILED == 0 {
            if let Some(f) = self.osd_watch.borrow_mut().failures.get_mut(&m.target) {
                f.reporters.remove(&reporter);
            }
            return;
        }
        if !osd_state::may_mark_down(map, &self.conf.borrow(), m.target) {
            tracing::debug!(target = %m.target, "reported failed, but must not be marked down");
            return;
        }
        if m.flags & OsdFailure::IMMEDIATE != 0 {
            return self.mark_failed(
                m.target,
                true,
                format!("reported immediately failed by osd.{reporter}"),
            );
        }
        let since = now();
        let since =
            types::Utime::new(since.sec.saturating_sub(m.failed_for.max(0) as u32), since.nsec);
        self.osd_watch
            .borrow_mut()
            .failures
            .entry(m.target)
            .or_default()
            .reporters
            .insert(reporter, since);
        self.judge(m.target);
    }

    /// Marks an OSD down if enough others say that it is silent.
    pub(super) fn judge(&self, target: OsdId) {
        let state = self.committed();
        let rules = Rules::from_conf(&self.conf.borrow());
        let map = state.osd.map();
        if !osd_state::may_mark_down(map, &self.conf.borrow(), target) {
            return;
        }
        let convicted = self.osd_watch.borrow_mut().convicts(map, target, now(), &rules);
        if let Some(c) = convicted {
            let (n, level) = (c.subtrees, rules.level());
            self.mark_failed(
                target,
                false,
                format!(
                    "failed ({n} reporters from different {level} after {:.1} >= grace {:.1})",
                    c.silent, c.grace
                ),
            );
        }
    }

    /// `dead`: the process is gone for sure, and serves no reads.
    fn mark_failed(&self, target: OsdId, dead: bool, why: String) {
        self.change_and_forget(|p| {
            if osd_state::mark_down(p, target) {
                if dead {
                    osd_state::mark_dead(p, target);
                }
                self.log_line(p, LogPriority::INFO, format!("osd.{target} {why}"));
            }
        });
        self.osd_watch.borrow_mut().went_down(target);
    }

    pub(super) fn osd_mark_me_down(&self, s: &Rc<Session>, m: OsdMarkMeDown, tid: u64) {
        let Some(osd) = self.osd_of(s) else { return };
        let (s, inner) = (s.clone(), self.me());
        let (target, target_addrs) = (m.target, m.target_addrs.clone());
        self.change(
            |p| {
                let this = p.osd().client_addrs(target) == Some(&target_addrs);
                if target == osd && this && osd_state::mark_down(p, osd) {
                    // Our OSDs say so when they have stopped to answer.
                    osd_state::mark_dead(p, osd);
                    self.log_line(p, LogPriority::INFO, format!("osd.{osd} marked itself down"));
                }
            },
            move |r| {
                if let (Ok(()), Some(inner)) = (r, inner) {
                    inner.osd_watch.borrow_mut().went_down(osd);
                    if m.request_ack {
                        let mut ack =
                            OsdMarkMeDown { request_ack: false, ..m }.encode(s.conn.features());
                        ack.tid = tid;
                        s.conn.send(ack);
                    }
                }
            },
        );
    }

    pub(super) fn osd_mark_me_dead(&self, s: &Rc<Session>, m: messages::OsdMarkMeDead) {
        let Some(osd) = self.osd_of(s) else { return };
        if m.target != osd {
            return;
        }
        let (s, inner) = (s.clone(), self.me());
        self.change(
            |p| {
                if p.osd().exists(osd) && !p.osd().is_up(osd) {
                    osd_state::mark_dead(p, osd);
                }
            },
            move |r| match (r, inner) {
                (Ok(()), Some(inner)) => inner.send_osd_latest(&s, m.epoch),
                (Err(_), _) => s.conn.lose(),
                _ => {}
            },
        );
    }

    pub(super) fn osd_pg_temp(&self, s: &Rc<Session>, m: messages::OsdPgTemp) {
        let Some(osd) = self.osd_of(s) else { return };
        self.heard_of(osd);
        let addrs = s.conn.peer_addrs();
        let (s, inner) = (s.clone(), self.me());
        let has = m.map_epoch;
        self.change(
            |p| {
                if !p.osd().is_up(osd) || p.osd().client_addrs(osd) != Some(&addrs) {
                    return;
                }
                for (pg, wanted) in &m.pg_temp {
                    osd_state::set_pg_temp(p, *pg, wanted);
                }
                // It will ask for this next; one epoch can have both.
                if !m.pg_temp.is_empty() {
                    osd_state::set_up_thru(p, osd, has);
                }
            },
            move |r| match (r, inner) {
                (Ok(()), Some(inner)) => inner.send_osd_latest(&s, has),
                (Err(_), _) => s.conn.lose(),
                _ => {}
            },
        );
    }

    pub(super) fn osd_pg_created(&self, s: &Session, m: messages::OsdPgCreated) {
        if self.osd_of(s).is_none() {
            return;
        }
        self.change_and_forget(|p| {
            if p.state().is_creating(m.pgid) {
                note_created(p, vec![m.pgid]);
            }
        });
    }

    pub(super) fn osd_full(&self, s: &Session, m: messages::OsdFull) {
        let Some(osd) = self.osd_of(s) else { return };
        const MASK: u32 = osd_bits::FULL | osd_bits::BACKFILLFULL | osd_bits::NEARFULL;
        self.change_and_forget(|p| {
            if !p.osd().is_up(osd) {
                return;
            }
            let wanted = m.state & MASK;
            if p.osd().state_bits(osd) & MASK != wanted {
                osd_state::set_bits(p, osd, MASK, wanted);
            }
        });
    }
}

/// Notes that PGs exist. A pool is being created until all its first PGs exist, and all that are
/// made anew.
pub(super) fn note_created(p: &mut Pending, pgs: Vec<PgId>) {
    let pools: std::collections::BTreeSet<_> = pgs.iter().map(|pg| pg.pool).collect();
    p.put(Change::PgsCreated(pgs));
    for pool in pools {
        if !p.state().creating.contains_key(&pool)
            && !p.state().recreating.contains_key(&pool)
            && let Some(pool) = p.osd_mut().pools.get_mut(&pool)
        {
            pool.flags &= !types::pool::flag::CREATING;
        }
    }
}
