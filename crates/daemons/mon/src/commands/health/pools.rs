//! Health checks about pools (Ceph: `OSDMap::check_health`, `PGMap::get_health_checks`, 16.2).

use super::found::{Found, found, of_lines};
use conf::Config;
use messages::HealthCheck;
use pgmap::Digest;
use std::collections::BTreeSet;
use types::pool::flag;
use types::rados::osdmap_flag;
use types::{OsdMap, PgPool, PoolId};

/// All of them. What pools hold is known once there is a digest.
pub(super) fn checks(map: &OsdMap, conf: &Config, digest: Option<&Digest>) -> Vec<Found> {
    let mut all = full_pools(map);
    all.extend(pool_scrub_flags(map));
    all.extend(near_quota(map, conf, digest));
    all.extend(misplaced(conf, digest));
    all.extend(without_application(map, conf, digest));
    all.extend(without_redundancy(map, conf));
    all.extend(odd_pg_num(map, conf));
    all
}

/// A line for each pool about which there is something to say.
fn lines(map: &OsdMap, line: impl Fn(PoolId, &PgPool, &str) -> Option<String>) -> Vec<String> {
    let name = |id| map.pool_names.get(id).map_or("", String::as_str);
    map.pools.iter().filter_map(|(id, pool)| line(*id, pool, name(id))).collect()
}

fn full_pools(map: &OsdMap) -> Vec<Found> {
    let full = lines(map, |_, pool, name| {
        let quota = pool.has_flag(flag::FULL_QUOTA);
        let why = if quota { "running out of quota" } else { "no space" };
        pool.has_flag(flag::FULL).then(|| format!("pool '{name}' is full ({why})"))
    });
    let summary = |n| format!("{n} pool(s) full");
    let mut all: Vec<Found> =
        of_lines("POOL_FULL", HealthCheck::WARN, full, summary).into_iter().collect();
    for (bit, code, word) in [
        (flag::BACKFILLFULL, "POOL_BACKFILLFULL", "backfillfull"),
        (flag::NEARFULL, "POOL_NEARFULL", "nearfull"),
    ] {
        let which = lines(map, |_, pool, name| {
            pool.has_flag(bit).then(|| format!("pool '{name}' is {word}"))
        });
        let summary = |n| format!("{n} pool(s) {word}");
        all.extend(of_lines(code, HealthCheck::WARN, which, summary));
    }
    all
}

/// What pools are told not to do.
fn pool_scrub_flags(map: &OsdMap) -> Option<Found> {
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

/// Pools that come near their quotas, where it is wanted to know.
fn near_quota(map: &OsdMap, conf: &Config, digest: Option<&Digest>) -> Option<Found> {
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
fn misplaced(conf: &Config, digest: Option<&Digest>) -> Option<Found> {
    let sum = digest.map(|d| d.pg_sum.stats.sum).filter(|s| s.num_objects_misplaced > 0)?;
    if !conf.bool("mon_warn_on_misplaced") {
        return None;
    }
    let (some, all) = (sum.num_objects_misplaced, sum.num_object_copies.max(1));
    let percent = some as f64 / all as f64 * 100.0;
    let summary = format!("{some}/{all} objects misplaced ({percent:.3}%)");
    Some(found("OBJECT_MISPLACED", HealthCheck::WARN, summary, Vec::new(), some as usize))
}

/// Pools that are used, and nothing says for what.
fn without_application(map: &OsdMap, conf: &Config, digest: Option<&Digest>) -> Option<Found> {
    let used = |id| digest.and_then(|d| d.pool_sum(id)).is_some_and(|sum| sum.num_objects > 0);
    let mut detail = lines(map, |id, pool, name| {
        (pool.application_metadata.is_empty() && used(id))
            .then(|| format!("application not enabled on pool '{name}'"))
    });
    if detail.is_empty() || !conf.bool("mon_warn_on_pool_no_app") {
        return None;
    }
    let summary = format!("application not enabled on {} pool(s)", detail.len());
    detail.push("use 'ceph osd pool application enable <pool-name> <app-name>', where <app-name> is 'cephfs', 'rbd', 'rgw', or freeform for custom applications.".into());
    of_lines("POOL_APP_NOT_ENABLED", HealthCheck::WARN, detail, |_| summary)
}

fn without_redundancy(map: &OsdMap, conf: &Config) -> Option<Found> {
    let single = lines(map, |_, pool, name| {
        (pool.is_replicated() && pool.size == 1)
            .then(|| format!("pool '{name}' has no replicas configured"))
    });
    let summary = |n| format!("{n} pool(s) have no replicas configured");
    let check = of_lines("POOL_NO_REDUNDANCY", HealthCheck::WARN, single, summary);
    check.filter(|_| conf.bool("mon_warn_on_pool_no_redundancy"))
}

fn odd_pg_num(map: &OsdMap, conf: &Config) -> Option<Found> {
    let odd = lines(map, |_, pool, name| {
        let pg_num = pool.pg_num_target;
        (!pg_num.is_power_of_two() && pg_num != 0)
            .then(|| format!("pool '{name}' pg_num {pg_num} is not a power of two"))
    });
    let summary = |n| format!("{n} pool(s) have non-power-of-two pg_num");
    let check = of_lines("POOL_PG_NUM_NOT_POWER_OF_TWO", HealthCheck::WARN, odd, summary);
    check.filter(|_| conf.bool("mon_warn_on_pool_pg_num_not_power_of_two"))
}
