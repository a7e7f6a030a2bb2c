//! Users as records: found by any of their names, changed against the version that was read.

use super::admin::Admin;
use super::cluster::{Attrs, Record, Write, decoded, encoded};
use super::convert::{self, text};
use super::inner::Inner;
use crate::api::Result;
use ::rgw::bucket::Pool;
use ::rgw::key::User;
use ::rgw::user::UserInfo;
use bytes::Bytes;
use client::ClientError;
use cls::user::{GetHeaderOp, GetHeaderRet, SetBucketsOp, Stats, TimeOp};
use cls::version::ObjVersion;
use std::collections::BTreeSet;
use types::Errno;

/// A user as it was read.
#[derive(Clone, Debug)]
pub struct Account {
    /// The record.
    pub info: UserInfo,
    version: ObjVersion,
}

/// Names by which a user is found beside its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Alias {
    /// An access key.
    Key,
    /// A key of Swift.
    SwiftKey,
    /// The email address.
    Email,
}

/// What became of a change of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stored {
    /// It is made.
    Done,
    /// The user is not as it was read; nothing was changed.
    Changed,
    /// Another user has this name; nothing was changed.
    Taken(Alias, String),
}

/// All names of a user.
fn aliases(info: &UserInfo) -> BTreeSet<(Alias, Bytes)> {
    let email = Some(info.email.clone()).filter(|e| !e.is_empty());
    let keys = info.access_keys.keys().cloned().map(|k| (Alias::Key, k));
    let swift = info.swift_keys.keys().cloned().map(|k| (Alias::SwiftKey, k));
    keys.chain(swift).chain(email.map(|e| (Alias::Email, e))).collect()
}

impl Inner {
    fn alias_pool(&self, alias: Alias) -> &Pool {
        match alias {
            Alias::Key => &self.zone.user_keys_pool,
            Alias::SwiftKey => &self.zone.user_swift_pool,
            Alias::Email => &self.zone.user_email_pool,
        }
    }

    /// Gives a name to a user. `false` if another user has it; a name that leads to a user without
    /// it is left of a change that was not finished.
    async fn take_alias(&self, kind: Alias, name: &Bytes, user: &User) -> Result<bool> {
        let pool = self.alias_pool(kind);
        for _ in 0..super::heads::RACES_MAX {
            let (none, id) = (Attrs::new(), encoded(user));
            if self.cluster.write(pool, name, Write::NewPlain, id, &none, &[]).await?.is_some() {
                return Ok(true);
            }
            let Some(record) = self.cluster.read(pool, name).await? else { continue };
            let owner: User = decoded("the name of a user", &record.data)?;
            if owner == *user {
                return Ok(true);
            }
            let owns = |info: &UserInfo| aliases(info).contains(&(kind, name.clone()));
            if self.read_user(&owner).await?.is_some_and(|(info, _)| owns(&info)) {
                return Ok(false);
            }
            self.cluster.remove(pool, name, None).await?;
        }
        Ok(false)
    }

    async fn drop_aliases<'a>(
        &self,
        names: impl Iterator<Item = &'a (Alias, Bytes)>,
        user: &User,
    ) -> Result<()> {
        for (kind, name) in names {
            let pool = self.alias_pool(*kind);
            let Some(record) = self.cluster.read(pool, name).await? else { continue };
            let owner: User = decoded("the name of a user", &record.data)?;
            if owner == *user {
                self.cluster.remove(pool, name, None).await?;
            }
        }
        Ok(())
    }
}

impl Admin {
    /// A user by id.
    pub async fn account(&self, id: &User) -> Result<Option<Account>> {
        let found = self.0.read_user(id).await?;
        Ok(found.map(|(info, record): (_, Record)| Account { info, version: record.version }))
    }

    /// A user by another name of it.
    pub async fn account_of(&self, kind: Alias, name: &str) -> Result<Option<Account>> {
        if name.is_empty() {
            return Ok(None);
        }
        let Some(record) = self.0.cluster.read(self.0.alias_pool(kind), name).await? else {
            return Ok(None);
        };
        let owner: User = decoded("the name of a user", &record.data)?;
        let found = self.account(&owner).await?;
        let name = (kind, Bytes::copy_from_slice(name.as_bytes()));
        Ok(found.filter(|account| aliases(&account.info).contains(&name)))
    }

