//! Inodes as directory objects keep them.

use crate::ids::{FragTree, Ino};
use crate::layout::{DirLayout, FileLayout};
use crate::snap::SnapRealmRecord;
use crate::stats::{FragInfo, NestInfo, Quota};
use bytes::{Bytes, BytesMut};
use denc::{Decode, DecodeError, Encode, Features, Reader, Result, envelope, with_length};
use denc_derive::Denc;
use std::collections::{BTreeMap, BTreeSet};
use types::{SnapId, Utime};

/// The kinds of inodes in a mode (`S_IFMT` and what it masks).
pub mod mode {
    /// The bits that tell the kind.
    pub const KIND: u32 = 0o170_000;
    /// A directory.
    pub const DIR: u32 = 0o040_000;
    /// A file.
    pub const FILE: u32 = 0o100_000;
    /// A symbolic link.
    pub const SYMLINK: u32 = 0o120_000;
}

/// What a client may write of a file (Ceph: `client_writeable_range_t`, `mds/mdstypes.h`,
/// version 2).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Denc)]
#[denc(version = 2, compat = 2, oldest = 2)]
pub struct ClientRange {
    /// First byte.
    pub first: u64,
    /// Behind the last byte.
    pub last: u64,
    /// The snapshot up to which data and metadata are flushed.
    pub follows: SnapId,
}

/// Data that is kept in the inode (Ceph: `inline_data_t`, `mds/mdstypes.h`; plain). Deprecated: we
/// only keep what is there.
#[derive(Clone, PartialEq, Eq, Debug, Denc)]
pub struct InlineData {
    /// Rises with each change; [`InlineData::NONE`] where there is none.
    pub version: u64,
    /// The data.
    pub data: Bytes,
}

impl InlineData {
    /// The version of inodes without such data (Ceph: `CEPH_INLINE_NONE`).
    pub const NONE: u64 = u64::MAX;
}

impl Default for InlineData {
    fn default() -> Self {
        InlineData { version: 1, data: Bytes::new() }
    }
}

/// Fields that a newer release appended: kept, so that it finds them again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Newer {
    /// The version of the whole record.
    pub struct_v: u8,
    /// What follows the last field that is known here.
    pub fields: Bytes,
}

/// An inode (Ceph 16.2: `inode_t`, `mds/mdstypes.h`, version 17, compat 6).
#[derive(Clone, PartialEq, Debug)]
pub struct Inode {
    /// Its number.
    pub ino: Ino,
    /// The device, if it is one.
    pub rdev: u32,
    /// Latest change of anything.
    pub ctime: Utime,
    /// When it was made.
    pub btime: Utime,
    /// Kind and permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names that it has.
    pub nlink: i32,
    /// How its names are hashed, if it is a directory.
    pub dir_layout: DirLayout,
    /// Where its data is; of a directory: where data of new files goes, if set.
    pub layout: FileLayout,
    /// Bytes; 0 for directories.
    pub size: u64,
    /// Counts truncations.
    pub truncate_seq: u32,
    /// The size after the latest one; `u64::MAX` before the first.
    pub truncate_size: u64,
    /// The size before the latest one.
    pub truncate_from: u64,
    /// Truncations with objects that are not trimmed yet.
    pub truncate_pending: u32,
    /// Latest change of data or entries.
    pub mtime: Utime,
    /// Latest read.
    pub atime: Utime,
    /// Counts times that were set by hand.
    pub time_warp_seq: u32,
    /// What clients may write, by client.
    pub client_ranges: BTreeMap<i64, ClientRange>,
    /// What is in the directory.
    pub dirstat: FragInfo,
    /// What is in it and below it.
    pub rstat: NestInfo,
    /// The part of it that the parent has counted.
    pub accounted_rstat: NestInfo,
    /// Rises with each change; is above the versions of all entries that the directory had.
    pub version: u64,
    /// The version when the file's data changed.
    pub file_data_version: u64,
    /// Counts changes of extended attributes.
    pub xattr_version: u64,
    /// The version that the backtrace was made for.
    pub backtrace_version: u64,
    /// Pools that have a backtrace, besides the layout's.
    pub old_pools: BTreeSet<i64>,
    /// The largest size that it ever had.
    pub max_size_ever: u64,
    /// Data in the inode.
    pub inline: InlineData,
    /// What the directory may hold.
    pub quota: Quota,
    /// Where it was before it became a stray.
    pub stray_prior_path: Bytes,
    /// The version at the latest scrub.
    pub last_scrub_version: u64,
    /// The latest scrub.
    pub last_scrub_stamp: Utime,
    /// Counts changes.
    pub change_attr: u64,
    /// The rank that the directory is pinned to; -1 is none.
    pub export_pin: i32,
    /// The chance with which directories below are pinned.
    pub ephemeral_random_pin: f64,
    /// Whether directories in it are pinned by their numbers.
    pub ephemeral_distributed_pin: bool,
    /// Whether names and data are encrypted.
    pub fscrypt: bool,
    /// What a newer release appended.
    pub newer: Option<Newer>,
}

