//! Uploads by HTML forms: multipart/form-data, and the policy that allows them.

use crate::date;
use crate::error::{ErrorCode, Result, S3Error};
use crate::etag::unhex;
use crate::sig::v2;
use crate::sig::v4::{Scope, SigningKey};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{Buf, Bytes, BytesMut};
use serde_json::Value;
use subtle::ConstantTimeEq;

/// Everything in front of the file, in bytes.
pub const FIELDS_BYTES_MAX: usize = 256 << 10;
/// How many fields a form may have.
const FIELDS_MAX: usize = 256;

fn malformed(message: impl Into<String>) -> S3Error {
    S3Error::new(ErrorCode::MalformedPOSTRequest, message.into())
}

/// The fields of a form in front of its file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields {
    pairs: Vec<(String, String)>,
    /// The name that the browser gave the file.
    pub file_name: String,
}

impl Fields {
    /// A field without regard to case.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.pairs.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.as_str())
    }

    /// All fields, in order.
    pub fn pairs(&self) -> &[(String, String)] {
        &self.pairs
    }

    /// The key, with `${filename}` replaced.
    pub fn key(&self) -> Result<String> {
        match self.get("key") {
            Some(k) if !k.is_empty() => Ok(k.replace("${filename}", &self.file_name)),
            _ => Err(S3Error::argument("key", "", "Bucket POST must contain a field named 'key'.")),
        }
    }
}

/// The boundary of a `content-type: multipart/form-data` header.
pub fn boundary(content_type: &str) -> Result<String> {
    let refuse = || {
        S3Error::new(
            ErrorCode::MalformedPOSTRequest,
            "The enclosure-type must be multipart/form-data with a boundary",
        )
    };
    let mut parts = content_type.split(';').map(str::trim);
    if !parts.next().is_some_and(|t| t.eq_ignore_ascii_case("multipart/form-data")) {
        return Err(refuse());
    }
    let value = parts.find_map(|p| {
        let (name, value) = p.split_once('=')?;
        name.trim().eq_ignore_ascii_case("boundary").then(|| value.trim().trim_matches('"'))
    });
    match value {
        Some(b) if (1..=200).contains(&b.len()) => Ok(b.to_owned()),
        _ => Err(refuse()),
    }
}

/// What a form yields.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece {
    /// All fields in front of the file. Comes once, first.
    Fields(Fields),
    /// Bytes of the file.
    File(Bytes),
    /// The file is complete; what follows it is not looked at.
    End,
}

enum State {
    Fields,
    File,
    Done,
}

/// Takes a form apart while it arrives.
pub struct Form {
    /// The line break, two hyphens and the boundary.
    delimiter: Vec<u8>,
    buffer: BytesMut,
    state: State,
    fields: Fields,
    field_bytes: usize,
}

impl Form {
    /// A form with this boundary.
    pub fn new(boundary: &str) -> Form {
        let mut buffer = BytesMut::new();
        // The first boundary has no line break in front of it; one is supplied.
        buffer.extend_from_slice(b"\r\n");
        Form {
            delimiter: format!("\r\n--{boundary}").into_bytes(),
            buffer,
            state: State::Fields,
            fields: Fields::default(),
            field_bytes: 0,
        }
    }

    /// More bytes of the body.
    pub fn feed(&mut self, bytes: &[u8]) {
        if !matches!(self.state, State::Done) {
            self.buffer.extend_from_slice(bytes);
        }
    }

    /// The next piece, or `None` when more bytes are needed.
    pub fn next_piece(&mut self) -> Result<Option<Piece>> {
        match self.state {
            State::Fields => self.next_field(),
            State::File => Ok(self.next_data()),
            State::Done => Ok(None),
        }
    }

