//! Filling copies that the log cannot fill.
//!
//! The OSDs of `up` that do not act are filled one after the other. The one whose turn it is *follows*: it
//! takes over the log and gets every write from then on. Up to its cursor (`last_backfill`) it has every object,
//! or has it in its missing set; behind the cursor it has whatever it has.
//!
//! ```text
//!   Reserve (own turn) ─► Query Log? ─► Activate or StartBackfill ─► Activated
//!        ─► Reserve (the target's turn) ─► filling ─► WantPgTemp with the target
//!
//!   filling:   list own objects behind the cursor, ListObjects ─► Objects
//!              compare versions, AdvanceBackfill{cursor, missing, remove} ─► BackfillAdvanced
//!              recovery pushes what is missing; when little is left, the next range
//! ```
//!
//! Moving the cursor makes objects that nobody had compared *missing*, in the transaction that moves it. So
//! there is nothing between "unknown" and "known", whatever crashes, and the rest is recovery: it copies, holds
//! writers, and continues after a restart.
//!
//! A write to what the target has is applied there. Of one to an object behind the cursor it gets the log
//! entries alone. Of one to an object that it lacks too, and learns from them that it lacks the new version.

use std::collections::{BTreeMap, BTreeSet};

use types::{Epoch, Eversion, ObjectId, OsdId};

use crate::action::{Action, Persist};
use crate::info::{Backfill, PgInfo};
use crate::log::{DupEntry, PgLog};
use crate::log_entry::{LogEntry, LoggedRef};
use crate::merge;
use crate::missing::{MissingItem, MissingSet};
use crate::msg::{Listing, LogSegment, Payload, PeerHeader, PeerMsg, Query, RepOp};
use crate::past_intervals::PastIntervals;
use crate::proposal::ReadToken;
use crate::rows;

use super::{Deferred, Pg, Phase};

/// Objects that one step makes missing. Writers of missing objects wait, and they take memory on both sides; but
/// each step is a transaction of the target.
const STEP: usize = 16;

/// What is being filled, and what was asked of the host.
#[derive(Debug, Default)]
pub(super) struct Backfilling {
    job: Option<Job>,
    listings: BTreeMap<u64, Lister>,
    next_listing: u64,
}

/// For whom the host lists objects.
#[derive(Debug)]
enum Lister {
    /// For the comparison.
    Own,
    /// For the primary.
    Primary { to: OsdId, asked: Epoch, after: Backfill },
    /// For the next range of a scrub.
    Scrub(u64),
}

#[derive(Debug)]
struct Job {
    osd: OsdId,
    stage: Stage,
    own: Side,
    theirs: Side,
    /// Objects written since the own listing was asked for: it may be from before or after.
    changes: BTreeMap<ObjectId, Option<Eversion>>,
    /// A move of the cursor is on its way.
    advancing: bool,
    /// It has a turn on this OSD.
    held: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Waits for a turn on this OSD.
    OwnTurn,
    /// Asked the target for its log.
    GetLog,
    /// The target follows from here on; it has not said so yet.
    Starting,
    /// Follows, and waits for a turn on this OSD once more: it was taken back.
    Deferred,
    /// Waits for a turn on the target.
    TargetTurn,
    /// The target has no room.
    TooFull,
    /// At work.
    Filling,
    /// An object of this copy cannot be read.
    Damaged,
    /// Waits for the map in which the target acts.
    Done,
}

/// What is known of one copy's objects behind the cursor.
#[derive(Debug, Default)]
struct Side {
    listing: Option<Listing>,
    asked: bool,
}

/// What goes on, for people.
#[derive(Clone, PartialEq, Debug)]
pub struct BackfillStatus {
    /// The OSD whose copy is filled.
    pub target: OsdId,
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
    /// The OSD that is being filled, if it gets writes already.
    pub(super) fn follower(&self) -> Option<OsdId> {
        let job = self.backfill.job.as_ref()?;
        (!matches!(job.stage, Stage::OwnTurn | Stage::GetLog)).then_some(job.osd)
    }

