//! Deterministic simulation of a cluster.
//!
//! One thread, virtual time, one seed: OSDs that drive real [`pg`] machines over disks that lose
//! unflushed transactions, a network that delays and drops with crashes, monitors, clients that
//! resend. Faults under load, then calm; then the history must have an explanation and the replicas
//! must be identical.
//!
//! A failing seed prints the line that replays it:
//!
//! ```text
//! SIPHON_SIM_SEED=1234 SIPHON_SIM_TRACE=1 cargo test -p sim --test seeds one_seed -- --nocapture
//! ```
//!
//! * [`scenario`]: what a run is made of, and what it came to. [`bug`]: what is put back to see it
//!   caught.
//! * [`world`]: time and what happens in it; its parts are the network, monitors, their elections
//!   and sessions, faults, damage, operators, clients and the judgement. [`Scenario`] in,
//!   [`Report`] out.
//! * [`osd`]: the host of PGs; its parts are maps, requests of clients, and the actions of the
//!   machines.
//! * [`request`], [`object`], [`content`], [`cells`], [`snaps`], [`change`]: what clients ask for,
//!   what objects hold, what snapshots make of them, what replicas are told.
//! * [`map`], [`monitor`], [`quorum`]: the cluster's map, how it is decided on, and which monitor
//!   knows of it.
//! * [`disk`], [`history`], [`rng`]: what they say.
//! * [`oracle`]: what must be true across OSDs after every event.

#![forbid(unsafe_code)]

pub mod bug;
pub mod cells;
pub mod change;
pub mod content;
pub mod disk;
pub mod history;
pub mod map;
pub mod monitor;
pub mod object;
pub mod oracle;
pub mod osd;
pub mod quorum;
pub mod request;
pub mod rng;
pub mod scenario;
pub mod snaps;
pub mod world;

pub use bug::Bug;
pub use scenario::{Coded, Report, Scenario};
pub use world::run;
