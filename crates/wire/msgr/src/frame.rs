//! The wire form of frames, msgr v2.1 (`src/msg/async/frames_v2.h`, `doc/dev/msgr2.rst`).
//!
//! ```text
//! crc mode                           secure mode
//! preamble            32             preamble + first 48 bytes of segment 0     80 + tag 16
//! segment 0           n + crc 4      rest of segment 0, padded to 16             n + tag 16
//! segments 1..        n              segments 1.., each padded to 16             n
//! epilogue            13             epilogue                                   16 + tag 16
//! ```
//!
//! The last two lines exist only if there is more than one segment, the second only if it is not
//! empty.

use crate::body_buf::BodyBuf;
use crate::out::OutBuf;
use aes_gcm::{AeadInOut, Aes128Gcm, KeyInit};
use bytes::buf::UninitSlice;
use bytes::{BufMut, Bytes, BytesMut};
use denc::crc::{Sum, crc32c};

/// What a frame is for (`ceph::msgr::v2::Tag`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names are the protocol's")]
pub enum Tag {
    Hello = 1,
    AuthRequest,
    AuthBadMethod,
    AuthReplyMore,
    AuthRequestMore,
    AuthDone,
    AuthSignature,
    ClientIdent,
    ServerIdent,
    IdentMissingFeatures,
    SessionReconnect,
    SessionReset,
    SessionRetry,
    SessionRetryGlobal,
    SessionReconnectOk,
    Wait,
    Message,
    Keepalive2,
    Keepalive2Ack,
    Ack,
}

impl Tag {
    fn from_wire(n: u8) -> Option<Self> {
        use Tag::*;
        const ALL: [Tag; 20] = [
            Hello,
            AuthRequest,
            AuthBadMethod,
            AuthReplyMore,
            AuthRequestMore,
            AuthDone,
            AuthSignature,
            ClientIdent,
            ServerIdent,
            IdentMissingFeatures,
            SessionReconnect,
            SessionReset,
            SessionRetry,
            SessionRetryGlobal,
            SessionReconnectOk,
            Wait,
            Message,
            Keepalive2,
            Keepalive2Ack,
            Ack,
        ];
        ALL.get(usize::from(n).checked_sub(1)?).copied()
    }
}

/// The peer's bytes are not frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The preamble's checksum.
    #[error("wrong checksum of a frame preamble")]
    PreambleCrc,
    /// The checksum of a segment, by number.
    #[error("wrong checksum of frame segment {0}")]
    SegmentCrc(usize),
    /// A part did not authenticate.
    #[error("a frame does not authenticate")]
    Forged,
    /// A tag that this version does not know.
    #[error("unknown frame tag {0}")]
    UnknownTag(u8),
    /// Zero or more than four segments, or an empty one at the end.
    #[error("bad frame segments")]
    Segments,
    /// Neither complete nor aborted.
    #[error("bad frame status {0:#x}")]
    Status(u8),
    /// The nonces of a key are used up.
    #[error("out of nonces")]
    Nonces,
}

const PREAMBLE: usize = 32;
const MAX_SEGMENTS: usize = 4;
const CRC: usize = 4;
const TAG_LEN: usize = 16;
const BLOCK: usize = 16;
const INLINE: usize = 48;
const EPILOGUE_CRC: usize = 13;
const EPILOGUE_SECURE: usize = 16;
const STATUS_ABORTED: u8 = 0x1;
const STATUS_COMPLETE: u8 = 0xe;
const STATUS_MASK: u8 = 0xf;
const DEFAULT_ALIGNMENT: u16 = 8;
const DATA_ALIGNMENT: u16 = 4096;

/// Frames with data segments from this size on are received into a buffer of their own. Smaller
/// ones are slices of the buffer that the socket was read into: one allocation for many messages.
const OWN_BUFFER_FROM: usize = 32 << 10;
/// How much to read at once.
const READ_CHUNK: usize = 64 << 10;
/// The same before the peer is known.
const FIRST_CHUNK: usize = 2 << 10;

