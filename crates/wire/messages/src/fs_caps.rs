//! Capabilities of clients of file systems, and leases of entries.

use crate::payload::{Parts, Payload, Received};
use bytes::{BufMut, Bytes, BytesMut};
use cephfs::inode::InlineData;
use cephfs::{FileLayout, Ino};
use denc::{DecodeError, Encode, Features, Reader};
use denc_derive::Denc;
use types::{Epoch, SnapId, Utime};

/// What a message about a capability is (Ceph: `CEPH_CAP_OP_*`, `include/ceph_fs.h`).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Denc)]
pub struct CapOp(pub u32);

impl CapOp {
    /// Server: the client has this now.
    pub const GRANT: CapOp = CapOp(0);
    /// Server: the client gives something back.
    pub const REVOKE: CapOp = CapOp(1);
    /// Server: the file was cut.
    pub const TRUNC: CapOp = CapOp(2);
    /// Server: another rank has the inode.
    pub const EXPORT: CapOp = CapOp(3);
    /// Server: the inode came from another rank.
    pub const IMPORT: CapOp = CapOp(4);
    /// Client: this is what it has and wants.
    pub const UPDATE: CapOp = CapOp(5);
    /// Client: bits that it gives back.
    pub const DROP: CapOp = CapOp(6);
    /// Client: changes.
    pub const FLUSH: CapOp = CapOp(7);
    /// Server: changes are durable.
    pub const FLUSH_ACK: CapOp = CapOp(8);
    /// Client: changes as of a snapshot.
    pub const FLUSHSNAP: CapOp = CapOp(9);
    /// Server: those are durable.
    pub const FLUSHSNAP_ACK: CapOp = CapOp(10);
    /// Client: it has the inode no longer.
    pub const RELEASE: CapOp = CapOp(11);
    /// Client: is it still valid?
    pub const RENEW: CapOp = CapOp(12);
}

/// The capability of another rank, with `EXPORT` and `IMPORT` (Ceph: `ceph_mds_cap_peer`; plain).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Denc)]
pub struct CapPeer {
    /// Number of the capability there.
    pub cap_id: u64,
    /// The last message about it.
    pub seq: u32,
    /// Counts moves.
    pub mseq: u32,
    /// The rank.
    pub mds: u32,
    /// See [`cephfs::caps::FLAG_AUTH`].
    pub flags: u8,
}

impl CapPeer {
    const BYTES: usize = 8 + 3 * 4 + 1;
}

/// A message about a capability, in both directions (Ceph 16.2: `MClientCaps`, version 11, compat
/// 1; 18.2 appends two fields about encryption). With `FLUSH`, `FLUSHSNAP` and their answers the
/// message's `tid` is the flush's number.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientCaps {
    /// What it is.
    pub op: CapOp,
    /// The inode.
    pub ino: Ino,
    /// Its snapshot realm.
    pub realm: Ino,
    /// Number of the capability.
    pub cap_id: u64,
    /// Counts the server's messages about it.
    pub seq: u32,
    /// The last one that gave something.
    pub issue_seq: u32,
    /// What the client has: [`cephfs::caps`].
    pub caps: u32,
    /// What it wants.
    pub wanted: u32,
    /// What of the inode it has changed.
    pub dirty: u32,
    /// Counts moves between ranks.
    pub migrate_seq: u32,
    /// The snapshot that changes come after.
    pub snap_follows: SnapId,
    /// Snapshot realms.
    pub snap_trace: Bytes,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Kind and permissions.
    pub mode: u32,
    /// Names.
    pub nlink: u32,
    /// Version of extended attributes.
    pub xattr_version: u64,
    /// Extended attributes ([`cephfs::reply::encode_xattrs`]): the middle segment.
    pub xattrs: Bytes,
    /// Bytes.
    pub size: u64,
    /// How far the client may write, or wants to.
    pub max_size: u64,
    /// The size after the latest truncation.
    pub truncate_size: u64,
    /// Counts truncations.
    pub truncate_seq: u32,
    /// Latest change of data.
    pub mtime: Utime,
    /// Latest read.
    pub atime: Utime,
    /// Latest change.
    pub ctime: Utime,
    /// Where the data is.
    pub layout: FileLayout,
    /// Counts times that were set by hand.
    pub time_warp_seq: u32,
    /// With `EXPORT` and `IMPORT`: the other rank's capability.
    pub peer: CapPeer,
    /// File locks.
    pub flock: Bytes,
    /// Version of data in the inode.
    pub inline_version: u64,
    /// That data.
    pub inline_data: Bytes,
    /// The OSD map that the receiver waits for.
    pub osd_epoch_barrier: Epoch,
    /// The client has no unanswered flush below this one.
    pub oldest_flush_tid: u64,
    /// The user.
    pub caller_uid: u32,
    /// The user's group.
    pub caller_gid: u32,
    /// When it was made.
    pub btime: Utime,
    /// Counts changes.
    pub change_attr: u64,
    /// See [`ClientCaps::SYNC`].
    pub flags: u32,
    /// Entries that are no directories; -1 if not told.
    pub nfiles: i64,
    /// Directories; -1 if not told.
    pub nsubdirs: i64,
}

