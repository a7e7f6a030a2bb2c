//! `ceph osd df`, `ceph osd perf`, `ceph osd pool stats` and what else reads the OSDs' statistics.

use super::{Answer, Context, Entry, asking, forcing, read, scrubbing};
use bytes::Bytes;
use command::{Format, Refusal, Reply};
use crush::tree::{Filter, TreeItem};
use pgmap::table::{Align, Table};
use pgmap::units::{bytes, low_precision, weight};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use types::errno::Errno;
use types::stats::{OsdStat, PgState, StoreStatfs};
use types::{OsdId, PoolId};

pub(super) const COMMANDS: &[Entry] = &[
    read("osd perf", "print dump of OSD perf summary stats", "osd", perf),
    read(
        "osd df name=output_method,type=CephChoices,strings=plain|tree,req=false name=filter_by,type=CephChoices,strings=class|name,req=false name=filter,type=CephString,req=false",
        "show OSD utilization",
        "osd",
        df,
    ),
    read(
        "osd blocked-by",
        "print histogram of which OSDs are blocking their peers",
        "osd",
        blocked_by,
    ),
    read(
        "osd pool stats name=pool_name,type=CephPoolname,req=false",
        "obtain stats from all pools, or from specified pool",
        "osd",
        pool_stats,
    ),
    read(
        "osd ok-to-stop name=ids,type=CephString,n=N name=max,type=CephInt,req=false",
        "check whether osd(s) can be safely stopped without reducing immediate data availability",
        "osd",
        ok_to_stop,
    ),
    read(
        "osd safe-to-destroy name=ids,type=CephString,n=N",
        "check whether osd(s) can be safely destroyed without reducing data durability",
        "osd",
        safe_to_destroy,
    ),
    asking(
        "osd destroy name=id,type=CephOsdName name=force,type=CephBool,req=false name=yes_i_really_mean_it,type=CephBool,req=false",
        "mark an osd as destroyed if nothing is lost by it: its keys go, its number stays",
        "osd",
        destroy,
    ),
    asking(
        "osd purge name=id,type=CephOsdName name=force,type=CephBool,req=false name=yes_i_really_mean_it,type=CephBool,req=false",
        "remove an osd from the osd map, the CRUSH map and the keys if nothing is lost by it",
        "osd",
        destroy,
    ),
    read(
        "osd status name=bucket,type=CephString,req=false",
        "Show the status of OSDs within a bucket, or all",
        "osd",
        status,
    ),
    read(
        "osd pool autoscale-status",
        "report on pool pg_num sizing recommendation and intent",
        "osd",
        super::autoscale::status,
    ),
    scrubbing(
        "osd pool scrub name=who,type=CephPoolname,n=N",
        "initiate scrub on pool <who>",
        "osd",
        super::scrub::pools,
    ),
    scrubbing(
        "osd pool deep-scrub name=who,type=CephPoolname,n=N",
        "initiate deep-scrub on pool <who>",
        "osd",
        super::scrub::pools,
    ),
    scrubbing(
        "osd pool repair name=who,type=CephPoolname,n=N",
        "initiate repair on pool <who>",
        "osd",
        super::scrub::pools,
    ),
    forcing(
        "osd pool force-recovery name=who,type=CephPoolname,n=N",
        "force recovery of pool <who> first",
        "osd",
        super::force::pools,
    ),
    forcing(
        "osd pool force-backfill name=who,type=CephPoolname,n=N",
        "force backfill of pool <who> first",
        "osd",
        super::force::pools,
    ),
    forcing(
        "osd pool cancel-force-recovery name=who,type=CephPoolname,n=N",
        "restore normal recovery priority of pool <who>",
        "osd",
        super::force::pools,
    ),
    forcing(
        "osd pool cancel-force-backfill name=who,type=CephPoolname,n=N",
        "restore normal backfill priority of pool <who>",
        "osd",
        super::force::pools,
    ),
    scrubbing(
        "osd scrub name=who,type=CephString",
        "initiate scrub on osd <who>, or use <all|any> to scrub all",
        "osd",
        super::scrub::osds,
    ),
    scrubbing(
        "osd deep-scrub name=who,type=CephString",
        "initiate deep scrub on osd <who>, or use <all|any> to deep scrub all",
        "osd",
        super::scrub::osds,
    ),
    scrubbing(
        "osd repair name=who,type=CephString",
        "initiate repair on osd <who>, or use <all|any> to repair all",
        "osd",
        super::scrub::osds,
    ),
];

