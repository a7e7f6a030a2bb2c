//! Scrub: the primary compares what all acting OSDs have, a range of objects at a time.
//!
//! ```text
//!   StartScrub ─► ScrubReserve to every replica ─► ScrubReserved from all
//!      ┌─► list own objects: the next range
//!      │   Scan to every replica, and the same here ─► ScanResult from all
//!      │   nothing in the range was written meanwhile?  no: the range again, smaller
//!      └── compare; mark bad copies missing, if this is a repair
//!   finish: stamps and counts; ScrubRelease
//! ```
//!
//! **One version.** Messages of one sender keep their order, and a change is applied before later
//! messages are looked at. So every copy has what was proposed before the question for a range.
//! Whatever is proposed, or recovered, for an object of the range until the last answer has come
//! may be in some answers and not in others: then the range is scanned again. After
//! [`PgConf::scrub_max_preemptions`](crate::PgConf) such times, writes of the range wait.
//!
//! **Repair** is recovery: a bad copy goes into the missing sets of both sides (see
//! [`super::repair`]). (Ceph: `PgScrubber`, `doc/dev/osd_internals/scrub.rst`.)

use std::collections::{BTreeMap, BTreeSet};

use types::{Epoch, Eversion, LogPriority, ObjectId, PgShard};

use crate::action::Action;
use crate::backend::Compared;
use crate::info::{Backfill, PgHistory, ScrubSummary};
use crate::msg::PeerMsg;
use crate::proposal::ReadToken;
use crate::scrub::{Found, Repairable, Rules, ScrubKind, ScrubMap};
use crate::stats::StatSum;

use super::parts::scrub::{Job, Scanner, ScrubResults, Stage, Tally};
use super::{Pg, Phase};

/// Records that are kept for clients that ask. More are counted, and not shown.
const RECORDS_MAX: usize = 10_000;
/// Lines that one scrub writes to the cluster log, beside its result.
const LINES_MAX: usize = 200;

impl Pg {
    /// What the last scrub in this interval found; `None` if there was none.
    pub fn scrub_results(&self) -> Option<&ScrubResults> {
        self.scrub.results.as_ref()
    }

    /// The scrub that goes on.
    pub fn scrubbing(&self) -> Option<ScrubKind> {
        self.scrub.job.as_ref().map(|j| j.kind)
    }

    /// Whether a write of this object must wait for [`Action::ScrubRangeReady`].
    pub fn scrub_blocks(&self, oid: &ObjectId) -> bool {
        let Some(job) = &self.scrub.job else { return false };
        match &job.stage {
            Stage::Scanning { upto, .. } => {
                job.preemptions == 0 && upto.covers(oid) && !job.cursor.covers(oid)
            }
            _ => false,
        }
    }

    /// An object changes, or copies of it come and go: what scans of it say may be from before or
    /// after.
    pub(super) fn disturb_scrub(&mut self, oid: &ObjectId) {
        if let Some((disturbed, _)) = self.scrub.range_of(oid) {
            *disturbed = true;
        }
    }

    /// Counts of objects that were scrubbed already follow the writes.
    pub(super) fn scrub_follows(&mut self, oid: &ObjectId, change: &StatSum) {
        if let Some(job) = self.scrub.job.as_mut().filter(|j| j.cursor.covers(oid)) {
            job.tally.stats.add(change);
        }
    }

    // --- the primary ---

    pub(super) fn start_scrub(&mut self, kind: ScrubKind) {
        if self.phase != Phase::Active
            || !self.clean
            || self.is_followed()
            || self.scrub.job.is_some()
        {
            if self.scrub.job.is_none() {
                self.actions.push_back(Action::ScrubEnded { ran: false, again: None });
            }
            return;
        }
        let replicas: BTreeSet<PgShard> = self.replicas().into_iter().collect();
        self.scrub.job = Some(Job {
            kind,
            stage: Stage::Reserving(replicas.clone()),
            cursor: Backfill::Nothing,
            chunk: self.conf.scrub_chunk_max.max(1),
            preemptions: self.conf.scrub_max_preemptions,
            tally: Tally::default(),
        });
        if replicas.is_empty() {
            self.begin_scrub();
        } else {
            self.send_all(self.replicas(), PeerMsg::ScrubReserve);
        }
    }

    pub(super) fn handle_scrub_reserved(&mut self, from: PgShard, granted: bool) {
        let Some(Job { stage: Stage::Reserving(waiting), .. }) = &mut self.scrub.job else {
            return;
        };
        if !waiting.remove(&from) {
            return;
        }
        if !granted {
            self.stop_scrub();
        } else if waiting.is_empty() {
            self.begin_scrub();
        }
    }

