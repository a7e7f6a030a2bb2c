//! Attributes: read and changed; files opened and truncated; extended attributes and layouts.

use super::Mds;
use super::operation::{Answer, Exec, fail};
use super::weight;
use crate::caps::{self, Group};
use crate::request::{LayoutHints, Request, SetAttr, XattrMode};
use crate::types::{ClientId, Ino, Layout, Name, mode};
use bytes::Bytes;
use types::{Errno, Utime};

impl Mds {
    /// An inode's attributes.
    pub(crate) fn getattr(
        &mut self,
        client: ClientId,
        request: &Request,
        mask: u32,
    ) -> Exec<Answer> {
        let ino = self.resolve(&request.path)?;
        self.permit(ino)?;
        self.read_mask(client, ino, mask)?;
        Ok(Answer { target: Some(ino), ..Answer::default() })
    }

    /// Changes attributes.
    pub(crate) fn setattr(
        &mut self,
        client: ClientId,
        request: &Request,
        set: &SetAttr,
    ) -> Exec<Answer> {
        let ino = self.resolve(&request.path)?;
        self.chain(ino)?;
        self.permit(ino)?;
        let inode = self.get(ino)?;
        if let Some(size) = set.size {
            if inode.is_dir() {
                return fail(Errno::EISDIR);
            }
            if !inode.is_file() {
                return fail(Errno::EINVAL);
            }
            if size > self.conf.max_file_size {
                return fail(Errno::EFBIG);
            }
        }
        let owner = set.uid.is_some() || set.gid.is_some();
        if set.mode.is_some() || owner || set.kill_sguid || set.btime.is_some() {
            self.writes(client, ino, Group::Auth);
        }
        if set.size.is_some() || set.mtime.is_some() || set.atime.is_some() {
            self.writes(client, ino, Group::File);
        }
        self.settled()?;
        if let Some(size) = set.size {
            let old = self.get(ino)?.size;
            let parent = self.nodes.get(&ino).and_then(|n| n.parent.as_ref()).map(|(d, _)| *d);
            if let Some(dir) = parent
                && size > old
            {
                self.check_quota(dir, 0, i64::try_from(size - old).unwrap_or(i64::MAX / 2))?;
            }
            self.resize(ino, size, request.stamp);
        }
        let Some(node) = self.nodes.get_mut(&ino) else { return fail(Errno::EIO) };
        let inode = &mut node.inode;
        if let Some(m) = set.mode {
            inode.mode = inode.mode & mode::TYPE | m & !mode::TYPE;
        } else if (owner || set.kill_sguid) && inode.is_file() && inode.mode & mode::EXECUTE != 0 {
            // A program with another owner, or other content, has the rights of its caller alone.
            inode.mode &= !mode::SETUID_SETGID;
        }
        if let Some(uid) = set.uid {
            inode.uid = uid;
        }
        if let Some(gid) = set.gid {
            inode.gid = gid;
        }
        if let Some(btime) = set.btime {
            inode.btime = btime;
        }
        if let Some(mtime) = set.mtime {
            inode.mtime = mtime;
            inode.time_warp_seq = inode.time_warp_seq.wrapping_add(1);
        }
        if let Some(atime) = set.atime {
            inode.atime = atime;
            inode.time_warp_seq = inode.time_warp_seq.wrapping_add(1);
        }
        self.changed(ino, request.stamp);
        Ok(Answer { target: Some(ino), wrote: true, ..Answer::default() })
    }

    /// Sets a file's size. Objects behind it are trimmed afterwards.
    fn resize(&mut self, ino: Ino, size: u64, stamp: Utime) {
        let Some(node) = self.nodes.get_mut(&ino) else { return };
        let inode = &mut node.inode;
        let old = inode.size;
        inode.size = size;
        inode.mtime = inode.mtime.max(stamp);
        inode.max_size_ever = inode.max_size_ever.max(size);
        if size < old {
            inode.truncate_seq += 1;
            inode.truncate_size = size;
            inode.truncate_from = old;
            inode.truncate_pending = 1;
        }
        self.changed(ino, stamp);
        if size < old {
            self.trim_data(ino);
        }
    }

    /// Opens an inode.
    pub(crate) fn open(
        &mut self,
        client: ClientId,
        request: &Request,
        ino: Ino,
        wanted: u32,
        truncate: bool,
    ) -> Exec<Answer> {
        self.permit(ino)?;
        let inode = self.get(ino)?;
        let write = wanted & (caps::FILE_WR | caps::FILE_BUFFER) != 0;
        if inode.is_dir() && (write || truncate) {
            return fail(Errno::EISDIR);
        }
        self.look(ino);
        // A special file, or a link that the client will follow, is only kept.
        let is_file = self.get(ino)?.is_file();
        let wanted = if is_file { wanted } else { 0 };
        let truncate = truncate && is_file;
        if truncate {
            self.chain(ino)?;
            self.writes(client, ino, Group::File);
            self.settled()?;
            self.resize(ino, 0, request.stamp);
        }
        let wrote = truncate;
        Ok(Answer { target: Some(ino), wanted, wrote, ..Answer::default() })
    }

