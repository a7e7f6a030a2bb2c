use super::*;
use crate::command::{Signature, Word};
use crate::mkfs::{MkfsArgs, initial_state};
use crate::state::{ClusterState, Pending};
use ::auth::{CryptoKey, Keyring};
use serde_json::json;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use types::errno::Errno;
use types::{EntityAddr, EntityAddrVec, PgId, Utime};

#[test]
fn every_signature_is_well_formed() {
    let mut seen = BTreeSet::new();
    for c in FAMILIES.iter().copied().flatten() {
        assert!(seen.insert(c.signature), "{} is there twice", c.signature);
        let signature = Signature::parse(c.signature);
        assert!(matches!(signature.0.first(), Some(Word::Literal(_))), "{}", c.signature);
        let mut names = BTreeSet::new();
        for a in signature.args() {
            assert!(!a.name().is_empty() && a.kind().starts_with("Ceph"), "{}", c.signature);
            assert!(names.insert(a.name()), "{}: {} is there twice", c.signature, a.name());
            assert!(a.kind() != "CephChoices" || a.choices().count() > 0, "{}", c.signature);
        }
        assert!(!c.help.is_empty() && c.help.ends_with('.'), "{}", c.signature);
        assert!(!c.perm.is_empty() && c.perm.chars().all(|p| "rwx".contains(p)), "{}", c.signature);
        if matches!(c.handler, Run::Write(_)) {
            assert!(c.needs('w'), "{} changes the state with permission to read", c.signature);
        }
        assert_eq!(find_prefix(c.prefix()).map(|f| f.prefix()), Some(c.prefix()));
    }
    assert!(seen.len() > 150);
}

/// A monitor's state and surroundings without the monitor.
pub(super) struct Bench {
    pub(super) pending: Pending,
    pub(super) conf: Rc<RefCell<conf::Config>>,
    caller: Caller,
    mon: MonStatus,
    stats: Stats,
    /// What comes with a command.
    input: Bytes,
}

impl Bench {
    pub(super) fn new() -> Bench {
        let addrs = EntityAddrVec::one(EntityAddr::msgr2("127.0.0.1:3300".parse().unwrap(), 0));
        let args = MkfsArgs {
            fsid: types::Fsid([7; 16]),
            name: "a".into(),
            monitors: [("a".to_owned(), addrs)].into(),
            mon_key: CryptoKey::default(),
            keyring: Keyring::default(),
            crush: None,
            config: BTreeMap::new(),
            now: Utime::new(1000, 0),
        };
        let conf = Rc::new(RefCell::new(conf::Config::new()));
        let (state, _) = initial_state(&args, &conf.borrow()).unwrap();
        let mon = MonStatus {
            name: "a".into(),
            state: "leader",
            quorum: vec![0],
            leader: Some(0),
            ..Default::default()
        };
        let caller = Caller {
            name: "client.admin".parse().unwrap(),
            addr: EntityAddr::default(),
            features: types::features::SUPPORTED.0,
            global_id: 4100,
        };
        Bench {
            pending: Pending::new(state, Utime::new(2000, 0)),
            conf,
            caller,
            mon,
            stats: Stats::default(),
            input: Bytes::new(),
        }
    }

    /// Runs a command given as JSON and commits what it did.
    pub(super) fn run(&mut self, command: serde_json::Value) -> Answer {
        let args = Args::parse(&[command.to_string()])?;
        let entry = find(&args)?;
        let sessions = || Vec::new();
        let input = self.input.clone();
        let env = Env {
            now: Utime::new(2000, 0),
            conf: &self.conf,
            mon: &self.mon,
            caller: &self.caller,
            input: &input,
            stats: &self.stats,
            sessions: &sessions,
        };
        let answer = match entry.handler {
            Run::Read(f) => f(&Read { state: self.pending.state(), env: &env, args: &args }),
            Run::Write(f) => f(&mut Write { pending: &mut self.pending, env: &env, args: &args }),
            Run::Unsupported(why) => Err(Refusal::unsupported(why)),
        };
        self.pending.close();
        answer
    }

    pub(super) fn json(&mut self, mut command: serde_json::Value) -> serde_json::Value {
        command["format"] = json!("json");
        let reply = self.run(command.clone()).unwrap_or_else(|e| panic!("{command}: {e}"));
        serde_json::from_slice(&reply.data).unwrap_or_else(|e| panic!("{command}: {e}"))
    }