    /// The OSD that is being filled, if it said that it follows: then writes are answered when it has them, so that
    /// clients cannot run away from it.
    pub(super) fn acknowledging(&self) -> Option<OsdId> {
        let starting = self.backfill.job.as_ref().is_some_and(|j| j.stage == Stage::Starting);
        self.follower().filter(|_| !starting)
    }

    /// The OSD that is being filled, if it is its turn.
    pub(super) fn filling(&self) -> Option<OsdId> {
        self.backfill.job.as_ref().filter(|j| j.stage == Stage::Filling).map(|j| j.osd)
    }

    /// Whether the host must make payloads for proposals: somebody else applies them.
    pub fn needs_payload(&self) -> bool {
        self.mapping.acting.len() > 1 || self.follower().is_some()
    }

    /// Whether recovery here only moves copies: the objects have as many as they should.
    pub fn is_only_misplaced(&self) -> bool {
        let all = !self.is_primary() || self.all_recovered();
        all && self.mapping.acting.len() >= self.pool.size as usize
    }

    fn may_backfill(&self) -> bool {
        self.map.recovers() && self.map.backfills() && (self.map.rebalances() || self.mapping.acting.len() < self.pool.size as usize)
    }

    /// Whether the copy's log can be brought up to date, so that its cursor still means something.
    fn can_resume(&self, info: &PgInfo) -> bool {
        !info.removing && !info.is_empty() && info.last_backfill != Backfill::Nothing && info.last_update >= self.log.tail()
    }

    /// Whose copy should be filled next: one that was begun before all others.
    fn next_target(&self) -> Option<OsdId> {
        let mut targets = self.mapping.up.iter().copied().filter(|o| !self.mapping.acting.contains(o) && self.peers.contains_key(o));
        let first = targets.clone().next();
        targets.find(|o| self.peers.get(o).is_some_and(|p| self.can_resume(&p.info))).or(first)
    }

    /// Whether some OSD should have the PG and does not act, because it must be filled.
    pub(super) fn needs_backfill(&self) -> bool {
        self.mapping.up.iter().any(|o| !self.mapping.acting.contains(o))
    }

    /// Begins or goes on. Only while nobody who acts lacks anything: that comes first.
    pub(super) fn check_backfill(&mut self) {
        if self.phase != Phase::Active || !self.needs_backfill() || !self.may_backfill() {
            return;
        }
        let Some(job) = &self.backfill.job else {
            if let Some(osd) = self.next_target() {
                self.backfill.job = Some(Job {
                    osd,
                    stage: Stage::OwnTurn,
                    own: Side::default(),
                    theirs: Side::default(),
                    changes: BTreeMap::new(),
                    advancing: false,
                    held: false,
                });
                self.ask_own_turn();
            }
            return;
        };
        if job.stage != Stage::Filling || job.advancing {
            return;
        }
        let Some(peer) = self.peers.get(&job.osd) else { return };
        let lacking = peer.missing.as_ref().map_or(0, |m| m.len());
        if peer.info.last_backfill == Backfill::Complete {
            if lacking == 0 {
                self.finish_backfill();
            }
        } else if lacking < self.conf.recovery_max_active.max(1) {
            self.next_range();
        }
    }

    // --- beginning ---

    fn ask_own_turn(&mut self) {
        self.actions.push_back(Action::Reserve { target: false, backfill: true, priority: self.backfill_priority() });
    }

    /// Whether a backfill has a turn on this OSD.
    pub(super) fn backfill_has_turn(&self) -> bool {
        self.backfill.job.as_ref().is_some_and(|j| j.held)
    }

    /// Whether a copy follows, or may yet. One that has not begun to follow is not begun now.
    pub(super) fn follows_or_gives_up_turn(&mut self) -> bool {
        if self.follower().is_some() {
            return true;
        }
        if self.backfill.job.take().is_some() {
            self.actions.push_back(Action::Release);
        }
        false
    }

