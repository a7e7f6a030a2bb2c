//! Writes: the primary orders them, all copies persist them, the client hears when all have.

use std::collections::BTreeSet;

use smallvec::{SmallVec, smallvec};
use types::{Eversion, ObjectId, PgShard, ShardId};

use crate::action::{Action, Peers, Persist, Source};
use crate::info::Backfill;
use crate::log_entry::{LogEntry, LogOp, Logged};
use crate::merge;
use crate::missing::MissingSet;
use crate::msg::{Payload, PeerMsg, RepOp};
use crate::proposal::{NotActive, Payloads, Proposal};
use crate::rows;

use super::{Deferred, InFlight, Pg, Phase, Waits};

/// Entries that a copy may lag behind the log, if they change nothing on it. They take memory on
/// the primary only as long as its log has them anyway.
const LAZY_MAX: u64 = 64;

impl Pg {
    /// Copies that have this object as it should be, this one included: they are read from, and
    /// changes of the object are applied there.
    pub fn shards_with(&self, oid: &ObjectId) -> Vec<PgShard> {
        let here = (!self.missing.contains(oid)).then_some(self.me);
        let has = |o: &PgShard| {
            self.peers.get(o).is_some_and(|p| p.missing.as_ref().is_some_and(|m| !m.contains(oid)))
        };
        let acting = self.replicas().into_iter().filter(has);
        let head = oid.head();
        let follows = |o: &PgShard| {
            self.peers.get(o).is_some_and(|p| {
                p.info.last_backfill.covers(&head)
                    && p.missing.as_ref().is_some_and(|m| !m.contains_name(&head))
            })
        };
        here.into_iter().chain(acting).chain(self.followers().filter(follows)).collect()
    }

    /// Whether a copy other than this one at a position is told of changes. A copy that is filled
    /// may have this one's own position.
    pub fn tells(&self, position: ShardId) -> bool {
        let other = |c: &PgShard| *c != self.me && c.shard == position;
        self.mapping.acting.iter().any(other) || self.followers().any(|c| other(&c))
    }

    /// Orders a change and replicates it. The host has checked [`Pg::object_status`] and
    /// [`Pg::find_dup`], and has built the payload for [`Pg::next_version`]. Causes one
    /// [`Action::Persist`] with [`Source::Proposal`], and [`Action::Reply`] when every acting OSD
    /// has it. Returns the version of the last entry.
    pub fn propose(&mut self, proposal: Proposal) -> Result<Eversion, NotActive> {
        if !self.is_active() || proposal.entries.is_empty() {
            return Err(NotActive);
        }
        let epoch = self.map.epoch();
        let mut persist =
            Persist { source: Source::Proposal(proposal.token), ..Persist::default() };
        let mut op = RepOp {
            entries: Default::default(),
            stats: proposal.stats,
            trim_to: self.trim_target(),
            committed: self.final_to(),
            payload: Payload::default(),
            log_only: false,
        };
        let kind = self.pool.kind;
        let mut names = ec::ShardSet::EMPTY;
        let mut oids = SmallVec::new();
        for new in proposal.entries {
            debug_assert!(!self.missing.contains(&new.oid), "a write to a missing object");
            let version = Eversion { epoch, version: self.info.last_update.version + 1 };
            oids.push(new.oid.clone());
            let logged = Logged::new(LogEntry {
                op: new.op,
                oid: new.oid,
                version,
                prior_version: new.prior_version,
                user_version: new.user_version,
                reqid: new.reqid,
                mtime: new.mtime,
                return_code: new.return_code,
                snaps: new.snaps,
                op_returns: new.op_returns,
                reverting_to: None,
                written: kind.backend().names(new.written),
            });
            names = names.or(logged.entry.written);
            self.info.last_user_version = self.info.last_user_version.max(new.user_version);
            self.info.last_update = version;
            persist.rows.set.push(rows::log_row(&logged));
            self.log.push(logged.clone());
            self.note_change(&logged.entry);
            self.disturb_scrub(&logged.entry.oid);
            op.entries.push(logged);
        }
        self.info.stats.add(&op.stats);
        if let Some(logged) = op.entries.first() {
            self.scrub_follows(&logged.entry.oid, &op.stats);
        }
        if self.missing.is_empty() {
            self.info.last_complete = self.info.last_update;
        }
        let trim_to = op.trim_to;
        self.note_undo(op.entries.iter().map(|e| &e.entry), &mut persist);
        // Before the own transaction, so that the network works while the disk does.
        let repeat = match proposal.payloads {
            Payloads::Same(payload) if !self.backend().is_lazy() => {
                op.payload = payload;
                let mut repeat = self.send_to_followers(&op);
                repeat.extend(self.send_to_replicas(op));
                repeat
            }
            payloads => self.send_to_named(&op, &payloads),
        };
        self.forget_undo(self.final_to(), &mut persist);
        self.trim_log(trim_to, &mut persist);
        persist.rows.set.push(rows::fast_row(&self.info));
        let persist = self.persist(persist);
        let version = self.info.last_update;
        let waits = if self.backend().is_lazy() { Waits::Named(names) } else { Waits::All };
        self.inflight.push_back(InFlight { version, token: proposal.token, persist, oids, waits });
        let repeat: BTreeSet<ObjectId> = repeat.into_iter().collect();
        for oid in repeat {
            self.repeat_copy(oid);
        }
        Ok(version)
    }

