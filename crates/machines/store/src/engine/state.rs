//! Everything in memory, and what the operations do to it.
//!
//! The functions here are the meaning of log records: they run once when a transaction is submitted
//! and again, with the same arguments and on the same state, when its record is replayed. They
//! decide nothing.

use super::cache::BlockCache;
use super::family::Family;
use super::prepared::Prepared;
use super::slots::Slots;
use crate::alloc::{Alloc, Image, Run};
use crate::codec::corrupt;
use crate::dev::{Device, Io};
use crate::error::StoreError;
use crate::log::LogBuf;
use crate::onode::{Extent, Onode};
use crate::options::{Budgets, Options};
use crate::superblock::{LogPos, Superblock};
use crate::tree::{Layer, Miss, Node, NodePtr, Scan, Tree};
use crate::types::{BLOCK, Coll, Key};
use crate::window::{RowRange, Window};
use bytes::{Bytes, BytesMut};
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::rc::Rc;

/// The first byte of a key in the metadata tree says what the row is.
pub(super) mod tag {
    pub const COLL: u8 = b'C';
    pub const FAMILY: u8 = b'F';
    pub const OMAP: u8 = b'M';
    pub const ONODE: u8 = b'N';
}

/// Records on their way to the log.
pub(super) struct Batch {
    pub buf: LogBuf,
    /// How many.
    pub records: u32,
    /// Commit sequence of the last transaction.
    pub last: u64,
    /// Data writes that the records refer to.
    pub ios: Vec<Io<()>>,
    /// Blocks of those writes.
    pub direct: Vec<Run>,
    /// Blocks that may be reused once the batch is durable.
    pub freed: Vec<Run>,
    /// The state was frozen right after this batch; no record may be added.
    pub sealed: bool,
}

impl Batch {
    pub(super) fn new() -> Batch {
        Batch {
            buf: LogBuf::new(),
            records: 0,
            last: 0,
            ios: Vec::new(),
            direct: Vec::new(),
            freed: Vec::new(),
            sealed: false,
        }
    }
}

/// A block changed its owner: for the next allocation map.
#[derive(Clone, Copy)]
pub(super) enum Delta {
    Used(Run),
    Free(Run),
}

/// The state that a freeze sets aside for a checkpoint.
pub(super) struct Frozen {
    /// Rows for the tree. Grows while object records are encoded into it, then stays.
    pub layer: Rc<Layer>,
    /// Objects that were created or removed, by tree key.
    pub names: BTreeMap<Bytes, bool>,
    /// Deferred writes to bring to their place; removed from here when all are there.
    pub pending: Rc<FxHashMap<u64, Bytes>>,
}

pub(super) struct State {
    pub dev: Device,
    pub colls: BTreeMap<Coll, Option<Window>>,
    pub slots: Slots,
    pub families: FxHashMap<u64, Family>,
    /// Families changed since the last freeze.
    pub dirty_families: FxHashMap<u64, ()>,
    pub layer: Layer,
    pub names: BTreeMap<Bytes, bool>,
    /// Deferred writes by physical block.
    pub pending: FxHashMap<u64, Bytes>,
    pub frozen: Option<Frozen>,
    /// Blocks of direct writes that are not known to be on the device yet.
    pub direct: FxHashMap<u64, Bytes>,
    /// Blocks that are free as soon as the checkpoint under way has chosen its blocks.
    pub late_free: Vec<Run>,
    pub tree: Tree,
    /// Counts changes of the tree's root.
    pub tree_version: u64,
    pub tree_blocks: u64,
    pub cache: BlockCache,
    pub alloc: Alloc,
    pub image: Image,
    pub deltas: Vec<Delta>,
    pub next_id: u64,
    /// First block that objects and tree nodes may use.
    pub data_start: u64,
    pub blocks: u64,
    /// Batches to write, oldest first; the last one takes new records unless it is sealed or full.
    pub queue: VecDeque<Batch>,
    /// Bytes of the queue.
    pub queued: u64,
    /// The position at which the log goes on.
    pub head: LogPos,
    /// Where the log starts, as of the last durable checkpoint.
    pub tail: LogPos,
    /// How far the log's place is prepared.
    pub prepared: Prepared,
    /// After a freeze: the last transaction of the sealed batch and the log position behind it.
    pub sealed_end: Option<(u64, LogPos)>,
    /// While the log is replayed: blocks of the current batch's direct writes, with their
    /// checksums.
    pub replay: Option<FxHashMap<u64, u32>>,
    onode_budget: usize,
}

