//! Clean blocks in memory, by physical block.

use bytes::Bytes;
use rustc_hash::FxHashMap;

/// A cache with a fixed number of places and second-chance replacement.
pub(super) struct BlockCache {
    index: FxHashMap<u64, u32>,
    places: Vec<Place>,
    hand: usize,
    max: usize,
}

struct Place {
    block: u64,
    bytes: Bytes,
    hot: bool,
}

impl BlockCache {
    pub(super) fn new(max: usize) -> BlockCache {
        BlockCache { index: FxHashMap::default(), places: Vec::new(), hand: 0, max }
    }

    /// Changes the number of places. What does not fit any more is dropped, cold blocks first.
    pub(super) fn set_max(&mut self, max: usize) {
        self.max = max;
        if self.places.len() <= max {
            return;
        }
        let index = std::mem::take(&mut self.index);
        let live = |(i, p): &(usize, Place)| index.get(&p.block) == Some(&(*i as u32));
        let (hot, cold): (Vec<_>, Vec<_>) = std::mem::take(&mut self.places)
            .into_iter()
            .enumerate()
            .filter(live)
            .partition(|(_, p)| p.hot);
        self.places = hot.into_iter().chain(cold).take(max).map(|(_, p)| p).collect();
        self.index = self.places.iter().enumerate().map(|(i, p)| (p.block, i as u32)).collect();
        self.hand = 0;
    }

    pub(super) fn max(&self) -> usize {
        self.max
    }

    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    pub(super) fn get(&mut self, block: u64) -> Option<&Bytes> {
        let p = &mut self.places[*self.index.get(&block)? as usize];
        p.hot = true;
        Some(&p.bytes)
    }

    pub(super) fn insert(&mut self, block: u64, bytes: Bytes) {
        if self.max == 0 {
            return;
        }
        if let Some(i) = self.index.get(&block) {
            self.places[*i as usize].bytes = bytes;
            return;
        }
        let place = Place { block, bytes, hot: false };
        if self.places.len() < self.max {
            self.index.insert(block, self.places.len() as u32);
            self.places.push(place);
            return;
        }
        loop {
            let i = self.hand;
            self.hand = (self.hand + 1) % self.places.len();
            let p = &mut self.places[i];
            if std::mem::take(&mut p.hot) {
                continue;
            }
            // A place is found under another index, or none, after its block was removed.
            if self.index.get(&p.block) == Some(&(i as u32)) {
                self.index.remove(&p.block);
            }
            self.index.insert(block, i as u32);
            *p = place;
            return;
        }
    }

    pub(super) fn remove(&mut self, block: u64) {
        if let Some(i) = self.index.remove(&block) {
            let p = &mut self.places[i as usize];
            p.bytes = Bytes::new();
            p.hot = false;
        }
    }
}
