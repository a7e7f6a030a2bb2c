//! Checkpoints: what is in memory goes to its place, then the log's tail advances.
//!
//! 1. *Freeze*: what has changed is set aside at one instant, in constant time. Transactions go on
//!    in fresh structures. An object record that changes again is encoded for the checkpoint just
//!    before.
//! 2. Wait until all records up to the freeze are durable.
//! 3. Write the deferred data to its place, in the order of the device.
//! 4. Encode the changed object records and merge all rows into the tree, in steps.
//! 5. Write the changed pages of the allocation map; flush.
//! 6. Write the superblock; flush. Only now old tree nodes and the log before the freeze are free.

use super::Disk;
use super::pace::{Pace, Room};
use super::state::{Delta, Frozen, State, is_damaged};
use super::turns::{REST, Turns, UnderWay, WRITE_MAX};
use crate::alloc::Run;
use crate::dev::{AlignedBuf, Gather, Io};
use crate::error::StoreError;
use crate::superblock::{LogPos, Superblock};
use crate::tree::{self, Layer, Node, NodePtr, Pages};
use crate::types::BLOCK;
use bytes::Bytes;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// So many objects or rows take much less than a step.
const FEW: usize = 8;

/// Runs checkpoints when they are wanted, until the store goes.
pub(super) async fn run(disk: &Disk) {
    loop {
        disk.checkpoint.notified().await;
        if disk.closing.get() || disk.check_failed().is_err() {
            return;
        }
        if (disk.is_wanted() || disk.congested())
            && let Err(e) = disk.checkpoint_once().await
        {
            disk.fail(e);
            return;
        }
    }
}

/// Set aside by a freeze besides [`Frozen`].
struct Freeze {
    slots: Vec<u32>,
    deltas: Vec<Delta>,
    /// The last transaction that the checkpoint contains.
    last: u64,
    next_id: u64,
    /// Where the log goes on if there was nothing in the queue.
    pos: Option<LogPos>,
}

impl State {
    fn freeze(&mut self, last: u64) -> Freeze {
        debug_assert!(self.frozen.is_none());
        let mut layer = std::mem::take(&mut self.layer);
        for id in std::mem::take(&mut self.dirty_families).into_keys() {
            let Some(f) = self.families.get(&id) else { continue };
            let value = if f.0.is_empty() { None } else { Some(Bytes::from(f.encode())) };
            if value.is_none() {
                self.families.remove(&id);
            }
            layer.put(Self::family_key(id), value);
        }
        let slots = self.slots.freeze();
        self.frozen = Some(Frozen {
            layer: Rc::new(layer),
            names: std::mem::take(&mut self.names),
            pending: Rc::new(std::mem::take(&mut self.pending)),
        });
        self.sealed_end = None;
        let pos = match self.queue.back_mut() {
            Some(batch) => {
                batch.sealed = true;
                None
            }
            // The batch under way is the last one, and `head` is behind it already.
            None => Some(self.head),
        };
        Freeze { slots, deltas: std::mem::take(&mut self.deltas), last, next_id: self.next_id, pos }
    }

    /// Applies what has happened to blocks to the allocation map.
    fn mark(&mut self, delta: Delta) {
        let wrong = match delta {
            Delta::Used(run) => self.image.mark(run, true),
            Delta::Free(run) => self.image.mark(run, false),
        };
        debug_assert_eq!(wrong, 0, "the allocation map disagrees with the change");
    }
}

impl Disk {
    /// A checkpoint of everything submitted so far.
    pub(crate) async fn checkpoint_now(&self) -> Result<(), StoreError> {
        let _awaited = self.steps.awaited();
        self.checkpoint_alone().await
    }

    async fn checkpoint_once(&self) -> Result<(), StoreError> {
        if self.running.get() { Ok(()) } else { self.checkpoint_alone().await }
    }

    /// A checkpoint, when the one under way is done.
    async fn checkpoint_alone(&self) -> Result<(), StoreError> {
        loop {
            self.check_failed()?;
            if self.running.replace(true) {
                let mut progress = std::pin::pin!(self.progress.notified());
                progress.as_mut().enable();
                if self.running.get() {
                    progress.await;
                }
                continue;
            }
            let result = self.steps.run(self.checkpoint_steps()).await;
            self.running.set(false);
            *self.pace.borrow_mut() = None;
            self.progress.notify_waiters();
            return result;
        }
    }

