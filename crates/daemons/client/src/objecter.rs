//! Requests to OSDs: sent to whom the map says, again when it changes, until they are answered.

use crate::error::{ClientError, Result};
use crate::mon_client::{CommandOutput, MonClient, MonEvents};
use crate::target::{Target, is_paused};
use bytes::Bytes;
use messages::{
    Command, CommandReply, MgrCommand, MgrCommandReply, MgrMapMsg, Op, OsdBackoff, OsdMapMsg,
    OsdOp, OsdOpReply, Payload, WatchNotify,
};
use msgr::{Connection, Dispatcher, Message, ReceiveGuard};
use rustc_hash::FxHashMap;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};
use types::rados::OsdFlags;
use types::{
    EntityAddrVec, EntityType, Epoch, Errno, ObjectId, ObjectLocator, OsdId, OsdMap,
    OsdMapIncremental, PgId, PoolId, SnapContext, SnapId, SpgId, Utime, features,
};

/// Priority of client requests (`osd_client_op_priority`).
const OP_PRIORITY: u16 = 63;
/// Pauses between attempts to reach an OSD.
const RECONNECT_FIRST: Duration = Duration::from_millis(50);
const RECONNECT_LAST: Duration = Duration::from_secs(2);

/// What a request is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// One object.
    Object {
        /// Its pool.
        pool: PoolId,
        /// Its namespace.
        namespace: Bytes,
        /// Its locator key, or empty.
        key: Bytes,
        /// Its name.
        name: Bytes,
    },
    /// A placement group.
    Pg {
        /// The group that has this hash.
        pgid: PgId,
        /// Namespace that a listing is restricted to.
        namespace: Bytes,
    },
}

impl Scope {
    /// The pool.
    pub fn pool(&self) -> PoolId {
        match self {
            Scope::Object { pool, .. } => *pool,
            Scope::Pg { pgid, .. } => pgid.pool,
        }
    }

    fn locator(&self) -> ObjectLocator {
        match self {
            Scope::Object { pool, namespace, key, .. } => ObjectLocator {
                pool: *pool,
                key: key.clone(),
                namespace: namespace.clone(),
                hash: -1,
            },
            Scope::Pg { pgid, namespace } => ObjectLocator {
                pool: pgid.pool,
                namespace: namespace.clone(),
                hash: pgid.seed.into(),
                ..ObjectLocator::default()
            },
        }
    }

    fn name(&self) -> Bytes {
        match self {
            Scope::Object { name, .. } => name.clone(),
            Scope::Pg { .. } => Bytes::new(),
        }
    }
}

/// A request.
#[derive(Clone, Debug)]
pub struct Request {
    /// On what.
    pub scope: Scope,
    /// What to do.
    pub ops: Vec<Op>,
    /// Flags; must say whether it reads and writes.
    pub flags: OsdFlags,
    /// Snapshot to read.
    pub snapid: SnapId,
    /// Snapshots to preserve.
    pub snapc: SnapContext,
    /// When the change was made.
    pub mtime: Utime,
}

/// Answer to a [`Request`].
#[derive(Clone, Debug)]
pub struct OpOutcome {
    /// 0, a count, or a negative errno.
    pub result: i32,
    /// The operations with their results and output.
    pub ops: Vec<Op>,
    /// Version of the object.
    pub user_version: u64,
    /// Map epoch of the OSD.
    pub epoch: Epoch,
}

impl OpOutcome {
    /// The outcome, or the error that its result stands for.
    pub fn ok(self) -> Result<Self> {
        match ClientError::from_code(self.result) {
            Some(e) => Err(e),
            None => Ok(self),
        }
    }

    /// The output of operation `at`; empty if there is none.
    pub fn output(&self, at: usize) -> Bytes {
        self.ops.get(at).map(|op| op.outdata.clone()).unwrap_or_default()
    }
}

/// Requests in flight, the map, and the sessions with OSDs and the mgr. Cheap to clone.
#[derive(Clone)]
pub struct Objecter(Rc<Inner>);

type WatchHandler = Rc<dyn Fn(WatchNotify)>;

