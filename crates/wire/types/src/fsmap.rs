//! File system maps: as much as a cluster without file systems needs.
//!
//! File systems and daemons in a map of another cluster are kept as they came, so that reading and
//! writing such a map does not change it.

use crate::compat_set::{CompatSet, FeatureSet};
use crate::dump::{Dump, shown};
use crate::{Epoch, Utime};
use bytes::{BufMut, Bytes, BytesMut};
use denc::{Decode, DecodeError, Encode, Features, Reader, Result, envelope};
use denc_derive::Denc;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// A value in an envelope that we do not look into: all of its bytes, the envelope's included.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Opaque(Bytes);

impl Encode for Opaque {
    fn encode(&self, out: &mut BytesMut, _: Features) {
        out.put_slice(&self.0);
    }
}
impl Decode for Opaque {
    fn decode(r: &mut Reader) -> Result<Self> {
        let mut ahead = r.clone();
        ahead.skip("envelope", 2)?;
        let body: Bytes = ahead.get()?;
        Ok(Opaque(r.bytes("envelope", 6 + body.len())?))
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
    /// File systems (`Filesystem`).
    pub filesystems: Vec<Opaque>,
    /// Which file system a daemon serves, by global id.
    pub mds_roles: BTreeMap<u64, i32>,
    /// Daemons that wait (`MDSMap::mds_info_t`), by global id.
    pub standby_daemons: BTreeMap<u64, Opaque>,
    /// When they began to.
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
            filesystems: Vec::new(),
            mds_roles: BTreeMap::new(),
            standby_daemons: BTreeMap::new(),
            standby_epochs: BTreeMap::new(),
            ever_enabled_multiple: true,
        }
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
            self.filesystems.encode(out, f);
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
            filesystems: r.get()?,
            mds_roles: r.get()?,
            standby_daemons: r.get()?,
            standby_epochs: r.get()?,
            ever_enabled_multiple: if struct_v >= 7 { r.get()? } else { false },
        })
    }
}
impl Dump for FsMap {
    fn dump(&self) -> Value {
        json!({
            "epoch": self.epoch,
            "default_fscid": self.legacy_client_fscid,
            "compat": self.default_compat.dump(),
            "feature_flags": {
                "enable_multiple": self.enable_multiple,
                "ever_enabled_multiple": self.ever_enabled_multiple,
            },
            "standbys": self.standby_epochs.iter().map(|(gid, epoch)| json!({"gid": gid, "epoch": epoch})).collect::<Vec<_>>(),
            "filesystems": self.filesystems.iter().map(dump_filesystem).collect::<Vec<_>>(),
        })
    }
}

/// What can be shown of a file system (Ceph: `Filesystem`, version 2: its number, its map,
/// mirroring).
fn dump_filesystem(fs: &Opaque) -> Value {
    let mut r = Reader::new(fs.0.clone());
    let mut parts = || -> Result<(i32, MdsMap)> {
        let (_, mut body) = r.envelope("Filesystem", u8::MAX)?;
        let id = body.get()?;
        Ok((id, MdsMap::decode(&mut Reader::new(body.get()?))?))
    };
    match parts() {
        Ok((id, map)) => json!({"mdsmap": map.dump(), "id": id}),
        Err(e) => json!({"error": e.to_string()}),
    }
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

/// One file system (Ceph: `MDSMap`, `mds/MDSMap.h`, version 5, compat 4, extended version 16).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MdsMap {
    /// Version of the map.
    pub epoch: Epoch,
    /// Flags.
    pub flags: u32,
    /// Version at the last failure.
    pub last_failure: Epoch,
    /// Rank that has the root.
    pub root: i32,
    /// Seconds until a silent session is stale.
    pub session_timeout: u32,
    /// Seconds until a silent session is closed.
    pub session_autoclose: u32,
    /// Largest file.
    pub max_file_size: u64,
    /// How many ranks there should be.
    pub max_mds: i32,
    /// Daemons (`mds_info_t`) by global id.
    pub mds_info: BTreeMap<u64, Opaque>,
    /// Pools of data.
    pub data_pools: Vec<i64>,
    /// Pool of content-addressed data, or -1.
    pub cas_pool: i64,
    /// Compatibility set.
    pub compat: CompatSet,
    /// Pool of metadata, or -1.
    pub metadata_pool: i64,
    /// When it was created.
    pub created: Utime,
    /// When it changed.
    pub modified: Utime,
    /// Rank that has the tables.
    pub tableserver: i32,
    /// Ranks that exist.
    pub ranks_in: BTreeSet<i32>,
    /// Who has which rank.
    pub up: BTreeMap<i32, u64>,
    /// Ranks that nobody has.
    pub failed: BTreeSet<i32>,
    /// Ranks that stopped.
    pub stopped: BTreeSet<i32>,
    /// OSD map that has the last failed daemon on its blocklist.
    pub last_failure_osd_epoch: Epoch,
    /// Features that were ever allowed.
    pub ever_allowed_features: u8,
    /// Features that were allowed explicitly.
    pub explicitly_allowed_features: u8,
    /// Small files live in their inode.
    pub inline_data_enabled: bool,
    /// The file system exists.
    pub enabled: bool,
    /// Its name.
    pub fs_name: String,
    /// Ranks that are damaged.
    pub damaged: BTreeSet<i32>,
    /// Name of the balancer.
    pub balancer: String,
    /// How many should wait.
    pub standby_count_wanted: i32,
    /// `max_mds` before it was taken down.
    pub old_max_mds: i32,
    /// Features that clients must have, as a bit set.
    pub required_client_features: Bytes,
}

