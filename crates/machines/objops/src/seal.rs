//! From an executed request to log entries and one transaction (Ceph: `prepare_transaction` and
//! `finish_ctx`).

use crate::exec::Exec;
use crate::object::{ObjectState, SnapSet, encode_attr};
use crate::reader::{OI_ATTR, ObjectReader, SS_ATTR};
use crate::txn::Mutations;
use bytes::Bytes;
use pg::{LogOp, NewEntry, StatSum};
use smallvec::SmallVec;
use store::Change;
use types::{Eversion, ObjectId, ReqId, Utime};

/// What sealing needs to know beside the executed request.
#[derive(Debug)]
pub struct SealArgs {
    /// Version of the first log entry.
    pub first_version: Eversion,
    /// The PG's newest user version.
    pub last_user_version: u64,
    /// The request.
    pub reqid: ReqId,
    /// The client's modification time.
    pub mtime: Utime,
    /// The OSD's time.
    pub now: Utime,
    /// What to answer when the request is resent.
    pub return_code: i32,
    /// Per-operation answers, if the client asked for them.
    pub op_returns: Vec<(i32, Bytes)>,
}

/// A change that is ready to be proposed and applied.
#[derive(Debug)]
pub struct Sealed {
    /// Log entries.
    pub entries: SmallVec<[NewEntry; 1]>,
    /// What changes.
    pub txn: Mutations,
    /// How the PG's totals change.
    pub stats: StatSum,
    /// Version of the object's own entry, the last.
    pub version: Eversion,
    /// The user version to report.
    pub user_version: u64,
    /// The object after it.
    pub new: ObjectState,
    /// Its snap set after it.
    pub snapset: SnapSet,
}

impl<R: ObjectReader> Exec<'_, R> {
    /// Whether the request changes anything. It does not if it makes an object and removes it
    /// again.
    pub fn changes(&self) -> bool {
        (self.modify || !self.txn.is_empty()) && (self.old.exists || self.new.exists)
    }

    /// Whether the request removes the object, and leaves neither a clone nor a record of it.
    pub fn leaves_nothing(&self) -> bool {
        // An object with clones, or about to get one, stays as a whiteout.
        self.old.exists && !self.new.exists
    }

    /// The user version that a reply carries if nothing is sealed.
    pub fn reply_user_version(&self) -> u64 {
        self.old.oi.user_version
    }

    /// Completes the change: clones the head if a snapshot wants it, gives the object its new
    /// version and writes its records.
    pub fn seal(mut self, args: SealArgs) -> Sealed {
        let mut entries = SmallVec::new();
        let mut version = args.first_version;
        if let Some(clone) = self.make_writeable(version, args.mtime) {
            entries.push(clone);
            version.version += 1;
        }
        let mut user_version = self.user_version.unwrap_or(self.old.oi.user_version);
        if self.user_modify {
            user_version =
                (args.last_user_version.max(self.new.oi.user_version) + 1).max(version.version);
        }
        let prior_version = if self.old.exists { self.old.oi.version } else { Eversion::ZERO };
        if self.new.exists {
            let replaced = self.txn.iter().any(|(oid, c)| {
                *oid == self.old.oid && matches!(c, Change::Remove | Change::CloneOf { .. })
            });
            let oi = &mut self.new.oi;
            oi.version = version;
            oi.prior_version = prior_version;
            oi.user_version = user_version;
            oi.last_reqid = args.reqid;
            if !self.keep_mtime && !args.mtime.is_zero() {
                oi.mtime = args.mtime;
                oi.local_mtime = args.now;
            }
            let mut attrs = SmallVec::new();
            attrs.push((Bytes::from_static(OI_ATTR), encode_attr(oi)));
            if replaced || !self.old.exists || self.snapset != *self.old_snapset {
                attrs.push((Bytes::from_static(SS_ATTR), encode_attr(&self.snapset)));
            }
            self.txn.push(&self.old.oid, Change::SetAttrs(attrs));
        } else {
            self.new = ObjectState::absent(self.old.oid.clone());
            self.snapset = SnapSet::default();
        }
        entries.push(NewEntry {
            op: if self.new.exists { LogOp::Modify } else { LogOp::Delete },
            oid: self.old.oid.clone(),
            prior_version,
            user_version,
            reqid: args.reqid,
            mtime: if self.keep_mtime { Utime::ZERO } else { args.mtime },
            return_code: args.return_code,
            snaps: Vec::new(),
            op_returns: args.op_returns,
            written: Default::default(),
        });
        Sealed {
            entries,
            txn: self.txn,
            stats: self.stats,
            version,
            user_version,
            new: self.new,
            snapset: self.snapset,
        }
    }
}

/// A log entry that only remembers what a request was answered.
pub fn error_entry(
    oid: ObjectId,
    reqid: ReqId,
    return_code: i32,
    op_returns: Vec<(i32, Bytes)>,
) -> NewEntry {
    NewEntry {
        op: LogOp::Error,
        oid,
        prior_version: Eversion::ZERO,
        user_version: 0,
        reqid,
        mtime: Utime::ZERO,
        return_code,
        snaps: Vec::new(),
        op_returns,
        written: Default::default(),
    }
}
