//! What tenants of a class are promised, in virtual time: a device serves one operation after the
//! other.
#![allow(missing_docs)]

use proptest::prelude::*;
use qos::{
    ClassSpec, Dequeued, Mclock, MclockSpec, Op, OpClass, Pace, Phase, Scheduler, TenantSpec,
};
use std::collections::{BTreeMap, VecDeque};

const SECOND: u64 = 1_000_000_000;
/// What was asked for late by so much is made up for.
const LATE: u64 = 2_000_000;

fn op(item: u64, tenant: u64, session: u64, cost: u32) -> Op<u64> {
    Op { item, class: OpClass::Client, tenant, session, cost, charge: 0, priority: 63 }
}

fn free() -> Mclock<u64> {
    let class = ClassSpec { reservation: 0, weight: 1, limit: 0 };
    Mclock::new(MclockSpec {
        client: class,
        background_recovery: class,
        background_best_effort: class,
        cost_per_io: 4096,
    })
}

fn iops(n: u64) -> Pace {
    Pace { iops_milli: n * 1000, bps: 0 }
}

fn spec(floor: u64, weight: u32, ceiling: u64) -> TenantSpec {
    TenantSpec { floor: iops(floor), weight, ceiling: iops(ceiling) }
}

/// A closed loop: `depth` operations of a session are always under way.
#[derive(Clone, Copy, Debug)]
struct Load {
    class: OpClass,
    tenant: u64,
    session: u64,
    cost: u32,
    depth: u32,
}

fn load(tenant: u64, session: u64, depth: u32) -> Load {
    Load { class: OpClass::Client, tenant, session, cost: 4096, depth }
}

/// When each operation of a tenant and session was served.
type Served = BTreeMap<(OpClass, u64, u64), Vec<u64>>;

