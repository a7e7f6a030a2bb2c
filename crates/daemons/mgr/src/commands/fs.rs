//! Commands about file systems (Ceph: modules `status` and `volumes`, 16.2). What needs the
//! monitors asks them one command after the other.

use super::{Answer, Entry, Run};
use crate::client_stats::Clients;
use crate::counters::Counters;
use crate::state::PoolLine;
use crate::volumes::Volumes;
use command::{Args, Command, Format, Refusal, Reply, flags};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use types::FsMap;
use types::errno::Errno;
use types::fsmap::{Filesystem, MdsState};

/// An answer that takes time.
pub type Later = Pin<Box<dyn Future<Output = Answer>>>;

/// Gives the monitors a command, and has their answer later.
pub type AskMonitors = Box<dyn Fn(Value) -> Later>;

/// What is asked, and what the manager knows.
pub struct Ask {
    /// The monitors.
    pub monitors: AskMonitors,
    /// The arguments.
    pub args: Args,
    /// How the client wants its data.
    pub format: Format,
    /// File systems.
    pub fs: Arc<FsMap>,
    /// Pools by number.
    pub pools: BTreeMap<i64, PoolLine>,
    /// What metadata servers reported.
    pub counters: Counters,
    /// File systems in use; nothing while another manager serves.
    pub volumes: Option<Rc<Volumes>>,
    /// What clients count.
    pub clients: Clients,
    /// Reports of crashes.
    pub crashes: Vec<Value>,
    /// What reports about the cluster have.
    pub telemetry: crate::telemetry::Settings,
    /// The time.
    pub now: types::Utime,
}

const fn ask(
    signature: &'static str,
    help: &'static str,
    module: &'static str,
    perm: &'static str,
    handler: fn(Ask) -> Later,
) -> Entry {
    Command { signature, help, module, perm, flags: flags::MGR, handler: Run::Fs(handler) }
}

pub(super) const COMMANDS: &[Entry] = &[
    ask(
        "fs status name=fs,type=CephString,req=false",
        "Show the status of a CephFS filesystem",
        "status",
        "r",
        |a| Box::pin(status(a)),
    ),
    ask("fs volume ls", "List volumes", "volumes", "r", |a| Box::pin(volume_ls(a))),
    ask(
        "fs volume create name=name,type=CephString,goodchars=[A-Za-z0-9-_.] name=placement,type=CephString,req=false",
        "Create a CephFS volume",
        "volumes",
        "rw",
        |a| Box::pin(volume_create(a)),
    ),
    ask(
        "fs volume rm name=vol_name,type=CephString name=yes-i-really-mean-it,type=CephString,req=false",
        "Delete a FS volume by passing --yes-i-really-mean-it flag",
        "volumes",
        "rw",
        |a| Box::pin(volume_rm(a)),
    ),
];

/// A row of the table of ranks.
struct RankRow {
    rank: String,
    state: String,
    name: String,
    rate: Option<f64>,
    counts: Option<[u64; 4]>,
}

/// What the metadata servers of a file system have in memory.
const COUNTS: [&str; 4] = ["mds_mem.dn", "mds_mem.ino", "mds_mem.dir", "mds_mem.cap"];
const REQUESTS: &str = "mds_server.handle_client_request";
const SESSIONS: &str = "mds_sessions.session_count";

