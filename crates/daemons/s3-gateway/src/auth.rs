//! Which user sends a request.

use crate::fail::{Fail, Result};
use http::HeaderMap;
use s3::sig::v4::{ChunkChain, Payload};
use s3::sig::{Claim, Parts};
use s3::uri::Query;
use s3::{ErrorCode, S3Error};
use s3_layout::Layout;
use s3_layout::api::User;
use s3_rules::canned::Account;
use std::rc::Rc;

/// The sender of a request.
#[derive(Default)]
pub(crate) struct Sender {
    /// `None`: without a key.
    pub user: Option<Rc<User>>,
    /// What the signature says of the body; `None` for forms and preflights.
    pub payload: Option<Payload>,
    /// Where signatures of chunks begin.
    pub chain: Option<ChunkChain>,
    /// `REST-HEADER`, `REST-QUERY-STRING`, `POST`, as conditions of policies ask.
    pub auth_type: Option<&'static str>,
}

/// The id of senders without a key, as objects that they write have it.
const ANONYMOUS: &str = "anonymous";

impl Sender {
    /// As an owner.
    pub fn account(&self) -> Account {
        match &self.user {
            Some(u) => Account { id: u.id.to_string(), name: u.display_name.clone() },
            None => Account { id: ANONYMOUS.to_owned(), name: String::new() },
        }
    }

    /// Whether the user may do everything.
    pub fn is_admin(&self) -> bool {
        self.user.as_ref().is_some_and(|u| u.admin || u.system)
    }

    /// The user, which must have a key.
    pub fn known(&self) -> Result<&Rc<User>> {
        self.user.as_ref().ok_or_else(|| ErrorCode::AccessDenied.into())
    }
}

/// The user of an access key, and the secret.
pub(crate) async fn user_of_key<L: Layout>(
    layout: &L,
    access_key: &str,
) -> Result<(Rc<User>, String)> {
    let unknown = || {
        let e = S3Error::from(ErrorCode::InvalidAccessKeyId);
        Fail::from(e.with("AWSAccessKeyId", access_key))
    };
    let user = match layout.user_of_key(access_key).await {
        Ok(user) => user,
        Err(e) if e.code() == ErrorCode::InvalidAccessKeyId => return Err(unknown()),
        Err(e) => return Err(e.into()),
    };
    let secret = user.keys.iter().find(|k| k.id == access_key).map(|k| k.secret.clone());
    let secret = secret.ok_or_else(unknown)?;
    if user.suspended {
        return Err(ErrorCode::UserSuspended.into());
    }
    Ok((user, secret))
}

/// The form of a body that no signature of version 4 covers.
fn unsigned_payload(headers: &HeaderMap) -> Result<Payload> {
    match headers.get("x-amz-content-sha256").and_then(|v| v.to_str().ok()) {
        None => Ok(Payload::Unsigned),
        Some(text) => Ok(Payload::parse(text)?),
    }
}

/// Verifies the signature of a request.
pub(crate) async fn authenticate<L: Layout>(
    layout: &L,
    parts: &Parts<'_>,
    query: &Query,
    host_bucket: Option<&str>,
    now: u64,
    allow_v2: bool,
) -> Result<Sender> {
    let claim = s3::sig::claim(parts, query, now, allow_v2)?;
    match claim {
        Claim::Anonymous => {
            Ok(Sender { payload: Some(unsigned_payload(parts.headers)?), ..Sender::default() })
        }
        Claim::V4(claim) => {
            if claim.token.is_some() {
                return Err(ErrorCode::InvalidToken.into());
            }
            let (user, secret) = user_of_key(layout, &claim.access_key).await?;
            let verified = claim.verify(parts, query, &secret)?;
            let auth_type = if claim.presigned { "REST-QUERY-STRING" } else { "REST-HEADER" };
            Ok(Sender {
                user: Some(user),
                payload: Some(claim.payload),
                chain: Some(verified.chain()),
                auth_type: Some(auth_type),
            })
        }
        Claim::V2(claim) => {
            let (user, secret) = user_of_key(layout, &claim.access_key).await?;
            claim.verify(parts, query, host_bucket, &secret)?;
            Ok(Sender {
                user: Some(user),
                payload: Some(unsigned_payload(parts.headers)?),
                chain: None,
                auth_type: Some("REST-HEADER"),
            })
        }
    }
}
