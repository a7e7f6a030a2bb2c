//! Targets: percent encoding as S3 signs it, and query parameters.

use crate::error::{ErrorCode, Result, S3Error};

const HEX: &[u8; 16] = b"0123456789ABCDEF";

/// Whether S3 leaves a byte unencoded: letters, digits, `-`, `.`, `_`, `~` (RFC 3986 unreserved).
const fn unreserved(byte: u8) -> bool {
    matches!(byte, b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~')
}

/// Percent-encodes `bytes` as signatures need it; `/` stays if `keep_slash`.
pub fn encode(bytes: &[u8], keep_slash: bool) -> String {
    let mut out = String::with_capacity(bytes.len() + 8);
    encode_into(&mut out, bytes, keep_slash);
    out
}

/// [`encode`] into a string that is there already.
pub fn encode_into(out: &mut String, bytes: &[u8], keep_slash: bool) {
    for &b in bytes {
        if unreserved(b) || (keep_slash && b == b'/') {
            out.push(b as char);
        } else {
            out.push('%');
            out.push(HEX[(b >> 4) as usize] as char);
            out.push(HEX[(b & 15) as usize] as char);
        }
    }
}

/// Percent-decodes. A `%` that two hexadecimal digits do not follow is refused. `+` is a blank only
/// in query strings (`plus_is_blank`).
pub fn decode(text: &str, plus_is_blank: bool) -> Result<Vec<u8>> {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        match bytes[i] {
            b'%' => {
                let digit = |at: usize| bytes.get(at).and_then(|b| (*b as char).to_digit(16));
                let (Some(high), Some(low)) = (digit(i + 1), digit(i + 2)) else {
                    return Err(S3Error::new(
                        ErrorCode::InvalidURI,
                        "two hexadecimal digits were expected after '%' in the target",
                    ));
                };
                out.push((high << 4 | low) as u8);
                i += 3;
            }
            b'+' if plus_is_blank => {
                out.push(b' ');
                i += 1;
            }
            b => {
                out.push(b);
                i += 1;
            }
        }
    }
    Ok(out)
}

/// [`decode`] of what must be UTF-8: bucket names, keys, parameters.
pub fn decode_text(text: &str, plus_is_blank: bool) -> Result<String> {
    String::from_utf8(decode(text, plus_is_blank)?).map_err(|_| {
        S3Error::new(ErrorCode::InvalidURI, "the target is not UTF-8 after percent-decoding")
    })
}

/// Query parameters in the order of the request, decoded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    pairs: Vec<(String, String)>,
}

/// A request with more query parameters than these is refused.
pub const PARAMETERS_MAX: usize = 256;

impl Query {
    /// Parses what stands behind `?`.
    pub fn parse(raw: &str) -> Result<Query> {
        let mut pairs = Vec::new();
        for part in raw.split('&').filter(|p| !p.is_empty()) {
            if pairs.len() == PARAMETERS_MAX {
                return Err(S3Error::new(
                    ErrorCode::InvalidURI,
                    format!("at most {PARAMETERS_MAX} query parameters were expected"),
                ));
            }
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            pairs.push((decode_text(name, true)?, decode_text(value, true)?));
        }
        Ok(Query { pairs })
    }

    /// The first value of a parameter; a parameter without `=` has an empty one.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.pairs.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    /// Whether the parameter is there, with or without a value.
    pub fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// All pairs in the order of the request.
    pub fn pairs(&self) -> &[(String, String)] {
        &self.pairs
    }

    /// A parameter that is a number, if it is there.
    pub fn number(&self, name: &'static str, max: u64) -> Result<Option<u64>> {
        let Some(text) = self.get(name) else { return Ok(None) };
        match text.parse::<u64>() {
            Ok(n) if n <= max => Ok(Some(n)),
            _ => Err(S3Error::argument(
                name,
                text,
                format!("Argument {name} must be an integer between 0 and {max}"),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_signed_is_encoded_once() {
        assert_eq!(encode("a b/ü~".as_bytes(), true), "a%20b/%C3%BC~");
        assert_eq!(encode(b"a/b", false), "a%2Fb");
    }

    #[test]
    fn decoding_refuses_half_escapes_and_foreign_bytes() {
        assert_eq!(decode_text("a%20b+c", false).unwrap(), "a b+c");
        assert_eq!(decode_text("a+b", true).unwrap(), "a b");
        for bad in ["%", "%4", "%zz", "%ff"] {
            assert_eq!(decode_text(bad, false).unwrap_err().code, ErrorCode::InvalidURI, "{bad}");
        }
    }

    #[test]
    fn parameters_without_values_are_there() {
        let q = Query::parse("uploads&max-keys=7&prefix=a%2Fb&x=").unwrap();
        assert!(q.has("uploads"));
        assert_eq!(q.get("prefix"), Some("a/b"));
        assert_eq!(q.number("max-keys", 1000).unwrap(), Some(7));
        assert!(Query::parse("max-keys=-1").unwrap().number("max-keys", 9).is_err());
        assert!(Query::parse(&"a&".repeat(300)).is_err());
    }
}
