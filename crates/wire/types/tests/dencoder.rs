//! Every registered type against `ceph-dencoder`.
//!
//! For each of its test values the program says which bytes and which JSON it has for it. Here
//! those bytes are decoded and encoded again: they must be the same, or, where the form has grown
//! since that release, the program must read our bytes as the same value. The JSON must agree too.
//!
//! The program is found through `SIPHON_CEPH_DENCODER`, or in `target/oracle`, where
//! `tests/oracle/fetch-dencoder.sh` puts it. Without it the test is skipped, unless
//! `SIPHON_REQUIRE_ORACLES=1`.

use bytes::Bytes;
use denc::Features;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use types::Release;
use types::dencode::{Decoded, NamedType, TYPES};
use types::features;
use types::monmap::{MonFeatures, MonInfo};
use types::pgmap::PgCount;
use types::pool::{AutoscaleMode, HitSetParams, PoolOptValue, PoolType, flag as pool_flag};
use types::replies::{ListWatchersResponse, WatchItem};
use types::{
    EntityAddr, EntityAddrVec, EntityName, EntityType, Epoch, ListObject, LogEntry, LogName,
    LogPriority, MonMap, ObjectId, OsdId, PgMapDigest, PgNlsResponse, PgPool, PgStat, PgState,
    PoolId, PoolStat, SnapId, SnapSet, Utime,
};

/// Types whose form is newer than the program's (14.2), with what is new. `mon_info_t` has its new
/// fields for old peers too, since 16.2.
const GROWN: &[(&str, &str)] = &[
    ("FSMap", "Filesystem 2: mirroring; contains MDSMap"),
    ("MDSMap", "extended version 16: required_client_features"),
    ("MgrMap", "version 12: clients; 14.2 has 9"),
    ("MonMap", "version 9: stretch mode; mon_info_t 5: crush_loc"),
    ("OSDMap", "contains osd_xinfo_t"),
    ("osd_xinfo_t", "version 4: last_purged_snaps_scrub, dead_epoch"),
    ("pg_history_t", "version 10: prior_readable_until_ub"),
    ("pg_info_t", "contains pg_history_t"),
    ("pg_log_dup_t", "version 2: op_returns"),
    ("pg_log_entry_t", "version 14: return codes and clean regions"),
];

/// Types that stay between servers of one release, so that forms for older peers are neither read
/// nor written.
const SERVERS_ONLY: &[&str] = &["LogSummary", "PGMapDigest"];

/// Fields that the program shows in another way than 16.2 does, by type and end of path, with the
/// reason.
const JSON_DIFFERS: &[(&str, &str, &str)] = &[
    ("FSMap", ".min_compat_client", "a name of required_client_features before 16.2"),
    ("MDSMap", ".min_compat_client", "a name of required_client_features before 16.2"),
    ("OSDMap", ".blacklist", "blocklist since 16.2"),
    ("OSDMap::Incremental", ".new_blacklist", "blocklist since 16.2"),
    ("OSDMap::Incremental", ".old_blacklist", "blocklist since 16.2"),
    ("OSDMap::Incremental", ".new_require_min_compat_client", "signed before 16.2"),
    ("OSDMap::Incremental", ".new_require_osd_release", "signed before 16.2"),
    (
        "OSDMap::Incremental",
        ".new_purged_snaps",
        "Ceph leaves the list open and puts what follows into it",
    ),
    (
        "PGMapDigest",
        ".purged_snaps.purged_snaps",
        "ranges under one repeated name there, an array here",
    ),
    ("SnapSet", ".snap_context", "gone since 15.2"),
    ("pg_info_t", ".last_backfill_bitwise", "always true since 16.2, and not shown"),
    ("pg_info_t", ".reported_seq", "text before 16.2, a number since"),
    ("pg_info_t", ".reported_epoch", "text before 16.2, a number since"),
    ("pg_stat_t", ".reported_seq", "text before 16.2, a number since"),
    ("pg_stat_t", ".reported_epoch", "text before 16.2, a number since"),
];

