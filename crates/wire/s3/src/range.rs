//! The `Range` header and `x-amz-copy-source-range`.

use crate::error::{ErrorCode, Result, S3Error};

/// Bytes that a request asks for; resolved against an object's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Range {
    /// From the first to the last byte, both included.
    FromTo(u64, u64),
    /// From a byte to the end.
    From(u64),
    /// The last so many bytes.
    Last(u64),
}

/// A part of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first byte.
    pub offset: u64,
    /// How many bytes; at least one.
    pub length: u64,
}

impl Range {
    /// Reads a `Range` header. Forms that are not understood, and several ranges, are `None`: HTTP
    /// has such a header ignored.
    pub fn parse(header: &str) -> Option<Range> {
        let spec = header.trim().strip_prefix("bytes=")?.trim();
        let (first, last) = spec.split_once('-')?;
        let number = |t: &str| {
            let t = t.trim();
            (!t.is_empty() && t.bytes().all(|b| b.is_ascii_digit()))
                .then(|| t.parse::<u64>().unwrap_or(u64::MAX))
        };
        match (first.trim().is_empty(), last.trim().is_empty()) {
            (true, true) => None,
            (true, false) => Some(Range::Last(number(last)?)),
            (false, true) => Some(Range::From(number(first)?)),
            (false, false) => {
                let (first, last) = (number(first)?, number(last)?);
                (first <= last).then_some(Range::FromTo(first, last))
            }
        }
    }

    /// Reads `x-amz-copy-source-range`, which must be of the form `bytes=first-last`.
    pub fn parse_copy(header: &str) -> Result<Range> {
        match Range::parse(header) {
            Some(r @ Range::FromTo(..)) => Ok(r),
            _ => Err(S3Error::argument(
                "x-amz-copy-source-range",
                header,
                "The x-amz-copy-source-range value must be of the form bytes=first-last where first and last are the zero-based offsets of the first and last bytes to copy",
            )),
        }
    }

    /// The part of an object of `size` bytes, or `InvalidRange`.
    pub fn resolve(self, size: u64) -> Result<Span> {
        let refuse = || {
            Err(S3Error::from(ErrorCode::InvalidRange).with("ActualObjectSize", size.to_string()))
        };
        let (offset, end) = match self {
            Range::FromTo(first, last) => (first, last.saturating_add(1).min(size)),
            Range::From(first) => (first, size),
            Range::Last(0) => return refuse(),
            Range::Last(count) => (size.saturating_sub(count), size),
        };
        if offset >= end { refuse() } else { Ok(Span { offset, length: end - offset }) }
    }
}

impl Span {
    /// The value of `Content-Range`.
    pub fn content_range(&self, size: u64) -> String {
        format!("bytes {}-{}/{size}", self.offset, self.offset + self.length - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms() {
        assert_eq!(Range::parse("bytes=0-4"), Some(Range::FromTo(0, 4)));
        assert_eq!(Range::parse("bytes=5-"), Some(Range::From(5)));
        assert_eq!(Range::parse("bytes=-5"), Some(Range::Last(5)));
        for ignored in ["bytes=", "bytes=-", "bytes=4-2", "bytes=1-2,4-5", "lines=1-2", "bytes=a-b"]
        {
            assert_eq!(Range::parse(ignored), None, "{ignored}");
        }
    }

    #[test]
    fn resolved_against_a_size() {
        let span = |r: Range, size| r.resolve(size).map(|s| (s.offset, s.length)).ok();
        assert_eq!(span(Range::FromTo(2, 99), 10), Some((2, 8)));
        assert_eq!(span(Range::FromTo(0, u64::MAX), 10), Some((0, 10)));
        assert_eq!(span(Range::From(10), 10), None);
        assert_eq!(span(Range::Last(20), 10), Some((0, 10)));
        assert_eq!(span(Range::Last(0), 10), None);
        assert_eq!(span(Range::From(0), 0), None);
        assert_eq!(Range::FromTo(2, 5).resolve(10).unwrap().content_range(10), "bytes 2-5/10");
        assert!(Range::parse_copy("bytes=5-").is_err());
    }
}
