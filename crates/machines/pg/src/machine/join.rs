//! A PG takes in others, because `pg_num` shrinks.
//!
//! With `pg_num_pending` below `pg_num` the last PG (the *source*) and the one that it came from
//! (the *target*) serve no clients any more, but recover. When both are clean on the same OSDs, the
//! monitors note their versions and lower `pg_num`. With that map each OSD joins what it has of
//! them. A copy of the whole is what it says only where both parts were exactly at the noted
//! versions; any other one counts for nothing from then on and is removed, because it is not known
//! what it lacks. (Ceph: `PG::merge_from`, `PeeringState::merge_from`, `pg_merge_meta_t`.)

use types::{Eversion, PgId, Utime};

use crate::action::{Join, Persist};
use crate::conf::PgConf;
use crate::info::{PgHistory, PgInfo};
use crate::log::PgLog;
use crate::map::{MapRef, MapView, MergeMeta};
use crate::past_intervals::{is_pending, takes_in};

use super::{Action, Deferred, OsdId, Pg, Phase};

impl Pg {
    /// Which PG takes this one in with this map, if one does.
    pub fn target_in(&self, map: &dyn MapView) -> Option<PgId> {
        let pool = map.pool(self.info.pgid.pool)?;
        let later = map.epoch() > self.map.epoch() && self.phase != Phase::Gone;
        if later { self.info.pgid.merge_target(self.pool.pg_num, pool.pg_num) } else { None }
    }

    /// Whether this PG must be joined with others in this map, whether or not they are here.
    pub fn takes_in(&self, map: &dyn MapView) -> bool {
        let later = map.epoch() > self.map.epoch() && self.phase != Phase::Gone;
        later
            && map
                .pool(self.info.pgid.pool)
                .is_some_and(|p| takes_in(self.info.pgid, self.pool.pg_num, p.pg_num))
    }

    /// Whether the PG waits to be joined and nothing is left to do before.
    pub fn is_ready_to_join(&self) -> bool {
        self.clean
            && is_pending(self.info.pgid, &self.pool)
            && self.inflight.is_empty()
            && self.peers.values().all(|p| p.sent.is_none_or(|sent| sent >= self.info.last_update))
    }

    /// What is left of a target that this OSD does not have: a copy that is to be removed, as large
    /// as the target was before it takes in anything.
    pub fn remains(me: OsdId, pgid: PgId, source: &Pg, conf: PgConf, now: Utime) -> Self {
        let history = PgHistory {
            same_interval_since: source.info.history.same_interval_since,
            ..PgHistory::default()
        };
        let shard = source.info.shard;
        let info = PgInfo { pgid, shard, history, ..PgInfo::default() };
        let mut pg =
            Self::at(me, info, source.map.clone(), source.mapping.clone(), source.pool, conf, now);
        pg.make_void();
        pg.uncreated = true;
        pg
    }

    /// Takes the next map, with which PGs become part of this one. `sources` are those that are
    /// here; they are gone then. The first action that comes out makes it durable as a whole.
    pub fn join(&mut self, sources: &mut [&mut Pg], map: &MapRef, now: Utime) {
        self.now = now;
        let Some(pool) = map.pool(self.info.pgid.pool) else { return };
        self.note_gap(&**map);
        sources.iter_mut().for_each(|s| s.note_gap(&**map));
        let old = self.pool.pg_num;
        let whole = match (&*sources, &pool.merged) {
            ([source], Some(meta)) if old == pool.pg_num + 1 && meta.source == source.info.pgid => {
                self.is_at(meta.target_version) && source.is_at(meta.source_version)
            }
            _ => false,
        };
        let goes_already = self.phase == Phase::Removing && !self.uncreated;
        if whole && let (Some(source), Some(meta)) = (sources.first(), &pool.merged) {
            self.take_in(source, meta);
        } else if !goes_already {
            self.leave_interval();
            self.make_void();
        }
        let here: Vec<PgId> = sources.iter().map(|s| s.info.pgid).collect();
        for source in sources.iter_mut() {
            self.leases.inherit(&source.leases, map.epoch());
            source.phase = Phase::Gone;
            source.actions.clear();
            source.deferred.clear();
            source.future.clear();
        }
        let before = self.actions.len();
        self.advance_map(map.clone());
        self.info.history.last_epoch_split = map.epoch();
        let mut after: Vec<_> = self.actions.drain(before..).collect();
        after.retain(|a| !matches!(a, Action::Persist(_)));
        // In the order of their objects: each is the neighbour of what is joined already.
        let mut seeds: Vec<PgId> =
            (pool.pg_num..old).map(|seed| PgId { seed, ..self.info.pgid }).collect();
        seeds.retain(|s| s.merge_target(old, pool.pg_num) == Some(self.info.pgid));
        seeds.sort_by_key(|s| s.seed.reverse_bits());
        let parts = seeds.into_iter().map(|s| (s, here.contains(&s))).collect();
        self.persisted_epoch = map.epoch();
        let join = Join { parts, pg_num: old, rows: self.all_rows() };
        let token = self.persist(Persist { join: Some(join), ..Persist::default() });
        // What the others had under way is durable with it.
        self.settle = token;
        self.actions.extend(after);
        if !whole && !goes_already {
            self.defer(token, Deferred::Remove);
        }
        debug_assert_eq!(self.check_invariants(), Ok(()));
    }

    /// Whether this copy is complete, and exactly at this version.
    fn is_at(&self, version: Eversion) -> bool {
        !self.info.is_incomplete() && self.missing.is_empty() && self.info.last_update == version
    }

    fn take_in(&mut self, source: &Pg, meta: &MergeMeta) {
        let (a, b) = (meta.source_version, meta.target_version);
        // Above every version of either, so that what is written next is newer than everything.
        let head = Eversion { epoch: a.epoch.max(b.epoch), version: a.version.max(b.version) };
        self.undo.clear();
        self.log = PgLog::joined(&[&self.log, &source.log], head, self.conf.pg_log_dups_tracked);
        let info = &mut self.info;
        (info.last_update, info.last_complete, info.log_tail) = (head, head, head);
        info.last_user_version = info.last_user_version.max(source.info.last_user_version);
        info.stats.add(&source.info.stats);
        info.stats_invalid |= source.info.stats_invalid;
        info.purged_snaps = info.purged_snaps.intersection(&source.info.purged_snaps);
    }

    /// From here on the copy counts for nothing.
    fn make_void(&mut self) {
        self.log = Default::default();
        self.missing = Default::default();
        self.undo.clear();
        self.info.removing = true;
        self.info.last_backfill = crate::info::Backfill::Nothing;
        self.info.last_update = Eversion::default();
        self.info.last_complete = Eversion::default();
        self.info.log_tail = Eversion::default();
        self.info.stats = Default::default();
        self.phase = Phase::Removing;
    }
}
