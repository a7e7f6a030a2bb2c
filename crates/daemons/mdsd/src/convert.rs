//! Messages of clients between Ceph's form and the core's.

use crate::at_rest::{layout_out, quota_out};
use bytes::{Bytes, BytesMut};
use cephfs::inode::InlineData;
use cephfs::reply::encode_xattrs;
use cephfs::{DirLayout, DirPage, LeaseStat, OpenCreated, ReplyCap, SnapRealmInfo, Trace};
use denc::{Encode, Features, Reader};
use mds::{
    CapAttrs, CapsMessage, CapsOp, CapsUpdate, Claim, ClientId, Extra, FileLock, FilePath,
    LayoutHints, LockKind, LockRequest, LockType, Op, Release, Reply, Request, SetAttr, XattrMode,
};
use messages::{
    CapOp, CapReconnect, ClientCaps, ClientLease, ClientReply, ClientRequest, FsOp, OpenArgs,
    RequestArgs,
};
use std::collections::BTreeMap;
use types::{Epoch, Errno, SnapId};

/// The sequence number of the realm of a file system without snapshots.
const REALM_SEQ: SnapId = SnapId(1);

/// How an answer of the core becomes that to the client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Shape {
    /// As it is.
    Plain,
    /// The value of this virtual attribute.
    Attribute(Bytes),
    /// An empty list of snapshots.
    NoSnapshots,
}

/// Pools by name, as virtual attributes may have them.
pub type Pools = BTreeMap<String, i64>;

fn path_in(path: &messages::FilePath) -> Result<FilePath, Errno> {
    // An empty name is a step into the directory of snapshots. There are none.
    if path.path.starts_with(b"/") || path.path.windows(2).any(|w| w == b"//") {
        return Err(Errno::ENOENT);
    }
    Ok(FilePath { ino: mds::Ino(path.ino.0), path: path.path.clone() })
}

/// What a way of opening wants (Ceph: `ceph_flags_to_mode`, `ceph_caps_for_mode`).
fn wanted(flags: u32) -> u32 {
    if flags & OpenArgs::DIRECTORY != 0 {
        return mds::caps::PIN;
    }
    let access = flags & OpenArgs::ACCESS;
    mds::caps::for_mode(access != 1, access == 1 || access == 2, flags & OpenArgs::LAZY != 0)
}

fn lock_in(args: &messages::FilelockArgs) -> Result<LockRequest, Errno> {
    let (rule, interrupt) = match args.rule {
        1 => (LockKind::Posix, false),
        2 => (LockKind::Flock, false),
        3 => (LockKind::Posix, true),
        4 => (LockKind::Flock, true),
        _ => return Err(Errno::EINVAL),
    };
    let kind = lock_type(args.kind)?;
    let lock = FileLock {
        start: args.start,
        length: args.length,
        client: ClientId(0),
        owner: args.owner,
        pid: args.pid,
        kind,
    };
    Ok(LockRequest { rule, lock, wait: args.wait != 0, interrupt })
}

fn lock_type(kind: u8) -> Result<LockType, Errno> {
    match kind {
        cephfs::FileLock::SHARED => Ok(LockType::Shared),
        cephfs::FileLock::EXCL => Ok(LockType::Exclusive),
        cephfs::FileLock::UNLOCK => Ok(LockType::Unlock),
        _ => Err(Errno::EINVAL),
    }
}

fn lock_out(lock: &FileLock) -> cephfs::FileLock {
    cephfs::FileLock {
        start: lock.start,
        length: lock.length,
        client: lock.client.0,
        owner: lock.owner,
        pid: lock.pid,
        kind: match lock.kind {
            LockType::Shared => cephfs::FileLock::SHARED,
            LockType::Exclusive => cephfs::FileLock::EXCL,
            LockType::Unlock => cephfs::FileLock::UNLOCK,
        },
    }
}

/// The value of a virtual attribute with the number of a pool in place of its name.
fn pools_by_number(name: &[u8], value: &Bytes, pools: &Pools) -> Bytes {
    let Ok(text) = std::str::from_utf8(value) else { return value.clone() };
    let text = text.trim_end_matches('\0').trim();
    let number = |pool: &str| match pool.parse::<i64>() {
        // A pool may be named like a number; its name comes first, as with Ceph.
        _ if pools.contains_key(pool) => pools[pool].to_string(),
        Ok(n) => n.to_string(),
        Err(_) => "none".to_owned(),
    };
    let is = |suffix: &[u8]| {
        [&b"ceph.dir.layout"[..], b"ceph.file.layout"]
            .iter()
            .any(|p| name.strip_prefix(*p) == Some(suffix))
    };
    if is(b".pool") || is(b".pool_name") || is(b".pool_id") {
        return number(text).into();
    }
    if !is(b"") {
        return value.clone();
    }
    let parts: Vec<String> = text
        .split_whitespace()
        .map(|part| match part.split_once('=') {
            Some(("pool" | "pool_name" | "pool_id", pool)) => format!("pool={}", number(pool)),
            _ => part.to_owned(),
        })
        .collect();
    parts.join(" ").into()
}

