//! Names and ids of images: the directory of a pool (`rbd_directory`), with a row for either
//! direction, and the id object of each name (`rbd_id.NAME`). Directories of groups have the same
//! rows.

use super::omap::{check_exists, is_valid_id, key, list, list_of, optional, read_key, write_key};
use super::types::DirectoryState;
use crate::context::Object;
use crate::method::{Ignored, Raw, decode, encode};
use bytes::Bytes;
use std::collections::BTreeMap;
use types::errno::Errno;

const NAME_PREFIX: &[u8] = b"name_";
const ID_PREFIX: &[u8] = b"id_";

/// The id in an id object; ENOENT if it is empty.
pub async fn get_id(object: Object<'_>, _: Ignored) -> Result<Bytes, Errno> {
    let (size, _) = object.stat().await?;
    if size == 0 {
        return Err(Errno::ENOENT);
    }
    let id: Bytes = decode(object.read(0, size).await?, Errno::EIO)?;
    Ok(encode(&id))
}

/// Writes an id object, which must exist and be empty.
pub async fn set_id(object: Object<'_>, Raw(input): Raw) -> Result<(), Errno> {
    let (size, _) = object.stat().await?;
    let id: Bytes = decode(input, Errno::EINVAL)?;
    if !is_valid_id(&id) {
        return Err(Errno::EINVAL);
    }
    if size != 0 {
        return Err(Errno::EEXIST);
    }
    object.write(0, encode(&id)).await
}

/// Adds a name with its id: EEXIST if the name is there; EBADF if the id is there, unless it is
/// just being given another name.
async fn insert(object: Object<'_>, name: &Bytes, id: &Bytes, renaming: bool) -> Result<(), Errno> {
    if name.is_empty() || !is_valid_id(id) {
        return Err(Errno::EINVAL);
    }
    let (name_key, id_key) = (key(NAME_PREFIX, name), key(ID_PREFIX, id));
    if read_key::<Bytes>(&mut *object, &name_key).await != Err(Errno::ENOENT) {
        return Err(Errno::EEXIST);
    }
    if !renaming && read_key::<Bytes>(&mut *object, &id_key).await != Err(Errno::ENOENT) {
        return Err(Errno::EBADF);
    }
    object.map_set_vals(BTreeMap::from([(name_key, encode(id)), (id_key, encode(name))])).await
}

/// Removes a name with its id: ESTALE if they do not belong together any more.
async fn delete(object: Object<'_>, name: &Bytes, id: &Bytes) -> Result<(), Errno> {
    let (name_key, id_key) = (key(NAME_PREFIX, name), key(ID_PREFIX, id));
    let stored_id: Bytes = read_key(&mut *object, &name_key).await?;
    let stored_name: Bytes = read_key(&mut *object, &id_key).await?;
    if stored_name != name || stored_id != id {
        return Err(Errno::ESTALE);
    }
    object.map_remove_key(&name_key).await?;
    object.map_remove_key(&id_key).await
}

/// Adds an image or a group, and makes the directory if it is not there.
pub async fn add(object: Object<'_>, Raw(input): Raw) -> Result<(), Errno> {
    object.create(false).await?;
    let (name, id) = decode(input, Errno::EINVAL)?;
    insert(object, &name, &id, false).await
}

/// Removes an image or a group.
pub async fn remove(object: Object<'_>, (name, id): (Bytes, Bytes)) -> Result<(), Errno> {
    delete(object, &name, &id).await
}

/// Gives an image or a group another name, in one step: what a request removes it still sees, so a
/// client could not remove and add in one.
pub async fn rename(
    object: Object<'_>,
    (from, to, id): (Bytes, Bytes, Bytes),
) -> Result<(), Errno> {
    delete(&mut *object, &from, &id).await?;
    insert(object, &to, &id, true).await
}

/// Names and ids of up to so many images or groups, by name, after a name.
pub async fn list_names(
    object: Object<'_>,
    (start_after, most): (Bytes, u64),
) -> Result<Bytes, Errno> {
    let found: BTreeMap<Bytes, Bytes> =
        list_of(object, NAME_PREFIX, &start_after, most).await?.into_iter().collect();
    Ok(encode(&found))
}

/// The id for a name.
pub async fn dir_get_id(object: Object<'_>, name: Bytes) -> Result<Bytes, Errno> {
    let id: Bytes = read_key(object, &key(NAME_PREFIX, &name)).await?;
    Ok(encode(&id))
}

/// The name for an id.
pub async fn dir_get_name(object: Object<'_>, id: Bytes) -> Result<Bytes, Errno> {
    let name: Bytes = read_key(object, &key(ID_PREFIX, &id)).await?;
    Ok(encode(&name))
}

/// ENOENT unless the directory is in this state; it is in none before it was first set.
pub async fn dir_state_assert(object: Object<'_>, expected: DirectoryState) -> Result<(), Errno> {
    let state: DirectoryState = read_key(object, b"state").await?;
    if state == expected { Ok(()) } else { Err(Errno::ENOENT) }
}

/// Opens or closes the directory. Only an empty one that exists can be closed.
pub async fn dir_state_set(object: Object<'_>, state: DirectoryState) -> Result<(), Errno> {
    let exists = optional(check_exists(&mut *object).await)?.is_some();
    match state {
        DirectoryState::READY => {}
        DirectoryState::ADD_DISABLED if !exists => return Err(Errno::ENOENT),
        DirectoryState::ADD_DISABLED => {
            if !list(&mut *object, NAME_PREFIX, b"", 1).await?.is_empty() {
                return Err(Errno::EBUSY);
            }
        }
        _ => return Err(Errno::EINVAL),
    }
    write_key(object, b"state", &state).await
}
