//! Bodies in the form aws-chunked: chunks with or without signatures, then trailers.
//!
//! Data is handed out while it arrives; whether a chunk's signature holds is known at its end. The
//! caller must not make an object visible before [`Decoder::finish`] agreed.

use crate::error::{ErrorCode, Result, S3Error};
use crate::etag::unhex;
use crate::sig::v4::{ChunkChain, Payload};
use bytes::{Buf, Bytes};
use sha2::{Digest, Sha256};

/// The longest line in front of a chunk, in bytes.
const LINE_BYTES_MAX: usize = 1024;
/// All trailers together, in bytes.
const TRAILER_BYTES_MAX: usize = 16 << 10;
/// The longest chunk, in bytes: as much as one PUT may have.
const CHUNK_BYTES_MAX: u64 = 5 << 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// A line with the length of the next chunk is read.
    Head,
    /// So many bytes of the chunk are to come.
    Data(u64),
    /// The line break behind a chunk's data.
    DataEnd,
    /// Lines of trailers, until an empty one.
    Trailers,
    /// Nothing more may come.
    Done,
}

/// Takes aws-chunked apart.
pub struct Decoder {
    state: State,
    line: Vec<u8>,
    chain: Option<ChunkChain>,
    has_trailers: bool,
    signature: Option<[u8; 32]>,
    hash: Sha256,
    trailers: Vec<(String, String)>,
    trailer_bytes: usize,
    trailer_signature: Option<[u8; 32]>,
    expected: u64,
    decoded: u64,
}

fn broken(message: impl Into<String>) -> S3Error {
    S3Error::new(ErrorCode::InvalidRequest, message.into())
}

impl Decoder {
    /// For a body of this form. `chain` must be there for signed forms; `decoded_bytes` is
    /// `x-amz-decoded-content-length`.
    pub fn new(payload: &Payload, chain: Option<ChunkChain>, decoded_bytes: u64) -> Decoder {
        let signed = matches!(payload, Payload::Streaming | Payload::StreamingTrailer);
        debug_assert_eq!(signed, chain.is_some());
        Decoder {
            state: State::Head,
            line: Vec::new(),
            chain: if signed { chain } else { None },
            has_trailers: *payload != Payload::Streaming,
            signature: None,
            hash: Sha256::new(),
            trailers: Vec::new(),
            trailer_bytes: 0,
            trailer_signature: None,
            expected: decoded_bytes,
            decoded: 0,
        }
    }

    /// The next piece of data in `input`, which shrinks by what was taken; `None` when more input
    /// is needed.
    pub fn next(&mut self, input: &mut Bytes) -> Result<Option<Bytes>> {
        while !input.is_empty() {
            match self.state {
                State::Head => {
                    let Some(line) = self.take_line(input)? else { return Ok(None) };
                    self.begin_chunk(&line)?;
                }
                State::Data(left) => {
                    let take = usize::try_from(left).unwrap_or(usize::MAX).min(input.len());
                    let data = input.split_to(take);
                    if self.chain.is_some() {
                        self.hash.update(&data);
                    }
                    let left = left - take as u64;
                    if left == 0 {
                        self.end_chunk()?;
                        self.state = State::DataEnd;
                    } else {
                        self.state = State::Data(left);
                    }
                    return Ok(Some(data));
                }
                State::DataEnd => {
                    let Some(line) = self.take_line(input)? else { return Ok(None) };
                    if !line.is_empty() {
                        return Err(broken("a line break was expected behind a chunk's data"));
                    }
                    self.state = State::Head;
                }
                State::Trailers => {
                    let Some(line) = self.take_line(input)? else { return Ok(None) };
                    self.trailer(&line)?;
                }
                State::Done => {
                    // A last line break is sent by some clients, and nothing else.
                    if !input.iter().all(|b| matches!(b, b'\r' | b'\n')) {
                        return Err(broken("bytes follow the end of the chunked body"));
                    }
                    input.advance(input.len());
                }
            }
        }
        Ok(None)
    }

    /// A line without its break, when it is there as a whole.
    fn take_line(&mut self, input: &mut Bytes) -> Result<Option<String>> {
        let end = input.iter().position(|b| *b == b'\n');
        let take = end.map_or(input.len(), |e| e + 1);
        if self.line.len() + take > LINE_BYTES_MAX {
            return Err(broken(format!("a line of at most {LINE_BYTES_MAX} bytes was expected")));
        }
        self.line.extend_from_slice(&input.split_to(take));
        if end.is_none() {
            return Ok(None);
        }
        let mut line = std::mem::take(&mut self.line);
        line.pop();
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        String::from_utf8(line).map(Some).map_err(|_| broken("a chunk's header is not text"))
    }