/// A blank address is `:` in 14.2 and a sentence since.
const BLANK_ADDR: &str = "(unrecognized address family 0)";

struct Dencoder(PathBuf);

impl Dencoder {
    fn find() -> Option<Self> {
        let fetched =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../target/oracle/ceph-dencoder");
        let path = std::env::var_os("SIPHON_CEPH_DENCODER").map_or(fetched, PathBuf::from);
        let works = Command::new(&path).arg("version").output().is_ok_and(|o| o.status.success());
        works.then_some(Dencoder(path))
    }

    fn run(&self, args: &[&str]) -> Result<String, String> {
        let out =
            Command::new(&self.0).args(args).env("TZ", "UTC").output().expect("the program starts");
        let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
        match out.status.success() && out.stderr.is_empty() {
            true => Ok(text(&out.stdout)),
            false => Err(format!("{args:?}: {}{}", text(&out.stdout), text(&out.stderr))),
        }
    }

    fn types(&self) -> Vec<String> {
        self.run(&["list_types"])
            .expect("lists types")
            .lines()
            .map(|l| l.trim().to_owned())
            .collect()
    }
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("not JSON ({e}): {text}"))
}

/// Where `ours` lacks or contradicts what is in `theirs`. Fields that only we have are newer ones.
fn differences(path: &str, theirs: &Value, ours: &Value, found: &mut Vec<String>) {
    match (theirs, ours) {
        (Value::Object(t), Value::Object(o)) => {
            for (name, value) in t {
                let path = format!("{path}.{name}");
                match o.get(name) {
                    Some(mine) => differences(&path, value, mine, found),
                    None => found.push(format!("{path}: missing, should be {value}")),
                }
            }
        }
        (Value::Array(t), Value::Array(o)) if t.len() == o.len() => {
            for (t, o) in t.iter().zip(o) {
                differences(path, t, o, found);
            }
        }
        (Value::Number(t), Value::Number(o)) => {
            let close = |a: f64, b: f64| (a - b).abs() <= 1e-5 * a.abs().max(1.0);
            if t != o && !close(t.as_f64().unwrap_or(0.0), o.as_f64().unwrap_or(1.0)) {
                found.push(format!("{path}: {o}, should be {t}"));
            }
        }
        (Value::String(t), Value::String(o))
            if *t == o.replace(BLANK_ADDR, ":") || *t == old_time(o) => {}
        (t, o) if t == o => {}
        (t, o) => found.push(format!("{path}: {o}, should be {t}")),
    }
}

/// A time as 14.2 shows it: a blank instead of the `T`, and no time zone.
fn old_time(time: &str) -> String {
    time.strip_suffix("+0000").map_or(String::new(), |time| time.replace('T', " "))
}

/// Differences for which there is no reason.
fn unexpected(t: &NamedType, theirs: &Value, ours: &Value) -> Vec<String> {
    let mut found = Vec::new();
    differences("", theirs, ours, &mut found);
    found.retain(|f| {
        let path = f.split(": ").next().unwrap_or_default();
        !JSON_DIFFERS.iter().any(|(name, end, _)| *name == t.name && path.ends_with(end))
    });
    found
}

/// Peers of several ages, by the features that they have.
fn peers() -> Vec<(&'static str, Features)> {
    let pacific = features::PACIFIC.0;
    let newer = 1 << 34 | 1 << 16 | 1 << 20 | 1 << 32;
    let without = |bits: u64| Features(pacific & !newer & !bits);
    // The bits alone, without the markers of their incarnation, which other features share.
    let (nautilus, mimic, luminous) = (1 << 2, 1 << 28, 1 << 21);
    vec![
        ("pacific", features::PACIFIC),
        ("mimic", without(nautilus)),
        ("luminous", without(nautilus | mimic)),
        ("jewel", without(nautilus | mimic | luminous | features::MSG_ADDR2)),
    ]
}

struct Sample<'a> {
    dencoder: &'a Dencoder,
    t: &'a NamedType,
    n: String,
    dir: &'a Path,
    problems: Vec<String>,
    /// Whether any peer gets other bytes from us than from the program.
    differs: bool,
}