    pub(super) fn errno(&mut self, command: serde_json::Value) -> Errno {
        match self.run(command.clone()) {
            Ok(reply) => panic!("{command}: {reply:?}"),
            Err(e) => e.errno,
        }
    }
}

#[test]
fn clocks_that_are_too_far_apart_are_told() {
    let mut b = Bench::new();
    assert_eq!(
        b.json(json!({"prefix": "time-sync-status"}))["timechecks"]["round_status"],
        "finished"
    );
    assert_eq!(
        b.json(json!({"prefix": "time-sync-status"})).get("time_skew_status"),
        None,
        "there is one clock"
    );
    let clock = |skew| ClockSkew { skew, latency: 0.00025 };
    b.mon.clocks = [("a", clock(0.0)), ("b", clock(-0.75)), ("c", clock(0.04)), ("d", clock(2.5))]
        .map(|(n, c)| (n.to_owned(), c))
        .into();
    let check =
        b.json(json!({"prefix": "health", "detail": "detail"}))["checks"]["MON_CLOCK_SKEW"].clone();
    assert_eq!(check["severity"], "HEALTH_WARN");
    assert_eq!(
        check["summary"],
        json!({"message": "clock skew detected on mon.b, mon.d", "count": 2})
    );
    assert_eq!(
        check["detail"][0]["message"],
        "mon.b clock skew 0.75s > max 0.05s (latency 0.00025s)"
    );
    let status = b.json(json!({"prefix": "time-sync-status"}))["time_skew_status"].clone();
    assert_eq!(
        status["b"],
        json!({"skew": -0.75, "latency": 0.00025, "health": "HEALTH_WARN", "details": "clock skew 0.75s > max 0.05s"})
    );
    assert_eq!(status["c"], json!({"skew": 0.04, "latency": 0.00025, "health": "HEALTH_OK"}));
    b.conf
        .borrow_mut()
        .set(conf::effective::Source::CommandLine, "mon_clock_drift_allowed", "3")
        .unwrap();
    assert_eq!(b.json(json!({"prefix": "health"}))["checks"].get("MON_CLOCK_SKEW"), None);
}

#[test]
fn monitors_without_space_are_named() {
    let mut b = Bench::new();
    b.mon.free = [("a", 31), ("b", 30), ("c", 6), ("d", 5)].map(|(n, p)| (n.to_owned(), p)).into();
    let checks = b.json(json!({"prefix": "health", "detail": "detail"}))["checks"].clone();
    assert_eq!(checks["MON_DISK_LOW"]["severity"], "HEALTH_WARN");
    assert_eq!(
        checks["MON_DISK_LOW"]["summary"],
        json!({"message": "mons b,c are low on available space", "count": 2})
    );
    assert_eq!(checks["MON_DISK_LOW"]["detail"][1]["message"], "mon.c has 6% avail");
    assert_eq!(checks["MON_DISK_CRIT"]["severity"], "HEALTH_ERR");
    assert_eq!(
        checks["MON_DISK_CRIT"]["summary"]["message"],
        "mon d is very low on available space"
    );
}

#[test]
fn daemons_of_old_versions_are_named_when_the_delay_is_over() {
    let mut b = Bench::new();
    for (name, version) in [("a", "19.2.0"), ("b", "19.2.1"), ("c", "19.2.0")] {
        let m = [("ceph_version_short".to_owned(), version.to_owned())].into();
        b.pending.put(crate::state::Change::MonMetadata(name.into(), Some(m)));
    }
    b.pending.close();
    let check = |b: &mut Bench| {
        b.json(json!({"prefix": "health", "detail": "detail"}))["checks"]
            .get("DAEMON_OLD_VERSION")
            .cloned()
    };
    assert_eq!(check(&mut b), None);
    b.mon.mixed_for = Some(std::time::Duration::from_secs(7 * 86_400));
    assert_eq!(check(&mut b), None, "an upgrade may take a week");
    b.mon.mixed_for = Some(std::time::Duration::from_secs(7 * 86_400 + 1));
    let found = check(&mut b).unwrap();
    assert_eq!(found["severity"], "HEALTH_WARN");
    assert_eq!(found["summary"]["message"], "There are daemons running an older version of ceph");
    assert_eq!(
        found["detail"][0]["message"],
        "mon.a mon.c are running an older version of ceph: 19.2.0"
    );
}