/// Stands for the content of blocks that are damaged, and is known by its address.
static DAMAGED: Damaged = Damaged([0; BLOCK as usize]);

#[repr(align(4096))]
struct Damaged([u8; BLOCK as usize]);

/// What is written where the content of a block is lost. No block that has this may have its
/// checksum.
pub(super) fn damaged_block() -> Bytes {
    Bytes::from_static(&DAMAGED.0)
}

/// Whether this is no content, but the lack of it.
pub(super) fn is_damaged(block: &Bytes) -> bool {
    std::ptr::eq(block.as_ptr(), DAMAGED.0.as_ptr())
}

impl State {
    pub(super) fn new(dev: Device, sb: &Superblock, image: Image, opts: &Options) -> State {
        let blocks = sb.blocks();
        let mut alloc = Alloc::new(blocks);
        image.fill(&mut alloc);
        alloc.lowest = opts.reuse_soon;
        State {
            dev,
            colls: BTreeMap::new(),
            slots: Slots::default(),
            families: FxHashMap::default(),
            dirty_families: FxHashMap::default(),
            layer: Layer::default(),
            names: BTreeMap::new(),
            pending: FxHashMap::default(),
            frozen: None,
            direct: FxHashMap::default(),
            late_free: Vec::new(),
            tree: Tree::new(sb.root.clone(), opts.node_cache as usize),
            tree_version: 0,
            tree_blocks: sb.tree_blocks,
            cache: BlockCache::new((opts.data_cache / BLOCK) as usize),
            alloc,
            image,
            deltas: Vec::new(),
            next_id: sb.next_id,
            data_start: sb.data_start(),
            blocks,
            queue: VecDeque::new(),
            queued: 0,
            head: sb.tail,
            tail: sb.tail,
            prepared: Prepared::default(),
            sealed_end: None,
            replay: None,
            onode_budget: opts.onode_cache as usize,
        }
    }

    // ---- budgets ----

    /// Takes over the budgets of the caches, and lets go of what is above them. Dirty memory stays:
    /// only a checkpoint can free it.
    pub(super) fn set_budgets(&mut self, budgets: Budgets) {
        self.cache.set_max((budgets.data_cache / BLOCK) as usize);
        self.tree.set_budget(budgets.node_cache as usize);
        self.onode_budget = budgets.onode_cache as usize;
        // A round of trimming is bounded, for it usually goes along with a request; here all rounds
        // are due.
        for _ in 0..self.slots.laps() {
            self.slots.trim(self.onode_budget);
        }
    }

    /// The budgets of the caches.
    pub(super) fn budgets(&self) -> Budgets {
        Budgets {
            data_cache: self.cache.max() as u64 * BLOCK,
            onode_cache: self.onode_budget as u64,
            node_cache: self.tree.budget() as u64,
            dirty_max: 0,
        }
    }

    // ---- sizes ----

    /// Bytes of the log in use or promised to records in the queue.
    pub(super) fn log_reserved(&self) -> u64 {
        self.head.at - self.tail.at + self.queued
    }

    pub(super) fn pending_blocks(&self) -> u64 {
        (self.pending.len() + self.frozen.as_ref().map_or(0, |f| f.pending.len())) as u64
    }

    /// Memory that only a checkpoint can free, roughly.
    pub(super) fn dirty_bytes(&self) -> u64 {
        let frozen = self.frozen.as_ref().map_or(0, |f| f.layer.bytes);
        self.pending_blocks() * BLOCK
            + (self.layer.bytes + frozen + self.slots.dirty() * 1024) as u64
    }

    pub(super) fn cached_bytes(&self) -> u64 {
        self.cache.len() as u64 * BLOCK + (self.tree.cached_bytes() + self.slots.bytes()) as u64
    }

    /// Blocks that a checkpoint may need before it gives any back, and that deletes need to go on.
    pub(super) fn reserve(&self) -> u64 {
        let base = ((self.blocks - self.data_start) / 64).clamp(64, 1 << 16);
        let frozen = self.frozen.as_ref().map_or(0, |f| f.layer.bytes);
        let dirty = self.slots.dirty() as u64;
        let rows = (self.layer.bytes + frozen) as u64 / BLOCK * 2;
        base + rows + (dirty * 5).min(self.tree_blocks + dirty * 2)
    }

