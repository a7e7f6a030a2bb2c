//! The admin operations API behind a gateway: its requests come with S3's signatures, and what
//! they ask for is answered by an [`Administration`].

use crate::administration::{AdminRequest, Administration};
use crate::answer::{Answer, Outgoing, set};
use crate::auth::authenticate;
use crate::body::{Frames, Unread, document};
use crate::fail::{Fail, Result};
use crate::gateway::{Gateway, seconds, with_host};
use http::{HeaderValue, StatusCode};
use s3::body::{Body, Declared};
use s3::sig::Parts;
use s3::sig::v4::Payload;
use s3::uri::Query;
use s3::{ErrorCode, S3Error};
use s3_layout::Layout;

/// The longest body of a request.
const BODY_BYTES_MAX: usize = 64 << 10;
/// What an answer is counted with, in bytes: a list of users or buckets.
const ANSWER_BYTES: u64 = 1 << 20;

/// What comes after the entry in a path, if the path is below it.
pub(crate) fn below<'a>(entry: &str, path: &'a str) -> Option<&'a str> {
    let rest = path.strip_prefix('/')?.strip_prefix(entry.trim_matches('/'))?;
    let is_below = !entry.is_empty() && (rest.is_empty() || rest.starts_with('/'));
    is_below.then_some(rest)
}

impl<L: Layout> Gateway<L> {
    /// Answers a request below the entry of the API.
    pub(crate) async fn administer(
        &self,
        api: &dyn Administration,
        head: http::request::Parts,
        resource: &str,
        incoming: Unread,
        id: &str,
    ) -> Answer<L::Reader> {
        let headers = with_host(head.headers, &head.uri);
        let parts = Parts {
            method: head.method.as_str(),
            path: head.uri.path(),
            query: head.uri.query().unwrap_or_default(),
            headers: &headers,
        };
        let answered = self.ask(api, &parts, resource, incoming, id).await;
        answered.unwrap_or_else(|fail| {
            let status = StatusCode::from_u16(fail.error.code.status());
            let mut answer = Answer::empty(status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR));
            set(&mut answer.headers, "content-type", "application/json");
            let code = fail.error.code.as_str();
            let text =
                format!("{{\"Code\":\"{code}\",\"RequestId\":\"{id}\",\"HostId\":\"{id}\"}}");
            answer.body = Outgoing::full(text);
            answer
        })
    }

    async fn ask(
        &self,
        api: &dyn Administration,
        parts: &Parts<'_>,
        resource: &str,
        incoming: Unread,
        id: &str,
    ) -> Result<Answer<L::Reader>> {
        let query = Query::parse(parts.query)?;
        let allow_v2 = self.options.allow_v2;
        let sender = authenticate(&self.layout, parts, &query, None, seconds(), allow_v2).await?;
        let user = sender.known()?.clone();
        let held = self.gate.enter(&format!("${}", user.id), ANSWER_BYTES).await?;
        let payload = sender.payload.unwrap_or(Payload::Unsigned);
        let body = match Declared::of(parts.headers, payload) {
            Err(e) if e.code == ErrorCode::MissingContentLength => bytes::Bytes::new(),
            Err(e) => return Err(e.into()),
            Ok(declared) if declared.bytes.is_some_and(|n| n > BODY_BYTES_MAX as u64) => {
                return Err(Fail::from(S3Error::from(ErrorCode::EntityTooLarge)));
            }
            Ok(declared) => {
                let frames = Frames::new(incoming, &self.options.limits);
                let body = Body::new(declared, sender.chain, None)?;
                document(frames, body, BODY_BYTES_MAX).await?
            }
        };
        let method = parts.method;
        let request =
            AdminRequest { method, resource, query: &query, user: &user, body: &body, id };
        let given = api.answer(request).await;
        let status = StatusCode::from_u16(given.status);
        let mut answer = Answer::empty(status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR));
        if !given.body.is_empty() {
            answer.headers.insert("content-type", HeaderValue::from_static("application/json"));
            answer.body = Outgoing::full(given.body);
        }
        answer.body.hold(held);
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_below_the_entry_is_the_apis() {
        assert_eq!(below("admin", "/admin/user"), Some("/user"));
        assert_eq!(below("/a/b/", "/a/b"), Some(""));
        for (entry, path) in
            [("admin", "/administrators/x"), ("", "/x"), ("admin", "/b/admin/user")]
        {
            assert_eq!(below(entry, path), None, "{path}");
        }
    }
}
