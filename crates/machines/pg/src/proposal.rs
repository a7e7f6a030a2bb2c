//! How the host asks for a change, and what it must ask before.

use std::collections::BTreeMap;

use bytes::Bytes;
use ec::ShardSet;
use smallvec::SmallVec;
use types::{Eversion, ObjectId, ReqId, ShardId, SnapId, Utime};

use crate::log_entry::LogOp;
use crate::msg::Payload;
use crate::stats::StatSum;

/// The host's name for an operation that it proposed. Chosen by the host; unique among those in
/// flight.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct OpToken(pub u64);

/// Names one request to persist. Ascending within the life of a [`Pg`](crate::Pg).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct PersistToken(pub u64);

/// Names one read of a whole object for recovery.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ReadToken(pub u64);

/// A change that the host has worked out and wants replicated.
///
/// The host asked [`Pg::next_version`](crate::Pg::next_version) first, because the version is part
/// of the object info inside the payload: entry `i` gets that version plus `i`.
#[derive(Debug)]
pub struct Proposal {
    /// Returned in [`Action::Reply`](crate::Action::Reply).
    pub token: OpToken,
    /// One log entry for each object changed, in order. Rarely more than one (a clone, then its
    /// head).
    pub entries: SmallVec<[NewEntry; 1]>,
    /// What other copies apply; the primary's own form stays with the host under `token`.
    pub payloads: Payloads,
    /// How the PG's totals change.
    pub stats: StatSum,
}

/// What other copies than the primary's apply of a change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Payloads {
    /// All the same.
    Same(Payload),
    /// Each what is for its position. A change that is about a position names it here if some other
    /// copy has that position, also one at the primary's own ([`Pg::tells`](crate::Pg::tells)).
    Each(BTreeMap<ShardId, Payload>),
}

impl Default for Payloads {
    fn default() -> Self {
        Self::Same(Payload::default())
    }
}

impl Payloads {
    /// What the copy at a position applies; `None` if nothing is said of that.
    pub fn at(&self, position: ShardId) -> Option<Payload> {
        match self {
            Self::Same(payload) => Some(payload.clone()),
            Self::Each(payloads) => payloads.get(&position).cloned(),
        }
    }
}

/// A log entry that has no version yet (see [`LogEntry`](crate::LogEntry) for the fields).
#[derive(Clone, Debug)]
pub struct NewEntry {
    /// What happens to the object.
    pub op: LogOp,
    /// The object.
    pub oid: ObjectId,
    /// The object's version before; zero if it does not exist; of a clone, that of its head. A
    /// wrong zero loses the object when the entry turns out divergent.
    pub prior_version: Eversion,
    /// The object's user-visible version after.
    pub user_version: u64,
    /// The request; default for internal changes, which are not recognised when resent.
    pub reqid: ReqId,
    /// Modification time.
    pub mtime: Utime,
    /// The result to give when the request is resent (0, or the error of an [`LogOp::Error`]
    /// entry).
    pub return_code: i32,
    /// The snapshots a clone belongs to.
    pub snaps: Vec<SnapId>,
    /// Result and output of each op, kept if the client asked for them (`CEPH_OSD_FLAG_RETURNVEC`).
    pub op_returns: Vec<(i32, Bytes)>,
    /// Shards that the change is about, whether or not they are there; those that may lead are
    /// added. Empty where copies are whole.
    pub written: ShardSet,
}

/// A resent request that was already executed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dup {
    /// The version that the first execution got.
    pub version: Eversion,
    /// The user-visible version to report.
    pub user_version: u64,
    /// The result to report.
    pub return_code: i32,
    /// Per-op results, if they were kept.
    pub op_returns: Vec<(i32, Bytes)>,
    /// False while replicas still write it: the host must wait for the
    /// [`Action::Reply`](crate::Action::Reply) with this version.
    pub committed: bool,
}

/// What an operation on an object must wait for.
///
/// The host asks before it executes an operation (and before it looks for a [`Dup`]: a resent write
/// must not be answered while a replica lacks the object).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ObjectStatus {
    /// Reads and writes may run.
    Ready,
    /// A write may run. A read must wait for the replies to all writes of this object that are in
    /// flight, otherwise it may return what a failure takes back.
    InFlight,
    /// A read may run (unless the object also has writes in flight); a write must wait for
    /// [`Action::ObjectReady`](crate::Action::ObjectReady), because a replica lacks the object.
    Degraded,
    /// The primary lacks the object: everything waits for
    /// [`Action::ObjectReady`](crate::Action::ObjectReady).
    Missing,
    /// As `Missing`, and no reachable OSD has it.
    Unfound,
}

/// Why a proposal was refused: the PG is not active here, or not with the version that it was made
/// for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the placement group is not active on this OSD")]
pub struct NotActive;
