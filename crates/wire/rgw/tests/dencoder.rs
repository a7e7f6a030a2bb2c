//! Types against `ceph-dencoder`.
//!
//! For each of its test values the program says which bytes it has for it. Those are decoded and
//! encoded again: they must be the same, or, where the form is newer than that release (14.2), the
//! program must read our bytes as the same value. Then values of ours, with all fields set, are
//! given to the program: it must read them, and give the same bytes.
//!
//! The program is found through `SIPHON_CEPH_DENCODER`, or in `target/oracle`, where
//! `tests/oracle/fetch-dencoder.sh` puts it. Without it the test is skipped, unless
//! `SIPHON_REQUIRE_ORACLES=1`.

use bytes::Bytes;
use denc::{Decode, Encode, Features, Reader};
use rgw::bi::BiType;
use rgw::bilog::{BiLogEntry, BiLogListOp, BiLogListRet, BiLogTrimOp};
use rgw::entry::{
    DirEntry, EntryMeta, EntryVer, ModifyOp, ObjCategory, PendingInfo, PendingMap, PendingState,
};
use rgw::gc::*;
use rgw::header::{CategoryStats, Dir, DirHeader, InstanceEntry, ReshardStatus};
use rgw::index::*;
use rgw::key::{ObjKey, User, ZoneEntry, ZoneSet};
use rgw::lc::LcHead;
use rgw::olh::*;
use rgw::reshard::*;
use rgw::usage::{UsageData, UsageLogEntry};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use types::Utime;

/// Types whose form is newer than the program's, with what is new.
const GROWN: &[(&str, &str)] = &[
    ("rgw_cls_list_op", "version 6: delimiter"),
    ("rgw_cls_list_ret", "version 3: entries that are not visible are left out"),
];

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
}

type Recode = fn(&Bytes) -> Result<Bytes, String>;

/// A type: its Ceph name, how bytes are decoded and encoded again, and a value of ours.
struct Case {
    name: &'static str,
    recode: Recode,
    sample: Bytes,
}

fn bytes<T: Encode>(value: &T) -> Bytes {
    value.to_bytes(Features::ALL)
}

fn case<T: Encode + Decode>(name: &'static str, sample: T) -> Case {
    let recode = |b: &Bytes| {
        let mut r = Reader::new(b.clone());
        let value: T = r.get().map_err(|e| e.to_string())?;
        r.expect_end("value").map_err(|e| e.to_string())?;
        Ok(bytes(&value))
    };
    Case { name, recode, sample: bytes(&sample) }
}

fn key() -> ObjKey {
    ObjKey { name: "name".into(), instance: "instance".into() }
}

fn time() -> Utime {
    Utime::new(1_600_000_000, 123_456_789)
}

fn meta() -> EntryMeta {
    EntryMeta {
        category: ObjCategory::MAIN,
        size: 5000,
        mtime: time(),
        etag: "etag".into(),
        owner: "owner".into(),
        owner_display_name: "display".into(),
        content_type: "text/plain".into(),
        accounted_size: 4999,
        user_data: "data".into(),
        storage_class: "COLD".into(),
        appendable: true,
    }
}

fn ver() -> EntryVer {
    EntryVer { pool: 300, epoch: 1 << 40 }
}

fn entry() -> DirEntry {
    let mut pending_map = PendingMap::default();
    for tag in ["b", "a", "a"] {
        let info =
            PendingInfo { state: PendingState::COMPLETE, timestamp: time(), op: ModifyOp::DEL };
        pending_map.insert(tag.into(), info);
    }
    DirEntry {
        key: key(),
        ver: ver(),
        locator: "locator".into(),
        exists: true,
        meta: meta(),
        pending_map,
        index_ver: 70_000,
        tag: "tag".into(),
        flags: 7,
        versioned_epoch: 9,
    }
}

