//! Commands to one OSD: `ceph tell osd.N COMMAND`, `ceph daemon osd.N COMMAND`.

use crate::admin_collect::{self, ScrubPurgedSnaps};
use crate::admin_unfound::MarkUnfoundLost;
use crate::core::Core;
use crate::shard::{NumPgs, Shard};
use crate::shard_admin::{self, Asked, Bench, Compact, DumpQos, reply};
use crate::{admin_query, admin_unfound};
use client::wall_clock;
use command::{Args, Command, Format, Refusal, Reply, Shape, Signature, descriptions, flags};
use conf::Config;
use conf::effective::Source;
use daemon_frame::commands::{self, AnswerParts, parts};
use serde_json::{Map, Value, json};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;
use types::stats::{PingTimes, U32x3};
use types::{Epoch, Errno, Fsid, OsdId, Utime};

/// How long the newest map may take.
const MAP_PATIENCE: Duration = Duration::from_secs(30);

/// Work that is waited for on this thread.
pub type LocalBoxFuture<T> = Pin<Box<dyn Future<Output = T>>>;

/// What commands act on.
pub struct Admin {
    /// The OSD's number.
    pub(crate) whoami: OsdId,
    /// Its shard.
    pub(crate) shard: Shard,
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
    /// What this OSD has asked others for as their client, and the map that it went by.
    pub requests: Box<dyn Fn() -> (Epoch, Vec<client::InFlight>)>,
    /// The oldest map kept, and the newest one.
    pub maps: Box<dyn Fn() -> (Epoch, Epoch)>,
    /// Waits until the newest map of the monitors is here.
    pub latest_map: Box<dyn Fn() -> LocalBoxFuture<Result<(), String>>>,
    /// The devices of the store, with what the system calls them.
    pub devices: Vec<(String, String)>,
    /// Reports to the mgr at once; the number of that report.
    pub flush_stats: Box<dyn Fn() -> Option<u64>>,
    /// Booting, active or stopping.
    pub state: Box<dyn Fn() -> &'static str>,
}

