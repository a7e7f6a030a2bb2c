//! Filling copies that the log cannot fill.
//!
//! The OSDs of `up` that do not act are filled, all at once. Such a target *follows*: it takes over
//! the log and gets every write from then on. Up to its cursor (`last_backfill`) it has every
//! object, or has it in its missing set; behind the cursor it has whatever it has.
//!
//! ```text
//!   Reserve (own turn) ─► OSDs that are read (`sources`) ─► for each target:
//!        Query Log? ─► Activate or StartBackfill ─► Activated ─► Reserve (the target) ─► filling
//!   ─► WantPgTemp with those that are filled
//!
//!   filling:   list own objects behind the cursor, ListObjects ─► Objects
//!              compare versions, AdvanceBackfill{cursor, missing, remove} ─► BackfillAdvanced
//!              recovery pushes what is missing; when little is left, the next range
//! ```
//!
//! Moving the cursor makes objects that were not compared yet *missing*, in the transaction that
//! moves it. So there is nothing between "unknown" and "known", whatever crashes, and the rest is
//! recovery: it copies, holds writers, and continues after a restart.
//!
//! A write to what a target has is applied there. Of one to an object behind its cursor it gets the
//! log entries alone. Of one to an object that it lacks too, and learns from them that it lacks the
//! new version.
//!
//! This module decides which copies are filled and when, `backfill_scan` finds out what they lack,
//! `backfill_target` is the other side.

use std::collections::BTreeSet;

use types::{Eversion, ObjectId, PgShard};

use crate::action::Action;
use crate::info::{Backfill, PgInfo};
use crate::log_entry::LoggedRef;
use crate::merge;
use crate::missing::MissingSet;
use crate::msg::{LogSegment, Payload, PeerMsg, Query, RepOp};
use crate::reserver::Side;
use crate::stats::StatSum;

use super::parts::backfill::{OwnTurn, Stage, Target};
use super::parts::scan::Scan;
use super::{Pg, Phase};

/// What goes on, for people.
#[derive(Clone, PartialEq, Debug)]
pub struct BackfillStatus {
    /// The OSD of the copy that is filled.
    pub target: PgShard,
    /// Its cursor.
    pub last_backfill: Backfill,
    /// Objects before the cursor that are not there yet.
    pub missing: usize,
    /// The part of the objects that is before the cursor, from 0 to 1.
    pub fraction: f64,
    /// Whether objects are copied.
    pub running: bool,
    /// Whether the target has no room.
    pub too_full: bool,
    /// Whether this copy has an object that cannot be read.
    pub damaged: bool,
}

impl Pg {
    /// OSDs that are being filled and get writes already.
    pub(super) fn followers(&self) -> impl Iterator<Item = PgShard> + Clone {
        let following = |t: &Target| !matches!(t.stage, Stage::Waiting | Stage::GetLog);
        self.backfill.targets.iter().filter(move |(_, t)| following(t)).map(|(o, _)| *o)
    }

    /// Whether some copy follows.
    pub(super) fn is_followed(&self) -> bool {
        self.followers().next().is_some()
    }

    /// OSDs that are being filled and said that they follow: writes are answered when they have
    /// them, so that clients cannot run away from them.
    pub(super) fn acknowledging(&self) -> impl Iterator<Item = PgShard> {
        self.followers().filter(|o| self.stage(*o) != Some(Stage::Starting))
    }

    /// OSDs that are being filled and have their reservation.
    pub(super) fn filling(&self) -> impl Iterator<Item = PgShard> {
        self.backfill.targets.iter().filter(|(_, t)| t.stage == Stage::Filling).map(|(o, _)| *o)
    }

    fn stage(&self, shard: PgShard) -> Option<Stage> {
        self.backfill.targets.get(&shard).map(|t| t.stage)
    }

    fn set_stage(&mut self, shard: PgShard, stage: Stage) {
        if let Some(target) = self.backfill.targets.get_mut(&shard) {
            target.stage = stage;
        }
    }

