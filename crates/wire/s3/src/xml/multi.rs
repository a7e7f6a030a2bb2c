//! Lists that requests carry: objects to delete, parts to join.

use super::{Limits, NAMESPACE, Writer, parse};
use crate::checksum::{Algorithm, Checksum};
use crate::condition::Conditions;
use crate::error::{ErrorCode, Result, S3Error};
use crate::{date, etag};

/// The most objects of one `DeleteObjects`.
pub const DELETE_OBJECTS_MAX: usize = 1000;
/// The most parts of one upload.
pub const PARTS_MAX: u32 = 10_000;

/// The body of `DeleteObjects`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delete {
    /// Only failures are answered.
    pub quiet: bool,
    /// What is to be deleted.
    pub objects: Vec<DeleteObject>,
}

/// One object of a [`Delete`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteObject {
    /// The key.
    pub key: String,
    /// One version, or the newest.
    pub version_id: Option<String>,
    /// What the object must be like.
    pub conditions: Conditions,
}

impl Delete {
    /// Reads the document.
    pub fn parse(bytes: &[u8]) -> Result<Delete> {
        let root = parse(bytes, "Delete", Limits::LIST)?;
        let mut objects = Vec::new();
        for o in root.all("Object") {
            objects.push(DeleteObject {
                key: o.need_whole("Key")?.to_owned(),
                version_id: o.text_of("VersionId").filter(|v| !v.is_empty()).map(str::to_owned),
                conditions: Conditions::of_delete_object(
                    o.text_of("ETag").map(etag::unquote),
                    o.text_of("LastModifiedTime"),
                    o.text_of("Size"),
                )?,
            });
        }
        if objects.is_empty() || objects.len() > DELETE_OBJECTS_MAX {
            return Err(S3Error::new(
                ErrorCode::MalformedXML,
                format!("1 to {DELETE_OBJECTS_MAX} objects were expected, found {}", objects.len()),
            ));
        }
        Ok(Delete { quiet: root.flag("Quiet")?.unwrap_or(false), objects })
    }

    /// Writes the document, for clients.
    pub fn to_xml(&self) -> String {
        let mut w = Writer::document("Delete", Some(NAMESPACE));
        for o in &self.objects {
            w.open("Object").text("Key", &o.key);
            w.maybe("VersionId", o.version_id.as_deref());
            w.maybe("ETag", o.conditions.matches.as_deref());
            let time = o.conditions.modified.map(date::http_date);
            w.maybe("LastModifiedTime", time.as_deref());
            w.maybe("Size", o.conditions.size.map(|s| s.to_string()).as_deref());
            w.close();
        }
        if self.quiet {
            w.text("Quiet", "true");
        }
        w.finish()
    }
}

/// One part of a `CompleteMultipartUpload`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompletePart {
    /// From 1 on.
    pub number: u32,
    /// The tag that the upload of the part was answered with, without quotes.
    pub etag: String,
    /// The part's checksum, if the client repeats it.
    pub checksum: Option<Checksum>,
}

/// Reads `CompleteMultipartUpload`. Numbers must ascend.
pub fn parse_complete(bytes: &[u8]) -> Result<Vec<CompletePart>> {
    let root = parse(bytes, "CompleteMultipartUpload", Limits::LIST)?;
    let mut parts: Vec<CompletePart> = Vec::new();
    for p in root.all("Part") {
        let number = p.need("PartNumber")?;
        let number =
            number.parse::<u32>().ok().filter(|n| (1..=PARTS_MAX).contains(n)).ok_or_else(
                || {
                    S3Error::argument(
                        "PartNumber",
                        number,
                        format!("PartNumber must be an integer between 1 and {PARTS_MAX}"),
                    )
                },
            )?;
        let mut checksum = None;
        for a in Algorithm::ALL {
            if let Some(text) = p.text_of(a.element()) {
                checksum = Some(Checksum::parse(a, text)?);
            }
        }
        match parts.last() {
            Some(last) if last.number > number => return Err(ErrorCode::InvalidPartOrder.into()),
            // Of a part that is named twice the last one counts, as with Ceph's gateway.
            Some(last) if last.number == number => drop(parts.pop()),
            _ => {}
        }
        let etag = etag::unquote(p.need("ETag")?).to_owned();
        parts.push(CompletePart { number, etag, checksum });
    }
    if parts.is_empty() {
        return Err(S3Error::new(ErrorCode::MalformedXML, "at least one Part was expected"));
    }
    Ok(parts)
}

/// Writes `CompleteMultipartUpload`, for clients.
pub fn complete_xml(parts: &[CompletePart]) -> String {
    let mut w = Writer::document("CompleteMultipartUpload", Some(NAMESPACE));
    for p in parts {
        w.open("Part").value("PartNumber", p.number).text("ETag", &format!("\"{}\"", p.etag));
        if let Some(c) = &p.checksum {
            w.text(c.algorithm.element(), &c.text());
        }
        w.close();
    }
    w.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delete_returns() {
        let d = Delete {
            quiet: true,
            objects: vec![
                DeleteObject { key: "a&b".into(), ..DeleteObject::default() },
                DeleteObject {
                    key: "ü".into(),
                    version_id: Some("null".into()),
                    conditions: Conditions {
                        matches: Some("x".into()),
                        modified: Some(1000),
                        size: Some(0),
                        ..Conditions::default()
                    },
                },
            ],
        };
        assert_eq!(Delete::parse(d.to_xml().as_bytes()).unwrap(), d);
        assert!(Delete::parse(b"<Delete></Delete>").is_err());
        let many = "<Object><Key>k</Key></Object>".repeat(1001);
        assert!(Delete::parse(format!("<Delete>{many}</Delete>").as_bytes()).is_err());
    }

    #[test]
    fn parts_ascend() {
        let part = |number| CompletePart { number, etag: "e".into(), checksum: None };
        let parts = vec![part(1), part(10_000)];
        assert_eq!(parse_complete(complete_xml(&parts).as_bytes()).unwrap(), parts);
        let code = |parts: &[CompletePart]| {
            parse_complete(complete_xml(parts).as_bytes()).unwrap_err().code
        };
        assert_eq!(code(&[part(2), part(1)]), ErrorCode::InvalidPartOrder);
        let other = CompletePart { etag: "f".into(), ..part(2) };
        let twice = complete_xml(&[part(2), other.clone()]);
        assert_eq!(parse_complete(twice.as_bytes()).unwrap(), [other]);
        assert_eq!(code(&[part(0)]), ErrorCode::InvalidArgument);
        assert_eq!(code(&[part(10_001)]), ErrorCode::InvalidArgument);
        assert_eq!(code(&[]), ErrorCode::MalformedXML);
    }
}
