//! The mirrored images of a pool: rows `image_ID`, and rows `global_ID` for the way back from the
//! number that an image has in all clusters.

use super::status;
use crate::context::Object;
use crate::method::encode;
use crate::rbd::omap::{find_key, key, list_of, optional, read_key, remove_key, write_key};
use crate::rbd::types::{MirrorImage, MirrorImageState};
use bytes::Bytes;
use std::collections::BTreeMap;
use types::errno::Errno;

const PREFIX: &[u8] = b"image_";
const GLOBAL_PREFIX: &[u8] = b"global_";

/// What is known of an image's mirroring.
pub async fn read(object: Object<'_>, image_id: &[u8]) -> Result<MirrorImage, Errno> {
    read_key(object, &key(PREFIX, image_id)).await
}

/// Up to so many images, by id, after an id.
pub async fn list(
    object: Object<'_>,
    start_after: &[u8],
    most: u64,
) -> Result<Vec<(Bytes, MirrorImage)>, Errno> {
    list_of(object, PREFIX, start_after, most).await
}

/// The image with this number in all clusters.
pub async fn id_of(object: Object<'_>, global_id: &[u8]) -> Result<Bytes, Errno> {
    read_key(object, &key(GLOBAL_PREFIX, global_id)).await
}

/// Ids and numbers of up to so many images after an id.
pub async fn mirror_image_list(
    object: Object<'_>,
    (start_after, most): (Bytes, u64),
) -> Result<Bytes, Errno> {
    let images = list(object, &start_after, most).await?;
    let ids: BTreeMap<Bytes, Bytes> =
        images.into_iter().map(|(id, image)| (id, image.global_image_id)).collect();
    Ok(encode(&ids))
}

/// The id of the image with this number.
pub async fn mirror_image_get_image_id(
    object: Object<'_>,
    global_id: Bytes,
) -> Result<Bytes, Errno> {
    Ok(encode(&id_of(object, &global_id).await?))
}

/// What is known of an image's mirroring.
pub async fn mirror_image_get(object: Object<'_>, image_id: Bytes) -> Result<Bytes, Errno> {
    Ok(encode(&read(object, &image_id).await?))
}

/// Says what is known of an image's mirroring. EINVAL if its number would change, EEXIST if another
/// image has the number, ENOENT if an image that is not mirrored is to stop.
pub async fn mirror_image_set(
    object: Object<'_>,
    (image_id, image): (Bytes, MirrorImage),
) -> Result<(), Errno> {
    let global_key = key(GLOBAL_PREFIX, &image.global_image_id);
    match optional(read(&mut *object, &image_id).await)? {
        Some(present) if present.global_image_id != image.global_image_id => {
            return Err(Errno::EINVAL);
        }
        Some(_) => {}
        None => {
            if find_key::<Bytes>(&mut *object, &global_key).await?.is_some() {
                return Err(Errno::EEXIST);
            }
            if image.state == MirrorImageState::DISABLING {
                return Err(Errno::ENOENT);
            }
        }
    }
    write_key(&mut *object, &key(PREFIX, &image_id), &image).await?;
    write_key(object, &global_key, &image_id).await
}

/// Forgets an image and how its mirroring went; EBUSY unless it is about to stop.
pub async fn mirror_image_remove(object: Object<'_>, image_id: Bytes) -> Result<(), Errno> {
    let image = read(&mut *object, &image_id).await?;
    if image.state != MirrorImageState::DISABLING {
        return Err(Errno::EBUSY);
    }
    object.map_remove_key(&key(PREFIX, &image_id)).await?;
    remove_key(&mut *object, &key(GLOBAL_PREFIX, &image.global_image_id)).await?;
    status::remove_all(object, &image.global_image_id).await
}
