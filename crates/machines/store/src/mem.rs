//! A store in memory: the plain statement of what every operation means.
//!
//! It is the model that the store on a device is compared with, and a store for simulations. A
//! transaction is durable as soon as it is submitted.

use crate::check::{self, View};
use crate::commit::{Commit, CommitLine};
use crate::error::StoreError;
use crate::report::{DumpReport, FsckReport, ObjectDump};
use crate::txn::{Change, Op, Transaction};
use crate::types::{AllocHint, BLOCK, Buffers, Coll, Key, ListPage, OmapPage, Range, Stat, StatFs};
use crate::window::Window;
use bytes::{Bytes, BytesMut};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::rc::Rc;

/// Bytes of zeros to slice from.
static ZEROS: [u8; BLOCK as usize] = [0; BLOCK as usize];

/// Appends `len` zero bytes without allocating them.
pub(crate) fn push_zeros(out: &mut Buffers, mut len: u64) {
    while len > 0 {
        let n = len.min(BLOCK);
        out.push(Bytes::from_static(&ZEROS[..n as usize]));
        len -= n;
    }
}

#[derive(Clone, Default)]
struct Object {
    size: u64,
    /// Allocated blocks by logical block number. Bytes beyond `size` are zero.
    blocks: BTreeMap<u64, Bytes>,
    attrs: BTreeMap<Bytes, Bytes>,
    header: Bytes,
    omap: BTreeMap<Bytes, Bytes>,
    hint: AllocHint,
}

#[derive(Default)]
struct State {
    colls: BTreeMap<Coll, BTreeMap<Key, Object>>,
    windows: BTreeMap<Coll, Window>,
}

/// The plain statement of what each operation means, in memory.
pub(crate) struct MemStore {
    state: RefCell<State>,
    line: Rc<CommitLine>,
    capacity: u64,
}

impl MemStore {
    pub(crate) fn new(capacity: u64) -> MemStore {
        MemStore { state: RefCell::default(), line: CommitLine::new(), capacity }
    }

    pub(crate) fn submit(&self, txn: Transaction) -> Result<Commit, StoreError> {
        let mut state = self.state.borrow_mut();
        check::check(&txn, &*state)?;
        if txn.payload_bytes() > 0
            && self.capacity < u64::MAX
            && state.used() + txn.payload_bytes() > self.capacity
        {
            return Err(StoreError::NoSpace);
        }
        for op in txn.ops {
            state.apply(op);
        }
        drop(state);
        let commit = self.line.next();
        self.line.advance(commit.seq());
        Ok(commit)
    }

    pub(crate) fn last(&self) -> Commit {
        self.line.last()
    }

    fn with<T>(
        &self,
        coll: Coll,
        key: &Key,
        f: impl FnOnce(&Object) -> T,
    ) -> Result<T, StoreError> {
        let state = self.state.borrow();
        let c = state.colls.get(&coll).ok_or(StoreError::NoCollection(coll))?;
        c.get(key).map(f).ok_or_else(|| StoreError::NoObject { coll, key: key.clone() })
    }

    pub(crate) fn read(
        &self,
        coll: Coll,
        key: &Key,
        off: u64,
        len: u64,
    ) -> Result<Buffers, StoreError> {
        self.with(coll, key, |o| o.read(off, len))
    }

    pub(crate) fn stat(&self, coll: Coll, key: &Key) -> Result<Stat, StoreError> {
        self.with(coll, key, Object::stat)
    }

    pub(crate) fn attr(&self, coll: Coll, key: &Key, name: &[u8]) -> Result<Bytes, StoreError> {
        self.with(coll, key, |o| o.attrs.get(name).cloned())?.ok_or(StoreError::NoAttr)
    }

    pub(crate) fn attrs(&self, coll: Coll, key: &Key) -> Result<Vec<(Bytes, Bytes)>, StoreError> {
        self.with(coll, key, |o| o.attrs.iter().map(|(k, v)| (k.clone(), v.clone())).collect())
    }

    pub(crate) fn omap_header(&self, coll: Coll, key: &Key) -> Result<Bytes, StoreError> {
        self.with(coll, key, |o| o.header.clone())
    }

    pub(crate) fn omap_get(
        &self,
        coll: Coll,
        key: &Key,
        rows: &[Bytes],
    ) -> Result<Vec<(Bytes, Bytes)>, StoreError> {
        self.with(coll, key, |o| {
            rows.iter()
                .filter_map(|k| o.omap.get_key_value(k))
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect()
        })
    }