impl Default for ClientCaps {
    fn default() -> Self {
        ClientCaps {
            op: CapOp::GRANT,
            ino: Ino(0),
            realm: Ino(0),
            cap_id: 0,
            seq: 0,
            issue_seq: 0,
            caps: 0,
            wanted: 0,
            dirty: 0,
            migrate_seq: 0,
            snap_follows: SnapId(0),
            snap_trace: Bytes::new(),
            uid: 0,
            gid: 0,
            mode: 0,
            nlink: 0,
            xattr_version: 0,
            xattrs: Bytes::new(),
            size: 0,
            max_size: 0,
            truncate_size: 0,
            truncate_seq: 0,
            mtime: Utime::ZERO,
            atime: Utime::ZERO,
            ctime: Utime::ZERO,
            layout: FileLayout::default(),
            time_warp_seq: 0,
            peer: CapPeer::default(),
            flock: Bytes::new(),
            inline_version: 0,
            inline_data: Bytes::new(),
            osd_epoch_barrier: Epoch(0),
            oldest_flush_tid: 0,
            caller_uid: 0,
            caller_gid: 0,
            btime: Utime::ZERO,
            change_attr: 0,
            flags: 0,
            nfiles: -1,
            nsubdirs: -1,
        }
    }
}

impl ClientCaps {
    /// The client waits for the answer.
    pub const SYNC: u32 = 1;
    /// The client has changes as of a snapshot that it has not sent.
    pub const PENDING_CAPSNAP: u32 = 4;
    /// Bytes of size, times and layout.
    const BODY_BYTES: usize = 3 * 8 + 4 + 3 * 8 + 28 + 4;

    fn encode_body(&self, out: &mut BytesMut, f: Features) {
        if self.op == CapOp::EXPORT {
            self.peer.encode(out, f);
            out.put_bytes(0, Self::BODY_BYTES - CapPeer::BYTES);
            return;
        }
        self.size.encode(out, f);
        self.max_size.encode(out, f);
        self.truncate_size.encode(out, f);
        self.truncate_seq.encode(out, f);
        self.mtime.encode(out, f);
        self.atime.encode(out, f);
        self.ctime.encode(out, f);
        self.layout.encode_legacy(out);
        self.time_warp_seq.encode(out, f);
    }

    fn decode_body(&mut self, r: &mut Reader) -> denc::Result<()> {
        if self.op == CapOp::EXPORT {
            self.peer = r.get()?;
            return r.skip("ceph_mds_caps_export_body", Self::BODY_BYTES - CapPeer::BYTES);
        }
        self.size = r.get()?;
        self.max_size = r.get()?;
        self.truncate_size = r.get()?;
        self.truncate_seq = r.get()?;
        self.mtime = r.get()?;
        self.atime = r.get()?;
        self.ctime = r.get()?;
        self.layout = FileLayout::decode_legacy(r)?;
        self.time_warp_seq = r.get()?;
        Ok(())
    }
}

impl Payload for ClientCaps {
    const TYPE: u16 = 0x310;
    const NAME: &'static str = "client_caps";
    const HEAD_VERSION: u16 = 11;
    const COMPAT_VERSION: u16 = 1;

    fn encode_parts(&self, f: Features) -> Parts {
        let mut out = BytesMut::with_capacity(256);
        self.op.encode(&mut out, f);
        self.ino.encode(&mut out, f);
        self.realm.encode(&mut out, f);
        self.cap_id.encode(&mut out, f);
        self.seq.encode(&mut out, f);
        self.issue_seq.encode(&mut out, f);
        self.caps.encode(&mut out, f);
        self.wanted.encode(&mut out, f);
        self.dirty.encode(&mut out, f);
        self.migrate_seq.encode(&mut out, f);
        self.snap_follows.encode(&mut out, f);
        (self.snap_trace.len() as u32).encode(&mut out, f);
        self.uid.encode(&mut out, f);
        self.gid.encode(&mut out, f);
        self.mode.encode(&mut out, f);
        self.nlink.encode(&mut out, f);
        (self.xattrs.len() as u32).encode(&mut out, f);
        self.xattr_version.encode(&mut out, f);
        self.encode_body(&mut out, f);
        out.extend_from_slice(&self.snap_trace);
        self.flock.encode(&mut out, f);
        if self.op == CapOp::IMPORT {
            self.peer.encode(&mut out, f);
        }
        self.inline_version.encode(&mut out, f);
        self.inline_data.encode(&mut out, f);
        self.osd_epoch_barrier.encode(&mut out, f);
        self.oldest_flush_tid.encode(&mut out, f);
        self.caller_uid.encode(&mut out, f);
        self.caller_gid.encode(&mut out, f);
        self.layout.namespace.encode(&mut out, f);
        self.btime.encode(&mut out, f);
        self.change_attr.encode(&mut out, f);
        self.flags.encode(&mut out, f);
        self.nfiles.encode(&mut out, f);
        self.nsubdirs.encode(&mut out, f);
        let (front, middle) = (out.freeze(), self.xattrs.clone());
        Parts { version: 11, compat: 1, front, middle, ..Parts::default() }
    }

