//! An owner that leaves, and the first owner, which has all that it had from then on.
//!
//! ```text
//! the owner that leaves                 the first owner
//!   requests end, clients give all back
//!   logs that it serves no more
//!   writes all to its place at rest
//!   HandOver ──────────────────────────►  logs that it is the keeper
//!            ◄────────────────────────── TakenOver
//! ```
//!
//! Up to the first record in a log, a crash leaves the owner as it was. From there on it serves no
//! more, and tells the first owner until that has the second record.

use super::Mds;
use super::node::Link;
use super::operation::{Exec, Kind, OpId, fail};
use super::state::{Leaving, RootAbove, What};
use super::stats::Change;
use crate::action::Action;
use crate::caps;
use crate::conf::Bug;
use crate::event::{Event, SessionEvent};
use crate::peer::{HandOver, Message, TxnId};
use crate::types::{Batch, ClientId, DirFrag, Ino, Inode, Rank};
use types::Errno;

/// The owner that has what others leave.
const FIRST: Rank = Rank(0);

impl Mds {
    /// The owner that serves an inode.
    pub fn keeper(&self, ino: Ino) -> Rank {
        self.in_place_of(self.mover(ino).unwrap_or_else(|| ino.owner()))
    }

    /// The owner itself, or the one that has all of it.
    pub(crate) fn in_place_of(&self, owner: Rank) -> Rank {
        let me = self.conf.rank;
        if self.peers.kept.contains(&owner) {
            me
        } else if owner != me && me != FIRST && self.conf.absent.contains(&owner) {
            FIRST
        } else {
            owner
        }
    }

    /// Whether this owner serves no more.
    pub fn has_left(&self) -> bool {
        self.is_shut() && !self.peers.rest.on
    }

    /// Whether an event is of a client, and of none that ends.
    pub(crate) fn is_of_client(event: &Event) -> bool {
        match event {
            Event::Session(_, SessionEvent::Close { .. }) => false,
            Event::Session(..)
            | Event::Rights(..)
            | Event::Request(..)
            | Event::Caps(..)
            | Event::CapRelease(..) => true,
            _ => false,
        }
    }

    /// Whether another owner's word comes to one that gives nothing out any more, or to one that
    /// has all of the sender already.
    pub(crate) fn no_more_takes(&self, from: Rank, message: &Message) -> bool {
        let late = self.peers.kept.contains(&from) && !matches!(message, Message::HandOver(_));
        let leaves = self.peers.leaving >= Some(Leaving::Caps) && !self.peers.rest.on;
        late || leaves
            && matches!(message, Message::Prepare(_) | Message::Report(_) | Message::Give(_))
    }

    /// Begins to leave.
    pub(crate) fn leave(&mut self) {
        let rests = std::mem::take(&mut self.peers.rest).on;
        if self.conf.rank != FIRST && (self.peers.leaving.is_none() || rests) {
            self.peers.leaving = Some(Leaving::Locks);
        }
    }

    /// Goes on with leaving. Says whether there was something to do.
    pub(crate) fn leave_on(&mut self) -> bool {
        if !self.is_active() {
            return false;
        }
        if self.change_rest() {
            return true;
        }
        let step = self.peers.leaving;
        let next = match step {
            Some(Leaving::Locks) if !self.must_stay() => {
                self.read_claimed();
                Leaving::Requests
            }
            Some(Leaving::Requests) if self.conf.rests && self.put_aside() => return true,
            Some(Leaving::Requests) if !self.has_requests() => {
                let held = self.nodes.iter().filter(|(_, n)| !n.caps.is_empty());
                self.judge.extend(held.map(|(ino, _)| *ino));
                self.take_leases_back(|_, _| true);
                Leaving::Caps
            }
            Some(Leaving::Caps) if !self.holds_anything() && !self.has_leases_of(|_, _| true) => {
                if self.must_stay() {
                    // One of the last requests has left a lock, or a file without a name.
                    self.peers.leaving = Some(Leaving::Locks);
                    self.judge.extend(self.nodes.keys());
                    for event in self.deferred.take() {
                        self.take(event);
                    }
                    return true;
                }
                self.end_all_sessions();
                self.begin_flush();
                Leaving::Flush
            }
            // What is trimmed in this flush is durable when the tables of the next one are.
            Some(Leaving::Flush) if self.flush.is_none() => {
                self.begin_flush();
                if self.is_log_empty() { Leaving::Trim } else { Leaving::Flush }
            }
            Some(Leaving::Trim) if self.flush.is_none() && self.writes.is_empty() => {
                if self.is_log_empty() {
                    self.peers.asked = 0;
                    self.wake(self.now);
                    if self.peers.rest.on { Leaving::Still } else { Leaving::Tell }
                } else {
                    Leaving::Flush
                }
            }
            Some(Leaving::Still) => return self.still_on(),
            _ => return false,
        };
        self.peers.leaving = Some(next);
        true
    }

