//! Notifications of gateways' caches: an object of users or buckets has changed.

use crate::bucket::Pool;
use bytes::{Bytes, BytesMut};
use denc::{Decode, Encode, Features, Reader};
use denc_derive::Denc;
use std::collections::BTreeMap;
use types::Utime;

/// How many objects are notified on (Ceph: `rgw_num_control_oids`).
pub const CONTROL_OBJECTS: u32 = 8;
/// The object's data and attributes are in the notification (Ceph: `UPDATE_OBJ`).
pub const UPDATE: u32 = 0;
/// The object is no longer as it was (Ceph: `REMOVE_OBJ`).
pub const REMOVE: u32 = 1;

/// An object of RADOS (Ceph: `rgw_raw_obj`, `rgw/rgw_common.h`, version 6).
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Denc)]
#[denc(version = 6, compat = 6, oldest = 6)]
pub struct RawObject {
    /// The pool.
    pub pool: Pool,
    /// The name.
    pub oid: Bytes,
    /// What it is placed by; empty for its name.
    pub locator: Bytes,
}

/// Size and time (Ceph: `ObjectMetaInfo`, `rgw/rgw_cache.h`, version 2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 2, compat = 2, oldest = 2)]
pub struct ObjectMeta {
    /// Bytes.
    pub size: u64,
    /// When it was changed.
    pub mtime: Utime,
}

/// A version (Ceph: `obj_version`, `cls/version/cls_version_types.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct ObjectVersion {
    /// Its number.
    pub ver: u64,
    /// Which sequence of numbers.
    pub tag: Bytes,
}

/// What a cache keeps of an object (Ceph: `ObjectCacheInfo`, `rgw/rgw_cache.h`, version 5).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 5, compat = 3, oldest = 3)]
pub struct CacheInfo {
    /// What reading it returns.
    pub status: i32,
    /// Which fields count.
    pub flags: u32,
    /// The data.
    pub data: Bytes,
    /// The attributes.
    pub xattrs: BTreeMap<Bytes, Bytes>,
    /// Size and time.
    pub meta: ObjectMeta,
    /// Attributes that are gone.
    pub rm_xattrs: BTreeMap<Bytes, Bytes>,
    /// The object's user version.
    #[denc(since = 4)]
    pub epoch: u64,
    /// The version that gateways count.
    #[denc(since = 5)]
    pub version: ObjectVersion,
}

/// A notification (Ceph: `RGWCacheNotifyInfo`, `rgw/rgw_cache.h`, version 2).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheNotify {
    /// [`UPDATE`] or [`REMOVE`].
    pub op: u32,
    /// Of which object.
    pub object: RawObject,
    /// What is known of it.
    pub info: CacheInfo,
    /// Not in use.
    pub offset: u64,
    /// Not in use.
    pub ns: Bytes,
}

impl Encode for CacheNotify {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        denc::envelope(out, 2, 2, |out| {
            (self.op, &self.object, &self.info).encode(out, f);
            (self.offset, &self.ns).encode(out, f);
        });
    }
}

impl Decode for CacheNotify {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        let (_, mut r) = r.envelope("RGWCacheNotifyInfo", 2)?;
        let (op, object, info) = r.get()?;
        let (offset, ns) = r.get()?;
        Ok(CacheNotify { op, object, info, offset, ns })
    }
}
