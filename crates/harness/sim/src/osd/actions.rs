//! What the machines of groups want done.

use std::collections::BTreeMap;

use denc::Decode;
use pg::{
    Action, Backfill, Event, Payload, PeerMsg, Peers, Persist, PersistToken, Pg, Side, Source,
    SplitOff, Turn,
};
use types::{Eversion, LogPriority, ObjectId, ObjectInfo, PgShard, SpgId};

use super::effect::Rebuild;
use super::{Effect, Hosted, Local, Osd, ReadObject};
use crate::bug::Bug;
use crate::change::{Change, decode_payload};
use crate::disk::StoreOp;
use crate::monitor::MonMsg;
use crate::rng::mix;

impl Osd {
    pub(super) fn drain(&mut self, pgid: SpgId) {
        self.touched.insert(pgid);
        let (mut run, mut leave) = (false, false);
        loop {
            if std::mem::take(&mut leave) {
                self.leave_turns(pgid);
            }
            let Some(hosted) = self.pgs.get_mut(&pgid) else { return };
            let Some(action) = hosted.pg.poll_action() else {
                if std::mem::take(&mut run) {
                    self.run_waiting(pgid);
                    continue;
                }
                let pg = &hosted.pg;
                if pg.is_ready_to_join()
                    && hosted.told_ready.replace(pg.epoch()) != Some(pg.epoch())
                {
                    let acting = pg.mapping().acting.slots();
                    self.out.push(Effect::Mon(MonMsg::Ready(
                        pgid.pgid,
                        pg.epoch(),
                        pg.info().last_update,
                        acting,
                    )));
                }
                return;
            };
            match action {
                Action::Persist(persist) => self.persist(pgid, *persist),
                Action::Send { to, header, msg } => {
                    note_filling(&hosted.pg, &to, &msg, &mut self.marks);
                    let (front, data) = msg.encode(&header);
                    self.out.push(Effect::Peer { to, front, data });
                }
                Action::Reply { token, version } => {
                    run = true;
                    if let Some((op, v)) = hosted.running.remove(&token) {
                        assert_eq!(v, version);
                        self.stripe_rests(pgid, &op.oid());
                        self.answer(op, version, true);
                    } else if let Some((_, oids)) = hosted.giving_up.take_if(|(t, _)| *t == token) {
                        self.out.push(Effect::GaveUp(oids));
                    } else {
                        self.trimmed(pgid, token);
                    }
                }
                Action::IntervalChange => {
                    leave = true;
                    let reads = self.forget_gathers(Some(pgid));
                    let hosted = self.pgs.get_mut(&pgid).expect("it just asked");
                    hosted.waiting.extend(reads);
                    let Hosted {
                        pg,
                        waiting,
                        laggy,
                        running,
                        executing,
                        generation,
                        txns,
                        giving_up,
                        trimming,
                        ..
                    } = hosted;
                    if trimming.take().is_some() {
                        *self.marks.entry("trim interrupted").or_default() += 1;
                    }
                    txns.clear();
                    giving_up.take();
                    waiting.append(laggy);
                    *generation += 1;
                    waiting.extend(std::mem::take(executing).into_values());
                    waiting.extend(std::mem::take(running).into_values().map(|(op, _)| op));
                    let split = pg.info().history.last_epoch_split;
                    waiting.retain(|op| op.epoch >= split || self.bug == Bug::OldRequests);
                    if !pg.is_primary() {
                        // Those of a client with a newer map wait for that map.
                        let epoch = pg.epoch();
                        waiting.retain(|op| op.epoch > epoch);
                    }
                }
                Action::Active => {
                    run = true;
                    let objects = &self.disk.state().colls[&pgid].objects;
                    hosted.stale = objects.iter().map(|(o, c)| (o.clone(), c.version)).collect();
                }
                Action::ObjectReady(_) => run = true,
                Action::Readable => {
                    run = true;
                    let Hosted { waiting, laggy, .. } = hosted;
                    waiting.append(laggy);
                }
                Action::WakeAt(at) => self.out.push(Effect::Wake(pgid, at)),
                Action::ObjectUnfound(_) => *self.marks.entry("unfound").or_default() += 1,
                Action::ReadObject { token, oid, version, from, max_bytes, max_omap, urgent } => {
                    let read = ReadObject {
                        token,
                        oid,
                        version,
                        from,
                        most: (max_bytes, max_omap),
                        urgent,
                    };
                    self.out.push(Effect::Later(pgid, Local::ReadObject(read)));
                }
                Action::Rebuild {
                    token, oid, version, targets, sources, from, max_bytes, ..
                } => {
                    let max = max_bytes;
                    let r = Rebuild { token, oid, version, targets, sources, from, max };
                    self.out.push(Effect::Later(pgid, Local::Rebuild(r)));
                }
                Action::ReadShard { token, query } => {
                    // At once, or when its turn has come: writes may go before it then.
                    self.tokens += 1;
                    if mix(self.tokens).is_multiple_of(2) {
                        self.read_own_shard(pgid, token, &query);
                    } else {
                        self.out.push(Effect::Later(pgid, Local::ReadShard(token, query)));
                    }
                }
                Action::ShardAnswer { id, from, answer } => self.shard_answer(id, from, answer),
                Action::ListObjects { token, after, max } => {
                    self.out.push(Effect::Later(pgid, Local::List(token, after, max)))
                }
                Action::Reserve { side, backfill, priority } => {
                    self.tokens += 1;
                    if side == Side::Target && backfill && mix(self.tokens) % 1_000 < self.tight {
                        self.without_room.insert(pgid);
                        self.out.push(Effect::Later(pgid, Local::TooFull(priority)));
                    } else {
                        self.turns.entry(side).or_default().ask(pgid, priority, backfill);
                        self.next_turns();
                    }
                }
                Action::Release => {
                    if hosted.pg.backfills().any(|b| {
                        b.running && b.last_backfill == Backfill::Complete && b.missing == 0
                    }) {
                        *self.marks.entry("backfill finished").or_default() += 1;
                    }
                    self.leave_turns(pgid);
                }
                Action::QueueRecovery => self.out.push(Effect::Later(pgid, Local::Grant)),
                Action::WantUpThru(epoch) => {
                    if self.wishes.up_thru.is_none_or(|want| want < epoch) {
                        self.wishes.up_thru = Some(epoch);
                        self.out.push(Effect::Mon(MonMsg::UpThru(
                            self.id,
                            self.incarnation,
                            epoch.max(self.has()),
                        )));
                    }
                }
                Action::WantPgTemp(want) => {
                    *self.marks.entry("pg_temp").or_default() += 1;
                    self.wishes.pg_temp.insert(pgid.pgid, want.clone());
                    self.out.push(Effect::Mon(MonMsg::PgTemp(pgid.pgid, want, hosted.pg.epoch())));
                }
                Action::WantMap(epoch) => self.want_map(epoch),
                Action::Scan { token, after, upto, .. } => {
                    self.out.push(Effect::Later(pgid, Local::Scan(token, after, upto)))
                }
                Action::ReserveScrub => self.out.push(Effect::Later(pgid, Local::ScrubSlot)),
                Action::ReleaseScrub => {}
                Action::ScrubRangeReady => run = true,
                Action::ScrubEnded { ran, again } => {
                    *self
                        .marks
                        .entry(if ran { "scrubbed" } else { "scrub given up" })
                        .or_default() += 1;
                    self.out.extend(again.map(|kind| Effect::Later(pgid, Local::Scrub(kind))));
                }
                Action::CopyRepaired(_) => *self.marks.entry("repaired").or_default() += 1,
                Action::ClusterLog { prio, text } => {
                    self.out.extend((prio == LogPriority::ERROR).then_some(Effect::Complaint(text)))
                }
                Action::SnapTrim(snap) => {
                    hosted.trimming = Some((snap, None));
                    self.out.push(Effect::Later(pgid, Local::TrimTurn(hosted.generation, snap)));
                }
                Action::RemoveObjects { max } => {
                    self.out.push(Effect::Later(pgid, Local::RemoveObjects(max)))
                }
                Action::Gone { undelivered } => {
                    *self.marks.entry("removed").or_default() += 1;
                    let seq = self.disk.submit(vec![StoreOp::Drop(pgid)], None);
                    self.out.push(Effect::Flush(seq));
                    self.leave_turns(pgid);
                    if let Some(hosted) = self.pgs.remove(&pgid) {
                        self.early_ops.extend(hosted.waiting);
                    }
                    for (from, header, msg) in undelivered {
                        self.deliver(from, header, msg);
                    }
                    return;
                }
            }
        }
    }

