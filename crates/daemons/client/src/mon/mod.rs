//! A session with the monitors.
//!
//! * `config`, `host`: what a client needs to know.
//! * `hunt`: looking for a monitor, and looking after the session with it.
//! * `requests`: what the monitors are asked; `subscriptions`: what they send unasked.
//! * `tickets`: tickets and rotating secrets; `cluster_log`: lines for the cluster log.

mod cluster_log;
mod config;
mod host;
mod hunt;
mod pending;
mod requests;
mod subscriptions;
mod tickets;

pub use config::{MonConfig, MonTiming};
pub use host::{MonHost, ParseMonHostError, parse_mon_host};
pub use pending::CommandOutput;

use crate::clock::wall_clock;
use crate::error::{ClientError, Result};
use auth::{CephxClient, Context};
use messages::{
    AuthReply, LogAck, MessageError, MonCommandAck, MonGetVersion, MonGetVersionReply, MonMapMsg,
    MonSubscribeAck, Payload, SubscribeItem,
};
use msgr::{Connection, Dispatcher, Message, Messenger, MessengerConfig, ReceiveGuard};
use pending::{PendingCommand, PendingRequest, PendingVersion};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::{Rc, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;
use types::{EntityName, EntityType, Fsid, LogEntry, MonMap};

/// The receiver of what a monitor sends. Called on the client's thread; a call may use the client.
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
    /// Wakes the tasks that wait for the session or a map.
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
    /// Lines for the cluster log that no monitor has acknowledged; at most `cluster_log::LOG_KEPT`.
    log: VecDeque<LogEntry>,
    log_seq: u64,
    /// When the last keepalive went out that has not been answered yet.
    pinged: Option<Instant>,
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
        tokio::task::spawn_local(hunt::run(Rc::downgrade(&client.0), work));
        client
    }

    /// Sets the receiver of what the monitors send from now on.
    pub fn set_events(&self, events: Rc<dyn MonEvents>) {
        *self.0.events.borrow_mut() = events;
    }

    /// Sets the handler of connections of [`Self::messenger`] with others than monitors.
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

    /// Ends the session. Waiting requests fail.
    pub fn shutdown(&self) {
        self.0.shut_down();
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

    /// The client's name in messages.
    fn me(&self) -> EntityName {
        match self.config.entity.kind {
            EntityType::CLIENT => {
                EntityName::client(i64::try_from(self.auth.borrow().global_id()).unwrap_or(-1))
            }
            _ => self.config.entity,
        }
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
                    &mut Context { now: wall_clock(), rng: &mut rand::rng() },
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
}
