//! When a read of a shard counts as late.
//!
//! A read of an erasure-coded object waits for several OSDs, and is as slow as the slowest. What a
//! late shard has is computed of others, at the price of more reads. So a shard is late when it
//! takes longer than nearly all reads of shards of late, and that is measured.

use std::cell::{Cell, RefCell};
use std::time::Duration;

/// Before enough reads were measured, and the longest that a client waits in any case.
const LONGEST: Duration = Duration::from_millis(250);
/// Sooner than this no shard is late: other reads would take as long.
const SHORTEST: Duration = Duration::from_millis(2);
/// Reads that must have been measured.
const ENOUGH: u32 = 200;
/// So many count: then all weigh half.
const MOST: u32 = 4_000;
/// Of a thousand reads, those that are not late.
const IN_TIME: u32 = 990;
/// Buckets for each doubling.
const STEPS: u32 = 4;
/// Microseconds below which there is one bucket.
const FLOOR: u64 = 64;
const BUCKETS: usize = 64;

/// How long reads of shards have taken of late, on all OSDs together.
pub(crate) struct Hedge {
    counts: RefCell<[u32; BUCKETS]>,
    total: Cell<u32>,
    limit: Cell<Duration>,
}

impl Default for Hedge {
    fn default() -> Self {
        let counts = RefCell::new([0; BUCKETS]);
        Hedge { counts, total: Cell::new(0), limit: Cell::new(LONGEST) }
    }
}

/// The bucket of a time.
fn bucket(took: Duration) -> usize {
    let micros = (took.as_micros() as u64).max(1);
    if micros <= FLOOR {
        return 0;
    }
    let octave = (micros / FLOOR).ilog2();
    let base = FLOOR << octave;
    let step = ((micros - base) * u64::from(STEPS) / base) as u32;
    ((1 + octave * STEPS + step) as usize).min(BUCKETS - 1)
}

/// The end of a bucket.
fn end(bucket: usize) -> Duration {
    let Some(i) = bucket.checked_sub(1) else { return Duration::from_micros(FLOOR) };
    let (octave, step) = (i as u32 / STEPS, i as u64 % u64::from(STEPS));
    let base = FLOOR << octave;
    Duration::from_micros(base + base * (step + 1) / u64::from(STEPS))
}

impl Hedge {
    /// A shard has answered.
    pub(crate) fn answered(&self, took: Duration) {
        let mut counts = self.counts.borrow_mut();
        counts[bucket(took)] += 1;
        self.total.set(self.total.get() + 1);
        if self.total.get() >= MOST {
            counts.iter_mut().for_each(|n| *n /= 2);
            self.total.set(counts.iter().sum());
        }
        // Not with each: the limit moves slowly.
        if self.total.get().is_multiple_of(16) && self.total.get() >= ENOUGH {
            let in_time = u64::from(self.total.get()) * u64::from(IN_TIME) / 1000;
            let mut seen = 0;
            let at = counts.iter().position(|n| {
                seen += u64::from(*n);
                seen >= in_time
            });
            let limit = end(at.unwrap_or(BUCKETS - 1)) * 2;
            self.limit.set(limit.clamp(SHORTEST, LONGEST));
        }
    }

    /// A shard was not waited for any longer. Its answer would have taken longer than this, and
    /// counts as twice as long: else those that are late would never be measured, and the limit
    /// would sink until all are late.
    pub(crate) fn late(&self, waited: Duration) {
        self.answered(waited * 2);
    }

    /// A read that takes longer is late.
    pub(crate) fn limit(&self) -> Duration {
        self.limit.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn buckets_are_narrow() {
        for micros in (1..200_000u64).step_by(37) {
            let took = Duration::from_micros(micros);
            let end = end(bucket(took));
            assert!(took <= end, "{took:?} ends at {end:?}");
            assert!(micros <= FLOOR || end <= took * 13 / 10 + MS / 1000, "{took:?}: {end:?}");
        }
        assert_eq!(bucket(Duration::from_secs(10_000)), BUCKETS - 1);
    }

    #[test]
    fn the_limit_is_what_nearly_all_reads_take() {
        let h = Hedge::default();
        (0..100).for_each(|_| h.answered(MS));
        assert_eq!(h.limit(), LONGEST, "too few to tell");
        (0..1000).for_each(|_| h.answered(5 * MS));
        let limit = h.limit();
        assert!(limit >= 10 * MS && limit <= 14 * MS, "{limit:?}");
        // One in a hundred and fifty does not count, one in twenty does.
        for i in 0..3000 {
            h.answered(if i % 150 == 0 { 80 * MS } else { 5 * MS });
        }
        assert!(h.limit() <= 14 * MS, "{:?}", h.limit());
        for i in 0..3000 {
            h.answered(if i % 20 == 0 { 80 * MS } else { 5 * MS });
        }
        assert!(h.limit() >= 160 * MS, "{:?}", h.limit());
        // Fast devices, and what was slow is forgotten.
        (0..20_000).for_each(|_| h.answered(MS / 10));
        assert_eq!(h.limit(), SHORTEST);
    }

    /// All shards become slow at once: nothing is gained by more reads, and soon none is late.
    #[test]
    fn slowness_of_all_is_no_lateness() {
        let h = Hedge::default();
        (0..2000).for_each(|_| h.answered(MS));
        let (slow, mut late) = (40 * MS, 0);
        for _ in 0..4000 {
            if slow > h.limit() {
                late += 1;
                h.late(h.limit());
            } else {
                h.answered(slow);
            }
        }
        assert!(h.limit() > slow, "{:?}", h.limit());
        assert!(late < 400, "{late} reads were late");
    }
}
