//! What an OSD causes, and what of it takes time.

use bytes::Bytes;
use pg::{
    Backfill, ObjectChunk, Peers, Progress, ReadToken, ScrubKind, ShardQuery, Side, Steady, Turn,
};
use types::{Epoch, Eversion, ObjectId, PgShard, SnapId, SpgId};

use crate::history::Did;
use crate::monitor::MonMsg;
use crate::request::ClientOp;
use crate::snaps::After;

/// What an answer is made of.
#[derive(Clone, Debug)]
pub struct Proof {
    /// The PG.
    pub pgid: SpgId,
    /// The map of the OSD that answers.
    pub epoch: Epoch,
    /// Since when its interval lasts.
    pub since: Epoch,
    /// The acting set in it.
    pub acting: Vec<PgShard>,
    /// Those of them that must have the change.
    pub named: Vec<PgShard>,
    /// The version of the change.
    pub version: Option<Eversion>,
    /// It is answered when all copies have it, and was not before.
    pub first: bool,
}

/// How an OSD would serve clients of a PG.
#[derive(Clone, Copy, Debug)]
pub struct Serves {
    /// How many bits of a hash decide that an object is in the PG.
    pub bits: u32,
    /// Since when its interval lasts.
    pub since: Epoch,
    /// It leads the PG.
    pub primary: bool,
}

/// What an OSD causes outside.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "a model need not be fast")]
pub enum Effect {
    /// A message to peers, encoded.
    Peer {
        /// Receivers.
        to: Peers,
        /// Front.
        front: Bytes,
        /// Data.
        data: Bytes,
    },
    /// A message to the monitor.
    Mon(MonMsg),
    /// An answer to a client.
    Answer {
        /// The client that asked.
        client: usize,
        /// Which request.
        tid: u64,
        /// What was done.
        did: Did,
        /// Of what the answer is made.
        proof: Proof,
    },
    /// A change was proposed.
    Proposed {
        /// Which object.
        object: u64,
        /// Its version.
        version: Eversion,
        /// What clients see after it.
        after: After,
    },
    /// The disk has work up to here.
    Flush(u64),
    /// The operation cannot be done here, or has failed: an error that says nothing of the object.
    Refused {
        /// The client that asked.
        client: usize,
        /// Which request.
        tid: u64,
        /// The primary should be asked.
        again: bool,
    },
    /// A line of the cluster log that says that something is wrong.
    Complaint(String),
    /// Something is wrong.
    Wrong(String),
    /// A PG wants to be woken.
    Wake(SpgId, Steady),
    /// Objects that were given up; it is durable everywhere.
    GaveUp(Vec<ObjectId>),
    /// Something of a PG that takes time.
    Later(SpgId, Local),
}

/// Something of a PG that takes time.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "a model need not be fast")]
pub enum Local {
    /// A recovery grant.
    Grant,
    /// The turn of a read for recovery has come.
    ReadObject(ReadObject),
    /// It is done.
    Read(ReadToken, Option<ObjectChunk>),
    /// A write was prepared, in this interval, while others went on.
    Execute(u64, ClientOp),
    /// Objects for a comparison are to be listed.
    List(ReadToken, Backfill, usize),
    /// A turn was given or taken back; of groups that others lead, if so.
    Turn(Turn<SpgId>, Side),
    /// There is no room for a backfill, for a while.
    TooFull(u8),
    /// There may be room for it.
    Room(u8),
    /// A step of removal.
    RemoveObjects(usize),
    /// Shards of an object are to be made of others.
    Rebuild(Rebuild),
    /// The turn of a read of this shard has come.
    ReadShard(ReadToken, ShardQuery),
    /// Reads of shards have waited long.
    Hedge(u64),
    /// Operations that wait are tried again.
    RunWaiting,
    /// An object was read, in this interval.
    ReadDone(u64, ClientOp, Option<u64>),
    /// The moment has come that the PG asked for.
    Wake,
    /// A scrub wants to know what is in a range.
    Scan(ReadToken, Backfill, Backfill),
    /// A scrub wants its turn.
    ScrubSlot,
    /// A scrub that follows from another.
    Scrub(ScrubKind),
    /// The turn to trim a snapshot has come, in this interval.
    TrimTurn(u64, SnapId),
    /// The next clone of a snapshot is to be trimmed, in this interval.
    Trim(u64, SnapId),
}

/// What [`pg::Action::ReadObject`] asks for.
#[derive(Clone, Debug)]
pub struct ReadObject {
    /// Goes into the answer.
    pub token: ReadToken,
    /// The object, in this version.
    pub oid: ObjectId,
    /// Its version.
    pub version: Eversion,
    /// Where the part begins.
    pub from: Progress,
    /// At most so many bytes and rows.
    pub most: (u64, u64),
    /// Clients wait for it.
    pub urgent: bool,
}

/// What recovery wants.
#[derive(Clone, Debug)]
pub struct Rebuild {
    pub(super) token: ReadToken,
    pub(super) oid: ObjectId,
    pub(super) version: Eversion,
    pub(super) targets: Vec<PgShard>,
    pub(super) sources: Vec<PgShard>,
    pub(super) from: Progress,
    pub(super) max: u64,
}
