//! Bodies of requests: frames of the connection, verified data for the layout, small documents.

use crate::fail::{Fail, Result};
use crate::limits::{Limits, PUT_BYTES_MAX, too_large};
use bytes::{Bytes, BytesMut};
use hyper::body::{Body as _, Incoming};
use s3::body::Body;
use s3::{ErrorCode, S3Error};
use s3_layout::Source;
use s3_layout::api::Sums;
use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;
use tokio::time::Instant;

/// The body of a request that nothing was read of. The first read asks a peer for it that waits to
/// be asked (`Expect: 100-continue`); an empty one is never asked for.
pub(crate) struct Unread {
    incoming: Incoming,
    asked: Rc<Cell<bool>>,
}

impl Unread {
    /// The body, and what becomes true when it is asked for.
    pub fn new(incoming: Incoming) -> (Unread, Rc<Cell<bool>>) {
        let asked = Rc::new(Cell::new(false));
        (Unread { incoming, asked: asked.clone() }, asked)
    }

    fn ask(&self) {
        self.asked.set(self.asked.get() || !self.incoming.is_end_stream());
    }
}

/// What arrives on the connection, with a peer that is too slow given up.
pub(crate) struct Frames {
    body: Unread,
    idle: Duration,
    pace_bytes: u64,
    /// How long the peer was waited for since `came` was last set to nothing.
    waited: Duration,
    came: u64,
}

impl Frames {
    pub fn new(body: Unread, limits: &Limits) -> Frames {
        Frames {
            body,
            idle: limits.idle,
            pace_bytes: limits.pace_bytes,
            waited: Duration::ZERO,
            came: 0,
        }
    }

    /// The next bytes, or `None` at the end.
    pub async fn next(&mut self) -> std::result::Result<Option<Bytes>, S3Error> {
        loop {
            let began = Instant::now();
            self.body.ask();
            let incoming = &mut self.body.incoming;
            let frame = std::future::poll_fn(|cx| Pin::new(&mut *incoming).poll_frame(cx));
            let frame = match tokio::time::timeout(self.idle, frame).await {
                Err(_) => return Err(ErrorCode::RequestTimeout.into()),
                Ok(None) => return Ok(None),
                Ok(Some(Err(_))) => return Err(ErrorCode::IncompleteBody.into()),
                Ok(Some(Ok(frame))) => frame,
            };
            // Trailers of HTTP itself mean nothing here.
            let Ok(data) = frame.into_data() else { continue };
            self.waited += began.elapsed();
            self.came += data.len() as u64;
            if self.waited > self.idle {
                if self.came < self.pace_bytes && !self.body.incoming.is_end_stream() {
                    return Err(ErrorCode::RequestTimeout.into());
                }
                self.waited = Duration::ZERO;
                self.came = 0;
            }
            if !data.is_empty() {
                return Ok(Some(data));
            }
        }
    }
}

/// The body of an object or a part on its way to the layout.
pub(crate) struct Inbound {
    frames: Frames,
    body: Option<Body>,
    input: Bytes,
    bytes: u64,
}

impl Inbound {
    pub fn new(frames: Frames, body: Body) -> Inbound {
        Inbound { frames, body: Some(body), input: Bytes::new(), bytes: 0 }
    }

    async fn piece(&mut self) -> std::result::Result<Option<Bytes>, S3Error> {
        let Some(body) = &mut self.body else { return Ok(None) };
        loop {
            if let Some(data) = body.next(&mut self.input)? {
                if data.is_empty() {
                    continue;
                }
                // A body that does not say its length in advance is bounded here.
                self.bytes += data.len() as u64;
                if self.bytes > PUT_BYTES_MAX {
                    return Err(too_large(self.bytes));
                }
                return Ok(Some(data));
            }
            match self.frames.next().await? {
                Some(bytes) => self.input = bytes,
                None => return Ok(None),
            }
        }
    }
}

impl Source for Inbound {
    async fn next(&mut self) -> s3_layout::Result<Option<Bytes>> {
        Ok(self.piece().await?)
    }
}

impl s3_layout::Upload for Inbound {
    fn finish(&mut self) -> s3_layout::Result<Sums> {
        let body = self.body.take().ok_or_else(|| {
            s3_layout::Error::Internal("a body was ended twice by the layout".to_owned())
        })?;
        let sums = body.finish()?;
        Ok(Sums { md5: sums.md5, checksum: sums.checksum })
    }
}

/// Reads a document of at most `max` bytes and verifies it.
pub(crate) async fn document(frames: Frames, body: Body, max: usize) -> Result<Bytes> {
    let mut inbound = Inbound::new(frames, body);
    let mut whole = BytesMut::new();
    while let Some(piece) = inbound.piece().await? {
        if whole.len() + piece.len() > max {
            return Err(Fail::new(
                ErrorCode::MaxMessageLengthExceeded,
                format!("a document of at most {max} bytes was expected"),
            ));
        }
        whole.extend_from_slice(&piece);
    }
    if let Some(body) = inbound.body {
        body.finish()?;
    }
    Ok(whole.freeze())
}
