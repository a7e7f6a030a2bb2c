//! What is in memory of inodes and directories.

use super::few::Few;
use super::lock_table::Locks;
use super::operation::OpId;
use super::weight::Weight;
use crate::types::{Batch, ClientId, DirFrag, Ino, Inode, Name, Steady};
use std::collections::BTreeMap;

/// The last change of something.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Last {
    pub batch: Batch,
    /// The client of which all changes are that are not durable; 0 if there is no such client.
    by: ClientId,
}

impl Last {
    /// A change that no single client made.
    pub fn at(batch: Batch) -> Last {
        Last { batch, by: ClientId(0) }
    }

    /// Something is changed, by a client or by others.
    pub fn note(&mut self, batch: Batch, by: ClientId, durable: Batch) {
        let alone = self.batch <= durable || self.by == by;
        *self = Last { batch, by: if alone { by } else { ClientId(0) } };
    }

    /// The batch that must be durable before a client may see it. Its own changes it may see.
    pub fn shown_to(self, client: ClientId) -> Batch {
        if client != ClientId(0) && self.by == client { Batch(0) } else { self.batch }
    }
}

/// An inode in memory.
#[derive(Debug)]
pub(crate) struct Node {
    pub inode: Inode,
    /// Where it lives; none for the two that no directory holds.
    pub parent: Option<(Ino, Name)>,
    pub changed: Last,
    /// The last change of what is counted below it.
    pub counted: Last,
    pub caps: Few<ClientId, Cap>,
    /// What operations that wait take back.
    pub needs: Vec<Need>,
    pub locks: Option<Box<Locks>>,
    /// Counts its places.
    pub placed: u64,
    pub weight: Weight,
}

impl Node {
    pub fn new(inode: Inode, parent: Option<(Ino, Name)>, changed: Batch) -> Self {
        Node {
            inode,
            parent,
            changed: Last::at(changed),
            counted: Last::default(),
            caps: Few::default(),
            needs: Vec::new(),
            locks: None,
            placed: 0,
            weight: Weight::default(),
        }
    }

    /// The batch that has it as it is.
    pub fn batch(&self) -> Batch {
        self.changed.batch.max(self.counted.batch)
    }
}

/// What a name stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Link {
    /// Nothing.
    Absent,
    /// An inode that lives here.
    Primary(Ino),
    /// An inode that lives elsewhere, and its type.
    Remote(Ino, u8),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub link: Link,
    /// It was used since the cache last thought of dropping it.
    pub used: bool,
    /// When it was used last, in events.
    pub used_at: u64,
}

/// Batches that have an entry that is to be written. Each has it as a whole: those before the
/// newest that is durable are not needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Dirty {
    pub before: Batch,
    pub newest: Batch,
}

impl Dirty {
    pub fn new(batch: Batch) -> Self {
        Dirty { before: batch, newest: batch }
    }

    /// It is in another batch too.
    pub fn again(&mut self, batch: Batch, durable: Batch) {
        self.before = self.since(durable);
        self.newest = batch;
    }

    /// The oldest batch that is needed.
    pub fn since(self, durable: Batch) -> Batch {
        if self.newest <= durable { self.newest } else { self.before }
    }
}

/// A directory's entries in memory.
#[derive(Default, Debug)]
pub(crate) struct Directory {
    pub entries: BTreeMap<Name, Entry>,
    /// What is not here is not in the directory.
    pub complete: bool,
    /// When an entry last came or went.
    pub changed: Last,
    /// Entries that are to be written.
    pub dirty: BTreeMap<Name, Dirty>,
    /// Entries that are being written.
    pub writing: BTreeMap<Name, Batch>,
    /// Reads that are under way.
    pub fetching: u32,
    /// Counts entries that were dropped.
    pub dropped: u64,
    /// Counts entries that came or went.
    pub changes: u64,
    /// It has more at rest than fits into a page: names are read one by one.
    pub large: bool,
    pub weight: Weight,
}

impl Directory {
    pub fn is_idle(&self) -> bool {
        self.dirty.is_empty() && self.writing.is_empty() && self.fetching == 0
    }
}

/// What is being read.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Fetch {
    Page(DirFrag, Option<Name>),
    Entry(DirFrag, Name),
    Base(Ino),
    Backtrace(Ino),
    /// All entries of a split directory are copied to one object.
    Join(Ino),
}

/// What a client has of an inode.
#[derive(Clone, Default, Debug)]
pub(crate) struct Cap {
    pub id: u64,
    /// What it has when it has seen all that it was told.
    pub pending: u32,
    /// What it had before it was asked for some of it, and the number of the message that asked.
    pub asked: Vec<(u32, u32)>,
    pub wanted: u32,
    /// The number of the last message about it.
    pub seq: u32,
    /// That of the last record that granted some of it.
    pub issue_seq: u32,
    /// Since when something that was asked back is missing.
    pub late_since: Option<Steady>,
    /// Bytes that the client answers for.
    pub charge: usize,
}

impl Cap {
    /// What the client may have at most.
    pub fn issued(&self) -> u32 {
        self.asked.iter().fold(self.pending, |all, (_, had)| all | had)
    }
}

/// What an operation takes back of an inode while it waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Need {
    pub op: OpId,
    pub client: ClientId,
    /// From all clients but its own.
    pub others: u32,
    /// From its own, unless that has `unless`.
    pub own: u32,
    pub unless: u32,
    /// The size must be known and, for a change of it, objects behind it be trimmed.
    pub size: bool,
}

impl Need {
    /// What a client may not have.
    pub fn takes(&self, client: ClientId, issued: u32) -> u32 {
        if client != self.client {
            self.others
        } else if issued & self.unless != 0 {
            0
        } else {
            self.own
        }
    }
}
