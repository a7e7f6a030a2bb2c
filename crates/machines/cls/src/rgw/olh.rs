//! The versions of an object: which of them is the current one, and what gateways have yet to do to
//! the object's head.
//!
//! An object with versions has, besides the row that marks it as such, a row of its own
//! ([`keys::olh`]), and for each version a row ([`keys::instance`]) and a second one in the order
//! of listings ([`keys::list`]).

use super::{bilog, keys, rows};
use crate::context::Object;
use crate::method::{decode, encode};
use ::rgw::bilog::FLAG_VERSIONED_OP;
use ::rgw::entry::{DirEntry, EntryMeta, EntryVer, ModifyOp, flag};
use ::rgw::key::{ObjKey, ZoneSet};
use ::rgw::olh::{
    ClearOlhOp, LinkOlhOp, OlhEntry, OlhLog, OlhLogEntry, OlhLogOp, ReadOlhLogOp, ReadOlhLogRet,
    TrimOlhLogOp, UnlinkInstanceOp,
};
use bytes::Bytes;
use std::ops::Bound;
use types::Utime;
use types::errno::Errno;

/// Epochs of a log in one answer at most.
const MAX_LOG_ENTRIES: usize = 1000;
/// The epoch of versions that were objects without versions.
const CONVERTED_EPOCH: u64 = 1;
/// The first epoch of other versions.
const FIRST_EPOCH: u64 = 2;

/// A version's entry.
struct Version {
    key: ObjKey,
    idx: Bytes,
    entry: DirEntry,
    read: bool,
}

impl Version {
    fn new(key: ObjKey) -> Self {
        Version { key, idx: Bytes::new(), entry: DirEntry::default(), read: false }
    }

    /// Reads it: ENOENT if there is none. With `delete_marker`, a delete marker that is the null
    /// version goes before an object that is.
    async fn read(&mut self, object: Object<'_>, delete_marker: bool) -> Result<(), Errno> {
        let delete_marker = delete_marker && self.key.instance.is_empty();
        let (idx, found) = rows::read_object(object, &self.key, delete_marker).await?;
        self.idx = idx;
        self.entry = found.ok_or(Errno::ENOENT)?;
        self.read = true;
        Ok(())
    }

    fn is_delete_marker(&self) -> bool {
        self.entry.has(flag::DELETE_MARKER)
    }

    fn become_delete_marker(&mut self, meta: EntryMeta) {
        self.entry.key = self.key.clone();
        self.entry.flags = flag::DELETE_MARKER;
        self.entry.meta = meta;
        self.entry.tag = "delete-marker".into();
        self.read = true;
    }

    async fn remove_listed(&self, object: Object<'_>) -> Result<(), Errno> {
        object.map_remove_key(&keys::list(&self.entry)).await
    }

    async fn remove(&self, object: Object<'_>) -> Result<(), Errno> {
        object.map_remove_key(&self.idx).await
    }

    async fn write_flags(&mut self, object: Object<'_>, set: u16, reset: u16) -> Result<(), Errno> {
        if !self.read {
            self.read(object, true).await?;
        }
        self.entry.flags = (self.entry.flags & !reset) | set;
        let null_marker = self.is_delete_marker() && self.entry.key.instance.is_empty();
        self.idx = if null_marker {
            keys::null_delete_marker(&self.key)
        } else {
            keys::instance(&self.key)
        };
        write_both(object, &self.entry, &self.idx).await
    }

    /// Writes it under another epoch, perhaps as the current version.
    async fn write(&mut self, object: Object<'_>, epoch: u64, current: bool) -> Result<(), Errno> {
        if self.entry.versioned_epoch > 0 {
            self.remove_listed(object).await?;
        }
        self.entry.versioned_epoch = epoch;
        let set = if current { flag::VER | flag::CURRENT } else { flag::VER };
        self.write_flags(object, set, 0).await
    }

    /// The next older version of the object.
    async fn next(&self, object: Object<'_>) -> Result<Option<ObjKey>, Errno> {
        let after = keys::list(&self.entry);
        let page = object.map_get_vals(&after, &self.key.name, 1).await?;
        let Some(value) = page.rows.into_values().next() else { return Ok(None) };
        let next: DirEntry = decode(value, Errno::EIO)?;
        Ok((next.key.name == self.key.name).then_some(next.key))
    }
}

