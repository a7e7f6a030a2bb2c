//! Recursive statistics. Each change is carried to the root in the step that makes it: they are
//! exact at any time.

use super::Mds;
use super::operation::{Exec, fail};
use crate::types::{ClientId, Ino, Inode, NestStat, Quota, Space};
use types::Utime;

/// What an inode adds to the directory that it lives in.
pub(crate) fn of(inode: &Inode) -> NestStat {
    inode.rstat
}

/// What an inode that is no directory is counted as.
pub(crate) fn leaf(inode: &Inode) -> NestStat {
    NestStat {
        rctime: inode.rstat.rctime.max(inode.ctime),
        rbytes: inode.size.try_into().unwrap_or(i64::MAX),
        rfiles: 1,
        rsubdirs: 0,
    }
}

/// How a directory changes.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Change {
    /// Entries that are no directories.
    pub files: i64,
    /// Entries that are directories.
    pub subdirs: i64,
    /// Whether an entry came or went.
    pub names: bool,
    /// What is in it and below.
    pub rbytes: i64,
    pub rfiles: i64,
    pub rsubdirs: i64,
}

impl Change {
    /// A name comes (1) or goes (-1).
    pub fn name(is_dir: bool, n: i64) -> Change {
        Change {
            files: if is_dir { 0 } else { n },
            subdirs: if is_dir { n } else { 0 },
            names: true,
            ..Change::default()
        }
    }

    /// What it is where the name came from.
    pub fn back(self) -> Change {
        Change {
            files: -self.files,
            subdirs: -self.subdirs,
            rbytes: -self.rbytes,
            rfiles: -self.rfiles,
            rsubdirs: -self.rsubdirs,
            names: self.names,
        }
    }

    /// What is below comes (1) or goes (-1) with it.
    pub fn with(self, stat: NestStat, n: i64) -> Change {
        Change {
            rbytes: self.rbytes + n * stat.rbytes,
            rfiles: self.rfiles + n * stat.rfiles,
            rsubdirs: self.rsubdirs + n * stat.rsubdirs,
            ..self
        }
    }
}

impl Mds {
    /// Carries a change in a directory to the root. All directories above are in memory.
    pub(crate) fn account(&mut self, dir: Ino, change: Change, stamp: Utime) {
        let mut at = Some(dir);
        while let Some(ino) = at {
            self.counts_change(ino);
            let Some(node) = self.nodes.get_mut(&ino) else { return };
            let inode = &mut node.inode;
            let names = ino == dir && change.names;
            if names {
                inode.dirstat.files += change.files;
                inode.dirstat.subdirs += change.subdirs;
                inode.dirstat.mtime = inode.dirstat.mtime.max(stamp);
                inode.dirstat.change_attr = inode.dirstat.change_attr.wrapping_add(1);
                inode.mtime = inode.mtime.max(stamp);
                inode.ctime = inode.ctime.max(stamp);
                inode.change_attr = inode.change_attr.wrapping_add(1);
            }
            inode.rstat.rbytes += change.rbytes;
            inode.rstat.rfiles += change.rfiles;
            inode.rstat.rsubdirs += change.rsubdirs;
            inode.rstat.rctime = inode.rstat.rctime.max(stamp);
            at = node.parent.as_ref().map(|(d, _)| *d);
            if names {
                self.touch_names(ino);
            } else {
                self.touch_counts(ino);
            }
        }
    }

    /// Notes that an inode changed at this time, and carries its size and that up to the root.
    pub(crate) fn changed(&mut self, ino: Ino, stamp: Utime) {
        let Some(node) = self.nodes.get_mut(&ino) else { return };
        let inode = &mut node.inode;
        inode.ctime = inode.ctime.max(stamp);
        inode.change_attr = inode.change_attr.wrapping_add(1);
        let before = inode.rstat;
        if inode.is_dir() {
            inode.rstat.rctime = inode.rstat.rctime.max(stamp);
        } else {
            inode.rstat = leaf(inode);
        }
        let change = Change::default().with(inode.rstat, 1).with(before, -1);
        let parent = node.parent.as_ref().map(|(d, _)| *d);
        self.touch(ino);
        if let Some(dir) = parent {
            self.account(dir, change, stamp);
        }
    }

