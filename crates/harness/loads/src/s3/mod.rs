//! A load generator for S3 that verifies every answer.
//!
//! Workers share nothing: each has a connection and keys of its own ([`keys`]), and knows what was
//! acknowledged of them. A body follows from bucket, key and version ([`content`]), so a read is
//! compared with the newest acknowledged version, and a list with the keys that are there. A key
//! of which a change failed without an answer is left out until the next change.

pub mod cli;
pub mod content;
pub mod keys;
pub mod mix;
pub mod request;
pub mod wire;
pub mod work;

pub use cli::{Options, Session};
