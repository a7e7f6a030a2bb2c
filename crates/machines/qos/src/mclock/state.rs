//! What waits in [`Mclock`], and the clocks that decide what is next: for people.

use super::{Class, Mclock, SHARE_SCALE, Strict};
use crate::OpClass;

/// A class, at some moment. Times are in nanoseconds from then; below 0, something was due so long
/// ago.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClassState {
    /// The class.
    pub class: OpClass,
    /// Operations that wait.
    pub waiting: usize,
    /// Tenants of whom some do.
    pub tenants: usize,
    /// When its floor is owed the next operation; none without a floor.
    pub reservation: Option<i64>,
    /// When its ceiling allows the next one; none without a ceiling.
    pub limit: Option<i64>,
    /// By how many thousandths of small writes its share clock is ahead of the waiting class that
    /// is next by share.
    pub share: i64,
    /// Of these tenants, those of whom most waits.
    pub busiest: Vec<TenantState>,
}

/// A tenant of a class; see [`ClassState`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TenantState {
    /// The tenant.
    pub tenant: u64,
    /// Operations that wait.
    pub waiting: usize,
    /// Sessions of which some do.
    pub sessions: usize,
    /// Its share among tenants.
    pub weight: u32,
    /// When its floor is owed the next operation; none without a floor.
    pub floor: Option<i64>,
    /// By how many thousandths of small writes it is ahead of a tenant that has just its share.
    pub share: i64,
}

/// `at` as seen from `now`.
pub(crate) fn from(now: u64, at: u64) -> i64 {
    i64::try_from(i128::from(at) - i128::from(now)).unwrap_or(if at > now {
        i64::MAX
    } else {
        i64::MIN
    })
}

/// Thousandths of operations of this cost between two share clocks, of which a unit of cost at this
/// weight takes `scale / weight`.
pub(crate) fn operations(ahead: i128, weight: u128, scale: u128, cost: u32) -> i64 {
    let thousandths = ahead.unsigned_abs().saturating_mul(1000 * weight.max(1))
        / (scale * u128::from(cost.max(1)));
    let n = i64::try_from(thousandths).unwrap_or(i64::MAX);
    if ahead < 0 { -n } else { n }
}

impl<T> Strict<T> {
    /// Priorities, the highest first, and how many operations of each wait.
    pub(crate) fn queues(&self) -> impl Iterator<Item = (u32, usize)> {
        self.by_priority
            .iter()
            .rev()
            .filter(|(_, q)| !q.is_empty())
            .map(|(priority, q)| (*priority, q.len()))
    }
}

impl<T> Class<T> {
    fn state(&self, least: u64, cost: u32, most: usize, now: u64) -> ClassState {
        // The clocks of one of which nothing waits are set when something comes.
        let waits = self.queue.len() > 0;
        let of = |clock: u64, rate: u64| {
            (rate > 0).then(|| from(now, if waits { clock } else { clock.max(now) }))
        };
        let (tenants, busiest) = self.queue.state(cost, most, now);
        ClassState {
            class: self.name,
            waiting: self.queue.len(),
            tenants,
            reservation: of(self.reservation, self.spec.reservation),
            limit: of(self.limit, self.spec.limit),
            share: operations(
                i128::from(if waits { self.share } else { self.share.max(least) })
                    - i128::from(least),
                self.spec.weight.into(),
                SHARE_SCALE.into(),
                cost,
            ),
            busiest,
        }
    }
}

impl<T> Mclock<T> {
    /// What waits and by which clocks, with so many tenants of each class.
    pub fn state(&self, most: usize, now: u64) -> [ClassState; 3] {
        let least = self
            .classes
            .iter()
            .filter(|c| c.queue.len() > 0)
            .map(|c| c.share)
            .min()
            .unwrap_or(self.virtual_now);
        [0, 1, 2].map(|i| self.classes[i].state(least, self.cost_per_io, most, now))
    }

    /// What waits before everything else: priorities, and how many operations of each.
    pub fn strict(&self) -> impl Iterator<Item = (u32, usize)> {
        self.strict.queues()
    }

    /// Until when a class of which something waits is at its ceiling; none if it is not.
    #[inline]
    pub fn at_ceiling(&self, class: OpClass, now: u64) -> Option<u64> {
        let class = self.classes.iter().find(|c| c.name == class)?;
        (class.queue.len() > 0 && class.limit > now).then_some(class.limit)
    }
}