impl Default for MdsMap {
    fn default() -> Self {
        MdsMap {
            epoch: Epoch(0),
            flags: 0x12,
            last_failure: Epoch(0),
            root: 0,
            session_timeout: 60,
            session_autoclose: 300,
            max_file_size: 1 << 40,
            max_mds: 1,
            mds_info: BTreeMap::new(),
            data_pools: Vec::new(),
            cas_pool: -1,
            compat: CompatSet::default(),
            metadata_pool: -1,
            created: Utime::ZERO,
            modified: Utime::ZERO,
            tableserver: 0,
            ranks_in: BTreeSet::new(),
            up: BTreeMap::new(),
            failed: BTreeSet::new(),
            stopped: BTreeSet::new(),
            last_failure_osd_epoch: Epoch(0),
            ever_allowed_features: 0,
            explicitly_allowed_features: 0,
            inline_data_enabled: false,
            enabled: false,
            fs_name: "cephfs".into(),
            damaged: BTreeSet::new(),
            balancer: String::new(),
            standby_count_wanted: -1,
            old_max_mds: 0,
            required_client_features: Bytes::new(),
        }
    }
}

impl MdsMap {
    /// What is sent when there is no file system: newer than any (Ceph: `create_null_mdsmap`).
    pub fn none() -> Self {
        MdsMap { epoch: Epoch(u32::MAX), ..Self::default() }
    }
}