    // ---- lookups ----

    pub(super) fn onode_key(coll: Coll, key: &[u8]) -> Bytes {
        let mut k = BytesMut::with_capacity(9 + key.len());
        k.extend_from_slice(&[tag::ONODE]);
        k.extend_from_slice(&coll.0.to_be_bytes());
        k.extend_from_slice(key);
        k.freeze()
    }

    fn id_key(tag: u8, id: u64, rest: &[u8]) -> Bytes {
        let mut k = BytesMut::with_capacity(9 + rest.len());
        k.extend_from_slice(&[tag]);
        k.extend_from_slice(&id.to_be_bytes());
        k.extend_from_slice(rest);
        k.freeze()
    }

    pub(super) fn coll_key(coll: Coll) -> Bytes {
        Self::id_key(tag::COLL, coll.0, &[])
    }

    pub(super) fn family_key(id: u64) -> Bytes {
        Self::id_key(tag::FAMILY, id, &[])
    }

    pub(super) fn omap_header_key(omap: u64) -> Bytes {
        Self::id_key(tag::OMAP, omap, &[0])
    }

    pub(super) fn omap_key(omap: u64, row: &[u8]) -> Bytes {
        let mut k = BytesMut::with_capacity(10 + row.len());
        k.extend_from_slice(&[tag::OMAP]);
        k.extend_from_slice(&omap.to_be_bytes());
        k.extend_from_slice(&[1]);
        k.extend_from_slice(row);
        k.freeze()
    }

    /// Behind the last row of an omap.
    pub(super) fn omap_end(omap: u64) -> Bytes {
        Self::id_key(tag::OMAP, omap, &[2])
    }

    /// A row as the layers and the tree have it.
    pub(super) fn row(&mut self, key: &[u8]) -> Result<Option<Bytes>, Miss> {
        if let Some(found) = self.layer.get(key) {
            return Ok(found);
        }
        if let Some(found) = self.frozen.as_ref().and_then(|f| f.layer.get(key)) {
            return Ok(found);
        }
        self.tree.get(key)
    }

    /// At most `max` rows (or a few more) in `[from, end)` as the layers and the tree have them,
    /// and where to go on.
    pub(super) fn rows(
        &mut self,
        from: Bound<&[u8]>,
        end: &[u8],
        max: usize,
    ) -> Result<Scan, Miss> {
        let below = self.tree.scan(from, Some(end), max)?;
        let frozen = self.frozen.as_ref().map(|f| &*f.layer).filter(|l| !l.is_empty());
        // No layer is read further than `max` rows: a page costs what a page has, however much is
        // in memory.
        let mut next = below.next.clone();
        for layer in frozen.into_iter().chain([&self.layer]) {
            let upto = next.clone();
            if let Some(cut) = layer.row_after(from, upto.as_deref().unwrap_or(end), max.max(1)) {
                next = Some(cut);
            }
        }
        let stop = next.as_deref().unwrap_or(end);
        let changed = |l: &Layer| match from {
            Bound::Included(f) | Bound::Excluded(f) => l.touches(f, Some(stop)),
            Bound::Unbounded => true,
        };
        if !changed(&self.layer) && !frozen.is_some_and(changed) {
            return Ok(below);
        }
        let mut rows: BTreeMap<Bytes, Bytes> =
            below.rows.into_iter().filter(|(k, _)| &k[..] < stop).collect();
        if let Some(f) = frozen {
            f.overlay(from, Some(stop), &mut rows);
        }
        self.layer.overlay(from, Some(stop), &mut rows);
        Ok(Scan { rows: rows.into_iter().collect(), next })
    }

    /// Behind which number an object stands: its collection's, or that of the space that the
    /// collection has a part of.
    pub(super) fn place(&self, coll: Coll, key: &[u8]) -> Coll {
        match self.colls.get(&coll) {
            Some(Some(w)) if key >= &w.floor[..] => w.space,
            _ => coll,
        }
    }

    /// The slot of an object, existing or not, if what is in memory tells.
    pub(super) fn lookup(
        &mut self,
        coll: Coll,
        key: &Key,
    ) -> Result<Result<u32, StoreError>, Miss> {
        self.lookup_at(self.place(coll, key), key)
    }

