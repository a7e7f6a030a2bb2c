//! What changes in the state when a monitor goes on alone because the others are lost for good.
//!
//! The others may have decided more than this monitor knows, and clients and OSDs may have seen it.
//! Nothing of that is known here, but nothing that was given out may be given out again with
//! another meaning. So every number that may have been seen outside goes on beyond what the others
//! can have reached: epochs of maps, global ids, numbers of secrets.
//!
//! *OSD maps* are followed one by one, so the epochs in between exist, and change nothing. Each has
//! the checksum of the result: an OSD that has another map of that number, of the lost monitors,
//! finds that this one does not follow on it, and ends. Clients do not look at checksums. The last
//! of these maps is a whole one, with which all have the same again. In it all OSDs are down: those
//! that live boot, so that groups begin a new interval at the same epoch everywhere.

use super::{Change, ClusterState, Pending, RowWriter, diff};
use crate::osd_state;
use crate::replica::Row;
use denc::{Encode, Features};
use types::{Epoch, LogEntry, OsdId, OsdMap, OsdMapIncremental, Utime};

/// By how much numbers go on: epochs of maps, versions of the configuration, numbers of secrets.
pub const SKIPPED: u32 = 1000;
/// By how much global ids go on. Monitors take them by ten thousands.
const SKIPPED_GLOBAL_IDS: u64 = 10_000_000;

impl ClusterState {
    /// Makes `name` the only monitor; see the module. Reports the rows to write, later ones over
    /// earlier ones.
    pub fn rescue(&mut self, name: &str, now: Utime) -> Result<Vec<Row>, String> {
        let mut next = self.clone();
        let mut rows = Vec::new();
        next.rescued = u64::from(now.sec).max(self.rescued + 1);
        RowWriter(&mut rows).put("rescued", b"", &next.rescued);
        let lost = next.leave_alone(name, now)?;
        for change in next.skipping(name, now, &lost) {
            next.apply(now, change, &mut rows)?;
        }
        let skipped = u64::from(SKIPPED);
        next.config_version += skipped;
        next.kv_version += skipped;
        next.put_counters(&mut RowWriter(&mut rows));
        RowWriter(&mut rows).put("monmap", b"", &*next.monmap);
        next.skip_osd_maps(now, &mut rows)?;
        *self = next;
        Ok(rows)
    }

    /// Learns the next OSD map from an OSD that has it.
    pub fn learn_osd_map(&mut self, map: &OsdMap, now: Utime) -> Result<Vec<Row>, String> {
        let base = self.osd.map().clone();
        if map.fsid != base.fsid {
            return Err(format!("OSD map {} is of another cluster", map.epoch));
        }
        if map.epoch != base.epoch.next() {
            return Err(format!("OSD map {} does not follow on {}", map.epoch, base.epoch));
        }
        // As those that were lost made it, so that pools that it makes or removes are noted.
        let made = diff(&base, map, map.new_removed_snaps.clone(), map.new_purged_snaps.clone());
        let mut inc = made.unwrap_or_default();
        (inc.fsid, inc.epoch, inc.modified) = (map.fsid, map.epoch, map.modified);
        let crc = map.to_bytes_with_crc(Features::ALL).1;
        inc.full_crc = Some(crc);
        if after(&base, &inc)?.to_bytes_with_crc(Features::ALL).1 != crc {
            inc.fullmap = map.to_bytes(types::features::SQUID);
        }
        let (mut next, mut rows) = (self.clone(), Vec::new());
        next.apply(now, Change::OsdMap(Box::new(inc)), &mut rows)?;
        if **next.osd.map() != *map {
            return Err(format!("OSD map {} cannot be made from the one before it", map.epoch));
        }
        *self = next;
        Ok(rows)
    }

