//! How the class reads its inputs and keeps values in omap rows.

use crate::context::Object;
use crate::method::{decode, encode};
use bytes::Bytes;
use denc::{Decode, Encode, Reader};
use types::errno::Errno;

/// How many rows are read at a time (Ceph: `RBD_MAX_KEYS_READ`).
pub const ROWS_PER_READ: u64 = 64;

/// An input without its last values, maybe, because older clients do not send them.
pub struct Args(Reader);

impl Args {
    /// Reads `input`.
    pub fn new(input: Bytes) -> Self {
        Args(Reader::new(input))
    }

    /// The next value; EINVAL if it is not there.
    pub fn get<T: Decode>(&mut self) -> Result<T, Errno> {
        self.0.get().map_err(|_| Errno::EINVAL)
    }

    /// The next value, or `default` if the input ends here.
    pub fn get_or<T: Decode>(&mut self, default: T) -> Result<T, Errno> {
        if self.0.left() == 0 { Ok(default) } else { self.get() }
    }
}

/// ENOENT is an answer.
pub fn optional<T>(result: Result<T, Errno>) -> Result<Option<T>, Errno> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Errno::ENOENT) => Ok(None),
        Err(e) => Err(e),
    }
}

/// ENOENT if the object does not exist.
pub async fn check_exists(object: Object<'_>) -> Result<(), Errno> {
    object.stat().await.map(drop)
}

/// The value of a row; ENOENT if there is none, EIO if it is not of this type.
pub async fn read_key<T: Decode>(object: Object<'_>, key: &[u8]) -> Result<T, Errno> {
    decode(object.map_get_val(key).await?, Errno::EIO)
}

/// The value of a row, if there is one.
pub async fn find_key<T: Decode>(object: Object<'_>, key: &[u8]) -> Result<Option<T>, Errno> {
    optional(read_key(object, key).await)
}

/// Whether there is a row with this key.
pub async fn has_key(object: Object<'_>, key: &[u8]) -> Result<bool, Errno> {
    optional(object.map_get_val(key).await).map(|row| row.is_some())
}

/// Sets the value of a row.
pub async fn write_key<T: Encode + ?Sized>(
    object: Object<'_>,
    key: &[u8],
    value: &T,
) -> Result<(), Errno> {
    object.map_set_val(key, encode(value)).await
}

/// Removes a row, if it and the object are there.
pub async fn remove_key(object: Object<'_>, key: &[u8]) -> Result<(), Errno> {
    optional(object.map_remove_key(key).await).map(drop)
}

/// `prefix` followed by `rest`.
pub fn key(prefix: &[u8], rest: &[u8]) -> Bytes {
    [prefix, rest].concat().into()
}

/// Up to `most` rows whose keys begin with `prefix` and come after `prefix` with `start_after`,
/// without the prefix.
pub async fn list(
    object: Object<'_>,
    prefix: &[u8],
    start_after: &[u8],
    most: u64,
) -> Result<Vec<(Bytes, Bytes)>, Errno> {
    let mut found = Vec::new();
    let mut last = key(prefix, start_after);
    loop {
        let left = most.saturating_sub(found.len() as u64);
        if left == 0 {
            return Ok(found);
        }
        let page = object.map_get_vals(&last, prefix, left.min(ROWS_PER_READ)).await?;
        match page.rows.last_key_value() {
            Some((key, _)) => last = key.clone(),
            None => return Ok(found),
        }
        found.extend(page.rows.into_iter().map(|(key, value)| (key.slice(prefix.len()..), value)));
        if !page.more {
            return Ok(found);
        }
    }
}

/// The same with the values decoded; EIO if one is not of this type.
pub async fn list_of<T: Decode>(
    object: Object<'_>,
    prefix: &[u8],
    start_after: &[u8],
    most: u64,
) -> Result<Vec<(Bytes, T)>, Errno> {
    let rows = list(object, prefix, start_after, most).await?;
    rows.into_iter().map(|(key, value)| Ok((key, decode(value, Errno::EIO)?))).collect()
}

/// Ids are not empty and alphanumeric.
pub fn is_valid_id(id: &[u8]) -> bool {
    !id.is_empty() && id.iter().all(u8::is_ascii_alphanumeric)
}
