//! Objects, and what changes them.

use super::cluster::{Attrs, nanoseconds, random_text, submit};
use super::convert::{self, attr_text, shown_version};
use super::handle::{BucketRef, Handle};
use super::heads::{Head, HeadWrite, LOG_VERSIONED, RACES_MAX, entry_meta, has_pending, raced};
use super::inner::{Inner, MIB4};
use super::notes::Note;
use crate::api::{
    Deleted, Error, NewObject, Object, ObjectChange, PartSpan, Result, Upload, Written,
};
use ::rgw::entry::{EntryMeta, EntryVer, ModifyOp, ObjCategory};
use ::rgw::key::ObjKey;
use ::rgw::manifest::{BucketObject, Manifest};
use ::rgw::names::{self, ObjName};
use bytes::Bytes;
use client::{ClientError, Comparison, Operation};
use s3::condition::Conditions;
use s3::range::Span;
use s3::{ErrorCode, etag};
use std::rc::Rc;
use types::Errno;

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
    /// The change is noted with the upload that the object is made of.
    pub(super) of_upload: bool,
}

impl Inner {
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
        let plain = head.is_object() && !head.is_olh() && !has_pending(&head);
        if version.is_none() && head.exists && !plain {
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
        writer.hold().await?;
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
            tag: Some(writer.tag.clone()),
            of_upload: false,
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
        let Finish {
            name,
            new,
            mut attrs,
            first,
            manifest,
            size,
            etag,
            remove_objs,
            tag,
            of_upload,
        } = done;
        let versioned = bucket.info.versioning.is_some();
        if versioned && !new.conditions.is_empty() {
            // The head that is written is that of another version.
            self.judge_write(bucket, key, &new.conditions).await?;
        }
        attrs.insert(Bytes::from_static(convert::ETAG), etag.clone().into());
        attrs.insert(Bytes::from_static(convert::ACL), convert::acl_attr(&new.acl)?);
        if !new.tags.0.is_empty() {
            attrs.insert(Bytes::from_static(convert::TAGS), convert::tags_attr(&new.tags));
        }
        let mtime = self.cluster.now();
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
        let mut notes = self.notes(key.as_bytes()).await?;
        if versioned && !of_upload {
            notes.add(&Note::version(bucket, &name)).await?;
        }
        let old = self
            .write_head(HeadWrite {
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
                conditions: if bucket.versions_enabled() { &none } else { &new.conditions },
                versioned,
            })
            .await?;
        // An object without versions stays one where versions are suspended.
        if bucket.versions_enabled() && !new.conditions.is_empty() {
            self.link_if(bucket, key, &name, &new.conditions, of_upload).await?;
        } else if versioned && (bucket.versions_enabled() || old.has_versions()) {
            self.link(bucket, &name, None).await?;
        }
        notes.done();
        Ok(Written {
            version: bucket.info.versioning.map(|_| shown_version(&name.instance)),
            etag,
            modified: nanoseconds(mtime),
            size,
            checksum: None,
        })
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
        // Without one there is no marker either.
        let absent = Deleted { version: version.map(str::to_owned), marker: false };
        if !conditions.is_empty() && !self.judge_deletion(bucket, key, version, conditions).await? {
            return Ok(absent);
        }
        let Some(version) = version else {
            let mut marker = plain;
            if bucket.versions_enabled() {
                marker.instance = random_text(32).into();
            }
            let mut notes = self.notes(key.as_bytes()).await?;
            notes.add(&Note::version(bucket, &marker)).await?;
            let owner = bucket.info.owner.to_string();
            let meta = EntryMeta {
                mtime: self.cluster.now(),
                owner: owner.into(),
                ..EntryMeta::default()
            };
            let made = if conditions.is_empty() {
                Some(self.link(bucket, &marker, Some(meta)).await?)
            } else {
                self.mark_if(bucket, key, &marker, &meta, conditions).await?
            };
            notes.done();
            let Some(made) = made else { return Ok(absent) };
            let mut version = Some(shown_version(&marker.instance));
            if !made {
                // A delete marker is there already.
                if let Err(Error::DeleteMarker { version: had, .. }) =
                    self.open(bucket, key, None, false).await
                {
                    version = Some(had);
                }
            }
            return Ok(Deleted { version, marker: true });
        };
        let name = if version.as_bytes() == names::NULL_VERSION {
            plain
        } else {
            ObjName::version(key.to_owned(), version.to_owned())
        };
        let deleted = Deleted { version: Some(version.to_owned()), marker: false };
        let Some(entry) = self.version_entry(bucket, &name).await? else { return Ok(deleted) };
        let mut notes = self.notes(key.as_bytes()).await?;
        notes.add(&Note::version(bucket, &name)).await?;
        self.unlink(bucket, &name).await?;
        notes.done();
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
            let (io, oid) = self.head_place(bucket, &object.name, false).await?;
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
            let mut notes = self.notes(key.as_bytes()).await?;
            if !object.name.instance.is_empty() {
                // No list shows what was announced of a version.
                notes.add(&Note::version(bucket, &object.name)).await?;
            }
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
                    notes.done();
                    return Ok(object.info.version);
                }
                Err(e) => {
                    self.cancel(bucket, &object.name, &hashed, &tag, flags).await;
                    notes.done();
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
            writer.hold().await?;
            let done = Finish {
                name,
                new,
                attrs,
                first,
                manifest: writer.manifest.clone(),
                size,
                etag,
                remove_objs: Vec::new(),
                tag: Some(writer.tag.clone()),
                of_upload: false,
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
                let (io, oid) = self.head_place(&source.bucket, &source.name, false).await?;
                self.read_piece(&io, &oid, 0, length, source.head.tag()).await?
            }
        };
        // The tag is in the head before the head is written: it is what data refers to.
        let tag: Bytes = self.new_tag();
        let with_zero: Bytes = [&tag[..], b"\0"].concat().into();
        let mut notes = self.notes(key.as_bytes()).await?;
        let head = self.raw_head(bucket, &name, false)?;
        let objs = self.chain(&source.bucket, old)?;
        let note = Note::of_data(head, with_zero.clone(), objs);
        notes.add(&Note { shared: true, ..note }).await?;
        let shared = self.share_tail(&source.bucket, old, &with_zero).await?;
        notes.hold().await?;
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
            of_upload: false,
        };
        match self.finish_object(bucket, key, done).await {
            Ok(written) => {
                notes.done();
                Ok(Written { checksum, ..written })
            }
            // It may have been made all the same: its note tells later.
            Err(e @ (Error::Unavailable(_) | Error::Internal(_))) => Err(e),
            Err(e) => {
                self.release(shared, &with_zero).await;
                notes.done();
                Err(e)
            }
        }
    }

    /// The parts of an object.
    pub(super) fn parts(object: &ObjectRef) -> Vec<PartSpan> {
        let parts = object.head.manifest.as_ref().map(|m| m.parts()).unwrap_or_default();
        let sums = convert::part_checksums_of(&object.head.attrs);
        let known = sums.len() == parts.len();
        let mut sums = sums.into_iter().filter(|_| known);
        parts
            .into_iter()
            .map(|(number, offset, length)| PartSpan {
                number,
                offset,
                length,
                checksum: sums.next(),
            })
            .collect()
    }
}