    /// The turn here or on the target was taken back: both are asked for once more.
    pub(super) fn defer_backfill(&mut self) {
        let Some(job) = &mut self.backfill.job else { return };
        let osd = job.osd;
        match job.stage {
            // It was given back, or is not needed.
            Stage::Done | Stage::Damaged => return,
            Stage::OwnTurn | Stage::GetLog => job.stage = Stage::OwnTurn,
            Stage::Starting | Stage::Deferred => {}
            Stage::TargetTurn | Stage::TooFull | Stage::Filling => {
                job.stage = Stage::Deferred;
                self.send(osd, PeerMsg::Release);
            }
        }
        if let Some(job) = &mut self.backfill.job {
            job.held = false;
        }
        self.actions.push_back(Action::Release);
        self.ask_own_turn();
    }

    pub(super) fn handle_own_turn(&mut self) {
        let Some(job) = &mut self.backfill.job else { return };
        let osd = job.osd;
        match job.stage {
            Stage::OwnTurn => job.held = true,
            Stage::Starting => {
                job.held = true;
                return;
            }
            Stage::Deferred => {
                job.held = true;
                self.ask_target_turn(osd);
                return;
            }
            _ => return,
        }
        let Some(peer) = self.peers.get_mut(&osd) else { return };
        // What it told of its missing objects may be older than the last writes.
        peer.missing = None;
        peer.asked_full = false;
        peer.useless = false;
        let info = peer.info.clone();
        if !self.can_resume(&info) {
            self.start_over();
        } else if info.last_update == info.last_complete && self.log.has_point(info.last_update) {
            let mut missing = MissingSet::default();
            let common = info.last_update;
            merge::merge(&mut missing, &info.last_backfill, common, &[], &self.log.after(common).entries);
            if let Some(peer) = self.peers.get_mut(&osd) {
                peer.common = common;
                peer.missing = Some(missing);
            }
            self.resume();
        } else {
            job_stage(&mut self.backfill, Stage::GetLog);
            let since = Eversion { epoch: info.last_epoch_started, version: 0 };
            self.send(osd, PeerMsg::Query { query: Query::Log(since), history: self.info.history });
        }
    }

    /// The target told its log and what it lacks (`known`), or cannot.
    pub(super) fn follower_known(&mut self, from: OsdId, known: bool) {
        if !self.backfill.job.as_ref().is_some_and(|j| j.osd == from && j.stage == Stage::GetLog) {
            return;
        }
        let usable = self.peers.get(&from).is_some_and(|p| self.can_resume(&p.info));
        if known && usable {
            self.resume();
        } else if !usable {
            self.start_over();
        }
    }

    /// The target keeps its cursor; the log brings it up to date.
    fn resume(&mut self) {
        let Some(job) = &mut self.backfill.job else { return };
        job.stage = Stage::Starting;
        let osd = job.osd;
        if let Some(peer) = self.peers.get_mut(&osd) {
            peer.acked = self.info.last_update;
        }
        self.send_activate(osd);
    }

    /// The target begins with nothing but our log.
    fn start_over(&mut self) {
        let Some(job) = &mut self.backfill.job else { return };
        job.stage = Stage::Starting;
        let osd = job.osd;
        let Some(peer) = self.peers.get_mut(&osd) else { return };
        peer.info.last_backfill = Backfill::Nothing;
        peer.missing = Some(MissingSet::default());
        peer.acked = self.info.last_update;
        let log = LogSegment { tail: self.log.tail(), entries: self.log.iter().cloned().collect() };
        let dups = self.log.dups().cloned().collect();
        let msg = PeerMsg::StartBackfill { info: self.info.clone(), log, dups, past: self.past.clone() };
        self.send(osd, msg);
    }

    /// The target has no copy yet, and could not make one from a message of an older epoch.
    pub(super) fn follower_asks_again(&mut self, from: OsdId, info: &PgInfo) {
        let starting = self.backfill.job.as_ref().is_some_and(|j| j.osd == from && j.stage == Stage::Starting);
        if starting && info.is_empty() {
            self.start_over();
        }
    }

