//! The log of requests and bytes. Each record is there twice: by hour, user and bucket, and by
//! user, hour and bucket.

use super::rows;
use crate::context::Object;
use crate::method::{Ignored, Raw, decode, encode};
use ::rgw::key::User;
use ::rgw::usage::{
    UsageLogAddOp, UsageLogEntry, UsageLogReadOp, UsageLogReadRet, UsageLogTrimOp, UserBucket,
};
use bytes::Bytes;
use types::errno::Errno;

/// Records in one answer, unless the client says how many.
const MAX_ENTRIES: u32 = 1000;

fn by_time(epoch: u64, user: &[u8], bucket: &[u8]) -> Bytes {
    [format!("{epoch:011}_").as_bytes(), user, b"_", bucket].concat().into()
}

fn by_user(user: &[u8], epoch: u64, bucket: &[u8]) -> Bytes {
    [user, format!("_{epoch:011}_").as_bytes(), bucket].concat().into()
}

pub(super) async fn add(object: Object<'_>, op: UsageLogAddOp) -> Result<(), Errno> {
    for mut entry in op.info.entries {
        let user = entry.paid_by().text();
        let key = by_time(entry.epoch, &user, &entry.bucket);
        let stored = rows::optional(object.map_get_val(&key).await).map_err(|_| Errno::EINVAL)?;
        if let Some(stored) = stored {
            entry.aggregate(&decode(stored, Errno::EINVAL)?);
        }
        rows::write(object, &key, &entry).await?;
        rows::write(object, &by_user(&user, entry.epoch, &entry.bucket), &entry).await?;
    }
    Ok(())
}

/// Which records are wanted.
struct Wanted<'a> {
    start: u64,
    end: u64,
    user: &'a [u8],
    bucket: &'a [u8],
    /// After this key.
    after: Bytes,
    max: u32,
}

/// Records found, the last key that was looked at, and whether there is more.
struct Found {
    records: Vec<UsageLogEntry>,
    last: Bytes,
    truncated: bool,
}

async fn find(object: Object<'_>, w: Wanted<'_>) -> Result<Found, Errno> {
    let end = format!("{:011}", w.end);
    let user_prefix = [w.user, b"_"].concat();
    let after = if !w.after.is_empty() {
        w.after.clone()
    } else if w.user.is_empty() {
        format!("{:011}", w.start).into()
    } else {
        by_user(w.user, w.start, b"")
    };
    let page = object.map_get_vals(&after, b"", w.max.into()).await?;
    let mut found = Found { records: Vec::new(), last: w.after, truncated: page.more };
    for (key, value) in page.rows {
        found.last = key.clone();
        let ended = if w.user.is_empty() {
            &key[..] >= end.as_bytes()
        } else {
            !key.starts_with(&user_prefix)
        };
        if ended {
            found.truncated = false;
            break;
        }
        let record: UsageLogEntry = decode(value, Errno::EINVAL)?;
        if (!w.bucket.is_empty() && record.bucket != w.bucket) || record.epoch < w.start {
            continue;
        }
        if record.epoch >= w.end {
            found.truncated = false;
            break;
        }
        found.records.push(record);
    }
    Ok(found)
}

pub(super) async fn read(object: Object<'_>, op: UsageLogReadOp) -> Result<Bytes, Errno> {
    let wanted = Wanted {
        start: op.start_epoch,
        end: op.end_epoch,
        user: &op.owner,
        bucket: &op.bucket,
        after: op.iter,
        max: if op.max_entries == 0 { MAX_ENTRIES } else { op.max_entries },
    };
    let found = find(object, wanted).await?;
    let mut ret = UsageLogReadRet { truncated: found.truncated, ..UsageLogReadRet::default() };
    for record in found.records {
        let of = UserBucket { user: record.paid_by().text(), bucket: record.bucket.clone() };
        ret.usage.entry(of).or_default().aggregate(&record);
    }
    if ret.truncated {
        ret.next_iter = found.last;
    }
    Ok(encode(&ret))
}

/// ENODATA if there is nothing to trim: clients repeat until they see it. Records that another user
/// than the owner pays for stay, as in Ceph.
pub(super) async fn trim(object: Object<'_>, Raw(input): Raw) -> Result<(), Errno> {
    object.stat().await?;
    let op: UsageLogTrimOp = decode(input, Errno::EINVAL)?;
    let wanted = Wanted {
        start: op.start_epoch,
        end: op.end_epoch,
        user: &op.user,
        bucket: &op.bucket,
        after: Bytes::new(),
        max: MAX_ENTRIES,
    };
    let found = find(object, wanted).await?;
    for record in &found.records {
        let owner = User::text(&record.owner);
        object.map_remove_key(&by_time(record.epoch, &owner, &record.bucket)).await?;
        object.map_remove_key(&by_user(&owner, record.epoch, &record.bucket)).await?;
    }
    if found.records.is_empty() && !found.truncated { Err(Errno::ENODATA) } else { Ok(()) }
}

pub(super) async fn clear(object: Object<'_>, _: Ignored) -> Result<(), Errno> {
    rows::optional(object.map_clear().await).map(|_| ())
}