    /// Sets an attribute or, without a value, removes it.
    pub(crate) fn setxattr(
        &mut self,
        client: ClientId,
        request: &Request,
        name: &Name,
        value: Option<&Bytes>,
        how: XattrMode,
    ) -> Exec<Answer> {
        let ino = self.resolve(&request.path)?;
        self.chain(ino)?;
        self.permit(ino)?;
        if name.starts_with(b"ceph.") {
            return self.set_virtual(client, request, ino, name, value);
        }
        self.writes(client, ino, Group::Xattr);
        self.settled()?;
        let inode = self.get(ino)?;
        let there = inode.xattrs.contains_key(name);
        match how {
            XattrMode::Create if there => return fail(Errno::EEXIST),
            XattrMode::Replace if !there => return fail(Errno::ENODATA),
            _ => {}
        }
        if let Some(value) = value {
            let others: usize = inode
                .xattrs
                .iter()
                .filter(|(n, _)| *n != name)
                .map(|(n, v)| n.len() + v.len())
                .sum();
            if others + name.len() + value.len() > self.conf.max_xattr_bytes {
                return fail(Errno::ENOSPC);
            }
        }
        let Some(node) = self.nodes.get_mut(&ino) else { return fail(Errno::EIO) };
        match value {
            Some(value) => node.inode.xattrs.insert(weight::own(name), weight::own(value)),
            None => node.inode.xattrs.remove(name),
        };
        node.inode.xattr_version += 1;
        self.changed(ino, request.stamp);
        Ok(Answer { target: Some(ino), wrote: true, ..Answer::default() })
    }

    /// A layout with what a request says of it.
    pub(crate) fn with_hints(&self, mut layout: Layout, hints: &LayoutHints) -> Exec<Layout> {
        if hints.stripe_unit > 0 {
            layout.stripe_unit = hints.stripe_unit;
        }
        if hints.stripe_count > 0 {
            layout.stripe_count = hints.stripe_count;
        }
        if hints.object_size > 0 {
            layout.object_size = hints.object_size;
        }
        if let Some(pool) = hints.pool {
            if !self.conf.data_pools.contains(&pool) {
                return fail(Errno::EINVAL);
            }
            layout.pool = pool;
        }
        if !layout.is_valid() {
            return fail(Errno::EINVAL);
        }
        Ok(layout)
    }

    /// Sets the layout of an empty file.
    pub(crate) fn set_layout(
        &mut self,
        client: ClientId,
        request: &Request,
        hints: &LayoutHints,
    ) -> Exec<Answer> {
        let ino = self.resolve(&request.path)?;
        self.chain(ino)?;
        self.permit(ino)?;
        if !self.get(ino)?.is_file() {
            return fail(Errno::EINVAL);
        }
        let old = self.layout_of(ino).unwrap_or_default();
        let layout = self.with_hints(old, hints)?;
        self.put_layout(client, request, ino, Some(layout))
    }

    /// Sets the layout of new files below a directory.
    pub(crate) fn set_dir_layout(
        &mut self,
        request: &Request,
        hints: &LayoutHints,
    ) -> Exec<Answer> {
        let ino = self.resolve(&request.path)?;
        self.chain(ino)?;
        self.permit(ino)?;
        if !self.get(ino)?.is_dir() {
            return fail(Errno::ENOTDIR);
        }
        let old = self.layout_of(ino).unwrap_or_default();
        let layout = self.with_hints(old, hints)?;
        self.put_layout(ClientId(0), request, ino, Some(layout))
    }

    /// Sets a layout that is valid.
    pub(crate) fn put_layout(
        &mut self,
        client: ClientId,
        request: &Request,
        ino: Ino,
        layout: Option<Layout>,
    ) -> Exec<Answer> {
        if self.get(ino)?.is_file() {
            self.writes(client, ino, Group::File);
            self.settled()?;
            let inode = self.get(ino)?;
            if inode.size > 0 || inode.truncate_seq > 1 {
                return fail(Errno::ENOTEMPTY);
            }
        }
        let Some(node) = self.nodes.get_mut(&ino) else { return fail(Errno::EIO) };
        node.inode.layout = layout;
        self.rules_change();
        self.changed(ino, request.stamp);
        Ok(Answer { target: Some(ino), wrote: true, ..Answer::default() })
    }
}
