//! What ceilings promise, in virtual time.
#![allow(missing_docs)]

use proptest::prelude::*;
use qos::{Access, Ceilings, Demand, Limits, Rate, TenantId, split};
use std::collections::VecDeque;

const MILLI: u64 = 1_000_000;
const SECOND: u64 = 1000 * MILLI;

fn iops(n: u64) -> Limits {
    Limits { iops: Rate::new(n, 0, 1), ..Limits::default() }
}

/// One operation that went: when, what, how many bytes.
type Served = (u64, Access, u64);

/// A client that keeps `depth` operations under way, each of which takes 100 µs once it may go;
/// `late` is how late the clock wakes up. Returns what was served until `end`.
fn closed_loop(
    c: &mut Ceilings<(Access, u64)>,
    id: TenantId,
    ops: &[(Access, u64)],
    depth: usize,
    late: u64,
    start: u64,
    end: u64,
) -> Vec<Served> {
    let mut served = Vec::new();
    let mut now = start;
    let mut pattern = ops.iter().cycle();
    // Operations that are done at these times, and followed by another.
    let mut done: VecDeque<u64> = (0..depth).map(|_| start).collect();
    while now < end {
        while done.front().is_some_and(|at| *at <= now) {
            done.pop_front();
            let op = *pattern.next().unwrap();
            if let Some((access, bytes)) = c.offer(id, Demand::new(op.0, op.1), op, now) {
                served.push((now, access, bytes));
                done.push_back(now + MILLI / 10);
            }
        }
        while let Some((access, bytes)) = c.release(now, |_| true) {
            served.push((now, access, bytes));
            done.push_back(now + MILLI / 10);
        }
        let next = [done.front().copied(), c.next_due().map(|at| at + late)]
            .into_iter()
            .flatten()
            .min()
            .unwrap();
        assert!(
            next > now
                || done.front().is_some_and(|at| *at <= now)
                || c.next_due().is_some_and(|at| at > now)
        );
        now = next.max(now + 1);
    }
    served
}

/// The most that any second in `from..` had.
fn most_in_a_second(served: &[Served], from: u64, amount: impl Fn(&Served) -> u64) -> u64 {
    let served: Vec<&Served> = served.iter().filter(|s| s.0 >= from).collect();
    let (mut most, mut sum, mut first) = (0, 0, 0);
    for s in &served {
        sum += amount(s);
        while s.0 - served[first].0 >= SECOND {
            sum -= amount(served[first]);
            first += 1;
        }
        most = most.max(sum);
    }
    most
}

#[test]
fn a_busy_tenant_gets_its_ceiling_and_no_more() {
    for limit in [1, 7, 100, 5000] {
        let mut c = Ceilings::default();
        let id = c.add(iops(limit), 0);
        let served = closed_loop(&mut c, id, &[(Access::Write, 4096)], 16, MILLI, 0, 10 * SECOND);
        let most = most_in_a_second(&served, 0, |_| 1);
        assert!(most <= limit + limit * 2 / 100 + 1, "{most} in a second, the ceiling is {limit}");
        assert!(served.len() as u64 >= 10 * limit * 99 / 100, "{} in ten seconds", served.len());
    }
}

#[test]
fn bytes_and_both_kinds_of_access_have_ceilings() {
    let limits = Limits {
        bps: Rate::new(1 << 20, 0, 1),
        read_iops: Rate::new(10, 0, 1),
        ..Limits::default()
    };
    let mut c = Ceilings::default();
    let id = c.add(limits, 0);
    let served = closed_loop(
        &mut c,
        id,
        &[(Access::Write, 65536), (Access::Read, 4096)],
        16,
        MILLI,
        0,
        10 * SECOND,
    );
    assert!(most_in_a_second(&served, 0, |s| s.2) <= (1 << 20) * 102 / 100 + 65536);
    assert!(most_in_a_second(&served, 0, |s| u64::from(s.1 == Access::Read)) <= 11);
    // An operation that is larger than what a second allows passes, and is paid for afterwards.
    let mut c = Ceilings::default();
    let id = c.add(limits, 0);
    let served = closed_loop(&mut c, id, &[(Access::Write, 4 << 20)], 2, 0, 0, 40 * SECOND);
    assert!((9..=11).contains(&served.len()), "{}", served.len());
}

