//! RGW's layout over RADOS: the buckets of a stock `radosgw` 16.2, which can serve them at the same
//! time.
//!
//! * `admin` and its parts: what administrators ask for.
//! * `backend`: what is asked of RADOS; `cluster`: pools, records with versions, notifications.
//! * `convert`: the trait's values as RGW's records.
//! * `bucket`: buckets and users; `index`, `lists`: indexes; `objects`, `versions`, `uploads`: what
//!   is in buckets, over `heads`, `writers` and `readers`; `garbage`, `background`: what no request
//!   waits for; `notes`: what is found after a gateway ended.
//!
//! A change of an object is announced in the index, made in the object's head, and entered in the
//! index. Between two of these a gateway may end: lists compare announced changes with heads and
//! mend the index, and garbage collection removes data only after its head was gone. What no list
//! finds is noted before it is made, and settled later.

mod admin;
mod admin_buckets;
mod admin_lifecycle;
mod admin_usage;
mod admin_users;
mod backend;
mod background;
mod bucket;
mod cluster;
mod convert;
mod garbage;
mod handle;
mod heads;
mod index;
mod inner;
mod lifecycle_marks;
mod lists;
mod notes;
mod objects;
mod readers;
mod uploads;
mod versions;
mod writers;

pub use admin::{Admin, Names};
pub use admin_buckets::{BucketRecords, IndexCheck, Totals, totals};
pub use admin_lifecycle::{LifecycleBucket, LifecycleProgress};
pub use admin_usage::UsageQuery;
pub use admin_users::{Account, Alias, Stored};
pub use backend::Backend;
pub use background::Expired;
pub use garbage::Reclaimed;
pub use handle::BucketRef;
pub use inner::Options;
pub use objects::ObjectRef;
pub use readers::Reader;

use crate::api::{
    BucketChange, BucketName, BucketPage, BucketStats, Complete, Deleted, Error, Layout, List,
    Listing, NewBucket, NewObject, NewUpload, ObjectChange, Part, PartPage, PartSpan,
    PendingUpload, Result, Upload, UploadPage, Uploads, Usage, User, UserChange, UserId, Written,
};
use ::rgw::bucket::Pool;
use ::rgw::zone::{self, NameToId, ZoneGroup, ZoneParams};
use bytes::Bytes;
use cluster::{Attrs, Cluster, Write, decoded, encoded};
use inner::Inner;
use s3::ErrorCode;
use s3::condition::Conditions;
use s3::range::Span;
use s3::xml::multi::CompletePart;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// RGW's layout. Cheap to clone; lives on one thread, within a `LocalSet`.
#[derive(Clone)]
pub struct Rgw(Rc<Inner>);

impl Rgw {
    /// Opens the zone, which is made, with its pools, if the cluster has none.
    pub async fn open(rados: client::Rados, options: Options) -> Result<Self> {
        Self::over(Rc::new(rados), options).await
    }

    /// The same over any [`Backend`].
    pub async fn over(backend: Rc<dyn Backend>, options: Options) -> Result<Self> {
        let cluster = Cluster::new(backend);
        let root = Pool { name: zone::ROOT_POOL.into(), ns: Bytes::new() };
        let params = open_zone(&cluster, &root, &options.zone).await?;
        let group = open_group(&cluster, &root, &options.zonegroup, &params).await?;
        for pool in [&params.domain_root, &params.control_pool, &params.log_pool] {
            cluster.io(pool).await?;
        }
        cluster.notify_through(&params.control_pool);
        let own = group.zones.get(&params.meta.id).cloned().unwrap_or_default();
        if own.log_data || group.zones.len() > 1 {
            return Err(Error::Internal(format!(
                "the zone {} is one of several; their logs of changes are not written here: use \
                 radosgw for them",
                params.meta.name
            )));
        }
        let inner = Rc::new(Inner {
            cluster,
            options,
            index_shards: own.index_shards,
            log_data: own.log_data,
            zone: params,
            group,
            next: Cell::new(0),
            cache: RefCell::default(),
            usage: RefCell::default(),
            watches: RefCell::default(),
            closed: Cell::new(false),
        });
        tokio::task::spawn_local(Inner::keep_cache(Rc::downgrade(&inner)));
        Ok(Rgw(inner))
    }

