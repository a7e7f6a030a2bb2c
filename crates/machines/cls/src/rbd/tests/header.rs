//! Images and their properties.

use super::*;
use std::collections::BTreeMap;
use types::Utime;

fn create(
    object: &mut TestObject,
    features: u64,
    prefix: &str,
    pool: Option<i64>,
) -> Result<(), Errno> {
    let image = ((1u64 << 30, 22u8), (features, prefix));
    match pool {
        Some(pool) => run(object, "create", (image, pool)),
        None => run(object, "create", image),
    }
}

#[test]
fn an_image_is_made_once_and_only_with_features_that_fit() {
    let mut o = TestObject::new();
    assert_eq!(create(&mut o, 1 << 40, "p", None), Err(Errno::ENOSYS));
    assert_eq!(create(&mut o, 0, "", None), Err(Errno::EINVAL));
    assert_eq!(create(&mut o, features::OPERATIONS, "p", None), Err(Errno::EINVAL));
    assert_eq!(create(&mut o, features::DATA_POOL, "p", None), Err(Errno::EINVAL));
    assert_eq!(create(&mut o, 0, "p", Some(4)), Err(Errno::EINVAL));
    assert!(!o.stored.exists);
    create(&mut o, features::DATA_POOL, "prefix", Some(4)).unwrap();
    assert_eq!(create(&mut o, 0, "prefix", None), Err(Errno::EEXIST));

    assert_eq!(ask::<i64>(&mut o, "get_data_pool", ()).unwrap(), 4);
    assert_eq!(ask::<Bytes>(&mut o, "get_object_prefix", ()).unwrap(), "prefix");
    assert_eq!(ask::<(u8, u64)>(&mut o, "get_size", SnapId::NOSNAP).unwrap(), (22, 1 << 30));
    assert_eq!(ask::<(u64, Vec<u64>)>(&mut o, "get_snapcontext", ()).unwrap(), (0, vec![]));
    assert_eq!(ask::<i64>(&mut image(0), "get_data_pool", ()).unwrap(), -1);
}

#[test]
fn a_missing_image_has_nothing() {
    let mut o = TestObject::new();
    for method in
        ["get_object_prefix", "get_snapcontext", "parent_get", "get_stripe_unit_count", "get_id"]
    {
        assert_eq!(run(&mut o, method, ()), Err(Errno::ENOENT), "{method}");
    }
    for method in [
        "get_features",
        "get_size",
        "get_snapshot_name",
        "snapshot_get",
        "get_protection_status",
        "get_parent",
    ] {
        assert_eq!(run(&mut o, method, SnapId(1)), Err(Errno::ENOENT), "{method}");
    }
    for method in ["set_access_timestamp", "set_modify_timestamp", "remove_parent", "parent_detach"]
    {
        assert_eq!(run(&mut o, method, ()), Err(Errno::ENOENT), "{method}");
    }
    assert_eq!(run(&mut o, "set_size", 5u64), Err(Errno::ENOENT));
    assert!(!o.stored.exists);
}

#[test]
fn features_show_what_a_client_must_know() {
    let all = features::LAYERING | features::EXCLUSIVE_LOCK | features::DIRTY_CACHE;
    let mut o = image(all);
    assert_eq!(ask::<(u64, u64)>(&mut o, "get_features", SnapId::NOSNAP).unwrap(), (all, all));
    let reading = ask::<(u64, u64)>(&mut o, "get_features", (SnapId::NOSNAP, true)).unwrap();
    assert_eq!(reading, (all, features::LAYERING | features::DIRTY_CACHE));
    assert_eq!(ask::<u64>(&mut o, "get_all_features", ()).unwrap(), 0xfff);
}

#[test]
fn features_change_only_as_they_may() {
    let base = features::LAYERING | features::DEEP_FLATTEN;
    let mut o = image(base);
    let has = |o: &mut TestObject| ask::<(u64, u64)>(o, "get_features", SnapId::NOSNAP).unwrap().0;

    run(&mut o, "set_features", (u64::MAX, features::MUTABLE)).unwrap();
    assert_eq!(has(&mut o), base | features::MUTABLE);
    run(&mut o, "set_features", (0u64, features::MUTABLE)).unwrap();
    assert_eq!(has(&mut o), base);
    run(&mut o, "set_features", (0u64, features::DEEP_FLATTEN)).unwrap();
    assert_eq!(has(&mut o), features::LAYERING);

    for fixed in [
        features::DEEP_FLATTEN,
        features::STRIPING,
        features::DATA_POOL,
        features::OPERATIONS,
        features::MIGRATING,
    ] {
        assert_eq!(run(&mut o, "set_features", (fixed, fixed)), Err(Errno::EINVAL), "{fixed}");
    }
    assert_eq!(run(&mut o, "set_features", (0u64, features::LAYERING)), Err(Errno::EINVAL));
    // What is not known here is off already.
    run(&mut o, "set_features", (0u64, 1u64 << 50)).unwrap();
    assert_eq!(has(&mut o), features::LAYERING);
}

