//! Sockets on a single-threaded runtime. Nothing here is `Send`: a messenger, its connections and its
//! dispatcher live on the thread whose `LocalSet` runs them.

use crate::{Limits, Message, PolicySet};
use auth::{AuthCaps, AuthName, ClientAuth, ConMode, ServerAuth, ServerConn};
use denc::Features;
use std::any::Any;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::rc::Rc;
use types::{EntityAddr, EntityAddrVec, EntityName, EntityType, Utime};

/// Who receives what arrives. Called on the messenger's thread, one call at a time; a call may use any
/// connection, including the one that it is about.
pub trait Dispatcher {
    /// A peer has authenticated and wants a session. False closes the connection.
    fn on_accept(&self, _conn: &Rc<Connection>) -> bool {
        true
    }
    /// A connection that we opened is established, for the first time or again.
    fn on_connect(&self, _conn: &Rc<Connection>) {}
    /// A message. Dropping `guard` releases its bytes to the connection's receive throttle.
    fn on_message(&self, conn: &Rc<Connection>, message: Message, guard: ReceiveGuard);
    /// The connection is gone for good: the peer closed it, it failed (lossy), or could not be
    /// established. Not called after our own [`Connection::mark_down`].
    fn on_reset(&self, _conn: &Rc<Connection>) {}
    /// The peer of a lossless connection lost its session; so did we. What was queued is lost, the
    /// connection goes on.
    fn on_remote_reset(&self, _conn: &Rc<Connection>) {}
}

/// What a messenger needs to know.
pub struct MessengerConfig {
    /// Who we are. A client's number is not known before it has a session with a monitor;
    /// [`Messenger::set_name`] corrects it.
    pub name: EntityName,
    /// Tells this process from earlier ones at the same address. Part of every address of ours.
    pub nonce: u32,
    /// Behaviour by kind of peer.
    pub policies: PolicySet,
    /// Bounds.
    pub limits: Limits,
    /// Authenticates those who connect to us; `None` refuses everybody.
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
pub struct Messenger {}

impl Messenger {
    /// A messenger that does not listen yet. Must be called, like everything here, within a `LocalSet`.
    pub fn new(_config: MessengerConfig, _dispatcher: Rc<dyn Dispatcher>) -> Rc<Self> {
        unimplemented!()
    }

    /// Listens on the first free port of the range (a range of one for a fixed port; 0 lets the system
    /// choose) and starts to accept. The address becomes ours, with our nonce.
    pub fn bind(
        self: &Rc<Self>,
        _ip: std::net::IpAddr,
        _ports: RangeInclusive<u16>,
    ) -> Result<EntityAddr, BindError> {
        unimplemented!()
    }

    /// Replaces the addresses that we tell peers, where they differ from where we listen.
    pub fn set_addrs(&self, _addrs: EntityAddrVec) {
        unimplemented!()
    }

    /// Our addresses; blank until bound or learnt from a peer.
    pub fn addrs(&self) -> EntityAddrVec {
        unimplemented!()
    }

    /// Changes who we are, for connections opened from now on.
    pub fn set_name(&self, _name: EntityName) {
        unimplemented!()
    }

    /// The connection to a peer: an existing one if it is registered (lossless policies), else a new
    /// one. Returns at once; messages may be queued immediately.
    pub fn connect(self: &Rc<Self>, _peer: EntityType, _addrs: EntityAddrVec) -> Rc<Connection> {
        unimplemented!()
    }

    /// All connections that are not down.
    pub fn connections(&self) -> Vec<Rc<Connection>> {
        unimplemented!()
    }

    /// Closes everything, without callbacks.
    pub fn shutdown(&self) {
        unimplemented!()
    }
}

/// A connection with a peer. It survives its socket if its policy is lossless.
pub struct Connection {}

impl Connection {
    /// Queues a message. Never blocks; all messages queued before the next turn of the event loop leave
    /// in as few system calls as possible. Does nothing on a connection that is down.
    pub fn send(&self, _message: Message) {
        unimplemented!()
    }

    /// Sends a keepalive; the answer shows in [`Self::last_keepalive_ack`].
    pub fn send_keepalive(&self) {
        unimplemented!()
    }

    /// Closes the connection. No callback will be made for it any more.
    pub fn mark_down(&self) {
        unimplemented!()
    }

    /// Makes the connection lossy and closes it once what is queued has been sent.
    pub fn mark_disposable(&self) {
        unimplemented!()
    }

    /// Whether messages can flow right now.
    pub fn is_connected(&self) -> bool {
        unimplemented!()
    }

    /// Whether the connection is closed for good.
    pub fn is_down(&self) -> bool {
        unimplemented!()
    }

    /// Whether the peer opened it.
    pub fn is_incoming(&self) -> bool {
        unimplemented!()
    }

    /// The peer's type.
    pub fn peer_type(&self) -> EntityType {
        unimplemented!()
    }

    /// The peer's type and number (for clients, the global id).
    pub fn peer_name(&self) -> EntityName {
        unimplemented!()
    }

    /// The addresses that the peer says it has.
    pub fn peer_addrs(&self) -> EntityAddrVec {
        unimplemented!()
    }

    /// Where the socket's other end is; `None` while there is no socket.
    pub fn peer_socket_addr(&self) -> Option<SocketAddr> {
        unimplemented!()
    }

    /// Features that both ends have. Payloads are encoded for them.
    pub fn features(&self) -> Features {
        unimplemented!()
    }

    /// On an accepted connection: the name that the peer authenticated with.
    pub fn auth_name(&self) -> Option<AuthName> {
        unimplemented!()
    }

    /// On an accepted connection: what the peer may do here.
    pub fn auth_caps(&self) -> AuthCaps {
        unimplemented!()
    }

    /// On an accepted connection: the peer's instance number.
    pub fn global_id(&self) -> u64 {
        unimplemented!()
    }

    /// How frames are protected.
    pub fn con_mode(&self) -> ConMode {
        unimplemented!()
    }

    /// On a monitor: the state of the peer's authentication, for [`auth::MonAuth::handle_mauth`].
    pub fn with_server_auth<R>(&self, _f: impl FnOnce(&mut ServerConn) -> R) -> Option<R> {
        None
    }

    /// On a connection to a monitor: the state of our authentication, for
    /// [`auth::CephxClient::mauth_request`].
    pub fn with_client_auth<R>(&self, _f: impl FnOnce(&mut auth::ClientConn) -> R) -> Option<R> {
        None
    }

    /// When the last keepalive of the peer arrived, on our clock.
    pub fn last_keepalive(&self) -> Option<Utime> {
        unimplemented!()
    }

    /// When we sent the last keepalive that the peer has answered.
    pub fn last_keepalive_ack(&self) -> Option<Utime> {
        unimplemented!()
    }

    /// Stores the user's state of this connection (Ceph: `set_priv`).
    pub fn set_user(&self, _user: Rc<dyn Any>) {
        unimplemented!()
    }

    /// The user's state of this connection, if there is one of type `T`.
    pub fn user<T: Any>(&self) -> Option<Rc<T>> {
        unimplemented!()
    }

    /// Bytes queued and not yet taken by the socket.
    pub fn queued_bytes(&self) -> usize {
        unimplemented!()
    }

    /// Distinguishes connections of one messenger; never reused.
    pub fn id(&self) -> u64 {
        unimplemented!()
    }
}

/// Holds a received message's bytes against its connection's receive throttle until it is dropped.
#[derive(Debug, Default)]
pub struct ReceiveGuard {}