fn header() -> DirHeader {
    let stats =
        CategoryStats { total_size: 1, total_size_rounded: 4096, num_entries: 1, actual_size: 2 };
    DirHeader {
        stats: BTreeMap::from([(ObjCategory::MAIN, stats), (ObjCategory::NONE, stats)]),
        tag_timeout: 5,
        ver: 6,
        master_ver: 7,
        max_marker: "marker".into(),
        new_instance: instance(),
        syncstopped: true,
    }
}

fn instance() -> InstanceEntry {
    InstanceEntry {
        reshard_status: ReshardStatus::IN_PROGRESS,
        new_bucket_instance_id: "id".into(),
        num_shards: 11,
    }
}

fn zones() -> ZoneSet {
    ZoneSet::from([ZoneEntry { zone: "z".into(), location: None }])
}

fn olh_log() -> OlhLog {
    let entry = OlhLogEntry {
        epoch: 3,
        op: OlhLogOp::REMOVE_INSTANCE,
        op_tag: "op".into(),
        key: key(),
        delete_marker: true,
    };
    BTreeMap::from([(3, vec![entry.clone(), entry])])
}

fn gc_info() -> GcObjInfo {
    let obj = RawObj { pool: "pool".into(), key: key(), loc: "loc".into() };
    GcObjInfo { tag: "tag".into(), chain: ObjChain { objs: vec![obj.clone(), obj] }, time: time() }
}

fn reshard() -> ReshardEntry {
    ReshardEntry {
        time: time(),
        tenant: "t".into(),
        bucket_name: "b".into(),
        bucket_id: "i".into(),
        new_instance_id: "n".into(),
        old_num_shards: 1,
        new_num_shards: 2,
    }
}

fn log_entry() -> BiLogEntry {
    BiLogEntry {
        id: "id".into(),
        object: "o".into(),
        timestamp: time(),
        ver: ver(),
        tag: "tag".into(),
        op: ModifyOp::LINK_OLH_DM,
        state: PendingState::COMPLETE,
        index_ver: 200,
        instance: "i".into(),
        bilog_flags: 1,
        owner: "u".into(),
        owner_display_name: "n".into(),
        zones_trace: zones(),
    }
}

fn cases() -> Vec<Case> {
    [index_cases(), request_cases(), version_cases(), log_cases(), garbage_cases(), reshard_cases()]
        .into_iter()
        .flatten()
        .collect()
}

fn dir() -> Dir {
    Dir { header: header(), entries: BTreeMap::from([("k".into(), entry())]) }
}

/// What an index consists of.
fn index_cases() -> Vec<Case> {
    vec![
        case("cls_rgw_obj_key", key()),
        case("rgw_bucket_pending_info", PendingInfo { timestamp: time(), ..Default::default() }),
        case("rgw_bucket_dir_entry_meta", meta()),
        case("rgw_bucket_entry_ver", ver()),
        case("rgw_bucket_dir_entry", entry()),
        case("rgw_bucket_category_stats", header().stats[&ObjCategory::MAIN]),
        case("rgw_bucket_dir_header", header()),
        case("rgw_bucket_dir", dir()),
        case("cls_rgw_bucket_instance_entry", instance()),
    ]
}

/// What is asked of an index.
fn request_cases() -> Vec<Case> {
    vec![
        case("rgw_cls_tag_timeout_op", TagTimeoutOp { tag_timeout: 3 }),
        case(
            "rgw_cls_obj_prepare_op",
            PrepareOp {
                op: ModifyOp::DEL,
                tag: "tag".into(),
                locator: "l".into(),
                log_op: true,
                key: key(),
                bilog_flags: 1,
                zones_trace: zones(),
            },
        ),
        case(
            "rgw_cls_obj_complete_op",
            CompleteOp {
                op: ModifyOp::DEL,
                ver: ver(),
                meta: meta(),
                tag: "tag".into(),
                locator: "l".into(),
                remove_objs: vec![key()],
                log_op: true,
                key: key(),
                bilog_flags: 1,
                zones_trace: zones(),
            },
        ),
        case(
            "rgw_cls_list_op",
            ListOp {
                num_entries: 4,
                filter_prefix: "p".into(),
                start_obj: key(),
                list_versions: true,
                delimiter: "/".into(),
            },
        ),
        case(
            "rgw_cls_list_ret",
            ListRet { dir: dir(), is_truncated: true, marker: ObjKey::plain("m".into()) },
        ),
        case(
            "rgw_cls_check_index_ret",
            CheckIndexRet { existing_header: header(), calculated_header: header() },
        ),
    ]
}

