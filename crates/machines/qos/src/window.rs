use std::collections::VecDeque;

/// How many operations to have in execution, so that the store is busy and what waits waits in the
/// scheduler.
///
/// Operations below the scheduler can no longer be ordered. With too many of them, the session with
/// most of them gets most; with too few, the store idles, or commits a few at a time what it could
/// commit together. So the least is looked for that keeps the store busy to two thirds at least and
/// three quarters at most: an operation among N takes a time of its own and N times what it holds
/// up others, `took = alone + each * N`, and of what any number would do, `1 / each`, N do the part
/// `each * N / took`. A store that does one after the other is busy with any number, and gets the
/// least; one that does any number at the same time never is, and gets the most.
///
/// How long operations take among few is measured now and then, with the window nearly closed for a
/// moment. A write is on its way on several OSDs, and takes as long as the slowest of them: it is
/// among few only if it is so everywhere. All windows are therefore closed at the same moments of
/// the wall clock. Reads are often in memory and say nothing of the store, so they are looked at
/// only while there are no writes.
///
/// A store of which a quarter idles does a quarter less: that is what order costs. A session that
/// is the only one there has no others to be ordered among, and does not pay it: the window is as
/// large as it may be until another one comes.
///
/// Durations and times are in nanoseconds.
#[derive(Clone, Debug)]
pub struct Window {
    least: usize,
    most: usize,
    size: usize,
    /// What the wall clock shows, in its round of measurements, when the time is 0.
    phase: u64,
    /// Operations among few, in the measurement in which they took least, and all of them. One that
    /// met a checkpoint would have the window grow for nothing.
    few: Seen,
    fews: VecDeque<Seen>,
    /// The last ones of the measurement under way. Others may have begun it with more to do: as
    /// long as operations take less and less, it goes on.
    measured: Option<Seen>,
    /// Those of this period, and of the one before.
    seen: Seen,
    last: Seen,
    since: u64,
    /// When the window is closed for a measurement; it is while this is in the past.
    measure: u64,
    /// Operations that are to end before those that began among few.
    before: usize,
    /// The session of the last operation, its time, and the time of the last one that writes.
    who: u64,
    came: Option<u64>,
    wrote: Option<u64>,
    /// Whether what was seen are reads.
    reads: bool,
    /// Until when there are several, or were a moment ago.
    several: u64,
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
/// So many of the last ones count.
const MEASUREMENTS: usize = 3;
/// It takes no longer than so and one operation.
const MEASURE_AT_MOST: u64 = MEASURE_EVERY / 8;
/// The first one comes sooner.
const FIRST: u64 = MEASURE_EVERY / 50;
/// A session has the store for itself when no other one was there for so long, and
const SEVERAL: u64 = 1_000_000_000;
/// it was there itself in this time.
const THERE: u64 = 100_000_000;
/// A tenant that has had less than others need not wait for one of their operations to end, up to
/// so many operations, and not more than there are in the window.
const BEYOND: usize = 16;
/// Above so many thousandths the store is busier than is needed, and the window becomes smaller ...
const BUSY: u64 = 750;
/// ... and below so many it is larger, if there is something to be let in.
const IDLE: u64 = 667;

impl Window {
    /// Between these sizes. `wall` is what the wall clock shows when the time is 0.
    pub fn new(least: usize, most: usize, wall: u64) -> Self {
        let (least, most) = (least.max(FEW), most.max(least).max(FEW));
        let phase = wall % MEASURE_EVERY;
        Window {
            least,
            most,
            size: least,
            phase,
            few: Seen::default(),
            fews: VecDeque::new(),
            measured: None,
            seen: Seen::default(),
            last: Seen::default(),
            since: 0,
            measure: FIRST,
            before: 0,
            who: 0,
            came: None,
            wrote: None,
            reads: false,
            several: 0,
        }
    }

    /// How many operations may be in execution.
    pub fn size(&self, now: u64) -> usize {
        if self.is_alone(now) {
            self.most
        } else if self.is_measuring(now) {
            FEW
        } else {
            self.size
        }
    }

    /// How many more may be in execution for tenants that have had less than others: they do not
    /// wait for these. What is measured must be among few.
    pub fn beyond(&self, now: u64) -> usize {
        if self.is_alone(now) || self.is_measuring(now) { 0 } else { self.size.min(BEYOND) }
    }

