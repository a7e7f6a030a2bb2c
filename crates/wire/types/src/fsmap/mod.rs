//! File system maps: which file systems there are, and which metadata server (MDS) does what.

use crate::Epoch;
use crate::compat_set::{CompatSet, FeatureSet};
use crate::dump::Dump;
use bytes::BytesMut;
use denc::{Decode, DecodeError, Encode, Features, Reader, Result, envelope};
use denc_derive::Denc;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

mod features;
mod info;
mod mdsmap;
mod owners;

pub use features::{CLIENT_FEATURE_MAX, ClientFeatures, client_feature, client_feature_name};
pub use info::{MdsInfo, MdsState, Rank};
pub use mdsmap::{MdsMap, flag};
pub use owners::{OWN_LOG_RANKS, OWNERS_FEATURE, Owners};

/// The incompatible feature of a file system that may have changes in a log which only Siphon's
/// server reads.
pub const LOG_FEATURE: (u64, &str) = (62, "siphon log");

/// Whether a daemon or a file system has [`LOG_FEATURE`].
pub fn has_own_log(compat: &CompatSet) -> bool {
    compat.incompat.names.contains_key(&LOG_FEATURE.0)
}

/// What the compatible feature of the same number begins with; the ranks follow. Stock servers do
/// not look at compatible features.
const LOG_IS_EMPTY: &str = "siphon log is empty: ";

/// Ranks of a file system of which the log has nothing that a stock server would miss, as far as
/// the monitors know. A server writes nothing to its log before its rank is taken out.
pub fn empty_logs(compat: &CompatSet) -> BTreeSet<Rank> {
    let text = compat.compat.names.get(&LOG_FEATURE.0).and_then(|t| t.strip_prefix(LOG_IS_EMPTY));
    text.unwrap_or_default().split(',').filter_map(|rank| rank.parse().ok()).collect()
}

/// Says that a rank's log is empty, or that it may not be.
pub fn set_empty_log(compat: &mut CompatSet, rank: Rank, empty: bool) {
    let mut known = empty_logs(compat);
    let changed = if empty { known.insert(rank) } else { known.remove(&rank) };
    if !changed {
        return;
    }
    let names = &mut compat.compat.names;
    names.remove(&LOG_FEATURE.0);
    if !known.is_empty() {
        let ranks: Vec<String> = known.iter().map(Rank::to_string).collect();
        names.insert(LOG_FEATURE.0, format!("{LOG_IS_EMPTY}{}", ranks.join(",")));
    }
}

/// The compatibility set of new file systems (Ceph: `MDSMap::get_compat_set_default`).
pub fn default_compat() -> CompatSet {
    let incompat = FeatureSet::new(&[
        (1, "base v0.20"),
        (2, "client writeable ranges"),
        (3, "default file layouts on dirs"),
        (4, "dir inode in separate object"),
        (5, "mds uses versioned encoding"),
        (6, "dirfrag is stored in omap"),
        (8, "no anchor table"),
        (9, "file layout v2"),
        (10, "snaprealm v2"),
    ]);
    CompatSet { incompat, ..Default::default() }
}

/// All file systems (Ceph: `FSMap`, `mds/FSMap.h`, version 7, compat 6).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FsMap {
    /// Version of the map.
    pub epoch: Epoch,
    /// Number of the next file system.
    pub next_filesystem_id: u64,
    /// The file system of clients that name none, or -1.
    pub legacy_client_fscid: i32,
    /// Compatibility set of new file systems.
    pub default_compat: CompatSet,
    /// Several file systems are allowed.
    pub enable_multiple: bool,
    /// File systems by number.
    pub filesystems: BTreeMap<i32, Filesystem>,
    /// Which file system a daemon serves, by global id; -1 if it waits.
    pub mds_roles: BTreeMap<u64, i32>,
    /// Daemons that wait, by global id.
    pub standby_daemons: BTreeMap<u64, MdsInfo>,
    /// The epoch in which they began to.
    pub standby_epochs: BTreeMap<u64, Epoch>,
    /// Several file systems were allowed once.
    pub ever_enabled_multiple: bool,
}

