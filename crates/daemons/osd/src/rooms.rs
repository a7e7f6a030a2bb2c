//! How much room other OSDs have, so that none is sent what it cannot store.
//!
//! What a primary has sent is in the PG's log: a replica cannot refuse it. The map says that an OSD
//! is full only seconds after it is. So every message between OSDs has a note of what the receiver
//! may send in all ([`room_ledger`]). A write that takes blocks waits until its room is pledged by
//! all that take it; so does the reading of an object for a push. Deletes, the log and the OSD's
//! own records use what is kept back, and so does what an operator forces.

use pg::{ObjectChunk, PeerMsg, ReadToken};
use room_ledger::{Kind, Ledger, Pledge, RoomNote, Space, life};
use rustc_hash::{FxHashMap, FxHashSet};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use store::{BLOCK, StatFs};
use types::{OsdId, SpgId};

use crate::peer_net::Envelope;

/// What is kept back from clients and from copies, or a 64th of a small store.
const RESERVE: u64 = 16 << 20;

/// Bytes of requests that may wait for room beside the throttles of their connections.
const WAITING_MAX: u64 = 128 << 20;

/// Room for attributes that sealing a change adds, and for its log entry.
pub(crate) const SEAL: u64 = 32 << 10;

/// Room for the attributes that the first part of a copy carries.
pub(crate) const ATTRS: u64 = 128 << 10;

/// The bytes that are kept back.
pub(crate) fn reserve(space: &StatFs) -> u64 {
    RESERVE.min(space.total / 64)
}

/// The bytes of a store that a message may take.
pub(crate) fn room_of(msg: &PeerMsg) -> u64 {
    match msg {
        PeerMsg::RepOp(op) => op.payload.room,
        PeerMsg::Push(chunk) => chunk_room(chunk),
        _ => 0,
    }
}

/// The bytes of a store that a change may take for which its sender has pledged none.
fn unpledged(payload: &pg::Payload) -> u64 {
    match payload.data.len() as u64 {
        0 => 0,
        _ if payload.room > 0 => 0,
        data => data.next_multiple_of(BLOCK) + SEAL,
    }
}

/// The bytes of a store that a part of a copy may take.
fn chunk_room(chunk: &ObjectChunk) -> u64 {
    let data: u64 = chunk
        .extents
        .iter()
        .map(|(off, len)| (off % BLOCK).saturating_add(*len).div_ceil(BLOCK) * BLOCK)
        .sum();
    let rows = chunk.attrs.iter().chain(&chunk.omap).map(|(k, v)| (k.len() + v.len()) as u64);
    let rows = rows.sum::<u64>() + chunk.omap_header.len() as u64;
    data + rows * 2 + store::object_room(1)
}

/// What other OSDs have told of their room, and what is under way to them.
pub(crate) struct Rooms {
    ledger: Rc<RefCell<Ledger>>,
    /// The number of this process.
    process: u32,
    /// Bytes of requests that wait for room, and do not hold back what else their connections
    /// bring.
    waiting: Rc<Cell<u64>>,
    /// OSDs that lead PGs that are here.
    leaders: RefCell<FxHashSet<OsdId>>,
    /// What reads for copies are to send.
    reads: RefCell<FxHashMap<(SpgId, ReadToken), Pledged>>,
    /// Messages that wait until the store has room for them, in order.
    held: RefCell<Vec<Envelope>>,
    /// OSDs without room for something that waits.
    short: RefCell<FxHashSet<OsdId>>,
    /// OSDs that were asked since they are not known.
    asked: RefCell<FxHashSet<OsdId>>,
    /// The used part of the store from which clients' writes wait.
    pub(crate) failsafe: Cell<f64>,
    /// Some PG has requests that wait for room.
    pub(crate) full_waiters: Cell<bool>,
    /// Notified when it is worth to look again.
    pub(crate) again: tokio::sync::Notify,
}

impl Default for Rooms {
    fn default() -> Rooms {
        let process = rand::random::<u32>();
        Rooms {
            ledger: Rc::new(RefCell::new(Ledger::new(life(process, 0)))),
            process,
            waiting: Rc::default(),
            leaders: RefCell::default(),
            reads: RefCell::default(),
            held: RefCell::default(),
            short: RefCell::default(),
            asked: RefCell::default(),
            failsafe: Cell::new(1.0),
            full_waiters: Cell::new(false),
            again: tokio::sync::Notify::new(),
        }
    }
}

/// Bytes that are counted until this is dropped.
pub(crate) struct Counted(Rc<Cell<u64>>, u64);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.set(self.0.get().saturating_sub(self.1));
    }
}

/// Room that is pledged until this is dropped: what it is for was sent by then, or is not.
pub(crate) struct Pledged {
    ledger: Rc<RefCell<Ledger>>,
    pledges: Vec<Pledge>,
    /// Of this OSD's own store.
    own: u64,
}

impl Drop for Pledged {
    fn drop(&mut self) {
        let mut ledger = self.ledger.borrow_mut();
        self.pledges.drain(..).for_each(|p| ledger.release(p));
        ledger.stored(self.own);
    }
}

impl Rooms {
    /// Counts the bytes of a request that waits for room, as far as there is memory.
    pub(crate) fn wait(&self, bytes: u64) -> Option<Counted> {
        let sum = self.waiting.get().saturating_add(bytes);
        (sum <= WAITING_MAX).then(|| {
            self.waiting.set(sum);
            Counted(self.waiting.clone(), bytes)
        })
    }

    /// This OSD was marked up in an epoch: another life begins.
    pub(crate) fn begin(&self, up_from: u32) {
        self.ledger.borrow_mut().begin(life(self.process, up_from));
    }

