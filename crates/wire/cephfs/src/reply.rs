//! Records in replies to clients: always with envelopes, which clients have understood since 14.2
//! (feature `reply_encoding`).

use crate::ids::{Frag, FragTree, Ino};
use crate::layout::{DirLayout, FileLayout};
use crate::stats::Quota;
use bytes::{Bytes, BytesMut};
use denc::{Decode, Encode, Features, Reader, Result, envelope};
use denc_derive::Denc;
use std::collections::{BTreeMap, BTreeSet};
use types::{IntervalSet, SnapId, Utime};

/// The capability that a client gets with an inode (Ceph: `ceph_mds_reply_cap`,
/// `include/ceph_fs.h`; plain).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Denc)]
pub struct ReplyCap {
    /// What the client has now: [`crate::caps`].
    pub caps: u32,
    /// What the client is known to want.
    pub wanted: u32,
    /// Number of the capability; 0 if none is given.
    pub cap_id: u64,
    /// Counts the messages about it.
    pub seq: u32,
    /// Counts its moves between ranks.
    pub mseq: u32,
    /// The snapshot realm of the inode.
    pub realm: Ino,
    /// See [`crate::caps::FLAG_AUTH`].
    pub flags: u8,
}

/// An inode as clients see it (Ceph 16.2: `InodeStat`, `messages/MClientReply.h`, version 6; 18.2
/// appends names of keys).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InodeStat {
    /// Its number.
    pub ino: Ino,
    /// The snapshot.
    pub snapid: SnapId,
    /// The device.
    pub rdev: u32,
    /// Rises with each change that clients see.
    pub version: u64,
    /// Version of the extended attributes; 0 if they are not sent.
    pub xattr_version: u64,
    /// What the client may do with it.
    pub cap: ReplyCap,
    /// Where its data is.
    pub layout: FileLayout,
    /// Latest change of anything.
    pub ctime: Utime,
    /// Latest change of data or entries.
    pub mtime: Utime,
    /// Latest read.
    pub atime: Utime,
    /// Counts times that were set by hand.
    pub time_warp_seq: u32,
    /// Bytes.
    pub size: u64,
    /// How far the client may write.
    pub max_size: u64,
    /// The size after the latest truncation.
    pub truncate_size: u64,
    /// Counts truncations.
    pub truncate_seq: u32,
    /// Kind and permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names that it has.
    pub nlink: u32,
    /// Entries that are no directories.
    pub nfiles: u64,
    /// Directories in it.
    pub nsubdirs: u64,
    /// Bytes of files below it.
    pub rbytes: u64,
    /// Files below it.
    pub rfiles: u64,
    /// Directories below it.
    pub rsubdirs: u64,
    /// Latest change below it.
    pub rctime: Utime,
    /// How the directory is divided.
    pub fragtree: FragTree,
    /// Target of a symbolic link.
    pub symlink: Bytes,
    /// How its names are hashed.
    pub dir_layout: DirLayout,
    /// Extended attributes ([`encode_xattrs`]); empty if they are not sent.
    pub xattrs: Bytes,
    /// Version of data in the inode.
    pub inline_version: u64,
    /// That data.
    pub inline_data: Bytes,
    /// What the directory may hold.
    pub quota: Quota,
    /// When it was made.
    pub btime: Utime,
    /// Counts changes.
    pub change_attr: u64,
    /// The rank that it is pinned to.
    pub dir_pin: i32,
    /// When the snapshot was made.
    pub snap_btime: Utime,
    /// Snapshots below it.
    pub rsnaps: u64,
    /// Texts of the snapshot.
    pub snap_metadata: BTreeMap<String, String>,
    /// Whether names and data are encrypted.
    pub fscrypt: bool,
}

impl Default for InodeStat {
    fn default() -> Self {
        InodeStat {
            ino: Ino(0),
            snapid: SnapId::NOSNAP,
            rdev: 0,
            version: 0,
            xattr_version: 0,
            cap: ReplyCap::default(),
            layout: FileLayout::default(),
            ctime: Utime::ZERO,
            mtime: Utime::ZERO,
            atime: Utime::ZERO,
            time_warp_seq: 0,
            size: 0,
            max_size: 0,
            truncate_size: 0,
            truncate_seq: 0,
            mode: 0,
            uid: 0,
            gid: 0,
            nlink: 0,
            nfiles: 0,
            nsubdirs: 0,
            rbytes: 0,
            rfiles: 0,
            rsubdirs: 0,
            rctime: Utime::ZERO,
            fragtree: FragTree::default(),
            symlink: Bytes::new(),
            dir_layout: DirLayout::default(),
            xattrs: Bytes::new(),
            inline_version: crate::inode::InlineData::NONE,
            inline_data: Bytes::new(),
            quota: Quota::default(),
            btime: Utime::ZERO,
            change_attr: 0,
            dir_pin: -1,
            snap_btime: Utime::ZERO,
            rsnaps: 0,
            snap_metadata: BTreeMap::new(),
            fscrypt: false,
        }
    }
}

