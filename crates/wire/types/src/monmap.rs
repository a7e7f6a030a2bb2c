//! The monitor map.

use crate::dump::{Dump, shown};
use crate::entity::{EntityAddr, EntityAddrVec};
use crate::release::Release;
use crate::{Epoch, Fsid, Utime, features};
use bytes::BytesMut;
use denc::{Decode, DecodeError, Encode, Features, Reader, Result, envelope};
use denc_derive::Denc;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Features that monitors agree on (Ceph: `mon_feature_t`, `mon/mon_types.h`, version 1).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Denc)]
#[denc(version = 1, compat = 1)]
pub struct MonFeatures(pub u64);

const MON_FEATURES: [&str; 11] = [
    "kraken",
    "luminous",
    "mimic",
    "osdmap-prune",
    "nautilus",
    "octopus",
    "pacific",
    "elector-pinging",
    "quincy",
    "reef",
    "squid",
];

impl MonFeatures {
    /// Everything up to Squid.
    pub const SQUID: MonFeatures = MonFeatures((1 << 11) - 1);
    /// Old maps may be pruned (`FEATURE_OSDMAP_PRUNE`), the one optional feature.
    pub const OSDMAP_PRUNE: MonFeatures = MonFeatures(1 << 3);

    /// Names in order of bits.
    pub fn names(self) -> Vec<&'static str> {
        let set = (0..64).filter(|bit| self.0 & 1 << bit != 0);
        set.map(|bit: usize| MON_FEATURES.get(bit).copied().unwrap_or("unknown")).collect()
    }
}

/// One monitor (Ceph: `mon_info_t`, `mon/MonMap.h`, version 5, compat 1).
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct MonInfo {
    /// Its name, `a` in `mon.a`.
    pub name: String,
    /// Where clients and other monitors reach it.
    pub public_addrs: EntityAddrVec,
    /// Clients prefer a lower number.
    pub priority: u16,
    /// Clients choose among equal priorities by this weight.
    pub weight: u16,
    /// Where it is in the CRUSH hierarchy.
    pub crush_loc: BTreeMap<String, String>,
}

impl Encode for MonInfo {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        let all_addrs = f.has(features::SERVER_NAUTILUS);
        envelope(out, if all_addrs { 5 } else { 2 }, 1, |out| {
            self.name.encode(out, f);
            match all_addrs {
                true => self.public_addrs.encode(out, f),
                false => legacy_addr(&self.public_addrs).encode(out, f),
            }
            self.priority.encode(out, f);
            self.weight.encode(out, f);
            self.crush_loc.encode(out, f);
        });
    }
}

/// What a peer that knows one address only is told: the old one, or else the first in its guise.
fn legacy_addr(addrs: &EntityAddrVec) -> EntityAddr {
    EntityAddr { kind: crate::AddrType::LEGACY, ..addrs.legacy_or_front() }
}

impl Decode for MonInfo {
    fn decode(r: &mut Reader) -> Result<Self> {
        let (struct_v, mut r) = r.envelope("mon_info_t", 5)?;
        let mut info = MonInfo { name: r.get()?, public_addrs: r.get()?, ..Default::default() };
        if struct_v >= 2 {
            info.priority = r.get()?;
        }
        if struct_v >= 4 {
            info.weight = r.get()?;
        }
        if struct_v >= 5 {
            info.crush_loc = r.get()?;
        }
        Ok(info)
    }
}

/// The monitors (Ceph: `MonMap`, `mon/MonMap.h`, version 9, compat 6; version 5 to peers before
/// Nautilus).
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct MonMap {
    /// The cluster.
    pub fsid: Fsid,
    /// Version of the map.
    pub epoch: Epoch,
    /// When it changed.
    pub last_changed: Utime,
    /// When the cluster was created.
    pub created: Utime,
    /// Features that stay.
    pub persistent_features: MonFeatures,
    /// Features that may go.
    pub optional_features: MonFeatures,
    /// Monitors by name.
    pub mon_info: BTreeMap<String, MonInfo>,
    /// Names by rank. Each has an entry in `mon_info`.
    pub ranks: Vec<String>,
    /// The least release of any monitor.
    pub min_mon_release: Release,
    /// Ranks that this map removed.
    pub removed_ranks: BTreeSet<i32>,
    /// Election strategy; 1 is the classic one.
    pub strategy: u8,
    /// Monitors that must not lead.
    pub disallowed_leaders: BTreeSet<String>,
    /// Stretch mode.
    pub stretch_mode_enabled: bool,
    /// Stretch mode: the monitor that decides.
    pub tiebreaker_mon: String,
    /// Stretch mode: monitors of a site that is down.
    pub stretch_marked_down_mons: BTreeSet<String>,
}