const fn padded(n: usize) -> usize {
    n.next_multiple_of(BLOCK)
}

/// One direction's cipher state (`AES128GCM_OnWire*Handler`).
pub struct Gcm {
    cipher: Aes128Gcm,
    fixed: [u8; 4],
    counter: u64,
    first: u64,
    started: bool,
}

impl std::fmt::Debug for Gcm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Gcm")
    }
}

impl Gcm {
    /// Splits a connection secret into the ciphers for receiving and sending; `server` crosses
    /// them.
    pub fn pair(secret: &[u8], server: bool) -> Option<(Gcm, Gcm)> {
        let key: [u8; 16] = secret.get(..16)?.try_into().ok()?;
        let new = |nonce: &[u8]| {
            let first = u64::from_le_bytes(nonce.get(4..12)?.try_into().ok()?);
            let fixed = nonce.get(..4)?.try_into().ok()?;
            Some(Gcm {
                cipher: Aes128Gcm::new(&key.into()),
                fixed,
                counter: first,
                first,
                started: false,
            })
        };
        let (a, b) = (new(secret.get(16..28)?)?, new(secret.get(28..40)?)?);
        Some(if server { (b, a) } else { (a, b) })
    }

    fn nonce(&mut self) -> Result<[u8; 12], FrameError> {
        if self.counter == self.first && self.started {
            return Err(FrameError::Nonces);
        }
        self.started = true;
        let mut nonce = [0; 12];
        nonce[..4].copy_from_slice(&self.fixed);
        nonce[4..].copy_from_slice(&self.counter.to_le_bytes());
        self.counter = self.counter.wrapping_add(1);
        Ok(nonce)
    }

    fn encrypt(&mut self, buf: &mut [u8]) -> Result<[u8; TAG_LEN], FrameError> {
        let nonce = self.nonce()?;
        let tag = self.cipher.encrypt_inout_detached(&nonce.into(), b"", buf.into());
        Ok(tag.map_err(|_| FrameError::Nonces)?.into())
    }

    /// Decrypts `buf` in place; its last 16 bytes are the tag.
    fn decrypt(&mut self, buf: &mut [u8]) -> Result<(), FrameError> {
        let nonce = self.nonce()?;
        let split = buf.len().checked_sub(TAG_LEN).ok_or(FrameError::Forged)?;
        let (body, tag) = buf.split_at_mut(split);
        let tag: [u8; TAG_LEN] = (&*tag).try_into().map_err(|_| FrameError::Forged)?;
        self.cipher
            .decrypt_inout_detached(&nonce.into(), b"", body.into(), &tag.into())
            .map_err(|_| FrameError::Forged)
    }
}

/// Makes frames.
#[derive(Debug, Default)]
pub struct Encoder {
    cipher: Option<Gcm>,
}

impl Encoder {
    /// From the next frame on, encrypts.
    pub fn secure(&mut self, cipher: Gcm) {
        self.cipher = Some(cipher);
    }

    /// Appends a frame of one segment.
    pub fn control(
        &mut self,
        tag: Tag,
        payload: &[u8],
        out: &mut OutBuf,
    ) -> Result<(), FrameError> {
        self.frame(tag, payload, &[], None, out)
    }

