//! Every option that exists.
//!
//! Three groups: what our daemons read (declared below, each with the daemons that read it; an
//! option stands here only if the code honours it), what the client libraries and tools read (a
//! table of facts in `library_options.tsv`; the monitors keep the values and hand them to those
//! clients), and the log levels `debug_*`.

use crate::ConfError;
use crate::value::{self, Kind, Value};
use std::collections::HashMap;
use std::sync::LazyLock;

/// For whom an option is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Operators set it.
    Basic,
    /// Operators set it after they have measured.
    Advanced,
    /// Tests set it.
    Dev,
}

impl Level {
    /// Ceph's name of the level.
    pub fn name(self) -> &'static str {
        match self {
            Level::Basic => "basic",
            Level::Advanced => "advanced",
            Level::Dev => "dev",
        }
    }
}

/// One option.
#[derive(Clone, Debug)]
pub struct OptionSpec {
    /// Ceph's name.
    pub name: &'static str,
    /// Its type.
    pub kind: Kind,
    /// For whom it is meant.
    pub level: Level,
    /// Default, in text.
    pub default: &'static str,
    /// Smallest allowed value.
    pub min: Option<f64>,
    /// Largest allowed value.
    pub max: Option<f64>,
    /// If not empty, the only allowed values.
    pub allowed: Vec<&'static str>,
    /// Whether a change takes effect in a running daemon.
    pub runtime: bool,
    /// One sentence on what it does.
    pub description: &'static str,
    /// Which daemons read it.
    pub services: Vec<&'static str>,
}

impl OptionSpec {
    /// Reads a value and checks it against bounds and allowed words.
    pub fn parse(&self, text: &str) -> Result<Value, ConfError> {
        let v = value::parse(self.kind, text).map_err(|why| ConfError::Parse {
            name: self.name.into(),
            value: text.into(),
            why,
        })?;
        let range =
            |why: String| ConfError::Range { name: self.name.into(), value: text.into(), why };
        let number = match &v {
            Value::Uint(n) => Some(*n as f64),
            Value::Int(n) => Some(*n as f64),
            Value::Float(n) => Some(*n),
            Value::Bool(_) | Value::Str(_) => None,
        };
        if let Some(n) = number {
            if let Some(min) = self.min.filter(|m| n < *m) {
                return Err(range(format!("the smallest allowed value is {min}")));
            }
            if let Some(max) = self.max.filter(|m| n > *m) {
                return Err(range(format!("the largest allowed value is {max}")));
            }
        }
        if let Value::Str(s) = &v
            && !self.allowed.is_empty()
            && !self.allowed.contains(&s.as_str())
        {
            return Err(range(format!("allowed are {}", self.allowed.join(", "))));
        }
        Ok(v)
    }

    /// The default as a typed value.
    pub fn default_value(&self) -> Value {
        value::parse(self.kind, self.default).unwrap_or_else(|_| match self.kind {
            Kind::Uint | Kind::Size | Kind::Secs | Kind::Millisecs => Value::Uint(0),
            Kind::Int => Value::Int(0),
            Kind::Float => Value::Float(0.0),
            Kind::Bool => Value::Bool(false),
            Kind::Str | Kind::Addr | Kind::Addrvec | Kind::Uuid => Value::Str(self.default.into()),
        })
    }
}

/// The option of that name.
pub fn find(name: &str) -> Option<&'static OptionSpec> {
    TABLE.get(name)
}

/// Options of Ceph's scheduler of operations that are not there, and why: they are refused.
pub const REFUSED: &[(&str, &str)] = &[
    ("osd_mclock_cost_per_byte_usec", NO_COSTS),
    ("osd_mclock_cost_per_byte_usec_hdd", NO_COSTS),
    ("osd_mclock_cost_per_byte_usec_ssd", NO_COSTS),
    ("osd_mclock_cost_per_io_usec", NO_COSTS),
    ("osd_mclock_cost_per_io_usec_hdd", NO_COSTS),
    ("osd_mclock_cost_per_io_usec_ssd", NO_COSTS),
    ("osd_mclock_force_run_benchmark_on_init", NO_BENCHMARK),
    ("osd_mclock_iops_capacity_low_threshold_hdd", NO_LEAST),
    ("osd_mclock_iops_capacity_low_threshold_ssd", NO_LEAST),
    (
        "osd_mclock_scheduler_anticipation_timeout",
        "the scheduler does not wait for operations that may come",
    ),
    ("osd_mclock_skip_benchmark", NO_BENCHMARK),
    ("osd_recovery_max_active_hdd", "osd_recovery_max_active holds whatever the device"),
];
const NO_BENCHMARK: &str =
    "OSDs run no benchmark when they start; what they can do is learned under load";
const NO_COSTS: &str = "what operations cost is learned, or follows from osd_mclock_max_capacity_iops_* and osd_mclock_max_sequential_bandwidth_*";
const NO_LEAST: &str =
    "what an OSD can do is learned while it does all it can: a low figure is one of a slow device";

/// Why an option of Ceph is not there, if that is known.
pub fn why_not(name: &str) -> Option<&'static str> {
    REFUSED.iter().find(|(refused, _)| *refused == name).map(|(_, why)| *why)
}

/// All options, by name.
pub fn all() -> Vec<&'static OptionSpec> {
    let mut v: Vec<_> = TABLE.values().collect();
    v.sort_by_key(|s| s.name);
    v
}