    /// Targets that are at one of some stages.
    fn targets_at(&self, stages: impl Fn(Stage) -> bool) -> Vec<PgShard> {
        self.backfill.targets.iter().filter(|(_, t)| stages(t.stage)).map(|(o, _)| *o).collect()
    }

    /// Whether the host must make payloads for proposals: another copy applies them.
    pub fn needs_payload(&self) -> bool {
        self.mapping.acting.len() > 1 || self.is_followed()
    }

    /// Whether recovery here only moves copies: the objects have as many as they should.
    pub fn is_only_misplaced(&self) -> bool {
        let all = !self.is_primary() || self.all_recovered();
        all && self.mapping.acting.len() >= self.pool.size as usize
    }

    fn may_backfill(&self) -> bool {
        if self.all_recover_beside() {
            return self.map.recovers();
        }
        self.map.recovers()
            && self.map.backfills()
            && (self.map.rebalances() || self.mapping.acting.len() < self.pool.size as usize)
    }

    /// Whether the copy's log can be brought up to date, so that its cursor still means something.
    pub(super) fn can_resume(&self, info: &PgInfo) -> bool {
        !info.removing
            && !info.is_empty()
            && info.last_backfill != Backfill::Nothing
            && info.last_update >= self.log.tail()
    }

    /// Whether some OSD should have the PG and does not act, because it must be filled.
    pub(super) fn needs_backfill(&self) -> bool {
        self.mapping.up.iter().any(|o| !self.mapping.acting.contains(o))
    }

    /// Begins or goes on. Only while no acting copy lacks anything: that comes first.
    pub(super) fn check_backfill(&mut self) {
        if self.phase != Phase::Active || !self.needs_backfill() || !self.may_backfill() {
            return;
        }
        let new: Vec<PgShard> = self
            .mapping
            .up
            .iter()
            .copied()
            .filter(|o| {
                !self.mapping.acting.contains(o)
                    && self.peers.contains_key(o)
                    && !self.backfill.targets.contains_key(o)
            })
            .collect();
        for shard in new {
            self.add_target(shard);
            if self.backfill.turn == OwnTurn::Held {
                self.begin(shard);
            }
        }
        if self.backfill.turn == OwnTurn::None && self.wants_turn() {
            self.backfill.turn = OwnTurn::Asked;
            let backfill = !self.all_recover_beside();
            self.actions.push_back(Action::Reserve {
                side: Side::Lead,
                backfill,
                priority: self.backfill_priority(),
            });
        }
        self.fill();
    }

    fn add_target(&mut self, shard: PgShard) {
        self.backfill.targets.insert(
            shard,
            Target {
                stage: Stage::Waiting,
                listing: None,
                asked: false,
                advancing: false,
                beside: false,
            },
        );
    }

    /// This copy follows from now on, whenever its reservation comes. False if it does already.
    pub(super) fn add_follower(&mut self, shard: PgShard) -> bool {
        if !self.backfill.targets.contains_key(&shard) {
            self.add_target(shard);
        }
        let waits = self.stage(shard) == Some(Stage::Waiting);
        if waits {
            self.begin(shard);
        }
        waits
    }

    /// The next range, or the end, for targets with their reservation.
    fn fill(&mut self) {
        let runners = self.runners();
        let lacking =
            |shard| self.peers.get(shard).and_then(|p| p.missing.as_ref()).map_or(0, |m| m.len());
        let advancing = |shard| self.backfill.targets.get(shard).is_none_or(|t| t.advancing);
        let done = runners
            .iter()
            .filter(|(o, c)| **c == Backfill::Complete && lacking(o) == 0 && !advancing(o))
            .count();
        if done > 0 && (done == runners.len() || (!self.enough() && done >= self.short())) {
            self.finish_backfill();
            return;
        }
        let Some(front) =
            runners.iter().map(|(_, c)| *c).min().filter(|c| **c != Backfill::Complete).cloned()
        else {
            return;
        };
        let members: Vec<PgShard> =
            runners.iter().filter(|(_, c)| **c == front).map(|(o, _)| *o).collect();
        let most = self.conf.recovery_max_active.max(1);
        if members.iter().all(|o| !advancing(o) && lacking(o) < most) {
            self.next_range(&front, &members);
        }
    }

