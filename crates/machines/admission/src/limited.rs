//! Images with limits that the manager divides, as this OSD sees them: its part, and what was asked
//! for meanwhile.

use messages::{DemandCount, ShareOfRate};
use qos::{Access, Ceilings, Demand, Limits, Rate, TenantId};
use std::rc::Rc;
use std::time::Duration;

/// How often demand is told while anything with limits is in use.
pub const DEMAND_PERIOD: Duration = Duration::from_millis(100);
/// What is new is told after this: news of many goes together.
pub const NEWS_PAUSE: Duration = Duration::from_millis(10);
/// How often it is told that something without limits, or with limits not known yet, is in use.
pub(crate) const ASK_PERIOD_NANOS: u64 = 2_000_000_000;
/// Without word from the manager for so long, parts become even.
pub(crate) const SILENCE_NANOS: u64 = 10_000_000_000;
/// A read of everything, which says no length, counts as an object of the usual size.
pub const WHOLE_OBJECT_BYTES: u64 = 4 << 20;

/// Without a burst no more operations than these are saved up, in thousandths: what every OSD has
/// saved may be spent in one second. One that has few under way sends a few to the same OSD now and
/// then.
const SAVED_MILLI_OPS: u64 = 2000;
/// Of [`Limits::rates`], those of bytes.
const IN_BYTES: [bool; 6] = [false, true, false, false, true, true];

/// The operations of those with limits that wait for these.
pub(crate) type Gate<R> = Ceilings<Rc<R>>;

/// Limits that are divided over OSDs, and this one's part.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Part {
    /// How many OSDs they are divided over.
    pub osds: u32,
    /// As in [`Limits::rates`]; empty for no limits.
    pub rates: Vec<ShareOfRate>,
}

/// What this OSD has of a rate, as the manager split it or, without it, even; in thousandths each
/// second.
pub(crate) fn own_part(share: &ShareOfRate, osds: u32, even: bool) -> u64 {
    if even { share.each_second / u64::from(osds.max(1)) } else { share.part }
}

impl Part {
    fn limits(&self, even: bool) -> Limits {
        let mut rates = [Rate::default(); 6];
        for (at, (rate, s)) in rates.iter_mut().zip(&self.rates).enumerate() {
            *rate = Rate { each_second: s.each_second, saved: s.saved, peak: s.peak }
                .part(own_part(s, self.osds, even));
            if s.peak == 0 && !IN_BYTES[at] {
                rate.saved = rate.saved.min(SAVED_MILLI_OPS);
            }
        }
        Limits::from_rates(rates)
    }
}

/// What the manager is told of one.
pub(crate) struct Told {
    /// Whether its limits are known.
    pub known: bool,
    /// How long was counted.
    pub millis: u64,
    /// What came.
    pub reads: DemandCount,
    /// What came.
    pub writes: DemandCount,
}

/// This OSD's part of limits, and the demand for them. Times are nanoseconds of the scheduler's
/// clock.
#[derive(Default)]
pub(crate) struct Limited {
    /// Only images with limits are tenants of the gate.
    tenant: Option<TenantId>,
    part: Option<Part>,
    /// Came since it was last told.
    reads: DemandCount,
    writes: DemandCount,
    /// When it was last told; 0 for never.
    told: u64,
    /// Whether what was told last was other than nothing.
    told_demand: bool,
    /// When something last came.
    pub used: u64,
}

impl Limited {
    /// Nothing is known of it yet.
    pub fn new(now: u64) -> Self {
        Limited { used: now, ..Limited::default() }
    }

    /// Its place in the gate.
    pub fn tenant(&self) -> Option<TenantId> {
        self.tenant
    }

    /// Counts what came.
    pub fn count(&mut self, demand: Demand, now: u64) {
        let count = match demand.access {
            Access::Read => &mut self.reads,
            Access::Write => &mut self.writes,
        };
        count.ops += 1;
        count.bytes = count.bytes.saturating_add(demand.bytes);
        self.used = now;
    }