    /// Appends a frame of a first segment and up to three more, each in pieces. Empty ones at the
    /// end are left out, as the protocol demands. `last` is the checksum of the fourth segment, if
    /// it is known.
    pub fn frame(
        &mut self,
        tag: Tag,
        first: &[u8],
        rest: &[&[Bytes]],
        last: Option<Sum>,
        out: &mut OutBuf,
    ) -> Result<(), FrameError> {
        let mut lens = [0usize; MAX_SEGMENTS];
        lens[0] = first.len();
        for (len, pieces) in lens.iter_mut().skip(1).zip(rest) {
            *len = pieces.iter().map(Bytes::len).sum();
        }
        let count = lens.iter().rposition(|l| *l > 0).map_or(1, |last| last + 1);
        let rest = rest.get(..count - 1).unwrap_or(rest);

        let mut preamble = [0u8; PREAMBLE];
        preamble[0] = tag as u8;
        preamble[1] = count as u8;
        for (i, len) in lens.iter().enumerate().take(count) {
            let at = 2 + 6 * i;
            let len = u32::try_from(*len).map_err(|_| FrameError::Segments)?;
            let align = if i == 3 { DATA_ALIGNMENT } else { DEFAULT_ALIGNMENT };
            preamble[at..at + 4].copy_from_slice(&len.to_le_bytes());
            preamble[at + 4..at + 6].copy_from_slice(&align.to_le_bytes());
        }
        let crc = crc32c(0, &preamble[..PREAMBLE - CRC]);
        preamble[PREAMBLE - CRC..].copy_from_slice(&crc.to_le_bytes());

        match &mut self.cipher {
            None => {
                out.put_slice(&preamble);
                if !first.is_empty() {
                    out.put_slice(first);
                    out.put_slice(&crc32c(u32::MAX, first).to_le_bytes());
                }
                if count > 1 {
                    let mut epilogue = [0u8; EPILOGUE_CRC];
                    epilogue[0] = STATUS_COMPLETE;
                    for (i, (slot, pieces)) in
                        epilogue[1..].chunks_exact_mut(CRC).zip(rest).enumerate()
                    {
                        let read = || pieces.iter().fold(u32::MAX, |crc, p| crc32c(crc, p));
                        let known = last
                            .filter(|sum| i == MAX_SEGMENTS - 2 && sum.len() == lens[i + 1] as u64);
                        let crc = known.map_or_else(read, Sum::crc);
                        debug_assert_eq!(
                            crc,
                            read(),
                            "the sender's checksum is not that of its data"
                        );
                        pieces.iter().for_each(|p| out.put_bytes(p));
                        slot.copy_from_slice(&crc.to_le_bytes());
                    }
                    out.put_slice(&epilogue);
                }
            }
            Some(gcm) => {
                let mut head = [0u8; PREAMBLE + INLINE];
                let inline = first.len().min(INLINE);
                head[..PREAMBLE].copy_from_slice(&preamble);
                head[PREAMBLE..PREAMBLE + inline].copy_from_slice(&first[..inline]);
                let tag = gcm.encrypt(&mut head)?;
                out.put_slice(&head);
                out.put_slice(&tag);
                if first.len() > INLINE {
                    let mut more = BytesMut::zeroed(padded(first.len()) - INLINE);
                    more[..first.len() - INLINE].copy_from_slice(&first[INLINE..]);
                    let tag = gcm.encrypt(&mut more)?;
                    more.extend_from_slice(&tag);
                    out.put_bytes(&more.freeze());
                }
                if count > 1 {
                    let body: usize = lens[1..count].iter().map(|l| padded(*l)).sum();
                    let mut buf = BytesMut::with_capacity(body + EPILOGUE_SECURE + TAG_LEN);
                    for pieces in rest {
                        pieces.iter().for_each(|p| buf.extend_from_slice(p));
                        buf.resize(padded(buf.len()), 0);
                    }
                    buf.put_u8(STATUS_COMPLETE);
                    buf.put_bytes(0, EPILOGUE_SECURE - 1);
                    let tag = gcm.encrypt(&mut buf)?;
                    buf.extend_from_slice(&tag);
                    out.put_bytes(&buf.freeze());
                }
            }
        }
        Ok(())
    }
}

/// A frame's preamble.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// What the frame is for.
    pub tag: Tag,
    count: usize,
    lens: [usize; MAX_SEGMENTS],
}

impl Head {
    /// Length of segment `i`, zero if there is none.
    pub fn len(&self, i: usize) -> usize {
        self.lens.get(i).copied().unwrap_or(0)
    }

    /// How many segments there are, at least one.
    pub fn segments(&self) -> usize {
        self.count
    }

