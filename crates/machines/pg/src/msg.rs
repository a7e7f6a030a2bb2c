//! What copies of a PG say to each other.
//!
//! Only our own daemons read these bytes. A message is encoded into two parts: `front`, and `data`,
//! which carries the payload of a write or a push untouched, so that it is never copied. The tag of
//! a message is one byte; tags 32 to 39 belong to read leases, 40 to 49 to repair and scrub, 50 to
//! 52 to shards, 53 to room, 54 to 56 to reservations for reading.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use denc::{BufMut, BytesMut, Decode, DecodeError, Encode, Features, Reader};
use denc_derive::Denc;
use smallvec::SmallVec;
use types::{Epoch, Eversion, IntervalSet, ObjectId, OsdId, PgId, PgShard, ShardId, SnapId, SpgId};

use crate::info::{Backfill, PgHistory, PgInfo, ScrubSummary};
use crate::lease::Promise;
use crate::log::DupEntry;
use crate::log_entry::{Logged, LoggedRef};
use crate::missing::MissingSet;
use crate::past_intervals::PastIntervals;
use crate::scrub::ScrubMap;
use crate::shard_read::{ShardAnswer, ShardQuery};
use crate::stats::StatSum;

/// In front of every message.
#[derive(Denc, Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerHeader {
    /// The PG.
    pub pgid: PgId,
    /// Position of the copy that sends.
    pub from: ShardId,
    /// Position of the copy that it is for.
    pub to: ShardId,
    /// The sender's map epoch. A receiver with an older map waits for this one before it looks
    /// inside.
    pub sent: Epoch,
    /// For an answer, `sent` of the question; otherwise the same as `sent`. A receiver that entered
    /// a new interval after either drops the message.
    pub asked: Epoch,
}

impl PeerHeader {
    /// The copy that sends, on this OSD.
    pub fn sender(&self, osd: OsdId) -> PgShard {
        PgShard { osd, shard: self.from }
    }

    /// The copy that the message is for, on the OSD that gets it.
    pub fn receiver(&self) -> SpgId {
        SpgId { pgid: self.pgid, shard: self.to }
    }
}

/// The format of messages. OSDs understand no other.
const VERSION: u8 = 4;

/// The object changes of a write, opaque to the PG. `ops` describes them and may refer to ranges of
/// `data`, typically the data segment of the client's message.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Payload {
    /// Encoded store operations.
    pub ops: Bytes,
    /// Bulk bytes.
    pub data: Bytes,
    /// Bytes of a store that are set aside for it. The host's; not sent.
    pub room: u64,
}

/// Part of a log: all its entries after `tail`, oldest first.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct LogSegment {
    /// The version just before the first entry.
    pub tail: Eversion,
    /// The entries.
    pub entries: Vec<LoggedRef>,
}

/// A primary's question.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Query {
    /// [`PeerMsg::Notify`].
    Info,
    /// [`PeerMsg::Log`] with the entries after this version, or all if the log starts later.
    Log(Eversion),
}

/// How far the copy of one object got.
#[derive(Denc, Clone, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    /// Data up to this offset is done.
    pub data_to: u64,
    /// Omap rows up to and with this key are done.
    pub omap_to: Option<Bytes>,
}

/// A part of an object on its way to a copy that lacks it. The first part (`from` is the default)
/// carries the attributes and the omap header; all parts are of the same version.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ObjectChunk {
    /// The object.
    pub oid: ObjectId,
    /// Its version.
    pub version: Eversion,
    /// Where this part starts.
    pub from: Progress,
    /// Where the next part starts.
    pub to: Progress,
    /// Whether this is the last part.
    pub last: bool,
    /// Size of the object.
    pub size: u64,
    /// Allocated ranges of the object in this part: `(offset, length)`, their bytes follow one
    /// another in `data`.
    pub extents: Vec<(u64, u64)>,
    /// Bytes of the extents.
    pub data: Bytes,
    /// All attributes; only in the first part.
    pub attrs: Vec<(Bytes, Bytes)>,
    /// Omap header; only in the first part.
    pub omap_header: Bytes,
    /// Omap rows of this part.
    pub omap: Vec<(Bytes, Bytes)>,
    /// The snapshots of a clone (its snap-mapper row by object); only in the last part.
    pub snaps: Vec<SnapId>,
}

impl ObjectChunk {
    /// Whether this is the first part.
    pub fn first(&self) -> bool {
        self.from == Progress::default()
    }
}

