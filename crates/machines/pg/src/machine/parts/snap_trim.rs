//! The trim of a snapshot.

use types::{PgState, SnapId};

/// The snapshot that is being trimmed, and how far that is.
#[derive(Clone, Copy, Debug)]
pub(in crate::machine) struct Trimming {
    pub(in crate::machine) snap: SnapId,
    pub(in crate::machine) stage: Stage,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::machine) enum Stage {
    /// The host was asked.
    Waiting,
    /// The host is at it.
    Running,
    /// An object could not be read; the PG's state shows it until the next interval.
    Damaged,
}

impl Trimming {
    /// What the PG's state says of it.
    pub(in crate::machine) fn state(self) -> PgState {
        match self.stage {
            Stage::Waiting => PgState::SNAPTRIM_WAIT,
            Stage::Running => PgState::SNAPTRIM,
            Stage::Damaged => PgState::SNAPTRIM_ERROR,
        }
    }
}
