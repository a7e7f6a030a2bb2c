//! Changes that are not in the tree yet.

use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Bound;

/// Rows set and removed and ranges removed, on top of a tree or another layer. A row of the layer
/// hides everything below; below a removed range nothing is seen.
#[derive(Default)]
pub(crate) struct Layer {
    /// `None` is a removed row.
    pub rows: BTreeMap<Bytes, Option<Bytes>>,
    /// Removed ranges, start to end, disjoint and not touching.
    pub dead: BTreeMap<Bytes, Bytes>,
    /// Bytes of keys and values.
    pub bytes: usize,
}

/// Memory that a row costs beyond its bytes, roughly.
const ROW: usize = 96;

impl Layer {
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.dead.is_empty()
    }

    /// Sets or removes a row.
    pub(crate) fn put(&mut self, key: Bytes, value: Option<Bytes>) {
        self.bytes += key.len() + value.as_ref().map_or(0, Bytes::len) + ROW;
        let k = key.len();
        if let Some(old) = self.rows.insert(key, value) {
            self.bytes -= k + old.map_or(0, |v| v.len()) + ROW;
        }
    }

    /// Removes all rows in `[start, end)`.
    pub(crate) fn remove_range(&mut self, start: Bytes, end: Bytes) {
        if start >= end {
            return;
        }
        let gone: Vec<Bytes> =
            self.rows.range(start.clone()..end.clone()).map(|(k, _)| k.clone()).collect();
        for k in gone {
            if let Some(old) = self.rows.remove(&k) {
                self.bytes -= k.len() + old.map_or(0, |v| v.len()) + ROW;
            }
        }
        let (mut lo, mut hi) = (start, end);
        if let Some((s, e)) = self.dead.range(..=lo.clone()).next_back()
            && *e >= lo
        {
            lo = s.clone();
            hi = hi.max(e.clone());
        }
        while let Some((s, e)) = self.dead.range(lo.clone()..=hi.clone()).next() {
            hi = hi.max(e.clone());
            let s = s.clone();
            self.dead.remove(&s);
        }
        self.dead.insert(lo, hi);
    }

    /// True if `key` is in a removed range.
    pub(crate) fn is_dead(&self, key: &[u8]) -> bool {
        let before =
            self.dead.range::<[u8], _>((Bound::Unbounded, Bound::Included(key))).next_back();
        before.is_some_and(|(_, e)| e.as_ref() > key)
    }

    /// What the layer says about a row: `None` nothing, `Some(None)` that there is no such row.
    pub(crate) fn get(&self, key: &[u8]) -> Option<Option<Bytes>> {
        match self.rows.get(key) {
            Some(v) => Some(v.clone()),
            None => self.is_dead(key).then_some(None),
        }
    }

    /// Applies the layer to the rows in `[from, end)` that are below it.
    pub(crate) fn overlay(
        &self,
        from: Bound<&[u8]>,
        end: Option<&[u8]>,
        rows: &mut BTreeMap<Bytes, Bytes>,
    ) {
        if !self.dead.is_empty() {
            rows.retain(|k, _| !self.is_dead(k));
        }
        let to = end.map_or(Bound::Unbounded, Bound::Excluded);
        if let (Bound::Included(f) | Bound::Excluded(f), Some(e)) = (from, end)
            && f >= e
        {
            return;
        }
        for (k, v) in self.rows.range::<[u8], _>((from, to)) {
            match v {
                Some(v) => rows.insert(k.clone(), v.clone()),
                None => rows.remove(k),
            };
        }
    }

    /// The key after the first `n` rows, set or removed, between `from` and `end`.
    pub(crate) fn row_after(&self, from: Bound<&[u8]>, end: &[u8], n: usize) -> Option<Bytes> {
        if let Bound::Included(f) | Bound::Excluded(f) = from
            && f >= end
        {
            return None;
        }
        self.rows.range::<[u8], _>((from, Bound::Excluded(end))).nth(n).map(|(k, _)| k.clone())
    }

    /// True if the layer says anything about keys in `[lo, hi)`; no `hi` means to the end.
    pub(crate) fn touches(&self, lo: &[u8], hi: Option<&[u8]>) -> bool {
        self.has_rows(lo, hi) || {
            let to = hi.map_or(Bound::Unbounded, Bound::Excluded);
            self.is_dead(lo)
                || self.dead.range::<[u8], _>((Bound::Included(lo), to)).next().is_some()
        }
    }

    /// True if there are rows, set or removed, in `[lo, hi)`.
    pub(crate) fn has_rows(&self, lo: &[u8], hi: Option<&[u8]>) -> bool {
        let to = hi.map_or(Bound::Unbounded, Bound::Excluded);
        self.rows.range::<[u8], _>((Bound::Included(lo), to)).next().is_some()
    }

    /// True if one removed range covers `[lo, hi)`.
    pub(crate) fn covers(&self, lo: &[u8], hi: Option<&[u8]>) -> bool {
        let before =
            self.dead.range::<[u8], _>((Bound::Unbounded, Bound::Included(lo))).next_back();
        match (before, hi) {
            (Some((_, e)), Some(hi)) => e.as_ref() >= hi,
            _ => false,
        }
    }
}
