//! What is done to images without a client: removing them and making clones independent (Ceph:
//! librbd's `RemoveRequest`, `FlattenRequest`), through the object class and the data objects.
//!
//! The manager takes no lock of an image and is not among its watchers. An image that a client has
//! open is not removed. A clone that is open is flattened by the client that holds its exclusive
//! lock, which the manager asks as librbd does; if no client holds the lock, by the manager itself.
//! Copying up is safe beside writes of clients: the object class writes an object only if it is not
//! there. The object map is not: it is declared invalid, and clients read the header again, before
//! anything is copied.

use super::ceiling::{self, ImageRef, Settings};
use bytes::{Bytes, BytesMut};
use client::{ClientError, IoCtx, Operation, wall_clock};
use cls::lock::{GetInfoOp, LockInfo};
use cls::rbd::features;
use cls::rbd::types::{
    ChildImageSpec, GroupSpec, MirrorImage, NamespaceKind, ParentImageSpec, SnapshotInfo,
    TrashImageSource, TrashImageSpec, TrashImageState,
};
use denc::{Decode, Encode, Features};
use messages::{Op, OpArgs};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use types::errno::Errno;
use types::rados::OpCode;
use types::replies::ListWatchersResponse;
use types::{PoolId, SnapId, Utime};

/// Objects that are worked on at a time (Ceph: `rbd_concurrent_management_ops`).
const CONCURRENT: u64 = 10;
/// Parents above one another. Ceph has no limit; this one ends a circle.
const MOST_PARENTS: usize = 128;
/// Sizes of objects that librbd makes, as powers of two.
const ORDERS: std::ops::RangeInclusive<u8> = 12..=26;
/// `RBD_FLAG_FAST_DIFF_INVALID`.
const FAST_DIFF_INVALID: u64 = 2;
/// `RBD_FLAG_OBJECT_MAP_INVALID` and that.
pub(super) const MAPS_INVALID: u64 = 1 | FAST_DIFF_INVALID;
/// Entries of a page of a listing.
const PAGE: u64 = 1024;
/// How long clients with the image open have to hear of a change, in seconds.
const NOTIFY_TIMEOUT: u32 = 10;

const ZEROS: [u8; 4096] = [0; 4096];

/// The exclusive lock of an image (librbd's `RBD_LOCK_NAME`).
pub(super) const LOCK: &str = "rbd_lock";
/// How long a task waits for a client that flattens. The task is tried again later, and the client
/// goes on meanwhile.
pub(super) const OWNER_PATIENCE: Duration = Duration::from_secs(30);
/// How often it is looked whether the client has done so.
pub(super) const OWNER_LOOK: Duration = Duration::from_millis(500);
/// `NOTIFY_OP_FLATTEN` (`librbd/WatchNotifyTypes.h`, 16.2).
const NOTIFY_FLATTEN: u32 = 6;
/// Version of `NotifyMessage` there.
pub(super) const NOTIFY_VERSION: u8 = 7;

pub(super) const DIRECTORY: &str = "rbd_directory";
pub(super) const TRASH: &str = "rbd_trash";

/// Why nothing, or not everything, was done.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ImageError {
    /// It makes no sense to try again.
    #[error("{0}")]
    Final(String),
    /// It may succeed later.
    #[error("{0}")]
    Later(String),
    /// It was asked to stop.
    #[error("Operation canceled")]
    Canceled,
    /// The cluster's answer.
    #[error(transparent)]
    Cluster(#[from] ClientError),
}

/// Result of work on an image.
pub type Result<T> = std::result::Result<T, ImageError>;

/// Hears how much of the work is done (0 to 1); false stops it.
pub type Progress<'a> = &'a dyn Fn(f64) -> bool;

fn is_absent(e: &ClientError) -> bool {
    e.errno() == Errno::ENOENT
}

pub(super) fn or_absent<T>(
    r: std::result::Result<T, ClientError>,
) -> std::result::Result<Option<T>, ClientError> {
    match r {
        Ok(v) => Ok(Some(v)),
        Err(e) if is_absent(&e) => Ok(None),
        Err(e) => Err(e),
    }
}

pub(super) fn text(b: &[u8]) -> String {
    String::from_utf8_lossy(b).into_owned()
}

pub(super) async fn get<T: Decode>(
    ctx: &IoCtx,
    object: &str,
    method: &str,
    input: impl Encode,
) -> std::result::Result<T, ClientError> {
    let out = ctx.exec(object, "rbd", method, &input.to_bytes(Features::ALL), false).await?;
    Ok(T::from_bytes(&out)?)
}

