//! Reference counts of blocks that several objects share.
//!
//! The blocks that became shared by cloning one object form a family. A block of a family is
//! counted here as long as any object refers to it; its extents carry the family's number.

use crate::alloc::Run;
use crate::codec::{Decoded, Put, Take, corrupt};
use bytes::Bytes;
use std::collections::BTreeMap;

/// Runs by first block: length and count. Disjoint; counts are at least 1.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Family(pub BTreeMap<u64, (u32, u32)>);

impl Family {
    /// Splits runs so that one starts at `at`.
    fn split(&mut self, at: u64) {
        if let Some((&start, &(len, count))) = self.0.range(..at).next_back()
            && start + u64::from(len) > at
        {
            let head = (at - start) as u32;
            self.0.insert(start, (head, count));
            self.0.insert(at, (len - head, count));
        }
    }

    /// Enters blocks that had one owner so far and now have two.
    pub(crate) fn enter(&mut self, (start, len): Run) {
        self.0.insert(start, (len, 2));
    }

    /// One more reference to blocks of the family.
    pub(crate) fn add(&mut self, (start, len): Run) {
        let end = start + u64::from(len);
        self.split(start);
        self.split(end);
        for (_, run) in self.0.range_mut(start..end) {
            run.1 += 1;
        }
    }

    /// One reference less; hands over the runs that are not referred to any more.
    pub(crate) fn sub(&mut self, (start, len): Run, mut gone: impl FnMut(Run)) {
        let end = start + u64::from(len);
        self.split(start);
        self.split(end);
        let mut dead = Vec::new();
        for (&at, run) in self.0.range_mut(start..end) {
            run.1 -= 1;
            if run.1 == 0 {
                dead.push((at, run.0));
            }
        }
        for (at, n) in dead {
            self.0.remove(&at);
            gone((at, n));
        }
    }

    /// How many refer to a block.
    pub(crate) fn count(&self, block: u64) -> u32 {
        match self.0.range(..=block).next_back() {
            Some((start, (len, count))) if start + u64::from(*len) > block => *count,
            _ => 0,
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(1 + self.0.len() * 8);
        out.var(self.0.len() as u64);
        let mut at = 0;
        for (start, (len, count)) in &self.0 {
            out.var(start - at);
            out.var((*len).into());
            out.var((*count).into());
            at = start + u64::from(*len);
        }
        out
    }

    pub(crate) fn decode(bytes: &Bytes) -> Decoded<Family> {
        let mut r = Take::new(bytes);
        let n = r.count(3)?;
        let (mut at, mut out) = (0u64, BTreeMap::new());
        for _ in 0..n {
            let start = at.checked_add(r.var()?).ok_or_else(|| corrupt("family"))?;
            let (len, count) = (r.var32()?, r.var32()?);
            at = start
                .checked_add(len.into())
                .filter(|_| len > 0 && count > 0)
                .ok_or_else(|| corrupt("family"))?;
            out.insert(start, (len, count));
        }
        r.end()?;
        Ok(Family(out))
    }
}
