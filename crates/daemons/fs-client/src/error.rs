//! Why something in a file system was not done.

use client::ClientError;
use types::Errno;

/// Result of a call.
pub type Result<T> = std::result::Result<T, FsError>;

/// Why something in a file system was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FsError {
    /// The metadata server's answer.
    #[error("{}", .0.describe())]
    Errno(Errno),
    /// No metadata server serves the file system.
    #[error("file system '{0}' has no active metadata server: start one, or see `ceph fs status`")]
    NoServer(String),
    /// The metadata server did not answer in time.
    #[error("the metadata server did not answer {0} in time; it may still be carried out")]
    Timeout(&'static str),
    /// The session ended under a change.
    #[error("the session with the metadata server ended; {0} may have been carried out")]
    Lost(&'static str),
    /// The metadata server gives no session.
    #[error("the metadata server refuses the session: {0}")]
    Refused(String),
    /// A capability did not come.
    #[error("the metadata server did not allow access to the file's data in time")]
    NoAccess,
    /// The file is larger than the caller takes.
    #[error("the file has {found} bytes, and at most {most} are taken")]
    TooLarge {
        /// Its size.
        found: u64,
        /// What is taken.
        most: u64,
    },
    /// The mount has been closed.
    #[error("the client of the file system is closed")]
    Closed,
    /// Objects, pools or maps.
    #[error(transparent)]
    Cluster(#[from] ClientError),
}

impl FsError {
    /// The errno for it, positive.
    pub fn errno(&self) -> Errno {
        match self {
            FsError::Errno(e) => *e,
            FsError::NoServer(_) => Errno::EHOSTUNREACH,
            FsError::Timeout(_) | FsError::NoAccess => Errno::ETIMEDOUT,
            FsError::Lost(_) => Errno::EIO,
            FsError::Refused(_) => Errno::EACCES,
            FsError::TooLarge { .. } => Errno::EFBIG,
            FsError::Closed => Errno::ESHUTDOWN,
            FsError::Cluster(e) => e.errno(),
        }
    }

    /// Whether it is the server's answer with this errno.
    pub fn is(&self, errno: Errno) -> bool {
        *self == FsError::Errno(errno)
    }
}
