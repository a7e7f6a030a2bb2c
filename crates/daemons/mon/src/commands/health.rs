//! Health: the checks that the monitor makes itself, those that the manager sent, and mutes.

use super::frame::{Answer, ClockSkew, Entry, Env, Read, Write, read, short_float, write};
use crate::command::{Format, Refusal, Reply};
use crate::osd_state::OsdMapExt;
use crate::state::{Change, ClusterState, Mute};
use messages::{HealthCheck, HealthChecks};
use serde_json::{Map, Value, json};
use std::time::Duration;
use types::errno::Errno;
use types::osdmap::flag_names;
use types::pool::flag;
use types::rados::osdmap_flag;
use types::{OsdId, Utime};

pub(super) static COMMANDS: &[Entry] = &[
    read(
        "health name=detail,type=CephChoices,strings=detail,req=false",
        "Show the cluster's health.",
        "mon",
        "r",
        health,
    ),
    write(
        "health mute name=code,type=CephString name=ttl,type=CephString,req=false name=sticky,type=CephBool,req=false",
        "Mute a health check.",
        "mon",
        "w",
        mute,
    ),
    write(
        "health unmute name=code,type=CephString,req=false",
        "Unmute one health check, or all.",
        "mon",
        "w",
        unmute,
    ),
];

/// Ratios below those that they must not be below; OSDs count them as if they were the same.
fn ratios_out_of_order(map: &types::OsdMap, failsafe: f64) -> Vec<String> {
    let ratios = [
        ("nearfull_ratio", map.nearfull_ratio),
        ("backfillfull_ratio", map.backfillfull_ratio),
        ("full_ratio", map.full_ratio),
        ("osd_failsafe_full_ratio", failsafe as f32),
    ];
    let (mut below, mut at_least) = ratios[0];
    let mut out = Vec::new();
    for (name, ratio) in &ratios[1..] {
        if *ratio < at_least {
            out.push(format!("{name} ({ratio}) < {below} ({at_least}), increased"));
        }
        (below, at_least) = (name, at_least.max(*ratio));
    }
    out
}

