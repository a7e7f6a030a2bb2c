//! What people see of the scheduler: what was asked for and served, where it waited, and what
//! waits.

use crate::meter::Receipt;
use crate::plain::PlainRequest;
use crate::scheduler::OsdQueue;
use crate::tenants_test::{Session, pool_name, request};
use crate::work::{Background, Kind, Next, Queue, Work};
use conf::Config;
use conf::effective::Source;
use messages::{QosShares, ShareOfRate, TenantPart, TenantShare};
use qos::{Charges, DeviceKind};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use types::{PgId, PoolId, SnapId};

const MS: Duration = Duration::from_millis(1);

fn config(settings: &[(&str, &str)]) -> Config {
    let mut c = Config::new();
    for (name, value) in settings {
        c.set(Source::Override, name, value).unwrap();
    }
    c
}

fn job(kind: Kind) -> Work<PlainRequest> {
    let pgid = PgId { pool: PoolId(5), seed: 0 };
    Work::Background(Background {
        pgid: pgid.into(),
        copy: 0,
        kind,
        cost: 4096,
        misplaced: true,
        receipt: Receipt::default(),
        queued: 0,
    })
}

/// Background work of the least class that clients do not hold back in front of the scheduler.
fn listing() -> Work<PlainRequest> {
    job(Kind::ListObjects(pg::ReadToken(1), pg::Backfill::Nothing, 1))
}

fn write(pool: i64, session: u64) -> Work<PlainRequest> {
    Work::Client(request(pool, "", "object", Session("client.a", session), 1))
}

fn serve(q: &mut OsdQueue<PlainRequest>, now: Instant) -> usize {
    let mut served = 0;
    while let Next::Work(..) = q.dequeue(now) {
        served += 1;
    }
    served
}

fn class(q: &OsdQueue<PlainRequest>, class: &str, what: &str) -> u64 {
    let dump = q.dump(&pool_name);
    dump["classes"][class][what].as_u64().unwrap_or_else(|| panic!("{class} {what}: {dump}"))
}

#[test]
fn what_clients_hold_back_is_throttled_and_not_waiting() {
    let start = Instant::now();
    let mut q = OsdQueue::starting(&config(&[("osd_mclock_profile", "high_client_ops")]), start);
    let mut now = start;
    for _ in 0..500 {
        now += MS;
        for _ in 0..4 {
            q.enqueue(write(1, 1), now);
        }
        q.enqueue(job(Kind::SnapTrim(SnapId(1))), now);
        now += MS;
        serve(&mut q, now);
    }
    assert_eq!(
        (
            class(&q, "client", "offered"),
            class(&q, "client", "served"),
            class(&q, "client", "throttled")
        ),
        (2000, 2000, 0)
    );
    assert_eq!(
        (class(&q, "client", "offered_bytes"), class(&q, "client", "waited_ns")),
        (2000 * 4096, 2000 * 1_000_000)
    );
    assert_eq!(class(&q, "background_recovery", "offered"), 0);
    let rest = |what| class(&q, "background_best_effort", what);
    assert_eq!(rest("offered"), 500);
    assert!(
        rest("served") > 10 && rest("served") + rest("waiting") == 500,
        "{} of them",
        rest("served")
    );
    // Nearly each was held back, for long; in the scheduler none waited for as long.
    assert!(
        rest("throttled") + 10 > rest("served") && rest("throttled") <= rest("served"),
        "{}",
        rest("throttled")
    );
    assert!(
        rest("throttled_ns") > rest("served") * 50_000_000
            && rest("waited_ns") * 20 < rest("throttled_ns")
    );
    let wait = &q.dump(&pool_name)["classes"]["client"]["wait_us"];
    assert!(
        (512.0..=1024.0).contains(&wait["p50"].as_f64().unwrap())
            && wait["p99"].as_f64() <= Some(1024.0),
        "{wait}"
    );
    let told = q.take_seen(&pool_name);
    assert_eq!(
        (
            told.classes.len(),
            told.work.len(),
            told.work[0].offered,
            told.work[0].waits.iter().sum::<u32>()
        ),
        (3, 3, 2000, 2000)
    );
    // Three fifths and seven tenths of what an OSD does by default.
    assert_eq!(
        (told.work[0].reservation, told.work[0].weight, told.work[0].limit, told.work[2].limit),
        (12_900_000, 2, 0, 15_050_000)
    );
}

