//! AWS Signature Version 4, for headers, presigned URLs, and chunks of bodies.

use super::{Parts, SKEW_SECONDS_MAX};
use crate::date;
use crate::error::{ErrorCode, Result, S3Error};
use crate::etag::{hex, unhex};
use crate::uri::{self, Query};
use hmac::{Hmac, KeyInit, Mac};
use http::HeaderMap;
use sha2::{Digest, Sha256};
use std::fmt::Write;
use subtle::ConstantTimeEq;

/// The longest life of a presigned URL, in seconds: seven days.
pub const EXPIRES_SECONDS_MAX: u64 = 604_800;

/// The SHA-256 of no bytes.
pub const EMPTY_SHA256: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// What a request says of its body's form and hash (`x-amz-content-sha256`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// The body is not covered by the signature.
    Unsigned,
    /// The SHA-256 of the whole body.
    Signed([u8; 32]),
    /// aws-chunked with a signature for each chunk.
    Streaming,
    /// aws-chunked with signatures, then signed trailers.
    StreamingTrailer,
    /// aws-chunked without signatures, then trailers.
    StreamingUnsignedTrailer,
}

impl Payload {
    /// Reads the header's value.
    pub fn parse(text: &str) -> Result<Payload> {
        Ok(match text {
            "UNSIGNED-PAYLOAD" => Payload::Unsigned,
            "STREAMING-AWS4-HMAC-SHA256-PAYLOAD" => Payload::Streaming,
            "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER" => Payload::StreamingTrailer,
            "STREAMING-UNSIGNED-PAYLOAD-TRAILER" => Payload::StreamingUnsignedTrailer,
            _ => match unhex::<32>(text) {
                Some(hash) => Payload::Signed(hash),
                None => {
                    return Err(S3Error::argument(
                        "x-amz-content-sha256",
                        text.chars().take(80).collect::<String>(),
                        "x-amz-content-sha256 must be UNSIGNED-PAYLOAD, STREAMING-UNSIGNED-PAYLOAD-TRAILER, STREAMING-AWS4-HMAC-SHA256-PAYLOAD, STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER or a valid sha256 value.",
                    ));
                }
            },
        })
    }

    /// Whether the body is in the form aws-chunked.
    pub fn is_chunked(&self) -> bool {
        matches!(
            self,
            Payload::Streaming | Payload::StreamingTrailer | Payload::StreamingUnsignedTrailer
        )
    }
}

/// What a signing key is made for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    /// The day, `YYYYMMDD`.
    pub day: String,
    /// The region; the gateway takes any.
    pub region: String,
    /// The service, `s3`.
    pub service: String,
}

impl Scope {
    fn text(&self) -> String {
        format!("{}/{}/{}/aws4_request", self.day, self.region, self.service)
    }
}

/// What a request of version 4 says of itself.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The key that it names.
    pub access_key: String,
    /// What its signing key is made for.
    pub scope: Scope,
    /// The names of the headers that the signature covers, in order.
    pub signed_headers: Vec<String>,
    /// The signature.
    pub signature: [u8; 32],
    /// The signed time, in the basic form.
    pub time: String,
    /// Whether the signature stands in the query.
    pub presigned: bool,
    /// The session token, if there is one.
    pub token: Option<String>,
    /// The form of the body.
    pub payload: Payload,
    /// The payload's text as it was signed.
    payload_text: String,
}

/// The secret of a key together with a scope, and where a chain of chunk signatures begins.
#[derive(Clone)]
pub struct Verified {
    key: SigningKey,
    time: String,
    scope: String,
    seed: [u8; 32],
}

impl Verified {
    /// The chain of chunk signatures of this request's body.
    pub fn chain(&self) -> ChunkChain {
        ChunkChain {
            key: self.key.clone(),
            time: self.time.clone(),
            scope: self.scope.clone(),
            previous: self.seed,
        }
    }
}

/// A derived signing key. It is valid for one secret and one scope, and may be kept for the day.
#[derive(Clone)]
pub struct SigningKey([u8; 32]);

