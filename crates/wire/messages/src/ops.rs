//! The operations inside an [`OsdOp`](crate::OsdOp) message.
//!
//! [`table`] is the single list of operations; everything that needs their names, their arguments
//! or whether we support them is generated from it.

use bytes::{BufMut, Bytes, BytesMut};
use denc::crc::Sum;
use denc::{Decode, DecodeError, Encode, Features, Reader};
use types::rados::{OpCode, OpFlags};
use types::{SnapId, Utime};

/// Which member of the union in `ceph_osd_op` an operation uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgsKind {
    /// [`OpArgs::Extent`], also where only the input counts.
    Extent,
    /// [`OpArgs::Xattr`].
    Xattr,
    /// [`OpArgs::Call`].
    Call,
    /// [`OpArgs::Pgls`].
    Pgls,
    /// [`OpArgs::Snap`].
    Snap,
    /// [`OpArgs::Watch`].
    Watch,
    /// [`OpArgs::Notify`].
    Notify,
    /// [`OpArgs::AssertVer`].
    AssertVer,
    /// [`OpArgs::CopyGet`].
    CopyGet,
    /// [`OpArgs::CopyFrom`].
    CopyFrom,
    /// [`OpArgs::HitSetGet`].
    HitSetGet,
    /// [`OpArgs::Tmap2Omap`].
    Tmap2Omap,
    /// [`OpArgs::AllocHint`].
    AllocHint,
    /// [`OpArgs::WriteSame`].
    WriteSame,
    /// [`OpArgs::Checksum`].
    Checksum,
}

/// What Siphon does with an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// Executed.
    Yes,
    /// Answered with `EOPNOTSUPP`.
    No,
}

/// One row of the table of operations.
#[derive(Clone, Copy, Debug)]
pub struct OpInfo {
    /// Number.
    pub code: OpCode,
    /// Form of its arguments.
    pub args: ArgsKind,
    /// What we do with it.
    pub support: Support,
}

macro_rules! op_table {
    ($( $id:ident $args:ident $support:ident; )*) => {
        const TABLE: &[OpInfo] = &[
            $( OpInfo { code: OpCode::$id, args: ArgsKind::$args, support: Support::$support }, )*
        ];

        /// The operation's row, if there is such an operation.
        pub const fn op_info(code: OpCode) -> Option<&'static OpInfo> {
            /// Where the row is; runs at compile time only.
            const fn at(code: u16) -> usize {
                let mut i = 0;
                while TABLE[i].code.0 != code {
                    i += 1;
                }
                i
            }
            match code {
                $( OpCode::$id => {
                    const AT: usize = at(OpCode::$id.0);
                    Some(&TABLE[AT])
                } )*
                _ => None,
            }
        }
    };
}

