//! How much room other OSDs have, so that none is sent what it cannot store.
//!
//! What a primary has sent is in the PG's log: a replica cannot refuse it, and a store without room
//! for it ends its OSD. The map says that an OSD is full only seconds after it is. So every message
//! to another OSD says how much room is left, divided by the number of OSDs that may write here at
//! the same time. A write that takes space waits while it does not fit in there together with what
//! is under way; so does the reading of an object for a push. Deleting, the log and the OSD's own
//! records use what is kept back.

use rustc_hash::FxHashMap;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};
use store::StatFs;
use types::OsdId;

/// What is kept back from clients and from copies, or a 64th of a small store.
const RESERVE: u64 = 16 << 20;

/// What was said so long ago counts no more. Leases are renewed more often, so those that are up
/// are heard.
const FORGOTTEN: Duration = Duration::from_secs(30);

/// Bytes of requests that may wait for room beside the throttles of their connections.
const WAITING_MAX: u64 = 128 << 20;

/// What one other OSD may still send here, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Of clients' data: what is below `osd_failsafe_full_ratio`.
    pub data: u64,
    /// Of copies of objects, which restore what was written before.
    pub copies: u64,
}

/// The bytes that are kept back.
pub(crate) fn reserve(space: &StatFs) -> u64 {
    RESERVE.min(space.total / 64)
}

/// What other OSDs have told of their room, and what is under way to them.
pub(crate) struct Rooms {
    /// What others said last, and when.
    heard: RefCell<FxHashMap<OsdId, (Room, Instant)>>,
    /// Bytes of proposals that are not on all disks yet.
    under_way: Rc<Cell<u64>>,
    /// Bytes of requests that wait for room, and do not hold back what else their connections
    /// bring.
    waiting: Rc<Cell<u64>>,
    /// How many OSDs lead PGs that are here.
    pub(crate) leaders: Cell<u64>,
    /// The used part of the store from which clients' writes wait.
    pub(crate) failsafe: Cell<f64>,
    /// Some PG has requests that wait for room.
    pub(crate) full_waiters: Cell<bool>,
    /// Notified when it is worth to look again.
    pub(crate) again: tokio::sync::Notify,
}

impl Default for Rooms {
    fn default() -> Rooms {
        Rooms {
            heard: RefCell::default(),
            under_way: Rc::default(),
            waiting: Rc::default(),
            leaders: Cell::new(1),
            failsafe: Cell::new(1.0),
            full_waiters: Cell::new(false),
            again: tokio::sync::Notify::new(),
        }
    }
}

/// Bytes that are counted until this is dropped.
pub(crate) struct Counted(Rc<Cell<u64>>, u64);

impl Counted {
    fn new(sum: &Rc<Cell<u64>>, bytes: u64) -> Counted {
        sum.set(sum.get().saturating_add(bytes));
        Counted(sum.clone(), bytes)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.set(self.0.get().saturating_sub(self.1));
    }
}

impl Rooms {
    /// Counts the bytes of a proposal.
    pub(crate) fn send(&self, bytes: u64) -> Counted {
        Counted::new(&self.under_way, bytes)
    }

    /// Counts the bytes of a request that waits for room, as far as there is memory.
    pub(crate) fn wait(&self, bytes: u64) -> Option<Counted> {
        let fits = self.waiting.get().saturating_add(bytes) <= WAITING_MAX;
        fits.then(|| Counted::new(&self.waiting, bytes))
    }

    /// An OSD says how much room it has.
    pub(crate) fn hear(&self, from: OsdId, room: Room) {
        self.heard.borrow_mut().insert(from, (room, Instant::now()));
    }

    /// The first of these OSDs that has not enough room left.
    fn first(
        &self,
        osds: impl IntoIterator<Item = OsdId>,
        lacks: impl Fn(Room) -> bool,
    ) -> Option<OsdId> {
        let (heard, now) = (self.heard.borrow(), Instant::now());
        osds.into_iter().find(|o| {
            heard.get(o).is_some_and(|(room, at)| {
                lacks(*room) && now.saturating_duration_since(*at) < FORGOTTEN
            })
        })
    }

    /// The first of these OSDs that has no room for so many bytes beside all that is under way.
    pub(crate) fn full(&self, osds: impl IntoIterator<Item = OsdId>, bytes: u64) -> Option<OsdId> {
        let need = bytes.saturating_add(self.under_way.get());
        self.first(osds, |r| r.data < need)
    }

    /// The same for a part of a copy.
    pub(crate) fn full_of_copies(
        &self,
        osds: impl IntoIterator<Item = OsdId>,
        bytes: u64,
    ) -> Option<OsdId> {
        self.first(osds, |r| r.copies < bytes)
    }

    /// Requests that wait for room look again.
    pub(crate) fn look_again(&self) {
        self.again.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_under_way_takes_room() {
        let rooms = Rooms::default();
        let (a, b) = (OsdId(1), OsdId(2));
        assert_eq!(rooms.full([a, b], u64::MAX), None, "nothing was said");
        rooms.hear(a, Room { data: 100, copies: 150 });
        rooms.hear(b, Room { data: 200, copies: 250 });
        assert_eq!(rooms.full([a, b], 100), None);
        assert_eq!(rooms.full([b, a], 101), Some(a));
        let under_way = rooms.send(60);
        assert_eq!(rooms.full([a, b], 41), Some(a));
        assert_eq!(rooms.full([b], 141), Some(b));
        assert_eq!(
            rooms.full_of_copies([a, b], 150),
            None,
            "copies are counted by those who ask for them"
        );
        assert_eq!(rooms.full_of_copies([a, b], 151), Some(a));
        drop(under_way);
        assert_eq!(rooms.full([a, b], 100), None);
        rooms.hear(a, Room::default());
        assert_eq!(rooms.full([a], 1), Some(a));
    }
}