impl SigningKey {
    /// Derives the key.
    pub fn derive(secret: &str, scope: &Scope) -> SigningKey {
        let mut first = Vec::with_capacity(4 + secret.len());
        first.extend_from_slice(b"AWS4");
        first.extend_from_slice(secret.as_bytes());
        let day = mac(&first, scope.day.as_bytes());
        let region = mac(&day, scope.region.as_bytes());
        let service = mac(&region, scope.service.as_bytes());
        SigningKey(mac(&service, b"aws4_request"))
    }

    /// Signs a text.
    pub fn sign(&self, text: &str) -> [u8; 32] {
        mac(&self.0, text.as_bytes())
    }
}

fn mac(key: &[u8], data: &[u8]) -> [u8; 32] {
    // A key of HMAC may have any length.
    let mut m = <Hmac<Sha256> as KeyInit>::new_from_slice(key)
        .unwrap_or_else(|_| unreachable!("HMAC takes keys of any length"));
    m.update(data);
    m.finalize().into_bytes().into()
}

fn malformed(message: impl Into<String>) -> S3Error {
    S3Error::new(ErrorCode::AuthorizationHeaderMalformed, message.into())
}

fn bad_query(message: impl Into<String>) -> S3Error {
    S3Error::new(ErrorCode::AuthorizationQueryParametersError, message.into())
}

fn credential(text: &str, refuse: fn(String) -> S3Error) -> Result<(String, Scope)> {
    // The access key may contain slashes (`tenant$user` keys do not, but nothing forbids it), so
    // the scope is taken from the end.
    let mut words = text.rsplitn(5, '/');
    let (Some(last), Some(service), Some(region), Some(day), Some(key)) =
        (words.next(), words.next(), words.next(), words.next(), words.next())
    else {
        return Err(refuse(
            "the Credential is mal-formed; expecting \"<YOUR-AKID>/YYYYMMDD/REGION/SERVICE/aws4_request\"."
                .to_owned(),
        ));
    };
    if last != "aws4_request" {
        return Err(refuse(format!(
            "incorrect terminal \"{last}\". This endpoint uses \"aws4_request\"."
        )));
    }
    if service != "s3" {
        return Err(refuse(format!(
            "incorrect service \"{service}\". This endpoint belongs to \"s3\"."
        )));
    }
    if day.len() != 8 || !day.bytes().all(|b| b.is_ascii_digit()) || key.is_empty() {
        return Err(refuse(format!(
            "incorrect date format \"{day}\". This date in the credential must be in the format \"yyyyMMdd\"."
        )));
    }
    let scope = Scope { day: day.into(), region: region.into(), service: service.into() };
    Ok((key.to_owned(), scope))
}

fn header_names(text: &str) -> Vec<String> {
    text.split(';').filter(|n| !n.is_empty()).take(256).map(str::to_ascii_lowercase).collect()
}

