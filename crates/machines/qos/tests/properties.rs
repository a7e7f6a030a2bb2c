//! What the schedulers promise, in virtual time: a device serves one operation after the other.
#![allow(missing_docs)]

use proptest::prelude::*;
use qos::{
    Allocations, Capacity, ClassSpec, Dequeued, DeviceKind, Fifo, Mclock, MclockProfile,
    MclockSpec, Op, OpClass, Phase, Scheduler, Wpq, cut_off,
};
use std::collections::{BTreeMap, VecDeque};

const SECOND: u64 = 1_000_000_000;
const MIB: u64 = 1 << 20;

fn op(item: u64, class: OpClass, tenant: u64, cost: u32) -> Op<u64> {
    Op { item, class, tenant, session: 0, cost, charge: 0, priority: 63 }
}

fn spec(
    client: (u64, u32, u64),
    recovery: (u64, u32, u64),
    best_effort: (u64, u32, u64),
) -> MclockSpec {
    let class = |(reservation, weight, limit)| ClassSpec { reservation, weight, limit };
    MclockSpec {
        client: class(client),
        background_recovery: class(recovery),
        background_best_effort: class(best_effort),
        cost_per_io: 1,
    }
}

/// Keeps some classes busy for a while on a device of some bytes per second; returns the bytes
/// served by class and the time that the device idled.
fn saturate(
    s: &mut dyn Scheduler<u64>,
    busy: &[(OpClass, u64, u32)],
    capacity: u64,
    duration: u64,
) -> (BTreeMap<(OpClass, u64), u64>, u64) {
    let (mut now, mut idle) = (0, 0);
    let mut served: BTreeMap<(OpClass, u64), u64> = BTreeMap::new();
    for (class, tenant, cost) in busy {
        for _ in 0..4 {
            s.enqueue(op(0, *class, *tenant, *cost), 0);
        }
    }
    while now < duration {
        match s.dequeue(now) {
            Dequeued::Item(o, _) => {
                *served.entry((o.class, o.tenant)).or_default() += u64::from(o.cost);
                now += u64::from(o.cost) * SECOND / capacity;
                s.enqueue(op(0, o.class, o.tenant, o.cost), now);
            }
            Dequeued::WaitUntil(at) => {
                assert!(at > now, "waiting until {at} at {now} would not end");
                idle += at - now;
                now = at;
            }
            Dequeued::Empty => panic!("operations wait"),
        }
    }
    (served, idle)
}

fn by_class(served: &BTreeMap<(OpClass, u64), u64>, class: OpClass) -> u64 {
    served.iter().filter(|((c, _), _)| *c == class).map(|(_, bytes)| bytes).sum()
}

fn near(found: u64, wanted: u64, percent: u64) -> bool {
    found.abs_diff(wanted) <= wanted * percent / 100
}

#[test]
fn shares_follow_weights_where_there_are_no_floors() {
    let mut s = Mclock::new(spec((0, 3, 0), (0, 1, 0), (0, 1, 0)));
    let busy = [
        (OpClass::Client, 1, 4096),
        (OpClass::BackgroundRecovery, 2, 65536),
        (OpClass::BackgroundBestEffort, 3, 8192),
    ];
    let (served, idle) = saturate(&mut s, &busy, 100 * MIB, 5 * SECOND);
    assert_eq!(idle, 0);
    for (class, share) in
        [(OpClass::Client, 3), (OpClass::BackgroundRecovery, 1), (OpClass::BackgroundBestEffort, 1)]
    {
        let bytes = by_class(&served, class);
        assert!(near(bytes, 500 * MIB * share / 5, 2), "{class:?}: {bytes}");
    }
}