#[test]
fn a_rotated_key_is_a_new_one_with_the_same_caps() {
    let mut b = Bench::new();
    let caps = json!(["mon", "allow r", "osd", "allow rw"]);
    b.json(json!({"prefix": "auth get-or-create", "entity": "client.r", "caps": caps}));
    let before = b.json(json!({"prefix": "auth get", "entity": "client.r"}));
    let rotated = b.json(json!({"prefix": "auth rotate", "entity": "client.r"}));
    assert_eq!(rotated, b.json(json!({"prefix": "auth get", "entity": "client.r"})));
    assert_ne!(rotated[0]["key"], before[0]["key"]);
    assert_eq!(rotated[0]["caps"], before[0]["caps"]);
    let keys = b.json(json!({"prefix": "auth dump-keys"}));
    let secrets = keys["data"]["secrets"].as_array().unwrap();
    let mine = secrets.iter().find(|s| s["entity"]["id"] == "r").unwrap();
    assert_eq!(mine["entity"]["type_str"], "client");
    assert_eq!(mine["auth"]["key"]["key"], rotated[0]["key"]);
}

#[test]
fn a_command_that_is_refused_changes_nothing() {
    let mut b = Bench::new();
    let before = b.pending.state().osd.last();
    for (command, errno) in [
        (json!({"prefix": "osd pool create", "pool": "x", "pg_num": 100_000}), Errno::ERANGE),
        (
            json!({"prefix": "osd pool create", "pool": "x", "pg_num": 8, "pgp_num": 9}),
            Errno::ERANGE,
        ),
        (json!({"prefix": "osd pool create", "pool": "x", "pg_num": 4096}), Errno::ERANGE),
        (json!({"prefix": "osd pool create", "pool": "x", "rule": "none"}), Errno::ENOENT),
        (
            json!({"prefix": "osd pool create", "pool": "x", "pool_type": "erasure"}),
            Errno::EOPNOTSUPP,
        ),
        (json!({"prefix": "osd pool create", "pool": "x", "size": 1}), Errno::EPERM),
        (json!({"prefix": "osd pool rename", "srcpool": "x", "destpool": "y"}), Errno::ENOENT),
        (
            json!({"prefix": "osd crush move", "name": "nobody", "args": ["root=default"]}),
            Errno::ENOENT,
        ),
        (json!({"prefix": "osd crush add-bucket", "name": "b", "type": "nonsense"}), Errno::EINVAL),
        (
            json!({"prefix": "osd crush rule rm", "name": "replicated_rule", "extra": 1}),
            Errno::EINVAL,
        ),
        (json!({"prefix": "osd out", "ids": ["x"]}), Errno::EINVAL),
        (json!({"prefix": "osd reweight", "id": 5, "weight": 0.5}), Errno::ENOENT),
        (
            json!({"prefix": "osd blocklist", "blocklistop": "add", "addr": "nowhere"}),
            Errno::EINVAL,
        ),
        (json!({"prefix": "osd pg-upmap", "pgid": "9.0", "id": [0]}), Errno::ENOENT),
        (
            json!({"prefix": "auth caps", "entity": "client.none", "caps": ["mon", "allow r"]}),
            Errno::ENOENT,
        ),
        (json!({"prefix": "no such command"}), Errno::EINVAL),
    ] {
        if command["name"] == "replicated_rule" {
            // Without pools the rule may go; with one it may not.
            continue;
        }
        assert_eq!(b.errno(command.clone()), errno, "{command}");
    }
    assert_eq!(b.pending.state().osd.last(), before);
}

