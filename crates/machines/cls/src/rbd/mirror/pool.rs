//! Whether and how a pool is mirrored.

use super::peers;
use crate::context::Object;
use crate::method::{Ignored, encode};
use crate::rbd::omap::{find_key, read_key, remove_key, write_key};
use crate::rbd::types::MirrorMode;
use bytes::Bytes;
use types::errno::Errno;

const UUID: &[u8] = b"mirror_uuid";
const MODE: &[u8] = b"mirror_mode";

/// The number of the pool's mirroring: the row's bytes without a length.
pub async fn uuid(object: Object<'_>) -> Result<Bytes, Errno> {
    object.map_get_val(UUID).await
}

/// Whether the pool is mirrored.
pub async fn is_enabled(object: Object<'_>) -> Result<bool, Errno> {
    let mode: Option<MirrorMode> = find_key(object, MODE).await?;
    Ok(mode.is_some_and(|mode| mode != MirrorMode::DISABLED))
}

/// The number of the pool's mirroring.
pub async fn mirror_uuid_get(object: Object<'_>, _: Ignored) -> Result<Bytes, Errno> {
    Ok(encode(&uuid(object).await?))
}

/// Sets that number, before mirroring begins.
pub async fn mirror_uuid_set(object: Object<'_>, uuid: Bytes) -> Result<(), Errno> {
    if uuid.is_empty() || is_enabled(&mut *object).await? {
        return Err(Errno::EINVAL);
    }
    object.map_set_val(UUID, uuid).await
}

/// What is mirrored; ENOENT if nothing ever was.
pub async fn mirror_mode_get(object: Object<'_>, _: Ignored) -> Result<Bytes, Errno> {
    let mode: MirrorMode = read_key(object, MODE).await?;
    Ok(encode(&mode))
}

/// Says what is mirrored. It needs a number first; it ends only when there are no peers.
pub async fn mirror_mode_set(object: Object<'_>, mode: MirrorMode) -> Result<(), Errno> {
    match mode {
        MirrorMode::IMAGE | MirrorMode::POOL => {
            uuid(&mut *object)
                .await
                .map_err(|e| if e == Errno::ENOENT { Errno::EINVAL } else { e })?;
            write_key(object, MODE, &mode).await
        }
        MirrorMode::DISABLED => {
            if !peers::all(&mut *object).await?.is_empty() {
                return Err(Errno::EBUSY);
            }
            remove_key(&mut *object, MODE).await?;
            remove_key(object, UUID).await
        }
        _ => Err(Errno::EINVAL),
    }
}