    /// The same for an object in a known place.
    pub(super) fn lookup_at(
        &mut self,
        coll: Coll,
        key: &Key,
    ) -> Result<Result<u32, StoreError>, Miss> {
        if let Some(i) = self.slots.find(coll, key) {
            return Ok(Ok(i));
        }
        let row = self.row(&Self::onode_key(coll, key))?;
        Ok(match row.map(|r| Onode::decode(&r)).transpose() {
            Ok(onode) => {
                // No index is held yet by code that would do more than look: trimming is safe here.
                self.slots.trim(self.onode_budget);
                Ok(self.slots.insert(coll, key.clone(), onode.map(Box::new)))
            }
            Err(e) => Err(e),
        })
    }

    /// Brings in a tree node while the thread waits.
    pub(super) fn load_now(&mut self, ptr: &NodePtr) -> Result<(), StoreError> {
        let mut parts = BytesMut::with_capacity((ptr.blocks() * BLOCK) as usize);
        for (at, n) in &ptr.runs {
            parts.extend_from_slice(
                &self.dev.read_now(at * BLOCK, (u64::from(*n) * BLOCK) as usize)?,
            );
        }
        self.loaded(ptr, parts.freeze())
    }

    /// Takes in a tree node that was read.
    pub(super) fn loaded(&mut self, ptr: &NodePtr, bytes: Bytes) -> Result<(), StoreError> {
        if crc32c::crc32c(&bytes) != ptr.crc {
            return Err(StoreError::Corrupt(format!(
                "checksum of the tree node at block {}",
                ptr.key()
            )));
        }
        let node = Rc::new(Node::parse(bytes)?);
        self.tree.insert(ptr, node);
        Ok(())
    }

    /// Repeats `f` until it misses nothing, waiting for the device where it does.
    pub(super) fn now<T>(
        &mut self,
        mut f: impl FnMut(&mut State) -> Result<T, Miss>,
    ) -> Result<T, StoreError> {
        loop {
            match f(self) {
                Ok(t) => return Ok(t),
                Err(Miss(ptr)) => self.load_now(&ptr)?,
            }
        }
    }

    /// The slot of an object, waiting for the device if need be.
    pub(super) fn slot(&mut self, coll: Coll, key: &Key) -> Result<u32, StoreError> {
        self.now(|st| st.lookup(coll, key))?
    }

    /// Brings a family into memory.
    pub(super) fn family(&mut self, id: u64) -> Result<(), StoreError> {
        if !self.families.contains_key(&id) {
            let row = self.now(|st| st.row(&Self::family_key(id)))?;
            let row = row.ok_or_else(|| corrupt("a shared extent without its family"))?;
            self.families.insert(id, Family::decode(&row)?);
        }
        Ok(())
    }

    /// Brings all families that the object refers to into memory.
    pub(super) fn families_of(&mut self, slot: u32) -> Result<(), StoreError> {
        let Some(o) = &self.slots.get(slot).onode else { return Ok(()) };
        let mut last = 0;
        let mut ids: smallvec::SmallVec<[u64; 4]> = smallvec::SmallVec::new();
        for e in &o.extents {
            if e.family != 0 && e.family != last {
                last = e.family;
                ids.push(last);
            }
        }
        ids.into_iter().try_for_each(|id| self.family(id))
    }

    // ---- blocks ----

    /// The content of a physical block if it is in memory.
    pub(super) fn cached_block(&mut self, pblk: u64) -> Option<Bytes> {
        self.unwritten_block(pblk).or_else(|| self.cache.get(pblk).cloned())
    }

    /// The content of a block that may not be on the device yet. What is there of a damaged one is
    /// for no reader: the device's content does not have its checksum either.
    pub(super) fn unwritten_block(&mut self, pblk: u64) -> Option<Bytes> {
        if let Some(b) = self.pending.get(&pblk) {
            return (!is_damaged(b)).then(|| b.clone());
        }
        if let Some(b) = self.frozen.as_ref().and_then(|f| f.pending.get(&pblk)) {
            return (!is_damaged(b)).then(|| b.clone());
        }
        if !self.direct.is_empty()
            && let Some(b) = self.direct.get(&pblk)
        {
            return Some(b.clone());
        }
        None
    }

