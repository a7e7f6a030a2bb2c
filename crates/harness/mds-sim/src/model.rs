//! A file system as a map: requests in one order, and what each must answer.

use mds::{Extra, Ino, Name, Op, Reply, Request, Space, caps};
use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use types::Errno;

/// An inode.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// Type and permissions.
    pub mode: u32,
    /// Names.
    pub nlink: u32,
    /// Bytes.
    pub size: u64,
    /// Entries of a directory.
    pub entries: BTreeMap<Name, Ino>,
    /// Attributes.
    pub xattrs: BTreeMap<Name, bytes::Bytes>,
    /// It is the root of a subvolume.
    pub marked: bool,
    /// The subvolume that it was made in.
    pub home: Option<Ino>,
}

impl Node {
    fn new(mode: u32) -> Self {
        let (entries, xattrs) = (BTreeMap::new(), BTreeMap::new());
        Node { mode, nlink: 1, size: 0, entries, xattrs, marked: false, home: None }
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.mode & mds::types::mode::TYPE == mds::types::mode::DIR
    }
}

/// A file system.
#[derive(Clone, Debug)]
pub struct Model {
    /// Inodes that were ever made.
    pub nodes: BTreeMap<Ino, Node>,
    /// Owners.
    pub owners: u16,
}

impl Default for Model {
    fn default() -> Self {
        let root = Node::new(mds::types::mode::DIR | 0o755);
        Model { nodes: BTreeMap::from([(Ino::ROOT, root)]), owners: 1 }
    }
}

/// What a client did by itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Local {
    /// Looked a name up in its cache.
    Lookup(Ino, Name, Option<Ino>),
    /// Looked at attributes in its cache: what it saw of those that the mask covers.
    Getattr(Ino, u32, Seen),
    /// Changed permissions.
    Chmod(Ino, u32),
    /// Wrote up to here.
    Write(Ino, u64),
}

/// Attributes as a client sees them.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Seen {
    /// Type and permissions.
    pub mode: u32,
    /// Names.
    pub nlink: u32,
    /// Bytes.
    pub size: u64,
    /// Attributes.
    pub xattrs: BTreeMap<Name, bytes::Bytes>,
}

impl Seen {
    /// What an inode of an answer shows.
    pub fn of(inode: &mds::Inode) -> Seen {
        Seen {
            mode: inode.mode,
            nlink: inode.nlink,
            size: inode.size,
            xattrs: inode.xattrs.clone(),
        }
    }
}

type Outcome = Result<Option<Ino>, Errno>;

impl Model {
    fn dir(&self, ino: Ino) -> Result<&Node, Errno> {
        let node = self.nodes.get(&ino).ok_or(Errno::ESTALE)?;
        if node.is_dir() { Ok(node) } else { Err(Errno::ENOTDIR) }
    }

    fn name(&self, dir: Ino, name: &Name) -> Result<Option<Ino>, Errno> {
        Ok(self.dir(dir)?.entries.get(name).copied())
    }

    fn node(&mut self, ino: Ino) -> Result<&mut Node, Errno> {
        self.nodes.get_mut(&ino).ok_or(Errno::ESTALE)
    }

    fn take(&mut self, dir: Ino, name: &Name) -> Result<(), Errno> {
        if let Some(ino) = self.node(dir)?.entries.remove(name) {
            self.node(ino)?.nlink -= 1;
        }
        Ok(())
    }

    fn is_below(&self, dir: Ino, above: Ino) -> bool {
        dir == above
            || self
                .nodes
                .get(&above)
                .is_some_and(|n| n.entries.values().any(|i| self.is_below(dir, *i)))
    }

