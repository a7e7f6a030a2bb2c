//! What an OSD keeps about an object beside its content.

use bytes::{Bytes, BytesMut};
use denc::{Decode, Encode, Features};
use types::errno::Errno;
use types::object_info::flag;
use types::{ObjectId, SnapId};

pub use types::{ObjectInfo, SnapSet};

/// Views on an object's info.
pub trait InfoExt {
    /// The object does not exist for clients: its record is kept for the sake of its clones.
    fn is_whiteout(&self) -> bool;
    /// It has, or had, omap rows or an omap header.
    fn is_omap(&self) -> bool;
    /// It was changed since it was last flushed to a base pool; so, without tiers, always.
    fn is_dirty(&self) -> bool;
    /// See [`InfoExt::is_whiteout`].
    fn set_whiteout(&mut self, on: bool);
    /// See [`InfoExt::is_omap`].
    fn set_omap(&mut self, on: bool);
    /// See [`InfoExt::is_dirty`].
    fn set_dirty(&mut self, on: bool);
}

fn set(info: &mut ObjectInfo, bits: u32, on: bool) {
    if on {
        info.flags |= bits;
    } else {
        info.flags &= !bits;
    }
}

impl InfoExt for ObjectInfo {
    fn is_whiteout(&self) -> bool {
        self.has(flag::WHITEOUT)
    }

    fn is_omap(&self) -> bool {
        self.has(flag::OMAP)
    }

    fn is_dirty(&self) -> bool {
        self.has(flag::DIRTY)
    }

    fn set_whiteout(&mut self, on: bool) {
        set(self, flag::WHITEOUT, on);
    }

    fn set_omap(&mut self, on: bool) {
        set(self, flag::OMAP, on);
    }

    fn set_dirty(&mut self, on: bool) {
        set(self, flag::DIRTY, on);
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

/// Finding the object of a snapshot.
pub trait SnapSetExt {
    /// Which object has the content at `snap`.
    fn locate(&self, snap: SnapId) -> At;
    /// Which object a clone id names (`CEPH_OSD_FLAG_MAP_SNAP_CLONE`).
    fn locate_clone(&self, clone: SnapId) -> At;
}

impl SnapSetExt for SnapSet {
    fn locate(&self, snap: SnapId) -> At {
        if snap > self.seq {
            return At::Head;
        }
        match self.clones.iter().find(|c| **c >= snap) {
            Some(clone) if self.clone_snaps.get(clone).is_some_and(|s| s.contains(&snap)) => {
                At::Clone(*clone)
            }
            _ => At::Nothing,
        }
    }

    fn locate_clone(&self, clone: SnapId) -> At {
        if clone > self.seq {
            At::Head
        } else if self.clones.contains(&clone) {
            At::Clone(clone)
        } else {
            At::Nothing
        }
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
    /// What Ceph refuses in such a pool; `None` if that is nothing.
    pub stock: Option<StockRefusals>,
}

/// What Ceph (until 20.1) refuses in an erasure-coded pool (release 16.2, src/osd/PrimaryLogPG.cc,
/// `do_osd_ops`): always omap and two rare reads, and some
/// changes of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StockRefusals {
    /// Without `allow_ec_overwrites`: data is appended only, from multiples of so many bytes on.
    pub append_unit: Option<u64>,
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
        let mut s =
            SnapSet { seq: SnapId(7), clones: vec![SnapId(4), SnapId(7)], ..SnapSet::default() };
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
