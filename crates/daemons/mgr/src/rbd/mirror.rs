//! Snapshots of mirrored images, which another cluster's daemon copies (Ceph: librbd's
//! `mirror::snapshot::CreatePrimaryRequest`, `UnlinkPeerRequest`, 16.2).
//!
//! The client that holds an image's exclusive lock makes and removes its snapshots, when the
//! manager asks as librbd does. If no client does, the manager holds the lock for as long as it
//! works on the image, and watches the header meanwhile: clients break a lock without a watch.

use super::image::{self, Image, ImageError, LOCK, NOTIFY_VERSION, Result, get, or_absent, set};
use bytes::{Bytes, BytesMut};
use client::{ClientError, IoCtx, Watch, WatchEvent};
use cls::lock::{LockOp, LockType, UnlockOp};
use cls::rbd::features;
use cls::rbd::types::{
    MirrorImage, MirrorImageMode, MirrorImageState, MirrorMode, MirrorPeer, MirrorPeerDirection,
    MirrorSnapshot, MirrorSnapshotState, ProtectionStatus, SnapshotInfo, SnapshotNamespace,
};
use denc::{Encode, Features};
use denc_derive::Denc;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use types::SnapId;
use types::errno::Errno;

const MIRRORING: &str = "rbd_mirroring";
/// Prefix of the objects with what an image was like at a snapshot (Ceph:
/// `IMAGE_STATE_OBJECT_PREFIX`).
const STATE_PREFIX: &str = "rbd_mirror_snapshot.";
/// Such a state is cut into objects of this size (Ceph: 2 to the `rbd_default_order`).
const STATE_BYTES_MAX: usize = 4 << 20;
/// Prefix of metadata that is librbd's own and not copied.
const INTERNAL_METADATA: &[u8] = b".rbd";
/// Features that come with others, or that say how an image is, and are not copied (Ceph:
/// `RBD_FEATURES_IMPLICIT_ENABLE`).
const IMPLICIT: u64 = features::STRIPING
    | features::DATA_POOL
    | features::FAST_DIFF
    | features::OPERATIONS
    | features::MIGRATING
    | features::NON_PRIMARY
    | features::DIRTY_CACHE;
/// `NOTIFY_OP_RELEASED_LOCK`, `_SNAP_CREATE`, `_SNAP_REMOVE` (`librbd/WatchNotifyTypes.h`, 16.2).
const RELEASED_LOCK: u32 = 1;
const SNAP_CREATE: u32 = 8;
const SNAP_REMOVE: u32 = 9;
/// A snapshot's number may be taken by another client in between; so often it is tried again.
const NUMBERS_TRIED: usize = 8;
const PAGE: u64 = 1024;

/// What an image was like (Ceph: `librbd/mirror/snapshot/Types.h`, `ImageState`, version 1).
#[derive(Denc, Default)]
#[denc(version = 1, compat = 1)]
struct ImageState {
    name: Bytes,
    features: u64,
    snap_limit: u64,
    snapshots: BTreeMap<SnapId, SnapState>,
    metadata: BTreeMap<Bytes, Bytes>,
}

/// A snapshot made by a user (Ceph: `SnapState` there, version 1).
#[derive(Denc)]
#[denc(version = 1, compat = 1)]
struct SnapState {
    namespace: SnapshotNamespace,
    name: Bytes,
    protection: ProtectionStatus,
}

/// In how many objects the state is (Ceph: `ImageStateHeader` there, version 1).
#[derive(Denc)]
#[denc(version = 1, compat = 1)]
struct StateHeader {
    objects: u32,
}

/// Whether images of a namespace are mirrored one by one.
pub async fn is_by_image(ctx: &IoCtx) -> std::result::Result<bool, ClientError> {
    let mode: Option<MirrorMode> = or_absent(get(ctx, MIRRORING, "mirror_mode_get", ()).await)?;
    Ok(mode == Some(MirrorMode::IMAGE))
}

