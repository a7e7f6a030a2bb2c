//! Statistics of placement groups, pools and OSDs: gathered by the manager, digested for the
//! monitors, and shown to people. Ceph's counterparts are `PGMap` and `PGMapDigest`
//! (`src/mon/PGMap.cc`).
//!
//! * [`map`]: everything the manager knows, from the OSDs' reports;
//! * [`digest`]: the part that the monitors need, small however many groups there are;
//! * [`summary`], [`df`]: `ceph -s`, `ceph pg stat`, `ceph df`;
//! * [`health`]: health checks that follow from group states, [`pings`]: and from how long OSDs'
//!   pings take;
//! * [`jobs`]: background work, done and left;
//! * [`table`], [`units`]: how Ceph lays out tables and writes numbers.

#![forbid(unsafe_code)]

pub mod df;
pub mod digest;
pub mod health;
pub mod jobs;
pub mod map;
pub mod pings;
pub mod summary;
pub mod table;
pub mod units;

pub use digest::{ClientLatency, Digest, Rates};
pub use jobs::Job;
pub use map::PgMap;
pub use pings::PingLimits;