    pub(crate) fn omap_iter(
        &self,
        coll: Coll,
        key: &Key,
        from: Bound<&[u8]>,
        max_rows: usize,
        max_bytes: usize,
    ) -> Result<OmapPage, StoreError> {
        self.with(coll, key, |o| {
            let mut page = OmapPage::default();
            let mut bytes = 0;
            for (k, v) in o.omap.range::<[u8], _>((from, Bound::Unbounded)) {
                let full = page.rows.len() >= max_rows || bytes >= max_bytes;
                if full {
                    page.more = true;
                    break;
                }
                bytes += k.len() + v.len();
                page.rows.push((k.clone(), v.clone()));
            }
            page
        })
    }

    pub(crate) fn list(
        &self,
        coll: Coll,
        start: &[u8],
        end: Option<&[u8]>,
        max: usize,
    ) -> Result<ListPage, StoreError> {
        let state = self.state.borrow();
        let c = state.colls.get(&coll).ok_or(StoreError::NoCollection(coll))?;
        let mut page = ListPage::default();
        if end.is_some_and(|e| e <= start) {
            return Ok(page);
        }
        for k in c.range::<[u8], _>((
            Bound::Included(start),
            end.map_or(Bound::Unbounded, Bound::Excluded),
        )) {
            if page.keys.len() >= max {
                page.next = Some(k.0.clone());
                break;
            }
            page.keys.push(k.0.clone());
        }
        Ok(page)
    }

    pub(crate) fn extents(
        &self,
        coll: Coll,
        key: &Key,
        off: u64,
        len: u64,
    ) -> Result<Vec<Range>, StoreError> {
        self.with(coll, key, |o| {
            let end = off.saturating_add(len).min(o.size);
            let mut out = Vec::new();
            for &lblk in
                o.blocks.range(off / BLOCK..end.div_ceil(BLOCK).max(off / BLOCK)).map(|(b, _)| b)
            {
                push_range(&mut out, lblk * BLOCK, (lblk + 1) * BLOCK, off, end);
            }
            out
        })
    }

    pub(crate) fn collections(&self) -> Vec<Coll> {
        self.state.borrow().colls.keys().copied().collect()
    }

    pub(crate) fn window(&self, coll: Coll) -> Option<Window> {
        self.state.borrow().windows.get(&coll).cloned()
    }

    pub(crate) fn statfs(&self) -> StatFs {
        let used = self.state.borrow().used();
        let total = if self.capacity == u64::MAX { 1 << 40 } else { self.capacity };
        StatFs { total, available: total.saturating_sub(used), data: used, ..StatFs::default() }
    }

    pub(crate) fn fsck(&self) -> FsckReport {
        let state = self.state.borrow();
        let objects = || state.colls.values().flat_map(BTreeMap::values);
        FsckReport {
            collections: state.colls.len() as u64,
            objects: objects().count() as u64,
            omap_rows: objects().map(|o| o.omap.len() as u64).sum(),
            data_blocks: objects().map(|o| o.blocks.len() as u64).sum(),
            ..FsckReport::default()
        }
    }

    pub(crate) fn dump(&self, coll: Option<Coll>, max: usize) -> DumpReport {
        let state = self.state.borrow();
        let mut report = DumpReport {
            collections: state.colls.keys().copied().collect(),
            ..DumpReport::default()
        };
        report.facts.push(("kind".into(), "memory".into()));
        for (&c, objects) in state.colls.iter().filter(|(c, _)| coll.is_none_or(|want| want == **c))
        {
            for (key, o) in objects.iter().take(max.saturating_sub(report.objects.len())) {
                report.objects.push(ObjectDump {
                    coll: c,
                    key: key.clone(),
                    stat: o.stat(),
                    attrs: o.attrs.iter().map(|(k, v)| (k.clone(), v.len() as u64)).collect(),
                    omap_rows: o.omap.len() as u64,
                    extents: o.blocks.keys().map(|b| (*b, 0, 1, false)).collect(),
                });
            }
        }
        report
    }
}

/// Appends the part of `[start, end)` that lies in `[lo, hi)`, joining it to the last range if they
/// touch.
pub(crate) fn push_range(out: &mut Vec<Range>, start: u64, end: u64, lo: u64, hi: u64) {
    let (start, end) = (start.max(lo), end.min(hi));
    if start >= end {
        return;
    }
    match out.last_mut() {
        Some(last) if last.off + last.len == start => last.len = end - last.off,
        _ => out.push(Range { off: start, len: end - start }),
    }
}

impl View for State {
    fn collection(&self, coll: Coll) -> Option<Option<Window>> {
        self.colls.contains_key(&coll).then(|| self.windows.get(&coll).cloned())
    }

    fn overlaps(&self, window: &Window) -> bool {
        self.windows.values().any(|w| w.overlaps(window))
    }

    fn has_object(&self, place: Coll, key: &Key) -> Result<bool, StoreError> {
        Ok(self
            .at(place, key)
            .and_then(|c| self.colls.get(&c))
            .is_some_and(|c| c.contains_key(key)))
    }

