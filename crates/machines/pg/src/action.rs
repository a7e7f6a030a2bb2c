//! Everything a PG can cause.

use bytes::Bytes;
use smallvec::SmallVec;
use types::{Epoch, Eversion, LogPriority, ObjectId, OsdId, PgId, PgShard, SnapId};

use crate::info::Backfill;
use crate::lease::Steady;
use crate::msg::{ObjectChunk, Payload, PeerHeader, PeerMsg, Progress};
use crate::proposal::{OpToken, PersistToken, ReadToken};
use crate::reserver::Side;
use crate::rows::RowBatch;
use crate::scrub::ScrubKind;
use crate::shard_read::{ShardAnswer, ShardQuery};

/// Receivers of one message.
pub type Peers = SmallVec<[PgShard; 3]>;

/// Everything a PG can cause. The host carries actions out in the order in which it drains them.
///
/// Every action may be carried out at once. What must not be visible before something is durable (a
/// replica's acknowledgement, the reply to a client) is kept inside the machine and comes out only
/// after [`Event::Committed`](crate::Event::Committed) with the token it depends on; there is no
/// way to drain it early.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "actions live in a queue that is drained at once; a box per message costs more"
)]
pub enum Action {
    /// Apply and make durable, in one store transaction. Later actions and events may rely on it
    /// being applied; only [`Event::Committed`](crate::Event::Committed) says that it is durable.
    Persist(Box<Persist>),
    /// Send the same message to these copies. Encode it once.
    Send {
        /// Receivers, never this copy, but perhaps another one on this OSD. All have the position
        /// that the header names.
        to: Peers,
        /// Goes in front of the message.
        header: PeerHeader,
        /// The message.
        msg: PeerMsg,
    },
    /// The proposal is durable on every acting OSD: answer the client. Comes in proposal order.
    Reply {
        /// The proposal.
        token: OpToken,
        /// The version of its last entry.
        version: Eversion,
    },
    /// A new interval began. Proposals in flight will get no reply: the host forgets them, drops
    /// every cached object context, and runs or forwards waiting client operations again once the
    /// PG is active.
    IntervalChange,
    /// Clients may be served from now on ([`Pg::is_active`](crate::Pg::is_active) is true): run the
    /// operations that wait for the PG.
    Active,
    /// The object is no longer missing or degraded: run the operations that wait for it.
    ObjectReady(ObjectId),
    /// The object has no reachable copy: operations that wait for it go on waiting, `ceph health`
    /// should say so.
    ObjectUnfound(ObjectId),
    /// This OSD's copy of the object was bad and was replaced by a good one.
    CopyRepaired(ObjectId),
    /// Write a line to the cluster log.
    ClusterLog {
        /// How much it matters.
        prio: LogPriority,
        /// The line.
        text: String,
    },
    /// Say what this copy has of the objects after `after`, up to and with `upto`; answer with
    /// [`Event::Scanned`](crate::Event::Scanned). If there are more than `max`, say less; objects
    /// of one name go together.
    Scan {
        /// Goes into the answer.
        token: ReadToken,
        /// Where to begin.
        after: Backfill,
        /// Where to end.
        upto: Backfill,
        /// Read data and omap too.
        deep: bool,
        /// About how many objects, at most.
        max: usize,
    },
    /// Another OSD wants to scrub this PG. Answer at once with
    /// [`Event::ScrubSlot`](crate::Event::ScrubSlot): whether this OSD has a reservation
    /// (`osd_max_scrubs`). An interval change takes the reservation back.
    ReserveScrub,
    /// That turn is given back.
    ReleaseScrub,
    /// The range that was scanned may be written again: run the operations that wait
    /// ([`Pg::scrub_blocks`](crate::Pg::scrub_blocks)).
    ScrubRangeReady,
    /// The scrub that the host started is over.
    ScrubEnded {
        /// It came to its end. If not, it could not begin or was stopped, and may be tried again.
        ran: bool,
        /// What should follow once the PG is clean.
        again: Option<ScrubKind>,
    },
    /// Read one chunk of a whole object for a push; answer with
    /// [`Event::ObjectRead`](crate::Event::ObjectRead).
    ReadObject {
        /// Goes into the answer.
        token: ReadToken,
        /// The object.
        oid: ObjectId,
        /// The version that its object info must have.
        version: Eversion,
        /// Where the chunk starts.
        from: Progress,
        /// Bounds the data bytes of the chunk.
        max_bytes: u64,
        /// Bounds the omap rows of the chunk.
        max_omap: u64,
        /// Clients wait for the object: it must not wait behind work that no client waits for.
        urgent: bool,
    },
    /// Make one part of each target's shard of an object, where copies are shards; answer with
    /// [`Event::Rebuilt`](crate::Event::Rebuilt) or
    /// [`Event::RebuildFailed`](crate::Event::RebuildFailed). What is read of other OSDs is asked
    /// for with [`Pg::read_shard`](crate::Pg::read_shard).
    Rebuild {
        /// Goes into the answer.
        token: ReadToken,
        /// The object.
        oid: ObjectId,
        /// Its version, as its info says.
        version: Eversion,
        /// Copies that lack their shard of it; this one may be among them.
        targets: Vec<PgShard>,
        /// Copies that have theirs. One at the position of a target has what the target lacks: it
        /// is copied, not computed.
        sources: Vec<PgShard>,
        /// Where the part starts, counted in bytes of a shard.
        from: Progress,
        /// Bounds the data bytes of each shard's part.
        max_bytes: u64,
        /// Bounds the omap rows of the part.
        max_omap: u64,
        /// Clients wait for the object: it goes before other background work.
        urgent: bool,
    },
    /// The primary reads of this copy's shard of an object; answer with
    /// [`Event::ShardRead`](crate::Event::ShardRead).
    ReadShard {
        /// Goes into the answer.
        token: ReadToken,
        /// The ranges to read.
        query: ShardQuery,
    },
    /// The answer to [`Pg::read_shard`](crate::Pg::read_shard).
    ShardAnswer {
        /// The number that the host gave.
        id: u64,
        /// The copy that answers.
        from: PgShard,
        /// The answer.
        answer: ShardAnswer,
    },
    /// There are objects to recover: queue one grant with the scheduler, and answer with
    /// [`Event::StartRecovery`](crate::Event::StartRecovery).
    QueueRecovery,
    /// List the objects of the collection in order, with the versions that their infos have; answer
    /// with [`Event::Listed`](crate::Event::Listed). Objects of one name are listed together.
    ListObjects {
        /// Goes into the answer.
        token: ReadToken,
        /// Where to begin: after this.
        after: Backfill,
        /// About how many.
        max: usize,
    },
    /// Recovery or a backfill wants a reservation on this OSD (`osd_max_backfills` of each
    /// [`Side`]; see [`Reserver`](crate::Reserver)); answer with
    /// [`Event::Reserved`](crate::Event::Reserved) when it comes, and with
    /// [`Event::Preempted`](crate::Event::Preempted) if it is taken back. A backfill without room
    /// in the store hears [`Event::BackfillTooFull`](crate::Event::BackfillTooFull), and waits. An
    /// interval change takes the request, or the reservation, back. A PG that waits for one, or has
    /// one, changes its priority by asking again.
    Reserve {
        /// Which of the OSD's reservations.
        side: Side,
        /// Whether this is for a backfill.
        backfill: bool,
        /// A higher one goes first.
        priority: u8,
    },
    /// The reservations of this PG, and its wishes, are given back.
    Release,
    /// Ask the monitor to record that this OSD was alive in this epoch (Ceph: `MOSDAlive`). The
    /// answer is a map.
    WantUpThru(Epoch),
    /// Ask the monitor for this acting set, holes included (Ceph: `MOSDPGTemp`); empty asks to go
    /// back to `up`. The answer is a map.
    WantPgTemp(Vec<OsdId>),
    /// A peer knows a map that this OSD has not: fetch maps up to this epoch.
    WantMap(Epoch),
    /// Trim objects of this removed snapshot: list its rows of the
    /// [`snap_mapper`](crate::snap_mapper), and propose the change of each clone found. When a
    /// listing finds none, answer with [`Event::SnapTrimmed`](crate::Event::SnapTrimmed). Say
    /// [`Event::SnapTrimStarted`](crate::Event::SnapTrimStarted) when the reservation has come.
    /// Stop at an interval change.
    SnapTrim(SnapId),
    /// Remove up to this many objects of the PG's collection as background work, then answer with
    /// [`Event::ObjectsRemoved`](crate::Event::ObjectsRemoved).
    RemoveObjects {
        /// Bounds one step.
        max: usize,
    },
    /// Send [`Event::Wake`](crate::Event::Wake) at this moment. Safety does not depend on it.
    WakeAt(Steady),
    /// Reads may be answered again ([`Pg::is_readable`](crate::Pg::is_readable)): run the
    /// operations that wait for that.
    Readable,
    /// Nothing is left: remove the collection with its rows and forget this machine. Then deal with
    /// the messages that came meanwhile as with those for any PG that this OSD does not have
    /// ([`creation::stranger`](crate::creation::stranger)), and keep client operations that wait:
    /// this OSD may have become the primary.
    Gone {
        /// Messages, oldest first.
        undelivered: Vec<(OsdId, PeerHeader, PeerMsg)>,
    },
}

