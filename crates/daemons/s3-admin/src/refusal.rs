//! Why a request is refused: code and status as Ceph's gateway gives them (16.2
//! `src/rgw/rgw_common.cc`, `rgw_http_s3_errors`).

use s3::{ErrorCode, S3Error};

/// A refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub status: u16,
    pub code: &'static str,
    pub message: String,
}

/// What a request comes to.
pub(crate) type Result<T> = std::result::Result<T, Refusal>;

macro_rules! refusals {
    ($($name:ident = $status:literal, $code:literal;)*) => {
        impl Refusal {
            $(pub const $name: Refusal =
                Refusal { status: $status, code: $code, message: String::new() };)*
        }
    };
}

refusals! {
    ARGUMENT = 400, "InvalidArgument";
    CAPABILITY = 400, "InvalidCapability";
    SECRET_KEY = 400, "InvalidSecretKey";
    TENANT_NAME = 400, "InvalidTenantName";
    DENIED = 403, "AccessDenied";
    ACCESS_KEY = 403, "InvalidAccessKeyId";
    NO_KEY = 404, "NoSuchKey";
    NO_BUCKET = 404, "NoSuchBucket";
    NO_SUBUSER = 404, "NoSuchSubUser";
    NO_USER = 404, "NoSuchUser";
    METHOD = 405, "MethodNotAllowed";
    EXISTS = 409, "BucketAlreadyExists";
    USER_EXISTS = 409, "UserAlreadyExists";
    EMAIL_EXISTS = 409, "EmailExists";
    KEY_EXISTS = 409, "KeyExists";
    CONFLICT = 409, "OperationAborted";
    RANGE = 416, "InvalidRange";
    NOT_IMPLEMENTED = 501, "NotImplemented";
}

impl Refusal {
    /// The same with a message.
    pub fn because(self, message: impl Into<String>) -> Refusal {
        Refusal { message: message.into(), ..self }
    }

    /// A bucket that is not there is `NoSuchKey` in most of these requests.
    pub fn into_key(self) -> Refusal {
        if self.code == Refusal::NO_BUCKET.code { Refusal::NO_KEY } else { self }
    }
}

impl From<s3_layout::Error> for Refusal {
    fn from(e: s3_layout::Error) -> Refusal {
        match e.code() {
            ErrorCode::InternalError | ErrorCode::ServiceUnavailable => {
                tracing::warn!("admin: {e}")
            }
            _ => {}
        }
        let e: S3Error = e.into();
        Refusal { status: e.code.status(), code: e.code.as_str(), message: String::new() }
    }
}