    fn begin_chunk(&mut self, line: &str) -> Result<()> {
        let (size, extension) = match line.split_once(';') {
            Some((size, extension)) => (size, Some(extension)),
            None => (line, None),
        };
        let digits = size.trim();
        let valid = !digits.is_empty()
            && digits.len() <= 16
            && digits.bytes().all(|b| b.is_ascii_hexdigit());
        let size = valid.then(|| u64::from_str_radix(digits, 16).ok()).flatten();
        let Some(size) = size.filter(|s| *s <= CHUNK_BYTES_MAX) else {
            return Err(broken("a chunk's length in hexadecimal was expected"));
        };
        if self.chain.is_some() {
            let text = extension.and_then(|e| e.trim().strip_prefix("chunk-signature="));
            self.signature = text.and_then(|t| unhex::<32>(t.trim()));
            if self.signature.is_none() {
                return Err(broken("chunk-signature= with 64 hexadecimal digits was expected"));
            }
        }
        self.decoded += size;
        if self.decoded > self.expected {
            return Err(S3Error::new(
                ErrorCode::IncompleteBody,
                format!(
                    "x-amz-decoded-content-length says {} bytes, and the chunks have more",
                    self.expected
                ),
            ));
        }
        if size > 0 {
            self.state = State::Data(size);
            return Ok(());
        }
        self.end_chunk()?;
        // Even without trailers an empty line ends the body.
        self.state = State::Trailers;
        Ok(())
    }

    fn end_chunk(&mut self) -> Result<()> {
        let Some(chain) = &mut self.chain else { return Ok(()) };
        let hash: [u8; 32] = self.hash.finalize_reset_into();
        match self.signature.take() {
            Some(s) if chain.accept_chunk(&hash, &s) => Ok(()),
            _ => Err(S3Error::new(
                ErrorCode::SignatureDoesNotMatch,
                "The signature of a chunk does not match its data",
            )),
        }
    }

    fn trailer(&mut self, line: &str) -> Result<()> {
        if line.is_empty() {
            self.state = State::Done;
            return Ok(());
        }
        if !self.has_trailers {
            return Err(broken("a trailer follows the body, and its form has none"));
        }
        self.trailer_bytes += line.len();
        if self.trailer_bytes > TRAILER_BYTES_MAX {
            return Err(broken(format!(
                "at most {TRAILER_BYTES_MAX} bytes of trailers were expected"
            )));
        }
        let Some((name, value)) = line.split_once(':') else {
            return Err(broken("a trailer of the form name:value was expected"));
        };
        let (name, value) = (name.trim().to_ascii_lowercase(), value.trim().to_owned());
        if name == "x-amz-trailer-signature" {
            self.trailer_signature = unhex::<32>(&value);
        } else {
            self.trailers.push((name, value));
        }
        Ok(())
    }

    /// Whether the end of the body was seen.
    pub fn is_done(&self) -> bool {
        // Some clients leave out the last line break of a body without trailers.
        let bare = !self.has_trailers && self.state == State::Trailers && self.line.is_empty();
        self.state == State::Done || bare
    }

    /// Ends the body: everything must have come, and the trailers' signature must hold. Returns
    /// the trailers.
    pub fn finish(mut self) -> Result<Vec<(String, String)>> {
        if !self.is_done() || self.decoded != self.expected {
            return Err(S3Error::new(
                ErrorCode::IncompleteBody,
                format!(
                    "The body ended early: {} of {} bytes came",
                    self.decoded_bytes(),
                    self.expected
                ),
            ));
        }
        if let (Some(chain), true) = (&mut self.chain, self.has_trailers) {
            let lines: String = self.trailers.iter().map(|(n, v)| format!("{n}:{v}\n")).collect();
            let signature = self.trailer_signature;
            if !signature.is_some_and(|s| chain.accept_trailers(&lines, &s)) {
                return Err(S3Error::new(
                    ErrorCode::SignatureDoesNotMatch,
                    "The signature of the trailers does not match",
                ));
            }
        }
        Ok(self.trailers)
    }

    /// How many bytes of data came.
    pub fn decoded_bytes(&self) -> u64 {
        match self.state {
            State::Data(left) => self.decoded - left,
            _ => self.decoded,
        }
    }
}

/// A digest that begins anew after it was read.
trait FinalizeReset {
    fn finalize_reset_into(&mut self) -> [u8; 32];
}

impl FinalizeReset for Sha256 {
    fn finalize_reset_into(&mut self) -> [u8; 32] {
        std::mem::take(self).finalize().into()
    }
}

/// Writes aws-chunked, as clients send it.
pub struct Encoder {
    chain: Option<ChunkChain>,
}

impl Encoder {
    /// Signed if there is a chain.
    pub fn new(chain: Option<ChunkChain>) -> Encoder {
        Encoder { chain }
    }

