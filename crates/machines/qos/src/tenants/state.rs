//! What waits of whom: for people.

use super::{SHARE_SCALE, Tenants, promise_of};
use crate::mclock::state::{TenantState, from, operations};
use crate::tenants::TenantSpec;

impl<T> Tenants<T> {
    /// How many tenants wait, and those of whom most does.
    pub(crate) fn state(&self, cost: u32, most: usize, now: u64) -> (usize, Vec<TenantState>) {
        let mut waiting: Vec<u32> =
            self.index.iter().copied().filter(|at| self.tenants[*at].len > 0).collect();
        let all = waiting.len();
        let order = |at: &u32| (std::cmp::Reverse(self.tenants[*at].len), self.tenants[*at].id);
        if waiting.len() > most {
            if most > 0 {
                waiting.select_nth_unstable_by_key(most - 1, order);
            }
            waiting.truncate(most);
        }
        waiting.sort_unstable_by_key(order);
        let state = |at: u32| {
            let t = &self.tenants[at];
            let promise = promise_of(&self.tenants, &self.promises, at);
            TenantState {
                tenant: t.id,
                waiting: t.len as usize,
                sessions: t.sessions as usize,
                weight: t.weight,
                floor: promise.filter(|p| !p.floor.is_none()).map(|p| from(now, p.floor_due)),
                share: operations(
                    i128::from(t.share) - i128::from(self.now),
                    t.weight.into(),
                    u128::from(SHARE_SCALE) * u128::from(TenantSpec::WEIGHT),
                    cost,
                ),
            }
        };
        (all, waiting.into_iter().map(state).collect())
    }
}
