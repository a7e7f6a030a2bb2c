//! The operations of a request as execution sees them.
//!
//! The codes, their arguments and the flags are the messages' ([`messages::Op`]); here are the
//! views on them that execution needs, and what an operation gives back.

use bytes::Bytes;
use denc::crc::Sum;
pub use messages::{Op, OpArgs};
use types::rados::watch_op;
pub use types::rados::{OpCode, OpFlags, OsdFlags};

/// A byte range and the client's view of the last truncation (`ceph_osd_op.extent`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// The size that truncation number `truncate_seq` cut the object to.
    pub truncate_size: u64,
    /// Grows with each truncation a CephFS client does.
    pub truncate_seq: u32,
}

impl From<Extent> for OpArgs {
    fn from(e: Extent) -> OpArgs {
        OpArgs::Extent {
            offset: e.offset,
            length: e.length,
            truncate_size: e.truncate_size,
            truncate_seq: e.truncate_seq,
        }
    }
}

/// Views on an operation.
pub trait OpExt {
    /// The arguments as a byte range; empty if they are something else.
    fn extent(&self) -> Extent;
    /// Whether success changes the object as its users see it, and so its user version. Watches,
    /// tiering and copies do not count (a copy carries its source's version).
    fn is_user_modify(&self) -> bool;
    /// A ping of a watch.
    fn is_watch_ping(&self) -> bool;
}

impl OpExt for Op {
    fn extent(&self) -> Extent {
        match self.args {
            OpArgs::Extent { offset, length, truncate_size, truncate_seq } => {
                Extent { offset, length, truncate_size, truncate_seq }
            }
            _ => Extent::default(),
        }
    }

    fn is_user_modify(&self) -> bool {
        match self.code {
            OpCode::WATCH
            | OpCode::CACHE_EVICT
            | OpCode::CACHE_FLUSH
            | OpCode::CACHE_TRY_FLUSH
            | OpCode::UNDIRTY
            | OpCode::COPY_FROM
            | OpCode::COPY_FROM2
            | OpCode::CACHE_PIN
            | OpCode::CACHE_UNPIN
            | OpCode::SET_REDIRECT
            | OpCode::SET_CHUNK
            | OpCode::TIER_PROMOTE
            | OpCode::TIER_FLUSH
            | OpCode::TIER_EVICT => false,
            code => code.is_write(),
        }
    }

    fn is_watch_ping(&self) -> bool {
        self.code == OpCode::WATCH && matches!(self.args, OpArgs::Watch { op: watch_op::PING, .. })
    }
}

/// An operation on a byte range.
pub fn on_extent(code: OpCode, offset: u64, length: u64) -> Op {
    Op::new(code, Extent { offset, length, ..Extent::default() }.into())
}

/// A write of `data` at `offset`.
pub fn write_op(offset: u64, data: impl Into<Bytes>) -> Op {
    let data = data.into();
    Op { indata: data.clone(), ..on_extent(OpCode::WRITE, offset, data.len() as u64) }
}

/// What one operation gave back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpOutcome {
    /// `rval`: negative errno, or what a class method returned.
    pub rval: i32,
    /// Output, in pieces so that data read is never copied.
    pub outdata: Vec<Bytes>,
    /// Checksum of the output, if reading it has told.
    pub out_sum: Option<Sum>,
    /// The length field of the arguments that the reply echoes, where the operation sets it.
    pub echo_length: Option<u64>,
}

impl OpOutcome {
    /// Bytes of output.
    pub fn out_len(&self) -> usize {
        self.outdata.iter().map(Bytes::len).sum()
    }

    /// The output as one slice; copies only when it is in several pieces.
    pub fn out_bytes(&self) -> Bytes {
        match &self.outdata[..] {
            [] => Bytes::new(),
            [one] => one.clone(),
            many => many.concat().into(),
        }
    }
}
