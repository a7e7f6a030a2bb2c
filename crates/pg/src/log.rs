//! The log of a PG in memory.

use std::collections::VecDeque;

use bytes::Bytes;
use denc_derive::Denc;
use rustc_hash::FxHashMap;
use types::{Eversion, ReqId};

use crate::log_entry::LoggedRef;
use crate::msg::LogSegment;
use crate::rows::{self, RowBatch};

/// What is kept of a trimmed entry so that its request is still recognised (Ceph: `pg_log_dup_t`).
#[derive(Denc, Clone, PartialEq, Eq, Debug)]
#[denc(version = 1, compat = 1)]
pub struct DupEntry {
    /// The version it got.
    pub version: Eversion,
    /// The request.
    pub reqid: ReqId,
    /// The user-visible version it got.
    pub user_version: u64,
    /// Its result.
    pub return_code: i32,
    /// Per-op results.
    pub op_returns: Vec<(i32, Bytes)>,
}

/// The log of a PG in memory (Ceph: `PGLog::IndexedLog`).
///
/// Entries run without gaps from just after `tail` to `head`, so that a version is found by subtraction.
#[derive(Clone, Debug, Default)]
pub struct PgLog {
    tail: Eversion,
    entries: VecDeque<LoggedRef>,
    /// Newest version of each request in `entries`.
    reqids: FxHashMap<ReqId, u64>,
    dups: VecDeque<DupEntry>,
    dup_reqids: FxHashMap<ReqId, Eversion>,
}

impl PgLog {
    /// A log from its parts, or `None` if the entries do not follow one another.
    pub fn new(tail: Eversion, entries: Vec<LoggedRef>, dups: Vec<DupEntry>) -> Option<Self> {
        let mut log = Self { tail, ..Self::default() };
        for entry in entries {
            let v = entry.entry.version;
            if v <= log.head() || v.version != log.head().version.wrapping_add(1) {
                return None;
            }
            log.push(entry);
        }
        for dup in dups {
            log.push_dup(dup);
        }
        Some(log)
    }

    /// The version just before the oldest entry.
    pub fn tail(&self) -> Eversion {
        self.tail
    }

    /// The newest version; equal to `tail` if there are no entries.
    pub fn head(&self) -> Eversion {
        self.entries.back().map_or(self.tail, |e| e.entry.version)
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The entries, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &LoggedRef> + ExactSizeIterator {
        self.entries.iter()
    }

    /// Trimmed requests that are still known, oldest first.
    pub fn dups(&self) -> impl ExactSizeIterator<Item = &DupEntry> {
        self.dups.iter()
    }

    /// The entry with exactly this version.
    pub fn get(&self, version: Eversion) -> Option<&LoggedRef> {
        let at = version.version.checked_sub(self.tail.version)?.checked_sub(1)?;
        self.entries.get(usize::try_from(at).ok()?).filter(|e| e.entry.version == version)
    }

    /// Whether this version is a point of this log's history: an entry, or the tail.
    pub fn has_point(&self, version: Eversion) -> bool {
        version == self.tail || self.get(version).is_some()
    }

    /// The newest entry or tail that is not above `version`.
    pub fn floor(&self, version: Eversion) -> Eversion {
        let n = self.entries.partition_point(|e| e.entry.version <= version);
        if n == 0 { self.tail } else { self.entries[n - 1].entry.version }
    }

    /// Appends an entry, which must follow the head.
    pub fn push(&mut self, entry: LoggedRef) {
        debug_assert!(entry.entry.version > self.head() && entry.entry.version.version == self.head().version + 1);
        if entry.entry.reqid != ReqId::default() {
            self.reqids.insert(entry.entry.reqid, entry.entry.version.version);
        }
        self.entries.push_back(entry);
    }

    /// Puts older entries in front, so that the log reaches back to `tail`. They are the ones just before
    /// the present tail; otherwise nothing happens. Returns whether it did.
    pub fn extend_back(&mut self, tail: Eversion, older: &[LoggedRef]) -> bool {
        let Some(last) = older.last() else { return false };
        if last.entry.version != self.tail || older.len() as u64 != self.tail.version.saturating_sub(tail.version) {
            return false;
        }
        for e in older.iter().rev() {
            if e.entry.reqid != ReqId::default() {
                self.reqids.entry(e.entry.reqid).or_insert(e.entry.version.version);
            }
            self.entries.push_front(e.clone());
        }
        self.tail = tail;
        true
    }

    /// The entry that a request left.
    pub fn find_request(&self, reqid: &ReqId) -> Option<&LoggedRef> {
        let &version = self.reqids.get(reqid)?;
        let at = version.checked_sub(self.tail.version)?.checked_sub(1)?;
        self.entries.get(usize::try_from(at).ok()?)
    }

    /// What is left of a trimmed request.
    pub fn find_dup(&self, reqid: &ReqId) -> Option<&DupEntry> {
        let version = self.dup_reqids.get(reqid)?;
        let at = self.dups.binary_search_by(|d| d.version.cmp(version)).ok()?;
        self.dups.get(at)
    }

    /// The entries after `version`. If the log starts later, all of it: the caller looks at `tail`.
    pub fn after(&self, version: Eversion) -> LogSegment {
        let from = self.entries.partition_point(|e| e.entry.version <= version);
        let tail = if from == 0 { self.tail } else { self.entries[from - 1].entry.version };
        LogSegment { tail, entries: self.entries.range(from..).cloned().collect() }
    }

    /// Removes and returns the entries after `version`, oldest first.
    pub fn rewind(&mut self, version: Eversion) -> Vec<LoggedRef> {
        let from = self.entries.partition_point(|e| e.entry.version <= version);
        let cut: Vec<_> = self.entries.drain(from..).collect();
        for e in &cut {
            if self.reqids.get(&e.entry.reqid) == Some(&e.entry.version.version) {
                self.reqids.remove(&e.entry.reqid);
            }
        }
        cut
    }

    /// Drops entries up to and with `to`. Requests among the last `dups_tracked` versions, the log's own
    /// included, stay known as dups: none if the log is as long. The row changes go to `rows`.
    pub fn trim(&mut self, to: Eversion, dups_tracked: u64, rows: &mut RowBatch) {
        let oldest = self.head().version.saturating_sub(dups_tracked);
        while let Some(e) = self.entries.pop_front_if(|e| e.entry.version <= to) {
            let entry = &e.entry;
            rows.remove.push(rows::log_key(entry.version));
            let newest = self.reqids.get(&entry.reqid) == Some(&entry.version.version);
            if newest {
                self.reqids.remove(&entry.reqid);
            }
            if newest && entry.version.version > oldest {
                let dup = DupEntry {
                    version: entry.version,
                    reqid: entry.reqid,
                    user_version: entry.user_version,
                    return_code: entry.return_code,
                    op_returns: entry.op_returns.clone(),
                };
                rows.set.push(rows::dup_row(&dup));
                self.push_dup(dup);
            }
            self.tail = entry.version;
        }
        while let Some(old) = self.dups.pop_front_if(|d| d.version.version <= oldest) {
            rows.remove.push(rows::dup_key(old.version));
            if self.dup_reqids.get(&old.reqid) == Some(&old.version) {
                self.dup_reqids.remove(&old.reqid);
            }
        }
    }

    fn push_dup(&mut self, dup: DupEntry) {
        if self.dups.back().is_some_and(|last| last.version >= dup.version) {
            return;
        }
        self.dup_reqids.insert(dup.reqid, dup.version);
        self.dups.push_back(dup);
    }

}
