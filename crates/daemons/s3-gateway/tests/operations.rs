//! The operations of the gateway over HTTP, in front of a layout in memory.

mod common;

use common::{Served, ask, now, read_answer, run, serve, user_keys};
use s3::checksum::{Algorithm, Hasher};
use s3::chunked::Encoder;
use s3_gateway::Options;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

async fn started() -> Served {
    let s = serve(Options { domains: vec!["s3.example".into()], ..Options::default() }).await;
    ask("PUT", "/buck").send(&s).await.ok();
    s
}

#[test]
fn buckets() {
    run(async {
        let s = started().await;
        ask("PUT", "/buck").send(&s).await.ok();
        ask("PUT", "/buck").by("b").send(&s).await.refused(409, "BucketAlreadyExists");
        // A repetition gives the same rights, or none.
        ask("PUT", "/buck").send(&s).await.ok();
        let open = ask("PUT", "/buck").header("x-amz-acl", "public-read");
        open.send(&s).await.refused(409, "BucketAlreadyExists");
        let got = ask("GET", "/buck?location").send(&s).await.ok();
        assert!(got.text().ends_with(">default</LocationConstraint>"), "{}", got.text());
        ask("PUT", "/Buck").send(&s).await.refused(400, "InvalidBucketName");
        let location = "<CreateBucketConfiguration><LocationConstraint>here:fast</LocationConstraint></CreateBucketConfiguration>";
        ask("PUT", "/second").body(location).send(&s).await.ok();
        let got = ask("GET", "/second?location").send(&s).await.ok();
        assert!(got.text().ends_with(">here</LocationConstraint>"), "{}", got.text());
        let got = ask("GET", "/").send(&s).await.ok();
        assert_eq!(got.elements("Name"), ["buck", "second"]);
        assert_eq!(got.element("DisplayName"), "Name of a");
        let got = ask("GET", "/?max-buckets=1").send(&s).await.ok();
        assert_eq!(got.elements("Name"), ["buck"]);
        let token = got.element("ContinuationToken");
        let got = ask("GET", &format!("/?continuation-token={token}")).send(&s).await.ok();
        assert_eq!(got.elements("Name"), ["second"]);
        let none = ask("GET", "/").anonymous().send(&s).await.ok();
        assert_eq!(none.elements("Name"), Vec::<String>::new());
        ask("HEAD", "/buck").send(&s).await.ok();
        let stats = ask("HEAD", "/buck?read-stats=true").send(&s).await.ok();
        assert_eq!(stats.header("x-rgw-object-count"), "0");
        assert_eq!(stats.header("x-rgw-quota-user-size"), "-1");
        ask("PUT", "/second/5000").body(vec![b'x'; 5000]).send(&s).await.ok();
        let usage = ask("GET", "/?usage").send(&s).await.ok();
        assert_eq!(usage.elements("Bucket"), ["buck", "second"]);
        // As stock's: in no namespace.
        assert!(usage.text().contains("<Usage>"), "{}", usage.text());
        assert_eq!(usage.elements("Bytes"), ["0", "5000"]);
        assert_eq!(usage.elements("Bytes_Rounded"), ["0", "8192"]);
        for (name, value) in [
            ("QuotaMaxBytes", "-1"),
            ("QuotaMaxObjCountPerBucket", "-1"),
            ("TotalBytes", "5000"),
            ("TotalBytesRounded", "8192"),
            ("TotalEntries", "1"),
        ] {
            assert_eq!(usage.element(name), value, "{name}");
        }
        assert_eq!(
            ask("GET", "/?usage").by("b").send(&s).await.ok().elements("Bucket"),
            Vec::<String>::new()
        );
        ask("GET", "/?usage").anonymous().send(&s).await.refused(403, "AccessDenied");
        ask("DELETE", "/second/5000").send(&s).await;
        assert_eq!(ask("HEAD", "/buck").by("b").send(&s).await.status, 403);
        let gone = ask("HEAD", "/nothing").send(&s).await;
        assert_eq!((gone.status, gone.body.len()), (404, 0));
        ask("PUT", "/buck/k").body("x").send(&s).await.ok();
        ask("DELETE", "/buck").send(&s).await.refused(409, "BucketNotEmpty");
        assert_eq!(ask("DELETE", "/second").send(&s).await.status, 204);
        ask("GET", "/second").send(&s).await.refused(404, "NoSuchBucket");
    });
}

