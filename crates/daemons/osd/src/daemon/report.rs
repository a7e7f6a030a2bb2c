//! Reports to the mgr, and its answers.

use super::Daemon;
use crate::host::PgHost;
use crate::stats;
use bytes::Bytes;
use denc::{Encode, Features};
use messages::{MgrConfigure, OsdStatsReport, Payload, QosDemand, QosShares};
use msgr::{Connection, Message};
use pg::MapView;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};
use std::time::Instant;
use tokio::sync::Notify;
use types::stats::OsdStat;
use types::{EntityAddrVec, EntityType, Epoch, MgrMap, PgId, PgStat};

/// What the mgr is told, and what it was told last.
pub(super) struct Reports {
    /// Somebody wants a report, with `true` of every group.
    wanted: Cell<Option<bool>>,
    news: Rc<Notify>,
    seq: Cell<u64>,
    /// The groups that this OSD led, and [`print`] of each.
    told: RefCell<BTreeMap<PgId, u64>>,
    map: Cell<Epoch>,
    /// The mgr knows nothing yet.
    pub(super) full: Cell<bool>,
}

impl Default for Reports {
    fn default() -> Reports {
        Reports {
            wanted: Cell::default(),
            news: Rc::default(),
            seq: Cell::default(),
            told: RefCell::default(),
            map: Cell::default(),
            full: Cell::new(true),
        }
    }
}

/// Differs if the mgr should hear of a group before it hears of all.
fn print(s: &PgStat) -> u64 {
    let mut h = s.state.0.rotate_left(32)
        ^ s.version.version
        ^ u64::from(s.mapping_epoch.0).rotate_left(16);
    let n = &s.stats.sum;
    h ^= u64::from(s.last_scrub_stamp.sec).rotate_left(24);
    for v in [
        n.num_objects,
        n.num_bytes,
        n.num_objects_degraded,
        n.num_objects_misplaced,
        n.num_objects_unfound,
        n.num_scrub_errors,
        n.num_objects_repaired,
    ] {
        h = h.rotate_left(7) ^ v as u64;
    }
    h
}

impl Daemon {
    pub(super) fn mgr_map(&self, map: MgrMap) {
        self.mon.got("mgrmap", map.epoch.0.into());
        let addrs = if map.available { map.active_addrs.clone() } else { EntityAddrVec::default() };
        if *self.mgr_addrs.borrow() == addrs {
            return;
        }
        *self.mgr_addrs.borrow_mut() = addrs;
        if let Some(conn) = self.mgr.borrow_mut().take() {
            conn.mark_down();
        }
        self.report(true);
    }

    /// The connection with the active mgr, opened again if it was lost.
    pub(super) fn mgr_connection(&self) -> Option<Rc<Connection>> {
        if let Some(conn) = self.mgr.borrow().as_ref().filter(|c| !c.is_down()) {
            return Some(conn.clone());
        }
        let addrs = self.mgr_addrs.borrow().clone();
        if addrs.is_empty() {
            return None;
        }
        let conn = self.messenger.connect(EntityType::MGR, addrs);
        *self.mgr.borrow_mut() = Some(conn.clone());
        // A mgr that has just begun knows nothing.
        self.reports.full.set(true);
        self.core.with_queue(|q| q.forget_told());
        Some(conn)
    }

    /// Tells the mgr what images and tenants are asked for.
    pub(super) fn tell_demand(&self) {
        let demand = self.core.with_queue(|q| q.demand(Instant::now()));
        if !(demand.images.is_empty() && demand.tenants.is_empty())
            && let Some(conn) = self.mgr_connection()
        {
            conn.send(QosDemand { osd: self.id, ..demand }.encode(conn.features()));
        }
        // Without the mgr, limits may have changed.
        self.core.dispatch();
    }

    /// Takes how often the mgr wants to be told.
    pub(super) fn configure_reports(&self, conn: &Rc<Connection>, message: &Message) {
        if !self.mgr.borrow().as_ref().is_some_and(|c| Rc::ptr_eq(c, conn)) {
            return;
        }
        match MgrConfigure::decode(message) {
            Ok(m) => {
                self.stats_period.set((m.stats_period > 0).then_some(m.stats_period));
                // It says so when it has taken this OSD in. What it was told before, it may have
                // been too new to take.
                self.core.with_queue(|q| q.forget_told());
            }
            Err(e) => tracing::warn!("what the mgr wants to be told cannot be read: {e}"),
        }
    }

    /// Takes this OSD's part of limits and promises.
    pub(super) fn take_shares(&self, conn: &Rc<Connection>, message: &Message) {
        if !self.mgr.borrow().as_ref().is_some_and(|c| Rc::ptr_eq(c, conn)) {
            return;
        }
        match QosShares::decode(message) {
            Ok(shares) => {
                self.core.with_queue(|q| q.take_shares(shares, Instant::now()));
                self.core.dispatch();
            }
            Err(e) => tracing::warn!("limits from the mgr cannot be read: {e}"),
        }
    }