#[test]
fn floors_hold_against_any_weight_and_ceilings_against_an_idle_device() {
    let mut s = Mclock::new(spec((30 * MIB, 1, 0), (10 * MIB, 1000, 20 * MIB), (0, 1, 10 * MIB)));
    let busy = [
        (OpClass::Client, 1, 4096),
        (OpClass::BackgroundRecovery, 2, 1 << 20),
        (OpClass::BackgroundBestEffort, 3, 65536),
    ];
    let (served, _) = saturate(&mut s, &busy, 50 * MIB, 10 * SECOND);
    assert!(by_class(&served, OpClass::Client) >= 298 * MIB, "{served:?}");
    assert!(by_class(&served, OpClass::BackgroundRecovery) >= 99 * MIB, "{served:?}");
    assert!(by_class(&served, OpClass::BackgroundRecovery) <= 202 * MIB, "{served:?}");
    // Alone on a fast device, a class with a ceiling stays below it and the device idles.
    let mut s = Mclock::new(spec((30 * MIB, 1, 0), (10 * MIB, 1, 20 * MIB), (0, 1, 10 * MIB)));
    let (served, idle) = saturate(&mut s, &busy[1..], 500 * MIB, 10 * SECOND);
    assert!(near(by_class(&served, OpClass::BackgroundRecovery), 200 * MIB, 2), "{served:?}");
    assert!(near(by_class(&served, OpClass::BackgroundBestEffort), 100 * MIB, 2), "{served:?}");
    assert!(idle > 9 * SECOND);
}

#[test]
fn tenants_of_a_class_share_by_cost_whatever_they_send() {
    let mut s = Mclock::new(spec((0, 1, 0), (0, 1, 0), (0, 1, 0)));
    let busy: Vec<_> = (0..5).map(|t| (OpClass::Client, t, 4096 << t)).collect();
    let (served, _) = saturate(&mut s, &busy, 100 * MIB, 5 * SECOND);
    for t in 0..5 {
        assert!(near(served[&(OpClass::Client, t)], 100 * MIB, 2), "{served:?}");
    }
}

#[test]
fn a_pause_earns_nothing() {
    let mut s = Mclock::new(spec((0, 1, 0), (0, 1, 0), (0, 1, 0)));
    let mut now = 0;
    let mut early = 0;
    for round in 0..2000u64 {
        s.enqueue(op(1, OpClass::Client, 1, 4096), now);
        if round >= 1000 {
            s.enqueue(op(2, OpClass::Client, 2, 4096), now);
            s.enqueue(op(3, OpClass::BackgroundRecovery, 3, 4096), now);
            s.enqueue(op(3, OpClass::BackgroundRecovery, 3, 4096), now);
        }
        now += 1000;
        if let Dequeued::Item(o, _) = s.dequeue(now)
            && (1000..1400).contains(&round)
            && o.item == 1
        {
            early += 1;
        }
    }
    assert!(
        (90..=110).contains(&early),
        "tenant 1 was served {early} of 400 times, its share is a quarter"
    );
}

#[test]
fn profiles_are_those_of_the_release() {
    let ssd = Capacity::default_of(DeviceKind::Ssd);
    assert_eq!(ssd.cost_per_io(), 58525);
    assert_eq!(Capacity::default_of(DeviceKind::Hdd).cost_per_io(), 499321);
    let none = [(0.0, 1, 0.0); 3];
    let s = MclockProfile::HighClientOps.spec(ssd, none);
    assert_eq!((s.client.reservation, s.client.weight, s.client.limit), (754974720, 2, 0));
    assert_eq!(s.background_best_effort.limit, 880803840);
    assert_eq!(MclockProfile::from_name("balanced"), Some(MclockProfile::Balanced));
    let best_effort = |of| {
        let profiles =
            [MclockProfile::HighClientOps, MclockProfile::Balanced, MclockProfile::HighRecoveryOps];
        profiles.map(|p| p.parts(Allocations::from_name(of).unwrap(), none)[2])
    };
    assert_eq!(best_effort("reef"), [(0.0, 1, 0.7), (0.0, 1, 0.9), (0.0, 1, 0.0)]);
    assert_eq!(best_effort("quincy"), [(0.25, 2, 0.0), (0.2, 2, 0.0), (0.0, 2, 0.0)]);
    assert_eq!(best_effort("quincy_study"), [(0.25, 1, 0.3), (0.2, 1, 0.5), (0.1, 1, 0.4)]);
    let custom = MclockProfile::Custom.spec(ssd, [(0.1, 5, 0.2), (0.0, 1, 0.0), (0.0, 1, 0.0)]);
    assert_eq!((custom.client.weight, custom.client.limit), (5, 251658240));
    // A saturated device gives clients and recovery what the profile says.
    let mut s = Mclock::new(MclockProfile::HighClientOps.spec(ssd, none));
    let busy = [
        (OpClass::Client, 1, 65536),
        (OpClass::BackgroundRecovery, 2, 1 << 20),
        (OpClass::BackgroundBestEffort, 3, 65536),
    ];
    let (served, _) = saturate(&mut s, &busy, ssd.bandwidth, 5 * SECOND);
    assert!(by_class(&served, OpClass::Client) >= ssd.bandwidth * 5 * 59 / 100, "{served:?}");
    assert!(
        by_class(&served, OpClass::BackgroundRecovery) >= ssd.bandwidth * 5 * 39 / 100,
        "{served:?}"
    );
}

