//! What is known of an inode.

use bytes::Bytes;
use cephfs::{FileLayout, Ino, InodeStat};
use types::Utime;

/// Bits of a mode that say what an inode is (`S_IFMT`).
const KIND_MASK: u32 = 0o170_000;

/// What an inode is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A directory.
    Dir,
    /// A regular file.
    File,
    /// A symbolic link.
    Symlink,
    /// A device, socket or pipe.
    Other,
}

/// Attributes of an inode.
#[derive(Clone, Debug)]
pub struct Stat {
    /// Its number.
    pub ino: Ino,
    /// Kind and permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes of a file.
    pub size: u64,
    /// Bytes of files below a directory.
    pub rbytes: u64,
    /// Latest read.
    pub atime: Utime,
    /// Latest change of data.
    pub mtime: Utime,
    /// Latest change.
    pub ctime: Utime,
    /// When it was made.
    pub btime: Utime,
    /// Where data is. A directory without a layout of its own has none.
    pub layout: Option<FileLayout>,
    /// How many bytes may be below the directory; 0 is no limit.
    pub quota_bytes: i64,
    /// Target of a symbolic link.
    pub symlink: Bytes,
}

/// What a mode says of an inode's kind.
pub(crate) fn kind_of(mode: u32) -> Kind {
    match mode & KIND_MASK {
        0o040_000 => Kind::Dir,
        0o100_000 => Kind::File,
        0o120_000 => Kind::Symlink,
        _ => Kind::Other,
    }
}

impl Stat {
    pub(crate) fn of(s: &InodeStat) -> Stat {
        Stat {
            ino: s.ino,
            mode: s.mode,
            uid: s.uid,
            gid: s.gid,
            size: s.size,
            rbytes: s.rbytes,
            atime: s.atime,
            mtime: s.mtime,
            ctime: s.ctime,
            btime: s.btime,
            layout: Some(s.layout.clone()).filter(FileLayout::is_valid),
            quota_bytes: s.quota.max_bytes,
            symlink: s.symlink.clone(),
        }
    }

    /// What it is.
    pub fn kind(&self) -> Kind {
        kind_of(self.mode)
    }

    /// Permissions without the kind.
    pub fn permissions(&self) -> u32 {
        self.mode & !KIND_MASK
    }
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: Bytes,
    /// What it is.
    pub kind: Kind,
}
