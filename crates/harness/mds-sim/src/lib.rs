//! Deterministic simulation of a metadata server.
//!
//! One thread, virtual time, one seed: the real [`mds`] machine over objects that apply writes when
//! they like, clients that cache what their capabilities allow, a network that delays. The server
//! is killed between any two of its actions and replays its log. Then the history must have an
//! explanation ([`model`]), and what is at rest must be what the model has.
//!
//! A failing seed prints the line that replays it:
//!
//! ```text
//! SIPHON_SIM_SEED=7 SIPHON_SIM_TRACE=1 cargo test -p mds-sim --test seeds one_seed -- --nocapture
//! ```
//!
//! * [`world`]: time and what happens in it. [`client`]: clients, and what they cache.
//! * [`mod@bench`]: one request at a time. [`disk`]: what is at rest.
//! * [`model`]: what a file system is. [`scaling`]: how much several owners do. [`shares`]: what
//!   subvolumes get of one. [`mod@takeover`]: how long clients wait for a successor.

pub mod bench;
pub mod client;
pub mod disk;
pub mod model;
pub mod scaling;
pub mod shares;
pub mod takeover;
pub mod world;

pub use world::{Report, Scenario, run};
