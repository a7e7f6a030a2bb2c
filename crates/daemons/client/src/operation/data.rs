//! An object's data.

use super::Operation;
use bytes::Bytes;
use messages::{Op, OpArgs};
use types::rados::{OpCode, checksum_type};

/// A checksum that an OSD computes (Ceph: `CEPH_OSD_CHECKSUM_OP_TYPE_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumKind {
    /// xxHash of 32 bits.
    XxHash32,
    /// xxHash of 64 bits.
    XxHash64,
    /// CRC-32C.
    Crc32c,
}

impl ChecksumKind {
    /// Its number on the wire.
    pub(super) fn number(self) -> u8 {
        match self {
            ChecksumKind::XxHash32 => checksum_type::XXHASH32,
            ChecksumKind::XxHash64 => checksum_type::XXHASH64,
            ChecksumKind::Crc32c => checksum_type::CRC32C,
        }
    }

    /// Bytes of one checksum.
    pub(super) fn width(self) -> usize {
        if self == ChecksumKind::XxHash64 { 8 } else { 4 }
    }
}

impl Operation {
    /// Reads a range; the answer is as long as there is data. Length 0 reads to the end.
    pub fn read(self, offset: u64, length: u64) -> Self {
        self.op(Op::new(OpCode::READ, OpArgs::extent(offset, length)))
    }

    /// Reads the parts of a range that have data: [`OpOutcome::sparse`](crate::OpOutcome::sparse).
    pub fn sparse_read(self, offset: u64, length: u64) -> Self {
        self.op(Op::new(OpCode::SPARSE_READ, OpArgs::extent(offset, length)))
    }

    /// Asks which parts of a range have data: [`OpOutcome::extents`](crate::OpOutcome::extents).
    pub fn map_extents(self, offset: u64, length: u64) -> Self {
        self.op(Op::new(OpCode::MAPEXT, OpArgs::extent(offset, length)))
    }

    /// Writes a range.
    pub fn write(self, offset: u64, data: Bytes) -> Self {
        self.input(OpCode::WRITE, offset, data)
    }

    /// Replaces the object's data.
    pub fn write_full(self, data: Bytes) -> Self {
        self.input(OpCode::WRITEFULL, 0, data)
    }

    /// Appends.
    pub fn append(self, data: Bytes) -> Self {
        self.input(OpCode::APPEND, 0, data)
    }

    /// Fills a range with the repeated pattern `data`, of a length that divides `length`.
    pub fn write_same(self, offset: u64, length: u64, data: Bytes) -> Self {
        let args = OpArgs::WriteSame { offset, length, data_length: data.len() as u64 };
        self.op(Op::with_input(OpCode::WRITESAME, args, data))
    }

    /// Fails with [`ClientError::Differs`](crate::ClientError::Differs) unless the range equals
    /// `data`.
    pub fn compare(self, offset: u64, data: Bytes) -> Self {
        self.input(OpCode::CMPEXT, offset, data)
    }

    /// Sets the size.
    pub fn truncate(self, size: u64) -> Self {
        self.op(Op::new(OpCode::TRUNCATE, OpArgs::extent(size, 0)))
    }

    /// Zeroes a range.
    pub fn zero(self, offset: u64, length: u64) -> Self {
        self.op(Op::new(OpCode::ZERO, OpArgs::extent(offset, length)))
    }

    /// Tells the last operation (a read, write, zero or truncate) that the file was truncated to
    /// `size` in its truncation number `seq`: an object that has not seen that one is truncated
    /// first. CephFS works so.
    pub fn after_truncation(mut self, seq: u32, size: u64) -> Self {
        if let Some(OpArgs::Extent { truncate_size, truncate_seq, .. }) =
            self.ops.last_mut().map(|op| &mut op.args)
        {
            (*truncate_size, *truncate_seq) = (size, seq);
        }
        self
    }

    /// Asks for checksums, one for each `chunk` bytes of a range (0: one for all of it):
    /// [`OpOutcome::checksums`](crate::OpOutcome::checksums). `init` is the first value; of a
    /// checksum of 32 bits, its lower half.
    pub fn checksum(
        self,
        kind: ChecksumKind,
        init: u64,
        offset: u64,
        length: u64,
        chunk: u32,
    ) -> Self {
        let args = OpArgs::Checksum { offset, length, chunk_size: chunk, kind: kind.number() };
        let init = Bytes::copy_from_slice(&init.to_le_bytes()[..kind.width()]);
        self.op(Op::with_input(OpCode::CHECKSUM, args, init))
    }

    /// Says how the object will be used ([`types::rados::alloc_hint`]).
    pub fn alloc_hint(self, object_size: u64, write_size: u64, flags: u32) -> Self {
        let args = OpArgs::AllocHint {
            expected_object_size: object_size,
            expected_write_size: write_size,
            flags,
        };
        self.op(Op::new(OpCode::SETALLOCHINT, args)).may_fail()
    }
}