#[test]
fn stripes_must_divide_objects() {
    let mut plain = image(0);
    assert_eq!(run(&mut plain, "get_stripe_unit_count", ()), Err(Errno::ENOEXEC));
    assert_eq!(run(&mut plain, "set_stripe_unit_count", (4096u64, 2u64)), Err(Errno::ENOEXEC));

    let mut o = image(features::STRIPING);
    assert_eq!(ask::<(u64, u64)>(&mut o, "get_stripe_unit_count", ()).unwrap(), (4 << 20, 1));
    for bad in [(0u64, 1u64), (1, 0), (8 << 20, 1), (5000, 1)] {
        assert_eq!(run(&mut o, "set_stripe_unit_count", bad), Err(Errno::EINVAL), "{bad:?}");
    }
    run(&mut o, "set_stripe_unit_count", (1u64 << 20, 3u64)).unwrap();
    assert_eq!(ask::<(u64, u64)>(&mut o, "get_stripe_unit_count", ()).unwrap(), (1 << 20, 3));
}

#[test]
fn times_are_noted() {
    let mut o = image(0);
    let made = o.origin.now;
    o.origin.now = Utime::new(2000, 7);
    run(&mut o, "set_access_timestamp", ()).unwrap();
    o.origin.now = Utime::new(3000, 8);
    run(&mut o, "set_modify_timestamp", ()).unwrap();
    assert_eq!(ask::<Utime>(&mut o, "get_create_timestamp", ()).unwrap(), made);
    assert_eq!(ask::<Utime>(&mut o, "get_access_timestamp", ()).unwrap(), Utime::new(2000, 7));
    assert_eq!(ask::<Utime>(&mut o, "get_modify_timestamp", ()).unwrap(), Utime::new(3000, 8));
    assert_eq!(
        ask::<Utime>(&mut TestObject::new(), "get_create_timestamp", ()).unwrap(),
        Utime::ZERO
    );
}

#[test]
fn flags_are_of_the_image_and_of_snapshots() {
    let mut o = image(0);
    let flags = |o: &mut TestObject, snap| ask::<u64>(o, "get_flags", SnapId(snap)).unwrap();
    assert_eq!(flags(&mut o, SnapId::NOSNAP.0), 0);
    run(&mut o, "set_flags", (3u64, 1u64)).unwrap();
    assert_eq!(flags(&mut o, SnapId::NOSNAP.0), 1);
    run(&mut o, "set_flags", (2u64, 2u64)).unwrap();
    assert_eq!(flags(&mut o, SnapId::NOSNAP.0), 3);

    add_snap(&mut o, "snap", 1).unwrap();
    assert_eq!(flags(&mut o, 1), 3);
    run(&mut o, "set_flags", (0u64, 1u64, SnapId(1))).unwrap();
    assert_eq!((flags(&mut o, 1), flags(&mut o, SnapId::NOSNAP.0)), (2, 3));
    assert_eq!(run(&mut o, "set_flags", (0u64, 1u64, SnapId(9))), Err(Errno::ENOENT));
}

#[test]
fn operation_features_show_in_the_features() {
    let mut o = image(0);
    let bits = |o: &mut TestObject| {
        let (features, _) = ask::<(u64, u64)>(o, "get_features", SnapId::NOSNAP).unwrap();
        (ask::<u64>(o, "op_features_get", ()).unwrap(), features & features::OPERATIONS != 0)
    };
    assert_eq!(bits(&mut o), (0, false));
    assert_eq!(run(&mut o, "op_features_set", (u64::MAX, u64::MAX)), Err(Errno::EINVAL));
    run(&mut o, "op_features_set", (u64::MAX, features::op::GROUP)).unwrap();
    run(&mut o, "op_features_set", (features::op::CLONE_CHILD, features::op::CLONE_CHILD)).unwrap();
    assert_eq!(bits(&mut o), (features::op::GROUP | features::op::CLONE_CHILD, true));
    run(&mut o, "op_features_set", (0u64, features::op::GROUP)).unwrap();
    assert_eq!(bits(&mut o), (features::op::CLONE_CHILD, true));
    run(&mut o, "op_features_set", (0u64, features::op::ALL)).unwrap();
    assert_eq!(bits(&mut o), (0, false));
    assert!(!o.stored.omap.contains_key(&b"op_features"[..]));
}