#[test]
fn objects() {
    run(async {
        let s = started().await;
        let put = ask("PUT", "/buck/a%20b/%C3%A4+")
            .body("0123456789")
            .header("content-type", "text/x")
            .header("cache-control", "no-store")
            .header("x-amz-meta-One", "1")
            .send(&s)
            .await
            .ok();
        assert_eq!(put.header("etag"), "\"781e5e245d69b566979b86e28d23f2c7\"");
        let got = ask("GET", "/buck/a%20b/%C3%A4+").send(&s).await.ok();
        assert_eq!((got.text().as_str(), got.header("content-type")), ("0123456789", "text/x"));
        assert_eq!(got.header("x-amz-meta-one"), "1");
        assert_eq!(got.header("cache-control"), "no-store");
        assert!(!got.header("x-amz-request-id").is_empty());
        let range = |r: &'static str| ask("GET", "/buck/a%20b/%C3%A4+").header("range", r);
        let got = range("bytes=2-4").send(&s).await;
        assert_eq!((got.status, got.text().as_str()), (206, "234"));
        assert_eq!(got.header("content-range"), "bytes 2-4/10");
        assert_eq!(range("bytes=-3").send(&s).await.text(), "789");
        assert_eq!(range("bytes=8-100").send(&s).await.text(), "89");
        range("bytes=10-").send(&s).await.refused(416, "InvalidRange");
        assert_eq!(range("lines=1-2").send(&s).await.status, 200);
        let head = ask("HEAD", "/buck/a%20b/%C3%A4+").send(&s).await.ok();
        assert_eq!((head.header("content-length"), head.body.len()), ("10", 0));
        // Conditions.
        let tag = put.header("etag").to_owned();
        let with = |n: &str, v: &str| ask("GET", "/buck/a%20b/%C3%A4+").header(n, v);
        let same = with("if-none-match", &tag).send(&s).await;
        assert_eq!((same.status, same.header("etag")), (304, tag.as_str()));
        with("if-match", "\"x\"").send(&s).await.refused(412, "PreconditionFailed");
        with("if-match", &tag).send(&s).await.ok();
        let never = ask("PUT", "/buck/a%20b/%C3%A4+").header("if-none-match", "*").body("n");
        never.send(&s).await.refused(412, "PreconditionFailed");
        ask("PUT", "/buck/new").header("if-none-match", "*").body("n").send(&s).await.ok();
        ask("PUT", "/buck/none")
            .body("n")
            .header("if-match", "\"x\"")
            .send(&s)
            .await
            .refused(404, "NoSuchKey");
        ask("DELETE", "/buck/new")
            .header("if-match", "\"x\"")
            .send(&s)
            .await
            .refused(412, "PreconditionFailed");
        // Conditions of deletions: nothing is as good as deleted.
        for (name, value) in [
            ("x-amz-if-match-size", "2"),
            ("x-amz-if-match-last-modified-time", "Thu, 01 Jan 2015 00:00:00 GMT"),
        ] {
            let other = |key: &str| ask("DELETE", key).header(name, value);
            other("/buck/new").send(&s).await.refused(412, "PreconditionFailed");
            assert_eq!(other("/buck/none").send(&s).await.status, 204);
        }
        let bad = ask("DELETE", "/buck/new").header("x-amz-if-match-size", "few");
        bad.send(&s).await.refused(400, "InvalidArgument");
        // Answers that the sender chooses.
        let chosen = "/buck/a%20b/%C3%A4+?response-content-type=a%2Fb&response-expires=never";
        let got = ask("GET", chosen).send(&s).await.ok();
        assert_eq!((got.header("content-type"), got.header("expires")), ("a/b", "never"));
        assert_eq!(ask("DELETE", "/buck/new").send(&s).await.status, 204);
        assert_eq!(ask("DELETE", "/buck/new").send(&s).await.status, 204);
        ask("GET", "/buck/new").send(&s).await.refused(404, "NoSuchKey");
        // An empty object, and one that is longer than a piece.
        ask("PUT", "/buck/empty").header("content-length", "0").send(&s).await.ok();
        let got = ask("GET", "/buck/empty").send(&s).await.ok();
        assert_eq!((got.body.len(), got.header("content-type")), (0, "binary/octet-stream"));
        let long: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
        ask("PUT", "/buck/long").body(&long).send(&s).await.ok();
        assert!(ask("GET", "/buck/long").send(&s).await.ok().body == long);
        // A body in HTTP's own chunks does not say its length.
        let chunked = ask("PUT", "/buck/chunks")
            .payload("UNSIGNED-PAYLOAD")
            .header("transfer-encoding", "chunked");
        let (head, _) = chunked.head(s.addr);
        let mut stream = TcpStream::connect(s.addr).await.unwrap();
        stream
            .write_all(format!("{head}4\r\nabcd\r\n2\r\nef\r\n0\r\n\r\n").as_bytes())
            .await
            .unwrap();
        read_answer(&mut stream, false).await.unwrap().ok();
        assert_eq!(ask("GET", "/buck/chunks").send(&s).await.text(), "abcdef");
        let other = ask("GET", "/buck/long").header("x-amz-expected-bucket-owner", "b");
        other.send(&s).await.refused(403, "AccessDenied");
        // What is not there is refused and not ignored.
        let sse = ask("PUT", "/buck/e").body("x").header("x-amz-server-side-encryption", "AES256");
        sse.send(&s).await.refused(501, "NotImplemented");
        ask("POST", "/buck/long?select&select-type=2")
            .body("x")
            .send(&s)
            .await
            .refused(501, "NotImplemented");
        ask("PUT", "/buck?website").body("x").send(&s).await.refused(501, "NotImplemented");
    });
}

