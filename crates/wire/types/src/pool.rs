//! Pools.

use crate::dump::{Dump, shown};
use crate::object::{ObjectId, hash_key};
use crate::pgid::{PgId, mask_of, stable_mod};
use crate::{Epoch, Eversion, IntervalSet, PoolId, SnapContext, SnapId, Utime, features, hash};
use bytes::{Bytes, BytesMut};
use denc::{Decode, DecodeError, Encode, Features, Reader, Result, envelope};
use denc_derive::Denc;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

pub use crate::pool_opts::{HitSetParams, PoolOptType, PoolOptValue, PoolOpts};

/// A snapshot of a whole pool (Ceph: `pool_snap_info_t`, version 2).
#[derive(Clone, PartialEq, Eq, Default, Debug, Denc)]
#[denc(version = 2, compat = 2, oldest = 2)]
pub struct PoolSnapInfo {
    /// Its number.
    pub snapid: SnapId,
    /// When it was made.
    pub stamp: Utime,
    /// Its name.
    pub name: String,
}

impl Dump for PoolSnapInfo {
    fn dump(&self) -> Value {
        json!({"snapid": self.snapid, "stamp": shown(self.stamp), "name": self.name})
    }
}

/// What is known of the last merge of groups (Ceph: `pg_merge_meta_t`, version 1).
#[derive(Clone, PartialEq, Eq, Default, Debug, Denc)]
#[denc(version = 1, compat = 1)]
pub struct PgMergeMeta {
    /// The group that went.
    pub source_pgid: PgId,
    /// When both were ready.
    pub ready_epoch: Epoch,
    /// When it was active.
    pub last_epoch_started: Epoch,
    /// When it was clean.
    pub last_epoch_clean: Epoch,
    /// Last update of the group that went.
    pub source_version: Eversion,
    /// Last update of the group that took it in.
    pub target_version: Eversion,
}

impl Dump for PgMergeMeta {
    fn dump(&self) -> Value {
        json!({
            "source_pgid": shown(self.source_pgid),
            "ready_epoch": self.ready_epoch,
            "last_epoch_started": self.last_epoch_started,
            "last_epoch_clean": self.last_epoch_clean,
            "source_version": shown(self.source_version),
            "target_version": shown(self.target_version),
        })
    }
}

/// Flags of a pool (Ceph: `pg_pool_t::FLAG_*`).
pub mod flag {
    /// The pool's number takes part in the placement hash.
    pub const HASHPSPOOL: u64 = 1;
    /// Full.
    pub const FULL: u64 = 1 << 1;
    /// Erasure-coded objects may be overwritten.
    pub const EC_OVERWRITES: u64 = 1 << 2;
    /// Clones may be missing.
    pub const INCOMPLETE_CLONES: u64 = 1 << 3;
    /// Must not be deleted.
    pub const NODELETE: u64 = 1 << 4;
    /// The number of groups must not change.
    pub const NOPGCHANGE: u64 = 1 << 5;
    /// Size and min_size must not change.
    pub const NOSIZECHANGE: u64 = 1 << 6;
    /// What is written need not stay in a cache.
    pub const WRITE_FADVISE_DONTNEED: u64 = 1 << 7;
    /// No periodic scrub.
    pub const NOSCRUB: u64 = 1 << 8;
    /// No periodic deep scrub.
    pub const NODEEP_SCRUB: u64 = 1 << 9;
    /// The quota is used up; `FULL` is set too.
    pub const FULL_QUOTA: u64 = 1 << 10;
    /// Nearly full.
    pub const NEARFULL: u64 = 1 << 11;
    /// Too full for backfill.
    pub const BACKFILLFULL: u64 = 1 << 12;
    /// Clients manage snapshots.
    pub const SELFMANAGED_SNAPS: u64 = 1 << 13;
    /// The pool has snapshots of its own.
    pub const POOL_SNAPS: u64 = 1 << 14;
    /// The first groups are being created.
    pub const CREATING: u64 = 1 << 15;
    /// Every request of a client is answered with EIO.
    pub const EIO: u64 = 1 << 16;
    /// The pool will be large: it begins with many groups.
    pub const BULK: u64 = 1 << 17;

    const NAMES: [&str; 18] = [
        "hashpspool",
        "full",
        "ec_overwrites",
        "incomplete_clones",
        "nodelete",
        "nopgchange",
        "nosizechange",
        "write_fadvise_dontneed",
        "noscrub",
        "nodeep-scrub",
        "full_quota",
        "nearfull",
        "backfillfull",
        "selfmanaged_snaps",
        "pool_snaps",
        "creating",
        "eio",
        "bulk",
    ];