    fn next_field(&mut self) -> Result<Option<Piece>> {
        loop {
            if self.field_bytes + self.buffer.len() > FIELDS_BYTES_MAX + (1 << 20) {
                return Err(ErrorCode::MaxPostPreDataLengthExceeded.into());
            }
            // Each turn begins in front of a delimiter.
            let at_least = self.delimiter.len() + 2;
            if self.buffer.len() < at_least {
                return Ok(None);
            }
            if !self.buffer.starts_with(&self.delimiter) {
                return Err(malformed("the form does not begin with its boundary"));
            }
            match &self.buffer[self.delimiter.len()..at_least] {
                b"\r\n" => {}
                b"--" => {
                    return Err(S3Error::argument(
                        "file",
                        "",
                        "POST requires exactly one file upload per request.",
                    ));
                }
                _ => return Err(malformed("a line break was expected behind the boundary")),
            }
            let Some(head_end) = find(&self.buffer[at_least - 2..], b"\r\n\r\n") else {
                return self.more_or_too_much();
            };
            let head_end = head_end + at_least - 2;
            let head = std::str::from_utf8(&self.buffer[at_least..head_end.max(at_least)])
                .map_err(|_| malformed("the head of a field is not UTF-8"))?;
            let (name, file_name) = disposition(head)?;
            let body = head_end + 4;
            if name.eq_ignore_ascii_case("file") {
                let content_type = header(head, "content-type");
                self.fields.file_name = file_name.unwrap_or_default();
                if let (Some(t), None) = (content_type, self.fields.get("content-type")) {
                    self.fields.pairs.push(("Content-Type".to_owned(), t));
                }
                self.buffer.advance(body);
                self.state = State::File;
                return Ok(Some(Piece::Fields(std::mem::take(&mut self.fields))));
            }
            let Some(length) = find(&self.buffer[body..], &self.delimiter) else {
                return self.more_or_too_much();
            };
            let value = std::str::from_utf8(&self.buffer[body..body + length])
                .map_err(|_| malformed(format!("the field {name} is not UTF-8")))?
                .to_owned();
            self.field_bytes += body + length;
            if self.field_bytes > FIELDS_BYTES_MAX || self.fields.pairs.len() >= FIELDS_MAX {
                return Err(ErrorCode::MaxPostPreDataLengthExceeded.into());
            }
            self.fields.pairs.push((name, value));
            self.buffer.advance(body + length);
        }
    }

    fn more_or_too_much(&self) -> Result<Option<Piece>> {
        if self.field_bytes + self.buffer.len() > FIELDS_BYTES_MAX {
            return Err(ErrorCode::MaxPostPreDataLengthExceeded.into());
        }
        Ok(None)
    }

    fn next_data(&mut self) -> Option<Piece> {
        if let Some(at) = find(&self.buffer, &self.delimiter) {
            if at > 0 {
                return Some(Piece::File(self.buffer.split_to(at).freeze()));
            }
            self.state = State::Done;
            self.buffer.clear();
            return Some(Piece::End);
        }
        // The end of the buffer may be the begin of a delimiter.
        let sure = self.buffer.len().checked_sub(self.delimiter.len() - 1)?;
        (sure > 0).then(|| Piece::File(self.buffer.split_to(sure).freeze()))
    }
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    let first = *needle.first()?;
    let mut from = 0;
    while let Some(at) = haystack[from..].iter().position(|b| *b == first) {
        let at = from + at;
        if haystack[at..].starts_with(needle) {
            return Some(at);
        }
        from = at + 1;
    }
    None
}

fn header(head: &str, name: &str) -> Option<String> {
    head.lines().find_map(|l| {
        let (n, v) = l.split_once(':')?;
        n.trim().eq_ignore_ascii_case(name).then(|| v.trim().to_owned())
    })
}

fn disposition(head: &str) -> Result<(String, Option<String>)> {
    let Some(value) = header(head, "content-disposition") else {
        return Err(malformed("a field without content-disposition"));
    };
    let (mut name, mut file_name) = (None, None);
    for part in value.split(';').map(str::trim) {
        let Some((n, v)) = part.split_once('=') else { continue };
        let v = v.trim().trim_matches('"').to_owned();
        match n.trim() {
            "name" => name = Some(v),
            "filename" => file_name = Some(v),
            _ => {}
        }
    }
    match name {
        Some(n) if !n.is_empty() => Ok((n, file_name)),
        _ => Err(malformed("a field without name")),
    }
}