#[test]
fn lists_page_through_all_keys() {
    run(async {
        let s = started().await;
        let keys = ["a", "b/1", "b/2", "c&<d", "d/e/f", "d/g", "e f", "z+z"];
        for k in keys {
            let k = s3::uri::encode(k.as_bytes(), true);
            ask("PUT", &format!("/buck/{k}")).body(&k).send(&s).await.ok();
        }
        let got = ask("GET", "/buck?list-type=2").send(&s).await.ok();
        let escaped: Vec<String> =
            keys.iter().map(|k| k.replace('&', "&amp;").replace('<', "&lt;")).collect();
        assert_eq!(got.elements("Key"), escaped);
        assert_eq!(got.element("KeyCount"), "8");
        // Page by page, rolled up.
        for version in ["", "list-type=2&"] {
            let (mut seen, mut marker) = (Vec::new(), String::new());
            loop {
                let t =
                    format!("/buck?{version}delimiter=%2F&max-keys=2&encoding-type=url{marker}");
                let got = ask("GET", &t).send(&s).await.ok();
                let mut names = got.elements("Key");
                names.extend(
                    got.elements("CommonPrefixes")
                        .iter()
                        .map(|p| p.replace("<Prefix>", "").replace("</Prefix>", "")),
                );
                assert!(names.len() <= 2, "{names:?}");
                names.sort();
                seen.extend(names);
                if got.element("IsTruncated") == "false" {
                    break;
                }
                marker = if version.is_empty() {
                    format!("&marker={}", got.element("NextMarker"))
                } else {
                    format!("&continuation-token={}", got.element("NextContinuationToken"))
                };
            }
            assert_eq!(seen, ["a", "b/", "c%26%3Cd", "d/", "e%20f", "z%2Bz"]);
        }
        let got = ask("GET", "/buck?prefix=d%2F&delimiter=%2F").send(&s).await.ok();
        assert_eq!(got.elements("Key"), ["d/g"]);
        assert!(got.text().contains("<CommonPrefixes><Prefix>d/e/</Prefix></CommonPrefixes>"));
        let got =
            ask("GET", "/buck?list-type=2&start-after=d%2Fg&fetch-owner=true").send(&s).await.ok();
        assert_eq!(got.elements("Key"), ["e f", "z+z"]);
        assert_eq!(got.element("ID"), "a");
        let none = ask("GET", "/buck?max-keys=0").send(&s).await.ok();
        assert_eq!(
            (none.elements("Key").len(), none.element("IsTruncated").as_str()),
            (0, "false")
        );
        for bad in ["max-keys=x", "max-keys=-1", "encoding-type=rot13"] {
            ask("GET", &format!("/buck?{bad}")).send(&s).await.refused(400, "InvalidArgument");
        }
        ask("GET", "/buck?list-type=2&continuation-token=%21")
            .send(&s)
            .await
            .refused(400, "InvalidArgument");
    });
}

#[test]
fn versions_and_delete_markers() {
    run(async {
        let s = started().await;
        ask("PUT", "/buck/k").body("null").send(&s).await.ok();
        let on = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
        ask("PUT", "/buck?versioning").body(on).send(&s).await.ok();
        assert_eq!(ask("GET", "/buck?versioning").send(&s).await.ok().element("Status"), "Enabled");
        let one = ask("PUT", "/buck/k").body("one").send(&s).await.ok();
        let one = one.header("x-amz-version-id").to_owned();
        let gone = ask("DELETE", "/buck/k").send(&s).await;
        assert_eq!((gone.status, gone.header("x-amz-delete-marker")), (204, "true"));
        let marker = gone.header("x-amz-version-id").to_owned();
        let got = ask("GET", "/buck/k").send(&s).await;
        assert_eq!(got.header("x-amz-delete-marker"), "true");
        got.refused(404, "NoSuchKey");
        let got = ask("GET", &format!("/buck/k?versionId={marker}")).send(&s).await;
        got.refused(405, "MethodNotAllowed");
        assert_eq!(ask("GET", &format!("/buck/k?versionId={one}")).send(&s).await.text(), "one");
        assert_eq!(ask("GET", "/buck/k?versionId=null").send(&s).await.text(), "null");
        ask("GET", "/buck/k?versionId=").send(&s).await.refused(400, "InvalidArgument");
        ask("GET", "/buck/k?versionId=x").send(&s).await.refused(404, "NoSuchVersion");
        let list = ask("GET", "/buck?versions").send(&s).await.ok();
        assert_eq!(list.elements("VersionId"), [marker.as_str(), &one, "null"]);
        assert_eq!(list.elements("IsLatest"), ["true", "false", "false"]);
        assert_eq!(list.elements("DeleteMarker").len(), 1);
        let first = ask("GET", "/buck?versions&max-keys=1").send(&s).await.ok();
        let next = format!(
            "/buck?versions&key-marker={}&version-id-marker={}",
            first.element("NextKeyMarker"),
            first.element("NextVersionIdMarker")
        );
        let rest = ask("GET", &next).send(&s).await.ok();
        assert_eq!(rest.elements("VersionId"), [one.as_str(), "null"]);
        let back = ask("DELETE", &format!("/buck/k?versionId={marker}")).send(&s).await;
        assert_eq!(back.header("x-amz-delete-marker"), "true");
        assert_eq!(ask("GET", "/buck/k").send(&s).await.ok().text(), "one");
        let copy = ask("PUT", "/buck/k").header("x-amz-copy-source", "buck/k?versionId=null");
        let copy = copy.send(&s).await.ok();
        assert_eq!(copy.header("x-amz-copy-source-version-id"), "");
        assert_eq!(ask("GET", "/buck/k").send(&s).await.ok().text(), "null");
    });
}

