//! AWS Signature Version 2 (HMAC-SHA1), for clients of another age. Off by default.

use super::{Parts, SKEW_SECONDS_MAX};
use crate::date;
use crate::error::{ErrorCode, Result, S3Error};
use crate::uri::{self, Query};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use http::HeaderMap;
use sha1::Sha1;
use std::fmt::Write;
use subtle::ConstantTimeEq;

/// Sub-resources that the canonical resource names.
const SIGNED_PARAMETERS: &[&str] = &[
    "acl",
    "cors",
    "delete",
    "lifecycle",
    "location",
    "logging",
    "notification",
    "partNumber",
    "policy",
    "policyStatus",
    "publicAccessBlock",
    "requestPayment",
    "response-cache-control",
    "response-content-disposition",
    "response-content-encoding",
    "response-content-language",
    "response-content-type",
    "response-expires",
    "tagging",
    "torrent",
    "uploadId",
    "uploads",
    "versionId",
    "versioning",
    "versions",
    "website",
    "encryption",
    "object-lock",
    "retention",
    "legal-hold",
];

/// What a request of version 2 says of itself.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The key that it names.
    pub access_key: String,
    signature: Vec<u8>,
    /// The date line of what is signed: a date, a number of seconds, or nothing.
    date: String,
}

impl Claim {
    pub(super) fn of_header(parts: &Parts<'_>, text: &str, now: u64) -> Result<Claim> {
        let malformed = || {
            S3Error::new(
                ErrorCode::InvalidArgument,
                "AWS authorization header is invalid. Expected AwsAccessKeyId:signature",
            )
        };
        let (key, signature) =
            text["AWS ".len()..].trim().rsplit_once(':').ok_or_else(malformed)?;
        let signature = STANDARD.decode(signature).map_err(|_| malformed())?;
        let header = |name: &str| parts.headers.get(name).and_then(|v| v.to_str().ok());
        let said = header("x-amz-date").or(header("date")).unwrap_or_default();
        let Some(seconds) = date::parse_http(said).or_else(|| date::parse_basic(said)) else {
            return Err(S3Error::new(
                ErrorCode::AccessDenied,
                "AWS authentication requires a valid Date or x-amz-date header",
            ));
        };
        if seconds.abs_diff(now) > SKEW_SECONDS_MAX {
            return Err(ErrorCode::RequestTimeTooSkewed.into());
        }
        // With x-amz-date the date line is empty: that header is signed among the others.
        let date = if header("x-amz-date").is_some() { "" } else { header("date").unwrap_or("") };
        Ok(Claim { access_key: key.to_owned(), signature, date: date.to_owned() })
    }

    pub(super) fn of_query(query: &Query, now: u64) -> Result<Claim> {
        let get = |name| query.get(name).unwrap_or_default();
        let expires: u64 = get("Expires").parse().map_err(|_| {
            S3Error::new(ErrorCode::AccessDenied, "Query-string authentication requires the Signature, Expires and AWSAccessKeyId parameters")
        })?;
        if now > expires {
            return Err(S3Error::new(ErrorCode::AccessDenied, "Request has expired"));
        }
        let signature = STANDARD
            .decode(get("Signature"))
            .map_err(|_| S3Error::from(ErrorCode::SignatureDoesNotMatch))?;
        Ok(Claim {
            access_key: get("AWSAccessKeyId").to_owned(),
            signature,
            date: get("Expires").to_owned(),
        })
    }

    /// Compares the signature with the one of `secret`. `bucket` is given if it stands in the host
    /// name instead of the path.
    pub fn verify(
        &self,
        parts: &Parts<'_>,
        query: &Query,
        bucket: Option<&str>,
        secret: &str,
    ) -> Result<()> {
        let text = string_to_sign(parts, query, bucket, &self.date);
        let expected = mac(secret, &text);
        if bool::from(expected.as_slice().ct_eq(&self.signature)) {
            Ok(())
        } else {
            Err(S3Error::from(ErrorCode::SignatureDoesNotMatch)
                .with("AWSAccessKeyId", self.access_key.clone())
                .with("StringToSign", text))
        }
    }
}

