//! Uploads in parts. An object in the namespace `multipart` stands for an upload: it has the
//! attributes of the object to be, and a map of the parts.

use super::Inner;
use super::bucket::{BucketRef, Handle};
use super::cluster::{Attrs, decoded, encoded, nanoseconds, now, random_text, submit};
use super::convert::{self, attr_text, text};
use super::objects::{Finish, HeadWrite, Writer, bookkeeping};
use crate::api::{
    Complete, Error, NewObject, NewUpload, Part, PartPage, PendingUpload, Result, Upload, Uploads,
    UserId, Written,
};
use ::rgw::entry::{EntryMeta, EntryVer, ModifyOp, ObjCategory};
use ::rgw::key::ObjKey;
use ::rgw::manifest::{BucketObject, Manifest, Place};
use ::rgw::names::{NS_MULTIPART, ObjName};
use ::rgw::upload::{ID_PREFIX, PartInfo, UploadInfo, meta_name, part_key};
use bytes::Bytes;
use client::{ClientError, Operation};
use s3::checksum::{Algorithm, Checksum, Coverage};
use s3::condition::Conditions;
use s3::xml::multi::CompletePart;
use s3::{ErrorCode, S3Error, etag};
use std::collections::BTreeSet;
use types::Errno;

use super::MIB4;

/// All parts but the last have at least so many bytes (Ceph: `rgw_multipart_min_part_size`).
const PART_BYTES_MIN: u64 = 5 << 20;
/// Parts that are read together.
const PARTS_AT_ONCE: u64 = 1000;
/// The lock that a gateway takes while it completes an upload, and how long it holds.
const LOCK: &str = "RGWCompleteMultipart";
const LOCK_SECONDS: u32 = 600;

/// An upload, as its object has it.
struct State {
    name: ObjName,
    attrs: Attrs,
    initiated: u64,
}

fn no_upload(id: &str) -> Error {
    S3Error::from(ErrorCode::NoSuchUpload).with("UploadId", id.to_owned()).into()
}

fn coverage(attrs: &Attrs) -> Option<(Algorithm, Coverage)> {
    let stored = attr_text(attrs.get(convert::UPLOAD_CHECKSUM)?);
    let (algorithm, coverage) = stored.split_once(' ')?;
    Some((Algorithm::parse(algorithm).ok()?, Coverage::parse(coverage).ok()?))
}

fn shown_class(attrs: &Attrs) -> String {
    attrs.get(convert::STORAGE_CLASS).map(|c| attr_text(c)).unwrap_or_default()
}

impl State {
    fn pending(&self, key: &str, id: &str) -> Result<PendingUpload> {
        let acl = convert::acl_of(&self.attrs)?;
        Ok(PendingUpload {
            key: key.to_owned(),
            id: id.to_owned(),
            initiated: self.initiated,
            owner: UserId::parse(&acl.owner),
            owner_name: acl.owner_name,
            storage_class: shown_class(&self.attrs),
            checksum: coverage(&self.attrs),
        })
    }
}