    /// Has the mgr told what changed; with `all`, of every group.
    pub(super) fn report(&self, all: bool) {
        self.reports.wanted.set(Some(all || self.reports.wanted.get() == Some(true)));
        self.reports.news.notify_one();
    }

    /// Reports as often as somebody wants that.
    pub(super) async fn run_reports(daemon: Weak<Daemon>) {
        while let Some(news) = daemon.upgrade().map(|d| d.reports.news.clone()) {
            news.notified().await;
            let Some(d) = daemon.upgrade() else { return };
            if let Some(all) = d.reports.wanted.take() {
                d.send_report(all).await;
            }
        }
    }

    /// Other work goes on while the groups are looked at. So what is told of them may be of
    /// different moments, but not older than the map that is named.
    async fn send_report(&self, all: bool) {
        let f = Features::ALL;
        let reports = &self.reports;
        let conn = self.mgr_connection();
        let (epoch, seq) = (self.core.epoch(), reports.seq.get() + 1);
        let up_from = self.map.borrow().as_ref().map_or(Epoch(0), |m| m.up_from(self.id));
        // What comes up meanwhile, a new boot too, is for the next one.
        let full = conn.is_some() && reports.full.replace(false);
        let (mut led, mut pg_stats, mut snap_trim_queues) = (BTreeSet::new(), Vec::new(), 0);
        let each = |host: &PgHost| {
            host.tell_time();
            if conn.is_none() {
                return;
            }
            snap_trim_queues += host.with_pg(|p| p.snap_trim_queue().size());
            let Some(stat) =
                host.with_pg(|pg| pg.is_primary().then(|| stats::pg_stat(pg, &host.reads(), seq)))
            else {
                return;
            };
            led.insert(host.pgid);
            let print = print(&stat);
            let before = reports.told.borrow_mut().insert(host.pgid, print);
            if all || full || before != Some(print) {
                pg_stats.push((host.pgid, stat.to_bytes(f)));
            }
        };
        self.core.for_each_host(each).await;
        let Some(conn) = conn else { return };
        if !self.mgr.borrow().as_ref().is_some_and(|c| Rc::ptr_eq(c, &conn)) {
            // Another mgr, or none: whom this was for is gone, and the next has to be told
            // everything.
            reports.full.set(true);
            return;
        }
        let mut told = reports.told.borrow_mut();
        let removed: Vec<PgId> = told.keys().filter(|p| !led.contains(p)).copied().collect();
        for p in &removed {
            told.remove(p);
        }
        // With which map nothing has changed is news, too: decisions of the monitors wait for it.
        let same_map = reports.map.replace(epoch) == epoch;
        if !all && !full && same_map && pg_stats.is_empty() && removed.is_empty() {
            return;
        }
        reports.seq.set(seq);
        let (slow, oldest) = self.core.tracker.slow_now();
        let slow_ops = slow.values().sum();
        let mut qos = Bytes::new();
        if all || full {
            let map = self.core.map();
            let pool_name = |id| Some(map.as_ref()?.pool_ops(id)?.name.clone());
            qos = self.core.with_queue(|q| q.take_seen(&pool_name)).to_bytes(f);
        }
        let beats = self.pings.beats.borrow();
        let osd_stat = OsdStat {
            hb_peers: beats.peers(),
            hb_pingtime: beats.times(),
            ..stats::osd_stat(&self.core, up_from, seq, snap_trim_queues)
        };
        let mut counters: BTreeMap<String, u64> =
            slow.into_iter().map(|(point, n)| (format!("slow_ops: {point}"), n)).collect();
        let mut count = |name: &str, n| {
            counters.insert(name.to_owned(), n);
        };
        count("slow_ops", slow_ops);
        count("slow_ops_oldest_ms", oldest.as_millis() as u64);
        count("op", self.core.perf.op.get());
        count("op_r", self.core.perf.op_r.get());
        count("op_w", self.core.perf.op_w.get());
        count("op_in_bytes", self.core.perf.op_in_bytes.get());
        count("op_out_bytes", self.core.perf.op_out_bytes.get());
        for (name, n) in self.core.with_queue(|q| q.counters()) {
            count(name, n);
        }
        counters.extend(self.core.job_counters());
        let report = OsdStatsReport {
            osd: self.id,
            up_from,
            epoch,
            seq,
            full,
            osd_stat: osd_stat.to_bytes(f),
            pg_stats,
            removed,
            pool_statfs: Vec::new(),
            qos,
            counters,
            images: self.core.images.take(),
        };
        conn.send(report.encode(conn.features()));
    }
}
