//! One OSD without its network: it takes maps, requests and peers' messages from any source.
//!
//! Its parts, each with its own fields: [`maps`], [`pgs`], [`admit`], [`backlog`], [`health`] here,
//! and [`crate::rooms`], [`crate::reservations`], [`crate::jobs`] beside it. What joins them is in
//! `requests` (from a message to the scheduler), `scheduling` (from the scheduler to execution) and
//! `groups` (maps, peers, and the copies of PGs that follow; lost ones in `recreate`).

pub(crate) mod admit;
pub(crate) mod backlog;
mod groups;
pub(crate) mod health;
pub(crate) mod maps;
pub(crate) mod pgs;
mod recreate;
pub(crate) mod requests;
pub(crate) mod scheduling;

use crate::client_op::{ClientOp, Outcome, Versions};
use crate::fullness;
use crate::hedge::Hedge;
use crate::host::PgHost;
use crate::images::ImageStats;
use crate::jobs::Jobs;
use crate::map::ClusterMapRef;
use crate::peer_net::PeerNet;
use crate::perf::PerfCounters;
use crate::reservations::Reservations;
use crate::rooms::Rooms;
use crate::settings::Settings;
use crate::tracker::Tracker;
use crate::watch_clock::WatchClock;
use admission::meter::Learned;
use admission::work::Queue;
use admit::Admission;
use backlog::Backlog;
use client::wall_clock;
use health::Health;
use maps::Maps;
use objops::copy::CopySource;
use pgs::Pgs;
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};
use store::Store;
use types::{Epoch, Errno, LogPriority, OsdId, PgId, SpgId};

/// What an OSD asks of the monitors.
pub trait MonLink {
    /// Record that this OSD was alive in this epoch.
    fn want_up_thru(&self, epoch: Epoch);
    /// Ask for another acting set; empty takes the wish back.
    fn want_pg_temp(&self, pgid: PgId, acting: Vec<OsdId>);
    /// Fetch maps up to this epoch.
    fn want_map(&self, epoch: Epoch);
    /// A PG that monitors had made anew is served.
    fn pg_created(&self, _pgid: PgId) {}
    /// Write a line to the cluster log.
    fn cluster_log(&self, _prio: LogPriority, _text: String) {}
}

/// How an OSD reaches others.
pub(crate) struct Links {
    /// Other OSDs.
    pub(crate) net: Rc<dyn PeerNet>,
    /// The monitors.
    pub(crate) mon: Rc<dyn MonLink>,
    /// Objects of other PGs, as a client.
    pub(crate) copies: Rc<dyn CopySource>,
}

/// What an OSD is made of.
pub struct Parts {
    /// Its number.
    pub whoami: OsdId,
    /// The store of its objects.
    pub store: Rc<Store>,
    /// How it reaches others.
    pub net: Rc<dyn PeerNet>,
    /// How it reaches the monitors.
    pub mon: Rc<dyn MonLink>,
    /// How it reads objects of other PGs.
    pub copies: Rc<dyn CopySource>,
    /// The scheduler.
    pub queue: Box<dyn Queue<ClientOp>>,
    /// Settings.
    pub settings: Settings,
}

/// One OSD without its network.
pub struct Core {
    /// The OSD's number.
    pub whoami: OsdId,
    /// The store.
    pub store: Rc<Store>,
    /// Counters.
    pub perf: Rc<PerfCounters>,
    /// Counters by image, for the next report.
    pub images: ImageStats,
    /// Operations in flight and recent slow ones.
    pub tracker: Rc<Tracker>,
    pub(crate) links: Links,
    settings: RefCell<Rc<Settings>>,
    pub(crate) maps: Maps,
    pub(crate) pgs: Pgs,
    pub(crate) admission: Admission,
    pub(crate) backlog: Rc<Backlog>,
    /// Which PGs recover, backfill, trim and are scrubbed.
    pub(crate) reservations: Reservations,
    /// Counters of background work.
    pub(crate) jobs: Jobs,
    /// The room of other OSDs.
    pub(crate) rooms: Rooms,
    /// When reads of shards are late.
    pub(crate) hedge: Hedge,
    pub(crate) watch_clock: WatchClock,
    pub(crate) health: Rc<Health>,
    next_token: Cell<u64>,
    me: Weak<Core>,
}

