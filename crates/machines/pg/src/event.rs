//! What can happen to a PG.

use crate::map::MapRef;
use crate::msg::{Listing, ObjectChunk, PeerHeader, PeerMsg};
use crate::proposal::{PersistToken, ReadToken};
use crate::reserver::Side;
use crate::scrub::ScrubKind;
use crate::scrub::ScrubMap;
use crate::shard_read::ShardAnswer;
use types::{Eversion, ObjectId, OsdId, PgShard, SnapId};

/// What can happen to a PG. A client's write is not here: see [`Pg::propose`](crate::Pg::propose).
#[derive(Debug)]
pub enum Event {
    /// The next map. The host hands over every epoch that it can get, in order, so that the machine
    /// sees every interval. Nothing is sent until [`Event::ActivateMap`].
    AdvanceMap(MapRef),
    /// The last map given is the newest that the host has, and in it this OSD is up with its
    /// present address. A PG that entered a new interval starts to peer. The host sends this after
    /// each batch of maps, but never while it is still booting: peers would take it for its former
    /// life.
    ActivateMap,
    /// A message from the PG's copy on another OSD. Messages of one sender arrive in the order in
    /// which they were sent for as long as both are up.
    Peer {
        /// The sender.
        from: OsdId,
        /// For which PG and of which epoch it is.
        header: PeerHeader,
        /// The message.
        msg: PeerMsg,
    },
    /// What [`Action::Persist`](crate::Action::Persist) asked for with this token is durable, and
    /// so is everything this PG asked for before it. The host may report every token or only the
    /// newest.
    Committed(PersistToken),
    /// The answer to [`Action::ReadObject`](crate::Action::ReadObject).
    ObjectRead {
        /// The token of the request.
        token: ReadToken,
        /// The chunk, or `None` if the object is absent, has another version, or cannot be read.
        /// The machine then looks for another source.
        chunk: Option<ObjectChunk>,
    },
    /// The answer to [`Action::Rebuild`](crate::Action::Rebuild).
    Rebuilt {
        /// The token of the request.
        token: ReadToken,
        /// One for each target, all of one version that begin, end and are the last together. One
        /// without attributes is of an object of which the target has no shard.
        chunks: Vec<(PgShard, ObjectChunk)>,
    },
    /// The same, if nothing could be made.
    RebuildFailed {
        /// The token of the request.
        token: ReadToken,
        /// Sources that do not have the object as they should.
        bad: Vec<PgShard>,
    },
    /// The answer to [`Action::ReadShard`](crate::Action::ReadShard).
    ShardRead {
        /// The token of the request.
        token: ReadToken,
        /// The answer.
        answer: ShardAnswer,
    },
    /// Another copy could not read its shard of an object, while a client waits for it.
    ShardDamaged {
        /// The copy.
        shard: PgShard,
        /// The object.
        oid: ObjectId,
        /// The object's version.
        version: Eversion,
    },
    /// The answer to [`Action::ListObjects`](crate::Action::ListObjects): the objects at some
    /// moment between the question and now.
    Listed {
        /// The token of the request.
        token: ReadToken,
        /// The objects.
        listing: Listing,
    },
    /// The reservation has come ([`Action::Reserve`](crate::Action::Reserve)), or there is room
    /// again.
    Reserved {
        /// Which of the OSD's reservations.
        side: Side,
    },
    /// The reservation was given to a PG with a higher priority.
    Preempted {
        /// Which of the OSD's reservations.
        side: Side,
    },
    /// An operator wants this PG to be recovered (or filled) before others, or not any more.
    Force {
        /// Filled.
        backfill: bool,
        /// Before others.
        on: bool,
    },
    /// The store of this OSD, to which objects are copied or should be, is too full. The
    /// reservation is lost; the wish stays.
    BackfillTooFull,
    /// The scheduler grants recovery of up to `max_objects` more objects
    /// (answer to [`Action::QueueRecovery`](crate::Action::QueueRecovery)).
    StartRecovery {
        /// How many objects may be started.
        max_objects: usize,
    },
    /// A client operation waits for this object: recover it before all others, without a grant.
    RecoverNow(ObjectId),
    /// This copy of an object cannot be read, or not in full, while a client waits for it.
    ObjectDamaged {
        /// The object.
        oid: ObjectId,
        /// The version that it has, as its info says.
        version: Eversion,
    },
    /// The host wants this PG scrubbed, and has a reservation for it. Ends with
    /// [`Action::ScrubEnded`](crate::Action::ScrubEnded), or with the interval.
    StartScrub(ScrubKind),
    /// The host does not want the scrub that goes on.
    StopScrub,
    /// The answer to [`Action::ReserveScrub`](crate::Action::ReserveScrub).
    ScrubSlot {
        /// Whether this OSD has a reservation.
        granted: bool,
    },
    /// The answer to [`Action::Scan`](crate::Action::Scan).
    Scanned {
        /// The token of the request.
        token: ReadToken,
        /// The objects of the range.
        map: ScrubMap,
    },
    /// The host's turn to trim has come (first answer to
    /// [`Action::SnapTrim`](crate::Action::SnapTrim)).
    SnapTrimStarted(SnapId),
    /// The host gave up trimming for now: the map forbids it, recovery goes first, or (`damaged`)
    /// an object cannot be read.
    SnapTrimStopped {
        /// Which snapshot.
        snap: SnapId,
        /// Not to be tried again in this interval.
        damaged: bool,
    },
    /// The host found no object left that holds this removed snapshot
    /// (answer to [`Action::SnapTrim`](crate::Action::SnapTrim)).
    SnapTrimmed(SnapId),
    /// The moment of [`Action::WakeAt`](crate::Action::WakeAt) has come. One too many does no harm.
    Wake,
    /// One batch of [`Action::RemoveObjects`](crate::Action::RemoveObjects) is durable.
    ObjectsRemoved {
        /// Whether the collection still holds objects.
        more: bool,
    },
}
