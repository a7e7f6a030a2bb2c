//! The OSD: serves clients' operations on objects, keeps them on a store, replicates them through
//! placement groups.
//!
//! Operations on objects are the crate `objops`.
//!
//! * [`core`]: one OSD without its network; [`host`]: a placement group on it, with `host_ops`
//!   (requests), `host_background`, `host_backfill`, `host_recovery`, `host_trim` and `host_watch`;
//!   [`gate`]: order of operations on one object; [`work`]:
//!   what is scheduled; [`ceilings`]: limits of images; [`tenants`]: for whom requests are, and
//!   what they are promised; `front`: background work that clients hold back; [`limited`]: this
//!   OSD's part of limits;
//!   [`meter`]: what operations cost here, and what the OSD can do; [`legs`]: where their time goes.
//! * The seams: [`map`] (the cluster map), [`peer_net`] (other OSDs), [`client_op`] (clients).
//! * [`daemon`]: the core with store, monitors and network around it; [`superblock`], [`session`],
//!   [`settings`], [`fullness`], [`rooms`], [`scheduler`], [`osd_map`], [`net`], [`heartbeat`],
//!   [`copies`] are its parts.
//! * [`perf`], [`tracker`], [`stats`], [`admin`]: what an operator can see and do.

pub mod admin;
mod admin_query;
mod admin_unfound;
pub mod client_op;
mod clock;
pub mod copies;
pub mod core;
#[cfg(test)]
mod core_test;
#[cfg(test)]
mod core_watch_test;
pub mod daemon;
mod flights;
pub mod fullness;
pub mod gate;
pub mod heartbeat;
pub mod host;
mod host_backfill;
mod host_background;
mod host_lease;
mod host_ops;
mod host_recovery;
mod host_repair;
pub mod host_scrub;
mod host_split;
mod host_trim;
mod host_trim_count;
mod host_watch;
pub mod images;
mod jobs;
pub mod map;
pub mod net;
pub mod osd_map;
mod overridden;
pub mod peer_net;
pub mod perf;
pub mod rooms;
pub mod session;
pub mod settings;
pub mod stats;
pub mod superblock;
pub mod tracker;

pub use daemon::{OsdConfig, OsdHandle, StartError, mkfs, start};
