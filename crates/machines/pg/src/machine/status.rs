//! What operators see.

use std::collections::BTreeSet;

use types::stats::{ObjectStatCollection, ObjectStatSum};
use types::{Epoch, Eversion, IntervalSet, OsdId, PgShard, PgStat, PgState, Utime};

use crate::info::{PgInfo, ScrubSummary};
use crate::log::PgLog;
use crate::members::Members;
use crate::past_intervals::is_pending;
use crate::stats::StatSum;

use super::backfill::BackfillStatus;
use super::history::{StateHistory, Stay};
use super::parts::times::Times;
use super::{Pg, Phase};

/// What the primary reports of a PG (the source of Ceph's `pg_stat_t`).
#[derive(Clone, PartialEq, Debug)]
pub struct PgStatus {
    /// State bits.
    pub state: PgState,
    /// Replicas that the pool wants.
    pub size: u32,
    /// Up set.
    pub up: Members,
    /// Primary of the up set.
    pub up_primary: Option<PgShard>,
    /// Acting set.
    pub acting: Members,
    /// Acting primary.
    pub primary: Option<PgShard>,
    /// OSDs that keep the PG from peering.
    pub blocked_by: BTreeSet<OsdId>,
    /// Epoch of the map behind this.
    pub epoch: Epoch,
    /// Newest log entry.
    pub last_update: Eversion,
    /// Log tail.
    pub log_start: Eversion,
    /// Log entries.
    pub log_size: usize,
    /// Trimmed requests still known.
    pub log_dups_size: usize,
    /// Milestones.
    pub history: crate::info::PgHistory,
    /// Totals.
    pub stats: StatSum,
    /// Whether the totals are known to be wrong.
    pub stats_invalid: bool,
    /// What scrubs found and did.
    pub scrub: ScrubSummary,
    /// Objects that the primary lacks.
    pub missing_on_primary: u64,
    /// Copies of objects that are missing, those of absent OSDs included.
    pub degraded: u64,
    /// Copies that exist on other OSDs than they should.
    pub misplaced: u64,
    /// Objects without a reachable copy.
    pub unfound: u64,
    /// Removed snapshots still to trim.
    pub snap_trimq_len: u64,
    /// Removed snapshots that are trimmed.
    pub purged_snaps: IntervalSet,
    /// When it was last in which state.
    pub times: Times,
}

impl PgStatus {
    /// The statistics that go to the manager. `seq` counts the reports of this PG.
    pub fn to_stat(&self, seq: u64, now: Utime) -> PgStat {
        let (s, t) = (&self.stats, &self.times);
        let count = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let sum = ObjectStatSum {
            num_bytes: s.num_bytes,
            num_objects: s.num_objects,
            num_object_clones: s.num_object_clones,
            num_object_copies: s.num_objects.saturating_mul(i64::from(self.size)),
            num_objects_missing_on_primary: count(self.missing_on_primary),
            num_objects_degraded: count(self.degraded),
            num_objects_unfound: count(self.unfound),
            num_rd: s.num_rd,
            num_rd_kb: s.num_rd_kb,
            num_wr: s.num_wr,
            num_wr_kb: s.num_wr_kb,
            num_objects_recovered: s.num_objects_recovered,
            num_bytes_recovered: s.num_bytes_recovered,
            num_keys_recovered: s.num_keys_recovered,
            num_objects_dirty: s.num_objects_dirty,
            num_whiteouts: s.num_whiteouts,
            num_objects_omap: s.num_objects_omap,
            num_objects_misplaced: count(self.misplaced),
            num_omap_bytes: s.num_omap_bytes,
            num_omap_keys: s.num_omap_keys,
            ..ObjectStatSum::default()
        };
        let size = i64::try_from(self.log_size).unwrap_or(i64::MAX);
        PgStat {
            version: self.last_update,
            reported_seq: seq,
            reported_epoch: self.epoch,
            state: self.state,
            last_fresh: now,
            last_change: t.change,
            last_active: t.active,
            last_peered: t.peered,
            last_clean: t.clean,
            last_unstale: now,
            last_undegraded: t.undegraded,
            last_fullsized: t.fullsized,
            last_became_active: t.became_active,
            last_became_peered: t.became_peered,
            log_start: self.log_start,
            ondisk_log_start: self.log_start,
            log_size: size,
            ondisk_log_size: size,
            created: self.history.epoch_created,
            last_epoch_clean: self.history.last_epoch_clean,
            stats: ObjectStatCollection { sum },
            up: self.up.slots(),
            acting: self.acting.slots(),
            up_primary: self.up_primary.map_or(OsdId(-1), |p| p.osd),
            acting_primary: self.primary.map_or(OsdId(-1), |p| p.osd),
            mapping_epoch: self.history.same_interval_since,
            blocked_by: self.blocked_by.iter().copied().collect(),
            purged_snaps: self.purged_snaps.clone(),
            snaptrimq_len: u32::try_from(self.snap_trimq_len).unwrap_or(u32::MAX),
            stats_invalid: self.stats_invalid,
            ..PgStat::default()
        }
    }
}

