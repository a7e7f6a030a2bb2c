//! A placement group on this OSD: drives its state machine, carries out what it asks for.
//!
//! The machine ([`pg::Pg`]) decides; this is its driver. Events go in through [`PgHost::handle`],
//! one at a time and never while an earlier one is handled; actions are carried out in their order.
//! Requests of clients are in [`crate::host_ops`], background work in [`crate::host_background`].

use crate::backoffs::Backoffs;
use crate::client_op::{ClientOp, Outcome, ReplySink, Versions};
use crate::clones::{Clones, ROW};
use crate::coding::{Coding, Gathered, Kept, ObjectStripes, STRIPES_BYTES_MAX, joined};
use crate::collections::{
    META_KEY, coll_of, join_into, push_chunk, put_rows, split_off, window_of,
};
use crate::core::Core;
use crate::flights::Flights;
use crate::gate::{Mode, ObjectContext};
use crate::peer_net::Envelope;
use crate::rooms::Pledged;
use crate::run_now::run_now;
use crate::scrubs::Scan;
use crate::tracker::Stage;
use crate::trims::{Pace, Trimmer};
use crate::waits::{Reason, Waiter, Waits};
use admission::Request as _;
use admission::work::{Background, Kind, ReadObject, Rebuild, Work};
use bytes::Bytes;
use client::wall_clock;
use objops::coded::{KeptChange, ShardChange};
use objops::store_reader::StoreReader;
use objops::txn::Mutations;
use objops::watch::{Effects, Watcher, Watches};
use pg::{
    Action, Event, GiveUp, LostRefused, NewEntry, OpToken, Payload, Payloads, PeerHeader, PeerMsg,
    Persist, Pg, PgConf, Proposal, ShardAnswer, Source, StatSum,
};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Instant;
use store::{Coll, Key, Transaction};
use tokio::sync::oneshot;
use types::{Eversion, ObjectId, OsdId, PgId, SnapId, SpgId};

/// A job that takes its turn at an object.
pub(crate) enum Job {
    /// A client's request.
    Client(Rc<ClientOp>),
    /// Trim this clone of a removed snapshot.
    Trim(SnapId, ObjectId, Pace),
    /// Take this watch out of the object's info.
    Unwatch(ObjectId, Watcher),
}

pub(crate) type Context = ObjectContext<Job>;

/// A job that has its turn at its object while actions are carried out.
pub(crate) struct Turn {
    pub(crate) context: Rc<Context>,
    pub(crate) mode: Mode,
    pub(crate) job: Job,
    /// The interval in which the turn came.
    pub(crate) generation: u64,
}

/// The listener for a proposal that is durable.
pub(crate) enum Completion {
    /// A client.
    Client {
        op: Rc<ClientOp>,
        outcome: Outcome,
        user_version: u64,
        context: Option<Rc<Context>>,
        in_bytes: u64,
        effects: Option<Box<Effects>>,
    },
    /// The trimmer of a snapshot.
    Trim { snap: SnapId, context: Rc<Context>, pace: Pace },
    /// A watch that timed out.
    Unwatch { oid: ObjectId, watcher: Watcher, context: Rc<Context> },
    /// An operator that gave up unfound objects.
    Lost(oneshot::Sender<()>),
}

/// What this copy applies of a proposal.
enum Own {
    /// The whole change.
    Whole(Mutations),
    /// What is for its shard.
    Shard(ShardChange),
}

struct Proposed {
    txn: Option<Own>,
    completion: Completion,
}

/// What changes while the group runs.
pub(crate) struct State {
    pub(crate) pg: Pg,
    proposals: FxHashMap<OpToken, Proposed>,
    /// When changes began, and which copies have them.
    pub(crate) flights: Flights,
    pub(crate) contexts: FxHashMap<ObjectId, Rc<Context>>,
    /// Requests in execution or in flight, by address.
    pub(crate) running: FxHashMap<usize, Rc<ClientOp>>,
    /// Requests that wait, and for what.
    pub(crate) waits: Waits,
    /// Sessions that were told to hold back.
    pub(crate) backoffs: Backoffs,
}