/// The attribute's name with which the core knows it.
fn attribute(name: &Bytes) -> Bytes {
    for prefix in ["ceph.dir.layout", "ceph.file.layout"] {
        for alias in [".pool_name", ".pool_id"] {
            if *name == format!("{prefix}{alias}") {
                return format!("{prefix}.pool").into();
            }
        }
    }
    name.clone()
}

fn setattr_in(args: &messages::SetAttr) -> SetAttr {
    use messages::SetAttr as Bits;
    let has = |bit: u32| args.mask & bit != 0;
    SetAttr {
        mode: has(Bits::MODE).then_some(args.mode),
        uid: has(Bits::UID).then_some(args.uid),
        gid: has(Bits::GID).then_some(args.gid),
        mtime: has(Bits::MTIME).then_some(args.mtime),
        atime: has(Bits::ATIME).then_some(args.atime),
        btime: has(Bits::BTIME).then_some(args.btime),
        size: has(Bits::SIZE).then_some(args.size),
        kill_sguid: has(Bits::KILL_SGUID),
    }
}

/// A request in the core's form, or the errno that it is answered.
pub fn request_in(tid: u64, m: &ClientRequest, pools: &Pools) -> Result<(Request, Shape), Errno> {
    let mut shape = Shape::Plain;
    let mask = match &m.args {
        RequestArgs::Getattr { mask } | RequestArgs::LookupIno { mask, .. } => *mask,
        _ => 0,
    };
    if m.op == FsOp::MKSNAP {
        return Err(Errno::EOPNOTSUPP);
    }
    let mut path = path_in(&m.path)?;
    let mut path2 = FilePath::default();
    let op = match (m.op, &m.args) {
        (FsOp::LOOKUP, _) => Op::Lookup { mask },
        (FsOp::GETATTR, _) => Op::Getattr { mask },
        (FsOp::LOOKUPINO | FsOp::LOOKUPHASH, _) => {
            path.path = Bytes::new();
            Op::Getattr { mask }
        }
        (FsOp::LOOKUPPARENT, _) => Op::LookupParent,
        (FsOp::LOOKUPNAME, _) => Op::LookupName,
        (FsOp::GETVXATTR, _) => {
            shape = Shape::Attribute(m.path2.path.clone());
            Op::Getattr { mask: mds::caps::ANY_SHARED | mds::caps::FILE_WREXTEND }
        }
        (FsOp::LSSNAP, _) => {
            shape = Shape::NoSnapshots;
            Op::Getattr { mask: 0 }
        }
        (FsOp::LOOKUPSNAP | FsOp::RMSNAP | FsOp::RENAMESNAP, _) => return Err(Errno::ENOENT),
        (FsOp::GETFILELOCK, RequestArgs::Filelock(args)) => Op::GetLock(lock_in(args)?),
        (FsOp::SETFILELOCK, RequestArgs::Filelock(args)) => Op::SetLock(lock_in(args)?),
        (FsOp::OPEN, RequestArgs::Open(args)) => {
            let truncate = args.flags & OpenArgs::TRUNC != 0;
            Op::Open { wanted: wanted(args.flags), truncate }
        }
        (FsOp::CREATE, RequestArgs::Open(args)) => Op::Create {
            mode: args.mode,
            wanted: wanted(args.flags),
            exclusive: args.flags & OpenArgs::EXCL != 0,
            truncate: args.flags & OpenArgs::TRUNC != 0,
            layout: LayoutHints {
                stripe_unit: args.stripe_unit,
                stripe_count: args.stripe_count,
                object_size: args.object_size,
                pool: (args.pool > 0).then_some(args.pool.into()),
            },
        },
        (FsOp::READDIR, RequestArgs::Readdir { max_entries, max_bytes, .. }) => {
            let after = m.path2.path.clone();
            Op::Readdir {
                after: (!after.is_empty()).then_some(after),
                max_entries: *max_entries,
                // Ceph: `mds_readdir_max_bytes`, or what the client takes.
                max_bytes: if *max_bytes == 0 { 512 << 10 } else { *max_bytes },
            }
        }
        (FsOp::SETATTR, RequestArgs::Setattr(args)) => Op::Setattr(setattr_in(args)),
        (FsOp::SETXATTR, RequestArgs::Setxattr { flags, .. }) => {
            let name = attribute(&m.path2.path);
            if flags & RequestArgs::XATTR_REMOVE != 0 {
                Op::Rmxattr { name }
            } else {
                let mode = match flags & (RequestArgs::XATTR_CREATE | RequestArgs::XATTR_REPLACE) {
                    RequestArgs::XATTR_CREATE => XattrMode::Create,
                    RequestArgs::XATTR_REPLACE => XattrMode::Replace,
                    _ => XattrMode::Any,
                };
                let value = pools_by_number(&m.path2.path, &m.data, pools);
                Op::Setxattr { name, value, mode }
            }
        }
        (FsOp::RMXATTR, _) => Op::Rmxattr { name: attribute(&m.path2.path) },
        (FsOp::SETLAYOUT | FsOp::SETDIRLAYOUT, RequestArgs::Setlayout(layout)) => {
            let hints = LayoutHints {
                stripe_unit: layout.stripe_unit,
                stripe_count: layout.stripe_count,
                object_size: layout.object_size,
                pool: (layout.pool > 0).then_some(layout.pool),
            };
            match m.op {
                FsOp::SETLAYOUT => Op::SetLayout(hints),
                _ => Op::SetDirLayout(hints),
            }
        }
        (FsOp::MKNOD, RequestArgs::Mknod { mode, rdev }) => Op::Mknod { mode: *mode, rdev: *rdev },
        (FsOp::MKDIR, RequestArgs::Mkdir { mode }) => Op::Mkdir { mode: *mode },
        (FsOp::SYMLINK, _) => Op::Symlink { target: m.path2.path.clone() },
        (FsOp::LINK, _) => {
            path2 = path_in(&m.path2)?;
            Op::Link
        }
        (FsOp::RENAME, _) => {
            path2 = path_in(&m.path2)?;
            Op::Rename
        }
        (FsOp::UNLINK, _) => Op::Unlink,
        (FsOp::RMDIR, _) => Op::Rmdir,
        _ => return Err(Errno::EOPNOTSUPP),
    };
    let releases = m
        .releases
        .iter()
        .map(|r| Release {
            ino: mds::Ino(r.ino.0),
            cap_id: r.cap_id,
            caps: r.caps,
            wanted: r.wanted,
            seq: r.seq,
            issue_seq: r.issue_seq,
            lease: (!r.dname.is_empty()).then(|| (r.dname.clone(), r.dname_seq)),
        })
        .collect();
    let request = Request {
        tid,
        oldest_tid: m.oldest_client_tid,
        uid: m.caller_uid,
        gid: m.caller_gid,
        groups: m.gids.iter().filter_map(|gid| u32::try_from(*gid).ok()).collect(),
        stamp: m.stamp,
        path,
        path2,
        releases,
        replay: (m.flags & ClientRequest::REPLAY != 0).then_some(mds::Ino(m.ino.0)),
        op,
    };
    Ok((request, shape))
}

