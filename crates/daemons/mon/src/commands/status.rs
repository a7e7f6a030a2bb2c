//! `ceph -s`, `ceph df`, `ceph pg map` and `ceph report`: the cluster at a glance.

use super::frame::{Answer, Entry, Read, read};
use super::health;
use crate::command::{Format, Refusal, Reply};
use crate::osd_state::OsdMapExt;
use pgmap::df::PoolRow;
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use types::errno::Errno;
use types::service_map::is_own_kind;
use types::{Dump, OsdId, PgId, Utime};

pub(super) static COMMANDS: &[Entry] = &[
    read("status", "Show the cluster's state.", "mon", "r", status),
    read(
        "df name=detail,type=CephChoices,strings=detail,req=false",
        "Show how much space is used and free.",
        "mon",
        "r",
        df,
    ),
    read(
        "pg map name=pgid,type=CephPgid",
        "Show the OSDs of a placement group.",
        "pg",
        "r",
        pg_map,
    ),
    read(
        "report name=tags,type=CephString,n=N,req=false",
        "Show everything that the monitor knows.",
        "mon",
        "r",
        report,
    ),
];

fn since(from: Utime, now: Utime) -> u64 {
    now.as_duration().saturating_sub(from.as_duration()).as_secs()
}

/// `5m`, `3h`, `2d`: an age in `ceph -s`.
fn age(secs: u64) -> String {
    match secs {
        0..60 => format!("{secs}s"),
        60..7200 => format!("{}m", secs / 60),
        7200..172_800 => format!("{}h", secs / 3600),
        172_800..1_209_600 => format!("{}d", secs / 86_400),
        _ => format!("{}w", secs / 604_800),
    }
}

fn status(c: &Read<'_>) -> Answer {
    match c.format() {
        Format::Plain => Ok(Reply::data(status_text(c))),
        f => Ok(Reply::data(f.json(&status_json(c)))),
    }
}

/// The quorum's names by rank.
fn quorum_names(c: &Read<'_>) -> Vec<String> {
    let names = &c.state.monmap.ranks;
    c.env.mon.quorum.iter().filter_map(|r| names.get(*r as usize)).map(|n| n.to_string()).collect()
}

fn status_json(c: &Read<'_>) -> Value {
    let (map, now) = (c.state.osd.map(), c.env.now);
    let count = |f: &dyn Fn(OsdId) -> bool| map.osds().filter(|o| f(*o)).count();
    let remapped =
        c.env.stats.digest.as_ref().map_or(0, |d| d.num_pgs_with(types::stats::PgState::REMAPPED));
    let pgmap = c
        .env
        .stats
        .digest
        .as_ref()
        .map_or_else(|| pgmap::Digest::default().status_json(), |d| d.status_json());
    json!({
        "fsid": c.state.monmap.fsid.to_string(),
        "health": health::to_json(c.state, c.env, false),
        "election_epoch": c.env.mon.election_epoch,
        "quorum": c.env.mon.quorum,
        "quorum_names": quorum_names(c),
        "quorum_age": since(c.env.mon.quorum_since, now),
        "monmap": {
            "epoch": c.state.monmap.epoch.0,
            "min_mon_release_name": c.state.monmap.min_mon_release.name(),
            "num_mons": c.state.monmap.mon_info.len(),
        },
        "osdmap": {
            "epoch": map.epoch.0,
            "num_osds": map.osds().count(),
            "num_up_osds": count(&|o| map.is_up(o)),
            "osd_up_since": map.last_up_change.sec,
            "num_in_osds": count(&|o| map.is_in(o)),
            "osd_in_since": map.last_in_change.sec,
            "num_remapped_pgs": remapped,
        },
        "pgmap": pgmap,
        "fsmap": super::fs::by_rank_json(&c.state.fs),
        "mgrmap": {
            "available": c.state.mgr.available,
            "num_standbys": c.state.mgr.standbys.len(),
            "modules": c.state.mgr.modules,
            "services": c.state.mgr.services,
        },
        "servicemap": c.state.services.dump(),
        "progress_events": progress_events(c),
    })
}

