//! What is changed goes to its place at rest: many entries of a directory at once, the oldest
//! changes first, each only after the log has it.

use super::Mds;
use super::operation::{Exec, Kind};
use super::state::{Flushing, What, Write};
use crate::action::{Action, DirHead};
use crate::conf::Bug;
use crate::event::Token;
use crate::types::{Batch, ClientId, DirFrag, Ino, Name};

impl Mds {
    /// Begins a flush, or has one that goes on include all up to now.
    pub(crate) fn begin_flush(&mut self) {
        self.flush = Some(Flushing::Entries(self.log.newest()));
    }

    /// Whether changes of this batch are to be written now.
    fn is_due(&self, since: Batch) -> bool {
        let span = self.log.sealed.0.saturating_sub(since.0);
        let flush = match self.flush {
            Some(Flushing::Entries(upto) | Flushing::Tables(upto)) => since <= upto,
            None => false,
        };
        flush
            || span > self.conf.log_batches_max / 2
            || self.dirty_entries > self.conf.dirty_entries_max
            || self.is_heavy()
    }

    /// Whether an inode's backtrace is on its way.
    pub(crate) fn is_writing_backtrace(&self, ino: Ino) -> bool {
        self.is_being_written(&What::Backtrace(ino))
    }

    pub(crate) fn is_being_written(&self, what: &What) -> bool {
        self.writes.values().any(|w| w.what == *what)
    }

    /// Begins to write what is due. Says whether there was anything.
    pub(crate) fn write_back(&mut self) -> bool {
        let tail = self.log.sealed.0.saturating_sub(self.log.first.0);
        if self.flush.is_none()
            && self.dirty_entries <= self.conf.dirty_entries_max
            && tail <= self.conf.log_batches_max / 2
            && !self.is_heavy()
        {
            return false;
        }
        let mut begun = false;
        while self.writes.len() + self.write_ops.len() < self.conf.writes_max {
            if !self.write_next() {
                break;
            }
            begun = true;
        }
        begun | self.finish_flush()
    }

    fn write_next(&mut self) -> bool {
        let busy = |mds: &Mds, what: &What| {
            mds.is_being_written(what)
                || mds.write_ops.iter().any(|id| {
                    mds.ops.get(id).is_some_and(|s| match (&s.kind, what) {
                        (Kind::WriteDir(a), What::Dir(b)) => a == b,
                        (Kind::Backtrace(a), What::Backtrace(b)) => a == b,
                        _ => false,
                    })
                })
        };
        // Few are busy: the first that is not is near the beginning.
        let free = |(_, what): &(Batch, What)| !busy(self, what);
        let base = self.dirty_base.in_order().map(|(b, i)| (b, What::Base(i))).find(free);
        let dir = self.dirty_dirs.in_order().map(|(b, d)| (b, What::Dir(d))).find(free);
        let trace = self.backtraces.in_order().map(|(b, i)| (b, What::Backtrace(i))).find(free);
        let oldest = [base, dir, trace].into_iter().flatten().min_by_key(|(b, _)| *b);
        let Some((_, what)) = oldest.filter(|(b, _)| self.is_due(*b)) else { return false };
        match what {
            What::Base(ino) => self.write_base(ino),
            What::Dir(dir) => {
                let id = self.start(ClientId(0), Kind::WriteDir(dir));
                self.write_ops.insert(id);
            }
            What::Backtrace(ino) => {
                let id = self.start(ClientId(0), Kind::Backtrace(ino));
                self.write_ops.insert(id);
            }
            What::Tables => {}
        }
        true
    }

    pub(crate) fn write_base(&mut self, ino: Ino) {
        let (Some(since), Some(node)) = (self.dirty_base.remove(&ino), self.nodes.get(&ino)) else {
            return;
        };
        let inode = Box::new(node.inode.clone());
        let token = self.token();
        let version = inode.version;
        self.writes.insert(token, Write { what: What::Base(ino), since, version });
        if self.peers.roots.contains_key(&ino) {
            return self.report(token, inode);
        }
        self.hold(self.log.newest(), Action::WriteBase { token, inode });
    }

