//! Versions of objects: the head that names the current one (OLH), and the index's log of what has
//! to be done to it.
//!
//! A change is noted in the head as pending, made in the index, and then applied to the head from
//! the index's log. A gateway that ends in between leaves the pending note: the next reader applies
//! the log.
//!
//! The index decides which version is current. A change with conditions is made only if the row
//! that says so is as it was before the current version was judged (decision 0039).

use super::cluster::{call, decoded, encoded, random_lower, submit};
use super::convert::{self, shown_version};
use super::handle::{BucketRef, Handle};
use super::heads::{Head, LOG_VERSIONED, RACES_MAX, has_pending, raced};
use super::index::{GUARDS, failed};
use super::inner::Inner;
use crate::api::{Error, Result};
use ::rgw::bi::{BiGetOp, BiRow, BiType};
use ::rgw::entry::EntryMeta;
use ::rgw::manifest::BucketObject;
use ::rgw::names::{self, ObjName};
use ::rgw::object::ObjCheckAttrsPrefix;
use ::rgw::olh::{
    ClearOlhOp, LinkOlhOp, OlhInfo, OlhLog, OlhLogOp, OlhPending, ReadOlhLogOp, ReadOlhLogRet,
    TrimOlhLogOp, UnlinkInstanceOp,
};
use bytes::Bytes;
use client::{ClientError, Comparison, Operation};
use s3::ErrorCode;
use s3::condition::{Conditions, Doomed};
use std::collections::BTreeMap;
use types::{Errno, Utime};

/// How long a pending note holds back the clean-up of a head (Ceph:
/// `rgw_olh_pending_timeout_sec`).
const PENDING_TIMEOUT_SECONDS: u32 = 3600;

/// A change of the versions of an object.
enum Change {
    /// A version becomes the current one; with what is known of it if it is a delete marker.
    Link(Option<Box<EntryMeta>>),
    /// A version is removed.
    Unlink,
}

/// The row that tells of an object's versions, as it was before something was judged.
pub(super) struct SeenVersions(BTreeMap<Bytes, (Bytes, Comparison)>);

impl SeenVersions {
    /// The operation fails with ECANCELED if the row is another one.
    pub(super) fn guard(&self, op: Operation) -> Operation {
        op.omap_compare(&self.0)
    }
}

/// How rows of an object's versions begin (Ceph: `BI_PREFIX_CHAR`, `BI_BUCKET_OLH_DATA_INDEX`).
const OLH_ROWS: &[u8] = b"\x801001_";

/// What came of a [`Change`].
#[derive(Clone, Copy, PartialEq, Eq)]
enum Changed {
    Made,
    /// There was nothing to do.
    Nothing,
    /// The index knows something else of the object than was seen.
    Otherwise,
}

impl Inner {
    /// The current version that a head names; `None` if the object does not exist.
    pub(super) async fn current_version(
        &self,
        bucket: &Handle,
        name: &ObjName,
        mut head: Head,
    ) -> Result<Option<ObjName>> {
        if has_pending(&head) {
            self.update_head(bucket, name, &head, None).await?;
            head = self.read_head(bucket, name, false, 0).await?;
        }
        let Some(bytes) = head.attrs.get(convert::OLH_INFO) else {
            return Ok(head.is_object().then(|| name.clone()));
        };
        let info: OlhInfo = decoded("the current version of an object", bytes)?;
        if info.removed {
            let version = shown_version(&info.target.name.instance);
            return Err(Error::DeleteMarker { version, named: false });
        }
        Ok(Some(info.target.name))
    }

    /// Makes a version the current one. `false` if a delete marker is to follow a delete marker.
    pub(super) async fn link(
        &self,
        bucket: &Handle,
        version: &ObjName,
        marker: Option<EntryMeta>,
    ) -> Result<bool> {
        let change = Change::Link(marker.map(Box::new));
        Ok(self.change_versions(bucket, version, change, None).await? == Changed::Made)
    }