    /// Length of all segments.
    pub fn total(&self) -> usize {
        self.lens.iter().sum()
    }

    fn parse(raw: &[u8; PREAMBLE]) -> Result<Self, FrameError> {
        let (body, crc) = raw.split_at(PREAMBLE - CRC);
        if crc32c(0, body).to_le_bytes() != *crc {
            return Err(FrameError::PreambleCrc);
        }
        let tag = Tag::from_wire(raw[0]).ok_or(FrameError::UnknownTag(raw[0]))?;
        let count = usize::from(raw[1]);
        if !(1..=MAX_SEGMENTS).contains(&count) {
            return Err(FrameError::Segments);
        }
        let mut lens = [0; MAX_SEGMENTS];
        for (len, seg) in lens.iter_mut().zip(raw[2..].chunks_exact(6)).take(count) {
            *len = u32::from_le_bytes([seg[0], seg[1], seg[2], seg[3]]) as usize;
        }
        if count > 1 && lens[count - 1] == 0 {
            return Err(FrameError::Segments);
        }
        Ok(Head { tag, count, lens })
    }

    /// Bytes on the wire of segment 0 behind the preamble.
    fn first_onwire(&self, secure: bool) -> usize {
        match (secure, self.lens[0]) {
            (false, 0) => 0,
            (false, n) => n + CRC,
            (true, n) if padded(n) > INLINE => padded(n) - INLINE + TAG_LEN,
            (true, _) => 0,
        }
    }

    fn segment_onwire(&self, i: usize, secure: bool) -> usize {
        if secure { padded(self.len(i)) } else { self.len(i) }
    }

    fn epilogue_onwire(&self, secure: bool) -> usize {
        match (self.count, secure) {
            (1, _) => 0,
            (_, false) => EPILOGUE_CRC,
            (_, true) => EPILOGUE_SECURE + TAG_LEN,
        }
    }

    /// Bytes on the wire behind the preamble.
    fn body_onwire(&self, secure: bool) -> usize {
        let rest: usize = (1..self.count).map(|i| self.segment_onwire(i, secure)).sum();
        self.first_onwire(secure) + rest + self.epilogue_onwire(secure)
    }
}

/// A received frame.
#[derive(Clone, Debug)]
pub struct Frame {
    /// What it is for.
    pub tag: Tag,
    /// Its segments; those that were not sent are empty.
    pub segments: [Bytes; MAX_SEGMENTS],
    /// The sender gave up in the middle of it; the segments mean nothing.
    pub aborted: bool,
}

/// What the decoder found.
#[derive(Clone, Debug)]
pub enum Progress {
    /// More bytes are needed.
    Starved,
    /// A preamble. Its lengths must be checked now: the next call makes room for the body.
    Head(Head),
    /// The frame that the last preamble announced.
    Frame(Frame),
}

#[derive(Debug)]
enum Stage {
    Preamble,
    /// The body is collected in the common buffer.
    Body {
        head: Head,
        inline: [u8; INLINE],
    },
    /// The body is collected in a buffer of its own.
    Own {
        head: Head,
        inline: [u8; INLINE],
        body: BodyBuf,
    },
}

/// Finds frames in a stream of bytes.
#[derive(Debug)]
pub struct Decoder {
    cipher: Option<Gcm>,
    buf: BytesMut,
    chunk: usize,
    stage: Stage,
    /// Raw bytes of the frames found, while the handshake needs them for its signature.
    transcript: Option<BytesMut>,
}

impl Default for Decoder {
    fn default() -> Self {
        Decoder {
            cipher: None,
            buf: BytesMut::new(),
            chunk: FIRST_CHUNK,
            stage: Stage::Preamble,
            transcript: Some(BytesMut::new()),
        }
    }
}

impl Decoder {
    /// From the next frame on, decrypts.
    pub fn secure(&mut self, cipher: Gcm) {
        self.cipher = Some(cipher);
    }

    /// Ends the transcript and returns it. The peer is known now: reads get larger.
    pub fn take_transcript(&mut self) -> Bytes {
        self.chunk = READ_CHUNK;
        self.transcript.take().unwrap_or_default().freeze()
    }

