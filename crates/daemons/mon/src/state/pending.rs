use super::{Change, ClusterState, Update, diff};
use denc::{Decode, Encode, Features};
use std::collections::BTreeMap;
use types::{IntervalSet, MonMap, OsdMap, OsdMapIncremental, PoolId, Utime};

/// The batch that the leader is putting together.
///
/// Handlers read [`Self::state`] and [`Self::osd`], which already have the batch's earlier changes,
/// and add their own. The OSD map is changed in place; the incremental map is the difference that
/// is left when the batch closes, so that any number of changes makes one epoch.
#[derive(Debug)]
pub struct Pending {
    state: ClusterState,
    changes: Vec<Change>,
    /// The next OSD map, once there is a change for it. Its epoch is the next one.
    osd: Option<OsdMap>,
    removed_snaps: BTreeMap<PoolId, IntervalSet>,
    purged_snaps: BTreeMap<PoolId, IntervalSet>,
    now: Utime,
}

impl Pending {
    /// An empty batch on top of `state`.
    pub fn new(state: ClusterState, now: Utime) -> Self {
        Pending {
            state,
            changes: Vec::new(),
            osd: None,
            removed_snaps: BTreeMap::new(),
            purged_snaps: BTreeMap::new(),
            now,
        }
    }

    /// The leader's clock.
    pub fn now(&self) -> Utime {
        self.now
    }

    /// Moves the clock on.
    pub fn set_now(&mut self, now: Utime) {
        self.now = now;
    }

    /// The state with the batch's changes, except those of the OSD map; see [`Self::osd`].
    pub fn state(&self) -> &ClusterState {
        &self.state
    }

    /// The OSD map with the batch's changes.
    pub fn osd(&self) -> &OsdMap {
        self.osd.as_ref().unwrap_or_else(|| self.state.osd.map())
    }

    /// The OSD map to be changed. Fields that follow from an epoch (`up_from`, `down_at`, ...) are
    /// left alone: applying the difference sets them.
    pub fn osd_mut(&mut self) -> &mut OsdMap {
        let state = &self.state;
        let now = self.now;
        self.osd.get_or_insert_with(|| {
            let mut map = (**state.osd.map()).clone();
            map.epoch = map.epoch.next();
            map.modified = now;
            map
        })
    }

    /// The epoch that changes of this batch appear in.
    pub fn osd_epoch(&self) -> types::Epoch {
        self.state.osd.last().next()
    }

    /// The OSD map as it was before this batch.
    pub fn osd_before(&self) -> &OsdMap {
        self.state.osd.map()
    }

    /// Marks a snapshot as removed: OSDs delete its clones.
    pub fn remove_snap(&mut self, pool: PoolId, snap: u64) {
        self.osd_mut();
        self.removed_snaps.entry(pool).or_default().insert(snap, 1);
    }

    /// Whether a snapshot is removed by this batch already.
    pub fn removes_snap(&self, pool: PoolId, snap: u64) -> bool {
        self.removed_snaps.get(&pool).is_some_and(|s| s.contains(snap))
    }

    /// Marks snapshots as purged: no OSD has anything of them any more.
    pub fn purge_snaps(&mut self, pool: PoolId, snaps: &IntervalSet) {
        self.osd_mut();
        self.purged_snaps.entry(pool).or_default().union(snaps);
    }

    /// Adds a change. It must not be one of the OSD map.
    pub fn put(&mut self, change: Change) {
        debug_assert!(!matches!(change, Change::OsdMap(_)), "the OSD map is changed with osd_mut");
        if let Err(e) = self.state.apply(self.now, change.clone(), &mut Vec::new()) {
            tracing::error!("a change was not taken: {e}");
            return;
        }
        self.changes.push(change);
    }

    /// Changes the monitor map: the next epoch, with what `f` does to it.
    pub fn change_monmap(&mut self, f: impl FnOnce(&mut MonMap)) {
        let mut map = (*self.state.monmap).clone();
        map.epoch = map.epoch.next();
        map.last_changed = self.now;
        // They are those of one change.
        map.removed_ranks.clear();
        f(&mut map);
        self.put(Change::MonMap(Box::new(map)));
    }

    /// Whether there is nothing to propose.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.osd.is_none()
    }

    /// Closes the batch: returns what to propose (`None` if nothing changed after all) and goes on
    /// with an empty batch on top of it.
    pub fn close(&mut self) -> Option<Update> {
        let mut changes = std::mem::take(&mut self.changes);
        let (removed, purged) =
            (std::mem::take(&mut self.removed_snaps), std::mem::take(&mut self.purged_snaps));
        if let Some(mut next) = self.osd.take() {
            next.modified = self.now;
            // No epoch may have an upmap that it makes wrong.
            if !next.judges_upmaps_like(self.state.osd.map()) {
                let cleaned = next.clean_upmaps();
                if !cleaned.is_empty() {
                    tracing::info!("upmaps that do not hold any more: {cleaned:?}");
                }
            }
            if let Some(mut inc) = diff(self.state.osd.map(), &next, removed, purged) {
                inc.modified = self.now;
                match as_read(self.state.osd.map(), &inc) {
                    Ok(inc) => {
                        let change = Change::OsdMap(Box::new(inc));
                        match self.state.apply(self.now, change.clone(), &mut Vec::new()) {
                            Ok(()) => changes.push(change),
                            Err(e) => tracing::error!("a new OSD map was not taken: {e}"),
                        }
                    }
                    Err(e) => tracing::error!(epoch = inc.epoch.0, "OSD map not proposed: {e}"),
                }
            }
        }
        (!changes.is_empty()).then_some(Update { now: self.now, changes })
    }
}

/// An increment as its readers have it, with the checksum of the map that it makes of `base`: an
/// OSD that gets another one ends. What the encoding does not keep must not be in the leader's map
/// either. A map that is another one when it is read whole is refused: an OSD that starts reads it
/// whole, and would end with the next epoch.
fn as_read(base: &OsdMap, inc: &OsdMapIncremental) -> Result<OsdMapIncremental, String> {
    let made_of = |inc: &OsdMapIncremental| {
        let mut map = base.clone();
        map.apply_incremental(inc).map_err(|e| e.to_string()).map(|()| map)
    };
    let mut read =
        OsdMapIncremental::from_bytes(&inc.to_bytes(Features::ALL)).map_err(|e| e.to_string())?;
    let after = made_of(&read)?;
    if made_of(inc)? != after {
        tracing::error!(
            epoch = inc.epoch.0,
            "the encoding does not keep all of what changes in the OSD map; what it keeps is proposed"
        );
    }
    let (bytes, crc) = after.to_bytes_with_crc(Features::ALL);
    let whole = OsdMap::from_bytes(&bytes).map_err(|e| e.to_string())?;
    let found = whole.to_bytes_with_crc(Features::ALL).1;
    if found != crc {
        return Err(format!("its checksum is {crc}, and {found} after it was read whole"));
    }
    read.full_crc = Some(crc);
    Ok(read)
}

impl Pending {
    /// Whether the batch changes the OSD map.
    pub fn changes_osd_map(&self) -> bool {
        self.osd.is_some()
    }
}