impl Default for Inode {
    fn default() -> Self {
        Inode {
            ino: Ino(0),
            rdev: 0,
            ctime: Utime::ZERO,
            btime: Utime::ZERO,
            mode: 0,
            uid: 0,
            gid: 0,
            nlink: 0,
            dir_layout: DirLayout::default(),
            layout: FileLayout::default(),
            size: 0,
            truncate_seq: 0,
            truncate_size: 0,
            truncate_from: 0,
            truncate_pending: 0,
            mtime: Utime::ZERO,
            atime: Utime::ZERO,
            time_warp_seq: 0,
            client_ranges: BTreeMap::new(),
            dirstat: FragInfo::default(),
            rstat: NestInfo::default(),
            accounted_rstat: NestInfo::default(),
            version: 0,
            file_data_version: 0,
            xattr_version: 0,
            backtrace_version: 0,
            old_pools: BTreeSet::new(),
            max_size_ever: 0,
            inline: InlineData::default(),
            quota: Quota::default(),
            stray_prior_path: Bytes::new(),
            last_scrub_version: 0,
            last_scrub_stamp: Utime::ZERO,
            change_attr: 0,
            export_pin: -1,
            ephemeral_random_pin: 0.0,
            ephemeral_distributed_pin: false,
            fscrypt: false,
            newer: None,
        }
    }
}

impl Inode {
    const VERSION: u8 = 17;
    /// The oldest form that is read: that of 12.2.
    const OLDEST: u8 = 14;

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.mode & mode::KIND == mode::DIR
    }

    /// Whether it is a file.
    pub fn is_file(&self) -> bool {
        self.mode & mode::KIND == mode::FILE
    }

    /// Whether it is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.mode & mode::KIND == mode::SYMLINK
    }

    /// The kind as entries of directories have it (`DT_DIR` and so on).
    pub fn d_type(&self) -> u8 {
        (self.mode >> 12 & 0xf) as u8
    }

    /// How far any client may write.
    pub fn max_size(&self) -> u64 {
        self.client_ranges.values().map(|r| r.last).max().unwrap_or(0)
    }
}

impl Encode for Inode {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        let struct_v = self.newer.as_ref().map_or(Self::VERSION, |n| n.struct_v);
        envelope(out, struct_v, 6, |out| {
            self.ino.encode(out, f);
            self.rdev.encode(out, f);
            self.ctime.encode(out, f);
            self.mode.encode(out, f);
            self.uid.encode(out, f);
            self.gid.encode(out, f);
            self.nlink.encode(out, f);
            false.encode(out, f); // anchored, which is gone
            self.dir_layout.encode(out, f);
            self.layout.encode(out, f);
            self.size.encode(out, f);
            self.truncate_seq.encode(out, f);
            self.truncate_size.encode(out, f);
            self.truncate_from.encode(out, f);
            self.truncate_pending.encode(out, f);
            self.mtime.encode(out, f);
            self.atime.encode(out, f);
            self.time_warp_seq.encode(out, f);
            self.client_ranges.encode(out, f);
            self.dirstat.encode(out, f);
            self.rstat.encode(out, f);
            self.accounted_rstat.encode(out, f);
            self.version.encode(out, f);
            self.file_data_version.encode(out, f);
            self.xattr_version.encode(out, f);
            self.backtrace_version.encode(out, f);
            self.old_pools.encode(out, f);
            self.max_size_ever.encode(out, f);
            self.inline.encode(out, f);
            self.quota.encode(out, f);
            self.stray_prior_path.encode(out, f);
            self.last_scrub_version.encode(out, f);
            self.last_scrub_stamp.encode(out, f);
            self.btime.encode(out, f);
            self.change_attr.encode(out, f);
            self.export_pin.encode(out, f);
            self.ephemeral_random_pin.encode(out, f);
            self.ephemeral_distributed_pin.encode(out, f);
            self.fscrypt.encode(out, f);
            if let Some(newer) = &self.newer {
                out.extend_from_slice(&newer.fields);
            }
        });
    }
}

