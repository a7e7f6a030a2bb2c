//! Notes of changes under way: what a gateway that ends leaves behind is found by them.
//!
//! A change of one head needs none: its entry in the index says that it was announced. What no
//! entry names is noted before it is made, and the note goes when the change is done:
//!
//! * data behind a head, before it is written and before the head that names it goes;
//! * a version, before its object is written or its attributes are changed, and a deletion of
//!   versions;
//! * the completion of an upload.
//!
//! A gateway that works on a change for long renews its notes. Notes that are not renewed for the
//! time of a lease are settled, by any gateway: it takes the note over first, so that a gateway
//! that is only slow finds out before it goes on. Notes of parts stand with their upload, and are
//! settled when that is completed or given up.

use super::backend::Io;
use super::cluster::{Attrs, decoded, encoded, random_text, submit};
use super::convert::{self, text};
use super::handle::{BucketRef, Handle};
use super::heads::{Head, LOG_VERSIONED, entry_meta};
use super::inner::Inner;
use crate::api::{BucketName, Error, List, Result};
use ::rgw::bucket::Pool;
use ::rgw::entry::{DirEntry, EntryVer, ModifyOp, flag};
use ::rgw::gc::{ObjChain, RawObj};
use ::rgw::names::ObjName;
use ::rgw::upload::part_key;
use bytes::Bytes;
use client::{ClientError, Comparison, Operation};
use denc_derive::Denc;
use s3::ErrorCode;
use s3::condition::Conditions;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;
use types::{Errno, Utime};

/// Objects with notes.
const SHARDS: u32 = 32;
/// The namespace of those objects, in the pool for logs.
const NAMESPACE: &[u8] = b"siphon";
/// How notes of parts are called in an upload's map: they are before the parts.
pub(super) const ON_UPLOAD: &[u8] = b"note.";
/// Notes that are read together.
const NOTES_AT_ONCE: u64 = 100;
/// A part of the lease after which notes are renewed.
const RENEWALS: u32 = 4;

/// What is noted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub(super) struct Note {
    /// Data: `chain` is garbage unless `head` carries `tag`. Without it the note is of `name`.
    pub(super) data: bool,
    /// The bucket: tenant, name, id.
    pub(super) bucket: (Bytes, Bytes, Bytes),
    /// The version, or the object.
    pub(super) name: ObjName,
    /// The upload that is completed; empty for none.
    pub(super) upload: Bytes,
    /// What the data's head carries.
    pub(super) tag: Bytes,
    /// The head.
    pub(super) head: RawObj,
    /// The data.
    pub(super) chain: ObjChain,
    /// The data is that of another head: the tag is one of its references, or about to be.
    pub(super) shared: bool,
}

impl Note {
    fn about(bucket: &Handle, name: ObjName) -> Self {
        let b = &bucket.instance.bucket;
        let bucket = (b.tenant.clone(), b.name.clone(), b.marker.clone());
        Note { bucket, name, ..Note::default() }
    }

    /// A version of an object is written or removed.
    pub(super) fn version(bucket: &Handle, name: &ObjName) -> Self {
        Note::about(bucket, name.clone())
    }

    /// An upload is completed or given up.
    pub(super) fn upload(bucket: &Handle, name: ObjName, id: &str) -> Self {
        Note { upload: id.to_owned().into(), ..Note::about(bucket, name) }
    }

    /// Data belongs to a head that carries a tag.
    pub(super) fn of_data(head: RawObj, tag: Bytes, objs: Vec<RawObj>) -> Self {
        Note { data: true, head, tag, chain: ObjChain { objs }, ..Note::default() }
    }
}

/// Notes of one change.
pub(super) struct Notes {
    io: Io,
    object: Bytes,
    on_upload: bool,
    /// The key of the first note, and rows that must not be there.
    claim: Option<(Bytes, Vec<Bytes>)>,
    rows: BTreeMap<Bytes, Bytes>,
    since: Instant,
    lease: Duration,
}

fn row_key(now: Utime) -> Bytes {
    format!("{:010}.{}", now.sec, random_text(16)).into()
}

impl Notes {
    /// Notes of a part, with its upload.
    pub(super) fn on_upload(io: Io, object: Bytes) -> Self {
        let (rows, since) = (BTreeMap::new(), Instant::now());
        Notes { io, object, on_upload: true, claim: None, rows, since, lease: Duration::MAX }
    }

    /// The first note is written if neither it nor the part is there: one attempt at a part has the
    /// names that follow from its number. `OperationAborted` for others.
    pub(super) fn claiming(mut self, part: u32) -> Self {
        let key: Bytes = format!("{}{part:08}", text(ON_UPLOAD)).into();
        self.claim = Some((key.clone(), vec![key, part_key(part).into()]));
        self
    }

