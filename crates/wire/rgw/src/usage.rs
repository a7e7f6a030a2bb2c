//! The log of requests and bytes by user, bucket and hour.

use crate::key::User;
use bytes::{Bytes, BytesMut};
use denc::{Decode, Encode, Features, Reader};
use denc_derive::Denc;
use std::collections::BTreeMap;

/// Counters (Ceph: `rgw_usage_data`, `cls/rgw/cls_rgw_types.h`, version 1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct UsageData {
    /// Bytes to clients.
    pub bytes_sent: u64,
    /// Bytes from clients.
    pub bytes_received: u64,
    /// Requests.
    pub ops: u64,
    /// Requests that succeeded.
    pub successful_ops: u64,
}

impl UsageData {
    fn add(&mut self, other: &UsageData) {
        self.bytes_sent = self.bytes_sent.wrapping_add(other.bytes_sent);
        self.bytes_received = self.bytes_received.wrapping_add(other.bytes_received);
        self.ops = self.ops.wrapping_add(other.ops);
        self.successful_ops = self.successful_ops.wrapping_add(other.successful_ops);
    }
}

/// The counters of a bucket in an hour (Ceph: `rgw_usage_log_entry`, `cls/rgw/cls_rgw_types.h`,
/// version 3).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsageLogEntry {
    /// The bucket's owner.
    pub owner: User,
    /// The bucket.
    pub bucket: Bytes,
    /// The hour, in seconds since 1970.
    pub epoch: u64,
    /// Of all categories.
    pub total_usage: UsageData,
    /// By category.
    pub usage_map: BTreeMap<Bytes, UsageData>,
    /// The user that pays; empty if the owner does.
    pub payer: User,
}

impl UsageLogEntry {
    /// The user that pays.
    pub fn paid_by(&self) -> &User {
        if self.payer.is_empty() { &self.owner } else { &self.payer }
    }

    /// Adds counters; an entry without an owner becomes the other's first.
    pub fn aggregate(&mut self, other: &UsageLogEntry) {
        if self.owner.is_empty() {
            self.owner = other.owner.clone();
            self.bucket = other.bucket.clone();
            self.epoch = other.epoch;
            self.payer = other.payer.clone();
        }
        for (category, usage) in &other.usage_map {
            self.usage_map.entry(category.clone()).or_default().add(usage);
            self.total_usage.add(usage);
        }
    }
}

impl Encode for UsageLogEntry {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        denc::envelope(out, 3, 1, |out| {
            self.owner.encode(out, f);
            self.bucket.encode(out, f);
            self.epoch.encode(out, f);
            let total = &self.total_usage;
            for n in [total.bytes_sent, total.bytes_received, total.ops, total.successful_ops] {
                n.encode(out, f);
            }
            self.usage_map.encode(out, f);
            self.payer.encode(out, f);
        });
    }
}

impl Decode for UsageLogEntry {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        let (v, mut r) = r.envelope("rgw_usage_log_entry", 3)?;
        let mut e = UsageLogEntry {
            owner: r.get()?,
            bucket: r.get()?,
            epoch: r.get()?,
            total_usage: UsageData {
                bytes_sent: r.get()?,
                bytes_received: r.get()?,
                ops: r.get()?,
                successful_ops: r.get()?,
            },
            ..UsageLogEntry::default()
        };
        if v < 2 {
            e.usage_map.insert(Bytes::new(), e.total_usage);
        } else {
            e.usage_map = r.get()?;
        }
        if v >= 3 {
            e.payer = r.get()?;
        }
        Ok(e)
    }
}

/// Entries (Ceph: `rgw_usage_log_info`, `cls/rgw/cls_rgw_types.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct UsageLogInfo {
    /// Entries.
    pub entries: Vec<UsageLogEntry>,
}

/// A bucket of a user (Ceph: `rgw_user_bucket`, `cls/rgw/cls_rgw_types.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Denc)]
#[denc(version = 1, compat = 1)]
pub struct UserBucket {
    /// The user.
    pub user: Bytes,
    /// The bucket.
    pub bucket: Bytes,
}

/// Input of `user_usage_log_add` (Ceph: `rgw_cls_usage_log_add_op`, `cls/rgw/cls_rgw_ops.h`,
/// version 2).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 2, compat = 1)]
pub struct UsageLogAddOp {
    /// Entries to add to what is there.
    pub info: UsageLogInfo,
    /// Not looked at.
    #[denc(since = 2)]
    pub user: User,
}

/// Input of `user_usage_log_read` (Ceph: `rgw_cls_usage_log_read_op`, `cls/rgw/cls_rgw_ops.h`,
/// version 2).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 2, compat = 1)]
pub struct UsageLogReadOp {
    /// From this hour.
    pub start_epoch: u64,
    /// Up to before this hour.
    pub end_epoch: u64,
    /// Only of this user; empty for all.
    pub owner: Bytes,
    /// After this key.
    pub iter: Bytes,
    /// At most so many; 0 for 1000.
    pub max_entries: u32,
    /// Only of this bucket; empty for all.
    #[denc(since = 2)]
    pub bucket: Bytes,
}

/// Output of `user_usage_log_read` (Ceph: `rgw_cls_usage_log_read_ret`,
/// `cls/rgw/cls_rgw_ops.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct UsageLogReadRet {
    /// Counters of all hours together.
    pub usage: BTreeMap<UserBucket, UsageLogEntry>,
    /// There is more.
    pub truncated: bool,
    /// What to go on with.
    pub next_iter: Bytes,
}

/// Input of `user_usage_log_trim` (Ceph: `rgw_cls_usage_log_trim_op`, `cls/rgw/cls_rgw_ops.h`,
/// version 3).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 3, compat = 2)]
pub struct UsageLogTrimOp {
    /// From this hour.
    pub start_epoch: u64,
    /// Up to before this hour.
    pub end_epoch: u64,
    /// Only of this user; empty for all.
    pub user: Bytes,
    /// Only of this bucket; empty for all.
    #[denc(since = 3)]
    pub bucket: Bytes,
}