/// A write on its way from the primary to a replica.
#[derive(Clone, PartialEq, Debug)]
pub struct RepOp {
    /// Log entries.
    pub entries: SmallVec<[LoggedRef; 1]>,
    /// How the totals change.
    pub stats: StatSum,
    /// The log may be trimmed up to this version: every acting OSD has all of it on disk, objects
    /// included.
    pub trim_to: Eversion,
    /// Changes up to here are not taken back any more: each copy that they name has them on disk.
    pub committed: Eversion,
    /// The change.
    pub payload: Payload,
    /// There is nothing to apply: the entries change nothing on the receiver, or it is being filled
    /// and lacks what the change is made to. It learns the entries; what they need of the part that
    /// it has is missing then.
    pub log_only: bool,
}

/// Objects of one copy in a range of the order, with their versions.
#[derive(Denc, Clone, PartialEq, Eq, Debug, Default)]
#[denc(version = 1, compat = 1)]
pub struct Listing {
    /// All objects after the cursor that was asked for, up to and with this one, are listed.
    pub upto: Backfill,
    /// The objects. One with torn content has version zero.
    pub objects: BTreeMap<ObjectId, Eversion>,
    /// Of a copy that knows all shards of its objects: which version shards have, where it is
    /// another than the object's. Zero: there is none.
    pub shards: BTreeMap<ObjectId, Vec<(ShardId, Eversion)>>,
}

impl Listing {
    /// The version that the copy at a position should have, of an object that is listed.
    pub fn at(&self, oid: &ObjectId, position: ShardId) -> Option<Eversion> {
        let whole = self.objects.get(oid)?;
        let of_shard = self.shards.get(oid).into_iter().flatten();
        Some(of_shard.into_iter().find(|(s, _)| *s == position).map_or(*whole, |(_, v)| *v))
    }
}

