//! Requests of clients.

use pg::{Event, ObjectStatus, OpToken, Payloads, Pg, Proposal, ScrubKind, Steady};
use types::{Eversion, ObjectId, SnapId, SpgId};

use super::{Effect, Local, Osd, Proof};
use crate::bug::Bug;
use crate::change::encode_payload;
use crate::content::{number_of, object_id, value_of};
use crate::history::Did;
use crate::request::{Ask, ClientOp};
use crate::snaps::{self, At, Plan, PoolSnaps};

impl Osd {
    /// A client's operation arrived.
    pub fn client(&mut self, op: ClientOp, time: u64) {
        self.set_time(time);
        let here = self.pgs.get(&op.pgid);
        let leads = here.is_some_and(|h| h.pg.is_primary() && op.epoch <= h.pg.epoch());
        if here.is_some_and(|h| op.epoch < h.pg.info().history.last_epoch_split)
            && self.bug != Bug::OldRequests
        {
            *self.marks.entry("request from before a split").or_default() += 1;
            return;
        }
        if op.balanced && !leads {
            self.read_replica(op);
            return;
        }
        let Some(hosted) = self.pgs.get_mut(&op.pgid) else {
            // The client knows the PG from a newer map.
            self.early_ops.push(op);
            return;
        };
        if !hosted.pg.is_primary() && op.epoch <= hosted.pg.epoch() {
            return;
        }
        if op.epoch < hosted.pg.info().history.same_primary_since {
            // Its sender sends it again when it sees the map; this copy may be older than anything
            // that is remembered.
            return;
        }
        hosted.waiting.push(op);
        self.scrubs += 1;
        if hosted.pg.is_clean() && crate::rng::mix(self.scrubs).is_multiple_of(32) {
            *self.marks.entry("scrub wanted").or_default() += 1;
            // With bad disks, some scrubs repair at once, and others in a second pass.
            let repair = self.conf.scrub_auto_repair && self.scrubs.is_multiple_of(2);
            self.feed(op.pgid, Event::StartScrub(ScrubKind { deep: true, repair, check: false }));
        }
        self.run_waiting(op.pgid);
        self.drain(op.pgid);
    }

    /// Whether a primary may answer what was read up to now.
    pub(super) fn may_answer(&self, pg: &Pg, now: Steady) -> bool {
        pg.is_readable(now) || self.bug == Bug::NoLease
    }

    /// Whether a replica may answer what was read of an object up to now.
    pub(super) fn may_answer_for(&self, pg: &Pg, oid: &ObjectId, now: Steady) -> bool {
        let without =
            self.bug == Bug::ReplicaWithoutLease && pg.phase_name() == "Started/ReplicaActive";
        pg.may_read_replica(oid, now)
            || without && !pg.info().is_incomplete() && !pg.missing().contains(oid)
    }

    fn proof(&self, pgid: SpgId, version: Option<Eversion>, first: bool) -> Proof {
        let pg = &self.pgs[&pgid].pg;
        let since = pg.info().history.same_interval_since;
        let acting = pg.mapping().acting.to_vec();
        let entry = version.and_then(|v| pg.log().get(v));
        let backend =
            self.newest.as_ref().and_then(|m| m.pools.get(&pgid.pgid.pool)).map(|p| p.kind);
        let named = acting.iter().copied().filter(|c| match (entry, backend) {
            (Some(e), Some(kind)) => kind.backend().changes(&e.entry, c.shard),
            _ => true,
        });
        Proof { pgid, epoch: pg.epoch(), since, named: named.collect(), acting, version, first }
    }

    pub(super) fn answer_with(
        &mut self,
        op: ClientOp,
        did: Did,
        version: Option<Eversion>,
        first: bool,
    ) {
        let proof = self.proof(op.pgid, version, first);
        self.out.push(Effect::Answer { client: op.client, tid: op.tid, did, proof });
    }

    /// Answers a change that has this version.
    pub(super) fn answer(&mut self, op: ClientOp, version: Eversion, first: bool) {
        let did = match op.ask {
            Ask::Write(value, _) => Did::Write(value),
            Ask::Delete => Did::Delete,
            Ask::Read | Ask::ReadAt(_) => unreachable!("reads are not logged"),
        };
        self.answer_with(op, did, Some(version), first);
    }

    /// A replica reads, if it may.
    fn read_replica(&mut self, op: ClientOp) {
        let (now, bug) = (self.steady(), self.bug);
        let refused = Effect::Refused { client: op.client, tid: op.tid, again: true };
        let Some(hosted) = self.pgs.get(&op.pgid) else {
            self.out.push(refused);
            return;
        };
        let lacks = hosted.pg.missing().contains(&op.oid());
        let anyway = bug == Bug::ReplicaReadsUncommitted
            && hosted.pg.may_read_replica(&object_id(op.pgid.pgid.pool, u64::MAX), now)
            && !lacks;
        if !self.may_answer_for(&hosted.pg, &op.oid(), now) && !anyway {
            *self.marks.entry("replica did not read").or_default() += 1;
            self.out.push(refused);
            return;
        }
        let Ok(object) = self.disk.read(op.pgid, &op.oid(), bug != Bug::NoChecksum) else {
            *self.marks.entry("replica found damage").or_default() += 1;
            self.out.push(refused);
            return;
        };
        let value = object.and_then(value_of);
        if bug == Bug::ReplicaReadsUncommitted {
            self.answer_with(op, read_of(op, value), None, false);
            return;
        }
        self.out.push(Effect::Later(op.pgid, Local::ReadDone(hosted.generation, op, value)));
    }

