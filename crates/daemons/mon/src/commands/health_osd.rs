//! Health checks about places, placement groups and pools (Ceph: `OSDMap::check_health`,
//! `PGMap::get_health_checks`, 16.2).

use crate::osd_state::OsdMapExt;
use crate::state::{ClusterState, Metadata};
use conf::Config;
use crush::CrushMap;
use messages::HealthCheck;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use types::pool::flag;
use types::rados::osdmap_flag;
use types::{OsdId, OsdMap};

/// A check by its code.
pub(super) type Found = (String, HealthCheck);

pub(super) fn found(
    code: &str,
    severity: u8,
    summary: String,
    detail: Vec<String>,
    count: usize,
) -> Found {
    (code.to_owned(), HealthCheck { severity, summary, detail, count: count as i64 })
}

/// The devices below each bucket of the trees that operators see.
fn devices(crush: &CrushMap) -> BTreeMap<i32, BTreeSet<i32>> {
    fn below(crush: &CrushMap, id: i32, depth: usize, out: &mut BTreeSet<i32>) {
        let Some(bucket) = crush.bucket(id).filter(|_| depth <= crush.buckets().count()) else {
            return;
        };
        for (item, _) in bucket.weighted_items() {
            if item >= 0 {
                out.insert(item);
            } else {
                below(crush, item, depth + 1, out);
            }
        }
    }
    // Trees of one device class have names with a `~`.
    let seen =
        crush.buckets().filter(|b| crush.names.name(b.id).is_some_and(|name| !name.contains('~')));
    seen.map(|b| {
        let mut all = BTreeSet::new();
        below(crush, b.id, 0, &mut all);
        (b.id, all)
    })
    .collect()
}

/// `OSD_HOST_DOWN`, `OSD_RACK_DOWN`, ...: buckets all of whose OSDs are down, some of which are in.
pub(super) fn places_down(map: &OsdMap) -> Vec<Found> {
    let mut by_type = BTreeMap::<u16, Vec<(i32, usize)>>::new();
    for (bucket, all) in devices(&map.crush) {
        let missed = all.iter().filter(|o| {
            let osd = OsdId(**o);
            map.exists(osd) && map.is_in(osd) && !map.is_up(osd)
        });
        let missed = missed.count();
        if missed > 0
            && all.iter().all(|o| !map.is_up(OsdId(*o)))
            && let Some(kind) = map.crush.bucket(bucket).map(|b| b.kind)
        {
            by_type.entry(kind).or_default().push((bucket, missed));
        }
    }
    let name = |id: i32| map.crush.names.name(id).unwrap_or("?").to_owned();
    let report = |(kind, buckets): (u16, Vec<(i32, usize)>)| {
        let kind = map.crush.types.name(kind.into()).unwrap_or("bucket").to_owned();
        let osds: usize = buckets.iter().map(|(_, n)| n).sum();
        let s = if buckets.len() > 1 { "s" } else { "" };
        let detail = buckets
            .iter()
            .map(|(id, n)| {
                let place: Vec<String> = map
                    .crush
                    .full_location(*id)
                    .into_iter()
                    .map(|(k, v)| format!("{k}={v}"))
                    .collect();
                format!("{kind} {} ({}) ({n} osds) is down", name(*id), place.join(","))
            })
            .collect();
        let summary = format!("{} {kind}{s} ({osds} osds) down", buckets.len());
        let code = format!("OSD_{}_DOWN", kind.to_uppercase());
        found(&code, HealthCheck::WARN, summary, detail, buckets.len())
    };
    by_type.into_iter().map(report).collect()
}

/// What pools are told not to do.
pub(super) fn pool_scrub_flags(map: &OsdMap) -> Option<Found> {
    let mut words = Vec::new();
    let mut detail = Vec::new();
    for (bit, word, everywhere) in [
        (flag::NOSCRUB, "noscrub", osdmap_flag::NOSCRUB),
        (flag::NODEEP_SCRUB, "nodeep-scrub", osdmap_flag::NODEEP_SCRUB),
    ] {
        // If no pool is scrubbed, another check says so.
        if map.has_flag(everywhere) {
            continue;
        }
        let with = map.pools.iter().filter(|(_, p)| p.has_flag(bit));
        let names = with.filter_map(|(id, _)| map.pool_names.get(id));
        let lines: Vec<String> = names.map(|name| format!("Pool {name} has {word} flag")).collect();
        if !lines.is_empty() {
            words.push(word);
            detail.extend(lines);
        }
    }
    (!words.is_empty()).then(|| {
        let summary = format!("Some pool(s) have the {} flag(s) set", words.join(", "));
        let count = detail.len();
        found("POOL_SCRUB_FLAGS", HealthCheck::WARN, summary, detail, count)
    })
}

/// More placement groups, with all copies, than the OSDs that are in should have.
pub(super) fn too_many_pgs(map: &OsdMap, conf: &Config) -> Option<Found> {
    let most = conf.u64("mon_max_pg_per_osd");
    let osds = map.osds().filter(|o| map.is_in(*o)).count() as u64;
    let copies = |p: &types::PgPool| u64::from(p.pg_num) * u64::from(p.size);
    let all: u64 = map.pools.values().map(copies).sum();
    let each = all.checked_div(osds)?;
    (each > most).then(|| {
        let summary = format!("too many PGs per OSD ({each} > max {most})");
        found("TOO_MANY_PGS", HealthCheck::WARN, summary, Vec::new(), each as usize)
    })
}

