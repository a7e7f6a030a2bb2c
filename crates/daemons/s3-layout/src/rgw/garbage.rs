//! Garbage: data of objects that are gone waits in queues, for readers that are still at it, and
//! is removed later.

use super::backend::Io;
use super::cluster::{call, decoded, encoded, random_text, submit};
use super::handle::Handle;
use super::inner::Inner;
use crate::api::{Error, Result};
use ::rgw::bucket::Pool;
use ::rgw::gc::{GcListOp, GcListRet, GcObjInfo, GcRemoveOp, GcSetEntryOp, ObjChain, RawObj};
use ::rgw::gc_queue::{GcQueueInitOp, GcQueueRemoveOp};
use ::rgw::key::ObjKey;
use ::rgw::manifest::{Manifest, Place};
use bytes::Bytes;
use client::{ClientError, Operation};
use cls::lock::{LockOp, LockType, UnlockOp};
use cls::refcount::RefOp;
use cls::version::{Cond, CondsOp, ObjVersion, ObjVersionCond, VersionOp};
use types::{Errno, Utime};

/// Bytes of a queue (Ceph: `rgw_gc_max_queue_size`).
const QUEUE_BYTES: u64 = 131_068 * 1024;
/// Entries of a queue that can be put off (Ceph: `rgw_gc_max_deferred`).
const QUEUE_DEFERRED: u64 = 50;
/// Entries that are looked at together.
const ENTRIES_AT_ONCE: u32 = 100;
/// The lock that gateways take while they work on a queue.
const LOCK: &str = "gc_process";
/// How long a gateway may work on a queue before others may.
const LOCK_SECONDS: u32 = 300;

/// What one round of reclaiming did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reclaimed {
    /// Objects of RADOS that were removed.
    pub objects: u64,
    /// Entries that were done with.
    pub entries: u64,
}

/// Marks a queue that took over from a map of entries.
fn version_is(ver: u64) -> CondsOp {
    let objv = ObjVersion { ver, tag: Bytes::new() };
    CondsOp {
        objv: ObjVersion::default(),
        conds: vec![ObjVersionCond { ver: objv, cond: Cond::EQ }],
    }
}

impl Inner {
    fn queue_of(&self, tag: &[u8]) -> u32 {
        types::hash::linux(tag) % self.options.gc_queues.max(1)
    }