#[test]
fn weighted_priorities_serve_in_proportion() {
    let mut s = Wpq::new(cut_off::HIGH, 7);
    let mut served = BTreeMap::new();
    let put = |s: &mut Wpq<u64>, priority: u32| {
        s.enqueue(Op { priority, ..op(0, OpClass::Client, 1, 1000) }, 0)
    };
    for p in [10, 20, 70] {
        (0..4).for_each(|_| put(&mut s, p));
    }
    for _ in 0..100_000 {
        let Dequeued::Item(o, Phase::Weight) = s.dequeue(0) else { panic!("operations wait") };
        *served.entry(o.priority).or_insert(0u64) += 1;
        put(&mut s, o.priority);
    }
    assert!(
        near(served[&10], 10_000, 5)
            && near(served[&20], 20_000, 5)
            && near(served[&70], 70_000, 5),
        "{served:?}"
    );
}

#[test]
fn control_never_waits() {
    let all: [Box<dyn Scheduler<u64>>; 3] = [
        Box::new(Fifo::default()),
        Box::new(Wpq::new(cut_off::HIGH, 1)),
        Box::new(Mclock::new(spec((0, 1, 1), (0, 1, 1), (0, 1, 1)))),
    ];
    for mut s in all {
        for i in 0..100 {
            s.enqueue(op(i, OpClass::Client, i, 1 << 20), 0);
        }
        s.enqueue(op(1000, OpClass::Immediate, 0, 1), 0);
        assert!(matches!(s.dequeue(0), Dequeued::Item(Op { item: 1000, .. }, _)));
    }
}