    /// All flags of `flags` by name, with commas.
    pub fn names(flags: u64) -> String {
        let set = (0..64usize).filter(|bit| flags & 1 << bit != 0);
        let names: Vec<_> = set.map(|bit| NAMES.get(bit).copied().unwrap_or("???")).collect();
        names.join(",")
    }

    /// The flag with this name.
    pub fn by_name(name: &str) -> Option<u64> {
        NAMES.iter().position(|n| *n == name).map(|bit| 1 << bit)
    }
}

/// How a pool keeps several copies.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug, Denc)]
#[denc(repr = "u8")]
pub enum PoolType {
    /// Not filled in; no pool in use has it.
    Unset = 0,
    /// Whole copies (`pg_pool_t::TYPE_REPLICATED`).
    #[default]
    Replicated = 1,
    /// Erasure-coded (`pg_pool_t::TYPE_ERASURE`).
    Erasure = 3,
}

impl fmt::Display for PoolType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PoolType::Unset => "???",
            PoolType::Replicated => "replicated",
            PoolType::Erasure => "erasure",
        })
    }
}

/// Whether the number of groups follows the pool's content (Ceph: `pg_autoscale_mode_t`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug, Denc)]
pub struct AutoscaleMode(pub u8);

impl AutoscaleMode {
    /// No.
    pub const OFF: AutoscaleMode = AutoscaleMode(0);
    /// Only a warning.
    pub const WARN: AutoscaleMode = AutoscaleMode(1);
    /// Yes.
    pub const ON: AutoscaleMode = AutoscaleMode(2);

    /// Ceph's word.
    pub fn name(self) -> &'static str {
        match self {
            Self::OFF => "off",
            Self::WARN => "warn",
            Self::ON => "on",
            _ => "???",
        }
    }

    /// The mode of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::OFF, Self::WARN, Self::ON].into_iter().find(|m| m.name() == name)
    }
}

/// Cache modes by number (Ceph: `pg_pool_t::cache_mode_t`).
const CACHE_MODES: [&str; 7] =
    ["none", "writeback", "forward", "readonly", "readforward", "readproxy", "proxy"];

/// Applications of a pool and their metadata.
pub type ApplicationMetadata = BTreeMap<String, BTreeMap<String, String>>;

