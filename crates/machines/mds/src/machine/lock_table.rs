//! Locks of an inode, and which of them are in the way of another.

use super::operation::OpId;
use crate::request::{FileLock, LockKind, LockType};

/// Locks of an inode.
#[derive(Clone, Default, Debug)]
pub(crate) struct Locks {
    pub posix: Vec<FileLock>,
    pub flock: Vec<FileLock>,
    /// Requests that wait for any of them.
    pub waiting: Vec<(OpId, LockKind, FileLock)>,
}

/// The byte behind a lock.
fn end(lock: &FileLock) -> u64 {
    if lock.length == 0 { u64::MAX } else { lock.start.saturating_add(lock.length) }
}

pub(crate) fn same_owner(a: &FileLock, b: &FileLock) -> bool {
    (a.client, a.owner) == (b.client, b.owner)
}

fn overlap(a: &FileLock, b: &FileLock) -> bool {
    a.start < end(b) && b.start < end(a)
}

impl Locks {
    pub fn list(&mut self, rule: LockKind) -> &mut Vec<FileLock> {
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
    pub fn in_the_way(&mut self, rule: LockKind, lock: &FileLock) -> Option<FileLock> {
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
    pub fn is_ring(&self, lock: &FileLock, other: &FileLock) -> bool {
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