    /// Writes a user: a new one, or in place of what was read. Names lead to a user before it has
    /// them, and not the other way round.
    pub async fn store_account(&self, old: Option<&Account>, info: &UserInfo) -> Result<Stored> {
        let inner = &self.0;
        let user = &info.user_id;
        let before = old.map(|a| aliases(&a.info)).unwrap_or_default();
        let after = aliases(info);
        let added: Vec<_> = after.difference(&before).cloned().collect();
        for (at, (kind, name)) in added.iter().enumerate() {
            if !inner.take_alias(*kind, name, user).await? {
                inner.drop_aliases(added.iter().take(at), user).await?;
                return Ok(Stored::Taken(*kind, text(name)));
            }
        }
        let how = old.map_or(Write::New, |a| Write::Over(&a.version));
        let written = inner.store_user(how, info, &Attrs::new()).await?;
        inner.forget_user(&convert::user_id(user));
        if written.is_none() {
            // The user that is there may have got these names meanwhile.
            let now = inner.read_user(user).await?.map(|(info, _)| aliases(&info));
            let now = now.unwrap_or_default();
            inner.drop_aliases(added.iter().filter(|a| !now.contains(*a)), user).await?;
            return Ok(Stored::Changed);
        }
        inner.drop_aliases(before.difference(&after), user).await?;
        Ok(Stored::Done)
    }

    /// Removes a user without buckets. `false` if it is not as it was read.
    pub async fn remove_account(&self, account: &Account) -> Result<bool> {
        let inner = &self.0;
        let user = &account.info.user_id;
        let pool = &inner.zone.user_uid_pool;
        let removed = inner.cluster.remove(pool, user.text(), Some(&account.version)).await?;
        inner.forget_user(&convert::user_id(user));
        if !removed {
            return Ok(false);
        }
        inner.drop_aliases(aliases(&account.info).iter(), user).await?;
        let (io, buckets) = inner.buckets_io(&convert::user_id(user)).await?;
        match io.remove(buckets).await {
            Ok(()) | Err(ClientError::Errno(Errno::ENOENT)) => Ok(true),
            Err(e) => Err(e.into()),
        }
    }

    /// A user's totals as they were last accounted; `None` if they never were.
    pub async fn user_stats(&self, id: &User) -> Result<Option<Stats>> {
        let (io, object) = self.0.buckets_io(&convert::user_id(id)).await?;
        let input = encoded(&GetHeaderOp {});
        match io.exec(object, "user", "get_header", &input, false).await {
            Ok(bytes) => {
                let ret: GetHeaderRet = decoded("the totals of a user", &bytes)?;
                Ok(Some(ret.header.stats))
            }
            Err(ClientError::Errno(Errno::ENOENT)) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Accounts all buckets of a user.
    pub async fn sync_user_stats(&self, id: &User) -> Result<()> {
        let owner = convert::user_id(id);
        let (io, object) = self.0.buckets_io(&owner).await?;
        for listed in self.0.buckets_of(&owner, "", usize::MAX).await?.buckets {
            let name =
                crate::api::BucketName { tenant: owner.tenant.clone(), name: listed.name.clone() };
            // A bucket that is removed meanwhile leaves the list by itself.
            let Ok(bucket) = self.0.bucket(&name).await else { continue };
            let mut entry = cls::user::BucketEntry {
                bucket: Inner::user_bucket(&bucket.instance.bucket),
                creation_time: bucket.instance.creation_time,
                user_stats_sync: true,
                ..Default::default()
            };
            for header in self.0.index_headers(&bucket).await? {
                for stats in header.stats.values() {
                    entry.size = entry.size.wrapping_add(stats.total_size);
                    entry.size_rounded = entry.size_rounded.wrapping_add(stats.total_size_rounded);
                    entry.count = entry.count.wrapping_add(stats.num_entries);
                }
            }
            let time = self.0.cluster.now();
            let op = SetBucketsOp { entries: vec![entry], add: false, time };
            io.exec(&object, "user", "set_buckets_info", &encoded(&op), true).await?;
        }
        let op = TimeOp { time: self.0.cluster.now() };
        match io.exec(&object, "user", "complete_stats_sync", &encoded(&op), true).await {
            Ok(_) | Err(ClientError::Errno(Errno::ENOENT)) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }
}
