//! The operations inside an [`OsdOp`](crate::OsdOp) message.
//!
//! [`table`] is the single list of operations; everything that needs their names, their arguments or
//! whether we support them is generated from it.

use bytes::{BufMut, Bytes, BytesMut};
use denc::{Decode, DecodeError, Encode, Features, Reader};
use types::{SnapId, Utime};

/// Number of an operation (Ceph: `CEPH_OSD_OP_*`, `rados.h`). The bits `0xf000` say whether it reads
/// or writes, `0x0f00` what it works on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct OpCode(pub u16);

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
    /// Between OSDs of old releases; never sent by a client.
    Internal,
}

/// One row of the table of operations.
#[derive(Clone, Copy, Debug)]
pub struct OpInfo {
    /// Number.
    pub code: OpCode,
    /// Ceph's name for it.
    pub name: &'static str,
    /// Form of its arguments.
    pub args: ArgsKind,
    /// What we do with it.
    pub support: Support,
}

macro_rules! op_table {
    ($( $id:ident = $code:literal $name:literal $args:ident $support:ident; )*) => {
        #[allow(missing_docs)]
        impl OpCode {
            $( pub const $id: OpCode = OpCode($code); )*
        }

        const TABLE: &[OpInfo] = &[
            $( OpInfo { code: OpCode::$id, name: $name, args: ArgsKind::$args, support: Support::$support }, )*
        ];

        impl OpCode {
            /// The operation's row, if there is such an operation.
            pub const fn info(self) -> Option<&'static OpInfo> {
                const fn at(id: OpCode) -> usize {
                    let mut i = 0;
                    while TABLE[i].code.0 != id.0 {
                        i += 1;
                    }
                    i
                }
                match self {
                    $( OpCode::$id => {
                        const AT: usize = at(OpCode::$id);
                        Some(&TABLE[AT])
                    } )*
                    _ => None,
                }
            }
        }
    };
}

