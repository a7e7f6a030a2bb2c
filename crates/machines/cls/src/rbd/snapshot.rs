//! Snapshots of an image: rows `snapshot_ID` of its header, and how many there may be.

use super::features;
use super::header::{change_op_features, require_feature};
use super::omap::{Args, check_exists, find_key, list_of, read_key, remove_key, write_key};
use super::types::{NamespaceKind, ParentRecord, ProtectionStatus, SnapRecord, SnapshotNamespace};
use super::v1;
use crate::context::Object;
use crate::method::{Ignored, Raw, encode};
use bytes::Bytes;
use types::SnapId;
use types::errno::Errno;

const KEY_PREFIX: &[u8] = b"snapshot_";
const LIMIT_KEY: &[u8] = b"snap_limit";

/// The row of a snapshot.
fn key(id: SnapId) -> Bytes {
    // As wide as 16 digits also for the ids that are shown as words.
    format!("snapshot_{:0>16}", id.to_string()).into()
}

/// The record of a snapshot; ENOENT if there is none.
pub async fn read(object: Object<'_>, id: SnapId) -> Result<SnapRecord, Errno> {
    read_key(object, &key(id)).await
}

/// Every snapshot's record, oldest first.
pub async fn all(object: Object<'_>) -> Result<Vec<SnapRecord>, Errno> {
    let rows = list_of(object, KEY_PREFIX, b"", u64::MAX).await?;
    Ok(rows.into_iter().map(|(_, snap)| snap).collect())
}

/// Writes the record of a snapshot. A whole parent in it moves to the header's parent record, which
/// all snapshots share, and leaves only the overlap.
pub async fn write(object: Object<'_>, id: SnapId, mut snap: SnapRecord) -> Result<(), Errno> {
    if snap.parent.exists() {
        let parent = std::mem::take(&mut snap.parent);
        let shared: ParentRecord = find_key(&mut *object, b"parent").await?.unwrap_or_default();
        if !shared.exists() {
            let record = ParentRecord { spec: parent.spec, head_overlap: None };
            write_key(&mut *object, b"parent", &record).await?;
        }
        snap.parent_overlap = parent.head_overlap;
    }
    write_key(object, &key(id), &snap).await
}

/// The newest snapshot id that the image ever had, and the ids that it has, newest first.
pub async fn get_snapcontext(object: Object<'_>, _: Ignored) -> Result<Bytes, Errno> {
    let rows = super::omap::list(&mut *object, KEY_PREFIX, b"", u64::MAX).await?;
    let number = |(digits, _): &(Bytes, Bytes)| {
        u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    };
    let ids: Vec<SnapId> = rows.iter().rev().filter_map(number).map(SnapId).collect();
    let seq: u64 = read_key(object, b"snap_seq").await?;
    Ok(encode(&(seq, ids)))
}

/// The record of a snapshot, which the live image is not.
async fn read_snapshot(object: Object<'_>, id: SnapId) -> Result<SnapRecord, Errno> {
    if id == SnapId::NOSNAP {
        return Err(Errno::EINVAL);
    }
    read(object, id).await
}

/// Name of a snapshot.
pub async fn get_snapshot_name(object: Object<'_>, id: SnapId) -> Result<Bytes, Errno> {
    Ok(encode(&read_snapshot(object, id).await?.name))
}

/// When a snapshot was made.
pub async fn get_snapshot_timestamp(object: Object<'_>, id: SnapId) -> Result<Bytes, Errno> {
    Ok(encode(&read_snapshot(object, id).await?.timestamp))
}

/// What is known of a snapshot.
pub async fn snapshot_get(object: Object<'_>, id: SnapId) -> Result<Bytes, Errno> {
    Ok(encode(&read_snapshot(object, id).await?.info()))
}

/// Adds a snapshot. Input: name, id, and what it is for (a user's, if missing). ESTALE if the image
/// had a newer one, EEXIST if name or id is in use, EDQUOT if there are as many as may be.
pub async fn snapshot_add(object: Object<'_>, Raw(input): Raw) -> Result<(), Errno> {
    let mut args = Args::new(input);
    let name: Bytes = args.get()?;
    let id: SnapId = args.get()?;
    let namespace = args.get_or(SnapshotNamespace::User)?;
    if namespace == SnapshotNamespace::Unknown || id > SnapId::MAX {
        return Err(Errno::EINVAL);
    }
    // Ids rise: another client took its snapshot in between.
    let seq: SnapId = read_key(&mut *object, b"snap_seq").await?;
    if id < seq {
        return Err(Errno::ESTALE);
    }
    let image_size = read_key(&mut *object, b"size").await?;
    let flags = find_key(&mut *object, b"flags").await?.unwrap_or_default();
    let limit = limit(&mut *object).await?;
    for (count, old) in (1..).zip(all(&mut *object).await?) {
        if count >= limit {
            return Err(Errno::EDQUOT);
        }
        if old.id == id || (old.name == name && old.namespace.shares_names_with(&namespace)) {
            return Err(Errno::EEXIST);
        }
    }
    let parent = find_key(&mut *object, b"parent").await?.unwrap_or_default();
    if namespace.kind() == NamespaceKind::TRASH {
        let bit = features::op::SNAP_TRASH;
        change_op_features(&mut *object, bit, bit).await?;
    }
    write_key(&mut *object, b"snap_seq", &id).await?;
    let timestamp = object.origin().now;
    let snap = SnapRecord {
        id,
        name,
        image_size,
        parent,
        flags,
        timestamp,
        namespace,
        ..SnapRecord::default()
    };
    write(object, id, snap).await
}

