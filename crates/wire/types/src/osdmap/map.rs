use crate::Release;
use crate::rados::{osd_state, osdmap_flag};
use crate::{
    EntityAddr, EntityAddrVec, Epoch, Fsid, IntervalSet, OsdId, PgId, PgPool, PoolId, Utime,
    features,
};
use crush::CrushMap;
use denc::Features;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// History of an OSD (Ceph: `osd_info_t`, version 1, without an envelope).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct OsdInfo {
    /// Begin of the last interval that ended with a clean shutdown.
    pub last_clean_begin: Epoch,
    /// End of it.
    pub last_clean_end: Epoch,
    /// Epoch in which it came up last.
    pub up_from: Epoch,
    /// It was alive at least until this epoch.
    pub up_thru: Epoch,
    /// If above `up_from`: it was gone by this epoch.
    pub down_at: Epoch,
    /// Epoch in which its data was given up.
    pub lost_at: Epoch,
}

/// More about an OSD (Ceph: `osd_xinfo_t`, version 4).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct OsdXinfo {
    /// When it was marked down last.
    pub down_stamp: Utime,
    /// How probable it is that it is only slow, from 0 to `u32::MAX`.
    pub laggy_probability: u32,
    /// Mean seconds until it recovered.
    pub laggy_interval: u32,
    /// What it supports.
    pub features: u64,
    /// Its weight before it was marked out automatically.
    pub old_weight: u32,
    /// When it compared its snapshots last.
    pub last_purged_snaps_scrub: Utime,
    /// It was surely dead in this epoch.
    pub dead_epoch: Epoch,
}

impl OsdXinfo {
    /// The probability from 0 to 1.
    pub fn laggy_probability_f32(&self) -> f32 {
        self.laggy_probability as f32 / u32::MAX as f32
    }

    /// Sets the probability.
    pub fn set_laggy_probability(&mut self, p: f32) {
        self.laggy_probability = (p * u32::MAX as f32) as u32;
    }
}

/// What the map knows of one OSD apart from its weights.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Osd {
    /// Bits of [`osd_state`].
    pub state: u32,
    /// Identity of its store.
    pub uuid: Fsid,
    /// History.
    pub info: OsdInfo,
    /// More.
    pub xinfo: OsdXinfo,
    /// Where clients reach it.
    pub client_addrs: EntityAddrVec,
    /// Where other OSDs reach it.
    pub cluster_addrs: EntityAddrVec,
    /// Where heartbeats reach it on the cluster network.
    pub hb_back_addrs: EntityAddrVec,
    /// Where heartbeats reach it on the public network.
    pub hb_front_addrs: EntityAddrVec,
}

/// Clusters that are stretched over sites.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct StretchMode {
    /// Whether the cluster is stretched.
    pub enabled: bool,
    /// How many sites there should be.
    pub bucket_count: u32,
    /// 0, or the number of sites that are up.
    pub degraded: u32,
    /// Whether it is on the way back.
    pub recovering: u32,
    /// Type of the bucket that is a site.
    pub bucket: i32,
}

/// Which OSDs a tree shows (Ceph: `OSDMap::DUMP_*`); none means all.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct TreeFilter {
    /// OSDs that are in.
    pub in_: bool,
    /// OSDs that are out.
    pub out: bool,
    /// OSDs that are up.
    pub up: bool,
    /// OSDs that are down.
    pub down: bool,
    /// OSDs that were destroyed.
    pub destroyed: bool,
}

