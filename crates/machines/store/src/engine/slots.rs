//! Object records in memory.

use crate::onode::Onode;
use crate::types::{Coll, Key};
use rustc_hash::FxHashMap;

/// One object that is known to exist or known not to.
pub(super) struct Slot {
    pub coll: Coll,
    pub key: Key,
    pub onode: Option<Box<Onode>>,
    /// The period between two freezes in which it was changed; 0 if the tree has it as it is, or
    /// the layer that will be merged.
    changed: u64,
    hot: bool,
    weight: u32,
}

/// Most records that one round of trimming visits.
const TRIM_STEPS: usize = 4096;

/// The records, by name.
#[derive(Default)]
pub(super) struct Slots {
    index: FxHashMap<(Coll, Key), u32>,
    slots: Vec<Option<Slot>>,
    free: Vec<u32>,
    hand: usize,
    bytes: usize,
    /// Counts periods between two freezes.
    period: u64,
    /// Slots changed in this period, each once.
    dirty: Vec<u32>,
}

impl Slots {
    pub(super) fn find(&mut self, coll: Coll, key: &Key) -> Option<u32> {
        let i = *self.index.get(&(coll, key.clone()))?;
        self.get_mut(i).hot = true;
        Some(i)
    }

    pub(super) fn get(&self, i: u32) -> &Slot {
        self.slots[i as usize].as_ref().expect("a slot in use")
    }

    pub(super) fn get_mut(&mut self, i: u32) -> &mut Slot {
        self.slots[i as usize].as_mut().expect("a slot in use")
    }

    pub(super) fn insert(&mut self, coll: Coll, key: Key, onode: Option<Box<Onode>>) -> u32 {
        // A copy: the caller's key may be a slice of a whole message.
        let key = Key::copy_from_slice(&key);
        let weight = 200 + key.len() as u32 + onode.as_ref().map_or(0, |o| o.weight() as u32);
        self.bytes += weight as usize;
        let slot = Slot { coll, key: key.clone(), onode, changed: 0, hot: true, weight };
        let i = match self.free.pop() {
            Some(i) => {
                self.slots[i as usize] = Some(slot);
                i
            }
            None => {
                self.slots.push(Some(slot));
                (self.slots.len() - 1) as u32
            }
        };
        self.index.insert((coll, key), i);
        i
    }

    /// How many records have changed since the last freeze.
    pub(super) fn dirty(&self) -> usize {
        self.dirty.len()
    }

    /// Notes that a record changes, and that it is not frozen.
    pub(super) fn dirtied(&mut self, i: u32) {
        let period = self.period + 1;
        let before = std::mem::replace(&mut self.get_mut(i).changed, period);
        debug_assert!(
            before == 0 || before == period,
            "a frozen record is encoded before it changes"
        );
        if before != period {
            self.dirty.push(i);
        }
    }

    /// Sets aside what has changed, in constant time: those records are frozen until they are
    /// thawed.
    pub(super) fn freeze(&mut self) -> Vec<u32> {
        self.period += 1;
        std::mem::take(&mut self.dirty)
    }

    /// Frozen for the checkpoint under way and not encoded for it yet.
    pub(super) fn is_frozen(&self, i: u32) -> bool {
        (1..=self.period).contains(&self.get(i).changed)
    }

    pub(super) fn thaw(&mut self, i: u32) {
        self.get_mut(i).changed = 0;
    }

    /// Notes that the record has changed its size in memory, and says what that is about.
    pub(super) fn reweigh(&mut self, i: u32) -> usize {
        let slot = self.get_mut(i);
        let weight =
            200 + slot.key.len() as u32 + slot.onode.as_ref().map_or(0, |o| o.weight() as u32);
        let old = std::mem::replace(&mut slot.weight, weight);
        self.bytes = self.bytes + weight as usize - old as usize;
        weight as usize
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Rounds of [`Slots::trim`] that visit every record twice: once to cool it, once to drop it.
    pub(super) fn laps(&self) -> usize {
        2 * self.slots.len().div_ceil(TRIM_STEPS)
    }

    /// Drops clean records that were not used lately, until the budget is kept or a lap is done. No
    /// index into the slots may be held across this.
    pub(super) fn trim(&mut self, budget: usize) {
        let mut steps = self.slots.len().min(TRIM_STEPS);
        while self.bytes > budget && steps > 0 {
            steps -= 1;
            self.hand = (self.hand + 1) % self.slots.len();
            let Some(slot) = &mut self.slots[self.hand] else { continue };
            if slot.changed != 0 || std::mem::take(&mut slot.hot) {
                continue;
            }
            if let Some(slot) = self.slots[self.hand].take() {
                self.bytes -= slot.weight as usize;
                self.index.remove(&(slot.coll, slot.key));
                self.free.push(self.hand as u32);
            }
        }
    }
}
