//! The metadata server of a file system, as a daemon.
//!
//! * [`Server`]: its session with the monitors, beacons, and the state that the map gives it.
//! * `state`: which state it asks for next.
//!
//! `docs/decisions/0023-metadata-server-daemon.md` says why it is so, and what is not there.

#![forbid(unsafe_code)]

mod server;
mod state;

pub use server::{Ended, Options, Server, StartError};
pub use state::compat;
