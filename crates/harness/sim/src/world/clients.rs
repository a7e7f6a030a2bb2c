//! Clients: each has one operation under way, and sends it again when its map says so.

use pg::MapView;
use types::{Epoch, PgId, SpgId};

use super::parts::Target;
use super::{Ev, MS, POOL, World};
use crate::content::object_id;
use crate::history::{Did, Done};
use crate::request::{Ask, ClientOp};
use crate::rng::mix;

impl World {
    /// Which PG an object is in, as a client with a map of this epoch sees it.
    pub(super) fn pgid_of(&self, object: u64, epoch: Epoch) -> PgId {
        let map = self.monitor.at(epoch);
        let pg_num = map.and_then(|m| m.pools.get(&POOL).map(|p| p.pg_num)).unwrap_or(1);
        let hash = object_id(POOL, object / self.scenario.cells()).hash;
        PgId {
            pool: POOL,
            seed: types::pgid::stable_mod(hash, pg_num, types::pgid::mask_of(pg_num)),
        }
    }

    pub(super) fn next_op(&mut self, client: usize) {
        if self.clients[client].current.is_some() || self.clients[client].left == 0 {
            return;
        }
        let object = self.rng.range(0, self.scenario.objects);
        let ask = match self.rng.range(0, 10) {
            0..=4 => {
                self.values += 1;
                Ask::Write(self.values, self.rng.range(1, 8) as u32)
            }
            5 => Ask::Delete,
            _ => Ask::Read,
        };
        let deletes = self.scenario.deletes > 0 && self.rng.permille(self.scenario.deletes);
        let ask = if deletes { Ask::Delete } else { ask };
        let ask = if ask == Ask::Read { self.at_a_snapshot(client) } else { ask };
        let pgid = self.pgid_of(object, self.clients[client].epoch).into();
        let balanced = ask == Ask::Read && self.rng.permille(self.scenario.balanced);
        let c = &mut self.clients[client];
        c.left -= 1;
        c.tid += 1;
        let (tid, epoch, cells) = (c.tid, c.epoch, self.scenario.cells());
        let op = ClientOp { client, tid, object, cells, pgid, ask, epoch, balanced };
        c.current = Some((op, self.processed));
        c.knew = c.epoch;
        c.sent_to = None;
        self.send_op(client);
    }

    /// Sends the client's operation to the primary, if it was not sent to it in this interval.
    pub(super) fn send_op(&mut self, client: usize) {
        let c = &self.clients[client];
        let Some((mut op, _)) = c.current else { return };
        let pgid = self.pgid_of(op.object, c.epoch);
        let target = self.target(c.epoch, pgid);
        let Some(Target { primary, incarnation, .. }) = target else { return };
        op.pgid = SpgId { pgid, shard: primary.shard };
        if c.sent_to == target {
            return;
        }
        op.epoch = c.epoch;
        let (mut to, mut incarnation) = (primary.osd, incarnation);
        if op.balanced
            && let Some(map) = self.monitor.at(op.epoch)
        {
            let acting = map.mapping(pgid).acting;
            let any = acting[self.rng.range(0, acting.len() as u64) as usize].osd;
            if let Some(its) = map.incarnation(any) {
                (to, incarnation) = (any, its);
            }
        }
        let c = &mut self.clients[client];
        c.sent_to = target;
        self.on_link((1000 + client as i64, to.0.into()), Ev::Op { to, incarnation, op });
        if self.rng.permille(self.scenario.duplicates) {
            // As when a session broke: it comes again, after others.
            let late = self.rng.range(1, 200 * MS);
            self.mark("request came twice");
            self.after(late, Ev::Op { to, incarnation, op });
        }
    }

    /// An answer that says nothing of the object.
    pub(super) fn refused(&mut self, client: usize, tid: u64, again: bool) {
        let c = &mut self.clients[client];
        let Some((op, _)) = c.current.as_mut().filter(|(op, _)| op.tid == tid) else { return };
        if again {
            if std::mem::take(&mut op.balanced) {
                c.sent_to = None;
                self.send_op(client);
            }
        } else {
            c.current = None;
            self.after(1, Ev::NextOp(client));
        }
    }

    /// Where an operation goes in an epoch. An interval is told by its acting set, and by the
    /// epochs since which its members are up.
    pub(super) fn target(&self, epoch: Epoch, pgid: PgId) -> Option<Target> {
        let map = self.monitor.at(epoch)?;
        let mapping = map.mapping(pgid);
        let primary = mapping.primary?;
        let pg_num = map
            .pools
            .get(&pgid.pool)
            .map_or(0, |p| u64::from(p.pg_num) << 32 | u64::from(p.pg_num_pending));
        let interval = mapping
            .acting
            .osds()
            .fold(pg_num, |h, o| mix(h ^ (o.0 as u64) << 32 ^ u64::from(map.up_from(o).0)));
        Some(Target { primary, incarnation: map.incarnation(primary.osd)?, interval })
    }

    pub(super) fn answer(&mut self, client: usize, tid: u64, did: Did) {
        let Some((op, start)) = self.clients[client].current.filter(|(op, _)| op.tid == tid) else {
            return;
        };
        // A replica that reads may know more snapshots than the primary that writes.
        let knew = if op.balanced { Epoch(0) } else { self.clients[client].knew };
        self.clients[client].current = None;
        self.answered += 1;
        if let Did::ReadAt(snap, _) = did
            && self.history.snaps.iter().any(|s| s.id == snap && s.removed)
        {
            // What is there while it goes is open.
            self.mark("snapshot went while it was read");
        } else {
            let done = Done { client, did, epoch: knew, start, end: self.processed };
            self.history.objects.entry(op.object).or_default().push(done);
        }
        let think = if self.calm { 1 } else { self.rng.range(1, 400 * MS) };
        self.after(think, Ev::NextOp(client));
    }
}
