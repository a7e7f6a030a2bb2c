//! Deterministic simulation of a cluster.
//!
//! One thread, virtual time, one seed: OSDs that drive real [`pg`] machines over disks that lose unflushed
//! transactions, a network that delays and drops with crashes, a monitor, clients that resend. Faults under
//! load, then calm; then the history must have an explanation and the replicas must be identical.
//!
//! A failing seed prints the line that replays it:
//!
//! ```text
//! SIPHON_SIM_SEED=1234 SIPHON_SIM_TRACE=1 cargo test -p sim --test seeds one_seed -- --nocapture
//! ```
//!
//! * [`world`]: time, network, clients, faults, judgement. [`Scenario`] in, [`Report`] out.
//! * [`osd`]: the host of PGs. [`disk`], [`monitor`], [`history`], [`rng`]: what they say.
//! * [`oracle`]: what must be true across OSDs after every event.

pub mod disk;
pub mod history;
pub mod monitor;
pub mod oracle;
pub mod osd;
pub mod rng;
pub mod world;

pub use osd::Bug;
pub use world::{Report, Scenario, run};