    /// Writes a note.
    pub(super) async fn add(&mut self, note: &Note) -> Result<()> {
        let claim = self.claim.take();
        let key = match (&claim, self.on_upload) {
            (Some((key, _)), _) => key.clone(),
            (None, true) => [ON_UPLOAD, random_text(16).as_bytes()].concat().into(),
            (None, false) => row_key(self.io.now()),
        };
        let row = BTreeMap::from([(key, encoded(note))]);
        let op = match self.on_upload {
            true => Operation::new().assert_exists(),
            false => Operation::new(),
        };
        let op = match claim {
            Some((_, absent)) => {
                let none = |key| (key, (Bytes::new(), Comparison::Eq));
                op.omap_compare(&absent.into_iter().map(none).collect())
            }
            None => op,
        };
        submit(&self.io, &self.object, op.omap_set(&row), None).await.map_err(|e| match e {
            ClientError::Errno(Errno::ENOENT) => Error::from(ErrorCode::NoSuchUpload),
            ClientError::Errno(Errno::ECANCELED) => ErrorCode::OperationAborted.into(),
            e => e.into(),
        })?;
        self.rows.extend(row);
        Ok(())
    }

    /// The keys of the notes.
    pub(super) fn keys(&self) -> BTreeSet<Bytes> {
        self.rows.keys().cloned().collect()
    }

    /// Renews the notes if it is time. Fails if they were taken over.
    pub(super) async fn hold(&mut self) -> Result<()> {
        if self.on_upload || self.rows.is_empty() || self.since.elapsed() < self.lease / RENEWALS {
            return Ok(());
        }
        let now = self.io.now();
        let wanted =
            self.rows.iter().map(|(k, v)| (k.clone(), (v.clone(), Comparison::Eq))).collect();
        let fresh: BTreeMap<Bytes, Bytes> =
            self.rows.values().map(|v| (row_key(now), v.clone())).collect();
        let op = Operation::new().omap_compare(&wanted).omap_remove(&self.keys()).omap_set(&fresh);
        let begun = Instant::now();
        match submit(&self.io, &self.object, op, None).await {
            Ok(_) => {
                (self.rows, self.since) = (fresh, begun);
                Ok(())
            }
            Err(ClientError::Errno(Errno::ECANCELED | Errno::ENOENT)) => {
                self.rows.clear();
                Err(Error::Unavailable(
                    "the change took so long that another gateway has given it up".into(),
                ))
            }
            Err(e) => Err(e.into()),
        }
    }

    /// Removes the notes: the change is done.
    pub(super) async fn remove(self) {
        if self.rows.is_empty() {
            return;
        }
        let op = Operation::new().assert_exists().omap_remove(&self.keys());
        match submit(&self.io, &self.object, op, None).await {
            Ok(_) | Err(ClientError::Errno(Errno::ENOENT)) => {}
            Err(e) => tracing::debug!("a note of a change that is done stays: {e}"),
        }
    }

    /// The same, later.
    pub(super) fn done(self) {
        if !self.rows.is_empty() {
            tokio::task::spawn_local(self.remove());
        }
    }

    /// Forgets the notes: another operation has removed them.
    pub(super) fn forget(mut self) {
        self.rows.clear();
    }
}

fn same_tag(one: &[u8], other: &[u8]) -> bool {
    let bare = |tag: &[u8]| tag.strip_suffix(b"\0").unwrap_or(tag).to_vec();
    !one.is_empty() && bare(one) == bare(other)
}

/// The head's data carries a tag.
pub(super) fn carries(attrs: &Attrs, tag: &[u8]) -> bool {
    let names = [convert::TAIL_TAG, convert::ID_TAG];
    names.iter().filter_map(|name| attrs.get(*name)).any(|value| same_tag(value, tag))
}

impl Inner {
    async fn notes_io(&self) -> Result<Io> {
        let pool = Pool { name: self.zone.log_pool.name.clone(), ns: NAMESPACE.into() };
        self.cluster.io(&pool).await
    }

    /// Room for notes of changes of an object.
    pub(super) async fn notes(&self, key: &[u8]) -> Result<Notes> {
        Ok(Notes {
            io: self.notes_io().await?,
            object: format!("changes.{}", types::hash::linux(key) % SHARDS).into(),
            on_upload: false,
            claim: None,
            rows: BTreeMap::new(),
            since: Instant::now(),
            lease: Duration::from_secs(self.options.note_seconds.into()),
        })
    }

    /// A head as notes name it.
    pub(super) fn raw_head(&self, bucket: &Handle, name: &ObjName, extra: bool) -> Result<RawObj> {
        let marker = &bucket.instance.bucket.marker;
        let pool = self.head_pool(bucket, extra)?.text();
        let key = ::rgw::key::ObjKey::plain(name.raw(marker));
        Ok(RawObj { pool, key, loc: name.raw_locator(marker) })
    }

