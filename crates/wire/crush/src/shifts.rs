//! Which inputs other weights may map elsewhere, seen while they are mapped with those in force.
//!
//! Most changes of weights touch few buckets, and few draws of those fall to another item. An input
//! of which no draw does is mapped to the same items by both maps: one walk answers for two.

use crate::hash::{RJENKINS1, hash3};
use crate::ln::ln;
use crate::map::index_of;
use crate::{Body, Bucket, CrushMap};

/// The items that weigh otherwise in another map, which is the same else.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shifts {
    /// By bucket index: places of items, and their other weights.
    changed: Vec<Vec<(usize, u32)>>,
}

impl CrushMap {
    /// The weights of another map, if the mapper would find nothing else different there: the same
    /// buckets, rules and tunables, and weight sets in neither.
    pub fn shifts(&self, other: &CrushMap) -> Option<Shifts> {
        let same = self.rules == other.rules
            && self.max_devices == other.max_devices
            && self.tunables == other.tunables
            && self.choose_args.is_empty()
            && other.choose_args.is_empty()
            && self.buckets.len() == other.buckets.len();
        if !same {
            return None;
        }
        let pairs = self.buckets.iter().zip(&other.buckets);
        let changed = pairs.map(|pair| match pair {
            (None, None) => Some(Vec::new()),
            (Some(one), Some(two)) => one.other_weights(two),
            _ => None,
        });
        Some(Shifts { changed: changed.collect::<Option<_>>()? })
    }
}

impl Bucket {
    fn other_weights(&self, other: &Bucket) -> Option<Vec<(usize, u32)>> {
        let shape = |b: &Bucket| (b.id, b.kind, b.hash);
        if shape(self) != shape(other) || self.items != other.items {
            return None;
        }
        match (&self.body, &other.body) {
            (Body::Straw2 { item_weights: one }, Body::Straw2 { item_weights: two })
                if one.len() == two.len() =>
            {
                let pairs = one.iter().zip(two).enumerate();
                Some(pairs.filter(|(_, (a, b))| a != b).map(|(at, (_, b))| (at, *b)).collect())
            }
            (one, two) => (one == two).then(Vec::new),
        }
    }
}

impl Shifts {
    /// Whether no weight differs.
    pub fn is_empty(&self) -> bool {
        self.changed.iter().all(Vec::is_empty)
    }

    /// Whether a draw that the item at a place won may fall to another one with the other weights.
    pub(crate) fn may_lose(
        &self,
        bucket: &Bucket,
        weights: &[u32],
        won: usize,
        x: i32,
        r: i32,
    ) -> bool {
        let index = index_of(bucket.id).map(|i| i as usize);
        let changed = index.and_then(|i| self.changed.get(i)).map_or(&[][..], |c| c);
        if changed.is_empty() {
            return false;
        }
        // As the draws of straw2.
        let draw = |at: usize, weight: u32| {
            let weight = i64::from(weight as i32);
            let item = bucket.items.get(at).copied().unwrap_or(0);
            let kind = bucket.hash == RJENKINS1;
            let u = if kind { hash3(x as u32, item as u32, r as u32) as u16 } else { 0 };
            (weight != 0).then(|| (ln(u) as i64 - 0x1_0000_0000_0000) / weight)
        };
        let Some(best) = weights.get(won).and_then(|w| draw(won, *w)) else { return true };
        changed.iter().any(|(at, weight)| match draw(*at, *weight) {
            // The winner stays the winner if it draws no less.
            Some(other) if *at == won => other < best,
            Some(other) => other >= best,
            None => *at == won,
        })
    }
}
