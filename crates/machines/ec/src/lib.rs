//! Erasure coding without I/O: the code itself, what profiles say, and what a write or a read of an
//! object touches.
//!
//! * [`Code`] is Reed-Solomon over GF(2^8): parity is a matrix times data. It encodes, applies
//!   changes of data to parity, and rebuilds shards from any `k` others ([`Recipes`]).
//!
//! Bytes are those of Ceph's plugins `jerasure` (`reed_sol_van`) and `isa` (`reed_sol_van`,
//! `cauchy`); `tests/oracle.rs` compares them with Ceph's tool where that is installed.
//!
//! Unsafe code is in [`kernel`] only: loads, stores, and calls of functions that need instructions
//! of which the processor was asked.

#![deny(unsafe_code)]

mod code;
mod field;
mod kernel;
mod matrix;
mod shards;

pub use code::{Code, CodeError, Recipe, Recipes, Technique, delta};
pub use kernel::{Kernel, multiply, multiply_with};
pub use matrix::{Matrix, Prepared};
pub use shards::{Shard, ShardSet};
