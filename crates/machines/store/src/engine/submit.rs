//! From a transaction to changed memory and a record in the queue.

use super::Disk;
use super::record::{RecordWriter, Resolved};
use super::state::{Batch, State, damaged_block};
use crate::alloc::Run;
use crate::block_crc::block_crcs;
use crate::check::{self, View};
use crate::commit::Commit;
use crate::dev::{AlignedBuf, Gather, Io};
use crate::error::StoreError;
use crate::log;
use crate::txn::{Change, Op, Transaction};
use crate::types::{BLOCK, Buffers, Coll, Key, WriteHint};
use crate::window::Window;
use bytes::Bytes;
use smallvec::SmallVec;
use std::cell::RefCell;
use std::ops::RangeInclusive;
use std::rc::Rc;

const B: u64 = BLOCK;

static ZERO_BLOCK: [u8; BLOCK as usize] = [0; BLOCK as usize];

/// The state as the check sees it. The device is read while the thread waits if the caller has not
/// prepared.
struct StateView<'a>(&'a RefCell<State>);

impl View for StateView<'_> {
    fn collection(&self, coll: Coll) -> Option<Option<Window>> {
        self.0.borrow().colls.get(&coll).cloned()
    }

    fn overlaps(&self, window: &Window) -> bool {
        self.0.borrow().colls.values().flatten().any(|w| w.overlaps(window))
    }

    fn has_object(&self, place: Coll, key: &Key) -> Result<bool, StoreError> {
        let mut st = self.0.borrow_mut();
        let slot = st.now(|st| st.lookup_at(place, key))??;
        Ok(st.slots.get(slot).onode.is_some())
    }

    fn attr(&self, place: Coll, key: &Key, name: &Bytes) -> Result<Option<Bytes>, StoreError> {
        let mut st = self.0.borrow_mut();
        let slot = st.now(|st| st.lookup_at(place, key))??;
        Ok(st.slots.get(slot).onode.as_ref().and_then(|o| o.attr(name).cloned()))
    }

    fn any_object(
        &self,
        place: Coll,
        start: &Key,
        end: Option<&Key>,
        f: &mut dyn FnMut(&Key) -> bool,
    ) -> Result<(), StoreError> {
        let mut at = Some(start.clone());
        while let Some(start) = at {
            let page =
                self.0.borrow_mut().now(|st| st.list_at(place, &start, end.map(|e| &e[..]), 64))?;
            if !page.keys.iter().all(&mut *f) {
                return Ok(());
            }
            at = page.next;
        }
        Ok(())
    }
}

/// The context of applying a transaction.
struct Apply<'a> {
    st: &'a mut State,
    rec: RecordWriter<'a, log::LogBuf>,
    /// Writes larger than this go to fresh extents.
    deferred_max: u64,
    ios: Vec<Io<()>>,
    /// The blocks of `ios`.
    direct: Vec<Run>,
}

