//! Work of a placement group that no client waits for: recovery reads, snapshot trimming, removal.

use crate::client_op::Slot;
use crate::gate::{Head, Mode};
use crate::host::{Completion, Context, Job, META_KEY, PgHost};
use crate::host_ops::run_now;
use crate::object::{ObjectInfo, SnapSet, decode_attr};
use crate::op::snaps::trim;
use crate::op::{OI_ATTR, ObjectReader, SS_ATTR};
use crate::work::{Kind, ReadObject};
use bytes::Bytes;
use pg::{Event, ObjectChunk, ObjectStatus, Progress, snap_mapper};
use std::ops::Bound;
use std::rc::Rc;
use store::Transaction;
use types::{Errno, ObjectId, SnapId};

impl PgHost {
    /// Runs background work that the scheduler let in. The slot is held until it is done.
    pub(crate) fn run_background(self: &Rc<Self>, kind: Kind, slot: Slot) {
        let host = self.clone();
        match kind {
            Kind::Recover => {
                self.handle(Event::StartRecovery { max_objects: 1 });
                drop(slot);
            }
            Kind::ReadObject(read) => run_now(async move {
                let token = read.token;
                let chunk = host.read_object(*read).await;
                drop(slot);
                host.handle(Event::ObjectRead { token, chunk });
            }),
            Kind::SnapTrim(snap) => run_now(async move { host.trim_next(snap, slot).await }),
            Kind::RemoveObjects(max) => run_now(async move { host.remove_objects(max, slot).await }),
        }
    }

    /// A part of an object, `None` if it is not there in this version or cannot be read.
    async fn read_object(&self, r: ReadObject) -> Option<ObjectChunk> {
        let key = r.oid.to_key();
        let store = &self.core.store;
        let info: ObjectInfo = decode_attr(&self.reader.attr(&key, OI_ATTR).await.ok()?).ok()?;
        if info.version != r.version {
            tracing::debug!(oid = %r.oid, found = %info.version, wanted = %r.version, "another version is here");
            return None;
        }
        let size = store.stat(self.coll, &key).await.ok()?.size;
        let first = r.from == Progress::default();
        let mut chunk = ObjectChunk {
            oid: r.oid.clone(),
            version: r.version,
            from: r.from.clone(),
            to: r.from.clone(),
            size,
            ..ObjectChunk::default()
        };
        if first {
            chunk.attrs = self.reader.attrs(&key).await.ok()?;
            chunk.omap_header = self.reader.omap_header(&key).await.ok()?;
        }
        if r.from.data_to < size {
            let end = size.min(r.from.data_to.saturating_add(r.max_bytes.max(1)));
            let mut pieces = Vec::new();
            for (offset, length) in self.reader.extents(&key, r.from.data_to, end - r.from.data_to).await.ok()? {
                let data = self.reader.read(&key, offset, length).await.ok()?;
                if data.iter().map(Bytes::len).sum::<usize>() as u64 != length {
                    return None;
                }
                chunk.extents.push((offset, length));
                pieces.extend(data);
            }
            chunk.data = if pieces.len() == 1 { pieces.remove(0) } else { pieces.concat().into() };
            chunk.to.data_to = end;
        }
        let mut more_omap = false;
        if chunk.to.data_to >= size {
            let start = r.from.omap_to.clone().unwrap_or_default();
            let page = self
                .reader
                .omap_list(&key, &start, r.from.omap_to.is_none(), r.max_omap.max(1) as usize, r.max_bytes.max(1) as usize)
                .await
                .ok()?;
            if let Some((last, _)) = page.rows.last() {
                chunk.to.omap_to = Some(last.clone());
            }
            more_omap = page.more;
            chunk.omap = page.rows;
        }
        chunk.last = chunk.to.data_to >= size && !more_omap;
        if chunk.last && r.oid.is_snap() {
            let row = snap_mapper::object_key(&r.oid);
            let meta = Bytes::from_static(META_KEY);
            let rows = store.omap_get(self.coll, &meta, &[row]).await.ok()?;
            if let Some((_, value)) = rows.first() {
                chunk.snaps = snap_mapper::snaps_of_row(value).ok()?;
            }
        }
        // The object may have changed while it was read; then the parts do not fit together.
        let after: ObjectInfo = decode_attr(&self.reader.attr(&key, OI_ATTR).await.ok()?).ok()?;
        (after.version == r.version).then_some(chunk)
    }

    // --- snapshots ---

