//! Heads of objects: how they are read, written over one another and removed.

use super::backend::Io;
use super::cluster::{Attrs, call, decoded, encoded, submit};
use super::convert::{self, attr_text};
use super::handle::Handle;
use super::inner::Inner;
use super::notes::Notes;
use crate::api::{Error, Result};
use ::rgw::bucket::Pool;
use ::rgw::entry::{EntryMeta, EntryVer, ModifyOp, ObjCategory};
use ::rgw::key::ObjKey;
use ::rgw::manifest::{BucketObject, Manifest};
use ::rgw::names::ObjName;
use ::rgw::object::{ObjRemoveOp, ObjStorePgVerOp};
use bytes::Bytes;
use client::{ClientError, Comparison, Operation};
use s3::ErrorCode;
use s3::condition::{Conditions, Doomed};
use types::{Errno, Utime};

/// How often a change is tried again that another gateway's change came before.
pub(super) const RACES_MAX: u32 = 20;
/// A flag of the index's log: the change is of a version (Ceph: `RGW_BILOG_FLAG_VERSIONED_OP`).
pub(super) const LOG_VERSIONED: u16 = ::rgw::bilog::FLAG_VERSIONED_OP;

/// What becomes of the data behind a head that is removed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Data {
    Discarded,
    Kept,
}

/// The head of an object, as it was read.
#[derive(Clone, Debug, Default)]
pub(super) struct Head {
    pub(super) exists: bool,
    /// Bytes of the head alone.
    pub(super) raw_size: u64,
    pub(super) mtime: Utime,
    pub(super) user_version: u64,
    pub(super) attrs: Attrs,
    pub(super) manifest: Option<Manifest>,
    /// The first bytes, if they were asked for.
    pub(super) data: Bytes,
}

impl Head {
    pub(super) fn tag(&self) -> Option<&Bytes> {
        self.attrs.get(convert::ID_TAG).filter(|t| !t.is_empty())
    }

    pub(super) fn is_olh(&self) -> bool {
        self.attrs.contains_key(convert::OLH_INFO)
    }

    /// There is an object here, and not only what is known of its versions.
    pub(super) fn is_object(&self) -> bool {
        self.exists && (self.manifest.is_some() || self.attrs.contains_key(convert::ETAG))
    }

    pub(super) fn size(&self) -> u64 {
        self.manifest.as_ref().map_or(self.raw_size, |m| m.size)
    }

    pub(super) fn etag(&self) -> String {
        self.attrs.get(convert::ETAG).map(|e| attr_text(e)).unwrap_or_default()
    }

    /// Something of versions is noted here: the head is theirs, or about to be.
    pub(super) fn has_versions(&self) -> bool {
        self.attrs.contains_key(convert::OLH_ID_TAG)
    }

    /// The tag that data behind the head carries.
    pub(super) fn tail_tag(&self) -> Bytes {
        self.attrs.get(convert::TAIL_TAG).or_else(|| self.tag()).cloned().unwrap_or_default()
    }
}

/// What an entry of the index says of a head.
pub(super) fn entry_meta(head: &Head) -> Result<EntryMeta> {
    let acl = convert::acl_of(&head.attrs)?;
    let value = |attr: &[u8]| head.attrs.get(attr).map(|v| attr_text(v)).unwrap_or_default();
    Ok(EntryMeta {
        category: ObjCategory::MAIN,
        size: head.size(),
        accounted_size: head.size(),
        mtime: head.mtime,
        etag: head.etag().into(),
        owner: acl.owner.into(),
        owner_display_name: acl.owner_name.into(),
        content_type: value(convert::CONTENT_TYPE).into(),
        storage_class: value(convert::STORAGE_CLASS).into(),
        ..EntryMeta::default()
    })
}

/// A head to write.
pub(super) struct HeadWrite<'a> {
    pub(super) bucket: &'a Handle,
    pub(super) name: ObjName,
    /// The name that its shard is chosen by.
    pub(super) hashed: Bytes,
    /// In the pool for what cannot be erasure coded.
    pub(super) extra: bool,
    pub(super) data: Bytes,
    pub(super) manifest: Option<Manifest>,
    pub(super) attrs: Attrs,
    pub(super) meta: EntryMeta,
    /// Marks the write: in the index, and in the head if `tagged`.
    pub(super) tag: Bytes,
    pub(super) tagged: bool,
    pub(super) mtime: Utime,
    pub(super) remove_objs: Vec<ObjKey>,
    pub(super) conditions: &'a Conditions,
    pub(super) versioned: bool,
}

