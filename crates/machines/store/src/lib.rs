//! The object store on one file or block device.
//!
//! A [`Store`] keeps collections of objects. An object has bytes, attributes and an omap (ordered
//! rows and one header). Everything changes through a [`Transaction`]: [`Store::submit`] checks it
//! and applies it to memory at once, so that any later read sees it, and hands out a [`Commit`]
//! that resolves when the transaction is durable. Commits resolve in the order of submission.
//!
//! The store knows no placement groups and no object naming: a collection is a small number
//! ([`Coll`]), a key is a byte string ordered by `memcmp` ([`Key`]).
//!
//! It lives on one single-threaded reactor (a tokio `current_thread` runtime with a `LocalSet`);
//! every handle is `!Send`. What is cached in memory is answered without yielding.

mod alloc;
#[cfg(test)]
mod alloc_test;
#[doc(hidden)]
pub mod bench;
mod block_crc;
mod check;
mod codec;
mod commit;
#[cfg(test)]
mod decode_test;
pub mod dev;
mod engine;
mod error;
mod log;
mod mem;
mod onode;
mod options;
mod report;
mod store;
mod superblock;
mod tree;
#[cfg(test)]
mod tree_test;
mod txn;
mod types;
mod undo;
mod window;

pub use commit::Commit;
pub use dev::{Device, Engine};
pub use error::StoreError;
pub use options::{Budgets, Options};
pub use report::{DumpReport, FsckProblem, FsckReport, ObjectDump};
pub use store::{Store, Usage};
pub use txn::{Change, Op, Transaction, object_room};
pub use types::{
    AllocHint, BLOCK, Buffers, Coll, Key, ListPage, OmapPage, Range, Stat, StatFs, WriteHint,
};
pub use undo::{Kept, Undo};
pub use window::{RowRange, Window};