/// One store transaction of a PG.
#[derive(Debug, Default)]
pub struct Persist {
    /// Reported back when durable.
    pub token: PersistToken,
    /// Changes to take back, newest first, before all others: the objects become what they were.
    /// Each has a row ([`crate::rows::undo_key`]), which goes.
    pub undo: Vec<(Eversion, ObjectId)>,
    /// Object changes that come first.
    pub source: Source,
    /// Changes of `source` that may have to be taken back. What each object was is kept in the same
    /// transaction, with a row of the key [`crate::rows::undo_key`]; its value is the host's.
    pub keep_undo: Vec<(Eversion, ObjectId)>,
    /// Changes that are not taken back any more: what was kept for that goes, with its rows.
    pub forget_undo: Vec<Eversion>,
    /// Objects to remove, if they exist, after `source`: their content is divergent or deleted.
    /// Cached contexts of them are void. Their snap-mapper rows may stay (see
    /// [`crate::snap_mapper`]).
    pub remove_objects: Vec<ObjectId>,
    /// Rows of the PG's own omap object to set and remove.
    pub rows: RowBatch,
    /// The PG is new: create its collection (and its own omap object) first.
    pub create_collection: bool,
    /// PGs that come out of this one, before anything else. In the order of their objects, the last
    /// ones first: each takes all objects of the collection, as it is then, from its first object
    /// on.
    pub split: Vec<SplitOff>,
    /// PGs become part of this one, before anything else.
    pub join: Option<Join>,
}

