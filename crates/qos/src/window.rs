/// How many operations to have in execution, so that the store is busy and what waits waits in the scheduler.
///
/// Operations below the scheduler can no longer be ordered. With too many of them, who has most of them gets most;
/// with too few, the store idles, or commits a few at a time what it could commit together. So the least is looked for
/// that keeps the store busy to two thirds at least and three quarters at most: an operation among N takes a time of its own
/// and N times what it holds up others, `took = alone + each * N`, and of what any number would do, `1 / each`, N do the
/// part `each * N / took`. A store that does one after the other is busy with any number, and gets the least; one that does
/// any number at the same time never is, and gets the most.
///
/// How long operations take among few is measured now and then, with the window nearly closed for a moment. A write is on its
/// way on several OSDs, and takes as long as the slowest of them: it is among few only if it is so everywhere. All
/// windows are therefore closed at the same moments of the wall clock.
///
/// Durations and times are in nanoseconds.
#[derive(Clone, Debug)]
pub struct Window {
    least: usize,
    most: usize,
    size: usize,
    /// What the wall clock shows, in its round of measurements, when the time is 0.
    phase: u64,
    /// Operations among few.
    few: Seen,
    /// The last ones of the measurement under way. Others may have begun it with more to do: as long as operations take less and
    /// less, it goes on.
    measured: Option<Seen>,
    /// Those of this period, and of the one before.
    seen: Seen,
    last: Seen,
    since: u64,
    /// When the window is closed for a measurement; it is while this is in the past.
    measure: u64,
    /// Operations that are to end before those that began among few.
    before: usize,
}

/// What operations took, and among how many they were.
#[derive(Clone, Copy, Default, Debug)]
struct Seen {
    took: u64,
    among: u64,
    count: u64,
}

impl Seen {
    fn add(&mut self, took: u64, among: usize) {
        self.took = self.took.saturating_add(took);
        self.among += among as u64;
        self.count += 1;
    }

    /// On average, and among how many hundredths.
    fn mean(&self) -> (u64, u64) {
        let count = self.count.max(1);
        (self.took / count, 100 * self.among / count)
    }
}

/// A period ends after so long, and
const PERIOD: u64 = 20_000_000;
/// with so many operations.
const ENOUGH: u64 = 16;
/// The window that measurements are made with, and
const FEW: usize = 2;
/// how many operations are looked at together.
const MEASURED: u64 = 4;
/// So often.
const MEASURE_EVERY: u64 = 5_000_000_000;
/// It takes no longer than so and one operation.
const MEASURE_AT_MOST: u64 = MEASURE_EVERY / 8;
/// The first one comes sooner.
const FIRST: u64 = MEASURE_EVERY / 50;
/// Above so many thousandths the store is busier than is needed, and the window becomes smaller ...
const BUSY: u64 = 750;
/// ... and below so many it is larger, if there is something to be let in.
const IDLE: u64 = 667;

