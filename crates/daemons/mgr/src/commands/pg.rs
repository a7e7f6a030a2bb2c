//! `ceph pg ...`.

use super::{Answer, Context, Entry, forcing, json, read, scrubbing, text};
use command::{Format, Refusal};
use pgmap::table::{Align, Table};
use pgmap::units::bytes;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use types::errno::Errno;
use types::stats::{PgStat, PgState};
use types::{Dump, OsdId, PgId, PoolId, Utime};

pub(super) const COMMANDS: &[Entry] = &[
    read("pg stat", "show placement group status", "pg", stat),
    read(
        "pg dump name=dumpcontents,type=CephChoices,strings=all|summary|sum|delta|pools|osds|pgs|pgs_brief,n=N,req=false",
        "show human-readable versions of pg map (only 'all' valid with plain)",
        "pg",
        dump,
    ),
    read(
        "pg dump_json name=dumpcontents,type=CephChoices,strings=all|summary|sum|pools|osds|pgs,n=N,req=false",
        "show human-readable version of pg map in json only",
        "pg",
        dump_json,
    ),
    read("pg dump_pools_json", "show pg pools info in json only", "pg", dump_pools),
    read(
        "pg ls-by-pool name=poolstr,type=CephString name=states,type=CephString,n=N,req=false",
        "list pg with pool = [poolname]",
        "pg",
        ls_by_pool,
    ),
    read(
        "pg ls-by-primary name=osd,type=CephOsdName name=pool,type=CephInt,req=false name=states,type=CephString,n=N,req=false",
        "list pg with primary = [osd]",
        "pg",
        ls_by_primary,
    ),
    read(
        "pg ls-by-osd name=osd,type=CephOsdName name=pool,type=CephInt,req=false name=states,type=CephString,n=N,req=false",
        "list pg on osd [osd]",
        "pg",
        ls_by_osd,
    ),
    read(
        "pg ls name=pool,type=CephInt,req=false name=states,type=CephString,n=N,req=false",
        "list pg with specific pool, osd, state",
        "pg",
        ls,
    ),
    read(
        "pg dump_stuck name=stuckops,type=CephChoices,strings=inactive|unclean|stale|undersized|degraded,n=N,req=false name=threshold,type=CephInt,req=false",
        "show information about stuck pgs",
        "pg",
        dump_stuck,
    ),
    read(
        "pg debug name=debugop,type=CephChoices,strings=unfound_objects_exist|degraded_pgs_exist",
        "show debug info about pgs",
        "pg",
        debug,
    ),
    scrubbing(
        "pg scrub name=pgid,type=CephPgid",
        "start scrub on <pgid>",
        "pg",
        super::scrub::group,
    ),
    scrubbing(
        "pg deep-scrub name=pgid,type=CephPgid",
        "start deep-scrub on <pgid>",
        "pg",
        super::scrub::group,
    ),
    scrubbing(
        "pg repair name=pgid,type=CephPgid",
        "start repair on <pgid>",
        "pg",
        super::scrub::group,
    ),
    forcing(
        "pg force-recovery name=pgid,type=CephPgid,n=N",
        "force recovery of <pgid> first",
        "pg",
        super::force::groups,
    ),
    forcing(
        "pg force-backfill name=pgid,type=CephPgid,n=N",
        "force backfill of <pgid> first",
        "pg",
        super::force::groups,
    ),
    forcing(
        "pg cancel-force-recovery name=pgid,type=CephPgid,n=N",
        "restore normal recovery priority of <pgid>",
        "pg",
        super::force::groups,
    ),
    forcing(
        "pg cancel-force-backfill name=pgid,type=CephPgid,n=N",
        "restore normal backfill priority of <pgid>",
        "pg",
        super::force::groups,
    ),
];

fn stat(cx: &Context<'_>) -> Answer {
    let d = &cx.state.digest;
    Ok(cx.format.reply(
        || json!({"pg_ready": true, "pg_summary": d.oneline_json()}),
        || d.oneline_text() + "\n",
    ))
}

