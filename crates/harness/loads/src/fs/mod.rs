//! Clients of a file system, several in one process, that do what smallfile does: create, stat and
//! unlink empty files, in directories of their own or in one for all; and read a large directory
//! beside a client that creates.
//!
//! A client ([`fs_client::Mount`]) has a session of its own and one request under way. It keeps no
//! capability and caches nothing: each stat reaches the server, as it does with other clients after
//! their cache was dropped. Every answer is compared with what the client did before.

pub mod cli;
mod mounts;
mod work;

pub use cli::{Options, run};
