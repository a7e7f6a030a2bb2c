//! How fast a movement job goes: what clients' latency leaves of its limits, and when it ends.

use crate::movement::Limits;
use denc_derive::Denc;
use types::Utime;

/// How long operations of clients took, of late, on all OSDs together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientLatency {
    /// Tells one measurement from the next.
    pub number: u64,
    /// Of 100 operations 99 took no longer, in microseconds. Nothing if no client asked for
    /// anything.
    pub p99: Option<u64>,
}

/// All of the limits, in thousandths.
pub const WHOLE: u32 = 1000;
/// Below so much of the ceiling there is room for more.
const ROOM: f64 = 0.9;
/// A measurement above the ceiling leaves a part between these: what is a little above comes from
/// the last PG that was added, and half lets several measurements pass until it is added again.
const FALLS: std::ops::RangeInclusive<f64> = 0.25..=0.5;
/// A measurement with room adds this part,
const RISES: f64 = 0.0625;
/// and so much of the whole.
const RISES_BY: f64 = 0.02;
/// A pace below this begins nothing.
const LEAST: f64 = 0.01;

/// The pace after a measurement: above the ceiling it falls to half or less, it rises by steps
/// while there is room, and stays in between. Both are in thousandths of the job's limits.
pub fn pace(before: u32, p99: Option<u64>, ceiling: u64) -> u32 {
    let now = f64::from(before.min(WHOLE)) / f64::from(WHOLE);
    let of_ceiling = p99.map_or(0.0, |p99| p99 as f64 / ceiling.max(1) as f64);
    let next = if of_ceiling > 1.0 {
        let fallen = now * (1.0 / of_ceiling).clamp(*FALLS.start(), *FALLS.end());
        if fallen < LEAST { 0.0 } else { fallen }
    } else if of_ceiling < ROOM {
        now + now * RISES + RISES_BY
    } else {
        now
    };
    (next.min(1.0) * f64::from(WHOLE)) as u32
}

/// The pace of a job that begins: all of its limits, or with a ceiling the least that begins
/// anything. What it costs clients is measured first.
pub fn first(ceiling: u64) -> u32 {
    if ceiling == 0 { WHOLE } else { (LEAST * f64::from(WHOLE)) as u32 }
}

/// How many PGs may move at a time at a pace: at least one above the least.
pub fn allowed(pgs: u32, pace: u32) -> u32 {
    let part = u64::from(pgs) * u64::from(pace.min(WHOLE)) / u64::from(WHOLE);
    if pace == 0 { 0 } else { (part as u32).max(1) }
}

/// Stretches of time in which data arrived, the last ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct Arrivals {
    /// The end of the last stretch; zero while the job stands still.
    since: Utime,
    /// Milliseconds and bytes of each.
    stretches: Vec<(u64, u64)>,
}

/// Stretches that are kept.
const STRETCHES_MAX: usize = 32;

impl Arrivals {
    /// So many bytes have arrived. The first of them begin a stretch; its beginning is not known.
    pub fn note(&mut self, bytes: u64, now: Utime) {
        if bytes == 0 {
            return;
        }
        if !self.since.is_zero() && now > self.since {
            let millis = u64::try_from(now.since(self.since).as_millis()).unwrap_or(u64::MAX);
            self.stretches.push((millis.max(1), bytes));
            let above = self.stretches.len().saturating_sub(STRETCHES_MAX);
            self.stretches.drain(..above);
        }
        self.since = now;
    }

    /// Something moves: time counts.
    pub fn go(&mut self, now: Utime) {
        if self.since.is_zero() {
            self.since = now;
        }
    }

    /// Nothing moves, by wish: time does not count.
    pub fn stand(&mut self) {
        self.since = Utime::default();
    }

    /// Nothing is known of how fast it goes.
    pub fn forget(&mut self) {
        *self = Arrivals::default();
    }
}

/// When a job ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Eta {
    /// Seconds until then, at the mean rate of late.
    pub seconds: u64,
    /// With [`CONFIDENCE`] it is between these. Nothing for the later one: no bound is known.
    pub range: Option<(u64, Option<u64>)>,
}

/// The part of all jobs that end within the range of an [`Eta`], if rates vary as they did.
pub const CONFIDENCE: f64 = 0.8;

