//! What operators ask a shard.

use crate::core::Core;
use crate::host::PgHost;
use crate::shard::Question;
use crate::stats;
use crate::superblock::OWN;
use command::{Args, Format, Refusal, Reply};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::rc::Rc;
use store::{Transaction, WriteHint};
use types::stats::{PingTimes, U32x3};
use types::{Dump, Errno, OsdId, PgId};

/// A command that a shard answers at once.
pub(crate) struct Asked {
    pub(crate) run: fn(&Core, &Args) -> Result<Reply, Refusal>,
    pub(crate) args: Args,
}

impl Question for Asked {
    type Answer = Result<Reply, Refusal>;

    async fn answer(self, core: &Rc<Core>) -> Self::Answer {
        (self.run)(core, &self.args)
    }
}

/// Writes to the store, and says how fast that was.
pub(crate) struct Bench(pub(crate) Args);

impl Question for Bench {
    type Answer = Result<Reply, Refusal>;

    async fn answer(self, core: &Rc<Core>) -> Self::Answer {
        bench(core, &self.0).await
    }
}

/// Writes a checkpoint of the store.
pub(crate) struct Compact;

impl Question for Compact {
    type Answer = Result<Reply, Refusal>;

    async fn answer(self, core: &Rc<Core>) -> Self::Answer {
        let begun = std::time::Instant::now();
        let done = core.store.checkpoint().await;
        done.map_err(|e| Refusal::new(Errno(e.errno()), e.to_string()))?;
        let seconds = begun.elapsed().as_secs_f64();
        Ok(Reply::data(format!("compacted omap in {seconds:.3} seconds\n")))
    }
}

/// What classes and tenants are promised, ask for and are served.
pub(crate) struct DumpQos {
    /// How long pings of other OSDs take.
    pub(crate) pings: BTreeMap<OsdId, PingTimes>,
}

impl Question for DumpQos {
    type Answer = Value;

    async fn answer(self, core: &Rc<Core>) -> Value {
        dump_qos(core, self.pings)
    }
}

/// JSON, indented unless asked otherwise.
pub(crate) fn reply(args: &Args, value: Value) -> Result<Reply, Refusal> {
    Ok(Reply::data(Format::of(args).json(&value)))
}

/// The copy of the PG that a command names.
pub(crate) fn host(core: &Core, args: &Args) -> Result<Rc<PgHost>, Refusal> {
    let text = args.str("pgid").ok_or_else(|| Refusal::invalid("no pgid specified"))?;
    let pgid: PgId =
        text.parse().map_err(|_| Refusal::invalid(format!("{text} is not a placement group")))?;
    core.any_copy(pgid)
        .ok_or_else(|| Refusal::new(Errno::ENOENT, format!("i don't have pgid {pgid}")))
}

/// The PG that the command is about, if this OSD leads it.
pub(crate) fn primary(core: &Core, args: &Args) -> Result<Rc<PgHost>, Refusal> {
    let host = host(core, args)?;
    match host.with_pg(|pg| pg.is_primary()) {
        true => Ok(host),
        false => Err(Refusal::new(Errno::EAGAIN, format!("not primary for pgid {}", host.pgid))),
    }
}

/// Ceph's name for the queue of an OSD's first shard; there is one here.
const SHARD: &str = "OSD:ShardedOpWQ:0";
/// So many tenants of a class are shown, ...
const TENANTS: i64 = 16;
/// ... or as many as are asked for, up to this.
const TENANTS_MAX: usize = 1024;

/// Counters, as metrics show them.
pub(crate) struct Metrics;

impl Question for Metrics {
    type Answer = daemon_frame::metrics::Counters;

    async fn answer(self, core: &Rc<Core>) -> daemon_frame::metrics::Counters {
        core.update_gauges();
        daemon_frame::metrics::Counters {
            values: json!({"osd": core.perf.dump()}),
            schema: json!({"osd": core.perf.schema()}),
        }
    }
}