impl Default for FsMap {
    /// The map of a new cluster.
    fn default() -> Self {
        FsMap {
            epoch: Epoch(0),
            next_filesystem_id: 1,
            legacy_client_fscid: -1,
            default_compat: default_compat(),
            enable_multiple: true,
            filesystems: BTreeMap::new(),
            mds_roles: BTreeMap::new(),
            standby_daemons: BTreeMap::new(),
            standby_epochs: BTreeMap::new(),
            ever_enabled_multiple: true,
        }
    }
}

impl FsMap {
    /// The file system of a name.
    pub fn by_name(&self, name: &str) -> Option<&Filesystem> {
        self.filesystems.values().find(|fs| fs.map.fs_name == name)
    }

    /// A daemon by its global id, waiting or not.
    pub fn daemon(&self, gid: u64) -> Option<&MdsInfo> {
        match self.mds_roles.get(&gid)? {
            -1 => self.standby_daemons.get(&gid),
            fs => self.filesystems.get(fs)?.map.mds_info.get(&gid),
        }
    }

    /// All daemons.
    pub fn daemons(&self) -> impl Iterator<Item = &MdsInfo> {
        let of_fs = self.filesystems.values().flat_map(|fs| fs.map.mds_info.values());
        self.standby_daemons.values().chain(of_fs)
    }

    /// What clients that look for names get.
    pub fn for_clients(&self) -> FsMapUser {
        let info = |fs: &Filesystem| FsUserInfo { cid: fs.id, name: fs.map.fs_name.clone() };
        FsMapUser {
            epoch: self.epoch,
            legacy_client_fscid: self.legacy_client_fscid,
            filesystems: self.filesystems.values().map(info).collect(),
        }
    }

    /// The text of `fs dump`.
    pub fn text(&self) -> String {
        let mut out = format!(
            "e{}\nenable_multiple, ever_enabled_multiple: {},{}\ndefault compat: {}\nlegacy client fscid: {}\n \n",
            self.epoch,
            u8::from(self.enable_multiple),
            u8::from(self.ever_enabled_multiple),
            self.default_compat,
            self.legacy_client_fscid
        );
        if self.filesystems.is_empty() {
            out.push_str("No filesystems configured\n");
        }
        for fs in self.filesystems.values() {
            out.push_str(&fs.text());
            out.push_str(" \n \n");
        }
        if !self.standby_daemons.is_empty() {
            out.push_str("Standby daemons:\n \n");
        }
        for info in self.standby_daemons.values() {
            out.push_str(&format!("{info}\n"));
        }
        out
    }
}

impl FsMap {
    /// The map with these file systems only, and without the ranks of others: what a client sees
    /// with capabilities that name file systems (Ceph 16.2: `FSMap::filter`).
    pub fn only(&self, names: &[&str]) -> FsMap {
        let mut map = self.clone();
        map.filesystems.retain(|_, fs| names.contains(&fs.map.fs_name.as_str()));
        let known: Vec<_> = map.filesystems.keys().copied().collect();
        map.mds_roles.retain(|_, id| known.contains(id));
        map
    }
}

impl Encode for FsMap {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        envelope(out, 7, 6, |out| {
            self.epoch.encode(out, f);
            self.next_filesystem_id.encode(out, f);
            self.legacy_client_fscid.encode(out, f);
            self.default_compat.encode(out, f);
            self.enable_multiple.encode(out, f);
            // A list: each has its number inside.
            let list: Vec<&Filesystem> = self.filesystems.values().collect();
            (list.len() as u32).encode(out, f);
            for fs in list {
                fs.encode(out, f);
            }
            self.mds_roles.encode(out, f);
            self.standby_daemons.encode(out, f);
            self.standby_epochs.encode(out, f);
            self.ever_enabled_multiple.encode(out, f);
        });
    }
}
impl Decode for FsMap {
    fn decode(r: &mut Reader) -> Result<Self> {
        let (struct_v, mut r) = r.envelope("FSMap", 7)?;
        if struct_v < 6 {
            return Err(DecodeError::TooOld { what: "FSMap", struct_v, oldest: 6 });
        }
        Ok(FsMap {
            epoch: r.get()?,
            next_filesystem_id: r.get()?,
            legacy_client_fscid: r.get()?,
            default_compat: r.get()?,
            enable_multiple: r.get()?,
            filesystems: r.get::<Vec<Filesystem>>()?.into_iter().map(|fs| (fs.id, fs)).collect(),
            mds_roles: r.get()?,
            standby_daemons: r.get()?,
            standby_epochs: r.get()?,
            ever_enabled_multiple: if struct_v >= 7 { r.get()? } else { false },
        })
    }
}
impl Dump for FsMap {
    fn dump(&self) -> Value {
        let standby = |(gid, info): (&u64, &MdsInfo)| {
            let mut v = info.dump();
            v["epoch"] = json!(self.standby_epochs.get(gid));
            v
        };
        json!({
            "epoch": self.epoch,
            "default_fscid": self.legacy_client_fscid,
            "compat": self.default_compat.dump(),
            "feature_flags": {
                "enable_multiple": self.enable_multiple,
                "ever_enabled_multiple": self.ever_enabled_multiple,
            },
            "standbys": self.standby_daemons.iter().map(standby).collect::<Vec<_>>(),
            "filesystems": self.filesystems.values().map(Dump::dump).collect::<Vec<_>>(),
        })
    }
}

