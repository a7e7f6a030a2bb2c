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

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use types::{PoolId, SnapId};

    fn object(hash: u32, name: &'static str) -> ObjectId {
        ObjectId::with_hash(
            PoolId(1),
            Bytes::new(),
            Bytes::from_static(name.as_bytes()),
            Bytes::new(),
            SnapId::NOSNAP,
            hash,
        )
    }

    #[test]
    fn a_backoff_blocks_its_range_without_the_end() {
        let (a, b, c) = (object(0, "a"), object(0, "b"), object(0, "c"));
        let range = BTreeMap::from([(a.clone(), Backoff { id: 1, end: c.clone() })]);
        assert!(is_blocked(&range, &a) && is_blocked(&range, &b));
        assert!(!is_blocked(&range, &c));
        let single = BTreeMap::from([(b.clone(), Backoff { id: 2, end: b.clone() })]);
        assert!(is_blocked(&single, &b));
        assert!(!is_blocked(&single, &a) && !is_blocked(&single, &c));
    }

    #[test]
    fn a_backoff_of_a_whole_pg_covers_listings() {
        let begin = ObjectId { pool: PoolId(1), hash: 3, ..ObjectId::MIN };
        let range = BTreeMap::from([(begin.clone(), Backoff { id: 1, end: ObjectId::MAX })]);
        assert!(is_blocked(&range, &begin));
        assert!(!is_blocked(&range, &ObjectId::MIN));
    }

    #[test]
    fn a_session_keeps_backoffs_by_pg() {
        let mut backoffs = Backoffs::default();
        let pgid = SpgId { pgid: types::PgId::new(PoolId(1), 0), shard: types::ShardId::NONE };
        let (a, z) = (object(0, "a"), object(0, "z"));
        let block =
            OsdBackoff { pgid, id: 7, begin: a.clone(), end: z.clone(), ..OsdBackoff::default() };
        backoffs.add(&block);
        assert!(backoffs.block(pgid, || object(0, "b")) && !backoffs.block(pgid, || z.clone()));
        let other = SpgId { pgid: types::PgId::new(PoolId(1), 1), ..pgid };
        assert!(!backoffs.block(other, || object(0, "b")));
        backoffs.remove(&block);
        assert!(!backoffs.block(pgid, || object(0, "b")));
    }
}
