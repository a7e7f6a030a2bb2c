//! What directories counted with the batches of the log that are not durable.

use crate::types::{Batch, DirStat, Ino, Inode, NestStat};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use types::Utime;

/// What changes in a directory as something comes or goes in it or below it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counts {
    mtime: Utime,
    ctime: Utime,
    change_attr: u64,
    dirstat: DirStat,
    pub rstat: NestStat,
    version: u64,
}

impl Counts {
    fn of(inode: &Inode) -> Counts {
        Counts {
            mtime: inode.mtime,
            ctime: inode.ctime,
            change_attr: inode.change_attr,
            dirstat: inode.dirstat,
            rstat: inode.rstat,
            version: inode.version,
        }
    }

    pub fn put(&self, inode: &mut Inode) {
        inode.mtime = self.mtime;
        inode.ctime = self.ctime;
        inode.change_attr = self.change_attr;
        inode.dirstat = self.dirstat;
        inode.rstat = self.rstat;
        inode.version = self.version;
    }
}

/// What a directory counted with the batches that may not be durable.
#[derive(Debug)]
struct Past {
    /// The batch of the newest change.
    newest: Batch,
    /// Batches before it, and what was counted with each.
    before: VecDeque<(Batch, Counts)>,
}

/// Directories of which the log does not have what they count.
#[derive(Default, Debug)]
pub(crate) struct Counting {
    dirs: FxHashMap<Ino, Past>,
    /// Batches with the directories that changed in them.
    order: VecDeque<(Batch, Ino)>,
}

impl Counting {
    /// A directory is about to change what it counts.
    pub fn note(&mut self, ino: Ino, inode: &Inode, open: Batch, durable: Batch) {
        let past = self
            .dirs
            .entry(ino)
            .or_insert_with(|| Past { newest: Batch(0), before: VecDeque::new() });
        if past.newest == open {
            return;
        }
        past.before.push_back((past.newest, Counts::of(inode)));
        past.newest = open;
        while past.before.get(1).is_some_and(|(batch, _)| *batch <= durable) {
            past.before.pop_front();
        }
        self.order.push_back((open, ino));
    }

    /// What a directory counted with the newest batch that is durable, if it counts more now.
    pub fn durable(&self, ino: Ino, durable: Batch) -> Option<&Counts> {
        let past = self.dirs.get(&ino).filter(|past| past.newest > durable)?;
        let before = past.before.iter().rev().find(|(batch, _)| *batch <= durable)?;
        Some(&before.1)
    }

    /// Whether a directory counts more than the log has, or did lately.
    pub fn has(&self, ino: Ino) -> bool {
        self.dirs.contains_key(&ino)
    }

    /// More of the log is durable.
    pub fn settle(&mut self, durable: Batch) {
        while let Some((_, ino)) = self.order.pop_front_if(|(batch, _)| *batch <= durable) {
            if self.dirs.get(&ino).is_some_and(|past| past.newest <= durable) {
                self.dirs.remove(&ino);
            }
        }
    }

    /// An inode is another one now.
    pub fn forget(&mut self, ino: Ino) {
        self.dirs.remove(&ino);
    }
}