    /// How many OSDs are missing before clients are served.
    fn short(&self) -> usize {
        (self.pool.min_size as usize).saturating_sub(self.mapping.acting.len())
    }

    /// Targets that are filled now, with their cursors. All with their reservation; but as long as
    /// clients wait for copies, no more than they wait for, if others are further behind.
    fn runners(&self) -> Vec<(PgShard, &Backfill)> {
        let mut all: Vec<_> = self
            .filling()
            .filter_map(|o| Some((o, &self.peers.get(&o)?.info.last_backfill)))
            .collect();
        let short = self.short();
        if short > 0 && all.len() > short {
            let mut cursors: Vec<_> = all.iter().map(|(_, c)| *c).collect();
            cursors.sort();
            let least = cursors[cursors.len() - short];
            all.retain(|(_, c)| *c >= least);
        }
        all
    }

    // --- beginning ---

    /// Whether a reservation on this OSD would be of use.
    fn wants_turn(&self) -> bool {
        !self.backfill.damaged
            && self
                .backfill
                .targets
                .values()
                .any(|t| !matches!(t.stage, Stage::TooFull | Stage::Done))
    }

    /// Whether a backfill has a reservation on this OSD.
    pub(super) fn backfill_has_turn(&self) -> bool {
        self.backfill.turn == OwnTurn::Held
    }

    /// Whether a backfill has or waits for a reservation on this OSD.
    pub(super) fn backfill_wants_turn(&self) -> bool {
        self.backfill.turn != OwnTurn::None
    }

    /// Whether the reservation of a backfill can be waited for, instead of one of recovery's own: a
    /// copy follows, or may yet. If none has begun to follow, none is begun now.
    pub(super) fn follows_or_gives_up_turn(&mut self) -> bool {
        if self.backfill.turn == OwnTurn::None {
            return false;
        }
        if self.is_followed() {
            return true;
        }
        self.backfill.targets.clear();
        self.release_turn();
        false
    }

    fn release_turn(&mut self) {
        self.backfill.turn = OwnTurn::None;
        self.release_sources();
        self.actions.push_back(Action::Release);
    }

    /// The reservation here was taken back: all are given back, and asked for once more.
    pub(super) fn defer_backfill(&mut self) {
        if self.backfill.turn == OwnTurn::None {
            return;
        }
        self.release_backfill();
        self.check_recovery();
    }

    /// Gives all reservations back. A target without room keeps its request.
    pub(super) fn release_backfill(&mut self) {
        if self.backfill.turn == OwnTurn::None {
            return;
        }
        for shard in self.targets_at(|s| s == Stage::GetLog) {
            self.set_stage(shard, Stage::Waiting);
        }
        self.release_targets();
        self.release_turn();
    }

    /// Gives the reservations on targets back.
    fn release_targets(&mut self) {
        for shard in self.targets_at(|s| matches!(s, Stage::TargetTurn | Stage::Filling)) {
            self.set_stage(shard, Stage::Following);
            self.send(shard, PeerMsg::Release);
        }
    }

    /// The reservation on a target was taken back. If it was the only one, the own reservation is
    /// given to others.
    pub(super) fn target_revoked(&mut self, from: PgShard) {
        if self.stage(from) != Some(Stage::Filling) {
            return;
        }
        if self.filling().any(|o| o != from) {
            self.ask_target_turn(from);
        } else {
            self.defer_backfill();
        }
    }

    pub(super) fn handle_own_turn(&mut self) {
        if self.backfill.turn != OwnTurn::Asked {
            return;
        }
        self.backfill.turn = OwnTurn::Sources;
        self.ask_sources();
    }

