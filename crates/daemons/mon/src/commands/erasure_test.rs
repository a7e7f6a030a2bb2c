//! Profiles, rules and pools with erasure codes, as commands.

use super::erasure::SERVED_KEY;
use super::tests::Bench;
use crate::osd_state;
use crate::state::Change;
use serde_json::{Value, json};
use types::errno::Errno;
use types::rados::osd_state as state;
use types::{OsdId, OsdMap, PgId, PoolId};

/// A cluster of `hosts` hosts with two OSDs each, all up and in.
fn cluster(hosts: i32, serving: bool) -> Bench {
    let mut b = Bench::new();
    osd_state::set_max_osd(&mut b.pending, hosts * 2);
    for o in 0..hosts * 2 {
        let map = b.pending.osd_mut();
        map.osds[o as usize].state = state::EXISTS | state::UP;
        map.weights[o as usize] = OsdMap::ONE;
        if serving {
            let metadata = [(SERVED_KEY.to_owned(), "1".to_owned())].into();
            b.pending.put(Change::OsdMetadata(OsdId(o), Some(metadata)));
        }
    }
    for o in 0..hosts * 2 {
        b.run(json!({
            "prefix": "osd crush add", "id": o, "weight": 1.0,
            "args": [format!("host=h{}", o / 2), "root=default"],
        }))
        .unwrap();
    }
    b
}

fn set(b: &mut Bench, name: &str, words: &[&str]) -> super::frame::Answer {
    b.run(json!({"prefix": "osd erasure-code-profile set", "name": name, "profile": words}))
}

fn get(b: &mut Bench, name: &str) -> Value {
    b.json(json!({"prefix": "osd erasure-code-profile get", "name": name}))
}

fn create(b: &mut Bench, pool: &str, profile: &str) -> super::frame::Answer {
    b.run(json!({
        "prefix": "osd pool create", "pool": pool, "pg_num": 8, "pgp_num": 8,
        "pool_type": "erasure", "erasure_code_profile": profile,
    }))
}

#[test]
fn profiles_are_checked_filled_in_and_kept() {
    let mut b = cluster(1, false);
    let words = ["k=2", "m=1", "crush-failure-domain=osd"];
    set(&mut b, "p", &words).unwrap();
    assert_eq!(
        get(&mut b, "p"),
        json!({
            "crush-device-class": "", "crush-failure-domain": "osd", "crush-root": "default",
            "jerasure-per-chunk-alignment": "false", "k": "2", "m": "1", "plugin": "jerasure",
            "technique": "reed_sol_van", "w": "8",
        })
    );
    set(&mut b, "p", &words).unwrap();
    let e = set(&mut b, "p", &["k=4", "m=2"]).unwrap_err();
    assert_eq!(e.errno, Errno::EPERM);
    assert!(e.message.contains("will not override erasure code profile p"), "{e}");
    let forced = json!({
        "prefix": "osd erasure-code-profile set", "name": "p", "profile": ["k=4", "m=2"],
        "force": true,
    });
    b.run(forced).unwrap();
    assert_eq!(get(&mut b, "p")["k"], "4");
    // Of another plugin than the default's, no default counts.
    set(&mut b, "i", &["plugin=isa"]).unwrap();
    assert_eq!(get(&mut b, "i")["k"], "7");

    for (words, errno, reason) in [
        (&["k=1", "m=1"][..], Errno::EINVAL, "must be >= 2"),
        (&["k=2", "m=0"], Errno::EINVAL, "must be >= 1"),
        (&["k=x"], Errno::EINVAL, "could not convert"),
        (&["ruleset-failure-domain=host"], Errno::EINVAL, "try 'crush-failure-domain'"),
        (&["crush-failure-domain=planet"], Errno::EINVAL, "invalid failure-domain \"planet\""),
        (&["plugin=nothing"], Errno::EIO, "no such plugin"),
        (&["plugin=clay"], Errno::EOPNOTSUPP, "plugin=clay"),
        (&["technique=nothing"], Errno::ENOENT, "not a valid coding technique"),
        (&["technique=cauchy_good"], Errno::EOPNOTSUPP, "technique=cauchy_good"),
    ] {
        let e = set(&mut b, "q", words).unwrap_err();
        assert_eq!(e.errno, errno, "{words:?}");
        assert!(e.message.contains(reason), "{words:?}: {e}");
    }
    let e = b.run(json!({"prefix": "osd erasure-code-profile get", "name": "q"})).unwrap_err();
    assert_eq!(e.errno, Errno::ENOENT);
    for _ in 0..2 {
        b.run(json!({"prefix": "osd erasure-code-profile rm", "name": "p"})).unwrap();
    }
    assert_eq!(b.json(json!({"prefix": "osd erasure-code-profile ls"})), json!(["default", "i"]));
}

