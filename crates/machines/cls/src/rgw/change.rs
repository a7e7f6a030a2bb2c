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

/// Finishes a change. EINVAL if nothing with its tag was announced, ENOENT if an object is removed
/// that the index does not have.
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
    if given_up || outdated {
        if op.tag.is_empty() {
            return Ok(());
        }
        return rows::write(object, &idx, &entry).await;
    }
    if entry.exists {
        header.unaccount(&entry.meta);
    }
    entry.ver = op.ver;
    match op.op {
        ModifyOp::DEL => {
            entry.meta = op.meta;
            if !on_disk {
                return Err(Errno::ENOENT);
            }
            if entry.pending_map.is_empty() {
                object.map_remove_key(&idx).await?;
            } else {
                entry.exists = false;
                rows::write(object, &idx, &entry).await?;
            }
        }
        ModifyOp::ADD => {
            header.account(&op.meta);
            entry.meta = op.meta;
            entry.key = op.key.clone();
            entry.exists = true;
            entry.tag = op.tag.clone();
            rows::write(object, &idx, &entry).await?;
        }
        _ => {}
    }
    let log = op.log_op && !header.syncstopped;
    if log {
        let change = bilog::Change {
            key: &op.key,
            op: op.op,
            tag: &op.tag,
            timestamp: entry.meta.mtime,
            ver: entry.ver.clone(),
            flags: op.bilog_flags,
            // The entries below have none, as in Ceph.
            zones: std::mem::take(&mut op.zones_trace),
            owner: None,
        };
        bilog::log(object, &mut header, change).await?;
    }
    for key in &op.remove_objs {
        let Ok((idx, Some(removed))) = rows::read_object(object, key, false).await else {
            continue;
        };
        header.unaccount(&removed.meta);
        if log {
            // Keys of the log come from the version: each entry needs one of its own.
            header.ver = header.ver.wrapping_add(1);
            let change = bilog::Change {
                key,
                op: ModifyOp::DEL,
                tag: &op.tag,
                timestamp: removed.meta.mtime,
                ver: removed.ver.clone(),
                flags: op.bilog_flags,
                zones: Default::default(),
                owner: None,
            };
            if bilog::log(object, &mut header, change).await.is_err() {
                continue;
            }
        }
        if object.map_remove_key(&idx).await.is_err() {
            tracing::error!(key = %idx.escape_ascii(), "a row of an index could not be removed");
        }
    }
    rows::write_header(object, header).await
}