    pub(super) fn follower_activated(&mut self, from: OsdId) {
        if self.backfill.job.as_ref().is_some_and(|j| j.osd == from && j.stage == Stage::Starting) {
            match self.backfill_has_turn() {
                true => self.ask_target_turn(from),
                false => job_stage(&mut self.backfill, Stage::Deferred),
            }
        }
    }

    fn ask_target_turn(&mut self, osd: OsdId) {
        job_stage(&mut self.backfill, Stage::TargetTurn);
        let priority = self.backfill_priority();
        self.send(osd, PeerMsg::Reserve { backfill: true, priority });
    }

    pub(super) fn handle_target_reserved(&mut self, from: OsdId) {
        if self.backfill.job.as_ref().is_some_and(|j| j.osd == from && matches!(j.stage, Stage::TargetTurn | Stage::TooFull)) {
            job_stage(&mut self.backfill, Stage::Filling);
            self.check_recovery();
        }
    }

    pub(super) fn handle_target_too_full(&mut self, from: OsdId) {
        if self.backfill.job.as_ref().is_some_and(|j| j.osd == from && matches!(j.stage, Stage::TargetTurn | Stage::Filling)) {
            job_stage(&mut self.backfill, Stage::TooFull);
        }
    }

    // --- comparing ---

    fn next_range(&mut self) {
        let Some(job) = &mut self.backfill.job else { return };
        let Some(peer) = self.peers.get(&job.osd) else { return };
        let after = peer.info.last_backfill.clone();
        let max = self.conf.backfill_scan.max(1);
        let (ask_own, ask_theirs) = (job.own.listing.is_none() && !job.own.asked, job.theirs.listing.is_none() && !job.theirs.asked);
        job.own.asked |= ask_own;
        job.theirs.asked |= ask_theirs;
        let osd = job.osd;
        if ask_theirs {
            self.send(osd, PeerMsg::ListObjects { after: after.clone(), max: u32::try_from(max).unwrap_or(u32::MAX) });
        }
        if ask_own {
            self.list(Lister::Own, after, max);
        }
        self.advance();
    }

    fn list(&mut self, lister: Lister, after: Backfill, max: usize) {
        let n = self.backfill.next_listing;
        self.backfill.next_listing += 1;
        // As tokens of reads: those of an earlier interval are not taken for these.
        let token = u64::from(self.info.history.same_interval_since.0) << 32 | n;
        self.backfill.listings.insert(token, lister);
        self.actions.push_back(Action::ListObjects { token: ReadToken(token), after, max });
    }

    pub(super) fn list_for_scrub(&mut self, id: u64, after: Backfill, max: usize) {
        self.list(Lister::Scrub(id), after, max);
    }

    pub(super) fn list_for(&mut self, to: OsdId, asked: Epoch, after: Backfill, max: u32) {
        if self.phase == Phase::ReplicaActive && after == self.info.last_backfill {
            self.list(Lister::Primary { to, asked, after: after.clone() }, after, max as usize);
        }
    }

    pub(super) fn handle_listed(&mut self, token: ReadToken, mut listing: Listing) {
        match self.backfill.listings.remove(&token.0) {
            None => {}
            Some(Lister::Scrub(id)) => self.scrub_listed(id, listing.upto),
            Some(Lister::Primary { to, asked, after }) => self.answer(to, asked, PeerMsg::Objects { after, listing }),
            Some(Lister::Own) => {
                let Some(job) = &mut self.backfill.job else { return };
                job.own.asked = false;
                let upto = listing.upto.clone();
                // What this copy lacks is not what it should be.
                listing.objects.extend(self.missing.iter().filter(|(o, _)| upto.covers(o)).map(|(o, i)| (o.clone(), i.need)));
                for (oid, version) in std::mem::take(&mut job.changes) {
                    if upto.covers(&oid) {
                        change(&mut listing, oid, version);
                    }
                }
                if let Some(peer) = self.peers.get(&job.osd) {
                    let cursor = &peer.info.last_backfill;
                    listing.objects.retain(|o, _| !cursor.covers(o));
                }
                job.own.listing = Some(listing);
                self.check_recovery();
            }
        }
    }

