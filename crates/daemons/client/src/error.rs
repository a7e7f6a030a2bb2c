//! Why a request to the cluster failed.

use messages::MessageError;
use types::Errno;

/// Result of a request to the cluster.
pub type Result<T> = std::result::Result<T, ClientError>;

/// Why a request to the cluster failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// The cluster answered with an error.
    #[error("{0}")]
    Errno(Errno),
    /// There was no answer in time. Whether the request was carried out is not known.
    #[error("timed out while {0}")]
    Timeout(&'static str),
    /// The client was shut down.
    #[error("the client was shut down")]
    Shutdown,
    /// There is no pool of this name or number.
    #[error("no such pool")]
    NoPool,
    /// There is no such daemon, or it is down.
    #[error("no such daemon, or it is down")]
    NoDaemon,
    /// No address of a monitor is known.
    #[error("no address of a monitor is known")]
    NoMonitors,
    /// The request cannot be sent as it is.
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// The peer sent what we cannot read.
    #[error("the peer sent bytes that make no sense")]
    Peer(#[source] MessageError),
    /// The peer sent a value that we cannot read.
    #[error("the peer sent a value that makes no sense")]
    Value(#[from] denc::DecodeError),
}

impl ClientError {
    /// The errno that stands for this error, positive.
    pub fn errno(&self) -> Errno {
        match self {
            ClientError::Errno(e) => *e,
            ClientError::Timeout(_) => Errno::ETIMEDOUT,
            ClientError::Shutdown => Errno::ESHUTDOWN,
            ClientError::NoPool => Errno::ENOENT,
            ClientError::NoDaemon => Errno::ENXIO,
            ClientError::NoMonitors => Errno::ENOENT,
            ClientError::Invalid(_) => Errno::EINVAL,
            ClientError::Peer(_) | ClientError::Value(_) => Errno::EIO,
        }
    }

    /// The error for a negative result code; `None` if the code is not negative.
    pub(crate) fn from_code(code: i32) -> Option<Self> {
        (code < 0).then(|| ClientError::Errno(Errno(code.saturating_neg())))
    }
}
