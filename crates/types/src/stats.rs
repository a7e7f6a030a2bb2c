//! Statistics of objects, groups, pools and OSDs.

use crate::dump::{Dump, float, shown};
use crate::pgid::{PgId, PgShard};
use crate::{Epoch, Eversion, IntervalSet, OsdId, Utime, features};
use bytes::BytesMut;
use denc::{Decode, DecodeError, Encode, Features, Reader, Result, envelope};
use denc_derive::Denc;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

macro_rules! object_stats {
    ($($(#[since($since:literal)])? $field:ident: $ty:ty, $doc:literal;)*) => {
        /// Counters over a set of objects (Ceph: `object_stat_sum_t`, `osd/osd_types.h`, version 20,
        /// compat 14). All are signed: differences are statistics too.
        #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
        pub struct ObjectStatSum {
            $(#[doc = $doc] pub $field: $ty,)*
        }

        impl ObjectStatSum {
            /// Adds every counter of `other`.
            pub fn add(&mut self, other: &Self) {
                $(self.$field = self.$field.wrapping_add(other.$field);)*
            }

            /// Subtracts every counter of `other`.
            pub fn sub(&mut self, other: &Self) {
                $(self.$field = self.$field.wrapping_sub(other.$field);)*
            }

            /// Raises every counter below `least` to it.
            pub fn floor(&mut self, least: i32) {
                $(self.$field = self.$field.max(<$ty>::from(least));)*
            }
        }

        impl Encode for ObjectStatSum {
            fn encode(&self, out: &mut BytesMut, f: Features) {
                envelope(out, 20, 14, |out| {
                    $(self.$field.encode(out, f);)*
                });
            }
        }
        impl Decode for ObjectStatSum {
            fn decode(r: &mut Reader) -> Result<Self> {
                let (struct_v, mut r) = r.envelope("object_stat_sum_t", 20)?;
                if struct_v < 14 {
                    return Err(DecodeError::TooOld { what: "object_stat_sum_t", struct_v, oldest: 14 });
                }
                let mut sum = ObjectStatSum::default();
                $(if true $(&& struct_v >= $since)? { sum.$field = r.get()?; })*
                Ok(sum)
            }
        }
    };
}

object_stats! {
    num_bytes: i64, "Bytes of data.";
    num_objects: i64, "Objects, clones included.";
    num_object_clones: i64, "Clones.";
    num_object_copies: i64, "Objects times replicas.";
    num_objects_missing_on_primary: i64, "Objects that the primary lacks.";
    num_objects_degraded: i64, "Copies that are missing.";
    num_objects_unfound: i64, "Objects of which no copy is known.";
    num_rd: i64, "Reads.";
    num_rd_kb: i64, "KiB read.";
    num_wr: i64, "Writes.";
    num_wr_kb: i64, "KiB written.";
    num_scrub_errors: i64, "Errors found by any scrub.";
    num_objects_recovered: i64, "Objects recovered.";
    num_bytes_recovered: i64, "Bytes recovered.";
    num_keys_recovered: i64, "Omap keys recovered.";
    num_shallow_scrub_errors: i64, "Errors found by shallow scrub.";
    num_deep_scrub_errors: i64, "Errors found by deep scrub.";
    num_objects_dirty: i64, "Objects not flushed to a base tier.";
    num_whiteouts: i64, "Objects that only say that they are deleted.";
    num_objects_omap: i64, "Objects with omap.";
    num_objects_hit_set_archive: i64, "Hit set objects.";
    num_objects_misplaced: i64, "Copies in the wrong place.";
    num_bytes_hit_set_archive: i64, "Bytes in hit set objects.";
    num_flush: i64, "Flushes.";
    num_flush_kb: i64, "KiB flushed.";
    num_evict: i64, "Evictions.";
    num_evict_kb: i64, "KiB evicted.";
    num_promote: i64, "Promotions.";
    num_flush_mode_high: i32, "1 in high flush mode.";
    num_flush_mode_low: i32, "1 in low flush mode.";
    num_evict_mode_some: i32, "1 in evict-some mode.";
    num_evict_mode_full: i32, "1 in evict-full mode.";
    num_objects_pinned: i64, "Objects pinned in a cache tier.";
    num_objects_missing: i64, "Objects missing on any acting OSD.";
    #[since(16)] num_legacy_snapsets: i64, "Upper bound of snapsets in the old form.";
    #[since(17)] num_large_omap_objects: i64, "Objects with a very large omap.";
    #[since(18)] num_objects_manifest: i64, "Objects with a manifest.";
    #[since(19)] num_omap_bytes: i64, "Bytes of omap.";
    #[since(19)] num_omap_keys: i64, "Keys of omap.";
    #[since(20)] num_objects_repaired: i64, "Objects repaired.";
}

macro_rules! dump_fields {
    ($this:ident: $($name:literal => $field:ident),* $(,)?) => {{
        let mut map = Map::new();
        $(map.insert($name.into(), $this.$field.into());)*
        Value::Object(map)
    }};
}

impl Dump for ObjectStatSum {
    fn dump(&self) -> Value {
        dump_fields!(self:
            "num_bytes" => num_bytes,
            "num_objects" => num_objects,
            "num_object_clones" => num_object_clones,
            "num_object_copies" => num_object_copies,
            "num_objects_missing_on_primary" => num_objects_missing_on_primary,
            "num_objects_missing" => num_objects_missing,
            "num_objects_degraded" => num_objects_degraded,
            "num_objects_misplaced" => num_objects_misplaced,
            "num_objects_unfound" => num_objects_unfound,
            "num_objects_dirty" => num_objects_dirty,
            "num_whiteouts" => num_whiteouts,
            "num_read" => num_rd,
            "num_read_kb" => num_rd_kb,
            "num_write" => num_wr,
            "num_write_kb" => num_wr_kb,
            "num_scrub_errors" => num_scrub_errors,
            "num_shallow_scrub_errors" => num_shallow_scrub_errors,
            "num_deep_scrub_errors" => num_deep_scrub_errors,
            "num_objects_recovered" => num_objects_recovered,
            "num_bytes_recovered" => num_bytes_recovered,
            "num_keys_recovered" => num_keys_recovered,
            "num_objects_omap" => num_objects_omap,
            "num_objects_hit_set_archive" => num_objects_hit_set_archive,
            "num_bytes_hit_set_archive" => num_bytes_hit_set_archive,
            "num_flush" => num_flush,
            "num_flush_kb" => num_flush_kb,
            "num_evict" => num_evict,
            "num_evict_kb" => num_evict_kb,
            "num_promote" => num_promote,
            "num_flush_mode_high" => num_flush_mode_high,
            "num_flush_mode_low" => num_flush_mode_low,
            "num_evict_mode_some" => num_evict_mode_some,
            "num_evict_mode_full" => num_evict_mode_full,
            "num_objects_pinned" => num_objects_pinned,
            "num_legacy_snapsets" => num_legacy_snapsets,
            "num_large_omap_objects" => num_large_omap_objects,
            "num_objects_manifest" => num_objects_manifest,
            "num_omap_bytes" => num_omap_bytes,
            "num_omap_keys" => num_omap_keys,
            "num_objects_repaired" => num_objects_repaired,
        )
    }
}

/// Counters in their wrapping from the time of object categories (Ceph: `object_stat_collection_t`,
/// version 2).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ObjectStatCollection {
    /// The counters.
    pub sum: ObjectStatSum,
}

impl Encode for ObjectStatCollection {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        envelope(out, 2, 2, |out| {
            self.sum.encode(out, f);
            // No counters by category.
            0u32.encode(out, f);
        });
    }
}
impl Decode for ObjectStatCollection {
    fn decode(r: &mut Reader) -> Result<Self> {
        let (_, mut r) = r.envelope("object_stat_collection_t", 2)?;
        Ok(ObjectStatCollection { sum: r.get()? })
    }
}
impl Dump for ObjectStatCollection {
    fn dump(&self) -> Value {
        json!({"stat_sum": self.sum.dump()})
    }
}

macro_rules! state_bits {
    ($($name:ident = $bit:literal, $text:literal;)*) => {
        $(
            #[doc = concat!("`PG_STATE_", stringify!($name), "`.")]
            pub const $name: PgState = PgState(1 << $bit);
        )*
        /// In the order in which they are shown.
        const SHOWN: &[(PgState, &str)] = &[$((Self::$name, $text)),*];
    };
}

/// What a placement group is doing (Ceph: `PG_STATE_*`, `osd/osd_types.h`). No bit at all is shown as
/// `unknown`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct PgState(pub u64);

impl PgState {
    state_bits! {
        STALE = 17, "stale";
        CREATING = 0, "creating";
        ACTIVE = 1, "active";
        ACTIVATING = 24, "activating";
        CLEAN = 2, "clean";
        RECOVERY_WAIT = 22, "recovery_wait";
        RECOVERY_TOOFULL = 28, "recovery_toofull";
        RECOVERING = 14, "recovering";
        FORCED_RECOVERY = 30, "forced_recovery";
        DOWN = 4, "down";
        RECOVERY_UNFOUND = 5, "recovery_unfound";
        BACKFILL_UNFOUND = 6, "backfill_unfound";
        UNDERSIZED = 23, "undersized";
        DEGRADED = 10, "degraded";
        REMAPPED = 18, "remapped";
        PREMERGE = 7, "premerge";
        SCRUBBING = 8, "scrubbing";
        DEEP_SCRUB = 19, "deep";
        INCONSISTENT = 11, "inconsistent";
        PEERING = 12, "peering";
        REPAIR = 13, "repair";
        BACKFILL_WAIT = 15, "backfill_wait";
        BACKFILLING = 20, "backfilling";
        FORCED_BACKFILL = 31, "forced_backfill";
        BACKFILL_TOOFULL = 21, "backfill_toofull";
        INCOMPLETE = 16, "incomplete";
        PEERED = 25, "peered";
        SNAPTRIM = 26, "snaptrim";
        SNAPTRIM_WAIT = 27, "snaptrim_wait";
        SNAPTRIM_ERROR = 29, "snaptrim_error";
        FAILED_REPAIR = 32, "failed_repair";
        LAGGY = 33, "laggy";
        WAIT = 34, "wait";
    }

    /// Whether every bit of `other` is set.
    pub fn has(self, other: PgState) -> bool {
        self.0 & other.0 == other.0
    }

    /// Sets or clears the bits of `other`.
    pub fn set(&mut self, other: PgState, on: bool) {
        if on { self.0 |= other.0 } else { self.0 &= !other.0 }
    }

    /// The state with this single name; `unknown` is no bit.
    pub fn from_name(name: &str) -> Option<PgState> {
        if name == "unknown" {
            return Some(PgState(0));
        }
        Self::SHOWN.iter().find(|(_, n)| *n == name).map(|(state, _)| *state)
    }
}

impl std::ops::BitOr for PgState {
    type Output = PgState;

    fn bitor(self, other: PgState) -> PgState {
        PgState(self.0 | other.0)
    }
}
impl std::fmt::Display for PgState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut plus = "";
        for (_, name) in Self::SHOWN.iter().filter(|(state, _)| self.has(*state)) {
            write!(f, "{plus}{name}")?;
            plus = "+";
        }
        if plus.is_empty() { f.write_str("unknown") } else { Ok(()) }
    }
}

