use super::*;
use crate::mkfs::{MkfsArgs, initial_state};
use crate::osd_state::{self, Boot, Booted};
use ::auth::{CryptoKey, Keyring};
use conf::Config;
use proptest::prelude::*;
use types::{EntityAddr, EntityAddrVec, Epoch, LogEntry, OsdMap, PgId, SnapId};

fn conf() -> Config {
    Config::new()
}

fn addr(port: u16) -> EntityAddrVec {
    EntityAddrVec::one(EntityAddr::msgr2(([127, 0, 0, 1], port).into(), 0))
}

fn fresh() -> (ClusterState, Rows) {
    fresh_of(&["a"])
}

fn fresh_of(monitors: &[&str]) -> (ClusterState, Rows) {
    let args = MkfsArgs {
        fsid: types::Fsid([7; 16]),
        name: "a".into(),
        monitors: monitors
            .iter()
            .zip(3300..)
            .map(|(n, port)| (n.to_string(), addr(port)))
            .collect(),
        mon_key: CryptoKey::default(),
        keyring: Keyring::default(),
        crush: None,
        config: BTreeMap::new(),
        now: Utime::new(1000, 0),
    };
    initial_state(&args, &conf()).unwrap()
}

/// Flags that every reader of a map adds by himself.
fn always() -> u32 {
    use types::rados::osdmap_flag as flag;
    flag::SORTBITWISE | flag::RECOVERY_DELETES | flag::PURGED_SNAPDIRS | flag::PGLOG_HARDLIMIT
}

/// A change of the cluster, as a command or an OSD would make it.
#[derive(Clone, Debug)]
enum Step {
    Close,
    Pool(u8),
    RemovePool(u8),
    Snap(u8),
    RemoveSnap(u8, u64),
    NewOsd(u8),
    Boot(u8),
    Down(u8),
    Weight(u8, u32),
    AutoOut(u8),
    Bits(u8, u32),
    Remove(u8),
    UpThru(u8, u32),
    Temp(u8, u8),
    Affinity(u8, u32),
    Flags(u32),
    Crush(u8),
    Block(u16, u32),
    Unblock,
    Entity(u8, bool),
    Config(u8, bool),
    Kv(u8, bool),
    Log(u8),
    Created(u8),
    Lost(u8, u32),
    Trim(u32),
    TrimLog(u64),
    Request(u8, u8),
}

fn step() -> impl Strategy<Value = Step> {
    let n = 0u8..6;
    prop_oneof![
        3 => Just(Step::Close),
        1 => n.clone().prop_map(Step::Pool),
        1 => n.clone().prop_map(Step::RemovePool),
        1 => n.clone().prop_map(Step::Snap),
        1 => (n.clone(), 0u64..6).prop_map(|(a, b)| Step::RemoveSnap(a, b)),
        2 => n.clone().prop_map(Step::NewOsd),
        3 => n.clone().prop_map(Step::Boot),
        1 => n.clone().prop_map(Step::Down),
        1 => (n.clone(), 0u32..0x10001).prop_map(|(a, b)| Step::Weight(a, b)),
        1 => n.clone().prop_map(Step::AutoOut),
        1 => (n.clone(), any::<u32>()).prop_map(|(a, b)| Step::Bits(a, b)),
        1 => n.clone().prop_map(Step::Remove),
        1 => (n.clone(), 0u32..50).prop_map(|(a, b)| Step::UpThru(a, b)),
        1 => (n.clone(), n.clone()).prop_map(|(a, b)| Step::Temp(a, b)),
        1 => (n.clone(), 0u32..0x10001).prop_map(|(a, b)| Step::Affinity(a, b)),
        1 => (0u32..1 << 15).prop_map(Step::Flags),
        1 => n.clone().prop_map(Step::Crush),
        1 => (1u16..9, 1u32..5000).prop_map(|(a, b)| Step::Block(a, b)),
        1 => Just(Step::Unblock),
        1 => (n.clone(), any::<bool>()).prop_map(|(a, b)| Step::Entity(a, b)),
        1 => (n.clone(), any::<bool>()).prop_map(|(a, b)| Step::Config(a, b)),
        1 => (n.clone(), any::<bool>()).prop_map(|(a, b)| Step::Kv(a, b)),
        1 => n.clone().prop_map(Step::Log),
        1 => n.clone().prop_map(Step::Created),
        1 => (n, 0u32..5).prop_map(|(a, b)| Step::Lost(a, b)),
        1 => (0u32..200).prop_map(Step::Trim),
        1 => (0u64..20).prop_map(Step::TrimLog),
        2 => (0u8..3, any::<u8>()).prop_map(|(client, tid)| Step::Request(client, tid)),
    ]
}