/// A PG on this OSD: the machine that decides, and the work that it has under way.
pub struct PgHost {
    /// The group.
    pub pgid: PgId,
    /// The copy of it that this is.
    pub id: SpgId,
    /// Which of the copies that this OSD has had of the group since it started.
    pub(crate) copy: u64,
    /// Its collection.
    pub coll: Coll,
    /// The group's own object, which has its rows.
    pub meta: Key,
    pub(crate) core: Rc<Core>,
    pub(crate) reader: StoreReader,
    pub(crate) st: RefCell<State>,
    /// Counts intervals: what was begun in an earlier one must not go on.
    pub(crate) generation: Cell<u64>,
    pub(crate) tally: Tally,
    /// The snapshot that is being trimmed.
    pub(crate) trimmer: RefCell<Option<Trimmer>>,
    /// Clones that removed snapshots have.
    pub(crate) clones: RefCell<Clones>,
    pub(crate) watches: RefCell<Watches<Rc<dyn ReplySink>>>,
    /// Scans for scrubs, by token.
    pub(crate) scans: RefCell<FxHashMap<u64, Scan>>,
    /// The pool's code, where copies are shards.
    pub(crate) coding: OnceCell<Rc<Coding>>,
    /// What is known of the bytes of objects that are being changed, where copies are shards.
    pub(crate) stripes: RefCell<ObjectStripes>,
    /// What undoes changes that may have to be taken back.
    pub(crate) kept: RefCell<Kept>,
    /// The same of groups that came out of this one and are not here yet.
    pub(crate) handed_over: RefCell<BTreeMap<SpgId, Kept>>,
    /// Reads of other copies that wait for an answer, and when each was asked for if it is urgent.
    pub(crate) shard_reads:
        RefCell<FxHashMap<u64, (Option<Instant>, oneshot::Sender<ShardAnswer>)>>,
    pub(crate) pump: Pump,
}

/// Counts of a copy that its log does not carry, since the start.
#[derive(Default)]
pub(crate) struct Tally {
    /// Reads that were served. They change no object.
    pub(crate) reads: RefCell<StatSum>,
    /// Objects of a copy that goes away that are gone.
    pub(crate) removed: Cell<u64>,
    /// Objects under recovery, as was told last.
    pub(crate) recovering: Cell<usize>,
}

/// The order in which events, actions and jobs follow each other; see [`PgHost::pump`].
#[derive(Default)]
pub(crate) struct Pump {
    events: RefCell<VecDeque<Event>>,
    /// Actions are carried out.
    runs: Cell<bool>,
    /// Jobs that begin when no action is left; their objects are taken.
    turns: RefCell<VecDeque<Turn>>,
    /// One of these begins.
    takes_turn: Cell<bool>,
    /// Room of what the events bring, and of what they cause.
    rooms: RefCell<Vec<Pledged>>,
    /// When the machine will be woken.
    pub(crate) wakes: Cell<Option<pg::Steady>>,
}

impl PgHost {
    pub(crate) fn new(core: Rc<Core>, pg: Pg, kept: Kept) -> Rc<Self> {
        let id = pg.spgid();
        let coll = coll_of(id);
        Rc::new(PgHost {
            pgid: id.pgid,
            id,
            copy: core.pgs.next_copy(),
            coll,
            meta: Bytes::from_static(META_KEY),
            reader: StoreReader::new(core.store.clone(), coll),
            core,
            st: RefCell::new(State {
                pg,
                proposals: FxHashMap::default(),
                flights: Flights::default(),
                contexts: FxHashMap::default(),
                running: FxHashMap::default(),
                waits: Waits::default(),
                backoffs: Backoffs::default(),
            }),
            generation: Cell::new(0),
            tally: Tally::default(),
            trimmer: RefCell::default(),
            clones: RefCell::default(),
            watches: RefCell::default(),
            scans: RefCell::default(),
            coding: OnceCell::new(),
            stripes: RefCell::new(ObjectStripes::new(STRIPES_BYTES_MAX)),
            kept: RefCell::new(kept),
            handed_over: RefCell::default(),
            shard_reads: RefCell::default(),
            pump: Pump::default(),
        })
    }

