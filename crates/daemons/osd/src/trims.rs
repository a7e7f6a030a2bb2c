//! What is kept of trimming: options, which PGs trim, and how far each is.

use crate::client_op::Slot;
use bytes::Bytes;
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use types::{SnapId, SpgId};

/// Options of trimming.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TrimSettings {
    /// `osd_max_trimming_pgs`.
    pub groups: usize,
    /// `osd_pg_max_concurrent_snap_trims`.
    pub steps: usize,
    /// `osd_snap_trim_sleep`: between the end of a step and the next.
    pub sleep: Duration,
    /// `osd_snap_trim_cost`, in bytes.
    pub cost: u64,
    /// Make way for clients: nothing else does.
    pub gently: bool,
}

impl Default for TrimSettings {
    fn default() -> Self {
        TrimSettings { groups: 2, steps: 2, sleep: Duration::ZERO, cost: 1 << 20, gently: true }
    }
}

/// A step's place in the admission window, and what was when it began.
pub(crate) struct Pace {
    pub(crate) slot: Slot,
    pub(crate) begun: Instant,
    /// Requests of clients that had been started.
    pub(crate) clients: u64,
}

/// The PGs of an OSD that trim, and those that wait for it.
#[derive(Default)]
pub(crate) struct TrimTurns {
    pub(crate) trimming: Vec<SpgId>,
    pub(crate) waiting: VecDeque<SpgId>,
}

impl TrimTurns {
    /// A PG asks for its turn.
    pub(crate) fn ask(&mut self, pgid: SpgId) {
        if !self.waiting.contains(&pgid) && !self.trimming.contains(&pgid) {
            self.waiting.push_back(pgid);
        }
    }

    /// A PG is done, or does not want to any more.
    pub(crate) fn leave(&mut self, pgid: SpgId) {
        self.waiting.retain(|p| *p != pgid);
        self.trimming.retain(|p| *p != pgid);
    }

    /// How many trim.
    pub(crate) fn trimming(&self) -> usize {
        self.trimming.len()
    }

    /// The next PG that may begin.
    pub(crate) fn next(&mut self, most: usize) -> Option<SpgId> {
        if self.trimming.len() >= most.max(1) {
            return None;
        }
        let pgid = self.waiting.pop_front()?;
        self.trimming.push(pgid);
        Some(pgid)
    }
}

/// A snapshot that a PG trims.
pub(crate) struct Trimmer {
    pub(crate) snap: SnapId,
    /// Rows that were read and are not begun.
    pub(crate) found: VecDeque<(Bytes, Bytes)>,
    /// The last row that was read.
    pub(crate) last: Option<Bytes>,
    /// Whether this listing found anything since it began.
    pub(crate) any: bool,
    pub(crate) listing: bool,
    /// Steps under way or queued.
    pub(crate) steps: usize,
}

/// A step of trimming.
pub(crate) enum Step {
    /// Trims the clone of this row.
    Row(Bytes, Bytes),
    /// Reads rows after this one.
    List(Option<Bytes>),
    /// Others go on.
    Retire,
    /// Nothing is left.
    Done,
}

impl Trimmer {
    pub(crate) fn new(snap: SnapId) -> Self {
        Trimmer { snap, found: VecDeque::new(), last: None, any: false, listing: false, steps: 0 }
    }

    pub(crate) fn step(&mut self) -> Step {
        match self.found.pop_front() {
            Some((row, value)) => Step::Row(row, value),
            None if self.listing => Step::Retire,
            None => {
                self.listing = true;
                Step::List(self.last.clone())
            }
        }
    }

    /// What a listing found. It was at the end if that is less than a page.
    pub(crate) fn listed(&mut self, rows: Vec<(Bytes, Bytes)>) -> Step {
        self.listing = false;
        if let Some((row, _)) = rows.last() {
            self.last = Some(row.clone());
            self.any = true;
            self.found.extend(rows);
            return self.step();
        }
        if self.steps > 1 {
            return Step::Retire;
        }
        if !std::mem::take(&mut self.any) {
            return Step::Done;
        }
        self.last = None;
        self.listing = true;
        Step::List(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::PoolId;

    #[test]
    fn groups_take_turns() {
        let pg = |seed| SpgId::from(types::PgId { pool: PoolId(1), seed });
        let mut turns = TrimTurns::default();
        for seed in [1, 2, 3, 1] {
            turns.ask(pg(seed));
        }
        assert_eq!((turns.next(2), turns.next(2), turns.next(2)), (Some(pg(1)), Some(pg(2)), None));
        turns.ask(pg(1));
        turns.leave(pg(3));
        turns.leave(pg(2));
        assert_eq!(turns.next(2), None, "who left does not come, and who trims does not wait");
        turns.leave(pg(1));
        turns.ask(pg(1));
        assert_eq!(turns.next(0), Some(pg(1)), "one at least");
    }

    #[test]
    fn a_snapshot_is_trimmed_when_a_whole_listing_finds_nothing() {
        let row = |n: u8| (Bytes::from(vec![n]), Bytes::new());
        let mut t = Trimmer::new(SnapId(1));
        t.steps = 2;
        assert!(matches!(t.step(), Step::List(None)));
        assert!(matches!(t.step(), Step::Retire), "one lists, the other goes");
        t.steps = 1;
        assert!(matches!(t.listed(vec![row(1), row(2)]), Step::Row(r, _) if r == [1][..]));
        t.steps = 2;
        assert!(matches!(t.step(), Step::Row(r, _) if r == [2][..]));
        assert!(matches!(t.step(), Step::List(Some(r)) if r == [2][..]));
        assert!(matches!(t.listed(vec![]), Step::Retire), "the other step may still have its row");
        t.steps = 1;
        assert!(matches!(t.step(), Step::List(Some(_))));
        assert!(matches!(t.listed(vec![]), Step::List(None)), "from the beginning once more");
        assert!(matches!(t.listed(vec![]), Step::Done));
    }
}
