use super::*;
use crate::AuthName;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn args(list: &[(&str, &str)]) -> BTreeMap<String, String> {
    list.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect()
}

fn mon(cap: &str, service: &str, command: &str, given: &[(&str, &str)], perm: Perm) -> bool {
    mon_from(cap, service, command, given, perm, "10.0.0.1")
}

fn mon_from(
    cap: &str,
    service: &str,
    command: &str,
    given: &[(&str, &str)],
    perm: Perm,
    addr: &str,
) -> bool {
    let op = MonOp { service, command, args: &args(given), perm, addr: addr.parse().ok() };
    cap.parse::<MonCap>().unwrap().is_capable(&"osd.3".parse::<AuthName>().unwrap(), &op)
}

#[test]
fn mon_blanket_and_service() {
    let (r, w, x) = (Perm::R, Perm::W, Perm::X);
    assert!(mon("allow *", "config-key", "config-key get", &[], Perm::RWX));
    assert!(!mon("allow rwx", "config-key", "config-key get", &[], r));
    assert!(mon("allow rwx", "osd", "", &[], r | w | x));
    assert!(!mon("allow r", "osd", "", &[], w));
    assert!(mon("allow service osd rw", "osd", "", &[], w));
    assert!(!mon("allow service osd rw", "mon", "", &[], r));
    assert!(
        mon("allow service=osd r; allow service osd x", "osd", "", &[], r | x),
        "grants add up"
    );
    assert!(mon_from("allow rw network 10.1.0.0/16", "osd", "", &[], w, "10.1.2.3"));
    assert!(!mon_from("allow * network 10.1.0.0/16", "osd", "", &[], w, "10.2.2.3"));
    assert!(!mon_from("allow * network abc/8", "osd", "", &[], w, "10.2.2.3"));
}

#[test]
fn mon_commands() {
    let cap = r#"allow command "osd blocklist" with blocklistop=add addr regex "^[^/]+/[0-9]+$""#;
    let blocklist = |given: &[(&str, &str)]| mon(cap, "osd", "osd blocklist", given, Perm::RWX);
    assert!(blocklist(&[("blocklistop", "add"), ("addr", "10.0.0.1:0/123")]));
    assert!(!blocklist(&[("blocklistop", "rm"), ("addr", "10.0.0.1:0/123")]));
    assert!(!blocklist(&[("blocklistop", "add"), ("addr", "10.0.0.1:0")]));
    assert!(!blocklist(&[("blocklistop", "add")]), "a condition needs its argument");
    assert!(!mon("allow command x with k regex \"[\"", "osd", "x", &[("k", "[")], Perm::R));
    assert!(mon("allow command=x with k prefix ab", "osd", "x", &[("k", "abc")], Perm::R));
}

#[test]
fn mon_profiles() {
    let key = [("key", "daemon-private/osd.3/x")];
    assert!(mon("allow profile osd", "config-key", "config-key get", &key, Perm::R));
    assert!(!mon(
        "profile osd",
        "config-key",
        "config-key get",
        &[("key", "daemon-private/osd.4/x")],
        Perm::R
    ));
    assert!(mon("profile osd", "osd", "", &[], Perm::RWX));
    assert!(!mon("profile osd", "mon", "", &[], Perm::W));
    assert!(mon(
        "profile osd",
        "config",
        "config set",
        &[("name", "osd_mclock_max_capacity_iops_ssd")],
        Perm::W
    ));
    assert!(!mon(
        "profile osd",
        "config",
        "config set",
        &[("name", "osd_mclock_max_capacity_iops_ssd_")],
        Perm::W
    ));
    assert!(mon("profile bootstrap-osd", "osd", "osd new", &[], Perm::RWX));
    assert!(mon(
        "profile rbd",
        "osd",
        "osd blacklist",
        &[("blacklistop", "add"), ("addr", "a/1")],
        Perm::RWX
    ));
    assert!(!mon(
        "profile rbd",
        "osd",
        "osd blocklist",
        &[("blocklistop", "rm"), ("addr", "a/1")],
        Perm::RWX
    ));
    assert!(mon("profile simple-rados-client", "osd", "", &[], Perm::R));
    assert!(mon("profile role-definer", "auth", "auth rm", &[], Perm::RWX));
    assert!(mon("profile crash", "mon", "", &[], Perm::R));
    let bootstrap = |mon_caps, osd| {
        let given = [("entity", "client.x"), ("caps_mon", mon_caps), ("caps_osd", osd)];
        mon("profile bootstrap-rbd", "auth", "auth get-or-create", &given, Perm::RWX)
    };
    assert!(bootstrap("profile rbd", "profile rbd pool=p, profile rbd-read-only"));
    assert!(!bootstrap("profile rbd", "allow *"));
    assert!(!mon("profile nonsense", "mon", "", &[], Perm::R));
}

