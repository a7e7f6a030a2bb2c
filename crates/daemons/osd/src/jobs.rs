//! What the background work of an OSD has done and has before it, and the pause of removals.
//!
//! Recovery and backfill are told by the PGs' statistics. The rest is counted here, and told the
//! mgr with each report, under names that begin with `job_`.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use types::SpgId;

/// Objects, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    pub(crate) objects: u64,
    pub(crate) bytes: u64,
}

/// A counter of amounts.
#[derive(Default)]
pub(crate) struct Count(pub(crate) Cell<Amount>);

impl Count {
    pub(crate) fn add(&self, objects: u64, bytes: u64) {
        let n = self.0.get();
        self.0.set(Amount { objects: n.objects + objects, bytes: n.bytes + bytes });
    }
}

/// Work that was done since the start.
#[derive(Default)]
pub(crate) struct Jobs {
    /// Objects of copies that are not needed.
    pub(crate) removed: Count,
    /// Clones, of which a removed snapshot was taken or that went with it.
    pub(crate) trimmed: Count,
    /// Removed snapshots of which a PG holds no clone any more.
    pub(crate) trimmed_snaps: Cell<u64>,
    /// Objects of scrubs that are over.
    pub(crate) scrubbed: Count,
    /// Bad copies here that were replaced by good ones.
    pub(crate) shards_repaired: Cell<u64>,
    /// Removals that wait for the end of a pause, with the bound of their next step.
    pub(crate) paused: RefCell<BTreeMap<SpgId, usize>>,
}

/// The bytes of some of the objects, if all are of the mean size.
pub(crate) fn share(objects: u64, stats: &pg::StatSum) -> u64 {
    let all = stats.num_objects.max(1) as u128;
    u64::try_from(u128::from(objects) * stats.num_bytes.max(0) as u128 / all).unwrap_or(u64::MAX)
}
