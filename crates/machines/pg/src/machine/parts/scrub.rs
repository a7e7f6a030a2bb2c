//! How far a scrub is, and what it has found.

use crate::info::Backfill;
use crate::scrub::{ScrubKind, ScrubMap};
use crate::stats::StatSum;
use std::collections::{BTreeMap, BTreeSet};
use types::scrub::{InconsistentObject, InconsistentSnapset};
use types::{Epoch, ObjectId, PgShard, PgState};

/// The findings of the last scrub of this interval.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ScrubResults {
    /// Objects with copies that differ.
    pub objects: BTreeMap<ObjectId, InconsistentObject>,
    /// Objects with clones that do not fit.
    pub snapsets: BTreeMap<ObjectId, InconsistentSnapset>,
}

/// What goes on.
#[derive(Debug, Default)]
pub(in crate::machine) struct Scrubbing {
    pub(in crate::machine) job: Option<Job>,
    /// Scans that the host was asked for.
    pub(in crate::machine) scans: BTreeMap<u64, Scanner>,
    pub(in crate::machine) next_id: u64,
    pub(in crate::machine) results: Option<ScrubResults>,
    pub(in crate::machine) failed_repair: bool,
}

/// For whom the host scans.
#[derive(Debug)]
pub(in crate::machine) enum Scanner {
    /// For this round of the own scrub.
    Own(u64),
    /// For the primary.
    Primary { to: PgShard, asked: Epoch, id: u64 },
}

#[derive(Debug)]
pub(in crate::machine) struct Job {
    pub(in crate::machine) kind: ScrubKind,
    pub(in crate::machine) stage: Stage,
    /// Everything up to here is compared.
    pub(in crate::machine) cursor: Backfill,
    /// How many objects the next range has.
    pub(in crate::machine) chunk: usize,
    /// How often a write may still go first.
    pub(in crate::machine) preemptions: u32,
    pub(in crate::machine) tally: Tally,
}

#[derive(Debug)]
pub(in crate::machine) enum Stage {
    /// Waits for turns on these OSDs.
    Reserving(BTreeSet<PgShard>),
    /// Waits for the own listing of this round.
    Listing(u64),
    /// Waits for scans of this round.
    Scanning {
        id: u64,
        upto: Backfill,
        waiting: BTreeSet<PgShard>,
        maps: BTreeMap<PgShard, ScrubMap>,
        disturbed: bool,
    },
}

/// The findings so far.
#[derive(Debug, Default)]
pub(in crate::machine) struct Tally {
    pub(in crate::machine) shallow: u64,
    pub(in crate::machine) deep: u64,
    pub(in crate::machine) missing: usize,
    pub(in crate::machine) inconsistent: usize,
    pub(in crate::machine) fixed: u64,
    pub(in crate::machine) large_omap: u64,
    pub(in crate::machine) stats: StatSum,
    /// Some object could not be counted.
    pub(in crate::machine) inexact: bool,
    pub(in crate::machine) lines: usize,
    pub(in crate::machine) results: ScrubResults,
}

impl Scrubbing {
    /// What the PG's state says of it.
    pub(in crate::machine) fn state(&self) -> PgState {
        let mut s = PgState::default();
        if let Some(job) = self.job.as_ref().filter(|j| !matches!(j.stage, Stage::Reserving(_))) {
            s.set(PgState::SCRUBBING, true);
            s.set(PgState::DEEP_SCRUB, job.kind.deep);
            s.set(PgState::REPAIR, job.kind.repair);
        }
        s.set(PgState::FAILED_REPAIR, self.failed_repair);
        s
    }

    /// The range that is being scanned, if the object is in it.
    pub(in crate::machine) fn range_of(&mut self, oid: &ObjectId) -> Option<(&mut bool, u32)> {
        let job = self.job.as_mut()?;
        match &mut job.stage {
            Stage::Scanning { upto, disturbed, .. }
                if upto.covers(oid) && !job.cursor.covers(oid) =>
            {
                Some((disturbed, job.preemptions))
            }
            _ => None,
        }
    }
}
