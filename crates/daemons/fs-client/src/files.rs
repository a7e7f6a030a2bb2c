//! Data of small files, read and written as objects under a capability.

use crate::error::{FsError, Result};
use crate::mount::{Ask, Inner, Mount};
use crate::session::target;
use crate::stat::{Kind, kind_of};
use bytes::{Bytes, BytesMut};
use cephfs::inode::InlineData;
use cephfs::{Ino, InodeStat, caps, names, snap};
use client::{IoCtx, Layout, Operation, wall_clock};
use messages::{FilePath, FsOp, OpenArgs, RequestArgs, SetAttr};
use std::time::Duration;
use types::{Errno, PoolId, SnapContext, SnapId};

/// A file of more bytes is neither read nor written.
pub const FILE_BYTES_MAX: u64 = 4 << 20;
/// How long the server may take to let us at the data: others have to give it back first.
const ACCESS_PATIENCE: Duration = Duration::from_secs(60);
/// How long an OSD may take.
const OSD_PATIENCE: Duration = Duration::from_secs(30);
/// How often an access begins anew when the server was replaced under it.
const ATTEMPTS: u32 = 3;

/// A file with data that may be read or written. Dropping it gives the capability back.
struct Access<'a> {
    inner: &'a Inner,
    ino: Ino,
    stat: InodeStat,
    snapc: SnapContext,
}

impl Drop for Access<'_> {
    fn drop(&mut self) {
        self.inner.unpin(self.ino);
    }
}

/// The snapshots that a write in the first realm of a trace keeps data for (Ceph:
/// `SnapRealm::build_snap_context`, `client/Client.cc`).
fn snap_context(realms: &[snap::SnapRealmInfo]) -> SnapContext {
    let (mut seq, mut snaps, mut since) = (SnapId(0), Vec::new(), SnapId(0));
    for realm in realms {
        seq = seq.max(realm.seq);
        let seen = realm.snaps.iter().chain(&realm.prior_parent_snaps);
        snaps.extend(seen.copied().filter(|s| *s >= since));
        since = since.max(realm.parent_since);
    }
    snaps.sort_unstable_by(|a, b| b.cmp(a));
    snaps.dedup();
    SnapContext { seq, snaps }
}

impl Mount {
    /// Reads a file. One of more than [`FILE_BYTES_MAX`] bytes is refused.
    pub async fn read_file(&self, path: &FilePath) -> Result<Bytes> {
        self.0
            .again(async || {
                let args = OpenArgs { pool: -1, mask: caps::FILE_SHARED, ..OpenArgs::default() };
                let file = self.0.open(FsOp::OPEN, path, args, caps::FILE_RD).await?;
                // Others that write are asked for the size.
                let mask = RequestArgs::Getattr { mask: caps::FILE_SHARED };
                let this = FilePath { ino: file.ino, path: Bytes::new() };
                let answered = self.0.ask(Ask::new(FsOp::GETATTR, &this, mask)).await?;
                let size = target(&answered.reply).map_or(file.stat.size, |s| s.size);
                if size > FILE_BYTES_MAX {
                    return Err(FsError::TooLarge { found: size, most: FILE_BYTES_MAX });
                }
                file.read(size).await
            })
            .await
    }

    /// Makes a file of this content, or replaces that of one that is there: through a file of the
    /// same name with `.tmp` behind it, so that either the old or the new content is seen. When it
    /// returns, the content is durable.
    pub async fn replace_file(&self, path: &FilePath, data: Bytes, mode: u32) -> Result<()> {
        let temporary = FilePath { ino: path.ino, path: [&path.path[..], b".tmp"].concat().into() };
        self.write_file(&temporary, data, mode).await?;
        self.rename(&temporary, path).await
    }

    /// Makes an empty file, unless there is one.
    pub async fn create_file(&self, path: &FilePath, mode: u32) -> Result<()> {
        self.0
            .again(async || {
                let flags = OpenArgs::CREAT;
                let args = OpenArgs { flags, mode, pool: -1, ..OpenArgs::default() };
                self.0.open(FsOp::CREATE, path, args, 0).await.map(drop)
            })
            .await
    }

    async fn write_file(&self, path: &FilePath, data: Bytes, mode: u32) -> Result<()> {
        let size = data.len() as u64;
        if size > FILE_BYTES_MAX {
            return Err(FsError::TooLarge { found: size, most: FILE_BYTES_MAX });
        }
        self.0
            .again(async || {
                let flags = OpenArgs::CREAT | OpenArgs::TRUNC | 1;
                let args = OpenArgs { flags, mode, pool: -1, ..OpenArgs::default() };
                let file = self.0.open(FsOp::CREATE, path, args, caps::FILE_WR).await?;
                file.write(&data).await?;
                // The size goes to the server with a request, and the capability with it.
                let set = SetAttr {
                    size,
                    mtime: wall_clock(),
                    mask: SetAttr::SIZE | SetAttr::MTIME,
                    ..SetAttr::default()
                };
                let mut ask = Ask::new(FsOp::SETATTR, path, RequestArgs::Setattr(set));
                ask.gives_back = Some(file.ino);
                self.0.ask(ask).await.map(drop)
            })
            .await
    }
}

impl Inner {
    /// Does something that may be done again, again if the server was replaced under it.
    async fn again<T>(&self, mut f: impl AsyncFnMut() -> Result<T>) -> Result<T> {
        let mut attempt = 1;
        loop {
            match f().await {
                Err(FsError::NoAccess | FsError::Lost(_)) if attempt < ATTEMPTS => attempt += 1,
                other => return other,
            }
        }
    }

