//! Options of a PG. The daemon fills them from its configuration; the defaults are Ceph's.

use std::time::Duration;

/// Options of a PG, named as in Ceph.
#[derive(Clone, Debug)]
pub struct PgConf {
    /// `osd_min_pg_log_entries`: entries that no log is trimmed below.
    pub min_pg_log_entries: u64,
    /// `osd_max_pg_log_entries`: entries that no log is kept above.
    pub max_pg_log_entries: u64,
    /// Entries that a clean PG keeps: the host divides `osd_target_pg_log_entries_per_osd` by its
    /// number of PGs. Kept between the two limits above; a degraded PG keeps the maximum, so that
    /// the OSD that is away can be filled from the log.
    pub target_pg_log_entries: u64,
    /// `osd_pg_log_trim_min`: entries that are trimmed together, so that most operations trim
    /// nothing.
    pub pg_log_trim_min: u64,
    /// `osd_pg_log_dups_tracked`: how many versions back, the log's included, a request is
    /// recognised.
    pub pg_log_dups_tracked: u64,
    /// Objects of the PG in recovery at a time, not counting those that clients wait for. How many
    /// an OSD recovers ([`crate::Places`]) is for the host to say.
    pub recovery_max_active: usize,
    /// `osd_async_recovery_min_cost`: writes that a copy must lack to recover beside the PG.
    pub async_recovery_min_cost: u64,
    /// `osd_recovery_max_chunk`: data bytes in one push.
    pub recovery_max_chunk: u64,
    /// `osd_recovery_max_omap_entries_per_chunk`: omap rows in one push.
    pub recovery_max_omap_entries: u64,
    /// `osd_backfill_scan_max`: objects of which a backfill compares the versions at a time.
    pub backfill_scan: usize,
    /// `osd_pg_epoch_persisted_max_stale`: maps after which the epoch row is rewritten even if
    /// nothing changed, so that old maps can be dropped.
    pub epoch_persisted_max_stale: u32,
    /// `osd_scrub_chunk_min`: objects that a scrub compares at a time, at least, as far as there
    /// are so many.
    pub scrub_chunk_min: usize,
    /// `osd_scrub_chunk_max`: and at most; objects of one name are not parted.
    pub scrub_chunk_max: usize,
    /// `osd_scrub_max_preemptions`: how often a scrub lets writes of what it compares go first.
    pub scrub_max_preemptions: u32,
    /// `osd_scrub_auto_repair`: repair what scrubs find.
    pub scrub_auto_repair: bool,
    /// `osd_scrub_auto_repair_num_errors`: unless there are more errors than these.
    pub scrub_auto_repair_num_errors: u64,
    /// `osd_max_object_size`.
    pub max_object_size: u64,
    /// `osd_deep_scrub_large_omap_object_key_threshold`.
    pub large_omap_keys: u64,
    /// `osd_deep_scrub_large_omap_object_value_sum_threshold`.
    pub large_omap_bytes: u64,
    /// `osd_target_transaction_size`: objects that one step of a PG's removal deletes.
    pub removal_batch: usize,
    /// How long a permission to serve reads lasts: `osd_pool_default_read_lease_ratio` of
    /// `osd_heartbeat_grace`. A pool's `read_lease_interval` goes before.
    pub read_lease: Duration,
}

impl Default for PgConf {
    fn default() -> Self {
        Self {
            min_pg_log_entries: 250,
            max_pg_log_entries: 10_000,
            target_pg_log_entries: 3_000,
            pg_log_trim_min: 100,
            pg_log_dups_tracked: 3_000,
            recovery_max_active: 3,
            async_recovery_min_cost: 100,
            recovery_max_chunk: 8 << 20,
            recovery_max_omap_entries: 8_096,
            backfill_scan: 512,
            epoch_persisted_max_stale: 40,
            scrub_chunk_min: 5,
            scrub_chunk_max: 25,
            scrub_max_preemptions: 5,
            scrub_auto_repair: false,
            scrub_auto_repair_num_errors: 5,
            max_object_size: 128 << 20,
            large_omap_keys: 200_000,
            large_omap_bytes: 1 << 30,
            removal_batch: 30,
            read_lease: Duration::from_secs(16),
        }
    }
}