/// An OSD set as Ceph streams it: `[0,1,2]`.
fn osds(v: &[OsdId]) -> String {
    let v: Vec<String> = v.iter().map(|o| o.0.to_string()).collect();
    format!("[{}]", v.join(","))
}

fn with_id(pgid: &PgId, value: Value) -> Value {
    let mut m = Map::new();
    m.insert("pgid".into(), pgid.to_string().into());
    if let Value::Object(o) = value {
        m.extend(o);
    }
    Value::Object(m)
}

fn pg_stats<'a>(pgs: impl Iterator<Item = (&'a PgId, &'a PgStat)>) -> Value {
    pgs.map(|(id, s)| with_id(id, s.dump())).collect()
}

fn brief_table<'a>(pgs: impl Iterator<Item = (&'a PgId, &'a PgStat)>) -> String {
    let mut t = Table::new();
    t.column("PG_STAT", Align::Left, Align::Left).right(&[
        "STATE",
        "UP",
        "UP_PRIMARY",
        "ACTING",
        "ACTING_PRIMARY",
    ]);
    for (id, s) in pgs {
        t.row([
            id.to_string(),
            s.state.to_string(),
            osds(&s.up),
            s.up_primary.0.to_string(),
            osds(&s.acting),
            s.acting_primary.0.to_string(),
        ]);
    }
    t.to_string()
}

fn full_table<'a>(pgs: impl Iterator<Item = (&'a PgId, &'a PgStat)>) -> String {
    let mut t = Table::new();
    t.column("PG_STAT", Align::Left, Align::Left).right(&[
        "OBJECTS",
        "MISSING_ON_PRIMARY",
        "DEGRADED",
        "MISPLACED",
        "UNFOUND",
        "BYTES",
        "OMAP_BYTES*",
        "OMAP_KEYS*",
        "LOG",
        "DISK_LOG",
        "STATE",
        "STATE_STAMP",
        "VERSION",
        "REPORTED",
        "UP",
        "UP_PRIMARY",
        "ACTING",
        "ACTING_PRIMARY",
        "LAST_SCRUB",
        "SCRUB_STAMP",
        "LAST_DEEP_SCRUB",
        "DEEP_SCRUB_STAMP",
        "SNAPTRIMQ_LEN",
    ]);
    for (id, s) in pgs {
        let sum = &s.stats.sum;
        t.row([
            id.to_string(),
            sum.num_objects.to_string(),
            sum.num_objects_missing_on_primary.to_string(),
            sum.num_objects_degraded.to_string(),
            sum.num_objects_misplaced.to_string(),
            sum.num_objects_unfound.to_string(),
            sum.num_bytes.to_string(),
            sum.num_omap_bytes.to_string(),
            sum.num_omap_keys.to_string(),
            s.log_size.to_string(),
            s.ondisk_log_size.to_string(),
            s.state.to_string(),
            s.last_change.to_string(),
            s.version.to_string(),
            format!("{}:{}", s.reported_epoch.0, s.reported_seq),
            osds(&s.up),
            s.up_primary.0.to_string(),
            osds(&s.acting),
            s.acting_primary.0.to_string(),
            s.last_scrub.to_string(),
            s.last_scrub_stamp.to_string(),
            s.last_deep_scrub.to_string(),
            s.last_deep_scrub_stamp.to_string(),
            s.snaptrimq_len.to_string(),
        ]);
    }
    t.to_string()
}

fn osd_table(cx: &Context<'_>) -> String {
    let mut t = Table::new();
    t.column("OSD_STAT", Align::Left, Align::Left).right(&[
        "USED",
        "AVAIL",
        "USED_RAW",
        "TOTAL",
        "HB_PEERS",
        "PG_SUM",
        "PRIMARY_PG_SUM",
    ]);
    let by_osd = cx.state.pg_map.pgs_by_osd();
    for (id, r) in &cx.state.pg_map.osds {
        let fs = &r.stat.statfs;
        let primary = cx.state.pg_map.pgs.values().filter(|s| s.acting_primary == *id).count();
        t.row([
            id.0.to_string(),
            bytes(fs.used()),
            bytes(fs.available),
            bytes(fs.used_raw()),
            bytes(fs.total),
            osds(&r.stat.hb_peers),
            by_osd.get(id).copied().unwrap_or(0).to_string(),
            primary.to_string(),
        ]);
    }
    let fs = cx.state.pg_map.osd_sum(|_| true).statfs;
    t.row([
        "sum".to_string(),
        bytes(fs.used()),
        bytes(fs.available),
        bytes(fs.used_raw()),
        bytes(fs.total),
    ]);
    t.to_string()
}