impl Sample<'_> {
    fn problem(&mut self, text: String) {
        self.problems.push(format!("{} #{}: {text}", self.t.name, self.n));
    }

    fn check(&mut self) {
        let shown =
            self.dencoder.run(&["type", self.t.name, "select_test", &self.n, "dump_json"]).unwrap();
        let expected = json(&shown);
        for (peer, f) in peers() {
            if peer != "pacific" && SERVERS_ONLY.contains(&self.t.name) {
                continue;
            }
            self.check_for(peer, f, &expected);
        }
    }

    fn check_for(&mut self, peer: &str, f: Features, expected: &Value) {
        let (theirs, mine) = (self.dir.join("theirs"), self.dir.join("mine"));
        let (theirs_arg, mine_arg) = (theirs.to_str().unwrap(), mine.to_str().unwrap());
        let (d, t, features_arg) = (self.dencoder, self.t, f.0.to_string());
        let made = d.run(&[
            "set_features",
            &features_arg,
            "type",
            t.name,
            "select_test",
            &self.n,
            "encode",
            "export",
            theirs_arg,
        ]);
        made.unwrap();
        let bytes = Bytes::from(std::fs::read(&theirs).unwrap());
        let value = match t.decode(&bytes) {
            Ok(value) => value,
            Err(e) => return self.problem(format!("{peer}: does not decode: {e}: {bytes:?}")),
        };
        let again = value.encode_for(f);
        if again != bytes {
            self.differs = true;
            if !GROWN.iter().any(|(name, _)| *name == t.name) {
                self.problem(format!(
                    "{peer}: encodes differently:\n  theirs {bytes:?}\n  ours   {again:?}"
                ));
            }
        }
        if peer != "pacific" {
            return;
        }
        for found in unexpected(t, expected, &value.to_json()) {
            self.problem(format!("JSON {found}"));
        }
        // What we wrote, read by the program.
        std::fs::write(&mine, &again).unwrap();
        match d.run(&["type", t.name, "import", mine_arg, "decode", "dump_json"]) {
            Ok(text) => {
                for found in unexpected(t, expected, &json(&text)) {
                    self.problem(format!("the program reads of our bytes {found}"));
                }
            }
            Err(e) => self.problem(format!("the program does not read our bytes: {e}")),
        }
    }
}

