//! Operations on objects: what they mean, and what they change.
//!
//! Nothing here knows placement groups' peers, sockets, tasks or clocks: `now` and random bytes
//! are arguments, objects are read through [`ObjectReader`].
//!
//! * [`code`]: the operations and views on them; [`info`]: what a request may do.
//! * [`object`]: what is kept about an object; [`watch`]: the connections, pings and notifications
//!   of the clients that watch it.
//! * [`exec`]: execution, with [`attrs`], [`omap`], [`snaps`], [`watch_op`], [`copy`], [`tmap`] and
//!   [`checksum`] for its parts; [`class`]: what methods of object classes see.
//! * [`seal`]: from an executed request to log entries and a transaction; [`txn`]: the changes that
//!   the store takes and that replicas decode.
//! * [`coded`]: what changes come to on shards of erasure-coded pools.
//! * [`reader`]: the seam to the store, [`store_reader`] the store behind it.
//! * [`pgls`]: listing a PG; [`small`]: memory of small data.

#![forbid(unsafe_code)]
// Tests begin at some moment; from there on, they say what time it is.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

pub mod attrs;
pub mod checksum;
pub mod class;
pub mod code;
pub mod coded;
pub mod copy;
pub mod exec;
#[cfg(test)]
mod exec_test;
pub mod info;
pub mod object;
pub mod omap;
pub mod pgls;
pub mod reader;
pub mod seal;
pub mod small;
pub mod snaps;
pub mod store_reader;
pub mod tmap;
pub mod txn;
pub mod watch;
pub mod watch_op;
#[cfg(test)]
mod watch_test;

pub use code::{Op, OpArgs, OpCode, OpExt, OpFlags, OpOutcome, OsdFlags};
pub use exec::{Env, Exec, Limits, WatchEnv};
pub use info::OpInfo;
pub use reader::{OI_ATTR, ObjectReader, OmapRows, SS_ATTR};
pub use seal::Sealed;
