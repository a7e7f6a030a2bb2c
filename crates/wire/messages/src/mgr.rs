//! Sessions of clients and daemons with the mgr.

use crate::mgr_clients::{
    ClientQuery, ClientReport, decode_queries, decode_report, encode_queries, encode_report,
};
use crate::payload::{Parts, Paxos, Payload, Received, message};
use bytes::{Bytes, BytesMut};
use denc::{Decode, Encode, Features, Reader};
use denc_derive::Denc;
use std::collections::{BTreeMap, BTreeSet};
use types::{EntityAddrVec, Fsid};

message! {
    /// Ends a session with the mgr (Ceph: `MMgrClose`).
    MgrClose = 0x708, "mgrclose", version 1, compat 1 {
        /// The id part of the sender's name.
        daemon_name: String,
        /// Service that the sender registered as, otherwise empty.
        service_name: String,
    }
}

/// Opens a session with the mgr (Ceph: `MMgrOpen`, up to version 4 of 17.2, whose additions after
/// the configuration are skipped).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MgrOpen {
    /// The id part of the sender's name.
    pub daemon_name: String,
    /// Service that the sender registers as, otherwise empty.
    pub service_name: String,
    /// Metadata and status of a service daemon.
    pub service: Option<(BTreeMap<String, String>, BTreeMap<String, String>)>,
    /// `map<string, map<int32, string>>` of the configuration in force.
    pub config: Bytes,
    /// `map<string, string>` of the compiled-in defaults.
    pub config_defaults: Bytes,
}

impl Payload for MgrOpen {
    const TYPE: u16 = 0x700;
    const NAME: &'static str = "mgropen";
    const HEAD_VERSION: u16 = 3;
    const COMPAT_VERSION: u16 = 1;

    fn encode_parts(&self, f: Features) -> Parts {
        let mut out = BytesMut::new();
        self.daemon_name.encode(&mut out, f);
        self.service_name.encode(&mut out, f);
        self.service.encode(&mut out, f);
        self.config.encode(&mut out, f);
        self.config_defaults.encode(&mut out, f);
        Parts { version: 3, compat: 1, front: out.freeze(), ..Parts::default() }
    }

    fn decode_parts(Received { version, front: mut r, .. }: Received) -> denc::Result<Self> {
        let mut m = MgrOpen { daemon_name: r.get()?, ..Default::default() };
        if version >= 2 {
            m.service_name = r.get()?;
            m.service = r.get()?;
        }
        if version >= 3 {
            m.config = r.get()?;
            m.config_defaults = r.get()?;
        }
        Ok(m)
    }
}

/// A manager lives, and would serve (Ceph: `MMgrBeacon`, version 10 of 16.2). Modules and
/// descriptions of commands are written as none and skipped.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MgrBeacon {
    /// Version header.
    pub paxos: Paxos,
    /// Where it serves.
    pub addrs: EntityAddrVec,
    /// Its global id.
    pub gid: u64,
    /// Whether it serves.
    pub available: bool,
    /// Its name.
    pub name: String,
    /// Of the cluster.
    pub fsid: Fsid,
    /// What `ceph mgr metadata` shows.
    pub metadata: BTreeMap<String, String>,
    /// URLs of its services by name.
    pub services: BTreeMap<String, String>,
    /// Its features.
    pub features: u64,
    /// Its clients' addresses, which are refused when another manager takes over.
    pub clients: Vec<EntityAddrVec>,
}

/// An envelope; its content does not matter.
struct Skipped;

impl Decode for Skipped {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        r.envelope("skipped", u8::MAX).map(|_| Skipped)
    }
}

impl Payload for MgrBeacon {
    const TYPE: u16 = 0x703;
    const NAME: &'static str = "mgrbeacon";
    const HEAD_VERSION: u16 = 10;
    const COMPAT_VERSION: u16 = 8;

    fn encode_parts(&self, f: Features) -> Parts {
        let mut out = BytesMut::new();
        self.paxos.encode(&mut out, f);
        self.addrs.encode(&mut out, f);
        self.gid.encode(&mut out, f);
        self.available.encode(&mut out, f);
        self.name.encode(&mut out, f);
        self.fsid.encode(&mut out, f);
        0u32.encode(&mut out, f); // no names of modules
        0u32.encode(&mut out, f); // no descriptions of commands
        self.metadata.encode(&mut out, f);
        self.services.encode(&mut out, f);
        0u32.encode(&mut out, f); // no modules
        self.features.encode(&mut out, f);
        self.clients.encode(&mut out, f);
        Parts { version: 10, compat: 8, front: out.freeze(), ..Parts::default() }
    }

    fn decode_parts(Received { version, front: mut r, .. }: Received) -> denc::Result<Self> {
        if version < 8 {
            return Err(denc::DecodeError::Invalid {
                what: "version of MMgrBeacon",
                found: version.into(),
            });
        }
        let (paxos, addrs, gid, available) = (r.get()?, r.get()?, r.get()?, r.get()?);
        let (name, fsid) = (r.get()?, r.get()?);
        r.get::<Vec<String>>()?;
        r.get::<Vec<Skipped>>()?;
        let (metadata, services) = (r.get()?, r.get()?);
        r.get::<Vec<Skipped>>()?;
        let features = if version >= 9 { r.get()? } else { 0 };
        let clients = if version >= 10 { r.get()? } else { Vec::new() };
        Ok(MgrBeacon {
            paxos,
            addrs,
            gid,
            available,
            name,
            fsid,
            metadata,
            services,
            features,
            clients,
        })
    }
}

