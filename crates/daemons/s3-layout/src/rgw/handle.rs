//! A bucket that was looked up.

use super::cluster::{Attrs, nanoseconds};
use super::convert::{self, text};
use crate::api::{Bucket, BucketName, Result};
use ::rgw::bucket::{BucketInstance, flag};
use bytes::Bytes;
use s3::xml::config::Versioning;
use std::cell::RefCell;
use std::ops::Deref;
use std::rc::Rc;

/// What is known of a bucket.
pub struct Handle {
    pub(super) info: Bucket,
    pub(super) instance: BucketInstance,
    /// Id, shards and number of its index; resharding changes them.
    pub(super) index: RefCell<(Bytes, u32, u64)>,
}

impl Handle {
    /// Its owner was suspended.
    pub(super) fn is_closed(&self) -> bool {
        self.instance.has(flag::SUSPENDED)
    }

    pub(super) fn versions_enabled(&self) -> bool {
        self.info.versioning == Some(Versioning::Enabled)
    }
}

/// A bucket that was looked up.
#[derive(Clone)]
pub struct BucketRef(Rc<Handle>);

impl AsRef<Bucket> for BucketRef {
    fn as_ref(&self) -> &Bucket {
        &self.0.info
    }
}

impl Deref for BucketRef {
    type Target = Handle;
    fn deref(&self) -> &Handle {
        &self.0
    }
}

pub(super) fn handle(instance: BucketInstance, attrs: &Attrs) -> Result<BucketRef> {
    let versioning = match (instance.has(flag::VERSIONED), instance.has(flag::VERSIONS_SUSPENDED)) {
        (false, _) => None,
        (true, false) => Some(Versioning::Enabled),
        (true, true) => Some(Versioning::Suspended),
    };
    let info = Bucket {
        name: BucketName {
            tenant: text(&instance.bucket.tenant),
            name: text(&instance.bucket.name),
        },
        id: text(&instance.bucket.marker),
        owner: convert::user_id(&instance.owner),
        created: nanoseconds(instance.creation_time),
        versioning,
        object_lock: instance.has(flag::OBJ_LOCK_ENABLED),
        quota: convert::quota_value(&instance.quota),
        location: String::new(),
        settings: convert::settings(attrs)?,
    };
    let layout = &instance.layout.current_index;
    let id = instance.bucket.bucket_id.clone();
    let index = RefCell::new((id, layout.layout.normal.num_shards, layout.generation));
    Ok(BucketRef(Rc::new(Handle { info, instance, index })))
}
