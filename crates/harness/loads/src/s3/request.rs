//! Requests of S3, and whether their answers are right.

use super::content::Content;
use super::wire::{Connection, Outbound};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use hyper::body::{Body, Incoming};
use md5::{Digest, Md5};
use s3::uri;
use s3::xml::{self, Limits, multi};
use std::pin::Pin;

/// Bytes of an answer that is a document: a list of 1,000 keys of 1,024 bytes fits.
const DOCUMENT_BYTES_MAX: usize = 4 << 20;
/// Keys of a list.
pub const LIST_KEYS_MAX: usize = 1000;

/// Why a request did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The answer is an error; nothing was changed.
    #[error("{status} {code}")]
    Refused {
        /// The status.
        status: StatusCode,
        /// The code in the document, if there is one.
        code: String,
    },
    /// There was no whole answer.
    #[error("{0}")]
    Broken(String),
    /// The answer is not what was asked for.
    #[error("{0}")]
    Wrong(String),
}

/// What comes of a request.
pub type Result<T> = std::result::Result<T, Failure>;

/// A list's answer.
#[derive(Debug, PartialEq, Eq)]
pub struct Listed {
    /// Keys in the order of the answer.
    pub keys: Vec<String>,
    /// Whether more follow.
    pub truncated: bool,
}

fn path_of(bucket: &str, key: &str) -> String {
    format!("/{bucket}/{}", uri::encode(key.as_bytes(), true))
}

async fn next(answer: &mut Response<Incoming>) -> Result<Option<Bytes>> {
    loop {
        let body = answer.body_mut();
        match std::future::poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await {
            None => return Ok(None),
            Some(Err(e)) => return Err(Failure::Broken(format!("the answer's body: {e}"))),
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
        }
    }
}

async fn document(answer: &mut Response<Incoming>) -> Result<Vec<u8>> {
    let mut whole = Vec::new();
    while let Some(data) = next(answer).await? {
        if whole.len() + data.len() > DOCUMENT_BYTES_MAX {
            let text = format!("at most {DOCUMENT_BYTES_MAX} bytes were expected, more came");
            return Err(Failure::Wrong(text));
        }
        whole.extend_from_slice(&data);
    }
    Ok(whole)
}

async fn expect(answer: &mut Response<Incoming>, status: StatusCode) -> Result<()> {
    if answer.status() == status {
        return Ok(());
    }
    let status = answer.status();
    let body = document(answer).await?;
    let error = xml::parse(&body, "Error", Limits::CONFIG).ok();
    let code = error.and_then(|e| e.text_of("Code").map(str::to_owned)).unwrap_or_default();
    Err(Failure::Refused { status, code })
}

impl Connection {
    /// Makes a request; whatever it comes to, the connection can be used for the next one.
    async fn ask<T>(
        &mut self,
        (method, path, query): (Method, &str, &str),
        headers: HeaderMap,
        body: Outbound,
        read: impl AsyncFnOnce(Response<Incoming>) -> Result<T>,
    ) -> Result<T> {
        let limit = self.timeout();
        let whole = async {
            let answer =
                self.send(method, path, query, headers, body).await.map_err(Failure::Broken)?;
            read(answer).await
        };
        let came = tokio::time::timeout(limit, whole).await.unwrap_or_else(|_| {
            Err(Failure::Broken(format!("no answer within {} s", limit.as_secs())))
        });
        if matches!(came, Err(Failure::Broken(_) | Failure::Wrong(_))) {
            self.close();
        }
        came
    }

    /// Makes a bucket, unless this user has it.
    pub async fn create_bucket(&mut self, bucket: &str) -> Result<()> {
        let path = format!("/{bucket}");
        let put = (Method::PUT, &*path, "");
        let made = self.ask(put, HeaderMap::new(), Outbound::none(), async |mut answer| {
            expect(&mut answer, StatusCode::OK).await?;
            document(&mut answer).await.map(drop)
        });
        match made.await {
            Err(Failure::Refused { code, .. }) if code == "BucketAlreadyOwnedByYou" => Ok(()),
            other => other,
        }
    }

    /// Writes an object.
    pub async fn put(&mut self, bucket: &str, key: &str, content: Content) -> Result<()> {
        let path = path_of(bucket, key);
        let body = Outbound::Made(content, 0);
        let put = (Method::PUT, &*path, "");
        self.ask(put, HeaderMap::new(), body, async |mut answer| {
            expect(&mut answer, StatusCode::OK).await?;
            if !answer.headers().contains_key("etag") {
                return Err(Failure::Wrong(format!("{path}: the answer has no ETag")));
            }
            document(&mut answer).await.map(drop)
        })
        .await
    }

