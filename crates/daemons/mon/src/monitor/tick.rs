//! The leader's own rounds.

use super::Inner;
use super::osd_watch::OutRules;
use crate::osd_state;
use crate::osd_state::OsdMapExt;
use crate::state::{Change, Pending};
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};
use types::log::LogPriority;
use types::pool::flag;
use types::{EntityAddrVec, Epoch, OsdId};

/// Global ids are reserved in steps of this; a step that a crash loses costs nothing.
pub(super) const GLOBAL_IDS_STEP: u64 = 10_000;

/// Percent of a file system that others than its owner may still use, rounded down.
fn free_percent(path: &Path) -> Option<u8> {
    let stat = rustix::fs::statvfs(path).ok().filter(|s| s.f_blocks > 0)?;
    u8::try_from(u128::from(stat.f_bavail) * 100 / u128::from(stat.f_blocks)).ok()
}

impl Inner {
    /// What a new leader must have committed before it serves: keys to make tickets with, and its
    /// own address in the map.
    pub(super) async fn first_changes(
        &self,
        addrs: EntityAddrVec,
    ) -> Result<(), super::commits::NotCommitted> {
        let name = self.name.clone();
        self.change_async(|p| {
            self.rotate_keys(p);
            let listed = p.state().monmap.mon_info.get(&name).map(|i| i.public_addrs.clone());
            if listed.is_some_and(|l| l != addrs) {
                p.change_monmap(|m| {
                    if let Some(i) = m.mon_info.get_mut(&name) {
                        i.public_addrs = addrs.clone();
                    }
                });
            }
            let metadata = self.metadata(&addrs);
            if p.state().mon_metadata.get(&name) != Some(&metadata) {
                p.put(Change::MonMetadata(name.clone(), Some(metadata)));
            }
        })
        .await?;
        Ok(())
    }

    pub(super) fn metadata(&self, addrs: &EntityAddrVec) -> crate::state::Metadata {
        let mut m = daemon_frame::host::facts();
        m.insert("addrs".into(), addrs.to_string());
        m.extend(daemon_frame::device::facts(&self.dir));
        // Of messages: what is not compressed needs no algorithm.
        m.insert("compression_algorithms".into(), "none".into());
        m.extend(daemon_frame::version_facts());
        m
    }

    fn rotate_keys(&self, p: &mut Pending) {
        let ttl = self.auth.borrow().ttl;
        if let Some(rotation) = p.state().auth.prepare_rotation(ttl, p.now(), &mut rand::rng()) {
            p.put(Change::Rotate(rotation));
        }
    }

    pub(super) async fn run_ticks(self: Rc<Self>) {
        self.look_around();
        loop {
            let pause = self.conf.borrow().u64("mon_tick_interval").clamp(1, 60);
            tokio::select! {
                () = tokio::time::sleep(Duration::from_secs(pause)) => {}
                () = self.stopped.notified() => return,
            }
            if self.stopping.get() {
                return;
            }
            // Those that this monitor closed itself.
            self.sessions.borrow_mut().retain(|_, s| !s.conn.is_down());
            self.waiting.borrow_mut().requests.retain(|_, p| !p.session.conn.is_down());
            self.look_around();
            self.tell_of_lost_pgs();
            self.ops.trim(super::now(), super::admin::history_limits(&self.conf.borrow()));
            if self.leads() {
                self.tick().await;
            }
        }
    }

    /// Looks at the space below the data, and at which versions daemons are of.
    fn look_around(&self) {
        self.free.set(free_percent(&self.dir));
        let mixed = crate::commands::daemon_versions(&self.committed()).len() > 1;
        self.mixed_since.set(mixed.then(|| self.mixed_since.get().unwrap_or_else(Instant::now)));
    }

    async fn tick(&self) {
        let done = self
            .change_async(|p| {
                self.rotate_keys(p);
                self.expire_blocklist(p);
                self.expire_mutes(p);
                self.mark_silent_down(p);
                self.mark_down_out(p);
                self.trim_osd_maps(p);
            })
            .await;
        if done.is_err() {
            return;
        }
        self.check_mgr();
        self.check_mds();
        let suspects: Vec<OsdId> = self.osd_watch.borrow().failures.keys().copied().collect();
        for osd in suspects {
            self.judge(osd);
        }
    }

    fn expire_blocklist(&self, p: &mut Pending) {
        let now = p.now();
        if p.osd().blocklist.values().any(|until| *until <= now) {
            p.osd_mut().blocklist.retain(|_, until| *until > now);
        }
        if p.osd().range_blocklist.values().any(|until| *until <= now) {
            p.osd_mut().range_blocklist.retain(|_, until| *until > now);
        }
    }

    fn expire_mutes(&self, p: &mut Pending) {
        let now = p.now();
        let over: Vec<String> = p
            .state()
            .mutes
            .iter()
            .filter(|(_, m)| !m.until.is_zero() && m.until <= now)
            .map(|(code, _)| code.clone())
            .collect();
        for code in over {
            p.put(Change::Mute(code, None));
        }
    }

