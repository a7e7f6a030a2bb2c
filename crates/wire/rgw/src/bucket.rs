//! Buckets: which pools they are in, what they are called, and what is known of them.

use crate::header::ReshardStatus;
use crate::key::User;
use crate::open_enum;
use bytes::{BufMut, Bytes, BytesMut};
use denc::{Decode, Encode, Features, Reader};
use denc_derive::Denc;
use std::collections::BTreeMap;
use types::Utime;

/// The storage class of objects that name none (Ceph: `RGW_STORAGE_CLASS_STANDARD`).
pub const STANDARD: &[u8] = b"STANDARD";

/// A record that is kept as it came: its envelope and all in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Opaque(pub Bytes);

impl Encode for Opaque {
    fn encode(&self, out: &mut BytesMut, _: Features) {
        out.extend_from_slice(&self.0);
    }
}

impl Decode for Opaque {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        const WHAT: &str = "a record in an envelope";
        let head: [u8; 6] = r.array(WHAT)?;
        let length = u32::from_le_bytes([head[2], head[3], head[4], head[5]]) as usize;
        let body = r.bytes(WHAT, length)?;
        Ok(Opaque([&head[..], &body].concat().into()))
    }
}

/// A pool, or a namespace in it (Ceph: `rgw_pool`, `rgw/rgw_basic_types.h`, version 10).
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Denc)]
#[denc(version = 10, compat = 10, oldest = 10)]
pub struct Pool {
    /// The pool's name.
    pub name: Bytes,
    /// The namespace; empty for the default one.
    pub ns: Bytes,
}

impl Pool {
    /// Reads `NAME[:NAMESPACE]`.
    pub fn parse(text: &[u8]) -> Self {
        let text = Bytes::copy_from_slice(text);
        match text.iter().position(|b| *b == b':') {
            None => Pool { name: text, ns: Bytes::new() },
            Some(at) => Pool { name: text.slice(..at), ns: text.slice(at + 1..) },
        }
    }

    /// As [`Pool::parse`] reads it.
    pub fn text(&self) -> Bytes {
        if self.ns.is_empty() {
            return self.name.clone();
        }
        [&self.name[..], b":", &self.ns].concat().into()
    }

    /// No pool.
    pub fn is_empty(&self) -> bool {
        self.name.is_empty()
    }
}

/// Where objects go (Ceph: `rgw_placement_rule`, `rgw/rgw_common.h`). In records it is the text
/// `TARGET[/STORAGE_CLASS]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Placement {
    /// The placement target.
    pub name: Bytes,
    /// The storage class; empty for the standard one.
    pub storage_class: Bytes,
}

impl Placement {
    /// The storage class, with its name if it is the standard one.
    pub fn class(&self) -> &[u8] {
        if self.storage_class.is_empty() { STANDARD } else { &self.storage_class }
    }

    /// Names nothing.
    pub fn is_empty(&self) -> bool {
        self.name.is_empty() && self.storage_class.is_empty()
    }

    /// This target with another storage class; an empty one leaves it.
    pub fn with_class(&self, class: &[u8]) -> Self {
        let mut changed = self.clone();
        if !class.is_empty() {
            changed.storage_class = Bytes::copy_from_slice(class);
        }
        changed
    }
}

impl Encode for Placement {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        if self.class() == STANDARD {
            return self.name.encode(out, f);
        }
        Bytes::from([&self.name[..], b"/", &self.storage_class].concat()).encode(out, f);
    }
}

impl Decode for Placement {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        let text: Bytes = r.get()?;
        Ok(match text.iter().position(|b| *b == b'/') {
            None => Placement { name: text, storage_class: Bytes::new() },
            Some(at) => Placement { name: text.slice(..at), storage_class: text.slice(at + 1..) },
        })
    }
}

/// Pools of a bucket that was made before there were placement targets (Ceph:
/// `rgw_data_placement_target`, `rgw/rgw_basic_types.h`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
pub struct ExplicitPools {
    /// Data.
    pub data: Pool,
    /// What cannot be in an erasure coded pool.
    pub data_extra: Pool,
    /// The index.
    pub index: Pool,
}