/// The realms of an inode: the directories with quotas from it up, and the root. Clients look for
/// quotas along them.
pub fn trace_out(realms: &[mds::Ino]) -> Bytes {
    let chain: Vec<SnapRealmInfo> = realms
        .iter()
        .enumerate()
        .map(|(i, ino)| SnapRealmInfo {
            ino: cephfs::Ino(ino.0),
            created: REALM_SEQ,
            parent: cephfs::Ino(realms.get(i + 1).map_or(0, |up| up.0)),
            parent_since: REALM_SEQ,
            seq: REALM_SEQ,
            ..SnapRealmInfo::default()
        })
        .collect();
    cephfs::snap::encode_trace(&chain)
}

/// A record of an inode.
fn stat_out(stat: &mds::InodeStat, realm: mds::Ino) -> cephfs::InodeStat {
    let i = &*stat.inode;
    let count = |n: i64| u64::try_from(n).unwrap_or(0);
    // Of a directory, clients take the layout for one of its own. The root has that of the file
    // system.
    let inherits = i.is_dir() && i.ino != mds::Ino::ROOT;
    let layout = if inherits { i.layout.as_ref() } else { stat.layout.as_ref() };
    let below = u64::from(i.is_dir());
    cephfs::InodeStat {
        ino: cephfs::Ino(i.ino.0),
        snapid: SnapId::NOSNAP,
        rdev: i.rdev,
        version: i.version * 2,
        xattr_version: i.xattr_version + 1,
        cap: ReplyCap {
            caps: stat.cap.caps,
            wanted: stat.cap.wanted,
            cap_id: stat.cap.cap_id,
            seq: stat.cap.seq,
            mseq: 0,
            realm: cephfs::Ino(realm.0),
            // What is said of another rank's inode leaves alone what its own rank says.
            flags: if stat.cap.auth { cephfs::caps::FLAG_AUTH } else { 0 },
        },
        layout: layout.map(layout_out).unwrap_or_default(),
        ctime: i.ctime,
        mtime: i.mtime,
        atime: i.atime,
        time_warp_seq: i.time_warp_seq,
        size: i.size,
        max_size: stat.max_size,
        truncate_size: i.truncate_size,
        truncate_seq: i.truncate_seq,
        mode: i.mode,
        uid: i.uid,
        gid: i.gid,
        nlink: i.nlink,
        nfiles: count(i.dirstat.files),
        nsubdirs: count(i.dirstat.subdirs),
        rbytes: count(i.rstat.rbytes),
        rfiles: count(i.rstat.rfiles),
        rsubdirs: count(i.rstat.rsubdirs).max(below),
        rctime: i.rstat.rctime,
        symlink: i.symlink.clone(),
        dir_layout: if i.is_dir() { DirLayout::DEFAULT } else { DirLayout::default() },
        xattrs: encode_xattrs(&i.xattrs),
        quota: quota_out(&i.quota),
        btime: i.btime,
        change_attr: i.change_attr,
        dir_pin: i.pinned(),
        ..cephfs::InodeStat::default()
    }
}

