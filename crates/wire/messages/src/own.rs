//! Messages between our own daemons: numbers from `0x7000`, where Ceph has none. Both ends are of
//! the same release or one apart; a field that is added gets `since` and a new header version.

use crate::HealthChecks;
use crate::payload::message;
use bytes::Bytes;
use denc_derive::Denc;
use std::collections::BTreeMap;
use types::room::RoomNote;
use types::{EntityAddrVec, Epoch, OsdId, PgId, PoolId, SpgId};

message! {
    /// Between the OSDs of a placement group.
    PeerMessage = 0x7000, "siphon_peer", version 3, compat 3 {
        /// The sender's map epoch.
        epoch: Epoch,
        /// The OSD that sends: on a shared connection the peer's name is not enough.
        from: OsdId,
        /// The group, with the receiver's shard.
        pgid: SpgId,
        /// What the placement group says; its own encoding.
        payload: Bytes,
        /// Bytes that the two OSDs let each other send.
        room: Option<RoomNote>,
    }, data data

    /// What an OSD tells the mgr.
    OsdStatsReport = 0x7001, "siphon_osd_stats", version 2, compat 1 {
        /// The OSD.
        osd: OsdId,
        /// Epoch in which this process was marked up.
        up_from: Epoch,
        /// The sender's map epoch.
        epoch: Epoch,
        /// Counts the reports of this process.
        seq: u64,
        /// Whether groups and pools that are not listed are gone; otherwise they are unchanged.
        full: bool,
        /// `osd_stat_t`.
        osd_stat: Bytes,
        /// `pg_stat_t` of the groups that the OSD leads.
        pg_stats: Vec<(PgId, Bytes)>,
        /// Groups that the OSD no longer leads.
        removed: Vec<PgId>,
        /// `store_statfs_t` by pool.
        pool_statfs: Vec<(i64, Bytes)>,
        /// What the scheduler did: a [`QosSeen`], or nothing.
        qos: Bytes,
        /// Named numbers, for what has no field of its own.
        counters: BTreeMap<String, u64>,
        /// Operations on the data of block devices since the last report.
        images: Vec<ImageCounters> = since 2,
    }

    /// What the mgr tells the monitors: that it lives, and what it knows.
    MgrDigest = 0x7002, "siphon_mgr_digest", version 2, compat 1 {
        /// Global id of the mgr.
        gid: u64,
        /// Its name.
        name: String,
        /// Where clients find it.
        addrs: EntityAddrVec,
        /// Whether it can serve.
        available: bool,
        /// URLs of its services by name.
        services: BTreeMap<String, String>,
        /// What `ceph mgr metadata` shows.
        metadata: BTreeMap<String, String>,
        /// `PGMapDigest`; empty if unchanged.
        pg_digest: Bytes,
        /// Health checks that it raises.
        health: HealthChecks,
        /// `ServiceMap`; empty if unchanged.
        service_map: Bytes,
        /// Descriptions of the commands that it serves, as the JSON of `get_command_descriptions`;
        /// empty if unchanged. The monitors hand them to clients with their own.
        commands: Bytes,
        /// Counts the mgr's sessions with monitors. What a monitor sent to the mgr in an earlier
        /// session may not have arrived.
        session: u64 = since 2,
    }

    /// Between monitors: the consensus library's bytes.
    RaftMessage = 0x7003, "siphon_raft", version 1, compat 1 {
        /// Rank or node id of the sender.
        from: u64,
        /// Kind of request or answer; the monitor's own numbering.
        kind: u8,
        /// Pairs request and answer.
        seq: u64,
        /// The content.
        payload: Bytes,
    }, data data

    /// A follower passes a session's message to the leader.
    MonForward = 0x7004, "siphon_forward", version 2, compat 1 {
        /// The follower's number of the message.
        session: u64,
        /// The peer of the session, in the monitors' own encoding (name, address, global id, caps).
        peer: Bytes,
        /// The message.
        message: Embedded,
        /// In which term the follower follows the receiver. A leader of a later term must not act
        /// on it: the follower has sent it again since, and later messages of the session may be
        /// done.
        term: u64 = since 2,
    }, data data

    /// The leader's answer to a forwarded message.
    MonRoute = 0x7005, "siphon_route", version 3, compat 1 {
        /// From [`MonForward`].
        session: u64,
        /// For the session's peer; `None` says that the message is dealt with.
        message: Option<Embedded>,
        /// Up to which entry of the log the leader had applied: the answer must not overtake what
        /// it tells of.
        applied: u64 = since 2,
        /// Instead of an answer: there is none. The follower ends the session.
        ends: bool = since 3,
    }, data data

    /// The coordinator's split of cluster-wide promises, for one OSD.
    QosShares = 0x7006, "siphon_qos_shares", version 2, compat 1 {
        /// Images with limits or parts that changed, or are said again.
        images: Vec<ImageShare>,
        /// Specified tenants that are new to the OSD, or have other promises.
        tenants: Vec<TenantShare> = since 2,
        /// Whether those are all that there are; otherwise others stay as they were.
        all_tenants: bool = since 2,
        /// Tenants that are no longer.
        gone: Vec<TenantNumber> = since 2,
        /// Parts of promises that changed.
        parts: Vec<TenantPart> = since 2,
    }

    /// What tenants ask an OSD for, several times a second while there are any that have limits.
    QosDemand = 0x7007, "siphon_qos_demand", version 2, compat 1 {
        /// The OSD.
        osd: OsdId,
        /// Images in use with unknown limits, and those with any demand.
        images: Vec<ImageDemand>,
        /// Specified tenants for whom more or less is asked than was told last, and all others once
        /// a second.
        tenants: Vec<TenantDemand> = since 2,
    }

    /// Between the metadata servers of a file system.
    FsPeerMessage = 0x7008, "siphon_fs_peer", version 1, compat 1 {
        /// The sender's rank.
        from: u32,
        /// Global id of the server that it is for: its successor must not take it in.
        to: u64,
        /// Counts what the sender tells this receiver. What comes late is dropped.
        seq: u64,
        /// What is said; its own encoding.
        payload: Bytes,
    }
}

