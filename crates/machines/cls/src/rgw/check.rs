//! The index as a whole: its header and its totals.

use super::{bi, rows};
use crate::context::Object;
use crate::method::{Ignored, decode, encode};
use ::rgw::bi::BiType;
use ::rgw::entry::DirEntry;
use ::rgw::header::DirHeader;
use ::rgw::index::{CheckIndexRet, TagTimeoutOp, UpdateStatsOp};
use bytes::Bytes;
use types::errno::Errno;

/// Rows that are counted at a time.
const CHUNK: u32 = 1000;

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
    // Objects without versions, and all versions: rows of versions in the order of listings and
    // marks of objects with versions have flags.
    for kind in [BiType::PLAIN, BiType::INSTANCE] {
        let mut after = Bytes::new();
        loop {
            let mut entries = Vec::new();
            let more = bi::of_kind(object, kind, &after, CHUNK, &mut entries).await?;
            for row in entries {
                let entry: DirEntry = decode(row.data, Errno::EIO)?;
                if entry.exists && (kind == BiType::INSTANCE || entry.flags == 0) {
                    calculated.account(&entry.meta);
                }
                after = row.idx;
            }
            if !more {
                break;
            }
        }
    }
    Ok(CheckIndexRet { existing_header: existing, calculated_header: calculated })
}

pub(super) async fn check_index(object: Object<'_>, _: Ignored) -> Result<Bytes, Errno> {
    Ok(encode(&count(object).await?))
}

pub(super) async fn rebuild_index(object: Object<'_>, _: Ignored) -> Result<(), Errno> {
    let counted = count(object).await?;
    rows::write_header(object, counted.calculated_header).await
}
