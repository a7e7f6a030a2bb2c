//! What the gateway has of the zone: its records, what is cached, and what is noted.

use super::cluster::{Cluster, random_text};
use super::convert;
use super::handle::BucketRef;
use crate::api::{BucketName, Error, Result, User, UserId};
use ::rgw::bucket::{Placement, Pool};
use ::rgw::cache::CacheNotify;
use ::rgw::key::User as UserKey;
use ::rgw::usage::UsageLogEntry;
use ::rgw::zone::{self, PlacementPools, ZoneGroup, ZoneParams};
use bytes::Bytes;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Counters by owner, payer, bucket and hour.
pub(super) type UsageMap = BTreeMap<(UserKey, UserKey, String, u64), UsageLogEntry>;

/// Bytes of a head and of a stripe (Ceph: `rgw_max_chunk_size`, `rgw_obj_stripe_size`).
pub(super) const MIB4: u64 = 4 << 20;

/// Most users, keys or buckets that are cached.
pub(super) const CACHE_MAX: usize = 10_000;

/// What can be chosen.
#[derive(Clone, Debug)]
pub struct Options {
    /// The zone's name.
    pub zone: String,
    /// The zonegroup's name.
    pub zonegroup: String,
    /// Objects with queues of garbage (Ceph: `rgw_gc_max_objs`). The same for all gateways.
    pub gc_queues: u32,
    /// How long garbage waits (Ceph: `rgw_gc_obj_min_wait`).
    pub gc_wait_seconds: u32,
    /// How long notes of a change that are not renewed are those of a gateway at work. The same for
    /// all gateways.
    pub note_seconds: u32,
    /// How long what other gateways changed may stay unnoticed if a notification is lost (Ceph:
    /// `rgw_cache_expiry_interval`).
    pub cache_expiry: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            zone: zone::DEFAULT_NAME.into(),
            zonegroup: zone::DEFAULT_NAME.into(),
            gc_queues: 32,
            gc_wait_seconds: 2 * 3600,
            note_seconds: 24 * 3600,
            cache_expiry: Duration::from_secs(900),
        }
    }
}

pub(super) struct Cached<T> {
    pub(super) value: T,
    pub(super) since: Instant,
}

impl<T> Cached<T> {
    pub(super) fn new(value: T) -> Self {
        Cached { value, since: Instant::now() }
    }
}

#[derive(Default)]
pub(super) struct Cache {
    /// Notifications of changes arrive.
    pub(super) enabled: bool,
    /// Counts what was forgotten: what was read before is not kept.
    pub(super) generation: u64,
    pub(super) buckets: HashMap<BucketName, Cached<BucketRef>>,
    pub(super) users: HashMap<UserId, Cached<Rc<User>>>,
    pub(super) keys: HashMap<String, Cached<UserId>>,
}

impl Cache {
    pub(super) fn enable(&mut self, on: bool) {
        self.enabled = on;
        self.clear();
    }

    pub(super) fn clear(&mut self) {
        self.generation += 1;
        self.buckets.clear();
        self.users.clear();
        self.keys.clear();
    }
}

pub(super) fn fresh<K: Eq + Hash, T: Clone>(
    map: &HashMap<K, Cached<T>>,
    key: &K,
    expiry: Duration,
) -> Option<T> {
    map.get(key).filter(|c| c.since.elapsed() < expiry).map(|c| c.value.clone())
}

pub(super) struct Inner {
    pub(super) cluster: Cluster,
    pub(super) options: Options,
    pub(super) zone: ZoneParams,
    pub(super) group: ZoneGroup,
    /// Shards of new indexes.
    pub(super) index_shards: u32,
    /// Changes of indexes are logged, for other zones.
    pub(super) log_data: bool,
    pub(super) next: Cell<u64>,
    pub(super) cache: RefCell<Cache>,
    pub(super) usage: RefCell<UsageMap>,
    pub(super) watches: RefCell<Vec<client::Watch>>,
    pub(super) closed: Cell<bool>,
}

impl Inner {
    pub(super) fn placement(&self, name: &[u8]) -> Result<&PlacementPools> {
        self.zone.placement_pools.get(name).ok_or_else(|| {
            Error::Internal(format!("the zone has no placement target {}", name.escape_ascii()))
        })
    }

    pub(super) fn data_pool(&self, placement: &Placement) -> Result<&Pool> {
        self.placement(&placement.name)?.data_pool(placement.class()).ok_or_else(|| {
            Error::Internal(format!(
                "the placement target {} has no storage class {}",
                placement.name.escape_ascii(),
                placement.class().escape_ascii()
            ))
        })
    }

    pub(super) fn count(&self) -> u64 {
        self.next.set(self.next.get() + 1);
        self.next.get()
    }

    pub(super) fn instance(&self) -> u64 {
        self.cluster.instance()
    }

    /// Ids of buckets tell zone, gateway and number, as RGW's do.
    pub(super) fn new_bucket_id(&self) -> String {
        format!("{}.{}.{}", self.zone.meta.id, self.instance(), self.count())
    }

    /// A tag that no other change has.
    pub(super) fn new_tag(&self) -> Bytes {
        let random = random_text(16);
        format!("{}.{}.{}-{random}", self.zone.meta.id, self.instance(), self.count()).into()
    }

    pub(super) fn cached_bucket(&self, name: &BucketName) -> Option<BucketRef> {
        fresh(&self.cache.borrow().buckets, name, self.options.cache_expiry)
    }

    pub(super) fn cached_user(&self, id: &UserId) -> Option<Rc<User>> {
        fresh(&self.cache.borrow().users, id, self.options.cache_expiry)
    }

    pub(super) fn cached_key(&self, key: &str) -> Option<UserId> {
        fresh(&self.cache.borrow().keys, &key.to_owned(), self.options.cache_expiry)
    }

    pub(super) fn forget_bucket(&self, name: &BucketName) {
        let mut cache = self.cache.borrow_mut();
        cache.generation += 1;
        cache.buckets.remove(name);
    }

    pub(super) fn forget_user(&self, id: &UserId) {
        let mut cache = self.cache.borrow_mut();
        cache.generation += 1;
        cache.users.remove(id);
    }

    /// Forgets what a notification says is no longer as it was; everything if it cannot be read.
    pub(super) fn forget(&self, what: Option<CacheNotify>) {
        let mut cache = self.cache.borrow_mut();
        cache.generation += 1;
        let full = |n: usize| n > CACHE_MAX;
        let Some(what) = what else { return cache.clear() };
        let name = convert::text(&what.object.oid);
        if what.object.pool == self.zone.domain_root {
            let name = name.strip_prefix(".bucket.meta.").unwrap_or(&name);
            // Names of entry points and of instances: `TENANT/NAME`, `[TENANT:]NAME:ID`.
            let fields: Vec<&str> = name.split(['/', ':']).collect();
            cache.buckets.retain(|b, _| !fields.contains(&b.name.as_str()));
        } else if what.object.pool == self.zone.user_uid_pool {
            cache.users.remove(&UserId::parse(&name));
        } else if what.object.pool == self.zone.user_keys_pool {
            cache.keys.remove(&name);
        }
        if full(cache.buckets.len()) || full(cache.users.len()) || full(cache.keys.len()) {
            cache.clear();
        }
    }
}