struct Inner {
    mon: MonClient,
    map: RefCell<Option<Rc<OsdMap>>>,
    mgr: RefCell<MgrState>,
    ops: RefCell<BTreeMap<u64, Pending>>,
    commands: RefCell<BTreeMap<u64, PendingCommand>>,
    sessions: RefCell<FxHashMap<Peer, Session>>,
    last_tid: Cell<u64>,
    down: Cell<bool>,
    changed: Notify,
    watches: RefCell<Option<WatchHandler>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Peer {
    Osd(OsdId),
    Mgr,
}

impl Peer {
    fn kind(self) -> EntityType {
        match self {
            Peer::Osd(_) => EntityType::OSD,
            Peer::Mgr => EntityType::MGR,
        }
    }
}

#[derive(Default)]
struct MgrState {
    known: bool,
    addrs: EntityAddrVec,
}

struct Session {
    conn: Rc<Connection>,
    addrs: EntityAddrVec,
    /// The pause before the next attempt; reset by a connection that works.
    pause: Duration,
    backoffs: FxHashMap<SpgId, BTreeMap<ObjectId, Backoff>>,
}

struct Backoff {
    id: u64,
    end: ObjectId,
}

struct Pending {
    request: Request,
    /// `None` until there is a map.
    target: Option<Target>,
    /// Where it was sent last, and whether that still counts.
    sent_to: Option<OsdId>,
    attempts: i32,
    reply: oneshot::Sender<Result<OpOutcome>>,
}

struct PendingCommand {
    peer: Peer,
    sent: bool,
    cmd: Vec<String>,
    input: Bytes,
    reply: oneshot::Sender<Result<CommandOutput>>,
}

/// Kept by a connection, to find its session.
struct Link(Peer);

/// Passes maps on.
struct Maps(Weak<Inner>);

impl MonEvents for Maps {
    fn on_message(&self, message: Message) {
        if let Some(inner) = self.0.upgrade() {
            inner.handle_maps(&message);
        }
    }
}

struct Router(Weak<Inner>);

impl Dispatcher for Router {
    fn on_connect(&self, conn: &Rc<Connection>) {
        let (Some(inner), Some(link)) = (self.0.upgrade(), conn.user::<Link>()) else { return };
        if let Some(session) = inner.sessions.borrow_mut().get_mut(&link.0) {
            session.pause = RECONNECT_FIRST;
        }
    }
    fn on_message(&self, conn: &Rc<Connection>, message: Message, guard: ReceiveGuard) {
        if let Some(inner) = self.0.upgrade() {
            inner.received(conn, message);
        }
        drop(guard);
    }
    fn on_reset(&self, conn: &Rc<Connection>) {
        if let Some(inner) = self.0.upgrade() {
            inner.reset(conn);
        }
    }
}

/// What forgets a request when its future is dropped.
struct Forget<'a, T>(&'a RefCell<BTreeMap<u64, T>>, u64);
impl<T> Drop for Forget<'_, T> {
    fn drop(&mut self) {
        self.0.borrow_mut().remove(&self.1);
    }
}

impl Objecter {
    /// Sends through the messenger of `mon`. The maps come through [`Self::events`], or from its
    /// owner with [`Self::handle_mon_message`].
    pub fn new(mon: MonClient) -> Self {
        let inner = Rc::new(Inner {
            mon: mon.clone(),
            map: RefCell::new(None),
            mgr: RefCell::default(),
            ops: RefCell::default(),
            commands: RefCell::default(),
            sessions: RefCell::default(),
            last_tid: Cell::new(0),
            down: Cell::new(false),
            changed: Notify::new(),
            watches: RefCell::new(None),
        });
        mon.set_dispatcher(Rc::new(Router(Rc::downgrade(&inner))));
        mon.subscribe("osdmap", 0, false);
        mon.subscribe("mgrmap", 0, false);
        Objecter(inner)
    }

    /// For [`MonClient::set_events`], where nobody else wants to hear. Does not keep the objecter
    /// alive.
    pub fn events(&self) -> Rc<dyn MonEvents> {
        Rc::new(Maps(Rc::downgrade(&self.0)))
    }

    /// Takes a message of the monitors: OSD maps and mgr maps.
    pub fn handle_mon_message(&self, message: &Message) {
        self.0.handle_maps(message);
    }