impl Disk {
    pub(crate) fn submit(self: &Rc<Self>, txn: Transaction) -> Result<Commit, StoreError> {
        self.check_failed()?;
        check::check(&txn, &StateView(&self.state))?;
        let mut guard = self.state.borrow_mut();
        let st = &mut *guard;
        let log_len = self.sb.borrow().log_len;
        let reserved = st.log_reserved();
        // Under pressure data takes the other way, so that the log holds on until the checkpoint is
        // done.
        let pressed = reserved > log_len / 8 * 5;
        let deferred_max = if pressed { 0 } else { self.opts.deferred_max };
        let size = record_bound(&txn, deferred_max);
        if size > log_len / 8 {
            return Err(StoreError::TooBig("transaction"));
        }
        // What is left over at the ring's end and in half-filled blocks is in the margin.
        if reserved + size + log_len / 8 + 2 * log::batch_full(log_len) > log_len {
            drop(guard);
            self.checkpoint.notify_one();
            return Err(StoreError::Busy);
        }
        prefetch(st, &txn)?;
        st.room_for(&txn)?;

        let full = |b: &Batch| b.sealed || b.buf.len() as u64 >= log::batch_full(log_len);
        if st.queue.back().is_none_or(full) {
            st.queue.push_back(Batch::new());
            st.queued += log::HEAD as u64;
        }
        // The buffer leaves the batch while the record is written, so that the state can be
        // changed.
        let Some(batch) = st.queue.back_mut() else { return Err(StoreError::Busy) };
        let mut buf = std::mem::replace(&mut batch.buf, log::LogBuf::placeholder());
        let mark = buf.begin_record();
        let data: u64 = txn
            .ops
            .iter()
            .map(|op| match op {
                Op::Object {
                    change: Change::Write { data, .. } | Change::Xor { data, .. },
                    ..
                } => data.len(),
                _ => 0,
            })
            .sum();
        self.data.set(self.data.get() + data);
        let mut a = Apply {
            st,
            rec: RecordWriter::new(&mut buf),
            deferred_max,
            ios: Vec::new(),
            direct: Vec::new(),
        };
        let result = txn.ops.into_iter().try_for_each(|op| a.op(op));
        let Apply { ios, direct, .. } = a;
        let st = &mut *guard;
        if let Err(e) = result {
            // The checks passed, so that memory is half changed and the metadata below is damaged.
            drop(guard);
            self.fail(e.clone());
            return Err(e);
        }
        buf.end_record(mark);
        st.queued += (buf.len() - mark) as u64;
        let commit = self.line.next();
        if let Some(batch) = st.queue.back_mut() {
            batch.buf = buf;
            batch.records += 1;
            batch.last = commit.seq();
            batch.ios.extend(ios);
            batch.direct.extend(direct);
        }
        let wants =
            st.log_reserved() > self.checkpoint_at() || st.dirty_bytes() > self.dirty_max.get();
        drop(guard);
        self.work.notify_one();
        if wants {
            self.checkpoint.notify_one();
        }
        Ok(commit)
    }

    /// Log bytes in use at which a checkpoint starts.
    pub(super) fn checkpoint_at(&self) -> u64 {
        match self.opts.log_checkpoint {
            0 => self.sb.borrow().log_len / 5 * 2,
            n => n,
        }
    }
}

/// The blocks that a range touches.
fn blocks(off: u64, len: u64) -> std::ops::Range<u32> {
    (off / B) as u32..(off + len).div_ceil(B) as u32
}

/// Blocks of an object that get new content.
struct Put<'a> {
    coll: Coll,
    key: &'a Key,
    first: u32,
    /// The object's size afterwards.
    size: u64,
    crcs: &'a [u32],
}

/// The blocks that a change of `[off, end)` covers only in part.
fn edges(off: u64, end: u64) -> impl Iterator<Item = u32> {
    let first = (!off.is_multiple_of(B)).then_some((off / B) as u32);
    let last = (!end.is_multiple_of(B)).then_some((end / B) as u32).filter(|l| Some(*l) != first);
    first.into_iter().chain(last)
}

/// An upper bound of the record's bytes.
fn record_bound(txn: &Transaction, deferred_max: u64) -> u64 {
    txn.ops
        .iter()
        .map(|op| match op {
            Op::Object { key, change, .. } => object_bound(key, change, deferred_max),
            Op::Move { from_key, to_key, .. } => named(from_key) + named(to_key),
            Op::OmapMove { key, range, to_key, .. } => named(key) + named(to_key) + range.bytes(),
            Op::CreateCollection { .. } | Op::RemoveCollection { .. } | Op::Merge { .. } => 24,
            Op::CreateWindow { window: w, .. } => {
                (w.floor.len() + w.start.len() + w.end.as_ref().map_or(0, Bytes::len)) as u64 + 64
            }
            Op::Split { at, .. } => at.len() as u64 + 40,
        })
        .sum::<u64>()
        + 8
}

/// An upper bound of the bytes that name an object in a record.
fn named(key: &Key) -> u64 {
    key.len() as u64 + 24
}

