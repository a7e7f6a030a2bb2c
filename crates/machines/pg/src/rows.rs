//! What a PG keeps on disk: rows in the omap of its own object, written in the same transactions as
//! the objects.
//!
//! | key | value |
//! | --- | --- |
//! | `info` | [`PgInfo`] as of the last peering or other rare change |
//! | `fast` | [`FastInfo`]: what every write changes; newer than `info` |
//! | `past` | [`PastIntervals`] |
//! | `epoch` | the map epoch up to which maps were processed |
//! | `l` + epoch + version (big endian) | a log entry |
//! | `d` + epoch + version (big endian) + request | a [`DupEntry`] |
//! | `m` + object key | a missing object and its versions |
//! | `u` + epoch + version (big endian) | how a change is taken back; the value is the host's |
//!
//! Rows of the [`snap_mapper`](crate::snap_mapper) live in the same omap, in uppercase prefixes: a
//! host loads the rows from [`FIRST_ROW`] on.

use std::collections::BTreeSet;

use bytes::{BufMut, Bytes, BytesMut};
use denc::{Decode, DecodeError, Encode, Features};
use denc_derive::Denc;
use smallvec::SmallVec;
use types::{Epoch, Eversion, ObjectId, SpgId};

use crate::info::PgInfo;
use crate::log::{DupEntry, PgLog};
use crate::log_entry::Logged;
use crate::missing::{MissingItem, MissingSet};
use crate::past_intervals::PastIntervals;
use crate::stats::StatSum;

/// Loading starts at this key; smaller keys belong to the snap mapper.
pub const FIRST_ROW: &[u8] = b"a";

const INFO: &[u8] = b"info";
const FAST: &[u8] = b"fast";
const PAST: &[u8] = b"past";
const EPOCH: &[u8] = b"epoch";
const LOG: u8 = b'l';
const DUP: u8 = b'd';
const MISSING: u8 = b'm';
const UNDO: u8 = b'u';

/// Changes of rows.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RowBatch {
    /// Rows to set.
    pub set: SmallVec<[(Bytes, Bytes); 2]>,
    /// Keys to remove. A key is never in both lists.
    pub remove: Vec<Bytes>,
}

/// What every write changes of a [`PgInfo`] (Ceph: `pg_fast_info_t`).
#[derive(Denc, Clone, PartialEq, Eq, Debug)]
pub struct FastInfo {
    /// As in [`PgInfo`].
    pub last_update: Eversion,
    /// As in [`PgInfo`].
    pub last_complete: Eversion,
    /// As in [`PgInfo`].
    pub log_tail: Eversion,
    /// As in [`PgInfo`].
    pub last_user_version: u64,
    /// As in [`PgInfo`].
    pub stats: StatSum,
}

/// Rows that cannot be the state of a PG: the medium lied, or a bug wrote them.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LoadError {
    /// There is no `info` row.
    #[error("the info row is absent")]
    NoInfo,
    /// A row does not decode.
    #[error("row {key:?} is damaged")]
    Row {
        /// Its key.
        key: Bytes,
        /// Why.
        #[source]
        source: DecodeError,
    },
    /// The rows are those of another copy.
    #[error("the rows are those of {0}")]
    OtherCopy(SpgId),
    /// A row has an unknown key.
    #[error("row {0:?} is unknown")]
    Unknown(Bytes),
    /// Log rows have gaps that no split made, or contradict the info.
    #[error("the log rows do not run from {tail:?} to {head:?}")]
    Log {
        /// `log_tail` of the info.
        tail: Eversion,
        /// `last_update` of the info.
        head: Eversion,
    },
}

/// A PG as its rows have it.
#[derive(Debug)]
pub struct Loaded {
    /// `info` with `fast` applied.
    pub info: PgInfo,
    /// Log and dups.
    pub log: PgLog,
    /// Missing objects.
    pub missing: MissingSet,
    /// Past intervals.
    pub past: PastIntervals,
    /// Maps up to this epoch were processed.
    pub epoch: Epoch,
    /// Changes that can be taken back.
    pub undo: BTreeSet<Eversion>,
}