pub(super) async fn set(
    ctx: &IoCtx,
    object: &str,
    method: &str,
    input: impl Encode,
) -> std::result::Result<(), ClientError> {
    ctx.exec(object, "rbd", method, &input.to_bytes(Features::ALL), true).await.map(|_| ())
}

/// The names by id of a namespace's images.
pub async fn names(ctx: &IoCtx) -> std::result::Result<BTreeMap<String, String>, ClientError> {
    let mut all = BTreeMap::new();
    let mut after = Bytes::new();
    loop {
        let page = or_absent(
            get::<BTreeMap<Bytes, Bytes>>(ctx, DIRECTORY, "dir_list", (after, PAGE)).await,
        )?
        .unwrap_or_default();
        let Some(last) = page.keys().next_back().cloned() else { return Ok(all) };
        all.extend(page.iter().map(|(name, id)| (text(id), text(name))));
        after = last;
    }
}

/// The namespaces of a pool, without the one that has no name.
pub async fn namespaces(ctx: &IoCtx) -> std::result::Result<Vec<String>, ClientError> {
    let mut all = Vec::new();
    let mut after = Bytes::new();
    loop {
        let page: Vec<Bytes> =
            or_absent(get(ctx, "rbd_namespace", "namespace_list", (after, PAGE)).await)?
                .unwrap_or_default();
        let Some(last) = page.last().cloned() else { return Ok(all) };
        all.extend(page.iter().map(|n| text(n)));
        after = last;
    }
}

/// The id of the image with a name; nothing if there is none.
pub async fn id_of(ctx: &IoCtx, name: &str) -> std::result::Result<Option<String>, ClientError> {
    let id: Option<Bytes> = or_absent(get(ctx, &format!("rbd_id.{name}"), "get_id", ()).await)?;
    Ok(id.map(|id| text(&id)))
}

/// The settings of limits among the metadata of an image's header or of a pool; none if there is no
/// such object.
pub async fn limit_settings(
    ctx: &IoCtx,
    object: &str,
) -> std::result::Result<Settings, ClientError> {
    let prefix = format!("{}{}", ceiling::CONF, ceiling::QOS);
    // There are fewer such options than rows asked for.
    let rows =
        get::<BTreeMap<Bytes, Bytes>>(ctx, object, "metadata_list", (&prefix[..], PAGE)).await;
    let rows = or_absent(rows)?.unwrap_or_default();
    let limits = rows.into_iter().filter(|(key, _)| key.starts_with(prefix.as_bytes()));
    Ok(limits.map(|(key, value)| (text(&key[ceiling::CONF.len()..]), text(&value))).collect())
}

/// The settings of limits of an image with data in `data_pool`; nothing if there is no such image.
pub async fn limits_of(
    ctx: &IoCtx,
    image: &ImageRef,
    data_pool: PoolId,
) -> std::result::Result<Option<Settings>, ClientError> {
    let header = format!("rbd_header.{}", image.id);
    let expected = if image.elsewhere { data_pool.0 } else { -1 };
    match or_absent(get::<i64>(ctx, &header, "get_data_pool", ()).await)? {
        Some(found) if found == expected => limit_settings(ctx, &header).await.map(Some),
        _ => Ok(None),
    }
}

/// Whether the name is that of an image of the first format.
pub async fn is_first_format(ctx: &IoCtx, name: &str) -> std::result::Result<bool, ClientError> {
    Ok(or_absent(ctx.stat(&format!("{name}.rbd")).await)?.is_some())
}

/// An image in the trash.
pub async fn in_trash(
    ctx: &IoCtx,
    id: &str,
) -> std::result::Result<Option<TrashImageSpec>, ClientError> {
    or_absent(get(ctx, TRASH, "trash_get", id).await)
}

/// The images in the trash by id.
pub async fn trash(
    ctx: &IoCtx,
) -> std::result::Result<BTreeMap<String, TrashImageSpec>, ClientError> {
    let mut all = BTreeMap::new();
    let mut after = Bytes::new();
    loop {
        let page =
            get::<BTreeMap<Bytes, TrashImageSpec>>(ctx, TRASH, "trash_list", (after, PAGE)).await;
        let page = or_absent(page)?.unwrap_or_default();
        let Some(last) = page.keys().next_back().cloned() else { return Ok(all) };
        all.extend(page.into_iter().map(|(id, spec)| (text(&id), spec)));
        after = last;
    }
}

