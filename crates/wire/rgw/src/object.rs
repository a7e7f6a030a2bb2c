//! Calls on the objects that hold data.

use crate::open_enum;
use bytes::Bytes;
use denc_derive::Denc;
use types::Utime;

/// Input of `obj_remove` (Ceph: `rgw_cls_obj_remove_op`, `cls/rgw/cls_rgw_ops.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct ObjRemoveOp {
    /// Attributes that begin so are kept, in an object without data.
    pub keep_attr_prefixes: Vec<Bytes>,
}

/// Input of `obj_store_pg_ver` (Ceph: `rgw_cls_obj_store_pg_ver_op`, `cls/rgw/cls_rgw_ops.h`,
/// version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct ObjStorePgVerOp {
    /// The attribute that takes the version.
    pub attr: Bytes,
}

/// Input of `obj_check_attrs_prefix` (Ceph: `rgw_cls_obj_check_attrs_prefix`,
/// `cls/rgw/cls_rgw_ops.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct ObjCheckAttrsPrefix {
    /// How the attributes in question begin.
    pub check_prefix: Bytes,
    /// Fail if there are any, rather than if there are none.
    pub fail_if_exist: bool,
}

open_enum! {
    /// How times are compared (Ceph: `RGWCheckMTimeType`).
    MtimeCheck(u8) {
        /// The object's is the same.
        EQ = 0,
        /// The object's is earlier.
        LT = 1,
        /// Not later.
        LE = 2,
        /// The object's is later.
        GT = 3,
        /// Not earlier.
        GE = 4,
    }
}

/// Input of `obj_check_mtime` (Ceph: `rgw_cls_obj_check_mtime`, `cls/rgw/cls_rgw_ops.h`,
/// version 2).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 2, compat = 1)]
pub struct ObjCheckMtime {
    /// The time to compare with.
    pub mtime: Utime,
    /// How.
    pub check: MtimeCheck,
    /// To the nanosecond, rather than to the second.
    #[denc(since = 2)]
    pub high_precision_time: bool,
}
