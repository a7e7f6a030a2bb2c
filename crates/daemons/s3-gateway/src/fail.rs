//! Refusals of requests.

use s3::{ErrorCode, S3Error};
use s3_layout::Error;

/// Why a request is refused, and headers of the answer beside the document.
#[derive(Debug)]
pub(crate) struct Fail {
    pub error: S3Error,
    pub headers: Vec<(&'static str, String)>,
}

/// What handlers return.
pub(crate) type Result<T> = std::result::Result<T, Fail>;

impl From<S3Error> for Fail {
    fn from(error: S3Error) -> Fail {
        Fail { error, headers: Vec::new() }
    }
}

impl From<ErrorCode> for Fail {
    fn from(code: ErrorCode) -> Fail {
        S3Error::from(code).into()
    }
}

impl From<Error> for Fail {
    fn from(e: Error) -> Fail {
        let mut headers = Vec::new();
        match &e {
            Error::Refused(_) => {}
            Error::DeleteMarker { version, named } => {
                headers.push(("x-amz-delete-marker", "true".to_owned()));
                headers.push(("x-amz-version-id", version.clone()));
                if *named {
                    headers.push(("allow", "DELETE".to_owned()));
                }
            }
            Error::Unavailable(_) | Error::Internal(_) => tracing::warn!("s3: {e}"),
        }
        Fail { error: e.into(), headers }
    }
}

impl Fail {
    /// A refusal with a message of its own.
    pub fn new(code: ErrorCode, message: impl Into<std::borrow::Cow<'static, str>>) -> Fail {
        S3Error::new(code, message).into()
    }
}