/// What copies of a PG say to each other.
#[derive(Clone, PartialEq, Debug)]
pub enum PeerMsg {
    /// Primary asks. Carries the primary's history so that the answer can be up to date with it.
    Query {
        /// For what.
        query: Query,
        /// The primary's history.
        history: PgHistory,
    },
    /// Answer to [`Query::Info`]; also sent unasked to a new primary by OSDs that hold a copy.
    Notify {
        /// The sender's info; `last_update` zero and `epoch_created` zero if it has no copy.
        info: PgInfo,
        /// Intervals that the sender knows.
        past: PastIntervals,
        /// Until when no interval may begin to serve, as far as the sender knows.
        promises: Vec<Promise>,
    },
    /// Answer to [`Query::Log`].
    Log {
        /// The sender's info.
        info: PgInfo,
        /// Its log.
        log: LogSegment,
        /// Its missing objects.
        missing: MissingSet,
        /// Changes that it can take back.
        undo: Vec<Eversion>,
    },
    /// Primary makes a replica active: the authoritative info, and what of the log the replica
    /// lacks.
    Activate {
        /// The authoritative info; its `last_epoch_started` is this activation.
        info: PgInfo,
        /// Starts at a version that the replica shares with the authoritative log.
        log: LogSegment,
        /// Intervals, so that the replica can answer for the PG later.
        past: PastIntervals,
    },
    /// The activation is durable.
    Activated,
    /// Primary tells replicas of progress that all share (started, clean, snapshots purged).
    History {
        /// The new history.
        history: PgHistory,
        /// Purged snapshots.
        purged_snaps: IntervalSet,
    },
    /// A write.
    RepOp(Box<RepOp>),
    /// Every write of this interval up to this version is durable on the sender.
    RepOpReply {
        /// The version.
        version: Eversion,
    },
    /// Primary asks for a part of an object that it lacks.
    Pull {
        /// The object.
        oid: ObjectId,
        /// The version needed.
        version: Eversion,
        /// Where to start.
        from: Progress,
        /// Clients wait for the object.
        urgent: bool,
    },
    /// A part of an object: answers a pull, or fills a replica.
    Push(Box<ObjectChunk>),
    /// The source of a pull cannot deliver.
    PullFailed {
        /// The object.
        oid: ObjectId,
        /// The version asked for.
        version: Eversion,
    },
    /// A part that the primary pushed is durable.
    PushReply {
        /// The object.
        oid: ObjectId,
        /// Its version.
        version: Eversion,
        /// `to` of the part.
        to: Progress,
    },
    /// Nothing but what goes beside it: how much the receiver may send. For no PG.
    Room,
    /// Trim the log up to this version although no write comes along.
    Trim(Eversion),
    /// The PG is clean elsewhere: the sender, its primary, does not need this copy.
    Remove,
    /// The primary makes an OSD follow with a log that cannot be brought up to date: it drops what
    /// it knows, takes over this log, and counts as not filled at all. Objects that it has may turn
    /// out to be right.
    StartBackfill {
        /// The authoritative info.
        info: PgInfo,
        /// The primary's log.
        log: LogSegment,
        /// Requests of entries before that log.
        dups: Vec<DupEntry>,
        /// Intervals, so that the OSD can answer for the PG later.
        past: PastIntervals,
    },
    /// Primary asks whether the receiver's OSD has a reservation for it (`osd_max_backfills`).
    Reserve {
        /// The receiver is to be filled. Otherwise it acts.
        backfill: bool,
        /// A higher one goes first.
        priority: u8,
    },
    /// There is a reservation.
    Reserved,
    /// The reservation was given to a PG with a higher priority.
    Revoked,
    /// Primary gives the reservation back, or does not want it any more.
    Release,
    /// Primary asks whether it may read on the receiver's OSD for recovery (`osd_max_backfills`).
    /// The copy need not act.
    ReserveSource {
        /// A higher one goes first.
        priority: u8,
        /// Goes into the answer: an answer to an earlier question counts for nothing.
        round: u32,
    },
    /// The primary may read.
    SourceReserved {
        /// That of the question.
        round: u32,
    },
    /// The reservation for reading was given to a PG with a higher priority.
    SourceRevoked {
        /// That of the question.
        round: u32,
    },
    /// The target's store is too full: the primary waits for [`PeerMsg::Reserved`].
    BackfillTooFull,
    /// Primary asks what the target has behind its cursor.
    ListObjects {
        /// The cursor.
        after: Backfill,
        /// About how many objects.
        max: u32,
    },
    /// Answer to [`PeerMsg::ListObjects`].
    Objects {
        /// The cursor.
        after: Backfill,
        /// The objects behind it.
        listing: Listing,
    },
    /// Primary moves the target's cursor: from now on, what is up to there is there, or in the
    /// missing set.
    AdvanceBackfill {
        /// The new cursor.
        upto: Backfill,
        /// What must be copied, in these versions.
        missing: Vec<(ObjectId, Eversion)>,
        /// The objects that must not be there.
        remove: Vec<ObjectId>,
    },
    /// The cursor is durable.
    BackfillAdvanced {
        /// The cursor.
        upto: Backfill,
    },
    /// Primary asks an acting replica for the permission to serve reads (Ceph: `MOSDPGLease`). The
    /// rounds of an interval are counted from 1; one begins when all have answered the one before.
    Lease {
        /// Number of the round.
        round: u64,
        /// For how long, in nanoseconds.
        length: u64,
        /// Every write up to here is durable on every acting OSD.
        committed: Eversion,
    },
    /// The permission is given (Ceph: `MOSDPGLeaseAck`).
    LeaseAck {
        /// Number of the round.
        round: u64,
    },
    /// Primary found that the receiver's copies of these objects are bad; pushes follow.
    MarkMissing {
        /// The objects, in the versions that they should have.
        objects: Vec<(ObjectId, Eversion)>,
    },
    /// Primary wants to scrub, and asks whether the replica's OSD has a reservation
    /// (`osd_max_scrubs`).
    ScrubReserve,
    /// Whether it has.
    ScrubReserved {
        /// The answer.
        granted: bool,
    },
    /// Primary gives that turn back.
    ScrubRelease,
    /// Primary asks what the replica has.
    Scan {
        /// Goes into the answer.
        id: u64,
        /// Where to begin.
        after: Backfill,
        /// Where to end.
        upto: Backfill,
        /// Read data and omap too.
        deep: bool,
        /// About how many objects, at most.
        max: u32,
    },
    /// Answer to [`PeerMsg::Scan`].
    ScanResult {
        /// Of the question.
        id: u64,
        /// The objects of the range.
        map: Box<ScrubMap>,
    },
    /// A scrub is over.
    Scrubbed {
        /// With its stamps.
        history: PgHistory,
        /// With its counts.
        scrub: ScrubSummary,
    },
    /// Primary tells a copy that does not take part to take back what it has after this version: it
    /// may be read then.
    RollBack(Eversion),
    /// Primary reads a shard of an object.
    ReadShard {
        /// Goes into the answer.
        id: u64,
        /// The ranges to read.
        query: Box<ShardQuery>,
    },
    /// Answer to [`PeerMsg::ReadShard`].
    ShardRead {
        /// Of the question.
        id: u64,
        /// The shard's answer.
        answer: ShardAnswer,
    },
}