fn status_text(c: &Read<'_>) -> String {
    let (map, now) = (c.state.osd.map(), c.env.now);
    let (first, lines) = health::to_text(c.state, c.env, false);
    let mut out = format!("  cluster:\n    id:     {}\n    health: {first}\n", c.state.monmap.fsid);
    for line in lines {
        let _ = writeln!(out, "            {line}");
    }
    let services: Vec<_> =
        c.state.services.services.iter().filter(|(name, _)| !is_own_kind(name)).collect();
    // What is said of services stands in one column, that of the cluster's own daemons too.
    let width = services.iter().map(|(name, _)| name.len()).max().unwrap_or(0).max("mon".len());
    let gap = " ".repeat(width - "mon".len());
    let names = quorum_names(c);
    let _ = write!(
        out,
        " \n  services:\n    mon: {gap}{} daemons, quorum {} (age {})\n",
        c.state.monmap.mon_info.len(),
        names.join(","),
        age(since(c.env.mon.quorum_since, now))
    );
    let _ = writeln!(out, "    mgr: {gap}{}", mgr_text(&c.state.mgr, now));
    if let Some(mds) = super::fs::daemon_summary(&c.state.fs) {
        let _ = writeln!(out, "    mds: {mds}");
    }
    let count = |f: &dyn Fn(OsdId) -> bool| map.osds().filter(|o| f(*o)).count();
    let since_text = |t: Utime| {
        if t.is_zero() { String::new() } else { format!(" (since {})", age(since(t, now))) }
    };
    let _ = write!(
        out,
        "    osd: {gap}{} osds: {} up{}, {} in{}",
        map.osds().count(),
        count(&|o| map.is_up(o)),
        since_text(map.last_up_change),
        count(&|o| map.is_in(o)),
        since_text(map.last_in_change)
    );
    let remapped =
        c.env.stats.digest.as_ref().map_or(0, |d| d.num_pgs_with(types::stats::PgState::REMAPPED));
    if remapped > 0 {
        let _ = write!(out, "; {remapped} remapped pgs");
    }
    for (name, s) in &services {
        let _ = write!(out, "\n    {name}: {:1$}{2}", "", width - name.len(), s.summarized());
    }
    let tasks = c.state.services.tasks();
    if !tasks.is_empty() {
        out.push_str("\n \n  task status:");
    }
    for (task, daemons) in tasks {
        let _ = write!(out, "\n    {task}:");
        for (daemon, status) in daemons {
            let _ = write!(out, "\n        {daemon}: {status}");
        }
    }
    out.push_str("\n \n  data:\n");
    if let Some(volumes) = super::fs::fs_summary(&c.state.fs) {
        let _ = writeln!(out, "    volumes: {volumes}");
    }
    out += &c
        .env
        .stats
        .digest
        .as_ref()
        .map_or_else(|| pgmap::Digest::default().status_text(), |d| d.status_text());
    let job = super::moves::event(c.state, now).map(|(_, _, lines)| lines);
    if let Some(d) = &c.env.stats.digest {
        let others = events(d).map(|(name, job)| job.two_lines(name, now, 6));
        let lines: Vec<String> = job.into_iter().chain(others).collect();
        if !lines.is_empty() {
            let _ = write!(out, "\n \n  progress:\n");
        }
        for line in lines {
            let _ = writeln!(out, "    {line}");
        }
    }
    out.push_str(" \n");
    out
}

/// Background work that has something to do.
fn events(digest: &pgmap::Digest) -> impl Iterator<Item = (&String, &pgmap::Job)> {
    digest.jobs.iter().filter(|(name, job)| job.is_active() && pgmap::jobs::shown_in_status(name))
}

/// The same as Ceph shows what its manager says (`ProgressEvent`, `src/mon/mon_types.h`).
fn progress_events(c: &Read<'_>) -> Value {
    let Some(d) = &c.env.stats.digest else { return json!({}) };
    let event = |(name, job): (&String, &pgmap::Job)| {
        let message = job.two_lines(name, c.env.now, 6);
        (
            pgmap::jobs::id(name, job.since),
            json!({"message": message, "progress": job.progress(), "add_to_ceph_s": true}),
        )
    };
    let job = super::moves::event(c.state, c.env.now).map(|(id, progress, message)| {
        (id, json!({"message": message, "progress": progress, "add_to_ceph_s": true}))
    });
    Value::Object(job.into_iter().chain(events(d).map(event)).collect())
}