    /// Who hears of notifications on watched objects.
    pub fn set_watch_handler(&self, handler: WatchHandler) {
        *self.0.watches.borrow_mut() = Some(handler);
    }

    /// The newest map, once there is one.
    pub fn map(&self) -> Option<Rc<OsdMap>> {
        self.0.map.borrow().clone()
    }

    /// The monitor client.
    pub fn mon(&self) -> &MonClient {
        &self.0.mon
    }

    /// Waits for a map of at least this epoch.
    pub async fn wait_epoch(&self, epoch: Epoch) -> Result<Rc<OsdMap>> {
        loop {
            let changed = self.0.changed.notified();
            if self.0.down.get() {
                return Err(ClientError::Shutdown);
            }
            if let Some(map) = self.map().filter(|m| m.epoch >= epoch) {
                return Ok(map);
            }
            changed.await;
        }
    }

    /// Waits for the newest map that the monitors have now.
    pub async fn wait_latest(&self) -> Result<Rc<OsdMap>> {
        let (newest, _) = self.0.mon.get_version("osdmap").await?;
        self.wait_epoch(Epoch(u32::try_from(newest).unwrap_or(u32::MAX))).await
    }

    /// Sends a request and waits for its answer, for as long as that takes. Dropping the future
    /// forgets the request; it may be carried out all the same.
    pub async fn submit(&self, request: Request) -> Result<OpOutcome> {
        if self.0.down.get() {
            return Err(ClientError::Shutdown);
        }
        let (reply, answer) = oneshot::channel();
        let tid = self.0.next_tid();
        let pending = Pending { request, target: None, sent_to: None, attempts: 0, reply };
        self.0.ops.borrow_mut().insert(tid, pending);
        let _forget = Forget(&self.0.ops, tid);
        self.0.dispatch(tid, false);
        answer.await.unwrap_or(Err(ClientError::Shutdown))
    }

    /// Runs a command on an OSD (`ceph tell osd.N`).
    pub async fn osd_command(&self, osd: OsdId, json: &str, input: Bytes) -> Result<CommandOutput> {
        let map = self.wait_epoch(Epoch(1)).await?;
        if !map.is_up(osd) {
            return Err(ClientError::NoDaemon);
        }
        self.command(Peer::Osd(osd), json, input).await
    }

    /// Runs a command on the active mgr.
    pub async fn mgr_command(&self, json: &str, input: Bytes) -> Result<CommandOutput> {
        self.command(Peer::Mgr, json, input).await
    }

    async fn command(&self, peer: Peer, json: &str, input: Bytes) -> Result<CommandOutput> {
        if self.0.down.get() {
            return Err(ClientError::Shutdown);
        }
        let (reply, answer) = oneshot::channel();
        let tid = self.0.next_tid();
        let pending =
            PendingCommand { peer, sent: false, cmd: vec![json.to_owned()], input, reply };
        self.0.commands.borrow_mut().insert(tid, pending);
        let _forget = Forget(&self.0.commands, tid);
        self.0.send_commands(peer);
        answer.await.unwrap_or(Err(ClientError::Shutdown))
    }

    /// Closes all sessions with OSDs and the mgr, as if the network had failed; they are opened
    /// again and unanswered requests repeated.
    pub fn break_sessions(&self) {
        let broken: Vec<Rc<Connection>> =
            self.0.sessions.borrow().values().map(|s| s.conn.clone()).collect();
        for conn in broken {
            conn.mark_down();
            self.0.reset(&conn);
        }
    }

    /// Ends all sessions. Waiting requests fail.
    pub fn shutdown(&self) {
        self.0.down.set(true);
        for session in std::mem::take(&mut *self.0.sessions.borrow_mut()).into_values() {
            session.conn.mark_down();
        }
        for pending in std::mem::take(&mut *self.0.ops.borrow_mut()).into_values() {
            let _ = pending.reply.send(Err(ClientError::Shutdown));
        }
        for pending in std::mem::take(&mut *self.0.commands.borrow_mut()).into_values() {
            let _ = pending.reply.send(Err(ClientError::Shutdown));
        }
        self.0.changed.notify_waiters();
    }
}