op_table! {
    READ               Extent    Yes;
    STAT               Extent    Yes;
    MAPEXT             Extent    Yes;
    CHECKSUM           Checksum  Yes;
    MASKTRUNC          Extent    No;
    SPARSE_READ        Extent    Yes;
    NOTIFY             Notify    Yes;
    NOTIFY_ACK         Watch     Yes;
    ASSERT_VER         AssertVer Yes;
    LIST_WATCHERS      Extent    Yes;
    LIST_SNAPS         Extent    Yes;
    SYNC_READ          Extent    Yes;
    TMAPGET            Extent    Yes;
    OMAPGETKEYS        Extent    Yes;
    OMAPGETVALS        Extent    Yes;
    OMAPGETHEADER      Extent    Yes;
    OMAPGETVALSBYKEYS  Extent    Yes;
    OMAP_CMP           Extent    Yes;
    ISDIRTY            Extent    No;
    COPY_GET           CopyGet   Yes;
    CMPEXT             Extent    Yes;
    WRITE              Extent    Yes;
    WRITEFULL          Extent    Yes;
    TRUNCATE           Extent    Yes;
    ZERO               Extent    Yes;
    DELETE             Extent    Yes;
    APPEND             Extent    Yes;
    STARTSYNC          Extent    No;
    SETTRUNC           Extent    No;
    TRIMTRUNC          Extent    No;
    TMAPPUT            Extent    Yes;
    CREATE             Extent    Yes;
    ROLLBACK           Snap      Yes;
    WATCH              Watch     Yes;
    OMAPSETVALS        Extent    Yes;
    OMAPSETHEADER      Extent    Yes;
    OMAPCLEAR          Extent    Yes;
    OMAPRMKEYS         Extent    Yes;
    COPY_FROM          CopyFrom  Yes;
    UNDIRTY            Extent    No;
    SETALLOCHINT       AllocHint Yes;
    CACHE_PIN          Extent    No;
    CACHE_UNPIN        Extent    No;
    WRITESAME          WriteSame Yes;
    SET_REDIRECT       CopyFrom  No;
    TIER_PROMOTE       Extent    No;
    UNSET_MANIFEST     Extent    No;
    OMAPRMKEYRANGE     Extent    Yes;
    COPY_FROM2         CopyFrom  Yes;
    TMAPUP             Extent    Yes;
    TMAP2OMAP          Tmap2Omap Yes;
    CACHE_FLUSH        Extent    No;
    CACHE_EVICT        Extent    No;
    CACHE_TRY_FLUSH    Extent    No;
    SET_CHUNK          Extent    No;
    TIER_FLUSH         Extent    No;
    TIER_EVICT         Extent    No;
    GETXATTR           Xattr     Yes;
    GETXATTRS          Xattr     Yes;
    CMPXATTR           Xattr     Yes;
    SETXATTR           Xattr     Yes;
    SETXATTRS          Xattr     No;
    RESETXATTRS        Xattr     No;
    RMXATTR            Xattr     Yes;
    CALL               Call      Yes;
    PGLS               Pgls      Yes;
    PGLS_FILTER        Pgls      Yes;
    PG_HITSET_LS       Pgls      No;
    PG_HITSET_GET      HitSetGet No;
    PGNLS              Pgls      Yes;
    PGNLS_FILTER       Pgls      Yes;
    SCRUBLS            Pgls      Yes;
}

/// All operations.
pub fn table() -> &'static [OpInfo] {
    TABLE
}

/// The table of operations as Markdown, for the documentation.
pub fn table_markdown() -> String {
    let mut rows: Vec<&OpInfo> = TABLE.iter().collect();
    rows.sort_by_key(|i| i.code.0);
    let mut out = String::from("| operation | number | supported |\n| --- | --- | --- |\n");
    for i in rows {
        let yes = if i.support == Support::Yes { "yes" } else { "no (`EOPNOTSUPP`)" };
        out.push_str(&format!("| `{}` | `{:#06x}` | {yes} |\n", i.code.name(), i.code.0));
    }
    out
}

