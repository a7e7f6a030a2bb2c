//! Requests of clients to metadata servers (MDS).

use crate::payload::{Parts, Payload, Received, message};
use bytes::{BufMut, Bytes, BytesMut};
use cephfs::{FileLayout, Frag, Ino};
use denc::{Decode, DecodeError, Encode, Features, Reader};
use denc_derive::Denc;
use std::fmt;
use types::{Epoch, SnapId, Utime};

macro_rules! ops {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $text:literal;)*) => {
        impl FsOp {
            $($(#[$doc])* pub const $name: FsOp = FsOp($number);)*

            /// Ceph's name.
            pub fn name(self) -> &'static str {
                match self.0 {
                    $($number => $text,)*
                    _ => "???",
                }
            }
        }
    };
}

/// What a request wants (Ceph: `CEPH_MDS_OP_*`, `include/ceph_fs.h`; names as `ceph_mds_op_name`
/// has them).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Denc)]
pub struct FsOp(pub u32);

ops! {
    /// An entry of a directory.
    LOOKUP = 0x100, "lookup";
    /// An inode.
    GETATTR = 0x101, "getattr";
    /// An inode by number and the hash of its name.
    LOOKUPHASH = 0x102, "lookuphash";
    /// The directory of an inode.
    LOOKUPPARENT = 0x103, "lookupparent";
    /// An inode by number.
    LOOKUPINO = 0x104, "lookupino";
    /// The name of an inode.
    LOOKUPNAME = 0x105, "lookupname";
    /// A virtual attribute.
    GETVXATTR = 0x106, "getvxattr";
    /// The file lock that is in the way.
    GETFILELOCK = 0x110, "getfilelock";
    /// Open a file that is there.
    OPEN = 0x302, "open";
    /// Entries of a directory.
    READDIR = 0x305, "readdir";
    /// A snapshot by name.
    LOOKUPSNAP = 0x400, "lookupsnap";
    /// Snapshots of a directory.
    LSSNAP = 0x402, "lssnap";
    /// What differs between two snapshots.
    READDIR_SNAPDIFF = 0x408, "readdir_snapdiff";
    /// Set an extended attribute.
    SETXATTR = 0x1105, "setxattr";
    /// Remove one.
    RMXATTR = 0x1106, "rmxattr";
    /// Set a file's layout.
    SETLAYOUT = 0x1107, "setlayou";
    /// Set mode, owner, size or times.
    SETATTR = 0x1108, "setattr";
    /// Set or release a file lock.
    SETFILELOCK = 0x1109, "setfilelock";
    /// Set the layout of a directory's new files.
    SETDIRLAYOUT = 0x110a, "setdirlayout";
    /// Make a file or device.
    MKNOD = 0x1201, "mknod";
    /// Give an inode another name.
    LINK = 0x1202, "link";
    /// Remove a name.
    UNLINK = 0x1203, "unlink";
    /// Move a name.
    RENAME = 0x1204, "rename";
    /// Make a directory.
    MKDIR = 0x1220, "mkdir";
    /// Remove a directory.
    RMDIR = 0x1221, "rmdir";
    /// Make a symbolic link.
    SYMLINK = 0x1222, "symlink";
    /// Open a file, and make it if it is not there.
    CREATE = 0x1301, "create";
    /// Make a snapshot.
    MKSNAP = 0x1400, "mksnap";
    /// Remove a snapshot.
    RMSNAP = 0x1401, "rmsnap";
    /// Rename a snapshot.
    RENAMESNAP = 0x1403, "renamesnap";
}

impl FsOp {
    /// The bit of operations that change something (Ceph: `CEPH_MDS_OP_WRITE`).
    pub const WRITE: u32 = 0x1000;

    /// Whether it changes something; `OPEN` may, too.
    pub fn is_write(self) -> bool {
        self.0 & Self::WRITE != 0
    }
}

impl fmt::Display for FsOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            "???" => write!(f, "op {:#x}", self.0),
            name => f.write_str(name),
        }
    }
}

/// Bytes of arguments (Ceph: `ceph_mds_request_args`).
const ARGS_BYTES: usize = 56;
/// Bytes of arguments of clients that know no birth times (Ceph: `ceph_mds_request_args_legacy`).
const ARGS_LEGACY_BYTES: usize = 48;