    /// Looks at the machine.
    pub fn with_pg<R>(&self, f: impl FnOnce(&Pg) -> R) -> R {
        f(&self.st.borrow().pg)
    }

    /// Reads served since the start.
    pub fn reads(&self) -> StatSum {
        *self.tally.reads.borrow()
    }

    pub(crate) fn set_conf(&self, conf: &PgConf) {
        *self.st.borrow_mut().pg.conf_mut() = conf.clone();
    }

    /// Hands an event to the machine and carries out what it asks for.
    pub fn handle(self: &Rc<Self>, event: Event) {
        self.pump.events.borrow_mut().push_back(event);
        self.pump();
    }

    /// Carries out everything that the machine asks for.
    pub(crate) fn pump(self: &Rc<Self>) {
        if self.pump.runs.replace(true) {
            return;
        }
        loop {
            // Actions first: an event must not be handled before the actions of the one before it.
            let action = self.st.borrow_mut().pg.poll_action();
            if let Some(action) = action {
                self.act(action);
                continue;
            }
            if self.pump.takes_turn.get() {
                // An event may be what the job of this turn is about to wait for.
                break;
            }
            if self.take_turn() {
                continue;
            }
            let Some(event) = self.pump.events.borrow_mut().pop_front() else { break };
            let mut st = self.st.borrow_mut();
            st.pg.set_clock(crate::clock::steady_now());
            st.pg.handle(event, wall_clock());
        }
        self.pump.runs.set(false);
        if self.pump.events.borrow().is_empty() {
            self.pump.rooms.borrow_mut().clear();
        }
        self.tell_recovering();
    }

    /// Begins a job that has its turn: at once, or when no action is left.
    ///
    /// A job reads its object from the store, and a change is in the store when the action that
    /// persists it has been carried out. Among actions that are carried out, those of a change that
    /// a job proposes come last: the next job for the object would not see it.
    pub(crate) fn turn(self: &Rc<Self>, turn: Turn) {
        if self.pump.runs.get() {
            self.pump.turns.borrow_mut().push_back(turn);
        } else {
            self.begin_turn(turn);
        }
    }

    /// Begins the next job that was put off; whether there was one. What it proposes is carried out
    /// within; other jobs and events come behind it, so that the stack stays flat and nothing
    /// happens between what it looks at and what it decides to wait for.
    fn take_turn(self: &Rc<Self>) -> bool {
        let Some(turn) = self.pump.turns.borrow_mut().pop_front() else { return false };
        self.pump.takes_turn.set(true);
        self.pump.runs.set(false);
        self.begin_turn(turn);
        self.pump.runs.set(true);
        self.pump.takes_turn.set(false);
        true
    }

