//! Which version of an object is the current one: the object's logical head (OLH).

use crate::entry::EntryMeta;
use crate::key::{ObjKey, ZoneSet};
use crate::manifest::BucketObject;
use crate::open_enum;
use bytes::Bytes;
use denc_derive::Denc;
use std::collections::BTreeMap;
use types::Utime;

open_enum! {
    /// What a gateway has to do to the head object (Ceph: `OLHLogOp`).
    OlhLogOp(u8) {
        /// Not known.
        UNKNOWN = 0,
        /// Point it to a version.
        LINK_OLH = 1,
        /// Remove it: there is no version.
        UNLINK_OLH = 2,
        /// Remove a version's object.
        REMOVE_INSTANCE = 3,
    }
}

/// A thing to do (Ceph: `rgw_bucket_olh_log_entry`, `cls/rgw/cls_rgw_types.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct OlhLogEntry {
    /// Which change it belongs to.
    pub epoch: u64,
    /// What to do.
    pub op: OlhLogOp,
    /// The tag of the gateway's change.
    pub op_tag: Bytes,
    /// The version.
    pub key: ObjKey,
    /// The version is a delete marker.
    pub delete_marker: bool,
}

/// Things to do, by epoch.
pub type OlhLog = BTreeMap<u64, Vec<OlhLogEntry>>;

/// What the index knows of an object's versions (Ceph: `rgw_bucket_olh_entry`,
/// `cls/rgw/cls_rgw_types.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct OlhEntry {
    /// The current version.
    pub key: ObjKey,
    /// It is a delete marker.
    pub delete_marker: bool,
    /// Counts the changes.
    pub epoch: u64,
    /// What gateways have yet to do.
    pub pending_log: OlhLog,
    /// Tells this head from others that the object had.
    pub tag: Bytes,
    /// There is a version.
    pub exists: bool,
    /// The last version is gone, and the head is about to be.
    pub pending_removal: bool,
}

/// A time that is written twice: its seconds alone came first (Ceph: `rgw_cls_link_olh_op`).
mod with_seconds {
    use bytes::BytesMut;
    use denc::{Encode, Features, Reader};
    use types::Utime;

    pub fn encode(time: &Utime, out: &mut BytesMut, f: Features) {
        u64::from(time.sec).encode(out, f);
        time.encode(out, f);
    }

    pub fn decode(r: &mut Reader) -> denc::Result<Utime> {
        let _seconds: u64 = r.get()?;
        r.get()
    }
}

/// Input of `bucket_link_olh` (Ceph: `rgw_cls_link_olh_op`, `cls/rgw/cls_rgw_ops.h`, version 5).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 5, compat = 1, oldest = 3)]
pub struct LinkOlhOp {
    /// The version.
    pub key: ObjKey,
    /// The head's tag.
    pub olh_tag: Bytes,
    /// The version is a delete marker.
    pub delete_marker: bool,
    /// The tag of the gateway's change.
    pub op_tag: Bytes,
    /// What is known of a delete marker.
    pub meta: EntryMeta,
    /// The change's epoch, if another zone gave it one; otherwise 0.
    pub olh_epoch: u64,
    /// Log the change.
    pub log_op: bool,
    /// Flags of the log's entry.
    pub bilog_flags: u16,
    /// Do nothing if the version is not older.
    #[denc(with = "with_seconds")]
    pub unmod_since: Utime,
    /// Compare that time to the nanosecond.
    #[denc(since = 4)]
    pub high_precision_time: bool,
    /// Zones that have the change.
    #[denc(since = 5)]
    pub zones_trace: ZoneSet,
}

/// Input of `bucket_unlink_instance` (Ceph: `rgw_cls_unlink_instance_op`,
/// `cls/rgw/cls_rgw_ops.h`, version 3).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 3, compat = 1)]
pub struct UnlinkInstanceOp {
    /// The version.
    pub key: ObjKey,
    /// The tag of the gateway's change.
    pub op_tag: Bytes,
    /// The change's epoch, if another zone gave it one; otherwise 0.
    pub olh_epoch: u64,
    /// Log the change.
    pub log_op: bool,
    /// Flags of the log's entry.
    pub bilog_flags: u16,
    /// The head's tag.
    #[denc(since = 2)]
    pub olh_tag: Bytes,
    /// Zones that have the change.
    #[denc(since = 3)]
    pub zones_trace: ZoneSet,
}

/// Input of `bucket_read_olh_log` (Ceph: `rgw_cls_read_olh_log_op`, `cls/rgw/cls_rgw_ops.h`,
/// version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct ReadOlhLogOp {
    /// The object, without a version.
    pub olh: ObjKey,
    /// After this epoch.
    pub ver_marker: u64,
    /// The head's tag.
    pub olh_tag: Bytes,
}

/// Output of `bucket_read_olh_log` (Ceph: `rgw_cls_read_olh_log_ret`, `cls/rgw/cls_rgw_ops.h`,
/// version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct ReadOlhLogRet {
    /// Things to do.
    pub log: OlhLog,
    /// There is more.
    pub is_truncated: bool,
}

/// Input of `bucket_trim_olh_log` (Ceph: `rgw_cls_trim_olh_log_op`, `cls/rgw/cls_rgw_ops.h`,
/// version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct TrimOlhLogOp {
    /// The object, without a version.
    pub olh: ObjKey,
    /// Up to this epoch, inclusive.
    pub ver: u64,
    /// The head's tag.
    pub olh_tag: Bytes,
}

/// Input of `bucket_clear_olh` (Ceph: `rgw_cls_bucket_clear_olh_op`, `cls/rgw/cls_rgw_ops.h`,
/// version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct ClearOlhOp {
    /// The object, without a version.
    pub key: ObjKey,
    /// The head's tag.
    pub olh_tag: Bytes,
}

/// The attribute of a head that has versions (Ceph: `RGWOLHInfo`, `rgw/rgw_rados.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct OlhInfo {
    /// The current version.
    pub target: BucketObject,
    /// It is a delete marker.
    pub removed: bool,
}

/// The attribute of a change under way (Ceph: `RGWOLHPendingInfo`, `rgw/rgw_rados.h`, version 1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct OlhPending {
    /// When it began.
    pub time: Utime,
}