/// A pool (Ceph: `pg_pool_t`, `osd/osd_types.h`, version 29; 30 for stretch pools).
///
/// Reads versions 21 and later. Peers without `OSD_POOLRESEND` (before 2013) get version 14; the
/// still older forms are not written.
#[derive(Clone, PartialEq, Debug)]
pub struct PgPool {
    /// When it was created.
    pub create_time: Utime,
    /// See [`flag`].
    pub flags: u64,
    /// Replicated or erasure-coded.
    pub kind: PoolType,
    /// Copies (or shards) of each object.
    pub size: u8,
    /// Copies without which nothing is served.
    pub min_size: u8,
    /// Rule of the CRUSH map.
    pub crush_rule: u8,
    /// Hash of names, see [`hash::str_hash`].
    pub object_hash: u8,
    /// Whether `pg_num` follows the content.
    pub pg_autoscale_mode: AutoscaleMode,
    /// Groups; objects are folded into this number. At least 1 in a pool that is in use.
    pub pg_num: u32,
    /// Groups for placement: at most `pg_num`.
    pub pgp_num: u32,
    /// `pg_num` that a merge under way leads to.
    pub pg_num_pending: u32,
    /// `pg_num` to go to.
    pub pg_num_target: u32,
    /// `pgp_num` to go to.
    pub pgp_num_target: u32,
    /// Obsolete.
    pub properties: BTreeMap<String, String>,
    /// Name of the erasure code profile.
    pub erasure_code_profile: String,
    /// Last epoch in which the pool changed.
    pub last_change: Epoch,
    /// Stretch: this many buckets must take part, 0 if not a stretch pool.
    pub peering_crush_bucket_count: u32,
    /// Stretch: copies are spread over this many buckets.
    pub peering_crush_bucket_target: u32,
    /// Stretch: type of bucket.
    pub peering_crush_bucket_barrier: u32,
    /// Stretch: this bucket must take part, `0x7fffffff` for none.
    pub peering_crush_mandatory_member: i32,
    /// Clients resend what they sent before this epoch.
    pub last_force_op_resend: Epoch,
    /// The same for clients before Nautilus.
    pub last_force_op_resend_prenautilus: Epoch,
    /// The same for clients before Luminous.
    pub last_force_op_resend_preluminous: Epoch,
    /// The last merge.
    pub last_pg_merge_meta: PgMergeMeta,
    /// Newest snapshot number.
    pub snap_seq: SnapId,
    /// Epoch of the last snapshot.
    pub snap_epoch: Epoch,
    /// Obsolete owner.
    pub auid: u64,
    /// Most bytes, 0 for no limit.
    pub quota_max_bytes: u64,
    /// Most objects, 0 for no limit.
    pub quota_max_objects: u64,
    /// Snapshots of the pool.
    pub snaps: BTreeMap<SnapId, PoolSnapInfo>,
    /// Snapshots removed, as kept before Octopus.
    pub removed_snaps: IntervalSet,
    /// Pools that are tiers of this one.
    pub tiers: BTreeSet<u64>,
    /// Pool of which this is a tier, or -1.
    pub tier_of: i64,
    /// Pool to read from instead, or -1.
    pub read_tier: i64,
    /// Pool to write to instead, or -1.
    pub write_tier: i64,
    /// Number of the cache mode.
    pub cache_mode: u8,
    /// Cache tier: most bytes.
    pub target_max_bytes: u64,
    /// Cache tier: most objects.
    pub target_max_objects: u64,
    /// Cache tier: dirty part before flushing, in millionths.
    pub cache_target_dirty_ratio_micro: u32,
    /// Cache tier: dirty part before flushing fast, in millionths.
    pub cache_target_dirty_high_ratio_micro: u32,
    /// Cache tier: used part before evicting, in millionths.
    pub cache_target_full_ratio_micro: u32,
    /// Cache tier: least age to flush, in seconds.
    pub cache_min_flush_age: u32,
    /// Cache tier: least age to evict, in seconds.
    pub cache_min_evict_age: u32,
    /// Cache tier: hit sets.
    pub hit_set_params: HitSetParams,
    /// Cache tier: seconds of each hit set.
    pub hit_set_period: u32,
    /// Cache tier: how many hit sets.
    pub hit_set_count: u32,
    /// Cache tier: hit sets are named in GMT.
    pub use_gmt_hitset: bool,
    /// Cache tier: hit sets to look at before promoting on read.
    pub min_read_recency_for_promote: u32,
    /// Cache tier: hit sets to look at before promoting on write.
    pub min_write_recency_for_promote: u32,
    /// Cache tier: percent by which older hit sets count less.
    pub hit_set_grade_decay_rate: u32,
    /// Cache tier: hit sets to look at for the temperature.
    pub hit_set_search_last_n: u32,
    /// Erasure coding: bytes of a stripe.
    pub stripe_width: u32,
    /// Objects expected, 0 if unknown.
    pub expected_num_objects: u64,
    /// Read from all shards and take the first.
    pub fast_read: bool,
    /// Options.
    pub opts: PoolOpts,
    /// What the pool is for.
    pub application_metadata: ApplicationMetadata,
}

/// `CRUSH_ITEM_NONE`.
const NO_BUCKET: i32 = 0x7fff_ffff;

impl Default for PgPool {
    fn default() -> Self {
        PgPool {
            create_time: Utime::ZERO,
            flags: 0,
            kind: PoolType::Replicated,
            size: 0,
            min_size: 0,
            crush_rule: 0,
            object_hash: hash::RJENKINS,
            pg_autoscale_mode: AutoscaleMode(u8::MAX),
            pg_num: 0,
            pgp_num: 0,
            pg_num_pending: 0,
            pg_num_target: 0,
            pgp_num_target: 0,
            properties: BTreeMap::new(),
            erasure_code_profile: String::new(),
            last_change: Epoch(0),
            peering_crush_bucket_count: 0,
            peering_crush_bucket_target: 0,
            peering_crush_bucket_barrier: 0,
            peering_crush_mandatory_member: NO_BUCKET,
            last_force_op_resend: Epoch(0),
            last_force_op_resend_prenautilus: Epoch(0),
            last_force_op_resend_preluminous: Epoch(0),
            last_pg_merge_meta: PgMergeMeta::default(),
            snap_seq: SnapId(0),
            snap_epoch: Epoch(0),
            auid: 0,
            quota_max_bytes: 0,
            quota_max_objects: 0,
            snaps: BTreeMap::new(),
            removed_snaps: IntervalSet::new(),
            tiers: BTreeSet::new(),
            tier_of: -1,
            read_tier: -1,
            write_tier: -1,
            cache_mode: 0,
            target_max_bytes: 0,
            target_max_objects: 0,
            cache_target_dirty_ratio_micro: 0,
            cache_target_dirty_high_ratio_micro: 0,
            cache_target_full_ratio_micro: 0,
            cache_min_flush_age: 0,
            cache_min_evict_age: 0,
            hit_set_params: HitSetParams::None,
            hit_set_period: 0,
            hit_set_count: 0,
            use_gmt_hitset: true,
            min_read_recency_for_promote: 0,
            min_write_recency_for_promote: 0,
            hit_set_grade_decay_rate: 0,
            hit_set_search_last_n: 0,
            stripe_width: 0,
            expected_num_objects: 0,
            fast_read: false,
            opts: PoolOpts::default(),
            application_metadata: BTreeMap::new(),
        }
    }
}

