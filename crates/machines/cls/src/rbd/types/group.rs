//! Groups of images.

use super::open_enum;
use bytes::Bytes;
use denc_derive::Denc;
use types::SnapId;

open_enum! {
    /// Whether an image is in a group for good (Ceph: `cls::rbd::GroupImageLinkState`).
    GroupImageLinkState(u8) {
        /// The image knows the group, too.
        ATTACHED = 0,
        /// It is being added or removed.
        INCOMPLETE = 1,
    }
}

open_enum! {
    /// Whether a group's snapshot is there for every image (Ceph: `cls::rbd::GroupSnapshotState`).
    GroupSnapshotState(u8) {
        /// Not yet.
        INCOMPLETE = 0,
        /// It is.
        COMPLETE = 1,
    }
}

/// An image of a group (Ceph: `cls::rbd::GroupImageSpec`, `cls/rbd/cls_rbd_types.h`, version 1).
#[derive(Clone, PartialEq, Eq, Debug, Denc)]
#[denc(version = 1, compat = 1)]
pub struct GroupImageSpec {
    /// The image.
    pub image_id: Bytes,
    /// Its pool.
    pub pool_id: i64,
}

impl GroupImageSpec {
    /// What the keys of images in a group's header begin with (Ceph: `RBD_GROUP_IMAGE_KEY_PREFIX`).
    pub const KEY_PREFIX: &'static [u8] = b"image_";

    /// The image's key in a group's header: empty for pool -1, which lists from the beginning.
    pub fn key(&self) -> Bytes {
        if self.pool_id == -1 {
            return Bytes::new();
        }
        let mut key = format!("image_{:016x}_", self.pool_id).into_bytes();
        key.extend_from_slice(&self.image_id);
        key.into()
    }

    /// The image with this key; `None` if no image has such a key.
    pub fn from_key(key: &[u8]) -> Option<Self> {
        let rest = key.strip_prefix(Self::KEY_PREFIX)?;
        let at = rest.iter().position(|&b| b == b'_')?;
        let (pool, id) = rest.split_at(at);
        let pool = u64::from_str_radix(std::str::from_utf8(pool).ok()?, 16).ok()?;
        // The sign of a negative pool is in the highest bit.
        Some(GroupImageSpec {
            image_id: Bytes::copy_from_slice(id.get(1..)?),
            pool_id: pool as i64,
        })
    }
}

/// An image of a group and how firmly it is in it (Ceph: `cls::rbd::GroupImageStatus`,
/// `cls/rbd/cls_rbd_types.h`, version 1).
#[derive(Clone, PartialEq, Eq, Debug, Denc)]
#[denc(version = 1, compat = 1)]
pub struct GroupImageStatus {
    /// The image.
    pub spec: GroupImageSpec,
    /// How firmly.
    pub state: GroupImageLinkState,
}

/// A group (Ceph: `cls::rbd::GroupSpec`, `cls/rbd/cls_rbd_types.h`, version 1).
#[derive(Clone, PartialEq, Eq, Debug, Denc)]
#[denc(version = 1, compat = 1)]
pub struct GroupSpec {
    /// The group's pool, -1 if there is no group.
    pub pool_id: i64,
    /// The group.
    pub group_id: Bytes,
}

impl Default for GroupSpec {
    /// No group.
    fn default() -> Self {
        GroupSpec { pool_id: -1, group_id: Bytes::new() }
    }
}

/// A snapshot of an image as part of a group's (Ceph: `cls::rbd::ImageSnapshotSpec`,
/// `cls/rbd/cls_rbd_types.h`, version 1).
#[derive(Clone, PartialEq, Eq, Debug, Denc)]
#[denc(version = 1, compat = 1)]
pub struct ImageSnapshotSpec {
    /// The image's pool.
    pub pool: i64,
    /// The image.
    pub image_id: Bytes,
    /// Its snapshot.
    pub snap_id: SnapId,
}

/// A snapshot of a group (Ceph: `cls::rbd::GroupSnapshot`, `cls/rbd/cls_rbd_types.h`, version 1).
#[derive(Clone, PartialEq, Eq, Debug, Denc)]
#[denc(version = 1, compat = 1)]
pub struct GroupSnapshot {
    /// The snapshot.
    pub id: Bytes,
    /// Its name, unique in the group.
    pub name: Bytes,
    /// Whether every image has its part.
    pub state: GroupSnapshotState,
    /// The images' parts.
    pub snaps: Vec<ImageSnapshotSpec>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_images_can_be_read_back() {
        let spec = GroupImageSpec { image_id: "10152ae8944a".into(), pool_id: 31 };
        assert_eq!(spec.key(), "image_000000000000001f_10152ae8944a");
        assert_eq!(GroupImageSpec::from_key(&spec.key()), Some(spec));
        assert!(GroupImageSpec { image_id: "x".into(), pool_id: -1 }.key().is_empty());
        for bad in ["image_", "image_12", "image_zz_x", "other_12_x"] {
            assert_eq!(GroupImageSpec::from_key(bad.as_bytes()), None, "{bad}");
        }
    }
}