    fn decode_parts(
        Received { version, front: mut r, middle, .. }: Received,
    ) -> denc::Result<Self> {
        let mut m = ClientCaps {
            op: r.get()?,
            ino: r.get()?,
            realm: r.get()?,
            cap_id: r.get()?,
            seq: r.get()?,
            issue_seq: r.get()?,
            caps: r.get()?,
            wanted: r.get()?,
            dirty: r.get()?,
            migrate_seq: r.get()?,
            snap_follows: r.get()?,
            ..ClientCaps::default()
        };
        let trace: u32 = r.get()?;
        m.uid = r.get()?;
        m.gid = r.get()?;
        m.mode = r.get()?;
        m.nlink = r.get()?;
        let xattrs: u32 = r.get()?;
        if xattrs as usize != middle.len() {
            let what = "length of extended attributes";
            return Err(DecodeError::Invalid { what, found: xattrs.into() });
        }
        m.xattrs = middle;
        m.xattr_version = r.get()?;
        m.decode_body(&mut r)?;
        m.snap_trace = r.bytes("trace of realms", trace as usize)?;
        if version >= 2 {
            m.flock = r.get()?;
        }
        if version >= 3 && m.op == CapOp::IMPORT {
            m.peer = r.get()?;
        }
        if version >= 4 {
            m.inline_version = r.get()?;
            m.inline_data = r.get()?;
        } else {
            m.inline_version = InlineData::NONE;
        }
        if version >= 5 {
            m.osd_epoch_barrier = r.get()?;
        }
        if version >= 6 {
            m.oldest_flush_tid = r.get()?;
        }
        if version >= 7 {
            m.caller_uid = r.get()?;
            m.caller_gid = r.get()?;
        }
        if version >= 8 {
            m.layout.namespace = r.get()?;
        }
        if version >= 9 {
            m.btime = r.get()?;
            m.change_attr = r.get()?;
        }
        if version >= 10 {
            m.flags = r.get()?;
        }
        if version >= 11 {
            m.nfiles = r.get()?;
            m.nsubdirs = r.get()?;
        }
        Ok(m)
    }
}

/// A capability that a client has given up (Ceph: `ceph_mds_cap_item`; plain).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Denc)]
pub struct CapItem {
    /// The inode.
    pub ino: Ino,
    /// Number of the capability.
    pub cap_id: u64,
    /// Counts moves between ranks.
    pub migrate_seq: u32,
    /// The last message about it that the client has seen.
    pub seq: u32,
}

crate::payload::message! {
    /// Capabilities that a client has given up (Ceph: `MClientCapRelease`).
    ClientCapRelease = 0x313, "client_cap_release", version 2, compat 1 {
        /// The capabilities.
        caps: Vec<CapItem>,
        /// The OSD map that the server waits for.
        osd_epoch_barrier: Epoch = since 2,
    }

    /// A lease of an entry is revoked, given back or renewed (Ceph: `MClientLease`).
    ClientLease = 0x311, "client_lease", version 1, compat 1 {
        /// See [`ClientLease::REVOKE`].
        action: u8,
        /// What the lease is of.
        mask: u16,
        /// The directory.
        ino: Ino,
        /// The first snapshot.
        first: SnapId,
        /// The last snapshot.
        last: SnapId,
        /// Number of the lease.
        seq: u32,
        /// For how long, in milliseconds.
        duration_ms: u32,
        /// The entry.
        dname: Bytes,
    }
}

impl ClientLease {
    /// What a lease is of: an entry (Ceph: `CEPH_LEASE_VALID` with `CEPH_LOCK_DN`).
    pub const MASK: u16 = 1;
    /// Server: the lease ends. A client of 16.2 aborts when a server sends another action.
    pub const REVOKE: u8 = 1;
    /// Client: it needs the lease no longer.
    pub const RELEASE: u8 = 2;
    /// Client: longer, please.
    pub const RENEW: u8 = 3;
    /// Client: it believes the lease no longer.
    pub const REVOKE_ACK: u8 = 4;
}
