//! Entity tags: the MD5 of an object's bytes, or that of its parts' MD5s.

use md5::{Digest, Md5};

/// A tag in hexadecimal without quotes, of one upload.
pub fn of_digest(md5: &[u8; 16]) -> String {
    hex(md5)
}

/// The tag of a completed multipart upload: the MD5 of the parts' MD5s, a hyphen, their count.
pub fn of_parts<'a>(parts: impl IntoIterator<Item = &'a [u8; 16]>) -> String {
    let mut whole = Md5::new();
    let mut count = 0;
    for part in parts {
        whole.update(part);
        count += 1;
    }
    format!("{}-{count}", hex(&whole.finalize()))
}

/// Lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len() * 2);
    for b in bytes {
        for nibble in [b >> 4, b & 15] {
            out.push(char::from_digit(u32::from(nibble), 16).unwrap_or('0'));
        }
    }
    out
}

/// Reads hexadecimal of a known length.
pub fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let bytes = text.as_bytes();
    if bytes.len() != N * 2 {
        return None;
    }
    let mut out = [0; N];
    for (at, pair) in bytes.chunks_exact(2).enumerate() {
        let high = (pair[0] as char).to_digit(16)?;
        let low = (pair[1] as char).to_digit(16)?;
        out[at] = (high << 4 | low) as u8;
    }
    Some(out)
}

/// A tag as a request gives it: quotes are optional.
pub fn unquote(tag: &str) -> &str {
    let tag = tag.trim();
    tag.strip_prefix('"').and_then(|t| t.strip_suffix('"')).unwrap_or(tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tag_of_parts() {
        let part: [u8; 16] = Md5::digest(b"x").into();
        assert_eq!(of_digest(&part), "9dd4e461268c8034f5c8564e155c67a6");
        let both = of_parts([&part, &part]);
        assert_eq!(both, format!("{}-2", hex(&Md5::digest([part, part].concat()))));
    }

    #[test]
    fn hexadecimal_returns() {
        assert_eq!(unhex::<2>("00fF"), Some([0, 255]));
        assert_eq!(unhex::<2>("00f"), None);
        assert_eq!(unhex::<2>("zz00"), None);
        assert_eq!(unquote("\"abc\""), "abc");
        assert_eq!(unquote("abc"), "abc");
    }
}