    fn act(self: &Rc<Self>, action: Action) {
        match action {
            Action::Persist(p) => self.persist(*p),
            Action::Send { to, header, msg } => self.core.send(&to, header, msg),
            Action::Reply { token, version } => self.completed(token, version),
            Action::IntervalChange => self.interval_changed(),
            Action::Active => self.activated(),
            Action::ObjectReady(oid) => self.object_ready(&oid),
            Action::Scan { token, after, upto, deep, max } => {
                self.begin_scan(token, after, upto, deep, max)
            }
            Action::ReserveScrub => self.reserve_scrub(),
            Action::ReleaseScrub => self.release_scrub(),
            Action::ScrubRangeReady => self.resume_scrub_waiters(),
            Action::ScrubEnded { ran, again } => self.scrub_ended(ran, again),
            Action::CopyRepaired(oid) => self.copy_repaired(&oid),
            Action::ClusterLog { prio, text } => self.core.links.mon.cluster_log(prio, text),
            Action::ObjectUnfound(oid) => {
                tracing::warn!(pg = %self.pgid, %oid, "no copy of the object can be reached");
            }
            Action::ReadObject { token, oid, version, from, max_bytes, max_omap, urgent } => {
                let r = ReadObject { token, oid, version, from, max_bytes, max_omap, urgent };
                let to = if max_bytes > 0 { self.lacking(&r.oid) } else { Vec::new() };
                self.read_with_room(token, to, max_bytes, Kind::ReadObject(Box::new(r)));
            }
            Action::Rebuild {
                token,
                oid,
                version,
                targets,
                sources,
                from,
                max_bytes,
                max_omap,
                urgent,
            } => {
                let r = Rebuild {
                    token,
                    oid,
                    version,
                    targets,
                    sources,
                    from,
                    max_bytes,
                    max_omap,
                    urgent,
                };
                let to = r.targets.clone();
                self.read_with_room(token, to, max_bytes, Kind::Rebuild(Box::new(r)));
            }
            Action::ReadShard { token, query } if query.urgent => {
                let host = self.clone();
                run_now(async move {
                    host.serve_shard(token, query).await;
                });
            }
            Action::ReadShard { token, query } => {
                self.background(Kind::ReadShard(token, Box::new(query)))
            }
            Action::ShardAnswer { id, from: _, answer } => self.shard_answered(id, answer),
            Action::QueueRecovery => self.want_place(),
            Action::ListObjects { token, after, max } => {
                self.background(Kind::ListObjects(token, after, max))
            }
            Action::Reserve { side, backfill, priority } => {
                self.want_turn(side, backfill, priority)
            }
            Action::Release => self.leave_turns(),
            Action::WantUpThru(epoch) => self.core.links.mon.want_up_thru(epoch),
            Action::WantPgTemp(acting) => self.core.links.mon.want_pg_temp(self.pgid, acting),
            Action::WantMap(epoch) => self.core.links.mon.want_map(epoch),
            Action::SnapTrim(snap) => self.want_trim(snap),
            Action::WakeAt(at) => self.wake_at(at),
            Action::Readable => self.readable(),
            Action::RemoveObjects { max } => self.want_removal(max),
            Action::Gone { undelivered } => self.gone(undelivered),
        }
    }

    /// Reads for copies once there is room for what is read.
    fn read_with_room(
        self: &Rc<Self>,
        token: pg::ReadToken,
        to: Vec<types::PgShard>,
        max_bytes: u64,
        kind: Kind,
    ) {
        let (host, generation) = (self.clone(), self.generation.get());
        run_now(async move {
            let Some(room) = host.room_for_copies(&to, max_bytes, generation).await else {
                return;
            };
            host.core.rooms.begin_read(host.id, token, room);
            host.background(kind);
        });
    }

    /// What was read for copies is handed over: its room is pledged until it is sent.
    pub(crate) fn read_for_copies(self: &Rc<Self>, token: pg::ReadToken, event: Event) {
        self.pump.rooms.borrow_mut().extend(self.core.rooms.end_read(self.id, token));
        self.handle(event);
    }

    /// Bytes of the next event count as arrived until it was handled.
    pub(crate) fn arrives(&self, room: Pledged) {
        self.pump.rooms.borrow_mut().push(room);
    }