/// A cluster that a file system is mirrored to (Ceph 16.2: `Peer` and `ClusterInfo`,
/// `mds/FSMap.h`, both version 1).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Default, Debug, Denc)]
#[denc(version = 1, compat = 1)]
pub struct MirrorPeer {
    /// Its number.
    pub uuid: String,
    /// How it is reached.
    pub remote: MirrorRemote,
}

/// How a [`MirrorPeer`] is reached.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Default, Debug, Denc)]
#[denc(version = 1, compat = 1)]
pub struct MirrorRemote {
    /// The client's name there.
    pub client_name: String,
    /// The cluster.
    pub cluster_name: String,
    /// The file system there.
    pub fs_name: String,
}

/// Whether and to where a file system is mirrored (Ceph 16.2: `MirrorInfo`, `mds/FSMap.h`, version
/// 1).
#[derive(Clone, PartialEq, Eq, Default, Debug, Denc)]
#[denc(version = 1, compat = 1)]
pub struct MirrorInfo {
    /// Whether it is mirrored.
    pub mirrored: bool,
    /// The peers.
    pub peers: BTreeSet<MirrorPeer>,
}

impl Dump for MirrorInfo {
    fn dump(&self) -> Value {
        let peer = |p: &MirrorPeer| {
            let r = &p.remote;
            let remote = json!({
                "client_name": r.client_name,
                "cluster_name": r.cluster_name,
                "fs_name": r.fs_name,
            });
            (p.uuid.clone(), json!({ "remote": remote }))
        };
        json!({"peers": self.peers.iter().map(peer).collect::<serde_json::Map<_, _>>()})
    }
}

/// A file system (Ceph 16.2: `Filesystem`, `mds/FSMap.h`, version 2: its number, its map as bytes,
/// mirroring).
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Filesystem {
    /// Its number.
    pub id: i32,
    /// Its map.
    pub map: MdsMap,
    /// Mirroring.
    pub mirror: MirrorInfo,
}

impl Encode for Filesystem {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        envelope(out, 2, 1, |out| {
            self.id.encode(out, f);
            self.map.to_bytes(f).encode(out, f);
            self.mirror.encode(out, f);
        });
    }
}
impl Decode for Filesystem {
    fn decode(r: &mut Reader) -> Result<Self> {
        let (struct_v, mut r) = r.envelope("Filesystem", 2)?;
        let id = r.get()?;
        let map = MdsMap::decode(&mut Reader::new(r.get()?))?;
        let mirror = if struct_v >= 2 { r.get()? } else { MirrorInfo::default() };
        Ok(Filesystem { id, map, mirror })
    }
}
impl Dump for Filesystem {
    fn dump(&self) -> Value {
        let mut v = json!({"mdsmap": self.map.dump(), "id": self.id});
        if self.mirror.mirrored {
            v["mirror_info"] = self.mirror.dump();
        }
        v
    }
}

impl Filesystem {
    /// The text of `fs get`.
    pub fn text(&self) -> String {
        let mut out =
            format!("Filesystem '{}' ({})\n{}", self.map.fs_name, self.id, self.map.text());
        if self.mirror.mirrored {
            let peers: Vec<String> = self.mirror.peers.iter().map(|p| p.uuid.clone()).collect();
            out.push_str(&format!("[peers={{{}}}]\n", peers.join(",")));
        }
        out
    }
}

/// Numbers as Ceph writes a set: `0,1`.
fn list(numbers: &BTreeSet<i32>) -> String {
    numbers.iter().map(i32::to_string).collect::<Vec<_>>().join(",")
}

