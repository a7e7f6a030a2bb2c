//! Uploads in parts.

use super::UserId;
use s3::checksum::{Algorithm, Checksum, Coverage};
use s3::condition::Conditions;
use s3::xml::config::{Acl, TagSet};
use std::collections::BTreeMap;

/// An upload to begin. Its fields become those of the object.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NewUpload {
    /// See [`Object::headers`](super::Object::headers).
    pub headers: BTreeMap<String, String>,
    /// Rights, with the owner.
    pub acl: Acl,
    /// Tags.
    pub tags: TagSet,
    /// The storage class; empty for the standard one.
    pub storage_class: String,
    /// The checksum that parts have, and what the object's covers.
    pub checksum: Option<(Algorithm, Coverage)>,
}

/// An upload under way.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PendingUpload {
    /// The key.
    pub key: String,
    /// The upload's id.
    pub id: String,
    /// When it began.
    pub initiated: u64,
    /// The owner.
    pub owner: UserId,
    /// The owner's name.
    pub owner_name: String,
    /// The storage class; empty for the standard one.
    pub storage_class: String,
    /// The checksum that parts have, and what the object's covers.
    pub checksum: Option<(Algorithm, Coverage)>,
}

/// A part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// The number, from 1 on.
    pub number: u32,
    /// Bytes.
    pub size: u64,
    /// The tag, without quotes.
    pub etag: String,
    /// When it was written.
    pub modified: u64,
    /// The checksum that was kept with it.
    pub checksum: Option<Checksum>,
}

/// Some parts of an upload.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PartPage {
    /// The upload.
    pub upload: PendingUpload,
    /// In order of number.
    pub parts: Vec<Part>,
    /// There are more.
    pub more: bool,
}

/// Which uploads to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Uploads {
    /// Keys that begin so.
    pub prefix: String,
    /// Keys with this after the prefix become one common prefix; empty for none.
    pub delimiter: String,
    /// After this key; with `after_id`, after that upload of the key.
    pub after: String,
    /// See `after`; empty for none.
    pub after_id: String,
    /// At most so many uploads and common prefixes together.
    pub max: usize,
}

/// Some uploads.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UploadPage {
    /// In order of key and id.
    pub uploads: Vec<PendingUpload>,
    /// Common prefixes, in order.
    pub prefixes: Vec<String>,
    /// Where the next page begins (`after`, `after_id`), if there is more.
    pub next: Option<(String, String)>,
}

/// What a request says of an object that is made of parts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Complete {
    /// Conditions on the object that is replaced.
    pub conditions: Conditions,
    /// The checksum of the object, if the client repeats it.
    pub checksum: Option<Checksum>,
    /// Its bytes, if the client repeats them.
    pub bytes: Option<u64>,
}