    pub(crate) fn background(self: &Rc<Self>, kind: Kind) {
        let cost = match &kind {
            // What it takes to move an object of average size.
            Kind::ReadShard(_, query) => {
                query.extents.iter().map(|(_, n)| *n).sum::<u64>().clamp(4096, 8 << 20)
            }
            Kind::Recover | Kind::ReadObject(_) | Kind::Rebuild(_) => self.with_pg(|p| {
                let s = &p.info().stats;
                (s.num_bytes / s.num_objects.max(1)).clamp(4096, 8 << 20) as u64
            }),
            // An attribute of each.
            Kind::ListObjects(_, _, max) => (*max as u64).saturating_mul(256),
            Kind::SnapTrim(_) => self.core.settings().trim.cost,
            Kind::CountClones => 256 * ROW,
            Kind::Scan(_) => self.core.settings().scrub.stride,
            // `osd_pg_delete_cost`.
            Kind::RemoveObjects(_) => 1 << 20,
        };
        let misplaced = self.with_pg(|p| p.is_only_misplaced());
        self.core.enqueue(Work::Background(Background {
            pgid: self.id,
            copy: self.copy,
            kind,
            cost,
            misplaced,
            receipt: Default::default(),
            queued: 0,
        }));
    }

    // --- persisting ---

    /// Adds the change that an entry stands for, or a piece of a recovered object. Of shards, with
    /// what undoes the change in the entries that `keep_undo` names.
    fn put_source(
        &self,
        t: &mut Transaction,
        source: Source,
        keep_undo: &[(Eversion, ObjectId)],
        snaps: impl Fn(&mut Transaction, &ObjectId, &[SnapId], &[SnapId]) + Copy,
    ) -> Result<Vec<(Eversion, KeptChange)>, String> {
        let coll = self.coll;
        match source {
            Source::None => {}
            Source::Proposal(token) => {
                let txn = self.st.borrow_mut().proposals.get_mut(&token).and_then(|p| p.txn.take());
                match txn {
                    Some(Own::Whole(txn)) => txn.into_store(coll, t, snaps),
                    Some(Own::Shard(change)) => {
                        return Ok(change.into_store(coll, t, keep_undo, snaps));
                    }
                    None => {}
                }
            }
            Source::RepOp(payload) => {
                let unreadable = |e: &dyn std::fmt::Display| {
                    format!("a write from the primary cannot be read: {e}")
                };
                let (ops, data) = (&payload.ops, std::slice::from_ref(&payload.data));
                let count = || {
                    self.core.perf.subop_in_bytes.add(payload.data.len() as u64);
                    self.core.perf.subop_w_in_bytes.add(payload.data.len() as u64);
                };
                if self.is_coded() {
                    let change = ShardChange::from_wire(ops, data).map_err(|e| unreadable(&e))?;
                    if let Some((oid, _)) = change.before.first() {
                        let bytes = change.txn.bytes_written();
                        self.charge_part(&change.payer, oid, qos::Access::Write, bytes);
                    }
                    count();
                    return Ok(change.into_store(coll, t, keep_undo, snaps));
                }
                let change = Mutations::from_wire(ops, data).map_err(|e| unreadable(&e))?;
                count();
                change.into_store(coll, t, snaps);
            }
            Source::Push(chunk) => {
                self.core.perf.recovery_ops.inc();
                self.core.perf.recovery_bytes.add(chunk.data.len() as u64);
                self.forget(&chunk.oid);
                push_chunk(coll, t, *chunk, snaps);
            }
            Source::Attrs(oid, attrs) => {
                self.forget(&oid);
                t.set_attrs(coll, &oid.to_key(), attrs);
            }
        }
        Ok(Vec::new())
    }

