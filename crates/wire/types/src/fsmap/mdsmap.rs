//! The map of one file system.

use super::features::ClientFeatures;
use super::info::{MdsInfo, MdsState, Rank};
use super::list;
use super::owners::{OWNERS_FEATURE, Owners};
use crate::compat_set::CompatSet;
use crate::dump::{Dump, shown};
use crate::{Epoch, Utime};
use bytes::BytesMut;
use denc::{Decode, DecodeError, Encode, Features, Reader, Result, envelope};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write};

/// Flags of a file system (Ceph: `CEPH_MDSMAP_*`, `include/ceph_fs.h`).
pub mod flag {
    /// No daemon gets a rank.
    pub const NOT_JOINABLE: u32 = 1;
    /// Snapshots may be taken.
    pub const ALLOW_SNAPS: u32 = 1 << 1;
    /// Snapshots may be taken with several ranks.
    pub const ALLOW_MULTIMDS_SNAPS: u32 = 1 << 4;
    /// Daemons that wait may follow a rank's journal.
    pub const ALLOW_STANDBY_REPLAY: u32 = 1 << 5;
    /// The flags of a new file system.
    pub const DEFAULTS: u32 = ALLOW_SNAPS | ALLOW_MULTIMDS_SNAPS;
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
    pub mds_info: BTreeMap<u64, MdsInfo>,
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
    /// The daemon (global id) of each rank that is held.
    pub up: BTreeMap<i32, u64>,
    /// Ranks without a daemon.
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
    /// Features that clients must have.
    pub required_client_features: ClientFeatures,
}

impl Default for MdsMap {
    fn default() -> Self {
        MdsMap {
            epoch: Epoch(0),
            flags: flag::DEFAULTS,
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
            required_client_features: ClientFeatures::default(),
        }
    }
}

impl MdsMap {
    /// What is sent when there is no file system: newer than any (Ceph: `create_null_mdsmap`).
    pub fn none() -> Self {
        MdsMap { epoch: Epoch(u32::MAX), ..Self::default() }
    }
}

impl MdsMap {
    /// Whether a flag is set.
    pub fn has(&self, bits: u32) -> bool {
        self.flags & bits != 0
    }

    /// Sets or clears a flag.
    pub fn set(&mut self, bits: u32, on: bool) {
        if on {
            self.flags |= bits;
        } else {
            self.flags &= !bits;
        }
    }

    /// The daemon that holds a rank.
    pub fn holder(&self, rank: Rank) -> Option<&MdsInfo> {
        self.up.get(&rank).and_then(|gid| self.mds_info.get(gid))
    }

    /// The daemon that follows a rank's journal.
    pub fn follower(&self, rank: Rank) -> Option<&MdsInfo> {
        self.mds_info.values().find(|i| i.rank == rank && i.state == MdsState::STANDBY_REPLAY)
    }

    /// Whether a rank is failed, damaged, or on its way to being served.
    pub fn is_degraded(&self) -> bool {
        !self.failed.is_empty()
            || !self.damaged.is_empty()
            || self.mds_info.values().any(|i| i.state.is_degraded())
    }

    /// Whether ranks may be added or taken away: none is coming or going.
    pub fn is_resizeable(&self) -> bool {
        let moving = [MdsState::CREATING, MdsState::STARTING, MdsState::STOPPING];
        !self.is_degraded() && !self.mds_info.values().any(|i| moving.contains(&i.state))
    }

    /// How many ranks there are while the file system is not down.
    pub fn ranks_wanted(&self) -> Rank {
        if self.max_mds > 0 { self.max_mds } else { self.old_max_mds.max(1) }
    }

    /// Ranks that have stopped because the file system is or was down: they come back as they are.
    /// Others were given up.
    pub fn asleep(&self) -> BTreeSet<Rank> {
        let owners = Owners::of(self);
        self.stopped.iter().copied().filter(|r| owners.owner(*r).is_some()).collect()
    }

    /// Whether ranks with a log of their own rest: the file system is down, or was, and one of them
    /// is not back.
    pub fn rests(&self) -> bool {
        let owners = Owners::of(self);
        let ends = |i: &MdsInfo| i.state == MdsState::STOPPING && !owners.is_leaving(i.rank);
        self.max_mds <= 0 || !self.asleep().is_empty() || self.mds_info.values().any(ends)
    }

    /// Whether a rank is served and no daemon follows its journal.
    pub fn is_followable(&self, rank: Rank) -> bool {
        self.holder(rank).is_some_and(|i| !i.state.is_degraded()) && self.follower(rank).is_none()
    }

    /// How many more daemons should wait, if `standbys` do.
    pub fn standbys_missing(&self, standbys: usize) -> usize {
        let following =
            self.mds_info.values().filter(|i| i.state == MdsState::STANDBY_REPLAY).count();
        usize::try_from(self.standby_count_wanted).unwrap_or(0).saturating_sub(standbys + following)
    }

