//! Which blocks of the device are free.

use crate::codec::{Put, Take};
use crate::types::BLOCK;
use bytes::Bytes;

/// A run of physical blocks: first block and length.
pub(crate) type Run = (u64, u32);

/// The free blocks, for allocation. One bit a block, set when free, and one bit per word that has
/// any.
pub(crate) struct Alloc {
    words: Vec<u64>,
    summary: Vec<u64>,
    blocks: u64,
    free: u64,
    /// Where the next search starts: allocations follow each other on the device.
    cursor: u64,
    /// From here on nothing was ever allocated, as far as this is known; `None` before the first
    /// allocation.
    limit: Option<u64>,
    /// Keep the cursor where it is.
    pub lowest: bool,
}

/// Free blocks among the used ones that are worth going back for: 256 MiB.
const WORTHWHILE: u64 = 1 << 16;

/// Words looked at for one long run before the best run so far is taken.
const SEARCH_WORDS: usize = 1 << 16;

impl Alloc {
    /// All of `blocks` used.
    pub(crate) fn new(blocks: u64) -> Alloc {
        let words = blocks.div_ceil(64) as usize;
        Alloc {
            words: vec![0; words],
            summary: vec![0; words.div_ceil(64)],
            blocks,
            free: 0,
            cursor: 0,
            limit: None,
            lowest: false,
        }
    }

    pub(crate) fn free_blocks(&self) -> u64 {
        self.free
    }

    /// At most `most` runs of free blocks, in order.
    pub(crate) fn runs(&self, most: usize) -> Vec<(u64, u64)> {
        let (mut runs, mut from) = (Vec::new(), 0);
        while runs.len() < most {
            let Some(start) = self.next(from, true) else { break };
            let end = self.next(start, false).unwrap_or(self.blocks);
            runs.push((start, end - start));
            from = end;
        }
        runs
    }

    /// The first block from `from` on that is free, or that is not.
    fn next(&self, from: u64, free: bool) -> Option<u64> {
        let flip = if free { 0 } else { u64::MAX };
        let mut w = (from / 64) as usize;
        let mut word = (self.words.get(w)? ^ flip) & (u64::MAX << (from % 64));
        while word == 0 {
            w += 1;
            word = self.words.get(w)? ^ flip;
        }
        let block = w as u64 * 64 + u64::from(word.trailing_zeros());
        (block < self.blocks).then_some(block)
    }

    pub(crate) fn is_free(&self, b: u64) -> bool {
        self.words[(b / 64) as usize] >> (b % 64) & 1 == 1
    }

    /// Marks a run free. Returns how many of its blocks were not used, which is a fault of the
    /// caller.
    pub(crate) fn release(&mut self, (start, len): Run) -> u32 {
        let mut wrong = 0;
        for_words(start, len, |w, mask| {
            wrong += (self.words[w] & mask).count_ones();
            self.words[w] |= mask;
            self.summary[w / 64] |= 1 << (w % 64);
        });
        self.free += u64::from(len - wrong);
        wrong
    }

    /// Marks a run used. Returns how many of its blocks were not free, which is a fault of the
    /// caller.
    pub(crate) fn take(&mut self, (start, len): Run) -> u32 {
        let mut wrong = 0;
        for_words(start, len, |w, mask| {
            wrong += (!self.words[w] & mask).count_ones();
            self.words[w] &= !mask;
            if self.words[w] == 0 {
                self.summary[w / 64] &= !(1 << (w % 64));
            }
        });
        self.free -= u64::from(len - wrong);
        wrong
    }

    /// Allocates `n` blocks in as few runs as a bounded search finds; false when there are not that
    /// many.
    pub(crate) fn allocate(&mut self, n: u32, out: &mut impl Extend<Run>) -> bool {
        if u64::from(n) > self.free {
            return false;
        }
        let mut left = n;
        while left > 0 {
            self.turn();
            let mut run = self.search(self.cursor, left);
            if run.1 == 0 {
                run = self.search(0, left);
            }
            debug_assert!(run.1 > 0, "the free count promised a block");
            if run.1 == 0 {
                return false;
            }
            self.take(run);
            out.extend([run]);
            left -= run.1;
            if !self.lowest {
                self.cursor = (run.0 + u64::from(run.1)) % self.blocks;
                self.limit = self.limit.max(Some(run.0 + u64::from(run.1)));
            }
        }
        true
    }

    /// Goes back to the start rather than into space that was never used, if a third of what lies
    /// before it is free: a store in a sparse file takes no more than half as much again as it
    /// holds.
    fn turn(&mut self) {
        let limit = *self.limit.get_or_insert_with(|| Self::end_of_use(&self.words, self.blocks));
        if self.cursor < limit {
            return;
        }
        // All blocks from the limit on are free.
        let free = self.free.saturating_sub(self.blocks - limit);
        if free >= WORTHWHILE.max((limit - free.min(limit)) / 2) {
            self.cursor = 0;
        } else {
            self.limit = Some((limit + WORTHWHILE.max(limit / 8)).min(self.blocks));
        }
    }

