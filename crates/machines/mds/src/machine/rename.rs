//! Renames: within a directory and across, of files, directories and names of inodes that live
//! elsewhere, over nothing and over something. One step, one batch of the log.

use super::cache::Link;
use super::ops::{Answer, check_name};
use super::stats::{self, Change};
use super::{Exec, Mds, fail};
use crate::caps::Group;
use crate::request::Request;
use crate::types::{ClientId, DirFrag, Ino, Space};
use types::Errno;

impl Mds {
    /// Moves `path2` to `path`.
    pub(crate) fn rename(&mut self, client: ClientId, request: &Request) -> Exec<Answer> {
        let (from, old) = self.resolve_parent(&request.path2)?;
        let (to, new) = self.resolve_parent(&request.path)?;
        check_name(&new)?;
        self.chain(from)?;
        self.chain(to)?;
        self.permit(from)?;
        self.permit(to)?;
        self.reads(client, from, Group::File);
        self.reads(client, to, Group::File);
        self.settled()?;
        let Some(ino) = self.child(from, &old)? else { return fail(Errno::ENOENT) };
        let over = self.child(to, &new)?;
        self.chain(ino)?;
        self.permit(ino)?;
        if over == Some(ino) {
            // Two names of one inode, or one name: nothing happens.
            return Ok(Answer { dentry: Some((to, new)), target: Some(ino), ..Answer::default() });
        }
        if self.get(to)?.nlink == 0 {
            return fail(Errno::ENOENT);
        }
        if self.space_of(from) != self.space_of(to) {
            return fail(Errno::EXDEV);
        }
        let is_dir = self.get(ino)?.is_dir();
        // A directory that is older than its subvolume belongs to that by its place alone.
        let older = ino.space() != self.space_of(from) && self.get(ino)?.space == Space(0);
        if is_dir && from != to && older {
            return fail(Errno::EXDEV);
        }
        if is_dir && self.is_below(to, ino) {
            return fail(Errno::EINVAL);
        }
        if let Some(over) = over {
            let there = self.get(over)?;
            match (is_dir, there.is_dir()) {
                (true, false) => return fail(Errno::ENOTDIR),
                (false, true) => return fail(Errno::EISDIR),
                (true, true) if there.dirstat.files + there.dirstat.subdirs != 0 => {
                    return fail(Errno::ENOTEMPTY);
                }
                _ => {}
            }
            self.chain(over)?;
            self.stray_ready(over)?;
            self.writes(client, over, Group::Link);
            if is_dir {
                self.writes(client, over, Group::File);
            }
        }
        let stat = stats::of(self.get(ino)?);
        let (source, target) = (DirFrag::whole(from), DirFrag::whole(to));
        let link = self.entry(source, &old)?;
        let moved = matches!(link, Link::Primary(_));
        if from != to && moved {
            let below = stat.rfiles + stat.rsubdirs;
            let files = if self.quota_of(from).map(|q| q.0) == self.quota_of(to).map(|q| q.0) {
                0
            } else {
                below
            };
            self.check_quota(to, files, if files == 0 { 0 } else { stat.rbytes })?;
        }
        self.writes(client, from, Group::File);
        self.writes(client, to, Group::File);
        self.writes(client, ino, Group::Link);
        self.settled()?;
        if let Some(over) = over {
            self.take_name(to, &new, over, request)?;
        }
        self.changed(ino, request.stamp);
        let stat = stats::of(self.get(ino)?);
        self.set_link(source, &old, Link::Absent);
        self.set_link(target, &new, link);
        let mut change = Change::name(is_dir, 1);
        if moved {
            if let Some(node) = self.nodes.get_mut(&ino) {
                node.parent = Some((to, new.clone()));
            }
            self.placed(ino);
            change = change.with(stat, 1);
        }
        let back = Change {
            files: -change.files,
            subdirs: -change.subdirs,
            rbytes: -change.rbytes,
            rfiles: -change.rfiles,
            rsubdirs: -change.rsubdirs,
            names: true,
        };
        if !self.forgets_rename() {
            self.account(from, back, request.stamp);
        }
        self.account(to, change, request.stamp);
        Ok(Answer { dentry: Some((to, new)), target: Some(ino), wrote: true, ..Answer::default() })
    }

    /// Whether a directory is another one or below it. All above it is in memory.
    fn is_below(&self, dir: Ino, above: Ino) -> bool {
        let mut at = Some(dir);
        while let Some(ino) = at {
            if ino == above {
                return true;
            }
            at = self.nodes.get(&ino).and_then(|n| n.parent.as_ref()).map(|(d, _)| *d);
        }
        false
    }
}