/// Versions of an object.
fn version_cases() -> Vec<Case> {
    vec![
        case("rgw_bucket_olh_log_entry", olh_log()[&3][0].clone()),
        case(
            "rgw_cls_link_olh_op",
            LinkOlhOp {
                key: key(),
                olh_tag: "olh".into(),
                delete_marker: true,
                op_tag: "op".into(),
                meta: meta(),
                olh_epoch: 4,
                log_op: true,
                bilog_flags: 1,
                unmod_since: time(),
                high_precision_time: true,
                zones_trace: zones(),
            },
        ),
        case(
            "rgw_cls_unlink_instance_op",
            UnlinkInstanceOp {
                key: key(),
                op_tag: "op".into(),
                olh_epoch: 4,
                log_op: true,
                bilog_flags: 1,
                olh_tag: "olh".into(),
                zones_trace: zones(),
            },
        ),
        case(
            "rgw_cls_read_olh_log_op",
            ReadOlhLogOp { olh: key(), ver_marker: 4, olh_tag: "olh".into() },
        ),
        case("rgw_cls_read_olh_log_ret", ReadOlhLogRet { log: olh_log(), is_truncated: true }),
        case("rgw_cls_trim_olh_log_op", TrimOlhLogOp { olh: key(), ver: 4, olh_tag: "olh".into() }),
        case("rgw_cls_bucket_clear_olh_op", ClearOlhOp { key: key(), olh_tag: "olh".into() }),
    ]
}

/// Logs, usage and life cycles.
fn log_cases() -> Vec<Case> {
    vec![
        case("rgw_bi_log_entry", log_entry()),
        case(
            "rgw_usage_log_entry",
            UsageLogEntry {
                owner: User::parse(&"t$u".into()),
                bucket: "b".into(),
                epoch: 3600,
                total_usage: UsageData { ops: 1, ..UsageData::default() },
                usage_map: BTreeMap::from([("put".into(), UsageData::default())]),
                payer: User::parse(&"p".into()),
            },
        ),
        case("cls_rgw_bi_log_list_op", BiLogListOp { marker: "m".into(), max: 3 }),
        case(
            "cls_rgw_bi_log_list_ret",
            BiLogListRet { entries: vec![log_entry()], truncated: true },
        ),
        case(
            "cls_rgw_bi_log_trim_op",
            BiLogTrimOp { start_marker: "s".into(), end_marker: "e".into() },
        ),
        case(
            "cls_rgw_lc_obj_head",
            LcHead { start_date: 5, marker: "m".into(), shard_rollover_date: None },
        ),
    ]
}

/// Garbage.
fn garbage_cases() -> Vec<Case> {
    vec![
        case("cls_rgw_obj", gc_info().chain.objs[0].clone()),
        case("cls_rgw_obj_chain", gc_info().chain),
        case("cls_rgw_gc_obj_info", gc_info()),
        case("cls_rgw_gc_set_entry_op", GcSetEntryOp { expiration_secs: 3, info: gc_info() }),
        case("cls_rgw_gc_defer_entry_op", GcDeferEntryOp { expiration_secs: 3, tag: "t".into() }),
        case("cls_rgw_gc_list_op", GcListOp { marker: "m".into(), max: 3, expired_only: false }),
        case(
            "cls_rgw_gc_list_ret",
            GcListRet { entries: vec![gc_info()], next_marker: "m".into(), truncated: true },
        ),
        case("cls_rgw_gc_remove_op", GcRemoveOp { tags: vec!["a".into(), "b".into()] }),
    ]
}

