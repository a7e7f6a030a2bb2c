//! How fast transactions may fill the log and memory while a checkpoint empties them.
//!
//! The log's tail advances, and memory is given back, when a checkpoint is complete. Writers that
//! are faster than it would find everything full shortly before, and all of them would stop until
//! the end. Instead what they may fill grows with what the checkpoint has done: they go on, at its
//! speed.

use std::cell::Cell;

/// A checkpoint under way, as writers see it.
pub(super) struct Pace {
    log: Room,
    dirty: Room,
    /// Steps to do: about a block written, or an object encoded.
    total: u64,
    done: Cell<u64>,
    told: Cell<u64>,
}

/// What was in use when the checkpoint began, and the most that may be in use, in bytes.
#[derive(Clone, Copy)]
pub(super) struct Room {
    pub begin: u64,
    pub limit: u64,
}

/// So many parts of four are there from the beginning, for writers that are fast for a moment only.
const AT_ONCE: u64 = 1;
/// Waiting writers are told after so many steps: about once in a write.
const TELL: u64 = 16;

impl Room {
    /// The bytes that may be in use when `done` of `total` steps are.
    fn allowed(self, done: u64, total: u64) -> u64 {
        let whole = u128::from(self.limit.saturating_sub(self.begin));
        let parts = u128::from(total * AT_ONCE + (4 - AT_ONCE) * done.min(total));
        self.begin.min(self.limit) + (whole * parts / u128::from(4 * total.max(1))) as u64
    }
}

impl Pace {
    pub(super) fn new(log: Room, dirty: Room, total: u64) -> Pace {
        Pace { log, dirty, total: total.max(1), done: Cell::new(0), told: Cell::new(0) }
    }

    /// The checkpoint did `n` steps more. True if writers that wait should look again.
    pub(super) fn step(&self, n: u64) -> bool {
        self.done.set(self.done.get().saturating_add(n).min(self.total));
        let tell = self.done.get() - self.told.get() >= TELL.min(self.total);
        if tell {
            self.told.set(self.done.get());
        }
        tell
    }

    /// What is left is not writing for long: true as for [`Pace::step`].
    pub(super) fn complete(&self) -> bool {
        self.done.set(self.total);
        self.told.replace(self.total) < self.total
    }

    /// Whether so many bytes may be in use now.
    pub(super) fn permits(&self, log: u64, dirty: u64) -> bool {
        let (done, total) = (self.done.get(), self.total);
        log <= self.log.allowed(done, total) && dirty <= self.dirty.allowed(done, total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_filled_grows_with_what_is_done() {
        let p = Pace::new(Room { begin: 400, limit: 800 }, Room { begin: 0, limit: 1 << 40 }, 1000);
        assert!(p.permits(500, 0) && !p.permits(501, 0));
        let mut last = 500;
        let mut told = 0;
        for _ in 0..1000 {
            told += u64::from(p.step(1));
            let now = (last..=800).take_while(|l| p.permits(*l, 0)).last().unwrap();
            assert!((last..last + 2).contains(&now), "{last} {now}");
            last = now;
        }
        assert_eq!(last, 800, "all of it in the end");
        assert_eq!(told, 1000 / TELL);
        p.complete();
        assert!(p.permits(800, 1 << 40) && !p.permits(801, 0), "and never more");
    }

    #[test]
    fn either_can_be_what_is_short() {
        let p = Pace::new(Room { begin: 0, limit: 100 }, Room { begin: 10, limit: 110 }, 10);
        assert!(p.permits(25, 35) && !p.permits(26, 0) && !p.permits(0, 36));
        // Full from the start: what is in use may stay, nothing comes in.
        let p = Pace::new(Room { begin: 120, limit: 100 }, Room { begin: 0, limit: 1 }, 10);
        assert!(!p.permits(120, 0));
        p.complete();
        assert!(!p.permits(120, 0) && p.permits(100, 0));
        // Nothing to do.
        assert!(
            Pace::new(Room { begin: 0, limit: 4 }, Room { begin: 0, limit: 4 }, 0).permits(1, 1)
        );
    }
}
