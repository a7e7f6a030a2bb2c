//! Locks of files that clients ask for (`flock` and `fcntl`). They are the server's: a server that
//! takes over hears of them from the clients that hold them.

use super::ops::Answer;
use super::{Exec, Mds, OpId, Stop, fail};
use crate::request::{Extra, FileLock, LockKind, LockRequest, LockType, Request};
use crate::types::{ClientId, Ino};
use types::Errno;

/// Locks of an inode.
#[derive(Clone, Default, Debug)]
pub(crate) struct Locks {
    posix: Vec<FileLock>,
    flock: Vec<FileLock>,
    /// Requests that wait for any of them.
    waiting: Vec<(OpId, LockKind, FileLock)>,
}

/// The byte behind a lock.
fn end(lock: &FileLock) -> u64 {
    if lock.length == 0 { u64::MAX } else { lock.start.saturating_add(lock.length) }
}

fn same_owner(a: &FileLock, b: &FileLock) -> bool {
    (a.client, a.owner) == (b.client, b.owner)
}

fn overlap(a: &FileLock, b: &FileLock) -> bool {
    a.start < end(b) && b.start < end(a)
}

impl Locks {
    fn list(&mut self, rule: LockKind) -> &mut Vec<FileLock> {
        match rule {
            LockKind::Posix => &mut self.posix,
            LockKind::Flock => &mut self.flock,
        }
    }

    /// Whether there are none, and no request waits.
    pub fn is_empty(&self) -> bool {
        self.posix.is_empty() && self.flock.is_empty() && self.waiting.is_empty()
    }

    /// The lock that is in the way of one.
    fn in_the_way(&mut self, rule: LockKind, lock: &FileLock) -> Option<FileLock> {
        self.list(rule)
            .iter()
            .find(|l| {
                !same_owner(l, lock)
                    && overlap(l, lock)
                    && (l.kind == LockType::Exclusive || lock.kind == LockType::Exclusive)
            })
            .copied()
    }

    /// Sets a lock over what its owner has, or takes a range back.
    pub fn put(&mut self, rule: LockKind, lock: FileLock) {
        let list = self.list(rule);
        let mut kept = Vec::with_capacity(list.len() + 2);
        for l in list.drain(..) {
            if !same_owner(&l, &lock) || !overlap(&l, &lock) {
                kept.push(l);
                continue;
            }
            if l.start < lock.start {
                kept.push(FileLock { length: lock.start - l.start, ..l });
            }
            if end(&l) > end(&lock) {
                let start = end(&lock);
                let length = if end(&l) == u64::MAX { 0 } else { end(&l) - start };
                kept.push(FileLock { start, length, ..l });
            }
        }
        if lock.kind != LockType::Unlock {
            kept.push(lock);
        }
        kept.sort();
        *list = kept;
    }

    /// Whether waiting for `other` would, over the owners that each other waits for, lead back to
    /// the owner of `lock`. Locks of other files are not looked at.
    fn is_ring(&self, lock: &FileLock, other: &FileLock) -> bool {
        let mut seen = Vec::new();
        let mut next = vec![*other];
        while let Some(holder) = next.pop() {
            if same_owner(&holder, lock) {
                return true;
            }
            if seen.contains(&(holder.client, holder.owner)) {
                continue;
            }
            seen.push((holder.client, holder.owner));
            for (_, rule, wish) in &self.waiting {
                if *rule == LockKind::Posix && same_owner(wish, &holder) {
                    next.extend(self.posix.iter().filter(|l| {
                        !same_owner(l, wish)
                            && overlap(l, wish)
                            && (l.kind == LockType::Exclusive || wish.kind == LockType::Exclusive)
                    }));
                }
            }
        }
        false
    }
}

