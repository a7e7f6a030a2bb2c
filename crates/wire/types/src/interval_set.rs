//! Sets of numbers kept as ranges.

use bytes::BytesMut;
use denc::{Decode, DecodeError, Encode, Features, Reader, Result};
use std::collections::BTreeMap;
use std::fmt;

/// Disjoint ranges of `u64`, as start and length (Ceph: `interval_set<T>`,
/// `include/interval_set.h`; on the wire a map from start to length). Neighbouring ranges are
/// merged; no range is empty.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct IntervalSet {
    ranges: BTreeMap<u64, u64>,
}

impl IntervalSet {
    /// The empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether nothing is in the set.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The ranges as (start, length), in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().map(|(&start, &len)| (start, len))
    }

    /// How many ranges there are.
    pub fn range_count(&self) -> usize {
        self.ranges.len()
    }

    /// How many numbers are in the set, saturating.
    pub fn size(&self) -> u64 {
        self.ranges.values().fold(0, |sum, &len| sum.saturating_add(len))
    }

    /// Whether `n` is in the set.
    pub fn contains(&self, n: u64) -> bool {
        self.ranges.range(..=n).next_back().is_some_and(|(&start, &len)| n - start < len)
    }

    /// Whether any of `start .. start + len` is in the set.
    pub fn intersects(&self, start: u64, len: u64) -> bool {
        let last = match len {
            0 => return false,
            _ => start.saturating_add(len - 1),
        };
        self.ranges
            .range(..=last)
            .next_back()
            .is_some_and(|(&s, &l)| s.saturating_add(l - 1) >= start)
    }

    /// Adds `start .. start + len`; parts that are there already stay. The range is cut at
    /// `u64::MAX`.
    pub fn insert(&mut self, start: u64, len: u64) {
        let len = len.min(u64::MAX - start);
        if len == 0 {
            return;
        }
        let (mut low, mut high) = (start, start + len);
        // Everything that begins at or before the end and ends at or after the start melts in.
        while let Some((&s, &l)) = self.ranges.range(..=high).next_back() {
            if s + l < low {
                break;
            }
            low = low.min(s);
            high = high.max(s + l);
            self.ranges.remove(&s);
        }
        self.ranges.insert(low, high - low);
    }

    /// Removes `start .. start + len`; parts that are not there are ignored.
    pub fn remove(&mut self, start: u64, len: u64) {
        let end = start.saturating_add(len);
        if start == end {
            return;
        }
        while let Some((&s, &l)) = self.ranges.range(..end).next_back() {
            if s + l <= start {
                break;
            }
            self.ranges.remove(&s);
            if s < start {
                self.ranges.insert(s, start - s);
            }
            if s + l > end {
                self.ranges.insert(end, s + l - end);
            }
        }
    }

    /// Adds every range of `other`.
    pub fn union(&mut self, other: &IntervalSet) {
        for (start, len) in other.iter() {
            self.insert(start, len);
        }
    }

    /// Removes every range of `other`.
    pub fn subtract(&mut self, other: &IntervalSet) {
        for (start, len) in other.iter() {
            self.remove(start, len);
        }
    }

    /// What is in both sets.
    pub fn intersection(&self, other: &IntervalSet) -> IntervalSet {
        let mut both = self.clone();
        let mut outside = self.clone();
        outside.subtract(other);
        both.subtract(&outside);
        both
    }
}

impl FromIterator<(u64, u64)> for IntervalSet {
    fn from_iter<I: IntoIterator<Item = (u64, u64)>>(ranges: I) -> Self {
        let mut set = IntervalSet::new();
        for (start, len) in ranges {
            set.insert(start, len);
        }
        set
    }
}

impl Encode for IntervalSet {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        self.ranges.encode(out, f);
    }
}

impl Decode for IntervalSet {
    /// Ranges must be disjoint and in order, as every writer leaves them.
    fn decode(r: &mut Reader) -> Result<Self> {
        let n = r.count("interval set", 16)?;
        let mut ranges = BTreeMap::new();
        let mut end = 0u64;
        for i in 0..n {
            let (start, len): (u64, u64) = r.get()?;
            let sorted = i == 0 || start >= end;
            match start.checked_add(len) {
                Some(next) if sorted && len > 0 => end = next,
                _ => return Err(DecodeError::Invalid { what: "interval", found: start }),
            }
            ranges.insert(start, len);
        }
        Ok(IntervalSet { ranges })
    }
}

impl fmt::Display for IntervalSet {
    /// `[start~length,...]` in hexadecimal, as sets of snapshots are shown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, (start, len)) in self.iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            write!(f, "{comma}{start:x}~{len:x}")?;
        }
        f.write_str("]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        /// A set of single numbers is the dumb twin.
        #[test]
        fn agrees_with_a_plain_set(ops in prop::collection::vec((any::<bool>(), 0u64..60, 0u64..20), 0..40)) {
            let mut set = IntervalSet::new();
            let mut twin = BTreeSet::new();
            for (add, start, len) in ops {
                if add {
                    set.insert(start, len);
                    twin.extend(start..start + len);
                } else {
                    set.remove(start, len);
                    twin.retain(|n| !(start..start + len).contains(n));
                }
                prop_assert_eq!(set.intersects(start, len), (start..start + len).any(|n| twin.contains(&n)));
            }
            prop_assert_eq!(set.size(), twin.len() as u64);
            for n in 0..90 {
                prop_assert_eq!(set.contains(n), twin.contains(&n));
            }
            let ranges: Vec<_> = set.iter().collect();
            for pair in ranges.windows(2) {
                prop_assert!(pair[0].0 + pair[0].1 < pair[1].0, "neighbours are merged");
            }
            prop_assert_eq!(IntervalSet::from_bytes(&set.to_bytes(Features::ALL)).unwrap(), set);
        }
    }

    #[test]
    fn overlapping_ranges_on_the_wire_are_refused() {
        let bytes = vec![(1u64, 5u64), (3, 1)].to_bytes(Features::ALL);
        assert!(IntervalSet::from_bytes(&bytes).is_err());
        let bytes = vec![(u64::MAX, 5u64)].to_bytes(Features::ALL);
        assert!(IntervalSet::from_bytes(&bytes).is_err());
    }

    #[test]
    fn shown_in_hexadecimal() {
        assert_eq!(IntervalSet::from_iter([(1, 2), (31, 1)]).to_string(), "[1~2,1f~1]");
    }
}