    /// What a request comes to; `made` is the number that the server gave to what it made.
    pub fn apply(&mut self, request: &Request, made: Option<Ino>) -> Outcome {
        let dir = request.path.ino;
        let name = request.path.path.clone();
        match &request.op {
            Op::Lookup { .. } => {
                let ino = self.name(dir, &name)?.ok_or(Errno::ENOENT)?;
                Ok(Some(ino))
            }
            Op::Getattr { .. } | Op::Open { truncate: false, .. } | Op::Readdir { .. } => {
                self.node(dir)?;
                Ok(Some(dir))
            }
            Op::Open { truncate: true, .. } => {
                let node = self.node(dir)?;
                if node.mode & mds::types::mode::TYPE == mds::types::mode::FILE {
                    node.size = 0;
                }
                Ok(Some(dir))
            }
            Op::Setattr(set) => {
                let node = self.node(dir)?;
                if let Some(size) = set.size {
                    if node.is_dir() {
                        return Err(Errno::EISDIR);
                    }
                    if node.mode & mds::types::mode::TYPE != mds::types::mode::FILE {
                        return Err(Errno::EINVAL);
                    }
                    node.size = size;
                }
                if let Some(mode) = set.mode {
                    node.mode = node.mode & mds::types::mode::TYPE | mode;
                }
                Ok(Some(dir))
            }
            Op::Setxattr { name, .. } if name == "ceph.dir.subvolume" => {
                self.dir(dir)?;
                self.node(dir)?.marked = true;
                Ok(Some(dir))
            }
            Op::Setxattr { name, .. } if name.starts_with(b"ceph.") => {
                self.dir(dir)?;
                if dir == Ino::ROOT { Err(Errno::EINVAL) } else { Ok(Some(dir)) }
            }
            Op::Setxattr { name, value, .. } => {
                self.node(dir)?.xattrs.insert(name.clone(), value.clone());
                Ok(Some(dir))
            }
            Op::Rmxattr { name } => {
                self.node(dir)?.xattrs.remove(name).ok_or(Errno::ENODATA)?;
                Ok(Some(dir))
            }
            Op::Create { exclusive, .. } if self.name(dir, &name)?.is_some() => {
                let ino = self.name(dir, &name)?.unwrap_or_default();
                let is_dir = self.node(ino)?.is_dir();
                match (exclusive, is_dir) {
                    (true, _) => Err(Errno::EEXIST),
                    (false, true) => Err(Errno::EISDIR),
                    (false, false) => Ok(Some(ino)),
                }
            }
            Op::Create { .. } | Op::Mkdir { .. } | Op::Symlink { .. } => {
                if self.name(dir, &name)?.is_some() {
                    return Err(Errno::EEXIST);
                }
                if self.node(dir)?.nlink == 0 {
                    return Err(Errno::ENOENT);
                }
                let ino = made.unwrap_or_default();
                let (mode, size) = match &request.op {
                    Op::Create { mode, .. } => (mds::types::mode::FILE | mode, 0),
                    Op::Mkdir { mode } => (mds::types::mode::DIR | mode, 0),
                    Op::Symlink { target } => {
                        (mds::types::mode::SYMLINK | 0o777, target.len() as u64)
                    }
                    _ => return Err(Errno::EINVAL),
                };
                let home = self.subvolume(dir);
                self.nodes.insert(ino, Node { size, home, ..Node::new(mode) });
                self.node(dir)?.entries.insert(name, ino);
                Ok(Some(ino))
            }
            Op::Link => {
                let ino = request.path2.ino;
                if self.name(dir, &name)?.is_some() {
                    return Err(Errno::EEXIST);
                }
                if self.node(ino)?.is_dir() {
                    return Err(Errno::EPERM);
                }
                if self.node(ino)?.nlink == 0 || self.node(dir)?.nlink == 0 {
                    return Err(Errno::ENOENT);
                }
                self.node(ino)?.nlink += 1;
                self.node(dir)?.entries.insert(name, ino);
                Ok(Some(ino))
            }
            Op::Unlink | Op::Rmdir => {
                let ino = self.name(dir, &name)?.ok_or(Errno::ENOENT)?;
                let node = self.node(ino)?;
                match (&request.op, node.is_dir()) {
                    (Op::Rmdir, false) => return Err(Errno::ENOTDIR),
                    (Op::Unlink, true) => return Err(Errno::EISDIR),
                    _ if !node.entries.is_empty() => return Err(Errno::ENOTEMPTY),
                    _ => {}
                }
                self.take(dir, &name)?;
                Ok(None)
            }
            Op::Rename => {
                let (from, old) = (request.path2.ino, request.path2.path.clone());
                self.dir(from)?;
                self.dir(dir)?;
                let ino = self.name(from, &old)?.ok_or(Errno::ENOENT)?;
                let over = self.name(dir, &name)?;
                if over == Some(ino) {
                    return Ok(Some(ino));
                }
                if self.node(dir)?.nlink == 0 {
                    return Err(Errno::ENOENT);
                }
                let is_dir = self.node(ino)?.is_dir();
                if is_dir && self.is_below(dir, ino) {
                    return Err(Errno::EINVAL);
                }
                if let Some(over) = over {
                    let there = self.node(over)?;
                    match (is_dir, there.is_dir()) {
                        (true, false) => return Err(Errno::ENOTDIR),
                        (false, true) => return Err(Errno::EISDIR),
                        (true, true) if !there.entries.is_empty() => return Err(Errno::ENOTEMPTY),
                        _ => {}
                    }
                    self.take(dir, &name)?;
                }
                self.node(from)?.entries.remove(&old);
                self.node(dir)?.entries.insert(name, ino);
                Ok(Some(ino))
            }
            _ => Err(Errno::EOPNOTSUPP),
        }
    }

