//! A directory that moves with all that has its place below it, its *tree*.
//!
//! Inodes of a tree have numbers of several owners, among numbers of inodes that stay. All of them
//! keep their numbers. Which numbers have another owner than they say is known as runs: the first
//! owner knows all of them and the owner of each. Any other owner knows the runs that it has and
//! that say another owner, and those of its own numbers that it has no more: these it sends to the
//! first one. So a number is found by two steps at most: to the owner that it says, and to the
//! first one.
//!
//! Which inodes are in a tree is seen from their places alone. So requests of it wait first, and
//! then it is walked through, a page at a time. While they wait none of its names changes: one walk
//! finds all numbers.

use super::Mds;
use super::moves::FIRST;
use super::node::Link;
use super::operation::{Exec, Kind, OpState, Stop, fail};
use super::runs::Runs;
use super::state::Walk;
use crate::conf::Bug;
use crate::peer::{LotId, Message, TxnId};
use crate::types::{Batch, ClientId, DirFrag, Ino, Name, Rank, Space};
use std::collections::BTreeMap;
use types::Errno;

/// Runs of numbers that a tree has at most.
const TREE_RUNS_MAX: usize = 65_536;

/// Runs of numbers that an owner knows at most.
const RUNS_MAX: usize = 262_144;

/// Trees that one owner lets go at the same time.
const TREES_AT_ONCE: usize = 4;

/// A tree that could not move is not tried again for so many times of `peer_retry`.
const WAITS: u64 = 100;

/// More directories above each other are a ring.
const DEPTH_MAX: usize = 4_096;

/// Whether these can be the numbers of a tree.
pub(crate) fn are_numbers(root: Ino, runs: &BTreeMap<Ino, u64>) -> bool {
    let ordinary = |(first, count): (&Ino, &u64)| {
        let last = count.checked_sub(1).and_then(|n| first.0.checked_add(n)).map(Ino);
        // Numbers of one range are of one owner.
        last.is_some_and(|last| {
            first.0 >= 0x1000
                && first.0 >> 40 == last.0 >> 40
                && first.space() < Space::FIRST
                && last.space() < Space::FIRST
        })
    };
    let has_root = runs.range(..=root).next_back().is_some_and(|(f, n)| root.0 - f.0 < *n);
    runs.len() <= TREE_RUNS_MAX && has_root && runs.iter().all(ordinary)
}

impl Mds {
    /// The tree on its way that an inode is in. While a tree is walked through, the place in memory
    /// says it.
    pub(crate) fn tree_of(&self, ino: Ino) -> Option<Ino> {
        let peers = &self.peers;
        let walked = || peers.walked.iter().find(|root| self.is_within(ino, **root) == Some(true));
        peers.transit.get(ino).or_else(|| walked().copied())
    }

    /// Whether an inode is a directory or below it, if all above it is in memory.
    fn is_within(&self, ino: Ino, root: Ino) -> Option<bool> {
        let mut at = ino;
        for _ in 0..DEPTH_MAX {
            if at == root {
                return Some(true);
            }
            match &self.nodes.get(&at)?.parent {
                Some((dir, _)) if !dir.is_system() => at = *dir,
                _ => return Some(false),
            }
        }
        None
    }

    /// Whether an inode may be in a tree that is walked through, as not all above it is in memory.
    pub(crate) fn may_be_walked(&self, ino: Ino) -> bool {
        self.peers.walked.iter().any(|root| self.is_within(ino, *root).is_none())
    }

    /// Whether an inode is in a tree, as far as is known now or was before.
    pub(crate) fn seems_within(&self, ino: Ino, root: Ino) -> bool {
        let walk = || self.peers.moving.get(&LotId::Tree(root)).map(|m| &m.walk);
        let before = || walk().is_some_and(|w| w.runs.get(ino).is_some());
        self.is_within(ino, root).unwrap_or_else(before)
    }

    /// Has numbers go with an owner from now on.
    pub(crate) fn set_holder(&mut self, first: Ino, count: u64, holder: Rank) {
        let (me, says) = (self.conf.rank, first.owner());
        let known = match holder {
            holder if me == FIRST => (self.in_place_of(says) != holder).then_some(holder),
            holder if holder == me => (says != me).then_some(me),
            _ => (says == me).then_some(FIRST),
        };
        self.peers.runs.set(first, count, known);
        self.rules_change();
        if self.conf.bug != Bug::RunsNotLogged {
            self.log.open.runs.push((first, count, known));
        }
    }

    /// An owner has left: what it had is the first one's.
    pub(crate) fn take_runs_of(&mut self, gone: Rank) {
        let runs = self.peers.runs.iter().filter(|(_, _, holder)| *holder == gone);
        for (first, count, _) in runs.collect::<Vec<_>>() {
            self.set_holder(first, count, self.conf.rank);
        }
    }

    /// Bytes that runs of numbers take.
    pub(crate) fn bytes_of_runs(&self) -> usize {
        let walk = |w: &Walk| w.runs.bytes() + w.todo.capacity() * size_of::<Ino>();
        let walks: usize = self.peers.moving.values().map(|m| walk(&m.walk)).sum();
        // What goes has its runs besides.
        self.peers.runs.bytes() + 2 * self.peers.transit.bytes() + walks
    }

