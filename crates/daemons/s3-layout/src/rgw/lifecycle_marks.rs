//! Marks of buckets' entries for lifecycle: set when the work on a bucket begins and ends, as RGW's
//! own workers set them (16.2 `src/rgw/rgw_lc.h`, `LC_BUCKET_STATUS`).

use super::convert::text;
use crate::api::BucketName;
use ::rgw::lc::LcEntry;

/// Objects with buckets' entries for lifecycle (Ceph: `rgw_lc_max_objs`).
pub(super) const LIFECYCLE_SHARDS: u32 = 32;
/// The lock of such an object.
pub(super) const LIFECYCLE_LOCK: &str = "lc_process";
pub(super) const LIFECYCLE_LOCK_SECONDS: u32 = 90;

/// Where the work on a bucket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    Begun = 1,
    Failed = 2,
    Complete = 3,
}

/// The bucket of an entry, which is named `TENANT:NAME:ID`.
pub(super) fn bucket_of(entry: &LcEntry) -> Option<BucketName> {
    let text = text(&entry.bucket);
    let mut fields = text.splitn(3, ':');
    let (tenant, name) = (fields.next()?, fields.next()?);
    Some(BucketName { tenant: tenant.into(), name: name.into() })
}