/// The map (Ceph: `OSDMap`).
///
/// Vectors by OSD (`osds`, `weights`, `primary_affinity`) always have the same length, `max_osd`.
#[derive(Clone, PartialEq, Debug)]
pub struct OsdMap {
    /// The cluster.
    pub fsid: Fsid,
    /// Version of the map.
    pub epoch: Epoch,
    /// When the cluster was made.
    pub created: Utime,
    /// When this epoch was made.
    pub modified: Utime,
    /// When an OSD came up or went down last.
    pub last_up_change: Utime,
    /// When an OSD was marked in or out last.
    pub last_in_change: Utime,
    /// Bits of [`osdmap_flag`].
    pub flags: u32,
    /// The pools.
    pub pools: BTreeMap<PoolId, PgPool>,
    /// Their names.
    pub pool_names: BTreeMap<PoolId, String>,
    /// The largest pool number ever used.
    pub pool_max: i32,
    /// The OSDs, by number.
    pub osds: Vec<Osd>,
    /// Reweights: 0x10000 is in, 0 is out. Apart from the rest because CRUSH reads them as a slice.
    pub weights: Vec<u32>,
    /// Primary affinities (0x10000 by default), if any was ever set.
    pub primary_affinity: Option<Vec<u32>>,
    /// Acting sets that differ from the up sets for a while. Never an empty set.
    pub pg_temp: BTreeMap<PgId, Vec<OsdId>>,
    /// Primaries that differ for a while.
    pub primary_temp: BTreeMap<PgId, OsdId>,
    /// Placements made by hand.
    pub pg_upmap: BTreeMap<PgId, Vec<OsdId>>,
    /// Replacements (from, to) of single OSDs.
    pub pg_upmap_items: BTreeMap<PgId, Vec<(OsdId, OsdId)>>,
    /// Primaries chosen by hand (since Reef).
    pub pg_upmap_primaries: BTreeMap<PgId, OsdId>,
    /// The CRUSH map.
    pub crush: Arc<CrushMap>,
    /// Counts changes of the CRUSH map.
    pub crush_version: u32,
    /// Parameters of erasure codes by profile name.
    pub erasure_code_profiles: BTreeMap<String, BTreeMap<String, String>>,
    /// Client addresses that may not do anything, and until when. Since Nautilus all of type "any".
    pub blocklist: BTreeMap<EntityAddr, Utime>,
    /// Networks that may not do anything (since Quincy and 16.2.8); the nonce is the prefix length.
    pub range_blocklist: BTreeMap<EntityAddr, Utime>,
    /// Snapshots removed and not yet purged everywhere.
    pub removed_snaps_queue: BTreeMap<PoolId, IntervalSet>,
    /// Snapshots removed in this epoch.
    pub new_removed_snaps: BTreeMap<PoolId, IntervalSet>,
    /// Snapshots purged in this epoch.
    pub new_purged_snaps: BTreeMap<PoolId, IntervalSet>,
    /// Obsolete.
    pub cluster_snapshot_epoch: Epoch,
    /// Obsolete.
    pub cluster_snapshot: String,
    /// Used part from which an OSD is full.
    pub full_ratio: f32,
    /// Used part from which an OSD takes no backfill.
    pub backfillfull_ratio: f32,
    /// Used part from which there is a warning.
    pub nearfull_ratio: f32,
    /// Clients must be of this release.
    pub require_min_compat_client: Release,
    /// OSDs must be of this release.
    pub require_osd_release: Release,
    /// OSD flags (noup, nodown, noin, noout) of CRUSH nodes.
    pub crush_node_flags: BTreeMap<i32, u32>,
    /// OSD flags of device classes.
    pub device_class_flags: BTreeMap<i32, u32>,
    /// Stretched clusters.
    pub stretch: StretchMode,
    /// Whether a certain kind of OSD may join (since Reef).
    pub allow_crimson: bool,
}

impl Default for OsdMap {
    fn default() -> Self {
        OsdMap {
            fsid: Fsid::default(),
            epoch: Epoch(0),
            created: Utime::ZERO,
            modified: Utime::ZERO,
            last_up_change: Utime::ZERO,
            last_in_change: Utime::ZERO,
            flags: 0,
            pools: BTreeMap::new(),
            pool_names: BTreeMap::new(),
            pool_max: 0,
            osds: Vec::new(),
            weights: Vec::new(),
            primary_affinity: None,
            pg_temp: BTreeMap::new(),
            primary_temp: BTreeMap::new(),
            pg_upmap: BTreeMap::new(),
            pg_upmap_items: BTreeMap::new(),
            pg_upmap_primaries: BTreeMap::new(),
            crush: Arc::new(CrushMap::default()),
            crush_version: 1,
            erasure_code_profiles: BTreeMap::new(),
            blocklist: BTreeMap::new(),
            range_blocklist: BTreeMap::new(),
            removed_snaps_queue: BTreeMap::new(),
            new_removed_snaps: BTreeMap::new(),
            new_purged_snaps: BTreeMap::new(),
            cluster_snapshot_epoch: Epoch(0),
            cluster_snapshot: String::new(),
            full_ratio: 0.0,
            backfillfull_ratio: 0.0,
            nearfull_ratio: 0.0,
            require_min_compat_client: Release::UNKNOWN,
            require_osd_release: Release::UNKNOWN,
            crush_node_flags: BTreeMap::new(),
            device_class_flags: BTreeMap::new(),
            stretch: StretchMode::default(),
            allow_crimson: false,
        }
    }
}