/// What the primary knows of another copy, for `pg query`.
#[derive(Clone, Debug)]
pub struct PeerStatus<'a> {
    /// The copy.
    pub shard: PgShard,
    /// Its info when it last told.
    pub info: &'a PgInfo,
    /// How many objects it lacks, if it told.
    pub missing: Option<usize>,
}

impl Pg {
    /// State bits.
    pub fn state(&self) -> PgState {
        let mut s = PgState::default();
        if !self.is_primary() {
            return match self.phase {
                Phase::ReplicaActive => PgState::ACTIVE,
                _ => s,
            };
        }
        match &self.phase {
            Phase::Reset | Phase::GetInfo { .. } | Phase::GetLog { .. } | Phase::WaitActing => {
                s.set(PgState::PEERING, true)
            }
            Phase::GetMissing { .. } | Phase::WaitUpThru => s.set(PgState::PEERING, true),
            Phase::Down => s.set(PgState::DOWN, true),
            Phase::Incomplete => s.set(PgState::INCOMPLETE, true),
            Phase::Activating { .. } => s.set(PgState::ACTIVATING, true),
            Phase::Active if self.enough() => s.set(PgState::ACTIVE, true),
            Phase::Active => s.set(PgState::PEERED, true),
            _ => {}
        }
        s.set(
            PgState::WAIT,
            self.phase == Phase::WaitUpThru
                && !self.needs_up_thru()
                && self.earlier_leases().is_some(),
        );
        s.set(PgState::LAGGY, self.is_laggy());
        if self.info.history.last_epoch_started == Epoch(0) {
            s.set(PgState::CREATING, true);
        }
        if self.mapping.up != self.mapping.acting {
            s.set(PgState::REMAPPED, true);
        }
        let decided = matches!(self.phase, Phase::Activating { .. } | Phase::Active);
        if decided && self.mapping.acting.len() < self.pool.size as usize {
            s.set(PgState::UNDERSIZED | PgState::DEGRADED, true);
        }
        if decided && !self.all_recovered() {
            s.set(PgState::DEGRADED, true);
            if self.phase == Phase::Active {
                if self.recovery.unfound() > 0 && self.recovery.unfound() == self.lacking_objects()
                {
                    s.set(PgState::RECOVERY_UNFOUND, true);
                } else if self.recovery_too_full() {
                    s.set(PgState::RECOVERY_TOOFULL, true);
                } else if self.reservation.is_held() || self.backfill_has_turn() {
                    s.set(PgState::RECOVERING, true);
                } else {
                    s.set(PgState::RECOVERY_WAIT, true);
                }
            }
        }
        if decided {
            s.set(self.reservation.state(), true);
        }
        if decided && self.info.scrub.errors() > 0 {
            s.set(PgState::INCONSISTENT, true);
        }
        if !self.repairs.is_empty() {
            s.set(PgState::REPAIR, true);
        }
        s.set(self.scrub.state(), true);
        if self.phase == Phase::Active && self.all_recovered() && self.needs_backfill() {
            let any = |is: fn(&BackfillStatus) -> bool| self.backfills().any(|b| is(&b));
            let (damaged, running, too_full) =
                (any(|b| b.damaged), any(|b| b.running), any(|b| b.too_full));
            if self.all_recover_beside() {
                s.set(if running { PgState::RECOVERING } else { PgState::RECOVERY_WAIT }, true);
            } else {
                s.set(PgState::BACKFILL_UNFOUND, damaged);
                s.set(PgState::BACKFILLING, running && !damaged);
                s.set(PgState::BACKFILL_TOOFULL, too_full && !damaged);
                s.set(PgState::BACKFILL_WAIT, !damaged && !running && !too_full);
            }
        }
        if decided && is_pending(self.info.pgid, &self.pool) {
            s.set(PgState::PREMERGE, true);
        }
        if self.clean {
            s.set(PgState::CLEAN, true);
            if let Some(t) = self.trimming {
                s.set(t.state(), true);
            }
        }
        s
    }

    fn lacking_objects(&self) -> usize {
        let mut objects: BTreeSet<_> = self.missing.iter().map(|(oid, _)| oid).collect();
        for peer in self.mapping.acting.iter().filter_map(|o| self.peers.get(o)) {
            objects.extend(peer.missing.iter().flat_map(|m| m.iter()).map(|(oid, _)| oid));
        }
        objects.len()
    }

