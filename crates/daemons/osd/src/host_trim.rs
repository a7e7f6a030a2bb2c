//! Trimming the clones of removed snapshots: background work, so each step goes through the
//! scheduler.
//!
//! A PG that has something to trim waits for its turn, because only `osd_max_trimming_pgs` PGs of
//! an OSD trim at a time. Then up to `osd_pg_max_concurrent_snap_trims` steps are under way, each
//! of which changes one clone. The rows of the snapshot are read by pages. When no row is left
//! behind the last page, the listing starts once more from the beginning: only a listing that finds
//! nothing at all says that the snapshot is gone.

use crate::client_op::Slot;
use crate::gate::{Head, Mode};
use crate::host::{Completion, Context, Job, PgHost};
use crate::trims::{Pace, Step, Trimmer};
use admission::work::Kind;
use bytes::Bytes;
use objops::object::{SnapSet, decode_attr};
use objops::snaps::trim;
use objops::{ObjectReader, SS_ATTR};
use pg::{Event, ObjectStatus, snap_mapper};
use std::ops::Bound;
use std::rc::Rc;
use std::time::{Duration, Instant};
use store::Transaction;
use types::{Errno, ObjectId, SnapId};

/// Rows of the snap mapper that are read at a time.
const PAGE: usize = 64;

/// Without mClock, a step is followed by a pause of this many times its own length while clients
/// are at work. A scheduler orders what waits, but a few clients with little in flight never wait:
/// without the pause, trimming takes as much of the processor and the device as they do. With
/// mClock, [`qos::Beside`] sees to it.
const PAUSE: u32 = 3;

impl PgHost {
    /// The machine wants a snapshot trimmed.
    pub(crate) fn want_trim(self: &Rc<Self>, snap: SnapId) {
        *self.trimmer.borrow_mut() = Some(Trimmer::new(snap));
        self.count_clones();
        self.core.reservations.trims.borrow_mut().ask(self.id);
        self.core.next_trims();
    }

    /// The PG's turn has come.
    pub(crate) fn begin_trim(self: &Rc<Self>) {
        let snap = self.trimmer.borrow().as_ref().map(|t| t.snap);
        match snap {
            Some(snap) => {
                self.handle(Event::SnapTrimStarted(snap));
                self.add_trim_step(snap);
            }
            None => self.leave_trim(),
        }
    }

    fn add_trim_step(self: &Rc<Self>, snap: SnapId) {
        if let Some(t) = self.trimmer.borrow_mut().as_mut().filter(|t| t.snap == snap) {
            t.steps += 1;
        }
        self.background(Kind::SnapTrim(snap));
    }

    /// Ends trimming and lets another PG begin.
    pub(crate) fn leave_trim(self: &Rc<Self>) {
        *self.trimmer.borrow_mut() = None;
        self.core.reservations.trims.borrow_mut().leave(self.id);
        self.core.next_trims();
    }

    fn stop_trim(self: &Rc<Self>, snap: SnapId, damaged: bool) {
        self.leave_trim();
        self.handle(Event::SnapTrimStopped { snap, damaged });
    }

    fn with_trimmer<R>(&self, snap: SnapId, f: impl FnOnce(&mut Trimmer) -> R) -> Option<R> {
        self.trimmer.borrow_mut().as_mut().filter(|t| t.snap == snap).map(f)
    }

    /// One step of trimming, which the scheduler let in.
    pub(crate) async fn trim_step(self: &Rc<Self>, snap: SnapId, slot: Slot) {
        let generation = self.generation.get();
        let pace =
            Pace { slot, begun: Instant::now(), clients: self.core.admission.clients_started() };
        if !self.with_pg(|pg| pg.is_active()) {
            self.leave_trim();
            return;
        }
        if !self.core.map().is_none_or(|m| m.trims_snaps()) {
            self.stop_trim(snap, false);
            return;
        }
        let Some(mut step) = self.with_trimmer(snap, Trimmer::step) else { return };
        while let Step::List(last) = step {
            let prefix = snap_mapper::snap_prefix(snap);
            let from = last.as_deref().map_or(Bound::Included(&prefix[..]), Bound::Excluded);
            let page = self.core.store.omap_iter(self.coll, &self.meta, from, PAGE, 1 << 20).await;
            if self.generation.get() != generation {
                return;
            }
            let rows = match page {
                Ok(page) => {
                    page.rows.into_iter().take_while(|(k, _)| k.starts_with(&prefix)).collect()
                }
                Err(e) => {
                    self.core.health.fail(format!(
                        "{}: cannot list the clones of snapshot {snap}: {e}",
                        self.pgid
                    ));
                    return;
                }
            };
            let Some(next) = self.with_trimmer(snap, |t| t.listed(rows)) else { return };
            step = next;
        }
        match step {
            Step::Row(row, value) => {
                self.fill_trim_steps(snap);
                self.trim_row(snap, row, &value, pace);
            }
            Step::Retire => {
                self.with_trimmer(snap, |t| t.steps = t.steps.saturating_sub(1));
            }
            Step::Done | Step::List(_) => {
                drop(pace);
                let snaps = &self.core.jobs.trimmed_snaps;
                snaps.set(snaps.get() + 1);
                self.leave_trim();
                self.handle(Event::SnapTrimmed(snap));
            }
        }
    }