op_table! {
    READ              = 0x1201 "read"                  Extent    Yes;
    STAT              = 0x1202 "stat"                  Extent    Yes;
    MAPEXT            = 0x1203 "mapext"                Extent    Yes;
    CHECKSUM          = 0x121f "checksum"              Checksum  Yes;
    MASKTRUNC         = 0x1204 "masktrunc"             Extent    No;
    SPARSE_READ       = 0x1205 "sparse-read"           Extent    Yes;
    NOTIFY            = 0x1206 "notify"                Notify    Yes;
    NOTIFY_ACK        = 0x1207 "notify-ack"            Watch     Yes;
    ASSERT_VER        = 0x1208 "assert-version"        AssertVer Yes;
    LIST_WATCHERS     = 0x1209 "list-watchers"         Extent    Yes;
    LIST_SNAPS        = 0x120a "list-snaps"            Extent    Yes;
    SYNC_READ         = 0x120b "sync_read"             Extent    Yes;
    TMAPGET           = 0x120c "tmapget"               Extent    No;
    OMAPGETKEYS       = 0x1211 "omap-get-keys"         Extent    Yes;
    OMAPGETVALS       = 0x1212 "omap-get-vals"         Extent    Yes;
    OMAPGETHEADER     = 0x1213 "omap-get-header"       Extent    Yes;
    OMAPGETVALSBYKEYS = 0x1214 "omap-get-vals-by-keys" Extent    Yes;
    OMAP_CMP          = 0x1219 "omap-cmp"              Extent    Yes;
    ISDIRTY           = 0x121d "isdirty"               Extent    No;
    COPY_GET          = 0x121e "copy-get"              CopyGet   Yes;
    CMPEXT            = 0x1220 "cmpext"                Extent    Yes;
    WRITE             = 0x2201 "write"                 Extent    Yes;
    WRITEFULL         = 0x2202 "writefull"             Extent    Yes;
    TRUNCATE          = 0x2203 "truncate"              Extent    Yes;
    ZERO              = 0x2204 "zero"                  Extent    Yes;
    DELETE            = 0x2205 "delete"                Extent    Yes;
    APPEND            = 0x2206 "append"                Extent    Yes;
    STARTSYNC         = 0x2207 "startsync"             Extent    No;
    SETTRUNC          = 0x2208 "settrunc"              Extent    No;
    TRIMTRUNC         = 0x2209 "trimtrunc"             Extent    No;
    TMAPPUT           = 0x220b "tmapput"               Extent    No;
    CREATE            = 0x220d "create"                Extent    Yes;
    ROLLBACK          = 0x220e "rollback"              Snap      Yes;
    WATCH             = 0x220f "watch"                 Watch     Yes;
    OMAPSETVALS       = 0x2215 "omap-set-vals"         Extent    Yes;
    OMAPSETHEADER     = 0x2216 "omap-set-header"       Extent    Yes;
    OMAPCLEAR         = 0x2217 "omap-clear"            Extent    Yes;
    OMAPRMKEYS        = 0x2218 "omap-rm-keys"          Extent    Yes;
    COPY_FROM         = 0x221a "copy-from"             CopyFrom  Yes;
    UNDIRTY           = 0x221c "undirty"               Extent    No;
    SETALLOCHINT      = 0x2223 "set-alloc-hint"        AllocHint Yes;
    CACHE_PIN         = 0x2224 "cache-pin"             Extent    No;
    CACHE_UNPIN       = 0x2225 "cache-unpin"           Extent    No;
    WRITESAME         = 0x2226 "write-same"            WriteSame Yes;
    SET_REDIRECT      = 0x2227 "set-redirect"          CopyFrom  No;
    TIER_PROMOTE      = 0x2229 "tier-promote"          Extent    No;
    UNSET_MANIFEST    = 0x222a "unset-manifest"        Extent    No;
    OMAPRMKEYRANGE    = 0x222c "omap-rm-key-range"     Extent    Yes;
    COPY_FROM2        = 0x222d "copy-from2"            CopyFrom  Yes;
    TMAPUP            = 0x320a "tmapup"                Extent    No;
    TMAP2OMAP         = 0x3222 "tmap2omap"             Tmap2Omap No;
    CACHE_FLUSH       = 0x821f "cache-flush"           Extent    No;
    CACHE_EVICT       = 0x8220 "cache-evict"           Extent    No;
    CACHE_TRY_FLUSH   = 0x8221 "cache-try-flush"       Extent    No;
    SET_CHUNK         = 0x8228 "set-chunk"             Extent    No;
    TIER_FLUSH        = 0x822b "tier-flush"            Extent    No;
    TIER_EVICT        = 0x822c "tier-evict"            Extent    No;
    GETXATTR          = 0x1301 "getxattr"              Xattr     Yes;
    GETXATTRS         = 0x1302 "getxattrs"             Xattr     Yes;
    CMPXATTR          = 0x1303 "cmpxattr"              Xattr     Yes;
    SETXATTR          = 0x2301 "setxattr"              Xattr     Yes;
    SETXATTRS         = 0x2302 "setxattrs"             Xattr     No;
    RESETXATTRS       = 0x2303 "resetxattrs"           Xattr     No;
    RMXATTR           = 0x2304 "rmxattr"               Xattr     Yes;
    CALL              = 0x1401 "call"                  Call      Yes;
    PGLS              = 0x1501 "pgls"                  Pgls      Yes;
    PGLS_FILTER       = 0x1502 "pgls-filter"           Pgls      Yes;
    PG_HITSET_LS      = 0x1503 "pg-hitset-ls"          Pgls      No;
    PG_HITSET_GET     = 0x1504 "pg-hitset-get"         HitSetGet No;
    PGNLS             = 0x1505 "pgnls"                 Pgls      Yes;
    PGNLS_FILTER      = 0x1506 "pgnls-filter"          Pgls      Yes;
    SCRUBLS           = 0x1507 "scrubls"               Pgls      Yes;
    PULL              = 0x4001 "pull"                  Extent    Internal;
    PUSH              = 0x4002 "push"                  Extent    Internal;
    BALANCEREADS      = 0x4003 "balance-reads"         Extent    Internal;
    UNBALANCEREADS    = 0x4004 "unbalance-reads"       Extent    Internal;
    SCRUB             = 0x4005 "scrub"                 Extent    Internal;
    SCRUB_RESERVE     = 0x4006 "scrub-reserve"         Extent    Internal;
    SCRUB_UNRESERVE   = 0x4007 "scrub-unreserve"       Extent    Internal;
    SCRUB_MAP         = 0x4009 "scrub-map"             Extent    Internal;
}

