//! What the monitors know about data: the manager's extract of its [`crate::PgMap`].

use denc_derive::Denc;
use std::collections::BTreeMap;
use types::stats::{ObjectStatSum, OsdStat, PoolStat};
use types::{Epoch, Eversion, IntervalSet, OsdId, OsdMap, PgId, PoolId};

/// Work per second over the last few reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct Rates {
    /// Bytes that clients read.
    pub read_bytes: u64,
    /// Bytes that clients wrote.
    pub write_bytes: u64,
    /// Operations of clients that read.
    pub read_ops: u64,
    /// Operations of clients that wrote.
    pub write_ops: u64,
    /// Bytes recovered.
    pub recovered_bytes: u64,
    /// Omap keys recovered.
    pub recovered_keys: u64,
    /// Objects recovered.
    pub recovered_objects: u64,
}

impl Rates {
    /// The rate from two sums that were `seconds` apart. A sum that went back (a group whose new
    /// primary reports less) counts as no work.
    pub fn between(before: &ObjectStatSum, after: &ObjectStatSum, seconds: f64) -> Rates {
        let per = |a: i64, b: i64, unit: f64| {
            if seconds > 0.0 { ((b - a).max(0) as f64 * unit / seconds) as u64 } else { 0 }
        };
        Rates {
            read_bytes: per(before.num_rd_kb, after.num_rd_kb, 1024.0),
            write_bytes: per(before.num_wr_kb, after.num_wr_kb, 1024.0),
            read_ops: per(before.num_rd, after.num_rd, 1.0),
            write_ops: per(before.num_wr, after.num_wr, 1.0),
            recovered_bytes: per(before.num_bytes_recovered, after.num_bytes_recovered, 1.0),
            recovered_keys: per(before.num_keys_recovered, after.num_keys_recovered, 1.0),
            recovered_objects: per(before.num_objects_recovered, after.num_objects_recovered, 1.0),
        }
    }
}

/// A group that is to become part of another one, or to take one in.
#[derive(Clone, Debug, Default, PartialEq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct Joining {
    /// State bits.
    pub state: u64,
    /// Its last update.
    pub version: Eversion,
    /// The map behind this.
    pub epoch: Epoch,
    /// The OSDs that have it.
    pub acting: Vec<OsdId>,
    /// When it was last clean.
    pub clean: Epoch,
}

/// How long clients' operations took on all OSDs together, in the last stretch of time that had
/// enough of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct ClientLatency {
    /// Tells one stretch from the next.
    pub number: u64,
    /// Operations that were answered in it.
    pub count: u64,
    /// Of 100 of them 99 took no longer, in microseconds.
    pub p99: u64,
}

/// The extract. Its encoding is our own: only our manager writes it and only our monitors read it.
#[derive(Clone, Debug, Default, PartialEq, Denc)]
#[denc(version = 6, compat = 1)]
pub struct Digest {
    /// Counts the digests of one manager.
    pub version: u64,
    /// PGs of all pools; those without a report are `unknown`, state 0.
    pub pgs_by_state: BTreeMap<u64, u32>,
    /// Sums over all groups.
    pub pg_sum: PoolStat,
    /// Sums over all OSDs.
    pub osd_sum: OsdStat,
    /// The same by device class.
    pub osd_sum_by_class: BTreeMap<String, OsdStat>,
    /// Sums by pool.
    pub pools: BTreeMap<PoolId, PoolStat>,
    /// Work per second, all pools together.
    pub rates: Rates,
    /// Work per second by pool, idle pools left out.
    pub pool_rates: BTreeMap<PoolId, Rates>,
    /// Raw bytes that can still be written under each CRUSH rule before its first OSD is full.
    pub rule_avail: BTreeMap<u32, u64>,
    /// Group replicas by OSD.
    pub pgs_by_osd: BTreeMap<OsdId, u32>,
    /// (total, available) bytes by OSD: the monitors set the full states from it.
    pub usage_by_osd: BTreeMap<OsdId, (u64, u64)>,
    /// Groups that are active, for the monitors' record of what was created.
    pub active_pgs: Vec<PgId>,
    /// Snapshots that all groups of a pool have trimmed.
    pub purged_snaps: BTreeMap<PoolId, IntervalSet>,
    /// The OSD map behind each OSD's last report.
    #[denc(since = 2)]
    pub osd_epochs: BTreeMap<OsdId, Epoch>,
    /// What is known of the groups that are joined next.
    #[denc(since = 2)]
    pub joining: BTreeMap<PgId, Joining>,
    /// Background work, by name.
    #[denc(since = 3)]
    pub jobs: BTreeMap<String, crate::jobs::Job>,
    /// The last report of each OSD: the epoch in which it came up, above 32 bits of its number.
    #[denc(since = 4)]
    pub osd_seqs: BTreeMap<OsdId, u64>,
    /// KiB of one copy of each group, by pool and seed.
    #[denc(since = 5)]
    pub group_kib: BTreeMap<PoolId, Vec<u32>>,
    /// Groups that are not active and clean.
    #[denc(since = 5)]
    pub unclean: Vec<PgId>,
    /// How long clients' operations took.
    #[denc(since = 6)]
    pub clients: ClientLatency,
}

impl Digest {
    /// How many groups there are.
    pub fn num_pgs(&self) -> u32 {
        self.pgs_by_state.values().sum()
    }

    /// How many groups have all bits of `state`.
    pub fn num_pgs_with(&self, state: types::stats::PgState) -> u32 {
        self.pgs_by_state.iter().filter(|(s, _)| **s & state.0 == state.0).map(|(_, n)| n).sum()
    }
}

impl Digest {
    /// A pool's sums.
    pub fn pool_stat(&self, pool: PoolId) -> Option<&PoolStat> {
        self.pools.get(&pool)
    }

    /// A pool's counters.
    pub fn pool_sum(&self, pool: PoolId) -> Option<&ObjectStatSum> {
        self.pools.get(&pool).map(|p| &p.stats.sum)
    }

    /// (total, used, available) KiB and the number of objects, as `statfs` answers: of the whole
    /// cluster, or of one pool, where space counts once for all copies or shards.
    pub fn statfs(&self, map: &OsdMap, pool: Option<PoolId>) -> (u64, u64, u64, u64) {
        let objects = |s: &ObjectStatSum| s.num_objects.max(0) as u64;
        if let Some((id, p)) = pool.and_then(|id| Some((id, map.pools.get(&id)?))) {
            let stat = self.pools.get(&id).copied().unwrap_or_default();
            let rate = map.raw_used_rate(p).max(1.0);
            let whole = |raw: u64| (raw as f64 / rate) as u64;
            // OSDs that do not count by pool: what the objects hold is the nearest.
            let used = match stat.num_store_stats {
                0 => stat.stats.sum.num_bytes.max(0) as u64,
                _ => whole(stat.store_stats.allocated.max(0) as u64),
            };
            let avail = self.rule_avail.get(&u32::from(p.crush_rule)).copied().unwrap_or(0);
            let avail = whole(avail);
            return ((used + avail) >> 10, used >> 10, avail >> 10, objects(&stat.stats.sum));
        }
        let fs = &self.osd_sum.statfs;
        (fs.total >> 10, fs.used_raw() >> 10, fs.available >> 10, objects(&self.pg_sum.stats.sum))
    }
}
