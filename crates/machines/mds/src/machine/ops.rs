//! From a request to its answer.

use super::node::Link;
use super::operation::{Answer, Exec, OpState, Stop, fail};
use super::{Executed, Mds};
use crate::action::Action;
use crate::caps::{self, Group};
use crate::conf::Bug;
use crate::request::{Extra, FilePath, Lease, Op, Reply, Request, TraceDentry};
use crate::types::{Batch, ClientId, DirFrag, Ino, Name};
use bytes::Bytes;
use types::Errno;

/// The longest name.
const NAME_BYTES_MAX: usize = 255;
/// The longest path.
const PATH_BYTES_MAX: usize = 4_096;

/// Whether a name may be made.
pub(crate) fn check_name(name: &[u8]) -> Exec<()> {
    if name.len() > NAME_BYTES_MAX {
        return fail(Errno::ENAMETOOLONG);
    }
    if name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') || name.contains(&0)
    {
        return fail(Errno::EINVAL);
    }
    Ok(())
}

impl Mds {
    /// Carries a request out.
    pub(crate) fn execute(&mut self, state: &mut OpState, request: &Request) -> Exec<Answer> {
        let client = state.client;
        if request.path.path.len() > PATH_BYTES_MAX || request.path2.path.len() > PATH_BYTES_MAX {
            return fail(Errno::ENAMETOOLONG);
        }
        let done = self.sessions.get(&client).and_then(|s| s.record.completed.get(&request.tid));
        if let Some(made) = done.copied()
            && self.conf.bug != Bug::NoCompleted
        {
            return self.execute_again(client, request, made);
        }
        if request.op.is_write() && !state.resent {
            self.room_for_answer(state)?;
        }
        self.wishes(client, request);
        match &request.op {
            Op::Lookup { mask } => self.lookup(client, request, *mask),
            Op::Getattr { mask } => self.getattr(client, request, *mask),
            Op::LookupParent => self.lookup_parent(request),
            Op::LookupName => self.lookup_name(request),
            Op::Setattr(set) => self.setattr(client, request, set),
            Op::Setxattr { name, value, mode } => {
                self.setxattr(client, request, name, Some(value), *mode)
            }
            Op::Rmxattr { name } => {
                self.setxattr(client, request, name, None, crate::XattrMode::Replace)
            }
            Op::SetLayout(hints) => self.set_layout(client, request, hints),
            Op::SetDirLayout(hints) => self.set_dir_layout(request, hints),
            Op::Open { wanted, truncate } => {
                let ino = self.resolve(&request.path)?;
                self.room(state, Some(ino))?;
                self.open(client, request, ino, *wanted, *truncate)
            }
            Op::Create { .. } => {
                if !state.resent {
                    self.room(state, None)?;
                }
                self.make(state, request)
            }
            Op::Mknod { .. } | Op::Mkdir { .. } | Op::Symlink { .. } => self.make(state, request),
            Op::Link => self.link(state, request),
            Op::Unlink => self.unlink(state, request, false),
            Op::Rmdir => self.unlink(state, request, true),
            Op::Rename => self.rename(state, request),
            Op::Readdir { after, max_entries, max_bytes } => {
                self.readdir(state, request, after.as_ref(), *max_entries, *max_bytes)
            }
            Op::SetLock(lock) => self.set_lock(client, request, lock),
            Op::GetLock(lock) => self.get_lock(client, request, lock),
        }
    }

    /// A request that was done before its answer was lost.
    fn execute_again(&mut self, client: ClientId, request: &Request, made: Ino) -> Exec<Answer> {
        // All of it is durable when the entry of the request is.
        self.seen = self.log.newest();
        self.shows(self.seen);
        if request.replay.is_some() {
            return Ok(Answer::default());
        }
        match &request.op {
            Op::Create { wanted, .. } => {
                let ino = if made == Ino(0) { self.resolve(&request.path)? } else { made };
                self.passes(ino)?;
                self.inode(ino)?;
                if self.purging.contains(&ino) {
                    // A capability of it would be gone with it, and the client would not know.
                    return fail(Errno::ESTALE);
                }
                let (dir, name) = self.resolve_parent(&request.path)?;
                self.reads(client, dir, Group::File);
                self.settled()?;
                let link = self.entry(DirFrag::whole(dir), &name)?;
                let here = matches!(link, Link::Primary(i) | Link::Remote(i, _) if i == ino);
                Ok(Answer {
                    dentry: here.then_some((dir, name)),
                    target: Some(ino),
                    wanted: *wanted,
                    extra: if made == Ino(0) { Extra::None } else { Extra::Created(made) },
                    ..Answer::default()
                })
            }
            Op::Open { wanted, .. } => {
                let ino = self.resolve(&request.path)?;
                Ok(Answer { target: Some(ino), wanted: *wanted, ..Answer::default() })
            }
            _ => Ok(Answer::default()),
        }
    }