#[test]
fn time_at_the_ceiling_of_a_class_and_of_a_tenant() {
    let start = Instant::now();
    let settings = [
        ("osd_mclock_profile", "custom"),
        ("osd_mclock_max_capacity_iops_ssd", "1000"),
        ("osd_mclock_scheduler_background_best_effort_lim", "0.01"),
    ];
    let mut q = OsdQueue::starting(&config(&settings), start);
    for _ in 0..3 {
        q.enqueue(listing(), start);
    }
    assert_eq!(serve(&mut q, start), 1);
    // Ten each second; it is looked again in between.
    assert_eq!(
        (
            serve(&mut q, start + 40 * MS),
            serve(&mut q, start + 101 * MS),
            serve(&mut q, start + 202 * MS)
        ),
        (0, 1, 1)
    );
    let at_ceiling = class(&q, "background_best_effort", "at_ceiling_ns");
    assert!((190_000_000..=202_000_000).contains(&at_ceiling), "{at_ceiling}");
    assert_eq!(class(&q, "client", "at_ceiling_ns"), 0);
    let promised = &q.dump(&pool_name)["classes"]["background_best_effort"]["promised"];
    assert!(
        (promised["limit_iops"].as_f64().unwrap() - 10.0).abs() < 0.01
            && promised["reservation_iops"].is_null(),
        "{promised}"
    );
    // A tenant with ten operations each second.
    let rate = ShareOfRate { each_second: 10_000, part: 10_000, ..ShareOfRate::default() };
    let share = TenantShare {
        name: "a".into(),
        pool: Some(PoolId(1)),
        weight: 100,
        osds: 1,
        ceilings: vec![rate, ShareOfRate::default()],
        ..TenantShare::default()
    };
    let parts = vec![TenantPart { number: share.number, ops: u32::MAX, bytes: 0, floor: 0 }];
    let now = start + 300 * MS;
    q.take_shares(
        QosShares { tenants: vec![share], all_tenants: true, parts, ..QosShares::default() },
        now,
    );
    for _ in 0..20 {
        q.enqueue(write(1, 1), now);
    }
    let at_once = serve(&mut q, now) as u64;
    assert!((1..10).contains(&at_once), "{at_once}");
    let mut end = now;
    while class(&q, "client", "served") < 20 {
        end += 10 * MS;
        assert!(end < now + 5000 * MS, "lost");
        serve(&mut q, end);
    }
    assert_eq!(
        (class(&q, "client", "offered"), class(&q, "client", "throttled")),
        (20, 20 - at_once)
    );
    let tenant = q.dump(&pool_name)["tenants"]
        .as_array()
        .unwrap()
        .iter()
        .find(|t| t["tenant"] == "a")
        .unwrap()["throttled_ns"]
        .as_u64();
    assert!(
        Some(class(&q, "client", "throttled_ns")) == tenant && tenant > Some(1_000_000_000),
        "{tenant:?}"
    );
}

#[test]
fn the_state_of_each_queue_is_shown() {
    let start = Instant::now();
    let mut q = OsdQueue::starting(&config(&[("osd_mclock_profile", "high_recovery_ops")]), start);
    for _ in 0..5 {
        q.enqueue(write(1, 1), start);
        q.enqueue(write(1, 2), start);
        q.enqueue(write(2, 1), start);
        q.enqueue(listing(), start);
        q.enqueue(job(Kind::Recover), start);
    }
    let state = q.state(1, &pool_name, start);
    let sizes = json!({"high_priority_queue": 0, "scheduler": 20, "limits_of_images": 0, "ceilings_of_tenants": 0, "beside_clients": 5});
    assert_eq!(
        (
            &state["queue_sizes"],
            &state["HighPriorityQueue"],
            &state["mClockClients"]["client_count"]
        ),
        (&sizes, &json!([]), &json!(3))
    );
    let client = &state["mClockQueues"]["client"];
    assert_eq!(
        (&client["queued"], &client["tenant_count"], &client["limit"], &client["reservation"]),
        (&json!(15), &json!(2), &Value::Null, &json!(0.0))
    );
    assert_eq!(client["tenants"].as_array().unwrap().len(), 1, "as many as were asked for");
    let busiest = &client["tenants"][0];
    assert_eq!(
        (&busiest["tenant"], &busiest["queued"], &busiest["sessions"], &busiest["weight"]),
        (&json!("pool-1"), &json!(10), &json!(2), &json!(100))
    );
    let rest = &state["mClockQueues"]["background_best_effort"];
    assert_eq!(
        (&rest["queued"], &rest["held_in_front"], &rest["tenants"][0]["tenant"]),
        (&json!(5), &json!(5), &json!("pool-5"))
    );
    // After some were served, the floor of clients is owed the next one later.
    for _ in 0..4 {
        assert!(matches!(q.dequeue(start), Next::Work(..)));
    }
    let owed =
        q.state(16, &pool_name, start)["mClockQueues"]["client"]["reservation"].as_f64().unwrap();
    let later = q.state(16, &pool_name, start + 10 * MS)["mClockQueues"]["client"]["reservation"]
        .as_f64()
        .unwrap();
    assert!(owed > 0.0 && (owed - later - 0.01).abs() < 1e-6, "{owed} {later}");
    for (name, queues) in [
        (
            "wpq",
            json!([{"priority": 63, "queue_size": 3, "num_klasses": 2}, {"priority": 5, "queue_size": 1, "num_klasses": 1}]),
        ),
        ("fifo", Value::Null),
    ] {
        let mut q = OsdQueue::starting(&config(&[("osd_op_queue", name)]), start);
        for work in [write(1, 1), write(1, 2), write(2, 1), job(Kind::SnapTrim(SnapId(1)))] {
            q.enqueue(work, start);
        }
        let state = q.state(16, &pool_name, start);
        assert_eq!(
            (&state["queue_sizes"]["scheduler"], &state["queues"], state.get("mClockQueues")),
            (&json!(4), &queues, None),
            "{name}"
        );
        assert!(q.dump(&pool_name)["classes"]["client"].get("promised").is_none());
    }
}

