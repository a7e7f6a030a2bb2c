//! What stock `osdmaptool` makes of the same bytes decides whether maps, mappings and views are
//! right.
#![allow(missing_docs)]

use denc::{Bytes, Decode, Encode};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use types::osdmap::{StretchMode, TreeFilter};
use types::rados::{osd_state, osdmap_flag};
use types::{
    Dump, EntityAddr, EntityAddrVec, Epoch, Fsid, OsdId, OsdMap, OsdMapIncremental, OsdMapMapping,
    PgId, PoolId, Release, Utime, features,
};

fn have_tool() -> bool {
    let found = Command::new("osdmaptool").arg("--help").output().is_ok();
    if !found {
        assert!(
            std::env::var_os("SIPHON_REQUIRE_ORACLES").is_none(),
            "osdmaptool is required and not installed"
        );
        eprintln!("skipped: osdmaptool is not installed");
    }
    found
}

/// What the tool prints on its standard output.
fn tool(args: &[&str], map: &Path) -> String {
    let out = Command::new("osdmaptool").args(args).arg(map).output().expect("osdmaptool runs");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{args:?}: {text}{}", String::from_utf8_lossy(&out.stderr));
    text
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) % n
    }
    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

fn create(dir: &Path, osds: usize) -> (std::path::PathBuf, OsdMap) {
    let path = dir.join("map");
    tool(
        &[
            "--createsimple",
            &osds.to_string(),
            "--clobber",
            "--with-default-pool",
            "--pg-bits",
            "4",
        ],
        &path,
    );
    let bytes: Bytes = std::fs::read(&path).expect("the tool wrote a map").into();
    let map = OsdMap::from_bytes(&bytes).expect("a stock map decodes");
    assert_eq!(map.to_bytes(features::PACIFIC), bytes, "a stock map encodes to its bytes");
    (path, map)
}

fn addrs(text: &str) -> EntityAddrVec {
    text.parse().expect("an address")
}

/// A host for every three OSDs, so that failure domains mean something.
fn hosts(map: &OsdMap, osds: i32) -> crush::CrushMap {
    let mut crush = (*map.crush).clone();
    for o in 0..osds {
        let loc = BTreeMap::from([
            ("root".to_owned(), "default".to_owned()),
            ("rack".to_owned(), format!("rack{}", o / 9)),
            ("host".to_owned(), format!("host{}", o / 3)),
        ]);
        crush
            .update_item(o, 0x10000 + (o as u32 % 3) * 0x8000, &format!("osd.{o}"), &loc)
            .expect("a place");
        crush.set_device_class(o, if o % 2 == 0 { "ssd" } else { "hdd" }).expect("a class");
    }
    let indep = crush::RuleMode::Indep;
    crush.add_simple_rule("ec", "default", "host", "", indep, 3, None).expect("a rule");
    crush
        .add_simple_rule("fast", "default", "osd", "ssd", crush::RuleMode::Firstn, 1, None)
        .expect("a rule");
    crush
}

