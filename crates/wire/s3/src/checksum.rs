//! Checksums of bodies: Content-MD5, x-amz-content-sha256 and the x-amz-checksum family.
//!
//! A checksum of a multipart upload is either *composite* (a checksum of the parts' checksums, with
//! the count of parts behind a hyphen) or of the *full object*, which CRCs allow without reading
//! the data again.

use crate::error::{ErrorCode, Result, S3Error};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crc_fast::{CrcAlgorithm, checksum_combine};
use http::HeaderMap;
use sha1::Sha1;
use sha2::{Digest, Sha256};

/// A checksum algorithm that S3 knows by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Algorithm {
    /// CRC-32 (ISO-HDLC), 4 bytes, big endian.
    Crc32,
    /// CRC-32C (Castagnoli), 4 bytes, big endian.
    Crc32c,
    /// CRC-64/NVME, 8 bytes, big endian.
    Crc64Nvme,
    /// SHA-1, 20 bytes.
    Sha1,
    /// SHA-256, 32 bytes.
    Sha256,
}

/// What a checksum of several parts covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coverage {
    /// The checksums of the parts.
    Composite,
    /// All bytes of the object.
    FullObject,
}

impl Coverage {
    /// The value of `x-amz-checksum-type`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Coverage::Composite => "COMPOSITE",
            Coverage::FullObject => "FULL_OBJECT",
        }
    }

    /// Reads the value of `x-amz-checksum-type`.
    pub fn parse(text: &str) -> Result<Coverage> {
        match text {
            "COMPOSITE" => Ok(Coverage::Composite),
            "FULL_OBJECT" => Ok(Coverage::FullObject),
            _ => Err(S3Error::new(
                ErrorCode::InvalidRequest,
                "Value for x-amz-checksum-type header is invalid: COMPOSITE or FULL_OBJECT was expected",
            )),
        }
    }
}

impl Algorithm {
    /// All of them.
    pub const ALL: [Algorithm; 5] = [
        Algorithm::Crc32,
        Algorithm::Crc32c,
        Algorithm::Crc64Nvme,
        Algorithm::Sha1,
        Algorithm::Sha256,
    ];

    /// The header (or trailer) with the value, in base64.
    pub const fn header(self) -> &'static str {
        match self {
            Algorithm::Crc32 => "x-amz-checksum-crc32",
            Algorithm::Crc32c => "x-amz-checksum-crc32c",
            Algorithm::Crc64Nvme => "x-amz-checksum-crc64nvme",
            Algorithm::Sha1 => "x-amz-checksum-sha1",
            Algorithm::Sha256 => "x-amz-checksum-sha256",
        }
    }

    /// The name in `x-amz-checksum-algorithm` and in documents.
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::Crc32 => "CRC32",
            Algorithm::Crc32c => "CRC32C",
            Algorithm::Crc64Nvme => "CRC64NVME",
            Algorithm::Sha1 => "SHA1",
            Algorithm::Sha256 => "SHA256",
        }
    }

    /// The element of documents with the value.
    pub const fn element(self) -> &'static str {
        match self {
            Algorithm::Crc32 => "ChecksumCRC32",
            Algorithm::Crc32c => "ChecksumCRC32C",
            Algorithm::Crc64Nvme => "ChecksumCRC64NVME",
            Algorithm::Sha1 => "ChecksumSHA1",
            Algorithm::Sha256 => "ChecksumSHA256",
        }
    }

    /// Reads a name of `x-amz-checksum-algorithm`.
    pub fn parse(text: &str) -> Result<Algorithm> {
        Self::ALL.into_iter().find(|a| a.name().eq_ignore_ascii_case(text)).ok_or_else(|| {
            S3Error::new(
                ErrorCode::InvalidRequest,
                "Checksum algorithm provided is unsupported. Please try again with any of the valid types: [CRC32, CRC32C, CRC64NVME, SHA1, SHA256]",
            )
        })
    }

    /// The algorithm that a header (or trailer) is of.
    pub fn of_header(name: &str) -> Option<Algorithm> {
        Self::ALL.into_iter().find(|a| a.header().eq_ignore_ascii_case(name))
    }

    /// The length of a value, in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Algorithm::Crc32 | Algorithm::Crc32c => 4,
            Algorithm::Crc64Nvme => 8,
            Algorithm::Sha1 => 20,
            Algorithm::Sha256 => 32,
        }
    }

    const fn crc(self) -> Option<CrcAlgorithm> {
        match self {
            Algorithm::Crc32 => Some(CrcAlgorithm::Crc32IsoHdlc),
            Algorithm::Crc32c => Some(CrcAlgorithm::Crc32Iscsi),
            Algorithm::Crc64Nvme => Some(CrcAlgorithm::Crc64Nvme),
            Algorithm::Sha1 | Algorithm::Sha256 => None,
        }
    }

    /// Whether a checksum of parts may cover what `coverage` says: SHA sums are always composite,
    /// CRC-64 is always of the full object.
    pub fn allows(self, coverage: Coverage) -> bool {
        match self {
            Algorithm::Crc32 | Algorithm::Crc32c => true,
            Algorithm::Crc64Nvme => coverage == Coverage::FullObject,
            Algorithm::Sha1 | Algorithm::Sha256 => coverage == Coverage::Composite,
        }
    }

    /// What a multipart upload's checksum covers if the request does not say.
    pub const fn default_coverage(self) -> Coverage {
        match self {
            Algorithm::Crc64Nvme => Coverage::FullObject,
            _ => Coverage::Composite,
        }
    }
}