impl PgPool {
    /// Mask that goes with `pg_num`.
    pub fn pg_num_mask(&self) -> u32 {
        mask_of(self.pg_num)
    }

    /// Mask that goes with `pgp_num`.
    pub fn pgp_num_mask(&self) -> u32 {
        mask_of(self.pgp_num)
    }

    /// Whether all bits of `flags` are set.
    pub fn has_flag(&self, flags: u64) -> bool {
        self.flags & flags == flags
    }

    /// Whether copies are whole.
    pub fn is_replicated(&self) -> bool {
        self.kind == PoolType::Replicated
    }

    /// Whether the pool makes sure that several sites take part.
    pub fn is_stretch(&self) -> bool {
        self.peering_crush_bucket_count != 0
    }

    /// Hash of a locator key or name (Ceph: `hash_key`).
    pub fn hash_key(&self, key: &[u8], namespace: &[u8]) -> u32 {
        hash_key(|data| hash::str_hash(self.object_hash, data), namespace, key)
    }

    /// An object of this pool, of which the number is `pool`.
    pub fn object_id(
        &self,
        pool: PoolId,
        namespace: impl Into<Bytes>,
        name: impl Into<Bytes>,
        key: impl Into<Bytes>,
        snap: SnapId,
    ) -> ObjectId {
        let (namespace, name, key) = (namespace.into(), name.into(), key.into());
        let hash = self.hash_key(if key.is_empty() { &name } else { &key }, &namespace);
        ObjectId::with_hash(pool, namespace, name, key, snap, hash)
    }

    /// Folds a full hash into a group's seed (Ceph: `raw_hash_to_pg`).
    pub fn raw_hash_to_seed(&self, hash: u32) -> u32 {
        stable_mod(hash, self.pg_num, self.pg_num_mask())
    }

    /// Folds a full hash into a group (Ceph: `raw_pg_to_pg`).
    pub fn raw_pg_to_pg(&self, raw: PgId) -> PgId {
        PgId { seed: self.raw_hash_to_seed(raw.seed), ..raw }
    }

    /// Whether objects belong to groups of `pgp_num`, hashed with the pool's number for CRUSH. The
    /// seed that goes into the hash (Ceph: the first half of `raw_pg_to_pps`).
    pub fn placement_base(&self, seed: u32) -> u32 {
        stable_mod(seed, self.pgp_num, self.pgp_num_mask())
    }

    /// Whether the pool has snapshots of its own.
    pub fn is_pool_snaps_mode(&self) -> bool {
        self.has_flag(flag::POOL_SNAPS)
    }

    /// Whether clients manage snapshots.
    pub fn is_unmanaged_snaps_mode(&self) -> bool {
        self.has_flag(flag::SELFMANAGED_SNAPS)
    }

    /// Whether a snapshot is gone. In pools whose clients manage snapshots, only as far as
    /// `removed_snaps` knows.
    pub fn is_removed_snap(&self, snap: SnapId) -> bool {
        match self.is_pool_snaps_mode() {
            true => snap <= self.snap_seq && !self.snaps.contains_key(&snap),
            false => self.removed_snaps.contains(snap.0),
        }
    }

    /// The pool's snapshot with this name.
    pub fn snap_by_name(&self, name: &str) -> Option<SnapId> {
        self.snaps.values().find(|s| s.name == name).map(|s| s.snapid)
    }

    /// Makes a snapshot of the pool. The caller made sure that clients do not manage snapshots.
    pub fn add_snap(&mut self, name: &str, stamp: Utime) -> SnapId {
        self.flags |= flag::POOL_SNAPS;
        self.snap_seq.0 += 1;
        let snapid = self.snap_seq;
        self.snaps.insert(snapid, PoolSnapInfo { snapid, stamp, name: name.to_owned() });
        snapid
    }

