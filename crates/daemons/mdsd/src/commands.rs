//! `ceph tell mds.NAME` and `ceph daemon mds.NAME`.

use crate::dump;
use crate::rank::Rank;
use crate::server::Inner;
use command::{Args, Command, Format, Refusal, Reply, Shape, flags};
use daemon_frame::commands::{
    Answer, Counter, config_get, config_show, perf_dump, perf_schema, version,
};
use msgr::Connection;
use serde_json::{Map, Value, json};
use std::rc::Rc;
use std::time::{Duration, Instant};
use types::Errno;

/// Why a command is not served, or nothing.
pub type Why = Option<&'static str>;

const fn yes(signature: &'static str, perm: &'static str, help: &'static str) -> Command<Why> {
    Command { signature, help, module: "mds", perm, flags: flags::NONE, handler: None }
}

const fn no(signature: &'static str, why: &'static str) -> Command<Why> {
    Command {
        signature,
        help: why,
        module: "mds",
        perm: "rw",
        flags: flags::NONE,
        handler: Some(why),
    }
}

/// All commands.
pub static COMMANDS: &[Command<Why>] = &[
    yes(
        "cache drop name=timeout,type=CephInt,range=0,req=false",
        "rw",
        "Have clients give back what they can spare, and empty the cache.",
    ),
    yes("cache status", "r", "Show how much is in the cache."),
    yes("client evict name=filters,type=CephString,n=N,req=false", "rw", "See session evict."),
    yes("client ls name=filters,type=CephString,n=N,req=false", "r", "See session ls."),
    yes("config diff", "r", "Show what differs from the defaults."),
    yes("config get name=var,type=CephString", "r", "Show one option."),
    yes(
        "config set name=var,type=CephString name=val,type=CephString,n=N",
        "rw",
        "Set an option until the next start.",
    ),
    yes("config show", "r", "Show all options."),
    yes("damage ls", "r", "List what could not be read, or does not fit."),
    yes("damage rm name=damage_id,type=CephInt", "rw", "Forget an entry of damage ls."),
    yes("dump inode name=number,type=CephInt,req=true", "r", "Show an inode that is in the cache."),
    yes(
        "dump tree name=root,type=CephString,req=true name=depth,type=CephInt,req=false",
        "r",
        "Show what is in the cache below a path.",
    ),
    yes("dump_blocked_ops", "r", "Show requests that wait for more than 30 seconds."),
    yes("dump_mempools", "r", "Show the bytes that mds_cache_memory_limit bounds."),
    yes("dump_ops_in_flight", "r", "Show requests that have no answer."),
    yes("dump_qos", "r", "Show what subvolumes are promised, ask for and get."),
    yes("flush journal", "rw", "Bring all changes to their place at rest."),
    yes("get subtrees", "r", "Show parts of the file system: the rank's, and those that it names."),
    yes("get_command_descriptions", "r", "List the commands."),
    yes("help", "r", "List the commands."),
    yes("log flush", "r", "Write log entries to the log file."),
    yes("ops", "r", "Show requests that have no answer."),
    yes("perf dump", "r", "Show counters."),
    yes("perf schema", "r", "Describe the counters."),
    yes("scrub abort", "rw", "End all scrubs."),
    yes(
        "scrub start name=path,type=CephString name=scrubops,type=CephChoices,strings=force|recursive|repair,n=N,req=false name=tag,type=CephString,req=false",
        "rw",
        "Look whether what is at rest fits together; `damage ls` lists what does not.",
    ),
    yes("scrub status", "r", "Show scrubs that run."),
    yes(
        "session evict name=filters,type=CephString,n=N,req=false",
        "rw",
        "End sessions, and have the OSDs refuse their clients.",
    ),
    yes("session kill name=session_id,type=CephString", "rw", "See session evict."),
    yes("session ls name=filters,type=CephString,n=N,req=false", "r", "List sessions."),
    yes("status", "r", "Show the server's state."),
    yes("version", "r", "Show the version."),
    no(
        "dirfrag split name=path,type=CephString,req=true name=frag,type=CephString,req=true name=bits,type=CephInt,req=true",
        "Directories are not split.",
    ),
    no(
        "export dir name=path,type=CephString name=rank,type=CephInt",
        "Directories and subvolumes go where pins say.",
    ),
    no("force_readonly", "The server cannot be made read-only."),
];

