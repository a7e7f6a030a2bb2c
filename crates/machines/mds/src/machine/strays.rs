//! Inodes without a name, and those of which the name went while others stay. They live in the
//! stray directories until they are removed with their data, or get a name again.

use super::Mds;
use super::node::Link;
use super::operation::{Exec, Kind, OpState, fail};
use super::state::Leaving;
use super::stats::{self, Change};
use crate::action::Action;
use crate::conf::Bug;
use crate::event::Token;
use crate::peer::LotId;
use crate::types::{ClientId, DirFrag, Ino, Name, Rank, Space};
use std::ops::Bound::{Excluded, Unbounded};
use types::{Errno, Utime};

/// The name of a stray.
fn stray_name(ino: Ino) -> Name {
    Name::from(format!("{:x}", ino.0))
}

impl Mds {
    /// The stray directory of an inode.
    fn stray_dir(&self, ino: Ino) -> Ino {
        Ino::stray_of(self.conf.rank, ino.0 % Ino::STRAYS)
    }

    /// Makes sure that an inode could become a stray now.
    pub(crate) fn stray_ready(&mut self, ino: Ino) -> Exec<()> {
        let dir = self.stray_dir(ino);
        self.chain(dir)?;
        // No client sees names there.
        let others = self.early.others;
        let found = self.entry(DirFrag::whole(dir), &stray_name(ino)).map(|_| ());
        self.early.others = others;
        found
    }

    /// Moves an inode from where it lived, of which the entry is set already, to its stray
    /// directory.
    pub(crate) fn make_stray(&mut self, ino: Ino, stamp: Utime) {
        let (dir, name) = (self.stray_dir(ino), stray_name(ino));
        let Some(node) = self.nodes.get_mut(&ino) else { return };
        node.parent = Some((dir, name.clone()));
        let (is_dir, stat, nlink) = (node.inode.is_dir(), stats::of(&node.inode), node.inode.nlink);
        self.set_link(DirFrag::whole(dir), &name, Link::Primary(ino));
        self.placed(ino);
        self.account(dir, Change::name(is_dir, 1).with(stat, 1), stamp);
        if nlink == 0 {
            self.note_purgeable(ino);
        }
    }

    /// Gives a stray that has other names a place under the name by which it was found.
    pub(crate) fn reintegrate(&mut self, dir: DirFrag, name: &Name, ino: Ino) -> Exec<()> {
        let Some((from, old)) = self.nodes.get(&ino).and_then(|n| n.parent.clone()) else {
            return Ok(());
        };
        if !from.is_stray_dir() {
            return Ok(());
        }
        self.chain(dir.ino)?;
        self.chain(from)?;
        let Some(node) = self.nodes.get_mut(&ino) else { return fail(Errno::EIO) };
        node.parent = Some((dir.ino, name.clone()));
        let (stat, stamp) = (stats::of(&node.inode), node.inode.ctime);
        self.set_link(DirFrag::whole(from), &old, Link::Absent);
        self.account(from, Change::name(false, -1).with(stat, -1), stamp);
        self.set_link(dir, name, Link::Primary(ino));
        self.placed(ino);
        // The name was counted all the time, what it stands for was not.
        self.account(dir.ino, Change::default().with(stat, 1), stamp);
        Ok(())
    }

    /// An inode may have to be removed.
    pub(crate) fn note_purgeable(&mut self, ino: Ino) {
        self.purgeable.insert(ino);
        if self.batch_of(ino) <= self.log.durable {
            self.purge_waits = None;
        }
    }

    /// Begins to remove inodes that neither a name nor a client holds. Says whether there were any.
    pub(crate) fn purge(&mut self) -> bool {
        if !self.is_active() || self.peers.leaving >= Some(Leaving::Caps) {
            return false;
        }
        if self.purge_waits == Some(self.log.durable) {
            return false;
        }
        let (mut begun, mut waits, mut after) = (false, true, Ino(0));
        // There may be many, and this is asked at each event.
        while self.purging.len() < self.conf.purges_max {
            let next = self.purgeable.range((Excluded(after), Unbounded)).next().copied();
            let Some(ino) = next else {
                self.purge_waits = waits.then_some(self.log.durable);
                break;
            };
            after = ino;
            // Nothing waits for a removal, so it does not have the log written.
            if self.batch_of(ino) > self.log.durable {
                continue;
            }
            let Some(node) = self.nodes.get(&ino) else {
                self.purgeable.remove(&ino);
                continue;
            };
            let in_stray = node.parent.as_ref().is_some_and(|(d, _)| d.is_stray_dir());
            if node.inode.nlink > 0 || !in_stray {
                self.purgeable.remove(&ino);
                continue;
            }
            if !self.serves(ino) {
                waits = false;
                continue;
            }
            let held = !node.caps.is_empty() && self.conf.bug != Bug::PurgeOpen;
            let own = self.dirs.get(&DirFrag::whole(ino));
            let busy = own.is_some_and(|d| !d.writing.is_empty() || d.fetching > 0);
            if held {
                // It comes back when the last client drops it.
                self.purgeable.remove(&ino);
                continue;
            }
            if busy
                || !node.needs.is_empty()
                || self.truncating.contains(&ino)
                || self.is_writing_backtrace(ino)
            {
                waits = false;
                continue;
            }
            self.purgeable.remove(&ino);
            self.purging.insert(ino);
            self.backtraces.remove(&ino);
            self.recovering.remove(&ino);
            self.forget_dir(DirFrag::whole(ino));
            let mut inode = Box::new(self.nodes[&ino].inode.clone());
            inode.layout = self.layout_of(ino);
            let batch = self.batch_of(ino);
            let token = self.token();
            self.purges.insert(token, ino);
            self.hold(batch, Action::Purge { token, inode });
            begun = true;
        }
        begun
    }