/// Arguments of a request, by operation (Ceph: `union ceph_mds_request_args`,
/// `include/ceph_fs.h`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestArgs {
    /// Look-ups and `GETATTR`.
    Getattr {
        /// Parts of the inode that the client needs: [`cephfs::caps`].
        mask: u32,
    },
    /// `LOOKUPINO` and `LOOKUPHASH`.
    LookupIno {
        /// As for `GETATTR`.
        mask: u32,
        /// The snapshot.
        snapid: SnapId,
        /// The directory, for `LOOKUPHASH`.
        parent: Ino,
        /// The hash of its name.
        hash: u32,
    },
    /// `SETATTR`.
    Setattr(SetAttr),
    /// `READDIR` and `LSSNAP`.
    Readdir {
        /// Which part of the directory.
        frag: Frag,
        /// Entries at most; 0 is no limit.
        max_entries: u32,
        /// Bytes of the answer at most; 0 is the server's choice.
        max_bytes: u32,
        /// See [`RequestArgs::READDIR_BITFLAGS`].
        flags: u16,
        /// Begin behind this hash, if the client has no name.
        offset_hash: u32,
    },
    /// `MKNOD`.
    Mknod {
        /// Kind and permissions.
        mode: u32,
        /// The device.
        rdev: u32,
    },
    /// `MKDIR` and `MKSNAP`.
    Mkdir {
        /// Permissions.
        mode: u32,
    },
    /// `OPEN` and `CREATE`.
    Open(OpenArgs),
    /// `SETXATTR` and `RMXATTR`.
    Setxattr {
        /// See [`RequestArgs::XATTR_CREATE`].
        flags: u32,
        /// The OSD map in which the client saw a pool that it names.
        osdmap_epoch: Epoch,
    },
    /// `SETLAYOUT` and `SETDIRLAYOUT`.
    Setlayout(FileLayout),
    /// `SETFILELOCK` and `GETFILELOCK`.
    Filelock(FilelockArgs),
    /// Other operations: the bytes, which no known operation has a meaning for.
    Other([u8; ARGS_BYTES]),
}

impl Default for RequestArgs {
    fn default() -> Self {
        RequestArgs::Other([0; ARGS_BYTES])
    }
}

/// Arguments of `SETATTR`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Denc)]
pub struct SetAttr {
    /// Permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Latest change of data.
    pub mtime: Utime,
    /// Latest read.
    pub atime: Utime,
    /// Bytes.
    pub size: u64,
    /// Bytes that the file has as far as the client knows.
    pub old_size: u64,
    /// Which of these: [`SetAttr::MODE`] and so on.
    pub mask: u32,
    /// When it was made.
    pub btime: Utime,
}

impl SetAttr {
    /// Set the permissions.
    pub const MODE: u32 = 1;
    /// Set the owner.
    pub const UID: u32 = 1 << 1;
    /// Set the group.
    pub const GID: u32 = 1 << 2;
    /// Set the time of the latest change of data.
    pub const MTIME: u32 = 1 << 3;
    /// Set the time of the latest read.
    pub const ATIME: u32 = 1 << 4;
    /// Set the size.
    pub const SIZE: u32 = 1 << 5;
    /// Set the time of the latest change.
    pub const CTIME: u32 = 1 << 6;
    /// The time of the latest change of data is now.
    pub const MTIME_NOW: u32 = 1 << 7;
    /// The time of the latest read is now.
    pub const ATIME_NOW: u32 = 1 << 8;
    /// Set the time when it was made.
    pub const BTIME: u32 = 1 << 9;
    /// Take away the bits of set-user-id and set-group-id.
    pub const KILL_SGUID: u32 = 1 << 10;
}

/// Arguments of `OPEN` and `CREATE`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Denc)]
pub struct OpenArgs {
    /// See [`OpenArgs::TRUNC`].
    pub flags: u32,
    /// Permissions of a new file.
    pub mode: u32,
    /// Layout of a new file; 0 is the directory's.
    pub stripe_unit: u32,
    /// As `stripe_unit`.
    pub stripe_count: u32,
    /// As `stripe_unit`.
    pub object_size: u32,
    /// Pool of a new file; -1 is the directory's.
    pub pool: i32,
    /// As for `GETATTR`.
    pub mask: u32,
    /// Bytes that the file has as far as the client knows, if it is cut.
    pub old_size: u64,
}