    /// Answers a read if no later interval can have begun before now.
    pub(super) fn answer_read(&mut self, op: ClientOp, value: Option<u64>) {
        let now = self.steady();
        if self.may_answer(&self.pgs[&op.pgid].pg, now) {
            self.answer_with(op, read_of(op, value), None, false);
            return;
        }
        let hosted = self.pgs.get_mut(&op.pgid).expect("checked by the caller");
        *self.marks.entry("read waited for a lease").or_default() += 1;
        hosted.pg.set_clock(now);
        hosted.pg.wait_readable();
        hosted.laggy.push(op);
    }

    /// Tries every waiting operation of a PG once.
    pub(super) fn run_waiting(&mut self, pgid: SpgId) {
        let Some(hosted) = self.pgs.get_mut(&pgid) else { return };
        if !hosted.pg.is_active() {
            return;
        }
        for op in std::mem::take(&mut hosted.waiting) {
            if !self.run(op) {
                let hosted = self.pgs.get_mut(&pgid).expect("operations do not remove PGs");
                hosted.waiting.push(op);
            }
        }
    }

    /// Runs an operation, or says that it must wait.
    fn run(&mut self, op: ClientOp) -> bool {
        let oid = op.oid();
        let hosted = &self.pgs[&op.pgid];
        if op.epoch > hosted.pg.epoch() {
            *self.marks.entry("request waited for a map").or_default() += 1;
            return false;
        }
        let status = hosted.pg.object_status(&oid);
        let waits = match status {
            ObjectStatus::Missing => true,
            ObjectStatus::Degraded => op.ask.is_write() && !self.overtakes_copy(&op),
            _ => false,
        };
        if waits {
            let hosted = self.pgs.get_mut(&op.pgid).expect("checked by the caller");
            *self.marks.entry("operation waited for recovery").or_default() += 1;
            hosted.pg.handle(Event::RecoverNow(oid), self.now);
            return false;
        }
        if status == ObjectStatus::Unfound {
            return false;
        }
        let hosted = &self.pgs[&op.pgid];
        if op.ask.is_write() && hosted.pg.scrub_blocks(&oid) {
            *self.marks.entry("write waited for scrub").or_default() += 1;
            return false;
        }
        let dup = hosted.pg.find_dup(&op.reqid()).filter(|_| self.bug != Bug::NoDups);
        if let Some(dup) = dup {
            *self.marks.entry("resent write recognised").or_default() += 1;
            if dup.committed {
                self.answer(op, dup.version, false);
            }
            return dup.committed;
        }
        if self.layout(op.pgid).is_some() {
            return self.run_on_shards(op);
        }
        let hosted = self.pgs.get_mut(&op.pgid).expect("checked by the caller");
        if !op.ask.is_write() {
            if hosted.pg.has_writes_in_flight(&oid) && self.bug != Bug::ReadUncommitted {
                return false;
            }
            let from = match op.ask {
                Ask::ReadAt(snap) => self.locate(op.pgid, &oid, snap),
                _ => Some(oid),
            };
            return self.read(op, from);
        }
        if self.full {
            *self.marks.entry("write waited for room").or_default() += 1;
            return false;
        }
        if hosted.executing.contains_key(&oid) {
            return false;
        }
        self.tokens += 1;
        if crate::rng::mix(self.tokens).is_multiple_of(4) {
            // An object may have to be read before it is changed.
            hosted.executing.insert(oid, op);
            self.out.push(Effect::Later(op.pgid, Local::Execute(hosted.generation, op)));
            return true;
        }
        self.execute(op);
        true
    }

    /// Whether a request deletes its object, and need not wait until that is copied to others.
    pub(super) fn overtakes_copy(&self, op: &ClientOp) -> bool {
        let overtakes = match self.layout(op.pgid) {
            _ if op.ask != Ask::Delete => false,
            Some(_) => self.removes_shards(op),
            // A clone may be lost with its one readable copy.
            None => self.snaps_of(op.pgid).live.is_empty(),
        };
        overtakes && self.pgs[&op.pgid].pg.may_overtake_copy(&op.oid())
    }

    /// Where the content at a snapshot is, if there is any.
    fn locate(&mut self, pgid: SpgId, oid: &ObjectId, snap: SnapId) -> Option<ObjectId> {
        *self.marks.entry("read at a snapshot").or_default() += 1;
        let head = self.disk.state().colls[&pgid].objects.get(oid);
        match head.map_or(At::Head, |h| snaps::locate(&h.snapset, snap)) {
            At::Head => Some(oid.clone()),
            At::Clone(clone) => {
                *self.marks.entry("clone read").or_default() += 1;
                Some(oid.at(clone))
            }
            At::Nothing => None,
        }
    }

