//! Sockets on a single-threaded runtime. Nothing here is `Send`: a messenger, its connections and
//! its dispatcher live on the thread whose `LocalSet` runs them.
//!
//! One task serves one socket. It reads, lets [`Protocol`](crate::protocol::Protocol) make events
//! of the bytes, hands messages to the [`Dispatcher`], and writes whatever was queued meanwhile
//! with as few system calls as possible; then it sleeps until the socket or somebody else wakes it.
//! A [`Connection`] is what users hold; with a lossless policy it may see several sockets in its
//! life.

mod connection;
mod messenger;
mod socket;
mod throttle;

pub use connection::Connection;
pub use messenger::{BindError, Messenger, MessengerConfig};
pub use throttle::ReceiveGuard;

use crate::Message;
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};
use types::Utime;

/// Who receives what arrives. Called on the messenger's thread, one call at a time; a call may use
/// any connection, including the one that it is about.
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
    /// Nobody listens where a connection of ours wants to go. It keeps trying until it is marked
    /// down.
    fn on_refused(&self, _conn: &Rc<Connection>) {}
}

/// Wall clock time.
fn now() -> Utime {
    Utime::from_duration(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}
