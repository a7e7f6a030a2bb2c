//! What is in memory of inodes and directories, how more of it comes, and what goes.
//!
//! A primary entry is here if, and only if, its inode is. Of a directory of which some entries are
//! here the inode may be missing after a failover; it is read when it is needed.

use super::Mds;
use super::node::{Directory, Entry, Fetch, Link, Node};
use super::operation::{Exec, Have, OpId, Stop, fail};
use super::weight;
use crate::action::Action;
use crate::conf::Bug;
use crate::event::Token;
use crate::request::FilePath;
use crate::types::{Batch, Dentry, DirFrag, Ino, Inode, Name, Split};
use types::Errno;

/// Directories with so many entries are read whole when one of them is wanted.
const READ_WHOLE: i64 = 256;

/// So many entries are looked at after an event, at most, to drop them.
const TRIES_MAX: usize = 2_048;

/// So many are looked at if none of them all could be dropped.
const FEW: usize = 64;

/// More directories above each other are a ring.
const DEPTH_MAX: usize = 4_096;

/// So many split directories are looked for or joined, each for the one before. More are a ring of
/// backtraces.
const NESTED_MAX: u32 = 256;

/// So many reads find a directory split of which the inode says the contrary: it is damaged. A few
/// may have begun before its entries were in one object.
const SPLIT_READS_MAX: u32 = 256;

impl Mds {
    pub(crate) fn dir_mut(&mut self, dir: DirFrag) -> &mut Directory {
        self.dirs.or_default(dir)
    }

    /// An inode that is in memory.
    pub(crate) fn get(&self, ino: Ino) -> Exec<&Inode> {
        // An inode that an operation has found stays until the operation's end.
        self.nodes.get(&ino).map(|n| &n.inode).ok_or(Stop::Fail(Errno::EIO.0))
    }

    /// Notes that an operation looked at a name in a directory.
    fn look_at_name(&mut self, dir: DirFrag, name: &Name) {
        let durable = self.log.durable;
        let Some(d) = self.dirs.get(&dir) else { return };
        // The inode that lives there tells since when it does.
        if let Some(Link::Primary(ino)) = d.entries.get(name).map(|e| e.link)
            && self.nodes.contains_key(&ino)
        {
            return self.look_through(ino);
        }
        // A name that is at rest, or not there, has not changed since. What is being written may
        // wait for the log.
        let dirty = d.dirty.get(name).is_some_and(|dirty| dirty.newest > durable);
        if dirty || d.writing.contains_key(name) {
            self.look_at_names(dir);
        }
    }

    /// Notes that an operation looked at names of a directory.
    fn look_at_names(&mut self, dir: DirFrag) {
        let changed = self.dir_mut(dir).changed;
        let others = self.shown_to(self.early.actor, changed);
        self.seen = self.seen.max(changed.batch);
        self.shows(others);
    }

    /// Has the current operation wait until this is read.
    fn fetch<T>(&mut self, what: Fetch) -> Exec<T> {
        self.entrance.reads = true;
        if let Some(token) = self.fetching.get(&what) {
            if let Some((_, ops)) = self.fetches.get_mut(token) {
                ops.push(self.current);
            }
            return Err(Stop::Wait);
        }
        let token = self.token();
        let action = match what.clone() {
            Fetch::Page(dir, after) => {
                self.dir_mut(dir).fetching += 1;
                Action::ReadPage { token, dir, after, max: self.conf.page_entries_max }
            }
            Fetch::Entry(dir, name) => {
                self.dir_mut(dir).fetching += 1;
                Action::ReadEntry { token, dir, name }
            }
            Fetch::Base(ino) => Action::ReadBase { token, ino },
            Fetch::Backtrace(ino) => Action::ReadBacktrace { token, ino },
            Fetch::Join(ino) => {
                let inode = self.get(ino)?.clone();
                Action::Join { token, inode: Box::new(inode) }
            }
        };
        self.out.push_back(action);
        self.fetching.insert(what.clone(), token);
        self.fetches.insert(token, (what, vec![self.current]));
        Err(Stop::Wait)
    }

