//! Bytes on their way to a socket.

use bytes::{Buf, Bytes, BytesMut};
use std::collections::VecDeque;
use std::io::IoSlice;

/// Pieces up to this length are copied behind their neighbours: a vector entry and a reference
/// count cost more than moving a few cache lines.
const COPY_BELOW: usize = 1024;
/// Size of the buffers that small pieces collect in.
const BLOCK: usize = 16 << 10;

/// A queue of byte slices. Payloads stay where they are; headers are gathered between them.
#[derive(Debug, Default)]
pub struct OutBuf {
    sealed: VecDeque<Bytes>,
    tail: BytesMut,
    len: usize,
}

impl OutBuf {
    /// Bytes not written yet.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether everything was written.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends a copy of `data`.
    pub fn put_slice(&mut self, data: &[u8]) {
        if self.tail.capacity() - self.tail.len() < data.len() {
            self.seal();
            self.tail.reserve(data.len().max(BLOCK));
        }
        self.tail.extend_from_slice(data);
        self.len += data.len();
    }

    /// Appends `data` without copying it, unless it is small.
    pub fn put_bytes(&mut self, data: &Bytes) {
        if data.len() <= COPY_BELOW {
            return self.put_slice(data);
        }
        self.seal();
        self.len += data.len();
        self.sealed.push_back(data.clone());
    }

    fn seal(&mut self) {
        if !self.tail.is_empty() {
            self.sealed.push_back(self.tail.split().freeze());
        }
    }

    /// Fills `slices` with what comes next; returns how many were used.
    pub fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let parts = self.sealed.iter().map(|b| &b[..]).chain(std::iter::once(&self.tail[..]));
        let mut used = 0;
        for (slot, part) in slices.iter_mut().zip(parts.filter(|p| !p.is_empty())) {
            *slot = IoSlice::new(part);
            used += 1;
        }
        used
    }

    /// Forgets the next `n` bytes: they were written.
    pub fn advance(&mut self, n: usize) {
        let mut n = n.min(self.len);
        self.len -= n;
        while n > 0 {
            match self.sealed.front_mut() {
                Some(front) if front.len() <= n => {
                    n -= front.len();
                    self.sealed.pop_front();
                }
                Some(front) => {
                    front.advance(n);
                    n = 0;
                }
                None => {
                    self.tail.advance(n);
                    n = 0;
                }
            }
        }
    }

    /// Takes everything out in one piece; for tests and transcripts.
    pub fn take(&mut self) -> Bytes {
        let mut all = BytesMut::with_capacity(self.len);
        self.sealed.iter().for_each(|b| all.extend_from_slice(b));
        all.extend_from_slice(&self.tail);
        *self = OutBuf::default();
        all.freeze()
    }

    /// Appends everything from byte `from` on to `to`, without taking it out.
    pub(crate) fn copy_from(&self, from: usize, to: &mut BytesMut) {
        let mut skip = from;
        let parts = self.sealed.iter().map(|b| &b[..]).chain(std::iter::once(&self.tail[..]));
        for part in parts {
            let n = skip.min(part.len());
            skip -= n;
            to.extend_from_slice(part.get(n..).unwrap_or_default());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_survives_copying_and_advancing() {
        let mut out = OutBuf::default();
        let mut want = Vec::new();
        for i in 0..50usize {
            let piece = vec![i as u8; i * 97 % 2500];
            want.extend_from_slice(&piece);
            if i % 3 == 0 { out.put_slice(&piece) } else { out.put_bytes(&piece.into()) }
        }
        let mut got = Vec::new();
        let mut step = 1;
        while !out.is_empty() {
            let mut slices = [IoSlice::new(&[]); 3];
            let used = out.slices(&mut slices);
            let all: Vec<u8> = slices[..used].iter().flat_map(|s| s.to_vec()).collect();
            let n = all.len().min(step);
            got.extend_from_slice(&all[..n]);
            out.advance(n);
            step = step * 7 % 1000 + 1;
        }
        assert_eq!(got, want);
    }
}
