//! Numbers in as few bytes as they need (Ceph: `encode_packed_val`, `cls/rgw/cls_rgw_types.h`).
//!
//! Below 128 the number itself is one byte. Otherwise the first byte is 128 plus the number of
//! bytes that follow: 1, 2, 4 or 8.

use bytes::{BufMut, BytesMut};
use denc::{DecodeError, Features, Reader, Result};

/// Appends a number. 65536 and 2^24 take the shorter of two forms, as in Ceph, so that 65536 reads
/// back as 0: rows written by any gateway have to be the same bytes.
pub fn put(out: &mut BytesMut, value: u64) {
    match value {
        0..=0x7f => out.put_u8(value as u8),
        0x80..=0xff => out.put_slice(&[0x81, value as u8]),
        0x100..=0x1_0000 => {
            out.put_u8(0x82);
            out.put_u16_le(value as u16);
        }
        0x1_0001..=0x100_0000 => {
            out.put_u8(0x84);
            out.put_u32_le(value as u32);
        }
        _ => {
            out.put_u8(0x88);
            out.put_u64_le(value);
        }
    }
}

/// Reads a number.
pub fn get(r: &mut Reader) -> Result<u64> {
    Ok(match r.get::<u8>()? {
        small @ 0..=0x7f => small.into(),
        0x81 => r.get::<u8>()?.into(),
        0x82 => r.get::<u16>()?.into(),
        0x84 => r.get::<u32>()?.into(),
        0x88 => r.get::<u64>()?,
        other => {
            return Err(DecodeError::Invalid { what: "packed number", found: other.into() });
        }
    })
}

/// [`put`] and [`get`] for fields.
pub mod unsigned {
    use super::*;

    /// Appends the number.
    pub fn encode(value: &u64, out: &mut BytesMut, _: Features) {
        put(out, *value);
    }

    /// Reads the number.
    pub fn decode(r: &mut Reader) -> Result<u64> {
        get(r)
    }
}

/// [`put`] and [`get`] for fields with a sign: a negative number has eight bytes.
pub mod signed {
    use super::*;

    /// Appends the number.
    pub fn encode(value: &i64, out: &mut BytesMut, _: Features) {
        put(out, *value as u64);
    }

    /// Reads the number.
    pub fn decode(r: &mut Reader) -> Result<i64> {
        Ok(get(r)? as i64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_take_the_bytes_that_they_need() {
        for (value, len) in [
            (0, 1),
            (127, 1),
            (128, 2),
            (255, 2),
            (256, 3),
            (65535, 3),
            (65537, 5),
            (1 << 24, 5),
            ((1 << 24) + 1, 9),
            (u64::MAX, 9),
        ] {
            let mut out = BytesMut::new();
            put(&mut out, value);
            assert_eq!(out.len(), len, "{value}");
            assert_eq!(get(&mut Reader::new(out.freeze())), Ok(value));
        }
    }

    #[test]
    fn a_length_that_no_writer_uses_is_refused() {
        assert!(get(&mut Reader::new(bytes::Bytes::from_static(&[0x83, 0, 0, 0]))).is_err());
        assert!(get(&mut Reader::new(bytes::Bytes::from_static(&[0x84, 0]))).is_err());
    }
}
