//! What an OSD can do, as far as it was seen.

use crate::cost::REFERENCE;

/// A period of an OSD's work.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Period {
    /// How long it was.
    pub nanos: u64,
    /// The cost of what was done, in units ([`REFERENCE`]).
    pub work: u64,
    /// The same in nanoseconds of device and processor.
    pub cost_nanos: u64,
    /// How long the device was busy.
    pub device: u64,
    /// How long the thread was.
    pub cpu: u64,
    /// Something waited all the time that was allowed to go on.
    pub backlogged: bool,
}

/// The outcome of a period.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It showed what the OSD can do.
    Exact,
    /// It showed that the OSD can do at least something.
    AtLeast,
    /// It says nothing.
    Nothing,
    /// It makes no sense.
    Refused,
}

/// The median of so many periods is believed.
const PERIODS: usize = 5;
/// Capacities that a store can have, in random writes of 4 KiB each second.
const SENSE: std::ops::RangeInclusive<f64> = 1.0..=1e8;
/// Shorter than this, and longer, the thread stood still or the clock jumped.
const LENGTH: std::ops::RangeInclusive<u64> = 10_000_000..=10_000_000_000;
/// Costs that add up to so many times the time that passed are wrong.
const MANY: u64 = 50;
/// Parts of a period, in thousandths: from the first on it was busy, from the second on it says
/// anything.
const BUSY: u64 = 600;
const USED: u64 = 5;
/// Of a lower bound, so much is certain.
const CERTAIN: f64 = 0.8;
/// An estimate is trusted after so many periods.
const TRUSTED: u32 = 10;
const TRUST_MOST: u32 = 100;

/// The last few values.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
struct Recent {
    values: [f64; PERIODS],
    len: usize,
    next: usize,
}

impl Recent {
    fn push(&mut self, v: f64) {
        self.values[self.next] = v;
        self.next = (self.next + 1) % PERIODS;
        self.len = (self.len + 1).min(PERIODS);
    }

    /// Of at least three.
    fn median(&self) -> Option<f64> {
        let mut v = self.values;
        let v = v.get_mut(..self.len).filter(|v| v.len() >= 3)?;
        v.sort_by(f64::total_cmp);
        v.get(v.len() / 2).copied()
    }
}

/// Learns how many random writes of 4 KiB an OSD does each second, or what costs as much.
///
/// Only while something waits and the device or the thread is busy does its rate say what it can
/// do; the median of the last of such periods is what the estimate goes to, half of the way each
/// time. At other times the rate, by how much of device and thread it took, is a lower bound,
/// because work that is done together is cheaper: an estimate that is too low rises then, even if a
/// ceiling that follows from it keeps the OSD idle.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CapacityEstimator {
    iops: f64,
    exact: Recent,
    bounds: Recent,
    trust: u32,
    refused: u64,
}

impl CapacityEstimator {
    /// Looks at a period.
    pub fn observe(&mut self, p: &Period) -> Verdict {
        if !LENGTH.contains(&p.nanos) || p.cost_nanos / p.nanos.max(1) >= MANY {
            self.refused += 1;
            return Verdict::Refused;
        }
        let used = p.device.max(p.cpu).min(p.nanos) * 1000 / p.nanos;
        let rate = p.work as f64 / f64::from(REFERENCE) * 1e9 / p.nanos as f64;
        if p.work == 0 || used < USED {
            return Verdict::Nothing;
        }
        if p.backlogged && used >= BUSY {
            if !SENSE.contains(&rate) {
                self.refused += 1;
                return Verdict::Refused;
            }
            self.exact.push(rate);
            // Those lower bounds were of another time.
            self.bounds = Recent::default();
            if let Some(median) = self.exact.median() {
                self.iops = if self.is_trusted() { (self.iops + median) / 2.0 } else { median };
            }
            self.trust = (self.trust + 1).min(TRUST_MOST);
            return Verdict::Exact;
        }
        self.bounds.push(rate * 1000.0 / used as f64 * CERTAIN);
        if let Some(bound) =
            self.bounds.median().filter(|b| SENSE.contains(b) && *b > self.iops && self.iops > 0.0)
        {
            self.iops = (self.iops * 3.0 + bound) / 4.0;
        }
        Verdict::AtLeast
    }

