//! Inodes and entries between the core's form and the one in which Ceph keeps them.
//!
//! What the core knows nothing of (how names are hashed, the latest scrub, and so on) stays
//! with the inode as it was found: [`mds::Inode::rest`].

use bytes::Bytes;
use cephfs::{
    ClientRange, DirLayout, FileLayout, Fnode, FragInfo, FragTree, InlineData, InodeStore, Link,
    NestInfo, SnapRealmRecord,
};
use denc::{Decode, Encode, Features};
use mds::{
    Chance, ClientId, Dentry, DirHead, DirStat, Inode, Layout, NestStat, Quota, Space, Split,
};
use types::SnapId;

/// The first snapshot that a new entry stands for: no snapshot has the number 1.
const FIRST_SNAP: SnapId = SnapId(2);

/// Why an entry is not served.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Its bytes make no sense.
    #[error("damaged: {0}")]
    Damaged(#[from] denc::DecodeError),
    /// It has snapshots.
    #[error("the inode {0} has snapshots, which this server does not keep")]
    Snapshots(cephfs::Ino),
    /// Its data is in the inode.
    #[error("the inode {0} has inline data, which this server does not serve")]
    Inline(cephfs::Ino),
}

/// A layout in Ceph's form.
pub fn layout_out(layout: &Layout) -> FileLayout {
    FileLayout {
        stripe_unit: layout.stripe_unit,
        stripe_count: layout.stripe_count,
        object_size: layout.object_size,
        pool: layout.pool,
        namespace: layout.namespace.clone(),
    }
}

/// A layout in the core's form; nothing if it says nothing.
pub fn layout_in(layout: &FileLayout) -> Option<Layout> {
    (layout.stripe_unit != 0 && layout.pool >= 0).then(|| Layout {
        stripe_unit: layout.stripe_unit,
        stripe_count: layout.stripe_count,
        object_size: layout.object_size,
        pool: layout.pool,
        namespace: layout.namespace.clone(),
    })
}

fn dirstat_in(s: &FragInfo) -> DirStat {
    DirStat { mtime: s.mtime, change_attr: s.change_attr, files: s.nfiles, subdirs: s.nsubdirs }
}

fn dirstat_out(s: &DirStat, version: u64) -> FragInfo {
    FragInfo {
        version,
        mtime: s.mtime,
        nfiles: s.files,
        nsubdirs: s.subdirs,
        change_attr: s.change_attr,
    }
}

fn rstat_in(s: &NestInfo) -> NestStat {
    NestStat { rctime: s.rctime, rbytes: s.rbytes, rfiles: s.rfiles, rsubdirs: s.rsubdirs }
}

fn rstat_out(s: &NestStat, version: u64) -> NestInfo {
    NestInfo {
        version,
        rbytes: s.rbytes,
        rfiles: s.rfiles,
        rsubdirs: s.rsubdirs,
        rsnaps: 0,
        rctime: s.rctime,
    }
}

/// The bits of an inode number above the rank's own numbers tell its subvolume.
fn space_in(flags: u64) -> Space {
    Space(u16::try_from(flags).unwrap_or(0))
}

/// The name of the attribute in which a directory keeps the space of what is made below it. Clients
/// do not see it.
const SPACE_XATTR: &[u8] = b"ceph.siphon.space";