#[test]
fn a_ceiling_on_reads_does_not_stop_writes() {
    let limits = Limits { read_iops: Rate::new(1, 0, 1), ..Limits::default() };
    let mut c = Ceilings::default();
    let id = c.add(limits, 0);
    for i in 0..10 {
        c.offer(id, Demand::new(Access::Read, 1), (Access::Read, i), 0);
    }
    assert_eq!(
        c.offer(id, Demand::new(Access::Write, 1), (Access::Write, 0), 0),
        None,
        "something of the tenant waits"
    );
    assert_eq!(c.release(0, |_| true), Some((Access::Write, 0)));
    assert_eq!((c.release(0, |_| true), c.len()), (None, 9));
    // A read that must be in order with writes waits with them, under the ceiling of reads.
    c.offer(id, Demand { ordered: true, ..Demand::new(Access::Read, 1) }, (Access::Read, 10), 0);
    c.offer(id, Demand::new(Access::Write, 1), (Access::Write, 1), 0);
    assert_eq!((c.release(0, |_| true), c.backlog(id, Access::Read).ops), (None, 10));
    let rest: Vec<_> = (1..=10)
        .flat_map(|s| std::iter::from_fn(|| c.release(s * SECOND, |_| true)).collect::<Vec<_>>())
        .collect();
    let at = |op| rest.iter().position(|r| *r == op);
    assert!(rest.len() == 11 && at((Access::Read, 10)) < at((Access::Write, 1)), "{rest:?}");
}

#[test]
fn bursts_are_spent_at_their_own_rate() {
    let limits = Limits { iops: Rate::new(100, 300, 2), ..Limits::default() };
    let mut c = Ceilings::default();
    let id = c.add(limits, 0);
    // Nothing was saved up at first; six seconds fill it.
    let served = closed_loop(&mut c, id, &[(Access::Read, 1)], 8, 0, 6 * SECOND, 16 * SECOND);
    let in_second =
        |n: u64| served.iter().filter(|s| (n * SECOND..(n + 1) * SECOND).contains(&s.0)).count();
    assert!((300..=365).contains(&in_second(6)), "{}", in_second(6));
    assert!((295..=305).contains(&in_second(7)), "{}", in_second(7));
    assert!((95..=105).contains(&in_second(15)), "{}", in_second(15));
    assert!(served.len() <= 600 + 1000 + 1);
}

#[test]
fn changes_take_effect_at_once() {
    let mut c = Ceilings::default();
    let id = c.add(iops(1), 0);
    for i in 0..100 {
        c.offer(id, Demand::new(Access::Write, 1), i, 0);
    }
    assert_eq!(c.release(0, |_| true), None);
    assert_eq!(c.next_due(), Some(SECOND));
    c.set(id, iops(100), SECOND / 2);
    // Half an operation is owed.
    assert_eq!(c.next_due(), Some(SECOND / 2 + 5 * MILLI));
    assert_eq!(c.release(SECOND / 2 + 5 * MILLI, |_| true), Some(1));
    c.set(id, Limits::default(), SECOND);
    let rest: Vec<u64> = std::iter::from_fn(|| c.release(SECOND, |_| true)).collect();
    assert_eq!(rest, (2..100).collect::<Vec<_>>(), "without limits all go, in order");
    assert_eq!(c.offer(id, Demand::new(Access::Write, 1), 100, SECOND), Some(100));
}

#[test]
fn changes_neither_give_nor_take() {
    let whole = Rate::new(100, 0, 1);
    let part = |n: u64| Limits { iops: whole.part(n * 1000), ..Limits::default() };
    let at_once = |c: &mut Ceilings<()>, id, now| {
        (0..100).filter(|_| c.offer(id, Demand::new(Access::Write, 1), (), now).is_some()).count()
    };
    let mut c = Ceilings::default();
    let id = c.add(part(10), 0);
    // After a pause a small part has saved up two operations, and has no more when it grows.
    c.set(id, part(100), 60 * SECOND);
    assert_eq!(at_once(&mut c, id, 60 * SECOND), 3);
    // What a large part saved up does not fit a small one.
    let id = c.add(part(100), 60 * SECOND);
    c.set(id, part(10), 120 * SECOND);
    c.set(id, part(100), 120 * SECOND);
    assert_eq!(at_once(&mut c, id, 120 * SECOND), 3);
}

#[test]
fn what_nobody_wants_costs_nothing() {
    let mut c = Ceilings::default();
    let id = c.add(iops(1), 0);
    for i in 0..100u64 {
        c.offer(id, Demand::new(Access::Write, 1), i, 0);
    }
    let wanted = |i: &u64| *i == 60 || *i == 80;
    assert_eq!(c.release(SECOND, wanted), Some(60));
    assert_eq!((c.release(SECOND, wanted), c.next_due()), (None, Some(2 * SECOND)));
    assert_eq!(c.release(2 * SECOND, wanted), Some(80));
    assert_eq!(
        (c.release(3 * SECOND, wanted), c.len(), c.backlog(id, Access::Write).ops),
        (None, 0, 0)
    );
}

