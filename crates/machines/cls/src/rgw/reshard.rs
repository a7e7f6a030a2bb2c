//! Buckets that wait for more shards, and the mark on shards that are being emptied.

use super::rows;
use crate::context::Object;
use crate::method::{Output, decode, encode};
use ::rgw::header::InstanceEntry;
use ::rgw::reshard::{
    BucketResharding, EmptyOp, GuardReshardingOp, ReshardEntry, ReshardListOp, ReshardListRet,
    ReshardOp, ReshardRemoveOp,
};
use bytes::Bytes;
use types::errno::Errno;

/// Entries in one answer at most.
const MAX_LIST: u32 = 1000;

fn key(entry: &ReshardEntry) -> Bytes {
    ReshardEntry::key(&entry.tenant, &entry.bucket_name)
}

pub(super) async fn add(object: Object<'_>, op: ReshardOp) -> Result<(), Errno> {
    rows::write(object, &key(&op.entry), &op.entry).await
}

/// A call that asks for none gets none, and learns whether there are more than [`MAX_LIST`].
pub(super) async fn list(object: Object<'_>, op: ReshardListOp) -> Result<Bytes, Errno> {
    let max = if op.max == 0 { MAX_LIST } else { op.max.min(MAX_LIST) };
    let page = object.map_get_vals(&op.marker, b"", max.into()).await?;
    let wanted = usize::try_from(op.max as i32).unwrap_or(0);
    let entries = page.rows.into_values().take(wanted).map(|v| decode(v, Errno::EIO));
    let entries = entries.collect::<Result<_, _>>()?;
    Ok(encode(&ReshardListRet { entries, is_truncated: page.more }))
}

pub(super) async fn get(object: Object<'_>, op: ReshardOp) -> Result<Bytes, Errno> {
    let entry = rows::read(object, &key(&op.entry)).await?;
    Ok(encode(&ReshardOp { entry }))
}

/// A bucket that has another id stays.
pub(super) async fn remove(object: Object<'_>, op: ReshardRemoveOp) -> Result<(), Errno> {
    let key = ReshardEntry::key(&op.tenant, &op.bucket_name);
    let entry: ReshardEntry = rows::read(object, &key).await?;
    if !op.bucket_id.is_empty() && entry.bucket_id != op.bucket_id {
        return Ok(());
    }
    if let Err(error) = object.map_remove_key(&key).await {
        tracing::error!(%error, "a bucket could not be taken out of the queue for resharding");
    }
    Ok(())
}

pub(super) async fn set_resharding(object: Object<'_>, op: BucketResharding) -> Result<(), Errno> {
    let mut header = rows::header(object).await?;
    header.new_instance = op.entry;
    rows::write_header(object, header).await
}

/// The number of shards stays, as in Ceph.
pub(super) async fn clear_resharding(object: Object<'_>, _: EmptyOp) -> Result<(), Errno> {
    let mut header = rows::header(object).await?;
    header.new_instance =
        InstanceEntry { num_shards: header.new_instance.num_shards, ..InstanceEntry::default() };
    rows::write_header(object, header).await
}

/// Fails the request with an error of the client's choice if entries are being moved.
pub(super) async fn guard_resharding(
    object: Object<'_>,
    op: GuardReshardingOp,
) -> Result<Output, Errno> {
    let header = rows::header(object).await?;
    let moving = header.new_instance.reshard_status != ::rgw::header::ReshardStatus::NOT_RESHARDING;
    Ok(Output { value: if moving { op.ret_err } else { 0 }, data: Bytes::new() })
}

pub(super) async fn get_resharding(object: Object<'_>, _: EmptyOp) -> Result<Bytes, Errno> {
    let entry = rows::header(object).await?.new_instance;
    Ok(encode(&BucketResharding { entry }))
}
