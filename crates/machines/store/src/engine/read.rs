//! Reading. Everything that is in memory is answered without yielding.

use super::state::State;
use super::{Disk, nodes};
use crate::block_crc::block_crcs;
use crate::error::StoreError;
use crate::mem::{push_range, push_zeros};
use crate::onode::Onode;
use crate::tree::{Miss, NodePtr};
use crate::types::{BLOCK, Buffers, Coll, Key, ListPage, OmapPage, Range, Stat};
use bytes::Bytes;
use denc::crc::Sum;
use smallvec::SmallVec;
use std::collections::BTreeSet;
use std::ops::Bound;

/// A part of what a read returns.
enum Piece {
    Zeros(u64),
    Mem(Bytes),
    /// Blocks to read; of their bytes, `[from, to)` is wanted.
    Dev {
        lblk: u32,
        pblk: u64,
        crcs: SmallVec<[u32; 8]>,
        from: usize,
        to: usize,
    },
}

/// Blocks of one read that are kept in the cache, at most.
const CACHE_MAX: usize = 32;

/// Rows that a leaf of the tree has at least, as a rule: so many leaves a scan will want.
const ROWS_A_NODE: usize = 64;

/// Nodes that a scan brings in at a time, at most.
const AHEAD_MAX: usize = 16;

impl State {
    /// At most `max` keys of a collection from `start` to before `end`. A page may be short.
    pub(super) fn list(
        &mut self,
        coll: Coll,
        start: &[u8],
        end: Option<&[u8]>,
        max: usize,
    ) -> Result<ListPage, Miss> {
        let Some(Some(w)) = self.colls.get(&coll).cloned() else {
            return self.list_at(coll, start, end, max);
        };
        if start < &w.floor[..] {
            // The collection's own keys, then those in the space.
            let upto = end.map_or(&w.floor[..], |e| e.min(&w.floor[..]));
            let mut page = self.list_at(coll, start, Some(upto), max)?;
            if page.next.is_none() && end.is_none_or(|e| e > &w.start[..]) {
                page.next = Some(w.start);
            }
            return Ok(page);
        }
        let from = start.max(&w.start[..]);
        let upto = match (end, w.end.as_deref()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        self.list_at(w.space, from, upto, max)
    }

    /// The same of what stands behind a number in the tree.
    pub(super) fn list_at(
        &mut self,
        coll: Coll,
        start: &[u8],
        end: Option<&[u8]>,
        max: usize,
    ) -> Result<ListPage, Miss> {
        let from = Self::onode_key(coll, start);
        let end = match (end, coll.0.checked_add(1)) {
            (Some(e), _) => Self::onode_key(coll, e),
            (None, Some(next)) => Self::onode_key(Coll(next), &[]),
            (None, None) => Bytes::from_static(&[super::state::tag::ONODE + 1]),
        };
        let mut page = ListPage::default();
        if from >= end {
            return Ok(page);
        }
        let rows = self.rows(Bound::Included(&from), &end, max.saturating_add(1))?;
        let frozen = self.frozen.as_ref().map(|f| &f.names);
        let mut next = rows.next;
        for names in frozen.into_iter().chain([&self.names]) {
            let upto = next.clone().unwrap_or_else(|| end.clone());
            // As in `rows`: no further than a page of what changed.
            if let Some((cut, _)) = names.range(from.clone()..upto).nth(max.saturating_add(1)) {
                next = Some(cut.clone());
            }
        }
        let stop = next.clone().unwrap_or(end);
        let mut keys: BTreeSet<Bytes> =
            rows.rows.into_iter().map(|(k, _)| k).filter(|k| *k < stop).collect();
        for names in frozen.into_iter().chain([&self.names]) {
            for (k, exists) in names.range(from.clone()..stop.clone()) {
                if *exists {
                    keys.insert(k.clone())
                } else {
                    keys.remove(k)
                };
            }
        }
        page.next = next.map(|k| k.slice(9..));
        for k in keys {
            if page.keys.len() == max {
                page.next = Some(k.slice(9..));
                break;
            }
            page.keys.push(k.slice(9..));
        }
        Ok(page)
    }

    /// What to do for a read of `[off, off + len)`; with `device`, of all that is on the device.
    fn plan(&mut self, slot: u32, off: u64, len: u64, device: bool) -> SmallVec<[Piece; 2]> {
        let mut out: SmallVec<[Piece; 2]> = SmallVec::new();
        let Some(o) = self.slots.get_mut(slot).onode.take() else { return out };
        let end = off.saturating_add(len).min(o.size);
        let mut i = o.find((off / BLOCK) as u32);
        let mut at = off;
        while at < end {
            let lblk = (at / BLOCK) as u32;
            let next = o.extents.get(i);
            match next.filter(|e| e.lblk <= lblk) {
                None => {
                    let upto = next.map_or(end, |e| end.min(u64::from(e.lblk) * BLOCK));
                    out.push(Piece::Zeros(upto - at));
                    at = upto;
                }
                Some(e) => {
                    let upto = end.min(u64::from(e.end()) * BLOCK);
                    while at < upto {
                        let lblk = (at / BLOCK) as u32;
                        let k = (lblk - e.lblk) as usize;
                        let (from, to) = (
                            (at % BLOCK) as usize,
                            (BLOCK.min(upto - at / BLOCK * BLOCK)) as usize,
                        );
                        let pblk = e.pblk + k as u64;
                        match if device {
                            self.unwritten_block(pblk)
                        } else {
                            self.cached_block(pblk)
                        } {
                            Some(b) => out.push(Piece::Mem(b.slice(from..to))),
                            None => match out.last_mut() {
                                Some(Piece::Dev { pblk: p, crcs, to: t, .. })
                                    if *p + crcs.len() as u64 == pblk
                                        && *t == crcs.len() * BLOCK as usize =>
                                {
                                    *t += to;
                                    crcs.push(e.crcs[k]);
                                }
                                _ => {
                                    let crcs = SmallVec::from_iter([e.crcs[k]]);
                                    out.push(Piece::Dev { lblk, pblk, crcs, from, to });
                                }
                            },
                        }
                        at += (to - from) as u64;
                    }
                    i += 1;
                }
            }
        }
        self.slots.get_mut(slot).onode = Some(o);
        out
    }

    /// True if the block is still where it was when a read was planned, with the same content.
    fn unchanged(&mut self, coll: Coll, key: &Key, lblk: u32, pblk: u64, crc: u32) -> bool {
        let place = self.place(coll, key);
        let Some(slot) = self.slots.find(place, key) else { return false };
        let o = &self.slots.get(slot).onode;
        o.as_ref().and_then(|o| o.block(lblk)).is_some_and(|(_, p, c)| p == pblk && c == crc)
    }
}

impl Disk {
    /// Brings a tree node into memory.
    pub(super) async fn load_node(&self, ptr: &NodePtr) -> Result<(), StoreError> {
        self.load_nodes(std::slice::from_ref(ptr)).await
    }

