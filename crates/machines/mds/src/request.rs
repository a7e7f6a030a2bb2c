//! What clients ask for, and what they are answered.

use crate::types::{ClientId, Ino, Inode, Layout, Name, NestStat, Quota};
use bytes::Bytes;
use denc_derive::Denc;
use types::Utime;

/// A path below an inode (Ceph: `filepath`).
#[derive(Denc, Clone, PartialEq, Eq, Default, Debug)]
pub struct FilePath {
    /// Where it begins.
    pub ino: Ino,
    /// Names separated by slashes.
    pub path: Bytes,
}

/// A client's request (Ceph: `MClientRequest`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// Its number in the session.
    pub tid: u64,
    /// The client knows the answers of all requests before this one.
    pub oldest_tid: u64,
    /// The caller.
    pub uid: u32,
    /// The caller's group.
    pub gid: u32,
    /// More groups of the caller.
    pub groups: Vec<u32>,
    /// The client's wall clock: the time of what changes.
    pub stamp: Utime,
    /// What it is about.
    pub path: FilePath,
    /// The other path of [`Op::Rename`] and [`Op::Link`]: the old name, or the inode.
    pub path2: FilePath,
    /// Capabilities that the client gives back with it.
    pub releases: Vec<Release>,
    /// The client was answered before it was durable, and asks for the same again after a failover:
    /// the inode that it was told of, or 0 (Ceph: `CEPH_MDS_FLAG_REPLAY`).
    pub replay: Option<Ino>,
    /// What is to be done.
    pub op: Op,
}

impl Request {
    /// Whether a path that the request goes on with is the inode that its name stands for.
    pub(crate) fn is_named_by(&self, path: &FilePath) -> bool {
        path.ino != self.path.ino && path.path.is_empty()
    }

    /// The request as it goes on at another owner. What the name stands for is found by then.
    pub fn onward(&self, path: FilePath) -> Request {
        let op = match &self.op {
            Op::Lookup { mask } if self.is_named_by(&path) => Op::Getattr { mask: *mask },
            Op::Create { wanted, truncate, .. } if self.is_named_by(&path) => {
                Op::Open { wanted: *wanted, truncate: *truncate }
            }
            op => op.clone(),
        };
        Request { path, op, releases: Vec::new(), ..self.clone() }
    }
}

/// Capabilities given back with a request (Ceph: `ceph_mds_request_release`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Release {
    /// The inode.
    pub ino: Ino,
    /// Which capability of it.
    pub cap_id: u64,
    /// What the client keeps.
    pub caps: u32,
    /// What it wants.
    pub wanted: u32,
    /// The newest message about it that the client has seen.
    pub seq: u32,
    /// The newest record that granted some of it, as far as the client has seen.
    pub issue_seq: u32,
    /// A name in the inode, and the number of the lease of it that the client gives back.
    pub lease: Option<(Name, u32)>,
}

/// Attributes to be set (Ceph: `CEPH_SETATTR_*`).
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct SetAttr {
    /// Permissions.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Time of the data.
    pub mtime: Option<Utime>,
    /// Time of access.
    pub atime: Option<Utime>,
    /// Time of creation.
    pub btime: Option<Utime>,
    /// Bytes.
    pub size: Option<u64>,
    /// The data changes: a program loses its set-user and set-group bits
    /// (Ceph: `CEPH_SETATTR_KILL_SGUID`).
    pub kill_sguid: bool,
}

/// A layout as a request gives it: 0 or -1 for what stays as it is.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct LayoutHints {
    /// Bytes of a stripe's part.
    pub stripe_unit: u32,
    /// Objects that a stripe goes over.
    pub stripe_count: u32,
    /// Bytes of an object.
    pub object_size: u32,
    /// The data pool, if it is named.
    pub pool: Option<i64>,
}

/// How an existing attribute is dealt with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum XattrMode {
    /// It may be there or not.
    Any,
    /// It must not be there.
    Create,
    /// It must be there.
    Replace,
}

/// What a request asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// A name, and the attributes that these capabilities cover.
    Lookup {
        /// Bits of [`crate::caps`].
        mask: u32,
    },
    /// The inode at the path.
    Getattr {
        /// Bits of [`crate::caps`].
        mask: u32,
    },
    /// The directory that holds the inode.
    LookupParent,
    /// The name of the inode.
    LookupName,
    /// Changes attributes.
    Setattr(SetAttr),
    /// Sets an attribute, or a virtual one.
    Setxattr {
        /// Its name.
        name: Name,
        /// Its value.
        value: Bytes,
        /// What is expected.
        mode: XattrMode,
    },
    /// Removes an attribute, or a virtual one.
    Rmxattr {
        /// Its name.
        name: Name,
    },
    /// Sets the layout of an empty file.
    SetLayout(LayoutHints),
    /// Sets the layout of new files below a directory.
    SetDirLayout(LayoutHints),
    /// Opens the inode at the path.
    Open {
        /// Capabilities that the way of opening wants.
        wanted: u32,
        /// Whether the file becomes empty.
        truncate: bool,
    },
    /// Makes a file if there is none, and opens it.
    Create {
        /// Permissions.
        mode: u32,
        /// Capabilities that the way of opening wants.
        wanted: u32,
        /// Whether there must be none.
        exclusive: bool,
        /// Whether one that is there becomes empty.
        truncate: bool,
        /// Its layout.
        layout: LayoutHints,
    },
    /// Makes a file or a special file.
    Mknod {
        /// Type and permissions.
        mode: u32,
        /// The device.
        rdev: u32,
    },
    /// Makes a directory.
    Mkdir {
        /// Permissions.
        mode: u32,
    },
    /// Makes a symbolic link.
    Symlink {
        /// Where it leads.
        target: Bytes,
    },
    /// Gives the inode at `path2` another name.
    Link,
    /// Takes a name of something that is no directory.
    Unlink,
    /// Removes an empty directory.
    Rmdir,
    /// Moves `path2` to the path.
    Rename,
    /// A page of a directory.
    Readdir {
        /// The last name of the page before.
        after: Option<Name>,
        /// About how many names, 0 for no limit of the client's.
        max_entries: u32,
        /// About how many bytes, 0 for no limit of the client's.
        max_bytes: u32,
    },
    /// Takes or gives back a lock.
    SetLock(LockRequest),
    /// Whether a lock could be taken.
    GetLock(LockRequest),
}

