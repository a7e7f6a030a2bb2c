//! How much of a checkpoint is on its way to the device at a time.
//!
//! What commits, or reads, waits on the device behind everything that was given to it before. A
//! checkpoint that had megabytes under way would be felt by each of them, on a slow device for a
//! tenth of a second; and a flush waits until the device has everything. So it goes as others go:
//! beside them it may write twice what they ask for, and never much of it at a time. So that it
//! always goes on, it may besides write after a rest of some times what its last write took: a part
//! of the device's time, however fast that is. If writers would soon have to wait for it (`hurry`),
//! it does not rest. Without requests of others it has more and more writes under way.
//!
//! Others are there if something was asked of the device, other than by own writes, within some
//! milliseconds. Times are of any clock.

use std::time::Duration;

/// A rest is so many times what the last own write took.
pub(super) const REST: u32 = 3;
/// Others are there for so long after they asked for something.
const THERE: Duration = Duration::from_millis(20);
/// Writes at a time, while others ask for nothing.
const MOST: usize = 16;
/// Bytes of one write. A sixteenth of a millisecond of a device that writes a gigabyte a second,
/// six of one that writes ten megabytes.
pub(super) const WRITE_MAX: u64 = 64 << 10;
/// Beside others, however much was earned: writes at a time, and bytes.
const MOST_BESIDE: usize = 8;
const BYTES_BESIDE: u64 = 2 * WRITE_MAX;
/// For each byte of others. What was written to the log is written once more, and the rows that
/// tell of it.
const BESIDE: u64 = 2;
/// What others asked for while the checkpoint had nothing to write buys so much at most, in bytes.
const SAVED: u64 = 4 << 20;

/// The pace of a checkpoint on the device. `asked` counts the bytes of all requests, own ones too,
/// and may wrap around.
pub(super) struct Turns {
    asked: u64,
    /// Own ones since the last look.
    own: u64,
    /// What may be written because others have.
    earned: u64,
    /// Writes under way that need not be earned.
    free: usize,
    /// When others asked last.
    seen: Option<Duration>,
}

impl Turns {
    pub(super) fn new(asked: u64) -> Turns {
        Turns { asked, own: 0, earned: 0, free: 1, seen: None }
    }

    /// What was asked for so far; whether others are there.
    pub(super) fn look(&mut self, asked: u64, now: Duration) -> bool {
        let others = asked.wrapping_sub(self.asked).saturating_sub(self.own);
        (self.asked, self.own) = (asked, 0);
        if others > 0 {
            self.earned = self.earned.saturating_add(others.saturating_mul(BESIDE)).min(SAVED);
            self.seen = Some(now);
        }
        let there = self.seen.is_some_and(|seen| now.saturating_sub(seen) < THERE);
        if there {
            self.free = 0;
        }
        there
    }

    /// An own write has ended.
    pub(super) fn ended(&mut self, asked: u64, now: Duration) {
        if !self.look(asked, now) {
            self.free = (self.free * 2).clamp(1, MOST);
        }
    }

    /// A rest, with no own write under way, is over.
    pub(super) fn rested(&mut self, asked: u64, now: Duration) {
        self.look(asked, now);
        self.free = self.free.max(1);
    }

    /// Whether a write of so many bytes may begin beside own ones, so many and of so many bytes. If
    /// so, it is taken to be begun.
    pub(super) fn may_begin(&mut self, bytes: u64, under_way: UnderWay, hurry: bool) -> bool {
        if under_way.writes >= self.free.max(usize::from(hurry)) {
            if under_way.writes >= MOST_BESIDE || under_way.bytes + bytes > BYTES_BESIDE {
                return false;
            }
            let Some(left) = self.earned.checked_sub(bytes) else { return false };
            self.earned = left;
        }
        self.own += bytes;
        true
    }
}

/// A checkpoint's writes that have not ended.
#[derive(Clone, Copy, Default)]
pub(super) struct UnderWay {
    pub(super) writes: usize,
    pub(super) bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;