    /// OSDs that there is an account of.
    pub(crate) fn known(&self) -> Vec<OsdId> {
        self.ledger.borrow().known()
    }

    /// Lives of another OSD that began before an epoch are over.
    pub(crate) fn end(&self, osd: OsdId, before: u32) {
        self.ledger.borrow_mut().end(osd, before);
        self.asked.borrow_mut().remove(&osd);
        self.short.borrow_mut().remove(&osd);
    }

    /// Which OSDs lead PGs that are here.
    pub(crate) fn set_leaders(&self, leaders: FxHashSet<OsdId>) {
        self.ledger.borrow_mut().set_writers(|osd| leaders.contains(&osd));
        *self.leaders.borrow_mut() = leaders;
    }

    /// OSDs that something waits for and that have not said what they may be sent; each once.
    pub(crate) fn unknown(&self) -> Vec<OsdId> {
        let (ledger, mut asked) = (self.ledger.borrow(), self.asked.borrow_mut());
        let new = |osd: &OsdId| !ledger.is_known(*osd) && asked.insert(*osd);
        self.short.borrow().iter().copied().filter(new).collect()
    }

    /// Whether an OSD that was unknown is known.
    pub(crate) fn is_found(&self, osd: OsdId) -> bool {
        let mut asked = self.asked.borrow_mut();
        asked.contains(&osd) && self.ledger.borrow().is_known(osd) && asked.remove(&osd)
    }

    /// An OSD leads a PG that has come here since the last map.
    pub(crate) fn leads(&self, osd: OsdId) {
        if self.leaders.borrow_mut().insert(osd) {
            self.ledger.borrow_mut().set_writer(osd);
        }
    }

    /// Takes a note; returns the bytes that came with it, which count until they are `stored`.
    pub(crate) fn hear(&self, from: OsdId, note: &RoomNote) -> u64 {
        let writes = self.leaders.borrow().contains(&from);
        let bytes = self.ledger.borrow_mut().hear(from, note, writes);
        if self.short.borrow_mut().remove(&from) {
            self.look_again();
        }
        bytes
    }

    /// Bytes that came are in the store once this is dropped.
    pub(crate) fn stored(&self, bytes: u64) -> Pledged {
        Pledged { ledger: self.ledger.clone(), pledges: Vec::new(), own: bytes }
    }

    /// The note that goes with a message.
    pub(crate) fn note(&self, to: OsdId, bytes: u64, space: Space, asks: bool) -> RoomNote {
        self.ledger.borrow_mut().note(to, bytes, space, asks)
    }

    /// Pledges room on these OSDs, and so much of this one's own store. `Err` if one has too little
    /// room.
    pub(crate) fn pledge(
        &self,
        to: &[OsdId],
        bytes: u64,
        kind: Kind,
        (own, space): (u64, Space),
    ) -> Result<Pledged, ()> {
        let mut ledger = self.ledger.borrow_mut();
        if ledger.unpromised(space) < own {
            return Err(());
        }
        let Some(pledges) = ledger.pledge(to, bytes, kind) else {
            let lacks = to.iter().filter(|o| ledger.lacks(**o, bytes, kind));
            self.short.borrow_mut().extend(lacks);
            return Err(());
        };
        ledger.hold(own);
        drop(ledger);
        Ok(Pledged { ledger: self.ledger.clone(), pledges, own })
    }

    /// OSDs to ask for a note: without room for something that waits here, or with a promise of
    /// this one's space that others need.
    pub(crate) fn to_ask(&self, space: Space) -> FxHashSet<OsdId> {
        let overdrawn = self.ledger.borrow().overdrawn(space);
        self.short.borrow().iter().copied().chain(overdrawn).collect()
    }

    /// A read for a copy has its room.
    pub(crate) fn begin_read(&self, id: SpgId, token: ReadToken, pledged: Pledged) {
        self.reads.borrow_mut().insert((id, token), pledged);
    }

    /// A read for a copy is over: its room is pledged until what was read is sent.
    pub(crate) fn end_read(&self, id: SpgId, token: ReadToken) -> Option<Pledged> {
        self.reads.borrow_mut().remove(&(id, token))
    }

    /// The interval in which a PG began reads is over.
    pub(crate) fn end_reads(&self, id: SpgId) {
        self.reads.borrow_mut().retain(|(pg, _), _| *pg != id);
    }

    /// Whether a message must wait because of its bytes, or behind one of its kind. The store never
    /// finds more than it has room for if all keep to their promises; those that are forced do not.
    pub(crate) fn holds(&self, e: &Envelope, available: u64) -> bool {
        let (bytes, ordered) = match &e.msg {
            PeerMsg::Push(_) => (room_of(&e.msg), false),
            PeerMsg::RepOp(op) => {
                let pledged = e.room.map_or(0, |note| note.cost);
                (pledged.max(unpledged(&op.payload)), true)
            }
            PeerMsg::Trim(_) => (0, true),
            _ => return false,
        };
        let behind = |h: &Envelope| {
            h.from == e.from
                && h.header.receiver() == e.header.receiver()
                && !matches!(h.msg, PeerMsg::Push(_))
        };
        bytes > available || (ordered && self.held.borrow().iter().any(behind))
    }

    /// The message waits for room in the store.
    pub(crate) fn hold(&self, e: Envelope) {
        self.held.borrow_mut().push(e);
    }

    /// Messages that may go on.
    pub(crate) fn take_held(&self) -> Vec<Envelope> {
        std::mem::take(&mut *self.held.borrow_mut())
    }

    /// Requests that wait for room look again.
    pub(crate) fn look_again(&self) {
        self.again.notify_waiters();
    }
}
