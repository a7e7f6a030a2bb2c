//! A rank: the core, and what carries its actions out.

mod clients;
mod counted;
mod damage;
mod exports;
mod forward;
mod health;
mod load;
mod onward;
mod scrub;
mod sessions;
mod told;
mod work;

use crate::convert::Pools;
use crate::follow::Follower;
use crate::log::LogWork;
use crate::server::Inner;
use crate::state::Progress;
use crate::store::Store;
use clients::Asked;
pub use clients::Client;
use damage::{Damage, DamageTable};
use mds::{Batch, Conf, Event, Mds, Token};
use messages::{FsOp, MdsHealth};
use msgr::{Connection, Message, ReceiveGuard};
use onward::Onward;
use scrub::Scrubs;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::{Rc, Weak};
use std::time::Duration;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::Instant;
use types::fsmap::{MdsMap, Owners};
use types::{Epoch, Errno, PoolId};

/// How often clients hear of what is used of quotas.
const QUOTA_EVERY: Duration = Duration::from_millis(250);
/// Requests that begin before the thread reads from sockets again.
const REQUESTS_AT_ONCE: usize = 4;
/// So long a batch of the log goes on filling while nothing waits for it. A client that dies
/// together with the server loses as much.
const LOG_PAUSE: Duration = Duration::from_millis(50);
/// Messages that wait until the rank is loaded, at most. Each connection is bounded besides.
const WAITING_MAX: usize = 10_000;
/// So often everything is flushed until the log is empty.
const EMPTY_TRIES: u32 = 3;

/// A message that came before the rank was loaded.
struct Waiting(Rc<Connection>, Message, ReceiveGuard);

/// A rank that the server holds.
pub struct Rank {
    server: Weak<Inner>,
    me: Weak<Rank>,
    pub fs_name: String,
    store: Store,
    /// The owner of directories that the rank is. Objects have the rank's number in their names,
    /// inodes the owner's in theirs.
    pub owner: mds::Rank,
    /// What followed the log until the rank was given to the server.
    follower: RefCell<Option<Follower>>,
    core: RefCell<Option<Mds>>,
    began: Instant,
    pub clients: RefCell<BTreeMap<u64, Client>>,
    /// Bytes of what they say about themselves.
    client_bytes: Cell<usize>,
    asked: RefCell<BTreeMap<(u64, u64), Asked>>,
    /// Requests that were answered and are not durable.
    early: RefCell<BTreeMap<(u64, u64), FsOp>>,
    /// Requests that go on at another rank, and those that come from one.
    onward: RefCell<Onward>,
    waiting: RefCell<VecDeque<Waiting>>,
    log: RefCell<Option<mpsc::UnboundedSender<LogWork>>>,
    /// When the core is to be woken.
    alarm: Cell<Option<u64>>,
    alarm_set: Notify,
    /// Clients wait for this map before they go on.
    barrier: Cell<Epoch>,
    /// Whether there is a table of what is shared with other ranks.
    shares: Cell<bool>,
    /// The version of the table of sessions.
    session_version: Cell<u64>,
    flushing: RefCell<Vec<oneshot::Sender<()>>>,
    /// Rank 0 has all that the rank had, or all ranks are at rest.
    left: Cell<bool>,
    /// Those that wait for the cache to be emptied.
    emptying: RefCell<Vec<oneshot::Sender<()>>>,
    left_set: Notify,
    /// Rows of sessions that are being removed.
    rows: Cell<usize>,
    rows_removed: Notify,
    /// What clients were told of quotas.
    quotas: RefCell<BTreeMap<mds::Ino, (mds::Quota, mds::NestStat)>>,
    /// When they were told last, and how long that took.
    quotas_told: Cell<(Instant, Duration)>,
    active: Cell<bool>,
    closed: Cell<bool>,
    /// Answers since the start.
    pub answers: Cell<u64>,
    pub damage: RefCell<DamageTable>,
    pub scrubs: Scrubs,
}

impl Rank {
    fn new(
        server: &Rc<Inner>,
        map: &MdsMap,
        number: u32,
        owner: mds::Rank,
        follower: Option<Follower>,
    ) -> Rc<Rank> {
        let store = Store::new(server.rados.clone(), PoolId(map.metadata_pool), number);
        Rc::new_cyclic(|me| Rank {
            server: Rc::downgrade(server),
            me: me.clone(),
            fs_name: map.fs_name.clone(),
            store,
            owner,
            follower: RefCell::new(follower),
            core: RefCell::default(),
            began: Instant::now(),
            clients: RefCell::default(),
            client_bytes: Cell::default(),
            asked: RefCell::default(),
            early: RefCell::default(),
            onward: RefCell::default(),
            waiting: RefCell::default(),
            log: RefCell::default(),
            alarm: Cell::default(),
            alarm_set: Notify::new(),
            barrier: Cell::default(),
            shares: Cell::default(),
            session_version: Cell::new(1),
            flushing: RefCell::default(),
            left: Cell::new(false),
            emptying: RefCell::default(),
            left_set: Notify::new(),
            rows: Cell::new(0),
            rows_removed: Notify::new(),
            quotas: RefCell::default(),
            quotas_told: Cell::new((Instant::now(), Duration::ZERO)),
            active: Cell::new(false),
            closed: Cell::new(false),
            answers: Cell::new(0),
            damage: RefCell::default(),
            scrubs: Scrubs::default(),
        })
    }

