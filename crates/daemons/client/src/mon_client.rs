//! A session with the monitors.

use crate::config::ClusterConfig;
use crate::error::{ClientError, Result};
use crate::mon_host::MonHost;
use auth::{AuthName, AuthPolicy, CephxClient, Context, CryptoKey, RotatingKeyRing};
use bytes::Bytes;
use messages::{
    Auth, AuthReply, Log, LogAck, MessageError, MonCommand, MonCommandAck, MonGetVersion,
    MonGetVersionReply, MonMapMsg, MonSubscribe, MonSubscribeAck, Paxos, Payload, SubscribeItem,
};
use msgr::{
    Connection, Dispatcher, Limits, Message, Messenger, MessengerConfig, PolicySet, ReceiveGuard,
};
use rand::seq::SliceRandom;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::{Rc, Weak};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use types::{
    EntityAddr, EntityAddrVec, EntityName, EntityType, Fsid, LogEntry, LogName, LogPriority,
    MonMap, Utime,
};

/// Lines for the cluster log that are kept for a monitor; older ones are lost.
const LOG_KEPT: usize = 1000;

/// `CEPH_AUTH_CEPHX`.
const CEPHX: u32 = 2;

/// Time in the life of a session.
#[derive(Clone, Copy, Debug)]
pub struct MonTiming {
    /// While hunting, another monitor is tried as well after so long.
    pub hunt_step: Duration,
    /// An attempt that has not led to a session by then is given up (`mon_client_hunt_interval`).
    pub hunt_interval: Duration,
    /// At most so many attempts at a time (`mon_client_hunt_parallel`).
    pub hunt_parallel: usize,
    /// The longest pause between two rounds in which no monitor was reachable.
    pub max_backoff: Duration,
    /// How often a session is looked after: keepalive, tickets (`mon_client_ping_interval`).
    pub ping_interval: Duration,
    /// A monitor that does not answer for so long is left (`mon_client_ping_timeout`).
    pub ping_timeout: Duration,
}

impl MonTiming {
    /// Ceph's times.
    pub const DEFAULT: MonTiming = MonTiming {
        hunt_step: Duration::from_millis(300),
        hunt_interval: Duration::from_secs(3),
        hunt_parallel: 3,
        max_backoff: Duration::from_secs(5),
        ping_interval: Duration::from_secs(10),
        ping_timeout: Duration::from_secs(30),
    };
}

impl Default for MonTiming {
    fn default() -> Self {
        MonTiming::DEFAULT
    }
}

/// What a [`MonClient`] needs to know.
pub struct MonConfig {
    /// Who we prove to be.
    pub name: AuthName,
    /// Who we are in messages. A client's number is its global id, which comes with the session:
    /// leave it negative.
    pub entity: EntityName,
    /// Our secret.
    pub key: CryptoKey,
    /// Authentication methods and connection modes.
    pub policy: AuthPolicy,
    /// Services that we need tickets for, besides the monitors.
    pub want: Vec<EntityType>,
    /// Where monitors may be, until there is a monitor map.
    pub mon_hosts: Vec<MonHost>,
    /// Tells this process from others at the same address.
    pub nonce: u32,
    /// Name of this host, for the monitors' list of sessions.
    pub hostname: String,
    /// Of a daemon: where its service's rotating secrets go.
    pub rotating: Option<Rc<RefCell<RotatingKeyRing>>>,
    /// Connection policies by kind of peer.
    pub policies: PolicySet,
    /// Bounds of the messenger.
    pub limits: Limits,
    /// Times.
    pub timing: MonTiming,
}

impl MonConfig {
    /// For the entity that a cluster configuration names.
    pub fn new(cluster: &ClusterConfig) -> Self {
        let kind = cluster.name.kind;
        let num =
            if kind == EntityType::CLIENT { -1 } else { cluster.name.id.parse().unwrap_or(0) };
        MonConfig {
            name: cluster.name.clone(),
            entity: EntityName::new(kind, num),
            key: cluster.key.clone(),
            policy: cluster.policy.clone(),
            want: vec![EntityType::MON, EntityType::OSD, EntityType::MGR, EntityType::MDS],
            mon_hosts: cluster.mon_hosts.clone(),
            nonce: rand::random(),
            hostname: hostname(),
            rotating: None,
            policies: PolicySet::new(msgr::Policy::lossy_client()),
            limits: Limits::default(),
            timing: MonTiming::default(),
        }
    }
}

