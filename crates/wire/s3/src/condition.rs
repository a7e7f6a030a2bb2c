//! Conditions on requests: `If-Match` and its kin.

use crate::date;
use crate::error::{ErrorCode, Result, S3Error};
use crate::etag::unquote;
use http::HeaderMap;

/// The conditions of one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// `If-Match`: the object must have one of these tags; `*` is any object.
    pub matches: Option<String>,
    /// `If-None-Match`: the object must not have one of these tags; `*` is any object.
    pub none_match: Option<String>,
    /// `If-Modified-Since`, in seconds.
    pub modified_since: Option<u64>,
    /// `If-Unmodified-Since`, in seconds.
    pub unmodified_since: Option<u64>,
    /// `x-amz-if-match-last-modified-time` of a deletion, in seconds.
    pub modified: Option<u64>,
    /// `x-amz-if-match-size` of a deletion.
    pub size: Option<u64>,
}

/// An object that is to be deleted. A delete marker has no tag and no bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Doomed<'a> {
    /// Its tag.
    pub etag: &'a str,
    /// When it was changed, in seconds.
    pub modified: u64,
    /// Its bytes.
    pub size: u64,
}

/// Which headers hold conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// The object that the request names.
    Target,
    /// The source of a copy (`x-amz-copy-source-if-*`).
    CopySource,
}

impl Conditions {
    /// Reads the conditions of a request. A date that is none is ignored, as HTTP asks.
    pub fn parse(headers: &HeaderMap, of: Of) -> Conditions {
        let names = match of {
            Of::Target => ["if-match", "if-none-match", "if-modified-since", "if-unmodified-since"],
            Of::CopySource => [
                "x-amz-copy-source-if-match",
                "x-amz-copy-source-if-none-match",
                "x-amz-copy-source-if-modified-since",
                "x-amz-copy-source-if-unmodified-since",
            ],
        };
        let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok()).map(str::to_owned);
        Conditions {
            matches: text(names[0]),
            none_match: text(names[1]),
            modified_since: text(names[2]).and_then(|t| date::parse_http(&t)),
            unmodified_since: text(names[3]).and_then(|t| date::parse_http(&t)),
            ..Conditions::default()
        }
    }

    /// Reads the conditions of a deletion. A value that cannot be read is refused: more would be
    /// deleted than the client means.
    pub fn of_delete(headers: &HeaderMap) -> Result<Conditions> {
        const TIME: &str = "x-amz-if-match-last-modified-time";
        const SIZE: &str = "x-amz-if-match-size";
        let text = |name: &str| headers.get(name).map(|v| v.to_str().unwrap_or_default());
        Ok(Conditions {
            matches: text("if-match").map(str::to_owned),
            modified: text(TIME).map(|t| time(TIME, t)).transpose()?,
            size: text(SIZE).map(|t| size(SIZE, t)).transpose()?,
            ..Conditions::default()
        })
    }

    /// The conditions on one object of a `DeleteObjects`: texts of `ETag`, `LastModifiedTime` and
    /// `Size`.
    pub fn of_delete_object(
        etag: Option<&str>,
        modified: Option<&str>,
        bytes: Option<&str>,
    ) -> Result<Conditions> {
        Ok(Conditions {
            matches: etag.map(str::to_owned),
            modified: modified.map(|t| time("LastModifiedTime", t)).transpose()?,
            size: bytes.map(|t| size("Size", t)).transpose()?,
            ..Conditions::default()
        })
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        *self == Conditions::default()
    }

    /// Judges a read of an object with this tag and time (seconds) of change. A tag that matches
    /// decides alone: the date beside it is not looked at (RFC 9110, 13.2.2).
    pub fn for_read(&self, etag: &str, modified: u64) -> Result<()> {
        let failed = |which| {
            Err(S3Error::from(ErrorCode::PreconditionFailed).with("Condition", String::from(which)))
        };
        if let Some(tags) = &self.matches {
            if !any(tags, etag) {
                return failed("If-Match");
            }
        } else if self.unmodified_since.is_some_and(|t| modified > t) {
            return failed("If-Unmodified-Since");
        }
        if let Some(tags) = &self.none_match {
            if any(tags, etag) {
                return Err(ErrorCode::NotModified.into());
            }
        } else if self.modified_since.is_some_and(|t| modified <= t) {
            return Err(ErrorCode::NotModified.into());
        }
        Ok(())
    }

    /// [`Conditions::for_read`] of the source of a copy: what is not modified has failed, too.
    pub fn for_copy(&self, etag: &str, modified: u64) -> Result<()> {
        self.for_read(etag, modified).map_err(|e| match e.code {
            ErrorCode::NotModified => {
                S3Error::from(ErrorCode::PreconditionFailed).with("Condition", "If-None-Match")
            }
            _ => e,
        })
    }

    /// Judges a write over the object that is there now, if one is.
    pub fn for_write(&self, current_etag: Option<&str>) -> Result<()> {
        if let Some(tags) = &self.matches {
            match current_etag {
                None => return Err(ErrorCode::NoSuchKey.into()),
                Some(etag) if !any(tags, etag) => {
                    return Err(
                        S3Error::from(ErrorCode::PreconditionFailed).with("Condition", "If-Match")
                    );
                }
                Some(_) => {}
            }
        }
        if let (Some(tags), Some(etag)) = (&self.none_match, current_etag)
            && any(tags, etag)
        {
            return Err(
                S3Error::from(ErrorCode::PreconditionFailed).with("Condition", "If-None-Match")
            );
        }
        Ok(())
    }

    /// Judges the deletion of what is there. Nothing is as good as deleted (20.1, `DeleteObject`).
    pub fn for_delete(&self, doomed: Option<Doomed>) -> Result<()> {
        let Some(doomed) = doomed else { return Ok(()) };
        let failed = if self.matches.as_deref().is_some_and(|tags| !any(tags, doomed.etag)) {
            "If-Match"
        } else if self.modified.is_some_and(|t| t != doomed.modified) {
            "x-amz-if-match-last-modified-time"
        } else if self.size.is_some_and(|s| s != doomed.size) {
            "x-amz-if-match-size"
        } else {
            return Ok(());
        };
        Err(S3Error::from(ErrorCode::PreconditionFailed).with("Condition", failed))
    }
}

