//! How much of a checkpoint is on its way to the device at a time.
//!
//! What commits, or reads, waits on the device behind everything that was given to it before. A checkpoint that had megabytes
//! under way would be felt by each of them, on a slow device for a tenth of a second. So it goes as others go: beside them it may
//! write twice what they ask for, and one write besides, so that it always goes on. While nobody asks for anything it has more and
//! more writes under way.
//!
//! No clock is looked at: whether others are there shows in what was asked of the device between two ends of own writes.

/// Writes at a time, while others ask for nothing, ...
const MOST: usize = 16;
/// ... and beside others, who may ask for much at a time.
const MOST_EARNED: usize = 64;
/// For each byte of others. What was written to the log is written once more, and the rows that tell of it.
const BESIDE: u64 = 2;
/// What others asked for while the checkpoint had nothing to write buys so much at most, in bytes.
const SAVED: u64 = 4 << 20;

/// See the module. `asked` counts the bytes of all requests, own ones too, and may wrap around.
pub(super) struct Turns {
    asked: u64,
    /// Own ones since the last look.
    own: u64,
    /// What may be written because others have.
    earned: u64,
    /// Writes under way that need not be earned.
    free: usize,
}

impl Turns {
    pub(super) fn new(asked: u64) -> Turns {
        Turns { asked, own: 0, earned: 0, free: 1 }
    }

    /// What was asked for so far; whether others asked for something since the last look.
    pub(super) fn look(&mut self, asked: u64) -> bool {
        let others = asked.wrapping_sub(self.asked).saturating_sub(self.own);
        (self.asked, self.own) = (asked, 0);
        if others > 0 {
            self.earned = self.earned.saturating_add(others.saturating_mul(BESIDE)).min(SAVED);
            self.free = 1;
        }
        others > 0
    }

    /// An own write has ended.
    pub(super) fn ended(&mut self, asked: u64) {
        if !self.look(asked) {
            self.free = (self.free * 2).min(MOST);
        }
    }

    /// Whether a write of so many bytes may begin beside so many own ones. If so, it is taken to be begun.
    pub(super) fn may_begin(&mut self, bytes: u64, under_way: usize) -> bool {
        if under_way >= self.free {
            if under_way >= MOST_EARNED {
                return false;
            }
            let Some(left) = self.earned.checked_sub(bytes) else { return false };
            self.earned = left;
        }
        self.own += bytes;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Begins as many writes as it may, and says how many.
    fn fill(t: &mut Turns, asked: &mut u64, under_way: &mut usize) -> usize {
        let before = *under_way;
        t.look(*asked);
        while t.may_begin(4096, *under_way) {
            *asked = asked.wrapping_add(4096);
            *under_way += 1;
        }
        *under_way - before
    }

    #[test]
    fn alone_it_has_more_and_more_under_way() {
        let (mut asked, mut under_way) = (u64::MAX - 9999, 0);
        let mut t = Turns::new(asked);
        let mut seen = vec![fill(&mut t, &mut asked, &mut under_way)];
        for _ in 0..6 {
            under_way -= 1;
            t.ended(asked);
            fill(&mut t, &mut asked, &mut under_way);
            seen.push(under_way);
        }
        assert_eq!(seen, [1, 2, 4, 8, 16, 16, 16]);
    }

    #[test]
    fn beside_others_it_writes_twice_as_much_and_one_besides() {
        let (mut asked, mut under_way, mut begun) = (0, 0, 0);
        let mut t = Turns::new(asked);
        for _ in 0..1000 {
            asked += 8192;
            begun += fill(&mut t, &mut asked, &mut under_way);
            while under_way > 1 {
                under_way -= 1;
                t.ended(asked);
            }
        }
        assert!((4000..=4001).contains(&begun), "{begun}");
        // They are gone, and are there again.
        for _ in 0..5 {
            fill(&mut t, &mut asked, &mut under_way);
            under_way -= 1;
            t.ended(asked);
        }
        assert_eq!(t.free, MOST);
        asked += 1;
        t.look(asked);
        assert_eq!(t.free, 1);
        // And what they did while it had nothing to do is not all made up for at once.
        t.look(asked + (1 << 30));
        assert_eq!(t.earned, SAVED);
    }
}