/// Student's t for [`CONFIDENCE`], by degrees of freedom from 1 on.
const STUDENT: [f64; 10] = [3.08, 1.89, 1.64, 1.53, 1.48, 1.44, 1.41, 1.40, 1.38, 1.37];
/// The same for more of them.
const NORMAL: f64 = 1.3;

/// When so many bytes have arrived if it goes on as of late, within the hours of the limits.
pub fn eta(arrivals: &Arrivals, left: u64, limits: &Limits, now: Utime) -> Option<Eta> {
    let n = arrivals.stretches.len() as f64;
    let (millis, bytes) = arrivals
        .stretches
        .iter()
        .fold((0.0, 0.0), |(t, b), (millis, bytes)| (t + *millis as f64, b + *bytes as f64));
    if millis <= 0.0 || bytes <= 0.0 {
        return None;
    }
    let (rate, left) = (bytes / millis * 1000.0, left as f64);
    let bound = |rate: f64| match limits.rate {
        0 => rate,
        most => rate.min(most as f64),
    };
    let until = |rate: f64| limits.until_done(left / bound(rate), now);
    let range = (arrivals.stretches.len() > 1).then(|| {
        // How far stretches are from the mean rate, and what that means for as many stretches as
        // are left: the mean of late is uncertain, and what is left varies as well.
        let off =
            |(millis, bytes): &(u64, u64)| (*bytes as f64 - rate / 1000.0 * *millis as f64).powi(2);
        let variance = arrivals.stretches.iter().map(off).sum::<f64>() / (n - 1.0);
        let left_stretches = (left / (bytes / n)).max(1.0);
        let spread = variance.sqrt() / (millis / n) * 1000.0;
        let spread = spread * (1.0 / n + 1.0 / left_stretches).sqrt();
        let student = STUDENT.get(arrivals.stretches.len() - 2).copied().unwrap_or(NORMAL);
        let slow = rate - student * spread;
        (until(rate + student * spread), (slow > rate / 100.0).then(|| until(slow)))
    });
    Some(Eta { seconds: until(rate), range })
}

/// Seconds of a day.
const DAY: u64 = 86_400;