/// The signature that a form carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FormClaim {
    /// No policy: an anonymous upload.
    Anonymous,
    /// Version 4.
    V4 {
        /// The key that it names.
        access_key: String,
        /// What the signing key is made for.
        scope: Scope,
        /// The signature.
        signature: [u8; 32],
    },
    /// Version 2.
    V2 {
        /// The key that it names.
        access_key: String,
        /// The signature in base64.
        signature: String,
    },
}

impl FormClaim {
    /// Reads the claim of a form.
    pub fn of(fields: &Fields, allow_v2: bool) -> Result<FormClaim> {
        if fields.get("policy").is_none() {
            return Ok(FormClaim::Anonymous);
        }
        let need = |name: &'static str| {
            fields.get(name).ok_or_else(|| {
                S3Error::argument(
                    name,
                    "",
                    format!("Bucket POST must contain a field named '{name}'. If it is specified, please check the order of the fields."),
                )
            })
        };
        if fields.get("x-amz-algorithm").is_some() || fields.get("x-amz-signature").is_some() {
            if need("x-amz-algorithm")? != "AWS4-HMAC-SHA256" {
                return Err(S3Error::argument(
                    "X-Amz-Algorithm",
                    fields.get("x-amz-algorithm").unwrap_or_default(),
                    "X-Amz-Algorithm only supports \"AWS4-HMAC-SHA256\"",
                ));
            }
            let text = need("x-amz-credential")?;
            let mut words = text.rsplitn(5, '/');
            let (Some("aws4_request"), Some("s3"), Some(region), Some(day), Some(key)) =
                (words.next(), words.next(), words.next(), words.next(), words.next())
            else {
                return Err(S3Error::argument(
                    "X-Amz-Credential",
                    text,
                    "<key>/<date>/<region>/s3/aws4_request was expected",
                ));
            };
            let signature = unhex::<32>(need("x-amz-signature")?)
                .ok_or_else(|| S3Error::from(ErrorCode::SignatureDoesNotMatch))?;
            let scope = Scope { day: day.into(), region: region.into(), service: "s3".into() };
            return Ok(FormClaim::V4 { access_key: key.to_owned(), scope, signature });
        }
        if !allow_v2 {
            return Err(S3Error::new(
                ErrorCode::InvalidRequest,
                "The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256.",
            ));
        }
        Ok(FormClaim::V2 {
            access_key: need("awsaccesskeyid")?.to_owned(),
            signature: need("signature")?.to_owned(),
        })
    }

    /// The key that the form names.
    pub fn access_key(&self) -> Option<&str> {
        match self {
            FormClaim::Anonymous => None,
            FormClaim::V4 { access_key, .. } | FormClaim::V2 { access_key, .. } => Some(access_key),
        }
    }

    /// Compares the signature of the policy with the one of `secret`.
    pub fn verify(&self, fields: &Fields, secret: &str) -> Result<()> {
        let policy = fields.get("policy").unwrap_or_default();
        let holds: bool = match self {
            FormClaim::Anonymous => true,
            FormClaim::V4 { scope, signature, .. } => {
                SigningKey::derive(secret, scope).sign(policy).ct_eq(signature).into()
            }
            FormClaim::V2 { signature, .. } => {
                v2::sign(secret, policy).as_bytes().ct_eq(signature.as_bytes()).into()
            }
        };
        if holds { Ok(()) } else { Err(ErrorCode::SignatureDoesNotMatch.into()) }
    }
}

/// What a policy allows the length of the file to be, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LengthRange {
    /// At least.
    pub min: u64,
    /// At most.
    pub max: u64,
}

