//! A metadata server as a pure state machine.
//!
//! A server takes [`Event`]s (requests, words about capabilities, what was read, what is durable)
//! and is then drained of [`Action`]s (answer, append to the log, read, write to its place). It
//! does no I/O, reads no clock and draws no random numbers, so that a run of it is decided by its
//! events alone.
//!
//! ```text
//! request ─► scheduler ─► what it needs: read? ──► caps in its way? ──► done in one step
//!                          ▲ ReadEntry, ReadPage    ▲ Revoke               │
//!                          └──── again ─────────────┘                      ▼
//!    Reply ◄── durable ◄── Appended ◄── Append ◄── entries that changed, as they are now
//!                                                         │
//!                                      WriteDir ◄── later, many changes of a directory at once
//! ```
//!
//! * Words: [`types`], [`request`], [`caps`] (what excludes what), [`rights`], [`conf`].
//! * The seam: [`event`], [`action`], and between owners [`peer`].
//! * The machine: [`machine`].
//!
//! `docs/decisions/0019-metadata-server.md` says why it is so, and what is not there.

pub mod action;
pub mod caps;
pub mod conf;
pub mod event;
pub mod machine;
pub mod peer;
pub mod request;
pub mod rights;
pub mod types;

pub use action::{Action, CapsMessage, CapsOp, DirHead, LeaseEnd, SessionMessage, Tables};
pub use conf::{Bounds, Bug, Conf};
pub use event::{CapAttrs, CapsUpdate, Claim, Event, SessionEvent, Token};
pub use machine::{
    Complaints, Executed, Mds, Memory, Replay, ReplayError, ShownCap, ShownDir, ShownInode,
    TenantUse,
};
pub use request::{
    CapGrant, Extra, FileLock, FilePath, InodeStat, LayoutHints, Lease, LockKind, LockRequest,
    LockType, Op, Release, Reply, Request, SetAttr, TraceDentry, XattrMode,
};
pub use rights::{Grant, Rights};
pub use types::{
    Batch, Chance, ClientId, Dentry, DirFrag, DirStat, Frag, Ino, Inode, Layout, Name, NestStat,
    Promise, Quota, Rank, SessionRecord, Space, Split, Steady,
};