#[test]
fn mon_file_systems() {
    let cap: MonCap = "allow r fsname=a, allow rw fsname=b".parse().unwrap();
    assert_eq!(cap.allowed_fs_names(), ["a", "b"]);
    let me = "client.x".parse().unwrap();
    assert!(cap.fs_capable(&me, "b", Perm::W) && !cap.fs_capable(&me, "a", Perm::W));
    assert!("allow r".parse::<MonCap>().unwrap().allowed_fs_names().is_empty());
}

struct Op<'a> {
    object: &'a str,
    read: bool,
    write: bool,
    classes: &'a [ClassCall<'a>],
}

fn osd(cap: &str, pool: &str, namespace: &str, op: &Op<'_>) -> bool {
    let metadata =
        BTreeMap::from([("rbd".to_owned(), BTreeMap::from([("k".to_owned(), "v".to_owned())]))]);
    cap.parse::<OsdCap>().unwrap().is_capable(&OsdOp {
        pool,
        namespace: namespace.as_bytes(),
        metadata: &metadata,
        object: op.object.as_bytes(),
        read: op.read,
        write: op.write,
        classes: op.classes,
        addr: "10.1.1.1".parse().ok(),
    })
}

#[test]
fn osd_matches() {
    let write = Op { object: "obj", read: false, write: true, classes: &[] };
    for (cap, pool, ns, want) in [
        ("allow *", "p", "n", true),
        ("allow rwx", "p", "", true),
        ("allow r", "p", "", false),
        ("allow w pool=p", "p", "any", true),
        ("allow pool p rw", "q", "", false),
        ("allow rw namespace=a", "p", "a", true),
        ("allow rw namespace=a", "p", "ab", false),
        ("allow rw namespace=a*", "p", "ab", true),
        ("allow rw namespace=\"\"", "p", "", true),
        ("allow rw namespace=\"\"", "p", "x", false),
        ("allow rw pool=p namespace=n object_prefix ob", "p", "n", true),
        ("allow rw object_prefix x", "p", "", false),
        ("allow rw tag rbd k=v", "p", "", true),
        ("allow rw tag rbd k = other", "p", "", false),
        ("allow rw tag rbd *=*", "p", "", true),
        ("allow rw tag cephfs *=*", "p", "", false),
        ("allow rw network 10.1.0.0/16", "p", "", true),
        ("allow rw network 10.2.0.0/16", "p", "", false),
        ("profile rbd pool=p", "p", "", true),
        ("profile rbd pool=p", "q", "", false),
        ("profile rbd-read-only", "p", "", false),
        ("allow r, allow w", "p", "", true),
    ] {
        assert_eq!(osd(cap, pool, ns, &write), want, "{cap} on {pool}/{ns}");
    }
    let both = Op { read: true, ..write };
    assert!(!osd("allow r, allow w", "p", "", &both), "one grant must cover reads and writes");
}

#[test]
fn osd_classes() {
    let call =
        |class, method, read, write, allowed| ClassCall { class, method, read, write, allowed };
    let lock = [call("lock", "lock", true, true, true)];
    let evil = [call("evil", "run", true, false, false)];
    let op = |classes| Op { object: "rbd_children", read: false, write: false, classes };
    assert!(osd("allow x", "p", "", &op(&lock)));
    assert!(!osd("allow class-read", "p", "", &op(&lock)));
    assert!(osd("allow class-read class-write", "p", "", &op(&lock)));
    assert!(!osd("allow rwx", "p", "", &op(&evil)), "x covers listed classes only");
    assert!(osd("allow *", "p", "", &op(&evil)));
    assert!(osd("allow class evil", "p", "", &op(&evil)));
    assert!(osd("allow class evil run", "p", "", &op(&evil)));
    assert!(!osd("allow class evil other", "p", "", &op(&evil)));
    let two = [lock[0], evil[0]];
    assert!(
        osd("allow class evil, allow x", "p", "", &op(&two)),
        "calls may be covered by several grants"
    );
    let children = [call("rbd", "get_children", true, false, true)];
    assert!(osd("profile rbd pool=images", "other", "", &op(&children)));
}

