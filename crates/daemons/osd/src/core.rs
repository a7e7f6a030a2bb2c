//! One OSD without its network: groups, the store, the scheduler, the map. It takes maps, requests
//! and peers' messages, whoever brings them.

use crate::client_op::{ClientOp, ReplySink, Request, Slot, Versions, Work};
use crate::clock::{thread_cpu, with_starting};
use crate::host::PgHost;
use crate::host_backfill::RecoveryTurns;
use crate::host_scrub::{ScrubSettings, Scrubs};
use crate::host_trim::{TrimSettings, Turns};
use crate::map::ClusterMapRef;
use crate::peer_net::{Envelope, PeerNet};
use crate::perf::PerfCounters;
use crate::tracker::{Stage, Tracker};
use admission::legs::{Marks, Peers, Spent, Took};
use admission::meter::{Meter, Receipt, Thread, Usage};
use admission::work::Queue;
use objops::copy::CopySource;
use objops::{Limits, OpInfo, OsdFlags};
use pg::{MapRef, PeerMsg, Pg, PgConf, creation};
use rustc_hash::FxHashMap;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant, SystemTime};
use store::dev::Served;
use store::{Commit, StatFs, Store, StoreError, Transaction};
use types::{Epoch, Errno, OsdId, PgId, PgShard, SpgId, Utime};

/// What an OSD asks of the monitors.
pub trait MonLink {
    /// Record that this OSD was alive in this epoch.
    fn want_up_thru(&self, epoch: Epoch);
    /// Ask for another acting set; empty takes the wish back.
    fn want_pg_temp(&self, pgid: PgId, acting: Vec<OsdId>);
    /// Fetch maps up to this epoch.
    fn want_map(&self, epoch: Epoch);
    /// Write a line to the cluster log; `error` says that something is wrong.
    fn cluster_log(&self, _error: bool, _text: String) {}
}

/// Settings that operations depend on. Changed while the OSD runs.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Limits of operations.
    pub limits: Limits,
    /// Object classes that clients can call.
    pub classes: cls::Registry,
    /// Options of groups.
    pub pg: PgConf,
    /// Operations in execution at a time; others wait in the scheduler. 0: as many as
    /// [`qos::Window`] says.
    pub window: usize,
    /// Object contexts that a group keeps without use.
    pub idle_contexts: usize,
    /// Options of trimming.
    pub trim: TrimSettings,
    /// Options of scrubs.
    pub scrub: ScrubSettings,
    /// `osd_max_backfills`: groups that copy from this OSD, and groups that are copied to it.
    pub backfills: usize,
    /// Objects that are recovered at a time, over all groups.
    pub recovery_active: usize,
    /// `osd_pause_pg_deletion`: copies that nobody needs stay.
    pub deletion_paused: bool,
    /// `osd_client_watch_timeout`, in seconds.
    pub watch_timeout: u32,
    /// `osd_default_notify_timeout`, in seconds.
    pub notify_timeout: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            limits: Limits::default(),
            classes: cls::Registry::builtin(),
            pg: PgConf::default(),
            window: 0,
            idle_contexts: 64,
            trim: TrimSettings::default(),
            scrub: ScrubSettings::default(),
            backfills: 1,
            recovery_active: 10,
            deletion_paused: false,
            watch_timeout: 30,
            notify_timeout: 30,
        }
    }
}

/// What an OSD is made of.
pub struct Parts {
    /// Its number.
    pub whoami: OsdId,
    /// Where it keeps its objects.
    pub store: Rc<Store>,
    /// How it reaches others.
    pub net: Rc<dyn PeerNet>,
    /// How it reaches the monitors.
    pub mon: Rc<dyn MonLink>,
    /// How it reads objects of other groups.
    pub copies: Rc<dyn CopySource>,
    /// The scheduler.
    pub queue: Box<dyn Queue<ClientOp>>,
    /// Settings.
    pub settings: Settings,
}

