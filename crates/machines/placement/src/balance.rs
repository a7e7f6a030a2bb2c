//! Proposals of upmaps that even a cluster out.
//!
//! Each proposal moves one copy of one PG from an OSD that has more than its part to one that has
//! less, and both are nearer to their part afterwards: the largest deviation never grows, and the
//! sum of squares always shrinks. So repeated use ends.

use crate::upmap::{Trial, Upmap};
use crate::{Stats, stats::groups};
use std::collections::{BTreeMap, BTreeSet};
use types::{OsdId, OsdMap, PgId, PoolId};

/// Placements that one call tries at most: what it costs is bounded.
const TRIALS_MAX: usize = 20_000;

/// What is to be even.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Measure {
    /// The number of PGs of each pool, within so many.
    Pgs(f64),
    /// The bytes of all pools of a rule together, within this fraction of an OSD's part.
    Bytes(f64),
}

/// How much a call proposes.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// What is to be even.
    pub measure: Measure,
    /// Upmaps that are changed at most.
    pub changes: usize,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// The PG.
    pub pg: PgId,
    /// Its new upmap; empty to take away the one that it has.
    pub upmap: Upmap,
    /// The OSD that is relieved,
    pub from: OsdId,
    /// and the one that is burdened
    pub to: OsdId,
    /// with so many bytes.
    pub bytes: u64,
}

/// What each OSD has and should have, in one unit.
#[derive(Clone, Debug, Default)]
pub struct Loads {
    /// The OSDs that the rule chooses from, with their part.
    pub target: BTreeMap<OsdId, f64>,
    /// What they have.
    pub load: BTreeMap<OsdId, f64>,
}

impl Loads {
    /// Of pools that share a rule.
    pub fn new(map: &OsdMap, stats: &Stats, pools: &[PoolId], measure: Measure) -> Loads {
        let mut loads = Loads::default();
        let Some(rule) = pools.first().and_then(|p| map.pool(*p)).map(|p| p.crush_rule) else {
            return loads;
        };
        let weights = map.crush.rule_weights(rule.into());
        let effective = |osd: i32, w: f64| w * map.weight(OsdId(osd));
        let sum: f64 = weights.iter().map(|(o, w)| effective(*o, *w)).sum();
        let mut total = 0.0;
        for pg in pools.iter().flat_map(|p| groups(map, *p)) {
            for osd in map.pg_to_raw_upmap(pg).into_iter().filter(|o| o.is_some()) {
                let w = weigh(map, stats, measure, pg);
                *loads.load.entry(osd).or_default() += w;
                total += w;
            }
        }
        for (osd, w) in &weights {
            let w = effective(*osd, *w);
            if w > 0.0 && sum > 0.0 {
                loads.target.insert(OsdId(*osd), total * w / sum);
            }
        }
        loads
    }

    /// By how much an OSD has more than its part.
    pub fn deviation(&self, osd: OsdId) -> f64 {
        self.load.get(&osd).copied().unwrap_or(0.0) - self.target.get(&osd).copied().unwrap_or(0.0)
    }

    /// The largest deviation, up or down, of the OSDs that the rule chooses from.
    pub fn worst(&self) -> f64 {
        self.target.keys().map(|o| self.deviation(*o).abs()).fold(0.0, f64::max)
    }

    fn tolerance(&self, osd: OsdId, measure: Measure) -> f64 {
        match measure {
            Measure::Pgs(n) => n,
            Measure::Bytes(part) => part * self.target.get(&osd).copied().unwrap_or(0.0),
        }
    }

    fn shift(&mut self, from: OsdId, to: OsdId, w: f64) {
        *self.load.entry(from).or_default() -= w;
        *self.load.entry(to).or_default() += w;
    }
}

fn weigh(map: &OsdMap, stats: &Stats, measure: Measure, pg: PgId) -> f64 {
    match measure {
        Measure::Pgs(_) => 1.0,
        Measure::Bytes(_) => stats.copy_bytes(map, pg) as f64,
    }
}

/// Pools in the portions that are evened out together: each alone by PGs, those of a rule by bytes.
fn portions(map: &OsdMap, pools: &[PoolId], measure: Measure) -> Vec<Vec<PoolId>> {
    let known: Vec<PoolId> = pools.iter().copied().filter(|p| map.pool(*p).is_some()).collect();
    if matches!(measure, Measure::Pgs(_)) {
        return known.into_iter().map(|p| vec![p]).collect();
    }
    let mut by_rule: BTreeMap<u8, Vec<PoolId>> = BTreeMap::new();
    for pool in known {
        if let Some(p) = map.pool(pool) {
            by_rule.entry(p.crush_rule).or_default().push(pool);
        }
    }
    by_rule.into_values().collect()
}

