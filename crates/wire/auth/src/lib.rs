//! cephx, keyrings and the capability grammar, without I/O.
//!
//! * [`CryptoKey`], [`Keyring`], [`KeyServer`]: the secrets by which entities prove their names.
//! * [`ticket`]: the wire structs of cephx; [`server`] and [`client`]: the two ends of the
//!   exchange.
//! * [`ServerAuth`], [`ClientAuth`]: what a messenger asks of them, payload in, payload out.
//! * [`caps`]: what an authenticated entity may do.
//!
//! Time and chance are arguments ([`Context`]); nothing here blocks, sleeps or opens a file.

#![forbid(unsafe_code)]

pub mod caps;
pub mod client;
mod exchange;
mod key;
mod key_server;
mod keyring;
pub(crate) mod name;
mod policy;
mod rotating;
pub mod server;
pub mod ticket;

pub use client::{CephxClient, ClientConn, MauthOutcome, MonPeerAuth};
pub use exchange::{
    AuthRequest, Authenticated, ClientAuth, ClientDone, Context, ServerAuth, ServerStep,
};
pub use key::{CryptoKey, KeyError, KeyKind, seal, unseal};
pub use key_server::{EntityAuth, KeyServer, KeyStore, Rotation, TicketTtl};
pub use keyring::{Keyring, KeyringError};
pub use name::AuthName;
pub use policy::{AuthMethod, AuthPolicy, ConMode};
pub use rotating::{ExpiringKey, RotatingKeyRing, RotatingSecrets};
pub use server::{CephxServer, MonAuth, ServerConn, ServiceAuth};
pub use ticket::AuthCaps;

/// Why an exchange ends without a session. The text is for the log; the peer learns only the errno.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// The peer did not prove what it claims, or claims what it may not have.
    #[error("access denied: {0}")]
    Denied(&'static str),
    /// The peer's bytes are not a request.
    #[error("malformed request: {0}")]
    Malformed(#[from] denc::DecodeError),
    /// A request that makes no sense at this point.
    #[error("unexpected request: {0}")]
    Unexpected(&'static str),
    /// The method or mode is not offered to this peer.
    #[error("authentication method or mode is not supported here")]
    Unsupported,
    /// The service cannot decide yet; the peer should come back later.
    #[error("not ready: {0}")]
    Busy(&'static str),
    /// The keys at hand do not allow an answer.
    #[error("{0}")]
    Key(#[from] KeyError),
    /// The server refused with this errno (positive).
    #[error("the server answered with error {0}")]
    Refused(i32),
}

impl AuthError {
    /// The errno that goes on the wire, negated by the frame that carries it.
    pub fn errno(&self) -> i32 {
        match self {
            AuthError::Denied(_) => 13,
            AuthError::Malformed(_) => 1,
            AuthError::Unexpected(_) => 22,
            AuthError::Unsupported => 95,
            AuthError::Busy(_) => 16,
            AuthError::Key(KeyError::UnsupportedKind(_)) => 95,
            AuthError::Key(_) => 13,
            AuthError::Refused(e) => *e,
        }
    }
}
