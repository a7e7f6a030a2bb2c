//! Snapshots of a pool, and what they make of an object: clones before writes, and trimming.

use pg::{LogOp, NewEntry, StatSum};
use smallvec::{SmallVec, smallvec};
use types::{Eversion, IntervalSet, ObjectId, ReqId, SnapId, SnapSet, Utime};

use crate::change::Change;
use crate::content::object_with;
use crate::object::Object;
use crate::request::{Ask, ClientOp};

/// The snapshots of a pool.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PoolSnaps {
    /// The newest that there ever was.
    pub seq: SnapId,
    /// Those that there are, newest first.
    pub live: Vec<SnapId>,
    /// Removed, and not known to be trimmed everywhere.
    pub removed: IntervalSet,
}

impl PoolSnaps {
    /// One more.
    pub fn make(&mut self) {
        self.seq = SnapId(self.seq.0 + 1);
        self.live.insert(0, self.seq);
    }

    /// One goes.
    pub fn remove(&mut self, snap: SnapId) {
        self.live.retain(|s| *s != snap);
        self.removed.insert(snap.0, 1);
    }
}

/// Where the content at a snapshot is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum At {
    /// It did not change since.
    Head,
    /// In this clone.
    Clone(SnapId),
    /// There was none.
    Nothing,
}

/// Finds the content at a snapshot.
pub fn locate(set: &SnapSet, snap: SnapId) -> At {
    if snap > set.seq {
        return At::Head;
    }
    match set.clones.iter().find(|c| **c >= snap) {
        Some(clone) if set.clone_snaps.get(clone).is_some_and(|s| s.contains(&snap)) => {
            At::Clone(*clone)
        }
        _ => At::Nothing,
    }
}

/// A change that was worked out.
#[derive(Debug)]
pub struct Plan {
    /// Its log entries; the last is that of the head.
    pub entries: SmallVec<[NewEntry; 1]>,
    /// What happens to which object, in order.
    pub changes: Vec<(ObjectId, Change)>,
    /// How totals change.
    pub stats: StatSum,
    /// What clients see after it.
    pub after: After,
}

/// What clients see of an object after a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum After {
    /// This value, or none.
    Value(Option<u64>),
    /// What they saw at this version. The object has a new one.
    As(Eversion),
    /// What they saw at this version, which the object still has.
    Still(Eversion),
}

fn entry(op: LogOp, oid: &ObjectId, prior_version: Eversion) -> NewEntry {
    NewEntry {
        op,
        oid: oid.clone(),
        prior_version,
        user_version: 0,
        reqid: ReqId::default(),
        mtime: Utime::default(),
        return_code: 0,
        snaps: Vec::new(),
        op_returns: Vec::new(),
        written: ec::ShardSet::EMPTY,
    }
}

fn next(at: Eversion) -> Eversion {
    Eversion { version: at.version + 1, ..at }
}