/// What the mgr wants to be told (Ceph: `MMgrConfigure`). Queries for per-object OSD metrics are
/// written as none, and what follows them is skipped unless they are none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MgrConfigure {
    /// Seconds between two reports.
    pub stats_period: u32,
    /// Counters below this priority are left out.
    pub stats_threshold: u32,
    /// For metadata servers: all that they are asked about their clients. Nothing leaves the
    /// questions as they are.
    pub client_queries: Option<BTreeSet<ClientQuery>>,
}

impl Payload for MgrConfigure {
    const TYPE: u16 = 0x701;
    const NAME: &'static str = "mgrconfigure";
    const HEAD_VERSION: u16 = 4;
    const COMPAT_VERSION: u16 = 1;

    fn encode_parts(&self, f: Features) -> Parts {
        let mut out = BytesMut::new();
        self.stats_period.encode(&mut out, f);
        self.stats_threshold.encode(&mut out, f);
        0u32.encode(&mut out, f); // no OSD metric queries
        encode_queries(self.client_queries.as_ref(), &mut out, f);
        Parts { version: 4, compat: 1, front: out.freeze(), ..Parts::default() }
    }

    fn decode_parts(Received { version, front: mut r, .. }: Received) -> denc::Result<Self> {
        let mut m = MgrConfigure {
            stats_period: r.get()?,
            stats_threshold: if version >= 2 { r.get()? } else { 0 },
            ..MgrConfigure::default()
        };
        if version >= 4 && r.get::<u32>()? == 0 {
            m.client_queries = decode_queries(&mut r)?;
        }
        Ok(m)
    }
}

/// Counters and state of a daemon or client (Ceph: `MMgrReport`). Reports on per-object OSD metrics
/// and what follows them are skipped unless they are empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MgrReport {
    /// The id part of the sender's name.
    pub daemon_name: String,
    /// Counters that are reported from now on.
    pub declare_types: Vec<PerfCounterType>,
    /// The counters' values, in the order of their paths.
    pub packed: Bytes,
    /// Counters that are no longer reported.
    pub undeclare_types: Vec<String>,
    /// Service that the sender registered as, otherwise empty.
    pub service_name: String,
    /// Status of a service daemon.
    pub daemon_status: Option<BTreeMap<String, String>>,
    /// Slow operations and the like.
    pub health_metrics: Vec<DaemonHealthMetric>,
    /// `map<string, map<int32, string>>` of the configuration in force; empty if unchanged.
    pub config: Bytes,
    /// Progress of tasks.
    pub task_status: Option<BTreeMap<String, String>>,
    /// Of metadata servers: their clients.
    pub clients: Option<ClientReport>,
}

/// Schema of one counter (Ceph: `PerfCounterType`, `MMgrReport.h`).
#[derive(Clone, Debug, Default, PartialEq, Denc)]
#[denc(version = 3, compat = 1)]
pub struct PerfCounterType {
    /// Full name.
    pub path: String,
    /// For people.
    pub description: String,
    /// Short name.
    pub nick: String,
    /// `perfcounter_type_d` bits.
    pub kind: u8,
    /// How useful it is (10 is critical, 5 useful).
    #[denc(since = 2)]
    pub priority: u8,
    /// `unit_t`.
    #[denc(since = 3)]
    pub unit: u8,
}

/// One reason for a health warning (Ceph: `DaemonHealthMetric`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct DaemonHealthMetric {
    /// 0 slow operations, 1 placement groups that wait for their creation.
    pub kind: u8,
    /// The low half is the count, the high half the age of the oldest in seconds.
    pub value: u64,
}

impl Payload for MgrReport {
    const TYPE: u16 = 0x702;
    const NAME: &'static str = "mgrreport";
    const HEAD_VERSION: u16 = 9;
    const COMPAT_VERSION: u16 = 1;

    fn encode_parts(&self, f: Features) -> Parts {
        let mut out = BytesMut::new();
        self.daemon_name.encode(&mut out, f);
        self.declare_types.encode(&mut out, f);
        self.packed.encode(&mut out, f);
        self.undeclare_types.encode(&mut out, f);
        self.service_name.encode(&mut out, f);
        self.daemon_status.encode(&mut out, f);
        self.health_metrics.encode(&mut out, f);
        self.config.encode(&mut out, f);
        0u32.encode(&mut out, f); // no OSD metric reports
        self.task_status.encode(&mut out, f);
        encode_report(self.clients.as_ref(), &mut out, f);
        Parts { version: 9, compat: 1, front: out.freeze(), ..Parts::default() }
    }

    fn decode_parts(Received { version, front: mut r, .. }: Received) -> denc::Result<Self> {
        let mut m = MgrReport {
            daemon_name: r.get()?,
            declare_types: r.get()?,
            packed: r.get()?,
            ..Default::default()
        };
        if version >= 2 {
            m.undeclare_types = r.get()?;
        }
        if version >= 3 {
            m.service_name = r.get()?;
            m.daemon_status = r.get()?;
        }
        if version >= 5 {
            m.health_metrics = r.get()?;
        }
        if version >= 6 {
            m.config = r.get()?;
        }
        if version >= 8 && r.get::<u32>()? == 0 {
            m.task_status = r.get()?;
            if version >= 9 {
                m.clients = decode_report(&mut r)?;
            }
        }
        Ok(m)
    }
}
