//! Statistics of objects, pools and OSDs.

use crate::dump::{Dump, float};
use crate::{Epoch, OsdId, Utime, features};
use bytes::BytesMut;
use denc::{Decode, DecodeError, Encode, Features, Reader, Result, envelope};
use denc_derive::Denc;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

pub use crate::pg_stat::{PgStat, PgState};

macro_rules! object_stats {
    ($($(#[since($since:literal)])? $field:ident: $ty:ty, $doc:literal;)*) => {
        /// Counters over a set of objects (Ceph: `object_stat_sum_t`, `osd/osd_types.h`, version
        /// 20, compat 14). All are signed: differences are statistics too.
        #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
        pub struct ObjectStatSum {
            $(#[doc = $doc] pub $field: $ty,)*
        }

        impl ObjectStatSum {
            /// Adds every counter of `other`.
            pub fn add(&mut self, other: &Self) {
                $(self.$field = self.$field.wrapping_add(other.$field);)*
            }

            /// Subtracts every counter of `other`.
            pub fn sub(&mut self, other: &Self) {
                $(self.$field = self.$field.wrapping_sub(other.$field);)*
            }

            /// Raises every counter below `least` to it.
            pub fn floor(&mut self, least: i32) {
                $(self.$field = self.$field.max(<$ty>::from(least));)*
            }
        }

        impl Encode for ObjectStatSum {
            fn encode(&self, out: &mut BytesMut, f: Features) {
                envelope(out, 20, 14, |out| {
                    $(self.$field.encode(out, f);)*
                });
            }
        }
        impl Decode for ObjectStatSum {
            fn decode(r: &mut Reader) -> Result<Self> {
                let (struct_v, mut r) = r.envelope("object_stat_sum_t", 20)?;
                if struct_v < 14 {
                    return Err(DecodeError::TooOld { what: "object_stat_sum_t", struct_v, oldest: 14 });
                }
                let mut sum = ObjectStatSum::default();
                $(if true $(&& struct_v >= $since)? { sum.$field = r.get()?; })*
                Ok(sum)
            }
        }
    };
}

object_stats! {
    num_bytes: i64, "Bytes of data.";
    num_objects: i64, "Objects, clones included.";
    num_object_clones: i64, "Clones.";
    num_object_copies: i64, "Objects times replicas.";
    num_objects_missing_on_primary: i64, "Objects that the primary lacks.";
    num_objects_degraded: i64, "Copies that are missing.";
    num_objects_unfound: i64, "Objects of which no copy is known.";
    num_rd: i64, "Reads.";
    num_rd_kb: i64, "KiB read.";
    num_wr: i64, "Writes.";
    num_wr_kb: i64, "KiB written.";
    num_scrub_errors: i64, "Errors found by any scrub.";
    num_objects_recovered: i64, "Objects recovered.";
    num_bytes_recovered: i64, "Bytes recovered.";
    num_keys_recovered: i64, "Omap keys recovered.";
    num_shallow_scrub_errors: i64, "Errors found by shallow scrub.";
    num_deep_scrub_errors: i64, "Errors found by deep scrub.";
    num_objects_dirty: i64, "Objects not flushed to a base tier.";
    num_whiteouts: i64, "Objects that only say that they are deleted.";
    num_objects_omap: i64, "Objects with omap.";
    num_objects_hit_set_archive: i64, "Hit set objects.";
    num_objects_misplaced: i64, "Copies in the wrong place.";
    num_bytes_hit_set_archive: i64, "Bytes in hit set objects.";
    num_flush: i64, "Flushes.";
    num_flush_kb: i64, "KiB flushed.";
    num_evict: i64, "Evictions.";
    num_evict_kb: i64, "KiB evicted.";
    num_promote: i64, "Promotions.";
    num_flush_mode_high: i32, "1 in high flush mode.";
    num_flush_mode_low: i32, "1 in low flush mode.";
    num_evict_mode_some: i32, "1 in evict-some mode.";
    num_evict_mode_full: i32, "1 in evict-full mode.";
    num_objects_pinned: i64, "Objects pinned in a cache tier.";
    num_objects_missing: i64, "Objects missing on any acting OSD.";
    #[since(16)] num_legacy_snapsets: i64, "Upper bound of snapsets in the old form.";
    #[since(17)] num_large_omap_objects: i64, "Objects with a very large omap.";
    #[since(18)] num_objects_manifest: i64, "Objects with a manifest.";
    #[since(19)] num_omap_bytes: i64, "Bytes of omap.";
    #[since(19)] num_omap_keys: i64, "Keys of omap.";
    #[since(20)] num_objects_repaired: i64, "Objects repaired.";
}

macro_rules! dump_fields {
    ($this:ident: $($name:literal => $field:ident),* $(,)?) => {{
        let mut map = Map::new();
        $(map.insert($name.into(), $this.$field.into());)*
        Value::Object(map)
    }};
}

impl Dump for ObjectStatSum {
    fn dump(&self) -> Value {
        dump_fields!(self:
            "num_bytes" => num_bytes,
            "num_objects" => num_objects,
            "num_object_clones" => num_object_clones,
            "num_object_copies" => num_object_copies,
            "num_objects_missing_on_primary" => num_objects_missing_on_primary,
            "num_objects_missing" => num_objects_missing,
            "num_objects_degraded" => num_objects_degraded,
            "num_objects_misplaced" => num_objects_misplaced,
            "num_objects_unfound" => num_objects_unfound,
            "num_objects_dirty" => num_objects_dirty,
            "num_whiteouts" => num_whiteouts,
            "num_read" => num_rd,
            "num_read_kb" => num_rd_kb,
            "num_write" => num_wr,
            "num_write_kb" => num_wr_kb,
            "num_scrub_errors" => num_scrub_errors,
            "num_shallow_scrub_errors" => num_shallow_scrub_errors,
            "num_deep_scrub_errors" => num_deep_scrub_errors,
            "num_objects_recovered" => num_objects_recovered,
            "num_bytes_recovered" => num_bytes_recovered,
            "num_keys_recovered" => num_keys_recovered,
            "num_objects_omap" => num_objects_omap,
            "num_objects_hit_set_archive" => num_objects_hit_set_archive,
            "num_bytes_hit_set_archive" => num_bytes_hit_set_archive,
            "num_flush" => num_flush,
            "num_flush_kb" => num_flush_kb,
            "num_evict" => num_evict,
            "num_evict_kb" => num_evict_kb,
            "num_promote" => num_promote,
            "num_flush_mode_high" => num_flush_mode_high,
            "num_flush_mode_low" => num_flush_mode_low,
            "num_evict_mode_some" => num_evict_mode_some,
            "num_evict_mode_full" => num_evict_mode_full,
            "num_objects_pinned" => num_objects_pinned,
            "num_legacy_snapsets" => num_legacy_snapsets,
            "num_large_omap_objects" => num_large_omap_objects,
            "num_objects_manifest" => num_objects_manifest,
            "num_omap_bytes" => num_omap_bytes,
            "num_omap_keys" => num_omap_keys,
            "num_objects_repaired" => num_objects_repaired,
        )
    }
}

/// Counters in their wrapping from the time of object categories (Ceph: `object_stat_collection_t`,
/// version 2).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ObjectStatCollection {
    /// The counters.
    pub sum: ObjectStatSum,
}

impl Encode for ObjectStatCollection {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        envelope(out, 2, 2, |out| {
            self.sum.encode(out, f);
            // No counters by category.
            0u32.encode(out, f);
        });
    }
}
impl Decode for ObjectStatCollection {
    fn decode(r: &mut Reader) -> Result<Self> {
        let (_, mut r) = r.envelope("object_stat_collection_t", 2)?;
        Ok(ObjectStatCollection { sum: r.get()? })
    }
}
impl Dump for ObjectStatCollection {
    fn dump(&self) -> Value {
        json!({"stat_sum": self.sum.dump()})
    }
}

/// Use of a store (Ceph: `store_statfs_t`, version 1). Bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Denc)]
#[denc(version = 1, compat = 1)]
pub struct StoreStatfs {
    /// Size of the store.
    pub total: u64,
    /// Free.
    pub available: u64,
    /// Kept free for the store itself.
    pub internally_reserved: u64,
    /// Allocated for data.
    pub allocated: i64,
    /// Data as users see it.
    pub data_stored: i64,
    /// Data after compression.
    pub data_compressed: i64,
    /// Allocated for compressed data.
    pub data_compressed_allocated: i64,
    /// Compressed data before compression.
    pub data_compressed_original: i64,
    /// Allocated for omap, about.
    pub omap_allocated: i64,
    /// Allocated for metadata, about.
    pub internal_metadata: i64,
}

impl StoreStatfs {
    /// Used, with what is reserved (Ceph: `get_used_raw`).
    pub fn used_raw(&self) -> u64 {
        self.total.saturating_sub(self.available)
    }

    /// Used, without what is reserved (Ceph: `get_used`).
    pub fn used(&self) -> u64 {
        self.used_raw().saturating_sub(self.internally_reserved)
    }

    /// Adds every number of `other`.
    pub fn add(&mut self, other: &Self) {
        self.total = self.total.wrapping_add(other.total);
        self.available = self.available.wrapping_add(other.available);
        self.internally_reserved = self.internally_reserved.wrapping_add(other.internally_reserved);
        self.allocated = self.allocated.wrapping_add(other.allocated);
        self.data_stored = self.data_stored.wrapping_add(other.data_stored);
        self.data_compressed = self.data_compressed.wrapping_add(other.data_compressed);
        self.data_compressed_allocated =
            self.data_compressed_allocated.wrapping_add(other.data_compressed_allocated);
        self.data_compressed_original =
            self.data_compressed_original.wrapping_add(other.data_compressed_original);
        self.omap_allocated = self.omap_allocated.wrapping_add(other.omap_allocated);
        self.internal_metadata = self.internal_metadata.wrapping_add(other.internal_metadata);
    }
}

impl Dump for StoreStatfs {
    fn dump(&self) -> Value {
        json!({
            "total": self.total as i64,
            "available": self.available as i64,
            "internally_reserved": self.internally_reserved as i64,
            "allocated": self.allocated,
            "data_stored": self.data_stored,
            "data_compressed": self.data_compressed,
            "data_compressed_allocated": self.data_compressed_allocated,
            "data_compressed_original": self.data_compressed_original,
            "omap_allocated": self.omap_allocated,
            "internal_metadata": self.internal_metadata,
        })
    }
}

/// Statistics of a pool (Ceph: `pool_stat_t`, version 7, compat 5).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Denc)]
#[denc(version = 7, compat = 5, oldest = 5)]
pub struct PoolStat {
    /// Counters.
    pub stats: ObjectStatCollection,
    /// Entries of all logs.
    pub log_size: i64,
    /// Entries of all logs on disk.
    pub ondisk_log_size: i64,
    /// Replicas up.
    #[denc(since = 6)]
    pub up: i32,
    /// Replicas acting.
    #[denc(since = 6)]
    pub acting: i32,
    /// Use of stores, if they count by pool.
    #[denc(since = 7)]
    pub store_stats: StoreStatfs,
    /// How many stores are in `store_stats`.
    #[denc(since = 7)]
    pub num_store_stats: i32,
}

impl PoolStat {
    /// Counts a group in.
    pub fn add_pg(&mut self, pg: &PgStat) {
        self.stats.sum.add(&pg.stats.sum);
        self.log_size = self.log_size.wrapping_add(pg.log_size);
        self.ondisk_log_size = self.ondisk_log_size.wrapping_add(pg.ondisk_log_size);
        self.up = self.up.wrapping_add(pg.up.len() as i32);
        self.acting = self.acting.wrapping_add(pg.acting.len() as i32);
    }

    /// Counts a store's part of the pool in.
    pub fn add_store(&mut self, statfs: &StoreStatfs) {
        self.store_stats.add(statfs);
        self.num_store_stats = self.num_store_stats.wrapping_add(1);
    }
}

impl Dump for PoolStat {
    fn dump(&self) -> Value {
        json!({
            "stat_sum": self.stats.sum.dump(),
            "store_stats": self.store_stats.dump(),
            "log_size": self.log_size,
            "ondisk_log_size": self.ondisk_log_size,
            "up": self.up,
            "acting": self.acting,
            "num_store_stats": self.num_store_stats,
        })
    }
}

/// Latencies of a store (Ceph: `objectstore_perf_stat_t`, version 2). Nanoseconds; milliseconds to
/// peers without the `OS_PERF_STAT_NS` feature.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PerfStat {
    /// Until a transaction was durable.
    pub commit_latency_ns: u64,
    /// Until a transaction was readable.
    pub apply_latency_ns: u64,
}