    /// The space of what is made in a directory: its tenant.
    pub(crate) fn space_of(&self, dir: Ino) -> Space {
        let own = self.nodes.get(&dir).map_or(Space(0), |n| n.inode.space);
        if own != Space(0) {
            return own;
        }
        if dir.0 < 0x1000 {
            return Space::COMMON;
        }
        // A directory may have been in a subvolume's root before that became one.
        let above = self.nodes.get(&dir).and_then(|n| self.nodes.get(&n.parent.as_ref()?.0));
        match above.map_or(Space(0), |n| n.inode.space) {
            Space(0) => dir.space().tenant(),
            space => space,
        }
    }

    /// The nearest directory with a quota, from this one on, as far as it is in memory.
    pub(crate) fn quota_of(&self, ino: Ino) -> Option<(Ino, Quota, NestStat)> {
        let mut at = ino;
        loop {
            let node = self.nodes.get(&at)?;
            if node.inode.quota.is_set() {
                return Some((at, node.inode.quota, node.inode.rstat));
            }
            at = node.parent.as_ref()?.0;
        }
    }

    /// The directories with quotas from an inode up, and the root, as far as they are in memory.
    pub fn realms(&self, ino: Ino) -> Vec<Ino> {
        let (mut realms, mut at) = (Vec::new(), Some(ino));
        while let Some((ino, node)) = at.and_then(|a| Some((a, self.nodes.get(&a)?))) {
            if node.inode.quota.is_set() && ino != Ino::ROOT {
                realms.push(ino);
            }
            at = node.parent.as_ref().map(|(d, _)| *d);
        }
        realms.push(Ino::ROOT);
        realms
    }

    /// Directories with quotas that are in memory: limits, what they hold, and clients that have
    /// them.
    pub fn quota_roots(&self) -> Vec<(Ino, Quota, NestStat, Vec<ClientId>)> {
        let with = self.with_quota.iter().filter_map(|ino| Some((*ino, self.nodes.get(ino)?)));
        with.filter(|(_, n)| n.inode.quota.is_set())
            .map(|(ino, n)| (ino, n.inode.quota, n.inode.rstat, n.caps.keys().copied().collect()))
            .collect()
    }

    /// How many bytes may still be written below a directory; none if there is no limit.
    pub(crate) fn room_below(&self, dir: Ino) -> Option<u64> {
        let (mut room, mut at) = (None, Some(dir));
        while let Some(node) = at.and_then(|a| self.nodes.get(&a)) {
            let inode = &node.inode;
            if inode.quota.max_bytes > 0 {
                let used = u64::try_from(inode.rstat.rbytes).unwrap_or(0);
                let left = inode.quota.max_bytes.saturating_sub(used);
                room = Some(room.map_or(left, |r: u64| r.min(left)));
            }
            at = node.parent.as_ref().map(|(d, _)| *d);
        }
        room
    }

    /// Fails if so many more files and bytes are above a limit.
    pub(crate) fn check_quota(&mut self, dir: Ino, files: i64, bytes: i64) -> Exec<()> {
        // What was answered fitted then.
        if self.early.resent {
            return Ok(());
        }
        let mut at = Some(dir);
        while let Some(node) = at.and_then(|a| self.nodes.get(&a)) {
            let Inode { quota, rstat, .. } = &node.inode;
            let above = |limit: u64, used: i64, more: i64| {
                limit > 0 && more > 0 && u64::try_from(used + more).unwrap_or(0) > limit
            };
            // The directory itself counts, as it does for clients.
            if above(quota.max_files, rstat.rfiles + rstat.rsubdirs, files)
                || above(quota.max_bytes, rstat.rbytes, bytes)
            {
                self.look(at.unwrap_or_default());
                return fail(types::Errno::EDQUOT);
            }
            at = node.parent.as_ref().map(|(d, _)| *d);
        }
        Ok(())
    }
}