    /// What the primary reports. Costs time in proportion to what is missing.
    pub fn status(&self) -> PgStatus {
        let objects = self.info.stats.num_objects.max(0) as u64;
        let mut degraded = self.missing.len() as u64;
        for peer in self.mapping.acting.iter().filter_map(|o| self.peers.get(o)) {
            degraded += peer.missing.as_ref().map_or(0, |m| m.len()) as u64;
        }
        let absent = (self.pool.size as usize).saturating_sub(self.mapping.acting.len()) as u64;
        let elsewhere =
            self.mapping.acting.iter().filter(|o| !self.mapping.up.contains(o)).count() as u64;
        // What the copies that are being filled have already, counts: those that are furthest stand
        // for absent ones.
        let filled = self.filled_copies();
        let (instead, moved) = filled.split_at(filled.len().min(absent as usize));
        PgStatus {
            state: self.state(),
            size: self.pool.size,
            up: self.mapping.up.clone(),
            up_primary: self.mapping.up_primary,
            acting: self.mapping.acting.clone(),
            primary: self.mapping.primary,
            blocked_by: self.blocked_by(),
            epoch: self.map.epoch(),
            last_update: self.info.last_update,
            log_start: self.log.tail(),
            log_size: self.log.len(),
            log_dups_size: PgLog::dups(&self.log).len(),
            history: self.info.history,
            stats: self.info.stats,
            stats_invalid: self.info.stats_invalid,
            scrub: self.info.scrub,
            missing_on_primary: self.missing.len() as u64,
            degraded: degraded + (absent * objects).saturating_sub(instead.iter().sum()),
            misplaced: (elsewhere * objects).saturating_sub(moved.iter().sum()),
            unfound: self.recovery.unfound() as u64,
            snap_trimq_len: self.snap_trim_queue().size(),
            purged_snaps: self.info.purged_snaps.clone(),
            times: self.times,
        }
    }

    /// What the primary knows of other copies.
    pub fn peers(&self) -> impl Iterator<Item = PeerStatus<'_>> {
        self.peers.iter().map(|(shard, p)| PeerStatus {
            shard: *shard,
            info: &p.info,
            missing: p.missing.as_ref().map(|m| m.len()),
        })
    }

    /// Whom writes wait for beside this copy: acting copies, and those among the targets that
    /// acknowledge (Ceph: `get_acting_recovery_backfill_shards`).
    pub fn acknowledged_by(&self) -> impl Iterator<Item = PgShard> {
        self.mapping.acting.iter().copied().chain(self.acknowledging()).filter(|o| *o != self.me)
    }

    /// Name of the state of the machine, for `pg query` (Ceph: `recovery_state`).
    pub fn phase_name(&self) -> &'static str {
        match self.phase {
            Phase::Reset => "Reset",
            Phase::Stray => "Started/Stray",
            Phase::ReplicaActive => "Started/ReplicaActive",
            Phase::GetInfo { .. } => "Started/Primary/Peering/GetInfo",
            Phase::Down => "Started/Primary/Peering/Down",
            Phase::GetLog { .. } => "Started/Primary/Peering/GetLog",
            Phase::Incomplete => "Started/Primary/Peering/Incomplete",
            Phase::WaitActing => "Started/Primary/WaitActingChange",
            Phase::GetMissing { .. } => "Started/Primary/Peering/GetMissing",
            Phase::WaitUpThru => "Started/Primary/Peering/WaitUpThru",
            Phase::Activating { .. } => "Started/Primary/Active/Activating",
            Phase::Active if self.clean => "Started/Primary/Active/Clean",
            Phase::Active if self.all_recovered() && self.filling().next().is_some() => {
                "Started/Primary/Active/Backfilling"
            }
            Phase::Active if self.all_recovered() && self.needs_backfill() => {
                "Started/Primary/Active/NotBackfilling"
            }
            Phase::Active if self.all_recovered() => "Started/Primary/Active/Recovered",
            Phase::Active => "Started/Primary/Active/Recovering",
            Phase::Removing => "Started/ToDelete/Deleting",
            Phase::Gone => "Deleted",
        }
    }

    /// Which states it was in.
    pub fn state_history(&self) -> &StateHistory {
        &self.history
    }

    /// Keeps the `last_*` times.
    pub(super) fn update_times(&mut self) {
        let (now, state, phase, outer) =
            (self.now, self.state(), self.phase_name(), self.outer_name());
        let t = &mut self.times;
        if phase.starts_with("Started") != t.phase.starts_with("Started") {
            t.started = now;
        }
        if outer != t.outer {
            (t.outer, t.within) = (outer, now);
        }
        if phase != t.phase {
            let stay =
                Stay { state: t.phase, entered: t.entered, left: now, epoch: self.map.epoch() };
            self.history.moved(stay, phase);
            (t.phase, t.entered) = (phase, now);
        }
        let is = |bit| state.has(bit);
        let peered = is(PgState::ACTIVE) || is(PgState::PEERED);
        if state != t.state {
            t.change = now;
            if is(PgState::ACTIVE) && !t.state.has(PgState::ACTIVE) {
                t.became_active = now;
            }
            if peered && !t.state.has(PgState::ACTIVE) && !t.state.has(PgState::PEERED) {
                t.became_peered = now;
            }
            t.state = state;
        }
        if is(PgState::ACTIVE) {
            t.active = now;
        }
        if peered {
            t.peered = now;
        }
        if is(PgState::CLEAN) {
            t.clean = now;
        }
        if !is(PgState::DEGRADED) {
            t.undegraded = now;
        }
        if !is(PgState::UNDERSIZED) {
            t.fullsized = now;
        }
    }
}