fn rank_rows(fs: &Filesystem, counters: &Counters) -> Vec<RankRow> {
    let row = |rank: &i32| {
        let info = fs.map.up.get(rank).and_then(|gid| fs.map.mds_info.get(gid));
        let Some(info) = info else {
            return RankRow {
                rank: rank.to_string(),
                state: "failed".into(),
                name: String::new(),
                rate: None,
                counts: None,
            };
        };
        let state = info.state.name().split(':').nth(1).unwrap_or_default();
        let laggy = if info.is_laggy() { "(laggy)" } else { "" };
        let active = info.state == MdsState::ACTIVE && !info.is_laggy();
        RankRow {
            rank: rank.to_string(),
            state: format!("{state}{laggy}"),
            name: info.name.clone(),
            rate: active.then(|| counters.rate(&info.name, REQUESTS)),
            counts: Some(COUNTS.map(|path| counters.latest(&info.name, path))),
        }
    };
    let followers = fs.map.mds_info.values().filter(|i| i.state == MdsState::STANDBY_REPLAY);
    let follower = |info: &types::fsmap::MdsInfo| RankRow {
        rank: format!("{}-s", info.rank),
        state: "standby-replay".into(),
        name: info.name.clone(),
        rate: Some(counters.rate(&info.name, "mds_log.replayed")),
        counts: Some(COUNTS.map(|path| counters.latest(&info.name, path))),
    };
    fs.map.ranks_in.iter().map(row).chain(followers.map(follower)).collect()
}

fn clients(fs: &Filesystem, counters: &Counters) -> u64 {
    let name = |gid: &u64| fs.map.mds_info.get(gid).map(|i| i.name.as_str());
    let counts = fs.map.up.values().filter_map(name).map(|n| counters.latest(n, SESSIONS));
    // The first rank knows all clients; where it is down, another one is the nearest.
    counts.into_iter().find(|n| *n > 0).unwrap_or(0)
}

/// Versions of daemons, with their names; the monitors know them.
async fn versions(a: &Ask) -> Result<BTreeMap<String, Vec<String>>, Refusal> {
    let reply = (a.monitors)(json!({"prefix": "mds metadata", "format": "json"})).await?;
    let known: Value = serde_json::from_slice(&reply.data).unwrap_or_default();
    let mut versions: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for daemon in known.as_array().into_iter().flatten() {
        let text = |key: &str| daemon[key].as_str().map(str::to_owned);
        let version = text("ceph_version").unwrap_or_else(|| "unknown".into());
        versions.entry(version).or_default().extend(text("name"));
    }
    Ok(versions)
}

async fn status(a: Ask) -> Answer {
    let only = a.args.str("fs");
    let shown: Vec<&Filesystem> =
        a.fs.filesystems
            .values()
            .filter(|fs| only.is_none_or(|name| name == fs.map.fs_name))
            .collect();
    if let (Some(name), true) = (only, shown.is_empty()) {
        return Err(Refusal::invalid(format!("Invalid filesystem: {name}")));
    }
    let versions = versions(&a).await?;
    Ok(a.format.reply(|| status_json(&a, &shown, &versions), || status_text(&a, &shown, &versions)))
}

/// Pools of a file system, with what each is for.
pub(super) fn pools(fs: &Filesystem) -> impl Iterator<Item = (i64, &'static str)> {
    let metadata = fs.map.metadata_pool;
    let data = fs.map.data_pools.clone();
    std::iter::once((metadata, "metadata")).chain(data.into_iter().map(|id| (id, "data")))
}

fn status_json(a: &Ask, shown: &[&Filesystem], versions: &BTreeMap<String, Vec<String>>) -> Value {
    let (mut ranks, mut lines, mut count) = (Vec::new(), Vec::new(), Vec::new());
    for fs in shown {
        for row in rank_rows(fs, &a.counters) {
            let Some([dns, inos, dirs, caps]) = row.counts else {
                let rank: i32 = row.rank.parse().unwrap_or_default();
                ranks.push(json!({"rank": rank, "state": row.state}));
                continue;
            };
            let mut line = json!({"name": row.name, "state": row.state});
            line["dns"] = dns.into();
            line["inos"] = inos.into();
            line["dirs"] = dirs.into();
            line["caps"] = caps.into();
            match row.rank.strip_suffix("-s") {
                Some(rank) => {
                    line["rank"] = rank.parse::<i32>().unwrap_or_default().into();
                    line["events"] = row.rate.unwrap_or_default().into();
                }
                None => {
                    line["rank"] = row.rank.parse::<i32>().unwrap_or_default().into();
                    // Ceph has a text here where there is no rate.
                    line["rate"] = row.rate.map_or_else(|| "0".into(), Value::from);
                }
            }
            ranks.push(line);
        }
        for (id, kind) in pools(fs) {
            let pool = a.pools.get(&id).cloned().unwrap_or_default();
            lines.push(json!({
                "id": id, "name": pool.name, "type": kind, "used": pool.used, "avail": pool.avail,
            }));
        }
        count.push(json!({"fs": fs.map.fs_name, "clients": clients(fs, &a.counters)}));
    }
    let waiting = a.fs.standby_daemons.values();
    ranks.extend(waiting.map(|i| json!({"name": i.name, "state": "standby"})));
    let version = match versions.len() {
        1 => versions.keys().next().map(|v| json!(v)).unwrap_or_default(),
        _ => versions.iter().map(|(v, names)| json!({"version": v, "daemons": names})).collect(),
    };
    let mut all = json!({"clients": count});
    all["mds_version"] = version;
    all["mdsmap"] = ranks.into();
    all["pools"] = lines.into();
    all
}