/// What is known of an image's mirroring; nothing if it is not mirrored.
pub async fn mirrored(
    ctx: &IoCtx,
    id: &str,
) -> std::result::Result<Option<MirrorImage>, ClientError> {
    or_absent(get(ctx, MIRRORING, "mirror_image_get", id).await)
}

/// Whether an image is mirrored by snapshots.
pub fn by_snapshots(image: &MirrorImage) -> bool {
    image.mode == MirrorImageMode::SNAPSHOT && image.state == MirrorImageState::ENABLED
}

/// The ids of a namespace's images that are mirrored by snapshots, from here.
pub async fn primaries(ctx: &IoCtx) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let mut after = Bytes::new();
    loop {
        let page = get(ctx, MIRRORING, "mirror_image_list", (after, PAGE)).await;
        let page: BTreeMap<Bytes, Bytes> = or_absent(page)?.unwrap_or_default();
        let Some(last) = page.keys().next_back().cloned() else { return Ok(found) };
        for id in page.keys().map(|id| image::text(id)) {
            let by_snapshots = mirrored(ctx, &id).await?.is_some_and(|i| by_snapshots(&i));
            if by_snapshots
                && let Some(image) = Image::open(ctx, &id).await?
                && is_primary(&snapshots(&image).await?)
            {
                found.push(id);
            }
        }
        after = last;
    }
}

/// Makes a snapshot of an image if it is mirrored by snapshots and this cluster has the original,
/// and removes old ones that are more than `most` for a peer.
pub async fn snapshot(ctx: &IoCtx, id: &str, most: usize) -> Result<()> {
    let Some(mirror) = mirrored(ctx, id).await?.filter(by_snapshots) else { return Ok(()) };
    let Some(image) = Image::open(ctx, id).await? else { return Ok(()) };
    if !is_primary(&snapshots(&image).await?) {
        return Ok(());
    }
    image.refuse(features::JOURNALING | features::MIGRATING, "a snapshot for mirroring")?;
    let peers: Vec<MirrorPeer> =
        get(&ctx.clone().with_namespace(""), MIRRORING, "mirror_peer_list", ()).await?;
    let peers: BTreeSet<Bytes> = peers
        .into_iter()
        .filter(|p| p.direction != MirrorPeerDirection::RX)
        .map(|p| p.uuid)
        .collect();
    if peers.is_empty() {
        return Err(ImageError::Final("no mirror tx peers configured for the pool".into()));
    }
    let global = image::text(&mirror.global_image_id);
    let name = Bytes::from(format!(".mirror.primary.{global}.{}", super::uuid()));
    let lock = Lock::take(&image).await?;
    let done = make_and_tidy(image, lock.as_ref(), name, &peers, most).await;
    if let Some(lock) = lock {
        lock.release().await;
    }
    done
}

async fn make_and_tidy(
    image: Image,
    lock: Option<&Lock>,
    name: Bytes,
    peers: &BTreeSet<Bytes>,
    most: usize,
) -> Result<()> {
    let by_owner = matches!(lock, Some(Lock::OfClient));
    let namespace = SnapshotNamespace::Mirror(MirrorSnapshot {
        state: MirrorSnapshotState::PRIMARY,
        complete: false,
        mirror_peer_uuids: peers.clone(),
        primary_mirror_uuid: Bytes::new(),
        primary_snap_id: SnapId::NOSNAP,
        last_copied_object_number: 0,
        snap_seqs: BTreeMap::new(),
    });
    if by_owner {
        ask_owner(&image, SNAP_CREATE, &name, &namespace).await?;
    } else {
        make(&image, &name, &namespace).await?;
    }
    // One at a time: each removal changes what is left.
    for _ in 0..image.snaps.len() {
        let Some(image) = Image::open(&image.ctx, &image.id).await? else { return Ok(()) };
        let all = snapshots(&image).await?;
        let Some((old, peer)) = superfluous(&all, peers, most) else { return Ok(()) };
        unlink(&image, &all, old, peer, by_owner, lock.is_some()).await?;
    }
    Ok(())
}

