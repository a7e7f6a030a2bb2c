//! Virtual attributes that are set: layouts, quotas, and what makes a directory a subvolume.

use super::Mds;
use super::node::Link;
use super::operation::{Answer, Exec, fail};
use crate::request::Request;
use crate::types::{Chance, ClientId, DirFrag, Ino, Layout, Name, Quota, Space};
use bytes::Bytes;
use types::Errno;

/// A directory with more directories in it cannot become a subvolume.
const BELOW_MAX: u64 = 16;

/// Attributes that say where directories below are made, behind their common beginning.
const PINS: [&str; 3] = ["", ".distributed", ".random"];

/// A number of a virtual attribute.
fn number(value: &[u8]) -> Exec<u64> {
    std::str::from_utf8(value)
        .ok()
        .and_then(|v| v.trim_end_matches('\0').trim().parse().ok())
        .map_or_else(|| fail(Errno::EINVAL), Ok)
}

/// Yes or no, as stock reads it (`boost::lexical_cast`): 0 or 1 with zeros and a sign before it.
fn boolean(text: &str) -> Option<bool> {
    let (before, on) = match text.strip_suffix('1') {
        Some(before) => (before, true),
        None => (text.strip_suffix('0')?, false),
    };
    let zeros = match before.as_bytes().first() {
        Some(b'+') => &before[1..],
        Some(b'-') if !on => &before[1..],
        _ => before,
    };
    zeros.bytes().all(|b| b == b'0').then_some(on)
}

impl Mds {
    /// Sets a virtual attribute or, without a value, removes it.
    pub(crate) fn set_virtual(
        &mut self,
        client: ClientId,
        request: &Request,
        ino: Ino,
        name: &Name,
        value: Option<&Bytes>,
    ) -> Exec<Answer> {
        let Ok(name) = std::str::from_utf8(name) else { return fail(Errno::EINVAL) };
        if let Some(field) = name.strip_prefix("ceph.file.layout") {
            if !self.get(ino)?.is_file() {
                return fail(Errno::EINVAL);
            }
            let Some(value) = value else { return fail(Errno::ENODATA) };
            let layout = self.parse_layout(ino, field, value)?;
            return self.put_layout(client, request, ino, Some(layout));
        }
        let pin = name.strip_prefix("ceph.dir.pin");
        if let (Some(field), None) = (pin, value) {
            // It cannot be taken back by removing it.
            return fail(if PINS.contains(&field) { Errno::ENODATA } else { Errno::EINVAL });
        }
        if !self.get(ino)?.is_dir() {
            return fail(Errno::EINVAL);
        }
        if let Some(field) = name.strip_prefix("ceph.dir.layout") {
            let layout = match value {
                Some(value) => Some(self.parse_layout(ino, field, value)?),
                None if self.get(ino)?.layout.is_some() => None,
                None => return fail(Errno::ENODATA),
            };
            return self.put_layout(client, request, ino, layout);
        }
        if let Some(field) = name.strip_prefix("ceph.quota") {
            let old = self.get(ino)?.quota;
            let quota = parse_quota(old, field, value.map_or(&b"0"[..], |v| v))?;
            if let Some(node) = self.nodes.get_mut(&ino) {
                node.inode.quota = quota;
            }
            self.with_quota.insert(ino);
            self.peers.choose_all = true;
        } else if name == "ceph.dir.subvolume" {
            let on = value.is_some_and(|v| number(v).is_ok_and(|n| n != 0));
            self.set_subvolume(ino, on)?;
        } else if let Some(field) = name.strip_prefix(super::promises::PREFIX) {
            self.set_promise(client, ino, field, value)?;
        } else if let (Some(field), Some(value)) = (pin, value) {
            self.set_pin(ino, field, value)?;
        } else {
            // Others are not supported.
            return fail(Errno::EOPNOTSUPP);
        }
        self.rules_change();
        self.changed(ino, request.stamp);
        Ok(Answer { target: Some(ino), wrote: true, ..Answer::default() })
    }

    /// Says where directories below are made from now on.
    fn set_pin(&mut self, ino: Ino, field: &str, value: &Bytes) -> Exec<()> {
        if ino == Ino::ROOT {
            return fail(Errno::EINVAL);
        }
        let text = std::str::from_utf8(value).unwrap_or_default();
        let max = self.conf.random_max;
        let Some(node) = self.nodes.get_mut(&ino) else { return fail(Errno::EIO) };
        match field {
            "" => {
                let Ok(rank) = text.parse::<i32>() else { return fail(Errno::EINVAL) };
                node.inode.pin_to(rank);
            }
            ".distributed" => {
                let Some(on) = boolean(text) else { return fail(Errno::EINVAL) };
                node.inode.distributed = on;
            }
            ".random" => {
                let Ok(chance) = text.parse::<f64>() else { return fail(Errno::EINVAL) };
                let Some(random) = Chance::new(chance) else { return fail(Errno::EDOM) };
                if chance > max {
                    return fail(Errno::EINVAL);
                }
                node.inode.random = random;
            }
            _ => return fail(Errno::EINVAL),
        }
        self.pin_changed(ino);
        Ok(())
    }