impl Inner {
    /// Begins an upload.
    pub(super) async fn create_upload(
        &self,
        bucket: &BucketRef,
        key: &str,
        new: NewUpload,
    ) -> Result<String> {
        let placement = bucket.instance.placement.with_class(new.storage_class.as_bytes());
        if bucket.instance.bucket.explicit.is_none() {
            self.data_pool(&placement).map_err(|_| Error::from(ErrorCode::InvalidStorageClass))?;
        }
        let id = format!("{ID_PREFIX}{}", random_text(31));
        let name = ObjName::in_ns(meta_name(key.as_bytes(), id.as_bytes()), NS_MULTIPART);
        let mut attrs = convert::header_attrs(&new.headers);
        attrs.insert(Bytes::from_static(convert::ACL), convert::acl_attr(&new.acl)?);
        if !new.tags.0.is_empty() {
            attrs.insert(Bytes::from_static(convert::TAGS), convert::tags_attr(&new.tags));
        }
        if let Some((algorithm, coverage)) = new.checksum {
            let value = format!("{} {}", algorithm.name(), coverage.as_str());
            let value = convert::text_attr(&value);
            attrs.insert(Bytes::from_static(convert::UPLOAD_CHECKSUM), value);
        }
        let data = encoded(&UploadInfo { placement: placement.clone() });
        let mtime = now();
        let meta = EntryMeta {
            category: ObjCategory::MULTI_META,
            size: data.len() as u64,
            mtime,
            owner: new.acl.owner.clone().into(),
            owner_display_name: new.acl.owner_name.clone().into(),
            storage_class: placement.storage_class.clone(),
            ..EntryMeta::default()
        };
        self.write_head(HeadWrite {
            bucket,
            name,
            hashed: key.to_owned().into(),
            extra: true,
            data,
            manifest: None,
            attrs,
            meta,
            tag: self.new_tag(),
            tagged: false,
            mtime,
            remove_objs: Vec::new(),
            conditions: &Conditions::default(),
            versioned: false,
        })
        .await?;
        Ok(id)
    }

    async fn state(&self, bucket: &Handle, key: &str, id: &str) -> Result<State> {
        let name = ObjName::in_ns(meta_name(key.as_bytes(), id.as_bytes()), NS_MULTIPART);
        let head = self.read_head(bucket, &name, true, 0).await?;
        if !head.exists {
            return Err(no_upload(id));
        }
        Ok(State { name, attrs: head.attrs, initiated: nanoseconds(head.mtime) })
    }

    /// An upload under way.
    pub(super) async fn upload(
        &self,
        bucket: &BucketRef,
        key: &str,
        id: &str,
    ) -> Result<PendingUpload> {
        self.state(bucket, key, id).await?.pending(key, id)
    }

    /// Reads parts with numbers above `after`, and whether there are more.
    async fn read_parts(
        &self,
        bucket: &Handle,
        state: &State,
        after: u32,
        max: u64,
    ) -> Result<(Vec<PartInfo>, bool)> {
        let (io, oid, _) = self.head_place(bucket, &state.name, true).await?;
        let op = Operation::new().omap_values(part_key(after).as_bytes(), max, b"part.");
        let page = submit(&io, oid, op, None).await?.omap(0)?;
        let mut parts = Vec::new();
        for value in page.entries.values() {
            parts.push(decoded::<PartInfo>("a part", value)?);
        }
        parts.sort_by_key(|p| p.number);
        Ok((parts, page.more))
    }

    async fn all_parts(&self, bucket: &Handle, state: &State) -> Result<Vec<PartInfo>> {
        let mut all: Vec<PartInfo> = Vec::new();
        loop {
            let after = all.last().map_or(0, |p| p.number);
            let (parts, more) = self.read_parts(bucket, state, after, PARTS_AT_ONCE).await?;
            let none = parts.is_empty();
            all.extend(parts);
            if !more || none {
                return Ok(all);
            }
        }
    }

    /// The object with the first stripe of a part.
    fn first_stripe(part: &PartInfo) -> Option<BucketObject> {
        match part.manifest.next_stripe(0)?.place {
            Place::Tail(object) => Some(*object),
            Place::Head => None,
        }
    }