/// All operations.
pub fn table() -> &'static [OpInfo] {
    TABLE
}

/// The table of operations as Markdown, for the documentation.
pub fn table_markdown() -> String {
    let mut rows: Vec<&OpInfo> = TABLE.iter().filter(|i| i.support != Support::Internal).collect();
    rows.sort_by_key(|i| i.code);
    let mut out = String::from("| operation | number | supported |\n| --- | --- | --- |\n");
    for i in rows {
        let yes = if i.support == Support::Yes { "yes" } else { "no (`EOPNOTSUPP`)" };
        out.push_str(&format!("| `{}` | `{:#06x}` | {yes} |\n", i.name, i.code.0));
    }
    out
}

impl OpCode {
    const MODE_RD: u16 = 0x1000;
    const MODE_WR: u16 = 0x2000;
    const MODE_CACHE: u16 = 0x8000;

    /// Ceph's name, or `???`.
    pub fn name(self) -> &'static str {
        self.info().map_or("???", |i| i.name)
    }

    /// Whether it reads. A class call counts as neither; its method's flags decide.
    pub const fn reads(self) -> bool {
        self.0 & Self::MODE_RD != 0 && self.0 != Self::CALL.0
    }

    /// Whether it changes the object.
    pub const fn writes(self) -> bool {
        self.0 & Self::MODE_WR != 0
    }

    /// Whether it manages a cache tier.
    pub const fn is_cache(self) -> bool {
        self.0 & Self::MODE_CACHE != 0
    }

    /// Whether it works on a placement group, not on an object.
    pub const fn is_pg(self) -> bool {
        self.0 & 0x0f00 == 0x0500
    }
}

impl std::fmt::Debug for OpCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.info() {
            Some(i) => f.write_str(i.name),
            None => write!(f, "op {:#06x}", self.0),
        }
    }
}
impl std::fmt::Display for OpCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Debug::fmt(self, f)
    }
}

/// Flags of one operation (Ceph: `CEPH_OSD_OP_FLAG_*`).
pub mod op_flags {
    /// Create fails if the object exists.
    pub const EXCL: u32 = 0x1;
    /// Go on with the next operation if this one fails.
    pub const FAILOK: u32 = 0x2;
    /// Random access.
    pub const FADVISE_RANDOM: u32 = 0x4;
    /// Sequential access.
    pub const FADVISE_SEQUENTIAL: u32 = 0x8;
    /// Will be needed soon.
    pub const FADVISE_WILLNEED: u32 = 0x10;
    /// Will not be needed soon.
    pub const FADVISE_DONTNEED: u32 = 0x20;
    /// Needed once only.
    pub const FADVISE_NOCACHE: u32 = 0x40;
    /// Needs reference counting.
    pub const WITH_REFERENCE: u32 = 0x80;
    /// Reads past a clean cache.
    pub const BYPASS_CLEAN_CACHE: u32 = 0x100;
}