    /// The OSDs that are read have given their reservations.
    pub(super) fn backfill_sources_reserved(&mut self) {
        if self.backfill.turn != OwnTurn::Sources {
            return;
        }
        self.backfill.turn = OwnTurn::Held;
        for shard in self.targets_at(|s| s == Stage::Waiting) {
            self.begin(shard);
        }
        for shard in self.targets_at(|s| s == Stage::Following) {
            self.ask_target_turn(shard);
        }
    }

    /// Makes a target follow.
    fn begin(&mut self, shard: PgShard) {
        let Some(peer) = self.peers.get_mut(&shard) else { return };
        // What it told of its missing objects may be older than the last writes.
        peer.missing = None;
        peer.asked_full = false;
        peer.useless = false;
        let info = peer.info.clone();
        if !self.can_resume(&info) {
            self.start_over(shard);
        } else if info.last_update == info.last_complete && self.log.has_point(info.last_update) {
            let mut missing = MissingSet::default();
            let common = info.last_update;
            self.with_terms(shard, &BTreeSet::new(), |terms| {
                let learn = self.log.after(common).entries;
                merge::merge(&mut missing, &info.last_backfill, common, &[], &learn, terms);
            });
            if let Some(peer) = self.peers.get_mut(&shard) {
                peer.common = common;
                peer.missing = Some(missing);
            }
            self.resume(shard);
        } else {
            self.set_stage(shard, Stage::GetLog);
            let since = Eversion { epoch: info.last_epoch_started, version: 0 };
            self.send(
                shard,
                PeerMsg::Query { query: Query::Log(since), history: self.info.history },
            );
        }
    }

    /// The target told its log and what it lacks (`known`), or cannot.
    pub(super) fn follower_known(&mut self, from: PgShard, known: bool) {
        if self.stage(from) != Some(Stage::GetLog) {
            return;
        }
        let usable = self.peers.get(&from).is_some_and(|p| self.can_resume(&p.info));
        if known && usable {
            self.resume(from);
        } else if !usable {
            self.start_over(from);
        }
    }

    /// The target keeps its cursor; the log brings it up to date.
    fn resume(&mut self, shard: PgShard) {
        self.set_stage(shard, Stage::Starting);
        if let Some(peer) = self.peers.get_mut(&shard) {
            peer.acked = self.info.last_update;
            if let Some(target) = self.backfill.targets.get_mut(&shard) {
                target.beside = peer.info.last_backfill == Backfill::Complete;
            }
        }
        self.send_activate(shard);
    }

    /// The target begins with nothing but our log.
    fn start_over(&mut self, shard: PgShard) {
        self.set_stage(shard, Stage::Starting);
        let Some(peer) = self.peers.get_mut(&shard) else { return };
        peer.info.last_backfill = Backfill::Nothing;
        peer.missing = Some(MissingSet::default());
        peer.acked = self.info.last_update;
        (peer.sent, peer.owed) = (Some(self.info.last_update), StatSum::default());
        let log = LogSegment { tail: self.log.tail(), entries: self.log.iter().cloned().collect() };
        let dups = self.log.dups().cloned().collect();
        let msg =
            PeerMsg::StartBackfill { info: self.info.clone(), log, dups, past: self.past.clone() };
        self.send(shard, msg);
    }

    /// The target has no copy yet, and could not make one from a message of an older epoch.
    pub(super) fn follower_asks_again(&mut self, from: PgShard, info: &PgInfo) {
        if self.stage(from) == Some(Stage::Starting) && info.is_empty() {
            self.start_over(from);
        }
    }

    pub(super) fn follower_activated(&mut self, from: PgShard) {
        if self.stage(from) == Some(Stage::Starting) {
            self.set_stage(from, Stage::Following);
            if self.backfill_has_turn() {
                self.ask_target_turn(from);
            }
        }
    }

    fn ask_target_turn(&mut self, shard: PgShard) {
        self.set_stage(shard, Stage::TargetTurn);
        self.send_target_turn(shard);
    }

