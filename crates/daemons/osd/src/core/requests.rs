//! From a client's message to the scheduler: what a request may do, the OSD that the map names for
//! it, and which requests this OSD must not answer.

use super::Core;
use crate::client_op::{ClientOp, ReplySink, Request, Work};
use crate::tracker::Stage;
use crate::waits::{Reason, Waiter};
use messages::{OsdBackoff, OsdOp};
use objops::{OpInfo, OsdFlags};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Instant;
use types::{Errno, PgId, PgShard, SpgId};

/// A client that is further behind asks the monitors.
pub(crate) const MAPS_SHARED: u32 = 16;

impl Core {
    /// Clients ask monitors for maps only every few seconds: a client that lost another OSD learns
    /// from those it still talks to where to go (Ceph: `OSDService::maybe_share_map`). One whose
    /// request is dropped, because another OSD leads the PG, or this one has begun to lead it after
    /// the client looked, gets the newest map at least. The others get maps only without a gap: a
    /// client that misses one sends all again that it waits for.
    fn share_map(&self, sink: &Rc<dyn ReplySink>, m: &OsdOp) {
        let Some(map) = self.map() else { return };
        let epoch = map.epoch();
        let Some(shared) = sink.shared_map().map(Cell::get).filter(|shared| *shared < epoch) else {
            return;
        };
        if m.epoch >= epoch {
            return;
        }
        let raw = PgId { pool: m.pgid.pgid.pool, seed: m.pgid.pgid.seed };
        let must = map.fold(raw).is_some_and(|pgid| {
            let since = self
                .leading(pgid)
                .map_or(epoch, |h| h.with_pg(|p| p.info().history.same_primary_since));
            map.mapping(pgid).primary.is_none_or(|p| p.osd != self.whoami) || m.epoch < since
        });
        if must || epoch.0 - m.epoch.max(shared).0 <= MAPS_SHARED {
            self.maps.tell(sink, m.epoch, must);
        }
    }

    /// Takes a client's request.
    pub fn handle_request(
        &self,
        request: Request,
        sink: Rc<dyn ReplySink>,
        guard: Option<msgr::ReceiveGuard>,
    ) {
        self.share_map(&sink, &request.m);
        let request = Rc::new(request);
        let tracked = self.tracker.start(request.clone(), Instant::now());
        let (info, refused) =
            match OpInfo::new(request.m.flags, &request.m.ops, &self.settings().classes) {
                Ok(info) if request.m.flags.has(OsdFlags::PARALLELEXEC) => {
                    (info, Some(Errno::EINVAL))
                }
                Ok(info) if !self.allows(&*sink, &request, &info) => (info, Some(Errno::EPERM)),
                Ok(info) => (info, None),
                Err(e) => (OpInfo::default(), Some(e)),
            };
        let raw = PgId { pool: request.m.pgid.pgid.pool, seed: request.m.pgid.pgid.seed };
        let op = Rc::new(ClientOp::new(request, info, raw, sink, tracked, self.new_token(), guard));
        if let Some(e) = refused {
            op.reply_error(e, self.epoch());
            return;
        }
        self.route(op);
    }

    /// A client has seen that it is to hold back.
    pub(crate) fn backoff_acknowledged(&self, session: u64, m: &OsdBackoff) {
        if let Some(host) = self.host(m.pgid).filter(|_| m.op == OsdBackoff::ACK_BLOCK) {
            let arrival = self.new_token();
            host.st.borrow_mut().backoffs.acknowledged(session, m.id, arrival);
        }
    }

    /// Whether a client's capabilities cover a request. A pool that this map does not have is
    /// looked for in the next ones; nothing runs before.
    fn allows(&self, sink: &dyn ReplySink, request: &Request, info: &OpInfo) -> bool {
        let pool = self.map().and_then(|m| m.pool_ops(request.m.pgid.pgid.pool));
        pool.is_none_or(|pool| sink.allows(request, info, &pool))
    }

    /// Finds the group of a request and queues it there, or lets it wait, or drops it.
    pub(crate) fn route(&self, op: Rc<ClientOp>) {
        let m = op.m();
        if m.epoch > self.epoch() {
            self.wait_map(m.epoch, Waiter::Op(op));
            return;
        }
        let Some(map) = self.map() else { return };
        let Some(pgid) = map.fold(op.pgid) else {
            // The pool is gone, or the client is mistaken.
            return self.drop_request(&op);
        };
        let op = if pgid == op.pgid { op } else { self.refold(op, pgid) };
        // Clients name the copy that leads; in replicated pools that has no position.
        let id = op.copy();
        match self.host(id) {
            Some(host)
                if host.with_pg(|pg| pg.is_primary() && pg.is_active())
                    && host.is_sign_of_life(&op) =>
            {
                op.tracked.mark(Stage::ReachedPg);
                host.run_client_op(op);
            }
            Some(host) if host.may_serve(&op) => {
                if let Some(op) = host.wait_if_not_ready(op) {
                    self.resume(op);
                }
            }
            Some(_) => self.drop_request(&op),
            None if map.mapping(pgid).primary == Some(self.copy_here(id)) => {
                self.pgs.waits.borrow_mut().add(Reason::Pg(id), Waiter::Op(op));
            }
            None => self.drop_request(&op),
        }
    }