/// Names a tenant that a specification describes. It is made from the tenant's name, so that every
/// manager has the same ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Denc)]
pub struct TenantNumber(pub u64);

/// A tenant that a specification describes, and what it is promised. An operation belongs to it if
/// it fits all that the description names.
#[derive(Clone, Debug, Default, PartialEq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct TenantShare {
    /// Its number.
    pub number: TenantNumber,
    /// What the specification calls it.
    pub name: String,
    /// The pool of the data.
    pub pool: Option<PoolId>,
    /// The namespace.
    pub namespace: Option<Bytes>,
    /// Of an image, the prefix of its data objects. Of buckets, which have no pool here, their ids
    /// with commas between them.
    pub prefix: Option<Bytes>,
    /// The client, as `client.NAME`.
    pub client: Option<String>,
    /// Its share of what floors leave.
    pub weight: u32,
    /// How many OSDs the rates are divided over, or a few more. An OSD has its standing part until
    /// it is told another.
    pub osds: u32,
    /// Ceilings: operations, bytes; the whole of them, and no parts. Empty for none.
    pub ceilings: Vec<ShareOfRate>,
    /// Floors: operations, bytes. Empty for none.
    pub floors: Vec<ShareOfRate>,
}

/// An OSD's part of what a tenant is promised, in units of 2^-32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Denc)]
pub struct TenantPart {
    /// The tenant.
    pub number: TenantNumber,
    /// Of ceilings of operations.
    pub ops: u32,
    /// Of ceilings of bytes.
    pub bytes: u32,
    /// Of floors.
    pub floor: u32,
}

/// What one OSD was asked for, for a tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Denc)]
pub struct TenantDemand {
    /// The tenant.
    pub number: TenantNumber,
    /// How long it was counted.
    pub millis: u32,
    /// Operations that came.
    pub ops: u32,
    /// Their bytes.
    pub bytes: u64,
    /// Operations that wait because of a ceiling.
    pub waiting_ops: u32,
    /// Their bytes.
    pub waiting_bytes: u64,
    /// Operations that wait for their turn, of a tenant with a floor.
    pub queued_ops: u32,
}

/// What an OSD's scheduler did.
#[derive(Clone, Debug, Default, PartialEq, Denc)]
#[denc(version = 3, compat = 1)]
pub struct QosSeen {
    /// Classes, since the OSD started.
    pub classes: Vec<ClassSeen>,
    /// Tenants, since the last report; those with the most, and the others as one without a name.
    pub tenants: Vec<TenantSeen>,
    /// More of the classes, in the same order.
    #[denc(since = 2)]
    pub work: Vec<ClassWork>,
    /// How long clients' operations took from their arrival to the answer, since the last report:
    /// numbers by bins of `qos::Latencies`.
    #[denc(since = 3)]
    pub latencies: Vec<u32>,
}

/// What a class of operations got.
#[derive(Clone, Debug, Default, PartialEq, Denc)]
pub struct ClassSeen {
    /// Its name.
    pub name: String,
    /// Operations that wait now.
    pub waiting: u64,
    /// Operations that were let in,
    pub served: u64,
    /// their bytes,
    pub served_bytes: u64,
    /// those among them to keep the class's floor,
    pub by_reservation: u64,
    /// and those to keep a tenant's.
    pub by_floor: u64,
}

/// What a class is promised, asked for, and had to wait.
#[derive(Clone, Debug, Default, PartialEq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct ClassWork {
    /// Its floor, in thousandths of writes of 4 KiB each second; 0 for none.
    pub reservation: u64,
    /// Its share of what floors leave; 0 if the scheduler knows none.
    pub weight: u32,
    /// Its ceiling, as the floor; 0 for none.
    pub limit: u64,
    /// Operations that came,
    pub offered: u64,
    /// and their bytes.
    pub offered_bytes: u64,
    /// Operations that were held back in front of the scheduler,
    pub throttled: u64,
    /// how long that was together, in nanoseconds,
    pub throttled_time: u64,
    /// and for how long the class was at its ceiling while something waited.
    pub at_ceiling: u64,
    /// How long operations waited in the scheduler together, in nanoseconds.
    pub waited: u64,
    /// Numbers of them since the last report, by powers of two of microseconds.
    pub waits: Vec<u32>,
}

