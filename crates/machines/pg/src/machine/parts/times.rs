//! When states began.

use types::{PgState, Utime};

/// When the PG was last in a state (Ceph: `pg_stat_t::last_*`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Times {
    /// The state changed.
    pub change: Utime,
    /// It was active.
    pub active: Utime,
    /// It was active or peered.
    pub peered: Utime,
    /// It was clean.
    pub clean: Utime,
    /// It became active.
    pub became_active: Utime,
    /// It became active or peered.
    pub became_peered: Utime,
    /// It was not degraded.
    pub undegraded: Utime,
    /// It was not undersized.
    pub fullsized: Utime,
    /// The machine came to where it is ([`Pg::phase_name`]).
    pub entered: Utime,
    /// It came to the state that this one is a part of ([`Pg::outer_name`]).
    pub within: Utime,
    /// Its interval was entered.
    pub started: Utime,
    pub(in crate::machine) phase: &'static str,
    pub(in crate::machine) outer: &'static str,
    pub(in crate::machine) state: PgState,
}

impl Times {
    pub(in crate::machine) fn new(now: Utime) -> Self {
        Self {
            change: now,
            active: now,
            peered: now,
            clean: now,
            became_active: now,
            became_peered: now,
            undegraded: now,
            fullsized: now,
            entered: now,
            within: now,
            started: now,
            phase: "",
            outer: "",
            state: PgState::default(),
        }
    }
}