/// Which bucket (Ceph: `rgw_bucket`, `rgw/rgw_basic_types.h`, version 10).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BucketKey {
    /// The tenant; empty for the default one.
    pub tenant: Bytes,
    /// The name.
    pub name: Bytes,
    /// What names of its objects begin with.
    pub marker: Bytes,
    /// Which of the instances that had the name. Resharding changes it.
    pub bucket_id: Bytes,
    /// Pools that are named here instead of by a placement target.
    pub explicit: Option<ExplicitPools>,
}

impl BucketKey {
    /// Names its instance in the entries of other records: `[TENANT/]NAME:ID`.
    pub fn instance_key(&self) -> Bytes {
        let mut out = Vec::new();
        if !self.tenant.is_empty() {
            out.extend_from_slice(&self.tenant);
            out.push(b'/');
        }
        out.extend_from_slice(&self.name);
        out.push(b':');
        out.extend_from_slice(&self.bucket_id);
        out.into()
    }

    /// The object with its [`BucketInstance`].
    pub fn instance_object(&self) -> Bytes {
        let mut out = b".bucket.meta.".to_vec();
        if !self.tenant.is_empty() {
            out.extend_from_slice(&self.tenant);
            out.push(b':');
        }
        out.extend_from_slice(&self.name);
        out.push(b':');
        out.extend_from_slice(&self.bucket_id);
        out.into()
    }

    /// The object with its [`EntryPoint`].
    pub fn entry_object(tenant: &[u8], name: &[u8]) -> Bytes {
        if tenant.is_empty() {
            return Bytes::copy_from_slice(name);
        }
        [tenant, b"/", name].concat().into()
    }
}

impl Encode for BucketKey {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        denc::envelope(out, 10, 10, |out| {
            for text in [&self.name, &self.marker, &self.bucket_id, &self.tenant] {
                text.encode(out, f);
            }
            self.explicit.encode(out, f);
        });
    }
}

impl Decode for BucketKey {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        const WHAT: &str = "rgw_bucket";
        let (v, mut r) = r.envelope(WHAT, 10)?;
        if v < 7 {
            return Err(denc::DecodeError::TooOld { what: WHAT, struct_v: v, oldest: 7 });
        }
        let mut b = BucketKey { name: r.get()?, ..BucketKey::default() };
        let plain = |name: Bytes| Pool { name, ns: Bytes::new() };
        let data: Bytes = if v < 10 { r.get()? } else { Bytes::new() };
        b.marker = r.get()?;
        b.bucket_id = r.get()?;
        if v < 10 {
            let pools = ExplicitPools {
                index: plain(r.get()?),
                data_extra: plain(r.get()?),
                data: plain(data),
            };
            b.explicit = Some(pools).filter(|p| !p.data.is_empty());
        }
        if v >= 8 {
            b.tenant = r.get()?;
        }
        if v >= 10 {
            b.explicit = r.get()?;
        }
        Ok(b)
    }
}

/// How much may be stored (Ceph: `RGWQuotaInfo`, `rgw/rgw_quota.h`, version 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaInfo {
    /// Bytes, negative for no limit.
    pub max_size: i64,
    /// Objects, negative for no limit.
    pub max_objects: i64,
    /// It counts.
    pub enabled: bool,
    /// Sizes count as they are, instead of rounded up.
    pub check_on_raw: bool,
}

impl Default for QuotaInfo {
    fn default() -> Self {
        QuotaInfo { max_size: -1, max_objects: -1, enabled: false, check_on_raw: false }
    }
}

impl Encode for QuotaInfo {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        denc::envelope(out, 3, 1, |out| {
            let kib = |bytes: i64| bytes.saturating_add(1023) / 1024;
            let size = self.max_size;
            let old = if size < 0 { -kib(size.saturating_neg()) } else { kib(size) };
            (old, self.max_objects, self.enabled).encode(out, f);
            (self.max_size, self.check_on_raw).encode(out, f);
        });
    }
}

