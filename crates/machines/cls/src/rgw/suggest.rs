//! Entries that a gateway found to differ from their objects while it listed them.

use super::{bilog, keys, rows};
use crate::context::Object;
use crate::method::{Raw, decode};
use ::rgw::entry::{DirEntry, ModifyOp};
use ::rgw::header::DEFAULT_TAG_TIMEOUT_SECS;
use ::rgw::index::suggest;
use denc::Reader;
use types::Utime;
use types::errno::Errno;

fn nanos(t: Utime) -> u128 {
    u128::from(t.sec) * 1_000_000_000 + u128::from(t.nsec)
}

/// Does what is suggested, unless a change of the object is under way. The input is one suggestion
/// after the other: what to do, and the entry.
pub(super) async fn suggest_changes(object: Object<'_>, Raw(input): Raw) -> Result<(), Errno> {
    let mut header = rows::header(object).await?;
    let mut changed = false;
    let timeout_secs = match header.tag_timeout {
        0 => DEFAULT_TAG_TIMEOUT_SECS,
        secs => secs,
    };
    let timeout = u128::from(timeout_secs) * 1_000_000_000;
    let now = nanos(object.origin().now);
    let mut input = Reader::new(input);
    while input.left() > 0 {
        let op: u8 = input.get().map_err(|_| Errno::EINVAL)?;
        let mut new: DirEntry = input.get().map_err(|_| Errno::EINVAL)?;
        let idx = keys::object(&new.key);
        let stored = rows::optional(object.map_get_val(&idx).await).map_err(|_| Errno::EINVAL)?;
        let Some(stored) = stored else { continue };
        let mut old = DirEntry::default();
        if !stored.is_empty() {
            old = decode(stored, Errno::EINVAL)?;
            old.pending_map.retain(|info| now <= nanos(info.timestamp) + timeout);
        }
        // The entry was changed since the gateway looked at it, or is about to be.
        if new.index_ver < old.index_ver || !old.pending_map.is_empty() {
            continue;
        }
        if old.exists {
            header.unaccount(&old.meta);
            changed = true;
        }
        header.stats.entry(new.meta.category).or_default();
        let log = op & suggest::LOG_OP != 0 && !header.syncstopped;
        match op & !suggest::LOG_OP {
            suggest::REMOVE => {
                object.map_remove_key(&idx).await?;
                if log && old.exists {
                    bilog::log(object, &mut header, bilog::Change::of(&old, ModifyOp::DEL)).await?;
                }
            }
            suggest::UPDATE => {
                header.account(&new.meta);
                changed = true;
                new.index_ver = header.ver;
                rows::write(object, &idx, &new).await?;
                if log {
                    bilog::log(object, &mut header, bilog::Change::of(&new, ModifyOp::ADD)).await?;
                }
            }
            _ => {}
        }
    }
    if changed { rows::write_header(object, header).await } else { Ok(()) }
}
