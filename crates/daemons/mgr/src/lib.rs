//! The manager: gathers the OSDs' statistics, tells the monitors what they need of them, and serves
//! the commands that read them.
//!
//! * [`state`] -- what the manager knows, without I/O;
//! * [`commands`] -- the table of its commands;
//! * [`rbd`] -- what it does for block devices;
//! * [`volumes`] -- subvolumes of file systems;
//! * [`qos`] -- reads what tenants are promised; the crate `promises` divides it over OSDs;
//! * [`prometheus`] -- metrics;
//! * [`autoscaler`] -- when pools get another number of groups, without I/O;
//! * [`balancer`] -- settings and plans of the balancer, without I/O;
//! * [`client_stats`] -- what clients of file systems count, without I/O;
//! * [`counters`] -- what metadata servers count, without I/O;
//! * [`crash`] -- reports of crashes, without I/O;
//! * [`health_history`] -- health checks that were raised, without I/O;
//! * [`services`] -- daemons of other programs that register, without I/O;
//! * [`telemetry`] -- settings of reports about the cluster;
//! * [`server`] -- sessions with monitors, OSDs and clients.

#![forbid(unsafe_code)]

pub mod autoscaler;
pub mod balancer;
pub mod client_stats;
pub mod commands;
pub mod counters;
pub mod crash;
pub mod health_history;
pub mod latency;
pub mod prometheus;
pub mod qos;
pub mod rbd;
pub mod server;
pub mod services;
pub mod state;
pub mod telemetry;
pub mod volumes;

pub use server::daemon;
