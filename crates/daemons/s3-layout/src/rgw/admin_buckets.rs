//! Buckets as records: what is known of one, its owner, its index.

use super::admin::Admin;
use super::cluster::{Attrs, Write, decoded, encoded};
use super::convert;
use super::handle::BucketRef;
use super::inner::Inner;
use crate::api::{BucketName, Error, List, Result};
use ::rgw::acl::AccessPolicy;
use ::rgw::bucket::{BucketInstance, EntryPoint, QuotaInfo, flag};
use ::rgw::header::{CategoryStats, DirHeader};
use ::rgw::index::CheckIndexRet;
use ::rgw::key::User;
use bytes::Bytes;
use client::Operation;
use cls::version::ObjVersion;
use s3::ErrorCode;
use s3::condition::Conditions;
use std::collections::{BTreeMap, BTreeSet};
use types::Utime;

/// A bucket's records.
#[derive(Clone, Debug)]
pub struct BucketRecords {
    /// What the name stands for.
    pub entry: EntryPoint,
    /// What is known of the bucket.
    pub instance: BucketInstance,
    /// Its settings: attributes of the record.
    pub attrs: BTreeMap<Bytes, Bytes>,
    /// When the record was written.
    pub modified: Utime,
    /// Headers of its index, by shard.
    pub headers: Vec<DirHeader>,
    entry_version: ObjVersion,
    version: ObjVersion,
}

/// Totals by category, as RGW numbers them.
pub type Totals = BTreeMap<u8, CategoryStats>;

/// What a check of an index found.
#[derive(Clone, Debug, Default)]
pub struct IndexCheck {
    /// Entries of parts without their upload.
    pub lost_parts: Vec<String>,
    /// Totals as the index has them.
    pub existing: Totals,
    /// Totals counted anew.
    pub calculated: Totals,
}

/// Totals of all shards.
pub fn totals<'a>(headers: impl IntoIterator<Item = &'a DirHeader>) -> Totals {
    let mut all = Totals::new();
    for (category, stats) in headers.into_iter().flat_map(|h| &h.stats) {
        all.entry(category.0).or_default().add(*stats);
    }
    all
}

/// How names of parts and uploads begin in the index.
const MULTIPART: &str = "_multipart_";
/// What the name of an upload's own entry ends with.
const META: &str = ".meta";

/// Entries of parts without an entry of their upload: names without the namespace in front.
fn lost_parts<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let names: Vec<&str> = names.map(|n| n.strip_prefix(MULTIPART).unwrap_or(n)).collect();
    let uploads: BTreeSet<&str> = names.iter().filter_map(|n| n.strip_suffix(META)).collect();
    let stem = |name: &str| name.rsplit_once('.').map_or(name.len(), |(stem, _)| stem.len());
    let is_lost = |name: &str| !name.ends_with(META) && !uploads.contains(&name[..stem(name)]);
    names.iter().filter(|n| is_lost(n)).map(|n| (*n).to_owned()).collect()
}

impl Admin {
    /// A bucket's records, and with `index` the headers of its index. `NoSuchBucket` if there is
    /// none.
    pub async fn bucket_records(&self, name: &BucketName, index: bool) -> Result<BucketRecords> {
        let inner = &self.0;
        let none = || Error::from(ErrorCode::NoSuchBucket);
        let (entry, entry_version) = inner.read_entry(name).await?.ok_or_else(none)?;
        let object = entry.bucket.instance_object();
        let root = &inner.zone.domain_root;
        let record = inner.cluster.read(root, &object).await?.ok_or_else(none)?;
        let io = inner.cluster.io(root).await?;
        let stat = super::cluster::submit(&io, &object, Operation::new().stat(), None).await;
        let modified = stat.and_then(|s| s.stat(0)).map(|s| s.mtime).unwrap_or_default();
        let headers = if index {
            inner.forget_bucket(name);
            inner.index_headers(&*inner.bucket(name).await?).await?
        } else {
            Vec::new()
        };
        Ok(BucketRecords {
            entry,
            instance: decoded("a bucket", &record.data)?,
            attrs: record.attrs,
            modified,
            headers,
            entry_version,
            version: record.version,
        })
    }

    async fn fresh(&self, name: &BucketName) -> Result<BucketRef> {
        self.0.forget_bucket(name);
        self.0.bucket(name).await
    }