    /// Behind the last used block.
    fn end_of_use(words: &[u64], blocks: u64) -> u64 {
        let tail =
            |w: usize| if (w as u64 + 1) * 64 > blocks { u64::MAX << (blocks % 64) } else { 0 };
        let last = (0..words.len()).rev().find(|&w| words[w] | tail(w) != u64::MAX);
        last.map_or(0, |w| w as u64 * 64 + 64 - u64::from((words[w] | tail(w)).leading_ones()))
    }

    /// The first run of `want` free blocks from `from` on, or the longest one seen (perhaps of
    /// length 0).
    fn search(&self, from: u64, want: u32) -> Run {
        let mut best: Run = (0, 0);
        let mut run: Run = (0, 0);
        let mut w = (from / 64) as usize;
        let mut word = self.words.get(w).copied().unwrap_or(0) & (u64::MAX << (from % 64));
        let mut seen = 0;
        loop {
            if word == u64::MAX {
                if run.1 == 0 {
                    run.0 = w as u64 * 64;
                }
                run.1 += 64;
            } else {
                let mut bit = 0u32;
                while bit < 64 {
                    let rest = word >> bit;
                    let ones = (!rest).trailing_zeros().min(64 - bit);
                    if ones > 0 {
                        if run.1 == 0 {
                            run.0 = w as u64 * 64 + u64::from(bit);
                        }
                        run.1 += ones;
                        bit += ones;
                    }
                    if bit < 64 {
                        // A used block ends the run.
                        if run.1 > best.1 {
                            best = run;
                        }
                        if best.1 >= want {
                            return (best.0, want);
                        }
                        run.1 = 0;
                        bit += (word >> bit).trailing_zeros().min(64 - bit);
                    }
                }
            }
            if run.1 >= want {
                return (run.0, want);
            }
            seen += 1;
            w += 1;
            if run.1 == 0 {
                // Skip words without a free block.
                let mut s = w / 64;
                let mut bits = self.summary.get(s).copied().unwrap_or(0) & (u64::MAX << (w % 64));
                while bits == 0 && s + 1 < self.summary.len() {
                    s += 1;
                    bits = self.summary[s];
                }
                if bits == 0 {
                    break;
                }
                w = s * 64 + bits.trailing_zeros() as usize;
            }
            if w >= self.words.len() || (seen > SEARCH_WORDS && (best.1 > 0 || run.1 > 0)) {
                break;
            }
            word = self.words[w];
        }
        if run.1 > best.1 { run } else { best }
    }
}

fn for_words(start: u64, len: u32, mut f: impl FnMut(usize, u64)) {
    let (mut at, end) = (start, start + u64::from(len));
    while at < end {
        let (w, bit) = ((at / 64) as usize, at % 64);
        let n = (64 - bit).min(end - at);
        let mask = if n == 64 { u64::MAX } else { ((1 << n) - 1) << bit };
        f(w, mask);
        at += n;
    }
}

/// Header of a page of the allocation map: magic, crc, page number, store id, generation.
const PAGE_HEAD: usize = 32;
const PAGE_MAGIC: u32 = 0x5041_4d53;
/// Blocks that one page of the map describes.
pub(crate) const PAGE_BLOCKS: u64 = (BLOCK - PAGE_HEAD as u64) * 8;

/// The used blocks as the next checkpoint will state them: one bit a block, set when used.
///
/// It differs from [`Alloc`] by what happened since the freeze and by blocks that are free already
/// but may not be reused yet. On the device every page has two places; a checkpoint writes changed
/// pages to the place that the last durable checkpoint does not use.
pub(crate) struct Image {
    bits: Vec<u8>,
    blocks: u64,
    store_id: u64,
    /// Which of the two places holds the durable version.
    slot: Vec<u8>,
    dirty: std::collections::BTreeSet<u32>,
    /// Blocks before this one are not allocated by anyone.
    first: u64,
}

/// Pages of the map of a device with `blocks` blocks.
pub(crate) fn image_pages(blocks: u64) -> u64 {
    blocks.div_ceil(PAGE_BLOCKS)
}

impl Image {
    /// An image with every block free.
    pub(crate) fn new(blocks: u64, store_id: u64) -> Image {
        let pages = image_pages(blocks) as usize;
        Image {
            bits: vec![0; (blocks.div_ceil(8)) as usize],
            blocks,
            store_id,
            slot: vec![1; pages],
            dirty: Default::default(),
            first: 0,
        }
    }

    pub(crate) fn is_used(&self, b: u64) -> bool {
        self.bits[(b / 8) as usize] >> (b % 8) & 1 == 1
    }

