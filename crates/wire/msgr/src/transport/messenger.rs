//! Listening, connecting, and the table of connections.

use super::connection::{Connection, Fault, Phase};
use super::{Dispatcher, socket};
use crate::protocol::{GlobalSeq, Local};
use crate::{Limits, Policy, PolicySet};
use auth::{ClientAuth, ServerAuth};
use rustc_hash::FxHashMap;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::rc::{Rc, Weak};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::time::Instant;
use types::{EntityAddr, EntityAddrVec, EntityName, EntityType};

/// What a messenger needs to know.
pub struct MessengerConfig {
    /// Our name. A client's number is not known before it has a session with a monitor;
    /// [`Messenger::set_name`] corrects it.
    pub name: EntityName,
    /// Tells this process from earlier ones at the same address. Part of every address of ours.
    /// Zero for monitors: their addresses are configured.
    pub nonce: u32,
    /// Behaviour by kind of peer.
    pub policies: PolicySet,
    /// Bounds.
    pub limits: Limits,
    /// Authenticates peers that connect to us; `None` refuses all.
    pub server_auth: Option<Rc<dyn ServerAuth>>,
    /// Authenticates us.
    pub client_auth: Rc<dyn ClientAuth>,
}

/// Why a messenger cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The operating system refused.
    #[error("cannot listen on {addr}")]
    Io {
        /// The last address tried.
        addr: SocketAddr,
        /// What it said.
        #[source]
        source: std::io::Error,
    },
    /// The range has no ports.
    #[error("empty port range")]
    NoPorts,
}

/// A set of connections that share an identity, a policy and a dispatcher (`Messenger`).
///
/// It holds its dispatcher; a dispatcher that holds it in turn is released by [`Self::shutdown`].
pub struct Messenger {
    name: Cell<EntityName>,
    nonce: u32,
    policies: PolicySet,
    limits: Rc<Limits>,
    server_auth: Option<Rc<dyn ServerAuth>>,
    client_auth: Rc<dyn ClientAuth>,
    dispatcher: RefCell<Option<Rc<dyn Dispatcher>>>,
    addrs: RefCell<EntityAddrVec>,
    global_seq: GlobalSeq,
    conns: RefCell<FxHashMap<u64, Rc<Connection>>>,
    registered: RefCell<FxHashMap<EntityAddrVec, Rc<Connection>>>,
    next_id: Cell<u64>,
    incoming: Cell<usize>,
    half_open: RefCell<VecDeque<Weak<Connection>>>,
    half_open_count: Cell<usize>,
    tasks: RefCell<Vec<tokio::task::AbortHandle>>,
}

impl Messenger {
    /// A messenger that does not listen yet. Must be called, like everything here, within a
    /// `LocalSet`.
    pub fn new(config: MessengerConfig, dispatcher: Rc<dyn Dispatcher>) -> Rc<Self> {
        let this = Rc::new(Messenger {
            name: Cell::new(config.name),
            nonce: config.nonce,
            policies: config.policies,
            limits: Rc::new(config.limits),
            server_auth: config.server_auth,
            client_auth: config.client_auth,
            dispatcher: RefCell::new(Some(dispatcher)),
            addrs: RefCell::default(),
            global_seq: GlobalSeq::default(),
            conns: RefCell::default(),
            registered: RefCell::default(),
            next_id: Cell::new(1),
            incoming: Cell::new(0),
            half_open: RefCell::default(),
            half_open_count: Cell::new(0),
            tasks: RefCell::default(),
        });
        let ticker = tokio::task::spawn_local(tick(Rc::downgrade(&this)));
        this.tasks.borrow_mut().push(ticker.abort_handle());
        this
    }

    /// Listens on the first free port of the range (a range of one for a fixed port; 0 lets the
    /// system choose) and starts to accept. The address becomes ours, with our nonce.
    pub fn bind(
        self: &Rc<Self>,
        ip: IpAddr,
        ports: RangeInclusive<u16>,
    ) -> Result<EntityAddr, BindError> {
        let mut last = BindError::NoPorts;
        for port in ports {
            let addr = SocketAddr::new(ip, port);
            match listen(addr) {
                Ok((listener, addr)) => {
                    let ours = EntityAddr::msgr2(addr, self.nonce);
                    self.addrs.replace(EntityAddrVec::one(ours));
                    let task = tokio::task::spawn_local(accept(Rc::downgrade(self), listener));
                    self.tasks.borrow_mut().push(task.abort_handle());
                    return Ok(ours);
                }
                Err(source) => last = BindError::Io { addr, source },
            }
        }
        Err(last)
    }

