use crate::{Decode, DecodeError, Result};
use bytes::Bytes;

/// A bounded cursor over shared bytes.
#[derive(Clone, Debug)]
pub struct Reader {
    data: Bytes,
    pos: usize,
}

impl Reader {
    /// Reads from the start of `data`.
    pub fn new(data: Bytes) -> Self {
        Reader { data, pos: 0 }
    }

    /// Bytes not read yet.
    pub fn left(&self) -> usize {
        self.data.len() - self.pos
    }

    /// Bytes read so far.
    pub fn position(&self) -> usize {
        self.pos
    }

    /// Everything not read yet, without reading it.
    pub fn peek(&self) -> &[u8] {
        &self.data[self.pos..]
    }

    fn need(&self, what: &'static str, needed: usize) -> Result<()> {
        if needed > self.left() {
            return Err(DecodeError::Short { what, needed, left: self.left() });
        }
        Ok(())
    }

    /// The next `N` bytes by value.
    pub fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N]> {
        self.need(what, N)?;
        let mut a = [0; N];
        a.copy_from_slice(&self.data[self.pos..self.pos + N]);
        self.pos += N;
        Ok(a)
    }

    /// The next `len` bytes as a slice that shares the source buffer.
    pub fn bytes(&mut self, what: &'static str, len: usize) -> Result<Bytes> {
        self.need(what, len)?;
        let b = self.data.slice(self.pos..self.pos + len);
        self.pos += len;
        Ok(b)
    }

    /// Everything that is left.
    pub fn rest(&mut self) -> Bytes {
        let b = self.data.slice(self.pos..);
        self.pos = self.data.len();
        b
    }

    /// Skips `len` bytes.
    pub fn skip(&mut self, what: &'static str, len: usize) -> Result<()> {
        self.need(what, len)?;
        self.pos += len;
        Ok(())
    }

    /// Reads a value.
    pub fn get<T: Decode>(&mut self) -> Result<T> {
        T::decode(self)
    }

    /// Reads a `u32` element count and checks that `count * min_bytes` can still be there, so that
    /// a hostile count cannot make the caller reserve memory. `min_bytes` is the smallest encoding
    /// of one element (at least 1).
    pub fn count(&mut self, what: &'static str, min_bytes: usize) -> Result<usize> {
        let n = u32::from_le_bytes(self.array(what)?) as usize;
        self.need(what, n.saturating_mul(min_bytes.max(1)))?;
        Ok(n)
    }

    /// A reader over the next `len` bytes, which are skipped here.
    pub fn sub(&mut self, what: &'static str, len: usize) -> Result<Reader> {
        Ok(Reader::new(self.bytes(what, len)?))
    }

    /// Opens an envelope: returns its `struct_v` and a reader over its body. `supported` is the
    /// newest version that the caller knows; a larger compat version is refused.
    pub fn envelope(&mut self, what: &'static str, supported: u8) -> Result<(u8, Reader)> {
        let [struct_v, compat] = self.array(what)?;
        if compat > supported {
            return Err(DecodeError::Incompatible { what, compat, supported });
        }
        let len = u32::from_le_bytes(self.array(what)?) as usize;
        Ok((struct_v, self.sub(what, len)?))
    }

    /// Fails unless everything was read.
    pub fn expect_end(&self, what: &'static str) -> Result<()> {
        match self.left() {
            0 => Ok(()),
            left => Err(DecodeError::Trailing { what, left }),
        }
    }
}
