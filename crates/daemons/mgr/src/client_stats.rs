//! What clients of file systems count, as metadata servers tell it (Ceph: module `stats` and
//! `MDSPerfMetricCollector`, 16.2). No I/O.
//!
//! Servers are asked only while commands ask: each question goes out of date a minute after the
//! last command. Everything is asked for, and filters choose from it.

use command::{Args, Refusal, Reply};
use messages::{ClientCounter, ClientQuery, ClientReport};
use serde_json::{Map, Value, json};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::Notify;
use types::fsmap::{Filesystem, MdsState};
use types::{FsMap, Utime};

/// The module that has to be enabled.
pub const MODULE: &str = "stats";
/// Servers are asked for so long after the last command (Ceph: `QUERY_EXPIRE_INTERVAL`).
pub const ASKED_FOR: Duration = Duration::from_secs(60);
/// A rank that has told nothing for so long is late (Ceph: `mds_ping_grace`).
const LATE: Duration = Duration::from_secs(15);
/// The version of what is shown (Ceph: `PERF_STATS_VERSION`, 16.2.15).
const VERSION: u32 = 2;
/// What stands for a text that a client does not tell.
const UNKNOWN: &str = "N/A";

type Values = [(u64, u64); ClientCounter::NAMES.len()];

/// What one client counts, and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Counted {
    addr: String,
    values: Values,
}

/// What a server told last.
#[derive(Debug, Default)]
struct Told {
    at: Utime,
    /// Clients by rank. A stock server tells those of all ranks.
    ranks: BTreeMap<i32, BTreeSet<u64>>,
    clients: BTreeMap<u64, Counted>,
    delayed: BTreeSet<i32>,
}

/// A client and its address, as keys name them: `client.4305 10.0.0.1`.
fn client_of(key: &[String]) -> Option<(u64, &str)> {
    let (name, addr) = key.first()?.split_once(' ')?;
    Some((name.strip_prefix("client.")?.parse().ok()?, addr))
}

impl Told {
    /// Reads a report. Rows that name no client are left out.
    fn read(report: &ClientReport, at: Utime) -> denc::Result<Told> {
        let mut told = Told { at, delayed: report.delayed.clone(), ..Told::default() };
        // Older servers leave counters out that they do not know, also from the question.
        let answer = |query: ClientQuery| {
            report.answers.iter().find(|(q, _)| q.keys == query.keys).map(|(_, rows)| rows)
        };
        if let Some(answer) = answer(ClientQuery::ranks()) {
            for key in answer.rows.keys() {
                let [rank, client] = key.as_slice() else { continue };
                let rank = rank.first().and_then(|r| r.parse().ok());
                if let (Some(rank), Some((client, _))) = (rank, client_of(client)) {
                    told.ranks.entry(rank).or_default().insert(client);
                }
            }
        }
        if let Some(answer) = answer(ClientQuery::clients()) {
            for (key, row) in &answer.rows {
                let Some((client, addr)) = key.first().and_then(|k| client_of(k)) else { continue };
                let values = answer.values(row)?;
                told.clients.insert(client, Counted { addr: addr.to_owned(), values });
            }
        }
        Ok(told)
    }
}

/// What is known of clients.
#[derive(Debug, Default)]
pub struct ClientStats {
    /// When a command asked last, and the first one before that which had nothing to show.
    asked: Option<(Utime, Utime)>,
    servers: BTreeMap<String, Told>,
    /// Descriptions by file system and client.
    described: BTreeMap<(i32, u64), Map<String, Value>>,
}

impl ClientStats {
    /// A command asks. For how long servers were asked before.
    pub fn ask(&mut self, now: Utime) -> Duration {
        let first = match self.asked {
            Some((last, first)) if now.since(last) < ASKED_FOR => first,
            _ => now,
        };
        self.asked = Some((now, first));
        now.since(first)
    }

    /// Whether servers are to be asked. When they are not any more, everything is forgotten.
    pub fn is_wanted(&mut self, now: Utime) -> bool {
        let wanted = self.asked.is_some_and(|(last, _)| now.since(last) < ASKED_FOR);
        if !wanted {
            *self = ClientStats::default();
        }
        wanted
    }

