//! Work that no request waits for: the usage log, lifecycle, and caches that other gateways tell
//! of changes.

use super::cluster::{decoded, encoded};
use super::convert;
use super::handle::BucketRef;
use super::inner::Inner;
use super::lifecycle_marks::{
    LIFECYCLE_LOCK, LIFECYCLE_LOCK_SECONDS, LIFECYCLE_SHARDS, Mark, bucket_of,
};
use crate::api::{Error, List, Result, Uploads, Usage};
use ::rgw::bucket::BucketInstance;
use ::rgw::cache::{CONTROL_OBJECTS, CacheNotify};
use ::rgw::key::User as UserKey;
use ::rgw::lc::{LcEntry, LcEntryOp};
use ::rgw::names;
use ::rgw::usage::{UsageData, UsageLogAddOp, UsageLogEntry, UsageLogInfo};
use bytes::Bytes;
use client::{ClientError, WatchEvent};
use s3::ErrorCode;
use s3::condition::Conditions;
use s3::xml::config::LifecycleRule;
use s3_rules::lifecycle::Days;
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::time::Duration;
use types::Errno;

/// Objects of the usage log (Ceph: `rgw_usage_max_shards`).
pub(super) const USAGE_SHARDS: u32 = 32;
/// How often a lock is tried that another gateway has for a moment.
const LOCK_ATTEMPTS: u32 = 50;
const LOCK_PAUSE: Duration = Duration::from_millis(100);
/// Seconds of an hour.
const HOUR_SECONDS: u64 = 3600;
/// Most counters that are kept between two writes of the usage log.
const USAGE_MAX: usize = 10_000;
/// How long it takes until a watch that failed is tried again.
const WATCH_PAUSE: Duration = Duration::from_secs(5);

/// What a round of lifecycle did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expired {
    /// Buckets that were looked at.
    pub buckets: u64,
    /// Objects that expired.
    pub objects: u64,
    /// Versions and delete markers that were removed.
    pub versions: u64,
    /// Uploads that were given up.
    pub uploads: u64,
    /// Buckets that could not be looked at to their end.
    pub failed: u64,
}

impl Inner {
    /// Notes a request for the usage log. `false` if there is no room until it is written.
    pub(super) fn note_usage(&self, usage: Usage) -> bool {
        let hour = u64::from(self.cluster.now().sec) / HOUR_SECONDS * HOUR_SECONDS;
        let owner = convert::user_key(&usage.owner);
        let payer = usage.payer.as_ref().map(convert::user_key).unwrap_or_default();
        let key = (owner.clone(), payer.clone(), usage.bucket.clone(), hour);
        let mut notes = self.usage.borrow_mut();
        if notes.len() >= USAGE_MAX && !notes.contains_key(&key) {
            return false;
        }
        let data = UsageData {
            bytes_sent: usage.bytes_sent,
            bytes_received: usage.bytes_received,
            ops: 1,
            successful_ops: usage.succeeded.into(),
        };
        let one = UsageLogEntry {
            owner,
            bucket: usage.bucket.into(),
            epoch: hour,
            total_usage: data,
            usage_map: BTreeMap::from([(Bytes::from_static(usage.category.as_bytes()), data)]),
            payer,
        };
        match notes.get_mut(&key) {
            Some(entry) => entry.aggregate(&one),
            None => {
                notes.insert(key, one);
            }
        }
        true
    }

    /// Writes the notes of requests to the usage log.
    pub(super) async fn write_usage(&self) -> Result<()> {
        let notes = std::mem::take(&mut *self.usage.borrow_mut());
        let mut by_shard: BTreeMap<u32, UsageLogInfo> = BTreeMap::new();
        for entry in notes.into_values() {
            let user = entry.paid_by().text();
            let shard = types::hash::linux(&user) % USAGE_SHARDS;
            by_shard.entry(shard).or_default().entries.push(entry);
        }
        let io = self.cluster.io(&self.zone.usage_log_pool).await?;
        for (shard, info) in by_shard {
            let op = UsageLogAddOp { info, user: UserKey::default() };
            let name = format!("usage.{shard}");
            io.exec(name, "rgw", "user_usage_log_add", &encoded(&op), true).await?;
        }
        Ok(())
    }

