//! The body of an upload: from bytes of the wire to verified data.
//!
//! [`Body`] takes aws-chunked apart if the body has that form, counts, and computes the MD5, the
//! hash that the signature covers and the checksum that was promised. An object must not become
//! visible before [`Body::finish`] agreed.

use crate::checksum::{self, Algorithm, Checksum, Hasher, Promise};
use crate::chunked::Decoder;
use crate::error::{ErrorCode, Result, S3Error};
use crate::sig::v4::{ChunkChain, Payload};
use bytes::Bytes;
use http::HeaderMap;
use md5::Md5;
use sha2::{Digest, Sha256};

/// What is known of a body at its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sums {
    /// How many bytes of data came.
    pub bytes: u64,
    /// Their MD5.
    pub md5: [u8; 16],
    /// The checksum that was promised, or that the caller asked for.
    pub checksum: Option<Checksum>,
}

/// What the headers of an upload say of its body.
#[derive(Clone, Debug)]
pub struct Declared {
    /// The form, as the signature has it.
    pub payload: Payload,
    /// How many bytes of data come; `None` for a body in HTTP's own chunks.
    pub bytes: Option<u64>,
    /// Content-MD5.
    pub md5: Option<[u8; 16]>,
    /// The checksum that comes.
    pub promise: Option<Promise>,
}

impl Declared {
    /// Reads the headers. The length of the data is said in advance: by content-length, or by
    /// `x-amz-decoded-content-length` for chunked forms. Only a body in HTTP's own chunks may leave
    /// it out.
    pub fn of(headers: &HeaderMap, payload: Payload) -> Result<Declared> {
        let number = |name: &str| -> Result<Option<u64>> {
            match headers.get(name) {
                None => Ok(None),
                Some(v) => match v.to_str().ok().and_then(|t| t.trim().parse::<u64>().ok()) {
                    Some(n) => Ok(Some(n)),
                    None => Err(S3Error::new(
                        ErrorCode::InvalidRequest,
                        format!("a number was expected in {name}"),
                    )),
                },
            }
        };
        let bytes = if payload.is_chunked() {
            number("x-amz-decoded-content-length")?
        } else {
            number("content-length")?
        };
        if bytes.is_none() && (payload.is_chunked() || !headers.contains_key("transfer-encoding")) {
            return Err(ErrorCode::MissingContentLength.into());
        }
        let promise = checksum::promised(headers)?;
        let trailers =
            matches!(payload, Payload::StreamingTrailer | Payload::StreamingUnsignedTrailer);
        if matches!(promise, Some(Promise::Trailer(_))) && !trailers {
            return Err(S3Error::new(
                ErrorCode::InvalidRequest,
                "x-amz-trailer was sent, and the form of the body has no trailers",
            ));
        }
        Ok(Declared { payload, bytes, md5: checksum::content_md5(headers)?, promise })
    }
}

/// A body on its way in.
pub struct Body {
    declared: Declared,
    decoder: Option<Decoder>,
    md5: Md5,
    sha256: Option<Sha256>,
    hasher: Option<Hasher>,
    bytes: u64,
}

impl Body {
    /// A body of what the headers declared. `chain` is that of the verified signature; `compute` is
    /// an algorithm to compute if the client promised none.
    pub fn new(
        declared: Declared,
        chain: Option<ChunkChain>,
        compute: Option<Algorithm>,
    ) -> Result<Body> {
        let signed = matches!(declared.payload, Payload::Streaming | Payload::StreamingTrailer);
        if signed && chain.is_none() {
            return Err(S3Error::new(
                ErrorCode::InvalidRequest,
                "a body with signed chunks needs a signed request",
            ));
        }
        // A signed request may have a body with chunks that are not signed.
        let chain = chain.filter(|_| signed);
        let decoder = declared
            .payload
            .is_chunked()
            .then(|| Decoder::new(&declared.payload, chain, declared.bytes.unwrap_or(0)));
        let sha256 = matches!(declared.payload, Payload::Signed(_)).then(Sha256::new);
        let algorithm = match &declared.promise {
            Some(Promise::Header(c)) => Some(c.algorithm),
            Some(Promise::Trailer(a)) => Some(*a),
            None => compute,
        };
        let hasher = algorithm.map(Hasher::new);
        Ok(Body { declared, decoder, md5: Md5::new(), sha256, hasher, bytes: 0 })
    }

    /// The next piece of data in `input`, which shrinks by what was taken; `None` when `input` is
    /// used up.
    pub fn next(&mut self, input: &mut Bytes) -> Result<Option<Bytes>> {
        let data = match &mut self.decoder {
            Some(decoder) => decoder.next(input)?,
            None if input.is_empty() => None,
            None => Some(std::mem::take(input)),
        };
        let Some(data) = data else { return Ok(None) };
        self.bytes += data.len() as u64;
        if self.declared.bytes.is_some_and(|n| self.bytes > n) {
            return Err(self.length_error());
        }
        self.md5.update(&data);
        if let Some(h) = &mut self.sha256 {
            h.update(&data);
        }
        if let Some(h) = &mut self.hasher {
            h.update(&data);
        }
        Ok(Some(data))
    }

    fn length_error(&self) -> S3Error {
        S3Error::new(
            ErrorCode::IncompleteBody,
            format!(
                "{} bytes were declared, and {} came",
                self.declared.bytes.unwrap_or(0),
                self.bytes
            ),
        )
    }

