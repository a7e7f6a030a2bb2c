//! How many objects an OSD recovers at a time, over all PGs that it leads (Ceph:
//! `osd_recovery_max_active`).

use std::collections::{BTreeMap, VecDeque};

/// Gives out places. A PG asks for one when it has an object to recover, and gets it when there is
/// room, in the order of asking: with several PGs at work, each gets its part. What clients wait
/// for needs no place, but takes one from others.
#[derive(Debug)]
pub struct Places<T> {
    waiting: VecDeque<T>,
    groups: BTreeMap<T, Held>,
    total: usize,
}

/// What a PG has.
#[derive(Clone, Copy, Default, Debug)]
struct Held {
    /// Places with objects that are not begun.
    given: usize,
    /// Objects in recovery.
    active: usize,
}

impl<T> Default for Places<T> {
    fn default() -> Self {
        Places { waiting: VecDeque::new(), groups: BTreeMap::new(), total: 0 }
    }
}

impl<T: Copy + Ord> Places<T> {
    /// A PG wants a place. One that waits already keeps its turn.
    pub fn ask(&mut self, group: T) {
        if !self.waiting.contains(&group) {
            self.waiting.push_back(group);
        }
    }

    /// The next PG that gets a place, if there are fewer than so many objects under recovery.
    pub fn next(&mut self, most: usize) -> Option<T> {
        if self.total >= most.max(1) {
            return None;
        }
        let group = self.waiting.pop_front()?;
        self.change(group, |held| held.given += 1);
        Some(group)
    }

    /// A PG uses a place that it was given: what it begins now is told with [`Places::set_active`].
    pub fn used(&mut self, group: T) {
        self.change(group, |held| held.given = held.given.saturating_sub(1));
    }

    /// A PG recovers so many objects.
    pub fn set_active(&mut self, group: T, active: usize) {
        self.change(group, |held| held.active = active);
    }

    /// A PG is gone.
    pub fn leave(&mut self, group: T) {
        self.waiting.retain(|g| *g != group);
        self.change(group, |held| *held = Held::default());
    }

    /// Objects under recovery, or about to be.
    pub fn taken(&self) -> usize {
        self.total
    }

    fn change(&mut self, group: T, f: impl FnOnce(&mut Held)) {
        let held = self.groups.entry(group).or_default();
        self.total -= held.given + held.active;
        f(held);
        self.total += held.given + held.active;
        if held.given + held.active == 0 {
            self.groups.remove(&group);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_osd_recovers_so_many_objects_over_all_groups() {
        let mut p = Places::default();
        p.ask(1);
        p.ask(1);
        p.ask(2);
        assert_eq!((p.next(2), p.next(2), p.next(2)), (Some(1), Some(2), None));
        p.ask(3);
        p.ask(1);
        // The object of 1 is begun: the place stays taken until it is done.
        p.used(1);
        p.set_active(1, 1);
        assert_eq!((p.next(2), p.taken()), (None, 2));
        p.set_active(1, 0);
        assert_eq!((p.next(2), p.next(2)), (Some(3), None), "in the order of asking");
        // More places at once, and none is too few.
        assert_eq!((p.next(3), p.next(9)), (Some(1), None));
        p.leave(3);
        p.leave(2);
        p.used(1);
        assert_eq!(p.taken(), 0);
        p.ask(4);
        assert_eq!(p.next(0), Some(4));
    }

    #[test]
    fn what_clients_wait_for_takes_places_and_nothing_leaks() {
        let mut p = Places::default();
        p.set_active(1, 5);
        p.ask(2);
        assert_eq!(p.next(5), None);
        p.set_active(1, 4);
        assert_eq!(p.next(5), Some(2));
        // A place that leads to nothing, a PG that left before it used its own, and one that uses
        // none that it has.
        p.used(2);
        p.leave(1);
        p.used(3);
        assert_eq!((p.taken(), p.groups.len()), (0, 0));
        p.ask(2);
        p.leave(2);
        assert_eq!(p.next(5), None);
    }
}
