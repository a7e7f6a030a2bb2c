//! Data that waits to be removed, as rows: by tag, and by time. Gateways from 15.2 on put it into a
//! queue instead ([`crate::rgw_gc`]) and read this until it is empty.

use super::rows;
use crate::context::Object;
use crate::method::{decode, encode};
use ::rgw::gc::{GcDeferEntryOp, GcListOp, GcListRet, GcObjInfo, GcRemoveOp, GcSetEntryOp};
use bytes::Bytes;
use std::time::Duration;
use types::Utime;
use types::errno::Errno;

/// Rows in one answer, unless the client says how many.
const DEFAULT_LIST: u32 = 128;
/// How rows by time begin.
const TIME: &[u8] = b"1_";

fn by_tag(tag: &[u8]) -> Bytes {
    [b"0_", tag].concat().into()
}

fn by_time(time: Utime) -> Bytes {
    format!("1_{:011}.{:09}", time.sec, time.nsec).into()
}

async fn update(object: Object<'_>, secs: u32, mut info: GcObjInfo) -> Result<(), Errno> {
    let tag = by_tag(&info.tag);
    if let Ok(old) = rows::read::<GcObjInfo>(object, &tag).await {
        rows::optional(object.map_remove_key(&by_time(old.time)).await)?;
    }
    info.time = object.origin().now + Duration::from_secs(secs.into());
    rows::write(object, &tag, &info).await?;
    rows::write(object, &by_time(info.time), &info).await
}

pub(super) async fn set_entry(object: Object<'_>, op: GcSetEntryOp) -> Result<(), Errno> {
    update(object, op.expiration_secs, op.info).await
}

pub(super) async fn defer_entry(object: Object<'_>, op: GcDeferEntryOp) -> Result<(), Errno> {
    let info = rows::read(object, &by_tag(&op.tag)).await?;
    update(object, op.expiration_secs, info).await
}

pub(super) async fn list(object: Object<'_>, op: GcListOp) -> Result<Bytes, Errno> {
    let after = if op.marker.is_empty() { Bytes::from_static(TIME) } else { op.marker };
    let end = op.expired_only.then(|| by_time(object.origin().now));
    let max = if op.max == 0 { DEFAULT_LIST } else { op.max };
    let page = object.map_get_vals(&after, b"", max.into()).await?;
    let mut ret = GcListRet { truncated: page.more, ..GcListRet::default() };
    let mut last = Bytes::new();
    for (key, value) in page.rows {
        if end.as_ref().is_some_and(|end| key >= *end) || !key.starts_with(TIME) {
            ret.truncated = false;
            break;
        }
        ret.entries.push(decode(value, Errno::EIO)?);
        last = key;
    }
    if ret.truncated {
        ret.next_marker = last;
    }
    Ok(encode(&ret))
}

pub(super) async fn remove(object: Object<'_>, op: GcRemoveOp) -> Result<(), Errno> {
    for tag in op.tags {
        let tag = by_tag(&tag);
        let Some(info) = rows::optional(rows::read::<GcObjInfo>(object, &tag).await)? else {
            continue;
        };
        rows::optional(object.map_remove_key(&by_time(info.time)).await)?;
        rows::optional(object.map_remove_key(&tag).await)?;
    }
    Ok(())
}
