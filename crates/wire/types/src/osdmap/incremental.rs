//! The difference between two maps (Ceph: `OSDMap::Incremental`, 16.2: wrapper version 8, client
//! part 8, OSD part 9 or, when the stretch mode changes, 10).

use super::encode::{put_by_addr, put_one_addr, seal, verify, version, writable};
use super::map::{OsdMap, OsdXinfo, StretchMode};
use crate::Release;
use crate::rados::osdmap_flag;
use crate::{
    EntityAddr, EntityAddrVec, Epoch, Fsid, IntervalSet, OsdId, PgId, PgPool, PoolId, Utime,
    features,
};
use bytes::{BufMut, Bytes, BytesMut};
use denc::{Decode, DecodeError, Encode, Features, Reader, Result, envelope};
use std::collections::{BTreeMap, BTreeSet};

/// What changes from one epoch to the next. Fields that are empty, or hold the value that
/// [`OsdMapIncremental::new`] gives them, change nothing.
#[derive(Clone, PartialEq, Debug)]
pub struct OsdMapIncremental {
    /// The cluster.
    pub fsid: Fsid,
    /// The epoch that this leads to, from the one before.
    pub epoch: Epoch,
    /// When that epoch was made.
    pub modified: Utime,
    /// Largest pool number ever used, or -1.
    pub new_pool_max: i64,
    /// Flags, or -1.
    pub new_flags: i32,
    /// A whole map instead of all the rest.
    pub fullmap: Bytes,
    /// A whole CRUSH map.
    pub crush: Bytes,
    /// Room for OSDs, or -1.
    pub new_max_osd: i32,
    /// Pools added or changed.
    pub new_pools: BTreeMap<PoolId, PgPool>,
    /// Pools named.
    pub new_pool_names: BTreeMap<PoolId, String>,
    /// Pools removed.
    pub old_pools: BTreeSet<PoolId>,
    /// OSDs that come up, with their public addresses.
    pub new_up_client: BTreeMap<OsdId, EntityAddrVec>,
    /// Bits to flip in OSDs' states; 0 stands for the bit "up".
    pub new_state: BTreeMap<OsdId, u32>,
    /// Reweights.
    pub new_weight: BTreeMap<OsdId, u32>,
    /// Temporary acting sets; an empty one removes.
    pub new_pg_temp: BTreeMap<PgId, Vec<OsdId>>,
    /// Temporary primaries; -1 removes.
    pub new_primary_temp: BTreeMap<PgId, OsdId>,
    /// Primary affinities.
    pub new_primary_affinity: BTreeMap<OsdId, u32>,
    /// Erasure code profiles added or changed.
    pub new_erasure_code_profiles: BTreeMap<String, BTreeMap<String, String>>,
    /// Erasure code profiles removed.
    pub old_erasure_code_profiles: Vec<String>,
    /// Placements made by hand.
    pub new_pg_upmap: BTreeMap<PgId, Vec<OsdId>>,
    /// Those undone.
    pub old_pg_upmap: BTreeSet<PgId>,
    /// Replacements of single OSDs.
    pub new_pg_upmap_items: BTreeMap<PgId, Vec<(OsdId, OsdId)>>,
    /// Those undone.
    pub old_pg_upmap_items: BTreeSet<PgId>,
    /// Primaries chosen by hand (since Reef).
    pub new_pg_upmap_primaries: BTreeMap<PgId, OsdId>,
    /// Those undone.
    pub old_pg_upmap_primaries: BTreeSet<PgId>,
    /// Snapshots removed.
    pub new_removed_snaps: BTreeMap<PoolId, IntervalSet>,
    /// Snapshots purged.
    pub new_purged_snaps: BTreeMap<PoolId, IntervalSet>,
    /// If not zero: when an OSD came up or went down.
    pub new_last_up_change: Utime,
    /// If not zero: when an OSD was marked in or out.
    pub new_last_in_change: Utime,
    /// Heartbeat addresses (cluster network) of OSDs that come up.
    pub new_hb_back_up: BTreeMap<OsdId, EntityAddrVec>,
    /// Heartbeat addresses (public network) of OSDs that come up.
    pub new_hb_front_up: BTreeMap<OsdId, EntityAddrVec>,
    /// Cluster addresses of OSDs that come up.
    pub new_up_cluster: BTreeMap<OsdId, EntityAddrVec>,
    /// OSDs known to be alive in an epoch.
    pub new_up_thru: BTreeMap<OsdId, Epoch>,
    /// Last clean intervals.
    pub new_last_clean_interval: BTreeMap<OsdId, (Epoch, Epoch)>,
    /// OSDs with data that is given up.
    pub new_lost: BTreeMap<OsdId, Epoch>,
    /// Identities of stores.
    pub new_uuid: BTreeMap<OsdId, Fsid>,
    /// More about OSDs.
    pub new_xinfo: BTreeMap<OsdId, OsdXinfo>,
    /// Addresses blocked, and until when.
    pub new_blocklist: BTreeMap<EntityAddr, Utime>,
    /// Addresses allowed again.
    pub old_blocklist: Vec<EntityAddr>,
    /// Networks blocked (since Quincy).
    pub new_range_blocklist: BTreeMap<EntityAddr, Utime>,
    /// Networks allowed again.
    pub old_range_blocklist: Vec<EntityAddr>,
    /// Obsolete.
    pub cluster_snapshot: String,
    /// Ratio, or negative.
    pub new_nearfull_ratio: f32,
    /// Ratio, or negative.
    pub new_full_ratio: f32,
    /// Ratio, or negative.
    pub new_backfillfull_ratio: f32,
    /// Clients must be of this release, unless unknown or [`Release::UNCHANGED`].
    pub new_require_min_compat_client: Release,
    /// OSDs must be of this release, unless [`Release::UNCHANGED`].
    pub new_require_osd_release: Release,
    /// OSD flags of CRUSH nodes; 0 removes.
    pub new_crush_node_flags: BTreeMap<i32, u32>,
    /// OSD flags of device classes; 0 removes.
    pub new_device_class_flags: BTreeMap<i32, u32>,
    /// A new stretch mode.
    pub new_stretch: Option<StretchMode>,
    /// Allows a certain kind of OSD (since Reef).
    pub mutate_allow_crimson: u8,
    /// Features by which this was encoded, as found when it was read.
    pub encode_features: u64,
    /// Checksum of the map that this leads to, encoded by the same features. `None` if the writer
    /// did not say.
    pub full_crc: Option<u32>,
}