/// Parts of file systems: whether they are there, and what is to be known.
pub static PARTS: &[(&str, bool, &str)] = &[
    (
        "capabilities of clients",
        true,
        "`path`, `fsname`, `uid` with `gids`, `root_squash`, `network`; `r`, `w` and `p`.",
    ),
    ("locks", true, "`flock` and `fcntl`; they survive a takeover."),
    ("scrub", true, "Counts of directories and backtraces, beside clients; nothing is repaired."),
    ("layouts", true, "`ceph.file.layout` and `ceph.dir.layout`, pools by name and number."),
    (
        "names and attributes",
        true,
        "All operations of 16.2 on files, directories, links and special files; extended attributes.",
    ),
    (
        "quotas",
        true,
        "`ceph.quota`; a writer that does not know yet what others wrote may pass one.",
    ),
    (
        "takeover",
        true,
        "A server that waits takes the rank over; clients keep their sessions, open files and locks.",
    ),
    (
        "early replies",
        true,
        "`mds_early_reply`: a client hears of its own change before it is durable.",
    ),
    (
        "leases of names",
        true,
        "Of 5 s, where one client changes a directory and others look names up; none of absent names.",
    ),
    ("takeover by `ceph-mds`", true, "After a flush; see docs/file-systems.md."),
    (
        "client statistics",
        true,
        "`fs perf stats`, while the module `stats` is enabled; each rank tells of its own clients.",
    ),
    ("inline data", false, "Files that have some cannot be read."),
    (
        "several ranks",
        true,
        "`max_mds` above 1, `ceph.dir.pin`; changes over ranks survive the end of either server.",
    ),
    (
        "distributed and random pins",
        true,
        "`ceph.dir.pin.distributed`, `ceph.dir.pin.random`: they say where new directories are made.",
    ),
    ("fewer ranks", true, "Rank 0 takes over what the last rank has, while clients go on."),
    (
        "ranks that were given up, again",
        true,
        "Ranks are added up to 63 times in all; they make new directories.",
    ),
    (
        "moving directories between ranks",
        true,
        "A pin moves a directory with all below it. Directories and symbolic links are not renamed \
         to another rank (`EXDEV`).",
    ),
    ("snapshots", false, "Making one is refused; lists of snapshots are empty."),
    (
        "split directories",
        true,
        "Directories that a stock server split are joined when they are used; none is split.",
    ),
    (
        "standby-replay",
        true,
        "A server in this state follows the log, and has little to read at a takeover.",
    ),
    (
        "takeover from `ceph-mds`",
        true,
        "After flushes that leave nothing in its journal; see docs/file-systems.md.",
    ),
];

/// Requests are blocked after this time (Ceph: `mds_op_complaint_time`).
const BLOCKED_AFTER: Duration = Duration::from_secs(30);

/// Clients have so long to give back what `cache drop` asks for, where it says nothing else.
const DROP_WITHIN: Duration = Duration::from_secs(60);

/// Whether a connection may give commands.
pub(crate) fn may_tell(conn: &Connection) -> bool {
    let caps = conn.auth_caps();
    caps.allow_all
        || caps.text.parse::<auth::caps::MdsCap>().is_ok_and(|c| {
            c.grants.iter().any(|g| g.spec == "*" && g.path.is_none() && g.fs_name.is_none())
        })
}

/// What others are answered.
pub(crate) fn denied() -> Refusal {
    Refusal::new(Errno::EACCES, "access denied: commands need the mds capability \"allow *\"")
}

/// Runs a command.
pub(crate) async fn run(server: &Rc<Inner>, pieces: &[String]) -> Answer {
    let args = Args::parse(pieces)?;
    let shape = Shape::of(&args)?;
    Ok(shape.apply(serve(server, &args).await?))
}

fn find(prefix: &str) -> Option<&'static Command<Why>> {
    COMMANDS.iter().find(|c| c.prefix() == prefix)
}