    /// The device and a checkpoint on it.
    struct World {
        turns: Turns,
        asked: u64,
        under_way: UnderWay,
        now: Duration,
        hurry: bool,
    }

    impl World {
        fn new(asked: u64) -> World {
            World {
                turns: Turns::new(asked),
                asked,
                under_way: UnderWay::default(),
                now: Duration::ZERO,
                hurry: false,
            }
        }

        fn others(&mut self, bytes: u64) {
            self.asked = self.asked.wrapping_add(bytes);
        }

        /// Begins as many writes as it may, and says how many.
        fn fill(&mut self, bytes: u64) -> usize {
            let before = self.under_way.writes;
            self.turns.look(self.asked, self.now);
            self.more(bytes);
            self.under_way.writes - before
        }

        fn more(&mut self, bytes: u64) {
            while self.turns.may_begin(bytes, self.under_way, self.hurry) {
                self.asked = self.asked.wrapping_add(bytes);
                self.under_way = UnderWay {
                    writes: self.under_way.writes + 1,
                    bytes: self.under_way.bytes + bytes,
                };
            }
        }

        fn end_one(&mut self, bytes: u64) {
            self.under_way =
                UnderWay { writes: self.under_way.writes - 1, bytes: self.under_way.bytes - bytes };
            self.turns.ended(self.asked, self.now);
        }

        /// All that is under way ends, a rest passes; how many begin after it.
        fn rest(&mut self, bytes: u64) -> usize {
            while self.under_way.writes > 0 {
                self.end_one(bytes);
            }
            self.turns.rested(self.asked, self.now);
            self.more(bytes);
            self.under_way.writes
        }
    }

    #[test]
    fn alone_it_has_more_and_more_under_way() {
        let mut w = World::new(u64::MAX - 9999);
        let mut seen = vec![w.fill(PAGE)];
        for _ in 0..6 {
            w.end_one(PAGE);
            w.fill(PAGE);
            seen.push(w.under_way.writes);
        }
        assert_eq!(seen, [1, 2, 4, 8, 16, 16, 16]);
    }

    #[test]
    fn beside_others_it_writes_twice_as_much_and_one_after_each_rest() {
        let (mut w, mut begun) = (World::new(0), 0);
        for _ in 0..1000 {
            w.others(2 * PAGE);
            begun += w.fill(PAGE);
            assert_eq!(w.rest(PAGE), 1);
        }
        assert_eq!(begun, 4000);
        // A client that asks now and then is there in between, too.
        for _ in 0..100 {
            w.others(1);
            w.rest(PAGE);
            w.now += THERE / 4;
            assert!(w.rest(PAGE) <= 2);
        }
        // They are gone, and are there again.
        w.now += THERE;
        for _ in 0..6 {
            w.rest(PAGE);
        }
        assert_eq!(w.turns.free, MOST);
        w.others(1);
        w.end_one(PAGE);
        assert_eq!((w.turns.free, w.fill(PAGE)), (0, 0));
    }

    #[test]
    fn when_others_would_wait_for_it_it_does_not_rest() {
        let mut w = World::new(0);
        w.others(1);
        assert_eq!(w.fill(PAGE), 0);
        w.hurry = true;
        for _ in 0..100 {
            w.others(1);
            assert_eq!(w.fill(PAGE), 1);
            w.end_one(PAGE);
        }
    }

    #[test]
    fn beside_others_little_is_under_way_whatever_was_earned() {
        let mut w = World::new(0);
        w.others(1 << 30);
        assert_eq!(w.fill(PAGE), MOST_BESIDE);
        let mut w = World::new(0);
        w.others(1 << 30);
        assert_eq!(w.fill(WRITE_MAX), 2);
        // What they did while it had nothing to do is not all made up for.
        let mut written = 2 * WRITE_MAX;
        for _ in 0..1000 {
            w.others(1);
            if w.under_way.writes > 0 {
                w.end_one(WRITE_MAX);
            }
            written += w.fill(WRITE_MAX) as u64 * WRITE_MAX;
        }
        assert!(written == SAVED && w.turns.earned < WRITE_MAX, "{written}");
    }
}
