//! The metadata server of a file system, as a daemon: it runs the core of the crate `mds`.
//!
//! * `server`: its session with the monitors, beacons, and the state that the map gives it.
//!   `state`: which state it asks for next.
//! * `rank`: the core with what carries its actions out. `rank::load`: how it begins, and in what
//!   form it is left; `rank::work`: reads, writes, the log; `rank::sessions`: clients.
//!   `rank::forward`, `rank::onward`: requests that go on at another rank; `rank::exports`: clients
//!   of what moves there; `peers`: words between servers.
//! * `store`: objects; `log`: those of the log; `follow`: a server that reads it ahead of a
//!   takeover. `at_rest`: inodes and entries in Ceph's form. `convert`: messages.
//! * `report`: what the manager is told; `rank::counted`: what clients count.
//! * `rights`: what a client may do. [`commands`]: `ceph tell` and the admin socket; `dump`: the
//!   cache as it is shown.
//!
//! `docs/decisions/0023-metadata-server-daemon.md` says why it is so, and what is not there.

#![forbid(unsafe_code)]

mod at_rest;
mod claim;
pub mod commands;
mod convert;
mod dump;
mod follow;
mod log;
mod mark;
mod peers;
mod rank;
mod report;
mod rights;
mod server;
mod state;
mod store;

pub use server::daemon;
pub use state::compat;
