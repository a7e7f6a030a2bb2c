//! From configuration options to the settings of an OSD.

use crate::scrubs::ScrubSettings;
use crate::tracker::HistoryLimits;
use crate::trims::TrimSettings;
use conf::{Config, find};
use objops::Limits;
use pg::PgConf;
use std::time::Duration;
use store::Budgets;
use store::dev::{Faults, Slowness};

/// Settings that operations depend on. Changed while the OSD runs.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Limits of operations.
    pub limits: Limits,
    /// Object classes that clients can call.
    pub classes: cls::Registry,
    /// Options of PGs.
    pub pg: PgConf,
    /// Operations in execution at a time; others wait in the scheduler. 0: as many as
    /// [`qos::Window`] says.
    pub window: usize,
    /// Object contexts that a PG keeps without use.
    pub idle_contexts: usize,
    /// Options of trimming.
    pub trim: TrimSettings,
    /// Options of scrubs.
    pub scrub: ScrubSettings,
    /// `osd_max_backfills`: PGs that copy from this OSD, PGs that are copied to it, and PGs that
    /// read here for that.
    pub backfills: usize,
    /// Objects that are recovered at a time, over all PGs.
    pub recovery_active: usize,
    /// `osd_pause_pg_deletion`: copies that are not needed stay.
    pub deletion_paused: bool,
    /// `osd_client_watch_timeout`, in seconds.
    pub watch_timeout: u32,
    /// `osd_default_notify_timeout`, in seconds.
    pub notify_timeout: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            limits: Limits::default(),
            classes: cls::Registry::builtin(),
            pg: PgConf::default(),
            window: 0,
            idle_contexts: 64,
            trim: TrimSettings::default(),
            scrub: ScrubSettings::default(),
            backfills: 1,
            recovery_active: 10,
            deletion_paused: false,
            watch_timeout: 30,
            notify_timeout: 30,
        }
    }
}

/// An option, or what holds if the table has no such option.
fn num(c: &Config, name: &str, otherwise: u64) -> u64 {
    if find(name).is_some() { c.u64(name) } else { otherwise }
}

fn seconds(c: &Config, name: &str, otherwise: Duration) -> Duration {
    if find(name).is_none() {
        return otherwise;
    }
    Duration::try_from_secs_f64(c.f64(name)).unwrap_or(otherwise)
}

/// The settings that a configuration means for an OSD under mClock, or under another scheduler.
pub fn settings_under(c: &Config, mclock: bool) -> Settings {
    let s = settings(c);
    if mclock { crate::overridden::under_mclock(c, s) } else { s }
}

/// Objects that an OSD recovers at a time.
fn recovery_active(c: &Config) -> usize {
    match c.u64("osd_recovery_max_active") {
        0 => c.u64("osd_recovery_max_active_ssd") as usize,
        n => n as usize,
    }
}

