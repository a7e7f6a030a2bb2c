//! Buckets that wait for more shards, and shards that are being emptied.

use crate::header::InstanceEntry;
use bytes::{Bytes, BytesMut};
use denc::{Decode, Encode, Features, Reader};
use denc_derive::Denc;
use types::Utime;

/// A bucket that waits (Ceph: `cls_rgw_reshard_entry`, `cls/rgw/cls_rgw_types.h`, version 1; 17.2
/// sends version 2, which has no new instance). Written as version 1, which both read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReshardEntry {
    /// When it was put into the queue.
    pub time: Utime,
    /// The bucket's tenant.
    pub tenant: Bytes,
    /// Its name.
    pub bucket_name: Bytes,
    /// Which of the buckets that had the name.
    pub bucket_id: Bytes,
    /// The bucket instance that takes its entries.
    pub new_instance_id: Bytes,
    /// How many shards it has.
    pub old_num_shards: u32,
    /// How many it is to have.
    pub new_num_shards: u32,
}

impl ReshardEntry {
    /// The bucket's key in a queue.
    pub fn key(tenant: &[u8], bucket_name: &[u8]) -> Bytes {
        [tenant, b":", bucket_name].concat().into()
    }
}

impl Encode for ReshardEntry {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        denc::envelope(out, 1, 1, |out| {
            self.time.encode(out, f);
            self.tenant.encode(out, f);
            self.bucket_name.encode(out, f);
            self.bucket_id.encode(out, f);
            self.new_instance_id.encode(out, f);
            self.old_num_shards.encode(out, f);
            self.new_num_shards.encode(out, f);
        });
    }
}

impl Decode for ReshardEntry {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        let (v, mut r) = r.envelope("cls_rgw_reshard_entry", 2)?;
        let mut e = ReshardEntry {
            time: r.get()?,
            tenant: r.get()?,
            bucket_name: r.get()?,
            bucket_id: r.get()?,
            ..ReshardEntry::default()
        };
        if v < 2 {
            e.new_instance_id = r.get()?;
        }
        e.old_num_shards = r.get()?;
        e.new_num_shards = r.get()?;
        Ok(e)
    }
}

/// Input of `reshard_add` and `reshard_get`, output of `reshard_get` (Ceph:
/// `cls_rgw_reshard_add_op`, `cls_rgw_reshard_get_op`, `cls_rgw_reshard_get_ret`,
/// `cls/rgw/cls_rgw_ops.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct ReshardOp {
    /// The bucket.
    pub entry: ReshardEntry,
}

/// Input of `reshard_list` (Ceph: `cls_rgw_reshard_list_op`, `cls/rgw/cls_rgw_ops.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct ReshardListOp {
    /// At most so many.
    pub max: u32,
    /// After this key.
    pub marker: Bytes,
}

/// Output of `reshard_list` (Ceph: `cls_rgw_reshard_list_ret`, `cls/rgw/cls_rgw_ops.h`,
/// version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct ReshardListRet {
    /// In order.
    pub entries: Vec<ReshardEntry>,
    /// There is more.
    pub is_truncated: bool,
}

/// Input of `reshard_remove` (Ceph: `cls_rgw_reshard_remove_op`, `cls/rgw/cls_rgw_ops.h`,
/// version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct ReshardRemoveOp {
    /// The bucket's tenant.
    pub tenant: Bytes,
    /// Its name.
    pub bucket_name: Bytes,
    /// Only if it has this id; empty for any.
    pub bucket_id: Bytes,
}

/// Input of `set_bucket_resharding` and output of `get_bucket_resharding` (Ceph:
/// `cls_rgw_set_bucket_resharding_op`, `cls_rgw_get_bucket_resharding_ret`,
/// `cls/rgw/cls_rgw_ops.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct BucketResharding {
    /// Where entries are moved to.
    pub entry: InstanceEntry,
}

/// Input of `clear_bucket_resharding` and `get_bucket_resharding` (Ceph:
/// `cls_rgw_clear_bucket_resharding_op`, `cls_rgw_get_bucket_resharding_op`,
/// `cls/rgw/cls_rgw_ops.h`, version 1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct EmptyOp {}

/// Input of `guard_bucket_resharding` (Ceph: `cls_rgw_guard_bucket_resharding_op`,
/// `cls/rgw/cls_rgw_ops.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct GuardReshardingOp {
    /// What the call returns if entries are being moved.
    pub ret_err: i32,
}
