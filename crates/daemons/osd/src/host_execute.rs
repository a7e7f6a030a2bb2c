//! Executing a request of a client, in steps.
//!
//! ```text
//! turn at its object ─► may it run now? ─► which object? ─► what is refused? ─► run its operations
//!                                                                                     │
//!      (durable) ─► answer ◄── commit ◄── is there room? ◄── does it change anything? ◄┘
//! ```
//!
//! What was decided for it ([`Attempt`]) holds for one interval of the PG. A step that has waited
//! asks whether that is over ([`Attempt::holds`]): then the next interval has the request.

use crate::client_op::{ClientOp, Outcome, Versions};
use crate::coding::Gathered;
use crate::gate::Head;
use crate::host::{Completion, Context, PgHost};
use crate::host_shards::Objects;
use crate::map::{ClusterMapRef, PoolOps};
use crate::rooms::Pledged;
use crate::settings::Settings;
use crate::tracker::Stage;
use crate::waits::{Reason, Waiter};
use admission::Request as _;
use bytes::Bytes;
use client::wall_clock;
use objops::object::{At, ObjectState, SnapSet, SnapSetExt};
use objops::seal::{SealArgs, error_entry};
use objops::txn::Mutations;
use objops::{Env, Exec, ObjectReader, OpCode, OpOutcome, OsdFlags, WatchEnv};
use pg::{ObjectStatus, StatSum};
use smallvec::smallvec;
use std::rc::Rc;
use types::{EntityType, Errno, ObjectId, SnapContext, SnapId, Utime};

/// The outcome of an execution.
pub(crate) enum Done {
    /// It was answered, proposed or dropped.
    Over,
    /// It waits for an object and runs again when that is there.
    Waits,
}

/// Why an attempt goes no further.
enum Stop {
    /// The request was answered, proposed or dropped.
    Over,
    /// The request waits and runs again.
    Waits,
    /// The request is refused.
    Refused(Errno),
}

impl From<Errno> for Stop {
    fn from(e: Errno) -> Self {
        Stop::Refused(e)
    }
}

/// One attempt to execute a request: what was decided for it.
struct Attempt<'a> {
    host: &'a Rc<PgHost>,
    context: &'a Rc<Context>,
    op: &'a Rc<ClientOp>,
    /// The interval that all of it holds for.
    generation: u64,
    map: ClusterMapRef,
    pool: Rc<PoolOps>,
    settings: Rc<Settings>,
    write: bool,
}

impl PgHost {
    /// Executes a request that is next at its object.
    pub(crate) async fn execute(
        self: &Rc<Self>,
        context: &Rc<Context>,
        op: &Rc<ClientOp>,
        generation: u64,
    ) -> Done {
        if self.must_wait(op) {
            return Done::Waits;
        }
        if op.info.may_write()
            && let Some(dup) = self.with_pg(|pg| pg.find_dup(&op.reqid))
        {
            if dup.committed {
                self.reply_dup(op, &dup);
                return Done::Over;
            }
            let reason = Reason::Durable(dup.version);
            let resent = Waiter::Resent(op.clone(), Box::new(dup));
            self.st.borrow_mut().waits.add(reason, resent);
            return Done::Waits;
        }
        self.attempt(context, op, generation).await
    }

    /// Reads for a client that any replica may serve. Its answer is checked as any read's.
    pub(crate) async fn execute_on_replica(
        self: &Rc<Self>,
        context: &Rc<Context>,
        op: &Rc<ClientOp>,
        generation: u64,
    ) {
        self.attempt(context, op, generation).await;
    }

    async fn attempt(
        self: &Rc<Self>,
        context: &Rc<Context>,
        op: &Rc<ClientOp>,
        generation: u64,
    ) -> Done {
        let stopped = match Attempt::new(self, context, op, generation) {
            Ok(attempt) => attempt.run().await.err().unwrap_or(Stop::Over),
            Err(e) => Stop::Refused(e),
        };
        match stopped {
            Stop::Over => Done::Over,
            Stop::Waits => Done::Waits,
            Stop::Refused(e) => {
                if self.generation.get() == generation {
                    let result = e.as_result();
                    let outcome = Outcome { result, no_output: true, ..Outcome::default() };
                    self.refuse(context, op, outcome);
                }
                Done::Over
            }
        }
    }

