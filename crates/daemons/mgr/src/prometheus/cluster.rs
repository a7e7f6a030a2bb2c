//! What Ceph's module exports, under its names (Ceph 16.2: `pybind/mgr/prometheus/module.py`), as
//! far as it is known here; and jobs.

use super::text::{Kind, Text};
use crate::health_history::HealthHistory;
use crate::state::MgrState;
use pgmap::df::PoolRow;
use serde_json::Value;
use std::collections::BTreeMap;
use types::osdmap::flag_names;
use types::pool::PgPool;
use types::{OsdId, OsdMap, PgState, PoolId};

/// What the monitors told of themselves: `health detail`, `mon dump`, `quorum_status`, `osd
/// metadata`.
#[derive(Default)]
pub struct FromMonitors {
    /// Health with its checks.
    pub health: Value,
    /// The quorum with its map.
    pub quorum: Value,
    /// What OSDs told of themselves.
    pub osds: Value,
    /// What monitors told of themselves.
    pub mons: Value,
    /// What managers told of themselves.
    pub mgrs: Value,
    /// The managers' map.
    pub mgr_map: Value,
}

/// Sums over an image's operations (Ceph: `get_all_rbd_stats` of the module).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ImageSums {
    /// Where it is.
    pub pool: String,
    /// In which namespace.
    pub namespace: String,
    /// Its name.
    pub image: String,
    /// In the order of [`crate::rbd::perf::COUNTERS`].
    pub sums: Vec<f64>,
}

/// Images out of what `rbd perf image counters` answers.
pub fn image_sums(report: &Value) -> Vec<ImageSums> {
    let entries = report["counters"].as_array().into_iter().flatten();
    let one = |entry: &Value| {
        let (key, values) = entry.as_object()?.iter().next()?;
        let (at, image) = key.split_once('/')?;
        let place = report["pool_descriptors"][at].as_str()?;
        let (pool, namespace) = place.split_once('/').unwrap_or((place, ""));
        Some(ImageSums {
            pool: pool.to_owned(),
            namespace: namespace.to_owned(),
            image: image.to_owned(),
            sums: values.as_array()?.iter().map(|v| v.as_f64().unwrap_or(0.0)).collect(),
        })
    };
    entries.filter_map(one).collect()
}

/// Metrics of images: the name, and the index of the sum. Latencies are nanoseconds, as in Ceph's
/// module, and come with the number of their operations.
const OF_IMAGES: [(&str, usize); 8] = [
    ("write_ops", 0),
    ("read_ops", 1),
    ("write_bytes", 2),
    ("read_bytes", 3),
    ("write_latency_sum", 4),
    ("write_latency_count", 0),
    ("read_latency_sum", 5),
    ("read_latency_count", 1),
];

/// Writes what images did.
pub fn images(all: &[ImageSums], out: &mut Text) {
    for (name, index) in OF_IMAGES {
        if all.is_empty() {
            return;
        }
        let metric = format!("ceph_rbd_{name}");
        out.metric(&metric, Kind::Counter, &format!("RBD image {}", name.replace('_', " ")));
        for i in all {
            let labels = [("pool", &*i.pool), ("namespace", &*i.namespace), ("image", &*i.image)];
            out.value(&metric, &labels, i.sums.get(index).copied().unwrap_or(0.0));
        }
    }
}