impl Claim {
    pub(super) fn of_header(parts: &Parts<'_>, text: &str, now: u64) -> Result<Claim> {
        let rest = text["AWS4-HMAC-SHA256".len()..].trim();
        let (mut cred, mut names, mut signature) = (None, None, None);
        for field in rest.split(',').map(str::trim) {
            match field.split_once('=') {
                Some(("Credential", v)) => cred = Some(v),
                Some(("SignedHeaders", v)) => names = Some(v),
                Some(("Signature", v)) => signature = Some(v),
                _ => return Err(malformed(format!("unexpected field in it: \"{field}\""))),
            }
        }
        let (Some(cred), Some(names), Some(signature)) = (cred, names, signature) else {
            return Err(malformed("Credential, SignedHeaders and Signature were expected in it"));
        };
        let (access_key, scope) = credential(cred, malformed)?;
        let signature = unhex::<32>(signature)
            .ok_or_else(|| malformed("64 hexadecimal digits were expected as Signature"))?;
        let header = |name: &str| parts.headers.get(name).and_then(|v| v.to_str().ok());
        let (time, seconds) = match (header("x-amz-date"), header("date")) {
            (Some(t), _) => (t.to_owned(), date::parse_basic(t)),
            (None, Some(d)) => {
                let seconds = date::parse_http(d).or_else(|| date::parse_basic(d));
                (seconds.map(date::basic).unwrap_or_default(), seconds)
            }
            (None, None) => (String::new(), None),
        };
        let Some(seconds) = seconds else {
            return Err(S3Error::new(
                ErrorCode::AccessDenied,
                "AWS authentication requires a valid Date or x-amz-date header",
            ));
        };
        if seconds.abs_diff(now) > SKEW_SECONDS_MAX {
            return Err(S3Error::from(ErrorCode::RequestTimeTooSkewed)
                .with("RequestTime", time)
                .with("ServerTime", date::iso8601(now * 1_000_000_000))
                .with("MaxAllowedSkewMilliseconds", (SKEW_SECONDS_MAX * 1000).to_string()));
        }
        if !time.starts_with(&scope.day) {
            return Err(malformed(
                "the date in the Credential differs from the date of the request",
            ));
        }
        let payload_text = match header("x-amz-content-sha256") {
            Some(text) => text.to_owned(),
            // A client that leaves the header out has signed the hash of no body, as a GET has.
            None => EMPTY_SHA256.to_owned(),
        };
        let signed_headers = header_names(names);
        if !signed_headers.iter().any(|n| n == "host") {
            return Err(malformed("\"host\" must be a SignedHeader"));
        }
        Ok(Claim {
            access_key,
            scope,
            signed_headers,
            signature,
            time,
            presigned: false,
            token: header("x-amz-security-token").map(str::to_owned),
            payload: Payload::parse(&payload_text)?,
            payload_text,
        })
    }

    pub(super) fn of_query(parts: &Parts<'_>, query: &Query, now: u64) -> Result<Claim> {
        let need = |name: &str| {
            query.get(name).ok_or_else(|| {
                bad_query("Query-string authentication version 4 requires the X-Amz-Algorithm, X-Amz-Credential, X-Amz-Signature, X-Amz-Date, X-Amz-SignedHeaders, and X-Amz-Expires parameters.")
                    .with("Missing", name)
            })
        };
        if need("X-Amz-Algorithm")? != "AWS4-HMAC-SHA256" {
            return Err(bad_query("X-Amz-Algorithm only supports \"AWS4-HMAC-SHA256\""));
        }
        let (access_key, scope) = credential(need("X-Amz-Credential")?, bad_query)?;
        let signature = unhex::<32>(need("X-Amz-Signature")?)
            .ok_or_else(|| S3Error::from(ErrorCode::SignatureDoesNotMatch))?;
        let time = need("X-Amz-Date")?.to_owned();
        let Some(begin) = date::parse_basic(&time) else {
            return Err(bad_query(
                "X-Amz-Date must be in the ISO8601 Long Format \"yyyyMMdd'T'HHmmss'Z'\"",
            ));
        };
        let expires = need("X-Amz-Expires")?;
        // As with Ceph's gateway, a time that cannot be is one that is over (16.2,
        // `rgw_auth_s3.cc`, `parse_v4_query_string`).
        let out_of_range = |why: &'static str| S3Error::new(ErrorCode::AccessDenied, why);
        let expires: u64 = match expires.parse::<i64>() {
            Ok(n) if n < 0 => return Err(out_of_range("X-Amz-Expires must be non-negative")),
            Ok(n) if n as u64 > EXPIRES_SECONDS_MAX => {
                return Err(out_of_range(
                    "X-Amz-Expires must be less than a week (in seconds); that is, the given X-Amz-Expires must be less than 604800 seconds",
                ));
            }
            Ok(n) => n as u64,
            Err(_) => return Err(bad_query("X-Amz-Expires should be a number")),
        };
        if begin > now + SKEW_SECONDS_MAX {
            return Err(S3Error::new(ErrorCode::AccessDenied, "Request is not valid yet")
                .with("X-Amz-Date", time)
                .with("ServerTime", date::iso8601(now * 1_000_000_000)));
        }
        if now >= begin + expires {
            return Err(S3Error::new(ErrorCode::AccessDenied, "Request has expired")
                .with("X-Amz-Expires", expires.to_string())
                .with("Expires", date::iso8601((begin + expires) * 1_000_000_000))
                .with("ServerTime", date::iso8601(now * 1_000_000_000)));
        }
        if !time.starts_with(&scope.day) {
            return Err(bad_query("Invalid credential date. It is not the same as X-Amz-Date"));
        }
        let signed_headers = header_names(need("X-Amz-SignedHeaders")?);
        let in_header = parts.headers.get("x-amz-content-sha256").and_then(|v| v.to_str().ok());
        let payload_text = match (query.get("X-Amz-Content-Sha256"), in_header) {
            (Some(text), _) => text.to_owned(),
            (None, Some(text)) if signed_headers.iter().any(|n| n == "x-amz-content-sha256") => {
                text.to_owned()
            }
            _ => "UNSIGNED-PAYLOAD".to_owned(),
        };
        Ok(Claim {
            access_key,
            scope,
            signed_headers,
            signature,
            time,
            presigned: true,
            token: query.get("X-Amz-Security-Token").map(str::to_owned),
            payload: Payload::parse(&payload_text)?,
            payload_text,
        })
    }