    /// Sends a write to all acting replicas. Those that lack an object of it get the log entries
    /// alone. Returns these objects.
    fn send_to_replicas(&mut self, op: RepOp) -> Vec<ObjectId> {
        let (mut whole, mut repeat) = (Peers::new(), Vec::new());
        for shard in self.replicas() {
            let missing = self.peers.get_mut(&shard).and_then(|p| p.missing.as_mut());
            let lacks = |m: &&mut MissingSet| op.entries.iter().any(|e| m.contains(&e.entry.oid));
            let Some(missing) = missing.filter(lacks) else {
                whole.push(shard);
                continue;
            };
            let mut learned = merge::Outcome::default();
            for e in &op.entries {
                merge::learn(missing, &Backfill::Complete, &e.entry, &mut learned, merge::WHOLE);
            }
            repeat.extend(learned.touched);
            let msg = RepOp { payload: Payload::default(), log_only: true, ..op.clone() };
            self.send(shard, PeerMsg::RepOp(Box::new(msg)));
        }
        self.send_all(whole, PeerMsg::RepOp(Box::new(op)));
        repeat
    }

    /// Sends a write to copies of which each gets something else: to those that it changes, and to
    /// those that lag far behind the log. Returns objects of which copies must be begun
    /// because of it.
    fn send_to_named(&mut self, op: &RepOp, payloads: &Payloads) -> Vec<ObjectId> {
        let mut repeat: Vec<ObjectId> = Vec::new();
        let (kind, head) = (self.pool.kind, self.info.last_update);
        let followers: Vec<PgShard> = self.followers().collect();
        let all = self.replicas().into_iter().map(|o| (o, false));
        for (shard, follows) in all.chain(followers.into_iter().map(|o| (o, true))) {
            let Some(peer) = self.peers.get_mut(&shard) else { continue };
            let (Some(missing), Some(sent)) = (&mut peer.missing, peer.sent) else { continue };
            let changes = super::peering::changes_of(kind, shard);
            let filled = &peer.info.last_backfill;
            let has = |oid: &ObjectId| {
                let head = oid.head();
                match follows {
                    true => filled.covers(&head) && !missing.contains_name(&head),
                    // A deletion goes ahead of the copy of its object.
                    false => !missing.contains(oid),
                }
            };
            let mut changed = op.entries.iter().any(|e| changes(&e.entry));
            let payload = payloads.at(shard.shard);
            let applies = |e: &LogEntry| (e.op.is_update() || e.op.is_delete()) && changes(e);
            let untold = payload.is_none() && op.entries.iter().any(|e| applies(&e.entry));
            let has = op.entries.iter().all(|e| has(&e.entry.oid));
            debug_assert!(!(has && untold), "{shard:?} is not told what it applies");
            // An entry without its change would pass for the change: the copy lacks the object.
            let has = has && !untold;
            if !has {
                let terms = merge::Terms { changes: &changes, undo: None };
                let mut learned = merge::Outcome::default();
                for e in &op.entries {
                    merge::learn(missing, filled, &e.entry, &mut learned, terms);
                }
                changed |= !learned.touched.is_empty();
                repeat.extend(learned.touched);
            }
            peer.owed.add(&op.stats);
            let lag = head.version.saturating_sub(sent.version);
            if !changed && lag < LAZY_MAX && op.trim_to <= sent {
                continue;
            }
            let log_only = !changed || !has;
            let payload = payload.filter(|_| !log_only).unwrap_or_default();
            self.send_log(shard, op.trim_to, payload, log_only);
        }
        repeat.sort();
        repeat.dedup();
        repeat
    }