/// Writes a version's row, and that in the order of listings.
async fn write_both(object: Object<'_>, entry: &DirEntry, idx: &Bytes) -> Result<(), Errno> {
    rows::write(object, idx, entry).await?;
    let listed = keys::list(entry);
    if *idx != listed { rows::write(object, &listed, entry).await } else { Ok(()) }
}

/// What the index knows of an object's versions.
#[derive(Default)]
struct Olh {
    idx: Bytes,
    entry: OlhEntry,
    found: bool,
}

impl Olh {
    async fn read(object: Object<'_>, name: &[u8]) -> Result<Self, Errno> {
        let idx = keys::olh(name);
        let stored = rows::optional(rows::read(object, &idx).await)?;
        let found = stored.is_some();
        Ok(Olh { idx, entry: stored.unwrap_or_default(), found })
    }

    /// Begins a change; `false` if a newer one has been made.
    fn start_change(&mut self, epoch: u64) -> bool {
        if epoch != 0 {
            if epoch < self.entry.epoch {
                return false;
            }
            self.entry.epoch = epoch;
        } else if self.entry.epoch == 0 {
            self.entry.epoch = FIRST_EPOCH;
        } else {
            self.entry.epoch = self.entry.epoch.wrapping_add(1);
        }
        true
    }

    fn point_to(&mut self, key: &ObjKey, delete_marker: bool) {
        self.entry.key = key.clone();
        self.entry.delete_marker = delete_marker;
    }

    /// Gives gateways a thing to do. An epoch of 0 is the change's own.
    fn log(&mut self, op: OlhLogOp, tag: &Bytes, key: &ObjKey, delete_marker: bool, epoch: u64) {
        let entry = OlhLogEntry {
            epoch: if epoch == 0 { self.entry.epoch } else { epoch },
            op,
            op_tag: tag.clone(),
            key: key.clone(),
            delete_marker,
        };
        self.entry.pending_log.entry(self.entry.epoch).or_default().push(entry);
    }

    async fn write(&self, object: Object<'_>) -> Result<(), Errno> {
        rows::write(object, &self.idx, &self.entry).await
    }
}

/// Makes an object without versions the oldest version, and marks the object as one with versions.
async fn convert(
    object: Object<'_>,
    name: &Bytes,
    demote: bool,
    instance_only: bool,
) -> Result<(), Errno> {
    let key = ObjKey::plain(name.clone());
    if let (_, Some(mut entry)) = rows::read_object(object, &key, false).await? {
        entry.versioned_epoch = CONVERTED_EPOCH;
        entry.flags |= flag::VER;
        if demote {
            entry.flags &= !flag::CURRENT;
        }
        let idx = keys::instance(&key);
        if instance_only {
            rows::write(object, &idx, &entry).await?;
        } else {
            write_both(object, &entry, &idx).await?;
        }
    }
    let marker = DirEntry { key, flags: flag::VER_MARKER, ..DirEntry::default() };
    rows::write(object, name, &marker).await
}

/// A change of versions as the log of changes has it.
struct Logged<'a> {
    key: &'a ObjKey,
    op: ModifyOp,
    tag: &'a Bytes,
    mtime: Utime,
    epoch: u64,
    flags: u16,
    zones: ZoneSet,
    owner: Option<(Bytes, Bytes)>,
}

async fn log_change(object: Object<'_>, l: Logged<'_>) -> Result<(), Errno> {
    let mut header = rows::header(object).await?;
    if header.syncstopped {
        return Ok(());
    }
    let change = bilog::Change {
        key: l.key,
        op: l.op,
        tag: l.tag,
        timestamp: l.mtime,
        ver: EntryVer { epoch: l.epoch, ..EntryVer::default() },
        flags: l.flags | FLAG_VERSIONED_OP,
        zones: l.zones,
        owner: l.owner,
    };
    bilog::log(object, &mut header, change).await?;
    rows::write_header(object, header).await
}

