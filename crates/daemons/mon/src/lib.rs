//! The monitor: the replicated cluster state, and the daemon that serves it.
//!
//! * [`state`]: what all monitors agree on, as a deterministic state machine; [`replica`]: its
//!   replication and storage.
//! * [`moves`]: movement jobs; [`pg_num`]: how the number of PGs of a pool goes to its target.
//! * [`command`]: how commands are declared and parsed; [`commands`]: the commands.
//! * [`osd_state`]: the rules by which the OSD map changes; [`mgr_map`]: those of the manager map;
//!   [`config_db`]: configuration per entity.
//! * [`mkfs()`]: a new cluster; [`Monitor`]: the daemon; [`Survivor`]: what is left of one that
//!   lost its fellows.

#![forbid(unsafe_code)]

pub use command;
pub mod commands;
pub mod config_db;
mod lag;
pub mod mds_map;
pub mod mgr_map;
pub mod mkfs;
pub(crate) mod monitor;
pub mod moves;
pub mod osd_state;
pub mod pg_num;
pub mod replica;
mod rescue;
pub mod state;

pub use mkfs::{Layout, LayoutError, MkfsArgs, mkfs, mkfs_member};
pub use monitor::{Monitor, NotCommitted, StartError, StartOptions};
pub use rescue::{RescueError, Survivor};
