//! What operators are shown of what is in memory.

use super::Mds;
use super::node::Link;
use crate::types::{ClientId, DirFrag, Ino, Inode, Name, Rank};

/// An inode in memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShownInode {
    /// Its names from the file system's root, if all directories above are in memory.
    pub path: Option<Vec<Name>>,
    /// The inode.
    pub inode: Inode,
    /// The owner that serves it: of another one's inode this is as it was reported last.
    pub owner: Rank,
    /// What clients have of it.
    pub caps: Vec<ShownCap>,
    /// What is in memory of a directory.
    pub dir: Option<ShownDir>,
}

/// What a client has of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShownCap {
    /// The client.
    pub client: ClientId,
    /// What it has when it has seen all that it was told.
    pub pending: u32,
    /// What it may have now.
    pub issued: u32,
    /// What it wants.
    pub wanted: u32,
    /// The number of the last message about it.
    pub last_sent: u32,
}

/// What is in memory of a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShownDir {
    /// All of its entries are.
    pub complete: bool,
    /// Entries, with names that are known not to be there.
    pub entries: usize,
    /// Entries that are not at rest.
    pub dirty: usize,
}

impl Mds {
    /// The inode at a path, if all of the path is in memory.
    pub fn in_memory(&self, path: &[u8]) -> Option<Ino> {
        let mut at = Ino::ROOT;
        for name in path.split(|b| *b == b'/').filter(|name| !name.is_empty()) {
            let dir = self.dirs.get(&DirFrag::whole(at))?;
            at = match dir.entries.get(name)?.link {
                Link::Primary(ino) | Link::Remote(ino, _) => ino,
                Link::Absent => return None,
            };
        }
        self.nodes.contains_key(&at).then_some(at)
    }

    /// An inode in memory.
    pub fn shown_inode(&self, ino: Ino) -> Option<ShownInode> {
        let node = self.nodes.get(&ino)?;
        let caps = node.caps.iter().map(|(client, cap)| ShownCap {
            client: *client,
            pending: cap.pending,
            issued: cap.issued(),
            wanted: cap.wanted,
            last_sent: cap.seq,
        });
        let dir = self.dirs.get(&DirFrag::whole(ino)).map(|d| ShownDir {
            complete: d.complete,
            entries: d.entries.len(),
            dirty: d.dirty.len() + d.writing.len(),
        });
        let part = self.part_of(ino);
        let above = if part == Ino::ROOT { Some(Vec::new()) } else { self.way_above(part) };
        Some(ShownInode {
            path: above.map(|mut names| {
                names.extend(self.way_to(ino));
                names
            }),
            inode: node.inode.clone(),
            owner: self.keeper(ino),
            caps: caps.collect(),
            dir: dir.filter(|_| node.inode.is_dir()),
        })
    }

    /// Whether this owner serves what is shown.
    pub fn is_own(&self, shown: &ShownInode) -> bool {
        shown.owner == self.conf.rank
    }

    /// An inode, with what is in memory below it, so many directories deep; what is below comes
    /// before what is above. Nothing if these are more than `max`.
    pub fn shown_below(&self, top: Ino, depth: Option<u32>, max: usize) -> Option<Vec<ShownInode>> {
        let (mut found, mut left) = (Vec::new(), vec![(top, 0u32)]);
        while let Some((ino, level)) = left.pop() {
            let Some(shown) = self.shown_inode(ino) else { continue };
            if found.len() == max {
                return None;
            }
            found.push(shown);
            if depth.is_some_and(|depth| level >= depth) {
                continue;
            }
            let dir = self.dirs.get(&DirFrag::whole(ino));
            let below = dir.into_iter().flat_map(|d| d.entries.values());
            left.extend(below.filter_map(|entry| match entry.link {
                Link::Primary(ino) => Some((ino, level + 1)),
                Link::Remote(..) | Link::Absent => None,
            }));
        }
        found.reverse();
        Some(found)
    }

    /// Roots of parts: those that this owner has, and those of others that it names.
    pub fn shown_parts(&self) -> Vec<ShownInode> {
        let others = self.nodes.iter().filter(|(ino, _)| !self.is_mine(**ino)).map(|(ino, _)| *ino);
        let mut roots: Vec<Ino> = others.chain(self.peers.roots.keys().copied()).collect();
        roots.extend([Ino::ROOT, Ino::mds_dir(self.conf.rank)]);
        roots.sort_unstable();
        roots.dedup();
        roots.into_iter().filter_map(|ino| self.shown_inode(ino)).collect()
    }
}