/// Flags of a whole request (Ceph: `CEPH_OSD_FLAG_*`).
pub mod osd_flags {
    /// Acknowledgement of old.
    pub const ACK: u32 = 0x1;
    /// In non-volatile memory.
    pub const ONNVRAM: u32 = 0x2;
    /// On disk; the only kind of acknowledgement there is.
    pub const ONDISK: u32 = 0x4;
    /// Sent before.
    pub const RETRY: u32 = 0x8;
    /// May read.
    pub const READ: u32 = 0x10;
    /// May write.
    pub const WRITE: u32 = 0x20;
    /// Fail with `EOLDSNAPC` if the snap context is older than the object's.
    pub const ORDERSNAP: u32 = 0x40;
    /// Any replica may answer.
    pub const BALANCE_READS: u32 = 0x100;
    /// Operations may run in parallel.
    pub const PARALLELEXEC: u32 = 0x200;
    /// Works on a placement group.
    pub const PGOP: u32 = 0x400;
    /// May execute classes.
    pub const EXEC: u32 = 0x800;
    /// The nearest replica may answer.
    pub const LOCALIZE_READS: u32 = 0x2000;
    /// Ordered after writes that are in flight.
    pub const RWORDERED: u32 = 0x4000;
    /// Past the cache tier logic.
    pub const IGNORE_CACHE: u32 = 0x8000;
    /// Without object locks.
    pub const SKIPRWLOCKS: u32 = 0x1_0000;
    /// Past the pool's overlay.
    pub const IGNORE_OVERLAY: u32 = 0x2_0000;
    /// Part of a flush.
    pub const FLUSH: u32 = 0x4_0000;
    /// The snapshot id is a clone id.
    pub const MAP_SNAP_CLONE: u32 = 0x8_0000;
    /// The given snap context counts even if the pool has pool snapshots.
    pub const ENFORCE_SNAPC: u32 = 0x10_0000;
    /// Was redirected.
    pub const REDIRECTED: u32 = 0x20_0000;
    /// `REDIRECTED` is set correctly.
    pub const KNOWN_REDIR: u32 = 0x40_0000;
    /// Try even if full.
    pub const FULL_TRY: u32 = 0x80_0000;
    /// Do it even if full.
    pub const FULL_FORCE: u32 = 0x100_0000;
    /// Do not follow redirections.
    pub const IGNORE_REDIRECT: u32 = 0x200_0000;
    /// A write may return data and positive results per operation.
    pub const RETURNVEC: u32 = 0x400_0000;
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
        /// `CEPH_OSD_CMPXATTR_OP_*`: 1 equal, 2 not equal, 3 greater, 4 not less, 5 less, 6 not greater.
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
        /// `CEPH_OSD_WATCH_OP_*`: see [`watch_op`].
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

/// What a watch operation does (Ceph: `CEPH_OSD_WATCH_OP_*`).
pub mod watch_op {
    /// Ends a watch.
    pub const UNWATCH: u8 = 0;
    /// A watch as clients before 2014 set it.
    pub const LEGACY_WATCH: u8 = 1;
    /// Begins a watch.
    pub const WATCH: u8 = 3;
    /// Takes a watch up again.
    pub const RECONNECT: u8 = 5;
    /// Keeps a watch alive.
    pub const PING: u8 = 7;
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
        let Some(info) = code.info() else {
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
            ArgsKind::Xattr => {
                OpArgs::Xattr { name_len: r.get()?, value_len: r.get()?, cmp_op: r.get()?, cmp_mode: r.get()? }
            }
            ArgsKind::Call => {
                OpArgs::Call { class_len: r.get()?, method_len: r.get()?, argc: r.get()?, indata_len: r.get()? }
            }
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
    /// [`op_flags`].
    pub flags: u32,
    /// With what.
    pub args: OpArgs,
    /// Input, in a request: a slice of the message's data segment.
    pub indata: Bytes,
    /// Output, in an answer: a slice of the message's data segment.
    pub outdata: Bytes,
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
                Ok((r.bytes("xattr name", name_len as usize)?, r.bytes("xattr value", value_len as usize)?))
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
        out.put_u32_le(self.flags);
        self.args.put(out);
        out.put_u32_le(u32::try_from(payload_len).expect("a segment is under 4 GiB"));
    }

    /// Reads `ceph_osd_op`; the payload's length is the second part.
    pub(crate) fn get(r: &mut Reader) -> denc::Result<(Op, u32)> {
        let mut r = r.sub("ceph_osd_op", OP_SIZE)?;
        let code = OpCode(r.get()?);
        let flags = r.get()?;
        let mut union = r.sub("ceph_osd_op", 28)?;
        let args = OpArgs::get(code, &mut union)?;
        Ok((Op { code, flags, args, ..Default::default() }, u32::decode(&mut r)?))
    }
}