impl Limits {
    /// Seconds until so many seconds of work are done: nothing begins outside of the hours.
    fn until_done(&self, work: f64, now: Utime) -> u64 {
        let work = work.clamp(0.0, 1e12) as u64;
        let (from, until) = (u64::from(self.from) * 60, u64::from(self.until) * 60);
        if from == until {
            return work;
        }
        let open = (until + DAY - from) % DAY;
        let open = if open == 0 { DAY } else { open };
        // Seconds since the hours began last.
        let since = (u64::from(now.sec) % DAY + DAY - from % DAY) % DAY;
        let rest = open.saturating_sub(since);
        if work <= rest {
            return work;
        }
        let after = work - rest;
        // Until the hours begin again, whole days, and what is left of the last one.
        let (days, last) = (after.div_ceil(open) - 1, (after - 1) % open + 1);
        DAY - since + days * DAY + last
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Rng;
    use std::time::Duration;

    #[test]
    fn the_pace_gives_way_at_once_and_comes_back_by_steps() {
        let ceiling = 10_000;
        assert_eq!(pace(WHOLE, Some(9_500), ceiling), WHOLE, "in between it stays");
        assert_eq!(pace(500, Some(9_500), ceiling), 500);
        assert_eq!(pace(WHOLE, Some(10_001), ceiling), 500);
        assert_eq!(pace(WHOLE, Some(30_000), ceiling), 333, "three times too slow: a third");
        assert_eq!(pace(WHOLE, Some(u64::MAX), ceiling), 250);
        let mut p = WHOLE;
        let mut falls = Vec::new();
        while p > 0 {
            p = pace(p, Some(100_000), ceiling);
            falls.push(p);
        }
        assert_eq!(falls, [250, 62, 15, 0], "nothing begins after four measurements");
        assert_eq!((first(0), allowed(16, first(0))), (WHOLE, 16), "no ceiling");
        assert_eq!(allowed(16, first(ceiling)), 1);
        let mut rises = 0;
        while p < WHOLE {
            let next = pace(p, Some(1_000), ceiling);
            assert!(next > p);
            (p, rises) = (next, rises + 1);
        }
        assert!((18..=28).contains(&rises), "{rises}");
        assert!(pace(0, None, ceiling) > 0, "without clients nothing holds it back");
        assert_eq!(
            (allowed(16, 0), allowed(16, 10), allowed(16, 500), allowed(16, 9999)),
            (0, 1, 8, 16)
        );
    }

    /// A device that takes a millisecond, and as much again for each PG that moves.
    #[test]
    fn a_steady_load_is_held_at_its_ceiling() {
        let mut rng = Rng(7);
        for ceiling in [3_000u64, 6_000, 12_000] {
            let (mut p, mut seen) = (WHOLE, Vec::new());
            for _ in 0..400 {
                let moving = u64::from(allowed(16, p));
                let p99 = (1 + moving) * (900 + rng.below(200));
                seen.push(p99);
                p = pace(p, Some(p99), ceiling);
            }
            let above = seen.iter().skip(20).filter(|s| **s > ceiling).count();
            let mean = seen.iter().skip(20).sum::<u64>() / 380;
            assert!(above < 95, "{ceiling}: {above} of 380 above");
            assert!(mean > ceiling / 2, "{ceiling}: mean {mean} leaves room unused");
        }
    }

    #[test]
    fn ranges_have_the_confidence_that_they_claim() {
        let mut rng = Rng(11);
        let (mut within, mut all, mut open) = (0, 0, 0);
        for _ in 0..400 {
            let stretches = 4 + rng.below(20);
            let (mut arrivals, mut now) = (Arrivals::default(), Utime::new(1_000_000, 0));
            arrivals.go(now);
            // Of one size, at rates that differ by four.
            let stretch = |rng: &mut Rng| (10_000_000u64, 5 + rng.below(15));
            for _ in 0..stretches {
                let (bytes, seconds) = stretch(&mut rng);
                now = now + Duration::from_secs(seconds);
                arrivals.note(bytes, now);
            }
            let rest = 5 + rng.below(40);
            let left: u64 = rest * 10_000_000;
            let took: u64 = (0..rest).map(|_| stretch(&mut rng).1).sum();
            let eta = eta(&arrivals, left, &Limits::default(), now).unwrap();
            let (low, high) = eta.range.unwrap();
            assert!(low <= eta.seconds && high.is_none_or(|h| eta.seconds <= h), "{eta:?}");
            all += 1;
            open += u32::from(high.is_none());
            within += u32::from(low <= took && high.is_none_or(|h| took <= h));
        }
        let part = f64::from(within) / f64::from(all);
        assert!((0.7..0.93).contains(&part) && open < 20, "{part} within, {open} without a bound");
    }

    #[test]
    fn an_estimate_counts_hours_and_rates() {
        let mut arrivals = Arrivals::default();
        let at = |h: u64, m: u64| Utime::new((86_400 * 3 + h * 3600 + m * 60) as u32, 0);
        assert_eq!(eta(&arrivals, 1, &Limits::default(), at(0, 0)), None, "nothing is known");
        arrivals.go(at(22, 0));
        arrivals.note(60 << 20, at(22, 1));
        let always = Limits::default();
        let one = eta(&arrivals, 60 << 20, &always, at(22, 1)).unwrap();
        assert_eq!((one.seconds, one.range), (60, None), "one stretch tells no spread");
        arrivals.note(60 << 20, at(22, 2));
        let two = eta(&arrivals, 120 << 20, &always, at(22, 2)).unwrap();
        assert_eq!((two.seconds, two.range), (120, Some((120, Some(120)))));
        let slow = Limits { rate: 1 << 19, ..always };
        assert_eq!(eta(&arrivals, 120 << 20, &slow, at(22, 2)).unwrap().seconds, 240);
        // Eight hours each night: ten hours of work from 23:00 on end at 01:00 + 22 hours.
        let night = Limits { from: 22 * 60, until: 6 * 60, ..always };
        let work = |hours: u64| hours * 3600 * (1 << 20);
        let seconds = |hours, now| eta(&arrivals, work(hours), &night, now).unwrap().seconds / 3600;
        assert_eq!((seconds(7, at(23, 0)), seconds(10, at(23, 0))), (7, 26));
        assert_eq!(
            (seconds(1, at(12, 0)), seconds(8, at(12, 0)), seconds(9, at(12, 0))),
            (11, 18, 35)
        );
        // A pause does not count.
        arrivals.stand();
        arrivals.note(1, at(23, 30));
        arrivals.note(60 << 20, at(23, 31));
        assert_eq!(eta(&arrivals, 60 << 20, &always, at(23, 31)).unwrap().seconds, 60);
    }
}