/// What a group's primary reports (Ceph: `pg_stat_t`, version 26, compat 22).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PgStat {
    /// The group's last update.
    pub version: Eversion,
    /// Counts reports within an epoch.
    pub reported_seq: u64,
    /// Epoch of the report.
    pub reported_epoch: Epoch,
    /// State.
    pub state: PgState,
    /// When reported last.
    pub last_fresh: Utime,
    /// When the state changed.
    pub last_change: Utime,
    /// When it was active last.
    pub last_active: Utime,
    /// When it was peered last.
    pub last_peered: Utime,
    /// When it was clean last.
    pub last_clean: Utime,
    /// When it was not stale last.
    pub last_unstale: Utime,
    /// When it was not degraded last.
    pub last_undegraded: Utime,
    /// When it was not undersized last.
    pub last_fullsized: Utime,
    /// Tail of the log.
    pub log_start: Eversion,
    /// Tail of the log on disk.
    pub ondisk_log_start: Eversion,
    /// Epoch of creation.
    pub created: Epoch,
    /// Lower bound of the last clean epoch.
    pub last_epoch_clean: Epoch,
    /// Where it was split from.
    pub parent: PgId,
    /// Bits of that split.
    pub parent_split_bits: u32,
    /// Version at the last scrub.
    pub last_scrub: Eversion,
    /// Version at the last deep scrub.
    pub last_deep_scrub: Eversion,
    /// Time of the last scrub.
    pub last_scrub_stamp: Utime,
    /// Time of the last deep scrub.
    pub last_deep_scrub_stamp: Utime,
    /// Time of the last scrub without errors.
    pub last_clean_scrub_stamp: Utime,
    /// Counters.
    pub stats: ObjectStatCollection,
    /// Entries of the log.
    pub log_size: i64,
    /// Entries of the log on disk.
    pub ondisk_log_size: i64,
    /// Where CRUSH puts it.
    pub up: Vec<OsdId>,
    /// Who serves it.
    pub acting: Vec<OsdId>,
    /// Who has everything.
    pub avail_no_missing: Vec<PgShard>,
    /// How many objects are on which set of OSDs.
    pub object_location_counts: BTreeMap<BTreeSet<PgShard>, i32>,
    /// Since when it is mapped like this.
    pub mapping_epoch: Epoch,
    /// Who keeps it from peering.
    pub blocked_by: Vec<OsdId>,
    /// Snapshots whose objects are all trimmed.
    pub purged_snaps: IntervalSet,
    /// When it became active.
    pub last_became_active: Utime,
    /// When it became peered.
    pub last_became_peered: Utime,
    /// Primary of the up set.
    pub up_primary: OsdId,
    /// Primary of the acting set.
    pub acting_primary: OsdId,
    /// Snapshots waiting to be trimmed.
    pub snaptrimq_len: u32,
    /// Counters are estimates since a split or divergence.
    pub stats_invalid: bool,
    /// Count of dirty objects is an estimate.
    pub dirty_stats_invalid: bool,
    /// Counts of omap are estimates.
    pub omap_stats_invalid: bool,
    /// Count of hit sets is an estimate.
    pub hitset_stats_invalid: bool,
    /// Bytes of hit sets are an estimate.
    pub hitset_bytes_stats_invalid: bool,
    /// Count of pinned objects is an estimate.
    pub pin_stats_invalid: bool,
    /// Count of manifests is an estimate.
    pub manifest_stats_invalid: bool,
}