    /// OSDs without a report against them that stopped reporting themselves.
    fn mark_silent_down(&self, p: &mut Pending) {
        let timeout = self.conf.borrow().u64("mon_osd_report_timeout");
        let now = p.now();
        let up: Vec<OsdId> = p.osd().osds().filter(|o| p.osd().is_up(*o)).collect();
        for osd in up {
            let (last, interval) =
                *self.osd_watch.borrow_mut().last_report.entry(osd).or_insert((now, 0));
            if now.since(last).as_secs() > timeout.max(interval.saturating_mul(2))
                && osd_state::may_mark_down(p.osd(), &self.conf.borrow(), osd)
                && osd_state::mark_down(p, osd)
            {
                self.log_line(
                    p,
                    LogPriority::INFO,
                    format!(
                        "osd.{osd} marked down after no beacon for {} seconds",
                        now.since(last).as_secs()
                    ),
                );
                self.osd_watch.borrow_mut().went_down(osd);
            }
        }
    }

    /// OSDs that stayed down give up their data's place.
    fn mark_down_out(&self, p: &mut Pending) {
        let rules = OutRules::from_conf(&self.conf.borrow());
        let due = self.osd_watch.borrow_mut().due_out(p.osd(), p.now(), &rules);
        for (osd, seconds) in due {
            osd_state::mark_out_automatically(p, osd);
            self.log_line(
                p,
                LogPriority::INFO,
                format!("Marking osd.{osd} out (has been down for {seconds} seconds)"),
            );
        }
    }

    /// Old OSD maps go when no daemon needs them: not the newest `mon_min_osdmap_epochs`, none
    /// since a group was last clean, and none that an OSD which is up, or may soon be again, has
    /// not got.
    fn trim_osd_maps(&self, p: &mut Pending) {
        let keep = self.conf.borrow().u64("mon_min_osdmap_epochs") as u32;
        let (first, last) = (p.state().osd.first().0, p.state().osd.last().0);
        let mut floor = last.saturating_sub(keep);
        let mut watch = self.osd_watch.borrow_mut();
        if let Some(clean) = watch.last_epoch_clean.lower_bound(p.osd()) {
            floor = floor.min(clean.0);
        }
        watch
            .has_map
            .retain(|osd, _| p.osd().exists(*osd) && (p.osd().is_up(*osd) || p.osd().is_in(*osd)));
        for osd in p.osd().osds() {
            match watch.has_map.get(&osd) {
                Some(has) => floor = floor.min(has.0),
                // Nothing is known of an OSD that is there: keep everything.
                None if p.osd().is_in(osd) || p.osd().is_up(osd) => floor = 0,
                None => {}
            }
        }
        // Trimming step by step would write rows all the time.
        if floor >= first + 32 {
            p.put(Change::TrimOsdMaps(Epoch(floor)));
        }
    }

    /// Pools with a used up quota stop taking data, and take it again when there is room.
    pub(super) fn check_quotas(&self, p: &mut Pending, digest: &pgmap::Digest) {
        let changes: Vec<_> = p
            .osd()
            .pools
            .iter()
            .filter_map(|(id, pool)| {
                let sum = digest.pool_sum(*id)?;
                let over = |limit: u64, used: i64| limit > 0 && used >= 0 && used as u64 >= limit;
                let full = over(pool.quota_max_bytes, sum.num_bytes)
                    || over(pool.quota_max_objects, sum.num_objects);
                (full != pool.has_flag(flag::FULL_QUOTA)).then_some((*id, full))
            })
            .collect();
        for (id, full) in changes {
            let name = p.osd().pool_names.get(&id).cloned().unwrap_or_default();
            let epoch = p.osd_epoch();
            if let Some(pool) = p.osd_mut().pools.get_mut(&id) {
                match full {
                    true => pool.flags |= flag::FULL_QUOTA | flag::FULL,
                    false => pool.flags &= !(flag::FULL_QUOTA | flag::FULL),
                }
                pool.last_change = epoch;
            }
            let text = match full {
                true => format!("pool '{name}' is full (reached its quota)"),
                false => format!("pool '{name}' no longer out of quota; removing NO_QUOTA flag"),
            };
            self.log_line(p, LogPriority::WARN, text);
        }
    }

    /// What every batch ends with: the OSD map without what became pointless, and a log that is not
    /// too long.
    pub(super) fn before_close(&self) {
        let lines = self.conf.borrow().u64("mon_log_max");
        self.proposer.with_pending(|p| {
            osd_state::clean_temps(p);
            osd_state::lead_coded(p);
            osd_state::forget_old_lag(p, &self.conf.borrow());
            osd_state::update_full_pools(p);
            let log = &p.state().log;
            let first = log.next().saturating_sub(lines);
            if log.first() < first {
                p.put(Change::TrimLog(first));
            }
        });
    }
}