    fn fetched(&mut self, token: Token) -> Option<(Fetch, Vec<OpId>)> {
        let (what, ops) = self.fetches.remove(&token)?;
        self.fetching.remove(&what);
        if let Fetch::Page(dir, _) | Fetch::Entry(dir, _) = &what
            && let Some(d) = self.dirs.get_mut(dir)
        {
            d.fetching -= 1;
        }
        Some((what, ops))
    }

    /// Has operations go on, or end with an errno.
    fn resume(&mut self, ops: Vec<OpId>, result: Result<(), i32>) {
        for op in ops {
            if let Err(errno) = result
                && self.ops.contains_key(&op)
            {
                self.failed.insert(op, errno);
            }
            self.again.insert(op);
        }
    }

    /// Makes sure that an inode is in memory.
    pub(crate) fn inode(&mut self, ino: Ino) -> Exec<()> {
        if let Some(node) = self.nodes.get(&ino) {
            if let Some((dir, name)) = &node.parent
                && let Some(d) = self.dirs.get_mut(&DirFrag::whole(*dir))
                && let Some(entry) = d.entries.get_mut(name)
            {
                entry.used = true;
                entry.used_at = self.events;
            }
            return Ok(());
        }
        if !self.is_mine(ino) {
            return self.away(FilePath { ino, path: Name::new() });
        }
        if self.peers.locked.get(&ino).is_some_and(|(_, kept)| kept & crate::caps::PIN != 0) {
            return self.being_made();
        }
        self.load(ino)
    }

    /// Reads an inode: one of this owner, or a shadow.
    pub(crate) fn load(&mut self, ino: Ino) -> Exec<()> {
        let rank = ino.owner();
        let mds_dir = Ino::mds_dir(rank);
        if ino == Ino::ROOT || ino == mds_dir {
            return self.fetch(Fetch::Base(ino));
        }
        if ino.is_stray_dir() {
            let name = Name::from(format!("stray{}", ino.0 - Ino::stray_of(rank, 0).0));
            self.entry(DirFrag::whole(mds_dir), &name)?;
            return if self.nodes.contains_key(&ino) { Ok(()) } else { fail(Errno::EIO) };
        }
        let Some((dir, name)) = self.places.get(&ino).cloned() else {
            return self.fetch(Fetch::Backtrace(ino));
        };
        if self.is_mine(dir) {
            self.entry(DirFrag::whole(dir), &name)?;
        }
        self.places.remove(&ino);
        if self.nodes.contains_key(&ino) {
            self.misplaced.remove(&ino);
            return Ok(());
        }
        // It may have moved since its backtrace was read, or the directory has another owner since.
        // One that says the same again is wrong.
        let place = (dir, name);
        if self.misplaced.get(&ino) == Some(&place) {
            self.misplaced.remove(&ino);
            return fail(Errno::ESTALE);
        }
        self.misplaced.insert(ino, place);
        self.fetch(Fetch::Backtrace(ino))
    }

    /// Reads where an inode lives.
    pub(crate) fn find_place(&mut self, ino: Ino) -> Exec<()> {
        self.fetch(Fetch::Backtrace(ino))
    }

    /// Makes sure that all directories above an inode are in memory, and can be changed.
    pub(crate) fn chain(&mut self, ino: Ino) -> Exec<()> {
        let mut at = ino;
        for _ in 0..DEPTH_MAX {
            self.inode(at)?;
            // Something may have been read of it before its inode was here.
            if self.conf.bug != Bug::ChangeSplit {
                self.joined(at)?;
            }
            match self.nodes.get(&at).and_then(|n| n.parent.clone()) {
                Some((dir, _)) => at = dir,
                None => return Ok(()),
            }
        }
        fail(Errno::EIO)
    }

    /// What a name stands for.
    pub(crate) fn entry(&mut self, dir: DirFrag, name: &Name) -> Exec<Link> {
        self.joined(dir.ino)?;
        let count =
            self.nodes.get(&dir.ino).map(|n| n.inode.dirstat.files + n.inode.dirstat.subdirs);
        self.look_at_name(dir, name);
        let events = self.events;
        let d = self.dir_mut(dir);
        if let Some(entry) = d.entries.get_mut(name) {
            entry.used = true;
            entry.used_at = events;
            return Ok(entry.link);
        }
        if d.complete {
            return Ok(Link::Absent);
        }
        match count {
            Some(n) if !d.large && n <= READ_WHOLE.min(i64::from(self.conf.page_entries_max)) => {
                self.fetch(Fetch::Page(dir, None))
            }
            _ => self.fetch(Fetch::Entry(dir, name.clone())),
        }
    }

