//! Sessions of clients of file systems with metadata servers (MDS).

use crate::payload::{Parts, Payload, Received, message};
use bytes::{Bytes, BytesMut};
use cephfs::{Ino, MetricSpec};
use denc::{Decode, DecodeError, Encode, Features, Reader};
use denc_derive::Denc;
use std::collections::BTreeMap;
use types::fsmap::ClientFeatures;
use types::{EntityAddrVec, Epoch, SnapId, Utime};

/// What a message about a session wants (Ceph: `CEPH_SESSION_*`, `include/ceph_fs.h`). A client of
/// 16.2 aborts when it gets another number.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Denc)]
pub struct SessionOp(pub u32);

impl SessionOp {
    /// Client: open a session.
    pub const REQUEST_OPEN: SessionOp = SessionOp(0);
    /// Server: the session is open.
    pub const OPEN: SessionOp = SessionOp(1);
    /// Client: close the session.
    pub const REQUEST_CLOSE: SessionOp = SessionOp(2);
    /// Server: the session is closed.
    pub const CLOSE: SessionOp = SessionOp(3);
    /// Client: I live.
    pub const REQUEST_RENEWCAPS: SessionOp = SessionOp(4);
    /// Server: capabilities stay valid.
    pub const RENEWCAPS: SessionOp = SessionOp(5);
    /// Server: capabilities are not valid until they are renewed.
    pub const STALE: SessionOp = SessionOp(6);
    /// Server: give capabilities back.
    pub const RECALL_STATE: SessionOp = SessionOp(7);
    /// Server: answer this when everything before is handled.
    pub const FLUSHMSG: SessionOp = SessionOp(8);
    /// Client: the answer.
    pub const FLUSHMSG_ACK: SessionOp = SessionOp(9);
    /// Server: nothing can be written any more.
    pub const FORCE_RO: SessionOp = SessionOp(10);
    /// Server: no session, and do not ask again.
    pub const REJECT: SessionOp = SessionOp(11);
    /// Client: make changes durable now.
    pub const REQUEST_FLUSH_MDLOG: SessionOp = SessionOp(12);
}

/// A message about a session (Ceph 16.2: `MClientSession`, version 5, compat 1). Written as version
/// 1 without features and metadata, as a server does for most of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClientSession {
    /// What it wants.
    pub op: SessionOp,
    /// A number that the answer repeats.
    pub seq: u64,
    /// When the sender made it.
    pub stamp: Utime,
    /// With `RECALL_STATE`: how many capabilities the client may keep.
    pub max_caps: u32,
    /// With `RECALL_STATE`: how many leases.
    pub max_leases: u32,
    /// Texts about the sender; with `REJECT`, `error_string` says why.
    pub metadata: BTreeMap<String, String>,
    /// Features of the sender.
    pub features: ClientFeatures,
    /// Statistics that the sender knows.
    pub metric_spec: MetricSpec,
    /// See [`ClientSession::BLOCKLISTED`].
    pub flags: u32,
}

impl ClientSession {
    /// The flag that the client was refused by the cluster (Ceph: `SESSION_BLOCKLISTED`).
    pub const BLOCKLISTED: u32 = 1;
}

impl Payload for ClientSession {
    const TYPE: u16 = 22;
    const NAME: &'static str = "client_session";
    const HEAD_VERSION: u16 = 5;
    const COMPAT_VERSION: u16 = 1;

    fn encode_parts(&self, f: Features) -> Parts {
        let mut out = BytesMut::new();
        self.op.encode(&mut out, f);
        self.seq.encode(&mut out, f);
        self.stamp.encode(&mut out, f);
        self.max_caps.encode(&mut out, f);
        self.max_leases.encode(&mut out, f);
        let short = self.metadata.is_empty() && self.features.0.is_empty();
        if !short {
            self.metadata.encode(&mut out, f);
            self.features.encode(&mut out, f);
            self.metric_spec.encode(&mut out, f);
            self.flags.encode(&mut out, f);
        }
        let version = if short { 1 } else { 5 };
        Parts { version, compat: 1, front: out.freeze(), ..Parts::default() }
    }

    fn decode_parts(Received { version, front: mut r, .. }: Received) -> denc::Result<Self> {
        let mut m = ClientSession {
            op: r.get()?,
            seq: r.get()?,
            stamp: r.get()?,
            max_caps: r.get()?,
            max_leases: r.get()?,
            ..ClientSession::default()
        };
        if version >= 2 {
            m.metadata = r.get()?;
        }
        if version >= 3 {
            m.features = r.get()?;
        }
        if version >= 4 {
            m.metric_spec = r.get()?;
        }
        if version >= 5 {
            m.flags = r.get()?;
        }
        Ok(m)
    }
}

