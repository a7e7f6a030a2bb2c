//! One walk that answers for two maps which differ in weights.
#![allow(missing_docs)]

mod common;

use common::{Rng, random_map, random_map_of};
use crush::{Algorithm, CrushMap, Workspace};
use std::sync::Arc;

/// Maps some inputs by all rules with both maps: how many may be mapped elsewhere, how many are,
/// and how many there were. What is not said to shift is mapped alike.
fn compare(seed: u64, map: &CrushMap, other: &CrushMap) -> (u32, u32, u32) {
    let shifts = Arc::new(map.shifts(other).expect("only weights differ"));
    let (mut beside, mut plain) = (Workspace::new(), Workspace::new());
    beside.watch(shifts);
    let weights: Vec<u32> = (0..map.max_devices).map(|d| 0x10000 >> (d % 7 / 5)).collect();
    let (mut may, mut does, mut all) = (0, 0, 0);
    let (mut here, mut same, mut there) = (Vec::new(), Vec::new(), Vec::new());
    for (rule, _) in map.rules() {
        for x in 0..32 {
            map.do_rule(rule, x, 4, &weights, None, &mut beside, &mut here);
            map.do_rule(rule, x, 4, &weights, None, &mut plain, &mut same);
            assert_eq!(here, same, "seed {seed}: a walk that watches finds the same");
            other.do_rule(rule, x, 4, &weights, None, &mut plain, &mut there);
            all += 1;
            may += u32::from(beside.shifted());
            does += u32::from(here != there);
            assert!(beside.shifted() || here == there, "seed {seed}, rule {rule}, input {x}");
        }
    }
    (may, does, all)
}

#[test]
fn what_does_not_shift_is_mapped_alike() {
    let (mut may, mut does, mut all) = (0, 0, 0);
    for seed in 0..160 {
        let mut rng = Rng::new(seed);
        let mut map = match seed % 2 {
            0 => random_map(&mut rng),
            _ => random_map_of(&mut rng, &[Algorithm::Straw2]),
        };
        map.choose_args.clear();
        let mut other = map.clone();
        for _ in 0..1 + rng.below(3) {
            let device = rng.below(map.max_devices.max(1) as u64) as i32;
            let weight = *rng.pick(&[0, 1, 0x8000, 0x10000, 0x28000, 0x100_0000]);
            // Some devices are in no bucket.
            let _ = other.adjust_item_weight(device, weight, false);
        }
        if map.shifts(&other).is_none() {
            // Buckets of older kinds draw otherwise altogether.
            continue;
        }
        let found = compare(seed, &map, &other);
        (may, does, all) = (may + found.0, does + found.1, all + found.2);
    }
    assert!(all > 4_000 && does > all / 50, "{does} of {all} differ");
    assert!(may < all && may < does * 8, "{may} of {all} are looked at twice, {does} differ");
}

#[test]
fn only_weights_of_straw2_buckets_may_differ() {
    let map = (0..).map(|seed| random_map(&mut Rng::new(seed))).find(|m| m.choose_args.is_empty());
    let map = map.expect("some map has no weight sets");
    assert!(map.shifts(&map).is_some_and(|s| s.is_empty()));
    let mut other = map.clone();
    other.max_devices += 1;
    assert_eq!(map.shifts(&other), None);
    let mut other = map.clone();
    other.tunables.choose_total_tries += 1;
    assert_eq!(map.shifts(&other), None);
    let mut other = map.clone();
    other.buckets.push(None);
    assert_eq!(map.shifts(&other), None);
    let mut other = map.clone();
    let bucket = other.buckets.iter_mut().flatten().find(|b| b.items.len() > 1);
    bucket.expect("a bucket of two").items.swap(0, 1);
    assert_eq!(map.shifts(&other), None);
}