impl Decode for Inode {
    fn decode(r: &mut Reader) -> Result<Self> {
        let (struct_v, mut r) = r.envelope("inode_t", Self::VERSION)?;
        if struct_v < Self::OLDEST {
            return Err(DecodeError::TooOld { what: "inode_t", struct_v, oldest: Self::OLDEST });
        }
        let r = &mut r;
        let mut i = Inode {
            ino: r.get()?,
            rdev: r.get()?,
            ctime: r.get()?,
            mode: r.get()?,
            uid: r.get()?,
            gid: r.get()?,
            nlink: r.get()?,
            ..Inode::default()
        };
        r.get::<bool>()?;
        i.dir_layout = r.get()?;
        i.layout = r.get()?;
        i.size = r.get()?;
        i.truncate_seq = r.get()?;
        i.truncate_size = r.get()?;
        i.truncate_from = r.get()?;
        i.truncate_pending = r.get()?;
        i.mtime = r.get()?;
        i.atime = r.get()?;
        i.time_warp_seq = r.get()?;
        i.client_ranges = r.get()?;
        i.dirstat = r.get()?;
        i.rstat = r.get()?;
        i.accounted_rstat = r.get()?;
        i.version = r.get()?;
        i.file_data_version = r.get()?;
        i.xattr_version = r.get()?;
        i.backtrace_version = r.get()?;
        i.old_pools = r.get()?;
        i.max_size_ever = r.get()?;
        i.inline = r.get()?;
        i.quota = r.get()?;
        i.stray_prior_path = r.get()?;
        i.last_scrub_version = r.get()?;
        i.last_scrub_stamp = r.get()?;
        i.btime = r.get()?;
        i.change_attr = r.get()?;
        if struct_v >= 15 {
            i.export_pin = r.get()?;
        }
        if struct_v >= 16 {
            i.ephemeral_random_pin = r.get()?;
            i.ephemeral_distributed_pin = r.get()?;
        }
        if struct_v >= 17 {
            i.fscrypt = r.get()?;
        }
        if struct_v > Self::VERSION {
            i.newer = Some(Newer { struct_v, fields: r.rest() });
        }
        Ok(i)
    }
}

/// An inode as a snapshot has it (Ceph: `old_inode_t`, `mds/mdstypes.h`, version 2). Its key is the
/// last snapshot that it stands for.
#[derive(Clone, PartialEq, Default, Debug, Denc)]
#[denc(version = 2, compat = 2, oldest = 2)]
pub struct OldInode {
    /// The first snapshot that it stands for.
    pub first: SnapId,
    /// The inode.
    pub inode: Inode,
    /// Its extended attributes.
    pub xattrs: BTreeMap<Bytes, Bytes>,
}

/// Everything that is kept of an inode (Ceph 16.2: `InodeStore`, `mds/CInode.h`, version 6,
/// compat 4).
#[derive(Clone, PartialEq, Default, Debug)]
pub struct InodeStore {
    /// The inode.
    pub inode: Inode,
    /// The target, if it is a symbolic link.
    pub symlink: Bytes,
    /// How the directory is divided.
    pub fragtree: FragTree,
    /// Extended attributes.
    pub xattrs: BTreeMap<Bytes, Bytes>,
    /// Its snapshots, if it has some of its own.
    pub snap: Option<Box<SnapRealmRecord>>,
    /// What snapshots have of it, by the last one.
    pub old_inodes: BTreeMap<SnapId, OldInode>,
    /// The oldest snapshot that something below it may have.
    pub oldest_snap: SnapId,
    /// What is known to be wrong with it.
    pub damage_flags: u32,
}

