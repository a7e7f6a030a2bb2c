//! The log of a PG in memory.

use std::collections::VecDeque;

use bytes::Bytes;
use denc_derive::Denc;
use rustc_hash::FxHashMap;
use types::{Epoch, Eversion, ReqId};

use crate::log_entry::{LogEntry, LoggedRef};
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

impl DupEntry {
    fn of(entry: &LogEntry) -> Self {
        Self {
            version: entry.version,
            reqid: entry.reqid,
            user_version: entry.user_version,
            return_code: entry.return_code,
            op_returns: entry.op_returns.clone(),
        }
    }

    /// Dups are in this order.
    pub fn order(&self) -> (Eversion, ReqId) {
        (self.version, self.reqid)
    }
}

/// The log of a PG in memory (Ceph: `PGLog::IndexedLog`).
///
/// Versions of entries grow from just after `tail` to at most `head`. They have gaps where entries
/// went to another PG in a split; then `head` may be above the newest entry.
#[derive(Clone, Debug, Default)]
pub struct PgLog {
    tail: Eversion,
    head: Eversion,
    entries: VecDeque<LoggedRef>,
    /// Newest version of each request in `entries`.
    reqids: FxHashMap<ReqId, u64>,
    dups: VecDeque<DupEntry>,
    dup_reqids: FxHashMap<ReqId, Eversion>,
}

impl PgLog {
    /// A log from its parts, or `None` if the entries do not follow one another.
    pub fn new(
        tail: Eversion,
        head: Eversion,
        entries: Vec<LoggedRef>,
        dups: Vec<DupEntry>,
    ) -> Option<Self> {
        let mut log = Self { tail, head: tail, ..Self::default() };
        for entry in entries {
            let v = entry.entry.version;
            if v <= log.head || v.version <= log.head.version {
                return None;
            }
            log.push(entry);
        }
        if head < log.head {
            return None;
        }
        log.head = head;
        for dup in dups {
            log.push_dup(dup);
        }
        Some(log)
    }

    /// The version just before the oldest entry.
    pub fn tail(&self) -> Eversion {
        self.tail
    }

    /// Whether versions are absent only where those of an epoch before `split` may have gone to
    /// another PG.
    pub fn is_whole(&self, split: Epoch) -> bool {
        let mut before = self.tail;
        let follows = |before: Eversion, v: Eversion| v.version <= before.version + 1;
        let gap = |before: Eversion, v: Eversion| follows(before, v) || before.epoch < split;
        for v in self.entries.iter().map(|e| e.entry.version) {
            if !gap(before, v) {
                return false;
            }
            before = v;
        }
        self.head.version == before.version || (gap(before, self.head) && self.head.epoch < split)
    }

    /// The newest version that the log knows of.
    pub fn head(&self) -> Eversion {
        self.head
    }

    /// The log is known to be complete up to here, though there may be no such entry.
    pub fn raise_head(&mut self, head: Eversion) {
        self.head = self.head.max(head);
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
        let at = self.entries.partition_point(|e| e.entry.version < version);
        self.entries.get(at).filter(|e| e.entry.version == version)
    }

    /// Whether this version is a point of this log's history: an entry, the tail, or the head.
    pub fn has_point(&self, version: Eversion) -> bool {
        version == self.tail || version == self.head || self.get(version).is_some()
    }

    /// The newest entry or tail that is not above `version`.
    pub fn floor(&self, version: Eversion) -> Eversion {
        let n = self.entries.partition_point(|e| e.entry.version <= version);
        if n == 0 { self.tail } else { self.entries[n - 1].entry.version }
    }

    /// Appends an entry, which must follow the head.
    pub fn push(&mut self, entry: LoggedRef) {
        debug_assert!(
            entry.entry.version > self.head && entry.entry.version.version > self.head.version
        );
        self.head = entry.entry.version;
        if entry.entry.reqid != ReqId::default() {
            self.reqids.insert(entry.entry.reqid, entry.entry.version.version);
        }
        self.entries.push_back(entry);
    }