    /// Enters a bucket for lifecycle, or takes it out.
    pub(super) async fn schedule_lifecycle(&self, bucket: &BucketInstance, on: bool) -> Result<()> {
        let io = self.cluster.io(&self.zone.lifecycle_pool()).await?;
        let b = &bucket.bucket;
        let key: Bytes = [&b.tenant[..], b":", &b.name, b":", &b.marker].concat().into();
        let shard = names::lifecycle_shard(&key, LIFECYCLE_SHARDS);
        let name = format!("lc.{shard}");
        let mut cookie = None;
        for _ in 0..LOCK_ATTEMPTS {
            cookie = self.lock(&io, &name, LIFECYCLE_LOCK, LIFECYCLE_LOCK_SECONDS).await?;
            if cookie.is_some() {
                break;
            }
            tokio::time::sleep(LOCK_PAUSE).await;
        }
        let Some(cookie) = cookie else {
            return Err(Error::Unavailable("lifecycle is at work on the bucket's entry".into()));
        };
        let entry = LcEntry { bucket: key, ..LcEntry::default() };
        let method = if on { "lc_set_entry" } else { "lc_rm_entry" };
        let done = io.exec(&name, "rgw", method, &encoded(&LcEntryOp { entry }), true).await;
        self.unlock(&io, &name, LIFECYCLE_LOCK, cookie).await;
        match done {
            Ok(_) => Ok(()),
            Err(ClientError::Errno(Errno::ENOENT)) if !on => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Removes what has expired in all buckets with a lifecycle. `day_seconds` is 86400, or less in
    /// tests.
    pub(super) async fn expire(self: &Rc<Self>, day_seconds: u64) -> Result<Expired> {
        let io = self.cluster.io(&self.zone.lifecycle_pool()).await?;
        let mut done = Expired::default();
        for shard in 0..LIFECYCLE_SHARDS {
            let name = format!("lc.{shard}");
            let mut marker = Bytes::new();
            loop {
                let page = self.lifecycle_entries(&io, &name, marker.clone()).await?;
                for entry in &page.entries {
                    marker = entry.bucket.clone();
                    let Some(bucket) = bucket_of(entry) else { continue };
                    self.forget_bucket(&bucket);
                    // A bucket that fails is not in the way of the others.
                    let found = match self.bucket(&bucket).await {
                        Ok(found) => found,
                        Err(e) if e.code() == ErrorCode::NoSuchBucket => continue,
                        Err(e) => {
                            tracing::warn!("s3: lifecycle of {bucket}: {e}");
                            done.failed += 1;
                            continue;
                        }
                    };
                    done.buckets += 1;
                    self.mark_lifecycle(&io, &name, &entry.bucket, Mark::Begun).await;
                    let expired = self.expire_bucket(&found, day_seconds, &mut done).await;
                    let mark = if expired.is_ok() { Mark::Complete } else { Mark::Failed };
                    self.mark_lifecycle(&io, &name, &entry.bucket, mark).await;
                    if let Err(e) = expired {
                        tracing::warn!("s3: lifecycle of {bucket}: {e}");
                        done.failed += 1;
                    }
                }
                if !page.is_truncated || page.entries.is_empty() {
                    break;
                }
            }
        }
        Ok(done)
    }

    async fn expire_bucket(
        &self,
        bucket: &BucketRef,
        day_seconds: u64,
        done: &mut Expired,
    ) -> Result<()> {
        let Some(lifecycle) = bucket.info.settings.lifecycle.clone() else { return Ok(()) };
        let days = Days { now: u64::from(self.cluster.now().sec), seconds: day_seconds };
        let old = |ns: u64, wanted: u64| days.have_passed(ns / 1_000_000_000, wanted);
        for rule in lifecycle.0.iter().filter(|r| r.enabled) {
            let due = |ns: u64| days.is_due(rule, ns / 1_000_000_000);
            self.expire_versions(bucket, rule, &due, &old, done).await?;
            let Some(days) = rule.abort_upload_days else { continue };
            let mut what = Uploads { prefix: rule.prefix.clone(), max: 1000, ..Uploads::default() };
            loop {
                let page = self.list_uploads(bucket, &what).await?;
                for upload in page.uploads.iter().filter(|u| old(u.initiated, days)) {
                    match self.abort_upload(bucket, &upload.key, &upload.id).await {
                        Err(e) if e.code() != ErrorCode::NoSuchUpload => return Err(e),
                        _ => done.uploads += 1,
                    }
                }
                let Some((after, id)) = page.next else { break };
                (what.after, what.after_id) = (after, id);
            }
        }
        Ok(())
    }

    async fn expire_versions(
        &self,
        bucket: &BucketRef,
        rule: &LifecycleRule,
        due: &dyn Fn(u64) -> bool,
        old: &dyn Fn(u64, u64) -> bool,
        done: &mut Expired,
    ) -> Result<()> {
        let none = Conditions::default();
        let versioned = bucket.info.versioning.is_some();
        let mut list =
            List { prefix: rule.prefix.clone(), versions: versioned, max: 1000, ..List::default() };
        // The version before in the list: a noncurrent version ages from when it was replaced.
        let mut newer: Option<(String, u64)> = None;
        loop {
            let page = self.list(bucket, &list).await?;
            for (at, entry) in page.entries.iter().enumerate() {
                let replaced = newer.take().filter(|(key, _)| *key == entry.key).map(|(_, t)| t);
                newer = Some((entry.key.clone(), entry.modified));
                if !rule.tags.is_empty() {
                    let version = entry.version.as_deref();
                    let tags = match self.open(bucket, &entry.key, version, false).await {
                        Ok(object) => object.info.tags.0,
                        Err(_) => continue,
                    };
                    if !rule.tags.iter().all(|t| tags.contains(t)) {
                        continue;
                    }
                }
                let version = entry.version.as_deref();
                if entry.latest && !entry.marker && due(entry.modified) {
                    // What was listed, and not what came since.
                    let same = Conditions {
                        matches: Some(format!("\"{}\"", entry.etag)),
                        ..Conditions::default()
                    };
                    match self.delete(bucket, &entry.key, None, &same).await {
                        Err(e) if e.code() != ErrorCode::PreconditionFailed => return Err(e),
                        Err(_) => {}
                        Ok(_) => done.objects += 1,
                    }
                } else if let (false, Some(days), Some(since)) =
                    (entry.latest, rule.noncurrent_days, replaced)
                    && old(since, days)
                {
                    self.delete(bucket, &entry.key, version, &none).await?;
                    done.versions += 1;
                } else if entry.latest && entry.marker && rule.expired_delete_marker {
                    let alone = match page.entries.get(at + 1) {
                        Some(next) => next.key != entry.key,
                        None => page.next.is_none(),
                    };
                    if alone {
                        self.delete(bucket, &entry.key, version, &none).await?;
                        done.versions += 1;
                    }
                }
            }
            let Some((after, version)) = page.next else { return Ok(()) };
            (list.after, list.after_version) = (after, version);
        }
    }

    /// Watches the objects on which gateways notify each other, and keeps the cache on while all
    /// watches live. Ends with the layout.
    pub(super) async fn keep_cache(weak: Weak<Inner>) {
        loop {
            let Some(inner) = weak.upgrade().filter(|i| !i.closed.get()) else { return };
            let failed = Rc::new(tokio::sync::Notify::new());
            let watches = inner.watch_control(&weak, &failed).await;
            let watching = watches.is_ok();
            match watches {
                Ok(watches) if inner.closed.get() => {
                    end_watches(watches).await;
                    return;
                }
                Ok(watches) => {
                    *inner.watches.borrow_mut() = watches;
                    inner.cache.borrow_mut().enable(true);
                }
                Err(e) => tracing::warn!("users and buckets are not cached: {e}"),
            }
            drop(inner);
            if watching {
                loop {
                    let lost = tokio::time::timeout(WATCH_PAUSE, failed.notified()).await.is_ok();
                    if lost {
                        break;
                    }
                    if weak.strong_count() == 0 {
                        return;
                    }
                }
                if let Some(inner) = weak.upgrade() {
                    inner.cache.borrow_mut().enable(false);
                    inner.watches.borrow_mut().clear();
                }
            }
            tokio::time::sleep(WATCH_PAUSE).await;
        }
    }

    /// Ends what runs in the background, and writes what was noted.
    pub(super) async fn close(&self) -> Result<()> {
        self.closed.set(true);
        self.cache.borrow_mut().enable(false);
        let watches = std::mem::take(&mut *self.watches.borrow_mut());
        end_watches(watches).await;
        self.write_usage().await
    }

    async fn watch_control(
        &self,
        weak: &Weak<Inner>,
        failed: &Rc<tokio::sync::Notify>,
    ) -> Result<Vec<client::Watch>> {
        let io = self.cluster.io(&self.zone.control_pool).await?;
        let mut watches = Vec::new();
        for n in 0..CONTROL_OBJECTS {
            let name = format!("notify.{n}");
            let op = client::Operation::new().create(false);
            super::cluster::submit(&io, &name, op, None).await?;
            let (weak, failed) = (weak.clone(), failed.clone());
            let handler = move |event| match event {
                WatchEvent::Notify(notification) => {
                    if let Some(inner) = weak.upgrade() {
                        let what = decoded::<CacheNotify>("a notification", &notification.payload);
                        inner.forget(what.ok());
                    }
                    notification.ack(Bytes::new());
                }
                WatchEvent::Error(_) => failed.notify_one(),
            };
            watches.push(io.watch(&name, Rc::new(handler)).await?);
        }
        Ok(watches)
    }
}

/// Other gateways wait for watches that end without a word.
async fn end_watches(watches: Vec<client::Watch>) {
    for watch in watches {
        if let Err(e) = watch.unwatch().await {
            tracing::debug!("a watch runs out by itself: {e}");
        }
    }
}