/// `name type level default [min..max | word,word] r|s services: description`, columns separated by
/// `|`. `r`: a change takes effect at once; `s`: at the next start.
const SERVER_OPTIONS: &str = "
fsid|uuid|basic|||s|mon,mgr,osd,client|Identity of the cluster.
mon_host|str|basic|||s|mon,mgr,osd,client|Addresses of the monitors.
keyring|str|advanced|||s|mon,mgr,osd,client|File with the keys.
public_addr|addr|basic|||s|mon,mgr,osd|Address that clients connect to.
auth_cluster_required|str|advanced|cephx|cephx|s|mon,mgr,osd|How daemons prove who they are.
auth_service_required|str|advanced|cephx|cephx|s|mon,mgr,osd|How clients prove who they are to services.
auth_client_required|str|advanced|cephx|cephx|s|client|How services prove who they are to clients.
auth_mon_ticket_ttl|float|advanced|259200|60..|r|mon|Seconds that a ticket for the monitors is valid.
auth_service_ticket_ttl|float|advanced|3600|60..|r|mon|Seconds that a ticket for a service is valid, and how often service keys rotate.
mon_allow_pool_delete|bool|advanced|false||r|mon|Whether pools may be deleted at all.
mon_max_pg_per_osd|uint|advanced|250|1..|r|mon|Largest number of PG replicas per OSD that pool creation may lead to.
mon_max_pool_pg_num|uint|advanced|65536|1..|r|mon|Largest pg_num of a pool.
mon_min_osdmap_epochs|int|advanced|500|1..|r|mon|How many OSD map epochs are kept at least.
mon_op_history_size|uint|advanced|20|0..10000|r|mon|How many answered requests dump_historic_ops of a monitor keeps.
mon_op_history_duration|uint|advanced|600|0..|r|mon|Seconds that dump_historic_ops of a monitor keeps answered requests.
mon_log_max|uint|advanced|10000|1..|r|mon|How many lines of the cluster log are kept.
mon_osd_full_ratio|float|advanced|0.95|0..1|s|mon|Used part of an OSD from which writes stop; read when the cluster is created.
mon_osd_backfillfull_ratio|float|advanced|0.90|0..1|s|mon|Used part of an OSD from which it takes no backfill; read when the cluster is created.
mon_osd_nearfull_ratio|float|advanced|0.85|0..1|s|mon|Used part of an OSD from which there is a warning; read when the cluster is created.
mon_osd_down_out_interval|int|advanced|600|0..|r|mon|Seconds after which a down OSD is marked out; 0 is never.
mon_osd_down_out_subtree_limit|str|advanced|rack||r|mon|Do not mark OSDs out while everything in their subtree of this type is down; empty for no limit.
mon_osd_adjust_heartbeat_grace|bool|advanced|true||r|mon|Wait longer than osd_heartbeat_grace for OSDs that were marked down before and lived.
mon_osd_adjust_down_out_interval|bool|advanced|true||r|mon|Wait longer than mon_osd_down_out_interval for OSDs that were marked down before and lived.
mon_osd_laggy_halflife|int|advanced|3600|1..|r|mon|Seconds after which half as much is made of an OSD's having been slow.
mon_osd_laggy_weight|float|advanced|0.3|0..1|r|mon|How much one boot counts in the averages of how often, and how long, an OSD was only slow.
mon_osd_laggy_max_interval|int|advanced|300|0..|r|mon|Longest time in seconds that counts in the average of how long an OSD was slow; 0 is no limit.
mon_osd_min_in_ratio|float|advanced|0.75|0..1|r|mon|No OSD is marked out automatically below this part of OSDs that are in.
mon_osd_report_timeout|int|advanced|900|10..|r|mon|Seconds without a beacon after which an OSD is marked down.
mon_osd_blocklist_default_expire|float|advanced|3600|0..|r|mon|Seconds that a blocklist entry lasts if no duration is given.
mon_auth_validate_all_caps|bool|advanced|true||r|mon|Refuse malformed caps of OSDs, managers and metadata servers too, not of monitors only.
mon_warn_pg_not_scrubbed_ratio|float|advanced|0.5|0..|r|mgr|Warn about PGs whose scrub is late by this part of osd_scrub_max_interval; 0 for never.
mon_warn_pg_not_deep_scrubbed_ratio|float|advanced|0.75|0..|r|mgr|Warn about PGs whose deep scrub is late by this part of osd_deep_scrub_interval; 0 for never.
mon_osd_warn_num_repaired|uint|advanced|10|0..|r|mgr|Warn about OSDs on which more copies than these were bad and were repaired.
mon_warn_on_slow_ping_time|float|advanced|0|0..|r|mgr,osd|Warn about pings between OSDs that take longer than this many milliseconds on average; 0 for mon_warn_on_slow_ping_ratio.
mon_warn_on_slow_ping_ratio|float|advanced|0.05|0..|r|mgr,osd|Warn about pings between OSDs that take longer than this part of osd_heartbeat_grace on average; 0 for never.
mon_warn_on_misplaced|bool|advanced|false||r|mon|Warn about objects that are on other OSDs than they should be.
mon_data_avail_warn|int|advanced|30|0..100|r|mon|Percent of free space below a monitor's data from which on MON_DISK_LOW is raised.
mon_data_avail_crit|int|advanced|5|0..100|r|mon|Percent of free space below a monitor's data from which on MON_DISK_CRIT is raised.
mon_warn_on_older_version|bool|advanced|true||r|mon|Warn about daemons of an older version than others.
mon_warn_older_version_delay|secs|advanced|604800|0..|r|mon|How long daemons may be of an older version than others before that is warned about.
mon_pool_quota_warn_threshold|uint|advanced|0|0..100|r|mon|Percent of a quota from which on a pool is warned about; 0 for never.
mon_warn_on_pool_no_app|bool|dev|true||r|mon|Warn about pools without an application tag.
mon_warn_on_pool_no_redundancy|bool|advanced|true||r|mon|Warn about pools of size 1.
mon_warn_on_pool_pg_num_not_power_of_two|bool|dev|true||r|mon|Warn about pools whose pg_num is not a power of two.
mon_warn_on_osd_down_out_interval_zero|bool|advanced|true||r|mon|Warn when down OSDs are never marked out.
mon_warn_on_legacy_crush_tunables|bool|advanced|true||r|mon|Warn about obsolete CRUSH tunables.
mon_max_snap_prune_per_epoch|uint|advanced|100|1..|r|mon|How many removed snapshots per pool are pruned from the map in one epoch.
mon_config_key_max_entry_size|size|advanced|64K|0..|r|mon|Largest value of the configuration-key store.
mon_allow_pool_size_one|bool|advanced|false||r|mon|Whether pools may keep a single copy.
mon_max_osd|int|advanced|10000|1..|r|mon|Largest number of an OSD.
mon_osd_min_down_reporters|uint|advanced|2|1..|r|mon|How many OSDs, in different subtrees, must report an OSD before it is marked down.
mon_osd_reporter_subtree_level|str|advanced|host||r|mon|CRUSH level on which reporters of a failure are counted once.
mon_osd_min_up_ratio|float|advanced|0.3|0..1|r|mon|No OSD is marked down automatically below this part of OSDs that are up.
mon_osd_auto_mark_in|bool|advanced|false||r|mon|Mark every OSD in that boots.
mon_osd_auto_mark_auto_out_in|bool|advanced|true||r|mon|Mark an OSD in that boots and was marked out automatically.
mon_osd_auto_mark_new_in|bool|advanced|true||r|mon|Mark new OSDs in.
mon_tick_interval|int|advanced|5|1..|r|mon|Seconds between two rounds of the monitor's own work.
mon_clock_drift_allowed|float|advanced|0.05|0..|r|mon|Seconds that the monitors' clocks may be apart.
mon_clock_drift_warn_backoff|float|advanced|5|1..|r|mon|Base of the growing pauses, in seconds, between warnings in the cluster log about one monitor's clock.
clock_offset|float|dev|0||r|mon|Seconds that are added to what the system's clock says.
mon_mgr_beacon_grace|secs|advanced|30|1..|r|mon|Seconds without a beacon after which the manager is replaced.
mon_mgr_blocklist_interval|float|dev|86400|3600..|r|mon|Seconds for which OSDs refuse a manager that was replaced.
mon_mds_blocklist_interval|float|dev|86400|3600..|r|mon|Seconds for which OSDs refuse a metadata server that lost its rank.
mds_beacon_grace|float|advanced|15||r|mon,mds|Seconds without a beacon after which a metadata server is replaced.
mds_beacon_interval|float|advanced|4||r|mon,mds|Seconds between two beacons of a metadata server.
mds_join_fs|str|basic|||r|mds|The file system that a metadata server prefers.
mds_cache_memory_limit|size|basic|4G|64M..|r|mds|Bytes that a metadata server may hold for clients: inodes, names, capabilities, sessions and requests.
mds_cache_reservation|float|advanced|0.05|0..0.9|r|mds|The part of mds_cache_memory_limit that a metadata server keeps free.
mds_health_cache_threshold|float|advanced|1.5|1..|r|mds|MDS_CACHE_OVERSIZED above so many times mds_cache_memory_limit.
mds_health_summarize_threshold|uint|advanced|10|0..|r|mds|Health names so many clients one by one; more are counted.
mds_recall_max_caps|size|advanced|30000|1..|r|mds|Capabilities that a client is asked to give back at once, at most.
mds_recall_max_decay_threshold|size|advanced|128K|1..|r|mds|Capabilities that a client is asked for within mds_recall_max_decay_rate, about.
mds_recall_max_decay_rate|float|advanced|1.5|0.1..|r|mds|Half-life in seconds of what clients were asked for.
mds_recall_global_max_decay_threshold|size|advanced|128K|1..|r|mds|Capabilities that all clients together are asked for within mds_recall_max_decay_rate, about.
mds_recall_warning_threshold|size|advanced|256K|1..|r|mds|MDS_CLIENT_RECALL for a client that was asked for so many capabilities and did not give them back.
mds_recall_warning_decay_rate|float|advanced|60|1..|r|mds|Half-life in seconds of what a client was asked for and did not give back.
mds_min_caps_working_set|uint|advanced|10000|0..|r|mds|A client with no more capabilities is not complained of by mds_recall_warning_threshold.
mds_max_caps_per_client|uint|advanced|1M|1..|r|mds|A client with more capabilities is asked for some although there is memory.
mds_min_caps_per_client|uint|advanced|100|0..|r|mds|A client with no more capabilities is not asked for any.
mds_session_cache_liveness_magnitude|size|advanced|10|0..63|r|mds|A client that used less than its capabilities divided by this power of two is asked for some.
mds_session_cache_liveness_decay_rate|float|advanced|300|1..|r|mds|Half-life in seconds of how often a client used its capabilities.
mds_max_completed_requests|uint|dev|100000|100..|r|mds|Changes of a client wait when so many are done of which it does not say that it has the answers.
mds_early_reply|bool|advanced|true||r|mds|Whether a client hears of a change that it made before it is durable.
mds_export_ephemeral_distributed|bool|advanced|true||r|mds|Whether ceph.dir.pin.distributed of a directory spreads those made in it over ranks.
mds_export_ephemeral_random|bool|advanced|true||r|mds|Whether ceph.dir.pin.random of a directory has a part of those made below it go to any rank.
mds_export_ephemeral_random_max|float|advanced|0.01|0..1|r|mds|The largest part that ceph.dir.pin.random may say.
mds_replay_interval|float|advanced|1|0.01..3600|r|mds|Seconds between two looks of a metadata server in standby-replay at the log that it follows.
mds_reconnect_timeout|float|advanced|45|1..|r|mds|Seconds that clients have to come back to the successor of a metadata server.
mds_max_xattr_pairs_size|size|advanced|64K|0..|r|mds|Bytes of all extended attributes of a file or directory.
mds_enforce_unique_name|bool|advanced|true||r|mon|A metadata server that starts takes the place of an earlier one of its name.
mon_mgr_mkfs_grace|int|dev|120|0..|r|mon|Seconds for which a new cluster may be without a manager.
mon_mgr_inactive_grace|int|advanced|60|0..|r|mon|Seconds without a manager after which that is an error.
osd_map_message_max|int|advanced|40|1..|r|mon,osd|How many map epochs one message carries at most.
osd_map_message_max_bytes|size|advanced|10M|4K..|r|mon,osd|How many bytes of maps one message carries at most.
osd_pool_default_size|uint|advanced|3|1..10|r|mon|Replicas of a new pool.
osd_pool_default_min_size|uint|advanced|0|0..255|r|mon|min_size of a new pool; 0 is size - size / 2.
osd_pool_default_pg_num|uint|advanced|32|1..65536|r|mon|pg_num of a new pool.
osd_pool_default_pgp_num|uint|advanced|0|0..65536|r|mon|pgp_num of a new pool; 0 is pg_num.
osd_pool_default_crush_rule|int|advanced|-1|-1..255|r|mon|CRUSH rule of a new replicated pool; -1 is the lowest rule.
osd_pool_default_erasure_code_profile|str|advanced|plugin=jerasure technique=reed_sol_van k=2 m=2||r|mon|What erasure code profiles have that do not say otherwise: words of the form name=value.
osd_pool_erasure_code_stripe_unit|size|advanced|4K|4K..1G|r|mon|Bytes of a stripe on one shard, in pools whose profile does not say it.
osd_pool_default_ec_fast_read|bool|advanced|false||r|mon|New erasure-coded pools have fast_read.
osd_pool_default_type|str|advanced|replicated|replicated,erasure|r|mon|Type of a new pool.
osd_pool_default_pg_autoscale_mode|str|advanced|off|on,off,warn|r|mon|pg_autoscale_mode of a new pool.
mon_target_pg_per_osd|uint|advanced|100|1..|r|mgr|PGs that an OSD should have, with all copies, when pools are proposed another pg_num.
mgr/balancer/active|bool|basic|false||r|mgr|The balancer acts by itself.
mgr/balancer/mode|str|basic|upmap|none,crush-compat,upmap,read,upmap-read|r|mgr|How the balancer evens out: copies, which of them lead, or both; crush-compat is not there.
mgr/balancer/sleep_interval|secs|advanced|60|1..|r|mgr|How often the balancer acts by itself.
mgr/balancer/upmap_max_optimizations|uint|advanced|10|1..10000|r|mgr|Upmaps or primaries that the balancer changes at once, at most.
mgr/balancer/upmap_max_deviation|uint|advanced|5|1..|r|mgr|PGs of a pool that an OSD may have more or less than its part.
mgr/balancer/upmap_metric|str|advanced|pgs|pgs,bytes|r|mgr|What the balancer evens out: the PGs of each pool, or the bytes of all pools of a rule together.
mgr/balancer/upmap_max_deviation_bytes|float|advanced|0.05|0.001..1|r|mgr|By which part of what an OSD should have it may have more or less, when bytes are evened out.
mgr/balancer/begin_time|str|advanced|0000||r|mgr|Time of day in UTC (HHMM) from which on the balancer acts by itself.
mgr/balancer/end_time|str|advanced|2400||r|mgr|Time of day in UTC (HHMM) until which the balancer acts by itself.
mgr/balancer/begin_weekday|uint|advanced|0|0..7|r|mgr|Day of the week (0 is Sunday) from which on the balancer acts by itself.
mgr/balancer/end_weekday|uint|advanced|7|0..7|r|mgr|Day of the week before which the balancer acts by itself.
mgr/balancer/pool_ids|str|advanced|||r|mgr|Numbers of the pools, with commas between them, that the balancer is limited to; empty is all.
mon_reweight_min_pgs_per_osd|uint|advanced|10|1..|r|mgr|PGs that an OSD must have on average before osd reweight-by-pg changes weights.
mon_reweight_min_bytes_per_osd|size|advanced|100M|0..|r|mgr|Bytes that an OSD must have on average before osd reweight-by-utilization changes weights.
mon_reweight_max_osds|uint|advanced|4|1..|r|mgr|OSDs whose weights osd reweight-by-* changes, at most.
mon_reweight_max_change|float|advanced|0.05|0..1|r|mgr|By how much osd reweight-by-* changes a weight, at most.
mgr/pg_autoscaler/sleep_interval|secs|advanced|60|1..|r|mgr|How often pools whose pg_autoscale_mode is on are looked at.
mgr/pg_autoscaler/threshold|float|advanced|3|1..|r|mgr|By which factor pg_num must be wrong before another one is proposed.
mon_osd_max_creating_pgs|uint|advanced|1024|1..|r|mon|PGs that a pool may get at a time while others are being made.
target_max_misplaced_ratio|float|basic|0.05|0..1|r|mon,mgr|Fraction of objects that may be on other OSDs than they should while pgp_num changes.
osd_pool_default_flag_hashpspool|bool|advanced|true||r|mon|Spread the PGs of pools differently.
osd_pool_default_flag_nodelete|bool|advanced|false||r|mon|New pools may not be deleted.
osd_pool_default_flag_nopgchange|bool|advanced|false||r|mon|The pg_num of new pools may not change.
osd_pool_default_flag_nosizechange|bool|advanced|false||r|mon|The size of new pools may not change.
osd_crush_chooseleaf_type|int|dev|1|0..|s|mon|Bucket type over which replicas of the first rule are spread; read when the cluster is created.
crush_location|str|advanced|||s|client|Place in the CRUSH map, for reads from near replicas.
metrics_addr|str|basic|||r|osd,mon,mds|ADDRESS:PORT at which a daemon serves its own counters for Prometheus, at /metrics; empty serves none. Each daemon of a host needs a port of its own.
mgr_stats_period|int|basic|5|1..|r|mgr|Seconds between the statistics that daemons report; the manager tells them.
mgr_tick_period|secs|advanced|2|1..|r|mgr|Seconds between the digests that the manager sends to the monitors.
mgr_service_beacon_grace|secs|advanced|60|1..|r|mgr|Seconds without a report after which a daemon that registered as a service is forgotten.
mgr/crash/warn_recent_interval|secs|advanced|1209600|0..|r|mgr|Seconds for which a crash that was not archived is warned about.
mgr/crash/retain_interval|secs|advanced|31536000|0..|r|mgr|Seconds after which reports of crashes are removed.
mgr/progress/enabled|bool|advanced|true||r|mgr|Show what goes on in `ceph -s` and `ceph progress`.
mgr/telemetry/channel_basic|bool|advanced|true||r|mgr|Reports have sizes, versions and settings of the cluster.
mgr/telemetry/channel_crash|bool|advanced|true||r|mgr|Reports have crashes of daemons, without hosts.
mgr/telemetry/channel_device|bool|advanced|true||r|mgr|Reports have health of devices, of which none is collected.
mgr/telemetry/channel_ident|bool|advanced|false||r|mgr|Reports have what an operator says of the cluster.
mgr/telemetry/channel_perf|bool|advanced|false||r|mgr|Reports have counters.
mgr/telemetry/contact|str|advanced|||r|mgr|Whom reports name as contact, in the channel ident.
mgr/telemetry/description|str|advanced|||r|mgr|What reports say of the cluster, in the channel ident.
mgr/telemetry/organization|str|advanced|||r|mgr|Whose cluster it is, in the channel ident.
mgr/prometheus/server_addr|str|basic|::||r|mgr|Where the manager's metrics are served, once `ceph mgr module enable prometheus` was given; :: is everywhere.
mgr/prometheus/server_port|uint|basic|9283|1..65535|r|mgr|Port of the manager's metrics.
mgr/prometheus/rbd_stats_pools|str|advanced|||r|mgr|Pools and namespaces (POOL or POOL/NAMESPACE, with commas between them, or *) whose images have metrics.
mgr/prometheus/qos_tenants|uint|advanced|100|0..10000|r|mgr|Tenants that have metrics under their names; others are counted together.
osd_op_queue|str|advanced|mclock_scheduler|wpq,mclock_scheduler,fifo|s|osd|How operations are scheduled; fifo, which does not, is there for comparison.
osd_qos_tenant|str|advanced|pool|pool,image,client|r|osd|For whom a client's request counts if no specification names its tenant: its pool (a namespace is one of its own), its image, or the client.
osd_qos_max_in_flight|uint|advanced|0|0..65536|r|osd|Requests that are carried out at a time; others wait in the scheduler. 0 finds the least that keeps the store busy.
osd_debug_device_bandwidth|size|dev|0|0..|r|osd|For tests: bytes that pass the device in a second, at most; 0 for any number.
osd_debug_device_delay|float|dev|0|0..10|r|osd|For tests: seconds that each request of the device takes longer, one after the other.
osd_debug_device_read_errors|uint|dev|0|0..|r|osd|For tests: one in so many reads of objects' data fails, on average; 0 for none.
osd_debug_device_write_errors|uint|dev|0|0..|r|osd|For tests: one in so many writes and flushes of the device fails, on average, which ends the OSD; 0 for none.
osd_op_queue_cut_off|str|advanced|high|low,high|s|osd|From which priority on the WPQ scheduler serves strictly.
osd_mclock_profile|str|advanced|balanced|balanced,high_recovery_ops,high_client_ops,auto,custom|r|osd|How the mClock scheduler divides an OSD between clients and background work; auto gives background work what osd_mclock_auto_latency leaves.
osd_mclock_allocations|str|advanced|reef|reef,quincy,quincy_study|r|osd|The release whose allocations the profiles have: Ceph 18, 16.2 and the first 17.2, or the published study of Quincy.
osd_mclock_auto_latency|float|advanced|0.02|0.0001..3600|r|osd|Seconds that operations of clients may take on an OSD, from their arrival to the answer (profile auto).
osd_mclock_auto_percentile|float|advanced|95|1..99.9|r|osd|Percent of the operations of clients that are to take no longer than osd_mclock_auto_latency (profile auto).
osd_mclock_movement_latency|float|advanced|0|0..3600|r|osd|Seconds that 99 of 100 operations of clients may take on an OSD, or recovery gets less; 0 for no bound. The monitors set it to the ceiling of a movement job that is open.
osd_mclock_override_recovery_settings|bool|advanced|false||r|osd|Honour osd_max_backfills, osd_recovery_max_active, osd_snap_trim_sleep and osd_scrub_sleep with the mClock scheduler, too; it ignores them otherwise.
osd_mclock_max_capacity_iops_ssd|float|basic|21500|1..|r|osd|Random 4 KiB writes per second that a flash device does.
osd_mclock_max_sequential_bandwidth_ssd|size|basic|1200M|1..|r|osd|Sequential bytes per second that a flash device does.
osd_mclock_max_capacity_iops_hdd|float|basic|315|1..|r|osd|Random 4 KiB writes per second that a rotational device does.
osd_mclock_max_sequential_bandwidth_hdd|size|basic|150M|1..|r|osd|Sequential bytes per second that a rotational device does.
osd_mclock_iops_capacity_threshold_ssd|float|basic|80000|1..|r|osd|What was learned of an OSD on a flash device is not believed if it is more than this.
osd_mclock_iops_capacity_threshold_hdd|float|basic|500|1..|r|osd|What was learned of an OSD on a rotational device is not believed if it is more than this.
osd_mclock_scheduler_client_res|float|advanced|0|0..1|r|osd|Part of the OSD reserved for clients (profile custom).
osd_mclock_scheduler_client_wgt|uint|advanced|1|1..|r|osd|Weight of clients (profile custom).
osd_mclock_scheduler_client_lim|float|advanced|0|0..1|r|osd|Largest part of the OSD for clients, 0 is no limit (profile custom).
osd_mclock_scheduler_background_recovery_res|float|advanced|0|0..1|r|osd|Part of the OSD reserved for recovery (profile custom).
osd_mclock_scheduler_background_recovery_wgt|uint|advanced|1|1..|r|osd|Weight of recovery (profile custom).
osd_mclock_scheduler_background_recovery_lim|float|advanced|0|0..1|r|osd|Largest part of the OSD for recovery, 0 is no limit (profile custom).
osd_mclock_scheduler_background_best_effort_res|float|advanced|0|0..1|r|osd|Part of the OSD reserved for best-effort work (profile custom).
osd_mclock_scheduler_background_best_effort_wgt|uint|advanced|1|1..|r|osd|Weight of best-effort work (profile custom).
osd_mclock_scheduler_background_best_effort_lim|float|advanced|0|0..1|r|osd|Largest part of the OSD for best-effort work, 0 is no limit (profile custom).
osd_client_op_priority|uint|advanced|63|1..63|r|osd|Priority of client operations in WPQ.
osd_recovery_op_priority|uint|advanced|3|1..63|r|osd|Priority of recovery in WPQ.
osd_snap_trim_priority|uint|advanced|5|1..63|r|osd|Priority of snapshot trimming in WPQ.
osd_scrub_priority|uint|advanced|5|1..63|r|osd|Priority of scrubs in WPQ.
osd_max_object_size|size|advanced|128M|1..4294967295|r|osd|Largest size of an object.
osd_max_object_name_len|uint|advanced|2048|1..8192|r|osd|Longest name of an object, in bytes.
osd_max_object_namespace_len|uint|advanced|256|0..4096|r|osd|Longest namespace, in bytes.
osd_max_attr_name_len|uint|advanced|100|1..4096|r|osd|Longest name of an attribute, in bytes.
osd_max_attr_size|uint|advanced|0|0..|r|osd|Largest attribute in bytes; 0 is no limit.
osd_max_write_size|size|advanced|90|4..1024|r|osd|Largest write operation, in MiB.
osd_max_omap_entries_per_request|uint|advanced|1024|1..|r|osd|How many omap rows one operation returns at most.
osd_max_omap_bytes_per_request|size|advanced|1G|4K..|r|osd|How many bytes of omap one operation returns at most.
osd_class_load_list|str|advanced|cephfs hello journal lock log numops otp rbd refcount rgw rgw_gc timeindex user version cas cmpomap queue 2pc_queue fifo||r|osd|Object classes that clients can call; * for all.
osd_class_default_list|str|advanced|cephfs hello journal lock log numops otp rbd refcount rgw rgw_gc timeindex user version cas cmpomap queue 2pc_queue fifo||r|osd|Object classes that a client with `x` can call without being granted them by name; * for all.
osd_max_pgls|uint|advanced|1024|1..|r|osd|How many objects one listing operation returns at most.
osd_max_write_op_reply_len|size|advanced|32|0..|r|osd|Longest result of an operation that also writes, in bytes.
osd_memory_target|size|basic|420M|256M..|r|osd|Memory that one OSD may use; what its other parts leave is divided between the caches of its store.
osd_min_pg_log_entries|uint|dev|250|1..|r|osd|Entries to which a PG's log is trimmed when it is clean.
osd_max_pg_log_entries|uint|dev|10000|1..|r|osd|Largest number of entries in a PG's log.
osd_pg_log_trim_min|uint|dev|100|1..|r|osd|Fewest entries that are trimmed at once.
osd_pg_log_dups_tracked|uint|dev|3000|0..|r|osd|How far back repeated requests are recognised, in operations.
osd_snap_trim_sleep|float|advanced|0|0..|r|osd|Seconds between two objects of a snapshot that is being trimmed.
osd_snap_trim_cost|size|advanced|1M|0..|r|osd|What trimming one clone costs in the scheduler, in bytes.
osd_max_trimming_pgs|uint|advanced|2|1..|r|osd|PGs of one OSD that trim at the same time.
osd_pg_max_concurrent_snap_trims|uint|advanced|2|1..|r|osd|Objects of one PG that are trimmed at the same time.
osd_client_watch_timeout|uint|dev|30|1..4294967295|r|osd|Seconds of silence after which a watch ends, unless its client gave a time of its own.
osd_default_notify_timeout|uint|advanced|30|1..4294967295|r|osd|Seconds that a notification waits for its watchers, unless its sender gave a time of its own.
osd_op_complaint_time|float|advanced|30|0..|r|osd|Seconds after which an operation counts as slow.
osd_op_history_size|uint|advanced|20|0..10000|r|osd|How many completed operations dump_historic_ops keeps.
osd_op_history_duration|uint|advanced|600|0..|r|osd|Seconds that dump_historic_ops keeps completed operations.
osd_recovery_max_omap_entries_per_chunk|uint|advanced|8096|1..|r|osd|Omap rows of an object that one recovery message carries.
osd_pg_object_context_cache_count|uint|advanced|64|1..|r|osd|Object contexts that a group keeps without use.
osd_op_history_slow_op_size|uint|advanced|20|0..10000|r|osd|How many slow operations dump_historic_slow_ops keeps.
osd_op_history_slow_op_threshold|float|advanced|10|0..|r|osd|Seconds from which an operation is kept among the slow ones.
osd_recovery_max_active|uint|advanced|0|0..|r|osd|Objects that one OSD recovers at the same time, over all PGs that it leads; 0 is osd_recovery_max_active_ssd. The mClock scheduler ignores it.
osd_recovery_max_active_ssd|uint|advanced|10|1..|r|osd|The same, if osd_recovery_max_active is 0.
osd_max_scrubs|uint|advanced|1|1..|r|osd|Scrubs that one OSD takes part in at the same time, for its own PGs and those of others together.
osd_scrub_overdue_factor|float|advanced|3|1..100|r|osd|Up to how many times osd_max_scrubs an OSD takes part in while scrubs are overdue, the more the later they are; 1 for never more.
osd_scrub_min_interval|float|advanced|86400|0..|r|osd|Seconds from a scrub to the next, at least. A pool may say otherwise (scrub_min_interval).
osd_scrub_max_interval|float|advanced|604800|0..|r|osd,mgr|Seconds after which a scrub begins whatever the hour; 0 for never. A pool may say otherwise (scrub_max_interval).
osd_deep_scrub_interval|float|advanced|604800|0..|r|osd,mgr|Seconds after which a scrub reads data again. A pool may say otherwise (deep_scrub_interval).
osd_scrub_interval_randomize_ratio|float|advanced|0.5|0..|r|osd|By so much of the least interval scrubs are put off at random, so that they do not all come together.
osd_deep_scrub_randomize_ratio|float|advanced|0.15|0..1|r|osd|So often a scrub reads data although its time has not come.
osd_scrub_begin_hour|uint|advanced|0|0..23|r|osd|The hour of the day from which scrubs begin. If it is the same as the end, they begin at any hour.
osd_scrub_end_hour|uint|advanced|0|0..23|r|osd|The hour of the day from which scrubs no longer begin.
osd_scrub_begin_week_day|uint|advanced|0|0..6|r|osd|The day of the week from which scrubs begin, 0 for Sunday. If it is the same as the end, they begin on any day.
osd_scrub_end_week_day|uint|advanced|0|0..6|r|osd|The day of the week from which scrubs no longer begin.
osd_scrub_sleep|float|advanced|0|0..|r|osd|Seconds between two steps of a scrub.
osd_scrub_chunk_min|uint|advanced|5|1..|r|osd|Objects that a scrub compares at a time, at least.
osd_scrub_chunk_max|uint|advanced|25|1..|r|osd|Objects that a scrub compares at a time, at most.
osd_scrub_max_preemptions|uint|advanced|5|0..30|r|osd|How often a scrub lets writes of the objects that it compares go first.
osd_scrub_auto_repair|bool|advanced|false||r|osd|Repair what a scrub finds.
osd_scrub_auto_repair_num_errors|uint|advanced|5|0..|r|osd|Unless it finds more errors than these.
osd_deep_scrub_stride|size|advanced|512K|4096..|r|osd|Bytes that a deep scrub reads at a time.
osd_deep_scrub_keys|uint|advanced|1024|1..|r|osd|Omap rows that a deep scrub reads at a time.
osd_deep_scrub_large_omap_object_key_threshold|uint|advanced|200000|0..|r|osd|A deep scrub warns of objects with more omap rows than these.
osd_deep_scrub_large_omap_object_value_sum_threshold|size|advanced|1G|0..|r|osd|A deep scrub warns of objects with more bytes of omap than these.
osd_pause_pg_deletion|bool|advanced|false||r|osd|Copies of PGs that nobody needs, those of deleted pools too, stay where they are until this is false again.
osd_max_backfills|uint|advanced|1|1..|r|osd|PGs whose copies an OSD fills elsewhere at the same time, PGs whose copies are filled on it, and PGs that are read on it for that.
osd_ec_stock_refusals|bool|advanced|false||r|osd|Refuse in erasure-coded pools with EOPNOTSUPP what Ceph refuses there: omap, and without allow_ec_overwrites changes other than appends of whole stripes.
osd_async_recovery_min_cost|uint|advanced|100|0..|r|osd|Writes that a copy must lack to recover beside its PG, so that clients do not wait for it.
osd_backfill_scan_max|uint|advanced|512|1..65536|r|osd|Objects whose versions a backfill compares at a time.
osd_recovery_max_chunk|size|advanced|8M|64K..64M|r|osd|Bytes of an object that one recovery message carries.
osd_copyfrom_max_chunk|size|advanced|8M|64K..64M|r|osd|Bytes that copy-from reads at a time.
osd_heartbeat_interval|int|dev|6|1..60|r|osd|Seconds between two pings of a peer.
osd_heartbeat_grace|int|advanced|20|1..|r|mon,mgr,osd|Seconds without an answer after which a peer is reported.
osd_heartbeat_min_healthy_ratio|float|advanced|0.33|0..1|r|osd|An OSD that was marked down boots again when this part of its peers answer pings.
osd_heartbeat_stale|int|advanced|600|1..|r|osd|Seconds after which a ping time says nothing any more.
debug_heartbeat_testing_span|int|dev|0|0..|r|osd|Seconds that count as a minute in ping times, for tests; 0 for 60.
osd_pool_default_read_lease_ratio|float|dev|0.8|0.001..|r|osd|Part of osd_heartbeat_grace for which replicas let a primary serve reads; a pool's read_lease_interval goes before.
osd_fast_fail_on_connection_refused|bool|advanced|true||r|osd|Report an OSD at once whose address refuses connections.
osd_beacon_report_interval|int|advanced|300|1..|r|osd|Seconds between two beacons to the monitors.
osd_mon_report_interval|int|advanced|5|1..|r|osd|Seconds between two reports to the monitors.
osd_failsafe_full_ratio|float|advanced|0.97|0..1|r|mon,osd|Used part from which an OSD refuses writes whatever the map says.
";

