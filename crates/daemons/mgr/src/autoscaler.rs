//! Gives pools as many PGs as they should have, slowly, and only where that is sure.
//!
//! A wrong number of PGs moves all data of a pool, so nothing is done because of one look:
//! statistics can be absent, stale, or those of a moment. A pool is changed when two looks in a row
//! proposed the same, when it is as it was asked to be and everything in it is active and clean, by
//! a factor of [`STEP`] at most, and no other pool at the same look. The monitors refuse what their
//! own bounds (`mon_max_pg_per_osd`) do not allow.

use messages::{HealthCheck, HealthChecks};
use std::collections::BTreeMap;
use types::PoolId;
use types::pool::AutoscaleMode;

/// The most by which a number of PGs is multiplied or divided at once.
pub const STEP: u32 = 4;

/// The settings of proposals.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Goals {
    /// PGs that an OSD should have, with all copies (`mon_target_pg_per_osd`).
    pub per_osd: f64,
    /// By which factor a number must be wrong before another one is proposed
    /// (`mgr/pg_autoscaler/threshold`).
    pub threshold: f64,
}

impl Default for Goals {
    fn default() -> Self {
        Goals { per_osd: 100.0, threshold: 3.0 }
    }
}

/// A pool that should have another number of PGs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// Its number,
    pub pool: PoolId,
    /// and its name.
    pub name: String,
    /// Whether something is to be done about it.
    pub mode: AutoscaleMode,
    /// The PGs that it is asked to have,
    pub pg_num: u32,
    /// and those that it should have.
    pub should: u32,
}

impl Proposal {
    /// The number of PGs after the next step.
    fn next(&self) -> u32 {
        self.should.clamp(self.pg_num.div_ceil(STEP), self.pg_num.saturating_mul(STEP))
    }
}

/// Remembers what the last look proposed.
#[derive(Debug, Default)]
pub struct Autoscaler {
    proposed: BTreeMap<PoolId, u32>,
}

impl Autoscaler {
    /// One look: the pool to be changed, if any, and its next number of PGs. `settled` says whether
    /// a pool is as it was asked to be, with everything in it active and clean.
    pub fn look<'a>(
        &mut self,
        proposals: &'a [Proposal],
        settled: impl Fn(PoolId) -> bool,
    ) -> Option<(&'a Proposal, u32)> {
        let now: BTreeMap<PoolId, u32> = proposals
            .iter()
            .filter(|p| p.mode == AutoscaleMode::ON)
            .map(|p| (p.pool, p.should))
            .collect();
        let before = std::mem::replace(&mut self.proposed, now);
        let sure = |p: &&Proposal| {
            self.proposed.contains_key(&p.pool) && before.get(&p.pool) == Some(&p.should)
        };
        let chosen =
            proposals.iter().filter(sure).find(|p| p.next() != p.pg_num && settled(p.pool))?;
        // It has to be seen twice again before the next step.
        self.proposed.remove(&chosen.pool);
        Some((chosen, chosen.next()))
    }
}

/// Warnings for pools of mode `warn` (Ceph 16.2: `src/pybind/mgr/pg_autoscaler/module.py`).
pub fn checks(proposals: &[Proposal]) -> HealthChecks {
    let mut checks = HealthChecks::default();
    for (code, what, few) in
        [("POOL_TOO_FEW_PGS", "few", true), ("POOL_TOO_MANY_PGS", "many", false)]
    {
        let wrong = proposals
            .iter()
            .filter(|p| p.mode == AutoscaleMode::WARN && (p.pg_num < p.should) == few);
        let detail: Vec<String> = wrong
            .map(|p| {
                format!(
                    "Pool {} has {} placement groups, should have {}",
                    p.name, p.pg_num, p.should
                )
            })
            .collect();
        if !detail.is_empty() {
            let summary = format!("{} pools have too {what} placement groups", detail.len());
            let count = detail.len() as i64;
            checks.checks.insert(
                code.into(),
                HealthCheck { severity: HealthCheck::WARN, summary, detail, count },
            );
        }
    }
    checks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proposal(pool: i64, mode: AutoscaleMode, pg_num: u32, should: u32) -> Proposal {
        Proposal { pool: PoolId(pool), name: format!("p{pool}"), mode, pg_num, should }
    }

    #[test]
    fn two_looks_must_agree_and_steps_are_bounded() {
        let mut a = Autoscaler::default();
        let mut at = 8;
        let mut steps = Vec::new();
        for _ in 0..20 {
            let all = [proposal(1, AutoscaleMode::ON, at, 512)];
            if let Some((_, next)) = a.look(&all, |_| true) {
                steps.push(next);
                at = next;
            }
        }
        assert_eq!(steps, [32, 128, 512]);
        // One look that misread a size does nothing, whatever came before and comes after.
        let mut a = Autoscaler::default();
        for should in [64, 8192, 64, 8192] {
            assert_eq!(a.look(&[proposal(1, AutoscaleMode::ON, 16, should)], |_| true), None);
        }
        let mut a = Autoscaler::default();
        for _ in 0..5 {
            let all = [proposal(1, AutoscaleMode::ON, 256, 32)];
            if let Some((_, next)) = a.look(&all, |_| true) {
                assert_eq!(next, 64);
            }
        }
    }

    #[test]
    fn only_pools_that_are_on_and_settled_and_one_at_a_time() {
        let mut a = Autoscaler::default();
        let all = [
            proposal(1, AutoscaleMode::OFF, 8, 32),
            proposal(2, AutoscaleMode::WARN, 8, 32),
            proposal(3, AutoscaleMode::ON, 8, 32),
            proposal(4, AutoscaleMode::ON, 8, 32),
            proposal(5, AutoscaleMode::ON, 8, 32),
        ];
        let settled = |p: PoolId| p != PoolId(3);
        assert_eq!(a.look(&all, settled), None);
        assert_eq!(a.look(&all, settled).map(|(p, n)| (p.pool, n)), Some((PoolId(4), 32)));
        assert_eq!(a.look(&all, settled).map(|(p, n)| (p.pool, n)), Some((PoolId(5), 32)));
        assert_eq!(a.look(&[], settled), None);
        assert_eq!(a.look(&all, settled), None, "what was seen long ago is no look before");
    }

    #[test]
    fn warnings_are_for_those_who_want_them() {
        let all = [
            proposal(1, AutoscaleMode::WARN, 8, 32),
            proposal(2, AutoscaleMode::WARN, 512, 32),
            proposal(3, AutoscaleMode::ON, 8, 32),
            proposal(4, AutoscaleMode::OFF, 8, 32),
        ];
        let checks = checks(&all).checks;
        assert_eq!(checks.keys().collect::<Vec<_>>(), ["POOL_TOO_FEW_PGS", "POOL_TOO_MANY_PGS"]);
        assert_eq!(
            checks["POOL_TOO_FEW_PGS"].detail,
            ["Pool p1 has 8 placement groups, should have 32"]
        );
        assert_eq!(checks["POOL_TOO_MANY_PGS"].summary, "1 pools have too many placement groups");
    }
}
