//! Connections, and the walk of a request.

use crate::answer::{Answer, Outgoing};
use crate::auth::{Sender, authenticate};
use crate::body::Unread;
use crate::call::{Call, Handled};
use crate::fail::Fail;
use crate::gateway::{Gateway, seconds, with_host};
use crate::limits::BODY_BYTES;
use crate::{admin, cors, operations, usage};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use s3::route::{Subject, Target, bucket_of_host};
use s3::sig::Parts;
use s3::uri::Query;
use s3::{ErrorCode, Operation, Route};
use s3_layout::Layout;
use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Sleep;

/// Listens at an address. Several threads may listen at the same one: the kernel deals connections
/// out.
pub fn listen(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.set_reuseport(true)?;
    socket.bind(addr)?;
    socket.listen(1024)
}

/// How long requests under way have to end when the gateway stops.
const FAREWELL: Duration = Duration::from_secs(5);
/// Pause after a connection could not be accepted: there are no descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long a connection that ends waits for its peer's end, and how much it takes until then.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES: usize = 16 << 20;
const LINGER_BUFFER: usize = 16 << 10;
/// What a request is counted with besides its body, in bytes.
const REQUEST_BYTES: u64 = 64 << 10;
/// What a list is counted with, in bytes.
const LIST_BYTES: u64 = 1 << 20;