impl Inner {
    /// The pool of heads.
    pub(super) fn head_pool(&self, bucket: &Handle, extra: bool) -> Result<Pool> {
        Ok(match (&bucket.instance.bucket.explicit, extra) {
            (Some(pools), false) => pools.data.clone(),
            (Some(pools), true) if pools.data_extra.is_empty() => pools.data.clone(),
            (Some(pools), true) => pools.data_extra.clone(),
            (None, true) => {
                let pools = self.placement(&bucket.instance.placement.name)?;
                pools.extra_pool().cloned().unwrap_or_default()
            }
            (None, false) => self.data_pool(&bucket.instance.placement)?.clone(),
        })
    }

    /// Where a head is: the pool with its locator, its name there.
    pub(super) async fn head_place(
        &self,
        bucket: &Handle,
        name: &ObjName,
        extra: bool,
    ) -> Result<(Io, Bytes)> {
        let marker = &bucket.instance.bucket.marker;
        let pool = self.head_pool(bucket, extra)?;
        let io = self.cluster.io(&pool).await?.with_key(name.raw_locator(marker));
        Ok((io, name.raw(marker)))
    }

    /// The pool of data behind a head.
    pub(super) fn tail_pool(
        &self,
        bucket: &Handle,
        manifest: &Manifest,
        object: &BucketObject,
    ) -> Result<Pool> {
        Ok(match &object.bucket.explicit {
            Some(pools) => pools.data.clone(),
            None if manifest.tail_placement.name.is_empty() => {
                self.data_pool(&bucket.instance.placement)?.clone()
            }
            None => self.data_pool(&manifest.tail_placement)?.clone(),
        })
    }

    /// Where data behind a head is: the pool with its locator, its name there, the locator.
    pub(super) async fn tail_place(
        &self,
        bucket: &Handle,
        manifest: &Manifest,
        object: &BucketObject,
    ) -> Result<(Io, Bytes, Bytes)> {
        let pool = self.tail_pool(bucket, manifest, object)?;
        let marker = &object.bucket.marker;
        let locator = object.name.raw_locator(marker);
        let io = self.cluster.io(&pool).await?.with_key(&locator);
        Ok((io, object.name.raw(marker), locator))
    }

    /// Reads a head, with up to so many of its first bytes.
    pub(super) async fn read_head(
        &self,
        bucket: &Handle,
        name: &ObjName,
        extra: bool,
        first_bytes: u64,
    ) -> Result<Head> {
        let (io, oid) = self.head_place(bucket, name, extra).await?;
        let mut op = Operation::new().get_xattrs().stat();
        if first_bytes > 0 {
            op = op.read(0, first_bytes);
        }
        let outcome = match io.run(oid, op).await {
            Ok(outcome) if outcome.result == -Errno::ENOENT.0 => {
                return Ok(Head { user_version: outcome.user_version, ..Head::default() });
            }
            other => other?.ok()?,
        };
        let stat = outcome.stat(1)?;
        let mut head = Head {
            exists: true,
            raw_size: stat.size,
            mtime: stat.mtime,
            user_version: outcome.user_version,
            attrs: outcome.xattrs(0)?,
            manifest: None,
            data: if first_bytes > 0 { outcome.data(2)? } else { Bytes::new() },
        };
        if let Some(bytes) = head.attrs.get(convert::MANIFEST).filter(|m| !m.is_empty()) {
            let mut manifest: Manifest = decoded("a manifest", bytes)?;
            // As the head is now, whatever was written when it was made.
            manifest.object =
                BucketObject { bucket: bucket.instance.bucket.clone(), name: name.clone() };
            manifest.head_size = head.raw_size;
            head.manifest = Some(manifest);
        }
        Ok(head)
    }