/// Flags that Ceph's module shows.
const FLAGS: [&str; 9] = [
    "noup",
    "nodown",
    "noout",
    "noin",
    "nobackfill",
    "norebalance",
    "norecover",
    "noscrub",
    "nodeep-scrub",
];
/// States of groups that have a metric each.
const STATES: [&str; 30] = [
    "active",
    "activating",
    "backfill_toofull",
    "backfill_unfound",
    "backfill_wait",
    "backfilling",
    "clean",
    "creating",
    "deep",
    "degraded",
    "down",
    "forced_backfill",
    "forced_recovery",
    "incomplete",
    "inconsistent",
    "laggy",
    "peered",
    "peering",
    "premerge",
    "recovering",
    "recovery_toofull",
    "recovery_unfound",
    "recovery_wait",
    "remapped",
    "repair",
    "scrubbing",
    "snaptrim",
    "snaptrim_wait",
    "stale",
    "undersized",
];
/// Of pools, of `df detail`.
const OF_POOLS: [(&str, Kind); 15] = [
    ("max_avail", Kind::Gauge),
    ("stored", Kind::Gauge),
    ("stored_raw", Kind::Gauge),
    ("objects", Kind::Gauge),
    ("dirty", Kind::Gauge),
    ("quota_bytes", Kind::Gauge),
    ("quota_objects", Kind::Gauge),
    ("rd", Kind::Counter),
    ("rd_bytes", Kind::Counter),
    ("wr", Kind::Counter),
    ("wr_bytes", Kind::Counter),
    ("compress_bytes_used", Kind::Gauge),
    ("compress_under_bytes", Kind::Gauge),
    ("bytes_used", Kind::Gauge),
    ("percent_used", Kind::Gauge),
];
/// Of OSDs, of the counters that they report.
const OF_OSDS: [(&str, &str); 10] = [
    ("op", "Client operations"),
    ("op_r", "Client read operations"),
    ("op_w", "Client write operations"),
    ("op_in_bytes", "Client operations total write size"),
    ("op_out_bytes", "Client operations total read size"),
    ("op_r_out_bytes", "Client data read"),
    ("op_w_in_bytes", "Client data written"),
    ("op_r_latency_count", "Latency of read operation (including queue time) Count"),
    ("op_w_latency_count", "Latency of write operation (including queue time) Count"),
    ("recovery_ops", "Started recovery operations"),
];
/// The same in nanoseconds, shown in seconds: counter, name, and what it says.
const OSD_SECONDS: [(&str, &str, &str); 2] = [
    (
        "op_r_latency_ns",
        "op_r_latency_sum",
        "Latency of read operation (including queue time) Total",
    ),
    (
        "op_w_latency_ns",
        "op_w_latency_sum",
        "Latency of write operation (including queue time) Total",
    ),
];

/// Of OSDs, of the same: counter, how many of it are one, name, and what it says.
const CAPACITY: [(&str, f64, &str, &str); 4] = [
    (
        "qos_capacity",
        1.0,
        "capacity_iops",
        "Random writes of 4 KiB each second of which promises are parts",
    ),
    (
        "qos_capacity_learned",
        1.0,
        "capacity_learned_iops",
        "Random writes of 4 KiB each second that the OSD does, as it learned",
    ),
    (
        "qos_capacity_set",
        1.0,
        "capacity_set_iops",
        "Random writes of 4 KiB each second that the OSD does, as an operator says",
    ),
    (
        "qos_floors_scaled",
        1000.0,
        "floors_scaled",
        "The part of tenants' floors that is kept (1 for all)",
    ),
];

/// Writes all of it.
pub fn write(state: &MgrState, monitors: &FromMonitors, name: &str, out: &mut Text) {
    health(monitors, &state.health_history.borrow(), out);
    let Some(map) = &state.osd_map else { return };
    osds(state, map, monitors, out);
    pools(state, map, out);
    groups(state, map, out);
    jobs(state, out);
    moves(state, out);
    managers(monitors, name, out);
}

/// A daemon's row among those that tell of themselves.
fn row<'a>(all: &'a Value, key: &str, is: impl Fn(&Value) -> bool) -> &'a Value {
    let found = all.as_array().and_then(|rows| rows.iter().find(|r| is(&r[key])));
    found.unwrap_or(&Value::Null)
}