/// An inode in the core's form.
pub fn inode_in(mut store: InodeStore) -> Result<Inode, Refused> {
    let i = &store.inode;
    if !store.old_inodes.is_empty()
        || store.snap.as_ref().is_some_and(|s| !s.snaps.is_empty() || !s.past_parents.is_empty())
    {
        return Err(Refused::Snapshots(i.ino));
    }
    if i.inline.version != InlineData::NONE && !i.inline.data.is_empty() {
        return Err(Refused::Inline(i.ino));
    }
    let space = store.xattrs.remove(SPACE_XATTR);
    let space = space
        .and_then(|v| std::str::from_utf8(&v).ok().and_then(|t| t.parse().ok()))
        .map_or(Space(0), space_in);
    let i = &store.inode;
    let mut out = Inode {
        ino: mds::Ino(i.ino.0),
        rdev: i.rdev,
        mode: i.mode,
        uid: i.uid,
        gid: i.gid,
        nlink: u32::try_from(i.nlink).unwrap_or(0),
        ctime: i.ctime,
        btime: i.btime,
        mtime: i.mtime,
        atime: i.atime,
        time_warp_seq: i.time_warp_seq,
        change_attr: i.change_attr,
        layout: layout_in(&i.layout),
        size: i.size,
        max_size_ever: i.max_size_ever,
        truncate_seq: i.truncate_seq,
        truncate_size: i.truncate_size,
        truncate_from: i.truncate_from,
        truncate_pending: i.truncate_pending,
        ranges: i
            .client_ranges
            .iter()
            .filter_map(|(c, r)| Some((ClientId(u64::try_from(*c).ok()?), r.last)))
            .collect(),
        dirstat: dirstat_in(&i.dirstat),
        rstat: rstat_in(&i.rstat),
        quota: Quota {
            max_bytes: u64::try_from(i.quota.max_bytes).unwrap_or(0),
            max_files: u64::try_from(i.quota.max_files).unwrap_or(0),
        },
        version: i.version,
        xattr_version: i.xattr_version,
        backtrace_version: i.backtrace_version,
        symlink: std::mem::take(&mut store.symlink),
        xattrs: std::mem::take(&mut store.xattrs),
        space,
        distributed: i.ephemeral_distributed_pin,
        random: Chance::new(i.ephemeral_random_pin).unwrap_or_default(),
        split: if store.fragtree.0.is_empty() { Split::No } else { Split::Yes },
        ..Inode::default()
    };
    out.pin_to(i.export_pin);
    Ok(Inode { rest: rest_of(store, &out), ..out })
}

/// What the core does not know of an inode; nothing if all of it is as in a new one.
fn rest_of(mut store: InodeStore, known: &Inode) -> Bytes {
    let written = store_of(known, InodeStore::default());
    let old = std::mem::take(&mut store.inode);
    // What the core knows is taken from there when the inode is written.
    store.inode = cephfs::Inode {
        ino: old.ino,
        mode: old.mode,
        old_pools: old.old_pools,
        stray_prior_path: old.stray_prior_path,
        last_scrub_version: old.last_scrub_version,
        last_scrub_stamp: old.last_scrub_stamp,
        file_data_version: old.file_data_version,
        fscrypt: old.fscrypt,
        newer: old.newer,
        ..cephfs::Inode::default()
    };
    let plain = InodeStore {
        inode: cephfs::Inode {
            ino: written.inode.ino,
            mode: written.inode.mode,
            ..cephfs::Inode::default()
        },
        snap: written.snap,
        oldest_snap: store.oldest_snap,
        ..InodeStore::default()
    };
    if store == plain { Bytes::new() } else { store.to_bytes(Features::ALL) }
}

/// An inode in Ceph's form.
pub fn inode_out(inode: &Inode) -> InodeStore {
    let rest = match inode.rest.is_empty() {
        true => InodeStore::default(),
        // It was made by `rest_of`, or the log would not have been read.
        false => InodeStore::from_bytes(&inode.rest).unwrap_or_default(),
    };
    store_of(inode, rest)
}

/// The fragments into which a stock server split a directory.
pub fn fragments(inode: &Inode) -> Vec<cephfs::Frag> {
    match inode.split {
        Split::No => Vec::new(),
        Split::Yes | Split::Joined => {
            InodeStore::from_bytes(&inode.rest).unwrap_or_default().fragtree.leaves()
        }
    }
}

