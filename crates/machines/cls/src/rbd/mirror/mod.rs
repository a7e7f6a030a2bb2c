//! Mirroring of a pool (`rbd_mirroring`, and `rbd_mirror_leader` for the daemons and what they
//! share).
//!
//! * [`pool`]: whether and how the pool is mirrored.
//! * [`peers`]: the other clusters.
//! * [`images`]: the mirrored images.
//! * [`status`]: how it goes, as daemons report it.
//! * [`daemons`]: the daemons, and which of them mirrors which image.
//! * [`snapshots`]: snapshots that mirroring makes.

pub mod daemons;
pub mod images;
pub mod peers;
pub mod pool;
pub mod snapshots;
pub mod status;