fn hostname() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .map(|s| s.trim().to_owned())
        .unwrap_or_default()
}

/// Who hears what a monitor sends. Called on the client's thread; a call may use the client.
pub trait MonEvents {
    /// There is a session, for the first time or again. Subscriptions and unanswered requests have
    /// been sent; messages sent with [`MonClient::send`] before it, too. What a daemon told the
    /// previous monitor may be lost.
    fn on_session(&self) {}
    /// The session is lost; another monitor is being looked for.
    fn on_session_lost(&self) {}
    /// A message that the client does not keep to itself: maps, configuration, acknowledgements.
    fn on_message(&self, message: Message);
}

struct NoEvents;
impl MonEvents for NoEvents {
    fn on_message(&self, _: Message) {}
}

/// Answer to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandOutput {
    /// 0 or positive, or a negative errno.
    pub code: i32,
    /// Status, for people.
    pub status: String,
    /// Output, often JSON.
    pub output: Bytes,
}

impl CommandOutput {
    /// The output, or the error that the code stands for.
    pub fn ok(self) -> Result<Bytes> {
        match ClientError::from_code(self.code) {
            Some(e) => Err(e),
            None => Ok(self.output),
        }
    }
}

/// A client of the monitors. Cheap to clone; the session ends when the last clone is dropped, or
/// with [`MonClient::shutdown`].
///
/// While there is no session, or when it is lost, monitors are tried in random order, a few at a
/// time; the first that authenticates us wins. Commands and version queries are then sent again:
/// commands of Ceph's are made so that repeating them is harmless.
#[derive(Clone)]
pub struct MonClient(Rc<Inner>);

struct Inner {
    config: MonConfig,
    auth: Rc<RefCell<CephxClient>>,
    messenger: Rc<Messenger>,
    events: RefCell<Rc<dyn MonEvents>>,
    others: RefCell<Option<Rc<dyn Dispatcher>>>,
    state: RefCell<State>,
    last_tid: Cell<u64>,
    /// Wakes the task that hunts and looks after the session.
    work: Rc<Notify>,
    /// Wakes those who wait for the session or a map.
    changed: Notify,
}

#[derive(Default)]
struct State {
    down: bool,
    fsid: Option<Fsid>,
    monmap: Option<Rc<MonMap>>,
    session: Option<Rc<Connection>>,
    attempts: Vec<(Rc<Connection>, Instant)>,
    subs: BTreeMap<String, SubscribeItem>,
    renew_subs: Option<Instant>,
    commands: BTreeMap<u64, PendingCommand>,
    versions: BTreeMap<u64, PendingVersion>,
    requests: BTreeMap<u64, PendingRequest>,
    outbox: VecDeque<Message>,
    /// Lines for the cluster log that no monitor has acknowledged; at most [`LOG_KEPT`].
    log: VecDeque<LogEntry>,
    log_seq: u64,
    /// When the last keepalive went out that has not been answered yet.
    pinged: Option<Instant>,
}

struct PendingCommand {
    cmd: Vec<String>,
    input: Bytes,
    reply: oneshot::Sender<Result<CommandOutput>>,
}

struct PendingRequest {
    message: Message,
    /// Number of the answer's message.
    answer: u16,
    reply: oneshot::Sender<Result<Message>>,
}

struct PendingVersion {
    what: String,
    reply: oneshot::Sender<Result<(u64, u64)>>,
}

/// Gets the messenger's calls; those about other peers than monitors are passed on.
struct Router(Weak<Inner>);

impl Router {
    fn with(
        &self,
        conn: &Rc<Connection>,
        mon: impl FnOnce(&Rc<Inner>),
        other: impl FnOnce(&dyn Dispatcher),
    ) {
        let Some(inner) = self.0.upgrade() else { return };
        if conn.peer_type() == EntityType::MON {
            mon(&inner);
        } else {
            let others = inner.others.borrow().clone();
            if let Some(others) = others {
                other(&*others);
            }
        }
    }
}