    fn begin_scrub(&mut self) {
        let Some(job) = &self.scrub.job else { return };
        let text = format!("{} {} starts", self.info.pgid, job.kind.name());
        self.actions.push_back(Action::ClusterLog { prio: LogPriority::DEBUG, text });
        self.scrub.failed_repair &= job.kind.check;
        self.next_chunk();
    }

    /// Objects that the scrub under way has compared, and those that it has before it.
    pub fn scrub_progress(&self) -> Option<(u64, u64)> {
        let job = self.scrub.job.as_ref().filter(|j| !matches!(j.stage, Stage::Reserving(_)))?;
        let (all, done) =
            (self.info.stats.num_objects.max(0) as u64, job.tally.stats.num_objects.max(0) as u64);
        Some((done, all.saturating_sub(done)))
    }

    /// Gives up: a replica has no turn, or scrubs are not wanted any more.
    pub(super) fn stop_scrub(&mut self) {
        if self.scrub.job.take().is_some() {
            self.send_all(self.replicas(), PeerMsg::ScrubRelease);
            self.actions.push_back(Action::ScrubRangeReady);
            self.actions.push_back(Action::ScrubEnded { ran: false, again: None });
        }
    }

    fn scrub_id(&mut self) -> u64 {
        self.scrub.next_id += 1;
        // As tokens of reads: those of an earlier interval are not taken for these.
        u64::from(self.info.history.same_interval_since.0) << 32 | self.scrub.next_id
    }

    fn next_chunk(&mut self) {
        let id = self.scrub_id();
        let Some(job) = &mut self.scrub.job else { return };
        job.stage = Stage::Listing(id);
        let (after, max) = (job.cursor.clone(), job.chunk);
        self.list_for_scrub(id, after, max);
    }

    /// The host has listed the next range.
    pub(super) fn scrub_listed(&mut self, id: u64, upto: Backfill) {
        let replicas = self.replicas();
        let me = self.me;
        let Some(job) = &mut self.scrub.job else { return };
        if !matches!(job.stage, Stage::Listing(i) if i == id) {
            return;
        }
        let waiting = replicas.iter().copied().chain([me]).collect();
        let (after, deep) = (job.cursor.clone(), job.kind.deep);
        let max = u32::try_from(job.chunk.saturating_mul(4)).unwrap_or(u32::MAX);
        job.stage = Stage::Scanning {
            id,
            upto: upto.clone(),
            waiting,
            maps: BTreeMap::new(),
            disturbed: false,
        };
        self.send_all(
            replicas,
            PeerMsg::Scan { id, after: after.clone(), upto: upto.clone(), deep, max },
        );
        self.scan(Scanner::Own(id), after, upto, deep, max);
    }

    fn scan(&mut self, scanner: Scanner, after: Backfill, upto: Backfill, deep: bool, max: u32) {
        let token = self.scrub_id();
        self.scrub.scans.insert(token, scanner);
        self.actions.push_back(Action::Scan {
            token: ReadToken(token),
            after,
            upto,
            deep,
            max: max as usize,
        });
    }

    pub(super) fn handle_scanned(&mut self, token: ReadToken, map: ScrubMap) {
        match self.scrub.scans.remove(&token.0) {
            None => {}
            Some(Scanner::Own(id)) => self.take_scan(self.me, id, map),
            Some(Scanner::Primary { to, asked, id }) => {
                self.answer(to, asked, PeerMsg::ScanResult { id, map: Box::new(map) })
            }
        }
    }

    pub(super) fn take_scan(&mut self, from: PgShard, id: u64, map: ScrubMap) {
        let Some(job) = &mut self.scrub.job else { return };
        let Stage::Scanning { id: i, waiting, maps, disturbed, .. } = &mut job.stage else {
            return;
        };
        if *i != id || !waiting.remove(&from) {
            return;
        }
        maps.insert(from, map);
        if !waiting.is_empty() {
            return;
        }
        if *disturbed {
            job.preemptions = job.preemptions.saturating_sub(1);
            job.chunk = (job.chunk / 2).max(self.conf.scrub_chunk_min.max(1)).min(job.chunk);
            self.next_chunk();
            return;
        }
        self.compare_chunk();
    }