/// Makes a version the current one, unless a newer one is; a delete marker is made for the purpose.
///
/// ECANCELED if the head has another tag, ENOENT if there is no such version, or if a delete marker
/// is to follow a delete marker.
pub(super) async fn link(object: Object<'_>, op: LinkOlhOp) -> Result<(), Errno> {
    let mut version = Version::new(op.key.clone());
    let mut existed = match version.read(object, op.delete_marker).await {
        Ok(()) => true,
        Err(Errno::ENOENT) if op.delete_marker => false,
        Err(e) => return Err(e),
    };
    let mut read_before = None;
    if !existed && op.delete_marker {
        let olh = Olh::read(object, &op.key.name).await?;
        if olh.found && olh.entry.delete_marker {
            return Err(Errno::ENOENT);
        }
        read_before = Some(olh);
    }
    if existed && !op.unmod_since.is_zero() {
        let precise = |t: Utime| (t.sec, if op.high_precision_time { t.nsec } else { 0 });
        if precise(version.entry.meta.mtime) >= precise(op.unmod_since) {
            return Ok(());
        }
    }
    let removing = if op.key.instance.is_empty() {
        // An object and a delete marker can both be the null version: the other one goes.
        let mut other = Version::new(op.key.clone());
        let found = other.read(object, !op.delete_marker).await.is_ok();
        existed = found && !other.is_delete_marker();
        if found && other.is_delete_marker() != op.delete_marker {
            other.remove_listed(object).await?;
        }
        let removing = existed && op.delete_marker;
        if !removing {
            other.remove(object).await?;
        }
        removing
    } else {
        existed && !version.is_delete_marker() && op.delete_marker
    };
    if op.delete_marker {
        version.become_delete_marker(op.meta);
    }
    let mut olh = match read_before {
        Some(olh) => olh,
        None => Olh::read(object, &op.key.name).await?,
    };
    let previous_epoch = olh.entry.epoch;
    if !olh.start_change(op.olh_epoch) {
        return version.write(object, op.olh_epoch, false).await;
    }
    let promote = olh.entry.epoch > previous_epoch
        || (olh.entry.epoch == previous_epoch && olh.entry.key.instance >= op.key.instance);
    if olh.found {
        if op.olh_tag != olh.entry.tag {
            if !olh.entry.pending_removal {
                return Err(Errno::ECANCELED);
            }
            olh.entry.tag = op.olh_tag;
        }
        if promote && olh.entry.exists && olh.entry.key != op.key {
            let mut current = Version::new(olh.entry.key.clone());
            current.write_flags(object, 0, flag::CURRENT).await?;
        }
        olh.entry.pending_removal = false;
    } else {
        let instance_only = op.key.instance.is_empty() && op.delete_marker;
        convert(object, &op.key.name, promote, instance_only).await?;
        olh.entry.tag = op.olh_tag;
        if op.key.instance.is_empty() {
            // What was converted is this version, in its row in the order of listings as well.
            version.entry.versioned_epoch = CONVERTED_EPOCH;
        }
    }
    olh.log(OlhLogOp::LINK_OLH, &op.op_tag, &op.key, op.delete_marker, 0);
    if removing {
        olh.log(OlhLogOp::REMOVE_INSTANCE, &op.op_tag, &op.key, false, 0);
    }
    if promote {
        olh.point_to(&op.key, op.delete_marker);
    }
    olh.entry.exists = true;
    olh.write(object).await?;
    version.write(object, olh.entry.epoch, promote).await?;
    if !op.log_op {
        return Ok(());
    }
    let meta = &version.entry.meta;
    let logged = Logged {
        key: &op.key,
        op: if op.delete_marker { ModifyOp::LINK_OLH_DM } else { ModifyOp::LINK_OLH },
        tag: &op.op_tag,
        mtime: meta.mtime,
        epoch: if op.olh_epoch != 0 { op.olh_epoch } else { olh.entry.epoch },
        flags: op.bilog_flags,
        zones: op.zones_trace,
        owner: op.delete_marker.then(|| (meta.owner.clone(), meta.owner_display_name.clone())),
    };
    log_change(object, logged).await
}

