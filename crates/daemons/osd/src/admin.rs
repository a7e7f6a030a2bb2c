//! Commands to one OSD: `ceph tell osd.N COMMAND`, `ceph daemon osd.N COMMAND`.

use crate::core::Core;
use crate::host::PgHost;
use crate::stats;
use crate::{admin_query, admin_unfound};
use command::{Args, Command, Format, Refusal, Reply, Shape, Signature, descriptions, flags};
use conf::Config;
use conf::effective::Source;
use serde_json::{Map, Value, json};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use store::{Transaction, WriteHint};
use types::stats::{PingTimes, U32x3};
use types::{Dump, Epoch, Errno, Fsid, OsdId, PgId, Utime};

/// What commands act on.
pub struct Admin {
    /// The OSD.
    pub core: Rc<Core>,
    /// Its configuration.
    pub conf: Rc<RefCell<Config>>,
    /// The cluster.
    pub cluster: Fsid,
    /// The OSD's own id.
    pub osd_fsid: Fsid,
    /// Called when the configuration has changed.
    pub changed: Box<dyn Fn()>,
    /// How long pings of other OSDs take.
    pub ping_times: Box<dyn Fn() -> BTreeMap<OsdId, PingTimes>>,
    /// Oldest map kept.
    pub oldest_map: Box<dyn Fn() -> Epoch>,
    /// Booting, active or stopping.
    pub state: Box<dyn Fn() -> &'static str>,
}

/// How a command is run.
pub enum Run {
    /// At once.
    Now(fn(&Admin, &Args) -> Result<Reply, Refusal>),
    /// Writes to the store and takes its time.
    Bench,
    /// Waits until unfound objects are given up everywhere.
    MarkUnfoundLost,
}

macro_rules! commands {
    ($($signature:literal, $help:literal, $perm:literal, $run:expr;)*) => {
        /// All commands.
        pub const COMMANDS: &[Command<Run>] = &[
            $(Command {
                signature: $signature,
                help: $help,
                module: "osd",
                perm: $perm,
                flags: flags::NONE,
                handler: $run,
            },)*
        ];
    };
}

