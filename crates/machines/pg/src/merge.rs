//! What a copy lacks when its log meets the authoritative one.
//!
//! ```text
//!    authoritative   ── a ── b ── c ── f ── g        common = c
//!    this copy       ── a ── b ── c ── d ── e        divergent = d, e    to learn = f, g
//! ```
//!
//! An entry's version names it uniquely (one primary of one interval gave it), so two logs that
//! share a version share everything before it. The copy gives up its divergent entries and learns
//! the others.
//!
//! A divergent change cannot be undone in place; the object is removed and, if it existed before,
//! copied again. For each object with divergent entries, where `prior` is its version before the
//! first of them:
//!
//! * the copy had not yet recovered the divergent content: what it has is older and stays;
//! * otherwise the object is removed: it has nothing;
//! * if the authoritative log goes on to change the object, learning that decides what is needed;
//! * else if `prior` is zero the object must not exist: nothing is missing;
//! * else `prior` is needed, unless the copy still has exactly that.
//!
//! The entry of a clone names the version of the head that it was made of; the clone itself was
//! nowhere before.
//!
//! Learning an update makes its version needed; learning a deletion removes the object.
//!
//! Where a change can be undone in place ([`Terms::undo`]), it is, and the copy has what it had
//! before. An entry that does not change this copy only says what an object that is missing here
//! has become. (Ceph: `PGLog::_merge_object_divergent_entries`, `PGLog::merge_log`,
//! `PGLog::proc_replica_log`.)

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use types::{Eversion, ObjectId};

use crate::info::{Backfill, PgInfo};
use crate::log::PgLog;
use crate::log_entry::{LogEntry, LoggedRef};
use crate::missing::{MissingItem, MissingSet};
use crate::msg::LogSegment;

/// What entries mean for a copy.
#[derive(Clone, Copy)]
pub struct Terms<'a> {
    /// Whether an entry changes what this copy has of its object.
    pub changes: &'a dyn Fn(&LogEntry) -> bool,
    /// Changes that the copy can take back; `None` where none can be.
    pub undo: Option<&'a BTreeSet<Eversion>>,
}

impl fmt::Debug for Terms<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Terms").field("undo", &self.undo).finish_non_exhaustive()
    }
}

/// Terms of a copy that has everything.
pub const WHOLE: Terms<'static> = Terms { changes: &|_| true, undo: None };

/// What must follow a merge besides the change of the missing set.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Objects to remove from the store, if they are there.
    pub remove: BTreeSet<ObjectId>,
    /// Objects of which the missing item may have changed.
    pub touched: BTreeSet<ObjectId>,
    /// Whether anything was divergent.
    pub diverged: bool,
    /// Changes to take back, newest first.
    pub undo: Vec<(Eversion, ObjectId)>,
}

/// The newest point that `log` shares with another log, of which `segment` is known and which
/// belongs to the copy that says `info`; `None` if they do not meet, or `segment` does not tell.
///
/// After a split a log has only some of the versions, so that the newest entry that both have may
/// be older than both tails. Then they agree at the newer tail: what is trimmed was complete
/// everywhere, and so is part of every history that reaches as far. (A branch that was given up
/// ends before any version that took its place: those have later epochs, and versions are ordered
/// by epoch first.)
pub fn newest_common(log: &PgLog, segment: &LogSegment, info: &PgInfo) -> Option<Eversion> {
    let (tail, entries) = (segment.tail, &segment.entries);
    let floor = log.tail().max(tail);
    if log.head() < floor || info.last_update < floor {
        return None;
    }
    let shared = entries
        .iter()
        .rev()
        .map(|e| e.entry.version)
        .take_while(|v| *v > floor)
        .find(|&v| log.get(v).is_some());
    if shared.is_some() {
        return shared;
    }
    // Where only a part of the other log is known, it may begin behind where they part.
    (floor > tail || tail == info.log_tail || log.has_point(tail)).then_some(floor)
}

/// Brings `missing` of a copy from its own log to the authoritative one. `divergent` are the copy's
/// entries after `common`, `learn` the authoritative ones; both oldest first. Objects that the copy
/// is not yet responsible for (`filled`) are left alone.
pub fn merge(
    missing: &mut MissingSet,
    filled: &Backfill,
    common: Eversion,
    divergent: &[LoggedRef],
    learn: &[LoggedRef],
    terms: Terms<'_>,
) -> Outcome {
    let mut out = Outcome::default();
    // The version before the first of them, and those that changed this copy.
    let mut objects: BTreeMap<&ObjectId, (Eversion, Vec<Eversion>)> = BTreeMap::new();
    for e in divergent {
        out.diverged = true;
        if (e.entry.op.is_update() || e.entry.op.is_delete()) && filled.covers(&e.entry.oid) {
            let (_, changed) =
                objects.entry(&e.entry.oid).or_insert_with(|| (e.entry.before(), Vec::new()));
            if (terms.changes)(&e.entry) {
                changed.push(e.entry.version);
            }
        }
    }
    for (oid, (prior, changed)) in objects {
        let item = missing.get(oid).copied();
        let undone = |upto: Eversion| {
            let applied = changed.iter().copied().filter(move |v| *v <= upto);
            terms.undo.filter(|undo| applied.clone().all(|v| undo.contains(&v))).map(|_| applied)
        };
        if item.is_none() && changed.is_empty() {
            continue;
        }
        out.touched.insert(oid.clone());
        // What is in the store: something older than the divergence, or something void.
        let kept = |have: Eversion| have != Eversion::default() && have <= common;
        // What was changed before the object was missing, or all.
        let upto = item.map_or(Eversion::MAX, |i| i.have);
        let have = if let Some(item) = item.filter(|i| kept(i.have)) {
            item.have
        } else if upto != Eversion::default()
            && let Some(applied) = undone(upto)
        {
            out.undo.extend(applied.map(|v| (v, oid.clone())));
            prior
        } else {
            out.remove.insert(oid.clone());
            Eversion::default()
        };
        if prior == Eversion::default() || have == prior {
            missing.remove(oid);
        } else {
            missing.set(oid.clone(), MissingItem { need: prior, have });
        }
    }
    out.undo.sort_by(|a, b| b.cmp(a));
    for e in learn {
        self::learn(missing, filled, &e.entry, &mut out, terms);
    }
    out
}

/// A copy that had everything before `entry` learns of it, without the change that it describes.
pub fn learn(
    missing: &mut MissingSet,
    filled: &Backfill,
    entry: &LogEntry,
    out: &mut Outcome,
    terms: Terms<'_>,
) {
    if !filled.covers(&entry.oid) || !(entry.op.is_update() || entry.op.is_delete()) {
        return;
    }
    if !(terms.changes)(entry) && !missing.contains(&entry.oid) {
        return;
    }
    out.touched.insert(entry.oid.clone());
    if entry.op.is_delete() {
        out.remove.insert(entry.oid.clone());
    }
    missing.add_next(entry);
}

#[cfg(test)]
#[path = "merge_test.rs"]
mod tests;