#[test]
fn bytes_and_json_are_those_of_ceph_dencoder() {
    let Some(d) = Dencoder::find() else {
        assert!(
            std::env::var_os("SIPHON_REQUIRE_ORACLES").is_none(),
            "no ceph-dencoder; run tests/oracle/fetch-dencoder.sh"
        );
        eprintln!("skipped: no ceph-dencoder; tests/oracle/fetch-dencoder.sh fetches one");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let known = d.types();
    let mut problems = Vec::new();
    let (mut checked, mut samples) = (0, 0);
    for t in TYPES.iter().filter(|t| known.iter().any(|k| k == t.name)) {
        let count: usize = d.run(&["type", t.name, "count_tests"]).unwrap().trim().parse().unwrap();
        assert!(count > 0, "{}", t.name);
        checked += 1;
        let mut differs = false;
        for n in 1..=count {
            samples += 1;
            let n = n.to_string();
            let mut sample = Sample {
                dencoder: &d,
                t,
                n,
                dir: dir.path(),
                problems: Vec::new(),
                differs: false,
            };
            sample.check();
            differs |= sample.differs;
            problems.append(&mut sample.problems);
        }
        if !differs && GROWN.iter().any(|(name, _)| *name == t.name) {
            problems.push(format!("{}: listed as grown, but is the same", t.name));
        }
    }
    eprintln!("{checked} types, {samples} values");
    assert!(checked >= 40, "only {checked} types are known to the program");
    assert!(problems.is_empty(), "{} problems:\n{}", problems.len(), problems.join("\n"));
}

fn addr(s: &str) -> EntityAddr {
    s.parse().unwrap()
}

fn addrs(s: &str) -> EntityAddrVec {
    s.parse().unwrap()
}

fn rich_pool() -> PgPool {
    let mut pool = PgPool {
        pg_num: 12,
        pgp_num: 9,
        pg_num_target: 16,
        pgp_num_target: 16,
        pg_num_pending: 11,
        size: 3,
        min_size: 2,
        kind: PoolType::Erasure,
        flags: pool_flag::HASHPSPOOL | pool_flag::EC_OVERWRITES,
        erasure_code_profile: "k2m1".into(),
        snap_seq: SnapId(9),
        create_time: Utime::new(1_700_000_000, 123_456_789),
        hit_set_count: 3,
        hit_set_grade_decay_rate: 20,
        hit_set_params: HitSetParams::Bloom { fpp_micro: 50_000, target_size: 1000, seed: 7 },
        ..Default::default()
    };
    pool.pg_autoscale_mode = AutoscaleMode::ON;
    pool.removed_snaps = [(2, 3), (17, 1)].into_iter().collect();
    pool.add_snap("a snap", Utime::new(1_600_000_000, 5));
    assert!(pool.opts.set("compression_mode", PoolOptValue::Str("force".into())));
    assert!(pool.opts.set("target_size_bytes", PoolOptValue::Int(1 << 42)));
    assert!(pool.opts.set("target_size_ratio", PoolOptValue::Double(0.25)));
    pool.application_metadata.insert("rbd".into(), Default::default());
    pool
}

fn rich_stat() -> PgStat {
    let mut stat = PgStat {
        state: PgState::ACTIVE | PgState::CLEAN | PgState::SNAPTRIM,
        ..Default::default()
    };
    stat.purged_snaps = [(10, 6)].into_iter().collect();
    stat.up = vec![OsdId(2), OsdId(0)];
    stat.stats.sum.num_bytes = -5;
    stat.last_fresh = Utime::new(1_700_000_001, 0);
    stat
}

fn rich_monmap() -> MonMap {
    let mut monmap = MonMap { epoch: Epoch(7), strategy: 1, ..Default::default() };
    monmap.min_mon_release = Release::NAUTILUS;
    monmap.persistent_features = MonFeatures(0b11111);
    for (name, at) in
        [("b", "[v2:10.0.0.1:3300/0,v1:10.0.0.1:6789/0]"), ("a", "v1:[fd00::1]:6789/0")]
    {
        monmap.add(MonInfo {
            name: name.into(),
            public_addrs: addrs(at),
            priority: 3,
            weight: 10,
            ..Default::default()
        });
    }
    monmap
}

fn rich_snaps() -> SnapSet {
    let mut snaps =
        SnapSet { seq: SnapId(20), clones: vec![SnapId(4), SnapId(10)], ..Default::default() };
    snaps.clone_size = [(SnapId(4), 100), (SnapId(10), 4096)].into();
    snaps.clone_overlap = [(SnapId(4), [(0, 30), (64, 36)].into_iter().collect())].into();
    snaps.clone_snaps = [(SnapId(4), vec![SnapId(4), SnapId(2)])].into();
    snaps
}

fn rich_log_entry() -> LogEntry {
    LogEntry {
        name: LogName { kind: EntityType::CLIENT, id: "admin".into() },
        rank: EntityName::new(EntityType::MON, 0),
        addrs: addrs("[v2:10.0.0.1:3300/0,v1:10.0.0.1:6789/0]"),
        stamp: Utime::new(1_700_000_002, 999_999_999),
        seq: 77,
        prio: LogPriority::WARN,
        msg: "a \"quoted\" message".into(),
        channel: "audit".into(),
    }
}

fn rich_digest() -> PgMapDigest {
    let mut digest =
        PgMapDigest { num_pg: 4, num_osd: 2, osd_last_seq: vec![5, 6], ..Default::default() };
    digest.num_pg_by_state = [((PgState::ACTIVE | PgState::CLEAN).0, 4)].into();
    digest.pg_pool_sum = [(1, PoolStat { log_size: 9, up: 8, ..Default::default() })].into();
    digest.num_pg_by_pool = [(PoolId(1), 4)].into();
    digest.num_pg_by_osd = [(OsdId(1), PgCount { acting: 4, up_not_acting: 1, primary: 2 })].into();
    digest.purged_snaps = [(PoolId(1), [(3, 4)].into_iter().collect())].into();
    digest
}

/// Values with more in them than the program's own samples have.
fn rich_values() -> Vec<(&'static str, Box<dyn Decoded>)> {
    let object = ObjectId::new(PoolId(3), "n:s", "na%me\u{1}", "key", SnapId(0x1f));
    let watch = WatchItem {
        name: EntityName::client(4100),
        cookie: u64::MAX,
        timeout_seconds: 30,
        addr: addr("v2:[2001:db8::7]:0/99"),
    };
    vec![
        ("pg_pool_t", Box::new(rich_pool())),
        ("pg_stat_t", Box::new(rich_stat())),
        ("MonMap", Box::new(rich_monmap())),
        ("SnapSet", Box::new(rich_snaps())),
        ("hobject_t", Box::new(object.clone())),
        (
            "pg_nls_response_t",
            Box::new(PgNlsResponse {
                handle: object,
                entries: vec![ListObject {
                    namespace: "n".into(),
                    name: "o".into(),
                    locator: "k".into(),
                }],
            }),
        ),
        ("obj_list_watch_response_t", Box::new(ListWatchersResponse { entries: vec![watch] })),
        ("entity_addr_t", Box::new(addr("v1:[fe80::1]:6800/4294967295"))),
        (
            "entity_addrvec_t",
            Box::new(addrs("[v2:10.0.0.1:3300/1,v1:10.0.0.1:6789/2,any:10.9.0.0:0/0]")),
        ),
        ("LogEntry", Box::new(rich_log_entry())),
        ("PGMapDigest", Box::new(rich_digest())),
    ]
}

#[test]
fn rich_values_are_read_and_written_back_alike() {
    let Some(d) = Dencoder::find() else {
        assert!(
            std::env::var_os("SIPHON_REQUIRE_ORACLES").is_none(),
            "no ceph-dencoder; run tests/oracle/fetch-dencoder.sh"
        );
        eprintln!("skipped: no ceph-dencoder; tests/oracle/fetch-dencoder.sh fetches one");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let (mine, theirs) = (dir.path().join("mine"), dir.path().join("theirs"));
    let (mine_arg, theirs_arg) = (mine.to_str().unwrap(), theirs.to_str().unwrap());
    let mut problems = Vec::new();
    for (name, value) in rich_values() {
        let t = types::dencode::lookup(name).unwrap();
        let full = value.encode_for(features::PACIFIC);
        std::fs::write(&mine, &full).unwrap();
        let shown = d.run(&["type", name, "import", mine_arg, "decode", "dump_json"]).unwrap();
        for found in unexpected(t, &json(&shown), &value.to_json()) {
            problems.push(format!("{name}: JSON {found}"));
        }
        for (peer, f) in peers() {
            if peer != "pacific" && SERVERS_ONLY.contains(&name) {
                continue;
            }
            // The program decodes the full form and writes it again for the older peer.
            d.run(&[
                "set_features",
                &f.0.to_string(),
                "type",
                name,
                "import",
                mine_arg,
                "decode",
                "encode",
                "export",
                theirs_arg,
            ])
            .unwrap();
            let expected = Bytes::from(std::fs::read(&theirs).unwrap());
            let ours = value.encode_for(f);
            let grown = GROWN.iter().any(|(n, _)| *n == name);
            if ours != expected && !grown {
                problems.push(format!("{name}, {peer}:\n  theirs {expected:?}\n  ours   {ours:?}"));
            }
            if let Err(e) = t.decode(&expected) {
                problems.push(format!("{name}, {peer}: does not decode: {e}"));
            }
        }
    }
    assert!(problems.is_empty(), "{} problems:\n{}", problems.len(), problems.join("\n"));
}
