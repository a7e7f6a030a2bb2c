//! Groups.

use super::*;
use crate::rbd::types::{
    GroupImageLinkState, GroupImageSpec, GroupImageStatus, GroupSnapshot, GroupSnapshotState,
    GroupSpec, ImageSnapshotSpec,
};
use std::collections::BTreeMap;

fn image_spec(pool_id: i64, id: &str) -> GroupImageSpec {
    GroupImageSpec { image_id: Bytes::copy_from_slice(id.as_bytes()), pool_id }
}

#[test]
fn a_group_lists_its_images() {
    let mut o = TestObject::new();
    o.stored.exists = true;
    let set = |o: &mut TestObject, pool, id: &str, state| {
        run(o, "group_image_set", GroupImageStatus { spec: image_spec(pool, id), state }).unwrap()
    };
    let list = |o: &mut TestObject, after: GroupImageSpec, most: u64| {
        ask::<Vec<GroupImageStatus>>(o, "group_image_list", (after, most)).unwrap()
    };
    set(&mut o, 1, "a", GroupImageLinkState::INCOMPLETE);
    set(&mut o, 1, "a", GroupImageLinkState::ATTACHED);
    let first = GroupImageStatus { spec: image_spec(1, "a"), state: GroupImageLinkState::ATTACHED };
    assert_eq!(list(&mut o, image_spec(-1, ""), 10), [first]);
    for i in 0..100 {
        set(&mut o, 2, &format!("{i:02}"), GroupImageLinkState::INCOMPLETE);
    }
    assert_eq!(list(&mut o, image_spec(-1, ""), 1000).len(), 101);
    assert_eq!(list(&mut o, image_spec(-1, ""), 80).len(), 80);
    assert_eq!(
        list(&mut o, image_spec(2, "97"), 80).into_iter().map(|s| s.spec).collect::<Vec<_>>(),
        [image_spec(2, "98"), image_spec(2, "99")]
    );
    run(&mut o, "group_image_remove", image_spec(1, "a")).unwrap();
    assert_eq!(list(&mut o, image_spec(-1, ""), 1000).len(), 100);
}

#[test]
fn an_image_is_in_one_group() {
    let group = |id: &'static str| GroupSpec { pool_id: 10, group_id: id.into() };
    let mut o = image(0);
    let present = |o: &mut TestObject| ask::<GroupSpec>(o, "image_group_get", ()).unwrap();
    assert_eq!(present(&mut o), GroupSpec { pool_id: -1, group_id: Bytes::new() });
    assert_eq!(run(&mut o, "image_group_remove", group("a")), Err(Errno::ENOENT));
    run(&mut o, "image_group_add", group("a")).unwrap();
    run(&mut o, "image_group_add", group("a")).unwrap();
    assert_eq!(run(&mut o, "image_group_add", group("b")), Err(Errno::EEXIST));
    assert_eq!(present(&mut o), group("a"));
    assert_eq!(ask::<u64>(&mut o, "op_features_get", ()).unwrap(), features::op::GROUP);
    assert_eq!(run(&mut o, "image_group_remove", group("b")), Err(Errno::EBADF));
    run(&mut o, "image_group_remove", group("a")).unwrap();
    assert_eq!(ask::<u64>(&mut o, "op_features_get", ()).unwrap(), 0);
    assert_eq!(present(&mut o).pool_id, -1);
}

fn snap(id: &str, name: &str, state: GroupSnapshotState) -> GroupSnapshot {
    let snaps = vec![ImageSnapshotSpec { pool: 1, image_id: "image".into(), snap_id: SnapId(2) }];
    GroupSnapshot {
        id: Bytes::copy_from_slice(id.as_bytes()),
        name: Bytes::copy_from_slice(name.as_bytes()),
        state,
        snaps,
    }
}

#[test]
fn snapshots_of_a_group() {
    use GroupSnapshotState as S;
    let mut o = TestObject::new();
    o.stored.exists = true;
    assert_eq!(run(&mut o, "group_snap_set", snap("id", "", S::INCOMPLETE)), Err(Errno::EINVAL));
    assert_eq!(run(&mut o, "group_snap_set", snap("", "name", S::INCOMPLETE)), Err(Errno::EINVAL));
    run(&mut o, "group_snap_set", snap("b", "name", S::INCOMPLETE)).unwrap();
    assert_eq!(run(&mut o, "group_snap_set", snap("b", "name", S::INCOMPLETE)), Err(Errno::EEXIST));
    assert_eq!(
        run(&mut o, "group_snap_set", snap("other", "name", S::INCOMPLETE)),
        Err(Errno::EEXIST)
    );
    run(&mut o, "group_snap_set", snap("b", "name", S::COMPLETE)).unwrap();
    run(&mut o, "group_snap_set", snap("a", "other", S::INCOMPLETE)).unwrap();
    assert_eq!(
        ask::<GroupSnapshot>(&mut o, "group_snap_get_by_id", "b").unwrap(),
        snap("b", "name", S::COMPLETE)
    );
    assert_eq!(run(&mut o, "group_snap_get_by_id", "c"), Err(Errno::ENOENT));

    let list = |o: &mut TestObject, after: &str, most: u64| {
        let found: Vec<GroupSnapshot> =
            ask(o, "group_snap_list", (snap(after, "", S::INCOMPLETE), most)).unwrap();
        found.into_iter().map(|snap| snap.id).collect::<Vec<_>>()
    };
    let orders = |o: &mut TestObject| {
        ask::<BTreeMap<Bytes, u64>>(o, "group_snap_list_order", ("", 1000u64)).unwrap()
    };
    assert_eq!(list(&mut o, "", 10), ["a", "b"]);
    assert_eq!(list(&mut o, "a", 10), ["b"]);
    assert_eq!(orders(&mut o), BTreeMap::from([("b".into(), 1), ("a".into(), 2)]));
    run(&mut o, "group_snap_remove", "b").unwrap();
    assert_eq!(list(&mut o, "", 10), ["a"]);
    assert_eq!(orders(&mut o), BTreeMap::from([("a".into(), 2)]));

    for i in 0..200 {
        run(
            &mut o,
            "group_snap_set",
            snap(&format!("x{i:03}"), &format!("snap{i}"), S::INCOMPLETE),
        )
        .unwrap();
    }
    assert_eq!(list(&mut o, "", 1000).len(), 201);
    assert_eq!(list(&mut o, "", 100).len(), 100);
    assert_eq!(list(&mut o, "x098", 100).first().unwrap(), "x099");
}
