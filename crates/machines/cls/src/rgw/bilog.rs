//! The log of a bucket's changes.

use super::{keys, rows};
use crate::context::Object;
use crate::method::{Ignored, decode, encode};
use ::rgw::bilog::{BiLogEntry, BiLogListOp, BiLogListRet, BiLogTrimOp};
use ::rgw::entry::{DirEntry, EntryVer, ModifyOp, PendingState};
use ::rgw::header::DirHeader;
use ::rgw::key::{ObjKey, ZoneSet};
use bytes::Bytes;
use types::Utime;
use types::errno::Errno;

/// A change that is logged.
pub(super) struct Change<'a> {
    /// The object.
    pub(super) key: &'a ObjKey,
    /// What happened.
    pub(super) op: ModifyOp,
    /// The gateway's tag.
    pub(super) tag: &'a Bytes,
    /// When the object changed.
    pub(super) timestamp: Utime,
    /// The version of the head object.
    pub(super) ver: EntryVer,
    /// The log entry's flags.
    pub(super) flags: u16,
    /// Zones that have the change.
    pub(super) zones: ZoneSet,
    /// User and name, for delete markers.
    pub(super) owner: Option<(Bytes, Bytes)>,
}

impl<'a> Change<'a> {
    /// A change that an entry tells of.
    pub(super) fn of(entry: &'a DirEntry, op: ModifyOp) -> Self {
        Change {
            key: &entry.key,
            op,
            tag: &entry.tag,
            timestamp: entry.meta.mtime,
            ver: entry.ver.clone(),
            flags: 0,
            zones: ZoneSet::new(),
            owner: None,
        }
    }
}

/// A key that no other change of the index has.
fn id(object: &mut (dyn crate::ObjectContext + '_), index_ver: u64) -> Bytes {
    let version = object.origin().last_user_version;
    format!("{index_ver:011}.{version}.{}", object.subop()).into()
}

async fn append(
    object: Object<'_>,
    header: &mut DirHeader,
    mut entry: BiLogEntry,
) -> Result<(), Errno> {
    entry.id = id(object, header.ver);
    if entry.id > header.max_marker {
        header.max_marker = entry.id.clone();
    }
    rows::write(object, &keys::log(&entry.id), &entry).await
}

/// Logs a change. The header is to be written afterwards.
pub(super) async fn log(
    object: Object<'_>,
    header: &mut DirHeader,
    change: Change<'_>,
) -> Result<(), Errno> {
    let (owner, owner_display_name) = change.owner.unwrap_or_default();
    let entry = BiLogEntry {
        object: change.key.name.clone(),
        instance: change.key.instance.clone(),
        timestamp: change.timestamp,
        op: change.op,
        ver: change.ver,
        state: PendingState::COMPLETE,
        index_ver: header.ver,
        tag: change.tag.clone(),
        bilog_flags: change.flags,
        owner,
        owner_display_name,
        zones_trace: change.zones,
        ..BiLogEntry::default()
    };
    append(object, header, entry).await
}

pub(super) async fn list(object: Object<'_>, op: BiLogListOp) -> Result<Bytes, Errno> {
    let from = keys::log(&op.marker);
    let page = object.map_get_vals(&from, b"", op.max.into()).await?;
    let mut ret = BiLogListRet { truncated: page.more, ..BiLogListRet::default() };
    for (key, value) in page.rows {
        if &key[..] > keys::INSTANCES {
            ret.truncated = false;
            break;
        }
        ret.entries.push(decode(value, Errno::EIO)?);
    }
    Ok(encode(&ret))
}

/// ENODATA if there is nothing to trim: clients repeat until they see it.
pub(super) async fn trim(object: Object<'_>, op: BiLogTrimOp) -> Result<(), Errno> {
    let begin = keys::log(&op.start_marker);
    let end: Bytes = if op.end_marker.is_empty() {
        Bytes::from_static(keys::INSTANCES)
    } else {
        [keys::LOG, &op.end_marker, b"\0"].concat().into()
    };
    let first =
        object.map_get_keys(&begin, 1).await?.rows.into_iter().next().ok_or(Errno::ENODATA)?;
    if end < first {
        return Err(Errno::ENODATA);
    }
    object.map_remove_range(&first, &end).await
}

async fn switch(object: Object<'_>, op: ModifyOp, stopped: bool) -> Result<(), Errno> {
    let mut header = rows::header(object).await?;
    let entry = BiLogEntry {
        timestamp: object.origin().now,
        op,
        state: PendingState::COMPLETE,
        ..BiLogEntry::default()
    };
    append(object, &mut header, entry).await?;
    header.syncstopped = stopped;
    rows::write_header(object, header).await
}

pub(super) async fn resync(object: Object<'_>, _: Ignored) -> Result<(), Errno> {
    switch(object, ModifyOp::RESYNC, false).await
}

pub(super) async fn stop(object: Object<'_>, _: Ignored) -> Result<(), Errno> {
    switch(object, ModifyOp::SYNCSTOP, true).await
}
