//! The participant of a change that several owners make: halves are made ready, kept until the
//! coordinator has decided, and carried out.

use super::Mds;
use super::node::Link;
use super::operation::{Exec, Kind, Stop, fail};
use super::state::Leaving;
use super::stats::{self, Change};
use crate::caps::{self, Group};
use crate::conf::Bug;
use crate::peer::{Found, Half, Held, Message, Prepare, Prepared, Refusal, Root, Step, TxnId};
use crate::types::{Batch, ClientId, DirFrag, Ino, Rank, mode};
use types::{Errno, Utime};

/// All of a directory's names.
const NAMES: u32 = caps::ANY_FILE;
/// The number of links.
const LINKS: u32 = caps::LINK_SHARED | caps::LINK_EXCL;

impl Held {
    /// Capabilities that no client has while the half is ready.
    fn keeps(&self) -> (Ino, u32) {
        match self.step {
            Step::Make => (self.found.ino, caps::PIN),
            Step::Remove => (self.found.ino, NAMES | LINKS),
            Step::Link | Step::Unlink => (self.found.ino, LINKS),
            Step::Take => (self.dir, NAMES),
        }
    }
}

impl Mds {
    /// What is kept of an inode for halves that are ready.
    pub(crate) fn locked(&self, ino: Ino) -> u32 {
        match self.peers.locked.get(&ino) {
            Some((_, kept)) if self.conf.bug != Bug::NoLock => *kept,
            _ => 0,
        }
    }

    /// Keeps what halves need.
    pub(crate) fn lock(&mut self, txn: TxnId, prepared: &Prepared) {
        for half in &prepared.halves {
            let (ino, kept) = half.keeps();
            self.peers.locked.entry(ino).or_insert((txn, 0)).1 |= kept;
        }
    }

    /// Waits while halves that are ready keep the names of a directory, and whether it has any.
    /// Halves that are not ready do not wait: the others could wait for these.
    pub(crate) fn unlocked(&mut self, dir: Ino) -> Exec<()> {
        if self.locked(dir) & NAMES == 0 {
            return Ok(());
        }
        if self.peers.impatient {
            return self.busy();
        }
        self.reads(ClientId(0), dir, Group::File);
        self.settled()
    }

    /// Waits for a directory that may be made here: its coordinator's client may know it already.
    pub(crate) fn being_made<T>(&mut self) -> Exec<T> {
        if self.peers.impatient {
            return self.busy();
        }
        self.peers.behind_makes.push(self.current);
        Err(Stop::Wait)
    }

    fn busy<T>(&mut self) -> Exec<T> {
        self.peers.onward = None;
        Err(Stop::Away)
    }

    fn free(&mut self, ino: Ino, kept: u32) -> Exec<()> {
        if self.locked(ino) & kept == 0 { Ok(()) } else { self.busy() }
    }

    fn unlock(&mut self, txn: TxnId) {
        // A successor keeps what they need until the log says that they are gone.
        self.rules_change();
        let kept: Vec<Ino> =
            self.peers.locked.iter().filter(|(_, l)| l.0 == txn).map(|(ino, _)| *ino).collect();
        self.again.extend(std::mem::take(&mut self.peers.behind_makes));
        for ino in kept {
            self.peers.locked.remove(&ino);
            self.judge.insert(ino);
            self.retry(ino);
        }
    }

    /// A coordinator wants halves made ready.
    pub(crate) fn take_prepare(&mut self, from: Rank, prepare: Prepare) {
        let txn = prepare.txn;
        if txn.rank != from || self.peers.preparing.contains_key(&txn) {
            return;
        }
        if self.peers.leaving > Some(Leaving::Locks) && !self.peers.prepared.contains_key(&txn) {
            return self.say(from, Batch(0), Message::Refused(txn, Refusal::Busy));
        }
        match self.peers.prepared.get(&txn) {
            Some((batch, prepared)) => {
                let (batch, found) = (*batch, prepared.halves.iter().map(|h| h.found).collect());
                self.say(from, batch, Message::Prepared(txn, found));
            }
            None => {
                let op = self.start(ClientId(0), Kind::Prepare(Box::new(prepare)));
                self.peers.preparing.insert(txn, op);
            }
        }
    }

