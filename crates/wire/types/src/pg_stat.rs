//! What the primary of a placement group reports.

use crate::dump::{Dump, shown};
use crate::pgid::{PgId, PgShard};
use crate::stats::ObjectStatCollection;
use crate::{Epoch, Eversion, IntervalSet, OsdId, Utime};
use bytes::BytesMut;
use denc::{Decode, DecodeError, Encode, Features, Reader, Result, envelope};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

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

/// What a placement group is doing (Ceph: `PG_STATE_*`, `osd/osd_types.h`). No bit at all is shown
/// as `unknown`.
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
    /// The acting set.
    pub acting: Vec<OsdId>,
    /// OSDs with a whole copy.
    pub avail_no_missing: Vec<PgShard>,
    /// How many objects are on which set of OSDs.
    pub object_location_counts: BTreeMap<BTreeSet<PgShard>, i32>,
    /// Since when it is mapped like this.
    pub mapping_epoch: Epoch,
    /// OSDs that keep it from peering.
    pub blocked_by: Vec<OsdId>,
    /// Snapshots without an object that is left to trim.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_have_cephs_names_in_cephs_order() {
        let state = PgState::CLEAN
            | PgState::ACTIVE
            | PgState::LAGGY
            | PgState::DEEP_SCRUB
            | PgState::SCRUBBING;
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
        let stat = PgStat {
            state: PgState::LAGGY | PgState::ACTIVE,
            up: vec![OsdId(1)],
            ..Default::default()
        };
        assert_eq!(PgStat::from_bytes(&stat.to_bytes(Features::ALL)).unwrap(), stat);
    }
}