fn perf(cx: &Context<'_>) -> Answer {
    let osds = &cx.state.pg_map.osds;
    Ok(cx.format.reply(
        || {
            let infos: Vec<Value> = osds
                .iter()
                .map(|(id, r)| {
                    let p = &r.stat.perf_stat;
                    json!({"id": id.0, "perf_stats": {
                        "commit_latency_ms": p.commit_latency_ns / 1_000_000, "apply_latency_ms": p.apply_latency_ns / 1_000_000,
                        "commit_latency_ns": p.commit_latency_ns, "apply_latency_ns": p.apply_latency_ns}})
                })
                .collect();
            json!({"osdstats": {"osd_perf_infos": infos}})
        },
        || {
            let mut t = Table::new();
            t.right(&["osd", "commit_latency(ms)", "apply_latency(ms)"]);
            for (id, r) in osds {
                let p = &r.stat.perf_stat;
                t.row([id.0.to_string(), (p.commit_latency_ns / 1_000_000).to_string(), (p.apply_latency_ns / 1_000_000).to_string()]);
            }
            t.to_string()
        },
    ))
}

/// Use of a device, or the sum over a bucket.
fn usage(cx: &Context<'_>, id: i32) -> StoreStatfs {
    let mut sum = StoreStatfs::default();
    let members: BTreeSet<i32> = if id >= 0 { [id].into() } else { cx.map.crush.leaves(id) };
    for osd in members {
        if let Some(r) = cx.state.pg_map.osds.get(&OsdId(osd)) {
            sum.add(&r.stat.statfs);
        }
    }
    sum
}

fn ratio(fs: &StoreStatfs) -> f64 {
    if fs.total > 0 { fs.used_raw() as f64 / fs.total as f64 * 100.0 } else { 0.0 }
}