impl Encode for PerfStat {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        let nanoseconds = f.has(features::OS_PERF_STAT_NS);
        let version = if nanoseconds { 2 } else { 1 };
        envelope(out, version, version, |out| {
            for ns in [self.commit_latency_ns, self.apply_latency_ns] {
                match nanoseconds {
                    true => ns.encode(out, f),
                    false => ((ns / 1_000_000) as u32).encode(out, f),
                }
            }
        });
    }
}
impl Decode for PerfStat {
    fn decode(r: &mut Reader) -> Result<Self> {
        let (struct_v, mut r) = r.envelope("objectstore_perf_stat_t", 2)?;
        let mut next = || -> Result<u64> {
            Ok(if struct_v >= 2 { r.get()? } else { u64::from(r.get::<u32>()?) * 1_000_000 })
        };
        Ok(PerfStat { commit_latency_ns: next()?, apply_latency_ns: next()? })
    }
}
impl Dump for PerfStat {
    fn dump(&self) -> Value {
        json!({
            "commit_latency_ms": float(self.commit_latency_ns as f64 / 1e6),
            "apply_latency_ms": float(self.apply_latency_ns as f64 / 1e6),
            "commit_latency_ns": self.commit_latency_ns,
            "apply_latency_ns": self.apply_latency_ns,
        })
    }
}