    /// The inode at a path.
    pub(crate) fn resolve(&mut self, path: &FilePath) -> Exec<Ino> {
        let mut at = path.ino;
        self.passes(at)?;
        if !self.is_mine(at) {
            return self.away(path.clone());
        }
        self.begin(at)?;
        self.passes(at)?;
        let mut to = 0;
        for name in path.path.split(|b| *b == b'/') {
            to += name.len() + 1;
            if name.is_empty() {
                continue;
            }
            let name = path.path.slice_ref(name);
            at = self.child(at, &name)?.map_or_else(|| fail(Errno::ENOENT), Ok)?;
            if !self.is_mine(at) {
                let rest = path.path.slice(to.min(path.path.len())..);
                return self.away(FilePath { ino: at, path: rest });
            }
        }
        Ok(at)
    }

    /// The directory of a path, and the name in it.
    pub(crate) fn resolve_parent(&mut self, path: &FilePath) -> Exec<(Ino, Name)> {
        let trimmed = path.path.iter().rposition(|b| *b != b'/').map_or(0, |p| p + 1);
        let full = path.path.slice(..trimmed);
        let cut = full.iter().rposition(|b| *b == b'/');
        let (above, name) = match cut {
            Some(cut) => (full.slice(..cut), full.slice(cut + 1..)),
            None => (Bytes::new(), full),
        };
        if name.is_empty() {
            return fail(Errno::EINVAL);
        }
        let dir = match self.resolve(&FilePath { ino: path.ino, path: above }) {
            Err(Stop::Away) => return self.away_below(&name),
            dir => dir?,
        };
        if !self.get(dir)?.is_dir() {
            return fail(Errno::ENOTDIR);
        }
        Ok((dir, name))
    }

    fn begin(&mut self, ino: Ino) -> Exec<()> {
        if ino.is_system() || ino == Ino(0) || self.purging.contains(&ino) {
            return fail(Errno::ESTALE);
        }
        self.inode(ino)?;
        self.look_through(ino);
        Ok(())
    }

    /// What a name in a directory stands for, in memory.
    pub(crate) fn child(&mut self, dir: Ino, name: &Name) -> Exec<Option<Ino>> {
        if !self.get(dir)?.is_dir() {
            return fail(Errno::ENOTDIR);
        }
        if name.len() > NAME_BYTES_MAX {
            return fail(Errno::ENAMETOOLONG);
        }
        self.unlocked(dir)?;
        let frag = DirFrag::whole(dir);
        match self.entry(frag, name)? {
            Link::Absent => Ok(None),
            Link::Primary(ino) => {
                self.passes(ino)?;
                self.look_through(ino);
                Ok(Some(ino))
            }
            Link::Remote(ino, _) if !self.is_mine(ino) => Ok(Some(ino)),
            Link::Remote(ino, _) => {
                self.inode(ino)?;
                self.passes(ino)?;
                self.reintegrate(frag, name, ino)?;
                self.look_through(ino);
                Ok(Some(ino))
            }
        }
    }

    /// Answers a request that was carried out.
    pub(crate) fn answer(&mut self, client: ClientId, request: &Request, answer: Answer) {
        if answer.wrote {
            let made = answer.made.unwrap_or(Ino(0));
            if let Some(session) = self.sessions.get_mut(&client) {
                session.record.completed.insert(request.tid, made);
            }
            self.log_completed(client, request.tid, made, request.oldest_tid);
        }
        let (wrote, made) = (answer.wrote, answer.made);
        let reply = match request.replay {
            Some(_) => {
                self.grant_again(client, &answer);
                Ok(Reply::bare(request.tid, 0))
            }
            None => self.make_reply(client, request, answer),
        };
        match reply {
            Ok(reply) => {
                let mut leaves = self.leaves_with(client, request, wrote);
                if self.conf.bug == Bug::EarlyRead && !wrote {
                    leaves = Batch(0);
                }
                self.send_reply(client, reply, leaves, wrote, made);
            }
            Err(Stop::Fail(errno)) => self.refuse(client, request, errno, false),
            Err(Stop::Wait | Stop::Away | Stop::Park(_)) => {
                self.refuse(client, request, Errno::EIO.0, false)
            }
        }
    }

