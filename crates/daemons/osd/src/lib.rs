//! The OSD: serves clients' operations on objects, keeps them on a store, replicates them through
//! placement groups.
//!
//! Operations on objects are the crate `objops`.
//!
//! * [`core`]: one OSD without its network; [`host`]: a copy of a PG on it, with `host_ops`
//!   (requests), `host_execute` (their execution), `host_background`, `host_backfill`,
//!   `host_recovery`, `host_rebuild`, `host_repair`, `host_scrub`, `host_split`, `host_trim`,
//!   `host_watch`, `host_lease`, `host_rooms` and `host_jobs` for what it does; [`gate`]: order of
//!   operations on one object.
//! * What they keep: [`collections`] (where a PG is in the store), `flights` (changes under way),
//!   [`scrubs`], [`trims`], `clones`, `coding`, `jobs`, `reservations` (which PGs may do what),
//!   [`rooms`] (which OSDs have room), `waits` (requests that wait, and for what), `backoffs`
//!   (clients that hold back), `watch_clock`.
//! * The seams: [`map`] (the cluster map), [`peer_net`] (other OSDs), [`client_op`] (clients, and
//!   the crate `admission`, which decides what is done next).
//! * `shard`: the core as the daemon sees it, with `shard_admin` for what operators ask it.
//! * [`daemon`]: shards with store, monitors and network around it; [`superblock`], [`session`],
//!   [`settings`], [`fullness`], [`osd_map`], [`net`], [`heartbeat`], [`copies`] are its parts.
//! * [`perf`], [`tracker`], [`stats`], [`admin`]: what an operator can see and do.

pub mod admin;
mod admin_collect;
mod admin_query;
mod admin_unfound;
mod backoffs;
pub mod client_op;
mod clock;
mod clones;
mod coding;
pub mod collections;
pub mod copies;
pub mod core;
#[cfg(test)]
mod core_balanced_test;
#[cfg(test)]
mod core_coded_test;
#[cfg(test)]
mod core_test;
#[cfg(test)]
mod core_together_test;
#[cfg(test)]
mod core_watch_test;
pub mod daemon;
mod flights;
pub mod fullness;
pub mod gate;
pub mod heartbeat;
mod hedge;
pub mod host;
mod host_backfill;
mod host_background;
mod host_coded;
mod host_execute;
mod host_jobs;
mod host_lease;
mod host_ops;
mod host_rebuild;
mod host_recovery;
mod host_repair;
mod host_rooms;
pub mod host_scrub;
mod host_shards;
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
mod reservations;
pub mod rooms;
mod run_now;
pub mod scrubs;
pub mod session;
pub mod settings;
mod shard;
mod shard_admin;
pub mod stats;
pub mod superblock;
pub mod tracker;
pub mod trims;
mod waits;
mod watch_clock;

pub use daemon::{OsdConfig, OsdHandle, StartError, mkfs, start};