    fn persist(self: &Rc<Self>, p: Persist) {
        let mut t = Transaction::new();
        if p.create_collection {
            let pg_num =
                p.join.as_ref().map_or_else(|| self.with_pg(|pg| pg.pg_num()), |j| j.pg_num);
            t.create_window(self.coll, window_of(self.id, pg_num));
            t.touch(self.coll, &self.meta);
        }
        if let Some(join) = p.join {
            join_into(&mut t, self.id, &self.meta, join);
        }
        for child in p.split {
            let (id, pg_num) = (SpgId { pgid: child.pgid, ..self.id }, child.pg_num);
            split_off(&mut t, self.id, &self.meta, child);
            self.hand_over(&mut t, id, pg_num);
        }
        let coll = self.coll;
        let meta = &self.meta;
        let snaps = |t: &mut Transaction, oid: &ObjectId, old: &[SnapId], new: &[SnapId]| {
            self.clones.borrow_mut().change(oid, old, new);
            let (set, remove) = pg::snap_mapper::change(oid, old, new);
            put_rows(t, coll, meta, set, remove);
        };
        if let Err(why) = self.put_back(&mut t, &p.undo, snaps) {
            // What the other copies took back would stay here.
            self.core.health.fail(format!("{}: {why}", self.id));
            return;
        }
        let proposal = if let Source::Proposal(token) = p.source { Some(token) } else { None };
        let kept = match self.put_source(&mut t, p.source, &p.keep_undo, snaps) {
            Ok(kept) => kept,
            Err(why) => {
                // To go on without the change would make this copy differ from the primary's.
                self.core.health.fail(format!("{}: {why}", self.id));
                return;
            }
        };
        self.keep(&mut t, &p.keep_undo, kept);
        for oid in &p.remove_objects {
            self.forget(oid);
            let key = oid.to_key();
            // Whether it exists is not known; this makes it gone either way.
            t.touch(coll, &key).remove(coll, &key);
        }
        put_rows(&mut t, coll, meta, p.rows.set.into_vec(), p.rows.remove);
        self.let_go(&mut t, &p.forget_undo);
        let host = self.clone();
        let token = p.token;
        self.core.backlog.submit(t, move |done| match done {
            Ok(()) => {
                if let Some(proposal) = proposal {
                    host.st.borrow_mut().flights.committed(proposal, Instant::now());
                }
                host.handle(Event::Committed(token));
            }
            Err(e) => host
                .core
                .health
                .fail(format!("{}: the store refused a transaction: {e}", host.pgid)),
        });
    }

    /// What is cached of an object is void.
    pub(crate) fn forget(&self, oid: &ObjectId) {
        let head = if oid.is_head() { oid.clone() } else { oid.head() };
        if let Some(c) = self.st.borrow().contexts.get(&head) {
            *c.head.borrow_mut() = None;
        }
    }

    fn gone(self: &Rc<Self>, undelivered: Vec<(OsdId, PeerHeader, PeerMsg)>) {
        let mut t = Transaction::new();
        t.remove(self.coll, &self.meta);
        t.remove_collection(self.coll);
        let host = self.clone();
        self.core.backlog.submit(t, move |done| {
            if let Err(e) = done {
                host.core.health.fail(format!("{}: cannot remove the group: {e}", host.pgid));
            }
        });
        self.leave_trim();
        self.leave_count();
        self.leave_turns();
        self.leave_scrub();
        self.core.forget_host(self.id);
        self.leave_places();
        for (from, header, msg) in undelivered {
            self.core.handle_peer(Envelope::new(from, header, msg, None));
        }
    }

    // --- proposals ---

    /// Hands a change to the machine. False if the group does not serve any more; then the change
    /// is dropped and the caller's request must be queued again.
    pub(crate) fn propose(
        self: &Rc<Self>,
        mut entries: SmallVec<[NewEntry; 1]>,
        txn: Mutations,
        gathered: &Gathered,
        stats: StatSum,
        completion: Completion,
    ) -> bool {
        let token = OpToken(self.core.new_token());
        let ok = {
            let mut st = self.st.borrow_mut();
            let pledged = gathered.room.is_some();
            let (own, payloads) = if self.is_coded() {
                let first = st.pg.next_version();
                drop(st);
                let mut cut = match self.cut(&mut entries, &txn, gathered, first) {
                    Ok(cut) => cut,
                    Err(e) => {
                        self.core.health.fail(format!("{}: a change has no form: {e}", self.id));
                        return false;
                    }
                };
                self.count_change(&cut);
                let payer = match &completion {
                    Completion::Client { op, .. } => op.entity(),
                    _ => "",
                };
                let payloads = self.payloads(&mut cut, payer, pledged);
                let own = cut.shards.remove(&self.own_shard()).unwrap_or_default();
                st = self.st.borrow_mut();
                (Own::Shard(own), payloads)
            } else {
                let payload = if st.pg.needs_payload() {
                    let room = if pledged { txn.room() } else { 0 };
                    let wire = txn.to_wire();
                    Payload { ops: wire.meta, data: joined(wire.data), room }
                } else {
                    Payload::default()
                };
                (Own::Whole(txn), Payloads::Same(payload))
            };
            let commits = match &completion {
                Completion::Client { op, .. } => Some(op.tracked.commits()),
                _ => None,
            };
            st.proposals.insert(token, Proposed { txn: Some(own), completion });
            let proposed = st.pg.propose(Proposal { token, entries, payloads, stats });
            match &proposed {
                Ok(version) => st.flights.begin(token, *version, Instant::now(), commits),
                Err(_) => {
                    self.stripes.borrow_mut().clear();
                    drop(st.proposals.remove(&token));
                }
            }
            proposed.is_ok()
        };
        if ok {
            self.core.perf.op_wip.inc();
            self.pump();
        }
        ok
    }

