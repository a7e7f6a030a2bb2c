//! The balancer on random clusters.

use crate::balance::{Bounds, Loads, Measure, propose};
use crate::eval::Evaluation;
use crate::reweight::{Order, Refused, reweight};
use crate::stats::Stats;
use crate::testing::{Rng, Shape, cluster};
use proptest::prelude::*;
use std::collections::BTreeMap;
use types::osdmap::RuleWeights;
use types::{OsdId, OsdMap, PgId, PoolId};

const SHAPES: [Shape; 4] = [
    Shape { racks: 1, hosts: 3, osds: 3, pools: &[(3, 32), (2, 16)], erasure: false, mixed: false },
    Shape { racks: 2, hosts: 4, osds: 2, pools: &[(3, 64), (4, 32)], erasure: true, mixed: true },
    Shape { racks: 3, hosts: 2, osds: 4, pools: &[(2, 128)], erasure: false, mixed: true },
    Shape {
        racks: 1,
        hosts: 5,
        osds: 1,
        pools: &[(3, 8), (3, 64), (3, 64)],
        erasure: true,
        mixed: false,
    },
];

/// Moves the bytes of a PG to where it is placed.
fn moved(stats: &Stats, before: &OsdMap, after: &OsdMap, pg: PgId) -> Stats {
    let mut stats = stats.clone();
    let bytes = stats.copy_bytes(before, pg);
    for osd in before.pg_to_raw_upmap(pg) {
        stats.usage.get_mut(&osd).unwrap().used -= bytes;
    }
    for osd in after.pg_to_raw_upmap(pg) {
        stats.usage.get_mut(&osd).unwrap().used += bytes;
    }
    stats
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Whatever is proposed satisfies the rule, lets no deviation grow and fills no OSD, and ends.
    #[test]
    fn proposals_hold(seed in any::<u64>(), shape in 0..SHAPES.len(), bytes in any::<bool>(), tight in any::<bool>()) {
        let mut rng = Rng(seed);
        let (mut map, mut stats) = cluster(SHAPES[shape], &mut rng);
        if tight {
            // One OSD has hardly any room.
            let osd = OsdId(rng.below(map.osds.len() as u64) as i32);
            let u = stats.usage.get_mut(&osd).unwrap();
            u.total = u.used * 100 / 88;
        }
        let measure = if bytes { Measure::Bytes(0.02) } else { Measure::Pgs(1.0) };
        let pools: Vec<PoolId> = map.pools.keys().copied().collect();
        let portions: Vec<Vec<PoolId>> = match measure {
            Measure::Pgs(_) => pools.iter().map(|p| vec![*p]).collect(),
            Measure::Bytes(_) => {
                let mut by_rule: BTreeMap<u8, Vec<PoolId>> = BTreeMap::new();
                for p in &pools {
                    by_rule.entry(map.pools[p].crush_rule).or_default().push(*p);
                }
                by_rule.into_values().collect()
            }
        };
        for round in 0.. {
            prop_assert!(round < 300, "it ends");
            let proposals = propose(&map, &stats, &pools, Bounds { measure, changes: 5 }, &|_| true);
            prop_assert!(proposals.len() <= 5);
            if proposals.is_empty() {
                break;
            }
            let mut seen = std::collections::BTreeSet::new();
            for p in proposals {
                prop_assert!(seen.insert(p.pg), "one group moves once");
                let worst = |map: &OsdMap| -> Vec<f64> {
                    portions.iter().map(|pools| Loads::new(map, &stats, pools, measure).worst()).collect()
                };
                let mut after = map.clone();
                p.upmap.put(&mut after, p.pg);
                prop_assert_eq!(after.check_upmap(p.pg, &mut RuleWeights::default()), Ok(()));
                let (was, is) = (map.pg_to_raw_upmap(p.pg), after.pg_to_raw_upmap(p.pg));
                prop_assert!(was.contains(&p.from) && !is.contains(&p.from) && is.contains(&p.to));
                let changed = was.iter().filter(|o| !is.contains(o)).count();
                prop_assert_eq!(changed, 1);
                for (a, b) in worst(&map).into_iter().zip(worst(&after)) {
                    prop_assert!(b <= a + 1e-6, "{} grew to {}", a, b);
                }
                let then = moved(&stats, &map, &after, p.pg);
                let u = then.usage[&p.to];
                prop_assert!(u.used as f64 <= u.total as f64 * 0.9 + 1.0, "{:?}", u);
                prop_assert!(after.clone().clean_upmaps().is_empty(), "nothing of it is needless");
                (map, stats) = (after, then);
            }
        }
    }
}