impl Inner {
    fn next_tid(&self) -> u64 {
        self.last_tid.set(self.last_tid.get() + 1);
        self.last_tid.get()
    }

    // ---- maps

    fn handle_maps(self: &Rc<Self>, message: &Message) {
        match message.msg_type {
            OsdMapMsg::TYPE => match OsdMapMsg::decode(message) {
                Ok(maps) => self.handle_osd_maps(&maps),
                Err(error) => tracing::warn!(%error, "OSD maps"),
            },
            MgrMapMsg::TYPE => {
                match MgrMapMsg::decode(message).map(|m| denc::Decode::from_bytes(&m.map.0)) {
                    Ok(Ok(map)) => self.handle_mgr_map(map),
                    Ok(Err(error)) => tracing::warn!(%error, "mgr map"),
                    Err(error) => tracing::warn!(%error, "mgr map"),
                }
            }
            _ => {}
        }
    }

    fn handle_osd_maps(self: &Rc<Self>, maps: &OsdMapMsg) {
        if self.mon.fsid().is_some_and(|fsid| fsid != maps.fsid) {
            tracing::warn!("OSD maps of another cluster");
            return;
        }
        let mut advanced = false;
        loop {
            let current = self.map.borrow().clone();
            let next = match &current {
                // The first map is a full one, whichever is newest.
                None => maps.maps.last_key_value().map(|(epoch, _)| *epoch),
                Some(map) => Some(map.epoch.next()),
            };
            let Some(next) = next else { break };
            let applied: std::result::Result<OsdMap, String> =
                match (maps.maps.get(&next), maps.incremental_maps.get(&next), &current) {
                    (_, Some(inc), Some(map)) => apply(map, inc),
                    (Some(full), _, _) => denc::Decode::from_bytes(full).map_err(|e| e.to_string()),
                    // A gap: a full map further on bridges it, otherwise the monitor is asked
                    // below.
                    _ => match maps.maps.range(next..).next_back() {
                        Some((_, full)) => {
                            denc::Decode::from_bytes(full).map_err(|e| e.to_string())
                        }
                        None => break,
                    },
                };
            match applied {
                Ok(map) => {
                    // Every epoch counts: a group that moves and moves back has dropped its
                    // requests.
                    self.refresh_targets(&map);
                    *self.map.borrow_mut() = Some(Rc::new(map));
                    advanced = true;
                }
                Err(error) => {
                    // Start over with a full map rather than go on with a wrong one.
                    tracing::warn!(error, epoch = next.0, "cannot apply an OSD map");
                    *self.map.borrow_mut() = None;
                    self.mon.unsubscribe("osdmap");
                    self.mon.subscribe("osdmap", 0, false);
                    return;
                }
            }
        }
        let Some(map) = self.map.borrow().clone() else { return };
        if !advanced {
            // Maps that begin behind a gap: ask for what is missing.
            if maps.first().is_some_and(|first| first > map.epoch.next()) {
                self.mon.unsubscribe("osdmap");
                self.mon.subscribe("osdmap", u64::from(map.epoch.0) + 1, false);
            }
            return;
        }
        self.mon.got("osdmap", map.epoch.0.into());
        self.close_stale_sessions(&map);
        let tids: Vec<u64> = self.ops.borrow().keys().copied().collect();
        for tid in tids {
            self.dispatch(tid, false);
        }
        let lost: Vec<u64> = {
            let commands = self.commands.borrow();
            let down = |c: &PendingCommand| matches!(c.peer, Peer::Osd(osd) if !map.is_up(osd));
            commands.iter().filter(|(_, c)| down(c)).map(|(tid, _)| *tid).collect()
        };
        for tid in lost {
            self.finish_command(tid, Err(ClientError::NoDaemon));
        }
        self.changed.notify_waiters();
    }

    fn handle_mgr_map(self: &Rc<Self>, map: types::MgrMap) {
        self.mon.got("mgrmap", map.epoch.0.into());
        {
            let mut mgr = self.mgr.borrow_mut();
            mgr.known = true;
            mgr.addrs =
                if map.available { map.active_addrs.clone() } else { EntityAddrVec::default() };
        }
        let stale = self
            .sessions
            .borrow()
            .get(&Peer::Mgr)
            .is_some_and(|s| s.addrs != self.mgr.borrow().addrs);
        if stale {
            self.close(Peer::Mgr);
        }
        self.send_commands(Peer::Mgr);
        self.changed.notify_waiters();
    }