/// What a tenant got.
#[derive(Clone, Debug, Default, PartialEq, Denc)]
pub struct TenantSeen {
    /// Its name; empty for several.
    pub name: String,
    /// Operations that came.
    pub offered: u64,
    /// Their bytes.
    pub offered_bytes: u64,
    /// Operations that were let in.
    pub served: u64,
    /// Their bytes.
    pub served_bytes: u64,
    /// Those to keep its floor.
    pub by_floor: u64,
    /// Operations that waited for its ceiling.
    pub throttled: u64,
    /// How long they did together, in nanoseconds.
    pub throttled_time: u64,
    /// How long operations waited in the scheduler together, in nanoseconds.
    pub waited: u64,
    /// Numbers of them, by powers of two of microseconds.
    pub waits: Vec<u32>,
}

/// What an image's data objects have in common.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Denc)]
#[denc(version = 1, compat = 1)]
pub struct ImageData {
    /// The pool that they are in.
    pub pool: PoolId,
    /// Their namespace.
    pub namespace: Bytes,
    /// What stands before the last dot of their names (librbd's object prefix).
    pub prefix: Bytes,
}

/// What one OSD was asked for.
#[derive(Clone, Debug, Default, PartialEq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct ImageDemand {
    /// The image.
    pub data: ImageData,
    /// Whether the OSD was told of its limits, or that it has none.
    pub known: bool,
    /// How long it was counted.
    pub millis: u64,
    /// Reads that came.
    pub reads: DemandCount,
    /// Writes that came.
    pub writes: DemandCount,
}

/// Operations of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Denc)]
pub struct DemandCount {
    /// Operations that came.
    pub ops: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Operations that wait because of a limit.
    pub waiting_ops: u64,
    /// Their bytes.
    pub waiting_bytes: u64,
}

/// An OSD's part of an image's limits.
#[derive(Clone, Debug, Default, PartialEq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct ImageShare {
    /// The image.
    pub data: ImageData,
    /// How many OSDs the limits are divided over.
    pub osds: u32,
    /// All operations, all bytes, operations that read, that write, bytes read, written. Empty if
    /// there are no limits.
    pub rates: Vec<ShareOfRate>,
}

/// A cluster-wide rate and an OSD's part of it, in thousandths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Denc)]
pub struct ShareOfRate {
    /// The whole rate each second; 0 is no limit.
    pub each_second: u64,
    /// What may be saved up.
    pub saved: u64,
    /// The rate of bursts.
    pub peak: u64,
    /// The OSD's part of the rate.
    pub part: u64,
}

/// Operations on the data of one image of a block device.
#[derive(Clone, Debug, Default, PartialEq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct ImageCounters {
    /// The image's pool; its data may be in another.
    pub pool: PoolId,
    /// The image's namespace.
    pub namespace: Bytes,
    /// The image's id.
    pub id: Bytes,
    /// Operations that write.
    pub write_ops: u64,
    /// Operations that read.
    pub read_ops: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Nanoseconds that the writes took together.
    pub write_latency: u64,
    /// Nanoseconds that the reads took together.
    pub read_latency: u64,
}

/// A message inside another. Its data segment is that of the outer message.
#[derive(Clone, Debug, Default, PartialEq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct Embedded {
    /// Number.
    pub msg_type: u16,
    /// Header version.
    pub version: u16,
    /// Header compat version.
    pub compat_version: u16,
    /// Priority.
    pub priority: u16,
    /// Transaction id.
    pub tid: u64,
    /// Features that its sender encoded it for.
    pub features: u64,
    /// Front segment.
    pub front: Bytes,
    /// Middle segment.
    pub middle: Bytes,
}

impl Embedded {
    /// The header and the first segments of a message; its data is for the outer one.
    pub fn of(m: &types::message::Message, features: u64) -> Self {
        Embedded {
            msg_type: m.msg_type,
            version: m.version,
            compat_version: m.compat_version,
            priority: m.priority,
            tid: m.tid,
            features,
            front: m.front.clone(),
            middle: m.middle.clone(),
        }
    }

    /// The message, with the outer one's data.
    pub fn into_message(self, data: Bytes) -> types::message::Message {
        let data =
            if data.is_empty() { Default::default() } else { std::iter::once(data).collect() };
        types::message::Message {
            msg_type: self.msg_type,
            version: self.version,
            compat_version: self.compat_version,
            priority: self.priority,
            tid: self.tid,
            front: self.front,
            middle: self.middle,
            data,
            ..types::message::Message::default()
        }
    }
}
