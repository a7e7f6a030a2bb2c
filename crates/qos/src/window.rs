/// How many operations to have in execution, so that the store is busy and what waits waits in the scheduler.
///
/// Operations below the scheduler can no longer be ordered. With too many of them, who has most of them gets most;
/// with too few, the store idles, or commits a few at a time what it could commit together. The least that is
/// enough is found by what it costs to wait below: while operations take little longer than they take among few,
/// there is room for more; when they take several times as long, they only wait for each other.
///
/// How long they take among few is measured now and then, with the window nearly closed for a moment. A store that
/// does any number at the same time gets a window as large as is allowed; one that does one after the other, a few.
///
/// Durations and times are in nanoseconds.
#[derive(Clone, Debug)]
pub struct Window {
    least: usize,
    most: usize,
    size: usize,
    /// What operations take among few, on average.
    base: u64,
    sum: u64,
    count: u64,
    since: u64,
    /// When the window is closed for a measurement; it is while this is in the past.
    measure: u64,
    /// Operations that are to end before those that began among few.
    before: usize,
}

/// A period ends after so long, and
const PERIOD: u64 = 20_000_000;
/// with so many operations.
const ENOUGH: u64 = 16;
/// The window that measurements are made with, and
const FEW: usize = 2;
/// how many operations are looked at.
const MEASURED: u64 = 6;
/// So often.
const MEASURE_EVERY: u64 = 5_000_000_000;
/// With more than so many times the time among few, the window becomes smaller ...
const TOO_LONG: u64 = 4;
/// ... and with less than so many times, larger.
const SHORT: u64 = 3;

impl Window {
    /// Between these sizes.
    pub fn new(least: usize, most: usize) -> Self {
        let (least, most) = (least.max(FEW), most.max(least).max(FEW));
        let size = (least * 4).min(most);
        Window { least, most, size, base: 0, sum: 0, count: 0, since: 0, measure: MEASURE_EVERY / 50, before: 0 }
    }

    /// How many operations may be in execution.
    pub fn size(&self, now: u64) -> usize {
        if self.is_measuring(now) { FEW } else { self.size }
    }

    fn is_measuring(&self, now: u64) -> bool {
        now >= self.measure
    }

    /// An operation ended that took so long. `running` are those that are still in execution; `waiting` says whether
    /// others wait for the window.
    pub fn ended(&mut self, took: u64, running: usize, waiting: bool, now: u64) {
        if self.is_measuring(now) {
            if running >= FEW {
                // It began among many, and so did the few that are left.
                self.begin(now);
                self.before = FEW;
                return;
            }
            if self.before > 0 {
                self.before -= 1;
                return;
            }
            self.sum = self.sum.saturating_add(took);
            self.count += 1;
            if self.count >= MEASURED {
                self.base = (self.sum / self.count).max(1);
                self.measure = now.saturating_add(MEASURE_EVERY);
                self.begin(now);
            }
            return;
        }
        self.sum = self.sum.saturating_add(took);
        self.count += 1;
        if self.base == 0 || self.count < ENOUGH || now.saturating_sub(self.since) < PERIOD {
            return;
        }
        let mean = self.sum / self.count;
        if mean > self.base.saturating_mul(TOO_LONG) {
            self.size = (self.size - self.size / 8 - 1).max(self.least);
        } else if waiting && mean < self.base.saturating_mul(SHORT) {
            self.size = (self.size + self.size / 8 + 1).min(self.most);
        }
        self.begin(now);
    }

    fn begin(&mut self, now: u64) {
        (self.sum, self.count, self.since) = (0, 0, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// A closed loop of many operations through a window; how many end, and the sizes of the window seen last.
    /// `end` says when an operation ends that begins now, by how many are in execution.
    fn run(w: &mut Window, seconds: u64, mut end: impl FnMut(u64, usize) -> u64) -> (u64, Vec<usize>) {
        let (mut now, mut running, mut done, mut sizes, mut n) = (0, BTreeSet::new(), 0, Vec::new(), 0u64);
        while now < seconds * 1_000_000_000 {
            while running.len() < w.size(now) {
                n += 1;
                running.insert((end(now, running.len()), n, now));
            }
            let Some((at, _, begun)) = running.pop_first() else { break };
            now = now.max(at);
            done += 1;
            w.ended(now - begun, running.len(), true, now);
            if now > seconds * 900_000_000 {
                sizes.push(w.size);
            }
        }
        (done, sizes)
    }

    #[test]
    fn a_store_that_does_any_number_at_a_time_gets_the_largest() {
        let mut w = Window::new(8, 256);
        let (done, sizes) = run(&mut w, 20, |now, _| now + 5_000_000);
        assert!(sizes.iter().all(|s| *s == 256), "{sizes:?}");
        // Measurements cost little.
        assert!(done >= 20 * 256 * 200 * 9 / 10, "{done}");
    }

    #[test]
    fn one_that_does_one_after_the_other_gets_few() {
        let mut w = Window::new(4, 256);
        let mut free = 0;
        let (done, sizes) = run(&mut w, 20, |now, _| {
            free = now.max(free) + 100_000;
            free
        });
        assert!(sizes.iter().all(|s| (4..=12).contains(s)), "{:?}", sizes.iter().max());
        assert!(done >= 199_000, "{done}");
    }

    #[test]
    fn one_that_commits_together_what_came_meanwhile_is_kept_busy() {
        // A commit takes 4 ms and 20 us for each operation; what comes during one goes with the next.
        let (mut until, mut next) = (0u64, 0u64);
        let mut w = Window::new(8, 512);
        let (done, sizes) = run(&mut w, 30, |now, _| {
            if now >= until {
                (until, next) = (now + 4_000_000, now + 4_020_000);
                return until;
            }
            next += 20_000;
            if next > until + 4_000_000 { next } else { until + 4_000_000 }
        });
        assert!(sizes.iter().all(|s| *s >= 128), "{:?} {done}", sizes.iter().min());
    }

    #[test]
    fn it_follows_a_store_that_becomes_slow() {
        let mut w = Window::new(4, 256);
        run(&mut w, 20, |now, _| now + 1_000_000);
        let mut free = 0;
        let before = w.size;
        let mut shifted = w.clone();
        (shifted.measure, shifted.since) = (0, 0);
        let (_, sizes) = run(&mut shifted, 20, |now, _| {
            free = now.max(free) + 1_000_000;
            free
        });
        assert!(before == 256 && sizes.iter().all(|s| *s <= 12), "{before} {:?}", sizes.iter().max());
    }
}
