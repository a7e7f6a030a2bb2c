//! What the methods do to an index, called as a gateway calls them.

use super::keys;
use crate::method::encode;
use crate::testing::TestObject;
use ::rgw::bi::*;
use ::rgw::bilog::*;
use ::rgw::entry::*;
use ::rgw::gc::*;
use ::rgw::header::*;
use ::rgw::index::*;
use ::rgw::key::{ObjKey, User};
use ::rgw::lc::*;
use ::rgw::object::*;
use ::rgw::olh::*;
use ::rgw::reshard::*;
use ::rgw::upload::{PartInfo, PartUpdateOp};
use ::rgw::usage::*;
use bytes::{Bytes, BytesMut};
use denc::{Encode, Features};
use std::collections::BTreeMap;
use types::Utime;
use types::errno::Errno;

mod totals;

fn call<T: Encode>(o: &mut TestObject, method: &str, op: &T) -> Result<Bytes, Errno> {
    o.exec("rgw", method, op)
}

fn ask<T: Encode, R: denc::Decode>(o: &mut TestObject, method: &str, op: &T) -> R {
    o.query("rgw", method, op).unwrap()
}

fn index() -> TestObject {
    let mut o = TestObject::new();
    call(&mut o, "bucket_init_index", &()).unwrap();
    o
}

fn key(name: &str, instance: &str) -> ObjKey {
    ObjKey { name: name.to_owned().into(), instance: instance.to_owned().into() }
}

fn meta(size: u64) -> EntryMeta {
    EntryMeta {
        category: ObjCategory::MAIN,
        size,
        accounted_size: size,
        mtime: Utime::new(900, 5),
        ..EntryMeta::default()
    }
}

fn prepare(o: &mut TestObject, op: ModifyOp, key: ObjKey, tag: &'static str) {
    let op = PrepareOp { op, key, tag: tag.into(), ..PrepareOp::default() };
    call(o, "bucket_prepare_op", &op).unwrap();
}

fn completion(op: ModifyOp, key: ObjKey, tag: &'static str, epoch: u64, size: u64) -> CompleteOp {
    CompleteOp {
        op,
        key,
        tag: tag.into(),
        ver: EntryVer { pool: 7, epoch },
        meta: meta(size),
        log_op: true,
        ..CompleteOp::default()
    }
}

fn complete(o: &mut TestObject, op: &CompleteOp) -> Result<(), Errno> {
    call(o, "bucket_complete_op", op).map(|_| ())
}

fn put(o: &mut TestObject, name: &str, epoch: u64, size: u64) {
    prepare(o, ModifyOp::ADD, key(name, ""), "t");
    complete(o, &completion(ModifyOp::ADD, key(name, ""), "t", epoch, size)).unwrap();
}

fn list(o: &mut TestObject, op: ListOp) -> ListRet {
    ask(o, "bucket_list", &op)
}

fn names(ret: &ListRet) -> Vec<String> {
    let text = |k: &Bytes| String::from_utf8_lossy(k).into_owned();
    ret.dir.entries.keys().map(text).collect()
}

fn all() -> ListOp {
    ListOp { num_entries: 1000, ..ListOp::default() }
}

fn stats(o: &mut TestObject) -> CategoryStats {
    let ret = list(o, ListOp::default());
    ret.dir.header.stats.get(&ObjCategory::MAIN).copied().unwrap_or_default()
}

fn totals(o: &mut TestObject) -> (u64, u64, u64) {
    let s = stats(o);
    (s.num_entries, s.total_size, s.total_size_rounded)
}

fn log(o: &mut TestObject) -> Vec<BiLogEntry> {
    let op = BiLogListOp { marker: Bytes::new(), max: 1000 };
    ask::<_, BiLogListRet>(o, "bi_log_list", &op).entries
}

#[test]
fn an_index_is_made_once() {
    let mut o = index();
    assert_eq!(call(&mut o, "bucket_init_index", &()), Err(Errno::EINVAL));
    assert_eq!(list(&mut o, all()).dir.header, DirHeader { ver: 1, ..DirHeader::default() });
}

#[test]
fn objects_count_when_their_change_completes() {
    let mut o = index();
    for n in 0..3u64 {
        prepare(&mut o, ModifyOp::ADD, key(&format!("o{n}"), ""), "t");
        assert_eq!(totals(&mut o).0, n);
        let op = completion(ModifyOp::ADD, key(&format!("o{n}"), ""), "t", n + 1, 5000);
        complete(&mut o, &op).unwrap();
        assert_eq!(totals(&mut o), (n + 1, (n + 1) * 5000, (n + 1) * 8192));
    }
    prepare(&mut o, ModifyOp::DEL, key("o1", ""), "d");
    complete(&mut o, &completion(ModifyOp::DEL, key("o1", ""), "d", 10, 0)).unwrap();
    assert_eq!(totals(&mut o), (2, 10000, 16384));
    assert_eq!(names(&list(&mut o, all())), ["o0", "o2"]);
    let logged = log(&mut o);
    assert_eq!(logged.len(), 4);
    assert_eq!((logged[3].op, &logged[3].object[..]), (ModifyOp::DEL, &b"o1"[..]));
}

