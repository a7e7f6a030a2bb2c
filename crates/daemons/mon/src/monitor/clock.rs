//! The monitor's clock.

use std::cell::Cell;
use std::time::Duration;
use types::Utime;

thread_local! {
    /// `clock_offset` of the monitor that has this thread, in nanoseconds.
    static CLOCK_OFFSET: Cell<i64> = const { Cell::new(0) };
}

/// Wall clock time.
pub(crate) fn now() -> Utime {
    let since =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let offset = CLOCK_OFFSET.get();
    let by = Duration::from_nanos(offset.unsigned_abs());
    Utime::from_duration(if offset < 0 { since.saturating_sub(by) } else { since + by })
}

/// Sets by how much the clock is ahead, in seconds.
pub(super) fn set_offset(seconds: f64) {
    CLOCK_OFFSET.set((seconds * 1e9) as i64);
}