/// A file system as clients choose it (Ceph: `FSMapUser::fs_info_t`, version 1).
#[derive(Clone, PartialEq, Eq, Default, Debug, Denc)]
#[denc(version = 1, compat = 1)]
pub struct FsUserInfo {
    /// Its number.
    pub cid: i32,
    /// Its name.
    pub name: String,
}

/// The part of the map that clients need (Ceph: `FSMapUser`, `mds/FSMapUser.h`, version 1).
#[derive(Clone, PartialEq, Eq, Debug, Denc)]
#[denc(version = 1, compat = 1)]
pub struct FsMapUser {
    /// Version of the map.
    pub epoch: Epoch,
    /// The file system of clients that name none, or -1.
    pub legacy_client_fscid: i32,
    /// File systems.
    pub filesystems: Vec<FsUserInfo>,
}

impl Default for FsMapUser {
    fn default() -> Self {
        FsMapUser { epoch: Epoch(0), legacy_client_fscid: -1, filesystems: Vec::new() }
    }
}

impl Dump for FsMapUser {
    fn dump(&self) -> Value {
        let fs = |fs: &FsUserInfo| json!({"id": fs.cid, "name": fs.name});
        json!({
            "epoch": self.epoch,
            "default_fscid": self.legacy_client_fscid,
            "filesystems": self.filesystems.iter().map(fs).collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EntityAddr, EntityAddrVec};

    #[test]
    fn maps_come_back() {
        let map = FsMap { epoch: Epoch(1), ..Default::default() };
        assert_eq!(FsMap::from_bytes(&map.to_bytes(Features::ALL)).unwrap(), map);
        let none = MdsMap::none();
        assert_eq!(MdsMap::from_bytes(&none.to_bytes(Features::ALL)).unwrap(), none);
        let user = FsMapUser::default();
        assert_eq!(FsMapUser::from_bytes(&user.to_bytes(Features::ALL)).unwrap(), user);
    }

    #[test]
    fn a_map_can_have_some_file_systems_only() {
        let named = |id: i32, name: &str| {
            let mut fs = Filesystem { id, ..Default::default() };
            fs.map.fs_name = name.into();
            (id, fs)
        };
        let map = FsMap {
            filesystems: [named(1, "a"), named(2, "b")].into(),
            mds_roles: [(10, 1), (11, 2), (12, -1)].into(),
            ..Default::default()
        };
        let seen = map.only(&["b", "c"]);
        assert_eq!(seen.filesystems.keys().collect::<Vec<_>>(), [&2]);
        assert_eq!(seen.mds_roles.keys().collect::<Vec<_>>(), [&11]);
        assert_eq!(map.only(&["a", "b"]).filesystems, map.filesystems);
    }

    #[test]
    fn daemons_are_found_wherever_they_are() {
        let addrs = EntityAddrVec::one(EntityAddr::msgr2(([127, 0, 0, 1], 6800).into(), 7));
        let waiting = MdsInfo::standby(7, "b", addrs.clone(), default_compat());
        let mut active = MdsInfo::standby(5, "a", addrs, default_compat());
        (active.rank, active.state) = (0, MdsState::ACTIVE);
        let mut fs = Filesystem { id: 3, ..Default::default() };
        fs.map.mds_info.insert(5, active);
        fs.map.up.insert(0, 5);
        fs.map.ranks_in.insert(0);
        fs.mirror.mirrored = true;
        fs.mirror.peers.insert(MirrorPeer { uuid: "u".into(), ..Default::default() });
        let map = FsMap {
            filesystems: [(3, fs)].into(),
            mds_roles: [(5, 3), (7, -1)].into(),
            standby_daemons: [(7, waiting)].into(),
            standby_epochs: [(7, Epoch(2))].into(),
            ..Default::default()
        };
        assert_eq!(FsMap::from_bytes(&map.to_bytes(Features::ALL)).unwrap(), map);
        let name = |gid| map.daemon(gid).map(|i| i.name.as_str());
        assert_eq!((name(5), name(7), name(9)), (Some("a"), Some("b"), None));
        assert_eq!(map.daemons().count(), 2);
        assert_eq!(map.dump()["filesystems"][0]["mdsmap"]["info"]["gid_5"]["state"], "up:active");
        assert!(map.text().contains("Standby daemons:"));
    }
}
