//! Uploads in parts.

use crate::bucket::Placement;
use crate::manifest::Manifest;
use bytes::{Bytes, BytesMut};
use denc::{Decode, Encode, Features, Reader};
use denc_derive::Denc;
use std::collections::BTreeSet;
use types::Utime;

/// What the ids of uploads begin with that have their parts in order (Ceph:
/// `MULTIPART_UPLOAD_ID_PREFIX`).
pub const ID_PREFIX: &str = "2~";

/// The data of the object that stands for an upload (Ceph: `multipart_upload_info`,
/// `rgw/rgw_op.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct UploadInfo {
    /// Where parts go.
    pub placement: Placement,
}

/// A compressed piece (Ceph: `compression_block`, `rgw/rgw_compression_types.h`, version 1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct CompressionBlock {
    /// Where it begins for clients.
    pub old_offset: u64,
    /// Where it begins in the data.
    pub new_offset: u64,
    /// Bytes in the data.
    pub length: u64,
}

/// How data is compressed (Ceph: `RGWCompressionInfo`, `rgw/rgw_compression_types.h`, version 2).
#[derive(Clone, Debug, PartialEq, Eq, Denc)]
#[denc(version = 2, compat = 1, oldest = 2)]
pub struct CompressionInfo {
    /// By what; `none` for not.
    pub kind: Bytes,
    /// Bytes for clients.
    pub original_size: u64,
    /// What the compressor has to know.
    pub message: Option<i32>,
    /// The pieces.
    pub blocks: Vec<CompressionBlock>,
}

impl Default for CompressionInfo {
    fn default() -> Self {
        CompressionInfo {
            kind: Bytes::from_static(b"none"),
            original_size: 0,
            message: None,
            blocks: Vec::new(),
        }
    }
}

/// A part (Ceph: `RGWUploadPartInfo`, `rgw/rgw_multi.h`, version 4 of 16.2, version 5 of 18.2).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartInfo {
    /// Its number.
    pub number: u32,
    /// Bytes that it takes.
    pub size: u64,
    /// Its ETag.
    pub etag: Bytes,
    /// When it was written.
    pub modified: Utime,
    /// Where its data is.
    pub manifest: Manifest,
    /// How it is compressed.
    pub compression: CompressionInfo,
    /// Bytes for clients.
    pub accounted_size: u64,
    /// Prefixes of the data of parts that this one replaced, which is still there; none in
    /// version 4.
    pub past_prefixes: Option<BTreeSet<Bytes>>,
    /// What later releases add, with their version.
    pub later: Option<(u8, Bytes)>,
}

/// The version of 16.2.
const VERSION: u8 = 4;
/// The first version with prefixes of data that was replaced.
const WITH_PAST: u8 = 5;

impl Encode for PartInfo {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        let own = if self.past_prefixes.is_some() { WITH_PAST } else { VERSION };
        let version = self.later.as_ref().map_or(own, |(v, _)| *v);
        denc::envelope(out, version, 2, |out| {
            (self.number, self.size, &self.etag).encode(out, f);
            (self.modified, &self.manifest, &self.compression).encode(out, f);
            self.accounted_size.encode(out, f);
            if version >= WITH_PAST {
                self.past_prefixes.clone().unwrap_or_default().encode(out, f);
            }
            if let Some((_, rest)) = &self.later {
                out.extend_from_slice(rest);
            }
        });
    }
}

impl Decode for PartInfo {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        const WHAT: &str = "RGWUploadPartInfo";
        let (v, mut r) = r.envelope(WHAT, VERSION)?;
        if v < VERSION {
            return Err(denc::DecodeError::TooOld { what: WHAT, struct_v: v, oldest: VERSION });
        }
        let (number, size, etag) = r.get()?;
        let (modified, manifest, compression) = r.get()?;
        let accounted_size = r.get()?;
        let past_prefixes = if v >= WITH_PAST { Some(r.get()?) } else { None };
        let later = (v > WITH_PAST).then(|| (v, r.rest()));
        Ok(PartInfo {
            number,
            size,
            etag,
            modified,
            manifest,
            compression,
            accounted_size,
            past_prefixes,
            later,
        })
    }
}

impl PartInfo {
    /// Manifests of the parts that this one replaced, of which data is still there. Their sizes are
    /// taken to be this part's, as Ceph does (`RadosMultipartUpload::cleanup_part_history`, 18.2).
    pub fn past(&self) -> impl Iterator<Item = Manifest> {
        let prefixes = self.past_prefixes.iter().flatten();
        prefixes.map(|prefix| Manifest { prefix: prefix.clone(), ..self.manifest.clone() })
    }
}

/// Input of `mp_upload_part_info_update` (Ceph: `cls_rgw_mp_upload_part_info_update_op`,
/// `cls/rgw/cls_rgw_ops.h`, 18.2, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct PartUpdateOp {
    /// The part's key.
    pub key: Bytes,
    /// The part.
    pub info: PartInfo,
}

/// The key of a part in the map of its upload's object.
pub fn part_key(number: u32) -> String {
    format!("part.{number:08}")
}

/// The object that stands for an upload, in the namespace `multipart`.
pub fn meta_name(key: &[u8], id: &[u8]) -> Bytes {
    [key, b".", id, b".meta"].concat().into()
}

/// The key and the id that such a name has; `None` if it is not of an upload.
pub fn parse_meta_name(name: &[u8]) -> Option<(&[u8], &[u8])> {
    let name = name.strip_suffix(b".meta")?;
    let dot = name.iter().rposition(|b| *b == b'.')?;
    Some((&name[..dot], &name[dot + 1..])).filter(|(key, id)| !key.is_empty() && !id.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_has_the_version_of_what_it_tells() {
        let version = |part: &PartInfo| {
            let mut out = BytesMut::new();
            part.encode(&mut out, Features::ALL);
            assert_eq!(&PartInfo::decode(&mut Reader::new(out.clone().freeze())).unwrap(), part);
            out[0]
        };
        let mut part = PartInfo { number: 3, size: 7, accounted_size: 7, ..PartInfo::default() };
        assert_eq!((version(&part), part.past().count()), (4, 0));
        part.past_prefixes = Some(BTreeSet::new());
        assert_eq!((version(&part), part.past().count()), (5, 0));
        part.past_prefixes = Some(["k.2~a".into(), "k.2~b".into()].into());
        let past: Vec<Bytes> = part.past().map(|m| m.prefix).collect();
        assert_eq!((version(&part), past), (5, vec!["k.2~a".into(), "k.2~b".into()]));
        part.later = Some((6, Bytes::from_static(b"more")));
        assert_eq!(version(&part), 6);
    }

    #[test]
    fn names_of_uploads_return() {
        let name = meta_name(b"dir/a.b", b"2~x-y_z");
        assert_eq!(name, "dir/a.b.2~x-y_z.meta");
        assert_eq!(parse_meta_name(&name), Some((&b"dir/a.b"[..], &b"2~x-y_z"[..])));
        for none in ["a.1", ".meta", "x.meta", ".id.meta"] {
            assert_eq!(parse_meta_name(none.as_bytes()), None, "{none}");
        }
        assert_eq!(part_key(12), "part.00000012");
    }
}