    /// Puts older entries in front, so that the log reaches back to `tail`. They are all that
    /// another log has between `tail` and the present tail, and both logs have a point in common
    /// that is not older than that. If they cannot be, nothing happens. Returns whether anything
    /// did.
    pub fn extend_back(&mut self, tail: Eversion, older: &[LoggedRef]) -> bool {
        if tail >= self.tail
            || older.iter().any(|e| e.entry.version <= tail || e.entry.version > self.tail)
        {
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
        let at = self.entries.partition_point(|e| e.entry.version.version < version);
        self.entries.get(at).filter(|e| e.entry.version.version == version)
    }

    /// The dup entry of a trimmed request.
    pub fn find_dup(&self, reqid: &ReqId) -> Option<&DupEntry> {
        let version = self.dup_reqids.get(reqid)?;
        let at = self.dups.partition_point(|d| d.version < *version);
        self.dups.range(at..).find(|d| d.reqid == *reqid)
    }

    /// The entries after `version`. If the log starts later, all of it: the caller looks at `tail`.
    pub fn after(&self, version: Eversion) -> LogSegment {
        let from = self.entries.partition_point(|e| e.entry.version <= version);
        let tail = if from == 0 { self.tail } else { self.entries[from - 1].entry.version };
        LogSegment { tail, entries: self.entries.range(from..).cloned().collect() }
    }

    /// Removes and returns the entries after `version`, oldest first. The log ends there then.
    pub fn rewind(&mut self, version: Eversion) -> Vec<LoggedRef> {
        let from = self.entries.partition_point(|e| e.entry.version <= version);
        let cut: Vec<_> = self.entries.drain(from..).collect();
        self.head = self.head.min(version).max(self.tail);
        for e in &cut {
            if self.reqids.get(&e.entry.reqid) == Some(&e.entry.version.version) {
                self.reqids.remove(&e.entry.reqid);
            }
        }
        cut
    }

    /// Drops entries up to and with `to`. Requests among the last `dups_tracked` versions, the
    /// log's own included, stay known as dups: none if the log is as long. The row changes go to
    /// `rows`.
    pub fn trim(&mut self, to: Eversion, dups_tracked: u64, rows: &mut RowBatch) {
        let oldest = self.head.version.saturating_sub(dups_tracked);
        while let Some(e) = self.entries.pop_front_if(|e| e.entry.version <= to) {
            let entry = &e.entry;
            rows.remove.push(rows::log_key(entry.version));
            let newest = self.reqids.get(&entry.reqid) == Some(&entry.version.version);
            if newest {
                self.reqids.remove(&entry.reqid);
            }
            if newest && entry.version.version > oldest {
                let dup = DupEntry::of(entry);
                rows.set.push(rows::dup_row(&dup));
                self.push_dup(dup);
            }
            self.tail = entry.version;
        }
        while let Some(old) = self.dups.pop_front_if(|d| d.version.version <= oldest) {
            rows.remove.push(rows::dup_key(&old));
            if self.dup_reqids.get(&old.reqid) == Some(&old.version) {
                self.dup_reqids.remove(&old.reqid);
            }
        }
    }

    /// Takes out the entries for which `goes` is true. They come back as a log that reaches as far
    /// on both sides and knows the same dups: which object a dup was about is not known.
    pub fn split(&mut self, mut goes: impl FnMut(&LoggedRef) -> bool) -> Self {
        let mut child = Self { tail: self.tail, head: self.tail, ..Self::default() };
        let mut kept = Self { tail: self.tail, head: self.tail, ..Self::default() };
        for entry in std::mem::take(&mut self.entries) {
            if goes(&entry) { child.push(entry) } else { kept.push(entry) }
        }
        for dup in &self.dups {
            child.push_dup(dup.clone());
        }
        (kept.dups, kept.dup_reqids) =
            (std::mem::take(&mut self.dups), std::mem::take(&mut self.dup_reqids));
        (child.head, kept.head) = (self.head, self.head);
        *self = kept;
        child
    }

    /// What is left of logs of PGs that become one: a log without entries that begins at `head` and
    /// knows the newest requests of all of them.
    pub fn joined(logs: &[&Self], head: Eversion, dups_tracked: u64) -> Self {
        let oldest = head.version.saturating_sub(dups_tracked);
        let mut dups: Vec<DupEntry> = Vec::new();
        for log in logs {
            dups.extend(log.dups.iter().cloned());
            let newest =
                |e: &&LoggedRef| log.reqids.get(&e.entry.reqid) == Some(&e.entry.version.version);
            dups.extend(log.entries.iter().filter(newest).map(|e| DupEntry::of(&e.entry)));
        }
        dups.retain(|d| d.version.version > oldest);
        dups.sort_by_key(DupEntry::order);
        let mut all = Self { tail: head, head, ..Self::default() };
        dups.into_iter().for_each(|d| all.push_dup(d));
        all
    }

    fn push_dup(&mut self, dup: DupEntry) {
        // Two requests have one version where a PG took in another.
        if self.dups.back().is_some_and(|last| last.order() >= dup.order()) {
            return;
        }
        self.dup_reqids.insert(dup.reqid, dup.version);
        self.dups.push_back(dup);
    }
}
