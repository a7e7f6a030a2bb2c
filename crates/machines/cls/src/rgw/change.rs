//! Changing an object: the change is announced in the index, then the object is written, then the
//! index learns what came of it.

use super::{bilog, rows};
use crate::context::Object;
use ::rgw::entry::{DirEntry, ModifyOp, PendingInfo, PendingState, flag};
use ::rgw::index::{CompleteOp, PrepareOp};
use types::errno::Errno;

/// Announces a change. EINVAL if it has no tag.
pub(super) async fn prepare(object: Object<'_>, op: PrepareOp) -> Result<(), Errno> {
    if op.tag.is_empty() {
        return Err(Errno::EINVAL);
    }
    let (idx, found) = rows::read_object(object, &op.key, false).await?;
    let mut entry = found.unwrap_or_else(|| DirEntry {
        key: op.key,
        locator: op.locator,
        ..DirEntry::default()
    });
    let info = PendingInfo {
        state: PendingState::PENDING_MODIFY,
        timestamp: object.origin().now,
        op: op.op,
    };
    entry.pending_map.insert(op.tag, info);
    rows::write(object, &idx, &entry).await
}

/// Finishes a change, or gives it up. EINVAL if nothing with its tag was announced.
pub(super) async fn complete(object: Object<'_>, mut op: CompleteOp) -> Result<(), Errno> {
    let mut header = rows::header(object).await.map_err(|_| Errno::EINVAL)?;
    let (idx, found) = rows::read_object(object, &op.key, false).await?;
    let on_disk = found.is_some();
    let mut entry = found.unwrap_or_else(|| DirEntry {
        key: op.key.clone(),
        ver: op.ver.clone(),
        meta: op.meta.clone(),
        locator: op.locator.clone(),
        ..DirEntry::default()
    });
    entry.index_ver = header.ver;
    entry.flags &= flag::VER;
    if !op.tag.is_empty() && !entry.pending_map.remove(&op.tag) {
        return Err(Errno::EINVAL);
    }
    let given_up = !op.tag.is_empty() && op.op == ModifyOp::CANCEL;
    let outdated =
        op.ver.pool == entry.ver.pool && op.ver.epoch != 0 && op.ver.epoch <= entry.ver.epoch;
    let what = if given_up || outdated { ModifyOp::CANCEL } else { op.op };
    let mut log = op.log_op && !header.syncstopped;
    entry.ver = op.ver;
    match what {
        ModifyOp::CANCEL => {
            log = false;
            if op.tag.is_empty() {
                // Nothing was announced.
            } else if !entry.exists && entry.pending_map.is_empty() {
                // The object was removed meanwhile, and the last change of it is given up.
                object.map_remove_key(&idx).await?;
            } else {
                rows::write(object, &idx, &entry).await?;
            }
        }
        ModifyOp::DEL => {
            if entry.exists {
                header.unaccount(&entry.meta);
            }
            entry.meta = op.meta;
            if !on_disk {
                log = false;
            } else if entry.pending_map.is_empty() {
                object.map_remove_key(&idx).await?;
            } else {
                entry.exists = false;
                rows::write(object, &idx, &entry).await?;
            }
        }
        ModifyOp::ADD => {
            if entry.exists {
                header.unaccount(&entry.meta);
            }
            header.account(&op.meta);
            entry.meta = op.meta;
            entry.key = op.key.clone();
            entry.exists = true;
            entry.tag = op.tag.clone();
            rows::write(object, &idx, &entry).await?;
        }
        _ => {}
    }
    if log {
        let change = bilog::Change {
            key: &op.key,
            op: what,
            tag: &op.tag,
            timestamp: entry.meta.mtime,
            ver: entry.ver.clone(),
            flags: op.bilog_flags,
            zones: std::mem::take(&mut op.zones_trace),
            owner: None,
        };
        bilog::log(object, &mut header, change).await?;
    }
    // Entries of parts: what fails here fails nothing else, and the log does not have it.
    for key in &op.remove_objs {
        let Ok((idx, Some(removed))) = rows::read_object(object, key, false).await else {
            continue;
        };
        if removed.exists {
            header.unaccount(&removed.meta);
        }
        if object.map_remove_key(&idx).await.is_err() {
            tracing::error!(key = %idx.escape_ascii(), "a row of an index could not be removed");
        }
    }
    rows::write_header(object, header).await
}