impl PeerMsg {
    /// The bytes: front with header and message, and data.
    pub fn encode(&self, header: &PeerHeader) -> (Bytes, Bytes) {
        let f = Features::ALL;
        let mut out = BytesMut::with_capacity(512);
        let mut data = Bytes::new();
        out.put_u8(VERSION);
        header.encode(&mut out, f);
        match self {
            Self::Query { query, history } => {
                out.put_u8(1);
                match query {
                    Query::Info => None,
                    Query::Log(since) => Some(*since),
                }
                .encode(&mut out, f);
                history.encode(&mut out, f);
            }
            Self::Notify { info, past, promises } => {
                out.put_u8(if promises.is_empty() { 2 } else { 32 });
                info.encode(&mut out, f);
                past.encode(&mut out, f);
                if !promises.is_empty() {
                    promises.encode(&mut out, f);
                }
            }
            Self::Log { info, log, missing, undo } => {
                out.put_u8(3);
                info.encode(&mut out, f);
                log.encode(&mut out, f);
                missing.encode(&mut out, f);
                undo.encode(&mut out, f);
            }
            Self::Activate { info, log, past } => {
                out.put_u8(4);
                info.encode(&mut out, f);
                log.encode(&mut out, f);
                past.encode(&mut out, f);
            }
            Self::Activated => out.put_u8(5),
            Self::History { history, purged_snaps } => {
                out.put_u8(6);
                history.encode(&mut out, f);
                purged_snaps.encode(&mut out, f);
            }
            Self::RepOp(op) => {
                out.put_u8(if op.log_only { 15 } else { 7 });
                out.put_u32_le(
                    u32::try_from(op.entries.len()).expect("an operation has few entries"),
                );
                for entry in &op.entries {
                    entry.encode(&mut out, f);
                }
                op.stats.encode(&mut out, f);
                op.trim_to.encode(&mut out, f);
                op.committed.encode(&mut out, f);
                op.payload.ops.encode(&mut out, f);
                data = op.payload.data.clone();
            }
            Self::RepOpReply { version } => {
                out.put_u8(8);
                version.encode(&mut out, f);
            }
            Self::Pull { oid, version, from, urgent } => {
                out.put_u8(if *urgent { 27 } else { 9 });
                oid.encode(&mut out, f);
                version.encode(&mut out, f);
                from.encode(&mut out, f);
            }
            Self::Push(chunk) => {
                out.put_u8(10);
                chunk.encode(&mut out, f);
                data = chunk.data.clone();
            }
            Self::PullFailed { oid, version } => {
                out.put_u8(11);
                oid.encode(&mut out, f);
                version.encode(&mut out, f);
            }
            Self::PushReply { oid, version, to } => {
                out.put_u8(12);
                oid.encode(&mut out, f);
                version.encode(&mut out, f);
                to.encode(&mut out, f);
            }
            Self::Room => out.put_u8(53),
            Self::Trim(to) => {
                out.put_u8(13);
                to.encode(&mut out, f);
            }
            Self::Remove => out.put_u8(14),
            Self::StartBackfill { info, log, dups, past } => {
                out.put_u8(16);
                info.encode(&mut out, f);
                log.encode(&mut out, f);
                dups.encode(&mut out, f);
                past.encode(&mut out, f);
            }
            Self::Reserved => out.put_u8(18),
            Self::Reserve { backfill, priority } => {
                out.put_u8(24);
                backfill.encode(&mut out, f);
                priority.encode(&mut out, f);
            }
            Self::Revoked => out.put_u8(25),
            Self::Release => out.put_u8(26),
            Self::ReserveSource { priority, round } => {
                out.put_u8(54);
                priority.encode(&mut out, f);
                round.encode(&mut out, f);
            }
            Self::SourceReserved { round } => {
                out.put_u8(55);
                round.encode(&mut out, f);
            }
            Self::SourceRevoked { round } => {
                out.put_u8(56);
                round.encode(&mut out, f);
            }
            Self::BackfillTooFull => out.put_u8(19),
            Self::ListObjects { after, max } => {
                out.put_u8(20);
                after.encode(&mut out, f);
                max.encode(&mut out, f);
            }
            Self::Objects { after, listing } => {
                out.put_u8(21);
                after.encode(&mut out, f);
                listing.encode(&mut out, f);
            }
            Self::AdvanceBackfill { upto, missing, remove } => {
                out.put_u8(22);
                upto.encode(&mut out, f);
                missing.encode(&mut out, f);
                remove.encode(&mut out, f);
            }
            Self::BackfillAdvanced { upto } => {
                out.put_u8(23);
                upto.encode(&mut out, f);
            }
            Self::Lease { round, length, committed } => {
                out.put_u8(33);
                round.encode(&mut out, f);
                length.encode(&mut out, f);
                committed.encode(&mut out, f);
            }
            Self::LeaseAck { round } => {
                out.put_u8(34);
                round.encode(&mut out, f);
            }
            Self::MarkMissing { objects } => {
                out.put_u8(40);
                objects.encode(&mut out, f);
            }
            Self::ScrubReserve => out.put_u8(41),
            Self::ScrubReserved { granted } => {
                out.put_u8(42);
                granted.encode(&mut out, f);
            }
            Self::ScrubRelease => out.put_u8(43),
            Self::Scan { id, after, upto, deep, max } => {
                out.put_u8(44);
                id.encode(&mut out, f);
                after.encode(&mut out, f);
                upto.encode(&mut out, f);
                deep.encode(&mut out, f);
                max.encode(&mut out, f);
            }
            Self::ScanResult { id, map } => {
                out.put_u8(45);
                id.encode(&mut out, f);
                map.encode(&mut out, f);
            }
            Self::Scrubbed { history, scrub } => {
                out.put_u8(46);
                history.encode(&mut out, f);
                scrub.encode(&mut out, f);
            }
            Self::RollBack(to) => {
                out.put_u8(52);
                to.encode(&mut out, f);
            }
            Self::ReadShard { id, query } => {
                out.put_u8(50);
                id.encode(&mut out, f);
                query.encode(&mut out, f);
            }
            Self::ShardRead { id, answer } => {
                out.put_u8(51);
                id.encode(&mut out, f);
                answer.encode(&mut out, f);
                data = answer.data();
            }
        }
        (out.freeze(), data)
    }

