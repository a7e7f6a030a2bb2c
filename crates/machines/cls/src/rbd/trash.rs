//! The trash of a pool (`rbd_trash`): rows `id_ID`.

use super::omap::{find_key, is_valid_id, key, list_of, read_key, write_key};
use super::types::{TrashImageSpec, TrashImageState};
use crate::context::Object;
use crate::method::{Raw, decode, encode};
use bytes::Bytes;
use std::collections::BTreeMap;
use types::errno::Errno;

const PREFIX: &[u8] = b"id_";

/// Adds an image, and makes the trash if it is not there; EEXIST if the image is in it.
pub async fn trash_add(object: Object<'_>, Raw(input): Raw) -> Result<(), Errno> {
    object.create(false).await?;
    let (id, spec): (Bytes, TrashImageSpec) = decode(input, Errno::EINVAL)?;
    if !is_valid_id(&id) {
        return Err(Errno::EINVAL);
    }
    let key = key(PREFIX, &id);
    if find_key::<TrashImageSpec>(&mut *object, &key).await?.is_some() {
        return Err(Errno::EEXIST);
    }
    write_key(object, &key, &spec).await
}

/// Removes an image; ENOENT if it is not there.
pub async fn trash_remove(object: Object<'_>, id: Bytes) -> Result<(), Errno> {
    let key = key(PREFIX, &id);
    object.map_get_val(&key).await?;
    object.map_remove_key(&key).await
}

/// Up to so many images, by id, after an id.
pub async fn trash_list(
    object: Object<'_>,
    (start_after, most): (Bytes, u64),
) -> Result<Bytes, Errno> {
    let found = list_of::<TrashImageSpec>(object, PREFIX, &start_after, most).await?;
    Ok(encode(&found.into_iter().collect::<BTreeMap<_, _>>()))
}

/// What is known of an image in the trash.
pub async fn trash_get(object: Object<'_>, id: Bytes) -> Result<Bytes, Errno> {
    object.map_get_val(&key(PREFIX, &id)).await
}

/// Changes an image's state. Input: id, the state, and the one that it is expected to have; ESTALE
/// if it has neither.
pub async fn trash_state_set(
    object: Object<'_>,
    (id, state, expected): (Bytes, TrashImageState, TrashImageState),
) -> Result<(), Errno> {
    let key = key(PREFIX, &id);
    let mut spec: TrashImageSpec = read_key(&mut *object, &key).await?;
    if spec.state == expected {
        spec.state = state;
        write_key(object, &key, &spec).await
    } else if spec.state == state {
        Ok(())
    } else {
        Err(Errno::ESTALE)
    }
}
