//! The monitor: the replicated cluster state and the daemon that serves it.

pub use ::command;
pub mod replica;
