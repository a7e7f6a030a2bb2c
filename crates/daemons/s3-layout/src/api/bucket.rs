//! Buckets.

use super::{Quota, UserId};
use bytes::Bytes;
use s3::xml::config::{Acl, Cors, Lifecycle, Ownership, PublicAccessBlock, TagSet, Versioning};
use std::fmt;

/// A bucket's name.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BucketName {
    /// The tenant; empty for the default one.
    pub tenant: String,
    /// The name in the tenant.
    pub name: String,
}

/// `[TENANT/]NAME`.
impl fmt::Display for BucketName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.tenant.is_empty() {
            f.write_str(&self.name)
        } else {
            write!(f, "{}/{}", self.tenant, self.name)
        }
    }
}

/// A bucket.
#[derive(Clone, Debug, PartialEq)]
pub struct Bucket {
    /// The name.
    pub name: BucketName,
    /// Tells it from earlier and later buckets of the same name.
    pub id: String,
    /// The owner.
    pub owner: UserId,
    /// When it was made.
    pub created: u64,
    /// Whether objects have versions; `None` if they never had.
    pub versioning: Option<Versioning>,
    /// Versions can be locked.
    pub object_lock: bool,
    /// The bucket's own quota.
    pub quota: Quota,
    /// Where it is (`LocationConstraint`); empty for the default place.
    pub location: String,
    /// What its owner has set.
    pub settings: Settings,
}

/// What a bucket's owner can set. `None`: not set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// Rights.
    pub acl: Acl,
    /// The policy: JSON as it came.
    pub policy: Option<Bytes>,
    /// Rules for requests of web pages.
    pub cors: Option<Cors>,
    /// When objects expire.
    pub lifecycle: Option<Lifecycle>,
    /// Tags.
    pub tags: Option<TagSet>,
    /// Limits of public rights.
    pub public_access: Option<PublicAccessBlock>,
    /// Which account owns objects.
    pub ownership: Option<Ownership>,
}

/// One change of a bucket. `None` removes the setting.
#[derive(Clone, Debug, PartialEq)]
pub enum BucketChange {
    /// Rights.
    Acl(Acl),
    /// The policy.
    Policy(Option<Bytes>),
    /// Rules for requests of web pages.
    Cors(Option<Cors>),
    /// When objects expire.
    Lifecycle(Option<Lifecycle>),
    /// Tags.
    Tags(Option<TagSet>),
    /// Limits of public rights.
    PublicAccess(Option<PublicAccessBlock>),
    /// Which account owns objects.
    Ownership(Option<Ownership>),
    /// Whether objects have versions.
    Versioning(Versioning),
    /// The bucket's own quota.
    Quota(Quota),
}

/// A bucket to make.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NewBucket {
    /// The name.
    pub name: BucketName,
    /// The owner, which must exist.
    pub owner: UserId,
    /// Rights.
    pub acl: Acl,
    /// `LocationConstraint`, empty for none: `ZONEGROUP[:PLACEMENT]`.
    pub location: String,
    /// Versions can be locked. `NotImplemented` where a layout cannot.
    pub object_lock: bool,
    /// Which account owns objects.
    pub ownership: Option<Ownership>,
}

/// A bucket in its owner's list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BucketEntry {
    /// The name.
    pub name: String,
    /// When it was made.
    pub created: u64,
    /// Bytes in it, as last accounted.
    pub bytes: u64,
    /// Objects in it, as last accounted.
    pub objects: u64,
}

/// Some buckets of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BucketPage {
    /// In order of name.
    pub buckets: Vec<BucketEntry>,
    /// There are more.
    pub more: bool,
}

/// How much is in a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BucketStats {
    /// Objects, all versions of them.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Their bytes, each object's rounded up to 4 KiB.
    pub rounded: u64,
}
