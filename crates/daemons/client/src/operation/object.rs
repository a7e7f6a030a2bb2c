//! An object as a whole: its life, versions and snapshots, copies, and classes.

use super::Operation;
use crate::error::{ClientError, Result};
use bytes::{Bytes, BytesMut};
use denc::{Encode, Features};
use messages::{Op, OpArgs};
use types::rados::{OpCode, OpFlags, OsdFlags, copy_from};
use types::{ObjectLocator, SnapId};

/// The source of a copy.
#[derive(Clone, Debug)]
pub struct CopyFrom {
    /// Pool, namespace and locator key of the source.
    pub locator: ObjectLocator,
    /// Name of the source.
    pub name: Bytes,
    /// Snapshot of the source.
    pub snapid: SnapId,
    /// Version that the source must have, or 0.
    pub version: u64,
    /// Number and size of the truncation that the copy is to have seen, for CephFS.
    pub truncation: Option<(u32, u64)>,
}

impl Operation {
    /// Asks for size and time: [`OpOutcome::stat`](crate::OpOutcome::stat).
    pub fn stat(self) -> Self {
        self.plain(OpCode::STAT)
    }

    /// Fails with `ENOENT` unless the object exists.
    pub fn assert_exists(self) -> Self {
        self.stat()
    }

    /// Fails with `ERANGE` if the object has a later user version, with `EOVERFLOW` if it has an
    /// earlier one.
    pub fn assert_version(self, ver: u64) -> Self {
        self.op(Op::new(OpCode::ASSERT_VER, OpArgs::AssertVer { ver }))
    }

    /// Creates the object; `exclusive` fails with `EEXIST` if it exists.
    pub fn create(self, exclusive: bool) -> Self {
        let flags = if exclusive { OpFlags::EXCL } else { OpFlags::default() };
        self.plain(OpCode::CREATE).with_flags(flags)
    }

    /// Removes the object.
    pub fn remove(self) -> Self {
        self.plain(OpCode::DELETE)
    }

    /// Makes the object what it was at a snapshot.
    pub fn rollback(self, snapid: SnapId) -> Self {
        self.op(Op::new(OpCode::ROLLBACK, OpArgs::Snap { snapid }))
    }

    /// Lists the object's versions: [`OpOutcome::snaps`](crate::OpOutcome::snaps). The request must
    /// be about [`SnapId::SNAPDIR`] ([`IoCtx::with_read_snapshot`](crate::IoCtx)).
    pub fn list_snaps(self) -> Self {
        self.plain(OpCode::LIST_SNAPS)
    }

    /// Makes the object a copy of another one, which the OSD reads.
    pub fn copy_from(self, source: &CopyFrom) -> Self {
        let mut input = BytesMut::new();
        source.name.encode(&mut input, Features::ALL);
        source.locator.encode(&mut input, Features::ALL);
        let (code, flags) = match source.truncation {
            Some((seq, size)) => {
                seq.encode(&mut input, Features::ALL);
                size.encode(&mut input, Features::ALL);
                (OpCode::COPY_FROM2, copy_from::TRUNCATE_SEQ)
            }
            None => (OpCode::COPY_FROM, 0),
        };
        let args = OpArgs::CopyFrom {
            snapid: source.snapid,
            src_version: source.version,
            flags,
            src_fadvise_flags: 0,
        };
        self.op(Op::with_input(code, args, input.freeze()))
    }

    /// Calls a class method. Whether it writes is known to the OSD only; `writes` says whether the
    /// request has to be treated as a write.
    pub fn exec(mut self, class: &str, method: &str, input: &[u8], writes: bool) -> Result<Self> {
        let op = Op::call(class, method, input)
            .ok_or(ClientError::Invalid("names of a class and its method"))?;
        if writes {
            self.flags |= OsdFlags::WRITE;
        }
        self.flags |= OsdFlags::READ | OsdFlags::EXEC;
        Ok(self.op(op))
    }
}