impl Dispatcher for Router {
    fn on_accept(&self, conn: &Rc<Connection>) -> bool {
        let others = self.0.upgrade().and_then(|inner| inner.others.borrow().clone());
        others.is_some_and(|o| o.on_accept(conn))
    }
    fn on_connect(&self, conn: &Rc<Connection>) {
        self.with(conn, |inner| inner.connected(conn), |o| o.on_connect(conn));
    }
    fn on_message(&self, conn: &Rc<Connection>, message: Message, guard: ReceiveGuard) {
        let Some(inner) = self.0.upgrade() else { return };
        if conn.peer_type() == EntityType::MON {
            drop(guard);
            inner.received(conn, message);
        } else {
            let others = inner.others.borrow().clone();
            if let Some(others) = others {
                others.on_message(conn, message, guard);
            }
        }
    }
    fn on_reset(&self, conn: &Rc<Connection>) {
        self.with(conn, |inner| inner.reset(conn), |o| o.on_reset(conn));
    }
    fn on_remote_reset(&self, conn: &Rc<Connection>) {
        self.with(conn, |inner| inner.reset(conn), |o| o.on_remote_reset(conn));
    }
}

fn now() -> Utime {
    Utime::from_duration(
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default(),
    )
}

impl MonClient {
    /// A client that begins at once to look for a monitor. Must be called within a `LocalSet`.
    pub fn new(config: MonConfig) -> Self {
        let mut auth = CephxClient::new(
            config.policy.clone(),
            config.name.clone(),
            config.key.clone(),
            &config.want,
        );
        if let Some(rotating) = &config.rotating {
            auth.set_rotating(rotating.clone());
        }
        let auth = Rc::new(RefCell::new(auth));
        let work = Rc::new(Notify::new());
        let inner = Rc::new_cyclic(|weak: &Weak<Inner>| {
            let messenger = Messenger::new(
                MessengerConfig {
                    name: config.entity,
                    nonce: config.nonce,
                    policies: config.policies.clone(),
                    limits: config.limits.clone(),
                    server_auth: None,
                    client_auth: auth.clone(),
                },
                Rc::new(Router(weak.clone())),
            );
            Inner {
                config,
                auth,
                messenger,
                events: RefCell::new(Rc::new(NoEvents)),
                others: RefCell::new(None),
                state: RefCell::new(State::default()),
                last_tid: Cell::new(0),
                work: work.clone(),
                changed: Notify::new(),
            }
        });
        let client = MonClient(inner);
        client.subscribe("monmap", 0, false);
        tokio::task::spawn_local(run(Rc::downgrade(&client.0), work));
        client
    }

    /// Who hears what the monitors send from now on.
    pub fn set_events(&self, events: Rc<dyn MonEvents>) {
        *self.0.events.borrow_mut() = events;
    }

    /// Who handles connections of [`Self::messenger`] with others than monitors.
    pub fn set_dispatcher(&self, others: Rc<dyn Dispatcher>) {
        *self.0.others.borrow_mut() = Some(others);
    }

    /// The messenger of the session. Other connections opened with it have the same identity and
    /// use the same tickets.
    pub fn messenger(&self) -> &Rc<Messenger> {
        &self.0.messenger
    }

    /// Our tickets, for messengers of our own.
    pub fn auth(&self) -> &Rc<RefCell<CephxClient>> {
        &self.0.auth
    }

    /// The number of this instance in the cluster; 0 before the first session.
    pub fn global_id(&self) -> u64 {
        self.0.auth.borrow().global_id()
    }

    /// The cluster's id, once the monitor map is there.
    pub fn fsid(&self) -> Option<Fsid> {
        self.0.state.borrow().fsid
    }

    /// The monitor map, once it is there.
    pub fn monmap(&self) -> Option<Rc<MonMap>> {
        self.0.state.borrow().monmap.clone()
    }

    /// The session's connection, if there is one.
    pub fn session(&self) -> Option<Rc<Connection>> {
        self.0.state.borrow().session.clone()
    }

    /// Waits until there is a session and a monitor map.
    pub async fn wait_ready(&self, limit: Duration) -> Result<()> {
        let ready = async {
            loop {
                let changed = self.0.changed.notified();
                {
                    let st = self.0.state.borrow();
                    if st.down {
                        return Err(ClientError::Shutdown);
                    }
                    if st.session.is_some() && st.monmap.is_some() {
                        return Ok(());
                    }
                    if self.0.candidates(&st).is_empty() {
                        return Err(ClientError::NoMonitors);
                    }
                }
                changed.await;
            }
        };
        tokio::time::timeout(limit, ready)
            .await
            .unwrap_or(Err(ClientError::Timeout("looking for a monitor")))
    }

