//! Snapshots: clones made before a write, listing, rollback, trimming.

use crate::code::OpOutcome;
use crate::exec::Exec;
use crate::object::{
    At, InfoExt, ObjectInfo, ObjectState, SnapSet, SnapSetExt, decode_attr, encode_attr,
};
use crate::reader::SS_ATTR;
use crate::reader::{OI_ATTR, ObjectReader};
use crate::txn::Mutations;
use bytes::{Bytes, BytesMut};
use denc::{Encode, Features};
use pg::{LogOp, NewEntry, StatSum};
use smallvec::{SmallVec, smallvec};
use store::Change;
use types::errno::Errno;
use types::{Eversion, IntervalSet, ReqId, SnapId};

impl<R: ObjectReader> Exec<'_, R> {
    /// `obj_list_snap_response_t` (version 2): clones ascending, each with its snapshots ascending,
    /// then the head if clients see it.
    pub(crate) fn list_snaps(&mut self, out: &mut OpOutcome) -> Result<i32, Errno> {
        self.reads += 1;
        let f = Features::ALL;
        let mut b = BytesMut::new();
        let set = &self.snapset;
        let head = self.old.visible();
        let mut broken = false;
        denc::envelope(&mut b, 2, 1, |b| {
            (set.clones.len() as u32 + u32::from(head)).encode(b, f);
            for clone in &set.clones {
                let (Some(snaps), Some(overlap), Some(size)) = (
                    set.clone_snaps.get(clone),
                    set.clone_overlap.get(clone),
                    set.clone_size.get(clone),
                ) else {
                    broken = true;
                    return;
                };
                let snaps: Vec<SnapId> = snaps.iter().rev().copied().collect();
                let overlap: Vec<(u64, u64)> = overlap.iter().collect();
                put_clone(b, *clone, &snaps, &overlap, *size);
            }
            if head {
                put_clone(b, SnapId::NOSNAP, &[], &[], self.new.oi.size);
            }
            set.seq.encode(b, f);
        });
        if broken {
            return Err(Errno::EINVAL);
        }
        self.stats.num_rd += 1;
        out.outdata.push(b.freeze());
        Ok(0)
    }

    /// Makes the head as it was at `snap` (Ceph: `_rollback_to`).
    pub(crate) async fn rollback(&mut self, snap: SnapId) -> Result<i32, Errno> {
        self.writes += 1;
        let at = match self.snapset.locate(snap) {
            At::Clone(_) if (self.env.snap_removed)(snap) => At::Nothing,
            at => at,
        };
        match at {
            At::Head if self.old.visible() => {
                self.modify = true;
                Ok(0)
            }
            // The object did not exist then.
            At::Head | At::Nothing => {
                if !self.old.oi.watchers.is_empty() {
                    return Err(Errno::EBUSY);
                }
                match self.delete(false) {
                    Err(Errno::ENOENT) => Ok(0),
                    other => other,
                }
            }
            At::Clone(clone) => {
                let from = self.old.oid.at(clone);
                let info = self.env.reader.attr(&from.to_key(), OI_ATTR).await?;
                self.become_clone(clone, decode_attr(&info)?, snap);
                Ok(0)
            }
        }
    }

    fn become_clone(&mut self, clone: SnapId, info: ObjectInfo, snap: SnapId) {
        if self.new.exists {
            self.push(Change::Remove);
        }
        self.push(Change::CloneOf { from: self.old.oid.at(clone).to_key() });
        // What the head still shares with the clone stays shared.
        let mut shared: Option<IntervalSet> = None;
        for overlap in self.snapset.clone_overlap.range(snap..).map(|(_, o)| o) {
            shared = Some(match shared {
                None => overlap.clone(),
                Some(s) => s.intersection(overlap),
            });
        }
        if self.new.oi.size > 0 {
            let mut changed = IntervalSet::new();
            changed.insert(0, self.new.oi.size);
            if let Some(shared) = shared {
                changed.subtract(&shared);
            }
            self.modified.union(&changed);
        }
        self.create_silently();
        self.stats.num_bytes += info.size as i64 - self.new.oi.size as i64;
        self.new.oi.size = info.size;
        self.new.oi.set_omap(info.is_omap());
    }

    /// Before a change of the head becomes visible: clones it if a snapshot was taken since its
    /// last change, and notes what it no longer shares with its newest clone (Ceph:
    /// `make_writeable`). Returns the clone's log entry, which gets `at`; the head's own entry
    /// comes after it.
    pub(crate) fn make_writeable(&mut self, at: Eversion, mtime: types::Utime) -> Option<NewEntry> {
        let snapc = self.env.snapc;
        let dirty = self.new.exists;
        self.stats.num_objects_dirty +=
            i64::from(dirty) - i64::from(self.old.exists && self.old.oi.is_dirty());
        self.new.oi.set_dirty(dirty);
        let had_omap = self.old.exists && self.old.oi.is_omap();
        let has_omap = self.new.exists && self.new.oi.is_omap();
        self.stats.num_objects_omap += i64::from(has_omap) - i64::from(had_omap);

        let mut entry = None;
        let newest = snapc.snaps.first().copied();
        if self.old.visible() && newest.is_some_and(|s| s > self.snapset.seq) {
            let id = snapc.seq;
            let snaps: Vec<SnapId> =
                snapc.snaps.iter().copied().take_while(|s| *s > self.snapset.seq).collect();
            let clone = self.old.oid.at(id);
            // Watchers watch the head.
            let info = ObjectInfo {
                version: at,
                prior_version: self.old.oi.version,
                watchers: Default::default(),
                ..self.old.oi.clone()
            };
            // Made of the head as it was, so before every other change; the steps go in backwards.
            self.txn.push_snaps(&clone, Vec::new(), snaps.clone());
            self.txn.push_front(&clone, Change::RmAttr(Bytes::from_static(SS_ATTR)));
            self.txn.push_front(
                &clone,
                Change::SetAttrs(smallvec![(Bytes::from_static(OI_ATTR), encode_attr(&info))]),
            );
            self.txn.push_front(&clone, Change::CloneOf { from: self.old.oid.to_key() });
            self.stats.num_objects += 1;
            self.stats.num_object_clones += 1;
            self.stats.num_objects_dirty += i64::from(info.is_dirty());
            self.stats.num_objects_omap += i64::from(info.is_omap());
            let set = &mut self.snapset;
            set.clones.push(id);
            set.clone_size.insert(id, self.old.oi.size);
            set.clone_snaps.insert(id, snaps.clone());
            let mut overlap = IntervalSet::new();
            overlap.insert(0, self.old.oi.size);
            set.clone_overlap.insert(id, overlap);
            entry = Some(NewEntry {
                op: LogOp::Clone,
                oid: clone,
                prior_version: self.old.oi.version,
                user_version: self.old.oi.user_version,
                reqid: ReqId::default(),
                mtime,
                return_code: 0,
                snaps,
                op_returns: Vec::new(),
                written: Default::default(),
            });
        }
        if let Some(mut newest) = self.snapset.clone_overlap.last_entry() {
            let gone = self.modified.intersection(newest.get());
            // The clone alone has those bytes now.
            self.stats.num_bytes += gone.size() as i64;
            newest.get_mut().subtract(&gone);
        }
        if snapc.seq > self.snapset.seq {
            self.snapset.seq = snapc.seq;
        }
        entry
    }
}