/// A checksum's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checksum {
    /// Of which algorithm.
    pub algorithm: Algorithm,
    /// The bytes, as many as [`Algorithm::bytes`] says.
    pub value: Vec<u8>,
    /// How many parts a composite checksum is of.
    pub parts: Option<u32>,
}

impl Checksum {
    /// The text of headers and documents.
    pub fn text(&self) -> String {
        let base = STANDARD.encode(&self.value);
        match self.parts {
            Some(n) => format!("{base}-{n}"),
            None => base,
        }
    }

    /// Reads the text of a header or document. `parts` behind a hyphen are allowed.
    pub fn parse(algorithm: Algorithm, text: &str) -> Result<Checksum> {
        let (base, parts) = match text.split_once('-') {
            Some((base, n)) => (base, Some(n.parse::<u32>().map_err(|_| invalid(algorithm))?)),
            None => (text, None),
        };
        match STANDARD.decode(base.trim()) {
            Ok(value) if value.len() == algorithm.bytes() => {
                Ok(Checksum { algorithm, value, parts })
            }
            _ => Err(invalid(algorithm)),
        }
    }

    /// The checksum of an object made of parts: of all parts' checksums for composite ones, of all
    /// bytes for CRCs of the full object. `parts` are values and lengths in order.
    pub fn of_parts(
        algorithm: Algorithm,
        coverage: Coverage,
        parts: &[(Checksum, u64)],
    ) -> Option<Checksum> {
        if parts.iter().any(|(c, _)| c.algorithm != algorithm) || parts.is_empty() {
            return None;
        }
        match coverage {
            Coverage::Composite => {
                let mut whole = Hasher::new(algorithm);
                for (part, _) in parts {
                    whole.update(&part.value);
                }
                let mut sum = whole.finish();
                sum.parts = u32::try_from(parts.len()).ok();
                Some(sum)
            }
            Coverage::FullObject => {
                let crc = algorithm.crc()?;
                let number =
                    |c: &Checksum| c.value.iter().fold(0u64, |n, b| n << 8 | u64::from(*b));
                let mut sum = number(&parts[0].0);
                for (part, length) in &parts[1..] {
                    sum = checksum_combine(crc, sum, number(part), *length);
                }
                let all = sum.to_be_bytes();
                let value = all[8 - algorithm.bytes()..].to_vec();
                Some(Checksum { algorithm, value, parts: None })
            }
        }
    }
}

