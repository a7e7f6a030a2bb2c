//! Zones: which pools a gateway uses.

use crate::bucket::{Opaque, Placement, Pool, STANDARD};
use crate::user::AccessKey;
use bytes::{Bytes, BytesMut};
use denc::{Decode, Encode, Features, Reader};
use denc_derive::Denc;
use std::collections::{BTreeMap, BTreeSet};

/// The pool with the records of zones (Ceph: `RGW_DEFAULT_ZONE_ROOT_POOL`).
pub const ROOT_POOL: &str = ".rgw.root";
/// The name of the zone and of the zonegroup that are made if there are none.
pub const DEFAULT_NAME: &str = "default";
/// The placement target that is made with them.
pub const DEFAULT_PLACEMENT: &str = "default-placement";

/// The object with the id of the zone with a name.
pub fn zone_name_object(name: &str) -> String {
    format!("zone_names.{name}")
}

/// The object with a zone.
pub fn zone_object(id: &str) -> String {
    format!("zone_info.{id}")
}

/// The object with the id of the zonegroup with a name.
pub fn zonegroup_name_object(name: &str) -> String {
    format!("zonegroups_names.{name}")
}

/// The object with a zonegroup.
pub fn zonegroup_object(id: &str) -> String {
    format!("zonegroup_info.{id}")
}

/// An id (Ceph: `RGWNameToId`, `rgw/rgw_zone.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct NameToId {
    /// The id.
    pub id: String,
}

/// Id and name (Ceph: `RGWSystemMetaObj`, `rgw/rgw_zone.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct MetaObject {
    /// The id.
    pub id: String,
    /// The name.
    pub name: String,
}

/// A storage class (Ceph: `RGWZoneStorageClass`, `rgw/rgw_zone.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct StorageClass {
    /// The pool.
    pub data_pool: Option<Pool>,
    /// How data is compressed.
    pub compression: Option<Bytes>,
}

/// Storage classes (Ceph: `RGWZoneStorageClasses`, `rgw/rgw_zone.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct StorageClasses {
    /// By name.
    pub classes: BTreeMap<Bytes, StorageClass>,
}

/// The pools of a placement target (Ceph: `RGWZonePlacementInfo`, `rgw/rgw_zone.h`, version 7).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlacementPools {
    /// The index.
    pub index_pool: Pool,
    /// What cannot be in an erasure coded pool; empty for the data pool.
    pub data_extra_pool: Pool,
    /// The kind of index, see [`IndexType`](crate::bucket::IndexType).
    pub index_type: u32,
    /// Storage classes.
    pub storage_classes: StorageClasses,
}

impl PlacementPools {
    /// The pool of a storage class; `None` if there is no such class.
    pub fn data_pool(&self, class: &[u8]) -> Option<&Pool> {
        self.storage_classes.classes.get(class)?.data_pool.as_ref()
    }

    /// The pool of what cannot be in an erasure coded pool.
    pub fn extra_pool(&self) -> Option<&Pool> {
        if self.data_extra_pool.is_empty() {
            return self.data_pool(STANDARD);
        }
        Some(&self.data_extra_pool)
    }
}

impl Encode for PlacementPools {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        denc::envelope(out, 7, 1, |out| {
            let standard = self.storage_classes.classes.get(STANDARD).cloned().unwrap_or_default();
            let data = standard.data_pool.unwrap_or_default().text();
            (self.index_pool.text(), data, self.data_extra_pool.text()).encode(out, f);
            (self.index_type, standard.compression.unwrap_or_default()).encode(out, f);
            self.storage_classes.encode(out, f);
        });
    }
}

impl Decode for PlacementPools {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        let (v, mut r) = r.envelope("RGWZonePlacementInfo", 7)?;
        let (index, data): (Bytes, Bytes) = r.get()?;
        let mut p = PlacementPools { index_pool: Pool::parse(&index), ..Default::default() };
        if v >= 4 {
            p.data_extra_pool = Pool::parse(&r.get::<Bytes>()?);
        }
        if v >= 5 {
            p.index_type = r.get()?;
        }
        let compression: Bytes = if v >= 6 { r.get()? } else { Bytes::new() };
        if v >= 7 {
            p.storage_classes = r.get()?;
        } else {
            let class = StorageClass {
                data_pool: Some(Pool::parse(&data)),
                compression: Some(compression).filter(|c| !c.is_empty()),
            };
            p.storage_classes.classes.insert(Bytes::from_static(STANDARD), class);
        }
        Ok(p)
    }
}

