//! The redo log. A batch has the entries that changed since the batch before, as they are when it
//! is sealed: many changes of one entry are written once, and reading a log is setting entries.

use super::Mds;
use super::node::{Dirty, Link};
use super::operation::Phase;
use crate::action::{Action, Tables};
use crate::conf::Bug;
use crate::peer::{Lot, LotId, OwnerTables, Prepared, Root, TxnId};
use crate::types::{
    Batch, ClientId, Dentry, DirFrag, Ino, Inode, Name, Promise, Rank, SessionRecord, Space,
};
use denc::Encode;
use denc_derive::Denc;
use std::collections::BTreeSet;

/// A batch with so many entries is sealed, though nothing waits for it.
const ENTRIES_MAX: usize = 1_000;

/// One batch of the log. The form is our own; batches are read by the same or a later version.
#[derive(Denc, Clone, PartialEq, Eq, Default, Debug)]
#[denc(version = 6, compat = 1)]
pub(crate) struct Record {
    /// Its number.
    pub batch: Batch,
    /// Entries as they are from now on, none for those that are gone.
    pub entries: Vec<(DirFrag, Name, Option<Dentry>)>,
    /// Inodes that no directory holds.
    pub base: Vec<Inode>,
    /// Inodes of which all is gone.
    pub gone: Vec<Ino>,
    /// The next inode number of spaces in which some were given out.
    pub next: Vec<(Space, u64)>,
    /// Sessions that began or, without a record, ended.
    pub sessions: Vec<(ClientId, Option<SessionRecord>)>,
    /// Requests that changed something: client, number, file that was made, and the oldest number
    /// of which the client does not know the answer.
    pub completed: Vec<((ClientId, u64), Ino, u64)>,
    /// Flushes of capabilities: client, number, and the oldest number that it does not know of.
    pub flushes: Vec<(ClientId, u64, u64)>,
    /// All tables; they are taken before what else is here.
    pub tables: Option<Tables>,
    /// Promises to subvolumes that changed or, beside tables, all; none for those that are gone.
    #[denc(since = 2)]
    pub promises: Vec<(Space, Option<Promise>)>,
    /// Beside tables: what is shared with other owners. It is taken before what else is here.
    #[denc(since = 3)]
    pub owners: Option<OwnerTables>,
    /// Roots of parts that changed; none for those that are gone.
    #[denc(since = 3)]
    pub roots: Vec<(Ino, Option<Root>)>,
    /// Halves that are ready; none for those that are carried out or given up.
    #[denc(since = 3)]
    pub prepared: Vec<(TxnId, Option<Prepared>)>,
    /// Decisions; none for those that all participants have carried out.
    #[denc(since = 3)]
    pub decided: Vec<(TxnId, Option<BTreeSet<Rank>>)>,
    /// Subvolumes that moved; none for those that are as if they had not.
    #[denc(since = 4)]
    pub lots: Vec<(Space, Option<Lot>)>,
    /// Trees that moved; none for those that this owner has to know no more.
    #[denc(since = 5)]
    pub trees: Vec<(Ino, Option<Lot>)>,
    /// Runs of numbers that got another owner than they say, or none; how many numbers each has.
    #[denc(since = 5)]
    pub runs: Vec<(Ino, u64, Option<Rank>)>,
    /// Numbers below these may be given out before the log has what gets them: of spaces in which
    /// some were and, beside tables, of all.
    #[denc(since = 6)]
    pub ahead: Vec<(Space, u64)>,
}

impl Mds {
    /// Notes that an entry, or the inode in it, changed.
    pub(crate) fn dirty(&mut self, dir: DirFrag, name: &Name) {
        let batch = self.log.open();
        let durable = self.log.durable;
        self.log.open.entries.insert((dir, name.clone()));
        let d = self.dir_mut(dir);
        match d.dirty.get_mut(name) {
            Some(dirty) => dirty.again(batch, durable),
            None => {
                // By the bytes that the directory has.
                let name = d.entries.get_key_value(name).map_or(name, |(key, _)| key);
                d.dirty.insert(name.clone(), Dirty::new(batch));
                self.dirty_entries += 1;
            }
        }
        self.dirty_dirs.note(dir, batch);
        self.seen = self.seen.max(batch);
    }

