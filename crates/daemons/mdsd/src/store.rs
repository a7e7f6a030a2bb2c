//! Objects of a file system: directories, inodes, backtraces, tables and data of files in Ceph's
//! form.

use crate::at_rest::{self, Refused};
use bytes::Bytes;
use cephfs::inode::BaseInode;
use cephfs::{Backpointer, Backtrace, Fnode, InoTable, SessionInfo, SessionMapHeader};
use cephfs::{dentry_key, names, parse_dentry_key};
use client::{ClientError, IoCtx, Operation, Rados, Striper};
use denc::{Decode, Encode, Features};
use mds::peer::OwnerTables;
use mds::{Dentry, DirFrag, DirHead, Inode, Layout, Name, Split};
use std::collections::{BTreeMap, BTreeSet};
use types::rados::OpCode;
use types::{Errno, PoolId, SnapId, Utime};

/// Objects that are looked at side by side.
const WINDOW: u64 = 16;
/// Keys more than asked for, so that a page has one entry that counts.
const SPARE_KEYS: u64 = 64;

/// Why a read or write did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The cluster's answer.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// What is there is not served.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// A stock server split the directory.
    #[error("the directory {0} is split")]
    Split(cephfs::Ino),
    /// What is there makes no sense.
    #[error("{what} is damaged: {error}")]
    Damaged {
        /// What.
        what: String,
        /// How.
        error: denc::DecodeError,
    },
}

impl StoreError {
    /// The errno that a client is answered.
    pub fn errno(&self) -> i32 {
        match self {
            StoreError::Client(e) => e.errno().0,
            StoreError::Refused(Refused::Damaged(_)) | StoreError::Damaged { .. } => Errno::EIO.0,
            StoreError::Split(_) => Errno::EIO.0,
            StoreError::Refused(_) => Errno::EOPNOTSUPP.0,
        }
    }
}

/// The result of a read or write.
pub type Result<T> = std::result::Result<T, StoreError>;

pub(crate) fn absent(e: &ClientError) -> bool {
    e.errno() == Errno::ENOENT
}

pub(crate) fn damaged(what: impl Into<String>) -> impl FnOnce(denc::DecodeError) -> StoreError {
    let what = what.into();
    move |error| StoreError::Damaged { what, error }
}

/// The objects of one file system.
#[derive(Clone)]
pub struct Store {
    rados: Rados,
    /// The metadata pool.
    pub meta: IoCtx,
    pub rank: u32,
}

fn wire(ino: mds::Ino) -> cephfs::Ino {
    cephfs::Ino(ino.0)
}

fn dir_object(dir: DirFrag) -> Bytes {
    names::dirfrag(wire(dir.ino), cephfs::Frag(dir.frag.0))
}

fn owners_object(rank: u32) -> String {
    format!("mds{rank}_siphon_owners")
}

fn row(name: &[u8]) -> Bytes {
    dentry_key(name, SnapId::NOSNAP)
}

/// Names that may be missing from a listing of keys up to the key of `last`, though they come
/// before it: a key is the name and `_head`, so the key of a name may come behind those of names
/// that it begins.
fn left_out(after: Option<&[u8]>, last: &[u8]) -> Vec<Name> {
    let key = row(last);
    (1..last.len())
        .map(|at| Name::copy_from_slice(&last[..at]))
        .filter(|name| row(name) > key && after.is_none_or(|a| &name[..] > a))
        .collect()
}

/// A page of a directory: entries in the order of names, and whether it ends there.
type Page = (Vec<(Name, Dentry)>, bool);

/// Keys that are copied in one operation.
const COPIED_KEYS: u64 = 512;

impl Store {
    /// The objects of the rank.
    pub fn new(rados: Rados, pool: PoolId, rank: u32) -> Self {
        Store { meta: rados.ioctx_of(pool), rados, rank }
    }

    /// The pool and namespace of a file's data.
    fn data(&self, layout: &Layout) -> IoCtx {
        self.rados.ioctx_of(PoolId(layout.pool)).with_namespace(&layout.namespace)
    }

