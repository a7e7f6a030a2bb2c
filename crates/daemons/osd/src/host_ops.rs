//! Requests of clients in a PG, up to their turn at their object (Ceph: `PrimaryLogPG::do_op`).
//!
//! ```text
//! run_client_op ─► object's turn ─► begin ─► execution (crate::host_execute)
//!      │
//!      └─ not active, replicas not heard: waits
//! ```

use crate::client_op::{ClientOp, Outcome, Versions};
use crate::gate::{Head, Mode};
use crate::host::{Context, Job, PgHost, Turn};
use crate::host_execute::Done;
use crate::map::ClusterMapRef;
use crate::run_now::run_now;
use crate::tracker::Stage;
use crate::waits::Reason;
use admission::legs::Leg;
use bytes::Bytes;
use messages::{Op, OsdBackoff};
use objops::object::{ObjectState, SnapSet, decode_attr};
use objops::pgls::{self, Filter};
use objops::{OI_ATTR, ObjectReader, OpCode, SS_ATTR};
use pg::Dup;
use std::rc::Rc;
use std::time::Instant;
use types::{Epoch, Errno, ObjectId, SnapId};

impl PgHost {
    /// Whether requests of this kind may be served here at all.
    pub(crate) fn may_serve(&self, op: &ClientOp) -> bool {
        self.with_pg(|pg| pg.is_primary())
            || (self.may_read_here(op) && self.with_pg(|pg| pg.state().0 != 0))
    }

    /// A read that its client allows any replica to serve.
    fn may_read_here(&self, op: &ClientOp) -> bool {
        !self.is_coded() && op.may_leave_primary() && op.info.may_read() && !op.info.rwordered()
    }

    /// Whether this OSD must not answer a request, since its client sends it again when it sees the
    /// newest map: another OSD leads the group, or this one began to after the request was sent, or
    /// the object may be in another group. `resend` is of the pool.
    pub(crate) fn is_void(&self, op: &ClientOp, resend: Epoch) -> bool {
        let (primary, since, split) = self.with_pg(|pg| {
            let history = &pg.info().history;
            (pg.is_primary(), history.same_primary_since, history.last_epoch_split)
        });
        let sent = op.m().epoch;
        sent < split
            || sent < resend
            || if primary { sent < since } else { !self.may_read_here(op) }
    }

    /// Runs a request that the scheduler let in.
    pub(crate) fn run_client_op(self: &Rc<Self>, op: Rc<ClientOp>) {
        let release = |op: &ClientOp| drop(op.slot.borrow_mut().take());
        if !op.sink().is_open() {
            // Its client sends it again, in order with what follows. Were some of a client's
            // requests dropped and others executed, those would overtake.
            return;
        }
        let Some(map) = self.core.map() else { return };
        let Some(pool) = map.pool_ops(self.pgid.pool) else { return self.core.drop_request(&op) };
        if self.is_void(&op, pool.last_force_op_resend) {
            return self.core.drop_request(&op);
        }
        let (primary, active) = self.with_pg(|pg| (pg.is_primary(), pg.is_active()));
        if !primary {
            return self.read_on_replica(op);
        }
        if self.is_held_back(&op) {
            return;
        }
        if !active {
            release(&op);
            return self.wait_active(op, &map);
        }
        if !self.may_answer(&op) {
            self.wait_readable(&op);
            return;
        }
        if op.info.includes_pg_op() {
            let host = self.clone();
            run_now(async move { host.pg_op(op).await });
            return;
        }
        if let Err(e) = self.check(&op, &map) {
            self.core.reply_error(&op, e);
            return;
        }
        if op.m().ops.iter().any(|o| matches!(o.code, OpCode::COPY_FROM | OpCode::COPY_FROM2)) {
            // It waits for a read, perhaps on this OSD: it must not keep that read out of the
            // window.
            release(&op);
        }
        let mode = match () {
            () if op.info.is_ordered_read() => Mode::OrderedRead,
            () if op.info.rwordered() => Mode::Write,
            () => Mode::Read,
        };
        let context = self.context(&op.head);
        match context.enter(mode, Job::Client(op.clone())) {
            Some(job) => self.begin(&context, mode, job),
            None => {
                op.tracked.delayed("waiting for rw locks");
                release(&op);
            }
        }
    }

    /// Lets a request wait until the group is active, or its client.
    fn wait_active(&self, op: Rc<ClientOp>, map: &ClusterMapRef) {
        // A client that holds back sends it again when it is told to go on.
        if !self.hold_back(&op, map) {
            self.wait(op, Reason::Active);
        }
    }