    /// Brings tree nodes into memory, reading them at the same time.
    async fn load_nodes(&self, ptrs: &[NodePtr]) -> Result<(), StoreError> {
        let version = self.state.borrow().tree_version;
        nodes::read(&self.dev, ptrs, |ptr, bytes| {
            let mut st = self.state.borrow_mut();
            match st.loaded(ptr, bytes) {
                // The node may have been replaced while it was read; the caller looks again.
                Err(_) if st.tree_version != version => Ok(()),
                other => other,
            }
        })
        .await
    }

    /// Repeats `f` until it misses nothing.
    async fn with<T>(
        &self,
        mut f: impl FnMut(&mut State) -> Result<T, Miss>,
    ) -> Result<T, StoreError> {
        loop {
            let miss = match f(&mut self.state.borrow_mut()) {
                Ok(t) => return Ok(t),
                Err(Miss(ptr)) => ptr,
            };
            self.load_node(&miss).await?;
        }
    }

    /// The same for a scan from `start` to before `end` of about `rows` rows: with the node that is
    /// missing come those that the scan will miss next.
    async fn with_ahead<T>(
        &self,
        start: &[u8],
        end: &[u8],
        rows: usize,
        mut f: impl FnMut(&mut State) -> Result<T, Miss>,
    ) -> Result<T, StoreError> {
        let max = (rows / ROWS_A_NODE).clamp(1, AHEAD_MAX);
        loop {
            let (missing, ahead) = {
                let mut st = self.state.borrow_mut();
                let ptr = match f(&mut st) {
                    Ok(t) => return Ok(t),
                    Err(Miss(ptr)) => ptr,
                };
                (ptr, st.tree.ahead(start, end, max))
            };
            let among = ahead.len() > 1 && ahead.iter().any(|a| a.key() == missing.key());
            // What is wrong with a neighbour is told to the reader that really needs it.
            if !among || self.load_nodes(&ahead).await.is_err() {
                self.load_node(&missing).await?;
            }
        }
    }

    /// The slot of an object that exists. Valid until something yields.
    pub(super) async fn slot_of(&self, coll: Coll, key: &Key) -> Result<u32, StoreError> {
        let slot = self.with(|st| st.lookup(coll, key)).await??;
        let st = self.state.borrow();
        if st.slots.get(slot).onode.is_some() {
            return Ok(slot);
        }
        if !st.colls.contains_key(&coll) {
            return Err(StoreError::NoCollection(coll));
        }
        Err(StoreError::NoObject { coll, key: key.clone() })
    }

