//! How much room there is here for others, and where PGs wait for room elsewhere; see
//! [`crate::rooms`].

use crate::client_op::ClientOp;
use crate::core::Core;
use crate::host::PgHost;
use crate::rooms::{Room, reserve};
use rustc_hash::FxHashSet;
use types::OsdId;

impl Core {
    /// What each other OSD may send here.
    pub fn room(&self) -> Room {
        let (space, leaders) = (self.backlog.space(), self.rooms.leaders.get().max(1));
        let failsafe = (space.total as f64 * (1.0 - self.failsafe())) as u64;
        let above = |floor: u64| space.available.saturating_sub(floor) / leaders;
        Room { data: above(failsafe.max(reserve(&space))), copies: above(reserve(&space)) }
    }

    /// A request waits for room. Reads and deletes that come behind it on its connection must get
    /// through, so it gives back its part of the connection's throttle, as far as there is memory.
    pub(crate) fn let_pass(&self, op: &ClientOp, bytes: u64) {
        if op.waits.borrow().is_none()
            && let Some(counted) = self.rooms.wait(bytes)
        {
            *op.waits.borrow_mut() = Some(counted);
            drop(op.guard.take());
        }
    }

    /// Counts the OSDs that may write here, after the map or the PGs have changed.
    pub(crate) fn count_leaders(&self) {
        let leaders: FxHashSet<_> =
            self.hosts().iter().filter_map(|h| h.with_pg(|pg| pg.mapping().primary)).collect();
        self.rooms.leaders.set(leaders.len() as u64);
    }
}

impl PgHost {
    /// Does something with the other OSDs that take what is written to this PG.
    fn with_others<R>(&self, f: impl FnOnce(&mut dyn Iterator<Item = OsdId>) -> R) -> R {
        let me = self.core.whoami;
        self.with_pg(|pg| {
            let m = pg.mapping();
            f(&mut m.acting.osds().chain(m.up.osds()).filter(|o| *o != me))
        })
    }

    /// Whether a write to this PG might not find room on another OSD.
    pub(crate) fn writes_lack_room(&self, bytes: u64) -> bool {
        self.with_others(|others| self.core.rooms.full(others, bytes).is_some())
    }

    /// The OSDs that get a part of a copy from here: a replica only sends to its primary.
    fn receivers(&self) -> Vec<OsdId> {
        match self.with_pg(|pg| (pg.is_primary(), pg.mapping().primary)) {
            (false, Some(primary)) => vec![primary.osd],
            _ => self.with_others(|others| others.collect()),
        }
    }

    /// Whether a part of a copy that is read now might not find room where it goes to.
    pub(crate) fn copies_lack_room(&self, bytes: u64) -> bool {
        self.core.rooms.full_of_copies(self.receivers(), bytes).is_some()
    }

    /// Waits until there is room for a part of a copy. The PG may be gone by then.
    pub(crate) async fn room_for_copies(&self, bytes: u64) {
        while self.copies_lack_room(bytes) {
            self.core.rooms.again.notified().await;
        }
    }
}
