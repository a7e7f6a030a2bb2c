//! The count of clones that removed snapshots still have; see [`crate::host_trim_count`].

use bytes::Bytes;
use pg::snap_mapper;
use std::collections::BTreeSet;
use types::{IntervalSet, ObjectId, SnapId};

/// What a row has to be read for, with the one by object.
pub(crate) const ROW: u64 = 256;

/// The snapshot of a row, or of the prefix of its rows.
pub(crate) fn snap_of(row: &[u8]) -> Option<u64> {
    let (tag, rest) = row.split_first()?;
    let number = rest.first_chunk::<8>().filter(|_| *tag == snap_mapper::BY_SNAP)?;
    Some(u64::from_be_bytes(*number))
}

/// The count, and how far it has come.
pub(crate) struct Clones {
    /// The removed snapshots that it is about.
    pub(crate) snaps: IntervalSet,
    /// Rows up to here are counted.
    pub(crate) upto: Bytes,
    pub(crate) count: u64,
    /// A page is read or queued.
    pub(crate) running: bool,
    /// A page is read. One that was queued in an earlier interval may come as well.
    pub(crate) reading: bool,
    /// Rows behind `upto` that came (or went) since.
    pub(crate) changed: Vec<(Bytes, bool)>,
    /// Snapshots were removed since: what the page says was made out without them.
    pub(crate) stale: bool,
}

impl Default for Clones {
    fn default() -> Self {
        Clones {
            snaps: IntervalSet::new(),
            upto: snap_mapper::snap_prefix(SnapId(0)),
            count: 0,
            running: false,
            reading: false,
            changed: Vec::new(),
            stale: false,
        }
    }
}

impl Clones {
    /// These are the removed snapshots now. What is counted stays, unless one came that is before
    /// what was.
    pub(crate) fn set_snaps(&mut self, snaps: IntervalSet) {
        let mut new = snaps.clone();
        new.subtract(&self.snaps);
        if let Some((first, _)) = new.iter().next() {
            if snap_mapper::snap_prefix(SnapId(first)) < self.upto {
                *self =
                    Clones { running: self.running, reading: self.reading, ..Clones::default() };
            }
            self.stale = true;
        }
        self.snaps = snaps;
    }

    /// Behind which row the next page begins; `None` if all are counted.
    pub(crate) fn next(&self) -> Option<Bytes> {
        let snap = snap_of(&self.upto)?;
        if self.snaps.contains(snap) {
            return Some(self.upto.clone());
        }
        let later = self.snaps.iter().find(|(start, len)| start + len > snap)?;
        Some(snap_mapper::snap_prefix(SnapId(later.0.max(snap))))
    }

    /// How many there are, as far as they are counted; and whether that is all.
    pub(crate) fn counted(&self) -> (u64, bool) {
        (self.count, self.next().is_none())
    }

    /// The row in which a clone of these snapshots counts.
    pub(crate) fn place(&self, oid: &ObjectId, snaps: &[SnapId]) -> Option<Bytes> {
        let first = snaps.iter().filter(|s| self.snaps.contains(s.0)).min()?;
        Some(snap_mapper::snap_row(*first, oid).0)
    }

    /// A clone's snapshots change.
    pub(crate) fn change(&mut self, oid: &ObjectId, old: &[SnapId], new: &[SnapId]) {
        if self.snaps.is_empty() {
            return;
        }
        let (before, after) = (self.place(oid, old), self.place(oid, new));
        if before == after {
            return;
        }
        for (row, comes) in before.into_iter().map(|r| (r, false)).chain(after.map(|r| (r, true))) {
            match comes {
                _ if row > self.upto => {
                    if self.reading {
                        self.changed.push((row, comes));
                    }
                }
                true => self.count += 1,
                false => self.count = self.count.saturating_sub(1),
            }
        }
    }

    /// A page is about to be read: behind which row. `None` if all are counted, or one is read.
    pub(crate) fn begin_page(&mut self) -> Option<Bytes> {
        if self.reading {
            return None;
        }
        self.changed.clear();
        self.stale = false;
        let next = self.next();
        (self.running, self.reading) = (next.is_some(), next.is_some());
        next
    }