/// For so long queued work runs before sockets are read again.
const TURN: Duration = Duration::from_micros(50);
/// How long work without a client rests after it had the thread for a while.
const REST: Duration = Duration::from_millis(1);

impl Core {
    /// An OSD without PGs and without a map.
    pub fn new(parts: Parts) -> Rc<Core> {
        let health = Rc::new(Health::new(parts.whoami));
        let begin = wall_clock().as_duration().as_nanos() as u64;
        Rc::new_cyclic(|me| Core {
            whoami: parts.whoami,
            backlog: Backlog::new(parts.store.clone(), health.clone()),
            store: parts.store,
            perf: Rc::default(),
            images: ImageStats::default(),
            tracker: Rc::default(),
            links: Links { net: parts.net, mon: parts.mon, copies: parts.copies },
            admission: Admission::new(parts.queue, parts.settings.window, begin),
            settings: RefCell::new(Rc::new(parts.settings)),
            maps: Maps::default(),
            pgs: Pgs::default(),
            reservations: Reservations::default(),
            jobs: Jobs::default(),
            rooms: Rooms::default(),
            hedge: Hedge::default(),
            watch_clock: WatchClock::default(),
            health,
            next_token: Cell::new(0),
            me: me.clone(),
        })
    }

    pub(crate) fn rc(&self) -> Rc<Core> {
        self.me.upgrade().expect("a core in use is alive")
    }

    /// The settings.
    pub fn settings(&self) -> Rc<Settings> {
        self.settings.borrow().clone()
    }

    /// Changes the settings.
    pub fn set_settings(&self, settings: Settings) {
        for host in self.hosts() {
            host.set_conf(&settings.pg);
        }
        self.admission.fixed.set(settings.window);
        *self.settings.borrow_mut() = Rc::new(settings);
        self.next_turns();
        self.next_places();
        self.resume_removals();
        self.dispatch();
    }

    /// The scheduler.
    pub fn with_queue<R>(&self, f: impl FnOnce(&mut dyn Queue<ClientOp>) -> R) -> R {
        f(&mut **self.admission.queue.borrow_mut())
    }

    /// The newest map.
    pub fn map(&self) -> Option<ClusterMapRef> {
        self.maps.newest()
    }

    /// The newest map's epoch, 0 without a map.
    pub fn epoch(&self) -> Epoch {
        self.maps.epoch()
    }

    /// All PGs.
    pub fn hosts(&self) -> Vec<Rc<PgHost>> {
        self.pgs.all()
    }

    /// How many PGs are here.
    pub fn num_hosts(&self) -> usize {
        self.pgs.len()
    }

    /// Does something for each PG that no client waits for. Clients are served on the same thread,
    /// and there may be many PGs: this rests after a few.
    pub(crate) async fn for_each_host(&self, mut f: impl FnMut(&PgHost)) {
        let all = self.pgs.ids();
        let mut since = Instant::now();
        for pgid in all {
            // It may be gone by now.
            if let Some(host) = self.host(pgid) {
                f(&host);
            }
            if since.elapsed() >= TURN {
                tokio::time::sleep(REST).await;
                since = Instant::now();
            }
        }
    }

    /// A copy, if this OSD has it.
    pub fn host(&self, id: SpgId) -> Option<Rc<PgHost>> {
        self.pgs.get(id)
    }

    /// The copy of a PG that leads it by the newest map, if this OSD has it.
    pub fn leading(&self, pgid: PgId) -> Option<Rc<PgHost>> {
        let primary = self.map()?.mapping(pgid).primary?;
        if primary.osd == self.whoami {
            self.host(SpgId { pgid, shard: primary.shard })
        } else {
            None
        }
    }