async fn serve(server: &Rc<Inner>, args: &Args) -> Answer {
    let prefix = args.prefix();
    let Some(command) = find(prefix) else {
        return Err(Refusal::invalid(format!("unknown command {prefix:?}: `help` lists all")));
    };
    if let Some(why) = command.handler {
        return Err(Refusal::unsupported(format!("{prefix}: {why}")));
    }
    args.validate(&command::Signature::parse(command.signature))?;
    let rank =
        || server.rank().ok_or_else(|| Refusal::new(Errno::EINVAL, "the server holds no rank"));
    let value = match prefix {
        "get_command_descriptions" => command::describe_all(COMMANDS),
        "help" => {
            let each = COMMANDS.iter().map(|c| (c.prefix().to_owned(), c.help.into()));
            each.collect::<Map<_, _>>().into()
        }
        "version" => version(),
        "status" => status(server),
        "config show" => config_show(&server.frame.conf.borrow()),
        "config diff" => {
            let conf = server.frame.conf.borrow();
            let each = conf.changed().map(|(n, _, v)| (n.to_string(), v.into()));
            each.collect::<Map<_, _>>().into()
        }
        "config get" => config_get(&server.frame.conf.borrow(), args.req("var"))?,
        "config set" => {
            let name = args.req("var");
            server
                .frame
                .conf
                .borrow_mut()
                .set(conf::effective::Source::Override, name, &args.strs("val").join(" "))
                .map_err(|e| Refusal::invalid(e.to_string()))?;
            if let Some(rank) = server.rank() {
                rank.take_settings();
            }
            json!({"success": format!("{name} is set")})
        }
        "log flush" => return Ok(Reply::empty()),
        "perf dump" => metrics(server).values,
        "perf schema" => metrics(server).schema,
        "session ls" | "client ls" => sessions(&*rank()?, args)?,
        "session evict" | "client evict" | "session kill" => {
            let rank = rank()?;
            let ids = match args.str("session_id") {
                Some(id) => vec![number(id.trim_start_matches("client."))?],
                None => chosen(&rank, &filters(args, true)?),
            };
            for id in ids {
                rank.evict(id);
            }
            return Ok(Reply::empty());
        }
        "ops" | "dump_ops_in_flight" => ops(&*rank()?, Duration::ZERO),
        "dump_blocked_ops" => ops(&*rank()?, BLOCKED_AFTER),
        "cache status" => {
            let memory = rank()?.look(mds::Mds::memory).unwrap_or_default();
            json!({"pool": {"items": memory.items, "bytes": memory.bytes}})
        }
        "cache drop" => drop_cache(&rank()?, args).await?,
        "dump inode" => rank()?.look(|core| dump::inode(core, args)).ok_or_else(not_loaded)??,
        "dump tree" => rank()?.look(|core| dump::tree(core, args)).ok_or_else(not_loaded)??,
        "get subtrees" => {
            let rank = rank()?;
            let shown = rank.look(|core| dump::subtrees(core, |owner| rank.rank_of(owner)));
            shown.ok_or_else(not_loaded)?
        }
        "dump_mempools" => mempools(server),
        "dump_qos" => {
            let rank = rank()?;
            let tenants = rank.look(mds::Mds::tenants).unwrap_or_default();
            let each = tenants.iter().map(|t| tenant(&rank.fs_name, t));
            let (size, taken) = rank.look(mds::Mds::window).unwrap_or_default();
            let of = |(took, among): (u64, u64)| json!({"seconds": took as f64 / 1e9, "among": among as f64 / 100.0});
            let [few, last] = taken;
            let window =
                json!({"size": size, "writes_took": {"among_few": of(few), "last": of(last)}});
            json!({"tenants": each.collect::<Vec<_>>(), "window": window})
        }
        "flush journal" => {
            let rank = rank()?;
            if !rank.flush().await {
                return Err(not_loaded());
            }
            // A rank of which the clients go on is flushed all the same.
            let _ = rank.empty_log(false).await;
            json!({"message": "", "return_code": 0})
        }
        "damage ls" => rank()?.damage.borrow().to_json(),
        "damage rm" => {
            let id = args.int("damage_id").and_then(|id| u64::try_from(id).ok()).unwrap_or(0);
            rank()?.damage.borrow_mut().remove(id);
            return Ok(Reply::empty());
        }
        "scrub start" => scrub(&rank()?, args).await?,
        "scrub status" => scrub_status(&*rank()?),
        "scrub abort" => {
            rank()?.scrubs.abort();
            json!({"return_code": 0})
        }
        _ => return Err(Refusal::unsupported(prefix.to_owned())),
    };
    let format = Format::of(args);
    let format = if format == Format::Plain { Format::JsonPretty } else { format };
    Ok(Reply::data(format.json(&value)))
}

