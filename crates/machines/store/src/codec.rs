//! Little-endian integers, varints and length-prefixed strings: the store's own disk encoding.

use crate::error::StoreError;
use bytes::Bytes;

/// The result of decoding; the text says which field could not be.
pub(crate) type Decoded<T> = Result<T, StoreError>;

pub(crate) fn corrupt(what: &str) -> StoreError {
    StoreError::Corrupt(what.into())
}

/// Writing; implemented by `Vec<u8>`.
pub(crate) trait Put {
    fn bytes(&mut self, b: &[u8]);

    fn u8(&mut self, v: u8) {
        self.bytes(&[v]);
    }
    fn u32(&mut self, v: u32) {
        self.bytes(&v.to_le_bytes());
    }
    fn u64(&mut self, v: u64) {
        self.bytes(&v.to_le_bytes());
    }
    /// Seven bits a byte, low ones first; the high bit says that more follow.
    fn var(&mut self, mut v: u64) {
        let mut out = [0; 10];
        let mut n = 0;
        loop {
            out[n] = (v & 0x7f) as u8;
            v >>= 7;
            if v == 0 {
                break;
            }
            out[n] |= 0x80;
            n += 1;
        }
        self.bytes(&out[..=n]);
    }
    fn blob(&mut self, b: &[u8]) {
        self.var(b.len() as u64);
        self.bytes(b);
    }
}

impl Put for Vec<u8> {
    fn bytes(&mut self, b: &[u8]) {
        self.extend_from_slice(b);
    }
}

/// Reading. Every method fails rather than reads past the end.
pub(crate) struct Take<'a> {
    all: &'a Bytes,
    at: usize,
}

impl<'a> Take<'a> {
    pub(crate) fn new(all: &'a Bytes) -> Take<'a> {
        Take { all, at: 0 }
    }

    pub(crate) fn left(&self) -> usize {
        self.all.len() - self.at
    }

    fn raw(&mut self, n: usize) -> Decoded<&'a [u8]> {
        let end = self.at.checked_add(n).ok_or_else(|| corrupt("length"))?;
        let out = self.all.get(self.at..end).ok_or_else(|| corrupt("too short"))?;
        self.at = end;
        Ok(out)
    }

    fn array<const N: usize>(&mut self) -> Decoded<[u8; N]> {
        self.raw(N)?.try_into().map_err(|_| corrupt("too short"))
    }

    pub(crate) fn u8(&mut self) -> Decoded<u8> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u32(&mut self) -> Decoded<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Decoded<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(crate) fn var(&mut self) -> Decoded<u64> {
        let mut v = 0u64;
        for shift in (0..64).step_by(7) {
            let b = self.u8()?;
            let part = u64::from(b & 0x7f);
            if shift == 63 && part > 1 {
                return Err(corrupt("varint"));
            }
            v |= part << shift;
            if b & 0x80 == 0 {
                return Ok(v);
            }
        }
        Err(corrupt("varint"))
    }

    /// A varint that must fit.
    pub(crate) fn var32(&mut self) -> Decoded<u32> {
        self.var()?.try_into().map_err(|_| corrupt("number out of range"))
    }

    /// A number of things that take at least `each` bytes each, so that it is bounded by what is
    /// left.
    pub(crate) fn count(&mut self, each: usize) -> Decoded<usize> {
        let n = usize::try_from(self.var()?).map_err(|_| corrupt("count"))?;
        if n.checked_mul(each).is_none_or(|need| need > self.left()) {
            return Err(corrupt("count"));
        }
        Ok(n)
    }

    /// Bytes as a slice of the input, not copied.
    pub(crate) fn slice(&mut self, n: usize) -> Decoded<Bytes> {
        let at = self.at;
        self.raw(n)?;
        Ok(self.all.slice(at..at + n))
    }

    pub(crate) fn blob(&mut self) -> Decoded<Bytes> {
        let n = self.count(1)?;
        self.slice(n)
    }

    pub(crate) fn end(&self) -> Decoded<()> {
        if self.left() == 0 { Ok(()) } else { Err(corrupt("trailing bytes")) }
    }
}
