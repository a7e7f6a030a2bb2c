//! Between OSDs, and from OSDs to the monitors.

use crate::payload::{Parts, Paxos, Payload, Received, message};
use bytes::BytesMut;
use denc::{Encode, Features};
use denc_derive::Denc;
use std::collections::BTreeMap;
use types::{CompatSet, EntityAddrVec, Epoch, Fsid, OsdId, PgId, SpgId, Utime};

message! {
    /// An OSD wants to be marked up (Ceph: `MOSDBoot`, version 7).
    OsdBoot = 71, "osd_boot", version 7, compat 7 {
        /// Version header; the newest map that the OSD has.
        paxos: Paxos,
        /// Its identity.
        superblock: BootSuperblock,
        /// Heartbeat address on the cluster network.
        hb_back_addrs: EntityAddrVec,
        /// Address for other OSDs.
        cluster_addrs: EntityAddrVec,
        /// Last epoch in which this process was marked up, 0 if never.
        boot_epoch: Epoch,
        /// Heartbeat address on the public network.
        hb_front_addrs: EntityAddrVec,
        /// What `ceph osd metadata` shows.
        metadata: BTreeMap<String, String>,
        /// Features of the OSD.
        osd_features: u64,
    }

    /// A sign of life (Ceph: `MOSDBeacon`).
    OsdBeacon = 79, "osd_beacon", version 3, compat 1 {
        /// Version header.
        paxos: Paxos,
        /// Placement groups that the OSD leads.
        pgs: Vec<PgId>,
        /// No placement group here needs maps before this epoch.
        min_last_epoch_clean: Epoch,
        /// When purged snapshots were last checked.
        last_purged_snaps_scrub: Utime = since 2,
        /// Seconds between two beacons.
        report_interval: i32 = since 3,
    }

    /// Asks for `up_thru` (Ceph: `MOSDAlive`).
    OsdAlive = 73, "osd_alive", version 1, compat 1 {
        /// Version header.
        paxos: Paxos,
        /// The epoch that `up_thru` has to reach.
        want: Epoch,
    }

    /// Another OSD does not answer (Ceph: `MOSDFailure`, version 4).
    OsdFailure = 72, "osd_failure", version 4, compat 4 {
        /// Version header.
        paxos: Paxos,
        /// Of the cluster.
        fsid: Fsid,
        /// The silent one.
        target: OsdId,
        /// Its addresses: the report is about this process only.
        target_addrs: EntityAddrVec,
        /// The reporter's map epoch.
        epoch: Epoch,
        /// [`OsdFailure::FAILED`], [`OsdFailure::IMMEDIATE`]; 0 takes a report back.
        flags: u8,
        /// Seconds of silence.
        failed_for: i32,
    }

    /// The sender shuts down (Ceph: `MOSDMarkMeDown`, version 3). The acknowledgement is the same
    /// message.
    OsdMarkMeDown = 74, "osd_mark_me_down", version 3, compat 3 {
        /// Version header.
        paxos: Paxos,
        /// Of the cluster.
        fsid: Fsid,
        /// The sender.
        target: OsdId,
        /// Its addresses.
        target_addrs: EntityAddrVec,
        /// Its map epoch.
        epoch: Epoch,
        /// Whether it waits for an answer.
        request_ack: bool,
    }

    /// The sender's process is dead for sure: its leases need not be waited out (Ceph:
    /// `MOSDMarkMeDead`).
    OsdMarkMeDead = 123, "osd_mark_me_dead", version 1, compat 1 {
        /// Version header.
        paxos: Paxos,
        /// Of the cluster.
        fsid: Fsid,
        /// The dead one.
        target: OsdId,
        /// Map epoch of the sender.
        epoch: Epoch,
    }

    /// Asks for temporary acting sets (Ceph: `MOSDPGTemp`).
    OsdPgTemp = 78, "osd_pgtemp", version 2, compat 1 {
        /// Version header.
        paxos: Paxos,
        /// The sender's map epoch.
        map_epoch: Epoch,
        /// Wanted acting set by placement group; empty takes it back.
        pg_temp: BTreeMap<PgId, Vec<OsdId>>,
        /// Even if the group is gone from the map that the monitor knows.
        forced: bool = since 2,
    }

    /// A new placement group exists (Ceph: `MOSDPGCreated`).
    OsdPgCreated = 116, "pg_created", version 1, compat 1 {
        /// Version header.
        paxos: Paxos,
        /// The group.
        pgid: PgId,
    }

    /// Placement groups that are to be made anew, because all their copies are lost (Ceph:
    /// `messages/MOSDPGCreate2.h`, `MOSDPGCreate2`, version 1).
    OsdPgCreate = 120, "pg_create2", version 1, compat 1 {
        /// Map epoch of the sender.
        epoch: Epoch,
        /// The groups: since which epoch they are to be made, and when that was asked for.
        pgs: BTreeMap<SpgId, (Epoch, Utime)>,
    }

    /// How full the sender is, as state bits of the OSD map (Ceph: `MOSDFull`).
    OsdFull = 75, "osd_full", version 1, compat 1 {
        /// Version header.
        paxos: Paxos,
        /// The sender's map epoch.
        map_epoch: Epoch,
        /// `CEPH_OSD_FULL`, `_NEARFULL`, `_BACKFILLFULL`.
        state: u32,
    }

    /// Asks an OSD to scrub (Ceph: `MOSDScrub2`).
    OsdScrub = 121, "osd_scrub2", version 1, compat 1 {
        /// Of the cluster.
        fsid: Fsid,
        /// Map epoch of the sender.
        epoch: Epoch,
        /// The groups.
        pgs: Vec<SpgId>,
        /// Repair what is found.
        repair: bool,
        /// Compare data too.
        deep: bool,
    }

    /// Raises or lowers the priority of recovery (Ceph: `MOSDForceRecovery`).
    OsdForceRecovery = 151, "osd_force_recovery", version 2, compat 2 {
        /// Of the cluster.
        fsid: Fsid,
        /// The groups.
        pgs: Vec<SpgId>,
        /// `OFR_RECOVERY` 1, `OFR_BACKFILL` 2, `OFR_CANCEL` 4.
        options: u8,
    }
}