/// Arguments of an operation: the union in `ceph_osd_op`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpArgs {
    /// A range of bytes.
    Extent {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        length: u64,
        /// The object was truncated to this size ...
        truncate_size: u64,
        /// ... by the truncation with this number; 0 for none.
        truncate_seq: u32,
    },
    /// An attribute; its name and value are the input.
    Xattr {
        /// Length of the name.
        name_len: u32,
        /// Length of the value.
        value_len: u32,
        /// `CEPH_OSD_CMPXATTR_OP_*`: 1 equal, 2 not equal, 3 greater, 4 not less, 5 less, 6 not
        /// greater.
        cmp_op: u8,
        /// `CEPH_OSD_CMPXATTR_MODE_*`: 1 string, 2 number.
        cmp_mode: u8,
    },
    /// A class method; class name, method name and input are the input.
    Call {
        /// Length of the class name.
        class_len: u8,
        /// Length of the method name.
        method_len: u8,
        /// Unused.
        argc: u8,
        /// Length of the method's input.
        indata_len: u32,
    },
    /// A listing; the cursor is the input.
    Pgls {
        /// At most this many entries.
        count: u64,
        /// Epoch in which the listing began.
        start_epoch: u32,
    },
    /// A snapshot.
    Snap {
        /// Its id.
        snapid: SnapId,
    },
    /// A watch.
    Watch {
        /// Chosen by the client.
        cookie: u64,
        /// Unused.
        ver: u64,
        /// `CEPH_OSD_WATCH_OP_*`: see [`types::rados::watch_op`].
        op: u8,
        /// Generation of the registration.
        gen_: u32,
        /// Seconds.
        timeout: u32,
    },
    /// A notification.
    Notify {
        /// Chosen by the client.
        cookie: u64,
    },
    /// The version that the object must have.
    AssertVer {
        /// User version.
        ver: u64,
    },
    /// A piece of an object, for a copy.
    CopyGet {
        /// At most this much data.
        max: u64,
    },
    /// The source of a copy; name and locator are the input.
    CopyFrom {
        /// Snapshot of the source.
        snapid: SnapId,
        /// Version of the source, 0 for any.
        src_version: u64,
        /// `CEPH_OSD_COPY_FROM_FLAG_*`.
        flags: u8,
        /// Access hints for the source.
        src_fadvise_flags: u32,
    },
    /// A hit set.
    HitSetGet {
        /// Its time stamp.
        stamp: Utime,
    },
    /// Conversion of an old format.
    Tmap2Omap {
        /// 1: no data is fine.
        flags: u8,
    },
    /// How the object will be used.
    AllocHint {
        /// Expected size of the object.
        expected_object_size: u64,
        /// Expected size of writes.
        expected_write_size: u64,
        /// `CEPH_OSD_ALLOC_HINT_FLAG_*`.
        flags: u32,
    },
    /// The input, repeated.
    WriteSame {
        /// First byte.
        offset: u64,
        /// Bytes to fill.
        length: u64,
        /// Length of the pattern.
        data_length: u64,
    },
    /// Checksums of a range.
    Checksum {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        length: u64,
        /// A checksum for each so many bytes; 0 for all.
        chunk_size: u32,
        /// 0 xxhash32, 1 xxhash64, 2 crc32c.
        kind: u8,
    },
    /// Of an operation that is not in the table: the bytes.
    Unknown([u8; 28]),
}

impl Default for OpArgs {
    fn default() -> Self {
        OpArgs::extent(0, 0)
    }
}

impl OpArgs {
    /// A range without truncation.
    pub const fn extent(offset: u64, length: u64) -> Self {
        OpArgs::Extent { offset, length, truncate_size: 0, truncate_seq: 0 }
    }