#[test]
fn completions_may_come_in_any_order() {
    let mut o = index();
    for tag in ["a", "b"] {
        prepare(&mut o, ModifyOp::ADD, key("o", ""), tag);
    }
    complete(&mut o, &completion(ModifyOp::ADD, key("o", ""), "b", 6, 200)).unwrap();
    complete(&mut o, &completion(ModifyOp::ADD, key("o", ""), "a", 5, 100)).unwrap();
    assert_eq!(totals(&mut o).1, 200, "the older write changes nothing");
    let found = list(&mut o, all());
    assert!(found.dir.entries[&Bytes::from("o")].pending_map.is_empty());
    // A removal that is older than a write.
    prepare(&mut o, ModifyOp::DEL, key("o", ""), "c");
    complete(&mut o, &completion(ModifyOp::DEL, key("o", ""), "c", 4, 0)).unwrap();
    assert_eq!(totals(&mut o).0, 1);
    // A removal while another change is under way: the entry stays for that.
    prepare(&mut o, ModifyOp::ADD, key("o", ""), "e");
    prepare(&mut o, ModifyOp::DEL, key("o", ""), "d");
    complete(&mut o, &completion(ModifyOp::DEL, key("o", ""), "d", 9, 0)).unwrap();
    assert_eq!(totals(&mut o).0, 0);
    assert!(!list(&mut o, all()).dir.entries[&Bytes::from("o")].exists);
    complete(&mut o, &completion(ModifyOp::CANCEL, key("o", ""), "e", 0, 0)).unwrap();
    assert_eq!(totals(&mut o).0, 0);
}

#[test]
fn a_change_that_was_not_announced_is_refused() {
    let mut o = index();
    let op = PrepareOp { key: key("o", ""), ..PrepareOp::default() };
    assert_eq!(call(&mut o, "bucket_prepare_op", &op), Err(Errno::EINVAL), "no tag");
    put(&mut o, "o", 1, 1);
    let unknown = completion(ModifyOp::ADD, key("o", ""), "x", 2, 1);
    assert_eq!(complete(&mut o, &unknown), Err(Errno::EINVAL));
    let logged = log(&mut o).len();
    let none = completion(ModifyOp::DEL, key("n", ""), "", 0, 1);
    assert_eq!(complete(&mut o, &none), Ok(()), "there is nothing to remove");
    assert_eq!(log(&mut o).len(), logged);
}

#[test]
fn the_last_change_that_is_given_up_leaves_no_row() {
    let mut o = index();
    for tag in ["t1", "t2"] {
        prepare(&mut o, ModifyOp::ADD, key("o", "i"), tag);
    }
    let row = |o: &mut TestObject| o.stored.omap.contains_key(&keys::instance(&key("o", "i")));
    complete(&mut o, &completion(ModifyOp::CANCEL, key("o", "i"), "t1", 0, 1)).unwrap();
    assert!(row(&mut o), "another change is under way");
    complete(&mut o, &completion(ModifyOp::CANCEL, key("o", "i"), "t2", 0, 1)).unwrap();
    assert!(!row(&mut o));
}

#[test]
fn parts_go_with_the_completed_upload() {
    let mut o = index();
    for part in ["p1", "p2"] {
        put(&mut o, part, 1, 4096);
    }
    prepare(&mut o, ModifyOp::ADD, key("whole", ""), "t");
    let mut op = completion(ModifyOp::ADD, key("whole", ""), "t", 3, 8192);
    op.remove_objs = vec![key("p1", ""), key("gone", ""), key("p2", "")];
    complete(&mut o, &op).unwrap();
    assert_eq!(names(&list(&mut o, all())), ["whole"]);
    assert_eq!(totals(&mut o), (1, 8192, 8192));
    let logged = log(&mut o);
    let mut ids: Vec<&Bytes> = logged.iter().map(|e| &e.id).collect();
    ids.dedup();
    assert_eq!((logged.len(), ids.len()), (3, 3), "the log does not have removals of parts");
}

#[test]
fn listings_are_cut_and_filtered() {
    let mut o = index();
    o.omap_entries = 3;
    for name in ["a", "b/1", "b/2", "b/3", "b/4", "b/5", "c", "d/x/1", "d/x/2", "\u{e000}end"] {
        put(&mut o, name, 1, 1);
    }
    assert_eq!(list(&mut o, all()).dir.entries.len(), 10, "names stand on both sides of the log");
    let two = list(&mut o, ListOp { num_entries: 2, ..ListOp::default() });
    assert_eq!((names(&two), two.is_truncated), (vec!["a".into(), "b/1".into()], true));
    let rest = ListOp { start_obj: key("c", ""), ..all() };
    assert_eq!(names(&list(&mut o, rest)), ["d/x/1", "d/x/2", "\u{e000}end"]);
    let prefix = ListOp { filter_prefix: "b/".into(), ..all() };
    assert_eq!(list(&mut o, prefix).dir.entries.len(), 5);
    let delimited = ListOp { delimiter: "/".into(), ..all() };
    let found = list(&mut o, delimited.clone());
    assert_eq!(names(&found), ["a", "b/", "c", "d/", "\u{e000}end"]);
    assert_eq!(found.dir.entries[&Bytes::from("b/")].flags, flag::COMMON_PREFIX);
    let from = ListOp { start_obj: key("b/", ""), ..delimited.clone() };
    assert_eq!(names(&list(&mut o, from)), ["c", "d/", "\u{e000}end"]);
    let inner = ListOp { filter_prefix: "d/".into(), ..delimited };
    assert_eq!(names(&list(&mut o, inner)), ["d/x/"]);
}