#[test]
fn a_pool_is_what_its_profile_says() {
    let mut b = cluster(6, true);
    set(&mut b, "p42", &["k=4", "m=2", "stripe_unit=16K", "crush-device-class="]).unwrap();
    create(&mut b, "ec", "p42").unwrap();
    let map = b.pending.osd().clone();
    let id = map.pool_by_name("ec").unwrap();
    let p = &map.pools[&id];
    assert_eq!((p.size, p.min_size, p.stripe_width), (6, 5, 65536));
    assert_eq!((p.erasure_code_profile.as_str(), p.is_replicated()), ("p42", false));
    assert!((map.raw_used_rate(p) - 1.5).abs() < 1e-9);
    let rule = map.crush.rule_names.id("ec").unwrap();
    assert_eq!(i32::from(p.crush_rule), rule);
    let rule = map.crush.rule(rule).unwrap();
    assert_eq!((rule.kind, rule.min_size, rule.max_size), (3, 3, 6));
    // The same again is the same; of another kind it is refused.
    create(&mut b, "ec", "p42").unwrap();
    let e = b.run(json!({"prefix": "osd pool create", "pool": "ec"})).unwrap_err();
    assert_eq!(e.errno, Errno::EINVAL);

    let shown = b.json(json!({"prefix": "osd pool get", "pool": "ec", "var": "all"}));
    assert_eq!(shown["erasure_code_profile"], "p42");
    assert_eq!(shown["allow_ec_overwrites"], false);
    assert_eq!(shown["allow_ec_optimizations"], true);
    let mut change = |var: &str, val: &str| {
        b.run(json!({"prefix": "osd pool set", "pool": "ec", "var": var, "val": val}))
            .map_err(|e| e.errno)
            .map(|_| ())
    };
    assert_eq!(change("size", "3"), Err(Errno::EOPNOTSUPP));
    assert_eq!(change("min_size", "3"), Err(Errno::EINVAL));
    assert_eq!(change("min_size", "7"), Err(Errno::EINVAL));
    assert_eq!(change("min_size", "4"), Ok(()));
    assert_eq!(change("allow_ec_overwrites", "false"), Err(Errno::EINVAL));
    assert_eq!(change("allow_ec_overwrites", "true"), Ok(()));
    assert_eq!(change("allow_ec_overwrites", "false"), Err(Errno::EINVAL));
    assert_eq!(change("allow_ec_optimizations", "true"), Ok(()));
    assert_eq!(change("allow_ec_optimizations", "false"), Err(Errno::EINVAL));
    assert_eq!(change("fast_read", "1"), Ok(()));
    assert_eq!(change("crush_rule", "replicated_rule"), Err(Errno::EINVAL));
    let detail = b.run(json!({"prefix": "osd pool ls", "detail": "detail"})).unwrap();
    let line = String::from_utf8(detail.data.to_vec()).unwrap();
    for part in ["erasure profile p42 size 6 min_size 4", "ec_overwrites", "stripe_width 65536"] {
        assert!(line.contains(part), "{line}");
    }

    // What a pool is written by cannot change or go.
    let rm = json!({"prefix": "osd erasure-code-profile rm", "name": "p42"});
    let e = b.run(rm).unwrap_err();
    assert_eq!(e.errno, Errno::EBUSY);
    assert_eq!(e.message, "ec pool(s) are using the erasure code profile 'p42'");
    let forced = json!({
        "prefix": "osd erasure-code-profile set", "name": "p42", "profile": ["k=2", "m=1"],
        "force": true,
    });
    assert_eq!(b.errno(forced), Errno::EBUSY);
    assert_eq!(b.errno(json!({"prefix": "osd crush rule rm", "name": "ec"})), Errno::EBUSY);
}

#[test]
fn one_parity_shard_and_defaults() {
    let mut b = cluster(4, true);
    set(&mut b, "p21", &["k=2", "m=1"]).unwrap();
    create(&mut b, "a", "p21").unwrap();
    b.run(json!({"prefix": "osd erasure-code-profile rm", "name": "default"})).unwrap();
    create(&mut b, "b", "").unwrap();
    let map = b.pending.osd();
    let pool = |n| map.pools.get(&PoolId(n)).unwrap();
    assert_eq!((pool(1).size, pool(1).min_size, pool(1).stripe_width), (3, 2, 8192));
    assert_eq!((pool(2).size, pool(2).min_size), (4, 3));
    assert_eq!(pool(2).erasure_code_profile, "default");
    assert!(map.erasure_code_profiles["default"].contains_key("w"));
    assert!(map.crush.rule_names.id("erasure-code").is_some());
}

