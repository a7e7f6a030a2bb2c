//! Mirroring between clusters.

use super::open_enum;
use bytes::{Bytes, BytesMut};
use denc::{Decode, Encode, Features, Reader, Result, envelope};
use denc_derive::Denc;
use types::{AddrType, EntityAddr, EntityName, Utime};

open_enum! {
    /// What of a pool is mirrored (Ceph: `cls::rbd::MirrorMode`, four bytes on the wire).
    MirrorMode(u32) {
        /// Nothing.
        DISABLED = 0,
        /// Chosen images.
        IMAGE = 1,
        /// Every image with a journal.
        POOL = 2,
    }
}

open_enum! {
    /// Which way a peer is used (Ceph: `cls::rbd::MirrorPeerDirection`).
    MirrorPeerDirection(u8) {
        /// We copy from it.
        RX = 0,
        /// It copies from us.
        TX = 1,
        /// Both.
        RX_TX = 2,
    }
}

impl Default for MirrorPeerDirection {
    /// What a peer of version 1 is used for.
    fn default() -> Self {
        Self::RX_TX
    }
}

open_enum! {
    /// What an image is mirrored by (Ceph: `cls::rbd::MirrorImageMode`).
    MirrorImageMode(u8) {
        /// Its journal.
        JOURNAL = 0,
        /// Its snapshots.
        SNAPSHOT = 1,
    }
}

impl Default for MirrorImageMode {
    fn default() -> Self {
        Self::JOURNAL
    }
}

open_enum! {
    /// Whether an image is mirrored (Ceph: `cls::rbd::MirrorImageState`).
    MirrorImageState(u8) {
        /// It is about not to be any more.
        DISABLING = 0,
        /// It is.
        ENABLED = 1,
        /// It is not.
        DISABLED = 2,
        /// It is about to be.
        CREATING = 3,
    }
}

open_enum! {
    /// How mirroring of an image goes (Ceph: `cls::rbd::MirrorImageStatusState`). The smaller the
    /// number, the more does it need looking at.
    MirrorImageStatusState(u8) {
        /// Not told.
        UNKNOWN = 0,
        /// It failed.
        ERROR = 1,
        /// The first copy is being made.
        SYNCING = 2,
        /// It is about to follow.
        STARTING_REPLAY = 3,
        /// It follows.
        REPLAYING = 4,
        /// It is about to stop.
        STOPPING_REPLAY = 5,
        /// It stopped.
        STOPPED = 6,
    }
}

/// Another cluster (Ceph: `cls::rbd::MirrorPeer`, `cls/rbd/cls_rbd_types.h`, version 2).
#[derive(Clone, PartialEq, Eq, Debug, Denc)]
#[denc(version = 2, compat = 1)]
pub struct MirrorPeer {
    /// The peer's number here.
    pub uuid: Bytes,
    /// The cluster's name.
    pub site_name: Bytes,
    /// The name under which we enter it.
    pub client_name: Bytes,
    /// No longer used: -1.
    pub pool_id: i64,
    /// Which way it is used.
    #[denc(since = 2)]
    pub direction: MirrorPeerDirection,
    /// The mirroring's number in the other cluster's pool.
    #[denc(since = 2)]
    pub mirror_uuid: Bytes,
    /// When it was last here.
    #[denc(since = 2)]
    pub last_seen: Utime,
}

impl MirrorPeer {
    /// Whether everything is there that its direction needs.
    pub fn is_valid(&self) -> bool {
        let reachable = match self.direction {
            MirrorPeerDirection::TX => true,
            MirrorPeerDirection::RX | MirrorPeerDirection::RX_TX => !self.client_name.is_empty(),
            _ => false,
        };
        reachable && !self.uuid.is_empty() && !self.site_name.is_empty()
    }
}

/// A mirrored image (Ceph: `cls::rbd::MirrorImage`, `cls/rbd/cls_rbd_types.h`, version 2).
#[derive(Clone, PartialEq, Eq, Debug, Denc)]
#[denc(version = 2, compat = 1)]
pub struct MirrorImage {
    /// The image's number in all clusters.
    pub global_image_id: Bytes,
    /// Whether it is mirrored.
    pub state: MirrorImageState,
    /// By what.
    #[denc(since = 2)]
    pub mode: MirrorImageMode,
}

