//! Proposals of primaries that even reads out. No data moves: another copy of a PG leads it.
//!
//! Each proposal takes the lead of one PG from an OSD that leads more than its part and gives it to
//! a copy that leads less, and both are nearer to their part afterwards. So repeated use ends.

use crate::stats::groups;
use std::collections::BTreeMap;
use types::{OsdId, OsdMap, PgId, PoolId};

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lead {
    /// The PG.
    pub pg: PgId,
    /// The OSD that leads it,
    pub from: OsdId,
    /// and the one that is to lead it.
    pub to: OsdId,
    /// It leads without an upmap of the primary: the one that is there goes.
    pub unasked: bool,
}

/// How many PGs of a pool each OSD leads, and how many it should. A PG's copies share its lead in
/// proportion to their primary affinity.
#[derive(Clone, Debug, Default)]
pub struct Leads {
    /// What each OSD should lead.
    pub target: BTreeMap<OsdId, f64>,
    /// What it leads.
    pub leads: BTreeMap<OsdId, f64>,
    /// The copies of each PG, and the one that leads.
    up: BTreeMap<PgId, (OsdId, Vec<OsdId>)>,
}

impl Leads {
    /// Of one pool.
    pub fn new(map: &OsdMap, pool: PoolId) -> Leads {
        let mut all = Leads::default();
        for pg in groups(map, pool) {
            let placed = map.pg_to_up_acting(pg);
            let copies: Vec<OsdId> = placed.up.into_iter().filter(|o| o.is_some()).collect();
            let sum: f64 = copies.iter().map(|o| map.primary_affinity(*o)).sum();
            if sum <= 0.0 {
                // Affinity refuses all of them.
                continue;
            }
            for osd in &copies {
                *all.target.entry(*osd).or_default() += map.primary_affinity(*osd) / sum;
            }
            *all.leads.entry(placed.up_primary).or_default() += 1.0;
            all.up.insert(pg, (placed.up_primary, copies));
        }
        all
    }

    /// By how many PGs an OSD leads more than its part.
    pub fn deviation(&self, osd: OsdId) -> f64 {
        let of = |m: &BTreeMap<OsdId, f64>| m.get(&osd).copied().unwrap_or(0.0);
        of(&self.leads) - of(&self.target)
    }

    /// The largest deviation, up or down.
    pub fn worst(&self) -> f64 {
        let osds = self.target.keys().chain(self.leads.keys());
        osds.map(|o| self.deviation(*o).abs()).fold(0.0, f64::max)
    }

    /// The changes that help, the one that helps most first.
    fn changes(&self, movable: &dyn Fn(PgId) -> bool) -> Vec<(PgId, OsdId, OsdId)> {
        let mut found = Vec::new();
        for (pg, (from, copies)) in self.up.iter().filter(|(pg, _)| movable(**pg)) {
            let high = self.deviation(*from);
            for to in copies.iter().filter(|o| *o != from) {
                let gain = high - self.deviation(*to);
                // Both are nearer to their part afterwards.
                if gain > 1.0 {
                    found.push((gain, *pg, *from, *to));
                }
            }
        }
        found.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)).then(a.3.cmp(&b.3)));
        found.into_iter().map(|(_, pg, from, to)| (pg, from, to)).collect()
    }

    fn give(&mut self, pg: PgId, from: OsdId, to: OsdId) {
        *self.leads.entry(from).or_default() -= 1.0;
        *self.leads.entry(to).or_default() += 1.0;
        // Each PG changes once.
        self.up.remove(&pg);
    }
}

/// Proposes changes, for these pools in this order; those that are not replicated have none. Only
/// PGs that are `movable` change, and each only once.
pub fn propose_leads(
    map: &OsdMap,
    pools: &[PoolId],
    changes: usize,
    movable: &dyn Fn(PgId) -> bool,
) -> Vec<Lead> {
    let (mut trial, mut out) = (map.clone(), Vec::new());
    let replicated = |p: &&PoolId| map.pool(**p).is_some_and(|p| p.is_replicated());
    for pool in pools.iter().filter(replicated) {
        let mut all = Leads::new(map, *pool);
        while out.len() < changes {
            let tried = all.changes(movable).into_iter();
            let found = tried.filter_map(|(pg, from, to)| attempt(&mut trial, pg, from, to)).next();
            let Some(lead) = found else { break };
            all.give(lead.pg, lead.from, lead.to);
            out.push(lead);
        }
    }
    out
}

