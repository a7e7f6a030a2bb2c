//! What a PG must know of an OSDMap. The daemon answers from the real map; simulations from a small
//! one.

use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use types::{Epoch, Eversion, IntervalSet, OsdId, PgId, PgShard, PoolId};

use crate::backend::PoolKind;
use crate::members::Members;

/// A map shared by all PGs of a shard.
pub type MapRef = Rc<dyn MapView>;

/// One epoch of the cluster map, seen from a PG. Every answer belongs to the same epoch and never
/// changes.
pub trait MapView {
    /// The epoch of this map.
    fn epoch(&self) -> Epoch;
    /// Whether the OSD exists (it may be down).
    fn exists(&self, osd: OsdId) -> bool;
    /// Whether the OSD is up.
    fn is_up(&self, osd: OsdId) -> bool;
    /// The epoch at which the OSD was last marked up (`osd_info_t::up_from`), 0 if never.
    fn up_from(&self, osd: OsdId) -> Epoch;
    /// The last epoch up to which the OSD is known to have been alive (`osd_info_t::up_thru`).
    fn up_thru(&self, osd: OsdId) -> Epoch;
    /// The epoch at which an operator declared the OSD's data lost (`osd_info_t::lost_at`), 0 if
    /// never.
    fn lost_at(&self, osd: OsdId) -> Epoch;
    /// The pool, or `None` if it does not exist in this epoch.
    fn pool(&self, pool: PoolId) -> Option<PoolView>;
    /// Snapshots of the pool that are deleted and not yet trimmed everywhere
    /// (`OSDMap::removed_snaps_queue`).
    fn removed_snaps(&self, pool: PoolId) -> IntervalSet;
    /// Whether removed snapshots may be trimmed now (flag `nosnaptrim`).
    fn trims_snaps(&self) -> bool {
        true
    }
    /// Whether objects may be copied that some copy lacks (flag `norecover`); those for which
    /// clients wait are.
    fn recovers(&self) -> bool {
        true
    }
    /// Whether copies may be filled that a log cannot fill (flag `nobackfill`).
    fn backfills(&self) -> bool {
        true
    }
    /// Whether PGs that have all their copies may move (flag `norebalance`).
    fn rebalances(&self) -> bool {
        true
    }
    /// Whether the OSD's store is full (`CEPH_OSD_FULL`, the map's `full_ratio`).
    fn is_full(&self, _: OsdId) -> bool {
        false
    }
    /// The pool's own `recovery_priority`.
    fn recovery_priority(&self, _: PoolId) -> i32 {
        0
    }
    /// The epoch in which the OSD's process was last known to be gone for sure
    /// (`osd_xinfo_t::dead_epoch`), 0 if never.
    fn dead_epoch(&self, _: OsdId) -> Epoch {
        Epoch(0)
    }
    /// The pool's own `read_lease_interval`.
    fn read_lease(&self, _: PoolId) -> Option<Duration> {
        None
    }
    /// Where the PG lives (`OSDMap::pg_to_up_acting_osds`).
    fn mapping(&self, pg: PgId) -> Mapping;
}

impl fmt::Debug for dyn MapView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "map {}", self.epoch().0)
    }
}

/// The numbers of a pool that peering needs (Ceph: `pg_pool_t`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PoolView {
    /// How it keeps its objects.
    pub kind: PoolKind,
    /// How many replicas the pool wants.
    pub size: u32,
    /// How many replicas must take part before clients are served.
    pub min_size: u32,
    /// `pg_num`: a PG with a seed that is not below it does not exist.
    pub pg_num: u32,
    /// The epoch in which the pool was created.
    pub created: Epoch,
    /// `pg_num_pending`: PGs from here on, below `pg_num`, are to become part of others.
    pub pg_num_pending: u32,
    /// The last PG that became part of another one.
    pub merged: Option<MergeMeta>,
}

/// A PG became part of another one (Ceph: `pg_merge_meta_t`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MergeMeta {
    /// The PG that went.
    pub source: PgId,
    /// Its last version.
    pub source_version: Eversion,
    /// The last version of the one that took it in.
    pub target_version: Eversion,
}

/// Where a PG lives in one epoch.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Mapping {
    /// What CRUSH chose, in a replicated pool the primary first.
    pub up: Members,
    /// The primary of `up`.
    pub up_primary: Option<PgShard>,
    /// The copies that serve: `up`, or what `pg_temp` says.
    pub acting: Members,
    /// The primary of `acting`.
    pub primary: Option<PgShard>,
}
