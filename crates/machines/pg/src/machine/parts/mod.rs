//! What the parts of the machine keep: each file is the state of the part with its name.

pub(super) mod backfill;
pub(super) mod lease;
pub(super) mod recovery;
pub(super) mod repair;
pub(super) mod reservation;
pub(super) mod scan;
pub(super) mod scrub;
pub(super) mod snap_trim;
pub(super) mod times;

pub(super) use backfill::Backfilling;
pub(super) use lease::Leases;
pub(super) use recovery::Recovery;
pub(super) use repair::Repairs;
pub(super) use reservation::Reservation;
pub(super) use scrub::Scrubbing;
pub(super) use snap_trim::Trimming;
pub(super) use times::Times;