impl Default for PgStat {
    fn default() -> Self {
        let never = Utime::ZERO;
        PgStat {
            version: Eversion::ZERO,
            reported_seq: 0,
            reported_epoch: Epoch(0),
            state: PgState(0),
            last_fresh: never,
            last_change: never,
            last_active: never,
            last_peered: never,
            last_clean: never,
            last_unstale: never,
            last_undegraded: never,
            last_fullsized: never,
            log_start: Eversion::ZERO,
            ondisk_log_start: Eversion::ZERO,
            created: Epoch(0),
            last_epoch_clean: Epoch(0),
            parent: PgId::default(),
            parent_split_bits: 0,
            last_scrub: Eversion::ZERO,
            last_deep_scrub: Eversion::ZERO,
            last_scrub_stamp: never,
            last_deep_scrub_stamp: never,
            last_clean_scrub_stamp: never,
            stats: ObjectStatCollection::default(),
            log_size: 0,
            ondisk_log_size: 0,
            up: Vec::new(),
            acting: Vec::new(),
            avail_no_missing: Vec::new(),
            object_location_counts: BTreeMap::new(),
            mapping_epoch: Epoch(0),
            blocked_by: Vec::new(),
            purged_snaps: IntervalSet::new(),
            last_became_active: never,
            last_became_peered: never,
            up_primary: OsdId(-1),
            acting_primary: OsdId(-1),
            snaptrimq_len: 0,
            stats_invalid: false,
            dirty_stats_invalid: false,
            omap_stats_invalid: false,
            hitset_stats_invalid: false,
            hitset_bytes_stats_invalid: false,
            pin_stats_invalid: false,
            manifest_stats_invalid: false,
        }
    }
}

