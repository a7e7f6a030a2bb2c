//! From object to placement group to OSDs (Ceph: `OSDMap::_pg_to_up_acting_osds` and what it
//! calls).
//!
//! ```text
//! object --hash--> PG --CRUSH--> raw --upmap--> raw --only those up--> up --affinity--> up, first
//!                                                                      |
//!                                         pg_temp, primary_temp or else +--> acting, primary
//! ```
//!
//! In replicated pools members may move up into the place of a missing one; in erasure-coded pools
//! each place stands for a shard, and a missing member leaves a hole ([`OsdId::NONE`]).

use super::OsdMap;
use crate::rados::osd_state;
use crate::{ObjectLocator, OsdId, PgId, PgPool};
use crush::{ITEM_NONE, Shifts, Workspace};
use std::sync::Arc;

/// Where a placement group lives.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct UpActing {
    /// What CRUSH (and upmaps) ask for, of what is up.
    pub up: Vec<OsdId>,
    /// The first of it by affinity, -1 for none.
    pub up_primary: OsdId,
    /// The acting set.
    pub acting: Vec<OsdId>,
    /// The primary of it, -1 for none.
    pub acting_primary: OsdId,
}

/// Memory that mapping many groups reuses.
#[derive(Default)]
pub(super) struct Scratch {
    workspace: Workspace,
    pub(super) up: Vec<i32>,
    pub(super) acting: Vec<i32>,
    raw: Vec<i32>,
}

/// Places many groups with the same memory.
pub struct Placer<'a> {
    map: &'a OsdMap,
    scratch: Scratch,
}

impl Placer<'_> {
    /// What CRUSH and upmaps say, whether up or not.
    pub fn raw_upmap(&mut self, pg: PgId) -> &[i32] {
        self.scratch.raw.clear();
        if let Some(pool) = self.map.pool(pg.pool) {
            self.map.raw_osds(pool, pg, &mut self.scratch);
            self.map.apply_upmap(pool, pg, &mut self.scratch.raw);
        }
        &self.scratch.raw
    }

    /// Whether the last group may be placed otherwise with the weights beside
    /// ([`OsdMap::placer_beside`]).
    pub fn shifted(&self) -> bool {
        self.scratch.workspace.shifted()
    }
}

const NOBODY: i32 = -1;

fn ids(v: &[i32]) -> Vec<OsdId> {
    v.iter().map(|i| OsdId(*i)).collect()
}

impl OsdMap {
    /// The group (not folded) of an object; `None` if its pool does not exist. A locator with a
    /// hash or a key decides for itself.
    pub fn object_locator_to_pg(&self, name: &[u8], locator: &ObjectLocator) -> Option<PgId> {
        let pool = self.pool(locator.pool)?;
        let seed = match u32::try_from(locator.hash) {
            Ok(hash) if locator.hash >= 0 => hash,
            _ => pool.hash_key(
                if locator.key.is_empty() { name } else { &locator.key },
                &locator.namespace,
            ),
        };
        Some(PgId::new(locator.pool, seed))
    }

    /// Folds a group's full hash into one that exists (Ceph: `raw_pg_to_pg`).
    pub fn raw_pg_to_pg(&self, raw: PgId) -> Option<PgId> {
        Some(self.pool(raw.pool)?.raw_pg_to_pg(raw))
    }

    /// The input of CRUSH for a group (Ceph: `pg_pool_t::raw_pg_to_pps`).
    pub fn placement_seed(pool: &PgPool, pg: PgId) -> u32 {
        let base = pool.placement_base(pg.seed);
        if pool.has_flag(crate::pool::flag::HASHPSPOOL) {
            crush::hash::hash2(base, pg.pool.0 as u32)
        } else {
            base.wrapping_add(pg.pool.0 as u32)
        }
    }

    /// Where a group lives. Groups of pools that do not exist live nowhere.
    pub fn pg_to_up_acting(&self, pg: PgId) -> UpActing {
        let mut s = Scratch::default();
        match self.map_pg(pg, &mut s) {
            Some((up_primary, acting_primary)) => UpActing {
                up: ids(&s.up),
                up_primary: OsdId(up_primary),
                acting: ids(&s.acting),
                acting_primary: OsdId(acting_primary),
            },
            None => UpActing {
                up_primary: OsdId(NOBODY),
                acting_primary: OsdId(NOBODY),
                ..UpActing::default()
            },
        }
    }

    /// What CRUSH alone says, of the OSDs that exist.
    pub fn pg_to_raw_osds(&self, pg: PgId) -> Vec<OsdId> {
        let mut s = Scratch::default();
        if let Some(pool) = self.pool(pg.pool) {
            self.raw_osds(pool, pg, &mut s);
        }
        ids(&s.raw)
    }