fn managers(m: &FromMonitors, name: &str, out: &mut Text) {
    let standbys = m.mgr_map["standbys"].as_array().into_iter().flatten();
    let waiting: Vec<&str> = standbys.map(|s| text(s, "name")).filter(|n| *n != name).collect();
    let all = || std::iter::once((name, 1.0)).chain(waiting.iter().map(|n| (*n, 0.0)));
    out.metric("ceph_mgr_status", Kind::Gauge, "MGR status (0=standby, 1=active)");
    for (name, active) in all() {
        out.value("ceph_mgr_status", &[("ceph_daemon", &format!("mgr.{name}"))], active);
    }
    out.metric("ceph_mgr_metadata", Kind::Untyped, "MGR metadata");
    for (name, _) in all() {
        let told = row(&m.mgrs, "name", |n| n == name);
        let version = told["ceph_version"].as_str().unwrap_or(types::version::LONG);
        out.value(
            "ceph_mgr_metadata",
            &[
                ("ceph_daemon", &format!("mgr.{name}")),
                ("hostname", text(told, "hostname")),
                ("ceph_version", version),
            ],
            1.0,
        );
    }
}

fn text<'a>(v: &'a Value, key: &str) -> &'a str {
    v.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn health(m: &FromMonitors, history: &HealthHistory, out: &mut Text) {
    let number = match text(&m.health, "status") {
        "HEALTH_OK" => Some(0.0),
        "HEALTH_WARN" => Some(1.0),
        "HEALTH_ERR" => Some(2.0),
        _ => None,
    };
    out.metric("ceph_health_status", Kind::Untyped, "Cluster health status");
    if let Some(number) = number {
        out.value("ceph_health_status", &[], number);
    }
    out.metric(
        "ceph_health_detail",
        Kind::Gauge,
        "healthcheck status by type (0=inactive, 1=active)",
    );
    for (name, check) in m.health.get("checks").and_then(Value::as_object).into_iter().flatten() {
        out.value(
            "ceph_health_detail",
            &[("name", name), ("severity", text(check, "severity"))],
            1.0,
        );
    }
    // Checks of the last time keep their series, so that alerts and graphs see them end.
    for seen in history.all().filter(|s| !s.active) {
        let labels = [("name", seen.name.as_str()), ("severity", seen.severity.as_str())];
        out.value("ceph_health_detail", &labels, 0.0);
    }
    let quorum: Vec<i64> = m
        .quorum
        .get("quorum")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_i64)
        .collect();
    let mons = || {
        m.quorum
            .get("monmap")
            .and_then(|m| m.get("mons"))
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
    };
    out.metric("ceph_mon_metadata", Kind::Untyped, "MON Metadata");
    for mon in mons() {
        let (daemon, rank) = (
            format!("mon.{}", text(mon, "name")),
            mon.get("rank").map(Value::to_string).unwrap_or_default(),
        );
        let told = row(&m.mons, "name", |n| n == &mon["name"]);
        let labels = [
            ("ceph_daemon", &*daemon),
            ("hostname", text(told, "hostname")),
            ("public_addr", text(mon, "public_addr")),
            ("rank", &rank),
            ("ceph_version", told["ceph_version"].as_str().unwrap_or(types::version::LONG)),
        ];
        out.value("ceph_mon_metadata", &labels, 1.0);
    }
    out.metric("ceph_mon_quorum_status", Kind::Gauge, "Monitors in quorum");
    for mon in mons() {
        let there = mon.get("rank").and_then(Value::as_i64).is_some_and(|r| quorum.contains(&r));
        out.value(
            "ceph_mon_quorum_status",
            &[("ceph_daemon", &format!("mon.{}", text(mon, "name")))],
            f64::from(u8::from(there)),
        );
    }
}

fn osds(state: &MgrState, map: &OsdMap, m: &FromMonitors, out: &mut Text) {
    let set = flag_names(map.flags);
    for flag in FLAGS {
        let name = format!("ceph_osd_flag_{}", flag.replace('-', "_"));
        out.one(
            &name,
            Kind::Untyped,
            &format!("OSD Flag {flag}"),
            f64::from(u8::from(set.split(',').any(|f| f == flag))),
        );
    }
    let all: Vec<Named> = (0..map.max_osd())
        .map(OsdId)
        .filter(|o| map.exists(*o))
        .map(|o| (o, format!("osd.{}", o.0)))
        .collect();
    osd_metadata(&all, map, m, out);
    disks(&all, m, out);
    osd_numbers(&all, state, map, out);
    slow_ops(&all, state, out);
}

