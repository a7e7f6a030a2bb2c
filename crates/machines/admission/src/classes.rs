//! What classes of operations ask for and get, and how long they wait.

use crate::waits::Waits;
use messages::ClassWork;
use qos::{MclockSpec, OpClass, Phase};
use serde_json::{Value, json};

/// Waiting times are those of the last one or two of these, in nanoseconds.
const RECENT_NANOS: u64 = 60_000_000_000;

/// One class, since the OSD started.
#[derive(Clone, Copy, Default)]
pub(crate) struct Counts {
    pub offered: u64,
    pub offered_bytes: u64,
    pub served: u64,
    pub served_bytes: u64,
    pub by_reservation: u64,
    pub by_floor: u64,
    beyond: u64,
    /// What it was charged, in thousandths of a write of 4 KiB.
    cost: u64,
    throttled: u64,
    throttled_time: u64,
    at_ceiling: u64,
    waited: u64,
    waits: Waits,
    /// What of `waits` the manager was told.
    told: Waits,
    /// When the last two lookbacks began, and what `waits` was then.
    before: [(u64, Waits); 2],
    /// Until when it is at its ceiling, if it is.
    ceiling: Option<u64>,
}

/// What each class of operations was promised and got. Times are nanoseconds of the scheduler's
/// clock.
#[derive(Default)]
pub(crate) struct Classes {
    of: [Counts; 3],
    looked: u64,
}

impl Classes {
    fn get(&mut self, class: OpClass) -> Option<&mut Counts> {
        let at = OpClass::SHARED.iter().position(|c| *c == class)?;
        self.of.get_mut(at)
    }

    /// By class.
    pub fn all(&self) -> impl Iterator<Item = (OpClass, &Counts)> {
        OpClass::SHARED.into_iter().zip(&self.of)
    }

    /// An operation came. One that comes again counts again, as it does when it is served.
    pub fn offered(&mut self, class: OpClass, bytes: u64) {
        let Some(c) = self.get(class) else { return };
        c.offered += 1;
        c.offered_bytes = c.offered_bytes.saturating_add(bytes);
    }

    /// These were held back in front of the scheduler, for so long together.
    pub fn throttled(&mut self, class: OpClass, ops: u64, nanos: u64) {
        let Some(c) = self.get(class) else { return };
        c.throttled += ops;
        c.throttled_time = c.throttled_time.saturating_add(nanos);
    }

    /// The scheduler let an operation in, of so many bytes and thousandths of a write of 4 KiB,
    /// that had waited for so long.
    pub fn served(
        &mut self,
        class: OpClass,
        (bytes, cost): (u64, u64),
        phase: Phase,
        waited: u64,
        now: u64,
    ) {
        let Some(c) = self.get(class) else { return };
        if now.saturating_sub(c.before[1].0) >= RECENT_NANOS {
            c.before = [c.before[1], (now, c.waits)];
        }
        c.served += 1;
        c.served_bytes = c.served_bytes.saturating_add(bytes);
        c.cost = c.cost.saturating_add(cost);
        c.by_reservation += u64::from(phase == Phase::Reservation);
        c.by_floor += u64::from(phase == Phase::Floor);
        c.beyond += u64::from(phase == Phase::Beyond);
        c.waited = c.waited.saturating_add(waited);
        c.waits.add(waited);
    }

    /// What was served turned out to cost something else; both in thousandths of a write of 4 KiB.
    pub fn settled(&mut self, class: OpClass, paid: u64, really: u64) {
        let Some(c) = self.get(class) else { return };
        c.cost = c.cost.saturating_add(really).saturating_sub(paid);
    }

    /// Until when each class is at its ceiling from now on, if something of it waits.
    #[inline]
    pub fn at_ceiling(&mut self, until: [Option<u64>; 3], now: u64) {
        for (c, until) in self.of.iter_mut().zip(until) {
            if let Some(before) = std::mem::replace(&mut c.ceiling, until) {
                c.at_ceiling += before.min(now).saturating_sub(self.looked);
            }
        }
        self.looked = now;
    }

    /// For people: `waiting` is what waits of a class, if that is known, and `spec` what they are
    /// promised.
    pub fn dump(
        &self,
        waiting: impl Fn(OpClass) -> Option<usize>,
        spec: Option<&MclockSpec>,
    ) -> Value {
        let of = |(class, c): (OpClass, &Counts)| {
            let recent = c.waits.since(&c.before[0].1);
            let [p50, p90, p99] = [0.5, 0.9, 0.99].map(|q| recent.quantile(q));
            let mut dump = json!({
                "waiting": waiting(class),
                "offered": c.offered, "offered_bytes": c.offered_bytes, "served": c.served, "served_bytes": c.served_bytes,
                "served_by_reservation": c.by_reservation, "served_by_floor": c.by_floor, "served_beyond_ceiling": c.beyond,
                "served_cost": c.cost as f64 / 1000.0,
                "throttled": c.throttled, "throttled_ns": c.throttled_time, "at_ceiling_ns": c.at_ceiling,
                "waited_ns": c.waited, "waits_log2_us": c.waits.used(), "wait_us": {"p50": p50, "p90": p90, "p99": p99},
            });
            if let Some(spec) = spec {
                let (reservation, weight, limit) = promised(spec, class);
                let iops = |milli: u64| (milli > 0).then_some(milli as f64 / 1000.0);
                dump["promised"] = json!({"reservation_iops": iops(reservation), "weight": weight, "limit_iops": iops(limit)});
            }
            (class.name().to_owned(), dump)
        };
        self.all().map(of).collect::<serde_json::Map<_, _>>().into()
    }