fn invalid(algorithm: Algorithm) -> S3Error {
    // As Ceph's gateway has it (20.1); the code of S3 itself is InvalidRequest.
    S3Error::new(
        ErrorCode::BadDigest,
        format!("Value for {} header is invalid.", algorithm.header()),
    )
}

enum State {
    Crc(Box<crc_fast::Digest>),
    Sha1(Box<Sha1>),
    Sha256(Box<Sha256>),
}

/// Computes one checksum while bytes pass.
pub struct Hasher {
    algorithm: Algorithm,
    state: State,
}

impl Hasher {
    /// A checksum of no bytes yet.
    pub fn new(algorithm: Algorithm) -> Hasher {
        let state = match algorithm.crc() {
            Some(crc) => State::Crc(Box::new(crc_fast::Digest::new(crc))),
            None if algorithm == Algorithm::Sha1 => State::Sha1(Box::default()),
            None => State::Sha256(Box::default()),
        };
        Hasher { algorithm, state }
    }

    /// Further bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        match &mut self.state {
            State::Crc(d) => d.update(bytes),
            State::Sha1(d) => d.update(bytes),
            State::Sha256(d) => d.update(bytes),
        }
    }

    /// The value.
    pub fn finish(self) -> Checksum {
        let value = match self.state {
            State::Crc(d) => d.finalize().to_be_bytes()[8 - self.algorithm.bytes()..].to_vec(),
            State::Sha1(d) => d.finalize().to_vec(),
            State::Sha256(d) => d.finalize().to_vec(),
        };
        Checksum { algorithm: self.algorithm, value, parts: None }
    }
}

/// The checksum that a request promises for its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Promise {
    /// The value stands in a header.
    Header(Checksum),
    /// The value follows the body as a trailer of this algorithm.
    Trailer(Algorithm),
}

/// Reads which checksum a request promises. More than one is refused; so is a value that disagrees
/// with `x-amz-sdk-checksum-algorithm`.
pub fn promised(headers: &HeaderMap) -> Result<Option<Promise>> {
    let mut found = None;
    for algorithm in Algorithm::ALL {
        if let Some(value) = headers.get(algorithm.header()) {
            if found.is_some() {
                return Err(S3Error::new(
                    ErrorCode::InvalidRequest,
                    "Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed.",
                ));
            }
            let text = value.to_str().map_err(|_| invalid(algorithm))?;
            found = Some(Promise::Header(Checksum::parse(algorithm, text)?));
        }
    }
    if let Some(trailer) = headers.get("x-amz-trailer").and_then(|v| v.to_str().ok()) {
        for name in trailer.split(',').map(str::trim).filter(|n| !n.is_empty()) {
            let Some(algorithm) = Algorithm::of_header(name) else {
                return Err(S3Error::new(
                    ErrorCode::InvalidRequest,
                    "The value specified in the x-amz-trailer header is not supported",
                ));
            };
            if found.is_some() {
                return Err(S3Error::new(
                    ErrorCode::InvalidRequest,
                    "Expecting a single x-amz-checksum- header",
                ));
            }
            found = Some(Promise::Trailer(algorithm));
        }
    }
    if let Some(said) = headers.get("x-amz-sdk-checksum-algorithm").and_then(|v| v.to_str().ok()) {
        let said = Algorithm::parse(said)?;
        let has = match &found {
            Some(Promise::Header(c)) => Some(c.algorithm),
            Some(Promise::Trailer(a)) => Some(*a),
            None => None,
        };
        if has.is_some_and(|a| a != said) {
            return Err(S3Error::new(
                ErrorCode::InvalidRequest,
                "Value for x-amz-sdk-checksum-algorithm header is invalid: it differs from the checksum sent",
            ));
        }
    }
    Ok(found)
}

