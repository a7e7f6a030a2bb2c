//! Messages between metadata servers (MDS) and monitors.

use crate::payload::{Parts, Paxos, Payload, Received, message};
use bytes::BytesMut;
use denc::{Encode, Features};
use denc_derive::Denc;
use std::collections::{BTreeMap, BTreeSet};
use types::Fsid;
use types::compat_set::CompatSet;
use types::fsmap::MdsState;

/// One thing that an MDS complains of (Ceph 16.2: `MDSHealthMetric`, `messages/MMDSBeacon.h`,
/// version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct MdsHealthMetric {
    /// Which check: `mds_metric_t`.
    pub kind: u16,
    /// How bad it is: `health_status_t` (0 error, 1 warning, 2 fine).
    pub severity: u8,
    /// The text.
    pub message: String,
    /// Details, such as the client's id.
    pub metadata: BTreeMap<String, String>,
}

/// Everything that an MDS complains of (Ceph 16.2: `MDSHealth`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct MdsHealth {
    /// The complaints.
    pub metrics: Vec<MdsHealthMetric>,
}

/// An MDS lives, and asks for a state; the monitors answer with the same message (Ceph 16.2:
/// `MMDSBeacon`, version 8, compat 6).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MdsBeacon {
    /// The epoch of the map that the daemon has.
    pub paxos: Paxos,
    /// Of the cluster.
    pub fsid: Fsid,
    /// The daemon's global id.
    pub gid: u64,
    /// The state that it asks for.
    pub state: i32,
    /// Counts the daemon's beacons.
    pub seq: u64,
    /// Its name.
    pub name: String,
    /// What it can read and write.
    pub compat: CompatSet,
    /// What it complains of.
    pub health: MdsHealth,
    /// What `ceph mds metadata` shows; only with the state `BOOT`.
    pub metadata: BTreeMap<String, String>,
    /// Its features.
    pub features: u64,
    /// The file system that it prefers; empty for any.
    pub fs: String,
    /// What it says of its own log, see [`MdsBeacon::LOG_EMPTY`]. It stands where daemons before
    /// 14.2 had a name to wait for; stock servers send an empty one, and stock monitors read past
    /// it.
    pub log: String,
}

impl MdsBeacon {
    /// The rank's log (`types::fsmap::LOG_FEATURE`) has nothing that is needed, and gets nothing
    /// before the monitors have heard [`MdsBeacon::LOG_USED`].
    pub const LOG_EMPTY: &'static str = "siphon log empty";
    /// The log is going to be written to.
    pub const LOG_USED: &'static str = "siphon log used";
}

impl Payload for MdsBeacon {
    const TYPE: u16 = 100;
    const NAME: &'static str = "mdsbeacon";
    const HEAD_VERSION: u16 = 8;
    const COMPAT_VERSION: u16 = 6;

    fn encode_parts(&self, f: Features) -> Parts {
        let mut out = BytesMut::new();
        self.paxos.encode(&mut out, f);
        self.fsid.encode(&mut out, f);
        self.gid.encode(&mut out, f);
        self.state.encode(&mut out, f);
        self.seq.encode(&mut out, f);
        self.name.encode(&mut out, f);
        // A rank to wait for, which daemons had before 14.2.
        (-1i32).encode(&mut out, f);
        self.log.encode(&mut out, f);
        self.compat.encode(&mut out, f);
        self.health.encode(&mut out, f);
        if self.state == MdsState::BOOT.0 {
            self.metadata.encode(&mut out, f);
        }
        self.features.encode(&mut out, f);
        (-1i32).encode(&mut out, f);
        false.encode(&mut out, f);
        self.fs.encode(&mut out, f);
        Parts { version: 8, compat: 6, front: out.freeze(), ..Parts::default() }
    }

    fn decode_parts(Received { version, front: mut r, .. }: Received) -> denc::Result<Self> {
        if version < 6 {
            return Err(denc::DecodeError::Invalid {
                what: "version of MMDSBeacon",
                found: version.into(),
            });
        }
        let mut m = MdsBeacon {
            paxos: r.get()?,
            fsid: r.get()?,
            gid: r.get()?,
            state: r.get()?,
            seq: r.get()?,
            name: r.get()?,
            ..MdsBeacon::default()
        };
        r.get::<i32>()?;
        m.log = r.get()?;
        m.compat = r.get()?;
        m.health = r.get()?;
        if m.state == MdsState::BOOT.0 {
            m.metadata = r.get()?;
        }
        m.features = r.get()?;
        r.get::<i32>()?;
        if version >= 7 {
            r.get::<bool>()?;
        }
        if version >= 8 {
            m.fs = r.get()?;
        }
        Ok(m)
    }
}

message! {
    /// Ranks that an MDS may hand subtrees to (Ceph 16.2: `MMDSLoadTargets`).
    MdsLoadTargets = 0x20a, "mds_load_targets", version 1, compat 1 {
        /// Version header.
        paxos: Paxos,
        /// The daemon's global id.
        gid: u64,
        /// The ranks.
        targets: BTreeSet<i32>,
    }

    /// Snapshots of a file system that were deleted, by pool; the monitors answer with the message
    /// (Ceph 16.2: `MRemoveSnaps`).
    RemoveSnaps = 90, "remove_snaps", version 1, compat 1 {
        /// Version header.
        paxos: Paxos,
        /// Snapshots by pool.
        snaps: BTreeMap<i32, Vec<u64>>,
    }
}