    // ---- sessions

    fn addrs_of(&self, peer: Peer) -> Option<EntityAddrVec> {
        match peer {
            Peer::Osd(osd) => {
                let map = self.map.borrow().clone()?;
                if map.is_up(osd) { map.client_addrs(osd).cloned() } else { None }
            }
            Peer::Mgr => Some(self.mgr.borrow().addrs.clone()).filter(|a| !a.is_empty()),
        }
    }

    /// The session with a peer, opened if need be; `None` if the peer is not there.
    fn session(&self, peer: Peer) -> Option<Rc<Connection>> {
        if let Some(session) = self.sessions.borrow().get(&peer) {
            // While a broken session waits to be opened again, nothing is sent.
            return (!session.conn.is_down()).then(|| session.conn.clone());
        }
        let addrs = self.addrs_of(peer)?;
        let conn = self.open(peer, addrs.clone());
        let session = Session {
            conn: conn.clone(),
            addrs,
            pause: RECONNECT_FIRST,
            backoffs: FxHashMap::default(),
        };
        self.sessions.borrow_mut().insert(peer, session);
        Some(conn)
    }

    fn open(&self, peer: Peer, addrs: EntityAddrVec) -> Rc<Connection> {
        let conn = self.mon.messenger().connect(peer.kind(), addrs);
        conn.set_user(Rc::new(Link(peer)));
        conn
    }

    fn close(&self, peer: Peer) {
        let session = self.sessions.borrow_mut().remove(&peer);
        if let Some(session) = session {
            session.conn.mark_down();
        }
        self.forget_sent(peer);
    }

    fn close_stale_sessions(&self, map: &OsdMap) {
        let stale: Vec<Peer> = self
            .sessions
            .borrow()
            .iter()
            .filter(|(peer, session)| match peer {
                Peer::Osd(osd) => {
                    !map.is_up(*osd) || map.client_addrs(*osd) != Some(&session.addrs)
                }
                Peer::Mgr => false,
            })
            .map(|(peer, _)| *peer)
            .collect();
        stale.into_iter().for_each(|peer| self.close(peer));
    }

    /// What was sent to the peer will not be answered any more.
    fn forget_sent(&self, peer: Peer) {
        if let Peer::Osd(osd) = peer {
            self.ops
                .borrow_mut()
                .values_mut()
                .filter(|op| op.sent_to == Some(osd))
                .for_each(|op| op.sent_to = None);
        }
        self.commands
            .borrow_mut()
            .values_mut()
            .filter(|c| c.peer == peer)
            .for_each(|c| c.sent = false);
    }

    fn reset(self: &Rc<Self>, conn: &Rc<Connection>) {
        let Some(link) = conn.user::<Link>() else { return };
        let peer = link.0;
        let pause = {
            let mut sessions = self.sessions.borrow_mut();
            let Some(session) = sessions.get_mut(&peer).filter(|s| s.conn.id() == conn.id()) else {
                return;
            };
            session.backoffs.clear();
            let pause = session.pause;
            session.pause = (pause * 2).min(RECONNECT_LAST);
            pause
        };
        self.forget_sent(peer);
        let weak = Rc::downgrade(self);
        let id = conn.id();
        tokio::task::spawn_local(async move {
            tokio::time::sleep(pause).await;
            if let Some(inner) = weak.upgrade() {
                inner.reopen(peer, id).await;
            }
        });
    }

