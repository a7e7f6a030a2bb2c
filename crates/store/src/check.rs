//! The check before a transaction is applied: everything that can fail for the caller's reasons fails here,
//! before anything has changed.

use crate::error::StoreError;
use crate::txn::{Op, Transaction};
use crate::types::{Coll, Key};
use bytes::Bytes;
use rustc_hash::FxHashMap;

/// Largest object, in bytes. Far above what any pool allows; keeps block numbers in 32 bits.
pub(crate) const OBJECT_MAX: u64 = 1 << 43;
/// Longest object key, attribute name and omap key.
pub(crate) const KEY_MAX: usize = 16 << 10;
/// Largest attribute, omap value or omap header.
pub(crate) const VALUE_MAX: usize = 16 << 20;

/// What the check asks the store.
pub(crate) trait View {
    fn has_coll(&self, coll: Coll) -> bool;
    fn has_object(&self, coll: Coll, key: &Key) -> Result<bool, StoreError>;
    /// Calls `f` with each key of the collection until it returns false.
    fn any_object(&self, coll: Coll, f: &mut dyn FnMut(&Key) -> bool) -> Result<(), StoreError>;
}

/// The effects of the operations checked so far on what exists.
struct Checked<'a, V> {
    view: &'a V,
    colls: Vec<(Coll, bool)>,
    /// Searched from the end; `index` takes over when there are many.
    objects: Vec<(Coll, Key, bool)>,
    index: Option<FxHashMap<(Coll, Key), bool>>,
}

/// Fails if applying `txn` to `view` would.
pub(crate) fn check<V: View>(txn: &Transaction, view: &V) -> Result<(), StoreError> {
    let index = (txn.ops.len() > 24).then(FxHashMap::default);
    let mut c = Checked { view, colls: Vec::new(), objects: Vec::new(), index };
    for op in &txn.ops {
        c.op(op)?;
    }
    Ok(())
}

impl<V: View> Checked<'_, V> {
    fn op(&mut self, op: &Op) -> Result<(), StoreError> {
        match op {
            Op::CreateCollection { coll } => {
                if self.has_coll(*coll) {
                    return Err(StoreError::CollectionExists(*coll));
                }
                self.colls.push((*coll, true));
            }
            Op::RemoveCollection { coll } => {
                self.coll(*coll)?;
                if self.has_any(*coll)? {
                    return Err(StoreError::NotEmpty(*coll));
                }
                self.colls.push((*coll, false));
            }
            Op::Touch { coll, key } | Op::Hint { coll, key, .. } => self.create(*coll, key)?,
            Op::Write { coll, key, off, data, .. } => {
                reach(*off, data.len())?;
                self.create(*coll, key)?;
            }
            Op::Zero { coll, key, off, len } => {
                reach(*off, *len)?;
                self.create(*coll, key)?;
            }
            Op::Truncate { coll, key, size } => {
                reach(*size, 0)?;
                self.create(*coll, key)?;
            }
            Op::Remove { coll, key } => {
                self.need(*coll, key)?;
                self.note(*coll, key, false);
            }
            Op::Clone { coll, from, to } => {
                self.need(*coll, from)?;
                self.create(*coll, to)?;
            }
            Op::CloneRange { coll, from, off, len, to, to_off } => {
                reach(*off, *len)?;
                reach(*to_off, *len)?;
                self.need(*coll, from)?;
                self.create(*coll, to)?;
            }
            Op::SetAttrs { coll, key, attrs } => {
                rows(attrs)?;
                self.create(*coll, key)?;
            }
            Op::OmapSet { coll, key, rows: r } => {
                rows(r)?;
                self.create(*coll, key)?;
            }
            Op::OmapHeader { coll, key, header } => {
                value(header)?;
                self.create(*coll, key)?;
            }
            Op::RmAttr { coll, key, .. }
            | Op::ClearAttrs { coll, key }
            | Op::OmapRm { coll, key, .. }
            | Op::OmapRmRange { coll, key, .. }
            | Op::OmapClear { coll, key } => self.need(*coll, key)?,
            Op::Move { from, from_key, to, to_key } => {
                self.need(*from, from_key)?;
                self.coll(*to)?;
                name(to_key)?;
                if self.has_object(*to, to_key)? {
                    return Err(StoreError::ObjectExists { coll: *to, key: to_key.clone() });
                }
                self.note(*from, from_key, false);
                self.note(*to, to_key, true);
            }
        }
        Ok(())
    }

    fn has_coll(&self, coll: Coll) -> bool {
        let own = self.colls.iter().rev().find(|(c, _)| *c == coll);
        own.map_or_else(|| self.view.has_coll(coll), |(_, there)| *there)
    }

    fn coll(&self, coll: Coll) -> Result<(), StoreError> {
        if self.has_coll(coll) { Ok(()) } else { Err(StoreError::NoCollection(coll)) }
    }

    fn has_object(&self, coll: Coll, key: &Key) -> Result<bool, StoreError> {
        if let Some(there) = self.noted(coll, key) {
            return Ok(there);
        }
        // A collection made by this very transaction has nothing but what the transaction puts there.
        if self.view.has_coll(coll) { self.view.has_object(coll, key) } else { Ok(false) }
    }

    fn noted(&self, coll: Coll, key: &Key) -> Option<bool> {
        match &self.index {
            Some(index) => index.get(&(coll, key.clone())).copied(),
            None => self.objects.iter().rev().find(|(c, k, _)| *c == coll && k == key).map(|o| o.2),
        }
    }

    fn note(&mut self, coll: Coll, key: &Key, there: bool) {
        match &mut self.index {
            Some(index) => {
                index.insert((coll, key.clone()), there);
            }
            None => self.objects.push((coll, key.clone(), there)),
        }
    }

    fn need(&mut self, coll: Coll, key: &Key) -> Result<(), StoreError> {
        self.coll(coll)?;
        if self.has_object(coll, key)? { Ok(()) } else { Err(StoreError::NoObject { coll, key: key.clone() }) }
    }

    fn create(&mut self, coll: Coll, key: &Key) -> Result<(), StoreError> {
        self.coll(coll)?;
        if self.noted(coll, key) != Some(true) {
            name(key)?;
            self.note(coll, key, true);
        }
        Ok(())
    }

    fn has_any(&self, coll: Coll) -> Result<bool, StoreError> {
        let made_here = match &self.index {
            Some(index) => index.iter().any(|((c, _), there)| *c == coll && *there),
            None => self.objects.iter().any(|(c, k, _)| *c == coll && self.noted(coll, k) == Some(true)),
        };
        if made_here || !self.view.has_coll(coll) {
            return Ok(made_here);
        }
        let mut any = false;
        self.view.any_object(coll, &mut |key| {
            any = self.noted(coll, key) != Some(false);
            !any
        })?;
        Ok(any)
    }
}

fn reach(off: u64, len: u64) -> Result<(), StoreError> {
    match off.checked_add(len) {
        Some(end) if end <= OBJECT_MAX => Ok(()),
        _ => Err(StoreError::TooBig("object size")),
    }
}

fn name(key: &Bytes) -> Result<(), StoreError> {
    if key.len() <= KEY_MAX { Ok(()) } else { Err(StoreError::TooBig("key length")) }
}

fn value(v: &Bytes) -> Result<(), StoreError> {
    if v.len() <= VALUE_MAX { Ok(()) } else { Err(StoreError::TooBig("value length")) }
}

fn rows(rows: &[(Bytes, Bytes)]) -> Result<(), StoreError> {
    rows.iter().try_for_each(|(k, v)| name(k).and_then(|()| value(v)))
}