#[test]
fn what_is_taken_out_makes_room_for_what_is_behind_it() {
    let mut c = Ceilings::default();
    let (id, other) = (c.add(iops(1), 0), c.add(iops(1), 0));
    for i in 0..100u64 {
        c.offer(id, Demand::new(if i < 90 { Access::Write } else { Access::Read }, 1), i, 0);
    }
    c.offer(other, Demand::new(Access::Write, 1), 200, 0);
    c.offer(other, Demand::new(Access::Write, 1), 201, 0);
    let mut out = c.take_out(&mut |i| *i < 100 && *i != 60 && *i != 95);
    out.sort_unstable();
    assert_eq!(
        out,
        (1..100).filter(|i| *i != 60 && *i != 95).collect::<Vec<_>>(),
        "0 went at once"
    );
    assert_eq!(
        (c.len(), c.backlog(id, Access::Write).ops, c.backlog(id, Access::Read).ops),
        (3, 1, 1)
    );
    assert_eq!(c.release(0, |_| true), None, "it costs nothing, and gives nothing");
    let first =
        [c.release(SECOND, |_| true), c.release(SECOND, |_| true), c.release(SECOND, |_| true)];
    assert!(
        first.contains(&Some(60)) && first.contains(&Some(201)) && first.contains(&None),
        "{first:?}"
    );
    assert_eq!((c.release(2 * SECOND, |_| true), c.len(), c.next_due()), (Some(95), 0, None));
    assert!(c.take_out(&mut |_| true).is_empty());
}

#[test]
fn idle_tenants_are_forgotten() {
    let mut c = Ceilings::default();
    let ids: Vec<TenantId> = (0..100).map(|_| c.add(iops(1), 0)).collect();
    for id in &ids[..10] {
        c.offer(*id, Demand::new(Access::Read, 1), (), SECOND);
        c.offer(*id, Demand::new(Access::Read, 1), (), SECOND);
    }
    let forget = |c: &mut Ceilings<()>, now| {
        ids.iter().filter(|id| c.forget_idle(**id, 10 * SECOND, now)).count()
    };
    assert_eq!(forget(&mut c, 9 * SECOND), 0);
    assert_eq!((forget(&mut c, 10 * SECOND), c.tenants()), (90, 10));
    assert_eq!(forget(&mut c, 20 * SECOND), 0, "operations wait");
    while c.release(30 * SECOND, |_| true).is_some() {}
    assert_eq!((forget(&mut c, 30 * SECOND), c.tenants()), (10, 0));
    assert_eq!(
        c.offer(ids[0], Demand::new(Access::Read, 1), (), 40 * SECOND),
        Some(()),
        "who is not known is not held"
    );
}

#[test]
fn parts_of_a_ceiling() {
    let whole = Rate::new(100, 400, 3);
    let part = whole.part(25_000);
    assert_eq!(part, Rate { each_second: 25_000, saved: 300_000, peak: 100_000 });
    assert_eq!(Rate::new(100, 50, 3), Rate::new(100, 0, 1), "a burst below the ceiling is none");
    assert!(Rate::default().part(5).is_unlimited());
    assert_eq!(whole.part(0).each_second, 1, "nothing is not the same as no ceiling");
    assert_eq!(split(1000, &[0, 0]), [500, 500]);
    assert_eq!(split(1000, &[7, 0]), [975, 25]);
    assert_eq!(split(3, &[]), [0; 0]);
}

fn any_rate() -> impl Strategy<Value = Rate> {
    prop_oneof![
        2 => Just(Rate::default()),
        3 => (1u64..5000, 0u64..10_000, 0u64..5).prop_map(|(l, b, s)| Rate::new(l, b, s)),
        1 => (0u64..=u64::MAX, 0u64..=u64::MAX, 0u64..=u64::MAX).prop_map(|(l, b, s)| Rate::new(l, b, s)),
    ]
}

