//! Groups of images. A group's header (`rbd_group_header.ID`) has rows for its images, its
//! snapshots and their order; an image's header refers to its group. Names of groups are in a
//! directory of their own, which works as that of images does.

use super::features;
use super::header::change_op_features;
use super::omap::{has_key, key, list, list_of, optional, write_key};
use super::types::{
    GroupImageLinkState, GroupImageSpec, GroupImageStatus, GroupSnapshot, GroupSnapshotState,
    GroupSpec,
};
use crate::context::Object;
use crate::method::{Ignored, decode, encode};
use bytes::Bytes;
use std::collections::BTreeMap;
use types::errno::Errno;

const GROUP_REF: &[u8] = b"rbd_group_ref";
const SNAP_PREFIX: &[u8] = b"snapshot_";
const SNAP_ORDER_PREFIX: &[u8] = b"snap_order_";

/// Puts an image into a group, or changes how firmly it is in it.
pub async fn group_image_set(object: Object<'_>, status: GroupImageStatus) -> Result<(), Errno> {
    write_key(object, &status.spec.key(), &status.state).await
}

/// Takes an image out of a group.
pub async fn group_image_remove(object: Object<'_>, image: GroupImageSpec) -> Result<(), Errno> {
    object.map_remove_key(&image.key()).await
}

/// Up to so many images of a group after one.
pub async fn group_image_list(
    object: Object<'_>,
    (start_after, most): (GroupImageSpec, u64),
) -> Result<Bytes, Errno> {
    let prefix = GroupImageSpec::KEY_PREFIX;
    let start_after = start_after.key();
    let after = start_after.strip_prefix(prefix).unwrap_or_default();
    let rows = list_of::<GroupImageLinkState>(object, prefix, after, most).await?;
    let image = |(rest, state): (Bytes, _)| {
        let spec = GroupImageSpec::from_key(&key(prefix, &rest)).ok_or(Errno::EIO)?;
        Ok(GroupImageStatus { spec, state })
    };
    let images = rows.into_iter().map(image).collect::<Result<Vec<_>, Errno>>()?;
    Ok(encode(&images))
}

/// The group that an image refers to.
async fn group_ref(object: Object<'_>) -> Result<Option<GroupSpec>, Errno> {
    optional(object.map_get_val(GROUP_REF).await)?.map(|row| decode(row, Errno::EINVAL)).transpose()
}

/// Lets an image refer to a group; EEXIST if it refers to another.
pub async fn image_group_add(object: Object<'_>, group: GroupSpec) -> Result<(), Errno> {
    match group_ref(&mut *object).await? {
        Some(present) if present == group => return Ok(()),
        Some(_) => return Err(Errno::EEXIST),
        None => {}
    }
    let bit = features::op::GROUP;
    change_op_features(&mut *object, bit, bit).await?;
    write_key(object, GROUP_REF, &group).await
}

/// Lets an image refer to no group; ENOENT if it does not, EBADF if it refers to another.
pub async fn image_group_remove(object: Object<'_>, group: GroupSpec) -> Result<(), Errno> {
    let present = group_ref(&mut *object).await?.ok_or(Errno::ENOENT)?;
    if present != group {
        return Err(Errno::EBADF);
    }
    object.map_remove_key(GROUP_REF).await?;
    change_op_features(object, 0, features::op::GROUP).await
}

/// The group that an image refers to, or pool -1.
pub async fn image_group_get(object: Object<'_>, _: Ignored) -> Result<Bytes, Errno> {
    Ok(encode(&group_ref(object).await?.unwrap_or_default()))
}

/// Writes the record of a group's snapshot. EEXIST if another one has the name, or, for one that is
/// being made, the id.
pub async fn group_snap_set(object: Object<'_>, snap: GroupSnapshot) -> Result<(), Errno> {
    if snap.name.is_empty() || snap.id.is_empty() {
        return Err(Errno::EINVAL);
    }
    let snaps = list_of::<GroupSnapshot>(&mut *object, SNAP_PREFIX, b"", u64::MAX).await?;
    if snaps.iter().any(|(_, other)| other.name == snap.name && other.id != snap.id) {
        return Err(Errno::EEXIST);
    }
    let row = key(SNAP_PREFIX, &snap.id);
    if snap.state == GroupSnapshotState::INCOMPLETE {
        if has_key(&mut *object, &row).await? {
            return Err(Errno::EEXIST);
        }
        let orders = list_of::<u64>(&mut *object, SNAP_ORDER_PREFIX, b"", u64::MAX).await?;
        let newest = orders.into_iter().map(|(_, order)| order).max().unwrap_or_default();
        write_key(&mut *object, &key(SNAP_ORDER_PREFIX, &snap.id), &newest.saturating_add(1))
            .await?;
    }
    write_key(object, &row, &snap).await
}

/// Removes the record of a group's snapshot.
pub async fn group_snap_remove(object: Object<'_>, id: Bytes) -> Result<(), Errno> {
    object.map_remove_key(&key(SNAP_PREFIX, &id)).await?;
    object.map_remove_key(&key(SNAP_ORDER_PREFIX, &id)).await
}

/// The record of a group's snapshot.
pub async fn group_snap_get_by_id(object: Object<'_>, id: Bytes) -> Result<Bytes, Errno> {
    let snap: GroupSnapshot = super::omap::read_key(object, &key(SNAP_PREFIX, &id)).await?;
    Ok(encode(&snap))
}

/// Up to so many snapshots of a group, by id, after one.
pub async fn group_snap_list(
    object: Object<'_>,
    (start_after, most): (GroupSnapshot, u64),
) -> Result<Bytes, Errno> {
    let rows = list_of::<GroupSnapshot>(object, SNAP_PREFIX, &start_after.id, most).await?;
    let snaps: Vec<GroupSnapshot> = rows.into_iter().map(|(_, snap)| snap).collect();
    Ok(encode(&snaps))
}

/// Ids and places in the order of their making of up to so many snapshots of a group, by id, after
/// an id. Since Squid.
pub async fn group_snap_list_order(
    object: Object<'_>,
    (start_after, most): (Bytes, u64),
) -> Result<Bytes, Errno> {
    let rows = list(object, SNAP_ORDER_PREFIX, &start_after, most).await?;
    let orders = rows.into_iter().map(|(id, order)| Ok((id, decode(order, Errno::EIO)?)));
    Ok(encode(&orders.collect::<Result<BTreeMap<Bytes, u64>, Errno>>()?))
}
