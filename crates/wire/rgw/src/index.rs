//! Calls on a bucket's index.

use crate::entry::{EntryMeta, EntryVer, ModifyOp, ObjCategory};
use crate::header::{CategoryStats, Dir, DirHeader};
use crate::key::{ObjKey, ZoneSet};
use bytes::{Bytes, BytesMut};
use denc::{Decode, Encode, Features, Reader};
use denc_derive::Denc;
use std::collections::BTreeMap;

/// Input of `bucket_set_tag_timeout` (Ceph: `rgw_cls_tag_timeout_op`, `cls/rgw/cls_rgw_ops.h`,
/// version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct TagTimeoutOp {
    /// Seconds.
    pub tag_timeout: u64,
}

/// Input of `bucket_prepare_op` (Ceph: `rgw_cls_obj_prepare_op`, `cls/rgw/cls_rgw_ops.h`,
/// version 7).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 7, compat = 5, oldest = 5)]
pub struct PrepareOp {
    /// What is about to happen.
    pub op: ModifyOp,
    /// The change's tag.
    pub tag: Bytes,
    /// What the head object is placed by.
    pub locator: Bytes,
    /// Log the change.
    pub log_op: bool,
    /// The object.
    pub key: ObjKey,
    /// Flags of the log's entry.
    #[denc(since = 6)]
    pub bilog_flags: u16,
    /// Zones that have the change.
    #[denc(since = 7)]
    pub zones_trace: ZoneSet,
}

/// Input of `bucket_complete_op` (Ceph: `rgw_cls_obj_complete_op`, `cls/rgw/cls_rgw_ops.h`,
/// version 9).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompleteOp {
    /// What happened.
    pub op: ModifyOp,
    /// The version of the head object.
    pub ver: EntryVer,
    /// What is known of the object.
    pub meta: EntryMeta,
    /// The tag that announced the change; empty if nothing did.
    pub tag: Bytes,
    /// What the head object is placed by.
    pub locator: Bytes,
    /// Entries to remove along with it: parts of an upload.
    pub remove_objs: Vec<ObjKey>,
    /// Log the change.
    pub log_op: bool,
    /// The object.
    pub key: ObjKey,
    /// Flags of the log's entry.
    pub bilog_flags: u16,
    /// Zones that have the change.
    pub zones_trace: ZoneSet,
}

impl Encode for CompleteOp {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        denc::envelope(out, 9, 7, |out| {
            self.op.encode(out, f);
            // The version's pool came later, and then the whole of it once more.
            self.ver.epoch.encode(out, f);
            self.meta.encode(out, f);
            self.tag.encode(out, f);
            self.locator.encode(out, f);
            self.remove_objs.encode(out, f);
            self.ver.encode(out, f);
            self.log_op.encode(out, f);
            self.key.encode(out, f);
            self.bilog_flags.encode(out, f);
            self.zones_trace.encode(out, f);
        });
    }
}

impl Decode for CompleteOp {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        const WHAT: &str = "rgw_cls_obj_complete_op";
        let (v, mut r) = r.envelope(WHAT, 9)?;
        if v < 7 {
            return Err(denc::DecodeError::TooOld { what: WHAT, struct_v: v, oldest: 7 });
        }
        let op = r.get()?;
        let _epoch: u64 = r.get()?;
        let mut o = CompleteOp {
            op,
            meta: r.get()?,
            tag: r.get()?,
            locator: r.get()?,
            remove_objs: r.get()?,
            ver: r.get()?,
            log_op: r.get()?,
            key: r.get()?,
            ..CompleteOp::default()
        };
        if v >= 8 {
            o.bilog_flags = r.get()?;
        }
        if v >= 9 {
            o.zones_trace = r.get()?;
        }
        Ok(o)
    }
}

/// Input of `bucket_list` (Ceph: `rgw_cls_list_op`, `cls/rgw/cls_rgw_ops.h`, version 6).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 6, compat = 4, oldest = 4)]
pub struct ListOp {
    /// At most so many.
    pub num_entries: u32,
    /// Only names that begin so.
    pub filter_prefix: Bytes,
    /// After this object.
    pub start_obj: ObjKey,
    /// Also versions that are not current, and delete markers.
    #[denc(since = 5)]
    pub list_versions: bool,
    /// Names with this after the prefix are one common prefix.
    #[denc(since = 6)]
    pub delimiter: Bytes,
}

/// Output of `bucket_list` (Ceph: `rgw_cls_list_ret`, `cls/rgw/cls_rgw_ops.h`, version 4 of
/// 16.2.15; from version 3 on the class has filtered what is not visible). It comes with
/// [`LIST_ADVANCED`] if there is more but no entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 4, compat = 2, oldest = 2)]
pub struct ListRet {
    /// Header and entries.
    pub dir: Dir,
    /// There is more.
    pub is_truncated: bool,
    /// If there is more: the last object that was looked at, shown or not.
    #[denc(since = 4)]
    pub marker: ObjKey,
}

/// The result of a `bucket_list` that looked at as many rows as one call may and found none to
/// show: `-EFBIG`, with output. The caller goes on after [`ListRet::marker`] (Ceph:
/// `RGWBIAdvanceAndRetryError`, `cls/rgw/cls_rgw_const.h`, 16.2.15).
pub const LIST_ADVANCED: i32 = -27;

/// Output of `bucket_check_index` (Ceph: `rgw_cls_check_index_ret`, `cls/rgw/cls_rgw_ops.h`,
/// version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct CheckIndexRet {
    /// The header as it is.
    pub existing_header: DirHeader,
    /// The header with totals counted anew.
    pub calculated_header: DirHeader,
}

/// Input of `bucket_update_stats` (Ceph: `rgw_cls_bucket_update_stats_op`,
/// `cls/rgw/cls_rgw_ops.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct UpdateStatsOp {
    /// Set the totals, rather than add to them.
    pub absolute: bool,
    /// Totals.
    pub stats: BTreeMap<ObjCategory, CategoryStats>,
}

/// What to do with an entry that does not agree with its object (Ceph: `CEPH_RGW_REMOVE`,
/// `CEPH_RGW_UPDATE`, `CEPH_RGW_DIR_SUGGEST_LOG_OP`).
pub mod suggest {
    /// Remove the entry.
    pub const REMOVE: u8 = b'r';
    /// Replace the entry.
    pub const UPDATE: u8 = b'u';
    /// With either: log it.
    pub const LOG_OP: u8 = 0x80;
}
