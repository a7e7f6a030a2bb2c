//! Bytes of shards that a primary keeps in memory while changes of their objects are under way.

use crate::plan::{Pieces, ShardExtents};
use crate::shards::Shard;
use std::collections::BTreeMap;
use std::ops::Range;

/// Bytes of an object's data shards, as they are in one version of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stripe {
    /// By shard and offset; no two overlap.
    bytes: BTreeMap<(Shard, u64), Vec<u8>>,
}

impl Stripe {
    /// Puts bytes of a shard there, in place of those that were known of that range.
    pub fn insert(&mut self, shard: Shard, offset: u64, bytes: Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        let end = offset + bytes.len() as u64;
        let touched: Vec<u64> = self
            .bytes
            .range((shard, 0)..(shard, end))
            .filter(|((_, at), b)| at + b.len() as u64 > offset)
            .map(|((_, at), _)| *at)
            .collect();
        for at in touched {
            let Some(old) = self.bytes.remove(&(shard, at)) else { continue };
            let old_end = at + old.len() as u64;
            if old_end > end {
                self.bytes.insert((shard, end), old[(end - at) as usize..].to_vec());
            }
            if at < offset {
                self.bytes.insert((shard, at), old[..(offset - at) as usize].to_vec());
            }
        }
        self.bytes.insert((shard, offset), bytes);
    }

    /// Which bytes are there, as plans take it.
    pub fn extents(&self) -> ShardExtents {
        let mut out = ShardExtents::new();
        for ((shard, at), b) in &self.bytes {
            out.entry(*shard).or_default().insert(*at..at + b.len() as u64);
        }
        out
    }

    /// Puts what is there into `pieces`.
    pub fn fill(&self, pieces: &mut Pieces) {
        for (shard, at, b) in self.iter() {
            pieces.insert(shard, at..at + b.len() as u64, b);
        }
    }

    /// What is there: shard, offset, bytes.
    pub fn iter(&self) -> impl Iterator<Item = (Shard, u64, &[u8])> {
        self.bytes.iter().map(|((shard, at), b)| (*shard, *at, &b[..]))
    }

    /// How many bytes are there.
    pub fn len(&self) -> u64 {
        self.bytes.values().map(|b| b.len() as u64).sum()
    }

    /// Whether nothing is there.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Whether all of a range is there.
    pub fn covers(&self, shard: Shard, range: Range<u64>) -> bool {
        self.extents().get(&shard).is_some_and(|e| e.missing(range).is_empty())
    }
}

/// Stripes of objects that are being changed, at most so many bytes of them. A stripe counts for
/// one version of its object: a change of which the stripe knows nothing makes it void.
#[derive(Clone, Debug)]
pub struct Stripes<K, V> {
    most: u64,
    bytes: u64,
    clock: u64,
    stripes: BTreeMap<K, (V, u64, Stripe)>,
}

impl<K: Ord + Clone, V: PartialEq> Stripes<K, V> {
    /// None yet; at most so many bytes are kept.
    pub fn new(most: u64) -> Self {
        Stripes { most, bytes: 0, clock: 0, stripes: BTreeMap::new() }
    }

    /// What is known of an object in this version of it.
    pub fn get(&self, object: &K, version: &V) -> Option<&Stripe> {
        self.stripes.get(object).filter(|(v, ..)| v == version).map(|(.., stripe)| stripe)
    }

    /// What is known of an object, whatever version it has.
    pub fn any(&self, object: &K) -> Option<&Stripe> {
        self.stripes.get(object).map(|(.., stripe)| stripe)
    }

    /// Keeps what is known of an object in a version. The stripes that were kept first go if there
    /// are too many bytes; one that is larger than all may be is not kept.
    pub fn set(&mut self, object: K, version: V, stripe: Stripe) {
        self.remove(&object);
        let bytes = stripe.len();
        if bytes == 0 || bytes > self.most {
            return;
        }
        while self.bytes + bytes > self.most {
            let oldest = self.stripes.iter().min_by_key(|(_, (_, at, _))| *at);
            let Some(oldest) = oldest.map(|(key, _)| key.clone()) else { break };
            self.remove(&oldest);
        }
        self.clock += 1;
        self.bytes += bytes;
        self.stripes.insert(object, (version, self.clock, stripe));
    }

    /// Nothing is known of an object any more.
    pub fn remove(&mut self, object: &K) {
        if let Some((.., stripe)) = self.stripes.remove(object) {
            self.bytes -= stripe.len();
        }
    }

    /// Nothing is known any more.
    pub fn clear(&mut self) {
        self.stripes.clear();
        self.bytes = 0;
    }

    /// How many bytes are kept.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.stripes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_stripe_counts_for_its_version_and_goes_when_there_is_no_room() {
        let stripe = |n: usize| {
            let mut s = Stripe::default();
            s.insert(0, 0, vec![1; n]);
            s
        };
        let mut all: Stripes<&str, u64> = Stripes::new(100);
        all.set("a", 1, stripe(40));
        all.set("b", 1, stripe(40));
        assert!(all.get(&"a", &1).is_some() && all.get(&"a", &2).is_none());
        all.set("a", 2, stripe(50));
        assert!(all.get(&"a", &1).is_none() && all.bytes() == 90);
        // The one that was kept first goes.
        all.set("c", 1, stripe(20));
        assert!(all.get(&"b", &1).is_none() && all.get(&"a", &2).is_some());
        assert_eq!(all.bytes(), 70);
        all.set("a", 3, stripe(101));
        assert!(all.any(&"a").is_none() && all.bytes() == 20);
        all.clear();
        assert!(all.is_empty() && all.bytes() == 0);
    }

    proptest! {
        #[test]
        fn newer_bytes_lie_over_older_ones(
            steps in prop::collection::vec((0u8..3, 0u64..60, 0usize..30), 1..25),
        ) {
            let (mut stripe, mut model) = (Stripe::default(), BTreeMap::new());
            for (n, (shard, at, len)) in steps.into_iter().enumerate() {
                stripe.insert(shard, at, vec![n as u8; len]);
                model.extend((at..at + len as u64).map(|b| ((shard, b), n as u8)));
            }
            let found: BTreeMap<(Shard, u64), u8> = stripe
                .iter()
                .flat_map(|(s, at, b)| b.iter().zip(at..).map(move |(v, at)| ((s, at), *v)))
                .collect();
            prop_assert_eq!(stripe.len(), model.len() as u64, "no two overlap");
            prop_assert_eq!(&found, &model);
            for (shard, e) in stripe.extents() {
                for at in 0..100 {
                    let known = model.contains_key(&(shard, at));
                    prop_assert_eq!(e.missing(at..at + 1).is_empty(), known);
                    prop_assert_eq!(stripe.covers(shard, at..at + 1), known);
                }
            }
        }
    }
}