fn store_of(inode: &Inode, rest: InodeStore) -> InodeStore {
    let is_dir = inode.is_dir();
    let own = rstat_out(&inode.rstat, inode.version);
    let mut xattrs = inode.xattrs.clone();
    if inode.space != Space(0) {
        xattrs.insert(SPACE_XATTR.into(), inode.space.0.to_string().into());
    }
    InodeStore {
        inode: cephfs::Inode {
            ino: cephfs::Ino(inode.ino.0),
            rdev: inode.rdev,
            ctime: inode.ctime,
            btime: inode.btime,
            mode: inode.mode,
            uid: inode.uid,
            gid: inode.gid,
            nlink: i32::try_from(inode.nlink).unwrap_or(i32::MAX),
            dir_layout: if is_dir { DirLayout::DEFAULT } else { DirLayout::default() },
            layout: inode.layout.as_ref().map(layout_out).unwrap_or_default(),
            size: if is_dir { 0 } else { inode.size },
            truncate_seq: inode.truncate_seq,
            truncate_size: inode.truncate_size,
            truncate_from: inode.truncate_from,
            truncate_pending: inode.truncate_pending,
            mtime: inode.mtime,
            atime: inode.atime,
            time_warp_seq: inode.time_warp_seq,
            client_ranges: inode
                .ranges
                .iter()
                .filter_map(|(c, last)| {
                    let range = ClientRange { first: 0, last: *last, follows: SnapId(1) };
                    Some((i64::try_from(c.0).ok()?, range))
                })
                .collect(),
            dirstat: dirstat_out(&inode.dirstat, inode.version),
            rstat: own,
            accounted_rstat: own,
            version: inode.version,
            xattr_version: inode.xattr_version,
            backtrace_version: inode.backtrace_version,
            max_size_ever: inode.max_size_ever,
            inline: InlineData { version: InlineData::NONE, data: Bytes::new() },
            quota: quota_out(&inode.quota),
            change_attr: inode.change_attr,
            export_pin: inode.pinned(),
            ephemeral_random_pin: inode.random.get(),
            ephemeral_distributed_pin: inode.distributed,
            ..rest.inode
        },
        symlink: inode.symlink.clone(),
        fragtree: if inode.split == Split::Yes { rest.fragtree } else { FragTree::default() },
        xattrs,
        snap: realm_of(inode, rest.snap),
        ..rest
    }
}

/// A directory with a quota, and the root of a subvolume, have a realm of their own: a stock server
/// tells clients of quotas by realms.
fn realm_of(inode: &Inode, old: Option<Box<SnapRealmRecord>>) -> Option<Box<SnapRealmRecord>> {
    let subvolume = inode.space != Space(0);
    if !inode.is_dir() || (!subvolume && inode.quota == Quota::default()) {
        return old;
    }
    let new = || SnapRealmRecord { seq: SnapId(1), created: SnapId(1), ..Default::default() };
    let mut realm = old.unwrap_or_else(|| Box::new(new()));
    if subvolume {
        realm.flags |= SnapRealmRecord::SUBVOLUME;
    }
    Some(realm)
}

/// A quota in Ceph's form.
pub fn quota_out(quota: &Quota) -> cephfs::Quota {
    cephfs::Quota {
        max_bytes: i64::try_from(quota.max_bytes).unwrap_or(i64::MAX),
        max_files: i64::try_from(quota.max_files).unwrap_or(i64::MAX),
    }
}

/// The value of an entry's row.
pub fn dentry_out(dentry: &Dentry) -> Bytes {
    let link = match dentry {
        Dentry::Primary(inode) => {
            Link::Primary { alternate_name: Bytes::new(), store: Box::new(inode_out(inode)) }
        }
        Dentry::Remote { ino, d_type } => {
            Link::Remote { ino: cephfs::Ino(ino.0), d_type: *d_type, alternate_name: Bytes::new() }
        }
    };
    cephfs::Dentry { first: FIRST_SNAP, link }.to_bytes(Features::ALL)
}

/// The entry of a row.
pub fn dentry_in(value: &Bytes) -> Result<Dentry, Refused> {
    Ok(match cephfs::Dentry::from_bytes(value)?.link {
        Link::Primary { store, .. } => Dentry::Primary(Box::new(inode_in(*store)?)),
        Link::Remote { ino, d_type, .. } => Dentry::Remote { ino: mds::Ino(ino.0), d_type },
    })
}