impl OpenArgs {
    /// Which bits say how it is opened: 0 to read, 1 to write, 2 both.
    pub const ACCESS: u32 = 3;
    /// Make it if it is not there.
    pub const CREAT: u32 = 0o100;
    /// It must not be there.
    pub const EXCL: u32 = 0o200;
    /// Cut it to nothing.
    pub const TRUNC: u32 = 0o1000;
    /// Read and write whatever others do.
    pub const LAZY: u32 = 0o20_000;
    /// It must be a directory.
    pub const DIRECTORY: u32 = 0o200_000;
    /// It must not be a symbolic link.
    pub const NOFOLLOW: u32 = 0o400_000;
}

/// Arguments of `SETFILELOCK` and `GETFILELOCK`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Denc)]
pub struct FilelockArgs {
    /// 1 `fcntl`, 2 `flock`; 3 and 4 end the wait of an earlier request.
    pub rule: u8,
    /// See [`cephfs::FileLock`].
    pub kind: u8,
    /// Which of the client's users.
    pub owner: u64,
    /// A process.
    pub pid: u64,
    /// First byte.
    pub start: u64,
    /// Bytes; 0 is up to the end.
    pub length: u64,
    /// Wait until the lock is free.
    pub wait: u8,
}

impl RequestArgs {
    /// The client knows all flags of [`cephfs::DirPage`].
    pub const READDIR_BITFLAGS: u16 = 1;
    /// The attribute must not be there.
    pub const XATTR_CREATE: u32 = 1;
    /// The attribute must be there.
    pub const XATTR_REPLACE: u32 = 2;
    /// Remove it.
    pub const XATTR_REMOVE: u32 = 1 << 31;

    fn encode(&self, out: &mut BytesMut) {
        let f = Features::ALL;
        let start = out.len();
        match self {
            Self::Getattr { mask } => mask.encode(out, f),
            Self::LookupIno { mask, snapid, parent, hash } => {
                mask.encode(out, f);
                snapid.encode(out, f);
                parent.encode(out, f);
                hash.encode(out, f);
            }
            Self::Setattr(args) => args.encode(out, f),
            Self::Readdir { frag, max_entries, max_bytes, flags, offset_hash } => {
                frag.encode(out, f);
                max_entries.encode(out, f);
                max_bytes.encode(out, f);
                flags.encode(out, f);
                offset_hash.encode(out, f);
            }
            Self::Mknod { mode, rdev } => (*mode, *rdev).encode(out, f),
            Self::Mkdir { mode } => mode.encode(out, f),
            Self::Open(args) => args.encode(out, f),
            Self::Setxattr { flags, osdmap_epoch } => (*flags, *osdmap_epoch).encode(out, f),
            Self::Setlayout(layout) => layout.encode_legacy(out),
            Self::Filelock(args) => args.encode(out, f),
            Self::Other(bytes) => out.put_slice(bytes),
        }
        out.put_bytes(0, ARGS_BYTES - (out.len() - start));
    }

    fn decode(op: FsOp, bytes: [u8; ARGS_BYTES]) -> denc::Result<Self> {
        let mut r = Reader::new(Bytes::copy_from_slice(&bytes));
        Ok(match op {
            FsOp::LOOKUP
            | FsOp::GETATTR
            | FsOp::LOOKUPPARENT
            | FsOp::LOOKUPNAME
            | FsOp::GETVXATTR
            | FsOp::LOOKUPSNAP => Self::Getattr { mask: r.get()? },
            FsOp::LOOKUPINO | FsOp::LOOKUPHASH => Self::LookupIno {
                mask: r.get()?,
                snapid: r.get()?,
                parent: r.get()?,
                hash: r.get()?,
            },
            FsOp::SETATTR => Self::Setattr(r.get()?),
            FsOp::READDIR | FsOp::LSSNAP => Self::Readdir {
                frag: r.get()?,
                max_entries: r.get()?,
                max_bytes: r.get()?,
                flags: r.get()?,
                offset_hash: r.get()?,
            },
            FsOp::MKNOD => Self::Mknod { mode: r.get()?, rdev: r.get()? },
            FsOp::MKDIR | FsOp::MKSNAP => Self::Mkdir { mode: r.get()? },
            FsOp::OPEN | FsOp::CREATE => Self::Open(r.get()?),
            FsOp::SETXATTR | FsOp::RMXATTR => {
                Self::Setxattr { flags: r.get()?, osdmap_epoch: r.get()? }
            }
            FsOp::SETLAYOUT | FsOp::SETDIRLAYOUT => {
                Self::Setlayout(FileLayout::decode_legacy(&mut r)?)
            }
            FsOp::SETFILELOCK | FsOp::GETFILELOCK => Self::Filelock(r.get()?),
            _ => Self::Other(bytes),
        })
    }
}