#[test]
fn pools_follow_the_rules() {
    let mut b = Bench::new();
    b.run(json!({"prefix": "osd pool create", "pool": "p", "pg_num": 8})).unwrap();
    assert_eq!(
        b.errno(json!({"prefix": "osd crush rule rm", "name": "replicated_rule"})),
        Errno::EBUSY
    );
    assert_eq!(
        b.json(json!({"prefix": "osd pool get", "pool": "p", "var": "min_size"}))["min_size"],
        2
    );
    b.run(json!({"prefix": "osd pool set", "pool": "p", "var": "size", "val": "2"})).unwrap();
    assert_eq!(
        b.json(json!({"prefix": "osd pool get", "pool": "p", "var": "min_size"}))["min_size"],
        1
    );
    for (var, val, errno) in [
        ("size", "1", Errno::EPERM),
        ("size", "11", Errno::EINVAL),
        ("size", "two", Errno::EINVAL),
        ("min_size", "3", Errno::EINVAL),
        ("pg_num", "0", Errno::ERANGE),
        ("pg_num", "4096", Errno::ERANGE),
        ("pg_num_min", "16", Errno::EINVAL),
        ("pg_num_max", "4", Errno::EINVAL),
        ("crush_rule", "none", Errno::ENOENT),
        ("hit_set_count", "1", Errno::EACCES),
        ("nodelete", "maybe", Errno::EINVAL),
        ("compression_mode", "loud", Errno::EINVAL),
    ] {
        let command = json!({"prefix": "osd pool set", "pool": "p", "var": var, "val": val});
        assert_eq!(b.errno(command), errno, "{var} {val}");
    }
    for (var, val, errno) in
        [("pg_num_max", "32", None), ("pg_num", "64", Some(Errno::EINVAL)), ("pg_num", "32", None)]
    {
        let command = json!({"prefix": "osd pool set", "pool": "p", "var": var, "val": val});
        match errno {
            Some(e) => assert_eq!(b.errno(command), e, "{var} {val}"),
            None => drop(b.run(command).unwrap()),
        }
    }
    // The number itself follows when the OSDs have told what they have.
    let p = b.pending.state().osd.map().pools.values().next().unwrap().clone();
    assert_eq!((p.pg_num, p.pgp_num, p.pg_num_target, p.pgp_num_target), (8, 8, 32, 32));
    b.run(json!({"prefix": "osd pool set", "pool": "p", "var": "target_size_bytes", "val": "10G"}))
        .unwrap();
    let got = b.json(json!({"prefix": "osd pool get", "pool": "p", "var": "target_size_bytes"}));
    assert_eq!(got["target_size_bytes"], 10u64 << 30);
    b.run(json!({"prefix": "osd pool set-quota", "pool": "p", "field": "max_bytes", "val": "2Ti"}))
        .unwrap();
    assert_eq!(
        b.json(json!({"prefix": "osd pool get-quota", "pool": "p"}))["quota_max_bytes"],
        2u64 << 40
    );

    let remove = json!({"prefix": "osd pool rm", "pool": "p", "pool2": "p", "yes_i_really_really_mean_it": true});
    assert_eq!(b.errno(remove.clone()), Errno::EPERM);
    b.conf
        .borrow_mut()
        .set(conf::effective::Source::CommandLine, "mon_allow_pool_delete", "true")
        .unwrap();
    b.run(json!({"prefix": "osd pool set", "pool": "p", "var": "nodelete", "val": "true"}))
        .unwrap();
    assert_eq!(b.errno(remove.clone()), Errno::EPERM);
    b.run(json!({"prefix": "osd pool set", "pool": "p", "var": "nodelete", "val": "0"})).unwrap();
    assert_eq!(b.run(remove.clone()).unwrap().status, "pool 'p' removed");
    assert_eq!(b.run(remove).unwrap().status, "pool 'p' does not exist");
}

#[test]
fn every_reading_command_answers_in_every_format() {
    let mut b = Bench::new();
    b.run(json!({"prefix": "osd pool create", "pool": "p", "pg_num": 8})).unwrap();
    b.run(json!({"prefix": "osd new", "uuid": "11111111-2222-3333-4444-555555555555"})).unwrap();
    b.run(json!({"prefix": "osd crush create-or-move", "id": 0, "weight": 1.0, "args": ["host=h", "root=default"]}))
        .unwrap();
    for c in FAMILIES.iter().copied().flatten() {
        let Run::Read(_) = c.handler else { continue };
        let mut command = json!({"prefix": c.prefix()});
        for a in Signature::parse(c.signature).args().filter(|a| !a.optional()) {
            command[a.name()] = match (a.kind(), a.name()) {
                ("CephInt", _) => json!(1),
                ("CephPoolname", _) => json!("p"),
                ("CephOsdName", _) => json!(0),
                ("CephPgid", _) => json!("1.0"),
                ("CephChoices", _) => json!(a.choices().next()),
                (_, "ids") => json!(["0"]),
                (_, "entity") => json!("client.admin"),
                _ => json!("default"),
            };
        }
        for format in ["plain", "json", "json-pretty"] {
            command["format"] = json!(format);
            if let Ok(reply) = b.run(command.clone())
                && format != "plain"
                && !["get", "minimal-conf"].iter().any(|w| c.prefix().contains(w))
                && !reply.data.is_empty()
            {
                let parsed = serde_json::from_slice::<serde_json::Value>(&reply.data);
                assert!(parsed.is_ok(), "{command}: {:?}", reply.data);
            }
        }
    }
}

