//! Names and ids, the trash, and namespaces.

use super::*;
use crate::rbd::types::{DirectoryState, TrashImageSource, TrashImageSpec, TrashImageState};
use std::collections::BTreeMap;
use types::Utime;

#[test]
fn an_id_is_written_once() {
    let mut o = TestObject::new();
    assert_eq!(run(&mut o, "set_id", "1234"), Err(Errno::ENOENT));
    o.stored.exists = true;
    assert_eq!(run(&mut o, "get_id", ()), Err(Errno::ENOENT));
    for bad in ["", "with space", ".abvef"] {
        assert_eq!(run(&mut o, "set_id", bad), Err(Errno::EINVAL), "{bad}");
    }
    run(&mut o, "set_id", "0123aF").unwrap();
    assert_eq!(run(&mut o, "set_id", "other"), Err(Errno::EEXIST));
    assert_eq!(ask::<Bytes>(&mut o, "get_id", ()).unwrap(), "0123aF");
    assert_eq!(o.stored.data, b"\x06\0\0\x000123aF");
    o.stored.data.truncate(5);
    assert_eq!(run(&mut o, "get_id", ()), Err(Errno::EIO));
}

/// The same for images and for groups.
fn directory(prefix: &str, suffix: &str) {
    let add = format!("{prefix}dir_add{suffix}");
    let remove = format!("{prefix}dir_remove{suffix}");
    let rename = format!("{prefix}dir_rename{suffix}");
    let list = format!("{prefix}dir_list");
    let names = |o: &mut TestObject, after: &str, most: u64| {
        let found: BTreeMap<Bytes, Bytes> = ask(o, &list, (after, most)).unwrap();
        found
            .into_iter()
            .map(|(name, id)| {
                format!("{}={}", String::from_utf8_lossy(&name), String::from_utf8_lossy(&id))
            })
            .collect::<Vec<_>>()
    };
    let mut o = TestObject::new();
    for bad in [("", "id"), ("name", ""), ("name", "i d")] {
        assert_eq!(run(&mut o, &add, bad), Err(Errno::EINVAL), "{bad:?}");
    }
    assert!(!o.stored.exists);
    run(&mut o, &add, ("b", "2")).unwrap();
    assert_eq!(run(&mut o, &add, ("b", "3")), Err(Errno::EEXIST));
    assert_eq!(run(&mut o, &add, ("c", "2")), Err(Errno::EBADF));
    run(&mut o, &add, ("a", "1")).unwrap();
    assert_eq!(names(&mut o, "", 10), ["a=1", "b=2"]);
    assert_eq!(names(&mut o, "a", 10), ["b=2"]);
    assert_eq!(names(&mut o, "", 1), ["a=1"]);
    assert_eq!(names(&mut o, "", 0), [""; 0]);

    assert_eq!(run(&mut o, &rename, ("a", "b", "1")), Err(Errno::EEXIST));
    assert_eq!(run(&mut o, &rename, ("a", "z", "2")), Err(Errno::ESTALE));
    assert_eq!(run(&mut o, &rename, ("x", "z", "1")), Err(Errno::ENOENT));
    assert_eq!(names(&mut o, "", 10), ["a=1", "b=2"]);
    run(&mut o, &rename, ("a", "z", "1")).unwrap();
    assert_eq!(names(&mut o, "", 10), ["b=2", "z=1"]);

    assert_eq!(run(&mut o, &remove, ("z", "2")), Err(Errno::ESTALE));
    assert_eq!(run(&mut o, &remove, ("a", "1")), Err(Errno::ENOENT));
    run(&mut o, &remove, ("z", "1")).unwrap();
    run(&mut o, &remove, ("b", "2")).unwrap();
    assert!(o.stored.omap.is_empty());

    for i in 0..300 {
        run(&mut o, &add, (format!("image{i:03}"), format!("{i}"))).unwrap();
    }
    assert_eq!(names(&mut o, "", 1000).len(), 300);
    assert_eq!(names(&mut o, "image099", 100).len(), 100);
}

#[test]
fn images_have_names() {
    directory("", "_image");
    let mut o = TestObject::new();
    run(&mut o, "dir_add_image", ("name", "id")).unwrap();
    assert_eq!(ask::<Bytes>(&mut o, "dir_get_id", "name").unwrap(), "id");
    assert_eq!(ask::<Bytes>(&mut o, "dir_get_name", "id").unwrap(), "name");
    assert_eq!(run(&mut o, "dir_get_id", "id"), Err(Errno::ENOENT));
    assert_eq!(run(&mut o, "dir_get_name", "name"), Err(Errno::ENOENT));
}