    fn attr(&self, place: Coll, key: &Key, name: &Bytes) -> Result<Option<Bytes>, StoreError> {
        let object = self.at(place, key).and_then(|c| self.colls.get(&c)?.get(key));
        Ok(object.and_then(|o| o.attrs.get(name).cloned()))
    }

    fn any_object(
        &self,
        place: Coll,
        start: &Key,
        end: Option<&Key>,
        f: &mut dyn FnMut(&Key) -> bool,
    ) -> Result<(), StoreError> {
        let inside = |k: &&Key| *k >= start && end.is_none_or(|e| *k < e);
        // The keys of a collection, in whatever order the collections come.
        self.colls
            .iter()
            .flat_map(|(c, o)| o.keys().filter(inside).filter(|k| self.at(place, k) == Some(*c)))
            .all(f);
        Ok(())
    }
}

impl State {
    /// Which collection has a key that stands behind a number.
    fn at(&self, place: Coll, key: &Key) -> Option<Coll> {
        let own = self.colls.contains_key(&place)
            && self.windows.get(&place).is_none_or(|w| *key < w.floor);
        let shared = || {
            self.windows
                .iter()
                .find(|(_, w)| w.space == place && *key >= w.floor && w.covers(key))
                .map(|(c, _)| *c)
        };
        if own { Some(place) } else { shared() }
    }
}

impl State {
    fn used(&self) -> u64 {
        self.colls.values().flat_map(BTreeMap::values).map(|o| o.blocks.len() as u64 * BLOCK).sum()
    }

    fn object(&mut self, coll: Coll, key: Key) -> &mut Object {
        self.colls.entry(coll).or_default().entry(key).or_default()
    }

    /// Applies a checked operation.
    fn apply(&mut self, op: Op) {
        match op {
            Op::CreateCollection { coll } => {
                self.colls.insert(coll, BTreeMap::new());
            }
            Op::RemoveCollection { coll } => {
                self.colls.remove(&coll);
                self.windows.remove(&coll);
            }
            Op::CreateWindow { coll, window } => {
                self.colls.entry(coll).or_default();
                self.windows.insert(coll, window);
            }
            Op::Split { coll, at, new } => {
                // Objects are really moved here: that nothing needs to be is the device's business.
                let objects = self.colls.entry(coll).or_default().split_off(&at);
                self.colls.insert(new, objects);
                if let Some(rest) = self.windows.get_mut(&coll).and_then(|w| w.split_off(&at)) {
                    self.windows.insert(new, rest);
                }
            }
            Op::Merge { from, into } => {
                let objects = self.colls.remove(&from).unwrap_or_default();
                self.colls.entry(into).or_default().extend(objects);
                if let (Some(gone), Some(w)) =
                    (self.windows.remove(&from), self.windows.get_mut(&into))
                {
                    w.join(&gone);
                }
            }
            Op::OmapMove { coll, key, range, to, to_key } => {
                let source = self.object(coll, key);
                let moved: Vec<_> = source
                    .omap
                    .iter()
                    .filter(|(k, _)| range.has(k))
                    .map(|(k, v)| (k.clone(), v.clone()))
                    .collect();
                moved.iter().for_each(|(k, _)| drop(source.omap.remove(k)));
                self.object(to, to_key).omap.extend(moved);
            }
            Op::Object { coll, key, change } => self.change(coll, key, change),
            Op::Move { from, from_key, to, to_key } => {
                if let Some(o) = self.colls.get_mut(&from).and_then(|c| c.remove(&from_key)) {
                    self.colls.entry(to).or_default().insert(to_key, o);
                }
            }
        }
    }