/// An OSD that boots; `boot_epoch` is when it was up before.
fn boots(n: u8, boot_epoch: u8) -> Boot {
    Boot {
        osd: OsdId(n.into()),
        uuid: types::Fsid([n + 1; 16]),
        client_addrs: addr(6800 + u16::from(n)),
        cluster_addrs: addr(6900 + u16::from(n)),
        hb_back_addrs: addr(7000),
        hb_front_addrs: addr(7100),
        features: 1,
        mounted: Epoch(1),
        clean_thru: Epoch(2),
        boot_epoch: Epoch(boot_epoch.into()),
        has: Epoch(u32::MAX),
        last_purged_snaps_scrub: Utime::ZERO,
    }
}

fn take(p: &mut Pending, step: &Step) {
    use crate::commands::pool as pools;
    use types::rados::osd_state as bits;
    let conf = conf();
    let osd = |n: u8| OsdId(n.into());
    let pool = |p: &Pending, n: u8| p.osd().pool_by_name(&format!("p{n}"));
    match step.clone() {
        Step::Close => {}
        Step::Pool(n) => {
            let name = format!("p{n}");
            let new = pools::NewPool { name: &name, pg_num: 4, size: 2, ..Default::default() };
            let _ = pools::create_pool(p, &conf, &new);
        }
        Step::RemovePool(n) => {
            if let Some(id) = pool(p, n) {
                let mut conf = conf;
                conf.set(conf::effective::Source::CommandLine, "mon_allow_pool_delete", "true")
                    .unwrap();
                pools::remove_pool(p, &conf, id).unwrap();
            }
        }
        Step::Snap(n) => {
            if let Some(id) = pool(p, n) {
                pools::make_unmanaged_snap(p, id).unwrap();
            }
        }
        Step::RemoveSnap(n, s) => {
            if let Some(id) = pool(p, n) {
                let _ = pools::remove_unmanaged_snap(p, id, SnapId(s));
            }
        }
        Step::NewOsd(n) if !p.osd().exists(osd(n)) && osd_state::may_create(p, osd(n)) => {
            osd_state::create(p, osd(n), Some(types::Fsid([n + 1; 16])));
        }
        Step::Boot(n) => {
            let boot = boots(n, n % 2);
            let before = p.osd_before().is_up(osd(n));
            let booted = osd_state::boot(p, &conf, &boot);
            assert!(booted != Booted::Yes || !before, "down and up in one epoch");
        }
        Step::Down(n) => drop(osd_state::mark_down(p, osd(n)).then_some(())),
        Step::Weight(n, w) if p.osd().exists(osd(n)) => osd_state::set_weight(p, osd(n), w),
        Step::AutoOut(n) if p.osd().is_in(osd(n)) => osd_state::mark_out_automatically(p, osd(n)),
        Step::Bits(n, b) if p.osd().exists(osd(n)) => {
            let mask = bits::NOUP | bits::NODOWN | bits::FULL | bits::NEARFULL | bits::STOP;
            osd_state::set_bits(p, osd(n), mask, b);
        }
        Step::Remove(n) if p.osd().exists(osd(n)) && !p.osd().is_up(osd(n)) => {
            osd_state::remove(p, osd(n))
        }
        Step::UpThru(n, e) if p.osd().exists(osd(n)) => osd_state::set_up_thru(p, osd(n), Epoch(e)),
        Step::Temp(n, o) => {
            if let Some(id) = pool(p, n) {
                osd_state::set_pg_temp(p, PgId::new(id, 1), &[osd(o)]);
            }
        }
        Step::Affinity(n, a) if p.osd().exists(osd(n)) => {
            osd_state::set_primary_affinity(p, osd(n), a)
        }
        Step::Flags(f) => p.osd_mut().flags = always() | f << 1,
        Step::Crush(n) => {
            let mut map = (*p.osd().crush).clone();
            let loc =
                [("host".to_owned(), format!("h{n}")), ("root".to_owned(), "default".to_owned())]
                    .into();
            map.create_or_move_item(n.into(), 0x10000, &format!("osd.{n}"), &loc, true).unwrap();
            p.osd_mut().crush = Arc::new(map);
        }
        Step::Block(port, until) => {
            let a = EntityAddr::msgr2(([10, 0, 0, 1], port).into(), 0);
            let a = EntityAddr { kind: types::AddrType::ANY, ..a };
            let holds = p.osd_before().blocklist.get(&a).copied().unwrap_or(Utime::new(until, 0));
            p.osd_mut().blocklist.entry(a).or_insert(holds);
        }
        Step::Unblock => p.osd_mut().blocklist.clear(),
        Step::Entity(n, there) => {
            let name = format!("client.{n}").parse().unwrap();
            p.put(Change::Auth(name, there.then(EntityAuth::default)));
        }
        Step::Config(n, there) => {
            p.put(Change::Config(format!("osd/o{n}"), there.then(|| n.to_string())))
        }
        Step::Kv(n, there) => {
            p.put(Change::Kv(format!("k/{n}"), there.then(|| Bytes::from(vec![n]))))
        }
        Step::Log(n) => {
            p.put(Change::Log(vec![LogEntry { msg: n.to_string(), ..Default::default() }]))
        }
        Step::Created(n) => {
            if let Some(id) = pool(p, n) {
                p.put(Change::PgsCreated(vec![PgId::new(id, 0), PgId::new(id, 3)]));
            }
        }
        Step::Lost(n, seed) => {
            if let Some(id) = pool(p, n) {
                p.put(Change::ForceCreate(vec![PgId::new(id, seed)], Epoch(1)));
            }
        }
        Step::Trim(e) => p.put(Change::TrimOsdMaps(Epoch(e))),
        Step::TrimLog(first) => p.put(Change::TrimLog(first)),
        Step::Request(client, tid) => {
            // More than are kept of one.
            for tid in u64::from(tid)..u64::from(tid) + 30 {
                let id = RequestId { global_id: client.into(), kind: RequestKind::Command, tid };
                let data = Some(Bytes::from(vec![client; 10]));
                p.put(Change::Executed(Box::new(Execution {
                    id,
                    stamp: p.now(),
                    result: -2,
                    text: "x".into(),
                    data,
                    epoch: Epoch(1),
                })));
            }
        }
        _ => {}
    }
}