/// What a client's write does to an object: if a snapshot was taken since the last write, the head
/// is cloned first. A head that is deleted and has clones stays as a whiteout.
pub fn write(
    op: &ClientOp,
    head: Option<&Object>,
    pool: &PoolSnaps,
    at: Eversion,
    mtime: Utime,
) -> Plan {
    let oid = op.oid();
    let prior = head.map_or(Eversion::default(), |h| h.version);
    let visible = head.filter(|h| !h.whiteout);
    let was_there = head.is_some();
    let value = if let Ask::Write(value, _) = op.ask { Some(value) } else { None };
    let mut plan = Plan {
        entries: smallvec![],
        changes: Vec::new(),
        stats: StatSum::default(),
        after: After::Value(value),
    };
    let last = |op_done| NewEntry {
        reqid: op.reqid(),
        user_version: at.version,
        mtime,
        ..entry(op_done, &oid, prior)
    };
    if value.is_none() && visible.is_none() {
        // Nothing to do, but it must be remembered: the same request may come again, late.
        plan.after = head.map_or(plan.after, |h| After::Still(h.version));
        plan.entries.push(last(LogOp::Error));
        plan.changes.push((oid, Change::Nothing));
        return plan;
    }
    let mut set = head.map(|h| h.snapset.clone()).unwrap_or_default();
    let mut version = at;
    if let Some(head) = visible
        && pool.live.first().is_some_and(|s| *s > set.seq)
    {
        let id = pool.seq;
        let snaps: Vec<SnapId> = pool.live.iter().copied().take_while(|s| *s > set.seq).collect();
        let clone = oid.at(id);
        plan.entries.push(NewEntry { snaps: snaps.clone(), ..entry(LogOp::Clone, &clone, prior) });
        plan.changes.push((clone, Change::Clone { version: at, snaps: snaps.clone() }));
        plan.stats.num_objects += 1;
        plan.stats.num_object_clones += 1;
        set.clones.push(id);
        // Nothing is shared: objects are written as a whole.
        set.clone_overlap.insert(id, IntervalSet::new());
        set.clone_size.insert(id, head.data.len() as u64);
        set.clone_snaps.insert(id, snaps);
        version = next(at);
    }
    set.seq = set.seq.max(pool.seq);
    let (log_op, change) = match op.ask {
        Ask::Write(value, words) => (
            LogOp::Modify,
            Change::Write(Object { snapset: set, ..object_with(value, words, version) }),
        ),
        _ if set.clones.is_empty() => (LogOp::Delete, Change::Remove),
        _ => (
            LogOp::Modify,
            Change::Write(Object { version, whiteout: true, snapset: set, ..Object::default() }),
        ),
    };
    let stays = |change: &Change| matches!(change, Change::Write(object) if object.whiteout);
    plan.stats.num_whiteouts =
        i64::from(stays(&change)) - i64::from(was_there && visible.is_none());
    plan.stats.num_objects += i64::from(!matches!(change, Change::Remove)) - i64::from(was_there);
    plan.entries.push(last(log_op));
    plan.changes.push((oid, change));
    plan
}

/// What trimming does to a clone and its head: the clone loses the removed snapshots, and goes with
/// the last. None if there is nothing to do.
pub fn trim(
    clone: &ObjectId,
    here: &Object,
    head: &Object,
    at: Eversion,
    removed: impl Fn(SnapId) -> bool,
) -> Option<Plan> {
    let id = clone.snap;
    let mut set = head.snapset.clone();
    let old = set.clone_snaps.get(&id)?.clone();
    let new: Vec<SnapId> = old.iter().copied().filter(|s| !removed(*s)).collect();
    if new.len() == old.len() {
        return None;
    }
    let mut plan = Plan {
        entries: smallvec![],
        changes: Vec::new(),
        stats: StatSum::default(),
        after: After::As(head.version),
    };
    let log_op = if new.is_empty() { LogOp::Delete } else { LogOp::Modify };
    plan.entries.push(NewEntry { snaps: new.clone(), ..entry(log_op, clone, here.version) });
    if new.is_empty() {
        set.clones.retain(|c| *c != id);
        set.clone_overlap.remove(&id);
        set.clone_size.remove(&id);
        set.clone_snaps.remove(&id);
        plan.stats.num_objects -= 1;
        plan.stats.num_object_clones -= 1;
    } else {
        set.clone_snaps.insert(id, new.clone());
    }
    plan.changes.push((clone.clone(), Change::Snaps { version: at, old, new }));
    let oid = clone.head();
    if set.clones.is_empty() && head.whiteout {
        // Nothing keeps the record of the deleted head any more.
        plan.stats.num_objects -= 1;
        plan.stats.num_whiteouts -= 1;
        plan.entries.push(entry(LogOp::Delete, &oid, head.version));
        plan.changes.push((oid, Change::Remove));
    } else {
        plan.entries.push(entry(LogOp::Modify, &oid, head.version));
        plan.changes.push((oid, Change::Set { version: next(at), snapset: set }));
    }
    Some(plan)
}
