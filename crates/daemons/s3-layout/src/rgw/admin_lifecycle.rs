//! How far lifecycle is, told from the marks of buckets' entries.

use super::admin::Admin;
use super::backend::Io;
use super::cluster::{decoded, encoded};
use super::inner::Inner;
use super::lifecycle_marks::{
    LIFECYCLE_LOCK, LIFECYCLE_LOCK_SECONDS, LIFECYCLE_SHARDS, Mark, bucket_of,
};
use crate::api::Result;
use ::rgw::lc::{LcEntry, LcEntryOp, LcGetEntryRet, LcListEntriesOp, LcListEntriesRet, LcMarkerOp};
use bytes::Bytes;
use client::ClientError;
use types::Errno;

/// Words for the states of an entry, as `radosgw-admin lc list` has them.
const STATUS: [&str; 4] = ["UNINITIAL", "PROCESSING", "FAILED", "COMPLETE"];
/// How often a bucket is due, in seconds.
const DAY_SECONDS: u64 = 86_400;

/// A bucket with rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LifecycleBucket {
    /// `[TENANT/]NAME`.
    pub bucket: String,
    /// The state of the work on it.
    pub status: &'static str,
    /// When the work on it began last, in seconds since 1970; 0 for never.
    pub started: u64,
    /// For how many seconds it has been due.
    pub behind: u64,
}

/// How far lifecycle is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LifecycleProgress {
    /// All buckets with rules.
    pub buckets: Vec<LifecycleBucket>,
}

impl LifecycleProgress {
    /// For how many seconds the bucket has been due that was due first.
    pub fn behind(&self) -> u64 {
        self.buckets.iter().map(|b| b.behind).max().unwrap_or(0)
    }
}

/// For how long a bucket has been due: since a day after the work on it began last, or after its
/// rules were set if it was never worked on.
fn behind(entry: &LcEntry, rules_set: u64, now: u64) -> u64 {
    let since = if entry.start_time == 0 { rules_set } else { entry.start_time };
    now.saturating_sub(since).saturating_sub(DAY_SECONDS)
}

impl Inner {
    /// Marks the entry of a bucket, unless it is gone or another gateway has the lock: a mark that
    /// is missing makes lifecycle look late, and nothing else.
    pub(super) async fn mark_lifecycle(&self, io: &Io, name: &str, bucket: &Bytes, mark: Mark) {
        if let Err(e) = self.try_mark(io, name, bucket, mark).await {
            tracing::debug!("lifecycle of {} is not marked: {e}", bucket.escape_ascii());
        }
    }

    async fn try_mark(&self, io: &Io, name: &str, bucket: &Bytes, mark: Mark) -> Result<()> {
        let lock = self.lock(io, name, LIFECYCLE_LOCK, LIFECYCLE_LOCK_SECONDS).await?;
        let Some(cookie) = lock else { return Ok(()) };
        let done = self.mark_locked(io, name, bucket, mark).await;
        self.unlock(io, name, LIFECYCLE_LOCK, cookie).await;
        done
    }

    async fn mark_locked(&self, io: &Io, name: &str, bucket: &Bytes, mark: Mark) -> Result<()> {
        let op = LcMarkerOp { marker: bucket.clone() };
        let found = io.exec(name, "rgw", "lc_get_entry", &encoded(&op), false).await;
        let mut entry = match found {
            Ok(bytes) => decoded::<LcGetEntryRet>("an entry of lifecycle", &bytes)?.entry,
            // Its rules were removed.
            Err(ClientError::Errno(Errno::ENOENT)) => return Ok(()),
            Err(e) => return Err(e.into()),
        };
        if mark == Mark::Begun {
            entry.start_time = self.cluster.now().sec.into();
        }
        entry.status = mark as u32;
        io.exec(name, "rgw", "lc_set_entry", &encoded(&LcEntryOp { entry }), true).await?;
        Ok(())
    }

    /// Some entries of an object with them, after a bucket.
    pub(super) async fn lifecycle_entries(
        &self,
        io: &Io,
        name: &str,
        after: Bytes,
    ) -> Result<LcListEntriesRet> {
        let op = LcListEntriesOp { marker: after, max_entries: 100, ..Default::default() };
        match io.exec(name, "rgw", "lc_list_entries", &encoded(&op), false).await {
            Ok(bytes) => decoded("entries of lifecycle", &bytes),
            Err(ClientError::Errno(Errno::ENOENT)) => Ok(LcListEntriesRet {
                entries: Vec::new(),
                is_truncated: false,
                compat_v: op.compat_v,
            }),
            Err(e) => Err(e.into()),
        }
    }
}

impl Admin {
    /// How far lifecycle is with each bucket that has rules.
    pub async fn lifecycle_progress(&self) -> Result<LifecycleProgress> {
        let inner = &self.0;
        let io = inner.cluster.io(&inner.zone.lifecycle_pool()).await?;
        let now = u64::from(inner.cluster.now().sec);
        let mut all = LifecycleProgress::default();
        for shard in 0..LIFECYCLE_SHARDS {
            let name = format!("lc.{shard}");
            let mut after = Bytes::new();
            loop {
                let page = inner.lifecycle_entries(&io, &name, after.clone()).await?;
                for entry in &page.entries {
                    after = entry.bucket.clone();
                    let Some(bucket) = bucket_of(entry) else { continue };
                    let rules_set = match entry.start_time {
                        0 => match self.bucket_records(&bucket, false).await {
                            Ok(found) => found.modified.sec.into(),
                            // The bucket is gone, and its entry is of no importance.
                            Err(_) => now,
                        },
                        _ => 0,
                    };
                    let status = STATUS.get(entry.status as usize).copied();
                    all.buckets.push(LifecycleBucket {
                        bucket: bucket.to_string(),
                        status: status.unwrap_or("UNKNOWN"),
                        started: entry.start_time,
                        behind: behind(entry, rules_set, now),
                    });
                }
                if !page.is_truncated || page.entries.is_empty() {
                    break;
                }
            }
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_due_a_day_after_its_work_began_or_its_rules_were_set() {
        let entry = |start_time| LcEntry { start_time, ..LcEntry::default() };
        assert_eq!(behind(&entry(1000), 0, 1000 + DAY_SECONDS), 0);
        assert_eq!(behind(&entry(1000), 0, 1007 + DAY_SECONDS), 7);
        assert_eq!(behind(&entry(0), 5000, 5001 + DAY_SECONDS), 1);
        assert_eq!(behind(&entry(9_000_000), 0, 1), 0, "a clock that is behind");
        let named = LcEntry { bucket: "t:b:id.1".into(), ..LcEntry::default() };
        assert_eq!(bucket_of(&named).map(|b| b.to_string()).as_deref(), Some("t/b"));
    }
}
