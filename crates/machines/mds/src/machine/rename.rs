//! Renames: within a directory and across, of files, directories and names of inodes that live
//! elsewhere, over nothing and over something. One step, one batch of the log.

use super::Mds;
use super::node::Link;
use super::operation::{Answer, Exec, OpState, Stop, fail};
use super::ops::check_name;
use super::stats::{self, Change};
use crate::caps::Group;
use crate::peer::{Found, Half};
use crate::request::{FilePath, Request};
use crate::types::{ClientId, DirFrag, Ino, Name, Space, mode};
use types::Errno;

/// Whether names of such an inode are with its owner alone. A listing shows a symbolic link with
/// its target, which another owner does not know, and clients do not ask for it again.
pub(super) fn stays(d_type: u8) -> bool {
    matches!(u32::from(d_type) << 12, mode::DIR | mode::SYMLINK)
}

impl Mds {
    /// Moves `path2` to `path`.
    pub(crate) fn rename(&mut self, state: &mut OpState, request: &Request) -> Exec<Answer> {
        let client = state.client;
        let (from, old) = match self.resolve_parent(&request.path2) {
            Err(Stop::Away) => {
                let path = self.peers.onward.take().unwrap_or_default();
                let place = self.resolve_parent(&request.path)?;
                return self.rename_away(state, request, place, path);
            }
            from => from?,
        };
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
        if self.is_mine(ino) {
            self.chain(ino)?;
            self.permit(ino)?;
        }
        if over == Some(ino) {
            // Two names of one inode, or one name: nothing happens, and the answer is a stock
            // server's. Libcephfs looks the new name up and then takes the old one for gone, with
            // either server, until it loses the right to trust what it knows of the directory.
            return Ok(Answer::default());
        }
        if self.get(to)?.nlink == 0 {
            return fail(Errno::ENOENT);
        }
        let is_dir = self.is_dir(ino);
        self.may_move(ino, from, to)?;
        match (is_dir, over.map(|over| self.is_dir(over))) {
            (true, Some(false)) => return fail(Errno::ENOTDIR),
            (false, Some(true)) => return fail(Errno::EISDIR),
            _ => {}
        }
        let mut halves = Vec::new();
        match over {
            Some(over) if self.is_mine(over) => self.ready_over(client, over)?,
            Some(over) => {
                self.behind_trace(over)?;
                halves.push(self.taking(over));
            }
            None => {}
        }
        let stat = self.nodes.get(&ino).map(|n| stats::of(&n.inode)).unwrap_or_default();
        let (source, target) = (DirFrag::whole(from), DirFrag::whole(to));
        let link = self.entry(source, &old)?;
        let moved = matches!(link, Link::Primary(_));
        if from != to && moved {
            let same = self.quota_of(from).map(|q| q.0) == self.quota_of(to).map(|q| q.0);
            let files = if same { 0 } else { stat.rfiles + stat.rsubdirs };
            self.check_quota(to, files, if files == 0 { 0 } else { stat.rbytes })?;
        }
        if over.is_some_and(|over| self.has_more_names(over)) {
            self.take_names(client, from, to)?;
        }
        self.changes_names(client, (from, &old), (to, over.is_some().then_some(&new)));
        if self.is_mine(ino) {
            self.writes(client, ino, Group::Link);
        }
        self.settled()?;
        if halves.is_empty() {
            self.give_back(state);
        } else {
            self.prepare(state, request, halves)?;
        }
        self.take_over(to, &new, over, request)?;
        self.decide(state);
        if self.is_mine(ino) {
            self.changed(ino, request.stamp);
        }
        let stat = self.nodes.get(&ino).map(|n| stats::of(&n.inode)).unwrap_or_default();
        self.set_link(source, &old, Link::Absent);
        self.set_link(target, &new, link);
        let mut change = Change::name(is_dir, 1);
        // Pins above the directory may be others now.
        self.peers.choose_all |= is_dir && self.space_of(from) == Space::COMMON;
        if is_dir {
            self.rules_change();
        }
        if moved {
            if let Some(node) = self.nodes.get_mut(&ino) {
                node.parent = Some((to, new.clone()));
            }
            self.placed(ino);
            change = change.with(stat, 1);
        }
        if !self.forgets_rename() {
            self.account(from, change.back(), request.stamp);
        }
        self.account(to, change, request.stamp);
        Ok(Answer { dentry: Some((to, new)), target: Some(ino), wrote: true, ..Answer::default() })
    }

