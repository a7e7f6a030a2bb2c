//! Backoffs: ranges of objects that an OSD does not want requests for at present
//! (Ceph: `doc/dev/osd_internals/backoff.rst`, `MOSDBackoff`).

use super::Inner;
use super::blocked::{Backoff, is_blocked};
use super::peer::peer_of;
use super::pending::OP_PRIORITY;
use crate::objecter::peer::Peer;
use messages::{OsdBackoff, Payload};
use msgr::Connection;
use std::collections::BTreeMap;
use std::rc::Rc;

impl Inner {
    pub(super) fn backed_off(self: &Rc<Self>, conn: &Rc<Connection>, backoff: OsdBackoff) {
        let Some(Peer::Osd(osd)) = peer_of(conn) else { return };
        match backoff.op {
            OsdBackoff::BLOCK => {
                if self.with_session(conn, |s| s.backoffs.add(&backoff)).is_none() {
                    return;
                }
                // What the OSD got before it decided, it has dropped.
                let mut ack =
                    OsdBackoff { op: OsdBackoff::ACK_BLOCK, ..backoff }.encode(conn.features());
                ack.priority = OP_PRIORITY;
                conn.send(ack);
            }
            OsdBackoff::UNBLOCK => {
                if self.with_session(conn, |s| s.backoffs.remove(&backoff)).is_none() {
                    return;
                }
                let freed =
                    BTreeMap::from([(backoff.begin, Backoff { id: backoff.id, end: backoff.end })]);
                self.send_again(osd, backoff.pgid, |object| is_blocked(&freed, object));
            }
            other => tracing::debug!(op = other, "unknown backoff"),
        }
    }
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
