//! Intervals since the PG was last clean.

use std::cmp::max;
use std::collections::BTreeMap;

use denc_derive::Denc;
use types::{Epoch, PgId, PgShard};

use crate::info::PgHistory;
use crate::map::{MapView, Mapping, PoolView};

/// A range of epochs in which the mapping did not change and writes may have been accepted
/// (Ceph: `PastIntervals::pg_interval_t` with `maybe_went_rw`).
#[derive(Denc, Clone, PartialEq, Eq, Debug)]
pub struct PastInterval {
    /// First epoch.
    pub first: Epoch,
    /// Last epoch.
    pub last: Epoch,
    /// Copies that served. Each of them has its part of every write acknowledged in the interval.
    pub acting: Vec<PgShard>,
}

/// Intervals since the PG was last clean in which writes may have been accepted (Ceph:
/// `PastIntervals`).
///
/// Bounded: an interval is dropped if its acting set contains that of a later one, because
/// survivors that are enough for the later one are enough for it; unless an OSD of the later one
/// lost its data between the two.
#[derive(Denc, Clone, PartialEq, Eq, Debug, Default)]
#[denc(version = 3, compat = 3)]
pub struct PastIntervals {
    /// First epoch that is accounted for, 0 if none is.
    pub first: Epoch,
    /// Last epoch that is accounted for.
    pub last: Epoch,
    /// The intervals, ascending.
    pub intervals: Vec<PastInterval>,
    /// The copies that acted while writes may have been accepted, and until when. Peering does
    /// without those of trimmed intervals; but an object that all others lack may be there.
    pub holders: BTreeMap<PgShard, Epoch>,
}

impl PastIntervals {
    /// Adds the interval that ended before `map`.
    pub fn add(&mut self, interval: PastInterval, may_have_written: bool, map: &dyn MapView) {
        if self.first == Epoch(0) {
            self.first = interval.first;
        }
        self.last = max(self.last, interval.last);
        if !may_have_written {
            return;
        }
        for copy in &interval.acting {
            self.note_holder(*copy, interval.last);
        }
        // An OSD that came with an empty store took part in the later one, and knows nothing of the
        // earlier.
        let knows = |old: &PastInterval, copy: &PgShard| {
            old.acting.contains(copy) && map.lost_at(copy.osd) <= old.first
        };
        self.intervals.retain(|old| !interval.acting.iter().all(|copy| knows(old, copy)));
        self.intervals.push(interval);
    }

    fn note_holder(&mut self, copy: PgShard, until: Epoch) {
        let last = self.holders.entry(copy).or_default();
        *last = max(*last, until);
    }

    /// Forgets everything: the PG is clean.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Forgets what was over before `epoch`, but not which OSDs may have copies.
    pub fn trim(&mut self, epoch: Epoch) {
        self.intervals.retain(|i| i.last >= epoch);
    }

    /// Takes over another copy's knowledge if it reaches further back. `since` is the first epoch
    /// of the present interval: the other may have seen more intervals than have ended here.
    pub fn adopt(&mut self, other: &PastIntervals, since: Epoch, map: &dyn MapView) {
        for (copy, until) in &other.holders {
            self.note_holder(*copy, *until);
        }
        if other.first == Epoch(0)
            || other.first >= since
            || (self.first != Epoch(0) && self.first <= other.first)
        {
            return;
        }
        let holders = std::mem::take(&mut self.holders);
        let own = std::mem::replace(
            self,
            Self { first: other.first, last: other.last, intervals: Vec::new(), holders },
        );
        for i in &other.intervals {
            if i.first < since && (own.first == Epoch(0) || i.first < own.first) {
                self.intervals.push(i.clone());
            }
        }
        for i in own.intervals {
            self.add(i, true, map);
        }
        self.last = if own.last != Epoch(0) { own.last } else { other.last };
    }
}

/// Whether `new` begins a new interval after `old` (Ceph: `PastIntervals::is_new_interval`). A
/// restart of an acting OSD, or of one that may be filled, counts even if no map shows it down: its
/// in-flight work is lost.
pub fn is_new_interval(
    old_map: &dyn MapView,
    new_map: &dyn MapView,
    pgid: PgId,
    old: (&Mapping, &PoolView),
    new: (&Mapping, &PoolView),
) -> bool {
    let ((om, op), (nm, np)) = (old, new);
    op.pg_num != np.pg_num && changes_shape(pgid, op.pg_num, np.pg_num)
        || is_pending(pgid, op) != is_pending(pgid, np)
        || om.up != nm.up
        || om.acting != nm.acting
        || om.primary != nm.primary
        || om.up_primary != nm.up_primary
        || op.min_size != np.min_size
        || op.size != np.size
        || nm.acting.osds().chain(nm.up.osds()).any(|o| old_map.up_from(o) != new_map.up_from(o))
}

/// Whether a PG waits to become part of another one, or to take one in: clients are not served
/// then.
pub fn is_pending(pgid: PgId, pool: &PoolView) -> bool {
    pool.pg_num_pending < pool.pg_num
        && (pgid.seed >= pool.pg_num_pending || takes_in(pgid, pool.pg_num, pool.pg_num_pending))
}

/// Whether a PG takes others in when `pg_num` shrinks.
pub fn takes_in(pgid: PgId, old: u32, new: u32) -> bool {
    (new..old).any(|seed| PgId { seed, ..pgid }.merge_target(old, new) == Some(pgid))
}

/// Whether a PG gives or takes objects when `pg_num` changes.
pub fn changes_shape(pgid: PgId, old: u32, new: u32) -> bool {
    // A child of the split itself had no place before.
    pgid.seed >= old || !pgid.split_children(old, new).is_empty() || takes_in(pgid, old, new)
}

/// Whether writes may have been acknowledged in the interval from `history.same_interval_since` to
/// `last_map`: the primary must have had its `up_thru` recorded before it went active, and
/// `min_size` OSDs must have taken part, and enough for the kind of the pool.
pub fn may_have_written(
    last_map: &dyn MapView,
    mapping: &Mapping,
    pool: &PoolView,
    history: &PgHistory,
) -> bool {
    let first = history.same_interval_since;
    let Some(primary) = mapping.primary else { return false };
    let enough = mapping.acting.len() >= pool.min_size as usize
        && pool.kind.backend().recoverable(&mut mapping.acting.iter().copied());
    if !enough {
        return false;
    }
    (last_map.up_thru(primary.osd) >= first && last_map.up_from(primary.osd) <= first)
        || (history.last_epoch_clean >= first && history.last_epoch_clean <= last_map.epoch())
}

/// The PG exists in this map and has a place.
pub fn place(map: &dyn MapView, pgid: PgId) -> Option<(Mapping, PoolView)> {
    let pool = map.pool(pgid.pool)?;
    if pgid.seed >= pool.pg_num {
        return None;
    }
    Some((map.mapping(pgid), pool))
}