impl OsdMap {
    /// A weight or affinity of one, in 16.16 fixed point (Ceph: `CEPH_OSD_IN`).
    pub const ONE: u32 = 0x10000;
    /// More OSDs than any cluster has; a larger number in a map is a fault.
    pub const MAX_OSD: usize = 1 << 20;

    /// One more than the largest OSD number that the map has room for.
    pub fn max_osd(&self) -> i32 {
        self.osds.len() as i32
    }

    /// What the map knows of an OSD, whether it exists or not.
    pub fn osd(&self, id: OsdId) -> Option<&Osd> {
        self.osds.get(usize::try_from(id.0).ok()?)
    }

    fn state(&self, id: OsdId) -> u32 {
        self.osd(id).map_or(0, |o| o.state)
    }

    /// Whether the OSD exists.
    #[inline]
    pub fn exists(&self, id: OsdId) -> bool {
        self.state(id) & osd_state::EXISTS != 0
    }

    /// Whether the OSD exists and is up.
    #[inline]
    pub fn is_up(&self, id: OsdId) -> bool {
        let up = osd_state::EXISTS | osd_state::UP;
        self.state(id) & up == up
    }

    /// Whether the OSD is not up.
    pub fn is_down(&self, id: OsdId) -> bool {
        !self.is_up(id)
    }

    /// Whether the OSD exists and has a weight.
    pub fn is_in(&self, id: OsdId) -> bool {
        self.exists(id) && self.weight_fixed(id) != 0
    }

    /// Whether the OSD is not in.
    pub fn is_out(&self, id: OsdId) -> bool {
        !self.is_in(id)
    }

    /// Whether the OSD exists and was destroyed: its number waits for a new device.
    pub fn is_destroyed(&self, id: OsdId) -> bool {
        self.exists(id) && self.state(id) & osd_state::DESTROYED != 0
    }

    /// Reweight in 16.16 fixed point, 0 for OSDs that the map has no room for.
    pub fn weight_fixed(&self, id: OsdId) -> u32 {
        usize::try_from(id.0).ok().and_then(|i| self.weights.get(i)).copied().unwrap_or(0)
    }

    /// Reweight from 0 to 1.
    pub fn weight(&self, id: OsdId) -> f64 {
        f64::from(self.weight_fixed(id) as f32 / Self::ONE as f32)
    }

    /// Primary affinity in 16.16 fixed point.
    pub fn primary_affinity_fixed(&self, id: OsdId) -> u32 {
        let all = self.primary_affinity.as_ref();
        all.and_then(|all| all.get(usize::try_from(id.0).ok()?)).copied().unwrap_or(Self::ONE)
    }

    /// Primary affinity from 0 to 1.
    pub fn primary_affinity(&self, id: OsdId) -> f64 {
        f64::from(self.primary_affinity_fixed(id) as f32 / Self::ONE as f32)
    }

    /// OSDs that exist, in order.
    pub fn osd_ids(&self) -> Vec<OsdId> {
        (0..self.max_osd()).map(OsdId).filter(|o| self.exists(*o)).collect()
    }

    /// OSDs that are up, in order.
    pub fn up_osds(&self) -> Vec<OsdId> {
        (0..self.max_osd()).map(OsdId).filter(|o| self.is_up(*o)).collect()
    }

    /// How many OSDs exist, are up, and are in.
    pub fn count_osds(&self) -> (usize, usize, usize) {
        let ids = self.osd_ids();
        let up = ids.iter().filter(|o| self.is_up(**o)).count();
        let members = ids.iter().filter(|o| self.is_in(**o)).count();
        (ids.len(), up, members)
    }

    /// The OSD with a store of this identity.
    pub fn osd_by_uuid(&self, uuid: Fsid) -> Option<OsdId> {
        self.osd_ids().into_iter().find(|o| self.osd(*o).is_some_and(|osd| osd.uuid == uuid))
    }

    /// The OSD that has this address in any role.
    pub fn osd_by_addr(&self, addr: &EntityAddr) -> Option<OsdId> {
        self.osd_ids().into_iter().find(|o| {
            self.osd(*o).is_some_and(|osd| {
                [&osd.client_addrs, &osd.cluster_addrs, &osd.hb_back_addrs, &osd.hb_front_addrs]
                    .iter()
                    .any(|a| a.contains(addr))
            })
        })
    }

    /// Where clients reach an OSD.
    pub fn client_addrs(&self, id: OsdId) -> Option<&EntityAddrVec> {
        self.osd(id).map(|o| &o.client_addrs)
    }

    /// A pool.
    pub fn pool(&self, id: PoolId) -> Option<&PgPool> {
        self.pools.get(&id)
    }