/// The settings that a configuration means, but for what the scheduler has to do with it.
pub(crate) fn settings(c: &Config) -> Settings {
    let l = Limits::default();
    let p = PgConf::default();
    let d = Settings::default();
    Settings {
        limits: Limits {
            object_size: num(c, "osd_max_object_size", l.object_size),
            object_name: num(c, "osd_max_object_name_len", l.object_name as u64) as usize,
            object_namespace: num(c, "osd_max_object_namespace_len", l.object_namespace as u64)
                as usize,
            attr_size: num(c, "osd_max_attr_size", l.attr_size),
            attr_name: num(c, "osd_max_attr_name_len", l.attr_name as u64) as usize,
            // The option counts MiB.
            write_size: num(c, "osd_max_write_size", l.write_size >> 20).saturating_mul(1 << 20),
            omap_entries: num(c, "osd_max_omap_entries_per_request", l.omap_entries),
            omap_bytes: num(c, "osd_max_omap_bytes_per_request", l.omap_bytes),
            write_reply: num(c, "osd_max_write_op_reply_len", l.write_reply as u64) as usize,
            pgls: num(c, "osd_max_pgls", l.pgls),
            stock_refusals: c.bool("osd_ec_stock_refusals"),
        },
        classes: classes(c),
        pg: PgConf {
            min_pg_log_entries: num(c, "osd_min_pg_log_entries", p.min_pg_log_entries),
            max_pg_log_entries: num(c, "osd_max_pg_log_entries", p.max_pg_log_entries),
            pg_log_trim_min: num(c, "osd_pg_log_trim_min", p.pg_log_trim_min),
            pg_log_dups_tracked: num(c, "osd_pg_log_dups_tracked", p.pg_log_dups_tracked),
            recovery_max_active: recovery_active(c),
            recovery_max_chunk: num(c, "osd_recovery_max_chunk", p.recovery_max_chunk),
            recovery_max_omap_entries: num(
                c,
                "osd_recovery_max_omap_entries_per_chunk",
                p.recovery_max_omap_entries,
            ),
            read_lease: read_lease(c),
            async_recovery_min_cost: num(
                c,
                "osd_async_recovery_min_cost",
                p.async_recovery_min_cost,
            ),
            scrub_chunk_min: num(c, "osd_scrub_chunk_min", p.scrub_chunk_min as u64) as usize,
            scrub_chunk_max: num(c, "osd_scrub_chunk_max", p.scrub_chunk_max as u64) as usize,
            scrub_max_preemptions: num(
                c,
                "osd_scrub_max_preemptions",
                p.scrub_max_preemptions.into(),
            ) as u32,
            scrub_auto_repair: c.bool("osd_scrub_auto_repair"),
            scrub_auto_repair_num_errors: num(
                c,
                "osd_scrub_auto_repair_num_errors",
                p.scrub_auto_repair_num_errors,
            ),
            max_object_size: num(c, "osd_max_object_size", p.max_object_size),
            large_omap_keys: num(
                c,
                "osd_deep_scrub_large_omap_object_key_threshold",
                p.large_omap_keys,
            ),
            large_omap_bytes: num(
                c,
                "osd_deep_scrub_large_omap_object_value_sum_threshold",
                p.large_omap_bytes,
            ),
            backfill_scan: num(c, "osd_backfill_scan_max", p.backfill_scan as u64) as usize,
            ..p
        },
        window: match num(c, "osd_qos_max_in_flight", 0) {
            0 => d.window,
            n => n as usize,
        },
        idle_contexts: num(c, "osd_pg_object_context_cache_count", d.idle_contexts as u64) as usize,
        trim: TrimSettings {
            groups: num(c, "osd_max_trimming_pgs", d.trim.groups as u64) as usize,
            steps: num(c, "osd_pg_max_concurrent_snap_trims", d.trim.steps as u64) as usize,
            sleep: seconds(c, "osd_snap_trim_sleep", d.trim.sleep),
            cost: num(c, "osd_snap_trim_cost", d.trim.cost),
            gently: true,
        },
        scrub: ScrubSettings {
            most: num(c, "osd_max_scrubs", d.scrub.most as u64) as usize,
            overdue_factor: c.f64("osd_scrub_overdue_factor"),
            min_interval: c.f64("osd_scrub_min_interval"),
            max_interval: c.f64("osd_scrub_max_interval"),
            deep_interval: c.f64("osd_deep_scrub_interval"),
            randomize: c.f64("osd_scrub_interval_randomize_ratio"),
            deep_randomize: c.f64("osd_deep_scrub_randomize_ratio"),
            begin: (c.u64("osd_scrub_begin_hour") as u32, c.u64("osd_scrub_begin_week_day") as u32),
            end: (c.u64("osd_scrub_end_hour") as u32, c.u64("osd_scrub_end_week_day") as u32),
            gently: true,
            sleep: seconds(c, "osd_scrub_sleep", d.scrub.sleep),
            stride: c.u64("osd_deep_scrub_stride"),
            keys: c.u64("osd_deep_scrub_keys") as usize,
        },
        recovery_active: recovery_active(c),
        backfills: num(c, "osd_max_backfills", d.backfills as u64) as usize,
        deletion_paused: c.bool("osd_pause_pg_deletion"),
        watch_timeout: num(c, "osd_client_watch_timeout", d.watch_timeout.into()) as u32,
        notify_timeout: num(c, "osd_default_notify_timeout", d.notify_timeout.into()) as u32,
    }
}

/// How long a permission to serve reads lasts, unless the pool says so.
fn read_lease(c: &Config) -> Duration {
    Duration::try_from_secs_f64(
        c.f64("osd_pool_default_read_lease_ratio") * c.u64("osd_heartbeat_grace") as f64,
    )
    .unwrap_or(PgConf::default().read_lease)
}

/// The object classes that a configuration lets clients call.
fn classes(c: &Config) -> cls::Registry {
    let list =
        |name| find(name).map_or_else(|| cls::registry::STOCK_CLASSES.to_owned(), |_| c.str(name));
    cls::Registry::with_lists(&list("osd_class_load_list"), &list("osd_class_default_list"))
}

/// What an OSD needs beside its store: PGs' logs, maps, messages on their way, the thread itself.
const OTHER_MEMORY: u64 = 144 << 20;
/// Dirty memory beyond this only makes checkpoints longer.
const DIRTY_MAX: u64 = 256 << 20;

/// How a store divides what `osd_memory_target` leaves for it. While a checkpoint runs there can be
/// twice `dirty_max` of dirty memory, so it counts twice.
pub fn budgets(c: &Config) -> Budgets {
    let whole = num(c, "osd_memory_target", 420 << 20).saturating_sub(OTHER_MEMORY);
    // Of 23 parts, object records have 3, tree nodes 2, dirty memory up to 12, and data what
    // remains.
    let part = whole / 23;
    let (onode_cache, node_cache, dirty_max) = (part * 3, part * 2, (part * 6).min(DIRTY_MAX));
    Budgets {
        data_cache: whole - onode_cache - node_cache - 2 * dirty_max,
        onode_cache,
        node_cache,
        dirty_max,
    }
}

