//! How many clones removed snapshots still have: what is left of trimming, in objects.
//!
//! The rows of the snapshot mapper are counted once, a page at a time, as background work; from
//! then on each change of a clone changes the count. A clone of several removed snapshots is
//! trimmed of all of them at once, so it counts once: in the row of the lowest of them.

use crate::client_op::Slot;
use crate::clones::{Clones, ROW, snap_of};
use crate::host::PgHost;
use admission::meter::Receipt;
use admission::work::Kind;
use bytes::Bytes;
use pg::snap_mapper;
use std::collections::BTreeSet;
use std::ops::Bound;
use std::rc::Rc;
use store::StoreError;
use types::ObjectId;

/// Rows that are read at a time.
const PAGE: usize = 256;
impl PgHost {
    /// Begins to count the clones of removed snapshots, if that is not done.
    pub(crate) fn count_clones(self: &Rc<Self>) {
        let snaps = self.with_pg(|pg| pg.snap_trim_queue());
        let begin = {
            let mut clones = self.clones.borrow_mut();
            clones.set_snaps(snaps);
            let begin = !clones.running && clones.next().is_some();
            clones.running |= begin;
            begin
        };
        if begin {
            self.background(Kind::CountClones);
        }
    }

    /// The interval ended.
    pub(crate) fn leave_count(&self) {
        *self.clones.borrow_mut() = Clones::default();
    }

    /// Counts one page, which the scheduler let in.
    pub(crate) async fn count_page(self: &Rc<Self>, slot: Slot, receipt: Receipt) {
        let generation = self.generation.get();
        let next = self.clones.borrow_mut().begin_page();
        let Some(after) = next else { return };
        let page = self.read_rows(&after).await;
        drop(slot);
        if self.generation.get() != generation {
            return;
        }
        let (rows, counting) = match page {
            Ok(page) => page,
            Err(e) => {
                return self.core.health.fail(format!(
                    "{}: cannot count the clones of removed snapshots: {e}",
                    self.pgid
                ));
            }
        };
        self.core.admission.has_read(&receipt, rows.len() as u64 * ROW);
        let more = {
            let mut clones = self.clones.borrow_mut();
            clones.add_page(&rows, counting);
            clones.running = clones.next().is_some();
            clones.running
        };
        if more {
            self.background(Kind::CountClones);
        }
    }

    /// Rows by snapshot behind this one, and which of them are the places of their clones.
    async fn read_rows(&self, after: &Bytes) -> Result<(Vec<Bytes>, BTreeSet<Bytes>), StoreError> {
        let page = self
            .core
            .store
            .omap_iter(self.coll, &self.meta, Bound::Excluded(after), PAGE, 1 << 20)
            .await?;
        let rows: Vec<(Bytes, Bytes)> =
            page.rows.into_iter().take_while(|(k, _)| snap_of(k).is_some()).collect();
        let objects: Vec<ObjectId> =
            rows.iter().filter_map(|(_, v)| snap_mapper::object_of_row(v).ok()).collect();
        let keys: Vec<Bytes> = objects.iter().map(snap_mapper::object_key).collect();
        let snaps = self.core.store.omap_get(self.coll, &self.meta, &keys).await?;
        let snaps: std::collections::BTreeMap<Bytes, Bytes> = snaps.into_iter().collect();
        let clones = self.clones.borrow();
        let places = objects.iter().zip(&keys).filter_map(|(oid, key)| {
            let of = snap_mapper::snaps_of_row(snaps.get(key)?).ok()?;
            clones.place(oid, &of)
        });
        let mut counting: BTreeSet<Bytes> = places.collect();
        let rows: Vec<Bytes> = rows.into_iter().map(|(k, _)| k).collect();
        counting.retain(|row| rows.binary_search(row).is_ok());
        Ok((rows, counting))
    }
}
