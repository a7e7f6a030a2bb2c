//! Extended attributes. Their names are bytes.

use super::Operation;
use messages::{Op, OpArgs};
use types::rados::{OpCode, cmpxattr_mode, cmpxattr_op};

/// A comparison that must hold (Ceph: `CEPH_OSD_CMPXATTR_OP_*`). The left side of a comparison of
/// attributes is the value in the request; that of omap is the value of the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// Left equals right.
    Eq,
    /// Left differs from right; not for omap.
    Ne,
    /// Left is greater.
    Gt,
    /// Left is greater or equal; not for omap.
    Gte,
    /// Left is less.
    Lt,
    /// Left is less or equal; not for omap.
    Lte,
}

impl Comparison {
    /// Its number on the wire.
    pub(super) fn number(self) -> u8 {
        match self {
            Comparison::Eq => cmpxattr_op::EQ,
            Comparison::Ne => cmpxattr_op::NE,
            Comparison::Gt => cmpxattr_op::GT,
            Comparison::Gte => cmpxattr_op::GTE,
            Comparison::Lt => cmpxattr_op::LT,
            Comparison::Lte => cmpxattr_op::LTE,
        }
    }
}

impl Operation {
    /// Reads an attribute.
    pub fn get_xattr(self, name: impl AsRef<[u8]>) -> Self {
        self.op(Op::xattr(OpCode::GETXATTR, name.as_ref(), b""))
    }

    /// Reads all attributes: [`OpOutcome::xattrs`](crate::OpOutcome::xattrs).
    pub fn get_xattrs(self) -> Self {
        self.plain(OpCode::GETXATTRS)
    }

    /// Sets an attribute.
    pub fn set_xattr(self, name: impl AsRef<[u8]>, value: &[u8]) -> Self {
        self.op(Op::xattr(OpCode::SETXATTR, name.as_ref(), value))
    }

    /// Removes an attribute.
    pub fn remove_xattr(self, name: impl AsRef<[u8]>) -> Self {
        self.op(Op::xattr(OpCode::RMXATTR, name.as_ref(), b""))
    }

    /// Fails with `ECANCELED` unless `value` compares so with the attribute's bytes. An attribute
    /// that is not there has no bytes.
    pub fn compare_xattr(self, name: impl AsRef<[u8]>, how: Comparison, value: &[u8]) -> Self {
        self.compare_xattr_as(name.as_ref(), how, value, cmpxattr_mode::STRING)
    }

    /// Fails with `ECANCELED` unless `value` compares so with the attribute, a decimal number.
    pub fn compare_xattr_u64(self, name: impl AsRef<[u8]>, how: Comparison, value: u64) -> Self {
        self.compare_xattr_as(name.as_ref(), how, &value.to_le_bytes(), cmpxattr_mode::U64)
    }

    fn compare_xattr_as(self, name: &[u8], how: Comparison, value: &[u8], mode: u8) -> Self {
        let mut op = Op::xattr(OpCode::CMPXATTR, name, value);
        if let OpArgs::Xattr { cmp_op, cmp_mode, .. } = &mut op.args {
            (*cmp_op, *cmp_mode) = (how.number(), mode);
        }
        self.op(op)
    }
}