impl Decode for QuotaInfo {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        let (v, mut r) = r.envelope("RGWQuotaInfo", 3)?;
        let kib: i64 = r.get()?;
        let mut q = QuotaInfo { max_objects: r.get()?, enabled: r.get()?, ..QuotaInfo::default() };
        q.max_size = if v >= 2 { r.get()? } else { kib.saturating_mul(1024) };
        if v >= 3 {
            q.check_on_raw = r.get()?;
        }
        Ok(q)
    }
}

open_enum! {
    /// What kind of index a bucket has (Ceph: `rgw::BucketIndexType`).
    IndexType(u8) {
        /// Shards by hash.
        NORMAL = 0,
        /// None: the bucket cannot be listed.
        INDEXLESS = 1,
    }
}

/// Shards by hash (Ceph: `rgw::bucket_index_normal_layout`, `rgw/rgw_bucket_layout.h`, version 1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct NormalLayout {
    /// How many; 0 for one object without a number.
    pub num_shards: u32,
    /// Which hash; 0 is the only one.
    pub hash_type: u8,
}

/// An index (Ceph: `rgw::bucket_index_layout`, `rgw/rgw_bucket_layout.h`, version 1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexLayout {
    /// The kind.
    pub kind: IndexType,
    /// Of the normal kind.
    pub normal: NormalLayout,
}

impl Encode for IndexLayout {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        denc::envelope(out, 1, 1, |out| {
            self.kind.encode(out, f);
            if self.kind == IndexType::NORMAL {
                self.normal.encode(out, f);
            }
        });
    }
}

impl Decode for IndexLayout {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        let (_, mut r) = r.envelope("rgw::bucket_index_layout", 1)?;
        let kind: IndexType = r.get()?;
        let normal = if kind == IndexType::NORMAL { r.get()? } else { NormalLayout::default() };
        Ok(IndexLayout { kind, normal })
    }
}

/// An index with its number (Ceph: `rgw::bucket_index_layout_generation`,
/// `rgw/rgw_bucket_layout.h`, version 1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct IndexGeneration {
    /// Counts the indexes that the bucket had.
    pub generation: u64,
    /// The index.
    pub layout: IndexLayout,
}

/// A log of changes within an index (Ceph: `rgw::bucket_index_log_layout`,
/// `rgw/rgw_bucket_layout.h`, version 1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct IndexLogLayout {
    /// The index's number.
    pub generation: u64,
    /// Its shards.
    pub layout: NormalLayout,
}

/// A log of changes (Ceph: `rgw::bucket_log_layout`, `rgw/rgw_bucket_layout.h`, version 1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct LogLayout {
    /// The kind; 0, within the index, is the only one.
    pub kind: u8,
    /// Where.
    pub in_index: IndexLogLayout,
}

/// A log of changes with its number (Ceph: `rgw::bucket_log_layout_generation`,
/// `rgw/rgw_bucket_layout.h`, version 1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct LogGeneration {
    /// Counts the logs that the bucket had.
    pub generation: u64,
    /// The log.
    pub layout: LogLayout,
}

/// A bucket's indexes (Ceph: `rgw::BucketLayout`, `rgw/rgw_bucket_layout.h`, version 2).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 2, compat = 1)]
pub struct BucketLayout {
    /// Whether entries are being moved.
    pub resharding: u8,
    /// The index.
    pub current_index: IndexGeneration,
    /// The index that entries are moved to.
    pub target_index: Option<IndexGeneration>,
    /// Logs that are not yet trimmed, the newest last.
    #[denc(since = 2)]
    pub logs: Vec<LogGeneration>,
}