#[test]
fn numbers_look_like_the_stock_monitors() {
    use super::frame::short_float;
    for (v, text) in
        [(1.0, "1"), (0.5, "0.5"), (0.25, "0.25"), (123456.0, "123456"), (0.85, "0.85"), (0.0, "0")]
    {
        assert_eq!(short_float(v), text);
    }
    assert_eq!(super::pool_settings::iec(10 << 30), "10 GiB");
    assert_eq!(super::pool_settings::si(2000), "2k");
}

#[test]
fn reservations_of_more_than_an_osd_are_refused_with_their_sum() {
    let mut b = Bench::new();
    let name = |class: &str| format!("osd_mclock_scheduler_{class}_res");
    let set = |b: &mut Bench, who: &str, class: &str, value: &str| {
        b.run(json!({"prefix": "config set", "who": who, "name": name(class), "value": value}))
    };
    b.run(json!({"prefix": "osd new", "uuid": "5c3d0bc2-0000-4000-8000-000000000001"})).unwrap();
    set(&mut b, "osd", "client", "0.5").unwrap();
    set(&mut b, "global", "background_recovery", "0.4").unwrap();
    let refused = set(&mut b, "osd", "background_best_effort", "0.2").unwrap_err();
    assert_eq!(refused.errno, Errno::EINVAL);
    for part in [
        "osd_mclock_scheduler_background_best_effort_res = 0.2",
        "for OSDs",
        "110 %",
        "client 50 %",
        "background_recovery 40 %",
        "background_best_effort 20 %",
    ] {
        assert!(refused.message.contains(part), "{}", refused.message);
    }
    assert!(b.pending.state().config.keys().all(|k| !k.contains("best_effort")));
    set(&mut b, "osd", "background_best_effort", "0.1").unwrap();
    // For one OSD, there or not yet; and what is for others does not count.
    for osd in ["osd.0", "osd.77"] {
        let refused = set(&mut b, osd, "client", "0.6").unwrap_err();
        assert!(
            refused.message.contains(&format!("for {osd}, reservations add up to 110 %")),
            "{}",
            refused.message
        );
    }
    set(&mut b, "osd.0", "client", "0.3").unwrap();
    let refused = set(&mut b, "osd", "client", "0.6").unwrap_err();
    assert!(refused.message.contains("for OSDs, "), "{}", refused.message);
    set(&mut b, "mon", "client", "1").unwrap();
    // What is taken from a file is what fits.
    let lines =
        [("client", "0.4"), ("background_recovery", "0.9"), ("background_best_effort", "0.2")];
    let file: String =
        lines.iter().map(|(class, value)| format!("{} = {value}\n", name(class))).collect();
    b.input = Bytes::from(format!("[osd]\n{file}osd_mclock_profile = custom\n"));
    let left = b.run(json!({"prefix": "config assimilate-conf"})).unwrap();
    assert_eq!(
        String::from_utf8_lossy(&left.data),
        format!("[osd]\n\t{} = 0.9\n", name("background_recovery"))
    );
    assert_eq!(
        b.pending
            .state()
            .config
            .get(&format!("osd/{}", name("background_best_effort")))
            .map(String::as_str),
        Some("0.2")
    );
    // Options that Ceph has and that are not there are refused with the reason.
    let refused = b.run(json!({"prefix": "config set", "who": "osd", "name": "osd_mclock_skip_benchmark", "value": "true"})).unwrap_err();
    assert!(
        refused.errno == Errno::EINVAL && refused.message.contains("no benchmark"),
        "{}",
        refused.message
    );
}

