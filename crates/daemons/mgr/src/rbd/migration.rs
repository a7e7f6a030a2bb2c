//! Migration of images without a client (Ceph: librbd's `Migration`, `librbd/api/Migration.cc`,
//! 16.2): its data is copied, the source goes, or the destination does.
//!
//! A client has prepared it: the source is in the trash, the destination shows what it does not
//! have from the source, and both headers name the other end. The manager takes no lock. Each write
//! of a copy goes through only if the object is not there or has not seen the snapshot that the
//! write is younger than: what a client has written to the destination is newer, and stays. So a
//! copy that ends early is repeated from the beginning, too. Object maps are declared invalid, and
//! clients read the header again, before anything is copied.

use super::image::{
    self, DIRECTORY, Image, ImageError, Layer, MAPS_INVALID, Progress, Result, TRASH, ancestors,
    fill, for_each, get, id_of, in_trash, or_absent, remove_data, set, text, trash,
};
use bytes::Bytes;
use client::{IoCtx, Operation};
use cls::rbd::features;
use cls::rbd::types::{
    AssertSnapcSeqState, GroupSpec, MigrationHeaderType, MigrationSpec, MigrationState,
    NamespaceKind, ProtectionStatus, SnapshotInfo, TrashImageSource, TrashImageState,
};
use denc::{Encode, Features};
use std::collections::BTreeMap;
use std::rc::Rc;
use types::errno::Errno;
use types::snap::SnapContext;
use types::{PoolId, SnapId};

/// Both ends of a migration.
pub struct Migration {
    /// It is gone when a commit is repeated that ended early.
    source: Option<Image>,
    destination: Image,
    /// What the destination's header says.
    spec: MigrationSpec,
}

/// What `rbd task add migration` says of one.
pub struct Ends {
    /// How far it has come.
    pub state: MigrationState,
    /// Pool, namespace and name of the source,
    pub source: (PoolId, String, String),
    /// and of the destination.
    pub destination: (PoolId, String, String),
    /// The destination's id.
    pub id: String,
}

fn elsewhere(why: &str) -> ImageError {
    ImageError::Final(format!("{why}: use 'rbd migration' instead of a task"))
}

