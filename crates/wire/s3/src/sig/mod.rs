//! Whether the sender of a request holds the secret of the key that it names.
//!
//! [`claim`] reads what a request says of itself; the caller looks the secret up; `verify` compares
//! signatures in constant time. Signing for clients stands beside verifying.

pub mod v2;
pub mod v4;

use crate::error::{ErrorCode, Result, S3Error};
use crate::uri::Query;
use http::HeaderMap;

/// What signatures cover of a request.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a> {
    /// The method in capitals.
    pub method: &'a str,
    /// The path of the target as sent, percent-encoded.
    pub path: &'a str,
    /// The query of the target as sent, without `?`.
    pub query: &'a str,
    /// The headers. `host` is among them (an HTTP/2 shell puts the authority there).
    pub headers: &'a HeaderMap,
}

/// Which key a request claims to be signed with.
#[derive(Clone, Debug)]
pub enum Claim {
    /// No signature at all.
    Anonymous,
    /// Signature version 4, in a header or in the query.
    V4(v4::Claim),
    /// Signature version 2.
    V2(v2::Claim),
}

impl Claim {
    /// The access key, if the request names one.
    pub fn access_key(&self) -> Option<&str> {
        match self {
            Claim::Anonymous => None,
            Claim::V4(c) => Some(&c.access_key),
            Claim::V2(c) => Some(&c.access_key),
        }
    }
}

/// How long a signed time may be away from the server's, in seconds.
pub const SKEW_SECONDS_MAX: u64 = 900;

/// Reads the claim of a request that arrives at `now` (seconds). Version 2 is refused unless
/// `allow_v2`.
pub fn claim(parts: &Parts<'_>, query: &Query, now: u64, allow_v2: bool) -> Result<Claim> {
    let header = match parts.headers.get("authorization") {
        None => None,
        Some(v) => Some(v.to_str().map_err(|_| {
            S3Error::new(
                ErrorCode::AuthorizationHeaderMalformed,
                "The authorization header is not ASCII",
            )
        })?),
    };
    let v2_refused = || {
        S3Error::new(
            ErrorCode::InvalidRequest,
            "The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256.",
        )
    };
    let presigned_v4 = query.has("X-Amz-Algorithm") || query.has("X-Amz-Signature");
    let presigned_v2 = query.has("AWSAccessKeyId") && query.has("Signature");
    match header {
        Some(_) if presigned_v4 || presigned_v2 => Err(S3Error::argument(
            "Authorization",
            "",
            "Only one auth mechanism allowed; only the X-Amz-Algorithm query parameter, Signature query string parameter or the Authorization header should be specified",
        )),
        Some(text) if text.starts_with("AWS4-HMAC-SHA256") => {
            v4::Claim::of_header(parts, text, now).map(Claim::V4)
        }
        Some(text) if text.starts_with("AWS ") && allow_v2 => {
            v2::Claim::of_header(parts, text, now).map(Claim::V2)
        }
        Some(text) if text.starts_with("AWS ") => Err(v2_refused()),
        Some(text) => Err(S3Error::argument(
            "Authorization",
            text.chars().take(64).collect::<String>(),
            "Unsupported Authorization Type: AWS4-HMAC-SHA256 was expected",
        )),
        None if presigned_v4 => v4::Claim::of_query(parts, query, now).map(Claim::V4),
        None if presigned_v2 && allow_v2 => v2::Claim::of_query(query, now).map(Claim::V2),
        None if presigned_v2 => Err(v2_refused()),
        None => Ok(Claim::Anonymous),
    }
}