/// What an image's header says.
pub struct Image {
    pub(super) ctx: IoCtx,
    pub(super) id: String,
    pub(super) header: String,
    pub(super) data: IoCtx,
    pub(super) prefix: String,
    pub(super) order: u8,
    pub(super) size: u64,
    pub(super) features: u64,
    pub(super) snaps: Vec<SnapId>,
    /// Whether objects hold consecutive ranges of the image.
    pub(super) plain: bool,
    parent: ParentImageSpec,
}

impl Image {
    /// Reads the header of the image with an id; nothing if there is none.
    pub async fn open(ctx: &IoCtx, id: &str) -> Result<Option<Image>> {
        let header = format!("rbd_header.{id}");
        let Some((order, size)) =
            or_absent(get::<(u8, u64)>(ctx, &header, "get_size", SnapId::NOSNAP).await)?
        else {
            return Ok(None);
        };
        if !ORDERS.contains(&order) {
            return Err(ImageError::Final(format!("objects of 2^{order} bytes are not supported")));
        }
        let (features, _): (u64, u64) =
            get(ctx, &header, "get_features", (SnapId::NOSNAP, false)).await?;
        if features & !features::ALL != 0 {
            return Err(ImageError::Final(format!(
                "the image has features that are not known here: {features:#x}"
            )));
        }
        let prefix: Bytes = get(ctx, &header, "get_object_prefix", ()).await?;
        let data_pool: i64 = get(ctx, &header, "get_data_pool", ()).await?;
        let (_, snaps): (u64, Vec<SnapId>) = get(ctx, &header, "get_snapcontext", ()).await?;
        let plain = if features & features::STRIPING == 0 {
            true
        } else {
            let striping: (u64, u64) = get(ctx, &header, "get_stripe_unit_count", ()).await?;
            striping == (1 << order, 1)
        };
        let parent = get(ctx, &header, "parent_get", ()).await?;
        let data =
            if data_pool < 0 { ctx.clone() } else { ctx.clone().with_pool(PoolId(data_pool)) };
        let (ctx, id) = (ctx.clone(), id.to_owned());
        Ok(Some(Image {
            ctx,
            id,
            header,
            data,
            prefix: text(&prefix),
            order,
            size,
            features,
            snaps,
            plain,
            parent,
        }))
    }

    /// The pool of its data, what its data objects' names begin with, and its size in bytes.
    pub fn place(&self) -> (PoolId, &str, u64) {
        (self.data.pool(), &self.prefix, self.size)
    }

    /// Whether it has snapshots.
    pub fn has_snapshots(&self) -> bool {
        !self.snaps.is_empty()
    }

    /// Whether it is a clone with data that is still its parent's in part.
    pub async fn has_parent(&self) -> Result<bool> {
        Ok(self.overlap(SnapId::NOSNAP).await?.is_some())
    }

    async fn overlap(&self, snap: SnapId) -> Result<Option<u64>> {
        Ok(get(&self.ctx, &self.header, "parent_overlap_get", snap).await?)
    }

    /// The object map of a snapshot, or of the image itself.
    pub(super) fn object_map(&self, snap: Option<SnapId>) -> String {
        match snap {
            Some(snap) => format!("rbd_object_map.{}.{:016x}", self.id, snap.0),
            None => format!("rbd_object_map.{}", self.id),
        }
    }

    pub(super) fn object(&self, number: u64) -> String {
        format!("{}.{number:016x}", self.prefix)
    }

    pub(super) fn object_size(&self) -> u64 {
        1 << self.order
    }

    /// How many data objects there can be. Striping spreads the last ones over more.
    async fn objects(&self) -> Result<u64> {
        let count = if self.plain {
            1
        } else {
            get::<(u64, u64)>(&self.ctx, &self.header, "get_stripe_unit_count", ()).await?.1.max(1)
        };
        let period =
            self.object_size().checked_mul(count).ok_or(ClientError::Invalid("striping"))?;
        Ok(self.size.div_ceil(period).saturating_mul(count))
    }

    async fn is_open(&self) -> Result<bool> {
        let op = Operation::new().op(Op::new(OpCode::LIST_WATCHERS, OpArgs::extent(0, 0)));
        let out = self.ctx.run(&self.header, op).await?.ok()?.output(0);
        let watchers = ListWatchersResponse::from_bytes(&out).map_err(ClientError::from)?;
        Ok(!watchers.entries.is_empty())
    }