    /// Waits until there is a ticket for `service`, asking for one if there is not.
    pub async fn wait_ticket(&self, service: EntityType, limit: Duration) -> Result<()> {
        let ready = async {
            loop {
                let changed = self.0.changed.notified();
                if self.0.state.borrow().down {
                    return Err(ClientError::Shutdown);
                }
                if !self.0.uses_tickets() || self.0.auth.borrow().has_ticket(service, now()) {
                    return Ok(());
                }
                self.0.renew_tickets();
                changed.await;
            }
        };
        tokio::time::timeout(limit, ready)
            .await
            .unwrap_or(Err(ClientError::Timeout("waiting for a ticket")))
    }

    /// Waits until a daemon has its service's rotating secrets, without which it can accept nobody.
    pub async fn wait_rotating(&self, limit: Duration) -> Result<()> {
        let ready = async {
            loop {
                let changed = self.0.changed.notified();
                if self.0.state.borrow().down {
                    return Err(ClientError::Shutdown);
                }
                if !self.0.uses_tickets() || self.0.auth.borrow().rotating_request(now()).is_none()
                {
                    return Ok(());
                }
                changed.await;
            }
        };
        tokio::time::timeout(limit, ready)
            .await
            .unwrap_or(Err(ClientError::Timeout("waiting for rotating secrets")))
    }

    /// A service refused our ticket: it is thrown away and another one asked for.
    pub fn ticket_refused(&self, service: EntityType) {
        self.0.auth.borrow_mut().invalidate_ticket(service);
        self.0.renew_tickets();
    }

    /// Subscribes: `what` from version `start` on (0: whatever is newest, then changes). A
    /// subscription that is there already is only moved if it changes.
    pub fn subscribe(&self, what: &str, start: u64, onetime: bool) {
        let item = SubscribeItem { start, flags: if onetime { SubscribeItem::ONETIME } else { 0 } };
        let session = {
            let mut st = self.0.state.borrow_mut();
            if st.subs.insert(what.to_owned(), item) == Some(item) {
                return;
            }
            st.session.clone()
        };
        if let Some(session) = session {
            self.0.send_subs(&session, Some((what, item)));
        }
    }

    /// Notes that version `version` of `what` has arrived, so that after a change of the session
    /// the subscription goes on behind it. A one-time subscription ends.
    pub fn got(&self, what: &str, version: u64) {
        self.0.got(what, version);
    }

    /// Ends a subscription; the monitor learns it with the next session.
    pub fn unsubscribe(&self, what: &str) {
        self.0.state.borrow_mut().subs.remove(what);
    }

    /// Sends a message, now or as soon as there is a session. It is sent once: what must survive
    /// the loss of a session is repeated by the caller in [`MonEvents::on_session`].
    pub fn send(&self, message: Message) {
        let session = self.session();
        match session {
            Some(session) => session.send(message),
            None => self.0.state.borrow_mut().outbox.push_back(message),
        }
    }

    /// Sends a message of the given type, encoded for the session's features; like [`Self::send`].
    pub fn send_payload(&self, payload: &impl Payload) {
        let features = self.session().map_or(types::features::SUPPORTED, |s| s.features());
        self.send(payload.encode(features));
    }

    /// Runs a command (a JSON object with `prefix`), with input. Waits as long as it takes; the
    /// future can be dropped.
    pub async fn command(&self, json: &str, input: Bytes) -> Result<CommandOutput> {
        let (reply, answer) = oneshot::channel();
        let tid = self.0.next_tid();
        {
            let mut st = self.0.state.borrow_mut();
            if st.down {
                return Err(ClientError::Shutdown);
            }
            st.commands.insert(tid, PendingCommand { cmd: vec![json.to_owned()], input, reply });
        }
        if let Some(session) = self.session() {
            self.0.send_commands(&session, Some(tid));
        }
        let _forget = Forget(|| {
            self.0.state.borrow_mut().commands.remove(&tid);
        });
        answer.await.unwrap_or(Err(ClientError::Shutdown))
    }

    /// The newest and the oldest version of a map.
    pub async fn get_version(&self, what: &str) -> Result<(u64, u64)> {
        let (reply, answer) = oneshot::channel();
        let handle = self.0.next_tid();
        let session = {
            let mut st = self.0.state.borrow_mut();
            if st.down {
                return Err(ClientError::Shutdown);
            }
            st.versions.insert(handle, PendingVersion { what: what.to_owned(), reply });
            st.session.clone()
        };
        if let Some(session) = session {
            session
                .send(MonGetVersion { handle, what: what.to_owned() }.encode(session.features()));
        }
        let _forget = Forget(|| {
            self.0.state.borrow_mut().versions.remove(&handle);
        });
        answer.await.unwrap_or(Err(ClientError::Shutdown))
    }

