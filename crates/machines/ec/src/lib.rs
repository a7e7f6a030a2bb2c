//! Erasure coding without I/O: the code itself, what profiles say, and what a write or a read of an
//! object touches.
//!
//! * [`Code`] is Reed-Solomon over GF(2^8): parity is a matrix times data. It encodes, applies
//!   changes of data to parity, and rebuilds shards from any `k` others ([`Recipes`]).
//! * [`Profile`] is what an erasure code profile says, with Ceph's defaults and checks.
//! * [`Layout`] says which byte of an object is on which shard.
//! * [`WritePlan`], [`ReadPlan`] and [`RebuildPlan`] say what an operation reads and writes where,
//!   whichever way costs least, and make of the bytes what shards or clients get.
//! * [`Stripes`] keeps bytes of objects that are being changed, so that the next change reads
//!   nothing again.
//!
//! Bytes are those of Ceph's plugins `jerasure` (`reed_sol_van`) and `isa` (`reed_sol_van`,
//! `cauchy`); `tests/oracle.rs` compares them with Ceph's tool where that is installed.
//!
//! Unsafe code is in [`kernel`] only: loads, stores, and calls of functions that need instructions
//! of which the processor was asked.

#![deny(unsafe_code)]

mod code;
mod extents;
mod field;
mod kernel;
mod layout;
mod matrix;
mod plan;
mod profile;
mod shards;
mod stripes;

pub use code::{Code, CodeError, Recipe, Recipes, Technique, delta};
pub use extents::Extents;
pub use kernel::{Kernel, multiply, multiply_with};
pub use layout::{Layout, LayoutError, UNIT_ALIGN_BYTES};
pub use matrix::{Matrix, Prepared};
pub use plan::{
    Band, Change, Cost, How, Pieces, PlanError, ReadPlan, Rebuild, RebuildPlan, ShardExtents,
    ShardOp, ShardWrite, Sources, WritePlan,
};
pub use profile::{Profile, ProfileError, Settings};
pub use shards::{Shard, ShardSet};
pub use stripes::{Stripe, Stripes};
