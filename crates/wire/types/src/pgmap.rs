//! The digest of statistics that the manager gives to monitors.

use crate::dump::{Dump, shown};
use crate::pg_stat::{PgState, dump_intervals};
use crate::stats::{OsdStat, PoolStat};
use crate::{IntervalSet, OsdId, PoolId, Utime};
use denc_derive::Denc;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// How many groups an OSD has (Ceph: `PGMapDigest::pg_count`, plain).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Denc)]
pub struct PgCount {
    /// Acting.
    pub acting: i32,
    /// Up but not acting.
    pub up_not_acting: i32,
    /// As primary.
    pub primary: i32,
}

/// Statistics of the cluster (Ceph: `PGMapDigest`, `mon/PGMap.h`, version 4, compat 1).
#[derive(Clone, PartialEq, Eq, Default, Debug, Denc)]
#[denc(version = 4, compat = 1, oldest = 4)]
pub struct PgMapDigest {
    /// Groups.
    pub num_pg: i64,
    /// Groups that are active.
    pub num_pg_active: i64,
    /// PGs without a report.
    pub num_pg_unknown: i64,
    /// OSDs that reported.
    pub num_osd: i64,
    /// By pool.
    pub pg_pool_sum: BTreeMap<i32, PoolStat>,
    /// Over all pools.
    pub pg_sum: PoolStat,
    /// Over all OSDs.
    pub osd_sum: OsdStat,
    /// Groups by state.
    pub num_pg_by_state: BTreeMap<u64, i32>,
    /// Groups by OSD.
    pub num_pg_by_osd: BTreeMap<OsdId, PgCount>,
    /// Groups by pool.
    pub num_pg_by_pool: BTreeMap<PoolId, i64>,
    /// Number of each OSD's last report.
    pub osd_last_seq: Vec<u64>,
    /// Recent change and its time by pool.
    pub per_pool_sum_delta: BTreeMap<PoolId, (PoolStat, Utime)>,
    /// When pools were last summed up.
    pub per_pool_sum_deltas_stamps: BTreeMap<PoolId, Utime>,
    /// Recent change over all pools.
    pub pg_sum_delta: PoolStat,
    /// The time of that change.
    pub stamp_delta: Utime,
    /// Bytes that can still be written by CRUSH rule.
    pub avail_space_by_rule: BTreeMap<i32, i64>,
    /// Snapshots that are trimmed by pool.
    pub purged_snaps: BTreeMap<PoolId, IntervalSet>,
    /// Over the OSDs of a device class.
    pub osd_sum_by_class: BTreeMap<String, OsdStat>,
}

impl PgMapDigest {
    /// Whether all OSDs count use by pool.
    pub fn use_per_pool_stats(&self) -> bool {
        self.osd_sum.num_osds == self.osd_sum.num_per_pool_osds
    }

    /// Whether all OSDs count omap by pool.
    pub fn use_per_pool_omap_stats(&self) -> bool {
        self.osd_sum.num_osds == self.osd_sum.num_per_pool_omap_osds
    }
}

impl Dump for PgMapDigest {
    fn dump(&self) -> Value {
        let pool = |(id, stat): (&i32, &PoolStat)| {
            let mut map = Map::new();
            map.insert("poolid".into(), json!(id));
            if let Some(n) = self.num_pg_by_pool.get(&PoolId((*id).into())) {
                map.insert("num_pg".into(), json!(n));
            }
            if let Value::Object(stat) = stat.dump() {
                map.extend(stat);
            }
            Value::Object(map)
        };
        let by_class: Map<_, _> =
            self.osd_sum_by_class.iter().map(|(c, s)| (c.clone(), s.dump())).collect();
        let seqs =
            self.osd_last_seq.iter().enumerate().map(|(osd, seq)| json!({"osd": osd, "seq": seq}));
        let states = self
            .num_pg_by_state
            .iter()
            .map(|(s, n)| json!({"state": shown(PgState(*s)), "num": n}));
        let osds = self.num_pg_by_osd.iter().map(|(osd, n)| {
            json!({
                "osd": osd,
                "num_primary_pg": n.primary,
                "num_acting_pg": n.acting,
                "num_up_not_acting_pg": n.up_not_acting,
            })
        });
        let purged = self
            .purged_snaps
            .iter()
            .map(|(p, s)| json!({"pool": p, "purged_snaps": dump_intervals(s)}));
        json!({
            "num_pg": self.num_pg,
            "num_pg_active": self.num_pg_active,
            "num_pg_unknown": self.num_pg_unknown,
            "num_osd": self.num_osd,
            "pool_sum": self.pg_sum.dump(),
            "osd_sum": self.osd_sum.dump(),
            "osd_sum_by_class": by_class,
            "pool_stats": self.pg_pool_sum.iter().map(pool).collect::<Vec<_>>(),
            "osd_stats": seqs.collect::<Vec<_>>(),
            "num_pg_by_state": states.collect::<Vec<_>>(),
            "num_pg_by_osd": osds.collect::<Vec<_>>(),
            "purged_snaps": purged.collect::<Vec<_>>(),
        })
    }
}
