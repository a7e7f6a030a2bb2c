//! What must be true, whatever happens: one history, of which every member has a beginning.

use super::exec;
use super::world;
use crate::replica::{Machine, Row, Rows};
use bytes::Bytes;
use std::collections::BTreeMap;

/// A machine that keeps every proposal as a row, numbered.
#[derive(Default)]
pub struct Journal(pub Vec<Bytes>);

impl Machine for Journal {
    fn load(rows: &Rows) -> Result<Self, String> {
        let journal = Journal(rows.values().cloned().collect());
        world::with(|w| {
            w.oracle.borrow().check(&journal.0);
            let member = exec::here().map(|e| e.current());
            if w.has_opened(member.unwrap_or(exec::WORLD)) {
                w.mark("snapshot installed");
            }
        });
        Ok(journal)
    }

    fn apply(&mut self, proposal: &Bytes, changed: &mut Vec<Row>) -> Bytes {
        let n = self.0.len();
        world::with(|w| w.oracle.borrow_mut().applied(n, proposal));
        self.0.push(proposal.clone());
        changed.push((Bytes::copy_from_slice(&(n as u32).to_be_bytes()), Some(proposal.clone())));
        Bytes::copy_from_slice(&(n as u64).to_le_bytes())
    }
}

/// What became of a value that clients proposed.
#[derive(Default)]
struct Fate {
    /// How often it was proposed.
    asked: u64,
    /// Where it is, as its proposer was told.
    told: Vec<usize>,
    /// How often its proposer was told that the member does not lead. That says nothing: another
    /// may have the entry.
    refused: u64,
}

/// What was proposed, acknowledged and seen, and what each member may therefore show.
#[derive(Default)]
pub struct Oracle {
    history: Vec<Bytes>,
    values: BTreeMap<Bytes, Fate>,
    /// How much of the history was acknowledged or seen: each later read sees as much.
    floor: usize,
    pub answered: u64,
    pub reads: u64,
}

impl Oracle {
    /// A member applied a value, as number `n`.
    fn applied(&mut self, n: usize, value: &Bytes) {
        match self.history.get(n) {
            Some(known) => assert_eq!(known, value, "two histories: number {n} differs"),
            None => {
                assert_eq!(n, self.history.len(), "a member skipped a part of the history");
                self.history.push(value.clone());
            }
        }
    }

    /// A member's state is a beginning of the history.
    pub fn check(&self, state: &[Bytes]) {
        assert!(
            self.history.starts_with(state),
            "a member's state is not a beginning of the history"
        );
    }

    /// A value is about to be proposed.
    pub fn asked(&mut self, value: &Bytes) {
        self.values.entry(value.clone()).or_default().asked += 1;
    }

    /// A proposer was told that a value is there.
    pub fn acknowledged(&mut self, value: &Bytes, n: usize) {
        assert_eq!(self.history.get(n), Some(value), "what was acknowledged is not in the history");
        self.values.entry(value.clone()).or_default().told.push(n);
        self.floor = self.floor.max(n + 1);
        self.answered += 1;
    }

    /// A proposer was told that the member does not lead.
    pub fn refused(&mut self, value: &Bytes) {
        self.values.entry(value.clone()).or_default().refused += 1;
    }

    /// How much a read that begins now has to see.
    pub fn floor(&self) -> usize {
        self.floor
    }

    /// A read that began when the floor was there saw so much.
    pub fn read(&mut self, floor: usize, saw: usize) {
        assert!(
            saw >= floor,
            "a read saw {saw} entries, when {floor} had been acknowledged or seen"
        );
        self.floor = self.floor.max(saw);
        self.reads += 1;
    }

    /// The whole history.
    pub fn len(&self) -> usize {
        self.history.len()
    }

    /// At the end. How many values are there that no proposer was told of, and how many that were
    /// refused each time.
    pub fn judge(&self) -> (u64, u64) {
        let mut places: BTreeMap<&Bytes, Vec<usize>> = BTreeMap::new();
        for (n, value) in self.history.iter().enumerate() {
            places.entry(value).or_default().push(n);
        }
        let (mut untold, mut refused) = (0, 0);
        for (value, at) in &places {
            let fate = self.values.get(*value).expect("nobody proposed this value");
            assert!(
                at.len() as u64 <= fate.asked,
                "{value:?} is there {} times, and was proposed {}",
                at.len(),
                fate.asked
            );
            untold += u64::from(fate.told.is_empty());
            refused += u64::from(fate.refused == fate.asked);
        }
        for (value, fate) in &self.values {
            let mut told = fate.told.clone();
            told.sort_unstable();
            told.dedup();
            assert_eq!(
                told.len(),
                fate.told.len(),
                "two proposals of {value:?} were told of the same entry"
            );
        }
        (untold, refused)
    }
}
