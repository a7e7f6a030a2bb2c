//! The queue of data that waits to be removed, which took the place of the rows of [`crate::gc`].

use bytes::Bytes;
use denc_derive::Denc;
use std::collections::BTreeMap;
use types::Utime;

/// The attribute that takes deferred entries for which the head has no room.
pub const URGENT_DATA_XATTR: &[u8] = b"cls_queue_urgent_data";

/// Entries by tag, with a later time than that in the queue. Ceph writes them in no order.
pub type Deferred = BTreeMap<Bytes, Utime>;

/// The queue's data in its head (Ceph: `cls_rgw_gc_urgent_data`, `cls/rgw_gc/cls_rgw_gc_types.h`,
/// version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct UrgentData {
    /// Deferred entries.
    pub deferred: Deferred,
    /// At most so many, here and in the attribute.
    pub num_urgent_data_entries: u32,
    /// How many there are here.
    pub num_head_urgent_entries: u32,
    /// How many there are in the attribute.
    pub num_xattr_urgent_entries: u32,
}

/// Input of `rgw_gc_queue_init` (Ceph: `cls_rgw_gc_queue_init_op`, `cls/rgw_gc/cls_rgw_gc_ops.h`,
/// version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct GcQueueInitOp {
    /// Bytes of the ring.
    pub size: u64,
    /// At most so many deferred entries.
    pub num_deferred_entries: u64,
}

/// Input of `rgw_gc_queue_remove_entries` (Ceph: `cls_rgw_gc_queue_remove_entries_op`,
/// `cls/rgw_gc/cls_rgw_gc_ops.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct GcQueueRemoveOp {
    /// So many, from the front; 0 for 128.
    pub num_entries: u64,
}
