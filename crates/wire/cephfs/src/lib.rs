//! Records of CephFS: what a metadata server (MDS) keeps in the metadata pool, and the records that
//! its messages to clients carry.
//!
//! Everything at rest has the form of Ceph 16.2, byte for byte, so that a stock `ceph-mds` and its
//! repair tools read what is here and the other way round. Each type names its Ceph file, struct
//! and version.
//!
//! * [`ids`]: inode numbers, fragments of directories.
//! * [`names`]: names of objects.
//! * [`inode`], [`dentry`], [`fnode`]: a directory object's rows and header.
//! * [`backtrace`]: where an inode is, kept at its first object.
//! * [`tables`], [`session`]: free inode numbers, snapshots and sessions.
//! * [`snap`]: snapshots of directories, and how clients learn of them.
//! * [`journal`]: the journal's pointer and header, and entries of a journal that is empty.
//! * [`caps`]: capability bits.
//! * [`reply`]: records in replies.
//!
//! Names and values of users are byte strings: a name may have any byte except `/` and zero.

#![forbid(unsafe_code)]

pub mod backtrace;
pub mod caps;
pub mod dentry;
pub mod fnode;
pub mod ids;
pub mod inode;
pub mod journal;
pub mod layout;
pub mod names;
pub mod reply;
pub mod session;
pub mod snap;
pub mod stats;
pub mod tables;

pub use backtrace::{Backpointer, Backtrace};
pub use dentry::{Dentry, Link, dentry_key, parse_dentry_key};
pub use fnode::Fnode;
pub use ids::{DirFrag, Frag, FragTree, Ino, dentry_hash};
pub use inode::{ClientRange, InlineData, Inode, InodeStore, OldInode};
pub use layout::{DirLayout, FileLayout};
pub use reply::{DirPage, DirStat, FileLock, InodeStat, LeaseStat, OpenCreated, ReplyCap, Trace};
pub use session::{ClientMetadata, MetricSpec, SessionInfo, SessionMapHeader};
pub use snap::{SnapInfo, SnapLink, SnapRealmInfo, SnapRealmRecord};
pub use stats::{FragInfo, NestInfo, Quota};
pub use tables::{InoTable, SnapTable, TablePending};

/// What the first object of a base inode and the header of a journal begin with (Ceph:
/// `CEPH_FS_ONDISK_MAGIC`, `mds/mdstypes.h`).
pub const MAGIC: &str = "ceph fs volume v011";