    /// How many keep the store busy, even if more may be in execution because there is nothing to
    /// order.
    pub fn enough(&self) -> usize {
        self.size
    }

    /// A session asks for an operation.
    pub fn comes(&mut self, session: u64, writes: bool, now: u64) {
        if self.came.is_some() && self.who != session {
            if self.is_alone(now) {
                // All other OSDs that the two use see the same now: a measurement that is due can
                // be made at once.
                self.measure = self.measure.max(now);
            }
            self.several = now.saturating_add(SEVERAL);
        }
        (self.who, self.came) = (session, Some(now));
        if writes {
            self.wrote = Some(now);
        }
        if now.saturating_sub(self.measure) > MEASURE_AT_MOST && !self.is_alone(now) {
            self.measure_later(now);
        }
    }

    /// Whether all operations are those of one session.
    fn is_alone(&self, now: u64) -> bool {
        now >= self.several && was_moments_ago(self.came, now)
    }

    fn is_measuring(&self, now: u64) -> bool {
        now >= self.measure && now < self.several && was_moments_ago(self.came, now)
    }

    /// Puts the measurement off to when all others measure, too.
    fn measure_later(&mut self, now: u64) {
        let round = now.saturating_add(self.phase) / MEASURE_EVERY + 1;
        self.measure = round.saturating_mul(MEASURE_EVERY).saturating_sub(self.phase);
        self.measured = None;
        self.begin(now);
    }

    /// An operation ended that took so long, and `wrote` or not. `running` are those that are still
    /// in execution; `waiting` says whether others wait for the window.
    pub fn ended(&mut self, took: u64, wrote: bool, running: usize, waiting: bool, now: u64) {
        if !wrote && self.wrote.is_some_and(|at| now.saturating_sub(at) < SEVERAL) {
            // Reads are often in memory, so while there are both, writes tell how busy the store
            // is.
            return;
        }
        if self.reads == wrote {
            // What was seen was something else.
            self.reads = !wrote;
            self.fews.clear();
            (self.few, self.measured) = (Seen::default(), None);
            self.begin(now);
        }
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
            let still_less =
                earlier.is_none_or(|e| self.seen.mean().0 < e.mean().0 - e.mean().0 / 4);
            self.begin(now);
            if !still_less || now.saturating_sub(self.measure) > MEASURE_AT_MOST {
                let least = [earlier, self.measured.take()]
                    .into_iter()
                    .flatten()
                    .min_by_key(|s| s.mean().0);
                self.fews.extend(least);
                if self.fews.len() > MEASUREMENTS {
                    self.fews.pop_front();
                }
                self.few = self.fews.iter().min_by_key(|s| s.mean().0).copied().unwrap_or_default();
                self.measure_later(now);
            }
            return;
        }
        self.seen.add(took, running + 1);
        if self.few.count == 0
            || self.seen.count < ENOUGH
            || now.saturating_sub(self.since) < PERIOD
        {
            return;
        }
        self.last = self.seen;
        if self.is_alone(now) {
            // The size has no influence on what is seen now, so it must not be moved until it has.
            if let Some(enough) = self.enough_by_model() {
                let step = self.size / 8 + 1;
                self.size = enough
                    .clamp(self.size.saturating_sub(step), self.size + step)
                    .clamp(self.least, self.most);
            }
            self.begin(now);
            return;
        }
        match self.busy() {
            Some(busy) if busy > BUSY => {
                self.size = (self.size - self.size / 8 - 1).max(self.least)
            }
            Some(busy) if busy < IDLE && waiting => {
                self.size = (self.size + self.size / 8 + 1).min(self.most)
            }
            None if waiting => self.size = (self.size + 1).min(self.most),
            _ => {}
        }
        self.begin(now);
    }

    /// How busy the store was in this period, in thousandths, if there were more operations than
    /// few.
    fn busy(&self) -> Option<u64> {
        let ((took, among), (few_took, few)) = (self.seen.mean(), self.few.mean());
        if among < few + 50 {
            return None;
        }
        let held_up = u128::from(took.saturating_sub(few_took)) * u128::from(among);
        Some(
            (held_up * 1000 / (u128::from(among - few) * u128::from(took.max(1))))
                .min(u64::MAX.into()) as u64,
        )
    }