    /// Finds the next clone of a removed snapshot and queues it at its object.
    async fn trim_next(self: &Rc<Self>, snap: SnapId, slot: Slot) {
        let generation = self.generation.get();
        let prefix = snap_mapper::snap_prefix(snap);
        let page = self.core.store.omap_iter(self.coll, &self.meta, Bound::Included(&prefix[..]), 1, 1 << 20).await;
        if self.generation.get() != generation || !self.with_pg(|pg| pg.is_active()) {
            return;
        }
        let row = match page {
            Ok(page) => page.rows.into_iter().next().filter(|(k, _)| k.starts_with(&prefix)),
            Err(e) => {
                self.core.fail(format!("{}: cannot list the clones of snapshot {snap}: {e}", self.pgid));
                return;
            }
        };
        let Some((row, value)) = row else {
            drop(slot);
            self.handle(Event::SnapTrimmed(snap));
            return;
        };
        let Ok(clone) = snap_mapper::object_of_row(&value) else {
            tracing::error!(pg = %self.pgid, "a row of the snap mapper cannot be read and is removed");
            self.drop_row(row, snap, slot);
            return;
        };
        let context = self.context(&clone.head());
        if let Some(job) = context.enter(Mode::Write, Job::Trim(snap, clone, slot)) {
            self.begin_job(&context, job);
        }
    }

    /// Removes a row that leads to nothing, and goes on.
    fn drop_row(self: &Rc<Self>, row: Bytes, snap: SnapId, slot: Slot) {
        let mut t = Transaction::new();
        t.omap_rm(self.coll, &self.meta, vec![row]);
        let host = self.clone();
        self.core.submit(t, move |done| {
            drop(slot);
            match done {
                Ok(()) => host.background(Kind::SnapTrim(snap)),
                Err(e) => host.core.fail(format!("{}: cannot remove a row: {e}", host.pgid)),
            }
        });
    }

    pub(crate) async fn trim_clone(
        self: &Rc<Self>,
        context: &Rc<Context>,
        snap: SnapId,
        clone: ObjectId,
        slot: Slot,
        generation: u64,
    ) {
        let row = snap_mapper::snap_row(snap, &clone).0;
        let found = async {
            let head = self.head(context, &clone.head()).await?;
            let clone = self.load(&clone).await?;
            Ok::<_, Errno>((head, clone))
        };
        let (head, state) = match found.await {
            Ok(f) => f,
            Err(e) => {
                tracing::error!(pg = %self.pgid, oid = %clone, "cannot trim the clone: {e}");
                return;
            }
        };
        if self.generation.get() != generation || !self.with_pg(|pg| pg.is_active()) {
            return;
        }
        let ready = |o| {
            let s = self.with_pg(|pg| pg.object_status(o));
            matches!(s, ObjectStatus::Ready | ObjectStatus::InFlight)
        };
        if !ready(&clone) || !ready(&head.state.oid) {
            // Recovery goes first; the machine asks again when the group is clean.
            return;
        }
        let map = self.core.map();
        let removed = |s| s == snap || map.as_ref().is_some_and(|m| m.snap_removed(self.pgid.pool, s));
        let at = self.with_pg(|pg| pg.next_version());
        let done = if state.exists { trim(&state, &head.state, head.snapset.clone(), at, removed) } else { None };
        let Some(done) = done else {
            self.drop_row(row, snap, slot);
            return;
        };
        let before = context.head.borrow_mut().replace(Rc::new(Head { state: done.head, snapset: done.snapset }));
        context.proposed();
        let entries = done.entries.into_iter().collect();
        let completion = Completion::Trim { snap, context: context.clone(), slot };
        if !self.propose(entries, done.txn, done.stats, completion) {
            context.committed();
            *context.head.borrow_mut() = before;
        }
    }

    // --- removal ---

    async fn remove_objects(self: &Rc<Self>, max: usize, slot: Slot) {
        let page = match self.core.store.list(self.coll, b"", None, max.max(1) + 2).await {
            Ok(p) => p,
            Err(e) => {
                self.core.fail(format!("{}: cannot list objects to remove: {e}", self.pgid));
                return;
            }
        };
        let mut keys: Vec<Bytes> = page.keys.into_iter().filter(|k| k != META_KEY).collect();
        let more = page.next.is_some() || keys.len() > max.max(1);
        keys.truncate(max.max(1));
        let mut t = Transaction::new();
        for key in &keys {
            t.remove(self.coll, key);
        }
        let host = self.clone();
        self.core.submit(t, move |done| {
            drop(slot);
            match done {
                Ok(()) => host.handle(Event::ObjectsRemoved { more }),
                Err(e) => host.core.fail(format!("{}: cannot remove objects: {e}", host.pgid)),
            }
        });
    }

    /// The snap set of a head, for inspection.
    pub async fn snapset(&self, head: &ObjectId) -> Result<SnapSet, Errno> {
        decode_attr(&self.reader.attr(&head.to_key(), SS_ATTR).await?)
    }
}
