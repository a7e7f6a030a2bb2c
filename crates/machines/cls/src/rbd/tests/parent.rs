//! Clones and their parents.

use super::*;
use crate::method::encode;
use crate::rbd::types::{ChildImageSpec, ParentImageSpec, ParentRecord, SnapRecord};
use std::collections::BTreeSet;

const LAYERED: u64 = features::LAYERING;
const DEEP: u64 = features::LAYERING | features::DEEP_FLATTEN;
type LegacyAnswer = ((i64, Bytes), (SnapId, u64));

fn spec(namespace: &'static str) -> ParentImageSpec {
    ParentImageSpec {
        pool_id: 1,
        pool_namespace: namespace.into(),
        image_id: "parent".into(),
        snap_id: SnapId(3),
    }
}

fn legacy(pool: i64, id: &str, snap: u64, overlap: u64) -> ((i64, &str), (SnapId, u64)) {
    ((pool, id), (SnapId(snap), overlap))
}

fn overlap(o: &mut TestObject, snap: SnapId) -> Option<u64> {
    ask(o, "parent_overlap_get", snap).unwrap()
}

fn op_features(o: &mut TestObject) -> u64 {
    ask(o, "op_features_get", ()).unwrap()
}

#[test]
fn the_old_methods_set_and_remove_a_parent() {
    let mut plain = image(0);
    assert_eq!(run(&mut plain, "set_parent", legacy(1, "parent", 3, 9)), Err(Errno::ENOEXEC));
    assert_eq!(run(&mut plain, "remove_parent", ()), Err(Errno::ENOEXEC));
    let none: LegacyAnswer = ((-1, Bytes::new()), (SnapId::NOSNAP, 0));
    assert_eq!(ask::<LegacyAnswer>(&mut plain, "get_parent", SnapId::NOSNAP).unwrap(), none);

    let mut o = image(LAYERED);
    for bad in [
        legacy(-1, "parent", 3, 9),
        legacy(1, "", 3, 9),
        legacy(1, "parent", SnapId::NOSNAP.0, 9),
        legacy(1, "parent", 3, 0),
    ] {
        assert_eq!(run(&mut o, "set_parent", bad), Err(Errno::EINVAL), "{bad:?}");
    }
    assert_eq!(run(&mut o, "remove_parent", ()), Err(Errno::ENOENT));
    run(&mut o, "set_parent", legacy(1, "parent", 3, 1 << 40)).unwrap();
    assert_eq!(run(&mut o, "set_parent", legacy(1, "parent", 3, 9)), Err(Errno::EEXIST));
    // No more than the image's size can be seen.
    let seen: LegacyAnswer = ((1, "parent".into()), (SnapId(3), 40 << 20));
    assert_eq!(ask::<LegacyAnswer>(&mut o, "get_parent", SnapId::NOSNAP).unwrap(), seen);

    run(&mut o, "set_size", 5u64).unwrap();
    run(&mut o, "set_size", 1u64 << 30).unwrap();
    assert_eq!(ask::<LegacyAnswer>(&mut o, "get_parent", SnapId::NOSNAP).unwrap().1.1, 5);
    run(&mut o, "remove_parent", ()).unwrap();
    assert_eq!(ask::<LegacyAnswer>(&mut o, "get_parent", SnapId::NOSNAP).unwrap(), none);
}

#[test]
fn a_parent_in_a_namespace_is_beyond_the_old_methods() {
    let mut o = image(LAYERED);
    run(&mut o, "parent_attach", (spec("ns"), 100u64)).unwrap();
    assert_eq!(run(&mut o, "get_parent", SnapId::NOSNAP), Err(Errno::EXDEV));
    assert_eq!(run(&mut o, "remove_parent", ()), Err(Errno::EXDEV));
    assert_eq!(ask::<ParentImageSpec>(&mut o, "parent_get", ()).unwrap(), spec("ns"));
    run(&mut o, "parent_detach", ()).unwrap();
    assert_eq!(
        ask::<ParentImageSpec>(&mut o, "parent_get", ()).unwrap(),
        ParentImageSpec::default()
    );
}