    fn use_run(&mut self, run: Run) {
        self.deltas.push(Delta::Used(run));
        // A late reader or a finished deferred write may have left the former owner's bytes.
        (run.0..run.0 + u64::from(run.1)).for_each(|b| self.cache.remove(b));
        if self.replay.is_some() {
            let wrong = self.alloc.take(run);
            debug_assert_eq!(wrong, 0, "replay uses a block twice");
        }
    }

    fn free_run(&mut self, run: Run) {
        self.deltas.push(Delta::Free(run));
        for b in run.0..run.0 + u64::from(run.1) {
            self.pending.remove(&b);
            self.cache.remove(b);
        }
        match &mut self.replay {
            Some(fresh) => {
                if !fresh.is_empty() {
                    fresh.retain(|b, _| *b < run.0 || *b >= run.0 + u64::from(run.1));
                }
                self.alloc.release(run);
            }
            None => match self.queue.back_mut() {
                Some(batch) => batch.freed.push(run),
                None => debug_assert!(false, "a change outside of a batch"),
            },
        }
    }

    /// Blocks of an extent are not referred to by one object any more.
    fn unref(&mut self, e: &Extent) {
        let run = (e.pblk, e.len());
        if e.family == 0 {
            return self.free_run(run);
        }
        let mut gone = smallvec::SmallVec::<[Run; 4]>::new();
        if let Some(f) = self.families.get_mut(&e.family) {
            f.sub(run, |r| gone.push(r));
            self.dirty_families.insert(e.family, ());
        }
        for r in gone {
            self.free_run(r);
        }
    }

    /// True if the blocks of this extent at `pblk` are this object's alone.
    pub(super) fn is_sole(&self, e: &Extent, pblk: u64) -> bool {
        e.family == 0 || self.families.get(&e.family).is_some_and(|f| f.count(pblk) == 1)
    }

    // ---- changes ----

    /// The record of an object, about to be changed; made if it does not exist.
    pub(super) fn modify(&mut self, slot: u32) -> &mut Onode {
        self.touch_slot(slot);
        let s = self.slots.get(slot);
        if s.onode.is_none() {
            let key = Self::onode_key(s.coll, &s.key);
            self.names.insert(key, true);
        }
        self.slots.get_mut(slot).onode.get_or_insert_default()
    }

    /// The slot's object is about to change or to go.
    fn touch_slot(&mut self, slot: u32) {
        self.encode_frozen(slot);
        self.slots.dirtied(slot);
    }

    /// Writes the object's record, as it was at the freeze, into the frozen layer, if that was not
    /// done yet.
    pub(super) fn encode_frozen(&mut self, slot: u32) {
        if !self.slots.is_frozen(slot) {
            return;
        }
        self.slots.thaw(slot);
        let weight = self.slots.reweigh(slot);
        let s = self.slots.get(slot);
        let value = s.onode.as_ref().map(|o| {
            let mut out = Vec::with_capacity(weight);
            o.encode(&mut out);
            Bytes::from(out)
        });
        let key = Self::onode_key(s.coll, &s.key);
        let layer = self.frozen.as_mut().and_then(|f| Rc::get_mut(&mut f.layer));
        layer.expect("the frozen layer is not merged before all records are in it").put(key, value);
    }

    fn take_onode(&mut self, slot: u32) -> Option<Box<Onode>> {
        self.touch_slot(slot);
        let s = self.slots.get_mut(slot);
        let o = s.onode.take();
        let key = Self::onode_key(s.coll, &s.key);
        self.names.insert(key, false);
        o
    }

    pub(super) fn create_collection(&mut self, coll: Coll, window: Option<Window>) {
        self.layer.put(Self::coll_key(coll), Some(Window::encode_row(window.as_ref())));
        self.colls.insert(coll, window);
    }

    /// The keys from `at` on become a collection of their own.
    pub(super) fn split_collection(
        &mut self,
        coll: Coll,
        at: &Key,
        new: Coll,
    ) -> Result<(), StoreError> {
        let mut window =
            self.colls.get(&coll).cloned().flatten().ok_or(StoreError::BadWindow(coll))?;
        // A copy: it outlives the caller's message.
        let rest =
            window.split_off(&Key::copy_from_slice(at)).ok_or(StoreError::BadWindow(coll))?;
        self.create_collection(coll, Some(window));
        self.create_collection(new, Some(rest));
        Ok(())
    }

