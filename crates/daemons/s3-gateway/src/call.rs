//! One request with all that handlers need of it.

use crate::answer::Answer;
use crate::auth::Sender;
use crate::body::{Frames, Inbound, Unread, document};
use crate::fail::{Fail, Result};
use crate::gateway::Gateway;
use crate::limits::{PUT_BYTES_MAX, too_large};
use bytes::Bytes;
use http::HeaderMap;
use s3::body::{Body, Declared};
use s3::checksum::Algorithm;
use s3::sig::v4::Payload;
use s3::uri::Query;
use s3::{ErrorCode, Route, S3Error};
use s3_layout::Layout;
use s3_layout::api::BucketName;
use std::net::IpAddr;
use std::rc::Rc;

/// What a handler returns.
pub(crate) type Handled<L> = Result<Answer<<L as Layout>::Reader>>;

/// A request with a sender that is known.
pub(crate) struct Call<L: Layout> {
    pub gateway: Rc<Gateway<L>>,
    pub method: String,
    pub headers: HeaderMap,
    pub query: Query,
    pub route: Route,
    pub peer: IpAddr,
    pub sender: Sender,
    /// The bucket, for operations on one that is there.
    pub bucket: Option<L::Bucket>,
    /// Seconds since 1970.
    pub now: u64,
    pub incoming: Option<Unread>,
}

impl<L: Layout> Call<L> {
    pub fn layout(&self) -> &L {
        &self.gateway.layout
    }

    /// The text of a header. One that is not text counts as not there.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|v| std::str::from_utf8(v.as_bytes()).ok())
    }

    pub fn is_head(&self) -> bool {
        self.method == "HEAD"
    }

    /// The bucket of the request.
    pub fn bucket(&self) -> Result<L::Bucket> {
        self.bucket.clone().ok_or_else(|| ErrorCode::NoSuchBucket.into())
    }

    /// The version that the request names.
    pub fn version(&self) -> Result<Option<String>> {
        match self.query.get("versionId") {
            Some("") => {
                Err(S3Error::argument("versionId", "", "Version id cannot be the empty string")
                    .into())
            }
            other => Ok(other.map(str::to_owned)),
        }
    }

    /// The full name of a bucket that the request names: in the sender's tenant, unless it names
    /// another.
    pub fn bucket_name(&self, tenant: Option<&str>, name: &str) -> BucketName {
        let of_sender = || self.sender.user.as_ref().map(|u| u.id.tenant.clone());
        let tenant = tenant.map(str::to_owned).or_else(of_sender).unwrap_or_default();
        BucketName { tenant, name: name.to_owned() }
    }

    fn frames(&mut self) -> Result<Frames> {
        let incoming = self.incoming.take().ok_or_else(|| {
            Fail::new(ErrorCode::InternalError, "the body was read twice by the gateway")
        })?;
        Ok(Frames::new(incoming, &self.gateway.options.limits))
    }

    /// The frames of a form.
    pub fn form(&mut self) -> Result<Frames> {
        self.frames()
    }

    fn payload(&self) -> Payload {
        self.sender.payload.clone().unwrap_or(Payload::Unsigned)
    }

    /// What the headers say of the body of an object or a part.
    pub fn declared(&self) -> Result<Declared> {
        let declared = Declared::of(&self.headers, self.payload())?;
        match declared.bytes {
            Some(bytes) if bytes > PUT_BYTES_MAX => Err(too_large(bytes).into()),
            _ => Ok(declared),
        }
    }

    /// The body of an object or a part.
    pub fn inbound(&mut self, declared: Declared, compute: Option<Algorithm>) -> Result<Inbound> {
        let body = Body::new(declared, self.sender.chain.clone(), compute)?;
        Ok(Inbound::new(self.frames()?, body))
    }

    /// A document of at most `max` bytes. A request without a length has none.
    pub async fn document(&mut self, max: usize) -> Result<Bytes> {
        let declared = match Declared::of(&self.headers, self.payload()) {
            Err(e) if e.code == ErrorCode::MissingContentLength => return Ok(Bytes::new()),
            other => other?,
        };
        if declared.bytes.is_some_and(|n| n > max as u64) {
            return Err(Fail::new(
                ErrorCode::MaxMessageLengthExceeded,
                format!("a document of at most {max} bytes was expected"),
            ));
        }
        let body = Body::new(declared, self.sender.chain.clone(), None)?;
        document(self.frames()?, body, max).await
    }
}
