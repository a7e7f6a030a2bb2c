//! Bad input: the gateway answers with S3's error or ends the connection, stores nothing, and
//! serves others meanwhile.

mod common;

use common::{Served, ask, read_answer, run, serve_with};
use s3_gateway::Limits;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A peer may be silent for so long in these tests.
const IDLE: Duration = Duration::from_millis(300);

async fn started() -> Served {
    let s = serve_with(Limits { idle: IDLE, connections: 40, ..Limits::default() }).await;
    ask("PUT", "/buck").send(&s).await.ok();
    s
}

async fn is_empty(s: &Served) {
    let list = ask("GET", "/buck").send(s).await.ok();
    assert_eq!(list.elements("Key"), Vec::<String>::new());
}

/// Whether the peer closes the connection; what it says before is thrown away.
async fn closes(stream: &mut TcpStream) -> bool {
    let mut sink = vec![0; 4096];
    let end = async {
        while let Ok(n) = stream.read(&mut sink).await {
            if n == 0 {
                break;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), end).await.is_ok()
}

#[test]
fn signatures() {
    run(async {
        let s = started().await;
        let (head, _) = ask("PUT", "/buck/k").body("x").head(s.addr);
        let send = |head: String| async move {
            let mut stream = TcpStream::connect(s.addr).await.unwrap();
            stream.write_all(head.as_bytes()).await.unwrap();
            let _ = stream.write_all(b"x").await;
            read_answer(&mut stream, false).await.unwrap()
        };
        // The signature of another request: another key, and a header that was added.
        send(head.replace("/buck/k", "/buck/l")).await.refused(403, "SignatureDoesNotMatch");
        send(head.replace("\r\n\r\n", "\r\nx-amz-acl: public-read\r\n\r\n"))
            .await
            .refused(403, "AccessDenied");
        send(head.replace("Credential=KEYA", "Credential=KEYX"))
            .await
            .refused(403, "InvalidAccessKeyId");
        send(head.replace("Signature=", "Signature=zz"))
            .await
            .refused(400, "AuthorizationHeaderMalformed");
        send(head.replace("AWS4-HMAC-SHA256", "Basic")).await.refused(400, "InvalidArgument");
        for ahead in [-3600, 3600] {
            let mut late = ask("PUT", "/buck/k").body("x");
            late.ahead = ahead;
            late.send(&s).await.refused(403, "RequestTimeTooSkewed");
        }
        is_empty(&s).await;
    });
}

#[test]
fn bodies_that_are_not_what_was_said() {
    run(async {
        let s = started().await;
        // The body differs from what was signed, or from what its sums say.
        let mut other = ask("PUT", "/buck/k").body("abc").payload(&"0".repeat(64));
        other.send(&s).await.refused(400, "XAmzContentSHA256Mismatch");
        other.payload = None;
        other
            .clone()
            .header("content-md5", "AAAAAAAAAAAAAAAAAAAAAA==")
            .send(&s)
            .await
            .refused(400, "BadDigest");
        other.clone().header("content-md5", "AAAA").send(&s).await.refused(400, "InvalidDigest");
        other
            .clone()
            .header("x-amz-checksum-crc32", "AAAAAA==")
            .send(&s)
            .await
            .refused(400, "BadDigest");
        // Shorter than said: the peer goes away in the middle.
        let (head, _) = ask("PUT", "/buck/k")
            .payload("UNSIGNED-PAYLOAD")
            .header("content-length", "1000")
            .head(s.addr);
        let mut stream = TcpStream::connect(s.addr).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(b"only this").await.unwrap();
        stream.shutdown().await.unwrap();
        assert!(closes(&mut stream).await);
        // Shorter than said: the peer stays and says nothing.
        let mut stream = TcpStream::connect(s.addr).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(b"only this").await.unwrap();
        let got = read_answer(&mut stream, false).await.unwrap();
        got.refused(400, "RequestTimeout");
        assert!(closes(&mut stream).await);
        // Longer than said in the chunked form, and shorter.
        for said in ["3", "300"] {
            let mut chunked = ask("PUT", "/buck/k")
                .payload("STREAMING-UNSIGNED-PAYLOAD-TRAILER")
                .header("x-amz-decoded-content-length", said);
            chunked.body = b"a\r\n0123456789\r\n0\r\n\r\n".to_vec();
            chunked.send(&s).await.refused(400, "IncompleteBody");
        }
        // No length at all, one that is too large, and a body in HTTP's chunks that is cut.
        let none = ask("PUT", "/buck/k").payload("UNSIGNED-PAYLOAD");
        none.send(&s).await.refused(411, "MissingContentLength");
        let cut = none.header("transfer-encoding", "chunked");
        let (head, _) = cut.head(s.addr);
        let mut stream = TcpStream::connect(s.addr).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(b"4\r\nabcd\r\n").await.unwrap();
        stream.shutdown().await.unwrap();
        assert!(closes(&mut stream).await);
        let huge = ask("PUT", "/buck/k")
            .payload("UNSIGNED-PAYLOAD")
            .header("content-length", "99999999999");
        huge.send(&s).await.refused(400, "EntityTooLarge");
        is_empty(&s).await;
    });
}

#[test]
fn slow_peers_are_given_up() {
    run(async {
        let s = started().await;
        // A body that comes byte by byte never stands still, and never ends.
        let (head, _) = ask("PUT", "/buck/k")
            .payload("UNSIGNED-PAYLOAD")
            .header("content-length", "1000000")
            .head(s.addr);
        let (mut read, mut write) = TcpStream::connect(s.addr).await.unwrap().into_split();
        write.write_all(head.as_bytes()).await.unwrap();
        let dribble = tokio::task::spawn_local(async move {
            while write.write_all(b"x").await.is_ok() {
                tokio::time::sleep(IDLE / 10).await;
            }
        });
        let mut answer = vec![0; 4096];
        let n = read.read(&mut answer).await.unwrap();
        let text = String::from_utf8_lossy(&answer[..n]).into_owned();
        assert!(text.contains("<Code>RequestTimeout</Code>"), "{text}");
        dribble.abort();
        // A peer that takes no answer: many megabytes do not fit into buffers of sockets.
        ask("PUT", "/buck/long").body(vec![1; 32 << 20]).send(&s).await.ok();
        let (head, _) = ask("GET", "/buck/long").head(s.addr);
        let mut stream = TcpStream::connect(s.addr).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        tokio::time::sleep(IDLE * 3).await;
        let mut total = 0;
        let mut piece = vec![0; 1 << 20];
        while let Ok(n) = stream.read(&mut piece).await {
            if n == 0 {
                break;
            }
            total += n;
        }
        assert!(total < 32 << 20, "the answer came as a whole");
        // Connections that say nothing, or half a head, are closed.
        let mut silent = Vec::new();
        for half in ["", "GET /buck HTTP/1.1\r\nhost: x\r\n"] {
            let mut stream = TcpStream::connect(s.addr).await.unwrap();
            stream.write_all(half.as_bytes()).await.unwrap();
            silent.push(stream);
        }
        for mut stream in silent {
            assert!(closes(&mut stream).await);
        }
        ask("DELETE", "/buck/long").send(&s).await;
        is_empty(&s).await;
    });
}

#[test]
fn connections_are_bounded() {
    run(async {
        let limits = Limits { connections: 10, ..Limits::default() };
        let s = serve_with(limits).await;
        let mut held = Vec::new();
        for _ in 0..10 {
            held.push(TcpStream::connect(s.addr).await.unwrap());
        }
        let mut further = TcpStream::connect(s.addr).await.unwrap();
        assert!(closes(&mut further).await);
        drop(held);
        // Room comes back.
        loop {
            let mut stream = TcpStream::connect(s.addr).await.unwrap();
            let (head, _) = ask("GET", "/").head(s.addr);
            if stream.write_all(head.as_bytes()).await.is_ok()
                && let Some(got) = read_answer(&mut stream, false).await
            {
                got.ok();
                break;
            }
        }
    });
}

#[test]
fn heads_and_documents() {
    run(async {
        let s = started().await;
        // A head beyond all bounds; some answer or a closed connection, and the service goes on.
        let mut stream = TcpStream::connect(s.addr).await.unwrap();
        let head =
            format!("GET /buck HTTP/1.1\r\nhost: x\r\nx-amz-meta-a: {}\r\n", "a".repeat(1 << 20));
        let _ = stream.write_all(head.as_bytes()).await;
        assert!(closes(&mut stream).await);
        let mut stream = TcpStream::connect(s.addr).await.unwrap();
        stream.write_all(b"\x16\x03\x01 this is no HTTP\r\n\r\n").await.unwrap();
        assert!(closes(&mut stream).await);
        let metadata =
            ask("PUT", "/buck/k").body("x").header("x-amz-meta-a", &"a".repeat(40 << 10));
        metadata.send(&s).await.refused(400, "MetadataTooLarge");
        let parameters = format!("/buck?{}", "a=1&".repeat(300));
        ask("GET", &parameters).send_raw(&s).await.refused(400, "InvalidURI");
        ask("GET", "/buck/%zz").send_raw(&s).await.refused(400, "InvalidURI");
        ask("GET", "/buck/%ff").send_raw(&s).await.refused(400, "InvalidURI");
        // Documents.
        let deep = format!("{}{}", "<Delete>".repeat(10_000), "</Delete>".repeat(10_000));
        let wide = format!("<Delete>{}</Delete>", "<Object/>".repeat(1001));
        let entities =
            "<!DOCTYPE a [<!ENTITY b \"c\">]><Delete><Object><Key>&b;</Key></Object></Delete>";
        for bad in ["", "x", "<Delete>", &deep, &wide, entities, "<Delete><Object/></Delete>"] {
            ask("POST", "/buck?delete").body(bad).send(&s).await.refused(400, "MalformedXML");
        }
        let long = vec![b' '; 5 << 20];
        ask("POST", "/buck?delete")
            .body(&long)
            .send(&s)
            .await
            .refused(400, "MaxMessageLengthExceeded");
        ask("PUT", "/buck?policy")
            .body(&long[..30 << 10])
            .send(&s)
            .await
            .refused(400, "MaxMessageLengthExceeded");
        ask("PUT", "/buck?versioning")
            .body("<VersioningConfiguration/>")
            .send(&s)
            .await
            .refused(400, "IllegalVersioningConfigurationException");
        is_empty(&s).await;
    });
}

#[test]
fn odd_keys() {
    run(async {
        let s = started().await;
        let long = "k".repeat(1024);
        let keys = [
            "/",
            "//",
            "a//b",
            ".",
            "../..",
            "\u{1}\u{7f}\n",
            "\u{1f600}\u{e4}",
            "a?b#c&d=e",
            "%2F",
            "+ +",
            &long,
        ];
        let mut names: Vec<String> = Vec::new();
        for key in keys {
            let path = format!("/buck/{}", s3::uri::encode(key.as_bytes(), true));
            ask("PUT", &path).body(key).send(&s).await.ok();
            assert_eq!(ask("GET", &path).send(&s).await.ok().text(), key);
            names.push(s3::uri::encode(key.as_bytes(), true));
        }
        names.sort_by_key(|n| s3::uri::decode_text(n, false).unwrap());
        let list = ask("GET", "/buck?encoding-type=url").send(&s).await.ok();
        assert_eq!(list.elements("Key"), names);
        ask("PUT", &format!("/buck/{long}k"))
            .body("x")
            .send(&s)
            .await
            .refused(400, "KeyTooLongError");
        ask("PUT", "/buck/a%00b").body("x").send(&s).await.refused(400, "InvalidArgument");
    });
}
