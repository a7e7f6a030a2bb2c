//! What is to be written, and since when.

use crate::types::Batch;
use std::collections::{BTreeMap, BTreeSet};

/// Things with the first batch of the log that has a change of them. The oldest is found without a
/// look at the others: there may be ten thousands, and every batch asks for it.
#[derive(Clone, Debug)]
pub(crate) struct Since<K> {
    batches: BTreeMap<K, Batch>,
    order: BTreeSet<(Batch, K)>,
}

impl<K: Ord> Default for Since<K> {
    fn default() -> Since<K> {
        Since { batches: BTreeMap::new(), order: BTreeSet::new() }
    }
}

impl<K: Ord + Copy> Since<K> {
    /// Has a thing changed since this batch, whatever it was.
    pub fn insert(&mut self, key: K, batch: Batch) -> Option<Batch> {
        let old = self.batches.insert(key, batch);
        if let Some(old) = old {
            self.order.remove(&(old, key));
        }
        self.order.insert((batch, key));
        old
    }

    /// Has a thing changed since this batch, or since an older one that it has.
    pub fn note(&mut self, key: K, batch: Batch) {
        if self.get(&key).is_none_or(|old| batch < old) {
            self.insert(key, batch);
        }
    }

    /// Has a thing at rest.
    pub fn remove(&mut self, key: &K) -> Option<Batch> {
        let old = self.batches.remove(key)?;
        self.order.remove(&(old, *key));
        Some(old)
    }

    /// Since when a thing has changed.
    pub fn get(&self, key: &K) -> Option<Batch> {
        self.batches.get(key).copied()
    }

    /// Whether a thing has changed.
    pub fn contains_key(&self, key: &K) -> bool {
        self.batches.contains_key(key)
    }

    /// How many have changed.
    pub fn len(&self) -> usize {
        self.batches.len()
    }

    /// The oldest batch that one of them needs.
    pub fn oldest(&self) -> Option<Batch> {
        self.order.first().map(|(batch, _)| *batch)
    }

    /// All, the oldest first.
    pub fn in_order(&self) -> impl Iterator<Item = (Batch, K)> + '_ {
        self.order.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_comes_first_whatever_was_changed() {
        let mut since = Since::default();
        since.note('a', Batch(5));
        since.note('b', Batch(3));
        since.note('a', Batch(7));
        since.note('c', Batch(9));
        since.note('c', Batch(4));
        let all: Vec<_> = since.in_order().collect();
        assert_eq!(all, [(Batch(3), 'b'), (Batch(4), 'c'), (Batch(5), 'a')]);
        assert_eq!(since.insert('b', Batch(8)), Some(Batch(3)));
        assert_eq!((since.oldest(), since.get(&'b')), (Some(Batch(4)), Some(Batch(8))));
        assert_eq!(since.remove(&'c'), Some(Batch(4)));
        assert_eq!((since.remove(&'c'), since.contains_key(&'c')), (None, false));
        assert_eq!(since.in_order().count(), 2);
        since.remove(&'a');
        since.remove(&'b');
        assert_eq!(since.oldest(), None);
    }
}