    /// Makes a queue if it is not there.
    async fn init_queue(&self, io: &Io, name: &str) -> Result<()> {
        let init = GcQueueInitOp { size: QUEUE_BYTES, num_deferred_entries: QUEUE_DEFERRED };
        let ready = VersionOp { objv: ObjVersion { ver: 1, tag: Bytes::new() } };
        let mut op = Operation::new().create(false);
        op = call(op, "version", "check_conds", &version_is(0), false);
        op = call(op, "rgw_gc", "rgw_gc_queue_init", &init, true);
        op = call(op, "version", "set", &ready, true);
        match submit(io, name, op, None).await {
            // It is ready already.
            Ok(_) | Err(ClientError::Errno(Errno::ECANCELED)) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    async fn enqueue(&self, info: GcObjInfo) -> Result<()> {
        let io = self.cluster.io(&self.zone.gc_pool).await?;
        let name = format!("gc.{}", self.queue_of(&info.tag));
        let entry = GcSetEntryOp { expiration_secs: self.options.gc_wait_seconds, info };
        for attempt in 0..2 {
            let op = call(Operation::new(), "version", "check_conds", &version_is(1), false);
            let op = call(op, "rgw_gc", "rgw_gc_queue_enqueue", &entry, true);
            match submit(&io, &name, op, None).await {
                Ok(_) => return Ok(()),
                Err(ClientError::Errno(Errno::ECANCELED | Errno::ENOENT | Errno::ENODATA))
                    if attempt == 0 =>
                {
                    self.init_queue(&io, &name).await?;
                }
                Err(ClientError::Errno(Errno::ECANCELED)) => break,
                Err(e) => return Err(e.into()),
            }
        }
        // A queue of an older gateway is a map.
        let op = call(Operation::new(), "rgw", "gc_set_entry", &entry, true);
        submit(&io, &name, op, None).await?;
        Ok(())
    }

    /// The objects of RADOS behind a head.
    pub(super) fn chain(&self, bucket: &Handle, manifest: &Manifest) -> Result<Vec<RawObj>> {
        let mut objs = Vec::new();
        for piece in manifest.pieces(0, u64::MAX) {
            let Place::Tail(object) = piece.place else { continue };
            let pool = self.tail_pool(bucket, manifest, &object)?.text();
            let marker = &object.bucket.marker;
            let (oid, loc) = (object.name.raw(marker), object.name.raw_locator(marker));
            objs.push(RawObj { pool, key: ObjKey::plain(oid), loc });
        }
        Ok(objs)
    }

    /// Sends the data behind a head to the garbage.
    pub(super) async fn discard(
        &self,
        bucket: &Handle,
        manifest: &Manifest,
        tag: Bytes,
    ) -> Result<()> {
        let objs = self.chain(bucket, manifest)?;
        self.discard_objects(objs, tag).await
    }

    /// Sends objects of RADOS to the garbage; at once if the queue does not take them.
    pub(super) async fn discard_objects(&self, objs: Vec<RawObj>, tag: Bytes) -> Result<()> {
        if objs.is_empty() {
            return Ok(());
        }
        let info = GcObjInfo {
            tag: tag.clone(),
            chain: ObjChain { objs: objs.clone() },
            time: self.cluster.now(),
        };
        if let Err(e) = self.enqueue(info).await {
            tracing::warn!("garbage is removed at once, because its queue did not take it: {e}");
            for object in objs {
                self.drop_reference(&object, &tag, true).await?;
            }
        }
        Ok(())
    }

    async fn raw_io(&self, object: &RawObj) -> Result<Io> {
        Ok(self.cluster.io(&Pool::parse(&object.pool)).await?.with_key(&object.loc))
    }

    /// Drops a reference to data; with the last one it goes. With `implicit_ref` that is the one
    /// that data has by itself, if it has none with the tag.
    pub(super) async fn drop_reference(
        &self,
        object: &RawObj,
        tag: &Bytes,
        implicit_ref: bool,
    ) -> Result<()> {
        let io = self.raw_io(object).await?;
        let put = RefOp { tag: tag.clone(), implicit_ref };
        match io.exec(&object.key.name, "refcount", "put", &encoded(&put), true).await {
            Ok(_) | Err(ClientError::Errno(Errno::ENOENT)) => Ok(()),
            // There are no references but the implicit one.
            Err(ClientError::Errno(Errno::EINVAL)) if !implicit_ref => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Refers to the data behind a head with another tag.
    pub(super) async fn share_tail(
        &self,
        bucket: &Handle,
        manifest: &Manifest,
        tag: &Bytes,
    ) -> Result<Vec<RawObj>> {
        let objs = self.chain(bucket, manifest)?;
        let get = RefOp { tag: tag.clone(), implicit_ref: true };
        for (done, object) in objs.iter().enumerate() {
            let io = self.raw_io(object).await?;
            let referred = io.exec(&object.key.name, "refcount", "get", &encoded(&get), true).await;
            if let Err(e) = referred {
                self.release(objs[..done].to_vec(), tag).await;
                return Err(match e {
                    ClientError::Errno(Errno::ENOENT) => Error::Unavailable(
                        "the source of a copy was replaced while it was copied".into(),
                    ),
                    e => e.into(),
                });
            }
        }
        Ok(objs)
    }

    /// Takes references back.
    pub(super) async fn release(&self, objs: Vec<RawObj>, tag: &Bytes) {
        for object in objs {
            if let Err(e) = self.drop_reference(&object, tag, true).await {
                tracing::warn!("{} keeps a reference: {e}", object.key.name.escape_ascii());
            }
        }
    }

    /// Locks an object against other gateways' background work: a cookie, or `None` if another has
    /// the lock.
    pub(super) async fn lock(
        &self,
        io: &Io,
        object: &str,
        name: &str,
        seconds: u32,
    ) -> Result<Option<Bytes>> {
        let cookie: Bytes = random_text(16).into();
        let op = LockOp {
            name: name.to_owned().into(),
            lock_type: LockType::EXCLUSIVE,
            cookie: cookie.clone(),
            tag: Bytes::new(),
            description: Bytes::new(),
            duration: Utime::new(seconds, 0),
            flags: 0,
        };
        match io.exec(object, "lock", "lock", &encoded(&op), true).await {
            Ok(_) => Ok(Some(cookie)),
            Err(ClientError::Errno(Errno::EBUSY | Errno::EEXIST)) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Gives a lock back.
    pub(super) async fn unlock(&self, io: &Io, object: &str, name: &str, cookie: Bytes) {
        let op = UnlockOp { name: name.to_owned().into(), cookie };
        if let Err(e) = io.exec(object, "lock", "unlock", &encoded(&op), true).await {
            tracing::debug!("the lock {name} of {object} expires: {e}");
        }
    }

    /// Removes garbage that has waited long enough (all of it with `all`).
    pub(super) async fn reclaim(&self, all: bool) -> Result<Reclaimed> {
        let io = self.cluster.io(&self.zone.gc_pool).await?;
        let mut done = Reclaimed::default();
        for queue in 0..self.options.gc_queues {
            let name = format!("gc.{queue}");
            let cookie = match self.lock(&io, &name, LOCK, LOCK_SECONDS).await? {
                Some(cookie) => cookie,
                None => continue,
            };
            let result = self.reclaim_queue(&io, &name, all, &mut done).await;
            self.unlock(&io, &name, LOCK, cookie).await;
            result?;
        }
        Ok(done)
    }

    async fn reclaim_queue(
        &self,
        io: &Io,
        name: &str,
        all: bool,
        done: &mut Reclaimed,
    ) -> Result<()> {
        for queued in [false, true] {
            let (class, method) = match queued {
                true => ("rgw_gc", "rgw_gc_queue_list_entries"),
                false => ("rgw", "gc_list"),
            };
            loop {
                // What was listed is removed, so the next page is the first again.
                let list =
                    GcListOp { marker: Bytes::new(), max: ENTRIES_AT_ONCE, expired_only: !all };
                let page = match io.exec(name, class, method, &encoded(&list), false).await {
                    Ok(bytes) => decoded::<GcListRet>("a page of garbage", &bytes)?,
                    // There is no queue (yet), or only its lock.
                    Err(ClientError::Errno(
                        Errno::ENOENT | Errno::EINVAL | Errno::EIO | Errno::ENODATA,
                    )) => break,
                    Err(e) => return Err(e.into()),
                };
                if page.entries.is_empty() {
                    break;
                }
                for entry in &page.entries {
                    for object in &entry.chain.objs {
                        self.drop_reference(object, &entry.tag, true).await?;
                        done.objects += 1;
                    }
                }
                let count = page.entries.len() as u64;
                if queued {
                    let remove = GcQueueRemoveOp { num_entries: count };
                    io.exec(name, "rgw_gc", "rgw_gc_queue_remove_entries", &encoded(&remove), true)
                        .await?;
                } else {
                    let tags = page.entries.iter().map(|e| e.tag.clone()).collect();
                    io.exec(name, "rgw", "gc_remove", &encoded(&GcRemoveOp { tags }), true).await?;
                }
                done.entries += count;
                if !page.truncated {
                    break;
                }
            }
        }
        Ok(())
    }
}
