//! What a copy of a PG says about itself.

use std::cmp::Ordering;

use denc::{BufMut, BytesMut, Decode, DecodeError, Encode, Features, Reader};
use denc_derive::Denc;
use types::{Epoch, Eversion, IntervalSet, ObjectId, PgId, ShardId, SpgId, Utime};

use crate::stats::StatSum;

/// Summary of one OSD's copy of a PG (Ceph: `pg_info_t`).
#[derive(Denc, Clone, PartialEq, Eq, Debug, Default)]
#[denc(version = 4, compat = 4)]
pub struct PgInfo {
    /// The PG.
    pub pgid: PgId,
    /// Position of the copy.
    pub shard: ShardId,
    /// Version of the newest log entry. Zero together with `log_tail` means that the copy is empty.
    pub last_update: Eversion,
    /// Every object is here in the version that the log up to this entry gives it.
    pub last_complete: Eversion,
    /// The version just before the oldest log entry. Never above `last_update`.
    pub log_tail: Eversion,
    /// Largest user-visible version given.
    pub last_user_version: u64,
    /// The epoch in which this copy last took part in an activation. The copy with the largest is
    /// nearest to the truth: nothing was acknowledged in later intervals without raising it on
    /// every acting OSD.
    pub last_epoch_started: Epoch,
    /// First epoch of the interval of that activation.
    pub last_interval_started: Epoch,
    /// Up to which object the copy is filled.
    pub last_backfill: Backfill,
    /// The copy is being removed: it counts for nothing any more. Set before the first object goes,
    /// so that a removal that was interrupted goes on after a restart.
    pub removing: bool,
    /// Removed snapshots with all objects trimmed.
    pub purged_snaps: IntervalSet,
    /// Totals as of `last_update`.
    pub stats: StatSum,
    /// The totals are known to be wrong (a divergent entry was undone); a scrub must count again.
    pub stats_invalid: bool,
    /// What all copies should agree on.
    pub history: PgHistory,
    /// What scrubs found and did.
    pub scrub: ScrubSummary,
    /// First epoch of the last interval that started and in which this copy acted; 0 if it never
    /// did. Unlike `last_interval_started` it does not grow while the copy only follows.
    pub last_interval_acted: Option<Epoch>,
}

/// What scrubs found, and what was repaired (Ceph: parts of `object_stat_sum_t`).
#[derive(Denc, Clone, Copy, PartialEq, Eq, Debug, Default)]
#[denc(version = 1, compat = 1)]
pub struct ScrubSummary {
    /// Errors that the last scrub of either kind found without reading data.
    pub shallow_errors: u64,
    /// Errors in data and omap that the last deep scrub found.
    pub deep_errors: u64,
    /// Copies that were bad and were replaced.
    pub repaired: u64,
    /// Objects with very many omap rows, as of the last deep scrub.
    pub large_omap_objects: u64,
}

impl ScrubSummary {
    /// All errors that are known.
    pub fn errors(&self) -> u64 {
        self.shallow_errors.saturating_add(self.deep_errors)
    }
}

impl PgInfo {
    /// The copy, on its OSD.
    pub fn spgid(&self) -> SpgId {
        SpgId { pgid: self.pgid, shard: self.shard }
    }

    /// Whether the copy holds nothing, not even a log.
    pub fn is_empty(&self) -> bool {
        self.last_update == Eversion::default()
    }

    /// Whether objects are missing beyond what the log tells.
    pub fn is_incomplete(&self) -> bool {
        self.removing || self.last_backfill != Backfill::Complete
    }
}

/// Milestones of a PG's life, the same for all copies once they have talked (Ceph: `pg_history_t`).
#[derive(Denc, Clone, Copy, PartialEq, Eq, Debug, Default)]
#[denc(version = 4, compat = 4)]
pub struct PgHistory {
    /// The epoch in which the PG was created.
    pub epoch_created: Epoch,
    /// The last epoch with an activation that is durable on every acting OSD.
    pub last_epoch_started: Epoch,
    /// First epoch of that interval.
    pub last_interval_started: Epoch,
    /// The last epoch in which the PG was clean. What was before needs not be asked for.
    pub last_epoch_clean: Epoch,
    /// First epoch of that interval.
    pub last_interval_clean: Epoch,
    /// First epoch with the present `up` set.
    pub same_up_since: Epoch,
    /// First epoch of the present interval.
    pub same_interval_since: Epoch,
    /// First epoch with the present primary.
    pub same_primary_since: Epoch,
    /// The epoch in which the PG was last split, or came out of a split. Requests of older epochs
    /// are void: their clients send them again.
    pub last_epoch_split: Epoch,
    /// Version at the last scrub.
    pub last_scrub: Eversion,
    /// Time of the last scrub.
    pub last_scrub_stamp: Utime,
    /// Version at the last deep scrub.
    pub last_deep_scrub: Eversion,
    /// Time of the last deep scrub.
    pub last_deep_scrub_stamp: Utime,
    /// Time of the last scrub that found nothing.
    pub last_clean_scrub_stamp: Utime,
}