impl Default for OsdMapIncremental {
    fn default() -> Self {
        OsdMapIncremental::new(Epoch(0))
    }
}

impl OsdMapIncremental {
    /// An increment to an epoch that changes nothing else.
    pub fn new(epoch: Epoch) -> Self {
        OsdMapIncremental {
            fsid: Fsid::default(),
            epoch,
            modified: Utime::ZERO,
            new_pool_max: -1,
            new_flags: -1,
            fullmap: Bytes::new(),
            crush: Bytes::new(),
            new_max_osd: -1,
            new_pools: BTreeMap::new(),
            new_pool_names: BTreeMap::new(),
            old_pools: BTreeSet::new(),
            new_up_client: BTreeMap::new(),
            new_state: BTreeMap::new(),
            new_weight: BTreeMap::new(),
            new_pg_temp: BTreeMap::new(),
            new_primary_temp: BTreeMap::new(),
            new_primary_affinity: BTreeMap::new(),
            new_erasure_code_profiles: BTreeMap::new(),
            old_erasure_code_profiles: Vec::new(),
            new_pg_upmap: BTreeMap::new(),
            old_pg_upmap: BTreeSet::new(),
            new_pg_upmap_items: BTreeMap::new(),
            old_pg_upmap_items: BTreeSet::new(),
            new_pg_upmap_primaries: BTreeMap::new(),
            old_pg_upmap_primaries: BTreeSet::new(),
            new_removed_snaps: BTreeMap::new(),
            new_purged_snaps: BTreeMap::new(),
            new_last_up_change: Utime::ZERO,
            new_last_in_change: Utime::ZERO,
            new_hb_back_up: BTreeMap::new(),
            new_hb_front_up: BTreeMap::new(),
            new_up_cluster: BTreeMap::new(),
            new_up_thru: BTreeMap::new(),
            new_last_clean_interval: BTreeMap::new(),
            new_lost: BTreeMap::new(),
            new_uuid: BTreeMap::new(),
            new_xinfo: BTreeMap::new(),
            new_blocklist: BTreeMap::new(),
            old_blocklist: Vec::new(),
            new_range_blocklist: BTreeMap::new(),
            old_range_blocklist: Vec::new(),
            cluster_snapshot: String::new(),
            new_nearfull_ratio: -1.0,
            new_full_ratio: -1.0,
            new_backfillfull_ratio: -1.0,
            new_require_min_compat_client: Release::UNCHANGED,
            new_require_osd_release: Release::UNCHANGED,
            new_crush_node_flags: BTreeMap::new(),
            new_device_class_flags: BTreeMap::new(),
            new_stretch: None,
            mutate_allow_crimson: 0,
            encode_features: 0,
            full_crc: None,
        }
    }