/// A zone's pools (Ceph: `RGWZoneParams`, `rgw/rgw_zone.h`, version 14).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 14, compat = 1, oldest = 6)]
pub struct ZoneParams {
    /// Buckets.
    pub domain_root: Pool,
    /// Objects for notifications of caches.
    pub control_pool: Pool,
    /// Garbage.
    pub gc_pool: Pool,
    /// Logs.
    pub log_pool: Pool,
    /// A log that is not written.
    pub intent_log_pool: Pool,
    /// The usage log.
    pub usage_log_pool: Pool,
    /// Users by key.
    pub user_keys_pool: Pool,
    /// Users by address.
    pub user_email_pool: Pool,
    /// Users by Swift key.
    pub user_swift_pool: Pool,
    /// Users.
    pub user_uid_pool: Pool,
    /// Id and name.
    pub meta: MetaObject,
    /// The key that zones use with each other.
    pub system_key: AccessKey,
    /// Pools by placement target.
    pub placement_pools: BTreeMap<Bytes, PlacementPools>,
    /// Not in use.
    pub metadata_heap: Pool,
    /// The realm's id.
    pub realm_id: Bytes,
    /// Lifecycle.
    #[denc(since = 7)]
    pub lc_pool: Pool,
    /// Not in use.
    #[denc(since = 8)]
    pub old_tier_config: BTreeMap<Bytes, Bytes>,
    /// Roles.
    #[denc(since = 9)]
    pub roles_pool: Pool,
    /// Buckets that wait to be resharded.
    #[denc(since = 10)]
    pub reshard_pool: Pool,
    /// One-time passwords.
    #[denc(since = 11)]
    pub otp_pool: Pool,
    /// Settings of synchronisation (`JSONFormattable`).
    #[denc(since = 12)]
    pub tier_config: Opaque,
    /// Identity providers.
    #[denc(since = 13)]
    pub oidc_pool: Pool,
    /// Notifications of buckets.
    #[denc(since = 14)]
    pub notif_pool: Pool,
}

/// A `JSONFormattable` with nothing in it, version 2.
const EMPTY_JSON: &[u8] = &[2, 1, 14, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
/// An `rgw_sync_policy_info` without groups, version 1.
const EMPTY_SYNC_POLICY: &[u8] = &[1, 1, 4, 0, 0, 0, 0, 0, 0, 0];

impl ZoneParams {
    /// The zone that a gateway makes where there is none.
    pub fn new(id: &str, name: &str) -> Self {
        let pool = |text: &str| Pool::parse(format!("{name}.rgw.{text}").as_bytes());
        let class = StorageClass { data_pool: Some(pool("buckets.data")), compression: None };
        let classes = BTreeMap::from([(Bytes::from_static(STANDARD), class)]);
        let placement = PlacementPools {
            index_pool: pool("buckets.index"),
            data_extra_pool: pool("buckets.non-ec"),
            index_type: 0,
            storage_classes: StorageClasses { classes },
        };
        ZoneParams {
            domain_root: pool("meta:root"),
            control_pool: pool("control"),
            gc_pool: pool("log:gc"),
            log_pool: pool("log"),
            intent_log_pool: pool("log:intent"),
            usage_log_pool: pool("log:usage"),
            user_keys_pool: pool("meta:users.keys"),
            user_email_pool: pool("meta:users.email"),
            user_swift_pool: pool("meta:users.swift"),
            user_uid_pool: pool("meta:users.uid"),
            meta: MetaObject { id: id.into(), name: name.into() },
            placement_pools: BTreeMap::from([(DEFAULT_PLACEMENT.into(), placement)]),
            lc_pool: pool("log:lc"),
            roles_pool: pool("meta:roles"),
            reshard_pool: pool("log:reshard"),
            otp_pool: pool("otp"),
            tier_config: Opaque(Bytes::from_static(EMPTY_JSON)),
            oidc_pool: pool("meta:oidc"),
            notif_pool: pool("log:notif"),
            ..ZoneParams::default()
        }
    }

    /// The pool of lifecycle, also of zones that were made before it had a name here.
    pub fn lifecycle_pool(&self) -> Pool {
        if !self.lc_pool.is_empty() {
            return self.lc_pool.clone();
        }
        Pool { name: self.log_pool.name.clone(), ns: Bytes::from_static(b"lc") }
    }
}

/// A zone of a zonegroup (Ceph: `RGWZone`, `rgw/rgw_zone.h`, version 7).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Zone {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Where its gateways are.
    pub endpoints: Vec<Bytes>,
    /// Changes of users and buckets are logged.
    pub log_meta: bool,
    /// Changes of objects are logged.
    pub log_data: bool,
    /// How many shards a new index has; 0 for one object without a number.
    pub index_shards: u32,
    /// Nothing can be written.
    pub read_only: bool,
    /// What it is synchronised with.
    pub tier_type: Bytes,
    /// It takes changes of all zones.
    pub sync_from_all: bool,
    /// It takes changes of these.
    pub sync_from: BTreeSet<Bytes>,
    /// Where requests are sent for objects that are not here.
    pub redirect_zone: Bytes,
}

