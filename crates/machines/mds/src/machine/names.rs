//! Names: made, found, listed and taken away.

use super::Mds;
use super::node::Link;
use super::operation::{Answer, Exec, OpState, Page, Stop, fail};
use super::ops::check_name;
use super::stats::{self, Change};
use crate::caps::Group;
use crate::conf::Bug;
use crate::peer::{Found, Half};
use crate::request::{Extra, FilePath, LayoutHints, Op, Request};
use crate::types::{Batch, ClientId, DirFrag, Ino, Inode, Name, NestStat, Space, mode};
use bytes::Bytes;
use types::Errno;

/// Bytes that a name takes in a page, about, its record included.
const RECORD_BYTES: usize = 512;
/// Names of a page where others change names meanwhile: they wait while it is made.
const SHARED_PAGE: usize = 256;
/// The longest target of a symbolic link.
const TARGET_BYTES_MAX: usize = 4_095;
/// The most names that an inode may have.
pub(crate) const LINKS_MAX: u32 = 65_000;

impl Mds {
    /// A name, and the attributes of what it stands for.
    pub(crate) fn lookup(
        &mut self,
        client: ClientId,
        request: &Request,
        mask: u32,
    ) -> Exec<Answer> {
        let (dir, name) = self.resolve_parent(&request.path)?;
        self.reads(client, dir, Group::File);
        self.settled()?;
        let ino = self.child(dir, &name)?;
        let Some(ino) = ino else { return fail(Errno::ENOENT) };
        if !self.is_mine(ino) {
            return self.away(FilePath { ino, path: Name::new() });
        }
        self.permit(ino)?;
        self.read_mask(client, ino, mask)?;
        Ok(Answer { dentry: Some((dir, name)), target: Some(ino), ..Answer::default() })
    }

    /// The directory that holds an inode.
    pub(crate) fn lookup_parent(&mut self, request: &Request) -> Exec<Answer> {
        let ino = self.resolve(&request.path)?;
        let parent = self.nodes.get(&ino).and_then(|n| n.parent.clone());
        let Some((dir, _)) = parent.filter(|(d, _)| !d.is_system()) else {
            return fail(Errno::ENOENT);
        };
        self.inode(dir)?;
        self.permit(dir)?;
        Ok(Answer { target: Some(dir), ..Answer::default() })
    }

    /// The name of an inode.
    pub(crate) fn lookup_name(&mut self, request: &Request) -> Exec<Answer> {
        let ino = self.resolve(&request.path)?;
        let parent = self.nodes.get(&ino).and_then(|n| n.parent.clone());
        let Some((dir, name)) = parent.filter(|(d, _)| !d.is_system()) else {
            return fail(Errno::ENOENT);
        };
        self.inode(dir)?;
        self.permit(ino)?;
        Ok(Answer { dentry: Some((dir, name)), target: Some(ino), ..Answer::default() })
    }