/// Indices that get other shards.
fn reshard_cases() -> Vec<Case> {
    vec![
        case("cls_rgw_reshard_entry", reshard()),
        case("cls_rgw_reshard_add_op", ReshardOp { entry: reshard() }),
        case("cls_rgw_reshard_get_op", ReshardOp { entry: reshard() }),
        case("cls_rgw_reshard_get_ret", ReshardOp { entry: reshard() }),
        case("cls_rgw_reshard_list_op", ReshardListOp { max: 3, marker: "m".into() }),
        case(
            "cls_rgw_reshard_list_ret",
            ReshardListRet { entries: vec![reshard()], is_truncated: true },
        ),
        case(
            "cls_rgw_reshard_remove_op",
            ReshardRemoveOp { tenant: "t".into(), bucket_name: "b".into(), bucket_id: "i".into() },
        ),
        case("cls_rgw_set_bucket_resharding_op", BucketResharding { entry: instance() }),
        case("cls_rgw_clear_bucket_resharding_op", EmptyOp {}),
    ]
}

#[test]
fn every_type_has_ceph_s_bytes() {
    let Some(dencoder) = Dencoder::find() else {
        let required = std::env::var_os("SIPHON_REQUIRE_ORACLES").is_some();
        assert!(!required, "ceph-dencoder was not found; run tests/oracle/fetch-dencoder.sh");
        eprintln!("skipped: no ceph-dencoder");
        return;
    };
    let cases = cases();
    let known = dencoder.run(&["list_types"]).unwrap();
    let ours = |name: &str| {
        ["cls_rgw_", "rgw_cls_", "rgw_bucket_", "rgw_bi_", "rgw_usage_"]
            .iter()
            .any(|p| name.starts_with(p))
    };
    for name in known.lines().map(str::trim).filter(|n| ours(n)) {
        assert!(cases.iter().any(|c| c.name == name), "{name} is in no case");
    }
    let dir = std::env::temp_dir().join(format!("rgw-dencoder.{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let file = dir.join("value");
    let path = file.to_str().unwrap();
    let mut wrong = Vec::new();
    for case in &cases {
        let count = dencoder.run(&["type", case.name, "count_tests"]).unwrap();
        for n in 1..=count.trim().parse::<u32>().unwrap() {
            let n = n.to_string();
            let select = ["type", case.name, "select_test", &n];
            let export = [&select[..], &["encode", "export", path, "dump_json"]].concat();
            let json = dencoder.run(&export).unwrap();
            let theirs = Bytes::from(std::fs::read(&file).unwrap());
            match (case.recode)(&theirs) {
                Err(e) => wrong.push(format!("{} {n}: {e}", case.name)),
                Ok(ours) if ours == theirs => {}
                Ok(ours) => {
                    std::fs::write(&file, &ours).unwrap();
                    let read =
                        dencoder.run(&["type", case.name, "import", path, "decode", "dump_json"]);
                    let grown = GROWN.iter().any(|g| g.0 == case.name);
                    if !grown || read.as_ref() != Ok(&json) {
                        wrong.push(format!("{} {n}: {theirs:?}\n{ours:?}\n{read:?}", case.name));
                    }
                }
            }
        }
        assert_eq!((case.recode)(&case.sample).as_ref(), Ok(&case.sample), "{}", case.name);
        std::fs::write(&file, &case.sample).unwrap();
        let again = dir.join("again");
        let export = [
            "type",
            case.name,
            "import",
            path,
            "decode",
            "encode",
            "export",
            again.to_str().unwrap(),
        ];
        match dencoder.run(&export) {
            Err(e) => wrong.push(format!("{}: our value is not read: {e}", case.name)),
            Ok(_) => {
                let theirs = Bytes::from(std::fs::read(&again).unwrap());
                if theirs != case.sample && !GROWN.iter().any(|g| g.0 == case.name) {
                    wrong.push(format!("{}: {theirs:?}\n{:?}", case.name, case.sample));
                }
            }
        }
    }
    std::fs::remove_dir_all(&dir).unwrap();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // Kinds of rows that the program does not know.
    assert_eq!(bytes(&BiType::OLH)[..], [3]);
}
