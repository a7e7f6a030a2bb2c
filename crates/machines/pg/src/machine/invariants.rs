//! What must be true after every event.

use super::{Pg, Phase};

impl Pg {
    /// Checks what must be true after every event. Cheap enough for debug builds; simulations call
    /// it after every step.
    pub fn check_invariants(&self) -> Result<(), String> {
        let info = &self.info;
        let ensure = |ok: bool, what: &str| {
            if ok { Ok(()) } else { Err(format!("{}: {what}: {self:?}", info.pgid)) }
        };
        ensure(info.shard == self.me.shard, "the info is that of this copy")?;
        ensure(info.last_update == self.log.head(), "last_update is the head of the log")?;
        ensure(info.log_tail == self.log.tail(), "log_tail is the tail of the log")?;
        ensure(info.last_complete <= info.last_update, "last_complete is not above last_update")?;
        ensure(
            !self.missing.is_empty() || info.last_complete == info.last_update,
            "a copy that lacks nothing is complete",
        )?;
        ensure(
            self.missing.oldest_need().is_none_or(|need| info.last_complete < need),
            "last_complete is below everything missing",
        )?;
        // Bounded, so that a debug build can recover a large PG.
        if self.missing.len() <= 256 {
            self.missing.check()?;
        }
        self.check_backfill_invariants()?;
        self.check_reservation_invariants()?;
        ensure(
            info.history.same_interval_since <= self.map.epoch(),
            "the interval began before now",
        )?;
        let primary = matches!(
            self.phase,
            Phase::GetInfo { .. }
                | Phase::Down
                | Phase::GetLog { .. }
                | Phase::Incomplete
                | Phase::WaitActing
                | Phase::GetMissing { .. }
                | Phase::WaitUpThru
                | Phase::Activating { .. }
                | Phase::Active
        );
        ensure(!primary || self.is_primary(), "only the primary of the map acts as one")?;
        ensure(
            self.inflight.is_empty() || self.phase == Phase::Active,
            "writes are in flight only while active",
        )?;
        if self.phase == Phase::Active {
            ensure(
                self.map.up_thru(self.me.osd) >= info.history.same_interval_since,
                "the map records that the primary was alive in this interval",
            )?;
            ensure(
                !self.enough() || info.last_epoch_started >= info.history.same_interval_since,
                "the activation counts",
            )?;
            ensure(
                self.replicas()
                    .iter()
                    .all(|o| self.peers.get(o).is_some_and(|p| p.missing.is_some())),
                "the primary knows what every replica lacks",
            )?;
            ensure(
                self.all_committed <= info.last_update,
                "nothing is committed that was not ordered",
            )?;
            let mut last = self.all_committed;
            for op in &self.inflight {
                ensure(op.version > last, "writes in flight are in order")?;
                last = op.version;
            }
            ensure(
                self.inflight.is_empty() || last == info.last_update,
                "the newest write in flight is the head of the log",
            )?;
            ensure(!self.clean || self.all_recovered(), "clean means that nobody lacks anything")?;
            ensure(self.min_last_complete_ondisk <= self.all_committed, "complete is committed")?;
        }
        Ok(())
    }
}
