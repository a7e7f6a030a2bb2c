//! Operations on objects: what they are, what they may do, and their execution.
//!
//! * [`code`]: the operations and views on them; [`info`]: what a request may do.
//! * [`exec`]: execution, with [`attrs`], [`omap`], [`snaps`], [`watch`], [`copy`], [`tmap`] and
//!   [`checksum`] for its parts.
//! * [`seal`]: from an executed request to log entries and a transaction.
//! * [`reader`]: the seam to the store; [`class`]: what methods of object classes see.
//! * [`pgls`]: listing a PG.

pub mod attrs;
pub mod checksum;
pub mod class;
pub mod code;
pub mod copy;
pub mod exec;
#[cfg(test)]
mod exec_test;
pub mod info;
pub mod omap;
pub mod pgls;
pub mod reader;
pub mod seal;
pub mod snaps;
pub mod store_reader;
pub mod tmap;
pub mod watch;

pub use code::{Op, OpArgs, OpCode, OpExt, OpFlags, OpOutcome, OsdFlags};
pub use exec::{Env, Exec, Limits};
pub use info::OpInfo;
pub use reader::{OI_ATTR, ObjectReader, OmapRows, SS_ATTR};
pub use seal::Sealed;
pub use watch::WatchEnv;