/// Twelve OSDs on four hosts, two of which are in a root of their own, and a pool `p` of three
/// copies on the first three hosts.
fn with_hosts() -> Bench {
    let mut b = Bench::new();
    for osd in 0..12 {
        b.run(json!({"prefix": "osd create", "id": osd, "uuid": format!("00000000-0000-0000-0000-0000000000{osd:02}")})).unwrap();
        let (host, root) = (osd / 3, if osd < 9 { "default" } else { "apart" });
        let place = json!([format!("root={root}"), format!("host=h{host}")]);
        b.run(json!({"prefix": "osd crush add", "id": osd, "weight": 1.0, "args": place})).unwrap();
        b.run(json!({"prefix": "osd in", "ids": [osd.to_string()]})).unwrap();
    }
    let rule = json!({"prefix": "osd crush rule create-replicated", "name": "hosts", "root": "default", "type": "host"});
    b.run(rule).unwrap();
    b.run(json!({"prefix": "osd pool create", "pool": "p", "pg_num": 8, "rule": "hosts"})).unwrap();
    b.run(json!({"prefix": "osd set-require-min-compat-client", "version": "reef", "yes_i_really_mean_it": true})).unwrap();
    b
}

impl Bench {
    fn placed(&self, pg: PgId) -> Vec<i32> {
        self.pending.osd().pg_to_raw_upmap(pg).iter().map(|o| o.0).collect()
    }

    /// Another OSD of the same host.
    fn beside(&self, osd: i32) -> i32 {
        if osd % 3 == 2 { osd - 1 } else { osd + 1 }
    }

    fn pg(&self) -> PgId {
        PgId::new(*self.pending.osd().pools.keys().next().unwrap(), 0)
    }

    fn upmap(&mut self, from: i32, to: i32) -> Answer {
        let pg = self.pg().to_string();
        self.run(json!({"prefix": "osd pg-upmap-items", "pgid": pg, "id": [from, to]}))
    }
}

#[test]
fn placements_by_hand_must_keep_to_the_rule() {
    let mut b = with_hosts();
    let pg = b.pg();
    let [a, second, third] = b.placed(pg)[..] else { panic!("{:?}", b.placed(pg)) };
    let same_host_as_second = b.beside(second);
    assert!(b.upmap(a, same_host_as_second).unwrap_err().message.contains("failure domain"));
    assert!(b.upmap(a, 10).unwrap_err().message.contains("not"), "it is in another root");
    let beside = b.beside(a);
    b.upmap(a, beside).unwrap();
    assert_eq!(b.placed(pg), [beside, second, third]);
    let whole = json!({"prefix": "osd pg-upmap", "pgid": pg.to_string(), "id": [a, second, same_host_as_second]});
    assert_eq!(b.errno(whole), Errno::EINVAL);
    b.run(json!({"prefix": "osd out", "ids": ["11"]})).unwrap();
    assert_eq!(b.pending.osd().pg_upmap_items.len(), 1, "another OSD's weight does not matter");
}

#[test]
fn a_map_that_makes_an_upmap_wrong_does_not_have_it() {
    let gone = |b: &Bench| b.pending.osd().pg_upmap_items.is_empty();
    let changes: [(&str, fn(&mut Bench, i32)); 6] = [
        ("marked out", |b, to| {
            drop(b.run(json!({"prefix": "osd out", "ids": [to.to_string()]})).unwrap())
        }),
        ("no weight in CRUSH", |b, to| {
            let name = format!("osd.{to}");
            drop(
                b.run(json!({"prefix": "osd crush reweight", "name": name, "weight": 0.0}))
                    .unwrap(),
            )
        }),
        ("moved to another root", |b, to| {
            let place = json!(["root=apart", "host=h3"]);
            drop(
                b.run(json!({"prefix": "osd crush set", "id": to, "weight": 1.0, "args": place}))
                    .unwrap(),
            )
        }),
        ("moved to the host of another copy", |b, to| {
            let other = b.placed(b.pg()).into_iter().find(|o| *o != to).unwrap() / 3;
            let place = json!(["root=default", format!("host=h{other}")]);
            drop(
                b.run(json!({"prefix": "osd crush set", "id": to, "weight": 1.0, "args": place}))
                    .unwrap(),
            )
        }),
        ("another rule", |b, _| {
            b.run(json!({"prefix": "osd crush rule create-replicated", "name": "apart", "root": "apart", "type": "osd"})).unwrap();
            drop(b.run(json!({"prefix": "osd pool set", "pool": "p", "var": "crush_rule", "val": "apart"})).unwrap())
        }),
        ("taken out of CRUSH", |b, to| {
            drop(b.run(json!({"prefix": "osd crush rm", "name": format!("osd.{to}")})).unwrap())
        }),
    ];
    for (what, change) in changes {
        let mut b = with_hosts();
        let from = b.placed(b.pg())[0];
        let to = b.beside(from);
        b.upmap(from, to).unwrap();
        assert!(!gone(&b), "{what}");
        let epoch = b.pending.osd().epoch;
        change(&mut b, to);
        assert!(gone(&b), "{what}: {:?}", b.pending.osd().pg_upmap_items);
        let rounds = if what == "another rule" { 2 } else { 1 };
        assert_eq!(b.pending.osd().epoch.0, epoch.0 + rounds, "{what}: in the same map");
    }
    // A source that CRUSH does not choose any more leaves nothing to replace.
    let mut b = with_hosts();
    let from = b.placed(b.pg())[0];
    let to = b.beside(from);
    b.upmap(from, to).unwrap();
    b.run(json!({"prefix": "osd crush reweight", "name": format!("osd.{from}"), "weight": 0.0}))
        .unwrap();
    assert!(gone(&b), "{:?}", b.pending.osd().pg_upmap_items);
}