/// What is needed besides an answer of the core.
pub struct Around<'a> {
    /// What was asked for.
    pub op: FsOp,
    /// How it becomes an answer.
    pub shape: &'a Shape,
    /// The epoch of the map.
    pub epoch: Epoch,
    /// Whether the client takes numbers of inodes with a created file.
    pub delegates: bool,
    /// The realms of an inode, nearest first; the root is the last one.
    pub realms: &'a dyn Fn(mds::Ino) -> Vec<mds::Ino>,
    /// Names of pools.
    pub pools: &'a Pools,
}

/// An answer without anything but its result.
pub fn refusal(op: FsOp, errno: Errno, epoch: Epoch) -> ClientReply {
    ClientReply { op, result: -errno.0, mdsmap_epoch: epoch, safe: true, ..ClientReply::default() }
}

/// The answer that follows an early one: it says that the change is durable, and nothing else.
/// Clients abort when there is more in it.
pub fn safe(op: FsOp, result: i32, epoch: Epoch) -> ClientReply {
    ClientReply { op, result, mdsmap_epoch: epoch, safe: true, ..ClientReply::default() }
}

/// An answer of the core in Ceph's form. The value of a virtual attribute stands in an envelope of
/// version 1 (16.2.15: `Server::handle_client_getvxattr`).
pub fn reply_out(reply: &Reply, around: &Around<'_>) -> ClientReply {
    let mut out = ClientReply {
        op: around.op,
        result: reply.result,
        mdsmap_epoch: around.epoch,
        safe: reply.safe,
        ..ClientReply::default()
    };
    if reply.result < 0 {
        return out;
    }
    let mut attribute = None;
    if let Shape::Attribute(name) = around.shape {
        attribute = reply.target.as_ref().and_then(|t| attribute_value(name, t, around.pools));
        if attribute.is_none() {
            out.result = -Errno::ENODATA.0;
        }
    }
    let first = |ino| (around.realms)(ino).first().copied().unwrap_or(mds::Ino::ROOT);
    let stat = |s: &mds::InodeStat| stat_out(s, first(s.inode.ino));
    let lease = |lease: &mds::Lease| LeaseStat {
        mask: if lease.duration_ms > 0 { LeaseStat::VALID } else { 0 },
        duration_ms: lease.duration_ms,
        seq: lease.seq,
        ..LeaseStat::default()
    };
    out.trace = Trace {
        dentry: reply.dentry.as_ref().map(|d| {
            Box::new(cephfs::reply::TraceDentry {
                dir: stat(&d.dir),
                frag: cephfs::DirStat::default(),
                name: d.name.clone(),
                lease: lease(&d.lease),
            })
        }),
        target: reply.target.as_ref().map(|t| Box::new(stat(t))),
    };
    let about = reply.target.as_ref().or(reply.dentry.as_ref().map(|d| &d.dir));
    if let Some(about) = about {
        out.snap_trace = trace_out(&(around.realms)(about.inode.ino));
    }
    out.extra = match (&reply.extra, around.shape) {
        // The answer has the inode all the same: it brings capabilities.
        (_, Shape::Attribute(_)) => attribute.map_or(Bytes::new(), |text| {
            let mut extra = BytesMut::new();
            denc::envelope(&mut extra, 1, 1, |out| text.encode(out, Features::ALL));
            extra.freeze()
        }),
        (_, Shape::NoSnapshots) => {
            let flags = DirPage::END | DirPage::COMPLETE;
            DirPage { flags, ..DirPage::default() }.to_bytes(Features::ALL)
        }
        (Extra::None, _) => Bytes::new(),
        (Extra::Created(ino), _) => {
            let ino = cephfs::Ino(ino.0);
            match around.delegates {
                true => OpenCreated { ino, ..OpenCreated::default() }.to_bytes(Features::ALL),
                false => ino.to_bytes(Features::ALL),
            }
        }
        (Extra::Page { end, complete, entries }, _) => {
            let mut flags = if *end { DirPage::END } else { 0 };
            flags |= if *complete { DirPage::COMPLETE } else { 0 };
            let entries =
                entries.iter().map(|(name, l, s)| (name.clone(), lease(l), stat(s))).collect();
            DirPage { flags, entries, ..DirPage::default() }.to_bytes(Features::ALL)
        }
        (Extra::Lock(_, lock), _) => lock_out(lock).to_bytes(Features::ALL),
    };
    out
}

