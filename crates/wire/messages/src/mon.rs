//! Between anyone and the monitors: authentication, subscriptions, versions, pool operations.

use crate::payload::{Paxos, message};
use bytes::{Bytes, BytesMut};
use denc::{Decode, Encode, Features, Reader};
use denc_derive::Denc;
use std::collections::BTreeMap;
use types::{Epoch, Fsid, PoolId, PoolStat, SnapId};

message! {
    /// Asks for the monitor map (Ceph: `MMonGetMap`).
    MonGetMap = 5, "mon_getmap", version 1, compat 1 {}

    /// One step of authentication inside a session (Ceph: `MAuth`): with msgr v2 only ticket
    /// renewals and rotating keys.
    Auth = 17, "auth", version 1, compat 1 {
        /// Version header.
        paxos: Paxos,
        /// `CEPH_AUTH_*`; 0 when the payload lists the protocols that the client can do.
        protocol: u32,
        /// The protocol's bytes.
        payload: Bytes,
        /// Epoch of the sender's monitor map; older senders leave it out.
        monmap_epoch: OrDefault<Epoch>,
    }

    /// Answer to [`Auth`] (Ceph: `MAuthReply`).
    AuthReply = 18, "auth_reply", version 1, compat 1 {
        /// `CEPH_AUTH_*`.
        protocol: u32,
        /// 0 or a negative errno.
        result: i32,
        /// The session's global id.
        global_id: u64,
        /// The protocol's bytes.
        payload: Bytes,
        /// What went wrong, for people.
        message: String,
    }

    /// What the sender wants to be told about (Ceph: `MMonSubscribe`). Older than version 2 (before
    /// 2016) is not understood.
    MonSubscribe = 15, "mon_subscribe", version 3, compat 1 {
        /// Subscriptions by name (`osdmap`, `mgrmap`, ...).
        what: BTreeMap<String, SubscribeItem>,
        /// Host of the sender.
        hostname: String = since 3,
    }

    /// Answer to a subscriber that cannot keep subscriptions in its session (Ceph:
    /// `MMonSubscribeAck`).
    MonSubscribeAck = 16, "mon_subscribe_ack", version 1, compat 1 {
        /// Seconds after which the subscription has to be renewed.
        interval: u32,
        /// Of the cluster.
        fsid: Fsid,
    }

    /// Asks for the newest version of a map (Ceph: `MMonGetVersion`).
    MonGetVersion = 19, "mon_get_version", version 1, compat 1 {
        /// Chosen by the asker, returned in the answer.
        handle: u64,
        /// The map's name (`osdmap`, `monmap`, `mdsmap`, ...).
        what: String,
    }

    /// Answer to [`MonGetVersion`] (Ceph: `MMonGetVersionReply`).
    MonGetVersionReply = 20, "mon_get_version_reply", version 2, compat 2 {
        /// From the question.
        handle: u64,
        /// Newest committed version.
        version: u64,
        /// Oldest version that is still kept.
        oldest_version: u64 = since 2,
    }

    /// Asks another monitor for a range of global ids (Ceph: `MMonGlobalID`).
    MonGlobalId = 60, "global_id", version 1, compat 1 {
        /// Version header.
        paxos: Paxos,
        /// The end of the range that is used up.
        old_max_id: u64,
    }

    /// Asks how full the cluster, or one pool, is (Ceph: `MStatfs`).
    Statfs = 13, "statfs", version 2, compat 1 {
        /// Version header.
        paxos: Paxos,
        /// Of the cluster.
        fsid: Fsid,
        /// Restricts the answer to this pool.
        data_pool: Option<PoolId> = since 2,
    }

    /// Answer to [`Statfs`] (Ceph: `MStatfsReply`, `ceph_mon_statfs_reply`).
    StatfsReply = 14, "statfs_reply", version 1, compat 1 {
        /// Of the cluster.
        fsid: Fsid,
        /// Version of the statistics.
        version: u64,
        /// Size in KiB.
        kb: u64,
        /// Used KiB.
        kb_used: u64,
        /// Available KiB.
        kb_avail: u64,
        /// Number of objects.
        num_objects: u64,
    }

    /// Answer to [`PoolOp`] (Ceph: `MPoolOpReply`).
    PoolOpReply = 48, "poolop_reply", version 1, compat 1 {
        /// Version header.
        paxos: Paxos,
        /// Of the cluster.
        fsid: Fsid,
        /// 0 or a negative errno.
        reply_code: i32,
        /// OSD map epoch that contains the result.
        epoch: Epoch,
        /// For a self managed snapshot: the new id (`u64`).
        response_data: Option<Bytes>,
    }

    /// Asks for the statistics of pools (Ceph: `MGetPoolStats`).
    GetPoolStats = 58, "getpoolstats", version 1, compat 1 {
        /// Version header.
        paxos: Paxos,
        /// Of the cluster.
        fsid: Fsid,
        /// Names of the pools.
        pools: Vec<String>,
    }

    /// Answer to [`GetPoolStats`] (Ceph: `MGetPoolStatsReply`).
    GetPoolStatsReply = 59, "getpoolstatsreply", version 2, compat 1 {
        /// Version header.
        paxos: Paxos,
        /// Of the cluster.
        fsid: Fsid,
        /// Statistics by pool name.
        pool_stats: BTreeMap<String, PoolStat>,
        /// Whether all OSDs count per pool.
        per_pool: bool = since 2,
    }

    /// Proves that the peer is alive (Ceph: `MPing`). A monitor answers, even without a session,
    /// with its state for `ceph ping`.
    Ping = 2, "ping", version 1, compat 1 {
        /// Nothing, or the answer: an encoded string of JSON.
        body: crate::Rest,
    }
}