/// The line of sums, under a head of its own.
fn sum_table(cx: &Context<'_>) -> String {
    let mut t = Table::new();
    t.column("PG_STAT", Align::Left, Align::Left).right(&[
        "OBJECTS",
        "MISSING_ON_PRIMARY",
        "DEGRADED",
        "MISPLACED",
        "UNFOUND",
        "BYTES",
        "OMAP_BYTES*",
        "OMAP_KEYS*",
        "LOG",
        "DISK_LOG",
    ]);
    let all = &cx.state.digest.pg_sum;
    let s = &all.stats.sum;
    let numbers = [
        s.num_objects,
        s.num_objects_missing_on_primary,
        s.num_objects_degraded,
        s.num_objects_misplaced,
        s.num_objects_unfound,
        s.num_bytes,
        s.num_omap_bytes,
        s.num_omap_keys,
        all.log_size,
        all.ondisk_log_size,
    ];
    t.row(std::iter::once("sum".to_string()).chain(numbers.map(|n| n.to_string())));
    t.to_string()
}

fn pool_table(cx: &Context<'_>) -> String {
    let mut t = Table::new();
    t.column("POOLID", Align::Left, Align::Left).right(&[
        "OBJECTS",
        "MISSING_ON_PRIMARY",
        "DEGRADED",
        "MISPLACED",
        "UNFOUND",
        "BYTES",
        "OMAP_BYTES*",
        "OMAP_KEYS*",
        "LOG",
        "DISK_LOG",
    ]);
    for (id, p) in cx.state.pg_map.pool_stats() {
        let s = &p.stats.sum;
        t.row(
            [id.0]
                .into_iter()
                .chain([
                    s.num_objects,
                    s.num_objects_missing_on_primary,
                    s.num_objects_degraded,
                    s.num_objects_misplaced,
                    s.num_objects_unfound,
                    s.num_bytes,
                    s.num_omap_bytes,
                    s.num_omap_keys,
                    p.log_size,
                    p.ondisk_log_size,
                ])
                .map(|v| v.to_string()),
        );
    }
    t.to_string()
}

fn pool_stats(cx: &Context<'_>) -> Value {
    let shape = |id: PoolId| cx.map.pools.get(&id).map_or(0, |p| p.pg_num);
    cx.state
        .pg_map
        .pool_stats()
        .iter()
        .map(|(id, p)| {
            let mut m = Map::new();
            m.insert("poolid".into(), id.0.into());
            m.insert("num_pg".into(), shape(*id).into());
            if let Value::Object(o) = p.dump() {
                m.extend(o);
            }
            Value::Object(m)
        })
        .collect()
}

fn osd_stats(cx: &Context<'_>) -> Value {
    cx.state
        .pg_map
        .osds
        .iter()
        .map(|(id, r)| {
            let mut m = Map::new();
            m.insert("osd".into(), id.0.into());
            if let Value::Object(o) = r.stat.dump() {
                m.extend(o);
            }
            Value::Object(m)
        })
        .collect()
}

fn pool_statfs(cx: &Context<'_>) -> Value {
    let mut out = Vec::new();
    for (osd, r) in &cx.state.pg_map.osds {
        for (pool, s) in &r.pools {
            let mut m = Map::new();
            m.insert("poolid".into(), pool.0.into());
            m.insert("osd".into(), osd.0.into());
            if let Value::Object(o) = s.dump() {
                m.extend(o);
            }
            out.push(Value::Object(m));
        }
    }
    out.into()
}