#[test]
fn many_are_deleted_at_once() {
    run(async {
        let s = started().await;
        let mut doc = "<Delete xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">".to_owned();
        for i in 0..100 {
            ask("PUT", &format!("/buck/{i}")).body("x").send(&s).await.ok();
            doc += &format!("<Object><Key>{i}</Key></Object>");
        }
        doc += "</Delete>";
        let refused = ask("POST", "/buck?delete").by("b").body(&doc).send(&s).await.ok();
        assert_eq!(refused.elements("Error").len(), 100);
        assert_eq!(refused.element("Code"), "AccessDenied");
        let got = ask("POST", "/buck?delete").body(&doc).send(&s).await.ok();
        let numbers: Vec<String> = (0..100).map(|i| i.to_string()).collect();
        assert_eq!(got.elements("Key"), numbers);
        assert_eq!(ask("GET", "/buck").send(&s).await.ok().elements("Key").len(), 0);
        // Blanks around a key belong to it.
        for key in ["%20", "%20x%20"] {
            ask("PUT", &format!("/buck/{key}")).body("x").send(&s).await.ok();
        }
        let blank =
            "<Delete><Object>\n<Key> </Key></Object><Object><Key> x </Key>\n</Object></Delete>";
        let got = ask("POST", "/buck?delete").body(blank).send(&s).await.ok();
        assert_eq!(got.elements("Key"), [" ", " x "]);
        assert_eq!(ask("GET", "/buck").send(&s).await.ok().elements("Key").len(), 0);
        let quiet = "<Delete><Quiet>true</Quiet><Object><Key>1</Key></Object></Delete>";
        let got = ask("POST", "/buck?delete").body(quiet).send(&s).await.ok();
        assert_eq!(got.elements("Deleted").len(), 0);
        ask("POST", "/buck?delete").body("<Delete/>").send(&s).await.refused(400, "MalformedXML");
    });
}

#[test]
fn uploads_in_parts() {
    run(async {
        let s = started().await;
        let begun = ask("POST", "/buck/big?uploads")
            .header("x-amz-meta-a", "1")
            .header("x-amz-checksum-algorithm", "CRC32")
            .header("x-amz-checksum-type", "FULL_OBJECT")
            .send(&s)
            .await
            .ok();
        let id = begun.element("UploadId");
        let part = |n: u32, data: &[u8]| {
            ask("PUT", &format!("/buck/big?partNumber={n}&uploadId={id}")).body(data)
        };
        let data = vec![7; 5 << 20];
        let one = part(1, &data).send(&s).await.ok();
        let two = part(2, b"tail").send(&s).await.ok();
        part(0, b"x").send(&s).await.refused(400, "InvalidArgument");
        part(10_001, b"x").send(&s).await.refused(400, "InvalidArgument");
        let other = part(3, b"x")
            .header("x-amz-checksum-sha256", "LXEWQrcmsEQBYnyp+6wy9chTD7GQPMTbAiWHF5IaSIE=");
        other.send(&s).await.refused(400, "InvalidRequest");
        let source = ask("PUT", &format!("/buck/big?partNumber=3&uploadId={id}"));
        ask("PUT", "/buck/src").body("0123456789").send(&s).await.ok();
        let copied = source
            .clone()
            .header("x-amz-copy-source", "/buck/src")
            .header("x-amz-copy-source-range", "bytes=1-3")
            .send(&s)
            .await
            .ok();
        assert_eq!(copied.element("ETag"), "&quot;202cb962ac59075b964b07152d234b70&quot;");
        let beyond = source
            .header("x-amz-copy-source", "/buck/src")
            .header("x-amz-copy-source-range", "bytes=1-10");
        beyond.send(&s).await.refused(416, "InvalidRange");
        let parts = ask("GET", &format!("/buck/big?uploadId={id}&max-parts=2")).send(&s).await.ok();
        assert_eq!(parts.elements("PartNumber"), ["1", "2"]);
        assert_eq!(parts.element("NextPartNumberMarker"), "2");
        let uploads = ask("GET", "/buck?uploads").send(&s).await.ok();
        assert_eq!(uploads.elements("UploadId"), [id.as_str()]);
        let document = |list: &[(u32, &str)]| {
            let parts: String = list
                .iter()
                .map(|(n, e)| format!("<Part><PartNumber>{n}</PartNumber><ETag>{e}</ETag></Part>"))
                .collect();
            format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>")
        };
        let complete = |doc: String| ask("POST", &format!("/buck/big?uploadId={id}")).body(doc);
        let (one, two) = (one.header("etag").to_owned(), two.header("etag").to_owned());
        complete(document(&[(2, &two), (1, &one)])).send(&s).await.refused(400, "InvalidPartOrder");
        complete(document(&[(1, &one), (3, "x")])).send(&s).await.refused(400, "InvalidPart");
        complete(document(&[(2, &two), (3, &copied.element("ETag"))]))
            .send(&s)
            .await
            .refused(400, "EntityTooSmall");
        let right = || complete(document(&[(1, &one), (2, &two)]));
        right().header("x-amz-mp-object-size", "7").send(&s).await.refused(400, "InvalidRequest");
        right().header("x-amz-checksum-crc32", "AAAAAA==").send(&s).await.refused(400, "BadDigest");
        right().header("if-match", "\"x\"").send(&s).await.refused(404, "NoSuchKey");
        let done = right().header("x-amz-mp-object-size", "5242884").send(&s).await.ok();
        assert!(done.element("ETag").ends_with("-2&quot;"), "{}", done.text());
        let mut sum = Hasher::new(Algorithm::Crc32);
        sum.update(&data);
        sum.update(b"tail");
        assert_eq!(done.element("ChecksumCRC32"), sum.finish().text());
        assert_eq!(done.element("ChecksumType"), "FULL_OBJECT");
        complete(document(&[(1, &one)])).send(&s).await.refused(404, "NoSuchUpload");
        // A client without an answer asks again.
        assert_eq!(right().send(&s).await.ok().element("ETag"), done.element("ETag"));
        let got = ask("GET", "/buck/big?partNumber=2").send(&s).await;
        assert_eq!((got.status, got.text().as_str()), (206, "tail"));
        assert_eq!(got.header("x-amz-mp-parts-count"), "2");
        assert_eq!(got.header("content-range"), "bytes 5242880-5242883/5242884");
        let tail = ask("HEAD", "/buck/big?partNumber=2").header("x-amz-checksum-mode", "ENABLED");
        let mut sum_of_tail = Hasher::new(Algorithm::Crc32);
        sum_of_tail.update(b"tail");
        let tail = tail.send(&s).await;
        assert_eq!(tail.header("x-amz-checksum-crc32"), sum_of_tail.finish().text());
        ask("GET", "/buck/big?partNumber=3").send(&s).await.refused(400, "InvalidPart");
        let head = ask("HEAD", "/buck/big").header("x-amz-checksum-mode", "ENABLED").send(&s).await;
        assert_eq!(head.header("x-amz-checksum-type"), "FULL_OBJECT");
        let attributes = ask("GET", "/buck/big?attributes")
            .header("x-amz-object-attributes", "ETag,ObjectParts,ObjectSize,Checksum")
            .send(&s)
            .await
            .ok();
        assert_eq!(attributes.element("PartsCount"), "2");
        assert_eq!(attributes.element("ObjectSize"), "5242884");
        let again = ask("POST", "/buck/big?uploads").send(&s).await.ok().element("UploadId");
        assert_eq!(
            ask("DELETE", &format!("/buck/big?uploadId={again}")).send(&s).await.status,
            204
        );
        ask("GET", &format!("/buck/big?uploadId={again}"))
            .send(&s)
            .await
            .refused(404, "NoSuchUpload");
    });
}

