//! Health checks about monitors, managers, and versions of daemons.

use super::found::{Found, alone, found, of_lines};
use crate::commands::frame::{ClockSkew, Env, MonStatus, short_float};
use crate::osd_state::OsdMapExt;
use crate::state::{ClusterState, Metadata};
use conf::Config;
use messages::HealthCheck;
use std::collections::BTreeMap;
use std::time::Duration;
use types::Utime;

/// All of them.
pub(super) fn checks(state: &ClusterState, env: &Env<'_>, conf: &Config) -> Vec<Found> {
    let mut all = mon_disks(&env.mon.free, conf);
    all.extend(manager_down(state, env.now, conf));
    all.extend(monitors_down(state, env.mon));
    all.extend(clock_skew(env.mon, conf));
    all.extend(old_versions(state, env.mon.mixed_for, conf));
    all
}

/// A cluster without OSDs is being set up, and may lack a manager.
fn manager_down(state: &ClusterState, now: Utime, conf: &Config) -> Option<Found> {
    let set_up = state.osd.map().osds().count() > 0
        && now.since(state.monmap.created).as_secs() > conf.u64("mon_mgr_mkfs_grace");
    (set_up && state.mgr.active_gid == 0).then(|| {
        let gone = now.since(state.mgr.active_change).as_secs();
        let long = gone > conf.u64("mon_mgr_inactive_grace");
        let severity = if long { HealthCheck::ERR } else { HealthCheck::WARN };
        alone("MGR_DOWN", severity, "no active mgr")
    })
}

fn monitors_down(state: &ClusterState, mon: &MonStatus) -> Option<Found> {
    let (inside, outside): (Vec<_>, Vec<_>) =
        state.monmap.iter().enumerate().partition(|(rank, _)| mon.quorum.contains(&(*rank as i32)));
    let quorum: Vec<&str> = inside.iter().map(|(_, m)| m.name.as_str()).collect();
    let line = |(rank, m): &(usize, &types::MonInfo)| {
        format!("mon.{} (rank {rank}) addr {} is down (out of quorum)", m.name, m.public_addrs)
    };
    let detail = outside.iter().map(line).collect();
    of_lines("MON_DOWN", HealthCheck::WARN, detail, |n| {
        format!("{n}/{} mons down, quorum {}", state.monmap.ranks.len(), quorum.join(","))
    })
}

fn clock_skew(mon: &MonStatus, conf: &Config) -> Option<Found> {
    let allowed = conf.f64("mon_clock_drift_allowed");
    let complain = |(name, s): (&String, &ClockSkew)| {
        let text =
            format!("mon.{name} {} (latency {}s)", s.complaint(allowed)?, short_float(s.latency));
        Some((format!("mon.{name}"), text))
    };
    let (off, detail): (Vec<String>, Vec<String>) = mon.clocks.iter().filter_map(complain).unzip();
    of_lines("MON_CLOCK_SKEW", HealthCheck::WARN, detail, |_| {
        format!("clock skew detected on {}", off.join(", "))
    })
}

/// Monitors with little space below their data.
fn mon_disks(free: &BTreeMap<String, u8>, conf: &Config) -> Vec<Found> {
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
fn old_versions(state: &ClusterState, mixed_for: Option<Duration>, conf: &Config) -> Option<Found> {
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
