//! What users note about an image or a pool: rows `metadata_KEY`.

use super::omap::{ROWS_PER_READ, key, list};
use crate::context::Object;
use crate::method::encode;
use bytes::Bytes;
use std::collections::BTreeMap;
use types::errno::Errno;

const PREFIX: &[u8] = b"metadata_";

/// Up to so many notes after a key; 0 is as many as old clients got.
pub async fn metadata_list(
    object: Object<'_>,
    (start_after, most): (Bytes, u64),
) -> Result<Bytes, Errno> {
    let most = if most == 0 { ROWS_PER_READ } else { most };
    let found: BTreeMap<Bytes, Bytes> =
        list(object, PREFIX, &start_after, most).await?.into_iter().collect();
    Ok(encode(&found))
}

/// Sets notes.
pub async fn metadata_set(object: Object<'_>, notes: BTreeMap<Bytes, Bytes>) -> Result<(), Errno> {
    object
        .map_set_vals(notes.into_iter().map(|(name, value)| (key(PREFIX, &name), value)).collect())
        .await
}

/// Removes a note.
pub async fn metadata_remove(object: Object<'_>, name: Bytes) -> Result<(), Errno> {
    object.map_remove_key(&key(PREFIX, &name)).await
}

/// A note; ENOENT if there is none.
pub async fn metadata_get(object: Object<'_>, name: Bytes) -> Result<Bytes, Errno> {
    Ok(encode(&object.map_get_val(&key(PREFIX, &name)).await?))
}