fn not_loaded() -> Refusal {
    Refusal::new(Errno::EAGAIN, "the rank is not loaded, or goes")
}

/// Has clients give back what they can spare, brings all changes to rest, and empties the cache.
async fn drop_cache(rank: &Rc<Rank>, args: &Args) -> Result<Value, Refusal> {
    let began = Instant::now();
    let before = rank.look(mds::Mds::memory).ok_or_else(not_loaded)?;
    if !rank.flush().await {
        return Err(not_loaded());
    }
    let seconds = args.int("timeout").and_then(|s| u64::try_from(s).ok()).filter(|s| *s > 0);
    let emptied = rank.empty_cache(seconds.map_or(DROP_WITHIN, Duration::from_secs)).await;
    let after = rank.look(mds::Mds::memory).ok_or_else(not_loaded)?;
    Ok(dump::dropped(&before, &after, emptied, began.elapsed()))
}

/// Begins a scrub (16.2: `MDCache::enqueue_scrub`).
async fn scrub(rank: &Rc<Rank>, args: &Args) -> Result<Value, Refusal> {
    let ops = args.strs("scrubops");
    if ops.iter().any(|op| op == "repair") {
        return Err(Refusal::unsupported(
            "scrub start: nothing is repaired; a stock server can take the rank over for that",
        ));
    }
    let tag = args.str("tag").map_or_else(|| uuid::Uuid::new_v4().to_string(), str::to_owned);
    let recursive = ops.iter().any(|op| op == "recursive");
    let path = match args.req("path") {
        "" => "/",
        path => path,
    };
    Ok(match rank.scrub(path, recursive, &tag).await {
        Ok(()) => json!({"return_code": 0, "scrub_tag": tag, "mode": "asynchronous"}),
        Err(errno) => json!({"return_code": -errno.0}),
    })
}

/// What `scrub status` shows (16.2: `ScrubStack::scrub_status`).
fn scrub_status(rank: &Rank) -> Value {
    let running = rank.scrubs.running.borrow();
    let left: usize = running.values().map(|s| s.left.get()).sum();
    let status = match running.is_empty() {
        true => "no active scrubs running".to_owned(),
        false => format!("scrub active ({left} inodes in the stack)"),
    };
    let each = running.iter().map(|(tag, s)| {
        let options = if s.recursive { "recursive" } else { "" };
        (tag.clone(), json!({"path": s.path, "tag": tag, "options": options}))
    });
    json!({"status": status, "scrubs": each.collect::<Map<_, _>>()})
}

/// The name of a tenant: `fs:NAME/GROUP/SUBVOLUME`, or `fs:NAME` for all outside of subvolumes.
fn tenant_name(fs: &str, t: &mds::TenantUse) -> String {
    if t.space < mds::Space::FIRST {
        return format!("fs:{fs}");
    }
    let names = t.path.iter().flatten().map(|n| String::from_utf8_lossy(n).into_owned());
    match names.collect::<Vec<_>>().as_slice() {
        [volumes, group, sub] if volumes == "volumes" => format!("fs:{fs}/{group}/{sub}"),
        [] => format!("fs:{fs} space {:#x}", t.space.0),
        path => format!("fs:{fs}//{}", path.join("/")),
    }
}

fn tenant(fs: &str, t: &mds::TenantUse) -> Value {
    let rate = |milli: u64| (milli != 0).then(|| milli as f64 / 1_000.0);
    let promise = t.promise.unwrap_or_default();
    let weight = if promise.weight == 0 { mds::Promise::WEIGHT } else { promise.weight };
    json!({
        "tenant": tenant_name(fs, t),
        "specified": t.promise.is_some(),
        "weight": weight,
        "reservation": rate(promise.reservation_milli),
        "limit": rate(promise.limit_milli),
        "offered": t.offered,
        "served": t.served,
        "waiting": t.waiting,
        "waited_ns": t.waited_ns,
        "waits_log2_us": t.waits_log2_us,
    })
}

