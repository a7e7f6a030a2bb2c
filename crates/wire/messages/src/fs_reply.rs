//! Answers of metadata servers (MDS) to clients, and what they tell unasked.

use crate::fs_request::FsOp;
use crate::payload::{Parts, Payload, Received, message};
use bytes::{Bytes, BytesMut};
use cephfs::{Ino, Quota, Trace};
use denc::{DecodeError, Encode, Features, Reader};
use types::{Epoch, Utime};

/// The answer to a request (Ceph: `MClientReply`, version 1). Its number is the request's.
///
/// A client of 16.2 aborts when it gets two answers that are not safe, or a trace in the safe one
/// after an answer that was not.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClientReply {
    /// What was asked for.
    pub op: FsOp,
    /// 0 or a negative errno.
    pub result: i32,
    /// The map of the file system that the server has.
    pub mdsmap_epoch: Epoch,
    /// The change is durable.
    pub safe: bool,
    /// Entry and inode. Empty with an error.
    pub trace: Trace,
    /// What the operation has besides: [`cephfs::DirPage`], [`cephfs::OpenCreated`],
    /// [`cephfs::FileLock`].
    pub extra: Bytes,
    /// Snapshot realms of the inode ([`cephfs::snap::encode_trace`]).
    pub snap_trace: Bytes,
}

impl Payload for ClientReply {
    const TYPE: u16 = 26;
    const NAME: &'static str = "client_reply";
    const HEAD_VERSION: u16 = 1;
    const COMPAT_VERSION: u16 = 1;

    fn encode_parts(&self, f: Features) -> Parts {
        let mut out = BytesMut::with_capacity(1024);
        self.op.encode(&mut out, f);
        self.result.encode(&mut out, f);
        self.mdsmap_epoch.encode(&mut out, f);
        self.safe.encode(&mut out, f);
        self.trace.dentry.is_some().encode(&mut out, f);
        self.trace.target.is_some().encode(&mut out, f);
        denc::with_length(&mut out, |out| self.trace.encode(out, f));
        self.extra.encode(&mut out, f);
        self.snap_trace.encode(&mut out, f);
        Parts { version: 1, compat: 1, front: out.freeze(), ..Parts::default() }
    }

    fn decode_parts(Received { front: mut r, .. }: Received) -> denc::Result<Self> {
        let (op, result, mdsmap_epoch) = (r.get()?, r.get()?, r.get()?);
        let (safe, dentry, target) = (r.get()?, r.get()?, r.get()?);
        let trace: Bytes = r.get()?;
        // A safe answer after another one has the flags, and no trace.
        let trace = match trace.is_empty() {
            true => Trace::default(),
            false => Trace::decode(&mut Reader::new(trace), dentry, target)?,
        };
        let (extra, snap_trace) = (r.get()?, r.get()?);
        Ok(ClientReply { op, result, mdsmap_epoch, safe, trace, extra, snap_trace })
    }
}

/// Snapshot realms have changed (Ceph: `MClientSnap`, version 1).
///
/// A client of 16.2 aborts when a split names no inode, or when the first realm of the trace is
/// another one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClientSnap {
    /// See [`ClientSnap::UPDATE`].
    pub op: u32,
    /// With `SPLIT`: the directory that has a realm of its own now.
    pub split: Ino,
    /// With `SPLIT`: inodes that belong to it.
    pub split_inos: Vec<Ino>,
    /// With `SPLIT`: realms that are below it.
    pub split_realms: Vec<Ino>,
    /// The realms from the changed one up.
    pub trace: Bytes,
}

impl ClientSnap {
    /// Realms have changed.
    pub const UPDATE: u32 = 0;
    /// A snapshot was made.
    pub const CREATE: u32 = 1;
    /// A snapshot was removed.
    pub const DESTROY: u32 = 2;
    /// A directory has a realm of its own.
    pub const SPLIT: u32 = 3;
}

impl Payload for ClientSnap {
    const TYPE: u16 = 0x312;
    const NAME: &'static str = "client_snap";
    const HEAD_VERSION: u16 = 1;
    const COMPAT_VERSION: u16 = 1;

    fn encode_parts(&self, f: Features) -> Parts {
        let mut out = BytesMut::new();
        self.op.encode(&mut out, f);
        self.split.encode(&mut out, f);
        (self.split_inos.len() as u32).encode(&mut out, f);
        (self.split_realms.len() as u32).encode(&mut out, f);
        (self.trace.len() as u32).encode(&mut out, f);
        for ino in self.split_inos.iter().chain(&self.split_realms) {
            ino.encode(&mut out, f);
        }
        out.extend_from_slice(&self.trace);
        Parts { version: 1, compat: 1, front: out.freeze(), ..Parts::default() }
    }

    fn decode_parts(Received { front: mut r, .. }: Received) -> denc::Result<Self> {
        let (op, split) = (r.get()?, r.get()?);
        let (inos, realms, trace): (u32, u32, u32) = (r.get()?, r.get()?, r.get()?);
        let needed = (inos as usize + realms as usize).saturating_mul(8);
        if needed > r.left() {
            return Err(DecodeError::Short { what: "split inodes", needed, left: r.left() });
        }
        let mut list = |n| (0..n).map(|_| r.get()).collect::<denc::Result<Vec<Ino>>>();
        let (split_inos, split_realms) = (list(inos)?, list(realms)?);
        let trace = r.bytes("trace of realms", trace as usize)?;
        Ok(ClientSnap { op, split, split_inos, split_realms, trace })
    }
}

message! {
    /// How much of a quota is used (Ceph: `MClientQuota`).
    ClientQuota = 0x314, "client_quota", version 1, compat 1 {
        /// The directory.
        ino: Ino,
        /// The latest change below it.
        rctime: Utime,
        /// Bytes below it.
        rbytes: i64,
        /// Files below it.
        rfiles: i64,
        /// Directories below it.
        rsubdirs: i64,
        /// What it may hold.
        quota: Quota,
    }
}