#[test]
fn a_pool_that_could_not_be_clean_or_served_is_refused() {
    let mut b = cluster(3, true);
    set(&mut b, "wide", &["k=4", "m=2"]).unwrap();
    set(&mut b, "osds", &["k=4", "m=2", "crush-failure-domain=osd"]).unwrap();
    let before = (b.pending.osd().pool_max, b.pending.osd().crush.clone());
    let e = create(&mut b, "x", "wide").unwrap_err();
    assert_eq!(e.errno, Errno::EINVAL);
    assert!(e.message.contains("places 3 of 6 shards"), "{e}");
    assert!(e.message.contains("at least 6 failure domains of type host"), "{e}");
    assert!(e.message.contains("found 3."), "{e}");
    let rules = json!({"prefix": "osd crush rule create-erasure", "name": "r", "profile": "wide"});
    assert_eq!(before, (b.pending.osd().pool_max, b.pending.osd().crush.clone()));
    create(&mut b, "x", "osds").unwrap();
    // A rule by name, and with what it is asked for by an operator.
    b.run(rules.clone()).unwrap();
    assert!(b.run(rules).unwrap().status.contains("already exists"));
    let mut named = json!({
        "prefix": "osd pool create", "pool": "y", "pg_num": 8, "pool_type": "erasure",
        "erasure_code_profile": "wide", "rule": "r",
    });
    assert_eq!(b.errno(named.clone()), Errno::EINVAL);
    named["yes_i_really_mean_it"] = json!(true);
    b.run(named.clone()).unwrap();
    named["pool"] = json!("z");
    named["rule"] = json!("nothing");
    assert_eq!(b.errno(named.clone()), Errno::ENOENT);
    named["rule"] = json!("replicated_rule");
    assert_eq!(b.errno(named), Errno::EINVAL);
    let replicated = json!({"prefix": "osd pool create", "pool": "z", "pg_num": 8, "rule": "r"});
    assert_eq!(b.errno(replicated), Errno::EINVAL);
    assert_eq!(create(&mut b, "z", "no-such-profile").unwrap_err().errno, Errno::EINVAL);

    let mut b = cluster(3, false);
    let e = create(&mut b, "x", "default").unwrap_err();
    assert_eq!(e.errno, Errno::EOPNOTSUPP);
    assert!(e.message.contains("osd.0, osd.1"), "{e}");
}

#[test]
fn a_class_in_a_profile_stays() {
    let mut b = cluster(3, true);
    b.run(json!({"prefix": "osd crush set-device-class", "class": "ssd", "ids": ["0"]})).unwrap();
    set(&mut b, "p", &["k=2", "m=1", "crush-device-class=ssd"]).unwrap();
    let rm = json!({"prefix": "osd crush class rm", "class": "ssd"});
    assert_eq!(b.errno(rm.clone()), Errno::EBUSY);
    // One OSD of that class is not enough for three shards.
    assert_eq!(create(&mut b, "x", "p").unwrap_err().errno, Errno::EINVAL);
    b.run(json!({"prefix": "osd erasure-code-profile rm", "name": "p"})).unwrap();
    b.run(rm).unwrap();
}

/// Clients send to the first OSD of the acting set, which may have a shard without metadata.
#[test]
fn a_copy_that_may_lead_leads() {
    let mut b = cluster(5, true);
    set(&mut b, "p", &["k=2", "m=2"]).unwrap();
    create(&mut b, "coded", "p").unwrap();
    osd_state::lead_coded(&mut b.pending);
    assert!(b.pending.osd().primary_temp.is_empty());
    let (id, _) = b.pending.osd().pools.iter().find(|(_, p)| !p.is_replicated()).unwrap();
    let groups: Vec<PgId> = (0..8).map(|seed| PgId { pool: *id, seed }).collect();
    for osd in 0..10 {
        b.pending.osd_mut().osds[osd].state = state::EXISTS;
        osd_state::lead_coded(&mut b.pending);
        let map = b.pending.osd();
        for pg in &groups {
            let placed = map.pg_to_up_acting(*pg);
            let position = placed.acting.iter().position(|o| *o == placed.acting_primary).unwrap();
            assert!([0, 2, 3].contains(&position), "{pg}: {placed:?}");
            let first = placed.acting.iter().position(|o| o.is_some()).unwrap();
            assert_eq!(map.primary_temp.contains_key(pg), first == 1, "{pg}: {placed:?}");
        }
        b.pending.osd_mut().osds[osd].state = state::EXISTS | state::UP;
    }
    osd_state::lead_coded(&mut b.pending);
    assert!(b.pending.osd().primary_temp.is_empty());
}