    pub(super) fn leave_turns(&mut self, pgid: SpgId) {
        self.turns.values_mut().for_each(|t| t.leave(pgid));
        self.without_room.remove(&pgid);
        self.next_turns();
    }

    /// A PG that has a turn, or has it no more, hears of it a little later.
    pub(super) fn next_turns(&mut self) {
        for (side, turns) in &mut self.turns {
            while let Some(turn) = turns.next(1, true) {
                let (Turn::Granted(pgid) | Turn::Preempted(pgid)) = turn;
                self.out.push(Effect::Later(pgid, Local::Turn(turn, *side)));
            }
        }
    }

    /// For bugs: a change that a shard misses although its log has it, and one that comes to such a
    /// shard and is not checked.
    fn missed(&mut self, pgid: SpgId, oid: &ObjectId, change: Change) -> Option<Change> {
        let unguarded = self.bug == Bug::DeltaUnguarded;
        if !unguarded && self.bug != Bug::MissedChange {
            return Some(change);
        }
        let Change::Shard(mut shard) = change else { return Some(change) };
        if unguarded {
            shard.before = self.disk.state().version(pgid, oid).unwrap_or_default();
        }
        self.tokens += 1;
        let misses = !shard.remove
            && shard.before != Eversion::default()
            && mix(self.tokens).is_multiple_of(16);
        (!misses).then_some(Change::Shard(shard))
    }

