use super::OsdMapIncremental;
use super::map::{Osd, OsdMap};
use crate::Release;
use crate::rados::{osd_state, osdmap_flag};
use crate::{Epoch, OsdId, Utime};
use crush::CrushMap;
use denc::{Decode, DecodeError, Features, Reader};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Why an increment does not apply. The map is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OsdMapError {
    /// It belongs to another cluster.
    #[error("the increment is of another cluster")]
    OtherCluster,
    /// It starts from another epoch: ask for those between.
    #[error("the increment leads to epoch {to}, the map has epoch {have}")]
    Gap {
        /// Epoch of the map.
        have: Epoch,
        /// Epoch that the increment leads to.
        to: Epoch,
    },
    /// It names an OSD that the map has no room for, or asks for too much room.
    #[error("the increment is about osd.{0}, which the map has no room for")]
    NoRoom(i32),
    /// A map inside it is malformed.
    #[error("a map inside the increment is malformed")]
    Malformed(#[source] DecodeError),
    /// The result differs from what the monitor has: ask for the whole map.
    #[error("the resulting map has checksum {found:#x}, the monitor's {expected:#x}")]
    Crc {
        /// Checksum of the monitor's map.
        expected: u32,
        /// Checksum of ours.
        found: u32,
    },
}

type Result<T> = std::result::Result<T, OsdMapError>;

impl OsdMap {
    /// Makes room for so many OSDs (Ceph: `set_max_osd`).
    pub fn set_max_osd(&mut self, max: usize) {
        self.osds.resize(max, Osd::default());
        self.weights.resize(max, 0);
        if let Some(affinity) = &mut self.primary_affinity {
            affinity.resize(max, OsdMap::ONE);
        }
    }

    /// Moves the map on by one epoch.
    pub fn apply_incremental(&mut self, inc: &OsdMapIncremental) -> Result<()> {
        if inc.epoch != Epoch(1) && inc.fsid != self.fsid {
            return Err(OsdMapError::OtherCluster);
        }
        if Some(inc.epoch.0) != self.epoch.0.checked_add(1) {
            return Err(OsdMapError::Gap { have: self.epoch, to: inc.epoch });
        }
        if !inc.fullmap.is_empty() {
            *self = OsdMap::from_bytes(&inc.fullmap).map_err(OsdMapError::Malformed)?;
            return Ok(());
        }
        self.check_osds(inc)?;
        let crush = if inc.crush.is_empty() {
            None
        } else {
            Some(
                CrushMap::decode(&mut Reader::new(inc.crush.clone()))
                    .map_err(OsdMapError::Malformed)?,
            )
        };
        if inc.epoch == Epoch(1) {
            self.fsid = inc.fsid;
        }
        self.epoch = inc.epoch;
        self.modified = inc.modified;
        self.apply_flags(inc);
        if let Ok(max) = usize::try_from(inc.new_max_osd) {
            self.set_max_osd(max);
        }
        self.apply_pools(inc);
        self.apply_osds(inc);
        self.apply_placement(inc);
        self.apply_rest(inc);
        if let Some(crush) = crush {
            self.crush = Arc::new(crush);
            if self.require_osd_release >= Release::LUMINOUS {
                self.crush_version += 1;
            }
            let crush = &self.crush;
            self.device_class_flags.retain(|class, _| crush.class_names.contains(*class));
        }
        if let Some(stretch) = inc.new_stretch {
            self.stretch = stretch;
        }
        Ok(())
    }

    /// As [`OsdMap::apply_incremental`], and makes sure that the result is what the monitor has.
    /// Costs an encoding of the whole map. Returns that encoding.
    pub fn apply_incremental_checked(&mut self, inc: &OsdMapIncremental) -> Result<bytes::Bytes> {
        let mut next = self.clone();
        next.apply_incremental(inc)?;
        let (bytes, found) = next.to_bytes_with_crc(Features(inc.encode_features));
        if let Some(expected) = inc.full_crc.filter(|e| *e != found) {
            return Err(OsdMapError::Crc { expected, found });
        }
        *self = next;
        Ok(bytes)
    }

    /// Every OSD that the increment names must have room in the map.
    fn check_osds(&self, inc: &OsdMapIncremental) -> Result<()> {
        let max = usize::try_from(inc.new_max_osd).unwrap_or(self.osds.len());
        if max > OsdMap::MAX_OSD {
            return Err(OsdMapError::NoRoom(inc.new_max_osd));
        }
        let named = [
            last(&inc.new_up_client),
            last(&inc.new_state),
            last(&inc.new_weight),
            last(&inc.new_primary_affinity),
            last(&inc.new_up_cluster),
            last(&inc.new_up_thru),
            last(&inc.new_last_clean_interval),
            last(&inc.new_lost),
            last(&inc.new_uuid),
            last(&inc.new_xinfo),
        ];
        for (low, high) in named.into_iter().flatten() {
            if low.0 < 0 || usize::try_from(high.0).is_ok_and(|h| h >= max) {
                return Err(OsdMapError::NoRoom(if low.0 < 0 { low.0 } else { high.0 }));
            }
        }
        Ok(())
    }

    fn apply_flags(&mut self, inc: &OsdMapIncremental) {
        let Ok(flags) = u32::try_from(inc.new_flags) else { return };
        self.flags = flags;
        if flags & osdmap_flag::REQUIRE_KRAKEN != 0 {
            self.require_osd_release = self.require_osd_release.max(Release::KRAKEN);
        } else if flags & osdmap_flag::REQUIRE_JEWEL != 0 {
            self.require_osd_release = self.require_osd_release.max(Release::JEWEL);
        }
    }

    fn apply_pools(&mut self, inc: &OsdMapIncremental) {
        if inc.new_pool_max != -1 {
            self.pool_max = inc.new_pool_max as i32;
        }
        for (id, pool) in &inc.new_pools {
            let mut pool = pool.clone();
            pool.last_change = self.epoch;
            self.pools.insert(*id, pool);
        }
        self.new_removed_snaps = inc.new_removed_snaps.clone();
        self.new_purged_snaps = inc.new_purged_snaps.clone();
        for (pool, snaps) in &inc.new_removed_snaps {
            self.removed_snaps_queue.entry(*pool).or_default().union(snaps);
        }
        for (pool, snaps) in &inc.new_purged_snaps {
            if let Some(queue) = self.removed_snaps_queue.get_mut(pool) {
                queue.subtract(snaps);
                if queue.is_empty() {
                    self.removed_snaps_queue.remove(pool);
                }
            }
        }
        if !inc.new_last_up_change.is_zero() {
            self.last_up_change = inc.new_last_up_change;
        }
        if !inc.new_last_in_change.is_zero() {
            self.last_in_change = inc.new_last_in_change;
        }
        self.pool_names.extend(inc.new_pool_names.iter().map(|(id, name)| (*id, name.clone())));
        for id in &inc.old_pools {
            self.pools.remove(id);
            self.pool_names.remove(id);
        }
    }

    fn at(&mut self, id: OsdId) -> Option<&mut Osd> {
        self.osds.get_mut(usize::try_from(id.0).ok()?)
    }

    fn set_affinity(&mut self, id: OsdId, affinity: u32) {
        let max = self.osds.len();
        let all = self.primary_affinity.get_or_insert_with(|| vec![OsdMap::ONE; max]);
        if let Some(slot) = usize::try_from(id.0).ok().and_then(|i| all.get_mut(i)) {
            *slot = affinity;
        }
    }

    fn apply_osds(&mut self, inc: &OsdMapIncremental) {
        for (id, weight) in &inc.new_weight {
            if let Some(slot) = usize::try_from(id.0).ok().and_then(|i| self.weights.get_mut(i)) {
                *slot = *weight;
            }
            if *weight > 0
                && let Some(osd) = self.at(*id)
            {
                // An OSD with a weight exists; this is how a new one comes into being.
                osd.state |= osd_state::EXISTS;
                osd.state &= !(osd_state::AUTOOUT | osd_state::NEW);
                osd.xinfo.old_weight = 0;
            }
        }
        for (id, affinity) in &inc.new_primary_affinity {
            self.set_affinity(*id, *affinity);
        }
        for name in &inc.old_erasure_code_profiles {
            self.erasure_code_profiles.remove(name);
        }
        self.erasure_code_profiles.extend(inc.new_erasure_code_profiles.clone());
        let (epoch, modified) = (self.epoch, self.modified);
        for (id, bits) in &inc.new_state {
            let bits = if *bits == 0 { osd_state::UP } else { *bits };
            let Some(osd) = self.at(*id) else { continue };
            if osd.state & bits & osd_state::UP != 0 {
                osd.info.down_at = epoch;
                osd.xinfo.down_stamp = modified;
            }
            if osd.state & bits & osd_state::EXISTS != 0 {
                // The OSD goes away, and with it all that was known of it. Its weight stays.
                *osd = Osd::default();
                self.set_affinity(*id, OsdMap::ONE);
            } else {
                osd.state ^= bits;
            }
        }
        for (id, addrs) in &inc.new_up_client {
            let Some(osd) = self.at(*id) else { continue };
            osd.state |= osd_state::EXISTS | osd_state::UP;
            osd.state &= !osd_state::STOP;
            osd.client_addrs = addrs.clone();
            osd.hb_back_addrs = inc.new_hb_back_up.get(id).cloned().unwrap_or_default();
            osd.hb_front_addrs = inc.new_hb_front_up.get(id).cloned().unwrap_or_default();
            osd.info.up_from = epoch;
        }
        for (id, addrs) in &inc.new_up_cluster {
            if let Some(osd) = self.at(*id) {
                osd.cluster_addrs = addrs.clone();
            }
        }
        for (id, e) in &inc.new_up_thru {
            if let Some(osd) = self.at(*id) {
                osd.info.up_thru = *e;
            }
        }
        for (id, (begin, end)) in &inc.new_last_clean_interval {
            if let Some(osd) = self.at(*id) {
                (osd.info.last_clean_begin, osd.info.last_clean_end) = (*begin, *end);
            }
        }
        for (id, e) in &inc.new_lost {
            if let Some(osd) = self.at(*id) {
                osd.info.lost_at = *e;
            }
        }
        for (id, xinfo) in &inc.new_xinfo {
            if let Some(osd) = self.at(*id) {
                osd.xinfo = *xinfo;
            }
        }
        for (id, uuid) in &inc.new_uuid {
            if let Some(osd) = self.at(*id) {
                osd.uuid = *uuid;
            }
        }
    }

    fn apply_placement(&mut self, inc: &OsdMapIncremental) {
        for (pg, osds) in &inc.new_pg_temp {
            if osds.is_empty() {
                self.pg_temp.remove(pg);
            } else {
                self.pg_temp.insert(*pg, osds.clone());
            }
        }
        for (pg, osd) in &inc.new_primary_temp {
            if osd.0 == -1 {
                self.primary_temp.remove(pg);
            } else {
                self.primary_temp.insert(*pg, *osd);
            }
        }
        self.pg_upmap.extend(inc.new_pg_upmap.clone());
        self.pg_upmap.retain(|pg, _| !inc.old_pg_upmap.contains(pg));
        self.pg_upmap_items.extend(inc.new_pg_upmap_items.clone());
        self.pg_upmap_items.retain(|pg, _| !inc.old_pg_upmap_items.contains(pg));
        self.pg_upmap_primaries.extend(inc.new_pg_upmap_primaries.iter());
        self.pg_upmap_primaries.retain(|pg, _| !inc.old_pg_upmap_primaries.contains(pg));
    }

    fn apply_rest(&mut self, inc: &OsdMapIncremental) {
        let block = |list: &mut BTreeMap<_, Utime>, new: &BTreeMap<_, Utime>, old: &[_]| {
            // An address that is blocked already keeps its time.
            for (addr, until) in new {
                list.entry(*addr).or_insert(*until);
            }
            list.retain(|addr, _| !old.contains(addr));
        };
        block(&mut self.blocklist, &inc.new_blocklist, &inc.old_blocklist);
        block(&mut self.range_blocklist, &inc.new_range_blocklist, &inc.old_range_blocklist);
        let flags = |map: &mut BTreeMap<i32, u32>, new: &BTreeMap<i32, u32>| {
            for (id, bits) in new {
                if *bits == 0 {
                    map.remove(id);
                } else {
                    map.insert(*id, *bits);
                }
            }
        };
        flags(&mut self.crush_node_flags, &inc.new_crush_node_flags);
        flags(&mut self.device_class_flags, &inc.new_device_class_flags);
        self.cluster_snapshot = inc.cluster_snapshot.clone();
        self.cluster_snapshot_epoch =
            if inc.cluster_snapshot.is_empty() { Epoch(0) } else { inc.epoch };
        for (slot, new) in [
            (&mut self.nearfull_ratio, inc.new_nearfull_ratio),
            (&mut self.backfillfull_ratio, inc.new_backfillfull_ratio),
            (&mut self.full_ratio, inc.new_full_ratio),
        ] {
            if new >= 0.0 {
                *slot = new;
            }
        }
        if inc.new_require_min_compat_client > Release::UNKNOWN {
            self.require_min_compat_client = inc.new_require_min_compat_client;
        }
        if inc.new_require_osd_release.is_change() {
            self.require_osd_release = inc.new_require_osd_release;
            if self.require_osd_release >= Release::LUMINOUS {
                self.flags &= !(osdmap_flag::REQUIRE_JEWEL
                    | osdmap_flag::REQUIRE_KRAKEN
                    | osdmap_flag::REQUIRE_LUMINOUS);
                self.flags |= osdmap_flag::RECOVERY_DELETES;
            }
            if self.require_osd_release >= Release::NAUTILUS {
                self.flags |= osdmap_flag::PGLOG_HARDLIMIT;
            }
        }
        if inc.mutate_allow_crimson != 0 {
            self.allow_crimson = inc.mutate_allow_crimson == 1;
        }
    }
}

/// Smallest and largest OSD of a map by OSD.
fn last<T>(map: &BTreeMap<OsdId, T>) -> Option<(OsdId, OsdId)> {
    Some((*map.keys().next()?, *map.keys().next_back()?))
}
