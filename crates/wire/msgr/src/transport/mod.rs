//! Sockets on a single-threaded runtime. Nothing here is `Send`: a messenger, its connections and
//! its dispatcher live on the thread whose `LocalSet` runs them.
//!
//! One task serves one socket. It reads, lets [`Protocol`](crate::protocol::Protocol) make events
//! of the bytes, hands messages to the [`Dispatcher`], and writes whatever was queued meanwhile
//! with as few system calls as possible; then it sleeps until the socket or another task wakes it.
//! A [`Connection`] is what users hold; with a lossless policy it may see several sockets in its
//! life.

mod clock;
mod connection;
mod messenger;
mod socket;
mod throttle;

pub use connection::{Connection, Dispatcher};
pub use messenger::{BindError, Messenger, MessengerConfig};
pub use throttle::ReceiveGuard;
