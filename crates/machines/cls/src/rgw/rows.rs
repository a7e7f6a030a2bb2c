//! Reading and writing header and rows of a bucket's index.

use super::keys;
use crate::context::{Object, Page};
use crate::method::{decode, encode};
use ::rgw::entry::{DirEntry, flag};
use ::rgw::header::DirHeader;
use ::rgw::key::ObjKey;
use bytes::Bytes;
use denc::{Decode, Encode};
use std::collections::BTreeMap;
use types::errno::Errno;

/// What is not there is `None`.
pub(super) fn optional<T>(result: Result<T, Errno>) -> Result<Option<T>, Errno> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Errno::ENOENT) => Ok(None),
        Err(e) => Err(e),
    }
}

/// The header; an index without one has an empty one.
pub(super) async fn header(object: Object<'_>) -> Result<DirHeader, Errno> {
    let stored = object.map_get_header().await?;
    if stored.is_empty() { Ok(DirHeader::default()) } else { decode(stored, Errno::EIO) }
}

/// Writes the header, which counts as a change of it.
pub(super) async fn write_header(object: Object<'_>, mut header: DirHeader) -> Result<(), Errno> {
    header.ver = header.ver.wrapping_add(1);
    object.map_set_header(encode(&header)).await
}

/// A row; ENOENT if there is none.
pub(super) async fn read<T: Decode>(object: Object<'_>, key: &[u8]) -> Result<T, Errno> {
    decode(object.map_get_val(key).await?, Errno::EIO)
}

/// Writes a row.
pub(super) async fn write<T: Encode>(
    object: Object<'_>,
    key: &[u8],
    value: &T,
) -> Result<(), Errno> {
    object.map_set_val(key, encode(value)).await
}

/// An object's row, and its entry if there is one.
///
/// An object without a version that stands for one with versions is the null version, whose row is
/// elsewhere; with `delete_marker`, that of a delete marker which is the null version goes before.
pub(super) async fn read_object(
    object: Object<'_>,
    key: &ObjKey,
    delete_marker: bool,
) -> Result<(Bytes, Option<DirEntry>), Errno> {
    let idx = keys::object(key);
    let Some(entry) = optional(read::<DirEntry>(object, &idx).await)? else {
        return Ok((idx, None));
    };
    if !key.instance.is_empty() || !entry.has(flag::VER_MARKER) {
        return Ok((idx, Some(entry)));
    }
    if delete_marker {
        let idx = keys::null_delete_marker(key);
        // An entry that cannot be read is as good as none here, as in Ceph.
        if let Ok(entry) = read(object, &idx).await {
            return Ok((idx, Some(entry)));
        }
    }
    let idx = keys::instance(key);
    let entry = optional(read(object, &idx).await)?;
    Ok((idx, entry))
}

/// Rows in the order of listings: those of other kinds are left out, and the page goes on after
/// them.
pub(super) async fn listed(
    object: Object<'_>,
    start_after: &[u8],
    prefix: &[u8],
    max: i32,
) -> Result<Page<BTreeMap<Bytes, Bytes>>, Errno> {
    let mut page = object.map_get_vals(start_after, prefix, i64::from(max) as u64).await?;
    let first = |key: Option<&Bytes>| key.and_then(|k| k.first().copied()).unwrap_or(0);
    let (Some((low, _)), Some((high, _))) =
        (page.rows.first_key_value(), page.rows.last_key_value())
    else {
        return Ok(page);
    };
    if first(Some(high)) < keys::SPECIAL || first(Some(low)) > keys::SPECIAL {
        return Ok(page);
    }
    page.rows.retain(|key, _| keys::is_listed(key));
    if max == page.rows.len() as i32 || !page.more {
        return Ok(page);
    }
    let from = match page.rows.last_key_value() {
        Some((last, _)) if &last[..] > keys::AFTER_SPECIAL => last.clone(),
        _ => Bytes::from_static(keys::AFTER_SPECIAL),
    };
    let left = (i64::from(max) as u64).wrapping_sub(page.rows.len() as u64);
    let next = object.map_get_vals(&from, prefix, left).await?;
    page.rows.extend(next.rows);
    page.more = next.more;
    Ok(page)
}