    /// Gives up unfound objects. Says how many, and what tells when that is durable; it ends
    /// without a word if the group does not serve any more.
    pub(crate) fn mark_unfound_lost(
        self: &Rc<Self>,
        how: GiveUp,
    ) -> Result<(usize, oneshot::Receiver<()>), LostRefused> {
        let token = OpToken(self.core.new_token());
        let (done, wait) = oneshot::channel();
        let count = {
            let mut st = self.st.borrow_mut();
            let count = st.pg.mark_unfound_lost(token, how)?;
            st.proposals.insert(token, Proposed { txn: None, completion: Completion::Lost(done) });
            count
        };
        self.core.perf.op_wip.inc();
        self.pump();
        Ok((count, wait))
    }

    /// A replica says that it has all changes up to a version.
    pub(crate) fn replica_has(&self, from: OsdId, version: Eversion) {
        self.st.borrow_mut().flights.answered(
            from,
            version,
            Instant::now(),
            &mut self.core.admission.peers.borrow_mut(),
        );
    }

    fn completed(self: &Rc<Self>, token: OpToken, version: Eversion) {
        let (proposed, flight) = {
            let mut st = self.st.borrow_mut();
            (st.proposals.remove(&token), st.flights.end(token))
        };
        self.core.perf.op_wip.dec();
        match proposed.map(|p| p.completion) {
            Some(Completion::Client { op, outcome, user_version, context, in_bytes, effects }) => {
                let absent = outcome.result == types::Errno::ENOENT.as_result();
                let versions = if absent {
                    let (v, u) =
                        self.with_pg(|p| (p.info().last_update, p.info().last_user_version));
                    Versions::Absent(v, u)
                } else {
                    Versions::Change(version, user_version)
                };
                op.reply(&outcome, self.core.epoch(), versions);
                op.tracked.mark(Stage::CommitSent);
                if let Some(effects) = effects {
                    self.watch_effects(&op, &op.head, *effects, user_version);
                }
                self.stripe_rests(&op.head);
                let out: usize = outcome.ops.iter().map(|o| o.out_len()).sum();
                self.core.count(&op, in_bytes, out as u64, flight);
                self.finish(&op);
                if let Some(c) = context {
                    c.committed();
                    self.kick(&op.head, &c);
                }
            }
            Some(Completion::Trim { snap, context, pace }) => {
                context.committed();
                self.kick_any(&context);
                self.trim_on(snap, pace);
            }
            Some(Completion::Unwatch { oid, watcher, context }) => {
                self.stripe_rests(&oid);
                self.unwatched(&oid, &watcher, &context)
            }
            // A caller that gave up waiting does not need the answer.
            Some(Completion::Lost(done)) => drop(done.send(())),
            None => {}
        }
        self.answer_dups(version);
    }

