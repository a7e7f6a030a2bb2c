//! The header of an image: what it is.
//!
//! Every property is a row of its own in the omap of `rbd_header.ID`.

use super::features;
use super::omap::{Args, check_exists, find_key, read_key, write_key};
use super::snapshot;
use super::types::ParentRecord;
use crate::context::Object;
use crate::method::{Ignored, Raw, encode};
use bytes::Bytes;
use std::collections::BTreeMap;
use types::SnapId;
use types::Utime;
use types::errno::Errno;

/// ENOEXEC unless the image has all features of `need`. An image of the first format has none.
pub async fn require_feature(object: Object<'_>, need: u64) -> Result<(), Errno> {
    match find_key::<u64>(object, b"features").await? {
        Some(features) if features & need == need => Ok(()),
        _ => Err(Errno::ENOEXEC),
    }
}

/// Changes the bits `mask` of the operation features to `bits`, and shows in the features whether
/// any is left.
pub async fn change_op_features(object: Object<'_>, bits: u64, mask: u64) -> Result<(), Errno> {
    let features: u64 = read_key(&mut *object, b"features").await?;
    let before: u64 = find_key(&mut *object, b"op_features").await?.unwrap_or_default();
    let after = (before & !mask) | (bits & mask);
    if after == before {
        return Ok(());
    }
    let features_after = if after == 0 {
        super::omap::remove_key(&mut *object, b"op_features").await?;
        features & !features::OPERATIONS
    } else {
        write_key(&mut *object, b"op_features", &after).await?;
        features | features::OPERATIONS
    };
    if features_after != features {
        write_key(object, b"features", &features_after).await?;
    }
    Ok(())
}

/// Makes a header. Input: size, order (the logarithm of the object size), features, prefix of the
/// data objects' names, and, with the feature for it, the data pool. ENOSYS for features that this
/// class does not know; EEXIST if there is a header.
pub async fn create(object: Object<'_>, Raw(input): Raw) -> Result<(), Errno> {
    let mut args = Args::new(input);
    let size: u64 = args.get()?;
    let order: u8 = args.get()?;
    let features: u64 = args.get()?;
    let object_prefix: Bytes = args.get()?;
    let data_pool: i64 = args.get_or(-1)?;

    if features & !features::ALL != 0 {
        return Err(Errno::ENOSYS);
    }
    if object_prefix.is_empty() {
        return Err(Errno::EINVAL);
    }
    if object.map_get_val(b"object_prefix").await != Err(Errno::ENOENT) {
        return Err(Errno::EEXIST);
    }
    if features & features::OPERATIONS != 0
        || (features & features::DATA_POOL != 0) != (data_pool != -1)
    {
        return Err(Errno::EINVAL);
    }
    let now = encode(&object.origin().now);
    let mut rows: Vec<(&'static str, Bytes)> = vec![
        ("size", encode(&size)),
        ("order", encode(&order)),
        ("features", encode(&features)),
        ("object_prefix", encode(&object_prefix)),
        ("snap_seq", encode(&0u64)),
        ("create_timestamp", now.clone()),
        ("access_timestamp", now.clone()),
        ("modify_timestamp", now),
    ];
    if data_pool != -1 {
        rows.push(("data_pool_id", encode(&data_pool)));
    }
    let rows: BTreeMap<Bytes, Bytes> =
        rows.into_iter().map(|(key, value)| (key.into(), value)).collect();
    object.map_set_vals(rows).await
}

/// The features, and those of them that a client must know. Input: a snapshot (no longer used), and
/// whether the client will only read.
pub async fn get_features(object: Object<'_>, Raw(input): Raw) -> Result<Bytes, Errno> {
    let mut args = Args::new(input);
    args.get::<SnapId>()?;
    let read_only = args.get_or(false)?;
    let features: u64 = read_key(object, b"features").await?;
    let needed = if read_only { features::INCOMPATIBLE } else { features::RW_INCOMPATIBLE };
    Ok(encode(&(features, features & needed)))
}

/// Changes the features `mask` to `bits`; EINVAL if one of them cannot be changed that way.
pub async fn set_features(object: Object<'_>, (bits, mask): (u64, u64)) -> Result<(), Errno> {
    let before: u64 = find_key(&mut *object, b"features").await?.unwrap_or_default();
    if mask & features::INTERNAL != 0 {
        return Err(Errno::EINVAL);
    }
    // A newer client may want features off that are not known here.
    let mask = mask & features::ALL;
    let enable = bits & mask;
    let disable = !bits & mask;
    if enable & !features::MUTABLE != 0
        || disable & !(features::MUTABLE | features::DISABLE_ONLY) != 0
    {
        return Err(Errno::EINVAL);
    }
    write_key(object, b"features", &((before & !mask) | enable)).await
}

/// Order and size, of the image or of a snapshot.
pub async fn get_size(object: Object<'_>, snap_id: SnapId) -> Result<Bytes, Errno> {
    let order: u8 = read_key(&mut *object, b"order").await?;
    let size = if snap_id == SnapId::NOSNAP {
        read_key(object, b"size").await?
    } else {
        snapshot::read(object, snap_id).await?.image_size
    };
    Ok(encode(&(order, size)))
}

/// Changes the size. What a shrinking image can no longer see of its parent, it will not see when
/// it grows again.
pub async fn set_size(object: Object<'_>, size: u64) -> Result<(), Errno> {
    let before: u64 = read_key(&mut *object, b"size").await?;
    write_key(&mut *object, b"size", &size).await?;
    if size < before
        && let Some(mut parent) = find_key::<ParentRecord>(&mut *object, b"parent").await?
        && parent.exists()
        && parent.head_overlap.unwrap_or_default() > size
    {
        parent.head_overlap = Some(size);
        write_key(object, b"parent", &parent).await?;
    }
    Ok(())
}

