//! Counts what the background work of PGs has done and has before it, and holds removals back.

use crate::core::Core;
use crate::host::PgHost;
use crate::jobs::{Amount, share};
use admission::work::Kind;
use std::rc::Rc;

impl Core {
    /// What background work has done since the start, and what is left of it.
    pub(crate) fn job_counters(&self) -> Vec<(String, u64)> {
        let (mut removing, mut scrubbing, mut uncounted) = (0, 0, 0);
        let mut trim_left = Amount::default();
        let (mut remove_left, mut scrub_left, mut scrubbed) =
            (Amount::default(), Amount::default(), self.jobs.scrubbed.0.get());
        for host in self.hosts() {
            let trims = host.with_pg(|pg| pg.is_primary() && !pg.snap_trim_queue().is_empty());
            if trims && host.with_pg(|pg| pg.is_clean()) {
                host.count_clones();
            }
            host.with_pg(|pg| {
                let stats = &pg.info().stats;
                if pg.info().removing {
                    let objects =
                        (stats.num_objects.max(0) as u64).saturating_sub(host.tally.removed.get());
                    removing += 1;
                    remove_left.objects += objects;
                    remove_left.bytes += share(objects, stats);
                }
                if trims {
                    let (left, all) = host.clones.borrow().counted();
                    uncounted += u64::from(!all || !pg.is_clean());
                    trim_left.objects += left;
                    trim_left.bytes += share(left, stats);
                }
                if let Some((done, left)) = pg.scrub_progress() {
                    scrubbing += 1;
                    scrubbed.objects += done;
                    scrubbed.bytes += share(done, stats);
                    scrub_left.objects += left;
                    scrub_left.bytes += share(left, stats);
                }
            });
        }
        let (removed, trimmed) = (self.jobs.removed.0.get(), self.jobs.trimmed.0.get());
        let counters = [
            ("job_delete_groups", removing),
            ("job_delete_paused", u64::from(self.settings().deletion_paused)),
            ("job_delete_objects", removed.objects),
            ("job_delete_bytes", removed.bytes),
            ("job_delete_objects_left", remove_left.objects),
            ("job_delete_bytes_left", remove_left.bytes),
            ("job_trim_objects", trimmed.objects),
            ("job_trim_bytes", trimmed.bytes),
            ("job_trim_snaps", self.jobs.trimmed_snaps.get()),
            ("job_trim_objects_left", trim_left.objects),
            ("job_trim_bytes_left", trim_left.bytes),
            ("job_trim_uncounted", uncounted),
            ("job_scrub_groups", scrubbing),
            ("job_scrub_objects", scrubbed.objects),
            ("job_scrub_bytes", scrubbed.bytes),
            ("job_scrub_objects_left", scrub_left.objects),
            ("job_scrub_bytes_left", scrub_left.bytes),
        ];
        counters.into_iter().map(|(name, n)| (name.to_owned(), n)).collect()
    }

    /// Removals that were held back go on, if they may.
    pub(crate) fn resume_removals(&self) {
        if self.settings().deletion_paused {
            return;
        }
        let paused = std::mem::take(&mut *self.jobs.paused.borrow_mut());
        for (pgid, max) in paused {
            if let Some(host) = self.host(pgid).filter(|h| h.with_pg(|pg| pg.info().removing)) {
                host.background(Kind::RemoveObjects(max));
            }
        }
    }
}

impl PgHost {
    /// The machine wants objects removed.
    pub(crate) fn want_removal(self: &Rc<Self>, max: usize) {
        if self.core.settings().deletion_paused {
            self.core.jobs.paused.borrow_mut().insert(self.id, max);
        } else {
            self.background(Kind::RemoveObjects(max));
        }
    }

    /// So many objects of this copy are gone.
    pub(crate) fn note_removed(&self, objects: u64) {
        self.tally.removed.set(self.tally.removed.get() + objects);
        let bytes = self.with_pg(|pg| share(objects, &pg.info().stats));
        self.core.jobs.removed.add(objects, bytes);
    }

    /// A scrub of this PG is over.
    pub(crate) fn note_scrubbed(&self) {
        let (objects, bytes) =
            self.with_pg(|pg| (pg.info().stats.num_objects, pg.info().stats.num_bytes));
        self.core.jobs.scrubbed.add(objects.max(0) as u64, bytes.max(0) as u64);
    }
}