    pub(super) async fn refuse_if_open(&self) -> Result<()> {
        match self.is_open().await? {
            false => Ok(()),
            true => Err(ImageError::Later("the image is in use: it has watchers".into())),
        }
    }

    /// Whether a client that lives holds the exclusive lock.
    pub(super) async fn has_owner(&self) -> Result<bool> {
        if self.features & features::EXCLUSIVE_LOCK == 0 {
            return Ok(false);
        }
        let op = GetInfoOp { name: Bytes::from_static(LOCK.as_bytes()) }.to_bytes(Features::ALL);
        let held = or_absent(self.ctx.exec(&self.header, "lock", "get_info", &op, false).await)?;
        let held = held.map(|out| LockInfo::from_bytes(&out)).transpose();
        let held = held.map_err(ClientError::from)?.unwrap_or_default();
        // A client that died left its lock; clients break it when they want it.
        Ok(!held.lockers.is_empty() && self.is_open().await?)
    }

    /// Asks the client that holds the lock to flatten the image, and waits for some time until it
    /// has (Ceph: `ImageWatcher::notify_flatten`). The client knows a request that it is told of
    /// again by its number.
    async fn flatten_by_owner(&self, request: u64, progress: Progress<'_>) -> Result<()> {
        let manager = self.ctx.rados().mon().global_id();
        let mut message = BytesMut::new();
        denc::envelope(&mut message, NOTIFY_VERSION, 1, |out| {
            // The operation; the requester (client and watch, which the manager does not have); and
            // the client's number of the request.
            NOTIFY_FLATTEN.encode(out, Features::ALL);
            (manager, 0u64, request).encode(out, Features::ALL);
        });
        self.tell_watchers(message.freeze()).await?;
        let begun = Instant::now();
        while begun.elapsed() < OWNER_PATIENCE {
            if !self.has_parent().await? {
                return Ok(());
            }
            if !progress(0.0) {
                return Err(ImageError::Canceled);
            }
            if !self.has_owner().await? {
                return Err(ImageError::Later("the lock of the image changed hands".into()));
            }
            tokio::time::sleep(OWNER_LOOK).await;
        }
        Err(ImageError::Later("the client that holds the image's lock has not flattened it".into()))
    }

    pub(super) fn refuse(&self, bits: u64, what: &str) -> Result<()> {
        if self.features & bits == 0 {
            return Ok(());
        }
        Err(ImageError::Final(format!(
            "{what} is not supported for this image's features (journaling, migration, mirroring or a dirty cache)"
        )))
    }

    /// Clients that have the image open read its header again (librbd takes an empty notification
    /// for that).
    pub(super) async fn notify(&self) -> Result<()> {
        self.tell_watchers(Bytes::new()).await
    }

    pub(super) async fn tell_watchers(&self, message: Bytes) -> Result<()> {
        let input = (1u32, NOTIFY_TIMEOUT, message).to_bytes(Features::ALL);
        let op = Operation::new().op(Op::with_input(
            OpCode::NOTIFY,
            OpArgs::Notify { cookie: rand::random() },
            input,
        ));
        self.ctx.run(&self.header, op).await?.ok()?;
        Ok(())
    }

    fn parent_ctx(&self) -> IoCtx {
        let namespace = text(&self.parent.pool_namespace);
        self.ctx.clone().with_pool(PoolId(self.parent.pool_id)).with_namespace(&namespace)
    }

    /// Takes the image off its parent's list of clones.
    async fn leave_parent(&self) -> Result<()> {
        let op_features: u64 = match self.features & features::OPERATIONS {
            0 => 0,
            _ => get(&self.ctx, &self.header, "op_features_get", ()).await?,
        };
        let p = &self.parent;
        let own_id = Bytes::copy_from_slice(self.id.as_bytes());
        let counted = op_features & features::op::CLONE_CHILD != 0;
        let left = if counted {
            let child = ChildImageSpec {
                pool_id: self.ctx.pool().0,
                image_id: own_id,
                pool_namespace: self.ctx.namespace().clone(),
            };
            let header = format!("rbd_header.{}", text(&p.image_id));
            set(&self.parent_ctx(), &header, "child_detach", (p.snap_id, child)).await
        } else {
            set(
                &self.ctx,
                "rbd_children",
                "remove_child",
                ((p.pool_id, p.image_id.clone(), p.snap_id), own_id),
            )
            .await
        };
        or_absent(left)?;
        if counted && let Err(e) = self.tidy_parent().await {
            // As with librbd, the clone is free of its parent whatever becomes of that.
            tracing::warn!("parent image {} keeps a snapshot: {e}", text(&self.parent.image_id));
        }
        Ok(())
    }

