//! What people are shown of what waits in mClock.
#![allow(missing_docs)]

use qos::{
    ClassSpec, Dequeued, Mclock, MclockSpec, Op, OpClass, Pace, Phase, Scheduler, TenantSpec,
    cut_off,
};

const MS: u64 = 1_000_000;
const COST: u32 = 4096;

fn op(class: OpClass, tenant: u64, session: u64) -> Op<u64> {
    Op { item: 0, class, tenant, session, cost: COST, charge: 0, priority: 63 }
}

/// So many operations of 4 KiB each second.
fn iops(n: u64) -> u64 {
    n * u64::from(COST)
}

fn served(q: &mut Mclock<u64>, now: u64) -> (OpClass, u64, Phase) {
    match q.dequeue(now) {
        Dequeued::Item(op, phase) => (op.class, op.tenant, phase),
        other => panic!("{other:?}"),
    }
}

#[test]
fn clocks_are_shown_as_seen_from_now() {
    let client = ClassSpec { reservation: iops(100), weight: 2, limit: 0 };
    let recovery = ClassSpec { reservation: 0, weight: 1, limit: iops(10) };
    let rest = ClassSpec { reservation: 0, weight: 1, limit: 0 };
    let mut q = Mclock::new(MclockSpec {
        client,
        background_recovery: recovery,
        background_best_effort: rest,
        cost_per_io: COST,
    });
    let now = 1000 * MS;
    q.set_tenant(
        OpClass::Client,
        9,
        TenantSpec {
            floor: Pace { iops_milli: 50_000, bps: 0 },
            weight: 200,
            ..TenantSpec::default()
        },
        now,
    );
    for _ in 0..4 {
        q.enqueue(op(OpClass::Client, 7, 1), now);
        q.enqueue(op(OpClass::Client, 7, 2), now);
        q.enqueue(op(OpClass::Client, 9, 3), now);
        q.enqueue(op(OpClass::BackgroundRecovery, 1, 0), now);
    }
    q.enqueue(Op { priority: cut_off::HIGH, ..op(OpClass::Client, 7, 1) }, now);
    assert_eq!(q.strict().collect::<Vec<_>>(), [(cut_off::HIGH, 1)]);
    assert_eq!(served(&mut q, now).2, Phase::Strict);
    let state = q.state(8, now);
    let waiting = state.each_ref().map(|s| (s.class, s.waiting, s.tenants));
    assert_eq!(
        waiting,
        [
            (OpClass::Client, 12, 2),
            (OpClass::BackgroundRecovery, 4, 1),
            (OpClass::BackgroundBestEffort, 0, 0)
        ]
    );
    assert_eq!(
        (state[0].reservation, state[0].limit, state[1].reservation, state[1].limit),
        (Some(0), None, None, Some(0))
    );
    assert!(q.at_ceiling(OpClass::BackgroundRecovery, now).is_none());
    // The floor of a tenant, then that of its class, which has paid for both; then by share until
    // recovery is at its ceiling.
    let phases = [0; 4].map(|_| served(&mut q, now));
    assert_eq!(
        phases.iter().filter(|(class, ..)| *class == OpClass::BackgroundRecovery).count(),
        1,
        "{phases:?}"
    );
    let state = q.state(8, now);
    assert_eq!(
        (state[0].reservation, state[1].limit),
        (Some(10 * MS as i64), Some(100 * MS as i64)),
        "{phases:?}"
    );
    assert_eq!(q.at_ceiling(OpClass::BackgroundRecovery, now), Some(now + 100 * MS));
    let later = q.state(8, now + 130 * MS);
    assert_eq!(
        (later[0].reservation, later[1].limit),
        (Some(-120 * MS as i64), Some(-30 * MS as i64))
    );
    assert!(q.at_ceiling(OpClass::BackgroundRecovery, now + 130 * MS).is_none());
    // The tenant with a floor had one for it, which is due again after a fiftieth of a second.
    let nine = later[0].busiest.iter().find(|t| t.tenant == 9).unwrap();
    assert_eq!((nine.weight, nine.floor, nine.sessions), (200, Some(-110 * MS as i64), 1));
    // The tenant that is next by share is where it began, and an operation at weight 2 is half of
    // one.
    let least = later.iter().filter(|s| s.waiting > 0).map(|s| s.share).min();
    assert_eq!(least, Some(0));
    let seven = later[0].busiest.iter().find(|t| t.tenant == 7).unwrap();
    assert_eq!((seven.sessions, seven.floor, seven.weight), (2, None, TenantSpec::WEIGHT));
}

#[test]
fn only_those_are_named_of_whom_most_waits() {
    let class = ClassSpec { reservation: 0, weight: 1, limit: 0 };
    let mut q = Mclock::new(MclockSpec {
        client: class,
        background_recovery: class,
        background_best_effort: class,
        cost_per_io: COST,
    });
    for tenant in 0..500u64 {
        for _ in 0..=tenant % 100 {
            q.enqueue(op(OpClass::Client, tenant, 0), 0);
        }
    }
    let named = |most| {
        let [client, ..] = q.state(most, 0);
        (client.tenants, client.busiest.iter().map(|t| (t.tenant, t.waiting)).collect::<Vec<_>>())
    };
    assert_eq!(named(3), (500, vec![(99, 100), (199, 100), (299, 100)]));
    assert_eq!(named(0), (500, vec![]));
    assert_eq!(named(1000).1.len(), 500);
}
