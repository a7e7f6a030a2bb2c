//! What a transaction replaces, set aside until it is known that nothing takes it back.
//!
//! Data that is set aside is shared, attributes are copied, rows that get other values are moved. A
//! change, with what undoes it, is one transaction; so is undoing it.

use crate::codec::{Decoded, Put, Take, corrupt};
use crate::error::StoreError;
use crate::txn::{Change, Transaction};
use crate::types::{Coll, Key};
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
        t.clone_but_rows(coll, key, aside);
        for name in &names {
            t.omap_move(coll, key, one(name), coll, aside);
        }
        Undo::ButRows(names)
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
                if !names.is_empty() {
                    t.omap_rm(coll, key, names.clone());
                    for name in names {
                        t.omap_move(coll, aside, one(name), coll, key);
                    }
                }
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
                out.var(names.len() as u64);
                names.iter().for_each(|name| out.blob(name));
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
            2 => {
                let n = r.count(1)?;
                Undo::ButRows((0..n).map(|_| r.blob()).collect::<Decoded<_>>()?)
            }
            _ => return Err(corrupt("what undoes a change: its kind")),
        };
        r.end()?;
        Ok(undo)
    }
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
        for undo in [Undo::Absent, Undo::Whole, Undo::ButRows(names), Undo::ButRows(vec![])] {
            let bytes = undo.encode();
            assert_eq!(Undo::decode(&bytes).unwrap(), undo);
            (0..bytes.len()).for_each(|n| assert!(Undo::decode(&bytes.slice(..n)).is_err()));
            assert!(Undo::decode(&[&bytes[..], &[0]].concat().into()).is_err());
        }
        assert!(Undo::decode(&Bytes::from_static(&[3])).is_err());
    }
}