    /// Compares the signature with the one of `secret`. What is returned begins the chain of chunk
    /// signatures.
    pub fn verify(&self, parts: &Parts<'_>, query: &Query, secret: &str) -> Result<Verified> {
        self.verify_with(parts, query, SigningKey::derive(secret, &self.scope))
    }

    /// [`Claim::verify`] with a key that was derived earlier for this secret and scope.
    pub fn verify_with(
        &self,
        parts: &Parts<'_>,
        query: &Query,
        key: SigningKey,
    ) -> Result<Verified> {
        // What the client sends as x-amz-* must be signed: else a holder of an old request could
        // add headers that change its meaning. Presigned URLs are signed before their headers are
        // known, so the rule is not for them.
        if !self.presigned {
            for name in parts.headers.keys() {
                let name = name.as_str();
                let needs = name.starts_with("x-amz-") && name != "x-amz-content-sha256";
                if needs && !self.signed_headers.iter().any(|n| n == name) {
                    return Err(S3Error::new(
                        ErrorCode::AccessDenied,
                        "There were headers present in the request which were not signed",
                    )
                    .with("HeadersNotSigned", name));
                }
            }
        }
        let canonical = canonical_request(
            parts.method,
            parts.path,
            query,
            parts.headers,
            &self.signed_headers,
            &self.payload_text,
        )?;
        let scope = self.scope.text();
        let to_sign = string_to_sign(&self.time, &scope, &canonical);
        let expected = key.sign(&to_sign);
        if !bool::from(expected.ct_eq(&self.signature)) {
            return Err(S3Error::from(ErrorCode::SignatureDoesNotMatch)
                .with("AWSAccessKeyId", self.access_key.clone())
                .with("StringToSign", to_sign)
                .with("SignatureProvided", hex(&self.signature))
                .with("CanonicalRequest", canonical));
        }
        Ok(Verified { key, time: self.time.clone(), scope, seed: expected })
    }
}

fn canonical_request(
    method: &str,
    path: &str,
    query: &Query,
    headers: &HeaderMap,
    signed: &[String],
    payload: &str,
) -> Result<String> {
    let mut out = String::with_capacity(512);
    out.push_str(method);
    out.push('\n');
    uri::encode_into(&mut out, &uri::decode(path, false)?, true);
    out.push('\n');
    let mut pairs: Vec<(String, String)> = query
        .pairs()
        .iter()
        .filter(|(n, _)| n != "X-Amz-Signature")
        .map(|(n, v)| (uri::encode(n.as_bytes(), false), uri::encode(v.as_bytes(), false)))
        .collect();
    pairs.sort();
    for (at, (name, value)) in pairs.iter().enumerate() {
        let _ = write!(out, "{}{name}={value}", if at == 0 { "" } else { "&" });
    }
    out.push('\n');
    for name in signed {
        out.push_str(name);
        out.push(':');
        let mut first = true;
        for value in headers.get_all(name.as_str()) {
            if !first {
                out.push(',');
            }
            first = false;
            // Header values need not be UTF-8; S3 signs them as they are, with blanks folded.
            let text = String::from_utf8_lossy(value.as_bytes());
            let mut blank = false;
            for c in text.trim().chars() {
                if c == ' ' || c == '\t' {
                    blank = true;
                    continue;
                }
                if blank {
                    out.push(' ');
                    blank = false;
                }
                out.push(c);
            }
        }
        out.push('\n');
    }
    out.push('\n');
    out.push_str(&signed.join(";"));
    out.push('\n');
    out.push_str(payload);
    Ok(out)
}