#[test]
fn a_listing_that_found_nothing_to_show_says_how_far_it_came() {
    let mut o = index();
    for n in 0..20 {
        put_version(&mut o, &format!("i{n}"));
    }
    put(&mut o, "p", 1, 1);
    let mut op = ListOp { num_entries: 1, ..ListOp::default() };
    let newest = list(&mut o, op.clone());
    assert_eq!((newest.dir.entries.len(), newest.is_truncated), (1, true));
    op.start_obj = key("o", "");
    let mut calls = 0;
    let found = loop {
        let output = o.call("rgw", "bucket_list", encode(&op)).unwrap();
        let ret: ListRet = denc::Reader::new(output.data).get().unwrap();
        calls += 1;
        if output.value == 0 {
            break ret;
        }
        assert_eq!((output.value, ret.is_truncated), (LIST_ADVANCED, true));
        assert_eq!((names(&ret).len(), &ret.marker.name[..]), (0, &b"o"[..]));
        assert_ne!(ret.marker, op.start_obj, "it came further");
        op.start_obj = ret.marker;
    };
    assert_eq!((names(&found), calls), (vec!["p".to_owned()], 3));
}

/// The mark of an object with versions is a row that no list shows: a call may end there.
#[test]
fn a_listing_that_ends_at_a_mark_goes_on_with_its_versions() {
    // As many hidden rows before it as one call looks at, less one.
    for hidden in 5..12 {
        let mut o = index();
        for n in 0..hidden {
            let name: &'static str =
                ["a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8", "a9", "b0", "b1"][n];
            prepare(&mut o, ModifyOp::ADD, key(name, ""), "t");
            let mut row: DirEntry =
                denc::Reader::new(o.stored.omap[name.as_bytes()].clone()).get().unwrap();
            row.flags = flag::VER;
            o.stored.omap.insert(name.into(), encode(&row));
        }
        put_version(&mut o, "i1");
        let mut op = ListOp { num_entries: 1, ..ListOp::default() };
        let found = loop {
            let output = o.call("rgw", "bucket_list", encode(&op)).unwrap();
            let ret: ListRet = denc::Reader::new(output.data).get().unwrap();
            if output.value == 0 {
                break ret;
            }
            op.start_obj = ret.marker;
        };
        assert_eq!(
            found.dir.entries.values().map(|e| &e.key.name[..]).collect::<Vec<_>>(),
            [b"o"],
            "{hidden}"
        );
    }
}

#[test]
fn totals_can_be_counted_set_and_rebuilt() {
    let mut o = index();
    put(&mut o, "a", 1, 100);
    let wrong = CategoryStats { num_entries: 9, ..CategoryStats::default() };
    let op =
        |absolute| UpdateStatsOp { absolute, stats: BTreeMap::from([(ObjCategory::MAIN, wrong)]) };
    call(&mut o, "bucket_update_stats", &op(false)).unwrap();
    assert_eq!(totals(&mut o), (10, 100, 4096));
    call(&mut o, "bucket_update_stats", &op(true)).unwrap();
    assert_eq!(totals(&mut o), (9, 0, 0));
    let ret: CheckIndexRet = ask(&mut o, "bucket_check_index", &());
    assert_eq!(ret.existing_header.stats[&ObjCategory::MAIN], wrong);
    assert_eq!(ret.calculated_header.stats[&ObjCategory::MAIN].total_size, 100);
    call(&mut o, "bucket_rebuild_index", &()).unwrap();
    assert_eq!(totals(&mut o), (1, 100, 4096));
}

fn suggestion(op: u8, entry: &DirEntry) -> Bytes {
    let mut out = BytesMut::new();
    op.encode(&mut out, Features::ALL);
    entry.encode(&mut out, Features::ALL);
    out.freeze()
}

#[test]
fn suggestions_wait_for_changes_under_way() {
    let mut o = index();
    call(&mut o, "bucket_set_tag_timeout", &TagTimeoutOp { tag_timeout: 10 }).unwrap();
    put(&mut o, "o", 1, 100);
    prepare(&mut o, ModifyOp::ADD, key("o", ""), "x");
    let seen = list(&mut o, all()).dir.entries[&Bytes::from("o")].clone();
    let remove = suggestion(suggest::REMOVE | suggest::LOG_OP, &seen);
    o.call("rgw", "dir_suggest_changes", remove.clone()).unwrap();
    assert_eq!(totals(&mut o).0, 1, "a change is under way");
    o.origin.now = Utime::new(1011, 0);
    let update = DirEntry { meta: meta(300), ..seen };
    o.call("rgw", "dir_suggest_changes", suggestion(suggest::UPDATE, &update)).unwrap();
    assert_eq!(totals(&mut o).0, 1);
    assert_eq!(totals(&mut o).1, 300);
    o.call("rgw", "dir_suggest_changes", remove).unwrap();
    assert_eq!(totals(&mut o).0, 1, "the entry was changed since it was looked at");
    let seen = list(&mut o, all()).dir.entries[&Bytes::from("o")].clone();
    let remove = suggestion(suggest::REMOVE | suggest::LOG_OP, &seen);
    o.call("rgw", "dir_suggest_changes", remove).unwrap();
    assert_eq!(totals(&mut o), (0, 0, 0));
    assert!(names(&list(&mut o, all())).is_empty());
    assert_eq!(o.call("rgw", "dir_suggest_changes", "r").map(|_| ()), Err(Errno::EINVAL));
}