    /// Replaces the addresses that we tell peers, where they differ from where we listen.
    pub fn set_addrs(&self, addrs: EntityAddrVec) {
        self.addrs.replace(addrs);
    }

    /// Our addresses; blank until bound or learnt from a peer.
    pub fn addrs(&self) -> EntityAddrVec {
        self.addrs.borrow().clone()
    }

    /// Changes our name, for connections that are opened later.
    pub fn set_name(&self, name: EntityName) {
        self.name.set(name);
    }

    /// Our name.
    pub fn name(&self) -> EntityName {
        self.name.get()
    }

    /// The connection to a peer: the one that is registered under these addresses if there is one,
    /// else a new one. Returns at once; messages may be queued immediately.
    pub fn connect(self: &Rc<Self>, peer: EntityType, addrs: EntityAddrVec) -> Rc<Connection> {
        if let Some(existing) = self.registered(&addrs)
            && existing.peer_type() == peer
        {
            return existing;
        }
        let conn = self.add(false, peer, addrs.clone());
        self.register(addrs, &conn);
        tokio::task::spawn_local(socket::drive(conn.clone()));
        conn
    }

    /// All connections that are not down.
    pub fn connections(&self) -> Vec<Rc<Connection>> {
        self.conns.borrow().values().cloned().collect()
    }

    /// Closes everything, without callbacks, and lets go of the dispatcher.
    pub fn shutdown(&self) {
        self.tasks.take().iter().for_each(|t| t.abort());
        for conn in self.connections() {
            conn.mark_down();
            conn.clear_user();
        }
        self.dispatcher.take();
    }

    pub(super) fn limits(&self) -> &Rc<Limits> {
        &self.limits
    }

    pub(super) fn policy(&self, peer: EntityType) -> Policy {
        self.policies.get(peer)
    }

    pub(super) fn policies(&self) -> &PolicySet {
        &self.policies
    }

    pub(super) fn server_auth(&self) -> Option<Rc<dyn ServerAuth>> {
        self.server_auth.clone()
    }

    pub(super) fn client_auth(&self) -> Rc<dyn ClientAuth> {
        self.client_auth.clone()
    }

    pub(super) fn local(&self) -> Local {
        Local {
            name: self.name.get(),
            addrs: self.addrs.borrow().clone(),
            nonce: self.nonce,
            global_seq: self.global_seq.clone(),
        }
    }

    pub(super) fn dispatcher(&self) -> Option<Rc<dyn Dispatcher>> {
        self.dispatcher.borrow().clone()
    }

    /// The first address that any peer tells us is ours, unless we know one.
    pub(super) fn learn(&self, addr: EntityAddr) {
        let mut addrs = self.addrs.borrow_mut();
        if addrs.0.first().is_none_or(EntityAddr::is_blank_ip) {
            *addrs = EntityAddrVec::one(addr);
        }
    }

    /// The connection that stands for these addresses, unless it is down.
    pub(super) fn registered(&self, addrs: &EntityAddrVec) -> Option<Rc<Connection>> {
        self.registered.borrow().get(addrs).filter(|c| !c.is_down()).cloned()
    }

    pub(super) fn register(&self, addrs: EntityAddrVec, conn: &Rc<Connection>) {
        self.registered.borrow_mut().insert(addrs, conn.clone());
    }

    fn add(
        self: &Rc<Self>,
        incoming: bool,
        peer: EntityType,
        addrs: EntityAddrVec,
    ) -> Rc<Connection> {
        let id = self.next_id.get();
        self.next_id.set(id + 1);
        let conn = Connection::new(self, id, incoming, peer, addrs);
        self.conns.borrow_mut().insert(id, conn.clone());
        conn
    }