impl Encode for MdsMap {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        envelope(out, 5, 4, |out| {
            self.epoch.encode(out, f);
            self.flags.encode(out, f);
            self.last_failure.encode(out, f);
            self.root.encode(out, f);
            self.session_timeout.encode(out, f);
            self.session_autoclose.encode(out, f);
            self.max_file_size.encode(out, f);
            self.max_mds.encode(out, f);
            self.mds_info.encode(out, f);
            self.data_pools.encode(out, f);
            self.cas_pool.encode(out, f);
            // The version of what kernels skip.
            16u16.encode(out, f);
            self.compat.encode(out, f);
            self.metadata_pool.encode(out, f);
            self.created.encode(out, f);
            self.modified.encode(out, f);
            self.tableserver.encode(out, f);
            self.ranks_in.encode(out, f);
            // Incarnations, which are the epoch since long.
            let inc: BTreeMap<i32, u32> =
                self.ranks_in.iter().map(|&rank| (rank, self.epoch.0)).collect();
            inc.encode(out, f);
            self.up.encode(out, f);
            self.failed.encode(out, f);
            self.stopped.encode(out, f);
            self.last_failure_osd_epoch.encode(out, f);
            self.ever_allowed_features.encode(out, f);
            self.explicitly_allowed_features.encode(out, f);
            self.inline_data_enabled.encode(out, f);
            self.enabled.encode(out, f);
            self.fs_name.encode(out, f);
            self.damaged.encode(out, f);
            self.balancer.encode(out, f);
            self.standby_count_wanted.encode(out, f);
            self.old_max_mds.encode(out, f);
            // Least release of clients: unknown.
            0u8.encode(out, f);
            self.required_client_features.encode(out, f);
        });
    }
}
impl Decode for MdsMap {
    fn decode(r: &mut Reader) -> Result<Self> {
        let (struct_v, mut r) = r.envelope("MDSMap", 5)?;
        if struct_v < 5 {
            return Err(DecodeError::TooOld { what: "MDSMap", struct_v, oldest: 5 });
        }
        let mut map = MdsMap {
            epoch: r.get()?,
            flags: r.get()?,
            last_failure: r.get()?,
            root: r.get()?,
            session_timeout: r.get()?,
            session_autoclose: r.get()?,
            max_file_size: r.get()?,
            max_mds: r.get()?,
            mds_info: r.get()?,
            data_pools: r.get()?,
            cas_pool: r.get()?,
            ..Default::default()
        };
        let ev: u16 = r.get()?;
        if ev < 13 {
            return Err(DecodeError::Invalid { what: "MDSMap extended version", found: ev.into() });
        }
        map.compat = r.get()?;
        map.metadata_pool = r.get()?;
        map.created = r.get()?;
        map.modified = r.get()?;
        map.tableserver = r.get()?;
        map.ranks_in = r.get()?;
        r.get::<BTreeMap<i32, u32>>()?;
        map.up = r.get()?;
        map.failed = r.get()?;
        map.stopped = r.get()?;
        map.last_failure_osd_epoch = r.get()?;
        map.ever_allowed_features = r.get()?;
        map.explicitly_allowed_features = r.get()?;
        map.inline_data_enabled = r.get()?;
        map.enabled = r.get()?;
        map.fs_name = r.get()?;
        map.damaged = r.get()?;
        map.balancer = r.get()?;
        map.standby_count_wanted = r.get()?;
        map.old_max_mds = r.get()?;
        if ev >= 14 {
            r.get::<u8>()?;
        }
        if ev >= 16 {
            map.required_client_features = r.get()?;
        }
        Ok(map)
    }
}
impl Dump for MdsMap {
    fn dump(&self) -> Value {
        let up: serde_json::Map<_, _> =
            self.up.iter().map(|(rank, gid)| (format!("mds_{rank}"), json!(gid))).collect();
        json!({
            "epoch": self.epoch,
            "flags": self.flags,
            "ever_allowed_features": self.ever_allowed_features,
            "explicitly_allowed_features": self.explicitly_allowed_features,
            "created": shown(self.created),
            "modified": shown(self.modified),
            "tableserver": self.tableserver,
            "root": self.root,
            "session_timeout": self.session_timeout,
            "session_autoclose": self.session_autoclose,
            "required_client_features": {},
            "max_file_size": self.max_file_size,
            "last_failure": self.last_failure,
            "last_failure_osd_epoch": self.last_failure_osd_epoch,
            "compat": self.compat.dump(),
            "max_mds": self.max_mds,
            "in": self.ranks_in,
            "up": up,
            "failed": self.failed,
            "damaged": self.damaged,
            "stopped": self.stopped,
            "info": {},
            "data_pools": self.data_pools,
            "metadata_pool": self.metadata_pool,
            "enabled": self.enabled,
            "fs_name": self.fs_name,
            "balancer": self.balancer,
            "standby_count_wanted": self.standby_count_wanted.max(0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_maps_come_back() {
        let map = FsMap { epoch: Epoch(1), ..Default::default() };
        assert_eq!(FsMap::from_bytes(&map.to_bytes(Features::ALL)).unwrap(), map);
        let none = MdsMap::none();
        assert_eq!(MdsMap::from_bytes(&none.to_bytes(Features::ALL)).unwrap(), none);
        let user = FsMapUser::default();
        assert_eq!(FsMapUser::from_bytes(&user.to_bytes(Features::ALL)).unwrap(), user);
    }

    #[test]
    fn what_is_not_understood_is_kept() {
        let strange = Opaque(Bytes::from_static(&[9, 1, 3, 0, 0, 0, 7, 8, 9]));
        let map = FsMap {
            filesystems: vec![strange.clone()],
            standby_daemons: [(5, strange)].into(),
            ..Default::default()
        };
        assert_eq!(FsMap::from_bytes(&map.to_bytes(Features::ALL)).unwrap(), map);
        assert!(Opaque::from_bytes(&Bytes::from_static(&[9, 1, 3, 0, 0, 0, 7])).is_err());
    }
}