    // Which trees there are.

    /// Notes a directory that has a pin.
    pub(crate) fn note_pinned(&mut self, ino: Ino) {
        if self.conf.trees && self.conf.rank == FIRST {
            self.peers.pinned.insert(ino);
            self.peers.choose.insert(LotId::Tree(ino));
        }
    }

    /// A directory has another pin.
    pub(crate) fn pin_of_tree_changed(&mut self, ino: Ino) {
        self.peers.stays.remove(&ino);
        if !self.peers.odd.contains_key(&ino) {
            self.note_pinned(ino);
        }
    }

    /// Looks which owner a root that was reported is to have.
    pub(crate) fn choose_tree(&mut self, ino: Ino) {
        let pinned = self.nodes.get(&ino).is_some_and(|n| n.inode.pin != 0);
        if pinned || self.peers.lots.contains_key(&LotId::Tree(ino)) {
            self.note_pinned(ino);
        }
    }

    /// Whether a tree is in memory, or has moved.
    pub(crate) fn is_known_tree(&mut self, root: Ino) -> bool {
        if self.peers.lots.contains_key(&LotId::Tree(root)) || self.nodes.contains_key(&root) {
            return self.conf.trees;
        }
        self.peers.pinned.remove(&root);
        false
    }

    /// Whether a directory with a pin is to go to that owner itself, with what is made in it.
    pub(crate) fn goes_itself(&self, at: Ino, rank: Rank) -> bool {
        let me = self.conf.rank;
        if !self.conf.trees || rank == me || self.peers.stays.contains_key(&at) {
            return false;
        }
        if me != FIRST {
            // The first owner takes it back.
            return self.peers.roots.get(&at).is_some_and(|r| self.in_place_of(r.above) == FIRST);
        }
        self.is_mine(at) && self.wished(LotId::Tree(at), at) == Some(rank)
    }

    /// Whether something could not move, and is not tried again yet.
    pub(crate) fn has_to_wait(&self, id: LotId) -> bool {
        match id {
            LotId::Tree(root) => self.peers.stays.get(&root).is_some_and(|until| *until > self.now),
            LotId::Space(_) => false,
        }
    }

    /// Whether a tree may begin to move now.
    pub(crate) fn tree_may_begin(&mut self, root: Ino) -> bool {
        if self.has_to_wait(LotId::Tree(root)) || !self.is_mine(root) {
            return false;
        }
        let trees = self.peers.moving.iter().filter(|(id, _)| matches!(id, LotId::Tree(_)));
        let roots: Vec<Ino> = trees.map(|(_, m)| m.root).collect();
        // Trees in each other go one after the other.
        let meets = |other: &Ino| {
            self.is_within(*other, root) != Some(false)
                || self.is_within(root, *other) != Some(false)
        };
        if roots.len() >= TREES_AT_ONCE || roots.iter().any(meets) || !self.serves(root) {
            self.peers.behind.insert(LotId::Tree(root));
            return false;
        }
        true
    }

    /// A move has come to its end, or has arrived: others may begin.
    pub(crate) fn one_is_over(&mut self) {
        let behind = std::mem::take(&mut self.peers.behind);
        self.peers.choose.extend(behind);
    }

    /// What was wanted back stays with the other owner.
    pub(crate) fn has_stayed(&mut self, from: Rank, id: LotId, turn: u64) {
        let LotId::Tree(root) = id else { return };
        let known = self.peers.lots.get(&id).map_or(0, |l| l.turn);
        if self.keeper(root) == from && known == turn && self.peers.recalls.remove(&id) {
            self.stays(root);
        }
    }

    fn stays(&mut self, root: Ino) {
        self.peers.stays.insert(root, self.now + WAITS * self.conf.peer_retry);
    }

    // The walk.

    /// Has all clients that may have something of a tree give it back, before it is walked through.
    pub(crate) fn begin_walk(&mut self, root: Ino) {
        let before = self.peers.prepared.keys().copied().collect();
        if let Some(moving) = self.peers.moving.get_mut(&LotId::Tree(root)) {
            moving.walk = Walk { before, ..Walk::default() };
        }
        if self.conf.bug != Bug::WalkUnstopped {
            self.peers.walked.insert(root);
        }
        let held = self.nodes.iter().filter(|(_, n)| !n.caps.is_empty()).map(|(ino, _)| *ino);
        let held: Vec<Ino> = held.collect();
        for ino in &held {
            if self.is_within(*ino, root).is_none() {
                self.start(ClientId(0), Kind::Claimed(*ino));
            }
        }
        self.judge.extend(held);
    }

    /// Begins to walk when nothing changes names of the tree any more. Says whether it did.
    pub(crate) fn walk_on(&mut self, root: Ino) -> bool {
        let prepared = &self.peers.prepared;
        let Some(moving) = self.peers.moving.get_mut(&LotId::Tree(root)) else { return false };
        let walk = &mut moving.walk;
        walk.before.retain(|txn: &TxnId| prepared.contains_key(txn));
        if walk.begun || !walk.before.is_empty() {
            return false;
        }
        walk.begun = true;
        walk.todo = vec![root];
        walk.runs = Runs::default();
        walk.runs.set(root, 1, Some(()));
        self.start(ClientId(0), Kind::Walk(root));
        true
    }