    /// Writes a head: announced in the index, written over what is there or beside nothing, and
    /// entered. Data of the object that it replaces becomes garbage. Returns the head that was
    /// replaced.
    pub(super) async fn write_head(&self, w: HeadWrite<'_>) -> Result<Head> {
        let flags = if w.versioned { LOG_VERSIONED } else { 0 };
        let (io, oid) = self.head_place(w.bucket, &w.name, w.extra).await?;
        self.prepare(w.bucket, &w.name, &w.hashed, ModifyOp::ADD, &w.tag, flags).await?;
        let mut notes = self.notes(&w.hashed).await?;
        let result = self.replace_head(&w, &io, &oid, &mut notes).await;
        let (old, user_version) = match result {
            Ok(done) => done,
            Err(e) => {
                self.cancel(w.bucket, &w.name, &w.hashed, &w.tag, flags).await;
                return Err(e);
            }
        };
        self.discard_tail(w.bucket, &old).await;
        notes.done();
        let ver = EntryVer { pool: io.pool().0, epoch: user_version };
        let (meta, remove) = (w.meta, w.remove_objs);
        self.complete(
            w.bucket,
            &w.name,
            &w.hashed,
            ModifyOp::ADD,
            &w.tag,
            ver,
            meta,
            remove,
            flags,
        )
        .await;
        Ok(old)
    }