    fn server(&self) -> Option<Rc<Inner>> {
        self.server.upgrade().filter(|_| !self.closed.get())
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Names of pools.
    fn pools(&self) -> Pools {
        let map = self.server().and_then(|s| s.rados.objecter().map());
        let names =
            |m: &types::OsdMap| m.pool_names.iter().map(|(id, n)| (n.clone(), id.0)).collect();
        map.map(|m| names(&m)).unwrap_or_default()
    }

    /// The core's settings.
    fn conf(&self) -> Conf {
        let Some(server) = self.server() else { return Conf::default() };
        let (map, conf) = (server.map(), server.frame.conf.borrow());
        let second = 1_000_000_000;
        let mut layout = Conf::default().layout;
        layout.pool = map.data_pools.first().copied().unwrap_or(-1);
        let (owners, absent) = crate::peers::owners(&map);
        let (rests, asleep, number) = crate::peers::rest(&map);
        Conf {
            bounds: health::bounds(&conf),
            session_timeout: u64::from(map.session_timeout) * second,
            session_autoclose: u64::from(map.session_autoclose) * second,
            max_file_size: map.max_file_size,
            max_xattr_bytes: conf.u64("mds_max_xattr_pairs_size") as usize,
            layout,
            data_pools: map.data_pools.clone(),
            requests_at_once: REQUESTS_AT_ONCE,
            rank: self.owner,
            owners,
            absent,
            ranks: crate::peers::ranks(&map),
            rests,
            asleep,
            map: number,
            moves: true,
            trees: true,
            distributed: conf.bool("mds_export_ephemeral_distributed"),
            random: conf.bool("mds_export_ephemeral_random"),
            random_max: conf.f64("mds_export_ephemeral_random_max"),
            early_reply: conf.bool("mds_early_reply"),
            log_pause: LOG_PAUSE.as_nanos() as u64,
            ..Conf::default()
        }
    }

    /// Options may have changed.
    pub fn take_settings(&self) {
        let now = self.conf();
        if let Some(core) = &mut *self.core.borrow_mut() {
            core.set_bounds(now.bounds);
            core.set_spreading(now.distributed, now.random, now.random_max);
            core.set_early_reply(now.early_reply);
        }
        self.event(Event::Wake);
    }

    /// A new map.
    pub fn take_map(&self, map: &MdsMap) {
        if let Some(core) = &mut *self.core.borrow_mut() {
            take_map(core, map);
        }
        self.event(Event::Wake);
        self.take_waiting();
    }

    /// Takes in what has waited until clients are served.
    fn take_waiting(&self) {
        if self.look(|core| !core.rests()).unwrap_or(false) {
            let waiting = std::mem::take(&mut *self.waiting.borrow_mut());
            for Waiting(conn, message, guard) in waiting {
                self.message(&conn, message, guard);
            }
        }
    }

    /// Keeps a message for later. Of a client that asks for a session again and again, the last
    /// one.
    fn keep(&self, waiting: Waiting, last: bool) {
        let mut all = self.waiting.borrow_mut();
        if last {
            let id = waiting.0.global_id();
            all.retain(|w| w.0.global_id() != id);
        }
        if all.len() < WAITING_MAX {
            all.push_back(waiting);
        }
    }

    /// Whether the rank comes back after it has stopped. Else rank 0 gets what it has.
    pub fn comes_back(&self, map: &MdsMap) -> bool {
        let rank = i32::try_from(self.store.rank);
        rank.is_ok_and(|rank| !Owners::of(map).is_leaving(rank))
    }

    /// Lets the core take something in, and carries out what follows.
    fn event(&self, event: Event) {
        let mut actions = Vec::new();
        let active = {
            let mut core = self.core.borrow_mut();
            let Some(core) = core.as_mut().filter(|_| !self.closed.get()) else { return };
            core.handle(self.now(), event);
            while let Some(action) = core.poll() {
                actions.push(action);
            }
            core.is_active()
        };
        for action in actions {
            self.act(action);
        }
        if active
            && !self.active.replace(true)
            && let Some(server) = self.server()
        {
            server.set_progress(Progress::ClientsBack);
        }
    }

    /// Gives the rank its core, and what came before it was there.
    fn serve(&self, mut core: Mds, log: mpsc::UnboundedSender<LogWork>) {
        self.log.replace(Some(log));
        if let Some(server) = self.server() {
            // The newest map, since loading took a while.
            take_map(&mut core, &server.map());
        }
        let mut actions = Vec::new();
        while let Some(action) = core.poll() {
            actions.push(action);
        }
        let bytes = self.clients.borrow().values().map(|c| health::bytes_of(&c.info)).sum();
        self.client_bytes.set(bytes);
        core.set_outside(bytes);
        self.core.replace(Some(core));
        for action in actions {
            self.act(action);
        }
        let waiting = std::mem::take(&mut *self.waiting.borrow_mut());
        for Waiting(conn, message, guard) in waiting {
            self.message(&conn, message, guard);
        }
        // A change of the alarm by itself does nothing; it has the core look at its phase.
        self.event(Event::Wake);
        if let Some(map) = self.server().and_then(|s| s.rados.objecter().map()) {
            self.end_refused(&map);
        }
    }

    /// A message of a client.
    pub fn message(&self, conn: &Rc<Connection>, message: Message, guard: ReceiveGuard) {
        if self.core.borrow().is_none() {
            return self.keep(Waiting(conn.clone(), message, guard), false);
        }
        self.client_message(conn, message, guard);
    }

    /// The server loses its rank, or cannot go on.
    pub fn close(&self) {
        self.closed.set(true);
        self.log.replace(None);
        self.core.replace(None);
        self.asked.borrow_mut().clear();
        self.early.borrow_mut().clear();
        self.waiting.borrow_mut().clear();
        self.clients.borrow_mut().clear();
        self.alarm_set.notify_one();
        self.emptying.borrow_mut().clear();
        self.left_set.notify_waiters();
        self.rows_removed.notify_waiters();
    }

    /// What is wrong. So many clients are complained of one by one.
    pub fn health(&self, few: usize) -> MdsHealth {
        let found = self.look(|core| (core.complaints(), core.memory()));
        let Some((complaints, memory)) = found else { return MdsHealth::default() };
        let known = self.clients.borrow();
        let info = |id| known.get(&id).map(|c| &c.info);
        MdsHealth { metrics: health::metrics(&complaints, &memory, few, info) }
    }

    /// Counts what a client says about itself: that of a new one, and that of one that is gone.
    fn count_client(&self, new: usize, gone: usize) {
        let bytes = (self.client_bytes.get() + new).saturating_sub(gone);
        self.client_bytes.set(bytes);
        if let Some(core) = &mut *self.core.borrow_mut() {
            core.set_outside(bytes);
        }
    }

    /// Clients wait for this map before they go on.
    pub fn barrier(&self) -> Epoch {
        self.barrier.get()
    }

    /// Whether requests are carried out.
    pub fn is_active(&self) -> bool {
        self.active.get()
    }

    /// Has everything written to its place at rest, and waits for that.
    pub async fn flush(&self) -> bool {
        if self.core.borrow().is_none() {
            return false;
        }
        let (done, wait) = oneshot::channel();
        let first = {
            let mut flushing = self.flushing.borrow_mut();
            flushing.push(done);
            flushing.len() == 1
        };
        if first {
            self.event(Event::Flush);
        }
        wait.await.is_ok()
    }

    /// Has everything written to its place at rest, until nothing is in the log, and the monitors
    /// know that: they let a stock server have the rank then. False if clients change more
    /// meanwhile, or the rank goes. With `end`, the log gets nothing more.
    pub async fn empty_log(&self, end: bool) -> bool {
        for _ in 0..EMPTY_TRIES {
            if !self.flush().await {
                return false;
            }
            let (empty, is) = oneshot::channel();
            self.log_work(LogWork::Claim { end, empty });
            if !is.await.unwrap_or(false) {
                continue;
            }
            let Some(server) = self.server() else { return false };
            if end || server.log_is_known_empty().await {
                return true;
            }
        }
        false
    }

    /// Hands all that the rank has over to rank 0.
    pub async fn leave(&self) {
        self.event(Event::Leave);
        self.has_left().await;
    }

    /// Waits until all ranks are at rest, and no other one needs this one.
    pub async fn rest(&self) {
        self.event(Event::End);
        self.has_left().await;
    }

    async fn has_left(&self) {
        loop {
            let changed = self.left_set.notified();
            if self.left.get() || self.closed.get() {
                return;
            }
            changed.await;
        }
    }

    /// Waits until no row of a session that is over is left.
    pub async fn rows_are_removed(&self) {
        loop {
            let changed = self.rows_removed.notified();
            if self.rows.get() == 0 || self.closed.get() {
                return;
            }
            changed.await;
        }
    }

    /// Empties the cache, as far as that can be. False if clients have not given back what they can
    /// spare within that time, or the rank goes.
    pub async fn empty_cache(&self, within: Duration) -> bool {
        let (done, wait) = oneshot::channel();
        self.emptying.borrow_mut().push(done);
        self.set_emptying(true);
        let emptied = tokio::time::timeout(within, wait).await.is_ok_and(|done| done.is_ok());
        self.emptying.borrow_mut().retain(|waits| !waits.is_closed());
        if self.emptying.borrow().is_empty() {
            self.set_emptying(false);
        }
        emptied
    }

    fn set_emptying(&self, on: bool) {
        if let Some(core) = &mut *self.core.borrow_mut() {
            core.set_emptying(on);
        }
        self.event(Event::Wake);
    }

    fn emptied(&self) {
        for done in std::mem::take(&mut *self.emptying.borrow_mut()) {
            let _ = done.send(());
        }
    }

    /// The rank that an owner is, by the newest map.
    pub fn rank_of(&self, owner: mds::Rank) -> Option<i32> {
        self.server().and_then(|s| crate::peers::rank_of(&s.map(), owner))
    }

    fn flushed(&self) {
        for done in std::mem::take(&mut *self.flushing.borrow_mut()) {
            let _ = done.send(());
        }
    }

    /// Begins a scrub of what is at a path.
    pub async fn scrub(
        self: &Rc<Self>,
        path: &str,
        recursive: bool,
        tag: &str,
    ) -> Result<(), Errno> {
        scrub::start(self, path, recursive, tag).await
    }

    /// Looks at the core.
    pub fn look<T>(&self, f: impl FnOnce(&Mds) -> T) -> Option<T> {
        self.core.borrow().as_ref().map(f)
    }

    fn done(&self, token: Token) {
        self.event(Event::Done(token));
    }

    fn appended(&self, batch: Batch) {
        self.event(Event::Appended(batch));
    }
}

impl scrub::Host for Rank {
    fn store(&self) -> &Store {
        &self.store
    }