/// An upper bound of the bytes of a change in a record.
fn object_bound(key: &Key, change: &Change, deferred_max: u64) -> u64 {
    let arguments = match change {
        Change::Write { data, .. } | Change::Xor { data, .. } => {
            let n = data.len() / B + 2;
            // Where one run is not to be had, each block may be a run of its own.
            let direct = 64 + n * 16;
            if data.len() <= deferred_max { direct + n * B } else { direct }
        }
        Change::Zero { .. } | Change::Truncate { .. } => 2 * (B + 96),
        Change::CloneRange { from, off, len, to_off } => {
            let copied = if off % B == to_off % B {
                2 * (B + 96)
            } else {
                (len / B + 2) * 16 + (*len).min(deferred_max) + 2 * B
            };
            named(from) + 64 + copied
        }
        Change::SetAttrs(rows) => rows_bound(rows),
        Change::OmapSet(rows) => rows_bound(rows),
        Change::OmapRm(rows) => rows.iter().map(|k| k.len() as u64 + 5).sum::<u64>() + 16,
        Change::OmapHeader(header) => header.len() as u64 + 16,
        Change::OmapRmRange { start, end } => {
            (start.len() + end.as_ref().map_or(0, Bytes::len)) as u64 + 32
        }
        Change::RmAttr(name) => name.len() as u64 + 16,
        Change::CloneOf { from } | Change::CloneButRows { from } => named(from),
        Change::CloneParts { from, blocks } => named(from) + 16 + 10 * blocks.len() as u64,
        Change::Touch
        | Change::Expect { .. }
        | Change::Remove
        | Change::ClearAttrs
        | Change::OmapClear
        | Change::Hint(_) => 40,
    };
    named(key) + arguments
}

fn rows_bound(rows: &[(Bytes, Bytes)]) -> u64 {
    rows.iter().map(|(k, v)| (k.len() + v.len() + 10) as u64).sum::<u64>() + 16
}