/// Histogram: bin `i` counts values with `i` bits (Ceph: `pow2_hist_t`, version 1).
#[derive(Clone, PartialEq, Eq, Default, Debug, Denc)]
#[denc(version = 1, compat = 1)]
pub struct Pow2Hist {
    /// Counts, without zeros at the end.
    pub bins: Vec<i32>,
}

impl Dump for Pow2Hist {
    fn dump(&self) -> Value {
        // A histogram of 31 bins and more overflows in Ceph as well.
        let bound = 1i32.wrapping_shl(self.bins.len() as u32);
        json!({"histogram": self.bins, "upper_bound": bound})
    }
}

/// Ping times to a peer in microseconds (Ceph: `osd_stat_t::Interfaces`).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Denc)]
pub struct PingTimes {
    /// When, in seconds since 1970.
    pub last_update: u32,
    /// Average over 1, 5 and 15 minutes on the back network.
    pub back_pingtime: U32x3,
    /// Least.
    pub back_min: U32x3,
    /// Most.
    pub back_max: U32x3,
    /// The last one.
    pub back_last: u32,
    /// Average on the front network.
    pub front_pingtime: U32x3,
    /// Least.
    pub front_min: U32x3,
    /// Most.
    pub front_max: U32x3,
    /// The last one.
    pub front_last: u32,
}