    fn answer_dups(&self, version: Eversion) {
        let done = {
            let mut st = self.st.borrow_mut();
            if st.waits.is_empty() {
                return;
            }
            st.waits.take_range(Reason::Durable(Eversion::ZERO), Reason::Durable(version))
        };
        for waiter in done {
            if let Waiter::Resent(op, dup) = waiter {
                self.reply_dup(&op, &dup);
            }
        }
    }

    /// A request waits.
    pub(crate) fn wait(&self, op: Rc<ClientOp>, reason: Reason) {
        self.st.borrow_mut().waits.add(reason, Waiter::Op(op));
    }

    /// The request is over.
    pub(crate) fn finish(&self, op: &Rc<ClientOp>) {
        self.st.borrow_mut().running.remove(&(Rc::as_ptr(op) as usize));
        let slot = op.slot.borrow_mut().take();
        drop(slot);
    }

    // --- intervals ---

    pub(crate) fn interval_changed(self: &Rc<Self>) {
        self.core.pgs.changed.notify_one();
        self.generation.set(self.generation.get() + 1);
        self.shard_reads.borrow_mut().clear();
        self.core.rooms.end_reads(self.id);
        self.core.rooms.look_again();
        self.stripes.borrow_mut().clear();
        self.release_backoffs();
        self.watches.borrow_mut().clear();
        self.leave_trim();
        self.leave_count();
        self.leave_turns();
        self.leave_scrub();
        let (primary, mut ops) = {
            let mut st = self.st.borrow_mut();
            let contexts = std::mem::take(&mut st.contexts);
            let mut ops: Vec<Rc<ClientOp>> =
                std::mem::take(&mut st.running).into_values().collect();
            for c in contexts.values() {
                ops.extend(c.drain().into_iter().filter_map(|job| match job {
                    Job::Client(op) => Some(op),
                    Job::Trim(..) | Job::Unwatch(..) => None,
                }));
            }
            let n = st.proposals.len();
            st.proposals.clear();
            st.flights.clear();
            for _ in 0..n {
                self.core.perf.op_wip.dec();
            }
            ops.extend(st.waits.drain());
            (st.pg.is_primary(), ops)
        };
        for op in &ops {
            let slot = op.slot.borrow_mut().take();
            drop(slot);
        }
        if !primary {
            // The clients see the same map and send their requests to the new primary.
            ops.iter().for_each(|op| self.core.drop_request(op));
            return;
        }
        let split = self.with_pg(|pg| pg.info().history.last_epoch_split);
        ops.retain(|op| {
            let stays = !op.is_replied() && op.m().epoch >= split;
            if !stays {
                self.core.drop_request(op);
            }
            stays
        });
        ops.sort_by_key(|op| op.received);
        ops.into_iter().for_each(|op| self.wait(op, Reason::Active));
    }

    /// Tells the clients that hold back to go on.
    fn release_backoffs(&self) {
        let epoch = self.core.epoch();
        self.st.borrow_mut().backoffs.release(epoch);
    }

    fn activated(self: &Rc<Self>) {
        self.core.pgs.changed.notify_one();
        self.release_backoffs();
        let mut ops: Vec<_> = self.st.borrow_mut().waits.take_ops(&Reason::Active).collect();
        // Some came when the group was not active, and others had their turn then, which had come
        // before them.
        ops.sort_by_key(|op| op.received);
        for op in ops {
            self.core.route(op);
        }
    }

    fn object_ready(self: &Rc<Self>, oid: &ObjectId) {
        let ops = {
            let waits = &mut self.st.borrow_mut().waits;
            let missing = waits.take_ops(&Reason::Missing(oid.clone()));
            missing.chain(waits.take_ops(&Reason::Degraded(oid.clone()))).collect()
        };
        self.core.resume_all(ops);
    }

    /// There may be room in the store again.
    pub(crate) fn retry_for_room(self: &Rc<Self>) {
        let ops = self.st.borrow_mut().waits.take_ops(&Reason::Room);
        self.core.resume_all(ops.collect());
    }
}
