//! Data behind heads, as it is written.

use super::backend::Io;
use super::cluster::random_text;
use super::handle::Handle;
use super::inner::{Inner, MIB4};
use super::notes::{Note, Notes};
use crate::api::{Error, Result, Source};
use ::rgw::gc::RawObj;
use ::rgw::key::ObjKey;
use ::rgw::manifest::{BucketObject, Manifest, Place};
use ::rgw::names::ObjName;
use bytes::{Bytes, BytesMut};
use client::ClientError;
use s3::ErrorCode;
use std::collections::{BTreeSet, VecDeque};
use tokio::task::JoinHandle;
use types::Errno;

/// Stripes that are written behind an upload.
const STRIPES_AT_ONCE: usize = 2;
/// Stripes that are noted together, before the first of them is written.
const STRIPES_NOTED: u64 = 16;

/// What notes of data need to know.
pub(super) struct Journal {
    /// Where they are.
    pub(super) notes: Notes,
    /// The head that will name the data.
    pub(super) head: RawObj,
    /// The pool of the data.
    pub(super) pool: Bytes,
}

/// Data that is being written in stripes. Dropped before [`Writer::keep`], it is removed again.
pub(super) struct Writer {
    pub(super) manifest: Manifest,
    pub(super) size: u64,
    /// The first stripe is written by the caller.
    pub(super) hold_first: bool,
    /// What the head will carry.
    pub(super) tag: Bytes,
    journal: Option<Journal>,
    /// Stripes before this offset are noted.
    noted: u64,
    cluster_io: Io,
    tasks: VecDeque<JoinHandle<client::Result<()>>>,
    written: BTreeSet<Bytes>,
    kept: bool,
}

impl Writer {
    pub(super) fn new(manifest: Manifest, io: Io, tag: Bytes, journal: Journal) -> Self {
        Writer {
            manifest,
            size: 0,
            hold_first: false,
            tag,
            journal: Some(journal),
            noted: 0,
            cluster_io: io,
            tasks: VecDeque::new(),
            written: BTreeSet::new(),
            kept: false,
        }
    }

    /// The pool of the data.
    pub(super) fn io(&self) -> Io {
        self.cluster_io.clone()
    }

    /// An object that the caller has written for this data.
    pub(super) fn also(&mut self, oid: Bytes) {
        self.written.insert(oid);
    }

    /// The data belongs to an object.
    pub(super) fn keep(&mut self) {
        self.kept = true;
        if let Some(journal) = self.journal.take() {
            journal.notes.done();
        }
    }

    /// The data belongs to a part, which was entered when its notes were removed.
    pub(super) fn keep_part(&mut self) {
        self.kept = true;
        if let Some(journal) = self.journal.take() {
            journal.notes.forget();
        }
    }

    /// The notes' keys.
    pub(super) fn note_keys(&self) -> BTreeSet<Bytes> {
        self.journal.as_ref().map(|j| j.notes.keys()).unwrap_or_default()
    }

    /// Renews the notes of the data if it is time.
    pub(super) async fn hold(&mut self) -> Result<()> {
        match &mut self.journal {
            Some(journal) => journal.notes.hold().await,
            None => Ok(()),
        }
    }

    /// Notes the stripes from an offset on that will be written next, if they are not noted yet.
    pub(super) async fn note(&mut self, offset: u64) -> Result<()> {
        if offset < self.noted {
            return Ok(());
        }
        let from = if self.noted == 0 && self.hold_first { 0 } else { offset };
        let to = from + STRIPES_NOTED * MIB4;
        let mut objs = Vec::new();
        for at in (from..to).step_by(MIB4 as usize) {
            if let Some(Place::Tail(object)) = self.manifest.next_stripe(at).map(|p| p.place) {
                objs.push(self.raw(&object));
            }
        }
        let Some(journal) = &mut self.journal else { return Ok(()) };
        journal.notes.hold().await?;
        let tag = [&self.tag[..], b"\0"].concat().into();
        journal.notes.add(&Note::of_data(journal.head.clone(), tag, objs)).await?;
        self.noted = to;
        Ok(())
    }

    fn raw(&self, object: &BucketObject) -> RawObj {
        let pool = self.journal.as_ref().map(|j| j.pool.clone()).unwrap_or_default();
        let marker = &object.bucket.marker;
        let (key, loc) = (object.name.raw(marker), object.name.raw_locator(marker));
        RawObj { pool, key: ObjKey::plain(key), loc }
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
        self.note(offset).await?;
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
        let notes = self.journal.take().map(|j| j.notes);
        if self.kept {
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
                            "data of a failed upload is left for later: {}: {e}",
                            oid.escape_ascii()
                        );
                        return;
                    }
                }
            }
            if let Some(notes) = notes {
                notes.remove().await;
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
        let journal = Journal {
            notes: self.notes(&name.name).await?,
            head: self.raw_head(bucket, name, false)?,
            pool: pool.text(),
        };
        Ok(Writer::new(manifest, self.cluster.io(&pool).await?, self.new_tag(), journal))
    }
}