    /// A request goes on: to the scheduler, or to its PG if it had its turn there and has waited
    /// since. Those behind it in its session have not had theirs, so that it stays ahead of them.
    pub(crate) fn resume(&self, op: Rc<ClientOp>) {
        if op.had_turn.get() {
            self.start_again(op);
        } else {
            op.tracked.mark(Stage::Queued);
            self.enqueue(Work::Client(op));
        }
    }

    /// The same for several, in the order in which they came.
    pub(crate) fn resume_all(&self, mut ops: Vec<Rc<ClientOp>>) {
        ops.sort_by_key(|op| op.received);
        ops.into_iter().for_each(|op| self.resume(op));
    }

    /// The name of a copy that this OSD has.
    fn copy_here(&self, id: SpgId) -> PgShard {
        PgShard { osd: self.whoami, shard: id.shard }
    }

    /// A request of a PG that was split meanwhile.
    fn refold(&self, op: Rc<ClientOp>, pgid: PgId) -> Rc<ClientOp> {
        match Rc::try_unwrap(op) {
            Ok(mut op) => {
                op.pgid = pgid;
                Rc::new(op)
            }
            Err(shared) => shared,
        }
    }

    /// Drops a request that this OSD must not answer: by a map that its client had not seen when it
    /// sent it, another OSD leads the group, or this one leads it anew. The client sends it again
    /// when it has seen that map. One that has nothing else under way hears of no map for as long
    /// as it waits (Ceph's clients look for one after `objecter_timeout`, 10 s), so it is told.
    pub(crate) fn drop_request(&self, op: &ClientOp) {
        if op.is_replied() || !op.sink().is_open() {
            return;
        }
        if self.is_left_to_primary(op) {
            return self.reply_error(op, Errno::EAGAIN);
        }
        if op.sink().shared_map().is_none() {
            return;
        }
        let sent = op.m().epoch;
        tracing::debug!(osd = self.whoami.0, pg = %op.pgid, client = %op.request.source, %sent, "request dropped");
        self.maps.tell(op.sink(), sent, true);
    }

    /// Whether a request is a read that its client lets any replica serve, and that it may have
    /// sent by the newest map: the client sends it again only when the acting set changes, so that
    /// it is told to ask the primary. A replica cannot serve it while it is not active, or if it is
    /// ordered behind writes.
    fn is_left_to_primary(&self, op: &ClientOp) -> bool {
        if !op.may_leave_primary() {
            return false;
        }
        let pool = self.map().and_then(|map| map.pool_ops(op.pgid.pool));
        let sent = op.m().epoch;
        pool.is_some_and(|pool| sent >= pool.last_force_op_resend)
            && self.host(op.copy()).is_none_or(|host| {
                host.with_pg(|pg| !pg.is_primary() && sent >= pg.info().history.last_epoch_split)
            })
    }

    /// Groups may have other leaders than before: requests that wait for their turn and that this
    /// OSD must not answer any more are dropped. Their clients send them to whom they belong to
    /// now. If they stayed, those behind them would wait for them, and the manager would take them
    /// for something that is asked for.
    pub fn drop_void(&self) {
        let newest = self
            .pgs
            .all()
            .iter()
            .map(|h| h.with_pg(|pg| pg.info().history.same_primary_since))
            .max()
            .unwrap_or_default();
        let Some(map) = self.map().filter(|_| self.maps.leads_anew(newest)) else {
            return;
        };
        let is_void = |op: &ClientOp| {
            let resend = map.pool_ops(op.pgid.pool).map(|pool| pool.last_force_op_resend);
            resend.zip(self.host(op.copy())).is_some_and(|(resend, host)| host.is_void(op, resend))
        };
        let out = self.admission.queue.borrow_mut().take_out(&is_void, Instant::now());
        out.iter().for_each(|op| self.drop_request(op));
    }

    /// A client's connection is gone: what waits for its turn the client sends again, if it still
    /// wants it (Ceph: `osd_discard_disconnected_ops`).
    pub(crate) fn drop_requests_of(&self, session: u64) {
        let gone = self
            .admission
            .queue
            .borrow_mut()
            .take_out(&|op| op.sink().session() == session, Instant::now());
        // Not while the queue is borrowed: what goes with them may make room for others.
        drop(gone);
    }
}