    pub(super) fn handle_objects(&mut self, from: OsdId, after: &Backfill, listing: Listing) {
        let Some(job) = self.backfill.job.as_mut().filter(|j| j.osd == from && j.theirs.asked) else { return };
        if self.peers.get(&from).is_none_or(|p| p.info.last_backfill != *after) {
            return;
        }
        job.theirs.asked = false;
        job.theirs.listing = Some(listing);
        self.check_recovery();
    }

    /// Keeps the own listing true.
    pub(super) fn note_change(&mut self, entry: &LogEntry) {
        let Some(job) = &mut self.backfill.job else { return };
        let version = match entry.op {
            op if op.is_update() => Some(entry.version),
            op if op.is_delete() => None,
            _ => return,
        };
        if self.peers.get(&job.osd).is_none_or(|p| p.info.last_backfill.covers(&entry.oid)) {
            return;
        }
        if job.own.asked {
            job.changes.insert(entry.oid.clone(), version);
        } else if let Some(listing) = &mut job.own.listing
            && listing.upto.covers(&entry.oid)
        {
            change(listing, entry.oid.clone(), version);
        }
    }

    /// Compares what both listings reach, and moves the cursor over it, or over as much as one step may.
    fn advance(&mut self) {
        let Some(job) = &mut self.backfill.job else { return };
        let Some(peer) = self.peers.get_mut(&job.osd) else { return };
        let (Some(own), Some(theirs)) = (&mut job.own.listing, &mut job.theirs.listing) else { return };
        let limit = own.upto.clone().min(theirs.upto.clone());
        let (mut missing, mut remove) = (Vec::new(), Vec::new());
        let mut upto = limit.clone();
        loop {
            let first = own.objects.keys().next().into_iter().chain(theirs.objects.keys().next()).min();
            let Some(name) = first.map(Backfill::after).filter(|name| *name <= limit) else { break };
            if missing.len() >= STEP {
                break;
            }
            // All objects of this name: a cursor never stands between them.
            while let Some(e) = own.objects.first_entry().filter(|e| name.covers(e.key())) {
                let (oid, version) = e.remove_entry();
                if version == Eversion::default() {
                    job.stage = Stage::Damaged;
                    return;
                }
                if theirs.objects.remove(&oid) != Some(version) {
                    missing.push((oid, version));
                }
            }
            while let Some(e) = theirs.objects.first_entry().filter(|e| name.covers(e.key())) {
                remove.push(e.remove_entry().0);
            }
            upto = name;
        }
        if missing.len() < STEP {
            upto = limit;
        }
        for side in [&mut job.own, &mut job.theirs] {
            side.listing.take_if(|l| l.upto == upto && upto != Backfill::Complete);
        }
        job.advancing = true;
        peer.info.last_backfill = upto.clone();
        if let Some(set) = &mut peer.missing {
            for (oid, need) in &missing {
                set.set(oid.clone(), MissingItem { need: *need, have: Eversion::default() });
            }
        }
        let osd = job.osd;
        self.send(osd, PeerMsg::AdvanceBackfill { upto, missing, remove });
    }

    pub(super) fn handle_backfill_advanced(&mut self, from: OsdId, upto: &Backfill) {
        let Some(job) = self.backfill.job.as_mut().filter(|j| j.osd == from && j.advancing) else { return };
        if self.peers.get(&from).is_some_and(|p| p.info.last_backfill == *upto) {
            job.advancing = false;
            self.check_recovery();
        }
    }

    // --- writes meanwhile ---