commands! {
    "get_command_descriptions", "list available commands", "r", Run::Now(describe);
    "help", "list available commands", "r", Run::Now(help);
    "version", "report version of OSD", "r", Run::Now(version);
    "git_version", "get git sha1", "r", Run::Now(git_version);
    "status", "high-level status of OSD", "r", Run::Now(status);
    "config show", "dump current config settings", "r", Run::Now(config_show);
    "config diff", "dump diff of current config and default config", "r", Run::Now(config_diff);
    "config get name=var,type=CephString", "config get <field>: get the config value", "r", Run::Now(config_get);
    "config set name=var,type=CephString name=val,type=CephString,n=N",
        "config set <field> <val> [<val> ...]: set a config variable", "rw", Run::Now(config_set);
    "config unset name=var,type=CephString", "config unset <field>: unset a config variable", "rw",
        Run::Now(config_unset);
    "injectargs name=injected_args,type=CephString,n=N", "inject configuration arguments into running OSD", "rw",
        Run::Now(injectargs);
    "perf dump name=logger,type=CephString,req=false name=counter,type=CephString,req=false",
        "dump perfcounters value", "r", Run::Now(perf_dump);
    "perf schema", "dump perfcounters schema", "r", Run::Now(perf_schema);
    "perf reset name=var,type=CephString", "perf reset <name>: perf reset all or one perfcounter name", "rw",
        Run::Now(perf_reset);
    "ops", "show the ops currently in flight", "r", Run::Now(ops_in_flight);
    "dump_ops_in_flight", "show the ops currently in flight", "r", Run::Now(ops_in_flight);
    "dump_blocked_ops", "show the blocked ops currently in flight", "r", Run::Now(blocked_ops);
    "dump_historic_ops", "show recent ops", "r", Run::Now(historic_ops);
    "dump_historic_ops_by_duration", "show slowest recent ops, sorted by duration", "r",
        Run::Now(historic_ops_by_duration);
    "dump_historic_slow_ops", "show slowest recent ops", "r", Run::Now(historic_slow_ops);
    "dump_op_pq_state name=tenants,type=CephInt,req=false", "dump op queue state", "r", Run::Now(queue_state);
    "dump_qos", "dump what classes and tenants are promised, ask for and are served", "r", Run::Now(dump_qos);
    "dump_osd_network name=value,type=CephInt,req=false", "Dump osd heartbeat network ping times", "r", Run::Now(dump_osd_network);
    "dump_watchers", "show clients which have active watches, and on which objects", "r", Run::Now(dump_watchers);
    "list_pgs", "list placement groups of this OSD", "r", Run::Now(list_pgs);
    "query name=pgid,type=CephPgid,req=false", "show details of a specific pg", "r", Run::Now(admin_query::query);
    "list_unfound name=pgid,type=CephPgid,req=false name=offset,type=CephString,req=false",
        "list unfound objects on this pg, perhaps starting at an offset given in JSON", "r", Run::Now(admin_unfound::list_unfound);
    "list_missing name=pgid,type=CephPgid,req=false name=offset,type=CephString,req=false",
        "list missing objects on this pg, perhaps starting at an offset given in JSON", "r", Run::Now(admin_unfound::list_missing);
    "mark_unfound_lost name=pgid,type=CephPgid,req=false name=mulcmd,type=CephChoices,strings=revert|delete",
        "mark all unfound objects in this pg as lost, either removing or reverting to a prior version if one is available", "rw",
        Run::MarkUnfoundLost;
    "pg name=pgid,type=CephPgid name=cmd,type=CephChoices,strings=query", "show details of a specific pg", "r",
        Run::Now(admin_query::query);
    "pg name=pgid,type=CephPgid name=cmd,type=CephChoices,strings=list_unfound name=offset,type=CephString,req=false",
        "list unfound objects on this pg, perhaps starting at an offset given in JSON", "r", Run::Now(admin_unfound::list_unfound);
    "pg name=pgid,type=CephPgid name=cmd,type=CephChoices,strings=list_missing name=offset,type=CephString,req=false",
        "list missing objects on this pg, perhaps starting at an offset given in JSON", "r", Run::Now(admin_unfound::list_missing);
    "pg name=pgid,type=CephPgid name=cmd,type=CephChoices,strings=mark_unfound_lost name=mulcmd,type=CephChoices,strings=revert|delete",
        "mark all unfound objects in this pg as lost, either removing or reverting to a prior version if one is available", "rw",
        Run::MarkUnfoundLost;
    "dump_osd_statfs", "space of the store", "r", Run::Now(dump_statfs);
    "dump_store_memory", "memory that the store may use, and what it keeps", "r", Run::Now(dump_store_memory);
    "clear_shards_repaired name=count,type=CephInt,req=false", "clear num_shards_repaired to clear health warning", "rw",
        Run::Now(clear_shards_repaired);
    "dump_scrubs", "show scrubs that go on here, and those that were asked for", "r", Run::Now(dump_scrubs);
    "bench name=count,type=CephInt,req=false name=size,type=CephInt,req=false name=object_size,type=CephInt,req=false name=object_num,type=CephInt,req=false",
        "OSD benchmark: write <count> <size>-byte objects(with <obj_size> <obj_num>), (default count=1G default size=4MB). Results in log.",
        "rw", Run::Bench;
}

/// Return code, status, output.
pub type Answer = (i32, String, Vec<u8>);

impl Admin {
    /// Runs a command, a JSON object with `prefix`.
    pub async fn run(&self, json: &str) -> Answer {
        match self.try_run(json).await {
            Ok(r) => (0, r.status, r.data.to_vec()),
            Err(r) => (r.errno.as_result(), r.message, r.data.to_vec()),
        }
    }

    async fn try_run(&self, json: &str) -> Result<Reply, Refusal> {
        let args = Args::parse(&[json]).map_err(|e| Refusal::invalid(e.to_string()))?;
        let shape = Shape::of(&args)?;
        self.run_parsed(&args).await.map(|reply| shape.apply(reply))
    }