    fn put(&self, out: &mut BytesMut) {
        let end = out.len() + 28;
        match *self {
            OpArgs::Extent { offset, length, truncate_size, truncate_seq } => {
                out.put_u64_le(offset);
                out.put_u64_le(length);
                out.put_u64_le(truncate_size);
                out.put_u32_le(truncate_seq);
            }
            OpArgs::Xattr { name_len, value_len, cmp_op, cmp_mode } => {
                out.put_u32_le(name_len);
                out.put_u32_le(value_len);
                out.put_u8(cmp_op);
                out.put_u8(cmp_mode);
            }
            OpArgs::Call { class_len, method_len, argc, indata_len } => {
                out.put_u8(class_len);
                out.put_u8(method_len);
                out.put_u8(argc);
                out.put_u32_le(indata_len);
            }
            OpArgs::Pgls { count, start_epoch } => {
                out.put_u64_le(count);
                out.put_u32_le(start_epoch);
            }
            OpArgs::Snap { snapid } => out.put_u64_le(snapid.0),
            OpArgs::Watch { cookie, ver, op, gen_, timeout } => {
                out.put_u64_le(cookie);
                out.put_u64_le(ver);
                out.put_u8(op);
                out.put_u32_le(gen_);
                out.put_u32_le(timeout);
            }
            OpArgs::Notify { cookie } => out.put_u64_le(cookie),
            OpArgs::AssertVer { ver } => {
                out.put_u64_le(0);
                out.put_u64_le(ver);
            }
            OpArgs::CopyGet { max } => out.put_u64_le(max),
            OpArgs::CopyFrom { snapid, src_version, flags, src_fadvise_flags } => {
                out.put_u64_le(snapid.0);
                out.put_u64_le(src_version);
                out.put_u8(flags);
                out.put_u32_le(src_fadvise_flags);
            }
            OpArgs::HitSetGet { stamp } => stamp.encode(out, Features::ALL),
            OpArgs::Tmap2Omap { flags } => out.put_u8(flags),
            OpArgs::AllocHint { expected_object_size, expected_write_size, flags } => {
                out.put_u64_le(expected_object_size);
                out.put_u64_le(expected_write_size);
                out.put_u32_le(flags);
            }
            OpArgs::WriteSame { offset, length, data_length } => {
                out.put_u64_le(offset);
                out.put_u64_le(length);
                out.put_u64_le(data_length);
            }
            OpArgs::Checksum { offset, length, chunk_size, kind } => {
                out.put_u64_le(offset);
                out.put_u64_le(length);
                out.put_u32_le(chunk_size);
                out.put_u8(kind);
            }
            OpArgs::Unknown(raw) => out.put_slice(&raw),
        }
        out.resize(end, 0);
    }

    /// Reads the 28 bytes of the union as the operation means them. What the member leaves unused
    /// is ignored, as clients do not clear it.
    fn get(code: OpCode, raw: &mut Reader) -> denc::Result<Self> {
        let Some(info) = op_info(code) else {
            return Ok(OpArgs::Unknown(raw.array("ceph_osd_op")?));
        };
        let r = raw;
        Ok(match info.args {
            ArgsKind::Extent => OpArgs::Extent {
                offset: r.get()?,
                length: r.get()?,
                truncate_size: r.get()?,
                truncate_seq: r.get()?,
            },
            ArgsKind::Xattr => OpArgs::Xattr {
                name_len: r.get()?,
                value_len: r.get()?,
                cmp_op: r.get()?,
                cmp_mode: r.get()?,
            },
            ArgsKind::Call => OpArgs::Call {
                class_len: r.get()?,
                method_len: r.get()?,
                argc: r.get()?,
                indata_len: r.get()?,
            },
            ArgsKind::Pgls => OpArgs::Pgls { count: r.get()?, start_epoch: r.get()? },
            ArgsKind::Snap => OpArgs::Snap { snapid: SnapId(r.get()?) },
            ArgsKind::Watch => OpArgs::Watch {
                cookie: r.get()?,
                ver: r.get()?,
                op: r.get()?,
                gen_: r.get()?,
                timeout: r.get()?,
            },
            ArgsKind::Notify => OpArgs::Notify { cookie: r.get()? },
            ArgsKind::AssertVer => {
                r.skip("ceph_osd_op", 8)?;
                OpArgs::AssertVer { ver: r.get()? }
            }
            ArgsKind::CopyGet => OpArgs::CopyGet { max: r.get()? },
            ArgsKind::CopyFrom => OpArgs::CopyFrom {
                snapid: SnapId(r.get()?),
                src_version: r.get()?,
                flags: r.get()?,
                src_fadvise_flags: r.get()?,
            },
            ArgsKind::HitSetGet => OpArgs::HitSetGet { stamp: r.get()? },
            ArgsKind::Tmap2Omap => OpArgs::Tmap2Omap { flags: r.get()? },
            ArgsKind::AllocHint => OpArgs::AllocHint {
                expected_object_size: r.get()?,
                expected_write_size: r.get()?,
                flags: r.get()?,
            },
            ArgsKind::WriteSame => {
                OpArgs::WriteSame { offset: r.get()?, length: r.get()?, data_length: r.get()? }
            }
            ArgsKind::Checksum => OpArgs::Checksum {
                offset: r.get()?,
                length: r.get()?,
                chunk_size: r.get()?,
                kind: r.get()?,
            },
        })
    }
}