    /// Entries behind `after`, in the order of names.
    pub async fn read_page(&self, dir: DirFrag, after: Option<&Name>, max: u32) -> Result<Page> {
        let object = dir_object(dir);
        let mut found: BTreeMap<Name, Bytes> = BTreeMap::new();
        // All keys of later names are behind the bare name.
        let mut from = after.cloned().unwrap_or_default();
        loop {
            let want = u64::from(max) + SPARE_KEYS;
            let op = Operation::new().omap_header().omap_values(&from, want, b"");
            let Some(read) = self.read_whole(dir, &object, op).await? else {
                return Ok((Vec::new(), true));
            };
            let page = read.omap(1)?;
            let Some(last_key) = page.entries.keys().next_back().cloned() else {
                return entries(found, max, true);
            };
            let last = parse_dentry_key(&last_key).map(|(name, _)| name);
            for (key, value) in page.entries {
                let Some((name, SnapId::NOSNAP)) = parse_dentry_key(&key) else { continue };
                if after.is_none_or(|a| name > *a) {
                    found.insert(name, value);
                }
            }
            if !page.more {
                return entries(found, max, true);
            }
            from = last_key;
            let Some(last) = last.filter(|l| after.is_none_or(|a| l > a)) else { continue };
            let missing: BTreeSet<Bytes> =
                left_out(after.map(|a| &a[..]), &last).iter().map(|name| row(name)).collect();
            if !missing.is_empty() {
                let op = Operation::new().omap_values_by_keys(&missing);
                for (key, value) in self.meta.run(&object, op).await?.omap_values(0)? {
                    if let Some((name, _)) = parse_dentry_key(&key) {
                        found.insert(name, value);
                    }
                }
            }
            // Behind `last`, names may be missing.
            found.retain(|name, _| *name <= last);
            if !found.is_empty() {
                return entries(found, max, false);
            }
        }
    }