    /// Whether its limits should be asked for.
    pub fn asks(&self, now: u64) -> bool {
        now.saturating_sub(self.told) >= ASK_PERIOD_NANOS
    }

    /// Whether the manager believes that nothing is asked for here; it does not after this.
    pub fn begins(&mut self) -> bool {
        !std::mem::replace(&mut self.told_demand, true)
    }

    /// Takes a part.
    pub fn take<R>(&mut self, part: Part, gate: &mut Gate<R>, now: u64) {
        self.part = Some(part);
        self.apply(gate, false, now);
    }

    /// Makes the gate follow the part.
    pub fn apply<R>(&mut self, gate: &mut Gate<R>, even: bool, now: u64) {
        let Some(part) = &self.part else { return };
        let limits = part.limits(even);
        match self.tenant {
            None if limits.is_unlimited() => {}
            None => self.tenant = Some(gate.add(limits, now)),
            Some(tenant) => {
                gate.set(tenant, limits, now);
                // What waits goes first; then it is a tenant no longer.
                if limits.is_unlimited() && gate.remove(tenant) {
                    self.tenant = None;
                }
            }
        }
    }

    /// What is to be told now, if anything. `due` says that something is divided by demand here,
    /// even without a limit. Counting begins anew.
    pub fn tell<R>(&mut self, gate: &Gate<R>, due: bool, now: u64) -> Option<Told> {
        let waiting = |count: &mut DemandCount, access| {
            let backlog = self.tenant.map(|t| gate.backlog(t, access)).unwrap_or_default();
            (count.waiting_ops, count.waiting_bytes) = (backlog.ops, backlog.bytes);
        };
        waiting(&mut self.reads, Access::Read);
        waiting(&mut self.writes, Access::Write);
        let nothing = DemandCount::default();
        let asks = self.reads != nothing || self.writes != nothing;
        let divided = due || self.tenant.is_some();
        let now_due = if divided {
            asks || self.told_demand
        } else {
            asks && (self.told == 0 || self.asks(now))
        };
        if !now_due {
            return None;
        }
        // The first time says nothing about a rate: it counts as a period.
        let period = DEMAND_PERIOD.as_nanos() as u64;
        let since = match (self.told, divided) {
            (0, _) => period,
            // Longer ago it was idle: what came, came now.
            (told, true) => now.saturating_sub(told).min(2 * period),
            (told, false) => now.saturating_sub(told),
        };
        (self.told, self.told_demand) = (now.max(1), asks);
        Some(Told {
            known: self.part.is_some(),
            millis: (since / 1_000_000).max(1),
            reads: std::mem::take(&mut self.reads),
            writes: std::mem::take(&mut self.writes),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_operations_are_saved_without_a_burst() {
        let share = |rate: Rate| ShareOfRate {
            each_second: rate.each_second,
            saved: rate.saved,
            peak: rate.peak,
            part: rate.each_second / 2,
        };
        let mut rates = vec![ShareOfRate::default(); 6];
        (rates[0], rates[1]) = (share(Rate::new(600, 0, 1)), share(Rate::new(1 << 20, 0, 1)));
        let limits = Part { osds: 2, rates: rates.clone() }.limits(false);
        assert_eq!((limits.iops.each_second, limits.iops.saved), (300_000, SAVED_MILLI_OPS));
        assert_eq!(limits.bps.saved, (1 << 19) * qos::SLACK_MILLIS, "of bytes a fifth of a second");
        // Of a small rate it is less, and a burst was asked for.
        rates[0] = share(Rate::new(10, 0, 1));
        assert_eq!(Part { osds: 2, rates: rates.clone() }.limits(false).iops.saved, 1000);
        rates[0] = share(Rate::new(600, 900, 2));
        assert_eq!(Part { osds: 2, rates }.limits(false).iops.saved, 900_000);
    }
}