    fn compare_chunk(&mut self) {
        let pgid = self.info.pgid.to_string();
        let rules = Rules {
            max_object_size: self.conf.max_object_size,
            large_omap_keys: self.conf.large_omap_keys,
            large_omap_bytes: self.conf.large_omap_bytes,
        };
        let me = self.me;
        let Some(job) = &mut self.scrub.job else { return };
        let Stage::Scanning { upto, maps, .. } = &mut job.stage else { return };
        let mut maps = std::mem::take(maps);
        // A copy that has much more than the primary tells less of the range.
        let limit = maps
            .values()
            .map(|m| m.upto.clone())
            .chain([upto.clone()])
            .min()
            .unwrap_or(Backfill::Complete);
        for map in maps.values_mut() {
            map.objects.retain(|oid, _| limit.covers(oid) && !job.cursor.covers(oid));
        }
        let (missing, peers, acting) = (&self.missing, &self.peers, &self.mapping.acting);
        let mut skipped = false;
        let skip = |oid: &ObjectId| {
            let lacking = |o: &PgShard| {
                peers.get(o).is_some_and(|p| p.missing.as_ref().is_some_and(|m| m.contains(oid)))
            };
            missing.contains(oid) || acting.iter().any(lacking)
        };
        for oid in maps.values().flat_map(|m| m.objects.keys()) {
            skipped |= skip(oid);
        }
        let compared = Compared { pg: &pgid, primary: me, maps: &maps, rules: &rules };
        let found = self.pool.kind.backend().compare(&compared, &skip);
        job.tally.inexact |= skipped;
        // No copy moves on to where the cursor stood already: a range has at least one name.
        job.cursor = limit.clone();
        job.chunk = self.conf.scrub_chunk_max.max(1);
        let repair = job.kind.repair;
        let repairable = self.tally(found);
        if repair {
            self.repair(repairable);
        }
        self.actions.push_back(Action::ScrubRangeReady);
        if limit == Backfill::Complete {
            self.finish_scrub();
        } else {
            self.next_chunk();
        }
    }

    /// Adds what was found, and says so.
    fn tally(&mut self, found: Found) -> Vec<Repairable> {
        let Some(job) = &mut self.scrub.job else { return Vec::new() };
        let t = &mut job.tally;
        t.shallow += found.shallow_errors;
        t.deep += found.deep_errors;
        t.large_omap += found.large_omap_objects;
        t.stats.add(&found.stats);
        t.inexact |= !found.objects.is_empty();
        t.missing += found.repairable.iter().filter(|r| !r.missing.is_empty()).count();
        t.inconsistent += found.repairable.iter().filter(|r| !r.bad.is_empty()).count();
        for (oid, record) in found.objects {
            if t.results.objects.len() < RECORDS_MAX {
                t.results.objects.insert(oid, record);
            }
        }
        for (oid, record) in found.snapsets {
            if t.results.snapsets.len() < RECORDS_MAX {
                t.results.snapsets.insert(oid, record);
            }
        }
        let lines = found
            .lines
            .into_iter()
            .map(|l| (LogPriority::ERROR, l))
            .chain(found.warnings.into_iter().map(|l| (LogPriority::WARN, l)));
        for (prio, text) in lines {
            t.lines += 1;
            if t.lines <= LINES_MAX {
                self.actions.push_back(Action::ClusterLog { prio, text });
            }
        }
        found.repairable
    }

    /// Marks bad copies missing; recovery copies the good ones over them.
    fn repair(&mut self, repairable: Vec<Repairable>) {
        let mut by_osd: BTreeMap<PgShard, Vec<(ObjectId, Eversion)>> = BTreeMap::new();
        for r in repairable {
            // A version beyond the log's head would be a lie of the copy that has it.
            if r.version > self.info.last_update {
                continue;
            }
            for osd in r.missing.iter().chain(&r.bad) {
                by_osd.entry(*osd).or_default().push((r.oid.clone(), r.version));
            }
        }
        if let Some(job) = &mut self.scrub.job {
            job.tally.fixed += by_osd.values().map(|v| v.len() as u64).sum::<u64>();
        }
        for (osd, objects) in by_osd {
            self.lose_copies(osd, objects);
        }
        self.check_recovery();
    }

