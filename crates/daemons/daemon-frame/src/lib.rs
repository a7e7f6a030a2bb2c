//! What every daemon does alike: it begins a session with the monitors, takes its configuration
//! from them, admits peers by its service's rotating secrets, tells of its host, answers commands
//! of operators, and stops on a signal.
//!
//! * [`Frame`]: configuration, session and admission of a running daemon. [`Options`],
//!   [`StartError`]: its start.
//! * [`commands`]: the commands that all daemons have, and how their answers travel.
//!   [`AdminSocket`]: how `ceph daemon` reaches them.
//! * [`host`], [`device`]: facts for `ceph osd metadata` and its siblings.
//! * [`metrics`]: a daemon's counters for Prometheus.
//! * [`threads`]: a daemon on a thread of its own, from its start to its end.
//!
//! `docs/decisions/0030-daemon-frame.md` says what a daemon keeps to itself.

#![forbid(unsafe_code)]

mod admin_socket;
pub mod commands;
pub mod device;
mod frame;
pub mod host;
pub mod metrics;
mod options;
pub mod threads;

pub use admin_socket::{AdminSocket, Handler};
pub use frame::{Frame, send};
pub use options::{Options, StartError, version_facts};