    /// Takes a request that has come, if the group is not active or its replicas are not heard: its
    /// turn would be spent on finding that out, and it needs another one later. Else it gives it
    /// back.
    pub(crate) fn wait_if_not_ready(self: &Rc<Self>, op: Rc<ClientOp>) -> Option<Rc<ClientOp>> {
        let (primary, active) = self.with_pg(|pg| (pg.is_primary(), pg.is_active()));
        if !primary || (active && self.may_answer(&op)) {
            return Some(op);
        }
        let map = self.core.map()?;
        match map.pool_ops(self.pgid.pool) {
            Some(pool) if !self.is_void(&op, pool.last_force_op_resend) => {
                if self.is_held_back(&op) {
                    return None;
                }
                if active { self.wait_readable(&op) } else { self.wait_active(op, &map) }
            }
            _ => self.core.drop_request(&op),
        }
        None
    }

    /// Tells a client to hold back, if the group cannot peer, or lacks replicas, and the client
    /// understands: requests that may wait for hours need not wait in this OSD's memory.
    fn hold_back(&self, op: &Rc<ClientOp>, map: &ClusterMapRef) -> bool {
        use pg::PgState;
        let stuck = self.with_pg(|pg| {
            let s = pg.state();
            s.has(PgState::DOWN) || s.has(PgState::INCOMPLETE) || s.has(PgState::PEERED)
        });
        let Some(pool) = map.pool(self.pgid.pool).filter(|_| stuck) else { return false };
        let b = OsdBackoff {
            pgid: op.m().pgid,
            epoch: self.core.epoch(),
            op: OsdBackoff::BLOCK,
            id: self.core.new_token(),
            begin: self.pgid.first_object(),
            end: self.pgid.end_object(pool.pg_num),
        };
        self.st.borrow_mut().backoffs.block(op.sink(), b)
    }

    /// Whether a request's client was told to hold back and sends it again.
    pub(crate) fn is_held_back(&self, op: &ClientOp) -> bool {
        self.st.borrow().backoffs.covers(op.sink().session(), op.arrival)
    }

    /// What can be refused before the object is looked at.
    pub(crate) fn check(&self, op: &ClientOp, map: &ClusterMapRef) -> Result<(), Errno> {
        let settings = self.core.settings();
        let limits = &settings.limits;
        let m = op.m();
        let too_long = m.object.len() > limits.object_name
            || m.locator.key.len() > limits.object_name
            || m.locator.namespace.len() > limits.object_namespace;
        if too_long {
            return Err(Errno::ENAMETOOLONG);
        }
        if m.object.is_empty() {
            return Err(Errno::EINVAL);
        }
        if map.is_blocklisted(&op.request.addr) {
            return Err(Errno::EBLOCKLISTED);
        }
        if op.info.may_write() {
            if m.snapid != SnapId::NOSNAP {
                return Err(Errno::EINVAL);
            }
            let bytes: usize = m.ops.iter().map(|o| o.indata.len()).sum();
            if limits.write_size > 0 && bytes as u64 > limits.write_size {
                return Err(Errno::EMSGSIZE);
            }
        }
        // Only the listing of snapshots addresses all clones at once.
        if m.ops.iter().any(|o| (o.code == OpCode::LIST_SNAPS) != (m.snapid == SnapId::SNAPDIR)) {
            return Err(Errno::EINVAL);
        }
        Ok(())
    }

    pub(crate) fn context(&self, head: &ObjectId) -> Rc<Context> {
        let perf = &self.core.perf;
        perf.object_ctx_cache_total.inc();
        let mut st = self.st.borrow_mut();
        if let Some(c) = st.contexts.get(head) {
            perf.object_ctx_cache_hit.inc();
            return c.clone();
        }
        let c = Rc::new(Context::default());
        // The name would otherwise hold the client's message.
        st.contexts.insert(head.detached(), c.clone());
        c
    }

    /// Runs the jobs that have their turn.
    pub(crate) fn kick(self: &Rc<Self>, head: &ObjectId, context: &Rc<Context>) {
        self.kick_any(context);
        if context.is_idle() {
            let cap = self.core.settings().idle_contexts;
            let mut st = self.st.borrow_mut();
            if st.contexts.len() > cap
                && st.contexts.get(head).is_some_and(|c| Rc::ptr_eq(c, context))
            {
                st.contexts.remove(head);
            }
        }
    }

