//! Everything a metadata server can cause.

use crate::event::Token;
use crate::peer::OwnerTables;
use crate::request::{Reply, Request};
use crate::types::{
    Batch, ClientId, Dentry, DirFrag, DirStat, Ino, Inode, Layout, Name, NestStat, Promise, Rank,
    SessionRecord, Space, Steady,
};
use bytes::Bytes;
use denc_derive::Denc;
use std::collections::BTreeMap;

/// Everything a metadata server can cause. The shell carries actions out in the order in which it
/// takes them.
///
/// Every action may be carried out at once. What must not be visible before something is durable is
/// kept inside the machine and comes out after [`Event::Appended`](crate::Event::Appended). Those
/// for one client go to it in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Answer a request.
    Reply(ClientId, Box<Reply>),
    /// Tell a client about its capabilities of an inode.
    Caps(ClientId, Box<CapsMessage>),
    /// Have a client give back the lease of a name.
    Lease(ClientId, Box<LeaseEnd>),
    /// Tell a client about its session.
    Session(ClientId, SessionMessage),
    /// Append to the log. Answered by [`Event::Appended`](crate::Event::Appended).
    Append(Batch, Bytes),
    /// Batches below this one are needed no more.
    TrimLog(Batch),
    /// Read entries behind `after`. Answered by [`Event::Page`](crate::Event::Page).
    ReadPage {
        /// Goes into the answer.
        token: Token,
        /// The directory.
        dir: DirFrag,
        /// Where to begin.
        after: Option<Name>,
        /// How many at most, at least one if there are any.
        max: u32,
    },
    /// Read one entry. Answered by [`Event::Entry`](crate::Event::Entry).
    ReadEntry {
        /// Goes into the answer.
        token: Token,
        /// The directory.
        dir: DirFrag,
        /// Its name.
        name: Name,
    },
    /// Copy all entries of a directory that a stock server split to the object of one that is not.
    /// Answered by [`Event::Done`](crate::Event::Done). It may be done again, until
    /// [`Split::Joined`](crate::Split::Joined) of the inode is durable.
    Join {
        /// Goes into the answer.
        token: Token,
        /// The directory.
        inode: Box<Inode>,
    },
    /// Read an inode that no directory holds. Answered by [`Event::Base`](crate::Event::Base).
    ReadBase {
        /// Goes into the answer.
        token: Token,
        /// The inode.
        ino: Ino,
    },
    /// Read an inode's backtrace, in the metadata pool and the data pools. Answered by
    /// [`Event::Backtrace`](crate::Event::Backtrace).
    ReadBacktrace {
        /// Goes into the answer.
        token: Token,
        /// The inode.
        ino: Ino,
    },
    /// Change a directory's object in one operation. Answered by
    /// [`Event::Done`](crate::Event::Done).
    WriteDir {
        /// Goes into the answer.
        token: Token,
        /// The directory.
        dir: DirFrag,
        /// Entries to set.
        set: Vec<(Name, Dentry)>,
        /// Entries to remove.
        remove: Vec<Name>,
        /// What its header says.
        head: DirHead,
    },
    /// Write inodes that no directory holds. Answered by [`Event::Done`](crate::Event::Done).
    WriteBase {
        /// Goes into the answer.
        token: Token,
        /// The inode.
        inode: Box<Inode>,
    },
    /// Write an inode's backtrace: nearest directory first. Answered by
    /// [`Event::Done`](crate::Event::Done).
    WriteBacktrace {
        /// Goes into the answer.
        token: Token,
        /// The inode.
        ino: Ino,
        /// Whether it is a directory: its backtrace is in the metadata pool.
        is_dir: bool,
        /// Pool and namespace of a file.
        layout: Option<Layout>,
        /// Directory, name in it, and the version of what is there.
        ancestors: Vec<(Ino, Name, u64)>,
    },
    /// Write what is in no directory. Answered by [`Event::Done`](crate::Event::Done).
    WriteTables {
        /// Goes into the answer.
        token: Token,
        /// All of it.
        tables: Box<Tables>,
    },
    /// Remove what an inode leaves: data up to the largest size that it had, backtrace, and a
    /// directory's object. Answered by [`Event::Done`](crate::Event::Done).
    Purge {
        /// Goes into the answer.
        token: Token,
        /// The inode.
        inode: Box<Inode>,
    },
    /// Trim a file's objects from its size on, up to [`Inode::truncate_from`], with
    /// [`Inode::truncate_seq`] and [`Inode::truncate_size`]. Answered by
    /// [`Event::Done`](crate::Event::Done).
    Truncate {
        /// Goes into the answer.
        token: Token,
        /// The file.
        inode: Box<Inode>,
    },
    /// Find out how far a file goes, up to `max` bytes. Answered by
    /// [`Event::Probed`](crate::Event::Probed).
    Probe {
        /// Goes into the answer.
        token: Token,
        /// The file.
        inode: Box<Inode>,
        /// No client could write behind this.
        max: u64,
    },
    /// Have the OSDs refuse this client. Answered by [`Event::Done`](crate::Event::Done) when every
    /// OSD that serves its files does, or clients are told to wait for the map that says so.
    Blocklist {
        /// Goes into the answer.
        token: Token,
        /// The client.
        client: ClientId,
    },
    /// Send [`Event::Wake`](crate::Event::Wake) at this moment.
    WakeAt(Steady),
    /// Tell another owner.
    Peer(Rank, Box<crate::peer::Message>),
    /// Have a client ask another owner, with this request in place of its own. No other answer to
    /// that follows.
    Forward(ClientId, Rank, Box<Request>),
    /// Answers [`Event::Leave`](crate::Event::Leave): nothing is left here, and the first owner has
    /// it.
    Left,
    /// Answers [`Event::End`](crate::Event::End): all owners are at rest, and none needs this one
    /// until all are back.
    Ended,
    /// Answers [`Mds::set_emptying`](crate::Mds::set_emptying): no more of the cache can go.
    Emptied,
    /// Answers [`Event::Flush`](crate::Event::Flush): all that was done before it is at rest.
    Flushed,
}