/// How mirroring of an image goes at one site (Ceph: `cls::rbd::MirrorImageSiteStatus`,
/// `cls/rbd/cls_rbd_types.h`: version and compat 1 for this site, 2 for another).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MirrorImageSiteStatus {
    /// The site, empty for this one (Ceph: `LOCAL_MIRROR_UUID`).
    pub mirror_uuid: Bytes,
    /// How it goes.
    pub state: MirrorImageStatusState,
    /// The same for people.
    pub description: Bytes,
    /// When the site said so.
    pub last_update: Utime,
    /// Whether the daemon that said so is still there.
    pub up: bool,
}

impl Default for MirrorImageSiteStatus {
    fn default() -> Self {
        MirrorImageSiteStatus {
            mirror_uuid: Bytes::new(),
            state: MirrorImageStatusState::UNKNOWN,
            description: Bytes::new(),
            last_update: Utime::ZERO,
            up: false,
        }
    }
}

impl MirrorImageSiteStatus {
    /// Whether it is about this site.
    pub fn is_local(&self) -> bool {
        self.mirror_uuid.is_empty()
    }

    /// The fields without an envelope (Ceph: `encode_meta`).
    fn encode_fields(&self, with_site: bool, out: &mut BytesMut, f: Features) {
        if with_site {
            self.mirror_uuid.encode(out, f);
        }
        self.state.encode(out, f);
        self.description.encode(out, f);
        self.last_update.encode(out, f);
        self.up.encode(out, f);
    }

    fn decode_fields(with_site: bool, r: &mut Reader) -> Result<Self> {
        Ok(MirrorImageSiteStatus {
            mirror_uuid: if with_site { r.get()? } else { Bytes::new() },
            state: r.get()?,
            description: r.get()?,
            last_update: r.get()?,
            up: r.get()?,
        })
    }
}

impl Encode for MirrorImageSiteStatus {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        let version = if self.is_local() { 1 } else { 2 };
        envelope(out, version, version, |out| self.encode_fields(version >= 2, out, f));
    }
}

impl Decode for MirrorImageSiteStatus {
    fn decode(r: &mut Reader) -> Result<Self> {
        let (struct_v, mut r) = r.envelope("cls::rbd::MirrorImageSiteStatus", 2)?;
        Self::decode_fields(struct_v >= 2, &mut r)
    }
}

/// A process and where it is (Ceph: `entity_inst_t`, `msg/msg_types.h`, plain).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Denc)]
pub struct EntityInst {
    /// Its name.
    pub name: EntityName,
    /// Its address.
    pub addr: EntityAddr,
}

impl EntityInst {
    /// The process, whichever protocol it speaks (Ceph: `sanitize_entity_inst`): the protocol does
    /// not tell processes apart, and a client can be known by either.
    pub fn of_any_protocol(name: EntityName, addr: EntityAddr) -> Self {
        EntityInst { name, addr: EntityAddr { kind: AddrType::ANY, ..addr } }
    }
}

/// A site's status as the mirroring object keeps it (Ceph: `cls::rbd::MirrorImageSiteStatusOnDisk`,
/// `cls/rbd/cls_rbd_types.h`): the sender in an envelope of version 1, then the status.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredSiteStatus {
    /// The daemon that said so, as [`EntityInst::of_any_protocol`].
    pub origin: EntityInst,
    /// What it said. The site is in the key, not here.
    pub status: MirrorImageSiteStatus,
}

impl StoredSiteStatus {
    /// Reads only the sender.
    pub fn decode_origin(r: &mut Reader) -> Result<EntityInst> {
        let (_, mut r) = r.envelope("cls::rbd::MirrorImageSiteStatusOnDisk", 1)?;
        let EntityInst { name, addr } = r.get()?;
        Ok(EntityInst::of_any_protocol(name, addr))
    }
}

impl Encode for StoredSiteStatus {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        envelope(out, 1, 1, |out| self.origin.encode(out, f));
        self.status.encode(out, f);
    }
}

impl Decode for StoredSiteStatus {
    fn decode(r: &mut Reader) -> Result<Self> {
        Ok(StoredSiteStatus { origin: Self::decode_origin(r)?, status: r.get()? })
    }
}

