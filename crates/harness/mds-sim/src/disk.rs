//! What is at rest: objects of directories, backtraces, tables, the log, and data of files.

use crate::model::Model;
use bytes::Bytes;
use mds::{
    Action, Batch, Dentry, DirFrag, DirHead, Event, Ino, Inode, Name, NestStat, Rank, Split,
    Tables, Token,
};
use std::collections::{BTreeMap, BTreeSet};
use types::Errno;

/// What is at rest.
#[derive(Clone, Default, Debug)]
pub struct Disk {
    /// Directories.
    pub dirs: BTreeMap<DirFrag, BTreeMap<Name, Dentry>>,
    /// Their headers.
    pub heads: BTreeMap<DirFrag, DirHead>,
    /// Inodes that no directory holds.
    pub base: BTreeMap<Ino, Inode>,
    /// Backtraces.
    pub traces: BTreeMap<Ino, (Ino, Name)>,
    /// Tables.
    pub tables: Tables,
    /// Batches of the log.
    pub log: BTreeMap<Batch, Bytes>,
    /// The last batch that was trimmed.
    pub trimmed: Batch,
    /// Entries of directories that a stock server split, which are in other objects.
    pub split: BTreeMap<Ino, BTreeMap<Name, Dentry>>,
    /// Bytes of files' data.
    pub data: BTreeMap<Ino, u64>,
    /// Inodes of which all was removed.
    pub purged: BTreeSet<Ino>,
}

impl Disk {
    /// Applies a write. Says for which token it is.
    pub fn apply(&mut self, action: &Action) -> Option<Token> {
        match action {
            Action::Append(batch, bytes) => {
                self.log.insert(*batch, bytes.clone());
                None
            }
            Action::TrimLog(below) => {
                self.log = self.log.split_off(below);
                self.trimmed = self.trimmed.max(Batch(below.0 - 1));
                None
            }
            Action::WriteDir { token, dir, set, remove, head } => {
                for (name, dentry) in set {
                    let mut dentry = dentry.clone();
                    if let Dentry::Primary(inode) = &mut dentry {
                        self.forget_fragments(inode);
                    }
                    self.dirs.entry(*dir).or_default().insert(name.clone(), dentry);
                }
                let d = self.dirs.entry(*dir).or_default();
                for name in remove {
                    d.remove(name);
                }
                self.heads.insert(*dir, *head);
                Some(*token)
            }
            Action::WriteBase { token, inode } => {
                let mut inode = (**inode).clone();
                self.forget_fragments(&mut inode);
                self.base.insert(inode.ino, inode);
                Some(*token)
            }
            Action::Join { token, inode } => {
                if let Some(entries) = self.split.get(&inode.ino) {
                    self.dirs.insert(DirFrag::whole(inode.ino), entries.clone());
                    self.heads.insert(DirFrag::whole(inode.ino), DirHead::of(inode));
                }
                Some(*token)
            }
            Action::WriteBacktrace { token, ino, ancestors, .. } => {
                if let Some((dir, name, _)) = ancestors.first() {
                    self.traces.insert(*ino, (*dir, name.clone()));
                }
                Some(*token)
            }
            Action::WriteTables { token, tables } => {
                self.tables = (**tables).clone();
                Some(*token)
            }
            Action::Purge { token, inode } => {
                self.purged.insert(inode.ino);
                self.data.remove(&inode.ino);
                self.traces.remove(&inode.ino);
                self.split.remove(&inode.ino);
                self.dirs.remove(&DirFrag::whole(inode.ino));
                self.heads.remove(&DirFrag::whole(inode.ino));
                Some(*token)
            }
            Action::Truncate { token, inode } => {
                if let Some(size) = self.data.get_mut(&inode.ino) {
                    *size = inode.size.min(*size);
                }
                Some(*token)
            }
            _ => None,
        }
    }

    /// What a read finds.
    pub fn read(&self, action: &Action) -> Option<Event> {
        let none = BTreeMap::new();
        Some(match action {
            Action::ReadPage { token, dir, .. } | Action::ReadEntry { token, dir, .. }
                if self.is_split(dir.ino) =>
            {
                Event::Split(*token)
            }
            Action::ReadPage { token, dir, after, max } => {
                use std::ops::Bound::{Excluded, Unbounded};
                let d = self.dirs.get(dir).unwrap_or(&none);
                let from = after.as_ref().map_or(Unbounded, Excluded);
                let mut all =
                    d.range::<Name, _>((from, Unbounded)).map(|(n, d)| (n.clone(), d.clone()));
                let page: Vec<_> = all.by_ref().take(*max as usize).collect();
                Event::Page(*token, Ok((page, all.next().is_none())))
            }
            Action::ReadEntry { token, dir, name } => {
                let d = self.dirs.get(dir).unwrap_or(&none);
                Event::Entry(*token, Ok(d.get(name).cloned()))
            }
            Action::ReadBase { token, ino } => {
                let inode = self.base.get(ino).cloned().map(Box::new);
                Event::Base(*token, inode.ok_or(Errno::EIO.0))
            }
            Action::ReadBacktrace { token, ino } => {
                Event::Backtrace(*token, Ok(self.traces.get(ino).cloned()))
            }
            Action::Probe { token, inode, max } => {
                let size = self.data.get(&inode.ino).copied().unwrap_or(0).min(*max);
                Event::Probed(*token, Ok((size, None)))
            }
            _ => return None,
        })
    }

