//! What the background work of an OSD has done and has before it, and the pause of removals.
//!
//! Recovery and backfill are told by the groups' statistics. The rest is counted here, and told the
//! mgr with each report, under names that begin with `job_`.

use crate::core::Core;
use crate::host::PgHost;
use admission::work::Kind;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use types::SpgId;

/// Objects, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    pub(crate) objects: u64,
    pub(crate) bytes: u64,
}

/// A counter of amounts.
#[derive(Default)]
pub(crate) struct Count(Cell<Amount>);

impl Count {
    pub(crate) fn add(&self, objects: u64, bytes: u64) {
        let n = self.0.get();
        self.0.set(Amount { objects: n.objects + objects, bytes: n.bytes + bytes });
    }
}

/// What was done since the start.
#[derive(Default)]
pub(crate) struct Jobs {
    /// Objects of copies that nobody needs.
    pub(crate) removed: Count,
    /// Clones, of which a removed snapshot was taken or that went with it.
    pub(crate) trimmed: Count,
    /// Removed snapshots of which a group holds no clone any more.
    pub(crate) trimmed_snaps: Cell<u64>,
    /// Objects of scrubs that are over.
    pub(crate) scrubbed: Count,
    /// Removals that wait for the end of a pause, with the bound of their next step.
    paused: RefCell<BTreeMap<SpgId, usize>>,
}

/// The bytes of some of the objects, if all are of the mean size.
pub(crate) fn share(objects: u64, stats: &pg::StatSum) -> u64 {
    let all = stats.num_objects.max(1) as u128;
    u64::try_from(u128::from(objects) * stats.num_bytes.max(0) as u128 / all).unwrap_or(u64::MAX)
}

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
                        (stats.num_objects.max(0) as u64).saturating_sub(host.removed.get());
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
        self.removed.set(self.removed.get() + objects);
        let bytes = self.with_pg(|pg| share(objects, &pg.info().stats));
        self.core.jobs.removed.add(objects, bytes);
    }

    /// A scrub of this group is over.
    pub(crate) fn note_scrubbed(&self) {
        let (objects, bytes) =
            self.with_pg(|pg| (pg.info().stats.num_objects, pg.info().stats.num_bytes));
        self.core.jobs.scrubbed.add(objects.max(0) as u64, bytes.max(0) as u64);
    }
}
