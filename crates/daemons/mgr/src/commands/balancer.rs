//! `ceph balancer ...` (Ceph 16.2: `src/pybind/mgr/balancer/module.py`) and `ceph osd
//! reweight-by-*`.

use super::{Answer, Context, Entry, Ordered, Run, json, read, text};
use crate::balancer::{self, Plan};
use command::{Command, Format, Refusal, Reply, flags};
use placement::eval::Evaluation;
use placement::reweight::{self, Order};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use types::PoolId;
use types::errno::Errno;

const fn ordering(
    signature: &'static str,
    help: &'static str,
    perm: &'static str,
    handler: fn(&Context<'_>) -> Result<Ordered, Refusal>,
) -> Entry {
    let module = "mgr";
    Command { signature, help, module, perm, flags: flags::MGR, handler: Run::Order(handler) }
}

const fn reweighting(signature: &'static str, help: &'static str, perm: &'static str) -> Entry {
    let (module, flags) = ("osd", flags::MGR);
    Command { signature, help, module, perm, flags, handler: Run::Order(reweight_by) }
}

pub(super) const COMMANDS: &[Entry] = &[
    read("balancer status", "Show balancer status", "mgr", status),
    ordering(
        "balancer mode name=mode,type=CephChoices,strings=none|crush-compat|upmap|read|upmap-read",
        "Set balancer mode; crush-compat is not there",
        "rw",
        mode,
    ),
    ordering("balancer on", "Enable automatic balancing", "rw", |cx| switch(cx, true)),
    ordering("balancer off", "Disable automatic balancing", "rw", |cx| switch(cx, false)),
    read("balancer pool ls", "List automatic balancing pools; none means all", "mgr", pool_ls),
    ordering(
        "balancer pool add name=pools,type=CephString,n=N",
        "Enable automatic balancing for specific pools",
        "rw",
        pool_add,
    ),
    ordering(
        "balancer pool rm name=pools,type=CephString,n=N",
        "Disable automatic balancing for specific pools",
        "rw",
        pool_rm,
    ),
    read(
        "balancer eval name=option,type=CephString,req=false",
        "Evaluate data distribution for the current cluster or specific pool or specific plan",
        "mgr",
        |cx| eval(cx, false),
    ),
    read(
        "balancer eval-verbose name=option,type=CephString,req=false",
        "Evaluate data distribution for the current cluster or specific pool or specific plan (verbosely)",
        "mgr",
        |cx| eval(cx, true),
    ),
    ordering(
        "balancer optimize name=plan,type=CephString name=pools,type=CephString,n=N,req=false",
        "Run optimizer to create a new plan",
        "rw",
        optimize,
    ),
    read(
        "balancer show name=plan,type=CephString",
        "Show details of an optimization plan",
        "mgr",
        |cx| text(plan(cx)?.show()),
    ),
    read("balancer dump name=plan,type=CephString", "Show an optimization plan", "mgr", |cx| {
        json(cx, &plan(cx)?.dump())
    }),
    ordering("balancer rm name=plan,type=CephString", "Discard an optimization plan", "rw", |cx| {
        cx.state.balancer.borrow_mut().plans.remove(cx.args.req("plan"));
        Ok(Ordered::default())
    }),
    ordering("balancer reset", "Discard all optimization plans", "rw", |cx| {
        cx.state.balancer.borrow_mut().plans.clear();
        Ok(Ordered::default())
    }),
    read("balancer ls", "List all plans", "mgr", |cx| {
        json(cx, &json!(cx.state.balancer.borrow().plans.keys().collect::<Vec<_>>()))
    }),
    ordering(
        "balancer execute name=plan,type=CephString",
        "Execute an optimization plan",
        "rw",
        execute,
    ),
    reweighting(
        "osd reweight-by-utilization name=oload,type=CephInt,req=false name=max_change,type=CephFloat,req=false name=max_osds,type=CephInt,req=false name=no_increasing,type=CephChoices,strings=--no-increasing,req=false",
        "reweight OSDs by utilization [overload-percentage-for-consideration, default 120]",
        "rw",
    ),
    reweighting(
        "osd test-reweight-by-utilization name=oload,type=CephInt,req=false name=max_change,type=CephFloat,req=false name=max_osds,type=CephInt,req=false name=no_increasing,type=CephBool,req=false",
        "dry run of reweight OSDs by utilization [overload-percentage-for-consideration, default 120]",
        "r",
    ),
    reweighting(
        "osd reweight-by-pg name=oload,type=CephInt,req=false name=max_change,type=CephFloat,req=false name=max_osds,type=CephInt,req=false name=pools,type=CephPoolname,n=N,req=false",
        "reweight OSDs by PG distribution [overload-percentage-for-consideration, default 120]",
        "rw",
    ),
    reweighting(
        "osd test-reweight-by-pg name=oload,type=CephInt,req=false name=max_change,type=CephFloat,req=false name=max_osds,type=CephInt,req=false name=pools,type=CephPoolname,n=N,req=false",
        "dry run of reweight OSDs by PG distribution [overload-percentage-for-consideration, default 120]",
        "r",
    ),
];

/// A setting that the monitors are to keep.
fn setting(name: &str, value: &str) -> Value {
    let name = format!("mgr/balancer/{name}");
    json!({"prefix": "config set", "who": "mgr", "name": name, "value": value})
}

fn status(cx: &Context<'_>) -> Answer {
    json(cx, &cx.state.balancer.borrow().status())
}

fn mode(cx: &Context<'_>) -> Result<Ordered, Refusal> {
    let mode = cx.args.req("mode");
    match mode {
        "crush-compat" => {
            return Err(Refusal::unsupported(
                "the balancer has no mode crush-compat: it makes no weight sets; use upmap, or \
                 change weight sets with ceph osd crush weight-set",
            ));
        }
        _ => balancer::clients_know(cx.map, mode)?,
    }
    cx.state.balancer.borrow_mut().settings.mode = mode.to_owned();
    Ok(Ordered { orders: vec![setting("mode", mode)], reply: Reply::empty() })
}

fn switch(cx: &Context<'_>, on: bool) -> Result<Ordered, Refusal> {
    let settings = &mut cx.state.balancer.borrow_mut().settings;
    let known = std::mem::replace(&mut settings.active, on) == on;
    let order = setting("active", if on { "true" } else { "false" });
    Ok(Ordered { orders: if known { Vec::new() } else { vec![order] }, reply: Reply::empty() })
}

fn name(cx: &Context<'_>, pool: PoolId) -> Option<String> {
    cx.map.pool_names.get(&pool).cloned()
}

fn pool_ls(cx: &Context<'_>) -> Answer {
    let pools = cx.state.balancer.borrow().settings.pools.clone();
    if pools.is_empty() {
        return Ok(Reply::empty());
    }
    let names: BTreeSet<String> = pools.into_iter().filter_map(|p| name(cx, p)).collect();
    json(cx, &json!(names))
}

/// A list as Python prints it.
fn python_list(names: &[String]) -> String {
    let quoted: Vec<String> = names.iter().map(|n| format!("'{n}'")).collect();
    format!("[{}]", quoted.join(", "))
}

/// The pools of these names, and the names that are of no pool.
fn pools(cx: &Context<'_>, names: &[String]) -> (Vec<PoolId>, Vec<String>) {
    let known: Vec<PoolId> = names.iter().filter_map(|n| cx.map.pool_by_name(n)).collect();
    let unknown = names.iter().filter(|n| cx.map.pool_by_name(n).is_none()).cloned().collect();
    (known, unknown)
}

fn keep_pools(cx: &Context<'_>, pools: BTreeSet<PoolId>) -> Ordered {
    let text = pools.iter().map(|p| p.0.to_string()).collect::<Vec<_>>().join(",");
    cx.state.balancer.borrow_mut().settings.pools = pools.into_iter().collect();
    Ordered { orders: vec![setting("pool_ids", &text)], reply: Reply::empty() }
}

fn pool_add(cx: &Context<'_>) -> Result<Ordered, Refusal> {
    let (known, unknown) = pools(cx, &cx.args.strs("pools"));
    if !unknown.is_empty() {
        return Err(Refusal::invalid(format!("pool(s) {} not found", python_list(&unknown))));
    }
    let before = cx.state.balancer.borrow().settings.pools.clone();
    Ok(keep_pools(cx, known.into_iter().chain(before).collect()))
}

fn pool_rm(cx: &Context<'_>) -> Result<Ordered, Refusal> {
    let (gone, _) = pools(cx, &cx.args.strs("pools"));
    let before = cx.state.balancer.borrow().settings.pools.clone();
    if before.is_empty() {
        return Ok(Ordered::default());
    }
    let stays = |p: &PoolId| !gone.contains(p) && cx.map.pool(*p).is_some();
    Ok(keep_pools(cx, before.into_iter().filter(stays).collect()))
}

fn plan(cx: &Context<'_>) -> Result<Plan, Refusal> {
    let name = cx.args.req("plan");
    cx.state
        .balancer
        .borrow()
        .plans
        .get(name)
        .cloned()
        .ok_or_else(|| Refusal::new(Errno::ENOENT, format!("plan {name} not found")))
}

fn eval(cx: &Context<'_>, verbose: bool) -> Answer {
    let stats = balancer::stats(cx.state);
    let Some(option) = cx.args.str("option") else {
        let all = Evaluation::new(cx.map, &stats, &[]);
        return text(all.show("current cluster", verbose));
    };
    let known = cx.state.balancer.borrow().plans.get(option).cloned();
    if let Some(plan) = known {
        let e = Evaluation::new(&plan.outcome(), &stats, &plan.pools);
        return text(e.show(&format!("plan \"{option}\""), verbose));
    }
    let Some(pool) = cx.map.pool_by_name(option) else {
        return Err(Refusal::invalid(format!("option \"{option}\" not a plan or a pool")));
    };
    let e = Evaluation::new(cx.map, &stats, &[pool]);
    text(e.show(&format!("pool \"{option}\""), verbose))
}

fn not_while_active(cx: &Context<'_>, what: &str) -> Result<(), Refusal> {
    match cx.state.balancer.borrow().settings.active {
        true => Err(Refusal::invalid(format!("Balancer enabled, disable to {what}"))),
        false => Ok(()),
    }
}

fn optimize(cx: &Context<'_>) -> Result<Ordered, Refusal> {
    not_while_active(cx, "optimize manually")?;
    let (known, unknown) = pools(cx, &cx.args.strs("pools"));
    if !unknown.is_empty() {
        return Err(Refusal::invalid(format!("pools {} not found", python_list(&unknown))));
    }
    let name = cx.args.req("plan");
    let began = std::time::Instant::now();
    let made = balancer::optimize(cx.state, name, known);
    let mut balancer = cx.state.balancer.borrow_mut();
    balancer.note(cx.now, began.elapsed(), &made);
    balancer.plans.insert(name.to_owned(), made?);
    Ok(Ordered::default())
}

fn execute(cx: &Context<'_>) -> Result<Ordered, Refusal> {
    not_while_active(cx, "execute a plan")?;
    let plan = plan(cx)?;
    let mut balancer = cx.state.balancer.borrow_mut();
    if let Some(job) = balancer.moves.first() {
        return Err(Refusal::new(
            Errno::EAGAIN,
            format!("The movement job {} is under way; try again later", job.id),
        ));
    }
    balancer.plans.remove(&plan.name);
    Ok(Ordered { orders: plan.orders(), reply: Reply::empty() })
}

fn reweight_by(cx: &Context<'_>) -> Result<Ordered, Refusal> {
    let prefix = cx.args.prefix();
    let names = cx.args.strs("pools");
    let (known, unknown) = pools(cx, &names);
    if let Some(pool) = unknown.first() {
        return Err(Refusal::new(Errno::ENOENT, format!("pool '{pool}' does not exist")));
    }
    let settings = cx.state.balancer.borrow().settings.clone();
    let max_change = cx.args.float("max_change").unwrap_or(settings.max_change);
    let max_osds = cx.args.int("max_osds").unwrap_or(settings.max_osds as i64);
    if max_change <= 0.0 {
        return Err(Refusal::invalid(format!("max_change {max_change} must be positive")));
    }
    if max_osds <= 0 {
        return Err(Refusal::invalid(format!("max_osds {max_osds} must be positive")));
    }
    let pgs = &cx.state.pg_map.pgs;
    let acting = || pgs.iter().map(|(pg, s)| (*pg, s.acting.clone())).collect();
    let order = Order {
        oload: cx.args.int("oload").unwrap_or(120),
        max_change,
        max_osds: max_osds as usize,
        acting: prefix.ends_with("-by-pg").then(acting),
        pools: &known,
        no_increasing: cx.args.flag("no_increasing")
            || cx.args.str("no_increasing") == Some("--no-increasing"),
        min_pgs: settings.min_pgs,
        min_bytes: settings.min_bytes,
    };
    let failed = |errno, text: String| Err(Refusal::new(errno, text + "FAILED reweight-by-pg"));
    let outcome = match reweight::reweight(cx.map, &balancer::stats(cx.state), &order) {
        Ok(outcome) => outcome,
        Err(reweight::Refused::Invalid(text)) => return failed(Errno::EINVAL, text),
        Err(reweight::Refused::TooLittle(text)) => return failed(Errno::EDOM, text),
    };
    let data = match cx.format {
        Format::Plain => outcome.text.into(),
        format => format.json(&outcome.json),
    };
    let reply = Reply::data(data);
    if prefix.starts_with("osd test-") || outcome.weights.is_empty() {
        return Ok(Ordered { orders: Vec::new(), reply: reply.with_status("no change") });
    }
    let weights: serde_json::Map<String, Value> =
        outcome.weights.iter().map(|(o, w)| (o.to_string(), json!(w))).collect();
    let weights = Value::from(weights).to_string();
    let order = json!({"prefix": "osd reweightn", "weights": weights});
    Ok(Ordered { orders: vec![order], reply })
}
