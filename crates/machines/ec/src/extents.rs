//! Sets of bytes.

use smallvec::SmallVec;
use std::ops::Range;

/// Bytes of a shard, as ranges of offsets in order that do not touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extents(SmallVec<[Range<u64>; 2]>);

impl Extents {
    /// No byte.
    pub fn new() -> Extents {
        Extents::default()
    }

    /// Whether there is no byte.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many bytes there are.
    pub fn bytes(&self) -> u64 {
        self.0.iter().map(|r| r.end - r.start).sum()
    }

    /// The ranges in order.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.0.iter().cloned()
    }

    /// Adds bytes.
    pub fn insert(&mut self, new: Range<u64>) {
        if new.is_empty() {
            return;
        }
        let from = self.0.partition_point(|r| r.end < new.start);
        let to = self.0.partition_point(|r| r.start <= new.end);
        let mut joined = new;
        for r in self.0.drain(from..to) {
            joined = joined.start.min(r.start)..joined.end.max(r.end);
        }
        self.0.insert(from, joined);
    }

    /// Takes bytes away.
    pub fn remove(&mut self, gone: Range<u64>) {
        let mut left = SmallVec::new();
        for r in self.0.drain(..) {
            for part in [r.start..r.end.min(gone.start), r.start.max(gone.end)..r.end] {
                if !part.is_empty() && !gone.is_empty() {
                    left.push(part);
                }
            }
            if gone.is_empty() {
                left.push(r);
            }
        }
        self.0 = left;
    }

    /// The parts of a range that are not in the set.
    pub fn missing(&self, range: Range<u64>) -> Extents {
        let mut left = Extents::new();
        left.insert(range);
        for r in self.iter() {
            left.remove(r);
        }
        left
    }
}

impl From<Range<u64>> for Extents {
    fn from(range: Range<u64>) -> Extents {
        Extents::from_iter(std::iter::once(range))
    }
}

impl FromIterator<Range<u64>> for Extents {
    fn from_iter<I: IntoIterator<Item = Range<u64>>>(ranges: I) -> Extents {
        let mut set = Extents::new();
        ranges.into_iter().for_each(|r| set.insert(r));
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn it_is_a_set_of_bytes(
            steps in prop::collection::vec((any::<bool>(), 0u64..40, 0u64..12), 1..30),
            (at, len) in (0u64..40, 0u64..20),
        ) {
            let (mut set, mut model) = (Extents::new(), BTreeSet::new());
            for (add, start, len) in steps {
                let range = start..start + len;
                if add {
                    set.insert(range.clone());
                    model.extend(range);
                } else {
                    set.remove(range.clone());
                    model.retain(|b| !range.contains(b));
                }
                prop_assert_eq!(set.iter().flatten().collect::<Vec<_>>(),
                    model.iter().copied().collect::<Vec<_>>());
                prop_assert!(set.0.windows(2).all(|w| w[0].end < w[1].start));
                prop_assert_eq!(set.bytes(), model.len() as u64);
            }
            let missing: Vec<u64> = set.missing(at..at + len).iter().flatten().collect();
            let expected: Vec<u64> = (at..at + len).filter(|b| !model.contains(b)).collect();
            prop_assert_eq!(missing, expected);
        }
    }
}