    /// Opens a broken session again, unless the map has changed that meanwhile.
    async fn reopen(self: &Rc<Self>, peer: Peer, broken: u64) {
        // A refused ticket shows as a broken connection; an expired one is renewed by the monitor's
        // client, so there is only something to wait for if there is none.
        let _ = self.mon.wait_ticket(peer.kind(), RECONNECT_LAST).await;
        {
            let mut sessions = self.sessions.borrow_mut();
            let Some(session) = sessions.get_mut(&peer).filter(|s| s.conn.id() == broken) else {
                return;
            };
            session.conn = self.open(peer, session.addrs.clone());
        }
        match peer {
            Peer::Osd(osd) => {
                let tids: Vec<u64> = {
                    let ops = self.ops.borrow();
                    let aims =
                        |op: &Pending| op.target.as_ref().is_some_and(|t| t.primary == Some(osd));
                    ops.iter()
                        .filter(|(_, op)| op.sent_to.is_none() && aims(op))
                        .map(|(tid, _)| *tid)
                        .collect()
                };
                for tid in tids {
                    self.dispatch(tid, false);
                }
                self.send_commands(peer);
            }
            Peer::Mgr => self.send_commands(peer),
        }
    }

    // ---- requests

    /// Computes where requests go under a new map. Those for which that is news have to be sent
    /// again.
    fn refresh_targets(&self, map: &OsdMap) {
        for op in self.ops.borrow_mut().values_mut() {
            let target = Target::of(map, &op.request.scope);
            if op.target != target {
                op.target = target;
                op.sent_to = None;
            }
        }
    }

    /// Sends a request if it is due and there is somebody to send it to; with `again`, also if it
    /// was sent already.
    fn dispatch(&self, tid: u64, again: bool) {
        let Some(map) = self.map.borrow().clone() else { return };
        let mut ops = self.ops.borrow_mut();
        let Some(op) = ops.get_mut(&tid) else { return };
        if op.target.is_none() || again {
            op.target = Target::of(&map, &op.request.scope);
            op.sent_to = None;
        }
        let (Some(pool), Some(target)) = (map.pool(op.request.scope.pool()), &op.target) else {
            if let Some(op) = ops.remove(&tid) {
                let _ = op.reply.send(Err(ClientError::NoPool));
            }
            return;
        };
        let (primary, pgid) = (target.primary, target.pgid);
        if op.sent_to.is_some() || is_paused(&map, pool, op.request.flags) {
            return;
        }
        let Some(osd) = primary else { return };
        let Some(conn) = self.session(Peer::Osd(osd)) else { return };
        let blocked = {
            let sessions = self.sessions.borrow();
            let backoffs = sessions.get(&Peer::Osd(osd)).and_then(|s| s.backoffs.get(&pgid));
            backoffs.is_some_and(|b| {
                let object =
                    op.target.as_ref().map(|t| t.object(&op.request.scope, op.request.snapid));
                object.is_some_and(|o| is_blocked(b, &o))
            })
        };
        if blocked {
            return;
        }
        let Some(target) = &op.target else { return };
        let mut flags = op.request.flags | OsdFlags::KNOWN_REDIR | OsdFlags::ONDISK;
        if op.attempts > 0 {
            flags |= OsdFlags::RETRY;
        }
        let mut message = OsdOp {
            pgid: target.pgid,
            hash: target.hash,
            epoch: map.epoch,
            flags,
            mtime: op.request.mtime,
            locator: op.request.scope.locator(),
            object: op.request.scope.name(),
            ops: op.request.ops.clone(),
            snapid: op.request.snapid,
            snapc: op.request.snapc.clone(),
            retry_attempt: op.attempts,
            features: features::SUPPORTED.0,
            ..OsdOp::default()
        }
        .encode(encode_features(&conn));
        message.tid = tid;
        message.priority = OP_PRIORITY;
        op.attempts += 1;
        op.sent_to = Some(osd);
        conn.send(message);
    }