    /// The range of `from` goes to `into`.
    pub(super) fn merge_collections(&mut self, from: Coll, into: Coll) -> Result<(), StoreError> {
        let window = |st: &State, coll| {
            st.colls.get(&coll).cloned().flatten().ok_or(StoreError::BadWindow(coll))
        };
        let (gone, mut joined) = (window(self, from)?, window(self, into)?);
        if !joined.join(&gone) {
            return Err(StoreError::BadWindow(into));
        }
        let space = joined.space;
        self.remove_collection(from);
        self.create_collection(into, Some(joined));
        if gone.space != space {
            self.move_range(&gone, space)?;
        }
        Ok(())
    }

    /// Moves all objects of a window to another space.
    fn move_range(&mut self, window: &Window, space: Coll) -> Result<(), StoreError> {
        let mut at = Some(window.start.clone());
        while let Some(start) = at {
            let page =
                self.now(|st| st.list_at(window.space, &start, window.end.as_deref(), 256))?;
            for key in page.keys {
                let from = self.now(|st| st.lookup_at(window.space, &key))??;
                let to = self.now(|st| st.lookup_at(space, &key))??;
                self.move_object(from, to);
            }
            at = page.next;
        }
        Ok(())
    }

    pub(super) fn remove_collection(&mut self, coll: Coll) {
        self.colls.remove(&coll);
        self.layer.put(Self::coll_key(coll), None);
    }

    /// Logical blocks from `lblk` on are at `segs` now, with these checksums. A block that was
    /// there before is overwritten in place. `inline`: the content, to be written later.
    pub(super) fn put(
        &mut self,
        slot: u32,
        lblk: u32,
        segs: &[Run],
        crcs: &[u32],
        size: u64,
        inline: Option<&[Bytes]>,
    ) {
        let o = self.modify(slot);
        o.size = size;
        let mut done = 0usize;
        let mut taken: smallvec::SmallVec<[Extent; 2]> = smallvec::SmallVec::new();
        for &(pblk, n) in segs {
            let o = self.slots.get_mut(slot).onode.get_or_insert_default();
            let (lo, hi) = (lblk + done as u32, lblk + done as u32 + n);
            let crcs = &crcs[done..done + n as usize];
            let i = o.find(lo);
            match o.extents.get_mut(i) {
                Some(e)
                    if e.lblk <= lo
                        && e.end() >= hi
                        && e.family == 0
                        && e.pblk + u64::from(lo - e.lblk) == pblk =>
                {
                    let at = (lo - e.lblk) as usize;
                    e.crcs[at..at + n as usize].copy_from_slice(crcs);
                }
                _ => {
                    o.punch(lo, hi, |e| taken.push(e));
                    o.insert(Extent { lblk: lo, pblk, family: 0, crcs: crcs.to_vec() });
                    // What of the run is new to the object.
                    let mut fresh_from = lo;
                    for e in taken.drain(..) {
                        let here = pblk + u64::from(e.lblk - lo);
                        if e.pblk != here {
                            self.unref(&e);
                            continue;
                        }
                        if e.lblk > fresh_from {
                            self.use_run((pblk + u64::from(fresh_from - lo), e.lblk - fresh_from));
                        }
                        fresh_from = e.end();
                        if e.family != 0 {
                            // Its only owner takes the block out of the family.
                            if let Some(f) = self.families.get_mut(&e.family) {
                                f.sub((e.pblk, e.len()), |_| {});
                                self.dirty_families.insert(e.family, ());
                            }
                        }
                    }
                    if hi > fresh_from {
                        self.use_run((pblk + u64::from(fresh_from - lo), hi - fresh_from));
                    }
                }
            }
            match (inline, &mut self.replay) {
                (Some(blocks), replay) => {
                    for (i, b) in blocks[done..done + n as usize].iter().enumerate() {
                        let at = pblk + i as u64;
                        // A record of a damaged block says so by its checksum.
                        let sound = replay.is_none() || crc32c::crc32c(b) == crcs[i];
                        self.pending.insert(at, if sound { b.clone() } else { damaged_block() });
                        if let Some(fresh) = replay {
                            fresh.remove(&at);
                        }
                    }
                }
                (None, Some(fresh)) => fresh.extend((pblk..).zip(crcs.iter().copied())),
                (None, None) => {}
            }
            done += n as usize;
        }
    }

    /// Logical blocks `[lo, hi)` become a hole.
    pub(super) fn punch(&mut self, slot: u32, lo: u32, hi: u32) {
        let mut taken = Vec::new();
        self.modify(slot).punch(lo, hi, |e| taken.push(e));
        for e in &taken {
            self.unref(e);
        }
    }