    fn change(&mut self, coll: Coll, key: Key, change: Change) {
        if matches!(change, Change::Expect { .. }) {
            return;
        }
        if change == Change::Remove {
            self.colls.entry(coll).or_default().remove(&key);
            return;
        }
        let other = match &change {
            Change::CloneOf { from }
            | Change::CloneButRows { from }
            | Change::CloneParts { from, .. }
            | Change::CloneRange { from, .. } => self.object(coll, from.clone()).clone(),
            _ => Object::default(),
        };
        let o = self.object(coll, key);
        match change {
            Change::Touch | Change::Remove | Change::Expect { .. } => {}
            Change::Write { off, data, .. } => o.write(off, &data.to_bytes()),
            Change::Zero { off, len } => o.zero(off, len),
            Change::Truncate { size } => o.truncate(size),
            Change::CloneOf { .. } => *o = other,
            Change::CloneButRows { .. } => {
                *o = Object { omap: std::mem::take(&mut o.omap), ..other }
            }
            Change::CloneParts { blocks, .. } => {
                for (lo, hi) in blocks {
                    let range = u64::from(lo)..u64::from(hi.max(lo));
                    o.blocks.retain(|b, _| !range.contains(b));
                    o.blocks.extend(other.blocks.range(range).map(|(b, data)| (*b, data.clone())));
                }
                let (omap, blocks) = (std::mem::take(&mut o.omap), std::mem::take(&mut o.blocks));
                *o = Object { omap, blocks, ..other };
            }
            Change::Xor { off, data } => {
                let old = o.read(off, data.len()).to_bytes();
                let mut new = data.to_bytes().to_vec();
                new.iter_mut().zip(&old).for_each(|(n, o)| *n ^= o);
                o.write(off, &new);
            }
            Change::CloneRange { off, len, to_off, .. } => o.clone_range(&other, off, len, to_off),
            Change::SetAttrs(attrs) => o.attrs.extend(attrs),
            Change::RmAttr(name) => drop(o.attrs.remove(&name)),
            Change::ClearAttrs => o.attrs.clear(),
            Change::OmapSet(rows) => o.omap.extend(rows),
            Change::OmapRm(rows) => rows.iter().for_each(|r| drop(o.omap.remove(r))),
            Change::OmapRmRange { start, end } => {
                let mut tail = o.omap.split_off(&start);
                if let Some(end) = end {
                    let mut keep = if end > start { tail.split_off(&end) } else { tail };
                    o.omap.append(&mut keep);
                }
            }
            Change::OmapClear => {
                o.omap.clear();
                o.header = Bytes::new();
            }
            Change::OmapHeader(header) => o.header = header,
            Change::Hint(hint) => o.hint = hint,
        }
    }
}

impl Object {
    fn stat(&self) -> Stat {
        Stat { size: self.size, allocated: self.blocks.len() as u64 * BLOCK, hint: self.hint }
    }

    fn read(&self, off: u64, len: u64) -> Buffers {
        let end = off.saturating_add(len).min(self.size);
        let mut out = Buffers::new();
        let mut at = off;
        while at < end {
            let (lblk, from) = (at / BLOCK, at % BLOCK);
            let n = (BLOCK - from).min(end - at);
            match self.blocks.get(&lblk) {
                Some(b) => out.push(b.slice(from as usize..(from + n) as usize)),
                None => push_zeros(&mut out, n),
            }
            at += n;
        }
        out
    }

    /// Replaces part of one block; an absent block is taken as zeros.
    fn patch(&mut self, lblk: u64, from: usize, bytes: &[u8]) {
        let mut b = BytesMut::from(self.blocks.get(&lblk).map_or(&ZEROS[..], |b| &b[..]));
        b[from..from + bytes.len()].copy_from_slice(bytes);
        self.blocks.insert(lblk, b.freeze());
    }

    fn write(&mut self, off: u64, data: &[u8]) {
        let mut done = 0;
        while done < data.len() {
            let at = off + done as u64;
            let n = ((BLOCK - at % BLOCK) as usize).min(data.len() - done);
            self.patch(at / BLOCK, (at % BLOCK) as usize, &data[done..done + n]);
            done += n;
        }
        self.size = self.size.max(off + data.len() as u64);
    }

    fn zero(&mut self, off: u64, len: u64) {
        self.punch(off, off + len);
        self.size = self.size.max(off + len);
    }

    fn punch(&mut self, off: u64, end: u64) {
        if off >= end {
            return;
        }
        let touched: Vec<u64> =
            self.blocks.range(off / BLOCK..end.div_ceil(BLOCK)).map(|(b, _)| *b).collect();
        for lblk in touched {
            let (from, to) = (off.max(lblk * BLOCK), end.min((lblk + 1) * BLOCK));
            if to - from == BLOCK {
                self.blocks.remove(&lblk);
            } else {
                self.patch(lblk, (from % BLOCK) as usize, &ZEROS[..(to - from) as usize]);
            }
        }
    }

    fn truncate(&mut self, size: u64) {
        if size < self.size {
            self.punch(size, self.size.next_multiple_of(BLOCK));
        }
        self.size = size;
    }

    /// Blocks that both ranges cover as a whole at the same offset within a block are taken over as
    /// they are, absent ones too; the rest is written as bytes.
    fn clone_range(&mut self, source: &Object, off: u64, len: u64, to_off: u64) {
        let mut at = 0;
        while at < len {
            let (s, d) = (off + at, to_off + at);
            let n = (BLOCK - d % BLOCK).min(len - at);
            if n == BLOCK && s % BLOCK == 0 {
                match source.blocks.get(&(s / BLOCK)) {
                    Some(b) => self.blocks.insert(d / BLOCK, b.clone()),
                    None => self.blocks.remove(&(d / BLOCK)),
                };
                self.size = self.size.max(d + n);
            } else {
                let mut bytes = source.read(s, n).to_bytes().to_vec();
                bytes.resize(n as usize, 0);
                self.write(d, &bytes);
            }
            at += n;
        }
    }
}