/// Pools that come near their quotas, where it is wanted to know.
pub(super) fn near_quota(
    map: &OsdMap,
    conf: &Config,
    digest: Option<&pgmap::Digest>,
) -> Option<Found> {
    let percent = conf.u64("mon_pool_quota_warn_threshold");
    if percent == 0 {
        return None;
    }
    let share = percent as f64 / 100.0;
    let mut pools = BTreeSet::new();
    let mut detail = Vec::new();
    for (id, pool) in &map.pools {
        let Some(sum) = digest.and_then(|d| d.pool_sum(*id)) else { continue };
        let name = map.pool_names.get(id).cloned().unwrap_or_default();
        for (most, used, what) in [
            (pool.quota_max_objects, sum.num_objects, "objects"),
            (pool.quota_max_bytes, sum.num_bytes, "bytes"),
        ] {
            if most > 0 && used as f64 >= most as f64 * share && used < most as i64 {
                pools.insert(*id);
                detail.push(format!("pool '{name}' has {used} {what} (max {most})"));
            }
        }
    }
    (!pools.is_empty()).then(|| {
        let summary = format!("{} pools nearfull", pools.len());
        found("POOL_NEAR_FULL", HealthCheck::WARN, summary, detail, pools.len())
    })
}

/// Objects that are on other OSDs than they should be, where that is worth a warning.
pub(super) fn misplaced(conf: &Config, digest: Option<&pgmap::Digest>) -> Option<Found> {
    let sum = digest.map(|d| d.pg_sum.stats.sum).filter(|s| s.num_objects_misplaced > 0)?;
    if !conf.bool("mon_warn_on_misplaced") {
        return None;
    }
    let (some, all) = (sum.num_objects_misplaced, sum.num_object_copies.max(1));
    let percent = some as f64 / all as f64 * 100.0;
    let summary = format!("{some}/{all} objects misplaced ({percent:.3}%)");
    Some(found("OBJECT_MISPLACED", HealthCheck::WARN, summary, Vec::new(), some as usize))
}

/// Monitors with little space below their data.
pub(super) fn mon_disks(free: &BTreeMap<String, u8>, conf: &Config) -> Vec<Found> {
    let (warn, crit) = (conf.i64("mon_data_avail_warn"), conf.i64("mon_data_avail_crit"));
    let (critical, others): (Vec<_>, Vec<_>) =
        free.iter().partition(|(_, percent)| i64::from(**percent) <= crit);
    let low: Vec<_> = others.into_iter().filter(|(_, p)| i64::from(**p) <= warn).collect();
    let report = |code, severity, how: &str, which: Vec<(&String, &u8)>| {
        let names: Vec<&str> = which.iter().map(|(n, _)| n.as_str()).collect();
        let (s, are) = if which.len() == 1 { ("", "is") } else { ("s", "are") };
        let summary = format!("mon{s} {} {are} {how} on available space", names.join(","));
        let detail = which.iter().map(|(n, p)| format!("mon.{n} has {p}% avail")).collect();
        found(code, severity, summary, detail, which.len())
    };
    let mut out = Vec::new();
    if !critical.is_empty() {
        out.push(report("MON_DISK_CRIT", HealthCheck::ERR, "very low", critical));
    }
    if !low.is_empty() {
        out.push(report("MON_DISK_LOW", HealthCheck::WARN, "low", low));
    }
    out
}

/// Daemons by version.
pub(crate) fn daemon_versions(state: &ClusterState) -> BTreeMap<String, Vec<String>> {
    let map = state.osd.map();
    let osds = state.osd_metadata.iter().filter(|(o, _)| map.is_up(**o));
    let osds = osds.map(|(o, m)| (format!("osd.{}", o.0), m));
    let named = |kind: &'static str, all: &'_ BTreeMap<String, Metadata>| {
        all.iter().map(|(n, m)| (format!("{kind}.{n}"), m.clone())).collect::<Vec<_>>()
    };
    let mut out: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut add = |name: String, m: &Metadata| {
        if let Some(version) = m.get("ceph_version_short") {
            out.entry(version.clone()).or_default().push(name);
        }
    };
    osds.for_each(|(name, m)| add(name, m));
    for (name, m) in named("mon", &state.mon_metadata) {
        add(name, &m);
    }
    for (name, m) in named("mgr", &state.mgr_metadata) {
        add(name, &m);
    }
    out
}

/// Daemons of other versions than the newest one, for longer than an upgrade takes.
pub(super) fn old_versions(
    state: &ClusterState,
    mixed_for: Option<Duration>,
    conf: &Config,
) -> Option<Found> {
    let delay = Duration::from_secs(conf.u64("mon_warn_older_version_delay"));
    if !conf.bool("mon_warn_on_older_version") || mixed_for? <= delay {
        return None;
    }
    let mut versions = daemon_versions(state);
    versions.pop_last();
    let daemons: usize = versions.values().map(Vec::len).sum();
    if daemons == 0 {
        return None;
    }
    let several = versions.len() > 1;
    let who = if daemons == 1 { "is a daemon" } else { "are daemons" };
    let what = if several { "multiple old versions" } else { "an older version" };
    let detail = versions.iter().map(|(version, names)| {
        let are = if names.len() == 1 { "is" } else { "are" };
        format!("{} {are} running an older version of ceph: {version}", names.join(" "))
    });
    let severity = if several { HealthCheck::ERR } else { HealthCheck::WARN };
    let summary = format!("There {who} running {what} of ceph");
    Some(found("DAEMON_OLD_VERSION", severity, summary, detail.collect(), versions.len()))
}