fn link(o: &mut TestObject, instance: &str, delete_marker: bool) -> Result<Bytes, Errno> {
    let op = LinkOlhOp {
        key: key("o", instance),
        olh_tag: "olh".into(),
        delete_marker,
        op_tag: "op".into(),
        meta: meta(0),
        log_op: true,
        ..LinkOlhOp::default()
    };
    call(o, "bucket_link_olh", &op)
}

fn put_version(o: &mut TestObject, instance: &str) {
    prepare(o, ModifyOp::ADD, key("o", instance), "t");
    complete(o, &completion(ModifyOp::ADD, key("o", instance), "t", 1, 100)).unwrap();
    link(o, instance, false).unwrap();
}

fn unlink(o: &mut TestObject, instance: &str) {
    let op = UnlinkInstanceOp {
        key: key("o", instance),
        op_tag: "op".into(),
        olh_tag: "olh".into(),
        log_op: true,
        ..UnlinkInstanceOp::default()
    };
    call(o, "bucket_unlink_instance", &op).unwrap();
}

/// Versions from the newest to the oldest, with flags.
fn versions(o: &mut TestObject) -> Vec<(String, u16)> {
    let ret = list(o, ListOp { list_versions: true, ..all() });
    let text = |e: &DirEntry| String::from_utf8_lossy(&e.key.instance).into_owned();
    ret.dir.entries.values().map(|e| (text(e), e.flags)).collect()
}

fn olh_log(o: &mut TestObject) -> Vec<OlhLogOp> {
    let op = ReadOlhLogOp { olh: key("o", ""), ver_marker: 0, olh_tag: "olh".into() };
    let ret: ReadOlhLogRet = ask(o, "bucket_read_olh_log", &op);
    ret.log.values().flatten().map(|e| e.op).collect()
}

const CURRENT: u16 = flag::VER | flag::CURRENT;

#[test]
fn the_newest_version_is_current() {
    let mut o = index();
    put_version(&mut o, "v1");
    put_version(&mut o, "v2");
    assert_eq!(versions(&mut o), [("v2".into(), CURRENT), ("v1".into(), flag::VER)]);
    assert_eq!(list(&mut o, all()).dir.entries.len(), 1);
    link(&mut o, "m", true).unwrap();
    assert_eq!(versions(&mut o)[0], ("m".into(), CURRENT | flag::DELETE_MARKER));
    assert!(list(&mut o, all()).dir.entries.is_empty(), "the object is deleted");
    assert_eq!(link(&mut o, "m2", true), Err(Errno::ENOENT), "it is deleted already");
    unlink(&mut o, "m");
    assert_eq!(versions(&mut o)[0], ("v2".into(), CURRENT));
    unlink(&mut o, "v2");
    assert_eq!(versions(&mut o), [("v1".into(), CURRENT)]);
    unlink(&mut o, "v1");
    unlink(&mut o, "v1");
    assert!(versions(&mut o).is_empty());
    assert_eq!(*olh_log(&mut o).last().unwrap(), OlhLogOp::REMOVE_INSTANCE);
    assert!(olh_log(&mut o).contains(&OlhLogOp::UNLINK_OLH));
    let ops: Vec<ModifyOp> = log(&mut o).iter().map(|e| e.op).collect();
    assert_eq!(ops.iter().filter(|op| **op == ModifyOp::UNLINK_INSTANCE).count(), 4);
    assert_eq!(ops.iter().filter(|op| **op == ModifyOp::LINK_OLH_DM).count(), 1);
}

#[test]
fn an_object_from_before_becomes_the_oldest_version() {
    let mut o = index();
    put(&mut o, "o", 1, 100);
    put_version(&mut o, "v1");
    assert_eq!(versions(&mut o), [("v1".into(), CURRENT), (String::new(), flag::VER)]);
    unlink(&mut o, "v1");
    assert_eq!(versions(&mut o), [(String::new(), CURRENT)]);
    // A delete marker as the null version takes the place of the object that is one.
    link(&mut o, "", true).unwrap();
    assert_eq!(versions(&mut o), [(String::new(), CURRENT | flag::DELETE_MARKER)]);
    unlink(&mut o, "null");
    assert!(versions(&mut o).is_empty());
}

