//! Reservations for recovery and backfill, and their order.
//!
//! ```text
//!   Reserve (own OSD) ─► OSDs that are read (`sources`) ─►
//!   Reserve to each acting replica, in order ─► recovery ─► Release everywhere
//! ```
//!
//! Reservations are counted by OSD (`osd_max_backfills` of each [`Side`]). A PG waits for one only
//! while those that it has are of an earlier side, or of the same side and an OSD with a smaller
//! number, so there is no circle. A reservation may be taken back for a higher priority: then all
//! of them are given back and asked for anew. Objects that clients wait for need no reservation.
//! (Ceph: `PeeringState::get_recovery_priority`, `WaitLocalRecoveryReserved` and what follows.)

use types::{PgShard, PgState};

use crate::action::Action;
use crate::msg::PeerMsg;
use crate::reserver::Side;

use super::parts::reservation::Stage;
use super::{Pg, Phase};

/// Base priorities (Ceph: `osd_types.h`, `OSD_RECOVERY_PRIORITY_BASE` and its neighbours).
const BACKFILL: i32 = 100;
const BACKFILL_DEGRADED: i32 = 140;
const RECOVERY: i32 = 180;
const INACTIVE: i32 = 220;
const HIGHEST: i32 = 253;
const BACKFILL_FORCED: u8 = 254;
const RECOVERY_FORCED: u8 = 255;
/// Bounds of a pool's `recovery_priority` (`OSD_POOL_PRIORITY_MIN` and `MAX`).
const POOL_MAX: i32 = 10;

/// A base with what speaks for more haste in the PG and in its pool, within the range of its base.
fn clamp(base: i32, more: i32, pool: i32, highest: i32) -> u8 {
    let pool = pool.clamp(-POOL_MAX, POOL_MAX) + POOL_MAX;
    u8::try_from((base + more + pool).clamp(0, highest)).unwrap_or(u8::MAX)
}

impl Pg {
    /// How urgent recovery is: a higher number goes first.
    pub fn recovery_priority(&self) -> u8 {
        if self.reservation.recovery_forced {
            return RECOVERY_FORCED;
        }
        let whole = self.mapping.acting.iter().filter(|o| match **o == self.me {
            true => self.missing.is_empty(),
            false => {
                self.peers.get(o).is_some_and(|p| p.missing.as_ref().is_some_and(|m| m.is_empty()))
            }
        });
        let short = self.pool.min_size as i32 - whole.count() as i32;
        let pool = self.map.recovery_priority(self.info.pgid.pool);
        if short > 0 {
            clamp(INACTIVE, short, pool, HIGHEST)
        } else {
            clamp(RECOVERY, 0, pool, INACTIVE - 1)
        }
    }

    /// How urgent backfill is.
    pub fn backfill_priority(&self) -> u8 {
        if self.reservation.backfill_forced {
            return BACKFILL_FORCED;
        }
        let acting = self.mapping.acting.len() as i32;
        let (short, absent) = (self.pool.min_size as i32 - acting, self.pool.size as i32 - acting);
        let pool = self.map.recovery_priority(self.info.pgid.pool);
        if short > 0 {
            clamp(INACTIVE, short, pool, HIGHEST)
        } else if self.all_recover_beside() {
            clamp(RECOVERY, 0, pool, INACTIVE - 1)
        } else if absent > 0 || !self.all_recovered() {
            clamp(BACKFILL_DEGRADED, absent.max(0), pool, RECOVERY - 1)
        } else {
            clamp(BACKFILL, 0, pool, BACKFILL_DEGRADED - 1)
        }
    }

    /// Whether an acting OSD that lacks something has a full store (Ceph: `RecoveryTooFull`). Only
    /// what clients wait for is recovered until there is room; the map tells.
    pub(super) fn recovery_too_full(&self) -> bool {
        let lacks = |shard: PgShard| match shard == self.me {
            true => !self.missing.is_empty(),
            false => self
                .peers
                .get(&shard)
                .and_then(|p| p.missing.as_ref())
                .is_some_and(|m| !m.is_empty()),
        };
        let beside = self.filling().filter(|o| self.recovers_beside(*o));
        self.mapping
            .acting
            .iter()
            .copied()
            .chain(beside)
            .any(|o| lacks(o) && self.map.is_full(o.osd))
    }

    /// Whether objects may be recovered that no client waits for.
    pub(super) fn may_recover(&self) -> bool {
        self.map.recovers()
            && !self.recovery_too_full()
            && (self.reservation.is_held() || self.backfill_has_turn())
    }