    /// Removes the parent's snapshot if this was the last clone of one that was removed already,
    /// and the parent itself if its owner put it in the trash for as long as it has clones (Ceph:
    /// `DetachChildRequest`).
    fn tidy_parent(&self) -> Pin<Box<dyn Future<Output = Result<()>> + '_>> {
        Box::pin(async move {
            let (ctx, snap) = (self.parent_ctx(), self.parent.snap_id);
            let id = text(&self.parent.image_id);
            let header = format!("rbd_header.{id}");
            let info: Option<SnapshotInfo> =
                or_absent(get(&ctx, &header, "snapshot_get", snap).await)?;
            let superfluous = info
                .is_some_and(|i| i.namespace.kind() == NamespaceKind::TRASH && i.child_count == 0);
            if !superfluous {
                return Ok(());
            }
            let Some(parent) = Image::open(&ctx, &id).await? else { return Ok(()) };
            parent.remove_snapshot(snap, false).await?;
            if parent.snaps != [snap] {
                return Ok(());
            }
            let now = wall_clock();
            let waits_for_clones = in_trash(&ctx, &id).await?.is_some_and(|spec| {
                spec.source == TrashImageSource::USER_PARENT
                    && spec.state == TrashImageState::NORMAL
                    && spec.deferment_end_time <= now
            });
            if waits_for_clones {
                remove_from_trash(&ctx, &id, now, &|_| true).await?;
            }
            Ok(())
        })
    }

    /// Removes a snapshot that has no clones (Ceph: `SnapshotRemoveRequest`). The header goes
    /// first: what is left behind if the manager dies then takes space, but misleads no client.
    /// With `locked`, the caller holds the exclusive lock, and with it the object maps.
    pub(super) async fn remove_snapshot(&self, snap: SnapId, locked: bool) -> Result<()> {
        let map_of = |snap| self.object_map(snap);
        let has_map = self.features & features::OBJECT_MAP != 0;
        if has_map && self.features & features::FAST_DIFF != 0 {
            // What changed up to this snapshot has changed since the one before it. Maps of an
            // image that is open are the client's.
            let next = self.snaps.iter().copied().filter(|s| *s > snap).min();
            let flags_of = next.unwrap_or(SnapId::NOSNAP);
            let invalid = (FAST_DIFF_INVALID, FAST_DIFF_INVALID, flags_of);
            let mut merged = false;
            if locked || !self.is_open().await? {
                let exec = async |object: &str, method: &str, input: &[u8], writes| {
                    self.ctx.exec(object, "rbd", method, input, writes).await
                };
                let map = exec(&map_of(Some(snap)), "object_map_load", &[], false).await;
                if let Ok(map) = map {
                    let into = map_of(next);
                    merged = exec(&into, "object_map_snap_remove", &map, true).await.is_ok();
                }
            }
            if !merged {
                set(&self.ctx, &self.header, "set_flags", invalid).await?;
            }
        }
        or_absent(set(&self.ctx, &self.header, "snapshot_remove", snap).await)?;
        or_absent(self.data.remove_snapshot(snap).await)?;
        if has_map {
            or_absent(self.ctx.remove(&map_of(Some(snap))).await)?;
        }
        // The last snapshot that needed this image's own parent.
        if self.parent.exists() {
            let left: ParentImageSpec = get(&self.ctx, &self.header, "parent_get", ()).await?;
            if !left.exists() {
                Box::pin(self.leave_parent()).await?;
            }
        }
        self.notify().await
    }
}

/// An ancestor's data, up to where the image below can see it.
pub(super) struct Layer {
    pub(super) data: IoCtx,
    pub(super) prefix: String,
    pub(super) order: u8,
    pub(super) overlap: u64,
}