/// See the module.
pub struct Core {
    /// The OSD's number.
    pub whoami: OsdId,
    /// The store.
    pub store: Rc<Store>,
    /// Counters.
    pub perf: Rc<PerfCounters>,
    /// Counters by image, for the next report.
    pub images: crate::images::ImageStats,
    /// Operations in flight and recent slow ones.
    pub tracker: Rc<Tracker>,
    pub(crate) net: Rc<dyn PeerNet>,
    pub(crate) mon: Rc<dyn MonLink>,
    pub(crate) copies: Rc<dyn CopySource>,
    settings: RefCell<Rc<Settings>>,
    map: RefCell<Option<ClusterMapRef>>,
    hosts: RefCell<FxHashMap<SpgId, Rc<PgHost>>>,
    unborn: RefCell<creation::UnbornPgs>,
    /// Copies of groups that were here since the start.
    copies_made: Cell<u64>,
    waiting_map: RefCell<BTreeMap<Epoch, Vec<Waiting>>>,
    /// Requests for groups that this OSD leads by the map, but does not have yet.
    waiting_pg: RefCell<FxHashMap<SpgId, Vec<Rc<ClientOp>>>>,
    /// Clients that must see the newest map, by session: see [`Core::drop_request`].
    to_tell: RefCell<FxHashMap<u64, (Rc<dyn ReplySink>, Epoch)>>,
    /// Waiting requests were looked through for those that are not for this OSD any more since some
    /// group last had another leader, in this epoch.
    void_before: Cell<Epoch>,
    /// There are such clients.
    pub(crate) tell_clients: tokio::sync::Notify,
    queue: RefCell<Box<dyn Queue<ClientOp>>>,
    running: Cell<usize>,
    /// Those of clients.
    clients_running: Cell<usize>,
    window: RefCell<qos::Window>,
    meter: RefCell<Meter>,
    /// How long other OSDs take for their copies.
    pub(crate) peers: RefCell<Peers>,
    /// Counts turns that ended without a look at the clock.
    unmeasured: Cell<u32>,
    /// Where the window's time begins.
    start: Instant,
    clients_started: Cell<u64>,
    /// Which groups trim, and which want to.
    pub(crate) trim_turns: RefCell<Turns>,
    /// Which groups backfill, and which want to.
    pub(crate) recovery_turns: RefCell<RecoveryTurns>,
    /// Which groups may begin to recover an object.
    pub(crate) places: RefCell<pg::Places<SpgId>>,
    /// Which groups are scrubbed, and which are to be.
    pub(crate) scrubs: RefCell<Scrubs>,
    /// What background work has done.
    pub(crate) jobs: crate::jobs::Jobs,
    /// Bad copies here that were replaced by good ones, since the start.
    pub(crate) shards_repaired: Cell<u64>,
    dispatching: Cell<bool>,
    /// Wakes the task that lets queued work in, if there is one.
    work_waits: tokio::sync::Notify,
    has_runner: Cell<bool>,
    /// A group became active, or stopped being it: the manager should know soon.
    pub(crate) groups_changed: tokio::sync::Notify,
    /// Some group has requests that wait for room.
    pub(crate) full_waiters: Cell<bool>,
    /// The used part of the store from which clients' writes wait.
    failsafe: Cell<f64>,
    /// What others have room for.
    pub(crate) rooms: crate::rooms::Rooms,
    /// When the earliest timer for the scheduler fires.
    timer: Cell<Option<Instant>>,
    next_token: Cell<u64>,
    pub(crate) watch_clock: crate::host_watch::WatchClock,
    /// Transactions that the store could not take yet, in order.
    backlog: RefCell<std::collections::VecDeque<(Transaction, Done)>>,
    /// What the transactions in `backlog` write: space that is as good as used.
    backlog_bytes: Cell<u64>,
    /// Notified when the backlog is empty again.
    flows: tokio::sync::Notify,
    /// The OSD is about to say that it has stopped: nothing is answered any more.
    sealed: Cell<bool>,
    failed: RefCell<Option<String>>,
    failure: tokio::sync::Notify,
    me: Weak<Core>,
}

/// Called with the outcome of a transaction.
type Done = Box<dyn FnOnce(Result<(), StoreError>)>;

/// What waits for a map.
enum Waiting {
    Op(Rc<ClientOp>),
    Peer(Box<Envelope>),
}

/// Fewer operations than these are not worth ordering, ...
const LEAST_IN_FLIGHT: usize = 4;
/// ... and more than these are not needed by any store.
const MOST_IN_FLIGHT: usize = 256;
/// For so long queued work runs before sockets are read again.
const TURN: Duration = Duration::from_micros(50);
/// How long work that nobody waits for rests after a turn.
const REST: Duration = Duration::from_millis(1);

/// Lets queued work in, a little at a time, and lets everybody else on this thread run in between.
///
/// An operation that the processor does at once never waits for a place in the admission window.
/// Were it started as soon as it has been read, the order in which sockets are read would decide,
/// and who has many of them would get most. Reading goes first, therefore: what has arrived is in
/// the scheduler before it decides.
pub fn run_queued(core: &Rc<Core>) -> impl Future<Output = ()> + use<> {
    core.has_runner.set(true);
    let core = Rc::downgrade(core);
    async move {
        while let Some(c) = core.upgrade() {
            if c.run_some(Some(TURN)) {
                drop(c);
                // Wakes this task when sockets have been looked at and whoever got something from
                // them has run.
                tokio::task::yield_now().await;
            } else {
                c.work_waits.notified().await;
            }
        }
    }
}

/// What a store did, for the meter.
fn used(usage: &store::Usage) -> Usage {
    let of = |served: &[Served; admission::meter::SIZES]| {
        served.map(|s| qos::Taken { count: s.count, bytes: s.bytes, nanos: s.nanos })
    };
    Usage {
        transactions: usage.transactions,
        data: usage.data,
        device: [of(&usage.device.reads), of(&usage.device.writes)],
        busy: usage.device.busy,
    }
}

/// The wall clock.
pub fn wall_now() -> Utime {
    Utime::from_duration(
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default(),
    )
}

