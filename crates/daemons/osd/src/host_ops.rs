//! Requests of clients in a placement group (Ceph: `PrimaryLogPG::do_op` and `execute_ctx`).
//!
//! ```text
//! run_client_op ─► object's turn ─► start ─► execute ──► reply (reads, errors of reads)
//!      │                              │          └─► propose ─► (durable) ─► reply
//!      └─ not active: waits           └─ missing object, resent request: waits
//! ```

use crate::client_op::{ClientOp, Outcome, Versions};
use crate::gate::{Head, Mode};
use crate::host::{Completion, Context, Job, PgHost};
use crate::map::ClusterMapRef;
use crate::tracker::Stage;
use admission::legs::Leg;
use bytes::Bytes;
use messages::{Op, OsdBackoff};
use objops::object::{At, ObjectState, SnapSet, SnapSetExt, decode_attr};
use objops::pgls::{self, Filter};
use objops::seal::{SealArgs, error_entry};
use objops::txn::Mutations;
use objops::{Env, Exec, OI_ATTR, ObjectReader, OpCode, OsdFlags, SS_ATTR, WatchEnv};
use pg::{Dup, ObjectStatus, StatSum};
use smallvec::smallvec;
use std::future::Future;
use std::rc::Rc;
use std::task::Waker;
use std::time::Instant;
use types::{EntityType, Epoch, Errno, ObjectId, SnapContext, SnapId};

/// What became of an executed request.
enum Done {
    /// It was answered, proposed or dropped.
    Over,
    /// It waits for an object and runs again when that is there.
    Waits,
}

impl PgHost {
    /// Whether requests of this kind may be served here at all.
    pub(crate) fn may_serve(&self, op: &ClientOp) -> bool {
        self.with_pg(|pg| pg.is_primary())
            || (self.may_read_here(op) && self.with_pg(|pg| pg.state().0 != 0))
    }