    fn persist(&mut self, pgid: SpgId, persist: Persist) {
        let mut ops = Vec::new();
        if persist.create_collection {
            ops.push(StoreOp::Create(pgid));
        }
        if !persist.undo.is_empty() {
            *self.marks.entry("change taken back").or_default() += persist.undo.len() as u64;
        }
        ops.extend(persist.undo.iter().map(|(v, _)| StoreOp::Undo(pgid, *v)));
        if self.bug != Bug::ForgetUndo {
            let kept = persist.keep_undo.iter();
            ops.extend(kept.map(|(v, oid)| StoreOp::Keep(pgid, *v, oid.clone())));
        }
        let early_ack =
            self.bug == Bug::AckBeforeCommit && matches!(persist.source, Source::RepOp(_));
        self.change_objects(pgid, persist.source, &mut ops);
        if !persist.remove_objects.is_empty() {
            *self.marks.entry("merge removed objects").or_default() += 1;
            if self.bug != Bug::KeepDivergent {
                ops.extend(persist.remove_objects.into_iter().map(|o| StoreOp::Remove(pgid, o)));
            }
        }
        for (k, v) in persist.rows.set {
            if k.first() == Some(&b'm') {
                *self.marks.entry("missing").or_default() += 1;
                if self.bug == Bug::ForgetMissing {
                    continue;
                }
            }
            ops.push(StoreOp::Set(pgid, k, v));
        }
        ops.extend(persist.rows.remove.into_iter().map(|k| StoreOp::Unset(pgid, k)));
        ops.extend(persist.forget_undo.iter().map(|v| StoreOp::Forget(pgid, *v)));
        if self.bug == Bug::CursorFirst && self.pgs[&pgid].pg.info().is_incomplete() {
            let cursor = |op: &StoreOp| matches!(op, StoreOp::Set(_, k, _) if k[..] == b"info"[..]);
            let first = ops.extract_if(.., |op| cursor(op)).collect();
            let seq = self.disk.submit(first, None);
            self.out.push(Effect::Flush(seq));
        }
        if let Some(join) = persist.join {
            let here = join.parts.iter().filter(|(_, here)| *here);
            let here = here.map(|(part, _)| SpgId { pgid: *part, ..pgid }).collect();
            ops.push(StoreOp::Join(pgid, here));
            ops.extend(join.rows.set.into_iter().map(|(k, v)| StoreOp::Set(pgid, k, v)));
        }
        let mut split: Vec<StoreOp> =
            persist.split.into_iter().flat_map(|child| self.split_off(pgid, child)).collect();
        let later =
            if self.bug == Bug::SplitInSteps { std::mem::take(&mut split) } else { Vec::new() };
        ops.splice(0..0, split);
        let mut seq = self.disk.submit(ops, Some((pgid, persist.token)));
        if !later.is_empty() {
            seq = self.disk.submit(later, None);
        }
        self.out.push(Effect::Flush(seq));
        if early_ack {
            self.early_commit(pgid, persist.token);
        }
    }