/// An OSD and its name.
type Named = (OsdId, String);

fn osd_metadata(all: &[Named], map: &OsdMap, m: &FromMonitors, out: &mut Text) {
    out.metric("ceph_osd_metadata", Kind::Untyped, "OSD Metadata");
    for (id, daemon) in all {
        let rows = m.osds.as_array().into_iter().flatten();
        let Some(row) =
            rows.into_iter().find(|r| r.get("id").and_then(Value::as_i64) == Some(i64::from(id.0)))
        else {
            continue;
        };
        let class = map.crush.item_class(id.0).unwrap_or_default().to_owned();
        let labels = [
            ("back_iface", text(row, "back_iface")),
            ("ceph_daemon", daemon),
            ("cluster_addr", text(row, "back_addr")),
            ("device_class", &class),
            ("front_iface", text(row, "front_iface")),
            ("hostname", text(row, "hostname")),
            ("objectstore", text(row, "osd_objectstore")),
            ("public_addr", text(row, "front_addr")),
            ("ceph_version", text(row, "ceph_version")),
        ];
        out.value("ceph_osd_metadata", &labels, 1.0);
    }
}

/// Which devices OSDs are on.
fn disks(all: &[Named], m: &FromMonitors, out: &mut Text) {
    for (metric, help) in [
        ("ceph_disk_occupation", "Associate Ceph daemon with disk used"),
        ("ceph_disk_occupation_human", "Associate Ceph daemon with disk used, for display"),
    ] {
        out.metric(metric, Kind::Untyped, help);
        for (id, daemon) in all {
            let told = row(&m.osds, "id", |n| n.as_i64() == Some(i64::from(id.0)));
            // An OSD on several devices has a line for each.
            for device in text(told, "devices").split(',').filter(|d| !d.is_empty()) {
                let labels = [
                    ("ceph_daemon", &**daemon),
                    ("db_device", ""),
                    ("device", device),
                    ("instance", text(told, "hostname")),
                    ("wal_device", ""),
                ];
                // For display the roles of devices are left out.
                let labels: Vec<_> = labels
                    .into_iter()
                    .filter(|(l, _)| metric == "ceph_disk_occupation" || !l.ends_with("_device"))
                    .collect();
                out.value(metric, &labels, 1.0);
            }
        }
    }
}

/// What the map and the OSDs themselves say, a number each.
fn osd_numbers(all: &[Named], state: &MgrState, map: &OsdMap, out: &mut Text) {
    let mut each = |name: &str, kind: Kind, help: &str, of: &dyn Fn(OsdId) -> Option<f64>| {
        out.metric(name, kind, help);
        for (id, daemon) in all {
            if let Some(v) = of(*id) {
                out.value(name, &[("ceph_daemon", daemon)], v);
            }
        }
    };
    each("ceph_osd_weight", Kind::Untyped, "OSD status weight", &|o| Some(map.weight(o)));
    each("ceph_osd_up", Kind::Untyped, "OSD status up", &|o| {
        Some(f64::from(u8::from(map.is_up(o))))
    });
    each("ceph_osd_in", Kind::Untyped, "OSD status in", &|o| {
        Some(f64::from(u8::from(map.weight(o) > 0.0)))
    });
    let report = |o: OsdId| state.pg_map.osds.get(&o);
    each("ceph_osd_stat_bytes", Kind::Gauge, "Bytes of the device", &|o| {
        Some(report(o)?.stat.statfs.total as f64)
    });
    each("ceph_osd_stat_bytes_used", Kind::Gauge, "Bytes of the device that are in use", &|o| {
        Some(report(o)?.stat.statfs.used_raw() as f64)
    });
    each("ceph_osd_numpg", Kind::Gauge, "Placement groups", &|o| {
        Some(f64::from(report(o)?.stat.num_pgs))
    });
    for (counter, help) in OF_OSDS {
        each(&format!("ceph_osd_{counter}"), Kind::Counter, help, &|o| {
            Some(*report(o)?.counters.get(counter)? as f64)
        });
    }
    for (counter, name, help) in OSD_SECONDS {
        each(&format!("ceph_osd_{name}"), Kind::Counter, help, &|o| {
            Some(*report(o)?.counters.get(counter)? as f64 / 1e9)
        });
    }
    each("ceph_osd_apply_latency_ms", Kind::Gauge, "OSD stat apply_latency_ms", &|o| {
        Some(report(o)?.stat.perf_stat.apply_latency_ns as f64 / 1e6)
    });
    each("ceph_osd_commit_latency_ms", Kind::Gauge, "OSD stat commit_latency_ms", &|o| {
        Some(report(o)?.stat.perf_stat.commit_latency_ns as f64 / 1e6)
    });
    for (counter, unit, name, help) in CAPACITY {
        each(&format!("siphon_osd_{name}"), Kind::Gauge, help, &|o| {
            Some(*report(o)?.counters.get(counter)? as f64 / unit)
        });
    }
}

