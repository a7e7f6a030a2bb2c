//! Watches of a group on its host: carries messages and time between [`objops::watch`] and the
//! world.

use crate::client_op::{ClientOp, ReplySink};
use crate::core::Core;
use crate::gate::{Head, Mode};
use crate::host::{Completion, Context, Job, PgHost};
use bytes::Bytes;
use client::wall_clock;
use objops::OI_ATTR;
use objops::code::{OpArgs, OpCode};
use objops::object::{ObjectState, encode_attr};
use objops::txn::Mutations;
use objops::watch::{self, Effects, Link, Row, Watcher};
use pg::{LogOp, NewEntry, ObjectStatus, StatSum};
use smallvec::smallvec;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};
use store::Change;
use types::rados::watch_op;
use types::{ObjectId, ReqId};

/// How long a watch that is over waits for an object that cannot be written now.
const AGAIN: Duration = Duration::from_secs(1);
/// Clients send a ping every five seconds (Ceph: `Objecter::tick`, `objecter_tick_interval`).
pub(crate) const PINGS_APART: Duration = Duration::from_secs(1);

impl Link for dyn ReplySink {
    fn session(&self) -> u64 {
        ReplySink::session(self)
    }

    fn is_open(&self) -> bool {
        ReplySink::is_open(self)
    }
}

/// The executor's clock, which tests can turn.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

async fn run_clock(core: Weak<Core>, earlier: Rc<tokio::sync::Notify>) {
    while let Some(at) = core.upgrade().and_then(|c| c.watch_clock.at.get()) {
        tokio::select! {
            () = earlier.notified() => continue,
            () = tokio::time::sleep_until(at.into()) => {}
        }
        let Some(core) = core.upgrade() else { break };
        core.watch_clock.at.set(None);
        let hosts = core.hosts();
        hosts.iter().for_each(|h| h.expire_watches());
        let next = hosts.iter().filter_map(|h| h.watches.borrow().next_deadline()).min();
        let clock = &core.watch_clock;
        clock.at.set([clock.at.get(), next].into_iter().flatten().min());
    }
    if let Some(core) = core.upgrade() {
        core.watch_clock.running.set(false);
    }
}

impl Core {
    fn wake_watches(&self, at: Instant) {
        let clock = &self.watch_clock;
        if clock.at.get().is_some_and(|t| t <= at) {
            return;
        }
        clock.at.set(Some(at));
        if clock.running.replace(true) {
            clock.earlier.notify_one();
        } else {
            tokio::task::spawn_local(run_clock(Rc::downgrade(&self.rc()), clock.earlier.clone()));
        }
    }

    /// Unique as long as the epoch grows with each start.
    pub(crate) fn next_notify_id(&self) -> u64 {
        let next = &self.watch_clock.next_notify;
        let id = next.replace(next.get().wrapping_add(1));
        u64::from(self.epoch().0) << 32 | u64::from(id)
    }

    /// A client's connection is gone.
    pub fn session_gone(&self, session: u64) {
        self.drop_requests_of(session);
        for host in self.hosts() {
            host.st.borrow_mut().backoffs.forget(session);
            if !host.watches.borrow().is_empty() {
                host.watches.borrow_mut().disconnected(session, now());
                host.settle_watches();
            }
        }
    }
}

impl PgHost {
    /// The watchers, as far as they are known in this interval.
    pub fn watches(&self) -> Vec<Row> {
        self.watches.borrow().rows()
    }

    /// Sends what is to be sent and sets the clock.
    fn settle_watches(&self) {
        let (messages, at) = {
            let mut w = self.watches.borrow_mut();
            (w.take_messages(), w.take_soonest())
        };
        for (sink, event) in messages {
            sink.watch_event(event);
        }
        if let Some(at) = at {
            self.core.wake_watches(at);
        }
    }

    /// The object was loaded from the store.
    pub(crate) fn populate_watches(&self, head: &ObjectState) {
        let watchers = &head.oi.watchers;
        if watchers.is_empty() {
            return;
        }
        let map = self.core.map();
        let blocked = |a: &_| map.as_ref().is_some_and(|m| m.is_blocklisted(a));
        self.watches.borrow_mut().populate(&head.oid, watchers, blocked, now());
        self.settle_watches();
    }

    /// Whether a request is the sign of life of a watch and nothing else: a ping that is due, or
    /// that a client is back, after its connection or the group's leader has changed. It does not
    /// wait for its turn, as heartbeats of OSDs do not, and no tenant pays for it. Behind what its
    /// client asked for, at a ceiling or where others have a floor, it could come too late; and a
    /// hundred sessions of an image would spend the image's share of the OSD that has its header on
    /// such. What comes more often than it has to is a request like others.
    pub(crate) fn is_sign_of_life(&self, op: &ClientOp) -> bool {
        let [one] = &op.m().ops[..] else { return false };
        match one.args {
            _ if one.code != OpCode::WATCH => false,
            OpArgs::Watch { cookie, op: watch_op::PING, .. } => self.watches.borrow().is_due(
                &op.head,
                &(cookie, op.reqid.name),
                op.sink().session(),
                PINGS_APART,
                now(),
            ),
            OpArgs::Watch { op: watch_op::RECONNECT, .. } => {
                self.core.watch_clock.takes_back(now())
            }
            _ => false,
        }
    }