    async fn checkpoint_steps(&self) -> Result<(), StoreError> {
        let freeze = self.state.borrow_mut().freeze(self.line.submitted());
        self.begin_pace(freeze.slots.len());
        self.wait_durable(freeze.last).await?;
        let tail = match freeze.pos {
            Some(pos) => pos,
            None => {
                let sealed = self.state.borrow_mut().sealed_end.take();
                let Some((last, pos)) = sealed else {
                    return Err(StoreError::Corrupt(
                        "the sealed batch did not report its end".into(),
                    ));
                };
                debug_assert_eq!(last, freeze.last);
                pos
            }
        };
        self.write_pending().await?;
        let mut pager = Pager::new(self);
        for chunk in freeze.slots.chunks(FEW) {
            {
                let mut st = self.state.borrow_mut();
                chunk.iter().for_each(|&i| st.encode_frozen(i));
            }
            self.step_pace(chunk.len() as u64);
            self.breathe().await;
        }
        let (layer, root) = {
            let st = self.state.borrow();
            let Some(f) = &st.frozen else {
                return Err(StoreError::Corrupt("no frozen state".into()));
            };
            (f.layer.clone(), st.tree.root.clone())
        };
        let root =
            if layer.is_empty() { root } else { tree::merge(&mut pager, root, &layer).await?.0 };
        drop(layer);
        pager.writes.finish().await?;
        self.complete_pace();
        let Pager { dropped, stored, .. } = pager;

        // From here on lookups use the new tree; old nodes stay allocated until the superblock is
        // durable.
        let old_blocks: u64 = dropped.iter().map(NodePtr::blocks).sum();
        let new_blocks: u64 = stored.iter().map(|r| u64::from(r.1)).sum();
        let (merged, pages, sb) = {
            let mut st = self.state.borrow_mut();
            st.tree.root = root.clone();
            st.tree_version += 1;
            st.tree_blocks = st.tree_blocks + new_blocks - old_blocks;
            let merged = st.frozen.take();
            st.release_late();
            dropped.iter().for_each(|p| st.tree.forget(p));
            for chunk in freeze.deltas {
                st.mark(chunk);
            }
            stored.iter().for_each(|r| st.mark(Delta::Used(*r)));
            dropped.iter().flat_map(|p| &p.runs).for_each(|r| st.mark(Delta::Free(*r)));
            let old = self.sb.borrow();
            let sb = Superblock {
                generation: old.generation + 1,
                tail,
                next_id: freeze.next_id,
                root,
                tree_blocks: st.tree_blocks,
                ..old.clone()
            };
            (merged, st.image.take_dirty(sb.generation), sb)
        };
        let mut writes = Writes::new(self);
        for (at, _, page) in &pages {
            writes.push(sb.map_start() + at, page.clone()).await?;
        }
        writes.finish().await?;
        self.dev.flush().await?;
        self.dev.write(sb.place(), smallvec::smallvec![sb.encode()], true).await?;
        {
            let mut st = self.state.borrow_mut();
            let numbers: Vec<u32> = pages.iter().map(|(_, p, _)| *p).collect();
            st.image.written(&numbers);
            st.tail = tail;
            for p in &dropped {
                for r in &p.runs {
                    let wrong = st.alloc.release(*r);
                    debug_assert_eq!(wrong, 0, "a tree node is freed twice");
                }
            }
            st.prune_families();
            *self.sb.borrow_mut() = sb;
        }
        self.checkpoints.set(self.checkpoints.get() + 1);
        self.progress.notify_waiters();
        if let Some(Frozen { layer, names, .. }) = merged {
            if let Ok(Layer { rows, .. }) = Rc::try_unwrap(layer) {
                self.let_go(rows, || !self.is_wanted()).await;
            }
            self.let_go(names, || !self.is_wanted()).await;
        }
        Ok(())
    }