    /// Makes halves ready, all in one step.
    pub(crate) fn prepare_halves(&mut self, prepare: &Prepare) -> Exec<()> {
        let mut held = Vec::with_capacity(prepare.halves.len());
        self.peers.impatient = true;
        for half in &prepare.halves {
            let half = match half {
                Half::Make { inode, layout, random } => {
                    let above = prepare.txn.rank;
                    let (inode, layout) = ((**inode).clone(), layout.clone());
                    self.ready_to_make(Root { inode, above, layout, random: *random })?
                }
                Half::Remove(ino) => self.ready_to_remove(prepare, *ino)?,
                Half::Link(path) => {
                    let ino = self.resolve(path)?;
                    self.ready_to_link(prepare, ino, true)?
                }
                Half::Unlink(ino) => self.ready_to_link(prepare, *ino, false)?,
                Half::Take(path) => {
                    let (dir, name) = self.resolve_parent(path)?;
                    self.ready_to_take(prepare, dir, &name)?
                }
            };
            held.push(half);
        }
        self.settled()?;
        for half in held.iter_mut().filter(|h| h.step == Step::Make) {
            let ino = self.new_ino(crate::types::Space::COMMON);
            half.found.ino = ino;
            if let Some(root) = &mut half.root {
                root.inode.ino = ino;
            }
        }
        let found: Vec<Found> = held.iter().map(|h| h.found).collect();
        let prepared = Prepared { stamp: prepare.stamp, halves: held };
        let txn = prepare.txn;
        self.lock(txn, &prepared);
        let batch = self.log.open();
        self.log_prepared(txn);
        self.peers.prepared.insert(txn, (batch, prepared));
        let early = self.conf.bug == Bug::PreparedEarly;
        let batch = if early { Batch(0) } else { batch };
        self.say(txn.rank, batch, Message::Prepared(txn, found));
        Ok(())
    }

    fn ready_to_make(&mut self, root: Root) -> Exec<Held> {
        if !root.inode.is_dir() {
            return fail(Errno::EINVAL);
        }
        let found = Found { ino: Ino(0), d_type: root.inode.d_type() };
        Ok(Held { step: Step::Make, found, root: Some(root), ..Held::default() })
    }

    fn ready_to_remove(&mut self, prepare: &Prepare, ino: Ino) -> Exec<Held> {
        // A subvolume may have gone since.
        if !self.serves(ino) {
            return self.busy();
        }
        self.inode(ino)?;
        if !self.peers.roots.contains_key(&ino) {
            return fail(Errno::ESTALE);
        }
        self.free(ino, NAMES | LINKS)?;
        self.takes(prepare.client, ino, Group::File);
        self.takes(prepare.client, ino, Group::Link);
        self.stray_ready(ino)?;
        self.look(ino);
        let inode = self.get(ino)?;
        let found = Found { ino, d_type: inode.d_type() };
        if inode.dirstat.files + inode.dirstat.subdirs != 0 {
            return fail(Errno::ENOTEMPTY);
        }
        Ok(Held { step: Step::Remove, found, ..Held::default() })
    }

    fn ready_to_link(&mut self, prepare: &Prepare, ino: Ino, more: bool) -> Exec<Held> {
        self.chain(ino)?;
        self.passes(ino)?;
        self.free(ino, LINKS)?;
        self.look(ino);
        let inode = self.get(ino)?;
        let found = Found { ino, d_type: inode.d_type() };
        if inode.is_dir() {
            return fail(Errno::EPERM);
        }
        if inode.nlink == 0 {
            return fail(Errno::ENOENT);
        }
        if more && inode.nlink >= super::names::LINKS_MAX {
            return fail(Errno::EMLINK);
        }
        if more && self.home(ino)? != crate::types::Space::COMMON {
            return fail(Errno::EXDEV);
        }
        self.takes(prepare.client, ino, Group::Link);
        let step = if more { Step::Link } else { Step::Unlink };
        Ok(Held { step, found, ..Held::default() })
    }

    fn ready_to_take(
        &mut self,
        prepare: &Prepare,
        dir: Ino,
        name: &crate::types::Name,
    ) -> Exec<Held> {
        self.chain(dir)?;
        self.crosses(dir)?;
        self.free(dir, NAMES)?;
        self.takes(prepare.client, dir, Group::File);
        self.takes_name(dir, name);
        let found = match self.entry(DirFrag::whole(dir), name)? {
            Link::Absent => return fail(Errno::ENOENT),
            Link::Remote(ino, d_type) => Found { ino, d_type },
            Link::Primary(ino) => {
                let d_type = self.get(ino)?.d_type();
                // A directory stays where it is.
                if u32::from(d_type) << 12 != mode::DIR {
                    self.stray_ready(ino)?;
                }
                Found { ino, d_type }
            }
        };
        let name = name.clone();
        Ok(Held { step: Step::Take, found, dir, name, root: None })
    }