    /// Takes in that an inode's data is gone, if that is what the token stands for.
    pub(crate) fn purge_done(&mut self, token: Token) -> bool {
        let Some(ino) = self.purges.remove(&token) else { return false };
        self.start(ClientId(0), Kind::Purged(ino));
        true
    }

    /// Removes a stray of which the data is gone.
    pub(crate) fn purged(&mut self, ino: Ino) -> Exec<()> {
        self.chain(ino)?;
        let Some((dir, name)) = self.nodes.get(&ino).and_then(|n| n.parent.clone()) else {
            return Ok(());
        };
        let inode = self.get(ino)?;
        let (is_dir, stat, stamp) = (inode.is_dir(), stats::of(inode), inode.ctime);
        let space = inode.space;
        if space != Space(0) {
            self.forget_promise(space);
            self.roots.remove(&space);
            self.cancel_move(LotId::Space(space));
        }
        self.set_link(DirFrag::whole(dir), &name, Link::Absent);
        self.account(dir, Change::name(is_dir, -1).with(stat, -1), stamp);
        for client in self.nodes[&ino].caps.keys().copied().collect::<Vec<_>>() {
            self.drop_cap(client, ino);
        }
        self.nodes.remove(&ino);
        self.dirs.remove(&DirFrag::whole(ino));
        self.log_gone(ino);
        self.backtraces.remove(&ino);
        self.purging.remove(&ino);
        self.purgeable.remove(&ino);
        Ok(())
    }

    /// Looks through the stray directories of an owner.
    pub(crate) fn look_through_strays(&mut self, owner: Rank) {
        for i in 0..Ino::STRAYS {
            self.start(ClientId(0), Kind::Strays(Ino::stray_of(owner, i)));
        }
    }

    /// Has a stray that has names elsewhere live with this owner. A stock server reads the stray
    /// directories of its own rank alone.
    pub(crate) fn rehome(&mut self, ino: Ino) -> Exec<()> {
        let place = self.nodes.get(&ino).and_then(|n| n.parent.clone());
        let Some((from, old)) = place.filter(|(dir, _)| self.is_others_stray_dir(*dir)) else {
            return Ok(());
        };
        if self.get(ino)?.nlink == 0 || !self.is_mine(ino) {
            return Ok(());
        }
        self.chain(from)?;
        self.entry(DirFrag::whole(from), &old)?;
        self.stray_ready(ino)?;
        let inode = self.get(ino)?;
        let (stat, stamp) = (stats::of(inode), inode.ctime);
        self.set_link(DirFrag::whole(from), &old, Link::Absent);
        self.account(from, Change::name(false, -1).with(stat, -1), stamp);
        self.make_stray(ino, stamp);
        Ok(())
    }

    fn rehome_all(&mut self, dir: DirFrag) {
        if !self.is_others_stray_dir(dir.ino) || self.conf.bug == Bug::StraysStay {
            return;
        }
        let entries = self.dir_mut(dir).entries.values();
        let primary = |link| if let Link::Primary(ino) = link { Some(ino) } else { None };
        let strays: Vec<Ino> = entries.filter_map(|e| primary(e.link)).collect();
        for ino in strays {
            self.start(ClientId(0), Kind::Rehome(ino));
        }
    }

    fn is_others_stray_dir(&self, dir: Ino) -> bool {
        dir.is_stray_dir() && dir.owner() != self.conf.rank
    }

    /// Looks through a stray directory: strays without names and clients are removed.
    pub(crate) fn scan_strays(&mut self, dir: Ino, state: &mut OpState) -> Exec<()> {
        let dir = DirFrag::whole(dir);
        self.inode(dir.ino)?;
        // Each page that is read puts its strays into memory, where `insert_node` finds them.
        loop {
            state.have.take_if(|h| h.dir != dir);
            let after = state.have.as_ref().and_then(|h| h.upto.clone());
            if state.have.is_some() {
                self.rehome_all(dir);
                if after.is_none() {
                    return Ok(());
                }
            }
            let have = self.page(dir, after.as_ref(), &state.have.clone())?;
            state.have = Some(have);
        }
    }
}