/// How mirroring of an image goes everywhere (Ceph: `cls::rbd::MirrorImageStatus`,
/// `cls/rbd/cls_rbd_types.h`, version 2).
///
/// On the wire, this site comes first, as version 1 had it alone; then whether it was there at all;
/// then the others.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct MirrorImageStatus {
    /// The sites, this one first if it is there.
    pub sites: Vec<MirrorImageSiteStatus>,
}

impl MirrorImageStatus {
    /// This site's status.
    pub fn local(&self) -> Option<&MirrorImageSiteStatus> {
        self.sites.iter().find(|s| s.is_local())
    }

    /// The other sites'.
    pub fn remotes(&self) -> impl Iterator<Item = &MirrorImageSiteStatus> {
        self.sites.iter().filter(|s| !s.is_local())
    }
}

impl Encode for MirrorImageStatus {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        envelope(out, 2, 1, |out| {
            let local = self.local();
            local.unwrap_or(&MirrorImageSiteStatus::default()).encode_fields(false, out, f);
            local.is_some().encode(out, f);
            let remotes = u32::try_from(self.remotes().count()).expect("sites are few");
            remotes.encode(out, f);
            for site in self.remotes() {
                site.encode_fields(true, out, f);
            }
        });
    }
}

impl Decode for MirrorImageStatus {
    fn decode(r: &mut Reader) -> Result<Self> {
        let (struct_v, mut r) = r.envelope("cls::rbd::MirrorImageStatus", 2)?;
        let local = MirrorImageSiteStatus::decode_fields(false, &mut r)?;
        if struct_v < 2 {
            return Ok(MirrorImageStatus { sites: vec![local] });
        }
        let mut sites = Vec::new();
        if r.get()? {
            sites.push(local);
        }
        // The shortest site has two empty strings, a state, a time and a flag.
        for _ in 0..r.count("mirror image site statuses", 18)? {
            sites.push(MirrorImageSiteStatus::decode_fields(true, &mut r)?);
        }
        Ok(MirrorImageStatus { sites })
    }
}

/// Which daemon mirrors an image (Ceph: `cls::rbd::MirrorImageMap`, `cls/rbd/cls_rbd_types.h`,
/// version 1).
#[derive(Clone, PartialEq, Eq, Debug, Denc)]
#[denc(version = 1, compat = 1)]
pub struct MirrorImageMap {
    /// The daemon.
    pub instance_id: Bytes,
    /// Since when.
    pub mapped_time: Utime,
    /// What the policy that chose it keeps.
    pub data: Bytes,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(uuid: &'static str, state: MirrorImageStatusState) -> MirrorImageSiteStatus {
        MirrorImageSiteStatus { mirror_uuid: uuid.into(), state, ..Default::default() }
    }

    fn round_trip<T: Encode + Decode + PartialEq + std::fmt::Debug>(value: &T) {
        assert_eq!(&T::from_bytes(&value.to_bytes(Features::ALL)).unwrap(), value);
    }

    #[test]
    fn statuses_survive_with_and_without_this_site() {
        let here = site("", MirrorImageStatusState::REPLAYING);
        let there = site("there", MirrorImageStatusState::ERROR);
        round_trip(&here);
        round_trip(&there);
        assert_eq!(here.to_bytes(Features::ALL)[..2], [1, 1]);
        assert_eq!(there.to_bytes(Features::ALL)[..2], [2, 2]);
        round_trip(&MirrorImageStatus { sites: vec![] });
        round_trip(&MirrorImageStatus { sites: vec![here.clone()] });
        round_trip(&MirrorImageStatus { sites: vec![there.clone()] });
        round_trip(&MirrorImageStatus { sites: vec![here, there] });
    }

    #[test]
    fn a_peer_needs_what_its_direction_uses() {
        let mut peer = MirrorPeer {
            uuid: "uuid".into(),
            site_name: "site".into(),
            client_name: Bytes::new(),
            pool_id: -1,
            direction: MirrorPeerDirection::TX,
            mirror_uuid: Bytes::new(),
            last_seen: Utime::ZERO,
        };
        assert!(peer.is_valid());
        peer.direction = MirrorPeerDirection::RX_TX;
        assert!(!peer.is_valid());
        peer.client_name = "client.x".into();
        assert!(peer.is_valid());
        peer.direction = MirrorPeerDirection(9);
        assert!(!peer.is_valid());
        peer.direction = MirrorPeerDirection::RX;
        peer.site_name = Bytes::new();
        assert!(!peer.is_valid());
    }
}
