//! Parts of the server's state: sessions, tenants, the log, writes, and other owners.

use super::decay::Recalls;
use super::operation::OpId;
use super::runs::Runs;
use super::weight::{Deferred, Output, Replays, Weight};
use crate::action::Action;
use crate::event::Token;
use crate::peer::{Lot, LotId, Prepared, Root, TxnId};
use crate::request::FilePath;
use crate::rights::Rights;
use crate::types::{
    Batch, Chance, ClientId, DirFrag, Ino, Inode, Layout, Name, Rank, SessionRecord, Space, Steady,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A client's session.
#[derive(Debug)]
pub(crate) struct Session {
    pub record: SessionRecord,
    pub rights: Rights,
    /// When something was last heard of it.
    pub heard: Steady,
    pub stale: bool,
    pub evicting: bool,
    /// Inodes of which it has capabilities.
    pub inodes: BTreeSet<Ino>,
    /// Requests of which the answers are on their way or have arrived.
    pub answered: BTreeSet<u64>,
    /// What it is told.
    pub output: Output,
    /// Bytes of inodes that it keeps in memory, as far as no other client does.
    pub held: usize,
    pub recalls: Recalls,
    /// Bytes of its claims.
    pub claimed: usize,
    pub weight: Weight,
}

impl Session {
    pub fn new(record: SessionRecord, now: Steady) -> Self {
        Session {
            record,
            rights: Rights::All,
            heard: now,
            stale: false,
            evicting: false,
            inodes: BTreeSet::new(),
            answered: BTreeSet::new(),
            output: Output::default(),
            held: 0,
            recalls: Recalls::default(),
            claimed: 0,
            weight: Weight::default(),
        }
    }

    /// Notes that a request has its answer. Answers come in order and are not lost as long as there
    /// is the session, so the request is not answered again: a client drops an answer that it does
    /// not wait for, with the capabilities in it.
    pub fn is_answered(&mut self, tid: u64) {
        self.answered.insert(tid);
        if self.answered.len() > ANSWERED_MAX {
            self.answered.pop_first();
        }
    }

    /// Forgets requests of which the client knows the answers.
    pub fn forget_below(&mut self, oldest_tid: u64) {
        self.record.forget_below(oldest_tid);
        if self.answered.first().is_some_and(|tid| *tid < oldest_tid) {
            self.answered = self.answered.split_off(&oldest_tid);
        }
    }
}

/// So many answered requests of a client are known at most. Stock clients say with each request up
/// to which one they have all answers.
const ANSWERED_MAX: usize = 4_096;

/// What a request costs at least.
pub(crate) const COST_UNIT: u32 = 4_096;

/// What was counted of a tenant.
#[derive(Clone, Default, Debug)]
pub(crate) struct Tenant {
    pub offered: u64,
    pub served: u64,
    pub waited_ns: u64,
    pub waits: Vec<u64>,
}

/// Changes since the last batch that was sealed.
#[derive(Default, Debug)]
pub(crate) struct Open {
    pub entries: BTreeSet<(DirFrag, Name)>,
    pub base: BTreeSet<Ino>,
    pub gone: Vec<Ino>,
    pub spaces: BTreeSet<Space>,
    pub sessions: BTreeSet<ClientId>,
    pub completed: Vec<((ClientId, u64), Ino, u64)>,
    pub flushes: Vec<(ClientId, u64, u64)>,
    pub tables: bool,
    pub promises: BTreeSet<Space>,
    pub roots: BTreeSet<Ino>,
    pub prepared: BTreeSet<TxnId>,
    pub decided: BTreeSet<TxnId>,
    pub lots: BTreeSet<LotId>,
    pub runs: Vec<(Ino, u64, Option<Rank>)>,
}

impl Open {
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
            && self.base.is_empty()
            && self.gone.is_empty()
            && self.spaces.is_empty()
            && self.sessions.is_empty()
            && self.completed.is_empty()
            && self.flushes.is_empty()
            && !self.tables
            && self.promises.is_empty()
            && self.roots.is_empty()
            && self.prepared.is_empty()
            && self.decided.is_empty()
            && self.lots.is_empty()
            && self.runs.is_empty()
    }
}

/// Where the log is.
#[derive(Default, Debug)]
pub(crate) struct Log {
    pub open: Open,
    /// The last batch that was sealed.
    pub sealed: Batch,
    /// Up to here all is durable.
    pub durable: Batch,
    /// Batches below this one are trimmed.
    pub first: Batch,
    /// A batch from which on all tables can be told.
    pub tables: Batch,
    /// Batches with all tables that are not durable yet.
    pub told: VecDeque<Batch>,
    /// Batches that are being appended.
    pub appending: VecDeque<Batch>,
    /// What must wait for batches.
    pub held: BTreeMap<Batch, Vec<Action>>,
    /// Up to here something waits: a client, another owner, or what is to be written.
    pub wanted: Batch,
    /// When the open batch was put off first: nothing waited for it.
    pub put_off: Option<Steady>,
}