#[test]
fn another_osd_of_the_set_may_lead() {
    let mut b = with_hosts();
    let pg = b.pg();
    let set = |pg: PgId, osd: i32| json!({"prefix": "osd pg-upmap-primary", "pgid": pg.to_string(), "id": osd});
    let [a, second, third] = b.placed(pg)[..] else { panic!() };
    assert_eq!(b.errno(set(pg, a)), Errno::EINVAL, "it leads already");
    assert_eq!(b.errno(set(pg, 11)), Errno::EINVAL, "it is not in the set");
    b.run(set(pg, third)).unwrap();
    assert_eq!(b.placed(pg), [third, second, a]);
    b.run(set(pg, second)).unwrap();
    assert_eq!(b.placed(pg), [second, a, third]);
    // An OSD that leaves the set cannot lead it.
    b.run(json!({"prefix": "osd out", "ids": [second.to_string()]})).unwrap();
    assert!(b.pending.osd().pg_upmap_primaries.is_empty());
    let next = b.placed(pg)[1];
    b.run(set(pg, next)).unwrap();
    b.run(json!({"prefix": "osd rm-pg-upmap-primary", "pgid": pg.to_string()})).unwrap();
    assert!(b.pending.osd().pg_upmap_primaries.is_empty());
    let old = json!({"prefix": "osd set-require-min-compat-client", "version": "luminous", "yes_i_really_mean_it": true});
    b.run(old).unwrap();
    assert_eq!(b.errno(set(pg, next)), Errno::EPERM);
}

/// A cluster of [`with_hosts`] with OSDs that are up and known to the manager.
fn reporting() -> Bench {
    let mut b = with_hosts();
    for osd in &mut b.pending.osd_mut().osds {
        osd.state |= types::rados::osd_state::UP;
    }
    b.pending.close();
    report(&mut b);
    b
}

/// The digest of a cluster in which all that was to move has arrived.
fn report(b: &mut Bench) {
    let map = b.pending.osd().clone();
    let mut d = pgmap::Digest::default();
    for osd in map.up_osds() {
        d.osd_epochs.insert(osd, map.epoch);
        d.usage_by_osd.insert(osd, (1 << 30, 1 << 29));
    }
    for (id, pool) in &map.pools {
        d.group_kib.insert(*id, vec![1024; pool.pg_num as usize]);
        for pg in (0..pool.pg_num).map(|seed| PgId::new(*id, seed)) {
            for osd in map.pg_to_raw_upmap(pg) {
                *d.pgs_by_osd.entry(osd).or_default() += 1;
            }
        }
    }
    b.stats.digest = Some(Rc::new(d));
}