#[test]
fn what_cannot_be_is_not_believed() {
    let now = Instant::now();
    let mut c = Config::new();
    let mut q = OsdQueue::starting(&c, now);
    let capacity = |q: &OsdQueue<PlainRequest>| {
        let v = &q.dump(&pool_name)["capacity"];
        (
            v["iops"].as_f64().unwrap(),
            v["source"].as_str().unwrap().to_owned(),
            v["refused_iops"].as_f64(),
        )
    };
    let learn = |q: &mut OsdQueue<PlainRequest>, iops| {
        q.learned(&Charges::default(), Some(iops), false, now);
        capacity(q)
    };
    assert_eq!(learn(&mut q, 90_000.0), (21_500.0, "default".into(), Some(90_000.0)));
    assert_eq!(learn(&mut q, 50_000.0), (50_000.0, "learned".into(), None));
    assert_eq!(
        learn(&mut q, 81_000.0),
        (50_000.0, "learned".into(), Some(81_000.0)),
        "what held before holds on"
    );
    assert_eq!(learn(&mut q, 79_000.0).2, None);
    c.set(Source::Mon, "osd_mclock_iops_capacity_threshold_ssd", "40000").unwrap();
    c.set(Source::Mon, "osd_mclock_iops_capacity_threshold_hdd", "30").unwrap();
    q.configure(&c, now);
    assert_eq!(capacity(&q), (21_500.0, "default".into(), Some(79_000.0)));
    c.set(Source::Mon, "osd_mclock_iops_capacity_threshold_ssd", "100000").unwrap();
    q.configure(&c, now);
    assert_eq!(learn(&mut q, 90_000.0), (90_000.0, "learned".into(), None));
}

#[test]
fn a_device_that_rotates_has_options_of_its_own() {
    let now = Instant::now();
    let mut c = config(&[("osd_mclock_max_capacity_iops_ssd", "5000")]);
    let mut q = OsdQueue::on(DeviceKind::Hdd, &c, now);
    let of = |q: &OsdQueue<PlainRequest>| {
        let dump = q.dump(&pool_name);
        assert_eq!(dump["capacity"]["rotational"], true);
        (
            dump["capacity"]["iops"].as_f64().unwrap(),
            dump["classes"]["client"]["promised"]["reservation_iops"].as_f64().unwrap().round(),
        )
    };
    // Half of it, as the profile says.
    assert_eq!(of(&q), (315.0, 158.0));
    assert_eq!(
        q.dump(&pool_name)["ignored"].as_object().unwrap().keys().collect::<Vec<_>>(),
        ["osd_mclock_max_capacity_iops_ssd"]
    );
    q.learned(&Charges::default(), Some(600.0), false, now);
    assert_eq!(of(&q), (315.0, 158.0), "no such device does that");
    q.learned(&Charges::default(), Some(400.0), false, now);
    assert_eq!(of(&q), (400.0, 200.0));
    c.set(Source::Override, "osd_mclock_max_capacity_iops_hdd", "100").unwrap();
    q.configure(&c, now);
    assert_eq!(of(&q), (100.0, 50.0));
    assert_eq!(
        q.counters().iter().map(|(name, _)| *name).collect::<Vec<_>>(),
        [
            "qos_floors_scaled",
            "qos_capacity",
            "qos_rotational",
            "qos_capacity_set",
            "qos_capacity_learned"
        ]
    );
}
