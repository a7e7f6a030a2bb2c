//! An HTTP server for one page. A connection is answered once and closed; what a peer may send, how
//! long it may take, and how many there are is bounded.

use flate2::Compression;
use flate2::write::GzEncoder;
use std::cell::Cell;
use std::future::Future;
use std::io::Write;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// The longest head of a request.
const MOST_HEAD: usize = 8 << 10;
/// How long a peer may take to ask, and to take the answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Connections at a time; more are closed at once.
const MOST_PEERS: usize = 16;

/// A request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asked {
    /// A page that says where the metrics are.
    Index,
    /// The metrics.
    Metrics,
    /// Something else.
    Unknown,
    /// With a method that there is not.
    Method,
    /// A request that cannot be understood.
    Bad,
}

/// Reads the first line of a request's head; whether only the head of the answer is wanted comes
/// with it.
pub fn read_head(head: &[u8]) -> (Asked, bool) {
    let line = head.split(|b| *b == b'\n').next().unwrap_or_default();
    let Ok(line) = std::str::from_utf8(line.strip_suffix(b"\r").unwrap_or(line)) else {
        return (Asked::Bad, false);
    };
    let mut words = line.split(' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return (Asked::Bad, false);
    };
    if !version.starts_with("HTTP/1.") {
        return (Asked::Bad, false);
    }
    let only_head = method == "HEAD";
    if !only_head && method != "GET" {
        return (Asked::Method, false);
    }
    let asked = match target.split('?').next() {
        Some("/") => Asked::Index,
        Some("/metrics") => Asked::Metrics,
        _ => Asked::Unknown,
    };
    (asked, only_head)
}

/// Whether a request's head says that a compressed answer may come.
pub fn takes_gzip(head: &[u8]) -> bool {
    let head = String::from_utf8_lossy(head);
    let fields = head.lines().skip(1).filter_map(|l| l.split_once(':'));
    let codings = fields
        .filter(|(name, _)| name.eq_ignore_ascii_case("accept-encoding"))
        .flat_map(|(_, value)| value.split(','));
    let takes = |coding: &str| {
        let mut parts = coding.split(';').map(str::trim);
        // A weight of zero is a refusal.
        let refused = |p: &str| {
            p.strip_prefix("q=").is_some_and(|q| q.parse::<f32>().is_ok_and(|q| q <= 0.0))
        };
        parts.next().is_some_and(|c| c.eq_ignore_ascii_case("gzip")) && !parts.any(refused)
    };
    codings.into_iter().any(takes)
}

/// Compresses a page on another thread: that of a large cluster takes a while.
async fn compressed(page: String) -> std::io::Result<Vec<u8>> {
    let compress = move || {
        let mut out = GzEncoder::new(Vec::with_capacity(page.len() / 8), Compression::fast());
        out.write_all(page.as_bytes())?;
        out.finish()
    };
    tokio::task::spawn_blocking(compress).await.map_err(std::io::Error::other)?
}

const INDEX: &str = "<!DOCTYPE html>\n<html><head><title>Ceph Exporter</title></head><body><h1>Ceph Exporter</h1>\
                     <p><a href='/metrics'>Metrics</a></p></body></html>\n";

/// Listens. The address of all interfaces means those of IPv4 where there is no IPv6.
pub fn listen(addr: &str, port: u16) -> std::io::Result<TcpListener> {
    let bind = |addr: SocketAddr| {
        let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_reuseaddr(true)?;
        socket.bind(addr)?;
        socket.listen(128)
    };
    let ip = addr.trim_matches(['[', ']']).parse().map_err(|_| {
        std::io::Error::new(std::io::ErrorKind::InvalidInput, format!("'{addr}' is no address"))
    })?;
    match bind(SocketAddr::new(ip, port)) {
        Err(e) if addr == "::" && e.kind() != std::io::ErrorKind::AddrInUse => {
            bind(SocketAddr::from(([0, 0, 0, 0], port)))
        }
        other => other,
    }
}