    /// Halves are ready, or they cannot be.
    pub(crate) fn halves_ended(&mut self, prepare: &Prepare, result: Exec<()>) {
        let txn = prepare.txn;
        self.peers.preparing.remove(&txn);
        let why = match result {
            Ok(()) => return,
            Err(Stop::Away) => match self.peers.onward.take() {
                Some(path) => self.elsewhere(prepare, path),
                None => Refusal::Busy,
            },
            Err(Stop::Fail(errno)) => Refusal::Errno(errno),
            Err(Stop::Wait | Stop::Park(_)) => Refusal::Busy,
        };
        let batch = self.seen;
        if let Refusal::Errno(errno) = why
            && self.conf.history
        {
            let (client, tid, result) = (prepare.client, prepare.tid, -errno);
            self.history.push(super::Executed {
                client,
                tid,
                batch,
                wrote: false,
                made: None,
                result,
                onward: None,
            });
        }
        self.say(txn.rank, batch, Message::Refused(txn, why));
    }

    /// The coordinator has decided.
    pub(crate) fn take_decision(&mut self, txn: TxnId, commit: bool) {
        if let Some(op) = self.peers.preparing.remove(&txn) {
            self.abandon(&[op]);
        }
        if !self.peers.prepared.contains_key(&txn) {
            if commit {
                // They were carried out, and the word of it was lost.
                self.say(txn.rank, self.log.newest(), Message::Done(txn));
            }
            return;
        }
        if commit {
            if self.peers.applying.insert(txn) {
                self.start(ClientId(0), Kind::Apply(txn));
            }
        } else {
            self.peers.prepared.remove(&txn);
            self.log_prepared(txn);
            self.unlock(txn);
        }
    }

    /// Carries halves out, all in one step.
    pub(crate) fn apply_halves(&mut self, txn: TxnId) -> Exec<()> {
        let Some((_, prepared)) = self.peers.prepared.get(&txn).cloned() else { return Ok(()) };
        for half in &prepared.halves {
            self.load_half(half)?;
        }
        let stamp = prepared.stamp;
        for half in prepared.halves {
            match half.step {
                Step::Make => self.make_root(half),
                Step::Remove => self.remove_root(half.found.ino, stamp),
                Step::Link => self.count_name(half.found.ino, true, stamp),
                Step::Unlink => self.count_name(half.found.ino, false, stamp),
                Step::Take => self.take_half(&half, stamp)?,
            }
        }
        self.peers.prepared.remove(&txn);
        self.log_prepared(txn);
        self.unlock(txn);
        self.say(txn.rank, self.log.open(), Message::Done(txn));
        Ok(())
    }

    /// Makes sure that all is in memory that a half changes.
    fn load_half(&mut self, half: &Held) -> Exec<()> {
        let ino = half.found.ino;
        match half.step {
            Step::Make => Ok(()),
            Step::Remove => self.stray_ready(ino),
            Step::Link | Step::Unlink => self.chain(ino),
            Step::Take => {
                self.chain(half.dir)?;
                match self.entry(DirFrag::whole(half.dir), &half.name)? {
                    Link::Primary(ino) => self.stray_ready(ino),
                    _ => Ok(()),
                }
            }
        }
    }

    fn make_root(&mut self, half: Held) {
        let Some(root) = half.root else { return };
        let ino = root.inode.ino;
        self.peers.roots.insert(ino, super::state::RootAbove::of(&root));
        self.insert_node(root.inode, None, self.log.open());
        self.dir_mut(DirFrag::whole(ino)).complete = true;
        self.touch(ino);
    }

    fn remove_root(&mut self, ino: Ino, stamp: Utime) {
        self.peers.roots.remove(&ino);
        self.log_root(ino);
        self.dirty_base.remove(&ino);
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.inode.nlink = 0;
        }
        self.judge.insert(ino);
        self.make_stray(ino, stamp);
    }

    /// An inode has a name more or less, which is another owner's.
    fn count_name(&mut self, ino: Ino, more: bool, stamp: Utime) {
        let Some(node) = self.nodes.get_mut(&ino) else { return };
        let nlink = &mut node.inode.nlink;
        *nlink = if more { *nlink + 1 } else { nlink.saturating_sub(1) };
        if *nlink == 0 {
            self.note_purgeable(ino);
        }
        self.changed(ino, stamp);
        self.judge.insert(ino);
    }

    /// A name goes; its inode has another one, elsewhere.
    fn take_half(&mut self, half: &Held, stamp: Utime) -> Exec<()> {
        let (dir, name) = (half.dir, &half.name);
        let link = self.entry(DirFrag::whole(dir), name)?;
        self.set_link(DirFrag::whole(dir), name, Link::Absent);
        let mut change = Change::name(false, -1);
        if let Link::Primary(ino) = link {
            let stat = stats::of(self.get(ino)?);
            self.make_stray(ino, stamp);
            change = change.with(stat, -1);
        }
        self.account(dir, change, stamp);
        Ok(())
    }
}
