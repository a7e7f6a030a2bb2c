//! Lists of objects.

use super::UserId;

/// What to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct List {
    /// Keys that begin so.
    pub prefix: String,
    /// Keys with this after the prefix become one common prefix; empty for none.
    pub delimiter: String,
    /// After this key, or this common prefix with all below it; empty for the start.
    pub after: String,
    /// With versions: after this version of the key `after`.
    pub after_version: Option<String>,
    /// All versions and delete markers instead of objects.
    pub versions: bool,
    /// At most so many entries and common prefixes together.
    pub max: usize,
}

/// An object of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// The version; `None` where the bucket never had versions, and in lists of objects.
    pub version: Option<String>,
    /// It is the current version.
    pub latest: bool,
    /// It is a delete marker.
    pub marker: bool,
    /// Bytes.
    pub size: u64,
    /// The tag, without quotes.
    pub etag: String,
    /// When it was written.
    pub modified: u64,
    /// The owner.
    pub owner: UserId,
    /// The owner's name.
    pub owner_name: String,
    /// The storage class; empty for the standard one.
    pub storage_class: String,
}

/// A page of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Objects, in order.
    pub entries: Vec<Entry>,
    /// Common prefixes, in order.
    pub prefixes: Vec<String>,
    /// Where the next page begins (`after`, `after_version`), if there is more: the greatest key or
    /// common prefix of this page.
    pub next: Option<(String, Option<String>)>,
}
