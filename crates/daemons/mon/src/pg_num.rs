//! How `pg_num` and `pgp_num` go to their targets: step by step, as the statistics allow (Ceph
//! 16.2: `DaemonServer::adjust_pgs`, `src/mgr/DaemonServer.cc`, which the manager does there).
//!
//! Decided when a digest of the manager arrives, from that digest only, and only if every OSD that
//! is up has told what it has with a map in which the pool was as it is now: a step is not taken
//! twice, and none before its consequences are known.

use crate::osd_state::OsdMapExt;
use conf::Config;
use pgmap::Digest;
use types::pool::PgMergeMeta;
use types::stats::PgState;
use types::{OsdId, OsdMap, PgId, PgPool, PoolId};

/// A step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Split PGs, so that there are so many.
    Split(u32),
    /// Place them as if there were so many.
    Place(u32),
    /// The last PG, or the one that it is to become part of, is placed by hand: take that back.
    Unmap(Vec<PgId>),
    /// The last PG and the one that it came from stop to serve, and say when they are ready. Or,
    /// with `pg_num`, they serve again.
    Prepare(u32),
    /// The last PG becomes part of the one that it came from.
    Join(Box<PgMergeMeta>),
}

/// Takes a step.
pub fn take(pool: &mut PgPool, step: Step, epoch: types::Epoch) {
    match step {
        Step::Split(n) => {
            pool.pg_num = n;
            pool.pg_num_pending = n;
            // Clients that do not see by themselves that a PG was split.
            pool.last_force_op_resend_prenautilus = epoch;
            pool.last_force_op_resend_preluminous = epoch;
        }
        Step::Place(n) => pool.pgp_num = n,
        Step::Unmap(_) => {}
        Step::Prepare(n) => pool.pg_num_pending = n,
        Step::Join(meta) => {
            pool.pg_num = pool.pg_num_pending;
            pool.pgp_num = pool.pgp_num.min(pool.pg_num);
            pool.last_pg_merge_meta = *meta;
            pool.last_force_op_resend_prenautilus = epoch;
            pool.last_force_op_resend_preluminous = epoch;
        }
    }
    pool.last_change = epoch;
}

/// The steps that are possible at this digest.
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
        let there = p.pg_num_target == p.pg_num
            && p.pg_num_pending == p.pg_num
            && p.pgp_num_target == p.pgp_num;
        // As in Ceph: PGs that are being made have their number first.
        let creating = p.has_flag(types::pool::flag::CREATING);
        if there || creating || !map.osds().filter(|o| map.is_up(*o)).all(told) {
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
        if (p.pg_num_target < p.pg_num || p.pg_num_pending != p.pg_num)
            && let Some(step) = joining(map, digest, *id, p)
        {
            out.push((*id, step));
            continue;
        }
        let target = p.pg_num_pending.min(p.pgp_num_target);
        if target == p.pgp_num || !whole || misplaced > max_misplaced {
            continue;
        }
        // All PGs of all pools count as equally large; so no step may be more than half of what is
        // allowed.
        let objects = digest.pool_sum(*id).map_or(0, |s| s.num_objects);
        let next = if target > p.pgp_num && objects <= i64::from(p.pgp_num_target) {
            target
        } else {
            let room = (max_misplaced - misplaced).min(max_misplaced / 2.0);
            let step = ((f64::from(p.pg_num) * room) as u32).max(1);
            let next = target.clamp(p.pgp_num.saturating_sub(step), p.pgp_num.saturating_add(step));
            // PGs that are not joined yet must not crowd on few OSDs.
            let lead = ((f64::from(p.pg_num) * max_misplaced) as u32).max(8);
            if p.pgp_num_target < p.pg_num {
                next.max(p.pg_num.saturating_sub(lead)).min(p.pg_num)
            } else {
                next
            }
        };
        if next != p.pgp_num {
            out.push((*id, Step::Place(next)));
        }
    }
    out
}

