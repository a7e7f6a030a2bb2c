//! Words of read leases: a clock that never steps, and what a copy has promised.
//!
//! How they work stands in `machine/lease.rs`.

use std::time::Duration;

use denc_derive::Denc;
use types::{Epoch, PgShard};

/// A moment of one process's clock, in nanoseconds since some moment of its own.
///
/// The clock never steps, and goes on while the process or the machine sleeps (`CLOCK_BOOTTIME`).
/// Moments of different processes have nothing to do with each other and are never sent; only
/// durations are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Steady(pub u64);

impl Steady {
    /// Later than everything.
    pub const NEVER: Self = Self(u64::MAX);

    /// This much later.
    pub fn after(self, d: Duration) -> Self {
        Self(self.0.saturating_add(nanos(d)))
    }

    /// How long it is from `now` until this moment; zero if it is over.
    pub fn left(self, now: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(now.0))
    }
}

/// The nanoseconds of a duration, as far as they can be counted.
pub(crate) fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

/// What a lease is worth to its holder: a little less than what was promised, so that clocks that
/// differ in speed by less than a fortieth do no harm.
pub(crate) fn usable(d: Duration) -> Duration {
    d - d / 32
}

/// Part of what the holder of a copy has promised: because this process may still serve reads, no
/// later interval begins to serve for some time.
#[derive(Denc, Clone, Copy, PartialEq, Eq, Debug)]
pub struct Promise {
    /// The copies that may serve reads.
    pub holder: PgShard,
    /// Which of its lives: when it came up.
    pub up_from: Epoch,
    /// First epoch of the interval of the lease.
    pub interval: Epoch,
    /// Nanoseconds that are left.
    pub left: u64,
}
