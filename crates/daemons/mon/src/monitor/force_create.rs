//! Lost placement groups that an operator wants made anew: OSDs are told of them until one serves
//! each.

use super::Inner;
use super::session::Link;
use messages::OsdPgCreate;
use std::collections::BTreeMap;
use types::{OsdId, PgId, ShardId, SpgId};

impl Inner {
    /// Tells the OSDs that are connected here and act for such PGs. An OSD that serves one says so,
    /// and is not told again.
    pub(super) fn tell_of_lost_pgs(&self) {
        let state = self.committed();
        if state.recreating.is_empty() {
            return;
        }
        let map = state.osd.map();
        let mut wanted: BTreeMap<OsdId, OsdPgCreate> = BTreeMap::new();
        for (pool, seeds) in state.recreating.iter() {
            for (seed, epoch) in seeds {
                let pgid = PgId { pool: *pool, seed: *seed };
                for osd in map.pg_to_up_acting(pgid).acting {
                    let m = wanted.entry(osd).or_insert_with(|| OsdPgCreate {
                        epoch: state.osd.last(),
                        pgs: BTreeMap::new(),
                    });
                    // An OSD knows its position.
                    m.pgs.insert(SpgId { pgid, shard: ShardId::NONE }, (*epoch, super::now()));
                }
            }
        }
        let sessions: Vec<_> = self.sessions.borrow().values().cloned().collect();
        for s in sessions.iter().filter(|s| matches!(s.conn, Link::Direct(_))) {
            if let Some(m) = s.osd().and_then(|osd| wanted.get(&osd)) {
                self.send(&s.conn, m, 0);
            }
        }
    }
}
