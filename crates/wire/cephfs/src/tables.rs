//! Tables of a file system: free inode numbers, and snapshots. Each is one object, written whole.

use crate::ids::Ino;
use crate::snap::SnapInfo;
use bytes::BytesMut;
use denc::{Decode, Encode, Features, Reader, Result, envelope};
use denc_derive::Denc;
use std::collections::{BTreeMap, BTreeSet};
use types::{IntervalSet, SnapId};

/// Inode numbers that a rank has not given out (Ceph: `InoTable`, `mds/InoTable.h`, version 2, and
/// the version of the table in front of it, `mds/MDSTable.cc`).
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct InoTable {
    /// Counts changes.
    pub version: u64,
    /// The numbers.
    pub free: IntervalSet,
}

impl InoTable {
    /// The table of a new rank.
    pub fn new(rank: u32) -> InoTable {
        let (first, count) = Ino::range_of(rank);
        let mut free = IntervalSet::new();
        free.insert(first, count);
        InoTable { version: 0, free }
    }
}

impl Encode for InoTable {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        self.version.encode(out, f);
        envelope(out, 2, 2, |out| self.free.encode(out, f));
    }
}

impl Decode for InoTable {
    fn decode(r: &mut Reader) -> Result<Self> {
        let version = r.get()?;
        let (_, mut body) = r.envelope("InoTable", 2)?;
        Ok(InoTable { version, free: body.get()? })
    }
}

/// A change that a rank has asked for and not settled (Ceph: `mds_table_pending_t`,
/// `mds/mdstypes.h`, version 2).
#[derive(Clone, PartialEq, Eq, Default, Debug, Denc)]
#[denc(version = 2, compat = 2, oldest = 2)]
pub struct TablePending {
    /// The rank's number for it.
    pub reqid: u64,
    /// The rank.
    pub rank: i32,
    /// The table's number for it.
    pub tid: u64,
}

/// The snapshots of a file system (Ceph 16.2: `SnapServer`, `mds/SnapServer.h`, version 5,
/// compat 3; in front of it the version of the table, behind it what is pending).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapTable {
    /// Counts changes.
    pub version: u64,
    /// The state.
    pub state: SnapServer,
    /// Changes that are not settled, by number.
    pub pending: BTreeMap<u64, TablePending>,
}

impl SnapTable {
    /// The table of a new file system (Ceph: `SnapServer::reset_state`): number 1 is never a
    /// snapshot, and no realm has the old format.
    pub fn new() -> SnapTable {
        SnapTable {
            version: 0,
            state: SnapServer {
                last_snap: SnapId(1),
                last_created: SnapId(1),
                last_destroyed: SnapId(1),
                snaprealm_v2_since: SnapId(2),
                ..SnapServer::default()
            },
            pending: BTreeMap::new(),
        }
    }
}

impl Default for SnapTable {
    fn default() -> Self {
        SnapTable::new()
    }
}

impl Encode for SnapTable {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        self.version.encode(out, f);
        self.state.encode(out, f);
        self.pending.encode(out, f);
    }
}

impl Decode for SnapTable {
    fn decode(r: &mut Reader) -> Result<Self> {
        Ok(SnapTable { version: r.get()?, state: r.get()?, pending: r.get()? })
    }
}

/// The state of the table of snapshots; see [`SnapTable`].
#[derive(Clone, PartialEq, Eq, Default, Debug, Denc)]
#[denc(version = 5, compat = 3, oldest = 5)]
pub struct SnapServer {
    /// The highest number that was given out.
    pub last_snap: SnapId,
    /// Snapshots.
    pub snaps: BTreeMap<SnapId, SnapInfo>,
    /// Deleted snapshots that the monitors have not removed from a pool yet.
    pub need_to_purge: BTreeMap<i32, BTreeSet<SnapId>>,
    /// Snapshots that are being made, by number of the change.
    pub pending_update: BTreeMap<u64, SnapInfo>,
    /// Snapshots that are being deleted, and the number after it.
    pub pending_destroy: BTreeMap<u64, (SnapId, SnapId)>,
    /// Changes that only move numbers.
    pub pending_noop: BTreeSet<u64>,
    /// The latest one that was made.
    pub last_created: SnapId,
    /// The number at the latest deletion.
    pub last_destroyed: SnapId,
    /// The snapshot from which on realms have the new format.
    pub snaprealm_v2_since: SnapId,
}
