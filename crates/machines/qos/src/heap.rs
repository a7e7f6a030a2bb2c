//! A heap with four branches, for many entries: what decides is how many lines of the processor's
//! cache it touches, and in what order.
//!
//! ```text
//! block 0    -   -   -   0        the children of entry i are block i + 1,
//! block 1    1   2   3   4        one line of the cache
//! block 2    5   6   7   8
//! ```
//!
//! Half as many levels as with two branches, and each is one line. Places without an entry hold
//! [`NOTHING`], so the least of a block is found without asking how many there are.

use crate::fetch::fetch;

/// Greater than any entry, and none.
const NOTHING: u128 = u128::MAX;

/// The first blocks are read so often that they are in the processor's caches.
const SHALLOW: usize = 1024;

#[derive(Clone, Debug)]
#[repr(align(64))]
struct Block([u128; 4]);

/// The least entry is on top.
#[derive(Clone, Debug)]
pub(crate) struct Heap {
    blocks: Vec<Block>,
    len: usize,
}

impl Heap {
    pub(crate) const fn new() -> Self {
        Heap { blocks: Vec::new(), len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn place(&mut self, i: usize) -> &mut u128 {
        &mut self.blocks[i.div_ceil(4)].0[(i + 3) % 4]
    }

    /// The least entry.
    #[inline]
    pub(crate) fn top(&self) -> Option<u128> {
        self.blocks.first().map(|b| b.0[3]).filter(|e| *e != NOTHING)
    }

    /// The least of those right below the top: the one after it, unless another comes.
    #[inline]
    pub(crate) fn second(&self) -> Option<u128> {
        let [a, b, c, d] = self.blocks.get(1)?.0;
        Some(a.min(b).min(c.min(d))).filter(|e| *e != NOTHING)
    }

    /// Adds an entry. [`NOTHING`] is none.
    pub(crate) fn push(&mut self, entry: u128) {
        debug_assert_ne!(entry, NOTHING);
        let mut i = self.len;
        self.len += 1;
        if self.blocks.len() <= i.div_ceil(4) {
            self.blocks.push(Block([NOTHING; 4]));
        }
        while i > 0 {
            let parent = (i - 1) / 4;
            let above = *self.place(parent);
            if above <= entry {
                break;
            }
            *self.place(i) = above;
            i = parent;
        }
        *self.place(i) = entry;
    }

    /// Puts another entry where the least one was, if there is one.
    pub(crate) fn replace_top(&mut self, entry: u128) {
        if self.len == 0 {
            return;
        }
        let mut i = 0;
        while let Some(Block(children)) = self.blocks.get(i + 1) {
            // One of the four blocks below these children is next, and they lie side by side:
            // fetched before it is known which.
            if i >= SHALLOW
                && let Some(below) = self.blocks.get(4 * i + 2..4 * i + 6)
            {
                below.iter().for_each(fetch);
            }
            // Without branches, which could not be predicted.
            let [a, b, c, d] = *children;
            let (first, x) = if b < a { (1, b) } else { (0, a) };
            let (second, y) = if d < c { (3, d) } else { (2, c) };
            let (least, child) = if y < x { (second, y) } else { (first, x) };
            if entry <= child {
                break;
            }
            *self.place(i) = child;
            i = 4 * i + 1 + least;
        }
        *self.place(i) = entry;
    }

    /// Removes the least entry.
    pub(crate) fn pop(&mut self) {
        let Some(last) = self.len.checked_sub(1) else { return };
        let entry = std::mem::replace(self.place(last), NOTHING);
        self.len = last;
        self.replace_top(entry);
    }

    /// Keeps only some entries.
    pub(crate) fn retain(&mut self, keep: impl Fn(u128) -> bool) {
        let entries: Vec<u128> =
            self.blocks.iter().flat_map(|b| b.0).filter(|e| *e != NOTHING && keep(*e)).collect();
        self.blocks.clear();
        self.len = 0;
        entries.into_iter().for_each(|e| self.push(e));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;

    proptest! {
        #[test]
        fn gives_what_another_heap_gives(steps in prop::collection::vec((0u8..10, 0u128..50), 0..600)) {
            let (mut heap, mut other) = (Heap::new(), BinaryHeap::new());
            for (step, entry) in steps {
                match step {
                    0..5 => {
                        heap.push(entry);
                        other.push(Reverse(entry));
                    }
                    5..7 => {
                        heap.pop();
                        other.pop();
                    }
                    7..9 => {
                        heap.replace_top(entry);
                        if let Some(mut top) = other.peek_mut() {
                            *top = Reverse(entry);
                        }
                    }
                    _ => {
                        heap.retain(|e| e % 7 != entry % 7);
                        other.retain(|Reverse(e)| e % 7 != entry % 7);
                    }
                }
                let second = other.clone().into_sorted_vec().into_iter().rev().nth(1).map(|Reverse(e)| e);
                prop_assert_eq!(heap.second(), second);
                prop_assert_eq!((heap.len(), heap.top()), (other.len(), other.peek().map(|Reverse(e)| *e)));
            }
        }
    }
}
