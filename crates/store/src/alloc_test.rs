//! The allocator and the allocation map against a plain list of booleans.

use crate::alloc::{Alloc, Image, Run};
use proptest::prelude::*;

proptest! {
    #[test]
    fn allocator_equals_its_twin(ops in prop::collection::vec((any::<bool>(), 1u32..90), 1..200), blocks in 1u64..700) {
        let mut alloc = Alloc::new(blocks);
        let mut twin = vec![true; blocks as usize];
        let mut held: Vec<Run> = Vec::new();
        prop_assert_eq!(alloc.release((0, blocks as u32)), 0);
        for (take, n) in ops {
            if take {
                let mut got: Vec<Run> = Vec::new();
                let free = twin.iter().filter(|f| **f).count();
                let ok = alloc.allocate(n, &mut got);
                prop_assert_eq!(ok, n as usize <= free);
                if ok {
                    prop_assert_eq!(got.iter().map(|r| r.1).sum::<u32>(), n);
                }
                for (at, n) in got {
                    for b in at..at + u64::from(n) {
                        prop_assert!(std::mem::replace(&mut twin[b as usize], false), "block {} given twice", b);
                    }
                    held.push((at, n));
                }
            } else if !held.is_empty() {
                let run = held.swap_remove(n as usize % held.len());
                prop_assert_eq!(alloc.release(run), 0);
                (run.0..run.0 + u64::from(run.1)).for_each(|b| twin[b as usize] = true);
            }
            prop_assert_eq!(alloc.free_blocks(), twin.iter().filter(|f| **f).count() as u64);
            for (b, free) in twin.iter().enumerate() {
                prop_assert_eq!(alloc.is_free(b as u64), *free);
            }
        }
    }

    #[test]
    fn map_pages_bring_back_the_map(runs in prop::collection::vec((0u64..70_000, 1u32..3000), 0..30), hide in 0u64..100) {
        let blocks = 73_001;
        let mut image = Image::new(blocks, 99);
        for (at, n) in &runs {
            image.mark((*at, *n), true);
        }
        let pages = image.take_dirty(5);
        let mut back = Image::new(blocks, 99);
        back.hide(hide);
        for (_, p, bytes) in &pages {
            let junk = bytes::Bytes::from(vec![7u8; 4096]);
            back.load(*p, [junk, bytes.clone()], 5);
            // A page of a checkpoint that did not become durable does not count.
            let mut older = Image::new(blocks, 99);
            older.load(*p, [bytes.clone(), bytes.clone()], 4);
            prop_assert!((0..blocks).all(|b| !older.is_used(b)));
        }
        let mut alloc = Alloc::new(blocks);
        back.fill(&mut alloc);
        for b in 0..blocks {
            let used = runs.iter().any(|(at, n)| (*at..at + u64::from(*n)).contains(&b));
            prop_assert_eq!(back.is_used(b), used);
            prop_assert_eq!(alloc.is_free(b), !used && b >= hide);
        }
    }
}