    /// Reads an object, and compares it.
    pub async fn get(&mut self, bucket: &str, key: &str, content: Content) -> Result<()> {
        let path = path_of(bucket, key);
        let get = (Method::GET, &*path, "");
        self.ask(get, HeaderMap::new(), Outbound::none(), async |mut answer| {
            match expect(&mut answer, StatusCode::OK).await {
                Err(Failure::Refused { status, code }) if status == StatusCode::NOT_FOUND => {
                    let text = format!("{path} was acknowledged, and is not there ({code})");
                    return Err(Failure::Wrong(text));
                }
                other => other?,
            }
            let mut at = 0;
            while let Some(data) = next(&mut answer).await? {
                content.check(at, &data).map_err(|m| Failure::Wrong(format!("{path}: {m}")))?;
                at += data.len() as u64;
            }
            if at != content.length() {
                let expected = content.length();
                let text = format!("{path}: {expected} bytes were expected, {at} came");
                return Err(Failure::Wrong(text));
            }
            Ok(())
        })
        .await
    }

    /// Deletes an object.
    pub async fn delete(&mut self, bucket: &str, key: &str) -> Result<()> {
        let path = path_of(bucket, key);
        let delete = (Method::DELETE, &*path, "");
        self.ask(delete, HeaderMap::new(), Outbound::none(), async |mut answer| {
            expect(&mut answer, StatusCode::NO_CONTENT).await?;
            document(&mut answer).await.map(drop)
        })
        .await
    }

    /// Deletes objects with one request.
    pub async fn delete_many(&mut self, bucket: &str, keys: Vec<String>) -> Result<()> {
        let count = keys.len();
        let objects = keys.into_iter().map(|key| multi::DeleteObject { key, ..Default::default() });
        let asked = multi::Delete { quiet: false, objects: objects.collect() };
        let body = Bytes::from(asked.to_xml());
        let mut headers = HeaderMap::new();
        let sum = STANDARD.encode(Md5::digest(&body));
        let sum = HeaderValue::from_str(&sum).map_err(|e| Failure::Broken(e.to_string()))?;
        headers.insert("content-md5", sum);
        let path = format!("/{bucket}");
        let post = (Method::POST, &*path, "delete");
        self.ask(post, headers, Outbound::Whole(body), async |mut answer| {
            expect(&mut answer, StatusCode::OK).await?;
            let text = document(&mut answer).await?;
            let said = xml::parse(&text, "DeleteResult", Limits::LIST)
                .map_err(|e| Failure::Wrong(format!("the answer of a delete: {e}")))?;
            if let Some(e) = said.child("Error") {
                let (key, code) = (e.text_of("Key"), e.text_of("Code"));
                let text = format!("{} is not deleted", key.unwrap_or_default());
                return Err(Failure::Wrong(format!("{text}: {}", code.unwrap_or_default())));
            }
            let deleted = said.all("Deleted").count();
            if deleted != count {
                let text = format!("{count} were to be deleted, the answer names {deleted}");
                return Err(Failure::Wrong(text));
            }
            Ok(())
        })
        .await
    }

    /// Lists keys with a prefix after one of them.
    pub async fn list(&mut self, bucket: &str, prefix: &str, after: &str) -> Result<Listed> {
        let path = format!("/{bucket}");
        let text = |value: &str| uri::encode(value.as_bytes(), false);
        let query = format!(
            "list-type=2&max-keys={LIST_KEYS_MAX}&prefix={}&start-after={}",
            text(prefix),
            text(after)
        );
        let get = (Method::GET, &*path, &*query);
        self.ask(get, HeaderMap::new(), Outbound::none(), async |mut answer| {
            expect(&mut answer, StatusCode::OK).await?;
            listed(&document(&mut answer).await?)
        })
        .await
    }
}

fn listed(text: &[u8]) -> Result<Listed> {
    let wrong = |e: s3::S3Error| Failure::Wrong(format!("a list: {e}"));
    let said = xml::parse(text, "ListBucketResult", Limits::LIST).map_err(wrong)?;
    let keys = said.all("Contents").map(|c| c.need_whole("Key").map(str::to_owned));
    let keys = keys.collect::<std::result::Result<Vec<_>, _>>().map_err(wrong)?;
    let truncated = said.flag("IsTruncated").map_err(wrong)?.unwrap_or(false);
    Ok(Listed { keys, truncated })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read() {
        let text = b"<ListBucketResult xmlns=\"x\"><IsTruncated>true</IsTruncated>\
            <Contents><Key>000/1</Key></Contents><Contents><Key>000/2</Key></Contents>\
            </ListBucketResult>";
        let keys = vec!["000/1".to_owned(), "000/2".to_owned()];
        assert_eq!(listed(text).unwrap(), Listed { keys, truncated: true });
        let none = b"<ListBucketResult></ListBucketResult>";
        assert_eq!(listed(none).unwrap(), Listed { keys: Vec::new(), truncated: false });
        for bad in [&b"<Error></Error>"[..], b"<ListBucketResult><Contents/></ListBucketResult>"] {
            assert!(matches!(listed(bad), Err(Failure::Wrong(_))));
        }
    }

    #[test]
    fn keys_are_encoded_and_slashes_are_not() {
        assert_eq!(path_of("b", "000/a b"), "/b/000/a%20b");
    }
}