fn basic(cx: &Context<'_>, m: &mut Map<String, Value>) {
    let map = &cx.state.pg_map;
    m.insert("version".into(), map.version.into());
    m.insert("stamp".into(), map.stamp.to_string().into());
    m.insert("last_osdmap_epoch".into(), map.osdmap_epoch.0.into());
    m.insert("last_pg_scan".into(), 0.into());
    m.insert("pg_stats_sum".into(), cx.state.digest.pg_sum.dump());
    m.insert("osd_stats_sum".into(), map.osd_sum(|_| true).dump());
}

fn parts(cx: &Context<'_>) -> BTreeSet<String> {
    cx.args.strs("dumpcontents").into_iter().collect()
}

fn dump_value(cx: &Context<'_>, what: &BTreeSet<String>) -> Value {
    let mut m = Map::new();
    let all = what.is_empty() || what.contains("all");
    if all || what.contains("summary") || what.contains("sum") || what.contains("delta") {
        basic(cx, &mut m);
    }
    if all || what.contains("pgs") {
        m.insert("pg_stats".into(), pg_stats(cx.state.pg_map.pgs.iter()));
    } else if what.contains("pgs_brief") {
        m.insert(
            "pg_stats".into(),
            cx.state.pg_map.pgs.iter().map(|(id, s)| with_id(id, s.dump_brief())).collect(),
        );
    }
    if all || what.contains("pools") {
        m.insert("pool_stats".into(), pool_stats(cx));
    }
    if all || what.contains("osds") {
        m.insert("osd_stats".into(), osd_stats(cx));
        m.insert("pool_statfs".into(), pool_statfs(cx));
    }
    // Parts of the map stand on their own; the whole of it under a name.
    if all { json!({"pg_ready": true, "pg_map": m}) } else { with_ready(m) }
}

fn with_ready(rest: Map<String, Value>) -> Value {
    let mut m = Map::new();
    m.insert("pg_ready".into(), true.into());
    m.extend(rest);
    Value::Object(m)
}

fn dump(cx: &Context<'_>) -> Answer {
    let what = parts(cx);
    if cx.format != Format::Plain {
        return Ok(json(cx, &dump_value(cx, &what))?.with_status(dumped(&what)));
    }
    let map = &cx.state.pg_map;
    let mut out = String::new();
    let all = what.is_empty() || what.contains("all");
    if all {
        out += &format!(
            "version {}\nstamp {}\nlast_osdmap_epoch {}\nlast_pg_scan 0\n",
            map.version, map.stamp, map.osdmap_epoch.0
        );
    }
    if all || what.contains("pgs") {
        out += &full_table(map.pgs.iter());
    } else if what.contains("pgs_brief") {
        out += &brief_table(map.pgs.iter());
    }
    if all || what.contains("pools") {
        out += "\n";
        out += &pool_table(cx);
    }
    if all || what.contains("summary") || what.contains("sum") {
        out += &sum_table(cx);
    }
    if all || what.contains("osds") {
        out += &osd_table(cx);
    }
    out += "\n* NOTE: Omap statistics are gathered during deep scrub and may be inaccurate soon afterwards depending on utilization. See http://docs.ceph.com/en/latest/dev/placement-group/#omap-statistics for further details.\n";
    Ok(command::Reply::data(out).with_status(dumped(&what)))
}

fn dumped(what: &BTreeSet<String>) -> String {
    let names: Vec<&str> =
        if what.is_empty() { vec!["all"] } else { what.iter().map(String::as_str).collect() };
    format!("dumped {}", names.join(","))
}

fn dump_json(cx: &Context<'_>) -> Answer {
    let mut what = parts(cx);
    if what.is_empty() {
        what.insert("all".into());
    }
    json(cx, &dump_value(cx, &what))
}

fn dump_pools(cx: &Context<'_>) -> Answer {
    json(cx, &json!({"pg_ready": true, "pool_stats": pool_stats(cx)}))
}

/// The PGs that a listing selects.
struct Filter {
    pool: Option<PoolId>,
    osd: Option<OsdId>,
    primary: Option<OsdId>,
    states: Vec<PgState>,
}