#[test]
fn copies() {
    run(async {
        let s = started().await;
        ask("PUT", "/buck/src")
            .body("data")
            .header("x-amz-meta-a", "1")
            .header("x-amz-tagging", "t=1")
            .send(&s)
            .await
            .ok();
        let copy = |to: &str| ask("PUT", to).header("x-amz-copy-source", "/buck/src");
        let done = copy("/buck/dst").send(&s).await.ok();
        assert_eq!(done.element("ETag"), "&quot;8d777f385d3dfec8815d20f7496026dc&quot;");
        let got = ask("GET", "/buck/dst").send(&s).await.ok();
        assert_eq!((got.text().as_str(), got.header("x-amz-meta-a")), ("data", "1"));
        assert_eq!(got.header("x-amz-tagging-count"), "1");
        copy("/buck/src").send(&s).await.refused(400, "InvalidRequest");
        let replace = copy("/buck/src").header("x-amz-metadata-directive", "REPLACE");
        replace.header("x-amz-meta-b", "2").send(&s).await.ok();
        let got = ask("HEAD", "/buck/src").send(&s).await.ok();
        assert_eq!((got.header("x-amz-meta-a"), got.header("x-amz-meta-b")), ("", "2"));
        copy("/buck/x")
            .header("x-amz-metadata-directive", "MOVE")
            .send(&s)
            .await
            .refused(400, "InvalidArgument");
        copy("/buck/x")
            .header("x-amz-copy-source-if-match", "x")
            .send(&s)
            .await
            .refused(412, "PreconditionFailed");
        // Of what the sender may not read nothing is told.
        ask("PUT", "/other").by("b").send(&s).await.ok();
        copy("/other/x").by("b").send(&s).await.refused(403, "AccessDenied");
        let absent = ask("PUT", "/other/x").by("b").header("x-amz-copy-source", "/buck/nothing");
        absent.send(&s).await.refused(403, "AccessDenied");
        let absent = ask("PUT", "/buck/x").header("x-amz-copy-source", "/buck/nothing");
        absent.send(&s).await.refused(404, "NoSuchKey");
    });
}

