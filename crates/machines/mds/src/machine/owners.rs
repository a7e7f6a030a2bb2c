//! Which inodes this owner has, what it knows of others', and what it tells them of roots.
//!
//! The number of an inode says its owner. Of another owner's directory that has its name here there
//! is a shadow: the inode as it was reported last, which goes to rest as any other one.

use super::operation::{Exec, Kind, OpId, Stop, fail};
use super::state::{Leaving, RootAbove};
use super::stats::Change;
use super::{Executed, Mds};
use crate::action::Action;
use crate::conf::Bug;
use crate::event::Token;
use crate::peer::{LotId, Message, OwnerTables, Root};
use crate::request::{CapGrant, FilePath, InodeStat, Request};
use crate::types::{Batch, ClientId, Ino, Inode, Name, Rank};
use std::collections::{BTreeMap, BTreeSet};
use types::Errno;

impl Mds {
    /// Whether an inode is this owner's.
    pub fn is_mine(&self, ino: Ino) -> bool {
        self.conf.owners <= 1 || self.keeper(ino) == self.conf.rank
    }

    /// There are so many owners from now on, never fewer, and these of them have left. It takes
    /// effect with the next event.
    pub fn set_owners(&mut self, owners: u16, absent: BTreeSet<Rank>) {
        let alone = self.conf.owners <= 1;
        self.peers.choose_all |= self.conf.owners < owners || self.conf.absent != absent;
        self.conf.owners = self.conf.owners.max(owners);
        if alone && self.conf.owners > 1 {
            self.begin_to_share();
        }
        let mut gone = &absent - &self.conf.absent;
        gone.remove(&self.conf.rank);
        self.conf.absent = absent;
        if !gone.is_empty() {
            // They are asked no more.
            self.peers.rest.round = None;
        }
        for owner in gone {
            self.forget_owner(owner);
        }
    }

    /// Numbers of transactions come again until something of this server is durable.
    fn begin_to_share(&mut self) {
        self.peers.since = self.log.open();
        self.log_tables();
    }

    /// The current operation goes on at the owner of this inode.
    pub(crate) fn away<T>(&mut self, path: FilePath) -> Exec<T> {
        self.peers.onward = Some(path);
        Err(Stop::Away)
    }

    /// It goes on there, and behind that with this name.
    pub(crate) fn away_below<T>(&mut self, name: &Name) -> Exec<T> {
        if let Some(path) = &mut self.peers.onward {
            let mut all = path.path.to_vec();
            if !all.is_empty() && all.last() != Some(&b'/') {
                all.push(b'/');
            }
            all.extend_from_slice(name);
            path.path = all.into();
        }
        Err(Stop::Away)
    }

    /// The root of the part that a directory is in. All above it is in memory.
    pub(crate) fn part_of(&self, dir: Ino) -> Ino {
        let mut at = dir;
        while let Some((above, _)) = self.nodes.get(&at).and_then(|n| n.parent.as_ref()) {
            at = *above;
        }
        at
    }

    /// What a listing says of another owner's inode: clients ask its owner for more.
    pub(crate) fn shadow_record(&self, ino: Ino, d_type: u8) -> InodeStat {
        let blank = || Inode { ino, mode: u32::from(d_type) << 12, nlink: 1, ..Inode::default() };
        let inode = self.nodes.get(&ino).map_or_else(blank, |n| n.inode.clone());
        InodeStat {
            inode: Box::new(inode),
            layout: None,
            max_size: 0,
            cap: CapGrant::default(),
            quota: None,
        }
    }

    /// Has a client ask another owner.
    pub(crate) fn forward(&mut self, client: ClientId, request: &Request) {
        let Some(path) = self.peers.onward.take() else {
            return self.refuse(client, request, Errno::EIO.0, false);
        };
        let named = request.is_named_by(&path);
        let (to, batch) = (self.keeper(path.ino), self.seen);
        if self.conf.history && named {
            let onward = Some(path.ino);
            let tid = request.tid;
            let (wrote, made, result) = (false, None, 0);
            self.history.push(Executed { client, tid, batch, wrote, made, result, onward });
        }
        let request = request.onward(path);
        self.tell(client, batch, Action::Forward(client, to, Box::new(request)));
    }