/// An increment that touches everything at random.
fn random_increment(map: &OsdMap, rng: &mut Rng) -> OsdMapIncremental {
    let n = map.max_osd() as u64;
    let mut inc = OsdMapIncremental::new(map.epoch.next());
    inc.fsid = map.fsid;
    inc.modified = Utime::new(1_700_000_000 + inc.epoch.0, 123_456_789);
    for o in 0..n as i32 {
        let id = OsdId(o);
        if !map.exists(id) && !rng.one_in(20) {
            let addr =
                |port| addrs(&format!("[v2:10.0.0.{o}:{port}/7,v1:10.0.0.{o}:{}/7]", port + 1));
            inc.new_up_client.insert(id, addr(6800));
            inc.new_up_cluster.insert(id, addr(6802));
            inc.new_hb_back_up.insert(id, addr(6804));
            inc.new_hb_front_up.insert(id, addr(6806));
            inc.new_weight
                .insert(id, if rng.one_in(4) { rng.below(0x10001) as u32 } else { 0x10000 });
            inc.new_uuid.insert(id, Fsid([o as u8 + 1; 16]));
            inc.new_xinfo.entry(id).or_default().features = features::PACIFIC.0;
        } else if rng.one_in(8) && map.exists(id) {
            let bits = [
                osd_state::UP,
                osd_state::NEARFULL,
                osd_state::NOOUT,
                osd_state::UP,
                osd_state::AUTOOUT,
            ];
            inc.new_state.insert(id, bits[rng.below(5) as usize]);
        } else if rng.one_in(10) {
            inc.new_weight.insert(id, [0, 0x8000, 0x10000, 0x4321][rng.below(4) as usize]);
        }
        if rng.one_in(9) {
            inc.new_primary_affinity
                .insert(id, [0, 0x4000, 0x10000, 0xc123][rng.below(4) as usize]);
        }
        if rng.one_in(9) {
            inc.new_up_thru.insert(id, map.epoch);
        }
    }
    let osd = |rng: &mut Rng| OsdId(rng.below(n) as i32);
    for (pool_id, pool) in &map.pools {
        let pg = |rng: &mut Rng| PgId::new(*pool_id, rng.below(u64::from(pool.pg_num)) as u32);
        for _ in 0..rng.below(6) {
            let (pg, members) = (pg(rng), rng.below(5));
            inc.new_pg_temp.insert(pg, (0..members).map(|_| osd(rng)).collect());
        }
        for _ in 0..rng.below(4) {
            let (pg, to) = (pg(rng), if rng.one_in(3) { OsdId(-1) } else { osd(rng) });
            inc.new_primary_temp.insert(pg, to);
        }
        for _ in 0..rng.below(5) {
            let pg = pg(rng);
            inc.new_pg_upmap_items
                .insert(pg, (0..1 + rng.below(3)).map(|_| (osd(rng), osd(rng))).collect());
        }
        if let Some(pg) = map.pg_upmap_items.keys().next().filter(|_| rng.one_in(3)) {
            inc.old_pg_upmap_items.insert(*pg);
        }
        for _ in 0..rng.below(3) {
            let pg = pg(rng);
            inc.new_pg_upmap.insert(pg, (0..pool.size).map(|_| osd(rng)).collect());
        }
    }
    if rng.one_in(3) {
        let a: EntityAddr = format!("any:10.1.{}.1:0/{}", rng.below(9), rng.below(99999))
            .parse()
            .expect("an address");
        inc.new_blocklist.insert(a, Utime::new(1_800_000_000, 5));
    }
    let first = *map.pools.keys().next().expect("a pool");
    if rng.one_in(3) {
        let start = 1 + u64::from(inc.epoch.0) * 10;
        inc.new_removed_snaps.insert(first, [(start, 3)].into_iter().collect());
    } else if let Some(queue) = map.removed_snaps_queue.get(&first)
        && rng.one_in(2)
    {
        inc.new_purged_snaps.insert(first, queue.iter().take(1).collect());
    }
    if rng.one_in(5) {
        inc.new_flags = (map.flags | osdmap_flag::NOOUT | osdmap_flag::PAUSEREC) as i32;
        inc.new_full_ratio = 0.97;
        inc.new_last_in_change = inc.modified;
        inc.new_crush_node_flags.insert(-1, osd_state::NOUP);
        inc.new_device_class_flags.insert(0, osd_state::NOOUT);
    }
    inc
}

/// Makes the map richer step by step, through encoded increments.
fn grow(mut map: OsdMap, osds: i32, rng: &mut Rng, steps: usize) -> OsdMap {
    let f = map.encoding_features();
    let mut first = OsdMapIncremental::new(map.epoch.next());
    first.fsid = map.fsid;
    first.set_crush(&hosts(&map, osds), f);
    first.new_require_osd_release = Release::PACIFIC;
    first.new_require_min_compat_client = Release::LUMINOUS;
    first.new_pool_max = 3;
    first.new_nearfull_ratio = 0.85;
    first.new_backfillfull_ratio = 0.9;
    first.new_full_ratio = 0.95;
    let profile =
        BTreeMap::from([("k".to_owned(), "4".to_owned()), ("m".to_owned(), "2".to_owned())]);
    first.new_erasure_code_profiles.insert("p42".into(), profile);
    let base = map.pools.values().next().expect("the default pool").clone();
    for (id, name, rule, kind, size) in
        [(2, "ec", 1, types::pool::PoolType::Erasure, 6), (3, "fast", 2, base.kind, 2)]
    {
        let mut pool = base.clone();
        pool.crush_rule = rule;
        pool.kind = kind;
        pool.size = size;
        pool.pg_num = 48;
        pool.pgp_num = 40;
        if kind == types::pool::PoolType::Erasure {
            pool.erasure_code_profile = "p42".into();
        }
        first.new_pools.insert(PoolId(id), pool);
        first.new_pool_names.insert(PoolId(id), name.into());
    }
    let mut incs = vec![first];
    for step in 0..=steps {
        let mut inc = incs.pop().unwrap_or_else(|| random_increment(&map, rng));
        if step == 3 {
            inc.new_stretch = Some(StretchMode {
                enabled: rng.one_in(2),
                bucket_count: 2,
                bucket: 8,
                ..Default::default()
            });
        }
        let mut next = map.clone();
        next.apply_incremental(&inc).expect("our increment applies");
        let f = next.encoding_features();
        inc.full_crc = Some(next.crc(f));
        let bytes = inc.to_bytes(f);
        let mut again = OsdMapIncremental::from_bytes(&bytes).expect("our increment decodes");
        assert_eq!(again.encode_features, f.0);
        assert_eq!(again.to_bytes(f), bytes);
        let mut mapping = OsdMapMapping::new(&map);
        mapping.update(&map, &next);
        assert!(mapping == OsdMapMapping::new(&next), "the table follows");
        map.apply_incremental_checked(&again).expect("the checksum is right");
        assert!(map == next);
        again.full_crc = Some(1);
        again.epoch = Epoch(again.epoch.0 + 1);
        assert!(
            map.clone().apply_incremental_checked(&again).is_err(),
            "a wrong checksum is found"
        );
    }
    map
}

