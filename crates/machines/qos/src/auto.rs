use crate::Latencies;

/// What clients are to have at least: of their operations, `percentile` percent take no longer than
/// `latency` nanoseconds from their arrival to the answer.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Objective {
    /// In nanoseconds.
    pub latency: u64,
    /// Above 0, below 100.
    pub percentile: f64,
}

/// Gives background work all that clients' latency leaves: the parts of [`crate::Beside`] are
/// multiplied by what this says.
///
/// Latency is looked at four times a second, or once while there are few operations. Above the
/// objective, the part falls at once, by as much as the latency is too high, but no more than by
/// half; below nine tenths of it, the part rises by an eighth and a bit, if background work wants
/// more. In between it stays. It falls to [`LEAST`] and rises to [`MOST`], which is no bound at
/// all.
#[derive(Clone, Debug)]
pub struct Auto {
    objective: Objective,
    part: f64,
    most: f64,
    seen: Latencies,
    since: u64,
    measured: Option<u64>,
}

/// The least part. Background work goes on all the same ([`crate::Beside`]).
pub const LEAST: f64 = 1.0 / 64.0;
/// From this part on there is no bound.
pub const MOST: f64 = 16.0;
const PERIOD: u64 = 250_000_000;
/// A period with fewer operations goes on, ...
const ENOUGH: u64 = 40;
/// ... for so long at most.
const LONG: u64 = 1_000_000_000;
/// Below so much of the objective there is room.
const ROOM: f64 = 0.9;
const RISES: (f64, f64) = (0.125, 0.02);
const FALLS: f64 = 0.5;

impl Auto {
    /// Begins with the parts of the profile.
    pub fn new(objective: Objective) -> Self {
        Auto {
            objective,
            part: 1.0,
            most: MOST,
            seen: Latencies::default(),
            since: 0,
            measured: None,
        }
    }

    /// Begins with the least part, and never gives more than those of the profile.
    pub fn within(objective: Objective) -> Self {
        Auto { part: LEAST, most: 1.0, ..Auto::new(objective) }
    }

    /// Whether background work may get more than the profile gives it.
    pub fn set_unbounded(&mut self, unbounded: bool) {
        self.most = if unbounded { MOST } else { 1.0 };
        self.part = self.part.min(self.most);
    }

    /// Changes the objective.
    pub fn set_objective(&mut self, objective: Objective) {
        self.objective = objective;
    }

    /// The objective.
    pub fn objective(&self) -> Objective {
        self.objective
    }

    /// Whether operations were answered since the last look.
    pub fn has_seen(&self) -> bool {
        self.seen.count() > 0
    }

    /// The factor of the parts.
    pub fn part(&self) -> f64 {
        self.part
    }

    /// The same in thousandths; none if there is no bound.
    pub fn scale(&self) -> Option<u32> {
        (self.part < MOST).then_some((self.part * 1000.0) as u32)
    }

    /// The latency that was seen last, at the objective's percentile, in nanoseconds.
    pub fn measured(&self) -> Option<u64> {
        self.measured
    }

    /// A client's operation was answered that took so long.
    #[inline]
    pub fn answered(&mut self, took: u64) {
        self.seen.add(took);
    }

