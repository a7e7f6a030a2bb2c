//! Reports to the mgr, and its answers.

use super::Daemon;
use crate::shard::{Counters, Demand, Led, LedPgs, ShardMsg};
use bytes::Bytes;
use denc::{Encode, Features};
use messages::{MgrConfigure, OsdStatsReport, Payload, QosDemand, QosShares};
use msgr::{Connection, Message};
use pg::MapView;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use tokio::sync::Notify;
use types::stats::OsdStat;
use types::{EntityAddrVec, EntityType, Epoch, MgrMap, PgId, PgStat};

/// The active mgr.
#[derive(Default)]
pub(super) struct Manager {
    /// Where it is; empty if there is none.
    pub(super) addrs: RefCell<EntityAddrVec>,
    pub(super) conn: RefCell<Option<Rc<Connection>>>,
    pub(super) reports: Reports,
    /// In how many seconds it wants to hear of every PG.
    pub(super) stats_period: Cell<Option<u32>>,
}

/// What the mgr is told, and what it was told last.
pub(super) struct Reports {
    /// A report is wanted, with `true` of every PG.
    wanted: Cell<Option<bool>>,
    news: Rc<Notify>,
    seq: Cell<u64>,
    /// A report is being put together.
    sending: Cell<bool>,
    /// The PGs that this OSD led, and [`print`] of each.
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
            sending: Cell::default(),
            told: RefCell::default(),
            map: Cell::default(),
            full: Cell::new(true),
        }
    }
}

impl Reports {
    /// What is to be told of the PGs that are led, or of all of them; and those that were led when
    /// the mgr was told last and are not any more.
    fn news_of(&self, pgs: Vec<(PgId, PgStat)>, all: bool) -> (Vec<(PgId, Bytes)>, Vec<PgId>) {
        let mut told = self.told.borrow_mut();
        let before = std::mem::take(&mut *told);
        let mut news = Vec::new();
        for (pgid, stat) in pgs {
            let print = print(&stat);
            if all || before.get(&pgid) != Some(&print) {
                news.push((pgid, stat.to_bytes(Features::ALL)));
            }
            told.insert(pgid, print);
        }
        let removed = before.into_keys().filter(|pgid| !told.contains_key(pgid)).collect();
        (news, removed)
    }
}