    /// Allocates a snapshot number. The caller made sure that the pool has no snapshots of its own.
    /// The first number is 2: 1 marks a pool of this kind for old peers.
    pub fn add_unmanaged_snap(&mut self) -> SnapId {
        self.flags |= flag::SELFMANAGED_SNAPS;
        self.snap_seq.0 = self.snap_seq.0.max(1) + 1;
        self.snap_seq
    }

    /// Removes a snapshot of the pool; false if there is none.
    pub fn remove_snap(&mut self, snap: SnapId) -> bool {
        let removed = self.snaps.remove(&snap).is_some();
        if removed {
            self.snap_seq.0 += 1;
        }
        removed
    }

    /// Notes that a snapshot number was given back.
    pub fn remove_unmanaged_snap(&mut self) {
        self.snap_seq.0 += 1;
    }

    /// What writers that bring no context of their own must preserve.
    pub fn snap_context(&self) -> SnapContext {
        SnapContext { seq: self.snap_seq, snaps: self.snaps.keys().rev().copied().collect() }
    }

    /// Ceph's name of the cache mode.
    pub fn cache_mode_name(&self) -> &'static str {
        CACHE_MODES.get(usize::from(self.cache_mode)).copied().unwrap_or("unknown")
    }

    /// Weights of hit sets from new to old, in millionths.
    fn grade_table(&self) -> Vec<u32> {
        let mut grade = 1_000_000u32;
        let keep = 1.0 - f64::from(self.hit_set_grade_decay_rate) / 100.0;
        // The count comes from a peer; no tier has more sets than this.
        (0..self.hit_set_count.min(1000))
            .map(|_| {
                grade = (f64::from(grade) * keep) as u32;
                grade
            })
            .collect()
    }

    /// The version that a peer gets.
    fn version_for(&self, f: Features) -> u8 {
        if !f.has(features::OSD_POOLRESEND) {
            14
        } else if !f.has(features::NEW_OSDOP_ENCODING) {
            21
        } else if !f.has(features::SERVER_LUMINOUS) {
            24
        } else if !f.has(features::SERVER_MIMIC) {
            26
        } else if !f.has(features::SERVER_NAUTILUS) {
            27
        } else if !self.is_stretch() {
            29
        } else {
            30
        }
    }
}

impl Encode for PgPool {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        let v = self.version_for(f);
        envelope(out, v, 5, |out| {
            self.kind.encode(out, f);
            self.size.encode(out, f);
            self.crush_rule.encode(out, f);
            self.object_hash.encode(out, f);
            self.pg_num.encode(out, f);
            self.pgp_num.encode(out, f);
            // No localized groups.
            0u64.encode(out, f);
            self.last_change.encode(out, f);
            self.snap_seq.encode(out, f);
            self.snap_epoch.encode(out, f);
            self.snaps.encode(out, f);
            self.removed_snaps.encode(out, f);
            self.auid.encode(out, f);
            let unknown_before_mimic = flag::SELFMANAGED_SNAPS | flag::POOL_SNAPS | flag::CREATING;
            match v {
                15..27 => (self.flags & !unknown_before_mimic).encode(out, f),
                _ => self.flags.encode(out, f),
            }
            // Crash replay interval.
            0u32.encode(out, f);
            self.min_size.encode(out, f);
            self.quota_max_bytes.encode(out, f);
            self.quota_max_objects.encode(out, f);
            self.tiers.encode(out, f);
            self.tier_of.encode(out, f);
            self.cache_mode.encode(out, f);
            self.read_tier.encode(out, f);
            self.write_tier.encode(out, f);
            self.properties.encode(out, f);
            self.hit_set_params.encode(out, f);
            self.hit_set_period.encode(out, f);
            self.hit_set_count.encode(out, f);
            self.stripe_width.encode(out, f);
            self.target_max_bytes.encode(out, f);
            self.target_max_objects.encode(out, f);
            self.cache_target_dirty_ratio_micro.encode(out, f);
            self.cache_target_full_ratio_micro.encode(out, f);
            self.cache_min_flush_age.encode(out, f);
            self.cache_min_evict_age.encode(out, f);
            self.erasure_code_profile.encode(out, f);
            if v < 21 {
                return;
            }
            self.last_force_op_resend_preluminous.encode(out, f);
            self.min_read_recency_for_promote.encode(out, f);
            self.expected_num_objects.encode(out, f);
            self.cache_target_dirty_high_ratio_micro.encode(out, f);
            self.min_write_recency_for_promote.encode(out, f);
            self.use_gmt_hitset.encode(out, f);
            if v >= 24 {
                self.fast_read.encode(out, f);
                self.hit_set_grade_decay_rate.encode(out, f);
                self.hit_set_search_last_n.encode(out, f);
                self.opts.encode(out, f);
            }
            if v >= 26 {
                self.last_force_op_resend_prenautilus.encode(out, f);
                self.application_metadata.encode(out, f);
            }
            if v >= 27 {
                self.create_time.encode(out, f);
            }
            if v >= 29 {
                self.pg_num_target.encode(out, f);
                self.pgp_num_target.encode(out, f);
                self.pg_num_pending.encode(out, f);
                // Two epochs that only 14.1 used.
                0u64.encode(out, f);
                self.last_force_op_resend.encode(out, f);
                self.pg_autoscale_mode.encode(out, f);
                self.last_pg_merge_meta.encode(out, f);
            }
            if v >= 30 {
                self.peering_crush_bucket_count.encode(out, f);
                self.peering_crush_bucket_target.encode(out, f);
                self.peering_crush_bucket_barrier.encode(out, f);
                self.peering_crush_mandatory_member.encode(out, f);
            }
        });
    }
}