/// Removes a version: the next older one becomes the current one, if it was. A version that is not
/// there is removed already.
pub(super) async fn unlink_instance(object: Object<'_>, op: UnlinkInstanceOp) -> Result<(), Errno> {
    let mut key = op.key.clone();
    if &key.instance[..] == keys::NULL_INSTANCE {
        key.instance = Bytes::new();
    }
    let mut version = Version::new(key.clone());
    match version.read(object, true).await {
        Ok(()) => {}
        Err(Errno::ENOENT) => return Ok(()),
        Err(e) => return Err(e),
    }
    let mut olh = Olh::read(object, &key.name).await?;
    if !olh.found {
        convert(object, &key.name, true, false).await?;
        olh.point_to(&key, false);
        olh.entry.tag = op.olh_tag.clone();
        version.entry.versioned_epoch = CONVERTED_EPOCH;
    }
    if !olh.start_change(op.olh_epoch) {
        version.remove_listed(object).await?;
        if version.is_delete_marker() {
            return Ok(());
        }
        olh.log(OlhLogOp::REMOVE_INSTANCE, &op.op_tag, &op.key, false, op.olh_epoch);
        return olh.write(object).await;
    }
    if olh.entry.key == key {
        match version.next(object).await? {
            Some(next_key) => {
                let mut next = Version::new(next_key.clone());
                next.write(object, olh.entry.epoch, true).await?;
                let marker = next.is_delete_marker();
                olh.point_to(&next_key, marker);
                olh.log(OlhLogOp::LINK_OLH, &op.op_tag, &next_key, marker, 0);
            }
            None => {
                // The name stays: it decides which shard the row belongs to.
                let none = ObjKey::plain(key.name.clone());
                olh.point_to(&none, false);
                olh.log(OlhLogOp::UNLINK_OLH, &op.op_tag, &none, false, 0);
                olh.entry.exists = false;
                olh.entry.pending_removal = true;
            }
        }
    }
    if version.is_delete_marker() {
        // No gateway has anything to remove for it.
        version.remove(object).await?;
    } else {
        olh.log(OlhLogOp::REMOVE_INSTANCE, &op.op_tag, &op.key, false, 0);
    }
    version.remove_listed(object).await?;
    olh.write(object).await?;
    if !op.log_op {
        return Ok(());
    }
    let logged = Logged {
        key: &op.key,
        op: ModifyOp::UNLINK_INSTANCE,
        tag: &op.op_tag,
        mtime: version.entry.meta.mtime,
        epoch: if op.olh_epoch != 0 { op.olh_epoch } else { olh.entry.epoch },
        flags: op.bilog_flags,
        zones: op.zones_trace,
        owner: None,
    };
    log_change(object, logged).await
}

/// An object's versions, for calls that name the head. EINVAL if they name a version, ECANCELED if
/// the head has another tag.
async fn tagged(object: Object<'_>, key: &ObjKey, tag: &Bytes) -> Result<Olh, Errno> {
    if !key.instance.is_empty() {
        return Err(Errno::EINVAL);
    }
    let olh = Olh::read(object, &key.name).await?;
    if olh.entry.tag == *tag { Ok(olh) } else { Err(Errno::ECANCELED) }
}

pub(super) async fn read_log(object: Object<'_>, op: ReadOlhLogOp) -> Result<Bytes, Errno> {
    let log = tagged(object, &op.olh, &op.olh_tag).await?.entry.pending_log;
    let mut rest = log.range((Bound::Excluded(op.ver_marker), Bound::Unbounded));
    let page: OlhLog = rest.by_ref().take(MAX_LOG_ENTRIES).map(|(k, v)| (*k, v.clone())).collect();
    Ok(encode(&ReadOlhLogRet { log: page, is_truncated: rest.next().is_some() }))
}

pub(super) async fn trim_log(object: Object<'_>, op: TrimOlhLogOp) -> Result<(), Errno> {
    let mut olh = tagged(object, &op.olh, &op.olh_tag).await?;
    olh.entry.pending_log.retain(|epoch, _| *epoch > op.ver);
    olh.write(object).await
}

/// Forgets an object's versions, of which there are none left, and the mark that there are some.
pub(super) async fn clear(object: Object<'_>, op: ClearOlhOp) -> Result<(), Errno> {
    let olh = tagged(object, &op.key, &op.olh_tag).await?;
    object.map_remove_key(&olh.idx).await?;
    let plain = rows::optional(rows::read::<DirEntry>(object, &op.key.name).await)?;
    if plain.is_some_and(|e| e.has(flag::VER_MARKER)) {
        object.map_remove_key(&op.key.name).await?;
    }
    Ok(())
}
