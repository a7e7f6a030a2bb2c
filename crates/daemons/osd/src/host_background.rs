//! Work of a placement group that no client waits for: recovery reads and removal. Trimming is in
//! [`crate::host_trim`].

use crate::client_op::Slot;
use crate::collections::{META_KEY, window_of};
use crate::host::PgHost;
use crate::run_now::run_now;
use admission::work::{Background, Kind, ReadObject};
use bytes::Bytes;
use objops::object::{ObjectInfo, decode_attr};
use objops::{OI_ATTR, ObjectReader};
use pg::{Event, ObjectChunk, Progress, snap_mapper};
use std::rc::Rc;
use store::Transaction;

/// What an object that is listed has to be read for: its attribute.
pub(crate) const LISTED: u64 = 256;

impl PgHost {
    /// Runs background work that the scheduler let in. The slot is held until it is done, or until
    /// it needs other OSDs.
    pub(crate) fn run_background(self: &Rc<Self>, job: Background, slot: Slot) {
        let host = self.clone();
        let receipt = job.receipt;
        match job.kind {
            Kind::ListObjects(token, after, max) => run_now(async move {
                let generation = host.generation.get();
                host.core.backlog.store_flows().await;
                let listing = host.list_objects(&after, max).await;
                if let Ok(listing) = &listing {
                    host.core.admission.has_read(&receipt, listing.objects.len() as u64 * LISTED);
                }
                drop(slot);
                match listing {
                    // The collection may be on its way out.
                    Err(_) if host.generation.get() != generation => {}
                    Ok(listing) => host.handle(Event::Listed { token, listing }),
                    Err(e) => host
                        .core
                        .health
                        .fail(format!("{}: cannot list the objects: {e}", host.pgid)),
                }
            }),
            Kind::Recover => {
                self.use_place();
                drop(slot);
            }
            Kind::ReadObject(read) => run_now(async move {
                let token = read.token;
                host.core.backlog.store_flows().await;
                let chunk = host.read_object(*read).await;
                if let Some(chunk) = &chunk {
                    let omap: usize = chunk.omap.iter().map(|(k, v)| k.len() + v.len()).sum();
                    host.core.admission.has_read(&receipt, (chunk.data.len() + omap) as u64);
                }
                if host.reader.is_damaged() {
                    // The OSD that asked is told that there is nothing; the machine knows what
                    // follows from that.
                    host.note_damage().await;
                }
                drop(slot);
                host.read_for_copies(token, Event::ObjectRead { token, chunk });
            }),
            Kind::ReadShard(token, query) => run_now(async move {
                host.core.backlog.store_flows().await;
                let bytes = host.serve_shard(token, *query).await;
                host.core.admission.has_read(&receipt, bytes);
                drop(slot);
            }),
            Kind::Rebuild(r) => run_now(async move {
                host.core.backlog.store_flows().await;
                host.rebuild(*r, receipt, slot).await
            }),
            Kind::Scan(token) => run_now(async move {
                host.core.backlog.store_flows().await;
                host.scan_slice(token, slot, receipt).await
            }),
            Kind::CountClones => run_now(async move {
                host.core.backlog.store_flows().await;
                host.count_page(slot, receipt).await
            }),
            Kind::SnapTrim(snap) => run_now(async move {
                host.core.backlog.store_flows().await;
                host.trim_step(snap, slot).await
            }),
            Kind::RemoveObjects(max) => run_now(async move {
                host.core.backlog.store_flows().await;
                host.remove_objects(max, slot).await
            }),
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
            for (offset, length) in
                self.reader.extents(&key, r.from.data_to, end - r.from.data_to).await.ok()?
            {
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
                .omap_list(
                    &key,
                    &start,
                    r.from.omap_to.is_none(),
                    r.max_omap.max(1) as usize,
                    // Rows take twice their bytes until a checkpoint.
                    (r.max_bytes.saturating_sub(chunk.data.len() as u64) / 2).max(1) as usize,
                )
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

    // --- removal ---

    async fn remove_objects(self: &Rc<Self>, max: usize, slot: Slot) {
        let generation = self.generation.get();
        let page = match self.core.store.list(self.coll, b"", None, max.max(1) + 2).await {
            Ok(p) => p,
            // It became part of another PG, which removes what there is.
            Err(_) if self.with_pg(|pg| pg.is_gone()) => return,
            Err(e) => {
                self.core.health.fail(format!("{}: cannot list objects to remove: {e}", self.pgid));
                return;
            }
        };
        // A part may have become another PG's meanwhile.
        if self.with_pg(|pg| pg.is_gone()) {
            return;
        }
        let window = window_of(self.id, self.with_pg(|pg| pg.pg_num()));
        let mine = |k: &Bytes| k != META_KEY && (*k < window.floor || window.covers(k));
        let found = page.keys.len();
        let mut keys: Vec<Bytes> = page.keys.into_iter().filter(mine).collect();
        let more = page.next.is_some() || found > keys.len() + 1 || keys.len() > max.max(1);
        keys.truncate(max.max(1));
        let removed = keys.len() as u64;
        let mut t = Transaction::new();
        for key in &keys {
            t.remove(self.coll, key);
        }
        let host = self.clone();
        self.core.backlog.submit(t, move |done| {
            drop(slot);
            match done {
                // More may have become part of the PG meanwhile.
                Ok(()) => {
                    host.note_removed(removed);
                    host.handle(Event::ObjectsRemoved {
                        more: more || host.generation.get() != generation,
                    });
                }
                Err(e) => {
                    host.core.health.fail(format!("{}: cannot remove objects: {e}", host.pgid))
                }
            }
        });
    }
}