#[test]
fn an_uneven_cluster_becomes_even() {
    for (n, shape) in SHAPES.into_iter().enumerate() {
        let (mut map, stats) = cluster(shape, &mut Rng(7 + n as u64));
        let pools: Vec<PoolId> = map.pools.keys().copied().collect();
        let before = Evaluation::new(&map, &stats, &[]).score;
        let bounds = Bounds { measure: Measure::Pgs(1.0), changes: 1000 };
        for p in propose(&map, &stats, &pools, bounds, &|_| true) {
            p.upmap.put(&mut map, p.pg);
        }
        let after = Evaluation::new(&map, &stats, &[]).score;
        assert!(after < before, "{n}: {before} {after}");
        if !shape.mixed {
            for pool in &pools {
                let loads = Loads::new(&map, &stats, &[*pool], bounds.measure);
                assert!(loads.worst() <= 2.0, "{n} {pool}: {}", loads.worst());
            }
        }
    }
}

#[test]
fn nothing_goes_to_an_osd_that_is_down_or_unknown_or_moves_what_may_not() {
    let (mut map, mut stats) = cluster(SHAPES[0], &mut Rng(3));
    let bounds = Bounds { measure: Measure::Pgs(1.0), changes: 1000 };
    let pools = [PoolId(1), PoolId(2)];
    let takers = |map: &OsdMap, stats: &Stats| -> Vec<OsdId> {
        propose(map, stats, &pools, bounds, &|_| true).into_iter().map(|p| p.to).collect()
    };
    let all = takers(&map, &stats);
    let first = *all.first().expect("it is uneven");
    stats.usage.remove(&first);
    assert!(!takers(&map, &stats).contains(&first), "its size is not known");
    let (_, known) = cluster(SHAPES[0], &mut Rng(3));
    map.osds[first.0 as usize].state = types::rados::osd_state::EXISTS;
    assert!(!takers(&map, &known).contains(&first), "it is down");
    assert!(propose(&map, &known, &pools, bounds, &|_| false).is_empty());
}

#[test]
fn a_score_is_shown_as_python_shows_it() {
    let (map, stats) = cluster(SHAPES[0], &mut Rng(1));
    let e = Evaluation::new(&map, &stats, &[PoolId(2)]);
    assert!(e.show("pool \"p2\"", false).starts_with("pool \"p2\" score 0."));
    let shown = e.show("pool \"p2\"", true);
    let line = |name: &str| shown.lines().find(|l| l.starts_with(name)).unwrap().to_owned();
    assert!(line("target_by_root").contains("{'default': {0: 0.1111111111111111, 1: "));
    assert!(line("total_by_pool").starts_with("total_by_pool {'p2': {'pgs': 32, 'objects': "));
    assert!(line("score_by_root").starts_with("score_by_root {'default': {'pgs': 0."));
    assert_eq!(Evaluation::new(&OsdMap::default(), &stats, &[]).score, 0.0);
}

#[test]
fn weights_follow_use() {
    let (map, mut stats) = cluster(SHAPES[0], &mut Rng(1));
    let order = |acting| Order {
        oload: 110,
        max_change: 0.05,
        max_osds: 2,
        acting,
        pools: &[],
        no_increasing: false,
        min_pgs: 10,
        min_bytes: 1 << 20,
    };
    let full = stats.usage.get_mut(&OsdId(4)).unwrap();
    full.used = full.total / 10 * 9;
    let outcome = reweight(&map, &stats, &order(None)).unwrap();
    assert_eq!(outcome.weights[&OsdId(4)], 0x10000 - (0.05 * 65536.0) as u32);
    assert!(outcome.weights.len() <= 2);
    for line in [
        "moved ",
        "avg 14.2222\n",
        "oload 110\n",
        "max_change 0.05\n",
        "osd.4 weight 1.0000 -> 0.9500\n",
    ] {
        assert!(outcome.text.contains(line), "{line}: {}", outcome.text);
    }
    assert_eq!(outcome.json["reweights"][0]["osd"], 4);
    let acting: BTreeMap<PgId, Vec<OsdId>> =
        stats.groups.keys().map(|pg| (*pg, map.pg_to_raw_upmap(*pg))).collect();
    assert!(reweight(&map, &stats, &order(Some(acting.clone()))).is_ok());
    let few = Order { min_pgs: 20, ..order(Some(acting)) };
    let refused =
        Refused::TooLittle("Refusing to reweight: we only have 128 PGs across 9 osds!\n".into());
    assert_eq!(reweight(&map, &stats, &few), Err(refused));
    assert!(matches!(
        reweight(&map, &stats, &Order { oload: 100, ..order(None) }),
        Err(Refused::Invalid(_))
    ));
    let much = Order { min_bytes: 1 << 40, ..order(None) };
    assert!(matches!(reweight(&map, &stats, &much), Err(Refused::TooLittle(_))));
}
