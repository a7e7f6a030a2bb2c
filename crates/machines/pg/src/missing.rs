//! Objects that a copy should have and has not.

use std::collections::{BTreeMap, BTreeSet};

use denc::{BytesMut, Decode, Encode, Features, Reader};
use denc_derive::Denc;
use types::{Eversion, ObjectId, SnapId};

use crate::log_entry::LogEntry;

/// What a copy lacks of one object (Ceph: `pg_missing_item`).
#[derive(Denc, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MissingItem {
    /// The version that it should have.
    pub need: Eversion,
    /// The version that it has; zero if none, or if its content is divergent or half recovered.
    pub have: Eversion,
}

/// Objects that a copy should have and has not (Ceph: `pg_missing_t`). Deleted objects are never in
/// it: their removal is applied when the entry is learned.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MissingSet {
    items: BTreeMap<ObjectId, MissingItem>,
    /// By needed version, oldest first: recovery goes in this order so that `last_complete`
    /// advances.
    by_need: BTreeSet<(Eversion, ObjectId)>,
}

impl MissingSet {
    /// Whether nothing is missing.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// How many objects are missing.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// The missing item of this object.
    pub fn get(&self, oid: &ObjectId) -> Option<&MissingItem> {
        self.items.get(oid)
    }

    /// Whether this object is missing.
    pub fn contains(&self, oid: &ObjectId) -> bool {
        // Clean is the common case on the hot path.
        !self.items.is_empty() && self.items.contains_key(oid)
    }

    /// Whether this head or one of its clones is missing.
    pub fn contains_name(&self, head: &ObjectId) -> bool {
        !self.items.is_empty()
            && self.items.range(head.at(SnapId(0))..=head.head()).next().is_some()
    }
    /// All missing objects in object order.
    pub fn iter(&self) -> impl Iterator<Item = (&ObjectId, &MissingItem)> {
        self.items.iter()
    }

    /// All missing objects, oldest needed version first.
    pub fn oldest_first(&self) -> impl Iterator<Item = &ObjectId> {
        self.by_need.iter().map(|(_, oid)| oid)
    }

    /// The smallest needed version.
    pub fn oldest_need(&self) -> Option<Eversion> {
        self.by_need.first().map(|(need, _)| *need)
    }

    /// Takes out the objects for which `goes` is true.
    pub fn split(&mut self, mut goes: impl FnMut(&ObjectId) -> bool) -> Self {
        let mut child = Self::default();
        for (oid, item) in std::mem::take(self).items {
            if goes(&oid) { child.set(oid, item) } else { self.set(oid, item) }
        }
        child
    }

    /// Adds or replaces.
    pub fn set(&mut self, oid: ObjectId, item: MissingItem) {
        if let Some(old) = self.items.insert(oid.clone(), item) {
            self.by_need.remove(&(old.need, oid.clone()));
        }
        self.by_need.insert((item.need, oid));
    }

    /// The object is here, or need not be. Returns what was missing.
    pub fn remove(&mut self, oid: &ObjectId) -> Option<MissingItem> {
        let item = self.items.remove(oid)?;
        self.by_need.remove(&(item.need, oid.clone()));
        Some(item)
    }

    /// A copy that had everything before `entry` learns of `entry`, without the change of this copy
    /// that it describes.
    pub fn add_next(&mut self, entry: &LogEntry) {
        if entry.op.is_delete() {
            self.remove(&entry.oid);
        } else if entry.op.is_update() {
            let have = match self.items.get(&entry.oid) {
                Some(item) => item.have,
                None => entry.before(),
            };
            self.set(entry.oid.clone(), MissingItem { need: entry.version, have });
        }
    }

    /// Whether both indexes agree.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.items.len() != self.by_need.len() {
            return Err(format!(
                "{} objects missing, {} versions needed",
                self.items.len(),
                self.by_need.len()
            ));
        }
        for (version, oid) in &self.by_need {
            if self.items.get(oid).map(|i| i.need) != Some(*version) {
                return Err(format!("version {version:?} of {oid:?} is needed by the index alone"));
            }
        }
        Ok(())
    }
}

impl Encode for MissingSet {
    fn encode(&self, out: &mut BytesMut, features: Features) {
        self.items.encode(out, features);
    }
}

impl Decode for MissingSet {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        let items: BTreeMap<ObjectId, MissingItem> = r.get()?;
        let mut set = Self::default();
        for (oid, item) in items {
            set.set(oid, item);
        }
        Ok(set)
    }
}