/// The image's snapshots, oldest first.
async fn snapshots(image: &Image) -> Result<Vec<SnapshotInfo>> {
    let mut ids = image.snaps.clone();
    ids.sort();
    let mut all = Vec::with_capacity(ids.len());
    for id in ids {
        all.extend(or_absent(get(&image.ctx, &image.header, "snapshot_get", id).await)?);
    }
    Ok(all)
}

fn mirror_of(info: &SnapshotInfo) -> Option<&MirrorSnapshot> {
    match &info.namespace {
        SnapshotNamespace::Mirror(m) => Some(m),
        _ => None,
    }
}

/// Whether the image is the original: its newest snapshot of mirroring says so.
fn is_primary(snapshots: &[SnapshotInfo]) -> bool {
    let newest = snapshots.iter().rev().find_map(mirror_of);
    newest.is_some_and(|m| m.state == MirrorSnapshotState::PRIMARY)
}

/// A snapshot that a peer does not need, and the peer. Of more than `most` since the image became
/// the original, the third goes: the two before it may be what the peer copies from (Ceph:
/// `CreatePrimaryRequest::unlink_peer`).
fn superfluous<'a>(
    snapshots: &[SnapshotInfo],
    peers: &'a BTreeSet<Bytes>,
    most: usize,
) -> Option<(SnapId, &'a Bytes)> {
    for peer in peers {
        let (mut count, mut third) = (0, None);
        for (info, mirror) in snapshots.iter().filter_map(|i| Some((i, mirror_of(i)?))) {
            if mirror.state != MirrorSnapshotState::PRIMARY {
                (count, third) = (0, None);
                continue;
            }
            if mirror.mirror_peer_uuids.is_empty() {
                return Some((info.id, peer));
            }
            if !mirror.mirror_peer_uuids.contains(peer) {
                continue;
            }
            count += 1;
            if count == 3 {
                third = Some(info.id);
            }
            if count > most {
                return third.map(|id| (id, peer));
            }
        }
    }
    None
}

/// Takes a peer off a snapshot; without peers, and if it is not the newest, the snapshot goes.
async fn unlink(
    image: &Image,
    all: &[SnapshotInfo],
    old: SnapId,
    peer: &Bytes,
    by_owner: bool,
    locked: bool,
) -> Result<()> {
    let Some(info) = all.iter().find(|i| i.id == old) else { return Ok(()) };
    let Some(mirror) = mirror_of(info) else { return Ok(()) };
    let newer = all.iter().any(|i| i.id > old && mirror_of(i).is_some());
    let others = mirror.mirror_peer_uuids.iter().any(|p| p != peer);
    if others || !newer {
        let input = (old, peer.clone());
        or_absent(
            set(&image.ctx, &image.header, "mirror_image_snapshot_unlink_peer", input).await,
        )?;
        return image.notify().await;
    }
    if by_owner {
        return ask_owner(image, SNAP_REMOVE, &info.name, &info.namespace).await;
    }
    image.remove_snapshot(old, locked).await?;
    remove_state(image, old).await
}

/// The exclusive lock of an image that has one.
enum Lock {
    /// A client that lives holds it.
    OfClient,
    /// The manager holds it.
    Own(Box<Held>),
}

/// A lock of an image's header that the manager holds.
struct Held {
    ctx: IoCtx,
    header: String,
    cookie: Bytes,
    watch: Watch,
}

