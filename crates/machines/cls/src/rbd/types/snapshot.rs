//! Snapshots of images and what they are for.

use super::{ParentRecord, open_enum};
use bytes::{Bytes, BytesMut};
use denc::{Decode, Encode, Features, Reader, Result, envelope};
use denc_derive::Denc;
use std::collections::{BTreeMap, BTreeSet};
use types::{SnapId, Utime};

open_enum! {
    /// What a snapshot is for (Ceph: `cls::rbd::SnapshotNamespaceType`).
    NamespaceKind(u32) {
        /// Made by a user.
        USER = 0,
        /// Part of a snapshot of a group.
        GROUP = 1,
        /// Removed, but clones still need it.
        TRASH = 2,
        /// Made by mirroring.
        MIRROR = 3,
    }
}

open_enum! {
    /// Side and role of a mirror's snapshot (Ceph: `cls::rbd::MirrorSnapshotState`).
    MirrorSnapshotState(u8) {
        /// Made on the primary image.
        PRIMARY = 0,
        /// Made when the image stopped to be primary.
        PRIMARY_DEMOTED = 1,
        /// A copy of a primary snapshot.
        NON_PRIMARY = 2,
        /// A copy of a snapshot made at demotion.
        NON_PRIMARY_DEMOTED = 3,
    }
}

open_enum! {
    /// Whether a snapshot may be removed (Ceph: `RBD_PROTECTION_STATUS_*`, `include/rbd_types.h`).
    ProtectionStatus(u8) {
        /// It may.
        UNPROTECTED = 0,
        /// Clones are being looked for before it may.
        UNPROTECTING = 1,
        /// It may not.
        PROTECTED = 2,
    }
}

impl ProtectionStatus {
    /// Whether the number means something.
    pub fn is_valid(self) -> bool {
        self <= Self::PROTECTED
    }
}

/// What a snapshot is for, with what belongs to that (Ceph: `cls::rbd::SnapshotNamespace`,
/// `cls/rbd/cls_rbd_types.h`, version 1: the kind, then the fields of the kind).
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub enum SnapshotNamespace {
    /// Made by a user.
    #[default]
    User,
    /// Part of a group's snapshot (`GroupSnapshotNamespace`).
    Group {
        /// Pool of the group.
        group_pool: i64,
        /// The group.
        group_id: Bytes,
        /// The group's snapshot.
        group_snapshot_id: Bytes,
    },
    /// Removed by the user (`TrashSnapshotNamespace`).
    Trash {
        /// Name before the removal.
        original_name: Bytes,
        /// Kind before the removal.
        original_kind: NamespaceKind,
    },
    /// Made by mirroring (`MirrorSnapshotNamespace`).
    Mirror(MirrorSnapshot),
    /// A kind that this class does not know. Its fields are lost.
    Unknown,
}

/// A mirror's snapshot (Ceph: `cls::rbd::MirrorSnapshotNamespace`, `cls/rbd/cls_rbd_types.h`,
/// plain).
#[derive(Clone, PartialEq, Eq, Debug, Denc)]
pub struct MirrorSnapshot {
    /// Side and role.
    pub state: MirrorSnapshotState,
    /// Whether everything was copied.
    pub complete: bool,
    /// Peers that still need it.
    pub mirror_peer_uuids: BTreeSet<Bytes>,
    /// The primary cluster, on a copy.
    pub primary_mirror_uuid: Bytes,
    /// On a copy, the snapshot it is a copy of; on a primary, the one since which nothing changed.
    pub primary_snap_id: SnapId,
    /// How far the copying has come.
    pub last_copied_object_number: u64,
    /// Snapshots of the primary, and here.
    pub snap_seqs: BTreeMap<u64, u64>,
}

impl SnapshotNamespace {
    /// The kind alone.
    pub fn kind(&self) -> NamespaceKind {
        match self {
            SnapshotNamespace::User => NamespaceKind::USER,
            SnapshotNamespace::Group { .. } => NamespaceKind::GROUP,
            SnapshotNamespace::Trash { .. } => NamespaceKind::TRASH,
            SnapshotNamespace::Mirror(_) => NamespaceKind::MIRROR,
            SnapshotNamespace::Unknown => NamespaceKind(u32::MAX),
        }
    }

