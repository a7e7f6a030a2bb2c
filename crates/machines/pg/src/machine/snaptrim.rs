//! Removed snapshots with objects that are still there.

use types::{IntervalSet, SnapId};

use crate::action::Action;

use super::parts::snap_trim::{Stage, Trimming};
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
        // What the map does not list any more is purged everywhere: it is not asked for again.
        let keep = self.info.purged_snaps.intersection(&removed);
        if keep != self.info.purged_snaps {
            self.info.purged_snaps = keep;
            self.persist_all();
        }
        if !self.map.trims_snaps() {
            return;
        }
        if let Some((first, _)) = self.snap_trim_queue().iter().next() {
            let snap = SnapId(first);
            self.trimming = Some(Trimming { snap, stage: Stage::Waiting });
            self.actions.push_back(Action::SnapTrim(snap));
        }
    }

    /// The state of trimming this snapshot, if that is what goes on.
    fn trimming_of(&mut self, snap: SnapId) -> Option<&mut Trimming> {
        self.trimming.as_mut().filter(|t| t.snap == snap)
    }

    pub(super) fn handle_snap_trim_started(&mut self, snap: SnapId) {
        if let Some(t) = self.trimming_of(snap) {
            t.stage = Stage::Running;
        }
    }

    pub(super) fn handle_snap_trim_stopped(&mut self, snap: SnapId, damaged: bool) {
        match self.trimming_of(snap) {
            Some(t) if damaged => t.stage = Stage::Damaged,
            // The next map, or the end of recovery, starts it again.
            Some(_) => self.trimming = None,
            None => {}
        }
    }

    pub(super) fn handle_snap_trimmed(&mut self, snap: SnapId) {
        if self.phase != Phase::Active || self.trimming_of(snap).is_none() {
            return;
        }
        self.trimming = None;
        self.info.purged_snaps.union(&IntervalSet::from_iter([(snap.0, 1)]));
        self.persist_all();
        self.share_history();
        self.check_snap_trim();
    }
}