impl Window {
    /// Between these sizes. `wall` is what the wall clock shows when the time is 0.
    pub fn new(least: usize, most: usize, wall: u64) -> Self {
        let (least, most) = (least.max(FEW), most.max(least).max(FEW));
        let (size, phase) = ((least * 4).min(most), wall % MEASURE_EVERY);
        Window { least, most, size, phase, few: Seen::default(), measured: None, seen: Seen::default(), last: Seen::default(), since: 0, measure: FIRST, before: 0 }
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
            self.seen.add(took.max(1), running + 1);
            if self.seen.count < MEASURED {
                return;
            }
            let earlier = self.measured.replace(self.seen);
            let still_less = earlier.is_none_or(|e| self.seen.mean().0 < e.mean().0 - e.mean().0 / 4);
            self.begin(now);
            if !still_less || now.saturating_sub(self.measure) > MEASURE_AT_MOST {
                self.few = [earlier, self.measured.take()].into_iter().flatten().min_by_key(|s| s.mean().0).unwrap_or(self.few);
                let round = now.saturating_add(self.phase) / MEASURE_EVERY + 1;
                self.measure = round.saturating_mul(MEASURE_EVERY).saturating_sub(self.phase);
            }
            return;
        }
        self.seen.add(took, running + 1);
        if self.few.count == 0 || self.seen.count < ENOUGH || now.saturating_sub(self.since) < PERIOD {
            return;
        }
        self.last = self.seen;
        match self.busy() {
            Some(busy) if busy > BUSY => self.size = (self.size - self.size / 8 - 1).max(self.least),
            Some(busy) if busy < IDLE && waiting => self.size = (self.size + self.size / 8 + 1).min(self.most),
            None if waiting => self.size = (self.size + 1).min(self.most),
            _ => {}
        }
        self.begin(now);
    }

    /// How busy the store was in this period, in thousandths, if there were more operations than few.
    fn busy(&self) -> Option<u64> {
        let ((took, among), (few_took, few)) = (self.seen.mean(), self.few.mean());
        if among < few + 50 {
            return None;
        }
        let held_up = u128::from(took.saturating_sub(few_took)) * u128::from(among);
        Some((held_up * 1000 / (u128::from(among - few) * u128::from(took.max(1)))).min(u64::MAX.into()) as u64)
    }

    /// What an operation takes among few, and what it took in the last period, with how many there were of them in hundredths.
    pub fn taken(&self) -> [(u64, u64); 2] {
        [self.few.mean(), self.last.mean()]
    }

    fn begin(&mut self, now: u64) {
        (self.seen, self.since) = (Seen::default(), now);
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
        let mut w = Window::new(8, 256, 0);
        let (done, sizes) = run(&mut w, 20, |now, _| now + 5_000_000);
        assert!(sizes.iter().all(|s| *s == 256), "{sizes:?}");
        // Measurements cost little.
        assert!(done >= 20 * 256 * 200 * 9 / 10, "{done}");
    }

    #[test]
    fn one_that_does_one_after_the_other_gets_few() {
        let mut w = Window::new(4, 256, 0);
        let mut free = 0;
        let (done, sizes) = run(&mut w, 20, |now, _| {
            free = now.max(free) + 100_000;
            free
        });
        assert!(sizes.iter().all(|s| (4..=5).contains(s)), "{:?}", sizes.iter().max());
        assert!(done >= 199_000, "{done}");
    }

    #[test]
    fn one_that_commits_together_what_came_meanwhile_is_kept_busy() {
        // A commit takes 4 ms and 20 us for each operation; what comes during one goes with the next.
        let (mut until, mut next) = (0u64, 0u64);
        let mut w = Window::new(8, 512, 0);
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
        let mut w = Window::new(4, 256, 0);
        run(&mut w, 20, |now, _| now + 1_000_000);
        let mut free = 0;
        let before = w.size;
        let mut shifted = w.clone();
        (shifted.measure, shifted.since) = (0, 0);
        let (_, sizes) = run(&mut shifted, 20, |now, _| {
            free = now.max(free) + 1_000_000;
            free
        });
        assert!(before == 256 && sizes.iter().all(|s| *s <= 5), "{before} {:?}", sizes.iter().max());
    }

    #[test]
    fn windows_of_several_that_pass_through_each_other_are_closed_together() {
        // Each operation passes one device that all three share, one after the other, and takes 200 us besides.
        let run = |walls: [u64; 3]| {
            let mut windows = walls.map(|wall| Window::new(4, 256, wall));
            let mut running: [BTreeSet<(u64, u64)>; 3] = Default::default();
            let (mut now, mut free, mut sizes) = (0, 0u64, Vec::new());
            while now < 20_000_000_000 {
                for (w, running) in windows.iter().zip(&mut running) {
                    while running.len() < w.size(now) {
                        free = now.max(free) + 100_000;
                        running.insert((free + 200_000, now));
                    }
                }
                let next = (0..3).min_by_key(|i| running[*i].first().map(|f| f.0)).expect("three");
                let (at, begun) = running[next].pop_first().expect("each has some");
                now = now.max(at);
                windows[next].ended(now - begun, running[next].len(), true, now);
                if now > 18_000_000_000 {
                    sizes.push(windows[next].size);
                }
            }
            sizes.into_iter().max().expect("sizes")
        };
        // The time at which each began to count is its own; that of the wall is the same.
        assert!(run([0; 3]) <= 6, "{}", run([0; 3]));
        assert!(run([0, 1_700_000_000, 3_400_000_000]) > 6, "or else this test shows nothing");
    }
}