    /// For the manager.
    pub fn take_work(&mut self, spec: Option<&MclockSpec>) -> Vec<ClassWork> {
        let of = |(class, c): (OpClass, &mut Counts)| {
            let (reservation, weight, limit) = spec.map_or((0, 0, 0), |spec| promised(spec, class));
            let waits = c.waits.since(&c.told).used().to_vec();
            c.told = c.waits;
            ClassWork {
                reservation,
                weight,
                limit,
                offered: c.offered,
                offered_bytes: c.offered_bytes,
                throttled: c.throttled,
                throttled_time: c.throttled_time,
                at_ceiling: c.at_ceiling,
                waited: c.waited,
                waits,
            }
        };
        OpClass::SHARED.into_iter().zip(&mut self.of).map(of).collect()
    }
}

/// What a class is promised: thousandths of small writes each second, and its weight.
fn promised(spec: &MclockSpec, class: OpClass) -> (u64, u32, u64) {
    let of = match class {
        OpClass::Client | OpClass::Immediate => &spec.client,
        OpClass::BackgroundRecovery => &spec.background_recovery,
        OpClass::BackgroundBestEffort => &spec.background_best_effort,
    };
    let milli = |rate: u64| {
        (u128::from(rate) * 1000).div_ceil(u128::from(spec.cost_per_io.max(1))).min(u64::MAX.into())
            as u64
    };
    (milli(of.reservation), of.weight, milli(of.limit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use qos::ClassSpec;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn what_is_promised_is_in_writes() {
        let class = |reservation, weight, limit| ClassSpec { reservation, weight, limit };
        let spec = MclockSpec {
            client: class(4096 * 150, 2, 0),
            background_recovery: class(0, 1, 4096 * 10 + 2048),
            background_best_effort: class(1, 1, 0),
            cost_per_io: 4096,
        };
        assert_eq!(promised(&spec, OpClass::Client), (150_000, 2, 0));
        assert_eq!(promised(&spec, OpClass::BackgroundRecovery), (0, 1, 10_500));
        assert_eq!(promised(&spec, OpClass::BackgroundBestEffort).0, 1, "a tiny floor is one");
        let dump = Classes::default().dump(|_| Some(3), Some(&spec));
        assert_eq!(
            dump["client"]["promised"],
            json!({"reservation_iops": 150.0, "weight": 2, "limit_iops": null})
        );
        assert!(Classes::default().dump(|_| None, None)["client"].get("promised").is_none());
    }

    #[test]
    fn waits_of_late_and_since_the_last_report() {
        let mut c = Classes::default();
        let p99 = |c: &Classes| c.dump(|_| None, None)["client"]["wait_us"]["p99"].as_f64();
        assert_eq!(p99(&c), None, "nothing waited");
        for n in 0..100 {
            c.served(OpClass::Client, (1, 1000), Phase::Weight, 100_000_000, n);
        }
        assert!(p99(&c).is_some_and(|us| (65_536.0..131_073.0).contains(&us)), "{:?}", p99(&c));
        let work = c.take_work(None);
        assert_eq!(
            (work[0].waits.iter().sum::<u32>(), work[0].waited, work[1].waits.len()),
            (100, 100 * 100_000_000, 0)
        );
        // After two minutes only what came then counts, and the manager hears of nothing twice.
        for n in [70, 140, 141] {
            c.served(OpClass::Client, (1, 1000), Phase::Floor, 3000, n * SECOND);
        }
        assert!(p99(&c).is_some_and(|us| us <= 4.0), "{:?}", p99(&c));
        assert_eq!(c.take_work(None)[0].waits.iter().sum::<u32>(), 3);
        assert_eq!(c.take_work(None)[0].waits.len(), 0);
        let client = c.all().next().unwrap().1;
        assert_eq!((client.served, client.by_floor, client.by_reservation), (103, 3, 0));
    }

    #[test]
    fn time_at_a_ceiling_is_as_long_as_somebody_waits_there() {
        let mut c = Classes::default();
        let at_ceiling = |c: &Classes| c.all().map(|(_, c)| c.at_ceiling).collect::<Vec<_>>();
        c.at_ceiling([None, Some(300), None], 100);
        // It is looked at again before the ceiling allows something, and long after.
        c.at_ceiling([None, Some(300), None], 150);
        assert_eq!(at_ceiling(&c), [0, 50, 0]);
        c.at_ceiling([Some(1000), None, None], 900);
        assert_eq!(at_ceiling(&c), [0, 200, 0]);
        c.at_ceiling([None, None, None], 950);
        c.at_ceiling([None, None, None], 2000);
        assert_eq!(at_ceiling(&c), [50, 200, 0]);
        assert_eq!(c.take_work(None)[1].at_ceiling, 200);
    }
}