fn status(server: &Inner) -> Value {
    let map = server.map();
    let gid = server.mon().global_id();
    let info = map.mds_info.get(&gid);
    let state = info.map_or("up:boot", |i| i.state.name());
    json!({
        "cluster_fsid": server.mon().fsid().map(|f| f.to_string()).unwrap_or_default(),
        "whoami": info.map_or(-1, |i| i.rank),
        "id": gid,
        "want_state": server.want().name(),
        "state": state,
        "fs_name": if map.enabled { map.fs_name.as_str() } else { "" },
        "mdsmap_epoch": map.epoch.0,
        "osdmap_epoch": server.rados.objecter().map().map_or(0, |m| m.epoch.0),
        "osdmap_epoch_barrier": server.rank().map_or(0, |r| r.barrier().0),
        "uptime": server.began.elapsed().as_secs_f64(),
    })
}

/// What is served as metrics.
pub(crate) fn metrics(server: &Inner) -> daemon_frame::metrics::Counters {
    let (counters, memory) = (counters(server), memory_counters(&memory(server)));
    let both = |f: fn(&str, &[Counter]) -> Value| {
        let mut all = f("mds", &counters);
        if let (Value::Object(all), Value::Object(more)) = (&mut all, f("mds_mem", &memory)) {
            all.extend(more);
        }
        all
    };
    daemon_frame::metrics::Counters { values: both(perf_dump), schema: both(perf_schema) }
}

pub(crate) fn memory(server: &Inner) -> mds::Memory {
    server.rank().and_then(|r| r.look(mds::Mds::memory)).unwrap_or_default()
}

/// What is in memory, under the name of Ceph's pool of memory that is for the same.
fn mempools(server: &Inner) -> Value {
    let memory = memory(server);
    let pool = json!({"items": memory.items, "bytes": memory.bytes});
    json!({"mempool": {"by_pool": {"mds_co": pool}, "total": pool}})
}

fn memory_counters(m: &mds::Memory) -> [Counter; 9] {
    [
        ("ino", "Inodes in memory", m.inodes),
        ("dn", "Entries of directories in memory", m.entries),
        ("dir", "Directories of which something is in memory", m.dirs),
        ("cap", "Capabilities of clients", m.caps),
        ("bytes", "Bytes of all that mds_cache_memory_limit bounds", m.bytes),
        ("bytes_in_use", "Bytes of inodes that clients keep in memory", m.bytes_in_use),
        ("session_bytes", "Bytes of sessions", m.session_bytes),
        ("request_bytes", "Bytes of requests that are not done", m.request_bytes),
        ("claim_bytes", "Bytes of what clients said after a takeover", m.claim_bytes),
    ]
    .map(|(name, help, value)| Counter { name, help, grows: false, value })
}

fn counters(server: &Inner) -> [Counter; 10] {
    let rank = server.rank();
    let memory = memory(server);
    let core = |f: fn(&mds::Mds) -> u64| rank.as_ref().and_then(|r| r.look(f)).unwrap_or(0);
    let own = |f: fn(&Rank) -> u64| rank.as_deref().map_or(0, f);
    [
        ("reply", "Requests that were answered", own(|r| r.answers.get())),
        ("inodes", "Inodes in the cache", core(|c| c.cached_inodes() as u64)),
        ("dentries", "Entries in the cache", core(|c| c.cached_entries() as u64)),
        ("dirty", "Entries that are not at rest", core(|c| c.dirty_entries() as u64)),
        ("log_batches", "Batches of the log that a successor reads", core(|c| c.log_batches())),
        ("caps", "Capabilities of clients", memory.caps),
        ("inodes_with_caps", "Inodes of which clients have something", memory.inodes_in_use),
        ("sessions", "Sessions of clients", own(|r| r.clients.borrow().len() as u64)),
        ("scrubbed", "Inodes that scrubs looked at", own(|r| r.scrubs.checked.get())),
        ("requests", "Requests without an answer", own(|r| r.in_flight().len() as u64)),
    ]
    .map(|(name, help, value)| Counter {
        name,
        help,
        grows: ["reply", "scrubbed"].contains(&name),
        value,
    })
}

fn number(text: &str) -> Result<u64, Refusal> {
    let parsed = text.parse();
    parsed.map_err(|_| Refusal::invalid(format!("{text:?} is no session: a number was expected")))
}

