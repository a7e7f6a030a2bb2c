//! Snapshots of directories: what an inode keeps of them, and how clients learn of them.

use crate::ids::Ino;
use bytes::{Bytes, BytesMut};
use denc::{Decode, DecodeError, Encode, Features, Reader, Result};
use denc_derive::Denc;
use std::collections::{BTreeMap, BTreeSet};
use types::{SnapId, Utime};

/// A snapshot (Ceph 16.2: `SnapInfo`, `mds/snap.h`, version 3, compat 2).
#[derive(Clone, PartialEq, Eq, Default, Debug, Denc)]
#[denc(version = 3, compat = 2, oldest = 2)]
pub struct SnapInfo {
    /// Its number.
    pub snapid: SnapId,
    /// The directory.
    pub ino: Ino,
    /// When it was made.
    pub stamp: Utime,
    /// Its name.
    pub name: Bytes,
    /// Texts by name.
    #[denc(since = 3)]
    pub metadata: BTreeMap<String, String>,
}

impl SnapInfo {
    /// The name that directories below show (Ceph: `SnapInfo::get_long_name`).
    pub fn long_name(&self) -> Bytes {
        [b"_", &self.name[..], b"_", self.ino.0.to_string().as_bytes()].concat().into()
    }
}

/// A realm that a directory was in (Ceph: `snaplink_t`, `mds/snap.h`, version 2).
#[derive(Clone, PartialEq, Eq, Default, Debug, Denc)]
#[denc(version = 2, compat = 2, oldest = 2)]
pub struct SnapLink {
    /// The realm.
    pub ino: Ino,
    /// The first snapshot of that time.
    pub first: SnapId,
}

/// What a directory keeps of its snapshots (Ceph 16.2: `sr_t`, `mds/snap.h`, version 6, compat 4).
#[derive(Clone, PartialEq, Eq, Debug, Denc)]
#[denc(version = 6, compat = 4, oldest = 4)]
pub struct SnapRealmRecord {
    /// Rises with each change.
    pub seq: SnapId,
    /// When the realm was made.
    pub created: SnapId,
    /// The latest snapshot that was made here.
    pub last_created: SnapId,
    /// The number at the latest deletion here.
    pub last_destroyed: SnapId,
    /// Since when the realm has its parent.
    pub current_parent_since: SnapId,
    /// Snapshots of the directory.
    pub snaps: BTreeMap<SnapId, SnapInfo>,
    /// Realms that it was in, by the last snapshot of that time; older releases only.
    pub past_parents: BTreeMap<SnapId, SnapLink>,
    /// Snapshots of realms that it was in.
    #[denc(since = 5)]
    pub past_parent_snaps: BTreeSet<SnapId>,
    /// See [`SnapRealmRecord::SUBVOLUME`].
    #[denc(since = 6)]
    pub flags: u32,
}

impl SnapRealmRecord {
    /// Its parent is the global realm.
    pub const PARENT_GLOBAL: u32 = 1;
    /// Renames and links do not leave the directory.
    pub const SUBVOLUME: u32 = 2;
}

impl Default for SnapRealmRecord {
    fn default() -> Self {
        SnapRealmRecord {
            seq: SnapId(0),
            created: SnapId(0),
            last_created: SnapId(0),
            last_destroyed: SnapId(0),
            current_parent_since: SnapId(1),
            snaps: BTreeMap::new(),
            past_parents: BTreeMap::new(),
            past_parent_snaps: BTreeSet::new(),
            flags: 0,
        }
    }
}

/// A realm as clients see it: one element of a trace, which goes from a realm up to the root's
/// (Ceph: `SnapRealmInfo`, `common/snap_types.h`, and `ceph_mds_snap_realm`; plain).
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct SnapRealmInfo {
    /// The directory.
    pub ino: Ino,
    /// When the realm was made.
    pub created: SnapId,
    /// The realm above; 0 for the root's.
    pub parent: Ino,
    /// Since when.
    pub parent_since: SnapId,
    /// Rises with each change.
    pub seq: SnapId,
    /// Its snapshots, descending.
    pub snaps: Vec<SnapId>,
    /// Snapshots of earlier parents, descending.
    pub prior_parent_snaps: Vec<SnapId>,
}

impl Encode for SnapRealmInfo {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        self.ino.encode(out, f);
        self.created.encode(out, f);
        self.parent.encode(out, f);
        self.parent_since.encode(out, f);
        self.seq.encode(out, f);
        (self.snaps.len() as u32).encode(out, f);
        (self.prior_parent_snaps.len() as u32).encode(out, f);
        for snap in self.snaps.iter().chain(&self.prior_parent_snaps) {
            snap.encode(out, f);
        }
    }
}

impl Decode for SnapRealmInfo {
    fn decode(r: &mut Reader) -> Result<Self> {
        let (ino, created, parent) = (r.get()?, r.get()?, r.get()?);
        let (parent_since, seq) = (r.get()?, r.get()?);
        let (own, prior): (u32, u32) = (r.get()?, r.get()?);
        let needed = (own as usize).saturating_add(prior as usize).saturating_mul(8);
        if needed > r.left() {
            return Err(DecodeError::Short {
                what: "snapshots of a realm",
                needed,
                left: r.left(),
            });
        }
        let mut list = |n| (0..n).map(|_| r.get()).collect::<Result<Vec<SnapId>>>();
        let (snaps, prior_parent_snaps) = (list(own)?, list(prior)?);
        Ok(SnapRealmInfo { ino, created, parent, parent_since, seq, snaps, prior_parent_snaps })
    }
}

/// A trace as messages carry it: the realms one after the other, without a count.
pub fn encode_trace(realms: &[SnapRealmInfo]) -> Bytes {
    let mut out = BytesMut::new();
    realms.iter().for_each(|r| r.encode(&mut out, Features::ALL));
    out.freeze()
}

/// Reads a trace up to its end.
pub fn decode_trace(trace: &Bytes) -> Result<Vec<SnapRealmInfo>> {
    let mut r = Reader::new(trace.clone());
    let mut realms = Vec::new();
    while r.left() > 0 {
        realms.push(r.get()?);
    }
    Ok(realms)
}