    /// Whether the entries of a directory are in several objects, and were not copied to one.
    pub fn is_split(&self, dir: Ino) -> bool {
        self.split.contains_key(&dir) && !self.dirs.contains_key(&DirFrag::whole(dir))
    }

    /// A stock server splits some directories, while all is at rest. Says how many.
    pub fn split_some(&mut self, mut some: impl FnMut(Ino) -> bool) -> usize {
        let whole: BTreeSet<Ino> = self.dirs.keys().map(|dir| dir.ino).collect();
        let chosen: BTreeSet<Ino> = whole.into_iter().filter(|ino| some(*ino)).collect();
        for ino in &chosen {
            if let Some(entries) = self.dirs.remove(&DirFrag::whole(*ino)) {
                self.heads.remove(&DirFrag::whole(*ino));
                self.split.insert(*ino, entries);
            }
        }
        let held = self.dirs.values_mut().chain(self.split.values_mut());
        let held = held.flat_map(|d| d.values_mut()).filter_map(|d| match d {
            Dentry::Primary(inode) => Some(&mut **inode),
            Dentry::Remote { .. } => None,
        });
        for inode in held.chain(self.base.values_mut()).filter(|i| chosen.contains(&i.ino)) {
            inode.split = Split::Yes;
        }
        chosen.len()
    }

    /// Removes what was copied, as an inode that is written needs it no more.
    fn forget_fragments(&mut self, inode: &mut Inode) {
        if inode.split == Split::Joined {
            self.split.remove(&inode.ino);
            inode.split = Split::No;
        }
    }

    /// What is in a directory.
    fn entries(&self, dir: &Inode) -> Option<&BTreeMap<Name, Dentry>> {
        match dir.split {
            Split::Yes => self.split.get(&dir.ino),
            Split::No | Split::Joined => self.dirs.get(&DirFrag::whole(dir.ino)),
        }
    }

    /// All inodes that have a place.
    fn inodes(&self) -> impl Iterator<Item = &Inode> {
        let held = self.dirs.values().chain(self.split.values()).flat_map(|d| d.values());
        let held = held.filter_map(|d| match d {
            Dentry::Primary(inode) => Some(&**inode),
            Dentry::Remote { .. } => None,
        });
        self.base.values().chain(held)
    }

    /// Compares what is at rest, after a flush, with the model: names, attributes, statistics.
    pub fn check(&self, model: &Model) -> Result<(), String> {
        self.check_names(model)?;
        let split = self.inodes().filter(|i| i.split == Split::Yes).map(|i| i.ino);
        let split: BTreeSet<Ino> = split.collect();
        if let Some(ino) = self.split.keys().find(|ino| !split.contains(ino)) {
            return Err(format!("fragments of {ino:?} are left"));
        }
        for (ino, node) in &model.nodes {
            if node.nlink == 0 && (self.data.contains_key(ino) || self.traces.contains_key(ino)) {
                return Err(format!("{ino:?} is removed, and something of it is left"));
            }
        }
        for dentry in self.stray_entries() {
            if let (name, Dentry::Primary(inode)) = dentry
                && inode.nlink == 0
            {
                return Err(format!("stray {name:?} is left"));
            }
        }
        Ok(())
    }

    fn stray_entries(&self) -> impl Iterator<Item = (&Name, &Dentry)> {
        let split = self.split.iter().filter(|(ino, _)| self.is_split(**ino));
        let all = self.dirs.iter().map(|(dir, d)| (dir.ino, d)).chain(split.map(|(i, d)| (*i, d)));
        all.filter(|(dir, _)| dir.is_stray_dir()).flat_map(|(_, d)| d)
    }

    /// Strays of owners that left live with others: a stock server does not read theirs.
    pub fn check_homes(&self, gone: &BTreeSet<Rank>) -> Result<(), String> {
        let dirs = self.dirs.iter().filter(|(dir, _)| dir.ino.is_stray_dir());
        for (dir, entries) in dirs.filter(|(dir, _)| gone.contains(&dir.ino.owner())) {
            if let Some((name, _)) = entries.first_key_value() {
                return Err(format!("{name:?} is in {dir:?}, of an owner that left"));
            }
        }
        Ok(())
    }

    /// The same but for what has no name any more, which may not be removed yet.
    pub fn check_names(&self, model: &Model) -> Result<(), String> {
        let Some(root) = self.base.get(&Ino::ROOT) else { return Err("no root at rest".into()) };
        let mut found = BTreeSet::new();
        self.tree(root, model, &mut found)?;
        for rank in 0..model.owners {
            self.strays(Rank(rank), model, &mut found)?;
        }
        for (ino, node) in &model.nodes {
            let here = found.contains(ino) || *ino == Ino::ROOT;
            if here != (node.nlink > 0) {
                return Err(format!("{ino:?} with {} names: at rest is {here}", node.nlink));
            }
        }
        Ok(())
    }