/// Serves until it is dropped. `page` makes the metrics.
pub async fn serve<F: Future<Output = String> + 'static>(
    listener: TcpListener,
    page: impl Fn() -> F + 'static,
) {
    let (page, peers) = (Rc::new(page), Rc::new(Cell::new(0usize)));
    // They end with this.
    let mut under_way = tokio::task::JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = under_way.join_next() => continue,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(e) => {
                tracing::debug!("metrics: {e}");
                // No descriptors are left: it does not help to ask again at once.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        if peers.get() >= MOST_PEERS {
            continue;
        }
        peers.set(peers.get() + 1);
        let (page, peers) = (page.clone(), peers.clone());
        under_way.spawn_local(async move {
            let answered = answer(stream, page.as_ref()).await;
            peers.set(peers.get() - 1);
            if let Err(e) = answered {
                tracing::debug!("metrics: {e}");
            }
        });
    }
}

async fn head(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut head = Vec::with_capacity(1024);
    loop {
        let mut piece = [0; 1024];
        let n = stream.read(&mut piece).await?;
        head.extend_from_slice(piece.get(..n).unwrap_or_default());
        if n == 0
            || head.len() > MOST_HEAD
            || head.windows(4).any(|w| w == b"\r\n\r\n")
            || head.windows(2).any(|w| w == b"\n\n")
        {
            return Ok(head);
        }
    }
}