    /// Opens a file, and waits until its data may be used as `needs` says.
    async fn open(
        &self,
        op: FsOp,
        path: &FilePath,
        args: OpenArgs,
        needs: u32,
    ) -> Result<Access<'_>> {
        let mut ask = Ask::new(op, path, RequestArgs::Open(args));
        ask.keeps = true;
        let answered = self.ask(ask).await?;
        let (Some(ino), Some(stat)) = (answered.kept, target(&answered.reply)) else {
            // A server that answers again what it has done says nothing of the file.
            return Err(FsError::NoAccess);
        };
        let realms =
            snap::decode_trace(&answered.reply.snap_trace).map_err(client::ClientError::from)?;
        let mut file =
            Access { inner: self, ino, stat: stat.clone(), snapc: snap_context(&realms) };
        if kind_of(stat.mode) != Kind::File {
            let errno = if kind_of(stat.mode) == Kind::Dir { Errno::EISDIR } else { Errno::EINVAL };
            return Err(FsError::Errno(errno));
        }
        let allowed = async {
            loop {
                let changed = self.changed.notified();
                {
                    let mut st = self.state.borrow_mut();
                    // Gone with the server.
                    let cap = st.caps.get(ino).ok_or(FsError::NoAccess)?;
                    if cap.issued & needs == needs {
                        file.stat = (*cap.stat).clone();
                        st.caps.busy(ino, needs);
                        return Ok(st.barrier);
                    }
                    if st.closed {
                        return Err(FsError::Closed);
                    }
                }
                changed.await;
            }
        };
        let barrier = tokio::time::timeout(ACCESS_PATIENCE, allowed)
            .await
            .unwrap_or(Err(FsError::NoAccess))?;
        if needs != 0 {
            self.rados.objecter().wait_epoch(barrier).await?;
        }
        Ok(file)
    }
}

impl Access<'_> {
    fn objects(&self) -> Result<(IoCtx, Layout)> {
        let l = &self.stat.layout;
        let layout = Layout::new(l.stripe_unit, l.stripe_count, l.object_size)?;
        let io = self.inner.rados.ioctx_of(PoolId(l.pool));
        let io = io.with_namespace(&l.namespace).with_snap_context(self.snapc.clone());
        Ok((io.with_timeout(OSD_PATIENCE), layout))
    }

    async fn read(&self, size: u64) -> Result<Bytes> {
        let s = &self.stat;
        if s.inline_version != InlineData::NONE && s.inline_version != 0 {
            return Ok(s.inline_data.clone());
        }
        let (io, layout) = self.objects()?;
        let mut whole = BytesMut::zeroed(size as usize);
        for extent in layout.map(0, size) {
            let read = Operation::new().read(extent.offset, extent.length);
            let read = read.after_truncation(s.truncate_seq, self.cut(&layout, extent.object));
            let found = match io.run(names::data(self.ino, extent.object), read).await {
                Ok(outcome) => outcome.data(0),
                Err(e) => Err(e),
            };
            let data = match found {
                Ok(data) => data,
                Err(e) if e.errno() == Errno::ENOENT => Bytes::new(),
                Err(e) => return Err(e.into()),
            };
            let mut data = &data[..];
            for (at, length) in extent.pieces {
                let (piece, rest) = data.split_at(data.len().min(length as usize));
                data = rest;
                whole[at as usize..][..piece.len()].copy_from_slice(piece);
            }
        }
        Ok(whole.freeze())
    }

    /// Bytes that the latest truncation left of an object. Before the first one there is no limit.
    fn cut(&self, layout: &Layout, object: u64) -> u64 {
        match self.stat.truncate_seq {
            0 | 1 if self.stat.truncate_size == u64::MAX => u64::MAX,
            _ => layout.object_length(object, self.stat.truncate_size),
        }
    }

    async fn write(&self, data: &Bytes) -> Result<()> {
        if self.stat.inline_version != InlineData::NONE && self.stat.inline_version != 0 {
            return Err(FsError::Errno(Errno::EOPNOTSUPP));
        }
        let (io, layout) = self.objects()?;
        for extent in layout.map(0, data.len() as u64) {
            let mut part = BytesMut::with_capacity(extent.length as usize);
            for (at, length) in &extent.pieces {
                part.extend_from_slice(&data[*at as usize..][..*length as usize]);
            }
            let write = Operation::new().write(extent.offset, part.freeze());
            let cut = self.cut(&layout, extent.object);
            let write = write.after_truncation(self.stat.truncate_seq, cut);
            io.run(names::data(self.ino, extent.object), write).await?.ok()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_keeps_data_for_the_snapshots_above() {
        let realm = |snaps: &[u64], since, seq| snap::SnapRealmInfo {
            snaps: snaps.iter().copied().map(SnapId).collect(),
            parent_since: SnapId(since),
            seq: SnapId(seq),
            ..snap::SnapRealmInfo::default()
        };
        let snapc = snap_context(&[realm(&[9, 7], 5, 9), realm(&[8, 4], 0, 8)]);
        assert_eq!(snapc.seq, SnapId(9));
        assert_eq!(snapc.snaps, [9, 8, 7].map(SnapId), "4 was before it was below that realm");
        assert!(snapc.is_valid());
        assert_eq!(snap_context(&[]), SnapContext::default());
    }
}