/// For tests: what makes the device slow (`osd_debug_device_delay`, `osd_debug_device_bandwidth`).
pub fn slowness(c: &Config) -> Slowness {
    Slowness {
        delay: seconds(c, "osd_debug_device_delay", Duration::ZERO),
        bandwidth: num(c, "osd_debug_device_bandwidth", 0),
    }
}

/// For tests: which requests of the device fail (`osd_debug_device_read_errors`,
/// `osd_debug_device_write_errors`).
pub fn faults(c: &Config) -> Faults {
    Faults {
        reads: num(c, "osd_debug_device_read_errors", 0),
        writes: num(c, "osd_debug_device_write_errors", 0),
    }
}

/// The limits of the history of operations.
pub fn history(c: &Config) -> HistoryLimits {
    let d = HistoryLimits::default();
    HistoryLimits {
        size: num(c, "osd_op_history_size", d.size as u64) as usize,
        duration: Duration::from_secs(num(c, "osd_op_history_duration", d.duration.as_secs())),
        slow_size: num(c, "osd_op_history_slow_op_size", d.slow_size as u64) as usize,
        slow_threshold: seconds(c, "osd_op_history_slow_op_threshold", d.slow_threshold),
        complaint: seconds(c, "osd_op_complaint_time", d.complaint),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conf::effective::Source;

    #[test]
    fn classes_follow_their_lists() {
        let mut c = Config::new();
        assert_eq!(c.str("osd_class_load_list"), cls::registry::STOCK_CLASSES);
        assert_eq!(c.str("osd_class_default_list"), cls::registry::STOCK_CLASSES);
        c.set(Source::Override, "osd_class_load_list", "lock hello").unwrap();
        c.set(Source::Override, "osd_class_default_list", "lock").unwrap();
        let registry = classes(&c);
        assert!(registry.method(b"hello", b"say_hello").is_ok());
        assert!(!registry.allowed_by_default(b"hello") && registry.allowed_by_default(b"lock"));
        assert_eq!(registry.method(b"version", b"read").err(), Some(types::Errno::EPERM));
    }

    #[test]
    fn the_memory_target_is_divided() {
        const MB: u64 = 1 << 20;
        let mut c = Config::new();
        let b = budgets(&c);
        assert_eq!(
            (b.data_cache, b.onode_cache, b.node_cache, b.dirty_max),
            (72 * MB, 36 * MB, 24 * MB, 72 * MB)
        );
        let mut last = b.data_cache / 2;
        for (text, target) in
            [("256M", 256 * MB), ("1G", 1 << 30), ("4294967296", 4 << 30), ("64G", 64 << 30)]
        {
            c.set(Source::Override, "osd_memory_target", text).unwrap();
            let b = budgets(&c);
            assert_eq!(
                b.data_cache + b.onode_cache + b.node_cache + 2 * b.dirty_max,
                target - OTHER_MEMORY
            );
            assert!(
                b.dirty_max <= DIRTY_MAX && b.dirty_max >= 16 * MB && b.onode_cache >= 14 * MB,
                "{b:?}"
            );
            assert!(b.data_cache > last || text == "256M", "{b:?}");
            last = b.data_cache;
        }
        assert!(c.set(Source::Override, "osd_memory_target", "100M").is_err());
    }

    #[test]
    fn options_become_settings() {
        let mut c = Config::new();
        let s = settings(&c);
        assert_eq!(s.limits.object_size, 128 << 20);
        assert_eq!(s.limits.write_size, 90 << 20);
        assert_eq!(s.trim, TrimSettings::default(), "the table and the code agree");
        assert_eq!(
            (s.backfills, s.pg.backfill_scan),
            (1, PgConf::default().backfill_scan),
            "here too"
        );
        assert_eq!(s.pg.read_lease, PgConf::default().read_lease, "here too");
        c.set(Source::Override, "osd_heartbeat_grace", "5").unwrap();
        assert_eq!(settings(&c).pg.read_lease, Duration::from_secs(4));
        assert_eq!(s.scrub, ScrubSettings::default(), "and here");
        c.set(Source::Override, "osd_snap_trim_sleep", "0.25").unwrap();
        c.set(Source::Override, "osd_pg_max_concurrent_snap_trims", "7").unwrap();
        let trim = settings(&c).trim;
        assert_eq!((trim.sleep, trim.steps), (Duration::from_millis(250), 7));
        c.set(Source::Override, "osd_max_object_size", "1M").unwrap();
        assert_eq!(settings(&c).limits.object_size, 1 << 20);
        assert_eq!(history(&c).complaint, Duration::from_secs(30));
    }
}