impl Encode for InodeStat {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        envelope(out, 6, 1, |out| {
            self.ino.encode(out, f);
            self.snapid.encode(out, f);
            self.rdev.encode(out, f);
            self.version.encode(out, f);
            self.xattr_version.encode(out, f);
            self.cap.encode(out, f);
            self.layout.encode_legacy(out);
            self.ctime.encode(out, f);
            self.mtime.encode(out, f);
            self.atime.encode(out, f);
            self.time_warp_seq.encode(out, f);
            self.size.encode(out, f);
            self.max_size.encode(out, f);
            self.truncate_size.encode(out, f);
            self.truncate_seq.encode(out, f);
            self.mode.encode(out, f);
            self.uid.encode(out, f);
            self.gid.encode(out, f);
            self.nlink.encode(out, f);
            self.nfiles.encode(out, f);
            self.nsubdirs.encode(out, f);
            self.rbytes.encode(out, f);
            self.rfiles.encode(out, f);
            self.rsubdirs.encode(out, f);
            self.rctime.encode(out, f);
            self.fragtree.encode(out, f);
            self.symlink.encode(out, f);
            self.dir_layout.encode(out, f);
            self.xattrs.encode(out, f);
            self.inline_version.encode(out, f);
            self.inline_data.encode(out, f);
            self.quota.encode(out, f);
            self.layout.namespace.encode(out, f);
            self.btime.encode(out, f);
            self.change_attr.encode(out, f);
            self.dir_pin.encode(out, f);
            self.snap_btime.encode(out, f);
            self.rsnaps.encode(out, f);
            self.snap_metadata.encode(out, f);
            self.fscrypt.encode(out, f);
        });
    }
}

impl Decode for InodeStat {
    fn decode(r: &mut Reader) -> Result<Self> {
        let (struct_v, mut r) = r.envelope("InodeStat", 6)?;
        let mut s = InodeStat {
            ino: r.get()?,
            snapid: r.get()?,
            rdev: r.get()?,
            version: r.get()?,
            xattr_version: r.get()?,
            cap: r.get()?,
            layout: FileLayout::decode_legacy(&mut r)?,
            ctime: r.get()?,
            mtime: r.get()?,
            atime: r.get()?,
            time_warp_seq: r.get()?,
            size: r.get()?,
            max_size: r.get()?,
            truncate_size: r.get()?,
            truncate_seq: r.get()?,
            mode: r.get()?,
            uid: r.get()?,
            gid: r.get()?,
            nlink: r.get()?,
            nfiles: r.get()?,
            nsubdirs: r.get()?,
            rbytes: r.get()?,
            rfiles: r.get()?,
            rsubdirs: r.get()?,
            rctime: r.get()?,
            fragtree: r.get()?,
            symlink: r.get()?,
            dir_layout: r.get()?,
            xattrs: r.get()?,
            inline_version: r.get()?,
            inline_data: r.get()?,
            quota: r.get()?,
            ..InodeStat::default()
        };
        s.layout.namespace = r.get()?;
        s.btime = r.get()?;
        s.change_attr = r.get()?;
        if struct_v >= 2 {
            s.dir_pin = r.get()?;
        }
        if struct_v >= 3 {
            s.snap_btime = r.get()?;
        }
        if struct_v >= 4 {
            s.rsnaps = r.get()?;
        }
        if struct_v >= 5 {
            s.snap_metadata = r.get()?;
        }
        if struct_v >= 6 {
            s.fscrypt = r.get()?;
        }
        Ok(s)
    }
}

/// Extended attributes as [`InodeStat::xattrs`] and a capability's message have them.
pub fn encode_xattrs(xattrs: &BTreeMap<Bytes, Bytes>) -> Bytes {
    xattrs.to_bytes(Features::ALL)
}

/// A directory's fragment as clients see it: which rank answers for it (Ceph: `DirStat`,
/// `messages/MClientReply.h`, version 1).
#[derive(Clone, PartialEq, Eq, Debug, Denc)]
#[denc(version = 1, compat = 1)]
pub struct DirStat {
    /// Which part of the directory.
    pub frag: Frag,
    /// The rank; [`DirStat::AUTH_PARENT`] if it is the directory's.
    pub auth: i32,
    /// Ranks that have a copy.
    pub dist: BTreeSet<i32>,
}

impl DirStat {
    /// The rank is that of the directory itself (Ceph: `CDIR_AUTH_PARENT`).
    pub const AUTH_PARENT: i32 = -1;
}

impl Default for DirStat {
    fn default() -> Self {
        DirStat { frag: Frag::ROOT, auth: Self::AUTH_PARENT, dist: BTreeSet::new() }
    }
}