/// Numbers over 1, 5 and 15 minutes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Denc)]
pub struct U32x3(pub u32, pub u32, pub u32);

/// What an OSD reports of itself (Ceph: `osd_stat_t`, version 14, compat 2).
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct OsdStat {
    /// Use of its store.
    pub statfs: StoreStatfs,
    /// Whom it pings.
    pub hb_peers: Vec<OsdId>,
    /// Objects waiting to be trimmed.
    pub snap_trim_queue_len: i32,
    /// Objects being trimmed.
    pub num_snap_trimming: i32,
    /// Shards repaired.
    pub num_shards_repaired: u64,
    /// Age of operations in the queue.
    pub op_queue_age_hist: Pow2Hist,
    /// Latencies.
    pub perf_stat: PerfStat,
    /// Alerts of the stores by OSD, name to text.
    pub alerts: BTreeMap<OsdId, BTreeMap<String, String>>,
    /// When it came up.
    pub up_from: Epoch,
    /// Orders reports.
    pub seq: u64,
    /// Groups it holds.
    pub num_pgs: u32,
    /// How many OSDs are summed up here.
    pub num_osds: u32,
    /// How many of them count by pool.
    pub num_per_pool_osds: u32,
    /// How many of them count omap by pool.
    pub num_per_pool_omap_osds: u32,
    /// Ping times by peer.
    pub hb_pingtime: BTreeMap<OsdId, PingTimes>,
}

