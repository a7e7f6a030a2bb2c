//! Uploads in parts. An object in the namespace `multipart` stands for an upload: it has the
//! attributes of the object to be, and a map of the parts.

use super::backend::Io;
use super::cluster::{Attrs, decoded, encoded, nanoseconds, random_text, submit};
use super::convert::{self, attr_text, text};
use super::handle::{BucketRef, Handle};
use super::heads::{Head, HeadWrite, LOG_VERSIONED, bookkeeping};
use super::inner::Inner;
use super::notes::{Note, Notes, ON_UPLOAD, carries};
use super::objects::Finish;
use super::writers::{Journal, Writer};
use crate::api::{
    Complete, Error, NewObject, NewUpload, Part, PartPage, PendingUpload, Result, Upload, Uploads,
    UserId, Written,
};
use ::rgw::entry::{EntryMeta, EntryVer, ModifyOp, ObjCategory};
use ::rgw::gc::RawObj;
use ::rgw::key::ObjKey;
use ::rgw::manifest::{BucketObject, Manifest, Place};
use ::rgw::names::{NS_MULTIPART, ObjName};
use ::rgw::upload::{ID_PREFIX, PartInfo, UploadInfo, meta_name, part_key};
use bytes::Bytes;
use client::{ClientError, Comparison, Operation};
use denc_derive::Denc;
use s3::checksum::{Algorithm, Checksum, Coverage};
use s3::condition::Conditions;
use s3::xml::multi::CompletePart;
use s3::{ErrorCode, S3Error, etag};
use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use types::Errno;

use super::inner::MIB4;

/// All parts but the last have at least so many bytes (Ceph: `rgw_multipart_min_part_size`).
const PART_BYTES_MIN: u64 = 5 << 20;
/// Parts that are read together.
const PARTS_AT_ONCE: u64 = 1000;
/// The lock that a gateway takes while it completes an upload, and how long it holds.
const LOCK: &str = "RGWCompleteMultipart";
const LOCK_SECONDS: u32 = 600;

/// What becomes of an upload: noted with it before the first step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
struct Fate {
    /// The object that it becomes, and the tag that its head carries then; given up without a tag.
    name: ObjName,
    tag: Bytes,
    /// The parts that are used.
    parts: Vec<u32>,
}

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

/// Which part of which upload.
struct PartPlace<'a> {
    bucket: &'a Handle,
    state: &'a State,
    key: &'a str,
    id: &'a str,
    info: &'a UploadInfo,
    number: u32,
    tag: &'a Bytes,
    /// Where the upload's object is.
    io: &'a Io,
    oid: &'a Bytes,
}

/// Parts in a row, as one object.
#[derive(Default)]
struct Joined {
    numbers: Vec<u32>,
    manifest: Manifest,
    digests: Vec<[u8; 16]>,
    /// Checksums of parts, and what they are of, in bytes.
    sums: Vec<(Checksum, u64)>,
    /// Entries of the index that go with the upload.
    entries: Vec<ObjKey>,
    size: u64,
}

impl Joined {
    /// The checksum of the whole, if each part has one.
    fn checksum(&self, wanted: Option<(Algorithm, Coverage)>) -> Option<Checksum> {
        let (algorithm, coverage) = wanted.filter(|_| self.sums.len() == self.numbers.len())?;
        Checksum::of_parts(algorithm, coverage, &self.sums)
    }

    /// The attributes of the object that an upload becomes.
    fn attrs(&self, state: &State, checksum: Option<&Checksum>) -> Attrs {
        let mut attrs: Attrs = state.attrs.clone();
        for attr in [
            convert::PG_VER,
            convert::SOURCE_ZONE,
            convert::UPLOAD_CHECKSUM,
            convert::UPLOAD_FATE,
            convert::STORAGE_CLASS,
        ] {
            attrs.remove(attr);
        }
        if let Some(sum) = checksum {
            attrs.insert(Bytes::from_static(convert::CHECKSUM), convert::checksum_attr(sum));
            let of_parts = self.sums.iter().map(|(s, _)| s);
            if let Some(attr) = convert::part_checksums_attr(sum.algorithm, of_parts) {
                attrs.insert(Bytes::from_static(convert::PART_CHECKSUMS), attr);
            }
        }
        attrs.retain(|attr, _| attr.starts_with(b"user.rgw."));
        attrs
    }
}