    /// Makes something under a new name.
    pub(crate) fn make(&mut self, state: &mut OpState, request: &Request) -> Exec<Answer> {
        let client = state.client;
        let (dir, name) = self.resolve_parent(&request.path)?;
        check_name(&name)?;
        self.chain(dir)?;
        self.permit(dir)?;
        self.reads(client, dir, Group::File);
        self.settled()?;
        if let Some(ino) = self.child(dir, &name)? {
            if let Op::Create { wanted, exclusive: false, truncate, .. } = &request.op {
                // As open(2) with O_CREAT. A client that knows the name does not ask.
                if self.is_dir(ino) {
                    return fail(Errno::EISDIR);
                }
                if !self.is_mine(ino) {
                    return self.away(FilePath { ino, path: Name::new() });
                }
                let (wanted, truncate) = (*wanted, *truncate);
                let answer = self.open(client, request, ino, wanted, truncate)?;
                return Ok(Answer { dentry: Some((dir, name)), ..answer });
            }
            return fail(Errno::EEXIST);
        }
        if self.get(dir)?.nlink == 0 {
            return fail(Errno::ENOENT);
        }
        self.check_quota(dir, 1, 0)?;
        let mut inode = self.blank(dir, request)?;
        self.writes(client, dir, Group::File);
        self.settled()?;
        let is_dir = inode.is_dir();
        // What was answered early was made here, whatever pins and owners there are now.
        let elsewhere = is_dir && !(state.resent && request.replay != Some(Ino(0)));
        let (owner, random) = match elsewhere {
            true => self.place(client, request, dir, &name),
            false => (self.conf.rank, Default::default()),
        };
        let ino = if owner == self.conf.rank {
            // What was asked of another owner, before a pin was changed, is not decided.
            self.give_back(state);
            let space = self.space_of(dir);
            match self.told_number(state, request, space)? {
                Some(ino) => ino,
                None => self.new_ino(space),
            }
        } else {
            let layout = self.layout_of(dir);
            let half = Half::Make { inode: Box::new(inode.clone()), layout, random };
            let found = self.prepare(state, request, vec![(owner, half)])?;
            found.first().map_or_else(|| fail(Errno::EIO), |f| Ok(f.ino))?
        };
        inode.ino = ino;
        self.early.made = Some(ino);
        let frag = DirFrag::whole(dir);
        let stat = stats::of(&inode);
        // Its change is noted as it gets its place.
        self.insert_node(inode, Some((dir, name.clone())), Batch(0));
        if is_dir && self.is_mine(ino) {
            self.dir_mut(DirFrag::whole(ino)).complete = true;
        }
        self.decide(state);
        self.set_link(frag, &name, Link::Primary(ino));
        self.placed(ino);
        self.account(dir, Change::name(is_dir, 1).with(stat, 1), request.stamp);
        let wanted = if let Op::Create { wanted, .. } = &request.op { *wanted } else { 0 };
        Ok(Answer {
            dentry: Some((dir, name)),
            target: Some(ino),
            wanted,
            extra: if matches!(request.op, Op::Create { .. }) {
                Extra::Created(ino)
            } else {
                Extra::None
            },
            wrote: true,
            made: Some(ino),
            ..Answer::default()
        })
    }

    /// A new inode without a number.
    fn blank(&self, dir: Ino, request: &Request) -> Exec<Inode> {
        let above = self.get(dir)?;
        let stamp = request.stamp;
        let none = LayoutHints::default();
        let (kind, perm, rdev, hints, target) = match &request.op {
            Op::Create { mode: m, layout, .. } => (mode::FILE, *m, 0, layout, Bytes::new()),
            Op::Mknod { mode: m, rdev } => {
                let kind = if m & mode::TYPE == 0 { mode::FILE } else { m & mode::TYPE };
                (kind, *m, *rdev, &none, Bytes::new())
            }
            Op::Mkdir { mode: m } => (mode::DIR, *m, 0, &none, Bytes::new()),
            Op::Symlink { target } => (mode::SYMLINK, 0o777, 0, &none, target.clone()),
            _ => return fail(Errno::EINVAL),
        };
        if kind == mode::DIR && !matches!(request.op, Op::Mkdir { .. }) {
            return fail(Errno::EINVAL);
        }
        if target.len() > TARGET_BYTES_MAX {
            return fail(Errno::ENAMETOOLONG);
        }
        let (mut gid, mut bits) = (request.gid, perm & !mode::TYPE);
        if above.mode & mode::SETGID != 0 {
            gid = above.gid;
            if kind == mode::DIR {
                bits |= mode::SETGID;
            }
        }
        let mut layout = None;
        // Of what is no directory, the layout says where its backtrace is, too.
        if kind != mode::DIR {
            let base = self.layout_of(dir).unwrap_or_default();
            layout = Some(self.with_hints(base, hints)?);
        }
        let size = target.len() as u64;
        let mut inode = Inode {
            rdev,
            mode: kind | bits,
            uid: request.uid,
            gid,
            nlink: 1,
            ctime: stamp,
            btime: stamp,
            mtime: stamp,
            atime: stamp,
            layout,
            size,
            max_size_ever: size,
            truncate_seq: 1,
            truncate_size: u64::MAX,
            xattr_version: 1,
            symlink: target,
            ..Inode::default()
        };
        inode.rstat = if kind == mode::DIR {
            NestStat { rctime: stamp, rsubdirs: 1, ..NestStat::default() }
        } else {
            stats::leaf(&inode)
        };
        Ok(inode)
    }

