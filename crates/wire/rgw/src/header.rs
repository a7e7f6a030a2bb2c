//! The header of a bucket's index: totals, and what goes on with the index.

use crate::entry::{DirEntry, EntryMeta, ObjCategory};
use crate::{open_enum, rounded_size};
use bytes::{Bytes, BytesMut};
use denc::{Decode, Encode, Features, Reader};
use denc_derive::Denc;
use std::collections::BTreeMap;

/// Totals of a category (Ceph: `rgw_bucket_category_stats`, `cls/rgw/cls_rgw_types.h`, version 3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 3, compat = 2, oldest = 3)]
pub struct CategoryStats {
    /// Bytes that clients see.
    pub total_size: u64,
    /// The same, each object rounded up.
    pub total_size_rounded: u64,
    /// Objects.
    pub num_entries: u64,
    /// Bytes that they take.
    pub actual_size: u64,
}

impl CategoryStats {
    /// The totals of one object.
    pub fn of(meta: &EntryMeta) -> Self {
        CategoryStats {
            total_size: meta.accounted_size,
            total_size_rounded: rounded_size(meta.accounted_size),
            num_entries: 1,
            actual_size: meta.size,
        }
    }

    /// Adds. Totals wrap around, as in Ceph: a wrong total must not keep a bucket from working.
    pub fn add(&mut self, other: CategoryStats) {
        self.change(other, u64::wrapping_add);
    }

    /// Takes away.
    pub fn sub(&mut self, other: CategoryStats) {
        self.change(other, u64::wrapping_sub);
    }

    fn change(&mut self, other: CategoryStats, op: fn(u64, u64) -> u64) {
        self.total_size = op(self.total_size, other.total_size);
        self.total_size_rounded = op(self.total_size_rounded, other.total_size_rounded);
        self.num_entries = op(self.num_entries, other.num_entries);
        self.actual_size = op(self.actual_size, other.actual_size);
    }
}

open_enum! {
    /// Whether the entries are being moved to other shards (Ceph: `cls_rgw_reshard_status`).
    ReshardStatus(u8) {
        /// They are not.
        NOT_RESHARDING = 0,
        /// They are.
        IN_PROGRESS = 1,
        /// They were.
        DONE = 2,
    }
}

/// Where entries are being moved to (Ceph: `cls_rgw_bucket_instance_entry`,
/// `cls/rgw/cls_rgw_types.h`, version 1; 17.2 writes version 3, which has the same fields, and its
/// first releases version 2, which has only the first).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceEntry {
    /// Whether they are being moved.
    pub reshard_status: ReshardStatus,
    /// The bucket instance that takes them.
    pub new_bucket_instance_id: Bytes,
    /// How many shards that has, -1 if not known.
    pub num_shards: i32,
}

impl Default for InstanceEntry {
    fn default() -> Self {
        InstanceEntry {
            reshard_status: ReshardStatus::NOT_RESHARDING,
            new_bucket_instance_id: Bytes::new(),
            num_shards: -1,
        }
    }
}

impl Encode for InstanceEntry {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        denc::envelope(out, 1, 1, |out| {
            self.reshard_status.encode(out, f);
            self.new_bucket_instance_id.encode(out, f);
            self.num_shards.encode(out, f);
        });
    }
}

impl Decode for InstanceEntry {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        let (v, mut r) = r.envelope("cls_rgw_bucket_instance_entry", 3)?;
        let mut e = InstanceEntry { reshard_status: r.get()?, ..InstanceEntry::default() };
        if v != 2 {
            e.new_bucket_instance_id = r.get()?;
            e.num_shards = r.get()?;
        }
        Ok(e)
    }
}

/// The header (Ceph: `rgw_bucket_dir_header`, `cls/rgw/cls_rgw_types.h`, version 7).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 7, compat = 2, oldest = 4)]
pub struct DirHeader {
    /// Totals.
    pub stats: BTreeMap<ObjCategory, CategoryStats>,
    /// Seconds after which an announced change counts as lost; 0 for
    /// [`DEFAULT_TAG_TIMEOUT_SECS`].
    pub tag_timeout: u64,
    /// Counts the changes of the header.
    pub ver: u64,
    /// Not in use.
    pub master_ver: u64,
    /// The greatest key of the log of changes.
    #[denc(since = 5)]
    pub max_marker: Bytes,
    /// Where entries are being moved to.
    #[denc(since = 6)]
    pub new_instance: InstanceEntry,
    /// Changes are not logged.
    #[denc(since = 7)]
    pub syncstopped: bool,
}

/// What a header without a timeout means (Ceph: `CEPH_RGW_TAG_TIMEOUT`).
pub const DEFAULT_TAG_TIMEOUT_SECS: u64 = 120;

impl DirHeader {
    /// Counts an object.
    pub fn account(&mut self, meta: &EntryMeta) {
        self.stats.entry(meta.category).or_default().add(CategoryStats::of(meta));
    }

    /// Counts an object no more.
    pub fn unaccount(&mut self, meta: &EntryMeta) {
        self.stats.entry(meta.category).or_default().sub(CategoryStats::of(meta));
    }
}

/// Header and entries (Ceph: `rgw_bucket_dir`, `cls/rgw/cls_rgw_types.h`, version 2).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 2, compat = 2, oldest = 2)]
pub struct Dir {
    /// The header.
    pub header: DirHeader,
    /// Entries by index key.
    pub entries: BTreeMap<Bytes, DirEntry>,
}