/// One operation of a request or of its answer (Ceph: `OSDOp`, with `ceph_osd_op`, 38 bytes).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Op {
    /// What to do.
    pub code: OpCode,
    /// Flags of this operation.
    pub flags: OpFlags,
    /// With what.
    pub args: OpArgs,
    /// Input, in a request: a slice of the message's data segment.
    pub indata: Bytes,
    /// Output, in an answer: a slice of the message's data segment.
    pub outdata: Bytes,
    /// Checksum of the output, if it is known without reading it. Not sent.
    pub out_sum: Option<Sum>,
    /// Result, in an answer: 0, a count, or a negative errno.
    pub rval: i32,
}

/// Size of `ceph_osd_op`.
pub const OP_SIZE: usize = 38;

impl Op {
    /// An operation without input.
    pub fn new(code: OpCode, args: OpArgs) -> Self {
        Op { code, args, ..Default::default() }
    }

    /// An operation with input.
    pub fn with_input(code: OpCode, args: OpArgs, indata: Bytes) -> Self {
        Op { code, args, indata, ..Default::default() }
    }

    /// A call of a class method.
    pub fn call(class: &str, method: &str, input: &[u8]) -> Option<Self> {
        let args = OpArgs::Call {
            class_len: u8::try_from(class.len()).ok()?,
            method_len: u8::try_from(method.len()).ok()?,
            argc: 0,
            indata_len: u32::try_from(input.len()).ok()?,
        };
        let mut data = BytesMut::with_capacity(class.len() + method.len() + input.len());
        data.put_slice(class.as_bytes());
        data.put_slice(method.as_bytes());
        data.put_slice(input);
        Some(Op::with_input(OpCode::CALL, args, data.freeze()))
    }

    /// An operation on the attribute `name`.
    pub fn xattr(code: OpCode, name: &[u8], value: &[u8]) -> Op {
        let args = OpArgs::Xattr {
            name_len: u32::try_from(name.len()).unwrap_or(u32::MAX),
            value_len: u32::try_from(value.len()).unwrap_or(u32::MAX),
            cmp_op: 0,
            cmp_mode: 0,
        };
        let mut data = BytesMut::with_capacity(name.len() + value.len());
        data.put_slice(name);
        data.put_slice(value);
        Op::with_input(code, args, data.freeze())
    }

    /// Name and value of an attribute operation.
    pub fn xattr_parts(&self) -> denc::Result<(Bytes, Bytes)> {
        match self.args {
            OpArgs::Xattr { name_len, value_len, .. } => {
                let mut r = Reader::new(self.indata.clone());
                Ok((
                    r.bytes("xattr name", name_len as usize)?,
                    r.bytes("xattr value", value_len as usize)?,
                ))
            }
            _ => Err(self.wrong_args()),
        }
    }

    /// Class name, method name and input of a call.
    pub fn call_parts(&self) -> denc::Result<(Bytes, Bytes, Bytes)> {
        match self.args {
            OpArgs::Call { class_len, method_len, indata_len, .. } => {
                let mut r = Reader::new(self.indata.clone());
                Ok((
                    r.bytes("class name", class_len.into())?,
                    r.bytes("method name", method_len.into())?,
                    r.bytes("method input", indata_len as usize)?,
                ))
            }
            _ => Err(self.wrong_args()),
        }
    }

    fn wrong_args(&self) -> DecodeError {
        DecodeError::Invalid { what: "arguments of operation", found: self.code.0.into() }
    }