impl PgHistory {
    /// An interval begins of which it is not known what it shares with the one before.
    pub(crate) fn begin_interval(&mut self, epoch: Epoch) {
        (self.same_up_since, self.same_primary_since, self.same_interval_since) =
            (epoch, epoch, epoch);
    }

    /// Takes over what another copy knows better. The `same_*_since` come from maps and stay.
    /// Returns whether anything changed.
    pub fn merge(&mut self, other: &PgHistory) -> bool {
        let before = *self;
        if self.epoch_created == Epoch(0) {
            self.epoch_created = other.epoch_created;
        }
        if self.last_epoch_started < other.last_epoch_started {
            self.last_epoch_started = other.last_epoch_started;
            self.last_interval_started = other.last_interval_started;
        }
        if self.last_epoch_clean < other.last_epoch_clean {
            self.last_epoch_clean = other.last_epoch_clean;
            self.last_interval_clean = other.last_interval_clean;
        }
        self.last_epoch_split = self.last_epoch_split.max(other.last_epoch_split);
        self.last_scrub = self.last_scrub.max(other.last_scrub);
        self.last_scrub_stamp = self.last_scrub_stamp.max(other.last_scrub_stamp);
        self.last_deep_scrub = self.last_deep_scrub.max(other.last_deep_scrub);
        self.last_deep_scrub_stamp = self.last_deep_scrub_stamp.max(other.last_deep_scrub_stamp);
        self.last_clean_scrub_stamp = self.last_clean_scrub_stamp.max(other.last_clean_scrub_stamp);
        *self != before
    }
}

/// Up to where a copy is filled (Ceph: `last_backfill`, an `hobject_t` with a maximum that means
/// everything).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Backfill {
    /// The copy has every object, apart from its missing set.
    #[default]
    Complete,
    /// Objects up to this one are present; those after it were never copied. The log alone cannot
    /// fill the rest.
    UpTo(Box<ObjectId>),
    /// Nothing was copied yet.
    Nothing,
}

impl Backfill {
    /// Whether the copy is responsible for this object.
    pub fn covers(&self, oid: &ObjectId) -> bool {
        match self {
            Self::Complete => true,
            Self::UpTo(last) => *oid <= **last,
            Self::Nothing => false,
        }
    }

    /// The boundary after this object and all its clones. Cursors stand only there, so that an
    /// operation, which changes objects of one name, is on one side as a whole.
    pub fn after(oid: &ObjectId) -> Self {
        Self::UpTo(Box::new(oid.head().detached()))
    }
}

impl Ord for Backfill {
    fn cmp(&self, other: &Self) -> Ordering {
        let rank = |b: &Self| match b {
            Self::Nothing => 0,
            Self::UpTo(_) => 1,
            Self::Complete => 2,
        };
        match (self, other) {
            (Self::UpTo(a), Self::UpTo(b)) => a.cmp(b),
            _ => rank(self).cmp(&rank(other)),
        }
    }
}

impl PartialOrd for Backfill {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Encode for Backfill {
    fn encode(&self, out: &mut BytesMut, features: Features) {
        match self {
            Self::Complete => out.put_u8(0),
            Self::UpTo(oid) => {
                out.put_u8(1);
                oid.encode(out, features);
            }
            Self::Nothing => out.put_u8(2),
        }
    }
}

impl Decode for Backfill {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        Ok(match r.get::<u8>()? {
            0 => Self::Complete,
            1 => Self::UpTo(Box::new(r.get()?)),
            2 => Self::Nothing,
            found => return Err(DecodeError::Invalid { what: "Backfill", found: found.into() }),
        })
    }
}