/// Proposes changes, for these pools in this order. Only PGs that are `movable` move, and each only
/// once. No OSD is burdened above the map's backfillfull ratio, even if nothing leaves it
/// meanwhile.
pub fn propose(
    map: &OsdMap,
    stats: &Stats,
    pools: &[PoolId],
    bounds: Bounds,
    movable: &dyn Fn(PgId) -> bool,
) -> Vec<Proposal> {
    let mut search = Search {
        trial: Trial::new(map.clone()),
        stats,
        incoming: BTreeMap::new(),
        moved: BTreeSet::new(),
        trials: 0,
    };
    let mut out = Vec::new();
    for pools in portions(map, pools, bounds.measure) {
        let mut loads = Loads::new(map, stats, &pools, bounds.measure);
        let mut on: BTreeMap<OsdId, BTreeSet<PgId>> = BTreeMap::new();
        for pg in pools.iter().flat_map(|p| groups(map, *p)).filter(|pg| movable(*pg)) {
            for osd in map.pg_to_raw_upmap(pg).into_iter().filter(|o| o.is_some()) {
                on.entry(osd).or_default().insert(pg);
            }
        }
        while out.len() < bounds.changes {
            let Some(p) = search.step(&loads, &on, bounds.measure) else { break };
            loads.shift(p.from, p.to, weigh(map, stats, bounds.measure, p.pg));
            for osds in on.values_mut() {
                osds.remove(&p.pg);
            }
            out.push(p);
        }
    }
    out
}

struct Search<'a> {
    trial: Trial,
    stats: &'a Stats,
    incoming: BTreeMap<OsdId, u64>,
    moved: BTreeSet<PgId>,
    trials: usize,
}

impl Search<'_> {
    fn step(
        &mut self,
        loads: &Loads,
        on: &BTreeMap<OsdId, BTreeSet<PgId>>,
        measure: Measure,
    ) -> Option<Proposal> {
        let mut osds: Vec<(OsdId, f64)> =
            loads.target.keys().map(|o| (*o, loads.deviation(*o))).collect();
        osds.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let over = |(o, d): &(OsdId, f64)| *d > loads.tolerance(*o, measure);
        let under = |(o, d): &(OsdId, f64)| -*d > loads.tolerance(*o, measure);
        let full = osds.iter().any(over);
        if !full && !osds.iter().any(under) {
            return None;
        }
        // The fullest gives to whatever takes; if none is too full, anything gives to the emptiest.
        let donors: Vec<_> = match full {
            true => osds.iter().filter(|o| over(o)).copied().collect(),
            false => osds.iter().filter(|(_, d)| *d > 0.0).copied().collect(),
        };
        let takers: Vec<_> = match full {
            true => osds.iter().rev().copied().collect(),
            false => osds.iter().rev().filter(|o| under(o)).copied().collect(),
        };
        for (from, high) in donors {
            let mut candidates: Vec<(bool, f64, PgId)> = on
                .get(&from)
                .into_iter()
                .flatten()
                .filter(|pg| !self.moved.contains(pg) && Self::is_ours(&self.trial.map, **pg))
                .map(|pg| {
                    let by_hand = self.trial.map.pg_upmap_items.contains_key(pg);
                    (!by_hand, -weigh(&self.trial.map, self.stats, measure, *pg), *pg)
                })
                .collect();
            // Those that have an upmap already: it may become shorter, or needless.
            candidates.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)).then(a.2.cmp(&b.2)));
            for (_, w, pg) in candidates {
                let w = -w;
                if w <= 0.0 {
                    continue;
                }
                for (to, low) in &takers {
                    // Both must be nearer to their part afterwards.
                    if high - low <= w {
                        break;
                    }
                    if self.trials >= TRIALS_MAX {
                        return None;
                    }
                    if let Some(proposal) = self.attempt(pg, from, *to) {
                        return Some(proposal);
                    }
                }
            }
        }
        None
    }

    /// What an operator placed as a whole stays where it is.
    fn is_ours(map: &OsdMap, pg: PgId) -> bool {
        !map.pg_upmap.contains_key(&pg)
    }

    fn attempt(&mut self, pg: PgId, from: OsdId, to: OsdId) -> Option<Proposal> {
        let map = &self.trial.map;
        let mut wanted = map.pg_to_raw_upmap(pg);
        let bytes = self.stats.copy_bytes(map, pg);
        let more = bytes + self.incoming.get(&to).copied().unwrap_or(0);
        if wanted.contains(&to) || !map.is_up(to) || !self.stats.has_room(map, to, more) {
            return None;
        }
        *wanted.iter_mut().find(|o| **o == from)? = to;
        self.trials += 1;
        let before = Upmap::of(map, pg);
        let upmap = self.trial.place(pg, &wanted).ok()?;
        if !upmap.whole.is_empty() {
            before.put(&mut self.trial.map, pg);
            return None;
        }
        self.moved.insert(pg);
        *self.incoming.entry(to).or_default() += bytes;
        Some(Proposal { pg, upmap, from, to, bytes })
    }
}
