//! Since when PGs are clean, as their primaries say: maps from then on are needed.

use std::collections::BTreeMap;
use types::{Epoch, OsdMap, PgId, PoolId};

/// Up to when each PG was clean (Ceph: `LastEpochClean` of `mon/OSDMonitor.h`).
///
/// A copy that comes back must be able to see in which intervals others may have written since the
/// PG was last clean. The OSD that knows may be down then, so it is not enough that no OSD that is
/// up needs a map.
#[derive(Debug, Default)]
pub(crate) struct LastEpochClean {
    /// By pool, by the PG's seed; 0 if it was not reported.
    pools: BTreeMap<PoolId, Vec<Epoch>>,
}

impl LastEpochClean {
    /// A primary says that this PG of its own was clean in `epoch`, or later.
    pub fn report(&mut self, map: &OsdMap, pg: PgId, epoch: Epoch) {
        let Some(pool) = map.pool(pg.pool) else {
            return;
        };
        let groups = self.pools.entry(pg.pool).or_default();
        groups.resize(pool.pg_num as usize, Epoch(0));
        if let Some(known) = groups.get_mut(pg.seed as usize) {
            *known = epoch.max(*known);
        }
    }

    /// No PG needs maps before this epoch. 0 while some PG was not reported; none without PGs.
    pub fn lower_bound(&mut self, map: &OsdMap) -> Option<Epoch> {
        self.pools.retain(|id, _| map.pool(*id).is_some());
        let pools = map.pools.iter().filter(|(_, p)| p.is_replicated());
        let of = |(id, pool): (&PoolId, &types::PgPool)| {
            let said = self.pools.get(id).map_or(&[][..], |groups| groups);
            let groups = said.get(..pool.pg_num as usize)?;
            groups.iter().min().copied()
        };
        pools.map(|p| of(p).unwrap_or(Epoch(0))).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::PgPool;

    fn map(pools: &[(i64, u32)]) -> OsdMap {
        let mut map = OsdMap::default();
        for (id, pg_num) in pools {
            map.pools.insert(PoolId(*id), PgPool { pg_num: *pg_num, ..PgPool::default() });
        }
        map
    }

    #[test]
    fn the_group_that_was_clean_longest_ago_counts() {
        let mut clean = LastEpochClean::default();
        let two = map(&[(1, 2), (2, 1)]);
        let pg = |pool, seed| PgId { pool: PoolId(pool), seed };
        assert_eq!(clean.lower_bound(&map(&[])), None);
        clean.report(&two, pg(1, 0), Epoch(40));
        clean.report(&two, pg(1, 1), Epoch(30));
        assert_eq!(clean.lower_bound(&two), Some(Epoch(0)), "nothing is known of the other pool");
        clean.report(&two, pg(2, 0), Epoch(50));
        assert_eq!(clean.lower_bound(&two), Some(Epoch(30)));
        // A primary that does not know better, and a PG that there is not.
        clean.report(&two, pg(1, 1), Epoch(10));
        clean.report(&two, pg(1, 7), Epoch(10));
        clean.report(&two, pg(9, 0), Epoch(10));
        assert_eq!(clean.lower_bound(&two), Some(Epoch(30)));
        clean.report(&two, pg(1, 1), Epoch(60));
        assert_eq!(clean.lower_bound(&two), Some(Epoch(40)));
        // Parts of a PG say for themselves; one that was joined is forgotten, and so is a pool.
        let split = map(&[(1, 4), (2, 1)]);
        assert_eq!(clean.lower_bound(&split), Some(Epoch(0)));
        for seed in 0..4 {
            clean.report(&split, pg(1, seed), Epoch(45 + seed));
        }
        assert_eq!(clean.lower_bound(&split), Some(Epoch(45)));
        assert_eq!(clean.lower_bound(&map(&[(1, 1)])), Some(Epoch(45)));
        assert!(!clean.pools.contains_key(&PoolId(2)));
    }
}