    /// Notes that a head is about to go, with the data behind it; nothing if there is none.
    pub(super) async fn note_tail(
        &self,
        bucket: &Handle,
        name: &ObjName,
        head: &Head,
        notes: &mut Notes,
    ) -> Result<()> {
        let Some(manifest) = head.manifest.as_ref().filter(|m| m.has_tail()) else {
            return Ok(());
        };
        let objs = self.chain(bucket, manifest)?;
        let head_at = self.raw_head(bucket, name, false)?;
        notes.add(&Note::of_data(head_at, head.tail_tag(), objs)).await
    }

    /// Settles notes of changes that are not under way any more: how many.
    pub(super) async fn settle(&self) -> Result<u64> {
        let io = self.notes_io().await?;
        let mut settled = 0;
        for shard in 0..SHARDS {
            settled += self.settle_shard(&io, &format!("changes.{shard}")).await?;
        }
        Ok(settled)
    }

    async fn settle_shard(&self, io: &Io, object: &str) -> Result<u64> {
        let mut settled = 0;
        let mut after = Bytes::new();
        loop {
            let op = Operation::new().omap_values(&after, NOTES_AT_ONCE, b"");
            let page = match submit(io, object, op, None).await {
                Err(ClientError::Errno(Errno::ENOENT)) => return Ok(settled),
                other => other?.omap(0)?,
            };
            for (key, value) in &page.entries {
                after = key.clone();
                let now = io.now();
                let time = text(key).split('.').next().and_then(|t| t.parse::<u64>().ok());
                let due = time.unwrap_or(0).saturating_add(self.options.note_seconds.into());
                if due > u64::from(now.sec) {
                    // The others are younger.
                    return Ok(settled);
                }
                // It is this gateway's from here on.
                let own = row_key(now);
                let op = Operation::new()
                    .omap_compare(&[(key.clone(), (value.clone(), Comparison::Eq))].into())
                    .omap_remove(&[key.clone()].into())
                    .omap_set(&[(own.clone(), value.clone())].into());
                match submit(io, object, op, None).await {
                    Ok(_) => {}
                    Err(ClientError::Errno(Errno::ECANCELED)) => continue,
                    Err(e) => return Err(e.into()),
                }
                let note: Note = decoded("a note of a change", value)?;
                if let Err(e) = self.settle_note(&note).await {
                    tracing::warn!("a change that was left is not settled yet: {e}");
                    continue;
                }
                let op = Operation::new().assert_exists().omap_remove(&[own].into());
                submit(io, object, op, None).await?;
                settled += 1;
            }
            if !page.more || page.entries.is_empty() {
                return Ok(settled);
            }
        }
    }

    async fn settle_note(&self, note: &Note) -> Result<()> {
        if note.data {
            return self.settle_data(note).await;
        }
        let (tenant, name, id) = &note.bucket;
        let name = BucketName { tenant: text(tenant), name: text(name) };
        self.forget_bucket(&name);
        let bucket = match self.bucket(&name).await {
            Err(e) if e.code() == ErrorCode::NoSuchBucket => return Ok(()),
            other => other?,
        };
        if bucket.instance.bucket.marker != *id {
            return Ok(());
        }
        if note.upload.is_empty() {
            return self.settle_version(&bucket, &note.name).await;
        }
        let key = text(&note.name.name);
        self.settle_upload(&bucket, &key, &text(&note.upload)).await?;
        // What was announced and never made.
        self.settle_version(&bucket, &note.name).await
    }

    async fn settle_data(&self, note: &Note) -> Result<()> {
        let io = self.cluster.io(&Pool::parse(&note.head.pool)).await?.with_key(&note.head.loc);
        let op = Operation::new().get_xattrs();
        let kept = match submit(&io, &note.head.key.name, op, None).await {
            Err(ClientError::Errno(Errno::ENOENT)) => false,
            other => carries(&other?.xattrs(0)?, &note.tag),
        };
        if kept {
            return Ok(());
        }
        if note.shared {
            // A reference that was not taken must not count for the one that was there before.
            for object in &note.chain.objs {
                self.drop_reference(object, &note.tag, false).await?;
            }
            return Ok(());
        }
        self.discard_objects(note.chain.objs.clone(), note.tag.clone()).await
    }