    /// Gives back memory. Of a hundred thousand rows that takes longer than a step.
    async fn let_go<T>(&self, all: impl IntoIterator<Item = T>, has_time: impl Fn() -> bool) {
        for (n, one) in all.into_iter().enumerate() {
            drop(one);
            if n % FEW == FEW - 1 {
                self.steps.breathe(&has_time).await;
            }
        }
    }

    /// Whether a checkpoint, or the next one, should begin.
    fn is_wanted(&self) -> bool {
        let st = self.state.borrow();
        st.log_reserved() > self.checkpoint_at() || st.dirty_bytes() > self.dirty_max.get()
    }

    /// A step may end here.
    async fn breathe(&self) {
        self.steps.breathe(|| !self.is_tight()).await;
    }

    /// From here on writers go at the speed of the checkpoint that has just been begun, with so
    /// many objects.
    fn begin_pace(&self, objects: usize) {
        let st = self.state.borrow();
        let rows = st.frozen.as_ref().map_or(0, |f| f.layer.bytes) as u64;
        let log = Room { begin: st.log_reserved(), limit: self.log_limit() };
        let dirty = Room { begin: st.dirty_bytes(), limit: self.dirty_limit() };
        *self.pace.borrow_mut() =
            Some(Pace::new(log, dirty, st.pending_blocks() + objects as u64 + rows / BLOCK));
    }

    fn step_pace(&self, steps: u64) {
        if self.pace.borrow().as_ref().is_some_and(|p| p.step(steps)) {
            self.progress.notify_waiters();
        }
    }

    fn complete_pace(&self) {
        if self.pace.borrow().as_ref().is_some_and(Pace::complete) {
            self.progress.notify_waiters();
        }
    }

    async fn wait_durable(&self, seq: u64) -> Result<(), StoreError> {
        loop {
            let mut progress = std::pin::pin!(self.progress.notified());
            progress.as_mut().enable();
            self.check_failed()?;
            if self.line.durable() >= seq {
                return Ok(());
            }
            progress.await;
        }
    }

    /// Brings the frozen deferred writes to their place.
    async fn write_pending(&self) -> Result<(), StoreError> {
        let pending = match &self.state.borrow().frozen {
            Some(f) => f.pending.clone(),
            None => return Ok(()),
        };
        let mut order: Vec<u64> = pending.keys().copied().collect();
        order.sort_unstable();
        let mut writes = Writes::new(self);
        for at in &order {
            if let Some(b) = pending.get(at) {
                writes.push(at * BLOCK, b.clone()).await?;
            }
            self.step_pace(1);
            self.breathe().await;
        }
        writes.finish().await?;
        // The blocks are clean now. Those that were freed meanwhile belong to no object, and those
        // that were overwritten are found in the newer writes first.
        for step in order.chunks(FEW) {
            {
                let mut st = self.state.borrow_mut();
                for at in step {
                    if let Some(b) = pending.get(at)
                        && !st.pending.contains_key(at)
                        && !is_damaged(b)
                    {
                        st.cache.insert(*at, b.clone());
                    }
                }
            }
            self.breathe().await;
        }
        if let Some(f) = &mut self.state.borrow_mut().frozen {
            f.pending = Rc::default();
        }
        if let Ok(pending) = Rc::try_unwrap(pending) {
            self.let_go(pending, || !self.is_tight()).await;
        }
        Ok(())
    }
}

/// Writes under way. Ones that follow each other on the device are sent as one.
struct Writes<'a> {
    disk: &'a Disk,
    since: Instant,
    at: u64,
    len: u64,
    gather: Gather,
    /// With their bytes, and when they began.
    under_way: VecDeque<(Io<()>, u64, Instant)>,
    /// Bytes of these.
    bytes: u64,
    /// The duration of the last one.
    took: Duration,
    turns: Turns,
}

