//! What replicas of a placement group tell each other of its state and past.

use crate::dump::{Dump, float, shown};
use crate::object::ObjectId;
use crate::pg_stat::{PgStat, dump_intervals};
use crate::{Epoch, Eversion, IntervalSet, PgId, SpgId, Utime};
use bytes::BytesMut;
use denc::{Decode, DecodeError, Encode, Features, Reader, Result, envelope};
use denc_derive::Denc;
use serde_json::{Value, json};

pub use crate::pg_log::{CleanRegions, LogOp, ModDesc, OpReturn, PgLogDup, PgLogEntry};

/// A group's past, shared as widely as possible (Ceph: `pg_history_t`, `osd/osd_types.h`, version
/// 10, compat 4).
#[derive(Clone, PartialEq, Eq, Default, Debug, Denc)]
#[denc(version = 10, compat = 4, oldest = 9)]
pub struct PgHistory {
    /// When the group was created.
    pub epoch_created: Epoch,
    /// Lower bound of the last epoch in which it was active, anywhere.
    pub last_epoch_started: Epoch,
    /// Lower bound of the last epoch in which it was clean.
    pub last_epoch_clean: Epoch,
    /// When it was split last, as parent or child.
    pub last_epoch_split: Epoch,
    /// Up and acting are the same since.
    pub same_interval_since: Epoch,
    /// Up is the same since.
    pub same_up_since: Epoch,
    /// The primary is the same since.
    pub same_primary_since: Epoch,
    /// Version at the last scrub.
    pub last_scrub: Eversion,
    /// Time of the last scrub.
    pub last_scrub_stamp: Utime,
    /// Version at the last deep scrub.
    pub last_deep_scrub: Eversion,
    /// Time of the last deep scrub.
    pub last_deep_scrub_stamp: Utime,
    /// Time of the last scrub without errors.
    pub last_clean_scrub_stamp: Utime,
    /// Last epoch in which the pool or the cluster was full.
    pub last_epoch_marked_full: Epoch,
    /// First epoch of the interval of `last_epoch_started`.
    pub last_interval_started: Epoch,
    /// First epoch of the interval of `last_epoch_clean`.
    pub last_interval_clean: Epoch,
    /// When the pool was created.
    pub epoch_pool_created: Epoch,
    /// How long the prior interval may still serve reads, from when this was written.
    #[denc(since = 10)]
    pub prior_readable_until_ub: Utime,
}

impl PgHistory {
    /// Takes over whatever `other` knows better. True if anything changed.
    pub fn merge(&mut self, other: &PgHistory) -> bool {
        let before = self.clone();
        let later = |mine: &mut Epoch, theirs: Epoch| *mine = (*mine).max(theirs);
        // Creation is only ever learned, never moved.
        if self.epoch_created < other.epoch_created {
            self.epoch_created = other.epoch_created;
        }
        if self.epoch_pool_created < other.epoch_pool_created {
            self.epoch_pool_created = other.epoch_pool_created;
        }
        later(&mut self.last_epoch_started, other.last_epoch_started);
        later(&mut self.last_interval_started, other.last_interval_started);
        // What was readable before the last clean epoch is void.
        if other.last_epoch_started > before.last_epoch_started
            || (other.last_epoch_started == before.last_epoch_started
                && other.prior_readable_until_ub < self.prior_readable_until_ub)
        {
            self.prior_readable_until_ub = other.prior_readable_until_ub;
        }
        later(&mut self.last_epoch_clean, other.last_epoch_clean);
        later(&mut self.last_interval_clean, other.last_interval_clean);
        later(&mut self.last_epoch_split, other.last_epoch_split);
        later(&mut self.last_epoch_marked_full, other.last_epoch_marked_full);
        self.last_scrub = self.last_scrub.max(other.last_scrub);
        self.last_scrub_stamp = self.last_scrub_stamp.max(other.last_scrub_stamp);
        self.last_deep_scrub = self.last_deep_scrub.max(other.last_deep_scrub);
        self.last_deep_scrub_stamp = self.last_deep_scrub_stamp.max(other.last_deep_scrub_stamp);
        self.last_clean_scrub_stamp = self.last_clean_scrub_stamp.max(other.last_clean_scrub_stamp);
        *self != before
    }
}