    /// Queues further steps for the rows that were found, up to the limit.
    fn fill_trim_steps(self: &Rc<Self>, snap: SnapId) {
        let most = self.core.settings().trim.steps.max(1);
        let more = self.with_trimmer(snap, |t| most.saturating_sub(t.steps).min(t.found.len()));
        for _ in 0..more.unwrap_or(0) {
            self.add_trim_step(snap);
        }
    }

    /// A step is over; the next one waits its turn in the scheduler.
    pub(crate) fn trim_on(self: &Rc<Self>, snap: SnapId, pace: Pace) {
        let Pace { slot, begun, clients } = pace;
        drop(slot);
        let trim = self.core.settings().trim;
        let busy = trim.gently && self.core.admission.clients_started() != clients;
        let pause = if busy { begun.elapsed() * PAUSE } else { Duration::ZERO };
        let sleep = trim.sleep.max(pause);
        if sleep.is_zero() {
            self.background(Kind::SnapTrim(snap));
            return;
        }
        let (host, generation) = (self.clone(), self.generation.get());
        tokio::task::spawn_local(async move {
            tokio::time::sleep(sleep).await;
            if host.generation.get() == generation {
                host.background(Kind::SnapTrim(snap));
            }
        });
    }

    /// Queues a clone at its object.
    fn trim_row(self: &Rc<Self>, snap: SnapId, row: Bytes, value: &Bytes, pace: Pace) {
        let Ok(clone) = snap_mapper::object_of_row(value) else {
            tracing::error!(pg = %self.pgid, "a row of the snap mapper cannot be read and is removed");
            self.drop_row(row, snap, pace);
            return;
        };
        let context = self.context(&clone.head());
        if let Some(job) = context.enter(Mode::Write, Job::Trim(snap, clone, pace)) {
            self.begin_job(&context, job);
        }
    }

    /// Removes a row that leads to nothing, and goes on.
    fn drop_row(self: &Rc<Self>, row: Bytes, snap: SnapId, pace: Pace) {
        let mut t = Transaction::new();
        t.omap_rm(self.coll, &self.meta, vec![row]);
        let host = self.clone();
        self.core.backlog.submit(t, move |done| match done {
            Ok(()) => host.trim_on(snap, pace),
            Err(e) => host.core.health.fail(format!("{}: cannot remove a row: {e}", host.pgid)),
        });
    }

    pub(crate) async fn trim_clone(
        self: &Rc<Self>,
        context: &Rc<Context>,
        snap: SnapId,
        clone: ObjectId,
        pace: Pace,
        generation: u64,
    ) {
        let row = snap_mapper::snap_row(snap, &clone).0;
        let found = async {
            let head = self.head(context, &clone.head()).await?;
            let clone = self.load(&clone).await?;
            Ok::<_, Errno>((head, clone))
        };
        let found = found.await;
        if self.generation.get() != generation || !self.with_pg(|pg| pg.is_active()) {
            return;
        }
        let (head, state) = match found {
            Ok(f) => f,
            Err(e) => {
                tracing::error!(pg = %self.pgid, oid = %clone, "cannot trim the clone: {e}");
                self.stop_trim(snap, true);
                return;
            }
        };
        let ready = |o| {
            let s = self.with_pg(|pg| pg.object_status(o));
            matches!(s, ObjectStatus::Ready | ObjectStatus::InFlight)
        };
        if !ready(&clone) || !ready(&head.state.oid) {
            // Recovery goes first; the machine asks again when the PG is clean.
            self.stop_trim(snap, false);
            return;
        }
        let map = self.core.map();
        let removed =
            |s| s == snap || map.as_ref().is_some_and(|m| m.snap_removed(self.pgid.pool, s));
        let at = self.with_pg(|pg| pg.next_version());
        let done = if state.exists {
            trim(&state, &head.state, head.snapset.clone(), at, removed)
        } else {
            None
        };
        let Some(done) = done else {
            self.drop_row(row, snap, pace);
            return;
        };
        let gathered = self.gather(&done.txn, &[&clone, &head.state.oid], "").await;
        if self.generation.get() != generation || !self.with_pg(|pg| pg.is_active()) {
            return;
        }
        let gathered = match gathered {
            Ok(gathered) => gathered,
            Err(e) => {
                tracing::error!(pg = %self.pgid, oid = %clone, "cannot trim the clone: {e}");
                self.stop_trim(snap, true);
                return;
            }
        };
        if self.with_pg(|pg| pg.next_version()) != at {
            // Another object was changed meanwhile, and has the version.
            self.trim_row(snap, row, &snap_mapper::snap_row(snap, &clone).1, pace);
            return;
        }
        let before = context
            .head
            .borrow_mut()
            .replace(Rc::new(Head { state: done.head, snapset: done.snapset }));
        context.proposed();
        let entries = done.entries.into_iter().collect();
        let freed = done.stats.num_bytes.min(0).unsigned_abs();
        let completion = Completion::Trim { snap, context: context.clone(), pace };
        if !self.propose(entries, done.txn, &gathered, done.stats, completion) {
            context.committed();
            *context.head.borrow_mut() = before;
        } else {
            self.core.jobs.trimmed.add(1, freed);
        }
    }

    /// The snap set of a head, for inspection.
    pub async fn snapset(&self, head: &ObjectId) -> Result<SnapSet, Errno> {
        decode_attr(&self.reader.attr(&head.to_key(), SS_ATTR).await?)
    }
}