    /// Makes sure that a page of a directory is in memory: the entries behind `after`.
    pub(crate) fn page(
        &mut self,
        dir: DirFrag,
        after: Option<&Name>,
        have: &Option<Have>,
    ) -> Exec<Have> {
        self.joined(dir.ino)?;
        self.look_at_names(dir);
        let d = self.dir_mut(dir);
        let (dropped, complete) = (d.dropped, d.complete);
        if complete {
            return Ok(Have { dir, after: after.cloned(), upto: None, dropped });
        }
        match have {
            Some(h) if h.dir == dir && h.after.as_ref() == after && h.dropped == dropped => {
                Ok(h.clone())
            }
            _ => self.fetch(Fetch::Page(dir, after.cloned())),
        }
    }

    /// Makes sure that all entries of a directory are in one object. Without its inode it cannot be
    /// known before something is read of it.
    pub(crate) fn joined(&mut self, dir: Ino) -> Exec<()> {
        if !self.nodes.contains_key(&dir) {
            if !self.splits.contains_key(&dir) {
                return Ok(());
            }
            self.nest(|mds| mds.inode(dir))?;
        }
        if self.get(dir)?.split == Split::Yes {
            // The row that says that it is joined is in the directory above.
            if let Some((above, _)) = self.nodes.get(&dir).and_then(|n| n.parent.clone()) {
                self.nest(|mds| mds.chain(above))?;
            }
            return self.fetch(Fetch::Join(dir));
        }
        if self.splits.get(&dir).is_some_and(|reads| *reads > SPLIT_READS_MAX) {
            self.splits.remove(&dir);
            return fail(Errno::EIO);
        }
        Ok(())
    }

    /// What is needed of one split directory for another one.
    fn nest(&mut self, f: impl FnOnce(&mut Self) -> Exec<()>) -> Exec<()> {
        if self.nested == NESTED_MAX {
            return fail(Errno::EIO);
        }
        self.nested += 1;
        let done = f(self);
        self.nested -= 1;
        done
    }

    /// A directory of which something was to be read is split.
    pub(crate) fn is_split(&mut self, token: Token) {
        let Some((Fetch::Page(dir, _) | Fetch::Entry(dir, _), ops)) = self.fetched(token) else {
            return;
        };
        *self.splits.entry(dir.ino).or_default() += 1;
        self.resume(ops, Ok(()));
    }

    /// All entries of a directory are in one object, if that was done. Its changes are durable
    /// after this, so none goes to rest while the others count.
    pub(crate) fn has_joined(&mut self, token: Token) -> bool {
        let Some((Fetch::Join(dir), _)) = self.fetches.get(&token) else { return false };
        let dir = *dir;
        let ops = self.fetched(token).map(|(_, ops)| ops);
        self.splits.remove(&dir);
        if let Some(node) = self.nodes.get_mut(&dir)
            && node.inode.split == Split::Yes
        {
            node.inode.split = Split::Joined;
            self.touch(dir);
        }
        self.resume(ops.unwrap_or_default(), Ok(()));
        true
    }

    /// Puts an entry that was read into memory, unless what is there is newer. False for the name
    /// of a root that has no place yet in this directory, which was taken over.
    fn adopt(&mut self, dir: DirFrag, name: &Name, dentry: Option<Dentry>) -> Result<bool, i32> {
        if self.dir_mut(dir).entries.contains_key(name) {
            return Ok(true);
        }
        let link = match dentry {
            None => Link::Absent,
            Some(Dentry::Remote { ino, d_type }) => Link::Remote(ino, d_type),
            Some(Dentry::Primary(inode)) => {
                let ino = inode.ino;
                if self.awaits_graft(ino) {
                    self.peers.shadows.insert(ino, (dir.ino, name.clone(), inode));
                    return Ok(false);
                }
                if self.nodes.contains_key(&ino) {
                    // Two names at rest have one inode: the directory is damaged.
                    return Err(Errno::EIO.0);
                }
                self.insert_node(*inode, Some((dir.ino, name.clone())), Batch(0));
                Link::Primary(ino)
            }
        };
        self.insert_entry(dir, name.clone(), link);
        Ok(true)
    }