#[test]
fn a_movement_job_is_part_of_the_state() {
    let mut b = with_hosts();
    let drain = json!({"prefix": "move start", "verb": "drain", "what": ["osd.0"]});
    assert_eq!(b.errno(drain.clone()), Errno::EAGAIN, "nothing is known of data");
    let mut b = reporting();
    let with = |more: serde_json::Value| {
        let mut command = drain.clone();
        command.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        command
    };
    for bad in [
        json!({"what": []}),
        json!({"what": ["osd.77"]}),
        json!({"rate": "fast"}),
        json!({"hours": "25:00-01:00"}),
        json!({"verb": "rule", "what": ["p"]}),
        json!({"verb": "balance", "what": ["objects"]}),
        json!({"pgs": 0}),
    ] {
        assert_eq!(b.errno(with(bad.clone())), Errno::EINVAL, "{bad}");
    }
    assert_eq!(b.errno(json!({"prefix": "move status"})), Errno::ENOENT);
    let plan =
        b.json(json!({"prefix": "move plan", "verb": "drain", "what": ["osd.0"], "rate": "1M"}));
    let on = |b: &Bench| {
        (0..8).filter(|s| b.placed(PgId::new(b.pg().pool, *s)).contains(&0)).count() as u64
    };
    assert_eq!(plan["pgs"], on(&b));
    assert_eq!(
        (plan["bytes"].as_u64(), plan["seconds_at_rate"].as_u64()),
        (Some(on(&b) << 20), Some(on(&b)))
    );
    let id = b.json(with(json!({"pgs": 1, "hours": "00:00-24:00"})))["id"].as_u64().unwrap();
    assert_eq!(b.errno(drain.clone()), Errno::EBUSY, "one at a time");
    assert_eq!(b.errno(json!({"prefix": "move rm", "id": id})), Errno::EBUSY);
    let (mut maps, all) = (0, on(&b));
    while b.json(json!({"prefix": "move status", "id": id}))["state"] == "running" {
        let digest = b.stats.digest.clone().unwrap();
        let line = crate::moves::step(&mut b.pending, &digest);
        // What is proposed has both: the step of the job, and the map.
        if let Some(update) = b.pending.close() {
            let kinds: Vec<_> = update
                .changes
                .iter()
                .map(|c| match c {
                    crate::state::Change::Move(..) => 'j',
                    crate::state::Change::OsdMap(_) => 'm',
                    _ => '?',
                })
                .collect();
            assert!(kinds == ['j'] || kinds == ['j', 'm'], "{kinds:?} {line:?}");
            maps += u64::from(kinds.len() == 2);
        }
        assert!(maps < 50);
        report(&mut b);
    }
    // One map for each group, and one for the change of CRUSH.
    assert_eq!((maps, on(&b)), (all + 1, 0));
    assert_eq!(b.pending.osd().crush.item_weight(0), Some(0));
    let list = b.json(json!({"prefix": "move ls"}));
    assert_eq!((&list[0]["state"], &list[0]["bytes_moved"]), (&json!("done"), &plan["bytes"]));
    // A monitor that is started again has it.
    let job = b.pending.state().moves[&id].clone();
    let update = crate::state::Update {
        now: Utime::new(2000, 0),
        changes: vec![crate::state::Change::Move(id, Some(Box::new((*job).clone())))],
    };
    let stored = denc::Encode::to_bytes(&update, denc::Features::ALL);
    let mut state = ClusterState::default();
    let mut rows = Vec::new();
    crate::replica::Machine::apply(&mut state, &stored, &mut rows);
    let (key, row) = rows.pop().unwrap();
    let rows = [(key, row.unwrap())].into();
    let loaded: ClusterState = crate::replica::Machine::load(&rows).unwrap();
    assert_eq!(loaded.moves[&id], job);
    // Back again, and forgotten.
    b.run(json!({"prefix": "move undo", "id": id})).unwrap();
    assert_eq!(b.pending.osd().crush.item_weight(0), Some(0x10000));
    while b.json(json!({"prefix": "move status"}))["state"] == "running" {
        report(&mut b);
        let digest = b.stats.digest.clone().unwrap();
        crate::moves::step(&mut b.pending, &digest);
        b.pending.close();
    }
    assert_eq!(on(&b), all);
    b.run(json!({"prefix": "move rm", "id": id})).unwrap();
    assert!(b.pending.state().moves.is_empty());
}

#[test]
fn a_job_that_is_stuck_is_told() {
    let mut b = reporting();
    b.run(json!({"prefix": "move start", "verb": "drain", "what": ["h0"], "pgs": 1})).unwrap_err();
    b.run(json!({"prefix": "move start", "verb": "drain", "what": ["osd.0"], "pgs": 1})).unwrap();
    // There is room no more.
    let mut full = (*b.stats.digest.clone().unwrap()).clone();
    for (total, available) in full.usage_by_osd.values_mut() {
        *available = *total / 100;
    }
    crate::moves::step(&mut b.pending, &full);
    b.pending.close();
    let health = b.json(json!({"prefix": "health", "detail": "detail"}));
    let check = &health["checks"]["SIPHON_MOVE_STUCK"];
    assert!(check["detail"][0]["message"].as_str().unwrap().contains("no room below backfillfull"));
}