fn put_clone(b: &mut BytesMut, id: SnapId, snaps: &[SnapId], overlap: &[(u64, u64)], size: u64) {
    let f = Features::ALL;
    denc::envelope(b, 1, 1, |b| {
        id.encode(b, f);
        snaps.encode(b, f);
        overlap.encode(b, f);
        size.encode(b, f);
    });
}

/// The change that trims one clone.
#[derive(Debug)]
pub struct Trim {
    /// Log entries: the clone's, then the head's.
    pub entries: SmallVec<[NewEntry; 2]>,
    /// What changes.
    pub txn: Mutations,
    /// How the PG's totals change.
    pub stats: StatSum,
    /// The head after it.
    pub head: ObjectState,
    /// Its snap set after it.
    pub snapset: SnapSet,
}

/// Works out how to take the removed snapshots off a clone, and to remove the clone if none is left
/// (Ceph: `trim_object`). `at` is the version of the first entry. `None` if there is nothing to do.
pub fn trim(
    clone: &ObjectState,
    head: &ObjectState,
    mut set: SnapSet,
    at: Eversion,
    removed: impl Fn(SnapId) -> bool,
) -> Option<Trim> {
    let id = clone.oid.snap;
    let old = set.clone_snaps.get(&id)?.clone();
    let new: Vec<SnapId> = old.iter().copied().filter(|s| !removed(*s)).collect();
    if new.len() == old.len() && !new.is_empty() {
        return None;
    }
    let entry = |op, oid: &types::ObjectId, prior_version, snaps| NewEntry {
        op,
        oid: oid.clone(),
        prior_version,
        user_version: 0,
        reqid: ReqId::default(),
        mtime: types::Utime::ZERO,
        return_code: 0,
        snaps,
        op_returns: Vec::new(),
        written: Default::default(),
    };
    let mut stats = StatSum::default();
    let mut txn = Mutations::new();
    let mut entries = SmallVec::new();
    let head_at = Eversion { version: at.version + 1, ..at };
    txn.push_snaps(&clone.oid, old, new.clone());
    if new.is_empty() {
        stats.num_bytes -= set.clone_bytes(id) as i64;
        let position = set.clones.iter().position(|c| *c == id)?;
        if let Some(older) = position.checked_sub(1).map(|p| set.clones[p]) {
            // The next older clone now shares only what both shared.
            stats.num_bytes -= set.clone_bytes(older) as i64;
            if let (Some(a), Some(b)) = (set.clone_overlap.get(&older), set.clone_overlap.get(&id))
            {
                let both = a.intersection(b);
                set.clone_overlap.insert(older, both);
            }
            stats.num_bytes += set.clone_bytes(older) as i64;
        }
        set.clones.remove(position);
        set.clone_overlap.remove(&id);
        set.clone_size.remove(&id);
        set.clone_snaps.remove(&id);
        stats.num_objects -= 1;
        stats.num_object_clones -= 1;
        stats.num_objects_dirty -= i64::from(clone.oi.is_dirty());
        stats.num_objects_omap -= i64::from(clone.oi.is_omap());
        txn.push(&clone.oid, Change::Remove);
        entries.push(entry(LogOp::Delete, &clone.oid, clone.oi.version, Vec::new()));
    } else {
        set.clone_snaps.insert(id, new.clone());
        let info = ObjectInfo { prior_version: clone.oi.version, version: at, ..clone.oi.clone() };
        let attr = (Bytes::from_static(OI_ATTR), encode_attr(&info));
        txn.push(&clone.oid, Change::SetAttrs(smallvec![attr]));
        entries.push(entry(LogOp::Modify, &clone.oid, clone.oi.version, new));
    }
    let mut after = head.clone();
    if set.clones.is_empty() && head.oi.is_whiteout() {
        // Nothing keeps the record of the deleted head any more.
        stats.num_objects -= 1;
        stats.num_whiteouts -= 1;
        stats.num_objects_dirty -= i64::from(head.oi.is_dirty());
        stats.num_objects_omap -= i64::from(head.oi.is_omap());
        txn.push(&head.oid, Change::Remove);
        entries.push(entry(LogOp::Delete, &head.oid, head.oi.version, Vec::new()));
        after = ObjectState::absent(head.oid.clone());
        set = SnapSet::default();
    } else {
        after.oi.prior_version = head.oi.version;
        after.oi.version = head_at;
        txn.push(
            &head.oid,
            Change::SetAttrs(smallvec![
                (Bytes::from_static(OI_ATTR), encode_attr(&after.oi)),
                (Bytes::from_static(SS_ATTR), encode_attr(&set)),
            ]),
        );
        entries.push(entry(LogOp::Modify, &head.oid, head.oi.version, Vec::new()));
    }
    Some(Trim { entries, txn, stats, head: after, snapset: set })
}