/// The header of a directory's object. Its version is not below those of the entries in it.
pub fn head_out(head: &DirHead, entries: u64) -> Fnode {
    let version = head.version.max(entries);
    let fragstat = dirstat_out(&head.dirstat, head.version);
    let rstat = rstat_out(&head.rstat, head.version);
    Fnode {
        version,
        snap_purged_thru: SnapId(1),
        fragstat,
        accounted_fragstat: fragstat,
        rstat,
        accounted_rstat: rstat,
        ..Fnode::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::Utime;

    fn file() -> Inode {
        Inode {
            ino: mds::Ino(0x100_0000_0005),
            mode: 0o100_644,
            uid: 7,
            nlink: 2,
            size: 12,
            truncate_seq: 1,
            truncate_size: u64::MAX,
            version: 9,
            mtime: Utime::new(5, 6),
            layout: layout_in(&FileLayout::of_pool(3)),
            ranges: [(ClientId(4100), 4 << 20)].into(),
            rstat: NestStat { rbytes: 12, rfiles: 1, ..NestStat::default() },
            xattrs: [(Bytes::from_static(b"user.a"), Bytes::from_static(b"b"))].into(),
            ..Inode::default()
        }
    }

    #[test]
    fn directories_with_quotas_and_subvolumes_have_realms() {
        let dir = Inode { mode: 0o40_755, ..Inode::default() };
        assert_eq!(inode_out(&dir).snap, None);
        let limited = Inode { quota: Quota { max_bytes: 1, max_files: 0 }, ..dir.clone() };
        let flags = |i: &Inode| inode_out(i).snap.map(|s| (s.seq, s.created, s.flags));
        assert_eq!(flags(&limited), Some((SnapId(1), SnapId(1), 0)));
        let subvolume = Inode { space: Space(0x200), ..dir };
        assert_eq!(flags(&subvolume), Some((SnapId(1), SnapId(1), SnapRealmRecord::SUBVOLUME)));
        for inode in [limited, subvolume] {
            assert_eq!(inode_in(inode_out(&inode)), Ok(inode));
        }
    }

    #[test]
    fn inodes_return_from_rest() {
        let dir = Inode {
            ino: mds::Ino(0x100_0000_0006),
            mode: 0o040_755,
            nlink: 1,
            quota: Quota { max_bytes: 10, max_files: 0 },
            space: Space(0x200),
            pin: 3,
            distributed: true,
            random: Chance::new(0.25).unwrap(),
            ..Inode::default()
        };
        let link = Inode { mode: 0o120_777, symlink: Bytes::from_static(b"to"), ..file() };
        for inode in [file(), dir, link] {
            let dentry = Dentry::Primary(Box::new(inode));
            assert_eq!(dentry_in(&dentry_out(&dentry)), Ok(dentry));
        }
        let remote = Dentry::Remote { ino: mds::Ino(5), d_type: 8 };
        assert_eq!(dentry_in(&dentry_out(&remote)), Ok(remote));
    }

    #[test]
    fn what_the_core_does_not_know_is_kept() {
        let mut store = inode_out(&file());
        store.inode.last_scrub_version = 5;
        store.inode.stray_prior_path = Bytes::from_static(b"/old");
        let mut back = inode_in(store).unwrap();
        back.size = 13;
        let written = inode_out(&back);
        assert_eq!((written.inode.last_scrub_version, written.inode.size), (5, 13));
        assert_eq!(written.inode.stray_prior_path, "/old");
        assert!(inode_in(inode_out(&file())).unwrap().rest.is_empty());
    }

    #[test]
    fn a_split_directory_keeps_its_fragments_until_they_are_joined() {
        let dir = Inode { ino: mds::Ino(7), mode: 0o40_755, ..Inode::default() };
        let mut store = inode_out(&dir);
        store.fragtree.0.insert(cephfs::Frag::ROOT, 3);
        let mut back = inode_in(store.clone()).unwrap();
        assert_eq!((back.split, fragments(&back).len()), (Split::Yes, 8));
        assert_eq!(inode_out(&back), store);
        back.split = Split::Joined;
        assert_eq!((inode_out(&back).fragtree, fragments(&back).len()), (FragTree::default(), 8));
    }

    #[test]
    fn what_is_not_served_is_refused() {
        let mut store = inode_out(&file());
        store.inode.inline.data = Bytes::from_static(b"data");
        store.inode.inline.version = 1;
        assert_eq!(inode_in(store), Err(Refused::Inline(cephfs::Ino(0x100_0000_0005))));
        assert!(dentry_in(&Bytes::from_static(b"\0\0")).is_err());
    }
}
