//! Buckets with lifecycle rules: a row for each, and how far the work is in the header.

use super::rows;
use crate::context::Object;
use crate::method::{Ignored, decode, encode};
use ::rgw::lc::{
    LcEntry, LcEntryOp, LcGetEntryRet, LcHead, LcHeadOp, LcListEntriesOp, LcListEntriesRet,
    LcMarkerOp,
};
use bytes::Bytes;
use types::errno::Errno;

pub(super) async fn get_entry(object: Object<'_>, op: LcMarkerOp) -> Result<Bytes, Errno> {
    let entry = rows::read(object, &op.marker).await?;
    Ok(encode(&LcGetEntryRet { entry }))
}

pub(super) async fn set_entry(object: Object<'_>, op: LcEntryOp) -> Result<(), Errno> {
    rows::write(object, &op.entry.bucket, &op.entry).await
}

pub(super) async fn rm_entry(object: Object<'_>, op: LcEntryOp) -> Result<(), Errno> {
    object.map_remove_key(&op.entry.bucket).await
}

/// The entry after one; an empty one if there is none.
pub(super) async fn get_next_entry(object: Object<'_>, op: LcMarkerOp) -> Result<Bytes, Errno> {
    let page = object.map_get_vals(&op.marker, b"", 1).await?;
    let entry = match page.rows.into_values().next() {
        Some(value) => decode(value, Errno::EIO)?,
        None => LcEntry::default(),
    };
    Ok(encode(&LcEntryOp { entry }))
}

/// An entry, or one of before 16.2: bucket and status.
fn stored(value: Bytes) -> Result<LcEntry, Errno> {
    if let Ok(entry) = decode(value.clone(), Errno::EIO) {
        return Ok(entry);
    }
    let (bucket, status): (Bytes, i32) = decode(value, Errno::EIO)?;
    Ok(LcEntry { bucket, start_time: 0, status: status as u32 })
}

pub(super) async fn list_entries(object: Object<'_>, op: LcListEntriesOp) -> Result<Bytes, Errno> {
    let page = object.map_get_vals(&op.marker, b"", op.max_entries.into()).await?;
    let entries = page.rows.into_values().map(stored).collect::<Result<_, _>>()?;
    Ok(encode(&LcListEntriesRet { entries, is_truncated: page.more, compat_v: op.compat_v }))
}

pub(super) async fn put_head(object: Object<'_>, op: LcHeadOp) -> Result<(), Errno> {
    object.map_set_header(encode(&op.head)).await
}

pub(super) async fn get_head(object: Object<'_>, _: Ignored) -> Result<Bytes, Errno> {
    let stored = object.map_get_header().await?;
    let head = if stored.is_empty() { LcHead::default() } else { decode(stored, Errno::EINVAL)? };
    Ok(encode(&LcHeadOp { head }))
}