    /// Reads what [`PeerMsg::encode`] wrote.
    pub fn decode(front: Bytes, data: Bytes) -> denc::Result<(PeerHeader, Self)> {
        let mut r = Reader::new(front);
        let version: u8 = r.get()?;
        if version != VERSION {
            return Err(DecodeError::Invalid { what: "PeerMsg version", found: version.into() });
        }
        let header = r.get()?;
        let msg = Self::decode_body(&mut r, data)?;
        r.expect_end("PeerMsg")?;
        Ok((header, msg))
    }

    fn decode_body(r: &mut Reader, data: Bytes) -> denc::Result<Self> {
        Ok(match r.get::<u8>()? {
            1 => {
                let since: Option<Eversion> = r.get()?;
                Self::Query { query: since.map_or(Query::Info, Query::Log), history: r.get()? }
            }
            2 => Self::Notify { info: r.get()?, past: r.get()?, promises: Vec::new() },
            32 => Self::Notify { info: r.get()?, past: r.get()?, promises: r.get()? },
            33 => Self::Lease { round: r.get()?, length: r.get()?, committed: r.get()? },
            34 => Self::LeaseAck { round: r.get()? },
            3 => Self::Log { info: r.get()?, log: r.get()?, missing: r.get()?, undo: r.get()? },
            4 => Self::Activate { info: r.get()?, log: r.get()?, past: r.get()? },
            5 => Self::Activated,
            6 => Self::History { history: r.get()?, purged_snaps: r.get()? },
            tag @ (7 | 15) => {
                let n = r.count("RepOp entries", 4)?;
                let mut entries = SmallVec::with_capacity(n);
                for _ in 0..n {
                    entries.push(Arc::new(r.get::<Logged>()?));
                }
                Self::RepOp(Box::new(RepOp {
                    entries,
                    stats: r.get()?,
                    trim_to: r.get()?,
                    committed: r.get()?,
                    payload: Payload { ops: r.get()?, data, room: 0 },
                    log_only: tag == 15,
                }))
            }
            8 => Self::RepOpReply { version: r.get()? },
            tag @ (9 | 27) => {
                Self::Pull { oid: r.get()?, version: r.get()?, from: r.get()?, urgent: tag == 27 }
            }
            10 => {
                let mut chunk: ObjectChunk = r.get()?;
                let mut total = 0u64;
                for &(offset, len) in &chunk.extents {
                    total = total.saturating_add(len);
                    if offset.checked_add(len).is_none_or(|end| end > chunk.size) {
                        return Err(DecodeError::Invalid {
                            what: "ObjectChunk extent",
                            found: offset,
                        });
                    }
                }
                if total != data.len() as u64 {
                    return Err(DecodeError::Invalid { what: "ObjectChunk data", found: total });
                }
                chunk.data = data;
                Self::Push(Box::new(chunk))
            }
            11 => Self::PullFailed { oid: r.get()?, version: r.get()? },
            12 => Self::PushReply { oid: r.get()?, version: r.get()?, to: r.get()? },
            13 => Self::Trim(r.get()?),
            53 => Self::Room,
            14 => Self::Remove,
            16 => Self::StartBackfill {
                info: r.get()?,
                log: r.get()?,
                dups: r.get()?,
                past: r.get()?,
            },
            18 => Self::Reserved,
            24 => Self::Reserve { backfill: r.get()?, priority: r.get()? },
            25 => Self::Revoked,
            26 => Self::Release,
            54 => Self::ReserveSource { priority: r.get()?, round: r.get()? },
            55 => Self::SourceReserved { round: r.get()? },
            56 => Self::SourceRevoked { round: r.get()? },
            19 => Self::BackfillTooFull,
            20 => Self::ListObjects { after: r.get()?, max: r.get()? },
            21 => Self::Objects { after: r.get()?, listing: r.get()? },
            22 => Self::AdvanceBackfill { upto: r.get()?, missing: r.get()?, remove: r.get()? },
            23 => Self::BackfillAdvanced { upto: r.get()? },
            40 => Self::MarkMissing { objects: r.get()? },
            41 => Self::ScrubReserve,
            42 => Self::ScrubReserved { granted: r.get()? },
            43 => Self::ScrubRelease,
            44 => Self::Scan {
                id: r.get()?,
                after: r.get()?,
                upto: r.get()?,
                deep: r.get()?,
                max: r.get()?,
            },
            45 => Self::ScanResult { id: r.get()?, map: Box::new(r.get()?) },
            46 => Self::Scrubbed { history: r.get()?, scrub: r.get()? },
            52 => Self::RollBack(r.get()?),
            50 => Self::ReadShard { id: r.get()?, query: Box::new(r.get()?) },
            51 => {
                let id = r.get()?;
                Self::ShardRead { id, answer: r.get::<ShardAnswer>()?.with_data(data)? }
            }
            found => return Err(DecodeError::Invalid { what: "PeerMsg tag", found: found.into() }),
        })
    }
}