/// A path below an inode (Ceph: `filepath`, `include/filepath.h`: a byte that is 1, then these).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilePath {
    /// The inode; 0 for a text that is no path.
    pub ino: Ino,
    /// Names with `/` between them; empty for the inode itself. An empty name in front is a step
    /// into the directory of snapshots.
    pub path: Bytes,
}

impl Encode for FilePath {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        1u8.encode(out, f);
        self.ino.encode(out, f);
        self.path.encode(out, f);
    }
}

impl Decode for FilePath {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        match r.get::<u8>()? {
            1 => Ok(FilePath { ino: r.get()?, path: r.get()? }),
            found => Err(DecodeError::Invalid { what: "version of filepath", found: found.into() }),
        }
    }
}

/// Capability bits, and perhaps the lease of an entry, that a client gives back with a request
/// (Ceph: `ceph_mds_request_release` and a name).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CapDrop {
    /// The inode.
    pub ino: Ino,
    /// Number of the capability.
    pub cap_id: u64,
    /// What the client keeps.
    pub caps: u32,
    /// What the client wants.
    pub wanted: u32,
    /// The last message about the capability that the client has seen.
    pub seq: u32,
    /// The last one that gave something.
    pub issue_seq: u32,
    /// Counts moves between ranks.
    pub mseq: u32,
    /// Number of the lease.
    pub dname_seq: u32,
    /// The entry; empty if no lease is given back.
    pub dname: Bytes,
}

impl CapDrop {
    /// Bytes without the name.
    const BYTES: usize = 8 + 8 + 7 * 4;

    fn encode(&self, out: &mut BytesMut, f: Features) {
        self.ino.encode(out, f);
        self.cap_id.encode(out, f);
        self.caps.encode(out, f);
        self.wanted.encode(out, f);
        self.seq.encode(out, f);
        self.issue_seq.encode(out, f);
        self.mseq.encode(out, f);
        self.dname_seq.encode(out, f);
        self.dname.encode(out, f);
    }

    fn decode(r: &mut Reader) -> denc::Result<Self> {
        Ok(CapDrop {
            ino: r.get()?,
            cap_id: r.get()?,
            caps: r.get()?,
            wanted: r.get()?,
            seq: r.get()?,
            issue_seq: r.get()?,
            mseq: r.get()?,
            dname_seq: r.get()?,
            dname: r.get()?,
        })
    }
}

/// A request (Ceph 16.2: `MClientRequest`, version 5, compat 1). Its number is the message's `tid`.
/// Its head is read in versions 1 and 2, and written as 2; clients send 2 to servers with the
/// feature 18, and 3 only to those with the feature 20. 18.2 appends two fields about encryption.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClientRequest {
    /// The client will not ask again for requests below this one.
    pub oldest_client_tid: u64,
    /// The map of the file system that the client has.
    pub mdsmap_epoch: Epoch,
    /// See [`ClientRequest::REPLAY`].
    pub flags: u32,
    /// How often it was sent again.
    pub num_retry: u32,
    /// How often it was sent to another rank.
    pub num_fwd: u32,
    /// What it wants.
    pub op: FsOp,
    /// The user.
    pub caller_uid: u32,
    /// The user's group.
    pub caller_gid: u32,
    /// The inode that it made when it was answered first, if it is sent again.
    pub ino: Ino,
    /// Arguments.
    pub args: RequestArgs,
    /// What it is about.
    pub path: FilePath,
    /// A second path, or a text: the target of a symbolic link, the name of an attribute, the last
    /// name of the page before.
    pub path2: FilePath,
    /// What the client gives back first.
    pub releases: Vec<CapDrop>,
    /// When the client made it.
    pub stamp: Utime,
    /// Further groups of the user.
    pub gids: Vec<u64>,
    /// The encrypted name in full.
    pub alternate_name: Bytes,
    /// The value of `SETXATTR`: the data segment.
    pub data: Bytes,
}