impl MonMap {
    /// Adds a monitor with the next rank, or changes the one of this name.
    pub fn add(&mut self, info: MonInfo) {
        if !self.mon_info.contains_key(&info.name) {
            self.ranks.push(info.name.clone());
        }
        self.mon_info.insert(info.name.clone(), info);
    }

    /// Removes a monitor. Those behind it move up by one rank.
    pub fn remove(&mut self, name: &str) {
        if let Some(rank) = self.rank_of(name) {
            self.ranks.remove(rank);
            self.removed_ranks.insert(i32::try_from(rank).unwrap_or(-1));
        }
        self.mon_info.remove(name);
    }

    /// The monitor of this rank.
    pub fn by_rank(&self, rank: usize) -> Option<&MonInfo> {
        self.mon_info.get(self.ranks.get(rank)?)
    }

    /// The rank of the monitor of this name.
    pub fn rank_of(&self, name: &str) -> Option<usize> {
        self.ranks.iter().position(|n| n == name)
    }

    /// Monitors from rank 0.
    pub fn iter(&self) -> impl Iterator<Item = &MonInfo> {
        self.ranks.iter().filter_map(|name| self.mon_info.get(name))
    }

    /// Ranks by address, then name, as before ranks were explicit.
    fn legacy_ranks(&self) -> Vec<String> {
        let mut mons: Vec<_> = self.mon_info.values().collect();
        mons.sort_by_key(|m| (m.public_addrs.legacy_or_front(), &m.name));
        mons.into_iter().map(|m| m.name.clone()).collect()
    }

    /// The part that `ceph status` shows.
    pub fn dump_summary(&self) -> Value {
        json!({
            "epoch": self.epoch,
            "min_mon_release_name": self.min_mon_release.name(),
            "num_mons": self.ranks.len(),
        })
    }
}