    /// Length of the transcript.
    pub fn transcript_len(&self) -> usize {
        self.transcript.as_ref().map_or(0, BytesMut::len)
    }

    /// Takes `n` raw bytes from the front of the stream, if they are there: for the banner.
    pub fn take_raw(&mut self, n: usize) -> Option<Bytes> {
        if self.buf.len() < n {
            return None;
        }
        let raw = self.buf.split_to(n).freeze();
        if let Some(t) = &mut self.transcript {
            t.extend_from_slice(&raw);
        }
        Some(raw)
    }

    /// The bytes at the front of the stream.
    pub fn peek_raw(&self) -> &[u8] {
        &self.buf
    }

    /// Where to put what the socket has.
    pub fn read_slot(&mut self) -> ReadSlot<'_> {
        match &mut self.stage {
            Stage::Own { body, .. } if body.missing() > 0 => ReadSlot(Slot::Own(body)),
            _ => {
                if self.buf.capacity() - self.buf.len() < self.chunk / 8 {
                    self.buf.reserve(self.chunk);
                }
                ReadSlot(Slot::Common(&mut self.buf))
            }
        }
    }

    /// The next step, as far as the bytes go.
    pub fn poll(&mut self) -> Result<Progress, FrameError> {
        let secure = self.cipher.is_some();
        loop {
            match &mut self.stage {
                Stage::Preamble => {
                    let need = if secure { PREAMBLE + INLINE + TAG_LEN } else { PREAMBLE };
                    if self.buf.len() < need {
                        return Ok(Progress::Starved);
                    }
                    let mut raw = self.buf.split_to(need);
                    if let Some(t) = &mut self.transcript {
                        t.extend_from_slice(&raw);
                    }
                    if let Some(gcm) = &mut self.cipher {
                        gcm.decrypt(&mut raw)?;
                    }
                    let mut inline = [0; INLINE];
                    if let Some(i) = raw.get(PREAMBLE..PREAMBLE + INLINE) {
                        inline.copy_from_slice(i);
                    }
                    let head = Head::parse(raw.first_chunk().ok_or(FrameError::Segments)?)?;
                    self.stage = Stage::Body { head, inline };
                    return Ok(Progress::Head(head));
                }
                Stage::Body { head, inline } => {
                    let need = head.body_onwire(secure);
                    if self.buf.len() >= need {
                        let (head, inline) = (*head, *inline);
                        let body = self.buf.split_to(need);
                        if let Some(t) = &mut self.transcript {
                            t.extend_from_slice(&body);
                        }
                        self.stage = Stage::Preamble;
                        return self.finish(head, &inline, Body::Common(body)).map(Progress::Frame);
                    }
                    if head.len(3) >= OWN_BUFFER_FROM {
                        let data_at: usize = head.first_onwire(secure)
                            + (1..3).map(|i| head.segment_onwire(i, secure)).sum::<usize>();
                        let mut body = BodyBuf::new(need, data_at);
                        body.put_slice(&self.buf.split());
                        self.stage = Stage::Own { head: *head, inline: *inline, body };
                        continue;
                    }
                    return Ok(Progress::Starved);
                }
                Stage::Own { body, .. } => {
                    if body.missing() > 0 {
                        return Ok(Progress::Starved);
                    }
                    let Stage::Own { head, inline, body } =
                        std::mem::replace(&mut self.stage, Stage::Preamble)
                    else {
                        unreachable!("matched above")
                    };
                    return self.finish(head, &inline, Body::Own(body)).map(Progress::Frame);
                }
            }
        }
    }

    /// Verifies a complete body and cuts it into segments.
    fn finish(
        &mut self,
        head: Head,
        inline: &[u8; INLINE],
        mut body: Body,
    ) -> Result<Frame, FrameError> {
        let secure = self.cipher.is_some();
        let first_end = head.first_onwire(secure);
        let epilogue_at: usize =
            first_end + (1..head.count).map(|i| head.segment_onwire(i, secure)).sum::<usize>();
        let mut segments: [Bytes; MAX_SEGMENTS] = Default::default();

        if let Some(gcm) = &mut self.cipher {
            let buf = body.as_mut();
            let (first, rest) = buf.split_at_mut(first_end);
            if first_end > 0 {
                gcm.decrypt(first)?;
            }
            if head.count > 1 {
                gcm.decrypt(rest)?;
            }
        }
        let common = matches!(body, Body::Common(_));
        let body = body.freeze();
        if secure {
            let inlined = head.lens[0].min(INLINE);
            let mut first = BytesMut::with_capacity(head.lens[0]);
            first.extend_from_slice(&inline[..inlined]);
            first.extend_from_slice(&body[..head.lens[0] - inlined]);
            segments[0] = first.freeze();
        } else if head.lens[0] > 0 {
            let first = body.slice(..head.lens[0]);
            if crc32c(u32::MAX, &first).to_le_bytes() != body[head.lens[0]..first_end] {
                return Err(FrameError::SegmentCrc(0));
            }
            segments[0] = first;
        }
        if head.count == 1 {
            return Ok(Frame { tag: head.tag, segments, aborted: false });
        }
        let status = body[epilogue_at] & STATUS_MASK;
        if status != STATUS_COMPLETE && status != STATUS_ABORTED {
            return Err(FrameError::Status(body[epilogue_at]));
        }
        let mut at = first_end;
        for (i, slot) in segments.iter_mut().enumerate().take(head.count).skip(1) {
            let mut segment = body.slice(at..at + head.lens[i]);
            if i == 3 && common && segment.len() >= aligned::PAGE {
                // Data of a page or more may be kept for long and written to a device: in memory of
                // its own, aligned, while it is in the cache for its checksum.
                segment = aligned::AlignedBuf::copy_of(&segment).freeze();
            }
            let crc_at = epilogue_at + 1 + (i - 1) * CRC;
            if !secure && crc32c(u32::MAX, &segment).to_le_bytes() != body[crc_at..crc_at + CRC] {
                return Err(FrameError::SegmentCrc(i));
            }
            *slot = segment;
            at += head.segment_onwire(i, secure);
        }
        Ok(Frame { tag: head.tag, segments, aborted: status == STATUS_ABORTED })
    }
}

