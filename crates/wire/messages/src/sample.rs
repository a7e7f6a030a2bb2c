//! Values for round trip tests: every field type makes one from a seeded generator.

use crate::*;
use bytes::Bytes;
use cephfs::{FileLayout, Frag, Ino, InodeStat, MetricSpec, Quota, ReplyCap, Trace};
use std::collections::BTreeMap;
use types::rados::*;
use types::room::RoomNote;
use types::*;

/// A small generator (splitmix64); tests need variety, not quality.
pub(crate) struct Gen(u64);

impl Gen {
    pub(crate) fn new(seed: u64) -> Self {
        Gen(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

pub(crate) trait Sample {
    fn sample(g: &mut Gen) -> Self;
}

macro_rules! ints {
    ($($t:ty),*) => {$( impl Sample for $t { fn sample(g: &mut Gen) -> Self { g.next() as $t } } )*};
}
ints!(i8, u8, u16, u32, u64, i16, i32, i64);

macro_rules! newtypes {
    ($($t:ident),*) => {$( impl Sample for $t { fn sample(g: &mut Gen) -> Self { $t(Sample::sample(g)) } } )*};
}
newtypes!(
    CapOp,
    ClientCounter,
    FsOp,
    Ino,
    SessionOp,
    TenantNumber,
    EntityType,
    Epoch,
    OsdId,
    PoolId,
    SnapId,
    Fsid,
    Paxos,
    PoolOpCode,
    OpFlags,
    OsdFlags,
    ShardId
);

impl Sample for bool {
    fn sample(g: &mut Gen) -> Self {
        g.below(2) == 0
    }
}
impl Sample for f64 {
    fn sample(g: &mut Gen) -> Self {
        g.below(1000) as f64 / 7.0
    }
}
impl<const N: usize> Sample for [u8; N] {
    fn sample(g: &mut Gen) -> Self {
        std::array::from_fn(|_| g.next() as u8)
    }
}
impl Sample for String {
    fn sample(g: &mut Gen) -> Self {
        (0..g.below(8)).map(|_| char::from(b'a' + g.below(26) as u8)).collect()
    }
}
impl Sample for Bytes {
    fn sample(g: &mut Gen) -> Self {
        (0..g.below(16)).map(|_| g.next() as u8).collect::<Vec<_>>().into()
    }
}
impl<T: Sample> Sample for Vec<T> {
    fn sample(g: &mut Gen) -> Self {
        (0..g.below(4)).map(|_| T::sample(g)).collect()
    }
}
impl<K: Sample + Ord, V: Sample> Sample for BTreeMap<K, V> {
    fn sample(g: &mut Gen) -> Self {
        (0..g.below(4)).map(|_| (K::sample(g), V::sample(g))).collect()
    }
}
impl<T: Sample> Sample for Option<T> {
    fn sample(g: &mut Gen) -> Self {
        bool::sample(g).then(|| T::sample(g))
    }
}
impl<A: Sample, B: Sample> Sample for (A, B) {
    fn sample(g: &mut Gen) -> Self {
        (A::sample(g), B::sample(g))
    }
}
impl<A: Sample, B: Sample, C: Sample> Sample for (A, B, C) {
    fn sample(g: &mut Gen) -> Self {
        (A::sample(g), B::sample(g), C::sample(g))
    }
}
impl<T: Sample> Sample for OrDefault<T> {
    fn sample(g: &mut Gen) -> Self {
        OrDefault(T::sample(g))
    }
}
impl Sample for Rest {
    fn sample(g: &mut Gen) -> Self {
        Rest(Sample::sample(g))
    }
}
impl Sample for PoolStat {
    fn sample(_: &mut Gen) -> Self {
        PoolStat::default()
    }
}
impl Sample for CompatSet {
    fn sample(_: &mut Gen) -> Self {
        CompatSet::default()
    }
}
impl Sample for LogPriority {
    fn sample(_: &mut Gen) -> Self {
        LogPriority::default()
    }
}

/// Structs with samples in all fields.
macro_rules! structs {
    ($($t:ident { $($f:ident),* $(,)? })*) => {$(
        impl Sample for $t {
            fn sample(g: &mut Gen) -> Self {
                $t { $( $f: Sample::sample(g) ),* }
            }
        }
    )*};
}
structs! {
    CapReconnect { path, cap_id, wanted, issued, snaprealm, pathbase, snap_follows, flock }
    RealmReconnect { ino, seq, parent }
    FilePath { ino, path }
    CapDrop { ino, cap_id, caps, wanted, seq, issue_seq, mseq, dname_seq, dname }
    CapItem { ino, cap_id, migrate_seq, seq }
    CapPeer { cap_id, seq, mseq, mds, flags }
    ClientReconnect { caps, realms, more }
    ClientSnap { op, split, split_inos, split_realms, trace }
    ClientMetric { kind, struct_v, fields }
    RoomNote { life, peer, number, cost, committed, heard, data, copies, asks }
    MetricSpec { flags }
    Quota { max_bytes, max_files }
    ReplyCap { caps, wanted, cap_id, seq, mseq, realm, flags }
    SubscribeItem { start, flags }
    PoolOp { paxos, fsid, pool, op, snapid, name, crush_rule }
    MgrOpen { daemon_name, service_name, service, config, config_defaults }
    MgrConfigure { stats_period, stats_threshold, client_queries }
    KeyPart { kind, pattern }
    ClientQuery { keys, counters }
    ClientRows { counters, rows }
    ClientReport { answers, delayed }
    MgrBeacon { paxos, addrs, gid, available, name, fsid, metadata, services, features, clients }
    MdsHealth { metrics }
    MdsHealthMetric { kind, severity, message, metadata }
    MgrReport { daemon_name, declare_types, packed, undeclare_types, service_name, daemon_status, health_metrics, config, task_status, clients }
    PerfCounterType { path, description, nick, kind, priority, unit }
    DaemonHealthMetric { kind, value }
    HealthChecks { checks }
    HealthCheck { severity, summary, detail, count }
    BootSuperblock { cluster_fsid, whoami, current_epoch, oldest_map, newest_map, weight, compat_features, clean_thru,
        mounted, osd_fsid, last_epoch_marked_full, pool_last_epoch_marked_full, purged_snaps_last, last_purged_snaps_scrub }
    LogName { kind, id }
    LogEntry { name, rank, addrs, stamp, seq, prio, msg, channel }
    OsdMapMsg { fsid, incremental_maps, maps, oldest, newest }
    Embedded { msg_type, version, compat_version, priority, tid, features, front, middle }
    ImageCounters { pool, namespace, id, write_ops, read_ops, write_bytes, read_bytes, write_latency, read_latency }
    ImageData { pool, namespace, prefix }
    ImageDemand { data, known, millis, reads, writes }
    DemandCount { ops, bytes, waiting_ops, waiting_bytes }
    ImageShare { data, osds, rates }
    TenantShare { number, name, pool, namespace, prefix, client, weight, osds, ceilings, floors }
    TenantPart { number, ops, bytes, floor }
    TenantDemand { number, millis, ops, bytes, waiting_ops, waiting_bytes, queued_ops }
    ShareOfRate { each_second, saved, peak, part }
    OsdOp { pgid, hash, epoch, flags, reqid, client_inc, mtime, locator, object, ops, snapid, snapc, retry_attempt, features }
    Eversion { epoch, version }
    PgId { pool, seed }
    SpgId { pgid, shard }
    ReqId { name, tid, inc }
    SnapContext { seq, snaps }
    Redirect { locator, object, legacy_instructions }
    WatchNotify { cookie, ver, notify_id, opcode, payload, return_code, notifier_gid, answers }
}

impl<T: Sample + Ord> Sample for std::collections::BTreeSet<T> {
    fn sample(g: &mut Gen) -> Self {
        (0..g.below(4)).map(|_| T::sample(g)).collect()
    }
}

impl Sample for MdsBeacon {
    fn sample(g: &mut Gen) -> Self {
        let boots = bool::sample(g);
        MdsBeacon {
            paxos: Sample::sample(g),
            fsid: Sample::sample(g),
            gid: Sample::sample(g),
            state: if boots { fsmap::MdsState::BOOT.0 } else { 13 },
            seq: Sample::sample(g),
            name: Sample::sample(g),
            compat: Sample::sample(g),
            health: Sample::sample(g),
            metadata: if boots { Sample::sample(g) } else { BTreeMap::new() },
            features: Sample::sample(g),
            fs: Sample::sample(g),
            log: Sample::sample(g),
        }
    }
}

impl Sample for fsmap::ClientFeatures {
    fn sample(g: &mut Gen) -> Self {
        fsmap::ClientFeatures((0..g.below(4)).map(|_| g.below(100) as u32).collect())
    }
}

impl Sample for ClientSession {
    fn sample(g: &mut Gen) -> Self {
        let head = ClientSession {
            op: Sample::sample(g),
            seq: Sample::sample(g),
            stamp: Sample::sample(g),
            max_caps: Sample::sample(g),
            max_leases: Sample::sample(g),
            ..ClientSession::default()
        };
        if bool::sample(g) {
            return head;
        }
        ClientSession {
            metadata: [("hostname".to_owned(), Sample::sample(g))].into(),
            features: Sample::sample(g),
            metric_spec: Sample::sample(g),
            flags: Sample::sample(g),
            ..head
        }
    }
}

impl Sample for FileLayout {
    /// Without a namespace, which many messages have apart.
    fn sample(g: &mut Gen) -> Self {
        FileLayout {
            stripe_count: 1 + g.below(9) as u32,
            ..FileLayout::of_pool(g.below(99) as i64)
        }
    }
}

impl Sample for ClientRequest {
    fn sample(g: &mut Gen) -> Self {
        let (op, args) = match g.below(10) {
            0 => (FsOp::LOOKUP, RequestArgs::Getattr { mask: Sample::sample(g) }),
            1 => {
                let args = RequestArgs::LookupIno {
                    mask: Sample::sample(g),
                    snapid: Sample::sample(g),
                    parent: Sample::sample(g),
                    hash: Sample::sample(g),
                };
                (FsOp::LOOKUPINO, args)
            }
            2 => {
                let args = SetAttr {
                    mode: Sample::sample(g),
                    mtime: Sample::sample(g),
                    old_size: Sample::sample(g),
                    mask: Sample::sample(g),
                    btime: Sample::sample(g),
                    ..SetAttr::default()
                };
                (FsOp::SETATTR, RequestArgs::Setattr(args))
            }
            3 => {
                let args = RequestArgs::Readdir {
                    frag: Frag(g.below(99) as u32),
                    max_entries: Sample::sample(g),
                    max_bytes: Sample::sample(g),
                    flags: Sample::sample(g),
                    offset_hash: Sample::sample(g),
                };
                (FsOp::READDIR, args)
            }
            4 => (FsOp::MKNOD, RequestArgs::Mknod { mode: Sample::sample(g), rdev: 7 }),
            5 => (FsOp::MKDIR, RequestArgs::Mkdir { mode: Sample::sample(g) }),
            6 => {
                let args = OpenArgs { flags: 5, pool: -1, old_size: 9, ..OpenArgs::default() };
                (FsOp::CREATE, RequestArgs::Open(args))
            }
            7 => {
                let osdmap_epoch = Sample::sample(g);
                (FsOp::SETXATTR, RequestArgs::Setxattr { flags: 2, osdmap_epoch })
            }
            8 => (FsOp::SETLAYOUT, RequestArgs::Setlayout(Sample::sample(g))),
            _ => {
                let args = FilelockArgs { rule: 1, kind: 2, wait: 1, pid: 8, ..Default::default() };
                (FsOp::SETFILELOCK, RequestArgs::Filelock(args))
            }
        };
        ClientRequest {
            oldest_client_tid: Sample::sample(g),
            mdsmap_epoch: Sample::sample(g),
            flags: Sample::sample(g),
            num_retry: Sample::sample(g),
            num_fwd: Sample::sample(g),
            op,
            caller_uid: Sample::sample(g),
            caller_gid: Sample::sample(g),
            ino: Sample::sample(g),
            args,
            path: Sample::sample(g),
            path2: Sample::sample(g),
            releases: Sample::sample(g),
            stamp: Sample::sample(g),
            gids: Sample::sample(g),
            alternate_name: Sample::sample(g),
            data: Sample::sample(g),
        }
    }
}

impl Sample for InodeStat {
    fn sample(g: &mut Gen) -> Self {
        InodeStat {
            ino: Sample::sample(g),
            snapid: Sample::sample(g),
            version: Sample::sample(g),
            cap: Sample::sample(g),
            layout: Sample::sample(g),
            mtime: Sample::sample(g),
            size: Sample::sample(g),
            mode: Sample::sample(g),
            nlink: Sample::sample(g),
            rbytes: Sample::sample(g),
            symlink: Sample::sample(g),
            xattrs: Sample::sample(g),
            quota: Sample::sample(g),
            change_attr: Sample::sample(g),
            snap_metadata: Sample::sample(g),
            fscrypt: Sample::sample(g),
            ..InodeStat::default()
        }
    }
}

impl Sample for ClientReply {
    fn sample(g: &mut Gen) -> Self {
        let dentry = cephfs::reply::TraceDentry {
            dir: Sample::sample(g),
            name: Sample::sample(g),
            ..Default::default()
        };
        ClientReply {
            op: Sample::sample(g),
            result: Sample::sample(g),
            mdsmap_epoch: Sample::sample(g),
            safe: Sample::sample(g),
            trace: Trace {
                dentry: bool::sample(g).then(|| Box::new(dentry)),
                target: bool::sample(g).then(|| Box::new(Sample::sample(g))),
            },
            extra: Sample::sample(g),
            snap_trace: Sample::sample(g),
        }
    }
}

impl Sample for ClientCaps {
    fn sample(g: &mut Gen) -> Self {
        let op = CapOp(g.below(13) as u32);
        let mut m = ClientCaps {
            op,
            ino: Sample::sample(g),
            realm: Sample::sample(g),
            cap_id: Sample::sample(g),
            seq: Sample::sample(g),
            caps: Sample::sample(g),
            dirty: Sample::sample(g),
            snap_trace: Sample::sample(g),
            nlink: Sample::sample(g),
            xattr_version: Sample::sample(g),
            xattrs: Sample::sample(g),
            flock: Sample::sample(g),
            inline_version: Sample::sample(g),
            inline_data: Sample::sample(g),
            osd_epoch_barrier: Sample::sample(g),
            btime: Sample::sample(g),
            flags: Sample::sample(g),
            nfiles: Sample::sample(g),
            nsubdirs: Sample::sample(g),
            ..ClientCaps::default()
        };
        if op != CapOp::EXPORT {
            m.size = Sample::sample(g);
            m.truncate_seq = Sample::sample(g);
            m.mtime = Sample::sample(g);
            m.layout = Sample::sample(g);
            m.layout.namespace = Sample::sample(g);
            m.time_warp_seq = Sample::sample(g);
        }
        if op == CapOp::EXPORT || op == CapOp::IMPORT {
            m.peer = Sample::sample(g);
        }
        m
    }
}

impl Sample for OsdPing {
    fn sample(g: &mut Gen) -> Self {
        OsdPing {
            fsid: Sample::sample(g),
            map_epoch: Sample::sample(g),
            op: OsdPing::PING,
            ping_stamp: Sample::sample(g),
            mono_ping_stamp: Sample::sample(g),
            mono_send_stamp: Sample::sample(g),
            delta_ub: Sample::sample(g),
            up_from: Sample::sample(g),
            padding: g.below(5000) as u32,
        }
    }
}

impl Sample for OpArgs {
    fn sample(_: &mut Gen) -> Self {
        OpArgs::default()
    }
}

/// A request's operation: any code, with arguments of its kind.
impl Sample for Op {
    fn sample(g: &mut Gen) -> Self {
        let info = &table()[g.below(table().len() as u64) as usize];
        let raw: [u8; 28] = Sample::sample(g);
        let mut bytes = bytes::BytesMut::new();
        Op::new(OpCode(0xfff), OpArgs::Unknown(raw)).put(0, &mut bytes);
        bytes[..2].copy_from_slice(&info.code.0.to_le_bytes());
        let (mut op, _) = Op::get(&mut denc::Reader::new(bytes.freeze())).unwrap();
        op.flags = Sample::sample(g);
        op.indata = Sample::sample(g);
        op
    }
}

impl Sample for OsdOpReply {
    fn sample(g: &mut Gen) -> Self {
        let mut ops: Vec<Op> = Sample::sample(g);
        for op in &mut ops {
            op.outdata = std::mem::take(&mut op.indata);
            op.rval = Sample::sample(g);
        }
        OsdOpReply {
            object: Sample::sample(g),
            pgid: Sample::sample(g),
            flags: Sample::sample(g),
            result: Sample::sample(g),
            bad_replay_version: Sample::sample(g),
            epoch: Sample::sample(g),
            ops,
            retry_attempt: Sample::sample(g),
            replay_version: Sample::sample(g),
            user_version: Sample::sample(g),
            redirect: Sample::sample(g),
        }
    }
}

impl Sample for Utime {
    fn sample(g: &mut Gen) -> Self {
        Utime { sec: Sample::sample(g), nsec: g.below(1_000_000_000) as u32 }
    }
}
impl Sample for EntityName {
    fn sample(g: &mut Gen) -> Self {
        EntityName { kind: EntityType::CLIENT, num: Sample::sample(g) }
    }
}
impl Sample for EntityAddrVec {
    fn sample(g: &mut Gen) -> Self {
        let addrs: Vec<u16> = Sample::sample(g);
        EntityAddrVec(
            addrs
                .into_iter()
                .map(|port| EntityAddr::msgr2(([127, 0, 0, 1], port).into(), u32::from(port)))
                .collect(),
        )
    }
}
impl Sample for ObjectLocator {
    fn sample(g: &mut Gen) -> Self {
        ObjectLocator {
            pool: Sample::sample(g),
            key: Sample::sample(g),
            namespace: Sample::sample(g),
            hash: -1,
        }
    }
}
impl Sample for ObjectId {
    fn sample(g: &mut Gen) -> Self {
        ObjectId::with_hash(
            PoolId(g.below(9) as i64),
            Sample::sample(g),
            Sample::sample(g),
            Sample::sample(g),
            Sample::sample(g),
            Sample::sample(g),
        )
    }
}