/// `x(active, since 5m), standbys: y, z` (Ceph: `MgrMap::print_summary`).
fn mgr_text(m: &types::MgrMap, now: Utime) -> String {
    let since = if m.active_change.is_zero() {
        None
    } else {
        Some(format!("since {}", age(since(m.active_change, now))))
    };
    let mut out = match (m.active_gid, since) {
        (0, None) => "no daemons active".to_owned(),
        (0, Some(since)) => format!("no daemons active ({since})"),
        (_, since) => {
            let words =
                [Some("active".to_owned()), (!m.available).then(|| "starting".to_owned()), since];
            format!(
                "{}({})",
                m.active_name,
                words.into_iter().flatten().collect::<Vec<_>>().join(", ")
            )
        }
    };
    if !m.standbys.is_empty() {
        let names: Vec<&str> = m.standbys.values().map(|s| s.name.as_str()).collect();
        let _ = write!(out, ", standbys: {}", names.join(", "));
    }
    out
}

/// The pools as `df` needs them.
fn pool_rows(c: &Read<'_>) -> Vec<PoolRow> {
    let map = c.state.osd.map();
    map.pools
        .iter()
        // As in Ceph, a pool shows up with the first statistics that know it.
        .filter(|(id, _)| c.env.stats.digest.as_ref().is_some_and(|d| d.pools.contains_key(id)))
        .map(|(id, p)| PoolRow {
            id: *id,
            name: map.pool_names.get(id).cloned().unwrap_or_default(),
            pg_num: p.pg_num,
            raw_used_rate: map.raw_used_rate(p),
            rule: u32::from(p.crush_rule),
            quota_objects: p.quota_max_objects,
            quota_bytes: p.quota_max_bytes,
        })
        .collect()
}

fn df(c: &Read<'_>) -> Answer {
    let detail = c.args.str("detail") == Some("detail");
    let empty = pgmap::Digest::default();
    let d = c.env.stats.digest.as_deref().unwrap_or(&empty);
    let rows = pool_rows(c);
    Ok(c.format().reply(|| d.df_json(&rows, detail), || d.df_text(&rows, detail)))
}

fn pg_map(c: &Read<'_>) -> Answer {
    let text = c.args.req("pgid");
    let pgid: PgId =
        text.parse().map_err(|_| Refusal::invalid(format!("invalid pgid '{text}'")))?;
    let map = c.state.osd.map();
    if map.pool(pgid.pool).is_none_or(|p| pgid.seed >= p.pg_num) {
        return Err(Refusal::new(Errno::ENOENT, format!("pg '{text}' does not exist")));
    }
    let m = map.pg_to_up_acting(pgid);
    let list = |v: &[OsdId]| {
        format!("[{}]", v.iter().map(|o| o.0.to_string()).collect::<Vec<_>>().join(","))
    };
    let numbers = |v: &[OsdId]| v.iter().map(|o| o.0).collect::<Vec<_>>();
    Ok(c.format().reply(
        || json!({"epoch": map.epoch.0, "raw_pgid": pgid.to_string(), "pgid": pgid.to_string(), "up": numbers(&m.up), "acting": numbers(&m.acting)}),
        || format!("osdmap e{} pg {pgid} ({pgid}) -> up {} acting {}\n", map.epoch.0, list(&m.up), list(&m.acting)),
    ))
}

fn report(c: &Read<'_>) -> Answer {
    let mut m = Map::new();
    m.insert("cluster_fingerprint".into(), c.state.monmap.fsid.to_string().into());
    m.insert("version".into(), types::version::SHORT.into());
    m.insert("timestamp".into(), c.env.now.to_string().into());
    m.insert("tag".into(), c.args.strs("tags").join(" ").into());
    m.insert("health".into(), health::to_json(c.state, c.env, true));
    m.insert("monmap".into(), c.state.monmap.dump());
    m.insert("osdmap".into(), c.state.osd.map().dump());
    m.insert("mgrmap".into(), c.state.mgr.dump());
    let f = if c.format() == Format::Plain { Format::JsonPretty } else { c.format() };
    Ok(Reply::data(f.json(&Value::Object(m))))
}
