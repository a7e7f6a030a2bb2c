//! Objects with data that waits to be removed.

use crate::key::ObjKey;
use bytes::{Bytes, BytesMut};
use denc::{Decode, Encode, Features, Reader};
use denc_derive::Denc;
use types::Utime;

/// An object (Ceph: `cls_rgw_obj`, `cls/rgw/cls_rgw_types.h`, version 2).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawObj {
    /// Its pool.
    pub pool: Bytes,
    /// Its name.
    pub key: ObjKey,
    /// What it is placed by, if not by its name.
    pub loc: Bytes,
}

impl Encode for RawObj {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        denc::envelope(out, 2, 1, |out| {
            self.pool.encode(out, f);
            self.key.name.encode(out, f);
            self.loc.encode(out, f);
            self.key.encode(out, f);
        });
    }
}

impl Decode for RawObj {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        let (v, mut r) = r.envelope("cls_rgw_obj", 2)?;
        let mut o = RawObj { pool: r.get()?, key: ObjKey::plain(r.get()?), loc: r.get()? };
        if v >= 2 {
            o.key = r.get()?;
        }
        Ok(o)
    }
}

/// Objects (Ceph: `cls_rgw_obj_chain`, `cls/rgw/cls_rgw_types.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct ObjChain {
    /// Objects.
    pub objs: Vec<RawObj>,
}

/// The data of an object of a bucket (Ceph: `cls_rgw_gc_obj_info`, `cls/rgw/cls_rgw_types.h`,
/// version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct GcObjInfo {
    /// The tag that the object's data carries.
    pub tag: Bytes,
    /// What to remove.
    pub chain: ObjChain,
    /// When.
    pub time: Utime,
}

/// Input of `gc_set_entry` and of the queue's `rgw_gc_queue_enqueue` (Ceph:
/// `cls_rgw_gc_set_entry_op`, `cls/rgw/cls_rgw_ops.h`, version 1), and of its
/// `rgw_gc_queue_update_entry` (Ceph: `cls_rgw_gc_queue_defer_entry_op`,
/// `cls/rgw_gc/cls_rgw_gc_ops.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct GcSetEntryOp {
    /// Seconds from now.
    pub expiration_secs: u32,
    /// What to remove then.
    pub info: GcObjInfo,
}

/// Input of `gc_defer_entry` (Ceph: `cls_rgw_gc_defer_entry_op`, `cls/rgw/cls_rgw_ops.h`,
/// version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct GcDeferEntryOp {
    /// Seconds from now.
    pub expiration_secs: u32,
    /// The data's tag.
    pub tag: Bytes,
}

/// Input of `gc_list` and `rgw_gc_queue_list_entries` (Ceph: `cls_rgw_gc_list_op`,
/// `cls/rgw/cls_rgw_ops.h`, version 2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GcListOp {
    /// After this entry.
    pub marker: Bytes,
    /// At most so many; 0 for 128.
    pub max: u32,
    /// Only those that are due; old clients want those.
    pub expired_only: bool,
}

impl Default for GcListOp {
    fn default() -> Self {
        GcListOp { marker: Bytes::new(), max: 0, expired_only: true }
    }
}

impl Encode for GcListOp {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        denc::envelope(out, 2, 1, |out| {
            self.marker.encode(out, f);
            self.max.encode(out, f);
            self.expired_only.encode(out, f);
        });
    }
}

impl Decode for GcListOp {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        let (v, mut r) = r.envelope("cls_rgw_gc_list_op", 2)?;
        let (marker, max) = r.get()?;
        Ok(GcListOp { marker, max, expired_only: if v >= 2 { r.get()? } else { true } })
    }
}

/// Output of `gc_list` and `rgw_gc_queue_list_entries` (Ceph: `cls_rgw_gc_list_ret`,
/// `cls/rgw/cls_rgw_ops.h`, version 2).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 2, compat = 1, oldest = 2)]
pub struct GcListRet {
    /// Entries.
    pub entries: Vec<GcObjInfo>,
    /// What to go on with, if there is more.
    pub next_marker: Bytes,
    /// There is more.
    pub truncated: bool,
}

/// Input of `gc_remove` (Ceph: `cls_rgw_gc_remove_op`, `cls/rgw/cls_rgw_ops.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct GcRemoveOp {
    /// Tags of data that is gone.
    pub tags: Vec<Bytes>,
}