/// Everything that is wrong, muted or not.
pub fn checks(state: &ClusterState, env: &Env<'_>) -> HealthChecks {
    let mut all = env.stats.health.clone();
    let conf = env.conf.borrow();
    let of_fs = super::fs::health_checks(&state.fs, &env.stats.mds_health);
    all.checks.extend(of_fs.into_iter().map(|(code, check)| (code.to_owned(), check)));
    let mut add = |code: &str, severity: u8, summary: String, detail: Vec<String>| {
        let count = detail.len().max(1) as i64;
        all.checks.insert(code.into(), HealthCheck { severity, summary, detail, count });
    };
    let (warn, err) = (HealthCheck::WARN, HealthCheck::ERR);
    let map = state.osd.map();
    let plural = |n: usize| if n == 1 { "" } else { "s" };

    let down: Vec<OsdId> =
        map.osds().filter(|o| map.exists(*o) && map.is_in(*o) && !map.is_up(*o)).collect();
    if !down.is_empty() {
        let place = |o: &OsdId| {
            let loc: Vec<String> =
                map.crush.full_location(o.0).into_iter().map(|(k, v)| format!("{k}={v}")).collect();
            format!("osd.{} ({}) is down", o.0, loc.join(","))
        };
        add(
            "OSD_DOWN",
            warn,
            format!("{} osd{} down", down.len(), plural(down.len())),
            down.iter().map(place).collect(),
        );
    }
    let total = map.osds().count();
    let wanted = conf.u64("osd_pool_default_size") as usize;
    if total < wanted {
        add(
            "TOO_FEW_OSDS",
            warn,
            format!("OSD count {total} < osd_pool_default_size {wanted}"),
            vec![],
        );
    }
    let warned = osdmap_flag::PAUSERD
        | osdmap_flag::PAUSEWR
        | osdmap_flag::NOUP
        | osdmap_flag::NODOWN
        | osdmap_flag::NOIN
        | osdmap_flag::NOOUT
        | osdmap_flag::NOBACKFILL
        | osdmap_flag::NORECOVER
        | osdmap_flag::NOSCRUB
        | osdmap_flag::NODEEP_SCRUB
        | osdmap_flag::NOTIERAGENT
        | osdmap_flag::NOSNAPTRIM
        | osdmap_flag::NOREBALANCE;
    if map.flags & warned != 0 {
        add(
            "OSDMAP_FLAGS",
            warn,
            format!("{} flag(s) set", flag_names(map.flags & warned)),
            vec![],
        );
    }
    {
        use types::rados::osd_state::{NODOWN, NOIN, NOOUT, NOUP};
        let names = [(NOUP, "noup"), (NODOWN, "nodown"), (NOIN, "noin"), (NOOUT, "noout")];
        let flagged: Vec<String> = map
            .osds()
            .filter_map(|o| {
                let set: Vec<&str> = names
                    .iter()
                    .filter(|(bit, _)| map.state_bits(o) & bit != 0)
                    .map(|(_, n)| *n)
                    .collect();
                (!set.is_empty()).then(|| format!("osd.{} has flags {}", o.0, set.join(",")))
            })
            .collect();
        if !flagged.is_empty() {
            let what =
                "OSDs or CRUSH {nodes, device-classes} have {NOUP,NODOWN,NOIN,NOOUT} flags set";
            add("OSD_FLAGS", warn, format!("{} {what}", flagged.len()), flagged);
        }
    }
    for (bit, code, severity, word) in [
        (types::rados::osd_state::FULL, "OSD_FULL", err, "full"),
        (types::rados::osd_state::BACKFILLFULL, "OSD_BACKFILLFULL", warn, "backfillfull"),
        (types::rados::osd_state::NEARFULL, "OSD_NEARFULL", warn, "nearfull"),
    ] {
        let which: Vec<String> = map
            .osds()
            .filter(|o| map.is_up(*o) && map.is_in(*o) && map.state_bits(*o) & bit != 0)
            .map(|o| format!("osd.{} is {word}", o.0))
            .collect();
        if !which.is_empty() {
            add(code, severity, format!("{} {word} osd(s)", which.len()), which);
        }
    }
    let name = |id| map.pool_names.get(id).cloned().unwrap_or_default();
    let of_pools = |bit: u64, word: &str| -> Vec<String> {
        map.pools
            .iter()
            .filter(|(_, p)| p.has_flag(bit))
            .map(|(id, _)| format!("pool '{}' is {word}", name(id)))
            .collect()
    };
    let full: Vec<String> = map
        .pools
        .iter()
        .filter(|(_, p)| p.has_flag(flag::FULL))
        .map(|(id, p)| {
            let why =
                if p.has_flag(flag::FULL_QUOTA) { "running out of quota" } else { "no space" };
            format!("pool '{}' is full ({why})", name(id))
        })
        .collect();
    if !full.is_empty() {
        add("POOL_FULL", warn, format!("{} pool(s) full", full.len()), full);
    }
    for (bit, code, word) in [
        (flag::BACKFILLFULL, "POOL_BACKFILLFULL", "backfillfull"),
        (flag::NEARFULL, "POOL_NEARFULL", "nearfull"),
    ] {
        let which = of_pools(bit, word);
        if !which.is_empty() {
            add(code, warn, format!("{} pool(s) {word}", which.len()), which);
        }
    }
    let out_of_order = ratios_out_of_order(map, conf.f64("osd_failsafe_full_ratio"));
    if !out_of_order.is_empty() {
        add("OSD_OUT_OF_ORDER_FULL", err, "full ratio(s) out of order".into(), out_of_order);
    }
    if conf.bool("mon_warn_on_pool_no_app") {
        let used = |id| {
            env.stats
                .digest
                .as_ref()
                .and_then(|d| d.pool_sum(id))
                .is_some_and(|s| s.num_objects > 0)
        };
        let mut detail: Vec<String> = map
            .pools
            .iter()
            .filter(|(id, p)| p.application_metadata.is_empty() && used(**id))
            .map(|(id, _)| format!("application not enabled on pool '{}'", name(id)))
            .collect();
        if !detail.is_empty() {
            let n = detail.len();
            detail.push("use 'ceph osd pool application enable <pool-name> <app-name>', where <app-name> is 'cephfs', 'rbd', 'rgw', or freeform for custom applications.".into());
            add(
                "POOL_APP_NOT_ENABLED",
                warn,
                format!("application not enabled on {n} pool(s)"),
                detail,
            );
        }
    }
    if conf.bool("mon_warn_on_pool_no_redundancy") {
        let single: Vec<String> = map
            .pools
            .iter()
            .filter(|(_, p)| p.is_replicated() && p.size == 1)
            .map(|(id, _)| format!("pool '{}' has no replicas configured", name(id)))
            .collect();
        if !single.is_empty() {
            add(
                "POOL_NO_REDUNDANCY",
                warn,
                format!("{} pool(s) have no replicas configured", single.len()),
                single,
            );
        }
    }
    if conf.bool("mon_warn_on_pool_pg_num_not_power_of_two") {
        let odd: Vec<String> = map
            .pools
            .iter()
            .filter(|(_, p)| !p.pg_num_target.is_power_of_two() && p.pg_num_target != 0)
            .map(|(id, p)| {
                format!("pool '{}' pg_num {} is not a power of two", name(id), p.pg_num_target)
            })
            .collect();
        if !odd.is_empty() {
            add(
                "POOL_PG_NUM_NOT_POWER_OF_TWO",
                warn,
                format!("{} pool(s) have non-power-of-two pg_num", odd.len()),
                odd,
            );
        }
    }
    if conf.bool("mon_warn_on_osd_down_out_interval_zero")
        && conf.i64("mon_osd_down_out_interval") == 0
    {
        add(
            "OSD_NO_DOWN_OUT_INTERVAL",
            warn,
            "mon_osd_down_out_interval is set to zero: OSDs that are down are never marked out"
                .into(),
            vec![],
        );
    }
    if conf.bool("mon_warn_on_legacy_crush_tunables") && map.crush.tunables.profile() == "legacy" {
        add("OLD_CRUSH_TUNABLES", warn, "crush map has legacy tunables".into(), vec![]);
    }
    // A cluster without OSDs is being set up.
    if state.mgr.active_gid == 0
        && total > 0
        && env.now.since(state.monmap.created).as_secs() > conf.u64("mon_mgr_mkfs_grace")
    {
        let long =
            env.now.since(state.mgr.active_change).as_secs() > conf.u64("mon_mgr_inactive_grace");
        add("MGR_DOWN", if long { err } else { warn }, "no active mgr".into(), vec![]);
    }
    let (inside, outside): (Vec<_>, Vec<_>) = state
        .monmap
        .iter()
        .enumerate()
        .partition(|(rank, _)| env.mon.quorum.contains(&(*rank as i32)));
    if !outside.is_empty() {
        let quorum: Vec<&str> = inside.iter().map(|(_, m)| m.name.as_str()).collect();
        let detail: Vec<String> = outside
            .iter()
            .map(|(rank, m)| {
                format!(
                    "mon.{} (rank {rank}) addr {} is down (out of quorum)",
                    m.name, m.public_addrs
                )
            })
            .collect();
        let summary = format!(
            "{}/{} mons down, quorum {}",
            outside.len(),
            state.monmap.ranks.len(),
            quorum.join(",")
        );
        add("MON_DOWN", warn, summary, detail);
    }
    let allowed = conf.f64("mon_clock_drift_allowed");
    let complain = |(name, s): (&String, &ClockSkew)| {
        let text =
            format!("mon.{name} {} (latency {}s)", s.complaint(allowed)?, short_float(s.latency));
        Some((format!("mon.{name}"), text))
    };
    let (off, detail): (Vec<String>, Vec<String>) =
        env.mon.clocks.iter().filter_map(complain).unzip();
    if !off.is_empty() {
        add("MON_CLOCK_SKEW", warn, format!("clock skew detected on {}", off.join(", ")), detail);
    }
    let digest = env.stats.digest.as_deref();
    let more = super::health_osd::places_down(map)
        .into_iter()
        .chain(super::health_osd::pool_scrub_flags(map))
        .chain(super::health_osd::too_many_pgs(map, &conf))
        .chain(super::health_osd::near_quota(map, &conf, digest))
        .chain(super::health_osd::misplaced(&conf, digest))
        .chain(super::health_osd::mon_disks(&env.mon.free, &conf))
        .chain(super::health_osd::old_versions(state, env.mon.mixed_for, &conf))
        .chain(super::moves::stuck(state));
    all.checks.extend(more);
    drop(conf);
    all
}