    /// Number of the pool with this name.
    pub fn pool_by_name(&self, name: &str) -> Option<PoolId> {
        self.pool_names.iter().find(|(_, n)| *n == name).map(|(id, _)| *id)
    }

    /// How many bytes of devices a byte of a pool takes (Ceph: `OSDMap::pool_raw_used_rate`): the
    /// size of a replicated pool, `(k+m)/k` of an erasure-coded one. If its profile does not say
    /// `k` and `m`, it is taken for a replicated one: the room shown is too little, not too much.
    pub fn raw_used_rate(&self, pool: &PgPool) -> f64 {
        let number = |name: &str| -> Option<f64> {
            let profile = self.erasure_code_profiles.get(&pool.erasure_code_profile)?;
            profile.get(name)?.parse::<u8>().ok().map(f64::from)
        };
        match (number("k"), number("m")) {
            (Some(k), Some(m)) if !pool.is_replicated() && k > 0.0 => (k + m) / k,
            _ => f64::from(pool.size),
        }
    }

    /// Whether all of these flags are set.
    pub fn has_flag(&self, flags: u32) -> bool {
        self.flags & flags == flags
    }

    /// Whether clients of an address must be refused: that very client, or its whole host, or its
    /// network.
    pub fn is_blocklisted(&self, addr: &EntityAddr) -> bool {
        if self.blocklist.is_empty() && self.range_blocklist.is_empty() {
            return false;
        }
        let old = self.require_osd_release < Release::NAUTILUS;
        let kind = if old { crate::AddrType::LEGACY } else { crate::AddrType::ANY };
        let client = EntityAddr { kind, ..*addr };
        let host = EntityAddr {
            nonce: 0,
            addr: client.addr.map(|mut a| {
                a.set_port(0);
                a
            }),
            ..client
        };
        self.blocklist.contains_key(&client)
            || self.blocklist.contains_key(&host)
            || self.range_blocklist.keys().any(|range| in_range(addr, range))
    }

    /// Features by which this map is encoded, unless asked otherwise: as far as all OSDs are known
    /// to understand them (Ceph: `OSDMap::get_encoding_features`).
    pub fn encoding_features(&self) -> Features {
        let steps = [
            (Release::SQUID, bit(features::SERVER_SQUID)),
            (Release::OCTOPUS, bit(features::SERVER_OCTOPUS)),
            (Release::NAUTILUS, bit(features::SERVER_NAUTILUS)),
            (Release::MIMIC, bit(features::SERVER_MIMIC)),
            (Release::LUMINOUS, bit(features::SERVER_LUMINOUS)),
            (Release::KRAKEN, features::MSG_ADDR2),
            (
                Release::JEWEL,
                features::SERVER_JEWEL | features::NEW_OSDOP_ENCODING | features::CRUSH_TUNABLES5,
            ),
        ];
        let mut f = features::OSDMAP_SIGNIFICANT;
        for (release, bits) in steps {
            if self.require_osd_release < release {
                f &= !bits;
            }
        }
        Features(f)
    }

    /// Features that every OSD which is up has.
    pub fn up_osd_features(&self) -> u64 {
        let up = self.osds.iter().enumerate().filter(|(i, _)| self.is_up(OsdId(*i as i32)));
        up.map(|(_, o)| o.xinfo.features).filter(|f| *f != 0).reduce(|a, b| a & b).unwrap_or(0)
    }

    /// The oldest release whose clients understand what the map uses.
    pub fn min_compat_client(&self) -> Release {
        let crush = &*self.crush;
        let t = &crush.tunables;
        let rules: Vec<&crush::Rule> = self
            .pools
            .values()
            .filter_map(|p| {
                crush.rule(crush.find_rule(
                    i32::from(p.crush_rule),
                    p.kind as u8,
                    u32::from(p.size),
                )?)
            })
            .collect();
        let uses = |code: u32| rules.iter().any(|r| r.steps.iter().any(|s| s.op == code));
        if !self.pg_upmap_primaries.is_empty() {
            Release::REEF
        } else if !self.pg_upmap.is_empty()
            || !self.pg_upmap_items.is_empty()
            || crush.has_incompat_choose_args()
        {
            Release::LUMINOUS
        } else if t.chooseleaf_stable != 0 || uses(crush::op::SET_CHOOSELEAF_STABLE) {
            Release::JEWEL
        } else if crush.has_v4_buckets() {
            Release(8)
        } else if self.primary_affinity.iter().flatten().any(|a| *a != Self::ONE)
            || t.chooseleaf_vary_r != 0
            || uses(crush::op::SET_CHOOSELEAF_VARY_R)
            || self.pools.values().any(|p| !p.tiers.is_empty() || p.tier_of >= 0)
        {
            Release(6)
        } else if t.chooseleaf_descend_once != 0
            || self.pools.values().any(|p| p.has_flag(crate::pool::flag::HASHPSPOOL))
        {
            Release(4)
        } else {
            Release(1)
        }
    }

