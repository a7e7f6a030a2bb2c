//! Runs of inode numbers, each with a value: neighbours with the same value are one run.

use super::weight::slot;
use crate::types::Ino;
use std::collections::BTreeMap;

/// Numbers of one range belong to one owner by what they say: runs end at its border.
const RANGE_SHIFT: u32 = 40;

/// Runs of numbers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Runs<T> {
    /// First numbers, and for each the number behind the last one.
    map: BTreeMap<u64, (u64, T)>,
}

impl<T> Default for Runs<T> {
    fn default() -> Self {
        Runs { map: BTreeMap::new() }
    }
}

impl<T: Copy + Eq> Runs<T> {
    pub fn len(&self) -> usize {
        self.map.len()
    }

    pub fn bytes(&self) -> usize {
        self.map.len() * slot::<u64, (u64, T)>()
    }

    /// What a number has.
    pub fn get(&self, ino: Ino) -> Option<T> {
        if self.map.is_empty() {
            return None;
        }
        let (_, (end, value)) = self.map.range(..=ino.0).next_back()?;
        (ino.0 < *end).then_some(*value)
    }

    /// First numbers, how many each run has, and its value.
    pub fn iter(&self) -> impl Iterator<Item = (Ino, u64, T)> + '_ {
        self.map.iter().map(|(first, (end, value))| (Ino(*first), end - first, *value))
    }

    /// Gives so many numbers from `first` on a value, or none.
    pub fn set(&mut self, first: Ino, count: u64, value: Option<T>) {
        let (mut at, end) = (first.0, first.0.saturating_add(count));
        while at < end {
            let border = (at | ((1 << RANGE_SHIFT) - 1)).saturating_add(1);
            let to = end.min(border);
            self.cut(at, to);
            if let Some(value) = value {
                self.put(at, to, value);
            }
            at = to;
        }
    }

    /// Puts a run into the gap that it fits, and joins it with its neighbours.
    fn put(&mut self, mut first: u64, mut end: u64, value: T) {
        let same = |a: u64, b: u64| a >> RANGE_SHIFT == b >> RANGE_SHIFT;
        if let Some((before, (to, v))) = self.map.range(..first).next_back().map(|(k, v)| (*k, *v))
            && to == first
            && v == value
            && same(before, first)
        {
            first = before;
        }
        if let Some((to, v)) = self.map.get(&end).copied()
            && v == value
            && same(first, end)
        {
            self.map.remove(&end);
            end = to;
        }
        self.map.insert(first, (end, value));
    }

    /// Takes numbers from `first` up to `end` out.
    fn cut(&mut self, first: u64, end: u64) {
        if let Some((_, run)) = self.map.range_mut(..first).next_back()
            && run.0 > first
        {
            let (to, value) = *run;
            run.0 = first;
            if to > end {
                self.map.insert(end, (to, value));
            }
        }
        while let Some((at, (to, value))) = self.map.range(first..end).next().map(|(k, v)| (*k, *v))
        {
            self.map.remove(&at);
            if to > end {
                self.map.insert(end, (to, value));
            }
        }
    }

    /// Takes all runs with a value out.
    pub fn forget(&mut self, value: T) {
        self.map.retain(|_, (_, v)| *v != value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_what_single_numbers_would_be() {
        let mut state = 7u64;
        let mut next = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        let base = (1 << RANGE_SHIFT) - 40;
        for _ in 0..200 {
            let (mut runs, mut single) = (Runs::default(), BTreeMap::new());
            for _ in 0..30 {
                let (first, count) = (base + next(80), next(12));
                let value = [None, Some(1u8), Some(2)][next(3) as usize];
                runs.set(Ino(first), count, value);
                for n in first..first + count {
                    match value {
                        Some(value) => single.insert(n, value),
                        None => single.remove(&n),
                    };
                }
                for n in base..base + 100 {
                    assert_eq!(runs.get(Ino(n)), single.get(&n).copied(), "{n}");
                }
                let all: Vec<_> = runs.iter().collect();
                for pair in all.windows(2) {
                    let (a, b) = (pair[0], pair[1]);
                    let border = a.0.0 >> RANGE_SHIFT != b.0.0 >> RANGE_SHIFT;
                    assert!(a.0.0 + a.1 < b.0.0 || a.2 != b.2 || border, "{all:?}");
                    assert!(a.0.0 + a.1 <= b.0.0, "{all:?}");
                }
            }
        }
    }
}