fn state_of(cx: &Context<'_>, osd: i32) -> &'static str {
    if cx.map.is_up(OsdId(osd)) {
        "up"
    } else if cx.map.is_destroyed(OsdId(osd)) {
        "destroyed"
    } else {
        "down"
    }
}

/// The lines of `osd df`.
struct Utilization {
    rows: Vec<(TreeItem, StoreStatfs, f64, f64)>,
    average: f64,
    min_var: f64,
    max_var: f64,
    dev: f64,
    sum: OsdStat,
}

fn utilization(cx: &Context<'_>, tree: bool) -> Result<Utilization, Refusal> {
    let crush = &cx.map.crush;
    let filter = cx.args.str("filter");
    let selected: Option<BTreeSet<i32>> = match (cx.args.str("filter_by"), filter) {
        (None, _) => None,
        (Some(_), None) => return Err(Refusal::invalid("you must specify 'filter'")),
        (Some("class"), Some(class)) => {
            let of_class = crush.devices_by_class(class);
            if of_class.is_empty() {
                return Err(Refusal::invalid(format!("class '{class}' does not exist")));
            }
            Some(of_class.into_iter().collect())
        }
        (Some(_), Some(name)) => match (crush.names.id(name), cx.map.pool_by_name(name)) {
            (Some(id), _) => Some(if id >= 0 { [id].into() } else { crush.leaves(id) }),
            (None, Some(pool)) => {
                let rule = cx.map.pools.get(&pool).map_or(0, |p| i32::from(p.crush_rule));
                Some(
                    crush
                        .rule(rule)
                        .map(|r| r.takes().flat_map(|t| crush.leaves(t)).collect())
                        .unwrap_or_default(),
                )
            }
            (None, None) => {
                return Err(Refusal::invalid(format!(
                    "'{name}' not a pool, crush node or device class name"
                )));
            }
        },
    };
    let shown = |id: i32| selected.as_ref().is_none_or(|s| s.contains(&id));
    let in_use = |o: OsdId| cx.map.exists(o) && shown(o.0);
    let average = ratio(&cx.state.pg_map.osd_sum(|o| in_use(o) && cx.map.weight(o) > 0.0).statfs);
    let leaf = |id: i32| shown(id);
    let mut u = Utilization {
        rows: vec![],
        average,
        min_var: -1.0,
        max_var: -1.0,
        dev: 0.0,
        sum: cx.state.pg_map.osd_sum(in_use),
    };
    let (mut squares, mut weights) = (0.0f64, 0.0);
    for item in
        crush.walk(&Filter { leaf: &leaf, empty_buckets: selected.is_none(), ..Filter::default() })
    {
        if item.id < 0 && !tree {
            continue;
        }
        let fs = usage(cx, item.id);
        let util = ratio(&fs);
        let var = if average > 0.0 { util / average } else { 1.0 };
        if item.id >= 0 {
            let reweight = cx.map.weight(OsdId(item.id));
            if reweight > 0.0 {
                u.min_var = if u.min_var < 0.0 { var } else { u.min_var.min(var) };
                u.max_var = u.max_var.max(var);
                squares += reweight * (util - average).powi(2);
                weights += reweight;
            }
        }
        u.rows.push((item, fs, util, var));
    }
    u.dev = if weights > 0.0 { (squares / weights).sqrt() } else { 0.0 };
    Ok(u)
}

fn df(cx: &Context<'_>) -> Answer {
    let tree = cx.args.str("output_method") == Some("tree");
    let u = utilization(cx, tree)?;
    let pgs = cx.state.pg_map.pgs_by_osd();
    let count = |id: i32| pgs.get(&OsdId(id)).copied().unwrap_or(0);
    Ok(cx.format.reply(|| df_json(cx, &u, count), || df_text(cx, &u, tree, count)))
}

fn pool_names(cx: &Context<'_>) -> BTreeMap<i64, String> {
    cx.map.pool_names.iter().map(|(id, n)| (id.0, n.clone())).collect()
}

fn df_json(cx: &Context<'_>, u: &Utilization, count: impl Fn(i32) -> u32) -> Value {
    let names: BTreeMap<i64, String> = pool_names(cx);
    let node = |(item, fs, util, var): &(TreeItem, StoreStatfs, f64, f64)| {
        let mut m = Map::new();
        let mut put = |k: &str, v: Value| m.insert(k.into(), v);
        put("reweight", if item.id < 0 { json!(-1) } else { json!(cx.map.weight(OsdId(item.id))) });
        put("kb", (fs.total >> 10).into());
        put("kb_used", (fs.used_raw() >> 10).into());
        put("kb_used_data", (fs.allocated >> 10).into());
        put("kb_used_omap", (fs.omap_allocated >> 10).into());
        put("kb_used_meta", (fs.internal_metadata >> 10).into());
        put("kb_avail", (fs.available >> 10).into());
        put("utilization", (*util).into());
        put("var", (*var).into());
        put("pgs", if item.id < 0 { 0 } else { count(item.id) }.into());
        if item.id >= 0 {
            put("status", state_of(cx, item.id).into());
        }
        cx.map.crush.dump_tree_item(item, &names, m)
    };
    let fs = &u.sum.statfs;
    json!({
        "nodes": u.rows.iter().map(node).collect::<Vec<_>>(),
        "stray": [],
        "summary": {
            "total_kb": fs.total >> 10, "total_kb_used": fs.used_raw() >> 10, "total_kb_used_data": fs.allocated >> 10,
            "total_kb_used_omap": fs.omap_allocated >> 10, "total_kb_used_meta": fs.internal_metadata >> 10, "total_kb_avail": fs.available >> 10,
            "average_utilization": u.average, "min_var": u.min_var, "max_var": u.max_var, "dev": u.dev,
        },
    })
}

fn df_text(cx: &Context<'_>, u: &Utilization, tree: bool, count: impl Fn(i32) -> u32) -> String {
    let mut t = Table::new();
    t.right(&[
        "ID", "CLASS", "WEIGHT", "REWEIGHT", "SIZE", "RAW USE", "DATA", "OMAP", "META", "AVAIL",
        "%USE", "VAR", "PGS", "STATUS",
    ]);
    if tree {
        t.column("TYPE NAME", Align::Left, Align::Left);
    }
    let sizes = |fs: &StoreStatfs| {
        [
            fs.total,
            fs.used_raw(),
            fs.allocated.max(0) as u64,
            fs.omap_allocated.max(0) as u64,
            fs.internal_metadata.max(0) as u64,
            fs.available,
        ]
        .map(bytes)
    };
    for (item, fs, util, var) in &u.rows {
        let mut cells = cx.map.crush.tree_cells(item);
        let name = cells.pop().unwrap_or_default();
        cells.push(if item.id < 0 { "-".into() } else { weight(cx.map.weight(OsdId(item.id))) });
        cells.extend(sizes(fs));
        cells.extend([low_precision(*util), low_precision(*var)]);
        cells.extend(if item.id < 0 {
            ["-".into(), String::new()]
        } else {
            [count(item.id).to_string(), state_of(cx, item.id).into()]
        });
        if tree {
            cells.push(name);
        }
        t.row(cells);
    }
    let mut total = vec![String::new(), String::new(), String::new(), "TOTAL".into()];
    total.extend(sizes(&u.sum.statfs));
    total.extend([low_precision(u.average), String::new()]);
    t.row(total);
    format!(
        "{t}MIN/MAX VAR: {}/{}  STDDEV: {}\n",
        low_precision(u.min_var),
        low_precision(u.max_var),
        low_precision(u.dev)
    )
}

fn blocked_by(cx: &Context<'_>) -> Answer {
    let mut by: BTreeMap<OsdId, u32> = BTreeMap::new();
    for o in cx.state.pg_map.pgs.values().flat_map(|s| s.blocked_by.iter()) {
        *by.entry(*o).or_default() += 1;
    }
    Ok(cx.format.reply(
        || json!({"osd_blocked_by_infos": by.iter().map(|(o, n)| json!({"id": o.0, "num_blocked": n})).collect::<Vec<_>>()}),
        || {
            let mut t = Table::new();
            t.right(&["osd", "num_blocked"]);
            for (o, n) in &by {
                t.row([o.0.to_string(), n.to_string()]);
            }
            t.to_string()
        },
    ))
}

fn pool_stats(cx: &Context<'_>) -> Answer {
    let pools: Vec<(PoolId, String)> = match cx.args.str("pool_name") {
        Some(name) => {
            let id = cx.map.pool_by_name(name).ok_or_else(|| {
                Refusal::new(Errno::ENOENT, format!("unrecognized pool '{name}'"))
            })?;
            vec![(id, name.to_string())]
        }
        None => cx.map.pool_names.iter().map(|(id, n)| (*id, n.clone())).collect(),
    };
    let d = &cx.state.digest;
    Ok(cx.format.reply(
        || pools.iter().map(|(id, n)| d.pool_io_json(n, *id)).collect(),
        || {
            if pools.is_empty() {
                "there are no pools!\n".into()
            } else {
                pools.iter().map(|(id, n)| d.pool_io_text(n, *id)).collect()
            }
        },
    ))
}

/// The OSDs that are named: `0`, `osd.0`, `any`, `all`.
fn ids(cx: &Context<'_>) -> Result<BTreeSet<OsdId>, Refusal> {
    let mut out = BTreeSet::new();
    for word in cx.args.strs("ids") {
        if matches!(word.as_str(), "any" | "all" | "*") {
            out.extend(cx.map.osd_ids());
            continue;
        }
        let id: i32 = word
            .strip_prefix("osd.")
            .unwrap_or(&word)
            .parse()
            .map_err(|_| Refusal::invalid(format!("invalid osd id '{word}'")))?;
        out.insert(OsdId(id));
    }
    if out.is_empty() {
        return Err(Refusal::invalid("must specify one or more OSDs"));
    }
    Ok(out)
}

fn ok_to_stop(cx: &Context<'_>) -> Answer {
    let stopped = ids(cx)?;
    let (mut ok, mut bad, mut unknown) = (vec![], vec![], vec![]);
    for (pgid, s) in &cx.state.pg_map.pgs {
        if s.state == PgState(0) {
            unknown.push(pgid.to_string());
            continue;
        }
        if !s.acting.iter().any(|o| stopped.contains(o)) {
            continue;
        }
        let left = s.acting.iter().filter(|o| o.0 >= 0 && !stopped.contains(o)).count();
        let needed = cx.map.pools.get(&pgid.pool).map_or(1, |p| usize::from(p.min_size));
        if left >= needed && s.state.has(PgState::ACTIVE) {
            ok.push(pgid.to_string())
        } else {
            bad.push(pgid.to_string())
        }
    }
    let fine = bad.is_empty() && unknown.is_empty();
    let report = json!({
        "ok_to_stop": fine, "osds": stopped.iter().map(|o| o.0).collect::<Vec<_>>(), "num_ok_pgs": ok.len(), "num_not_ok_pgs": bad.len() + unknown.len(),
        "bad_become_inactive": bad, "ok_become_degraded": ok, "unknown": unknown,
    });
    // People get the report as one line, as from Ceph.
    let data = if cx.format == Format::Plain {
        Bytes::from(format!("{report}\n"))
    } else {
        cx.format.json(&report)
    };
    if fine {
        return Ok(Reply::data(data));
    }
    let mut r = Refusal::new(
        Errno::EBUSY,
        format!(
            "unsafe to stop osd(s) at this time ({} PGs are or would become offline)",
            bad.len() + unknown.len()
        ),
    );
    r.data = data;
    Err(r)
}

fn join(osds: &BTreeSet<OsdId>) -> String {
    osds.iter().map(|o| o.0.to_string()).collect::<Vec<_>>().join(",")
}

/// Which OSDs can go without reducing durability, and what is in the way of the others.
#[derive(Default)]
struct Safety {
    safe: BTreeSet<OsdId>,
    /// PGs are mapped to them.
    active: BTreeSet<OsdId>,
    /// How many, each OSD's counted apart.
    mapped: usize,
    /// They said nothing, and some PGs are not clean.
    missing: BTreeSet<OsdId>,
    /// They have data of PGs, and some PGs are not clean.
    stored: BTreeSet<OsdId>,
}

impl Safety {
    fn of(cx: &Context<'_>, named: &BTreeSet<OsdId>) -> Result<Safety, Refusal> {
        let pgs = &cx.state.pg_map.pgs;
        let unknown = pgs.values().filter(|s| s.state == PgState(0)).count();
        if unknown > 0 {
            return Err(Refusal::new(
                Errno::EAGAIN,
                format!("{unknown} pgs have unknown state; cannot draw any conclusions"),
            ));
        }
        let all_clean =
            pgs.values().all(|s| s.state.has(PgState::ACTIVE) && s.state.has(PgState::CLEAN));
        let mut out = Safety::default();
        for o in named {
            let mapped = pgs.values().filter(|s| s.acting.contains(o) || s.up.contains(o)).count();
            match cx.state.pg_map.osds.get(o) {
                _ if !cx.map.exists(*o) => out.safe.insert(*o),
                _ if mapped > 0 => {
                    out.mapped += mapped;
                    out.active.insert(*o)
                }
                None if !all_clean => out.missing.insert(*o),
                Some(_) if !all_clean && !cx.map.is_up(*o) => out.missing.insert(*o),
                Some(r) if !all_clean && r.stat.num_pgs > 0 => out.stored.insert(*o),
                _ => out.safe.insert(*o),
            };
        }
        Ok(out)
    }

    fn safe_text(osds: &BTreeSet<OsdId>) -> String {
        format!("OSD(s) {} are safe to destroy without reducing data durability.", join(osds))
    }

    /// Why not all OSDs can go.
    fn check(&self) -> Result<(), Refusal> {
        if self.active.is_empty() && self.missing.is_empty() && self.stored.is_empty() {
            return Ok(());
        }
        let mut why = String::new();
        if !self.safe.is_empty() {
            why += &format!("{} ", Self::safe_text(&self.safe));
        }
        if !self.active.is_empty() {
            why += &format!(
                "OSD(s) {} have {} pgs currently mapped to them. ",
                join(&self.active),
                self.mapped
            );
        }
        if !self.missing.is_empty() {
            why += &format!(
                "OSD(s) {} have no reported stats, and not all PGs are active+clean; we cannot draw any conclusions. ",
                join(&self.missing)
            );
        }
        if !self.stored.is_empty() {
            why += &format!(
                "OSD(s) {} last reported they still store some PG data, and not all PGs are active+clean; we cannot be sure they aren't still needed.",
                join(&self.stored)
            );
        }
        let errno = if self.active.is_empty() && self.stored.is_empty() {
            Errno::EAGAIN
        } else {
            Errno::EBUSY
        };
        Err(Refusal::new(errno, why))
    }
}

fn safe_to_destroy(cx: &Context<'_>) -> Answer {
    let named = ids(cx)?;
    let safety = Safety::of(cx, &named)?;
    if cx.format != Format::Plain {
        let numbers = |s: &BTreeSet<OsdId>| s.iter().map(|o| o.0).collect::<Vec<_>>();
        let report = json!({"safe_to_destroy": numbers(&safety.safe), "active": numbers(&safety.active),
            "missing_stats": numbers(&safety.missing), "stored_pgs": numbers(&safety.stored)});
        return Ok(Reply::data(cx.format.json(&report)));
    }
    safety.check()?;
    Ok(Reply::status(Safety::safe_text(&named)))
}

/// `osd destroy` and `osd purge`: the monitors do it, if nothing is lost by it or the caller
/// insists.
fn destroy(cx: &Context<'_>) -> Result<Value, Refusal> {
    let text = cx.args.strs("id").join(" ");
    let id = text.strip_prefix("osd.").unwrap_or(&text).parse::<i32>().ok().filter(|n| *n >= 0);
    let Some(id) = id else { return Err(Refusal::invalid("must specify OSD id")) };
    let insists = cx.args.flag("force") || cx.args.flag("yes_i_really_mean_it");
    let named = BTreeSet::from([OsdId(id)]);
    if let Err(mut refusal) = Safety::of(cx, &named).and_then(|s| s.check())
        && !insists
    {
        refusal.message += "\nYou can proceed by passing --force, but be warned that this will likely mean real, permanent data loss.";
        return Err(refusal);
    }
    Ok(
        json!({"prefix": format!("{}-actual", cx.args.prefix()), "id": id, "yes_i_really_mean_it": true}),
    )
}

fn status(cx: &Context<'_>) -> Answer {
    let map = &cx.state.pg_map;
    let host = |id: OsdId| {
        cx.map
            .crush
            .full_location(id.0)
            .into_iter()
            .find(|(k, _)| k == "host")
            .map(|(_, v)| v)
            .unwrap_or_default()
    };
    let wanted = |id: OsdId| {
        cx.args
            .str("bucket")
            .is_none_or(|b| cx.map.crush.full_location(id.0).iter().any(|(_, v)| v == b))
    };
    let states = |id: OsdId| {
        let mut s = vec![];
        if cx.map.exists(id) {
            s.push("exists");
        }
        s.push(if cx.map.is_up(id) { "up" } else { "down" });
        s.join(",")
    };
    let rows: Vec<_> = cx
        .map
        .osd_ids()
        .into_iter()
        .filter(|o| wanted(*o))
        .map(|o| (o, map.osds.get(&o).map(|r| r.stat.statfs).unwrap_or_default()))
        .collect();
    Ok(cx.format.reply(
        || {
            let v: Vec<Value> = rows
                .iter()
                .map(|(o, fs)| {
                    json!({"id": o.0, "host name": host(*o), "kb used": fs.used_raw() >> 10, "kb available": fs.available >> 10,
                        "write ops rate": 0, "write byte rate": 0, "read ops rate": 0, "read byte rate": 0, "state": states(*o).split(',').collect::<Vec<_>>()})
                })
                .collect();
            json!({"OSDs": v})
        },
        || {
            let mut t = Table::new();
            t.right(&["ID", "HOST", "USED", "AVAIL", "STATE"]);
            for (o, fs) in &rows {
                t.row([o.0.to_string(), host(*o), bytes(fs.used_raw()), bytes(fs.available), states(*o)]);
            }
            t.to_string()
        },
    ))
}