    /// Sends a message to which the monitors answer with one of type `R` and the same tid:
    /// statistics, pool operations. It is sent again in the next session if this one is lost before
    /// the answer.
    pub async fn request<R: Payload>(&self, payload: &impl Payload) -> Result<R> {
        let (reply, answer) = oneshot::channel();
        let tid = self.0.next_tid();
        let mut message = payload.encode(types::features::SUPPORTED);
        message.tid = tid;
        let session = {
            let mut st = self.0.state.borrow_mut();
            if st.down {
                return Err(ClientError::Shutdown);
            }
            st.requests
                .insert(tid, PendingRequest { message: message.clone(), answer: R::TYPE, reply });
            st.session.clone()
        };
        if let Some(session) = session {
            session.send(message);
        }
        let _forget = Forget(|| {
            self.0.state.borrow_mut().requests.remove(&tid);
        });
        let answer = answer.await.unwrap_or(Err(ClientError::Shutdown))?;
        R::decode(&answer).map_err(ClientError::Peer)
    }

    /// Writes a line to the cluster log. It is sent again after the loss of a session, until a
    /// monitor acknowledges it.
    pub fn log(&self, prio: LogPriority, channel: &str, msg: String) {
        let (entry, session) = {
            let mut st = self.0.state.borrow_mut();
            st.log_seq += 1;
            let entry = LogEntry {
                name: LogName { kind: self.0.config.name.kind, id: self.0.config.name.id.clone() },
                rank: self.0.me(),
                addrs: self.0.messenger.addrs(),
                stamp: now(),
                seq: st.log_seq,
                prio,
                msg,
                channel: channel.to_owned(),
            };
            if st.log.len() >= LOG_KEPT {
                st.log.pop_front();
            }
            st.log.push_back(entry.clone());
            (entry, st.session.clone())
        };
        if let Some(session) = session {
            self.0.send_log(&session, Some(entry));
        }
    }

    /// Ends the session. Waiting requests fail.
    pub fn shutdown(&self) {
        self.0.shut_down();
    }
}

/// Runs a closure when dropped: a request whose future is dropped is forgotten.
struct Forget<F: FnMut()>(F);
impl<F: FnMut()> Drop for Forget<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shut_down();
    }
}

impl Inner {
    fn next_tid(&self) -> u64 {
        self.last_tid.set(self.last_tid.get() + 1);
        self.last_tid.get()
    }

    fn shut_down(&self) {
        let state = {
            let mut st = self.state.borrow_mut();
            std::mem::replace(&mut *st, State { down: true, ..State::default() })
        };
        for conn in state.session.iter().chain(state.attempts.iter().map(|(c, _)| c)) {
            conn.mark_down();
        }
        self.messenger.shutdown();
        for (_, c) in state.commands {
            let _ = c.reply.send(Err(ClientError::Shutdown));
        }
        for (_, r) in state.requests {
            let _ = r.reply.send(Err(ClientError::Shutdown));
        }
        for (_, v) in state.versions {
            let _ = v.reply.send(Err(ClientError::Shutdown));
        }
        self.work.notify_one();
        self.changed.notify_waiters();
    }

    /// Who we are in messages.
    fn me(&self) -> EntityName {
        match self.config.entity.kind {
            EntityType::CLIENT => {
                EntityName::client(i64::try_from(self.auth.borrow().global_id()).unwrap_or(-1))
            }
            _ => self.config.entity,
        }
    }

    /// Sends the waiting commands, or one of them. Monitors refuse those that do not name their
    /// cluster: before the first monitor map they wait.
    fn send_commands(&self, conn: &Connection, only: Option<u64>) {
        let st = self.state.borrow();
        let Some(fsid) = st.fsid else { return };
        for (tid, c) in st.commands.iter().filter(|(tid, _)| only.is_none_or(|o| o == **tid)) {
            let command = MonCommand {
                paxos: Paxos::default(),
                fsid,
                cmd: c.cmd.clone(),
                input: c.input.clone(),
            };
            let mut message = command.encode(conn.features());
            message.tid = *tid;
            conn.send(message);
        }
    }

    /// Sends the lines that were not acknowledged, or one of them; see [`Self::send_commands`].
    fn send_log(&self, conn: &Connection, only: Option<LogEntry>) {
        let st = self.state.borrow();
        let Some(fsid) = st.fsid else { return };
        let entries = only.map_or_else(|| st.log.iter().cloned().collect(), |entry| vec![entry]);
        if !entries.is_empty() {
            conn.send(Log { paxos: Paxos::default(), fsid, entries }.encode(conn.features()));
        }
    }