    /// The subvolume that a directory is in.
    fn subvolume(&self, dir: Ino) -> Option<Ino> {
        let mut at = dir;
        for _ in 0..self.nodes.len() {
            if self.nodes.get(&at)?.marked {
                return Some(at);
            }
            at = *self
                .nodes
                .iter()
                .find(|(_, n)| n.is_dir() && n.entries.values().any(|i| *i == at))?
                .0;
        }
        None
    }

    /// Whether a name would come into a subvolume, or out of it.
    fn crosses(&self, request: &Request) -> bool {
        if !matches!(request.op, Op::Rename | Op::Link) {
            return false;
        }
        let (from, old) = (request.path2.ino, &request.path2.path);
        let named = match old.is_empty() {
            true => Some(from),
            false => self.name(from, old).ok().flatten(),
        };
        let node = named.and_then(|ino| self.nodes.get(&ino));
        let to = self.subvolume(request.path.ino);
        let from = if old.is_empty() { node.and_then(|n| n.home) } else { self.subvolume(from) };
        // Another owner's directory, or one that is older than the subvolume, may be in it.
        let number = named.filter(|_| old.is_empty()).unwrap_or(request.path2.ino);
        number.space() != request.path.ino.space()
            || from != to
            || to.is_some()
                && named
                    .into_iter()
                    .chain((request.path.ino != number).then_some(request.path.ino))
                    .any(|ino| ino.space() < Space::FIRST)
    }

    /// Whether a name is made of a directory or a symbolic link, and may cross parts.
    fn may_cross(&self, request: &Request) -> bool {
        let (from, old) = (request.path2.ino, &request.path2.path);
        let named = match old.is_empty() {
            true => Some(from),
            false => self.name(from, old).ok().flatten(),
        };
        let stays =
            |n: &Node| n.is_dir() || n.mode & mds::types::mode::TYPE == mds::types::mode::SYMLINK;
        self.owners > 1
            && matches!(request.op, Op::Rename | Op::Link)
            && named.and_then(|ino| self.nodes.get(&ino)).is_some_and(stays)
    }

    /// Compares what a name stood for.
    pub fn found(&self, request: &Request, ino: Ino) -> Result<(), String> {
        match self.name(request.path.ino, &request.path.path) {
            Ok(Some(found)) if found == ino => Ok(()),
            other => Err(format!("{ino:?} was found, expected {other:?}")),
        }
    }

