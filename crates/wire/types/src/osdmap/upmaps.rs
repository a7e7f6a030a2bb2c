//! Placements made by hand, and when they are wrong (Ceph: `OSDMap::check_pg_upmaps` and
//! `clean_pg_upmaps`, `osd/OSDMap.cc`, 16.2; the primaries: 18.2).
//!
//! An upmap must keep to what the pool's rule promises, and be of use. The map that makes one wrong
//! must not have it any more: clients and OSDs would act on it in that epoch.

use super::OsdMap;
use crate::rados::osd_state;
use crate::{OsdId, PgId, PgPool};
use std::collections::{BTreeMap, BTreeSet};

/// Why an upmap does not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UpmapFault {
    /// The pool has no such group, or soon will not have.
    #[error("the placement group is not there, or is about to be merged")]
    Gone,
    /// The rule does not allow it.
    #[error("rule {rule} does not allow it: {why}")]
    Rule {
        /// The pool's rule.
        rule: u8,
        /// What is against it.
        why: String,
    },
    /// An OSD that the rule would never choose.
    #[error("osd.{0} is not below the rule's root, or has no weight there")]
    Outside(OsdId),
    /// An OSD that is marked out.
    #[error("osd.{0} is out")]
    Out(OsdId),
    /// CRUSH places the group there without it.
    #[error("it changes nothing")]
    Useless,
    /// A whole placement with another number of OSDs than the pool has copies.
    #[error("{found} OSDs are named; the pool has {size} copies")]
    Size {
        /// OSDs that it names.
        found: usize,
        /// Copies of the pool.
        size: usize,
    },
}

/// What checks of many groups share while the CRUSH map stays the same: weights below the roots of
/// rules, and where devices are.
#[derive(Default)]
pub struct RuleWeights {
    weights: BTreeMap<u8, BTreeMap<i32, f64>>,
    domains: crush::Domains,
}

impl OsdMap {
    /// The groups that have an upmap of any kind.
    pub fn upmapped(&self) -> BTreeSet<PgId> {
        let (whole, items, primaries) =
            (self.pg_upmap.keys(), self.pg_upmap_items.keys(), self.pg_upmap_primaries.keys());
        whole.chain(items).chain(primaries).copied().collect()
    }

    /// Whether upmaps that hold in one map may not hold in the other: where something is that
    /// [`Self::check_upmap`] looks at.
    pub fn judges_upmaps_like(&self, other: &OsdMap) -> bool {
        let exists =
            |m: &OsdMap| m.osds.iter().map(|o| o.state & osd_state::EXISTS).collect::<Vec<_>>();
        let pools = |m: &OsdMap| {
            let of = |p: &PgPool| (p.crush_rule, p.size, p.pg_num, p.pg_num_pending, p.pgp_num);
            m.pools.iter().map(|(id, p)| (*id, of(p))).collect::<Vec<_>>()
        };
        self.weights == other.weights
            && self.pg_upmap == other.pg_upmap
            && self.pg_upmap_items == other.pg_upmap_items
            && self.pg_upmap_primaries == other.pg_upmap_primaries
            && exists(self) == exists(other)
            && pools(self) == pools(other)
            && self.crush == other.crush
    }

    /// Whether a group's placement by hand breaks what its pool's rule promises. It does not if
    /// what CRUSH itself chooses fails the same check: rules that take several roots choose hosts
    /// for each of them alone.
    pub fn check_upmap(&self, pg: PgId, weights: &mut RuleWeights) -> Result<(), UpmapFault> {
        let pool = self.pool(pg.pool).filter(|p| pg.seed < p.pg_num);
        let pool = pool.ok_or(UpmapFault::Gone)?;
        if pool.pg_num_pending != 0 && pg.seed >= pool.pg_num_pending {
            return Err(UpmapFault::Gone);
        }
        if let Some(out) = self.pg_upmap.get(&pg).into_iter().flatten().find(|o| self.is_zero(**o))
        {
            return Err(UpmapFault::Out(*out));
        }
        let numbers = |osds: Vec<OsdId>| osds.iter().map(|o| o.0).collect::<Vec<_>>();
        let placed = numbers(self.pg_to_raw_upmap(pg));
        let (rule, size) = (pool.crush_rule, u32::from(pool.size));
        let RuleWeights { weights, domains } = weights;
        let mut verify = |osds: &[i32]| self.crush.verify_upmap(rule.into(), size, osds, domains);
        if let Err(e) = verify(&placed)
            && verify(&numbers(self.pg_to_raw_osds(pg))).is_ok()
        {
            return Err(UpmapFault::Rule { rule, why: e.to_string() });
        }
        let below = weights.entry(rule).or_insert_with(|| self.crush.rule_weights(rule.into()));
        for osd in placed.into_iter().filter(|o| *o != crush::ITEM_NONE) {
            match below.get(&osd) {
                Some(w) if *w > 0.0 && self.is_zero(OsdId(osd)) => {
                    return Err(UpmapFault::Out(OsdId(osd)));
                }
                Some(w) if *w > 0.0 => {}
                _ => return Err(UpmapFault::Outside(OsdId(osd))),
            }
        }
        Ok(())
    }

    fn is_zero(&self, osd: OsdId) -> bool {
        self.weight_fixed(osd) == 0
    }

    /// Takes upmaps out that are wrong, and the parts of others that are of no use. Returns the
    /// groups whose upmaps changed.
    pub fn clean_upmaps(&mut self) -> Vec<PgId> {
        let mut weights = RuleWeights::default();
        let mut changed = Vec::new();
        for pg in self.upmapped() {
            if self.check_upmap(pg, &mut weights).is_err() {
                self.pg_upmap.remove(&pg);
                self.pg_upmap_items.remove(&pg);
                self.pg_upmap_primaries.remove(&pg);
                changed.push(pg);
                continue;
            }
            if self.simplify(pg) {
                changed.push(pg);
            }
        }
        changed
    }

    /// Takes out what a sound upmap of a group has of no use; whether there was something.
    fn simplify(&mut self, pg: PgId) -> bool {
        let mut changed = false;
        let raw = self.pg_to_raw_osds(pg);
        let size = self.pool(pg.pool).map_or(0, |p| usize::from(p.size));
        if self.pg_upmap.get(&pg).is_some_and(|whole| *whole == raw || whole.len() != size) {
            self.pg_upmap.remove(&pg);
            changed = true;
        }
        if let Some(items) = self.pg_upmap_items.get(&pg) {
            let base = self.pg_upmap.get(&pg).unwrap_or(&raw);
            let useful = |(from, to): &&(OsdId, OsdId)| base.contains(from) && !self.is_zero(*to);
            let kept: Vec<_> = items.iter().filter(useful).copied().collect();
            if kept.len() != items.len() {
                changed = true;
                if kept.is_empty() {
                    self.pg_upmap_items.remove(&pg);
                } else {
                    self.pg_upmap_items.insert(pg, kept);
                }
            }
        }
        if let Some(primary) = self.pg_upmap_primaries.remove(&pg) {
            let useful = self.pg_to_raw_upmap(pg).iter().skip(1).any(|o| *o == primary);
            if useful {
                self.pg_upmap_primaries.insert(pg, primary);
            }
            changed |= !useful;
        }
        changed
    }
}