    fn received(self: &Rc<Self>, conn: &Rc<Connection>, message: Message) {
        let result = match message.msg_type {
            OsdOpReply::TYPE => {
                OsdOpReply::decode(&message).map(|reply| self.replied(conn, message.tid, reply))
            }
            OsdBackoff::TYPE => {
                OsdBackoff::decode(&message).map(|backoff| self.backed_off(conn, backoff))
            }
            OsdMapMsg::TYPE => OsdMapMsg::decode(&message).map(|maps| self.handle_osd_maps(&maps)),
            CommandReply::TYPE => CommandReply::decode(&message).map(|r| {
                let output = CommandOutput { code: r.result, status: r.status, output: r.output };
                self.finish_command(message.tid, Ok(output));
            }),
            MgrCommandReply::TYPE => MgrCommandReply::decode(&message).map(|r| {
                let output = CommandOutput { code: r.result, status: r.status, output: r.output };
                self.finish_command(message.tid, Ok(output));
            }),
            WatchNotify::TYPE => WatchNotify::decode(&message).map(|event| {
                let handler = self.watches.borrow().clone();
                if let Some(handler) = handler {
                    handler(event);
                }
            }),
            _ => Ok(()),
        };
        if let Err(error) = result {
            tracing::warn!(%error, peer = %conn.peer_name(), "cannot read a message");
            if message.msg_type == OsdOpReply::TYPE {
                let pending = self.ops.borrow_mut().remove(&message.tid);
                if let Some(pending) = pending {
                    let _ = pending.reply.send(Err(ClientError::Peer(error)));
                }
            }
        }
    }

    fn replied(&self, conn: &Rc<Connection>, tid: u64, reply: OsdOpReply) {
        let mut ops = self.ops.borrow_mut();
        let Some(op) = ops.get_mut(&tid) else { return };
        let from = conn.user::<Link>().map(|link| link.0);
        let ours = op.sent_to.is_some_and(|osd| from == Some(Peer::Osd(osd)));
        // An answer to an earlier attempt: the one to the last is still to come.
        if !ours || (reply.retry_attempt >= 0 && reply.retry_attempt != op.attempts - 1) {
            return;
        }
        if let Some(redirect) = reply.redirect {
            if let Scope::Object { pool, namespace, key, name } = &mut op.request.scope {
                *pool = redirect.locator.pool;
                *namespace = redirect.locator.namespace;
                *key = redirect.locator.key;
                if !redirect.object.is_empty() {
                    *name = redirect.object;
                }
            }
            op.request.flags |=
                OsdFlags::REDIRECTED | OsdFlags::IGNORE_CACHE | OsdFlags::IGNORE_OVERLAY;
            drop(ops);
            self.dispatch(tid, true);
            return;
        }
        if reply.result == -Errno::EAGAIN.0 {
            // A replica that could not serve a read: ask the primary.
            op.request.flags =
                op.request.flags & !(OsdFlags::BALANCE_READS | OsdFlags::LOCALIZE_READS);
            drop(ops);
            self.dispatch(tid, true);
            return;
        }
        if let Some(op) = ops.remove(&tid) {
            let outcome = OpOutcome {
                result: reply.result,
                ops: reply.ops,
                user_version: reply.user_version,
                epoch: reply.epoch,
            };
            let _ = op.reply.send(Ok(outcome));
        }
    }

    fn backed_off(self: &Rc<Self>, conn: &Rc<Connection>, backoff: OsdBackoff) {
        let Some(link) = conn.user::<Link>() else { return };
        let Peer::Osd(osd) = link.0 else { return };
        match backoff.op {
            OsdBackoff::BLOCK => {
                {
                    let mut sessions = self.sessions.borrow_mut();
                    let Some(session) =
                        sessions.get_mut(&link.0).filter(|s| s.conn.id() == conn.id())
                    else {
                        return;
                    };
                    session.backoffs.entry(backoff.pgid).or_default().insert(
                        backoff.begin.clone(),
                        Backoff { id: backoff.id, end: backoff.end.clone() },
                    );
                }
                // What the OSD got before it decided, it has dropped.
                let mut ack =
                    OsdBackoff { op: OsdBackoff::ACK_BLOCK, ..backoff }.encode(conn.features());
                ack.priority = OP_PRIORITY;
                conn.send(ack);
            }
            OsdBackoff::UNBLOCK => {
                {
                    let mut sessions = self.sessions.borrow_mut();
                    let Some(session) =
                        sessions.get_mut(&link.0).filter(|s| s.conn.id() == conn.id())
                    else {
                        return;
                    };
                    if let Some(of_pg) = session.backoffs.get_mut(&backoff.pgid) {
                        of_pg.retain(|_, b| b.id != backoff.id);
                        if of_pg.is_empty() {
                            session.backoffs.remove(&backoff.pgid);
                        }
                    }
                }
                let freed =
                    BTreeMap::from([(backoff.begin, Backoff { id: backoff.id, end: backoff.end })]);
                let tids: Vec<u64> = {
                    let ops = self.ops.borrow();
                    let concerned = |op: &Pending| {
                        op.target.as_ref().is_some_and(|t| {
                            t.primary == Some(osd)
                                && t.pgid == backoff.pgid
                                && is_blocked(
                                    &freed,
                                    &t.object(&op.request.scope, op.request.snapid),
                                )
                        })
                    };
                    ops.iter().filter(|(_, op)| concerned(op)).map(|(tid, _)| *tid).collect()
                };
                for tid in tids {
                    self.dispatch(tid, true);
                }
            }
            other => tracing::debug!(op = other, "unknown backoff"),
        }
    }

