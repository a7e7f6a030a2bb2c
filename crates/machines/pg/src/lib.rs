//! A placement group as a pure state machine.
//!
//! A PG takes [`Event`]s (maps, messages from peers, commits, finished reads, client proposals) and
//! is then drained of [`Action`]s (persist, send, reply, read, ask the monitor). It does no I/O,
//! reads no clock and draws no random numbers, so that a run of it is decided by its events alone.
//!
//! ```text
//!          AdvanceMap*, ActivateMap                    propose()
//!                  │                                      │
//!   ┌──────────────▼────────────────┐          ┌──────────▼───────────┐
//!   │ peering: infos, log, missing, │  Active  │ replication: Persist │
//!   │ up_thru, activation           ├─────────►│ + RepOp, then Reply  │
//!   └──────────────▲────────────────┘          └──────────┬───────────┘
//!                  │ new interval                         │ missing objects
//!                  └──────────────────────────────────────┤
//!                                              ┌──────────▼───────────┐
//!                                              │ recovery: pull, push │──► Clean
//!                                              └──────────────────────┘
//! ```
//!
//! The algorithm is Ceph's log-based peering (`doc/dev/peering.rst`, `src/osd/PeeringState.h`,
//! `src/osd/PGLog.h`); `docs/decisions/0003-placement-groups.md` says what was kept and what was
//! left out.
//!
//! * Words: [`map`] (what the machine must know of an OSDMap), [`members`] (up and acting sets),
//!   [`info`], [`lease`], [`log_entry`], [`msg`], [`PgState`].
//! * What differs between kinds of pools: [`backend`]; which changes count in those with erasure
//!   codes: [`shards`].
//! * The seam: [`event`], [`action`], [`proposal`], [`rows`] (what is kept on disk).
//! * Structures: [`log`], [`missing`], [`merge`], [`past_intervals`], [`prior_set`], [`reserver`],
//!   [`places`].
//! * The machine: [`machine`]; [`creation`] decides which OSD instantiates a new PG.

#![forbid(unsafe_code)]
// Tests begin at some moment; from there on, they say what time it is.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

pub mod action;
pub mod backend;
pub mod conf;
pub mod creation;
pub mod event;
pub mod info;
pub mod lease;
pub mod log;
pub mod log_entry;
pub mod machine;
pub mod map;
pub mod members;
pub mod merge;
pub mod missing;
pub mod msg;
pub mod past_intervals;
pub mod places;
pub mod prior_set;
pub mod proposal;
pub mod reserver;
pub mod rows;
pub mod scrub;
pub mod scrub_schedule;
pub mod shard_read;
pub mod shards;
pub mod snap_mapper;
pub mod stats;

pub use action::{Action, Peers, Persist, Source};
pub use action::{Join, SplitOff};
pub use backend::{Backend, Erasure, PoolKind, Replicated};
pub use conf::PgConf;
pub use event::Event;
pub use info::{Backfill, PgHistory, PgInfo, ScrubSummary};
pub use lease::{Promise, Steady};
pub use log_entry::{LogEntry, LogOp};
pub use machine::{
    BackfillStatus, GiveUp, Holder, Incomplete, Lacking, LostRefused, PeeringStatus, Pg, RuledOut,
    ScrubResults, StateHistory, Stay, StayTimes, WaitsFor,
};
pub use map::{MapRef, MapView, Mapping, MergeMeta, PoolView};
pub use members::Members;
pub use msg::{Listing, ObjectChunk, Payload, PeerHeader, PeerMsg, Progress};
pub use past_intervals::PastIntervals;
pub use places::Places;
pub use proposal::{
    Dup, NewEntry, NotActive, ObjectStatus, OpToken, Payloads, PersistToken, Proposal, ReadToken,
};
pub use reserver::{Reserver, Side, Turn, Wish};
pub use rows::{LoadError, RowBatch};
pub use scrub::{ScrubKind, ScrubMap, ScrubObject};
pub use shard_read::{ShardAnswer, ShardBytes, ShardQuery};
pub use stats::StatSum;
pub use types::PgState;