    async fn run_parsed(&self, args: &Args) -> Result<Reply, Refusal> {
        let prefix = args.prefix();
        // Several commands may begin alike.
        let mut refused = None;
        for command in COMMANDS.iter().filter(|c| c.prefix() == prefix) {
            if let Err(e) = args.validate(&Signature::parse(command.signature)) {
                refused.get_or_insert(Refusal::invalid(e.to_string()));
                continue;
            }
            return match command.handler {
                Run::Now(f) => f(self, args),
                Run::Bench => bench(self, args).await,
                Run::MarkUnfoundLost => admin_unfound::mark_unfound_lost(self, args).await,
            };
        }
        Err(refused.unwrap_or_else(|| {
            Refusal::invalid(format!(
                "unrecognized command '{prefix}'; 'help' lists those that exist"
            ))
        }))
    }

    pub(crate) fn host(&self, args: &Args) -> Result<Rc<PgHost>, Refusal> {
        let text = args.str("pgid").ok_or_else(|| Refusal::invalid("no pgid specified"))?;
        let pgid: PgId = text
            .parse()
            .map_err(|_| Refusal::invalid(format!("{text} is not a placement group")))?;
        self.core
            .any_copy(pgid)
            .ok_or_else(|| Refusal::new(Errno::ENOENT, format!("i don't have pgid {pgid}")))
    }

    /// The group that the command is about, if this OSD leads it.
    pub(crate) fn primary(&self, args: &Args) -> Result<Rc<PgHost>, Refusal> {
        let host = self.host(args)?;
        match host.with_pg(|pg| pg.is_primary()) {
            true => Ok(host),
            false => {
                Err(Refusal::new(Errno::EAGAIN, format!("not primary for pgid {}", host.pgid)))
            }
        }
    }
}

/// JSON, indented unless asked otherwise.
pub(crate) fn reply(args: &Args, value: Value) -> Result<Reply, Refusal> {
    Ok(Reply::data(Format::of(args).json(&value)))
}

fn describe(_: &Admin, _: &Args) -> Result<Reply, Refusal> {
    Ok(Reply::data(Format::Json.json(&descriptions([COMMANDS], true))))
}

fn help(_: &Admin, args: &Args) -> Result<Reply, Refusal> {
    let all: Map<String, Value> =
        COMMANDS.iter().map(|c| (c.prefix().to_owned(), Value::from(c.help))).collect();
    reply(args, Value::Object(all))
}

fn version(_: &Admin, args: &Args) -> Result<Reply, Refusal> {
    use types::version::{LONG, RELEASE, SHORT};
    reply(
        args,
        json!({"version": SHORT, "release": RELEASE, "release_type": "stable", "long": LONG}),
    )
}

fn git_version(_: &Admin, args: &Args) -> Result<Reply, Refusal> {
    reply(args, json!({"git_version": env!("CARGO_PKG_VERSION")}))
}

fn status(a: &Admin, args: &Args) -> Result<Reply, Refusal> {
    reply(
        args,
        json!({
            "cluster_fsid": a.cluster.to_string(),
            "osd_fsid": a.osd_fsid.to_string(),
            "whoami": a.core.whoami.0,
            "state": (a.state)(),
            "oldest_map": (a.oldest_map)().0,
            "newest_map": a.core.epoch().0,
            "num_pgs": a.core.hosts().len(),
        }),
    )
}

fn config_show(a: &Admin, args: &Args) -> Result<Reply, Refusal> {
    let c = a.conf.borrow();
    let all: Map<String, Value> = conf::schema::all()
        .into_iter()
        .filter_map(|o| {
            Some((o.name.to_owned(), Value::from(c.lookup(o.name).ok()?.0.to_string())))
        })
        .collect();
    reply(args, Value::Object(all))
}