impl Decode for PgPool {
    fn decode(r: &mut Reader) -> Result<Self> {
        // Writers keep compat at 5 for ever, so newer versions are readable too.
        let (struct_v, mut r) = r.envelope("pg_pool_t", 32)?;
        if struct_v < 21 {
            return Err(DecodeError::TooOld { what: "pg_pool_t", struct_v, oldest: 21 });
        }
        let mut p = PgPool::decode_identity(&mut r)?;
        p.decode_tiers(&mut r)?;
        p.decode_since_22(struct_v, &mut r)?;
        p.decode_autoscale(struct_v, &mut r)?;
        p.decode_stretch(struct_v, &mut r)?;
        Ok(p)
    }
}

/// Parts of the encoding, in their order.
impl PgPool {
    /// What the pool is, and its snapshots.
    fn decode_identity(r: &mut Reader) -> Result<PgPool> {
        let mut p = PgPool {
            kind: r.get()?,
            size: r.get()?,
            crush_rule: r.get()?,
            object_hash: r.get()?,
            pg_num: r.get()?,
            pgp_num: r.get()?,
            ..PgPool::default()
        };
        r.skip("pg_pool_t localized groups", 8)?;
        p.last_change = r.get()?;
        p.snap_seq = r.get()?;
        p.snap_epoch = r.get()?;
        p.snaps = r.get()?;
        p.removed_snaps = r.get()?;
        p.auid = r.get()?;
        p.flags = r.get()?;
        r.skip("pg_pool_t crash replay interval", 4)?;
        if p.snap_seq.0 > 0 && p.flags & (flag::SELFMANAGED_SNAPS | flag::POOL_SNAPS) == 0 {
            // Writers before Mimic tell the two kinds apart by whether snapshots were ever removed.
            p.flags |=
                if p.removed_snaps.is_empty() { flag::POOL_SNAPS } else { flag::SELFMANAGED_SNAPS };
        }
        Ok(p)
    }

    /// Quotas, and what cache tiers need.
    fn decode_tiers(&mut self, r: &mut Reader) -> Result<()> {
        self.min_size = r.get()?;
        self.quota_max_bytes = r.get()?;
        self.quota_max_objects = r.get()?;
        self.tiers = r.get()?;
        self.tier_of = r.get()?;
        self.cache_mode = r.get()?;
        self.read_tier = r.get()?;
        self.write_tier = r.get()?;
        self.properties = r.get()?;
        self.hit_set_params = r.get()?;
        self.hit_set_period = r.get()?;
        self.hit_set_count = r.get()?;
        self.stripe_width = r.get()?;
        self.target_max_bytes = r.get()?;
        self.target_max_objects = r.get()?;
        self.cache_target_dirty_ratio_micro = r.get()?;
        self.cache_target_full_ratio_micro = r.get()?;
        self.cache_min_flush_age = r.get()?;
        self.cache_min_evict_age = r.get()?;
        self.erasure_code_profile = r.get()?;
        self.last_force_op_resend_preluminous = r.get()?;
        self.min_read_recency_for_promote = r.get()?;
        self.expected_num_objects = r.get()?;
        self.cache_target_dirty_high_ratio_micro = r.get()?;
        self.min_write_recency_for_promote = r.get()?;
        self.use_gmt_hitset = r.get()?;
        Ok(())
    }

