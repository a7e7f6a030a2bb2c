//! Which PGs may recover or backfill on an OSD (Ceph: `common/AsyncReserver.h`).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// What a PG does with an OSD while it has a reservation there. An OSD gives `osd_max_backfills`
/// reservations of each side, and a PG asks for them in this order: that of its primary, then those
/// of OSDs that are read, then those of OSDs that are written.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Side {
    /// The OSD leads the PG.
    Lead,
    /// Objects are read there.
    Source,
    /// The OSD has a copy that takes part in recovery, or one that is filled.
    Target,
}

/// A wish, or a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    priority: u8,
    backfill: bool,
    /// When it was asked for.
    since: u64,
}

/// A turn that is wanted or held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wish<T> {
    /// The one that wants or holds it.
    pub who: T,
    /// Its priority.
    pub priority: u8,
    /// It is for a backfill.
    pub backfill: bool,
}

/// What changed for a PG.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn<T> {
    /// His turn has come.
    Granted(T),
    /// It had a reservation, and must ask again: a PG with a higher priority needs it.
    Preempted(T),
}

/// Gives out a number of turns: to the highest priority first, then to the first that asked. A PG
/// with a higher priority takes the turn of the lowest.
#[derive(Debug)]
pub struct Reserver<T> {
    waiting: BTreeMap<T, Entry>,
    order: BTreeSet<(Reverse<u8>, u64, T)>,
    holding: BTreeMap<T, Entry>,
    asked: u64,
}

impl<T> Default for Reserver<T> {
    fn default() -> Self {
        Self {
            waiting: BTreeMap::new(),
            order: BTreeSet::new(),
            holding: BTreeMap::new(),
            asked: 0,
        }
    }
}

impl<T: Copy + Ord> Reserver<T> {
    /// A PG wants a turn. If it waits or has one already, its priority changes.
    pub fn ask(&mut self, who: T, priority: u8, backfill: bool) {
        if let Some(entry) = self.holding.get_mut(&who) {
            entry.priority = priority;
            return;
        }
        if self.waiting.get(&who).is_some_and(|e| e.priority == priority) {
            return;
        }
        self.leave(who);
        self.asked += 1;
        self.wait(who, Entry { priority, backfill, since: self.asked });
    }

    fn wait(&mut self, who: T, entry: Entry) {
        self.order.insert((Reverse(entry.priority), entry.since, who));
        self.waiting.insert(who, entry);
    }

    /// A PG is done, or does not want its reservation any more.
    pub fn leave(&mut self, who: T) {
        if let Some(e) = self.waiting.remove(&who) {
            self.order.remove(&(Reverse(e.priority), e.since, who));
        }
        self.holding.remove(&who);
    }

    /// Backfills that have a turn wait for it again, in their places. Returns them.
    pub fn recall_backfills(&mut self) -> Vec<T> {
        let recalled: Vec<(T, Entry)> =
            self.holding.iter().filter(|(_, e)| e.backfill).map(|(t, e)| (*t, *e)).collect();
        for (who, entry) in &recalled {
            self.holding.remove(who);
            self.wait(*who, *entry);
        }
        recalled.into_iter().map(|(who, _)| who).collect()
    }

    /// Those that have a turn, and those that wait, in order.
    pub fn wishes(&self) -> (Vec<Wish<T>>, Vec<Wish<T>>) {
        let wish = |who: T, e: &Entry| Wish { who, priority: e.priority, backfill: e.backfill };
        let waiting = |who: &T| Some(wish(*who, self.waiting.get(who)?));
        (
            self.holding.iter().map(|(who, e)| wish(*who, e)).collect(),
            self.order.iter().filter_map(|(_, _, who)| waiting(who)).collect(),
        )
    }

    /// How many have a turn.
    pub fn holding(&self) -> usize {
        self.holding.len()
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The next change, if there may be `most` turns, and backfills may have some. Ask again until
    /// there is none.
    pub fn next(&mut self, most: usize, backfills: bool) -> Option<Turn<T>> {
        let most = most.max(1);
        // Of the lowest priority, the one that asked last has lost least.
        let lowest = self.holding.iter().map(|(t, e)| (e.priority, Reverse(e.since), *t)).min();
        if self.holding.len() > most {
            let (_, _, who) = lowest?;
            self.holding.remove(&who);
            return Some(Turn::Preempted(who));
        }
        let may = |(_, _, who): &&(Reverse<u8>, u64, T)| {
            backfills || self.waiting.get(who).is_some_and(|e| !e.backfill)
        };
        let (Reverse(priority), since, who) = *self.order.iter().find(may)?;
        if self.holding.len() == most {
            let (low, _, victim) = lowest?;
            if priority <= low {
                return None;
            }
            self.holding.remove(&victim);
            return Some(Turn::Preempted(victim));
        }
        self.order.remove(&(Reverse(priority), since, who));
        let entry = self.waiting.remove(&who)?;
        self.holding.insert(who, entry);
        Some(Turn::Granted(who))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(r: &mut Reserver<u8>, most: usize, backfills: bool) -> Vec<Turn<u8>> {
        std::iter::from_fn(|| r.next(most, backfills)).collect()
    }

    #[test]
    fn the_highest_priority_goes_first_and_takes_the_turn_of_the_lowest() {
        let mut r = Reserver::default();
        for (who, priority) in [(1, 110), (2, 190), (3, 190), (4, 150)] {
            r.ask(who, priority, priority < 180);
        }
        assert_eq!(all(&mut r, 2, true), [Turn::Granted(2), Turn::Granted(3)]);
        r.leave(3);
        assert_eq!(all(&mut r, 2, true), [Turn::Granted(4)]);
        r.ask(5, 190, false);
        assert_eq!(all(&mut r, 2, true), [Turn::Preempted(4), Turn::Granted(5)]);
        // Equals do not take turns from each other.
        r.ask(6, 190, false);
        assert_eq!(all(&mut r, 2, true), []);
        let (hold, wait) = r.wishes();
        assert_eq!(hold.iter().map(|w| w.who).collect::<Vec<_>>(), [2, 5]);
        let shown = |w: &Wish<u8>| (w.who, w.priority, w.backfill);
        assert_eq!(wait.iter().map(shown).collect::<Vec<_>>(), [(6, 190, false), (1, 110, true)]);
        // An operator wants this one.
        r.ask(1, 254, true);
        assert_eq!(all(&mut r, 2, true), [Turn::Preempted(5), Turn::Granted(1)]);
        assert_eq!(all(&mut r, 1, true), [Turn::Preempted(2)]);
        r.leave(1);
        assert_eq!(
            (all(&mut r, 0, true), r.holding(), r.waiting()),
            (vec![Turn::Granted(6)], 1, 0),
            "one at least"
        );
    }

    #[test]
    fn without_room_only_recovery_goes_on() {
        let mut r = Reserver::default();
        r.ask(1, 110, true);
        r.ask(2, 190, false);
        assert_eq!(all(&mut r, 2, true), [Turn::Granted(2), Turn::Granted(1)]);
        assert_eq!(r.recall_backfills(), [1]);
        r.ask(3, 180, false);
        assert_eq!(all(&mut r, 2, false), [Turn::Granted(3)]);
        r.leave(2);
        assert_eq!(all(&mut r, 2, false), []);
        assert_eq!(all(&mut r, 2, true), [Turn::Granted(1)]);
        // A wish that is repeated keeps its place.
        for who in [7, 8, 7] {
            r.ask(who, 100, true);
        }
        r.leave(1);
        r.leave(3);
        assert_eq!(all(&mut r, 1, true), [Turn::Granted(7)]);
    }
}