fn config_diff(a: &Admin, args: &Args) -> Result<Reply, Refusal> {
    let c = a.conf.borrow();
    let mut diff = Map::new();
    for (name, source, value) in c.changed() {
        let default = conf::find(name).map(|o| o.default_value().to_string()).unwrap_or_default();
        diff.insert(
            name.into(),
            json!({"default": default, source.name(): value.clone(), "final": value}),
        );
    }
    reply(args, json!({"diff": diff}))
}

fn unknown(e: conf::ConfError) -> Refusal {
    let errno =
        if matches!(e, conf::ConfError::Unknown(_)) { Errno::ENOENT } else { Errno::EINVAL };
    Refusal::new(errno, e.to_string())
}

fn config_get(a: &Admin, args: &Args) -> Result<Reply, Refusal> {
    let name = args.req("var");
    let (value, _) = a.conf.borrow().lookup(name).map_err(unknown)?;
    reply(args, json!({name: value.to_string()}))
}

/// Refuses reservations that are more than an OSD has, with what holds already.
fn fits(a: &Admin, news: &[(String, String)]) -> Result<(), Refusal> {
    if !news.iter().any(|(name, _)| conf::mclock::reserves(name)) {
        return Ok(());
    }
    let mut after = a.conf.borrow().clone();
    for (name, value) in news {
        after.set(Source::Override, name, value).map_err(unknown)?;
    }
    match conf::mclock::overcommitted(|name| Some(after.f64(name))) {
        Some(sum) => Err(Refusal::invalid(sum)),
        None => Ok(()),
    }
}

fn config_set(a: &Admin, args: &Args) -> Result<Reply, Refusal> {
    let name = args.req("var");
    let value = args.strs("val").join(" ");
    fits(a, &[(name.to_owned(), value.clone())])?;
    a.conf.borrow_mut().set(Source::Override, name, &value).map_err(unknown)?;
    (a.changed)();
    reply(args, json!({"success": format!("{name} = '{value}' ")}))
}

fn config_unset(a: &Admin, args: &Args) -> Result<Reply, Refusal> {
    let name = args.req("var");
    a.conf.borrow_mut().unset(Source::Override, name).map_err(unknown)?;
    (a.changed)();
    reply(args, json!({"success": format!("{name} = '' ")}))
}

fn injectargs(a: &Admin, args: &Args) -> Result<Reply, Refusal> {
    // All or nothing.
    let set = Config::injected(&args.strs("injected_args").join(" ")).map_err(unknown)?;
    fits(a, &set)?;
    let mut said = String::new();
    for (name, value) in &set {
        a.conf.borrow_mut().set(Source::Override, name, value).map_err(unknown)?;
        said.push_str(&format!("{name} = '{value}' "));
    }
    (a.changed)();
    Ok(Reply::status(said))
}

fn perf_dump(a: &Admin, args: &Args) -> Result<Reply, Refusal> {
    a.core.update_gauges();
    let mut counters = a.core.perf.dump();
    if let Some(one) = args.str("counter") {
        counters.retain(|k, _| k == one);
    }
    let mut all = Map::new();
    if args.str("logger").is_none_or(|l| l == "osd") {
        all.insert("osd".into(), Value::Object(counters));
    }
    reply(args, Value::Object(all))
}

fn perf_schema(a: &Admin, args: &Args) -> Result<Reply, Refusal> {
    reply(args, json!({"osd": a.core.perf.schema()}))
}

fn perf_reset(a: &Admin, args: &Args) -> Result<Reply, Refusal> {
    let which = args.req("var");
    if which != "all" && which != "osd" {
        return reply(args, json!({"error": format!("Not find: {which}")}));
    }
    a.core.perf.reset();
    reply(args, json!({"success": format!("perf reset {which}")}))
}

fn ops_in_flight(a: &Admin, args: &Args) -> Result<Reply, Refusal> {
    reply(args, a.core.tracker.dump_in_flight(false))
}

fn blocked_ops(a: &Admin, args: &Args) -> Result<Reply, Refusal> {
    reply(args, a.core.tracker.dump_in_flight(true))
}

fn historic_ops(a: &Admin, args: &Args) -> Result<Reply, Refusal> {
    reply(args, a.core.tracker.dump_historic(false))
}