/// One subscription (Ceph: `ceph_mon_subscribe_item`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Denc)]
pub struct SubscribeItem {
    /// The first version wanted; 0 asks for whatever is newest.
    pub start: u64,
    /// [`SubscribeItem::ONETIME`] or 0.
    pub flags: u8,
}

impl SubscribeItem {
    /// One update, then the subscription ends (`CEPH_SUBSCRIBE_ONETIME`).
    pub const ONETIME: u8 = 1;

    /// Whether one update is all that is wanted.
    pub fn onetime(&self) -> bool {
        self.flags & Self::ONETIME != 0
    }
}

/// A last field that older senders leave out without a header version that says so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OrDefault<T>(pub T);

impl<T: Encode> Encode for OrDefault<T> {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        self.0.encode(out, f);
    }
}
impl<T: Decode + Default> Decode for OrDefault<T> {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        Ok(OrDefault(if r.left() == 0 { T::default() } else { r.get()? }))
    }
}

/// Creates or deletes pools and pool snapshots (Ceph: `MPoolOp`).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PoolOp {
    /// Version header.
    pub paxos: Paxos,
    /// Of the cluster.
    pub fsid: Fsid,
    /// The pool, 0 when it is to be created.
    pub pool: u32,
    /// What to do.
    pub op: PoolOpCode,
    /// The snapshot that is to be deleted.
    pub snapid: SnapId,
    /// Name of the pool or of the snapshot.
    pub name: String,
    /// Rule of a new pool; -1 for the default.
    pub crush_rule: i16,
}

/// `POOL_OP_*` of `ceph_fs.h`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Denc)]
pub struct PoolOpCode(pub u32);

impl PoolOpCode {
    /// Create a pool.
    pub const CREATE: Self = PoolOpCode(0x01);
    /// Delete a pool.
    pub const DELETE: Self = PoolOpCode(0x02);
    /// Change the owner (no longer exists).
    pub const AUID_CHANGE: Self = PoolOpCode(0x03);
    /// Create a named pool snapshot.
    pub const CREATE_SNAP: Self = PoolOpCode(0x11);
    /// Delete a named pool snapshot.
    pub const DELETE_SNAP: Self = PoolOpCode(0x12);
    /// Allocate a self managed snapshot id.
    pub const CREATE_UNMANAGED_SNAP: Self = PoolOpCode(0x21);
    /// Delete a self managed snapshot.
    pub const DELETE_UNMANAGED_SNAP: Self = PoolOpCode(0x22);
}

impl crate::Payload for PoolOp {
    const TYPE: u16 = 49;
    const NAME: &'static str = "poolop";
    const HEAD_VERSION: u16 = 4;
    const COMPAT_VERSION: u16 = 2;

    fn encode_parts(&self, f: Features) -> crate::Parts {
        let mut out = BytesMut::new();
        self.paxos.encode(&mut out, f);
        self.fsid.encode(&mut out, f);
        self.pool.encode(&mut out, f);
        self.op.encode(&mut out, f);
        0u64.encode(&mut out, f); // the removed owner
        self.snapid.encode(&mut out, f);
        self.name.encode(&mut out, f);
        0u8.encode(&mut out, f); // where version 3 had its rule
        self.crush_rule.encode(&mut out, f);
        crate::Parts { version: 4, compat: 2, front: out.freeze(), ..crate::Parts::default() }
    }

    fn decode_parts(
        crate::Received { version, front: mut r, .. }: crate::Received,
    ) -> denc::Result<Self> {
        let (paxos, fsid, pool) = (r.get()?, r.get()?, r.get()?);
        let old_name = if version < 2 { Some(r.get()?) } else { None };
        let op = r.get()?;
        r.skip("MPoolOp auid", 8)?;
        let snapid = r.get()?;
        let name = match old_name {
            Some(name) => name,
            None => r.get()?,
        };
        let crush_rule = match version {
            0..=2 => -1,
            3 => i16::from(u8::decode(&mut r)?),
            _ => {
                r.skip("MPoolOp pad", 1)?;
                r.get()?
            }
        };
        Ok(PoolOp { paxos, fsid, pool, op, snapid, name, crush_rule })
    }
}
