//! Ranges of objects that an OSD does not want requests for at present
//! (Ceph: `doc/dev/osd_internals/backoff.rst`, `MOSDBackoff`).

use messages::OsdBackoff;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use types::{ObjectId, SpgId};

/// The backoffs of a session.
#[derive(Default)]
pub(super) struct Backoffs(pub(super) FxHashMap<SpgId, BTreeMap<ObjectId, Backoff>>);

pub(super) struct Backoff {
    pub(super) id: u64,
    pub(super) end: ObjectId,
}

impl Backoffs {
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Whether requests on the object have to wait. `object` is called only if there is anything
    /// to compare it with.
    pub(super) fn block(&self, pgid: SpgId, object: impl FnOnce() -> ObjectId) -> bool {
        self.0.get(&pgid).is_some_and(|ranges| is_blocked(ranges, &object()))
    }

    pub(super) fn add(&mut self, b: &OsdBackoff) {
        let ranges = self.0.entry(b.pgid).or_default();
        ranges.insert(b.begin.clone(), Backoff { id: b.id, end: b.end.clone() });
    }

    pub(super) fn remove(&mut self, b: &OsdBackoff) {
        if let Some(ranges) = self.0.get_mut(&b.pgid) {
            ranges.retain(|_, range| range.id != b.id);
            if ranges.is_empty() {
                self.0.remove(&b.pgid);
            }
        }
    }
}

/// Whether one of the ranges covers `object`. A range of no length blocks the object that it names.
pub(super) fn is_blocked(ranges: &BTreeMap<ObjectId, Backoff>, object: &ObjectId) -> bool {
    ranges
        .range(..=object)
        .next_back()
        .is_some_and(|(begin, b)| object < &b.end || (begin == &b.end && object == begin))
}