    /// Gives an inode another name.
    pub(crate) fn link(&mut self, state: &mut OpState, request: &Request) -> Exec<Answer> {
        let client = state.client;
        let (dir, name) = self.resolve_parent(&request.path)?;
        check_name(&name)?;
        let ino = match self.resolve(&request.path2) {
            Err(Stop::Away) => return self.link_away(state, request, dir, name),
            ino => ino?,
        };
        self.chain(dir)?;
        self.chain(ino)?;
        self.permit(dir)?;
        self.permit(ino)?;
        self.reads(client, dir, Group::File);
        self.settled()?;
        if self.child(dir, &name)?.is_some() {
            return fail(Errno::EEXIST);
        }
        let inode = self.get(ino)?;
        if inode.is_dir() {
            return fail(Errno::EPERM);
        }
        if inode.nlink == 0 || self.get(dir)?.nlink == 0 {
            return fail(Errno::ENOENT);
        }
        if inode.nlink >= LINKS_MAX {
            return fail(Errno::EMLINK);
        }
        if self.home(ino)? != self.space_of(dir) {
            return fail(Errno::EXDEV);
        }
        self.check_quota(dir, 1, 0)?;
        self.writes(client, dir, Group::File);
        self.writes(client, ino, Group::Link);
        self.settled()?;
        let Some(node) = self.nodes.get_mut(&ino) else { return fail(Errno::EIO) };
        node.inode.nlink += 1;
        let d_type = node.inode.d_type();
        self.changed(ino, request.stamp);
        self.set_link(DirFrag::whole(dir), &name, Link::Remote(ino, d_type));
        self.account(dir, Change::name(false, 1), request.stamp);
        Ok(Answer {
            dentry: Some((dir, name)),
            target: Some(ino),
            wrote: true,
            ..Answer::default()
        })
    }

    /// Gives another owner's inode a name here.
    fn link_away(
        &mut self,
        state: &mut OpState,
        request: &Request,
        dir: Ino,
        name: Name,
    ) -> Exec<Answer> {
        let Some(path) = self.peers.onward.take() else { return fail(Errno::EIO) };
        let client = state.client;
        self.chain(dir)?;
        self.permit(dir)?;
        self.reads(client, dir, Group::File);
        self.settled()?;
        if self.child(dir, &name)?.is_some() {
            return fail(Errno::EEXIST);
        }
        self.writes(client, dir, Group::File);
        self.settled()?;
        let halves = vec![(self.asked_of(path.ino), Half::Link(path))];
        let found = self.prepare(state, request, halves)?;
        let Some(&Found { ino, d_type }) = found.first() else { return fail(Errno::EIO) };
        if super::rename::stays(d_type) {
            return fail(Errno::EXDEV);
        }
        if self.get(dir)?.nlink == 0 {
            return fail(Errno::ENOENT);
        }
        self.crosses(dir)?;
        self.check_quota(dir, 1, 0)?;
        self.set_link(DirFrag::whole(dir), &name, Link::Remote(ino, d_type));
        self.account(dir, Change::name(false, 1), request.stamp);
        self.decide(state);
        let (dentry, target) = (Some((dir, name)), Some(ino));
        Ok(Answer { dentry, target, wrote: true, ..Answer::default() })
    }

    /// Whether an inode that was found by its name is a directory. Names of inodes that live
    /// elsewhere are never of directories.
    pub(crate) fn is_dir(&self, ino: Ino) -> bool {
        self.nodes.get(&ino).is_some_and(|n| n.inode.is_dir())
    }

