//! A map of what is mostly one value, or a few: as large as what it holds, in the order of keys.
//!
//! A tree has room for eleven values from the first one on.

/// Maps with fewer values grow by one.
const EXACT: usize = 8;

#[derive(Clone, Debug)]
pub(crate) struct Few<K, V>(Vec<(K, V)>);

impl<K, V> Default for Few<K, V> {
    fn default() -> Self {
        Few(Vec::new())
    }
}

impl<K: Copy + Ord, V> Few<K, V> {
    fn place(&self, key: &K) -> Result<usize, usize> {
        self.0.binary_search_by(|(k, _)| k.cmp(key))
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Bytes on the heap.
    pub fn bytes(&self) -> usize {
        self.0.capacity() * size_of::<(K, V)>()
    }

    pub fn contains_key(&self, key: &K) -> bool {
        self.place(key).is_ok()
    }

    pub fn get(&self, key: &K) -> Option<&V> {
        self.place(key).ok().map(|i| &self.0[i].1)
    }

    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.place(key).ok().map(|i| &mut self.0[i].1)
    }

    pub fn get_or_insert_with(&mut self, key: K, make: impl FnOnce() -> V) -> &mut V {
        let i = match self.place(&key) {
            Ok(i) => i,
            Err(i) => {
                self.put(i, key, make());
                i
            }
        };
        &mut self.0[i].1
    }

    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.place(&key) {
            Ok(i) => Some(std::mem::replace(&mut self.0[i].1, value)),
            Err(i) => {
                self.put(i, key, value);
                None
            }
        }
    }

    fn put(&mut self, i: usize, key: K, value: V) {
        if self.0.len() < EXACT {
            self.0.reserve_exact(1);
        }
        self.0.insert(i, (key, value));
    }

    pub fn remove(&mut self, key: &K) -> Option<V> {
        let i = self.place(key).ok()?;
        let (_, value) = self.0.remove(i);
        if self.0.len() < EXACT || self.0.len() < self.0.capacity() / 4 {
            self.0.shrink_to_fit();
        }
        Some(value)
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&K, &V)> {
        self.0.iter().map(|(k, v)| (k, v))
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut V)> {
        self.0.iter_mut().map(|(k, v)| (&*k, v))
    }

    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.0.iter().map(|(k, _)| k)
    }

    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.0.iter().map(|(_, v)| v)
    }
}

#[cfg(test)]
mod tests {
    use super::Few;
    use std::collections::BTreeMap;

    /// The same as a tree, whatever comes and goes.
    #[test]
    fn it_is_a_map() {
        let (mut few, mut tree) = (Few::default(), BTreeMap::new());
        let mut x = 1u64;
        for step in 0..20_000u64 {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let key = (x >> 40) % if step < 10_000 { 6 } else { 90 };
            match x >> 61 {
                0..=2 => assert_eq!(few.insert(key, step), tree.insert(key, step)),
                3..=5 => assert_eq!(few.remove(&key), tree.remove(&key)),
                6 => {
                    let made = few.get_or_insert_with(key, || step);
                    assert_eq!(made, tree.entry(key).or_insert(step));
                }
                _ => {
                    let change = |v: &mut u64| *v += 1;
                    few.get_mut(&key).map(change);
                    tree.get_mut(&key).map(change);
                }
            }
            assert_eq!(few.get(&key), tree.get(&key));
            assert_eq!(few.contains_key(&key), tree.contains_key(&key));
            assert!(few.iter().eq(tree.iter()) && few.len() == tree.len());
            if few.is_empty() {
                assert_eq!(few.bytes(), 0);
            }
        }
    }

    #[test]
    fn one_value_takes_no_more() {
        let mut few = Few::default();
        few.insert(1u64, [0u64; 9]);
        assert_eq!(few.bytes(), 80);
    }
}