    /// Removes a connection that is down.
    pub(super) fn forget(&self, conn: &Connection) {
        self.no_longer_half_open(conn);
        let removed = self.conns.borrow_mut().remove(&conn.id());
        if removed.is_some() && conn.is_incoming() {
            self.incoming.set(self.incoming.get() - 1);
        }
        let addrs = conn.peer_addrs();
        let mut registered = self.registered.borrow_mut();
        if registered.get(&addrs).is_some_and(|c| c.id() == conn.id()) {
            registered.remove(&addrs);
        } else {
            // Known under the addresses that it was opened with, not those that the peer told us.
            registered.retain(|_, c| c.id() != conn.id());
        }
    }

    pub(super) fn no_longer_half_open(&self, conn: &Connection) {
        if std::mem::take(&mut conn.core.borrow_mut().half_open) {
            self.half_open_count.set(self.half_open_count.get() - 1);
        }
    }

    fn accepted(self: &Rc<Self>, stream: tokio::net::TcpStream, addr: SocketAddr) {
        if self.incoming.get() >= self.limits.connections {
            tracing::warn!(%addr, "too many connections");
            return;
        }
        let conn = self.add(true, EntityType(0), EntityAddrVec::default());
        self.incoming.set(self.incoming.get() + 1);
        {
            let mut core = conn.core.borrow_mut();
            core.half_open = true;
            core.socket_addr = Some(addr);
        }
        self.half_open_count.set(self.half_open_count.get() + 1);
        self.half_open.borrow_mut().push_back(Rc::downgrade(&conn));
        self.trim_half_open();
        tokio::task::spawn_local(socket::serve_accepted(conn, stream, addr));
    }

    /// Pushes out the oldest connections that have not authenticated. A peer that opens thousands
    /// of connections and says nothing gets nowhere; one that authenticates is no longer counted.
    fn trim_half_open(&self) {
        let is_half_open =
            |c: &Weak<Connection>| c.upgrade().is_some_and(|c| c.core.borrow().half_open);
        loop {
            let oldest = {
                let mut queue = self.half_open.borrow_mut();
                while queue.front().is_some_and(|c| !is_half_open(c)) {
                    queue.pop_front();
                }
                // Done ones may hide behind a slow one: look through them all now and then.
                if queue.len() > 2 * self.limits.half_open + 16 {
                    queue.retain(is_half_open);
                }
                if self.half_open_count.get() <= self.limits.half_open {
                    return;
                }
                queue.pop_front().and_then(|c| c.upgrade())
            };
            match oldest {
                Some(conn) => conn.mark_down(),
                None => return,
            }
        }
    }

    /// Closes what has taken too long.
    fn tick(&self) {
        let now = Instant::now();
        for conn in self.connections() {
            let mut core = conn.core.borrow_mut();
            let fault = if core.deadline.is_some_and(|d| d <= now) {
                core.deadline = None;
                Fault::Timeout
            } else if core.phase == Phase::Ready
                && conn.is_incoming()
                && now.duration_since(core.last_traffic) > self.limits.idle_time
            {
                Fault::Idle
            } else {
                continue;
            };
            core.kill.get_or_insert(fault);
            conn.wake.wake();
        }
    }
}

fn listen(addr: SocketAddr) -> std::io::Result<(TcpListener, SocketAddr)> {
    let listener = std::net::TcpListener::bind(addr)?;
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    let addr = listener.local_addr()?;
    Ok((listener, addr))
}

async fn accept(messenger: Weak<Messenger>, listener: TcpListener) {
    loop {
        let accepted = listener.accept().await;
        let Some(m) = messenger.upgrade() else { return };
        match accepted {
            Ok((stream, addr)) => m.accepted(stream, addr),
            Err(error) => {
                // Out of file descriptors, most likely. The peer stays in the backlog meanwhile.
                tracing::warn!(%error, "cannot accept");
                drop(m);
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn tick(messenger: Weak<Messenger>) {
    loop {
        let Some(period) = messenger.upgrade().map(|m| m.limits.handshake_time / 4) else {
            return;
        };
        tokio::time::sleep(period.clamp(Duration::from_millis(10), Duration::from_secs(1))).await;
        let Some(m) = messenger.upgrade() else { return };
        m.tick();
    }
}