async fn spec_of(ctx: &IoCtx, id: &str) -> Result<Option<MigrationSpec>> {
    match get(ctx, &format!("rbd_header.{id}"), "migration_get", ()).await {
        Ok(spec) => Ok(Some(spec)),
        Err(e) if matches!(e.errno(), Errno::ENOENT | Errno::EINVAL) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// The id of a migration's image by its name: the destination's, or the source's in the trash.
async fn id_by_name(ctx: &IoCtx, name: &str) -> Result<Option<String>> {
    if let Some(id) = id_of(ctx, name).await? {
        return Ok(Some(id));
    }
    let put = trash(ctx).await?.into_iter().find(|(_, spec)| {
        spec.source == TrashImageSource::MIGRATION && spec.name == name.as_bytes()
    });
    Ok(put.map(|(id, _)| id))
}

fn other_end(ctx: &IoCtx, spec: &MigrationSpec) -> IoCtx {
    ctx.clone().with_pool(PoolId(spec.pool_id)).with_namespace(&spec.pool_namespace)
}

/// The migration that an image belongs to by either name, if there is one.
pub async fn ends(ctx: &IoCtx, name: &str) -> Result<Option<Ends>> {
    let Some(id) = id_by_name(ctx, name).await? else { return Ok(None) };
    let Some(spec) = spec_of(ctx, &id).await? else { return Ok(None) };
    let here = (ctx.pool(), text(ctx.namespace()), name.to_owned());
    let other = (PoolId(spec.pool_id), text(&spec.pool_namespace), text(&spec.image_name));
    if spec.header_type == MigrationHeaderType::DST {
        return Ok(Some(Ends { state: spec.state, source: other, destination: here, id }));
    }
    let (there, id) = (other_end(ctx, &spec), text(&spec.image_id));
    // Older clients keep the state at the source only; the destination's is what counts here.
    let Some(state) = spec_of(&there, &id).await?.map(|s| s.state) else { return Ok(None) };
    Ok(Some(Ends { state, source: here, destination: other, id }))
}

impl Migration {
    async fn open(ctx: &IoCtx, name: &str) -> Result<Migration> {
        let absent = || ImageError::Final("Image does not exist".into());
        let id = id_by_name(ctx, name).await?.ok_or_else(absent)?;
        let not_migrating = || ImageError::Final("Image is not migrating".into());
        let mut spec = spec_of(ctx, &id).await?.ok_or_else(not_migrating)?;
        let (mut ctx, mut id) = (ctx.clone(), id);
        if spec.header_type == MigrationHeaderType::SRC {
            (ctx, id) = (other_end(&ctx, &spec), text(&spec.image_id));
            spec = spec_of(&ctx, &id).await?.ok_or_else(not_migrating)?;
        }
        if spec.image_id.is_empty() || !spec.source_spec.is_empty() {
            return Err(elsewhere("the source has the first format, or is outside of the cluster"));
        }
        if spec.mirroring {
            return Err(elsewhere("the image is mirrored"));
        }
        let destination = Image::open(&ctx, &id).await?.ok_or_else(absent)?;
        let source = Image::open(&other_end(&ctx, &spec), &text(&spec.image_id)).await?;
        let unusual = |i: &Image| !i.plain || i.features & features::JOURNALING != 0;
        if source.as_ref().is_some_and(unusual) || unusual(&destination) {
            return Err(elsewhere("the image has striping or a journal"));
        }
        Ok(Migration { source, destination, spec })
    }

    async fn set_state(&self, state: MigrationState) -> Result<()> {
        for image in self.source.iter().chain([&self.destination]) {
            set(&image.ctx, &image.header, "migration_set_state", (state, Bytes::new())).await?;
        }
        Ok(())
    }

    fn source(&self) -> Result<&Image> {
        self.source.as_ref().ok_or_else(|| ImageError::Final("Image does not exist".into()))
    }
}

impl Image {
    /// Says that the object maps of this image are not right any more, to clients, too.
    async fn invalidate_maps(&self) -> Result<()> {
        if self.features & features::OBJECT_MAP == 0 {
            return Ok(());
        }
        for snap in self.snaps.iter().chain([&SnapId::NOSNAP]) {
            set(&self.ctx, &self.header, "set_flags", (MAPS_INVALID, MAPS_INVALID, *snap)).await?;
        }
        self.notify().await
    }

    async fn size_at(&self, snap: SnapId) -> Result<u64> {
        Ok(get::<(u8, u64)>(&self.ctx, &self.header, "get_size", snap).await?.1)
    }

    /// What is read of the image at a snapshot: itself, then its ancestors.
    async fn layers(&self, snap: SnapId) -> Result<Vec<Layer>> {
        let mut layers = vec![Layer {
            data: self.data.clone().with_read_snapshot(snap),
            prefix: self.prefix.clone(),
            order: self.order,
            overlap: self.size_at(snap).await?,
        }];
        layers.extend(ancestors(self, snap).await?);
        Ok(layers)
    }
}

/// A source at one moment, and what a write of its data to the destination must know.
struct Moment {
    layers: Vec<Layer>,
    context: SnapContext,
}

impl Moment {
    /// The data of a range that the destination is to have itself; nothing if it sees the range as
    /// it should without.
    async fn content(&self, offset: u64, len: usize, flatten: bool) -> Result<Option<Vec<u8>>> {
        let Some(own) = self.layers.first() else { return Ok(None) };
        let end = (offset + len as u64).min(own.overlap);
        let mut there = flatten && self.layers.len() > 1;
        let mut at = offset;
        while !there && at < end {
            let name = format!("{}.{:016x}", own.prefix, at >> own.order);
            there = or_absent(own.data.stat(&name).await)?.is_some();
            at = ((at >> own.order) + 1) << own.order;
        }
        if !there {
            return Ok(None);
        }
        let mut content = vec![0; len];
        fill(&self.layers, offset, &mut content).await?;
        Ok(Some(content))
    }
}

fn without_zeros_behind(content: &[u8]) -> Bytes {
    let end = content.iter().rposition(|b| *b != 0).map_or(0, |at| at + 1);
    Bytes::copy_from_slice(content.get(..end).unwrap_or_default())
}

/// Brings an object of the destination to what the source had there in each moment.
async fn copy_object(
    moments: &[Moment],
    data: &IoCtx,
    name: &str,
    (offset, len): (u64, usize),
    flatten: bool,
) -> Result<()> {
    let mut before: Option<Vec<u8>> = None;
    for moment in moments {
        let content = moment.content(offset, len, flatten).await?;
        // An object that went is kept, and empty: what is below the image must not show through.
        let content = content.or_else(|| before.as_ref().map(|_| Vec::new()));
        let Some(content) = content.filter(|c| before.as_ref() != Some(c)) else { continue };
        let newer = (moment.context.seq, AssertSnapcSeqState::NEWER).to_bytes(Features::ALL);
        let write = Operation::new()
            .exec("rbd", "assert_snapc_seq", &newer, true)?
            .write_full(without_zeros_behind(&content));
        let ctx = data.clone().with_snap_context(moment.context.clone());
        match ctx.run(name, write).await?.ok() {
            Err(e) if e.errno() != Errno::ERANGE => return Err(e.into()),
            // Or it is there already, or something newer is.
            _ => {}
        }
        before = Some(content);
    }
    Ok(())
}

/// Copies what the destination does not have yet.
pub async fn execute(ctx: &IoCtx, name: &str, progress: Progress<'_>) -> Result<()> {
    let migration = Migration::open(ctx, name).await?;
    let state = migration.spec.state;
    if !matches!(state, MigrationState::PREPARED | MigrationState::EXECUTING) {
        return Err(ImageError::Final("Image is not in ready state".into()));
    }
    migration.set_state(MigrationState::EXECUTING).await?;
    let (source, destination) = (migration.source()?, &migration.destination);
    destination.invalidate_maps().await?;
    // Snapshots that were copied and are still there, the oldest first.
    let copied: BTreeMap<u64, u64> = migration.spec.snap_seqs.clone();
    let there = |(from, to): &(u64, u64)| {
        source.snaps.contains(&SnapId(*from)) && destination.snaps.contains(&SnapId(*to))
    };
    let copied = copied.into_iter().filter(there);
    let (mut moments, mut snaps) = (Vec::new(), Vec::new());
    for (from, to) in
        copied.map(|(f, t)| (SnapId(f), Some(SnapId(t)))).chain([(SnapId::NOSNAP, None)])
    {
        let seq = snaps.first().copied().unwrap_or(SnapId(0));
        let context = SnapContext { seq, snaps: snaps.clone() };
        moments.push(Moment { layers: source.layers(from).await?, context });
        snaps.splice(0..0, to);
    }
    let moments = Rc::new(moments);
    let (overlap, flatten) = (migration.spec.overlap, migration.spec.flatten);
    for_each(overlap.div_ceil(destination.object_size()), progress, |number| {
        let (moments, data) = (moments.clone(), destination.data.clone());
        let (object, offset) = (destination.object(number), number << destination.order);
        let len = destination.object_size().min(overlap - offset) as usize;
        async move { copy_object(&moments, &data, &object, (offset, len), flatten).await }
    })
    .await?;
    migration.set_state(MigrationState::EXECUTED).await?;
    destination.notify().await
}

/// Removes the snapshots of an image that goes, the oldest first: each hands on what changed since
/// the one before it to the next.
async fn remove_snapshots(image: &Image) -> Result<()> {
    for snap in image.snaps.iter().rev() {
        let info: Option<SnapshotInfo> =
            or_absent(get(&image.ctx, &image.header, "snapshot_get", *snap).await)?;
        let Some(info) = info else { continue };
        if info.namespace.kind() != NamespaceKind::USER || info.child_count > 0 {
            return Err(ImageError::Later("a snapshot has clones, or is not a user's".into()));
        }
        if image.features & features::LAYERING != 0 {
            let free = (*snap, ProtectionStatus::UNPROTECTED);
            set(&image.ctx, &image.header, "set_protection_status", free).await?;
        }
        image.remove_snapshot(*snap, false).await?;
    }
    Ok(())
}

/// Removes the source. The destination's header goes on naming it until it is gone, so that a
/// commit that ends early can be repeated.
pub async fn commit(ctx: &IoCtx, name: &str, progress: Progress<'_>) -> Result<()> {
    let migration = Migration::open(ctx, name).await?;
    if migration.spec.state != MigrationState::EXECUTED {
        return Err(ImageError::Final("Image is not migrating or migration not executed".into()));
    }
    let destination = &migration.destination;
    let there = other_end(&destination.ctx, &migration.spec);
    let id = text(&migration.spec.image_id);
    if let Some(source) = &migration.source {
        remove_snapshots(source).await?;
        remove_data(&there, &id, features::MIGRATING, progress).await?;
    }
    or_absent(set(&there, TRASH, "trash_remove", id.as_str()).await)?;
    or_absent(set(&destination.ctx, &destination.header, "migration_remove", ()).await)?;
    destination.notify().await
}

/// Takes back to the source what clients wrote to the destination, removes the destination and
/// gives the source its name again.
pub async fn abort(ctx: &IoCtx, name: &str, progress: Progress<'_>) -> Result<()> {
    let migration = Migration::open(ctx, name).await?;
    let (source, destination) = (migration.source()?, &migration.destination);
    if destination.size != source.size {
        return Err(elsewhere("the image was resized since"));
    }
    let group: GroupSpec =
        get(&destination.ctx, &destination.header, "image_group_get", ()).await?;
    if group.pool_id >= 0 {
        return Err(elsewhere("the image is in a group"));
    }
    for snap in &destination.snaps {
        let info: SnapshotInfo =
            get(&destination.ctx, &destination.header, "snapshot_get", *snap).await?;
        let status: ProtectionStatus =
            get(&destination.ctx, &destination.header, "get_protection_status", *snap).await?;
        if info.child_count > 0 || status != ProtectionStatus::UNPROTECTED {
            return Err(elsewhere("the image has clones, or snapshots that are protected"));
        }
    }
    destination.refuse_if_open().await?;
    // Clients open the destination for reading only from here on.
    migration.set_state(MigrationState::ABORTING).await?;
    revert(source, destination, &|done| progress(done / 2.0)).await?;
    remove_snapshots(destination).await?;
    let (there, id) = (&destination.ctx, destination.id.as_str());
    let name = match get::<Bytes>(there, DIRECTORY, "dir_get_name", id).await {
        Ok(name) => Some(text(&name)),
        Err(e) if e.errno() == Errno::ENOENT => None,
        Err(e) => return Err(e.into()),
    };
    remove_data(there, id, features::MIGRATING, &|done| progress(0.5 + done / 2.0)).await?;
    if let Some(name) = name {
        or_absent(there.remove(&format!("rbd_id.{name}")).await)?;
        or_absent(set(there, DIRECTORY, "dir_remove_image", (name.as_str(), id)).await)?;
    }
    restore(source, &text(&migration.spec.image_name)).await?;
    or_absent(set(&source.ctx, &source.header, "migration_remove", ()).await)?;
    source.notify().await
}

/// Writes to the source what the destination has now, where that is something else.
async fn revert(source: &Image, destination: &Image, progress: Progress<'_>) -> Result<()> {
    source.invalidate_maps().await?;
    let (seq, snaps): (SnapId, Vec<SnapId>) =
        get(&source.ctx, &source.header, "get_snapcontext", ()).await?;
    let data = source.data.clone().with_snap_context(SnapContext { seq, snaps });
    let old = Rc::new(source.layers(SnapId::NOSNAP).await?);
    let (prefix, order) = (Rc::new(destination.prefix.clone()), destination.order);
    for_each(source.size.div_ceil(source.object_size()), progress, |number| {
        let (old, data, prefix) = (old.clone(), data.clone(), prefix.clone());
        let (from, name) = (destination.data.clone(), source.object(number));
        let offset = number << source.order;
        let len = source.object_size().min(source.size - offset) as usize;
        async move {
            let mut before = vec![0; len];
            fill(&old, offset, &mut before).await?;
            let mut after = before.clone();
            let (mut at, mut rest) = (offset, &mut after[..]);
            while !rest.is_empty() {
                let (number, inside) = (at >> order, at % (1 << order));
                let (piece, behind) =
                    rest.split_at_mut(rest.len().min(((1u64 << order) - inside) as usize));
                let object = format!("{prefix}.{number:016x}");
                let read = from.read(&object, inside, piece.len() as u64).await;
                if let Some(found) = or_absent(read)? {
                    let (own, zeros) = piece.split_at_mut(found.len().min(piece.len()));
                    own.copy_from_slice(found.get(..own.len()).unwrap_or_default());
                    zeros.fill(0);
                }
                at += piece.len() as u64;
                rest = behind;
            }
            if after != before {
                data.write_full(&name, without_zeros_behind(&after)).await?;
            }
            Ok(())
        }
    })
    .await
}

/// Takes the source out of the trash.
async fn restore(source: &Image, name: &str) -> Result<()> {
    let (ctx, id) = (&source.ctx, source.id.as_str());
    if in_trash(ctx, id).await?.is_none() {
        return Ok(());
    }
    let state = (id, TrashImageState::RESTORING, TrashImageState::NORMAL);
    set(ctx, TRASH, "trash_state_set", state).await?;
    match image::id_of(ctx, name).await? {
        None => {
            let own = Bytes::copy_from_slice(id.as_bytes()).to_bytes(Features::ALL);
            let make = Operation::new().create(true).exec("rbd", "set_id", &own, true)?;
            ctx.run(format!("rbd_id.{name}"), make).await?.ok()?;
        }
        Some(found) if found == id => {}
        Some(_) => {
            return Err(ImageError::Later(format!("an image '{name}' is there already")));
        }
    }
    match set(ctx, DIRECTORY, "dir_add_image", (name, id)).await {
        Err(e) if e.errno() != Errno::EEXIST => return Err(e.into()),
        _ => {}
    }
    or_absent(set(ctx, TRASH, "trash_remove", id).await)?;
    Ok(())
}
