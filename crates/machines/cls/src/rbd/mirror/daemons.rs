//! The mirroring daemons of a pool (rows `instance_ID`) and which of them mirrors which image (rows
//! `image_map_GLOBAL_ID`).

use crate::context::Object;
use crate::method::{Ignored, decode, encode};
use crate::rbd::omap::{key, list, remove_key, write_key};
use crate::rbd::types::MirrorImageMap;
use bytes::Bytes;
use std::collections::BTreeMap;
use types::errno::Errno;

const INSTANCE_PREFIX: &[u8] = b"instance_";
const MAP_PREFIX: &[u8] = b"image_map_";

/// The daemons.
pub async fn mirror_instances_list(object: Object<'_>, _: Ignored) -> Result<Bytes, Errno> {
    let rows = list(object, INSTANCE_PREFIX, b"", u64::MAX).await?;
    Ok(encode(&rows.into_iter().map(|(id, _)| id).collect::<Vec<_>>()))
}

/// Adds a daemon.
pub async fn mirror_instances_add(object: Object<'_>, id: Bytes) -> Result<(), Errno> {
    object.map_set_val(&key(INSTANCE_PREFIX, &id), Bytes::new()).await
}

/// Removes a daemon.
pub async fn mirror_instances_remove(object: Object<'_>, id: Bytes) -> Result<(), Errno> {
    object.map_remove_key(&key(INSTANCE_PREFIX, &id)).await
}

/// The daemons that mirror up to so many images, after one.
pub async fn mirror_image_map_list(
    object: Object<'_>,
    (start_after, most): (Bytes, u64),
) -> Result<Bytes, Errno> {
    let rows = list(object, MAP_PREFIX, &start_after, most).await?;
    let maps = rows.into_iter().map(|(id, row)| Ok((id, decode(row, Errno::EINVAL)?)));
    Ok(encode(&maps.collect::<Result<BTreeMap<Bytes, MirrorImageMap>, Errno>>()?))
}

/// Says which daemon mirrors an image.
pub async fn mirror_image_map_update(
    object: Object<'_>,
    (global_id, map): (Bytes, MirrorImageMap),
) -> Result<(), Errno> {
    write_key(object, &key(MAP_PREFIX, &global_id), &map).await
}

/// Says that no daemon mirrors an image.
pub async fn mirror_image_map_remove(object: Object<'_>, global_id: Bytes) -> Result<(), Errno> {
    remove_key(object, &key(MAP_PREFIX, &global_id)).await
}
