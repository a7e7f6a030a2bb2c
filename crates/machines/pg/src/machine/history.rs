//! Which states the machine was in, and for how long (Ceph: `PGStateHistory`, `PGRecoveryStats`).

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use types::{Epoch, Utime};

/// Stays that are kept.
const KEPT: usize = 32;

/// A state that was left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stay {
    /// The state.
    pub state: &'static str,
    /// When it was entered.
    pub entered: Utime,
    /// When it was left.
    pub left: Utime,
    /// The map by which it was left.
    pub epoch: Epoch,
}

/// All stays in a state together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StayTimes {
    /// How often it was entered.
    pub entered: u64,
    /// How often it was left.
    pub left: u64,
    /// How long the stays were.
    pub total: Duration,
    /// The shortest one.
    pub shortest: Duration,
    /// The longest one.
    pub longest: Duration,
}

impl StayTimes {
    /// These stays and others.
    pub fn add(&mut self, other: &StayTimes) {
        self.shortest = match (self.left, other.left) {
            (0, _) => other.shortest,
            (_, 0) => self.shortest,
            _ => self.shortest.min(other.shortest),
        };
        self.longest = self.longest.max(other.longest);
        self.entered += other.entered;
        self.left += other.left;
        self.total += other.total;
    }
}

/// The last stays, and all of them summed up.
#[derive(Clone, Debug, Default)]
pub struct StateHistory {
    stays: VecDeque<Stay>,
    times: BTreeMap<&'static str, StayTimes>,
}

impl StateHistory {
    /// The last states that were left, the earliest first.
    pub fn stays(&self) -> impl Iterator<Item = &Stay> {
        self.stays.iter()
    }

    /// What is known of each state.
    pub fn times(&self) -> &BTreeMap<&'static str, StayTimes> {
        &self.times
    }

    /// The state `stay` was left for `next`. Before the first state there is one without a name.
    pub(super) fn moved(&mut self, stay: Stay, next: &'static str) {
        self.times.entry(next).or_default().entered += 1;
        if stay.state.is_empty() {
            return;
        }
        let took = stay.left.since(stay.entered);
        let one = StayTimes { entered: 0, left: 1, total: took, shortest: took, longest: took };
        self.times.entry(stay.state).or_default().add(&one);
        if self.stays.len() == KEPT {
            self.stays.pop_front();
        }
        self.stays.push_back(stay);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stays_are_counted_and_the_last_ones_kept() {
        let mut h = StateHistory::default();
        let mut at = 100;
        let mut from = "";
        for (state, seconds) in
            [("a", 0), ("b", 3), ("a", 5), ("b", 1)].into_iter().cycle().take(80)
        {
            let (entered, left) = (Utime::new(at, 0), Utime::new(at + seconds, 0));
            h.moved(Stay { state: from, entered, left, epoch: Epoch(at) }, state);
            (at, from) = (at + seconds, state);
        }
        assert_eq!(h.stays().count(), KEPT);
        let a = &h.times()["a"];
        assert_eq!((a.entered, a.left), (40, 40));
        assert_eq!((a.shortest.as_secs(), a.longest.as_secs()), (1, 3));
        let b = &h.times()["b"];
        assert_eq!((b.entered, b.left), (40, 39));
        assert_eq!((b.shortest.as_secs(), b.longest.as_secs()), (0, 5));
        let mut sum = StayTimes::default();
        sum.add(b);
        sum.add(a);
        assert_eq!((sum.shortest, sum.longest), (b.shortest, b.longest));
        assert_eq!(sum.total, a.total + b.total);
    }
}