fn slow_ops(all: &[Named], state: &MgrState, out: &mut Text) {
    out.metric("ceph_daemon_health_metrics", Kind::Gauge, "Health metrics for Ceph daemons");
    for (id, daemon) in all {
        if let Some(slow) = state.pg_map.osds.get(id).and_then(|r| r.counters.get("slow_ops")) {
            let labels = [("type", "SLOW_OPS"), ("ceph_daemon", &**daemon)];
            out.value("ceph_daemon_health_metrics", &labels, *slow as f64);
        }
    }
    let slow: u64 = state.pg_map.osds.values().filter_map(|r| r.counters.get("slow_ops")).sum();
    out.one(
        "ceph_healthcheck_slow_ops",
        Kind::Gauge,
        "OSD or Monitor requests taking a long time to process",
        slow as f64,
    );
}

/// How a pool keeps its objects (Ceph: `get_metadata_and_osd_status` of the module prometheus).
fn description(map: &OsdMap, pool: &PgPool) -> String {
    if pool.is_replicated() {
        return format!("replica:{}", pool.size);
    }
    let profile = map.erasure_code_profiles.get(&pool.erasure_code_profile);
    match profile.and_then(|p| Some((p.get("k")?, p.get("m")?))) {
        Some((k, m)) => format!("ec:{k}+{m}"),
        None => "ec:unknown".into(),
    }
}

