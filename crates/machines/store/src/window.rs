//! Collections that share a space of keys.
//!
//! An object of an ordinary collection stands in the metadata tree behind the collection's number.
//! With a [`Window`] its keys from a floor on stand behind the number of a *space* instead, which
//! several collections share, each with a range of its own. Cutting a range in two, or joining two
//! neighbours, then moves no row at all: it changes the rows of two collections, however many
//! objects they have.

use crate::codec::{Decoded, Put, Take, corrupt};
use crate::types::{Coll, Key};
use bytes::Bytes;

/// Which keys of a shared space a collection has. Keys below `floor` are the collection's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Number of the space. No other collection may have it.
    pub space: Coll,
    /// Keys from here on are in the space; the same for all collections of a space.
    pub floor: Key,
    /// First key of the collection in the space, not below `floor`.
    pub start: Key,
    /// Behind the last key, `None` if there is no end.
    pub end: Option<Key>,
}

impl Window {
    /// Whether the collection has this key, if the key is not below the floor.
    pub fn covers(&self, key: &[u8]) -> bool {
        key >= &self.start[..] && self.end.as_ref().is_none_or(|end| key < &end[..])
    }

    /// Whether any key is in both ranges.
    pub(crate) fn overlaps(&self, other: &Window) -> bool {
        let before = |a: &Window, b: &Window| a.end.as_ref().is_some_and(|end| *end <= b.start);
        self.space == other.space && !before(self, other) && !before(other, self)
    }

    /// Whether the range makes sense.
    pub(crate) fn is_sound(&self) -> bool {
        self.floor <= self.start && self.end.as_ref().is_none_or(|end| self.start < *end)
    }

    /// The part from `at` on, which is taken off; `None` if nothing, or all, would be.
    pub(crate) fn split_off(&mut self, at: &Key) -> Option<Window> {
        if !self.covers(at) || *at == self.start {
            return None;
        }
        let rest = Window { start: at.clone(), ..self.clone() };
        self.end = Some(at.clone());
        Some(rest)
    }

    /// Takes over a neighbour's range, which may be of another space; false if it is none.
    pub(crate) fn join(&mut self, other: &Window) -> bool {
        if self.floor != other.floor {
            false
        } else if self.end.as_ref() == Some(&other.start) {
            self.end = other.end.clone();
            true
        } else if other.end.as_ref() == Some(&self.start) {
            self.start = other.start.clone();
            true
        } else {
            false
        }
    }

    /// The row of a collection; an ordinary one's is empty.
    pub(crate) fn encode_row(window: Option<&Window>) -> Bytes {
        let mut out = Vec::new();
        if let Some(w) = window {
            out.u8(1);
            w.encode(&mut out);
        }
        out.into()
    }

    pub(crate) fn decode_row(row: &Bytes) -> Decoded<Option<Window>> {
        if row.is_empty() {
            return Ok(None);
        }
        let mut r = Take::new(row);
        match r.u8()? {
            1 => Self::decode(&mut r).map(Some),
            _ => Err(corrupt("collection row of an unknown version")),
        }
    }

    pub(crate) fn encode(&self, out: &mut impl Put) {
        out.var(self.space.0);
        out.blob(&self.floor);
        out.blob(&self.start);
        out.u8(self.end.is_some().into());
        if let Some(end) = &self.end {
            out.blob(end);
        }
    }

    pub(crate) fn decode(r: &mut Take<'_>) -> Decoded<Window> {
        // Copies: none of them keeps a page or the log's memory.
        let copy = |b: Bytes| Bytes::copy_from_slice(&b);
        let space = Coll(r.var()?);
        let (floor, start) = (copy(r.blob()?), copy(r.blob()?));
        let end = if r.u8()? != 0 { Some(copy(r.blob()?)) } else { None };
        let w = Window { space, floor, start, end };
        if w.is_sound() { Ok(w) } else { Err(corrupt("a collection's range")) }
    }
}

/// Which rows of an omap are meant: those in `[start, end)` with a key that, from byte `skip` on,
/// lies in `[lo, hi)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowRange {
    /// First key.
    pub start: Bytes,
    /// Behind the last key.
    pub end: Bytes,
    /// Bytes of the key that are not looked at.
    pub skip: usize,
    /// First rest.
    pub lo: Bytes,
    /// Behind the last rest, `None` if there is no end.
    pub hi: Option<Bytes>,
}

impl RowRange {
    /// Whether a row with this key is meant.
    pub fn has(&self, key: &[u8]) -> bool {
        let rest = key.get(self.skip..).unwrap_or_default();
        key >= &self.start[..]
            && key < &self.end[..]
            && rest >= &self.lo[..]
            && self.hi.as_ref().is_none_or(|hi| rest < &hi[..])
    }

    pub(crate) fn encode(&self, out: &mut impl Put) {
        out.blob(&self.start);
        out.blob(&self.end);
        out.var(self.skip as u64);
        out.blob(&self.lo);
        out.u8(self.hi.is_some().into());
        if let Some(hi) = &self.hi {
            out.blob(hi);
        }
    }

    pub(crate) fn decode(r: &mut Take<'_>) -> Decoded<RowRange> {
        let copy = |b: Bytes| Bytes::copy_from_slice(&b);
        let (start, end) = (copy(r.blob()?), copy(r.blob()?));
        let skip = usize::try_from(r.var()?).map_err(|_| corrupt("log record"))?;
        let lo = copy(r.blob()?);
        let hi = if r.u8()? != 0 { Some(copy(r.blob()?)) } else { None };
        Ok(RowRange { start, end, skip, lo, hi })
    }

    pub(crate) fn bytes(&self) -> u64 {
        (self.start.len() + self.end.len() + self.lo.len() + self.hi.as_ref().map_or(0, Bytes::len))
            as u64
            + 40
    }
}