fn any_limits() -> impl Strategy<Value = Limits> {
    prop::collection::vec(any_rate(), 6)
        .prop_map(|r| Limits::from_rates([r[0], r[1], r[2], r[3], r[4], r[5]]))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// However it is asked for, a ceiling holds over each second, but for what was saved up and one
    /// operation.
    #[test]
    fn ceilings_hold_over_each_second(
        limit in 1u64..2000,
        arrivals in prop::collection::vec((0u64..200 * MILLI, 1usize..200), 1..60),
        late in 0u64..5 * MILLI,
    ) {
        let mut c = Ceilings::default();
        let id = c.add(iops(limit), 0);
        let mut served: Vec<Served> = Vec::new();
        let mut now = 0;
        let mut put = |c: &mut Ceilings<()>, until: Option<u64>, now: &mut u64| {
            loop {
                while c.release(*now, |_| true).is_some() {
                    served.push((*now, Access::Write, 1));
                }
                match c.next_due() {
                    Some(at) if until.is_none_or(|u| at + late < u) => *now = at + late,
                    _ => break,
                }
            }
            served.clone()
        };
        let mut direct: Vec<Served> = Vec::new();
        for (pause, burst) in &arrivals {
            let at = now + pause;
            put(&mut c, Some(at), &mut now);
            now = at.max(now);
            for _ in 0..*burst {
                if c.offer(id, Demand::new(Access::Write, 1), (), now).is_some() {
                    direct.push((now, Access::Write, 1));
                }
            }
        }
        let mut all = put(&mut c, None, &mut now);
        all.extend(direct);
        all.sort_by_key(|s| s.0);
        prop_assert_eq!(all.len(), arrivals.iter().map(|a| a.1).sum::<usize>(), "everything is served");
        let most = most_in_a_second(&all, 0, |_| 1);
        prop_assert!(most <= limit + limit * qos::SLACK_MILLIS / 1000 + 2, "{} in a second of {}", most, limit);
        // Over the whole time what was saved up at the start counts once.
        let time = all.last().unwrap().0 + SECOND / limit;
        prop_assert!(all.len() as u64 <= time * limit / SECOND + limit * qos::SLACK_MILLIS / 1000 + 2);
    }

    /// Tenants do not delay one another, whatever limits they have: one without limits never waits,
    /// and one with limits is served at the same times as if it were alone.
    #[test]
    fn tenants_do_not_touch_one_another(
        limits in any_limits(),
        other in any_limits(),
        ops in prop::collection::vec((0usize..3, any::<bool>(), 0u64..100_000, 0u64..20 * MILLI), 1..200),
    ) {
        let run = |with: &[usize]| {
            let mut c = Ceilings::default();
            let ids = [c.add(limits, 0), c.add(other, 0), c.add(Limits::default(), 0)];
            let (mut now, mut served) = (0, Vec::new());
            for (i, (who, read, bytes, pause)) in ops.iter().enumerate() {
                let at = now + pause;
                while let Some(due) = c.next_due().filter(|due| *due <= at) {
                    now = due.max(now);
                    while let Some(item) = c.release(now, |_| true) {
                        served.push((item, now));
                    }
                }
                now = at;
                if with.contains(who) {
                    let access = if *read { Access::Read } else { Access::Write };
                    if c.offer(ids[*who], Demand::new(access, *bytes), (*who, i), now).is_some() {
                        served.push(((*who, i), now));
                    } else {
                        assert_ne!(*who, 2, "who has no limits waits");
                    }
                }
            }
            served.retain(|((who, _), _)| *who == 0);
            (served, c.backlog(ids[0], Access::Read), c.backlog(ids[0], Access::Write))
        };
        prop_assert_eq!(run(&[0]), run(&[0, 1, 2]));
    }

    /// Reads stay in order, and writes do, through any changes of limits; nothing is lost.
    #[test]
    fn order_outlives_changes(
        steps in prop::collection::vec((prop::option::of(any_limits()), any::<bool>(), 0u64..100_000, 0u64..50 * MILLI), 1..200),
    ) {
        let mut c = Ceilings::default();
        let id = c.add(Limits::default(), 0);
        let mut now = 0;
        let mut last = [None, None];
        let mut out = 0;
        let mut served = |(read, i): (bool, usize)| {
            let last = &mut last[usize::from(read)];
            assert!(last.is_none_or(|l| l < i));
            *last = Some(i);
            out += 1;
        };
        for (i, (change, read, bytes, pause)) in steps.iter().enumerate() {
            now += pause;
            if let Some(limits) = change {
                c.set(id, *limits, now);
            }
            while let Some(item) = c.release(now, |_| true) {
                served(item);
            }
            let access = if *read { Access::Read } else { Access::Write };
            if let Some(item) = c.offer(id, Demand::new(access, *bytes), (*read, i), now) {
                served(item);
            }
        }
        c.set(id, Limits::default(), now);
        while let Some(item) = c.release(now, |_| true) {
            served(item);
        }
        prop_assert_eq!((out, c.len(), c.next_due()), (steps.len(), 0, None));
    }

    /// Parts never add up to more than the whole, and nearly to all of it; a member that has all
    /// demand gets nearly all.
    #[test]
    fn parts_add_up(total in 0u64..=u64::MAX, demand in prop::collection::vec(prop_oneof![Just(0u64), 0u64..1000, 0u64..=u64::MAX], 1..50)) {
        let parts = split(total, &demand);
        let sum: u128 = parts.iter().map(|p| u128::from(*p)).sum();
        prop_assert!(sum <= u128::from(total) && sum + 3 * demand.len() as u128 >= u128::from(total));
        if demand.iter().filter(|d| **d > 0).count() == 1 {
            let at = demand.iter().position(|d| *d > 0).unwrap();
            prop_assert!(u128::from(parts[at]) + 3 >= u128::from(total) * 95 / 100);
        }
    }
}
