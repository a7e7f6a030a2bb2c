//! A connection as its users hold it, and the receiver of what arrives on it.

use super::messenger::Messenger;
use super::socket;
use super::throttle::{ReceiveGuard, Throttle, Wake};
use crate::protocol::{Protocol, ProtocolError};
use crate::session::{Existing, Session};
use crate::{Message, Policy};
use auth::{AuthCaps, AuthName, Authenticated, ConMode, ServerConn};
use denc::Features;
use std::any::Any;
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::time::Duration;
use tokio::time::Instant;
use types::{EntityAddrVec, EntityName, EntityType, Utime};

/// A connection with a peer. It survives its socket if its policy is lossless.
pub struct Connection {
    id: u64,
    incoming: bool,
    pub(super) messenger: Weak<Messenger>,
    pub(super) wake: Rc<Wake>,
    pub(super) throttle: Rc<Throttle>,
    pub(super) core: RefCell<Core>,
    user: RefCell<Option<Rc<dyn Any>>>,
    me: Weak<Connection>,
}

/// The receiver of what arrives. Called on the messenger's thread, one call at a time; a call may
/// use any connection, including the one that it is about.
pub trait Dispatcher {
    /// A peer has authenticated and wants a session. False closes the connection.
    fn on_accept(&self, _conn: &Rc<Connection>) -> bool {
        true
    }
    /// A connection that we opened is established, for the first time or again.
    fn on_connect(&self, _conn: &Rc<Connection>) {}
    /// A message. Dropping `guard` releases its bytes to the connection's receive throttle.
    fn on_message(&self, conn: &Rc<Connection>, message: Message, guard: ReceiveGuard);
    /// The connection is gone for good: the peer closed it, it failed (lossy), or the peer refused
    /// to authenticate us. Not called after our own [`Connection::mark_down`], nor for connections
    /// that never got as far as [`Self::on_accept`].
    fn on_reset(&self, _conn: &Rc<Connection>) {}
    /// The peer of a lossless connection lost its session; so did we. What was queued is lost, the
    /// connection goes on.
    fn on_remote_reset(&self, _conn: &Rc<Connection>) {}
    /// No process listens where a connection of ours wants to go. It keeps trying until it is
    /// marked down.
    fn on_refused(&self, _conn: &Rc<Connection>) {}
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// A handshake is going on, or will as soon as there is a socket.
    Opening,
    /// Messages flow.
    Ready,
    /// No socket; waits for the peer, or for something to send.
    Standby,
    /// Over.
    Down,
}

/// Never borrowed across an await or a call of the dispatcher.
pub(super) struct Core {
    pub session: Session,
    /// Of the current socket, if there is one.
    pub protocol: Option<Protocol>,
    pub phase: Phase,
    /// Changes whenever the socket's task must notice that it is no longer in charge.
    pub generation: u64,
    pub policy: Policy,
    pub peer: EntityName,
    pub peer_addrs: EntityAddrVec,
    pub features: Features,
    pub who: Option<Authenticated>,
    pub con_mode: ConMode,
    pub socket_addr: Option<SocketAddr>,
    /// The dispatcher knows of the connection.
    pub announced: bool,
    pub half_open: bool,
    /// The handshake must be over by then.
    pub deadline: Option<Instant>,
    pub last_traffic: Instant,
    pub backoff: Duration,
    pub close_when_sent: bool,
    /// Why the socket's task must close the socket.
    pub kill: Option<Fault>,
    pub keepalive_due: bool,
}

/// Why a socket was closed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    #[error("{0}")]
    Protocol(#[from] ProtocolError),
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("closed by the peer")]
    Eof,
    #[error("the handshake takes too long")]
    Timeout,
    #[error("idle")]
    Idle,
    #[error("the peer does not read: {0} bytes are queued for it")]
    Overflow(usize),
    #[error("not accepted")]
    NotAccepted,
}

