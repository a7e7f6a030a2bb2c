//! What to do with one object, in steps that happen together.

use crate::error::{ClientError, Result};
use bytes::{Bytes, BytesMut};
use denc::{Decode, Encode, Features, Reader};
use messages::{Op, OpArgs};
use std::collections::{BTreeMap, BTreeSet};
use types::rados::{OpCode, OpFlags, OsdFlags};
use types::{SnapId, Utime};

/// A sequence of operations on one object. They happen together: all or, with an error, none.
/// Results are in the answer at the same positions.
#[derive(Clone, Debug, Default)]
pub struct Operation {
    /// The operations.
    pub ops: Vec<Op>,
    /// Flags of the request besides read and write, which follow from the operations.
    pub flags: OsdFlags,
}

/// Size and time of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Bytes.
    pub size: u64,
    /// Time of the last change.
    pub mtime: Utime,
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

    /// Sets flags of the last operation.
    pub fn with_flags(mut self, flags: OpFlags) -> Self {
        if let Some(op) = self.ops.last_mut() {
            op.flags |= flags;
        }
        self
    }

    /// Lets a write return data.
    pub fn return_vec(mut self) -> Self {
        self.flags |= OsdFlags::RETURNVEC;
        self
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

    /// Reads a range; the answer is as long as there is data. Length 0 reads to the end.
    pub fn read(self, offset: u64, length: u64) -> Self {
        self.op(Op::new(OpCode::READ, OpArgs::extent(offset, length)))
    }

    /// Reads the parts of a range that have data.
    pub fn sparse_read(self, offset: u64, length: u64) -> Self {
        self.op(Op::new(OpCode::SPARSE_READ, OpArgs::extent(offset, length)))
    }

    /// Asks for size and time; see [`Stat::decode`].
    pub fn stat(self) -> Self {
        self.plain(OpCode::STAT)
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

    /// Fills a range with the repeated pattern `data`.
    pub fn write_same(self, offset: u64, length: u64, data: Bytes) -> Self {
        let args = OpArgs::WriteSame { offset, length, data_length: data.len() as u64 };
        self.op(Op::with_input(OpCode::WRITESAME, args, data))
    }

    /// Fails with the position of the first difference unless the range equals `data`.
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

    /// Creates the object; `exclusive` fails if it exists.
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

    /// Fails unless the object has this user version.
    pub fn assert_version(self, ver: u64) -> Self {
        self.op(Op::new(OpCode::ASSERT_VER, OpArgs::AssertVer { ver }))
    }

    /// Reads an attribute.
    pub fn get_xattr(self, name: &str) -> Self {
        self.op(Op::xattr(OpCode::GETXATTR, name.as_bytes(), b""))
    }

    /// Reads all attributes: a map.
    pub fn get_xattrs(self) -> Self {
        self.plain(OpCode::GETXATTRS)
    }

    /// Sets an attribute.
    pub fn set_xattr(self, name: &str, value: &[u8]) -> Self {
        self.op(Op::xattr(OpCode::SETXATTR, name.as_bytes(), value))
    }

    /// Removes an attribute.
    pub fn remove_xattr(self, name: &str) -> Self {
        self.op(Op::xattr(OpCode::RMXATTR, name.as_bytes(), b""))
    }

    /// Fails unless the attribute compares with `value` as `cmp_op` says
    /// ([`types::rados::cmpxattr_op`]).
    pub fn compare_xattr(self, name: &str, value: &[u8], cmp_op: u8, cmp_mode: u8) -> Self {
        let mut op = Op::xattr(OpCode::CMPXATTR, name.as_bytes(), value);
        if let OpArgs::Xattr { cmp_op: o, cmp_mode: m, .. } = &mut op.args {
            (*o, *m) = (cmp_op, cmp_mode);
        }
        self.op(op)
    }

    /// Lists keys after `after`, at most `max`: a set, and whether there are more.
    pub fn omap_keys(self, after: &[u8], max: u64) -> Self {
        self.encoded(OpCode::OMAPGETKEYS, |out| {
            Bytes::copy_from_slice(after).encode(out, Features::ALL);
            max.encode(out, Features::ALL);
        })
    }

    /// Lists keys and values after `after` that begin with `prefix`, at most `max`; see
    /// [`decode_omap`].
    pub fn omap_values(self, after: &[u8], max: u64, prefix: &[u8]) -> Self {
        self.encoded(OpCode::OMAPGETVALS, |out| {
            Bytes::copy_from_slice(after).encode(out, Features::ALL);
            max.encode(out, Features::ALL);
            Bytes::copy_from_slice(prefix).encode(out, Features::ALL);
        })
    }

    /// Reads the values of keys: a map.
    pub fn omap_values_by_keys(self, keys: &BTreeSet<Bytes>) -> Self {
        self.encoded(OpCode::OMAPGETVALSBYKEYS, |out| keys.encode(out, Features::ALL))
    }

    /// Sets keys.
    pub fn omap_set(self, values: &BTreeMap<Bytes, Bytes>) -> Self {
        self.encoded(OpCode::OMAPSETVALS, |out| values.encode(out, Features::ALL))
    }

    /// Removes keys.
    pub fn omap_remove(self, keys: &BTreeSet<Bytes>) -> Self {
        self.encoded(OpCode::OMAPRMKEYS, |out| keys.encode(out, Features::ALL))
    }

    /// Removes all keys, and the header.
    pub fn omap_clear(self) -> Self {
        self.plain(OpCode::OMAPCLEAR)
    }

    /// Reads the header.
    pub fn omap_header(self) -> Self {
        self.plain(OpCode::OMAPGETHEADER)
    }

    /// Sets the header.
    pub fn omap_set_header(self, header: Bytes) -> Self {
        self.input(OpCode::OMAPSETHEADER, 0, header)
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

    /// Says how the object will be used.
    pub fn alloc_hint(self, object_size: u64, write_size: u64, flags: u32) -> Self {
        let args = OpArgs::AllocHint {
            expected_object_size: object_size,
            expected_write_size: write_size,
            flags,
        };
        self.op(Op::new(OpCode::SETALLOCHINT, args).failok())
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

/// A failure of this operation does not fail the request.
trait FailOk {
    fn failok(self) -> Self;
}
impl FailOk for Op {
    fn failok(mut self) -> Self {
        self.flags |= OpFlags::FAILOK;
        self
    }
}

impl Stat {
    /// Reads the output of [`Operation::stat`].
    pub fn decode(output: Bytes) -> Result<Stat> {
        let mut r = Reader::new(output);
        Ok(Stat { size: r.get()?, mtime: r.get()? })
    }
}

/// Reads the output of [`Operation::omap_values`]: keys with values, and whether there are more.
pub fn decode_omap(output: Bytes) -> Result<(BTreeMap<Bytes, Bytes>, bool)> {
    let mut r = Reader::new(output);
    let values = BTreeMap::decode(&mut r)?;
    Ok((values, if r.left() > 0 { r.get()? } else { false }))
}