fn pools(state: &MgrState, map: &OsdMap, out: &mut Text) {
    let fs = &state.digest.osd_sum.statfs;
    for (name, bytes) in [
        ("total_bytes", fs.total),
        ("total_used_bytes", fs.used()),
        ("total_used_raw_bytes", fs.used_raw()),
    ] {
        out.one(&format!("ceph_cluster_{name}"), Kind::Gauge, &format!("DF {name}"), bytes as f64);
    }
    for (name, of) in [
        ("total_bytes", (|fs| fs.total) as fn(&types::stats::StoreStatfs) -> u64),
        ("total_used_bytes", |fs| fs.used()),
        ("total_used_raw_bytes", |fs| fs.used_raw()),
    ] {
        let metric = format!("ceph_cluster_by_class_{name}");
        out.metric(&metric, Kind::Gauge, &format!("DF {name}"));
        for (class, stat) in &state.digest.osd_sum_by_class {
            out.value(&metric, &[("device_class", class)], of(&stat.statfs) as f64);
        }
    }
    let name = |id: &PoolId| map.pool_names.get(id).cloned().unwrap_or_default();
    let rows: Vec<PoolRow> = map
        .pools
        .iter()
        .filter(|(id, _)| state.digest.pools.contains_key(id))
        .map(|(id, p)| PoolRow {
            id: *id,
            name: name(id),
            pg_num: p.pg_num,
            raw_used_rate: map.raw_used_rate(p),
            rule: u32::from(p.crush_rule),
            quota_objects: p.quota_max_objects,
            quota_bytes: p.quota_max_bytes,
        })
        .collect();
    out.metric("ceph_pool_metadata", Kind::Untyped, "POOL Metadata");
    for (id, p) in &map.pools {
        let labels = [
            ("pool_id", &*id.0.to_string()),
            ("name", &name(id)),
            ("type", &*p.kind.to_string()),
            ("description", &*description(map, p)),
            ("compression_mode", "none"),
        ];
        out.value("ceph_pool_metadata", &labels, 1.0);
    }
    let df = state.digest.df_json(&rows, true);
    for (key, kind) in OF_POOLS {
        let metric = format!("ceph_pool_{key}");
        out.metric(&metric, kind, &format!("DF pool {key}"));
        for pool in df.get("pools").and_then(Value::as_array).into_iter().flatten() {
            let (Some(id), Some(v)) = (
                pool.get("id").and_then(Value::as_i64),
                pool.get("stats").and_then(|s| s.get(key)).and_then(Value::as_f64),
            ) else {
                continue;
            };
            out.value(&metric, &[("pool_id", &id.to_string())], v);
        }
    }
    let mut each = |name: &str, kind: Kind, help: &str, of: &dyn Fn(&PoolId) -> f64| {
        out.metric(name, kind, help);
        for id in map.pools.keys() {
            out.value(name, &[("pool_id", &id.0.to_string())], of(id));
        }
    };
    let rates = |id: &PoolId| state.digest.pool_rates.get(id).copied().unwrap_or_default();
    let sum = |id: &PoolId| state.digest.pool_sum(*id).copied().unwrap_or_default();
    each(
        "ceph_pool_recovering_objects_per_sec",
        Kind::Gauge,
        "OSD pool stats: recovering_objects_per_sec",
        &|p| rates(p).recovered_objects as f64,
    );
    each(
        "ceph_pool_recovering_bytes_per_sec",
        Kind::Gauge,
        "OSD pool stats: recovering_bytes_per_sec",
        &|p| rates(p).recovered_bytes as f64,
    );
    each(
        "ceph_pool_recovering_keys_per_sec",
        Kind::Gauge,
        "OSD pool stats: recovering_keys_per_sec",
        &|p| rates(p).recovered_keys as f64,
    );
    each(
        "ceph_pool_num_objects_recovered",
        Kind::Gauge,
        "OSD pool stats: num_objects_recovered",
        &|p| sum(p).num_objects_recovered as f64,
    );
    each(
        "ceph_pool_num_bytes_recovered",
        Kind::Gauge,
        "OSD pool stats: num_bytes_recovered",
        &|p| sum(p).num_bytes_recovered as f64,
    );
}

fn groups(state: &MgrState, map: &OsdMap, out: &mut Text) {
    let mut by_pool: BTreeMap<PoolId, BTreeMap<u64, u32>> = BTreeMap::new();
    for (pgid, stat) in &state.pg_map.pgs {
        *by_pool.entry(pgid.pool).or_default().entry(stat.state.0).or_default() += 1;
    }
    let count = |pool: &PoolId, bits: u64| -> u32 {
        by_pool
            .get(pool)
            .into_iter()
            .flatten()
            .filter(|(s, _)| if bits == 0 { **s == 0 } else { **s & bits == bits })
            .map(|(_, n)| n)
            .sum()
    };
    out.metric("ceph_pg_total", Kind::Gauge, "PG Total Count per Pool");
    for id in map.pools.keys() {
        out.value(
            "ceph_pg_total",
            &[("pool_id", &id.0.to_string())],
            f64::from(by_pool.get(id).map_or(0, |s| s.values().sum())),
        );
    }
    let states = STATES
        .into_iter()
        .filter_map(|name| Some((name, PgState::from_name(name)?.0)))
        .chain([("unknown", 0)]);
    for (name, bits) in states {
        let metric = format!("ceph_pg_{name}");
        out.metric(&metric, Kind::Gauge, &format!("PG {name} per pool"));
        for id in map.pools.keys() {
            out.value(&metric, &[("pool_id", &id.0.to_string())], f64::from(count(id, bits)));
        }
    }
    let sum = &state.digest.pg_sum.stats.sum;
    for (name, n) in [
        ("degraded", sum.num_objects_degraded),
        ("misplaced", sum.num_objects_misplaced),
        ("unfound", sum.num_objects_unfound),
    ] {
        out.one(
            &format!("ceph_num_objects_{name}"),
            Kind::Gauge,
            &format!("Number of {name} objects"),
            n as f64,
        );
    }
}

