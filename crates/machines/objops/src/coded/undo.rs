//! A shard's change, with what undoes it.

use super::ShardChange;
use crate::txn::SnapsChange;
use bytes::{BufMut, Bytes, BytesMut};
use denc::{Decode, DecodeError, Encode, Features, Reader};
use store::{Change, Coll, Key, Transaction, Undo};
use types::{Eversion, ObjectId, SnapId};

/// What is set aside begins so: keys of no object, in front of all objects of a pool.
pub const ASIDE: &[u8] = b"\0undo";

/// Where what an entry replaced of an object is set aside.
pub fn aside_of(version: Eversion, oid: &ObjectId) -> Key {
    let mut key = BytesMut::with_capacity(64);
    key.put_slice(ASIDE);
    key.put_u32(version.epoch.0);
    key.put_u64(version.version);
    oid.put_key(&mut key);
    key.freeze()
}

/// How one entry of a shard's log is undone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptChange {
    /// Objects, in the order of their changes.
    pub objects: Vec<(ObjectId, Undo)>,
    /// Snapshots of clones.
    pub snaps: Vec<(ObjectId, SnapsChange)>,
}

const VERSION: u8 = 1;
const WHAT: &str = "KeptChange";

impl KeptChange {
    /// Puts back what the entry replaced. Later entries of the same objects are undone already.
    pub fn undo(
        &self,
        version: Eversion,
        coll: Coll,
        t: &mut Transaction,
        mut snaps: impl FnMut(&mut Transaction, &ObjectId, &[SnapId], &[SnapId]),
    ) {
        for (oid, undo) in self.objects.iter().rev() {
            undo.undo(t, coll, &oid.to_key(), &aside_of(version, oid));
        }
        for (oid, change) in self.snaps.iter().rev() {
            snaps(t, oid, &change.new, &change.old);
        }
    }

    /// Lets go what was set aside.
    pub fn forget(&self, version: Eversion, coll: Coll, t: &mut Transaction) {
        for (oid, undo) in &self.objects {
            undo.forget(t, coll, &aside_of(version, oid));
        }
    }

    /// For a row.
    pub fn encode(&self) -> Bytes {
        let f = Features::ALL;
        let mut out = BytesMut::new();
        out.put_u8(VERSION);
        out.put_u32_le(self.objects.len() as u32);
        for (oid, undo) in &self.objects {
            oid.encode(&mut out, f);
            undo.encode().encode(&mut out, f);
        }
        out.put_u32_le(self.snaps.len() as u32);
        for (oid, change) in &self.snaps {
            oid.encode(&mut out, f);
            change.old.encode(&mut out, f);
            change.new.encode(&mut out, f);
        }
        out.freeze()
    }

    /// Reads what [`KeptChange::encode`] wrote.
    pub fn decode(bytes: &Bytes) -> denc::Result<KeptChange> {
        let mut r = Reader::new(bytes.clone());
        let version: u8 = r.get()?;
        if version != VERSION {
            return Err(DecodeError::Invalid { what: WHAT, found: version.into() });
        }
        let mut kept = KeptChange::default();
        for _ in 0..r.count(WHAT, 8)? {
            let (oid, undo) = (ObjectId::decode(&mut r)?, r.get::<Bytes>()?);
            let undo = Undo::decode(&undo)
                .map_err(|_| DecodeError::Invalid { what: WHAT, found: undo.len() as u64 })?;
            kept.objects.push((oid, undo));
        }
        for _ in 0..r.count(WHAT, 8)? {
            let oid = ObjectId::decode(&mut r)?;
            kept.snaps.push((oid, SnapsChange { old: r.get()?, new: r.get()? }));
        }
        r.expect_end(WHAT)?;
        Ok(kept)
    }
}

impl ShardChange {
    /// As operations of the store, with what undoes the entries `keep`. A change of an object
    /// without an entry of its own belongs to the last one. Gives what is to be kept for each
    /// entry.
    pub fn into_store(
        self,
        coll: Coll,
        t: &mut Transaction,
        keep: &[(Eversion, ObjectId)],
        snaps: impl FnMut(&mut Transaction, &ObjectId, &[SnapId], &[SnapId]),
    ) -> Vec<(Eversion, KeptChange)> {
        let mut kept: Vec<(Eversion, KeptChange)> =
            keep.iter().map(|(version, _)| (*version, KeptChange::default())).collect();
        if !kept.is_empty() {
            let entry_of =
                |oid: &ObjectId| keep.iter().position(|(_, o)| o == oid).unwrap_or(keep.len() - 1);
            let keys: Vec<(Key, &ObjectId, &Change)> =
                self.txn.iter().map(|(oid, change)| (oid.to_key(), oid, change)).collect();
            let named = |key: &Key| keys.iter().find(|(k, ..)| k == key).map(|(_, oid, _)| *oid);
            let steps: Vec<(&Key, &Change)> = keys.iter().map(|(k, _, c)| (k, *c)).collect();
            let exists = |key: &Key| {
                let before = named(key).and_then(|o| self.before.iter().find(|(b, _)| b == o));
                before.is_some_and(|(_, version)| *version != Eversion::ZERO)
            };
            let aside = |key: &Key| match named(key) {
                Some(oid) => aside_of(keep[entry_of(oid)].0, oid),
                None => key.clone(),
            };
            for (key, undo) in Undo::keep(t, coll, &steps, exists, aside).undo {
                if let Some(oid) = named(&key) {
                    kept[entry_of(oid)].1.objects.push((oid.clone(), undo));
                }
            }
            for (oid, change) in self.txn.snaps() {
                kept[entry_of(oid)].1.snaps.push((oid.clone(), change.clone()));
            }
        }
        self.txn.into_store(coll, t, snaps);
        kept
    }
}