    /// Takes what a server says. One that says nothing of clients has no active rank, has not heard
    /// the question yet, or is a stock one of another rank than 0.
    pub fn report(
        &mut self,
        server: &str,
        report: Option<&ClientReport>,
        now: Utime,
    ) -> denc::Result<()> {
        if self.asked.is_none() {
            return Ok(());
        }
        match report {
            Some(report) => self.servers.insert(server.to_owned(), Told::read(report, now)?),
            None => self.servers.remove(server),
        };
        Ok(())
    }

    /// A server opens a session: what it told before counts no longer.
    pub fn open(&mut self, server: &str) {
        self.servers.remove(server);
    }

    /// Forgets servers and file systems that are not in the map.
    pub fn follow(&mut self, map: &FsMap) {
        self.servers.retain(|name, _| map.daemons().any(|i| i.name == *name));
        self.described.retain(|(fs, _), _| map.filesystems.contains_key(fs));
    }

    /// Whether all active servers have told of their clients. Of stock ones, rank 0 tells for all.
    pub fn is_complete(&self, map: &FsMap) -> bool {
        let mut active = map.filesystems.values().flat_map(active);
        active.all(|(_, _, name)| self.servers.contains_key(name))
    }

    /// The clients of a rank, if it is one that the filter lets through: of all that servers of the
    /// file system told.
    fn clients_of(&self, fs: &Filesystem, rank: i32, filter: &Filter) -> BTreeSet<u64> {
        if !filter.ranks.as_ref().is_none_or(|ranks| ranks.contains(&rank)) {
            return BTreeSet::new();
        }
        let told = active(fs).filter_map(|(_, _, name)| self.servers.get(name));
        let clients = told.filter_map(|t| t.ranks.get(&rank)).flatten().copied();
        clients.filter(|c| self.counted(fs, *c).is_some_and(|k| filter.admits(*c, &k))).collect()
    }

    /// What a client counts. A client tells one rank: others have nothing of it.
    fn counted(&self, fs: &Filesystem, client: u64) -> Option<Counted> {
        let told = active(fs).filter_map(|(_, _, name)| self.servers.get(name));
        let mut all = told.filter_map(|t| t.clients.get(&client));
        let mut counted = all.next()?.clone();
        for more in all {
            for (value, other) in counted.values.iter_mut().zip(more.values) {
                if *value == (0, 0) {
                    *value = other;
                }
            }
        }
        Some(counted)
    }

    /// The servers that may describe clients that are to be shown and that have no description:
    /// file system and global id.
    pub fn undescribed(&self, map: &FsMap, filter: &Filter) -> Vec<(i32, u64)> {
        let lacks = |fs: &Filesystem, rank| {
            let clients = self.clients_of(fs, rank, filter);
            clients.iter().any(|c| !self.described.contains_key(&(fs.id, *c)))
        };
        let of = |fs| {
            active(fs).filter(move |(rank, _, _)| lacks(fs, *rank)).map(|(_, gid, _)| (fs.id, gid))
        };
        map.filesystems.values().flat_map(of).collect()
    }

    /// Takes the sessions that a server of a file system lists. Those of clients that nothing is
    /// known of are left out.
    pub fn describe(&mut self, map: &FsMap, id: i32, sessions: &Value) {
        let Some(fs) = map.filesystems.get(&id) else { return };
        let mut described = std::mem::take(&mut self.described);
        described.retain(|(of, client), _| *of != id || self.counted(fs, *client).is_some());
        for session in sessions.as_array().into_iter().flatten() {
            let Some(client) = session["id"].as_u64() else { continue };
            if self.counted(fs, client).is_some() {
                described.insert((id, client), description(&session["client_metadata"]));
            }
        }
        self.described = described;
    }