    /// The priority of reservations that targets were asked for is another one.
    pub(super) fn ask_target_turns_again(&mut self) {
        for shard in self.targets_at(|s| matches!(s, Stage::TargetTurn | Stage::Filling)) {
            self.send_target_turn(shard);
        }
    }

    fn send_target_turn(&mut self, shard: PgShard) {
        let (backfill, priority) = (!self.recovers_beside(shard), self.backfill_priority());
        self.send(shard, PeerMsg::Reserve { backfill, priority });
    }

    pub(super) fn handle_target_reserved(&mut self, from: PgShard) {
        match self.stage(from) {
            Some(Stage::TargetTurn | Stage::TooFull) if self.backfill_has_turn() => {
                self.set_stage(from, Stage::Filling)
            }
            // There is room again. A reservation there is only waited for with one here, so there
            // is no circle.
            Some(Stage::TooFull) => {
                self.set_stage(from, Stage::Following);
                self.send(from, PeerMsg::Release);
            }
            _ => return,
        }
        self.check_recovery();
    }

    /// A target has no room. If no other is filled, other PGs may have the reservation here
    /// meanwhile.
    pub(super) fn handle_target_too_full(&mut self, from: PgShard) {
        if !matches!(self.stage(from), Some(Stage::TargetTurn | Stage::Filling)) {
            return;
        }
        self.set_stage(from, Stage::TooFull);
        if !self.wants_turn() && self.backfill_wants_turn() {
            self.release_turn();
        }
        self.check_recovery();
    }

    /// An object of this copy cannot be read, and so no copy can be filled.
    pub(super) fn backfill_damaged(&mut self) {
        self.backfill.damaged = true;
        self.backfill.scan = Scan::default();
        self.release_targets();
        if self.backfill_wants_turn() {
            self.release_turn();
        }
    }

    // --- writes meanwhile ---

    /// Sends a write to the targets. Returns objects that must be copied (again) because of it.
    pub(super) fn send_to_followers(&mut self, op: &RepOp) -> Vec<ObjectId> {
        let mut repeat = Vec::new();
        if self.backfill.targets.is_empty() {
            return repeat;
        }
        let followers: Vec<PgShard> = self.followers().collect();
        for shard in followers {
            let Some(peer) = self.peers.get_mut(&shard) else { continue };
            let Some(missing) = &mut peer.missing else { continue };
            let filled = &peer.info.last_backfill;
            let has = |e: &LoggedRef| {
                let head = e.entry.oid.head();
                filled.covers(&head) && !missing.contains_name(&head)
            };
            let mut msg = op.clone();
            if !op.entries.iter().all(has) {
                msg.payload = Payload::default();
                msg.log_only = true;
                let mut learned = merge::Outcome::default();
                for e in &op.entries {
                    merge::learn(missing, filled, &e.entry, &mut learned, merge::WHOLE);
                }
                repeat.extend(
                    learned.touched.into_iter().filter(|o| !repeat.contains(o)).collect::<Vec<_>>(),
                );
            }
            self.send(shard, PeerMsg::RepOp(Box::new(msg)));
        }
        repeat
    }

    // --- the end ---

    fn finish_backfill(&mut self) {
        let done = |o: &PgShard| {
            let advancing = self.backfill.targets.get(o).is_none_or(|t| t.advancing);
            let peer = self.peers.get(o);
            !advancing
                && peer.is_some_and(|p| {
                    p.info.last_backfill == Backfill::Complete
                        && p.missing.as_ref().is_some_and(|m| m.is_empty())
                })
        };
        for shard in self.filling().filter(done).collect::<Vec<_>>() {
            self.set_stage(shard, Stage::Done);
            self.send(shard, PeerMsg::Release);
        }
        if !self.wants_turn() && self.backfill_wants_turn() {
            self.release_turn();
        }
        self.want_followers();
    }

    /// Asks for an acting set with those that are filled.
    fn want_followers(&mut self) {
        let done = self.targets_at(|s| s == Stage::Done);
        if done.is_empty() {
            return;
        }
        let acting = &self.mapping.acting;
        let want = self.wanted_acting(|o| done.contains(o) || acting.contains(o), self.me);
        let temp = if want == self.mapping.up { Vec::new() } else { want.slots() };
        self.actions.push_back(Action::WantPgTemp(temp));
    }