    /// Gives what is made below a directory from now on a space of its own. That stays.
    fn set_subvolume(&mut self, ino: Ino, on: bool) -> Exec<()> {
        let inode = self.get(ino)?;
        if !on {
            return if inode.space == Space(0) { Ok(()) } else { fail(Errno::EOPNOTSUPP) };
        }
        if inode.space != Space(0) {
            return Ok(());
        }
        // What is below already has numbers of another space. Directories with nothing in them may
        // have: a stock manager makes the directory for clients first.
        if inode.dirstat.files + inode.dirstat.subdirs > 0 {
            self.only_empty_dirs(ino)?;
        }
        // Spaces of subvolumes are of the first owner.
        if self.conf.rank != crate::types::Rank(0) {
            return fail(Errno::EOPNOTSUPP);
        }
        // A subvolume in a subvolume would be EXDEV inside of one.
        if self.space_of(self.parent_dir(ino)) != Space::COMMON {
            return fail(Errno::EINVAL);
        }
        let last = self.next_ino.keys().next_back().copied().unwrap_or(Space::FIRST);
        let Some(next) = last.0.checked_add(1) else { return fail(Errno::ENOSPC) };
        let space = Space(next.max(Space::FIRST.0));
        // Its first number makes the space known to the log.
        self.new_ino(space);
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.inode.space = space;
        }
        self.roots.insert(space, ino);
        self.note_root(ino, space);
        Ok(())
    }

    /// Fails unless a directory has some empty directories in it, and nothing else.
    fn only_empty_dirs(&mut self, ino: Ino) -> Exec<()> {
        self.unlocked(ino)?;
        let inode = self.get(ino)?;
        let few = u64::try_from(inode.dirstat.subdirs).is_ok_and(|n| n <= BELOW_MAX);
        let frag = DirFrag::whole(ino);
        if inode.dirstat.files > 0 || !few {
            return fail(Errno::ENOTEMPTY);
        }
        let d = self.dir_mut(frag);
        // A page that was read does not have all of it.
        if d.large && !d.complete {
            return fail(Errno::ENOTEMPTY);
        }
        self.page(frag, None, &None)?;
        let links: Vec<Link> = self.dir_mut(frag).entries.values().map(|e| e.link).collect();
        for link in links {
            let below = match link {
                Link::Absent => continue,
                Link::Primary(below) => below,
                Link::Remote(..) => return fail(Errno::ENOTEMPTY),
            };
            let below = self.get(below)?;
            let empty = below.dirstat.files + below.dirstat.subdirs == 0;
            if !below.is_dir() || !empty || below.space != Space(0) {
                return fail(Errno::ENOTEMPTY);
            }
        }
        Ok(())
    }

    fn parent_dir(&self, ino: Ino) -> Ino {
        self.nodes.get(&ino).and_then(|n| n.parent.as_ref()).map_or(Ino::ROOT, |(d, _)| *d)
    }

    /// A layout with one field, or all of them, as text. Pools are numbers here.
    fn parse_layout(&self, ino: Ino, field: &str, value: &Bytes) -> Exec<Layout> {
        let mut layout = self.layout_of(ino).unwrap_or_default();
        let Ok(text) = std::str::from_utf8(value) else { return fail(Errno::EINVAL) };
        let text = text.trim_end_matches('\0').trim();
        if field.is_empty() {
            for part in text.split_whitespace() {
                let Some((key, v)) = part.split_once('=') else { return fail(Errno::EINVAL) };
                self.layout_field(&mut layout, key, v)?;
            }
        } else {
            let Some(key) = field.strip_prefix('.') else { return fail(Errno::EINVAL) };
            self.layout_field(&mut layout, key, text)?;
        }
        if layout.is_valid() { Ok(layout) } else { fail(Errno::EINVAL) }
    }

    fn layout_field(&self, layout: &mut Layout, key: &str, value: &str) -> Exec<()> {
        let n = || value.parse::<u32>().map_or_else(|_| fail(Errno::EINVAL), Ok);
        match key {
            "stripe_unit" => layout.stripe_unit = n()?,
            "stripe_count" => layout.stripe_count = n()?,
            "object_size" => layout.object_size = n()?,
            "pool" => {
                let pool = i64::from(n()?);
                if !self.conf.data_pools.contains(&pool) {
                    return fail(Errno::ENOENT);
                }
                layout.pool = pool;
            }
            "pool_namespace" => layout.namespace = value.to_owned(),
            _ => return fail(Errno::EINVAL),
        }
        Ok(())
    }
}

/// A quota with one field, or both, as text.
fn parse_quota(mut quota: Quota, field: &str, value: &[u8]) -> Exec<Quota> {
    match field {
        "" if number(value) == Ok(0) => quota = Quota::default(),
        "" => {
            let Ok(text) = std::str::from_utf8(value) else { return fail(Errno::EINVAL) };
            for part in text.trim_end_matches('\0').split_whitespace() {
                match part.split_once('=') {
                    Some(("max_bytes", v)) => quota.max_bytes = number(v.as_bytes())?,
                    Some(("max_files", v)) => quota.max_files = number(v.as_bytes())?,
                    _ => return fail(Errno::EINVAL),
                }
            }
        }
        ".max_bytes" => quota.max_bytes = number(value)?,
        ".max_files" => quota.max_files = number(value)?,
        _ => return fail(Errno::EINVAL),
    }
    Ok(quota)
}