fn states(cx: &Context<'_>) -> Result<Vec<PgState>, Refusal> {
    let mut out = Vec::new();
    for name in cx.args.strs("states") {
        if name == "all" {
            return Ok(vec![]);
        }
        let state = PgState::from_name(&name).ok_or_else(|| {
            Refusal::invalid(format!(
                "'{name}' is not a valid pg state, available choices: active, clean, peering, ..."
            ))
        })?;
        out.push(state);
    }
    Ok(out)
}

fn list(cx: &Context<'_>, f: Filter) -> Answer {
    let selected: Vec<(&PgId, &PgStat)> = cx
        .state
        .pg_map
        .pgs
        .iter()
        .filter(|(id, s)| {
            f.pool.is_none_or(|p| id.pool == p)
                && f.osd.is_none_or(|o| s.acting.contains(&o) || s.up.contains(&o))
                && f.primary.is_none_or(|o| s.acting_primary == o)
                && (f.states.is_empty()
                    || f.states.iter().any(|st| {
                        if *st == PgState(0) { s.state == *st } else { s.state.has(*st) }
                    }))
        })
        .collect();
    Ok(cx.format.reply(
        || {
            let mut m = Map::new();
            m.insert("pg_ready".into(), true.into());
            // Ceph leaves the list out when nothing was selected.
            if !selected.is_empty() {
                m.insert("pg_stats".into(), pg_stats(selected.iter().copied()));
            }
            Value::Object(m)
        },
        || ls_table(&selected, cx.now),
    ))
}

fn ls_table(pgs: &[(&PgId, &PgStat)], now: Utime) -> String {
    let mut t = Table::new();
    t.column("PG", Align::Left, Align::Left).right(&[
        "OBJECTS",
        "DEGRADED",
        "MISPLACED",
        "UNFOUND",
        "BYTES",
        "OMAP_BYTES*",
        "OMAP_KEYS*",
        "LOG",
        "STATE",
        "SINCE",
        "VERSION",
        "REPORTED",
        "UP",
        "ACTING",
        "SCRUB_STAMP",
        "DEEP_SCRUB_STAMP",
    ]);
    for (id, s) in pgs {
        let sum = &s.stats.sum;
        t.row([
            id.to_string(),
            sum.num_objects.to_string(),
            sum.num_objects_degraded.to_string(),
            sum.num_objects_misplaced.to_string(),
            sum.num_objects_unfound.to_string(),
            sum.num_bytes.to_string(),
            sum.num_omap_bytes.to_string(),
            sum.num_omap_keys.to_string(),
            s.log_size.to_string(),
            s.state.to_string(),
            span(now.as_secs_f64() - s.last_change.as_secs_f64()),
            s.version.to_string(),
            format!("{}:{}", s.reported_epoch.0, s.reported_seq),
            format!("{}p{}", osds(&s.up), s.up_primary.0),
            format!("{}p{}", osds(&s.acting), s.acting_primary.0),
            s.last_scrub_stamp.to_string(),
            s.last_deep_scrub_stamp.to_string(),
        ]);
    }
    format!(
        "{t}\n* NOTE: Omap statistics are gathered during deep scrub and may be inaccurate soon afterwards depending on utilization. See http://docs.ceph.com/en/latest/dev/placement-group/#omap-statistics for further details.\n"
    )
}

/// A time span as Ceph abbreviates it: `45s`, `12m`, `3h`, `2d`.
fn span(seconds: f64) -> String {
    let s = seconds.max(0.0) as u64;
    match s {
        0..120 => format!("{s}s"),
        120..7200 => format!("{}m", s / 60),
        7200..172_800 => format!("{}h", s / 3600),
        _ => format!("{}d", s / 86_400),
    }
}

fn pool_named(cx: &Context<'_>, name: &str) -> Result<PoolId, Refusal> {
    cx.map
        .pool_by_name(name)
        .ok_or_else(|| Refusal::new(Errno::ENOENT, format!("pool {name} does not exist")))
}