    pub(crate) fn kick_any(self: &Rc<Self>, context: &Rc<Context>) {
        // A job that ends at once comes back here; only the outermost call goes on.
        if context.kicking.replace(true) {
            return;
        }
        while let Some((mode, job)) = context.next() {
            self.begin(context, mode, job);
        }
        context.kicking.set(false);
    }

    pub(crate) fn begin_job(self: &Rc<Self>, context: &Rc<Context>, job: Job) {
        self.begin(context, Mode::Write, job);
    }

    fn begin(self: &Rc<Self>, context: &Rc<Context>, mode: Mode, job: Job) {
        if let Job::Client(op) = &job {
            // From here on an interval that ends finds it there.
            self.st.borrow_mut().running.insert(Rc::as_ptr(op) as usize, op.clone());
        }
        let (context, generation) = (context.clone(), self.generation.get());
        self.turn(Turn { context, mode, job, generation });
    }

    /// Runs a job that has its object.
    pub(crate) fn begin_turn(self: &Rc<Self>, turn: Turn) {
        let Turn { context, mode, job, generation } = turn;
        if self.generation.get() != generation {
            // The new interval has the request, and the context is gone.
            return;
        }
        let host = self.clone();
        match job {
            Job::Client(op) => {
                op.tracked.mark(Stage::Started);
                run_now(async move {
                    let head = op.head.clone();
                    if host.core.backlog.is_stalled() {
                        op.tracked.delayed("waiting for the store");
                        let since = Instant::now();
                        host.core.backlog.store_takes().await;
                        op.tags.legs.add(Leg::Store, since.elapsed().as_nanos() as u64);
                        if host.generation.get() != generation {
                            return;
                        }
                    }
                    let done = host.execute(&context, &op, generation).await;
                    if host.generation.get() != generation {
                        // As above.
                        return;
                    }
                    if matches!(done, Done::Waits) || op.is_replied() {
                        host.finish(&op);
                    }
                    context.leave(mode);
                    host.kick(&head, &context);
                });
            }
            Job::Unwatch(oid, watcher) => run_now(async move {
                host.core.backlog.store_flows().await;
                if host.generation.get() != generation {
                    return;
                }
                host.unwatch(&context, &oid, watcher, generation).await;
                if host.generation.get() == generation {
                    context.leave(mode);
                    host.kick(&oid, &context);
                }
            }),
            Job::Trim(snap, clone, pace) => {
                run_now(async move {
                    let head = clone.head();
                    host.core.backlog.store_flows().await;
                    if host.generation.get() != generation {
                        return;
                    }
                    host.trim_clone(&context, snap, clone, pace, generation).await;
                    if host.generation.get() == generation {
                        context.leave(mode);
                        host.kick(&head, &context);
                    }
                });
            }
        }
    }

    /// The head, from the store if it is not cached.
    pub(crate) async fn head(&self, context: &Context, oid: &ObjectId) -> Result<Rc<Head>, Errno> {
        if let Some(h) = &*context.head.borrow() {
            return Ok(h.clone());
        }
        let state = self.load(oid).await?;
        let snapset = if state.exists {
            match self.reader.attr(&oid.to_key(), SS_ATTR).await {
                Ok(b) => decode_attr(&b)?,
                Err(Errno::ENODATA) => SnapSet::default(),
                Err(e) => return Err(e),
            }
        } else {
            SnapSet::default()
        };
        if self.with_pg(|pg| pg.is_primary()) {
            self.populate_watches(&state);
        }
        let head = Rc::new(Head { state, snapset });
        *context.head.borrow_mut() = Some(head.clone());
        Ok(head)
    }

    pub(crate) async fn load(&self, oid: &ObjectId) -> Result<ObjectState, Errno> {
        match self.reader.attr(&oid.to_key(), OI_ATTR).await {
            Ok(b) => Ok(ObjectState { oid: oid.clone(), exists: true, oi: decode_attr(&b)? }),
            Err(Errno::ENOENT) => Ok(ObjectState::absent(oid.clone())),
            Err(e) => Err(e),
        }
    }

    pub(crate) fn reply_dup(&self, op: &Rc<ClientOp>, dup: &Dup) {
        let ops = dup.op_returns.iter().map(|(rval, out)| objops::OpOutcome {
            rval: *rval,
            outdata: vec![out.clone()],
            ..Default::default()
        });
        let outcome = Outcome {
            result: dup.return_code,
            ops: ops.collect(),
            no_output: !op.info.allows_returnvec(),
            data_offset: None,
        };
        op.reply(&outcome, self.core.epoch(), Versions::Change(dup.version, dup.user_version));
        self.finish(op);
    }

    // --- the group itself ---