fn store(rows: &mut Rows, changed: Vec<Row>) {
    for (k, v) in changed {
        match v {
            Some(v) => drop(rows.insert(k, v)),
            None => drop(rows.remove(&k)),
        }
    }
}

/// A map without what incremental maps imply.
fn told(map: &OsdMap) -> OsdMap {
    let mut m = map.clone();
    m.new_removed_snaps.clear();
    m.new_purged_snaps.clear();
    m.removed_snaps_queue.clear();
    m.crush_version = 0;
    for o in &mut m.osds {
        o.info.up_from = Epoch(0);
        o.info.down_at = Epoch(0);
        o.xinfo.down_stamp = Utime::ZERO;
    }
    // An unknown OSD's affinity is one whether it is written down or not, and its weight is zero.
    m.primary_affinity =
        Some((0..m.max_osd()).map(|o| m.primary_affinity_fixed(OsdId(o))).collect());
    m
}

fn same(a: &ClusterState, b: &ClusterState) {
    assert_eq!(a.osd.map(), b.osd.map());
    assert_eq!((a.osd.first(), a.osd.last()), (b.osd.first(), b.osd.last()));
    assert_eq!(a.auth.to_bytes(Features::ALL), b.auth.to_bytes(Features::ALL));
    assert_eq!((&a.config, a.config_version), (&b.config, b.config_version));
    assert_eq!((&a.kv, a.kv_version), (&b.kv, b.kv_version));
    assert_eq!((&a.creating, &a.removed_snaps), (&b.creating, &b.removed_snaps));
    assert_eq!(a.recreating, b.recreating);
    assert!(a.log.next() == b.log.next() && a.log.iter().eq(b.log.iter()));
    assert_eq!((&a.monmap, a.rescued, a.global_id_max), (&b.monmap, b.rescued, b.global_id_max));
    assert_eq!(
        (a.mgr.epoch, a.fs.epoch, a.services.epoch),
        (b.mgr.epoch, b.fs.epoch, b.services.epoch)
    );
    assert!(a.executed.iter().eq(b.executed.iter()));
    assert_eq!(a.manager_commands, b.manager_commands);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Two monitors that apply the same updates have the same state and rows, the rows give the
    /// state back, and the OSD map that the leader worked on is the one that all daemons get.
    #[test]
    fn updates_are_deterministic_and_survive(steps in proptest::collection::vec(step(), 1..60)) {
        let (mut one, mut rows) = fresh();
        let mut two = ClusterState::load(&rows).unwrap();
        same(&one, &two);
        let mut pending = Pending::new(one.clone(), Utime::new(2000, 0));
        for (n, s) in steps.iter().chain([&Step::Close]).enumerate() {
            pending.set_now(Utime::new(2000 + n as u32, 0));
            take(&mut pending, s);
            if !matches!(s, Step::Close) {
                continue;
            }
            let worked_on = told(pending.osd());
            let Some(update) = pending.close() else { continue };
            let bytes = update.to_bytes(Features::ALL);
            let (mut rows_one, mut rows_two) = (Vec::new(), Vec::new());
            prop_assert_eq!(Machine::apply(&mut one, &bytes, &mut rows_one), Bytes::from_static(&[0]));
            prop_assert_eq!(Machine::apply(&mut two, &bytes, &mut rows_two), Bytes::from_static(&[0]));
            prop_assert_eq!(&rows_one, &rows_two);
            store(&mut rows, rows_one);
            same(&one, &two);
            if one.osd.last() == worked_on.epoch {
                let mut got = told(one.osd.map());
                got.modified = worked_on.modified;
                prop_assert_eq!(got, worked_on);
            }
            // The leader went on from the same.
            same(pending.state(), &one);
            // Replaying the update must not count twice.
            if update.changes.iter().any(|c| matches!(c, Change::OsdMap(_))) {
                let before = one.clone();
                prop_assert_eq!(Machine::apply(&mut one, &bytes, &mut Vec::new()), Bytes::from_static(&[1]));
                same(&one, &before);
            }
        }
        let back = ClusterState::load(&rows).unwrap();
        same(&back, &one);
        // Every epoch that is kept can be rebuilt, and has the checksum that its increment
        // promises.
        for e in one.osd.first().0..=one.osd.last().0 {
            let full = one.osd.full(Epoch(e)).unwrap();
            prop_assert_eq!(full.epoch, Epoch(e));
            if let Some(inc) = one.osd.incremental(Epoch(e)) {
                let inc = types::OsdMapIncremental::from_bytes(inc).unwrap();
                if let Some(crc) = inc.full_crc.filter(|_| inc.fullmap.is_empty()) {
                    prop_assert_eq!(full.to_bytes_with_crc(Features::ALL).1, crc);
                }
            }
        }
    }

    #[test]
    fn arbitrary_proposals_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let (mut s, _) = fresh();
        let mut rows = Vec::new();
        Machine::apply(&mut s, &bytes.into(), &mut rows);
    }
}

