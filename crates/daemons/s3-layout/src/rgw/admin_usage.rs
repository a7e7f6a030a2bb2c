//! The usage log: read and trimmed.

use super::admin::Admin;
use super::background::USAGE_SHARDS;
use super::cluster::{decoded, encoded};
use crate::api::Result;
use ::rgw::usage::{UsageLogEntry, UsageLogReadOp, UsageLogReadRet, UsageLogTrimOp, UserBucket};
use bytes::Bytes;
use client::ClientError;
use std::collections::BTreeMap;
use types::Errno;

/// Which part of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageQuery {
    /// Only of this user; empty for all.
    pub user: String,
    /// Only of this bucket; empty for all.
    pub bucket: String,
    /// From this time on, in seconds since 1970.
    pub start: u64,
    /// Before this time.
    pub end: u64,
}

/// Entries that are asked for at a time.
const PAGE: u32 = 1000;

impl UsageQuery {
    /// Objects of the log that can have it: a user has one of them.
    fn objects(&self) -> Vec<String> {
        let name = |shard: u32| format!("usage.{shard}");
        if self.user.is_empty() {
            return (0..USAGE_SHARDS).map(name).collect();
        }
        vec![name(types::hash::linux(self.user.as_bytes()) % USAGE_SHARDS)]
    }
}

impl Admin {
    /// The log's counters by user and bucket, all hours of the query together.
    pub async fn usage(&self, what: &UsageQuery) -> Result<BTreeMap<UserBucket, UsageLogEntry>> {
        let io = self.0.cluster.io(&self.0.zone.usage_log_pool).await?;
        let mut all: BTreeMap<UserBucket, UsageLogEntry> = BTreeMap::new();
        for object in what.objects() {
            let mut iter = Bytes::new();
            loop {
                let op = UsageLogReadOp {
                    start_epoch: what.start,
                    end_epoch: what.end,
                    owner: what.user.clone().into(),
                    iter: iter.clone(),
                    max_entries: PAGE,
                    bucket: what.bucket.clone().into(),
                };
                let input = encoded(&op);
                let read = io.exec(&object, "rgw", "user_usage_log_read", &input, false);
                let page: UsageLogReadRet = match read.await {
                    Ok(bytes) => decoded("a page of the usage log", &bytes)?,
                    Err(ClientError::Errno(Errno::ENOENT)) => break,
                    Err(e) => return Err(e.into()),
                };
                for (key, entry) in page.usage {
                    all.entry(key).or_default().aggregate(&entry);
                }
                if !page.truncated || page.next_iter == iter {
                    break;
                }
                iter = page.next_iter;
            }
        }
        Ok(all)
    }

    /// Removes a part of the log.
    pub async fn trim_usage(&self, what: &UsageQuery) -> Result<()> {
        let io = self.0.cluster.io(&self.0.zone.usage_log_pool).await?;
        let op = UsageLogTrimOp {
            start_epoch: what.start,
            end_epoch: what.end,
            user: what.user.clone().into(),
            bucket: what.bucket.clone().into(),
        };
        let input = encoded(&op);
        for object in what.objects() {
            // The class removes some at a time, until there is nothing left to remove.
            loop {
                match io.exec(&object, "rgw", "user_usage_log_trim", &input, true).await {
                    Ok(_) => {}
                    Err(ClientError::Errno(Errno::ENODATA | Errno::ENOENT)) => break,
                    Err(e) => return Err(e.into()),
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_one_object_and_all_have_all() {
        let query = |user: &str| UsageQuery {
            user: user.into(),
            bucket: String::new(),
            start: 0,
            end: u64::MAX,
        };
        assert_eq!(query("").objects().len(), USAGE_SHARDS as usize);
        assert_eq!(query("ann").objects().len(), 1);
    }
}