fn historic_ops_by_duration(a: &Admin, args: &Args) -> Result<Reply, Refusal> {
    reply(args, a.core.tracker.dump_historic(true))
}

fn historic_slow_ops(a: &Admin, args: &Args) -> Result<Reply, Refusal> {
    reply(args, a.core.tracker.dump_slow())
}

fn queue_state(a: &Admin, args: &Args) -> Result<Reply, Refusal> {
    let map = a.core.map();
    let pool_name = |id| Some(map.as_ref()?.pool_ops(id)?.name.clone());
    let most =
        usize::try_from(args.int("tenants").unwrap_or(TENANTS)).unwrap_or(0).min(TENANTS_MAX);
    let now = std::time::Instant::now();
    let (name, len, mut dump, shard) = a
        .core
        .with_queue(|q| (q.name(), q.len(), q.dump(&|_| None), q.state(most, &pool_name, now)));
    let (capacity, costs) = capacity_and_costs(a, &mut dump);
    reply(
        args,
        json!({"scheduler": name, "queued": len, "running": a.core.running(), "capacity": capacity, "costs": costs, SHARD: shard}),
    )
}

/// Ceph's name for the queue of an OSD's first shard; there is one here.
const SHARD: &str = "OSD:ShardedOpWQ:0";
/// So many tenants of a class are shown, ...
const TENANTS: i64 = 16;
/// ... or as many as are asked for, up to this.
const TENANTS_MAX: usize = 1024;

/// What the scheduler goes by, with what was learned, from the scheduler's dump.
fn capacity_and_costs(a: &Admin, dump: &mut Value) -> (Value, Value) {
    let (learned, costs) = a.core.admission.with_meter(|m| m.dump());
    let mut capacity = dump["capacity"].take();
    if let (Some(all), Value::Object(learned)) = (capacity.as_object_mut(), learned) {
        all.extend(learned);
    }
    (capacity, costs)
}

/// Ping times of at least a threshold in milliseconds, the longest first (Ceph:
/// `OSD::asok_command`, `dump_osd_network`).
fn dump_osd_network(a: &Admin, args: &Args) -> Result<Reply, Refusal> {
    let conf = a.conf.borrow();
    let threshold = match (args.int("value"), conf.f64("mon_warn_on_slow_ping_time")) {
        (Some(ms), _) => u64::try_from(ms).unwrap_or(0).saturating_mul(1000),
        (None, 0.0) => {
            (conf.u64("osd_heartbeat_grace") as f64
                * 1_000_000.0
                * conf.f64("mon_warn_on_slow_ping_ratio")) as u64
        }
        (None, ms) => (ms * 1000.0) as u64,
    };
    let stale = u32::try_from(conf.u64("osd_heartbeat_stale")).unwrap_or(u32::MAX);
    let now = crate::clock::wall_now();
    // A peer is pinged in the front network only if that is another one.
    let networks = |(to, t): (OsdId, PingTimes)| {
        let front = (t.front_pingtime != U32x3::default()).then_some((
            "front",
            t.front_pingtime,
            t.front_min,
            t.front_max,
            t.front_last,
        ));
        [Some(("back", t.back_pingtime, t.back_min, t.back_max, t.back_last)), front]
            .into_iter()
            .flatten()
            .map(move |n| (to, t.last_update, n))
    };
    let most = |of: &U32x3| of.0.max(of.1).max(of.2);
    let mut times: Vec<_> = (a.ping_times)()
        .into_iter()
        .flat_map(networks)
        .filter(|(.., n)| u64::from(most(&n.1)) >= threshold)
        .collect();
    times.sort_by_key(|(to, _, n)| std::cmp::Reverse((most(&n.1), *to)));
    let ms = |us: u32| f64::from(us) / 1000.0;
    let three = |v: U32x3| json!({"1min": ms(v.0), "5min": ms(v.1), "15min": ms(v.2)});
    let entry = |(to, updated, (network, average, min, max, last)): (
        OsdId,
        u32,
        (&str, U32x3, U32x3, U32x3, u32),
    )| {
        json!({
            "last update": Utime::new(updated, 0).ctime(),
            "stale": now.sec.saturating_sub(updated) > stale,
            "from osd": a.core.whoami.0,
            "to osd": to.0,
            "interface": network,
            "average": three(average),
            "min": three(min),
            "max": three(max),
            "last": ms(last),
        })
    };
    let entries: Vec<Value> = times.into_iter().map(entry).collect();
    reply(args, json!({"threshold": threshold / 1000, "entries": entries}))
}

