//! Snapshots.

use super::*;
use crate::rbd::types::{NamespaceKind, ProtectionStatus, SnapshotInfo, SnapshotNamespace};

fn context(o: &mut TestObject) -> (u64, Vec<u64>) {
    ask(o, "get_snapcontext", ()).unwrap()
}

fn info(o: &mut TestObject, id: u64) -> SnapshotInfo {
    ask(o, "snapshot_get", SnapId(id)).unwrap()
}

#[test]
fn snapshots_come_and_go() {
    let mut o = image(0);
    assert_eq!(add_snap(&mut o, "snap", SnapId::NOSNAP.0), Err(Errno::EINVAL));
    add_snap(&mut o, "one", 1).unwrap();
    assert_eq!(add_snap(&mut o, "one", 2), Err(Errno::EEXIST));
    assert_eq!(add_snap(&mut o, "other", 1), Err(Errno::EEXIST));
    assert_eq!(add_snap(&mut o, "other", 0), Err(Errno::ESTALE));
    run(&mut o, "set_size", 5u64).unwrap();
    add_snap(&mut o, "twenty", 20).unwrap();
    assert_eq!(context(&mut o), (20, vec![20, 1]));
    assert!(o.stored.omap.contains_key(&b"snapshot_0000000000000014"[..]));

    assert_eq!(ask::<(u8, u64)>(&mut o, "get_size", SnapId(1)).unwrap(), (22, 40 << 20));
    assert_eq!(ask::<(u8, u64)>(&mut o, "get_size", SnapId(20)).unwrap(), (22, 5));
    assert_eq!(ask::<Bytes>(&mut o, "get_snapshot_name", SnapId(20)).unwrap(), "twenty");
    assert_eq!(
        ask::<types::Utime>(&mut o, "get_snapshot_timestamp", SnapId(20)).unwrap(),
        o.origin.now
    );
    let snap = info(&mut o, 20);
    assert_eq!((snap.id, &snap.name[..], snap.image_size), (SnapId(20), &b"twenty"[..], 5));
    assert_eq!(run(&mut o, "snapshot_get", SnapId::NOSNAP), Err(Errno::EINVAL));
    assert_eq!(run(&mut o, "snapshot_get", SnapId(3)), Err(Errno::ENOENT));

    assert_eq!(run(&mut o, "snapshot_rename", (SnapId(1), "twenty")), Err(Errno::EEXIST));
    assert_eq!(run(&mut o, "snapshot_rename", (SnapId(3), "new")), Err(Errno::ENOENT));
    run(&mut o, "snapshot_rename", (SnapId(1), "new")).unwrap();
    assert_eq!(info(&mut o, 1).name, "new");

    assert_eq!(run(&mut o, "snapshot_remove", SnapId(3)), Err(Errno::ENOENT));
    run(&mut o, "snapshot_remove", SnapId(1)).unwrap();
    assert_eq!(context(&mut o), (20, vec![20]));
    run(&mut o, "snapshot_remove", SnapId(20)).unwrap();
    assert_eq!(context(&mut o), (20, vec![]));
}

#[test]
fn many_snapshots_are_all_seen() {
    let mut o = image(0);
    for id in 1..=200 {
        add_snap(&mut o, &format!("snap{id}"), id).unwrap();
    }
    assert_eq!(context(&mut o), (200, (1..=200).rev().collect()));
    assert_eq!(add_snap(&mut o, "snap3", 300), Err(Errno::EEXIST));
    assert_eq!(add_snap(&mut o, "snap190", 300), Err(Errno::EEXIST));
}

#[test]
fn a_limit_holds_for_what_is_there_and_what_comes() {
    let mut o = image(0);
    assert_eq!(ask::<u64>(&mut o, "snapshot_get_limit", ()).unwrap(), u64::MAX);
    run(&mut o, "snapshot_set_limit", 2u64).unwrap();
    assert_eq!(ask::<u64>(&mut o, "snapshot_get_limit", ()).unwrap(), 2);
    add_snap(&mut o, "1", 1).unwrap();
    add_snap(&mut o, "2", 2).unwrap();
    assert_eq!(add_snap(&mut o, "3", 3), Err(Errno::EDQUOT));
    assert_eq!(run(&mut o, "snapshot_set_limit", 1u64), Err(Errno::ERANGE));
    run(&mut o, "snapshot_set_limit", u64::MAX).unwrap();
    add_snap(&mut o, "3", 3).unwrap();
    assert_eq!(ask::<u64>(&mut o, "snapshot_get_limit", ()).unwrap(), u64::MAX);
}