    fn uses_tickets(&self) -> bool {
        self.config.policy.methods(EntityType::MON).first() == Some(&auth::AuthMethod::Cephx)
    }

    /// Where monitors may be: the map knows best.
    fn candidates(&self, st: &State) -> Vec<MonHost> {
        let known: Vec<MonHost> = st
            .monmap
            .iter()
            .flat_map(|m| m.mon_info.values())
            .filter_map(|mon| mon.public_addrs.0.iter().find(|a| a.kind == types::AddrType::MSGR2))
            .map(|addr| MonHost::Addr(*addr))
            .collect();
        if known.is_empty() { self.config.mon_hosts.clone() } else { known }
    }

    /// Opens a connection to a monitor, unless there is one to it already.
    fn attempt(&self, addr: EntityAddr) {
        let tried = |c: &Rc<Connection>| c.peer_addrs().0.contains(&addr);
        if self.state.borrow().attempts.iter().any(|(c, _)| tried(c)) {
            return;
        }
        let conn = self.messenger.connect(EntityType::MON, EntityAddrVec::one(addr));
        self.state.borrow_mut().attempts.push((conn, Instant::now()));
    }

    fn connected(self: &Rc<Self>, conn: &Rc<Connection>) {
        {
            let mut st = self.state.borrow_mut();
            let Some(at) = st.attempts.iter().position(|(c, _)| c.id() == conn.id()) else {
                return;
            };
            let (conn, _) = st.attempts.swap_remove(at);
            for (other, _) in st.attempts.drain(..) {
                other.mark_down();
            }
            st.session = Some(conn);
            st.pinged = None;
        }
        self.messenger.set_name(self.me());
        tracing::debug!(mon = %conn.peer_name(), "session with a monitor");
        self.send_subs(conn, None);
        let (versions, outbox): (Vec<Message>, VecDeque<Message>) = {
            let mut st = self.state.borrow_mut();
            (
                st.versions
                    .iter()
                    .map(|(&handle, v)| {
                        MonGetVersion { handle, what: v.what.clone() }.encode(conn.features())
                    })
                    .chain(st.requests.values().map(|r| r.message.clone()))
                    .collect(),
                std::mem::take(&mut st.outbox),
            )
        };
        for message in outbox.into_iter().chain(versions) {
            conn.send(message);
        }
        self.send_commands(conn, None);
        self.send_log(conn, None);
        self.renew_tickets();
        let events = self.events.borrow().clone();
        events.on_session();
        self.work.notify_one();
        self.changed.notify_waiters();
    }

    fn send_subs(&self, conn: &Connection, only: Option<(&str, SubscribeItem)>) {
        let what = match only {
            Some((name, item)) => BTreeMap::from([(name.to_owned(), item)]),
            None => self.state.borrow().subs.clone(),
        };
        if !what.is_empty() {
            conn.send(
                MonSubscribe { what, hostname: self.config.hostname.clone() }
                    .encode(conn.features()),
            );
        }
    }

    fn got(&self, what: &str, version: u64) {
        let mut st = self.state.borrow_mut();
        let Some(item) = st.subs.get_mut(what) else { return };
        if item.onetime() {
            if item.start <= version {
                st.subs.remove(what);
            }
        } else if item.start <= version {
            item.start = version + 1;
        }
    }

    fn reset(&self, conn: &Rc<Connection>) {
        let lost = {
            let mut st = self.state.borrow_mut();
            st.attempts.retain(|(c, _)| c.id() != conn.id());
            let lost = st.session.as_ref().is_some_and(|s| s.id() == conn.id());
            if lost {
                st.session = None;
                st.pinged = None;
            }
            lost
        };
        if lost {
            tracing::debug!("session with the monitor lost");
            let events = self.events.borrow().clone();
            events.on_session_lost();
        }
        self.work.notify_one();
    }

    fn received(&self, conn: &Rc<Connection>, message: Message) {
        if self.state.borrow().session.as_ref().is_none_or(|s| s.id() != conn.id()) {
            return;
        }
        if let Err(error) = self.handle(conn, message) {
            tracing::warn!(%error, "message of a monitor");
        }
    }

