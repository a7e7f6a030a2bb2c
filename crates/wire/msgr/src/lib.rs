//! Messenger v2.1: a connection state machine without I/O, and a thin transport over it.
//!
//! * [`Message`]: what is moved. [`Policy`], [`Limits`]: how, and how much.
//! * [`frame`]: the wire form of frames. [`protocol`]: one connection as a state machine.
//! * [`transport`]: sockets on a single-threaded runtime. Start reading at [`Messenger`].

mod body_buf;
pub mod frame;
pub mod out;
pub mod policy;
pub mod protocol;
pub mod session;
pub mod transport;

pub use policy::{Limits, Policy, PolicySet};
pub use transport::{BindError, Connection, Dispatcher, Messenger, MessengerConfig, ReceiveGuard};
pub use types::message::{Message, priority};
