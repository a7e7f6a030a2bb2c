//! How an objecter behaves.

use super::budget::Limits;
use std::time::Duration;

/// How an [`Objecter`](crate::Objecter) behaves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// How much may be under way at a time.
    pub limits: Limits,
    /// How often watches are kept alive (`objecter_tick_interval`).
    pub tick: Duration,
    /// After which an [`IoCtx`](crate::IoCtx) gives up on an answer, unless told otherwise; 0 for
    /// never (`rados_osd_op_timeout`).
    pub op_timeout: Duration,
}

impl Options {
    /// Ceph's values.
    pub const DEFAULT: Options = Options {
        limits: Limits::DEFAULT,
        tick: Duration::from_secs(5),
        op_timeout: Duration::ZERO,
    };
}

impl Default for Options {
    fn default() -> Self {
        Options::DEFAULT
    }
}