    /// Ends the body: all of it must have come, and everything that was promised must hold.
    pub fn finish(self) -> Result<Sums> {
        if self.declared.bytes.is_some_and(|n| self.bytes != n) {
            return Err(self.length_error());
        }
        let trailers = match self.decoder {
            Some(d) => d.finish()?,
            None => Vec::new(),
        };
        if let (Some(h), Payload::Signed(expected)) = (self.sha256, &self.declared.payload) {
            let found: [u8; 32] = h.finalize().into();
            if found != *expected {
                return Err(S3Error::from(ErrorCode::XAmzContentSHA256Mismatch)
                    .with("ClientComputedContentSHA256", crate::etag::hex(expected))
                    .with("S3ComputedContentSHA256", crate::etag::hex(&found)));
            }
        }
        let md5: [u8; 16] = self.md5.finalize().into();
        if self.declared.md5.is_some_and(|m| m != md5) {
            return Err(ErrorCode::BadDigest.into());
        }
        let checksum = self.hasher.map(Hasher::finish);
        let promised = match &self.declared.promise {
            None => None,
            Some(Promise::Header(c)) => Some(c.clone()),
            Some(Promise::Trailer(a)) => {
                let text = trailers.iter().find(|(n, _)| n == a.header()).map(|(_, v)| v);
                let Some(text) = text else {
                    return Err(S3Error::new(
                        ErrorCode::InvalidRequest,
                        format!("the trailer {} was announced and did not come", a.header()),
                    ));
                };
                Some(Checksum::parse(*a, text)?)
            }
        };
        if let (Some(promised), Some(found)) = (&promised, &checksum)
            && promised.value != found.value
        {
            return Err(S3Error::new(
                ErrorCode::BadDigest,
                format!(
                    "The {} you specified did not match the calculated checksum.",
                    found.algorithm.name()
                ),
            ));
        }
        Ok(Sums { bytes: self.bytes, md5, checksum })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunked::Encoder;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let mut h = HeaderMap::new();
        for (n, v) in pairs {
            h.insert(http::HeaderName::from_bytes(n.as_bytes()).unwrap(), v.parse().unwrap());
        }
        h
    }

    fn run(h: &HeaderMap, payload: Payload, wire: &[u8]) -> Result<Sums> {
        let mut body = Body::new(Declared::of(h, payload)?, None, None)?;
        let mut input = Bytes::copy_from_slice(wire);
        while body.next(&mut input)?.is_some() {}
        body.finish()
    }

    #[test]
    fn plain() {
        let h = headers(&[("content-length", "9"), ("x-amz-checksum-crc32", "y/Q5Jg==")]);
        let sums = run(&h, Payload::Unsigned, b"123456789").unwrap();
        assert_eq!(sums.bytes, 9);
        assert_eq!(crate::etag::hex(&sums.md5), "25f9e794323b453885f5181f1b624d0b");
        assert_eq!(sums.checksum.unwrap().text(), "y/Q5Jg==");
        let code = |r: Result<Sums>| r.unwrap_err().code;
        assert_eq!(code(run(&h, Payload::Unsigned, b"123456780")), ErrorCode::BadDigest);
        assert_eq!(code(run(&h, Payload::Unsigned, b"12345678")), ErrorCode::IncompleteBody);
        assert_eq!(code(run(&h, Payload::Unsigned, b"1234567890")), ErrorCode::IncompleteBody);
        let wrong = Payload::Signed([0; 32]);
        assert_eq!(code(run(&h, wrong, b"123456789")), ErrorCode::XAmzContentSHA256Mismatch);
        let none = headers(&[]);
        assert_eq!(code(run(&none, Payload::Unsigned, b"")), ErrorCode::MissingContentLength);
        let md5 = headers(&[("content-length", "1"), ("content-md5", "AAAAAAAAAAAAAAAAAAAAAA==")]);
        assert_eq!(code(run(&md5, Payload::Unsigned, b"x")), ErrorCode::BadDigest);
    }

    #[test]
    fn trailers() {
        let h = headers(&[
            ("x-amz-decoded-content-length", "9"),
            ("x-amz-trailer", "x-amz-checksum-crc32"),
        ]);
        let wire = |sum: &str| {
            let mut e = Encoder::new(None);
            let mut out = e.chunk(b"1234");
            out.extend(e.chunk(b"56789"));
            out.extend(e.chunk(b""));
            out.extend(e.trailers(&[("x-amz-checksum-crc32", sum)]));
            out
        };
        let payload = || Payload::StreamingUnsignedTrailer;
        assert_eq!(run(&h, payload(), &wire("y/Q5Jg==")).unwrap().bytes, 9);
        assert_eq!(run(&h, payload(), &wire("y/Q5Jw==")).unwrap_err().code, ErrorCode::BadDigest);
        let mut e = Encoder::new(None);
        let mut bare = e.chunk(b"123456789");
        bare.extend(e.chunk(b""));
        bare.extend(e.trailers(&[]));
        assert_eq!(run(&h, payload(), &bare).unwrap_err().code, ErrorCode::InvalidRequest);
        assert!(Declared::of(&h, Payload::Unsigned).is_err());
    }
}