/// Checks a form against its policy at `now` (seconds). Returns the bounds of the file's length,
/// which only its end can tell.
pub fn check_policy(fields: &Fields, bucket: &str, now: u64) -> Result<Option<LengthRange>> {
    let Some(text) = fields.get("policy") else { return Ok(None) };
    let invalid = |why: &str| {
        S3Error::new(ErrorCode::InvalidPolicyDocument, format!("Invalid Policy: {why}"))
    };
    let decoded = STANDARD.decode(text.trim()).map_err(|_| invalid("base64 was expected"))?;
    let policy: Value =
        serde_json::from_slice(&decoded).map_err(|_| invalid("JSON was expected"))?;
    let expiration = policy
        .get("expiration")
        .and_then(Value::as_str)
        .ok_or_else(|| invalid("it has no expiration"))?;
    let expires =
        date::parse_iso8601(expiration).ok_or_else(|| invalid("its expiration is no date"))?;
    if now > expires {
        return Err(denied("Policy expired.".to_owned()));
    }
    let conditions = policy
        .get("conditions")
        .and_then(Value::as_array)
        .ok_or_else(|| invalid("it has no conditions"))?;
    let mut covered: Vec<String> = Vec::new();
    let mut range = None;
    let value_of = |name: &str| -> String {
        if name.eq_ignore_ascii_case("bucket") {
            bucket.to_owned()
        } else if name.eq_ignore_ascii_case("key") {
            fields.key().unwrap_or_default()
        } else {
            fields.get(name).unwrap_or_default().to_owned()
        }
    };
    for c in conditions {
        match c {
            Value::Object(map) if map.is_empty() => return Err(invalid("a condition is empty")),
            Value::Object(map) => {
                for (name, expected) in map {
                    let expected =
                        expected.as_str().ok_or_else(|| invalid("a condition is no text"))?;
                    if value_of(name) != expected {
                        return Err(denied(format!(
                            "Policy Condition failed: [\"eq\", \"${name}\", \"{expected}\"]"
                        )));
                    }
                    covered.push(name.to_ascii_lowercase());
                }
            }
            Value::Array(list) => {
                let [kind, first, second] = list.as_slice() else {
                    return Err(invalid("a condition has not three members"));
                };
                let kind = kind.as_str().unwrap_or_default();
                if kind.eq_ignore_ascii_case("content-length-range") {
                    let number =
                        |v: &Value| v.as_u64().or_else(|| v.as_str().and_then(|t| t.parse().ok()));
                    let (Some(min), Some(max)) = (number(first), number(second)) else {
                        return Err(invalid("content-length-range needs two numbers"));
                    };
                    range = Some(LengthRange { min, max });
                    continue;
                }
                let (Some(name), Some(expected)) =
                    (first.as_str().and_then(|n| n.strip_prefix('$')), second.as_str())
                else {
                    return Err(invalid("a condition names no field"));
                };
                let value = value_of(name);
                let holds = if kind.eq_ignore_ascii_case("eq") {
                    value == expected
                } else if kind.eq_ignore_ascii_case("starts-with") {
                    value.starts_with(expected)
                } else {
                    return Err(invalid("a condition is neither eq nor starts-with"));
                };
                if !holds {
                    return Err(denied(format!(
                        "Policy Condition failed: [\"{kind}\", \"${name}\", \"{expected}\"]"
                    )));
                }
                covered.push(name.to_ascii_lowercase());
            }
            _ => return Err(invalid("a condition is neither an object nor a list")),
        }
    }
    all_covered(fields, &covered)?;
    Ok(range)
}

fn denied(why: String) -> S3Error {
    S3Error::new(ErrorCode::AccessDenied, format!("Invalid according to Policy: {why}"))
}