#[test]
fn history_is_trimmed_and_stays_complete() {
    let (mut s, mut rows) = fresh();
    let mut p = Pending::new(s.clone(), Utime::new(2000, 0));
    for n in 1..301u32 {
        p.osd_mut().flags = always() | n << 1;
        let mut changed = Vec::new();
        assert_eq!(s.update(p.close().unwrap(), &mut changed), Outcome::Applied);
        store(&mut rows, changed);
    }
    let last = s.osd.last();
    p.put(Change::TrimOsdMaps(Epoch(last.0 - 50)));
    let mut changed = Vec::new();
    s.update(p.close().unwrap(), &mut changed);
    store(&mut rows, changed);
    assert_eq!(s.osd.first(), Epoch(last.0 - 50));
    assert!(s.osd.full(Epoch(last.0 - 51)).is_none());
    let kept = rows.keys().filter(|k| k.starts_with(b"osd/")).count();
    assert!(kept <= 55, "{kept} rows");
    same(&ClusterState::load(&rows).unwrap(), &s);
    for e in last.0 - 50..=last.0 {
        assert_eq!(s.osd.full(Epoch(e)).unwrap().flags, always() | (e - 1) << 1);
    }
}

#[test]
fn a_removed_snapshot_is_remembered_after_it_was_purged() {
    use crate::commands::pool as pools;
    let (s, _) = fresh();
    let mut p = Pending::new(s, Utime::new(2000, 0));
    let new = pools::NewPool { name: "p", pg_num: 4, size: 2, ..Default::default() };
    let id = pools::create_pool(&mut p, &conf(), &new).unwrap();
    let first = pools::make_unmanaged_snap(&mut p, id).unwrap();
    p.close();
    assert_eq!(pools::remove_unmanaged_snap(&mut p, id, first), Ok(true));
    assert_eq!(pools::remove_unmanaged_snap(&mut p, id, first), Ok(false), "in the same batch");
    p.close();
    assert!(p.osd().removed_snaps_queue[&id].contains(first.0));
    p.purge_snaps(id, &[(first.0, 1)].into_iter().collect());
    p.close();
    assert!(!p.osd().removed_snaps_queue.contains_key(&id));
    assert_eq!(pools::remove_unmanaged_snap(&mut p, id, first), Ok(false), "purged");
    assert_eq!(pools::remove_unmanaged_snap(&mut p, id, SnapId(99)), Err(types::Errno::ENOENT));
    assert_eq!(pools::make_snap(&mut p, id, "x"), Err(types::Errno::EINVAL));
}