/// Has a client give back the lease of a name (16.2: `Locker::revoke_client_leases`).
pub fn lease_out(end: &mds::LeaseEnd) -> ClientLease {
    ClientLease {
        action: ClientLease::REVOKE,
        mask: ClientLease::MASK,
        ino: cephfs::Ino(end.dir.0),
        first: SnapId(0),
        last: SnapId::NOSNAP,
        seq: end.seq,
        duration_ms: 0,
        dname: end.name.clone(),
    }
}

/// What a client says of a lease. No lease is made longer: a client that asks for that looks the
/// name up when the lease ends.
pub fn lease_in(client: mds::ClientId, m: &ClientLease) -> Option<mds::Event> {
    let gives_back = matches!(m.action, ClientLease::RELEASE | ClientLease::REVOKE_ACK);
    let release = || mds::Event::LeaseRelease(client, mds::Ino(m.ino.0), m.dname.clone(), m.seq);
    gives_back.then(release)
}

/// The text of a virtual attribute (16.2: `Server::handle_client_getvxattr`).
fn attribute_value(name: &[u8], stat: &mds::InodeStat, pools: &Pools) -> Option<String> {
    let name = std::str::from_utf8(name).ok()?;
    let i = &*stat.inode;
    if name.starts_with("ceph.dir.pin") && !i.is_dir() {
        return None;
    }
    if name == "ceph.dir.pin" {
        return Some(i.pinned().to_string());
    }
    if name == "ceph.dir.pin.distributed" {
        return Some(u8::from(i.distributed).to_string());
    }
    if name == "ceph.dir.pin.random" {
        return Some(six_digits(i.random.get()));
    }
    if name.starts_with("ceph.dmclock.") {
        return i.xattrs.get(name.as_bytes()).map(|v| String::from_utf8_lossy(v).into_owned());
    }
    let prefix = if i.is_dir() { "ceph.dir.layout" } else { "ceph.file.layout" };
    let field = name.strip_prefix(prefix)?;
    let layout = stat.layout.as_ref()?;
    let pool_name = pools.iter().find(|(_, id)| **id == layout.pool).map_or("", |(n, _)| n);
    Some(match field {
        ".json" => serde_json::json!({
            "stripe_unit": layout.stripe_unit,
            "stripe_count": layout.stripe_count,
            "object_size": layout.object_size,
            "pool_name": pool_name,
            "pool_id": layout.pool,
            "pool_namespace": layout.namespace,
            "inheritance": match &i.layout {
                Some(_) => "@set",
                None => "@inherited",
            },
        })
        .to_string(),
        ".pool_name" => pool_name.to_owned(),
        ".pool_id" => layout.pool.to_string(),
        ".pool" if pool_name.is_empty() => layout.pool.to_string(),
        ".pool" => pool_name.to_owned(),
        ".stripe_unit" => layout.stripe_unit.to_string(),
        ".stripe_count" => layout.stripe_count.to_string(),
        ".object_size" => layout.object_size.to_string(),
        ".pool_namespace" => layout.namespace.clone(),
        _ => return None,
    })
}