#[test]
fn rights() {
    run(async {
        let s = started().await;
        ask("PUT", "/buck/k").body("x").send(&s).await.ok();
        let read = || ask("GET", "/buck/k");
        read().by("b").send(&s).await.refused(403, "AccessDenied");
        read().anonymous().send(&s).await.refused(403, "AccessDenied");
        // Canned ACLs and grants.
        ask("PUT", "/buck/k?acl").header("x-amz-acl", "public-read").send(&s).await.ok();
        read().anonymous().send(&s).await.ok();
        ask("PUT", "/buck/k?acl").header("x-amz-acl", "private").send(&s).await.ok();
        ask("PUT", "/buck/k?acl")
            .header("x-amz-grant-read", "emailAddress=\"b@example\"")
            .send(&s)
            .await
            .ok();
        read().by("b").send(&s).await.ok();
        let acl = ask("GET", "/buck/k?acl").send(&s).await.ok();
        assert_eq!(acl.elements("Permission"), ["READ"]);
        ask("PUT", "/buck/k?acl")
            .header("x-amz-grant-read", "id=nobody")
            .send(&s)
            .await
            .refused(400, "InvalidArgument");
        let doc = acl.text().replace("READ", "READ_ACP");
        ask("PUT", "/buck/k?acl").body(&doc).send(&s).await.ok();
        read().by("b").send(&s).await.refused(403, "AccessDenied");
        ask("GET", "/buck/k?acl").by("b").send(&s).await.ok();
        ask("PUT", "/buck/k?acl").send(&s).await.refused(400, "MissingSecurityHeader");
        // Policies.
        let policy = |effect: &str, action: &str| {
            format!(
                "{{\"Version\":\"2012-10-17\",\"Statement\":[{{\"Effect\":\"{effect}\",\"Principal\":\"*\",\"Action\":\"{action}\",\"Resource\":[\"arn:aws:s3:::buck\",\"arn:aws:s3:::buck/*\"]}}]}}"
            )
        };
        let set = |text: String| ask("PUT", "/buck?policy").body(text);
        assert_eq!(set(policy("Allow", "s3:GetObject")).send(&s).await.status, 204);
        read().anonymous().send(&s).await.ok();
        assert_eq!(
            ask("GET", "/buck?policyStatus").send(&s).await.ok().element("IsPublic"),
            "true"
        );
        let others = policy("Allow", "s3:GetObject").replace("Principal", "NotPrincipal");
        set(others).send(&s).await.refused(400, "MalformedPolicy");
        ask("PUT", "/buck/w").anonymous().body("x").send(&s).await.refused(403, "AccessDenied");
        set(policy("Allow", "s3:Fly")).send(&s).await.refused(400, "MalformedPolicy");
        // An owner that locked everyone out can still change the policy.
        assert_eq!(set(policy("Deny", "s3:*")).send(&s).await.status, 204);
        read().send(&s).await.refused(403, "AccessDenied");
        ask("GET", "/buck?policy").send(&s).await.ok();
        assert_eq!(ask("DELETE", "/buck?policy").send(&s).await.status, 204);
        read().send(&s).await.ok();
        let public = || ask("GET", "/buck?policyStatus");
        assert_eq!(public().send(&s).await.ok().element("IsPublic"), "false");
        ask("PUT", "/buck?acl").header("x-amz-acl", "public-read").send(&s).await.ok();
        assert_eq!(public().send(&s).await.ok().element("IsPublic"), "true");
        ask("PUT", "/buck?acl").header("x-amz-acl", "private").send(&s).await.ok();
        // The public access block.
        let block = "<PublicAccessBlockConfiguration><BlockPublicAcls>true</BlockPublicAcls><BlockPublicPolicy>true</BlockPublicPolicy><IgnorePublicAcls>true</IgnorePublicAcls></PublicAccessBlockConfiguration>";
        ask("GET", "/buck?publicAccessBlock")
            .send(&s)
            .await
            .refused(404, "NoSuchPublicAccessBlockConfiguration");
        ask("PUT", "/buck?publicAccessBlock").body(block).send(&s).await.ok();
        ask("PUT", "/buck/k?acl")
            .header("x-amz-acl", "public-read")
            .send(&s)
            .await
            .refused(403, "AccessDenied");
        ask("PUT", "/buck/p")
            .header("x-amz-acl", "public-read")
            .body("x")
            .send(&s)
            .await
            .refused(403, "AccessDenied");
        set(policy("Allow", "s3:GetObject")).send(&s).await.refused(403, "AccessDenied");
        assert_eq!(ask("DELETE", "/buck?publicAccessBlock").send(&s).await.status, 204);
        // Ownership.
        let enforced = "<OwnershipControls><Rule><ObjectOwnership>BucketOwnerEnforced</ObjectOwnership></Rule></OwnershipControls>";
        ask("PUT", "/buck?acl").header("x-amz-acl", "public-read-write").send(&s).await.ok();
        ask("PUT", "/buck?ownershipControls")
            .body(enforced)
            .send(&s)
            .await
            .refused(400, "InvalidBucketAclWithObjectOwnership");
        ask("PUT", "/buck/of-b").by("b").body("x").send(&s).await.ok();
        ask("GET", "/buck/of-b").send(&s).await.refused(403, "AccessDenied");
        ask("PUT", "/buck?acl").header("x-amz-acl", "private").send(&s).await.ok();
        ask("PUT", "/buck?ownershipControls").body(enforced).send(&s).await.ok();
        ask("GET", "/buck/of-b").send(&s).await.ok();
        ask("PUT", "/buck/k?acl")
            .header("x-amz-acl", "private")
            .send(&s)
            .await
            .refused(400, "AccessControlListNotSupported");
    });
}