    /// Another owner's word. One that cannot be taken in is as good as lost: it is said again.
    pub(crate) fn peer_message(&mut self, from: Rank, message: Message) {
        if !self.is_active() || from == self.conf.rank || self.no_more_takes(from, &message) {
            return;
        }
        match message {
            Message::HandOver(what) => self.take_hand_over(from, *what),
            Message::TakenOver => self.handed_over(from),
            Message::Look { map, round } => self.take_look(from, map, round),
            Message::Still { round, last } => self.take_still(from, round, last),
            Message::Give(parcel) => {
                self.start(ClientId(0), Kind::Take(from, parcel));
            }
            Message::Taken(id, turn) => self.has_taken(from, id, turn),
            Message::Recall(id, turn) => self.take_recall(from, id, turn),
            Message::Stays(id, turn) => self.has_stayed(from, id, turn),
            Message::Prepare(prepare) => self.take_prepare(from, prepare),
            Message::Prepared(txn, found) => self.halves_ready(from, txn, Ok(found)),
            Message::Refused(txn, why) => self.halves_ready(from, txn, Err(why)),
            Message::Decided(txn, commit) => self.take_decision(txn, commit),
            Message::Done(txn) => self.take_done(from, txn),
            Message::Ask(txn) => self.take_question(from, txn),
            Message::Report(inode) => {
                self.start(ClientId(0), Kind::Report(from, inode));
            }
            Message::Reported(ino, version) => {
                let known = self.peers.reports.get(&ino);
                if let Some((token, _, inode)) = known
                    && inode.version <= version
                {
                    let token = *token;
                    self.peers.reports.remove(&ino);
                    self.done(token);
                }
            }
        }
    }

    /// Says something to another owner once a batch is durable.
    pub(crate) fn say(&mut self, rank: Rank, batch: Batch, message: Message) {
        let rank = self.in_place_of(rank);
        if rank == self.conf.rank {
            return;
        }
        self.hold(batch, Action::Peer(rank, Box::new(message)));
    }

    /// Reports the root of a part.
    pub(crate) fn report(&mut self, token: Token, inode: Box<Inode>) {
        let Some(root) = self.peers.roots.get(&inode.ino) else { return };
        let above = root.above;
        self.say(above, self.log.newest(), Message::Report(inode.clone()));
        if self.conf.bug == Bug::ReportLost {
            return self.done(token);
        }
        self.peers.reports.insert(inode.ino, (token, above, inode));
    }

    /// Takes the root of a part over into its shadow.
    pub(crate) fn reported(&mut self, from: Rank, inode: Inode) -> Exec<()> {
        let (ino, version) = (inode.ino, inode.version);
        if self.keeper(ino) != from || self.is_mine(ino) {
            return Ok(());
        }
        if !self.nodes.contains_key(&ino) {
            self.load(ino)?;
        }
        self.chain(ino)?;
        let Some(node) = self.nodes.get_mut(&ino) else { return fail(Errno::ESTALE) };
        if version > node.inode.version {
            let before = node.inode.rstat;
            let backtrace_version = node.inode.backtrace_version;
            let change = Change::default().with(inode.rstat, 1).with(before, -1);
            let stamp = inode.rstat.rctime;
            node.inode = Inode { backtrace_version, ..inode };
            self.counting.forget(ino);
            let dir = node.parent.as_ref().map(|(d, _)| *d);
            self.touch(ino);
            if let Some(dir) = dir {
                self.account(dir, change, stamp);
            }
            self.choose_root(ino);
        }
        self.report_taken(from, ino, version);
        Ok(())
    }

    /// Says that a report is taken over, or that there is no such name any more.
    pub(crate) fn report_taken(&mut self, from: Rank, ino: Ino, version: u64) {
        self.say(from, self.log.newest(), Message::Reported(ino, version));
    }

    /// What must be kept of what is shared with others.
    pub(crate) fn owner_tables(&self) -> OwnerTables {
        let root = |ino: &Ino| Some((*ino, self.root_of_part(*ino)?));
        let (mut lots, mut trees) = (BTreeMap::new(), BTreeMap::new());
        for (id, lot) in &self.peers.lots {
            match id {
                LotId::Space(space) => drop(lots.insert(*space, lot.clone())),
                LotId::Tree(root) => drop(trees.insert(*root, lot.clone())),
            }
        }
        let run = |(first, count, rank)| (first, (count, rank));
        OwnerTables {
            roots: self.peers.roots.keys().filter_map(root).collect(),
            prepared: self.peers.prepared.iter().map(|(t, (_, p))| (*t, p.clone())).collect(),
            decided: self.peers.decided.iter().map(|(t, (_, r))| (*t, r.clone())).collect(),
            kept: self.peers.kept.clone(),
            left: self.has_left(),
            records: self.peers.records.clone(),
            lots,
            trees,
            runs: self.peers.runs.iter().map(run).collect(),
        }
    }