/// A chance as stock writes it: six digits, without zeros at the end (C: `%g`).
fn six_digits(n: f64) -> String {
    let scientific = format!("{n:.5e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let shorter = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if n != 0.0 && exponent < -4 {
        return format!("{}e-{:02}", shorter(digits), -exponent);
    }
    shorter(&format!("{n:.*}", usize::try_from(5 - exponent).unwrap_or(0)))
}

/// What a client says about capabilities; nothing for what needs no answer here.
pub fn caps_in(tid: u64, m: &ClientCaps) -> Option<CapsUpdate> {
    if ![CapOp::UPDATE, CapOp::FLUSH, CapOp::DROP].contains(&m.op) {
        return None;
    }
    let xattrs = (m.dirty & mds::caps::XATTR_EXCL != 0)
        .then(|| Reader::new(m.xattrs.clone()).get::<BTreeMap<Bytes, Bytes>>().ok())
        .flatten();
    Some(CapsUpdate {
        ino: mds::Ino(m.ino.0),
        cap_id: m.cap_id,
        seq: m.seq,
        issue_seq: m.issue_seq,
        caps: m.caps,
        wanted: m.wanted,
        dirty: m.dirty,
        // Clients of 16.2 send changes with an update, too.
        flush: (m.op == CapOp::FLUSH || (m.dirty != 0 && tid != 0)).then_some(tid),
        sync: m.flags & ClientCaps::SYNC != 0,
        oldest_flush: m.oldest_flush_tid,
        attrs: CapAttrs {
            mode: m.mode,
            uid: m.uid,
            gid: m.gid,
            size: m.size,
            mtime: m.mtime,
            atime: m.atime,
            ctime: m.ctime,
            btime: m.btime,
            time_warp_seq: m.time_warp_seq,
            change_attr: m.change_attr,
            xattrs,
        },
        max_size: m.max_size,
        uid: m.caller_uid,
        gid: m.caller_gid,
    })
}

/// A word about capabilities: the message, and its number.
pub fn caps_out(m: &CapsMessage, realm: mds::Ino, barrier: Epoch) -> (ClientCaps, u64) {
    let i = &*m.inode;
    let (op, tid, dirty) = match m.op {
        CapsOp::Grant => (CapOp::GRANT, 0, 0),
        CapsOp::Revoke => (CapOp::REVOKE, 0, 0),
        CapsOp::FlushAck { flush, dirty } => (CapOp::FLUSH_ACK, flush, dirty),
        CapsOp::Export => (CapOp::EXPORT, 0, 0),
    };
    let layout = if i.is_dir() { i.layout.as_ref() } else { m.layout.as_ref() };
    let count = |n: i64| if i.is_dir() { n } else { -1 };
    let caps = ClientCaps {
        op,
        ino: cephfs::Ino(i.ino.0),
        realm: cephfs::Ino(realm.0),
        cap_id: m.cap_id,
        seq: m.seq,
        issue_seq: m.seq,
        caps: m.caps,
        wanted: m.wanted,
        dirty,
        uid: i.uid,
        gid: i.gid,
        mode: i.mode,
        nlink: i.nlink,
        xattr_version: i.xattr_version + 1,
        xattrs: encode_xattrs(&i.xattrs),
        size: i.size,
        max_size: m.max_size,
        truncate_size: i.truncate_size,
        truncate_seq: i.truncate_seq,
        mtime: i.mtime,
        atime: i.atime,
        ctime: i.ctime,
        layout: layout.map(layout_out).unwrap_or_default(),
        time_warp_seq: i.time_warp_seq,
        inline_version: InlineData::NONE,
        osd_epoch_barrier: barrier,
        btime: i.btime,
        change_attr: i.change_attr,
        nfiles: count(i.dirstat.files),
        nsubdirs: count(i.dirstat.subdirs),
        ..ClientCaps::default()
    };
    (caps, tid)
}