    // ---- commands

    fn send_commands(&self, peer: Peer) {
        if !self.commands.borrow().values().any(|c| c.peer == peer && !c.sent) {
            return;
        }
        let Some(conn) = self.session(peer) else { return };
        let fsid = self.mon.fsid().unwrap_or_default();
        for (tid, c) in
            self.commands.borrow_mut().iter_mut().filter(|(_, c)| c.peer == peer && !c.sent)
        {
            let (cmd, input) = (c.cmd.clone(), c.input.clone());
            let mut message = match peer {
                Peer::Osd(_) => Command { fsid, cmd, input }.encode(encode_features(&conn)),
                Peer::Mgr => MgrCommand { fsid, cmd, input }.encode(encode_features(&conn)),
            };
            message.tid = *tid;
            c.sent = true;
            conn.send(message);
        }
    }

    fn finish_command(&self, tid: u64, output: Result<CommandOutput>) {
        let pending = self.commands.borrow_mut().remove(&tid);
        if let Some(pending) = pending {
            let _ = pending.reply.send(output);
        }
    }
}

/// Features to encode a request for. Before the connection is established they are not known; then
/// the oldest form that every supported OSD reads is used.
fn encode_features(conn: &Connection) -> denc::Features {
    if conn.is_connected() { conn.features() } else { features::PACIFIC }
}

/// Whether one of the ranges covers `object`. A range of no length blocks the object that it names.
fn is_blocked(backoffs: &BTreeMap<ObjectId, Backoff>, object: &ObjectId) -> bool {
    backoffs
        .range(..=object)
        .next_back()
        .is_some_and(|(begin, b)| object < &b.end || (begin == &b.end && object == begin))
}

fn apply(map: &OsdMap, incremental: &Bytes) -> std::result::Result<OsdMap, String> {
    let inc: OsdMapIncremental =
        denc::Decode::from_bytes(incremental).map_err(|e| e.to_string())?;
    let mut next = map.clone();
    next.apply_incremental_checked(&inc).map_err(|e| e.to_string())?;
    Ok(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(hash: u32, name: &'static str) -> ObjectId {
        ObjectId::with_hash(
            PoolId(1),
            Bytes::new(),
            Bytes::from_static(name.as_bytes()),
            Bytes::new(),
            SnapId::NOSNAP,
            hash,
        )
    }

    #[test]
    fn a_backoff_blocks_its_range_without_the_end() {
        let (a, b, c) = (object(0, "a"), object(0, "b"), object(0, "c"));
        let range = BTreeMap::from([(a.clone(), Backoff { id: 1, end: c.clone() })]);
        assert!(is_blocked(&range, &a) && is_blocked(&range, &b));
        assert!(!is_blocked(&range, &c));
        let single = BTreeMap::from([(b.clone(), Backoff { id: 2, end: b.clone() })]);
        assert!(is_blocked(&single, &b));
        assert!(!is_blocked(&single, &a) && !is_blocked(&single, &c));
    }

    #[test]
    fn a_backoff_of_a_whole_group_covers_listings() {
        let begin = ObjectId { pool: PoolId(1), hash: 3, ..ObjectId::MIN };
        let range = BTreeMap::from([(begin.clone(), Backoff { id: 1, end: ObjectId::MAX })]);
        assert!(is_blocked(&range, &begin));
        assert!(!is_blocked(&range, &ObjectId::MIN));
    }
}