impl Mds {
    /// Takes a lock, gives one back, or waits.
    pub(crate) fn set_lock(
        &mut self,
        client: ClientId,
        request: &Request,
        wish: &LockRequest,
    ) -> Exec<Answer> {
        let ino = self.resolve(&request.path)?;
        self.permit(ino)?;
        let lock = FileLock { client, ..wish.lock };
        let op = self.current;
        if wish.interrupt {
            self.interrupt(ino, wish.rule, &lock);
            return Ok(Answer::default());
        }
        let Some(node) = self.nodes.get_mut(&ino) else { return fail(Errno::EIO) };
        let locks = node.locks.get_or_insert_default();
        locks.waiting.retain(|(o, _, _)| *o != op);
        if lock.kind != LockType::Unlock
            && let Some(other) = locks.in_the_way(wish.rule, &lock)
        {
            if !wish.wait {
                self.tidy_locks(ino);
                return fail(Errno::EAGAIN);
            }
            if wish.rule == LockKind::Posix && locks.is_ring(&lock, &other) {
                self.tidy_locks(ino);
                return fail(Errno::EDEADLK);
            }
            locks.waiting.push((op, wish.rule, lock));
            return Err(Stop::Wait);
        }
        locks.put(wish.rule, lock);
        self.locks_changed(ino);
        Ok(Answer::default())
    }

    /// Says whether a lock could be taken.
    pub(crate) fn get_lock(
        &mut self,
        client: ClientId,
        request: &Request,
        wish: &LockRequest,
    ) -> Exec<Answer> {
        let ino = self.resolve(&request.path)?;
        self.permit(ino)?;
        let lock = FileLock { client, ..wish.lock };
        let other = self
            .nodes
            .get_mut(&ino)
            .and_then(|n| n.locks.as_mut())
            .and_then(|l| l.in_the_way(wish.rule, &lock));
        let lock = other.unwrap_or(FileLock { kind: LockType::Unlock, ..lock });
        Ok(Answer { extra: Extra::Lock(wish.rule, lock), ..Answer::default() })
    }

    /// Ends the waiting of an earlier request.
    fn interrupt(&mut self, ino: Ino, rule: LockKind, lock: &FileLock) {
        let Some(locks) = self.nodes.get_mut(&ino).and_then(|n| n.locks.as_mut()) else { return };
        let same = |r: LockKind, l: &FileLock| r == rule && same_owner(l, lock);
        let gone: Vec<OpId> =
            locks.waiting.iter().filter(|(_, r, l)| same(*r, l)).map(|(o, _, _)| *o).collect();
        locks.waiting.retain(|(_, r, l)| !same(*r, l));
        for op in gone {
            self.failed.insert(op, Errno::EINTR.0);
            self.again.insert(op);
        }
        self.tidy_locks(ino);
    }

    /// Has requests tried again that wait for locks of a file.
    fn locks_changed(&mut self, ino: Ino) {
        if let Some(locks) = self.nodes.get(&ino).and_then(|n| n.locks.as_ref()) {
            self.again.extend(locks.waiting.iter().map(|(o, _, _)| *o));
        }
        self.tidy_locks(ino);
    }

    fn tidy_locks(&mut self, ino: Ino) {
        if let Some(node) = self.nodes.get_mut(&ino)
            && node.locks.as_ref().is_some_and(|l| l.is_empty())
        {
            node.locks = None;
        }
    }

    /// Takes all locks of a client away.
    pub(crate) fn drop_locks(&mut self, client: ClientId) {
        let inos: Vec<Ino> =
            self.nodes.iter().filter(|(_, n)| n.locks.is_some()).map(|(i, _)| *i).collect();
        for ino in inos {
            if let Some(locks) = self.nodes.get_mut(&ino).and_then(|n| n.locks.as_mut()) {
                locks.posix.retain(|l| l.client != client);
                locks.flock.retain(|l| l.client != client);
                let ops = &self.ops;
                locks.waiting.retain(|(o, _, _)| ops.contains_key(o));
            }
            self.locks_changed(ino);
        }
    }
}