#[test]
fn groups_have_names() {
    directory("group_", "");
}

#[test]
fn only_an_empty_directory_is_closed() {
    let mut o = TestObject::new();
    assert_eq!(run(&mut o, "dir_state_assert", DirectoryState::READY), Err(Errno::ENOENT));
    assert_eq!(run(&mut o, "dir_state_set", DirectoryState::ADD_DISABLED), Err(Errno::ENOENT));
    assert_eq!(run(&mut o, "dir_state_set", 2u8), Err(Errno::EINVAL));
    run(&mut o, "dir_state_set", DirectoryState::READY).unwrap();
    run(&mut o, "dir_state_assert", DirectoryState::READY).unwrap();
    run(&mut o, "dir_add_image", ("name", "id")).unwrap();
    assert_eq!(run(&mut o, "dir_state_set", DirectoryState::ADD_DISABLED), Err(Errno::EBUSY));
    run(&mut o, "dir_remove_image", ("name", "id")).unwrap();
    run(&mut o, "dir_state_set", DirectoryState::ADD_DISABLED).unwrap();
    run(&mut o, "dir_state_assert", DirectoryState::ADD_DISABLED).unwrap();
    assert_eq!(run(&mut o, "dir_state_assert", DirectoryState::READY), Err(Errno::ENOENT));
}

#[test]
fn the_trash() {
    let spec = |name: &'static str| TrashImageSpec {
        source: TrashImageSource::USER,
        name: name.into(),
        deletion_time: Utime::new(1, 2),
        deferment_end_time: Utime::new(3, 4),
        state: TrashImageState::NORMAL,
    };
    let mut o = TestObject::new();
    assert_eq!(run(&mut o, "trash_remove", "id"), Err(Errno::ENOENT));
    assert_eq!(run(&mut o, "trash_get", "id"), Err(Errno::ENOENT));
    assert_eq!(run(&mut o, "trash_add", ("not valid", spec("name"))), Err(Errno::EINVAL));
    run(&mut o, "trash_add", ("id", spec("name"))).unwrap();
    assert_eq!(run(&mut o, "trash_add", ("id", spec("name"))), Err(Errno::EEXIST));
    assert_eq!(ask::<TrashImageSpec>(&mut o, "trash_get", "id").unwrap(), spec("name"));

    let set =
        |o: &mut TestObject, state, expected| run(o, "trash_state_set", ("id", state, expected));
    use TrashImageState as S;
    set(&mut o, S::REMOVING, S::NORMAL).unwrap();
    // Again, as when a client asks twice.
    set(&mut o, S::REMOVING, S::NORMAL).unwrap();
    assert_eq!(set(&mut o, S::RESTORING, S::NORMAL), Err(Errno::ESTALE));
    assert_eq!(ask::<TrashImageSpec>(&mut o, "trash_get", "id").unwrap().state, S::REMOVING);
    assert_eq!(run(&mut o, "trash_state_set", ("no", S::NORMAL, S::NORMAL)), Err(Errno::ENOENT));

    for i in 0..100 {
        run(&mut o, "trash_add", (format!("x{i:02}"), spec("other"))).unwrap();
    }
    let list = |o: &mut TestObject, after: &str, most: u64| {
        ask::<BTreeMap<Bytes, TrashImageSpec>>(o, "trash_list", (after, most)).unwrap()
    };
    assert_eq!(list(&mut o, "", 1000).len(), 101);
    assert_eq!(list(&mut o, "", 70).len(), 70);
    assert_eq!(list(&mut o, "x97", 70).into_keys().collect::<Vec<_>>(), ["x98", "x99"]);
    run(&mut o, "trash_remove", "id").unwrap();
    assert_eq!(list(&mut o, "", 1000).len(), 100);
}

#[test]
fn namespaces_of_a_pool() {
    let mut o = TestObject::new();
    assert_eq!(run(&mut o, "namespace_remove", "one"), Err(Errno::ENOENT));
    run(&mut o, "namespace_add", "one").unwrap();
    assert_eq!(run(&mut o, "namespace_add", "one"), Err(Errno::EEXIST));
    run(&mut o, "namespace_add", "two").unwrap();
    let list = |o: &mut TestObject, after: &str, most: u64| {
        ask::<Vec<Bytes>>(o, "namespace_list", (after, most)).unwrap()
    };
    assert_eq!(list(&mut o, "", 10), ["one", "two"]);
    assert_eq!(list(&mut o, "", 1), ["one"]);
    assert_eq!(list(&mut o, "one", 10), ["two"]);
    run(&mut o, "namespace_remove", "one").unwrap();
    assert_eq!(list(&mut o, "", 10), ["two"]);
}
