//! The log of changes of a bucket's index, which other zones follow.

use crate::entry::{EntryVer, ModifyOp, PendingState};
use crate::key::ZoneSet;
use crate::packed;
use bytes::Bytes;
use denc_derive::Denc;
use types::Utime;

/// The change is to a version of an object (Ceph: `RGW_BILOG_FLAG_VERSIONED_OP`).
pub const FLAG_VERSIONED_OP: u16 = 0x1;

/// A change (Ceph: `rgw_bi_log_entry`, `cls/rgw/cls_rgw_types.h`, version 4).
#[derive(Clone, Debug, PartialEq, Eq, Denc)]
#[denc(version = 4, compat = 1)]
pub struct BiLogEntry {
    /// Its key in the log.
    pub id: Bytes,
    /// The object's name.
    pub object: Bytes,
    /// When the object changed.
    pub timestamp: Utime,
    /// The version of the head object.
    pub ver: EntryVer,
    /// The gateway's tag.
    pub tag: Bytes,
    /// What happened.
    pub op: ModifyOp,
    /// How far.
    pub state: PendingState,
    /// The header's version.
    #[denc(with = "packed::unsigned")]
    pub index_ver: u64,
    /// The object's version.
    #[denc(since = 2)]
    pub instance: Bytes,
    /// See [`FLAG_VERSIONED_OP`].
    #[denc(since = 2)]
    pub bilog_flags: u16,
    /// The user that a delete marker belongs to.
    #[denc(since = 3)]
    pub owner: Bytes,
    /// That user's name.
    #[denc(since = 3)]
    pub owner_display_name: Bytes,
    /// Zones that have the change.
    #[denc(since = 4)]
    pub zones_trace: ZoneSet,
}

impl Default for BiLogEntry {
    fn default() -> Self {
        BiLogEntry {
            id: Bytes::new(),
            object: Bytes::new(),
            timestamp: Utime::ZERO,
            ver: EntryVer::default(),
            tag: Bytes::new(),
            op: ModifyOp::UNKNOWN,
            state: PendingState::PENDING_MODIFY,
            index_ver: 0,
            instance: Bytes::new(),
            bilog_flags: 0,
            owner: Bytes::new(),
            owner_display_name: Bytes::new(),
            zones_trace: ZoneSet::new(),
        }
    }
}

/// Input of `bi_log_list` (Ceph: `cls_rgw_bi_log_list_op`, `cls/rgw/cls_rgw_ops.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct BiLogListOp {
    /// After this entry.
    pub marker: Bytes,
    /// At most so many.
    pub max: u32,
}

/// Output of `bi_log_list` (Ceph: `cls_rgw_bi_log_list_ret`, `cls/rgw/cls_rgw_ops.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct BiLogListRet {
    /// In order.
    pub entries: Vec<BiLogEntry>,
    /// There is more.
    pub truncated: bool,
}

/// Input of `bi_log_trim` (Ceph: `cls_rgw_bi_log_trim_op`, `cls/rgw/cls_rgw_ops.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct BiLogTrimOp {
    /// After this entry.
    pub start_marker: Bytes,
    /// Up to this entry, inclusive; empty for all.
    pub end_marker: Bytes,
}