    /// The estimate, whether it can be trusted or not; 0 if there is none.
    pub fn iops(&self) -> f64 {
        self.iops
    }

    /// The estimate, if it can be trusted.
    pub fn trusted(&self) -> Option<f64> {
        self.is_trusted().then_some(self.iops)
    }

    fn is_trusted(&self) -> bool {
        self.trust >= TRUSTED && SENSE.contains(&self.iops)
    }

    /// How sure it is, from 0 to 1.
    pub fn confidence(&self) -> f64 {
        f64::from(self.trust) / f64::from(TRUST_MOST)
    }

    /// Periods that made no sense.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// What is kept over a restart: thousandths of writes each second, and the trust.
    pub fn save(&self) -> (u64, u32) {
        ((self.iops * 1000.0) as u64, self.trust)
    }

    /// From what [`CapacityEstimator::save`] gave. What makes no sense is forgotten.
    pub fn restore((milli, trust): (u64, u32)) -> Self {
        let iops = milli as f64 / 1000.0;
        if !SENSE.contains(&iops) {
            return CapacityEstimator::default();
        }
        // Much may have changed meanwhile: a few periods are enough to say otherwise.
        CapacityEstimator { iops, trust: trust.min(TRUSTED), ..CapacityEstimator::default() }
    }
}

/// The most that is set aside for a floor, in thousandths of it, where there is room: for a tenant
/// that is spread over three OSDs and more. Clients keep so many operations under way, and in one
/// second more of them than their part fall to one OSD, and in the next to another: with just the
/// floor on all OSDs together, they get less than it in every fourth second.
pub const AHEAD: u32 = 1350;
/// What is set aside for one that is on this OSD alone: an OSD that stands still for fifty
/// milliseconds has given it the floor of the whole second nevertheless.
const ALONE: u32 = 1050;
/// The same where no other OSD leads PGs of its pool: while another one takes this one's place, for
/// a fifth of a second, nothing of the tenant is served.
const ONLY: u32 = 1250;

/// What is set aside for a floor of which `elsewhere` is on others of the `osds` that serve its
/// pool, if there is room for `most`; but for `osds` all in thousandths.
pub fn set_aside(most: u32, osds: u32, elsewhere: u32) -> u32 {
    if osds <= 1 {
        return most.min(ONLY);
    }
    let spread = (elsewhere.min(1000) * 3 / 2).min(1000);
    most.min(ALONE + (AHEAD - ALONE) * spread / 1000)
}

