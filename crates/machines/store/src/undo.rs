//! What a transaction replaces, set aside until it is known that nothing takes it back.
//!
//! Data that is set aside is shared, attributes are copied, rows that get other values are moved. A
//! change, with what undoes it, is one transaction; so is undoing it. A write of a few blocks of a
//! large object sets these blocks aside, not the object: it costs what it writes.

use crate::codec::{Decoded, Put, Take, corrupt};
use crate::error::StoreError;
use crate::txn::{Change, Transaction};
use crate::types::{BLOCK, Coll, Key};
use crate::window::RowRange;
use bytes::Bytes;

/// How an object gets back what changes of it replaced. The object that has what was set aside
/// ("aside") is of the same collection, and is the caller's to name: one for each object and
/// transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Undo {
    /// There was no object, and there is none aside.
    Absent,
    /// All of it is aside.
    Whole,
    /// All but its rows is aside, and the rows of these names, as far as there were any.
    ButRows(Vec<Bytes>),
    /// These ranges of its blocks are aside, `[first, end)`, with attributes, size and header, and
    /// the rows of these names, as far as there were any. Nothing else changed.
    Parts {
        /// Of blocks.
        blocks: Vec<(u32, u32)>,
        /// Of rows.
        rows: Vec<Bytes>,
    },
}

/// Changes of objects that can be undone.
#[derive(Debug)]
pub struct Kept {
    /// For each object that changes, in the order of their first changes.
    pub undo: Vec<(Key, Undo)>,
}

impl Undo {
    /// Sets aside what a list of changes of objects will replace. The changes come behind this in
    /// the same transaction. `exists` says whether there is an object of a name; `aside` gives the
    /// key of what is set aside of it.
    pub fn keep(
        t: &mut Transaction,
        coll: Coll,
        changes: &[(&Key, &Change)],
        exists: impl Fn(&Key) -> bool,
        aside: impl Fn(&Key) -> Key,
    ) -> Kept {
        let mut undo: Vec<(Key, Undo)> = Vec::new();
        for (key, _) in changes {
            if undo.iter().any(|(k, _)| k == *key) {
                continue;
            }
            let how = if exists(key) {
                Self::keep_one(t, coll, key, changes, &aside(key))
            } else {
                Undo::Absent
            };
            undo.push(((*key).clone(), how));
        }
        Kept { undo }
    }

    fn keep_one(
        t: &mut Transaction,
        coll: Coll,
        key: &Key,
        changes: &[(&Key, &Change)],
        aside: &Key,
    ) -> Undo {
        let is_source = changes.iter().any(|(_, c)| match c {
            Change::CloneOf { from }
            | Change::CloneButRows { from }
            | Change::CloneRange { from, .. } => from == key,
            _ => false,
        });
        let mut own = changes.iter().filter(|(k, _)| *k == key).map(|(_, c)| *c);
        if !is_source && matches!(own.clone().next(), Some(Change::Remove | Change::CloneOf { .. }))
        {
            // Nothing of it is needed.
            t.move_object(coll, key, coll, aside).touch(coll, key);
            return Undo::Whole;
        }
        let mut names: Vec<Bytes> = Vec::new();
        let named = own.all(|change| {
            match change {
                Change::OmapSet(rows) => names.extend(rows.iter().map(|(name, _)| name.clone())),
                Change::OmapRm(rows) => names.extend(rows.iter().cloned()),
                Change::OmapRmRange { .. }
                | Change::OmapClear
                | Change::Remove
                | Change::CloneOf { .. } => return false,
                _ => (),
            }
            true
        });
        // A copy that is made of the object needs its rows.
        if !named || (is_source && !names.is_empty()) {
            t.clone_object(coll, key, aside);
            return Undo::Whole;
        }
        names.sort_unstable();
        names.dedup();
        let blocks = blocks_of(changes.iter().filter(|(k, _)| *k == key).map(|(_, c)| *c));
        match &blocks {
            Some(blocks) => t.clone_parts(coll, key, aside, blocks.clone()),
            None => t.clone_but_rows(coll, key, aside),
        };
        for name in &names {
            t.omap_move(coll, key, one(name), coll, aside);
        }
        match blocks {
            Some(blocks) => Undo::Parts { blocks, rows: names },
            None => Undo::ButRows(names),
        }
    }

    /// Gives an object back what was set aside; nothing is aside then. Later changes of it must
    /// have been undone before.
    pub fn undo(&self, t: &mut Transaction, coll: Coll, key: &Key, aside: &Key) {
        match self {
            // Whether it exists is not known; this makes it gone either way.
            Undo::Absent => {
                t.touch(coll, key).remove(coll, key);
            }
            Undo::Whole => {
                t.touch(coll, key).remove(coll, key).move_object(coll, aside, coll, key);
            }
            Undo::ButRows(names) => {
                t.clone_but_rows(coll, aside, key);
                rows_back(t, coll, key, aside, names);
                t.remove(coll, aside);
            }
            Undo::Parts { blocks, rows } => {
                t.clone_parts(coll, aside, key, blocks.clone());
                rows_back(t, coll, key, aside, rows);
                t.remove(coll, aside);
            }
        }
    }