#[test]
fn the_head_s_log_is_trimmed_and_forgotten() {
    let mut o = index();
    put_version(&mut o, "v1");
    let wrong = ReadOlhLogOp { olh: key("o", ""), ver_marker: 0, olh_tag: "x".into() };
    assert_eq!(call(&mut o, "bucket_read_olh_log", &wrong), Err(Errno::ECANCELED));
    let version = ReadOlhLogOp { olh: key("o", "v1"), ..wrong };
    assert_eq!(call(&mut o, "bucket_read_olh_log", &version), Err(Errno::EINVAL));
    assert_eq!(olh_log(&mut o), [OlhLogOp::LINK_OLH]);
    let trim = TrimOlhLogOp { olh: key("o", ""), ver: 2, olh_tag: "olh".into() };
    call(&mut o, "bucket_trim_olh_log", &trim).unwrap();
    assert!(olh_log(&mut o).is_empty());
    unlink(&mut o, "v1");
    let clear = ClearOlhOp { key: key("o", ""), olh_tag: "olh".into() };
    call(&mut o, "bucket_clear_olh", &clear).unwrap();
    let keys: Vec<&Bytes> = o.stored.omap.keys().collect();
    assert!(keys.iter().all(|k| !k.starts_with(b"\x801001_") && ***k != b"o"[..]), "{keys:?}");
    // Another head, with another tag, can follow.
    put_version(&mut o, "w");
    let other = LinkOlhOp {
        key: key("o", "w"),
        olh_tag: "other".into(),
        op_tag: "op".into(),
        ..LinkOlhOp::default()
    };
    assert_eq!(call(&mut o, "bucket_link_olh", &other), Err(Errno::ECANCELED));
}

#[test]
fn an_older_epoch_does_not_become_current() {
    let mut o = index();
    put_version(&mut o, "v1");
    put_version(&mut o, "v2");
    prepare(&mut o, ModifyOp::ADD, key("o", "old"), "t");
    complete(&mut o, &completion(ModifyOp::ADD, key("o", "old"), "t", 1, 1)).unwrap();
    let op = LinkOlhOp {
        key: key("o", "old"),
        olh_tag: "olh".into(),
        op_tag: "op".into(),
        olh_epoch: 1,
        ..LinkOlhOp::default()
    };
    call(&mut o, "bucket_link_olh", &op).unwrap();
    assert_eq!(versions(&mut o)[0], ("v2".into(), CURRENT));
    assert_eq!(versions(&mut o)[2], ("old".into(), flag::VER));
    // Nor does anything happen if the version is newer than the caller expected.
    let op = LinkOlhOp { key: key("o", "v1"), unmod_since: Utime::new(900, 9), ..op };
    let before = o.stored.clone();
    call(&mut o, "bucket_link_olh", &LinkOlhOp { olh_epoch: 0, ..op }).unwrap();
    assert_eq!(o.stored, before);
}

#[test]
fn raw_rows_are_listed_by_kind() {
    let mut o = index();
    put_version(&mut o, "v1");
    put_version(&mut o, "v2");
    put(&mut o, "p", 1, 1);
    put(&mut o, "\u{e000}", 1, 1);
    let list = |o: &mut TestObject, max, name: &'static str, marker: Bytes| -> BiListRet {
        ask(o, "bi_list", &BiListOp { max, name: name.into(), marker })
    };
    let everything = list(&mut o, 100, "", Bytes::new());
    let kinds: Vec<BiType> = everything.entries.iter().map(|e| e.kind).collect();
    let count = |kind| kinds.iter().filter(|k| **k == kind).count();
    assert_eq!((count(BiType::PLAIN), count(BiType::INSTANCE), count(BiType::OLH)), (5, 2, 1));
    assert!(!everything.is_truncated);
    // Page by page the same rows.
    let (mut paged, mut marker) = (Vec::new(), Bytes::new());
    loop {
        let page = list(&mut o, 2, "", marker.clone());
        assert!(page.entries.len() <= 2);
        marker = page.entries.last().map(|e| e.idx.clone()).unwrap_or(marker);
        paged.extend(page.entries);
        if !page.is_truncated {
            break;
        }
    }
    paged.dedup();
    let mut sorted = everything.entries.clone();
    sorted.sort_by(|a, b| a.idx.cmp(&b.idx));
    paged.sort_by(|a, b| a.idx.cmp(&b.idx));
    assert_eq!(paged, sorted);
    assert_eq!(list(&mut o, 100, "o", Bytes::new()).entries.len(), 6);
    let get = BiGetOp { key: key("o", "v1"), kind: BiType::INSTANCE };
    let row: BiRow = ask(&mut o, "bi_get", &get);
    let mut other = index();
    call(&mut other, "bi_put", &row).unwrap();
    assert_eq!(other.stored.omap[&row.entry.idx], row.entry.data);
    let bad = BiGetOp { kind: BiType::INVALID, ..get };
    assert_eq!(call(&mut o, "bi_get", &bad), Err(Errno::EINVAL));
}