#[test]
fn mgr_grants() {
    let can = |cap: &str, module: &str, command: &str, given: &[(&str, &str)], perm| {
        let op = MgrOp { service: "", module, command, args: &args(given), perm, addr: None };
        cap.parse::<MgrCap>().unwrap().is_capable(&op)
    };
    assert!(can("allow *", "x", "y", &[], Perm::RWX));
    assert!(can("allow profile crash", "crash", "crash post", &[], Perm::RWX));
    assert!(!can("profile crash", "crash", "crash rm", &[], Perm::R));
    assert!(can("profile rbd pool=p", "rbd_support", "", &[("pool", "p")], Perm::W));
    assert!(!can("profile rbd pool=p", "rbd_support", "", &[("pool", "q")], Perm::W));
    assert!(can("profile rbd pool=p", "rbd_support", "rbd task add", &[("pool", "q")], Perm::W));
    assert!(!can("profile osd", "x", "y", &[], Perm::R));
    assert!(can("allow module m with a = b rw", "m", "", &[("a", "b")], Perm::W));
    let bad = |cap: &str| cap.parse::<MgrCap>().unwrap_err().to_string();
    assert_eq!(
        bad("profile wrong"),
        "mgr capability parse failed during profile evaluation: unrecognized profile 'wrong'"
    );
    assert!(bad("profile rbd foo=x").ends_with("profile 'rbd' does not recognize key 'foo'"));
}

#[test]
fn errors_say_where() {
    let e = |r: Result<MonCap, CapsError>| r.unwrap_err().to_string();
    assert_eq!(
        e("allow r, deny w".parse()),
        "mon capability parse failed, stopped at ', deny w' of 'allow r, deny w'"
    );
    assert_eq!(e("".parse()), "mon capability parse failed, stopped at end of ''");
    assert!("allow".parse::<OsdCap>().is_err());
    assert!("allow class x pool=y".parse::<OsdCap>().is_err(), "as in Ceph: the method is 'pool'");
    assert!("allow rbd".parse::<MonCap>().is_err());
}

/// Texts made of the grammars' own words, which random characters would never hit.
fn words() -> impl Strategy<Value = String> {
    let word = prop::sample::select(vec![
        "allow",
        "allow ",
        "r",
        "rw",
        "rwx",
        "*",
        "all",
        "service",
        "command",
        "profile",
        "module",
        "with",
        "prefix",
        "regex",
        "network",
        "fsname",
        "pool",
        "namespace",
        "object_prefix",
        "tag",
        "class",
        "class-read",
        "class-write",
        "=",
        " ",
        " ",
        " ",
        ",",
        ";",
        "\"",
        "'",
        "a",
        "b",
        "rbd",
        "osd",
        "10.0.0.0/8",
        "\"x y\"",
        "'it\"s'",
        "k=v",
        "\t",
        "\n",
        "ü",
    ]);
    prop::collection::vec(word, 0..24).prop_map(|w| w.concat())
}

/// Grants that are likely to parse.
fn likely() -> impl Strategy<Value = String> {
    let perm = prop::sample::select(vec![
        "r",
        "rw",
        "rwx",
        "*",
        "x",
        "class-read",
        "class x",
        "class x y",
    ]);
    let tail = prop::sample::select(vec![
        "",
        " pool=p",
        " pool p namespace=\"\"",
        " namespace 'a b'*",
        " tag rbd *=*",
        " tag a \"b c\" = all",
        " object_prefix \"'\"",
        " network 10.0.0.0/8",
        " fsname=f",
        " with a=b c regex '[\"]'",
    ]);
    let head = prop::sample::select(vec![
        "allow ",
        "allow profile rbd",
        "profile osd",
        "profile rbd pool=p",
        "allow service \"a b\" ",
        "allow command 'x y'",
        "allow module m ",
        "allow module m with k prefix v ",
    ]);
    prop::collection::vec((head, perm, tail), 1..4).prop_map(|g| {
        g.iter()
            .map(
                |(h, p, t)| {
                    if h.ends_with(' ') { format!("{h}{p}{t}") } else { format!("{h}{t}") }
                },
            )
            .collect::<Vec<_>>()
            .join(", ")
    })
}

fn round_trip(text: &str) -> Result<(), TestCaseError> {
    if let Ok(cap) = text.parse::<MonCap>() {
        prop_assert_eq!(cap.to_string().parse(), Ok(cap));
    }
    if let Ok(cap) = text.parse::<OsdCap>() {
        prop_assert_eq!(cap.to_string().parse(), Ok(cap));
    }
    if let Ok(cap) = text.parse::<MgrCap>() {
        prop_assert_eq!(cap.to_string().parse(), Ok(cap));
    }
    Ok(())
}

proptest! {
    #[test]
    fn anything_goes_in(text in ".*") {
        round_trip(&text)?;
    }

    #[test]
    fn printed_caps_parse_again(text in prop_oneof![words(), likely()]) {
        round_trip(&text)?;
    }
}

#[test]
fn the_generator_hits_every_grammar() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut hits = [0; 3];
    for _ in 0..500 {
        let text = likely().new_tree(&mut runner).unwrap().current();
        hits[0] += usize::from(text.parse::<MonCap>().is_ok());
        hits[1] += usize::from(text.parse::<OsdCap>().is_ok());
        hits[2] += usize::from(text.parse::<MgrCap>().is_ok());
    }
    assert!(hits.iter().all(|h| *h > 5), "{hits:?}");
}