#[test]
fn tags_and_cors() {
    run(async {
        let s = started().await;
        ask("GET", "/buck?tagging").send(&s).await.refused(404, "NoSuchTagSet");
        let tags = "<Tagging><TagSet><Tag><Key>k</Key><Value>v</Value></Tag></TagSet></Tagging>";
        ask("PUT", "/buck?tagging").body(tags).send(&s).await.ok();
        assert_eq!(ask("GET", "/buck?tagging").send(&s).await.ok().element("Value"), "v");
        ask("PUT", "/buck/k").body("x").send(&s).await.ok();
        ask("PUT", "/buck/k?tagging").body(tags).send(&s).await.ok();
        assert_eq!(ask("GET", "/buck/k?tagging").send(&s).await.ok().element("Key"), "k");
        let many = format!(
            "<Tagging><TagSet>{}</TagSet></Tagging>",
            (0..11).map(|i| format!("<Tag><Key>{i}</Key><Value/></Tag>")).collect::<String>()
        );
        ask("PUT", "/buck/k?tagging").body(many).send(&s).await.refused(400, "InvalidTag");
        assert_eq!(ask("DELETE", "/buck/k?tagging").send(&s).await.status, 204);
        assert_eq!(ask("GET", "/buck/k?tagging").send(&s).await.ok().elements("Key").len(), 0);

        let preflight = || {
            ask("OPTIONS", "/buck/k")
                .anonymous()
                .header("origin", "https://a.example")
                .header("access-control-request-method", "PUT")
        };
        preflight().send(&s).await.refused(403, "AccessDenied");
        let cors = "<CORSConfiguration><CORSRule><AllowedOrigin>https://*.example</AllowedOrigin><AllowedMethod>PUT</AllowedMethod><AllowedMethod>GET</AllowedMethod><AllowedHeader>x-*</AllowedHeader><ExposeHeader>ETag</ExposeHeader><MaxAgeSeconds>9</MaxAgeSeconds></CORSRule></CORSConfiguration>";
        ask("PUT", "/buck?cors").body(cors).send(&s).await.ok();
        let got = preflight().header("access-control-request-headers", "X-a").send(&s).await.ok();
        assert_eq!(got.header("access-control-allow-origin"), "https://a.example");
        assert_eq!(got.header("access-control-allow-headers"), "X-a");
        assert_eq!(got.header("access-control-max-age"), "9");
        preflight()
            .header("access-control-request-headers", "authorization")
            .send(&s)
            .await
            .refused(403, "AccessDenied");
        let got = ask("GET", "/buck/k").header("origin", "https://b.example").send(&s).await.ok();
        assert_eq!(got.header("access-control-expose-headers"), "ETag");
        let got = ask("GET", "/buck/none").header("origin", "https://b.example").send(&s).await;
        assert_eq!(got.header("access-control-allow-origin"), "https://b.example");
        // The page may name the method that counts.
        let named = |method: &str| {
            let get = ask("GET", "/buck/k").header("origin", "https://b.example");
            get.header("access-control-request-method", method)
        };
        let got = named("PUT").send(&s).await.ok();
        assert_eq!(got.header("access-control-allow-origin"), "https://b.example");
        let got = named("DELETE").send(&s).await.ok();
        assert_eq!(got.header("access-control-allow-origin"), "");
        let got = ask("GET", "/buck/k").header("origin", "https://b.test").send(&s).await.ok();
        assert_eq!(got.header("access-control-allow-origin"), "");
    });
}

#[test]
fn lifecycle() {
    run(async {
        let s = started().await;
        ask("GET", "/buck?lifecycle").send(&s).await.refused(404, "NoSuchLifecycleConfiguration");
        let rule = |action: &str| {
            format!(
                "<LifecycleConfiguration><Rule><ID>r</ID><Filter><Prefix>a/</Prefix></Filter><Status>Enabled</Status>{action}</Rule></LifecycleConfiguration>"
            )
        };
        let expires = rule("<Expiration><Days>3</Days></Expiration>");
        ask("PUT", "/buck?lifecycle").body(expires).send(&s).await.ok();
        let got = ask("GET", "/buck?lifecycle").send(&s).await.ok();
        assert_eq!((got.element("Days").as_str(), got.element("Prefix").as_str()), ("3", "a/"));
        // When an object goes is told with it.
        let put = ask("PUT", "/buck/a/k").body("x").send(&s).await.ok();
        assert!(put.header("x-amz-expiration").ends_with(", rule-id=\"r\""));
        let head = ask("HEAD", "/buck/a/k").send(&s).await.ok();
        assert_eq!(head.header("x-amz-expiration"), put.header("x-amz-expiration"));
        let other = ask("PUT", "/buck/b/k").body("x").send(&s).await.ok();
        assert_eq!(other.header("x-amz-expiration"), "");
        let wrong = rule("<Transition><Date>20220927</Date></Transition>");
        ask("PUT", "/buck?lifecycle").body(wrong).send(&s).await.refused(400, "MalformedXML");
        let moves =
            rule("<Transition><Days>3</Days><StorageClass>COLD</StorageClass></Transition>");
        ask("PUT", "/buck?lifecycle").body(moves).send(&s).await.refused(501, "NotImplemented");
        assert_eq!(ask("DELETE", "/buck?lifecycle").send(&s).await.status, 204);
        ask("GET", "/buck?lifecycle").send(&s).await.refused(404, "NoSuchLifecycleConfiguration");
    });
}

#[test]
fn chunks_with_signatures_and_trailers() {
    run(async {
        let s = started().await;
        let data: Vec<u8> = (0..200_000u32).map(|i| i as u8).collect();
        let mut sum = Hasher::new(Algorithm::Crc64Nvme);
        sum.update(&data);
        let sum = sum.finish().text();
        for form in
            ["STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER", "STREAMING-UNSIGNED-PAYLOAD-TRAILER"]
        {
            for damage in [false, true] {
                let mut request = ask("PUT", "/buck/chunked")
                    .payload(form)
                    .header("content-encoding", "aws-chunked")
                    .header("x-amz-decoded-content-length", &data.len().to_string())
                    .header("x-amz-trailer", "x-amz-checksum-crc64nvme");
                // The length of the body is known once the form is known; it is not signed. The
                // chain begins with this head's signature.
                let (head, chain) = request.head(s.addr);
                let signed = form.contains("HMAC");
                let mut encoder = Encoder::new(chain.filter(|_| signed));
                let mut body = Vec::new();
                for piece in data.chunks(70_000) {
                    body.extend(encoder.chunk(piece));
                }
                body.extend(encoder.chunk(b""));
                body.extend(encoder.trailers(&[("x-amz-checksum-crc64nvme", &sum)]));
                if damage {
                    let at = body.len() / 2;
                    body[at] ^= 1;
                }
                let length = format!("\r\ncontent-length: {}\r\n\r\n", body.len());
                let head = head.replace("\r\n\r\n", &length);
                request.body = body;
                let got = request.send_behind(&head, &s).await;
                match (damage, signed) {
                    (false, _) => assert_eq!(got.ok().header("x-amz-checksum-crc64nvme"), sum),
                    (true, true) => drop(got.refused(403, "SignatureDoesNotMatch")),
                    (true, false) => drop(got.refused(400, "BadDigest")),
                }
                let stored = ask("GET", "/buck/chunked").send(&s).await;
                assert!(stored.body == data);
            }
            ask("DELETE", "/buck/chunked").send(&s).await;
        }
    });
}