    /// Sends a copy all of the log that it was not sent.
    pub(super) fn send_log(
        &mut self,
        to: PgShard,
        trim_to: Eversion,
        payload: Payload,
        log_only: bool,
    ) {
        let Some(peer) = self.peers.get_mut(&to) else { return };
        let Some(sent) = peer.sent.replace(self.info.last_update) else { return };
        let op = RepOp {
            entries: self.log.after(sent).entries.into(),
            stats: std::mem::take(&mut peer.owed),
            trim_to,
            committed: self.final_to(),
            payload,
            log_only,
        };
        let (header, msg) = (self.header(to.shard), PeerMsg::RepOp(Box::new(op)));
        self.actions.push_back(Action::Send { to: smallvec![to], header, msg });
    }

    /// A message goes to a copy: before it, what the copy was not sent of the log.
    pub(super) fn catch_up(&mut self, to: PgShard) {
        let lags = |p: &super::Peer| p.sent.is_some_and(|sent| sent < self.info.last_update);
        if self.phase == Phase::Active
            && self.backend().is_lazy()
            && self.peers.get(&to).is_some_and(lags)
        {
            self.send_log(to, Eversion::default(), Payload::default(), true);
        }
    }

    /// Up to where nothing is taken back any more. Where too few act the activation does not count:
    /// with those that come back, entries may turn out to be on too few.
    pub(super) fn final_to(&self) -> Eversion {
        if self.enough() { self.all_committed } else { Eversion::default() }
    }