impl Encode for PgStat {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        envelope(out, 26, 22, |out| {
            self.version.encode(out, f);
            self.reported_seq.encode(out, f);
            self.reported_epoch.encode(out, f);
            (self.state.0 as u32).encode(out, f);
            self.log_start.encode(out, f);
            self.ondisk_log_start.encode(out, f);
            self.created.encode(out, f);
            self.last_epoch_clean.encode(out, f);
            self.parent.encode(out, f);
            self.parent_split_bits.encode(out, f);
            self.last_scrub.encode(out, f);
            self.last_scrub_stamp.encode(out, f);
            self.stats.encode(out, f);
            self.log_size.encode(out, f);
            self.ondisk_log_size.encode(out, f);
            self.up.encode(out, f);
            self.acting.encode(out, f);
            self.last_fresh.encode(out, f);
            self.last_change.encode(out, f);
            self.last_active.encode(out, f);
            self.last_clean.encode(out, f);
            self.last_unstale.encode(out, f);
            self.mapping_epoch.encode(out, f);
            self.last_deep_scrub.encode(out, f);
            self.last_deep_scrub_stamp.encode(out, f);
            self.stats_invalid.encode(out, f);
            self.last_clean_scrub_stamp.encode(out, f);
            self.last_became_active.encode(out, f);
            self.dirty_stats_invalid.encode(out, f);
            self.up_primary.encode(out, f);
            self.acting_primary.encode(out, f);
            self.omap_stats_invalid.encode(out, f);
            self.hitset_stats_invalid.encode(out, f);
            self.blocked_by.encode(out, f);
            self.last_undegraded.encode(out, f);
            self.last_fullsized.encode(out, f);
            self.hitset_bytes_stats_invalid.encode(out, f);
            self.last_peered.encode(out, f);
            self.last_became_peered.encode(out, f);
            self.pin_stats_invalid.encode(out, f);
            self.snaptrimq_len.encode(out, f);
            ((self.state.0 >> 32) as u32).encode(out, f);
            self.purged_snaps.encode(out, f);
            self.manifest_stats_invalid.encode(out, f);
            self.avail_no_missing.encode(out, f);
            self.object_location_counts.encode(out, f);
        });
    }
}
impl Decode for PgStat {
    fn decode(r: &mut Reader) -> Result<Self> {
        let (struct_v, mut r) = r.envelope("pg_stat_t", 26)?;
        if struct_v < 22 {
            return Err(DecodeError::TooOld { what: "pg_stat_t", struct_v, oldest: 22 });
        }
        // Struct fields are evaluated in the order written here, which is the order on the wire.
        let mut s = PgStat {
            version: r.get()?,
            reported_seq: r.get()?,
            reported_epoch: r.get()?,
            state: PgState(r.get::<u32>()?.into()),
            log_start: r.get()?,
            ondisk_log_start: r.get()?,
            created: r.get()?,
            last_epoch_clean: r.get()?,
            parent: r.get()?,
            parent_split_bits: r.get()?,
            last_scrub: r.get()?,
            last_scrub_stamp: r.get()?,
            stats: r.get()?,
            log_size: r.get()?,
            ondisk_log_size: r.get()?,
            up: r.get()?,
            acting: r.get()?,
            last_fresh: r.get()?,
            last_change: r.get()?,
            last_active: r.get()?,
            last_clean: r.get()?,
            last_unstale: r.get()?,
            mapping_epoch: r.get()?,
            last_deep_scrub: r.get()?,
            last_deep_scrub_stamp: r.get()?,
            stats_invalid: r.get()?,
            last_clean_scrub_stamp: r.get()?,
            last_became_active: r.get()?,
            dirty_stats_invalid: r.get()?,
            up_primary: r.get()?,
            acting_primary: r.get()?,
            omap_stats_invalid: r.get()?,
            hitset_stats_invalid: r.get()?,
            blocked_by: r.get()?,
            last_undegraded: r.get()?,
            last_fullsized: r.get()?,
            hitset_bytes_stats_invalid: r.get()?,
            last_peered: r.get()?,
            last_became_peered: r.get()?,
            pin_stats_invalid: r.get()?,
            ..PgStat::default()
        };
        if struct_v >= 23 {
            s.snaptrimq_len = r.get()?;
        }
        if struct_v >= 24 {
            s.state.0 |= u64::from(r.get::<u32>()?) << 32;
            s.purged_snaps = r.get()?;
        }
        s.manifest_stats_invalid = if struct_v >= 25 { r.get()? } else { true };
        if struct_v >= 26 {
            s.avail_no_missing = r.get()?;
            s.object_location_counts = r.get()?;
        }
        Ok(s)
    }
}

impl PgStat {
    /// The short form of `pg dump pgs_brief`.
    pub fn dump_brief(&self) -> Value {
        json!({
            "state": shown(self.state),
            "up": self.up,
            "acting": self.acting,
            "up_primary": self.up_primary,
            "acting_primary": self.acting_primary,
        })
    }
}

