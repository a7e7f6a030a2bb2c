//! The reservation for recovery or backfill.

use types::{PgShard, PgState};

/// How far recovery is with its reservations.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(in crate::machine) enum Stage {
    /// It has none and wants none.
    #[default]
    Idle,
    /// Waits for this OSD's.
    Own,
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
    pub(in crate::machine) recovery_forced: bool,
    pub(in crate::machine) backfill_forced: bool,
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