impl Dump for PgHistory {
    fn dump(&self) -> Value {
        json!({
            "epoch_created": self.epoch_created,
            "epoch_pool_created": self.epoch_pool_created,
            "last_epoch_started": self.last_epoch_started,
            "last_interval_started": self.last_interval_started,
            "last_epoch_clean": self.last_epoch_clean,
            "last_interval_clean": self.last_interval_clean,
            "last_epoch_split": self.last_epoch_split,
            "last_epoch_marked_full": self.last_epoch_marked_full,
            "same_up_since": self.same_up_since,
            "same_interval_since": self.same_interval_since,
            "same_primary_since": self.same_primary_since,
            "last_scrub": shown(self.last_scrub),
            "last_scrub_stamp": shown(self.last_scrub_stamp),
            "last_deep_scrub": shown(self.last_deep_scrub),
            "last_deep_scrub_stamp": shown(self.last_deep_scrub_stamp),
            "last_clean_scrub_stamp": shown(self.last_clean_scrub_stamp),
            "prior_readable_until_ub": float(self.prior_readable_until_ub.as_secs_f64()),
        })
    }
}

/// One hit set of a cache tier (Ceph: `pg_hit_set_info_t`, version 2).
#[derive(Clone, PartialEq, Eq, Debug, Denc)]
#[denc(version = 2, compat = 1)]
pub struct PgHitSetInfo {
    /// Begin of its time.
    pub begin: Utime,
    /// End of its time.
    pub end: Utime,
    /// When its object was written.
    pub version: Eversion,
    /// Its object is named in GMT.
    #[denc(since = 2)]
    pub using_gmt: bool,
}

impl Default for PgHitSetInfo {
    fn default() -> Self {
        PgHitSetInfo {
            begin: Utime::ZERO,
            end: Utime::ZERO,
            version: Eversion::ZERO,
            using_gmt: true,
        }
    }
}

impl Dump for PgHitSetInfo {
    fn dump(&self) -> Value {
        json!({
            "begin": shown(self.begin),
            "end": shown(self.end),
            "version": shown(self.version),
            "using_gmt": shown(u8::from(self.using_gmt)),
        })
    }
}

/// Hit sets of a cache tier (Ceph: `pg_hit_set_history_t`, version 1).
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct PgHitSetHistory {
    /// Last version in the current set.
    pub current_last_update: Eversion,
    /// Sets, old to new.
    pub history: Vec<PgHitSetInfo>,
}

impl Encode for PgHitSetHistory {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        envelope(out, 1, 1, |out| {
            self.current_last_update.encode(out, f);
            // Two fields without a reader.
            Utime::ZERO.encode(out, f);
            PgHitSetInfo::default().encode(out, f);
            self.history.encode(out, f);
        });
    }
}
impl Decode for PgHitSetHistory {
    fn decode(r: &mut Reader) -> Result<Self> {
        let (_, mut r) = r.envelope("pg_hit_set_history_t", 1)?;
        let current_last_update = r.get()?;
        r.get::<Utime>()?;
        r.get::<PgHitSetInfo>()?;
        Ok(PgHitSetHistory { current_last_update, history: r.get()? })
    }
}
impl Dump for PgHitSetHistory {
    fn dump(&self) -> Value {
        json!({
            "current_last_update": shown(self.current_last_update),
            "history": crate::dump::list(&self.history),
        })
    }
}

/// Summary of one replica (Ceph: `pg_info_t`, version 32, compat 26).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PgInfo {
    /// The group.
    pub pgid: SpgId,
    /// Last entry in the log.
    pub last_update: Eversion,
    /// Everything up to here is on disk.
    pub last_complete: Eversion,
    /// Entries after this one are in the log.
    pub log_tail: Eversion,
    /// Last epoch in which this replica was active.
    pub last_epoch_started: Epoch,
    /// First epoch of that interval.
    pub last_interval_started: Epoch,
    /// Last version that a client was told.
    pub last_user_version: u64,
    /// Objects up to here are complete; [`ObjectId::MAX`] if all are.
    pub last_backfill: ObjectId,
    /// Statistics.
    pub stats: PgStat,
    /// Snapshots that are trimmed.
    pub purged_snaps: IntervalSet,
    /// The past.
    pub history: PgHistory,
    /// Hit sets.
    pub hit_set: PgHitSetHistory,
}