    /// What a client was let by the answer to a request that is carried out again: it wrote to the
    /// file that it made.
    fn grant_again(&mut self, client: ClientId, answer: &Answer) {
        if let Some(ino) = answer.made {
            self.let_write(client, ino, 0);
        }
    }

    fn make_reply(&mut self, client: ClientId, request: &Request, answer: Answer) -> Exec<Reply> {
        let target = match answer.target {
            // Of another owner's inode there is a shadow at most.
            Some(dir) if let Some(page) = &answer.page => {
                Some(self.record_listed(client, dir, page.end)?)
            }
            Some(ino) if self.nodes.contains_key(&ino) || self.is_mine(ino) => {
                Some(self.record(client, ino, answer.wanted)?)
            }
            _ => None,
        };
        let dentry = match answer.dentry {
            Some((dir, name)) => {
                let stat = self.record(client, dir, 0)?;
                // A lease without an inode would say that there is no such name.
                let lease = target.as_ref().map(|_| self.lease(client, dir, &name));
                Some(TraceDentry { dir: stat, name, lease: lease.unwrap_or_default() })
            }
            None => None,
        };
        let mut extra = answer.extra;
        if let Some(page) = answer.page {
            let listed = answer.target;
            let mut entries = Vec::with_capacity(page.entries.len());
            for (name, ino, d_type) in page.entries {
                let (stat, lease) = if self.serves(ino) {
                    let stat = self.record(client, ino, 0)?;
                    let lease = listed.map(|dir| self.lease(client, dir, &name));
                    (stat, lease.unwrap_or_default())
                } else {
                    (self.shadow_record(ino, d_type), Lease::default())
                };
                entries.push((name, lease, stat));
            }
            extra = Extra::Page { end: page.end, complete: page.complete, entries };
        }
        Ok(Reply { tid: request.tid, result: 0, safe: true, dentry, target, extra })
    }

    /// Answers a request that failed.
    pub(crate) fn refuse(&mut self, client: ClientId, request: &Request, errno: i32, judged: bool) {
        // Stock clients ask again after that, but what they were answered before.
        let errno = match errno {
            errno if errno == Errno::ESTALE.0 && request.replay.is_some() => Errno::ENOENT.0,
            errno => errno,
        };
        let reply = Reply::bare(request.tid, -errno);
        // Of an inode that is gone nothing is left that says since when.
        if errno == Errno::ESTALE.0 {
            self.seen = self.seen.max(self.log.newest());
            self.shows(self.seen);
        }
        let leaves = match self.conf.bug {
            Bug::EarlyRead => Batch(0),
            _ => self.leaves_with(client, request, false),
        };
        if judged {
            return self.tell_answer(client, self.seen, reply, false);
        }
        self.send_reply(client, reply, leaves, false, None);
    }

    fn send_reply(
        &mut self,
        client: ClientId,
        reply: Reply,
        leaves: Batch,
        wrote: bool,
        made: Option<Ino>,
    ) {
        if self.conf.history {
            let (tid, result) = (reply.tid, reply.result);
            let batch = self.seen;
            let onward = None;
            self.history.push(Executed { client, tid, batch, wrote, made, result, onward });
        }
        self.tell_answer(client, leaves, reply, wrote);
    }

    fn tell_answer(&mut self, client: ClientId, leaves: Batch, reply: Reply, wrote: bool) {
        // Stock clients ask again after this one, with the same number.
        if reply.result != -Errno::ESTALE.0
            && self.conf.bug != Bug::AnswerTwice
            && let Some(session) = self.sessions.get_mut(&client)
        {
            session.is_answered(reply.tid);
        }
        let safe = if wrote { self.seen } else { leaves };
        self.tell_twice(client, leaves, safe, Action::Reply(client, Box::new(reply)));
    }

    /// Capabilities of a mask, as groups that a request reads, taken back from other clients.
    pub(crate) fn read_mask(&mut self, client: ClientId, ino: Ino, mask: u32) -> Exec<()> {
        if mask & caps::ALL & !caps::PIN != 0 || mask & caps::FILE_WREXTEND != 0 {
            self.reads_mask(client, ino, mask);
            self.settled()?;
        }
        if mask & (caps::FILE_SHARED | caps::FILE_RD | caps::FILE_WREXTEND) != 0 {
            self.look(ino);
        } else {
            self.look_through(ino);
        }
        Ok(())
    }
}
