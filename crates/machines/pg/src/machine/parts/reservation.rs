//! The reservation for recovery or backfill.

use std::collections::{BTreeMap, BTreeSet};

use types::{Epoch, OsdId, PgShard, PgState};

/// How far recovery is with its reservations.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(in crate::machine) enum Stage {
    /// It has none and wants none.
    #[default]
    Idle,
    /// Waits for this OSD's.
    Own,
    /// Waits for those of copies that are read and do not act.
    Sources,
    /// Waits for that of an acting replica.
    Replica(PgShard),
    /// Has all.
    Held,
}

/// Reservations of recovery, and what operators said of the PG's priority.
#[derive(Debug, Default)]
pub(in crate::machine) struct Reservation {
    pub(in crate::machine) stage: Stage,
    /// Replicas that were asked.
    pub(in crate::machine) asked: Vec<PgShard>,
    pub(in crate::machine) sources: Sources,
    /// The primary's last question whether it may read here.
    pub(in crate::machine) source_round: u32,
    pub(in crate::machine) recovery_forced: bool,
    pub(in crate::machine) backfill_forced: bool,
}

/// Reservations of OSDs that are read, for recovery or for a backfill.
#[derive(Debug, Default)]
pub(in crate::machine) struct Sources {
    /// Copies that were asked, one on an OSD, in the order of the OSDs. All but the last have
    /// answered, or all if they are held.
    pub(in crate::machine) asked: Vec<PgShard>,
    /// Since when these OSDs are up: one that has begun anew has forgotten the question.
    pub(in crate::machine) up_from: BTreeMap<OsdId, Epoch>,
    /// All have answered.
    pub(in crate::machine) held: bool,
    /// Counts questions: answers to earlier ones count for nothing.
    pub(in crate::machine) round: u32,
    /// Copies that some object needs besides.
    pub(in crate::machine) more: BTreeSet<PgShard>,
}

impl Reservation {
    pub(in crate::machine) fn is_held(&self) -> bool {
        self.stage == Stage::Held
    }

    pub(in crate::machine) fn state(&self) -> PgState {
        let mut s = PgState::default();
        s.set(PgState::FORCED_RECOVERY, self.recovery_forced);
        s.set(PgState::FORCED_BACKFILL, self.backfill_forced);
        s
    }
}
