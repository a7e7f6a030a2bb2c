//! How many bytes the machine holds.
//!
//! Each thing that clients can make grow has a weight. The maps around keep the sums: a value is
//! weighed when it is put in, and weighed again at the end of an event in which it was reached for
//! a change. [`Mds::check_memory`] counts all of it from the beginning.
//!
//! Not counted is what lives for a moment only: what is handed to the shell, and the batch of the
//! log that is being made. Writes that are under way bound it.

use super::Mds;
use super::node::{Cap, Directory, Dirty, Entry, Need, Node};
use super::operation::{Kind, OpId, OpState};
use super::state::Session;
use super::weight::{
    Deferred, HEAP, Weigh, Weighed, Weight, boxed, heap, inode_heap, request_bytes, slot, tree,
    update_bytes,
};
use crate::request::{FileLock, LockKind};
use crate::types::{Batch, ClientId, DirFrag, Ino, Inode, Name};
use std::collections::BTreeMap;

/// What an entry of a directory takes, with its place in the queue of the cache, and without its
/// name.
const ENTRY: usize = slot::<Name, Entry>() + size_of::<(DirFrag, Name)>();

impl Weigh for Node {
    fn weigh(&self) -> usize {
        let locks = self.locks.as_ref().map_or(0, |l| {
            size_of_val(&**l)
                + HEAP
                + (l.posix.capacity() + l.flock.capacity()) * size_of::<FileLock>()
                + l.waiting.capacity() * size_of::<(OpId, LockKind, FileLock)>()
        });
        let asked = |c: &Cap| c.asked.capacity() * size_of::<(u32, u32)>();
        boxed::<Ino, Node>()
            + inode_heap(&self.inode)
            + self.caps.bytes()
            + self.caps.values().map(asked).sum::<usize>()
            + self.needs.capacity() * size_of::<Need>()
            + locks
    }

    fn is_pinned(&self) -> bool {
        !self.caps.is_empty() || self.locks.is_some()
    }

    fn weight(&self) -> &Weight {
        &self.weight
    }

    fn weight_mut(&mut self) -> &mut Weight {
        &mut self.weight
    }
}

impl Weigh for Directory {
    fn weigh(&self) -> usize {
        // The queue has the names.
        boxed::<DirFrag, Directory>()
            + tree::<Name, Entry>(self.entries.len())
            + tree::<Name, Dirty>(self.dirty.len())
            + tree::<Name, Batch>(self.writing.len())
    }

    fn weight(&self) -> &Weight {
        &self.weight
    }

    fn weight_mut(&mut self) -> &mut Weight {
        &mut self.weight
    }
}

impl Weigh for Session {
    fn weigh(&self) -> usize {
        let grants = match &self.rights {
            crate::Rights::All => 0,
            crate::Rights::Some(grants) => grants.iter().map(size_of_val).sum::<usize>(),
        };
        slot::<ClientId, Session>()
            + grants
            + tree::<Ino, ()>(self.inodes.len())
            + tree::<u64, ()>(self.answered.len())
            + tree::<u64, Ino>(self.record.completed.len())
            + tree::<u64, ()>(self.record.flushes.len())
            + self.output.bytes()
    }

    fn is_pinned(&self) -> bool {
        true
    }

    fn weight(&self) -> &Weight {
        &self.weight
    }

    fn weight_mut(&mut self) -> &mut Weight {
        &mut self.weight
    }
}

impl Weigh for OpState {
    fn weigh(&self) -> usize {
        let kind = match &self.kind {
            Kind::Request(request) => request_bytes(request),
            Kind::Caps(update) => update_bytes(update),
            Kind::Report(_, inode) => size_of::<Inode>() + inode_heap(inode),
            _ => 0,
        };
        let names = self.names_on.iter().map(|(_, name)| heap(name)).sum::<usize>();
        slot::<OpId, OpState>() + kind + names + self.names_on.capacity() * size_of::<(Ino, Name)>()
    }

    fn is_pinned(&self) -> bool {
        true
    }

    fn weight(&self) -> &Weight {
        &self.weight
    }

    fn weight_mut(&mut self) -> &mut Weight {
        &mut self.weight
    }
}

/// What is in memory, with what a client makes the server remember.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Memory {
    /// Bytes in all.
    pub bytes: u64,
    /// How many there may be.
    pub limit: u64,
    /// Inodes, entries, directories and capabilities.
    pub items: u64,
    /// Inodes.
    pub inodes: u64,
    /// Entries of directories.
    pub entries: u64,
    /// Directories of which something is in memory.
    pub dirs: u64,
    /// Capabilities of clients.
    pub caps: u64,
    /// Inodes of which clients have capabilities or locks.
    pub inodes_in_use: u64,
    /// Bytes of those.
    pub bytes_in_use: u64,
    /// Files without a name that are not removed yet.
    pub strays: u64,
    /// Bytes of sessions: what clients have, what they did, and what they are about to be told.
    pub session_bytes: u64,
    /// Bytes of requests that are not done.
    pub request_bytes: u64,
    /// Bytes of what clients said after a failover that they had.
    pub claim_bytes: u64,
}