    /// Sends a write to the target. Returns objects whose copies must be begun (again) because of it.
    pub(super) fn send_to_follower(&mut self, op: &RepOp) -> Vec<ObjectId> {
        let Some(osd) = self.follower() else { return Vec::new() };
        let Some(peer) = self.peers.get_mut(&osd) else { return Vec::new() };
        let Some(missing) = &mut peer.missing else { return Vec::new() };
        let filled = &peer.info.last_backfill;
        let has = |e: &LoggedRef| {
            let head = e.entry.oid.head();
            filled.covers(&head) && !missing.contains_name(&head)
        };
        let mut repeat = Vec::new();
        let mut msg = op.clone();
        if !op.entries.iter().all(has) {
            msg.payload = Payload::default();
            msg.log_only = true;
            let mut learned = merge::Outcome::default();
            for e in &op.entries {
                merge::learn(missing, filled, &e.entry, &mut learned);
            }
            repeat.extend(learned.touched);
        }
        self.send(osd, PeerMsg::RepOp(Box::new(msg)));
        repeat
    }

    // --- the end ---

    fn finish_backfill(&mut self) {
        if let Some(job) = &mut self.backfill.job {
            job.stage = Stage::Done;
            job.held = false;
            let osd = job.osd;
            self.send(osd, PeerMsg::Release);
        }
        self.actions.push_back(Action::Release);
        self.want_follower();
    }

    fn want_follower(&mut self) {
        let Some(osd) = self.follower() else { return };
        let acting = &self.mapping.acting;
        let want = self.wanted_acting(|o| *o == osd || acting.contains(o), self.me);
        let temp = if want == self.mapping.up { Vec::new() } else { want };
        self.actions.push_back(Action::WantPgTemp(temp));
    }

    /// A map came without the acting set that was asked for.
    pub(super) fn want_follower_again(&mut self) {
        if self.backfill.job.as_ref().is_some_and(|j| j.stage == Stage::Done) {
            self.want_follower();
        }
    }

    // --- the target ---

    pub(super) fn tell_primary(&mut self, msg: PeerMsg) {
        if let Some(primary) = self.mapping.primary.filter(|_| self.phase == Phase::ReplicaActive) {
            self.send(primary, msg);
        }
    }

    pub(super) fn handle_start_backfill(
        &mut self,
        from: OsdId,
        header: PeerHeader,
        info: PgInfo,
        log: LogSegment,
        dups: Vec<DupEntry>,
        past: PastIntervals,
    ) {
        if self.mapping.acting.contains(&self.me) || !self.mapping.up.contains(&self.me) {
            return;
        }
        let Some(log) = PgLog::new(log.tail, info.last_update, log.entries, dups) else { return };
        self.forget_promises();
        let mut persist = Persist::default();
        persist.rows.set.extend(log.iter().map(|e| rows::log_row(e)));
        persist.rows.set.extend(log.dups().map(rows::dup_row));
        let kept: BTreeSet<_> = persist.rows.set.iter().map(|(k, _)| k.clone()).collect();
        let old = self.log.iter().map(|e| rows::log_key(e.entry.version)).chain(self.log.dups().map(|d| rows::dup_key(d)));
        persist.rows.remove.extend(old.filter(|k| !kept.contains(k)));
        for (oid, item) in self.missing.iter() {
            persist.rows.remove.push(rows::missing_key(oid));
            // Half a copy can have the right version: without its missing item nobody would know.
            if item.have == Eversion::default() {
                persist.remove_objects.push(oid.clone());
            }
        }
        self.missing = MissingSet::default();
        self.log = log;
        let history = &mut self.info.history;
        history.merge(&info.history);
        self.past = past;
        self.past.trim(history.last_epoch_started);
        self.info = PgInfo {
            last_complete: info.last_update,
            log_tail: self.log.tail(),
            last_backfill: Backfill::Nothing,
            history: *history,
            ..info
        };
        self.info_rows(&mut persist);
        let token = self.persist(persist);
        self.defer(token, Deferred::Send(from, header.sent, PeerMsg::Activated));
        self.phase = Phase::ReplicaActive;
    }

