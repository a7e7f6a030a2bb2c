//! The time that leaves this machine.

use std::time::{SystemTime, UNIX_EPOCH};
use types::Utime;

/// Wall clock time.
pub(super) fn now() -> Utime {
    Utime::from_duration(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}