pub(crate) fn perf_dump(core: &Core, args: &Args) -> Result<Reply, Refusal> {
    core.update_gauges();
    let mut counters = core.perf.dump();
    if let Some(one) = args.str("counter") {
        counters.retain(|k, _| k == one);
    }
    let mut all = Map::new();
    if args.str("logger").is_none_or(|l| l == "osd") {
        all.insert("osd".into(), Value::Object(counters));
    }
    reply(args, Value::Object(all))
}

pub(crate) fn perf_schema(core: &Core, args: &Args) -> Result<Reply, Refusal> {
    reply(args, json!({"osd": core.perf.schema()}))
}

pub(crate) fn perf_reset(core: &Core, args: &Args) -> Result<Reply, Refusal> {
    let which = args.req("var");
    if which != "all" && which != "osd" {
        return reply(args, json!({"error": format!("Not find: {which}")}));
    }
    core.perf.reset();
    reply(args, json!({"success": format!("perf reset {which}")}))
}

pub(crate) fn ops_in_flight(core: &Core, args: &Args) -> Result<Reply, Refusal> {
    reply(args, core.tracker.dump_in_flight(false))
}

pub(crate) fn blocked_ops(core: &Core, args: &Args) -> Result<Reply, Refusal> {
    reply(args, core.tracker.dump_in_flight(true))
}

pub(crate) fn historic_ops(core: &Core, args: &Args) -> Result<Reply, Refusal> {
    reply(args, core.tracker.dump_historic(false))
}

pub(crate) fn historic_ops_by_duration(core: &Core, args: &Args) -> Result<Reply, Refusal> {
    reply(args, core.tracker.dump_historic(true))
}

pub(crate) fn historic_slow_ops(core: &Core, args: &Args) -> Result<Reply, Refusal> {
    reply(args, core.tracker.dump_slow())
}

pub(crate) fn queue_state(core: &Core, args: &Args) -> Result<Reply, Refusal> {
    let map = core.map();
    let pool_name = |id| Some(map.as_ref()?.pool_ops(id)?.name.clone());
    let most =
        usize::try_from(args.int("tenants").unwrap_or(TENANTS)).unwrap_or(0).min(TENANTS_MAX);
    let now = std::time::Instant::now();
    let (name, len, mut dump, shard) =
        core.with_queue(|q| (q.name(), q.len(), q.dump(&|_| None), q.state(most, &pool_name, now)));
    let (capacity, costs) = capacity_and_costs(core, &mut dump);
    reply(
        args,
        json!({"scheduler": name, "queued": len, "running": core.running(), "capacity": capacity, "costs": costs, SHARD: shard}),
    )
}

/// What the scheduler goes by, with what was learned, from the scheduler's dump.
fn capacity_and_costs(core: &Core, dump: &mut Value) -> (Value, Value) {
    let (learned, costs) = core.admission.with_meter(|m| m.dump());
    let mut capacity = dump["capacity"].take();
    if let (Some(all), Value::Object(learned)) = (capacity.as_object_mut(), learned) {
        all.extend(learned);
    }
    (capacity, costs)
}