/// The ancestors of an image at a snapshot, nearest first.
pub(super) async fn ancestors(image: &Image, mut snap: SnapId) -> Result<Vec<Layer>> {
    let mut layers = Vec::new();
    let mut below: Option<Image> = None;
    loop {
        let current = below.as_ref().unwrap_or(image);
        let Some(overlap) = current.overlap(snap).await?.filter(|_| current.parent.exists()) else {
            return Ok(layers);
        };
        if layers.len() >= MOST_PARENTS {
            return Err(ImageError::Final("there are too many parents above one another".into()));
        }
        let spec = current.parent.clone();
        let parent = Image::open(&current.parent_ctx(), &text(&spec.image_id)).await?;
        let parent =
            parent.ok_or_else(|| ImageError::Later("the parent image does not exist".into()))?;
        if !parent.plain {
            return Err(ImageError::Final(
                "flattening is not supported for images with striping".into(),
            ));
        }
        snap = spec.snap_id;
        let data = parent.data.clone().with_read_snapshot(snap);
        layers.push(Layer { data, prefix: parent.prefix.clone(), order: parent.order, overlap });
        below = Some(parent);
    }
}

/// Fills a range of the image below `layers` with what it sees of them; the rest stays as it is,
/// zero.
pub(super) fn fill<'a>(
    layers: &'a [Layer],
    offset: u64,
    out: &'a mut [u8],
) -> Pin<Box<dyn Future<Output = Result<()>> + 'a>> {
    Box::pin(async move {
        let Some((layer, above)) = layers.split_first() else { return Ok(()) };
        let visible = layer.overlap.saturating_sub(offset).min(out.len() as u64) as usize;
        let (mut at, mut rest) = (offset, out.get_mut(..visible).unwrap_or_default());
        while !rest.is_empty() {
            let object_size = 1u64 << layer.order;
            let (number, inside) = (at >> layer.order, at % object_size);
            let len = (object_size - inside).min(rest.len() as u64) as usize;
            let (piece, behind) = rest.split_at_mut(len);
            match or_absent(
                layer
                    .data
                    .read(&format!("{}.{number:016x}", layer.prefix), inside, len as u64)
                    .await,
            )? {
                Some(found) => {
                    let n = found.len().min(piece.len());
                    if let (Some(to), Some(from)) = (piece.get_mut(..n), found.get(..n)) {
                        to.copy_from_slice(from);
                    }
                }
                None => fill(above, at, piece).await?,
            }
            at += len as u64;
            rest = behind;
        }
        Ok(())
    })
}

/// Runs `one` for the numbers below `count`, a few at a time.
pub(super) async fn for_each<F>(
    count: u64,
    progress: Progress<'_>,
    one: impl Fn(u64) -> F,
) -> Result<()>
where
    F: Future<Output = Result<()>> + 'static,
{
    let mut running = JoinSet::new();
    let (mut next, mut done) = (0, 0);
    while done < count {
        while next < count && next - done < CONCURRENT {
            running.spawn_local(one(next));
            next += 1;
        }
        let Some(result) = running.join_next().await else { break };
        result.map_err(|_| ImageError::Later("the work on an object ended early".into()))??;
        done += 1;
        if !progress(done as f64 / count as f64) {
            return Err(ImageError::Canceled);
        }
    }
    Ok(())
}

/// Copies what a clone shows of its parents into it, and severs it from them. `request` tells this
/// wish from others for a client that is asked to do so.
pub async fn flatten(ctx: &IoCtx, id: &str, request: u64, progress: Progress<'_>) -> Result<()> {
    let image = Image::open(ctx, id)
        .await?
        .ok_or_else(|| ImageError::Final("Image does not exist".into()))?;
    if !image.has_parent().await? {
        // An earlier attempt, or another client, has done it.
        return Ok(());
    }
    if image.has_owner().await? {
        return image.flatten_by_owner(request, progress).await;
    }
    image.refuse(
        features::JOURNALING | features::MIGRATING | features::NON_PRIMARY | features::DIRTY_CACHE,
        "flattening",
    )?;
    if !image.plain {
        return Err(ImageError::Final(
            "flattening is not supported for images with striping".into(),
        ));
    }
    let layers = std::rc::Rc::new(ancestors(&image, SnapId::NOSNAP).await?);
    let Some(overlap) = layers.first().map(|l| l.overlap) else {
        return Err(ImageError::Final("Image does not have a parent".into()));
    };
    if image.features & features::OBJECT_MAP != 0 {
        for snap in image.snaps.iter().chain([&SnapId::NOSNAP]) {
            set(&image.ctx, &image.header, "set_flags", (MAPS_INVALID, MAPS_INVALID, *snap))
                .await?;
        }
        // A client that takes the lock after this notification reads that the map is invalid; one
        // that took it before is seen.
        image.notify().await?;
        if image.has_owner().await? {
            return image.flatten_by_owner(request, progress).await;
        }
    }
    for_each(overlap.div_ceil(image.object_size()), progress, |number| {
        let (layers, data, name) = (layers.clone(), image.data.clone(), image.object(number));
        let offset = number << image.order;
        let len = image.object_size().min(overlap - offset);
        async move {
            if or_absent(data.stat(&name).await)?.is_some() {
                return Ok(());
            }
            let mut content = vec![0; len as usize];
            fill(&layers, offset, &mut content).await?;
            if content.chunks(ZEROS.len()).all(|c| ZEROS.starts_with(c)) {
                return Ok(());
            }
            // Without a snapshot context: the image's snapshots see the data, too.
            data.exec(&name, "rbd", "copyup", &content, true).await?;
            Ok(())
        }
    })
    .await?;
    if image.features & features::DEEP_FLATTEN != 0 || image.snaps.is_empty() {
        image.leave_parent().await?;
    }
    or_absent(set(&image.ctx, &image.header, "parent_detach", ()).await)?;
    image.notify().await
}