    /// The pool as this increment will leave it, to be changed further.
    pub fn pool_mut(&mut self, map: &OsdMap, id: PoolId) -> Option<&mut PgPool> {
        if !self.new_pools.contains_key(&id) {
            let pool = map.pool(id).filter(|_| !self.old_pools.contains(&id))?.clone();
            self.new_pools.insert(id, pool);
        }
        self.new_pools.get_mut(&id)
    }

    /// Flips states so that the OSD ends with these bits set or cleared.
    pub fn set_state_bits(&mut self, map: &OsdMap, osd: OsdId, bits: u32, on: bool) {
        let now = map.osd(osd).map_or(0, |o| o.state);
        let pending = self.new_state.get(&osd).copied().unwrap_or(0);
        let wrong = if on { !(now ^ pending) } else { now ^ pending } & bits;
        let flips = pending ^ wrong;
        if flips == 0 {
            self.new_state.remove(&osd);
        } else {
            self.new_state.insert(osd, flips);
        }
    }

    /// The CRUSH map as this increment will leave it.
    pub fn crush_after(&self, map: &OsdMap) -> Result<crush::CrushMap> {
        if self.crush.is_empty() {
            return Ok((*map.crush).clone());
        }
        crush::CrushMap::decode(&mut Reader::new(self.crush.clone()))
    }

    /// Replaces the CRUSH map.
    pub fn set_crush(&mut self, crush: &crush::CrushMap, f: Features) {
        self.crush = crush.to_bytes(f);
    }
}

fn put_addr_map(map: &BTreeMap<OsdId, EntityAddrVec>, all: bool, out: &mut BytesMut, f: Features) {
    out.put_u32_le(map.len() as u32);
    for (osd, addrs) in map {
        osd.encode(out, f);
        if all {
            addrs.encode(out, f);
        } else {
            put_one_addr(addrs, out, f);
        }
    }
}

impl Encode for OsdMapIncremental {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        let f = writable(f);
        let start = out.len();
        let mut at = 0;
        envelope(out, 8, 7, |out| {
            self.encode_client_part(out, f);
            self.encode_osd_part(out, f);
            at = out.len();
            out.put_u32_le(0);
            out.put_u32_le(self.full_crc.unwrap_or(0));
        });
        seal(out, start, at);
    }
}

impl OsdMapIncremental {
    fn encode_client_part(&self, out: &mut BytesMut, f: Features) {
        let mut v = version(f, [3, 5, 6, 8]);
        if v == 8
            && !(self.new_pg_upmap_primaries.is_empty() && self.old_pg_upmap_primaries.is_empty())
        {
            v = 9;
        }
        envelope(out, v, 1, |out| {
            self.fsid.encode(out, f);
            self.epoch.encode(out, f);
            self.modified.encode(out, f);
            self.new_pool_max.encode(out, f);
            self.new_flags.encode(out, f);
            self.fullmap.encode(out, f);
            self.crush.encode(out, f);
            self.new_max_osd.encode(out, f);
            self.new_pools.encode(out, f);
            self.new_pool_names.encode(out, f);
            self.old_pools.encode(out, f);
            put_addr_map(&self.new_up_client, v >= 7, out, f);
            if v >= 5 {
                self.new_state.encode(out, f);
            } else {
                // A peer with eight state bits does not see changes of the others.
                let seen = |s: u32| s == 0 || s as u8 != 0;
                let small: BTreeMap<OsdId, u8> = self
                    .new_state
                    .iter()
                    .filter(|(_, s)| seen(**s))
                    .map(|(o, s)| (*o, *s as u8))
                    .collect();
                small.encode(out, f);
            }
            self.new_weight.encode(out, f);
            self.new_pg_temp.encode(out, f);
            self.new_primary_temp.encode(out, f);
            self.new_primary_affinity.encode(out, f);
            self.new_erasure_code_profiles.encode(out, f);
            self.old_erasure_code_profiles.encode(out, f);
            if v >= 4 {
                self.new_pg_upmap.encode(out, f);
                self.old_pg_upmap.encode(out, f);
                self.new_pg_upmap_items.encode(out, f);
                self.old_pg_upmap_items.encode(out, f);
            }
            if v >= 6 {
                self.new_removed_snaps.encode(out, f);
                self.new_purged_snaps.encode(out, f);
            }
            if v >= 8 {
                self.new_last_up_change.encode(out, f);
                self.new_last_in_change.encode(out, f);
            }
            if v >= 9 {
                self.new_pg_upmap_primaries.encode(out, f);
                self.old_pg_upmap_primaries.encode(out, f);
            }
        });
    }