/// The part of the checks that counts, and the codes of those that are muted.
fn split(state: &ClusterState, all: HealthChecks) -> (HealthChecks, HealthChecks) {
    let (muted, loud) =
        all.checks.into_iter().partition(|(code, _)| state.mutes.contains_key(code));
    (HealthChecks { checks: loud }, HealthChecks { checks: muted })
}

/// `HEALTH_OK`, `HEALTH_WARN` or `HEALTH_ERR`.
fn status_word(loud: &HealthChecks) -> &'static str {
    match loud.checks.values().map(|c| c.severity).min() {
        None | Some(HealthCheck::OK) => "HEALTH_OK",
        Some(HealthCheck::ERR) => "HEALTH_ERR",
        Some(_) => "HEALTH_WARN",
    }
}

fn severity_word(c: &HealthCheck) -> &'static str {
    match c.severity {
        HealthCheck::ERR => "HEALTH_ERR",
        HealthCheck::OK => "HEALTH_OK",
        _ => "HEALTH_WARN",
    }
}

/// `health` of `ceph status -f json`, and `ceph health -f json`.
pub fn to_json(state: &ClusterState, env: &Env<'_>, detail: bool) -> Value {
    let (loud, muted) = split(state, checks(state, env));
    let mut out = Map::new();
    for (code, c) in loud.checks.iter().chain(&muted.checks) {
        let mut m = Map::new();
        m.insert("severity".into(), severity_word(c).into());
        m.insert("summary".into(), json!({"message": c.summary, "count": c.count}));
        if detail {
            m.insert("detail".into(), c.detail.iter().map(|d| json!({"message": d})).collect());
        }
        m.insert("muted".into(), muted.checks.contains_key(code).into());
        out.insert(code.clone(), Value::Object(m));
    }
    let mutes: Vec<Value> = state
        .mutes
        .iter()
        .map(|(code, m)| {
            let mut v =
                json!({"code": code, "sticky": m.sticky, "summary": m.summary, "count": m.count});
            if !m.until.is_zero() {
                v["ttl"] = m.until.to_string().into();
            }
            v
        })
        .collect();
    json!({"status": status_word(&loud), "checks": out, "mutes": mutes})
}