    /// Sets what a name stands for, which changes its directory.
    pub(crate) fn set_link(&mut self, dir: DirFrag, name: &Name, link: Link) {
        self.insert_entry(dir, name.clone(), link);
        let batch = self.log.open();
        let (actor, durable) = (self.early.actor, self.log.durable);
        let d = self.dir_mut(dir);
        d.changed.note(batch, actor, durable);
        d.changes += 1;
        self.dirty(dir, name);
    }

    /// Notes that an inode changed.
    pub(crate) fn touch(&mut self, ino: Ino) {
        let (batch, actor, durable) = (self.log.open(), self.early.actor, self.log.durable);
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.changed.note(batch, actor, durable);
        }
        self.log_inode(ino);
    }

    /// Notes that names in a directory changed.
    pub(crate) fn touch_names(&mut self, ino: Ino) {
        let (batch, actor, durable) = (self.log.open(), self.early.actor, self.log.durable);
        self.dir_mut(DirFrag::whole(ino)).changed.note(batch, actor, durable);
        self.names_change(ino, actor);
        self.log_inode(ino);
    }

    /// Notes that what is counted below a directory changed.
    pub(crate) fn touch_counts(&mut self, ino: Ino) {
        let (batch, counter, durable) = (self.log.open(), self.early.counter, self.log.durable);
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.counted.note(batch, counter, durable);
        }
        self.log_inode(ino);
    }

    /// Notes that an inode changed in what no client is shown.
    pub(crate) fn touch_unseen(&mut self, ino: Ino) {
        self.log_as_it_is(ino);
    }

    /// Has a changed inode in the next batch.
    fn log_inode(&mut self, ino: Ino) {
        let mine = self.is_mine(ino);
        // The version of a shadow is that of its owner.
        if let Some(node) = self.nodes.get_mut(&ino).filter(|_| mine) {
            node.inode.version += 1;
        }
        self.log_as_it_is(ino);
    }

    /// Has an inode in the next batch.
    fn log_as_it_is(&mut self, ino: Ino) {
        let batch = self.log.open();
        let Some(node) = self.nodes.get(&ino) else { return };
        match node.parent.clone() {
            Some((dir, name)) => self.dirty(DirFrag::whole(dir), &name),
            None => {
                if self.peers.roots.contains_key(&ino) {
                    self.log.open.roots.insert(ino);
                } else {
                    self.log.open.base.insert(ino);
                }
                self.dirty_base.note(ino, batch);
                self.seen = self.seen.max(batch);
            }
        }
    }

    /// Notes that an inode has a new place, which its backtrace is to say.
    pub(crate) fn placed(&mut self, ino: Ino) {
        self.touch(ino);
        let batch = self.log.open();
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.inode.backtrace_version = node.inode.version;
            node.placed += 1;
            self.backtraces.note(ino, batch);
        }
        self.share_name(ino);
    }

    /// Notes that all of an inode is gone.
    pub(crate) fn log_gone(&mut self, ino: Ino) {
        self.log.open.gone.push(ino);
    }

    /// Notes that a session began, ended or changed.
    pub(crate) fn log_session(&mut self, client: ClientId) {
        self.log.open.sessions.insert(client);
        self.seen = self.seen.max(self.log.open());
    }

    /// Notes that a client's request changed something.
    pub(crate) fn log_completed(&mut self, client: ClientId, tid: u64, made: Ino, oldest: u64) {
        self.log.open.completed.push(((client, tid), made, oldest));
        self.seen = self.seen.max(self.log.open());
    }

    /// Notes that a client's flush is done.
    pub(crate) fn log_flush(&mut self, client: ClientId, flush: u64, oldest: u64) {
        self.log.open.flushes.push((client, flush, oldest));
        self.seen = self.seen.max(self.log.open());
    }

    /// Notes that a promise changed.
    pub(crate) fn log_promise(&mut self, space: Space) {
        self.rules_change();
        self.log.open.promised(space);
        self.seen = self.seen.max(self.log.open());
    }

    /// Notes that a part has a new root, or has it no more.
    pub(crate) fn log_root(&mut self, ino: Ino) {
        self.rules_change();
        self.log.open.roots.insert(ino);
    }

    /// Notes that halves are ready, or carried out, or given up.
    pub(crate) fn log_prepared(&mut self, txn: TxnId) {
        self.log.open.prepared.insert(txn);
    }

    /// Notes a decision, or that all have carried it out.
    pub(crate) fn log_decided(&mut self, txn: TxnId) {
        self.log.open.decided.insert(txn);
    }

    /// Notes that a subvolume or a tree moves.
    pub(crate) fn log_lot(&mut self, id: LotId) {
        self.rules_change();
        self.log.open.lots.insert(id);
    }

    /// Has all tables in the next batch.
    pub(crate) fn log_tables(&mut self) {
        self.log.open.tables = true;
    }

    /// A new inode number of a space.
    pub(crate) fn new_ino(&mut self, space: Space) -> Ino {
        let space = if space == Space::COMMON { Space::common(self.conf.rank) } else { space };
        let next = self.next_ino.entry(space).or_insert_with(|| space.first_number());
        let ino = Ino(*next);
        *next = space.number_behind(*next);
        let next = *next;
        self.log.open.spaces.insert(space);
        self.note_number(space, ino.0, next);
        ino
    }

    /// What an entry is at rest, as it is now.
    pub(crate) fn dentry(&self, dir: DirFrag, name: &Name) -> Option<Dentry> {
        match self.dirs.get(&dir)?.entries.get(name)?.link {
            Link::Absent => None,
            Link::Remote(ino, d_type) => Some(Dentry::Remote { ino, d_type }),
            Link::Primary(ino) => {
                Some(Dentry::Primary(Box::new(self.nodes.get(&ino)?.inode.clone())))
            }
        }
    }

    /// Whether the open batch goes on filling for a while: nothing waits for it. A client that has
    /// its answers does not count, though it is told again.
    fn is_put_off(&mut self) -> bool {
        let quiet = self.phase == Phase::Active
            && self.conf.early_reply
            && !self.conf.rests
            && self.flush.is_none()
            && self.peers.leaving.is_none();
        let wanted = self.log.wanted > self.log.sealed;
        let full = self.log.open.entries.len() >= ENTRIES_MAX;
        if self.conf.log_pause == 0
            || !quiet
            || wanted
            || full
            || self.entrance.needs_room(self.now)
            || self.is_heavy()
        {
            return false;
        }
        let until = *self.log.put_off.get_or_insert(self.now) + self.conf.log_pause;
        if until <= self.now {
            return false;
        }
        self.wake(until);
        true
    }

    /// Appends what changed, if it may.
    pub(crate) fn seal(&mut self) {
        if self.log.open.is_empty()
            || self.log.appending.len() >= self.conf.appends_max
            || self.is_put_off()
        {
            return;
        }
        let batch = self.log.open();
        if self.log.put_off.take().is_some() {
            self.entrance.was_put_off(batch, self.now);
        }
        let mut open = std::mem::take(&mut self.log.open);
        if open.tables {
            open.promises.extend(self.promises.keys());
        }
        let peers = &self.peers;
        let roots = open.roots.iter().map(|ino| (*ino, self.root_of_part(*ino))).collect();
        let prepared = |txn: &TxnId| (*txn, peers.prepared.get(txn).map(|(_, p)| p.clone()));
        let prepared = open.prepared.iter().map(prepared).collect();
        let decided = |txn: &TxnId| (*txn, peers.decided.get(txn).map(|(_, ranks)| ranks.clone()));
        let decided = open.decided.iter().map(decided).collect();
        let (mut lots, mut trees) = (Vec::new(), Vec::new());
        for id in &open.lots {
            let lot = peers.lots.get(id).cloned();
            match id {
                LotId::Space(space) => lots.push((*space, lot)),
                LotId::Tree(root) => trees.push((*root, lot)),
            }
        }
        let ahead: Vec<(Space, u64)> = match open.tables {
            true => self.early.ahead.iter().map(|(space, a)| (*space, a.bound)).collect(),
            false => open.spaces.iter().map(|space| (*space, self.unpromised(*space))).collect(),
        };
        let record = Record {
            batch,
            entries: open
                .entries
                .into_iter()
                .filter(|(dir, _)| self.dirs.contains_key(dir))
                .map(|(dir, name)| {
                    let dentry = self.dentry(dir, &name);
                    (dir, name, dentry)
                })
                .collect(),
            base: open
                .base
                .iter()
                .filter_map(|ino| self.nodes.get(ino).map(|n| n.inode.clone()))
                .collect(),
            gone: open.gone,
            next: open.spaces.iter().filter_map(|s| Some((*s, *self.next_ino.get(s)?))).collect(),
            sessions: open
                .sessions
                .iter()
                .map(|c| (*c, self.sessions.get(c).map(|s| s.record.clone())))
                .collect(),
            completed: open.completed,
            flushes: open.flushes,
            tables: open.tables.then(|| self.tables()),
            promises: open
                .promises
                .iter()
                .map(|space| (*space, self.promises.get(space).copied()))
                .collect(),
            owners: open.tables.then(|| self.owner_tables()),
            roots,
            prepared,
            decided,
            lots,
            trees,
            runs: open.runs,
            ahead,
        };
        let mut out = denc::BytesMut::new();
        record.encode(&mut out, denc::Features::ALL);
        let crc = crc32c::crc32c(&out);
        crc.encode(&mut out, denc::Features::ALL);
        self.log.sealed = batch;
        if open.tables {
            self.log.told.push_back(batch);
        }
        self.log.appending.push_back(batch);
        self.out.push_back(Action::Append(batch, out.freeze()));
    }

    /// A batch, and all before it, are durable.
    pub(crate) fn appended(&mut self, batch: Batch) {
        while self.log.appending.front().is_some_and(|b| *b <= batch) {
            self.log.appending.pop_front();
        }
        self.log.durable = self.log.durable.max(batch.min(self.log.sealed));
        self.entrance.durable(self.log.durable, self.now);
        self.counting.settle(self.log.durable);
        while let Some(told) = self.log.told.pop_front_if(|b| *b <= self.log.durable) {
            self.log.tables = told;
        }
        let later = self.log.held.split_off(&Batch(self.log.durable.0 + 1));
        for (_, actions) in std::mem::replace(&mut self.log.held, later) {
            self.out.extend(actions);
        }
        self.trim();
    }

    /// Carries an action out once this batch is durable.
    pub(crate) fn hold(&mut self, batch: Batch, action: Action) {
        if batch <= self.log.durable || self.conf.bug == Bug::WriteAhead {
            self.out.push_back(action);
        } else {
            self.log.wants(batch);
            self.log.held.entry(batch).or_default().push(action);
        }
    }

    /// Forgets batches of which all is at rest.
    pub(crate) fn trim(&mut self) {
        let mut low = Batch(self.log.durable.0 + 1);
        let oldest = [self.dirty_base.oldest(), self.backtraces.oldest(), self.dirty_dirs.oldest()];
        for b in oldest.into_iter().flatten() {
            low = low.min(b);
        }
        if self.conf.bug != Bug::TrimEarly {
            for write in self.writes.values() {
                low = low.min(write.since);
            }
        }
        let span = self.log.sealed.0.saturating_sub(self.log.tables.0);
        if span > self.conf.log_batches_max / 2 && self.log.told.is_empty() {
            self.log_tables();
        }
        low = low.min(self.log.tables);
        let step = if self.flush.is_some() { 1 } else { (self.conf.log_batches_max / 8).max(1) };
        if low.0 >= self.log.first.0 + step {
            self.log.first = low;
            self.out.push_back(Action::TrimLog(low));
        }
    }
}