/// A set as C++ streams it: `0,1,2`.
fn joined<T: std::fmt::Display>(items: &BTreeSet<T>) -> String {
    let items: Vec<_> = items.iter().map(ToString::to_string).collect();
    items.join(",")
}

/// Ranges of snapshots as objects with `start` and `length`.
pub(crate) fn dump_intervals(set: &IntervalSet) -> Value {
    // Both are shown as snapshot numbers, in hexadecimal text.
    let range = |(start, len): (u64, u64)| json!({"start": format!("{start:x}"), "length": format!("{len:x}")});
    Value::Array(set.iter().map(range).collect())
}

impl Dump for PgStat {
    fn dump(&self) -> Value {
        let places: Vec<Value> = self
            .object_location_counts
            .iter()
            .map(|(shards, n)| json!({"shards": joined(shards), "objects": n}))
            .collect();
        let mut map = Map::new();
        let mut put = |name: &str, value: Value| map.insert(name.to_owned(), value);
        put("version", shown(self.version));
        put("reported_seq", self.reported_seq.into());
        put("reported_epoch", self.reported_epoch.into());
        put("state", shown(self.state));
        put("last_fresh", shown(self.last_fresh));
        put("last_change", shown(self.last_change));
        put("last_active", shown(self.last_active));
        put("last_peered", shown(self.last_peered));
        put("last_clean", shown(self.last_clean));
        put("last_became_active", shown(self.last_became_active));
        put("last_became_peered", shown(self.last_became_peered));
        put("last_unstale", shown(self.last_unstale));
        put("last_undegraded", shown(self.last_undegraded));
        put("last_fullsized", shown(self.last_fullsized));
        put("mapping_epoch", self.mapping_epoch.into());
        put("log_start", shown(self.log_start));
        put("ondisk_log_start", shown(self.ondisk_log_start));
        put("created", self.created.into());
        put("last_epoch_clean", self.last_epoch_clean.into());
        put("parent", shown(self.parent));
        put("parent_split_bits", self.parent_split_bits.into());
        put("last_scrub", shown(self.last_scrub));
        put("last_scrub_stamp", shown(self.last_scrub_stamp));
        put("last_deep_scrub", shown(self.last_deep_scrub));
        put("last_deep_scrub_stamp", shown(self.last_deep_scrub_stamp));
        put("last_clean_scrub_stamp", shown(self.last_clean_scrub_stamp));
        put("log_size", self.log_size.into());
        put("ondisk_log_size", self.ondisk_log_size.into());
        put("stats_invalid", self.stats_invalid.into());
        put("dirty_stats_invalid", self.dirty_stats_invalid.into());
        put("omap_stats_invalid", self.omap_stats_invalid.into());
        put("hitset_stats_invalid", self.hitset_stats_invalid.into());
        put("hitset_bytes_stats_invalid", self.hitset_bytes_stats_invalid.into());
        put("pin_stats_invalid", self.pin_stats_invalid.into());
        put("manifest_stats_invalid", self.manifest_stats_invalid.into());
        put("snaptrimq_len", self.snaptrimq_len.into());
        put("stat_sum", self.stats.sum.dump());
        put("up", json!(self.up));
        put("acting", json!(self.acting));
        put("avail_no_missing", self.avail_no_missing.iter().map(shown).collect());
        put("object_location_counts", places.into());
        put("blocked_by", json!(self.blocked_by));
        put("up_primary", self.up_primary.into());
        put("acting_primary", self.acting_primary.into());
        put("purged_snaps", dump_intervals(&self.purged_snaps));
        Value::Object(map)
    }
}

/// Use of a store (Ceph: `store_statfs_t`, version 1). Bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Denc)]
#[denc(version = 1, compat = 1)]
pub struct StoreStatfs {
    /// Size of the store.
    pub total: u64,
    /// Free.
    pub available: u64,
    /// Kept free for the store itself.
    pub internally_reserved: u64,
    /// Allocated for data.
    pub allocated: i64,
    /// Data as users see it.
    pub data_stored: i64,
    /// Data after compression.
    pub data_compressed: i64,
    /// Allocated for compressed data.
    pub data_compressed_allocated: i64,
    /// Compressed data before compression.
    pub data_compressed_original: i64,
    /// Allocated for omap, about.
    pub omap_allocated: i64,
    /// Allocated for metadata, about.
    pub internal_metadata: i64,
}

impl StoreStatfs {
    /// Used, with what is reserved (Ceph: `get_used_raw`).
    pub fn used_raw(&self) -> u64 {
        self.total.saturating_sub(self.available)
    }

    /// Used, without what is reserved (Ceph: `get_used`).
    pub fn used(&self) -> u64 {
        self.used_raw().saturating_sub(self.internally_reserved)
    }

    /// Adds every number of `other`.
    pub fn add(&mut self, other: &Self) {
        self.total = self.total.wrapping_add(other.total);
        self.available = self.available.wrapping_add(other.available);
        self.internally_reserved = self.internally_reserved.wrapping_add(other.internally_reserved);
        self.allocated = self.allocated.wrapping_add(other.allocated);
        self.data_stored = self.data_stored.wrapping_add(other.data_stored);
        self.data_compressed = self.data_compressed.wrapping_add(other.data_compressed);
        self.data_compressed_allocated = self.data_compressed_allocated.wrapping_add(other.data_compressed_allocated);
        self.data_compressed_original = self.data_compressed_original.wrapping_add(other.data_compressed_original);
        self.omap_allocated = self.omap_allocated.wrapping_add(other.omap_allocated);
        self.internal_metadata = self.internal_metadata.wrapping_add(other.internal_metadata);
    }
}