    /// Takes all other monitors out of the map, and says which.
    fn leave_alone(&mut self, name: &str, now: Utime) -> Result<Vec<String>, String> {
        let mut map = (*self.monmap).clone();
        if !map.mon_info.contains_key(name) {
            return Err(format!("its monitor map (epoch {}) has no mon.{name}", map.epoch));
        }
        let lost: Vec<String> = map.mon_info.keys().filter(|n| *n != name).cloned().collect();
        for n in &lost {
            map.remove(n);
        }
        map.removed_ranks.clear();
        map.disallowed_leaders.clear();
        map.epoch = Epoch(map.epoch.0.saturating_add(SKIPPED));
        map.last_changed = now;
        self.monmap = map.into();
        Ok(lost)
    }

    /// What of this is a matter of usual changes.
    fn skipping(&self, name: &str, now: Utime, lost: &[String]) -> Vec<Change> {
        let later = |e: Epoch| Epoch(e.0.saturating_add(SKIPPED));
        let (mut mgr, mut fs, mut services) =
            ((*self.mgr).clone(), (*self.fs).clone(), (*self.services).clone());
        mgr.epoch = later(mgr.epoch);
        fs.epoch = later(fs.epoch);
        services.epoch = later(services.epoch);
        let rank = self.monmap.rank_of(name).and_then(|r| i64::try_from(r).ok()).unwrap_or(0);
        let line = LogEntry {
            name: types::log::LogName { kind: types::EntityType::MON, id: name.to_owned() },
            rank: types::EntityName::new(types::EntityType::MON, rank),
            addrs: self
                .monmap
                .mon_info
                .get(name)
                .map(|i| i.public_addrs.clone())
                .unwrap_or_default(),
            stamp: now,
            seq: self.log.next(),
            prio: types::LogPriority::WARN,
            msg: format!(
                "mon.{name} goes on alone: {} given up as lost, OSD maps after {} are unknown",
                lost.join(","),
                self.osd.last()
            ),
            channel: "cluster".into(),
        };
        let mut out = vec![
            Change::MgrMap(Box::new(mgr)),
            Change::FsMap(Box::new(fs)),
            Change::ServiceMap(Box::new(services)),
            Change::GlobalIds(self.global_id_max + SKIPPED_GLOBAL_IDS),
            Change::Rotate(self.auth.skip_secret_ids(SKIPPED.into())),
            Change::Log(vec![line]),
        ];
        out.extend(lost.iter().map(|n| Change::MonMetadata(n.clone(), None)));
        out
    }

    fn skip_osd_maps(&mut self, now: Utime, rows: &mut Vec<Row>) -> Result<(), String> {
        let same = |map: &OsdMap| OsdMapIncremental {
            fsid: map.fsid,
            epoch: map.epoch.next(),
            modified: now,
            ..Default::default()
        };
        for _ in 1..SKIPPED {
            let mut inc = same(self.osd.map());
            inc.full_crc = Some(after(self.osd.map(), &inc)?.to_bytes_with_crc(Features::ALL).1);
            self.apply(now, Change::OsdMap(Box::new(inc)), rows)?;
        }
        let mut p = Pending::new(self.clone(), now);
        for osd in (0..self.osd.map().max_osd()).map(OsdId) {
            osd_state::mark_down(&mut p, osd);
        }
        let down = p.close().and_then(|u| {
            u.changes.into_iter().find_map(|c| match c {
                Change::OsdMap(inc) => Some(*inc),
                _ => None,
            })
        });
        let base = self.osd.map().clone();
        let map = after(&base, &down.unwrap_or_else(|| same(&base)))?;
        let mut whole = same(&base);
        whole.fullmap = map.to_bytes(types::features::SQUID);
        whole.full_crc = Some(after(&base, &whole)?.to_bytes_with_crc(Features::ALL).1);
        self.apply(now, Change::OsdMap(Box::new(whole)), rows)
    }
}

fn after(map: &OsdMap, inc: &OsdMapIncremental) -> Result<OsdMap, String> {
    let mut map = map.clone();
    map.apply_incremental(inc).map_err(|e| format!("osdmap {}: {e}", inc.epoch))?;
    Ok(map)
}