    /// The ACL of a bucket, or of an object in it.
    pub async fn policy(&self, name: &BucketName, key: &str) -> Result<AccessPolicy> {
        let attr = if key.is_empty() {
            self.bucket_records(name, false).await?.attrs.get(convert::ACL).cloned()
        } else {
            let bucket = self.fresh(name).await?;
            let object = self.0.open(&bucket, key, None, false).await?;
            Some(convert::acl_attr(&object.as_ref().acl)?)
        };
        let attr = attr.ok_or_else(|| Error::from(ErrorCode::NoSuchKey))?;
        decoded("an ACL", &attr)
    }

    /// Sets a bucket's own quota.
    pub async fn set_bucket_quota(&self, name: &BucketName, quota: QuotaInfo) -> Result<()> {
        self.change_instance(name, |bucket| bucket.quota = quota).await
    }

    /// Changes what is known of a bucket, in its newest state.
    async fn change_instance(
        &self,
        name: &BucketName,
        change: impl Fn(&mut BucketInstance),
    ) -> Result<()> {
        for _ in 0..super::heads::RACES_MAX {
            let mut found = self.bucket_records(name, false).await?;
            change(&mut found.instance);
            if self.write_instance(name, &found, &Attrs::new()).await? {
                return Ok(());
            }
        }
        Err(ErrorCode::OperationAborted.into())
    }

    async fn write_instance(
        &self,
        name: &BucketName,
        found: &BucketRecords,
        attrs: &Attrs,
    ) -> Result<bool> {
        let (root, object) = (&self.0.zone.domain_root, found.instance.bucket.instance_object());
        let (over, data) = (Write::Over(&found.version), encoded(&found.instance));
        let written = self.0.cluster.write(root, object, over, data, attrs, &[]).await?;
        self.0.forget_bucket(name);
        Ok(written.is_some())
    }

    async fn write_entry(
        &self,
        name: &BucketName,
        entry: &EntryPoint,
        over: &ObjVersion,
    ) -> Result<bool> {
        let (root, key) = (&self.0.zone.domain_root, &entry.bucket);
        let object = ::rgw::bucket::BucketKey::entry_object(&key.tenant, &key.name);
        let none = Attrs::new();
        let data = encoded(entry);
        let written = self.0.cluster.write(root, object, Write::Over(over), data, &none, &[]).await;
        self.0.forget_bucket(name);
        Ok(written?.is_some())
    }

    /// Names of the buckets in a user's list.
    pub async fn buckets_of(&self, owner: &User) -> Result<Vec<String>> {
        let owner = convert::user_id(owner);
        let page = self.0.buckets_of(&owner, "", usize::MAX).await?;
        Ok(page.buckets.into_iter().map(|b| b.name).collect())
    }

    /// Opens a user's buckets, or closes them: requests on a closed one are refused.
    pub async fn open_buckets(&self, owner: &User, open: bool) -> Result<()> {
        let tenant = convert::text(&owner.tenant);
        for name in self.buckets_of(owner).await? {
            let name = BucketName { tenant: tenant.clone(), name };
            let change = |bucket: &mut BucketInstance| match open {
                true => bucket.flags &= !flag::SUSPENDED,
                false => bucket.flags |= flag::SUSPENDED,
            };
            match self.change_instance(&name, change).await {
                // It was removed meanwhile.
                Err(e) if e.code() == ErrorCode::NoSuchBucket => {}
                other => other?,
            }
        }
        Ok(())
    }

    /// Gives a bucket to a user, with an ACL that only it is in.
    pub async fn link_bucket(
        &self,
        name: &BucketName,
        owner: &User,
        acl: &AccessPolicy,
    ) -> Result<()> {
        for _ in 0..super::heads::RACES_MAX {
            let mut found = self.bucket_records(name, false).await?;
            let before = found.instance.clone();
            found.instance.owner = owner.clone();
            let attrs = Attrs::from([(Bytes::from_static(convert::ACL), encoded(acl))]);
            if !self.write_instance(name, &found, &attrs).await? {
                continue;
            }
            let entry = EntryPoint { owner: owner.clone(), linked: true, ..found.entry.clone() };
            if !self.write_entry(name, &entry, &found.entry_version).await? {
                continue;
            }
            // The new owner sees it before the old one does no longer: a bucket in no list is lost
            // to tools that go by owners.
            self.0.list_for_owner(&found.instance).await?;
            if before.owner != *owner {
                self.0.unlist_for_owner(&before).await?;
            }
            return Ok(());
        }
        Err(ErrorCode::OperationAborted.into())
    }