fn mac(secret: &str, text: &str) -> [u8; 20] {
    let mut m = <Hmac<Sha1> as KeyInit>::new_from_slice(secret.as_bytes())
        .unwrap_or_else(|_| unreachable!("HMAC takes keys of any length"));
    m.update(text.as_bytes());
    m.finalize().into_bytes().into()
}

/// The signature in base64 of any text: version 2, and policies of POST forms.
pub fn sign(secret: &str, text: &str) -> String {
    STANDARD.encode(mac(secret, text))
}

fn string_to_sign(parts: &Parts<'_>, query: &Query, bucket: Option<&str>, date: &str) -> String {
    let h = |headers: &HeaderMap, name: &str| {
        headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned()
    };
    let mut out = format!(
        "{}\n{}\n{}\n{date}\n",
        parts.method,
        h(parts.headers, "content-md5"),
        h(parts.headers, "content-type")
    );
    let mut names: Vec<&str> =
        parts.headers.keys().map(|n| n.as_str()).filter(|n| n.starts_with("x-amz-")).collect();
    names.sort_unstable();
    for name in names {
        let values: Vec<String> = parts
            .headers
            .get_all(name)
            .iter()
            .map(|v| String::from_utf8_lossy(v.as_bytes()).trim().to_owned())
            .collect();
        let _ = writeln!(out, "{name}:{}", values.join(","));
    }
    if let Some(bucket) = bucket {
        let _ = write!(out, "/{bucket}");
    }
    out.push_str(parts.path);
    let mut pairs: Vec<&(String, String)> =
        query.pairs().iter().filter(|(n, _)| SIGNED_PARAMETERS.contains(&n.as_str())).collect();
    pairs.sort();
    for (at, (name, value)) in pairs.into_iter().enumerate() {
        out.push(if at == 0 { '?' } else { '&' });
        out.push_str(name);
        if !value.is_empty() {
            let _ = write!(out, "={value}");
        }
    }
    out
}

/// The `authorization` header of a client, for a request with a `date` header.
pub fn authorize(access_key: &str, secret: &str, parts: &Parts<'_>) -> Result<String> {
    let query = Query::parse(parts.query)?;
    let date = parts.headers.get("date").and_then(|v| v.to_str().ok()).unwrap_or_default();
    let text = string_to_sign(parts, &query, None, date);
    Ok(format!("AWS {access_key}:{}", sign(secret, &text)))
}

/// Encodes a path for version 2, which signs it as it is sent.
pub fn encode_path(path: &str) -> String {
    uri::encode(path.as_bytes(), true)
}

#[cfg(test)]
mod tests {
    use super::super::{Claim as Any, claim};
    use super::*;

    /// Amazon's documented example of version 2.
    #[test]
    fn published_get() {
        let mut h = HeaderMap::new();
        h.insert("host", "johnsmith.s3.amazonaws.com".parse().unwrap());
        h.insert("date", "Tue, 27 Mar 2007 19:36:42 +0000".parse().unwrap());
        h.insert(
            "authorization",
            "AWS AKIAIOSFODNN7EXAMPLE:bWq2s1WEIj+Ydj0vQ697zp+IXMU=".parse().unwrap(),
        );
        let parts = Parts { method: "GET", path: "/photos/puppy.jpg", query: "", headers: &h };
        let now = 1_175_024_202;
        let q = Query::default();
        assert!(claim(&parts, &q, now, false).is_err(), "off by default");
        let Any::V2(c) = claim(&parts, &q, now, true).unwrap() else { panic!() };
        let secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
        c.verify(&parts, &q, Some("johnsmith"), secret).unwrap();
        let wrong = c.verify(&parts, &q, None, secret).unwrap_err();
        assert_eq!(wrong.code, ErrorCode::SignatureDoesNotMatch);
    }
}