    pub(crate) fn insert_entry(&mut self, dir: DirFrag, name: Name, link: Link) {
        let used_at = self.events;
        let entry = Entry { link, used: true, used_at };
        let d = self.dir_mut(dir);
        match d.entries.get_mut(&name) {
            Some(old) => *old = entry,
            None => {
                let name = weight::own(&name);
                d.entries.insert(name.clone(), entry);
                self.queue.push_back((dir, name));
            }
        }
        if let Link::Primary(ino) = link {
            self.share_name(ino);
        }
    }

    /// Puts an inode into memory, with what clients claim of it.
    pub(crate) fn insert_node(
        &mut self,
        mut inode: Inode,
        parent: Option<(Ino, Name)>,
        batch: Batch,
    ) {
        let ino = inode.ino;
        inode.detach();
        self.places.remove(&ino);
        self.note_odd(&inode, parent.as_ref());
        if !self.is_mine(ino) {
            self.nodes.insert(ino, Box::new(Node::new(inode, parent, batch)));
            return;
        }
        let gone = inode.ranges.keys().any(|c| !self.sessions.contains_key(c));
        let stray = inode.nlink == 0;
        let truncating = inode.truncate_pending > 0;
        if inode.quota.is_set() {
            self.with_quota.insert(ino);
        }
        if inode.space != crate::types::Space(0) {
            self.roots.insert(inode.space, ino);
        }
        self.nodes.insert(ino, Box::new(Node::new(inode, parent, batch)));
        self.attach_claims(ino);
        // What was cut off must be gone before it is looked how far the data goes.
        if truncating {
            self.trim_data(ino);
        }
        if gone {
            self.recover_size(ino);
        }
        if stray && !ino.is_system() {
            self.note_purgeable(ino);
        }
    }

    pub(crate) fn page_read(
        &mut self,
        token: Token,
        result: Result<(Vec<(Name, Dentry)>, bool), i32>,
    ) {
        let Some((Fetch::Page(dir, after), ops)) = self.fetched(token) else { return };
        self.splits.remove(&dir.ino);
        let (entries, end) = match result {
            Ok(read) => read,
            Err(errno) => return self.resume(ops, Err(errno)),
        };
        let upto = entries.last().map(|(name, _)| name.clone()).filter(|_| !end);
        if upto.is_none() && !end {
            // A page that neither holds anything nor ends the directory would be asked for again.
            return self.resume(ops, Err(Errno::EIO.0));
        }
        let mut whole = true;
        for (name, dentry) in entries {
            match self.adopt(dir, &name, Some(dentry)) {
                Ok(here) => whole &= here,
                Err(errno) => return self.resume(ops, Err(errno)),
            }
        }
        if !whole {
            // It is read again, until all names in it are here.
            return self.resume(ops, Ok(()));
        }
        let d = self.dir_mut(dir);
        if end && after.is_none() {
            d.complete = true;
        }
        d.large = !end;
        let have = Have { dir, after, upto, dropped: d.dropped };
        for op in &ops {
            if let Some(state) = self.ops.get_mut(op) {
                state.have = Some(have.clone());
            }
        }
        self.resume(ops, Ok(()));
    }

    pub(crate) fn entry_read(&mut self, token: Token, result: Result<Option<Dentry>, i32>) {
        let Some((Fetch::Entry(dir, name), ops)) = self.fetched(token) else { return };
        self.splits.remove(&dir.ino);
        let result = result.and_then(|dentry| self.adopt(dir, &name, dentry));
        self.resume(ops, result.map(|_| ()));
    }

    pub(crate) fn base_read(&mut self, token: Token, result: Result<Box<Inode>, i32>) {
        let Some((Fetch::Base(ino), ops)) = self.fetched(token) else { return };
        let result = result.map(|inode| {
            if !self.nodes.contains_key(&ino) {
                self.insert_node(*inode, None, Batch(0));
            }
        });
        self.resume(ops, result);
    }

