//! The write-ahead log: a ring of batches.
//!
//! A batch is what one write to the device makes durable: the records of all transactions that were
//! queued. It starts on a block boundary and never wraps; what does not fit before the end of the
//! ring starts at its beginning. A batch is valid if its checksum is right, it is the one expected
//! by sequence number, it names this store and it repeats the checksum of the batch before. The
//! last condition makes a chain, so that nothing left over from an earlier lap or from before a
//! crash is ever taken for a continuation.
//!
//! ```text
//! magic u32 | crc u32 | store id u64 | seq u64 | prev crc u32 | payload length u32 | payload | 0
//! payload: records, each: length u32 | bytes
//! ```

use crate::codec::{Decoded, Put, Take, corrupt};
use crate::dev::{AlignedBuf, Device};
use crate::error::StoreError;
use crate::superblock::{LOG_START, LogPos, Superblock};
use crate::types::BLOCK;
use bytes::Bytes;

/// Batches that may be under way at the same time, at most.
pub(crate) const AT_ONCE: u64 = 4;
/// Bytes of the ring that batches under way may have when another one begins, at most. What is left
/// over at the ring's end does not count.
pub(crate) const BYTES_AT_ONCE: u64 = 64 << 10;

const MAGIC: u32 = 0x4c4f_4753;
/// Bytes before the payload.
pub(crate) const HEAD: usize = 32;
/// A batch that has reached this takes no further record.
pub(crate) fn batch_full(ring: u64) -> u64 {
    (ring / 16).min(1 << 20)
}

/// The batch under construction: aligned memory that grows.
pub(crate) struct LogBuf {
    buf: AlignedBuf,
    len: usize,
}

impl Put for LogBuf {
    fn bytes(&mut self, b: &[u8]) {
        let end = self.len + b.len();
        if end > self.buf.len() {
            self.grow(end);
        }
        self.buf[self.len..end].copy_from_slice(b);
        self.len = end;
    }
}

impl LogBuf {
    pub(crate) fn new() -> LogBuf {
        let mut buf = AlignedBuf::recycled(128 << 10);
        buf.set_len(buf.capacity());
        LogBuf { buf, len: HEAD }
    }

    /// Stands in for a buffer that is in use elsewhere.
    pub(crate) fn placeholder() -> LogBuf {
        LogBuf { buf: AlignedBuf::recycled(BLOCK as usize), len: HEAD }
    }

    fn grow(&mut self, need: usize) {
        let mut bigger = AlignedBuf::recycled((need * 2).next_multiple_of(BLOCK as usize));
        bigger.set_len(bigger.capacity());
        bigger[..self.len].copy_from_slice(&self.buf[..self.len]);
        self.buf = bigger;
    }

    /// Bytes so far, the head included.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Starts a record; returns the mark for `end_record`.
    pub(crate) fn begin_record(&mut self) -> usize {
        let mark = self.len;
        self.u32(0);
        mark
    }

    pub(crate) fn end_record(&mut self, mark: usize) {
        let n = (self.len - mark - 4) as u32;
        self.buf[mark..mark + 4].copy_from_slice(&n.to_le_bytes());
    }

    /// Puts the head in place; returns the bytes to write and the checksum.
    pub(crate) fn seal(mut self, store_id: u64, pos: LogPos) -> (Bytes, u32) {
        let len = self.len;
        let padded = len.next_multiple_of(BLOCK as usize);
        if padded > self.buf.len() {
            self.grow(padded);
        }
        self.buf.set_len(padded);
        self.buf[len..].fill(0);
        let mut head = Vec::with_capacity(HEAD);
        head.u32(MAGIC);
        head.u32(0);
        head.u64(store_id);
        head.u64(pos.seq);
        head.u32(pos.prev_crc);
        head.u32((len - HEAD) as u32);
        self.buf[..HEAD].copy_from_slice(&head);
        let crc = crc32c::crc32c(&self.buf[..len]);
        self.buf[4..8].copy_from_slice(&crc.to_le_bytes());
        (self.buf.freeze(), crc)
    }
}

/// Where a batch of `len` bytes (padded) goes when the log stands at `at`: the position of its
/// first byte.
pub(crate) fn place(at: u64, len: u64, ring: u64) -> u64 {
    let left = ring - at % ring;
    if len <= left { at } else { at + left }
}

/// Checks a batch against what is expected; returns its length (head and payload) and checksum.
fn check(bytes: &[u8], store_id: u64, pos: LogPos) -> Option<(usize, u32)> {
    let head = Bytes::copy_from_slice(bytes.get(..HEAD)?);
    let mut r = Take::new(&head);
    let (magic, crc) = (r.u32().ok()?, r.u32().ok()?);
    let (id, seq, prev, len) =
        (r.u64().ok()?, r.u64().ok()?, r.u32().ok()?, r.u32().ok()? as usize);
    if magic != MAGIC || id != store_id || seq != pos.seq || prev != pos.prev_crc {
        return None;
    }
    let len = len.checked_add(HEAD)?;
    let body = bytes.get(8..len)?;
    let sum = crc32c::crc32c(&bytes[..4]);
    let sum = crc32c::crc32c_append(sum, &[0; 4]);
    (crc32c::crc32c_append(sum, body) == crc).then_some((len, crc))
}

