//! Bytes from outside never panic, hang or blow up, whatever is then done with the map.
#![allow(missing_docs)]

mod common;

use common::{Rng, random_map};
use crush::{CrushMap, Workspace};
use denc::{Bytes, Decode, Encode, Features};
use proptest::prelude::*;
use std::collections::BTreeMap;

fn exercise(map: &CrushMap) {
    let weights = vec![0x10000; 64];
    let (mut ws, mut out) = (Workspace::with_budget(20_000), Vec::new());
    for rule in 0..4 {
        for x in [0, 1, -7] {
            map.do_rule(rule, x, 6, &weights, map.choose_args_for(0), &mut ws, &mut out);
            assert!(out.len() <= 6);
        }
    }
    let valid = map.validate().is_ok();
    if map.max_devices < 10_000 {
        map.dump();
        map.print_tree(&BTreeMap::new(), true);
    }
    let loc = BTreeMap::from([
        ("host".to_owned(), "h".to_owned()),
        ("root".to_owned(), "default".to_owned()),
    ]);
    let _ = map.clone().insert_item(3, 0x10000, "osd.3", &loc, true);
    let _ = map.clone().remove_item(0, false);
    let _ = map.clone().reweight();
    let _ = map.clone().rebuild_roots_with_classes();
    if valid {
        let again =
            CrushMap::from_bytes(&map.to_bytes(Features::ALL)).expect("a valid map decodes");
        assert_eq!(again.to_bytes(Features::ALL), map.to_bytes(Features::ALL));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_maps(seed in 0u64..500, edits in prop::collection::vec((any::<u32>(), any::<u8>(), 0u8..3), 1..12)) {
        let mut bytes = random_map(&mut Rng::new(seed)).to_bytes(Features::ALL).to_vec();
        for (at, value, how) in edits {
            let at = at as usize % bytes.len();
            match how {
                0 => bytes[at] = value,
                1 => bytes[at] = bytes[at].wrapping_add(value % 5),
                _ => bytes[at] = [0, 0xff, 0x7f, 0x80][value as usize % 4],
            }
        }
        if let Ok(map) = CrushMap::from_bytes(&Bytes::from(bytes)) {
            exercise(&map);
        }
    }

    #[test]
    fn arbitrary_bytes(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let mut framed = vec![0, 0, 1, 0, 2, 0, 0, 0, 1, 0, 0, 0];
        framed.extend(bytes);
        if let Ok(map) = CrushMap::from_bytes(&Bytes::from(framed)) {
            exercise(&map);
        }
    }
}

#[test]
fn a_loop_ends() {
    let mut map = random_map(&mut Rng::new(3));
    let (host, root) =
        (map.names.id("host0-0").expect("a host"), map.names.id("default").expect("the root"));
    let mut other = map.buckets[(-1 - host) as usize].clone().expect("the host");
    other.items = vec![root];
    other.body = crush::Body::Straw2 { item_weights: vec![1] };
    map.buckets[(-1 - host) as usize] = Some(other);
    assert!(matches!(map.validate(), Err(crush::CrushError::Loop(_))));
    exercise(&map);
}