/// Makes the change in a map, if the OSD leads then: affinity may refuse it.
fn attempt(map: &mut OsdMap, pg: PgId, from: OsdId, to: OsdId) -> Option<Lead> {
    let before = map.pg_upmap_primaries.remove(&pg);
    let leads = |map: &OsdMap| map.pg_to_up_acting(pg).up_primary == to;
    let unasked = leads(map);
    if !unasked {
        map.pg_upmap_primaries.insert(pg, to);
    }
    if unasked || leads(map) {
        return Some(Lead { pg, from, to, unasked });
    }
    match before {
        Some(osd) => map.pg_upmap_primaries.insert(pg, osd),
        None => map.pg_upmap_primaries.remove(&pg),
    };
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Rng, Shape, cluster};

    const SHAPE: Shape = Shape {
        racks: 2,
        hosts: 3,
        osds: 2,
        pools: &[(3, 64), (3, 32), (2, 64)],
        erasure: true,
        mixed: true,
    };

    fn apply(map: &mut OsdMap, leads: &[Lead]) {
        for l in leads {
            match l.unasked {
                true => drop(map.pg_upmap_primaries.remove(&l.pg)),
                false => drop(map.pg_upmap_primaries.insert(l.pg, l.to)),
            }
        }
    }

    #[test]
    fn leads_become_even_in_bounded_steps_and_no_data_moves() {
        for seed in 0..20 {
            let (mut map, _) = cluster(SHAPE, &mut Rng(seed));
            let pools: Vec<PoolId> = map.pools.keys().copied().collect();
            let (first, coded) = (pools[0], pools[1]);
            let before = Leads::new(&map, first).worst();
            let placed = |map: &OsdMap, pg| {
                let mut up = map.pg_to_up_acting(pg).up;
                up.sort_unstable();
                up
            };
            let mut steps = 0;
            loop {
                let worst = Leads::new(&map, first).worst();
                let leads = propose_leads(&map, &pools, 5, &|_| true);
                assert!(leads.len() <= 5 && leads.iter().all(|l| l.pg.pool != coded));
                if leads.is_empty() {
                    break;
                }
                let mut next = map.clone();
                apply(&mut next, &leads);
                for l in &leads {
                    assert_eq!(map.pg_to_up_acting(l.pg).up_primary, l.from);
                    assert_eq!(next.pg_to_up_acting(l.pg).up_primary, l.to);
                    assert_eq!(placed(&map, l.pg), placed(&next, l.pg));
                }
                assert!(Leads::new(&next, first).worst() <= worst);
                (map, steps) = (next, steps + 1);
                assert!(steps < 100, "it ends");
            }
            let after = Leads::new(&map, first).worst();
            assert!(before > 2.0 && after <= 1.5, "seed {seed}: {before} became {after}");
            assert_eq!(map.clone().clean_upmaps(), [], "nothing is needless");
        }
    }

    #[test]
    fn affinity_and_pgs_that_are_not_movable_are_respected() {
        let (mut map, _) = cluster(SHAPE, &mut Rng(3));
        let pool = *map.pools.keys().next().unwrap();
        let mut affinity = vec![OsdMap::ONE; map.osds.len()];
        (affinity[0], affinity[1]) = (0, OsdMap::ONE / 2);
        map.primary_affinity = Some(affinity);
        assert_eq!(propose_leads(&map, &[pool], 10, &|_| false), []);
        for _ in 0..60 {
            let leads = propose_leads(&map, &[pool], 10, &|pg| pg.seed % 4 != 0);
            assert!(leads.iter().all(|l| l.to != OsdId(0) && l.pg.seed % 4 != 0));
            apply(&mut map, &leads);
        }
        let all = Leads::new(&map, pool);
        assert_eq!(all.leads.get(&OsdId(0)), None, "it does not want to lead");
        assert!(all.target[&OsdId(1)] < all.target.values().copied().fold(0.0, f64::max));
    }
}