/// PGs that become part of one.
#[derive(Debug)]
pub struct Join {
    /// PGs that become part of it, and whether they are here, in the order of their objects: each
    /// has the objects behind those of what is joined already. Their objects and snap-mapper rows
    /// are kept, all else of them goes.
    pub parts: Vec<(PgId, bool)>,
    /// `pg_num` before: it tells what a PG that is not here would have had.
    pub pg_num: u32,
    /// All rows of the PG; those that it had go.
    pub rows: RowBatch,
}

/// A PG that comes out of another one.
#[derive(Debug)]
pub struct SplitOff {
    /// The new PG. It takes the objects of [`PgId::first_object`] and after with it, and their
    /// snap-mapper rows.
    pub pgid: PgId,
    /// `pg_num` after the split.
    pub pg_num: u32,
    /// All rows of the new PG.
    pub rows: RowBatch,
}

/// Object changes of a [`Persist`].
#[derive(Debug, Default)]
pub enum Source {
    /// None.
    #[default]
    None,
    /// What the host proposed under this token.
    Proposal(OpToken),
    /// What the primary proposed.
    RepOp(Payload),
    /// A chunk of a recovered object: if it is the first, remove the object and create it again;
    /// then write data, attributes and omap rows; if it is the last, also set its snap-mapper rows.
    Push(Box<ObjectChunk>),
    /// Set these attributes of an object that is here: it counts again, as a newer version of
    /// itself.
    Attrs(ObjectId, Vec<(Bytes, Bytes)>),
}
