//! Finds buckets of gateways for S3 in RGW's records, of the zone `default`: the ids that names of
//! their objects have.
//!
//! A bucket's objects have its marker in their names, its index has its id. They differ after the
//! index was resharded.

use super::OSD_TIMEOUT;
use bytes::Bytes;
use client::{ClientError, IoCtx, Rados};
use cls::user::{ListBucketsOp, ListBucketsRet};
use denc::{Decode, Encode, Features};
use rgw::bucket::{BucketKey, EntryPoint, Pool};
use rgw::zone::{self, NameToId, ZoneParams};
use types::errno::Errno;

/// The longest record that is read, in bytes.
const RECORD_BYTES_MAX: u64 = 1 << 20;
/// Buckets of a user of which there are promises.
const BUCKETS_MAX: usize = 4096;
/// Buckets of a page of a user's list.
const PAGE: usize = 1000;

/// Where a zone keeps its records.
pub(super) struct Zone {
    buckets: IoCtx,
    users: IoCtx,
}

impl Zone {
    /// The zone `default`; nothing if there is none.
    pub(super) async fn of(rados: &Rados) -> Result<Option<Self>, ClientError> {
        let root = Pool { name: zone::ROOT_POOL.into(), ns: Bytes::new() };
        let Some(root) = open(rados, &root) else { return Ok(None) };
        let name = zone::zone_name_object(zone::DEFAULT_NAME);
        let Some(id) = record::<NameToId>(&root, &name).await? else { return Ok(None) };
        let Some(zone) = record::<ZoneParams>(&root, &zone::zone_object(&id.id)).await? else {
            return Ok(None);
        };
        let pools = (open(rados, &zone.domain_root), open(rados, &zone.user_uid_pool));
        Ok(match pools {
            (Some(buckets), Some(users)) => Some(Zone { buckets, users }),
            _ => None,
        })
    }

    /// The ids of a bucket; none if there is no such bucket.
    pub(super) async fn bucket(&self, tenant: &str, name: &str) -> Result<Vec<Bytes>, ClientError> {
        let object = BucketKey::entry_object(tenant.as_bytes(), name.as_bytes());
        let entry: Option<EntryPoint> = record(&self.buckets, &object).await?;
        Ok(entry.map(|e| ids(e.bucket.marker, e.bucket.bucket_id)).unwrap_or_default())
    }

    /// The ids of the buckets that a user owns.
    pub(super) async fn buckets_of(&self, user: &str) -> Result<Vec<Bytes>, ClientError> {
        let (object, mut all, mut count) = (format!("{user}.buckets"), Vec::new(), 0);
        let mut marker = Bytes::new();
        loop {
            let page = ListBucketsOp {
                marker: marker.clone(),
                max_entries: PAGE as i32,
                end_marker: Bytes::new(),
            };
            let input = page.to_bytes(Features::ALL);
            let answer = self.users.exec(&object, "user", "list_buckets", &input, false).await;
            let Some(page) = found::<ListBucketsRet>(answer, &object)? else { return Ok(all) };
            let Some(last) = page.entries.last() else { return Ok(all) };
            marker = last.bucket.name.clone();
            count += page.entries.len();
            all.extend(
                page.entries.into_iter().flat_map(|e| ids(e.bucket.marker, e.bucket.bucket_id)),
            );
            if !page.truncated {
                return Ok(all);
            }
            if count >= BUCKETS_MAX {
                tracing::warn!(
                    "user {user} has more than {BUCKETS_MAX} buckets: the promise to it is one to \
                     the first of them"
                );
                return Ok(all);
            }
        }
    }
}

fn ids(marker: Bytes, id: Bytes) -> Vec<Bytes> {
    // They are kept for longer than the answer that they are a part of.
    let own = |b: &Bytes| Bytes::copy_from_slice(b);
    let mut ids = vec![own(&marker)];
    if id != marker {
        ids.push(own(&id));
    }
    ids.retain(|id| !id.is_empty());
    ids
}

fn open(rados: &Rados, pool: &Pool) -> Option<IoCtx> {
    let name = std::str::from_utf8(&pool.name).ok()?;
    let id = rados.objecter().map()?.pool_by_name(name)?;
    Some(rados.ioctx_of(id).with_namespace(&pool.ns).with_timeout(OSD_TIMEOUT))
}

async fn record<T: Decode>(
    ctx: &IoCtx,
    object: impl AsRef<[u8]>,
) -> Result<Option<T>, ClientError> {
    let answer = ctx.read(&object, 0, RECORD_BYTES_MAX).await;
    found(answer, &object.as_ref().escape_ascii().to_string())
}

/// What an answer says. What is not there, or cannot be read, is nothing; an answer that did not
/// come is an error, as what was promised holds.
fn found<T: Decode>(
    answer: Result<Bytes, ClientError>,
    object: &str,
) -> Result<Option<T>, ClientError> {
    match answer {
        Ok(bytes) => match denc::Reader::new(bytes).get() {
            Ok(value) => Ok(Some(value)),
            Err(e) => {
                tracing::warn!("the record {object} of a gateway cannot be read: {e}");
                Ok(None)
            }
        },
        Err(ClientError::Errno(Errno::ENOENT)) => Ok(None),
        Err(e) => Err(e),
    }
}