/// What the device was busy with since the OSD started.
fn device(core: &Core) -> Value {
    let Some(usage) = core.store.usage() else { return Value::Null };
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

pub(crate) fn dump_watchers(core: &Core, args: &Args) -> Result<Reply, Refusal> {
    let mut hosts = core.hosts();
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

pub(crate) fn get_mapped_pools(core: &Core, args: &Args) -> Result<Reply, Refusal> {
    let pools: std::collections::BTreeSet<i64> =
        core.hosts().iter().map(|h| h.pgid.pool.0).collect();
    reply(args, json!({"mapped_pools": pools}))
}

pub(crate) fn dump_scrub_reservations(core: &Core, args: &Args) -> Result<Reply, Refusal> {
    let (own, others) = core.scrubbing_groups();
    reply(args, json!({"scrubs_local": own, "scrubs_remote": others}))
}

/// What the store keeps in memory, under the names of Ceph's pools of memory that are for the
/// same.
pub(crate) fn dump_mempools(core: &Core, args: &Args) -> Result<Reply, Refusal> {
    let statfs = core.store.statfs();
    let pool = |bytes: u64| json!({"bytes": bytes});
    reply(
        args,
        json!({"mempool": {
            "by_pool": {
                "bluestore_cache_data": pool(statfs.cached),
                "bluestore_writing_deferred": pool(statfs.deferred),
            },
            "total": pool(statfs.cached + statfs.deferred),
        }}),
    )
}

pub(crate) fn list_pgs(core: &Core, args: &Args) -> Result<Reply, Refusal> {
    let mut hosts = core.hosts();
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

pub(crate) fn clear_shards_repaired(core: &Core, args: &Args) -> Result<Reply, Refusal> {
    let count = args.int("count").unwrap_or(0);
    let count = u64::try_from(count)
        .map_err(|_| Refusal::invalid("'count' must not be negative".to_string()))?;
    core.set_shards_repaired(count);
    Ok(Reply::empty())
}

pub(crate) fn dump_scrubs(core: &Core, args: &Args) -> Result<Reply, Refusal> {
    let (own, others) = core.scrubbing_groups();
    let wanted: Vec<Value> = core
        .wanted_scrubs()
        .into_iter()
        .map(|(pgid, kind)| json!({"pgid": pgid.to_string(), "kind": kind.name(), "forced": true}))
        .collect();
    reply(args, json!({"scrubs_local": own, "scrubs_remote": others, "scrubs": wanted}))
}

pub(crate) fn dump_statfs(core: &Core, args: &Args) -> Result<Reply, Refusal> {
    reply(args, stats::statfs(core).dump())
}

pub(crate) fn dump_store_memory(core: &Core, args: &Args) -> Result<Reply, Refusal> {
    let budgets = core.store.budgets().map(|b| {
        json!({"data_cache": b.data_cache, "onode_cache": b.onode_cache, "node_cache": b.node_cache, "dirty_max": b.dirty_max})
    });
    reply(args, json!({"budgets": budgets, "cached": core.store.statfs().cached}))
}

fn dump_qos(core: &Core, pings: BTreeMap<OsdId, PingTimes>) -> Value {
    let map = core.map();
    let pool_name = |id| Some(map.as_ref()?.pool_ops(id)?.name.clone());
    let mut dump = core.with_queue(|q| q.dump(&pool_name));
    let (capacity, costs) = capacity_and_costs(core, &mut dump);
    (dump["capacity"], dump["costs"]) = (capacity, costs);
    dump["in_flight"] = core.running().into();
    dump["max_in_flight"] = core.admission.window().into();
    dump["writes_took"] = core.admission.window_taken();
    dump["device"] = device(core);
    dump["thread"] = thread();
    dump["peers"] = peers(core, pings);
    dump["replica_writes"] = core.perf.subop_w.get().into();
    dump
}

/// How long other OSDs take for copies of what this one leads, and for pings.
fn peers(core: &Core, pings: BTreeMap<OsdId, PingTimes>) -> Value {
    let mut all = core.admission.peers.borrow().dump();
    for (osd, t) in pings {
        let way = |average: U32x3, last: u32| json!({"1min_us": average.0, "last_us": last});
        let peer = all.entry(osd.0.to_string()).or_insert_with(|| json!({}));
        peer["ping"] = json!({"back": way(t.back_pingtime, t.back_last)});
        if t.front_pingtime != U32x3::default() {
            peer["ping"]["front"] = way(t.front_pingtime, t.front_last);
        }
    }
    Value::Object(all)
}

/// Bounds of `bench` (`osd_bench_max_block_size`, and what a test may write at all).
const BENCH_BLOCK_MAX: i64 = 64 << 20;
const BENCH_BYTES_MAX: i64 = 4 << 30;

async fn bench(core: &Core, args: &Args) -> Result<Reply, Refusal> {
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
    let store = &core.store;
    let error = |e: store::StoreError| Refusal::new(Errno(e.errno()), e.to_string());
    let data = bytes::Bytes::from(vec![0x5a; size as usize]);
    let key = |i: i64| bytes::Bytes::from(format!("bench_{i}"));
    let coll = OWN;
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