    /// What CRUSH and upmaps say, whether up or not.
    pub fn pg_to_raw_upmap(&self, pg: PgId) -> Vec<OsdId> {
        let mut s = Scratch::default();
        if let Some(pool) = self.pool(pg.pool) {
            self.raw_osds(pool, pg, &mut s);
            self.apply_upmap(pool, pg, &mut s.raw);
        }
        ids(&s.raw)
    }

    /// Places many groups of this map.
    pub fn placer(&self) -> Placer<'_> {
        Placer { map: self, scratch: Scratch::default() }
    }

    /// Places many groups of this map, and says of each whether other weights in CRUSH may place it
    /// otherwise.
    pub fn placer_beside(&self, other: Arc<Shifts>) -> Placer<'_> {
        let mut placer = self.placer();
        placer.scratch.workspace.watch(other);
        placer
    }

    /// The weights that another map has in CRUSH, if all else but pools and upmaps that places
    /// groups is the same.
    pub fn shifts(&self, other: &OsdMap) -> Option<Shifts> {
        let exists = |m: &OsdMap, n: usize| m.osds[n].state & osd_state::EXISTS;
        let same = self.weights == other.weights
            && self.osds.len() == other.osds.len()
            && (0..self.osds.len()).all(|n| exists(self, n) == exists(other, n));
        if !same {
            return None;
        }
        self.crush.shifts(&other.crush)
    }

    /// The up set without regard to temporary sets, and its primary.
    pub fn pg_to_raw_up(&self, pg: PgId) -> (Vec<OsdId>, OsdId) {
        let mut s = Scratch::default();
        let Some(pool) = self.pool(pg.pool) else { return (Vec::new(), OsdId(NOBODY)) };
        let seed = self.raw_osds(pool, pg, &mut s);
        self.apply_upmap(pool, pg, &mut s.raw);
        self.raw_to_up(pool, &s.raw, &mut s.up);
        // Ceph takes the first of the raw set, up or not, unless affinity chooses another.
        let mut primary = pick_primary(&s.raw);
        self.apply_affinity(seed, pool, &mut s.up, &mut primary);
        (ids(&s.up), OsdId(primary))
    }

    /// Maps a group into the scratch's `up` and `acting`; returns both primaries.
    pub(super) fn map_pg(&self, pg: PgId, s: &mut Scratch) -> Option<(i32, i32)> {
        let pool = self.pool(pg.pool)?;
        let seed = self.raw_osds(pool, pg, s);
        self.apply_upmap(pool, pg, &mut s.raw);
        self.raw_to_up(pool, &s.raw, &mut s.up);
        let mut up_primary = pick_primary(&s.up);
        self.apply_affinity(seed, pool, &mut s.up, &mut up_primary);
        let mut acting_primary = self.temp_osds(pool, pg, &mut s.acting);
        if s.acting.is_empty() {
            s.acting.extend_from_slice(&s.up);
            if acting_primary == NOBODY {
                acting_primary = up_primary;
            }
        }
        Some((up_primary, acting_primary))
    }

    fn has(&self, osd: i32, bits: u32) -> bool {
        let osd = usize::try_from(osd).ok().and_then(|i| self.osds.get(i));
        osd.is_some_and(|o| o.state & bits == bits)
    }

    fn raw_osds(&self, pool: &PgPool, pg: PgId, s: &mut Scratch) -> u32 {
        let seed = Self::placement_seed(pool, pg);
        let size = u32::from(pool.size);
        s.raw.clear();
        if let Some(rule) = self.crush.find_rule(i32::from(pool.crush_rule), pool.kind as u8, size)
        {
            let args = self.crush.choose_args_for(pg.pool.0);
            let max = size as usize;
            self.crush.do_rule(
                rule,
                seed as i32,
                max,
                &self.weights,
                args,
                &mut s.workspace,
                &mut s.raw,
            );
        }
        self.keep(pool, &mut s.raw, osd_state::EXISTS);
        seed
    }

    /// Keeps members with these bits of state; others leave a hole or nothing.
    fn keep(&self, pool: &PgPool, osds: &mut Vec<i32>, bits: u32) {
        if pool.is_replicated() {
            osds.retain(|o| self.has(*o, bits));
        } else {
            osds.iter_mut().filter(|o| !self.has(**o, bits)).for_each(|o| *o = ITEM_NONE);
        }
    }

    fn raw_to_up(&self, pool: &PgPool, raw: &[i32], up: &mut Vec<i32>) {
        up.clear();
        up.extend_from_slice(raw);
        self.keep(pool, up, osd_state::EXISTS | osd_state::UP);
    }

    /// Whether an OSD is in the map's range and marked out; upmaps to such an OSD do not count.
    fn is_marked_out(&self, osd: i32) -> bool {
        usize::try_from(osd).ok().and_then(|i| self.weights.get(i)) == Some(&0)
    }

    fn apply_upmap(&self, pool: &PgPool, raw_pg: PgId, raw: &mut Vec<i32>) {
        if self.pg_upmap.is_empty()
            && self.pg_upmap_items.is_empty()
            && self.pg_upmap_primaries.is_empty()
        {
            return;
        }
        let pg = pool.raw_pg_to_pg(raw_pg);
        if let Some(to) = self.pg_upmap.get(&pg) {
            if to.iter().any(|o| self.is_marked_out(o.0)) {
                return;
            }
            raw.clear();
            raw.extend(to.iter().map(|o| o.0));
        }
        for (from, to) in self.pg_upmap_items.get(&pg).into_iter().flatten() {
            if raw.contains(&to.0) || self.is_marked_out(to.0) {
                continue;
            }
            if let Some(slot) = raw.iter_mut().find(|o| **o == from.0) {
                *slot = to.0;
            }
        }
        if let Some(primary) = self.pg_upmap_primaries.get(&pg)
            && self.weight_fixed(*primary) != 0
            && let Some(at) = raw.iter().skip(1).position(|o| *o == primary.0)
        {
            raw.swap(0, at + 1);
        }
    }

    fn apply_affinity(&self, seed: u32, pool: &PgPool, osds: &mut [i32], primary: &mut i32) {
        if self.primary_affinity.is_none() {
            return;
        }
        let affinity = |o: i32| self.primary_affinity_fixed(OsdId(o));
        if osds.iter().all(|o| *o == ITEM_NONE || affinity(*o) == OsdMap::ONE) {
            return;
        }
        // The first that is not refused leads; if all are refused, the first of them.
        let members = || osds.iter().enumerate().filter(|(_, o)| **o != ITEM_NONE);
        let refused = |o: i32| {
            let a = affinity(o);
            a < OsdMap::ONE && crush::hash::hash2(seed, o as u32) >> 16 >= a
        };
        let Some(at) =
            members().find(|(_, o)| !refused(**o)).or_else(|| members().next()).map(|m| m.0)
        else {
            return;
        };
        *primary = osds[at];
        if pool.is_replicated() {
            osds[..=at].rotate_right(1);
        }
    }

    /// The temporary acting set, empty if there is none, and the temporary primary or else its
    /// first member.
    fn temp_osds(&self, pool: &PgPool, raw_pg: PgId, temp: &mut Vec<i32>) -> i32 {
        temp.clear();
        if self.pg_temp.is_empty() && self.primary_temp.is_empty() {
            return NOBODY;
        }
        let pg = pool.raw_pg_to_pg(raw_pg);
        if let Some(osds) = self.pg_temp.get(&pg) {
            temp.extend(osds.iter().map(|o| o.0));
            self.keep(pool, temp, osd_state::EXISTS | osd_state::UP);
        }
        self.primary_temp.get(&pg).map_or_else(|| pick_primary(temp), |o| o.0)
    }

    /// Adds to a pending increment the removal of temporary sets that the map it leads to (`next`,
    /// made by applying it to `self`) does not need: of pools that are gone, of OSDs that are all
    /// down, too large ones, and those that say what holds anyway (Ceph: `OSDMap::clean_temps`).
    pub fn clean_temps(&self, next: &OsdMap, pending: &mut super::OsdMapIncremental) {
        for (pg, osds) in &next.pg_temp {
            let Some(pool) = next.pool(pg.pool) else {
                pending.new_pg_temp.insert(*pg, Vec::new());
                continue;
            };
            if osds.iter().all(|o| next.is_down(*o)) {
                pending.new_pg_temp.insert(*pg, Vec::new());
                continue;
            }
            if next.pg_to_raw_up(*pg).0 == *osds || osds.len() > usize::from(pool.size) {
                if self.pg_temp.contains_key(pg) {
                    pending.new_pg_temp.insert(*pg, Vec::new());
                } else {
                    pending.new_pg_temp.remove(pg);
                }
            }
        }
        for (pg, osd) in &next.primary_temp {
            if next.is_down(*osd) {
                pending.new_primary_temp.insert(*pg, OsdId(NOBODY));
            } else if next.pg_to_up_acting(*pg).acting_primary == next.pg_to_raw_up(*pg).1 {
                if self.primary_temp.contains_key(pg) {
                    pending.new_primary_temp.insert(*pg, OsdId(NOBODY));
                } else {
                    pending.new_primary_temp.remove(pg);
                }
            }
        }
    }
}

fn pick_primary(osds: &[i32]) -> i32 {
    osds.iter().copied().find(|o| *o != ITEM_NONE).unwrap_or(NOBODY)
}