    fn encode_osd_part(&self, out: &mut BytesMut, f: Features) {
        let mut v = version(f, [2, 6, 6, 9]);
        if self.new_stretch.is_some() {
            v = v.max(10);
        }
        if !(self.new_range_blocklist.is_empty() && self.old_range_blocklist.is_empty()) {
            v = v.max(11);
        }
        if self.mutate_allow_crimson != 0 {
            v = v.max(12);
        }
        envelope(out, v, 1, |out| {
            put_addr_map(&self.new_hb_back_up, v >= 7, out, f);
            self.new_up_thru.encode(out, f);
            self.new_last_clean_interval.encode(out, f);
            self.new_lost.encode(out, f);
            put_by_addr(&self.new_blocklist, out, f);
            self.old_blocklist.encode(out, f);
            put_addr_map(&self.new_up_cluster, v >= 7, out, f);
            self.cluster_snapshot.encode(out, f);
            self.new_uuid.encode(out, f);
            self.new_xinfo.encode(out, f);
            put_addr_map(&self.new_hb_front_up, v >= 7, out, f);
            f.0.encode(out, f);
            if v >= 3 {
                self.new_nearfull_ratio.encode(out, f);
                self.new_full_ratio.encode(out, f);
                self.new_backfillfull_ratio.encode(out, f);
            }
            if v >= 6 {
                self.new_require_min_compat_client.encode(out, f);
                self.new_require_osd_release.encode(out, f);
            }
            if v >= 8 {
                self.new_crush_node_flags.encode(out, f);
            }
            if v >= 9 {
                self.new_device_class_flags.encode(out, f);
            }
            if v >= 10 {
                let s = self.new_stretch.unwrap_or_default();
                self.new_stretch.is_some().encode(out, f);
                s.bucket_count.encode(out, f);
                s.degraded.encode(out, f);
                s.recovering.encode(out, f);
                s.bucket.encode(out, f);
                s.enabled.encode(out, f);
            }
            if v >= 11 {
                put_by_addr(&self.new_range_blocklist, out, f);
                self.old_range_blocklist.encode(out, f);
            }
            if v >= 12 {
                self.mutate_allow_crimson.encode(out, f);
            }
        });
    }
}

impl Decode for OsdMapIncremental {
    fn decode(r: &mut Reader) -> Result<Self> {
        let whole = r.clone();
        let begin = r.position();
        let (struct_v, mut body) = r.envelope("OSDMap::Incremental", 8)?;
        if struct_v < 7 {
            return Err(DecodeError::TooOld { what: "OSDMap::Incremental", struct_v, oldest: 7 });
        }
        let mut inc = OsdMapIncremental::default();
        let (v, mut client) = body.envelope("OSDMap::Incremental client part", 9)?;
        inc.decode_client_part(v, &mut client)?;
        let (v, mut osd) = body.envelope("OSDMap::Incremental OSD part", 12)?;
        inc.decode_osd_part(v, &mut osd)?;
        if struct_v >= 8 {
            let len = r.position() - begin;
            let at = 6 + body.position();
            verify("OSDMap::Incremental crc", whole.peek().get(..len).unwrap_or(&[]), at)?;
            body.skip("OSDMap::Incremental crc", 4)?;
            inc.full_crc = Some(body.get()?);
        }
        Ok(inc)
    }
}