    async fn pg_op(self: &Rc<Self>, op: Rc<ClientOp>) {
        let mut outcome = Outcome::default();
        for o in &op.m().ops {
            let mut out = objops::OpOutcome::default();
            let result = match o.code {
                OpCode::PGNLS | OpCode::PGLS | OpCode::PGNLS_FILTER | OpCode::PGLS_FILTER => {
                    self.list(&op, o, &mut out.outdata).await
                }
                OpCode::PG_HITSET_LS => {
                    // There are no hit sets.
                    out.outdata.push(Bytes::from_static(&[0; 4]));
                    Ok(0)
                }
                OpCode::PG_HITSET_GET => Err(Errno::ENOENT),
                OpCode::SCRUBLS => self.scrub_ls(&op, o, &mut out.outdata),
                _ => Err(Errno::EINVAL),
            };
            outcome.result = result.unwrap_or_else(Errno::as_result);
            outcome.ops.push(out);
            if outcome.result < 0 {
                break;
            }
        }
        if !self.may_answer(&op) {
            self.wait_readable(&op);
            return;
        }
        let (version, user) = self.with_pg(|p| (p.info().last_update, p.info().last_user_version));
        op.reply(&outcome, self.core.epoch(), Versions::Change(version, user));
        let bytes: usize = outcome.ops.iter().map(|o| o.out_len()).sum();
        self.core.count(&op, 0, bytes as u64, None);
        drop(op.slot.borrow_mut().take());
    }

    /// Lists heads in hash order. 1 means that the group is exhausted.
    async fn list(&self, op: &ClientOp, o: &Op, out: &mut Vec<Bytes>) -> Result<i32, Errno> {
        let m = op.m();
        if m.snapid != SnapId::NOSNAP {
            return Err(Errno::EINVAL);
        }
        let map = self.core.map().ok_or(Errno::EAGAIN)?;
        let pg_num = map.pool(self.pgid.pool).ok_or(Errno::ENOENT)?.pg_num;
        let settings = self.core.settings();
        let l = pgls::parse(o, settings.limits.pgls, &settings.classes)?;
        let first = self.pgid.first_object();
        let end = self.pgid.end_object(pg_num);
        if l.with_namespace {
            let behind = !l.start.is_max() && l.start >= end;
            let before = !l.start.is_min() && l.start < first;
            if behind || before {
                return Err(Errno::EINVAL);
            }
        }
        let mut at = if l.start < first { first } else { l.start.clone() };
        let end_key = (!end.is_max()).then(|| end.to_key());
        let mut entries = Vec::new();
        let mut next = None;
        // Not more work per request than a page of keys, however few of them match.
        let mut budget = l.max.max(1) * 4;
        'pages: while !at.is_max() {
            let page = self
                .core
                .store
                .list(self.coll, &at.to_key(), end_key.as_deref(), l.max.max(1))
                .await
                .map_err(objops::store_reader::errno)?;
            let found: Vec<ObjectId> =
                page.keys.iter().filter_map(|k| ObjectId::from_key(k).ok()).collect();
            // Objects that this copy lacks exist all the same.
            let limit = page.next.as_ref().and_then(|k| ObjectId::from_key(k).ok());
            let lacking: Vec<ObjectId> = self.with_pg(|pg| {
                let missing = pg.missing().iter().map(|(o, _)| o);
                missing
                    .filter(|o| **o >= at && limit.as_ref().is_none_or(|l| *o < l))
                    .cloned()
                    .collect()
            });
            let mut all = found;
            all.extend(lacking);
            all.sort();
            all.dedup();
            for oid in all {
                if entries.len() >= l.max || budget == 0 {
                    next = Some(oid);
                    break 'pages;
                }
                budget -= 1;
                if oid.is_head()
                    && pgls::in_namespace(&oid, &m.locator.namespace, l.with_namespace)
                    && self.matches(&l.filter, &oid).await
                {
                    entries.push(oid);
                }
            }
            match limit {
                Some(l) => at = l,
                None => break,
            }
        }
        let result = i32::from(next.is_none());
        let handle = match next {
            Some(o) => o,
            None if l.with_namespace => end,
            None => ObjectId::MAX,
        };
        out.push(pgls::encode(&handle, &entries, l.with_namespace));
        Ok(result)
    }

    async fn matches(&self, filter: &Option<Filter>, oid: &ObjectId) -> bool {
        match filter {
            None => true,
            Some(Filter::Plain { attr, value }) => {
                self.reader.attr(&oid.to_key(), attr).await.is_ok_and(|v| v == *value)
            }
        }
    }
}
