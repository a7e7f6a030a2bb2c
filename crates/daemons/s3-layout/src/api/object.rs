//! Objects.

use super::Result;
use bytes::Bytes;
use s3::checksum::Checksum;
use s3::condition::Conditions;
use s3::xml::config::{Acl, TagSet};
use std::collections::BTreeMap;

/// Bytes that are read piece by piece.
#[allow(async_fn_in_trait, reason = "a layout and its callers live on one thread")]
pub trait Source {
    /// The next piece, at most 4 MiB and not empty; `None` at the end. After an error there is
    /// nothing more.
    async fn next(&mut self) -> Result<Option<Bytes>>;
}

/// The body of an upload.
pub trait Upload: Source {
    /// Called once, after [`Source::next`] returned `None` and before the object becomes visible:
    /// whether the body is as promised, and its sums. An error abandons the upload.
    fn finish(&mut self) -> Result<Sums>;
}

/// What is known of a body at its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// The MD5.
    pub md5: [u8; 16],
    /// The checksum to keep with the object.
    pub checksum: Option<Checksum>,
}

/// An object, or a version of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Object {
    /// The key.
    pub key: String,
    /// The version; `None` where the bucket never had versions.
    pub version: Option<String>,
    /// Bytes.
    pub size: u64,
    /// The tag, without quotes.
    pub etag: String,
    /// When it was written.
    pub modified: u64,
    /// Headers that are given back, by name in lower case: `content-type`, `cache-control`,
    /// `content-disposition`, `content-encoding`, `content-language`, `expires`,
    /// `x-amz-website-redirect-location`, and all of `x-amz-meta-`.
    pub headers: BTreeMap<String, String>,
    /// Rights, with the owner.
    pub acl: Acl,
    /// Tags.
    pub tags: TagSet,
    /// The checksum that was kept with it.
    pub checksum: Option<Checksum>,
    /// The storage class; empty for the standard one.
    pub storage_class: String,
    /// How many parts it was uploaded in; `None` if it was not.
    pub parts: Option<u32>,
}

/// A part of an object that was uploaded in parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartSpan {
    /// The part's number.
    pub number: u32,
    /// Where it begins in the object.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// The checksum that was kept with it.
    pub checksum: Option<Checksum>,
}

/// What is said of an object that is written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NewObject {
    /// How long the body is, if that is known: a quota is judged before the body is read.
    pub bytes: Option<u64>,
    /// See [`Object::headers`].
    pub headers: BTreeMap<String, String>,
    /// Rights, with the owner.
    pub acl: Acl,
    /// Tags.
    pub tags: TagSet,
    /// The storage class; empty for the standard one. `InvalidStorageClass` if there is no such.
    pub storage_class: String,
    /// `If-Match` and `If-None-Match`, judged against the object that would be replaced, in the
    /// same step in which it is. `PreconditionFailed`, or `NoSuchKey` if a tag was expected and
    /// there is no object.
    pub conditions: Conditions,
}

/// An object was written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Its version; `None` where the bucket never had versions.
    pub version: Option<String>,
    /// The tag.
    pub etag: String,
    /// The time it carries.
    pub modified: u64,
    /// Bytes.
    pub size: u64,
    /// The checksum that was kept with it.
    pub checksum: Option<Checksum>,
}

/// What a deletion did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deleted {
    /// The version that was removed, or the delete marker that was added.
    pub version: Option<String>,
    /// A delete marker was added or removed.
    pub marker: bool,
}

/// What to change of an object; `None` leaves as it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObjectChange {
    /// Rights.
    pub acl: Option<Acl>,
    /// Tags; an empty set removes them.
    pub tags: Option<TagSet>,
}