impl InodeStore {
    fn encode_bare(&self, out: &mut BytesMut, f: Features) {
        self.inode.encode(out, f);
        if self.inode.is_symlink() {
            self.symlink.encode(out, f);
        }
        self.fragtree.encode(out, f);
        self.xattrs.encode(out, f);
        with_length(out, |out| {
            if let Some(snap) = &self.snap {
                snap.encode(out, f);
            }
        });
        self.old_inodes.encode(out, f);
        self.oldest_snap.encode(out, f);
        self.damage_flags.encode(out, f);
    }

    /// Reads the record without its envelope, up to the end of `r` (Ceph: `decode_bare`): the form
    /// of rows that 14.2 and older releases wrote.
    pub fn decode_bare(r: &mut Reader) -> Result<Self> {
        let mut s = InodeStore { inode: r.get()?, ..InodeStore::default() };
        if s.inode.is_symlink() {
            s.symlink = r.get()?;
        }
        s.fragtree = r.get()?;
        s.xattrs = r.get()?;
        let snap: Bytes = r.get()?;
        if !snap.is_empty() {
            s.snap = Some(Decode::from_bytes(&snap)?);
        }
        s.old_inodes = r.get()?;
        if r.left() > 0 {
            s.oldest_snap = r.get()?;
        }
        if r.left() > 0 {
            s.damage_flags = r.get()?;
        }
        Ok(s)
    }
}

impl Encode for InodeStore {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        envelope(out, 6, 4, |out| self.encode_bare(out, f));
    }
}

impl Decode for InodeStore {
    fn decode(r: &mut Reader) -> Result<Self> {
        let (struct_v, mut r) = r.envelope("InodeStore", 6)?;
        if struct_v < 4 {
            return Err(DecodeError::TooOld { what: "InodeStore", struct_v, oldest: 4 });
        }
        Self::decode_bare(&mut r)
    }
}

/// The object of an inode that is in no directory ([`Ino::is_base`]): magic, then the record (Ceph:
/// `CInode::store`).
#[derive(Clone, PartialEq, Default, Debug)]
pub struct BaseInode(pub InodeStore);

impl Encode for BaseInode {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        crate::MAGIC.encode(out, f);
        self.0.encode(out, f);
    }
}

impl Decode for BaseInode {
    fn decode(r: &mut Reader) -> Result<Self> {
        let magic: Bytes = r.get()?;
        if magic != crate::MAGIC {
            return Err(DecodeError::Invalid {
                what: "magic of an inode",
                found: magic.len() as u64,
            });
        }
        Ok(BaseInode(r.get()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_newer_release_appended_is_kept() {
        let inode = Inode { ino: Ino(5), fscrypt: true, ..Inode::default() };
        let mut bytes = inode.to_bytes(Features::ALL).to_vec();
        bytes[0] = 19;
        bytes.extend([1, 2, 3]);
        let len = (bytes.len() - 6) as u32;
        bytes[2..6].copy_from_slice(&len.to_le_bytes());
        let bytes = Bytes::from(bytes);
        let back = Inode::from_bytes(&bytes).unwrap();
        assert_eq!(
            back.newer,
            Some(Newer { struct_v: 19, fields: Bytes::from_static(&[1, 2, 3]) })
        );
        assert_eq!(back.to_bytes(Features::ALL), bytes);
    }

    #[test]
    fn another_magic_is_no_inode() {
        let good = BaseInode::default().to_bytes(Features::ALL);
        assert!(BaseInode::from_bytes(&good).is_ok());
        let mut bad = good.to_vec();
        bad[5] ^= 1;
        assert!(BaseInode::from_bytes(&bad.into()).is_err());
    }
}