impl Connection {
    pub(super) fn new(
        messenger: &Rc<Messenger>,
        id: u64,
        incoming: bool,
        peer: EntityType,
        addrs: EntityAddrVec,
    ) -> Rc<Self> {
        let wake = Rc::new(Wake::default());
        let limits = messenger.limits();
        let core = Core {
            session: Session::default(),
            protocol: None,
            phase: Phase::Opening,
            generation: 0,
            policy: messenger.policy(peer),
            peer: EntityName { kind: peer, num: -1 },
            peer_addrs: addrs,
            features: Features(0),
            who: None,
            con_mode: ConMode::Crc,
            socket_addr: None,
            announced: !incoming,
            half_open: false,
            deadline: None,
            last_traffic: Instant::now(),
            backoff: Duration::ZERO,
            close_when_sent: false,
            kill: None,
            keepalive_due: false,
        };
        Rc::new_cyclic(|me| Connection {
            id,
            incoming,
            messenger: Rc::downgrade(messenger),
            throttle: Throttle::new(limits.receive_unreleased, wake.clone()),
            wake,
            core: RefCell::new(core),
            user: RefCell::new(None),
            me: me.clone(),
        })
    }

    /// Queues a message. Never blocks; all messages queued before the next turn of the event loop
    /// leave in as few system calls as possible. Does nothing on a connection that is down.
    pub fn send(&self, message: Message) {
        let mut core = self.core.borrow_mut();
        if core.phase == Phase::Down || core.close_when_sent {
            return;
        }
        core.session.push(message);
        let queued = core.session.queued_bytes();
        if let Some(m) = self.messenger.upgrade()
            && queued > m.limits().send_queue
        {
            if core.protocol.is_some() {
                core.kill.get_or_insert(Fault::Overflow(queued));
            } else if core.policy.server || core.policy.lossy {
                // The queue cannot shrink until the peer comes back: give the session up.
                core.session.reset();
            }
        }
        self.kick(&mut core);
    }

    /// Wakes the socket's task, or starts one if that is up to us.
    fn kick(&self, core: &mut Core) {
        if core.phase == Phase::Standby && !core.policy.server {
            core.phase = Phase::Opening;
            if core.session.server_cookie != 0 {
                core.session.connect_seq += 1;
            }
            if let Some(me) = self.me.upgrade() {
                tokio::task::spawn_local(socket::drive(me));
            }
        }
        self.wake.wake();
    }

    /// Sends a keepalive; the answer shows in [`Self::last_keepalive_ack`].
    pub fn send_keepalive(&self) {
        let mut core = self.core.borrow_mut();
        if core.phase != Phase::Down {
            core.keepalive_due = true;
            self.kick(&mut core);
        }
    }

    /// Closes the connection. No callback will be made for it any more.
    pub fn mark_down(&self) {
        {
            let mut core = self.core.borrow_mut();
            if core.phase == Phase::Down {
                return;
            }
            core.phase = Phase::Down;
            core.generation += 1;
            core.session = Session::default();
            // Kept: `with_server_auth` and friends are still asked about connections that just
            // went.
            core.protocol = None;
        }
        if let Some(m) = self.messenger.upgrade() {
            m.forget(self);
        }
        self.wake.wake();
    }

    /// Makes the connection lossy and closes it once what is queued has been sent.
    pub fn mark_disposable(&self) {
        let mut core = self.core.borrow_mut();
        core.policy.lossy = true;
        core.close_when_sent = true;
        self.wake.wake();
    }

    /// Whether messages can flow right now.
    pub fn is_connected(&self) -> bool {
        self.core.borrow().phase == Phase::Ready
    }

    /// Whether the connection is closed for good.
    pub fn is_down(&self) -> bool {
        self.core.borrow().phase == Phase::Down
    }

    /// Whether the peer opened it.
    pub fn is_incoming(&self) -> bool {
        self.incoming
    }

    /// The peer's type.
    pub fn peer_type(&self) -> EntityType {
        self.core.borrow().peer.kind
    }

    /// The peer's type and number (for clients, the global id); -1 until the peer said it.
    pub fn peer_name(&self) -> EntityName {
        self.core.borrow().peer
    }

    /// The addresses that the peer says it has.
    pub fn peer_addrs(&self) -> EntityAddrVec {
        self.core.borrow().peer_addrs.clone()
    }