/// A monitor that begins to lead knows what the manager serves before the manager speaks to it.
/// Text that is no description changes nothing.
#[test]
fn commands_of_the_manager_survive_a_restart() {
    let (mut s, mut rows) = fresh();
    let json =
        br#"{"cmd000": {"sig": ["pg", "stat", {"name": "x"}], "module": "pg", "perm": "r"}}"#;
    let mut told = |json: &[u8]| {
        let changes = vec![Change::ManagerCommands(Bytes::copy_from_slice(json))];
        let mut changed = Vec::new();
        let outcome = s.update(Update { now: Utime::new(1, 0), changes }, &mut changed);
        (outcome, changed)
    };
    let (outcome, changed) = told(json);
    assert_eq!((outcome, changed.len()), (Outcome::Applied, 1));
    store(&mut rows, changed);
    for wrong in [&b"[]"[..], b"{", b""] {
        assert_eq!(told(wrong), (Outcome::Malformed, Vec::new()));
    }
    let again = ClusterState::load(&rows).unwrap();
    same(&s, &again);
    let found = again.manager_commands.find("pg  stat").unwrap();
    assert_eq!((found.module, found.perm), ("pg", "r"));
    assert_eq!(again.manager_commands.find("pg stat x"), None);
    assert_eq!(again.manager_commands.find(""), None);
}

/// OSDs compare the checksum of each epoch and end if theirs is another one. A pool's `snap_seq`
/// without the flag of pool snapshots or that of self-managed ones is a state that no reader of a
/// map ever has.
#[test]
fn the_checksum_is_that_of_the_map_that_readers_have() {
    use crate::commands::pool as pools;
    let (s, _) = fresh();
    let mut follower = s.clone();
    let mut p = Pending::new(s, Utime::new(2000, 0));
    let new = pools::NewPool { name: "p", pg_num: 4, size: 2, ..Default::default() };
    let id = pools::create_pool(&mut p, &conf(), &new).unwrap();
    let mut osd = (**follower.osd.map()).clone();
    for step in 0..3 {
        match step {
            0 => {}
            1 => p.osd_mut().pools.get_mut(&id).unwrap().snap_seq = SnapId(7),
            _ => p.osd_mut().flags ^= types::rados::osdmap_flag::NOUP,
        }
        let update = p.close().unwrap();
        let bytes = update.to_bytes(Features::ALL);
        assert_eq!(Machine::apply(&mut follower, &bytes, &mut Vec::new()), "\0");
        same(p.state(), &follower);
        let inc = follower.osd.incremental(follower.osd.last()).unwrap();
        let inc = types::OsdMapIncremental::from_bytes(inc).unwrap();
        osd.apply_incremental_checked(&inc).unwrap();
        // One that starts now reads the map whole.
        osd = OsdMap::from_bytes(&osd.to_bytes(Features::ALL)).unwrap();
    }
    assert_eq!(osd.pools[&id].snap_seq, SnapId(7));
}