/// The first line, and the lines under it: of `ceph -s` (one a check) or of `ceph health detail`.
pub fn to_text(state: &ClusterState, env: &Env<'_>, detail: bool) -> (String, Vec<String>) {
    let (loud, muted) = split(state, checks(state, env));
    let mut first = status_word(&loud).to_string();
    if !muted.checks.is_empty() {
        let codes: Vec<&str> = muted.checks.keys().map(String::as_str).collect();
        first += &format!(" (muted: {})", codes.join(", "));
    }
    let mut lines = Vec::new();
    for (code, c) in &loud.checks {
        if !detail {
            lines.push(c.summary.clone());
            continue;
        }
        let mark = if c.severity == HealthCheck::ERR { "ERR" } else { "WRN" };
        lines.push(format!("[{mark}] {code}: {}", c.summary));
        lines.extend(c.detail.iter().map(|d| format!("    {d}")));
    }
    if detail {
        for (code, c) in &muted.checks {
            lines.push(format!("(MUTED) [WRN] {code}: {}", c.summary));
            lines.extend(c.detail.iter().map(|d| format!("    {d}")));
        }
    }
    (first, lines)
}

fn health(c: &Read<'_>) -> Answer {
    let detail = c.args.str("detail") == Some("detail");
    if c.format() != Format::Plain {
        return Ok(Reply::data(c.format().json(&to_json(c.state, c.env, detail))));
    }
    let (first, lines) = to_text(c.state, c.env, false);
    let mut out = if lines.is_empty() { first } else { format!("{first} {}", lines.join("; ")) };
    out.push('\n');
    if detail {
        for line in to_text(c.state, c.env, true).1 {
            out += &line;
            out.push('\n');
        }
    }
    Ok(Reply::data(out))
}

/// `1h`, `10m`, `1d`: how long a mute lasts.
fn ttl(text: &str) -> Result<Duration, Refusal> {
    match conf::value::parse(conf::Kind::Secs, text) {
        Ok(conf::Value::Uint(s)) => Ok(Duration::from_secs(s)),
        _ => Err(Refusal::invalid(format!("not a valid duration: {text}"))),
    }
}

fn mute(c: &mut Write<'_>) -> Answer {
    let code = c.args.req("code").to_string();
    let sticky = c.args.flag("sticky");
    let until = match c.args.str("ttl") {
        None => Utime::ZERO,
        Some(t) => Utime::from_duration(c.env.now.as_duration() + ttl(t)?),
    };
    let raised = checks(c.pending.state(), c.env).checks.remove(&code);
    if raised.is_none() && !sticky {
        return Err(Refusal::new(
            Errno::ENOENT,
            format!("health alert {code} is not currently raised"),
        ));
    }
    let (summary, count) = raised.map_or((String::new(), 0), |r| (r.summary, r.count));
    c.pending.put(Change::Mute(code, Some(Mute { until, sticky, summary, count })));
    Ok(Reply::empty())
}

fn unmute(c: &mut Write<'_>) -> Answer {
    let codes: Vec<String> = match c.args.str("code") {
        Some(code) => vec![code.to_string()],
        None => c.pending.state().mutes.keys().cloned().collect(),
    };
    for code in codes {
        c.pending.put(Change::Mute(code, None));
    }
    Ok(Reply::empty())
}