/// All numbers as floats, rounded as coarsely as a JSON reader may.
fn normal(v: serde_json::Value) -> serde_json::Value {
    use serde_json::Value;
    match v {
        Value::Number(n) if n.is_f64() => {
            Value::from((n.as_f64().expect("a finite number") * 1e9).round())
        }
        Value::Number(n) => Value::from((n.as_f64().expect("a finite number") * 1e9).round()),
        Value::Array(a) => a.into_iter().map(normal).collect(),
        Value::Object(o) => o.into_iter().map(|(k, v)| (k, normal(v))).collect(),
        v => v,
    }
}

/// Ceph shows times in the local zone; the tool runs in UTC like the tests.
#[test]
fn maps_are_alike_in_every_respect() {
    if !have_tool() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let mut groups = 0;
    for seed in 1..=7u64 {
        let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let osds = 9 + rng.below(20) as i32;
        let (path, map) = create(dir.path(), osds as usize);
        let map = grow(map, osds, &mut rng, 2 + (seed as usize % 6) * 2);
        let bytes = map.to_bytes(features::PACIFIC);
        // The rest of a stretch mode that is off is not written.
        let again = OsdMap::from_bytes(&bytes).expect("our map decodes");
        assert!(again == OsdMap { stretch: again.stretch, ..map.clone() }, "seed {seed}");
        assert!(again.stretch.enabled == map.stretch.enabled, "seed {seed}");
        let map = again;
        std::fs::write(&path, &bytes).expect("the map is written");

        let text = tool(&["--dump", "json"], &path);
        let theirs: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let (mine, theirs) = (normal(map.dump()), normal(theirs));
        for (part, value) in theirs.as_object().expect("an object") {
            assert!(mine[part] == *value, "seed {seed}: {part}:\n{}\n{value}", mine[part]);
        }
        let keys = |v: &serde_json::Value| {
            v.as_object().expect("an object").keys().cloned().collect::<Vec<_>>()
        };
        assert_eq!(keys(&mine), keys(&theirs), "seed {seed}");

        let sorted = |text: &str| {
            let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
            let at = lines.iter().position(|l| l.starts_with("blocklist")).unwrap_or(lines.len());
            lines[at..].sort();
            lines
        };
        let theirs = tool(&["--print"], &path);
        let (mine, theirs) = (sorted(&map.print()), sorted(&theirs));
        let differ: Vec<_> = mine.iter().zip(&theirs).filter(|(a, b)| a != b).take(2).collect();
        assert!(mine == theirs, "seed {seed}: {differ:?} {} {}", mine.len(), theirs.len());

        let tree = tool(&["--tree=plain"], &path);
        assert_eq!(map.print_tree(TreeFilter::default(), None), tree, "seed {seed}");

        let table = OsdMapMapping::new(&map);
        let text = tool(&["--test-map-pgs-dump-all"], &path);
        let theirs: BTreeMap<String, String> = text
            .lines()
            .filter_map(|l| {
                l.split_once(" raw ").map(|(pg, rest)| (pg.trim().to_owned(), rest.to_owned()))
            })
            .collect();
        for (pg, placed) in table.iter() {
            let list = |v: &[OsdId]| {
                format!("[{}]", v.iter().map(|o| o.to_string()).collect::<Vec<_>>().join(","))
            };
            let raw = map.pg_to_raw_osds(pg);
            let raw_primary = raw.iter().copied().find(|o| o.is_some()).unwrap_or(OsdId(-1));
            let mine = format!(
                "({}, p{raw_primary}) up ({}, p{}) acting ({}, p{})",
                list(&raw),
                list(placed.up),
                placed.up_primary,
                list(placed.acting),
                placed.acting_primary
            );
            assert_eq!(Some(&mine), theirs.get(&pg.to_string()), "seed {seed}: {pg}");
            let single = map.pg_to_up_acting(pg);
            assert_eq!((&single.up[..], &single.acting[..]), (placed.up, placed.acting));
            groups += 1;
        }
    }
    assert!(groups > 1000, "only {groups} groups were compared");
}

#[test]
fn old_peers_get_their_form() {
    if !have_tool() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let (path, map) = create(dir.path(), 5);
    for f in [
        features::PACIFIC.0 & !(1 << 2),
        features::PACIFIC.0 & !(1 << 2 | 1 << 28),
        features::PACIFIC.0 & !(1 << 2 | 1 << 28 | 1 << 21),
    ] {
        let f = denc::Features(f);
        let bytes = map.to_bytes(f);
        std::fs::write(&path, &bytes).expect("the map is written");
        assert!(tool(&["--print"], &path).contains("max_osd 5"));
        let old = OsdMap::from_bytes(&bytes).expect("the old form decodes");
        assert_eq!(old.max_osd(), 5);
        assert_eq!(old.crush.names, map.crush.names);
    }
    let _ = Arc::strong_count(&map.crush);
}
