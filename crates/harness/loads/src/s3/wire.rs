//! A connection to an endpoint: signed requests, bodies that are made while they are sent.

use super::content::Content;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use s3::etag::hex;
use s3::sig::v4::{EMPTY_SHA256, Signer};
use sha2::{Digest, Sha256};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::net::TcpStream;

/// Bytes of a frame of a body that is made while it is sent.
const FRAME_BYTES: usize = 256 << 10;

/// Where requests go, and the user that makes them.
#[derive(Clone)]
pub struct Target {
    /// The endpoint.
    pub address: SocketAddr,
    /// Its name in the header `host`.
    pub host: String,
    /// Keys and region.
    pub signer: Signer,
    /// Whether signatures cover bodies by their SHA-256, as SDKs do without TLS.
    pub signed_bodies: bool,
    /// A request that takes longer has failed.
    pub timeout: Duration,
}

/// A body of a request.
pub enum Outbound {
    /// Bytes that are there.
    Whole(Bytes),
    /// The rest of a content from this byte on.
    Made(Content, u64),
}

impl Outbound {
    /// No body.
    pub fn none() -> Outbound {
        Outbound::Whole(Bytes::new())
    }

    fn sha256(&self) -> String {
        match self {
            Outbound::Whole(data) if data.is_empty() => EMPTY_SHA256.to_owned(),
            Outbound::Whole(data) => hex(&Sha256::digest(data)),
            Outbound::Made(content, from) => {
                let mut sum = Sha256::new();
                let mut at = *from;
                while at < content.length() {
                    let piece = content.piece(at, FRAME_BYTES);
                    at += piece.len() as u64;
                    sum.update(&piece);
                }
                hex(&sum.finalize())
            }
        }
    }
}

impl Body for Outbound {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let data = match &mut *self {
            Outbound::Whole(data) => std::mem::take(data),
            Outbound::Made(content, at) => {
                let piece = content.piece(*at, FRAME_BYTES);
                *at += piece.len() as u64;
                piece.into()
            }
        };
        Poll::Ready((!data.is_empty()).then(|| Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Outbound::Whole(data) => data.is_empty(),
            Outbound::Made(content, at) => *at >= content.length(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(match self {
            Outbound::Whole(data) => data.len() as u64,
            Outbound::Made(content, at) => content.length().saturating_sub(*at),
        })
    }
}

/// A connection, opened when there is something to send.
pub struct Connection {
    target: Target,
    sender: Option<SendRequest<Outbound>>,
}

impl Connection {
    /// Not opened yet. Must be used within a `LocalSet`.
    pub fn new(target: Target) -> Connection {
        Connection { target, sender: None }
    }

    /// How long a request may take.
    pub fn timeout(&self) -> Duration {
        self.target.timeout
    }

    /// Opens it, if it is not open.
    pub async fn open(&mut self) -> Result<&mut SendRequest<Outbound>, String> {
        if self.sender.as_ref().is_none_or(SendRequest::is_closed) {
            self.sender = None;
            let address = self.target.address;
            let socket = TcpStream::connect(address)
                .await
                .map_err(|e| format!("no connection to {address}: {e}"))?;
            socket.set_nodelay(true).map_err(|e| e.to_string())?;
            let (sender, connection) =
                handshake(TokioIo::new(socket)).await.map_err(|e| e.to_string())?;
            tokio::task::spawn_local(async move {
                // Its error reaches the request that waits.
                let _ = connection.await;
            });
            self.sender = Some(sender);
        }
        self.sender.as_mut().ok_or_else(|| "no connection".to_owned())
    }

    /// Closes it: what is left of an answer cannot be read any more.
    pub fn close(&mut self) {
        self.sender = None;
    }

    /// Sends a request. `path` and `query` are percent-encoded.
    pub async fn send(
        &mut self,
        method: Method,
        path: &str,
        query: &str,
        mut headers: HeaderMap,
        body: Outbound,
    ) -> Result<Response<Incoming>, String> {
        let host = HeaderValue::from_str(&self.target.host).map_err(|e| e.to_string())?;
        headers.insert("host", host);
        let payload = match self.target.signed_bodies {
            true => body.sha256(),
            false => "UNSIGNED-PAYLOAD".to_owned(),
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        self.target
            .signer
            .sign(method.as_str(), path, query, &mut headers, &payload, now)
            .map_err(|e| e.to_string())?;
        let target = match query {
            "" => path.to_owned(),
            query => format!("{path}?{query}"),
        };
        let mut request = Request::new(body);
        *request.method_mut() = method;
        *request.uri_mut() = target.parse().map_err(|e| format!("{target}: {e}"))?;
        *request.headers_mut() = headers;
        let sender = self.open().await?;
        sender.ready().await.map_err(|e| e.to_string())?;
        sender.send_request(request).await.map_err(|e| e.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_that_is_made_has_the_sum_of_the_whole() {
        let content = Content::new("b", "k", 1, 700_001);
        let whole = Outbound::Whole(content.piece(0, usize::MAX).into());
        let mut made = Outbound::Made(content, 0);
        assert_eq!(made.sha256(), whole.sha256());
        assert_eq!(made.size_hint().exact(), Some(700_001));
        let mut sent = Vec::new();
        let mut context = Context::from_waker(std::task::Waker::noop());
        while let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut made).poll_frame(&mut context) {
            sent.extend(frame.into_data().unwrap());
        }
        content.check(0, &sent).unwrap();
        assert!(sent.len() == 700_001 && made.is_end_stream());
        assert_eq!(Outbound::none().sha256(), EMPTY_SHA256);
    }
}
