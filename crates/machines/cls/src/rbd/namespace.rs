//! Namespaces of a pool that may have images (`rbd_namespace`): rows `name_NAME`.

use super::omap::{has_key, key, list};
use crate::context::Object;
use crate::method::encode;
use bytes::Bytes;
use types::errno::Errno;

const PREFIX: &[u8] = b"name_";

/// Adds a namespace; EEXIST if it is there.
pub async fn namespace_add(object: Object<'_>, name: Bytes) -> Result<(), Errno> {
    let key = key(PREFIX, &name);
    if has_key(&mut *object, &key).await? {
        return Err(Errno::EEXIST);
    }
    object.map_set_val(&key, Bytes::new()).await
}

/// Removes a namespace; ENOENT if it is not there.
pub async fn namespace_remove(object: Object<'_>, name: Bytes) -> Result<(), Errno> {
    let key = key(PREFIX, &name);
    object.map_get_val(&key).await?;
    object.map_remove_key(&key).await
}

/// Up to so many namespaces after a name.
pub async fn namespace_list(
    object: Object<'_>,
    (start_after, most): (Bytes, u64),
) -> Result<Bytes, Errno> {
    let names: Vec<Bytes> =
        list(object, PREFIX, &start_after, most).await?.into_iter().map(|(name, _)| name).collect();
    Ok(encode(&names))
}
