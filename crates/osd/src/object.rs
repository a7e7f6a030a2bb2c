//! What an OSD keeps about an object beside its content.

use bytes::{Bytes, BytesMut};
use denc::{Decode, Encode, Features};
use denc_derive::Denc;
use std::collections::BTreeMap;
use types::errno::Errno;
use types::{Eversion, IntervalSet, ObjectId, ReqId, SnapId, Utime};

/// What is known about an object (Ceph: `object_info_t`; the encoding is our own). Kept in the attribute
/// [`crate::op::OI_ATTR`] of the object, which also carries its name: the key in the store is enough to
/// find an object, but not always to name it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct ObjectInfo {
    /// Version of the last change.
    pub version: Eversion,
    /// Version of the change before that.
    pub prior_version: Eversion,
    /// Version as users see it; does not change when a snapshot is trimmed, for example.
    pub user_version: u64,
    /// Who made the last change.
    pub last_reqid: ReqId,
    /// Bytes.
    pub size: u64,
    /// Modification time that the client gave.
    pub mtime: Utime,
    /// Modification time on the primary's clock.
    pub local_mtime: Utime,
    /// Number of the last truncation that a client numbered.
    pub truncate_seq: u64,
    /// What it cut to.
    pub truncate_size: u64,
    /// Bits, see the getters.
    pub flags: u32,
}

const FLAG_WHITEOUT: u32 = 1 << 1;
const FLAG_DIRTY: u32 = 1 << 2;
const FLAG_OMAP: u32 = 1 << 3;

impl ObjectInfo {
    /// The object does not exist for clients: its record is kept for the sake of its clones.
    pub fn is_whiteout(&self) -> bool {
        self.flags & FLAG_WHITEOUT != 0
    }

    /// It has, or had, omap rows or an omap header.
    pub fn is_omap(&self) -> bool {
        self.flags & FLAG_OMAP != 0
    }

    /// It was changed since it was last flushed to a base pool; so, without tiers, always.
    pub fn is_dirty(&self) -> bool {
        self.flags & FLAG_DIRTY != 0
    }

    /// See [`ObjectInfo::is_whiteout`].
    pub fn set_whiteout(&mut self, on: bool) {
        self.set(FLAG_WHITEOUT, on);
    }

    /// See [`ObjectInfo::is_omap`].
    pub fn set_omap(&mut self, on: bool) {
        self.set(FLAG_OMAP, on);
    }

    /// See [`ObjectInfo::is_dirty`].
    pub fn set_dirty(&mut self, on: bool) {
        self.set(FLAG_DIRTY, on);
    }

    fn set(&mut self, flag: u32, on: bool) {
        if on {
            self.flags |= flag;
        } else {
            self.flags &= !flag;
        }
    }

    /// A new or removed object has no omap rows, whatever it had before.
    pub fn forget_content(&mut self) {
        self.set_omap(false);
    }
}

/// An object as a request sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectState {
    /// Its name.
    pub oid: ObjectId,
    /// It has a record in the store (which may be a whiteout).
    pub exists: bool,
    /// Its info; default if it does not exist.
    pub oi: ObjectInfo,
}

impl ObjectState {
    /// An object that does not exist.
    pub fn absent(oid: ObjectId) -> Self {
        ObjectState { oid, exists: false, oi: ObjectInfo::default() }
    }

    /// Whether clients see it.
    pub fn visible(&self) -> bool {
        self.exists && !self.oi.is_whiteout()
    }
}

/// The clones of an object (Ceph: `SnapSet`; the encoding is our own). Kept in the attribute
/// [`crate::op::SS_ATTR`] of its head.
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct SnapSet {
    /// The newest snapshot that a writer of the head knew.
    pub seq: SnapId,
    /// Clone ids, ascending.
    pub clones: Vec<SnapId>,
    /// Bytes that each clone shares with the next newer clone, or with the head. An entry for each clone.
    pub clone_overlap: BTreeMap<SnapId, IntervalSet>,
    /// Size of each clone.
    pub clone_size: BTreeMap<SnapId, u64>,
    /// Snapshots that each clone stands for, descending.
    pub clone_snaps: BTreeMap<SnapId, Vec<SnapId>>,
}

/// Which object has the content of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// The head: nothing was written since.
    Head,
    /// This clone.
    Clone(SnapId),
    /// None: the object did not exist then.
    Nothing,
}

impl SnapSet {
    /// Which object has the content at `snap`.
    pub fn locate(&self, snap: SnapId) -> At {
        if snap > self.seq {
            return At::Head;
        }
        match self.clones.iter().find(|c| **c >= snap) {
            Some(clone) if self.clone_snaps.get(clone).is_some_and(|s| s.contains(&snap)) => At::Clone(*clone),
            _ => At::Nothing,
        }
    }

    /// Which object a clone id names (`CEPH_OSD_FLAG_MAP_SNAP_CLONE`).
    pub fn locate_clone(&self, clone: SnapId) -> At {
        if clone > self.seq {
            At::Head
        } else if self.clones.contains(&clone) {
            At::Clone(clone)
        } else {
            At::Nothing
        }
    }

    /// Bytes that only this clone has.
    pub fn clone_bytes(&self, clone: SnapId) -> u64 {
        let size = self.clone_size.get(&clone).copied().unwrap_or(0);
        let shared = self.clone_overlap.get(&clone).map_or(0, IntervalSet::size);
        size.saturating_sub(shared)
    }
}

/// What a pool allows and says, as far as operations depend on it.
#[derive(Clone, Copy, Debug, Default)]
pub struct PoolRules {
    /// The pool is full.
    pub full: bool,
    /// It is full because of its quota.
    pub full_quota: bool,
    /// Data written will not be read soon.
    pub write_dont_need: bool,
}

/// The attributes of an object that are not its users'.
pub fn encode_attr<T: Encode>(value: &T) -> Bytes {
    let mut out = BytesMut::with_capacity(192);
    value.encode(&mut out, Features::ALL);
    out.freeze()
}

/// Reads an attribute of our own; what cannot be read is a damaged object.
pub fn decode_attr<T: Decode>(bytes: &Bytes) -> Result<T, Errno> {
    T::from_bytes(bytes).map_err(|_| Errno::EIO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_are_found_in_the_oldest_clone_that_has_them() {
        let mut s = SnapSet { seq: SnapId(7), clones: vec![SnapId(4), SnapId(7)], ..SnapSet::default() };
        s.clone_snaps.insert(SnapId(4), vec![SnapId(4), SnapId(2)]);
        s.clone_snaps.insert(SnapId(7), vec![SnapId(7), SnapId(6)]);
        assert_eq!(s.locate(SnapId(8)), At::Head);
        assert_eq!(s.locate(SnapId(6)), At::Clone(SnapId(7)));
        assert_eq!(s.locate(SnapId(5)), At::Nothing);
        assert_eq!(s.locate(SnapId(2)), At::Clone(SnapId(4)));
        assert_eq!(s.locate(SnapId(1)), At::Nothing);
        assert_eq!(s.locate_clone(SnapId(4)), At::Clone(SnapId(4)));
        assert_eq!(s.locate_clone(SnapId(6)), At::Nothing);
        assert_eq!(s.locate_clone(SnapId(9)), At::Head);
    }
}