    fn scrubs(&self) -> &Scrubs {
        &self.scrubs
    }

    async fn flush(&self) -> bool {
        Rank::flush(self).await
    }

    fn damaged(&self, damage: Damage) {
        self.damage.borrow_mut().add(damage);
    }

    fn is_closed(&self) -> bool {
        self.closed.get()
    }

    fn is_mine(&self, ino: mds::Ino) -> bool {
        self.look(|core| core.is_mine(ino)).unwrap_or(false)
    }
}

/// Tells the core what a map says.
fn take_map(core: &mut Mds, map: &MdsMap) {
    core.set_data_pools(map.data_pools.clone());
    let (owners, absent) = crate::peers::owners(map);
    core.set_owners(owners, absent);
    core.set_ranks(crate::peers::ranks(map));
    let (rests, asleep, number) = crate::peers::rest(map);
    core.set_rest(rests, asleep, number);
}

/// Wakes the core when it wants to be.
async fn alarms(rank: Weak<Rank>) {
    loop {
        let Some(r) = rank.upgrade().filter(|r| !r.closed.get()) else { return };
        let now = r.now();
        match r.alarm.get() {
            Some(at) if at <= now => {
                r.alarm.set(None);
                r.event(Event::Wake);
                drop(r);
                // What has come meanwhile is read first.
                tokio::task::yield_now().await;
            }
            Some(at) => {
                let pause = Duration::from_nanos(at - now);
                let _ = tokio::time::timeout(pause, r.alarm_set.notified()).await;
            }
            None => r.alarm_set.notified().await,
        }
    }
}

/// Ends sessions of clients that the OSDs refuse: another rank has evicted them, or an operator has
/// put them onto the blocklist.
async fn refusals(rank: Weak<Rank>) {
    let mut next = Epoch(1);
    loop {
        let server = rank.upgrade().and_then(|r| r.server());
        let Some(objecter) = server.map(|s| s.rados.objecter().clone()) else { return };
        let Ok(map) = objecter.wait_epoch(next).await else { return };
        next = Epoch(map.epoch.0.saturating_add(1));
        let Some(r) = rank.upgrade().filter(|r| !r.closed.get()) else { return };
        r.end_refused(&map);
    }
}

/// Tells clients what is used of quotas.
async fn quotas(rank: Weak<Rank>) {
    loop {
        tokio::time::sleep(QUOTA_EVERY).await;
        let Some(r) = rank.upgrade().filter(|r| !r.closed.get()) else { return };
        r.tell_quotas();
    }
}