/// Filters of sessions: `id=N`, `state=S`, `auth_name=N`, `client_metadata.KEY=V`, or a number.
fn filters(args: &Args, needed: bool) -> Result<Vec<(String, String)>, Refusal> {
    let mut found = Vec::new();
    for text in args.strs("filters") {
        match text.split_once('=') {
            Some((key, value))
                if ["id", "state", "auth_name", "reconnecting"].contains(&key)
                    || key.starts_with("client_metadata.") =>
            {
                if key == "id" && value != "*" {
                    number(value)?;
                }
                found.push((key.to_owned(), value.to_owned()));
            }
            Some(_) => return Err(Refusal::invalid(format!("invalid filter {text:?}"))),
            None => {
                number(&text)?;
                found.push(("id".to_owned(), text));
            }
        }
    }
    if needed && found.is_empty() {
        return Err(Refusal::invalid("expected a filter, such as id=4305"));
    }
    Ok(found)
}

fn chosen(rank: &Rank, filters: &[(String, String)]) -> Vec<u64> {
    let clients = rank.clients.borrow();
    let matches = |id: &u64, c: &crate::rank::Client| {
        filters.iter().all(|(key, value)| match key.as_str() {
            "id" => value == "*" || *value == id.to_string(),
            "auth_name" => *value == c.info.auth_name.1,
            "state" => value == if c.open { "open" } else { "opening" },
            key => key
                .strip_prefix("client_metadata.")
                .is_some_and(|k| c.info.metadata.texts.get(k) == Some(value)),
        })
    };
    clients.iter().filter(|(id, c)| matches(id, c)).map(|(id, _)| *id).collect()
}

/// Features as a number in base 16.
fn bits(features: &types::fsmap::ClientFeatures) -> Value {
    let bits = features.0.iter().filter(|b| **b < 64);
    let all = bits.fold(0u64, |all, b| all | 1 << b);
    json!({"feature_bits": format!("{all:#018x}")})
}

/// What `session ls` shows (Ceph: `Session::dump`).
fn sessions(rank: &Rank, args: &Args) -> Result<Value, Refusal> {
    let ids = chosen(rank, &filters(args, false)?);
    let requests = rank.in_flight();
    let clients = rank.clients.borrow();
    let each = ids.iter().filter_map(|id| {
        let c = clients.get(id)?;
        let caps = rank.look(|core| core.inodes_of(mds::ClientId(*id))).unwrap_or(0);
        let mut metadata = serde_json::Map::new();
        metadata.insert("client_features".into(), bits(&c.info.metadata.features));
        let counted = json!({"metric_flags": bits(&c.info.metadata.metric_spec.flags)});
        metadata.insert("metric_spec".into(), counted);
        for (key, value) in &c.info.metadata.texts {
            metadata.insert(key.clone(), value.clone().into());
        }
        Some(json!({
            "id": id,
            "entity": {
                "name": {"type": "client", "num": id},
                "addr": {
                    "type": c.info.addr.kind.name(),
                    "addr": c.info.addr.legacy_string().split('/').next(),
                    "nonce": c.info.addr.nonce,
                },
            },
            "state": if c.open { "open" } else { "opening" },
            "num_leases": rank.look(|core| core.leases_of(mds::ClientId(*id))).unwrap_or(0),
            "num_caps": caps,
            "request_load_avg": 0,
            "uptime": c.since.elapsed().as_secs_f64(),
            "requests_in_flight": requests.iter().filter(|r| r.0 == *id).count(),
            "completed_requests": [],
            "reconnecting": rank.look(|core| core.waits_for(mds::ClientId(*id))).unwrap_or(false),
            "inst": format!("client.{id} {}", c.info.addr),
            "prealloc_inos": [],
            "client_metadata": metadata,
        }))
    });
    Ok(Value::Array(each.collect()))
}

fn ops(rank: &Rank, longer_than: Duration) -> Value {
    let now = client::wall_clock().as_duration();
    let each: Vec<Value> = rank
        .in_flight()
        .into_iter()
        .filter(|(_, _, _, age)| *age >= longer_than)
        .map(|(client, tid, what, age)| {
            let began = types::Utime::from_duration(now.saturating_sub(age));
            json!({
                "description": what,
                "initiated_at": began.gmtime(),
                "age": age.as_secs_f64(),
                "duration": age.as_secs_f64(),
                "type_data": {
                    "reqid": format!("client.{client}:{tid}"),
                    "op_type": "client_request",
                    "client_info": {"client": format!("client.{client}"), "tid": tid},
                },
            })
        })
        .collect();
    let count = each.len();
    json!({"ops": each, "num_ops": count})
}