    pub(crate) fn watch_ping(&self, oid: &ObjectId, watcher: &Watcher) -> bool {
        self.watches.borrow_mut().ping(oid, watcher, now())
    }

    /// The request has succeeded. `version` is the object's user version.
    pub(crate) fn watch_effects(
        &self,
        op: &ClientOp,
        oid: &ObjectId,
        effects: Effects,
        version: u64,
    ) {
        let from =
            watch::From { entity: op.reqid.name, addr: op.request.addr, link: op.sink().clone() };
        self.watches.borrow_mut().apply(oid, effects, &from, version, now());
        self.settle_watches();
    }

    /// There is a new map.
    pub(crate) fn end_watches_of_blocked(&self) {
        if self.watches.borrow().is_empty() {
            return;
        }
        let Some(map) = self.core.map() else { return };
        self.watches.borrow_mut().check_blocklist(|a| map.is_blocklisted(a), now());
        self.settle_watches();
    }

    /// Deals with all watches and notifications that are out of time.
    fn expire_watches(self: &Rc<Self>) {
        if self.watches.borrow().is_empty() {
            return;
        }
        let over = self.watches.borrow_mut().expire(now());
        self.settle_watches();
        for (oid, watcher) in over {
            let context = self.context(&oid);
            if let Some(job) = context.enter(Mode::Write, Job::Unwatch(oid, watcher)) {
                self.begin_job(&context, job);
            }
        }
    }

    /// Takes a watch that timed out, or of a client on the blocklist, out of the object's info
    /// (Ceph: `handle_watch_timeout`).
    pub(crate) async fn unwatch(
        self: &Rc<Self>,
        context: &Rc<Context>,
        oid: &ObjectId,
        watcher: Watcher,
        generation: u64,
    ) {
        if !self.watches.borrow().is_ending(oid, &watcher) {
            return;
        }
        let later = || {
            self.watches.borrow_mut().postpone(oid, &watcher, now() + AGAIN);
            self.settle_watches();
        };
        let status = self.with_pg(|pg| pg.object_status(oid));
        if self.core.backlog.is_stalled()
            || !matches!(status, ObjectStatus::Ready | ObjectStatus::InFlight)
        {
            return later();
        }
        let head = match self.head(context, oid).await {
            Ok(head) => head,
            Err(e) => {
                tracing::error!(pg = %self.pgid, %oid, "cannot end a watch: {e}");
                return later();
            }
        };
        if self.generation.get() != generation
            || !self.with_pg(|pg| pg.is_active())
            || !self.watches.borrow().is_ending(oid, &watcher)
        {
            return;
        }
        if self.with_pg(|pg| pg.must_wait(oid, true)) {
            // The copy turned out to be bad while it was read.
            return later();
        }
        let gathered = match self.gather(&Mutations::new(), &[oid], "").await {
            Ok(gathered) => gathered,
            Err(e) => {
                tracing::error!(pg = %self.pgid, %oid, "cannot end a watch: {e}");
                return later();
            }
        };
        if self.generation.get() != generation || !self.with_pg(|pg| pg.is_active()) {
            return;
        }
        let mut state = head.state.clone();
        if state.oi.watchers.remove(&watcher).is_none() {
            // Something else took it out, and its completion is on the way; or the object is gone.
            if context.has_in_flight() {
                return later();
            }
            self.watches.borrow_mut().end(oid, &watcher, true);
            return self.settle_watches();
        }
        state.oi.prior_version = state.oi.version;
        state.oi.version = self.with_pg(|pg| pg.next_version());
        let entry = NewEntry {
            op: LogOp::Modify,
            oid: oid.clone(),
            prior_version: state.oi.prior_version,
            user_version: 0,
            reqid: ReqId::default(),
            mtime: wall_clock(),
            return_code: 0,
            snaps: Vec::new(),
            op_returns: Vec::new(),
            written: Default::default(),
        };
        let mut txn = Mutations::new();
        txn.push(
            oid,
            Change::SetAttrs(smallvec![(Bytes::from_static(OI_ATTR), encode_attr(&state.oi))]),
        );
        let after = Head { state, snapset: head.snapset.clone() };
        let before = context.head.borrow_mut().replace(Rc::new(after));
        context.proposed();
        let completion =
            Completion::Unwatch { oid: oid.clone(), watcher, context: context.clone() };
        if !self.propose(smallvec![entry], txn, &gathered, StatSum::default(), completion) {
            context.committed();
            *context.head.borrow_mut() = before;
        }
    }

    /// The object's info is durable without the watch.
    pub(crate) fn unwatched(
        self: &Rc<Self>,
        oid: &ObjectId,
        watcher: &Watcher,
        context: &Rc<Context>,
    ) {
        self.watches.borrow_mut().end(oid, watcher, true);
        self.settle_watches();
        context.committed();
        self.kick(oid, context);
    }
}
