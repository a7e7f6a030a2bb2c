//! Locks of files that clients ask for (`flock` and `fcntl`). They are the server's: a server that
//! takes over hears of them from the clients that hold them.

use super::Mds;
use super::lock_table::same_owner;
use super::operation::{Answer, Exec, OpId, Stop, fail};
use crate::request::{Extra, FileLock, LockKind, LockRequest, LockType, Request};
use crate::types::{ClientId, Ino};
use types::Errno;

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
        if lock.kind != LockType::Unlock && self.has_too_many_locks(client, ino) {
            return fail(Errno::ENOLCK);
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