    /// What `fs perf stats` shows.
    pub fn show(&self, map: &FsMap, filter: &Filter, now: Utime) -> Value {
        let (mut described, mut counted) = (Map::new(), Map::new());
        let mut ranks: BTreeMap<i32, Map<String, Value>> = BTreeMap::new();
        let mut delayed = BTreeSet::new();
        for fs in map.filesystems.values() {
            let mut shown = BTreeSet::new();
            for (rank, _, _) in active(fs) {
                let clients = self.clients_of(fs, rank, filter);
                if clients.is_empty() {
                    continue;
                }
                let mut tellers = active(fs).filter_map(|(_, _, name)| self.servers.get(name));
                let late = |t: &Told| now.since(t.at) > LATE || t.delayed.contains(&rank);
                if tellers.any(|t| t.ranks.contains_key(&rank) && late(t)) {
                    delayed.insert(rank);
                }
                let lines = clients.iter().map(|c| (format!("client.{c}"), json!([])));
                ranks.entry(rank).or_default().extend(lines);
                shown.extend(clients);
            }
            if shown.is_empty() {
                continue;
            }
            let (mut descriptions, mut values) = (Map::new(), Map::new());
            for client in shown {
                let Some(c) = self.counted(fs, client) else { continue };
                let mut description = self
                    .described
                    .get(&(fs.id, client))
                    .cloned()
                    .unwrap_or_else(|| description(&Value::Null));
                description.insert("IP".to_owned(), c.addr.into());
                descriptions.insert(format!("client.{client}"), description.into());
                values.insert(format!("client.{client}"), json!(c.values));
            }
            described.insert(fs.map.fs_name.clone(), descriptions.into());
            counted.insert(fs.map.fs_name.clone(), values.into());
        }
        let mut metrics = json!({"delayed_ranks": delayed});
        for (rank, clients) in ranks {
            metrics[format!("mds.{rank}")] = clients.into();
        }
        json!({
            "version": VERSION,
            "global_counters": ClientCounter::NAMES,
            // Nothing is counted for each rank.
            "counters": [],
            "client_metadata": described,
            "global_metrics": counted,
            "metrics": metrics,
        })
    }
}

/// The active ranks of a file system: number, global id and name of the server.
fn active(fs: &Filesystem) -> impl Iterator<Item = (i32, u64, &str)> + Clone {
    fs.map.up.iter().filter_map(|(rank, gid)| {
        let info = fs.map.mds_info.get(gid)?;
        (info.state == MdsState::ACTIVE).then_some((*rank, *gid, info.name.as_str()))
    })
}

/// What is shown of what a client says about itself.
fn description(said: &Value) -> Map<String, Value> {
    let text = |key: &str| said[key].as_str().unwrap_or(UNKNOWN).to_owned();
    let bits = said["metric_spec"]["metric_flags"]["feature_bits"].as_str();
    let bits = bits.and_then(|b| u64::from_str_radix(b.trim_start_matches("0x"), 16).ok());
    let has = |number: usize| bits.unwrap_or(0) >> number & 1 == 1;
    let valid: Vec<&str> =
        (0..).zip(ClientCounter::NAMES).filter(|(n, _)| has(*n)).map(|(_, name)| name).collect();
    let mut shown = Map::new();
    for key in ["hostname", "root", "mount_point"] {
        shown.insert(key.to_owned(), text(key).into());
    }
    shown.insert("valid_metrics".to_owned(), json!(valid));
    // Clients in the kernel alone have one.
    if let Some(version) = said["kernel_version"].as_str() {
        shown.insert("kernel_version".to_owned(), version.into());
    }
    shown
}

/// What a command wants to see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    ranks: Option<BTreeSet<i32>>,
    client: Option<u64>,
    ip: Option<IpAddr>,
}

impl Filter {
    /// Reads filters; the text says which one makes no sense.
    pub fn of(args: &Args) -> Result<Filter, String> {
        let given = |name| args.str(name).filter(|text| !text.is_empty());
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let ranks = given("mds_rank").map(|text| {
            // Digits that are too many for a rank are no rank that there is.
            let rank = |n: &str| digits(n).then(|| n.parse().unwrap_or(i32::MAX));
            let all: Option<BTreeSet<i32>> = text.split(',').map(rank).collect();
            all.ok_or_else(|| format!("invalid mds filter spec: {text}"))
        });
        let client = given("client_id").map(|text| match digits(text) {
            true => Ok(text.parse().unwrap_or(u64::MAX)),
            false => Err(format!("invalid client_id filter spec: {text}")),
        });
        let ip = given("client_ip").map(|text| {
            let bare = text.strip_prefix("v1:").or_else(|| text.strip_prefix("v2:"));
            let ip = bare.unwrap_or(text).parse();
            ip.map_err(|_| format!("invalid client_ip filter spec: {text}"))
        });
        Ok(Filter { ranks: ranks.transpose()?, client: client.transpose()?, ip: ip.transpose()? })
    }