    pub(super) fn set_size(&mut self, slot: u32, size: u64) {
        self.modify(slot).size = size;
    }

    pub(super) fn remove(&mut self, slot: u32) {
        if let Some(o) = self.take_onode(slot) {
            self.drop_content(*o);
        }
    }

    fn drop_content(&mut self, o: Onode) {
        for e in &o.extents {
            self.unref(e);
        }
        if o.omap != 0 {
            self.layer.remove_range(Self::omap_header_key(o.omap), Self::omap_end(o.omap));
        }
    }

    /// `to` becomes a copy of `from`; both share all blocks then. Without `rows`, `to` keeps its
    /// own omap rows.
    pub(super) fn clone_object(
        &mut self,
        from: u32,
        to: u32,
        rows: bool,
    ) -> Result<(), StoreError> {
        if from == to {
            return Ok(());
        }
        let header = match &self.slots.get(from).onode {
            Some(o) if !rows && o.omap != 0 => {
                let key = Self::omap_header_key(o.omap);
                self.now(|st| st.row(&key))?
            }
            _ => None,
        };
        let mut old = std::mem::take(self.modify(to));
        let own_rows = if rows { 0 } else { std::mem::take(&mut old.omap) };
        self.drop_content(old);
        let Some(source) = &self.slots.get(from).onode else { return Ok(()) };
        let mut copy = source.as_ref().clone();
        let whole = (0, u32::MAX);
        copy.extents = self.share(from, whole.0, whole.1);
        if !rows {
            copy.omap = own_rows;
        } else if copy.omap != 0 {
            let source = copy.omap;
            copy.omap = self.new_id();
            self.copy_omap(source, copy.omap)?;
        }
        *self.modify(to) = copy;
        match header {
            Some(header) => self.omap_header(to, Bytes::copy_from_slice(&header)),
            None if own_rows != 0 => self.layer.put(Self::omap_header_key(own_rows), None),
            None => (),
        }
        Ok(())
    }

    /// Gives `to` the record of `from` and shares these ranges of its blocks; other blocks of `to`
    /// and its omap rows stay.
    pub(super) fn clone_parts(
        &mut self,
        from: u32,
        to: u32,
        blocks: &[(u32, u32)],
    ) -> Result<(), StoreError> {
        if from == to {
            return Ok(());
        }
        let omap = self.slots.get(from).onode.as_ref().map_or(0, |o| o.omap);
        let header = match omap {
            0 => None,
            omap => {
                let key = Self::omap_header_key(omap);
                self.now(|st| st.row(&key))?
            }
        };
        let mut parts = Vec::new();
        for (lo, hi) in blocks {
            parts.extend(self.share(from, *lo, *hi));
        }
        for (lo, hi) in blocks {
            self.punch(to, *lo, *hi);
        }
        let Some(source) = &self.slots.get(from).onode else { return Ok(()) };
        let (size, hint, attrs) = (source.size, source.hint, source.attrs.clone());
        let o = self.modify(to);
        (o.size, o.hint, o.attrs) = (size, hint, attrs);
        parts.into_iter().for_each(|e| o.insert(e));
        let own_rows = o.omap;
        match header {
            Some(header) => self.omap_header(to, Bytes::copy_from_slice(&header)),
            None if own_rows != 0 => self.layer.put(Self::omap_header_key(own_rows), None),
            None => (),
        }
        Ok(())
    }

    fn copy_omap(&mut self, from: u64, to: u64) -> Result<(), StoreError> {
        let end = Self::omap_end(from);
        let mut at = Some(Self::omap_header_key(from));
        while let Some(start) = at {
            let page = self.now(|st| st.rows(Bound::Included(&start), &end, 1024))?;
            for (k, v) in page.rows {
                self.layer
                    .put(Self::id_key(tag::OMAP, to, &k[9..]), Some(Bytes::copy_from_slice(&v)));
            }
            at = page.next;
        }
        Ok(())
    }