    /// Marks a run; returns how many blocks were in that state already (a fault of the caller).
    pub(crate) fn mark(&mut self, (start, len): Run, used: bool) -> u32 {
        let mut wrong = 0;
        for b in start..start + u64::from(len) {
            wrong += u32::from(self.is_used(b) == used);
            let bit = 1 << (b % 8);
            if used {
                self.bits[(b / 8) as usize] |= bit;
            } else {
                self.bits[(b / 8) as usize] &= !bit;
            }
        }
        if len > 0 {
            for p in start / PAGE_BLOCKS..=(start + u64::from(len) - 1) / PAGE_BLOCKS {
                self.dirty.insert(p as u32);
            }
        }
        wrong
    }

    /// Blocks before `first` are none of the map's business.
    pub(crate) fn hide(&mut self, first: u64) {
        self.first = first;
    }

    /// Releases all free blocks to `alloc`.
    pub(crate) fn fill(&self, alloc: &mut Alloc) {
        let mut at = self.first;
        while at < self.blocks {
            let whole = at.is_multiple_of(8) && at + 8 <= self.blocks;
            match self.bits[(at / 8) as usize] {
                0xff if whole => at += 8,
                0 if whole => {
                    let from = at;
                    while at + 8 <= self.blocks
                        && at - from < 1 << 30
                        && self.bits[(at / 8) as usize] == 0
                    {
                        at += 8;
                    }
                    alloc.release((from, (at - from) as u32));
                }
                _ => {
                    if !self.is_used(at) {
                        alloc.release((at, 1));
                    }
                    at += 1;
                }
            }
        }
    }

    /// Takes the changed pages: their place relative to the map's start in bytes, and their
    /// content.
    pub(crate) fn take_dirty(&mut self, generation: u64) -> Vec<(u64, u32, Bytes)> {
        let dirty = std::mem::take(&mut self.dirty);
        dirty
            .into_iter()
            .map(|p| {
                let slot = 1 - self.slot[p as usize];
                (((u64::from(p)) * 2 + u64::from(slot)) * BLOCK, p, self.encode_page(p, generation))
            })
            .collect()
    }

    /// The checkpoint that wrote these pages is durable.
    pub(crate) fn written(&mut self, pages: &[u32]) {
        for p in pages {
            self.slot[*p as usize] ^= 1;
        }
    }

    fn encode_page(&self, p: u32, generation: u64) -> Bytes {
        let first = u64::from(p) * PAGE_BLOCKS;
        let from = (first / 8) as usize;
        let to = self.bits.len().min(from + PAGE_BLOCKS as usize / 8);
        let mut out = Vec::with_capacity(BLOCK as usize);
        out.u32(PAGE_MAGIC);
        out.u32(0);
        out.u64(p.into());
        out.u64(self.store_id);
        out.u64(generation);
        out.extend_from_slice(&self.bits[from..to]);
        out.resize(BLOCK as usize, 0);
        let crc = crc32c::crc32c(&out);
        out[4..8].copy_from_slice(&crc.to_le_bytes());
        let mut buf = crate::dev::AlignedBuf::recycled(BLOCK as usize);
        buf.copy_from_slice(&out);
        buf.freeze()
    }

    /// Takes in both places of page `p` as read from the device; the newest version that belongs to
    /// a checkpoint not after `generation` counts. A page that was never written has all blocks
    /// free.
    pub(crate) fn load(&mut self, p: u32, places: [Bytes; 2], generation: u64) {
        let mut best: Option<(u64, u8, Bytes)> = None;
        for (slot, page) in places.into_iter().enumerate() {
            if let Some(g) = self.check_page(p, &page).filter(|g| *g <= generation)
                && best.as_ref().is_none_or(|(b, ..)| *b < g)
            {
                best = Some((g, slot as u8, page));
            }
        }
        if let Some((_, slot, page)) = best {
            self.slot[p as usize] = slot;
            let from = (u64::from(p) * PAGE_BLOCKS / 8) as usize;
            let to = self.bits.len().min(from + PAGE_BLOCKS as usize / 8);
            self.bits[from..to].copy_from_slice(&page[PAGE_HEAD..PAGE_HEAD + to - from]);
        }
    }

    fn check_page(&self, p: u32, page: &Bytes) -> Option<u64> {
        let mut r = Take::new(page);
        let (magic, crc) = (r.u32().ok()?, r.u32().ok()?);
        let (number, store_id, generation) = (r.u64().ok()?, r.u64().ok()?, r.u64().ok()?);
        if magic != PAGE_MAGIC || number != u64::from(p) || store_id != self.store_id {
            return None;
        }
        let sum = crc32c::crc32c(&page[..4]);
        let sum = crc32c::crc32c_append(sum, &[0; 4]);
        (crc32c::crc32c_append(sum, &page[8..]) == crc).then_some(generation)
    }
}