    pub(crate) fn backtrace_read(
        &mut self,
        token: Token,
        result: Result<Option<(Ino, Name)>, i32>,
    ) {
        let Some((Fetch::Backtrace(ino), ops)) = self.fetched(token) else { return };
        let result = result.and_then(|place| match place {
            Some(place) => {
                self.places.insert(ino, place);
                Ok(())
            }
            None => Err(Errno::ESTALE.0),
        });
        self.resume(ops, result);
    }

    /// Whether an entry may be dropped.
    fn droppable(&self, dir: DirFrag, name: &Name) -> bool {
        let Some(d) = self.dirs.get(&dir) else { return true };
        if d.dirty.contains_key(name) || d.writing.contains_key(name) {
            return false;
        }
        if d.fetching > 0 && self.conf.bug != Bug::EvictWhileReading {
            return false;
        }
        match d.entries.get(name).map(|e| e.link) {
            None | Some(Link::Absent | Link::Remote(..)) => true,
            Some(Link::Primary(ino)) => {
                if ino.is_system() || self.backtraces.contains_key(&ino) {
                    return false;
                }
                let Some(node) = self.nodes.get(&ino) else { return true };
                let own = self.dirs.get(&DirFrag::whole(ino));
                !self.goes_along(ino, node)
                    && node.caps.is_empty()
                    && node.needs.is_empty()
                    && node.locks.is_none()
                    && !self.fetching.contains_key(&Fetch::Join(ino))
                    && !self.purging.contains(&ino)
                    && !self.purgeable.contains(&ino)
                    && !self.truncating.contains(&ino)
                    && !self.recovering.contains(&ino)
                    && own.is_none_or(|d| d.entries.is_empty() && d.is_idle())
            }
        }
    }

    /// Whether there is more in memory than should be.
    pub(crate) fn is_full(&self) -> bool {
        self.emptying
            || self.queue.len() > self.conf.cache_entries_max
            || self.bytes() > self.conf.bounds.wanted()
    }

    /// Whether none of the entries can be dropped: as far as was seen, all are in use.
    pub(crate) fn is_stuck(&self) -> bool {
        self.barren > 2 * self.queue.len()
    }

    /// Drops entries that were not used lately while there is too much in memory.
    pub(crate) fn shrink(&mut self) {
        self.weigh();
        // What an operation has found since it began stays while it waits for more: else it would
        // never come to its end in a small cache.
        let reading = self.fetches.values().flat_map(|(_, ops)| ops);
        let kept_from = reading.filter_map(|op| self.ops.get(op)).map(|s| s.began).min();
        let excess = self.queue.len().saturating_sub(self.conf.cache_entries_max);
        let mut tries = match excess {
            // When none of two rounds could go, a few are looked at with each event.
            0 if self.is_stuck() => FEW,
            0 => TRIES_MAX,
            _ => 2 * excess + FEW,
        };
        while tries > 0 && self.is_full() {
            tries -= 1;
            self.barren += 1;
            let Some((dir, name)) = self.queue.pop_front() else { return };
            let droppable = self.droppable(dir, &name);
            let Some(d) = self.dirs.get_mut(&dir) else { continue };
            let Some(entry) = d.entries.get_mut(&name) else { continue };
            let kept = kept_from.is_some_and(|k| entry.used_at >= k);
            if entry.used || kept || !droppable {
                entry.used = false;
                self.queue.push_back((dir, name));
                continue;
            }
            let link = entry.link;
            self.barren = 0;
            d.entries.remove(&name);
            d.complete = false;
            d.dropped += 1;
            if let Link::Primary(ino) = link {
                self.nodes.remove(&ino);
                self.with_quota.remove(&ino);
                self.dirs.remove(&DirFrag::whole(ino));
            }
            self.weigh();
        }
        self.nodes.fit();
        self.dirs.fit();
        if excess == 0 && self.is_full() && !self.is_stuck() {
            // The rest goes when others had their turn.
            self.wake(self.now);
        }
        self.recall();
    }
}