    /// What is done to objects.
    fn change_objects(&mut self, pgid: SpgId, source: Source, ops: &mut Vec<StoreOp>) {
        match source {
            Source::None => {}
            Source::Attrs(oid, attrs) => {
                *self.marks.entry("reverted").or_default() += 1;
                let (_, info) = attrs.first().expect("an object has its info");
                let version = ObjectInfo::from_bytes(info).expect("own bytes").version;
                ops.push(StoreOp::Version(pgid, oid, version));
            }
            Source::Proposal(token) => {
                let hosted = self.pgs.get_mut(&pgid).expect("it just asked");
                let changes = hosted.txns.remove(&token).expect("it was proposed");
                ops.extend(
                    changes.into_iter().flat_map(|(oid, change)| change.into_store(pgid, oid)),
                );
            }
            Source::RepOp(_)
                if self.bug == Bug::FollowerSleeps && self.pgs[&pgid].pg.info().is_incomplete() => {
            }
            Source::RepOp(payload) => self.follow(pgid, payload, ops),
            Source::Push(mut chunk) => {
                if chunk.last && !chunk.oid.is_head() {
                    let filled = self.pgs[&pgid].pg.info().is_incomplete();
                    *self
                        .marks
                        .entry(if filled { "clone backfilled" } else { "clone recovered" })
                        .or_default() += 1;
                    if self.bug == Bug::PushForgetsSnaps {
                        chunk.snaps.clear();
                    }
                }
                *self
                    .marks
                    .entry(if chunk.last { "pushed" } else { "pushed part" })
                    .or_default() += 1;
                if self.bug != Bug::PushLastOnly || chunk.last {
                    ops.push(StoreOp::Push(pgid, chunk));
                }
            }
        }
    }

    /// What the primary proposed.
    fn follow(&mut self, pgid: SpgId, payload: Payload, ops: &mut Vec<StoreOp>) {
        let changes = decode_payload(payload);
        self.tokens += 1;
        let twice = self.bug == Bug::DeltaTwice && mix(self.tokens).is_multiple_of(4);
        for (oid, change) in changes {
            if let Change::Shard(change) = &change
                && twice
                && !change.remove
            {
                // As if the message had come again, and nothing known it.
                let mut again = change.clone();
                again.before = again.version;
                ops.push(StoreOp::Shard(pgid, oid.clone(), change.clone()));
                ops.push(StoreOp::Shard(pgid, oid, again));
                continue;
            }
            let change = match self.missed(pgid, &oid, change) {
                Some(change) => change,
                None => continue,
            };
            ops.extend(change.into_store(pgid, oid));
        }
    }

    /// A group that comes out of another, with its rows.
    fn split_off(&self, pgid: SpgId, child: SplitOff) -> Vec<StoreOp> {
        let id = SpgId { pgid: child.pgid, ..pgid };
        let mut ops = vec![StoreOp::Split(pgid, id, child.pgid.split_bits(child.pg_num))];
        let kept = |k: &[u8]| self.bug != Bug::SplitForgetsMissing || k[0] != b'm';
        let rows = child.rows.set.into_iter().filter(|(k, _)| kept(k));
        ops.extend(rows.map(|(k, v)| StoreOp::Set(id, k, v)));
        ops
    }

    fn early_commit(&mut self, pgid: SpgId, token: PersistToken) {
        if let Some(hosted) = self.pgs.get_mut(&pgid) {
            hosted.pg.handle(Event::Committed(token), self.now);
        }
    }
}

/// Notes how far several copies of a group are filled together.
fn note_filling(pg: &Pg, to: &Peers, msg: &PeerMsg, marks: &mut BTreeMap<&'static str, u64>) {
    let mut mark = |what| *marks.entry(what).or_default() += 1;
    let target = |o: &&PgShard| !pg.mapping().acting.contains(o);
    match msg {
        PeerMsg::AdvanceBackfill { .. } => {
            let at: Vec<_> =
                pg.backfills().filter(|b| b.running).map(|b| b.last_backfill).collect();
            if at.len() > 1 {
                mark(if at.iter().all(|c| *c == at[0]) {
                    "several copies filled together"
                } else {
                    "a copy catches up with another"
                });
            }
        }
        PeerMsg::Push(_) if to.iter().filter(target).count() > 1 => {
            mark("an object read once for several targets")
        }
        PeerMsg::RepOp(op)
            if !op.log_only
                && to.iter().any(|o| target(&o))
                && pg.backfills().filter(|b| b.running).count() > 1 =>
        {
            mark("write while several copies are filled");
        }
        _ => {}
    }
}