/// What a client claims of an inode.
pub fn claim_in(client: ClientId, ino: cephfs::Ino, m: &CapReconnect) -> Claim {
    let mut locks = Vec::new();
    // Of each kind a number, and as many locks (16.2, client/Client.cc, `_encode_filelocks`).
    let mut r = Reader::new(m.flock.clone());
    for kind in [LockKind::Posix, LockKind::Flock] {
        let Ok(held) = r.get::<Vec<cephfs::reply::FileLock>>() else { break };
        for lock in held {
            let Ok(kind_of) = lock_type(lock.kind) else { continue };
            let held = FileLock {
                start: lock.start,
                length: lock.length,
                client,
                owner: lock.owner,
                pid: lock.pid,
                kind: kind_of,
            };
            locks.push((kind, held));
        }
    }
    Claim { ino: mds::Ino(ino.0), cap_id: m.cap_id, issued: m.issued, wanted: m.wanted, locks }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(op: FsOp, args: RequestArgs, path: &str, path2: &str) -> ClientRequest {
        let at = |p: &str| messages::FilePath {
            ino: cephfs::Ino::ROOT,
            path: Bytes::copy_from_slice(p.as_bytes()),
        };
        ClientRequest { op, args, path: at(path), path2: at(path2), ..ClientRequest::default() }
    }

    #[test]
    fn requests_that_cannot_be_served_are_answered() {
        let none = Pools::new();
        for (op, path, errno) in [
            (FsOp::MKSNAP, "/a", Errno::EOPNOTSUPP),
            (FsOp::LOOKUPSNAP, "a", Errno::ENOENT),
            (FsOp(0x1500), "", Errno::EOPNOTSUPP),
            (FsOp::GETATTR, "/snap", Errno::ENOENT),
            (FsOp::GETATTR, "dir//snap", Errno::ENOENT),
        ] {
            let m = request(op, RequestArgs::default(), path, "");
            assert_eq!(request_in(1, &m, &none).unwrap_err(), errno, "{op}");
        }
        // Arguments of another operation.
        let m = request(FsOp::OPEN, RequestArgs::Mkdir { mode: 0 }, "a", "");
        assert_eq!(request_in(1, &m, &none).unwrap_err(), Errno::EOPNOTSUPP);
    }

    #[test]
    fn chances_are_written_as_by_c() {
        for (n, text) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (1.0, "1"),
            (0.01, "0.01"),
            (0.123_456_78, "0.123457"),
            (0.999_999_9, "1"),
            (0.000_1, "0.0001"),
            (0.000_012_3, "1.23e-05"),
            (1e-300, "1e-300"),
        ] {
            assert_eq!(six_digits(n), text);
        }
    }

    #[test]
    fn a_client_that_comes_back_claims_its_locks() {
        let lock = |start: u64, kind: u8| {
            let mut bytes = Vec::new();
            for field in [start, 10, 4711, 7, 8] {
                bytes.extend(u64::to_le_bytes(field));
            }
            bytes.push(kind);
            bytes
        };
        let mut flock = 2u32.to_le_bytes().to_vec();
        flock.extend(lock(0, cephfs::reply::FileLock::SHARED));
        flock.extend(lock(20, cephfs::reply::FileLock::EXCL));
        flock.extend(1u32.to_le_bytes());
        flock.extend(lock(0, cephfs::reply::FileLock::EXCL));
        let m = CapReconnect { flock: flock.into(), ..CapReconnect::default() };
        let claim = claim_in(ClientId(4711), cephfs::Ino::ROOT, &m);
        let held: Vec<_> =
            claim.locks.iter().map(|(rule, l)| (*rule, l.start, l.client, l.kind)).collect();
        let (client, shared, exclusive) =
            (ClientId(4711), mds::LockType::Shared, mds::LockType::Exclusive);
        assert_eq!(
            held,
            [
                (LockKind::Posix, 0, client, shared),
                (LockKind::Posix, 20, client, exclusive),
                (LockKind::Flock, 0, client, exclusive),
            ]
        );
    }

    #[test]
    fn changes_are_acknowledged_whatever_brings_them() {
        let update = |op, dirty, tid| {
            let m = ClientCaps { op, dirty, ..ClientCaps::default() };
            caps_in(tid, &m).map(|u| u.flush)
        };
        assert_eq!(update(CapOp::UPDATE, mds::caps::FILE_WR, 7), Some(Some(7)));
        assert_eq!(update(CapOp::FLUSH, mds::caps::FILE_WR, 7), Some(Some(7)));
        assert_eq!(update(CapOp::UPDATE, 0, 0), Some(None));
        assert_eq!(update(CapOp::FLUSHSNAP, 0, 3), None);
    }

    #[test]
    fn ways_of_opening_want_what_they_need() {
        use mds::caps::{FILE_BUFFER, FILE_RD, FILE_WR, PIN};
        assert_eq!(wanted(0) & (FILE_RD | FILE_WR), FILE_RD);
        assert_eq!(wanted(1) & (FILE_RD | FILE_WR), FILE_WR);
        assert_eq!(wanted(2) & (FILE_RD | FILE_WR | FILE_BUFFER), FILE_RD | FILE_WR | FILE_BUFFER);
        assert_eq!(wanted(OpenArgs::DIRECTORY), PIN);
    }

    #[test]
    fn pools_are_found_by_name_and_number() {
        let pools = Pools::from([("fast".to_owned(), 7), ("9".to_owned(), 8)]);
        let by = |name: &str, value: &'static str| {
            pools_by_number(name.as_bytes(), &Bytes::from_static(value.as_bytes()), &pools)
        };
        assert_eq!(by("ceph.dir.layout.pool", "fast"), "7");
        assert_eq!(by("ceph.dir.layout.pool", "7"), "7");
        assert_eq!(by("ceph.file.layout.pool", "9"), "8");
        assert_eq!(by("ceph.file.layout.pool", "other"), "none");
        assert_eq!(by("ceph.dir.layout", "pool=fast stripe_count=2"), "pool=7 stripe_count=2");
        assert_eq!(by("ceph.quota.max_bytes", "5"), "5");
        assert_eq!(attribute(&"ceph.dir.layout.pool_name".into()), "ceph.dir.layout.pool");
    }

    #[test]
    fn the_value_of_a_virtual_attribute_stands_in_an_envelope() {
        let limit = ("ceph.dmclock.mds_limit".into(), Bytes::from_static(b"100"));
        let inode = mds::Inode { mode: 0o40_755, xattrs: [limit].into(), ..mds::Inode::default() };
        let cap = mds::CapGrant::default();
        let stat =
            mds::InodeStat { inode: Box::new(inode), layout: None, max_size: 0, cap, quota: None };
        let (dentry, extra) = (None, Extra::None);
        let reply = Reply { tid: 1, result: 0, safe: true, dentry, target: Some(stat), extra };
        let answer = |name: &'static str| {
            let around = Around {
                op: FsOp::GETVXATTR,
                shape: &Shape::Attribute(name.into()),
                epoch: Epoch(1),
                delegates: false,
                realms: &|_| vec![mds::Ino::ROOT],
                pools: &Pools::new(),
            };
            let out = reply_out(&reply, &around);
            (out.result, out.extra)
        };
        let value = Bytes::from_static(b"\x01\x01\x07\0\0\0\x03\0\0\x00100");
        assert_eq!(answer("ceph.dmclock.mds_limit"), (0, value));
        assert_eq!(answer("ceph.dmclock.mds_weight"), (-Errno::ENODATA.0, Bytes::new()));
    }

    #[test]
    fn leases_are_told_and_given_back() {
        let dir = mds::Ino(0x100_0000_0001);
        let name = Bytes::from_static(b"name");
        let end = mds::LeaseEnd { dir, name: name.clone(), seq: 9 };
        let told = lease_out(&end);
        let said = |action| lease_in(mds::ClientId(4), &ClientLease { action, ..told.clone() });
        let back = Some(mds::Event::LeaseRelease(mds::ClientId(4), dir, name, 9));
        assert_eq!((told.action, said(ClientLease::RELEASE)), (ClientLease::REVOKE, back.clone()));
        assert_eq!((said(ClientLease::REVOKE_ACK), said(ClientLease::RENEW)), (back, None));
        // With a request, beside capabilities or without.
        let drop = |dname: &'static [u8]| messages::CapDrop {
            ino: cephfs::Ino(dir.0),
            dname_seq: 9,
            dname: Bytes::from_static(dname),
            ..messages::CapDrop::default()
        };
        let mut asked = request(FsOp::UNLINK, RequestArgs::default(), "name", "");
        asked.releases = vec![drop(b"name"), drop(b"")];
        let (request, _) = request_in(1, &asked, &Pools::new()).unwrap();
        let leases: Vec<_> = request.releases.into_iter().map(|r| r.lease).collect();
        assert_eq!(leases, [Some((Bytes::from_static(b"name"), 9)), None]);
    }

    #[test]
    fn realms_lead_to_the_root() {
        let trace = trace_out(&[mds::Ino(0x100_0000_0001), mds::Ino::ROOT]);
        let realms = cephfs::snap::decode_trace(&trace).unwrap();
        assert_eq!(realms[0].parent, cephfs::Ino::ROOT);
        assert_eq!((realms[1].ino, realms[1].parent), (cephfs::Ino::ROOT, cephfs::Ino(0)));
    }
}