impl Dump for StoreStatfs {
    fn dump(&self) -> Value {
        json!({
            "total": self.total as i64,
            "available": self.available as i64,
            "internally_reserved": self.internally_reserved as i64,
            "allocated": self.allocated,
            "data_stored": self.data_stored,
            "data_compressed": self.data_compressed,
            "data_compressed_allocated": self.data_compressed_allocated,
            "data_compressed_original": self.data_compressed_original,
            "omap_allocated": self.omap_allocated,
            "internal_metadata": self.internal_metadata,
        })
    }
}

/// Statistics of a pool (Ceph: `pool_stat_t`, version 7, compat 5).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Denc)]
#[denc(version = 7, compat = 5, oldest = 5)]
pub struct PoolStat {
    /// Counters.
    pub stats: ObjectStatCollection,
    /// Entries of all logs.
    pub log_size: i64,
    /// Entries of all logs on disk.
    pub ondisk_log_size: i64,
    /// Replicas up.
    #[denc(since = 6)]
    pub up: i32,
    /// Replicas acting.
    #[denc(since = 6)]
    pub acting: i32,
    /// Use of stores, if they count by pool.
    #[denc(since = 7)]
    pub store_stats: StoreStatfs,
    /// How many stores are in `store_stats`.
    #[denc(since = 7)]
    pub num_store_stats: i32,
}

impl PoolStat {
    /// Counts a group in.
    pub fn add_pg(&mut self, pg: &PgStat) {
        self.stats.sum.add(&pg.stats.sum);
        self.log_size += pg.log_size;
        self.ondisk_log_size += pg.ondisk_log_size;
        self.up += pg.up.len() as i32;
        self.acting += pg.acting.len() as i32;
    }

    /// Counts a store's part of the pool in.
    pub fn add_store(&mut self, statfs: &StoreStatfs) {
        self.store_stats.add(statfs);
        self.num_store_stats += 1;
    }
}

impl Dump for PoolStat {
    fn dump(&self) -> Value {
        json!({
            "stat_sum": self.stats.sum.dump(),
            "store_stats": self.store_stats.dump(),
            "log_size": self.log_size,
            "ondisk_log_size": self.ondisk_log_size,
            "up": self.up,
            "acting": self.acting,
            "num_store_stats": self.num_store_stats,
        })
    }
}

/// Latencies of a store (Ceph: `objectstore_perf_stat_t`, version 2). Nanoseconds; milliseconds to
/// peers without the `OS_PERF_STAT_NS` feature.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PerfStat {
    /// Until a transaction was durable.
    pub commit_latency_ns: u64,
    /// Until a transaction was readable.
    pub apply_latency_ns: u64,
}

impl Encode for PerfStat {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        let nanoseconds = f.has(features::OS_PERF_STAT_NS);
        let version = if nanoseconds { 2 } else { 1 };
        envelope(out, version, version, |out| {
            for ns in [self.commit_latency_ns, self.apply_latency_ns] {
                match nanoseconds {
                    true => ns.encode(out, f),
                    false => ((ns / 1_000_000) as u32).encode(out, f),
                }
            }
        });
    }
}
impl Decode for PerfStat {
    fn decode(r: &mut Reader) -> Result<Self> {
        let (struct_v, mut r) = r.envelope("objectstore_perf_stat_t", 2)?;
        let mut next = || -> Result<u64> {
            Ok(if struct_v >= 2 { r.get()? } else { u64::from(r.get::<u32>()?) * 1_000_000 })
        };
        Ok(PerfStat { commit_latency_ns: next()?, apply_latency_ns: next()? })
    }
}
impl Dump for PerfStat {
    fn dump(&self) -> Value {
        json!({
            "commit_latency_ms": float(self.commit_latency_ns as f64 / 1e6),
            "apply_latency_ms": float(self.apply_latency_ns as f64 / 1e6),
            "commit_latency_ns": self.commit_latency_ns,
            "apply_latency_ns": self.apply_latency_ns,
        })
    }
}

/// Histogram whose bin `i` counts values with `i` bits (Ceph: `pow2_hist_t`, version 1).
#[derive(Clone, PartialEq, Eq, Default, Debug, Denc)]
#[denc(version = 1, compat = 1)]
pub struct Pow2Hist {
    /// Counts, without zeros at the end.
    pub bins: Vec<i32>,
}

impl Dump for Pow2Hist {
    fn dump(&self) -> Value {
        // A histogram of 31 bins and more overflows in Ceph as well.
        let bound = 1i32.wrapping_shl(self.bins.len() as u32);
        json!({"histogram": self.bins, "upper_bound": bound})
    }
}

/// Ping times to a peer in microseconds (Ceph: `osd_stat_t::Interfaces`).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Denc)]
pub struct PingTimes {
    /// When, in seconds since 1970.
    pub last_update: u32,
    /// Average over 1, 5 and 15 minutes on the back network.
    pub back_pingtime: U32x3,
    /// Least.
    pub back_min: U32x3,
    /// Most.
    pub back_max: U32x3,
    /// The last one.
    pub back_last: u32,
    /// Average on the front network.
    pub front_pingtime: U32x3,
    /// Least.
    pub front_min: U32x3,
    /// Most.
    pub front_max: U32x3,
    /// The last one.
    pub front_last: u32,
}

