//! The monitor: the replicated cluster state and the daemon that serves it.

pub mod command;
pub mod replica;