    /// Whether a rule serves some pool.
    pub fn crush_rule_in_use(&self, rule: i32) -> bool {
        self.pools.values().any(|p| i32::from(p.crush_rule) == rule)
    }

    /// OSD flags that an OSD has by itself, through a CRUSH node above it, or through its device
    /// class.
    pub fn effective_osd_flags(&self, id: OsdId) -> u32 {
        let mut flags = self.state(id) | self.crush_node_flags.get(&id.0).copied().unwrap_or(0);
        for (_, name) in self.crush.full_location(id.0) {
            if let Some(bucket) = self.crush.names.id(&name) {
                flags |= self.crush_node_flags.get(&bucket).copied().unwrap_or(0);
            }
        }
        if let Some(class) = self.crush.class_map.get(&id.0) {
            flags |= self.device_class_flags.get(class).copied().unwrap_or(0);
        }
        flags
    }
}

/// Only the lowest bit: a feature's incarnation bits are shared with others.
const fn bit(feature: u64) -> u64 {
    let incarnation = features::SERVER_JEWEL | 1 << 28;
    let own = feature & !incarnation;
    if own == 0 { 1 << 28 } else { own }
}

fn in_range(addr: &EntityAddr, range: &EntityAddr) -> bool {
    use std::net::IpAddr;
    let (Some(a), Some(r)) = (addr.addr, range.addr) else { return false };
    match (a.ip(), r.ip()) {
        (IpAddr::V4(a), IpAddr::V4(r)) => {
            let mask = u32::MAX.checked_shl(32u32.saturating_sub(range.nonce)).unwrap_or(0);
            (u32::from(a) ^ u32::from(r)) & mask == 0
        }
        (IpAddr::V6(a), IpAddr::V6(r)) => {
            let mask = u128::MAX.checked_shl(128u32.saturating_sub(range.nonce)).unwrap_or(0);
            (u128::from(a) ^ u128::from(r)) & mask == 0
        }
        _ => false,
    }
}

/// Flags by name in the order of `ceph osd dump`, with commas (Ceph: `OSDMap::get_flag_string`).
pub fn flag_names(flags: u32) -> String {
    use osdmap_flag::*;
    const NAMES: [(u32, &str); 21] = [
        (PAUSERD, "pauserd"),
        (PAUSEWR, "pausewr"),
        (PAUSEREC, "pauserec"),
        (NOUP, "noup"),
        (NODOWN, "nodown"),
        (NOOUT, "noout"),
        (NOIN, "noin"),
        (NOBACKFILL, "nobackfill"),
        (NOREBALANCE, "norebalance"),
        (NORECOVER, "norecover"),
        (NOSCRUB, "noscrub"),
        (NODEEP_SCRUB, "nodeep-scrub"),
        (NOTIERAGENT, "notieragent"),
        (NOSNAPTRIM, "nosnaptrim"),
        (SORTBITWISE, "sortbitwise"),
        (REQUIRE_JEWEL, "require_jewel_osds"),
        (REQUIRE_KRAKEN, "require_kraken_osds"),
        (REQUIRE_LUMINOUS, "require_luminous_osds"),
        (RECOVERY_DELETES, "recovery_deletes"),
        (PURGED_SNAPDIRS, "purged_snapdirs"),
        (PGLOG_HARDLIMIT, "pglog_hardlimit"),
    ];
    let set: Vec<&str> =
        NAMES.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, name)| *name).collect();
    set.join(",")
}

/// States of an OSD by name, sorted (Ceph: `OSDMap::calc_state_set`).
pub fn state_names(state: u32) -> BTreeSet<&'static str> {
    const NAMES: [&str; 13] = [
        "exists",
        "up",
        "autoout",
        "new",
        "full",
        "nearfull",
        "backfillfull",
        "destroyed",
        "noup",
        "nodown",
        "noin",
        "noout",
        "stop",
    ];
    (0..32usize)
        .filter(|bit| state & 1 << bit != 0)
        .map(|bit| NAMES.get(bit).copied().unwrap_or("???"))
        .collect()
}