/// Numbers over 1, 5 and 15 minutes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Denc)]
pub struct U32x3(pub u32, pub u32, pub u32);

/// What an OSD reports of itself (Ceph: `osd_stat_t`, version 14, compat 2).
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct OsdStat {
    /// Use of its store.
    pub statfs: StoreStatfs,
    /// Whom it pings.
    pub hb_peers: Vec<OsdId>,
    /// Objects waiting to be trimmed.
    pub snap_trim_queue_len: i32,
    /// Objects being trimmed.
    pub num_snap_trimming: i32,
    /// Shards repaired.
    pub num_shards_repaired: u64,
    /// Age of operations in the queue.
    pub op_queue_age_hist: Pow2Hist,
    /// Latencies.
    pub perf_stat: PerfStat,
    /// Alerts of the stores by OSD, name to text.
    pub alerts: BTreeMap<OsdId, BTreeMap<String, String>>,
    /// When it came up.
    pub up_from: Epoch,
    /// Orders reports.
    pub seq: u64,
    /// Groups it holds.
    pub num_pgs: u32,
    /// How many OSDs are summed up here.
    pub num_osds: u32,
    /// How many of them count by pool.
    pub num_per_pool_osds: u32,
    /// How many of them count omap by pool.
    pub num_per_pool_omap_osds: u32,
    /// Ping times by peer.
    pub hb_pingtime: BTreeMap<OsdId, PingTimes>,
}

impl OsdStat {
    /// Counts another OSD in.
    pub fn add(&mut self, other: &OsdStat) {
        self.statfs.add(&other.statfs);
        self.snap_trim_queue_len = self.snap_trim_queue_len.wrapping_add(other.snap_trim_queue_len);
        self.num_snap_trimming = self.num_snap_trimming.wrapping_add(other.num_snap_trimming);
        self.num_shards_repaired = self.num_shards_repaired.wrapping_add(other.num_shards_repaired);
        let bins = &mut self.op_queue_age_hist.bins;
        bins.resize(bins.len().max(other.op_queue_age_hist.bins.len()), 0);
        for (bin, n) in bins.iter_mut().zip(&other.op_queue_age_hist.bins) {
            *bin = bin.wrapping_add(*n);
        }
        self.perf_stat.commit_latency_ns = self.perf_stat.commit_latency_ns.wrapping_add(other.perf_stat.commit_latency_ns);
        self.perf_stat.apply_latency_ns = self.perf_stat.apply_latency_ns.wrapping_add(other.perf_stat.apply_latency_ns);
        self.num_pgs = self.num_pgs.wrapping_add(other.num_pgs);
        self.num_osds = self.num_osds.wrapping_add(other.num_osds);
        self.num_per_pool_osds = self.num_per_pool_osds.wrapping_add(other.num_per_pool_osds);
        self.num_per_pool_omap_osds = self.num_per_pool_omap_osds.wrapping_add(other.num_per_pool_omap_osds);
        for (osd, alerts) in &other.alerts {
            self.alerts.entry(*osd).or_default().extend(alerts.clone());
        }
    }
}

impl Encode for OsdStat {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        envelope(out, 14, 2, |out| {
            let s = &self.statfs;
            ((s.total >> 10) as i64).encode(out, f);
            ((s.used_raw() >> 10) as i64).encode(out, f);
            ((s.available >> 10) as i64).encode(out, f);
            self.snap_trim_queue_len.encode(out, f);
            self.num_snap_trimming.encode(out, f);
            self.hb_peers.encode(out, f);
            // Peers that ping us: an empty list.
            0u32.encode(out, f);
            self.op_queue_age_hist.encode(out, f);
            self.perf_stat.encode(out, f);
            self.up_from.encode(out, f);
            self.seq.encode(out, f);
            self.num_pgs.encode(out, f);
            (s.allocated as u64 >> 10).encode(out, f);
            (s.omap_allocated as u64 >> 10).encode(out, f);
            (s.internal_metadata as u64 >> 10).encode(out, f);
            s.encode(out, f);
            self.alerts.encode(out, f);
            self.num_shards_repaired.encode(out, f);
            self.num_osds.encode(out, f);
            self.num_per_pool_osds.encode(out, f);
            self.num_per_pool_omap_osds.encode(out, f);
            self.hb_pingtime.encode(out, f);
        });
    }
}
impl Decode for OsdStat {
    fn decode(r: &mut Reader) -> Result<Self> {
        let (struct_v, mut r) = r.envelope("osd_stat_t", 14)?;
        if struct_v < 9 {
            return Err(DecodeError::TooOld { what: "osd_stat_t", struct_v, oldest: 9 });
        }
        let mut s = OsdStat::default();
        // The sums in KiB are in the statfs again.
        r.skip("osd_stat_t kb", 24)?;
        s.snap_trim_queue_len = r.get()?;
        s.num_snap_trimming = r.get()?;
        s.hb_peers = r.get()?;
        r.get::<Vec<i32>>()?;
        s.op_queue_age_hist = r.get()?;
        s.perf_stat = r.get()?;
        s.up_from = r.get()?;
        s.seq = r.get()?;
        s.num_pgs = r.get()?;
        r.skip("osd_stat_t kb", 24)?;
        s.statfs = r.get()?;
        if struct_v >= 10 {
            s.alerts = r.get()?;
        }
        if struct_v >= 11 {
            s.num_shards_repaired = r.get()?;
        }
        if struct_v >= 12 {
            s.num_osds = r.get()?;
            s.num_per_pool_osds = r.get()?;
        }
        if struct_v >= 13 {
            s.num_per_pool_omap_osds = r.get()?;
        }
        if struct_v >= 14 {
            s.hb_pingtime = r.get()?;
        }
        Ok(s)
    }
}

