//! What the methods do to an object in memory.

mod data;
mod directory;
mod group;
mod header;
mod mirror;
mod object_map;
mod parent;
mod snapshot;
mod v1;

use super::features;
use crate::testing::TestObject;
use bytes::Bytes;
use denc::{Decode, Encode};
use types::SnapId;
use types::errno::Errno;

/// Calls a method for its effect.
fn run(object: &mut TestObject, method: &str, input: impl Encode) -> Result<(), Errno> {
    object.exec("rbd", method, &input).map(drop)
}

/// Calls a method for its answer.
fn ask<T: Decode>(object: &mut TestObject, method: &str, input: impl Encode) -> Result<T, Errno> {
    object.query("rbd", method, &input)
}

/// A header of 10 objects of 4 MiB.
fn image(features: u64) -> TestObject {
    let mut object = TestObject::new();
    run(&mut object, "create", ((40u64 << 20, 22u8), (features, "rbd_data.1"))).unwrap();
    object
}

/// Adds a user's snapshot.
fn add_snap(object: &mut TestObject, name: &str, id: u64) -> Result<(), Errno> {
    run(object, "snapshot_add", (name, SnapId(id)))
}

#[test]
fn every_method_of_ceph_is_there() {
    // Names in the order of `CLS_INIT(rbd)`, with r, w and p for what they are declared to do.
    let expected = "create:rw get_features:r set_features:rw get_size:r set_size:rw get_snapcontext:r \
        get_object_prefix:r get_data_pool:r get_snapshot_name:r get_snapshot_timestamp:r snapshot_get:r \
        snapshot_add:rw snapshot_remove:rw snapshot_rename:rw snapshot_trash_add:rw get_all_features:r \
        get_parent:r set_parent:rw remove_parent:rw parent_get:r parent_overlap_get:r parent_attach:rw \
        parent_detach:rw set_protection_status:rw get_protection_status:r get_stripe_unit_count:r \
        set_stripe_unit_count:rw get_create_timestamp:r get_access_timestamp:r get_modify_timestamp:r \
        get_flags:r set_flags:rw op_features_get:r op_features_set:rw metadata_list:r metadata_set:rw \
        metadata_remove:rw metadata_get:r snapshot_get_limit:r snapshot_set_limit:rw child_attach:rw \
        child_detach:rw children_list:r migration_set:rw migration_set_state:rw migration_get:r \
        migration_remove:rw set_modify_timestamp:rw set_access_timestamp:rw add_child:rw remove_child:rw \
        get_children:r get_id:r set_id:rw dir_get_id:r dir_get_name:r dir_list:r dir_add_image:rw \
        dir_remove_image:rw dir_rename_image:rw dir_state_assert:r dir_state_set:rw object_map_load:r \
        object_map_save:rw object_map_resize:rw object_map_update:rw object_map_snap_add:rw \
        object_map_snap_remove:rw snap_list:r snap_add:rw snap_remove:rw snap_rename:rw mirror_uuid_get:r \
        mirror_uuid_set:rw mirror_mode_get:r mirror_mode_set:rw mirror_peer_ping:rw mirror_peer_list:r \
        mirror_peer_add:rw mirror_peer_remove:rw mirror_peer_set_client:rw mirror_peer_set_cluster:rw \
        mirror_peer_set_direction:rw mirror_image_list:r mirror_image_get_image_id:r mirror_image_get:r \
        mirror_image_set:rw mirror_image_remove:rw mirror_image_status_set:rwp mirror_image_status_remove:rw \
        mirror_image_status_get:r mirror_image_status_list:r mirror_image_status_get_summary:r \
        mirror_image_status_remove_down:rw mirror_image_instance_get:r mirror_image_instance_list:r \
        mirror_instances_list:r mirror_instances_add:rwp mirror_instances_remove:rw mirror_image_map_list:r \
        mirror_image_map_update:w mirror_image_map_remove:w mirror_image_snapshot_unlink_peer:rw \
        mirror_image_snapshot_set_copy_progress:rw group_dir_list:r group_dir_add:rw group_dir_remove:rw \
        group_dir_rename:rw group_image_remove:rw group_image_list:r group_image_set:rw image_group_add:rw \
        image_group_remove:rw image_group_get:r group_snap_set:rw group_snap_remove:rw group_snap_get_by_id:r \
        group_snap_list:r group_snap_list_order:r trash_add:rw trash_remove:rw trash_list:r trash_get:r \
        trash_state_set:rw namespace_add:rw namespace_remove:rw namespace_list:r copyup:rw sparse_copyup:rw \
        assert_snapc_seq:rw sparsify:rw";
    let flags = |m: &crate::method::Method| {
        [(m.flags.read, 'r'), (m.flags.write, 'w'), (m.flags.promote, 'p')]
            .into_iter()
            .filter_map(|(set, letter)| set.then_some(letter))
            .collect::<String>()
    };
    let declared: Vec<String> =
        super::CLASS.methods.iter().map(|m| format!("{}:{}", m.name, flags(m))).collect();
    assert_eq!(declared, expected.split_whitespace().collect::<Vec<_>>());
}

#[test]
fn inputs_that_do_not_decode_are_refused_and_change_nothing() {
    // Only these take no input, or any, or a single byte.
    let any = [
        "dir_state_assert",
        "get_stripe_unit_count",
        "get_create_timestamp",
        "get_access_timestamp",
        "get_modify_timestamp",
        "op_features_get",
        "get_snapcontext",
        "get_object_prefix",
        "get_data_pool",
        "get_all_features",
        "snapshot_get_limit",
        "remove_parent",
        "parent_get",
        "parent_detach",
        "migration_get",
        "migration_remove",
        "set_modify_timestamp",
        "set_access_timestamp",
        "get_id",
        "object_map_load",
        "object_map_snap_add",
        "snap_list",
        "mirror_uuid_get",
        "mirror_mode_get",
        "mirror_peer_list",
        "mirror_image_status_get_summary",
        "mirror_image_status_remove_down",
        "mirror_instances_list",
        "image_group_get",
        "copyup",
    ];
    for method in super::CLASS.methods {
        if any.contains(&method.name) {
            continue;
        }
        for garbage in [&b""[..], b"\xff", b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f12"] {
            let mut object = image(features::LAYERING);
            let before = object.stored.clone();
            let result = object.call("rbd", method.name, Bytes::copy_from_slice(garbage));
            assert_eq!(result, Err(Errno::EINVAL), "{} {garbage:?}", method.name);
            assert_eq!(object.stored, before, "{}", method.name);
        }
    }
}