#[test]
fn an_osd_that_lived_though_marked_down_is_noted_in_the_map() {
    use types::Dump;
    let (s, _) = fresh();
    let mut p = Pending::new(s, Utime::new(2000, 0));
    let conf = conf();
    let osd = OsdId(1);
    let down = |p: &mut Pending, at| {
        p.set_now(Utime::new(at, 0));
        assert!(osd_state::mark_down(p, osd));
        osd_state::forget_old_lag(p, &conf);
        p.close();
    };
    let up = |p: &mut Pending, at, boot: &Boot| {
        p.set_now(Utime::new(at, 0));
        assert_eq!(osd_state::boot(p, &conf, boot), Booted::Yes);
        p.close();
        p.osd().osd(osd).unwrap().xinfo
    };
    osd_state::create(&mut p, osd, Some(types::Fsid([2; 16])));
    p.close();
    assert_eq!(up(&mut p, 2000, &boots(1, 0)).laggy_probability, 0);
    down(&mut p, 2100);
    let x = up(&mut p, 2200, &boots(1, 3));
    assert!(x.laggy_interval == 30 && (x.laggy_probability_f32() - 0.3).abs() < 1e-5, "{x:?}");
    assert!(x.dump()["laggy_probability"].to_string().starts_with("0.3"), "{}", x.dump());
    // Another process at another address: the first one was down for good.
    down(&mut p, 2300);
    let x = up(&mut p, 2400, &Boot { client_addrs: addr(6850), ..boots(1, 3) });
    assert!(x.laggy_interval == 21 && (x.laggy_probability_f32() - 0.21).abs() < 1e-5, "{x:?}");
    // Down again two days later, nothing is remembered.
    down(&mut p, 2500 + 48 * 3600);
    let x = p.osd().osd(osd).unwrap().xinfo;
    assert_eq!(
        (x.laggy_probability, x.laggy_interval, x.down_stamp),
        (0, 0, Utime::new(2500 + 48 * 3600, 0))
    );
}

/// A boot that was executed by a leader that is gone since comes again from the next.
#[test]
fn a_boot_from_before_the_osd_came_up_marks_nobody_up() {
    let (s, _) = fresh();
    let mut p = Pending::new(s, Utime::new(2000, 0));
    let (conf, osd) = (conf(), OsdId(1));
    osd_state::create(&mut p, osd, Some(types::Fsid([2; 16])));
    p.close();
    let first = Boot { has: p.osd().epoch, ..boots(1, 0) };
    let another = Boot { client_addrs: addr(6850), ..first.clone() };
    assert_eq!(osd_state::boot(&mut p, &conf, &first), Booted::Yes);
    p.close();
    let came_up = p.osd().osd(osd).unwrap().info.up_from;
    assert_eq!(osd_state::boot(&mut p, &conf, &first), Booted::Already);
    assert_eq!(osd_state::boot(&mut p, &conf, &another), Booted::Late, "of an earlier process");
    assert!(p.osd().is_up(osd));
    osd_state::mark_down(&mut p, osd);
    p.close();
    for late in [&first, &another] {
        assert_eq!(osd_state::boot(&mut p, &conf, late), Booted::Late);
    }
    let info = p.osd().osd(osd).unwrap().info;
    assert!(
        !p.osd().is_up(osd) && (info.up_from, info.lost_at) == (came_up, Epoch(0)),
        "its data are not lost: {info:?}"
    );
    // It asks again, with the map that says that it is down.
    let again = Boot { has: p.osd().epoch, ..boots(1, 5) };
    assert_eq!(osd_state::boot(&mut p, &conf, &again), Booted::Yes);
}