impl OsdStat {
    /// The number by which operators know a report: the epoch in which the OSD came up, above 32
    /// bits of the count of its reports (Ceph: `osd_stat_t::seq`).
    pub fn seq_of(up_from: Epoch, count: u64) -> u64 {
        u64::from(up_from.0) << 32 | count & 0xffff_ffff
    }

    /// Counts another OSD in.
    pub fn add(&mut self, other: &OsdStat) {
        self.statfs.add(&other.statfs);
        self.snap_trim_queue_len = self.snap_trim_queue_len.wrapping_add(other.snap_trim_queue_len);
        self.num_snap_trimming = self.num_snap_trimming.wrapping_add(other.num_snap_trimming);
        self.num_shards_repaired = self.num_shards_repaired.wrapping_add(other.num_shards_repaired);
        let bins = &mut self.op_queue_age_hist.bins;
        bins.resize(bins.len().max(other.op_queue_age_hist.bins.len()), 0);
        for (bin, n) in bins.iter_mut().zip(&other.op_queue_age_hist.bins) {
            *bin = bin.wrapping_add(*n);
        }
        self.perf_stat.commit_latency_ns =
            self.perf_stat.commit_latency_ns.wrapping_add(other.perf_stat.commit_latency_ns);
        self.perf_stat.apply_latency_ns =
            self.perf_stat.apply_latency_ns.wrapping_add(other.perf_stat.apply_latency_ns);
        self.num_pgs = self.num_pgs.wrapping_add(other.num_pgs);
        self.num_osds = self.num_osds.wrapping_add(other.num_osds);
        self.num_per_pool_osds = self.num_per_pool_osds.wrapping_add(other.num_per_pool_osds);
        self.num_per_pool_omap_osds =
            self.num_per_pool_omap_osds.wrapping_add(other.num_per_pool_omap_osds);
        for (osd, alerts) in &other.alerts {
            self.alerts.entry(*osd).or_default().extend(alerts.clone());
        }
    }
}

impl Encode for OsdStat {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        envelope(out, 14, 2, |out| {
            let s = &self.statfs;
            ((s.total >> 10) as i64).encode(out, f);
            ((s.used_raw() >> 10) as i64).encode(out, f);
            ((s.available >> 10) as i64).encode(out, f);
            self.snap_trim_queue_len.encode(out, f);
            self.num_snap_trimming.encode(out, f);
            self.hb_peers.encode(out, f);
            // Peers that ping us: an empty list.
            0u32.encode(out, f);
            self.op_queue_age_hist.encode(out, f);
            self.perf_stat.encode(out, f);
            self.up_from.encode(out, f);
            self.seq.encode(out, f);
            self.num_pgs.encode(out, f);
            (s.allocated as u64 >> 10).encode(out, f);
            (s.omap_allocated as u64 >> 10).encode(out, f);
            (s.internal_metadata as u64 >> 10).encode(out, f);
            s.encode(out, f);
            self.alerts.encode(out, f);
            self.num_shards_repaired.encode(out, f);
            self.num_osds.encode(out, f);
            self.num_per_pool_osds.encode(out, f);
            self.num_per_pool_omap_osds.encode(out, f);
            self.hb_pingtime.encode(out, f);
        });
    }
}
impl Decode for OsdStat {
    fn decode(r: &mut Reader) -> Result<Self> {
        let (struct_v, mut r) = r.envelope("osd_stat_t", 14)?;
        if struct_v < 9 {
            return Err(DecodeError::TooOld { what: "osd_stat_t", struct_v, oldest: 9 });
        }
        let mut s = OsdStat::default();
        // The sums in KiB are in the statfs again.
        r.skip("osd_stat_t kb", 24)?;
        s.snap_trim_queue_len = r.get()?;
        s.num_snap_trimming = r.get()?;
        s.hb_peers = r.get()?;
        r.get::<Vec<i32>>()?;
        s.op_queue_age_hist = r.get()?;
        s.perf_stat = r.get()?;
        s.up_from = r.get()?;
        s.seq = r.get()?;
        s.num_pgs = r.get()?;
        r.skip("osd_stat_t kb", 24)?;
        s.statfs = r.get()?;
        if struct_v >= 10 {
            s.alerts = r.get()?;
        }
        if struct_v >= 11 {
            s.num_shards_repaired = r.get()?;
        }
        if struct_v >= 12 {
            s.num_osds = r.get()?;
            s.num_per_pool_osds = r.get()?;
        }
        if struct_v >= 13 {
            s.num_per_pool_omap_osds = r.get()?;
        }
        if struct_v >= 14 {
            s.hb_pingtime = r.get()?;
        }
        Ok(s)
    }
}

