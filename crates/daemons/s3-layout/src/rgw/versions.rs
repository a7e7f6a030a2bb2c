//! Versions of objects: the head that names the current one (OLH), and the index's log of what has
//! to be done to it.
//!
//! A change is noted in the head as pending, made in the index, and then applied to the head from
//! the index's log. A gateway that ends in between leaves the pending note: the next reader applies
//! the log.

use super::Inner;
use super::bucket::Handle;
use super::cluster::{call, decoded, encoded, random_lower, submit};
use super::convert;
use super::heads::{Head, LOG_VERSIONED, RACES_MAX};
use super::index::{GUARDS, failed};
use super::objects::shown_version;
use crate::api::{Error, Result};
use ::rgw::entry::EntryMeta;
use ::rgw::manifest::BucketObject;
use ::rgw::names::ObjName;
use ::rgw::object::ObjCheckAttrsPrefix;
use ::rgw::olh::{
    ClearOlhOp, LinkOlhOp, OlhInfo, OlhLog, OlhLogOp, OlhPending, ReadOlhLogOp, ReadOlhLogRet,
    TrimOlhLogOp, UnlinkInstanceOp,
};
use bytes::Bytes;
use client::{ClientError, Comparison, Operation};
use s3::condition::Conditions;
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

impl Inner {
    /// The current version that a head names; `None` if the object does not exist.
    pub(super) async fn current_version(
        &self,
        bucket: &Handle,
        name: &ObjName,
        mut head: Head,
    ) -> Result<Option<ObjName>> {
        if has_pending(&head) {
            self.update_head(bucket, name, &head).await?;
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
        self.change_versions(bucket, version, Change::Link(marker.map(Box::new))).await
    }

    /// Removes a version.
    pub(super) async fn unlink(&self, bucket: &Handle, version: &ObjName) -> Result<()> {
        self.change_versions(bucket, version, Change::Unlink).await.map(|_| ())
    }

    async fn change_versions(
        &self,
        bucket: &Handle,
        version: &ObjName,
        change: Change,
    ) -> Result<bool> {
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
                        op_tag,
                        meta: marker.as_deref().cloned().unwrap_or_default(),
                        olh_epoch: 0,
                        log_op: self.log_data,
                        bilog_flags: 0,
                        unmod_since: Utime::ZERO,
                        high_precision_time: false,
                        zones_trace: Default::default(),
                    };
                    let link = |o| call(o, "rgw", "bucket_link_olh", &op, true);
                    self.on_shard(bucket, &name.name, link).await?
                }
                Change::Unlink => {
                    let op = UnlinkInstanceOp {
                        key: version.index_key(),
                        op_tag,
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
            match made {
                Ok(_) => {
                    self.update_head(bucket, &name, &head).await?;
                    return Ok(true);
                }
                // The index has another head: that one is gone, and its successor has been made.
                Err(Errno::ECANCELED) => {}
                Err(Errno::ENOENT) if !matches!(change, Change::Link(None)) => {
                    self.update_head(bucket, &name, &head).await?;
                    return Ok(false);
                }
                Err(e) => return Err(failed("changing the versions of an object", e)),
            }
        }
        Err(Error::Unavailable("other changes of the object came before this one".into()))
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

    /// Applies the index's log to the head.
    pub(super) async fn update_head(
        &self,
        bucket: &Handle,
        name: &ObjName,
        head: &Head,
    ) -> Result<()> {
        let olh_tag = head.attrs.get(convert::OLH_ID_TAG).cloned().unwrap_or_default();
        let mut ver_marker = 0;
        loop {
            let op = ReadOlhLogOp { olh: name.index_key(), ver_marker, olh_tag: olh_tag.clone() };
            let read = |o| call(o, "rgw", "bucket_read_olh_log", &op, false);
            let page = match self.on_shard(bucket, &name.name, read).await? {
                // Another gateway has done it, or there is a new head.
                Err(Errno::ECANCELED | Errno::ENOENT) => {
                    return self.drop_stale_notes(bucket, name, head).await;
                }
                Err(e) => return Err(failed("reading the log of an object's versions", e)),
                Ok(outcome) => outcome,
            };
            let ret: ReadOlhLogRet = decoded("a log of versions", &page.data(GUARDS)?)?;
            let Some(last) = ret.log.keys().next_back().copied() else {
                return self.drop_stale_notes(bucket, name, head).await;
            };
            self.apply(bucket, name, head, &olh_tag, &ret.log, last).await?;
            ver_marker = last;
            if !ret.is_truncated {
                return Ok(());
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

/// A change of versions is under way, or was left.
pub(super) fn has_pending(head: &Head) -> bool {
    head.attrs.keys().any(|attr| attr.starts_with(convert::OLH_PENDING))
}
