//! Objects: heads, data, and what changes them.

use super::bucket::{BucketRef, Handle};
use super::cluster::{Attrs, call, decoded, encoded, nanoseconds, now, random_text, submit};
use super::convert::{self, attr_text, text};
use super::{Inner, MIB4};
use crate::api::{
    Deleted, Error, NewObject, Object, ObjectChange, PartSpan, Result, Source, Upload, Written,
};
use ::rgw::bucket::Pool;
use ::rgw::entry::{EntryMeta, EntryVer, ModifyOp, ObjCategory};
use ::rgw::key::ObjKey;
use ::rgw::manifest::{BucketObject, Manifest, Place};
use ::rgw::names::{self, ObjName};
use ::rgw::object::{ObjRemoveOp, ObjStorePgVerOp};
use bytes::{Bytes, BytesMut};
use client::{ClientError, Comparison, IoCtx, Operation};
use s3::condition::Conditions;
use s3::range::Span;
use s3::{ErrorCode, etag};
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;
use tokio::task::JoinHandle;
use types::{Errno, Utime};

/// How often a change is tried again that another gateway's change came before.
pub(super) const RACES_MAX: u32 = 20;
/// Stripes that are read ahead of a reader, and written behind an upload.
const STRIPES_AT_ONCE: usize = 2;
/// A flag of the index's log: the change is of a version (Ceph: `RGW_BILOG_FLAG_VERSIONED_OP`).
pub(super) const LOG_VERSIONED: u16 = ::rgw::bilog::FLAG_VERSIONED_OP;

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

    /// The tag that data behind the head carries.
    fn tail_tag(&self) -> Bytes {
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

/// An object that was opened.
pub struct ObjectRef {
    pub(super) info: Object,
    pub(super) head: Head,
    pub(super) name: ObjName,
    pub(super) bucket: BucketRef,
}

impl AsRef<Object> for ObjectRef {
    fn as_ref(&self) -> &Object {
        &self.info
    }
}

/// An object with its data already written.
pub(super) struct Finish {
    pub(super) name: ObjName,
    pub(super) new: NewObject,
    pub(super) attrs: Attrs,
    /// What goes into the head.
    pub(super) first: Bytes,
    pub(super) manifest: Manifest,
    pub(super) size: u64,
    pub(super) etag: String,
    /// Entries of the index that go.
    pub(super) remove_objs: Vec<ObjKey>,
    /// The tag, if data refers to it already.
    pub(super) tag: Option<Bytes>,
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
    /// Where a head is: the pool with its locator, its name there.
    pub(super) async fn head_place(
        &self,
        bucket: &Handle,
        name: &ObjName,
        extra: bool,
    ) -> Result<(IoCtx, Bytes, bool)> {
        let b = &bucket.instance.bucket;
        let pool = match (&b.explicit, extra) {
            (Some(pools), false) => pools.data.clone(),
            (Some(pools), true) if pools.data_extra.is_empty() => pools.data.clone(),
            (Some(pools), true) => pools.data_extra.clone(),
            (None, true) => {
                let pools = self.placement(&bucket.instance.placement.name)?;
                pools.extra_pool().cloned().unwrap_or_default()
            }
            (None, false) => self.data_pool(&bucket.instance.placement)?.clone(),
        };
        let io = self.cluster.io(&pool).await?.with_key(name.raw_locator(&b.marker));
        Ok((io, name.raw(&b.marker), extra))
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
    ) -> Result<(IoCtx, Bytes, Bytes)> {
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
        let (io, oid, _) = self.head_place(bucket, name, extra).await?;
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

    /// Opens an object.
    pub(super) async fn open(
        &self,
        bucket: &BucketRef,
        key: &str,
        version: Option<&str>,
        first_bytes: bool,
    ) -> Result<ObjectRef> {
        let first = if first_bytes { MIB4 } else { 0 };
        let mut name = match version {
            None => ObjName::plain(key.to_owned()),
            Some(v) => ObjName::version(key.to_owned(), v.to_owned()),
        };
        let mut head = self.read_head(bucket, &name, false, first).await?;
        if version.is_none() && head.exists && !head.is_object() | head.is_olh() {
            let target = self.current_version(bucket, &name, head).await?;
            let Some(target) = target else { return Err(ErrorCode::NoSuchKey.into()) };
            head = self.read_head(bucket, &target, false, first).await?;
            name = target;
        }
        if !head.is_object() {
            let Some(v) = version else { return Err(ErrorCode::NoSuchKey.into()) };
            let index_name = if v.as_bytes() == names::NULL_VERSION {
                ObjName::plain(key.to_owned())
            } else {
                name
            };
            let entry = self.version_entry(bucket, &index_name).await?;
            if entry.is_some_and(|e| e.has(::rgw::entry::flag::DELETE_MARKER)) {
                return Err(Error::DeleteMarker { version: v.to_owned(), named: true });
            }
            return Err(ErrorCode::NoSuchVersion.into());
        }
        for (attr, what) in
            [(convert::COMPRESSION, "compressed"), (convert::CRYPT_MODE, "encrypted")]
        {
            if head.attrs.contains_key(attr) {
                return Err(s3::S3Error::new(
                    ErrorCode::NotImplemented,
                    format!("Objects that another gateway has {what} cannot be read here"),
                )
                .into());
            }
        }
        let parts = head.manifest.as_ref().map(|m| m.parts().len()).filter(|n| *n > 0);
        let info = Object {
            key: key.to_owned(),
            version: bucket.info.versioning.map(|_| shown_version(&name.instance)),
            size: head.size(),
            etag: head.etag(),
            modified: nanoseconds(head.mtime),
            headers: convert::headers_of(&head.attrs),
            acl: convert::acl_of(&head.attrs)?,
            tags: convert::tags_of(&head.attrs)?.unwrap_or_default(),
            checksum: convert::checksum_of(&head.attrs),
            storage_class: head
                .attrs
                .get(convert::STORAGE_CLASS)
                .map(|c| attr_text(c))
                .filter(|c| c.as_bytes() != ::rgw::bucket::STANDARD)
                .unwrap_or_default(),
            parts: parts.and_then(|n| u32::try_from(n).ok()),
        };
        Ok(ObjectRef { info, head, name, bucket: bucket.clone() })
    }

    /// Writes a head: announced in the index, written over what is there or beside nothing, and
    /// entered. Data of the object that it replaces becomes garbage. Returns the head that was
    /// replaced.
    pub(super) async fn write_head(&self, w: HeadWrite<'_>) -> Result<()> {
        let flags = if w.versioned { LOG_VERSIONED } else { 0 };
        let (io, oid, _) = self.head_place(w.bucket, &w.name, w.extra).await?;
        self.prepare(w.bucket, &w.name, &w.hashed, ModifyOp::ADD, &w.tag, flags).await?;
        let result = self.replace_head(&w, &io, &oid).await;
        let (old, user_version) = match result {
            Ok(done) => done,
            Err(e) => {
                self.cancel(w.bucket, &w.name, &w.hashed, &w.tag, flags).await;
                return Err(e);
            }
        };
        self.discard_tail(w.bucket, &old).await;
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
        Ok(())
    }

    async fn replace_head(
        &self,
        w: &HeadWrite<'_>,
        io: &IoCtx,
        oid: &Bytes,
    ) -> Result<(Head, u64)> {
        // Most objects are new: the first attempt asks for that.
        let mut old = Head::default();
        let mut known = w.conditions.is_empty();
        for _ in 0..RACES_MAX {
            if !known {
                old = self.read_head(w.bucket, &w.name, w.extra, 0).await?;
                judge(w.conditions, &old)?;
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

    /// Writes an object.
    pub(super) async fn put(
        &self,
        bucket: &BucketRef,
        key: &str,
        new: NewObject,
        body: &mut impl Upload,
    ) -> Result<Written> {
        self.check_quota(bucket, new.bytes).await?;
        let name = self.new_name(bucket, key);
        let mut writer = self.writer(bucket, &name, &new.storage_class).await?;
        let first = writer.take(body).await?;
        let sums = body.finish()?;
        let size = writer.size;
        if new.bytes.is_none() {
            self.check_quota(bucket, Some(size)).await?;
        }
        writer.drain().await?;
        let etag = etag::of_digest(&sums.md5);
        let mut attrs = convert::header_attrs(&new.headers);
        if let Some(sum) = &sums.checksum {
            attrs.insert(Bytes::from_static(convert::CHECKSUM), convert::checksum_attr(sum));
        }
        let done = Finish {
            name,
            new,
            attrs,
            first,
            manifest: writer.manifest.clone(),
            size,
            etag,
            remove_objs: Vec::new(),
            tag: None,
        };
        let written = self.finish_object(bucket, key, done).await?;
        writer.keep();
        Ok(Written { checksum: sums.checksum, ..written })
    }

    /// The name of a new version, or of the object where the bucket has none.
    pub(super) fn new_name(&self, bucket: &Handle, key: &str) -> ObjName {
        if bucket.versions_enabled() {
            return ObjName::version(key.to_owned(), random_text(32));
        }
        ObjName::plain(key.to_owned())
    }

    /// Writes the head of an object with its data already written, and makes it current.
    pub(super) async fn finish_object(
        &self,
        bucket: &BucketRef,
        key: &str,
        done: Finish,
    ) -> Result<Written> {
        let Finish { name, new, mut attrs, first, manifest, size, etag, remove_objs, tag } = done;
        let versioned = bucket.info.versioning.is_some();
        if versioned && !new.conditions.is_empty() {
            // The head that is written is that of another version.
            let current = match self.open(bucket, key, None, false).await {
                Ok(object) => Some(object.info.etag),
                Err(e) if e.code() == ErrorCode::NoSuchKey => None,
                Err(e) => return Err(e),
            };
            new.conditions.for_write(current.as_deref())?;
        }
        attrs.insert(Bytes::from_static(convert::ETAG), etag.clone().into());
        attrs.insert(Bytes::from_static(convert::ACL), convert::acl_attr(&new.acl)?);
        if !new.tags.0.is_empty() {
            attrs.insert(Bytes::from_static(convert::TAGS), convert::tags_attr(&new.tags));
        }
        let mtime = now();
        let none = Conditions::default();
        let meta = EntryMeta {
            category: ObjCategory::MAIN,
            size,
            accounted_size: size,
            mtime,
            etag: etag.clone().into(),
            owner: new.acl.owner.clone().into(),
            owner_display_name: new.acl.owner_name.clone().into(),
            content_type: new.headers.get("content-type").cloned().unwrap_or_default().into(),
            storage_class: manifest.tail_placement.storage_class.clone(),
            ..EntryMeta::default()
        };
        self.write_head(HeadWrite {
            bucket,
            hashed: name.name.clone(),
            name: name.clone(),
            extra: false,
            data: first,
            manifest: Some(manifest),
            attrs,
            meta,
            tag: tag.unwrap_or_else(|| self.new_tag()),
            tagged: true,
            mtime,
            remove_objs,
            conditions: if versioned { &none } else { &new.conditions },
            versioned,
        })
        .await?;
        if versioned {
            self.link(bucket, &name, None).await?;
        }
        Ok(Written {
            version: bucket.info.versioning.map(|_| shown_version(&name.instance)),
            etag,
            modified: nanoseconds(mtime),
            size,
            checksum: None,
        })
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
        let (io, oid, _) = self.head_place(bucket, name, extra).await?;
        for _ in 0..RACES_MAX {
            let head = self.read_head(bucket, name, extra, 0).await?;
            judge(conditions, &head)?;
            if !head.exists {
                return Ok(None);
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
                    self.discard_tail(bucket, &head).await;
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

    /// Deletes an object or a version.
    pub(super) async fn delete(
        &self,
        bucket: &BucketRef,
        key: &str,
        version: Option<&str>,
        conditions: &Conditions,
    ) -> Result<Deleted> {
        let plain = ObjName::plain(key.to_owned());
        if bucket.info.versioning.is_none() {
            if version.is_some_and(|v| v.as_bytes() != names::NULL_VERSION) {
                return Ok(Deleted { version: version.map(str::to_owned), marker: false });
            }
            let hashed = plain.name.clone();
            self.remove_head(bucket, &plain, &hashed, false, &[], conditions, 0).await?;
            return Ok(Deleted::default());
        }
        if !conditions.is_empty() {
            let current = match self.open(bucket, key, version, false).await {
                Ok(object) => Some(object.info.etag),
                Err(Error::DeleteMarker { .. }) => None,
                Err(e) if matches!(e.code(), ErrorCode::NoSuchKey | ErrorCode::NoSuchVersion) => {
                    None
                }
                Err(e) => return Err(e),
            };
            conditions.for_write(current.as_deref())?;
        }
        let Some(version) = version else {
            let mut marker = plain;
            if bucket.versions_enabled() {
                marker.instance = random_text(32).into();
            }
            let owner = bucket.info.owner.to_string();
            let meta = EntryMeta { mtime: now(), owner: owner.into(), ..EntryMeta::default() };
            self.link(bucket, &marker, Some(meta)).await?;
            let version = Some(shown_version(&marker.instance));
            return Ok(Deleted { version, marker: true });
        };
        let name = if version.as_bytes() == names::NULL_VERSION {
            plain
        } else {
            ObjName::version(key.to_owned(), version.to_owned())
        };
        let deleted = Deleted { version: Some(version.to_owned()), marker: false };
        let Some(entry) = self.version_entry(bucket, &name).await? else { return Ok(deleted) };
        self.unlink(bucket, &name).await?;
        Ok(Deleted { marker: entry.has(::rgw::entry::flag::DELETE_MARKER), ..deleted })
    }

    /// Changes attributes of an object where it is.
    pub(super) async fn change_object(
        &self,
        bucket: &BucketRef,
        key: &str,
        version: Option<&str>,
        change: ObjectChange,
    ) -> Result<Option<String>> {
        for _ in 0..RACES_MAX {
            let object = self.open(bucket, key, version, false).await?;
            let (io, oid, _) = self.head_place(bucket, &object.name, false).await?;
            let mut head = object.head.clone();
            let mut op = Operation::new();
            if let Some(old) = head.tag() {
                op = op.compare_xattr(convert::ID_TAG, Comparison::Eq, old);
            }
            let tag: Bytes = self.new_tag();
            // Other gateways that are about to change the object must notice.
            op = op.set_xattr(convert::ID_TAG, &[&tag[..], b"\0"].concat());
            if !head.attrs.contains_key(convert::TAIL_TAG)
                && let Some(old) = head.tag()
            {
                op = op.set_xattr(convert::TAIL_TAG, old);
            }
            if let Some(acl) = &change.acl {
                let value = convert::acl_attr(acl)?;
                op = op.set_xattr(convert::ACL, &value);
                head.attrs.insert(Bytes::from_static(convert::ACL), value);
            }
            match &change.tags {
                Some(tags) if !tags.0.is_empty() => {
                    op = op.set_xattr(convert::TAGS, &convert::tags_attr(tags));
                }
                Some(_) if head.attrs.contains_key(convert::TAGS) => {
                    op = op.remove_xattr(convert::TAGS);
                }
                _ => {}
            }
            let flags = if object.name.instance.is_empty() { 0 } else { LOG_VERSIONED };
            let hashed = object.name.name.clone();
            self.prepare(bucket, &object.name, &hashed, ModifyOp::ADD, &tag, flags).await?;
            match submit(&io, oid, op, Some(head.mtime)).await {
                Ok(outcome) => {
                    let ver = EntryVer { pool: io.pool().0, epoch: outcome.user_version };
                    let meta = entry_meta(&head)?;
                    self.complete(
                        bucket,
                        &object.name,
                        &hashed,
                        ModifyOp::ADD,
                        &tag,
                        ver,
                        meta,
                        Vec::new(),
                        flags,
                    )
                    .await;
                    return Ok(object.info.version);
                }
                Err(e) => {
                    self.cancel(bucket, &object.name, &hashed, &tag, flags).await;
                    match e {
                        ClientError::Errno(Errno::ECANCELED | Errno::ENOENT) => {}
                        e => return Err(e.into()),
                    }
                }
            }
        }
        Err(raced(&Conditions::default()))
    }

    /// Copies an object. Data behind the head is shared if it is to be in the same pool.
    pub(super) async fn copy(
        self: &Rc<Self>,
        source: &ObjectRef,
        bucket: &BucketRef,
        key: &str,
        new: NewObject,
    ) -> Result<Written> {
        let size = source.info.size;
        self.check_quota(bucket, Some(size)).await?;
        let name = self.new_name(bucket, key);
        let wanted = bucket.instance.placement.with_class(new.storage_class.as_bytes());
        let tail = source.head.manifest.as_ref().filter(|m| m.has_tail());
        let mut attrs = convert::header_attrs(&new.headers);
        if let Some(sum) = source.head.attrs.get(convert::CHECKSUM) {
            attrs.insert(Bytes::from_static(convert::CHECKSUM), sum.clone());
        }
        let checksum = source.info.checksum.clone();
        let etag = source.info.etag.clone();
        let Some(old) = tail.filter(|m| {
            !m.explicit && self.data_pool(&m.tail_placement).ok() == self.data_pool(&wanted).ok()
        }) else {
            let mut writer = self.writer(bucket, &name, &new.storage_class).await?;
            let span = Span { offset: 0, length: size };
            let mut reader = self.reader(source, span);
            let first = writer.take(&mut reader).await?;
            writer.drain().await?;
            let done = Finish {
                name,
                new,
                attrs,
                first,
                manifest: writer.manifest.clone(),
                size,
                etag,
                remove_objs: Vec::new(),
                tag: None,
            };
            let written = self.finish_object(bucket, key, done).await?;
            writer.keep();
            return Ok(Written { checksum, ..written });
        };
        let mut manifest = old.clone();
        if manifest.tail_bucket.name.is_empty() {
            manifest.tail_bucket = manifest.object.bucket.clone();
        }
        manifest.object =
            BucketObject { bucket: bucket.instance.bucket.clone(), name: name.clone() };
        manifest.head_placement = bucket.instance.placement.clone();
        manifest.tail_placement.storage_class = wanted.storage_class.clone();
        let first = match old.head_size {
            0 => Bytes::new(),
            length => {
                let (io, oid, _) = self.head_place(&source.bucket, &source.name, false).await?;
                self.read_piece(&io, &oid, 0, length, source.head.tag()).await?
            }
        };
        // The tag is in the head before the head is written: it is what data refers to.
        let tag: Bytes = self.new_tag();
        let with_zero: Bytes = [&tag[..], b"\0"].concat().into();
        let shared = self.share_tail(&source.bucket, old, &with_zero).await?;
        let done = Finish {
            name,
            new,
            attrs,
            first,
            manifest,
            size,
            etag,
            remove_objs: Vec::new(),
            tag: Some(tag),
        };
        match self.finish_object(bucket, key, done).await {
            Ok(written) => Ok(Written { checksum, ..written }),
            Err(e) => {
                self.release(shared, &with_zero).await;
                Err(e)
            }
        }
    }

    /// Reads from one object of RADOS; `tag` is what its head must carry.
    pub(super) async fn read_piece(
        &self,
        io: &IoCtx,
        oid: &Bytes,
        offset: u64,
        length: u64,
        tag: Option<&Bytes>,
    ) -> Result<Bytes> {
        let mut op = Operation::new();
        if let Some(tag) = tag {
            op = op.compare_xattr(convert::ID_TAG, Comparison::Eq, tag);
        }
        let at = op.len();
        let data = match submit(io, oid, op.read(offset, length), None).await {
            Ok(outcome) => outcome.data(at)?,
            Err(ClientError::Errno(Errno::ENOENT | Errno::ECANCELED)) => {
                return Err(Error::Unavailable(format!(
                    "{} was replaced while it was read",
                    oid.escape_ascii()
                )));
            }
            Err(e) => return Err(e.into()),
        };
        if data.len() as u64 != length {
            return Err(Error::Internal(format!(
                "{} has {} bytes behind {offset} where {length} were expected",
                oid.escape_ascii(),
                data.len()
            )));
        }
        Ok(data)
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

fn raced(conditions: &Conditions) -> Error {
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

/// A version's id as clients see it.
pub(super) fn shown_version(instance: &[u8]) -> String {
    if instance.is_empty() { text(names::NULL_VERSION) } else { text(instance) }
}

/// Data that is being written in stripes. Dropped before [`Writer::keep`], it is removed again.
pub(super) struct Writer {
    pub(super) manifest: Manifest,
    pub(super) size: u64,
    /// The first stripe is written by the caller.
    pub(super) hold_first: bool,
    cluster_io: IoCtx,
    tasks: VecDeque<JoinHandle<client::Result<()>>>,
    written: BTreeSet<Bytes>,
    kept: bool,
}

impl Writer {
    pub(super) fn new(manifest: Manifest, io: IoCtx) -> Self {
        Writer {
            manifest,
            size: 0,
            hold_first: false,
            cluster_io: io,
            tasks: VecDeque::new(),
            written: BTreeSet::new(),
            kept: false,
        }
    }

    /// An object that the caller has written for this data.
    pub(super) fn also(&mut self, oid: Bytes) {
        self.written.insert(oid);
    }

    /// The data belongs to an object.
    pub(super) fn keep(&mut self) {
        self.kept = true;
    }

    async fn next_done(&mut self) -> Result<()> {
        if let Some(task) = self.tasks.pop_front() {
            task.await.map_err(|_| Error::Internal("a write was given up".into()))??;
        }
        Ok(())
    }

    /// Waits for all stripes.
    pub(super) async fn drain(&mut self) -> Result<()> {
        while !self.tasks.is_empty() {
            self.next_done().await?;
        }
        Ok(())
    }

    async fn stripe(&mut self, offset: u64, data: Bytes) -> Result<()> {
        let Some(piece) = self.manifest.next_stripe(offset) else {
            return Err(Error::Internal("a manifest names no stripe".into()));
        };
        let Place::Tail(object) = piece.place else {
            return Err(Error::Internal("a manifest puts a stripe into the head".into()));
        };
        let marker = &object.bucket.marker;
        let oid = object.name.raw(marker);
        let io = self.cluster_io.clone().with_key(object.name.raw_locator(marker));
        self.written.insert(oid.clone());
        if self.tasks.len() >= STRIPES_AT_ONCE {
            self.next_done().await?;
        }
        self.tasks
            .push_back(tokio::task::spawn_local(async move { io.write_full(oid, data).await }));
        Ok(())
    }

    /// Takes a body: writes stripes, and returns what goes into the head, or into the first stripe
    /// if that is held.
    pub(super) async fn take(&mut self, body: &mut impl Source) -> Result<Bytes> {
        let holds = self.hold_first || self.manifest.max_head_size > 0;
        let mut first = None;
        let mut offset = 0u64;
        let mut buffer = BytesMut::new();
        loop {
            let chunk = body.next().await?;
            let end = chunk.is_none();
            let mut chunk = chunk.unwrap_or_default();
            loop {
                let room = MIB4 as usize;
                let stripe = if buffer.is_empty() && chunk.len() >= room {
                    chunk.split_to(room)
                } else {
                    let take = chunk.len().min(room - buffer.len());
                    buffer.extend_from_slice(&chunk.split_to(take));
                    if buffer.len() < room && (!end || buffer.is_empty()) {
                        break;
                    }
                    buffer.split().freeze()
                };
                let length = stripe.len() as u64;
                if offset == 0 && holds {
                    first = Some(stripe);
                } else {
                    self.stripe(offset, stripe).await?;
                }
                offset += length;
            }
            if end {
                break;
            }
        }
        self.size = offset;
        self.manifest.set_size(offset);
        Ok(first.unwrap_or_default())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if self.kept || self.written.is_empty() {
            return;
        }
        let (io, written) = (self.cluster_io.clone(), std::mem::take(&mut self.written));
        let tasks = std::mem::take(&mut self.tasks);
        tokio::task::spawn_local(async move {
            // What is under way would write them again.
            for task in tasks {
                let _ = task.await;
            }
            for oid in written {
                match io.remove(&oid).await {
                    Ok(()) | Err(ClientError::Errno(Errno::ENOENT)) => {}
                    Err(e) => {
                        tracing::warn!(
                            "data of a failed upload is left: {}: {e}",
                            oid.escape_ascii()
                        );
                    }
                }
            }
        });
    }
}

impl Inner {
    /// A writer for an object's data.
    pub(super) async fn writer(
        &self,
        bucket: &Handle,
        name: &ObjName,
        storage_class: &str,
    ) -> Result<Writer> {
        let head = &bucket.instance.placement;
        let class =
            if storage_class.as_bytes() == ::rgw::bucket::STANDARD { "" } else { storage_class };
        let mut tail = head.with_class(class.as_bytes());
        if storage_class.as_bytes() == ::rgw::bucket::STANDARD {
            tail.storage_class = Bytes::new();
        }
        let object = BucketObject { bucket: bucket.instance.bucket.clone(), name: name.clone() };
        let pool = match &object.bucket.explicit {
            Some(pools) => pools.data.clone(),
            None => self
                .data_pool(&tail)
                .map_err(|_| Error::from(ErrorCode::InvalidStorageClass))?
                .clone(),
        };
        let same = object.bucket.explicit.is_some() || self.data_pool(head)? == &pool;
        let in_head = if same { MIB4 } else { 0 };
        let prefix = format!(".{}_", random_text(31));
        let manifest = Manifest::simple(object, head, &tail, prefix.into(), in_head, MIB4);
        Ok(Writer::new(manifest, self.cluster.io(&pool).await?))
    }

    /// The parts of an object.
    pub(super) fn parts(object: &ObjectRef) -> Vec<PartSpan> {
        let parts = object.head.manifest.as_ref().map(|m| m.parts()).unwrap_or_default();
        parts
            .into_iter()
            .map(|(number, offset, length)| PartSpan { number, offset, length, checksum: None })
            .collect()
    }

    /// A reader of a range.
    pub(super) fn reader(self: &Rc<Self>, object: &ObjectRef, span: Span) -> Reader {
        let mut wanted: VecDeque<Wanted> = VecDeque::new();
        let head = &object.head;
        let end = span.offset.saturating_add(span.length).min(object.info.size);
        let mut add = |place: Place, offset: u64, length: u64| {
            // Pieces are no longer than a stripe, which old manifests may have larger.
            let mut at = 0;
            while at < length {
                let some = (length - at).min(MIB4);
                wanted.push_back(Wanted {
                    place: place.clone(),
                    offset: offset + at,
                    length: some,
                });
                at += some;
            }
        };
        match &head.manifest {
            Some(m) => {
                for piece in m.pieces(span.offset, end.saturating_sub(span.offset)) {
                    add(piece.place, piece.place_offset, piece.length);
                }
            }
            None => add(Place::Head, span.offset, end.saturating_sub(span.offset)),
        }
        Reader {
            inner: self.clone(),
            bucket: object.bucket.clone(),
            manifest: head.manifest.clone().unwrap_or_default(),
            name: object.name.clone(),
            tag: head.tag().cloned(),
            first: head.data.clone(),
            left: end.saturating_sub(span.offset),
            wanted,
            ahead: VecDeque::new(),
        }
    }
}

struct Wanted {
    place: Place,
    offset: u64,
    length: u64,
}

/// The bytes of a range, read ahead by a few stripes.
pub struct Reader {
    inner: Rc<Inner>,
    bucket: BucketRef,
    manifest: Manifest,
    name: ObjName,
    tag: Option<Bytes>,
    first: Bytes,
    left: u64,
    wanted: VecDeque<Wanted>,
    ahead: VecDeque<JoinHandle<Result<Bytes>>>,
}

impl Reader {
    fn start(&mut self, w: Wanted) {
        let (inner, bucket, manifest) =
            (self.inner.clone(), self.bucket.clone(), self.manifest.clone());
        let (name, tag) = (self.name.clone(), self.tag.clone());
        let from_first = (w.place == Place::Head)
            .then(|| {
                let (from, to) = (w.offset as usize, (w.offset + w.length) as usize);
                self.first.get(from..to).map(|_| self.first.slice(from..to))
            })
            .flatten();
        self.ahead.push_back(tokio::task::spawn_local(async move {
            if let Some(data) = from_first {
                return Ok(data);
            }
            match w.place {
                Place::Head => {
                    let (io, oid, _) = inner.head_place(&bucket, &name, false).await?;
                    inner.read_piece(&io, &oid, w.offset, w.length, tag.as_ref()).await
                }
                Place::Tail(object) => {
                    let (io, oid, _) = inner.tail_place(&bucket, &manifest, &object).await?;
                    inner.read_piece(&io, &oid, w.offset, w.length, None).await
                }
            }
        }));
    }
}

impl Source for Reader {
    async fn next(&mut self) -> Result<Option<Bytes>> {
        while self.ahead.len() < STRIPES_AT_ONCE
            && let Some(w) = self.wanted.pop_front()
        {
            self.start(w);
        }
        let Some(task) = self.ahead.pop_front() else {
            if self.left > 0 {
                return Err(Error::Internal(format!(
                    "the manifest of {} ends {} bytes early",
                    text(&self.name.name),
                    self.left
                )));
            }
            return Ok(None);
        };
        let data = task.await.map_err(|_| Error::Internal("a read was given up".into()))??;
        self.left = self.left.saturating_sub(data.len() as u64);
        Ok(Some(data))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        for task in &self.ahead {
            task.abort();
        }
    }
}
