//! The OSD: serves clients' operations on objects, keeps them on a store, replicates them through
//! placement groups.
//!
//! * [`op`]: what operations mean; [`txn`]: what they change; [`object`]: what is kept about an object.
//! * [`perf`], [`tracker`]: what an operator can see.

pub mod object;
pub mod op;
pub mod perf;
pub mod tracker;
pub mod txn;