    pub(crate) fn is_log_empty(&self) -> bool {
        self.log.open.is_empty()
            && self.log.appending.is_empty()
            && self.log_batches() == 0
            && self.writes.values().all(|w| w.what == What::Tables)
            && self.write_ops.is_empty()
    }

    /// Whether a client has what could not be carried over: a lock, or a file without a name. All
    /// of that ends where all owners rest.
    fn must_stay(&self) -> bool {
        if self.conf.rests {
            return false;
        }
        self.nodes.values().any(|n| n.locks.is_some() || self.is_open_and_gone(n))
            || self.claims.iter().any(|(_, claim)| !claim.locks.is_empty())
    }

    pub(crate) fn is_open_and_gone(&self, node: &super::node::Node) -> bool {
        node.inode.nlink == 0 && node.caps.values().any(|c| c.wanted != 0)
    }

    fn has_requests(&self) -> bool {
        let is = |kind: &Kind| {
            matches!(kind, Kind::Request(_) | Kind::Prepare(_) | Kind::Apply(_) | Kind::Claimed(_))
                || matches!(kind, Kind::Take(..))
        };
        self.has_transactions() || self.ops.values().any(|s| is(&s.kind))
    }

    fn holds_anything(&self) -> bool {
        let known = |inos: &std::collections::BTreeSet<Ino>| {
            inos.iter().any(|ino| self.nodes.contains_key(ino))
        };
        let early = self.conf.bug == Bug::LeaveWithCaps;
        self.has_transactions()
            || self.has_moves()
            || self.ops.keys().any(|op| !self.write_ops.contains(op))
            || !self.purging.is_empty()
            || !self.size_work.is_empty()
            || !self.evicting.is_empty()
            || known(&self.recovering)
            || known(&self.truncating)
            || self
                .nodes
                .values()
                .any(|n| !early && n.caps.values().any(|c| c.issued() & !caps::PIN != 0))
    }

    /// Ends all sessions, in the batch that says that this owner serves no more.
    fn end_all_sessions(&mut self) {
        // No client can write any more. Where one goes on, its next owner lets it.
        let written = self.nodes.iter().filter(|(_, n)| !n.inode.ranges.is_empty());
        let written: Vec<Ino> = written.map(|(i, _)| *i).filter(|i| self.is_mine(*i)).collect();
        for ino in written {
            if let Some(node) = self.nodes.get_mut(&ino) {
                node.inode.ranges.clear();
            }
            self.touch(ino);
        }
        self.deferred.take();
        for client in self.sessions.keys().copied().collect::<Vec<_>>() {
            let record = self.sessions.get(&client).map(|s| s.record.clone()).unwrap_or_default();
            if !(record.completed.is_empty() && record.flushes.is_empty()) {
                self.peers.records.insert(client, record);
            }
            self.end_session(client);
        }
        self.log_tables();
    }

    /// What the first owner is told, until it says that it has it.
    pub(crate) fn hand_over_again(&self) -> Option<(Rank, Batch, Message)> {
        if self.peers.leaving != Some(Leaving::Tell) {
            return None;
        }
        let roots = self.owner_tables().roots;
        let records = self.peers.records.clone();
        let (lots, trees) = self.lots_held();
        let what = HandOver { roots, records, lots, trees };
        Some((FIRST, self.log.newest(), Message::HandOver(Box::new(what))))
    }

    /// The first owner has all that this one had.
    pub(crate) fn handed_over(&mut self, from: Rank) {
        if from == FIRST && self.peers.leaving == Some(Leaving::Tell) {
            self.peers.leaving = Some(Leaving::Gone);
            self.out.push_back(Action::Left);
        }
    }