#[test]
fn snapshots_keep_what_they_see_of_the_parent() {
    let mut o = image(LAYERED);
    run(&mut o, "parent_attach", (spec(""), 100u64)).unwrap();
    add_snap(&mut o, "one", 10).unwrap();
    run(&mut o, "set_size", 50u64).unwrap();
    add_snap(&mut o, "two", 11).unwrap();
    assert_eq!(overlap(&mut o, SnapId::NOSNAP), Some(50));
    assert_eq!((overlap(&mut o, SnapId(10)), overlap(&mut o, SnapId(11))), (Some(100), Some(50)));
    assert_eq!(run(&mut o, "parent_overlap_get", SnapId(12)), Err(Errno::ENOENT));
    assert_eq!(ask::<LegacyAnswer>(&mut o, "get_parent", SnapId(10)).unwrap().1.1, 100);

    // The live image lets go, the snapshots do not.
    run(&mut o, "parent_detach", ()).unwrap();
    assert_eq!(run(&mut o, "parent_detach", ()), Err(Errno::ENOENT));
    assert_eq!(overlap(&mut o, SnapId::NOSNAP), None);
    assert_eq!(overlap(&mut o, SnapId(10)), Some(100));
    assert_eq!(ask::<ParentImageSpec>(&mut o, "parent_get", ()).unwrap(), spec(""));
    // A snapshot taken now has none, though there is a parent record.
    add_snap(&mut o, "three", 12).unwrap();
    assert_eq!(overlap(&mut o, SnapId(12)), None);
    let none: LegacyAnswer = ((-1, Bytes::new()), (SnapId::NOSNAP, 0));
    assert_eq!(ask::<LegacyAnswer>(&mut o, "get_parent", SnapId(12)).unwrap(), none);

    // The same parent can come back, another one cannot.
    assert_eq!(run(&mut o, "parent_attach", (spec("other"), 20u64)), Err(Errno::EEXIST));
    run(&mut o, "parent_attach", (spec(""), 20u64)).unwrap();
    run(&mut o, "parent_attach", (spec("other"), 30u64, true)).unwrap();
    assert_eq!(ask::<ParentImageSpec>(&mut o, "parent_get", ()).unwrap(), spec("other"));
    assert_eq!(overlap(&mut o, SnapId::NOSNAP), Some(30));
    run(&mut o, "parent_detach", ()).unwrap();

    // With the last snapshot that needs it, the parent goes.
    run(&mut o, "snapshot_remove", SnapId(10)).unwrap();
    assert!(o.stored.omap.contains_key(&b"parent"[..]));
    run(&mut o, "snapshot_remove", SnapId(11)).unwrap();
    assert!(!o.stored.omap.contains_key(&b"parent"[..]));
}

#[test]
fn deep_flattening_severs_snapshots_too() {
    let mut o = image(DEEP);
    run(&mut o, "parent_attach", (spec(""), 100u64)).unwrap();
    run(&mut o, "op_features_set", (features::op::CLONE_CHILD, features::op::CLONE_CHILD)).unwrap();
    add_snap(&mut o, "one", 10).unwrap();
    run(&mut o, "parent_detach", ()).unwrap();
    assert_eq!(overlap(&mut o, SnapId(10)), None);
    assert_eq!(op_features(&mut o), 0);
    assert!(!o.stored.omap.contains_key(&b"parent"[..]));
}

#[test]
fn the_mark_of_a_clone_stays_as_long_as_snapshots_need_the_parent() {
    let mut o = image(LAYERED);
    run(&mut o, "parent_attach", (spec(""), 100u64)).unwrap();
    run(&mut o, "op_features_set", (features::op::CLONE_CHILD, features::op::CLONE_CHILD)).unwrap();
    add_snap(&mut o, "one", 10).unwrap();
    add_snap(&mut o, "two", 11).unwrap();
    run(&mut o, "snapshot_remove", SnapId(10)).unwrap();
    run(&mut o, "parent_detach", ()).unwrap();
    assert_eq!(op_features(&mut o), features::op::CLONE_CHILD);
    run(&mut o, "snapshot_remove", SnapId(11)).unwrap();
    assert_eq!(op_features(&mut o), 0);
}

#[test]
fn snapshots_of_the_old_form_have_the_parent_to_themselves() {
    let mut o = image(LAYERED);
    add_snap(&mut o, "one", 10).unwrap();
    // As Luminous wrote it: compat 1, with features and parent.
    let parent = ParentRecord { spec: spec(""), head_overlap: Some(7) };
    let mut old = bytes::BytesMut::new();
    denc::envelope(&mut old, 4, 1, |out| {
        let f = denc::Features::ALL;
        (SnapId(10), "one", 5u64).encode(out, f);
        (0u64, &parent).encode(out, f);
        (0u8, 6u64).encode(out, f);
    });
    let key = Bytes::from("snapshot_000000000000000a");
    o.stored.omap.insert(key.clone(), old.freeze());
    assert_eq!(ask::<ParentImageSpec>(&mut o, "parent_get", ()).unwrap(), spec(""));
    assert_eq!(overlap(&mut o, SnapId(10)), Some(7));
    assert_eq!(
        ask::<LegacyAnswer>(&mut o, "get_parent", SnapId(10)).unwrap(),
        ((1, "parent".into()), (SnapId(3), 7))
    );

    // Whatever changes it brings it into the new form.
    run(&mut o, "snapshot_rename", (SnapId(10), "new")).unwrap();
    let record = SnapRecord::from_bytes(&o.stored.omap[&key]).unwrap();
    assert_eq!((record.parent.exists(), record.parent_overlap), (false, Some(7)));
    assert_eq!(
        o.stored.omap[&b"parent"[..]],
        encode(&ParentRecord { spec: spec(""), head_overlap: None })
    );
    assert_eq!(overlap(&mut o, SnapId(10)), Some(7));
}