    /// Lets what was set aside go.
    pub fn forget(&self, t: &mut Transaction, coll: Coll, aside: &Key) {
        if *self != Undo::Absent {
            // It is gone already if the whole collection is being emptied.
            t.touch(coll, aside).remove(coll, aside);
        }
    }

    /// For keeping beside the objects.
    pub fn encode(&self) -> Bytes {
        let mut out = Vec::new();
        match self {
            Undo::Absent => out.u8(0),
            Undo::Whole => out.u8(1),
            Undo::ButRows(names) => {
                out.u8(2);
                put_names(&mut out, names);
            }
            Undo::Parts { blocks, rows } => {
                out.u8(3);
                out.var(blocks.len() as u64);
                for (lo, hi) in blocks {
                    out.var((*lo).into());
                    out.var((*hi).into());
                }
                put_names(&mut out, rows);
            }
        }
        out.into()
    }

    /// Reads what [`Undo::encode`] wrote.
    pub fn decode(bytes: &Bytes) -> Result<Undo, StoreError> {
        let mut r = Take::new(bytes);
        let undo = match r.u8()? {
            0 => Undo::Absent,
            1 => Undo::Whole,
            2 => Undo::ButRows(names(&mut r)?),
            3 => {
                let n = r.count(2)?;
                let range = |r: &mut Take<'_>| Ok((r.var32()?, r.var32()?));
                let blocks: Vec<_> = (0..n).map(|_| range(&mut r)).collect::<Decoded<_>>()?;
                if blocks.iter().any(|(lo, hi)| lo >= hi) {
                    return Err(corrupt("what undoes a change: a range of blocks"));
                }
                Undo::Parts { blocks, rows: names(&mut r)? }
            }
            _ => return Err(corrupt("what undoes a change: its kind")),
        };
        r.end()?;
        Ok(undo)
    }
}

/// The blocks that changes of an object replace, in order and joined, if they change nothing else
/// of its data. None if they do: what is cut off, say.
fn blocks_of<'a>(changes: impl Iterator<Item = &'a Change>) -> Option<Vec<(u32, u32)>> {
    let mut ranges = Vec::new();
    for change in changes {
        let (off, len) = match change {
            Change::Write { off, data, .. } | Change::Xor { off, data } => (*off, data.len()),
            Change::Zero { off, len } => (*off, *len),
            Change::Touch
            | Change::Expect { .. }
            | Change::SetAttrs(_)
            | Change::RmAttr(_)
            | Change::ClearAttrs
            | Change::OmapSet(_)
            | Change::OmapRm(_)
            | Change::OmapHeader(_)
            | Change::Hint(_) => continue,
            _ => return None,
        };
        if len > 0 {
            let first = u32::try_from(off / BLOCK).ok()?;
            let end = u32::try_from(off.checked_add(len)?.div_ceil(BLOCK)).ok()?;
            ranges.push((first, end));
        }
    }
    ranges.sort_unstable();
    let mut joined: Vec<(u32, u32)> = Vec::with_capacity(ranges.len());
    for (lo, hi) in ranges {
        match joined.last_mut() {
            Some(last) if lo <= last.1 => last.1 = last.1.max(hi),
            _ => joined.push((lo, hi)),
        }
    }
    Some(joined)
}

/// Gives an object back the rows that were moved aside.
fn rows_back(t: &mut Transaction, coll: Coll, key: &Key, aside: &Key, names: &[Bytes]) {
    if !names.is_empty() {
        t.omap_rm(coll, key, names.to_vec());
        for name in names {
            t.omap_move(coll, aside, one(name), coll, key);
        }
    }
}

fn put_names(out: &mut Vec<u8>, names: &[Bytes]) {
    out.var(names.len() as u64);
    names.iter().for_each(|name| out.blob(name));
}

fn names(r: &mut Take<'_>) -> Decoded<Vec<Bytes>> {
    let n = r.count(1)?;
    (0..n).map(|_| r.blob()).collect()
}

/// One row.
fn one(name: &Bytes) -> RowRange {
    let end = [&name[..], &[0]].concat().into();
    RowRange { start: name.clone(), end, skip: 0, lo: Bytes::new(), hi: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_undoes_reads_back() {
        let names = vec![Bytes::from_static(b"a"), Bytes::new(), Bytes::from_static(&[0, 255])];
        let parts = |rows| Undo::Parts { blocks: vec![(0, 1), (7, 300)], rows };
        let (some, none) = (parts(names.clone()), parts(vec![]));
        let of_rows = [Undo::ButRows(names), Undo::ButRows(vec![])];
        for undo in [Undo::Absent, Undo::Whole, some, none].into_iter().chain(of_rows) {
            let bytes = undo.encode();
            assert_eq!(Undo::decode(&bytes).unwrap(), undo);
            (0..bytes.len()).for_each(|n| assert!(Undo::decode(&bytes.slice(..n)).is_err()));
            assert!(Undo::decode(&[&bytes[..], &[0]].concat().into()).is_err());
        }
        assert!(Undo::decode(&Bytes::from_static(&[4])).is_err());
        // A range that ends where it begins.
        assert!(Undo::decode(&Bytes::from_static(&[3, 1, 5, 5, 0])).is_err());
    }
}
