//! The record of an object: size, attributes, where its blocks are and what their checksums are.

use crate::codec::{Decoded, Put, Take, corrupt};
use crate::types::{AllocHint, BLOCK, Stat};
use bytes::Bytes;

/// A run of blocks, contiguous in the object and on the device. Block numbers count [`BLOCK`]s.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// First logical block.
    pub lblk: u32,
    /// First physical block.
    pub pblk: u64,
    /// 0: only this object refers to the blocks. Otherwise the reference counts are in this family.
    pub family: u64,
    /// CRC-32C of each block; the length of the run.
    pub crcs: Vec<u32>,
}

impl Extent {
    pub(crate) fn len(&self) -> u32 {
        self.crcs.len() as u32
    }

    pub(crate) fn end(&self) -> u32 {
        self.lblk + self.len()
    }

    /// The part that covers logical blocks `[lo, hi)`, which must lie inside.
    fn part(&self, lo: u32, hi: u32) -> Extent {
        let from = lo - self.lblk;
        let crcs = self.crcs[from as usize..(hi - self.lblk) as usize].to_vec();
        Extent { lblk: lo, pblk: self.pblk + u64::from(from), family: self.family, crcs }
    }
}

/// An object record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Onode {
    pub size: u64,
    /// Prefix of the omap rows in the tree; 0 when there are none.
    pub omap: u64,
    pub hint: AllocHint,
    /// Ordered by name.
    pub attrs: Vec<(Bytes, Bytes)>,
    /// Ordered by `lblk`, without overlap.
    pub extents: Vec<Extent>,
}

/// Version of the encoding.
const VERSION: u8 = 1;

impl Onode {
    /// The index of the extent that holds `lblk`, or else of the first one after it.
    pub(crate) fn find(&self, lblk: u32) -> usize {
        self.extents.partition_point(|e| e.end() <= lblk)
    }

    /// Where block `lblk` is: its extent and the physical block.
    pub(crate) fn block(&self, lblk: u32) -> Option<(&Extent, u64, u32)> {
        let e = self.extents.get(self.find(lblk)).filter(|e| e.lblk <= lblk)?;
        let i = lblk - e.lblk;
        Some((e, e.pblk + u64::from(i), e.crcs[i as usize]))
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.extents.iter().map(|e| e.crcs.len() as u64).sum()
    }

    pub(crate) fn stat(&self) -> Stat {
        Stat { size: self.size, allocated: self.blocks() * BLOCK, hint: self.hint }
    }

    pub(crate) fn attr(&self, name: &[u8]) -> Option<&Bytes> {
        let i = self.attrs.binary_search_by(|(k, _)| k.as_ref().cmp(name)).ok()?;
        Some(&self.attrs[i].1)
    }

    pub(crate) fn set_attr(&mut self, name: Bytes, value: Bytes) {
        match self.attrs.binary_search_by(|(k, _)| k.cmp(&name)) {
            Ok(i) => self.attrs[i].1 = value,
            Err(i) => self.attrs.insert(i, (name, value)),
        }
    }

    pub(crate) fn rm_attr(&mut self, name: &[u8]) {
        if let Ok(i) = self.attrs.binary_search_by(|(k, _)| k.as_ref().cmp(name)) {
            self.attrs.remove(i);
        }
    }

    /// Takes logical blocks `[lo, hi)` out of the map and hands them over.
    pub(crate) fn punch(&mut self, lo: u32, hi: u32, mut taken: impl FnMut(Extent)) {
        let first = self.find(lo);
        let last = self.extents.partition_point(|e| e.lblk < hi);
        if first >= last || lo >= hi {
            return;
        }
        let mut keep: smallvec::SmallVec<[Extent; 2]> = smallvec::SmallVec::new();
        for e in &self.extents[first..last] {
            let (from, to) = (e.lblk.max(lo), e.end().min(hi));
            if e.lblk < from {
                keep.push(e.part(e.lblk, from));
            }
            if to < e.end() {
                keep.push(e.part(to, e.end()));
            }
            taken(e.part(from, to));
        }
        self.extents.splice(first..last, keep);
    }