/// How a command is run.
pub enum Run {
    /// At once, by the daemon.
    Now(fn(&Admin, &Args) -> Result<Reply, Refusal>),
    /// By the shard.
    Shard(fn(&Core, &Args) -> Result<Reply, Refusal>),
    /// By both.
    Status,
    /// By both.
    DumpQos,
    /// Writes to the store and takes its time.
    Bench,
    /// Waits until unfound objects are given up everywhere.
    MarkUnfoundLost,
    /// Waits for a checkpoint of the store.
    Compact,
    /// Waits for the newest map.
    LatestMap,
    /// Reads the rows of all clones.
    ScrubPurgedSnaps,
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
    "status", "high-level status of OSD", "r", Run::Status;
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
        "dump perfcounters value", "r", Run::Shard(shard_admin::perf_dump);
    "perf schema", "dump perfcounters schema", "r", Run::Shard(shard_admin::perf_schema);
    "perf reset name=var,type=CephString", "perf reset <name>: perf reset all or one perfcounter name", "rw",
        Run::Shard(shard_admin::perf_reset);
    "ops", "show the ops currently in flight", "r", Run::Shard(shard_admin::ops_in_flight);
    "dump_ops_in_flight", "show the ops currently in flight", "r", Run::Shard(shard_admin::ops_in_flight);
    "dump_blocked_ops", "show the blocked ops currently in flight", "r", Run::Shard(shard_admin::blocked_ops);
    "dump_historic_ops", "show recent ops", "r", Run::Shard(shard_admin::historic_ops);
    "dump_historic_ops_by_duration", "show slowest recent ops, sorted by duration", "r",
        Run::Shard(shard_admin::historic_ops_by_duration);
    "dump_historic_slow_ops", "show slowest recent ops", "r", Run::Shard(shard_admin::historic_slow_ops);
    "dump_op_pq_state name=tenants,type=CephInt,req=false", "dump op queue state", "r", Run::Shard(shard_admin::queue_state);
    "dump_qos", "dump what classes and tenants are promised, ask for and are served", "r", Run::DumpQos;
    "dump_osd_network name=value,type=CephInt,req=false", "Dump osd heartbeat network ping times", "r", Run::Now(dump_osd_network);
    "objecter_requests", "show in-progress osd requests", "r", Run::Now(objecter_requests);
    "dump_watchers", "show clients which have active watches, and on which objects", "r", Run::Shard(shard_admin::dump_watchers);
    "list_pgs", "list placement groups of this OSD", "r", Run::Shard(shard_admin::list_pgs);
    "query name=pgid,type=CephPgid,req=false", "show details of a specific pg", "r", Run::Shard(admin_query::query);
    "list_unfound name=pgid,type=CephPgid,req=false name=offset,type=CephString,req=false",
        "list unfound objects on this pg, perhaps starting at an offset given in JSON", "r", Run::Shard(admin_unfound::list_unfound);
    "list_missing name=pgid,type=CephPgid,req=false name=offset,type=CephString,req=false",
        "list missing objects on this pg, perhaps starting at an offset given in JSON", "r", Run::Shard(admin_unfound::list_missing);
    "mark_unfound_lost name=pgid,type=CephPgid,req=false name=mulcmd,type=CephChoices,strings=revert|delete",
        "mark all unfound objects in this pg as lost, either removing or reverting to a prior version if one is available", "rw",
        Run::MarkUnfoundLost;
    "pg name=pgid,type=CephPgid name=cmd,type=CephChoices,strings=query", "show details of a specific pg", "r",
        Run::Shard(admin_query::query);
    "pg name=pgid,type=CephPgid name=cmd,type=CephChoices,strings=list_unfound name=offset,type=CephString,req=false",
        "list unfound objects on this pg, perhaps starting at an offset given in JSON", "r", Run::Shard(admin_unfound::list_unfound);
    "pg name=pgid,type=CephPgid name=cmd,type=CephChoices,strings=list_missing name=offset,type=CephString,req=false",
        "list missing objects on this pg, perhaps starting at an offset given in JSON", "r", Run::Shard(admin_unfound::list_missing);
    "pg name=pgid,type=CephPgid name=cmd,type=CephChoices,strings=mark_unfound_lost name=mulcmd,type=CephChoices,strings=revert|delete",
        "mark all unfound objects in this pg as lost, either removing or reverting to a prior version if one is available", "rw",
        Run::MarkUnfoundLost;
    "flush_pg_stats", "flush pg stats", "r", Run::Now(flush_pg_stats);
    "log flush", "flush log entries to log file", "r", Run::Now(log_flush);
    "compact", "write a checkpoint of the store, and free its log", "rw", Run::Compact;
    "get_mapped_pools", "dump pools whose PG(s) are mapped to this OSD.", "r", Run::Shard(shard_admin::get_mapped_pools);
    "dump_scrub_reservations", "show scrub reservations", "r", Run::Shard(shard_admin::dump_scrub_reservations);
    "bluestore allocator dump block", "dump allocator free regions", "r", Run::Shard(admin_collect::allocator_dump);
    "dump_objectstore_kv_stats", "print statistics of kvdb which used by bluestore", "r", Run::Shard(admin_collect::kv_stats);
    "dump_pgstate_history", "show recent state history", "r", Run::Shard(admin_collect::state_history);
    "dump_pg_recovery_stats", "dump pg recovery statistics", "r", Run::Shard(admin_collect::recovery_stats);
    "dump_recovery_reservations", "show recovery reservations", "r", Run::Shard(admin_collect::recovery_reservations);
    "perf histogram dump name=logger,type=CephString,req=false name=counter,type=CephString,req=false",
        "dump perf histogram values", "r", Run::Shard(admin_collect::no_histograms);
    "perf histogram schema", "dump perf histogram schema", "r", Run::Shard(admin_collect::no_histograms);
    "cache drop", "drop all OSD caches", "rw", Run::Shard(admin_collect::cache_drop);
    "list_devices", "list OSD devices.", "r", Run::Now(list_devices);
    "get_latest_osdmap", "force osd to update the latest map from the mon", "r", Run::LatestMap;
    "scrub_purged_snaps", "Scrub purged_snaps vs snapmapper index", "r", Run::ScrubPurgedSnaps;
    "dump_mempools", "get mempool stats", "r", Run::Shard(shard_admin::dump_mempools);
    "dump_osd_statfs", "space of the store", "r", Run::Shard(shard_admin::dump_statfs);
    "dump_store_memory", "memory that the store may use, and what it keeps", "r", Run::Shard(shard_admin::dump_store_memory);
    "clear_shards_repaired name=count,type=CephInt,req=false", "clear num_shards_repaired to clear health warning", "rw",
        Run::Shard(shard_admin::clear_shards_repaired);
    "dump_scrubs", "show scrubs that go on here, and those that were asked for", "r", Run::Shard(shard_admin::dump_scrubs);
    "bench name=count,type=CephInt,req=false name=size,type=CephInt,req=false name=object_size,type=CephInt,req=false name=object_num,type=CephInt,req=false",
        "OSD benchmark: write <count> <size>-byte objects(with <obj_size> <obj_num>), (default count=1G default size=4MB). Results in log.",
        "rw", Run::Bench;
}