impl Core {
    /// An OSD without groups and without a map.
    pub fn new(parts: Parts) -> Rc<Core> {
        Rc::new_cyclic(|me| Core {
            whoami: parts.whoami,
            store: parts.store,
            perf: Rc::default(),
            images: Default::default(),
            tracker: Rc::default(),
            net: parts.net,
            mon: parts.mon,
            copies: parts.copies,
            settings: RefCell::new(Rc::new(parts.settings)),
            map: RefCell::new(None),
            hosts: RefCell::default(),
            unborn: RefCell::default(),
            copies_made: Cell::new(0),
            waiting_map: RefCell::default(),
            waiting_pg: RefCell::default(),
            to_tell: RefCell::default(),
            void_before: Cell::default(),
            tell_clients: tokio::sync::Notify::new(),
            queue: RefCell::new(parts.queue),
            running: Cell::new(0),
            clients_running: Cell::new(0),
            window: RefCell::new(qos::Window::new(
                LEAST_IN_FLIGHT,
                MOST_IN_FLIGHT,
                wall_now().as_duration().as_nanos() as u64,
            )),
            meter: RefCell::new(Meter::new(Instant::now())),
            peers: RefCell::default(),
            unmeasured: Cell::new(0),
            start: Instant::now(),
            clients_started: Cell::new(0),
            trim_turns: RefCell::default(),
            recovery_turns: RefCell::default(),
            places: RefCell::default(),
            scrubs: RefCell::default(),
            jobs: Default::default(),
            shards_repaired: Cell::new(0),
            dispatching: Cell::new(false),
            work_waits: tokio::sync::Notify::new(),
            has_runner: Cell::new(false),
            groups_changed: tokio::sync::Notify::new(),
            full_waiters: Cell::new(false),
            failsafe: Cell::new(1.0),
            rooms: Default::default(),
            timer: Cell::new(None),
            next_token: Cell::new(0),
            watch_clock: Default::default(),
            backlog: RefCell::default(),
            backlog_bytes: Cell::default(),
            flows: tokio::sync::Notify::new(),
            sealed: Cell::new(false),
            failed: RefCell::default(),
            failure: tokio::sync::Notify::new(),
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
        *self.settings.borrow_mut() = Rc::new(settings);
        self.next_turns();
        self.next_places();
        self.resume_removals();
        self.dispatch();
    }

    /// The scheduler.
    pub fn with_queue<R>(&self, f: impl FnOnce(&mut dyn Queue<ClientOp>) -> R) -> R {
        f(&mut **self.queue.borrow_mut())
    }

    /// The newest map.
    pub fn map(&self) -> Option<ClusterMapRef> {
        self.map.borrow().clone()
    }

    /// The newest map's epoch, 0 without a map.
    pub fn epoch(&self) -> Epoch {
        self.map.borrow().as_ref().map_or(Epoch(0), |m| m.epoch())
    }

    /// All groups.
    pub fn hosts(&self) -> Vec<Rc<PgHost>> {
        self.hosts.borrow().values().cloned().collect()
    }

    /// How many groups are here.
    pub fn num_hosts(&self) -> usize {
        self.hosts.borrow().len()
    }

    /// Does something for each group that nobody waits for. Clients are served on the same thread,
    /// and there may be many groups: this rests after a few.
    pub(crate) async fn for_each_host(&self, mut f: impl FnMut(&PgHost)) {
        let all: Vec<SpgId> = self.hosts.borrow().keys().copied().collect();
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

    /// The groups that this OSD leads, and the epoch since which one of them is not clean: maps
    /// from then on are needed. This OSD's epoch if all are clean.
    pub fn last_epoch_clean(&self) -> (Vec<PgId>, Epoch) {
        let mut least = self.epoch();
        let mut leads = Vec::new();
        for host in self.hosts.borrow().values() {
            host.with_pg(|pg| {
                if pg.is_primary() {
                    leads.push(host.pgid);
                    least = least.min(if pg.is_clean() {
                        pg.epoch()
                    } else {
                        pg.info().history.last_epoch_clean
                    });
                }
            });
        }
        (leads, least)
    }

    /// A copy, if this OSD has it.
    pub fn host(&self, id: SpgId) -> Option<Rc<PgHost>> {
        self.hosts.borrow().get(&id).cloned()
    }

    /// The copy of a group that leads it by the newest map, if this OSD has it.
    pub fn leading(&self, pgid: PgId) -> Option<Rc<PgHost>> {
        let primary = self.map()?.mapping(pgid).primary?;
        if primary.osd == self.whoami {
            self.host(SpgId { pgid, shard: primary.shard })
        } else {
            None
        }
    }

    /// A copy of a group that this OSD has, preferably the one that leads.
    pub fn any_copy(&self, pgid: PgId) -> Option<Rc<PgHost>> {
        let any = || self.hosts.borrow().values().find(|h| h.pgid == pgid).cloned();
        self.leading(pgid).or_else(any)
    }

    /// The error that stopped this OSD, if one did.
    pub fn failed(&self) -> Option<String> {
        self.failed.borrow().clone()
    }

    /// Waits for the error that stops this OSD.
    pub async fn failure(&self) -> String {
        loop {
            let mut next = std::pin::pin!(self.failure.notified());
            next.as_mut().enable();
            if let Some(why) = self.failed() {
                return why;
            }
            next.await;
        }
    }

    pub(crate) fn fail(&self, why: String) {
        tracing::error!(osd = self.whoami.0, "{why}");
        self.failed.borrow_mut().get_or_insert(why);
        self.failure.notify_waiters();
    }

    pub(crate) fn new_token(&self) -> u64 {
        self.next_token.set(self.next_token.get() + 1);
        self.next_token.get()
    }

    /// Answers no request from now on, so that the monitors can be told that this OSD is gone for
    /// sure.
    pub fn seal(&self) {
        self.sealed.set(true);
    }

    /// Whether [`Core::seal`] was called.
    pub(crate) fn is_sealed(&self) -> bool {
        self.sealed.get()
    }

    // --- maps ---

    /// The state of unborn groups, to be stored with the epoch processed.
    pub fn unborn(&self) -> creation::UnbornPgs {
        self.unborn.borrow().clone()
    }

    /// Adds a group that was loaded from the store. Later maps follow with [`Core::advance_map`].
    pub fn add_loaded(&self, pg: Pg) -> Rc<PgHost> {
        let host = PgHost::new(self.rc(), pg);
        self.hosts.borrow_mut().insert(host.id, host.clone());
        host
    }

    /// Takes the next map. With `first`, maps before it are not known: groups are not born in it.
    pub fn advance_map(&self, map: ClusterMapRef, first: bool) {
        let view: MapRef = map.clone();
        let born = {
            let mut unborn = self.unborn.borrow_mut();
            let pools = map.pools();
            if first {
                unborn.skip(&*view, &pools);
                Vec::new()
            } else {
                unborn.advance(self.whoami, &*view, &pools)
            }
        };
        self.join_groups(&view);
        for host in self.hosts() {
            self.next_map_of(&host, &view);
        }
        *self.map.borrow_mut() = Some(map);
        for pgid in born {
            if self.host(pgid).is_none() {
                let conf = self.settings().pg.clone();
                if let Some(pg) = Pg::create(self.whoami, pgid, view.clone(), conf, wall_now()) {
                    self.add_host(pg);
                }
            }
        }
    }

    /// The last map given is the newest, and this OSD is up in it: groups may peer, and what waited
    /// for maps goes on.
    pub fn activate_map(&self) {
        self.drop_void();
        for host in self.hosts() {
            host.handle(pg::Event::ActivateMap);
            host.end_watches_of_blocked();
        }
        self.count_leaders();
        let epoch = self.epoch();
        let ready = {
            let mut waiting = self.waiting_map.borrow_mut();
            let later = waiting.split_off(&epoch.next());
            std::mem::replace(&mut *waiting, later)
        };
        for w in ready.into_values().flatten() {
            match w {
                Waiting::Op(op) => self.route(op),
                Waiting::Peer(e) => self.handle_peer(*e),
            }
        }
        let stale: Vec<SpgId> = self.waiting_pg.borrow().keys().copied().collect();
        for pgid in stale {
            self.requeue_waiting_pg(pgid);
        }
    }

    /// A number for a copy of a group that was never given before.
    pub(crate) fn next_copy(&self) -> u64 {
        self.copies_made.set(self.copies_made.get() + 1);
        self.copies_made.get()
    }

    pub(crate) fn add_host(&self, pg: Pg) -> Rc<PgHost> {
        let host = PgHost::new(self.rc(), pg);
        self.hosts.borrow_mut().insert(host.id, host.clone());
        host.pump();
        self.requeue_waiting_pg(host.id);
        host
    }

    pub(crate) fn forget_host(&self, id: SpgId) {
        self.hosts.borrow_mut().remove(&id);
    }

    fn requeue_waiting_pg(&self, id: SpgId) {
        let ops = self.waiting_pg.borrow_mut().remove(&id);
        for op in ops.into_iter().flatten() {
            self.route(op);
        }
    }

    // --- peers ---

    /// Takes a message from another OSD.
    pub fn handle_peer(&self, e: Envelope) {
        if let Some(room) = e.room {
            self.rooms.hear(e.from, room);
        }
        if let Some(host) = self.host(e.header.receiver()) {
            match &e.msg {
                PeerMsg::RepOp(_) => {
                    self.perf.subop.inc();
                    self.perf.subop_w.inc();
                }
                PeerMsg::RepOpReply { version } => host.replica_has(e.from, *version),
                PeerMsg::Push(_) => self.check_backfillfull(),
                _ => {}
            }
            host.handle(pg::Event::Peer { from: e.from, header: e.header, msg: e.msg });
            return;
        }
        let Some(map) = self.map() else {
            self.wait_map(e.header.sent, Waiting::Peer(Box::new(e)));
            return;
        };
        let view: MapRef = map;
        match creation::stranger(self.whoami, e.from, &e.header, &e.msg, &*view) {
            creation::Stranger::Adopt => {
                let conf = self.settings().pg.clone();
                let pg = Pg::adopt(self.whoami, view, conf, &e.header, &e.msg, wall_now());
                if let Some(pg) = pg {
                    let host = self.add_host(pg);
                    host.handle(pg::Event::Peer { from: e.from, header: e.header, msg: e.msg });
                }
            }
            creation::Stranger::Answer(header, msg) => {
                let to = PgShard { osd: e.from, shard: header.to };
                self.net.send(&[to], header, msg, self.room())
            }
            creation::Stranger::Drop => {}
            creation::Stranger::WaitForMap => {
                self.wait_map(e.header.sent, Waiting::Peer(Box::new(e)))
            }
        }
    }

    fn wait_map(&self, epoch: Epoch, what: Waiting) {
        self.perf.messages_delayed_for_map.inc();
        self.waiting_map.borrow_mut().entry(epoch).or_default().push(what);
        self.mon.want_map(epoch);
    }

    // --- requests ---

    /// Takes a client's request. `allowed` decides whether the client's capabilities cover it.
    pub fn handle_request(
        &self,
        request: Request,
        sink: Rc<dyn ReplySink>,
        guard: Option<msgr::ReceiveGuard>,
        allowed: impl FnOnce(&Request, &OpInfo) -> bool,
    ) {
        let request = Rc::new(request);
        let tracked = self.tracker.start(request.clone(), Instant::now());
        let (info, refused) =
            match OpInfo::new(request.m.flags, &request.m.ops, &self.settings().classes) {
                Ok(info) if request.m.flags.has(OsdFlags::PARALLELEXEC) => {
                    (info, Some(Errno::EINVAL))
                }
                Ok(info) if !allowed(&request, &info) => (info, Some(Errno::EPERM)),
                Ok(info) => (info, None),
                Err(e) => (OpInfo::default(), Some(e)),
            };
        let raw = PgId { pool: request.m.pgid.pgid.pool, seed: request.m.pgid.pgid.seed };
        let op = Rc::new(ClientOp::new(request, info, raw, sink, tracked, guard));
        if let Some(e) = refused {
            op.reply_error(e, self.epoch());
            return;
        }
        self.route(op);
    }

    /// Finds the group of a request and queues it there, or lets it wait, or drops it.
    pub(crate) fn route(&self, op: Rc<ClientOp>) {
        let m = op.m();
        if m.epoch > self.epoch() {
            op.tracked.delayed("waiting for map");
            self.wait_map(m.epoch, Waiting::Op(op));
            return;
        }
        let Some(map) = self.map() else { return };
        let Some(pgid) = map.fold(op.pgid) else {
            // The pool is gone, or the client is mistaken.
            return self.drop_request(&op);
        };
        let op = if pgid == op.pgid { op } else { self.refold(op, pgid) };
        // Clients name the copy that leads; in replicated pools that has no position.
        let id = op.copy();
        match self.host(id) {
            Some(host)
                if host.with_pg(|pg| pg.is_primary() && pg.is_active())
                    && host.is_sign_of_life(&op) =>
            {
                op.tracked.mark(Stage::ReachedPg);
                host.run_client_op(op);
            }
            Some(host) if host.may_serve(&op) => {
                if let Some(op) = host.wait_if_not_ready(op) {
                    op.tracked.mark(Stage::Queued);
                    self.enqueue(Work::Client(op));
                }
            }
            Some(_) => self.drop_request(&op),
            None if map.mapping(pgid).primary == Some(self.copy_here(id)) => {
                op.tracked.delayed("waiting for pg");
                self.waiting_pg.borrow_mut().entry(id).or_default().push(op);
            }
            None => self.drop_request(&op),
        }
    }

    /// The name of a copy that this OSD has.
    fn copy_here(&self, id: SpgId) -> PgShard {
        PgShard { osd: self.whoami, shard: id.shard }
    }

    /// A request whose group was split meanwhile.
    fn refold(&self, op: Rc<ClientOp>, pgid: PgId) -> Rc<ClientOp> {
        match Rc::try_unwrap(op) {
            Ok(mut op) => {
                op.pgid = pgid;
                Rc::new(op)
            }
            Err(shared) => shared,
        }
    }

    /// Drops a request that this OSD must not answer: by a map that its client had not seen when it
    /// sent it, another OSD leads the group, or this one leads it anew. The client sends it again
    /// when it has seen that map. One that has nothing else under way hears of no map for as long
    /// as it waits (Ceph's clients look for one after `objecter_timeout`, 10 s), so it is told.
    pub(crate) fn drop_request(&self, op: &ClientOp) {
        if op.is_replied() || !op.sink().is_open() || op.sink().client().is_none() {
            return;
        }
        let sent = op.m().epoch;
        tracing::debug!(osd = self.whoami.0, pg = %op.pgid, client = %op.request.source, %sent, "request dropped");
        let mut clients = self.to_tell.borrow_mut();
        let (_, oldest) =
            clients.entry(op.sink().session()).or_insert_with(|| (op.sink().clone(), sent));
        *oldest = sent.min(*oldest);
        self.tell_clients.notify_one();
    }

    /// Groups may have other leaders than before: requests that wait for their turn and that this
    /// OSD must not answer any more are dropped. Their clients send them to whom they belong to
    /// now. If they stayed, those behind them would wait for them, and the manager would take them
    /// for something that is asked for.
    pub fn drop_void(&self) {
        let newest = self
            .hosts
            .borrow()
            .values()
            .map(|h| h.with_pg(|pg| pg.info().history.same_primary_since))
            .max()
            .unwrap_or_default();
        let Some(map) = self.map().filter(|_| newest > self.void_before.replace(newest)) else {
            return;
        };
        let is_void = |op: &ClientOp| {
            let resend = map.pool_ops(op.pgid.pool).map(|pool| pool.last_force_op_resend);
            resend.zip(self.host(op.copy())).is_some_and(|(resend, host)| host.is_void(op, resend))
        };
        let out = self.queue.borrow_mut().take_out(&is_void, Instant::now());
        out.iter().for_each(|op| self.drop_request(op));
    }

    /// A client's connection is gone: what waits for its turn the client sends again, if it still
    /// wants it (Ceph: `osd_discard_disconnected_ops`).
    pub(crate) fn drop_requests_of(&self, session: u64) {
        let gone =
            self.queue.borrow_mut().take_out(&|op| op.sink().session() == session, Instant::now());
        // Not while somebody has the queue: what goes with them may make room for others.
        drop(gone);
    }

    /// Clients whose requests were dropped since the last call, with the oldest map that one of
    /// these was sent by.
    pub(crate) fn clients_to_tell(&self) -> Vec<(Rc<dyn ReplySink>, Epoch)> {
        std::mem::take(&mut *self.to_tell.borrow_mut()).into_values().collect()
    }

    // --- scheduling ---

    /// Queues work.
    pub fn enqueue(&self, work: Work) {
        let now = Instant::now();
        if let Work::Client(op) = &work {
            self.window.borrow_mut().comes(
                op.sink().session(),
                op.info.may_write(),
                self.since_start(now),
            );
        }
        self.queue.borrow_mut().enqueue(work, now);
        self.dispatch();
    }

    /// Runs queued work while the admission window has room: at once, or by the task of
    /// [`run_queued`].
    pub fn dispatch(&self) {
        if self.has_runner.get() {
            self.work_waits.notify_one();
        } else {
            self.run_some(None);
        }
    }

    /// Runs queued work for a while; whether there is more that may run.
    fn run_some(&self, turn: Option<Duration>) -> bool {
        if self.dispatching.replace(true) {
            return false;
        }
        let mut begun = None;
        let mut more = false;
        // What was started last, and when.
        let mut last: Option<(Instant, Receipt)> = None;
        loop {
            let now = Instant::now();
            let full = self.is_full();
            if full && !self.has_room_beyond(now) {
                break;
            }
            if let Some((since, receipt)) = last.take() {
                self.meter
                    .borrow_mut()
                    .started(&receipt, Some(now.saturating_duration_since(since)));
            }
            if self.meter.borrow().is_due(now) {
                self.measure(now);
            }
            if turn
                .is_some_and(|turn| now.saturating_duration_since(*begun.get_or_insert(now)) > turn)
            {
                more = true;
                break;
            }
            let next = {
                let mut queue = self.queue.borrow_mut();
                if self.clients_running.get() == 0 {
                    queue.clients_left(now);
                }
                if full {
                    queue
                        .dequeue_behind(now)
                        .map(|(work, receipt)| admission::work::Next::Work(work, receipt))
                } else {
                    Some(queue.dequeue(now))
                }
            };
            let Some(next) = next else { break };
            match next {
                admission::work::Next::Work(work, receipt) => {
                    last = matches!(work, Work::Client(_)).then_some((now, receipt));
                    self.start(work, receipt);
                }
                admission::work::Next::Empty => {
                    self.nothing_waits(now);
                    break;
                }
                admission::work::Next::At(t) => {
                    self.nothing_waits(now);
                    self.arm_timer(t);
                    break;
                }
            }
        }
        if let Some((since, receipt)) = last {
            // The clock is looked at for some of these: they are like the others.
            let n = self.unmeasured.replace(self.unmeasured.get().wrapping_add(1));
            let took = n.is_multiple_of(8).then(|| since.elapsed());
            self.meter.borrow_mut().started(&receipt, took);
        }
        if self.meter.borrow().is_idle()
            && (self.is_full() && !self.queue.borrow().is_empty() || self.has_more_than_enough())
        {
            self.meter.borrow_mut().waits(Instant::now());
        }
        self.dispatching.set(false);
        more
    }

    /// Tells the meter that the scheduler has nothing that may go on.
    fn nothing_waits(&self, now: Instant) {
        if !self.has_more_than_enough() {
            self.meter.borrow_mut().idle(now);
        }
    }

    /// Whether the admission window is full.
    fn is_full(&self) -> bool {
        self.running.get() >= self.window()
    }

    /// Whether somebody who has had less than others may go, although the window is full.
    fn has_room_beyond(&self, now: Instant) -> bool {
        self.settings.borrow().window == 0
            && self.running.get()
                < self.window() + self.window.borrow().beyond(self.since_start(now))
    }

    /// Whether what would wait for the window is in execution, because there is nobody who could be
    /// ordered.
    fn has_more_than_enough(&self) -> bool {
        self.settings.borrow().window == 0 && self.running.get() > self.window.borrow().enough()
    }

    /// Learns from what was done since the last time, if that is enough. Called now and then.
    pub fn measure(&self, now: Instant) {
        let usage = used(&self.store.usage().unwrap_or_default());
        let mut meter = self.meter.borrow_mut();
        let looked = with_starting(|starting| {
            meter.look(usage, Thread { cpu: thread_cpu(), starting }, now)
        });
        if looked {
            let saturated = meter.is_saturated(now);
            self.queue.borrow_mut().learned(
                meter.model().charges(),
                meter.capacity().trusted(),
                saturated,
                now,
            );
        }
    }

    /// What was learned of costs and capacity: for people, and to be kept.
    pub(crate) fn with_meter<R>(&self, f: impl FnOnce(&mut Meter) -> R) -> R {
        f(&mut self.meter.borrow_mut())
    }

    /// Takes what an earlier run has learned.
    pub fn restore_learned(&self, learned: &admission::meter::Learned) {
        let mut meter = self.meter.borrow_mut();
        meter.restore(learned);
        self.queue.borrow_mut().learned(
            meter.model().charges(),
            meter.capacity().trusted(),
            false,
            Instant::now(),
        );
    }

    /// Background work has really read so many bytes.
    pub(crate) fn has_read(&self, receipt: &Receipt, bytes: u64) {
        self.meter.borrow_mut().read(bytes);
        self.queue.borrow_mut().settle(receipt, bytes, 0);
    }

    /// How many groups trim snapshots.
    pub fn trimming_groups(&self) -> usize {
        self.trim_turns.borrow().trimming()
    }

    /// Lets groups begin to trim whose turn it is.
    pub(crate) fn next_trims(&self) {
        loop {
            let most = self.settings().trim.groups;
            let next = self.trim_turns.borrow_mut().next(most);
            let Some(pgid) = next else { break };
            match self.host(pgid) {
                Some(host) => host.begin_trim(),
                None => self.trim_turns.borrow_mut().leave(pgid),
            }
        }
    }

    fn arm_timer(&self, at: Instant) {
        if self.timer.get().is_some_and(|t| t <= at) {
            return;
        }
        self.timer.set(Some(at));
        let me = self.me.clone();
        tokio::task::spawn_local(async move {
            tokio::time::sleep_until(at.into()).await;
            if let Some(core) = me.upgrade() {
                if core.timer.get() == Some(at) {
                    core.timer.set(None);
                }
                core.dispatch();
            }
        });
    }

    fn slot(&self, client: bool) -> Slot {
        self.running.set(self.running.get() + 1);
        self.clients_running.set(self.clients_running.get() + usize::from(client));
        let me = self.me.clone();
        Slot(Box::new(move || {
            if let Some(core) = me.upgrade() {
                core.running.set(core.running.get() - 1);
                if client {
                    core.client_ended();
                }
                core.dispatch();
            }
        }))
    }

    /// A client's operation is not in execution any more.
    fn client_ended(&self) {
        let left = self.clients_running.get() - 1;
        self.clients_running.set(left);
        // Whoever has the queue looks for this before it goes on.
        if left == 0
            && let Ok(mut queue) = self.queue.try_borrow_mut()
        {
            queue.clients_left(Instant::now());
        }
    }

    fn start(&self, work: Work, receipt: Receipt) {
        if receipt.sure {
            return self.start_now(work, receipt);
        }
        let before = thread_cpu();
        self.start_now(work, receipt);
        let took = thread_cpu().saturating_sub(before);
        let excess = self.meter.borrow().excess(&receipt, took);
        if excess > 0 {
            self.queue.borrow_mut().settle(&receipt, receipt.bytes, excess);
        }
    }

    fn start_now(&self, work: Work, receipt: Receipt) {
        let slot = self.slot(matches!(work, Work::Client(_)));
        match work {
            Work::Client(op) => {
                op.tracked.mark(Stage::ReachedPg);
                self.clients_started.set(self.clients_started.get() + 1);
                *op.slot.borrow_mut() = Some(slot);
                op.tags.receipt.set(receipt);
                match self.host(op.copy()) {
                    Some(host) => host.run_client_op(op),
                    None => self.drop_request(&op),
                }
            }
            Work::Background(mut job) => {
                job.receipt = receipt;
                // What a copy left behind that is gone is not for the one that came after it: least
                // of all its removal.
                if let Some(host) = self.host(job.pgid).filter(|h| h.copy == job.copy) {
                    host.run_background(job, slot);
                }
            }
        }
    }

    /// Requests of clients started so far.
    pub(crate) fn clients_started(&self) -> u64 {
        self.clients_started.get()
    }

    /// Work that may be in execution at a time.
    pub fn window(&self) -> usize {
        match self.settings.borrow().window {
            0 => self.window.borrow().size(self.since_start(Instant::now())),
            fixed => fixed,
        }
    }

    /// The window's time, in nanoseconds.
    fn since_start(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.start).as_nanos() as u64
    }

    /// What the window goes by, for people.
    pub fn window_taken(&self) -> serde_json::Value {
        let of = |(took, among): (u64, u64)| serde_json::json!({"seconds": took as f64 / 1e9, "among": among as f64 / 100.0});
        let [few, last] = self.window.borrow().taken();
        serde_json::json!({"among_few": of(few), "last": of(last), "enough": self.window.borrow().enough()})
    }

    /// Work in execution.
    pub fn running(&self) -> usize {
        self.running.get()
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

    /// Takes the map and the state of unborn groups that the store knew, before loaded groups are
    /// added.
    pub fn restore(&self, map: ClusterMapRef, unborn: creation::UnbornPgs) {
        *self.map.borrow_mut() = Some(map);
        *self.unborn.borrow_mut() = unborn;
    }

    /// Forgets all groups, so that nothing keeps the store open.
    pub fn clear(&self) {
        self.hosts.borrow_mut().clear();
        self.waiting_map.borrow_mut().clear();
        self.waiting_pg.borrow_mut().clear();
        self.to_tell.borrow_mut().clear();
    }

    // --- the store ---

    /// Applies a transaction and calls `done` when it is durable. Transactions take effect in the
    /// order of the calls.
    pub(crate) fn submit(
        &self,
        txn: Transaction,
        done: impl FnOnce(Result<(), StoreError>) + 'static,
    ) {
        if self.backlog.borrow().is_empty() && !self.store.congested() {
            match self.store.submit(txn) {
                Ok(commit) => return commit.then(done),
                Err(e) => return done(Err(e)),
            }
        }
        let first = {
            let mut backlog = self.backlog.borrow_mut();
            self.backlog_bytes.set(self.backlog_bytes.get() + txn.payload_bytes());
            backlog.push_back((txn, Box::new(done)));
            backlog.len() == 1
        };
        if first {
            let me = self.rc();
            tokio::task::spawn_local(async move { me.drain_backlog().await });
        }
    }

    /// Whether transactions wait for the store. What they change cannot be read yet, so nothing may
    /// be executed meanwhile.
    pub(crate) fn is_stalled(&self) -> bool {
        !self.backlog.borrow().is_empty()
    }

    /// Waits, if transactions wait for the store, until those are in it. Who executes a request
    /// does this when it has its place in the order of its object: then what is there is what all
    /// before it have made of it. It keeps its place in the admission window, so that a store that
    /// cannot follow does not empty the scheduler. It goes on even if transactions wait again by
    /// then: those are about other objects, and while others write there might always be some.
    pub(crate) async fn store_takes(&self) {
        if self.is_stalled() {
            self.flows.notified().await;
        }
    }

    /// Waits while transactions wait for the store, whatever they are about.
    pub(crate) async fn store_flows(&self) {
        while self.is_stalled() {
            let mut flows = std::pin::pin!(self.flows.notified());
            flows.as_mut().enable();
            if self.is_stalled() {
                flows.await;
            }
        }
    }

    /// The store takes nothing until [`Core::flow`].
    #[cfg(test)]
    pub(crate) fn stall(&self) {
        self.backlog.borrow_mut().push_back((Transaction::new(), Box::new(|_| ())));
    }

    /// Transactions that wait for the store.
    #[cfg(test)]
    pub(crate) fn backlog_len(&self) -> usize {
        self.backlog.borrow().len()
    }

    /// See [`Core::stall`].
    #[cfg(test)]
    pub(crate) fn flow(&self) {
        let me = self.rc();
        tokio::task::spawn_local(async move { me.drain_backlog().await });
    }

    /// When the store has room, all that waits goes in together, though that be more than a
    /// checkpoint's pace allows at that moment, and then whoever waits to execute something goes
    /// on. One at a time, what others send would keep these waiting for ever. How much it is, is
    /// bounded by the admission windows of all OSDs.
    async fn drain_backlog(self: Rc<Self>) {
        while self.is_stalled() {
            if let Err(e) = self.store.admit().await {
                self.fail(format!("the store does not take transactions: {e}"));
                return;
            }
            while let Some((txn, done)) = self.next_of_backlog() {
                let submitted: Result<Commit, StoreError> = self.store.submit(txn);
                match submitted {
                    Ok(commit) => commit.then(done),
                    Err(e) => done(Err(e)),
                }
                if self.store.is_full() {
                    break;
                }
            }
        }
        self.flows.notify_waiters();
    }

    fn next_of_backlog(&self) -> Option<(Transaction, Done)> {
        let next = self.backlog.borrow_mut().pop_front();
        if let Some((txn, _)) = &next {
            self.backlog_bytes.set(self.backlog_bytes.get() - txn.payload_bytes());
        }
        next
    }

    /// The store's space, as it will be when what waits for the store is in it.
    pub(crate) fn space(&self) -> StatFs {
        let space = self.store.statfs();
        StatFs { available: space.available.saturating_sub(self.backlog_bytes.get()), ..space }
    }

    /// Whether a client's write that takes space must wait, whatever the map says (Ceph:
    /// `OSDService::check_failsafe_full`).
    pub(crate) fn is_failsafe_full(&self) -> bool {
        crate::fullness::used(&self.space()) > self.failsafe.get()
    }

    /// The used part of the store from which clients' writes wait.
    pub(crate) fn failsafe(&self) -> f64 {
        self.failsafe.get()
    }

    /// Sets the used part of the store from which clients' writes wait.
    pub fn set_failsafe(&self, ratio: f64) {
        self.failsafe.set(ratio);
    }

    /// Tries again what waits for room in the store. Called now and then.
    pub fn retry_waiting_for_room(&self) {
        self.rooms.look_again();
        if self.full_waiters.replace(false) {
            for host in self.hosts() {
                host.retry_for_room();
            }
        }
    }

    /// Counts a finished request, and what the change was that it made.
    pub(crate) fn count(&self, op: &ClientOp, in_bytes: u64, out_bytes: u64, flight: Option<Took>) {
        let total = op.received.elapsed();
        let queued = op.tracked.reached(Stage::ReachedPg).unwrap_or(Duration::ZERO);
        let began = op.tracked.reached(Stage::Started).unwrap_or(queued);
        let took = total.saturating_sub(began).as_nanos() as u64;
        let waiting = !self.queue.borrow().is_empty();
        let now = self.since_start(op.received + total);
        self.window.borrow_mut().ended(
            took,
            op.info.may_write(),
            self.running.get().saturating_sub(1),
            waiting,
            now,
        );
        let moved = if op.info.may_write() { in_bytes } else { out_bytes };
        let receipt = op.tags.receipt.get();
        let reached = |stage| op.tracked.reached(stage);
        let marks = Marks {
            reached: reached(Stage::ReachedPg),
            started: reached(Stage::Started),
            proposed: reached(Stage::WaitingForSubOps),
        };
        let spent = Spent::new(&op.tags.legs, marks, total, flight);
        let mut queue = self.queue.borrow_mut();
        if moved != receipt.bytes {
            queue.settle(&receipt, moved, 0);
        }
        queue.answered(total, op.received + total);
        queue.spent(op, &spent);
        drop(queue);
        let (r, w) = (op.info.may_read(), op.info.may_write());
        self.images.count(op.pgid.pool, &op.oid, r, w, in_bytes, out_bytes, total);
        self.perf.client_op(r, w, in_bytes, out_bytes, total, total.saturating_sub(queued));
    }

    /// Answers with an error.
    pub(crate) fn reply_error(&self, op: &ClientOp, e: Errno) {
        op.reply(
            &crate::client_op::Outcome {
                result: e.as_result(),
                no_output: true,
                ..Default::default()
            },
            self.epoch(),
            Versions::None,
        );
    }
}