impl Log {
    /// The batch that changes go into.
    pub fn open(&self) -> Batch {
        Batch(self.sealed.0 + 1)
    }

    /// The batch with the newest change.
    pub fn newest(&self) -> Batch {
        if self.open.is_empty() { self.sealed } else { self.open() }
    }

    /// Something waits for this batch.
    pub fn wants(&mut self, batch: Batch) {
        self.wanted = self.wanted.max(batch);
    }

    /// Begins behind this batch.
    pub fn starts_after(&mut self, last: Batch, first: Batch) {
        self.sealed = last;
        self.durable = last;
        self.first = first;
        self.tables = first;
    }
}

/// What is being written.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    pub what: What,
    /// The oldest batch that is needed until it is done.
    pub since: Batch,
    /// The version of the place that a backtrace tells.
    pub version: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum What {
    Dir(DirFrag),
    Base(Ino),
    Backtrace(Ino),
    Tables,
}

/// A flush on its way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Flushing {
    /// Up to this batch, all goes to its place.
    Entries(Batch),
    /// The tables are being written.
    Tables(Batch),
}

/// How an owner leaves, or comes to rest: step by step, and back to none by a crash before
/// [`Leaving::Flush`]. An owner that comes to rest goes back to none by any crash.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Leaving {
    /// Locks of files, and files that are open and have no name, are waited for.
    Locks,
    /// Requests come to their end, and no others begin.
    Requests,
    /// Clients give everything back.
    Caps,
    /// Sessions are ended. It is in the log that this owner serves no more; all goes to its place.
    Flush,
    /// The log is empty. This is made durable.
    Trim,
    /// All is at rest, and stays there unless another owner reports something: an owner that rests.
    Still,
    /// The other owner is told.
    Tell,
    /// The other owner has it all; or all owners are at rest, and this one has ended.
    Gone,
}

/// What is shared with other owners.
#[derive(Default, Debug)]
pub(crate) struct Peers {
    /// Roots of parts: the owners of their names, and the layout that their files inherit.
    pub roots: BTreeMap<Ino, RootAbove>,
    /// Halves that are ready, and the batch that has them.
    pub prepared: BTreeMap<TxnId, (Batch, Prepared)>,
    /// Operations that make halves ready.
    pub preparing: BTreeMap<TxnId, OpId>,
    /// Halves that are being carried out.
    pub applying: BTreeSet<TxnId>,
    /// Decisions, the batch that has them, and owners that may not know them.
    pub decided: BTreeMap<TxnId, (Batch, BTreeSet<Rank>)>,
    /// Requests that wait for halves.
    pub coordinating: BTreeMap<TxnId, OpId>,
    /// What is kept for halves that are ready: capabilities of inodes.
    pub locked: BTreeMap<Ino, (TxnId, u32)>,
    /// Requests that gave their halves back, and when they try again.
    pub later: BTreeMap<OpId, Steady>,
    /// Requests that wait for backtraces to be written.
    pub behind_traces: Vec<OpId>,
    /// Requests that wait for a directory to be made here.
    pub behind_makes: Vec<OpId>,
    /// The first batch of this server: before it is durable, numbers of transactions could come
    /// again.
    pub since: Batch,
    /// Owners that have left, of which this one has all.
    pub kept: BTreeSet<Rank>,
    /// What clients had done with this owner or one that left, until they have a session with this
    /// one; of an owner that leaves, what the other one is to know.
    pub records: BTreeMap<ClientId, SessionRecord>,
    /// How far this owner is with leaving, or coming to rest.
    pub leaving: Option<Leaving>,
    /// How it rests, and ends.
    pub rest: super::rest::Rest,
    /// Roots of this owner, as they are at rest in directories that it took over.
    pub shadows: BTreeMap<Ino, (Ino, Name, Box<Inode>)>,
    /// Roots that are not where their backtraces say.
    pub placeless: BTreeSet<Ino>,
    /// Roots that are reported.
    pub reports: BTreeMap<Ino, (Token, Rank, Box<Inode>)>,
    /// Subvolumes and trees that have moved, or are on their way.
    pub lots: BTreeMap<LotId, Lot>,
    /// Roots of subvolumes, and directories in them that are older: their numbers are of another
    /// space.
    pub odd: BTreeMap<Ino, Space>,
    /// Subvolumes with the root of another owner's part in them.
    pub mixed: BTreeSet<Space>,
    /// What is to go to another owner, up to the record that says so.
    pub moving: BTreeMap<LotId, Moving>,
    /// Requests that wait for what is on its way.
    pub parked: BTreeMap<LotId, Deferred>,
    /// It is to be looked which owner these are to have.
    pub choose: BTreeSet<LotId>,
    /// All of them are.
    pub choose_all: bool,
    /// What others are to give back.
    pub recalls: BTreeSet<LotId>,
    /// Runs of numbers with another owner than they say, as far as this owner has to know it.
    pub runs: Runs<Rank>,
    /// Numbers of trees that were walked through and are on their way, with the roots.
    pub transit: Runs<Ino>,
    /// Trees of which not all numbers are known yet, and of which no requests are carried out.
    pub walked: BTreeSet<Ino>,
    /// Directories with pins that are, or were, in memory.
    pub pinned: BTreeSet<Ino>,
    /// Trees that could not move, and up to when that is not tried again.
    pub stays: BTreeMap<Ino, Steady>,
    /// Trees that move when others have come to their end.
    pub behind: BTreeSet<LotId>,
    /// Owners of inodes, as others said them. They may be wrong.
    pub told: BTreeMap<Ino, Rank>,
    /// Roots that are reported without waiting for the next write.
    pub urgent: BTreeSet<Ino>,
    /// Capabilities that clients claim of what is not here any more.
    pub exports: Vec<(ClientId, Ino, u64, u32)>,
    /// The number of the next transaction.
    pub next_txn: u64,
    /// The current operation waits for no other transaction.
    pub impatient: bool,
    /// Where the current operation goes on.
    pub onward: Option<FilePath>,
    /// When others were last asked again.
    pub asked: Steady,
}