message! {
    /// A client wants what an earlier instance of it had (Ceph: `MClientReclaim`).
    ClientReclaim = 27, "client_reclaim", version 1, compat 1 {
        /// The name that both instances have.
        uuid: String,
        /// See [`ClientReclaim::RESET`].
        flags: u32,
    }

    /// The answer: when the earlier instance is refused by the cluster, and where it was (Ceph:
    /// `MClientReclaimReply`).
    ClientReclaimReply = 28, "client_reclaim_reply", version 1, compat 1 {
        /// 0 or a negative errno.
        result: i32,
        /// The OSD map in which it is refused.
        epoch: Epoch,
        /// Its addresses.
        addrs: EntityAddrVec,
    }
}

impl ClientReclaim {
    /// Only end the earlier instance (Ceph: `CEPH_RECLAIM_RESET`).
    pub const RESET: u32 = 1;
    /// The client is done with it (Ceph: `FLAG_FINISH`).
    pub const FINISH: u32 = 1 << 31;
}

/// A capability that a client claims after its server was replaced (Ceph: `cap_reconnect_t`,
/// `mds/mdstypes.h`, version 2, compat 1).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CapReconnect {
    /// Where the inode was, below `pathbase`.
    pub path: Bytes,
    /// Number of the capability.
    pub cap_id: u64,
    /// What the client wants.
    pub wanted: u32,
    /// What the client has.
    pub issued: u32,
    /// The snapshot realm.
    pub snaprealm: Ino,
    /// The directory that the path begins at.
    pub pathbase: Ino,
    /// The snapshot up to which data is flushed.
    pub snap_follows: SnapId,
    /// File locks: of `fcntl`, then of `flock`, a number and as many [`cephfs::reply::FileLock`]s
    /// (16.2, `client/Client.cc`, `_encode_filelocks`); empty if there are none.
    pub flock: Bytes,
}

impl Encode for CapReconnect {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        denc::envelope(out, 2, 1, |out| {
            self.path.encode(out, f);
            self.cap_id.encode(out, f);
            self.wanted.encode(out, f);
            self.issued.encode(out, f);
            self.snaprealm.encode(out, f);
            self.pathbase.encode(out, f);
            self.flock.encode(out, f);
            self.snap_follows.encode(out, f);
        });
    }
}

impl Decode for CapReconnect {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        let (struct_v, mut r) = r.envelope("cap_reconnect_t", 2)?;
        let mut claim = CapReconnect {
            path: r.get()?,
            cap_id: r.get()?,
            wanted: r.get()?,
            issued: r.get()?,
            snaprealm: r.get()?,
            pathbase: r.get()?,
            flock: r.get()?,
            snap_follows: SnapId(0),
        };
        if struct_v >= 2 {
            claim.snap_follows = r.get()?;
        }
        Ok(claim)
    }
}

/// A snapshot realm that a client knows (Ceph: `snaprealm_reconnect_t`, `mds/mdstypes.h`,
/// version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct RealmReconnect {
    /// The directory.
    pub ino: Ino,
    /// The version that the client has.
    pub seq: SnapId,
    /// The realm above.
    pub parent: Ino,
}

/// What a client claims after its server was replaced, in the data segment (Ceph 16.2:
/// `MClientReconnect`, version 5, compat 4).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClientReconnect {
    /// Capabilities, by inode.
    pub caps: BTreeMap<Ino, CapReconnect>,
    /// Snapshot realms.
    pub realms: Vec<RealmReconnect>,
    /// Another message follows.
    pub more: bool,
}

impl Payload for ClientReconnect {
    const TYPE: u16 = 23;
    const NAME: &'static str = "client_reconnect";
    const HEAD_VERSION: u16 = 5;
    const COMPAT_VERSION: u16 = 4;

    fn encode_parts(&self, f: Features) -> Parts {
        let mut out = BytesMut::new();
        self.caps.encode(&mut out, f);
        self.realms.encode(&mut out, f);
        self.more.encode(&mut out, f);
        Parts { version: 5, compat: 4, data: vec![out.freeze()], ..Parts::default() }
    }

    fn decode_parts(Received { version, data, .. }: Received) -> denc::Result<Self> {
        if version < 4 {
            let found = version.into();
            return Err(DecodeError::Invalid { what: "version of MClientReconnect", found });
        }
        let mut r = Reader::new(data);
        let (caps, realms) = (r.get()?, r.get()?);
        let more = if version >= 5 { r.get()? } else { false };
        Ok(ClientReconnect { caps, realms, more })
    }
}