    /// Notes that a rename changes the names of both directories: one goes, and perhaps one is
    /// replaced.
    fn changes_names(&mut self, client: ClientId, from: (Ino, &Name), to: (Ino, Option<&Name>)) {
        self.writes(client, from.0, Group::File);
        self.writes(client, to.0, Group::File);
        self.takes_name(from.0, from.1);
        if let Some(name) = to.1 {
            self.takes_name(to.0, name);
        }
    }

    /// Fails unless an inode may be moved.
    fn may_move(&self, ino: Ino, from: Ino, to: Ino) -> Exec<()> {
        if self.space_of(from) != self.space_of(to) {
            return fail(Errno::EXDEV);
        }
        if !self.is_dir(ino) {
            return Ok(());
        }
        // Two such renames at once could put two directories below each other.
        if from != to && self.part_of(from) != self.part_of(to) {
            return fail(Errno::EXDEV);
        }
        // A directory that is older than its subvolume belongs to that by its place alone.
        let older = ino.space().tenant() != self.space_of(from);
        if from != to && older && self.get(ino)?.space == Space(0) {
            return fail(Errno::EXDEV);
        }
        if self.is_below(to, ino) { fail(Errno::EINVAL) } else { Ok(()) }
    }

    /// Whether an inode that loses a name may have others.
    fn has_more_names(&self, over: Ino) -> bool {
        !self.is_dir(over)
            && self.nodes.get(&over).is_none_or(|n| !self.is_mine(over) || n.inode.nlink > 1)
    }

    /// Has the client of a rename give back what lets it trust its names in both directories.
    /// Libcephfs drops all names of an inode that was replaced, and holds them for gone.
    fn take_names(&mut self, client: ClientId, from: Ino, to: Ino) -> Exec<()> {
        self.takes(client, from, Group::File);
        self.takes(client, to, Group::File);
        self.settled()
    }

    /// Makes sure that the name of an inode of this owner could be taken by a rename.
    fn ready_over(&mut self, client: ClientId, over: Ino) -> Exec<()> {
        let there = self.get(over)?;
        let is_dir = there.is_dir();
        if is_dir {
            self.unlocked(over)?;
        }
        self.look(over);
        let there = self.get(over)?;
        if is_dir && there.dirstat.files + there.dirstat.subdirs != 0 {
            return fail(Errno::ENOTEMPTY);
        }
        self.chain(over)?;
        self.stray_ready(over)?;
        self.writes(client, over, Group::Link);
        if is_dir {
            self.writes(client, over, Group::File);
        }
        Ok(())
    }

    /// Takes the name that a rename replaces, if there is one.
    fn take_over(&mut self, to: Ino, new: &Name, over: Option<Ino>, request: &Request) -> Exec<()> {
        match over {
            None => Ok(()),
            Some(over) if self.is_mine(over) => self.take_name(to, new, over, request),
            Some(over) => {
                self.drop_name(to, new, over, request);
                Ok(())
            }
        }
    }

    /// Moves a name of another owner's directory here. The inode stays where it is.
    fn rename_away(
        &mut self,
        state: &mut OpState,
        request: &Request,
        (to, new): (Ino, Name),
        path: FilePath,
    ) -> Exec<Answer> {
        let client = state.client;
        check_name(&new)?;
        self.chain(to)?;
        self.permit(to)?;
        self.reads(client, to, Group::File);
        self.settled()?;
        let over = self.child(to, &new)?;
        let mut halves = vec![(self.asked_of(path.ino), Half::Take(path))];
        match over {
            // The answer is an error, or nothing happens.
            Some(over) if self.is_dir(over) => {}
            Some(over) if self.is_mine(over) => self.ready_over(client, over)?,
            Some(over) => halves.push(self.taking(over)),
            None => {}
        }
        self.writes(client, to, Group::File);
        if over.is_some() {
            self.takes_name(to, &new);
        }
        self.settled()?;
        let found = self.prepare(state, request, halves)?;
        let Some(&Found { ino, d_type }) = found.first() else { return fail(Errno::EIO) };
        if self.is_mine(ino) {
            // Its name was elsewhere. The answer shows it.
            self.inode(ino)?;
        }
        if over == Some(ino) {
            // Two names of one inode: nothing happens, and the answer shows no name.
            return Ok(Answer::default());
        }
        if self.get(to)?.nlink == 0 {
            return fail(Errno::ENOENT);
        }
        if stays(d_type) {
            return fail(Errno::EXDEV);
        }
        if over.is_some_and(|over| self.is_dir(over)) {
            return fail(Errno::EISDIR);
        }
        self.crosses(to)?;
        self.check_quota(to, 1, 0)?;
        self.take_over(to, &new, over, request)?;
        self.set_link(DirFrag::whole(to), &new, Link::Remote(ino, d_type));
        self.account(to, Change::name(false, 1), request.stamp);
        self.decide(state);
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