    /// [`Inner::link`] if the index still knows of the object's versions what was seen; `None` if
    /// it does not.
    pub(super) async fn link_as_seen(
        &self,
        bucket: &Handle,
        version: &ObjName,
        marker: Option<EntryMeta>,
        seen: &SeenVersions,
    ) -> Result<Option<bool>> {
        let change = Change::Link(marker.map(Box::new));
        Ok(match self.change_versions(bucket, version, change, Some(seen)).await? {
            Changed::Made => Some(true),
            Changed::Nothing => Some(false),
            Changed::Otherwise => None,
        })
    }

    /// Removes a version.
    pub(super) async fn unlink(&self, bucket: &Handle, version: &ObjName) -> Result<()> {
        self.change_versions(bucket, version, Change::Unlink, None).await.map(|_| ())
    }

    async fn change_versions(
        &self,
        bucket: &Handle,
        version: &ObjName,
        change: Change,
        seen: Option<&SeenVersions>,
    ) -> Result<Changed> {
        let name = ObjName::plain(version.name.clone());
        for _ in 0..RACES_MAX {
            let mut head = self.read_head(bucket, &name, false, 0).await?;
            let Some(op_tag) = self.announce(bucket, &name, &mut head).await? else { continue };
            let olh_tag = head.attrs.get(convert::OLH_ID_TAG).cloned().unwrap_or_default();
            let made = match &change {
                Change::Link(marker) => {
                    let op = LinkOlhOp {
                        key: version.index_key(),
                        olh_tag: olh_tag.clone(),
                        delete_marker: marker.is_some(),
                        op_tag: op_tag.clone(),
                        meta: marker.as_deref().cloned().unwrap_or_default(),
                        olh_epoch: 0,
                        log_op: self.log_data,
                        bilog_flags: 0,
                        unmod_since: Utime::ZERO,
                        high_precision_time: false,
                        zones_trace: Default::default(),
                    };
                    let link = |o| {
                        let o = match seen {
                            Some(seen) => seen.guard(o),
                            None => o,
                        };
                        call(o, "rgw", "bucket_link_olh", &op, true)
                    };
                    self.on_shard(bucket, &name.name, link).await?
                }
                Change::Unlink => {
                    let op = UnlinkInstanceOp {
                        key: version.index_key(),
                        op_tag: op_tag.clone(),
                        olh_epoch: 0,
                        log_op: self.log_data,
                        bilog_flags: 0,
                        olh_tag: olh_tag.clone(),
                        zones_trace: Default::default(),
                    };
                    let unlink = |o| call(o, "rgw", "bucket_unlink_instance", &op, true);
                    self.on_shard(bucket, &name.name, unlink).await?
                }
            };
            let changed = match made {
                Ok(_) => Changed::Made,
                Err(Errno::ECANCELED) if seen.is_some() => Changed::Otherwise,
                // The index has another head: that one is gone, and its successor has been made.
                Err(Errno::ECANCELED) => continue,
                Err(Errno::ENOENT) if !matches!(change, Change::Link(None)) => Changed::Nothing,
                Err(e) => return Err(failed("changing the versions of an object", e)),
            };
            let applied = match changed {
                Changed::Otherwise => false,
                _ => self.update_head(bucket, &name, &head, Some(&op_tag)).await?,
            };
            if !applied {
                // The log has nothing of the change, or another gateway has applied it and did not
                // know of the note. Left there, the note would hold back the head's removal.
                self.forget_change(bucket, &name, &olh_tag, &op_tag).await?;
                self.tidy_head(bucket, &name).await?;
            }
            return Ok(changed);
        }
        Err(Error::Unavailable("other changes of the object came before this one".into()))
    }

    /// Takes back what [`Inner::announce`] noted of a change that was not made.
    async fn forget_change(
        &self,
        bucket: &Handle,
        name: &ObjName,
        olh_tag: &Bytes,
        op_tag: &Bytes,
    ) -> Result<()> {
        let (io, oid) = self.head_place(bucket, name, false).await?;
        let op = Operation::new()
            .compare_xattr(convert::OLH_ID_TAG, Comparison::Eq, olh_tag)
            .remove_xattr([convert::OLH_PENDING, &op_tag[..]].concat());
        match submit(&io, oid, op, None).await {
            Ok(_) | Err(ClientError::Errno(Errno::ECANCELED | Errno::ENOENT | Errno::ENODATA)) => {
                Ok(())
            }
            Err(e) => Err(e.into()),
        }
    }