/// Brings in what the application will look at, and fails, before anything has changed, if that is
/// damaged. Data that is changed in part may be: it stays damaged ([`Apply::spoil`]).
fn prefetch(st: &mut State, txn: &Transaction) -> Result<(), StoreError> {
    for op in &txn.ops {
        let Op::Object { coll, key, change } = op else { continue };
        match change {
            Change::Write { off, data, .. } => {
                st.fetch_edges(*coll, key, *off, off + data.len())?
            }
            Change::Xor { off, data } => {
                let slot = st.slot(*coll, key)?;
                st.families_of(slot)?;
                for lblk in blocks(*off, data.len()) {
                    st.sound_or_damaged(slot, lblk)?;
                }
            }
            Change::Zero { off, len } => st.fetch_edges(*coll, key, *off, off + len)?,
            Change::Truncate { size } => st.fetch_edges(*coll, key, *size, *size)?,
            Change::Remove => {
                let slot = st.slot(*coll, key)?;
                st.families_of(slot)?;
            }
            Change::CloneOf { from }
            | Change::CloneButRows { from }
            | Change::CloneParts { from, .. } => {
                for key in [from, key] {
                    let slot = st.slot(*coll, key)?;
                    st.families_of(slot)?;
                }
            }
            Change::CloneRange { from, off, len, to_off } => {
                st.fetch_edges(*coll, key, *to_off, to_off + len)?;
                let slot = st.slot(*coll, from)?;
                st.families_of(slot)?;
                // What is copied from elsewhere must be sound.
                let copied: Vec<u64> = match off % B == to_off % B {
                    true => edges(*off, off + len).map(u64::from).collect(),
                    false => (off / B..(off + len).div_ceil(B)).collect(),
                };
                for lblk in copied {
                    st.content(slot, lblk as u32)?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

impl State {
    fn fetch_edges(&mut self, coll: Coll, key: &Key, off: u64, end: u64) -> Result<(), StoreError> {
        let slot = self.slot(coll, key)?;
        self.families_of(slot)?;
        edges(off, end).try_for_each(|lblk| self.sound_or_damaged(slot, lblk))
    }

    /// Brings a block into memory; that its data is damaged is no error.
    fn sound_or_damaged(&mut self, slot: u32, lblk: u32) -> Result<(), StoreError> {
        match self.content(slot, lblk) {
            Ok(_) | Err(StoreError::Checksum { .. } | StoreError::Io(_)) => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// The content of a logical block, `None` for a hole. Read while the thread waits if it is not
    /// in memory, and kept then.
    fn content(&mut self, slot: u32, lblk: u32) -> Result<Option<Bytes>, StoreError> {
        let s = self.slots.get(slot);
        let Some((_, pblk, crc)) = s.onode.as_ref().and_then(|o| o.block(lblk)) else {
            return Ok(None);
        };
        if let Some(b) = self.cached_block(pblk) {
            return Ok(Some(b));
        }
        let b = self.dev.read_data_now(pblk * B, BLOCK as usize)?;
        if crc32c::crc32c(&b) != crc {
            let s = self.slots.get(slot);
            return Err(StoreError::Checksum {
                coll: s.coll,
                key: s.key.clone(),
                off: u64::from(lblk) * B,
            });
        }
        self.cache.insert(pblk, b.clone());
        Ok(Some(b))
    }

    /// Fails if the transaction may need more blocks than it may have.
    fn room_for(&self, txn: &Transaction) -> Result<(), StoreError> {
        let frees = |op: &Op| match op {
            Op::Object { change, .. } => match change {
                Change::Zero { len, .. } => *len >= B,
                Change::Truncate { .. }
                | Change::Remove
                | Change::OmapClear
                | Change::OmapRmRange { .. } => true,
                _ => false,
            },
            Op::RemoveCollection { .. } => true,
            _ => false,
        };
        let blocks = |op: &Op| if let Op::Object { change, .. } = op { change.blocks() } else { 0 };
        let need: u64 = txn.ops.iter().map(blocks).sum();
        let frees = txn.ops.iter().any(frees);
        let (free, reserve) = (self.alloc.free_blocks(), self.reserve());
        let floor = match (need, frees) {
            // What gives space back may use the last of it.
            (_, true) if need <= 2 => need,
            // Attributes and rows take space at the next checkpoint, not now.
            (0, _) => reserve / 2 + txn.payload_bytes() / B,
            _ => reserve + need,
        };
        if free < floor { Err(StoreError::NoSpace) } else { Ok(()) }
    }
}

impl Apply<'_> {
    fn op(&mut self, op: Op) -> Result<(), StoreError> {
        match op {
            Op::CreateCollection { coll } => {
                self.rec.collection(coll, true);
                self.st.create_collection(coll, None);
                Ok(())
            }
            Op::CreateWindow { coll, window } => {
                self.rec.create_window(coll, &window);
                self.st.create_collection(coll, Some(window));
                Ok(())
            }
            Op::Split { coll, at, new } => {
                self.rec.split(coll, &at, new);
                self.st.split_collection(coll, &at, new)
            }
            Op::Merge { from, into } => {
                self.rec.merge(from, into);
                self.st.merge_collections(from, into)
            }
            Op::OmapMove { coll, key, range, to, to_key } => {
                self.change(coll, &key, Resolved::OmapMove { range: &range, to, to_key: &to_key })
            }
            Op::RemoveCollection { coll } => {
                self.rec.collection(coll, false);
                self.st.remove_collection(coll);
                Ok(())
            }
            Op::Object { coll, key, change } => self.object(coll, &key, change),
            Op::Move { from, from_key, to, to_key } => {
                self.change(from, &from_key, Resolved::Move { to, to_key: &to_key })
            }
        }
    }

    fn object(&mut self, coll: Coll, key: &Key, change: Change) -> Result<(), StoreError> {
        let resolved = match &change {
            Change::Write { off, data, hint } => return self.write(coll, key, *off, data, *hint),
            Change::Xor { off, data } => return self.xor(coll, key, *off, data),
            Change::Zero { off, len } => return self.zero(coll, key, *off, off + len, true),
            Change::Truncate { size } => {
                let slot = self.st.slot(coll, key)?;
                let old = self.st.slots.get(slot).onode.as_ref().map_or(0, |o| o.size);
                if *size < old {
                    self.zero(coll, key, *size, old.next_multiple_of(B), false)?;
                }
                Resolved::Size(*size)
            }
            Change::CloneOf { from } => {
                return self.change(coll, from, Resolved::Clone { to: key, rows: true });
            }
            Change::CloneButRows { from } => {
                return self.change(coll, from, Resolved::Clone { to: key, rows: false });
            }
            Change::CloneParts { from, blocks } => {
                return self.change(coll, from, Resolved::Parts { to: key, blocks });
            }
            Change::CloneRange { from, off, len, to_off } => {
                return self.clone_range(coll, from, *off, *len, key, *to_off);
            }
            // The check has looked at it.
            Change::Expect { .. } => return Ok(()),
            Change::Touch => Resolved::Touch,
            Change::Remove => Resolved::Remove,
            Change::SetAttrs(attrs) => Resolved::SetAttrs(attrs),
            Change::RmAttr(name) => Resolved::RmAttr(name),
            Change::ClearAttrs => Resolved::ClearAttrs,
            Change::OmapSet(rows) => Resolved::OmapSet(rows),
            Change::OmapRm(rows) => Resolved::OmapRm(rows),
            Change::OmapRmRange { start, end } => {
                Resolved::OmapRmRange { start, end: end.as_ref() }
            }
            Change::OmapClear => Resolved::OmapClear,
            Change::OmapHeader(header) => Resolved::OmapHeader(header),
            Change::Hint(hint) => Resolved::Hint(*hint),
        };
        self.change(coll, key, resolved)
    }

    fn change(&mut self, coll: Coll, key: &Key, change: Resolved<'_>) -> Result<(), StoreError> {
        let slot = self.st.slot(coll, key)?;
        let fresh = self.st.slots.get(slot).onode.is_none();
        self.rec.change(coll, key, fresh, &change);
        self.st.apply(coll, slot, &change)
    }

    fn size(&mut self, coll: Coll, key: &Key) -> Result<u64, StoreError> {
        let slot = self.st.slot(coll, key)?;
        Ok(self.st.slots.get(slot).onode.as_ref().map_or(0, |o| o.size))
    }

    fn write(
        &mut self,
        coll: Coll,
        key: &Key,
        off: u64,
        data: &Buffers,
        hint: WriteHint,
    ) -> Result<(), StoreError> {
        let len = data.len();
        if len == 0 {
            // Grows the object like any write that ends there: to nothing beyond what it is.
            return self.change(coll, key, Resolved::Touch);
        }
        let end = off + len;
        let size = self.size(coll, key)?.max(end);
        let slot = self.st.slot(coll, key)?;
        if let Some(bad) =
            edges(off, end).find(|lblk| matches!(self.base(slot, *lblk), Some(Err(_))))
        {
            // All but this block is written: what is before it, and what comes after it.
            let (lo, hi) = (u64::from(bad) * B, u64::from(bad) * B + B);
            self.spoil(coll, key, slot, bad, size)?;
            if off < lo {
                self.write(coll, key, off, &data.slice(0, lo - off), hint)?;
            }
            if hi < end {
                self.write(coll, key, hi, &data.slice(hi - off, end - hi), hint)?;
            }
            return Ok(());
        }
        let (first, last) = ((off / B) as u32, ((end - 1) / B) as u32);
        let blocks = self.assemble(slot, off, data, first..=last);
        let crcs = block_crcs(blocks.iter().map(|b| &b[..]));
        let put = Put { coll, key, first, size, crcs: &crcs };
        if len <= self.deferred_max {
            let segs = self.place_inline(slot, first, blocks.len())?;
            return self.put(&put, &segs, Some(&blocks));
        }
        self.write_fresh(&put, off, data, blocks, hint)
    }

    /// The whole blocks that a write changes.
    #[inline]
    fn assemble(
        &mut self,
        slot: u32,
        off: u64,
        data: &Buffers,
        lblks: RangeInclusive<u32>,
    ) -> SmallVec<[Bytes; 16]> {
        let (len, end) = (data.len(), off + data.len());
        let n = (lblks.end() - lblks.start() + 1) as usize;
        let mut source = Cursor::new(data);
        let mut blocks: SmallVec<[Bytes; 16]> = SmallVec::with_capacity(n);
        for lblk in lblks {
            let start = u64::from(lblk) * B;
            let (from, to) = (off.max(start) - start, end.min(start + B) - start);
            // Of a longer write each block gets memory of its own: they are overwritten and
            // forgotten one by one.
            let whole = if to - from == B && (n == 1 || len > self.deferred_max) {
                source.slice(BLOCK as usize)
            } else {
                None
            };
            let block = match whole {
                Some(b) => b,
                None => {
                    let mut b = AlignedBuf::recycled(BLOCK as usize);
                    let base = if to - from == B { None } else { self.base(slot, lblk) };
                    match base {
                        Some(Ok(base)) => b.copy_from_slice(&base),
                        _ => b.fill(0),
                    }
                    source.copy(&mut b[from as usize..to as usize]);
                    b.freeze()
                }
            };
            blocks.push(block);
        }
        blocks
    }

    #[inline]
    fn put(
        &mut self,
        put: &Put<'_>,
        segs: &[Run],
        inline: Option<&[Bytes]>,
    ) -> Result<(), StoreError> {
        let Put { coll, key, first: lblk, size, crcs } = *put;
        self.change(coll, key, Resolved::Put { lblk, segs, crcs, size, inline })
    }

    /// Writes blocks to fresh places on the device, before the record that names them.
    fn write_fresh(
        &mut self,
        put: &Put<'_>,
        off: u64,
        data: &Buffers,
        blocks: SmallVec<[Bytes; 16]>,
        hint: WriteHint,
    ) -> Result<(), StoreError> {
        let (end, n) = (off + data.len(), blocks.len());
        let segs = self.allocate(n as u32)?;
        let mut done = 0;
        for (at, n) in &segs {
            let (lo, hi) = (done, done + *n as usize);
            // Whole blocks as the caller's slices, blocks covered in part as assembled.
            let start = |i: usize| (u64::from(put.first) + i as u64) * B;
            let (mid_lo, mid_hi) =
                (lo + usize::from(start(lo) < off), hi - usize::from(start(hi) > end));
            let mut gather = Gather::new();
            if mid_lo >= mid_hi {
                gather.extend(blocks[lo..hi].iter().cloned());
            } else {
                gather.extend(blocks[lo..mid_lo].iter().cloned());
                gather.extend(data.slice(start(mid_lo) - off, (mid_hi - mid_lo) as u64 * B));
                gather.extend(blocks[mid_hi..hi].iter().cloned());
            }
            self.ios.push(self.st.dev.write(at * B, gather, false));
            done = hi;
        }
        self.put(put, &segs, None)?;
        let keep = hint == WriteHint::WillNeed || (hint == WriteHint::Normal && n <= 16);
        let places = segs.iter().flat_map(|(at, n)| *at..at + u64::from(*n));
        for (at, b) in places.zip(&blocks) {
            // Served from memory until it is known to be on the device.
            self.st.direct.insert(at, b.clone());
            if keep {
                // A copy: the block is a slice of the whole write.
                self.st.cache.insert(at, Bytes::copy_from_slice(b));
            }
        }
        self.direct.extend(segs);
        Ok(())
    }

    /// The record has the bytes that come out: replaying it twice changes nothing.
    fn xor(&mut self, coll: Coll, key: &Key, off: u64, data: &Buffers) -> Result<(), StoreError> {
        if data.is_empty() {
            return self.change(coll, key, Resolved::Touch);
        }
        let end = off + data.len();
        let size = self.size(coll, key)?.max(end);
        let slot = self.st.slot(coll, key)?;
        let mut source = Cursor::new(data);
        // Bytes that go to sound blocks, up to a damaged one.
        let (mut at, mut out) = (off, Vec::new());
        for lblk in blocks(off, data.len()) {
            let start = u64::from(lblk) * B;
            let (from, to) =
                ((off.max(start) - start) as usize, (end.min(start + B) - start) as usize);
            let done = out.len();
            out.resize(done + (to - from), 0);
            source.copy(&mut out[done..]);
            match self.base(slot, lblk) {
                None => {}
                Some(Ok(base)) => {
                    out[done..].iter_mut().zip(&base[from..to]).for_each(|(o, b)| *o ^= b);
                }
                Some(Err(_)) => {
                    out.truncate(done);
                    if !out.is_empty() {
                        let whole = Buffers::from(std::mem::take(&mut out));
                        self.write(coll, key, at, &whole, WriteHint::Normal)?;
                    }
                    self.spoil(coll, key, slot, lblk, size)?;
                    at = start + B;
                }
            }
        }
        if out.is_empty() {
            return Ok(());
        }
        self.write(coll, key, at, &Buffers::from(out), WriteHint::Normal)
    }

    /// What a partly changed block holds before: `None` for a hole.
    fn base(&mut self, slot: u32, lblk: u32) -> Option<Result<Bytes, StoreError>> {
        self.st.content(slot, lblk).transpose()
    }

    /// A block that is changed in part, without its old content being readable, stays unreadable,
    /// also if the device has a change of mind: it gets a checksum that its content does not have.
    /// A read of the object finds that out.
    fn spoil(
        &mut self,
        coll: Coll,
        key: &Key,
        slot: u32,
        lblk: u32,
        size: u64,
    ) -> Result<(), StoreError> {
        tracing::error!(%coll, key = %key.escape_ascii(), offset = u64::from(lblk) * B, "a damaged block is written in part, and stays damaged");
        let segs = self.place_inline(slot, lblk, 1)?;
        let block = [damaged_block()];
        let crcs = [!crc32c::crc32c(&block[0])];
        self.change(
            coll,
            key,
            Resolved::Put { lblk, segs: &segs, crcs: &crcs, size, inline: Some(&block) },
        )
    }

    fn allocate(&mut self, n: u32) -> Result<SmallVec<[Run; 4]>, StoreError> {
        let mut runs = SmallVec::new();
        if n > 0 && !self.st.alloc.allocate(n, &mut runs) {
            return Err(StoreError::NoSpace);
        }
        Ok(runs)
    }

    /// Where blocks go that are written by way of the log: to their place, or to a new one if they
    /// have none of their own.
    fn place_inline(
        &mut self,
        slot: u32,
        first: u32,
        n: usize,
    ) -> Result<SmallVec<[Run; 4]>, StoreError> {
        let st = &*self.st;
        let own: SmallVec<[Option<u64>; 16]> = match &st.slots.get(slot).onode {
            None => SmallVec::from_elem(None, n),
            Some(o) => (first..first + n as u32)
                .map(|lblk| o.block(lblk).filter(|(e, p, _)| st.is_sole(e, *p)).map(|(_, p, _)| p))
                .collect(),
        };
        let fresh = self.allocate(own.iter().filter(|p| p.is_none()).count() as u32)?;
        let mut fresh = fresh.iter().flat_map(|(at, n)| *at..at + u64::from(*n));
        let mut segs: SmallVec<[Run; 4]> = SmallVec::new();
        for p in own {
            let Some(p) = p.or_else(|| fresh.next()) else { return Err(StoreError::NoSpace) };
            match segs.last_mut() {
                Some((at, n)) if *at + u64::from(*n) == p => *n += 1,
                _ => segs.push((p, 1)),
            }
        }
        Ok(segs)
    }

    /// Makes `[off, end)` a hole where it covers whole blocks, and zeros where it does not.
    fn zero(
        &mut self,
        coll: Coll,
        key: &Key,
        off: u64,
        end: u64,
        grow: bool,
    ) -> Result<(), StoreError> {
        let slot = self.st.slot(coll, key)?;
        let size = self.size(coll, key)?;
        for lblk in edges(off, end) {
            let start = u64::from(lblk) * B;
            let (from, to) =
                ((off.max(start) - start) as usize, (end.min(start + B) - start) as usize);
            let Some(base) = self.base(slot, lblk) else { continue };
            let Ok(base) = base else {
                self.spoil(coll, key, slot, lblk, size)?;
                continue;
            };
            let mut b = AlignedBuf::zeroed(BLOCK as usize);
            b.copy_from_slice(&base);
            b[from..to].fill(0);
            let crcs = [crc32c::crc32c(&b)];
            let segs = self.place_inline(slot, lblk, 1)?;
            let block = [b.freeze()];
            let change =
                Resolved::Put { lblk, segs: &segs, crcs: &crcs, size, inline: Some(&block) };
            self.change(coll, key, change)?;
        }
        let (lo, hi) = (off.div_ceil(B) as u32, (end / B) as u32);
        if lo < hi {
            self.change(coll, key, Resolved::Punch { lo, hi })?;
        }
        if grow {
            self.change(coll, key, Resolved::Size(size.max(end)))?;
        }
        Ok(())
    }

    fn clone_range(
        &mut self,
        coll: Coll,
        from: &Key,
        off: u64,
        len: u64,
        to: &Key,
        to_off: u64,
    ) -> Result<(), StoreError> {
        if len == 0 {
            return self.change(coll, to, Resolved::Touch);
        }
        if off % B != to_off % B {
            let data = self.bytes(coll, from, off, len)?;
            return self.write(coll, to, to_off, &data, WriteHint::Normal);
        }
        // Read before anything changes: the ranges may overlap.
        let end = off + len;
        let (lo, hi) = (off.div_ceil(B) * B, end / B * B);
        let (head, tail) = if lo >= hi {
            (self.bytes(coll, from, off, len)?, Buffers::new())
        } else {
            (self.bytes(coll, from, off, lo - off)?, self.bytes(coll, from, hi, end - hi)?)
        };
        if lo < hi {
            let to_lo = to_off + (lo - off);
            let n = ((hi - lo) / B) as u32;
            let size = self.size(coll, to)?.max(to_lo + (hi - lo));
            let change =
                Resolved::Share { lblk: (lo / B) as u32, n, to, to_lblk: (to_lo / B) as u32, size };
            self.change(coll, from, change)?;
        }
        if !head.is_empty() {
            self.write(coll, to, to_off, &head, WriteHint::Normal)?;
        }
        if !tail.is_empty() {
            self.write(coll, to, to_off + (hi - off), &tail, WriteHint::Normal)?;
        }
        Ok(())
    }

    /// The bytes of a range, zeros where there are none.
    fn bytes(&mut self, coll: Coll, key: &Key, off: u64, len: u64) -> Result<Buffers, StoreError> {
        let slot = self.st.slot(coll, key)?;
        let size = self.size(coll, key)?;
        let mut out = Buffers::new();
        let mut at = off;
        while at < off + len {
            let from = at % B;
            let n = (B - from).min(off + len - at);
            let block = if at < size { self.st.content(slot, (at / B) as u32)? } else { None };
            let block = block.unwrap_or(Bytes::from_static(&ZERO_BLOCK));
            out.push(block.slice(from as usize..(from + n) as usize));
            at += n;
        }
        Ok(out)
    }
}

/// Takes bytes off a list of slices.
struct Cursor<'a> {
    rest: std::slice::Iter<'a, Bytes>,
    here: Bytes,
}

impl<'a> Cursor<'a> {
    fn new(data: &'a Buffers) -> Cursor<'a> {
        Cursor { rest: data.iter(), here: Bytes::new() }
    }

    /// The next `n` bytes without copying, if they are in one slice.
    fn slice(&mut self, n: usize) -> Option<Bytes> {
        self.fill();
        (self.here.len() >= n).then(|| self.here.split_to(n))
    }

    fn copy(&mut self, out: &mut [u8]) {
        let mut done = 0;
        while done < out.len() {
            self.fill();
            let n = self.here.len().min(out.len() - done);
            out[done..done + n].copy_from_slice(&self.here.split_to(n));
            done += n;
        }
    }

    fn fill(&mut self) {
        while self.here.is_empty() {
            match self.rest.next() {
                Some(b) => self.here = b.clone(),
                None => return,
            }
        }
    }
}