#[test]
fn the_log_is_listed_trimmed_stopped_and_resumed() {
    let mut o = index();
    for n in 0..5 {
        put(&mut o, &format!("o{n}"), 1, 1);
    }
    let entries = log(&mut o);
    let op = BiLogListOp { marker: entries[1].id.clone(), max: 2 };
    let page: BiLogListRet = ask(&mut o, "bi_log_list", &op);
    assert_eq!((&page.entries[..], page.truncated), (&entries[2..4], true));
    let trim = BiLogTrimOp { start_marker: Bytes::new(), end_marker: entries[2].id.clone() };
    call(&mut o, "bi_log_trim", &trim).unwrap();
    assert_eq!(log(&mut o), entries[3..]);
    assert_eq!(call(&mut o, "bi_log_trim", &trim), Err(Errno::ENODATA));
    call(&mut o, "bi_log_stop", &()).unwrap();
    put(&mut o, "silent", 1, 1);
    call(&mut o, "bi_log_resync", &()).unwrap();
    put(&mut o, "loud", 1, 1);
    let ops: Vec<ModifyOp> = log(&mut o)[2..].iter().map(|e| e.op).collect();
    assert_eq!(ops, [ModifyOp::SYNCSTOP, ModifyOp::RESYNC, ModifyOp::ADD]);
    call(&mut o, "bi_log_trim", &BiLogTrimOp::default()).unwrap();
    assert!(log(&mut o).is_empty());
}

#[test]
fn removing_an_object_can_keep_attributes() {
    let mut o = TestObject::new();
    let remove = ObjRemoveOp { keep_attr_prefixes: vec!["user.keep".into()] };
    assert_eq!(call(&mut o, "obj_remove", &remove), Err(Errno::ENOENT));
    o.stored.exists = true;
    o.stored.data = vec![1];
    for name in ["user.keep.1", "user.keep", "user.kee", "user.other"] {
        o.stored.xattrs.insert(name.into(), "x".into());
    }
    let check = |o: &mut TestObject, prefix: &'static str, fail_if_exist| {
        let op = ObjCheckAttrsPrefix { check_prefix: prefix.into(), fail_if_exist };
        call(o, "obj_check_attrs_prefix", &op).map(|_| ())
    };
    assert_eq!(check(&mut o, "user.o", true), Err(Errno::ECANCELED));
    assert_eq!(check(&mut o, "user.o", false), Ok(()));
    assert_eq!(check(&mut o, "user.z", false), Err(Errno::ECANCELED));
    assert_eq!(check(&mut o, "", false), Err(Errno::EINVAL));
    call(&mut o, "obj_remove", &remove).unwrap();
    let left: Vec<&Bytes> = o.stored.xattrs.keys().collect();
    assert_eq!((o.stored.exists, left), (true, vec![&"user.keep".into(), &"user.keep.1".into()]));
    assert!(o.stored.data.is_empty());
    o.origin.last_user_version = 77;
    call(&mut o, "obj_store_pg_ver", &ObjStorePgVerOp { attr: "v".into() }).unwrap();
    assert_eq!(o.stored.xattrs[&Bytes::from("v")][..], 77u64.to_le_bytes());
    call(&mut o, "obj_remove", &ObjRemoveOp::default()).unwrap();
    assert!(!o.stored.exists);
}

#[test]
fn times_are_compared() {
    let mut o = TestObject::new();
    o.stored.exists = true;
    call(&mut o, "obj_store_pg_ver", &ObjStorePgVerOp { attr: "v".into() }).unwrap();
    let mut check = |check, nsec, precise| {
        o.origin.mtime = Utime::new(1000, 5);
        let op =
            ObjCheckMtime { mtime: Utime::new(1000, nsec), check, high_precision_time: precise };
        call(&mut o, "obj_check_mtime", &op).map(|_| ())
    };
    for (kind, equal, before) in [
        (MtimeCheck::EQ, true, false),
        (MtimeCheck::LT, false, true),
        (MtimeCheck::LE, true, true),
        (MtimeCheck::GT, false, false),
        (MtimeCheck::GE, true, false),
    ] {
        let expect = |holds| if holds { Ok(()) } else { Err(Errno::ECANCELED) };
        assert_eq!(check(kind, 6, false), expect(equal), "{kind:?}");
        assert_eq!(check(kind, 6, true), expect(before), "{kind:?}");
    }
    assert_eq!(check(MtimeCheck(9), 6, true), Err(Errno::EINVAL));
}

fn usage(user: &'static str, bucket: &'static str, hour: u64, ops: u64) -> UsageLogEntry {
    let data = UsageData { ops, successful_ops: ops, ..UsageData::default() };
    UsageLogEntry {
        owner: User::parse(&user.into()),
        bucket: bucket.into(),
        epoch: hour * 3600,
        total_usage: data,
        usage_map: BTreeMap::from([("put_obj".into(), data)]),
        ..UsageLogEntry::default()
    }
}