/// The movement job that is open.
fn moves(state: &MgrState, out: &mut Text) {
    use crate::balancer::Move;
    type Value = fn(&Move) -> f64;
    let metrics: [(&str, &str, Value); 4] = [
        ("siphon_move_progress", "What part of a movement job is done", |m| m.progress),
        ("siphon_move_bytes", "Bytes that it moves in all", |m| m.bytes as f64),
        ("siphon_move_bytes_moved", "Bytes that it has moved", |m| m.bytes_moved as f64),
        ("siphon_move_running", "Whether it goes on", |m| {
            f64::from(u8::from(m.state == "running"))
        }),
    ];
    let balancer = state.balancer.borrow();
    for (metric, help, value) in metrics {
        out.metric(metric, Kind::Gauge, help);
        for job in &balancer.moves {
            out.value(metric, &[("id", &job.id.to_string()), ("what", &job.what)], value(job));
        }
    }
}

/// Background work: what is left of it, what was done, how fast it goes, and what holds it up.
fn jobs(state: &MgrState, out: &mut Text) {
    use pgmap::Job;
    type Value = fn(&Job) -> Option<f64>;
    let metrics: [(&str, Kind, &str, Value); 10] = [
        (
            "siphon_job_groups",
            Kind::Gauge,
            "Groups in which a kind of background work goes on or waits",
            |j| Some(f64::from(j.groups)),
        ),
        (
            "siphon_job_objects_left",
            Kind::Gauge,
            "Objects, or copies of objects, that it has before it",
            |j| Some(j.objects_left as f64),
        ),
        (
            "siphon_job_bytes_left",
            Kind::Gauge,
            "About how many bytes that is: the mean size of objects is used",
            |j| Some(j.bytes_left as f64),
        ),
        (
            "siphon_job_snapshots_left",
            Kind::Gauge,
            "Removed snapshots of groups that it has before it",
            |j| Some(j.snaps_left as f64),
        ),
        (
            "siphon_job_objects_done_total",
            Kind::Counter,
            "Objects, or copies of objects, that it has done",
            |j| Some(j.objects_done as f64),
        ),
        ("siphon_job_bytes_done_total", Kind::Counter, "Their bytes", |j| {
            Some(j.bytes_done as f64)
        }),
        ("siphon_job_objects_per_second", Kind::Gauge, "Objects that it does in a second", |j| {
            Some(j.objects_rate)
        }),
        ("siphon_job_bytes_per_second", Kind::Gauge, "Bytes that it does in a second", |j| {
            Some(j.bytes_rate)
        }),
        (
            "siphon_job_eta_seconds",
            Kind::Gauge,
            "How long it takes yet if it goes on like this; absent if it does not move",
            |j| Some(j.remaining()? as f64),
        ),
        ("siphon_job_paused", Kind::Gauge, "Whether a flag or an option holds it up", |j| {
            Some(f64::from(u8::from(!j.paused.is_empty())))
        }),
    ];
    for (metric, kind, help, value) in metrics {
        out.metric(metric, kind, help);
        for (name, job) in &state.digest.jobs {
            if let Some(n) = value(job) {
                out.value(metric, &[("job", name)], n);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn health_and_quorum_have_the_names_of_ceph() {
        let monitors = FromMonitors {
            health: json!({"status": "HEALTH_WARN", "checks": {"OSD_DOWN": {"severity": "HEALTH_WARN"}}}),
            quorum: json!({"quorum": [0], "monmap": {"mons": [{"rank": 0, "name": "a"}, {"rank": 1, "name": "b"}]}}),
            ..FromMonitors::default()
        };
        let mut out = Text::default();
        write(&MgrState::default(), &monitors, "x", &mut out);
        let out = out.finish();
        for line in [
            "ceph_health_status 1.0",
            r#"ceph_health_detail{name="OSD_DOWN",severity="HEALTH_WARN"} 1.0"#,
            r#"ceph_mon_quorum_status{ceph_daemon="mon.a"} 1.0"#,
            r#"ceph_mon_quorum_status{ceph_daemon="mon.b"} 0.0"#,
        ] {
            assert!(out.lines().any(|l| l == line), "{line} is not in\n{out}");
        }
        // Nothing is known yet: that is no health.
        let mut out = Text::default();
        write(&MgrState::default(), &FromMonitors::default(), "x", &mut out);
        assert!(!out.finish().lines().any(|l| l.starts_with("ceph_health_status ")));
    }

    #[test]
    fn capacity_and_floors_are_shown_as_far_as_osds_tell() {
        use types::osdmap::Osd;
        use types::rados::osd_state;
        let up = Osd { state: osd_state::EXISTS | osd_state::UP, ..Osd::default() };
        let map = OsdMap { osds: vec![up.clone(), up], ..OsdMap::default() };
        let mut state = MgrState { osd_map: Some(std::sync::Arc::new(map)), ..MgrState::default() };
        let counters =
            [("qos_capacity", 5000), ("qos_capacity_learned", 5000), ("qos_floors_scaled", 450)];
        state.pg_map.osds.entry(OsdId(1)).or_default().counters =
            counters.into_iter().map(|(name, n)| (name.to_owned(), n)).collect();
        let mut out = Text::default();
        write(&state, &FromMonitors::default(), "x", &mut out);
        let out = out.finish();
        let values: Vec<&str> = out.lines().filter(|l| l.starts_with("siphon_osd_")).collect();
        let wanted = [
            r#"siphon_osd_capacity_iops{ceph_daemon="osd.1"} 5000.0"#,
            r#"siphon_osd_capacity_learned_iops{ceph_daemon="osd.1"} 5000.0"#,
            r#"siphon_osd_floors_scaled{ceph_daemon="osd.1"} 0.45"#,
        ];
        assert_eq!(values, wanted);
    }

    /// A page for so many OSDs and pools.
    fn page(osds: i32, pools: i64) -> String {
        use types::PgPool;
        use types::osdmap::Osd;
        use types::rados::osd_state;
        let up = Osd { state: osd_state::EXISTS | osd_state::UP, ..Osd::default() };
        let mut map = OsdMap { osds: vec![up; osds as usize], ..OsdMap::default() };
        for id in 1..=pools {
            map.pools.insert(PoolId(id), PgPool { size: 3, pg_num: 32, ..PgPool::default() });
            map.pool_names.insert(PoolId(id), format!("pool-{id}"));
        }
        let mut state = MgrState { osd_map: Some(std::sync::Arc::new(map)), ..MgrState::default() };
        for osd in 0..osds {
            let names = ["op_w", "op_r", "qos_capacity", "qos_capacity_learned"];
            let counters = names.into_iter().map(|name| (name.to_owned(), u64::MAX >> 16));
            state.pg_map.osds.entry(OsdId(osd)).or_default().counters = counters.collect();
        }
        let metadata = |osd| json!({"id": osd, "hostname": "a-host-with-a-name", "devices": "sda"});
        let monitors =
            FromMonitors { osds: (0..osds).map(metadata).collect(), ..FromMonitors::default() };
        let mut out = Text::default();
        write(&state, &monitors, "x", &mut out);
        out.finish()
    }

    #[test]
    fn a_page_grows_with_the_cluster_and_no_faster() {
        let (small, large) = (page(1000, 10), page(10_000, 10));
        let each = (large.len() - small.len()) / 9000;
        assert!((500..8000).contains(&each), "{each} bytes for each OSD");
        // Pools and OSDs do not multiply.
        let pool = (page(1000, 110).len() - small.len()) / 100;
        assert!((500..16_000).contains(&pool), "{pool} bytes for each pool");
    }
}
