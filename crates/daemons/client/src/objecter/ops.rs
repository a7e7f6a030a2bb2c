//! The requests in flight.

use super::peer::{Peer, encode_features, peer_of};
use super::pending::{Answer, Forget, OP_PRIORITY, Pending, Reply};
use super::{InFlight, Inner, OpOutcome, Request};
use crate::error::{ClientError, Result};
use crate::scope::Scope;
use messages::{OsdOp, OsdOpReply, Payload};
use msgr::Connection;
use std::rc::Rc;
use tokio::sync::oneshot;
use types::rados::OsdFlags;
use types::{Epoch, Errno, ObjectId, OsdId, SpgId, features};

impl Inner {
    /// See [`super::Objecter::submit`].
    pub(super) async fn submit(self: &Rc<Self>, request: Request) -> Result<OpOutcome> {
        let Some(_share) = self.budget.take(request.bytes()).await else {
            return Err(ClientError::Shutdown);
        };
        Ok(self.submit_unbounded(request).await?.outcome)
    }

    /// The same for what must not wait for room: signs of life of watches.
    pub(super) async fn submit_unbounded(self: &Rc<Self>, request: Request) -> Result<Reply> {
        // Only what is sent once gets lost.
        self.submit_as(request, false).await?.ok_or(ClientError::Shutdown)
    }

    /// Sends a request that leaves something with a session: `None` if the session or the interval
    /// ends before the answer. Sent again under the same number it would get the answer of the
    /// first time, although what that left is gone.
    pub(super) async fn submit_once(self: &Rc<Self>, request: Request) -> Result<Option<Reply>> {
        self.submit_as(request, true).await
    }

    async fn submit_as(self: &Rc<Self>, request: Request, once: bool) -> Result<Option<Reply>> {
        let request = match self.send_and_wait(request, once).await {
            Answer::Done(reply) => return reply.map(Some),
            Answer::Lost => return Ok(None),
            Answer::NoPool(request) => request,
        };
        // Whether the pool is gone or only newer than our map, the monitors know.
        let (newest, _) = self.mon.get_version("osdmap").await?;
        let newest = Epoch(u32::try_from(newest).unwrap_or(u32::MAX));
        super::Objecter(self.clone()).wait_epoch(newest).await?;
        match self.send_and_wait(request, once).await {
            Answer::Done(reply) => reply.map(Some),
            Answer::Lost => Ok(None),
            Answer::NoPool(_) => Err(ClientError::NoPool),
        }
    }

    async fn send_and_wait(&self, request: Request, once: bool) -> Answer {
        if self.down.get() {
            return Answer::Done(Err(ClientError::Shutdown));
        }
        let (reply, answer) = oneshot::channel();
        let tid = self.next_tid();
        let pending = Pending { request, route: None, sent_to: None, attempts: 0, once, reply };
        self.ops.borrow_mut().insert(tid, pending);
        let _forget = Forget(&self.ops, tid);
        self.dispatch(tid);
        answer.await.unwrap_or(Answer::Done(Err(ClientError::Shutdown)))
    }

    /// Finds out where requests go under a new map, and sends those that have to be sent.
    pub(super) fn route_all(&self) {
        let tids: Vec<u64> = self.ops.borrow().keys().copied().collect();
        for tid in tids {
            self.dispatch(tid);
        }
    }

    /// Routes a request. False if there is no map, or it has ended because its pool is gone.
    fn route(&self, tid: u64) -> bool {
        let mut ops = self.ops.borrow_mut();
        let Some(op) = ops.get_mut(&tid) else { return false };
        match self.map.route(&op.request.scope, op.request.flags) {
            None => false,
            Some(None) => {
                if let Some(op) = ops.remove(&tid) {
                    let _ = op.reply.send(match op.route {
                        Some(_) => Answer::Done(Err(ClientError::NoPool)),
                        None => Answer::NoPool(op.request),
                    });
                }
                false
            }
            Some(Some(route)) => {
                let known = op.route.as_ref();
                if known.is_none_or(|known| known.placed.serial != route.placed.serial)
                    && op.sent_to.take().is_some()
                    && op.once
                {
                    if let Some(op) = ops.remove(&tid) {
                        let _ = op.reply.send(Answer::Lost);
                    }
                    return false;
                }
                op.route = Some(route);
                true
            }
        }
    }

    /// Sends a request if it is due and there is an OSD to send it to.
    fn dispatch(&self, tid: u64) {
        if !self.route(tid) {
            return;
        }
        let mut ops = self.ops.borrow_mut();
        let Some(op) = ops.get_mut(&tid) else { return };
        let Some(route) = op.route.as_ref().filter(|r| op.sent_to.is_none() && !r.paused) else {
            return;
        };
        let Some(osd) = route.placed.at.primary else { return };
        let Some(conn) = self.session(Peer::Osd(osd)) else { return };
        let pgid = route.placed.at.pgid;
        let object = || op.request.scope.object(op.request.snapid, route.hash);
        if self.with_session(&conn, |s| s.backoffs.block(pgid, object)) != Some(false) {
            return;
        }
        let mut flags = op.request.flags | OsdFlags::KNOWN_REDIR | OsdFlags::ONDISK;
        if op.attempts > 0 {
            flags |= OsdFlags::RETRY;
        }
        let mut message = OsdOp {
            pgid,
            hash: route.hash,
            epoch: route.epoch,
            flags,
            mtime: op.request.mtime,
            locator: op.request.scope.locator(),
            object: op.request.scope.object_name(),
            ops: op.request.ops.clone(),
            snapid: op.request.snapid,
            snapc: op.request.snapc.clone(),
            retry_attempt: op.attempts,
            features: features::SUPPORTED.0,
            ..OsdOp::default()
        }
        .encode(encode_features(&conn));
        message.tid = tid;
        message.priority = OP_PRIORITY;
        op.attempts += 1;
        op.sent_to = Some(osd);
        conn.send(message);
    }