    /// The half that takes the name of another owner's inode.
    pub(crate) fn taking(&self, ino: Ino) -> (crate::types::Rank, Half) {
        let half = if self.is_dir(ino) { Half::Remove(ino) } else { Half::Unlink(ino) };
        (self.asked_of(ino), half)
    }

    /// Takes the name of another owner's inode.
    fn unlink_away(
        &mut self,
        state: &mut OpState,
        request: &Request,
        (dir, name): (Ino, Name),
        ino: Ino,
    ) -> Exec<Answer> {
        self.behind_trace(ino)?;
        self.writes(state.client, dir, Group::File);
        self.takes_name(dir, &name);
        self.settled()?;
        let half = self.taking(ino);
        self.prepare(state, request, vec![half])?;
        self.behind_trace(ino)?;
        self.drop_name(dir, &name, ino, request);
        self.decide(state);
        Ok(Answer { dentry: Some((dir, name)), wrote: true, ..Answer::default() })
    }

    /// Waits while the backtrace of another owner's inode is being written: it removes that when
    /// the name is gone.
    pub(crate) fn behind_trace(&mut self, ino: Ino) -> Exec<()> {
        if !self.is_writing_backtrace(ino) {
            return Ok(());
        }
        self.peers.behind_traces.push(self.current);
        Err(Stop::Wait)
    }

    /// Removes the name of another owner's inode, with the shadow.
    pub(crate) fn drop_name(&mut self, dir: Ino, name: &Name, ino: Ino, request: &Request) {
        let shadow = self.nodes.remove(&ino);
        let mut change = Change::name(shadow.is_some(), -1);
        if let Some(shadow) = shadow {
            self.backtraces.remove(&ino);
            self.root_is_removed(ino);
            change = change.with(stats::of(&shadow.inode), -1);
        }
        self.set_link(DirFrag::whole(dir), name, Link::Absent);
        self.account(dir, change, request.stamp);
    }

    /// The space of the directory that an inode lives in.
    pub(crate) fn home(&self, ino: Ino) -> Exec<Space> {
        let parent = self.nodes.get(&ino).and_then(|n| n.parent.as_ref()).map(|(d, _)| *d);
        Ok(match parent {
            Some(dir) if dir.is_stray_dir() => ino.space().tenant(),
            Some(dir) => self.space_of(dir),
            None => Space::COMMON,
        })
    }

    /// Takes a name away, with the inode if it is the last one.
    pub(crate) fn unlink(
        &mut self,
        state: &mut OpState,
        request: &Request,
        rmdir: bool,
    ) -> Exec<Answer> {
        let client = state.client;
        let (dir, name) = self.resolve_parent(&request.path)?;
        self.chain(dir)?;
        self.permit(dir)?;
        self.reads(client, dir, Group::File);
        self.settled()?;
        let Some(ino) = self.child(dir, &name)? else { return fail(Errno::ENOENT) };
        match (rmdir, self.is_dir(ino)) {
            (true, false) => return fail(Errno::ENOTDIR),
            (false, true) => return fail(Errno::EISDIR),
            _ => {}
        }
        if !self.is_mine(ino) {
            return self.unlink_away(state, request, (dir, name), ino);
        }
        if rmdir {
            self.unlocked(ino)?;
            self.look(ino);
            let inode = self.get(ino)?;
            if inode.dirstat.files + inode.dirstat.subdirs != 0 {
                return fail(Errno::ENOTEMPTY);
            }
            self.writes(client, ino, Group::File);
        }
        self.chain(ino)?;
        self.stray_ready(ino)?;
        self.writes(client, dir, Group::File);
        self.writes(client, ino, Group::Link);
        self.takes_name(dir, &name);
        self.settled()?;
        self.take_name(dir, &name, ino, request)?;
        Ok(Answer { dentry: Some((dir, name)), wrote: true, ..Answer::default() })
    }