    /// Whether a request must wait for a scrub, or for the recovery of its object; then it does.
    fn must_wait(self: &Rc<Self>, op: &Rc<ClientOp>) -> bool {
        let ahead = self.st.borrow().waits.ahead_of(op);
        if let Some(reason) = ahead {
            if reason == Reason::Readable {
                self.wait_readable(op);
            } else {
                self.wait(op.clone(), reason);
            }
            return true;
        }
        let writes = op.info.may_write() || op.info.is_ordered_read();
        if writes && self.waits_for_scrub(op) {
            return true;
        }
        let reason = match self.with_pg(|pg| pg.object_status(&op.head)) {
            ObjectStatus::Missing | ObjectStatus::Unfound => Reason::Missing(op.head.clone()),
            ObjectStatus::Degraded if op.info.rwordered() && !self.overtakes_copy(op) => {
                Reason::Degraded(op.head.clone())
            }
            _ => return false,
        };
        self.handle(pg::Event::RecoverNow(op.head.clone()));
        self.wait(op.clone(), reason);
        true
    }

    /// Whether a request deletes its object, and need not wait until that is copied to others.
    fn overtakes_copy(&self, op: &ClientOp) -> bool {
        op.m().ops.iter().all(|o| o.code == OpCode::DELETE)
            && self.with_pg(|pg| pg.may_overtake_copy(&op.head))
    }