    fn finish_scrub(&mut self) {
        let Some(Job { kind, mut tally, .. }) = self.scrub.job.take() else { return };
        self.send_all(self.replicas(), PeerMsg::ScrubRelease);
        let name = kind.name();
        let pgid = self.info.pgid;
        self.check_counts(kind, &mut tally);
        if tally.missing + tally.inconsistent > 0 {
            self.log_error(format!(
                "{pgid} {name} {} missing, {} inconsistent objects",
                tally.missing, tally.inconsistent
            ));
        }
        let total = tally.shallow + tally.deep;
        let mut text = format!("{pgid} {name} ");
        text += &if total > 0 { format!("{total} errors") } else { "ok".into() };
        if !kind.deep && self.info.scrub.deep_errors > 0 {
            text += &format!(
                " ( {} remaining deep scrub error details lost)",
                self.info.scrub.deep_errors
            );
        }
        if kind.repair {
            text += &format!(", {} fixed", tally.fixed);
        }
        self.actions.push_back(Action::ClusterLog {
            prio: if total > 0 { LogPriority::ERROR } else { LogPriority::DEBUG },
            text,
        });
        let (mut shallow, mut deep, mut again) = (tally.shallow, tally.deep, None);
        if kind.repair && total > 0 {
            if tally.fixed >= total {
                (shallow, deep) = (0, 0);
            } else if tally.fixed > 0 {
                // Which errors are left, another scrub finds out.
                again = Some(ScrubKind { deep: true, repair: false, check: true });
            } else {
                self.scrub.failed_repair = true;
            }
        } else if kind.check {
            self.scrub.failed_repair = total > 0;
        } else if self.conf.scrub_auto_repair
            && (1..=self.conf.scrub_auto_repair_num_errors).contains(&total)
        {
            again = Some(ScrubKind { deep: true, repair: true, check: false });
        }
        let history = &mut self.info.history;
        history.last_scrub = self.info.last_update;
        history.last_scrub_stamp = self.now;
        if kind.deep {
            history.last_deep_scrub = self.info.last_update;
            history.last_deep_scrub_stamp = self.now;
        }
        if shallow == 0 && (deep == 0 || !kind.deep) {
            history.last_clean_scrub_stamp = self.now;
        }
        self.info.scrub.shallow_errors = shallow;
        if kind.deep {
            self.info.scrub.deep_errors = deep;
            self.info.scrub.large_omap_objects = tally.large_omap;
            // Only deep scrubs count rows of omaps.
            self.info.stats.num_omap_keys = tally.stats.num_omap_keys;
            self.info.stats.num_omap_bytes = tally.stats.num_omap_bytes;
        }
        self.scrub.results = Some(tally.results);
        self.persist_all();
        let msg = PeerMsg::Scrubbed { history: self.info.history, scrub: self.info.scrub };
        self.send_all(self.replicas(), msg);
        self.actions.push_back(Action::ScrubEnded { ran: true, again });
    }

    /// Compares the PG's totals with what was counted. After a divergence they are known to be
    /// wrong, and put right.
    fn check_counts(&mut self, kind: ScrubKind, tally: &mut Tally) {
        if tally.inexact {
            return;
        }
        let (stats, counted) = (&mut self.info.stats, &tally.stats);
        let same = stats.num_objects == counted.num_objects
            && stats.num_object_clones == counted.num_object_clones;
        if !same && !self.info.stats_invalid {
            let text = format!(
                "{} {} : stat mismatch, got {}/{} objects, {}/{} clones.",
                self.info.pgid,
                kind.name(),
                counted.num_objects,
                stats.num_objects,
                counted.num_object_clones,
                stats.num_object_clones
            );
            tally.shallow += 1;
            tally.fixed += u64::from(kind.repair);
            self.actions.push_back(Action::ClusterLog { prio: LogPriority::ERROR, text });
        }
        if self.info.stats_invalid || (!same && kind.repair) {
            self.info.stats.num_objects = counted.num_objects;
            self.info.stats.num_object_clones = counted.num_object_clones;
        }
    }

    // --- replicas ---

    pub(super) fn handle_scan(
        &mut self,
        from: PgShard,
        asked: Epoch,
        id: u64,
        after: Backfill,
        upto: Backfill,
        deep: bool,
        max: u32,
    ) {
        if self.phase == Phase::ReplicaActive && after < upto {
            self.scan(Scanner::Primary { to: from, asked, id }, after, upto, deep, max);
        }
    }

    pub(super) fn handle_scrub_reserve(&mut self) {
        if self.phase == Phase::ReplicaActive {
            self.actions.push_back(Action::ReserveScrub);
        }
    }

    pub(super) fn handle_scrubbed(&mut self, history: PgHistory, scrub: ScrubSummary) {
        self.info.history.merge(&history);
        self.info.scrub = scrub;
        self.persist_all();
    }
}