impl Reply {
    /// An answer that shows nothing.
    pub(crate) fn bare(tid: u64, result: i32) -> Reply {
        Reply { tid, result, safe: true, dentry: None, target: None, extra: Extra::None }
    }
}

impl Op {
    /// Whether the client may hear of it before it is durable. What it changes is what a client can
    /// ask for again, with the same result: nothing that holds for what is below a directory, and
    /// no data.
    pub(crate) fn is_early(&self) -> bool {
        match self {
            Op::Setattr(set) => set.size.is_none(),
            Op::Setxattr { name, .. } | Op::Rmxattr { name } => !name.starts_with(b"ceph."),
            Op::Create { .. }
            | Op::Mknod { .. }
            | Op::Mkdir { .. }
            | Op::Symlink { .. }
            | Op::Link
            | Op::Unlink
            | Op::Rmdir
            | Op::Rename => true,
            _ => false,
        }
    }

    /// Whether it may change something: its answer must survive a failover.
    pub fn is_write(&self) -> bool {
        !matches!(
            self,
            Op::Lookup { .. }
                | Op::Getattr { .. }
                | Op::LookupParent
                | Op::LookupName
                | Op::Open { truncate: false, .. }
                | Op::Readdir { .. }
                | Op::GetLock(_)
        )
    }
}

/// Which of the two kinds of locks (Ceph: `CEPH_LOCK_FCNTL`, `CEPH_LOCK_FLOCK`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LockKind {
    /// Of ranges, owned by processes.
    Posix,
    /// Of whole files, owned by open files.
    Flock,
}

/// What a lock excludes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LockType {
    /// Writers.
    Shared,
    /// All others.
    Exclusive,
    /// Nothing: it is given back.
    Unlock,
}

/// A lock that is asked for or held (Ceph: `ceph_filelock`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct FileLock {
    /// First byte.
    pub start: u64,
    /// Bytes, 0 for all up to the end.
    pub length: u64,
    /// The client.
    pub client: ClientId,
    /// Its owner there.
    pub owner: u64,
    /// The process, shown to others.
    pub pid: u64,
    /// What it excludes.
    pub kind: LockType,
}

/// A request about a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockRequest {
    /// Which kind.
    pub rule: LockKind,
    /// The lock.
    pub lock: FileLock,
    /// Whether to wait for it.
    pub wait: bool,
    /// Ends the waiting of an earlier request for the same lock.
    pub interrupt: bool,
}

/// A record of an inode in an answer. It also grants the capabilities in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InodeStat {
    /// The attributes; those under capabilities that others hold may be old.
    pub inode: Box<Inode>,
    /// The layout in force: the inode's own or, for a directory without one, that inherited.
    pub layout: Option<Layout>,
    /// Up to where the client may write.
    pub max_size: u64,
    /// Capabilities.
    pub cap: CapGrant,
    /// The quota directory above or at it, with what it holds, if there is one.
    pub quota: Option<(Ino, Quota, NestStat)>,
}

/// Capabilities granted by a record (Ceph: `ceph_mds_reply_cap`).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CapGrant {
    /// What is granted; 0 if the client has none of the inode.
    pub caps: u32,
    /// What the server takes for wanted.
    pub wanted: u32,
    /// The capability.
    pub cap_id: u64,
    /// The number of this message about it.
    pub seq: u32,
    /// Whether this server is the inode's owner.
    pub auth: bool,
}

/// How long a client may rely on a name without asking, unless it is asked to give that back.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Lease {
    /// Milliseconds from the moment at which the client sent the request; 0 for no lease.
    pub duration_ms: u32,
    /// Its number.
    pub seq: u32,
}

/// The directory and the name in an answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TraceDentry {
    /// The directory.
    pub dir: InodeStat,
    /// The name.
    pub name: Name,
    /// Its lease.
    pub lease: Lease,
}

/// What an answer says besides its trace.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub enum Extra {
    /// Nothing.
    #[default]
    None,
    /// A file was made.
    Created(Ino),
    /// A page of a directory.
    Page {
        /// Whether it ends with the directory.
        end: bool,
        /// Whether it is the whole directory.
        complete: bool,
        /// Names in order.
        entries: Vec<(Name, Lease, InodeStat)>,
    },
    /// The lock that is in the way, or the one asked for as [`LockType::Unlock`].
    Lock(LockKind, FileLock),
}

/// An answer (Ceph: `MClientReply`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reply {
    /// The request.
    pub tid: u64,
    /// 0, or the negative errno.
    pub result: i32,
    /// What it tells of is durable. After an answer of which it is not, another one follows, which
    /// says no more than that.
    pub safe: bool,
    /// Directory and name.
    pub dentry: Option<TraceDentry>,
    /// The inode.
    pub target: Option<InodeStat>,
    /// More.
    pub extra: Extra,
}
