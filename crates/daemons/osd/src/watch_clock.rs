//! When watches and notifications of this OSD are looked at next.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Wakes the OSD at the earliest deadline of its watches and notifications.
#[derive(Default)]
pub(crate) struct WatchClock {
    pub(crate) at: Cell<Option<Instant>>,
    pub(crate) running: Cell<bool>,
    pub(crate) earlier: Rc<tokio::sync::Notify>,
    pub(crate) next_notify: Cell<u32>,
    /// Until when watches that were taken up again without waiting for a turn count.
    pub(crate) taken_back: Cell<Option<Instant>>,
}

/// So many watches are taken up again without waiting for a turn, and after that as many each
/// second as take this time each.
const TAKEN_AT_ONCE: u32 = 256;
const TAKEN_APART: Duration = Duration::from_millis(10);

impl WatchClock {
    /// Whether a watch may be taken up again without waiting for a turn: each is logged and
    /// replicated, so there is an end to it.
    pub(crate) fn takes_back(&self, now: Instant) -> bool {
        let counts = self.taken_back.get().map_or(now, |at| at.max(now));
        let free = counts.saturating_duration_since(now) < TAKEN_APART * TAKEN_AT_ONCE;
        if free {
            self.taken_back.set(Some(counts + TAKEN_APART));
        }
        free
    }
}