/// Reads `Content-MD5`.
pub fn content_md5(headers: &HeaderMap) -> Result<Option<[u8; 16]>> {
    let Some(value) = headers.get("content-md5") else { return Ok(None) };
    let bytes = value.to_str().ok().and_then(|t| STANDARD.decode(t.trim()).ok());
    match bytes.and_then(|b| <[u8; 16]>::try_from(b).ok()) {
        Some(md5) => Ok(Some(md5)),
        None => Err(S3Error::new(
            ErrorCode::InvalidDigest,
            "The Content-MD5 you specified is not valid: 16 bytes in base64 were expected",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(algorithm: Algorithm, bytes: &[u8]) -> Checksum {
        let mut h = Hasher::new(algorithm);
        h.update(bytes);
        h.finish()
    }

    #[test]
    fn known_values() {
        // The check values of the CRC catalogue, and of FIPS 180.
        let hex = |a| crate::etag::hex(&sum(a, b"123456789").value);
        assert_eq!(hex(Algorithm::Crc32), "cbf43926");
        assert_eq!(hex(Algorithm::Crc32c), "e3069283");
        assert_eq!(hex(Algorithm::Crc64Nvme), "ae8b14860a799888");
        let abc = |a| crate::etag::hex(&sum(a, b"abc").value);
        assert_eq!(abc(Algorithm::Sha1), "a9993e364706816aba3e25717850c26c9cd0d89d");
        assert!(abc(Algorithm::Sha256).starts_with("ba7816bf8f01cfea"));
    }

    #[test]
    fn full_object_crcs_combine() {
        let data: Vec<u8> = (0..100_000u32).map(|n| (n * 7 % 251) as u8).collect();
        for a in [Algorithm::Crc32, Algorithm::Crc32c, Algorithm::Crc64Nvme] {
            let parts: Vec<(Checksum, u64)> =
                data.chunks(33_333).map(|c| (sum(a, c), c.len() as u64)).collect();
            let whole = Checksum::of_parts(a, Coverage::FullObject, &parts).unwrap();
            assert_eq!(whole, sum(a, &data), "{a:?}");
        }
        let parts = [(sum(Algorithm::Sha256, b"a"), 1), (sum(Algorithm::Sha256, b"b"), 1)];
        let text =
            Checksum::of_parts(Algorithm::Sha256, Coverage::Composite, &parts).unwrap().text();
        assert!(text.ends_with("-2"));
        assert_eq!(Checksum::parse(Algorithm::Sha256, &text).unwrap().parts, Some(2));
        assert!(Checksum::of_parts(Algorithm::Sha256, Coverage::FullObject, &parts).is_none());
    }

    #[test]
    fn promises() {
        let mut h = HeaderMap::new();
        assert_eq!(promised(&h).unwrap(), None);
        h.insert("x-amz-checksum-crc32", "y/Q5Jg==".parse().unwrap());
        assert!(matches!(promised(&h).unwrap(), Some(Promise::Header(_))));
        h.insert("x-amz-sdk-checksum-algorithm", "SHA1".parse().unwrap());
        assert!(promised(&h).is_err());
        h.insert("x-amz-sdk-checksum-algorithm", "CRC32".parse().unwrap());
        h.insert("x-amz-checksum-sha1", "x".parse().unwrap());
        assert!(promised(&h).is_err(), "two checksums");
        let mut h = HeaderMap::new();
        h.insert("x-amz-trailer", "x-amz-checksum-crc64nvme".parse().unwrap());
        assert_eq!(promised(&h).unwrap(), Some(Promise::Trailer(Algorithm::Crc64Nvme)));
        h.insert("x-amz-trailer", "x-other".parse().unwrap());
        assert!(promised(&h).is_err());
        h.insert("content-md5", "short".parse().unwrap());
        assert_eq!(content_md5(&h).unwrap_err().code, ErrorCode::InvalidDigest);
    }
}
