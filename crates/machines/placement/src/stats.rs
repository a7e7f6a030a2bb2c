//! What is known of data.

use std::collections::BTreeMap;
use types::{OsdId, OsdMap, PgId, PoolId};

/// What an OSD's device has, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Its size.
    pub total: u64,
    /// What is taken, with what is reserved.
    pub used: u64,
}

/// Objects and bytes of a placement group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holds {
    /// Objects.
    pub objects: u64,
    /// Bytes of one copy of all data.
    pub bytes: u64,
}

/// What is known of data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// By PG.
    pub groups: BTreeMap<PgId, Holds>,
    /// By OSD; OSDs that did not report are missing.
    pub usage: BTreeMap<OsdId, Usage>,
}

impl Stats {
    /// Bytes of a PG that one OSD of it has: all in a replicated pool, a shard in an erasure-coded
    /// one.
    pub fn copy_bytes(&self, map: &OsdMap, pg: PgId) -> u64 {
        let bytes = self.groups.get(&pg).map_or(0, |h| h.bytes);
        match map.pool(pg.pool) {
            Some(p) if !p.is_replicated() && p.size > 0 => {
                (bytes as f64 * map.raw_used_rate(p) / f64::from(p.size)) as u64
            }
            _ => bytes,
        }
    }

    /// Whether an OSD stays below the map's backfillfull ratio with so many bytes more. An OSD that
    /// did not report does not: nothing is known of it.
    pub fn has_room(&self, map: &OsdMap, osd: OsdId, more: u64) -> bool {
        self.usage.get(&osd).is_some_and(|u| {
            let limit = u.total as f64 * f64::from(map.backfillfull_ratio);
            u.total > 0 && (u.used.saturating_add(more)) as f64 <= limit
        })
    }
}

/// All PGs of a pool.
pub fn groups(map: &OsdMap, pool: PoolId) -> impl Iterator<Item = PgId> + use<> {
    let pg_num = map.pool(pool).map_or(0, |p| p.pg_num);
    (0..pg_num).map(move |seed| PgId { pool, seed })
}