    fn decode_since_22(&mut self, struct_v: u8, r: &mut Reader) -> Result<()> {
        if struct_v >= 22 {
            self.fast_read = r.get()?;
        }
        self.hit_set_search_last_n = 1;
        if struct_v >= 23 {
            self.hit_set_grade_decay_rate = r.get()?;
            self.hit_set_search_last_n = r.get()?;
        }
        if struct_v >= 24 {
            self.opts = r.get()?;
        }
        self.last_force_op_resend_prenautilus =
            if struct_v >= 25 { r.get()? } else { self.last_force_op_resend_preluminous };
        if struct_v >= 26 {
            self.application_metadata = r.get()?;
        }
        if struct_v >= 27 {
            self.create_time = r.get()?;
        }
        Ok(())
    }

    fn decode_autoscale(&mut self, struct_v: u8, r: &mut Reader) -> Result<()> {
        if struct_v >= 28 {
            self.pg_num_target = r.get()?;
            self.pgp_num_target = r.get()?;
            self.pg_num_pending = r.get()?;
            let started = r.get()?;
            let clean = r.get()?;
            self.last_force_op_resend = r.get()?;
            self.pg_autoscale_mode = r.get()?;
            self.last_pg_merge_meta = match struct_v {
                28 => PgMergeMeta {
                    last_epoch_started: started,
                    last_epoch_clean: clean,
                    ..Default::default()
                },
                _ => r.get()?,
            };
        } else {
            self.pg_num_target = self.pg_num;
            self.pgp_num_target = self.pgp_num;
            self.pg_num_pending = self.pg_num;
            self.last_force_op_resend = self.last_force_op_resend_prenautilus;
            self.pg_autoscale_mode = AutoscaleMode::WARN;
        }
        Ok(())
    }

    /// Since version 31 these fields are optional as a whole.
    fn decode_stretch(&mut self, struct_v: u8, r: &mut Reader) -> Result<()> {
        if struct_v == 30 || (struct_v > 30 && r.get::<bool>()?) {
            self.peering_crush_bucket_count = r.get()?;
            self.peering_crush_bucket_target = r.get()?;
            self.peering_crush_bucket_barrier = r.get()?;
            self.peering_crush_mandatory_member = r.get()?;
        }
        Ok(())
    }
}