enum Body {
    Common(BytesMut),
    Own(BodyBuf),
}

impl Body {
    fn as_mut(&mut self) -> &mut [u8] {
        match self {
            Body::Common(b) => b,
            Body::Own(b) => b.filled_mut(),
        }
    }

    fn freeze(self) -> Bytes {
        match self {
            Body::Common(b) => b.freeze(),
            Body::Own(b) => b.freeze(),
        }
    }
}

/// Room for received bytes.
pub struct ReadSlot<'a>(Slot<'a>);

enum Slot<'a> {
    /// Only the capacity that is there; it never grows by being written to.
    Common(&'a mut BytesMut),
    Own(&'a mut BodyBuf),
}

// SAFETY: forwards to implementations that keep the contract; `Common` reports less room than
// `BytesMut` would, which the contract allows.
unsafe impl BufMut for ReadSlot<'_> {
    fn remaining_mut(&self) -> usize {
        match &self.0 {
            Slot::Common(b) => b.capacity() - b.len(),
            Slot::Own(b) => b.missing(),
        }
    }

    fn chunk_mut(&mut self) -> &mut UninitSlice {
        match &mut self.0 {
            Slot::Common(b) => b.chunk_mut(),
            Slot::Own(b) => b.chunk_mut(),
        }
    }

    unsafe fn advance_mut(&mut self, n: usize) {
        // SAFETY: the caller promises that `n` bytes of the chunk were written.
        unsafe {
            match &mut self.0 {
                Slot::Common(b) => b.advance_mut(n),
                Slot::Own(b) => b.advance_mut(n),
            }
        }
    }
}