impl OsdMapIncremental {
    fn decode_client_part(&mut self, v: u8, r: &mut Reader) -> Result<()> {
        self.fsid = r.get()?;
        self.epoch = r.get()?;
        self.modified = r.get()?;
        self.new_pool_max = r.get()?;
        self.new_flags = r.get()?;
        self.fullmap = r.get()?;
        self.crush = r.get()?;
        self.new_max_osd = r.get()?;
        self.new_pools = r.get()?;
        self.new_pool_names = r.get()?;
        self.old_pools = r.get()?;
        self.new_up_client = r.get()?;
        self.new_state = if v >= 5 {
            r.get()?
        } else {
            r.get::<BTreeMap<OsdId, u8>>()?.into_iter().map(|(o, s)| (o, u32::from(s))).collect()
        };
        self.new_weight = r.get()?;
        self.new_pg_temp = r.get()?;
        self.new_primary_temp = r.get()?;
        if v >= 2 {
            self.new_primary_affinity = r.get()?;
        }
        if v >= 3 {
            self.new_erasure_code_profiles = r.get()?;
            self.old_erasure_code_profiles = r.get()?;
        }
        if v >= 4 {
            self.new_pg_upmap = r.get()?;
            self.old_pg_upmap = r.get()?;
            self.new_pg_upmap_items = r.get()?;
            self.old_pg_upmap_items = r.get()?;
        }
        if v >= 6 {
            self.new_removed_snaps = r.get()?;
            self.new_purged_snaps = r.get()?;
        }
        if v >= 8 {
            self.new_last_up_change = r.get()?;
            self.new_last_in_change = r.get()?;
        }
        if v >= 9 {
            self.new_pg_upmap_primaries = r.get()?;
            self.old_pg_upmap_primaries = r.get()?;
        }
        Ok(())
    }

    fn decode_osd_part(&mut self, v: u8, r: &mut Reader) -> Result<()> {
        self.new_hb_back_up = r.get()?;
        self.new_up_thru = r.get()?;
        self.new_last_clean_interval = r.get()?;
        self.new_lost = r.get()?;
        self.new_blocklist = r.get()?;
        self.old_blocklist = r.get()?;
        self.new_up_cluster = r.get()?;
        self.cluster_snapshot = r.get()?;
        self.new_uuid = r.get()?;
        self.new_xinfo = r.get()?;
        self.new_hb_front_up = r.get()?;
        self.encode_features =
            if v >= 2 { r.get()? } else { features::PGID64 | features::OSDMAP_ENC };
        if v >= 3 {
            self.new_nearfull_ratio = r.get()?;
            self.new_full_ratio = r.get()?;
        }
        if v >= 4 {
            self.new_backfillfull_ratio = r.get()?;
        }
        if v == 5 {
            let name: String = r.get()?;
            self.new_require_min_compat_client =
                Release::by_name(&name).unwrap_or(Release::UNCHANGED);
        }
        if v >= 6 {
            self.new_require_min_compat_client = r.get()?;
            self.new_require_osd_release = r.get()?;
        } else {
            let legacy = osdmap_flag::REQUIRE_JEWEL
                | osdmap_flag::REQUIRE_KRAKEN
                | osdmap_flag::REQUIRE_LUMINOUS;
            let flags = u32::try_from(self.new_flags).unwrap_or(0);
            self.new_require_osd_release = if flags & osdmap_flag::REQUIRE_LUMINOUS != 0 {
                self.new_flags = (flags & !legacy) as i32;
                Release::LUMINOUS
            } else if flags & osdmap_flag::REQUIRE_KRAKEN != 0 {
                Release::KRAKEN
            } else if flags & osdmap_flag::REQUIRE_JEWEL != 0 {
                Release::JEWEL
            } else {
                Release::UNKNOWN
            };
        }
        if v >= 8 {
            self.new_crush_node_flags = r.get()?;
        }
        if v >= 9 {
            self.new_device_class_flags = r.get()?;
        }
        if v >= 10 {
            let change: bool = r.get()?;
            let mut s = StretchMode {
                enabled: false,
                bucket_count: r.get()?,
                degraded: r.get()?,
                recovering: r.get()?,
                bucket: r.get()?,
            };
            s.enabled = r.get()?;
            self.new_stretch = change.then_some(s);
        }
        if v >= 11 {
            self.new_range_blocklist = r.get()?;
            self.old_range_blocklist = r.get()?;
        }
        if v >= 12 {
            self.mutate_allow_crimson = r.get()?;
        }
        Ok(())
    }
}
