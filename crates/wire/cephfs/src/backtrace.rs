//! Where an inode is, kept at its first object for repairs and for look-ups by number.

use crate::ids::Ino;
use bytes::Bytes;
use denc_derive::Denc;

/// The extended attribute that has it.
pub const XATTR: &str = "parent";

/// One step up (Ceph: `inode_backpointer_t`, `mds/inode_backtrace.h`, version 2).
#[derive(Clone, PartialEq, Eq, Default, Debug, Denc)]
#[denc(version = 2, compat = 2, oldest = 2)]
pub struct Backpointer {
    /// The directory.
    pub dirino: Ino,
    /// The name in it.
    pub dname: Bytes,
    /// The child's version at that time.
    pub version: u64,
}

/// The way from an inode to the root (Ceph 16.2: `inode_backtrace_t`, `mds/inode_backtrace.h`,
/// version 5, compat 4).
#[derive(Clone, PartialEq, Eq, Debug, Denc)]
#[denc(version = 5, compat = 4, oldest = 5)]
pub struct Backtrace {
    /// The inode.
    pub ino: Ino,
    /// Its directory, that one's directory, and so on.
    pub ancestors: Vec<Backpointer>,
    /// The pool of its data.
    pub pool: i64,
    /// Pools that its data was in.
    pub old_pools: Vec<i64>,
}

impl Default for Backtrace {
    fn default() -> Self {
        Backtrace { ino: Ino(0), ancestors: Vec::new(), pool: -1, old_pools: Vec::new() }
    }
}