    async fn part_checksum(&self, bucket: &Handle, part: &PartInfo) -> Result<Option<Checksum>> {
        let Some(object) = Self::first_stripe(part) else { return Ok(None) };
        let (io, oid, _) = self.tail_place(bucket, &part.manifest, &object).await?;
        match io.get_xattr(oid, convert::CHECKSUM).await {
            Ok(value) => {
                let attrs = Attrs::from([(Bytes::from_static(convert::CHECKSUM), value)]);
                Ok(convert::checksum_of(&attrs))
            }
            Err(ClientError::Errno(Errno::ENODATA | Errno::ENOENT)) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    async fn shown(&self, bucket: &Handle, part: &PartInfo, sums: bool) -> Result<Part> {
        let checksum = if sums { self.part_checksum(bucket, part).await? } else { None };
        Ok(Part {
            number: part.number,
            size: part.accounted_size,
            etag: text(&part.etag),
            modified: nanoseconds(part.modified),
            checksum,
        })
    }

    /// Writes a part.
    pub(super) async fn put_part(
        &self,
        bucket: &BucketRef,
        key: &str,
        id: &str,
        number: u32,
        bytes: Option<u64>,
        body: &mut impl Upload,
    ) -> Result<Part> {
        self.check_quota(bucket, bytes).await?;
        let state = self.state(bucket, key, id).await?;
        let (meta_io, meta_oid, _) = self.head_place(bucket, &state.name, true).await?;
        let before = {
            let row = part_key(number);
            let keys = BTreeSet::from([Bytes::from(row.clone())]);
            let op = Operation::new().omap_values_by_keys(&keys);
            let rows = submit(&meta_io, &meta_oid, op, None).await?.omap_values(0)?;
            rows.get(row.as_bytes()).map(|v| decoded::<PartInfo>("a part", v)).transpose()?
        };
        let data = meta_io.read(&meta_oid, 0, 4096).await?;
        let info: UploadInfo = decoded("an upload", &data)?;
        let object = BucketObject {
            bucket: bucket.instance.bucket.clone(),
            name: ObjName::plain(key.to_owned()),
        };
        let pool = match &object.bucket.explicit {
            Some(pools) => pools.data.clone(),
            None => self.data_pool(&info.placement)?.clone(),
        };
        let io = self.cluster.io(&pool).await?;
        // A part that was uploaded before, or is being uploaded at the same time, has the names.
        let own = match before {
            Some(_) => format!("{key}.{}", random_text(32)),
            None => format!("{key}.{id}"),
        };
        let manifest = Manifest::part(object, &info.placement, own.into(), number, MIB4);
        let mut writer = Writer::new(manifest, io.clone());
        writer.hold_first = true;
        let first = writer.take(body).await?;
        let sums = body.finish()?;
        writer.drain().await?;
        let size = writer.size;
        let etag = etag::of_digest(&sums.md5);

        let mut part = PartInfo {
            number,
            size,
            etag: etag.clone().into(),
            modified: now(),
            manifest: writer.manifest.clone(),
            accounted_size: size,
            ..PartInfo::default()
        };
        let Some(head) = Self::first_stripe(&part) else {
            return Err(Error::Internal("a part has no first stripe".into()));
        };
        let hashed: Bytes = key.to_owned().into();
        let tag: Bytes = self.new_tag();
        let mut attrs = Attrs::from([(Bytes::from_static(convert::ETAG), etag.clone().into())]);
        if let Some(acl) = state.attrs.get(convert::ACL) {
            attrs.insert(Bytes::from_static(convert::ACL), acl.clone());
        }
        if let Some(sum) = &sums.checksum {
            attrs.insert(Bytes::from_static(convert::CHECKSUM), convert::checksum_attr(sum));
        }
        self.prepare(bucket, &head.name, &hashed, ModifyOp::ADD, &tag, 0).await?;
        let marker = &bucket.instance.bucket.marker;
        let oid = head.name.raw(marker);
        let mut op = Operation::new().create(true).write_full(first);
        for (attr, value) in &attrs {
            op = op.set_xattr(attr, value);
        }
        let written = submit(&io, &oid, bookkeeping(op), Some(part.modified)).await;
        let outcome = match written {
            Ok(outcome) => outcome,
            Err(e) => {
                self.cancel(bucket, &head.name, &hashed, &tag, 0).await;
                return Err(match e {
                    // The same part is being uploaded by another request, which was first.
                    ClientError::Errno(Errno::EEXIST) => ErrorCode::OperationAborted.into(),
                    e => e.into(),
                });
            }
        };
        writer.also(oid);
        let acl = convert::acl_of(&state.attrs)?;
        let meta = EntryMeta {
            category: ObjCategory::MAIN,
            size,
            accounted_size: size,
            mtime: part.modified,
            etag: etag.clone().into(),
            owner: acl.owner.into(),
            owner_display_name: acl.owner_name.into(),
            ..EntryMeta::default()
        };
        let ver = EntryVer { pool: io.pool().0, epoch: outcome.user_version };
        let add = ModifyOp::ADD;
        self.complete(bucket, &head.name, &hashed, add, &tag, ver, meta, Vec::new(), 0).await;

        part.later = None;
        let row = [(Bytes::from(part_key(number)), encoded(&part))].into();
        let entered =
            submit(&meta_io, &meta_oid, Operation::new().assert_exists().omap_set(&row), None)
                .await;
        if let Err(e) = entered {
            // The upload was completed or aborted meanwhile: nothing may stay of the part.
            self.drop_entry(bucket, &head.name, &hashed).await?;
            return Err(match e {
                ClientError::Errno(Errno::ENOENT) => no_upload(id),
                e => e.into(),
            });
        }
        writer.keep();
        if let Some(old) = before {
            self.discard_part(bucket, &old, &hashed, id).await?;
        }
        Ok(Part {
            number,
            size,
            etag,
            modified: nanoseconds(part.modified),
            checksum: sums.checksum,
        })
    }

    /// Removes an entry of the index that has no object.
    async fn drop_entry(&self, bucket: &Handle, name: &ObjName, hashed: &Bytes) -> Result<()> {
        let tag: Bytes = self.new_tag();
        self.prepare(bucket, name, hashed, ModifyOp::DEL, &tag, 0).await?;
        let ver = EntryVer { pool: -1, epoch: u64::MAX };
        let (op, meta) = (ModifyOp::DEL, EntryMeta::default());
        self.complete(bucket, name, hashed, op, &tag, ver, meta, Vec::new(), 0).await;
        Ok(())
    }

    async fn discard_part(
        &self,
        bucket: &Handle,
        part: &PartInfo,
        hashed: &Bytes,
        id: &str,
    ) -> Result<()> {
        if let Some(first) = Self::first_stripe(part) {
            self.drop_entry(bucket, &first.name, hashed).await?;
        }
        let objs = self.chain(bucket, &part.manifest)?;
        let tag = format!("{id}.{}.{}", part.number, random_text(8));
        self.discard_objects(objs, tag.into()).await
    }

    /// Lists parts.
    pub(super) async fn list_parts(
        &self,
        bucket: &BucketRef,
        key: &str,
        id: &str,
        after: u32,
        max: usize,
    ) -> Result<PartPage> {
        let state = self.state(bucket, key, id).await?;
        let mut page = PartPage { upload: state.pending(key, id)?, parts: Vec::new(), more: false };
        let sums = page.upload.checksum.is_some();
        let mut at = after;
        loop {
            let want = (max - page.parts.len()) as u64;
            if want == 0 {
                page.more = !self.read_parts(bucket, &state, at, 1).await?.0.is_empty();
                return Ok(page);
            }
            let (parts, more) =
                self.read_parts(bucket, &state, at, want.min(PARTS_AT_ONCE)).await?;
            for part in &parts {
                page.parts.push(self.shown(bucket, part, sums).await?);
                at = part.number;
            }
            if !more || parts.is_empty() {
                return Ok(page);
            }
        }
    }

    /// Makes an object of parts.
    pub(super) async fn complete_upload(
        &self,
        bucket: &BucketRef,
        key: &str,
        id: &str,
        asked: &[CompletePart],
        options: &Complete,
    ) -> Result<Written> {
        if asked.is_empty() {
            return Err(ErrorCode::MalformedXML.into());
        }
        if asked.windows(2).any(|w| w[0].number >= w[1].number) {
            return Err(ErrorCode::InvalidPartOrder.into());
        }
        let state = match self.state(bucket, key, id).await {
            Err(e) if e.code() == ErrorCode::NoSuchUpload => {
                return self.completed_before(bucket, key, asked, e).await;
            }
            other => other?,
        };
        let (io, oid, _) = self.head_place(bucket, &state.name, true).await?;
        let object = text(&oid);
        let Some(cookie) = self.lock(&io, &object, LOCK, LOCK_SECONDS).await? else {
            return Err(S3Error::new(
                ErrorCode::OperationAborted,
                "The upload is being completed by another request",
            )
            .into());
        };
        let result = self.join(bucket, key, id, &state, asked, options).await;
        if result.is_err() {
            self.unlock(&io, &object, LOCK, cookie).await;
        }
        result
    }

    /// An upload that is gone: was it completed with these parts?
    async fn completed_before(
        &self,
        bucket: &BucketRef,
        key: &str,
        asked: &[CompletePart],
        otherwise: Error,
    ) -> Result<Written> {
        let mut digests = Vec::new();
        for part in asked {
            match etag::unhex::<16>(etag::unquote(&part.etag)) {
                Some(digest) => digests.push(digest),
                None => return Err(otherwise),
            }
        }
        let wanted = etag::of_parts(&digests);
        match self.open(bucket, key, None, false).await {
            Ok(object) if object.info.etag == wanted => Ok(Written {
                version: object.info.version,
                etag: wanted,
                modified: object.info.modified,
                size: object.info.size,
                checksum: object.info.checksum,
            }),
            _ => Err(otherwise),
        }
    }

    async fn join(
        &self,
        bucket: &BucketRef,
        key: &str,
        id: &str,
        state: &State,
        asked: &[CompletePart],
        options: &Complete,
    ) -> Result<Written> {
        let stored = self.all_parts(bucket, state).await?;
        let wanted_sum = coverage(&state.attrs);
        let mut manifest = Manifest::default();
        let (mut used, mut unused) = (Vec::new(), Vec::new());
        let mut remaining = asked.iter().peekable();
        for part in stored {
            match remaining.peek() {
                Some(next) if next.number == part.number => {
                    remaining.next();
                    used.push(part);
                }
                _ => unused.push(part),
            }
        }
        if remaining.peek().is_some() {
            return Err(ErrorCode::InvalidPart.into());
        }
        let (mut digests, mut sums, mut remove) = (Vec::new(), Vec::new(), Vec::<ObjKey>::new());
        let mut size = 0u64;
        for (at, (part, want)) in used.iter().zip(asked).enumerate() {
            if etag::unquote(&want.etag) != text(&part.etag) {
                return Err(ErrorCode::InvalidPart.into());
            }
            if at + 1 < used.len() && part.accounted_size < PART_BYTES_MIN {
                return Err(S3Error::from(ErrorCode::EntityTooSmall)
                    .with("ProposedSize", part.accounted_size.to_string())
                    .with("MinSizeAllowed", PART_BYTES_MIN.to_string())
                    .with("PartNumber", part.number.to_string())
                    .with("ETag", text(&part.etag))
                    .into());
            }
            if part.compression.kind != "none" {
                return Err(S3Error::new(
                    ErrorCode::NotImplemented,
                    "Parts that another gateway has compressed cannot be joined here",
                )
                .into());
            }
            if wanted_sum.is_some() || want.checksum.is_some() {
                let sum = self.part_checksum(bucket, part).await?;
                if want.checksum.is_some() && want.checksum != sum {
                    return Err(ErrorCode::InvalidPart.into());
                }
                sums.extend(sum.map(|s| (s, part.accounted_size)));
            }
            let digest = etag::unhex::<16>(&text(&part.etag));
            digests.push(digest.ok_or_else(|| Error::from(ErrorCode::InvalidPart))?);
            let mut own = part.manifest.clone();
            own.size = part.size;
            if !manifest.append(&own) {
                return Err(Error::Internal("a part has a manifest of an old form".into()));
            }
            remove.extend(Self::first_stripe(part).map(|o| o.name.index_key()));
            size += part.accounted_size;
        }
        if options.bytes.is_some_and(|b| b != size) {
            return Err(S3Error::new(
                ErrorCode::InvalidRequest,
                format!("The parts have {size} bytes, other than x-amz-mp-object-size says"),
            )
            .into());
        }
        let checksum = wanted_sum
            .filter(|_| sums.len() == used.len())
            .and_then(|(algorithm, coverage)| Checksum::of_parts(algorithm, coverage, &sums));
        if let Some(want) = &options.checksum
            && checksum
                .as_ref()
                .is_some_and(|c| c.algorithm == want.algorithm && c.value != want.value)
        {
            return Err(ErrorCode::BadDigest.into());
        }
        let name = self.new_name(bucket, key);
        manifest.object =
            BucketObject { bucket: bucket.instance.bucket.clone(), name: name.clone() };
        manifest.head_placement = Default::default();
        let mut attrs: Attrs = state.attrs.clone();
        for attr in [
            convert::PG_VER,
            convert::SOURCE_ZONE,
            convert::UPLOAD_CHECKSUM,
            convert::STORAGE_CLASS,
        ] {
            attrs.remove(attr);
        }
        if let Some(sum) = &checksum {
            attrs.insert(Bytes::from_static(convert::CHECKSUM), convert::checksum_attr(sum));
        }
        let new = NewObject {
            bytes: Some(size),
            headers: convert::headers_of(&state.attrs),
            acl: convert::acl_of(&state.attrs)?,
            tags: convert::tags_of(&state.attrs)?.unwrap_or_default(),
            storage_class: shown_class(&state.attrs),
            conditions: options.conditions.clone(),
        };
        let done = Finish {
            name,
            new,
            attrs: attrs.into_iter().filter(|(attr, _)| attr.starts_with(b"user.rgw.")).collect(),
            first: Bytes::new(),
            manifest,
            size,
            etag: etag::of_parts(&digests),
            remove_objs: remove,
            tag: None,
        };
        let written = self.finish_object(bucket, key, done).await?;
        // From here on the object is there: what fails is left for a list or an abort.
        let hashed: Bytes = key.to_owned().into();
        for part in &unused {
            if let Err(e) = self.discard_part(bucket, part, &hashed, id).await {
                tracing::warn!("a part that was not used is left: {e}");
            }
        }
        let none = Conditions::default();
        if let Err(e) = self.remove_head(bucket, &state.name, &hashed, true, &[], &none, 0).await {
            tracing::warn!("an upload that was completed is left: {e}");
        }
        Ok(Written { checksum, ..written })
    }

    /// Gives an upload up.
    pub(super) async fn abort_upload(&self, bucket: &Handle, key: &str, id: &str) -> Result<()> {
        let state = self.state(bucket, key, id).await?;
        let (mut objs, mut remove) = (Vec::new(), Vec::new());
        for part in self.all_parts(bucket, &state).await? {
            objs.extend(self.chain(bucket, &part.manifest)?);
            remove.extend(Self::first_stripe(&part).map(|o| o.name.index_key()));
        }
        self.discard_objects(objs, id.to_owned().into()).await?;
        let hashed: Bytes = key.to_owned().into();
        let none = Conditions::default();
        let gone = self.remove_head(bucket, &state.name, &hashed, true, &remove, &none, 0).await?;
        gone.map(|_| ()).ok_or_else(|| no_upload(id))
    }

    /// Gives all uploads of a bucket up.
    pub(super) async fn abort_uploads(&self, bucket: &Handle) -> Result<()> {
        loop {
            let some = Uploads { max: 100, ..Uploads::default() };
            let page = self.list_uploads(bucket, &some).await?;
            for upload in &page.uploads {
                match self.abort_upload(bucket, &upload.key, &upload.id).await {
                    Err(e) if e.code() != ErrorCode::NoSuchUpload => return Err(e),
                    _ => {}
                }
            }
            if page.next.is_none() {
                return Ok(());
            }
        }
    }
}
