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

#[test]
fn space_that_was_never_used_is_the_last_resort() {
    const BLOCKS: u64 = 16 << 20;
    const SYSTEM: u64 = 5000;
    let mut alloc = Alloc::new(BLOCKS);
    for at in (SYSTEM..BLOCKS).step_by(1 << 20) {
        alloc.release((at, (BLOCKS - at).min(1 << 20) as u32));
    }
    // What is live stays the same, while a hundred times as much is written.
    let mut live = std::collections::VecDeque::new();
    let (mut held, mut highest, mut written) = (0, 0, 0);
    const LIVE: u64 = 1 << 19;
    while written < 100 * LIVE {
        let n = 1 + written as u32 % 999;
        let mut runs = Vec::new();
        assert!(alloc.allocate(n, &mut runs));
        highest = runs.iter().map(|r| r.0 + u64::from(r.1)).max().unwrap().max(highest);
        held += u64::from(n);
        written += u64::from(n);
        live.push_back(runs);
        while held > LIVE {
            for run in live.pop_front().unwrap() {
                held -= u64::from(run.1);
                assert_eq!(alloc.release(run), 0);
            }
        }
    }
    assert!(highest < 2 * LIVE, "{highest} blocks for {LIVE}");
    // And it is used when it is needed.
    let mut runs = Vec::new();
    while alloc.allocate(1 << 10, &mut runs) {}
    assert!(alloc.free_blocks() < 1 << 10);
}

#[test]
fn the_end_of_use_is_found() {
    for blocks in [64, 100, 6400, 6401] {
        for used in [0, 1, 63, 64, 65, 99] {
            let mut alloc = Alloc::new(blocks);
            if used < blocks {
                alloc.release((used, (blocks - used) as u32));
                let mut runs = Vec::new();
                assert!(alloc.allocate(1, &mut runs));
                assert_eq!(runs, [(used, 1)], "{blocks} {used}");
            }
        }
    }
}

#[test]
fn free_runs_are_listed_in_order() {
    for blocks in [64u64, 100, 6400, 6401] {
        let mut alloc = Alloc::new(blocks);
        assert_eq!(alloc.runs(9), []);
        alloc.release((0, blocks as u32));
        assert_eq!(alloc.runs(9), [(0, blocks)]);
        alloc.take((0, 3));
        alloc.take((60, 4));
        alloc.take((blocks - 1, 1));
        let tail = (64, blocks.saturating_sub(65));
        let all: Vec<(u64, u64)> = [(3, 57), tail].into_iter().filter(|r| r.1 > 0).collect();
        assert_eq!(alloc.runs(9), all, "{blocks}");
        assert_eq!(alloc.runs(1), [(3, 57)]);
        assert_eq!(all.iter().map(|r| r.1).sum::<u64>(), alloc.free_blocks());
    }
}