    fn handle(
        &self,
        conn: &Rc<Connection>,
        message: Message,
    ) -> std::result::Result<(), MessageError> {
        match message.msg_type {
            MonMapMsg::TYPE => {
                let map = MonMapMsg::decode(&message)?;
                let map: MonMap = denc::Decode::from_bytes(&map.map)
                    .map_err(|source| MessageError::Malformed { name: MonMapMsg::NAME, source })?;
                self.got("monmap", map.epoch.0.into());
                let first = {
                    let mut st = self.state.borrow_mut();
                    let first = st.fsid.replace(map.fsid).is_none();
                    st.monmap = Some(Rc::new(map));
                    first
                };
                if first {
                    self.send_commands(conn, None);
                    self.send_log(conn, None);
                }
                self.changed.notify_waiters();
                self.pass(message);
            }
            MonSubscribeAck::TYPE => {
                // Only monitors without stateful subscriptions send it.
                let ack = MonSubscribeAck::decode(&message)?;
                let half = Duration::from_secs(u64::from(ack.interval) / 2);
                self.state.borrow_mut().renew_subs =
                    Some(Instant::now() + half.max(Duration::from_secs(1)));
                self.work.notify_one();
            }
            AuthReply::TYPE => {
                let reply = AuthReply::decode(&message)?;
                let outcome = self.auth.borrow_mut().handle_mauth_reply(
                    &mut Context { now: now(), rng: &mut rand::rng() },
                    reply.result,
                    reply.payload,
                );
                if let Err(error) = outcome {
                    tracing::warn!(%error, "the monitor refused tickets; starting a new session");
                    self.auth.borrow_mut().forget_session();
                    conn.mark_down();
                    self.reset(conn);
                }
                self.changed.notify_waiters();
                self.work.notify_one();
            }
            LogAck::TYPE => {
                let ack = LogAck::decode(&message)?;
                self.state.borrow_mut().log.retain(|entry| entry.seq > ack.last);
            }
            MonCommandAck::TYPE => {
                let ack = MonCommandAck::decode(&message)?;
                let pending = self.state.borrow_mut().commands.remove(&message.tid);
                if let Some(pending) = pending {
                    let output =
                        CommandOutput { code: ack.result, status: ack.status, output: ack.output };
                    let _ = pending.reply.send(Ok(output));
                }
            }
            MonGetVersionReply::TYPE => {
                let reply = MonGetVersionReply::decode(&message)?;
                let pending = self.state.borrow_mut().versions.remove(&reply.handle);
                if let Some(pending) = pending {
                    let _ = pending.reply.send(Ok((reply.version, reply.oldest_version)));
                }
            }
            other => {
                let pending = {
                    let mut st = self.state.borrow_mut();
                    let ours = st.requests.get(&message.tid).is_some_and(|r| r.answer == other);
                    if ours { st.requests.remove(&message.tid) } else { None }
                };
                match pending {
                    Some(pending) => drop(pending.reply.send(Ok(message))),
                    None => self.pass(message),
                }
            }
        }
        Ok(())
    }

    fn pass(&self, message: Message) {
        let events = self.events.borrow().clone();
        events.on_message(message);
    }

    /// Asks for tickets and rotating secrets that are due.
    fn renew_tickets(&self) {
        let Some(session) = self.state.borrow().session.clone() else { return };
        if !self.uses_tickets() {
            return;
        }
        let now = now();
        let tickets = session.with_client_auth(|conn| {
            self.auth.borrow_mut().mauth_request(&mut Context { now, rng: &mut rand::rng() }, conn)
        });
        let rotating = self.auth.borrow().rotating_request(now);
        let tickets = match tickets {
            Some(Ok(request)) => request,
            Some(Err(error)) => {
                tracing::warn!(%error, "cannot ask for tickets");
                None
            }
            None => None,
        };
        for payload in [tickets, rotating].into_iter().flatten() {
            let auth = Auth { protocol: CEPHX, payload, ..Auth::default() };
            session.send(auth.encode(session.features()));
        }
    }