impl Writes<'_> {
    fn new(disk: &Disk) -> Writes<'_> {
        let turns = Turns::new(disk.dev.asked());
        let (gather, under_way) = (Gather::new(), VecDeque::new());
        Writes {
            disk,
            since: Instant::now(),
            at: 0,
            len: 0,
            gather,
            under_way,
            bytes: 0,
            took: Duration::ZERO,
            turns,
        }
    }

    async fn push(&mut self, at: u64, bytes: Bytes) -> Result<(), StoreError> {
        let n = bytes.len() as u64;
        if self.at + self.len != at || self.len + n > WRITE_MAX {
            self.send().await?;
            self.at = at;
        }
        self.len += n;
        self.gather.push(bytes);
        Ok(())
    }

    async fn send(&mut self) -> Result<(), StoreError> {
        if self.len == 0 {
            return Ok(());
        }
        self.turns.look(self.disk.dev.asked(), self.since.elapsed());
        loop {
            let under_way = UnderWay { writes: self.under_way.len(), bytes: self.bytes };
            if self.turns.may_begin(self.len, under_way, self.disk.is_tight()) {
                break;
            }
            if self.under_way.is_empty() {
                tokio::time::sleep(self.took * REST).await;
                self.turns.rested(self.disk.dev.asked(), self.since.elapsed());
            } else {
                self.end_one().await?;
                self.turns.ended(self.disk.dev.asked(), self.since.elapsed());
            }
        }
        let io = self.disk.dev.write(self.at, std::mem::take(&mut self.gather), false);
        self.under_way.push_back((io, self.len, Instant::now()));
        self.bytes += self.len;
        self.len = 0;
        Ok(())
    }

    /// Waits for the oldest one, if there is one.
    async fn end_one(&mut self) -> Result<(), StoreError> {
        if let Some((io, bytes, begun)) = self.under_way.pop_front() {
            io.await?;
            self.took = begun.elapsed();
            self.bytes -= bytes;
        }
        Ok(())
    }

    async fn finish(&mut self) -> Result<(), StoreError> {
        self.send().await?;
        while !self.under_way.is_empty() {
            self.end_one().await?;
        }
        Ok(())
    }
}

/// The store as the tree's merge sees it.
struct Pager<'a> {
    disk: &'a Disk,
    writes: Writes<'a>,
    dropped: Vec<NodePtr>,
    stored: Vec<Run>,
}

impl<'a> Pager<'a> {
    fn new(disk: &'a Disk) -> Pager<'a> {
        Pager { disk, writes: Writes::new(disk), dropped: Vec::new(), stored: Vec::new() }
    }
}

impl Pages for Pager<'_> {
    async fn load(&mut self, ptr: &NodePtr) -> Result<Rc<Node>, StoreError> {
        loop {
            if let Some(node) = self.disk.state.borrow_mut().tree.cached(ptr) {
                return Ok(node);
            }
            self.disk.load_node(ptr).await?;
        }
    }

    async fn store(&mut self, node: AlignedBuf) -> Result<NodePtr, StoreError> {
        let bytes = node.freeze();
        let mut runs = smallvec::SmallVec::new();
        {
            let mut st = self.disk.state.borrow_mut();
            if !st.alloc.allocate((bytes.len() as u64 / BLOCK) as u32, &mut runs) {
                return Err(StoreError::NoSpace);
            }
        }
        let ptr = NodePtr { crc: crc32c::crc32c(&bytes), runs };
        let mut done = 0;
        for (at, n) in &ptr.runs {
            let len = *n as usize * BLOCK as usize;
            self.writes.push(at * BLOCK, bytes.slice(done..done + len)).await?;
            done += len;
        }
        self.stored.extend(ptr.runs.iter().copied());
        self.disk.step_pace(bytes.len() as u64 / BLOCK);
        let node = Rc::new(Node::parse(bytes)?);
        self.disk.state.borrow_mut().tree.insert(&ptr, node);
        Ok(ptr)
    }

    fn drop_node(&mut self, ptr: &NodePtr) {
        self.dropped.push(ptr.clone());
    }

    async fn breathe(&mut self) {
        self.disk.breathe().await;
    }
}

impl State {
    /// Forgets families that are as the tree has them, when there are many.
    fn prune_families(&mut self) {
        if self.families.len() > 4096 {
            let dirty = &self.dirty_families;
            self.families.retain(|id, _| dirty.contains_key(id));
        }
    }
}
