//! What is kept of scrubs: options, which ones this OSD takes part in, and scans under way.

use bytes::Bytes;
use denc::crc::Sum;
use pg::{Backfill, ScrubKind, ScrubMap, ScrubObject};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};
use types::{ObjectId, SpgId};

/// Options of scrubs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ScrubSettings {
    /// `osd_max_scrubs`: how many an OSD takes part in.
    pub most: usize,
    /// `osd_scrub_overdue_factor`: up to how many times as many, for PGs that are late.
    pub overdue_factor: f64,
    /// `osd_scrub_min_interval` and so on, for pools that do not say otherwise.
    pub min_interval: f64,
    /// `osd_scrub_max_interval`.
    pub max_interval: f64,
    /// `osd_deep_scrub_interval`.
    pub deep_interval: f64,
    /// `osd_scrub_interval_randomize_ratio`.
    pub randomize: f64,
    /// `osd_deep_scrub_randomize_ratio`.
    pub deep_randomize: f64,
    /// `osd_scrub_begin_hour`, `osd_scrub_begin_week_day`.
    pub begin: (u32, u32),
    /// `osd_scrub_end_hour`, `osd_scrub_end_week_day`.
    pub end: (u32, u32),
    /// `osd_scrub_sleep`: between two slices.
    pub sleep: Duration,
    /// `osd_deep_scrub_stride`: bytes that one slice reads.
    pub stride: u64,
    /// `osd_deep_scrub_keys`: omap rows that one slice reads.
    pub keys: usize,
    /// Make way for clients: nothing else does.
    pub gently: bool,
}

impl Default for ScrubSettings {
    fn default() -> Self {
        const DAY: f64 = 86400.0;
        ScrubSettings {
            most: 1,
            overdue_factor: 3.0,
            min_interval: DAY,
            max_interval: 7.0 * DAY,
            deep_interval: 7.0 * DAY,
            randomize: 0.5,
            deep_randomize: 0.15,
            begin: (0, 0),
            end: (0, 0),
            sleep: Duration::ZERO,
            stride: 512 << 10,
            keys: 1024,
            gently: true,
        }
    }
}

/// A pool's settings of scrubs.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct ScrubRules {
    /// Flag `noscrub`, of the cluster or the pool.
    pub no_scrub: bool,
    /// Flag `nodeep-scrub`.
    pub no_deep_scrub: bool,
    /// The pool's `scrub_min_interval`.
    pub min_interval: Option<f64>,
    /// The pool's `scrub_max_interval`.
    pub max_interval: Option<f64>,
    /// The pool's `deep_scrub_interval`.
    pub deep_interval: Option<f64>,
}

/// Which scrubs this OSD takes part in, and which are to come.
#[derive(Default)]
pub(crate) struct Scrubs {
    /// Led from here; whether they were wanted.
    pub(crate) own: BTreeMap<SpgId, (ScrubKind, bool)>,
    pub(crate) others: BTreeSet<SpgId>,
    /// Asked for by an operator, or following from another scrub.
    pub(crate) wanted: BTreeMap<SpgId, ScrubKind>,
    /// What could not begin, and when to try again.
    pub(crate) later: BTreeMap<SpgId, Instant>,
    /// When this OSD may try anything again: primaries that try all the time keep turns from each
    /// other.
    pub(crate) rest: Option<Instant>,
}

/// How many scrubs an OSD takes part in at the same time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Turns {
    /// Of any PG.
    pub(crate) most: usize,
    /// The one that is begun being late.
    pub(crate) late: usize,
}

impl Scrubs {
    pub(crate) fn has_turn(&self, turns: Turns, late: bool) -> bool {
        let most = if late { turns.late } else { turns.most };
        self.own.len() + self.others.len() < most.max(1)
    }

    pub(crate) fn may_try(&self, pgid: SpgId, now: Instant) -> bool {
        !self.own.contains_key(&pgid) && self.later.get(&pgid).is_none_or(|at| *at <= now)
    }
}

/// What a scrub asks of this OSD, and how far that is.
pub(crate) struct Scan {
    pub(crate) after: Backfill,
    pub(crate) upto: Backfill,
    pub(crate) deep: bool,
    pub(crate) max: usize,
    /// Objects that are still to be looked at.
    pub(crate) listed: Option<VecDeque<ObjectId>>,
    /// The object that is being read.
    pub(crate) current: Option<Reading>,
    pub(crate) map: ScrubMap,
    /// Bytes that the slice has read.
    pub(crate) bytes: u64,
}

pub(crate) struct Reading {
    pub(crate) oid: ObjectId,
    pub(crate) object: ScrubObject,
    /// Data up to here is read.
    pub(crate) data_to: u64,
    pub(crate) data: Sum,
    /// Of a shard: its data folded.
    pub(crate) fold: [u8; pg::scrub::shards::FOLD_BYTES],
    pub(crate) omap: Omap,
}

pub(crate) enum Omap {
    /// Not begun.
    Header,
    /// Rows after this one, with what was read before in the checksum.
    Rows(Option<Bytes>, u32),
}