/// The next step to fewer PGs.
fn joining(map: &OsdMap, digest: &Digest, id: PoolId, p: &PgPool) -> Option<Step> {
    if p.pg_num_target >= p.pg_num {
        // An operator wants them back.
        return (p.pg_num_pending != p.pg_num).then_some(Step::Prepare(p.pg_num));
    }
    let source = PgId { pool: id, seed: p.pg_num - 1 };
    let target = source.merge_target(p.pg_num, p.pg_num - 1)?;
    if p.pgp_num >= p.pg_num {
        // They must be in the same place first.
        return None;
    }
    let by_hand = |pg: &PgId| {
        map.pg_upmap.contains_key(pg)
            || map.pg_upmap_items.contains_key(pg)
            || map.pg_upmap_primaries.contains_key(pg)
    };
    let upmaps: Vec<PgId> = [source, target].into_iter().filter(by_hand).collect();
    if !upmaps.is_empty() {
        return Some(Step::Unmap(upmaps));
    }
    let (s, t) = (digest.joining.get(&source)?, digest.joining.get(&target)?);
    // Something happened to them: they serve again until they are clean. (Ceph:
    // `MOSDPGReadyToMerge` that is not.)
    let hurt = |j: &pgmap::digest::Joining| {
        let state = PgState(j.state);
        j.epoch >= p.last_change && state.has(PgState::ACTIVE) && !state.has(PgState::CLEAN)
    };
    if p.pg_num_pending != p.pg_num && (hurt(s) || hurt(t)) {
        return Some(Step::Prepare(p.pg_num));
    }
    let wanted = PgState::ACTIVE | PgState::CLEAN;
    let wanted = if p.pg_num_pending == p.pg_num { wanted } else { wanted | PgState::PREMERGE };
    if s.state & t.state & wanted.0 != wanted.0 {
        return None;
    }
    let sorted = |osds: &[OsdId]| {
        let mut osds = osds.to_vec();
        osds.sort();
        osds
    };
    // Since they stopped to serve nothing is written; so what they were then, they are, where they
    // were then.
    let ready = s.epoch.min(t.epoch);
    let alive = |o: &OsdId| map.is_up(*o) && map.osd(*o).is_some_and(|i| i.info.up_from <= ready);
    if ready < p.last_change
        || sorted(&s.acting) != sorted(&t.acting)
        || !s.acting.iter().all(alive)
    {
        return None;
    }
    if p.pg_num_pending == p.pg_num {
        return Some(Step::Prepare(p.pg_num - 1));
    }
    Some(Step::Join(Box::new(PgMergeMeta {
        source_pgid: source,
        ready_epoch: ready,
        last_epoch_started: ready,
        last_epoch_clean: s.clean.min(t.clean),
        source_version: s.version,
        target_version: t.version,
    })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pgmap::digest::Joining;
    use types::rados::osd_state;
    use types::stats::PoolStat;
    use types::{Epoch, Eversion};

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
        // Half of five percent of 200 PGs.
        assert_eq!(steps(&m, &d(10_000, 0), &conf), [(POOL, Step::Place(13))]);
        assert_eq!(steps(&m, &d(10_000, 2_000), &conf), []);
        // A pool that is almost empty goes there at once.
        assert_eq!(steps(&m, &d(200, 0), &conf), [(POOL, Step::Place(200))]);
        let mut broken = d(10_000, 0);
        broken.pg_sum.stats.sum.num_objects_degraded = 1;
        assert_eq!(steps(&m, &broken, &conf), []);
    }

    #[test]
    fn groups_are_joined_one_by_one() {
        let conf = Config::new();
        let mut m = map(8, 4);
        let d = |state: PgState, epoch| {
            let mut d = digest(8, 10_000, 0, epoch);
            for (seed, version) in [(7, 70), (3, 30)] {
                let version = Eversion { epoch: Epoch(5), version };
                let acting = vec![OsdId(1), OsdId(0)];
                d.joining.insert(
                    PgId::new(POOL, seed),
                    Joining {
                        state: state.0,
                        version,
                        epoch: Epoch(epoch),
                        acting,
                        clean: Epoch(7),
                    },
                );
            }
            d
        };
        let clean = PgState::ACTIVE | PgState::CLEAN;
        let ready = clean | PgState::PREMERGE;
        // Placement goes first.
        assert_eq!(steps(&m, &d(clean, 9), &conf), [(POOL, Step::Place(7))]);
        m.pools.get_mut(&POOL).unwrap().pgp_num = 7;
        assert_eq!(steps(&m, &d(clean, 9), &conf), [(POOL, Step::Prepare(7))]);
        let mut other = d(clean, 9);
        other.joining.get_mut(&PgId::new(POOL, 3)).unwrap().acting = vec![OsdId(0)];
        assert_ne!(steps(&m, &other, &conf), [(POOL, Step::Prepare(7))]);
        take(m.pools.get_mut(&POOL).unwrap(), Step::Prepare(7), Epoch(10));
        // Not before both have said that they stopped, in this map.
        assert_ne!(steps(&m, &d(clean, 10), &conf).len(), 2);
        assert!(!steps(&m, &d(clean, 10), &conf).iter().any(|(_, s)| matches!(s, Step::Join(_))));
        assert_eq!(steps(&m, &d(ready, 9), &conf), []);
        // If one of them is hurt meanwhile, both serve again.
        assert_eq!(
            steps(&m, &d(PgState::ACTIVE | PgState::PREMERGE, 10), &conf),
            [(POOL, Step::Prepare(8))]
        );
        let [(_, Step::Join(meta))] = &steps(&m, &d(ready, 10), &conf)[..] else { panic!("ready") };
        assert_eq!(
            (meta.source_pgid, meta.source_version.version, meta.target_version.version),
            (PgId::new(POOL, 7), 70, 30)
        );
        take(m.pools.get_mut(&POOL).unwrap(), Step::Join(meta.clone()), Epoch(11));
        assert_eq!((m.pools[&POOL].pg_num, m.pools[&POOL].pg_num_pending), (7, 7));
        // After a change of mind in between, the PGs come back.
        take(m.pools.get_mut(&POOL).unwrap(), Step::Prepare(6), Epoch(12));
        m.pools.get_mut(&POOL).unwrap().pg_num_target = 7;
        assert_eq!(steps(&m, &d(ready, 12), &conf), [(POOL, Step::Prepare(7))]);
    }
}