impl OsdStat {
    /// The dump without ping times, as in `pg dump`.
    pub fn dump_without_net(&self) -> Value {
        let s = &self.statfs;
        let alerts: Vec<String> = self
            .alerts
            .iter()
            .flat_map(|(osd, list)| {
                list.iter().map(move |(name, text)| format!(" osd: {osd} {name}:{text}"))
            })
            .collect();
        json!({
            "up_from": self.up_from,
            "seq": self.seq,
            "num_pgs": self.num_pgs,
            "num_osds": self.num_osds,
            "num_per_pool_osds": self.num_per_pool_osds,
            "num_per_pool_omap_osds": self.num_per_pool_omap_osds,
            "kb": s.total >> 10,
            "kb_used": s.used_raw() >> 10,
            "kb_used_data": s.allocated as u64 >> 10,
            "kb_used_omap": s.omap_allocated as u64 >> 10,
            "kb_used_meta": s.internal_metadata as u64 >> 10,
            "kb_avail": s.available >> 10,
            "statfs": s.dump(),
            "hb_peers": self.hb_peers,
            "snap_trim_queue_len": self.snap_trim_queue_len,
            "num_snap_trimming": self.num_snap_trimming,
            "num_shards_repaired": self.num_shards_repaired,
            "op_queue_age_hist": self.op_queue_age_hist.dump(),
            "perf_stat": self.perf_stat.dump(),
            "alerts": alerts,
        })
    }

    fn dump_ping_times(&self) -> Value {
        let ms = |us: u32| float(f64::from(us) / 1000.0);
        let three = |v: U32x3| json!({"1min": ms(v.0), "5min": ms(v.1), "15min": ms(v.2)});
        let entry = |(osd, t): (&OsdId, &PingTimes)| {
            let mut interfaces = vec![json!({
                "interface": "back",
                "average": three(t.back_pingtime),
                "min": three(t.back_min),
                "max": three(t.back_max),
                "last": ms(t.back_last),
            })];
            if t.front_pingtime.0 != 0 {
                interfaces.push(json!({
                    "interface": "front",
                    "average": three(t.front_pingtime),
                    "min": three(t.front_min),
                    "max": three(t.front_max),
                    "last": ms(t.front_last),
                }));
            }
            let when = Utime::new(t.last_update, 0).ctime();
            json!({"osd": osd, "last update": when, "interfaces": interfaces})
        };
        Value::Array(self.hb_pingtime.iter().map(entry).collect())
    }
}

impl Dump for OsdStat {
    fn dump(&self) -> Value {
        let mut value = self.dump_without_net();
        if let Some(map) = value.as_object_mut() {
            map.insert("network_ping_times".into(), self.dump_ping_times());
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_are_milliseconds_to_old_peers() {
        let stat = PerfStat { commit_latency_ns: 2_500_000, apply_latency_ns: 1_000_000 };
        assert_eq!(stat.to_bytes(Features(0)).as_ref(), [1, 1, 8, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0]);
        assert_eq!(
            PerfStat::from_bytes(&stat.to_bytes(features::PACIFIC)).unwrap().commit_latency_ns,
            2_000_000
        );
        assert_eq!(PerfStat::from_bytes(&stat.to_bytes(Features::ALL)).unwrap(), stat);
    }

    #[test]
    fn sums_subtract_what_they_added() {
        let one = ObjectStatSum {
            num_bytes: 5,
            num_flush_mode_high: 1,
            num_objects_repaired: 2,
            ..Default::default()
        };
        let mut sum = one;
        sum.add(&one);
        assert_eq!(sum.num_bytes, 10);
        sum.sub(&one);
        assert_eq!(sum, one);
        sum.sub(&one);
        sum.sub(&one);
        sum.floor(0);
        assert_eq!(sum, ObjectStatSum::default());
    }
}