    /// One chunk; an empty one ends the data.
    pub fn chunk(&mut self, data: &[u8]) -> Vec<u8> {
        let mut out = match &mut self.chain {
            Some(chain) => {
                let signature = chain.sign_chunk(&Sha256::digest(data).into());
                format!("{:x};chunk-signature={}\r\n", data.len(), crate::etag::hex(&signature))
            }
            None => format!("{:x}\r\n", data.len()),
        }
        .into_bytes();
        if !data.is_empty() {
            out.extend_from_slice(data);
            out.extend_from_slice(b"\r\n");
        }
        out
    }

    /// What follows the empty chunk.
    pub fn trailers(&mut self, trailers: &[(&str, &str)]) -> Vec<u8> {
        let mut out = String::new();
        for (name, value) in trailers {
            out.push_str(&format!("{name}:{value}\r\n"));
        }
        if let (Some(chain), false) = (&mut self.chain, trailers.is_empty()) {
            let lines: String = trailers.iter().map(|(n, v)| format!("{n}:{v}\n")).collect();
            let signature = chain.sign_trailers(&lines);
            out.push_str(&format!("x-amz-trailer-signature:{}\r\n", crate::etag::hex(&signature)));
        }
        out.push_str("\r\n");
        out.into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sig::v4::Signer;
    use http::HeaderMap;

    fn chain() -> ChunkChain {
        let signer = Signer { access_key: "a".into(), secret: "s".into(), region: "r".into() };
        let mut h = HeaderMap::new();
        h.insert("host", "h".parse().unwrap());
        signer.sign("PUT", "/b/k", "", &mut h, "UNSIGNED-PAYLOAD", 1_000_000).unwrap().chain()
    }

    fn encoded(payload: &Payload, data: &[u8], chunk: usize) -> Vec<u8> {
        let signed = *payload != Payload::StreamingUnsignedTrailer;
        let mut e = Encoder::new(signed.then(chain));
        let mut out = Vec::new();
        for c in data.chunks(chunk) {
            out.extend(e.chunk(c));
        }
        out.extend(e.chunk(b""));
        let trailers: &[(&str, &str)] =
            if *payload == Payload::Streaming { &[] } else { &[("x-amz-checksum-crc32", "AAAA")] };
        out.extend(e.trailers(trailers));
        out
    }

    type Decoded = (Vec<u8>, Vec<(String, String)>);

    fn decode(payload: &Payload, wire: &[u8], step: usize, expected: u64) -> Result<Decoded> {
        let signed = *payload != Payload::StreamingUnsignedTrailer;
        let mut d = Decoder::new(payload, signed.then(chain), expected);
        let mut out = Vec::new();
        for piece in wire.chunks(step) {
            let mut input = Bytes::copy_from_slice(piece);
            while let Some(data) = d.next(&mut input)? {
                out.extend_from_slice(&data);
            }
        }
        Ok((out, d.finish()?))
    }

    const FORMS: [Payload; 3] =
        [Payload::Streaming, Payload::StreamingTrailer, Payload::StreamingUnsignedTrailer];

    #[test]
    fn any_cut_gives_the_same() {
        let data: Vec<u8> = (0..1000u32).map(|n| n as u8).collect();
        for payload in FORMS {
            let wire = encoded(&payload, &data, 300);
            for step in [1, 2, 7, 64, 5000] {
                let (got, trailers) = decode(&payload, &wire, step, 1000).unwrap();
                assert_eq!(got, data);
                assert_eq!(trailers.len(), usize::from(payload != Payload::Streaming));
            }
            let empty = encoded(&payload, b"", 300);
            assert_eq!(decode(&payload, &empty, 3, 0).unwrap().0, b"");
        }
    }

    #[test]
    fn what_is_missing_too_much_or_changed_is_refused() {
        let data = vec![7u8; 1000];
        for payload in FORMS {
            let wire = encoded(&payload, &data, 300);
            for end in 0..wire.len() - 2 {
                assert!(decode(&payload, &wire[..end], 50, 1000).is_err() || end > wire.len() - 4);
            }
            assert!(decode(&payload, &wire, 50, 999).is_err());
            assert!(decode(&payload, &wire, 50, 1001).is_err());
            let mut more = wire.clone();
            more.extend(b"x");
            assert!(decode(&payload, &more, 50, 1000).is_err());
        }
        for payload in [Payload::Streaming, Payload::StreamingTrailer] {
            let wire = encoded(&payload, &data, 300);
            for at in 0..wire.len() {
                let mut bad = wire.clone();
                bad[at] ^= 1;
                // A changed letter case in a trailer's name or a blank changes nothing signed.
                if let Ok((got, _)) = decode(&payload, &bad, 97, 1000) {
                    assert_eq!(got, data, "byte {at}");
                }
            }
        }
    }

    #[test]
    fn lines_are_bounded() {
        let long = vec![b'0'; 5000];
        assert!(decode(&Payload::StreamingUnsignedTrailer, &long, 100, 10).is_err());
        let huge = b"ffffffffffffffff\r\n";
        assert!(decode(&Payload::StreamingUnsignedTrailer, huge, 100, u64::MAX).is_err());
    }
}
