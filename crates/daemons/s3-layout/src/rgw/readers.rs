//! Data of objects, as it is read.

use super::backend::Io;
use super::cluster::submit;
use super::convert::{self, text};
use super::handle::BucketRef;
use super::inner::{Inner, MIB4};
use super::objects::ObjectRef;
use crate::api::{Error, Result, Source};
use ::rgw::manifest::{Manifest, Place};
use ::rgw::names::ObjName;
use bytes::Bytes;
use client::{ClientError, Comparison, Operation};
use s3::range::Span;
use std::collections::VecDeque;
use std::rc::Rc;
use tokio::task::JoinHandle;
use types::Errno;

/// Stripes that are read ahead of a reader.
const STRIPES_AT_ONCE: usize = 2;

impl Inner {
    /// Reads from one object of RADOS; `tag` is what its head must carry.
    pub(super) async fn read_piece(
        &self,
        io: &Io,
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
                    let (io, oid) = inner.head_place(&bucket, &name, false).await?;
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
