//! What a running cluster of Debian's 16.2.15 answered, against what we would answer.

use bytes::Bytes;
use denc::{Decode, Encode};
use serde_json::{Value, json};
use types::features::PACIFIC;
use types::{Dump, Epoch, FsMap, MgrMap, MonMap, OsdStat, PgStat, PoolStat};

fn answer(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// The names of all fields in order, with the kind of each value.
fn shape(value: &Value) -> Vec<(String, &'static str)> {
    fn walk(path: &str, value: &Value, found: &mut Vec<(String, &'static str)>) {
        let kind = match value {
            Value::Null => "null",
            Value::Bool(_) => "bool",
            Value::Number(_) => "number",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        };
        found.push((path.to_owned(), kind));
        for (name, value) in value.as_object().into_iter().flatten() {
            walk(&format!("{path}.{name}"), value, found);
        }
    }
    let mut found = Vec::new();
    walk("", value, &mut found);
    found
}

#[test]
fn the_monitor_map_is_the_same_in_bytes_and_json() {
    // `ceph mon getmap` and `ceph mon dump -f json` (without the quorum, which is not in the map).
    let bytes = Bytes::from_static(include_bytes!("data/monmap.bin"));
    let map = MonMap::from_bytes(&bytes).unwrap();
    assert_eq!(map.to_bytes(PACIFIC), bytes);
    assert_eq!(map.dump(), answer(include_str!("data/monmap.json")));
    assert_eq!(shape(&map.dump()), shape(&answer(include_str!("data/monmap.json"))));
}

#[test]
fn the_file_system_map_of_a_new_cluster_is_the_same() {
    // `ceph fs dump -f json`.
    let map = FsMap { epoch: Epoch(1), ..Default::default() };
    assert_eq!(map.dump(), answer(include_str!("data/fsmap.json")));
}

#[test]
fn statistics_have_the_same_fields() {
    // One element each of `ceph pg dump -f json`, where the name of what they are about comes
    // first.
    let stock = answer(include_str!("data/pg_dump.json"));
    for (name, ours, about) in [
        ("pg_stat", PgStat::default().dump(), &["pgid"][..]),
        ("osd_stat", OsdStat::default().dump(), &["osd"]),
        ("pool_stat", PoolStat::default().dump(), &["poolid", "num_pg"]),
    ] {
        let mut stock = stock[name].clone();
        for field in about {
            stock.as_object_mut().unwrap().shift_remove(*field).unwrap();
        }
        assert_eq!(shape(&ours), shape(&stock), "{name}");
    }
}

#[test]
fn the_manager_map_has_the_same_fields() {
    // `ceph mgr dump -f json`, with one of its many modules.
    let mut stock = answer(include_str!("data/mgrmap.json"));
    let mut map = MgrMap { clients: vec![Default::default()], ..Default::default() };
    map.available_modules.push(types::mgrmap::ModuleInfo::default());
    map.available_modules[0].module_options.insert("interval".into(), Default::default());
    let ours = map.dump();
    let first = |value: &Value, list: &str| shape(&value[list][0]);
    assert_eq!(first(&ours, "active_clients"), first(&stock, "active_clients"));
    assert_eq!(
        shape(&ours["available_modules"][0]["module_options"]["interval"]),
        shape(&stock["available_modules"][0]["module_options"]["interval"]),
    );
    for named in ["always_on_modules", "services"] {
        stock[named] = json!({});
    }
    assert_eq!(shape(&ours), shape(&stock));
}