    /// Whether a name can be used once only among snapshots of `self` and `other`: two in the trash
    /// always collide, others only if all their fields are equal.
    pub fn shares_names_with(&self, other: &SnapshotNamespace) -> bool {
        match (self, other) {
            (SnapshotNamespace::Trash { .. }, SnapshotNamespace::Trash { .. }) => true,
            _ => self == other,
        }
    }
}

impl Encode for SnapshotNamespace {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        envelope(out, 1, 1, |out| {
            self.kind().encode(out, f);
            match self {
                SnapshotNamespace::Group { group_pool, group_id, group_snapshot_id } => {
                    group_pool.encode(out, f);
                    group_id.encode(out, f);
                    group_snapshot_id.encode(out, f);
                }
                SnapshotNamespace::Trash { original_name, original_kind } => {
                    original_name.encode(out, f);
                    original_kind.encode(out, f);
                }
                SnapshotNamespace::Mirror(mirror) => mirror.encode(out, f),
                SnapshotNamespace::User | SnapshotNamespace::Unknown => {}
            }
        });
    }
}

impl Decode for SnapshotNamespace {
    fn decode(r: &mut Reader) -> Result<Self> {
        let (_, mut r) = r.envelope("cls::rbd::SnapshotNamespace", 1)?;
        Ok(match r.get()? {
            NamespaceKind::USER => SnapshotNamespace::User,
            NamespaceKind::GROUP => SnapshotNamespace::Group {
                group_pool: r.get()?,
                group_id: r.get()?,
                group_snapshot_id: r.get()?,
            },
            NamespaceKind::TRASH => {
                SnapshotNamespace::Trash { original_name: r.get()?, original_kind: r.get()? }
            }
            NamespaceKind::MIRROR => SnapshotNamespace::Mirror(r.get()?),
            _ => SnapshotNamespace::Unknown,
        })
    }
}

/// A snapshot as clients see it (Ceph: `cls::rbd::SnapshotInfo`, `cls/rbd/cls_rbd_types.h`,
/// version 1).
#[derive(Clone, PartialEq, Eq, Debug, Denc)]
#[denc(version = 1, compat = 1)]
pub struct SnapshotInfo {
    /// Its number.
    pub id: SnapId,
    /// What it is for.
    pub namespace: SnapshotNamespace,
    /// Its name, unique within what it is for.
    pub name: Bytes,
    /// Size of the image then, in bytes.
    pub image_size: u64,
    /// When it was made.
    pub timestamp: Utime,
    /// How many clones are attached to it.
    pub child_count: u32,
}

/// A snapshot as an image's header keeps it (Ceph: `cls_rbd_snap`, `cls/rbd/cls_rbd.h`, version 8).
///
/// A record with compat version below 8 has a whole parent in it; such records are read, and
/// written back in the new form, in which the header's parent record has the parent and the
/// snapshot only its overlap.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapRecord {
    /// Its number.
    pub id: SnapId,
    /// Its name.
    pub name: Bytes,
    /// Size of the image then, in bytes.
    pub image_size: u64,
    /// Whether it may be removed.
    pub protection_status: ProtectionStatus,
    /// The whole parent, in a record of the old form, or until the record is written.
    pub parent: ParentRecord,
    /// Flags of the image then.
    pub flags: u64,
    /// When it was made.
    pub timestamp: Utime,
    /// What it is for.
    pub namespace: SnapshotNamespace,
    /// How many clones are attached to it.
    pub child_count: u32,
    /// How many bytes of the parent it can see.
    pub parent_overlap: Option<u64>,
}

impl Default for SnapRecord {
    fn default() -> Self {
        SnapRecord {
            id: SnapId::NOSNAP,
            name: Bytes::new(),
            image_size: 0,
            protection_status: ProtectionStatus::UNPROTECTED,
            parent: ParentRecord::default(),
            flags: 0,
            timestamp: Utime::ZERO,
            namespace: SnapshotNamespace::User,
            child_count: 0,
            parent_overlap: None,
        }
    }
}

impl SnapRecord {
    /// Whether the snapshot needs the image's parent.
    pub fn has_parent(&self) -> bool {
        self.parent.spec.pool_id != -1 || self.parent_overlap.is_some()
    }

    /// What clients see of it.
    pub fn info(self) -> SnapshotInfo {
        SnapshotInfo {
            id: self.id,
            namespace: self.namespace,
            name: self.name,
            image_size: self.image_size,
            timestamp: self.timestamp,
            child_count: self.child_count,
        }
    }
}