    /// Writes changed entries of a directory.
    pub(crate) fn write_dir(&mut self, dir: DirFrag) -> Exec<()> {
        if !self.dirty_dirs.contains_key(&dir) {
            return Ok(());
        }
        self.inode(dir.ino)?;
        if self.conf.bug != Bug::ChangeSplit {
            self.joined(dir.ino)?;
        }
        let head = DirHead::of(self.get(dir.ino)?);
        let (max, durable) = (self.conf.write_entries_max, self.log.durable);
        let d = self.dir_mut(dir);
        if !d.writing.is_empty() {
            return Ok(());
        }
        // The oldest changes first: the log can be trimmed then.
        let mut names: Vec<(Batch, Name)> =
            d.dirty.iter().map(|(n, b)| (b.since(durable), n.clone())).collect();
        if names.len() > max {
            names.select_nth_unstable(max);
            names.truncate(max);
            names.sort_by(|a, b| a.1.cmp(&b.1));
        }
        for (batch, name) in &names {
            d.dirty.remove(name);
            d.writing.insert(name.clone(), *batch);
        }
        let since = d.writing.values().min().copied().unwrap_or(Batch(0));
        let left = d.dirty.values().map(|b| b.since(durable)).min();
        self.dirty_entries -= names.len();
        match left {
            Some(b) => self.dirty_dirs.insert(dir, b),
            None => self.dirty_dirs.remove(&dir),
        };
        let (mut set, mut remove) = (Vec::new(), Vec::new());
        for (_, name) in names {
            match self.dentry(dir, &name) {
                Some(dentry) => set.push((name, dentry)),
                None => remove.push(name),
            }
        }
        let token = self.token();
        self.writes.insert(token, Write { what: What::Dir(dir), since, version: 0 });
        self.hold(self.log.newest(), Action::WriteDir { token, dir, set, remove, head });
        Ok(())
    }

    /// Writes where an inode lives.
    pub(crate) fn write_backtrace(&mut self, ino: Ino) -> Exec<()> {
        let Some(since) = self.backtraces.get(&ino) else { return Ok(()) };
        self.chain(ino)?;
        let mut ancestors = Vec::new();
        let mut at = self.nodes.get(&ino);
        // Each step has the version of what the name stands for.
        while let Some(node) = at {
            let Some((dir, name)) = node.parent.clone() else { break };
            ancestors.push((dir, name, node.inode.version));
            at = self.nodes.get(&dir);
        }
        let inode = self.get(ino)?;
        let (is_dir, layout) = (inode.is_dir(), inode.layout.clone());
        let version = self.nodes.get(&ino).map_or(0, |n| n.placed);
        let token = self.token();
        self.writes.insert(token, Write { what: What::Backtrace(ino), since, version });
        let action = Action::WriteBacktrace { token, ino, is_dir, layout, ancestors };
        self.hold(self.log.newest(), action);
        Ok(())
    }

    /// Forgets changes of a directory that is no more.
    pub(crate) fn forget_dir(&mut self, dir: DirFrag) {
        if let Some(d) = self.dirs.get_mut(&dir) {
            self.dirty_entries -= d.dirty.len();
            d.dirty.clear();
        }
        self.dirty_dirs.remove(&dir);
    }

    /// Ends a flush when all is at rest.
    fn finish_flush(&mut self) -> bool {
        let Some(Flushing::Entries(upto)) = self.flush else { return false };
        let due = |b: Batch| b <= upto;
        if self.log.durable < upto
            || self.dirty_dirs.oldest().is_some_and(due)
            || self.dirty_base.oldest().is_some_and(due)
            || self.backtraces.oldest().is_some_and(due)
            || self.writes.values().any(|w| w.since <= upto)
            || !self.write_ops.is_empty()
            || self.has_transactions()
        {
            return false;
        }
        let token = self.token();
        let batch = self.log.newest();
        self.flush = Some(Flushing::Tables(upto));
        // The open batch may still get changes of tables that are not in these.
        self.writes.insert(token, Write { what: What::Tables, since: self.log.open(), version: 0 });
        let mut tables = Box::new(self.tables());
        for (space, next) in &mut tables.next {
            *next = self.unpromised(*space).max(*next);
        }
        self.hold(batch, Action::WriteTables { token, tables });
        true
    }

    /// An action is done.
    pub(crate) fn done(&mut self, token: Token) {
        if self.blocklisted(token) || self.has_joined(token) {
            return;
        }
        if let Some(ino) = self.size_work.remove(&token) {
            self.start(ClientId(0), Kind::Sized(ino, None));
            return;
        }
        if self.purge_done(token) {
            return;
        }
        let Some(write) = self.writes.remove(&token) else { return };
        // What is at rest can be dropped.
        self.barren = 0;
        match write.what {
            What::Dir(dir) => {
                if let Some(d) = self.dirs.get_mut(&dir) {
                    d.writing.clear();
                }
            }
            What::Backtrace(ino) => {
                // It may have moved since.
                let now = self.nodes.get(&ino).map(|n| n.placed);
                if now == Some(write.version) {
                    self.backtraces.remove(&ino);
                }
                self.again.extend(std::mem::take(&mut self.peers.behind_traces));
            }
            What::Base(_) => {}
            What::Tables => {
                self.log.tables = self.log.tables.max(write.since);
                self.trim();
                self.flush = None;
                self.out.push_back(Action::Flushed);
                return;
            }
        }
        self.trim();
    }
}