    fn strays(&self, rank: Rank, model: &Model, found: &mut BTreeSet<Ino>) -> Result<(), String> {
        let mds_dir = Ino::mds_dir(rank);
        let Some(inode) = self.base.get(&mds_dir) else { return Err(format!("no ~{rank:?}")) };
        self.stats(inode)?;
        for i in 0..Ino::STRAYS {
            let name = Name::from(format!("stray{i}"));
            let dirs = self.entries(inode);
            let Some(Dentry::Primary(stray)) = dirs.and_then(|d| d.get(&name)) else {
                return Err(format!("no stray{i} of {rank:?} at rest"));
            };
            self.stats(stray)?;
            for dentry in self.entries(stray).into_iter().flatten() {
                let (_, Dentry::Primary(inode)) = dentry else {
                    return Err(format!("{dentry:?} is a stray"));
                };
                if inode.nlink == 0 {
                    continue;
                }
                self.compare(inode, model)?;
                found.insert(inode.ino);
            }
        }
        Ok(())
    }

    /// Statistics of all directories at rest, after a flush, are those of what is in them.
    pub fn check_statistics(&self) -> Result<(), String> {
        for inode in self.inodes().filter(|i| i.is_dir()) {
            self.stats(inode)?;
        }
        Ok(())
    }

    fn compare(&self, inode: &Inode, model: &Model) -> Result<(), String> {
        let seen = crate::model::Seen::of(inode);
        model.compare(inode.ino, mds::caps::ANY_SHARED, &seen).map_err(|e| format!("at rest: {e}"))
    }

    fn tree(&self, dir: &Inode, model: &Model, found: &mut BTreeSet<Ino>) -> Result<(), String> {
        self.stats(dir)?;
        self.compare(dir, model)?;
        let none = BTreeMap::new();
        let entries = self.entries(dir).unwrap_or(&none);
        let there: BTreeMap<Name, Ino> = entries
            .iter()
            .map(|(name, dentry)| match dentry {
                Dentry::Primary(inode) => (name.clone(), inode.ino),
                Dentry::Remote { ino, .. } => (name.clone(), *ino),
            })
            .collect();
        let expected = &model.nodes[&dir.ino].entries;
        if there != *expected {
            return Err(format!("{:?} at rest: expected {expected:?}, found {there:?}", dir.ino));
        }
        for (name, dentry) in entries {
            let Dentry::Primary(inode) = dentry else { continue };
            if !found.insert(inode.ino) {
                return Err(format!("{:?} is at two places", inode.ino));
            }
            if self.traces.get(&inode.ino) != Some(&(dir.ino, name.clone())) {
                let trace = self.traces.get(&inode.ino);
                return Err(format!(
                    "{:?} is {:?}/{name:?}, backtrace {trace:?}",
                    inode.ino, dir.ino
                ));
            }
            if inode.is_dir() {
                self.tree(inode, model, found)?;
            } else {
                self.compare(inode, model)?;
            }
        }
        Ok(())
    }

    /// Statistics of a directory are those of what is in it.
    fn stats(&self, dir: &Inode) -> Result<(), String> {
        let (mut files, mut subdirs, mut sum) = (0, 0, NestStat::default());
        for dentry in self.entries(dir).into_iter().flatten() {
            match dentry.1 {
                Dentry::Primary(inode) => {
                    if inode.is_dir() {
                        subdirs += 1;
                    } else {
                        files += 1;
                        let size = i64::try_from(inode.size).unwrap_or(i64::MAX);
                        if (inode.rstat.rbytes, inode.rstat.rfiles, inode.rstat.rsubdirs)
                            != (size, 1, 0)
                        {
                            return Err(format!(
                                "statistics of {:?}: {:?}",
                                inode.ino, inode.rstat
                            ));
                        }
                    }
                    sum.rbytes += inode.rstat.rbytes;
                    sum.rfiles += inode.rstat.rfiles;
                    sum.rsubdirs += inode.rstat.rsubdirs;
                }
                Dentry::Remote { .. } => files += 1,
            }
        }
        let of = |r: &NestStat| (r.rbytes, r.rfiles, r.rsubdirs);
        let want = (sum.rbytes, sum.rfiles, sum.rsubdirs + 1);
        if (dir.dirstat.files, dir.dirstat.subdirs) != (files, subdirs) || of(&dir.rstat) != want {
            return Err(format!(
                "statistics of {:?}: {files} files, {subdirs} directories, {want:?} below; at rest {:?}, {:?}",
                dir.ino, dir.dirstat, dir.rstat
            ));
        }
        if let Some(head) =
            self.heads.get(&DirFrag::whole(dir.ino)).filter(|_| dir.split != Split::Yes)
        {
            let counts = (head.dirstat.files, head.dirstat.subdirs);
            if counts != (files, subdirs) || of(&head.rstat) != of(&sum) {
                return Err(format!("header of {:?}: {head:?}, expected {sum:?}", dir.ino));
            }
        }
        Ok(())
    }
}
