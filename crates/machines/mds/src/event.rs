//! What can happen to a metadata server.

use crate::request::{FileLock, LockKind, Request};
use crate::types::{Batch, ClientId, Dentry, Ino, Inode, Name, Rank};
use types::Utime;

/// Names an action that is answered by an event.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Token(pub u64);

/// What can happen to a metadata server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A client's session.
    Session(ClientId, SessionEvent),
    /// What a client may do, which comes with its session. It may do all before.
    Rights(ClientId, crate::rights::Rights),
    /// A client's request.
    Request(ClientId, Request),
    /// A client's word about capabilities of an inode.
    Caps(ClientId, CapsUpdate),
    /// A client has dropped inodes: inode, capability, and the newest grant that it has seen.
    CapRelease(ClientId, Vec<(Ino, u64, u32)>),
    /// A client has given back the lease of a name: directory, name, number of the lease.
    LeaseRelease(ClientId, Ino, Name, u32),
    /// What a client had when the server before this one went. Comes in parts, after
    /// [`SessionEvent::Open`].
    Reconnect(ClientId, Vec<Claim>),
    /// A client has said all that it had.
    Reconnected(ClientId),
    /// Clients have had time enough to come back. Those that did not are evicted.
    ReconnectOver,
    /// This batch of the log and all before it are durable.
    Appended(Batch),
    /// Answers [`Action::ReadPage`](crate::Action::ReadPage): entries in order, and whether the
    /// directory ends with them. A directory without an object is empty.
    Page(Token, Result<(Vec<(Name, Dentry)>, bool), i32>),
    /// Answers [`Action::ReadEntry`](crate::Action::ReadEntry).
    Entry(Token, Result<Option<Dentry>, i32>),
    /// Answers [`Action::ReadPage`](crate::Action::ReadPage) and
    /// [`Action::ReadEntry`](crate::Action::ReadEntry) of a directory that a stock server split.
    Split(Token),
    /// Answers [`Action::ReadBase`](crate::Action::ReadBase).
    Base(Token, Result<Box<Inode>, i32>),
    /// Answers [`Action::ReadBacktrace`](crate::Action::ReadBacktrace): the directory and the name
    /// in it, if there is a backtrace.
    Backtrace(Token, Result<Option<(Ino, Name)>, i32>),
    /// Answers [`Action::Probe`](crate::Action::Probe): size and time of the data.
    Probed(Token, Result<(u64, Option<Utime>), i32>),
    /// An action is done: what it wrote is durable. Only success counts; the shell tries again
    /// until then, or stops the server.
    Done(Token),
    /// The moment of [`Action::WakeAt`](crate::Action::WakeAt) has come. One too many does no harm.
    Wake,
    /// Another owner's word. Those of one owner come in order, and some may be lost.
    Peer(Rank, Box<crate::peer::Message>),
    /// The owner is to hand all that it has over to the first one. Ends with
    /// [`Action::Left`](crate::Action::Left).
    Leave,
    /// The owner is to end, while all owners rest. Ends with
    /// [`Action::Ended`](crate::Action::Ended).
    End,
    /// Everything is to be written to its place at rest. Ends with
    /// [`Action::Flushed`](crate::Action::Flushed).
    Flush,
}

/// What a client says about its session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SessionEvent {
    /// It begins, or goes on with a server that took over.
    Open,
    /// It lives.
    Renew {
        /// Comes back in the answer.
        seq: u64,
    },
    /// It ends.
    Close {
        /// The newest message of the session that the client has seen.
        seq: u64,
    },
    /// The client waits for all that it was answered to be durable.
    FlushLog {
        /// Comes back in the answer.
        seq: u64,
    },
    /// An operator ends it.
    Evict,
    /// The OSDs refuse the client, so it ends.
    Blocklisted,
}

/// What a client says about its capabilities of an inode (Ceph: `MClientCaps`, of the operations
/// `UPDATE`, `FLUSH` and `DROP`).
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct CapsUpdate {
    /// The inode.
    pub ino: Ino,
    /// Which capability of it.
    pub cap_id: u64,
    /// The newest message about it that the client has seen.
    pub seq: u32,
    /// The newest record that granted some of it, as far as the client has seen.
    pub issue_seq: u32,
    /// What the client has and keeps.
    pub caps: u32,
    /// What it wants.
    pub wanted: u32,
    /// What of `attrs` was changed under which capabilities.
    pub dirty: u32,
    /// The number of the flush, if the client is to be told when the changes are durable.
    pub flush: Option<u64>,
    /// A program waits for that.
    pub sync: bool,
    /// The client knows of all flushes before this one that they are durable.
    pub oldest_flush: u64,
    /// Attributes as the client has them.
    pub attrs: CapAttrs,
    /// Up to where the client wants to write, 0 for no wish.
    pub max_size: u64,
    /// The user that the changes are of.
    pub uid: u32,
    /// The user's group.
    pub gid: u32,
}

/// Attributes that a client may change by capabilities.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct CapAttrs {
    /// Permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes.
    pub size: u64,
    /// Time of the data.
    pub mtime: Utime,
    /// Time of access.
    pub atime: Utime,
    /// Time of change.
    pub ctime: Utime,
    /// Time of creation.
    pub btime: Utime,
    /// How often times were set backwards.
    pub time_warp_seq: u32,
    /// Changes of the data that the client knows of.
    pub change_attr: u64,
    /// All extended attributes, if they are dirty.
    pub xattrs: Option<std::collections::BTreeMap<Name, bytes::Bytes>>,
}

/// What a client had of an inode (Ceph: `cap_reconnect_t`).
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Claim {
    /// The inode.
    pub ino: Ino,
    /// The capability.
    pub cap_id: u64,
    /// What the client has.
    pub issued: u32,
    /// What it wants.
    pub wanted: u32,
    /// Locks that it holds.
    pub locks: Vec<(LockKind, FileLock)>,
}
