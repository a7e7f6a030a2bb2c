//! The parent of a clone, in the clone's header.
//!
//! The header has one parent record. Its overlap says how much of the parent the live image can
//! see; every snapshot has an overlap of its own. The methods with `parent` in front replaced those
//! with it behind, which know no namespaces.

use super::features;
use super::header::{change_op_features, require_feature};
use super::omap::{Args, check_exists, find_key, read_key, remove_key, write_key};
use super::snapshot;
use super::types::{ParentImageSpec, ParentRecord, SnapRecord};
use crate::context::Object;
use crate::method::{Ignored, Raw, encode};
use bytes::Bytes;
use types::SnapId;
use types::errno::Errno;

const KEY: &[u8] = b"parent";

/// Whether the image can have a parent.
async fn has_layering(object: Object<'_>) -> Result<bool, Errno> {
    match require_feature(object, features::LAYERING).await {
        Ok(()) => Ok(true),
        Err(Errno::ENOEXEC) => Ok(false),
        Err(e) => Err(e),
    }
}

/// The parent of the image or of a snapshot, with the bytes of it that can be seen. EXDEV if it has
/// a namespace, for which this answer has no room.
pub async fn get_parent(object: Object<'_>, snap_id: SnapId) -> Result<Bytes, Errno> {
    check_exists(&mut *object).await?;
    let mut parent = ParentRecord::default();
    if has_layering(&mut *object).await? {
        parent = find_key(&mut *object, KEY).await?.unwrap_or_default();
        if !parent.spec.pool_namespace.is_empty() {
            return Err(Errno::EXDEV);
        }
        if snap_id != SnapId::NOSNAP {
            let snap =
                super::omap::optional(snapshot::read(object, snap_id).await)?.unwrap_or_default();
            if snap.parent.exists() {
                parent = snap.parent;
            } else if let Some(overlap) = snap.parent_overlap {
                if !parent.exists() {
                    return Err(Errno::EINVAL);
                }
                parent.head_overlap = Some(overlap);
            } else {
                parent = ParentRecord::default();
            }
        }
    }
    let ParentImageSpec { pool_id, image_id, snap_id, .. } = parent.spec;
    Ok(encode(&((pool_id, image_id), (snap_id, parent.head_overlap.unwrap_or_default()))))
}

/// Sets the parent: pool, id, snapshot, and how many bytes of it can be seen.
pub async fn set_parent(object: Object<'_>, Raw(input): Raw) -> Result<(), Errno> {
    let mut args = Args::new(input);
    let spec = ParentImageSpec {
        pool_id: args.get()?,
        pool_namespace: Bytes::new(),
        image_id: args.get()?,
        snap_id: args.get()?,
    };
    attach(object, spec, args.get()?, false).await
}

/// Removes the parent of the live image.
pub async fn remove_parent(object: Object<'_>, _: Ignored) -> Result<(), Errno> {
    detach(object, true).await
}

/// The parent of the image and its snapshots.
pub async fn parent_get(object: Object<'_>, _: Ignored) -> Result<Bytes, Errno> {
    check_exists(&mut *object).await?;
    let mut parent = ParentRecord::default();
    if has_layering(&mut *object).await? {
        parent = match find_key(&mut *object, KEY).await? {
            Some(parent) => parent,
            // Snapshots in the old form have it to themselves.
            None => {
                let snaps = snapshot::all(object).await?;
                snaps
                    .into_iter()
                    .map(|snap| snap.parent)
                    .rfind(ParentRecord::exists)
                    .unwrap_or_default()
            }
        };
    }
    Ok(encode(&parent.spec))
}

/// How many bytes of the parent the image or a snapshot can see; nothing if it has no parent.
pub async fn parent_overlap_get(object: Object<'_>, snap_id: SnapId) -> Result<Bytes, Errno> {
    let mut overlap: Option<u64> = None;
    if has_layering(&mut *object).await? {
        overlap = if snap_id == SnapId::NOSNAP {
            find_key::<ParentRecord>(object, KEY).await?.and_then(|parent| parent.head_overlap)
        } else {
            let snap = snapshot::read(object, snap_id).await?;
            let whole = if snap.parent.exists() { snap.parent.head_overlap } else { None };
            snap.parent_overlap.or(whole)
        };
    }
    Ok(encode(&overlap))
}

/// Sets the parent and how many bytes of it can be seen, also over another one if `reattach` is
/// there.
pub async fn parent_attach(object: Object<'_>, Raw(input): Raw) -> Result<(), Errno> {
    let mut args = Args::new(input);
    let spec = args.get()?;
    let overlap = args.get()?;
    attach(object, spec, overlap, args.get_or(false)?).await
}

/// Removes the parent of the live image.
pub async fn parent_detach(object: Object<'_>, _: Ignored) -> Result<(), Errno> {
    detach(object, false).await
}

async fn attach(
    object: Object<'_>,
    spec: ParentImageSpec,
    overlap: u64,
    reattach: bool,
) -> Result<(), Errno> {
    check_exists(&mut *object).await?;
    require_feature(&mut *object, features::LAYERING).await?;
    if !spec.exists() || overlap == 0 {
        return Err(Errno::EINVAL);
    }
    // A parent that only snapshots need may become the live image's again.
    if let Some(present) = find_key::<ParentRecord>(&mut *object, KEY).await?
        && (present.head_overlap.is_some() || present.spec != spec)
        && !reattach
    {
        return Err(Errno::EEXIST);
    }
    let size: u64 = read_key(&mut *object, b"size").await?;
    let record = ParentRecord { spec, head_overlap: Some(overlap.min(size)) };
    write_key(object, KEY, &record).await
}

async fn detach(object: Object<'_>, legacy: bool) -> Result<(), Errno> {
    check_exists(&mut *object).await?;
    let features: u64 = match find_key(&mut *object, b"features").await? {
        Some(features) if features & features::LAYERING != 0 => features,
        _ => return Err(Errno::ENOEXEC),
    };
    let mut parent: ParentRecord = read_key(&mut *object, KEY).await?;
    if legacy && !parent.spec.pool_namespace.is_empty() {
        return Err(Errno::EXDEV);
    }
    if parent.head_overlap.is_none() {
        return Err(Errno::ENOENT);
    }

    let snaps = snapshot::all(&mut *object).await?;
    let mut snaps_need_parent = false;
    for mut snap in snaps.into_iter().filter(SnapRecord::has_parent) {
        if features & features::DEEP_FLATTEN == 0 {
            snaps_need_parent = true;
            break;
        }
        snap.parent = ParentRecord::default();
        snap.parent_overlap = None;
        snapshot::write(&mut *object, snap.id, snap).await?;
    }
    if snaps_need_parent {
        parent.head_overlap = None;
        return write_key(object, KEY, &parent).await;
    }
    remove_key(&mut *object, KEY).await?;
    change_op_features(object, 0, features::op::CLONE_CHILD).await
}