impl Lock {
    /// Takes the lock unless a client has it; nothing if the image has no such lock.
    async fn take(image: &Image) -> Result<Option<Lock>> {
        if image.features & features::EXCLUSIVE_LOCK == 0 {
            return Ok(None);
        }
        if image.has_owner().await? {
            return Ok(Some(Lock::OfClient));
        }
        let answer = |event| {
            if let WatchEvent::Notify(n) = event {
                n.ack(Bytes::new());
            }
        };
        let watch = image.ctx.watch(&image.header, Duration::ZERO, answer).await?;
        let cookie = Bytes::from(format!("auto {}", watch.cookie()));
        let op = LockOp {
            name: Bytes::from_static(LOCK.as_bytes()),
            lock_type: LockType::EXCLUSIVE,
            cookie: cookie.clone(),
            tag: Bytes::from_static(b"internal"),
            ..LockOp::default()
        };
        let input = op.to_bytes(Features::ALL);
        if let Err(e) = image.ctx.exec(&image.header, "lock", "lock", &input, true).await {
            let _ = watch.unwatch().await;
            return match e.errno() {
                Errno::EBUSY => Err(ImageError::Later("the image's lock is held".into())),
                _ => Err(e.into()),
            };
        }
        let (ctx, header) = (image.ctx.clone(), image.header.clone());
        Ok(Some(Lock::Own(Box::new(Held { ctx, header, cookie, watch }))))
    }

    /// Gives the lock back, and tells clients that wait for it. What fails here is undone by
    /// clients: they break a lock if its holder does not watch.
    async fn release(self) {
        let Lock::Own(held) = self else { return };
        let Held { ctx, header, cookie, watch } = *held;
        let op = UnlockOp { name: Bytes::from_static(LOCK.as_bytes()), cookie };
        let input = op.to_bytes(Features::ALL);
        if let Err(e) = ctx.exec(&header, "lock", "unlock", &input, true).await {
            tracing::warn!("the lock of {header} stays: {e}");
        }
        let handle = watch.cookie();
        let _ = watch.unwatch().await;
        let mut message = BytesMut::new();
        denc::envelope(&mut message, NOTIFY_VERSION, 1, |out| {
            RELEASED_LOCK.encode(out, Features::ALL);
            (ctx.rados().mon().global_id(), handle).encode(out, Features::ALL);
        });
        let _ = ctx.notify(&header, message.freeze(), image::OWNER_PATIENCE).await;
    }
}

/// Asks the client that holds the lock to make or remove a snapshot, and waits until it has.
async fn ask_owner(
    image: &Image,
    what: u32,
    name: &Bytes,
    namespace: &SnapshotNamespace,
) -> Result<()> {
    let mut message = BytesMut::new();
    denc::envelope(&mut message, NOTIFY_VERSION, 1, |out| {
        what.encode(out, Features::ALL);
        (name.clone(), namespace.clone()).encode(out, Features::ALL);
        // The requester (client and watch, which the manager does not have here), and its number
        // of the request.
        let request: u64 = rand::random();
        (image.ctx.rados().mon().global_id(), 0u64, request).encode(out, Features::ALL);
        if what == SNAP_CREATE {
            // Flags: clients with the image open are asked to be quiet.
            0u64.encode(out, Features::ALL);
        }
    });
    image.tell_watchers(message.freeze()).await?;
    let begun = Instant::now();
    while begun.elapsed() < image::OWNER_PATIENCE {
        let Some(at) = Image::open(&image.ctx, &image.id).await? else { return Ok(()) };
        let there = snapshots(&at).await?.iter().any(|s| s.name == *name);
        if there == (what == SNAP_CREATE) {
            return Ok(());
        }
        if !at.has_owner().await? {
            return Err(ImageError::Later("the lock of the image changed hands".into()));
        }
        tokio::time::sleep(image::OWNER_LOOK).await;
    }
    Err(ImageError::Later("the client that holds the image's lock has not done it".into()))
}

/// Makes a snapshot of an image that no client writes to.
async fn make(image: &Image, name: &Bytes, namespace: &SnapshotNamespace) -> Result<()> {
    let snap = number(image, name, namespace).await?;
    if image.features & features::OBJECT_MAP != 0
        && let Err(e) = copy_map(image, snap).await
    {
        tracing::warn!("the object map of a snapshot of {} is invalid: {e}", image.id);
        let invalid = (image::MAPS_INVALID, image::MAPS_INVALID, snap);
        set(&image.ctx, &image.header, "set_flags", invalid).await?;
    }
    write_state(image, snap).await?;
    let complete = (snap, true, 0u64);
    set(&image.ctx, &image.header, "mirror_image_snapshot_set_copy_progress", complete).await?;
    image.notify().await
}