/// What the header of a directory's object says (Ceph: `fnode_t`).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct DirHead {
    /// Counts changes.
    pub version: u64,
    /// What is in it.
    pub dirstat: DirStat,
    /// What is in it and below, the directory itself not counted.
    pub rstat: NestStat,
}

impl DirHead {
    /// What the inode of a directory says.
    pub fn of(inode: &Inode) -> Self {
        DirHead {
            version: inode.version,
            dirstat: inode.dirstat,
            rstat: NestStat { rsubdirs: inode.rstat.rsubdirs - 1, ..inode.rstat },
        }
    }
}

/// What is said about capabilities (Ceph: `MClientCaps`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CapsMessage {
    /// What happens.
    pub op: CapsOp,
    /// The inode with its attributes.
    pub inode: Box<Inode>,
    /// The layout in force.
    pub layout: Option<Layout>,
    /// Which capability of it.
    pub cap_id: u64,
    /// The number of this message about it.
    pub seq: u32,
    /// What the client has from now on.
    pub caps: u32,
    /// What the server takes for wanted.
    pub wanted: u32,
    /// Up to where the client may write.
    pub max_size: u64,
}

/// What happens to capabilities.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CapsOp {
    /// More of them, or new attributes.
    Grant,
    /// Fewer: the client must say when it has given up what is not in `caps`.
    Revoke,
    /// A flush is durable.
    FlushAck {
        /// Its number.
        flush: u64,
        /// What was dirty.
        dirty: u32,
    },
    /// All of them are gone: the inode is another owner's, which the client finds by asking.
    Export,
}

/// A client may no longer rely on a name (Ceph: `MClientLease` with `CEPH_MDS_LEASE_REVOKE`). It
/// answers with [`Event::LeaseRelease`](crate::Event::LeaseRelease), whether it has a lease or not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeaseEnd {
    /// The directory.
    pub dir: Ino,
    /// The name.
    pub name: Name,
    /// The number of the lease.
    pub seq: u32,
}

/// What is said about a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SessionMessage {
    /// It is open.
    Open,
    /// It goes on.
    Renew {
        /// As the client said.
        seq: u64,
    },
    /// Nothing was heard for too long.
    Stale,
    /// It is over.
    Close,
    /// All is durable that the client was answered.
    FlushLog {
        /// As the client said.
        seq: u64,
    },
    /// The client has more inodes than it should.
    Recall {
        /// How many it may keep.
        max_caps: u64,
    },
}

/// What is in no directory.
#[derive(Denc, Clone, PartialEq, Eq, Default, Debug)]
pub struct Tables {
    /// The next free inode number of each space.
    pub next: BTreeMap<Space, u64>,
    /// Sessions.
    pub sessions: BTreeMap<ClientId, SessionRecord>,
    /// Files of which objects are trimmed.
    pub truncating: Vec<Ino>,
    /// Files of which the size is to be found out.
    pub recovering: Vec<Ino>,
    /// Promises to subvolumes. In the log they stand beside the tables.
    #[denc(skip)]
    pub promises: BTreeMap<Space, Promise>,
    /// What is shared with other owners. In the log it stands beside the tables.
    #[denc(skip)]
    pub owners: OwnerTables,
}
