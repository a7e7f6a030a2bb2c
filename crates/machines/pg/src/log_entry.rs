//! One change of one object.

use std::sync::Arc;

use bytes::Bytes;
use denc::{BufMut, BytesMut, Decode, Encode, Features, Reader};
use denc_derive::Denc;
use ec::ShardSet;
use types::{Eversion, ObjectId, ReqId, SnapId, Utime};

/// What a log entry did to its object (Ceph: `pg_log_entry_t::op`, the same numbers).
#[derive(Denc, Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[denc(repr = "u8")]
pub enum LogOp {
    /// The object exists, changed or created.
    Modify = 1,
    /// The object is a new clone.
    Clone = 2,
    /// The object does not exist any more.
    Delete = 3,
    /// An operator gave up the newest content: an older version counts again.
    LostRevert = 5,
    /// An operator gave up the object.
    LostDelete = 6,
    /// As `Modify`, of a clone's snapshots (Ceph calls it promote).
    Promote = 8,
    /// Nothing changed: the entry only remembers the error that a request got.
    Error = 10,
}

impl LogOp {
    /// Whether the object exists after the entry.
    pub fn is_update(self) -> bool {
        matches!(self, Self::Modify | Self::Clone | Self::Promote | Self::LostRevert)
    }

    /// Whether the object is gone after the entry.
    pub fn is_delete(self) -> bool {
        matches!(self, Self::Delete | Self::LostDelete)
    }
}

/// One change of one object (Ceph: `pg_log_entry_t`; the encoding is our own).
#[derive(Denc, Clone, PartialEq, Eq, Debug)]
#[denc(version = 4, compat = 4)]
pub struct LogEntry {
    /// The kind of change.
    pub op: LogOp,
    /// The object.
    pub oid: ObjectId,
    /// The version that the change gave the object. `version.version` grows from entry to entry.
    pub version: Eversion,
    /// The object's version before, zero if it did not exist. Of a clone: that of the head that it
    /// was made of (as in Ceph).
    pub prior_version: Eversion,
    /// The object's user-visible version after.
    pub user_version: u64,
    /// The request; default if it will not be sent again.
    pub reqid: ReqId,
    /// Modification time.
    pub mtime: Utime,
    /// The result that the request got.
    pub return_code: i32,
    /// The snapshots of a clone.
    pub snaps: Vec<SnapId>,
    /// Result and output of each op, if the client asked for them.
    pub op_returns: Vec<(i32, Bytes)>,
    /// The older version with the content that counts again ([`LogOp::LostRevert`]).
    pub reverting_to: Option<Eversion>,
    /// The shards that the change wrote, whether or not they were there; empty where copies are
    /// whole ([`crate::shards`]).
    pub written: ShardSet,
}

/// An entry with its bytes, encoded once for the own disk and for all replicas.
#[derive(Debug)]
pub struct Logged {
    /// The entry.
    pub entry: LogEntry,
    /// Its encoding.
    pub bytes: Bytes,
}

/// A shared log entry.
pub type LoggedRef = Arc<Logged>;

impl LogEntry {
    /// The version of the object itself before the entry, zero if it did not exist.
    pub fn before(&self) -> Eversion {
        if self.op == LogOp::Clone { Eversion::default() } else { self.prior_version }
    }
}

impl Logged {
    /// Encodes an entry. The log outlives messages by far: the names in the kept entry are slices
    /// of its own bytes, where the caller's may be slices of a message with megabytes of data.
    pub fn new(entry: LogEntry) -> LoggedRef {
        let mut out = BytesMut::with_capacity(192);
        entry.encode(&mut out, Features::ALL);
        Arc::new(Self::of(out.freeze()).expect("an entry reads back what it wrote"))
    }

    /// Decodes an entry and keeps a copy of its bytes, so that what they were part of can go.
    pub fn from_bytes(bytes: &[u8]) -> denc::Result<LoggedRef> {
        Ok(Arc::new(Self::of(Bytes::copy_from_slice(bytes))?))
    }

    fn of(bytes: Bytes) -> denc::Result<Self> {
        Ok(Self { entry: LogEntry::from_bytes(&bytes)?, bytes })
    }
}

impl PartialEq for Logged {
    fn eq(&self, other: &Self) -> bool {
        self.entry == other.entry
    }
}

impl Encode for Logged {
    fn encode(&self, out: &mut BytesMut, features: Features) {
        let _ = features;
        out.put_u32_le(u32::try_from(self.bytes.len()).expect("a log entry is small"));
        out.put_slice(&self.bytes);
    }
}

impl Decode for Logged {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        let bytes: Bytes = r.get()?;
        Self::of(Bytes::copy_from_slice(&bytes))
    }
}