/// What the others may have given out is not given out again, and the rows hold all of it.
#[test]
fn a_rescue_leaves_one_monitor_and_skips_numbers() {
    let (mut s, mut rows) = fresh_of(&["a", "b", "c"]);
    let mut p = Pending::new(s.clone(), Utime::new(2000, 0));
    for n in 0..2 {
        take(&mut p, &Step::NewOsd(n));
        take(&mut p, &Step::Boot(n));
    }
    take(&mut p, &Step::Pool(1));
    p.put(Change::MonMetadata("c".into(), Some(Default::default())));
    p.put(Change::Rotate(
        s.auth.prepare_rotation(Default::default(), Utime::new(2000, 0), &mut rand::rng()).unwrap(),
    ));
    let mut changed = Vec::new();
    assert_eq!(s.update(p.close().unwrap(), &mut changed), Outcome::Applied);
    store(&mut rows, changed);
    let before = s.clone();
    assert!(before.osd.map().is_up(OsdId(1)));
    let max_ver = |s: &ClusterState| {
        let service = s.auth.skip_secret_ids(0).secrets;
        service.values().map(|r| r.max_ver).min().unwrap()
    };

    assert!(s.clone().rescue("d", Utime::new(3000, 0)).unwrap_err().contains("no mon.d"));
    store(&mut rows, s.rescue("b", Utime::new(3000, 0)).unwrap());
    same(&ClusterState::load(&rows).unwrap(), &s);
    assert_eq!((s.rescued, &s.monmap.ranks), (3000, &vec!["b".to_owned()]));
    assert!(s.mon_metadata.is_empty() && s.monmap.fsid == before.monmap.fsid);
    for (old, new) in [
        (before.monmap.epoch, s.monmap.epoch),
        (before.mgr.epoch, s.mgr.epoch),
        (before.fs.epoch, s.fs.epoch),
        (before.services.epoch, s.services.epoch),
        (before.osd.last(), s.osd.last()),
    ] {
        assert_eq!(new.0, old.0 + SKIPPED);
    }
    assert!(
        s.config_version >= before.config_version + 1000
            && s.kv_version >= before.kv_version + 1000
    );
    assert!(s.global_id_max >= before.global_id_max + 1_000_000);
    assert_eq!(max_ver(&s), max_ver(&before) + 1000);
    let map = s.osd.map();
    assert_eq!(
        (map.pools.len(), map.max_osd()),
        (before.osd.map().pools.len(), before.osd.map().max_osd())
    );
    assert!((0..2).all(|o| map.exists(OsdId(o)) && !map.is_up(OsdId(o)) && map.is_in(OsdId(o))));
    assert_eq!(map.osd(OsdId(1)).unwrap().info.down_at, map.epoch);
    // Once more at the same moment: it is another group all the same.
    assert!(s.rescue("b", Utime::new(3000, 0)).is_ok() && s.rescued == 3001);
}

/// A daemon with the survivor's map follows map by map. One with a map of the lost monitors
/// notices, if it looks at checksums, and has the same as all others in the end, if it does not.
#[test]
fn maps_of_lost_monitors_are_told_from_those_of_the_rescued_one() {
    let (mut s, _) = fresh_of(&["a", "b", "c"]);
    let base = s.osd.map().clone();
    let mut lost = Pending::new(s.clone(), Utime::new(2000, 0));
    lost.osd_mut().flags = always() | types::rados::osdmap_flag::NOOUT;
    lost.close();
    let foreign = lost.osd_before().clone();
    assert_eq!(foreign.epoch, base.epoch.next());
    s.rescue("a", Utime::new(3000, 0)).unwrap();
    let inc =
        |e: Epoch| types::OsdMapIncremental::from_bytes(s.osd.incremental(e).unwrap()).unwrap();
    let (mut own, mut client) = ((*base).clone(), foreign.clone());
    while own.epoch < s.osd.last() {
        own.apply_incremental_checked(&inc(own.epoch.next())).unwrap();
        assert_eq!(own, *s.osd.full(own.epoch).unwrap());
    }
    let refused = foreign.clone().apply_incremental_checked(&inc(foreign.epoch.next()));
    assert!(matches!(refused, Err(types::osdmap::OsdMapError::Crc { .. })), "{refused:?}");
    while client.epoch < s.osd.last() {
        client.apply_incremental(&inc(client.epoch.next())).unwrap();
    }
    assert_eq!(client, own);
}