/// Stripe unit and count; by default, one object after the other.
pub async fn get_stripe_unit_count(object: Object<'_>, _: Ignored) -> Result<Bytes, Errno> {
    check_exists(&mut *object).await?;
    require_feature(&mut *object, features::STRIPING).await?;
    let unit = match find_key::<u64>(&mut *object, b"stripe_unit").await? {
        Some(unit) => unit,
        None => object_size(&mut *object).await.map_err(|_| Errno::EIO)?,
    };
    let count: u64 = find_key(object, b"stripe_count").await?.unwrap_or(1);
    Ok(encode(&(unit, count)))
}

/// Sets stripe unit and count. The unit must divide the object size.
pub async fn set_stripe_unit_count(
    object: Object<'_>,
    (unit, count): (u64, u64),
) -> Result<(), Errno> {
    if unit == 0 || count == 0 {
        return Err(Errno::EINVAL);
    }
    check_exists(&mut *object).await?;
    require_feature(&mut *object, features::STRIPING).await?;
    if object_size(&mut *object).await? % unit != 0 {
        return Err(Errno::EINVAL);
    }
    write_key(&mut *object, b"stripe_unit", &unit).await?;
    write_key(object, b"stripe_count", &count).await
}

/// Size of the data objects; EIO if the header's order is none.
async fn object_size(object: Object<'_>) -> Result<u64, Errno> {
    let order: u8 = read_key(object, b"order").await?;
    1u64.checked_shl(order.into()).ok_or(Errno::EIO)
}

async fn timestamp(object: Object<'_>, key: &[u8]) -> Result<Bytes, Errno> {
    let time: Utime = find_key(object, key).await?.unwrap_or_default();
    Ok(encode(&time))
}

async fn set_timestamp(object: Object<'_>, key: &[u8]) -> Result<(), Errno> {
    check_exists(&mut *object).await?;
    let now = object.origin().now;
    write_key(object, key, &now).await
}

/// When the image was made; 0 if it is not known.
pub async fn get_create_timestamp(object: Object<'_>, _: Ignored) -> Result<Bytes, Errno> {
    timestamp(object, b"create_timestamp").await
}

/// When the image was last read.
pub async fn get_access_timestamp(object: Object<'_>, _: Ignored) -> Result<Bytes, Errno> {
    timestamp(object, b"access_timestamp").await
}

/// When the image was last written.
pub async fn get_modify_timestamp(object: Object<'_>, _: Ignored) -> Result<Bytes, Errno> {
    timestamp(object, b"modify_timestamp").await
}

/// The image was read now.
pub async fn set_access_timestamp(object: Object<'_>, _: Ignored) -> Result<(), Errno> {
    set_timestamp(object, b"access_timestamp").await
}

/// The image was written now.
pub async fn set_modify_timestamp(object: Object<'_>, _: Ignored) -> Result<(), Errno> {
    set_timestamp(object, b"modify_timestamp").await
}

/// Flags of the image or of a snapshot.
pub async fn get_flags(object: Object<'_>, snap_id: SnapId) -> Result<Bytes, Errno> {
    let flags: u64 = if snap_id == SnapId::NOSNAP {
        find_key(object, b"flags").await?.unwrap_or_default()
    } else {
        snapshot::read(object, snap_id).await?.flags
    };
    Ok(encode(&flags))
}

/// Changes the flags `mask`, of the image or of a snapshot, to `flags`.
pub async fn set_flags(object: Object<'_>, Raw(input): Raw) -> Result<(), Errno> {
    let mut args = Args::new(input);
    let flags: u64 = args.get()?;
    let mask: u64 = args.get()?;
    let snap_id = args.get_or(SnapId::NOSNAP)?;
    if snap_id == SnapId::NOSNAP {
        let before: u64 = find_key(&mut *object, b"flags").await?.unwrap_or_default();
        return write_key(object, b"flags", &((before & !mask) | (flags & mask))).await;
    }
    let mut snap = snapshot::read(&mut *object, snap_id).await?;
    snap.flags = (snap.flags & !mask) | (flags & mask);
    snapshot::write(object, snap_id, snap).await
}

/// The operation features.
pub async fn op_features_get(object: Object<'_>, _: Ignored) -> Result<Bytes, Errno> {
    let bits: u64 = find_key(object, b"op_features").await?.unwrap_or_default();
    Ok(encode(&bits))
}

/// Changes operation features.
pub async fn op_features_set(object: Object<'_>, (bits, mask): (u64, u64)) -> Result<(), Errno> {
    if mask & !features::op::ALL != 0 {
        return Err(Errno::EINVAL);
    }
    change_op_features(object, bits, mask).await
}

/// What the names of the data objects begin with.
pub async fn get_object_prefix(object: Object<'_>, _: Ignored) -> Result<Bytes, Errno> {
    let prefix: Bytes = read_key(object, b"object_prefix").await?;
    Ok(encode(&prefix))
}

/// The pool of the data, -1 if it is the header's.
pub async fn get_data_pool(object: Object<'_>, _: Ignored) -> Result<Bytes, Errno> {
    let pool: i64 = find_key(object, b"data_pool_id").await?.unwrap_or(-1);
    Ok(encode(&pool))
}

/// The features that this class knows.
pub async fn get_all_features(_: Object<'_>, _: Ignored) -> Result<Bytes, Errno> {
    Ok(encode(&features::ALL))
}