fn dump_qos(a: &Admin, args: &Args) -> Result<Reply, Refusal> {
    let map = a.core.map();
    let pool_name = |id| Some(map.as_ref()?.pool_ops(id)?.name.clone());
    let mut dump = a.core.with_queue(|q| q.dump(&pool_name));
    let (capacity, costs) = capacity_and_costs(a, &mut dump);
    (dump["capacity"], dump["costs"]) = (capacity, costs);
    dump["in_flight"] = a.core.running().into();
    dump["max_in_flight"] = a.core.admission.window().into();
    dump["writes_took"] = a.core.admission.window_taken();
    dump["device"] = device(a);
    dump["thread"] = thread();
    dump["peers"] = peers(a);
    dump["replica_writes"] = a.core.perf.subop_w.get().into();
    reply(args, dump)
}

/// What the device was busy with since the OSD started.
fn device(a: &Admin) -> Value {
    let Some(usage) = a.core.store.usage() else { return Value::Null };
    let d = usage.device;
    let of = |all: &[store::dev::Served]| json!({"count": all.iter().map(|s| s.count).sum::<u64>(), "ns": all.iter().map(|s| s.nanos).sum::<u64>()});
    json!({"busy_ns": d.busy, "reads": of(&d.reads), "writes": of(&d.writes)})
}

/// What the thread of this OSD, and of others on it, had of the processor, and how long it waited
/// for one.
fn thread() -> Value {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let mut numbers = text.split_whitespace().map_while(|n| n.parse::<u64>().ok());
    match (numbers.next(), numbers.next()) {
        (Some(cpu), Some(waited)) => json!({"cpu_ns": cpu, "waited_ns": waited}),
        _ => Value::Null,
    }
}

/// How long other OSDs take for copies of what this one leads, and for pings.
fn peers(a: &Admin) -> Value {
    let mut all = a.core.admission.peers.borrow().dump();
    for (osd, t) in (a.ping_times)() {
        let way = |average: U32x3, last: u32| json!({"1min_us": average.0, "last_us": last});
        let peer = all.entry(osd.0.to_string()).or_insert_with(|| json!({}));
        peer["ping"] = json!({"back": way(t.back_pingtime, t.back_last)});
        if t.front_pingtime != U32x3::default() {
            peer["ping"]["front"] = way(t.front_pingtime, t.front_last);
        }
    }
    Value::Object(all)
}

fn dump_watchers(a: &Admin, args: &Args) -> Result<Reply, Refusal> {
    let mut hosts = a.core.hosts();
    hosts.sort_by_key(|h| h.pgid);
    let watches: Vec<Value> = hosts
        .iter()
        .flat_map(|h| h.watches())
        .map(|row| {
            json!({
                "namespace": String::from_utf8_lossy(&row.oid.namespace),
                "object": String::from_utf8_lossy(&row.oid.name),
                "entity_name": row.watcher.1.dump(),
                "cookie": row.watcher.0,
                "timeout": row.timeout,
                "entity_addr_t": row.addr.dump(),
            })
        })
        .collect();
    reply(args, Value::Array(watches))
}

