//! A gateway on loopback in front of [`memory::Memory`], and a small client.

#![allow(dead_code, reason = "each test file uses a part of it")]

pub mod memory;

use http::HeaderMap;
use memory::Memory;
use s3::sig::v4::Signer;
use s3_gateway::{Gateway, Limits, Options, listen};
use s3_layout::Layout;
use s3_layout::api::{AccessKey, User, UserId};
use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Runs a test on a reactor of one thread.
pub fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, test);
}

/// A gateway that serves until it is dropped.
pub struct Served {
    pub addr: SocketAddr,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub fn user(id: &str, email: &str) -> User {
    User {
        id: UserId::parse(id),
        display_name: format!("Name of {id}"),
        email: email.to_owned(),
        keys: vec![AccessKey {
            id: format!("KEY{}", id.to_uppercase()),
            secret: format!("secret of {id}"),
            subuser: String::new(),
        }],
        ..User::default()
    }
}

/// Users `a` and `b`.
pub async fn serve(options: Options) -> Served {
    let memory = Memory::default();
    for id in ["a", "b"] {
        memory.create_user(&user(id, &format!("{id}@example"))).await.unwrap();
    }
    let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let addr = listener.local_addr().unwrap();
    let gateway = Gateway::new(memory, options);
    let task = tokio::task::spawn_local(gateway.serve(listener, std::future::pending()));
    Served { addr, task }
}

pub async fn serve_with(limits: Limits) -> Served {
    serve(Options { limits, ..Options::default() }).await
}

/// An answer.
#[derive(Debug)]
pub struct Got {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

impl Got {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map(|v| v.to_str().unwrap()).unwrap_or_default()
    }

    /// The text of the first element of this name.
    pub fn element(&self, name: &str) -> String {
        self.elements(name).into_iter().next().unwrap_or_default()
    }

    /// The texts of all elements of this name.
    pub fn elements(&self, name: &str) -> Vec<String> {
        let text = self.text();
        let (open, close) = (format!("<{name}>"), format!("</{name}>"));
        let parts = text.split(&open).skip(1);
        parts.filter_map(|p| Some(p.split_once(&close)?.0.to_owned())).collect()
    }

    #[track_caller]
    pub fn ok(self) -> Got {
        assert!(self.status < 300, "{} {}", self.status, self.text());
        self
    }

    #[track_caller]
    pub fn refused(self, status: u16, code: &str) -> Got {
        assert_eq!((self.status, self.element("Code").as_str()), (status, code), "{}", self.text());
        self
    }
}

pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// Reads one answer. `only_head` for answers to HEAD.
pub async fn read_answer(stream: &mut TcpStream, only_head: bool) -> Option<Got> {
    let mut bytes = Vec::new();
    let mut piece = vec![0; 64 << 10];
    loop {
        if let Some(at) = bytes.windows(4).position(|w| w == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..at]).into_owned();
            let mut lines = head.split("\r\n");
            let status: u16 = lines.next()?.split(' ').nth(1)?.parse().ok()?;
            let mut headers = HeaderMap::new();
            for line in lines {
                let (name, value) = line.split_once(':')?;
                let name = http::HeaderName::from_bytes(name.as_bytes()).ok()?;
                let value = http::HeaderValue::from_bytes(value.trim().as_bytes()).ok()?;
                headers.append(name, value);
            }
            if status == 100 {
                bytes.drain(..at + 4);
                continue;
            }
            let length = match headers.get("content-length") {
                _ if only_head || status == 204 || status == 304 => 0,
                length => length?.to_str().ok()?.parse::<usize>().ok()?,
            };
            let end = at + 4 + length;
            if bytes.len() >= end {
                return Some(Got { status, headers, body: bytes[at + 4..end].to_vec() });
            }
        }
        let n = stream.read(&mut piece).await.ok()?;
        if n == 0 {
            return None;
        }
        bytes.extend_from_slice(&piece[..n]);
    }
}

