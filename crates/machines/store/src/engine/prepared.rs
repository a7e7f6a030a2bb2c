//! How far the log of a sparse file is prepared.

use std::ops::Range;

/// Where the preparation stands; positions count on like those of the log.
#[derive(Default)]
pub(super) struct Prepared {
    /// Everything before is prepared or was passed by the log.
    pub(super) upto: u64,
    /// Zeros are on their way here.
    pub(super) under_way: Option<Range<u64>>,
    /// The log's head wakes the task when it has come to here.
    pub(super) wake_at: u64,
}

impl Prepared {
    /// Whether a batch for this place has to wait.
    pub(super) fn blocks(&self, place: &Range<u64>) -> bool {
        self.under_way.as_ref().is_some_and(|r| r.start < place.end && place.start < r.end)
    }

    /// Whether zeros are on their way.
    pub(super) fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// Whether the task wants to know that the head has come to `at`.
    pub(super) fn wants(&self, at: u64) -> bool {
        at >= self.wake_at
    }
}
