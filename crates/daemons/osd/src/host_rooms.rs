//! How much room there is here for others, and where PGs wait for room elsewhere; see
//! [`crate::rooms`].

use crate::client_op::ClientOp;
use crate::core::Core;
use crate::host::PgHost;
use crate::map::ClusterMap;
use crate::peer_net::Envelope;
use crate::rooms::{ATTRS, Pledged, SEAL, reserve, room_of};
use objops::txn::Mutations;
use pg::{PeerHeader, PeerMsg};
use room_ledger::{Kind, Space};
use rustc_hash::FxHashSet;
use smallvec::SmallVec;
use std::rc::Rc;
use types::{ObjectId, OsdId, PgShard};

impl Core {
    /// What there is here for others.
    fn room(&self) -> Space {
        let space = self.backlog.space();
        let failsafe = (space.total as f64 * (1.0 - self.failsafe())) as u64;
        let above = |floor: u64| space.available.saturating_sub(floor);
        let reserve = reserve(&space);
        Space { data: above(failsafe.max(reserve)), copies: above(reserve) }
    }

    /// Sends a message to other copies, with what each may send here.
    pub(crate) fn send(&self, to: &[PgShard], header: PeerHeader, msg: PeerMsg) {
        let (bytes, space) = (room_of(&msg), self.room());
        let note = |c: &PgShard| self.rooms.note(c.osd, bytes, space, false);
        let notes: SmallVec<[_; 3]> = to.iter().map(note).collect();
        self.links.net.send(to, header, msg, &notes);
    }

    /// Tells another OSD what it may send here.
    fn tell(&self, osd: OsdId, asks: bool) {
        self.links.net.tell(osd, self.rooms.note(osd, 0, self.room(), asks), self.epoch());
    }

    /// Takes the note of a message. `None` if there was nothing else, or the message must wait
    /// until there is room for it.
    pub(crate) fn take_note(&self, mut e: Envelope) -> Option<Envelope> {
        let first = !e.heard;
        if first && let Some(note) = &e.room {
            let bytes = self.rooms.hear(e.from, note);
            e.arrived = bytes;
            if note.asks {
                self.tell(e.from, false);
            }
            if self.rooms.is_found(e.from) && self.rooms.full_waiters.replace(false) {
                self.hosts().iter().for_each(PgHost::retry_for_room);
            }
        }
        e.heard = true;
        if matches!(e.msg, PeerMsg::Room) {
            return None;
        }
        if self.rooms.holds(&e, self.backlog.space().available) {
            if first {
                tracing::warn!(
                    osd = self.whoami.0,
                    from = e.from.0,
                    "no room for what came: it waits"
                );
            }
            self.rooms.hold(e);
            return None;
        }
        Some(e)
    }

    /// Asks OSDs that have said nothing of their room since they came up.
    fn ask_unknown(&self) {
        for osd in self.rooms.unknown() {
            self.tell(osd, true);
        }
    }

    /// Looks whether there is room for what waits for it.
    pub(crate) fn ask_for_room(&self) {
        for e in self.rooms.take_held() {
            self.handle_peer(e);
        }
        for osd in self.rooms.to_ask(self.room()) {
            self.tell(osd, true);
        }
    }

    /// Lives end that the next map says are over.
    pub(crate) fn end_lives(&self, next: &dyn ClusterMap) {
        let up_from = next.up_from(self.whoami);
        if next.is_up(self.whoami) {
            self.rooms.begin(up_from.0);
        }
        for osd in self.rooms.known() {
            let since = if next.is_up(osd) { next.up_from(osd) } else { next.epoch() };
            self.rooms.end(osd, since.0);
        }
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
        let leaders: FxHashSet<_> = self
            .hosts()
            .iter()
            .filter_map(|h| h.with_pg(|pg| pg.mapping().primary))
            .map(|p| p.osd)
            .collect();
        self.rooms.set_leaders(leaders);
    }
}

impl PgHost {
    /// The bytes of a store that a change may take on each OSD.
    fn bytes_each(&self, txn: &Mutations) -> u64 {
        let all = txn.room() + SEAL;
        // A shard gets its part, rounded to stripes at both ends.
        self.coding().map_or(all, |coding| {
            let (k, unit) = (coding.layout.k() as u64, coding.layout.unit());
            all.min(all / k.max(1) + 2 * unit + SEAL)
        })
    }

    /// Whether this store takes a change, if nothing is kept for others.
    pub(crate) fn has_own_room(&self, txn: &Mutations) -> bool {
        self.bytes_each(txn) <= self.core.backlog.space().available
    }

    /// Room for a change here and on the other OSDs that take it. `Err` if one has too little.
    pub(crate) fn room_for_write(&self, txn: &Mutations) -> Result<Pledged, ()> {
        let me = self.core.whoami;
        let bytes = self.bytes_each(txn);
        let others: FxHashSet<OsdId> = self.with_pg(|pg| {
            let m = pg.mapping();
            m.acting.osds().chain(m.up.osds()).filter(|o| *o != me).collect()
        });
        let others: SmallVec<[OsdId; 4]> = others.into_iter().collect();
        let own = (bytes, self.core.room());
        let pledged = self.core.rooms.pledge(&others, bytes, Kind::Data, own);
        self.core.ask_unknown();
        pledged
    }

    /// The OSDs that get a part of a copy from here, of these copies. This one is not among them.
    fn receivers(&self, copies: &[PgShard]) -> (SmallVec<[OsdId; 4]>, bool) {
        let me = self.core.whoami;
        let mut osds: SmallVec<[OsdId; 4]> = copies.iter().map(|c| c.osd).collect();
        osds.sort_unstable();
        osds.dedup();
        let own = osds.contains(&me);
        osds.retain(|o| *o != me);
        (osds, own)
    }

    /// The copies that get what is read of an object here: a replica only sends to its primary.
    pub(crate) fn lacking(&self, oid: &ObjectId) -> Vec<PgShard> {
        self.with_pg(|pg| match pg.mapping().primary {
            Some(primary) if !pg.is_primary() => vec![primary],
            _ => pg.copies_lacking(oid),
        })
    }

    /// Pledges room for a part of a copy, once there is some. `None` if the interval ends before.
    pub(crate) async fn room_for_copies(
        self: &Rc<Self>,
        to: &[PgShard],
        bytes: u64,
        generation: u64,
    ) -> Option<Pledged> {
        let (osds, own) = self.receivers(to);
        let bytes = bytes.saturating_add(ATTRS);
        loop {
            if self.generation.get() != generation {
                return None;
            }
            let mut again = std::pin::pin!(self.core.rooms.again.notified());
            again.as_mut().enable();
            let own = (if own { bytes } else { 0 }, self.core.room());
            if let Ok(pledged) = self.core.rooms.pledge(&osds, bytes, Kind::Copies, own) {
                return Some(pledged);
            }
            self.core.ask_unknown();
            again.await;
        }
    }
}