    /// Finds all numbers of a tree, page by page.
    pub(crate) fn walk(&mut self, root: Ino, state: &mut OpState) -> Exec<()> {
        let id = LotId::Tree(root);
        while let Some(moving) = self.peers.moving.get(&id)
            && moving.walk.begun
            && let Some(dir) = moving.walk.todo.last().copied()
        {
            let (frag, after) = (DirFrag::whole(dir), moving.walk.after.clone());
            let have = self.page(frag, after.as_ref(), &state.have.clone())?;
            state.have = None;
            let found = self.names_of_page(frag, after.as_ref(), have.upto.as_ref());
            let mut dirs = Vec::new();
            for ino in &found {
                let node = self.nodes.get(ino);
                // Another owner's part would have its name elsewhere, and a subvolume is no tree.
                if !self.is_mine(*ino) || node.is_none_or(|n| n.inode.space != Space(0)) {
                    return fail(Errno::EXDEV);
                }
                if self.peers.transit.get(*ino).is_some() {
                    return fail(Errno::EAGAIN);
                }
                if node.is_some_and(|n| n.inode.is_dir()) {
                    dirs.push(*ino);
                }
            }
            let Some(moving) = self.peers.moving.get_mut(&id) else { return Ok(()) };
            let walk = &mut moving.walk;
            for ino in found {
                walk.runs.set(ino, 1, Some(()));
            }
            walk.after = have.upto;
            if walk.after.is_none() {
                walk.todo.pop();
            }
            // Behind the directory that is looked through.
            let at = walk.todo.len() - usize::from(walk.after.is_some());
            walk.todo.splice(at..at, dirs);
            let runs = walk.runs.len();
            if runs > TREE_RUNS_MAX || runs + self.peers.runs.len() > RUNS_MAX {
                return fail(Errno::EFBIG);
            }
        }
        self.has_walked(root);
        Ok(())
    }

    /// Inodes that live in a page of a directory.
    fn names_of_page(&self, dir: DirFrag, after: Option<&Name>, upto: Option<&Name>) -> Vec<Ino> {
        use std::ops::Bound::{Excluded, Included, Unbounded};
        // A page that was read may end before the last name of the one before, after removals.
        if matches!((after, upto), (Some(a), Some(u)) if a >= u) {
            return Vec::new();
        }
        let range = (after.map_or(Unbounded, Excluded), upto.map_or(Unbounded, Included));
        let Some(d) = self.dirs.get(&dir) else { return Vec::new() };
        let primary = d.entries.range::<Name, _>(range).filter_map(|(_, entry)| match entry.link {
            Link::Primary(ino) => Some(ino),
            _ => None,
        });
        primary.collect()
    }

    /// All numbers of a tree are known.
    fn has_walked(&mut self, root: Ino) {
        let id = LotId::Tree(root);
        let Some(moving) = self.peers.moving.get_mut(&id).filter(|m| m.walk.begun) else { return };
        if std::mem::replace(&mut moving.walk.done, true) {
            return;
        }
        let runs: Vec<_> = moving.walk.runs.iter().collect();
        for (first, count, ()) in runs {
            self.peers.transit.set(first, count, Some(root));
        }
        self.peers.walked.remove(&root);
        // Clients gave back what may have been of it.
        let held = self.nodes.iter().filter(|(_, n)| !n.caps.is_empty()).map(|(ino, _)| *ino);
        self.judge.extend(held);
        self.take_all_back(id);
    }

    /// A tree cannot be walked through: it stays.
    pub(crate) fn cannot_walk(&mut self, root: Ino, why: Stop) {
        let id = LotId::Tree(root);
        // Others that wait would find the same tree in theirs, that is on its way.
        if why == Stop::Fail(Errno::EAGAIN.0) {
            if self.put_off(id) {
                self.peers.behind.insert(id);
            }
            return;
        }
        if !self.peers.moving.contains_key(&id) {
            return;
        }
        self.cancel_move(id);
        match why {
            Stop::Fail(e) if e == Errno::EXDEV.0 || e == Errno::EFBIG.0 => {
                self.stays(root);
                if self.conf.rank != FIRST {
                    let turn = self.peers.lots.get(&id).map_or(0, |l| l.turn);
                    self.say(FIRST, Batch(0), Message::Stays(id, turn));
                }
            }
            _ => {}
        }
    }

    /// Forgets which numbers a tree has that does not move, or has arrived.
    pub(crate) fn forget_walk(&mut self, id: LotId) {
        let LotId::Tree(root) = id else { return };
        self.peers.walked.remove(&root);
        self.peers.transit.forget(root);
        if let Some(moving) = self.peers.moving.get_mut(&id) {
            // What was found says where locks may be that nothing in memory shows.
            let runs = std::mem::take(&mut moving.walk.runs);
            moving.walk = Walk { runs, ..Walk::default() };
        }
    }
}