    /// The root of a part, as it is kept.
    pub(crate) fn root_of_part(&self, ino: Ino) -> Option<Root> {
        let root = self.peers.roots.get(&ino)?;
        let inode = self.nodes.get(&ino)?.inode.clone();
        let (above, layout, random) = (root.above, root.layout.clone(), root.random);
        Some(Root { inode, above, layout, random })
    }

    /// Goes on with what the server before this one shared with others.
    pub(crate) fn adopt_owners(&mut self, tables: OwnerTables, roots: &BTreeMap<Ino, Batch>) {
        // Numbers of transactions of the server before this one do not come again.
        self.peers.next_txn = (self.log.sealed.0 + 1) << 24;
        if self.conf.owners > 1 {
            self.begin_to_share();
        }
        self.peers.records = tables.records;
        self.peers.leaving = tables.left.then_some(Leaving::Flush);
        for (ino, root) in tables.roots {
            self.peers.roots.insert(ino, RootAbove::of(&root));
            let batch = roots.get(&ino).copied().unwrap_or(Batch(0));
            self.insert_node(root.inode, None, batch);
            if batch != Batch(0) {
                self.dirty_base.insert(ino, batch);
            }
        }
        if self.conf.bug != Bug::ForgetPrepared {
            for (txn, prepared) in tables.prepared {
                self.lock(txn, &prepared);
                self.peers.prepared.insert(txn, (Batch(0), prepared));
            }
        }
        if self.conf.bug != Bug::ForgetDecided {
            for (txn, ranks) in tables.decided {
                self.peers.decided.insert(txn, (Batch(0), ranks));
            }
        }
    }

    /// Whether a transaction is under way, or a part of one.
    pub fn has_transactions(&self) -> bool {
        let p = &self.peers;
        !(p.prepared.is_empty() && p.decided.is_empty() && p.coordinating.is_empty())
    }

    /// Whether nothing of other owners is under way here.
    pub fn is_quiet(&self) -> bool {
        !self.has_transactions() && self.peers.reports.is_empty() && !self.has_moves()
    }

    /// Says again what has no answer.
    pub(crate) fn ask_peers_again(&mut self) {
        let due: Vec<OpId> =
            self.peers.later.iter().filter(|(_, at)| **at <= self.now).map(|(op, _)| *op).collect();
        for op in due {
            self.peers.later.remove(&op);
            self.again.insert(op);
        }
        if self.now < self.peers.asked + self.conf.peer_retry {
            return;
        }
        self.peers.asked = self.now;
        let mut words: Vec<(Rank, Batch, Message)> = Vec::new();
        for op in self.peers.coordinating.values() {
            let txn = self.ops.get(op).and_then(|s| s.txn.as_ref());
            let since = self.peers.since;
            words.extend(txn.into_iter().flat_map(|t| t.unanswered(since)));
        }
        for (txn, (batch, ranks)) in &self.peers.decided {
            words.extend(ranks.iter().map(|r| (*r, *batch, Message::Decided(*txn, true))));
        }
        for txn in self.peers.prepared.keys() {
            words.push((txn.rank, Batch(0), Message::Ask(*txn)));
        }
        for (_, above, inode) in self.peers.reports.values() {
            words.push((*above, self.log.newest(), Message::Report(inode.clone())));
        }
        words.extend(self.hand_over_again());
        words.extend(self.look_again());
        words.extend(self.moves_again());
        for (rank, batch, message) in words {
            self.say(rank, batch, message);
        }
    }

    /// Has the shell call when something is to be said again.
    pub(crate) fn set_peer_alarm(&mut self) {
        let later = self.peers.later.values().min().copied();
        let tells = self.peers.leaving == Some(Leaving::Tell);
        let looks = self.peers.rest.round.is_some();
        let moves = self.has_moves();
        let waits =
            self.has_transactions() || !self.peers.reports.is_empty() || tells || looks || moves;
        let again = waits.then(|| self.peers.asked + self.conf.peer_retry);
        if let Some(at) = later.into_iter().chain(again).min() {
            self.wake(at.max(self.now + 1));
        }
    }
}