/// Reads the rows of a copy, in any order.
pub fn load(
    id: SpgId,
    rows: impl IntoIterator<Item = (Bytes, Bytes)>,
) -> Result<Loaded, LoadError> {
    let (mut info, mut fast) = (None::<PgInfo>, None::<FastInfo>);
    let (mut past, mut epoch, mut missing) =
        (PastIntervals::default(), Epoch(0), MissingSet::default());
    let (mut entries, mut dups) = (Vec::new(), Vec::<DupEntry>::new());
    let mut undo = BTreeSet::new();
    for (key, value) in rows {
        let damaged = |source| LoadError::Row { key: key.clone(), source };
        match &key[..] {
            INFO => info = Some(PgInfo::from_bytes(&value).map_err(damaged)?),
            FAST => fast = Some(FastInfo::from_bytes(&value).map_err(damaged)?),
            PAST => past = PastIntervals::from_bytes(&value).map_err(damaged)?,
            EPOCH => epoch = Epoch::from_bytes(&value).map_err(damaged)?,
            [LOG, ..] => entries.push(Logged::from_bytes(&value).map_err(damaged)?),
            [DUP, ..] => dups.push(DupEntry::from_bytes(&value).map_err(damaged)?),
            [MISSING, ..] => {
                let (oid, item) = <(ObjectId, MissingItem)>::from_bytes(&value).map_err(damaged)?;
                missing.set(oid, item);
            }
            [UNDO, version @ ..] => {
                let version = version_of(version).ok_or_else(|| LoadError::Unknown(key.clone()))?;
                undo.insert(version);
            }
            _ => return Err(LoadError::Unknown(key)),
        }
    }
    let mut info = info.ok_or(LoadError::NoInfo)?;
    if info.spgid() != id {
        return Err(LoadError::OtherCopy(info.spgid()));
    }
    if let Some(fast) = fast {
        info.last_update = fast.last_update;
        info.last_complete = fast.last_complete;
        info.log_tail = fast.log_tail;
        info.last_user_version = fast.last_user_version;
        info.stats = fast.stats;
    }
    entries.sort_by_key(|e| e.entry.version);
    dups.sort_by_key(DupEntry::order);
    let bad_log = LoadError::Log { tail: info.log_tail, head: info.last_update };
    let log = PgLog::new(info.log_tail, info.last_update, entries, dups).ok_or(bad_log.clone())?;
    if !log.is_whole(info.history.last_epoch_split) {
        return Err(bad_log);
    }
    Ok(Loaded { info, log, missing, past, epoch, undo })
}

fn versioned(prefix: u8, version: Eversion) -> Bytes {
    let mut key = BytesMut::with_capacity(13);
    key.put_u8(prefix);
    key.put_u32(version.epoch.0);
    key.put_u64(version.version);
    key.freeze()
}

fn version_of(bytes: &[u8]) -> Option<Eversion> {
    let (epoch, version) = bytes.split_first_chunk()?;
    let version = u64::from_be_bytes(version.try_into().ok()?);
    Some(Eversion { epoch: Epoch(u32::from_be_bytes(*epoch)), version })
}

/// Key of what takes a change back.
pub fn undo_key(version: Eversion) -> Bytes {
    versioned(UNDO, version)
}

/// Key of a log entry.
pub fn log_key(version: Eversion) -> Bytes {
    versioned(LOG, version)
}

/// Key of a dup.
pub fn dup_key(dup: &DupEntry) -> Bytes {
    let mut key = BytesMut::from(&versioned(DUP, dup.version)[..]);
    dup.reqid.encode(&mut key, Features::ALL);
    key.freeze()
}

/// Row of a log entry.
pub fn log_row(entry: &Logged) -> (Bytes, Bytes) {
    (log_key(entry.entry.version), entry.bytes.clone())
}

/// Row of a dup.
pub fn dup_row(dup: &DupEntry) -> (Bytes, Bytes) {
    (dup_key(dup), dup.to_bytes(Features::ALL))
}

/// Key of a missing object.
pub fn missing_key(oid: &ObjectId) -> Bytes {
    let object = oid.to_key();
    let mut key = BytesMut::with_capacity(1 + object.len());
    key.put_u8(MISSING);
    key.put_slice(&object);
    key.freeze()
}

/// Row of a missing object.
pub fn missing_row(oid: &ObjectId, item: &MissingItem) -> (Bytes, Bytes) {
    let mut value = BytesMut::with_capacity(128);
    oid.encode(&mut value, Features::ALL);
    item.encode(&mut value, Features::ALL);
    (missing_key(oid), value.freeze())
}

/// The `fast` row.
pub fn fast_row(info: &PgInfo) -> (Bytes, Bytes) {
    let mut value = BytesMut::with_capacity(160);
    info.last_update.encode(&mut value, Features::ALL);
    info.last_complete.encode(&mut value, Features::ALL);
    info.log_tail.encode(&mut value, Features::ALL);
    info.last_user_version.encode(&mut value, Features::ALL);
    info.stats.encode(&mut value, Features::ALL);
    (Bytes::from_static(FAST), value.freeze())
}

/// The `info` and `fast` rows.
pub fn info_rows(info: &PgInfo) -> [(Bytes, Bytes); 2] {
    [(Bytes::from_static(INFO), info.to_bytes(Features::ALL)), fast_row(info)]
}

/// The `past` row.
pub fn past_row(past: &PastIntervals) -> (Bytes, Bytes) {
    (Bytes::from_static(PAST), past.to_bytes(Features::ALL))
}

/// The `epoch` row.
pub fn epoch_row(epoch: Epoch) -> (Bytes, Bytes) {
    (Bytes::from_static(EPOCH), epoch.to_bytes(Features::ALL))
}