    /// The zone, as gateways name it to the manager.
    pub fn zone_facts(&self) -> BTreeMap<String, String> {
        let fact = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        BTreeMap::from([
            fact("zone_id", &self.0.zone.meta.id),
            fact("zone_name", &self.0.zone.meta.name),
            fact("zonegroup_id", &self.0.group.meta.id),
            fact("zonegroup_name", &self.0.group.meta.name),
        ])
    }

    /// Removes garbage that has waited long enough; with `all`, all garbage. Settles changes before
    /// that gateways left when they ended. Background work.
    pub async fn reclaim(&self, all: bool) -> Result<Reclaimed> {
        self.0.settle().await?;
        self.0.reclaim(all).await
    }

    /// Removes what has expired by buckets' lifecycles. `day_seconds` is 86400, or less in tests.
    /// Background work.
    pub async fn expire(&self, day_seconds: u64) -> Result<Expired> {
        self.0.expire(day_seconds).await
    }

    /// Ends the work in the background, and writes noted requests. Without it other gateways wait
    /// for this one's answers to notifications until the cluster gives it up.
    pub async fn close(&self) -> Result<()> {
        self.0.close().await
    }

    /// Writes noted requests to the usage log. Background work.
    pub async fn write_usage(&self) -> Result<()> {
        self.0.write_usage().await
    }
}

/// Writes a record that is read if another gateway was first.
async fn establish(cluster: &Cluster, root: &Pool, name: &str, data: Bytes) -> Result<Bytes> {
    cluster.write(root, name, Write::NewPlain, data.clone(), &Attrs::new(), &[]).await?;
    let record = cluster.read(root, name).await?;
    record.map(|r| r.data).ok_or_else(|| Error::Internal(format!("{name} was removed")))
}

async fn open_zone(cluster: &Cluster, root: &Pool, name: &str) -> Result<ZoneParams> {
    let missing = |what: &str| {
        Error::Internal(format!("the zone {name} has no {what}; look at pool {}", zone::ROOT_POOL))
    };
    let id = match cluster.read(root, zone::zone_name_object(name)).await? {
        Some(record) => decoded::<NameToId>("the id of a zone", &record.data)?.id,
        None if name == zone::DEFAULT_NAME => {
            // The zone is written before its name, so that a name always leads to a zone.
            let id = uuid::Uuid::new_v4().to_string();
            let made = encoded(&ZoneParams::new(&id, name));
            establish(cluster, root, &zone::zone_object(&id), made).await?;
            let named = encoded(&NameToId { id });
            let named = establish(cluster, root, &zone::zone_name_object(name), named).await?;
            decoded::<NameToId>("the id of a zone", &named)?.id
        }
        None => return Err(missing("name")),
    };
    let record = cluster.read(root, zone::zone_object(&id)).await?;
    decoded("a zone", &record.ok_or_else(|| missing("record"))?.data)
}

async fn open_group(
    cluster: &Cluster,
    root: &Pool,
    name: &str,
    own: &ZoneParams,
) -> Result<ZoneGroup> {
    let missing = || Error::Internal(format!("the zonegroup {name} has no record"));
    let id = match cluster.read(root, zone::zonegroup_name_object(name)).await? {
        Some(record) => decoded::<NameToId>("the id of a zonegroup", &record.data)?.id,
        None if name == zone::DEFAULT_NAME => {
            let id = uuid::Uuid::new_v4().to_string();
            let made = encoded(&ZoneGroup::new(&id, name, &own.meta.id, &own.meta.name));
            establish(cluster, root, &zone::zonegroup_object(&id), made).await?;
            let named = encoded(&NameToId { id });
            let named = establish(cluster, root, &zone::zonegroup_name_object(name), named).await?;
            decoded::<NameToId>("the id of a zonegroup", &named)?.id
        }
        None => return Err(missing()),
    };
    let record = cluster.read(root, zone::zonegroup_object(&id)).await?;
    decoded("a zonegroup", &record.ok_or_else(missing)?.data)
}

impl Layout for Rgw {
    type Bucket = BucketRef;
    type Object = ObjectRef;
    type Reader = Reader;

    async fn user(&self, id: &UserId) -> Result<Rc<User>> {
        self.0.user(id).await
    }

    async fn user_of_key(&self, access_key: &str) -> Result<Rc<User>> {
        self.0.user_of_key(access_key).await
    }

    async fn user_of_email(&self, email: &str) -> Result<Rc<User>> {
        self.0.user_of_email(email).await
    }

    async fn create_user(&self, user: &User) -> Result<()> {
        self.0.create_user(user).await
    }