    /// The text of `fs get` and `fs dump`.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let set = |s: &BTreeSet<i32>| list(s);
        let up: Vec<String> = self.up.iter().map(|(rank, gid)| format!("{rank}={gid}")).collect();
        let pools: Vec<String> = self.data_pools.iter().map(i64::to_string).collect();
        let inline = if self.inline_data_enabled { "enabled" } else { "disabled" };
        for (name, value) in [
            ("fs_name", self.fs_name.clone()),
            ("epoch", self.epoch.to_string()),
            ("flags", format!("{:x}", self.flags)),
            ("created", self.created.to_string()),
            ("modified", self.modified.to_string()),
            ("tableserver", self.tableserver.to_string()),
            ("root", self.root.to_string()),
            ("session_timeout", self.session_timeout.to_string()),
            ("session_autoclose", self.session_autoclose.to_string()),
            ("max_file_size", self.max_file_size.to_string()),
            ("required_client_features", self.required_client_features.to_string()),
            ("last_failure", self.last_failure.to_string()),
            ("last_failure_osd_epoch", self.last_failure_osd_epoch.to_string()),
            ("compat", self.compat.to_string()),
            ("max_mds", self.max_mds.to_string()),
            ("in", set(&self.ranks_in)),
            ("up", format!("{{{}}}", up.join(","))),
            ("failed", set(&self.failed)),
            ("damaged", set(&self.damaged)),
            ("stopped", set(&self.stopped)),
            ("data_pools", format!("[{}]", pools.join(","))),
            ("metadata_pool", self.metadata_pool.to_string()),
            ("inline_data", inline.to_owned()),
            ("balancer", self.balancer.clone()),
            ("standby_count_wanted", self.standby_count_wanted.max(0).to_string()),
        ] {
            let _ = writeln!(out, "{name}\t{value}");
        }
        let mut daemons: Vec<&MdsInfo> = self.mds_info.values().collect();
        daemons.sort_by_key(|i| (i.rank, i.inc.wrapping_sub(1) as u32));
        for info in daemons {
            let _ = writeln!(out, "{info}");
        }
        out
    }
}

impl Owners {
    /// As a map says. In one that says nothing, the owner of each rank has the rank's number, and
    /// ranks with numbers above those that are wanted were given up.
    pub fn of(map: &MdsMap) -> Owners {
        let text = map.compat.compat.names.get(&OWNERS_FEATURE);
        if let Some(owners) = text.and_then(|t| t.parse().ok()) {
            return owners;
        }
        let wanted = map.ranks_wanted();
        let known = map.ranks_in.iter().chain(&map.stopped).copied();
        let there = known.clone().filter(|r| map.ranks_in.contains(r) || *r < wanted);
        let stops = map.mds_info.values().filter(|i| i.state == MdsState::STOPPING);
        let leaving = stops.map(|i| i.rank).filter(|r| *r >= wanted).collect();
        Owners::by_ranks(known, there, leaving)
    }

    /// Notes them in a map. Where rank 0 was alone all the time there is nothing to say.
    pub fn note(&self, map: &mut MdsMap) {
        let names = &mut map.compat.compat.names;
        if *self == Owners::default() {
            names.remove(&OWNERS_FEATURE);
        } else {
            names.insert(OWNERS_FEATURE, self.to_string());
        }
    }
}

impl fmt::Display for MdsMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())
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
        let info: serde_json::Map<_, _> =
            self.mds_info.iter().map(|(gid, info)| (format!("gid_{gid}"), info.dump())).collect();
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
            "required_client_features": self.required_client_features.dump(),
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
            "info": info,
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
    use crate::EntityAddrVec;

    fn noted(map: &MdsMap) -> String {
        Owners::of(map).to_string()
    }

    #[test]
    fn a_map_that_says_nothing_has_the_numbers_of_ranks() {
        let mut map = MdsMap::default();
        assert_eq!(Owners::of(&map), Owners::default());
        (map.ranks_in, map.stopped, map.max_mds) = ([0, 1].into(), [2, 3].into(), 3);
        // Rank 2 comes back, rank 3 was given up.
        assert_eq!(noted(&map), "siphon owners: 0=0,1=1,2=2 next 4");
        let mut info = MdsInfo::standby(5, "a", EntityAddrVec::default(), CompatSet::default());
        (info.rank, info.state) = (1, MdsState::STOPPING);
        map.mds_info = [(5, info)].into();
        (map.stopped, map.max_mds) = ([3].into(), 1);
        assert_eq!(noted(&map), "siphon owners: 0=0,1=1 leaving 1 next 4");
    }

    #[test]
    fn a_rank_that_comes_again_has_numbers_that_were_never_used() {
        let mut map = MdsMap { ranks_in: [0, 1].into(), ..MdsMap::default() };
        let mut owners = Owners::of(&map);
        owners.begin_to_leave(1);
        owners.stopped(1);
        owners.note(&mut map);
        // What the map has besides does not count any more.
        (map.max_mds, map.stopped) = (5, [1].into());
        let bytes = map.to_bytes(Features::ALL);
        let mut owners = Owners::of(&MdsMap::from_bytes(&bytes).unwrap());
        assert_eq!((owners.owner(1), owners.rank(1), owners.count()), (None, None, 2));
        assert_eq!(
            (owners.admit(1), owners.admit(1), owners.admit(2)),
            (Some(2), Some(2), Some(3))
        );
        assert_eq!((owners.rank(2), owners.rank(3)), (Some(1), Some(2)));
        // One that only sleeps stays what it is.
        owners.stopped(1);
        assert_eq!(owners.owner(1), Some(2));
    }
}
