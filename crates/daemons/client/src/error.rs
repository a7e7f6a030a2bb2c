//! Why a request to the cluster failed.

use messages::MessageError;
use types::Errno;

/// Codes below `-MAX_ERRNO` say at which byte a comparison found a difference (Ceph: `MAX_ERRNO`).
const MAX_ERRNO: i32 = 4095;

/// Result of a request to the cluster.
pub type Result<T> = std::result::Result<T, ClientError>;

/// Why a request to the cluster failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// The cluster answered with an error.
    #[error("{0}")]
    Errno(Errno),
    /// A comparison of data found a difference.
    #[error("the data differs {0} bytes into the compared range")]
    Differs(u64),
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
            ClientError::Differs(_) => Errno::EILSEQ,
            ClientError::Timeout(_) => Errno::ETIMEDOUT,
            ClientError::Shutdown => Errno::ESHUTDOWN,
            ClientError::NoPool => Errno::ENOENT,
            ClientError::NoDaemon => Errno::ENXIO,
            ClientError::NoMonitors => Errno::ENOENT,
            ClientError::Invalid(_) => Errno::EINVAL,
            ClientError::Peer(_) | ClientError::Value(_) => Errno::EIO,
        }
    }

    /// Whether the cluster has shut this client out: it is on the blocklist, and must not assume
    /// anything of what it holds (locks, leases, watches).
    pub fn is_blocklisted(&self) -> bool {
        *self == ClientError::Errno(Errno::ESHUTDOWN)
    }

    /// The error for a negative result code; `None` if the code is not negative.
    pub(crate) fn from_code(code: i32) -> Option<Self> {
        let error = code.saturating_neg();
        match error.checked_sub(MAX_ERRNO) {
            _ if code >= 0 => None,
            Some(at) if at >= 0 => Some(ClientError::Differs(at.unsigned_abs().into())),
            _ => Some(ClientError::Errno(Errno(error))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_errors_or_places() {
        assert_eq!(ClientError::from_code(0), None);
        assert_eq!(ClientError::from_code(7), None);
        assert_eq!(ClientError::from_code(-2), Some(ClientError::Errno(Errno::ENOENT)));
        assert_eq!(ClientError::from_code(-4095), Some(ClientError::Differs(0)));
        assert_eq!(ClientError::from_code(-4100), Some(ClientError::Differs(5)));
        assert!(matches!(ClientError::from_code(i32::MIN), Some(ClientError::Differs(_))));
        assert!(ClientError::Errno(Errno::ESHUTDOWN).is_blocklisted());
        assert!(!ClientError::Shutdown.is_blocklisted());
    }
}
