//! Answers: status, headers, and a body that is there or is read while it is sent.

use crate::limits::Held;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use hyper::body::{Body, Frame, SizeHint};
use s3_layout::{Error, Source};
use std::pin::Pin;
use std::task::{Context, Poll};

/// The answer to a request.
pub(crate) struct Answer<R> {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Outgoing<R>,
}

type Reading<R> = Pin<Box<dyn Future<Output = (R, s3_layout::Result<Option<Bytes>>)>>>;

/// The body of an answer.
pub(crate) struct Outgoing<R> {
    /// What is sent next.
    first: Bytes,
    rest: Rest<R>,
    /// How many bytes are to be sent in all.
    left: u64,
    /// What the request holds until its answer is gone.
    held: Held,
}

enum Rest<R> {
    Nothing,
    Idle(R),
    Reading(Reading<R>),
}

impl<R> Outgoing<R> {
    /// These bytes.
    pub fn full(bytes: impl Into<Bytes>) -> Outgoing<R> {
        let first = bytes.into();
        let left = first.len() as u64;
        Outgoing { first, rest: Rest::Nothing, left, held: Held::default() }
    }

    /// What a reader brings, after a piece that was read already: `length` bytes in all.
    pub fn stream(first: Bytes, reader: R, length: u64) -> Outgoing<R> {
        Outgoing { first, rest: Rest::Idle(reader), left: length, held: Held::default() }
    }

    /// Keeps a right until the body is gone.
    pub fn hold(&mut self, held: Held) {
        self.held.add(held);
    }

    /// How many bytes are to be sent.
    pub fn length(&self) -> u64 {
        self.left
    }
}

async fn read<R: Source>(mut reader: R) -> (R, s3_layout::Result<Option<Bytes>>) {
    let piece = reader.next().await;
    (reader, piece)
}

// Nothing in it is pinned in place.
impl<R> Unpin for Outgoing<R> {}

impl<R: Source + 'static> Body for Outgoing<R> {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let this = &mut *self;
        if this.left == 0 {
            return Poll::Ready(None);
        }
        if this.first.is_empty() {
            let mut reading = match std::mem::replace(&mut this.rest, Rest::Nothing) {
                Rest::Nothing => {
                    let short = Error::Internal("the data ended early".to_owned());
                    return Poll::Ready(Some(Err(short)));
                }
                Rest::Idle(reader) => Box::pin(read(reader)) as Reading<R>,
                Rest::Reading(reading) => reading,
            };
            match reading.as_mut().poll(cx) {
                Poll::Pending => {
                    this.rest = Rest::Reading(reading);
                    return Poll::Pending;
                }
                Poll::Ready((reader, Ok(Some(piece)))) => {
                    this.first = piece;
                    this.rest = Rest::Idle(reader);
                }
                Poll::Ready((_, Ok(None))) => {
                    let short = Error::Internal("the data ended early".to_owned());
                    return Poll::Ready(Some(Err(short)));
                }
                // The head of the answer is gone: the connection ends, and the client sees that
                // the body is short.
                Poll::Ready((_, Err(e))) => {
                    tracing::warn!("s3: an answer ends early: {e}");
                    return Poll::Ready(Some(Err(e)));
                }
            }
        }
        let mut piece = std::mem::take(&mut this.first);
        let take = usize::try_from(this.left).unwrap_or(usize::MAX).min(piece.len());
        piece.truncate(take);
        this.left -= take as u64;
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

impl<R> Answer<R> {
    /// An answer without a body.
    pub fn empty(status: StatusCode) -> Answer<R> {
        Answer { status, headers: HeaderMap::new(), body: Outgoing::full(Bytes::new()) }
    }

    /// A document.
    pub fn xml(document: String) -> Answer<R> {
        let mut answer = Answer::empty(StatusCode::OK);
        answer.headers.insert("content-type", HeaderValue::from_static("application/xml"));
        answer.body = Outgoing::full(document);
        answer
    }

    /// Adds a header. A value that HTTP cannot carry is left out.
    pub fn header(&mut self, name: impl AsRef<str>, value: impl AsRef<str>) -> &mut Self {
        set(&mut self.headers, name.as_ref(), value.as_ref());
        self
    }

    /// [`Answer::header`], if there is a value.
    pub fn maybe(&mut self, name: &str, value: Option<&str>) -> &mut Self {
        if let Some(value) = value {
            self.header(name, value);
        }
        self
    }
}

/// Sets a header. A value that HTTP cannot carry is left out.
pub(crate) fn set(headers: &mut HeaderMap, name: &str, value: &str) {
    let name = HeaderName::from_bytes(name.as_bytes());
    // A value may hold any text; bytes above 127 pass as they are.
    if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(value.as_bytes())) {
        headers.insert(name, value);
    }
}

/// A tag as headers and documents have it.
pub(crate) fn quoted(etag: &str) -> String {
    format!("\"{etag}\"")
}