async fn number(image: &Image, name: &Bytes, namespace: &SnapshotNamespace) -> Result<SnapId> {
    for _ in 0..NUMBERS_TRIED {
        let snap = image.data.create_snapshot().await?;
        let input = (name.clone(), snap, namespace.clone());
        match set(&image.ctx, &image.header, "snapshot_add", input).await {
            Ok(()) => return Ok(snap),
            Err(e) => {
                or_absent(image.data.remove_snapshot(snap).await)?;
                if e.errno() != Errno::ESTALE {
                    return Err(e.into());
                }
            }
        }
    }
    Err(ImageError::Later("other clients make snapshots of the image".into()))
}

/// The snapshot gets a copy of the image's object map, in which from then on nothing has changed.
async fn copy_map(image: &Image, snap: SnapId) -> std::result::Result<(), ClientError> {
    let head = image.object_map(None);
    let map = image.ctx.read(&head, 0, image.ctx.stat(&head).await?.size).await?;
    image.ctx.write_full(image.object_map(Some(snap)), map).await?;
    if image.features & features::FAST_DIFF != 0 {
        set(&image.ctx, &head, "object_map_snap_add", ()).await?;
    }
    Ok(())
}

/// Writes down what the image is like, for the peer.
async fn write_state(image: &Image, snap: SnapId) -> Result<()> {
    let (ctx, header) = (&image.ctx, &image.header);
    let mut state = ImageState {
        name: get(ctx, "rbd_directory", "dir_get_name", &image.id[..]).await?,
        features: image.features & !IMPLICIT,
        snap_limit: get(ctx, header, "snapshot_get_limit", ()).await?,
        ..ImageState::default()
    };
    for info in
        snapshots(image).await?.into_iter().filter(|i| i.namespace == SnapshotNamespace::User)
    {
        let protection = get(ctx, header, "get_protection_status", info.id).await?;
        let (namespace, name) = (info.namespace, info.name);
        state.snapshots.insert(info.id, SnapState { namespace, name, protection });
    }
    let mut after = Bytes::new();
    loop {
        let page: BTreeMap<Bytes, Bytes> = get(ctx, header, "metadata_list", (after, PAGE)).await?;
        let Some(last) = page.keys().next_back().cloned() else { break };
        state.metadata.extend(page.into_iter().filter(|(k, _)| !k.starts_with(INTERNAL_METADATA)));
        after = last;
    }
    let pieces = pieces(&state);
    // The first, which tells how many there are, comes last.
    for (index, piece) in pieces.into_iter().enumerate().rev() {
        ctx.write_full(state_object(&image.id, snap, index), piece).await?;
    }
    Ok(())
}

fn state_object(id: &str, snap: SnapId, index: usize) -> String {
    format!("{STATE_PREFIX}{id}.{}.{index}", snap.0)
}

/// A state as its objects keep it.
fn pieces(state: &ImageState) -> Vec<Bytes> {
    let body = state.to_bytes(Features::ALL);
    let header_len = StateHeader { objects: 0 }.to_bytes(Features::ALL).len();
    let objects = 1 + (header_len + body.len()) / STATE_BYTES_MAX;
    let mut all = BytesMut::with_capacity(header_len + body.len());
    StateHeader { objects: objects as u32 }.encode(&mut all, Features::ALL);
    all.extend_from_slice(&body);
    let mut all = all.freeze();
    (0..objects).map(|_| all.split_to(all.len().min(STATE_BYTES_MAX))).collect()
}