    pub(super) fn handle_advance_backfill(
        &mut self,
        from: OsdId,
        asked: Epoch,
        upto: Backfill,
        missing: Vec<(ObjectId, Eversion)>,
        remove: Vec<ObjectId>,
    ) {
        if self.phase != Phase::ReplicaActive || self.mapping.acting.contains(&self.me) || upto < self.info.last_backfill {
            return;
        }
        let mut persist = Persist { remove_objects: remove, ..Persist::default() };
        for (oid, need) in missing {
            let item = MissingItem { need, have: Eversion::default() };
            persist.rows.set.push(rows::missing_row(&oid, &item));
            self.missing.set(oid, item);
        }
        self.info.last_backfill = upto.clone();
        self.update_last_complete();
        self.info_rows(&mut persist);
        let token = self.persist(persist);
        self.defer(token, Deferred::Send(from, asked, PeerMsg::BackfillAdvanced { upto }));
    }

    // --- for people ---

    /// What goes on.
    pub fn backfill(&self) -> Option<BackfillStatus> {
        let job = self.backfill.job.as_ref()?;
        let peer = self.peers.get(&job.osd)?;
        // Before it follows, it says what it had in an earlier life.
        let cursor = if self.follower().is_some() { peer.info.last_backfill.clone() } else { Backfill::Nothing };
        let fraction = match &cursor {
            Backfill::Nothing => 0.0,
            Backfill::Complete => 1.0,
            Backfill::UpTo(oid) => {
                let pgid = self.info.pgid;
                let first = u64::from(pgid.first_object().bitwise_hash());
                let end = pgid.end_object(self.pool.pg_num);
                let end = if end.is_max() { 1 << 32 } else { u64::from(end.bitwise_hash()).max(first + 1) };
                (u64::from(oid.bitwise_hash()).saturating_sub(first) as f64 / (end - first) as f64).clamp(0.0, 1.0)
            }
        };
        Some(BackfillStatus {
            target: job.osd,
            last_backfill: cursor,
            missing: peer.missing.as_ref().map_or(0, |m| m.len()),
            fraction,
            running: matches!(job.stage, Stage::Filling | Stage::Done),
            too_full: job.stage == Stage::TooFull,
            damaged: job.stage == Stage::Damaged,
        })
    }

    /// What must be true of a backfill.
    pub(super) fn check_backfill_invariants(&self) -> Result<(), String> {
        if self.missing.len() <= 256
            && let Some((oid, _)) = self.missing.iter().find(|(o, _)| !self.info.last_backfill.covers(o))
        {
            return Err(format!("{}: {oid:?} is missing behind the cursor", self.info.pgid));
        }
        let Some(job) = &self.backfill.job else { return Ok(()) };
        let Some(peer) = self.peers.get(&job.osd) else { return Err(format!("{}: the target is unknown", self.info.pgid)) };
        if self.mapping.acting.contains(&job.osd) || !self.mapping.up.contains(&job.osd) {
            return Err(format!("{}: the target must be up and not act", self.info.pgid));
        }
        if self.follower().is_none() {
            return Ok(());
        }
        let Some(missing) = &peer.missing else { return Err(format!("{}: what a follower lacks is unknown", self.info.pgid)) };
        if let Some((oid, _)) = missing.iter().find(|(o, _)| !peer.info.last_backfill.covers(o)) {
            return Err(format!("{}: {oid:?} is missing behind the target's cursor", self.info.pgid));
        }
        let own = job.own.listing.iter().flat_map(|l| l.objects.keys());
        if let Some(oid) = own.clone().next().filter(|o| peer.info.last_backfill.covers(o)) {
            return Err(format!("{}: {oid:?} is listed before the cursor", self.info.pgid));
        }
        Ok(())
    }
}

fn job_stage(backfill: &mut Backfilling, stage: Stage) {
    if let Some(job) = &mut backfill.job {
        job.stage = stage;
    }
}

fn change(listing: &mut Listing, oid: ObjectId, version: Option<Eversion>) {
    match version {
        Some(version) => drop(listing.objects.insert(oid, version)),
        None => drop(listing.objects.remove(&oid)),
    }
}