async fn answer<F: Future<Output = String>>(
    mut stream: TcpStream,
    page: &impl Fn() -> F,
) -> std::io::Result<()> {
    let late = |_| std::io::Error::from(std::io::ErrorKind::TimedOut);
    let head = tokio::time::timeout(PATIENCE, head(&mut stream)).await.map_err(late)??;
    let (asked, only_head) =
        if head.len() > MOST_HEAD { (Asked::Bad, false) } else { read_head(&head) };
    let (status, kind, body) = match asked {
        Asked::Metrics => ("200 OK", "text/plain; version=0.0.4; charset=utf-8", page().await),
        Asked::Index => ("200 OK", "text/html; charset=utf-8", INDEX.to_owned()),
        Asked::Unknown => ("404 Not Found", "text/plain", "not found\n".to_owned()),
        Asked::Method => ("405 Method Not Allowed", "text/plain", "only GET and HEAD\n".to_owned()),
        Asked::Bad => ("400 Bad Request", "text/plain", "bad request\n".to_owned()),
    };
    let (coding, body) = match asked == Asked::Metrics && takes_gzip(&head) {
        true => ("Content-Encoding: gzip\r\n", compressed(body).await?),
        false => ("", body.into_bytes()),
    };
    let length = body.len();
    let mut out = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{coding}Content-Length: {length}\r\n\
         Connection: close\r\n\r\n"
    )
    .into_bytes();
    if !only_head {
        out.extend_from_slice(&body);
    }
    let send = async {
        stream.write_all(&out).await?;
        stream.shutdown().await?;
        // What it still sends is read, for a moment: closing over it could take the answer away
        // from it.
        let mut rest = [0; 1024];
        for _ in 0..16 {
            if stream.read(&mut rest).await? == 0 {
                break;
            }
        }
        Ok(())
    };
    tokio::time::timeout(PATIENCE, send).await.map_err(late)?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read() {
        let of = |head: &str| read_head(head.as_bytes());
        assert_eq!(of("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"), (Asked::Metrics, false));
        assert_eq!(of("HEAD /metrics?x=y HTTP/1.0\n\n"), (Asked::Metrics, true));
        assert_eq!(of("GET / HTTP/1.1\r\n\r\n").0, Asked::Index);
        assert_eq!(of("GET /etc/passwd HTTP/1.1\r\n\r\n").0, Asked::Unknown);
        assert_eq!(of("POST /metrics HTTP/1.1\r\n\r\n").0, Asked::Method);
        for bad in [
            "",
            "GET",
            "GET /metrics",
            "GET /metrics SPDY/1",
            "GET /metrics HTTP/1.1 x",
            "\u{0}\n\n",
        ] {
            assert_eq!(of(bad).0, Asked::Bad, "{bad:?}");
        }
        assert_eq!(read_head(&[0xff, 0xfe, b'\n']).0, Asked::Bad);
    }

    #[test]
    fn peers_say_whether_they_take_compressed_pages() {
        let of =
            |fields: &str| takes_gzip(format!("GET /metrics HTTP/1.1\r\n{fields}\r\n").as_bytes());
        assert!(
            of("Accept-Encoding: gzip\r\n") && of("accept-encoding: br;q=1.0, GZIP ;q=0.5\r\n")
        );
        assert!(of("Host: x\r\nAccept-Encoding: deflate\r\nAccept-Encoding: gzip\r\n"));
        for none in ["", "Accept-Encoding: br\r\n", "Accept-Encoding: gzip;q=0\r\n", "X: gzip\r\n"]
        {
            assert!(!of(none), "{none:?}");
        }
        assert!(!takes_gzip(&[0xff, 0xfe, b'\n', b':', b'\n']));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_page_comes_compressed_to_peers_that_take_it() {
        let lines: String = (0..1000).map(|n| format!("up{{osd=\"{n}\"}} 1.0\n")).collect();
        let page = lines.clone();
        let local = tokio::task::LocalSet::new();
        local
            .run_until(async {
                let listener = listen("127.0.0.1", 0).unwrap();
                let addr = listener.local_addr().unwrap();
                let serve = serve(listener, move || {
                    let page = page.clone();
                    async move { page }
                });
                let server = tokio::task::spawn_local(serve);
                let mut s = TcpStream::connect(addr).await.unwrap();
                let ask = b"GET /metrics HTTP/1.1\r\nAccept-Encoding: gzip\r\n\r\n";
                s.write_all(ask).await.unwrap();
                let mut answer = Vec::new();
                s.read_to_end(&mut answer).await.unwrap();
                let end = answer.windows(4).position(|w| w == b"\r\n\r\n").unwrap() + 4;
                let head = String::from_utf8_lossy(&answer[..end]).into_owned();
                assert!(head.contains("\r\nContent-Encoding: gzip\r\n"), "{head}");
                let length = format!("Content-Length: {}\r\n", answer.len() - end);
                assert!(head.contains(&length), "{head}");
                let mut text = String::new();
                let mut reader = flate2::read::GzDecoder::new(&answer[end..]);
                std::io::Read::read_to_string(&mut reader, &mut text).unwrap();
                assert!(text == lines && answer.len() < lines.len() / 4);
                server.abort();
            })
            .await;
    }

    #[tokio::test(flavor = "current_thread")]
    async fn silent_and_hostile_peers_keep_nobody_from_the_page() {
        let local = tokio::task::LocalSet::new();
        local
            .run_until(async {
                let listener = listen("127.0.0.1", 0).unwrap();
                let addr = listener.local_addr().unwrap();
                let server =
                    tokio::task::spawn_local(serve(listener, || async { "up 1.0\n".to_owned() }));
                let mut silent = Vec::new();
                for _ in 0..MOST_PEERS - 2 {
                    silent.push(TcpStream::connect(addr).await.unwrap());
                }
                let ask = |request: Vec<u8>| async move {
                    let mut s = TcpStream::connect(addr).await.unwrap();
                    // A peer that is refused in the middle of a long head sees its connection end.
                    let _ = s.write_all(&request).await;
                    let mut answer = Vec::new();
                    let _ = s.read_to_end(&mut answer).await;
                    String::from_utf8_lossy(&answer).into_owned()
                };
                let page = ask(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n".to_vec()).await;
                assert!(
                    page.starts_with("HTTP/1.1 200 OK\r\n") && page.ends_with("\r\n\r\nup 1.0\n"),
                    "{page}"
                );
                assert!(ask(b"\0\0\0\n\n".to_vec()).await.starts_with("HTTP/1.1 400"));
                assert!(!ask([b'a'; 2 * MOST_HEAD].to_vec()).await.contains("200 OK"));
                let page = ask(b"HEAD /metrics HTTP/1.1\r\n\r\n".to_vec()).await;
                assert!(page.contains("Content-Length: 7") && page.ends_with("\r\n\r\n"), "{page}");
                drop(silent);
                server.abort();
            })
            .await;
    }
}
