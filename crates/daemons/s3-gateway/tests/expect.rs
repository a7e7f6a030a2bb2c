//! `Expect: 100-continue`, byte by byte: in each order of body and answer there is one final
//! answer. Before it is at most one `100 Continue`, and after it nothing that could be taken for
//! the answer to the next request.

mod common;

use common::{Ask, Served, ask, run, serve_with};
use s3_gateway::Limits;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const CONTINUE: &str = "HTTP/1.1 100 Continue\r\n\r\n";
/// More than the buffers of a connection take.
const LARGE: usize = 6 << 20;

fn put(key: &str, body: &[u8]) -> Ask {
    ask("PUT", &format!("/buck/{key}")).body(body).header("expect", "100-continue")
}

/// A request that is refused before its body is looked at.
fn refused(body: &[u8]) -> Ask {
    put("refused", body).by("b")
}

struct Peer {
    stream: TcpStream,
    came: Vec<u8>,
}

impl Peer {
    async fn connect(s: &Served) -> Peer {
        Peer { stream: TcpStream::connect(s.addr).await.unwrap(), came: Vec::new() }
    }

    async fn say(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    /// `false` at the end of the connection.
    async fn more(&mut self) -> bool {
        let mut piece = vec![0; 64 << 10];
        let read = tokio::time::timeout(Duration::from_secs(60), self.stream.read(&mut piece));
        let n = read.await.expect("the gateway says nothing").expect("an end that is no reset");
        self.came.extend_from_slice(&piece[..n]);
        n > 0
    }

    async fn hears(&mut self, what: &str) {
        while self.came.len() < what.len() {
            assert!(self.more().await, "{}", self.came.escape_ascii());
        }
        let said: Vec<u8> = self.came.drain(..what.len()).collect();
        assert_eq!(said.escape_ascii().to_string(), what.as_bytes().escape_ascii().to_string());
    }

    /// One answer: its status and its head in small letters.
    async fn answer(&mut self) -> (u16, String) {
        let head = loop {
            if let Some(at) = self.came.windows(4).position(|w| w == b"\r\n\r\n") {
                break self.came.drain(..at + 4).collect::<Vec<u8>>();
            }
            assert!(self.more().await, "{}", self.came.escape_ascii());
        };
        let head = String::from_utf8(head).unwrap();
        let status = head.strip_prefix("HTTP/1.1 ").expect("an answer")[..3].parse().unwrap();
        let head = head.to_ascii_lowercase();
        let length =
            head.split("content-length: ").nth(1).map_or("0", |l| l.split("\r\n").next().unwrap());
        let length: usize = length.parse().unwrap();
        while self.came.len() < length {
            assert!(self.more().await, "an answer is cut");
        }
        self.came.drain(..length);
        (status, head)
    }

    async fn ends(&mut self) {
        while self.more().await {}
        assert!(self.came.is_empty(), "behind the answer: {}", self.came.escape_ascii());
    }

    /// The connection takes one more request, to which nothing but its own answer comes.
    async fn goes_on(&mut self, s: &Served) {
        let next = put("next", b"next");
        self.say(next.head(s.addr).0.as_bytes()).await;
        self.hears(CONTINUE).await;
        self.say(&next.body).await;
        assert_eq!(self.answer().await.0, 200);
        let got = ask("GET", "/buck/next");
        self.say(got.head(s.addr).0.as_bytes()).await;
        assert_eq!(self.answer().await.0, 200);
        assert!(self.came.is_empty(), "{}", self.came.escape_ascii());
    }
}

async fn started() -> Served {
    started_with(Limits::default()).await
}

async fn started_with(limits: Limits) -> Served {
    let s = serve_with(limits).await;
    ask("PUT", "/buck").send(&s).await.ok();
    s
}

#[test]
fn a_body_that_is_asked_for() {
    run(async {
        let s = started().await;
        for length in [1, LARGE] {
            let request = put("k", &vec![7; length]);
            let mut peer = Peer::connect(&s).await;
            peer.say(request.head(s.addr).0.as_bytes()).await;
            peer.hears(CONTINUE).await;
            peer.say(&request.body).await;
            let (status, head) = peer.answer().await;
            assert_eq!(status, 200, "{head}");
            assert!(!head.contains("connection: close"), "{head}");
            peer.goes_on(&s).await;
        }
    });
}

#[test]
fn a_body_that_comes_unasked() {
    run(async {
        let s = started().await;
        for length in [1, LARGE] {
            let request = put("k", &vec![7; length]);
            let mut peer = Peer::connect(&s).await;
            let whole = [request.head(s.addr).0.as_bytes(), &request.body].concat();
            peer.say(&whole).await;
            peer.hears(CONTINUE).await;
            assert_eq!(peer.answer().await.0, 200);
            peer.goes_on(&s).await;
        }
    });
}

/// Clients that were answered without having been asked for the body take the next answer on the
/// connection for the same one (botocore), or do not know whether they must send the body: the
/// answer says that the connection ends.
#[test]
fn an_answer_instead_of_asking() {
    run(async {
        let s = started().await;
        let request = refused(b"never sent");
        let mut peer = Peer::connect(&s).await;
        peer.say(request.head(s.addr).0.as_bytes()).await;
        let (status, head) = peer.answer().await;
        assert_eq!(status, 403, "{head}");
        assert!(head.contains("connection: close"), "{head}");
        peer.ends().await;
    });
}

/// An empty body is not asked for, so that its answer is one of those.
#[test]
fn an_empty_body() {
    run(async {
        let s = started().await;
        let request = put("empty", b"").header("content-length", "0");
        let mut peer = Peer::connect(&s).await;
        peer.say(request.head(s.addr).0.as_bytes()).await;
        let (status, head) = peer.answer().await;
        assert_eq!(status, 200, "{head}");
        assert!(head.contains("connection: close"), "{head}");
        peer.ends().await;
    });
}

/// The answer arrives whole although nothing reads the body that was sent with the head.
#[test]
fn an_answer_to_a_body_that_comes_unasked() {
    run(async {
        let s = started().await;
        for length in [1, LARGE] {
            let request = refused(&vec![7; length]);
            let mut peer = Peer::connect(&s).await;
            let whole = [request.head(s.addr).0.as_bytes(), &request.body].concat();
            peer.say(&whole).await;
            let (status, head) = peer.answer().await;
            assert_eq!(status, 403, "{head}");
            assert!(head.contains("connection: close"), "{head}");
            peer.ends().await;
        }
    });
}

/// A request that waits for its turn asks for its body late, when the peer has sent it already.
#[test]
fn a_body_that_is_read_late() {
    run(async {
        let s = started_with(Limits { requests: 1, ..Limits::default() }).await;
        for length in [1, LARGE] {
            let first = put("first", b"first");
            let mut holder = Peer::connect(&s).await;
            holder.say(first.head(s.addr).0.as_bytes()).await;
            holder.hears(CONTINUE).await;
            let request = put("k", &vec![7; length]);
            let mut peer = Peer::connect(&s).await;
            let head = request.head(s.addr).0;
            let late = async {
                peer.say(&[head.as_bytes(), &request.body].concat()).await;
                peer.hears(CONTINUE).await;
                assert_eq!(peer.answer().await.0, 200);
            };
            let lets_go = async {
                // Both heads have come, and the body has no reader.
                for _ in 0..200 {
                    tokio::task::yield_now().await;
                }
                holder.say(&first.body).await;
                assert_eq!(holder.answer().await.0, 200);
            };
            tokio::join!(late, lets_go);
            peer.goes_on(&s).await;
            holder.goes_on(&s).await;
        }
    });
}

/// A request that waits too long is refused while its body is on its way.
#[test]
fn a_refusal_while_the_body_comes() {
    run(async {
        let patience = Duration::from_millis(20);
        let s = started_with(Limits { requests: 1, patience, ..Limits::default() }).await;
        let first = put("first", b"first");
        let mut holder = Peer::connect(&s).await;
        holder.say(first.head(s.addr).0.as_bytes()).await;
        holder.hears(CONTINUE).await;
        let request = put("k", &vec![7; LARGE]);
        let mut peer = Peer::connect(&s).await;
        peer.say(&[request.head(s.addr).0.as_bytes(), &request.body].concat()).await;
        let (status, head) = peer.answer().await;
        assert_eq!(status, 503, "{head}");
        assert!(head.contains("connection: close"), "{head}");
        peer.ends().await;
        holder.say(&first.body).await;
        assert_eq!(holder.answer().await.0, 200);
        holder.goes_on(&s).await;
    });
}
