//! What directories count, as the log has it.
//!
//! Each change below a directory changes what it counts, and each name in it its times. A client
//! that only passes through, or looks one name up, would wait for the log whenever other clients
//! change something there. So the values of the newest batch that is durable are kept until the
//! current ones are, and such a client is shown those. A client that asks for what is counted, or
//! may from now on read it in its cache, waits for the current ones.

use super::Mds;
use super::node::Last;
use crate::caps;
use crate::types::{DirFrag, Ino, Inode};

/// How far a client is shown what a directory counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Shown {
    /// As it is.
    Current,
    /// What is below it as the log has it, the rest as it is.
    Names,
    /// As the log has it.
    Durable,
}

impl Mds {
    /// A directory is about to change what it counts.
    pub(crate) fn counts_change(&mut self, ino: Ino) {
        let (open, durable) = (self.log.open(), self.log.durable);
        if let Some(node) = self.nodes.get(&ino) {
            self.counting.note(ino, &node.inode, open, durable);
        }
    }

    /// When names in a directory last came or went.
    fn names_changed(&self, ino: Ino) -> Last {
        self.dirs.get(&DirFrag::whole(ino)).map(|d| d.changed).unwrap_or_default()
    }

    /// How far a client with these capabilities is shown what an inode counts.
    fn how_shown(&self, ino: Ino, issued: u32) -> Shown {
        let Some(node) = self.nodes.get(&ino) else { return Shown::Current };
        let durable = self.log.durable;
        // Clients compare what they write with a quota themselves.
        if !node.inode.is_dir()
            || node.inode.quota.is_set()
            || self.looked_at.contains(&ino)
            || self.counting.durable(ino, durable).is_none()
        {
            return Shown::Current;
        }
        if issued & caps::NAMES != 0 {
            return Shown::Names;
        }
        // All of it is as old as what it counts, or as new.
        if node.changed.batch <= durable { Shown::Durable } else { Shown::Current }
    }

    /// The changes that a client sees which is shown an inode in this way.
    fn lasts(&self, ino: Ino, how: Shown) -> [Last; 3] {
        let Some(node) = self.nodes.get(&ino) else { return [Last::default(); 3] };
        let names = if node.inode.is_dir() { self.names_changed(ino) } else { Last::default() };
        match how {
            Shown::Current => [node.changed, names, node.counted],
            Shown::Names => [node.changed, names, Last::default()],
            Shown::Durable => [node.changed, Last::default(), Last::default()],
        }
    }

    fn look_as(&mut self, ino: Ino, how: Shown) {
        let client = self.early.actor;
        for last in self.lasts(ino, how) {
            self.seen = self.seen.max(last.batch);
            self.shows(self.shown_to(client, last));
        }
    }

    /// Notes that an operation looked at all of an inode.
    pub(crate) fn look(&mut self, ino: Ino) {
        if self.counting.has(ino) {
            self.looked_at.push(ino);
        }
        self.look_as(ino, Shown::Current);
    }

    /// Notes that an operation relies on an inode, and not on what it counts.
    pub(crate) fn look_through(&mut self, ino: Ino) {
        self.look_as(ino, Shown::Durable);
    }

    /// An inode as a client is shown it that has these capabilities from then on.
    pub(crate) fn look_for(&mut self, ino: Ino, issued: u32) -> Option<Inode> {
        let how = self.how_shown(ino, issued);
        self.look_as(ino, how);
        self.inode_as(ino, how)
    }

    /// An inode as a client is told of it with its capabilities, and the changes that it sees.
    pub(crate) fn tell_for(&self, ino: Ino, issued: u32) -> Option<(Inode, [Last; 3])> {
        let how = self.how_shown(ino, issued);
        Some((self.inode_as(ino, how)?, self.lasts(ino, how)))
    }

    fn inode_as(&self, ino: Ino, how: Shown) -> Option<Inode> {
        let mut inode = self.shown(ino)?;
        match (how, self.counting.durable(ino, self.log.durable)) {
            (Shown::Names, Some(counts)) => inode.rstat = counts.rstat,
            (Shown::Durable, Some(counts)) => counts.put(&mut inode),
            _ => {}
        }
        Some(inode)
    }
}