async fn remove_state(image: &Image, snap: SnapId) -> Result<()> {
    let first = state_object(&image.id, snap, 0);
    let Some(header) = or_absent(image.ctx.read(&first, 0, 64).await)? else { return Ok(()) };
    let objects = denc::Reader::new(header).get::<StateHeader>().map_or(1, |h| h.objects);
    // The count comes from an object that any client may write.
    for index in (0..objects.min(1 << 10) as usize).rev() {
        or_absent(image.ctx.remove(state_object(&image.id, snap, index)).await)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mirror(id: u64, state: MirrorSnapshotState, peers: &[&'static str]) -> SnapshotInfo {
        let namespace = SnapshotNamespace::Mirror(MirrorSnapshot {
            state,
            complete: true,
            mirror_peer_uuids: peers.iter().map(|p| Bytes::from(*p)).collect(),
            primary_mirror_uuid: Bytes::new(),
            primary_snap_id: SnapId::NOSNAP,
            last_copied_object_number: 0,
            snap_seqs: BTreeMap::new(),
        });
        SnapshotInfo { namespace, ..user(id) }
    }

    fn user(id: u64) -> SnapshotInfo {
        SnapshotInfo {
            id: SnapId(id),
            namespace: SnapshotNamespace::User,
            name: Bytes::from(id.to_string()),
            image_size: 0,
            timestamp: types::Utime::ZERO,
            child_count: 0,
        }
    }

    const PRIMARY: MirrorSnapshotState = MirrorSnapshotState::PRIMARY;
    const DEMOTED: MirrorSnapshotState = MirrorSnapshotState::PRIMARY_DEMOTED;

    #[test]
    fn the_newest_snapshot_tells_where_the_original_is() {
        assert!(!is_primary(&[user(1)]));
        assert!(is_primary(&[mirror(1, PRIMARY, &[]), user(2)]));
        assert!(!is_primary(&[mirror(1, PRIMARY, &[]), mirror(2, DEMOTED, &[])]));
    }

    #[test]
    fn the_third_of_too_many_goes() {
        let peers: BTreeSet<Bytes> = [Bytes::from("a")].into();
        let first = peers.first().unwrap();
        let many = |n: u64| (1..=n).map(|i| mirror(i, PRIMARY, &["a"])).collect::<Vec<_>>();
        assert_eq!(superfluous(&many(3), &peers, 3), None);
        assert_eq!(superfluous(&many(4), &peers, 3), Some((SnapId(3), first)));
        assert_eq!(superfluous(&many(5), &peers, 5), None);
        // Users' snapshots do not count, nor what another peer needs alone.
        let mut mixed = many(3);
        mixed.extend([user(4), mirror(5, PRIMARY, &["b"])]);
        assert_eq!(superfluous(&mixed, &peers, 3), None);
        // Counting begins anew when the image became the original.
        let mut again = many(3);
        again.extend([mirror(4, DEMOTED, &["a"]), mirror(5, PRIMARY, &["a"])]);
        assert_eq!(superfluous(&again, &peers, 3), None);
        // What no peer needs goes at once.
        let mut unlinked = many(2);
        unlinked[0] = mirror(1, PRIMARY, &[]);
        assert_eq!(superfluous(&unlinked, &peers, 3), Some((SnapId(1), first)));
    }

    #[test]
    fn a_state_is_cut_into_objects() {
        let state = |n: usize| ImageState {
            metadata: [(Bytes::from("k"), Bytes::from(vec![7; n]))].into(),
            ..ImageState::default()
        };
        let small = pieces(&state(10));
        assert_eq!(small.len(), 1);
        let mut r = denc::Reader::new(small[0].clone());
        assert_eq!(r.get::<StateHeader>().unwrap().objects, 1);
        assert_eq!(r.get::<ImageState>().unwrap().metadata[&b"k"[..]].len(), 10);
        let large = pieces(&state(STATE_BYTES_MAX));
        assert_eq!(large.iter().map(Bytes::len).collect::<Vec<_>>()[0], STATE_BYTES_MAX);
        assert_eq!(large.len(), 2);
    }
}