fn pool_numbered(cx: &Context<'_>) -> Result<Option<PoolId>, Refusal> {
    let Some(n) = cx.args.int("pool") else { return Ok(None) };
    let id = PoolId(n);
    if !cx.map.pools.contains_key(&id) {
        return Err(Refusal::new(Errno::ENOENT, format!("pool {n} does not exist")));
    }
    Ok(Some(id))
}

fn osd_named(cx: &Context<'_>) -> Result<OsdId, Refusal> {
    let text = cx
        .args
        .get("osd")
        .map(|v| v.as_str().map_or_else(|| v.to_string(), str::to_owned))
        .unwrap_or_default();
    let id: i32 = text
        .strip_prefix("osd.")
        .unwrap_or(&text)
        .parse()
        .map_err(|_| Refusal::invalid(format!("unable to parse osd id '{text}'")))?;
    if !cx.map.is_up(OsdId(id)) {
        return Err(Refusal::new(Errno::EAGAIN, format!("osd {id} is not up")));
    }
    Ok(OsdId(id))
}

fn ls_by_pool(cx: &Context<'_>) -> Answer {
    let pool = pool_named(cx, cx.args.str("poolstr").unwrap_or_default())?;
    list(cx, Filter { pool: Some(pool), osd: None, primary: None, states: states(cx)? })
}

fn ls_by_primary(cx: &Context<'_>) -> Answer {
    list(
        cx,
        Filter {
            pool: pool_numbered(cx)?,
            osd: None,
            primary: Some(osd_named(cx)?),
            states: states(cx)?,
        },
    )
}

fn ls_by_osd(cx: &Context<'_>) -> Answer {
    list(
        cx,
        Filter {
            pool: pool_numbered(cx)?,
            osd: Some(osd_named(cx)?),
            primary: None,
            states: states(cx)?,
        },
    )
}

fn ls(cx: &Context<'_>) -> Answer {
    list(cx, Filter { pool: pool_numbered(cx)?, osd: None, primary: None, states: states(cx)? })
}

fn dump_stuck(cx: &Context<'_>) -> Answer {
    let kinds = cx.args.strs("stuckops");
    let kinds = if kinds.is_empty() {
        vec![
            "inactive".into(),
            "unclean".into(),
            "stale".into(),
            "undersized".into(),
            "degraded".into(),
        ]
    } else {
        kinds
    };
    let cutoff = cx.now.as_secs_f64() - cx.args.int("threshold").unwrap_or(60).max(0) as f64;
    let stuck = |s: &PgStat| {
        kinds.iter().any(|k| {
            let (applies, since) = match k.as_str() {
                "inactive" => (!s.state.has(PgState::ACTIVE), s.last_active),
                "unclean" => (!s.state.has(PgState::CLEAN), s.last_clean),
                "degraded" => (s.state.has(PgState::DEGRADED), s.last_undegraded),
                "undersized" => (s.state.has(PgState::UNDERSIZED), s.last_fullsized),
                "stale" => (s.state.has(PgState::STALE), s.last_unstale),
                _ => (false, cx.now),
            };
            applies && since.as_secs_f64() < cutoff
        })
    };
    let selected: Vec<(&PgId, &PgStat)> =
        cx.state.pg_map.pgs.iter().filter(|(_, s)| stuck(s)).collect();
    let reply = cx.format.reply(
        || json!({"pg_ready": true, "stuck_pg_stats": pg_stats(selected.iter().copied())}),
        || if selected.is_empty() { String::new() } else { brief_table(selected.iter().copied()) },
    );
    Ok(reply.with_status("ok"))
}

fn debug(cx: &Context<'_>) -> Answer {
    let any = |f: fn(&PgStat) -> i64| cx.state.pg_map.pgs.values().any(|s| f(s) > 0);
    let found = match cx.args.str("debugop") {
        Some("unfound_objects_exist") => any(|s| s.stats.sum.num_objects_unfound),
        _ => any(|s| s.stats.sum.num_objects_degraded),
    };
    text(if found { "TRUE\n" } else { "FALSE\n" })
}