#[test]
fn a_directory_of_children_by_parent() {
    let mut o = TestObject::new();
    let parent = ((1u64, "parent"), SnapId(3));
    let other = ((1u64, "parent"), SnapId(4));
    assert_eq!(run(&mut o, "get_children", parent), Err(Errno::ENOENT));
    assert_eq!(run(&mut o, "remove_child", (parent, "a")), Err(Errno::ENOENT));
    run(&mut o, "add_child", (parent, "a")).unwrap();
    assert_eq!(run(&mut o, "add_child", (parent, "a")), Err(Errno::EEXIST));
    run(&mut o, "add_child", (parent, "b")).unwrap();
    run(&mut o, "add_child", (other, "c")).unwrap();
    let children = |o: &mut TestObject| ask::<BTreeSet<Bytes>>(o, "get_children", parent);
    assert_eq!(children(&mut o).unwrap(), BTreeSet::from(["a".into(), "b".into()]));
    run(&mut o, "remove_child", (parent, "a")).unwrap();
    assert_eq!(run(&mut o, "remove_child", (parent, "a")), Err(Errno::ENOENT));
    run(&mut o, "remove_child", (parent, "b")).unwrap();
    assert_eq!(children(&mut o), Err(Errno::ENOENT));
    assert_eq!(o.stored.omap.len(), 1);
}

#[test]
fn a_snapshot_counts_its_children() {
    let child = |id: &'static str| ChildImageSpec {
        pool_id: 1,
        image_id: id.into(),
        pool_namespace: "ns".into(),
    };
    let mut o = image(LAYERED);
    assert_eq!(run(&mut o, "child_attach", (SnapId(1), child("a"))), Err(Errno::ENOENT));
    for id in 1..=2 {
        add_snap(&mut o, &id.to_string(), id).unwrap();
    }
    let children =
        |o: &mut TestObject| ask::<BTreeSet<ChildImageSpec>>(o, "children_list", SnapId(1));
    assert_eq!(children(&mut o), Err(Errno::ENOENT));
    run(&mut o, "child_attach", (SnapId(1), child("a"))).unwrap();
    assert_eq!(run(&mut o, "child_attach", (SnapId(1), child("a"))), Err(Errno::EEXIST));
    run(&mut o, "child_attach", (SnapId(1), child("b"))).unwrap();
    run(&mut o, "child_attach", (SnapId(2), child("c"))).unwrap();
    assert_eq!(children(&mut o).unwrap().len(), 2);
    assert_eq!(
        ask::<crate::rbd::types::SnapshotInfo>(&mut o, "snapshot_get", SnapId(1))
            .unwrap()
            .child_count,
        2
    );
    assert_eq!(op_features(&mut o), features::op::CLONE_PARENT);
    assert_eq!(run(&mut o, "snapshot_remove", SnapId(1)), Err(Errno::EBUSY));

    assert_eq!(run(&mut o, "child_detach", (SnapId(1), child("x"))), Err(Errno::ENOENT));
    // A snapshot in the trash keeps its children and gets no more.
    run(&mut o, "snapshot_trash_add", SnapId(1)).unwrap();
    assert_eq!(run(&mut o, "child_attach", (SnapId(1), child("d"))), Err(Errno::ENOENT));
    run(&mut o, "child_detach", (SnapId(1), child("a"))).unwrap();
    run(&mut o, "child_detach", (SnapId(1), child("b"))).unwrap();
    assert_eq!(op_features(&mut o) & features::op::CLONE_PARENT, features::op::CLONE_PARENT);
    run(&mut o, "child_detach", (SnapId(2), child("c"))).unwrap();
    assert_eq!(op_features(&mut o), features::op::SNAP_TRASH);
    run(&mut o, "snapshot_remove", SnapId(1)).unwrap();
    assert_eq!(op_features(&mut o), 0);
    assert!(!o.stored.omap.keys().any(|k| k.starts_with(b"snap_children_")));
}

#[test]
fn a_count_that_is_wrong_is_not_touched() {
    let child = ChildImageSpec { pool_id: 1, image_id: "a".into(), pool_namespace: Bytes::new() };
    let mut o = image(LAYERED);
    add_snap(&mut o, "snap", 1).unwrap();
    run(&mut o, "child_attach", (SnapId(1), &child)).unwrap();
    o.stored.omap.remove(&b"snap_children_0000000000000001"[..]);
    assert_eq!(run(&mut o, "child_detach", (SnapId(1), &child)), Err(Errno::EINVAL));
}