    /// Where the socket's other end is; `None` if there never was a socket.
    pub fn peer_socket_addr(&self) -> Option<SocketAddr> {
        self.core.borrow().socket_addr
    }

    /// Features that both ends have. Payloads are encoded for them.
    pub fn features(&self) -> Features {
        self.core.borrow().features
    }

    /// On an accepted connection: the name that the peer authenticated with.
    pub fn auth_name(&self) -> Option<AuthName> {
        self.core.borrow().who.as_ref().map(|w| w.name.clone())
    }

    /// On an accepted connection: what the peer may do here.
    pub fn auth_caps(&self) -> AuthCaps {
        self.core.borrow().who.as_ref().map(|w| w.caps.clone()).unwrap_or_default()
    }

    /// On an accepted connection: the peer's instance number.
    pub fn global_id(&self) -> u64 {
        self.core.borrow().who.as_ref().map_or(0, |w| w.global_id)
    }

    /// How frames are protected.
    pub fn con_mode(&self) -> ConMode {
        self.core.borrow().con_mode
    }

    /// On a monitor: the state of the peer's authentication, for [`auth::MonAuth::handle_mauth`].
    pub fn with_server_auth<R>(&self, f: impl FnOnce(&mut ServerConn) -> R) -> Option<R> {
        Some(f(self.core.borrow_mut().protocol.as_mut()?.server_auth()?))
    }

    /// On a connection to a monitor: the state of our authentication, for
    /// [`auth::CephxClient::mauth_request`].
    pub fn with_client_auth<R>(&self, f: impl FnOnce(&mut auth::ClientConn) -> R) -> Option<R> {
        Some(f(self.core.borrow_mut().protocol.as_mut()?.client_auth()?))
    }

    /// When the last keepalive of the peer arrived, on our clock.
    pub fn last_keepalive(&self) -> Option<Utime> {
        self.core.borrow().protocol.as_ref()?.last_keepalive()
    }

    /// When we sent the last keepalive that the peer has answered.
    pub fn last_keepalive_ack(&self) -> Option<Utime> {
        self.core.borrow().protocol.as_ref()?.last_keepalive_ack()
    }

    /// Stores the user's state of this connection (Ceph: `set_priv`).
    pub fn set_user(&self, user: Rc<dyn Any>) {
        self.user.replace(Some(user));
    }

    /// The user's state of this connection, if there is one of type `T`.
    pub fn user<T: Any>(&self) -> Option<Rc<T>> {
        self.user.borrow().clone()?.downcast().ok()
    }

    /// Drops the user's state; for states that hold the connection in turn.
    pub fn clear_user(&self) {
        self.user.take();
    }

    /// Bytes queued and not yet taken by the socket (or, lossless, not acknowledged).
    pub fn queued_bytes(&self) -> usize {
        let mut core = self.core.borrow_mut();
        core.session.queued_bytes() + core.protocol.as_mut().map_or(0, |p| p.out().len())
    }

    /// Distinguishes connections of one messenger; never reused.
    pub fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn existing(&self) -> Existing {
        let core = self.core.borrow();
        Existing {
            lossy: core.policy.lossy,
            server: core.policy.server,
            client_cookie: core.session.client_cookie,
            server_cookie: core.session.server_cookie,
            peer_global_seq: core.session.peer_global_seq,
            connect_seq: core.session.connect_seq,
            settled: matches!(core.phase, Phase::Ready | Phase::Standby),
        }
    }

    /// Takes over what the protocol learnt about the peer.
    pub(super) fn learn_peer(&self) {
        let mut core = self.core.borrow_mut();
        let core = &mut *core;
        let Some(p) = &core.protocol else { return };
        core.policy = Policy { lossy: p.policy().lossy || core.close_when_sent, ..p.policy() };
        core.peer = p.peer_name();
        core.peer_addrs.clone_from(p.peer_addrs());
        core.features = p.features();
        core.con_mode = p.con_mode();
        core.who = p.authenticated().cloned();
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.core.try_borrow() {
            Ok(core) => write!(
                f,
                "Connection({} {} {} {:?})",
                self.id, core.peer, core.peer_addrs, core.phase
            ),
            Err(_) => write!(f, "Connection({})", self.id),
        }
    }
}
