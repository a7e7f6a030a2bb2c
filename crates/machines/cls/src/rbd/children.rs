//! Clones of an image's snapshots.
//!
//! There are two ways: a pool's `rbd_children` object lists the clones in that pool of protected
//! snapshots anywhere; or a snapshot counts its clones, and rows `snap_children_ID` of its header
//! list them, so that it needs no protection.

use super::features;
use super::header::change_op_features;
use super::omap::{find_key, read_key, remove_key, write_key};
use super::snapshot;
use super::types::{ChildImageSpec, NamespaceKind};
use crate::context::Object;
use crate::method::encode;
use bytes::Bytes;
use denc::{Encode, Features};
use denc_derive::Denc;
use std::collections::BTreeSet;
use types::SnapId;
use types::errno::Errno;

/// A parent in `rbd_children`. Encoded, it is the row's key.
#[derive(Denc)]
pub struct LegacyParent {
    pool_id: u64,
    image_id: Bytes,
    snap_id: SnapId,
}

impl LegacyParent {
    fn key(&self) -> Bytes {
        self.to_bytes(Features::ALL)
    }
}

/// Ids of the clones in one pool of one snapshot: a row of `rbd_children`.
type ChildIds = BTreeSet<Bytes>;

/// Adds a clone; EEXIST if it is there.
pub async fn add_child(
    object: Object<'_>,
    (parent, child): (LegacyParent, Bytes),
) -> Result<(), Errno> {
    let key = parent.key();
    let mut children: ChildIds = find_key(&mut *object, &key).await?.unwrap_or_default();
    if !children.insert(child) {
        return Err(Errno::EEXIST);
    }
    write_key(object, &key, &children).await
}

/// Removes a clone; ENOENT if it is not there.
pub async fn remove_child(
    object: Object<'_>,
    (parent, child): (LegacyParent, Bytes),
) -> Result<(), Errno> {
    let key = parent.key();
    let mut children: ChildIds = read_key(&mut *object, &key).await?;
    if !children.remove(&child) {
        return Err(Errno::ENOENT);
    }
    if children.is_empty() {
        object.map_remove_key(&key).await
    } else {
        write_key(object, &key, &children).await
    }
}

/// The clones in this pool of a snapshot; ENOENT if there are none.
pub async fn get_children(object: Object<'_>, parent: LegacyParent) -> Result<Bytes, Errno> {
    let children: ChildIds = read_key(object, &parent.key()).await?;
    Ok(encode(&children))
}

fn children_key(id: SnapId) -> Bytes {
    format!("snap_children_{:0>16}", id.to_string()).into()
}

/// Attaches a clone to a snapshot; EEXIST if it is attached, ENOENT if the snapshot is in the
/// trash.
pub async fn child_attach(
    object: Object<'_>,
    (id, child): (SnapId, ChildImageSpec),
) -> Result<(), Errno> {
    let mut snap = snapshot::read(&mut *object, id).await?;
    if snap.namespace.kind() == NamespaceKind::TRASH {
        return Err(Errno::ENOENT);
    }
    let key = children_key(id);
    let mut children: BTreeSet<ChildImageSpec> =
        find_key(&mut *object, &key).await?.unwrap_or_default();
    if !children.insert(child) {
        return Err(Errno::EEXIST);
    }
    write_key(&mut *object, &key, &children).await?;
    snap.child_count = snap.child_count.saturating_add(1);
    snapshot::write(&mut *object, id, snap).await?;
    let bit = features::op::CLONE_PARENT;
    change_op_features(object, bit, bit).await
}

/// Detaches a clone; ENOENT if it is not attached, EINVAL if list and count differ.
pub async fn child_detach(
    object: Object<'_>,
    (id, child): (SnapId, ChildImageSpec),
) -> Result<(), Errno> {
    let mut snap = snapshot::read(&mut *object, id).await?;
    let key = children_key(id);
    let mut children: BTreeSet<ChildImageSpec> =
        find_key(&mut *object, &key).await?.unwrap_or_default();
    if snap.child_count as usize != children.len() {
        return Err(Errno::EINVAL);
    }
    if !children.remove(&child) {
        return Err(Errno::ENOENT);
    }
    if children.is_empty() {
        remove_key(&mut *object, &key).await?;
    } else {
        write_key(&mut *object, &key, &children).await?;
    }
    snap.child_count -= 1;
    let left = snap.child_count;
    snapshot::write(&mut *object, id, snap).await?;
    if left == 0 {
        let snaps = snapshot::all(&mut *object).await?;
        if !snaps.iter().any(|other| other.id != id && other.child_count > 0) {
            change_op_features(object, 0, features::op::CLONE_PARENT).await?;
        }
    }
    Ok(())
}

/// The clones attached to a snapshot; ENOENT if there are none.
pub async fn children_list(object: Object<'_>, id: SnapId) -> Result<Bytes, Errno> {
    snapshot::read(&mut *object, id).await?;
    let children: BTreeSet<ChildImageSpec> = read_key(object, &children_key(id)).await?;
    Ok(encode(&children))
}