    /// Writes `ceph_osd_op`.
    pub(crate) fn put(&self, payload_len: usize, out: &mut BytesMut) {
        out.put_u16_le(self.code.0);
        out.put_u32_le(self.flags.0);
        self.args.put(out);
        out.put_u32_le(u32::try_from(payload_len).expect("a segment is under 4 GiB"));
    }

    /// Reads `ceph_osd_op`; the payload's length is the second part.
    pub(crate) fn get(r: &mut Reader) -> denc::Result<(Op, u32)> {
        let mut r = r.sub("ceph_osd_op", OP_SIZE)?;
        let code = OpCode(r.get()?);
        let flags = OpFlags(r.get()?);
        let mut union = r.sub("ceph_osd_op", 28)?;
        let args = OpArgs::get(code, &mut union)?;
        Ok((Op { code, flags, args, ..Default::default() }, u32::decode(&mut r)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wire(op: &Op) -> BytesMut {
        let mut out = BytesMut::new();
        op.put(op.indata.len(), &mut out);
        out
    }

    #[test]
    fn the_table_names_every_operation_once() {
        for (i, info) in TABLE.iter().enumerate() {
            assert_ne!(info.code.name(), "???", "{:#x}", info.code.0);
            assert_eq!(op_info(info.code).unwrap().code, info.code);
            assert!(TABLE[i + 1..].iter().all(|other| other.code != info.code), "{}", info.code);
        }
        let named = (0..=u16::MAX).filter(|&code| OpCode(code).name() != "???").count();
        assert_eq!(named, TABLE.len());
        assert!(op_info(OpCode(0x1234)).is_none());
        assert_eq!(table_markdown().lines().count(), TABLE.len() + 2);
    }

    #[test]
    fn ceph_osd_op_is_38_bytes_with_the_union_at_6() {
        let op = Op {
            flags: OpFlags::FADVISE_DONTNEED,
            ..Op::with_input(
                OpCode::WRITE,
                OpArgs::Extent { offset: 0x1000, length: 3, truncate_size: 7, truncate_seq: 9 },
                Bytes::from_static(b"abc"),
            )
        };
        let mut want = vec![0x01, 0x22, 0x20, 0, 0, 0];
        want.extend(0x1000u64.to_le_bytes());
        want.extend(3u64.to_le_bytes());
        want.extend(7u64.to_le_bytes());
        want.extend(9u32.to_le_bytes());
        want.extend(3u32.to_le_bytes());
        assert_eq!(wire(&op), want);
        assert_eq!(want.len(), OP_SIZE);
    }

    #[test]
    fn packed_members_have_no_padding() {
        let watch = Op::new(
            OpCode::WATCH,
            OpArgs::Watch { cookie: 1, ver: 2, op: 3, gen_: 4, timeout: 30 },
        );
        let raw = wire(&watch);
        assert_eq!(raw[6 + 16], 3);
        assert_eq!(raw[6 + 17..6 + 21], 4u32.to_le_bytes());
        assert_eq!(raw[6 + 21..6 + 25], 30u32.to_le_bytes());
        let call = Op::call("rbd", "get_id", b"in").unwrap();
        let raw = wire(&call);
        assert_eq!(raw[6..13], [3, 6, 0, 2, 0, 0, 0]);
        assert_eq!(call.call_parts().unwrap(), ("rbd".into(), "get_id".into(), "in".into()));
    }

    #[test]
    fn lengths_beyond_the_input_are_refused() {
        let mut op = Op::xattr(OpCode::SETXATTR, b"user.a", b"1");
        assert_eq!(op.xattr_parts().unwrap(), ("user.a".into(), "1".into()));
        op.args = OpArgs::Xattr { name_len: 6, value_len: u32::MAX, cmp_op: 0, cmp_mode: 0 };
        assert!(op.xattr_parts().is_err());
        assert!(op.call_parts().is_err());
    }
}