impl Mds {
    /// What is in memory.
    pub fn memory(&self) -> Memory {
        let n = |count: usize| count as u64;
        let nodes = self.nodes.sum();
        let caps: usize = self.sessions.values().map(|s| s.inodes.len()).sum();
        Memory {
            bytes: n(self.bytes()),
            limit: n(self.conf.bounds.bytes),
            items: n(self.nodes.len() + self.queue.len() + self.dirs.len() + caps),
            inodes: n(self.nodes.len()),
            entries: n(self.queue.len()),
            dirs: n(self.dirs.len()),
            caps: n(caps),
            inodes_in_use: n(nodes.pinned_values),
            bytes_in_use: n(nodes.pinned),
            strays: n(self.purgeable.union(&self.purging).count()),
            session_bytes: n(self.sessions.sum().bytes + self.outside),
            request_bytes: n(self.ops.sum().bytes + self.waiting_bytes()),
            claim_bytes: n(self.claims.bytes()),
        }
    }

    /// Bytes of what waits until it can begin.
    fn waiting_bytes(&self) -> usize {
        let parked = self.peers.parked.values().map(Deferred::bytes);
        self.deferred.bytes() + parked.sum::<usize>()
    }

    /// Bytes in all.
    pub(crate) fn bytes(&self) -> usize {
        let places = (self.places.len() + self.misplaced.len()) * PLACE;
        self.nodes.sum().bytes
            + self.dirs.sum().bytes
            + self.queue.bytes()
            + self.sessions.sum().bytes
            + self.ops.sum().bytes
            + self.waiting_bytes()
            + self.early.replays.bytes()
            + self.claims.bytes()
            + self.leases.bytes()
            + self.outside
            + places
            + self.bytes_of_runs()
    }

    /// Bytes that only clients can free.
    pub(crate) fn bytes_kept(&self) -> usize {
        let nodes = self.nodes.sum();
        // An inode keeps its name.
        let names = (self.dirs.sum().bytes + self.queue.bytes()) / self.queue.len().max(1);
        nodes.pinned
            + nodes.pinned_values * names
            + self.sessions.sum().bytes
            + self.ops.sum().bytes
            + self.waiting_bytes()
            + self.claims.bytes()
            + self.leases.bytes()
            + self.outside
            + self.bytes_of_runs()
    }

    /// Sets how many bytes the shell holds for clients besides.
    pub fn set_outside(&mut self, bytes: usize) {
        self.outside = bytes;
    }

    /// Whether another client may have a session, of which the shell holds so many bytes: sessions
    /// that do nothing leave three quarters of the memory to the others.
    pub fn admits_session(&self, bytes: usize) -> bool {
        let sessions = self.sessions.sum().bytes + self.outside + bytes;
        sessions <= self.conf.bounds.bytes / 4
    }

    /// Whether what is being read and written has to come to its end before more begins.
    pub(crate) fn is_choked(&self) -> bool {
        let busy = !(self.writes.is_empty() && self.fetches.is_empty());
        busy && self.bytes() > self.conf.bounds.bytes
    }

    /// Whether changes are written to their places for the memory that they keep.
    pub(crate) fn is_heavy(&self) -> bool {
        self.dirty_entries + self.backtraces.len() >= DIRTY_LEAST
            && self.bytes() > self.conf.bounds.wanted()
    }

    /// Counts what has changed since the last time.
    pub(crate) fn weigh(&mut self) {
        let Mds { nodes, sessions, dirs, ops, .. } = self;
        nodes.settle(|node| charge(node, sessions));
        dirs.settle(|_| {});
        sessions.settle(|_| {});
        ops.settle(|_| {});
    }

    /// Counts all, and compares it with what is kept.
    pub fn check_memory(&self) -> Result<(), String> {
        self.nodes.check("inodes")?;
        self.dirs.check("directories")?;
        self.sessions.check("sessions")?;
        self.ops.check("operations")?;
        self.queue.check()?;
        self.claims.check()?;
        self.leases.check()?;
        self.deferred.check()?;
        self.peers.parked.values().try_for_each(Deferred::check)?;
        self.early.replays.check()?;
        self.sessions.values().try_for_each(|s| s.output.check())?;
        let mut held: BTreeMap<ClientId, usize> = BTreeMap::new();
        for node in self.nodes.values() {
            for (client, cap) in node.caps.iter() {
                *held.entry(*client).or_default() += cap.charge;
            }
        }
        for (client, session) in self.sessions.iter() {
            let counted = held.remove(client).unwrap_or(0);
            if session.held != counted {
                let kept = session.held;
                return Err(format!("{client:?} holds {kept} as kept, {counted} as counted"));
            }
        }
        Ok(())
    }

    /// Has an inode know its name by the bytes that its directory has.
    pub(crate) fn share_name(&mut self, ino: Ino) {
        let Some(node) = self.nodes.get_as_it_weighs(&ino) else { return };
        if let Some((dir, name)) = &mut node.parent
            && let Some(d) = self.dirs.get(&DirFrag::whole(*dir))
            && let Some((key, _)) = d.entries.get_key_value(name)
        {
            *name = key.clone();
        }
    }
}

/// Fewer changed entries are not worth to be written for memory.
const DIRTY_LEAST: usize = 64;

/// What a place of an inode that is looked for takes.
const PLACE: usize = 2 * (size_of::<(Ino, (Ino, Name))>() + 1) + HEAP + 64;

/// Has clients answer for an inode that they have: each for its part, about.
fn charge(node: &mut Node, sessions: &mut Weighed<BTreeMap<ClientId, Session>>) {
    let Some(log) = node.caps.len().checked_ilog2() else { return };
    // A part changes only as the number of clients doubles or halves: a directory that all clients
    // have is not charged anew with each of them.
    let part = (node.weight.bytes() + ENTRY) >> log;
    for (client, cap) in node.caps.iter_mut() {
        if cap.charge != part
            && let Some(session) = sessions.get_as_it_weighs(client)
        {
            session.held = session.held + part - cap.charge;
            cap.charge = part;
        }
    }
}
