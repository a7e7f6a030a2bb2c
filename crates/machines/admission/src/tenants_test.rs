//! The tenant of a request (`osd_qos_tenant`), by itself and through the scheduler that an OSD has.

use crate::plain::{self, PlainRequest};
use crate::request::Request;
use crate::scheduler::OsdQueue;
use crate::tenants::{TenantBy, Tenants};
use crate::work::{Next, Queue, Work};
use conf::Config;
use conf::effective::Source;
use messages::{QosShares, ShareOfRate, TenantPart, TenantShare};
use qos::Access;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};
use types::PoolId;

/// A session of a client: its name and its number.
#[derive(Clone, Copy)]
pub(crate) struct Session(pub &'static str, pub u64);

/// A write of a block.
pub(crate) fn request(
    pool: i64,
    namespace: &'static str,
    object: &'static str,
    from: Session,
    tid: u64,
) -> Rc<PlainRequest> {
    let session = plain::Session::new(from.1, from.0);
    let write = (Access::Write, 4096);
    Rc::new(PlainRequest::new(PoolId(pool), namespace, object, write, session, tid))
}

const A: Session = Session("client.a", 1);
const B: Session = Session("client.b", 2);
const FIRST: &str = "rbd_data.11aa.0000000000000001";
const AGAIN: &str = "rbd_data.11aa.0000000000000002";
const OTHER: &str = "rbd_data.22bb.0000000000000001";

pub(crate) fn pool_name(id: PoolId) -> Option<String> {
    Some(format!("pool-{}", id.0))
}

/// What each tenant was asked for.
fn offered(by: TenantBy, ops: &[Rc<PlainRequest>]) -> BTreeMap<String, u64> {
    let mut tenants = Tenants::new(by);
    for op in ops {
        assert!(tenants.admit(op.clone(), 1).is_some(), "nobody has a ceiling");
    }
    let dump = tenants.dump(&pool_name, &|_| 0);
    assert_eq!(dump["tenant_by"], by.name());
    let row = |t: &serde_json::Value| {
        (t["tenant"].as_str().unwrap().to_owned(), t["offered"].as_u64().unwrap())
    };
    dump["tenants"].as_array().unwrap().iter().map(row).collect()
}

#[test]
fn each_value_says_whose_a_request_is() {
    let ops = [
        request(1, "", "object", A, 1),
        request(1, "", "object", B, 2),
        request(1, "space", "object", A, 3),
        request(2, "", FIRST, A, 4),
        request(2, "", AGAIN, B, 5),
        request(2, "", OTHER, A, 6),
        request(2, "space", FIRST, B, 7),
        request(2, "", "rbd_header.11aa", A, 8),
        request(2, "", "rbd_directory", A, 9),
    ];
    let of = |rows: &[(&str, u64)]| {
        rows.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect::<BTreeMap<_, _>>()
    };
    assert_eq!(
        offered(TenantBy::Pool, &ops),
        of(&[("pool-1", 2), ("pool-1/space", 1), ("pool-2", 5), ("pool-2/space", 1)])
    );
    ops.iter().for_each(|op| op.tags().offered.set(false));
    let images = [
        ("pool-1", 2),
        ("pool-1/space", 1),
        ("pool-2//rbd_data.11aa", 3),
        ("pool-2//rbd_data.22bb", 1),
        ("pool-2/space/rbd_data.11aa", 1),
        ("pool-2", 1),
    ];
    assert_eq!(offered(TenantBy::Image, &ops), of(&images));
    ops.iter().for_each(|op| op.tags().offered.set(false));
    assert_eq!(offered(TenantBy::Client, &ops), of(&[("client.a", 6), ("client.b", 3)]));
    for (name, by) in
        [("pool", TenantBy::Pool), ("image", TenantBy::Image), ("client", TenantBy::Client)]
    {
        assert_eq!((TenantBy::from_name(name), by.name()), (by, name));
        assert!(conf::find("osd_qos_tenant").unwrap().parse(name).is_ok());
    }
    assert!(conf::find("osd_qos_tenant").unwrap().parse("session").is_err());
}

/// Of the next so many, how many are of each client; those of a session must come in the order in
/// which they were sent.
fn serve(
    q: &mut OsdQueue<PlainRequest>,
    n: usize,
    last: &mut BTreeMap<u64, u64>,
    now: Instant,
) -> BTreeMap<String, usize> {
    let mut served: BTreeMap<String, usize> = BTreeMap::new();
    for _ in 0..n {
        let Next::Work(Work::Client(op), _) = q.dequeue(now) else { panic!("{n} wait") };
        *served.entry(op.entity().to_owned()).or_default() += 1;
        let before = last.insert(op.session(), op.tid);
        assert!(before.is_none_or(|tid| tid < op.tid), "out of order");
    }
    served
}

#[test]
fn a_change_holds_for_what_waits() {
    let (mut c, now) = (Config::new(), Instant::now());
    let mut q = OsdQueue::starting(&c, now);
    // Three sessions of one client and one of another, all on one pool.
    for tid in 0..120 {
        for session in [
            Session("client.a", 1),
            Session("client.a", 2),
            Session("client.a", 3),
            Session("client.b", 4),
        ] {
            q.enqueue(Work::Client(request(1, "", "object", session, tid)), now);
        }
    }
    let waiting = |q: &OsdQueue<PlainRequest>| {
        let dump = q.dump(&pool_name);
        let row = |t: &serde_json::Value| {
            Some((t["tenant"].as_str()?.to_owned(), t["waiting"].as_u64().filter(|n| *n > 0)?))
        };
        let waiting: BTreeMap<String, u64> =
            dump["tenants"].as_array().unwrap().iter().filter_map(row).collect();
        (dump["tenant_by"].as_str().unwrap().to_owned(), waiting.into_iter().collect::<Vec<_>>())
    };
    assert_eq!(waiting(&q), ("pool".into(), vec![("pool-1".into(), 480)]));
    let mut last = BTreeMap::new();
    let by_session = serve(&mut q, 80, &mut last, now);
    assert_eq!(
        (by_session["client.a"], by_session["client.b"]),
        (60, 20),
        "sessions of a tenant take turns"
    );
    c.set(Source::Override, "osd_qos_tenant", "client").unwrap();
    q.configure(&c, now);
    assert_eq!(
        waiting(&q),
        ("client".into(), vec![("client.a".into(), 300), ("client.b".into(), 100)])
    );
    let by_client = serve(&mut q, 80, &mut last, now);
    assert!(by_client.values().all(|n| n.abs_diff(40) <= 2), "{by_client:?}");
    // Whatever it is changed to, nothing is lost, and all is in order.
    c.set(Source::Override, "osd_qos_tenant", "image").unwrap();
    q.configure(&c, now);
    assert_eq!(waiting(&q), ("image".into(), vec![("pool-1".into(), 320)]));
    serve(&mut q, 320, &mut last, now);
    assert!(q.is_empty());
    let dump = q.dump(&pool_name);
    let sum = |what: &str| {
        dump["tenants"].as_array().unwrap().iter().filter_map(|t| t[what].as_u64()).sum::<u64>()
    };
    assert_eq!((sum("offered"), sum("served"), last.len()), (480, 480, 4));
}

#[test]
fn the_manager_does_not_wait_behind_those_whom_it_divides_promises_for() {
    let (mut c, start) = (Config::new(), Instant::now());
    c.set(Source::Override, "osd_mclock_profile", "custom").unwrap();
    let mut q = OsdQueue::starting(&c, start);
    // A floor that takes, with what is set aside for it, a little more than what is done here, one
    // operation in each millisecond.
    let floor = 1_020_000_000 / u64::from(qos::set_aside(qos::AHEAD, 1, 0));
    let rate = ShareOfRate { each_second: floor, part: floor, ..ShareOfRate::default() };
    let share = TenantShare {
        name: "a".into(),
        pool: Some(PoolId(1)),
        weight: 1,
        osds: 1,
        floors: vec![rate, ShareOfRate::default()],
        ..TenantShare::default()
    };
    let parts = vec![TenantPart { number: share.number, ops: 0, bytes: 0, floor: u32::MAX }];
    q.take_shares(
        QosShares { tenants: vec![share], all_tenants: true, parts, ..QosShares::default() },
        start,
    );
    let (manager, mut last, mut longest, mut served) = (Session("mgr.x", 3), BTreeMap::new(), 0, 0);
    for ms in 0..900 {
        let now = start + Duration::from_millis(ms);
        q.enqueue(Work::Client(request(1, "", "object", A, 2 * ms)), now);
        q.enqueue(Work::Client(request(1, "", "object", A, 2 * ms + 1)), now);
        if ms % 30 == 0 && ms < 870 {
            q.enqueue(Work::Client(request(2, "", "rbd_header.11aa", manager, ms)), now);
        }
        if serve(&mut q, 1, &mut last, now).contains_key("mgr.x") {
            served += 1;
            longest = longest.max(ms - last[&manager.1]);
        }
    }
    assert!(served == 29 && longest < 100, "{served} of 29 after {longest} ms at most");
    // More than is promised waits for what floors leave.
    let now = start + Duration::from_millis(901);
    for tid in 1000..1300 {
        q.enqueue(Work::Client(request(2, "", "rbd_header.11aa", manager, tid)), now);
    }
    let of = (0..100)
        .map(|ms| serve(&mut q, 1, &mut last, now + Duration::from_millis(ms)))
        .filter(|of| of.contains_key("mgr.x"))
        .count();
    assert!((4..=12).contains(&of), "{of}");
    let dump = q.dump(&pool_name);
    let names: Vec<&str> =
        dump["tenants"].as_array().unwrap().iter().filter_map(|t| t["tenant"].as_str()).collect();
    assert_eq!(names, ["mgr", "a"]);
}

/// What tells of an image is the image's, so that its requests go with its floor and share, and
/// waits for no ceiling of what is written to it.
#[test]
fn a_header_is_its_images_and_does_not_wait_for_a_ceiling() {
    let start = Instant::now();
    let mut q = OsdQueue::starting(&Config::new(), start);
    let rate = |n: u64| ShareOfRate { each_second: n, part: n, ..ShareOfRate::default() };
    let ceilings = (0..6).map(|i| rate(if i == 0 { 1000 } else { 0 })).collect();
    let (pool, namespace, prefix) =
        (Some(PoolId(1)), Some("".into()), Some("rbd_data.11aa".into()));
    let share = TenantShare {
        name: "image".into(),
        pool,
        namespace,
        prefix,
        weight: 1,
        osds: 1,
        ceilings,
        ..TenantShare::default()
    };
    let parts = vec![TenantPart { number: share.number, ops: u32::MAX, bytes: u32::MAX, floor: 0 }];
    q.take_shares(
        QosShares { tenants: vec![share], all_tenants: true, parts, ..QosShares::default() },
        start,
    );
    for tid in 0..50 {
        q.enqueue(Work::Client(request(1, "", FIRST, A, tid)), start);
    }
    for (tid, object) in
        ["rbd_header.11aa", "rbd_object_map.11aa", "rbd_object_map.11aa.0000000000000004"]
            .into_iter()
            .enumerate()
    {
        q.enqueue(Work::Client(request(1, "", object, B, tid as u64)), start);
    }
    let mut begun = BTreeMap::new();
    while let Next::Work(Work::Client(op), _) = q.dequeue(start) {
        *begun.entry(op.entity().to_owned()).or_insert(0) += 1;
    }
    assert!(begun["client.b"] == 3 && begun["client.a"] < 3, "{begun:?}");
    let dump = q.dump(&pool_name);
    let tenants: Vec<_> = dump["tenants"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| (t["tenant"].as_str().unwrap(), t["offered"].as_u64().unwrap()))
        .collect();
    assert_eq!(tenants, [("image", 53)]);
}

/// A bucket is found by its id in any pool, and a user's buckets are one tenant. Work with an index
/// counts for the ceiling: lists and deletes are little else.
#[test]
fn buckets_and_users_are_tenants() {
    const DATA: &str = "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9.41.1_key";
    const INDEX: &str = ".dir.0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9.41.1.7";
    const SECOND: &str = "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9.41.2_key";
    const THIRD: &str = "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9.41.3_key";
    let ids = |of: &[u32]| {
        let ids: Vec<String> =
            of.iter().map(|n| format!("0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9.41.{n}")).collect();
        ids.join(",").into()
    };
    let start = Instant::now();
    let mut q = OsdQueue::starting(&Config::new(), start);
    let rate = |n: u64| ShareOfRate { each_second: n, part: n, ..ShareOfRate::default() };
    let share = |number, name: &str, of: &[u32], ceiling| TenantShare {
        number: messages::TenantNumber(number),
        name: name.into(),
        prefix: Some(ids(of)),
        weight: 1,
        osds: 1,
        ceilings: (0..6).map(|i| rate(if i == 0 { ceiling } else { 0 })).collect(),
        ..TenantShare::default()
    };
    let tenants = vec![share(1, "bucket.b", &[1], 1000), share(2, "user.ann", &[2, 3], 0)];
    let parts = tenants
        .iter()
        .map(|t| TenantPart { number: t.number, ops: u32::MAX, bytes: u32::MAX, floor: 0 })
        .collect();
    q.take_shares(QosShares { tenants, all_tenants: true, parts, ..QosShares::default() }, start);
    for tid in 0..20 {
        q.enqueue(Work::Client(request(2, "", INDEX, A, tid)), start);
    }
    q.enqueue(Work::Client(request(1, "", DATA, A, 20)), start);
    q.enqueue(Work::Client(request(1, "", SECOND, A, 21)), start);
    q.enqueue(Work::Client(request(1, "", THIRD, A, 22)), start);
    q.enqueue(Work::Client(request(1, "", "other_key", A, 23)), start);
    let mut begun = Vec::new();
    while let Next::Work(Work::Client(op), _) = q.dequeue(start) {
        begun.push(op.tid);
    }
    assert!(begun.iter().filter(|tid| **tid <= 20).count() < 3, "{begun:?}");
    assert_eq!(begun.iter().filter(|tid| **tid > 20).count(), 3, "{begun:?}");
    let seen = |q: &OsdQueue<PlainRequest>| -> BTreeMap<String, u64> {
        let dump = q.dump(&pool_name);
        let row = |t: &serde_json::Value| {
            (t["tenant"].as_str().unwrap().to_owned(), t["offered"].as_u64().unwrap())
        };
        dump["tenants"].as_array().unwrap().iter().map(row).collect()
    };
    let rows = |rows: &[(&str, u64)]| rows.iter().map(|(n, c)| ((*n).to_owned(), *c)).collect();
    assert_eq!(seen(&q), rows(&[("bucket.b", 21), ("user.ann", 2), ("pool-1", 1)]));
    // The user has one bucket less: what comes for it is its pool's.
    let fewer = vec![share(2, "user.ann", &[2], 0)];
    q.take_shares(QosShares { tenants: fewer, ..QosShares::default() }, start);
    q.enqueue(Work::Client(request(1, "", THIRD, A, 24)), start);
    assert_eq!(seen(&q)["pool-1"], 2);
}