fn list_pgs(a: &Admin, args: &Args) -> Result<Reply, Refusal> {
    let mut hosts = a.core.hosts();
    hosts.sort_by_key(|h| h.pgid);
    let pgs: Vec<Value> = hosts
        .iter()
        .map(|h| {
            h.with_pg(|pg| {
                json!({
                    "pgid": h.pgid.to_string(),
                    "state": types::PgState(pg.state().0).to_string(),
                    "phase": pg.phase_name(),
                    "primary": pg.is_primary(),
                    "acting": pg.mapping().acting.slots().iter().map(|o| o.0).collect::<Vec<_>>(),
                    "last_update": pg.info().last_update.to_string(),
                    "objects": pg.info().stats.num_objects,
                    "missing": pg.missing().len(),
                })
            })
        })
        .collect();
    reply(args, Value::Array(pgs))
}

fn clear_shards_repaired(a: &Admin, args: &Args) -> Result<Reply, Refusal> {
    let count = args.int("count").unwrap_or(0);
    let count = u64::try_from(count)
        .map_err(|_| Refusal::invalid("'count' must not be negative".to_string()))?;
    a.core.set_shards_repaired(count);
    Ok(Reply::empty())
}

fn dump_scrubs(a: &Admin, args: &Args) -> Result<Reply, Refusal> {
    let (own, others) = a.core.scrubbing_groups();
    let wanted: Vec<Value> = a
        .core
        .wanted_scrubs()
        .into_iter()
        .map(|(pgid, kind)| json!({"pgid": pgid.to_string(), "kind": kind.name(), "forced": true}))
        .collect();
    reply(args, json!({"scrubs_local": own, "scrubs_remote": others, "scrubs": wanted}))
}

fn dump_statfs(a: &Admin, args: &Args) -> Result<Reply, Refusal> {
    reply(args, stats::statfs(&a.core).dump())
}

fn dump_store_memory(a: &Admin, args: &Args) -> Result<Reply, Refusal> {
    let budgets = a.core.store.budgets().map(|b| {
        json!({"data_cache": b.data_cache, "onode_cache": b.onode_cache, "node_cache": b.node_cache, "dirty_max": b.dirty_max})
    });
    reply(args, json!({"budgets": budgets, "cached": a.core.store.statfs().cached}))
}

/// Bounds of `bench` (`osd_bench_max_block_size`, and what a test may write at all).
const BENCH_BLOCK_MAX: i64 = 64 << 20;
const BENCH_BYTES_MAX: i64 = 4 << 30;

async fn bench(a: &Admin, args: &Args) -> Result<Reply, Refusal> {
    let count = args.int("count").unwrap_or(1 << 30);
    let size = args.int("size").unwrap_or(4 << 20);
    if !(1..=BENCH_BLOCK_MAX).contains(&size) {
        return Err(Refusal::invalid(format!(
            "block 'size' values are capped at {BENCH_BLOCK_MAX} bytes"
        )));
    }
    if !(size..=BENCH_BYTES_MAX).contains(&count) {
        return Err(Refusal::invalid(format!(
            "'count' must be between 'size' and {BENCH_BYTES_MAX} bytes"
        )));
    }
    let store = &a.core.store;
    let error = |e: store::StoreError| Refusal::new(Errno(e.errno()), e.to_string());
    let data = bytes::Bytes::from(vec![0x5a; size as usize]);
    let key = |i: i64| bytes::Bytes::from(format!("bench_{i}"));
    let coll = crate::superblock::OWN;
    let begin = std::time::Instant::now();
    let n = count / size;
    for i in 0..n {
        store.admit().await.map_err(error)?;
        let mut t = Transaction::new();
        t.write(coll, &key(i), 0, data.clone(), WriteHint::DontNeed);
        store.submit(t).map_err(error)?;
    }
    store.last_commit().await.map_err(error)?;
    let elapsed = begin.elapsed().as_secs_f64();
    for i in 0..n {
        let mut t = Transaction::new();
        t.remove(coll, &key(i));
        store.admit().await.map_err(error)?;
        store.submit(t).map_err(error)?;
    }
    let bytes = n * size;
    reply(
        args,
        json!({
            "bytes_written": bytes,
            "blocksize": size,
            "elapsed_sec": elapsed,
            "bytes_per_sec": bytes as f64 / elapsed.max(1e-9),
            "iops": n as f64 / elapsed.max(1e-9),
        }),
    )
}