    /// Removes a name of an inode. All that it needs is in memory.
    pub(crate) fn take_name(
        &mut self,
        dir: Ino,
        name: &Name,
        ino: Ino,
        request: &Request,
    ) -> Exec<()> {
        let frag = DirFrag::whole(dir);
        let primary = matches!(self.entry(frag, name)?, Link::Primary(_));
        let Some(node) = self.nodes.get_mut(&ino) else { return fail(Errno::EIO) };
        let is_dir = node.inode.is_dir();
        node.inode.nlink = node.inode.nlink.saturating_sub(1);
        let nlink = node.inode.nlink;
        if nlink == 0 {
            self.judge.insert(ino);
        }
        self.changed(ino, request.stamp);
        let stat = stats::of(self.get(ino)?);
        self.set_link(frag, name, Link::Absent);
        let change = Change::name(is_dir, -1);
        if primary {
            self.make_stray(ino, request.stamp);
            self.account(dir, change.with(stat, -1), request.stamp);
        } else {
            self.account(dir, change, request.stamp);
            if nlink == 0 {
                self.note_purgeable(ino);
            }
        }
        Ok(())
    }

    /// A page of a directory, in the order of names.
    pub(crate) fn readdir(
        &mut self,
        state: &mut OpState,
        request: &Request,
        after: Option<&Name>,
        max_entries: u32,
        max_bytes: u32,
    ) -> Exec<Answer> {
        let client = state.client;
        let dir = self.resolve(&request.path)?;
        if !self.get(dir)?.is_dir() {
            return fail(Errno::ENOTDIR);
        }
        self.permit(dir)?;
        self.reads(client, dir, Group::File);
        self.settled()?;
        let frag = DirFrag::whole(dir);
        let changes = self.dir_mut(frag).changes;
        let skipped = state.skip.take().filter(|(_, c)| *c == changes);
        let first = after.is_none();
        let after = skipped.as_ref().map(|(name, _)| name).or(after);
        state.skip = skipped.clone();
        let have = self.page(frag, after, &state.have)?;
        let limit = |n: u32| if n == 0 { usize::MAX } else { n as usize };
        let shared = if self.is_shared(dir) { SHARED_PAGE } else { usize::MAX };
        let most = limit(max_entries).min(self.conf.page_entries_max as usize).min(shared);
        let bytes = limit(max_bytes);
        use std::ops::Bound::{Excluded, Included, Unbounded};
        let from = after.map_or(Unbounded, Excluded);
        let to = have.upto.as_ref().map_or(Unbounded, Included);
        // A page that was read may end before the last name of the one before, after removals.
        let empty = matches!((&after, &have.upto), (Some(a), Some(u)) if *a >= u);
        let mut found: Vec<(Name, Link)> = Vec::new();
        let mut more = have.upto.is_some();
        if !empty {
            let events = self.events;
            let d = self.dir_mut(frag);
            let mut size = 0;
            for (name, entry) in d.entries.range_mut::<Name, _>((from, to)) {
                entry.used = true;
                entry.used_at = events;
                if entry.link == Link::Absent {
                    continue;
                }
                size += name.len() + RECORD_BYTES;
                if found.len() >= most || (size > bytes && !found.is_empty()) {
                    more = true;
                    break;
                }
                found.push((name.clone(), entry.link));
            }
        }
        let mut entries = Vec::with_capacity(found.len());
        for (name, link) in found {
            match link {
                Link::Primary(ino) => entries.push((name, ino, 0)),
                Link::Remote(ino, d_type) => {
                    if self.is_mine(ino) {
                        self.inode(ino)?;
                    }
                    entries.push((name, ino, d_type));
                }
                Link::Absent => {}
            }
        }
        if entries.is_empty() && more {
            // All of the page is gone, in memory: go on behind it.
            state.skip = have.upto.clone().map(|name| (name, changes));
            return self.readdir(state, request, after, max_entries, max_bytes);
        }
        self.may_list(client, dir, !more)?;
        let complete = first && !more;
        Ok(Answer {
            target: Some(dir),
            page: Some(Page { entries, end: !more, complete }),
            ..Answer::default()
        })
    }

    /// Whether statistics of a rename are left as they were, to see that tests find it.
    pub(crate) fn forgets_rename(&self) -> bool {
        self.conf.bug == Bug::RenameStats
    }
}