    /// A map came without the acting set that was asked for.
    pub(super) fn want_followers_again(&mut self) {
        self.want_followers();
    }

    // --- for people ---

    /// What goes on, by target.
    pub fn backfills(&self) -> impl Iterator<Item = BackfillStatus> {
        self.backfill.targets.iter().filter_map(|(shard, target)| {
            let peer = self.peers.get(shard)?;
            // Before it follows, it says what it had in an earlier life.
            let follows = !matches!(target.stage, Stage::Waiting | Stage::GetLog);
            let cursor = if follows { peer.info.last_backfill.clone() } else { Backfill::Nothing };
            Some(BackfillStatus {
                target: *shard,
                fraction: self.fraction(&cursor),
                last_backfill: cursor,
                missing: peer.missing.as_ref().map_or(0, |m| m.len()),
                running: matches!(target.stage, Stage::Filling | Stage::Done),
                too_full: target.stage == Stage::TooFull,
                damaged: self.backfill.damaged,
            })
        })
    }

    /// The part of the objects that is before a cursor.
    pub(super) fn fraction(&self, cursor: &Backfill) -> f64 {
        match cursor {
            Backfill::Nothing => 0.0,
            Backfill::Complete => 1.0,
            Backfill::UpTo(oid) => {
                let pgid = self.info.pgid;
                let first = u64::from(pgid.first_object().bitwise_hash());
                let end = pgid.end_object(self.pool.pg_num);
                let end = if end.is_max() {
                    1 << 32
                } else {
                    u64::from(end.bitwise_hash()).max(first + 1)
                };
                (u64::from(oid.bitwise_hash()).saturating_sub(first) as f64 / (end - first) as f64)
                    .clamp(0.0, 1.0)
            }
        }
    }

    /// Copies that targets have already: each target's, the furthest first.
    pub(super) fn filled_copies(&self) -> Vec<u64> {
        let objects = self.info.stats.num_objects.max(0) as u64;
        let has = |b: BackfillStatus| {
            ((objects as f64 * b.fraction) as u64).saturating_sub(b.missing as u64).min(objects)
        };
        let mut filled: Vec<u64> = self.backfills().map(has).collect();
        filled.sort_unstable_by(|a, b| b.cmp(a));
        filled
    }

    /// What must be true of a backfill.
    pub(super) fn check_backfill_invariants(&self) -> Result<(), String> {
        let pgid = self.info.pgid;
        if self.missing.len() <= 256
            && let Some((oid, _)) =
                self.missing.iter().find(|(o, _)| !self.info.last_backfill.covers(o))
        {
            return Err(format!("{pgid}: {oid:?} is missing behind the cursor"));
        }
        for (shard, target) in &self.backfill.targets {
            let Some(peer) = self.peers.get(shard) else {
                return Err(format!("{pgid}: target osd.{shard} is unknown"));
            };
            if self.mapping.acting.contains(shard) || !self.mapping.up.contains(shard) {
                return Err(format!("{pgid}: target osd.{shard} must be up and not act"));
            }
            if matches!(target.stage, Stage::TargetTurn | Stage::Filling)
                && !self.backfill_has_turn()
            {
                return Err(format!(
                    "{pgid}: osd.{shard} is filled, or waits for that, without a turn here"
                ));
            }
            if matches!(target.stage, Stage::Waiting | Stage::GetLog) {
                continue;
            }
            let Some(missing) = &peer.missing else {
                return Err(format!("{pgid}: what osd.{shard} lacks, which follows, is unknown"));
            };
            if let Some((oid, _)) = missing.iter().find(|(o, _)| !peer.info.last_backfill.covers(o))
            {
                return Err(format!("{pgid}: {oid:?} is missing behind the cursor of osd.{shard}"));
            }
        }
        self.check_scan_invariants()
    }
}