fn any_class() -> impl Strategy<Value = OpClass> {
    prop_oneof![
        Just(OpClass::Client),
        Just(OpClass::BackgroundRecovery),
        Just(OpClass::BackgroundBestEffort),
        Just(OpClass::Immediate)
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever comes, everything is served that is not taken out, in order for each class, tenant,
    /// session and priority, and a scheduler without ceilings never waits.
    #[test]
    fn everything_is_served_in_order(
        arrivals in prop::collection::vec(
            (
                any_class(), (0u64..5, 0u64..20), 0u32..5_000_000, prop_oneof![Just(63u32), Just(10), Just(200)], 0u64..2, 0u64..20_000_000,
                prop::option::weighted(0.05, 1u64..4),
            ),
            1..400,
        ),
        rates in prop::collection::vec((0u64..200 * MIB, 0u32..20, 0u64..200 * MIB), 3),
        which in 0usize..3,
    ) {
        let spec = spec(rates[0], rates[1], rates[2]);
        let ceilings = which == 2 && rates.iter().any(|r| r.2 > 0);
        let mut s: Box<dyn Scheduler<u64>> = match which {
            0 => Box::new(Fifo::default()),
            1 => Box::new(Wpq::new(cut_off::HIGH, 3)),
            _ => Box::new(Mclock::new(spec)),
        };
        let mut now = 0u64;
        let mut waiting: BTreeMap<(OpClass, u64, u64, u32), VecDeque<u64>> = BTreeMap::new();
        let mut left = 0usize;
        let take = |s: &mut Box<dyn Scheduler<u64>>, now: &mut u64, left: &mut usize, waiting: &mut BTreeMap<_, VecDeque<u64>>| {
            match s.dequeue(*now) {
                Dequeued::Item(o, _) => {
                    let queue: &mut VecDeque<u64> = waiting.get_mut(&(o.class, o.tenant, if which == 2 { o.session } else { 0 }, o.priority)).unwrap();
                    assert_eq!(queue.pop_front(), Some(o.item));
                    *left -= 1;
                    *now += 1 + u64::from(o.cost) * 10;
                }
                Dequeued::WaitUntil(at) => {
                    assert!(ceilings && at > *now);
                    *now = at;
                }
                Dequeued::Empty => assert_eq!(*left, 0),
            }
            assert_eq!(s.len(), *left);
        };
        for (i, (class, (tenant, session), cost, priority, turns, pause, gone)) in arrivals.iter().enumerate() {
            // Only mClock has sessions.
            let (i, session) = (i as u64, if which == 2 { *session } else { 0 });
            s.enqueue(Op { item: i, class: *class, tenant: *tenant, session, cost: *cost, charge: 0, priority: *priority }, now);
            waiting.entry((*class, *tenant, session, *priority)).or_default().push_back(i);
            left += 1;
            for _ in 0..*turns {
                take(&mut s, &mut now, &mut left, &mut waiting);
            }
            if let Some(each) = gone {
                let is_gone = |item: &u64| item.is_multiple_of(*each);
                let mut out = s.take_out(&mut |item| is_gone(item), now);
                let mut wanted: Vec<u64> = waiting.values().flatten().copied().filter(is_gone).collect();
                waiting.values_mut().for_each(|q| q.retain(|item| !is_gone(item)));
                out.sort_unstable(); wanted.sort_unstable();
                left -= out.len();
                prop_assert_eq!((out, s.len()), (wanted, left));
            }
            now += pause;
        }
        let mut steps = 0;
        while left > 0 {
            take(&mut s, &mut now, &mut left, &mut waiting);
            steps += 1;
            prop_assert!(steps <= 4 * arrivals.len(), "the queue does not drain");
        }
    }

    /// With every class busy, floors that fit the device are kept whatever the weights are.
    #[test]
    fn floors_are_kept(
        parts in prop::collection::vec(1u64..30, 3),
        weights in prop::collection::vec(1u32..1000, 3),
        costs in prop::collection::vec(1u32..200_000, 3),
    ) {
        let capacity = 100 * MIB;
        let class = |i: usize| (parts[i] * MIB, weights[i], 0);
        let mut s = Mclock::new(spec(class(0), class(1), class(2)));
        let busy: Vec<_> = OpClass::SHARED.iter().enumerate().map(|(i, c)| (*c, i as u64, costs[i].max(2000))).collect();
        let (served, idle) = saturate(&mut s, &busy, capacity, 2 * SECOND);
        prop_assert_eq!(idle, 0);
        for (i, c) in OpClass::SHARED.iter().enumerate() {
            let bytes = by_class(&served, *c);
            let slack = 2 * costs.iter().map(|c| u64::from(*c).max(2000)).sum::<u64>();
            prop_assert!(bytes + slack >= 2 * parts[i] * MIB * 98 / 100, "{:?}: {} of {}", c, bytes, 2 * parts[i] * MIB);
        }
    }

    /// No class goes over its ceiling by more than one operation.
    #[test]
    fn ceilings_are_kept(
        limits in prop::collection::vec(1u64..50, 3),
        costs in prop::collection::vec(4096u32..2_000_000, 3),
    ) {
        let class = |i: usize| (0, 1, limits[i] * MIB);
        let mut s = Mclock::new(spec(class(0), class(1), class(2)));
        let busy: Vec<_> = OpClass::SHARED.iter().enumerate().map(|(i, c)| (*c, i as u64, costs[i])).collect();
        let (served, _) = saturate(&mut s, &busy, 400 * MIB, 3 * SECOND);
        for (i, c) in OpClass::SHARED.iter().enumerate() {
            let bytes = by_class(&served, *c);
            prop_assert!(bytes <= 3 * limits[i] * MIB + 2 * u64::from(costs[i]), "{:?}: {}", c, bytes);
            prop_assert!(bytes + 2 * u64::from(costs[i]) >= 3 * limits[i] * MIB * 98 / 100, "{:?}: {}", c, bytes);
        }
    }
}
