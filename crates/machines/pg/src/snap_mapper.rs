//! Rows that find the clones of a snapshot (Ceph: `src/osd/SnapMapper.h`; the keys are our own).
//!
//! They live in the omap of the PG's own object, next to the rows of [`crate::rows`], in uppercase
//! prefixes so that loading a PG can start behind them. The host writes them in the same
//! transaction as the clone they describe:
//!
//! * `S` + snapshot (big endian) + object key → the encoded [`ObjectId`]: one row for each snapshot
//!   of a clone;
//! * `O` + object key → the encoded snapshots of that clone.
//!
//! A row of a clone that is gone, or no longer belongs to the snapshot, does no harm: the trimmer
//! looks at the clone, finds nothing to do and removes the row. A row must never be absent: the
//! clone would stay for ever. So clones lose their rows after, or together with, the object.

use bytes::{BufMut, Bytes, BytesMut};
use denc::{Decode, Encode, Features};
use types::{ObjectId, SnapId};

/// First byte of rows by snapshot.
pub const BY_SNAP: u8 = b'S';
/// First byte of rows by object.
pub const BY_OBJECT: u8 = b'O';

/// All rows of a snapshot have this prefix.
pub fn snap_prefix(snap: SnapId) -> Bytes {
    let mut key = BytesMut::with_capacity(9);
    key.put_u8(BY_SNAP);
    key.put_u64(snap.0);
    key.freeze()
}

/// The row for one clone of one snapshot: `(key, value)`.
pub fn snap_row(snap: SnapId, oid: &ObjectId) -> (Bytes, Bytes) {
    let object = oid.to_key();
    let mut key = BytesMut::with_capacity(9 + object.len());
    key.put_u8(BY_SNAP);
    key.put_u64(snap.0);
    key.put_slice(&object);
    (key.freeze(), oid.to_bytes(Features::ALL))
}

/// The object of a row by snapshot.
pub fn object_of_row(value: &Bytes) -> denc::Result<ObjectId> {
    ObjectId::from_bytes(value)
}

/// The key of a clone's row by object.
pub fn object_key(oid: &ObjectId) -> Bytes {
    let object = oid.to_key();
    let mut key = BytesMut::with_capacity(1 + object.len());
    key.put_u8(BY_OBJECT);
    key.put_slice(&object);
    key.freeze()
}

/// The value of a clone's row by object.
pub fn snaps_value(snaps: &[SnapId]) -> Bytes {
    snaps.to_bytes(Features::ALL)
}

/// The snapshots in a row by object.
pub fn snaps_of_row(value: &Bytes) -> denc::Result<Vec<SnapId>> {
    Vec::from_bytes(value)
}

/// What to write when a clone's snapshots change from `old` to `new` (empty: the clone is gone):
/// rows to set and keys to remove.
pub fn change(oid: &ObjectId, old: &[SnapId], new: &[SnapId]) -> (Vec<(Bytes, Bytes)>, Vec<Bytes>) {
    let mut set: Vec<_> =
        new.iter().filter(|s| !old.contains(s)).map(|&s| snap_row(s, oid)).collect();
    let mut remove: Vec<_> =
        old.iter().filter(|s| !new.contains(s)).map(|&s| snap_row(s, oid).0).collect();
    if new.is_empty() {
        remove.push(object_key(oid));
    } else {
        set.push((object_key(oid), snaps_value(new)));
    }
    (set, remove)
}