#[test]
fn presigned_urls_and_hosts() {
    run(async {
        let s = started().await;
        ask("PUT", "/buck/k").body("data").send(&s).await.ok();
        let host = s.addr.to_string();
        let keys = user_keys("a");
        let query = keys.presign("GET", &host, "/buck/k", "", now(), 60).unwrap();
        let got = ask("GET", &format!("/buck/k?{query}")).anonymous().send(&s).await.ok();
        assert_eq!(got.text(), "data");
        let other = ask("GET", &format!("/buck/l?{query}")).anonymous().send(&s).await;
        other.refused(403, "SignatureDoesNotMatch");
        let old = keys.presign("GET", &host, "/buck/k", "", now() - 100, 60).unwrap();
        ask("GET", &format!("/buck/k?{old}"))
            .anonymous()
            .send(&s)
            .await
            .refused(403, "AccessDenied");
        for seconds in ["-7", "604801"] {
            let never = query.replace("X-Amz-Expires=60", &format!("X-Amz-Expires={seconds}"));
            assert_ne!(never, query);
            let got = ask("GET", &format!("/buck/k?{never}")).anonymous().send(&s).await;
            got.refused(403, "AccessDenied");
        }
        let put = keys.presign("PUT", &host, "/buck/n", "", now(), 60).unwrap();
        ask("PUT", &format!("/buck/n?{put}")).anonymous().body("new").send(&s).await.ok();
        assert_eq!(ask("GET", "/buck/n").send(&s).await.text(), "new");

        // The bucket in the host name.
        let query = keys.presign("GET", "buck.s3.example", "/k", "", now(), 60).unwrap();
        let mut stream = TcpStream::connect(s.addr).await.unwrap();
        let head = format!("GET /k?{query} HTTP/1.1\r\nhost: buck.s3.example\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        assert_eq!(read_answer(&mut stream, false).await.unwrap().text(), "data");
    });
}

#[test]
fn forms() {
    run(async {
        let s = started().await;
        use base64::Engine;
        let keys = user_keys("a");
        let day = s3::date::basic(now())[..8].to_owned();
        let credential = format!("{}/{day}/us-east-1/s3/aws4_request", keys.access_key);
        let policy = format!(
            "{{\"expiration\":\"2999-01-01T00:00:00Z\",\"conditions\":[{{\"bucket\":\"buck\"}},[\"starts-with\",\"$key\",\"up/\"],[\"content-length-range\",2,10],{{\"x-amz-credential\":\"{credential}\"}},{{\"x-amz-algorithm\":\"AWS4-HMAC-SHA256\"}},[\"starts-with\",\"$x-amz-meta-a\",\"\"],{{\"success_action_status\":\"201\"}}]}}"
        );
        let policy = base64::engine::general_purpose::STANDARD.encode(policy);
        let scope = s3::sig::v4::Scope { day, region: "us-east-1".into(), service: "s3".into() };
        let signature = s3::sig::v4::SigningKey::derive(&keys.secret, &scope).sign(&policy);
        let signature = s3::etag::hex(&signature);
        let form = |key: &str, file: &str, signature: &str| {
            let mut body = String::new();
            for (n, v) in [
                ("key", key),
                ("policy", &policy),
                ("x-amz-credential", &credential),
                ("x-amz-algorithm", "AWS4-HMAC-SHA256"),
                ("x-amz-signature", signature),
                ("x-amz-meta-a", "1"),
                ("success_action_status", "201"),
            ] {
                body +=
                    &format!("--bb\r\nContent-Disposition: form-data; name=\"{n}\"\r\n\r\n{v}\r\n");
            }
            body += &format!(
                "--bb\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f.txt\"\r\nContent-Type: text/plain\r\n\r\n{file}\r\n--bb--\r\n"
            );
            ask("POST", "/buck")
                .anonymous()
                .header("content-type", "multipart/form-data; boundary=bb")
                .body(body)
        };
        let got = form("up/${filename}", "hello", &signature).send(&s).await;
        assert_eq!((got.status, got.element("Key").as_str()), (201, "up/f.txt"), "{}", got.text());
        let stored = ask("GET", "/buck/up/f.txt").send(&s).await.ok();
        assert_eq!(
            (stored.text().as_str(), stored.header("content-type")),
            ("hello", "text/plain")
        );
        assert_eq!(stored.header("x-amz-meta-a"), "1");
        form("up/long", "01234567890", &signature).send(&s).await.refused(400, "EntityTooLarge");
        form("up/short", "0", &signature).send(&s).await.refused(400, "EntityTooSmall");
        form("down/x", "hello", &signature).send(&s).await.refused(403, "AccessDenied");
        let wrong = signature.replace(['0', '1', '2', '3'], "f");
        form("up/x", "hello", &wrong).send(&s).await.refused(403, "SignatureDoesNotMatch");
        let cut = {
            let mut f = form("up/cut", "hello", &signature);
            f.body.truncate(f.body.len() - 12);
            f
        };
        cut.send(&s).await.refused(400, "IncompleteBody");
        let list = ask("GET", "/buck").send(&s).await.ok();
        assert_eq!(list.elements("Key"), ["up/f.txt"]);
    });
}