/// How many shards a new index has (Ceph: `default_bucket_index_max_shards`).
pub const DEFAULT_INDEX_SHARDS: u32 = 11;

impl Encode for Zone {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        denc::envelope(out, 7, 1, |out| {
            (&self.name, &self.endpoints).encode(out, f);
            (self.log_meta, self.log_data, self.index_shards).encode(out, f);
            (&self.id, self.read_only, &self.tier_type).encode(out, f);
            (self.sync_from_all, &self.sync_from, &self.redirect_zone).encode(out, f);
        });
    }
}

impl Decode for Zone {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        const WHAT: &str = "RGWZone";
        let (v, mut r) = r.envelope(WHAT, 7)?;
        if v < 4 {
            return Err(denc::DecodeError::TooOld { what: WHAT, struct_v: v, oldest: 4 });
        }
        let mut z = Zone { sync_from_all: true, ..Zone::default() };
        (z.name, z.endpoints) = r.get()?;
        (z.log_meta, z.log_data, z.index_shards) = r.get()?;
        (z.id, z.read_only) = r.get()?;
        if v >= 5 {
            z.tier_type = r.get()?;
        }
        if v >= 6 {
            (z.sync_from_all, z.sync_from) = r.get()?;
        }
        if v >= 7 {
            z.redirect_zone = r.get()?;
        }
        Ok(z)
    }
}

/// A placement target (Ceph: `RGWZoneGroupPlacementTarget`, `rgw/rgw_zone.h`, version 2).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 2, compat = 1)]
pub struct PlacementTarget {
    /// Its name.
    pub name: Bytes,
    /// Users with one of these tags may use it; empty for all users.
    pub tags: BTreeSet<Bytes>,
    /// Its storage classes; empty for the standard one.
    #[denc(since = 2)]
    pub storage_classes: BTreeSet<Bytes>,
}

/// A zonegroup (Ceph: `RGWZoneGroup`, `rgw/rgw_zone.h`, version 5).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 5, compat = 1, oldest = 4)]
pub struct ZoneGroup {
    /// Its name.
    pub name: String,
    /// Its name as a region.
    pub api_name: String,
    /// Users and buckets are made here.
    pub is_master: bool,
    /// Where its gateways are.
    pub endpoints: Vec<Bytes>,
    /// The zone that users and buckets are made in.
    pub master_zone: String,
    /// Its zones by id.
    pub zones: BTreeMap<String, Zone>,
    /// Its placement targets.
    pub placement_targets: BTreeMap<Bytes, PlacementTarget>,
    /// Where buckets go that name none.
    pub default_placement: Placement,
    /// Host names.
    pub hostnames: Vec<Bytes>,
    /// Host names of websites.
    pub hostnames_s3website: Vec<Bytes>,
    /// Id and name.
    pub meta: MetaObject,
    /// The realm's id.
    pub realm_id: Bytes,
    /// Rules of replication (`rgw_sync_policy_info`).
    #[denc(since = 5)]
    pub sync_policy: Opaque,
}

impl ZoneGroup {
    /// The zonegroup that a gateway makes where there is none.
    pub fn new(id: &str, name: &str, zone_id: &str, zone_name: &str) -> Self {
        let zone = Zone {
            id: zone_id.into(),
            name: zone_name.into(),
            index_shards: DEFAULT_INDEX_SHARDS,
            sync_from_all: true,
            ..Zone::default()
        };
        let target = PlacementTarget { name: DEFAULT_PLACEMENT.into(), ..Default::default() };
        ZoneGroup {
            name: name.into(),
            api_name: name.into(),
            is_master: true,
            master_zone: zone_id.into(),
            zones: BTreeMap::from([(zone_id.into(), zone)]),
            placement_targets: BTreeMap::from([(DEFAULT_PLACEMENT.into(), target)]),
            default_placement: Placement {
                name: DEFAULT_PLACEMENT.into(),
                storage_class: Bytes::new(),
            },
            meta: MetaObject { id: id.into(), name: name.into() },
            sync_policy: Opaque(Bytes::from_static(EMPTY_SYNC_POLICY)),
            ..ZoneGroup::default()
        }
    }
}