impl OsdStat {
    /// The dump without ping times, as in `pg dump`.
    pub fn dump_without_net(&self) -> Value {
        let s = &self.statfs;
        let alerts: Vec<String> = self
            .alerts
            .iter()
            .flat_map(|(osd, list)| list.iter().map(move |(name, text)| format!(" osd: {osd} {name}:{text}")))
            .collect();
        json!({
            "up_from": self.up_from,
            "seq": self.seq,
            "num_pgs": self.num_pgs,
            "num_osds": self.num_osds,
            "num_per_pool_osds": self.num_per_pool_osds,
            "num_per_pool_omap_osds": self.num_per_pool_omap_osds,
            "kb": s.total >> 10,
            "kb_used": s.used_raw() >> 10,
            "kb_used_data": s.allocated as u64 >> 10,
            "kb_used_omap": s.omap_allocated as u64 >> 10,
            "kb_used_meta": s.internal_metadata as u64 >> 10,
            "kb_avail": s.available >> 10,
            "statfs": s.dump(),
            "hb_peers": self.hb_peers,
            "snap_trim_queue_len": self.snap_trim_queue_len,
            "num_snap_trimming": self.num_snap_trimming,
            "num_shards_repaired": self.num_shards_repaired,
            "op_queue_age_hist": self.op_queue_age_hist.dump(),
            "perf_stat": self.perf_stat.dump(),
            "alerts": alerts,
        })
    }

    fn dump_ping_times(&self) -> Value {
        let ms = |us: u32| float(f64::from(us) / 1000.0);
        let three = |v: U32x3| json!({"1min": ms(v.0), "5min": ms(v.1), "15min": ms(v.2)});
        let entry = |(osd, t): (&OsdId, &PingTimes)| {
            let mut interfaces = vec![json!({
                "interface": "back",
                "average": three(t.back_pingtime),
                "min": three(t.back_min),
                "max": three(t.back_max),
                "last": ms(t.back_last),
            })];
            if t.front_pingtime.0 != 0 {
                interfaces.push(json!({
                    "interface": "front",
                    "average": three(t.front_pingtime),
                    "min": three(t.front_min),
                    "max": three(t.front_max),
                    "last": ms(t.front_last),
                }));
            }
            let when = Utime::new(t.last_update, 0).ctime();
            json!({"osd": osd, "last update": when, "interfaces": interfaces})
        };
        Value::Array(self.hb_pingtime.iter().map(entry).collect())
    }
}

impl Dump for OsdStat {
    fn dump(&self) -> Value {
        let mut value = self.dump_without_net();
        if let Some(map) = value.as_object_mut() {
            map.insert("network_ping_times".into(), self.dump_ping_times());
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_have_cephs_names_in_cephs_order() {
        let state = PgState::CLEAN | PgState::ACTIVE | PgState::LAGGY | PgState::DEEP_SCRUB | PgState::SCRUBBING;
        assert_eq!(state.to_string(), "active+clean+scrubbing+deep+laggy");
        assert_eq!(PgState(0).to_string(), "unknown");
        assert_eq!(PgState::from_name("peering"), Some(PgState::PEERING));
        assert_eq!(PgState::from_name("sleeping"), None);
        let mut seen = 0;
        for (state, _) in PgState::SHOWN {
            assert_eq!(seen & state.0, 0);
            seen |= state.0;
        }
    }

    #[test]
    fn the_upper_half_of_the_state_travels_apart() {
        let stat = PgStat { state: PgState::LAGGY | PgState::ACTIVE, up: vec![OsdId(1)], ..Default::default() };
        assert_eq!(PgStat::from_bytes(&stat.to_bytes(Features::ALL)).unwrap(), stat);
    }

    #[test]
    fn latencies_are_milliseconds_to_old_peers() {
        let stat = PerfStat { commit_latency_ns: 2_500_000, apply_latency_ns: 1_000_000 };
        assert_eq!(stat.to_bytes(Features(0)).as_ref(), [1, 1, 8, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0]);
        assert_eq!(PerfStat::from_bytes(&stat.to_bytes(features::PACIFIC)).unwrap().commit_latency_ns, 2_000_000);
        assert_eq!(PerfStat::from_bytes(&stat.to_bytes(Features::ALL)).unwrap(), stat);
    }

    #[test]
    fn sums_subtract_what_they_added() {
        let one = ObjectStatSum { num_bytes: 5, num_flush_mode_high: 1, num_objects_repaired: 2, ..Default::default() };
        let mut sum = one;
        sum.add(&one);
        assert_eq!(sum.num_bytes, 10);
        sum.sub(&one);
        assert_eq!(sum, one);
        sum.sub(&one);
        sum.sub(&one);
        sum.floor(0);
        assert_eq!(sum, ObjectStatSum::default());
    }
}