impl BucketLayout {
    /// The layout of a new bucket with so many shards.
    pub fn new(num_shards: u32) -> Self {
        let normal = NormalLayout { num_shards, hash_type: 0 };
        let in_index = IndexLogLayout { generation: 0, layout: normal };
        BucketLayout {
            current_index: IndexGeneration {
                generation: 0,
                layout: IndexLayout { kind: IndexType::NORMAL, normal },
            },
            logs: vec![LogGeneration { generation: 0, layout: LogLayout { kind: 0, in_index } }],
            ..BucketLayout::default()
        }
    }
}

/// Flags of [`BucketInstance`] (Ceph: `BUCKET_*`, `rgw/rgw_common.h`).
pub mod flag {
    /// The bucket is closed.
    pub const SUSPENDED: u32 = 0x1;
    /// Objects have versions.
    pub const VERSIONED: u32 = 0x2;
    /// New versions are null versions.
    pub const VERSIONS_SUSPENDED: u32 = 0x4;
    /// Versions can be locked.
    pub const OBJ_LOCK_ENABLED: u32 = 0x20;
}

/// What is known of a bucket (Ceph: `RGWBucketInfo`, `rgw/rgw_common.h`, version 23).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BucketInstance {
    /// Which bucket.
    pub bucket: BucketKey,
    /// The owner.
    pub owner: User,
    /// See [`flag`].
    pub flags: u32,
    /// The zonegroup that it was made in.
    pub zonegroup: Bytes,
    /// When it was made.
    pub creation_time: Utime,
    /// Where its objects go.
    pub placement: Placement,
    /// There is an object with this record; always.
    pub has_instance_obj: bool,
    /// The bucket's own quota.
    pub quota: QuotaInfo,
    /// Readers pay.
    pub requester_pays: bool,
    /// Settings of a website (`RGWBucketWebsiteConf`).
    pub website: Option<Opaque>,
    /// Where Swift keeps versions.
    pub swift_versions: Option<Bytes>,
    /// What a metadata search looks at.
    pub mdsearch: BTreeMap<Bytes, u32>,
    /// Whether entries are being moved.
    pub reshard_status: ReshardStatus,
    /// The instance that takes them.
    pub new_bucket_instance_id: Bytes,
    /// Rules of locks (`RGWObjectLock`); there if [`flag::OBJ_LOCK_ENABLED`] is set.
    pub obj_lock: Option<Opaque>,
    /// Rules of replication (`rgw_sync_policy_info`).
    pub sync_policy: Option<Opaque>,
    /// Its indexes.
    pub layout: BucketLayout,
    /// What releases after 16.2 add, with their version.
    pub later: Option<(u8, Bytes)>,
}

impl BucketInstance {
    /// How many shards its index has; 0 for one object without a number.
    pub fn num_shards(&self) -> u32 {
        self.layout.current_index.layout.normal.num_shards
    }

    /// Any of these flags is set.
    pub fn has(&self, flags: u32) -> bool {
        self.flags & flags != 0
    }
}

const INSTANCE_VERSION: u8 = 23;

impl Encode for BucketInstance {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        let version = self.later.as_ref().map_or(INSTANCE_VERSION, |(v, _)| *v);
        denc::envelope(out, version, 4, |out| {
            (&self.bucket, &self.owner.id).encode(out, f);
            (self.flags, &self.zonegroup).encode(out, f);
            u64::from(self.creation_time.sec).encode(out, f);
            (&self.placement, self.has_instance_obj, self.quota).encode(out, f);
            (self.requester_pays, &self.owner.tenant).encode(out, f);
            self.website.encode(out, f);
            self.swift_versions.encode(out, f);
            (self.creation_time, &self.mdsearch, self.reshard_status).encode(out, f);
            self.new_bucket_instance_id.encode(out, f);
            if self.has(flag::OBJ_LOCK_ENABLED) {
                // A bucket with locks and no rule: enabled, no rule.
                match &self.obj_lock {
                    Some(rules) => rules.encode(out, f),
                    None => denc::envelope(out, 1, 1, |out| out.put_slice(&[1, 0])),
                }
            }
            self.sync_policy.encode(out, f);
            (&self.layout, &self.owner.ns).encode(out, f);
            if let Some((_, rest)) = &self.later {
                out.put_slice(rest);
            }
        });
    }
}

