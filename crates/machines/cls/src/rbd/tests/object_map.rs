//! Object maps.

use super::*;
use crate::rbd::bit_vector::BitVector;

fn map(states: impl IntoIterator<Item = u8>) -> BitVector {
    let states: Vec<u8> = states.into_iter().collect();
    let mut map = BitVector::default();
    map.resize(states.len() as u64, 0);
    states.iter().enumerate().for_each(|(i, &state)| map.set(i as u64, state));
    map
}

fn load(o: &mut TestObject) -> Vec<u8> {
    let map: BitVector = ask(o, "object_map_load", ()).unwrap();
    assert!(!map.has_crcs);
    (0..map.size()).map(|i| map.get(i).unwrap()).collect()
}

fn update(
    o: &mut TestObject,
    range: std::ops::Range<u64>,
    new: u8,
    expected: Option<u8>,
) -> Result<(), Errno> {
    run(o, "object_map_update", ((range.start, range.end), (new, expected)))
}

/// What is stored must be what saving the whole map would store.
fn check_stored(o: &TestObject) {
    let stored = BitVector::from_bytes(&o.stored.data.clone().into()).unwrap();
    assert!(stored.has_crcs);
    assert_eq!(o.stored.data, stored.to_bytes(denc::Features::ALL));
}

#[test]
fn a_map_is_saved_and_loaded() {
    let mut o = TestObject::new();
    assert_eq!(run(&mut o, "object_map_load", ()), Err(Errno::ENOENT));
    assert_eq!(update(&mut o, 0..1, 0, None), Err(Errno::ENOENT));
    let mut saved = map((0..32).map(|i| i % 4));
    saved.has_crcs = false;
    run(&mut o, "object_map_save", &saved).unwrap();
    assert_eq!(load(&mut o), (0..32).map(|i| i % 4).collect::<Vec<_>>());
    check_stored(&o);
}

#[test]
fn a_map_grows_and_shrinks() {
    let mut o = TestObject::new();
    run(&mut o, "object_map_resize", (20u64, 1u8)).unwrap();
    assert_eq!(load(&mut o), [1; 20]);
    run(&mut o, "object_map_resize", (50u64, 0u8)).unwrap();
    assert_eq!(load(&mut o), [vec![1; 20], vec![0; 30]].concat());
    check_stored(&o);
    assert_eq!(run(&mut o, "object_map_resize", (19u64, 0u8)), Err(Errno::ESTALE));
    assert_eq!(run(&mut o, "object_map_resize", (20u64, 1u8)), Err(Errno::ESTALE));
    run(&mut o, "object_map_resize", (20u64, 0u8)).unwrap();
    run(&mut o, "object_map_resize", (0u64, 1u8)).unwrap();
    assert_eq!(load(&mut o), [0u8; 0]);
    assert_eq!(run(&mut o, "object_map_resize", (256_000_001u64, 0u8)), Err(Errno::EINVAL));
}

#[test]
fn ranges_are_updated_in_place() {
    let mut o = TestObject::new();
    let mut expected: Vec<u8> = (0..16).map(|i| i % 4).collect();
    run(&mut o, "object_map_save", map(expected.clone())).unwrap();
    let backwards = std::ops::Range { start: 3, end: 2 };
    for bad in [0..0, backwards, 0..17, 20..21, 0..u64::MAX] {
        assert_eq!(update(&mut o, bad.clone(), 0, None), Err(Errno::ERANGE), "{bad:?}");
    }
    update(&mut o, 3..7, 2, None).unwrap();
    expected[3..7].fill(2);
    assert_eq!(load(&mut o), expected);
    // Only those that were so change; what exists may also be unchanged.
    update(&mut o, 0..16, 0, Some(2)).unwrap();
    expected.iter_mut().filter(|s| **s == 2).for_each(|s| *s = 0);
    assert_eq!(load(&mut o), expected);
    update(&mut o, 0..16, 2, Some(1)).unwrap();
    expected.iter_mut().filter(|s| matches!(**s, 1 | 3)).for_each(|s| *s = 2);
    assert_eq!(load(&mut o), expected);
    check_stored(&o);
}

#[test]
fn large_maps_are_updated_block_by_block() {
    let mut o = TestObject::new();
    let mut expected: Vec<u8> = (0..50_001).map(|i| (i % 4) as u8).collect();
    run(&mut o, "object_map_save", map(expected.clone())).unwrap();
    for (range, state) in [
        (0..1, 3),
        (16_383..16_385, 2),
        (16_384..32_768, 1),
        (49_000..50_001, 3),
        (50_000..50_001, 2),
        (0..50_001, 0),
    ] {
        update(&mut o, range.start as u64..range.end as u64, state, None).unwrap();
        expected[range].fill(state);
        assert_eq!(load(&mut o), expected);
        check_stored(&o);
    }
}

#[test]
fn only_the_touched_blocks_matter() {
    let mut o = TestObject::new();
    run(&mut o, "object_map_save", map(std::iter::repeat_n(1, 50_000))).unwrap();
    // Damage in the third block.
    o.stored.data[18 + 9000] ^= 1;
    assert_eq!(run(&mut o, "object_map_load", ()), Err(Errno::EINVAL));
    assert_eq!(update(&mut o, 40_000..40_001, 0, None), Err(Errno::EINVAL));
    update(&mut o, 0..10, 0, None).unwrap();
    update(&mut o, 49_999..50_000, 0, None).unwrap();
    o.stored.data[18 + 9000] ^= 1;
    let now = load(&mut o);
    assert_eq!((now[9], now[10], now[49_999]), (0, 1, 0));
    check_stored(&o);
}

#[test]
fn snapshots_make_objects_clean_and_dirty() {
    let mut o = TestObject::new();
    assert_eq!(run(&mut o, "object_map_snap_add", ()), Err(Errno::ENOENT));
    run(&mut o, "object_map_save", map([0, 1, 2, 3, 1, 0])).unwrap();
    run(&mut o, "object_map_snap_add", ()).unwrap();
    assert_eq!(load(&mut o), [0, 3, 2, 3, 3, 0]);
    check_stored(&o);

    run(&mut o, "object_map_save", map([3, 3, 3, 3, 1, 0, 3, 3])).unwrap();
    run(&mut o, "object_map_snap_remove", map([0, 1, 2, 3, 1, 1])).unwrap();
    // What the snapshot's map is too short for has changed, too.
    assert_eq!(load(&mut o), [3, 1, 3, 3, 1, 0, 1, 1]);
    check_stored(&o);
}
