//! Copies that lack many writes recover beside the PG, not within it (Ceph: asynchronous recovery,
//! `PeeringState::choose_async_recovery_replicated`).
//!
//! An acting copy must have an object before it can be written. A copy that comes back after a
//! while lacks many, and clients would wait for the recovery of each that they write. So it does
//! not act yet, if enough others do: like a copy that is filled, it follows, gets every write from
//! then on, and is asked to act when it lacks nothing. Unlike one that is filled it has all older
//! objects, follows at once and not when its turn comes, and writes wait for an object that it
//! lacks only while this is copied.

use types::PgShard;

use crate::info::Backfill;
use crate::members::Members;

use super::parts::backfill::Stage;
use super::{Pg, Phase};

impl Pg {
    /// Of the copies that want to act, those that should: not those of `up` with logs far behind
    /// that of `best`, the furthest first, as long as there are more than `min_size`.
    pub(super) fn leave_behind(&self, mut want: Members, best: PgShard) -> Members {
        // A shard that does not act is a hole, and the others have to stand in for it.
        if !self.map.recovers() || self.backend().rebuilds() {
            return want;
        }
        let Some(newest) = self.info_of(best).map(|i| i.last_update.version) else { return want };
        // By infos alone: every possible primary must come to the same, or each would ask for what
        // the other does not want. What they lack of older entries only their missing sets say, so
        // those do not count.
        let cost = |shard: &PgShard| {
            let behind = self.info_of(*shard).map_or(0, |i| newest.abs_diff(i.last_update.version));
            (*shard != best
                && self.mapping.up.contains(shard)
                && behind > self.conf.async_recovery_min_cost)
                .then_some((behind, *shard))
        };
        let mut behind: Vec<_> = want.iter().filter_map(cost).collect();
        behind.sort_unstable_by(|a, b| b.cmp(a));
        for (_, shard) in behind {
            if want.len() > (self.pool.min_size as usize).max(1) {
                want = want.without(shard);
            }
        }
        want
    }

    /// Makes copies follow that the log alone brings up to date.
    pub(super) fn follow_by_log(&mut self) {
        if self.phase != Phase::Active || !self.needs_backfill() {
            return;
        }
        let missed: Vec<PgShard> = self
            .mapping
            .up
            .iter()
            .copied()
            .filter(|o| !self.mapping.acting.contains(o) && self.only_lags(*o))
            .collect();
        let mut new = false;
        for shard in missed {
            new |= self.add_follower(shard);
        }
        if new && self.recovery.unfound() > 0 {
            // What they lack is known now, and so what they have.
            self.find_unfound();
        }
    }

    /// Whether a copy that does not act has everything but newer writes.
    fn only_lags(&self, shard: PgShard) -> bool {
        self.peers
            .get(&shard)
            .is_some_and(|p| p.info.last_backfill == Backfill::Complete && self.can_resume(&p.info))
    }

    /// Whether a copy that is up and does not act lacks nothing but newer writes, or did when it
    /// began to follow.
    pub fn recovers_beside(&self, shard: PgShard) -> bool {
        match self.backfill.targets.get(&shard) {
            Some(t) if !matches!(t.stage, Stage::Waiting | Stage::GetLog) => t.beside,
            _ => self.only_lags(shard),
        }
    }

    /// Whether that is all that there is to do for copies that should act and do not.
    pub(super) fn all_recover_beside(&self) -> bool {
        self.needs_backfill()
            && self
                .mapping
                .up
                .iter()
                .filter(|o| !self.mapping.acting.contains(o))
                .all(|o| self.recovers_beside(*o))
    }
}