impl Encode for SnapRecord {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        envelope(out, 8, 8, |out| {
            self.id.encode(out, f);
            self.name.encode(out, f);
            self.image_size.encode(out, f);
            self.protection_status.encode(out, f);
            self.flags.encode(out, f);
            self.namespace.encode(out, f);
            self.timestamp.encode(out, f);
            self.child_count.encode(out, f);
            self.parent_overlap.encode(out, f);
        });
    }
}

impl Decode for SnapRecord {
    fn decode(r: &mut Reader) -> Result<Self> {
        let compat = r.peek().get(1).copied().unwrap_or_default();
        let (struct_v, mut r) = r.envelope("cls_rbd_snap", 8)?;
        let mut snap = SnapRecord {
            id: r.get()?,
            name: r.get()?,
            image_size: r.get()?,
            ..SnapRecord::default()
        };
        if compat < 8 {
            // Features of the image then, no longer used.
            r.get::<u64>()?;
            if struct_v >= 2 {
                snap.parent = r.get()?;
            }
        }
        if struct_v >= 3 {
            snap.protection_status = r.get()?;
        }
        if struct_v >= 4 {
            snap.flags = r.get()?;
        }
        if struct_v >= 5 {
            snap.namespace = r.get()?;
        }
        if struct_v >= 6 {
            snap.timestamp = r.get()?;
        }
        if struct_v >= 7 {
            snap.child_count = r.get()?;
        }
        if struct_v >= 8 {
            snap.parent_overlap = r.get()?;
        }
        Ok(snap)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip<T: Encode + Decode + PartialEq + std::fmt::Debug>(value: T) {
        assert_eq!(T::from_bytes(&value.to_bytes(Features::ALL)).unwrap(), value);
    }

    #[test]
    fn namespaces_survive_the_wire() {
        round_trip(SnapshotNamespace::User);
        round_trip(SnapshotNamespace::Group {
            group_pool: 3,
            group_id: "group".into(),
            group_snapshot_id: "snap".into(),
        });
        round_trip(SnapshotNamespace::Trash {
            original_name: "name".into(),
            original_kind: NamespaceKind::MIRROR,
        });
        round_trip(SnapshotNamespace::Mirror(MirrorSnapshot {
            state: MirrorSnapshotState::NON_PRIMARY,
            complete: true,
            mirror_peer_uuids: ["peer".into()].into(),
            primary_mirror_uuid: "uuid".into(),
            primary_snap_id: SnapId(5),
            last_copied_object_number: 7,
            snap_seqs: [(1, 2)].into(),
        }));
    }

    #[test]
    fn a_namespace_of_the_future_is_unknown() {
        let mut future = BytesMut::new();
        envelope(&mut future, 2, 1, |out| {
            77u32.encode(out, Features::ALL);
            "whatever".encode(out, Features::ALL);
        });
        assert_eq!(
            SnapshotNamespace::from_bytes(&future.freeze()).unwrap(),
            SnapshotNamespace::Unknown
        );
    }

    #[test]
    fn records_survive_and_the_old_form_is_read() {
        let record = SnapRecord {
            id: SnapId(4),
            name: "snap".into(),
            image_size: 10,
            flags: 1,
            timestamp: Utime::new(5, 6),
            child_count: 2,
            parent_overlap: Some(8),
            ..SnapRecord::default()
        };
        round_trip(record);

        let mut old = BytesMut::new();
        envelope(&mut old, 4, 1, |out| {
            let f = Features::ALL;
            SnapId(4).encode(out, f);
            "snap".encode(out, f);
            10u64.encode(out, f);
            0u64.encode(out, f);
            let parent = ParentRecord {
                spec: super::super::ParentImageSpec {
                    pool_id: 2,
                    image_id: "p".into(),
                    snap_id: SnapId(1),
                    ..Default::default()
                },
                head_overlap: Some(3),
            };
            parent.encode(out, f);
            ProtectionStatus::PROTECTED.encode(out, f);
            1u64.encode(out, f);
        });
        let read = SnapRecord::from_bytes(&old.freeze()).unwrap();
        assert_eq!(read.parent.spec.pool_id, 2);
        assert_eq!(read.parent.head_overlap, Some(3));
        assert_eq!(read.protection_status, ProtectionStatus::PROTECTED);
        assert_eq!((read.flags, read.child_count, read.parent_overlap), (1, 0, None));
        assert!(read.has_parent());
    }
}