/// Runs loads on a device that takes `nanos` for each 4 KiB; returns the order and times of
/// service, and the time in which the device had nothing to do.
fn run(s: &mut Mclock<u64>, loads: &[Load], nanos: u64, duration: u64) -> (Served, u64) {
    let (mut served, mut idle, mut now) = (Served::new(), 0, 0);
    for (i, l) in loads.iter().enumerate() {
        for _ in 0..l.depth {
            s.enqueue(Op { class: l.class, ..op(i as u64, l.tenant, l.session, l.cost) }, now);
        }
    }
    while now < duration {
        match s.dequeue(now) {
            Dequeued::Item(o, _) => {
                served.entry((o.class, o.tenant, o.session)).or_default().push(now);
                now += nanos * u64::from(o.cost.max(4096)) / 4096;
                s.enqueue(o, now);
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

#[test]
fn who_needed_his_floor_for_long_has_his_share_soon_when_it_is_gone() {
    let mut s = free();
    // A floor far above the share, for a minute; then it is another OSD's.
    s.set_tenant(OpClass::Client, 1, spec(700, 100, 0), 0);
    let (served, _) = run(&mut s, &[load(1, 1, 16), load(2, 2, 16)], 1_000_000, 60 * SECOND);
    assert!(of(&served, 1) >= 41_000, "{}", of(&served, 1));
    s.set_tenant(OpClass::Client, 1, TenantSpec::default(), 60 * SECOND);
    let (mut now, mut got) = (60 * SECOND, [0; 2]);
    while now < 61 * SECOND {
        let Dequeued::Item(o, _) = s.dequeue(now) else { panic!("operations wait") };
        got[o.tenant as usize - 1] += 1;
        now += 1_000_000;
        s.enqueue(o, now);
    }
    assert!(got[0] >= 450, "{got:?}");
}

fn of(served: &Served, tenant: u64) -> usize {
    served.iter().filter(|((_, t, _), _)| *t == tenant).map(|(_, ops)| ops.len()).sum()
}

#[test]
fn sixteen_sessions_get_no_more_than_one() {
    for sessions in [1, 16, 64] {
        let mut s = free();
        let loads: Vec<Load> =
            [load(1, 0, 16)].into_iter().chain((1..=sessions).map(|n| load(2, n, 16))).collect();
        let (served, _) = run(&mut s, &loads, 10_000, SECOND);
        assert!(of(&served, 1).abs_diff(50_000) <= 2, "{} of 100000", of(&served, 1));
        let most =
            served.iter().filter(|((_, t, _), _)| *t == 2).map(|(_, ops)| ops.len()).max().unwrap();
        assert!(most <= 50_000 / sessions as usize + 2, "sessions of a tenant are alike");
    }
}

#[test]
fn a_session_with_small_operations_is_not_behind_one_with_large_ones() {
    let mut s = free();
    let loads = [load(1, 1, 64), Load { cost: 1 << 20, ..load(1, 2, 4) }];
    let (served, _) = run(&mut s, &loads, 1_000, SECOND);
    let (small, large) =
        (served[&(OpClass::Client, 1, 1)].len(), served[&(OpClass::Client, 1, 2)].len() * 256);
    assert!(small.abs_diff(large) < 1000, "{small} {large}");
}

#[test]
fn a_floor_holds_against_weights_and_against_background_work() {
    let mut s = free();
    s.set_tenant(OpClass::Client, 1, spec(40_000, 1, 0), 0);
    s.set_tenant(OpClass::Client, 2, spec(0, 10_000, 0), 0);
    let background = |class| Load { class, cost: 65536, ..load(9, 0, 8) };
    let loads = [
        load(1, 0, 4),
        load(2, 0, 64),
        background(OpClass::BackgroundRecovery),
        background(OpClass::BackgroundBestEffort),
    ];
    let (served, _) = run(&mut s, &loads, 10_000, SECOND);
    assert!((39_200..=40_500).contains(&of(&served, 1)), "{}", of(&served, 1));
    // It is what the tenant gets at least, not something on top of its share.
    let mut s = free();
    s.set_tenant(OpClass::Client, 1, spec(20_000, 100, 0), 0);
    let (served, _) = run(&mut s, &[load(1, 0, 8), load(2, 0, 8)], 10_000, SECOND);
    assert!(of(&served, 1).abs_diff(50_000) < 500, "{}", of(&served, 1));
}

#[test]
fn who_begins_has_a_short_burst_of_its_floor_at_once_and_then_its_floor() {
    // A device that takes a millisecond for each operation, and a neighbour that always has many
    // waiting.
    let mut s = free();
    s.set_tenant(OpClass::Client, 1, spec(400, 1, 0), 0);
    s.set_tenant(OpClass::Client, 2, spec(0, 10_000, 0), 0);
    let (mut now, nanos) = (0, SECOND / 1000);
    for i in 0..64 {
        s.enqueue(op(i, 2, 0, 4096), now);
    }
    for pause in [SECOND, 600 * SECOND] {
        now += pause;
        let begin = now;
        for i in 0..64 {
            s.enqueue(op(i, 1, 0, 4096), now);
        }
        let mut tenths = [0; 4];
        while now < begin + 4 * SECOND / 10 {
            let Dequeued::Item(o, _) = s.dequeue(now) else { panic!("operations wait") };
            if o.tenant == 1 {
                tenths[((now - begin) / (SECOND / 10)) as usize] += 1;
            }
            now += nanos;
            s.enqueue(o, now);
        }
        assert!((58..=63).contains(&tenths[0]), "{tenths:?}");
        assert!(tenths[1..].iter().all(|n| (39..=42).contains(n)), "{tenths:?}");
        // Its operations end, and it has no demand any more.
        let rest = s.drain(OpClass::Client);
        for o in rest.into_iter().filter(|o| o.tenant == 2) {
            s.enqueue(o, now);
        }
    }
}

/// Parts of a floor go from one OSD to another several times a second. What is owed then is the
/// same amount: a moment that was owed at a low rate is not paid at a high one, and what was paid
/// at a high one is not forgotten at a low one.
#[test]
fn a_floor_that_goes_up_and_down_is_worth_its_mean() {
    let (mut s, mut now, mut had, mut turn) = (free(), 0, 0, 0);
    s.set_tenant(OpClass::Client, 2, spec(0, 10_000, 0), 0);
    for tenant in [1, 2] {
        for item in 0..50 {
            s.enqueue(op(item, tenant, tenant, 4096), now);
        }
    }
    while now < 20 * SECOND {
        if now / (SECOND / 10) >= turn {
            turn += 1;
            s.set_tenant(OpClass::Client, 1, spec(if turn % 2 == 0 { 10 } else { 190 }, 1, 0), now);
        }
        let Dequeued::Item(o, _) = s.dequeue(now) else { panic!("something always waits") };
        had += u64::from(o.tenant == 1);
        now += SECOND / 1000;
        s.enqueue(o, now);
    }
    assert!((1960..=2200).contains(&had), "{had} in twenty seconds");
}

#[test]
fn floors_that_do_not_fit_fall_behind_alike() {
    let mut s = free();
    s.set_tenant(OpClass::Client, 1, spec(120_000, 1, 0), 0);
    s.set_tenant(OpClass::Client, 2, spec(60_000, 1000, 0), 0);
    let (served, _) = run(&mut s, &[load(1, 0, 8), load(2, 0, 8)], 10_000, SECOND);
    let (a, b) = (of(&served, 1), of(&served, 2));
    assert!(a.abs_diff(2 * b) < 2000, "{a} {b}");
}

#[test]
fn a_new_tenant_is_not_behind_one_that_had_a_floor_nor_ahead() {
    let mut s = free();
    s.set_tenant(OpClass::Client, 1, spec(90_000, 1, 0), 0);
    run(&mut s, &[load(1, 0, 8), load(2, 0, 8)], 10_000, SECOND);
    s.set_tenant(OpClass::Client, 1, TenantSpec::default(), SECOND);
    let start = SECOND;
    for _ in 0..8 {
        s.enqueue(op(0, 3, 0, 4096), start);
    }
    let (mut count, mut now) = (BTreeMap::<u64, u64>::new(), start);
    for _ in 0..30_000 {
        let Dequeued::Item(o, _) = s.dequeue(now) else { panic!("operations wait") };
        *count.entry(o.tenant).or_default() += 1;
        now += 10_000;
        s.enqueue(o, now);
    }
    assert!(count[&3].abs_diff(count[&2]) <= 2, "{count:?}");
}

/// Runs a device that takes a millisecond for each operation, where tenant 2 always has many
/// waiting and tenant 1 asks at these times. How long each of tenant 1's waited.
fn beside_many(times: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut s = free();
    (0..64).for_each(|n| s.enqueue(op(0, 2, n, 4096), 0));
    let (mut times, mut now, mut waited) = (times.peekable(), 0, Vec::new());
    while times.peek().is_some() || s.tenant_len(OpClass::Client, 1) > 0 {
        while let Some(at) = times.next_if(|at| *at <= now) {
            s.enqueue(op(at, 1, 0, 4096), at);
        }
        let Dequeued::Item(o, _) = s.dequeue(now) else { panic!("operations wait") };
        if o.tenant == 1 {
            waited.push(now - o.item);
        } else {
            s.enqueue(o, now);
        }
        now += 1_000_000;
    }
    waited
}

#[test]
fn who_asks_for_less_than_his_share_is_next() {
    // A quarter of the device, where half would be his: three at a time, each 12 ms. At the first
    // time he is not known yet.
    let waited = beside_many((1..500).flat_map(|n| [n * 12_000_000 + 1; 3]));
    assert_eq!(waited.len(), 1497);
    assert!(waited[3..].iter().all(|w| *w < 3_000_000), "{:?}", waited[3..].iter().max());
}

#[test]
fn a_short_pause_earns_some_operations_and_no_more() {
    // After half of a tenth of a second without any a hundred at once: thirty-two of them go before
    // others, then they take turns.
    let waited = beside_many([1; 20].into_iter().chain([90_000_001; 100]));
    let late = &waited[20..];
    let ahead = late.windows(2).take_while(|w| w[1] - w[0] == 1_000_000).count() + 1;
    assert!((32..=33).contains(&ahead), "{ahead}");
    assert!(late[ahead..].windows(2).all(|w| w[1] - w[0] == 2_000_000), "{late:?}");
    // After a longer one it is the first's turn, and maybe the second's; then they take turns.
    let waited = beside_many([1; 20].into_iter().chain([200_000_001; 100]));
    assert!(waited[21..].windows(2).all(|w| w[1] - w[0] == 2_000_000), "{waited:?}");
}

/// For ten seconds another tenant has many waiting, and of tenant 1 comes one each so many
/// nanoseconds. How long each of these waited, and how many of the others were served.
fn beside_many_below_a_ceiling(s: &mut Mclock<u64>, each: u64) -> (Vec<u64>, u64) {
    (0..64).for_each(|n| s.enqueue(op(0, 2, n, 4096), 0));
    let (mut now, mut mine, mut others, mut waited) = (0, 1, 0u64, Vec::new());
    while now < 10 * SECOND {
        // Its times are none of those at which the ceiling lets an operation go.
        let next = mine * each + mine % 7 * 300_000;
        if next <= now {
            s.enqueue(op(next, 1, 0, 4096), next);
            mine += 1;
            continue;
        }
        match s.dequeue(now) {
            Dequeued::Item(o, _) if o.tenant == 1 => waited.push(now - o.item),
            Dequeued::Item(o, _) => {
                others += 1;
                s.enqueue(o, now);
            }
            Dequeued::WaitUntil(at) => now = at.min(next),
            Dequeued::Empty => panic!("operations wait"),
        }
    }
    (waited, others)
}

#[test]
fn who_asks_for_less_than_his_share_waits_for_no_ceiling_of_all() {
    // The class may do 500 operations a second, and another tenant has many waiting. Of tenant 1
    // comes one every 8 ms: a quarter.
    let class = ClassSpec { reservation: 0, weight: 1, limit: 0 };
    let limited = ClassSpec { limit: 500 * 4096, ..class };
    let new = || {
        Mclock::new(MclockSpec {
            client: limited,
            background_recovery: class,
            background_best_effort: class,
            cost_per_io: 4096,
        })
    };
    let (waited, others) = beside_many_below_a_ceiling(&mut new(), 8_000_000);
    assert!(waited[1..].iter().all(|w| *w == 0), "{waited:?}");
    let all = others + waited.len() as u64;
    assert!(all.abs_diff(5000) <= 17, "{all} with a ceiling of 5000");

    // A tenant that asks so seldom that it is a pause each time waits as little.
    let (waited, _) = beside_many_below_a_ceiling(&mut new(), 150_000_000);
    assert!(waited.len() > 60 && waited[1..].iter().all(|w| *w == 0), "{waited:?}");

    // A tenant that asks for more than its share gets that, and the ceiling holds for both
    // together.
    let (served, _) = run(&mut new(), &[load(1, 0, 8), load(2, 0, 64)], 10, 10 * SECOND);
    let (mine, others) = (of(&served, 1), of(&served, 2));
    assert!(mine.abs_diff(others) <= 17 && (mine + others).abs_diff(5000) <= 17, "{mine} {others}");

    // Where there is room, no operation waits for others of the same moment.
    let mut s = new();
    for begin in (1..100).map(|n| n * SECOND / 10) {
        (0..16).for_each(|n| s.enqueue(op(0, n % 2, 0, 4096), begin));
        (0..16).for_each(|_| assert!(matches!(s.dequeue(begin), Dequeued::Item(..))));
    }
    // More than that is not saved.
    let begin = 20 * SECOND;
    (0..24).for_each(|_| s.enqueue(op(0, 1, 0, 4096), begin));
    let at_once = (0..24).take_while(|_| matches!(s.dequeue(begin), Dequeued::Item(..))).count();
    assert_eq!(at_once, 17);
}

#[test]
fn only_who_had_less_than_others_goes_beyond_what_is_in_execution() {
    let mut s = free();
    (0..64).for_each(|n| s.enqueue(op(n, 2, n % 16, 4096), 0));
    s.enqueue(Op { class: OpClass::BackgroundRecovery, ..op(0, 9, 0, 4096) }, 0);
    assert!(s.dequeue_behind(0).is_none(), "nobody has had anything");
    for _ in 0..32 {
        assert!(matches!(s.dequeue(0), Dequeued::Item(..)));
    }
    assert!(s.dequeue_behind(0).is_none(), "there is nobody else");
    // A tenant that was there before comes back: three of its operations go, and none of the
    // others'.
    s.set_tenant(OpClass::Client, 1, spec(0, 100, 0), 0);
    s.enqueue(op(0, 1, 0, 4096), 1000);
    while s.tenant_len(OpClass::Client, 1) > 0 {
        assert!(matches!(s.dequeue(1000), Dequeued::Item(..)));
    }
    (0..8).for_each(|_| assert!(matches!(s.dequeue(1000), Dequeued::Item(..))));
    (0..3).for_each(|n| s.enqueue(op(n, 1, 0, 4096), 2000));
    let gone: Vec<u64> = std::iter::from_fn(|| s.dequeue_behind(2000))
        .map(|(o, phase)| {
            assert_eq!(phase, Phase::Weight);
            o.tenant
        })
        .collect();
    assert_eq!(gone, [1, 1, 1]);
    assert!(s.tenant_len(OpClass::Client, 2) > 0 && s.class_len(OpClass::BackgroundRecovery) == 0);
}

#[test]
fn who_had_less_than_others_is_behind_them_also_where_requests_come_alone() {
    // An OSD that has time: of tenant 2 five come together, then one of tenant 1, which does not
    // wait.
    let mut s = free();
    for n in 0..20 {
        let at = n * 20_000_000;
        for tenant in [2, 2, 2, 2, 2, 1] {
            s.enqueue(op(0, tenant, 0, 4096), at);
            assert!(matches!(s.dequeue(at), Dequeued::Item(..)));
        }
    }
    // Then all of it is asked for: tenant 1 has sixteen to its good.
    let at = 400_000_000;
    for tenant in [2, 1] {
        (0..20).for_each(|n| s.enqueue(op(n, tenant, 0, 4096), at));
    }
    let first: Vec<u64> = (0..20)
        .map(|_| if let Dequeued::Item(o, _) = s.dequeue(at) { o.tenant } else { 0 })
        .collect();
    assert!(first[..15].iter().all(|t| *t == 1), "{first:?}");
}

#[test]
fn when_all_have_had_their_turn_all_begin_alike() {
    let mut s = free();
    // A tenant of weight 1, with a share clock that goes far with an operation; then nothing waits.
    s.set_tenant(OpClass::Client, 9, spec(0, 1, 0), 0);
    for tenant in [9, 1, 2] {
        s.enqueue(op(0, tenant, 0, 4096), 0);
    }
    while let Dequeued::Item(..) = s.dequeue(0) {}
    let (served, _) = run(&mut s, &[load(1, 0, 64), load(2, 0, 64)], 1_000_000, SECOND / 10);
    assert!(
        of(&served, 1).abs_diff(of(&served, 2)) <= 2 * 16,
        "{} {}",
        of(&served, 1),
        of(&served, 2)
    );
}

#[test]
fn who_has_few_under_way_on_many_osds_has_his_share() {
    // Sixteen operations under way over four devices, each goes to any of them when the last one
    // has ended; beside a tenant with many. Devices work in step.
    let mut devices: Vec<Mclock<u64>> = (0..4).map(|_| free()).collect();
    let mut random = 1u64;
    let mut any = || {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (random >> 33) as usize % 4
    };
    (0..256).for_each(|n| devices[any()].enqueue(op(n, 2, n % 16, 4096), 0));
    (0..16).for_each(|n| devices[any()].enqueue(op(n, 1, 0, 4096), 0));
    let mut got = [0u64; 2];
    for tick in 0..20_000u64 {
        for d in 0..4 {
            let Dequeued::Item(o, _) = devices[d].dequeue(tick * 1_000_000) else { continue };
            got[o.tenant as usize - 1] += 1;
            devices[any()].enqueue(o, tick * 1_000_000);
        }
    }
    assert!(got[0] * 1000 >= 475 * (got[0] + got[1]), "{got:?}");
}

#[test]
fn idle_tenants_are_forgotten_little_by_little() {
    let mut s = free();
    s.set_tenant(OpClass::Client, 7, spec(0, 500, 0), 0);
    for t in 0..10_000 {
        s.enqueue(op(t, t, t, 4096), 0);
    }
    while let Dequeued::Item(..) = s.dequeue(0) {}
    assert_eq!(s.tenants(OpClass::Client), 10_000);
    // Two are looked at with each operation that comes.
    for i in 0..2_500u64 {
        s.enqueue(op(0, 1 << 40, 1, 4096), 20 * SECOND + i);
        assert!(matches!(s.dequeue(20 * SECOND + i), Dequeued::Item(..)));
    }
    assert!(
        (4_990..=5_010).contains(&s.tenants(OpClass::Client)),
        "{}",
        s.tenants(OpClass::Client)
    );
    for i in 0..20_000u64 {
        s.enqueue(op(0, 1 << 40, 1, 4096), 21 * SECOND + i);
        assert!(matches!(s.dequeue(21 * SECOND + i), Dequeued::Item(..)));
    }
    assert_eq!(s.tenants(OpClass::Client), 2, "the one in use and the one with a promise");
}

#[test]
fn what_was_drained_keeps_its_order() {
    let mut s = free();
    for i in 0..1000u64 {
        s.enqueue(op(i, i % 3, i % 20, 4096), 0);
    }
    let all = s.drain(OpClass::Client);
    assert_eq!((all.len(), s.len(), s.dequeue(0)), (1000, 0, Dequeued::Empty));
    let mut last = BTreeMap::new();
    for o in all {
        assert!(last.insert((o.tenant, o.session), o.item).is_none_or(|before| before < o.item));
        s.enqueue(Op { tenant: 5, ..o }, 1);
    }
    assert_eq!(
        std::iter::from_fn(|| match s.dequeue(1) {
            Dequeued::Item(o, _) => Some(o),
            _ => None,
        })
        .count(),
        1000
    );
}

fn any_spec() -> impl Strategy<Value = TenantSpec> {
    (0u64..4000, 1u32..1000, prop_oneof![Just(0u64), 4000u64..9000])
        .prop_map(|(f, w, c)| spec(f, w, c))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// Shares follow weights within 2 percent, for any number of sessions and any size of
    /// operations.
    #[test]
    fn shares_follow_weights(tenants in prop::collection::vec((10u32..200, 1u64..20, 4096u32..65536), 2..12)) {
        let mut s = free();
        let mut loads = Vec::new();
        for (t, (weight, sessions, cost)) in tenants.iter().enumerate() {
            s.set_tenant(OpClass::Client, t as u64, spec(0, *weight, 0), 0);
            loads.extend((0..*sessions).map(|n| Load { cost: *cost, ..load(t as u64, n, 2) }));
        }
        let (served, idle) = run(&mut s, &loads, 1_000, SECOND);
        prop_assert_eq!(idle, 0);
        let bytes: Vec<u64> = tenants.iter().enumerate().map(|(t, (.., cost))| of(&served, t as u64) as u64 * u64::from(*cost)).collect();
        let (all, weights): (u64, u64) = (bytes.iter().sum(), tenants.iter().map(|t| u64::from(t.0)).sum());
        for (t, (weight, ..)) in tenants.iter().enumerate() {
            let wanted = all as f64 * f64::from(*weight) / weights as f64;
            prop_assert!((bytes[t] as f64 - wanted).abs() <= wanted * 0.02, "{t}: {} of {wanted}", bytes[t]);
        }
    }

    /// Floors that fit are met, ceilings are not exceeded in any window, and the device is not idle
    /// while a tenant is below its ceiling.
    #[test]
    fn floors_and_ceilings(tenants in prop::collection::vec((any_spec(), 1u64..4), 1..12)) {
        let mut s = free();
        let mut loads = Vec::new();
        for (t, (spec, sessions)) in tenants.iter().enumerate() {
            s.set_tenant(OpClass::Client, t as u64, *spec, 0);
            loads.extend((0..*sessions).map(|n| load(t as u64, n, 4)));
        }
        // 50000 operations each second: more than all floors together.
        let (served, idle) = run(&mut s, &loads, 20_000, SECOND);
        let mut most = 0;
        for (t, (spec, _)) in tenants.iter().enumerate() {
            let mut at: Vec<u64> = served.iter().filter(|((_, x, _), _)| *x == t as u64).flat_map(|(_, v)| v.clone()).collect();
            at.sort();
            let floor = spec.floor.iops_milli / 1000;
            prop_assert!(at.len() as u64 * 100 + 200 >= floor * 98, "{t}: {} of {floor}", at.len());
            let ceiling = spec.ceiling.iops_milli / 1000;
            if ceiling == 0 {
                most = u64::MAX;
                continue;
            }
            most = u64::saturating_add(most, ceiling);
            for window in [SECOND / 100, SECOND / 10, SECOND] {
                let mut inside: VecDeque<u64> = VecDeque::new();
                for t in &at {
                    inside.push_back(*t);
                    while inside.front().is_some_and(|f| f + window <= *t) {
                        inside.pop_front();
                    }
                    prop_assert!(inside.len() as u64 <= ceiling * (window + LATE) / SECOND + 2, "{} in {window}, {ceiling}", inside.len());
                }
            }
        }
        if most >= 50_000 {
            prop_assert_eq!(idle, 0);
        }
    }

    /// Tenants without promises are served all the same while others ask, by floors that do not
    /// fit, for more than there is: one operation a second is for those, in turns.
    #[test]
    fn nobody_starves_beside_floors_that_do_not_fit(
        floors in prop::collection::vec(500u64..4000, 1..5),
        none in 1u64..5,
        depth in 1u32..32,
    ) {
        let mut s = free();
        let mut loads: Vec<Load> = Vec::new();
        for (tenant, floor) in floors.iter().enumerate() {
            s.set_tenant(OpClass::Client, tenant as u64, spec(*floor * 2, 100, 0), 0);
            loads.push(load(tenant as u64, 0, depth));
        }
        let others = floors.len() as u64..floors.len() as u64 + none;
        loads.extend(others.clone().map(|tenant| load(tenant, 0, 1)));
        // A thousand a second are possible, and at least as many promised.
        let (served, _) = run(&mut s, &loads, 1_000_000, 20 * SECOND);
        let turn = (loads.len() as u64 + 2) * SECOND;
        for l in &loads {
            let at = served.get(&(OpClass::Client, l.tenant, 0)).cloned().unwrap_or_default();
            let longest = at.iter().zip([0].iter().chain(&at)).map(|(t, before)| t - before).chain([20 * SECOND - at.last().unwrap_or(&0)]).max();
            prop_assert!(longest.is_some_and(|l| l <= turn), "{:?} of {}", longest, l.tenant);
        }
        // It costs tenants with promises little.
        let promised: usize = (0..floors.len() as u64).map(|t| of(&served, t)).sum();
        prop_assert!(promised >= 20_000 - 25, "{promised}");
    }

    /// Every operation is served within bounded time, whatever others do and however promises
    /// change: what was before it in its session, and a turn of every other tenant for each of
    /// those.
    #[test]
    fn everybody_is_served(
        steps in prop::collection::vec((0u64..6, 0u64..12, 1u32..200_000, 0u32..6, 0usize..40), 1..400),
        specs in prop::collection::vec(any_spec(), 1..40),
    ) {
        let mut s = free();
        let mut waiting: BTreeMap<(u64, u64), VecDeque<u64>> = BTreeMap::new();
        let (mut now, mut left) = (0u64, 0usize);
        let take = |s: &mut Mclock<u64>, now: &mut u64, waiting: &mut BTreeMap<(u64, u64), VecDeque<u64>>| match s.dequeue(*now) {
            Dequeued::Item(o, phase) => {
                assert_ne!(phase, Phase::Strict);
                assert_eq!(waiting.get_mut(&(o.tenant, o.session)).unwrap().pop_front(), Some(o.item));
                *now += 1000;
                true
            }
            Dequeued::WaitUntil(at) => {
                assert!(at > *now && at <= *now + SECOND, "{at} at {now}");
                *now = at;
                false
            }
            Dequeued::Empty => {
                assert!(waiting.values().all(VecDeque::is_empty));
                *now += 1000;
                false
            }
        };
        for (i, (tenant, session, cost, turns, change)) in steps.iter().enumerate() {
            s.enqueue(op(i as u64, *tenant, *session, *cost), now);
            waiting.entry((*tenant, *session)).or_default().push_back(i as u64);
            left += 1;
            if let Some(spec) = specs.get(*change) {
                s.set_tenant(OpClass::Client, *tenant, *spec, now);
            } else if *change < 20 {
                s.set_tenant(OpClass::Client, *tenant, TenantSpec::default(), now);
            }
            for _ in 0..*turns {
                left -= usize::from(take(&mut s, &mut now, &mut waiting));
            }
            prop_assert_eq!(s.len(), left);
        }
        let mut rounds = 0;
        while left > 0 {
            left -= usize::from(take(&mut s, &mut now, &mut waiting));
            rounds += 1;
            prop_assert!(rounds <= 4 * steps.len(), "it does not drain");
        }
        prop_assert_eq!(s.dequeue(now), Dequeued::Empty);
    }
}

/// A tenant gets fewer operations if they turn out to cost more than was charged, and more if it
/// was charged too much.
#[test]
fn what_operations_really_cost_is_settled() {
    let class = ClassSpec { reservation: 0, weight: 1, limit: 0 };
    for (really, expected) in [(3 * 65536, 0.25), (65536, 0.5), (65536 / 4, 0.8)] {
        let mut s = Mclock::new(MclockSpec {
            client: class,
            background_recovery: class,
            background_best_effort: class,
            cost_per_io: 1,
        });
        (0..64u64).for_each(|i| s.enqueue(Op { charge: 65536, ..op(i, i % 2, i % 2, 4096) }, 0));
        let mut served = [0u32; 2];
        for now in 1..20_000 {
            let Dequeued::Item(o, phase) = s.dequeue(now) else { panic!("operations wait") };
            served[o.tenant as usize] += 1;
            assert_eq!(o.charge, 65536);
            if o.tenant == 0 {
                s.settle(o.class, 0, o.charge, really, phase);
            }
            s.enqueue(o, now);
        }
        let part = f64::from(served[0]) / f64::from(served[0] + served[1]);
        assert!((expected - 0.02..expected + 0.02).contains(&part), "{really}: {part}");
    }
}

/// Classes, too: a scan that reads more than was expected gives way to clients for as long.
#[test]
fn classes_settle_as_well() {
    let class = |reservation, limit| ClassSpec { reservation, weight: 1, limit };
    let mut s = Mclock::new(MclockSpec {
        client: class(0, 0),
        background_recovery: class(0, 0),
        background_best_effort: class(0, 65536 * 100),
        cost_per_io: 1,
    });
    let scan = Op { class: OpClass::BackgroundBestEffort, charge: 65536, ..op(0, 1, 0, 4096) };
    s.enqueue(scan, 0);
    let Dequeued::Item(o, phase) = s.dequeue(0) else { panic!("it may go on") };
    // It was ten times as much: at a hundred each second it goes on after a tenth of one.
    s.settle(o.class, o.tenant, o.charge, 10 * 65536, phase);
    s.enqueue(o, 1);
    assert_eq!(s.dequeue(1), Dequeued::WaitUntil(100_000_000));
    // What went before everything was not charged.
    s.settle(OpClass::BackgroundBestEffort, 1, 0, 1 << 30, Phase::Strict);
    assert_eq!(s.dequeue(1), Dequeued::WaitUntil(100_000_000));
}