fn status_text(a: &Ask, shown: &[&Filesystem], versions: &BTreeMap<String, Vec<String>>) -> String {
    let mut out = String::new();
    for fs in shown {
        let name = &fs.map.fs_name;
        let _ = writeln!(out, "{name} - {} clients", clients(fs, &a.counters));
        let _ = writeln!(out, "{}", "=".repeat(name.chars().count()));
        let mut ranks = vec![
            ["RANK", "STATE", "MDS", "ACTIVITY", "DNS", "INOS", "DIRS", "CAPS"]
                .map(str::to_owned)
                .to_vec(),
        ];
        for row in rank_rows(fs, &a.counters) {
            let what = if row.state == "standby-replay" { "Evts" } else { "Reqs" };
            let activity = row.rate.map(|r| format!("{what}: {}/s", short(r, 1000.0, 5)));
            let mut cells = vec![row.rank, row.state, row.name, activity.unwrap_or_default()];
            match row.counts {
                Some(counts) => cells.extend(counts.map(|n| short(n as f64, 1000.0, 5))),
                None => cells.extend([const { String::new() }; 4]),
            }
            ranks.push(cells);
        }
        out += &table(&ranks);
        let mut lines = vec![["POOL", "TYPE", "USED", "AVAIL"].map(str::to_owned).to_vec()];
        for (id, kind) in pools(fs) {
            let pool = a.pools.get(&id).cloned().unwrap_or_default();
            let bytes = |n: u64| short(n as f64, 1024.0, 5);
            lines.push(vec![pool.name, kind.to_owned(), bytes(pool.used), bytes(pool.avail)]);
        }
        out = out + "\n" + &table(&lines) + "\n";
    }
    let mut waiting = vec![vec!["STANDBY MDS".to_owned()]];
    waiting.extend(a.fs.standby_daemons.values().map(|i| vec![i.name.clone()]));
    out = out + "\n" + &table(&waiting) + "\n";
    match versions.len() {
        1 => {
            let version = versions.keys().next().map_or("", String::as_str);
            let _ = write!(out, "MDS version: {version}");
        }
        _ => {
            let mut lines = vec![["VERSION", "DAEMONS"].map(str::to_owned).to_vec()];
            lines.extend(versions.iter().map(|(v, names)| vec![v.clone(), names.join(", ")]));
            out = out + &table(&lines) + "\n";
        }
    }
    out
}

/// A number in `width` columns and a unit (Ceph: `mgr_util.format_units`).
pub(super) fn short(n: f64, factor: f64, width: usize) -> String {
    let whole = |unit: i32| format!("{:.0}", (n.trunc() / factor.powi(unit)).floor()).len();
    let mut unit = 0;
    while unit < 6 && whole(unit) > width - 1 {
        unit += 1;
    }
    let mut text = match unit {
        0 => format!("{:>w$.0}", n.trunc(), w = width - 1),
        _ => format!("{:.6}", n / factor.powi(unit)).chars().take(width - 1).collect(),
    };
    if text.ends_with('.') {
        text.pop();
        text.insert(0, ' ');
    }
    text.push([' ', 'k', 'M', 'G', 'T', 'P', 'E'][unit as usize]);
    text
}

