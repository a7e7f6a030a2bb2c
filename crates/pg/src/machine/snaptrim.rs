//! Removed snapshots whose objects are still there.

use types::{IntervalSet, SnapId};

use crate::action::Action;

use super::{Pg, Phase};

impl Pg {
    /// Removed snapshots that are not trimmed yet.
    pub fn snap_trim_queue(&self) -> IntervalSet {
        let mut queue = self.map.removed_snaps(self.info.pgid.pool);
        queue.subtract(&self.info.purged_snaps);
        queue
    }

    /// Starts on the next snapshot, if the PG is clean (as in Ceph: recovery goes first).
    pub(super) fn check_snap_trim(&mut self) {
        if !self.clean || !self.is_active() || self.trimming.is_some() {
            return;
        }
        let removed = self.map.removed_snaps(self.info.pgid.pool);
        // What the map does not list any more is purged everywhere: nobody asks again.
        let keep = self.info.purged_snaps.intersection(&removed);
        if keep != self.info.purged_snaps {
            self.info.purged_snaps = keep;
            self.persist_all();
        }
        if let Some((first, _)) = self.snap_trim_queue().iter().next() {
            self.trimming = Some(SnapId(first));
            self.actions.push_back(Action::SnapTrim(SnapId(first)));
        }
    }

    pub(super) fn handle_snap_trimmed(&mut self, snap: SnapId) {
        if self.phase != Phase::Active || self.trimming != Some(snap) {
            return;
        }
        self.trimming = None;
        self.info.purged_snaps.union(&IntervalSet::from_iter([(snap.0, 1)]));
        self.persist_all();
        self.share_history();
        self.check_snap_trim();
    }
}