    async fn change_user(&self, id: &UserId, change: UserChange) -> Result<()> {
        self.0.change_user(id, change).await
    }

    async fn buckets_of(&self, owner: &UserId, after: &str, max: usize) -> Result<BucketPage> {
        self.0.buckets_of(owner, after, max).await
    }

    async fn bucket(&self, name: &BucketName) -> Result<BucketRef> {
        let bucket = self.0.bucket(name).await?;
        if bucket.is_closed() {
            return Err(ErrorCode::UserSuspended.into());
        }
        Ok(bucket)
    }

    async fn create_bucket(&self, new: NewBucket) -> Result<BucketRef> {
        self.0.create_bucket(new).await
    }

    async fn delete_bucket(&self, bucket: &BucketRef) -> Result<()> {
        self.0.delete_bucket(bucket).await
    }

    async fn change_bucket(&self, bucket: &BucketRef, change: BucketChange) -> Result<()> {
        self.0.change_bucket(bucket, change).await
    }

    async fn bucket_stats(&self, bucket: &BucketRef) -> Result<BucketStats> {
        self.0.bucket_stats(bucket).await
    }

    async fn open(
        &self,
        bucket: &BucketRef,
        key: &str,
        version: Option<&str>,
        first_bytes: bool,
    ) -> Result<ObjectRef> {
        self.0.open(bucket, key, version, first_bytes).await
    }

    fn read(&self, object: &ObjectRef, span: Span) -> Reader {
        self.0.reader(object, span)
    }

    fn parts(&self, object: &ObjectRef) -> Vec<PartSpan> {
        Inner::parts(object)
    }

    async fn put(
        &self,
        bucket: &BucketRef,
        key: &str,
        new: NewObject,
        body: &mut impl Upload,
    ) -> Result<Written> {
        self.0.put(bucket, key, new, body).await
    }

    async fn copy(
        &self,
        source: &ObjectRef,
        bucket: &BucketRef,
        key: &str,
        new: NewObject,
    ) -> Result<Written> {
        self.0.copy(source, bucket, key, new).await
    }

    async fn delete(
        &self,
        bucket: &BucketRef,
        key: &str,
        version: Option<&str>,
        conditions: &Conditions,
    ) -> Result<Deleted> {
        self.0.delete(bucket, key, version, conditions).await
    }

    async fn change_object(
        &self,
        bucket: &BucketRef,
        key: &str,
        version: Option<&str>,
        change: ObjectChange,
    ) -> Result<Option<String>> {
        self.0.change_object(bucket, key, version, change).await
    }

    async fn list(&self, bucket: &BucketRef, what: &List) -> Result<Listing> {
        self.0.list(bucket, what).await
    }

    async fn create_upload(&self, bucket: &BucketRef, key: &str, new: NewUpload) -> Result<String> {
        self.0.create_upload(bucket, key, new).await
    }

    async fn upload(&self, bucket: &BucketRef, key: &str, id: &str) -> Result<PendingUpload> {
        self.0.upload(bucket, key, id).await
    }

    async fn put_part(
        &self,
        bucket: &BucketRef,
        key: &str,
        id: &str,
        number: u32,
        bytes: Option<u64>,
        body: &mut impl Upload,
    ) -> Result<Part> {
        self.0.put_part(bucket, key, id, number, bytes, body).await
    }

    async fn list_parts(
        &self,
        bucket: &BucketRef,
        key: &str,
        id: &str,
        after: u32,
        max: usize,
    ) -> Result<PartPage> {
        self.0.list_parts(bucket, key, id, after, max).await
    }

    async fn complete_upload(
        &self,
        bucket: &BucketRef,
        key: &str,
        id: &str,
        parts: &[CompletePart],
        options: &Complete,
    ) -> Result<Written> {
        self.0.complete_upload(bucket, key, id, parts, options).await
    }

    async fn abort_upload(&self, bucket: &BucketRef, key: &str, id: &str) -> Result<()> {
        self.0.abort_upload(bucket, key, id).await
    }

    async fn list_uploads(&self, bucket: &BucketRef, what: &Uploads) -> Result<UploadPage> {
        self.0.list_uploads(bucket, what).await
    }

    fn note_usage(&self, usage: Usage) {
        if !self.0.note_usage(usage) {
            tracing::debug!(
                "a request is not in the usage log, which has no room until it is written"
            );
        }
    }
}
