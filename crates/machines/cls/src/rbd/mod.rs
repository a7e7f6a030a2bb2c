//! Block devices (Ceph: `cls/rbd/cls_rbd.cc`): everything that librbd and the kernel keep about
//! images.
//!
//! An image NAME with id ID is `rbd_id.NAME` (its id), `rbd_header.ID` ([`header`], [`snapshot`],
//! [`parent`], [`children`], [`metadata`], [`migration`]), `rbd_object_map.ID` ([`object_map`]) and
//! the [`data`] objects. A pool has a [`directory`], a [`trash`], a list of [`namespace`]s,
//! [`group`]s and its [`mirror`]ing. Images of the first format are in [`v1`].

pub mod bit_vector;
pub mod children;
pub mod data;
pub mod directory;
pub mod features;
pub mod group;
pub mod header;
pub mod metadata;
pub mod migration;
pub mod mirror;
pub mod namespace;
pub mod object_map;
mod omap;
pub mod parent;
pub mod snapshot;
#[cfg(test)]
mod tests;
pub mod trash;
pub mod types;
mod uuid;
pub mod v1;

use crate::method::{Class, RD, RD_WR, WR, method};

/// The class.
pub static CLASS: Class = Class {
    name: "rbd",
    methods: &[
        method!("create", RD_WR, header::create),
        method!("get_features", RD, header::get_features),
        method!("set_features", RD_WR, header::set_features),
        method!("get_size", RD, header::get_size),
        method!("set_size", RD_WR, header::set_size),
        method!("get_snapcontext", RD, snapshot::get_snapcontext),
        method!("get_object_prefix", RD, header::get_object_prefix),
        method!("get_data_pool", RD, header::get_data_pool),
        method!("get_snapshot_name", RD, snapshot::get_snapshot_name),
        method!("get_snapshot_timestamp", RD, snapshot::get_snapshot_timestamp),
        method!("snapshot_get", RD, snapshot::snapshot_get),
        method!("snapshot_add", RD_WR, snapshot::snapshot_add),
        method!("snapshot_remove", RD_WR, snapshot::snapshot_remove),
        method!("snapshot_rename", RD_WR, snapshot::snapshot_rename),
        method!("snapshot_trash_add", RD_WR, snapshot::snapshot_trash_add),
        method!("get_all_features", RD, header::get_all_features),
        method!("get_parent", RD, parent::get_parent),
        method!("set_parent", RD_WR, parent::set_parent),
        method!("remove_parent", RD_WR, parent::remove_parent),
        method!("parent_get", RD, parent::parent_get),
        method!("parent_overlap_get", RD, parent::parent_overlap_get),
        method!("parent_attach", RD_WR, parent::parent_attach),
        method!("parent_detach", RD_WR, parent::parent_detach),
        method!("set_protection_status", RD_WR, snapshot::set_protection_status),
        method!("get_protection_status", RD, snapshot::get_protection_status),
        method!("get_stripe_unit_count", RD, header::get_stripe_unit_count),
        method!("set_stripe_unit_count", RD_WR, header::set_stripe_unit_count),
        method!("get_create_timestamp", RD, header::get_create_timestamp),
        method!("get_access_timestamp", RD, header::get_access_timestamp),
        method!("get_modify_timestamp", RD, header::get_modify_timestamp),
        method!("get_flags", RD, header::get_flags),
        method!("set_flags", RD_WR, header::set_flags),
        method!("op_features_get", RD, header::op_features_get),
        method!("op_features_set", RD_WR, header::op_features_set),
        method!("metadata_list", RD, metadata::metadata_list),
        method!("metadata_set", RD_WR, metadata::metadata_set),
        method!("metadata_remove", RD_WR, metadata::metadata_remove),
        method!("metadata_get", RD, metadata::metadata_get),
        method!("snapshot_get_limit", RD, snapshot::snapshot_get_limit),
        method!("snapshot_set_limit", RD_WR, snapshot::snapshot_set_limit),
        method!("child_attach", RD_WR, children::child_attach),
        method!("child_detach", RD_WR, children::child_detach),
        method!("children_list", RD, children::children_list),
        method!("migration_set", RD_WR, migration::migration_set),
        method!("migration_set_state", RD_WR, migration::migration_set_state),
        method!("migration_get", RD, migration::migration_get),
        method!("migration_remove", RD_WR, migration::migration_remove),
        method!("set_modify_timestamp", RD_WR, header::set_modify_timestamp),
        method!("set_access_timestamp", RD_WR, header::set_access_timestamp),
        // Of `rbd_children`.
        method!("add_child", RD_WR, children::add_child),
        method!("remove_child", RD_WR, children::remove_child),
        method!("get_children", RD, children::get_children),
        // Of `rbd_id.NAME`.
        method!("get_id", RD, directory::get_id),
        method!("set_id", RD_WR, directory::set_id),
        // Of `rbd_directory`.
        method!("dir_get_id", RD, directory::dir_get_id),
        method!("dir_get_name", RD, directory::dir_get_name),
        method!("dir_list", RD, directory::list_names),
        method!("dir_add_image", RD_WR, directory::add),
        method!("dir_remove_image", RD_WR, directory::remove),
        method!("dir_rename_image", RD_WR, directory::rename),
        method!("dir_state_assert", RD, directory::dir_state_assert),
        method!("dir_state_set", RD_WR, directory::dir_state_set),
        // Of `rbd_object_map.ID`.
        method!("object_map_load", RD, object_map::object_map_load),
        method!("object_map_save", RD_WR, object_map::object_map_save),
        method!("object_map_resize", RD_WR, object_map::object_map_resize),
        method!("object_map_update", RD_WR, object_map::object_map_update),
        method!("object_map_snap_add", RD_WR, object_map::object_map_snap_add),
        method!("object_map_snap_remove", RD_WR, object_map::object_map_snap_remove),
        // Of `NAME.rbd`, the first format.
        method!("snap_list", RD, v1::snap_list),
        method!("snap_add", RD_WR, v1::snap_add),
        method!("snap_remove", RD_WR, v1::snap_remove),
        method!("snap_rename", RD_WR, v1::snap_rename),
        // Of `rbd_mirroring` and `rbd_mirror_leader`.
        method!("mirror_uuid_get", RD, mirror::pool::mirror_uuid_get),
        method!("mirror_uuid_set", RD_WR, mirror::pool::mirror_uuid_set),
        method!("mirror_mode_get", RD, mirror::pool::mirror_mode_get),
        method!("mirror_mode_set", RD_WR, mirror::pool::mirror_mode_set),
        method!("mirror_peer_ping", RD_WR, mirror::peers::mirror_peer_ping),
        method!("mirror_peer_list", RD, mirror::peers::mirror_peer_list),
        method!("mirror_peer_add", RD_WR, mirror::peers::mirror_peer_add),
        method!("mirror_peer_remove", RD_WR, mirror::peers::mirror_peer_remove),
        method!("mirror_peer_set_client", RD_WR, mirror::peers::mirror_peer_set_client),
        method!("mirror_peer_set_cluster", RD_WR, mirror::peers::mirror_peer_set_cluster),
        method!("mirror_peer_set_direction", RD_WR, mirror::peers::mirror_peer_set_direction),
        method!("mirror_image_list", RD, mirror::images::mirror_image_list),
        method!("mirror_image_get_image_id", RD, mirror::images::mirror_image_get_image_id),
        method!("mirror_image_get", RD, mirror::images::mirror_image_get),
        method!("mirror_image_set", RD_WR, mirror::images::mirror_image_set),
        method!("mirror_image_remove", RD_WR, mirror::images::mirror_image_remove),
        method!(
            "mirror_image_status_set",
            RD_WR.promote(),
            mirror::status::mirror_image_status_set
        ),
        method!("mirror_image_status_remove", RD_WR, mirror::status::mirror_image_status_remove),
        method!("mirror_image_status_get", RD, mirror::status::mirror_image_status_get),
        method!("mirror_image_status_list", RD, mirror::status::mirror_image_status_list),
        method!(
            "mirror_image_status_get_summary",
            RD,
            mirror::status::mirror_image_status_get_summary
        ),
        method!(
            "mirror_image_status_remove_down",
            RD_WR,
            mirror::status::mirror_image_status_remove_down
        ),
        method!("mirror_image_instance_get", RD, mirror::status::mirror_image_instance_get),
        method!("mirror_image_instance_list", RD, mirror::status::mirror_image_instance_list),
        method!("mirror_instances_list", RD, mirror::daemons::mirror_instances_list),
        method!("mirror_instances_add", RD_WR.promote(), mirror::daemons::mirror_instances_add),
        method!("mirror_instances_remove", RD_WR, mirror::daemons::mirror_instances_remove),
        method!("mirror_image_map_list", RD, mirror::daemons::mirror_image_map_list),
        method!("mirror_image_map_update", WR, mirror::daemons::mirror_image_map_update),
        method!("mirror_image_map_remove", WR, mirror::daemons::mirror_image_map_remove),
        method!(
            "mirror_image_snapshot_unlink_peer",
            RD_WR,
            mirror::snapshots::mirror_image_snapshot_unlink_peer
        ),
        method!(
            "mirror_image_snapshot_set_copy_progress",
            RD_WR,
            mirror::snapshots::mirror_image_snapshot_set_copy_progress
        ),
        // Of `rbd_group_directory`, `rbd_group_header.ID` and headers of images in groups.
        method!("group_dir_list", RD, directory::list_names),
        method!("group_dir_add", RD_WR, directory::add),
        method!("group_dir_remove", RD_WR, directory::remove),
        method!("group_dir_rename", RD_WR, directory::rename),
        method!("group_image_remove", RD_WR, group::group_image_remove),
        method!("group_image_list", RD, group::group_image_list),
        method!("group_image_set", RD_WR, group::group_image_set),
        method!("image_group_add", RD_WR, group::image_group_add),
        method!("image_group_remove", RD_WR, group::image_group_remove),
        method!("image_group_get", RD, group::image_group_get),
        method!("group_snap_set", RD_WR, group::group_snap_set),
        method!("group_snap_remove", RD_WR, group::group_snap_remove),
        method!("group_snap_get_by_id", RD, group::group_snap_get_by_id),
        method!("group_snap_list", RD, group::group_snap_list),
        method!("group_snap_list_order", RD, group::group_snap_list_order),
        // Of `rbd_trash`.
        method!("trash_add", RD_WR, trash::trash_add),
        method!("trash_remove", RD_WR, trash::trash_remove),
        method!("trash_list", RD, trash::trash_list),
        method!("trash_get", RD, trash::trash_get),
        method!("trash_state_set", RD_WR, trash::trash_state_set),
        // Of `rbd_namespace`.
        method!("namespace_add", RD_WR, namespace::namespace_add),
        method!("namespace_remove", RD_WR, namespace::namespace_remove),
        method!("namespace_list", RD, namespace::namespace_list),
        // Of data objects.
        method!("copyup", RD_WR, data::copyup),
        method!("sparse_copyup", RD_WR, data::sparse_copyup),
        method!("assert_snapc_seq", RD_WR, data::assert_snapc_seq),
        method!("sparsify", RD_WR, data::sparsify),
    ],
};