    /// Another owner has left. All that it had is at rest.
    pub(crate) fn take_hand_over(&mut self, from: Rank, what: HandOver) {
        if self.conf.rank != FIRST || from.0 >= Ino::OWNERS {
            return;
        }
        if self.peers.kept.contains(&from) {
            let batch = self.log.newest();
            return self.hold(batch, Action::Peer(from, Box::new(Message::TakenOver)));
        }
        self.set_owners(self.conf.owners.max(from.0 + 1), self.conf.absent.clone());
        self.peers.kept.insert(from);
        self.rules_change();
        for (ino, root) in what.roots {
            // What has its name here is known already: it was reported.
            if ino.owner() == from && self.in_place_of(root.above) != FIRST {
                self.peers.roots.insert(ino, RootAbove::of(&root));
                self.insert_node(root.inode, None, Batch(0));
            }
        }
        let shadows = self.nodes.iter().filter(|(ino, _)| ino.owner() == from);
        for (ino, limited) in
            shadows.map(|(ino, n)| (*ino, n.inode.quota.is_set())).collect::<Vec<_>>()
        {
            if limited {
                self.with_quota.insert(ino);
            }
        }
        for (client, record) in what.records {
            match self.sessions.get_mut(&client) {
                Some(session) => {
                    session.record.take_over(record);
                    self.log_session(client);
                }
                None => {
                    self.peers.records.entry(client).or_default().take_over(record);
                }
            }
        }
        let trees = what.trees.into_values();
        self.take_lots_of(from, what.lots.into_values().chain(trees).collect());
        self.forget_owner(from);
        self.log_tables();
        let early = self.conf.bug == Bug::TakenEarly;
        let batch = if early { Batch(0) } else { self.log.open() };
        self.hold(batch, Action::Peer(from, Box::new(Message::TakenOver)));
        self.go_on_keeping(from);
    }

    /// An owner has left with no transaction under way: what is said to it, and asked of it, comes
    /// to an end.
    pub(crate) fn forget_owner(&mut self, gone: Rank) {
        let told: Vec<TxnId> = self.peers.decided.keys().copied().collect();
        for txn in told {
            if let Some((_, ranks)) = self.peers.decided.get_mut(&txn)
                && ranks.remove(&gone)
            {
                if ranks.is_empty() {
                    self.peers.decided.remove(&txn);
                }
                self.log_decided(txn);
            }
        }
        let asks = |op: &&OpId| {
            let txn = self.ops.get(op).and_then(|s| s.txn.as_ref());
            txn.is_some_and(|t| t.answers.contains_key(&gone))
        };
        let asking: Vec<OpId> = self.peers.coordinating.values().filter(asks).copied().collect();
        self.again.extend(asking);
        let of = |txn: &&TxnId| txn.rank == gone;
        let undecided = self.peers.prepared.keys().chain(self.peers.preparing.keys());
        for txn in undecided.filter(of).copied().collect::<Vec<_>>() {
            self.take_decision(txn, false);
        }
    }

    /// Goes on with what an owner left: strays, and roots of this owner in its directories.
    pub(crate) fn go_on_keeping(&mut self, owner: Rank) {
        self.look_through_strays(owner);
        let mine: Vec<Ino> =
            self.peers.roots.iter().filter(|(_, r)| r.above == owner).map(|(i, _)| *i).collect();
        for ino in mine {
            self.start(ClientId(0), Kind::Graft(ino));
        }
    }

    /// Whether an inode is a root of which this owner took the directory above over.
    pub(crate) fn awaits_graft(&self, ino: Ino) -> bool {
        let root = self.peers.roots.get(&ino).filter(|_| !self.peers.placeless.contains(&ino));
        root.is_some_and(|r| self.peers.kept.contains(&r.above))
    }

    /// Gives a root its place in a directory that was taken over. What it did not report is carried
    /// up in the same step.
    pub(crate) fn graft(&mut self, ino: Ino) -> Exec<()> {
        if !self.awaits_graft(ino) {
            return Ok(());
        }
        let Some((dir, name)) = self.places.get(&ino).cloned() else {
            return self.find_place(ino);
        };
        if !self.is_mine(dir) {
            return fail(Errno::ESTALE);
        }
        self.chain(dir)?;
        let found = self.peers.shadows.get(&ino).filter(|(d, n, _)| (*d, n) == (dir, &name));
        let Some((_, _, shadow)) = found.cloned() else {
            // As it is read, it is noted.
            self.entry(DirFrag::whole(dir), &name)?;
            self.places.remove(&ino);
            return fail(Errno::ESTALE);
        };
        self.place_root(ino, dir, name, &shadow);
        Ok(())
    }

    fn place_root(&mut self, ino: Ino, dir: Ino, name: crate::types::Name, shadow: &Inode) {
        self.peers.shadows.remove(&ino);
        self.places.remove(&ino);
        self.peers.roots.remove(&ino);
        self.log_root(ino);
        self.dirty_base.remove(&ino);
        let Some(node) = self.nodes.get_mut(&ino) else { return };
        node.parent = Some((dir, name.clone()));
        node.inode.backtrace_version = shadow.backtrace_version;
        let (now, before) = (node.inode.rstat, shadow.rstat);
        self.insert_entry(DirFrag::whole(dir), name, Link::Primary(ino));
        self.touch(ino);
        if self.conf.bug != Bug::GraftStats {
            let change = Change::default().with(now, 1).with(before, -1);
            self.account(dir, change, now.rctime);
        }
        if let Some((token, _, _)) = self.peers.reports.remove(&ino) {
            self.done(token);
        }
    }
}