fn parse_table() -> HashMap<&'static str, OptionSpec> {
    let mut table = HashMap::new();
    for line in include_str!("library_options.tsv").lines().filter(|l| !l.starts_with('#')) {
        let c: Vec<&str> = line.split('\t').collect();
        let [name, kind, level, default, min, max, allowed, when] = c[..] else {
            panic!("library_options.tsv: {line:?}")
        };
        table.insert(
            name,
            OptionSpec {
                name,
                kind: Kind::by_name(kind).unwrap_or_else(|| panic!("library_options.tsv: type of {line:?}")),
                level: level_by_name(level),
                default,
                min: min.parse().ok(),
                max: max.parse().ok(),
                allowed: allowed.split(',').filter(|w| !w.is_empty()).collect(),
                runtime: when != "s",
                description: "Read by the client libraries and tools; the cluster stores it and hands it to them.",
                services: vec!["client"],
            },
        );
    }
    for (name, default) in SUBSYSTEMS {
        table.insert(
            name,
            OptionSpec {
                name,
                kind: Kind::Str,
                level: Level::Dev,
                default,
                min: None,
                max: None,
                allowed: vec![],
                runtime: true,
                description: "Log level and in-memory level of the subsystem, as LOG or LOG/MEMORY, 0 to 20.",
                services: vec!["client"],
            },
        );
    }
    for line in SERVER_OPTIONS.lines().filter(|l| !l.is_empty()) {
        let c: Vec<&str> = line.split('|').collect();
        let [name, kind, level, default, bounds, when, services, description] = c[..] else {
            panic!("option table: {line:?}")
        };
        let (min, max, allowed) = match bounds.split_once("..") {
            Some((a, b)) => (bound(a), bound(b), vec![]),
            None => (None, None, bounds.split(',').filter(|w| !w.is_empty()).collect()),
        };
        table.insert(
            name,
            OptionSpec {
                name,
                kind: Kind::by_name(kind)
                    .unwrap_or_else(|| panic!("option table: type of {line:?}")),
                level: level_by_name(level),
                default,
                min,
                max,
                allowed,
                runtime: when == "r",
                description,
                services: services.split(',').collect(),
            },
        );
    }
    table
}