    /// Notes which of these entries, applied now, can be taken back.
    fn note_undo<'a>(
        &mut self,
        entries: impl Iterator<Item = &'a LogEntry>,
        persist: &mut Persist,
    ) {
        let kind = self.pool.kind;
        let backend = kind.backend();
        if !backend.rolls_back() {
            return;
        }
        for e in entries.filter(|e| backend.changes(e, self.me.shard)) {
            if e.op.is_update() || e.op.is_delete() {
                self.undo.insert(e.version);
                persist.keep_undo.push((e.version, e.oid.clone()));
            }
        }
    }

    /// Changes up to here are not taken back any more.
    fn forget_undo(&mut self, upto: Eversion, persist: &mut Persist) {
        while let Some(version) = self.undo.first().copied().filter(|v| *v <= upto) {
            self.undo.remove(&version);
            persist.forget_undo.push(version);
        }
    }

    /// The same, if there is no other transaction to go with.
    pub(super) fn roll_forward(&mut self, upto: Eversion) {
        if self.undo.first().is_some_and(|v| *v <= upto) {
            let mut persist = Persist::default();
            self.forget_undo(upto, &mut persist);
            self.persist(persist);
        }
    }

    pub(super) fn handle_rep_op(&mut self, op: RepOp) {
        if self.phase != Phase::ReplicaActive {
            return;
        }
        let source = if op.log_only { Source::None } else { Source::RepOp(op.payload) };
        let mut persist = Persist { source, ..Persist::default() };
        let mut learned = merge::Outcome::default();
        let mut given_up = false;
        let changes = super::peering::changes_of(self.pool.kind, self.me);
        let terms = merge::Terms { changes: &changes, undo: None };
        if !op.log_only {
            self.note_undo(op.entries.iter().map(|e| &e.entry), &mut persist);
        }
        for logged in op.entries {
            let v = logged.entry.version;
            if v <= self.log.head() || v.version != self.log.head().version + 1 {
                // A primary that skips or repeats is broken. Not to acknowledge keeps data safe.
                return;
            }
            self.info.last_update = v;
            self.info.last_user_version =
                self.info.last_user_version.max(logged.entry.user_version);
            persist.rows.set.push(rows::log_row(&logged));
            if op.log_only || !changes(&logged.entry) {
                merge::learn(
                    &mut self.missing,
                    &self.info.last_backfill,
                    &logged.entry,
                    &mut learned,
                    terms,
                );
            }
            given_up |= matches!(logged.entry.op, LogOp::LostRevert | LogOp::LostDelete);
            self.log.push(logged);
        }
        self.missing_rows(&learned.touched, &mut persist);
        persist.remove_objects.extend(learned.remove);
        self.info.stats.add(&op.stats);
        if self.missing.is_empty() {
            self.info.last_complete = self.info.last_update;
        }
        self.forget_undo(op.committed, &mut persist);
        self.trim_log(op.trim_to, &mut persist);
        if given_up {
            // Its size is not known.
            self.info.stats_invalid = true;
            self.info_rows(&mut persist);
        } else {
            persist.rows.set.push(rows::fast_row(&self.info));
        }
        let token = self.persist(persist);
        self.defer(token, Deferred::AckWrite(self.info.last_update));
    }

    pub(super) fn handle_rep_op_reply(&mut self, from: PgShard, version: Eversion) {
        if let Some(peer) = self.peers.get_mut(&from) {
            peer.acked = peer.acked.max(version);
            self.complete_writes();
        }
    }

    /// Replies to the writes that all acting copies have.
    pub(super) fn complete_writes(&mut self) {
        if self.inflight.is_empty() {
            return;
        }
        let me = self.me;
        let acked: SmallVec<[(ShardId, Eversion); 4]> = self
            .mapping
            .acting
            .iter()
            .copied()
            .chain(self.acknowledging())
            .filter(|&o| o != me)
            .map(|o| (o.shard, self.peers.get(&o).map_or(Eversion::default(), |p| p.acked)))
            .collect();
        let has = |op: &InFlight, (position, acked): &(ShardId, Eversion)| {
            *acked >= op.version || !op.waits.covers(*position)
        };
        while let Some(op) = self
            .inflight
            .pop_front_if(|op| op.persist <= self.committed && acked.iter().all(|a| has(op, a)))
        {
            self.all_committed = op.version;
            self.actions.push_back(Action::Reply { token: op.token, version: op.version });
        }
        self.lost_committed();
        if self.all_recovered() {
            self.min_last_complete_ondisk = self.all_committed;
        }
    }

    /// Up to where the log may be trimmed now; zero if nothing should be.
    fn trim_target(&self) -> Eversion {
        let conf = &self.conf;
        let keep = if self.clean {
            conf.target_pg_log_entries.max(conf.min_pg_log_entries).min(conf.max_pg_log_entries)
        } else {
            conf.max_pg_log_entries
        };
        let len = self.log.len() as u64;
        if len < keep + conf.pg_log_trim_min.max(1) {
            return Eversion::default();
        }
        let nth = (len - keep - 1) as usize;
        let target = self.log.iter().nth(nth).map_or(Eversion::default(), |e| e.entry.version);
        target.min(self.min_last_complete_ondisk).min(self.all_heard())
    }

    /// Up to where every acting copy has the log on disk. A change waits for the copies that it
    /// names alone: the others may be behind what is committed, and a copy with a log that ends
    /// before those of all others begin cannot be brought up to date by any of them.
    fn all_heard(&self) -> Eversion {
        let acked = |copy: &PgShard| self.peers.get(copy).map(|peer| peer.acked);
        self.replicas().iter().filter_map(acked).min().unwrap_or(self.all_committed)
    }

    /// Trims the log. Nothing that this copy has not completed is trimmed, whatever the primary
    /// says. While a copy is filled it never completes anything for long; what it lacks is in its
    /// missing set, not in the log alone.
    fn trim_log(&mut self, to: Eversion, persist: &mut Persist) {
        let to = if self.info.is_incomplete() {
            to.min(self.info.last_update)
        } else {
            to.min(self.info.last_complete)
        };
        if to > self.log.tail() {
            self.log.trim(to, self.conf.pg_log_dups_tracked, &mut persist.rows);
            self.info.log_tail = self.log.tail();
        }
    }

    /// A degraded PG kept a long log; a clean one needs less of it.
    pub(super) fn trim_idle(&mut self) {
        let to = self.trim_target();
        if to <= self.log.tail() {
            return;
        }
        self.send_all(self.replicas(), PeerMsg::Trim(to));
        let mut persist = Persist::default();
        self.forget_undo(self.final_to(), &mut persist);
        self.trim_log(to, &mut persist);
        persist.rows.set.push(rows::fast_row(&self.info));
        self.persist(persist);
    }

    pub(super) fn handle_trim(&mut self, to: Eversion) {
        if self.phase != Phase::ReplicaActive {
            return;
        }
        let mut persist = Persist::default();
        self.trim_log(to, &mut persist);
        persist.rows.set.push(rows::fast_row(&self.info));
        self.persist(persist);
    }
}