/// Renames a user's snapshot; EEXIST if a user's snapshot has the name.
pub async fn snapshot_rename(object: Object<'_>, (id, name): (SnapId, Bytes)) -> Result<(), Errno> {
    let is_users = |snap: &SnapRecord| snap.namespace.kind() == NamespaceKind::USER;
    if all(&mut *object).await?.iter().any(|snap| is_users(snap) && snap.name == name) {
        return Err(Errno::EEXIST);
    }
    let mut snap = read(&mut *object, id).await?;
    if !is_users(&snap) {
        return Err(Errno::EINVAL);
    }
    snap.name = name;
    write(object, id, snap).await
}

/// Removes a snapshot, and what of the header was there for its sake; EBUSY if it is protected or
/// has clones.
pub async fn snapshot_remove(object: Object<'_>, id: SnapId) -> Result<(), Errno> {
    let snap = read(&mut *object, id).await?;
    if snap.protection_status != ProtectionStatus::UNPROTECTED || snap.child_count > 0 {
        return Err(Errno::EBUSY);
    }
    remove_key(&mut *object, &key(id)).await?;

    let mut others = all(&mut *object).await?;
    others.retain(|other| other.id != id);
    let others_need_parent = others.iter().any(SnapRecord::has_parent);
    let others_in_trash = others.iter().any(|other| other.namespace.kind() == NamespaceKind::TRASH);

    let parent: ParentRecord = find_key(&mut *object, b"parent").await?.unwrap_or_default();
    let head_needs_parent = parent.exists() && parent.head_overlap.is_some();
    let parent_needed = others_need_parent || head_needs_parent;
    if parent.exists() && !parent_needed {
        remove_key(&mut *object, b"parent").await?;
    }
    let mut unused = 0;
    if !parent_needed {
        unused |= features::op::CLONE_CHILD;
    }
    if !others_in_trash {
        unused |= features::op::SNAP_TRASH;
    }
    if unused != 0 {
        change_op_features(object, 0, unused).await?;
    }
    Ok(())
}

/// Moves a snapshot to the trash, under an unused name; EBUSY if it is protected, EEXIST
/// if it is there.
pub async fn snapshot_trash_add(object: Object<'_>, id: SnapId) -> Result<(), Errno> {
    let mut snap = read(&mut *object, id).await?;
    if snap.protection_status != ProtectionStatus::UNPROTECTED {
        return Err(Errno::EBUSY);
    }
    let original_kind = snap.namespace.kind();
    if original_kind == NamespaceKind::TRASH {
        return Err(Errno::EEXIST);
    }
    let bit = features::op::SNAP_TRASH;
    change_op_features(&mut *object, bit, bit).await?;
    let original_name = std::mem::replace(&mut snap.name, super::uuid::new_uuid(&mut *object));
    snap.namespace = SnapshotNamespace::Trash { original_name, original_kind };
    write(object, id, snap).await
}

/// Whether a snapshot may be removed.
pub async fn get_protection_status(object: Object<'_>, id: SnapId) -> Result<Bytes, Errno> {
    check_exists(&mut *object).await?;
    let status = read_snapshot(object, id).await?.protection_status;
    if !status.is_valid() {
        return Err(Errno::EIO);
    }
    Ok(encode(&status))
}

/// Says whether a snapshot may be removed.
pub async fn set_protection_status(
    object: Object<'_>,
    (id, status): (SnapId, ProtectionStatus),
) -> Result<(), Errno> {
    check_exists(&mut *object).await?;
    require_feature(&mut *object, features::LAYERING).await?;
    if !status.is_valid() {
        return Err(Errno::EINVAL);
    }
    let mut snap = read_snapshot(&mut *object, id).await?;
    snap.protection_status = status;
    write(object, id, snap).await
}

/// How many snapshots there may be, for both formats of images.
pub async fn limit(object: Object<'_>) -> Result<u64, Errno> {
    Ok(find_key(object, LIMIT_KEY).await?.unwrap_or(u64::MAX))
}

/// How many snapshots there may be; the largest number is "any".
pub async fn snapshot_get_limit(object: Object<'_>, _: Ignored) -> Result<Bytes, Errno> {
    Ok(encode(&limit(object).await?))
}

/// Says how many snapshots there may be; ERANGE if there are more.
pub async fn snapshot_set_limit(object: Object<'_>, limit: u64) -> Result<(), Errno> {
    if limit == u64::MAX {
        return object.map_remove_key(LIMIT_KEY).await;
    }
    let count = match v1::read_header(&mut *object).await {
        Ok(header) => header.snaps.len() as u64,
        // The header of the second format has no bytes.
        Err(Errno::EINVAL) => {
            super::omap::list(&mut *object, KEY_PREFIX, b"", u64::MAX).await?.len() as u64
        }
        Err(e) => return Err(e),
    };
    if limit < count {
        return Err(Errno::ERANGE);
    }
    write_key(object, LIMIT_KEY, &limit).await
}
