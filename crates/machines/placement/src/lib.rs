//! Where placement groups should be: which upmaps even a cluster out, how even it is, and how data
//! moves under control.
//!
//! Everything here is a function of a map and of what is known of it. Nothing does I/O.
//!
//! * [`upmap`] -- the upmap of one PG, and the one that gives a wanted placement;
//! * [`balance`] -- proposals of upmaps;
//! * [`eval`] -- scores of a distribution, as `ceph balancer eval` shows them;
//! * [`leads`] -- proposals of primaries;
//! * [`movement`] -- movement of data as a job;
//! * [`pace`] -- how much of its limits such a job uses, and when it ends;
//! * [`reweight`] -- `osd reweight-by-utilization` and `reweight-by-pg`.

#![forbid(unsafe_code)]

pub mod balance;
pub mod eval;
pub mod leads;
pub mod movement;
pub mod pace;
pub mod reweight;
mod scan;
pub mod stats;
pub mod upmap;

pub use stats::{Stats, Usage};
pub use upmap::Upmap;

#[cfg(test)]
mod balance_test;
#[cfg(test)]
mod movement_test;
#[cfg(test)]
mod testing;