fn string_to_sign(time: &str, scope: &str, canonical: &str) -> String {
    format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{}", hex(&Sha256::digest(canonical.as_bytes())))
}

/// The signatures of a body's chunks; each covers the one in front of it.
#[derive(Clone)]
pub struct ChunkChain {
    key: SigningKey,
    time: String,
    scope: String,
    previous: [u8; 32],
}

impl ChunkChain {
    /// The signature of the next chunk, whose data has this SHA-256.
    pub fn sign_chunk(&mut self, sha256: &[u8; 32]) -> [u8; 32] {
        let text = format!(
            "AWS4-HMAC-SHA256-PAYLOAD\n{}\n{}\n{}\n{EMPTY_SHA256}\n{}",
            self.time,
            self.scope,
            hex(&self.previous),
            hex(sha256)
        );
        self.previous = self.key.sign(&text);
        self.previous
    }

    /// The signature of the trailers, given as lines `name:value\n`.
    pub fn sign_trailers(&mut self, lines: &str) -> [u8; 32] {
        let text = format!(
            "AWS4-HMAC-SHA256-TRAILER\n{}\n{}\n{}\n{}",
            self.time,
            self.scope,
            hex(&self.previous),
            hex(&Sha256::digest(lines.as_bytes()))
        );
        self.previous = self.key.sign(&text);
        self.previous
    }

    /// Whether the next chunk may have this signature.
    pub fn accept_chunk(&mut self, sha256: &[u8; 32], signature: &[u8; 32]) -> bool {
        self.sign_chunk(sha256).ct_eq(signature).into()
    }

    /// Whether the trailers may have this signature.
    pub fn accept_trailers(&mut self, lines: &str, signature: &[u8; 32]) -> bool {
        self.sign_trailers(lines).ct_eq(signature).into()
    }
}

/// A key and what it is used for, on a client's side.
#[derive(Clone)]
pub struct Signer {
    /// The access key.
    pub access_key: String,
    /// Its secret.
    pub secret: String,
    /// The region that signatures name.
    pub region: String,
}

impl Signer {
    fn scope(&self, time: &str) -> Scope {
        Scope { day: time[..8].to_owned(), region: self.region.clone(), service: "s3".to_owned() }
    }

    /// Adds `x-amz-date`, `x-amz-content-sha256` and `authorization` to the headers of a request
    /// sent at `now` (seconds); all headers that are there are signed. `payload` is the value of
    /// `x-amz-content-sha256`.
    pub fn sign(
        &self,
        method: &str,
        path: &str,
        query: &str,
        headers: &mut HeaderMap,
        payload: &str,
        now: u64,
    ) -> Result<Verified> {
        let time = date::basic(now);
        let value = |text: &str| {
            http::HeaderValue::from_str(text)
                .map_err(|_| S3Error::new(ErrorCode::InvalidRequest, "a header is not ASCII"))
        };
        headers.insert("x-amz-date", value(&time)?);
        headers.insert("x-amz-content-sha256", value(payload)?);
        let mut names: Vec<String> = headers
            .keys()
            .map(|n| n.as_str().to_owned())
            .filter(|n| n != "authorization" && n != "user-agent" && n != "connection")
            .collect();
        names.sort();
        let query = Query::parse(query)?;
        let canonical = canonical_request(method, path, &query, headers, &names, payload)?;
        let scope = self.scope(&time);
        let key = SigningKey::derive(&self.secret, &scope);
        let scope = scope.text();
        let seed = key.sign(&string_to_sign(&time, &scope, &canonical));
        let text = format!(
            "AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={}, Signature={}",
            self.access_key,
            names.join(";"),
            hex(&seed)
        );
        headers.insert("authorization", value(&text)?);
        Ok(Verified { key, time, scope, seed })
    }