/// The length (head and payload) that a head claims, if it looks like the expected one.
fn claimed(bytes: &[u8], store_id: u64, pos: LogPos) -> Option<usize> {
    let head = Bytes::copy_from_slice(bytes.get(..HEAD)?);
    let mut r = Take::new(&head);
    let (magic, _) = (r.u32().ok()?, r.u32().ok()?);
    let (id, seq, prev, len) =
        (r.u64().ok()?, r.u64().ok()?, r.u32().ok()?, r.u32().ok()? as usize);
    (magic == MAGIC && id == store_id && seq == pos.seq && prev == pos.prev_crc)
        .then_some(len.checked_add(HEAD)?)
}

/// The sequence number in a block that looks like the head of a batch of this store.
fn sequence(block: &[u8], store_id: u64) -> Option<u64> {
    let head = Bytes::copy_from_slice(block.get(..HEAD)?);
    let mut r = Take::new(&head);
    let (magic, _, id, seq) = (r.u32().ok()?, r.u32().ok()?, r.u64().ok()?, r.u64().ok()?);
    (magic == MAGIC && id == store_id).then_some(seq)
}

/// Splits a payload into records.
pub(crate) fn records(payload: &Bytes) -> Decoded<Vec<Bytes>> {
    let mut r = Take::new(payload);
    let mut out = Vec::new();
    while r.left() > 0 {
        let n = r.u32()? as usize;
        if n > r.left() {
            return Err(corrupt("log record length"));
        }
        out.push(r.slice(n)?);
    }
    Ok(out)
}

/// Reads batches in order.
pub(crate) struct LogReader {
    dev: Device,
    ring: u64,
    store_id: u64,
    pos: LogPos,
    tail: u64,
    /// A part of the ring in memory: its offset in the ring and its bytes.
    window: (u64, Bytes),
}

const WINDOW: u64 = 4 << 20;

impl LogReader {
    pub(crate) fn new(dev: Device, sb: &Superblock) -> LogReader {
        let (pos, tail) = (sb.tail, sb.tail.at);
        LogReader {
            dev,
            ring: sb.log_len,
            store_id: sb.store_id,
            pos,
            tail,
            window: (0, Bytes::new()),
        }
    }

    /// Where the log ends, as far as it was read.
    pub(crate) fn pos(&self) -> LogPos {
        self.pos
    }

    /// The payload of the next batch with its position, or `None` at the end of the log.
    pub(crate) async fn next(&mut self) -> Result<Option<(LogPos, Bytes)>, StoreError> {
        let here = self.pos.at;
        let start = here.next_multiple_of(self.ring);
        for at in [here, start] {
            // More than one lap from the tail there can be nothing.
            if at >= self.tail + self.ring {
                break;
            }
            if let Some((len, crc, payload)) = self.try_at(at).await? {
                let found = LogPos { at, ..self.pos };
                let padded = (len as u64).next_multiple_of(BLOCK);
                self.pos = LogPos { at: at + padded, seq: self.pos.seq + 1, prev_crc: crc };
                return Ok(Some((found, payload)));
            }
            if here == start {
                break;
            }
        }
        Ok(None)
    }

    /// Heads of batches beyond the end of the log, as offsets in the ring: they were under way with
    /// one before them that did not become durable, so that none of them was acknowledged. Nothing
    /// may ever take them for a continuation: if the one that is missing was written again, bit by
    /// bit the same, the checksum would say so.
    ///
    /// # Errors
    /// `Corrupt` when there is one so far ahead that the missing one must have been durable.
    pub(crate) async fn beyond(&self) -> Result<Vec<u64>, StoreError> {
        let here = self.pos.at % self.ring;
        let mut found = Vec::new();
        // What does not fit before the end of the ring is at its beginning.
        for start in [here, 0] {
            let end = (start + BYTES_AT_ONCE + BLOCK).min(self.ring);
            let bytes = self.dev.read(LOG_START + start, (end - start) as usize).await?;
            for (i, block) in bytes.chunks_exact(BLOCK as usize).enumerate() {
                let Some(seq) = sequence(block, self.store_id).filter(|seq| *seq >= self.pos.seq)
                else {
                    continue;
                };
                if seq >= self.pos.seq + AT_ONCE {
                    return Err(StoreError::Corrupt(format!(
                        "batch {} of the log, at byte {}, cannot be read, but batch {seq} is there, which was written when that one was durable: \
                         acknowledged changes are lost. Make this store anew and let what it had come back from its replicas",
                        self.pos.seq,
                        LOG_START + here
                    )));
                }
                found.push(start + i as u64 * BLOCK);
            }
        }
        Ok(found)
    }

    async fn try_at(&mut self, at: u64) -> Result<Option<(usize, u32, Bytes)>, StoreError> {
        let off = at % self.ring;
        let head = self.bytes(off, BLOCK).await?;
        let Some(len) = claimed(&head, self.store_id, self.pos) else { return Ok(None) };
        let padded = (len as u64).next_multiple_of(BLOCK);
        if off + padded > self.ring {
            return Ok(None);
        }
        let all = self.bytes(off, padded).await?;
        Ok(check(&all, self.store_id, self.pos).map(|(len, crc)| (len, crc, all.slice(HEAD..len))))
    }

    async fn bytes(&mut self, off: u64, len: u64) -> Result<Bytes, StoreError> {
        let (start, window) = &self.window;
        if off < *start || off + len > start + window.len() as u64 {
            let n = len.max(WINDOW).min(self.ring - off);
            self.window = (off, self.dev.read(LOG_START + off, n as usize).await?);
        }
        let from = (off - self.window.0) as usize;
        Ok(self.window.1.slice(from..from + len as usize))
    }
}
