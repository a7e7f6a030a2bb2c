//! Ceph's binary encoding.
//!
//! Everything is little-endian. A value is either *plain* (its fields one after the other) or
//! *enveloped*: `struct_v: u8, struct_compat: u8, length: u32`, then `length` bytes, so that an
//! older reader can skip what a newer writer appended (Ceph: `ENCODE_START`/`DECODE_START`,
//! `src/include/encoding.h`).
//!
//! * [`Encode`] writes into a [`BytesMut`]; what it writes may depend on the peer's [`Features`].
//! * [`Decode`] reads from a [`Reader`], a bounded view over [`Bytes`]: byte strings come out as
//!   slices that share the source buffer, nested envelopes as readers that cannot leave their part,
//!   and nothing is allocated before the bytes that justify it were seen.

#![forbid(unsafe_code)]

pub mod crc;
mod impls;
mod reader;

pub use bytes::{BufMut, Bytes, BytesMut};
pub use reader::Reader;

/// Feature bits of a connection's peer (Ceph: `include/ceph_features.h`). Encodings that changed
/// their shape without a version of their own depend on them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Features(pub u64);

impl Features {
    /// Everything: what is written to our own disk and between our own daemons.
    pub const ALL: Features = Features(u64::MAX);

    /// Whether every bit of `bits` is set.
    pub const fn has(self, bits: u64) -> bool {
        self.0 & bits == bits
    }
}

/// Why bytes from outside could not be understood. The peer or the medium is at fault, never the
/// caller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Fewer bytes than the type needs.
    #[error("{what}: needs {needed} bytes, {left} are left")]
    Short {
        /// The type or field that was being read.
        what: &'static str,
        /// How many bytes it needs.
        needed: usize,
        /// How many were left in the current envelope.
        left: usize,
    },
    /// The writer says that readers below `compat` must not try.
    #[error("{what}: encoded with compat version {compat}, this reader knows up to {supported}")]
    Incompatible {
        /// The type that was being read.
        what: &'static str,
        /// `struct_compat` of the envelope.
        compat: u8,
        /// The newest version that the reader knows.
        supported: u8,
    },
    /// A struct_v older than the oldest that this reader knows.
    #[error("{what}: encoded with version {struct_v}, this reader knows {oldest} and later")]
    TooOld {
        /// The type that was being read.
        what: &'static str,
        /// `struct_v` of the envelope.
        struct_v: u8,
        /// The oldest version that the reader knows.
        oldest: u8,
    },
    /// A value outside what the type allows.
    #[error("{what}: {found} is not a valid value")]
    Invalid {
        /// The type or field.
        what: &'static str,
        /// The value found (as a number; a length, tag or flag).
        found: u64,
    },
    /// Bytes after the end of a value that must fill its buffer.
    #[error("{what}: {left} bytes after its end")]
    Trailing {
        /// The type.
        what: &'static str,
        /// How many bytes were left over.
        left: usize,
    },
}

/// Result of decoding.
pub type Result<T> = std::result::Result<T, DecodeError>;

/// A type with a binary form.
pub trait Encode {
    /// Appends the value's bytes. Cannot fail: lengths over `u32::MAX` are a bug of the caller.
    fn encode(&self, out: &mut BytesMut, features: Features);

    /// The value's bytes on their own.
    fn to_bytes(&self, features: Features) -> Bytes {
        let mut out = BytesMut::new();
        self.encode(&mut out, features);
        out.freeze()
    }
}

/// A type that can be read back.
pub trait Decode: Sized {
    /// Reads one value and advances `r` past it.
    fn decode(r: &mut Reader) -> Result<Self>;

    /// Reads a value that must fill `bytes` exactly.
    fn from_bytes(bytes: &Bytes) -> Result<Self> {
        let mut r = Reader::new(bytes.clone());
        let value = Self::decode(&mut r)?;
        r.expect_end(std::any::type_name::<Self>())?;
        Ok(value)
    }
}

/// Writes an envelope: version, compat, length, then what `body` appends.
pub fn envelope(out: &mut BytesMut, struct_v: u8, compat: u8, body: impl FnOnce(&mut BytesMut)) {
    out.put_u8(struct_v);
    out.put_u8(compat);
    with_length(out, body);
}

/// Writes a `u32` length, then what `body` appends.
pub fn with_length(out: &mut BytesMut, body: impl FnOnce(&mut BytesMut)) {
    let at = out.len();
    out.put_u32_le(0);
    body(out);
    let len = u32::try_from(out.len() - at - 4).expect("an encoded value is under 4 GiB");
    out[at..at + 4].copy_from_slice(&len.to_le_bytes());
}