    /// Rows of a page in order, and which of them count. Of changes since it was asked for, the
    /// page may tell or not.
    pub(crate) fn add_page(&mut self, rows: &[Bytes], mut counting: BTreeSet<Bytes>) {
        self.reading = false;
        if self.stale {
            return;
        }
        let removed = |row: &&Bytes| snap_of(row).is_some_and(|s| self.snaps.contains(s));
        let upto =
            match (rows.iter().take_while(removed).last(), rows.first().and_then(|r| snap_of(r))) {
                (Some(last), _) => last.clone(),
                // Rows of a snapshot that is there; behind it may be more.
                (None, Some(snap)) => snap_mapper::snap_prefix(SnapId(snap)),
                (None, None) => {
                    let end = self.snaps.iter().next_back().map_or(0, |(start, len)| start + len);
                    snap_mapper::snap_prefix(SnapId(end))
                }
            };
        for (row, comes) in self.changed.drain(..) {
            match comes {
                true => counting.insert(row),
                false => counting.remove(&row),
            };
        }
        self.count += counting.iter().filter(|row| **row <= upto).count() as u64;
        self.upto = self.upto.clone().max(upto);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use types::PoolId;

    fn clone(n: u8) -> ObjectId {
        ObjectId::with_hash(
            PoolId(1),
            Bytes::new(),
            Bytes::from(vec![n]),
            Bytes::new(),
            SnapId(u64::from(n) + 1),
            u32::from(n) * 77,
        )
    }

    /// Clones with their snapshots, as the store has them.
    #[derive(Default)]
    struct Model {
        clones: BTreeMap<u8, Vec<SnapId>>,
        queue: BTreeSet<u64>,
        counter: Clones,
        /// A page that was read and has not been added: its rows, and which of them count.
        page: Option<(Vec<Bytes>, BTreeSet<Bytes>)>,
    }

    #[derive(Clone, Debug)]
    enum Step {
        Change(u8, Vec<u64>),
        Remove(u64),
        Purge,
        Read,
        Add,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0u8..12, proptest::collection::btree_set(1u64..8, 0..4)).prop_map(|(n, s)| Step::Change(n, s.into_iter().collect())),
            2 => (1u64..8).prop_map(Step::Remove),
            1 => Just(Step::Purge),
            4 => Just(Step::Read),
            4 => Just(Step::Add),
        ]
    }

    impl Model {
        fn snaps(&self) -> IntervalSet {
            self.queue.iter().map(|s| (*s, 1)).collect()
        }

        fn left(&self) -> u64 {
            self.clones.values().filter(|s| s.iter().any(|s| self.queue.contains(&s.0))).count()
                as u64
        }

        fn read(&mut self) {
            let Some(after) = self.counter.begin_page() else { return };
            let all = self.clones.iter().flat_map(|(n, snaps)| {
                snaps.iter().map(|s| snap_mapper::snap_row(*s, &clone(*n)).0)
            });
            let all: BTreeSet<Bytes> = all.collect();
            let rows: Vec<Bytes> = all.into_iter().filter(|r| *r > after).take(3).collect();
            let places =
                self.clones.iter().filter_map(|(n, snaps)| self.counter.place(&clone(*n), snaps));
            let counting = places.filter(|r| rows.contains(r)).collect();
            self.page = Some((rows, counting));
        }

        fn add(&mut self) {
            if let Some((rows, counting)) = self.page.take() {
                self.counter.add_page(&rows, counting);
            }
        }

        fn take(&mut self, step: Step) {
            match step {
                Step::Change(n, snaps) => {
                    let new: Vec<SnapId> = snaps.into_iter().map(SnapId).collect();
                    let old = self.clones.insert(n, new.clone()).unwrap_or_default();
                    self.counter.change(&clone(n), &old, &new);
                }
                Step::Remove(s) => {
                    self.queue.insert(s);
                    self.counter.set_snaps(self.snaps());
                }
                // The first snapshot is trimmed: each of its clones loses all that are removed.
                Step::Purge => {
                    let Some(first) = self.queue.first().copied() else { return };
                    let of: Vec<u8> = self
                        .clones
                        .iter()
                        .filter(|(_, s)| s.contains(&SnapId(first)))
                        .map(|(n, _)| *n)
                        .collect();
                    for n in of {
                        let kept = self.clones[&n]
                            .iter()
                            .map(|s| s.0)
                            .filter(|s| !self.queue.contains(s))
                            .collect();
                        self.take(Step::Change(n, kept));
                    }
                    self.queue.remove(&first);
                    self.counter.set_snaps(self.snaps());
                }
                Step::Read => {
                    self.add();
                    self.read();
                }
                Step::Add => self.add(),
            }
        }
    }

    proptest! {
        /// Whatever changes while pages are read: in the end the count is right, and stays so.
        #[test]
        fn the_count_is_that_of_clones(steps in proptest::collection::vec(step(), 0..60), then in proptest::collection::vec(step(), 0..10)) {
            let mut m = Model::default();
            for s in steps {
                m.take(s);
            }
            for _ in 0..100 {
                m.take(Step::Read);
                m.take(Step::Add);
            }
            prop_assert_eq!(m.counter.counted(), (m.left(), true));
            for s in then.into_iter().filter(|s| matches!(s, Step::Change(..) | Step::Purge)) {
                m.take(s);
                prop_assert_eq!(m.counter.counted(), (m.left(), true));
            }
        }
    }
}
