//! What to do with one object, in steps that happen together.
//!
//! Builders stand by what they work on: `data`, `attrs`, `omap`, `object` (its life, versions and
//! snapshots, classes), `watch`. [`OpOutcome`](crate::OpOutcome) gives each step's result as a
//! value (`replies`).

mod attrs;
mod data;
mod object;
mod omap;
mod replies;
mod watch;

pub use attrs::Comparison;
pub use data::ChecksumKind;
pub use object::CopyFrom;
pub use replies::{OmapPage, Sparse, Stat};

use bytes::{Bytes, BytesMut};
use messages::{Op, OpArgs};
use types::rados::{OpCode, OpFlags, OsdFlags};

/// A sequence of operations on one object. They happen together: all or, with an error, none.
/// Results are in the answer at the same positions.
#[derive(Clone, Debug, Default)]
pub struct Operation {
    /// The operations.
    pub ops: Vec<Op>,
    /// Flags of the request besides read and write, which follow from the operations.
    pub flags: OsdFlags,
}

impl Operation {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends any operation.
    pub fn op(mut self, op: Op) -> Self {
        self.ops.push(op);
        self
    }

    /// How many operations there are: the position of the next one's result.
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Sets flags of the last operation.
    pub fn with_flags(mut self, flags: OpFlags) -> Self {
        if let Some(op) = self.ops.last_mut() {
            op.flags |= flags;
        }
        self
    }

    /// A failure of the last operation does not fail the others.
    pub fn may_fail(self) -> Self {
        self.with_flags(OpFlags::FAILOK)
    }

    /// Sets flags of the whole request.
    pub fn with_request_flags(mut self, flags: OsdFlags) -> Self {
        self.flags |= flags;
        self
    }

    /// Lets a write return data.
    pub fn return_vec(self) -> Self {
        self.with_request_flags(OsdFlags::RETURNVEC)
    }

    /// Fails with `ENOSPC` or `EDQUOT` instead of waiting until there is room.
    pub fn full_try(self) -> Self {
        self.with_request_flags(OsdFlags::FULL_TRY)
    }

    fn plain(self, code: OpCode) -> Self {
        self.op(Op::new(code, OpArgs::default()))
    }

    fn input(self, code: OpCode, offset: u64, data: Bytes) -> Self {
        let args = OpArgs::extent(offset, data.len() as u64);
        self.op(Op::with_input(code, args, data))
    }

    fn encoded(self, code: OpCode, fill: impl FnOnce(&mut BytesMut)) -> Self {
        let mut data = BytesMut::new();
        fill(&mut data);
        self.input(code, 0, data.freeze())
    }

    /// The request's flags: what it does, and those that were set.
    pub fn request_flags(&self) -> OsdFlags {
        self.ops.iter().fold(self.flags, |mut flags, op| {
            if op.code.is_write() {
                flags |= OsdFlags::WRITE;
            }
            if op.code.is_read() {
                flags |= OsdFlags::READ;
            }
            flags
        })
    }
}