    /// The requests without an answer.
    pub(super) fn in_flight(&self) -> Vec<InFlight> {
        let ops = self.ops.borrow();
        let all = ops.iter().map(|(tid, op)| InFlight {
            tid: *tid,
            scope: op.request.scope.clone(),
            placed: op.route.as_ref().map(|r| (r.placed.at.pgid, r.placed.at.primary, r.epoch)),
            sent_to: op.sent_to,
            paused: op.route.as_ref().is_some_and(|r| r.paused),
            attempts: op.attempts,
            ops: op.request.ops.clone(),
        });
        all.collect()
    }

    fn tids(&self, concerned: impl Fn(&Pending) -> bool) -> Vec<u64> {
        let ops = self.ops.borrow();
        ops.iter().filter(|(_, op)| concerned(op)).map(|(tid, _)| *tid).collect()
    }

    /// Sends what waits for a session with an OSD.
    pub(super) fn dispatch_to(&self, osd: OsdId) {
        for tid in self.tids(|op| op.sent_to.is_none() && op.goes_to(osd)) {
            self.dispatch(tid);
        }
    }

    /// Sends requests to a PG again, because the OSD has dropped them.
    pub(super) fn send_again(&self, osd: OsdId, pgid: SpgId, dropped: impl Fn(&ObjectId) -> bool) {
        let concerned = |op: &Pending| {
            op.goes_to(osd)
                && op.route.as_ref().is_some_and(|r| {
                    r.placed.at.pgid == pgid
                        && dropped(&op.request.scope.object(op.request.snapid, r.hash))
                })
        };
        for tid in self.tids(concerned) {
            self.redispatch(tid);
        }
    }

    /// Sends a request whether it was sent already or not.
    fn redispatch(&self, tid: u64) {
        if let Some(op) = self.ops.borrow_mut().get_mut(&tid) {
            op.sent_to = None;
        }
        self.dispatch(tid);
    }

    /// What an OSD got, it will not answer any more.
    pub(super) fn forget_sent_ops(&self, osd: OsdId) {
        for tid in self.tids(|op| op.sent_to == Some(osd)) {
            let mut ops = self.ops.borrow_mut();
            if ops.get(&tid).is_some_and(|op| op.once) {
                if let Some(op) = ops.remove(&tid) {
                    let _ = op.reply.send(Answer::Lost);
                }
            } else if let Some(op) = ops.get_mut(&tid) {
                op.sent_to = None;
            }
        }
    }

    pub(super) fn fail_ops(&self, error: &ClientError) {
        for op in std::mem::take(&mut *self.ops.borrow_mut()).into_values() {
            let _ = op.reply.send(Answer::Done(Err(error.clone())));
        }
    }

    pub(super) fn finish(&self, tid: u64, reply: Result<Reply>) {
        if let Some(op) = self.ops.borrow_mut().remove(&tid) {
            let _ = op.reply.send(Answer::Done(reply));
        }
    }

    pub(super) fn replied(&self, conn: &Connection, tid: u64, reply: OsdOpReply) {
        let mut ops = self.ops.borrow_mut();
        let Some(op) = ops.get_mut(&tid) else { return };
        let ours = op.sent_to.is_some_and(|osd| peer_of(conn) == Some(Peer::Osd(osd)));
        // An answer to an earlier attempt: the one to the last is still to come.
        if !ours || (reply.retry_attempt >= 0 && reply.retry_attempt != op.attempts - 1) {
            return;
        }
        if let Some(redirect) = reply.redirect {
            if let Scope::Object { pool, namespace, key, name } = &mut op.request.scope {
                *pool = redirect.locator.pool;
                *namespace = redirect.locator.namespace;
                *key = redirect.locator.key;
                if !redirect.object.is_empty() {
                    *name = redirect.object;
                }
            }
            op.request.flags |=
                OsdFlags::REDIRECTED | OsdFlags::IGNORE_CACHE | OsdFlags::IGNORE_OVERLAY;
            drop(ops);
            self.redispatch(tid);
            return;
        }
        if reply.result == -Errno::EAGAIN.0 {
            // A replica that could not serve a read: the primary is asked.
            op.request.flags =
                op.request.flags & !(OsdFlags::BALANCE_READS | OsdFlags::LOCALIZE_READS);
            drop(ops);
            self.redispatch(tid);
            return;
        }
        let Some(placed) = op.route.as_ref().map(|r| r.placed.clone()) else { return };
        drop(ops);
        let outcome = OpOutcome {
            result: reply.result,
            ops: reply.ops,
            user_version: reply.user_version,
            epoch: reply.epoch,
        };
        self.finish(tid, Ok(Reply { outcome, conn: conn.id(), placed }));
    }
}