/// Refuses fields that no condition is about.
fn all_covered(fields: &Fields, covered: &[String]) -> Result<()> {
    for (name, _) in fields.pairs() {
        let name = name.to_ascii_lowercase();
        let free = ["policy", "signature", "awsaccesskeyid", "x-amz-signature", "file"]
            .contains(&name.as_str())
            || name.starts_with("x-ignore-")
            // A checksum forbids other data than was meant, and allows nothing.
            || name.starts_with("x-amz-checksum-");
        // The type may come from the file's own head instead of a field.
        if !free && name != "content-type" && !covered.contains(&name) {
            return Err(denied(format!("Extra input fields: {name}")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &str = "--B\r\nContent-Disposition: form-data; name=\"key\"\r\n\r\nup/${filename}\r\n--B\r\nContent-Disposition: form-data; name=\"acl\"\r\n\r\nprivate\r\n--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.txt\"\r\nContent-Type: text/plain\r\n\r\nhello\r\n--not the end\r\n--B\r\nContent-Disposition: form-data; name=\"submit\"\r\n\r\ngo\r\n--B--\r\n";

    fn take(body: &[u8], step: usize) -> Result<(Fields, Vec<u8>, bool)> {
        let mut f = Form::new("B");
        let (mut fields, mut data, mut end) = (Fields::default(), Vec::new(), false);
        for piece in body.chunks(step) {
            f.feed(piece);
            while let Some(p) = f.next_piece()? {
                match p {
                    Piece::Fields(x) => fields = x,
                    Piece::File(b) => data.extend_from_slice(&b),
                    Piece::End => end = true,
                }
            }
        }
        Ok((fields, data, end))
    }

    #[test]
    fn forms_in_any_pieces() {
        for step in [1, 2, 3, 11, 4096] {
            let (fields, data, end) = take(BODY.as_bytes(), step).unwrap();
            assert_eq!(fields.key().unwrap(), "up/a.txt");
            assert_eq!(fields.get("ACL"), Some("private"));
            assert_eq!(fields.get("content-type"), Some("text/plain"));
            assert_eq!(data, b"hello\r\n--not the end", "{step}");
            assert!(end);
        }
        assert_eq!(boundary("multipart/form-data; boundary=\"x y\"").unwrap(), "x y");
        assert!(boundary("text/plain").is_err());
    }

    #[test]
    fn cut_and_damaged_forms_do_not_panic() {
        let body = BODY.as_bytes();
        for end in 0..body.len() {
            if let Ok((_, _, ended)) = take(&body[..end], 7) {
                assert!(!ended || end > BODY.find("--not").unwrap());
            }
            let mut bad = body.to_vec();
            bad[end] ^= 0x20;
            let _ = take(&bad, 13);
        }
        let endless = format!(
            "--B\r\nContent-Disposition: form-data; name=\"k\"\r\n\r\n{}",
            "x".repeat(400_000)
        );
        assert_eq!(
            take(endless.as_bytes(), 4096).unwrap_err().code,
            ErrorCode::MaxPostPreDataLengthExceeded
        );
    }

    #[test]
    fn policies() {
        let (mut fields, _, _) = take(BODY.as_bytes(), 4096).unwrap();
        let policy = r#"{"expiration": "2030-01-01T00:00:00Z", "conditions": [{"bucket": "b"},
            ["starts-with", "$key", "up/"], {"acl": "private"}, ["content-length-range", 1, "10"]]}"#;
        fields.pairs.push(("policy".into(), STANDARD.encode(policy)));
        let now = 1_795_716_000;
        let range = check_policy(&fields, "b", now).unwrap();
        assert_eq!(range, Some(LengthRange { min: 1, max: 10 }));
        let code = |f: &Fields, bucket, now| check_policy(f, bucket, now).unwrap_err().code;
        assert_eq!(code(&fields, "other", now), ErrorCode::AccessDenied);
        assert_eq!(code(&fields, "b", now + 200_000_000), ErrorCode::AccessDenied);
        fields.pairs.push(("x-amz-meta-extra".into(), "1".into()));
        assert_eq!(code(&fields, "b", now), ErrorCode::AccessDenied);
        assert!(FormClaim::of(&fields, false).is_err(), "a policy needs a signature");
    }

    #[test]
    fn signatures() {
        let policy = STANDARD.encode("{}");
        let scope = Scope { day: "20260101".into(), region: "r".into(), service: "s3".into() };
        let signature = SigningKey::derive("secret", &scope).sign(&policy);
        let mut fields = Fields::default();
        for (n, v) in [
            ("policy", policy.as_str()),
            ("x-amz-algorithm", "AWS4-HMAC-SHA256"),
            ("x-amz-credential", "key/20260101/r/s3/aws4_request"),
            ("x-amz-signature", &crate::etag::hex(&signature)),
        ] {
            fields.pairs.push((n.into(), v.into()));
        }
        let claim = FormClaim::of(&fields, false).unwrap();
        assert_eq!(claim.access_key(), Some("key"));
        claim.verify(&fields, "secret").unwrap();
        assert!(claim.verify(&fields, "other").is_err());
    }
}