#[test]
fn notes_are_listed_in_pages() {
    let mut o = TestObject::new();
    let list = |o: &mut TestObject, after: &str, most: u64| {
        ask::<BTreeMap<Bytes, Bytes>>(o, "metadata_list", (after, most)).unwrap()
    };
    let notes: BTreeMap<String, Bytes> =
        (0..150).map(|i| (format!("key{i:03}"), Bytes::from(format!("value{i}")))).collect();
    run(&mut o, "metadata_set", notes).unwrap();
    o.stored.omap.insert("metadatb".into(), "of another kind".into());
    assert_eq!(list(&mut o, "", 0).len(), 64);
    assert_eq!(list(&mut o, "", 100).len(), 100);
    assert_eq!(list(&mut o, "", 1000).len(), 150);
    assert_eq!(list(&mut o, "key147", 1000).into_keys().collect::<Vec<_>>(), ["key148", "key149"]);
    assert_eq!(ask::<Bytes>(&mut o, "metadata_get", "key007").unwrap(), "value7");
    run(&mut o, "metadata_remove", "key007").unwrap();
    assert_eq!(run(&mut o, "metadata_get", "key007"), Err(Errno::ENOENT));
}

#[test]
fn a_migration_marks_the_image() {
    use crate::rbd::types::{MigrationHeaderType, MigrationSpec, MigrationState, MirrorImageMode};
    let spec = |header_type| MigrationSpec {
        header_type,
        pool_id: 1,
        pool_namespace: Bytes::new(),
        image_name: "name".into(),
        image_id: "id".into(),
        snap_seqs: [(1, 2)].into(),
        overlap: 3,
        flatten: false,
        mirroring: false,
        state: MigrationState::PREPARING,
        state_description: Bytes::new(),
        mirror_image_mode: MirrorImageMode::JOURNAL,
        source_spec: Bytes::new(),
    };
    let mut o = image(0);
    let marked = |o: &mut TestObject| {
        ask::<(u64, u64)>(o, "get_features", SnapId::NOSNAP).unwrap().0 & features::MIGRATING != 0
    };
    assert_eq!(run(&mut o, "migration_get", ()), Err(Errno::EINVAL));
    assert_eq!(
        run(&mut o, "migration_set_state", (MigrationState::PREPARED, "x")),
        Err(Errno::EINVAL)
    );
    run(&mut o, "migration_set", spec(MigrationHeaderType::SRC)).unwrap();
    assert!(marked(&mut o));
    assert_eq!(run(&mut o, "migration_set", spec(MigrationHeaderType::SRC)), Err(Errno::EEXIST));
    run(&mut o, "migration_set_state", (MigrationState::PREPARED, "ready")).unwrap();
    let now: MigrationSpec = ask(&mut o, "migration_get", ()).unwrap();
    assert_eq!((now.state, &now.state_description[..]), (MigrationState::PREPARED, &b"ready"[..]));
    run(&mut o, "migration_remove", ()).unwrap();
    assert!(!marked(&mut o));

    // A destination may have the mark from the beginning, a source may not.
    let mut o = image(features::MIGRATING);
    assert_eq!(run(&mut o, "migration_set", spec(MigrationHeaderType::SRC)), Err(Errno::EEXIST));
    run(&mut o, "migration_set", spec(MigrationHeaderType::DST)).unwrap();

    // In the first format the mark is the text at the beginning.
    let mut o = TestObject::new();
    o.stored.exists = true;
    o.stored.data = b"<<< something else           >>>\n\0......".to_vec();
    assert_eq!(run(&mut o, "migration_set", spec(MigrationHeaderType::SRC)), Err(Errno::ENXIO));
    o.stored.data = b"<<< Rados Block Device Image >>>\n\0......".to_vec();
    assert_eq!(run(&mut o, "migration_set", spec(MigrationHeaderType::DST)), Err(Errno::EINVAL));
    assert_eq!(run(&mut o, "migration_remove", ()), Err(Errno::EINVAL));
    run(&mut o, "migration_set", spec(MigrationHeaderType::SRC)).unwrap();
    assert_eq!(o.stored.data, b"<<< Migrating RBD Image      >>>\n\0......");
    assert_eq!(
        ask::<MigrationSpec>(&mut o, "migration_get", ()).unwrap(),
        spec(MigrationHeaderType::SRC)
    );
    run(&mut o, "migration_remove", ()).unwrap();
    assert_eq!(o.stored.data, b"<<< Rados Block Device Image >>>\n\0......");
}