/// A bound: a number, a size with its suffix, or nothing.
fn bound(text: &str) -> Option<f64> {
    if text.is_empty() {
        return None;
    }
    let size = || match value::parse(Kind::Size, text) {
        Ok(Value::Uint(n)) => n as f64,
        _ => panic!("option table: bound {text:?}"),
    };
    Some(text.parse().unwrap_or_else(|_| size()))
}

fn level_by_name(name: &str) -> Level {
    match name {
        "basic" => Level::Basic,
        "dev" => Level::Dev,
        _ => Level::Advanced,
    }
}

static TABLE: LazyLock<HashMap<&'static str, OptionSpec>> = LazyLock::new(parse_table);

/// Log levels of the client libraries' subsystems (Ceph 16.2: `src/common/subsys.h`).
const SUBSYSTEMS: &[(&str, &str)] = &[
    ("debug_asok", "1/5"),
    ("debug_auth", "1/5"),
    ("debug_buffer", "0/1"),
    ("debug_client", "0/5"),
    ("debug_context", "0/1"),
    ("debug_crush", "1/1"),
    ("debug_filer", "0/1"),
    ("debug_finisher", "1/1"),
    ("debug_heartbeatmap", "1/5"),
    ("debug_journaler", "0/5"),
    ("debug_lockdep", "0/1"),
    ("debug_mds", "1/5"),
    ("debug_mgr", "2/5"),
    ("debug_mgrc", "1/5"),
    ("debug_mon", "1/5"),
    ("debug_monc", "0/10"),
    ("debug_ms", "0/0"),
    ("debug_none", "0/5"),
    ("debug_objclass", "0/5"),
    ("debug_objectcacher", "0/5"),
    ("debug_objecter", "0/1"),
    ("debug_osd", "1/5"),
    ("debug_paxos", "1/5"),
    ("debug_perfcounter", "1/5"),
    ("debug_rados", "0/5"),
    ("debug_rbd", "0/5"),
    ("debug_rbd_mirror", "0/5"),
    ("debug_rbd_pwl", "0/5"),
    ("debug_rbd_replay", "0/5"),
    ("debug_rgw", "1/5"),
    ("debug_striper", "0/1"),
    ("debug_throttle", "1/1"),
    ("debug_timer", "0/1"),
    ("debug_tp", "0/5"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_allowed() {
        assert!(all().len() > 400, "{} options", all().len());
        for o in all() {
            if o.default.is_empty() {
                continue;
            }
            o.parse(o.default).unwrap_or_else(|e| panic!("{e}"));
        }
        assert_eq!(find("rbd_cache").unwrap().kind, Kind::Bool);
        assert_eq!(find("osd_max_object_size").unwrap().default_value(), Value::Uint(128 << 20));
        assert!(find("osd_no_such").is_none());
        for (name, why) in REFUSED {
            assert!(find(name).is_none(), "{name} is there");
            assert!(
                ConfError::Unknown((*name).into())
                    .to_string()
                    .ends_with(&format!("'{name}': {why}"))
            );
        }
        assert_eq!(
            ConfError::Unknown("osd_no_such".into()).to_string(),
            "unrecognized config option 'osd_no_such'"
        );
        let chunk = find("osd_recovery_max_chunk").unwrap();
        assert_eq!((chunk.min, chunk.max), (Some(65536.0), Some(67108864.0)));
        assert!(
            chunk.parse("32K").is_err()
                && chunk.parse("64K").is_ok()
                && chunk.parse("65M").is_err()
        );
    }
}