/// Differs if the mgr should hear of a PG before it hears of all.
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
        self.frame.mon.got("mgrmap", map.epoch.0.into());
        let addrs = if map.available { map.active_addrs.clone() } else { EntityAddrVec::default() };
        if *self.manager.addrs.borrow() == addrs {
            return;
        }
        *self.manager.addrs.borrow_mut() = addrs;
        if let Some(conn) = self.manager.conn.borrow_mut().take() {
            conn.mark_down();
        }
        self.report(true);
    }

    /// The connection with the active mgr, opened again if it was lost.
    pub(super) fn mgr_connection(&self) -> Option<Rc<Connection>> {
        if let Some(conn) = self.manager.conn.borrow().as_ref().filter(|c| !c.is_down()) {
            return Some(conn.clone());
        }
        let addrs = self.manager.addrs.borrow().clone();
        if addrs.is_empty() {
            return None;
        }
        let conn = self.ends.messenger.connect(EntityType::MGR, addrs);
        *self.manager.conn.borrow_mut() = Some(conn.clone());
        // A mgr that has just begun knows nothing.
        self.manager.reports.full.set(true);
        self.shard.send(ShardMsg::ForgetTold);
        Some(conn)
    }

    /// Tells the mgr what images and tenants are asked for.
    pub(super) async fn tell_demand(&self) {
        let demand = self.shard.ask(Demand).await;
        if !(demand.images.is_empty() && demand.tenants.is_empty())
            && let Some(conn) = self.mgr_connection()
        {
            conn.send(QosDemand { osd: self.id, ..demand }.encode(conn.features()));
        }
    }

    /// Takes how often the mgr wants to be told.
    pub(super) fn configure_reports(&self, conn: &Rc<Connection>, message: &Message) {
        if !self.manager.conn.borrow().as_ref().is_some_and(|c| Rc::ptr_eq(c, conn)) {
            return;
        }
        match MgrConfigure::decode(message) {
            Ok(m) => {
                self.manager.stats_period.set((m.stats_period > 0).then_some(m.stats_period));
                // It says so when it has taken this OSD in. What it was told before, it may have
                // been too new to take.
                self.shard.send(ShardMsg::ForgetTold);
            }
            Err(e) => tracing::warn!("settings of reports from the manager cannot be read: {e}"),
        }
    }

    /// Takes this OSD's part of limits and promises.
    pub(super) fn take_shares(&self, conn: &Rc<Connection>, message: &Message) {
        if !self.manager.conn.borrow().as_ref().is_some_and(|c| Rc::ptr_eq(c, conn)) {
            return;
        }
        match QosShares::decode(message) {
            Ok(shares) => self.shard.send(ShardMsg::Shares(shares)),
            Err(e) => tracing::warn!("limits from the manager cannot be read: {e}"),
        }
    }

    /// Has the mgr told what changed; with `all`, of every PG.
    pub(super) fn report(&self, all: bool) {
        self.manager
            .reports
            .wanted
            .set(Some(all || self.manager.reports.wanted.get() == Some(true)));
        self.manager.reports.news.notify_one();
    }

    /// Has the mgr told of everything at once. The number of the first report that has all that
    /// is true by this moment.
    pub(super) fn flush_stats(&self) -> u64 {
        let reports = &self.manager.reports;
        // One that is under way may have looked at some PGs before.
        let seq = reports.seq.get() + 1 + u64::from(reports.sending.get());
        let up_from = self.map.borrow().as_ref().map_or(Epoch(0), |m| m.up_from(self.id));
        self.report(true);
        OsdStat::seq_of(up_from, seq)
    }

    /// Reports whenever a report is wanted.
    pub(super) async fn run_reports(daemon: Weak<Daemon>) {
        while let Some(news) = daemon.upgrade().map(|d| d.manager.reports.news.clone()) {
            news.notified().await;
            let Some(d) = daemon.upgrade() else { return };
            if let Some(all) = d.manager.reports.wanted.take() {
                d.manager.reports.sending.set(true);
                d.send_report(all).await;
                d.manager.reports.sending.set(false);
            }
        }
    }

    /// Other work goes on while the PGs are looked at. So what is told of them may be of different
    /// moments, but not older than the map that is named.
    async fn send_report(&self, all: bool) {
        let f = Features::ALL;
        let reports = &self.manager.reports;
        let conn = self.mgr_connection();
        let (epoch, seq) = (self.epoch(), reports.seq.get() + 1);
        let up_from = self.map.borrow().as_ref().map_or(Epoch(0), |m| m.up_from(self.id));
        // What comes up meanwhile, a new boot too, is for the next one.
        let full = conn.is_some() && reports.full.replace(false);
        let LedPgs { pgs, snap_trim_queues } =
            self.shard.ask(Led { seq, stats: conn.is_some() }).await;
        let Some(conn) = conn else { return };
        if !self.manager.conn.borrow().as_ref().is_some_and(|c| Rc::ptr_eq(c, &conn)) {
            // Another mgr, or none: whom this was for is gone, and the next has to be told
            // everything.
            reports.full.set(true);
            return;
        }
        let (pg_stats, removed) = reports.news_of(pgs, all || full);
        // With which map nothing has changed is news, too: decisions of the monitors wait for it.
        let same_map = reports.map.replace(epoch) == epoch;
        if !all && !full && same_map && pg_stats.is_empty() && removed.is_empty() {
            return;
        }
        reports.seq.set(seq);
        let counted =
            self.shard.ask(Counters { up_from, seq, snap_trim_queues, qos: all || full }).await;
        let (slow, oldest) = counted.slow;
        let osd_stat = {
            let beats = self.pings.beats.borrow();
            OsdStat { hb_peers: beats.peers(), hb_pingtime: beats.times(), ..counted.osd_stat }
        };
        let mut counters = counted.counters;
        counters.insert("slow_ops".to_owned(), slow.values().sum());
        counters.insert("slow_ops_oldest_ms".to_owned(), oldest.as_millis() as u64);
        counters.extend(slow.into_iter().map(|(point, n)| (format!("slow_ops: {point}"), n)));
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
            qos: counted.qos.map_or_else(Bytes::new, |qos| qos.to_bytes(f)),
            counters,
            images: counted.images,
        };
        conn.send(report.encode(conn.features()));
    }
}