impl Encode for LogSegment {
    fn encode(&self, out: &mut BytesMut, features: Features) {
        self.tail.encode(out, features);
        out.put_u32_le(u32::try_from(self.entries.len()).expect("a log is bounded"));
        for entry in &self.entries {
            entry.encode(out, features);
        }
    }
}

impl Decode for LogSegment {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        let tail: Eversion = r.get()?;
        let n = r.count("LogSegment", 4)?;
        let mut entries: Vec<LoggedRef> = Vec::with_capacity(n);
        let mut last = tail;
        for _ in 0..n {
            let logged: Logged = r.get()?;
            let v = logged.entry.version;
            if v <= last || v.version <= last.version {
                return Err(DecodeError::Invalid { what: "LogSegment order", found: v.version });
            }
            last = v;
            entries.push(Arc::new(logged));
        }
        Ok(Self { tail, entries })
    }
}

/// All but `data`, which travels beside it.
impl Encode for ObjectChunk {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        self.oid.encode(out, f);
        self.version.encode(out, f);
        self.from.encode(out, f);
        self.to.encode(out, f);
        self.last.encode(out, f);
        self.size.encode(out, f);
        self.extents.encode(out, f);
        self.attrs.encode(out, f);
        self.omap_header.encode(out, f);
        self.omap.encode(out, f);
        self.snaps.encode(out, f);
    }
}

impl Decode for ObjectChunk {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        Ok(Self {
            oid: r.get()?,
            version: r.get()?,
            from: r.get()?,
            to: r.get()?,
            last: r.get()?,
            size: r.get()?,
            extents: r.get()?,
            data: Bytes::new(),
            attrs: r.get()?,
            omap_header: r.get()?,
            omap: r.get()?,
            snaps: r.get()?,
        })
    }
}

#[cfg(test)]
#[path = "msg_test.rs"]
mod tests;