    /// A copy of a PG that this OSD has, preferably the one that leads.
    pub fn any_copy(&self, pgid: PgId) -> Option<Rc<PgHost>> {
        let any = || self.pgs.any(pgid);
        self.leading(pgid).or_else(any)
    }

    pub(crate) fn new_token(&self) -> u64 {
        self.next_token.set(self.next_token.get() + 1);
        self.next_token.get()
    }

    /// How many PGs trim snapshots.
    pub fn trimming_groups(&self) -> usize {
        self.reservations.trims.borrow().trimming()
    }

    /// Lets PGs begin to trim that are next in turn.
    pub(crate) fn next_trims(&self) {
        loop {
            let most = self.settings().trim.groups;
            let next = self.reservations.trims.borrow_mut().next(most);
            let Some(pgid) = next else { break };
            match self.host(pgid) {
                Some(host) => host.begin_trim(),
                None => self.reservations.trims.borrow_mut().leave(pgid),
            }
        }
    }

    /// Work in execution.
    pub fn running(&self) -> usize {
        self.admission.running.get()
    }

    /// Brings the counters that are states up to date.
    pub fn update_gauges(&self) {
        let hosts = self.hosts();
        let primaries = hosts.iter().filter(|h| h.with_pg(|p| p.is_primary())).count();
        let replicas =
            hosts.iter().filter(|h| h.with_pg(|p| !p.is_primary() && p.state().0 != 0)).count();
        self.perf.numpg.set(hosts.len() as u64);
        self.perf.numpg_primary.set(primaries as u64);
        self.perf.numpg_replica.set(replicas as u64);
        self.perf.numpg_stray.set((hosts.len() - primaries - replicas) as u64);
        let s = self.store.statfs();
        self.perf.stat_bytes.set(s.total);
        self.perf.stat_bytes_avail.set(s.available);
        self.perf.stat_bytes_used.set(s.total.saturating_sub(s.available));
        self.perf.slow_ops_slow_ops_count.set(self.tracker.slow_total());
    }

    /// Forgets all PGs, so that nothing keeps the store open.
    pub fn clear(&self) {
        self.pgs.clear();
        self.maps.clear();
    }

    /// Whether a client's write that takes space must wait, whatever the map says (Ceph:
    /// `OSDService::check_failsafe_full`).
    pub(crate) fn is_failsafe_full(&self) -> bool {
        fullness::used(&self.backlog.space()) > self.rooms.failsafe.get()
    }

    /// The used part of the store from which clients' writes wait.
    pub(crate) fn failsafe(&self) -> f64 {
        self.rooms.failsafe.get()
    }

    /// Sets the used part of the store from which clients' writes wait.
    pub fn set_failsafe(&self, ratio: f64) {
        self.rooms.failsafe.set(ratio);
    }

    /// Tries again what waits for room in the store. Called now and then.
    pub fn retry_waiting_for_room(&self) {
        self.ask_for_room();
        self.rooms.look_again();
        if self.rooms.full_waiters.replace(false) {
            for host in self.hosts() {
                host.retry_for_room();
            }
        }
    }

    /// Answers with an error.
    pub(crate) fn reply_error(&self, op: &ClientOp, e: Errno) {
        op.reply(
            &Outcome { result: e.as_result(), no_output: true, ..Default::default() },
            self.epoch(),
            Versions::None,
        );
    }

    /// The error that stopped this OSD, if one did.
    pub fn failed(&self) -> Option<String> {
        self.health.failed()
    }

    /// Waits for the error that stops this OSD.
    pub async fn failure(&self) -> String {
        self.health.failure().await
    }

    /// Answers no request from now on, so that the monitors can be told that this OSD is gone for
    /// sure.
    pub fn seal(&self) {
        self.health.seal();
    }

    /// Learns from what was done since the last time, if that is enough. Called now and then.
    pub fn measure(&self, now: Instant) {
        self.admission.measure(&self.store.usage().unwrap_or_default(), now);
    }

    /// Takes what an earlier run has learned.
    pub fn restore_learned(&self, learned: &Learned) {
        self.admission.restore_learned(learned);
    }
}
