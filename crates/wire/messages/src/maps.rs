//! Messages that carry maps. A map travels as bytes: its owner encodes it once per feature set and
//! hands the same bytes to every subscriber; the reader decodes it when it applies it.

use crate::payload::{Paxos, Rest, message};
use bytes::{Bytes, BytesMut};
use denc::{Encode, Features};
use std::collections::BTreeMap;
use types::{Epoch, Fsid};

message! {
    /// The monitor map (Ceph: `MMonMap`).
    MonMapMsg = 4, "mon_map", version 1, compat 1 {
        /// `MonMap`, encoded for the receiver's features.
        map: Bytes,
    }

    /// Asks a monitor for a range of OSD maps (Ceph: `MMonGetOSDMap`); both zero: none.
    MonGetOsdMap = 6, "mon_get_osdmap", version 1, compat 1 {
        /// Version header.
        paxos: Paxos,
        /// First full map.
        full_first: Epoch,
        /// Last full map.
        full_last: Epoch,
        /// First incremental.
        inc_first: Epoch,
        /// Last incremental.
        inc_last: Epoch,
    }

    /// The mgr map (Ceph: `MMgrMap`).
    MgrMapMsg = 0x704, "mgrmap", version 1, compat 1 {
        /// `MgrMap`, encoded for the receiver's features.
        map: Rest,
    }

    /// The file system map (Ceph: `MFSMap`).
    FsMapMsg = 45, "fsmap", version 1, compat 1 {
        /// Its epoch.
        epoch: Epoch,
        /// `FSMap`.
        map: Rest,
    }

    /// The file system map for clients that only look for names (Ceph: `MFSMapUser`).
    FsMapUserMsg = 103, "fsmap.user", version 1, compat 1 {
        /// Its epoch.
        epoch: Epoch,
        /// `FSMapUser`.
        map: Rest,
    }

    /// The map of one file system (Ceph: `MMDSMap`).
    MdsMapMsg = 21, "mdsmap", version 2, compat 1 {
        /// Of the cluster.
        fsid: Fsid,
        /// Its epoch.
        epoch: Epoch,
        /// `MDSMap`.
        map: Bytes,
        /// Name of the file system.
        fs_name: String = since 2,
    }

    /// Daemons that registered as a service (Ceph: `MServiceMap`).
    ServiceMapMsg = 0x707, "service_map", version 1, compat 1 {
        /// `ServiceMap`.
        map: Rest,
    }
}

/// OSD maps, full and incremental (Ceph: `MOSDMap`).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OsdMapMsg {
    /// Of the cluster.
    pub fsid: Fsid,
    /// `OSDMap::Incremental` by epoch.
    pub incremental_maps: BTreeMap<Epoch, Bytes>,
    /// `OSDMap` by epoch.
    pub maps: BTreeMap<Epoch, Bytes>,
    /// The oldest epoch that the sender can give.
    pub oldest: Epoch,
    /// The newest epoch that the sender can give.
    pub newest: Epoch,
}

impl OsdMapMsg {
    /// The first epoch in the message.
    pub fn first(&self) -> Option<Epoch> {
        self.maps.keys().chain(self.incremental_maps.keys()).min().copied()
    }

    /// The last epoch in the message.
    pub fn last(&self) -> Option<Epoch> {
        self.maps.keys().chain(self.incremental_maps.keys()).max().copied()
    }
}

impl crate::Payload for OsdMapMsg {
    const TYPE: u16 = 41;
    const NAME: &'static str = "osd_map";
    const HEAD_VERSION: u16 = 4;
    const COMPAT_VERSION: u16 = 3;

    fn encode_parts(&self, f: Features) -> crate::Parts {
        let mut out = BytesMut::new();
        self.fsid.encode(&mut out, f);
        self.incremental_maps.encode(&mut out, f);
        self.maps.encode(&mut out, f);
        self.oldest.encode(&mut out, f);
        self.newest.encode(&mut out, f);
        0u32.encode(&mut out, f); // removed snapshots in gaps, unused since 15.2
        crate::Parts { version: 4, compat: 3, front: out.freeze(), ..crate::Parts::default() }
    }

    fn decode_parts(
        crate::Received { version, front: mut r, .. }: crate::Received,
    ) -> denc::Result<Self> {
        let (fsid, incremental_maps, maps) = (r.get()?, r.get()?, r.get()?);
        let (oldest, newest) = if version >= 2 { (r.get()?, r.get()?) } else { Default::default() };
        Ok(OsdMapMsg { fsid, incremental_maps, maps, oldest, newest })
    }
}
