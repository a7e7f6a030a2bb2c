//! Trimming the clones of removed snapshots, one after the other.

use pg::{Event, MapView, ObjectStatus, OpToken};
use types::{SnapId, SpgId};

use super::{Effect, Local, Osd};
use crate::bug::Bug;
use crate::disk::StoreOp;
use crate::snaps;

impl Osd {
    /// The turn of a PG to trim has come.
    pub(super) fn begin_trim(&mut self, pgid: SpgId, generation: u64, snap: SnapId) {
        if self.trims(pgid, generation, snap) {
            self.out.push(Effect::Later(pgid, Local::Trim(generation, snap)));
            self.feed(pgid, Event::SnapTrimStarted(snap));
        }
    }

    /// Whether this is what the PG does, in this interval.
    fn trims(&self, pgid: SpgId, generation: u64, snap: SnapId) -> bool {
        let hosted = self.pgs.get(&pgid).filter(|h| h.generation == generation && h.pg.is_active());
        hosted.is_some_and(|h| h.trimming == Some((snap, None)))
    }

    /// Trims the next clone of a snapshot, or finds that there is none.
    pub(super) fn trim_step(&mut self, pgid: SpgId, generation: u64, snap: SnapId) {
        if !self.trims(pgid, generation, snap) {
            return;
        }
        let again = Effect::Later(pgid, Local::Trim(generation, snap));
        let coll = &self.disk.state().colls[&pgid];
        let Some((row, clone)) = coll.first_of(snap).map(|(row, clone)| (row.clone(), clone))
        else {
            return self.purged(pgid, snap);
        };
        let (here, head) =
            (coll.objects.get(&clone).cloned(), coll.objects.get(&clone.head()).cloned());
        let hosted = self.pgs.get_mut(&pgid).expect("it trims");
        if hosted.executing.contains_key(&clone.head()) || hosted.pg.scrub_blocks(&clone.head()) {
            *self.marks.entry("trim waited").or_default() += 1;
            self.out.push(again);
            return;
        }
        let ready = |oid| {
            matches!(hosted.pg.object_status(oid), ObjectStatus::Ready | ObjectStatus::InFlight)
        };
        if !ready(&clone) || !ready(&clone.head()) {
            // Recovery goes first; the machine asks again.
            *self.marks.entry("trim left to recovery").or_default() += 1;
            hosted.trimming = None;
            return self.feed(pgid, Event::SnapTrimStopped { snap, damaged: false });
        }
        let at = hosted.pg.next_version();
        let map = self.newest.clone();
        let all = self.bug == Bug::TrimTakesAll;
        let removed = |s: SnapId| {
            all || s == snap
                || map.as_ref().is_some_and(|m| m.removed_snaps(pgid.pgid.pool).contains(s.0))
        };
        let plan =
            here.zip(head).and_then(|(here, head)| snaps::trim(&clone, &here, &head, at, removed));
        let Some(plan) = plan else {
            // A row that leads to nothing.
            *self.marks.entry("old row of a clone").or_default() += 1;
            let seq = self.disk.submit(vec![StoreOp::Unmap(pgid, row)], None);
            self.out.push(Effect::Flush(seq));
            self.out.push(again);
            return;
        };
        let goes = plan.stats.num_object_clones < 0;
        *self
            .marks
            .entry(if goes { "clone trimmed" } else { "clone kept for another snapshot" })
            .or_default() += 1;
        if plan.stats.num_whiteouts < 0 {
            *self.marks.entry("whiteout trimmed").or_default() += 1;
        }
        let (token, _) = self.propose(pgid, plan);
        if let Some(hosted) = self.pgs.get_mut(&pgid) {
            hosted.trimming = Some((snap, Some(token)));
        }
        self.drain(pgid);
    }

    /// A step of trimming is durable everywhere, if that is what was proposed.
    pub(super) fn trimmed(&mut self, pgid: SpgId, token: OpToken) {
        let Some(hosted) = self.pgs.get_mut(&pgid) else { return };
        let Some((snap, _)) = hosted.trimming.filter(|(_, t)| *t == Some(token)) else { return };
        hosted.trimming = Some((snap, None));
        let next = Local::Trim(hosted.generation, snap);
        if self.bug == Bug::PurgedEarly {
            return self.purged(pgid, snap);
        }
        self.out.push(Effect::Later(pgid, next));
    }

    fn purged(&mut self, pgid: SpgId, snap: SnapId) {
        *self.marks.entry("snapshot trimmed").or_default() += 1;
        if let Some(hosted) = self.pgs.get_mut(&pgid) {
            hosted.trimming = None;
        }
        self.feed(pgid, Event::SnapTrimmed(snap));
    }
}