impl OsdForceRecovery {
    /// Of recovery (`OFR_RECOVERY`).
    pub const RECOVERY: u8 = 1;
    /// Of backfill (`OFR_BACKFILL`).
    pub const BACKFILL: u8 = 2;
    /// Not any more (`OFR_CANCEL`).
    pub const CANCEL: u8 = 4;
}

impl OsdFailure {
    /// The target failed; without it, it is alive after all.
    pub const FAILED: u8 = 1;
    /// The target's process is known to be gone: no grace is needed.
    pub const IMMEDIATE: u8 = 2;
}

/// What an OSD tells about itself when it boots (Ceph: `OSDSuperblock`, struct_v 9).
#[derive(Clone, Debug, Default, PartialEq, Denc)]
#[denc(version = 9, compat = 5, oldest = 9)]
pub struct BootSuperblock {
    /// Of the cluster.
    pub cluster_fsid: Fsid,
    /// Its number.
    pub whoami: OsdId,
    /// Epoch that it worked with last.
    pub current_epoch: Epoch,
    /// Oldest map that it has.
    pub oldest_map: Epoch,
    /// Newest map that it has.
    pub newest_map: Epoch,
    /// Unused.
    pub weight: f64,
    /// On-disk features.
    pub compat_features: CompatSet,
    /// Last epoch that it was clean through.
    pub clean_thru: Epoch,
    /// Epoch in which it was mounted.
    pub mounted: Epoch,
    /// Of this OSD.
    pub osd_fsid: Fsid,
    /// Unused.
    pub last_epoch_marked_full: Epoch,
    /// Unused.
    pub pool_last_epoch_marked_full: BTreeMap<i64, Epoch>,
    /// Epoch of the last purged snapshots.
    pub purged_snaps_last: Epoch,
    /// When purged snapshots were last checked.
    pub last_purged_snaps_scrub: Utime,
}

/// A heartbeat (Ceph: `MOSDPing`, versions 4 and 5).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OsdPing {
    /// Of the cluster.
    pub fsid: Fsid,
    /// The sender's map epoch.
    pub map_epoch: Epoch,
    /// [`OsdPing::PING`] and its siblings.
    pub op: u8,
    /// When the ping was sent, by its sender's clock.
    pub ping_stamp: Utime,
    /// The same by its monotonic clock: seconds, nanoseconds.
    pub mono_ping_stamp: (i32, i32),
    /// When this message was sent, by its sender's monotonic clock.
    pub mono_send_stamp: (i32, i32),
    /// Upper bound of the difference of the two monotonic clocks, as the sender of the ping knows
    /// it.
    pub delta_ub: Option<(i32, i32)>,
    /// Epoch in which the sender was marked up.
    pub up_from: Epoch,
    /// Zeros at the end, to see that large frames get through.
    pub padding: u32,
}

impl OsdPing {
    /// You are marked down.
    pub const YOU_DIED: u8 = 2;
    /// Are you there?
    pub const PING: u8 = 4;
    /// I am here.
    pub const PING_REPLY: u8 = 5;
    /// More padding than this is not written.
    pub const MAX_PADDING: u32 = 1 << 16;
}

impl Payload for OsdPing {
    const TYPE: u16 = 70;
    const NAME: &'static str = "osd_ping";
    const HEAD_VERSION: u16 = 5;
    const COMPAT_VERSION: u16 = 4;

    fn encode_parts(&self, f: Features) -> Parts {
        let mut out = BytesMut::new();
        let padding = self.padding.min(Self::MAX_PADDING);
        self.fsid.encode(&mut out, f);
        self.map_epoch.encode(&mut out, f);
        self.op.encode(&mut out, f);
        self.ping_stamp.encode(&mut out, f);
        padding.encode(&mut out, f);
        self.up_from.encode(&mut out, f);
        self.mono_ping_stamp.encode(&mut out, f);
        self.mono_send_stamp.encode(&mut out, f);
        self.delta_ub.encode(&mut out, f);
        out.resize(out.len() + padding as usize, 0);
        Parts { version: 5, compat: 4, front: out.freeze(), ..Parts::default() }
    }

    fn decode_parts(Received { version, front: mut r, .. }: Received) -> denc::Result<Self> {
        let mut m = OsdPing {
            fsid: r.get()?,
            map_epoch: r.get()?,
            op: r.get()?,
            ping_stamp: r.get()?,
            padding: r.get()?,
            ..Default::default()
        };
        if version >= 5 {
            m.up_from = r.get()?;
            m.mono_ping_stamp = r.get()?;
            m.mono_send_stamp = r.get()?;
            m.delta_ub = r.get()?;
        }
        r.skip("MOSDPing padding", m.padding as usize)?;
        Ok(m)
    }
}