    fn admits(&self, client: u64, counted: &Counted) -> bool {
        self.client.is_none_or(|c| c == client)
            && self.ip.is_none_or(|ip| ip_of(&counted.addr) == Some(ip))
    }
}

/// The address in `10.0.0.1`, `v1:10.0.0.1` or `[fe80::1]`.
fn ip_of(addr: &str) -> Option<IpAddr> {
    let bare = addr.strip_prefix("v1:").or_else(|| addr.strip_prefix("v2:")).unwrap_or(addr);
    bare.trim_matches(['[', ']']).parse().ok()
}

/// A metadata server's answer to a command, which takes time.
pub type Later = Pin<Box<dyn Future<Output = Result<Reply, Refusal>>>>;

/// Gives a metadata server a command, by its global id.
pub type AskServer = Box<dyn Fn(u64, Value) -> Later>;

/// What is known of clients, and what waits for more.
#[derive(Default)]
pub struct Kept {
    /// What is known.
    pub stats: RefCell<ClientStats>,
    /// A command asks.
    pub asked: Notify,
    /// A server has told something.
    pub told: Notify,
}

/// What a command about clients has.
pub struct Clients {
    /// Whether the module is enabled.
    pub enabled: bool,
    /// What is known.
    pub kept: Rc<Kept>,
    /// Metadata servers.
    pub server: AskServer,
}