impl Dump for PgPool {
    fn dump(&self) -> Value {
        let mut map = Map::new();
        let mut put = |name: &str, value: Value| map.insert(name.to_owned(), value);
        put("create_time", shown(self.create_time));
        put("flags", self.flags.into());
        put("flags_names", flag::names(self.flags).into());
        put("type", (self.kind as u8).into());
        put("size", self.size.into());
        put("min_size", self.min_size.into());
        put("crush_rule", self.crush_rule.into());
        put("peering_crush_bucket_count", self.peering_crush_bucket_count.into());
        put("peering_crush_bucket_target", self.peering_crush_bucket_target.into());
        put("peering_crush_bucket_barrier", self.peering_crush_bucket_barrier.into());
        put("peering_crush_bucket_mandatory_member", self.peering_crush_mandatory_member.into());
        put("object_hash", self.object_hash.into());
        put("pg_autoscale_mode", self.pg_autoscale_mode.name().into());
        put("pg_num", self.pg_num.into());
        put("pg_placement_num", self.pgp_num.into());
        put("pg_placement_num_target", self.pgp_num_target.into());
        put("pg_num_target", self.pg_num_target.into());
        put("pg_num_pending", self.pg_num_pending.into());
        put("last_pg_merge_meta", self.last_pg_merge_meta.dump());
        put("last_change", shown(self.last_change));
        put("last_force_op_resend", shown(self.last_force_op_resend));
        put("last_force_op_resend_prenautilus", shown(self.last_force_op_resend_prenautilus));
        put("last_force_op_resend_preluminous", shown(self.last_force_op_resend_preluminous));
        put("auid", self.auid.into());
        put("snap_mode", if self.is_pool_snaps_mode() { "pool" } else { "selfmanaged" }.into());
        put("snap_seq", self.snap_seq.into());
        put("snap_epoch", self.snap_epoch.into());
        put("pool_snaps", crate::dump::list(self.snaps.values()));
        put("removed_snaps", shown(&self.removed_snaps));
        put("quota_max_bytes", self.quota_max_bytes.into());
        put("quota_max_objects", self.quota_max_objects.into());
        put("tiers", json!(self.tiers));
        put("tier_of", self.tier_of.into());
        put("read_tier", self.read_tier.into());
        put("write_tier", self.write_tier.into());
        put("cache_mode", self.cache_mode_name().into());
        put("target_max_bytes", self.target_max_bytes.into());
        put("target_max_objects", self.target_max_objects.into());
        put("cache_target_dirty_ratio_micro", self.cache_target_dirty_ratio_micro.into());
        put("cache_target_dirty_high_ratio_micro", self.cache_target_dirty_high_ratio_micro.into());
        put("cache_target_full_ratio_micro", self.cache_target_full_ratio_micro.into());
        put("cache_min_flush_age", self.cache_min_flush_age.into());
        put("cache_min_evict_age", self.cache_min_evict_age.into());
        put("erasure_code_profile", self.erasure_code_profile.as_str().into());
        put("hit_set_params", self.hit_set_params.dump());
        put("hit_set_period", self.hit_set_period.into());
        put("hit_set_count", self.hit_set_count.into());
        put("use_gmt_hitset", self.use_gmt_hitset.into());
        put("min_read_recency_for_promote", self.min_read_recency_for_promote.into());
        put("min_write_recency_for_promote", self.min_write_recency_for_promote.into());
        put("hit_set_grade_decay_rate", self.hit_set_grade_decay_rate.into());
        put("hit_set_search_last_n", self.hit_set_search_last_n.into());
        put("grade_table", json!(self.grade_table()));
        put("stripe_width", self.stripe_width.into());
        put("expected_num_objects", self.expected_num_objects.into());
        put("fast_read", self.fast_read.into());
        put("options", self.opts.dump());
        put("application_metadata", json!(self.application_metadata));
        Value::Object(map)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool() -> PgPool {
        let mut pool =
            PgPool { size: 3, min_size: 2, pg_num: 12, pgp_num: 8, ..Default::default() };
        pool.opts.set("pg_num_min", PoolOptValue::Int(1 << 40));
        pool.application_metadata.insert("rbd".into(), [("key".into(), "value".into())].into());
        pool.pg_num_target = 12;
        pool.pgp_num_target = 8;
        pool.pg_num_pending = 12;
        pool
    }

    #[test]
    fn versions_follow_features() {
        let version = |pool: &PgPool, f: Features| pool.to_bytes(f)[0];
        assert_eq!(version(&pool(), features::PACIFIC), 29);
        let stretch = PgPool { peering_crush_bucket_count: 2, ..pool() };
        assert_eq!(version(&stretch, features::PACIFIC), 30);
        let without = |bits: u64| Features(features::PACIFIC.0 & !bits);
        assert_eq!(version(&pool(), without(1 << 2)), 27);
        assert_eq!(version(&pool(), without(1 << 28)), 26);
        assert_eq!(version(&pool(), without(1 << 21)), 24);
        assert_eq!(version(&pool(), without(features::NEW_OSDOP_ENCODING)), 21);
        assert_eq!(version(&pool(), Features(0)), 14);
        for same in [pool(), stretch] {
            assert_eq!(PgPool::from_bytes(&same.to_bytes(Features::ALL)).unwrap(), same);
        }
        // What older peers are told can be read as well, with defaults for the rest.
        let old = PgPool::from_bytes(&pool().to_bytes(without(1 << 21))).unwrap();
        assert_eq!(
            (old.pg_num, old.pg_num_target, old.pg_autoscale_mode),
            (12, 12, AutoscaleMode::WARN)
        );
    }

    #[test]
    fn snapshots_of_a_pool() {
        let mut pool = pool();
        let first = pool.add_snap("one", Utime::ZERO);
        let second = pool.add_snap("two", Utime::ZERO);
        assert_eq!((first, second, pool.snap_by_name("two")), (SnapId(1), SnapId(2), Some(second)));
        assert_eq!(pool.snap_context(), SnapContext { seq: second, snaps: vec![second, first] });
        assert!(pool.remove_snap(first) && !pool.remove_snap(first));
        assert!(pool.is_removed_snap(first) && !pool.is_removed_snap(second));
        assert_eq!(pool.snap_seq, SnapId(3));
    }

    #[test]
    fn snapshots_of_clients_begin_at_two() {
        let mut pool = pool();
        assert_eq!(pool.add_unmanaged_snap(), SnapId(2));
        assert_eq!(pool.add_unmanaged_snap(), SnapId(3));
        assert!(pool.is_unmanaged_snaps_mode());
    }

    #[test]
    fn flags_by_name() {
        assert_eq!(flag::names(flag::HASHPSPOOL | flag::NODEEP_SCRUB), "hashpspool,nodeep-scrub");
        assert_eq!(flag::by_name("creating"), Some(flag::CREATING));
        assert_eq!(flag::names(1 << 63), "???");
    }
}