    /// Reads this object for an operation, or says that it must wait.
    fn read(&mut self, op: ClientOp, from: Option<ObjectId>) -> bool {
        if let Ask::ReadAt(snap) = op.ask
            && !self.snaps_of(op.pgid).live.contains(&snap)
        {
            *self.marks.entry("read at a removed snapshot").or_default() += 1;
            self.out.push(Effect::Refused { client: op.client, tid: op.tid, again: false });
            return true;
        }
        let hosted = self.pgs.get_mut(&op.pgid).expect("checked by the caller");
        let Some(oid) = from else {
            self.answer_read(op, None);
            return true;
        };
        match hosted.pg.object_status(&oid) {
            ObjectStatus::Missing => {
                *self.marks.entry("read waited for a clone").or_default() += 1;
                hosted.pg.handle(Event::RecoverNow(oid), self.now);
                return false;
            }
            ObjectStatus::Unfound => return false,
            _ => {}
        }
        let Ok(object) = self.disk.read(op.pgid, &oid, self.bug != Bug::NoChecksum) else {
            *self.marks.entry("client met damage").or_default() += 1;
            let version = self.disk.state().version(op.pgid, &oid).expect("damaged, but there");
            hosted.pg.handle(Event::ObjectDamaged { oid: oid.clone(), version }, self.now);
            if hosted.pg.must_wait(&oid, false) {
                return false;
            }
            // Without another acting copy.
            *self.marks.entry("client got an error").or_default() += 1;
            self.out.push(Effect::Refused { client: op.client, tid: op.tid, again: false });
            return true;
        };
        let value = object.and_then(value_of);
        let generation = hosted.generation;
        self.tokens += 1;
        if crate::rng::mix(self.tokens).is_multiple_of(4) {
            // Data may have to come from the disk.
            self.out.push(Effect::Later(op.pgid, Local::ReadDone(generation, op, value)));
        } else {
            self.answer_read(op, value);
        }
        true
    }

    /// The snapshots of a PG's pool.
    pub(super) fn snaps_of(&self, pgid: SpgId) -> PoolSnaps {
        self.newest.as_ref().and_then(|m| m.snaps.get(&pgid.pgid.pool)).cloned().unwrap_or_default()
    }

    /// Works out what a write does, and proposes it.
    pub(super) fn execute(&mut self, op: ClientOp) {
        let pool = self.snaps_of(op.pgid);
        let hosted = self.pgs.get_mut(&op.pgid).expect("checked by the caller");
        let head = self.disk.state().colls[&op.pgid].objects.get(&op.oid());
        let mut plan = snaps::write(&op, head, &pool, hosted.pg.next_version(), self.now);
        if self.bug == Bug::DeleteKeepsNothing && op.ask == Ask::Delete && plan.entries.len() > 1 {
            plan = snaps::write(
                &op,
                head,
                &PoolSnaps { live: Vec::new(), ..pool },
                hosted.pg.next_version(),
                self.now,
            );
        }
        if plan.entries.len() > 1 {
            *self.marks.entry("clone made").or_default() += 1;
        }
        let (token, version) = self.propose(op.pgid, plan);
        if let Some(hosted) = self.pgs.get_mut(&op.pgid) {
            hosted.running.insert(token, (op, version));
        }
        // Apply at once: the next operation reads what this one wrote.
        self.drain(op.pgid);
        if self.bug == Bug::AckAlone
            && let Some((op, _)) = self.pgs.get_mut(&op.pgid).and_then(|h| h.running.remove(&token))
        {
            self.answer(op, version, true);
        }
    }

    /// Proposes a change. What it causes is for the caller to carry out.
    pub(super) fn propose(&mut self, pgid: SpgId, plan: Plan) -> (OpToken, Eversion) {
        let Plan { entries, changes, stats, after } = plan;
        let hosted = self.pgs.get_mut(&pgid).expect("checked by the caller");
        let first = hosted.pg.next_version();
        let version = Eversion { version: first.version + entries.len() as u64 - 1, ..first };
        self.tokens += 1;
        let token = OpToken(self.tokens);
        let payloads = Payloads::Same(encode_payload(&changes));
        let object =
            entries.last().and_then(|e| number_of(&e.oid)).expect("an object of this world");
        self.out.push(Effect::Proposed { object, version, after });
        hosted.txns.insert(token, changes);
        let got = hosted.pg.propose(Proposal { token, entries, payloads, stats });
        assert_eq!(got, Ok(version));
        (token, version)
    }
}

/// What a client is told of a read.
pub(super) fn read_of(op: ClientOp, value: Option<u64>) -> Did {
    match op.ask {
        Ask::ReadAt(snap) => Did::ReadAt(snap, value),
        _ => Did::Read(value),
    }
}