    /// Brings the versions of an object in order after a change that may have ended anywhere.
    pub(super) async fn settle_version(&self, bucket: &BucketRef, name: &ObjName) -> Result<()> {
        let plain = ObjName::plain(name.name.clone());
        let mut head = self.read_head(bucket, &plain, false, 0).await?;
        if name.instance.is_empty() {
            self.heal_null(bucket, &plain, &head).await?;
        }
        if head.attrs.contains_key(convert::OLH_ID_TAG) {
            self.update_head(bucket, &plain, &head, None).await?;
            head = self.read_head(bucket, &plain, false, 0).await?;
        }
        if name.instance.is_empty() {
            self.heal_null(bucket, &plain, &head).await?;
            if head.is_object() && !self.lists_null(bucket, &plain, &head).await? {
                self.link(bucket, &plain, None).await?;
            }
        } else if let Some(entry) = self.version_entry(bucket, name).await? {
            let linked = entry.has(flag::VER) || entry.has(flag::DELETE_MARKER);
            if !linked {
                // It was never answered.
                let none = Conditions::default();
                let hashed = name.name.clone();
                self.remove_head(bucket, name, &hashed, false, &[], &none, LOG_VERSIONED).await?;
            }
            self.give_up(bucket, name).await?;
        }
        self.tidy_head(bucket, &plain).await
    }

    /// The entry of a null version beside others: changes of it that were left are given up, and it
    /// becomes as the head is.
    async fn heal_null(&self, bucket: &Handle, name: &ObjName, head: &Head) -> Result<()> {
        let Some(entry) = self.null_entry(bucket, name).await? else { return Ok(()) };
        if entry.pending_map.is_empty() && entry.exists == head.is_object() {
            return Ok(());
        }
        if self.is_under_way(&entry) {
            return Ok(());
        }
        if !head.is_object() && self.olh_entry(bucket, name).await?.is_none() {
            return self.remove_null(bucket, name, &entry).await;
        }
        self.enter(bucket, name, head, &entry).await
    }

    /// A change of an entry is under way, which has a note of its own.
    fn is_under_way(&self, entry: &DirEntry) -> bool {
        let now = self.cluster.now();
        let young = |at: Utime| at.sec.saturating_add(self.options.note_seconds) > now.sec;
        entry.pending_map.iter().any(|(_, info)| young(info.timestamp))
    }

    /// The entry of a version becomes as its head is, and what was announced of it is given up.
    ///
    /// A suggestion would not do: the class ignores it while it takes a change for one that is
    /// under way, no list shows the row of a version that was unlinked, and nothing else comes back
    /// to it when its note is gone.
    async fn give_up(&self, bucket: &Handle, name: &ObjName) -> Result<()> {
        let Some(entry) = self.version_entry(bucket, name).await? else { return Ok(()) };
        if entry.has(flag::DELETE_MARKER | flag::VER_MARKER) {
            return Ok(());
        }
        let settled = entry.exists && entry.pending_map.is_empty();
        if settled || self.is_under_way(&entry) {
            return Ok(());
        }
        let head = self.read_head(bucket, name, false, 0).await?;
        self.enter(bucket, name, &head, &entry).await
    }

    /// Gives up what was announced of an entry, and enters the head as it is.
    pub(super) async fn enter(
        &self,
        bucket: &Handle,
        name: &ObjName,
        head: &Head,
        entry: &DirEntry,
    ) -> Result<()> {
        let hashed = name.name.clone();
        for (tag, _) in entry.pending_map.iter() {
            self.cancel(bucket, name, &hashed, tag, LOG_VERSIONED).await;
        }
        if !head.is_object() {
            return self.drop_entry(bucket, name, &hashed).await;
        }
        let tag = self.new_tag();
        let add = ModifyOp::ADD;
        self.prepare(bucket, name, &hashed, add, &tag, LOG_VERSIONED).await?;
        let (io, _) = self.head_place(bucket, name, false).await?;
        let ver = EntryVer { pool: io.pool().0, epoch: head.user_version };
        let (meta, none) = (entry_meta(head)?, Vec::new());
        self.complete(bucket, name, &hashed, add, &tag, ver, meta, none, LOG_VERSIONED).await;
        Ok(())
    }

    /// The list of versions has the null version as its head is, or there are no versions.
    async fn lists_null(&self, bucket: &BucketRef, name: &ObjName, head: &Head) -> Result<bool> {
        if !head.attrs.contains_key(convert::OLH_ID_TAG) {
            return Ok(true);
        }
        let key = text(&name.name);
        let mut what = List { prefix: key.clone(), versions: true, max: 100, ..List::default() };
        loop {
            let page = self.list(bucket, &what).await?;
            for entry in &page.entries {
                if entry.key != key {
                    return Ok(false);
                }
                if entry.version.as_deref() == Some("null") && !entry.marker {
                    return Ok(entry.etag == head.etag());
                }
            }
            let Some((after, version)) = page.next else { return Ok(false) };
            (what.after, what.after_version) = (after, version);
        }
    }
}