    /// Looks at what was seen, if it is time; whether the part changed. `wants` says whether
    /// background work was held back, or there is more of it than was begun.
    pub fn look(&mut self, wants: bool, now: u64) -> bool {
        let length = now.saturating_sub(self.since);
        if length < PERIOD || (self.seen.count() < ENOUGH && length < LONG) {
            return false;
        }
        self.since = now;
        let measured = self.seen.at(self.objective.percentile);
        self.seen.clear();
        self.measured = measured;
        let before = self.part;
        // Without clients there is nothing to learn, and nothing is held back.
        if let Some(measured) = measured {
            let of_objective = measured as f64 / self.objective.latency.max(1) as f64;
            if of_objective > 1.0 {
                self.part *= (1.0 / of_objective).max(FALLS);
            } else if of_objective < ROOM && wants {
                self.part += self.part * RISES.0 + RISES.1;
            }
        }
        self.part = self.part.clamp(LEAST, self.most);
        self.part != before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// An OSD on which a client's operation takes `alone` ms, and as much again for each part of
    /// background work that is beside it. Clients begin ten operations in a millisecond.
    struct Osd {
        auto: Auto,
        now: u64,
        noise: u64,
    }

    impl Osd {
        fn new(ms: u64) -> Self {
            Osd {
                auto: Auto::new(Objective { latency: ms * MS, percentile: 95.0 }),
                now: 0,
                noise: 1,
            }
        }

        fn run(&mut self, seconds: u64, alone: f64, clients: bool, wants: bool) {
            for _ in 0..seconds * 1000 {
                self.now += MS;
                for _ in 0..if clients { 10 } else { 0 } {
                    self.noise = self
                        .noise
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    let noise = 0.8 + 0.4 * ((self.noise >> 33) % 1000) as f64 / 1000.0;
                    self.auto
                        .answered((alone * (1.0 + self.auto.part()) * noise * MS as f64) as u64);
                }
                self.auto.look(wants, self.now);
            }
        }
    }

    #[test]
    fn it_finds_what_the_objective_leaves_and_follows() {
        let mut osd = Osd::new(20);
        osd.run(20, 4.0, true, true);
        // 4 * (1 + x) * 1.18 = 20, below which it stays by at most a bin and a step.
        let found = osd.auto.part();
        assert!((2.2..3.5).contains(&found), "{found}");
        // The load becomes heavier, and lighter.
        osd.run(4, 10.0, true, true);
        let found = osd.auto.part();
        assert!((0.3..0.75).contains(&found), "{found}");
        osd.run(10, 4.0, true, true);
        let found = osd.auto.part();
        assert!((2.0..3.5).contains(&found), "{found}");
    }

    #[test]
    fn an_objective_out_of_reach_leaves_the_least_and_one_that_is_no_object_everything() {
        let mut osd = Osd::new(2);
        osd.run(5, 10.0, true, true);
        assert_eq!((osd.auto.part(), osd.auto.scale()), (LEAST, Some(15)));
        let mut osd = Osd::new(10_000);
        osd.run(10, 10.0, true, true);
        assert_eq!((osd.auto.part(), osd.auto.scale()), (MOST, None));
        // And down again in some seconds.
        osd.auto.set_objective(Objective { latency: 20 * MS, percentile: 95.0 });
        osd.run(3, 10.0, true, true);
        assert!(osd.auto.part() < 1.0, "{}", osd.auto.part());
    }

    #[test]
    fn within_a_profile_it_begins_with_the_least_and_ends_with_its_parts() {
        let mut osd = Osd::new(10_000);
        osd.auto = Auto::within(osd.auto.objective());
        assert_eq!(osd.auto.part(), LEAST);
        osd.run(1, 4.0, true, true);
        assert!((LEAST..0.3).contains(&osd.auto.part()), "{}", osd.auto.part());
        osd.run(10, 4.0, true, true);
        assert_eq!((osd.auto.part(), osd.auto.scale()), (1.0, Some(1000)));
        osd.auto.set_unbounded(true);
        osd.run(10, 4.0, true, true);
        assert_eq!(osd.auto.scale(), None);
        osd.auto.set_unbounded(false);
        assert_eq!(osd.auto.part(), 1.0);
    }

    #[test]
    fn it_does_not_rise_unused_and_stays_without_clients() {
        let mut osd = Osd::new(1000);
        osd.run(10, 1.0, true, false);
        assert_eq!(osd.auto.part(), 1.0);
        osd.run(10, 1.0, false, true);
        assert_eq!((osd.auto.part(), osd.auto.measured()), (1.0, None));
    }
}