/// Rows with centred cells and two spaces behind each (Python: `PrettyTable` without a border).
fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |i: usize| rows.iter().map(|r| r[i].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cell = |(text, width): (&String, &usize)| {
            let length = text.chars().count();
            let left = match (width - length) / 2 {
                // Of an odd rest, more is before a text of even length, and behind another.
                half if (width - length) % 2 == 1 && length % 2 == 0 => half + 1,
                half => half,
            };
            format!("{}{text}{}  ", " ".repeat(left), " ".repeat(width - length - left))
        };
        row.iter().zip(&widths).map(cell).collect::<String>()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

async fn volume_ls(a: Ask) -> Answer {
    let all: Vec<Value> =
        a.fs.filesystems.values().map(|fs| json!({"name": fs.map.fs_name})).collect();
    // Without a form for people: tools read it, whatever they ask for.
    Ok(Reply::data(Format::JsonPretty.json(&all)))
}

fn remove_pool(name: &str) -> Value {
    json!({
        "prefix": "osd pool rm", "pool": name, "pool2": name, "yes_i_really_really_mean_it": true,
    })
}

async fn volume_create(a: Ask) -> Answer {
    let name = a.args.req("name");
    if a.fs.by_name(name).is_some() {
        // Its pools must not be taken away again.
        return Ok(Reply::status(format!("volume '{name}' already exists")));
    }
    if !a.fs.filesystems.is_empty() && !a.fs.enable_multiple {
        // The monitors would refuse it too, but maybe not take the pools away again.
        return Err(Refusal::invalid(
            "Creation of multiple filesystems is disabled.  To enable this experimental feature, \
             use 'ceph fs flag set enable_multiple true'",
        ));
    }
    let (metadata, data) = (format!("cephfs.{name}.meta"), format!("cephfs.{name}.data"));
    let create = |pool: &str| json!({"prefix": "osd pool create", "pool": pool});
    (a.monitors)(create(&metadata)).await?;
    if let Err(refusal) = (a.monitors)(create(&data)).await {
        (a.monitors)(remove_pool(&metadata)).await.ok();
        return Err(refusal);
    }
    let new = json!({"prefix": "fs new", "fs_name": name, "metadata": metadata, "data": data});
    if let Err(refusal) = (a.monitors)(new).await {
        (a.monitors)(remove_pool(&data)).await.ok();
        (a.monitors)(remove_pool(&metadata)).await.ok();
        return Err(refusal);
    }
    Ok(Reply::status("Volume created successfully (no MDS daemons created)"))
}

async fn volume_rm(a: Ask) -> Answer {
    let name = a.args.req("vol_name");
    if a.args.str("yes-i-really-mean-it") != Some("--yes-i-really-mean-it") {
        return Err(Refusal::new(
            Errno::EPERM,
            format!(
                "WARNING: this will *PERMANENTLY DESTROY* all data stored in the filesystem '{name}'. If you are *ABSOLUTELY CERTAIN* that is what you want, re-issue the command followed by --yes-i-really-mean-it."
            ),
        ));
    }
    let may = json!({
        "prefix": "config get", "who": "mon", "key": "mon_allow_pool_delete", "format": "json",
    });
    let may: Value = serde_json::from_slice(&(a.monitors)(may).await?.data).unwrap_or_default();
    if may != Value::Bool(true) && may != "true" {
        return Err(Refusal::new(
            Errno::EPERM,
            "pool deletion is disabled; you must first set the mon_allow_pool_delete config option to true before volumes can be deleted",
        ));
    }
    let Some(fs) = a.fs.by_name(name) else {
        return Err(Refusal::new(Errno::ENOENT, format!("volume {name} doesn't exist")));
    };
    let pool = |id: i64| a.pools.get(&id).map(|p| p.name.clone()).unwrap_or_default();
    let metadata = pool(fs.map.metadata_pool);
    let data: Vec<String> = fs.map.data_pools.iter().map(|id| pool(*id)).collect();
    (a.monitors)(json!({"prefix": "fs fail", "fs_name": name})).await?;
    (a.monitors)(json!({"prefix": "fs rm", "fs_name": name, "yes_i_really_mean_it": true})).await?;
    for pool in std::iter::once(&metadata).chain(&data) {
        (a.monitors)(remove_pool(pool)).await?;
    }
    let list: Vec<String> = data.iter().map(|p| format!("'{p}'")).collect();
    Ok(Reply::data(format!("metadata pool: {metadata} data pool: [{}] removed", list.join(", "))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::rc::Rc;
    use types::{EntityAddrVec, fsmap};

    fn map() -> FsMap {
        let mut fs = Filesystem { id: 1, ..Filesystem::default() };
        fs.map.fs_name = "cephfs".into();
        (fs.map.metadata_pool, fs.map.data_pools) = (1, vec![2]);
        let mut info =
            fsmap::MdsInfo::standby(10, "a", EntityAddrVec::default(), fs.map.compat.clone());
        (info.rank, info.state) = (0, MdsState::ACTIVE);
        fs.map.mds_info.insert(10, info);
        fs.map.up.insert(0, 10);
        fs.map.ranks_in = [0, 1].into();
        FsMap { filesystems: [(1, fs)].into(), ..FsMap::default() }
    }

    /// Runs a command with monitors that answer by this function, and keeps what they were asked.
    fn run(
        handler: &str,
        args: Value,
        monitors: impl Fn(&Value) -> Answer + 'static,
    ) -> (Answer, Vec<Value>) {
        let asked: Rc<RefCell<Vec<Value>>> = Rc::default();
        let seen = asked.clone();
        let monitors = Rc::new(monitors);
        let pool = |name: &str, used| PoolLine { name: name.into(), used, avail: 1 << 30 };
        let args = Args::parse(&[args.to_string()]).unwrap();
        let a = Ask {
            monitors: Box::new(move |command| {
                seen.borrow_mut().push(command.clone());
                let monitors = monitors.clone();
                Box::pin(async move { monitors(&command) })
            }),
            format: Format::of(&args),
            args,
            fs: Arc::new(map()),
            pools: [(1, pool("meta", 98_304)), (2, pool("data", 0))].into(),
            counters: Counters::default(),
            volumes: None,
            clients: Clients::unused(),
            crashes: Vec::new(),
            telemetry: Default::default(),
            now: types::Utime::default(),
        };
        let entry = COMMANDS.iter().find(|e| e.prefix() == handler).unwrap();
        let Run::Fs(handler) = entry.handler else { panic!("{handler} is not run here") };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let answer = runtime.block_on(handler(a));
        (answer, asked.take())
    }

    fn text(answer: Answer) -> String {
        String::from_utf8(answer.unwrap().data.to_vec()).unwrap()
    }

    #[test]
    fn numbers_are_short() {
        for (n, text) in [(0.0, "   0 "), (9999.0, "9999 "), (12_345.0, "12.3k"), (1e6, "1000k")] {
            assert_eq!(short(n, 1000.0, 5), text);
        }
        assert_eq!(short(98_304.0, 1024.0, 5), "96.0k");
        assert_eq!(short(123_456_789.0, 1000.0, 5), " 123M");
    }

    #[test]
    fn status_is_that_of_ceph() {
        let metadata = r#"[{"name":"a","ceph_version":"v"},{"name":"b","ceph_version":"v"}]"#;
        let monitors = move |_: &Value| Ok(Reply::data(metadata));
        let (answer, asked) = run("fs status", json!({"prefix": "fs status"}), monitors);
        assert_eq!(asked.len(), 1);
        // As the module of 16.2 prints it, without colours.
        let lines = [
            "cephfs - 0 clients",
            "======",
            "RANK  STATE   MDS     ACTIVITY     DNS    INOS   DIRS   CAPS  ",
            " 0    active   a   Reqs:    0 /s     0      0      0      0   ",
            " 1    failed                                                  ",
            "POOL    TYPE     USED  AVAIL  ",
            "meta  metadata  96.0k  1024M  ",
            "data    data       0   1024M  ",
            "",
            "STANDBY MDS  ",
            "MDS version: v",
        ];
        assert_eq!(text(answer), lines.join("\n"));
        let json_args = json!({"prefix": "fs status", "format": "json"});
        let v: Value =
            serde_json::from_str(&text(run("fs status", json_args, monitors).0)).unwrap();
        assert_eq!(v["mdsmap"][0]["rate"], 0.0);
        assert_eq!(v["mdsmap"][1], json!({"rank": 1, "state": "failed"}));
        assert_eq!(v["pools"][0]["used"], 98_304);
        assert_eq!(v["mds_version"], "v");
        let other = json!({"prefix": "fs status", "fs": "nope"});
        let refusal = run("fs status", other, monitors).0.unwrap_err();
        assert_eq!((refusal.errno, &*refusal.message), (Errno::EINVAL, "Invalid filesystem: nope"));
    }

    #[test]
    fn a_volume_that_fails_leaves_no_pools() {
        let create = json!({"prefix": "fs volume create", "name": "v"});
        let (answer, asked) = run("fs volume create", create.clone(), |c| match &c["prefix"] {
            p if p == "fs new" => Err(Refusal::invalid("no")),
            _ => Ok(Reply::empty()),
        });
        assert_eq!(answer.unwrap_err().message, "no");
        let said: Vec<String> = asked
            .iter()
            .map(|c| {
                format!("{} {}", c["prefix"].as_str().unwrap(), c["pool"].as_str().unwrap_or(""))
            })
            .collect();
        assert_eq!(
            said,
            [
                "osd pool create cephfs.v.meta",
                "osd pool create cephfs.v.data",
                "fs new ",
                "osd pool rm cephfs.v.data",
                "osd pool rm cephfs.v.meta",
            ]
        );
        let (answer, asked) = run("fs volume create", create, |_| Ok(Reply::empty()));
        assert_eq!((asked.len(), answer.is_ok()), (3, true));
        let again = json!({"prefix": "fs volume create", "name": "cephfs"});
        let (answer, asked) = run("fs volume create", again, |_| Ok(Reply::empty()));
        assert_eq!((asked.len(), answer.is_ok()), (0, true));
    }

    #[test]
    fn a_volume_goes_only_if_pools_may() {
        let monitors = |may: &'static str| {
            move |c: &Value| match &c["prefix"] {
                p if p == "config get" => Ok(Reply::data(may)),
                _ => Ok(Reply::empty()),
            }
        };
        let rm = |name: &str, sure: &str| json!({"prefix": "fs volume rm", "vol_name": name, "yes-i-really-mean-it": sure});
        let sure = "--yes-i-really-mean-it";
        let (answer, asked) = run("fs volume rm", rm("cephfs", "yes"), monitors("true"));
        assert_eq!((answer.unwrap_err().errno, asked.len()), (Errno::EPERM, 0));
        let (answer, asked) = run("fs volume rm", rm("cephfs", sure), monitors("false"));
        assert_eq!((answer.unwrap_err().errno, asked.len()), (Errno::EPERM, 1));
        let (answer, _) = run("fs volume rm", rm("nope", sure), monitors("true"));
        assert_eq!(answer.unwrap_err().message, "volume nope doesn't exist");
        let (answer, asked) = run("fs volume rm", rm("cephfs", sure), monitors("true"));
        assert_eq!(text(answer), "metadata pool: meta data pool: ['data'] removed");
        assert_eq!(asked.len(), 5);
    }
}
