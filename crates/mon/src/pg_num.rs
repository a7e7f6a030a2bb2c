//! How `pg_num` and `pgp_num` go to their targets: step by step, as the statistics allow
//! (Ceph 16.2: `DaemonServer::adjust_pgs`, `src/mgr/DaemonServer.cc`, which the manager does there).
//!
//! Decided when a digest of the manager arrives, from that digest only, and only if every OSD that is up has told what
//! it has with a map in which the pool was as it is now: a step is not taken twice, and none before its consequences
//! are known.

use crate::osd_state::OsdMapExt;
use conf::Config;
use pgmap::Digest;
use types::{OsdMap, PgPool, PoolId};

/// A step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Split groups, so that there are so many.
    Split(u32),
    /// Place them as if there were so many.
    Place(u32),
}

/// Takes a step.
pub fn take(pool: &mut PgPool, step: Step, epoch: types::Epoch) {
    match step {
        Step::Split(n) => {
            pool.pg_num = n;
            pool.pg_num_pending = n;
            // Clients that do not see by themselves that a group was split.
            pool.last_force_op_resend_prenautilus = epoch;
            pool.last_force_op_resend_preluminous = epoch;
        }
        Step::Place(n) => pool.pgp_num = n,
    }
    pool.last_change = epoch;
}

/// What can be done now.
pub fn steps(map: &OsdMap, digest: &Digest, conf: &Config) -> Vec<(PoolId, Step)> {
    let most = conf.u64("mon_osd_max_creating_pgs").max(1);
    let max_misplaced = conf.f64("target_max_misplaced_ratio");
    let unknown = digest.pgs_by_state.get(&0).copied().unwrap_or(0);
    let creating = digest.num_pgs_with(types::stats::PgState::CREATING) + unknown;
    let mut left = most.saturating_sub(creating.into());
    let active = digest.num_pgs_with(types::stats::PgState::ACTIVE);
    let sum = &digest.pg_sum.stats.sum;
    let ratio = |n: i64| n.max(0) as f64 / sum.num_object_copies.max(1) as f64;
    let (misplaced, degraded) = (ratio(sum.num_objects_misplaced), ratio(sum.num_objects_degraded));
    let whole = active == digest.num_pgs() && degraded == 0.0;

    let mut out = Vec::new();
    for (id, p) in &map.pools {
        if left == 0 {
            break;
        }
        let told = |o| digest.osd_epochs.get(&o).is_some_and(|e| *e >= p.last_change);
        if (p.pg_num_target <= p.pg_num && p.pgp_num_target == p.pgp_num) || !map.osds().filter(|o| map.is_up(*o)).all(told) {
            continue;
        }
        if p.pg_num_target > p.pg_num {
            let serving = digest.active_pgs.iter().filter(|pg| pg.pool == *id).count();
            if serving == p.pg_num as usize {
                let add = left.min((p.pg_num_target - p.pg_num).into());
                left -= add;
                out.push((*id, Step::Split(p.pg_num + add as u32)));
            }
            continue;
        }
        let target = p.pg_num_pending.min(p.pgp_num_target);
        if target == p.pgp_num || !whole || misplaced > max_misplaced {
            continue;
        }
        // All groups of all pools count as equally large; so no step may be more than half of what is allowed.
        let objects = digest.pool_sum(*id).map_or(0, |s| s.num_objects);
        let next = if target > p.pgp_num && objects <= i64::from(p.pgp_num_target) {
            target
        } else {
            let room = (max_misplaced - misplaced).min(max_misplaced / 2.0);
            let step = ((f64::from(p.pg_num) * room) as u32).max(1);
            target.clamp(p.pgp_num.saturating_sub(step), p.pgp_num.saturating_add(step))
        };
        if next != p.pgp_num {
            out.push((*id, Step::Place(next)));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::rados::osd_state;
    use types::stats::{PgState, PoolStat};
    use types::{Epoch, OsdId, PgId};

    const POOL: PoolId = PoolId(1);

    fn map(pg_num: u32, target: u32) -> OsdMap {
        let mut map = OsdMap { epoch: Epoch(9), ..OsdMap::default() };
        let pool = PgPool {
            pg_num,
            pgp_num: pg_num,
            pg_num_pending: pg_num,
            pg_num_target: target,
            pgp_num_target: target,
            last_change: Epoch(8),
            ..PgPool::default()
        };
        map.pools.insert(POOL, pool);
        map.set_max_osd(2);
        for osd in &mut map.osds {
            osd.state = osd_state::EXISTS | osd_state::UP;
        }
        map
    }

    fn digest(active: u32, objects: i64, misplaced: i64, epoch: u32) -> Digest {
        let mut d = Digest::default();
        d.pgs_by_state.insert((PgState::ACTIVE | PgState::CLEAN).0, active);
        d.active_pgs = (0..active).map(|seed| PgId::new(POOL, seed)).collect();
        let mut stat = PoolStat::default();
        stat.stats.sum.num_objects = objects;
        stat.stats.sum.num_object_copies = objects * 2;
        stat.stats.sum.num_objects_misplaced = misplaced;
        d.pools.insert(POOL, stat);
        d.pg_sum = stat;
        d.osd_epochs = (0..2).map(|o| (OsdId(o), Epoch(epoch))).collect();
        d
    }

    #[test]
    fn groups_split_when_all_serve() {
        let conf = Config::new();
        assert_eq!(steps(&map(8, 32), &digest(8, 1000, 0, 9), &conf), [(POOL, Step::Split(32))]);
        assert_eq!(steps(&map(8, 32), &digest(7, 1000, 0, 9), &conf), []);
        assert_eq!(steps(&map(8, 8), &digest(8, 1000, 0, 9), &conf), []);
    }

    #[test]
    fn nothing_is_decided_from_what_is_absent_or_old() {
        let conf = Config::new();
        assert_eq!(steps(&map(8, 32), &digest(8, 1000, 0, 7), &conf), []);
        let mut one = digest(8, 1000, 0, 9);
        one.osd_epochs.remove(&OsdId(1));
        assert_eq!(steps(&map(8, 32), &one, &conf), []);
        assert_eq!(steps(&map(8, 32), &Digest::default(), &conf), []);
    }

    #[test]
    fn placement_follows_in_small_steps() {
        let conf = Config::new();
        let mut m = map(8, 200);
        take(m.pools.get_mut(&POOL).unwrap(), Step::Split(200), Epoch(9));
        let d = |objects, misplaced| digest(200, objects, misplaced, 9);
        // Half of five percent of 200 groups.
        assert_eq!(steps(&m, &d(10_000, 0), &conf), [(POOL, Step::Place(13))]);
        assert_eq!(steps(&m, &d(10_000, 2_000), &conf), []);
        // A pool that is almost empty goes there at once.
        assert_eq!(steps(&m, &d(200, 0), &conf), [(POOL, Step::Place(200))]);
        let mut broken = d(10_000, 0);
        broken.pg_sum.stats.sum.num_objects_degraded = 1;
        assert_eq!(steps(&m, &broken, &conf), []);
    }
}