    /// Puts a run into a gap of the map, joined to its neighbours where that makes one run of two.
    pub(crate) fn insert(&mut self, e: Extent) {
        let joins = |a: &Extent, b: &Extent| {
            a.end() == b.lblk && a.family == b.family && a.pblk + u64::from(a.len()) == b.pblk
        };
        let mut i = self.find(e.lblk);
        debug_assert!(self.extents.get(i).is_none_or(|n| n.lblk >= e.end()));
        if i > 0 && joins(&self.extents[i - 1], &e) {
            i -= 1;
            self.extents[i].crcs.extend_from_slice(&e.crcs);
        } else {
            self.extents.insert(i, e);
        }
        if i + 1 < self.extents.len() && joins(&self.extents[i], &self.extents[i + 1]) {
            let next = self.extents.remove(i + 1);
            self.extents[i].crcs.extend_from_slice(&next.crcs);
        }
    }

    /// Rough size in memory, in bytes.
    pub(crate) fn weight(&self) -> usize {
        let attrs: usize = self.attrs.iter().map(|(k, v)| k.len() + v.len() + 64).sum();
        160 + attrs + self.extents.iter().map(|e| 48 + 4 * e.crcs.len()).sum::<usize>()
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.u8(VERSION);
        out.var(self.size);
        out.var(self.omap);
        out.var(self.hint.object_size);
        out.var(self.hint.write_size);
        out.var(self.hint.flags.into());
        out.var(self.attrs.len() as u64);
        for (k, v) in &self.attrs {
            out.blob(k);
            out.blob(v);
        }
        out.var(self.extents.len() as u64);
        let mut at = 0;
        for e in &self.extents {
            out.var((e.lblk - at).into());
            out.var(e.len().into());
            out.var(e.pblk);
            out.var(e.family);
            at = e.end();
        }
        for e in &self.extents {
            put_crcs(out, &e.crcs);
        }
    }

    pub(crate) fn decode(bytes: &Bytes) -> Decoded<Onode> {
        let mut r = Take::new(bytes);
        let version = r.u8()?;
        if version != VERSION {
            return Err(corrupt("object record of an unknown version"));
        }
        let mut o = Onode { size: r.var()?, omap: r.var()?, ..Onode::default() };
        o.hint = AllocHint { object_size: r.var()?, write_size: r.var()?, flags: r.var32()? };
        let n = r.count(2)?;
        o.attrs.reserve(n);
        for _ in 0..n {
            // Copied: a slice would keep a whole tree node in memory for a few bytes.
            let (k, v) = (Bytes::copy_from_slice(&r.blob()?), Bytes::copy_from_slice(&r.blob()?));
            if o.attrs.last().is_some_and(|(last, _)| *last >= k) {
                return Err(corrupt("attributes out of order"));
            }
            o.attrs.push((k, v));
        }
        let n = r.count(8)?;
        o.extents.reserve(n);
        let (mut at, mut total) = (0u32, 0usize);
        let mut runs = Vec::with_capacity(n);
        for _ in 0..n {
            let lblk = at.checked_add(r.var32()?).ok_or_else(|| corrupt("extent"))?;
            let len = r.var32()?;
            at = lblk.checked_add(len).filter(|_| len > 0).ok_or_else(|| corrupt("extent"))?;
            total = total.checked_add(len as usize).ok_or_else(|| corrupt("extent"))?;
            runs.push((lblk, len, r.var()?, r.var()?));
        }
        if total.checked_mul(4) != Some(r.left()) {
            return Err(corrupt("checksums of an object record"));
        }
        for (lblk, len, pblk, family) in runs {
            if pblk.checked_add(len.into()).is_none() {
                return Err(corrupt("extent"));
            }
            let crcs = (0..len).map(|_| r.u32()).collect::<Decoded<Vec<u32>>>()?;
            o.extents.push(Extent { lblk, pblk, family, crcs });
        }
        r.end()?;
        Ok(o)
    }
}

pub(crate) fn put_crcs(out: &mut Vec<u8>, crcs: &[u32]) {
    out.reserve(crcs.len() * 4);
    for c in crcs {
        out.u32(*c);
    }
}