    /// Takes a bucket out of its owner's list. `false` if another user has it.
    pub async fn unlink_bucket(&self, name: &BucketName, owner: &User) -> Result<bool> {
        for _ in 0..super::heads::RACES_MAX {
            let found = self.bucket_records(name, false).await?;
            let listed = BucketInstance { owner: owner.clone(), ..found.instance.clone() };
            self.0.unlist_for_owner(&listed).await?;
            if !found.entry.linked {
                return Ok(true);
            }
            if found.entry.owner != *owner {
                return Ok(false);
            }
            let entry = EntryPoint { linked: false, ..found.entry.clone() };
            if self.write_entry(name, &entry, &found.entry_version).await? {
                return Ok(true);
            }
        }
        Err(ErrorCode::OperationAborted.into())
    }

    /// Removes a bucket, with `purge` with all that is in it.
    pub async fn remove_bucket(&self, name: &BucketName, purge: bool) -> Result<()> {
        let bucket = self.fresh(name).await?;
        if purge {
            self.purge(&bucket).await?;
        }
        self.0.delete_bucket(&bucket).await
    }

    async fn purge(&self, bucket: &BucketRef) -> Result<()> {
        let what = List { versions: true, max: 1000, ..List::default() };
        loop {
            // From the beginning again: what was listed is gone.
            let page = self.0.list(bucket, &what).await?;
            for entry in &page.entries {
                let version = entry.version.as_deref();
                self.0.delete(bucket, &entry.key, version, &Conditions::default()).await?;
            }
            if page.next.is_none() {
                return self.0.abort_uploads(bucket).await;
            }
        }
    }

    /// Removes one object, or the null version of it in a bucket with versions.
    pub async fn remove_object(&self, name: &BucketName, key: &str) -> Result<()> {
        let bucket = self.fresh(name).await?;
        let version = bucket.as_ref().versioning.map(|_| "null");
        self.0.delete(&bucket, key, version, &Conditions::default()).await.map(|_| ())
    }

    /// Compares the totals of an index with its entries, and looks for parts without an upload.
    /// With `fix` the totals become those of the entries.
    pub async fn check_index(&self, name: &BucketName, fix: bool) -> Result<IndexCheck> {
        let inner = &self.0;
        let bucket = self.fresh(name).await?;
        let lost_parts = self.parts_alone(&bucket).await?;
        let io = inner.index_io(&bucket).await?;
        let nothing = Bytes::new();
        let (mut existing, mut calculated) = (Vec::new(), Vec::new());
        for object in inner.index_objects(&bucket) {
            let answer = io.exec(&object, "rgw", "bucket_check_index", &nothing, false).await?;
            let ret: CheckIndexRet = decoded("a check of an index", &answer)?;
            existing.push(ret.existing_header);
            calculated.push(ret.calculated_header);
            if fix {
                io.exec(&object, "rgw", "bucket_rebuild_index", &nothing, true).await?;
            }
        }
        Ok(IndexCheck { lost_parts, existing: totals(&existing), calculated: totals(&calculated) })
    }

    async fn parts_alone(&self, bucket: &BucketRef) -> Result<Vec<String>> {
        let inner: &Inner = &self.0;
        let mut query = super::index::Query {
            prefix: Bytes::from_static(MULTIPART.as_bytes()),
            versions: true,
            max: 1000,
            ..Default::default()
        };
        let mut keys = Vec::new();
        loop {
            let page = inner.list_index(bucket, &query).await?;
            keys.extend(page.entries.into_iter().map(|e| e.key));
            let Some(next) = page.next else { break };
            query.after = next;
        }
        let names: Vec<String> = keys.iter().map(|k| convert::text(&k.name)).collect();
        Ok(lost_parts(names.iter().map(String::as_str)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_without_their_upload_are_found() {
        let names = [
            "_multipart_a.2~x.1",
            "_multipart_a.2~x.meta",
            "_multipart_b.c.2~y.1",
            "_multipart_d.2~z.meta",
        ];
        assert_eq!(lost_parts(names.into_iter()), ["b.c.2~y.1"]);
    }
}