    /// Reads of a directory's object, first the header: a split directory has none there. Nothing
    /// if there is no object.
    async fn read_whole(
        &self,
        dir: DirFrag,
        object: &Bytes,
        op: Operation,
    ) -> Result<Option<client::OpOutcome>> {
        let read = match self.meta.run(object, op).await {
            Ok(read) => read,
            Err(e) if absent(&e) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        match read.data(0) {
            Ok(header) if header.is_empty() => Err(StoreError::Split(wire(dir.ino))),
            Ok(_) => Ok(Some(read)),
            Err(e) if absent(&e) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// One entry.
    pub async fn read_entry(&self, dir: DirFrag, name: &Name) -> Result<Option<Dentry>> {
        let key = row(name);
        let op = Operation::new().omap_header().omap_values_by_keys(&[key.clone()].into());
        let Some(read) = self.read_whole(dir, &dir_object(dir), op).await? else {
            return Ok(None);
        };
        let values = read.omap_values(1)?;
        Ok(values.get(&key).map(at_rest::dentry_in).transpose()?)
    }

    /// What a directory says of itself; nothing if it has no object.
    pub async fn read_head(&self, dir: DirFrag) -> Result<Option<Fnode>> {
        let op = Operation::new().omap_header();
        match self.meta.run(dir_object(dir), op).await.and_then(|o| o.data(0)) {
            Ok(bytes) => {
                let what = || format!("the directory {}", wire(dir.ino));
                Ok(Some(Fnode::from_bytes(&bytes).map_err(damaged(what()))?))
            }
            Err(e) if absent(&e) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// An inode that no directory holds.
    pub async fn read_base(&self, ino: mds::Ino) -> Result<Inode> {
        let object = names::base_inode(wire(ino));
        let bytes = self.meta.read(&object, 0, 0).await?;
        let base = BaseInode::from_bytes(&bytes)
            .map_err(damaged(String::from_utf8_lossy(&object).into_owned()))?;
        Ok(at_rest::inode_in(base.0)?)
    }

    /// Whether there is an inode that no directory holds.
    pub async fn has_base(&self, ino: mds::Ino) -> Result<bool> {
        match self.meta.stat(names::base_inode(wire(ino))).await {
            Ok(_) => Ok(true),
            Err(e) if absent(&e) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    /// Where an inode lives, as its first object says: in the metadata pool, or one of the pools of
    /// data.
    pub async fn read_backtrace(
        &self,
        ino: mds::Ino,
        data: &[i64],
    ) -> Result<Option<(mds::Ino, Name)>> {
        let pools = std::iter::once(self.meta.clone())
            .chain(data.iter().map(|p| self.rados.ioctx_of(PoolId(*p))));
        for io in pools {
            let bytes =
                match io.get_xattr(names::data(wire(ino), 0), cephfs::backtrace::XATTR).await {
                    Ok(bytes) => bytes,
                    Err(e) if absent(&e) || e.errno() == Errno::ENODATA => continue,
                    Err(e) => return Err(e.into()),
                };
            let trace = Backtrace::from_bytes(&bytes)
                .map_err(damaged(format!("the backtrace of {}", wire(ino))))?;
            if let Some(step) = trace.ancestors.into_iter().next() {
                return Ok(Some((mds::Ino(step.dirino.0), step.dname)));
            }
        }
        Ok(None)
    }

    /// Copies all entries of a split directory to the object of one that is not. Its header comes
    /// last: without one the directory counts as split.
    pub async fn join(&self, inode: &Inode) -> Result<()> {
        let whole = dir_object(DirFrag::whole(inode.ino));
        let anew = Operation::new().create(false).omap_clear();
        self.meta.run(&whole, anew.full_try()).await?.ok()?;
        let mut version = inode.version;
        for frag in at_rest::fragments(inode) {
            let dir = DirFrag { ino: inode.ino, frag: mds::Frag(frag.0) };
            let Some(head) = self.read_head(dir).await? else { continue };
            version = version.max(head.version);
            let (object, mut from) = (dir_object(dir), Bytes::new());
            loop {
                let page = self.meta.omap(&object, &from, COPIED_KEYS).await?;
                let Some(last) = page.entries.keys().next_back().cloned() else { break };
                let copy = Operation::new().omap_set(&page.entries);
                self.meta.run(&whole, copy.full_try()).await?.ok()?;
                if !page.more {
                    break;
                }
                from = last;
            }
        }
        let fnode = at_rest::head_out(&DirHead::of(inode), version);
        let head = Operation::new().omap_set_header(fnode.to_bytes(Features::ALL));
        self.meta.run(&whole, head.full_try()).await?.ok()?;
        Ok(())
    }

    /// Removes the objects that a split directory had, of which all was copied.
    async fn remove_fragments(&self, inode: &Inode) -> Result<()> {
        for frag in at_rest::fragments(inode).into_iter().filter(|f| *f != cephfs::Frag::ROOT) {
            gone(self.meta.remove(names::dirfrag(wire(inode.ino), frag)).await)?;
        }
        Ok(())
    }

    /// Removes what was copied, before it is forgotten that it is there.
    async fn forget_fragments<'a>(&self, set: impl Iterator<Item = &'a Dentry>) -> Result<()> {
        for dentry in set {
            if let Dentry::Primary(inode) = dentry
                && inode.split == Split::Joined
            {
                self.remove_fragments(inode).await?;
            }
        }
        Ok(())
    }

    /// Changes a directory's object in one operation.
    pub async fn write_dir(
        &self,
        dir: DirFrag,
        set: &[(Name, Dentry)],
        remove: &[Name],
        head: &DirHead,
    ) -> Result<()> {
        self.forget_fragments(set.iter().map(|(_, d)| d)).await?;
        let newest = set.iter().map(|(_, d)| match d {
            Dentry::Primary(inode) => inode.version,
            Dentry::Remote { .. } => 0,
        });
        let fnode = at_rest::head_out(head, newest.max().unwrap_or(0));
        let rows = set.iter().map(|(name, d)| (row(name), at_rest::dentry_out(d))).collect();
        let gone: BTreeSet<Bytes> = remove.iter().map(|name| row(name)).collect();
        let mut op = Operation::new()
            .create(false)
            .omap_set_header(fnode.to_bytes(Features::ALL))
            .omap_set(&rows);
        if !gone.is_empty() {
            op = op.omap_remove(&gone);
        }
        self.meta.run(dir_object(dir), op.full_try()).await?.ok()?;
        Ok(())
    }

    /// Writes an inode that no directory holds.
    pub async fn write_base(&self, inode: &Inode) -> Result<()> {
        if inode.split == Split::Joined {
            self.remove_fragments(inode).await?;
        }
        let bytes = BaseInode(at_rest::inode_out(inode)).to_bytes(Features::ALL);
        let object = names::base_inode(wire(inode.ino));
        self.meta.run(object, Operation::new().write_full(bytes).full_try()).await?.ok()?;
        // A stock server's scrub looks for where it is: nowhere.
        self.write_backtrace(inode.ino, true, None, &[]).await
    }

    /// Writes where an inode lives. A directory without an object gets an empty one.
    pub async fn write_backtrace(
        &self,
        ino: mds::Ino,
        is_dir: bool,
        layout: Option<&Layout>,
        ancestors: &[(mds::Ino, Name, u64)],
    ) -> Result<()> {
        let pool = layout.filter(|_| !is_dir).map_or(self.meta.pool().0, |l| l.pool);
        let trace = Backtrace {
            ino: wire(ino),
            ancestors: ancestors
                .iter()
                .map(|(dir, name, version)| Backpointer {
                    dirino: wire(*dir),
                    dname: name.clone(),
                    version: *version,
                })
                .collect(),
            pool,
            old_pools: Vec::new(),
        };
        let bytes = trace.to_bytes(Features::ALL);
        let object = names::data(wire(ino), 0);
        let set = |op: Operation| op.set_xattr(cephfs::backtrace::XATTR, &bytes).full_try();
        if !is_dir {
            let io = layout.map_or_else(|| self.meta.clone(), |l| self.data(l));
            io.run(object, set(Operation::new().create(false))).await?.ok()?;
            return Ok(());
        }
        let empty: Fnode = at_rest::head_out(&DirHead::default(), 1);
        let header = empty.to_bytes(Features::ALL);
        let made = set(Operation::new().create(true).omap_set_header(header));
        match self.meta.run(&object, made).await?.ok() {
            Ok(_) => return Ok(()),
            Err(e) if e.errno() == Errno::EEXIST => {}
            Err(e) => return Err(e.into()),
        }
        self.meta.run(object, set(Operation::new())).await?.ok()?;
        Ok(())
    }

    /// Removes what an inode leaves.
    pub async fn purge(&self, inode: &Inode) -> Result<()> {
        let first = names::data(wire(inode.ino), 0);
        if inode.is_dir() {
            self.remove_fragments(inode).await?;
            return gone(self.meta.remove(first).await);
        }
        let Some(layout) = &inode.layout else { return Ok(()) };
        if inode.is_file() {
            let reach = inode.ranges.values().copied().max().unwrap_or(0);
            let size = inode.size.max(inode.max_size_ever).max(inode.truncate_from).max(reach);
            let how = striping(layout)?;
            for number in (1..how.objects(size)).step_by(WINDOW as usize) {
                let io = self.data(layout);
                let several = (number..how.objects(size).min(number + WINDOW)).map(|n| {
                    let (io, name) = (io.clone(), names::data(wire(inode.ino), n));
                    async move { gone(io.remove(name).await) }
                });
                all(several).await?;
            }
        }
        // The backtrace goes last: until then the rest can be found again.
        gone(self.data(layout).remove(first).await)
    }

    /// Trims objects of a file to the size that it was cut to.
    pub async fn truncate(&self, inode: &Inode) -> Result<()> {
        let Some(layout) = &inode.layout else { return Ok(()) };
        let how = striping(layout)?;
        let to = inode.truncate_size.min(inode.truncate_from);
        let length = inode.truncate_from - to;
        // Whole objects behind it go one by one, too: the number of the truncation must reach all.
        let first = how.locate(to).0 / u64::from(how.stripe_count());
        let first = first * u64::from(how.stripe_count());
        let last = how.objects(to.saturating_add(length));
        let io = self.data(layout);
        for start in (first..last).step_by(WINDOW as usize) {
            let several = (start..last.min(start + WINDOW)).map(|number| {
                let (io, name) = (io.clone(), names::data(wire(inode.ino), number));
                let keep = how.object_length(number, to);
                let args = messages::OpArgs::Extent {
                    offset: 0,
                    length: 0,
                    truncate_size: keep,
                    truncate_seq: inode.truncate_seq,
                };
                let op = messages::Op::new(OpCode::TRIMTRUNC, args);
                async move {
                    let done = io.run(name, Operation::new().op(op).full_try()).await;
                    gone(done.and_then(|o| o.ok()).map(|_| ()))
                }
            });
            all(several).await?;
        }
        Ok(())
    }

    /// How far a file's data goes, up to `max` bytes, and when it was changed last. Looked for from
    /// behind: there may be holes.
    pub async fn probe(&self, inode: &Inode, max: u64) -> Result<(u64, Option<Utime>)> {
        let Some(layout) = &inode.layout else { return Ok((inode.size, None)) };
        let how = striping(layout)?;
        let io = self.data(layout);
        let mut end = how.objects(max);
        let known = how.objects(inode.size);
        let mut mtime: Option<Utime> = None;
        while end > 0 {
            let start = end.saturating_sub(WINDOW);
            let several = (start..end).map(|number| {
                let (io, name) = (io.clone(), names::data(wire(inode.ino), number));
                async move {
                    match io.stat(name).await {
                        Ok(stat) => Ok(Some((number, stat))),
                        Err(e) if absent(&e) => Ok(None),
                        Err(e) => Err(e.into()),
                    }
                }
            });
            let found: Vec<_> = all(several).await?.into_iter().flatten().collect();
            for (_, stat) in &found {
                mtime = Some(mtime.map_or(stat.mtime, |m| m.max(stat.mtime)));
            }
            let ends =
                found.iter().filter(|(_, s)| s.size > 0).map(|(n, s)| how.end_of(*n, s.size));
            if let Some(size) = ends.max() {
                return Ok((size.min(max), mtime));
            }
            if start < known {
                break;
            }
            end = start;
        }
        Ok((inode.size.min(max), mtime))
    }

    /// The table of free inode numbers; nothing in a new file system.
    pub async fn read_inotable(&self) -> Result<Option<InoTable>> {
        let object = names::inotable(self.rank);
        match self.meta.read(&object, 0, 0).await {
            Ok(bytes) => Ok(Some(
                InoTable::from_bytes(&bytes).map_err(damaged("the table of inode numbers"))?,
            )),
            Err(e) if absent(&e) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Writes the table of free inode numbers.
    pub async fn write_inotable(&self, table: &InoTable) -> Result<()> {
        let bytes = table.to_bytes(Features::ALL);
        Ok(self.meta.write_full(names::inotable(self.rank), bytes).await?)
    }

    /// Removes the table of free inode numbers.
    pub async fn remove_inotable(&self) -> Result<()> {
        self.remove(names::inotable(self.rank)).await
    }

    /// What the rank shares with others, as of the last flush.
    pub async fn read_owners(&self) -> Result<Option<OwnerTables>> {
        let Some(bytes) = self.get(owners_object(self.rank)).await? else { return Ok(None) };
        let what = "the table of what ranks share";
        Ok(Some(OwnerTables::from_bytes(&bytes).map_err(damaged(what))?))
    }

    /// Writes what the rank shares with others.
    pub async fn write_owners(&self, owners: &OwnerTables) -> Result<()> {
        self.put(owners_object(self.rank), owners.to_bytes(Features::ALL)).await
    }

    /// Removes what an earlier file system shared.
    pub async fn remove_owners(&self) -> Result<()> {
        self.remove(owners_object(self.rank)).await
    }

    /// Sessions at rest.
    pub async fn read_sessions(&self) -> Result<Vec<SessionInfo>> {
        let object = names::sessionmap(self.rank);
        let (mut found, mut from) = (Vec::new(), Bytes::new());
        loop {
            let page = match self.meta.omap(&object, &from, 1024).await {
                Ok(page) => page,
                Err(e) if absent(&e) => return Ok(found),
                Err(e) => return Err(e.into()),
            };
            let Some(last) = page.entries.keys().next_back().cloned() else { return Ok(found) };
            for (key, value) in page.entries {
                let what = format!("the session {}", String::from_utf8_lossy(&key));
                found.push(SessionInfo::from_bytes(&value).map_err(damaged(what))?);
            }
            if !page.more {
                return Ok(found);
            }
            from = last;
        }
    }

    /// Changes rows of sessions.
    pub async fn write_sessions(
        &self,
        version: u64,
        set: &[SessionInfo],
        remove: &BTreeSet<Bytes>,
    ) -> Result<()> {
        let header = SessionMapHeader { version }.to_bytes(Features::ALL);
        let rows = set.iter().map(|s| (s.key(), s.to_bytes(Features::ALL))).collect();
        let mut op = Operation::new().create(false).omap_set_header(header).omap_set(&rows);
        if !remove.is_empty() {
            op = op.omap_remove(remove);
        }
        self.meta.run(names::sessionmap(self.rank), op.full_try()).await?.ok()?;
        Ok(())
    }

    /// Replaces the data of an object of the metadata pool.
    pub async fn put(&self, object: impl AsRef<[u8]>, bytes: Bytes) -> Result<()> {
        let op = Operation::new().write_full(bytes).full_try();
        self.meta.run(object, op).await?.ok()?;
        Ok(())
    }

    /// The data of an object of the metadata pool, if it is there.
    pub async fn get(&self, object: impl AsRef<[u8]>) -> Result<Option<Bytes>> {
        match self.meta.read(object, 0, 0).await {
            Ok(bytes) => Ok(Some(bytes)),
            Err(e) if absent(&e) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Removes an object of the metadata pool.
    pub async fn remove(&self, object: impl AsRef<[u8]>) -> Result<()> {
        gone(self.meta.remove(object).await)
    }

    /// Reads the journal of a stock server: its entries, from the place on where replay begins.
    pub async fn read_journal(&self, ino: cephfs::Ino) -> Result<Option<(u64, Bytes)>> {
        let Some(bytes) = self.get(names::data(ino, 0)).await? else { return Ok(None) };
        let header = cephfs::journal::JournalHeader::from_bytes(&bytes)
            .map_err(damaged("the header of the journal"))?;
        let how = striping(&at_rest::layout_in(&header.layout).unwrap_or_default())?;
        let stripes = Striper::inode(self.meta.clone(), how, ino.0);
        let length = header.write_pos.saturating_sub(header.expire_pos).min(64 << 20);
        // More may have been written than the header says.
        let bytes = stripes.read(header.expire_pos, length + (1 << 20)).await?;
        Ok(Some((header.expire_pos, bytes)))
    }
}

fn entries(found: BTreeMap<Name, Bytes>, max: u32, whole: bool) -> Result<Page> {
    let end = whole && found.len() <= max as usize;
    let page = found
        .into_iter()
        .take(max as usize)
        .map(|(name, value)| Ok((name, at_rest::dentry_in(&value)?)))
        .collect::<Result<_>>()?;
    Ok((page, end))
}

fn striping(layout: &Layout) -> Result<client::Layout> {
    Ok(client::Layout::new(layout.stripe_unit, layout.stripe_count, layout.object_size)?)
}

/// What is not there needs no removal.
fn gone(result: client::Result<()>) -> Result<()> {
    match result {
        Err(e) if !absent(&e) => Err(e.into()),
        _ => Ok(()),
    }
}

/// Waits for several at the same time.
async fn all<T: 'static>(
    several: impl Iterator<Item = impl Future<Output = Result<T>> + 'static>,
) -> Result<Vec<T>> {
    let tasks: Vec<_> = several.map(tokio::task::spawn_local).collect();
    let mut results = Vec::with_capacity(tasks.len());
    for task in tasks {
        match task.await {
            Ok(result) => results.push(result?),
            Err(e) if e.is_panic() => std::panic::resume_unwind(e.into_panic()),
            Err(_) => return Err(ClientError::Shutdown.into()),
        }
    }
    Ok(results)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_a_page_of_keys_leaves_out() {
        // "a_head" comes behind "a-b_head".
        assert_eq!(left_out(None, b"a-b"), ["a"]);
        assert_eq!(left_out(Some(b"a"), b"a-b"), Vec::<Name>::new());
        assert_eq!(left_out(None, b"a.b.c"), ["a", "a.b"]);
        assert!(left_out(None, b"abc").is_empty());
    }

    #[test]
    fn a_listing_by_keys_has_all_names() {
        let names: Vec<&[u8]> =
            vec![b"a", b"a!", b"a-b", b"a-b-c", b"a_", b"a_head", b"aa", b"b", b"-", b"0", b"0-"];
        let keys: BTreeSet<Bytes> = names.iter().map(|n| row(n)).collect();
        for cut in 1..keys.len() {
            let last = keys.iter().nth(cut - 1).unwrap();
            let (last, _) = parse_dentry_key(last).unwrap();
            let mut seen: BTreeSet<Bytes> = keys
                .iter()
                .take(cut)
                .map(|k| parse_dentry_key(k).unwrap().0)
                .filter(|n| *n <= last)
                .collect();
            seen.extend(left_out(None, &last).into_iter().filter(|n| names.contains(&&n[..])));
            let want: BTreeSet<Bytes> = names
                .iter()
                .filter(|n| **n <= &last[..])
                .map(|n| Bytes::copy_from_slice(n))
                .collect();
            assert_eq!(seen, want, "up to {last:?}");
        }
    }
}
