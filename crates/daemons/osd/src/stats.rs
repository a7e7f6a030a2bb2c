//! What an OSD reports of itself and of the PGs that it leads.

use crate::core::Core;
use client::wall_clock;
use pg::machine::PgStatus;
use pg::{Pg, StatSum};
use types::{
    Epoch, ObjectStatCollection, ObjectStatSum, OsdId, OsdStat, PgShard, PgStat, PgState,
    StoreStatfs,
};

/// Space of the store.
pub fn statfs(core: &Core) -> StoreStatfs {
    let s = core.store.statfs();
    StoreStatfs {
        total: s.total,
        available: s.available,
        internally_reserved: 0,
        allocated: s.data as i64,
        data_stored: s.data as i64,
        internal_metadata: s.metadata as i64,
        ..StoreStatfs::default()
    }
}

/// `osd_stat_t`. `snap_trim_queues` is how many removed snapshots its PGs have not trimmed.
pub fn osd_stat(core: &Core, up_from: Epoch, seq: u64, snap_trim_queues: u64) -> OsdStat {
    OsdStat {
        statfs: statfs(core),
        up_from,
        seq,
        num_pgs: core.num_hosts() as u32,
        num_osds: 1,
        num_per_pool_osds: 1,
        num_per_pool_omap_osds: 1,
        snap_trim_queue_len: i32::try_from(snap_trim_queues).unwrap_or(i32::MAX),
        num_shards_repaired: core.jobs.shards_repaired.get(),
        num_snap_trimming: i32::try_from(core.trimming_groups()).unwrap_or(i32::MAX),
        ..OsdStat::default()
    }
}

/// The OSD of a primary, -1 for none.
fn osd_of(primary: Option<PgShard>) -> OsdId {
    primary.map_or(OsdId(-1), |p| p.osd)
}

/// `pg_stat_t` of a PG. `reads` are those served here, which its log does not know.
pub fn pg_stat(pg: &Pg, reads: &StatSum, seq: u64) -> PgStat {
    let s: PgStatus = pg.status();
    let copies = s.acting.len() as i64;
    let t = &s.stats;
    let count = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    let sum = ObjectStatSum {
        num_bytes: t.num_bytes,
        num_objects: t.num_objects,
        num_object_clones: t.num_object_clones,
        num_object_copies: t.num_objects * copies.max(i64::from(s.up.len() as u32)),
        num_objects_missing_on_primary: s.missing_on_primary as i64,
        num_objects_degraded: s.degraded as i64,
        num_objects_misplaced: s.misplaced as i64,
        num_objects_unfound: s.unfound as i64,
        num_objects_dirty: t.num_objects_dirty,
        num_whiteouts: t.num_whiteouts,
        num_objects_omap: t.num_objects_omap,
        num_omap_bytes: t.num_omap_bytes,
        num_omap_keys: t.num_omap_keys,
        num_rd: t.num_rd + reads.num_rd,
        num_rd_kb: t.num_rd_kb + reads.num_rd_kb,
        num_wr: t.num_wr,
        num_wr_kb: t.num_wr_kb,
        num_objects_recovered: t.num_objects_recovered,
        num_bytes_recovered: t.num_bytes_recovered,
        num_keys_recovered: t.num_keys_recovered,
        num_scrub_errors: count(s.scrub.errors()),
        num_shallow_scrub_errors: count(s.scrub.shallow_errors),
        num_deep_scrub_errors: count(s.scrub.deep_errors),
        num_objects_repaired: count(s.scrub.repaired),
        num_large_omap_objects: count(s.scrub.large_omap_objects),
        ..ObjectStatSum::default()
    };
    PgStat {
        version: s.last_update,
        reported_seq: seq,
        reported_epoch: s.epoch,
        state: PgState(s.state.0),
        last_fresh: wall_clock(),
        last_change: s.times.change,
        last_active: s.times.active,
        last_peered: s.times.peered,
        last_clean: s.times.clean,
        last_unstale: wall_clock(),
        last_undegraded: s.times.undegraded,
        last_fullsized: s.times.fullsized,
        last_became_active: s.times.became_active,
        last_became_peered: s.times.became_peered,
        log_start: s.log_start,
        ondisk_log_start: s.log_start,
        created: s.history.epoch_created,
        last_epoch_clean: s.history.last_epoch_clean,
        last_scrub: s.history.last_scrub,
        last_deep_scrub: s.history.last_deep_scrub,
        last_scrub_stamp: s.history.last_scrub_stamp,
        last_deep_scrub_stamp: s.history.last_deep_scrub_stamp,
        last_clean_scrub_stamp: s.history.last_clean_scrub_stamp,
        stats: ObjectStatCollection { sum },
        log_size: s.log_size as i64,
        ondisk_log_size: s.log_size as i64,
        up_primary: osd_of(s.up_primary),
        acting_primary: osd_of(s.primary),
        up: s.up.slots(),
        acting: s.acting.slots(),
        mapping_epoch: s.history.same_interval_since,
        blocked_by: s.blocked_by.into_iter().collect(),
        purged_snaps: s.purged_snaps,
        snaptrimq_len: u32::try_from(s.snap_trimq_len).unwrap_or(u32::MAX),
        ..PgStat::default()
    }
}
