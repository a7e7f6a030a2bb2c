//! Raw rows of a bucket's index.

use crate::key::ObjKey;
use crate::open_enum;
use bytes::Bytes;
use denc_derive::Denc;

open_enum! {
    /// Which kind of row (Ceph: `BIIndexType`).
    BiType(u8) {
        /// None.
        INVALID = 0,
        /// In the order of listings.
        PLAIN = 1,
        /// Of a version.
        INSTANCE = 2,
        /// Of an object's versions.
        OLH = 3,
    }
}

/// A row (Ceph: `rgw_cls_bi_entry`, `cls/rgw/cls_rgw_types.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct BiEntry {
    /// Its kind.
    pub kind: BiType,
    /// Its key.
    pub idx: Bytes,
    /// Its value.
    pub data: Bytes,
}

/// Input of `bi_get` (Ceph: `rgw_cls_bi_get_op`, `cls/rgw/cls_rgw_ops.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct BiGetOp {
    /// The object.
    pub key: ObjKey,
    /// Which of its rows.
    pub kind: BiType,
}

/// Output of `bi_get` (Ceph: `rgw_cls_bi_get_ret`) and input of `bi_put` (Ceph:
/// `rgw_cls_bi_put_op`, both `cls/rgw/cls_rgw_ops.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct BiRow {
    /// The row.
    pub entry: BiEntry,
}

/// Input of `bi_list` (Ceph: `rgw_cls_bi_list_op`, `cls/rgw/cls_rgw_ops.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct BiListOp {
    /// At most so many.
    pub max: u32,
    /// Only rows of this object; empty for all.
    pub name: Bytes,
    /// After this key.
    pub marker: Bytes,
}

/// Output of `bi_list` (Ceph: `rgw_cls_bi_list_ret`, `cls/rgw/cls_rgw_ops.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct BiListRet {
    /// Rows: those in the order of listings, then those of versions, then those of objects'
    /// versions.
    pub entries: Vec<BiEntry>,
    /// There is more.
    pub is_truncated: bool,
}