/// The part of promises for which there is room, in thousandths and up to [`AHEAD`], if together
/// they cost so much of a capacity, both in units a second.
pub fn room_for(promised: u64, capacity: u64) -> u32 {
    let most = u128::from(capacity) * 9 / 10;
    (most * 1000)
        .checked_div(u128::from(promised))
        .map_or(AHEAD, |part| part.clamp(1, u128::from(AHEAD)) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn busy(iops: u64) -> Period {
        let (nanos, work) = (SECOND / 10, iops * u64::from(REFERENCE) / 10);
        Period {
            nanos,
            work,
            cost_nanos: nanos,
            device: nanos * 95 / 100,
            cpu: nanos / 5,
            backlogged: true,
        }
    }

    #[test]
    fn it_is_learned_only_when_something_waits_and_the_device_is_busy() {
        let mut c = CapacityEstimator::default();
        for p in
            [Period { backlogged: false, ..busy(500) }, Period { device: SECOND / 20, ..busy(500) }]
        {
            (0..50).for_each(|_| assert_eq!(c.observe(&p), Verdict::AtLeast));
            assert_eq!((c.iops(), c.trusted()), (0.0, None));
        }
        for _ in 0..9 {
            assert_eq!(c.observe(&busy(500)), Verdict::Exact);
            assert_eq!(c.trusted(), None);
        }
        c.observe(&busy(500));
        assert!(c.trusted().is_some_and(|i| (499.0..501.0).contains(&i)));
    }

    #[test]
    fn single_periods_change_nothing_and_lasting_ones_do() {
        let mut c = CapacityEstimator::default();
        (0..20).for_each(|_| {
            c.observe(&busy(1000));
        });
        for odd in [100_000, 1] {
            c.observe(&busy(odd));
            c.observe(&busy(odd));
            assert!((999.0..1001.0).contains(&c.iops()), "{c:?}");
            (0..5).for_each(|_| {
                c.observe(&busy(1000));
            });
        }
        // A second is enough for a device that became ten times slower, or faster.
        for now in [100, 1000, 50_000] {
            (0..10).for_each(|_| {
                c.observe(&busy(now));
            });
            let now = now as f64;
            assert!(
                (now * 0.98..now * 1.1).contains(&c.iops()) || (now * 0.9..now).contains(&c.iops()),
                "{now} {c:?}"
            );
        }
    }

    #[test]
    fn an_estimate_that_is_too_low_rises_without_being_reached() {
        let mut c = CapacityEstimator::default();
        (0..20).for_each(|_| {
            c.observe(&busy(100));
        });
        // Kept at ninety by a ceiling, and the device is busy for a tenth of the time.
        let held = Period { backlogged: false, device: SECOND / 100, cpu: 0, ..busy(90) };
        (0..30).for_each(|_| assert_eq!(c.observe(&held), Verdict::AtLeast));
        assert!((600.0..=720.0).contains(&c.iops()), "{c:?}");
        // What is hardly used says nothing.
        let idle = Period { device: SECOND / 10_000, ..held };
        assert_eq!(c.observe(&idle), Verdict::Nothing);
    }

    #[test]
    fn absurd_periods_are_refused() {
        let mut c = CapacityEstimator::default();
        (0..20).for_each(|_| {
            c.observe(&busy(1000));
        });
        let before = c.iops();
        let absurd = [
            Period { nanos: 0, ..busy(1) },
            Period { nanos: 1000, ..busy(1000) },
            Period { nanos: u64::MAX, ..busy(1000) },
            Period { work: u64::MAX, ..busy(1) },
            Period { work: 1, ..busy(1) },
            Period { cost_nanos: 60 * SECOND, ..busy(1000) },
        ];
        for p in absurd {
            assert_eq!(c.observe(&p), Verdict::Refused, "{p:?}");
        }
        assert_eq!((c.iops(), c.refused()), (before, absurd.len() as u64));
    }

    #[test]
    fn it_survives_and_what_is_absurd_does_not() {
        let mut c = CapacityEstimator::default();
        (0..200).for_each(|_| {
            c.observe(&busy(1234));
        });
        let mut again = CapacityEstimator::restore(c.save());
        assert!(again.trusted().is_some_and(|i| (1233.0..1235.0).contains(&i)));
        // It is corrected as quickly as ever.
        (0..10).for_each(|_| {
            again.observe(&busy(400));
        });
        assert!((390.0..420.0).contains(&again.iops()), "{again:?}");
        for bad in [(0, 100), (u64::MAX, 100), (999, 100)] {
            assert_eq!(CapacityEstimator::restore(bad).trusted(), None);
        }
    }

    #[test]
    fn promises_are_scaled_to_what_there_is() {
        let room = [(0, 0), (50, 100), (90, 100), (180, 100), (91, 0), (u64::MAX, u64::MAX)]
            .map(|(promised, capacity)| room_for(promised, capacity));
        assert_eq!(room, [AHEAD, AHEAD, 1000, 500, 1, 899]);
        // On one OSD, half of it on another, on three and on many; and where there is less room.
        assert_eq!(
            [0, 500, 667, 1000].map(|elsewhere| set_aside(AHEAD, 3, elsewhere)),
            [1050, 1275, 1350, 1350]
        );
        assert_eq!(
            [(1, 0), (3, 0), (3, 1000)].map(|(osds, elsewhere)| set_aside(700, osds, elsewhere)),
            [700; 3]
        );
        assert_eq!(set_aside(AHEAD, 1, 0), 1250);
    }
}