    /// Asks for reservations, or gives them back, as there is something to recover.
    pub(super) fn check_reservation(&mut self) {
        let wanted = self.phase == Phase::Active && self.has_recoverable();
        if !wanted {
            self.release_recovery();
            if self.all_recovered() {
                self.reservation.recovery_forced = false;
                self.reservation.backfill_forced &= self.needs_backfill();
            }
            return;
        }
        if self.recovery_too_full() {
            // Others may have the reservations meanwhile.
            self.release_recovery();
            self.release_backfill();
            return;
        }
        // A copy that is being filled gets its writes: the reservations that it has will do.
        if self.reservation.stage == Stage::Idle && !self.follows_or_gives_up_turn() {
            self.reservation.stage = Stage::Own;
            self.actions.push_back(Action::Reserve {
                side: Side::Lead,
                backfill: false,
                priority: self.recovery_priority(),
            });
        }
    }

    pub(super) fn release_recovery(&mut self) {
        if self.reservation.stage == Stage::Idle {
            return;
        }
        self.reservation.stage = Stage::Idle;
        self.release_sources();
        let asked = std::mem::take(&mut self.reservation.asked);
        self.send_all(asked.into_iter().collect(), PeerMsg::Release);
        self.actions.push_back(Action::Release);
    }

    /// A reservation on this OSD has come.
    pub(super) fn handle_reserved(&mut self) {
        if self.reservation.stage == Stage::Own {
            self.reservation.stage = Stage::Sources;
            self.ask_sources();
        } else {
            self.handle_own_turn();
        }
    }

    /// Replicas one after the other. An OSD with several of them is asked once: it may have no
    /// second reservation, and would wait for its first.
    pub(super) fn ask_next_replica(&mut self) {
        let last = self.reservation.asked.last().map(|c| c.osd);
        let next = self.replicas().into_iter().filter(|c| last.is_none_or(|l| c.osd > l)).min();
        match next {
            Some(shard) => {
                self.reservation.stage = Stage::Replica(shard);
                self.reservation.asked.push(shard);
                let priority = self.recovery_priority();
                self.send(shard, PeerMsg::Reserve { backfill: false, priority });
            }
            None => {
                self.reservation.stage = Stage::Held;
                self.check_recovery();
            }
        }
    }

    /// A reservation on another OSD has come.
    pub(super) fn handle_peer_reserved(&mut self, from: PgShard) {
        if self.reservation.stage == Stage::Replica(from) {
            self.ask_next_replica();
        } else {
            self.handle_target_reserved(from);
        }
    }

    /// The reservation on this OSD was taken back.
    pub(super) fn handle_preempted(&mut self) {
        if self.reservation.stage != Stage::Idle {
            self.release_recovery();
            self.check_recovery();
        } else {
            self.defer_backfill();
        }
    }

    /// The reservation on another OSD was taken back.
    pub(super) fn handle_revoked(&mut self, from: PgShard) {
        if self.reservation.asked.contains(&from) {
            self.release_recovery();
            self.check_recovery();
        } else {
            self.target_revoked(from);
        }
    }

    /// An operator wants the PG recovered, or filled, before all others, or not any more (Ceph:
    /// `SetForceRecovery` and the others).
    pub(super) fn force(&mut self, backfill: bool, on: bool) {
        if !self.is_primary() {
            return;
        }
        let s = self.state();
        let any = |bits: [PgState; 3]| bits.into_iter().any(|b| s.has(b));
        let wanted = match backfill {
            true => any([PgState::DEGRADED, PgState::BACKFILL_WAIT, PgState::BACKFILLING]),
            false => any([PgState::DEGRADED, PgState::RECOVERY_WAIT, PgState::RECOVERING]),
        };
        let r = &mut self.reservation;
        let forced = if backfill { &mut r.backfill_forced } else { &mut r.recovery_forced };
        if *forced == on || (on && !wanted) {
            return;
        }
        *forced = on;
        // Also where it waits for, or has, reservations of others: an OSD that is asked again
        // changes the priority.
        if self.reservation.stage != Stage::Idle {
            let priority = self.recovery_priority();
            self.actions.push_back(Action::Reserve { side: Side::Lead, backfill: false, priority });
            self.send_all(
                self.reservation.asked.iter().copied().collect(),
                PeerMsg::Reserve { backfill: false, priority },
            );
            self.ask_sources_again();
        } else if self.backfill_wants_turn() {
            self.actions.push_back(Action::Reserve {
                side: Side::Lead,
                backfill: true,
                priority: self.backfill_priority(),
            });
            self.ask_sources_again();
            self.ask_target_turns_again();
        }
    }

    /// What must be true of reservations.
    pub(super) fn check_reservation_invariants(&self) -> Result<(), String> {
        if self.reservation.stage != Stage::Idle && self.backfill_wants_turn() {
            return Err(format!("{}: recovery and backfill have turns", self.info.pgid));
        }
        Ok(())
    }
}