/// What is to go to another owner. A crash, or another wish, ends that.
#[derive(Clone, Debug)]
pub(crate) struct Moving {
    pub to: Rank,
    pub root: Ino,
    /// Directories of which the names were looked through, of all that have to be.
    pub looked: usize,
    /// They all were.
    pub found: bool,
    /// It is to be looked whether a client has what could not be carried over.
    pub look: bool,
    /// No requests of it are carried out, and clients give all back.
    pub stopped: bool,
    /// Inodes of which clients may have something yet.
    pub held: BTreeSet<Ino>,
    /// Of a tree.
    pub walk: Walk,
}

/// How far a tree has been walked through.
#[derive(Clone, Default, Debug)]
pub(crate) struct Walk {
    /// Halves that were ready before requests of the tree waited: they may change its names.
    pub before: BTreeSet<TxnId>,
    /// It has begun.
    pub begun: bool,
    /// Directories to look through; the last one is being looked through.
    pub todo: Vec<Ino>,
    /// Up to this name.
    pub after: Option<Name>,
    /// Numbers that were found, by this walk or the one before it.
    pub runs: Runs<()>,
    /// All of them were.
    pub done: bool,
}

/// What a part's root is told of what is above it.
#[derive(Clone, Debug)]
pub(crate) struct RootAbove {
    pub above: Rank,
    pub layout: Option<Layout>,
    pub random: Chance,
}

impl RootAbove {
    pub fn of(root: &Root) -> Self {
        RootAbove { above: root.above, layout: root.layout.clone(), random: root.random }
    }
}

/// Numbers of a space that may be given out before the log has what gets them.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Ahead {
    /// All below this one, when this batch is durable.
    pub bound: u64,
    pub batch: Batch,
    /// All below this one, already.
    pub before: u64,
}

/// What the current operation shows, and to which client; and what came of early answers of the
/// server before this one.
#[derive(Default, Debug)]
pub(crate) struct Early {
    /// The client of which the current operation is a request, else 0.
    pub actor: ClientId,
    /// The client that would say again what the current operation counts, else 0.
    pub counter: ClientId,
    /// What the current operation saw that is not its client's own is durable with this batch.
    pub others: Batch,
    /// The batch of the last change of what holds for many inodes: where a directory is, its
    /// layout, quota and pins, and which owner has them. All is shown by it.
    pub rules: Batch,
    /// The inode that the current request made.
    pub made: Option<Ino>,
    /// The current request was answered by the server before this one.
    pub resent: bool,
    pub ahead: BTreeMap<Space, Ahead>,
    /// From these numbers on the server before this one had given out none that its log tells of.
    pub fresh: BTreeMap<Space, u64>,
    /// Requests that were answered, and are to be carried out again.
    pub replays: Replays,
    /// Those that are carried out.
    pub running: BTreeMap<ClientId, OpId>,
    /// Those of them that wait for clients.
    pub waiting: BTreeSet<OpId>,
}