/// The stored parts that a client asks for, in order.
fn chosen(stored: Vec<PartInfo>, asked: &[CompletePart]) -> Result<Vec<PartInfo>> {
    let mut remaining = asked.iter().peekable();
    let used =
        stored.into_iter().filter(|p| remaining.next_if(|next| next.number == p.number).is_some());
    let used = used.collect();
    if remaining.peek().is_some() {
        return Err(ErrorCode::InvalidPart.into());
    }
    Ok(used)
}

/// A part can be joined: it is the one that is asked for, and large enough unless it is the last.
fn check_part(part: &PartInfo, want: &CompletePart, last: bool) -> Result<()> {
    if etag::unquote(&want.etag) != text(&part.etag) {
        return Err(ErrorCode::InvalidPart.into());
    }
    if !last && part.accounted_size < PART_BYTES_MIN {
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
    Ok(())
}

impl State {
    fn fate(&self) -> Result<Option<Fate>> {
        let fate = self.attrs.get(convert::UPLOAD_FATE);
        fate.map(|bytes| decoded("what becomes of an upload", bytes)).transpose()
    }

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
        let mtime = self.cluster.now();
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
        let (io, oid) = self.head_place(bucket, &state.name, true).await?;
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

    /// Data that was left by parts, or is being written: notes with the upload.
    async fn noted_data(&self, bucket: &Handle, state: &State) -> Result<Vec<(Bytes, Note)>> {
        let (io, oid) = self.head_place(bucket, &state.name, true).await?;
        let mut all = Vec::new();
        let mut after = Bytes::new();
        loop {
            let op = Operation::new().omap_values(&after, PARTS_AT_ONCE, ON_UPLOAD);
            let page = submit(&io, &oid, op, None).await?.omap(0)?;
            for (key, value) in &page.entries {
                after = key.clone();
                all.push((key.clone(), decoded::<Note>("a note of a part", value)?));
            }
            if !page.more || page.entries.is_empty() {
                return Ok(all);
            }
        }
    }

    /// The object with the first stripe of a part.
    fn first_stripe(part: &PartInfo) -> Option<BucketObject> {
        Self::first_stripe_of(&part.manifest)
    }

    fn first_stripe_of(manifest: &Manifest) -> Option<BucketObject> {
        match manifest.next_stripe(0)?.place {
            Place::Tail(object) => Some(*object),
            Place::Head => None,
        }
    }

    /// Data of a part, and of those that it replaced through another gateway.
    fn chain_with_past(&self, bucket: &Handle, part: &PartInfo) -> Result<Vec<RawObj>> {
        let mut objs = self.chain(bucket, &part.manifest)?;
        for past in part.past() {
            objs.extend(self.chain(bucket, &past)?);
        }
        Ok(objs)
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

    /// A writer for a part's data, which is noted. With `claims` the names are those that follow
    /// from the part's number, which one attempt has: `radosgw-admin bucket check` expects them.
    /// Others have names of their own: an attempt that fails removes its data.
    async fn part_writer(&self, at: &PartPlace<'_>, own: String, claims: bool) -> Result<Writer> {
        let object = BucketObject {
            bucket: at.bucket.instance.bucket.clone(),
            name: ObjName::plain(at.key.to_owned()),
        };
        let pool = match &object.bucket.explicit {
            Some(pools) => pools.data.clone(),
            None => self.data_pool(&at.info.placement)?.clone(),
        };
        let notes = Notes::on_upload(at.io.clone(), at.oid.clone());
        let journal = Journal {
            notes: if claims { notes.claiming(at.number) } else { notes },
            head: self.raw_head(at.bucket, &at.state.name, true)?,
            pool: pool.text(),
        };
        let manifest = Manifest::part(object, &at.info.placement, own.into(), at.number, MIB4);
        let io = self.cluster.io(&pool).await?;
        let mut writer = Writer::new(manifest, io, at.tag.clone(), journal);
        writer.hold_first = true;
        writer.note(0).await?;
        Ok(writer)
    }

    /// A part as it stands with its upload.
    async fn stored_part(&self, at: &PartPlace<'_>) -> Result<Option<PartInfo>> {
        let row = part_key(at.number);
        let keys = BTreeSet::from([Bytes::from(row.clone())]);
        let op = Operation::new().omap_values_by_keys(&keys);
        let rows = submit(at.io, at.oid, op, None).await?.omap_values(0)?;
        rows.get(row.as_bytes()).map(|v| decoded::<PartInfo>("a part", v)).transpose()
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
        let (io, oid) = self.head_place(bucket, &state.name, true).await?;
        let info: UploadInfo = decoded("an upload", &io.read(&oid, 0, 4096).await?)?;
        let (tag, info, state): (Bytes, _, _) = (self.new_tag(), &info, &state);
        let place =
            PartPlace { bucket, state, key, id, info, number, tag: &tag, io: &io, oid: &oid };
        let before = self.stored_part(&place).await?;
        let mut writer = self.writer_of_attempt(&place, before.is_some()).await?;
        let first = writer.take(body).await?;
        let sums = body.finish()?;
        writer.drain().await?;
        let etag = etag::of_digest(&sums.md5);
        let part = PartInfo {
            number,
            size: writer.size,
            etag: etag.clone().into(),
            modified: self.cluster.now(),
            manifest: writer.manifest.clone(),
            accounted_size: writer.size,
            ..PartInfo::default()
        };
        self.write_first_stripe(&place, &mut writer, &part, first, sums.checksum.as_ref()).await?;
        self.replace_part(&place, &mut writer, before.as_ref(), &part).await?;
        Ok(Part {
            number,
            size: part.size,
            etag,
            modified: nanoseconds(part.modified),
            checksum: sums.checksum,
        })
    }

    /// A writer with the names that follow from the part's number, if no other attempt has them.
    async fn writer_of_attempt(&self, at: &PartPlace<'_>, again: bool) -> Result<Writer> {
        if !again {
            match self.part_writer(at, format!("{}.{}", at.key, at.id), true).await {
                Err(e) if e.code() == ErrorCode::OperationAborted => {}
                other => return other,
            }
        }
        self.part_writer(at, format!("{}.{}", at.key, random_text(32)), false).await
    }

    /// Writes the first stripe of a part, which carries its attributes, and its entry in the index.
    async fn write_first_stripe(
        &self,
        at: &PartPlace<'_>,
        writer: &mut Writer,
        part: &PartInfo,
        first: Bytes,
        checksum: Option<&Checksum>,
    ) -> Result<()> {
        let PartPlace { bucket, state, tag, .. } = *at;
        let Some(head) = Self::first_stripe(part) else {
            return Err(Error::Internal("a part has no first stripe".into()));
        };
        let hashed: Bytes = at.key.to_owned().into();
        let mut attrs = Attrs::from([(Bytes::from_static(convert::ETAG), part.etag.clone())]);
        if let Some(acl) = state.attrs.get(convert::ACL) {
            attrs.insert(Bytes::from_static(convert::ACL), acl.clone());
        }
        if let Some(sum) = checksum {
            attrs.insert(Bytes::from_static(convert::CHECKSUM), convert::checksum_attr(sum));
        }
        self.prepare(bucket, &head.name, &hashed, ModifyOp::ADD, tag, 0).await?;
        let oid = head.name.raw(&bucket.instance.bucket.marker);
        let mut op = Operation::new().create(true).write_full(first);
        for (attr, value) in &attrs {
            op = op.set_xattr(attr, value);
        }
        let io = writer.io();
        let outcome = match submit(&io, &oid, bookkeeping(op), Some(part.modified)).await {
            Ok(outcome) => outcome,
            Err(e) => {
                self.cancel(bucket, &head.name, &hashed, tag, 0).await;
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
            size: part.size,
            accounted_size: part.accounted_size,
            mtime: part.modified,
            etag: part.etag.clone(),
            owner: acl.owner.into(),
            owner_display_name: acl.owner_name.into(),
            ..EntryMeta::default()
        };
        let ver = EntryVer { pool: io.pool().0, epoch: outcome.user_version };
        let add = ModifyOp::ADD;
        self.complete(bucket, &head.name, &hashed, add, tag, ver, meta, Vec::new(), 0).await;
        Ok(())
    }

    /// Notes a part that is written with its upload, in place of the one before.
    async fn replace_part(
        &self,
        at: &PartPlace<'_>,
        writer: &mut Writer,
        before: Option<&PartInfo>,
        part: &PartInfo,
    ) -> Result<()> {
        let PartPlace { bucket, state, .. } = *at;
        let hashed: Bytes = at.key.to_owned().into();
        let mut rows = BTreeMap::from([(Bytes::from(part_key(at.number)), encoded(part))]);
        // The part that is replaced goes: a gateway that ends before it has gone leaves a note.
        let old = match before {
            None => None,
            Some(old) => {
                let key: Bytes = [ON_UPLOAD, random_text(16).as_bytes()].concat().into();
                let head = self.raw_head(bucket, &state.name, true)?;
                let objs = self.chain_with_past(bucket, old)?;
                let note = Note::of_data(head, at.tag.clone(), objs);
                rows.insert(key.clone(), encoded(&note));
                Some((key, old))
            }
        };
        let op = Operation::new()
            .assert_exists()
            .compare_xattr(convert::UPLOAD_FATE, Comparison::Eq, b"")
            .omap_remove(&writer.note_keys())
            .omap_set(&rows);
        if let Err(e) = submit(at.io, at.oid, op, None).await {
            // The upload was completed or aborted meanwhile: nothing may stay of the part.
            if let Some(head) = Self::first_stripe(part) {
                self.drop_entry(bucket, &head.name, &hashed).await?;
            }
            return Err(match e {
                ClientError::Errno(Errno::ENOENT | Errno::ECANCELED) => no_upload(at.id),
                e => e.into(),
            });
        }
        writer.keep_part();
        if let Some((note, old)) = old {
            self.discard_part(bucket, old, &hashed, at.id).await?;
            let op = Operation::new().assert_exists().omap_remove(&[note].into());
            if let Err(e) = submit(at.io, at.oid, op, None).await {
                tracing::debug!("a note of a part that was replaced stays: {e}");
            }
        }
        Ok(())
    }

    /// Removes an entry of the index that has no object.
    pub(super) async fn drop_entry(
        &self,
        bucket: &Handle,
        name: &ObjName,
        hashed: &Bytes,
    ) -> Result<()> {
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
        let past = part.past().collect::<Vec<_>>();
        for first in iter::once(&part.manifest).chain(&past).filter_map(Self::first_stripe_of) {
            self.drop_entry(bucket, &first.name, hashed).await?;
        }
        let objs = self.chain_with_past(bucket, part)?;
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
        let (io, oid) = self.head_place(bucket, &state.name, true).await?;
        let object = text(&oid);
        let Some(cookie) = self.lock(&io, &object, LOCK, LOCK_SECONDS).await? else {
            return Err(S3Error::new(
                ErrorCode::OperationAborted,
                "The upload is being completed by another request",
            )
            .into());
        };
        let result = match self.made_before(bucket, key, id, &state, asked).await {
            Ok(None) => self.join(bucket, key, id, &state, asked, options).await,
            Ok(Some(written)) => Ok(written),
            Err(e) => Err(e),
        };
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

    /// Puts parts in a row, each as it was asked for.
    async fn put_together(
        &self,
        bucket: &Handle,
        parts: &[PartInfo],
        asked: &[CompletePart],
        sums: bool,
    ) -> Result<Joined> {
        let mut joined = Joined::default();
        for (at, (part, want)) in parts.iter().zip(asked).enumerate() {
            check_part(part, want, at + 1 == parts.len())?;
            if sums || want.checksum.is_some() {
                let sum = self.part_checksum(bucket, part).await?;
                if want.checksum.is_some() && want.checksum != sum {
                    return Err(ErrorCode::InvalidPart.into());
                }
                joined.sums.extend(sum.map(|s| (s, part.accounted_size)));
            }
            let digest = etag::unhex::<16>(&text(&part.etag));
            joined.digests.push(digest.ok_or_else(|| Error::from(ErrorCode::InvalidPart))?);
            let mut own = part.manifest.clone();
            own.size = part.size;
            if !joined.manifest.append(&own) {
                return Err(Error::Internal("a part has a manifest of an old form".into()));
            }
            joined.entries.extend(Self::first_stripe(part).map(|o| o.name.index_key()));
            joined.size += part.accounted_size;
            joined.numbers.push(part.number);
        }
        Ok(joined)
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
        let wanted_sum = coverage(&state.attrs);
        let parts = chosen(self.all_parts(bucket, state).await?, asked)?;
        let joined = self.put_together(bucket, &parts, asked, wanted_sum.is_some()).await?;
        let size = joined.size;
        if options.bytes.is_some_and(|b| b != size) {
            return Err(S3Error::new(
                ErrorCode::InvalidRequest,
                format!("The parts have {size} bytes, other than x-amz-mp-object-size says"),
            )
            .into());
        }
        let checksum = joined.checksum(wanted_sum);
        if let Some(want) = &options.checksum
            && checksum
                .as_ref()
                .is_some_and(|c| c.algorithm == want.algorithm && c.value != want.value)
        {
            return Err(ErrorCode::BadDigest.into());
        }
        let new = NewObject {
            bytes: Some(size),
            headers: convert::headers_of(&state.attrs),
            acl: convert::acl_of(&state.attrs)?,
            tags: convert::tags_of(&state.attrs)?.unwrap_or_default(),
            storage_class: shown_class(&state.attrs),
            conditions: options.conditions.clone(),
        };
        let name = self.new_name(bucket, key);
        let tag: Bytes = self.new_tag();
        let attrs = joined.attrs(state, checksum.as_ref());
        let Joined { mut manifest, digests, entries, numbers, .. } = joined;
        let object = BucketObject { bucket: bucket.instance.bucket.clone(), name: name.clone() };
        manifest.object = object;
        manifest.head_placement = Default::default();
        let fate = Fate { name: name.clone(), tag: tag.clone(), parts: numbers };
        let done = Finish {
            name,
            new,
            attrs,
            first: Bytes::new(),
            manifest,
            size,
            etag: etag::of_parts(&digests),
            remove_objs: entries,
            tag: Some(tag),
            of_upload: true,
        };
        let written = self.become_object(bucket, key, id, state, &fate, done).await?;
        Ok(Written { checksum, ..written })
    }

    /// Makes an object of an upload, by steps of which each leaves what another gateway needs to
    /// go on or to undo them.
    async fn become_object(
        &self,
        bucket: &BucketRef,
        key: &str,
        id: &str,
        state: &State,
        fate: &Fate,
        done: Finish,
    ) -> Result<Written> {
        let mut notes = self.notes(key.as_bytes()).await?;
        notes.add(&Note::upload(bucket, fate.name.clone(), id)).await?;
        self.seal(bucket, state, fate).await?;
        let written = match self.finish_object(bucket, key, done).await {
            Ok(written) => written,
            // It may have been made all the same: the note tells later.
            Err(e @ (Error::Unavailable(_) | Error::Internal(_))) => return Err(e),
            Err(e) => {
                self.unseal(bucket, state, fate).await?;
                notes.done();
                return Err(e);
            }
        };
        // From here on the object is there: what fails is left for a list or an abort.
        match self.clear_upload(bucket, key, id, state, fate).await {
            Ok(_) => notes.done(),
            Err(e) => tracing::warn!("an upload that was completed is left for later: {e}"),
        }
        Ok(written)
    }

    /// Notes with an upload what becomes of it, before anything is made of it.
    async fn seal(&self, bucket: &Handle, state: &State, fate: &Fate) -> Result<()> {
        let (io, oid) = self.head_place(bucket, &state.name, true).await?;
        let op = Operation::new()
            .assert_exists()
            .compare_xattr(convert::UPLOAD_FATE, Comparison::Eq, b"")
            .set_xattr(convert::UPLOAD_FATE, &encoded(fate));
        submit(&io, oid, op, None).await.map_err(|e| match e {
            ClientError::Errno(Errno::ENOENT) => Error::from(ErrorCode::NoSuchUpload),
            ClientError::Errno(Errno::ECANCELED) => ErrorCode::OperationAborted.into(),
            e => e.into(),
        })?;
        Ok(())
    }

    /// Nothing became of an upload: it is under way again.
    async fn unseal(&self, bucket: &Handle, state: &State, fate: &Fate) -> Result<()> {
        let (io, oid) = self.head_place(bucket, &state.name, true).await?;
        let op = Operation::new()
            .compare_xattr(convert::UPLOAD_FATE, Comparison::Eq, &encoded(fate))
            .remove_xattr(convert::UPLOAD_FATE);
        match submit(&io, oid, op, None).await {
            Ok(_) | Err(ClientError::Errno(Errno::ENOENT | Errno::ECANCELED)) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Removes an upload with the parts of which nothing became. `false` if it is gone already.
    async fn clear_upload(
        &self,
        bucket: &Handle,
        key: &str,
        id: &str,
        state: &State,
        fate: &Fate,
    ) -> Result<bool> {
        let hashed: Bytes = key.to_owned().into();
        let (mut objs, mut remove) = (Vec::new(), Vec::new());
        for part in self.all_parts(bucket, state).await? {
            remove.extend(Self::first_stripe(&part).map(|o| o.name.index_key()));
            if !fate.parts.contains(&part.number) {
                objs.extend(self.chain(bucket, &part.manifest)?);
            }
            for past in part.past() {
                remove.extend(Self::first_stripe_of(&past).map(|o| o.name.index_key()));
                objs.extend(self.chain(bucket, &past)?);
            }
        }
        let own = [&bucket.instance.bucket.marker[..], b"_"].concat();
        for (_, note) in self.noted_data(bucket, state).await? {
            let names = note.chain.objs.iter().filter_map(|o| o.key.name.strip_prefix(&own[..]));
            let keys = names.map(|n| ObjKey::plain(Bytes::copy_from_slice(n)));
            remove.extend(keys.filter(|k| k.name.starts_with(b"_multipart_")));
            objs.extend(note.chain.objs);
        }
        let tag = format!("{id}.{}", random_text(8));
        self.discard_objects(objs, tag.into()).await?;
        // Without the upload no list leads to them.
        self.remove_entries(bucket, &state.name, &hashed, remove).await?;
        let none = Conditions::default();
        let gone = self.remove_head(bucket, &state.name, &hashed, true, &[], &none, 0).await?;
        Ok(gone.is_some())
    }

    /// An upload of which a gateway that ended made an object: the rest is done here.
    async fn made_before(
        &self,
        bucket: &BucketRef,
        key: &str,
        id: &str,
        state: &State,
        asked: &[CompletePart],
    ) -> Result<Option<Written>> {
        let Some(fate) = state.fate()? else { return Ok(None) };
        if fate.tag.is_empty() {
            return Err(no_upload(id));
        }
        if !self.is_made(bucket, &fate, true).await? {
            self.unseal(bucket, state, &fate).await?;
            return Ok(None);
        }
        self.clear_upload(bucket, key, id, state, &fate).await?;
        self.completed_before(bucket, key, asked, no_upload(id)).await.map(Some)
    }

    /// The object of an upload was written. A version that was not linked becomes the current one
    /// if `links`; else it goes, and its data is that of the parts again: to link it later would
    /// put it before versions that came since.
    async fn is_made(&self, bucket: &BucketRef, fate: &Fate, links: bool) -> Result<bool> {
        let head = self.read_head(bucket, &fate.name, false, 0).await?;
        if !carries(&head.attrs, &fate.tag) {
            return Ok(false);
        }
        if !fate.name.instance.is_empty() {
            let entry = self.version_entry(bucket, &fate.name).await?;
            if let Some(entry) = entry.filter(|e| !e.has(::rgw::entry::flag::VER)) {
                if !links {
                    self.forget_version(bucket, &fate.name, &head).await?;
                    return Ok(false);
                }
                if !entry.exists || !entry.pending_map.is_empty() {
                    self.enter(bucket, &fate.name, &head, &entry).await?;
                }
                self.link(bucket, &fate.name, None).await?;
            }
        }
        if bucket.info.versioning.is_some() {
            self.settle_version(bucket, &fate.name).await?;
        }
        Ok(true)
    }

    /// Removes the head of a version that was not linked. Its data stays.
    async fn forget_version(&self, bucket: &Handle, name: &ObjName, head: &Head) -> Result<()> {
        let hashed = name.name.clone();
        let tag: Bytes = self.new_tag();
        let (io, oid) = self.head_place(bucket, name, false).await?;
        self.prepare(bucket, name, &hashed, ModifyOp::DEL, &tag, LOG_VERSIONED).await?;
        let own = head.tag().cloned().unwrap_or_default();
        let op = Operation::new().compare_xattr(convert::ID_TAG, Comparison::Eq, &own).remove();
        let outcome = match submit(&io, &oid, op, None).await {
            Ok(outcome) => outcome,
            Err(e) => {
                self.cancel(bucket, name, &hashed, &tag, LOG_VERSIONED).await;
                return Err(e.into());
            }
        };
        let ver = EntryVer { pool: io.pool().0, epoch: outcome.user_version };
        let (del, meta, none) = (ModifyOp::DEL, EntryMeta::default(), Vec::new());
        self.complete(bucket, name, &hashed, del, &tag, ver, meta, none, LOG_VERSIONED).await;
        self.heal_entry(bucket, name).await
    }

    /// Finishes what a gateway began with an upload before it ended.
    pub(super) async fn settle_upload(
        &self,
        bucket: &BucketRef,
        key: &str,
        id: &str,
    ) -> Result<()> {
        let state = match self.state(bucket, key, id).await {
            Err(e) if e.code() == ErrorCode::NoSuchUpload => return Ok(()),
            other => other?,
        };
        let Some(fate) = state.fate()? else { return Ok(()) };
        if !fate.tag.is_empty() && !self.is_made(bucket, &fate, false).await? {
            return self.unseal(bucket, &state, &fate).await;
        }
        self.clear_upload(bucket, key, id, &state, &fate).await.map(|_| ())
    }

    /// Gives an upload up.
    pub(super) async fn abort_upload(&self, bucket: &BucketRef, key: &str, id: &str) -> Result<()> {
        let mut state = self.state(bucket, key, id).await?;
        if state.fate()?.is_some_and(|f| !f.tag.is_empty()) {
            let (io, oid) = self.head_place(bucket, &state.name, true).await?;
            let Some(cookie) = self.lock(&io, &text(&oid), LOCK, LOCK_SECONDS).await? else {
                return Err(ErrorCode::OperationAborted.into());
            };
            let settled = self.settle_upload(bucket, key, id).await;
            self.unlock(&io, &text(&oid), LOCK, cookie).await;
            settled?;
            // Without an object it is under way again.
            state = self.state(bucket, key, id).await?;
        }
        let given_up = Fate::default();
        let mut notes = self.notes(key.as_bytes()).await?;
        notes.add(&Note::upload(bucket, ObjName::plain(key.to_owned()), id)).await?;
        if state.fate()?.is_none() {
            self.seal(bucket, &state, &given_up).await?;
        }
        let gone = self.clear_upload(bucket, key, id, &state, &given_up).await?;
        notes.done();
        if gone { Ok(()) } else { Err(no_upload(id)) }
    }

    /// Gives all uploads of a bucket up.
    pub(super) async fn abort_uploads(&self, bucket: &BucketRef) -> Result<()> {
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