/// A request to be sent.
#[derive(Clone, Debug)]
pub struct Ask {
    pub method: &'static str,
    pub target: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// The user; `None` sends without a signature.
    pub user: Option<&'static str>,
    /// The value of x-amz-content-sha256; computed if it is not given.
    pub payload: Option<String>,
    /// Seconds that the sender's clock is ahead.
    pub ahead: i64,
}

pub fn ask(method: &'static str, target: &str) -> Ask {
    Ask {
        method,
        target: target.to_owned(),
        headers: Vec::new(),
        body: Vec::new(),
        user: Some("a"),
        payload: None,
        ahead: 0,
    }
}

impl Ask {
    pub fn body(mut self, body: impl AsRef<[u8]>) -> Ask {
        self.body = body.as_ref().to_vec();
        self
    }

    pub fn header(mut self, name: &str, value: &str) -> Ask {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn by(mut self, user: &'static str) -> Ask {
        self.user = Some(user);
        self
    }

    pub fn anonymous(mut self) -> Ask {
        self.user = None;
        self
    }

    pub fn payload(mut self, text: &str) -> Ask {
        self.payload = Some(text.to_owned());
        self
    }

    /// The head, and where the chain of chunk signatures begins.
    pub fn head(&self, addr: SocketAddr) -> (String, Option<s3::sig::v4::ChunkChain>) {
        let mut headers = HeaderMap::new();
        headers.insert("host", addr.to_string().parse().unwrap());
        for (n, v) in &self.headers {
            let name = http::HeaderName::from_bytes(n.as_bytes()).unwrap();
            headers.append(name, http::HeaderValue::from_bytes(v.as_bytes()).unwrap());
        }
        let (path, query) = self.target.split_once('?').unwrap_or((&self.target, ""));
        let mut chain = None;
        if let Some(user) = self.user {
            let keys = user_keys(user);
            use s3::checksum::{Algorithm, Hasher};
            let payload = self.payload.clone().unwrap_or_else(|| {
                let mut h = Hasher::new(Algorithm::Sha256);
                h.update(&self.body);
                s3::etag::hex(&h.finish().value)
            });
            let time = now().checked_add_signed(self.ahead).unwrap();
            let signed = keys.sign(self.method, path, query, &mut headers, &payload, time);
            chain = Some(signed.unwrap().chain());
        } else if let Some(payload) = &self.payload {
            headers.insert("x-amz-content-sha256", payload.parse().unwrap());
        }
        if !headers.contains_key("content-length") && !self.body.is_empty() {
            headers.insert("content-length", self.body.len().to_string().parse().unwrap());
        }
        let mut head = format!("{} {} HTTP/1.1\r\n", self.method, self.target);
        for (n, v) in &headers {
            head += &format!("{n}: {}\r\n", String::from_utf8_lossy(v.as_bytes()));
        }
        (head + "\r\n", chain)
    }

    /// [`Ask::send`] without a signature, for targets that cannot be signed.
    pub async fn send_raw(&self, served: &Served) -> Got {
        self.clone().anonymous().send(served).await
    }

    pub async fn send(&self, served: &Served) -> Got {
        self.send_behind(&self.head(served.addr).0, served).await
    }

    /// Sends the body behind a head that is there already.
    pub async fn send_behind(&self, head: &str, served: &Served) -> Got {
        let mut stream = TcpStream::connect(served.addr).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        // A gateway that refuses does not read on.
        let _ = stream.write_all(&self.body).await;
        let got = read_answer(&mut stream, self.method == "HEAD").await;
        got.unwrap_or_else(|| panic!("no answer to {} {}", self.method, self.target))
    }
}

pub fn user_keys(user: &str) -> Signer {
    Signer {
        access_key: format!("KEY{}", user.to_uppercase()),
        secret: format!("secret of {user}"),
        region: "us-east-1".to_owned(),
    }
}