#[test]
fn protected_snapshots_stay() {
    let mut plain = image(0);
    add_snap(&mut plain, "snap", 10).unwrap();
    assert_eq!(
        run(&mut plain, "set_protection_status", (SnapId(10), ProtectionStatus::PROTECTED)),
        Err(Errno::ENOEXEC)
    );

    let mut o = image(features::LAYERING);
    add_snap(&mut o, "snap", 10).unwrap();
    let status = |o: &mut TestObject| {
        ask::<ProtectionStatus>(o, "get_protection_status", SnapId(10)).unwrap()
    };
    assert_eq!(status(&mut o), ProtectionStatus::UNPROTECTED);
    assert_eq!(run(&mut o, "get_protection_status", SnapId::NOSNAP), Err(Errno::EINVAL));
    assert_eq!(
        run(&mut o, "set_protection_status", (SnapId::NOSNAP, ProtectionStatus::PROTECTED)),
        Err(Errno::EINVAL)
    );
    assert_eq!(run(&mut o, "set_protection_status", (SnapId(10), 3u8)), Err(Errno::EINVAL));
    assert_eq!(run(&mut o, "set_protection_status", (SnapId(11), 2u8)), Err(Errno::ENOENT));
    for kept in [ProtectionStatus::PROTECTED, ProtectionStatus::UNPROTECTING] {
        run(&mut o, "set_protection_status", (SnapId(10), kept)).unwrap();
        assert_eq!(status(&mut o), kept);
        assert_eq!(run(&mut o, "snapshot_remove", SnapId(10)), Err(Errno::EBUSY));
        assert_eq!(run(&mut o, "snapshot_trash_add", SnapId(10)), Err(Errno::EBUSY));
    }
    run(&mut o, "set_protection_status", (SnapId(10), ProtectionStatus::UNPROTECTED)).unwrap();
    run(&mut o, "snapshot_remove", SnapId(10)).unwrap();
}

#[test]
fn namespaces_keep_names_apart() {
    let mut o = image(0);
    let group = |snap: &'static str| SnapshotNamespace::Group {
        group_pool: 1,
        group_id: "group".into(),
        group_snapshot_id: snap.into(),
    };
    add_snap(&mut o, "name", 1).unwrap();
    run(&mut o, "snapshot_add", ("name", SnapId(2), group("a"))).unwrap();
    run(&mut o, "snapshot_add", ("name", SnapId(3), group("b"))).unwrap();
    assert_eq!(run(&mut o, "snapshot_add", ("name", SnapId(4), group("b"))), Err(Errno::EEXIST));
    assert_eq!(info(&mut o, 3).namespace, group("b"));
    // Only users' snapshots have names that a user may change.
    assert_eq!(run(&mut o, "snapshot_rename", (SnapId(2), "else")), Err(Errno::EINVAL));
    let unknown = (1u8, 1u8, (4u32, 99u32));
    assert_eq!(run(&mut o, "snapshot_add", ("new", SnapId(5), unknown)), Err(Errno::EINVAL));
}

#[test]
fn the_trash_keeps_snapshots_under_other_names() {
    let mut o = image(0);
    let op_features = |o: &mut TestObject| ask::<u64>(o, "op_features_get", ()).unwrap();
    for (id, name) in [(1, "one"), (2, "two")] {
        add_snap(&mut o, name, id).unwrap();
        run(&mut o, "snapshot_trash_add", SnapId(id)).unwrap();
    }
    assert_eq!(run(&mut o, "snapshot_trash_add", SnapId(1)), Err(Errno::EEXIST));
    assert_eq!(run(&mut o, "snapshot_trash_add", SnapId(9)), Err(Errno::ENOENT));
    let (one, two) = (info(&mut o, 1), info(&mut o, 2));
    assert_eq!(
        one.namespace,
        SnapshotNamespace::Trash {
            original_name: "one".into(),
            original_kind: NamespaceKind::USER
        }
    );
    assert_ne!(one.name, two.name);
    let uuid: types::Fsid = std::str::from_utf8(&one.name).unwrap().parse().unwrap();
    assert_eq!((uuid.0[6] >> 4, uuid.0[8] >> 6), (4, 2));
    assert_eq!(op_features(&mut o), features::op::SNAP_TRASH);
    // The name is free again.
    add_snap(&mut o, "one", 3).unwrap();
    run(&mut o, "snapshot_remove", SnapId(1)).unwrap();
    assert_eq!(op_features(&mut o), features::op::SNAP_TRASH);
    run(&mut o, "snapshot_remove", SnapId(2)).unwrap();
    assert_eq!(op_features(&mut o), 0);
}