impl Admin {
    /// Runs a command, a JSON object with `prefix`.
    pub async fn run(&self, json: &str) -> AnswerParts {
        parts(self.try_run(json).await)
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
                Run::Shard(run) => self.shard.ask(Asked { run, args: args.clone() }).await,
                Run::Status => self.status(args).await,
                Run::DumpQos => {
                    let pings = (self.ping_times)();
                    reply(args, self.shard.ask(DumpQos { pings }).await)
                }
                Run::Compact => self.shard.ask(Compact).await,
                Run::LatestMap => self.latest_map().await,
                Run::ScrubPurgedSnaps => self.shard.ask(ScrubPurgedSnaps(args.clone())).await,
                Run::Bench => self.shard.ask(Bench(args.clone())).await,
                Run::MarkUnfoundLost => self.shard.ask(MarkUnfoundLost(args.clone())).await,
            };
        }
        Err(refused.unwrap_or_else(|| {
            Refusal::invalid(format!(
                "unrecognized command '{prefix}'; 'help' lists those that exist"
            ))
        }))
    }

    async fn latest_map(&self) -> Result<Reply, Refusal> {
        let got = tokio::time::timeout(MAP_PATIENCE, (self.latest_map)()).await;
        match got {
            Ok(Ok(())) => Ok(Reply::empty()),
            Ok(Err(e)) => Err(Refusal::new(Errno::EAGAIN, e)),
            Err(_) => Err(Refusal::new(
                Errno::ETIMEDOUT,
                format!("the newest map did not come within {} s", MAP_PATIENCE.as_secs()),
            )),
        }
    }

    async fn status(&self, args: &Args) -> Result<Reply, Refusal> {
        let (oldest, newest) = (self.maps)();
        let pgs = self.shard.ask(NumPgs).await;
        reply(
            args,
            json!({
                "cluster_fsid": self.cluster.to_string(),
                "osd_fsid": self.osd_fsid.to_string(),
                "whoami": self.whoami.0,
                "state": (self.state)(),
                "oldest_map": oldest.0,
                "newest_map": newest.0,
                "num_pgs": pgs,
            }),
        )
    }
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

fn flush_pg_stats(a: &Admin, _: &Args) -> Result<Reply, Refusal> {
    match (a.flush_stats)() {
        Some(seq) => Ok(Reply::data(format!("{seq}\n"))),
        None => Err(Refusal::new(Errno::EAGAIN, "the OSD stops")),
    }
}

/// What copies between objects wait for.
fn objecter_requests(a: &Admin, args: &Args) -> Result<Reply, Refusal> {
    let (epoch, all) = (a.requests)();
    reply(args, client::requests_json(epoch, &all))
}

fn list_devices(a: &Admin, args: &Args) -> Result<Reply, Refusal> {
    let device =
        |(name, id): &(String, String)| json!({"device": format!("/dev/{name}"), "device_id": id});
    reply(args, a.devices.iter().map(device).collect())
}

/// Lines of the log are written as they come: there is nothing to wait for.
fn log_flush(_: &Admin, _: &Args) -> Result<Reply, Refusal> {
    Ok(Reply::empty())
}

fn git_version(_: &Admin, args: &Args) -> Result<Reply, Refusal> {
    reply(args, json!({"git_version": env!("CARGO_PKG_VERSION")}))
}

fn config_show(a: &Admin, args: &Args) -> Result<Reply, Refusal> {
    reply(args, commands::config_show(&a.conf.borrow()))
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
    reply(args, commands::config_get(&a.conf.borrow(), args.req("var"))?)
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
    let now = wall_clock();
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
            "from osd": a.whoami.0,
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