impl<L: Layout> Gateway<L> {
    /// Serves connections until `stop` is done; then requests under way have a moment to end.
    pub async fn serve(self: Rc<Self>, listener: TcpListener, stop: impl Future<Output = ()>) {
        let (stopping, _) = watch::channel(false);
        let mut connections = JoinSet::new();
        let mut stop = std::pin::pin!(stop);
        loop {
            let accepted = tokio::select! {
                () = &mut stop => break,
                Some(_) = connections.join_next(), if !connections.is_empty() => continue,
                accepted = listener.accept() => accepted,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(e) => {
                    tracing::warn!("s3: a connection cannot be accepted: {e}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            if connections.len() >= self.options.limits.connections {
                tracing::warn!(
                    "s3: {peer} is refused: there are {} connections",
                    connections.len()
                );
                continue;
            }
            let gateway = self.clone();
            connections.spawn_local(gateway.connection(stream, peer, stopping.subscribe()));
        }
        drop(listener);
        stopping.send_replace(true);
        let ended = async { while connections.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(FAREWELL, ended).await;
    }

    async fn connection(
        self: Rc<Self>,
        stream: TcpStream,
        peer: SocketAddr,
        stopping: watch::Receiver<bool>,
    ) {
        let _ = stream.set_nodelay(true);
        let Some(handshakes) = &self.handshakes else {
            return self.clone().requests(stream, peer, stopping).await;
        };
        let secure = async {
            match handshakes.shake(stream).await {
                Ok(stream) => self.clone().requests(stream, peer, stopping).await,
                Err(e) => tracing::debug!("s3: the handshake of {peer} failed: {e}"),
            }
        };
        // On the heap: its state is large, and connections without TLS have none.
        Box::pin(secure).await;
    }

    async fn requests(
        self: Rc<Self>,
        stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
        peer: SocketAddr,
        mut stopping: watch::Receiver<bool>,
    ) {
        let limits = &self.options.limits;
        let io = TokioIo::new(Patient { stream, idle: limits.idle, stalled: None });
        let gateway = self.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let gateway = gateway.clone();
            // On the heap: a connection without a request costs little.
            Box::pin(async move { Ok::<_, Infallible>(gateway.respond(request, peer).await) })
        });
        let mut builder = hyper::server::conn::http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(limits.idle)
            .max_buf_size(limits.head_bytes.max(8 << 10));
        let mut connection = builder.serve_connection(io, service);
        let ended = tokio::select! {
            ended = poll_fn(|cx| connection.poll_without_shutdown(cx)) => ended,
            _ = stopping.wait_for(|s| *s) => {
                Pin::new(&mut connection).graceful_shutdown();
                poll_fn(|cx| connection.poll_without_shutdown(cx)).await
            }
        };
        if let Err(e) = ended {
            tracing::debug!("s3: the connection of {peer} ended: {e}");
        }
        linger(connection.into_parts().io.into_inner()).await;
    }

    async fn respond(
        self: Rc<Self>,
        request: Request<Incoming>,
        peer: SocketAddr,
    ) -> Response<Outgoing<L::Reader>> {
        let number = self.requests.get();
        self.requests.set(number.wrapping_add(1));
        let id = format!("tx{:016x}{number:08x}", self.instance);
        let (parts, incoming) = request.into_parts();
        let (incoming, asked) = Unread::new(incoming);
        let waits = expects(&parts.headers);
        let is_head = parts.method == http::Method::HEAD;
        let resource = parts.uri.path().to_owned();
        let mut extra = HeaderMap::new();
        let counters = self.options.counters.clone();
        let _active = counters.begin();
        let below = admin::below(&self.options.admin_entry, &resource);
        let handled = match (&self.admin, below) {
            (Some(api), Some(rest)) => {
                Ok(self.administer(api.as_ref(), parts, rest, incoming, &id).await)
            }
            _ => self.clone().handle(parts, incoming, peer, &mut extra).await,
        };
        let mut answer = match handled {
            Ok(answer) => answer,
            Err(fail) => {
                counters.failed();
                refusal(fail, &resource, &id, &self.options.region, is_head)
            }
        };
        for (name, value) in extra {
            if let Some(name) = name {
                answer.headers.insert(name, value);
            }
        }
        answer.header("x-amz-request-id", &id);
        answer.header("x-amz-id-2", format!("{id}-{}", self.options.region));
        answer.headers.insert("server", HeaderValue::from_static("Siphon"));
        if waits && !asked.get() {
            // The peer may send the body or not: only the end of the connection makes clear where
            // its next request begins. botocore relies on being told, also where there is no body:
            // else it takes the next answer on the connection for a part of this one.
            answer.headers.insert("connection", HeaderValue::from_static("close"));
        }
        let mut response = Response::new(answer.body);
        *response.status_mut() = answer.status;
        *response.headers_mut() = answer.headers;
        response
    }

    async fn handle(
        self: Rc<Self>,
        parts: http::request::Parts,
        incoming: Unread,
        peer: SocketAddr,
        extra: &mut HeaderMap,
    ) -> Handled<L> {
        let now = seconds();
        let headers = with_host(parts.headers, &parts.uri);
        let (path, raw_query) = (parts.uri.path(), parts.uri.query().unwrap_or_default());
        let method = parts.method.as_str().to_owned();
        let query = Query::parse(raw_query)?;
        let target = Target { method: &method, path, query: &query, headers: &headers };
        let mut route = Route::of(&target, &self.options.domains)?;
        let operation = route.operation;
        let sender = match operation {
            // A preflight is never signed; a form is signed inside.
            Operation::Preflight | Operation::PostObject => Sender::default(),
            _ => {
                let signed = Parts { method: &method, path, query: raw_query, headers: &headers };
                let host = headers.get("host").and_then(|h| h.to_str().ok()).unwrap_or_default();
                let host_bucket = bucket_of_host(host, &self.options.domains);
                let (layout, v2) = (&self.layout, self.options.allow_v2);
                authenticate(layout, &signed, &query, host_bucket, now, v2).await?
            }
        };
        if operation == Operation::Preflight && route.tenant.is_none() {
            route.tenant = self.tenant_of_key(&query).await;
        }
        let mut call = Call {
            gateway: self.clone(),
            method,
            headers,
            query,
            route,
            peer: peer.ip(),
            sender,
            bucket: None,
            now,
            incoming: Some(incoming),
        };
        let of_bucket = operation.subject() != Subject::Service
            && !matches!(operation, Operation::CreateBucket | Operation::PostObject);
        if of_bucket {
            let name = call.bucket_name(call.route.tenant.as_deref(), &call.route.bucket);
            let bucket = self.layout.bucket(&name).await?;
            call.expect_owner("x-amz-expected-bucket-owner", bucket.as_ref())?;
            if operation != Operation::Preflight {
                cors::add(extra, &call, bucket.as_ref());
            }
            call.bucket = Some(bucket);
        }
        let held = self.gate.enter(&tenant(&call), memory(&call)).await?;
        let began = Instant::now();
        let handled = operations::run(&mut call).await;
        usage::note(&call, &handled);
        if let Ok(answer) = &handled {
            let received = call.header("content-length").and_then(|l| l.trim().parse().ok());
            self.options.counters.answered(
                operation,
                answer.body.length(),
                received.unwrap_or(0),
                began.elapsed(),
            );
        }
        let mut answer = handled?;
        answer.body.hold(held);
        Ok(answer)
    }
}

impl<L: Layout> Gateway<L> {
    /// The tenant in which a preflight of a presigned URL names a bucket. Its signature is not
    /// looked at: it is that of another method, and rules of CORS are all that is told.
    async fn tenant_of_key(&self, query: &Query) -> Option<String> {
        let credential = query.get("X-Amz-Credential").or_else(|| query.get("AWSAccessKeyId"))?;
        let user = self.layout.user_of_key(credential.split('/').next()?).await.ok()?;
        Some(user.id.tenant.clone())
    }
}

/// The peer sends a body when it is asked to.
fn expects(headers: &HeaderMap) -> bool {
    headers.get("expect").is_some_and(|e| e.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

/// Ends a connection after what was sent. Bytes of a refused body that nothing reads would make the
/// kernel reset the connection, and the peer could lose the answer.
async fn linger(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    let drained = async {
        if stream.shutdown().await.is_err() {
            return;
        }
        let mut sink = vec![0; LINGER_BUFFER];
        let mut left = LINGER_BYTES;
        while left > 0 {
            match stream.read(&mut sink).await {
                Ok(0) | Err(_) => return,
                Ok(n) => left = left.saturating_sub(n),
            }
        }
    };
    let _ = tokio::time::timeout(LINGER, drained).await;
}

/// The tenant of a request: the bucket, or the user where there is no bucket.
fn tenant<L: Layout>(call: &Call<L>) -> String {
    match (&call.bucket, &call.sender.user) {
        (Some(bucket), _) => bucket.as_ref().name.to_string(),
        (None, Some(user)) => format!("${}", user.id),
        (None, None) => String::new(),
    }
}

/// What a request may need of memory before its handler knows more.
fn memory<L: Layout>(call: &Call<L>) -> u64 {
    let length = call.header("content-length").and_then(|l| l.trim().parse::<u64>().ok());
    let unknown = if call.headers.contains_key("transfer-encoding") { BODY_BYTES } else { 0 };
    let body = length.unwrap_or(unknown).min(BODY_BYTES);
    let answer = match call.route.operation {
        Operation::ListObjects
        | Operation::ListObjectsV2
        | Operation::ListObjectVersions
        | Operation::ListParts
        | Operation::ListMultipartUploads
        | Operation::ListBuckets
        | Operation::GetAccountUsage
        | Operation::GetObject => LIST_BYTES,
        _ => 0,
    };
    REQUEST_BYTES + body + answer
}

fn refusal<R>(fail: Fail, resource: &str, id: &str, host: &str, is_head: bool) -> Answer<R> {
    let status = fail.error.status();
    let mut answer = if is_head || status == StatusCode::NOT_MODIFIED {
        Answer::empty(status)
    } else {
        let mut answer = Answer::xml(fail.error.to_xml(resource, id, host));
        answer.status = status;
        answer
    };
    if fail.error.code == ErrorCode::SlowDown || fail.error.code == ErrorCode::ServiceUnavailable {
        answer.header("retry-after", "1");
    }
    for (name, value) in &fail.headers {
        answer.header(name, value);
    }
    answer
}

/// A connection that ends when its peer takes nothing of what is sent: hyper watches only how long
/// it waits for heads.
struct Patient<S> {
    stream: S,
    idle: Duration,
    /// Since when nothing could be sent.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> Patient<S> {
    fn watch<T>(&mut self, cx: &mut Context<'_>, sent: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if sent.is_ready() {
            self.stalled = None;
            return sent;
        }
        let idle = self.idle;
        let timer = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(idle)));
        match timer.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let sent = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.watch(cx, sent)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let sent = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.watch(cx, sent)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
