//! When the manager is told what a tenant is asked for: at once when that changes, and else once a
//! second.
//!
//! What a tenant is asked for is counted in turns of [`crate::limited::DEMAND_PERIOD`]. A thousand
//! OSDs with a hundred tenants each that told of each at every turn would be a million reports a
//! second for one manager, most of which say what it knows.

use messages::{TenantDemand, TenantNumber};
use qos::Backlog;

/// It is told again after so long, changed or not: what is older is no longer believed.
const AGAIN_NANOS: u64 = 1_000_000_000;
/// The first time says nothing about a rate: it counts as a turn of this.
const FIRST_SPAN_NANOS: u64 = 100_000_000;

#[derive(Clone, Copy, Debug)]
struct Told {
    /// Each second.
    ops: f64,
    bytes: f64,
    waiting: u64,
    queued: u64,
}

/// When the manager is told of demand. Times are nanoseconds of the scheduler's clock.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asked {
    ops: u64,
    bytes: u64,
    /// From when on that was counted, if something was told before.
    since: Option<u64>,
    /// Nothing if the manager believes that nothing is asked.
    told: Option<Told>,
    /// It is in the list of those that may have something to tell.
    listed: bool,
}

/// Whether a number is another one, and not the same with some luck.
fn differs(a: f64, b: f64, grain: f64) -> bool {
    (a - b).abs() > 0.3 * a.max(b) + 4.0 * grain
}

impl Asked {
    /// Counts an operation; true if it must be listed from now on.
    pub fn count(&mut self, bytes: u64) -> bool {
        self.ops += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        !std::mem::replace(&mut self.listed, true)
    }

    /// Whether the manager believes that nothing is asked for here.
    pub fn is_news(&self) -> bool {
        self.told.is_none()
    }

    /// What was told was lost: there is another manager, or another connection. What was counted
    /// since then is still what came in that time.
    pub fn forget(&mut self) {
        self.told = None;
    }

    /// Whether it is still listed: else it has nothing to tell until something comes.
    pub fn is_listed(&self) -> bool {
        self.listed
    }

    /// What is to be told now, if anything. Counting begins anew with it. The backlog waits for a
    /// ceiling, what is queued for its turn.
    pub fn tell(
        &mut self,
        number: TenantNumber,
        backlog: Backlog,
        queued: u64,
        now: u64,
    ) -> Option<TenantDemand> {
        let nothing = self.ops == 0 && backlog.ops == 0 && queued == 0;
        let span = self.since.map(|since| now.saturating_sub(since).max(1));
        let span = match self.told {
            None if nothing => {
                (self.listed, self.since) = (false, None);
                return None;
            }
            None => span.unwrap_or(FIRST_SPAN_NANOS),
            Some(t) => {
                let span = span.unwrap_or(FIRST_SPAN_NANOS);
                let seconds = span as f64 / 1e9;
                let grain = t.bytes / t.ops.max(1.0);
                let same = !differs(self.ops as f64, t.ops * seconds, 1.0)
                    && !differs(self.bytes as f64, t.bytes * seconds, grain.max(4096.0))
                    && !differs(backlog.ops as f64, t.waiting as f64, 1.0)
                    && !differs(queued as f64, t.queued as f64, 1.0);
                if span < AGAIN_NANOS && same {
                    return None;
                }
                span
            }
        };
        let seconds = span as f64 / 1e9;
        let told = Told {
            ops: self.ops as f64 / seconds,
            bytes: self.bytes as f64 / seconds,
            waiting: backlog.ops,
            queued,
        };
        let small = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        let demand = TenantDemand {
            number,
            millis: small(span / 1_000_000).max(1),
            ops: small(self.ops),
            bytes: self.bytes,
            waiting_ops: small(backlog.ops),
            waiting_bytes: backlog.bytes,
            queued_ops: small(queued),
        };
        *self = Asked {
            ops: 0,
            bytes: 0,
            since: (!nothing).then_some(now),
            told: (!nothing).then_some(told),
            listed: !nothing,
        };
        Some(demand)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TURN: u64 = FIRST_SPAN_NANOS;

    #[test]
    fn a_steady_rate_is_told_once_a_second_and_a_change_at_once() {
        let (mut a, n, none) = (Asked::default(), TenantNumber(7), Backlog::default());
        let mut told = Vec::new();
        for turn in 1..=60u64 {
            let each = if turn <= 30 { 10 } else { 40 };
            for _ in 0..if turn <= 50 { each } else { 0 } {
                a.count(4096);
            }
            if let Some(d) = a.tell(n, none, 0, turn * TURN) {
                told.push((turn, d.ops, d.millis));
            }
        }
        assert_eq!(&told[..3], [(1, 10, 100), (11, 100, 1000), (21, 100, 1000)]);
        assert!(told.contains(&(31, 130, 1000)), "the last second, with what is new: {told:?}");
        assert!(told.iter().any(|t| t.0 == 32), "the rest shows at the next turn: {told:?}");
        assert!(told.iter().filter(|t| (33..=50).contains(&t.0)).count() <= 3, "{told:?}");
        let end: Vec<_> = told.iter().filter(|t| t.0 > 50).collect();
        assert!(end.len() <= 3 && end.last().is_some_and(|t| t.1 == 0), "{end:?}");
        assert!(!a.is_listed());
    }

    #[test]
    fn another_manager_is_told_the_rate_that_it_is() {
        let (mut a, n, none) = (Asked::default(), TenantNumber(7), Backlog::default());
        let turn = |a: &mut Asked, turn: u64| {
            for _ in 0..10 {
                a.count(4096);
            }
            a.tell(n, none, 0, turn * TURN).map(|d| (d.ops, d.millis))
        };
        assert_eq!(turn(&mut a, 1), Some((10, 100)));
        for t in 2..=8 {
            assert_eq!(turn(&mut a, t), None);
        }
        a.forget();
        assert_eq!(turn(&mut a, 9), Some((80, 800)));
        // A tenant that stopped without a report begins anew.
        a.forget();
        assert_eq!(a.tell(n, none, 0, 50 * TURN), None);
        assert_eq!(turn(&mut a, 99), Some((10, 100)));
    }

    #[test]
    fn what_waits_is_asked_for() {
        let (mut a, n) = (Asked::default(), TenantNumber(7));
        let waits = |ops| Backlog { ops, bytes: ops * 4096 };
        assert!(a.count(4096) && !a.count(4096) && a.is_news());
        assert!(a.tell(n, waits(2), 0, TURN).is_some_and(|d| (d.ops, d.waiting_ops) == (2, 2)));
        assert!(a.tell(n, waits(3), 0, 2 * TURN).is_none());
        assert!(
            a.tell(n, waits(30), 0, 3 * TURN).is_some_and(|d| (d.ops, d.waiting_ops) == (0, 30))
        );
        // Another manager hears it, too.
        a.forget();
        assert!(a.tell(n, waits(30), 9, 4 * TURN).is_some_and(|d| d.queued_ops == 9));
        assert!(a.tell(n, waits(0), 0, 5 * TURN).is_some_and(|d| d.waiting_ops == 0));
        assert!(a.tell(n, waits(0), 0, 6 * TURN).is_none());
    }
}
