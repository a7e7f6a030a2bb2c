//! Links between clones and their parents.

use bytes::{Bytes, BytesMut};
use denc::{Decode, Encode, Features, Reader, Result, envelope};
use denc_derive::Denc;
use types::SnapId;

/// A snapshot that an image was cloned from (Ceph: `cls::rbd::ParentImageSpec`,
/// `cls/rbd/cls_rbd_types.h`, version 1).
#[derive(Clone, PartialEq, Eq, Debug, Denc)]
#[denc(version = 1, compat = 1)]
pub struct ParentImageSpec {
    /// The parent's pool, -1 if there is no parent.
    pub pool_id: i64,
    /// The parent's namespace in the pool.
    pub pool_namespace: Bytes,
    /// The parent's id.
    pub image_id: Bytes,
    /// The snapshot.
    pub snap_id: SnapId,
}

impl Default for ParentImageSpec {
    /// No parent.
    fn default() -> Self {
        ParentImageSpec {
            pool_id: -1,
            pool_namespace: Bytes::new(),
            image_id: Bytes::new(),
            snap_id: SnapId::NOSNAP,
        }
    }
}

impl ParentImageSpec {
    /// Whether this names a parent.
    pub fn exists(&self) -> bool {
        self.pool_id >= 0 && !self.image_id.is_empty() && self.snap_id != SnapId::NOSNAP
    }
}

/// An image that was cloned from a snapshot (Ceph: `cls::rbd::ChildImageSpec`,
/// `cls/rbd/cls_rbd_types.h`, version 2). Ordered as in Ceph, by pool, namespace and id.
#[derive(Clone, PartialEq, Eq, Debug, Denc)]
#[denc(version = 2, compat = 1)]
pub struct ChildImageSpec {
    /// The child's pool.
    pub pool_id: i64,
    /// The child's id.
    pub image_id: Bytes,
    /// The child's namespace in the pool.
    #[denc(since = 2)]
    pub pool_namespace: Bytes,
}

impl ChildImageSpec {
    fn order(&self) -> (i64, &Bytes, &Bytes) {
        (self.pool_id, &self.pool_namespace, &self.image_id)
    }
}

impl Ord for ChildImageSpec {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.order().cmp(&other.order())
    }
}

impl PartialOrd for ChildImageSpec {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// The parent as an image's header keeps it (Ceph: `cls_rbd_parent`, `cls/rbd/cls_rbd.h`, version
/// 2; version 1, without namespace and with an overlap always there, is read).
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ParentRecord {
    /// The parent.
    pub spec: ParentImageSpec,
    /// How many bytes of the parent the live image can see; `None` once it was detached and only
    /// snapshots still need the parent.
    pub head_overlap: Option<u64>,
}

impl ParentRecord {
    /// Whether this names a parent.
    pub fn exists(&self) -> bool {
        self.spec.exists()
    }
}

impl Encode for ParentRecord {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        envelope(out, 2, 2, |out| {
            self.spec.pool_id.encode(out, f);
            self.spec.pool_namespace.encode(out, f);
            self.spec.image_id.encode(out, f);
            self.spec.snap_id.encode(out, f);
            self.head_overlap.encode(out, f);
        });
    }
}

impl Decode for ParentRecord {
    fn decode(r: &mut Reader) -> Result<Self> {
        let (struct_v, mut r) = r.envelope("cls_rbd_parent", 2)?;
        let spec = ParentImageSpec {
            pool_id: r.get()?,
            pool_namespace: if struct_v >= 2 { r.get()? } else { Bytes::new() },
            image_id: r.get()?,
            snap_id: r.get()?,
        };
        let head_overlap = if struct_v >= 2 { r.get()? } else { Some(r.get()?) };
        Ok(ParentRecord { spec, head_overlap })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_version_of_a_parent_record_is_read() {
        let mut old = BytesMut::new();
        envelope(&mut old, 1, 1, |out| {
            7i64.encode(out, Features::ALL);
            "image".encode(out, Features::ALL);
            SnapId(9).encode(out, Features::ALL);
            4096u64.encode(out, Features::ALL);
        });
        let read = ParentRecord::from_bytes(&old.freeze()).unwrap();
        assert_eq!(read.spec.pool_id, 7);
        assert_eq!(read.spec.image_id, "image");
        assert_eq!(read.head_overlap, Some(4096));
        assert_eq!(ParentRecord::from_bytes(&read.to_bytes(Features::ALL)).unwrap(), read);
    }

    #[test]
    fn children_order_by_namespace_before_id() {
        let child = |ns: &'static str, id: &'static str| ChildImageSpec {
            pool_id: 1,
            image_id: Bytes::from_static(id.as_bytes()),
            pool_namespace: Bytes::from_static(ns.as_bytes()),
        };
        assert!(child("a", "z") < child("b", "a"));
    }
}