    async fn onode<T>(
        &self,
        coll: Coll,
        key: &Key,
        f: impl FnOnce(&Onode) -> T,
    ) -> Result<T, StoreError> {
        let slot = self.slot_of(coll, key).await?;
        let st = self.state.borrow();
        match &st.slots.get(slot).onode {
            Some(o) => Ok(f(o)),
            None => Err(StoreError::NoObject { coll, key: key.clone() }),
        }
    }

    /// With `device`, nothing that is on the device is taken from the cache.
    pub(crate) async fn read(
        &self,
        coll: Coll,
        key: &Key,
        off: u64,
        len: u64,
        device: bool,
    ) -> Result<(Buffers, Sum), StoreError> {
        // A block that changes while it is read is read again; so is, once, one that is damaged.
        let mut damaged = 0;
        'again: loop {
            let slot = self.slot_of(coll, key).await?;
            let plan = self.state.borrow_mut().plan(slot, off, len, device);
            let mut reads: SmallVec<[_; 2]> = SmallVec::new();
            for p in &plan {
                if let Piece::Dev { pblk, crcs, .. } = p {
                    reads.push(self.dev.read_data(pblk * BLOCK, crcs.len() * BLOCK as usize));
                }
            }
            let mut out = Buffers::new();
            let mut sum = Sum::EMPTY;
            let few = reads.len() <= CACHE_MAX && !device;
            let mut reads = reads.into_iter();
            for p in plan {
                match p {
                    Piece::Zeros(n) => {
                        push_zeros(&mut out, n);
                        sum = sum.then(Sum::of_zeros(n));
                    }
                    Piece::Mem(b) => {
                        // Not from the block's own checksum, with which it was not compared just
                        // now.
                        sum = sum.then(Sum::of(&b));
                        out.push(b);
                    }
                    Piece::Dev { lblk, pblk, crcs, from, to } => {
                        let Some(io) = reads.next() else { continue };
                        let bytes = io.await?;
                        let keep = few && crcs.len() <= CACHE_MAX;
                        let found = block_crcs(bytes.chunks_exact(BLOCK as usize));
                        for (i, (&crc, found)) in crcs.iter().zip(found).enumerate() {
                            let block = i * BLOCK as usize..(i + 1) * BLOCK as usize;
                            let (lblk, pblk) = (lblk + i as u32, pblk + i as u64);
                            if found != crc {
                                let same =
                                    self.state.borrow_mut().unchanged(coll, key, lblk, pblk, crc);
                                damaged += usize::from(same);
                                if damaged > 1 {
                                    let off = u64::from(lblk) * BLOCK;
                                    return Err(StoreError::Checksum {
                                        coll,
                                        key: key.clone(),
                                        off,
                                    });
                                }
                                continue 'again;
                            }
                            let wanted = block.start.max(from)..block.end.min(to);
                            sum = sum.then(match wanted == block {
                                true => Sum::from_usual(crc, BLOCK),
                                false => Sum::of(&bytes[wanted]),
                            });
                            if keep {
                                let mut st = self.state.borrow_mut();
                                if st.unchanged(coll, key, lblk, pblk, crc) {
                                    st.cache.insert(pblk, bytes.slice(block));
                                }
                            }
                        }
                        out.push(bytes.slice(from..to));
                    }
                }
            }
            return Ok((out, sum));
        }
    }

    pub(crate) async fn stat(&self, coll: Coll, key: &Key) -> Result<Stat, StoreError> {
        self.onode(coll, key, Onode::stat).await
    }

    pub(crate) async fn attr(
        &self,
        coll: Coll,
        key: &Key,
        name: &[u8],
    ) -> Result<Bytes, StoreError> {
        self.onode(coll, key, |o| o.attr(name).cloned()).await?.ok_or(StoreError::NoAttr)
    }

    pub(crate) async fn attrs(
        &self,
        coll: Coll,
        key: &Key,
    ) -> Result<Vec<(Bytes, Bytes)>, StoreError> {
        self.onode(coll, key, |o| o.attrs.clone()).await
    }

    pub(crate) async fn omap_header(&self, coll: Coll, key: &Key) -> Result<Bytes, StoreError> {
        match self.onode(coll, key, |o| o.omap).await? {
            0 => Ok(Bytes::new()),
            omap => {
                let row = State::omap_header_key(omap);
                Ok(self.with(|st| st.row(&row)).await?.unwrap_or_default())
            }
        }
    }

