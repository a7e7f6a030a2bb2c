//! An operation of the machine: what it is to do, why it waits, and what it comes to.

use super::asked::Txn;
use super::weight::Weight;
use crate::event::CapsUpdate;
use crate::peer::{self, LotId};
use crate::request::{Extra, Request};
use crate::types::{ClientId, DirFrag, Ino, Name, Rank, Space, Steady};
use std::collections::BTreeSet;

/// Names an operation of the machine; the older one goes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct OpId(pub u64);

/// Why an operation does not come to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    /// It waits for something, and will be tried again.
    Wait,
    /// It goes on at another owner, with the path that [`Mds::away`](super::Mds::away) noted.
    Away,
    /// It goes on when what is on its way to another owner has come there.
    Park(LotId),
    /// It ends with this errno.
    Fail(i32),
}

/// What a step of an operation comes to.
pub(crate) type Exec<T> = Result<T, Stop>;

/// Fails with an errno.
pub(crate) fn fail<T>(errno: types::Errno) -> Exec<T> {
    Err(Stop::Fail(errno.0))
}

/// What is to be done.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    /// A client's request.
    Request(Box<Request>),
    /// A client's word about capabilities.
    Caps(Box<CapsUpdate>),
    /// Changes of a directory are written to its object.
    WriteDir(DirFrag),
    /// An inode's backtrace is written.
    Backtrace(Ino),
    /// A stray directory is looked through, for what a server before this one left.
    Strays(Ino),
    /// A stray comes from the directory of an owner that left to that of this owner.
    Rehome(Ino),
    /// An inode's data is gone.
    Purged(Ino),
    /// Another owner wants halves of a transaction made ready.
    Prepare(Box<peer::Prepare>),
    /// Halves are carried out.
    Apply(peer::TxnId),
    /// A root of this owner gets its place in a directory that was taken over.
    Graft(Ino),
    /// It is looked which owner a subvolume or a tree is to have.
    Choose(LotId),
    /// All of a subvolume is found that could not go to another owner unseen.
    Collect(Space),
    /// A tree is walked through.
    Walk(Ino),
    /// A subvolume or a tree comes from another owner.
    Take(Rank, Box<peer::Parcel>),
    /// Another owner reports the root of a part.
    Report(Rank, Box<crate::types::Inode>),
    /// An inode that a client claims is read, so that the client can be asked for it.
    Claimed(Ino),
    /// The size of a file was found out, or its objects were trimmed.
    Sized(Ino, Option<(u64, Option<types::Utime>)>),
}

/// Entries that were read for a page: they are in the cache as long as none of the directory was
/// dropped since.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Have {
    pub dir: DirFrag,
    pub after: Option<Name>,
    /// The last name that was read, if it is not the directory's end.
    pub upto: Option<Name>,
    pub dropped: u64,
}

/// An operation that is not at its end.
#[derive(Clone, Debug)]
pub(crate) struct OpState {
    pub kind: Kind,
    pub client: ClientId,
    /// Inodes on which it takes capabilities back.
    pub needs_on: Vec<Ino>,
    /// Names that it changes, while it waits.
    pub names_on: Vec<(Ino, Name)>,
    pub have: Option<Have>,
    /// A page goes on behind this name, as long as the directory has not changed.
    pub skip: Option<(Name, u64)>,
    /// What other owners do of it.
    pub txn: Option<Box<Txn>>,
    /// Another owner judged it: it is in the history already.
    pub judged: bool,
    /// The server before this one had answered it.
    pub resent: bool,
    /// The number that its client was told is looked up.
    pub looks: bool,
    /// It has been, and no inode has it.
    pub is_free: bool,
    /// When it began, in events.
    pub began: u64,
    /// When it came.
    pub since: Steady,
    pub weight: Weight,
}

/// What the server does at present.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// Clients of the server before this one come back; these have not yet.
    Reconnect(BTreeSet<ClientId>),
    /// What clients were answered before it was durable is done again.
    Replaying,
    /// What clients flushed is taken in.
    Flushing(BTreeSet<OpId>),
    /// Requests are carried out.
    Active,
}

/// What a request came to.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Answer {
    /// Directory and name of the trace.
    pub dentry: Option<(Ino, Name)>,
    /// Inode of the trace.
    pub target: Option<Ino>,
    /// Capabilities that the client wants of it from now on.
    pub wanted: u32,
    pub extra: Extra,
    /// Names of a page.
    pub page: Option<Page>,
    /// It changed something.
    pub wrote: bool,
    /// The file that was made.
    pub made: Option<Ino>,
}

/// A page before its records are made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Page {
    pub entries: Vec<(Name, Ino, u8)>,
    pub end: bool,
    pub complete: bool,
}
