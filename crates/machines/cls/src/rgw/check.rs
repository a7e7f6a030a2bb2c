//! The index as a whole: its header and its totals.

use super::{keys, rows};
use crate::context::Object;
use crate::method::{Ignored, decode, encode};
use ::rgw::entry::DirEntry;
use ::rgw::header::DirHeader;
use ::rgw::index::{CheckIndexRet, TagTimeoutOp, UpdateStatsOp};
use bytes::Bytes;
use types::errno::Errno;

/// Rows that are counted at a time.
const CHUNK: usize = 1000;

/// EINVAL if there is a header.
pub(super) async fn init_index(object: Object<'_>, _: Ignored) -> Result<(), Errno> {
    if !object.map_get_header().await?.is_empty() {
        return Err(Errno::EINVAL);
    }
    rows::write_header(object, DirHeader::default()).await
}

pub(super) async fn set_tag_timeout(object: Object<'_>, op: TagTimeoutOp) -> Result<(), Errno> {
    let mut header = rows::header(object).await?;
    header.tag_timeout = op.tag_timeout;
    rows::write_header(object, header).await
}

pub(super) async fn update_stats(object: Object<'_>, op: UpdateStatsOp) -> Result<(), Errno> {
    let mut header = rows::header(object).await?;
    for (category, stats) in op.stats {
        let total = header.stats.entry(category).or_default();
        if op.absolute {
            *total = stats;
        } else {
            total.add(stats);
        }
    }
    rows::write_header(object, header).await
}

async fn count(object: Object<'_>) -> Result<CheckIndexRet, Errno> {
    let existing = rows::header(object).await?;
    let mut calculated = DirHeader {
        tag_timeout: existing.tag_timeout,
        ver: existing.ver,
        syncstopped: existing.syncstopped,
        ..DirHeader::default()
    };
    let mut after = Bytes::new();
    loop {
        let page = rows::listed(object, &after, b"", CHUNK as i32).await?;
        let full = page.rows.len() == CHUNK;
        for (key, value) in page.rows {
            calculated.account(&decode::<DirEntry>(value, Errno::EIO)?.meta);
            after = key;
        }
        if !full {
            return Ok(CheckIndexRet { existing_header: existing, calculated_header: calculated });
        }
        debug_assert!(keys::is_listed(&after));
    }
}

pub(super) async fn check_index(object: Object<'_>, _: Ignored) -> Result<Bytes, Errno> {
    Ok(encode(&count(object).await?))
}

pub(super) async fn rebuild_index(object: Object<'_>, _: Ignored) -> Result<(), Errno> {
    let counted = count(object).await?;
    rows::write_header(object, counted.calculated_header).await
}
