//! The wall clock, for stamps in messages and records.

use std::time::{SystemTime, UNIX_EPOCH};
use types::Utime;

/// The time of this host, as stamps carry it.
pub fn wall_clock() -> Utime {
    Utime::from_duration(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}