/// Removes an image's data and header; `also` are features that are no reason against. Nothing to
/// do if there is no header.
pub(super) async fn remove_data(
    ctx: &IoCtx,
    id: &str,
    also: u64,
    progress: Progress<'_>,
) -> Result<()> {
    let Some(image) = Image::open(ctx, id).await? else { return Ok(()) };
    let against = (features::JOURNALING | features::MIGRATING) & !also;
    image.refuse(against, "removing in the background")?;
    if image.has_snapshots() {
        return Err(ImageError::Later("Image has snapshots".into()));
    }
    let group: GroupSpec = get(ctx, &image.header, "image_group_get", ()).await?;
    if group.pool_id >= 0 {
        return Err(ImageError::Later("Image is member of a group".into()));
    }
    if or_absent(get::<MirrorImage>(ctx, "rbd_mirroring", "mirror_image_get", id).await)?.is_some()
    {
        return Err(ImageError::Later("Image is mirrored".into()));
    }
    image.refuse_if_open().await?;
    for_each(image.objects().await?, progress, |number| {
        let (data, name) = (image.data.clone(), image.object(number));
        async move {
            or_absent(data.remove(&name).await)?;
            Ok(())
        }
    })
    .await?;
    if image.parent.exists() {
        image.leave_parent().await?;
    }
    or_absent(ctx.remove(&format!("rbd_object_map.{id}")).await)?;
    or_absent(ctx.remove(&image.header).await)?;
    Ok(())
}

/// Removes an image that is in the directory.
pub async fn remove(ctx: &IoCtx, name: &str, id: &str, progress: Progress<'_>) -> Result<()> {
    match id_of(ctx, name).await? {
        // The id object goes before the directory's row.
        None => {}
        Some(found) if found == id => remove_data(ctx, id, 0, progress).await?,
        Some(_) => return Err(ImageError::Final("Image does not exist".into())),
    }
    or_absent(ctx.remove(&format!("rbd_id.{name}")).await)?;
    or_absent(set(ctx, DIRECTORY, "dir_remove_image", (name, id)).await)?;
    Ok(())
}

/// Removes an image that is in the trash and due.
pub async fn remove_from_trash(
    ctx: &IoCtx,
    id: &str,
    now: Utime,
    progress: Progress<'_>,
) -> Result<()> {
    let spec =
        in_trash(ctx, id).await?.ok_or_else(|| ImageError::Final("Image does not exist".into()))?;
    if spec.deferment_end_time > now {
        return Err(ImageError::Later("Deferment time has not expired".into()));
    }
    set(ctx, TRASH, "trash_state_set", (id, TrashImageState::REMOVING, TrashImageState::NORMAL))
        .await?;
    if let Err(e) = remove_data(ctx, id, 0, progress).await {
        // What is left of it may be restored if nothing was removed; a second attempt sets the
        // state again.
        let _ = set(
            ctx,
            TRASH,
            "trash_state_set",
            (id, TrashImageState::NORMAL, TrashImageState::REMOVING),
        )
        .await;
        return Err(e);
    }
    or_absent(set(ctx, TRASH, "trash_remove", id).await)?;
    Ok(())
}