#[test]
fn usage_is_added_up_read_and_trimmed() {
    let mut o = TestObject::new();
    let trim = |user: &'static str, bucket: &'static str| UsageLogTrimOp {
        start_epoch: 0,
        end_epoch: 100 * 3600,
        user: user.into(),
        bucket: bucket.into(),
    };
    assert_eq!(call(&mut o, "user_usage_log_trim", &trim("", "")), Err(Errno::ENOENT));
    let entries = vec![
        usage("u", "a", 1, 2),
        usage("u", "a", 2, 3),
        usage("u", "b", 1, 4),
        usage("w", "a", 1, 5),
    ];
    for _ in 0..2 {
        let op = UsageLogAddOp {
            info: UsageLogInfo { entries: entries.clone() },
            user: User::default(),
        };
        call(&mut o, "user_usage_log_add", &op).unwrap();
    }
    let read = |o: &mut TestObject, owner: &'static str, bucket: &'static str, end: u64| {
        let op = UsageLogReadOp {
            end_epoch: end * 3600,
            owner: owner.into(),
            bucket: bucket.into(),
            ..UsageLogReadOp::default()
        };
        let ret: UsageLogReadRet = ask(o, "user_usage_log_read", &op);
        ret.usage.values().map(|e| e.total_usage.ops).collect::<Vec<_>>()
    };
    assert_eq!(read(&mut o, "", "", 100), [10, 8, 10]);
    assert_eq!(read(&mut o, "u", "", 2), [4, 8]);
    assert_eq!(read(&mut o, "u", "b", 100), [8]);
    call(&mut o, "user_usage_log_trim", &trim("u", "a")).unwrap();
    assert_eq!(read(&mut o, "", "", 100), [8, 10]);
    assert_eq!(call(&mut o, "user_usage_log_trim", &trim("u", "a")), Err(Errno::ENODATA));
    call(&mut o, "usage_log_clear", &()).unwrap();
    assert!(o.stored.omap.is_empty());
}

fn gc_info(tag: &'static str) -> GcObjInfo {
    let obj = RawObj { pool: "p".into(), key: key(tag, ""), loc: Bytes::new() };
    GcObjInfo { tag: tag.into(), chain: ObjChain { objs: vec![obj] }, time: Utime::ZERO }
}

#[test]
fn garbage_waits_is_deferred_and_removed() {
    let mut o = TestObject::new();
    for (n, tag) in ["a", "b", "c"].into_iter().enumerate() {
        let op = GcSetEntryOp { expiration_secs: n as u32 * 10, info: gc_info(tag) };
        call(&mut o, "gc_set_entry", &op).unwrap();
    }
    let tags = |o: &mut TestObject, expired_only, max| {
        let ret: GcListRet =
            ask(o, "gc_list", &GcListOp { expired_only, max, ..GcListOp::default() });
        let tags: Vec<Bytes> = ret.entries.into_iter().map(|e| e.tag).collect();
        (tags, ret.truncated, ret.next_marker.is_empty())
    };
    assert_eq!(tags(&mut o, false, 0), (vec!["a".into(), "b".into(), "c".into()], false, true));
    assert_eq!(tags(&mut o, false, 2), (vec!["a".into(), "b".into()], true, false));
    o.origin.now = Utime::new(1011, 0);
    assert_eq!(tags(&mut o, true, 0).0, ["a", "b"]);
    let defer = GcDeferEntryOp { expiration_secs: 100, tag: "a".into() };
    call(&mut o, "gc_defer_entry", &defer).unwrap();
    assert_eq!(tags(&mut o, true, 0).0, ["b"]);
    let unknown = GcDeferEntryOp { tag: "x".into(), ..defer };
    assert_eq!(call(&mut o, "gc_defer_entry", &unknown), Err(Errno::ENOENT));
    let remove = GcRemoveOp { tags: vec!["a".into(), "x".into(), "c".into()] };
    call(&mut o, "gc_remove", &remove).unwrap();
    assert_eq!(tags(&mut o, false, 0).0, ["b"]);
    assert_eq!(o.stored.omap.len(), 2, "each entry is there by tag and by time");
}

#[test]
fn lifecycle_entries_and_head() {
    let mut o = TestObject::new();
    let head: LcHeadOp = ask(&mut o, "lc_get_head", &());
    assert_eq!(head, LcHeadOp::default());
    for shard_rollover_date in [None, Some(9)] {
        let head = LcHead { start_date: 5, marker: "m".into(), shard_rollover_date };
        call(&mut o, "lc_put_head", &LcHeadOp { head: head.clone() }).unwrap();
        assert_eq!(ask::<_, LcHeadOp>(&mut o, "lc_get_head", &()).head, head);
    }
    for (n, bucket) in ["a", "b", "c"].into_iter().enumerate() {
        let entry = LcEntry { bucket: bucket.into(), start_time: n as u64, status: 1 };
        call(&mut o, "lc_set_entry", &LcEntryOp { entry }).unwrap();
    }
    let next = |o: &mut TestObject, marker: &'static str| {
        ask::<_, LcEntryOp>(o, "lc_get_next_entry", &LcMarkerOp { marker: marker.into() }).entry
    };
    assert_eq!(&next(&mut o, "").bucket[..], b"a");
    assert_eq!(next(&mut o, "c"), LcEntry::default());
    let entry: LcGetEntryRet = ask(&mut o, "lc_get_entry", &LcMarkerOp { marker: "b".into() });
    assert_eq!(entry.entry.start_time, 1);
    call(&mut o, "lc_rm_entry", &LcEntryOp { entry: entry.entry }).unwrap();
    let gone = call(&mut o, "lc_get_entry", &LcMarkerOp { marker: "b".into() });
    assert_eq!(gone, Err(Errno::ENOENT));
    let op = LcListEntriesOp { max_entries: 1, ..LcListEntriesOp::default() };
    let page: LcListEntriesRet = ask(&mut o, "lc_list_entries", &op);
    assert_eq!((page.entries.len(), page.is_truncated, page.compat_v), (1, true, 3));
    // An old client's form, which the answer has too.
    let mut old = BytesMut::new();
    denc::envelope(&mut old, 2, 1, |b| (Bytes::new(), 10u32).encode(b, Features::ALL));
    let answer = o.call("rgw", "lc_list_entries", old.freeze()).unwrap().data;
    let page: LcListEntriesRet = denc::Reader::new(answer).get().unwrap();
    assert_eq!((page.entries.len(), page.entries[1].start_time, page.compat_v), (2, 0, 2));
}