    /// Looks after the session; returns when to look again.
    fn tend(&self) -> Instant {
        let timing = self.config.timing;
        let wall = Instant::now();
        let Some(session) = self.state.borrow().session.clone() else { return wall };
        let silent = {
            let mut st = self.state.borrow_mut();
            let answered = match (st.pinged, session.last_keepalive_ack()) {
                (None, _) => true,
                // The two clocks are read one after the other: a second of slack.
                (Some(at), Some(acked)) => {
                    now().since(acked) <= wall.duration_since(at) + Duration::from_secs(1)
                }
                (Some(_), None) => false,
            };
            if answered {
                st.pinged = None;
            }
            st.pinged.is_some_and(|at| wall.duration_since(at) > timing.ping_timeout)
        };
        if silent {
            session.mark_down();
            self.reset(&session);
            return wall;
        }
        session.send_keepalive();
        let renew = {
            let mut st = self.state.borrow_mut();
            st.pinged.get_or_insert(wall);
            st.renew_subs.take_if(|at| *at <= wall).is_some()
        };
        if renew {
            self.send_subs(&session, None);
        }
        self.renew_tickets();
        let mut next = wall + timing.ping_interval;
        if let Some(at) = self.state.borrow().renew_subs {
            next = next.min(at);
        }
        if let Some(at) = self.auth.borrow().renew_at() {
            let soon = at.since(now()).max(Duration::from_secs(1));
            next = next.min(wall + soon);
        }
        next
    }

    /// Addresses of a monitor given by name.
    async fn look_up(name: &str, port: u16) -> Vec<EntityAddr> {
        match tokio::net::lookup_host((name, port)).await {
            Ok(found) => found.map(|addr| EntityAddr::msgr2(addr, 0)).collect(),
            Err(error) => {
                tracing::warn!(%error, name, "cannot look up a monitor");
                Vec::new()
            }
        }
    }
}

/// Hunts while there is no session, and looks after it while there is one. It holds the client only
/// between pauses, so it ends soon after the last handle is dropped.
async fn run(client: Weak<Inner>, work: Rc<Notify>) {
    let mut backoff = Duration::from_millis(100);
    loop {
        let (has_session, mut hosts) = {
            let Some(inner) = client.upgrade() else { return };
            let st = inner.state.borrow();
            if st.down {
                return;
            }
            (st.session.is_some(), inner.candidates(&st))
        };
        if has_session {
            backoff = Duration::from_millis(100);
            let next = {
                let Some(inner) = client.upgrade() else { return };
                inner.tend()
            };
            // A wake-up is about what `tend` does as well, except that a keepalive is not due yet.
            tokio::select! {
                _ = tokio::time::sleep_until(next) => {}
                _ = lost(&client, &work) => {}
            }
            continue;
        }
        hosts.shuffle(&mut rand::rng());
        {
            // Without a valid ticket to prove it, no monitor gives us our old global id again.
            let Some(inner) = client.upgrade() else { return };
            let mut auth = inner.auth.borrow_mut();
            if inner.uses_tickets()
                && auth.global_id() != 0
                && !auth.has_ticket(EntityType::AUTH, now())
            {
                auth.forget_session();
            }
        }
        if !hunt(&client, &work, hosts).await {
            tokio::time::sleep(backoff).await;
            let Some(inner) = client.upgrade() else { return };
            backoff = (backoff * 2).min(inner.config.timing.max_backoff);
        }
    }
}

/// Waits until the session is gone (or the client).
async fn lost(client: &Weak<Inner>, work: &Notify) {
    loop {
        work.notified().await;
        let Some(inner) = client.upgrade() else { return };
        let st = inner.state.borrow();
        if st.down || st.session.is_none() {
            return;
        }
    }
}

/// One round over all monitors. True if there is a session at the end.
async fn hunt(client: &Weak<Inner>, work: &Notify, hosts: Vec<MonHost>) -> bool {
    let mut addrs = VecDeque::new();
    for host in hosts {
        match host {
            MonHost::Addr(addr) => addrs.push_back(addr),
            MonHost::Name(name, port) => addrs.extend(Inner::look_up(&name, port).await),
        }
    }
    loop {
        let timing = {
            let Some(inner) = client.upgrade() else { return true };
            let timing = inner.config.timing;
            let late: Vec<_> = {
                let mut st = inner.state.borrow_mut();
                if st.down || st.session.is_some() {
                    return true;
                }
                let (late, on_time) = std::mem::take(&mut st.attempts)
                    .into_iter()
                    .partition(|(_, at)| at.elapsed() >= timing.hunt_interval);
                st.attempts = on_time;
                late
            };
            late.iter().for_each(|(conn, _)| conn.mark_down());
            let running = inner.state.borrow().attempts.len();
            if running < timing.hunt_parallel
                && let Some(addr) = addrs.pop_front()
            {
                inner.attempt(addr);
            } else if running == 0 {
                return false;
            }
            timing
        };
        let _ = tokio::time::timeout(timing.hunt_step, work.notified()).await;
    }
}