impl Encode for MonMap {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        if !f.has(features::SERVER_NAUTILUS) {
            envelope(out, 5, 3, |out| {
                self.fsid.encode(out, f);
                self.epoch.encode(out, f);
                let addrs: BTreeMap<_, _> = self
                    .mon_info
                    .iter()
                    .map(|(n, m)| (n, m.public_addrs.of_type(crate::AddrType::LEGACY)))
                    .collect();
                addrs.encode(out, f);
                self.last_changed.encode(out, f);
                self.created.encode(out, f);
                self.persistent_features.encode(out, f);
                self.optional_features.encode(out, f);
                self.mon_info.encode(out, f);
            });
            return;
        }
        envelope(out, 9, 6, |out| {
            self.fsid.encode(out, f);
            self.epoch.encode(out, f);
            self.last_changed.encode(out, f);
            self.created.encode(out, f);
            self.persistent_features.encode(out, f);
            self.optional_features.encode(out, f);
            self.mon_info.encode(out, f);
            self.ranks.encode(out, f);
            self.min_mon_release.encode(out, f);
            self.removed_ranks.encode(out, f);
            self.strategy.encode(out, f);
            self.disallowed_leaders.encode(out, f);
            self.stretch_mode_enabled.encode(out, f);
            self.tiebreaker_mon.encode(out, f);
            self.stretch_marked_down_mons.encode(out, f);
        });
    }
}
impl Decode for MonMap {
    fn decode(r: &mut Reader) -> Result<Self> {
        let (struct_v, mut r) = r.envelope("MonMap", 9)?;
        if struct_v < 5 {
            return Err(DecodeError::TooOld { what: "MonMap", struct_v, oldest: 5 });
        }
        let mut map = MonMap { fsid: r.get()?, epoch: r.get()?, strategy: 1, ..Default::default() };
        if struct_v < 6 {
            r.get::<BTreeMap<String, EntityAddr>>()?;
        }
        map.last_changed = r.get()?;
        map.created = r.get()?;
        map.persistent_features = r.get()?;
        map.optional_features = r.get()?;
        map.mon_info = r.get()?;
        map.ranks = if struct_v >= 6 { r.get()? } else { map.legacy_ranks() };
        if struct_v >= 7 {
            map.min_mon_release = r.get()?;
        }
        if struct_v >= 8 {
            map.removed_ranks = r.get()?;
            map.strategy = r.get()?;
            map.disallowed_leaders = r.get()?;
        }
        if struct_v >= 9 {
            map.stretch_mode_enabled = r.get()?;
            map.tiebreaker_mon = r.get()?;
            map.stretch_marked_down_mons = r.get()?;
        }
        Ok(map)
    }
}
impl Dump for MonMap {
    fn dump(&self) -> Value {
        let leaders: Vec<&str> = self.disallowed_leaders.iter().map(String::as_str).collect();
        let removed: Vec<String> = self.removed_ranks.iter().map(i32::to_string).collect();
        let mon = |(rank, m): (usize, &MonInfo)| {
            let place: Vec<String> = m.crush_loc.iter().map(|(k, v)| format!("{k}={v}")).collect();
            let addr = m.public_addrs.legacy_string();
            json!({
                "rank": rank,
                "name": m.name,
                "public_addrs": m.public_addrs.dump(),
                "addr": addr,
                "public_addr": addr,
                "priority": m.priority,
                "weight": m.weight,
                "crush_location": format!("{{{}}}", place.join(",")),
            })
        };
        json!({
            "epoch": self.epoch,
            "fsid": shown(self.fsid),
            "modified": self.last_changed.gmtime(),
            "created": self.created.gmtime(),
            "min_mon_release": self.min_mon_release.0,
            "min_mon_release_name": self.min_mon_release.name(),
            "election_strategy": self.strategy,
            // The colons are in Ceph's names.
            "disallowed_leaders: ": leaders.join(","),
            "stretch_mode": self.stretch_mode_enabled,
            "tiebreaker_mon": self.tiebreaker_mon,
            "removed_ranks: ": removed.join(","),
            "features": {
                "persistent": self.persistent_features.names(),
                "optional": self.optional_features.names(),
            },
            "mons": self.iter().enumerate().map(mon).collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map() -> MonMap {
        let mut map = MonMap {
            epoch: Epoch(3),
            strategy: 1,
            min_mon_release: Release::SQUID,
            ..Default::default()
        };
        for (name, addr) in
            [("b", "v2:127.0.0.1:3301/0"), ("a", "[v2:127.0.0.1:3300/0,v1:127.0.0.1:6789/0]")]
        {
            map.add(MonInfo {
                name: name.into(),
                public_addrs: addr.parse().unwrap(),
                ..Default::default()
            });
        }
        map
    }

    #[test]
    fn ranks_are_kept() {
        let map = map();
        assert_eq!(map.rank_of("b"), Some(0));
        assert_eq!(MonMap::from_bytes(&map.to_bytes(Features::ALL)).unwrap(), map);
        assert_eq!(map.by_rank(1).unwrap().name, "a");
        assert!(map.by_rank(2).is_none());
    }

    #[test]
    fn peers_before_nautilus_get_one_address_each() {
        let f = Features(features::PACIFIC.0 & !(1 << 2));
        let old = MonMap::from_bytes(&map().to_bytes(f)).unwrap();
        assert_eq!(old.mon_info["a"].public_addrs.to_string(), "v1:127.0.0.1:6789/0");
        assert_eq!(old.mon_info["b"].public_addrs.to_string(), "v1:127.0.0.1:3301/0");
        assert_eq!(old.ranks, ["b", "a"]);
    }

    #[test]
    fn feature_names() {
        assert_eq!(MonFeatures(1 << 3 | 1 << 7).names(), ["osdmap-prune", "elector-pinging"]);
        assert_eq!(MonFeatures::SQUID.names().last(), Some(&"squid"));
    }
}
