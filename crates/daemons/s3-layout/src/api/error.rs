//! Why a call failed.

use s3::{ErrorCode, S3Error};

/// Result of a call.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call failed. [`S3Error`] is made of it for the client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The request is refused for a reason that the client is told.
    #[error("{0}")]
    Refused(#[from] S3Error),
    /// The object's current version, or the version that was asked for, is a delete marker.
    #[error("the version is a delete marker")]
    DeleteMarker {
        /// The marker's version.
        version: String,
        /// The request named it.
        named: bool,
    },
    /// The cluster did not answer in time, or is full. Another attempt may succeed.
    #[error("the cluster does not serve the request now: {0}")]
    Unavailable(String),
    /// The state of the cluster is not as expected. The text is for the log.
    #[error("{0}")]
    Internal(String),
}

impl Error {
    /// The code for the client.
    pub fn code(&self) -> ErrorCode {
        match self {
            Error::Refused(e) => e.code,
            Error::DeleteMarker { named: false, .. } => ErrorCode::NoSuchKey,
            Error::DeleteMarker { named: true, .. } => ErrorCode::MethodNotAllowed,
            Error::Unavailable(_) => ErrorCode::ServiceUnavailable,
            Error::Internal(_) => ErrorCode::InternalError,
        }
    }
}

impl From<ErrorCode> for Error {
    fn from(code: ErrorCode) -> Self {
        Error::Refused(code.into())
    }
}

impl From<Error> for S3Error {
    fn from(e: Error) -> S3Error {
        match e {
            Error::Refused(e) => e,
            // The cluster's troubles are for the log, not for clients.
            other => other.code().into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_do_not_see_the_cluster() {
        let e = S3Error::from(Error::Internal("osd.3 has no such class".into()));
        assert_eq!(e.code, ErrorCode::InternalError);
        assert!(!e.message.contains("osd"));
        let marker = |named| Error::DeleteMarker { version: "v".into(), named };
        assert_eq!(S3Error::from(marker(false)).status().as_u16(), 404);
        assert_eq!(S3Error::from(marker(true)).status().as_u16(), 405);
    }
}
