//! Buckets and users.

use super::backend::Io;
use super::cluster::{Attrs, Write, decoded, encoded, nanoseconds};
use super::convert::{self, text};
use super::handle::{BucketRef, Handle, handle};
use super::inner::{Cached, Inner};
use crate::api::{
    BucketChange, BucketEntry, BucketName, BucketPage, BucketStats, Error, NewBucket, Result, User,
    UserChange, UserId,
};
use ::rgw::bucket::{BucketInstance, BucketKey, BucketLayout, EntryPoint, Placement, flag};
use ::rgw::entry::ObjCategory;
use ::rgw::key;
use ::rgw::user::UserInfo;
use bytes::{Bytes, BytesMut};
use client::ClientError;
use cls::user::{ListBucketsOp, ListBucketsRet, RemoveBucketOp, SetBucketsOp};
use cls::version::ObjVersion;
use denc::{Encode, Features, Reader};
use s3::xml::config::Versioning;
use s3::{ErrorCode, S3Error};
use std::rc::Rc;
use types::Errno;

/// Buckets that are asked for at a time.
const LIST_MAX: usize = 1000;

fn no_bucket(name: &BucketName) -> Error {
    S3Error::from(ErrorCode::NoSuchBucket).with("BucketName", name.name.clone()).into()
}

impl Inner {
    pub(super) async fn read_entry(
        &self,
        name: &BucketName,
    ) -> Result<Option<(EntryPoint, ObjVersion)>> {
        let object = BucketKey::entry_object(name.tenant.as_bytes(), name.name.as_bytes());
        let Some(record) = self.cluster.read(&self.zone.domain_root, object).await? else {
            return Ok(None);
        };
        Ok(Some((decoded("the entry point of a bucket", &record.data)?, record.version)))
    }

    /// Looks a bucket up, in the cache first.
    pub(super) async fn bucket(&self, name: &BucketName) -> Result<BucketRef> {
        if let Some(bucket) = self.cached_bucket(name) {
            return Ok(bucket);
        }
        let generation = self.cache.borrow().generation;
        let (entry, _) = self.read_entry(name).await?.ok_or_else(|| no_bucket(name))?;
        let object = entry.bucket.instance_object();
        let record = self.cluster.read(&self.zone.domain_root, object).await?;
        let record = record.ok_or_else(|| no_bucket(name))?;
        let instance: BucketInstance = decoded("a bucket", &record.data)?;
        if instance.layout.current_index.layout.kind != ::rgw::bucket::IndexType::NORMAL {
            return Err(S3Error::new(
                ErrorCode::NotImplemented,
                "Buckets without an index are not implemented",
            )
            .into());
        }
        let bucket = handle(instance, &record.attrs)?;
        let mut cache = self.cache.borrow_mut();
        // A change that came meanwhile may not be in what was read.
        if cache.enabled && cache.generation == generation {
            cache.buckets.insert(name.clone(), Cached::new(bucket.clone()));
        }
        Ok(bucket)
    }

    pub(super) async fn buckets_io(&self, owner: &UserId) -> Result<(Io, String)> {
        Ok((self.cluster.io(&self.zone.user_uid_pool).await?, format!("{owner}.buckets")))
    }

    /// Lists a user's buckets.
    pub(super) async fn buckets_of(
        &self,
        owner: &UserId,
        after: &str,
        max: usize,
    ) -> Result<BucketPage> {
        let (io, object) = self.buckets_io(owner).await?;
        let mut page = BucketPage { buckets: Vec::new(), more: true };
        let mut marker: Bytes = after.to_owned().into();
        while page.more && page.buckets.len() < max {
            let want = (max - page.buckets.len()).min(LIST_MAX);
            let op = ListBucketsOp {
                marker: marker.clone(),
                max_entries: i32::try_from(want).unwrap_or(i32::MAX),
                end_marker: Bytes::new(),
            };
            let answer = io.exec(&object, "user", "list_buckets", &encoded(&op), false).await;
            let bytes = match answer {
                Ok(bytes) => bytes,
                Err(ClientError::Errno(Errno::ENOENT)) => {
                    page.more = false;
                    break;
                }
                Err(e) => return Err(e.into()),
            };
            let ret: ListBucketsRet = decoded("a list of buckets", &bytes)?;
            page.more = ret.truncated && !ret.entries.is_empty();
            marker = ret.entries.last().map_or(marker, |e| e.bucket.name.clone());
            page.buckets.extend(ret.entries.iter().map(|e| BucketEntry {
                name: text(&e.bucket.name),
                created: nanoseconds(e.creation_time),
                bytes: e.size,
                objects: e.count,
            }));
        }
        Ok(page)
    }