    /// A read that its client allows any replica to serve.
    fn may_read_here(&self, op: &ClientOp) -> bool {
        op.m().flags.any(OsdFlags::BALANCE_READS | OsdFlags::LOCALIZE_READS)
            && op.info.may_read()
            && !op.info.rwordered()
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
        let Some(map) = self.core.map() else { return };
        let Some(pool) = map.pool_ops(self.pgid.pool) else { return self.core.drop_request(&op) };
        if self.is_void(&op, pool.last_force_op_resend) {
            return self.core.drop_request(&op);
        }
        let (primary, active) = self.with_pg(|pg| (pg.is_primary(), pg.is_active()));
        if !primary {
            return self.read_on_replica(op);
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
        let mode = if op.info.rwordered() { Mode::Write } else { Mode::Read };
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
            op.tracked.delayed("waiting for peered");
            self.st.borrow_mut().waiting_active.push_back(op);
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
                if active {
                    self.wait_readable(&op)
                } else {
                    self.wait_active(op, &map)
                }
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
        let session = op.sink().session();
        if self.st.borrow().backoffs.iter().any(|(s, _)| s.session() == session) {
            return true;
        }
        let b = OsdBackoff {
            pgid: op.m().pgid,
            epoch: self.core.epoch(),
            op: OsdBackoff::BLOCK,
            id: self.core.new_token(),
            begin: self.pgid.first_object(),
            end: self.pgid.end_object(pool.pg_num),
        };
        let held = op.sink().backoff(b.clone());
        if held {
            self.st.borrow_mut().backoffs.push((op.sink().clone(), b));
        }
        held
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

    /// Runs those whose turn has come.
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
        // Whoever runs to its end at once comes back here; only the outermost call goes on.
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
        let host = self.clone();
        let context = context.clone();
        let generation = self.generation.get();
        match job {
            Job::Client(op) => {
                self.st.borrow_mut().running.insert(Rc::as_ptr(&op) as usize, op.clone());
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
                        // The new interval has the request, and the context is gone.
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

    fn wait_object(&self, oid: &ObjectId, op: &Rc<ClientOp>, why: &'static str) -> Done {
        op.tracked.delayed(why);
        self.st.borrow_mut().waiting_object.entry(oid.clone()).or_default().push(op.clone());
        Done::Waits
    }

    async fn execute(
        self: &Rc<Self>,
        context: &Rc<Context>,
        op: &Rc<ClientOp>,
        generation: u64,
    ) -> Done {
        let write = op.info.may_write();
        if write && self.waits_for_scrub(op) {
            return Done::Waits;
        }
        match self.with_pg(|pg| pg.object_status(&op.head)) {
            ObjectStatus::Missing | ObjectStatus::Unfound => {
                self.handle(pg::Event::RecoverNow(op.head.clone()));
                return self.wait_object(&op.head, op, "waiting for missing object");
            }
            ObjectStatus::Degraded if op.info.rwordered() => {
                self.handle(pg::Event::RecoverNow(op.head.clone()));
                return self.wait_object(&op.head, op, "waiting for degraded object");
            }
            _ => {}
        }
        if write && let Some(dup) = self.with_pg(|pg| pg.find_dup(&op.reqid)) {
            if dup.committed {
                self.reply_dup(op, &dup);
            } else {
                op.tracked.delayed("waiting for ondisk");
                self.st
                    .borrow_mut()
                    .waiting_dup
                    .entry(dup.version)
                    .or_default()
                    .push((op.clone(), dup));
                return Done::Waits;
            }
            return Done::Over;
        }
        match self.execute_on(context, op, generation).await {
            Ok(done) => done,
            Err(e) => {
                if self.generation.get() == generation {
                    self.refuse(
                        op,
                        Outcome { result: e.as_result(), no_output: true, ..Outcome::default() },
                    );
                }
                Done::Over
            }
        }
    }

    /// Reads for a client that any replica may serve. Its answer is checked as any read's.
    pub(crate) async fn execute_on_replica(
        self: &Rc<Self>,
        context: &Rc<Context>,
        op: &Rc<ClientOp>,
        generation: u64,
    ) {
        if let Err(e) = self.execute_on(context, op, generation).await
            && self.generation.get() == generation
        {
            self.refuse(
                op,
                Outcome { result: e.as_result(), no_output: true, ..Outcome::default() },
            );
        }
    }

    /// Answers a request that failed before or in its execution. A write's failure is remembered,
    /// so that the same request fails in the same way when it is sent again.
    fn refuse(self: &Rc<Self>, op: &Rc<ClientOp>, outcome: Outcome) {
        if op.info.may_write() {
            self.remember(op, outcome, self.with_pg(|p| p.info().last_user_version));
            return;
        }
        if !self.may_answer(op) {
            self.wait_readable(op);
            return;
        }
        let versions = match outcome.result == Errno::ENOENT.as_result() {
            true => {
                self.with_pg(|p| Versions::Absent(p.info().last_update, p.info().last_user_version))
            }
            false => Versions::None,
        };
        op.reply(&outcome, self.core.epoch(), versions);
    }

    /// Logs a request that changes nothing, and answers it when that is durable.
    fn remember(self: &Rc<Self>, op: &Rc<ClientOp>, outcome: Outcome, user_version: u64) {
        let returns = if op.info.allows_returnvec() { op_returns(&outcome) } else { Vec::new() };
        let entry = error_entry(op.head.clone(), op.reqid, outcome.result, returns);
        op.tracked.mark(Stage::WaitingForSubOps);
        let completion = Completion::Client {
            op: op.clone(),
            user_version,
            outcome,
            context: None,
            in_bytes: 0,
            effects: None,
        };
        if !self.propose(smallvec![entry], Mutations::new(), StatSum::default(), completion) {
            self.park(op);
        }
    }

    /// The group stopped serving in the middle.
    fn park(&self, op: &Rc<ClientOp>) {
        self.finish(op);
        self.st.borrow_mut().waiting_active.push_back(op.clone());
    }

    async fn execute_on(
        self: &Rc<Self>,
        context: &Rc<Context>,
        op: &Rc<ClientOp>,
        generation: u64,
    ) -> Result<Done, Errno> {
        let m = op.m();
        let write = op.info.may_write();
        let map = self.core.map().ok_or(Errno::EAGAIN)?;
        let pool = map.pool_ops(self.pgid.pool).ok_or(Errno::ENOENT)?;
        let head = self.head(context, &op.head).await?;
        if self.generation.get() != generation {
            return Ok(Done::Over);
        }
        // Which object: the head, or the clone that has the snapshot.
        let clone;
        let target = if op.oid.is_head() {
            &head.state
        } else {
            if !head.state.exists {
                return Err(Errno::ENOENT);
            }
            let snap = op.oid.snap;
            let by_id = op.has(OsdFlags::MAP_SNAP_CLONE);
            let at =
                if by_id { head.snapset.locate_clone(snap) } else { head.snapset.locate(snap) };
            match at {
                At::Head => &head.state,
                At::Nothing => return Err(Errno::ENOENT),
                At::Clone(id) => {
                    let oid = op.head.at(id);
                    if matches!(
                        self.with_pg(|pg| pg.object_status(&oid)),
                        ObjectStatus::Missing | ObjectStatus::Unfound
                    ) {
                        self.handle(pg::Event::RecoverNow(oid.clone()));
                        return Ok(self.wait_object(&oid, op, "waiting for missing object"));
                    }
                    if !by_id && map.snap_removed(self.pgid.pool, snap) {
                        return Err(Errno::ENOENT);
                    }
                    clone = self.load(&oid).await?;
                    &clone
                }
            }
        };
        if let Some(oid) = self.rollback_waits(op, &head.snapset) {
            self.handle(pg::Event::RecoverNow(oid.clone()));
            return Ok(self.wait_object(&oid, op, "waiting for degraded object"));
        }
        let snapdir = m.snapid == SnapId::SNAPDIR;
        if !write
            && !op.info.may_cache()
            && !(if snapdir { target.exists } else { target.visible() })
        {
            return Err(Errno::ENOENT);
        }
        if op.has(OsdFlags::FLUSH) {
            // Only within a flush to a base pool, and there are none.
            return Err(Errno::EINVAL);
        }
        let snapc = self.snap_context(op, &pool.pool_snapc, &map);
        if write {
            if op.has(OsdFlags::ORDERSNAP) && snapc.seq < head.snapset.seq {
                op.reply_error(Errno::EOLDSNAPC, self.core.epoch());
                return Ok(Done::Over);
            }
            if !snapc.is_valid() {
                return Err(Errno::EINVAL);
            }
        }
        let settings = self.core.settings();
        let now = crate::clock::wall_now();
        let origin = cls::Origin {
            entity: op.request.source,
            addr: op.request.addr,
            last_user_version: self.with_pg(|p| p.info().last_user_version),
            snap_seq: head.snapset.seq.0,
            mtime: m.mtime,
            now,
            features: denc::Features(m.features),
            min_compat_client: pool.min_compat_client,
            require_osd_release: pool.require_osd_release,
            min_alloc_size: store::BLOCK,
            stripe_width: pool.stripe_width,
        };
        let removed = |s| map.snap_removed(self.pgid.pool, s);
        let watch = WatchEnv {
            entity: op.reqid.name,
            watch_timeout: settings.watch_timeout,
            notify_timeout: settings.notify_timeout,
            ping: &|watcher| self.watch_ping(&target.oid, watcher),
            next_id: &|| self.core.next_notify_id(),
        };
        let env = Env {
            reader: &self.reader,
            classes: &settings.classes,
            copies: &*self.core.copies,
            limits: &settings.limits,
            pool: pool.rules,
            snapc: &snapc,
            snap_removed: &removed,
            origin: &origin,
            watch: &watch,
            random: rand::fill,
        };
        let mut exec = Exec::new(&env, target.oid.to_key(), target, &head.snapset);
        let (result, ops) = exec.run(&m.ops).await;
        if self.generation.get() != generation {
            return Ok(Done::Over);
        }
        if write && result >= 0 {
            // What is covered in part is completed from what is there, and that may be bad. The
            // store would refuse the change then, when it has its place in the log already.
            let had = if target.exists { target.oi.size } else { 0 };
            for (oid, at) in exec.txn.edges().filter(|(oid, at)| *at < had && **oid == target.oid) {
                let _ = self.reader.read(&oid.to_key(), at, store::BLOCK).await;
            }
            if self.generation.get() != generation {
                return Ok(Done::Over);
            }
        }
        if write && self.waits_for_scrub(op) {
            return Ok(Done::Waits);
        }
        if !self.with_pg(|pg| pg.is_primary()) {
            // A replica repairs nothing by itself: the primary has another copy, and scrubs find
            // this one.
            let damaged = self.reader.is_damaged();
            if damaged {
                self.note_damage().await;
            }
            if damaged || self.with_pg(|pg| pg.must_wait(&target.oid, false)) {
                return Err(Errno::EAGAIN);
            }
        } else if let Some(oid) = self.lost_meanwhile(op, &target.oid, &head.snapset).await {
            return Ok(match self.generation.get() == generation {
                true => self.wait_for_recovery(oid, op),
                false => Done::Over,
            });
        }
        let mut outcome = Outcome { result, ops, no_output: false, data_offset: exec.data_offset };
        if result < 0 {
            self.refuse(op, outcome);
            return Ok(Done::Over);
        }
        let effects = exec.effects.take();
        if !write
            && (!self.may_answer(op) || (effects.is_some() && !self.with_pg(|pg| pg.is_primary())))
        {
            self.wait_readable(op);
            return Ok(Done::Waits);
        }
        if !exec.changes() {
            if let Some(effects) = effects {
                self.watch_effects(op, &target.oid, *effects, exec.reply_user_version());
            }
            if write {
                self.remember(op, outcome, exec.reply_user_version());
            } else {
                let bytes: usize = outcome.ops.iter().map(|o| o.out_len()).sum();
                op.reply(&outcome, self.core.epoch(), Versions::Read(exec.reply_user_version()));
                self.read_stats.borrow_mut().add(&exec.stats);
                self.core.count(op, 0, bytes as u64, None);
            }
            return Ok(Done::Over);
        }
        let grows = exec.stats.num_bytes > 0 || exec.stats.num_objects > 0;
        let force = op.has(OsdFlags::FULL_FORCE) || op.request.source.kind == EntityType::MDS;
        if grows && pool.rules.full && !force {
            if op.has(OsdFlags::FULL_TRY) {
                return Err(if pool.rules.full_quota { Errno::EDQUOT } else { Errno::ENOSPC });
            }
            // Dropped: the client sends it again when the pool is no longer full.
            self.finish(op);
            return Ok(Done::Waits);
        }
        let in_bytes = exec.txn.bytes_written();
        if grows && !force {
            if (self.core.is_failsafe_full() || self.writes_lack_room(in_bytes))
                && !op.has(OsdFlags::FULL_TRY)
            {
                // The pool will be full in one of the next maps; till then, or till there is room,
                // it waits.
                op.tracked.delayed("waiting for room");
                self.core.let_pass(op, in_bytes);
                self.finish(op);
                self.st.borrow_mut().waiting_room.push_back(op.clone());
                self.core.rooms.full_waiters.set(true);
                return Ok(Done::Waits);
            }
            let space = self.core.backlog.space();
            if space.available < in_bytes.saturating_add(crate::rooms::reserve(&space)) {
                return Err(Errno::ENOSPC);
            }
        }
        let returnvec = op.info.allows_returnvec();
        if returnvec {
            for done in &mut outcome.ops {
                if done.out_len() > settings.limits.write_reply {
                    outcome.result = Errno::EOVERFLOW.as_result();
                    done.rval = Errno::EOVERFLOW.as_result();
                    done.outdata.clear();
                }
            }
        } else {
            outcome.result = 0;
            outcome.no_output = true;
        }
        if outcome.result < 0 {
            self.refuse(op, outcome);
            return Ok(Done::Over);
        }
        let (first_version, last_user_version) =
            self.with_pg(|p| (p.next_version(), p.info().last_user_version));
        let sealed = exec.seal(SealArgs {
            first_version,
            last_user_version,
            reqid: op.reqid,
            mtime: m.mtime,
            now,
            return_code: if returnvec { outcome.result } else { 0 },
            op_returns: if returnvec { op_returns(&outcome) } else { Vec::new() },
        });
        self.with_pg(|pg| op.tracked.waits_for(pg.acknowledged_by().map(|c| c.osd)));
        // The next operation on the object sees the new state; the store has it as soon as this is
        // proposed.
        let before = context
            .head
            .borrow_mut()
            .replace(Rc::new(Head { state: sealed.new, snapset: sealed.snapset }));
        let completion = Completion::Client {
            op: op.clone(),
            outcome,
            user_version: sealed.user_version,
            context: Some(context.clone()),
            in_bytes,
            effects,
        };
        context.proposed();
        if !self.propose(sealed.entries, sealed.txn, sealed.stats, completion) {
            context.committed();
            *context.head.borrow_mut() = before;
            self.park(op);
        }
        Ok(Done::Over)
    }

    /// A write of objects that are being compared waits, if others have gone first often enough.
    fn waits_for_scrub(&self, op: &Rc<ClientOp>) -> bool {
        let waits = self.with_pg(|pg| pg.scrub_blocks(&op.head));
        if waits {
            op.tracked.delayed("waiting for scrub");
            self.st.borrow_mut().waiting_scrub.push(op.clone());
        }
        waits
    }

    /// What the request needs and what turned out to be bad, here or on a replica, while it was
    /// executed. Then it has done nothing, and is executed again once the object is whole.
    async fn lost_meanwhile(
        self: &Rc<Self>,
        op: &ClientOp,
        target: &ObjectId,
        snapset: &SnapSet,
    ) -> Option<ObjectId> {
        let lost = if self.reader.is_damaged() { self.note_damage().await } else { Vec::new() };
        if let Some(oid) = lost.into_iter().next() {
            return Some(oid);
        }
        if self.with_pg(|pg| pg.must_wait(target, op.info.may_write())) {
            return Some(target.clone());
        }
        self.rollback_waits(op, snapset)
    }

    /// Queues a request behind the recovery of an object, which goes before all others.
    fn wait_for_recovery(self: &Rc<Self>, oid: ObjectId, op: &Rc<ClientOp>) -> Done {
        let done = self.wait_object(&oid, op, "waiting for missing object");
        self.handle(pg::Event::RecoverNow(oid));
        done
    }

    /// The clone that a rollback copies, if this OSD or a replica lacks it.
    fn rollback_waits(&self, op: &ClientOp, snapset: &SnapSet) -> Option<ObjectId> {
        op.m().ops.iter().find_map(|o| {
            let messages::OpArgs::Snap { snapid } = o.args else { return None };
            let At::Clone(id) = snapset.locate(snapid) else { return None };
            let oid = op.head.at(id);
            let status = self.with_pg(|pg| pg.object_status(&oid));
            (!matches!(status, ObjectStatus::Ready | ObjectStatus::InFlight)).then_some(oid)
        })
    }

    fn snap_context(
        &self,
        op: &ClientOp,
        pool: &Option<SnapContext>,
        map: &ClusterMapRef,
    ) -> SnapContext {
        if !op.info.may_write() {
            return SnapContext::default();
        }
        match pool {
            Some(snapc) if !op.has(OsdFlags::ENFORCE_SNAPC) => snapc.clone(),
            _ => {
                let m = op.m();
                let live = |s: &SnapId| !map.snap_removed(self.pgid.pool, *s);
                SnapContext {
                    seq: m.snapc.seq,
                    snaps: m.snapc.snaps.iter().copied().filter(live).collect(),
                }
            }
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

fn op_returns(outcome: &Outcome) -> Vec<(i32, Bytes)> {
    outcome.ops.iter().map(|o| (o.rval, o.out_bytes())).collect()
}

/// Runs a future to its end if it need not wait, otherwise leaves it to the thread's executor. Most
/// operations never wait, and then cost no task.
pub(crate) fn run_now(f: impl Future<Output = ()> + 'static) {
    let mut f = Box::pin(f);
    if f.as_mut().poll(&mut std::task::Context::from_waker(Waker::noop())).is_pending() {
        // It is polled again with the task's waker, whatever woke in between.
        tokio::task::spawn_local(f);
    }
}