fn time(name: &'static str, text: &str) -> Result<u64> {
    date::parse_http(text)
        .or_else(|| date::parse_iso8601(text))
        .ok_or_else(|| S3Error::argument(name, text, "a time was expected"))
}

fn size(name: &'static str, text: &str) -> Result<u64> {
    let number = text.trim().parse();
    number.map_err(|_| S3Error::argument(name, text, "a number of bytes was expected"))
}

/// Whether one of a comma-separated list of tags is `etag`.
fn any(tags: &str, etag: &str) -> bool {
    tags.split(',')
        .map(str::trim)
        .any(|t| t == "*" || unquote(t.strip_prefix("W/").unwrap_or(t)).eq_ignore_ascii_case(etag))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(&str, &str)]) -> Conditions {
        let mut h = HeaderMap::new();
        for (n, v) in pairs {
            h.insert(http::HeaderName::from_bytes(n.as_bytes()).unwrap(), v.parse().unwrap());
        }
        Conditions::parse(&h, Of::Target)
    }

    #[test]
    fn reads() {
        let code = |c: &Conditions, tag| c.for_read(tag, 100).err().map(|e| e.code);
        let c = of(&[("if-match", "\"a\", \"b\"")]);
        assert_eq!(code(&c, "b"), None);
        assert_eq!(code(&c, "c"), Some(ErrorCode::PreconditionFailed));
        let c = of(&[("if-none-match", "*")]);
        assert_eq!(code(&c, "c"), Some(ErrorCode::NotModified));
        let later = date::http_date(101);
        let c = of(&[("if-modified-since", &later)]);
        assert_eq!(code(&c, "c"), Some(ErrorCode::NotModified));
        let c = of(&[("if-unmodified-since", &date::http_date(99)), ("if-match", "c")]);
        assert_eq!(code(&c, "c"), None, "a tag that matches decides alone");
    }

    #[test]
    fn writes() {
        let code = |c: &Conditions, tag| c.for_write(tag).err().map(|e| e.code);
        let c = of(&[("if-none-match", "*")]);
        assert_eq!(code(&c, None), None);
        assert_eq!(code(&c, Some("x")), Some(ErrorCode::PreconditionFailed));
        let c = of(&[("if-match", "x")]);
        assert_eq!(code(&c, None), Some(ErrorCode::NoSuchKey));
        assert_eq!(code(&c, Some("y")), Some(ErrorCode::PreconditionFailed));
        assert_eq!(code(&c, Some("x")), None);
    }

    #[test]
    fn deletions() {
        let mut h = HeaderMap::new();
        let marker = Doomed { modified: 100, ..Doomed::default() };
        let object = Doomed { etag: "x", modified: 100, size: 7 };
        let judged = |h: &HeaderMap, of| {
            Conditions::of_delete(h).unwrap().for_delete(of).map_err(|e| e.details)
        };
        let failed = |name: &str| Err(vec![("Condition", name.to_owned())]);
        h.insert("if-match", "\"y\"".parse().unwrap());
        assert_eq!(judged(&h, None), Ok(()));
        assert_eq!(judged(&h, Some(object)), failed("If-Match"));
        h.insert("if-match", "*".parse().unwrap());
        assert_eq!(judged(&h, Some(marker)), Ok(()));
        h.insert("if-match", "x".parse().unwrap());
        assert_eq!(judged(&h, Some(marker)), failed("If-Match"));
        for (name, good, bad) in [
            ("x-amz-if-match-size", "7".to_owned(), "8".to_owned()),
            ("x-amz-if-match-last-modified-time", date::http_date(100), date::http_date(101)),
        ] {
            h.insert(name, good.parse().unwrap());
            assert_eq!(judged(&h, Some(object)), Ok(()));
            h.insert(name, bad.parse().unwrap());
            assert_eq!(judged(&h, Some(object)), failed(name));
            h.insert(name, "soon".parse().unwrap());
            let refused = Conditions::of_delete(&h).unwrap_err();
            assert_eq!(refused.code, ErrorCode::InvalidArgument, "{name}");
            h.remove(name);
        }
    }
}