#[test]
fn buckets_wait_for_resharding() {
    let mut o = TestObject::new();
    let entry = |name: &'static str| ReshardEntry {
        tenant: "t".into(),
        bucket_name: name.into(),
        bucket_id: "id".into(),
        new_num_shards: 5,
        ..ReshardEntry::default()
    };
    for name in ["a", "b"] {
        call(&mut o, "reshard_add", &ReshardOp { entry: entry(name) }).unwrap();
    }
    let got: ReshardOp = ask(&mut o, "reshard_get", &ReshardOp { entry: entry("b") });
    assert_eq!(got.entry, entry("b"));
    let list = |o: &mut TestObject, max| -> ReshardListRet {
        ask(o, "reshard_list", &ReshardListOp { max, marker: Bytes::new() })
    };
    assert_eq!(list(&mut o, 10).entries, [entry("a"), entry("b")]);
    assert!(list(&mut o, 1).is_truncated && list(&mut o, 0).entries.is_empty());
    let remove = |id: &'static str| ReshardRemoveOp {
        tenant: "t".into(),
        bucket_name: "a".into(),
        bucket_id: id.into(),
    };
    call(&mut o, "reshard_remove", &remove("other")).unwrap();
    assert_eq!(list(&mut o, 10).entries.len(), 2);
    call(&mut o, "reshard_remove", &remove("id")).unwrap();
    assert_eq!(list(&mut o, 10).entries.len(), 1);
    assert_eq!(call(&mut o, "reshard_remove", &remove("id")), Err(Errno::ENOENT));
}

#[test]
fn writers_are_kept_out_while_entries_move() {
    let mut o = index();
    let guard = GuardReshardingOp { ret_err: -2300 };
    let check = |o: &mut TestObject| {
        o.call("rgw", "guard_bucket_resharding", guard.to_bytes(Features::ALL)).unwrap().value
    };
    assert_eq!(check(&mut o), 0);
    let entry = InstanceEntry {
        reshard_status: ReshardStatus::IN_PROGRESS,
        new_bucket_instance_id: "new".into(),
        num_shards: 3,
    };
    let op = BucketResharding { entry };
    call(&mut o, "set_bucket_resharding", &op).unwrap();
    assert_eq!(check(&mut o), -2300);
    assert_eq!(ask::<_, BucketResharding>(&mut o, "get_bucket_resharding", &EmptyOp {}), op);
    call(&mut o, "clear_bucket_resharding", &EmptyOp {}).unwrap();
    assert_eq!(check(&mut o), 0);
    let cleared: BucketResharding = ask(&mut o, "get_bucket_resharding", &EmptyOp {});
    assert_eq!(cleared.entry, InstanceEntry { num_shards: 3, ..InstanceEntry::default() });
}

#[test]
fn a_part_that_is_replaced_leaves_its_prefix() {
    let mut o = TestObject::new();
    let put = |o: &mut TestObject, prefix: &'static str, stripes: bool| {
        let mut info = PartInfo { number: 1, ..PartInfo::default() };
        info.manifest.prefix = prefix.into();
        if stripes {
            info.manifest.rules.insert(0, ::rgw::manifest::Rule::default());
        }
        let op = PartUpdateOp { key: "part.00000001".into(), info };
        call(o, "mp_upload_part_info_update", &op).map(drop)
    };
    let past = |o: &TestObject| {
        let row = o.stored.omap[&b"part.00000001"[..]].clone();
        let info: PartInfo = denc::Reader::new(row).get().unwrap();
        let past = info.past_prefixes.expect("version 5");
        past.into_iter().map(|p| String::from_utf8(p.to_vec()).unwrap()).collect::<Vec<_>>()
    };
    put(&mut o, "empty", false).unwrap();
    assert!(past(&o).is_empty());
    put(&mut o, "a", true).unwrap();
    assert!(past(&o).is_empty(), "a part without data leaves none");
    put(&mut o, "b", true).unwrap();
    put(&mut o, "c", true).unwrap();
    assert_eq!(past(&o), ["a", "b"]);
    assert_eq!(put(&mut o, "a", true), Err(Errno::EEXIST));
    assert_eq!(put(&mut o, "c", true), Err(Errno::EEXIST));
    assert_eq!(past(&o), ["a", "b"]);
}