    /// The query of a presigned URL for `host`, valid for `expires` seconds from `now` on.
    pub fn presign(
        &self,
        method: &str,
        host: &str,
        path: &str,
        query: &str,
        now: u64,
        expires: u64,
    ) -> Result<String> {
        let time = date::basic(now);
        let scope = self.scope(&time);
        let cred = format!("{}/{}", self.access_key, scope.text());
        let mut full = String::from(query);
        for (name, value) in [
            ("X-Amz-Algorithm", "AWS4-HMAC-SHA256"),
            ("X-Amz-Credential", &cred),
            ("X-Amz-Date", &time),
            ("X-Amz-Expires", &expires.to_string()),
            ("X-Amz-SignedHeaders", "host"),
        ] {
            if !full.is_empty() {
                full.push('&');
            }
            let _ = write!(full, "{name}={}", uri::encode(value.as_bytes(), false));
        }
        let mut headers = HeaderMap::new();
        let host = host
            .parse()
            .map_err(|_| S3Error::new(ErrorCode::InvalidRequest, "the host is not ASCII"))?;
        headers.insert("host", host);
        let parsed = Query::parse(&full)?;
        let signed = ["host".to_owned()];
        let canonical =
            canonical_request(method, path, &parsed, &headers, &signed, "UNSIGNED-PAYLOAD")?;
        let key = SigningKey::derive(&self.secret, &scope);
        let signature = key.sign(&string_to_sign(&time, &scope.text(), &canonical));
        let _ = write!(full, "&X-Amz-Signature={}", hex(&signature));
        Ok(full)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Claim as Any, claim};
    use super::*;

    const NOW: u64 = 1_369_353_600; // 2013-05-24T00:00:00Z, the date of Amazon's examples