    /// Answers a request that failed before or in its execution. A write's failure is remembered,
    /// so that the same request fails in the same way when it is sent again.
    fn refuse(self: &Rc<Self>, context: &Rc<Context>, op: &Rc<ClientOp>, outcome: Outcome) {
        if op.info.may_write() {
            let version = self.with_pg(|p| p.info().last_user_version);
            self.remember(context, op, outcome, version);
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

    /// Logs a request that changes nothing, and answers it when that is durable. Reads wait for it
    /// as they do for changes, or an ordered one would be answered first.
    fn remember(
        self: &Rc<Self>,
        context: &Rc<Context>,
        op: &Rc<ClientOp>,
        outcome: Outcome,
        user_version: u64,
    ) {
        let returns = if op.info.allows_returnvec() { op_returns(&outcome) } else { Vec::new() };
        let entry = error_entry(op.head.clone(), op.reqid, outcome.result, returns);
        op.tracked.mark(Stage::WaitingForSubOps);
        let completion = Completion::Client {
            op: op.clone(),
            user_version,
            outcome,
            context: Some(context.clone()),
            in_bytes: 0,
            effects: None,
        };
        context.proposed();
        let nothing = Gathered::default();
        let stats = StatSum::default();
        if !self.propose(smallvec![entry], Mutations::new(), &nothing, stats, completion) {
            context.committed();
            self.park(op);
        }
    }

    /// The PG stopped serving in the middle.
    fn park(&self, op: &Rc<ClientOp>) {
        self.finish(op);
        self.wait(op.clone(), Reason::Active);
    }

    /// A write of objects that are being compared waits, if others have gone first often enough.
    fn waits_for_scrub(&self, op: &Rc<ClientOp>) -> bool {
        let waits = self.with_pg(|pg| pg.scrub_blocks(&op.head));
        if waits {
            self.wait(op.clone(), Reason::Scrub);
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
        leaves_nothing: bool,
    ) -> Option<ObjectId> {
        let lost = if self.reader.is_damaged() { self.note_damage().await } else { Vec::new() };
        if let Some(oid) = lost.into_iter().next() {
            return Some(oid);
        }
        let overtakes = (leaves_nothing || !self.is_coded()) && self.overtakes_copy(op);
        let writes = op.info.may_write() && !overtakes;
        if self.with_pg(|pg| pg.must_wait(target, writes)) {
            return Some(target.clone());
        }
        self.rollback_waits(op, snapset)
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
}

impl<'a> Attempt<'a> {
    fn new(
        host: &'a Rc<PgHost>,
        context: &'a Rc<Context>,
        op: &'a Rc<ClientOp>,
        generation: u64,
    ) -> Result<Self, Errno> {
        let map = host.core.map().ok_or(Errno::EAGAIN)?;
        let pool = map.pool_ops(host.pgid.pool).ok_or(Errno::ENOENT)?;
        let (settings, write) = (host.core.settings(), op.info.may_write());
        Ok(Attempt { host, context, op, generation, map, pool, settings, write })
    }

    /// Whether the interval is still the one that everything was decided for.
    fn holds(&self) -> Result<(), Stop> {
        if self.host.generation.get() == self.generation { Ok(()) } else { Err(Stop::Over) }
    }

    /// The request waits, and the object that it waits for is recovered before others.
    fn waits(&self, reason: Reason, oid: ObjectId) -> Stop {
        self.host.handle(pg::Event::RecoverNow(oid));
        self.host.wait(self.op.clone(), reason);
        Stop::Waits
    }

    async fn run(&self) -> Result<(), Stop> {
        let head = self.host.head(self.context, &self.op.head).await?;
        self.holds()?;
        let clone = self.clone_named(&head).await?;
        let target = clone.as_ref().unwrap_or(&head.state);
        let snapc = self.check(&head, target)?;
        let now = wall_clock();
        let origin = self.origin(&head, now);
        let removed = |s| self.map.snap_removed(self.host.pgid.pool, s);
        let watch = WatchEnv {
            entity: self.op.reqid.name,
            watch_timeout: self.settings.watch_timeout,
            notify_timeout: self.settings.notify_timeout,
            ping: &|watcher| self.host.watch_ping(&target.oid, watcher),
            next_id: &|| self.host.core.next_notify_id(),
        };
        let objects = Objects { host: self.host, payer: self.op.entity() };
        let env = Env {
            reader: &objects,
            classes: &self.settings.classes,
            copies: &*self.host.core.links.copies,
            limits: &self.settings.limits,
            pool: self.pool.rules,
            snapc: &snapc,
            snap_removed: &removed,
            origin: &origin,
            watch: &watch,
            random: rand::fill,
        };
        let mut exec = Exec::new(&env, target.oid.to_key(), target, &head.snapset);
        let (result, ops) = exec.run(&self.op.m().ops).await;
        self.holds()?;
        if self.write && result >= 0 {
            self.read_edges(&exec.txn, target).await?;
        }
        if self.write && self.host.waits_for_scrub(self.op) {
            return Err(Stop::Waits);
        }
        self.check_damage(&head, target, exec.leaves_nothing()).await?;
        let outcome = Outcome { result, ops, no_output: false, data_offset: exec.data_offset };
        if result < 0 {
            self.host.refuse(self.context, self.op, outcome);
            return Ok(());
        }
        let leads = || self.host.with_pg(|pg| pg.is_primary());
        if !self.write && (!self.host.may_answer(self.op) || (exec.effects.is_some() && !leads())) {
            self.host.wait_readable(self.op);
            return Err(Stop::Waits);
        }
        if exec.changes() {
            let room = self.make_room(&exec)?;
            let mut gathered = self.gather(&exec, &head, target).await?;
            if room.is_none() {
                self.check_own_room(&exec)?;
            }
            gathered.room = room;
            self.commit(exec, outcome, now, &gathered)
        } else {
            self.answer(exec, outcome, target);
            Ok(())
        }
    }

    /// The clone that has the snapshot which the request names; `None` if it is about the head.
    async fn clone_named(&self, head: &Head) -> Result<Option<ObjectState>, Stop> {
        let op = self.op;
        if op.oid.is_head() {
            return Ok(None);
        }
        if !head.state.exists {
            return Err(Errno::ENOENT.into());
        }
        let snap = op.oid.snap;
        let by_id = op.has(OsdFlags::MAP_SNAP_CLONE);
        let at = if by_id { head.snapset.locate_clone(snap) } else { head.snapset.locate(snap) };
        let oid = match at {
            At::Head => return Ok(None),
            At::Nothing => return Err(Errno::ENOENT.into()),
            At::Clone(id) => op.head.at(id),
        };
        let status = self.host.with_pg(|pg| pg.object_status(&oid));
        if matches!(status, ObjectStatus::Missing | ObjectStatus::Unfound) {
            return Err(self.waits(Reason::Missing(oid.clone()), oid));
        }
        if !by_id && self.map.snap_removed(self.host.pgid.pool, snap) {
            return Err(Errno::ENOENT.into());
        }
        Ok(Some(self.host.load(&oid).await?))
    }

    /// What can be refused, or must wait, now that the object is known; the snap context of writes.
    fn check(&self, head: &Head, target: &ObjectState) -> Result<SnapContext, Stop> {
        let op = self.op;
        if let Some(oid) = self.host.rollback_waits(op, &head.snapset) {
            return Err(self.waits(Reason::Degraded(oid.clone()), oid));
        }
        let snapdir = op.m().snapid == SnapId::SNAPDIR;
        let is_there = if snapdir { target.exists } else { target.visible() };
        if !self.write && !op.info.may_cache() && !is_there {
            return Err(Errno::ENOENT.into());
        }
        if op.has(OsdFlags::FLUSH) {
            // Only within a flush to a base pool, and there are none.
            return Err(Errno::EINVAL.into());
        }
        let snapc = self.snap_context();
        if self.write {
            if op.has(OsdFlags::ORDERSNAP) && snapc.seq < head.snapset.seq {
                op.reply_error(Errno::EOLDSNAPC, self.host.core.epoch());
                return Err(Stop::Over);
            }
            if !snapc.is_valid() {
                return Err(Errno::EINVAL.into());
            }
        }
        Ok(snapc)
    }

    fn snap_context(&self) -> SnapContext {
        if !self.write {
            return SnapContext::default();
        }
        match &self.pool.pool_snapc {
            Some(snapc) if !self.op.has(OsdFlags::ENFORCE_SNAPC) => snapc.clone(),
            _ => {
                let m = self.op.m();
                let live = |s: &SnapId| !self.map.snap_removed(self.host.pgid.pool, *s);
                SnapContext {
                    seq: m.snapc.seq,
                    snaps: m.snapc.snaps.iter().copied().filter(live).collect(),
                }
            }
        }
    }

    /// The request as object classes see it.
    fn origin(&self, head: &Head, now: Utime) -> cls::Origin {
        let m = self.op.m();
        cls::Origin {
            entity: self.op.request.source,
            addr: self.op.request.addr,
            last_user_version: self.host.with_pg(|p| p.info().last_user_version),
            snap_seq: head.snapset.seq.0,
            mtime: m.mtime,
            now,
            features: denc::Features(m.features),
            min_compat_client: self.pool.min_compat_client,
            require_osd_release: self.pool.require_osd_release,
            min_alloc_size: store::BLOCK,
            stripe_width: self.pool.stripe_width,
        }
    }

    /// Reads the blocks that a change covers only in part: they are completed from what is there,
    /// and that may be bad. The store would refuse the change then, when it has its place in the
    /// log already.
    async fn read_edges(&self, txn: &Mutations, target: &ObjectState) -> Result<(), Stop> {
        if self.host.is_coded() {
            return Ok(());
        }
        let had = if target.exists { target.oi.size } else { 0 };
        for (oid, at) in txn.edges().filter(|(oid, at)| *at < had && **oid == target.oid) {
            let _ = self.host.reader.read(&oid.to_key(), at, store::BLOCK).await;
        }
        self.holds()
    }

    /// What the request needs may have turned out to be bad while it ran. Then it has done nothing,
    /// and is executed again once the object is whole.
    async fn check_damage(
        &self,
        head: &Head,
        target: &ObjectState,
        leaves_nothing: bool,
    ) -> Result<(), Stop> {
        let host = self.host;
        if host.with_pg(|pg| pg.is_primary()) {
            let lost =
                host.lost_meanwhile(self.op, &target.oid, &head.snapset, leaves_nothing).await;
            let Some(oid) = lost else { return Ok(()) };
            self.holds()?;
            host.wait(self.op.clone(), Reason::Missing(oid.clone()));
            host.handle(pg::Event::RecoverNow(oid));
            return Err(Stop::Waits);
        }
        // A replica repairs nothing by itself: the primary has another copy, and scrubs find this
        // one.
        let damaged = host.reader.is_damaged();
        if damaged {
            host.note_damage().await;
        }
        if damaged || host.with_pg(|pg| pg.must_wait(&target.oid, false)) {
            return Err(Errno::EAGAIN.into());
        }
        Ok(())
    }

    /// Answers a request that changed nothing.
    fn answer<R: ObjectReader>(
        &self,
        mut exec: Exec<'_, R>,
        outcome: Outcome,
        target: &ObjectState,
    ) {
        let (host, op, version) = (self.host, self.op, exec.reply_user_version());
        if let Some(effects) = exec.effects.take() {
            host.watch_effects(op, &target.oid, *effects, version);
        }
        if self.write {
            host.remember(self.context, op, outcome, version);
            return;
        }
        let bytes: usize = outcome.ops.iter().map(OpOutcome::out_len).sum();
        op.reply(&outcome, host.core.epoch(), Versions::Read(version));
        host.tally.reads.borrow_mut().add(&exec.stats);
        host.core.count(op, 0, bytes as u64, None);
    }

    /// Room for what the request writes, in the pool, here and on replicas. What takes no block
    /// needs none, and what is forced waits for none.
    fn make_room<R: ObjectReader>(&self, exec: &Exec<'_, R>) -> Result<Option<Pledged>, Stop> {
        let (host, op, rules) = (self.host, self.op, &self.pool.rules);
        let grows = exec.stats.num_bytes > 0 || exec.stats.num_objects > 0;
        if op.has(OsdFlags::FULL_FORCE) || op.request.source.kind == EntityType::MDS {
            return Ok(None);
        }
        if !grows && !exec.txn.takes_blocks() {
            return Ok(None);
        }
        let refuses = op.has(OsdFlags::FULL_TRY);
        if grows && rules.full {
            if refuses {
                return Err(if rules.full_quota { Errno::EDQUOT } else { Errno::ENOSPC }.into());
            }
            // Dropped: the client sends it again when the pool is no longer full.
            host.finish(op);
            return Err(Stop::Waits);
        }
        let waits = grows && !refuses && host.core.is_failsafe_full();
        if !waits && let Ok(room) = host.room_for_write(&exec.txn) {
            return Ok(Some(room));
        }
        if refuses {
            return Err(Errno::ENOSPC.into());
        }
        // The pool will be full in one of the next maps; till then, or till there is room, it
        // waits.
        self.wait_for_room(&exec.txn);
        Err(Stop::Waits)
    }

    fn wait_for_room(&self, txn: &Mutations) {
        let (host, op) = (self.host, self.op);
        host.core.let_pass(op, txn.bytes_written());
        host.finish(op);
        host.wait(op.clone(), Reason::Room);
        host.core.rooms.full_waiters.set(true);
    }

    /// What is written without a pledge goes ahead of what is kept for others, and not beyond what
    /// this store has: a change that has its version cannot be refused any more. One that is forced
    /// is refused, since others that are forced do not wait behind it. Nothing may come between
    /// this and the proposal.
    fn check_own_room<R: ObjectReader>(&self, exec: &Exec<'_, R>) -> Result<(), Stop> {
        let (host, op) = (self.host, self.op);
        if !exec.txn.takes_blocks() || host.has_own_room(&exec.txn) {
            return Ok(());
        }
        if op.m().flags.any(OsdFlags::FULL_TRY | OsdFlags::FULL_FORCE) {
            return Err(Errno::ENOSPC.into());
        }
        self.wait_for_room(&exec.txn);
        Err(Stop::Waits)
    }

    /// What the client of a change is told of its operations.
    fn limit_output(&self, outcome: &mut Outcome) {
        if !self.op.info.allows_returnvec() {
            outcome.result = 0;
            outcome.no_output = true;
            return;
        }
        for done in &mut outcome.ops {
            if done.out_len() > self.settings.limits.write_reply {
                outcome.result = Errno::EOVERFLOW.as_result();
                done.rval = Errno::EOVERFLOW.as_result();
                done.outdata.clear();
            }
        }
    }

    /// What the change must know of objects as they were. The request has the object to itself
    /// while it waits for that.
    async fn gather<R: ObjectReader>(
        &self,
        exec: &Exec<'_, R>,
        head: &Head,
        target: &ObjectState,
    ) -> Result<Gathered, Stop> {
        let host = self.host;
        let gathered = host.gather(&exec.txn, &[&target.oid], self.op.entity()).await;
        self.holds()?;
        if host.is_coded() {
            if !host.with_pg(|pg| pg.is_active()) || host.waits_for_scrub(self.op) {
                return Err(Stop::Waits);
            }
            self.check_damage(head, target, exec.leaves_nothing()).await?;
        }
        Ok(gathered?)
    }

    /// Hands the change to the PG. The answer leaves when it is durable.
    fn commit<R: ObjectReader>(
        &self,
        mut exec: Exec<'_, R>,
        mut outcome: Outcome,
        now: Utime,
        gathered: &Gathered,
    ) -> Result<(), Stop> {
        let (host, op, context) = (self.host, self.op, self.context);
        let effects = exec.effects.take();
        let in_bytes = exec.txn.bytes_written();
        self.limit_output(&mut outcome);
        if outcome.result < 0 {
            host.refuse(self.context, op, outcome);
            return Ok(());
        }
        let returnvec = op.info.allows_returnvec();
        let (first_version, last_user_version) =
            host.with_pg(|p| (p.next_version(), p.info().last_user_version));
        let sealed = exec.seal(SealArgs {
            first_version,
            last_user_version,
            reqid: op.reqid,
            mtime: op.m().mtime,
            now,
            return_code: if returnvec { outcome.result } else { 0 },
            op_returns: if returnvec { op_returns(&outcome) } else { Vec::new() },
        });
        host.with_pg(|pg| op.tracked.waits_for(pg.acknowledged_by().map(|c| c.osd)));
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
        if !host.propose(sealed.entries, sealed.txn, gathered, sealed.stats, completion) {
            context.committed();
            *context.head.borrow_mut() = before;
            host.park(op);
        }
        Ok(())
    }
}

fn op_returns(outcome: &Outcome) -> Vec<(i32, Bytes)> {
    outcome.ops.iter().map(|o| (o.rval, o.out_bytes())).collect()
}