    /// Notes in the head that a change is about to be made: the change's tag, or `None` if another
    /// change came first.
    async fn announce(
        &self,
        bucket: &Handle,
        name: &ObjName,
        head: &mut Head,
    ) -> Result<Option<Bytes>> {
        let (io, oid) = self.head_place(bucket, name, false).await?;
        let mut op = Operation::new();
        op = if head.exists { op.assert_exists() } else { op.create(true) };
        let mtime = head.exists.then_some(head.mtime);
        if let Some(tag) = head.attrs.get(convert::OLH_ID_TAG) {
            op = op.compare_xattr(convert::OLH_ID_TAG, Comparison::Eq, tag);
        } else {
            let object_tag: Bytes = random_lower(32).into();
            let olh_tag: Bytes = random_lower(32).into();
            if let Some(old) = head.tag() {
                // An object without versions becomes the null version: its data keeps its tag.
                op = op.compare_xattr(convert::ID_TAG, Comparison::Eq, old);
                if !head.attrs.contains_key(convert::TAIL_TAG) {
                    op = op.set_xattr(convert::TAIL_TAG, old);
                }
            }
            op = op
                .set_xattr(convert::ID_TAG, &object_tag)
                .set_xattr(convert::OLH_ID_TAG, &olh_tag)
                .set_xattr(convert::OLH_VER, b"");
            head.attrs.insert(Bytes::from_static(convert::ID_TAG), object_tag);
            head.attrs.insert(Bytes::from_static(convert::OLH_ID_TAG), olh_tag);
        }
        let time = self.cluster.now();
        let tag: Bytes = format!("{:016x}{}", time.sec, random_lower(16)).into();
        let attr: Bytes = [convert::OLH_PENDING, &tag[..]].concat().into();
        let pending = encoded(&OlhPending { time });
        op = op.set_xattr(&attr, &pending);
        match submit(&io, oid, op, mtime).await {
            Ok(_) => {
                head.exists = true;
                head.attrs.insert(attr, pending);
                Ok(Some(tag))
            }
            Err(ClientError::Errno(Errno::EEXIST | Errno::ECANCELED | Errno::ENOENT)) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Applies the index's log to the head. `true` if the change `own` was in it.
    pub(super) async fn update_head(
        &self,
        bucket: &Handle,
        name: &ObjName,
        head: &Head,
        own: Option<&Bytes>,
    ) -> Result<bool> {
        let olh_tag = head.attrs.get(convert::OLH_ID_TAG).cloned().unwrap_or_default();
        let mut ver_marker = 0;
        let mut applied = false;
        loop {
            let op = ReadOlhLogOp { olh: name.index_key(), ver_marker, olh_tag: olh_tag.clone() };
            let read = |o| call(o, "rgw", "bucket_read_olh_log", &op, false);
            let page = match self.on_shard(bucket, &name.name, read).await? {
                // Another gateway has done it, or there is a new head.
                Err(Errno::ECANCELED | Errno::ENOENT) => {
                    self.drop_stale_notes(bucket, name, head).await?;
                    return Ok(applied);
                }
                Err(e) => return Err(failed("reading the log of an object's versions", e)),
                Ok(outcome) => outcome,
            };
            let ret: ReadOlhLogRet = decoded("a log of versions", &page.data(GUARDS)?)?;
            let Some(last) = ret.log.keys().next_back().copied() else {
                self.drop_stale_notes(bucket, name, head).await?;
                return Ok(applied);
            };
            applied |= ret.log.values().flatten().any(|e| Some(&e.op_tag) == own);
            self.apply(bucket, name, head, &olh_tag, &ret.log, last).await?;
            ver_marker = last;
            if !ret.is_truncated {
                return Ok(applied);
            }
        }
    }

    async fn apply(
        &self,
        bucket: &Handle,
        name: &ObjName,
        head: &Head,
        olh_tag: &Bytes,
        log: &OlhLog,
        last: u64,
    ) -> Result<()> {
        let (io, oid) = self.head_place(bucket, name, false).await?;
        let mut op = Operation::new()
            .compare_xattr(convert::OLH_ID_TAG, Comparison::Eq, olh_tag)
            .compare_xattr_u64(convert::OLH_VER, Comparison::Gte, last)
            .set_xattr(convert::OLH_VER, last.to_string().as_bytes());
        let ver = head.attrs.get(convert::OLH_VER).map(|v| convert::attr_text(v));
        let mut epoch: u64 = ver.and_then(|v| v.parse().ok()).unwrap_or(0);
        let mut current = match head.attrs.get(convert::OLH_INFO) {
            Some(bytes) => {
                let info: OlhInfo = decoded("the current version of an object", bytes)?;
                Some((info.target.name.instance, info.removed))
            }
            None => None,
        };
        let (mut link, mut unlink) = (false, false);
        let mut gone = Vec::new();
        for (at, entries) in log {
            for entry in entries {
                match entry.op {
                    OlhLogOp::REMOVE_INSTANCE => gone.push(entry.key.clone()),
                    OlhLogOp::LINK_OLH => {
                        let newer = epoch < *at
                            || current.as_ref().is_none_or(|(instance, _)| {
                                instance.is_empty() || *instance > entry.key.instance
                            });
                        if newer {
                            (link, unlink) = (true, false);
                            current = Some((entry.key.instance.clone(), entry.delete_marker));
                            epoch = *at;
                        }
                    }
                    OlhLogOp::UNLINK_OLH => (link, unlink) = (false, true),
                    other => {
                        return Err(Error::Internal(format!(
                            "a log of versions has the operation {}, which is not known",
                            other.0
                        )));
                    }
                }
                let attr = [convert::OLH_PENDING, &entry.op_tag[..]].concat();
                if head.attrs.contains_key(&attr[..]) {
                    op = op.remove_xattr(attr);
                }
            }
        }
        if link && let Some((instance, removed)) = current {
            let target = BucketObject {
                bucket: bucket.instance.bucket.clone(),
                name: ObjName::version(name.name.clone(), instance),
            };
            let info = OlhInfo { target, removed };
            op = op.set_xattr(convert::OLH_INFO, &encoded(&info));
        }
        for key in gone {
            let Some(version) = ObjName::of_index(&key) else { continue };
            let none = Conditions::default();
            let hashed = version.name.clone();
            let removed = self
                .remove_head(bucket, &version, &hashed, false, &[], &none, LOG_VERSIONED)
                .await?;
            if removed.is_none() && !version.instance.is_empty() {
                self.heal_entry(bucket, &version).await?;
            }
        }
        match submit(&io, &oid, op, Some(head.mtime)).await {
            // Another gateway has applied more than this.
            Ok(_) | Err(ClientError::Errno(Errno::ECANCELED)) => {}
            Err(ClientError::Errno(Errno::ENOENT)) => return Ok(()),
            Err(e) => return Err(e.into()),
        }
        let trim = TrimOlhLogOp { olh: name.index_key(), ver: last, olh_tag: olh_tag.clone() };
        let trimmed = |o| call(o, "rgw", "bucket_trim_olh_log", &trim, true);
        match self.on_shard(bucket, &name.name, trimmed).await? {
            Ok(_) | Err(Errno::ECANCELED | Errno::ENOENT) => {}
            Err(e) => return Err(failed("trimming the log of an object's versions", e)),
        }
        if !unlink {
            return Ok(());
        }
        self.remove_versions(bucket, name, olh_tag, Some(last)).await
    }

    /// Removes the head that named the versions, and what the index knows of them: there are none
    /// left. With `ver` the head must not have been changed since.
    pub(super) async fn remove_versions(
        &self,
        bucket: &Handle,
        name: &ObjName,
        olh_tag: &Bytes,
        ver: Option<u64>,
    ) -> Result<()> {
        let (io, oid) = self.head_place(bucket, name, false).await?;
        let pending = ObjCheckAttrsPrefix {
            check_prefix: Bytes::from_static(convert::OLH_PENDING),
            fail_if_exist: true,
        };
        let mut op = Operation::new().compare_xattr(convert::OLH_ID_TAG, Comparison::Eq, olh_tag);
        if let Some(ver) = ver {
            op = op.compare_xattr_u64(convert::OLH_VER, Comparison::Eq, ver);
        }
        let op = call(op, "rgw", "obj_check_attrs_prefix", &pending, false).remove();
        match submit(&io, oid, op, None).await {
            Ok(_) | Err(ClientError::Errno(Errno::ENOENT)) => {}
            // A change is under way, which needs the head.
            Err(ClientError::Errno(Errno::ECANCELED)) => return Ok(()),
            Err(e) => return Err(e.into()),
        }
        let clear = ClearOlhOp { key: name.index_key(), olh_tag: olh_tag.clone() };
        let cleared = |o| call(o, "rgw", "bucket_clear_olh", &clear, true);
        match self.on_shard(bucket, &name.name, cleared).await? {
            Ok(_) | Err(Errno::ECANCELED | Errno::ENOENT) => Ok(()),
            Err(e) => Err(failed("clearing the versions of an object", e)),
        }
    }

    /// Forgets an object's versions if the last of them is gone, and removes a head that was made
    /// for a change which was not made.
    pub(super) async fn tidy_head(&self, bucket: &Handle, name: &ObjName) -> Result<()> {
        self.clear_versions(bucket, name).await?;
        let head = self.read_head(bucket, name, false, 0).await?;
        let Some(tag) = head.attrs.get(convert::OLH_ID_TAG) else { return Ok(()) };
        if head.is_object() || head.is_olh() {
            return Ok(());
        }
        let pending = ObjCheckAttrsPrefix {
            check_prefix: Bytes::from_static(convert::OLH_PENDING),
            fail_if_exist: true,
        };
        let (io, oid) = self.head_place(bucket, name, false).await?;
        let op = Operation::new().compare_xattr(convert::OLH_ID_TAG, Comparison::Eq, tag);
        let op = call(op, "rgw", "obj_check_attrs_prefix", &pending, false);
        match submit(&io, oid, op.remove(), None).await {
            Ok(_) | Err(ClientError::Errno(Errno::ENOENT | Errno::ECANCELED)) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Forgets an object's versions if the last of them is gone.
    async fn clear_versions(&self, bucket: &Handle, name: &ObjName) -> Result<()> {
        let Some(olh) = self.olh_entry(bucket, name).await? else { return Ok(()) };
        if olh.exists || !olh.pending_log.is_empty() {
            return Ok(());
        }
        self.remove_versions(bucket, name, &olh.tag, None).await
    }

    /// Removes notes of changes that were never made.
    async fn drop_stale_notes(&self, bucket: &Handle, name: &ObjName, head: &Head) -> Result<()> {
        let time = self.cluster.now();
        // What a change leaves in the head is not kept for longer than its note: that is settled
        // once.
        let timeout = PENDING_TIMEOUT_SECONDS.min(self.options.note_seconds);
        let stale: Vec<&Bytes> = head
            .attrs
            .iter()
            .filter(|(attr, _)| attr.starts_with(convert::OLH_PENDING))
            .filter(|(_, value)| {
                decoded::<OlhPending>("a pending change", value)
                    .is_ok_and(|p| p.time.sec.saturating_add(timeout) < time.sec)
            })
            .map(|(attr, _)| attr)
            .collect();
        if stale.is_empty() {
            return Ok(());
        }
        let (io, oid) = self.head_place(bucket, name, false).await?;
        let tag = head.attrs.get(convert::OLH_ID_TAG).cloned().unwrap_or_default();
        let mut op = Operation::new().compare_xattr(convert::OLH_ID_TAG, Comparison::Eq, &tag);
        for attr in stale {
            op = op.remove_xattr(attr);
        }
        match submit(&io, oid, op, Some(head.mtime)).await {
            Ok(_) | Err(ClientError::Errno(Errno::ECANCELED | Errno::ENOENT | Errno::ENODATA)) => {
                Ok(())
            }
            Err(e) => Err(e.into()),
        }
    }
}

impl Inner {
    async fn seen_versions(&self, bucket: &Handle, name: &ObjName) -> Result<SeenVersions> {
        let op = BiGetOp { key: name.index_key(), kind: BiType::OLH };
        let get = |o| call(o, "rgw", "bi_get", &op, false);
        let (row, value) = match self.on_shard(bucket, &name.name, get).await? {
            Ok(outcome) => {
                let row: BiRow = decoded("a row of an index", &outcome.data(GUARDS)?)?;
                (row.entry.idx, row.entry.data)
            }
            // No row compares as an empty one.
            Err(Errno::ENOENT) => {
                ([OLH_ROWS, &name.index_key().name].concat().into(), Bytes::new())
            }
            Err(e) => return Err(failed("reading an object's versions", e)),
        };
        Ok(SeenVersions([(row, (value, Comparison::Eq))].into()))
    }

    /// Judges a write over the current version.
    pub(super) async fn judge_write(
        &self,
        bucket: &BucketRef,
        key: &str,
        conditions: &Conditions,
    ) -> Result<()> {
        let current = match self.open(bucket, key, None, false).await {
            Ok(object) => Some(object.info.etag),
            Err(e) if e.code() == ErrorCode::NoSuchKey => None,
            Err(e) => return Err(e),
        };
        Ok(conditions.for_write(current.as_deref())?)
    }

    /// Judges the deletion of a version, or of the object. `false` if there is nothing to delete.
    pub(super) async fn judge_deletion(
        &self,
        bucket: &BucketRef,
        key: &str,
        version: Option<&str>,
        conditions: &Conditions,
    ) -> Result<bool> {
        let (etag, modified, size) = match self.open(bucket, key, version, false).await {
            Ok(object) => {
                let info = &object.info;
                (info.etag.clone(), info.modified / 1_000_000_000, info.size)
            }
            Err(Error::DeleteMarker { version, .. }) => {
                let name = if version.as_bytes() == names::NULL_VERSION {
                    ObjName::plain(key.to_owned())
                } else {
                    ObjName::version(key.to_owned(), version)
                };
                let entry = self.version_entry(bucket, &name).await?;
                let Some(entry) = entry else { return Ok(false) };
                (String::new(), entry.meta.mtime.sec.into(), 0)
            }
            Err(e) if matches!(e.code(), ErrorCode::NoSuchKey | ErrorCode::NoSuchVersion) => {
                return Ok(false);
            }
            Err(e) => return Err(e),
        };
        conditions.for_delete(Some(Doomed { etag: &etag, modified, size }))?;
        Ok(true)
    }

    /// Makes a version that was written the current one if the conditions hold at that moment; else
    /// it is removed, and the data behind it too if it is not an upload's.
    pub(super) async fn link_if(
        &self,
        bucket: &BucketRef,
        key: &str,
        version: &ObjName,
        conditions: &Conditions,
        of_upload: bool,
    ) -> Result<()> {
        let plain = ObjName::plain(version.name.clone());
        let mut refused = raced(conditions);
        for _ in 0..RACES_MAX {
            let seen = self.seen_versions(bucket, &plain).await?;
            if let Err(e) = self.judge_write(bucket, key, conditions).await {
                refused = e;
                break;
            }
            if self.link_as_seen(bucket, version, None, &seen).await?.is_some() {
                return Ok(());
            }
        }
        if of_upload {
            self.withdraw_head(bucket, version).await?;
        }
        self.settle_version(bucket, version).await?;
        Err(refused)
    }

    /// Makes a delete marker the current version if the conditions hold at that moment: `None` if
    /// there is no object, `Some(false)` if a delete marker is to follow a delete marker.
    pub(super) async fn mark_if(
        &self,
        bucket: &BucketRef,
        key: &str,
        marker: &ObjName,
        meta: &EntryMeta,
        conditions: &Conditions,
    ) -> Result<Option<bool>> {
        let plain = ObjName::plain(marker.name.clone());
        for _ in 0..RACES_MAX {
            let seen = self.seen_versions(bucket, &plain).await?;
            if !self.judge_deletion(bucket, key, None, conditions).await? {
                return Ok(None);
            }
            let made = self.link_as_seen(bucket, marker, Some(meta.clone()), &seen).await?;
            if made.is_some() {
                return Ok(made);
            }
        }
        Err(raced(conditions))
    }
}