    fn signer() -> Signer {
        Signer {
            access_key: "AKIAIOSFODNN7EXAMPLE".into(),
            secret: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".into(),
            region: "us-east-1".into(),
        }
    }

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let mut h = HeaderMap::new();
        for (n, v) in pairs {
            h.append(http::HeaderName::from_bytes(n.as_bytes()).unwrap(), v.parse().unwrap());
        }
        h
    }

    /// Amazon's documented example: GET with a range.
    #[test]
    fn published_get() {
        let mut h = headers(&[("host", "examplebucket.s3.amazonaws.com"), ("range", "bytes=0-9")]);
        signer().sign("GET", "/test.txt", "", &mut h, EMPTY_SHA256, NOW).unwrap();
        let text = h["authorization"].to_str().unwrap();
        assert!(
            text.ends_with("f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"),
            "{text}"
        );
    }

    /// Amazon's documented example: PUT, with a `$` in the key.
    #[test]
    fn published_put() {
        let mut h = headers(&[
            ("host", "examplebucket.s3.amazonaws.com"),
            ("date", "Fri, 24 May 2013 00:00:00 GMT"),
            ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
        ]);
        let payload = "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072";
        signer().sign("PUT", "/test$file.text", "", &mut h, payload, NOW).unwrap();
        let text = h["authorization"].to_str().unwrap();
        assert!(
            text.ends_with("98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"),
            "{text}"
        );
    }

    /// Amazon's documented example: a list with query parameters.
    #[test]
    fn published_list() {
        let mut h = headers(&[("host", "examplebucket.s3.amazonaws.com")]);
        signer().sign("GET", "/", "max-keys=2&prefix=J", &mut h, EMPTY_SHA256, NOW).unwrap();
        let text = h["authorization"].to_str().unwrap();
        assert!(
            text.ends_with("34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
            "{text}"
        );
    }

    /// Amazon's documented example: a presigned GET.
    #[test]
    fn published_presigned() {
        let q = signer()
            .presign("GET", "examplebucket.s3.amazonaws.com", "/test.txt", "", NOW, 86_400)
            .unwrap();
        assert!(
            q.ends_with("aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"),
            "{q}"
        );
        let h = headers(&[("host", "examplebucket.s3.amazonaws.com")]);
        let parts = Parts { method: "GET", path: "/test.txt", query: &q, headers: &h };
        let query = Query::parse(&q).unwrap();
        let Any::V4(c) = claim(&parts, &query, NOW + 100, false).unwrap() else { panic!() };
        c.verify(&parts, &query, &signer().secret).unwrap();
        let late = claim(&parts, &query, NOW + 86_401, false).unwrap_err();
        assert_eq!((late.code, &*late.message), (ErrorCode::AccessDenied, "Request has expired"));
        let early = claim(&parts, &query, NOW - 10_000, false).unwrap_err();
        assert_eq!(early.code, ErrorCode::AccessDenied);
    }

    /// Amazon's documented example of chunks: 64 KiB, 1 KiB, the end.
    #[test]
    fn published_chunks() {
        let mut h = headers(&[
            ("host", "s3.amazonaws.com"),
            ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
            ("content-encoding", "aws-chunked"),
            ("x-amz-decoded-content-length", "66560"),
            ("content-length", "66824"),
        ]);
        let v = signer()
            .sign(
                "PUT",
                "/examplebucket/chunkObject.txt",
                "",
                &mut h,
                "STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
                NOW,
            )
            .unwrap();
        assert!(
            h["authorization"]
                .to_str()
                .unwrap()
                .ends_with("4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9")
        );
        let mut chain = v.chain();
        for (bytes, signature) in [
            (65_536, "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648"),
            (1024, "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497"),
            (0, "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9"),
        ] {
            let hash: [u8; 32] = Sha256::digest(vec![b'a'; bytes]).into();
            assert_eq!(hex(&chain.sign_chunk(&hash)), signature);
        }
    }

    #[test]
    fn what_was_changed_is_refused() {
        let mut h = headers(&[("host", "h"), ("x-amz-acl", "private")]);
        signer().sign("GET", "/b/k%20e", "a=1&b", &mut h, EMPTY_SHA256, NOW).unwrap();
        let verify = |method, path, query: &str, h: &HeaderMap, secret: &str, now| {
            let parts = Parts { method, path, query, headers: h };
            let q = Query::parse(query)?;
            match claim(&parts, &q, now, false)? {
                Any::V4(c) => c.verify(&parts, &q, secret).map(|_| ()),
                _ => panic!("no claim"),
            }
        };
        let secret = signer().secret;
        verify("GET", "/b/k%20e", "b&a=1", &h, &secret, NOW).unwrap();
        verify("GET", "/b/k e", "a=1&b=", &h, &secret, NOW + 899).unwrap();
        let code = |r: Result<()>| r.unwrap_err().code;
        let wrong = ErrorCode::SignatureDoesNotMatch;
        assert_eq!(code(verify("PUT", "/b/k%20e", "a=1&b", &h, &secret, NOW)), wrong);
        assert_eq!(code(verify("GET", "/b/k", "a=1&b", &h, &secret, NOW)), wrong);
        assert_eq!(code(verify("GET", "/b/k%20e", "a=2&b", &h, &secret, NOW)), wrong);
        assert_eq!(code(verify("GET", "/b/k%20e", "a=1&b", &h, "other", NOW)), wrong);
        let skew = ErrorCode::RequestTimeTooSkewed;
        assert_eq!(code(verify("GET", "/b/k%20e", "a=1&b", &h, &secret, NOW + 901)), skew);
        h.insert("x-amz-meta-added", "1".parse().unwrap());
        let added = verify("GET", "/b/k%20e", "a=1&b", &h, &secret, NOW);
        assert_eq!(code(added), ErrorCode::AccessDenied);
    }

    #[test]
    fn mutated_headers_never_panic() {
        let good = "AWS4-HMAC-SHA256 Credential=A/20130524/r/s3/aws4_request, SignedHeaders=host, Signature=00";
        for cut in 0..good.len() {
            for text in [&good[..cut], &good[cut..]] {
                let h = headers(&[("authorization", text), ("x-amz-date", "20130524T000000Z")]);
                let parts = Parts { method: "GET", path: "/", query: "", headers: &h };
                assert!(claim(&parts, &Query::default(), NOW, true).is_err() || text.is_empty());
            }
        }
    }
}