    /// Carries a request out and compares what a client was answered, but for what it knew
    /// better.
    pub fn check(
        &mut self,
        request: &Request,
        made: Option<Ino>,
        reply: &Reply,
        better: u32,
    ) -> Result<(), String> {
        let dead = [request.path.ino, request.path2.ino]
            .iter()
            .any(|i| self.nodes.get(i).is_some_and(|n| n.nlink == 0));
        if reply.result == -Errno::ESTALE.0 && dead {
            return Ok(());
        }
        if reply.result == -Errno::EXDEV.0 && (self.may_cross(request) || self.crosses(request)) {
            return Ok(());
        }
        if let Op::Setxattr { name, .. } = &request.op
            && name == "ceph.dir.subvolume"
            && [Errno::EINVAL, Errno::ENOTEMPTY, Errno::EOPNOTSUPP]
                .iter()
                .any(|e| -e.0 == reply.result)
        {
            return Ok(());
        }
        let expected = self.apply(request, made);
        let result = expected.map_or_else(|e| -e.0, |_| 0);
        if result != reply.result {
            return Err(format!("expected {result}, answered {}", reply.result));
        }
        let Ok(expected) = expected else { return Ok(()) };
        if let (Some(ino), Some(target)) = (expected, &reply.target)
            && target.inode.ino != ino
        {
            return Err(format!("expected {ino:?}, answered {:?}", target.inode.ino));
        }
        match &request.op {
            Op::Lookup { mask } | Op::Getattr { mask } => {
                let Some(target) = &reply.target else { return Err("no inode".into()) };
                self.compare(target.inode.ino, *mask & !better, &Seen::of(&target.inode))
            }
            Op::Readdir { after, .. } => {
                let Extra::Page { end, entries, .. } = &reply.extra else {
                    return Err("no page".into());
                };
                let from = after.as_ref().map_or(Unbounded, Excluded);
                let dir = &self.nodes[&request.path.ino];
                let mut all = dir.entries.range::<Name, _>((from, Unbounded));
                for (name, _, stat) in entries {
                    let expected = all.next();
                    if expected != Some((name, &stat.inode.ino)) {
                        return Err(format!("expected {expected:?}, listed {name:?}"));
                    }
                }
                match all.next() {
                    Some(left) if *end => Err(format!("{left:?} is not listed")),
                    // What is left at rest may be gone in memory: the next page is empty then.
                    None if !*end && entries.is_empty() => Err("an empty page".into()),
                    _ => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    /// Compares what was seen of the attributes that a mask covers.
    pub fn compare(&self, ino: Ino, mask: u32, seen: &Seen) -> Result<(), String> {
        let Some(node) = self.nodes.get(&ino) else { return Err(format!("{ino:?} is unknown")) };
        let mut wrong = Vec::new();
        if mask & caps::AUTH_SHARED != 0 && node.mode != seen.mode {
            wrong.push(format!("mode {:o}, seen {:o}", node.mode, seen.mode));
        }
        if mask & caps::LINK_SHARED != 0 && node.nlink != seen.nlink {
            wrong.push(format!("nlink {}, seen {}", node.nlink, seen.nlink));
        }
        if mask & caps::XATTR_SHARED != 0 && node.xattrs != seen.xattrs {
            wrong.push(format!("xattrs {:?}, seen {:?}", node.xattrs, seen.xattrs));
        }
        if mask & caps::FILE_SHARED != 0 && !node.is_dir() && node.size != seen.size {
            wrong.push(format!("size {}, seen {}", node.size, seen.size));
        }
        if wrong.is_empty() { Ok(()) } else { Err(format!("{ino:?}: {}", wrong.join("; "))) }
    }

    /// Carries out what a client did by itself, and compares what it saw.
    pub fn local(&mut self, local: &Local) -> Result<(), String> {
        match local {
            Local::Lookup(dir, name, seen) => {
                let found = self.name(*dir, name).map_err(|e| format!("{e:?}"))?;
                if found == *seen { Ok(()) } else { Err(format!("{found:?}, cached {seen:?}")) }
            }
            Local::Getattr(ino, mask, seen) => self.compare(*ino, *mask, seen),
            Local::Chmod(ino, mode) => {
                let node = self.node(*ino).map_err(|e| format!("{e:?}"))?;
                node.mode = node.mode & mds::types::mode::TYPE | mode;
                Ok(())
            }
            Local::Write(ino, size) => {
                let node = self.node(*ino).map_err(|e| format!("{e:?}"))?;
                node.size = node.size.max(*size);
                Ok(())
            }
        }
    }
}