impl Default for PgInfo {
    fn default() -> Self {
        PgInfo {
            pgid: SpgId::default(),
            last_update: Eversion::ZERO,
            last_complete: Eversion::ZERO,
            log_tail: Eversion::ZERO,
            last_epoch_started: Epoch(0),
            last_interval_started: Epoch(0),
            last_user_version: 0,
            last_backfill: ObjectId::MAX,
            stats: PgStat::default(),
            purged_snaps: IntervalSet::new(),
            history: PgHistory::default(),
            hit_set: PgHitSetHistory::default(),
        }
    }
}

impl PgInfo {
    /// A new group.
    pub fn new(pgid: impl Into<SpgId>) -> Self {
        PgInfo { pgid: pgid.into(), ..Self::default() }
    }

    /// Nothing was ever written.
    pub fn is_empty(&self) -> bool {
        self.last_update.version == 0
    }

    /// The replica does not exist.
    pub fn dne(&self) -> bool {
        self.history.epoch_created == Epoch(0)
    }

    /// Backfill has not come to its end.
    pub fn is_incomplete(&self) -> bool {
        !self.last_backfill.is_max()
    }

    /// Some entries of the log are not applied.
    pub fn has_missing(&self) -> bool {
        self.last_complete != self.last_update
    }
}

impl Encode for PgInfo {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        envelope(out, 32, 26, |out| {
            self.pgid.pgid.encode(out, f);
            self.last_update.encode(out, f);
            self.last_complete.encode(out, f);
            self.log_tail.encode(out, f);
            // Backfill position in an order of objects that is gone.
            ObjectId::MIN.encode(out, f);
            self.stats.encode(out, f);
            self.history.encode(out, f);
            self.purged_snaps.encode(out, f);
            self.last_epoch_started.encode(out, f);
            self.last_user_version.encode(out, f);
            self.hit_set.encode(out, f);
            self.pgid.shard.encode(out, f);
            self.last_backfill.encode(out, f);
            true.encode(out, f);
            self.last_interval_started.encode(out, f);
        });
    }
}
impl Decode for PgInfo {
    fn decode(r: &mut Reader) -> Result<Self> {
        let (struct_v, mut r) = r.envelope("pg_info_t", 32)?;
        if struct_v < 30 {
            return Err(DecodeError::TooOld { what: "pg_info_t", struct_v, oldest: 30 });
        }
        let mut info = PgInfo::new(r.get::<PgId>()?);
        info.last_update = r.get()?;
        info.last_complete = r.get()?;
        info.log_tail = r.get()?;
        r.get::<ObjectId>()?;
        info.stats = r.get()?;
        info.history = r.get()?;
        info.purged_snaps = r.get()?;
        info.last_epoch_started = r.get()?;
        info.last_user_version = r.get()?;
        info.hit_set = r.get()?;
        info.pgid.shard = r.get()?;
        info.last_backfill = r.get::<ObjectId>()?.detached();
        r.get::<bool>()?;
        info.last_interval_started =
            if struct_v >= 32 { r.get()? } else { info.last_epoch_started };
        Ok(info)
    }
}
impl Dump for PgInfo {
    fn dump(&self) -> Value {
        json!({
            "pgid": shown(self.pgid),
            "last_update": shown(self.last_update),
            "last_complete": shown(self.last_complete),
            "log_tail": shown(self.log_tail),
            "last_user_version": self.last_user_version,
            "last_backfill": shown(&self.last_backfill),
            "purged_snaps": dump_intervals(&self.purged_snaps),
            "history": self.history.dump(),
            "stats": self.stats.dump(),
            "empty": u8::from(self.is_empty()),
            "dne": u8::from(self.dne()),
            "incomplete": u8::from(self.is_incomplete()),
            "last_epoch_started": self.last_epoch_started,
            "hit_set_history": self.hit_set.dump(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histories_learn_the_later() {
        let mut mine = PgHistory {
            last_epoch_started: Epoch(5),
            last_epoch_clean: Epoch(5),
            ..Default::default()
        };
        let theirs = PgHistory {
            last_epoch_started: Epoch(7),
            epoch_created: Epoch(1),
            ..Default::default()
        };
        assert!(mine.merge(&theirs));
        assert_eq!(
            (mine.last_epoch_started, mine.last_epoch_clean, mine.epoch_created),
            (Epoch(7), Epoch(5), Epoch(1))
        );
        assert!(!mine.merge(&theirs));
    }
}