/// How long a client may believe that an entry is as it was (Ceph 16.2: `LeaseStat`,
/// `messages/MClientReply.h`, version 2).
#[derive(Clone, PartialEq, Eq, Default, Debug, Denc)]
#[denc(version = 2, compat = 1)]
pub struct LeaseStat {
    /// See [`LeaseStat::PRIMARY_LINK`].
    pub mask: u16,
    /// How long, in milliseconds; 0 is no lease.
    pub duration_ms: u32,
    /// Counts leases of the session.
    pub seq: u32,
    /// The encrypted name in full.
    #[denc(since = 2)]
    pub alternate_name: Bytes,
}

impl LeaseStat {
    /// There is a lease (Ceph: `CEPH_LEASE_VALID`).
    pub const VALID: u16 = 3;
    /// The entry is the inode's first name (Ceph: `CEPH_LEASE_PRIMARY_LINK`).
    pub const PRIMARY_LINK: u16 = 4;
}

/// An entry in a reply: its directory, the fragment, the name, and for how long it is valid.
#[derive(Clone, PartialEq, Eq, Default, Debug, Denc)]
pub struct TraceDentry {
    /// The directory.
    pub dir: InodeStat,
    /// The fragment.
    pub frag: DirStat,
    /// The name.
    pub name: Bytes,
    /// For how long.
    pub lease: LeaseStat,
}

/// What a reply tells about the request's entry and inode (Ceph: `Server::set_trace_dist`).
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Trace {
    /// The entry, with its directory.
    pub dentry: Option<Box<TraceDentry>>,
    /// The inode.
    pub target: Option<Box<InodeStat>>,
}

impl Trace {
    /// Whether nothing is told.
    pub fn is_empty(&self) -> bool {
        self.dentry.is_none() && self.target.is_none()
    }

    /// Reads what two flags of the reply announce, up to the end of `r`.
    pub fn decode(r: &mut Reader, dentry: bool, target: bool) -> Result<Trace> {
        let dentry = if dentry { Some(r.get()?) } else { None };
        let target = if target { Some(r.get()?) } else { None };
        r.expect_end("trace of a reply")?;
        Ok(Trace { dentry, target })
    }
}

impl Encode for Trace {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        if let Some(dentry) = &self.dentry {
            dentry.encode(out, f);
        }
        if let Some(target) = &self.target {
            target.encode(out, f);
        }
    }
}

/// Entries of a directory: the extra part of a reply to READDIR and LSSNAP (Ceph:
/// `Server::handle_client_readdir`).
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct DirPage {
    /// The fragment.
    pub dir: DirStat,
    /// See [`DirPage::END`].
    pub flags: u16,
    /// The entries, in the order of hashes.
    pub entries: Vec<(Bytes, LeaseStat, InodeStat)>,
}

impl DirPage {
    /// The fragment ends here.
    pub const END: u16 = 1;
    /// The page has the whole fragment.
    pub const COMPLETE: u16 = 1 << 8;
    /// Entries are in the order of hashes.
    pub const HASH_ORDER: u16 = 1 << 9;
    /// Offsets are hashes.
    pub const OFFSET_HASH: u16 = 1 << 10;
}

impl Encode for DirPage {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        self.dir.encode(out, f);
        (self.entries.len() as u32).encode(out, f);
        self.flags.encode(out, f);
        for (name, lease, inode) in &self.entries {
            name.encode(out, f);
            lease.encode(out, f);
            inode.encode(out, f);
        }
    }
}

impl Decode for DirPage {
    fn decode(r: &mut Reader) -> Result<Self> {
        let dir = r.get()?;
        // A name's length and two envelopes.
        let count = r.count("entries of a directory", 16)?;
        let flags = r.get()?;
        let entries = (0..count).map(|_| r.get()).collect::<Result<_>>()?;
        Ok(DirPage { dir, flags, entries })
    }
}

/// The extra part of a reply to CREATE, for clients with the feature `deleg_ino` (Ceph:
/// `openc_response_t`, `messages/MClientReply.h`, version 1). Clients without it get the number
/// alone.
#[derive(Clone, PartialEq, Eq, Default, Debug, Denc)]
#[denc(version = 1, compat = 1)]
pub struct OpenCreated {
    /// The inode that was made.
    pub ino: Ino,
    /// Numbers that the client may make inodes with by itself.
    pub delegated: IntervalSet,
}

/// A lock on bytes of a file: the extra part of a reply to GETFILELOCK and SETFILELOCK, and what a
/// client that reconnects claims (Ceph: `ceph_filelock`, `include/ceph_fs.h`; plain).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Denc)]
pub struct FileLock {
    /// First byte.
    pub start: u64,
    /// Bytes; 0 is up to the end.
    pub length: u64,
    /// The client.
    pub client: u64,
    /// Which of its users.
    pub owner: u64,
    /// A process.
    pub pid: u64,
    /// See [`FileLock::SHARED`].
    pub kind: u8,
}

impl FileLock {
    /// Others may share it.
    pub const SHARED: u8 = 1;
    /// Others may not.
    pub const EXCL: u8 = 2;
    /// No lock.
    pub const UNLOCK: u8 = 4;
}