    pub(crate) async fn omap_get(
        &self,
        coll: Coll,
        key: &Key,
        rows: &[Bytes],
    ) -> Result<Vec<(Bytes, Bytes)>, StoreError> {
        let omap = self.onode(coll, key, |o| o.omap).await?;
        let mut out = Vec::new();
        if omap != 0 {
            for name in rows {
                let row = State::omap_key(omap, name);
                if let Some(v) = self.with(|st| st.row(&row)).await? {
                    out.push((name.clone(), v));
                }
            }
        }
        Ok(out)
    }

    pub(crate) async fn omap_iter(
        &self,
        coll: Coll,
        key: &Key,
        from: Bound<&[u8]>,
        max_rows: usize,
        max_bytes: usize,
    ) -> Result<OmapPage, StoreError> {
        let omap = self.onode(coll, key, |o| o.omap).await?;
        let mut page = OmapPage::default();
        if omap == 0 {
            return Ok(page);
        }
        let end = State::omap_end(omap);
        let mut from = match from {
            Bound::Unbounded => Bound::Included(State::omap_key(omap, &[])),
            Bound::Included(k) => Bound::Included(State::omap_key(omap, k)),
            Bound::Excluded(k) => Bound::Excluded(State::omap_key(omap, k)),
        };
        let mut bytes = 0;
        loop {
            let want = max_rows.saturating_sub(page.rows.len()).saturating_add(1).min(1024);
            let start = match &from {
                Bound::Included(k) | Bound::Excluded(k) => k.clone(),
                Bound::Unbounded => Bytes::new(),
            };
            let chunk = self
                .with_ahead(&start, &end, want, |st| {
                    st.rows(from.as_ref().map(|k| &k[..]), &end, want)
                })
                .await?;
            for (k, v) in chunk.rows {
                if page.rows.len() >= max_rows || bytes >= max_bytes {
                    page.more = true;
                    return Ok(page);
                }
                let k = k.slice(10..);
                bytes += k.len() + v.len();
                page.rows.push((k, v));
            }
            match chunk.next {
                Some(next) => from = Bound::Included(next),
                None => return Ok(page),
            }
        }
    }

    pub(crate) async fn list(
        &self,
        coll: Coll,
        start: &[u8],
        end: Option<&[u8]>,
        max: usize,
    ) -> Result<ListPage, StoreError> {
        if !self.state.borrow().colls.contains_key(&coll) {
            return Err(StoreError::NoCollection(coll));
        }
        let mut out = ListPage::default();
        let mut at = Bytes::copy_from_slice(start);
        loop {
            let want = (max - out.keys.len()).min(1024);
            let mut page = self.with(|st| st.list(coll, &at, end, want)).await?;
            out.keys.append(&mut page.keys);
            match page.next {
                None => return Ok(out),
                Some(next) if out.keys.len() >= max => {
                    // Only say that there is more if there is.
                    let more = self.with(|st| st.list(coll, &next, end, 1)).await?;
                    match (more.keys.into_iter().next(), more.next) {
                        (Some(k), _) => out.next = Some(k),
                        (None, Some(next)) => {
                            at = next;
                            if max == out.keys.len() {
                                out.next = Some(at);
                                return Ok(out);
                            }
                            continue;
                        }
                        (None, None) => {}
                    }
                    return Ok(out);
                }
                Some(next) => at = next,
            }
        }
    }

    pub(crate) async fn extents(
        &self,
        coll: Coll,
        key: &Key,
        off: u64,
        len: u64,
    ) -> Result<Vec<Range>, StoreError> {
        self.onode(coll, key, |o| {
            let end = off.saturating_add(len).min(o.size);
            let mut out = Vec::new();
            let first = o.find((off / BLOCK).min(u64::from(u32::MAX)) as u32);
            for e in &o.extents[first..] {
                let (lo, hi) = (u64::from(e.lblk) * BLOCK, u64::from(e.end()) * BLOCK);
                if lo >= end {
                    break;
                }
                push_range(&mut out, lo, hi, off, end);
            }
            out
        })
        .await
    }

    /// The content of a run of blocks, for the consistency check.
    pub(super) async fn raw_block(&self, pblk: u64) -> Result<Bytes, StoreError> {
        if let Some(b) = self.state.borrow().pending_block(pblk) {
            return Ok(b);
        }
        Ok(self.dev.read(pblk * BLOCK, BLOCK as usize).await?)
    }
}

impl State {
    fn pending_block(&self, pblk: u64) -> Option<Bytes> {
        let frozen = || self.frozen.as_ref().and_then(|f| f.pending.get(&pblk));
        self.pending.get(&pblk).or_else(frozen).cloned()
    }
}
