//! Snapshots that mirroring makes of an image.

use crate::context::Object;
use crate::rbd::snapshot;
use crate::rbd::types::{MirrorSnapshotState, SnapshotNamespace};
use bytes::Bytes;
use types::SnapId;
use types::errno::Errno;

/// A peer no longer needs a snapshot. ENOENT if it did not; ERESTART if it was the last one and
/// there is a newer mirror snapshot, because then the snapshot should be removed instead.
pub async fn mirror_image_snapshot_unlink_peer(
    object: Object<'_>,
    (id, peer): (SnapId, Bytes),
) -> Result<(), Errno> {
    let mut snap = snapshot::read(&mut *object, id).await?;
    let SnapshotNamespace::Mirror(mirror) = &mut snap.namespace else { return Err(Errno::EINVAL) };
    if !mirror.mirror_peer_uuids.remove(&peer) {
        return Err(Errno::ENOENT);
    }
    if mirror.mirror_peer_uuids.is_empty() {
        let is_mirror =
            |namespace: &SnapshotNamespace| matches!(namespace, SnapshotNamespace::Mirror(_));
        if snapshot::all(&mut *object)
            .await?
            .iter()
            .any(|other| other.id > id && is_mirror(&other.namespace))
        {
            return Err(Errno::ERESTART);
        }
    }
    snapshot::write(object, id, snap).await
}

/// How far copying of a snapshot has come. Input: the snapshot, whether it is complete, and the
/// last data object that was copied, which only copies keep.
pub async fn mirror_image_snapshot_set_copy_progress(
    object: Object<'_>,
    (id, complete, last_copied): (SnapId, bool, u64),
) -> Result<(), Errno> {
    let mut snap = snapshot::read(&mut *object, id).await?;
    let SnapshotNamespace::Mirror(mirror) = &mut snap.namespace else { return Err(Errno::EINVAL) };
    mirror.complete = complete;
    if matches!(
        mirror.state,
        MirrorSnapshotState::NON_PRIMARY | MirrorSnapshotState::NON_PRIMARY_DEMOTED
    ) {
        mirror.last_copied_object_number = last_copied;
    }
    snapshot::write(object, id, snap).await
}