    pub(super) fn user_bucket(bucket: &BucketKey) -> cls::user::Bucket {
        let explicit = bucket.explicit.clone().unwrap_or_default();
        cls::user::Bucket {
            name: bucket.name.clone(),
            marker: bucket.marker.clone(),
            bucket_id: bucket.bucket_id.clone(),
            placement_id: Bytes::new(),
            data_pool: explicit.data.text(),
            index_pool: explicit.index.text(),
            data_extra_pool: explicit.data_extra.text(),
        }
    }

    pub(super) async fn list_for_owner(&self, bucket: &BucketInstance) -> Result<()> {
        let (io, object) = self.buckets_io(&convert::user_id(&bucket.owner)).await?;
        let entry = cls::user::BucketEntry {
            bucket: Self::user_bucket(&bucket.bucket),
            creation_time: bucket.creation_time,
            user_stats_sync: true,
            ..Default::default()
        };
        let op = SetBucketsOp { entries: vec![entry], add: true, time: self.cluster.now() };
        io.exec(object, "user", "set_buckets_info", &encoded(&op), true).await?;
        Ok(())
    }

    pub(super) async fn unlist_for_owner(&self, bucket: &BucketInstance) -> Result<()> {
        let (io, object) = self.buckets_io(&convert::user_id(&bucket.owner)).await?;
        let op = RemoveBucketOp { bucket: Self::user_bucket(&bucket.bucket) };
        match io.exec(object, "user", "remove_bucket", &encoded(&op), true).await {
            Ok(_) | Err(ClientError::Errno(Errno::ENOENT)) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Where a new bucket goes.
    fn bucket_placement(&self, location: &str, user: &UserInfo) -> Result<Placement> {
        let refuse = || Error::from(S3Error::from(ErrorCode::InvalidLocationConstraint));
        let (region, target) = location.split_once(':').unwrap_or((location, ""));
        if !region.is_empty() && region != self.group.api_name {
            return Err(refuse());
        }
        let mut placement = if !target.is_empty() {
            Placement { name: target.to_owned().into(), storage_class: Bytes::new() }
        } else if !user.default_placement.name.is_empty() {
            user.default_placement.clone()
        } else {
            self.group.default_placement.clone()
        };
        if placement.name.is_empty() {
            placement.name = ::rgw::zone::DEFAULT_PLACEMENT.into();
        }
        if !self.group.placement_targets.contains_key(&placement.name) {
            return Err(refuse());
        }
        self.placement(&placement.name).map_err(|_| refuse())?;
        Ok(placement)
    }

    /// Makes a bucket.
    pub(super) async fn create_bucket(&self, new: NewBucket) -> Result<BucketRef> {
        if new.object_lock {
            return Err(S3Error::new(
                ErrorCode::NotImplemented,
                "Buckets with locks are not implemented",
            )
            .into());
        }
        let owner = convert::user_key(&new.owner);
        let (user, _) =
            self.read_user(&owner).await?.ok_or_else(|| Error::from(ErrorCode::NoSuchUser))?;
        let placement = self.bucket_placement(&new.location, &user)?;
        self.forget_bucket(&new.name);
        match self.bucket(&new.name).await {
            Ok(found) => return self.exists_already(&found, &new).await,
            Err(e) if e.code() == ErrorCode::NoSuchBucket => {}
            Err(e) => return Err(e),
        }
        if user.max_buckets != 0 {
            let max = usize::try_from(user.max_buckets).unwrap_or(0);
            let has = self.buckets_of(&new.owner, "", max.saturating_add(1)).await?;
            if has.buckets.len() >= max {
                return Err(ErrorCode::TooManyBuckets.into());
            }
        }
        let id: Bytes = self.new_bucket_id().into();
        let key = BucketKey {
            tenant: new.name.tenant.clone().into(),
            name: new.name.name.clone().into(),
            marker: id.clone(),
            bucket_id: id,
            explicit: None,
        };
        let instance = BucketInstance {
            bucket: key.clone(),
            owner: owner.clone(),
            zonegroup: self.group.meta.id.clone().into(),
            creation_time: self.cluster.now(),
            placement,
            // As RGW 16.2 has it for new buckets.
            has_instance_obj: true,
            layout: BucketLayout::new(self.index_shards),
            ..BucketInstance::default()
        };
        let mut attrs =
            Attrs::from([(Bytes::from_static(convert::ACL), convert::acl_attr(&new.acl)?)]);
        if let Some(ownership) = new.ownership {
            let (attr, value) = convert::ownership_attr(ownership);
            attrs.insert(Bytes::from_static(attr), value);
        }
        let made = handle(instance.clone(), &attrs)?;
        self.init_index(&made).await?;
        let root = &self.zone.domain_root;
        let object = key.instance_object();
        let data = encoded(&instance);
        if self.cluster.write(root, &object, Write::New, data, &attrs, &[]).await?.is_none() {
            return Err(Error::Internal("the id of a new bucket is in use".into()));
        }
        let entry = EntryPoint {
            bucket: key.clone(),
            owner: owner.clone(),
            linked: true,
            creation_time: instance.creation_time,
        };
        let name = BucketKey::entry_object(&key.tenant, &key.name);
        let none = Attrs::new();
        let written =
            self.cluster.write(root, &name, Write::New, encoded(&entry), &none, &[]).await;
        if !matches!(written, Ok(Some(_))) {
            // Another bucket has the name, or it is not known whether this one has: an instance
            // without a name is harmless.
            if let Ok(None) = written {
                self.cluster.remove(root, &object, None).await?;
                self.remove_index(&made).await?;
                self.forget_bucket(&new.name);
                let found = self.bucket(&new.name).await?;
                return self.exists_already(&found, &new).await;
            }
            written?;
        }
        self.list_for_owner(&instance).await?;
        self.forget_bucket(&new.name);
        self.bucket(&new.name).await
    }

    async fn exists_already(&self, found: &BucketRef, new: &NewBucket) -> Result<BucketRef> {
        if found.info.owner != new.owner {
            return Err(ErrorCode::BucketAlreadyExists.into());
        }
        // The gateway that made it may have ended before the owner's list had it.
        self.list_for_owner(&found.instance).await?;
        Err(ErrorCode::BucketAlreadyOwnedByYou.into())
    }

    /// Removes a bucket without objects.
    pub(super) async fn delete_bucket(&self, bucket: &BucketRef) -> Result<()> {
        if !self.is_empty(bucket).await? {
            return Err(ErrorCode::BucketNotEmpty.into());
        }
        self.abort_uploads(bucket).await?;
        let root = &self.zone.domain_root;
        let key = &bucket.instance.bucket;
        if let Some((entry, version)) = self.read_entry(&bucket.info.name).await?
            && entry.bucket.marker == key.marker
        {
            let name = BucketKey::entry_object(&key.tenant, &key.name);
            if !self.cluster.remove(root, name, Some(&version)).await? {
                return Err(ErrorCode::OperationAborted.into());
            }
        }
        self.cluster.remove(root, key.instance_object(), None).await?;
        self.forget_bucket(&bucket.info.name);
        self.remove_index(bucket).await?;
        self.unlist_for_owner(&bucket.instance).await?;
        if bucket.info.settings.lifecycle.is_some() {
            self.schedule_lifecycle(&bucket.instance, false).await?;
        }
        Ok(())
    }

    /// Changes settings of a bucket, in the newest state of it.
    pub(super) async fn change_bucket(
        &self,
        bucket: &BucketRef,
        change: BucketChange,
    ) -> Result<()> {
        let mut set = Attrs::new();
        let mut unset: Vec<&'static [u8]> = Vec::new();
        let mut put = |attr: &'static [u8], value: Option<Bytes>| match value {
            Some(v) => {
                set.insert(Bytes::from_static(attr), v);
            }
            None => unset.push(attr),
        };
        let mut edit: Option<Box<dyn Fn(&mut BucketInstance)>> = None;
        let mut lifecycle = None;
        match change {
            BucketChange::Acl(acl) => put(convert::ACL, Some(convert::acl_attr(&acl)?)),
            BucketChange::Policy(p) => put(convert::POLICY, p),
            BucketChange::Cors(c) => put(convert::CORS, c.map(|c| convert::cors_attr(&c))),
            BucketChange::Lifecycle(l) => {
                lifecycle = Some(l.is_some());
                put(convert::LIFECYCLE, l.map(|l| convert::lifecycle_attr(&l)).transpose()?);
            }
            BucketChange::Tags(t) => put(convert::TAGS, t.map(|t| convert::tags_attr(&t))),
            BucketChange::PublicAccess(b) => {
                put(convert::PUBLIC_ACCESS, b.map(|b| convert::public_access_attr(&b)));
            }
            BucketChange::Ownership(o) => {
                put(convert::OWNERSHIP_ATTR, o.map(|o| convert::ownership_attr(o).1));
            }
            BucketChange::Versioning(v) => {
                edit = Some(Box::new(move |b| {
                    b.flags |= flag::VERSIONED;
                    match v {
                        Versioning::Enabled => b.flags &= !flag::VERSIONS_SUSPENDED,
                        Versioning::Suspended => b.flags |= flag::VERSIONS_SUSPENDED,
                    }
                }));
            }
            BucketChange::Quota(q) => {
                edit = Some(Box::new(move |b| b.quota = convert::quota_record(&q)));
            }
        }
        let root = &self.zone.domain_root;
        for _ in 0..super::heads::RACES_MAX {
            let (entry, _) = (self.read_entry(&bucket.info.name).await?)
                .filter(|(e, _)| e.bucket.marker == bucket.instance.bucket.marker)
                .ok_or_else(|| no_bucket(&bucket.info.name))?;
            let object = entry.bucket.instance_object();
            let record = self.cluster.read(root, &object).await?;
            let record = record.ok_or_else(|| no_bucket(&bucket.info.name))?;
            let mut instance: BucketInstance = decoded("a bucket", &record.data)?;
            if let Some(edit) = &edit {
                edit(&mut instance);
            }
            let gone: Vec<&[u8]> =
                unset.iter().copied().filter(|a| record.attrs.contains_key(*a)).collect();
            let over = Write::Over(&record.version);
            let data = encoded(&instance);
            if self.cluster.write(root, &object, over, data, &set, &gone).await?.is_some() {
                self.forget_bucket(&bucket.info.name);
                if let Some(scheduled) = lifecycle {
                    self.schedule_lifecycle(&instance, scheduled).await?;
                }
                return Ok(());
            }
        }
        Err(ErrorCode::OperationAborted.into())
    }

    /// How much is in a bucket.
    pub(super) async fn bucket_stats(&self, bucket: &Handle) -> Result<BucketStats> {
        let mut stats = BucketStats::default();
        for header in self.index_headers(bucket).await? {
            if let Some(main) = header.stats.get(&ObjCategory::MAIN) {
                stats.objects = stats.objects.wrapping_add(main.num_entries);
                stats.bytes = stats.bytes.wrapping_add(main.total_size);
                stats.rounded = stats.rounded.wrapping_add(main.total_size_rounded);
            }
        }
        Ok(stats)
    }

    /// Whether there is room for one object more.
    pub(super) async fn check_quota(&self, bucket: &Handle, bytes: Option<u64>) -> Result<()> {
        let own = bucket.info.quota;
        let owner = self.user(&bucket.info.owner).await.ok();
        let quota = if own.enabled {
            own
        } else {
            owner.as_ref().map(|u| u.bucket_quota).unwrap_or_default()
        };
        let exceeded = |quota: &crate::api::Quota, stats: BucketStats| {
            let bytes = stats.bytes.saturating_add(bytes.unwrap_or(0));
            quota.max_objects.is_some_and(|max| stats.objects + 1 > max)
                || quota.max_bytes.is_some_and(|max| bytes > max)
        };
        if quota.enabled && exceeded(&quota, self.bucket_stats(bucket).await?) {
            return Err(ErrorCode::QuotaExceeded.into());
        }
        let whole = owner.map(|u| u.user_quota).unwrap_or_default();
        if whole.enabled {
            let mut all = BucketStats::default();
            let list = self.buckets_of(&bucket.info.owner, "", usize::MAX).await?;
            for entry in list.buckets {
                let name =
                    BucketName { tenant: bucket.info.owner.tenant.clone(), name: entry.name };
                let Ok(other) = self.bucket(&name).await else { continue };
                let stats = self.bucket_stats(&other).await?;
                all.objects += stats.objects;
                all.bytes += stats.bytes;
            }
            if exceeded(&whole, all) {
                return Err(ErrorCode::QuotaExceeded.into());
            }
        }
        Ok(())
    }

    pub(super) async fn read_user(
        &self,
        id: &key::User,
    ) -> Result<Option<(UserInfo, super::cluster::Record)>> {
        let Some(record) = self.cluster.read(&self.zone.user_uid_pool, id.text()).await? else {
            return Ok(None);
        };
        let mut r = Reader::new(record.data.clone());
        let read: denc::Result<(key::User, UserInfo)> = r.get();
        let (_, info) = read.map_err(|e| Error::Internal(format!("a user cannot be read: {e}")))?;
        Ok(Some((info, record)))
    }

    /// A user by id.
    pub(super) async fn user(&self, id: &UserId) -> Result<Rc<User>> {
        if let Some(user) = self.cached_user(id) {
            return Ok(user);
        }
        let generation = self.cache.borrow().generation;
        let (info, _) = self
            .read_user(&convert::user_key(id))
            .await?
            .ok_or_else(|| Error::from(ErrorCode::NoSuchUser))?;
        let user = Rc::new(convert::user_value(&info));
        let mut cache = self.cache.borrow_mut();
        if cache.enabled && cache.generation == generation {
            cache.users.insert(id.clone(), Cached::new(user.clone()));
        }
        Ok(user)
    }

    async fn user_in(&self, pool: &::rgw::bucket::Pool, name: &str) -> Result<Option<UserId>> {
        if name.is_empty() {
            return Ok(None);
        }
        let Some(record) = self.cluster.read(pool, name).await? else { return Ok(None) };
        let user: key::User = decoded("the name of a user", &record.data)?;
        Ok(Some(convert::user_id(&user)))
    }

    /// The user of a key.
    pub(super) async fn user_of_key(&self, access_key: &str) -> Result<Rc<User>> {
        let unknown = || Error::from(ErrorCode::InvalidAccessKeyId);
        let cached = self.cached_key(access_key);
        let id = match cached {
            Some(id) => id,
            None => {
                let generation = self.cache.borrow().generation;
                let id = self.user_in(&self.zone.user_keys_pool, access_key).await?;
                let id = id.ok_or_else(unknown)?;
                let mut cache = self.cache.borrow_mut();
                if cache.enabled && cache.generation == generation {
                    cache.keys.insert(access_key.to_owned(), Cached::new(id.clone()));
                }
                id
            }
        };
        let user = self.user(&id).await.map_err(|e| match e.code() {
            ErrorCode::NoSuchUser => unknown(),
            _ => e,
        })?;
        // A key that was taken away can still have its object.
        if user.keys.iter().any(|k| k.id == access_key) { Ok(user) } else { Err(unknown()) }
    }

    /// The user with an address.
    pub(super) async fn user_of_email(&self, email: &str) -> Result<Rc<User>> {
        let unknown = || Error::from(ErrorCode::UnresolvableGrantByEmailAddress);
        let email = email.to_lowercase();
        let id = self.user_in(&self.zone.user_email_pool, &email).await?.ok_or_else(unknown)?;
        self.user(&id).await
    }

    pub(super) async fn store_user(
        &self,
        how: Write<'_>,
        info: &UserInfo,
        attrs: &Attrs,
    ) -> Result<Option<ObjVersion>> {
        let mut data = BytesMut::new();
        (&info.user_id, info).encode(&mut data, Features::ALL);
        let pool = &self.zone.user_uid_pool;
        self.cluster.write(pool, info.user_id.text(), how, data.freeze(), attrs, &[]).await
    }

    /// Enters a user by key or address. `false` if another user has it.
    async fn claim(
        &self,
        pool: &::rgw::bucket::Pool,
        name: &Bytes,
        user: &key::User,
    ) -> Result<bool> {
        let none = Attrs::new();
        let plain = Write::NewPlain;
        if self.cluster.write(pool, name, plain, encoded(user), &none, &[]).await?.is_some() {
            return Ok(true);
        }
        let owner = self.user_in(pool, &text(name)).await?;
        Ok(owner == Some(convert::user_id(user)))
    }

    /// Makes a user.
    pub(super) async fn create_user(&self, user: &User) -> Result<()> {
        let taken = |what: &str| {
            Error::from(S3Error::new(ErrorCode::InvalidRequest, format!("{what} is in use")))
        };
        let info = convert::user_record(user);
        for key in info.access_keys.keys() {
            let owner = self.user_in(&self.zone.user_keys_pool, &text(key)).await?;
            if owner.is_some_and(|id| id != user.id) {
                return Err(taken("the access key"));
            }
        }
        let email = text(&info.email);
        let owner = self.user_in(&self.zone.user_email_pool, &email).await?;
        if owner.is_some_and(|id| id != user.id) {
            return Err(taken("the address"));
        }
        if self.store_user(Write::New, &info, &Attrs::new()).await?.is_none() {
            return Err(taken("the id"));
        }
        self.forget_user(&user.id);
        if !info.email.is_empty()
            && !self.claim(&self.zone.user_email_pool, &info.email, &info.user_id).await?
        {
            return Err(taken("the address"));
        }
        for key in info.access_keys.keys() {
            if !self.claim(&self.zone.user_keys_pool, key, &info.user_id).await? {
                return Err(taken("the access key"));
            }
        }
        Ok(())
    }

    /// Changes a user.
    pub(super) async fn change_user(&self, id: &UserId, change: UserChange) -> Result<()> {
        for _ in 0..super::heads::RACES_MAX {
            let (mut info, record) = self
                .read_user(&convert::user_key(id))
                .await?
                .ok_or_else(|| Error::from(ErrorCode::NoSuchUser))?;
            let old = info.access_keys.clone();
            if let Some(name) = &change.display_name {
                info.display_name = name.clone().into();
            }
            if let Some(keys) = &change.keys {
                info.access_keys = convert::keys_record(keys);
            }
            if let Some(suspended) = change.suspended {
                info.suspended = suspended.into();
            }
            if let Some(max) = change.max_buckets {
                info.max_buckets = convert::max_buckets_record(max);
            }
            if let Some(quota) = &change.bucket_quota {
                info.bucket_quota = convert::quota_record(quota);
            }
            if let Some(quota) = &change.user_quota {
                info.user_quota = convert::quota_record(quota);
            }
            // Keys can be looked up before the user has them, and not the other way round.
            for key in info.access_keys.keys().filter(|k| !old.contains_key(*k)) {
                if !self.claim(&self.zone.user_keys_pool, key, &info.user_id).await? {
                    return Err(S3Error::new(
                        ErrorCode::InvalidRequest,
                        "the access key is in use",
                    )
                    .into());
                }
            }
            let over = Write::Over(&record.version);
            if self.store_user(over, &info, &Attrs::new()).await?.is_none() {
                continue;
            }
            self.forget_user(id);
            for key in old.keys().filter(|k| !info.access_keys.contains_key(*k)) {
                self.cluster.remove(&self.zone.user_keys_pool, key, None).await?;
            }
            return Ok(());
        }
        Err(ErrorCode::OperationAborted.into())
    }
}
