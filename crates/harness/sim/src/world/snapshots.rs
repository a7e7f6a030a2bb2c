//! Snapshots that are made, read and removed.

use pg::MapView;
use types::{SnapId, SpgId};

use super::{Ev, MS, POOL, World};
use crate::history::Snapshot;
use crate::monitor::MonMsg;
use crate::request::Ask;
use crate::snaps::PoolSnaps;

/// Snapshots that there are at a time.
const LIVE: usize = 4;

impl World {
    /// The snapshots of the pool.
    pub(super) fn pool_snaps(&self) -> PoolSnaps {
        self.monitor.map().snaps.get(&POOL).cloned().unwrap_or_default()
    }

    /// An operator makes a snapshot, or removes one.
    pub(super) fn snapshots(&mut self) {
        if self.calm {
            return;
        }
        self.prune_snapshots();
        let live = self.pool_snaps().live;
        if self.rng.permille(self.scenario.snaps) {
            let stays: Vec<SnapId> =
                live.iter().copied().filter(|s| !self.leaving.contains(s)).collect();
            if stays.len() >= LIVE || !stays.is_empty() && self.rng.permille(400) {
                let snap = stays[self.rng.range(0, stays.len() as u64) as usize];
                self.remove_snapshot(snap);
            } else {
                self.after(0, Ev::Mon(MonMsg::MakeSnap(POOL)));
            }
        }
        let next = self.rng.range(50 * MS, 1_000 * MS);
        self.after(next, Ev::Snapshots);
    }

    fn remove_snapshot(&mut self, snap: SnapId) {
        self.leaving.insert(snap);
        self.after(0, Ev::Mon(MonMsg::RemoveSnap(POOL, snap)));
    }

    /// Some snapshots go when the calm begins; others stay, to be looked at in the end.
    pub(super) fn remove_some_snapshots(&mut self) {
        for snap in self.pool_snaps().live {
            if !self.leaving.contains(&snap) && self.rng.permille(500) {
                self.remove_snapshot(snap);
            }
        }
    }

    /// The monitors forget removed snapshots that the primaries of all groups say to be trimmed.
    fn prune_snapshots(&mut self) {
        let map = self.monitor.map().clone();
        let removed: Vec<SnapId> = map
            .removed_snaps(POOL)
            .iter()
            .flat_map(|(start, len)| (start..start + len).map(SnapId))
            .collect();
        for snap in removed {
            let trimmed = |pgid| {
                let primary = map.mapping(pgid).primary?;
                let pg = self.osds[primary.osd.0 as usize]
                    .pg(SpgId { pgid, shard: primary.shard })
                    .filter(|pg| pg.is_primary() && pg.is_active())?;
                Some(pg.info().purged_snaps.contains(snap.0))
            };
            if self
                .pgids()
                .into_iter()
                .filter(|p| p.pool == POOL)
                .all(|pgid| trimmed(pgid) == Some(true))
            {
                self.mark("snapshot forgotten");
                self.after(0, Ev::Mon(MonMsg::SnapPurged(POOL, snap)));
            }
        }
    }

    /// Notes which snapshots there are in the newest map.
    pub(super) fn note_snapshots(&mut self) {
        let (epoch, at, snaps) = (self.monitor.map().epoch, self.processed, self.pool_snaps());
        for known in &mut self.history.snaps {
            known.removed = !snaps.live.contains(&known.id);
        }
        let seen = self.history.snaps.last().map_or(SnapId(0), |s| s.id);
        if snaps.seq > seen {
            self.history.snaps.push(Snapshot { id: snaps.seq, epoch, at, removed: false });
            self.mark("snapshot made");
        }
    }

    /// What a client reads: the head, or a snapshot that its map has.
    pub(super) fn at_a_snapshot(&mut self, client: usize) -> Ask {
        let map = self.monitor.at(self.clients[client].epoch);
        let live = map.and_then(|m| m.snaps.get(&POOL).map(|s| s.live.clone())).unwrap_or_default();
        if live.is_empty() || !self.rng.permille(600) {
            return Ask::Read;
        }
        Ask::ReadAt(live[self.rng.range(0, live.len() as u64) as usize])
    }

    /// Whether all removed snapshots are trimmed, as primaries say.
    pub(super) fn all_trimmed(&self) -> bool {
        let map = self.monitor.map();
        let live = self.pool_snaps().live;
        let trimmed = |pgid| {
            let primary = map.mapping(pgid).primary?;
            let led = SpgId { pgid, shard: primary.shard };
            Some(self.osds[primary.osd.0 as usize].pg(led)?.snap_trim_queue().is_empty())
        };
        !self.leaving.iter().any(|s| live.contains(s))
            && self.pgids().into_iter().all(|pgid| trimmed(pgid) == Some(true))
    }
}