#[cfg(test)]
impl Clients {
    /// For commands that ask nothing about clients.
    pub fn unused() -> Clients {
        let server = |_, _| -> Later { panic!("no metadata server is asked") };
        Clients { enabled: false, kept: Rc::default(), server: Box::new(server) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use messages::{ClientKey, ClientRows};
    use types::EntityAddrVec;
    use types::fsmap::MdsInfo;

    const NOW: Utime = Utime { sec: 100, nsec: 0 };

    /// A file system with two active ranks, `a` and `b`.
    fn map() -> FsMap {
        let mut fs = Filesystem { id: 1, ..Filesystem::default() };
        fs.map.fs_name = "cephfs".into();
        for (rank, name) in [(0, "a"), (1, "b")] {
            let gid = 10 + rank as u64;
            let compat = fs.map.compat.clone();
            let mut info = MdsInfo::standby(gid, name, EntityAddrVec::default(), compat);
            (info.rank, info.state) = (rank, MdsState::ACTIVE);
            fs.map.mds_info.insert(gid, info);
            fs.map.up.insert(rank, gid);
        }
        FsMap { filesystems: [(1, fs)].into(), ..FsMap::default() }
    }

    /// The question as a server has it that knows one counter.
    fn fewer() -> ClientQuery {
        ClientQuery { counters: vec![ClientCounter(0)], ..ClientQuery::clients() }
    }

    /// A report about clients: name with address, hits of capabilities.
    fn report(rank: i32, clients: &[(&str, u64)]) -> ClientReport {
        let name = |c: &str| vec![format!("client.{c}")];
        let by_rank = |(c, _): &(&str, u64)| -> (ClientKey, _) {
            (vec![vec![rank.to_string()], name(c)], ClientRows::row(&[]))
        };
        let global = |(c, hits): &(&str, u64)| -> (ClientKey, _) {
            (vec![name(c)], ClientRows::row(&[(*hits, 1)]))
        };
        let ranks =
            ClientRows { rows: clients.iter().map(by_rank).collect(), ..Default::default() };
        let rows = clients.iter().map(global).collect();
        let all = ClientRows { counters: vec![ClientCounter(0)], rows };
        let answers = [(ClientQuery::ranks(), ranks), (fewer(), all)];
        ClientReport { answers: answers.into(), ..ClientReport::default() }
    }

    fn known() -> ClientStats {
        let mut s = ClientStats::default();
        s.ask(NOW);
        s.report("a", Some(&report(0, &[("5 10.0.0.1", 7), ("6 [fe80::1]", 0)])), NOW).unwrap();
        // Rank 1 hears nothing of what they count.
        let mut silent = report(1, &[("5 10.0.0.1", 0)]);
        let rows = &mut silent.answers.get_mut(&fewer()).unwrap().rows;
        rows.values_mut().for_each(|row| *row = ClientRows::row(&[(0, 0)]));
        s.report("b", Some(&silent), NOW).unwrap();
        s
    }

    fn filter(text: &str) -> Result<Filter, String> {
        Filter::of(&Args::parse(&[text.to_owned()]).unwrap())
    }

    fn clients_of(shown: &Value, place: &str) -> Vec<String> {
        shown
            .pointer(place)
            .and_then(Value::as_object)
            .map(|o| o.keys().cloned().collect())
            .unwrap_or_default()
    }

    #[test]
    fn what_is_shown_has_the_shape_of_16_2() {
        let mut s = known();
        assert_eq!(s.undescribed(&map(), &Filter::default()), [(1, 10), (1, 11)]);
        let session = json!([{"id": 5, "client_metadata": {
            "hostname": "h", "root": "/", "kernel_version": "6.1",
            "metric_spec": {"metric_flags": {"feature_bits": "0x0000000000000009"}},
        }}, {"id": 6}, {"id": 7}]);
        s.describe(&map(), 1, &session);
        assert_eq!(s.undescribed(&map(), &Filter::default()), []);
        let shown = s.show(&map(), &Filter::default(), NOW);
        let keys: Vec<&String> = shown.as_object().unwrap().keys().collect();
        let expected = [
            "version",
            "global_counters",
            "counters",
            "client_metadata",
            "global_metrics",
            "metrics",
        ];
        assert_eq!(keys, expected);
        assert_eq!((&shown["version"], &shown["counters"]), (&json!(2), &json!([])));
        assert_eq!(
            shown["client_metadata"]["cephfs"],
            json!({
                "client.5": {
                    "hostname": "h", "root": "/", "mount_point": "N/A",
                    "valid_metrics": ["cap_hit", "metadata_latency"], "kernel_version": "6.1",
                    "IP": "10.0.0.1",
                },
                "client.6": {
                    "hostname": "N/A", "root": "N/A", "mount_point": "N/A", "valid_metrics": [],
                    "IP": "[fe80::1]",
                },
            })
        );
        let values = &shown["global_metrics"]["cephfs"]["client.5"];
        assert_eq!(values.as_array().unwrap().len(), 16);
        assert_eq!((&values[0], &values[1]), (&json!([7, 1]), &json!([0, 0])));
        assert_eq!(
            shown["metrics"],
            json!({
                "delayed_ranks": [],
                "mds.0": {"client.5": [], "client.6": []},
                "mds.1": {"client.5": []},
            })
        );
    }

    #[test]
    fn filters_choose() {
        let s = known();
        let shown = |text| s.show(&map(), &filter(text).unwrap(), NOW);
        let (all, zero, one) = ("/global_metrics/cephfs", "/metrics/mds.0", "/metrics/mds.1");
        let found = |text| [all, zero, one].map(|place| clients_of(&shown(text), place).join(" "));
        assert_eq!(found(r#"{"mds_rank": "1"}"#), ["client.5", "", "client.5"]);
        assert_eq!(found(r#"{"mds_rank": "0,1"}"#)[0], "client.5 client.6");
        assert_eq!(found(r#"{"mds_rank": "7"}"#), ["", "", ""]);
        assert_eq!(found(r#"{"client_id": "6"}"#), ["client.6", "client.6", ""]);
        assert_eq!(found(r#"{"client_id": "99999999999999999999"}"#), ["", "", ""]);
        assert_eq!(found(r#"{"client_ip": "10.0.0.1"}"#), ["client.5", "client.5", "client.5"]);
        assert_eq!(found(r#"{"client_ip": "v1:fe80::1"}"#)[0], "client.6");
        assert_eq!(found(r#"{"client_ip": "10.0.0.2"}"#), ["", "", ""]);
        assert_eq!(shown(r#"{"client_ip": "10.0.0.2"}"#)["global_metrics"], json!({}));
    }

    #[test]
    fn filters_that_make_no_sense_are_refused() {
        for (text, refusal) in [
            (r#"{"mds_rank": "0,"}"#, "invalid mds filter spec: 0,"),
            (r#"{"mds_rank": "a"}"#, "invalid mds filter spec: a"),
            (r#"{"client_id": "-1"}"#, "invalid client_id filter spec: -1"),
            (r#"{"client_ip": "foo"}"#, "invalid client_ip filter spec: foo"),
        ] {
            assert_eq!(filter(text).unwrap_err(), refusal);
        }
        assert_eq!(filter(r#"{"mds_rank": ""}"#), Ok(Filter::default()));
    }

    #[test]
    fn a_rank_that_is_silent_is_delayed_and_one_that_is_gone_is_not_shown() {
        let mut s = known();
        let later = Utime { sec: 116, nsec: 0 };
        s.report("a", Some(&report(0, &[("5 10.0.0.1", 7)])), later).unwrap();
        let shown = s.show(&map(), &Filter::default(), later);
        assert_eq!(shown["metrics"]["delayed_ranks"], json!([1]));
        assert_eq!(clients_of(&shown, "/metrics/mds.0"), ["client.5"]);
        let mut fewer = map();
        let fs = fewer.filesystems.get_mut(&1).unwrap();
        fs.map.up.remove(&1);
        fs.map.mds_info.remove(&11);
        s.follow(&fewer);
        let shown = s.show(&fewer, &Filter::default(), later);
        assert_eq!(shown["metrics"], json!({"delayed_ranks": [], "mds.0": {"client.5": []}}));
        // A stock rank 0 says which ranks it hears nothing of.
        let mut late = report(0, &[("5 10.0.0.1", 7)]);
        late.delayed.insert(0);
        s.report("a", Some(&late), later).unwrap();
        assert_eq!(
            s.show(&fewer, &Filter::default(), later)["metrics"]["delayed_ranks"],
            json!([0])
        );
    }

    #[test]
    fn questions_go_out_of_date() {
        let mut s = ClientStats::default();
        s.report("a", Some(&report(0, &[("5 10.0.0.1", 7)])), NOW).unwrap();
        assert!(!s.is_complete(&map()), "what was not asked for is not kept");
        assert_eq!(s.ask(NOW), Duration::ZERO);
        s.report("a", Some(&report(0, &[("5 10.0.0.1", 7)])), NOW).unwrap();
        assert!(!s.is_complete(&map()));
        s.report("b", None, NOW).unwrap();
        assert!(!s.is_complete(&map()), "the question may not have been heard");
        s.report("b", Some(&report(1, &[])), NOW).unwrap();
        assert!(s.is_complete(&map()));
        assert_eq!(s.ask(Utime { sec: 150, nsec: 0 }), Duration::from_secs(50));
        assert!(s.is_wanted(Utime { sec: 209, nsec: 0 }));
        assert!(!s.is_wanted(Utime { sec: 210, nsec: 0 }));
        assert!(!s.is_complete(&map()), "everything is forgotten");
        assert_eq!(s.ask(Utime { sec: 220, nsec: 0 }), Duration::ZERO);
    }

    #[test]
    fn forged_rows_are_left_out_or_refused() {
        let mut s = ClientStats::default();
        s.ask(NOW);
        let mut forged = report(0, &[("x 10.0.0.1", 7), ("5", 7)]);
        s.report("a", Some(&forged), NOW).unwrap();
        assert_eq!(
            s.show(&map(), &Filter::default(), NOW)["metrics"],
            json!({"delayed_ranks": []})
        );
        let key = vec![vec!["client.5 10.0.0.1".to_owned()]];
        let answer = forged.answers.get_mut(&fewer()).unwrap();
        answer.rows.insert(key, denc::Bytes::from_static(&[1, 2]));
        assert!(s.report("a", Some(&forged), NOW).is_err());
    }
}