impl ClientRequest {
    /// The request was answered before, but was perhaps not durable.
    pub const REPLAY: u32 = 1;
    /// The answer has the entry, too.
    pub const WANT_DENTRY: u32 = 2;
    /// The client has acted already.
    pub const ASYNC: u32 = 4;
}

impl Payload for ClientRequest {
    const TYPE: u16 = 24;
    const NAME: &'static str = "client_request";
    const HEAD_VERSION: u16 = 5;
    const COMPAT_VERSION: u16 = 1;

    fn encode_parts(&self, f: Features) -> Parts {
        let mut out = BytesMut::new();
        2u16.encode(&mut out, f); // version of the head
        self.oldest_client_tid.encode(&mut out, f);
        self.mdsmap_epoch.encode(&mut out, f);
        self.flags.encode(&mut out, f);
        // Older heads have one byte for each; see below.
        (self.num_retry as u8).encode(&mut out, f);
        (self.num_fwd as u8).encode(&mut out, f);
        let releases = u16::try_from(self.releases.len());
        releases.expect("a request gives back less than 65536 capabilities").encode(&mut out, f);
        self.op.encode(&mut out, f);
        self.caller_uid.encode(&mut out, f);
        self.caller_gid.encode(&mut out, f);
        self.ino.encode(&mut out, f);
        self.args.encode(&mut out);
        self.num_retry.encode(&mut out, f);
        self.num_fwd.encode(&mut out, f);
        self.path.encode(&mut out, f);
        self.path2.encode(&mut out, f);
        self.releases.iter().for_each(|d| d.encode(&mut out, f));
        self.stamp.encode(&mut out, f);
        self.gids.encode(&mut out, f);
        self.alternate_name.encode(&mut out, f);
        let data = Some(self.data.clone()).filter(|d| !d.is_empty()).into_iter().collect();
        Parts { version: 5, compat: 1, front: out.freeze(), data, ..Parts::default() }
    }

    fn decode_parts(Received { version, front: mut r, data, .. }: Received) -> denc::Result<Self> {
        let has_btime = version >= 4;
        let mut head: u16 = 0;
        if has_btime {
            head = r.get()?;
            if !(1..=2).contains(&head) {
                let what = "version of ceph_mds_request_head";
                return Err(DecodeError::Invalid { what, found: head.into() });
            }
        }
        let mut m = ClientRequest {
            oldest_client_tid: r.get()?,
            mdsmap_epoch: r.get()?,
            flags: r.get()?,
            num_retry: r.get::<u8>()?.into(),
            num_fwd: r.get::<u8>()?.into(),
            ..ClientRequest::default()
        };
        let releases: u16 = r.get()?;
        m.op = r.get()?;
        m.caller_uid = r.get()?;
        m.caller_gid = r.get()?;
        m.ino = r.get()?;
        let mut args = [0; ARGS_BYTES];
        match has_btime {
            true => args = r.array("ceph_mds_request_args")?,
            false => {
                let old: [u8; ARGS_LEGACY_BYTES] = r.array("ceph_mds_request_args_legacy")?;
                args[..ARGS_LEGACY_BYTES].copy_from_slice(&old);
            }
        }
        m.args = RequestArgs::decode(m.op, args)?;
        if head >= 2 {
            m.num_retry = r.get()?;
            m.num_fwd = r.get()?;
        }
        if let (RequestArgs::Setattr(args), false) = (&mut m.args, has_btime) {
            args.mask &= !SetAttr::BTIME;
        }
        m.path = r.get()?;
        m.path2 = r.get()?;
        let needed = usize::from(releases) * CapDrop::BYTES;
        if needed > r.left() {
            return Err(DecodeError::Short { what: "released caps", needed, left: r.left() });
        }
        for _ in 0..releases {
            m.releases.push(CapDrop::decode(&mut r)?);
        }
        if version >= 2 {
            m.stamp = r.get()?;
        }
        if version >= 4 {
            m.gids = r.get()?;
        }
        if version >= 5 {
            m.alternate_name = r.get()?;
        }
        m.data = data;
        Ok(m)
    }
}

message! {
    /// A request belongs to another rank; the client sends it there (Ceph:
    /// `MClientRequestForward`).
    ClientRequestForward = 25, "client_request_forward", version 1, compat 1 {
        /// The rank.
        dest_mds: i32,
        /// How often it was sent to another rank.
        num_fwd: i32,
        /// Always true.
        client_must_resend: bool,
    }
}