    /// Makes the blocks `[lo, hi)` of an object shared, with one reference more, and returns their
    /// extents.
    fn share(&mut self, slot: u32, lo: u32, hi: u32) -> Vec<Extent> {
        let Some(o) = &self.slots.get(slot).onode else { return Vec::new() };
        let fresh = o.extents.iter().any(|e| e.family == 0 && e.end() > lo && e.lblk < hi);
        let existing = o.extents.iter().map(|e| e.family).find(|f| *f != 0);
        let family = match (fresh, existing) {
            (false, _) => 0,
            (true, Some(f)) => f,
            (true, None) => self.new_id(),
        };
        let mut parts = Vec::new();
        let o = self.modify(slot);
        o.punch(lo, hi, |e| parts.push(e));
        for mut e in parts.clone() {
            if e.family == 0 {
                e.family = family;
            }
            o.insert(e);
        }
        for e in &mut parts {
            let run = (e.pblk, e.len());
            let enters = e.family == 0;
            if enters {
                e.family = family;
            }
            let f = self.families.entry(e.family).or_default();
            if enters {
                f.enter(run)
            } else {
                f.add(run)
            }
            self.dirty_families.insert(e.family, ());
        }
        parts
    }

    /// Blocks `[to_lblk, to_lblk + n)` of `to` become those from `lblk` on of `from`, shared; holes
    /// too.
    pub(super) fn share_range(
        &mut self,
        from: u32,
        lblk: u32,
        n: u32,
        to: u32,
        to_lblk: u32,
        size: u64,
    ) {
        let parts = self.share(from, lblk, lblk + n);
        // Referred to before the old blocks are given up: they may be the same.
        self.punch(to, to_lblk, to_lblk + n);
        let o = self.modify(to);
        for mut e in parts {
            e.lblk = e.lblk - lblk + to_lblk;
            o.insert(e);
        }
        o.size = size;
    }

    pub(super) fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// The omap's number, given now if the object has none.
    pub(super) fn omap_of(&mut self, slot: u32) -> u64 {
        let omap = self.modify(slot).omap;
        if omap != 0 {
            return omap;
        }
        let id = self.new_id();
        self.modify(slot).omap = id;
        id
    }

    pub(super) fn omap_set(&mut self, slot: u32, rows: &[(Bytes, Bytes)]) {
        let omap = self.omap_of(slot);
        for (k, v) in rows {
            self.layer.put(Self::omap_key(omap, k), Some(Bytes::copy_from_slice(v)));
        }
    }

    pub(super) fn omap_rm(&mut self, slot: u32, rows: &[Bytes]) {
        let omap = self.omap_of(slot);
        for k in rows {
            self.layer.put(Self::omap_key(omap, k), None);
        }
    }

    pub(super) fn omap_rm_range(&mut self, slot: u32, start: &[u8], end: Option<&[u8]>) {
        let omap = self.omap_of(slot);
        let to = end.map_or_else(|| Self::omap_end(omap), |e| Self::omap_key(omap, e));
        self.layer.remove_range(Self::omap_key(omap, start), to);
    }

    /// Moves rows to another object.
    pub(super) fn omap_move(
        &mut self,
        slot: u32,
        range: &RowRange,
        to: u32,
    ) -> Result<(), StoreError> {
        if slot == to {
            return Ok(());
        }
        let (from, to) = (self.omap_of(slot), self.omap_of(to));
        let (mut at, end) =
            (Some(Self::omap_key(from, &range.start)), Self::omap_key(from, &range.end));
        while let Some(start) = at {
            if start >= end {
                break;
            }
            let page = self.now(|st| st.rows(Bound::Included(&start), &end, 1024))?;
            for (k, v) in page.rows {
                // Tag, number of the omap, and a byte that tells rows from the header.
                let Some(row) = k.get(10..).filter(|row| range.has(row)) else { continue };
                self.layer.put(Self::omap_key(to, row), Some(Bytes::copy_from_slice(&v)));
                self.layer.put(Bytes::copy_from_slice(&k), None);
            }
            at = page.next;
        }
        Ok(())
    }

    pub(super) fn omap_clear(&mut self, slot: u32) {
        let omap = self.omap_of(slot);
        self.layer.remove_range(Self::omap_header_key(omap), Self::omap_end(omap));
    }

    pub(super) fn omap_header(&mut self, slot: u32, header: Bytes) {
        let omap = self.omap_of(slot);
        self.layer.put(Self::omap_header_key(omap), Some(header));
    }

    pub(super) fn move_object(&mut self, from: u32, to: u32) {
        if let Some(o) = self.take_onode(from) {
            *self.modify(to) = *o;
        }
    }
}