    /// How many operations would keep the store as busy as it should be, if what was seen among
    /// those that there were holds for any number.
    fn enough_by_model(&self) -> Option<usize> {
        let ((took, among), (few_took, few)) = (self.seen.mean(), self.few.mean());
        if among < few + 50 {
            return None;
        }
        // In hundredths of nanoseconds.
        let each = (took.saturating_sub(few_took) * 100 / (among - few)).max(1);
        let alone = few_took.saturating_sub(each * few / 100);
        Some((alone * BUSY / ((1000 - BUSY) * each)).min(self.most as u64) as usize)
    }

    /// What an operation takes among few, and what it took in the last period, with how many there
    /// were of them in hundredths.
    pub fn taken(&self) -> [(u64, u64); 2] {
        [self.few.mean(), self.last.mean()]
    }

    fn begin(&mut self, now: u64) {
        (self.seen, self.since) = (Seen::default(), now);
    }
}

fn was_moments_ago(at: Option<u64>, now: u64) -> bool {
    at.is_some_and(|at| now.saturating_sub(at) < THERE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// A closed loop of many operations through a window; how many end, and the sizes of the window
    /// seen last. `end` says when an operation ends that begins now, by how many are in execution.
    fn run(w: &mut Window, seconds: u64, end: impl FnMut(u64, usize) -> u64) -> (u64, Vec<usize>) {
        run_between(w, 0, seconds, end)
    }

    /// The same from one second to another; the sizes are those of the last tenth.
    fn run_between(
        w: &mut Window,
        from: u64,
        to: u64,
        mut end: impl FnMut(u64, usize) -> u64,
    ) -> (u64, Vec<usize>) {
        let (mut now, mut running, mut done, mut sizes, mut n) =
            (from * 1_000_000_000, BTreeSet::new(), 0, Vec::new(), 0u64);
        while now < to * 1_000_000_000 {
            while running.len() < w.size(now) {
                n += 1;
                w.comes(n % 2, true, now);
                running.insert((end(now, running.len()), n, now));
            }
            let Some((at, _, begun)) = running.pop_first() else { break };
            now = now.max(at);
            done += 1;
            w.ended(now - begun, true, running.len(), true, now);
            if now > from * 100_000_000 + to * 900_000_000 {
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
    fn beyond_it_go_some_and_none_while_it_measures_or_there_is_nobody_else() {
        let mut w = Window::new(4, 256, 0);
        w.comes(1, true, 1);
        assert_eq!((w.size(1), w.beyond(1)), (256, 0), "alone");
        w.comes(2, true, 2);
        assert_eq!((w.size(2), w.beyond(2)), (4, 4));
        w.size = 100;
        assert_eq!(w.beyond(2), BEYOND);
        w.comes(1, true, FIRST);
        assert_eq!((w.size(FIRST), w.beyond(FIRST)), (FEW, 0), "measures");
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
        // A commit takes 4 ms and 20 us for each operation; what comes during one goes with the
        // next.
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
        assert!(
            before == 256 && sizes.iter().all(|s| *s <= 5),
            "{before} {:?}",
            sizes.iter().max()
        );
    }

    #[test]
    fn it_follows_a_store_that_becomes_slow_and_fast_again_under_load() {
        let mut w = Window::new(4, 256, 0);
        let at_once = |now: u64| now + 1_000_000;
        let mut free = 0;
        let mut one_by_one = |now: u64, each: u64| {
            free = now.max(free) + each;
            free
        };
        let mut sizes = Vec::new();
        // A quarter of its speed, and back; and one that does everything at once, and back.
        for (from, to, each) in [
            (0, 20, 100_000),
            (20, 40, 400_000),
            (40, 60, 100_000),
            (60, 80, 0),
            (80, 100, 400_000),
            (100, 120, 0),
        ] {
            let (done, seen) = run_between(&mut w, from, to, |now, _| {
                if each == 0 { at_once(now) } else { one_by_one(now, each) }
            });
            sizes.push((seen.iter().min().copied(), seen.iter().max().copied()));
            assert!(
                each == 0 || done * each >= 19_500_000_000,
                "{done} of {each} ns from {from} s on"
            );
        }
        for (at, (least, most)) in sizes.iter().enumerate() {
            let fits = if [3, 5].contains(&at) { *least == Some(256) } else { *most <= Some(6) };
            assert!(fits, "{sizes:?}");
        }
    }

    #[test]
    fn one_session_alone_is_not_held_back() {
        let mut w = Window::new(4, 256, 0);
        let (mut free, mut now) = (0, 0);
        let (_, sizes) = run(&mut w, 20, |at, _| {
            now = at;
            free = at.max(free) + 100_000;
            free
        });
        // Two sessions: the size that such a store needs.
        assert!(sizes.iter().all(|s| *s <= 5) && w.size(now) <= 5, "{sizes:?}");
        // One of them goes on: for a second the other one may come back.
        (1..=20).for_each(|n| w.comes(1, true, now + n * 50_000_000));
        assert_eq!(w.size(now + 1_000_000_001), 256);
        // It pauses: what runs then is background work, and some other may come.
        assert!(w.size(now + 1_200_000_000) <= 5);
        w.comes(1, true, now + 1_200_000_000);
        assert_eq!(w.size(now + 1_200_000_000), 256);
        // No measurement closes it, but one that is due is made when the other comes.
        now += 2 * MEASURE_EVERY;
        w.comes(1, true, now);
        assert_eq!(w.size(now), 256);
        w.comes(0, true, now + 1);
        assert!(w.is_measuring(now + 1) && w.size(now + 1) == FEW);
    }

    #[test]
    fn what_would_be_enough_is_known_while_one_is_alone() {
        // It takes 1 ms and 20 us for each that is there: busy to three quarters with 150.
        let mut w = Window::new(4, 256, 0);
        let took = |n: u64| 1_000_000 + 20_000 * n;
        let mut now = MEASURE_EVERY;
        for n in 0..20 {
            w.comes(n % 2, true, now);
            w.ended(took(2), true, 1, true, now);
        }
        assert!(!w.is_measuring(now), "{w:?}");
        for _ in 1..20_000 {
            now += 200_000;
            w.comes(1, true, now);
            w.ended(took(64), true, 63, false, now);
        }
        assert!(w.is_alone(now) && (140..=160).contains(&w.enough()), "{}", w.enough());
    }

    #[test]
    fn a_measurement_ends_even_if_nothing_that_it_waits_for_ends() {
        let mut w = Window::new(4, 256, 0);
        let mut closed = 0;
        for now in (0..20_000).map(|ms| ms * 1_000_000) {
            w.comes(now / 1_000_000 % 2, true, now);
            closed += u64::from(w.size(now) < 4);
        }
        assert!(closed > 0 && closed <= 4 * (MEASURE_AT_MOST / 1_000_000 + 2), "{closed} ms");
    }

    #[test]
    fn reads_are_looked_at_when_nobody_writes() {
        // A device that does 64 reads at a time, after writes that it did one after the other.
        let mut w = Window::new(4, 256, 0);
        let mut free = 0;
        run(&mut w, 20, |now, _| {
            free = now.max(free) + 100_000;
            free
        });
        assert!(w.size <= 5);
        let (mut now, mut running, mut n) = (21_000_000_000u64, BTreeSet::new(), 0u64);
        let mut slots = [0u64; 64];
        while now < 60_000_000_000 {
            while running.len() < w.size(now) {
                n += 1;
                w.comes(n % 2, false, now);
                let slot = slots.iter_mut().min().expect("64");
                *slot = now.max(*slot) + 1_000_000;
                running.insert((*slot, n, now));
            }
            let Some((at, _, begun)) = running.pop_first() else { break };
            now = now.max(at);
            w.ended(now - begun, false, running.len(), true, now);
        }
        assert!((48..=256).contains(&w.size), "{}", w.size);
    }

    #[test]
    fn windows_of_several_that_pass_through_each_other_are_closed_together() {
        // Each operation passes one device that all three share, one after the other, and takes 200
        // us besides.
        let run = |walls: [u64; 3]| {
            let mut windows = walls.map(|wall| Window::new(4, 256, wall));
            let mut running: [BTreeSet<(u64, u64)>; 3] = Default::default();
            let (mut now, mut free, mut sizes) = (0, 0u64, Vec::new());
            while now < 20_000_000_000 {
                for (w, running) in windows.iter_mut().zip(&mut running) {
                    while running.len() < w.size(now) {
                        w.comes(free, true, now);
                        free = now.max(free) + 100_000;
                        running.insert((free + 200_000, now));
                    }
                }
                let next = (0..3).min_by_key(|i| running[*i].first().map(|f| f.0)).expect("three");
                let (at, begun) = running[next].pop_first().expect("each has some");
                now = now.max(at);
                windows[next].ended(now - begun, true, running[next].len(), true, now);
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