impl Decode for BucketInstance {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        const WHAT: &str = "RGWBucketInfo";
        let (v, mut r) = r.envelope(WHAT, INSTANCE_VERSION)?;
        if v < 17 {
            return Err(denc::DecodeError::TooOld { what: WHAT, struct_v: v, oldest: 17 });
        }
        let mut b = BucketInstance { bucket: r.get()?, ..BucketInstance::default() };
        b.owner = r.get()?;
        (b.flags, b.zonegroup) = r.get()?;
        let _seconds: u64 = r.get()?;
        (b.placement, b.has_instance_obj, b.quota) = r.get()?;
        let mut normal = NormalLayout::default();
        let mut kind = IndexType::NORMAL;
        if v < 22 {
            (normal.num_shards, normal.hash_type) = r.get()?;
        }
        b.requester_pays = r.get()?;
        let tenant: Bytes = r.get()?;
        if !tenant.is_empty() {
            b.owner.tenant = tenant;
        }
        b.website = r.get()?;
        if v < 22 {
            kind = IndexType(u8::try_from(r.get::<u32>()?).unwrap_or(u8::MAX));
        }
        b.swift_versions = r.get()?;
        b.creation_time = r.get()?;
        if v >= 18 {
            b.mdsearch = r.get()?;
        }
        if v >= 19 {
            (b.reshard_status, b.new_bucket_instance_id) = r.get()?;
        }
        if v >= 20 && b.has(flag::OBJ_LOCK_ENABLED) {
            b.obj_lock = Some(r.get()?);
        }
        if v >= 21 {
            b.sync_policy = r.get()?;
        }
        if v >= 22 {
            b.layout = r.get()?;
        } else {
            b.layout = BucketLayout::new(normal.num_shards);
            b.layout.current_index.layout.kind = kind;
        }
        if v >= 23 {
            b.owner.ns = r.get()?;
        }
        if v > INSTANCE_VERSION {
            b.later = Some((v, r.rest()));
        }
        Ok(b)
    }
}

/// What a bucket's name stands for (Ceph: `RGWBucketEntryPoint`, `rgw/rgw_common.h`, version 10).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EntryPoint {
    /// The bucket.
    pub bucket: BucketKey,
    /// The owner.
    pub owner: User,
    /// The bucket is in its owner's list.
    pub linked: bool,
    /// When it was made.
    pub creation_time: Utime,
}

impl Encode for EntryPoint {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        denc::envelope(out, 10, 8, |out| {
            (&self.bucket, &self.owner.id, self.linked).encode(out, f);
            u64::from(self.creation_time.sec).encode(out, f);
            // `rgw_user` has an envelope here only.
            denc::envelope(out, 2, 1, |out| {
                (&self.owner.tenant, &self.owner.id, &self.owner.ns).encode(out, f);
            });
            self.creation_time.encode(out, f);
        });
    }
}

impl Decode for EntryPoint {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        const WHAT: &str = "RGWBucketEntryPoint";
        let (v, mut r) = r.envelope(WHAT, 10)?;
        if v < 8 {
            return Err(denc::DecodeError::TooOld { what: WHAT, struct_v: v, oldest: 8 });
        }
        let (bucket, owner, linked): (BucketKey, User, bool) = r.get()?;
        let seconds: u64 = r.get()?;
        let mut e = EntryPoint { bucket, owner, linked, ..EntryPoint::default() };
        e.creation_time = Utime::new(u32::try_from(seconds).unwrap_or(u32::MAX), 0);
        if v >= 9 {
            let (user_v, mut u) = r.envelope("rgw_user", 2)?;
            (e.owner.tenant, e.owner.id) = u.get()?;
            if user_v >= 2 {
                e.owner.ns = u.get()?;
            }
        }
        if v >= 10 {
            e.creation_time = r.get()?;
        }
        Ok(e)
    }
}