    async fn replace_head(
        &self,
        w: &HeadWrite<'_>,
        io: &Io,
        oid: &Bytes,
        notes: &mut Notes,
    ) -> Result<(Head, u64)> {
        // Most objects are new: the first attempt asks for that.
        let mut old = Head::default();
        let mut known = w.conditions.is_empty();
        for _ in 0..RACES_MAX {
            if !known {
                old = self.read_head(w.bucket, &w.name, w.extra, 0).await?;
                // Of several versions the head of one does not tell which is current.
                if !(w.versioned && old.has_versions()) {
                    judge(w.conditions, &old)?;
                }
                self.note_tail(w.bucket, &w.name, &old, notes).await?;
            }
            known = false;
            let mut op = Operation::new();
            if old.exists {
                if let Some(tag) = old.tag() {
                    op = op.compare_xattr(convert::ID_TAG, Comparison::Eq, tag);
                }
                let keep = vec![Bytes::from_static(convert::OLH_PREFIX)];
                let remove = ObjRemoveOp { keep_attr_prefixes: keep };
                op = call(op.create(false), "rgw", "obj_remove", &remove, true);
            } else {
                op = op.create(true);
            }
            if w.tagged {
                let tag = [&w.tag[..], b"\0"].concat();
                op = op.set_xattr(convert::ID_TAG, &tag).set_xattr(convert::TAIL_TAG, &tag);
            }
            if let Some(tag) = old.attrs.get(convert::OLH_ID_TAG).filter(|_| old.is_olh()) {
                op = op.set_xattr(convert::OLH_ID_TAG, tag);
            }
            op = op.write_full(w.data.clone());
            if let Some(manifest) = &w.manifest {
                op = op.set_xattr(convert::MANIFEST, &encoded(manifest));
            }
            for (attr, value) in w.attrs.iter().filter(|(_, v)| !v.is_empty()) {
                op = op.set_xattr(attr, value);
            }
            op = bookkeeping(op);
            if !w.meta.storage_class.is_empty() {
                op = op.set_xattr(convert::STORAGE_CLASS, &w.meta.storage_class);
            }
            match submit(io, oid, op, Some(w.mtime)).await {
                Ok(outcome) => return Ok((old, outcome.user_version)),
                Err(ClientError::Errno(Errno::EEXIST | Errno::ECANCELED | Errno::ENOENT)) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Err(raced(w.conditions))
    }

    /// Sends the data behind a head that is gone to the garbage.
    pub(super) async fn discard_tail(&self, bucket: &Handle, head: &Head) {
        let Some(manifest) = head.manifest.as_ref().filter(|m| m.has_tail()) else { return };
        if let Err(e) = self.discard(bucket, manifest, head.tail_tag()).await {
            tracing::warn!("data of a replaced object of {} is left: {e}", bucket.info.name);
        }
    }

    /// Removes a head that has no versions of its own: an object, a version's object, what stands
    /// for an upload. `None` if there is none.
    pub(super) async fn remove_head(
        &self,
        bucket: &Handle,
        name: &ObjName,
        hashed: &Bytes,
        extra: bool,
        remove_objs: &[ObjKey],
        conditions: &Conditions,
        bilog_flags: u16,
    ) -> Result<Option<Head>> {
        let kind = (extra, bilog_flags);
        let data = Data::Discarded;
        self.remove_head_and(data, bucket, name, hashed, kind, remove_objs, conditions).await
    }

    /// Removes the head of a version that does not become one, and leaves the data behind it: it
    /// belongs to an upload.
    pub(super) async fn withdraw_head(&self, bucket: &Handle, name: &ObjName) -> Result<()> {
        let (hashed, kind) = (&name.name, (false, LOG_VERSIONED));
        let all = Conditions::default();
        self.remove_head_and(Data::Kept, bucket, name, hashed, kind, &[], &all).await.map(|_| ())
    }

    async fn remove_head_and(
        &self,
        data: Data,
        bucket: &Handle,
        name: &ObjName,
        hashed: &Bytes,
        (extra, bilog_flags): (bool, u16),
        remove_objs: &[ObjKey],
        conditions: &Conditions,
    ) -> Result<Option<Head>> {
        let (io, oid) = self.head_place(bucket, name, extra).await?;
        let mut notes = self.notes(hashed).await?;
        for _ in 0..RACES_MAX {
            let head = self.read_head(bucket, name, extra, 0).await?;
            judge_doomed(conditions, &head)?;
            if !head.exists {
                return Ok(None);
            }
            if data == Data::Discarded {
                self.note_tail(bucket, name, &head, &mut notes).await?;
            }
            let tag: Bytes = self.new_tag();
            self.prepare(bucket, name, hashed, ModifyOp::DEL, &tag, bilog_flags).await?;
            let mut op = Operation::new();
            if let Some(old) = head.tag() {
                op = op.compare_xattr(convert::ID_TAG, Comparison::Eq, old);
            } else {
                op = op.assert_exists();
            }
            let keep = vec![Bytes::from_static(convert::OLH_PREFIX)];
            let remove = ObjRemoveOp { keep_attr_prefixes: keep };
            op = call(op, "rgw", "obj_remove", &remove, true);
            match submit(&io, &oid, op, None).await {
                Ok(outcome) => {
                    let ver = EntryVer { pool: io.pool().0, epoch: outcome.user_version };
                    let meta = EntryMeta { mtime: head.mtime, ..EntryMeta::default() };
                    let gone = remove_objs.to_vec();
                    self.complete(
                        bucket,
                        name,
                        hashed,
                        ModifyOp::DEL,
                        &tag,
                        ver,
                        meta,
                        gone,
                        bilog_flags,
                    )
                    .await;
                    if data == Data::Discarded {
                        self.discard_tail(bucket, &head).await;
                    }
                    notes.done();
                    return Ok(Some(head));
                }
                Err(e) => {
                    self.cancel(bucket, name, hashed, &tag, bilog_flags).await;
                    match e {
                        ClientError::Errno(Errno::ECANCELED | Errno::ENOENT) => {}
                        e => return Err(e.into()),
                    }
                }
            }
        }
        Err(raced(conditions))
    }
}

/// Judges a change of the object that has this head now.
fn judge(conditions: &Conditions, head: &Head) -> Result<()> {
    if !conditions.is_empty() {
        let etag = Some(head.etag()).filter(|_| head.is_object());
        conditions.for_write(etag.as_deref())?;
    }
    Ok(())
}

/// Judges the deletion of the object that has this head now.
fn judge_doomed(conditions: &Conditions, head: &Head) -> Result<()> {
    if conditions.is_empty() || !head.is_object() {
        return Ok(());
    }
    let (etag, modified) = (head.etag(), head.mtime.sec.into());
    Ok(conditions.for_delete(Some(Doomed { etag: &etag, modified, size: head.size() }))?)
}

pub(super) fn raced(conditions: &Conditions) -> Error {
    if conditions.is_empty() {
        return Error::Unavailable("other changes of the object came before this one".into());
    }
    ErrorCode::ConditionalRequestConflict.into()
}

/// What RGW notes with each head.
pub(super) fn bookkeeping(op: Operation) -> Operation {
    let pg = ObjStorePgVerOp { attr: Bytes::from_static(convert::PG_VER) };
    // The zone's number among several; there is one.
    call(op, "rgw", "obj_store_pg_ver", &pg, true).set_xattr(convert::SOURCE_ZONE, &[0; 4])
}

/// A change of versions is under way, or was left.
pub(super) fn has_pending(head: &Head) -> bool {
    head.attrs.keys().any(|attr| attr.starts_with(convert::OLH_PENDING))
}
