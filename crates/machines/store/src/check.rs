//! The check before a transaction is applied: everything that can fail for the caller's reasons
//! fails here, before anything has changed.

use crate::error::StoreError;
use crate::txn::{Change, Op, Transaction};
use crate::types::{BLOCK, Coll, Key};
use crate::window::Window;
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
    /// A collection, with its window if it has one.
    fn collection(&self, coll: Coll) -> Option<Option<Window>>;
    /// Whether some collection has keys of this window.
    fn overlaps(&self, window: &Window) -> bool;
    /// Whether there is an object behind this number: that of an ordinary collection or of a space.
    fn has_object(&self, place: Coll, key: &Key) -> Result<bool, StoreError>;
    /// An attribute of an object behind this number.
    fn attr(&self, place: Coll, key: &Key, name: &Bytes) -> Result<Option<Bytes>, StoreError>;
    /// Calls `f` with each key in `[start, end)` behind this number until it returns false.
    fn any_object(
        &self,
        place: Coll,
        start: &Key,
        end: Option<&Key>,
        f: &mut dyn FnMut(&Key) -> bool,
    ) -> Result<(), StoreError>;
}

/// The effects of the operations checked so far on what exists.
struct Checked<'a, V> {
    view: &'a V,
    colls: Vec<(Coll, Option<Option<Window>>)>,
    /// By place. Searched from the end; `index` takes over when there are many.
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
                // Nor may it be the number of a space.
                let all = Window { space: *coll, floor: Key::new(), start: Key::new(), end: None };
                if self.overlaps(&all) {
                    return Err(StoreError::BadWindow(*coll));
                }
                self.colls.push((*coll, Some(None)));
            }
            Op::CreateWindow { coll, window } => {
                let onto_itself = window.space == *coll && self.collection(*coll) == Some(None);
                if self.has_coll(*coll) && !onto_itself {
                    return Err(StoreError::CollectionExists(*coll));
                }
                let bounds = [Some(&window.floor), Some(&window.start), window.end.as_ref()];
                bounds.into_iter().flatten().try_for_each(name)?;
                if !window.is_sound()
                    || self.overlaps(window)
                    || (self.has_coll(window.space) && !onto_itself)
                {
                    return Err(StoreError::BadWindow(*coll));
                }
                self.colls.push((*coll, Some(Some(window.clone()))));
            }
            Op::Split { coll, at, new } => {
                if self.has_coll(*new) {
                    return Err(StoreError::CollectionExists(*new));
                }
                name(at)?;
                let mut window = self.window(*coll)?;
                let rest = window.split_off(at).ok_or(StoreError::BadWindow(*coll))?;
                self.colls.push((*coll, Some(Some(window))));
                self.colls.push((*new, Some(Some(rest))));
            }
            Op::Merge { from, into } => {
                let (gone, mut joined) = (self.window(*from)?, self.window(*into)?);
                if !joined.join(&gone) {
                    return Err(StoreError::BadWindow(*into));
                }
                if self.any_in(*from, &Key::new(), Some(&gone.floor))? {
                    return Err(StoreError::NotEmpty(*from));
                }
                self.colls.push((*from, None));
                self.colls.push((*into, Some(Some(joined))));
            }
            Op::RemoveCollection { coll } => {
                self.coll(*coll)?;
                if self.has_any(*coll)? {
                    return Err(StoreError::NotEmpty(*coll));
                }
                self.colls.push((*coll, None));
            }
            Op::Object { coll, key, change } => self.change(*coll, key, change)?,
            Op::Move { from, from_key, to, to_key } => {
                self.need(*from, from_key)?;
                name(to_key)?;
                if self.has_object(*to, to_key)? {
                    return Err(StoreError::ObjectExists { coll: *to, key: to_key.clone() });
                }
                self.note(*from, from_key, false);
                self.note(*to, to_key, true);
            }
            Op::OmapMove { coll, key, range, to, to_key } => {
                [Some(&range.start), Some(&range.end), Some(&range.lo), range.hi.as_ref()]
                    .into_iter()
                    .flatten()
                    .try_for_each(name)?;
                self.need(*coll, key)?;
                self.need(*to, to_key)?;
            }
        }
        Ok(())
    }

    fn change(&mut self, coll: Coll, key: &Key, change: &Change) -> Result<(), StoreError> {
        match change {
            Change::Touch | Change::Hint(_) => {}
            Change::Write { off, data, .. } | Change::Xor { off, data } => reach(*off, data.len())?,
            Change::Zero { off, len } => reach(*off, *len)?,
            Change::Truncate { size } => reach(*size, 0)?,
            Change::CloneOf { from } | Change::CloneButRows { from } => self.need(coll, from)?,
            Change::CloneParts { from, blocks } => {
                for (lo, hi) in blocks {
                    let len = u64::from(hi.saturating_sub(*lo)) * BLOCK;
                    reach(u64::from(*lo) * BLOCK, len)?;
                }
                self.need(coll, from)?;
            }
            Change::CloneRange { from, off, len, to_off } => {
                reach(*off, *len)?;
                reach(*to_off, *len)?;
                self.need(coll, from)?;
            }
            Change::SetAttrs(attrs) => rows(attrs)?,
            Change::OmapSet(r) => rows(r)?,
            Change::OmapHeader(header) => value(header)?,
            Change::Expect { attr, value } => {
                self.need(coll, key)?;
                let place = self.place(coll, key)?;
                if self.view.attr(place, key, attr)?.as_ref() != Some(value) {
                    let (key, attr) = (key.clone(), attr.clone());
                    return Err(StoreError::Unexpected { coll, key, attr });
                }
                return Ok(());
            }
            Change::Remove => {
                self.need(coll, key)?;
                self.note(coll, key, false);
                return Ok(());
            }
            Change::RmAttr(_)
            | Change::ClearAttrs
            | Change::OmapRm(_)
            | Change::OmapRmRange { .. }
            | Change::OmapClear => return self.need(coll, key),
        }
        self.create(coll, key)
    }

    fn collection(&self, coll: Coll) -> Option<Option<Window>> {
        let own = self.colls.iter().rev().find(|(c, _)| *c == coll);
        own.map_or_else(|| self.view.collection(coll), |(_, c)| c.clone())
    }

    fn has_coll(&self, coll: Coll) -> bool {
        self.collection(coll).is_some()
    }

    fn window(&self, coll: Coll) -> Result<Window, StoreError> {
        self.coll(coll)?;
        self.collection(coll).flatten().ok_or(StoreError::BadWindow(coll))
    }

    /// Whether a collection, as the operations so far leave it, has keys of this window.
    fn overlaps(&self, window: &Window) -> bool {
        // What the transaction did to others is looked at conservatively: a range that it freed is
        // not free yet.
        self.view.overlaps(window)
            || self
                .colls
                .iter()
                .filter_map(|(_, c)| c.as_ref()?.as_ref())
                .any(|w| w.overlaps(window))
    }

    fn coll(&self, coll: Coll) -> Result<(), StoreError> {
        if self.has_coll(coll) { Ok(()) } else { Err(StoreError::NoCollection(coll)) }
    }

    /// Where an object stands.
    fn place(&self, coll: Coll, key: &Key) -> Result<Coll, StoreError> {
        match self.collection(coll) {
            None => Err(StoreError::NoCollection(coll)),
            Some(Some(w)) if *key >= w.floor => {
                if w.covers(key) {
                    Ok(w.space)
                } else {
                    Err(StoreError::NotInWindow { coll, key: key.clone() })
                }
            }
            Some(_) => Ok(coll),
        }
    }

    fn has_object(&self, coll: Coll, key: &Key) -> Result<bool, StoreError> {
        let place = self.place(coll, key)?;
        if let Some(there) = self.noted(place, key) {
            return Ok(there);
        }
        // A collection made by this very transaction has nothing of its own but what the
        // transaction puts there.
        if place != coll || self.view.collection(coll).is_some() {
            self.view.has_object(place, key)
        } else {
            Ok(false)
        }
    }

    fn noted(&self, place: Coll, key: &Key) -> Option<bool> {
        match &self.index {
            Some(index) => index.get(&(place, key.clone())).copied(),
            None => {
                self.objects.iter().rev().find(|(c, k, _)| *c == place && k == key).map(|o| o.2)
            }
        }
    }

    /// Notes whether an object is there; its collection was looked at before.
    fn note(&mut self, coll: Coll, key: &Key, there: bool) {
        let place = self.place(coll, key).unwrap_or(coll);
        match &mut self.index {
            Some(index) => {
                index.insert((place, key.clone()), there);
            }
            None => self.objects.push((place, key.clone(), there)),
        }
    }

    fn need(&mut self, coll: Coll, key: &Key) -> Result<(), StoreError> {
        if self.has_object(coll, key)? {
            Ok(())
        } else {
            Err(StoreError::NoObject { coll, key: key.clone() })
        }
    }

    fn create(&mut self, coll: Coll, key: &Key) -> Result<(), StoreError> {
        let place = self.place(coll, key)?;
        if self.noted(place, key) != Some(true) {
            name(key)?;
            self.note(coll, key, true);
        }
        Ok(())
    }

    fn has_any(&self, coll: Coll) -> Result<bool, StoreError> {
        match self.collection(coll).flatten() {
            None => self.any_in(coll, &Key::new(), None),
            Some(w) => Ok(self.any_in(coll, &Key::new(), Some(&w.floor))?
                || self.any_in(w.space, &w.start, w.end.as_ref())?),
        }
    }

    /// Whether there is an object behind a number in a range of keys.
    fn any_in(&self, place: Coll, start: &Key, end: Option<&Key>) -> Result<bool, StoreError> {
        let inside = |c: Coll, k: &Key| c == place && k >= start && end.is_none_or(|end| k < end);
        let made_here = match &self.index {
            Some(index) => index.iter().any(|((c, k), there)| inside(*c, k) && *there),
            None => self
                .objects
                .iter()
                .any(|(c, k, _)| inside(*c, k) && self.noted(place, k) == Some(true)),
        };
        if made_here {
            return Ok(true);
        }
        let mut any = false;
        self.view.any_object(place, start, end, &mut |key| {
            any = self.noted(place, key) != Some(false);
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
