//! Following the cluster map.

use crate::action::{Action, Persist};
use crate::info::Backfill;
use crate::map::{MapRef, MapView};
use crate::missing::MissingSet;
use crate::msg::{PeerHeader, PeerMsg, Query};
use crate::past_intervals::{
    PastInterval, PastIntervals, is_new_interval, may_have_written, place,
};
use crate::reserver::Side;
use crate::rows;
use types::{Eversion, OsdId, PgShard};

use super::{Pg, Phase};

impl Pg {
    pub(super) fn advance_map(&mut self, map: MapRef) {
        if map.epoch() <= self.map.epoch() || self.phase == Phase::Gone {
            return;
        }
        self.note_gap(&*map);
        let Some((mapping, pool)) = place(&*map, self.info.pgid) else {
            self.map = map;
            self.start_removal();
            return;
        };
        if self.phase == Phase::Removing {
            // The host asks which copy is primary, to keep operations for the copy that may come
            // after this one.
            (self.map, self.mapping, self.pool) = (map, mapping, pool);
            return;
        }
        let old_map = std::mem::replace(&mut self.map, map);
        let gap = std::mem::take(&mut self.gap);
        if gap
            || is_new_interval(
                &*old_map,
                &*self.map,
                self.info.pgid,
                (&self.mapping, &self.pool),
                (&mapping, &pool),
            )
        {
            let interval = PastInterval {
                first: self.info.history.same_interval_since,
                last: old_map.epoch(),
                acting: self.mapping.acting.to_vec(),
            };
            let written =
                may_have_written(&*old_map, &self.mapping, &self.pool, &self.info.history);
            // With a gap the interval's end is not known, nor what came after it.
            if !gap {
                self.past.add(interval, written, &*self.map);
            }
            let epoch = self.map.epoch();
            let history = &mut self.info.history;
            if gap {
                history.begin_interval(epoch);
            }
            if mapping.up != self.mapping.up || mapping.up_primary != self.mapping.up_primary {
                history.same_up_since = epoch;
            }
            if mapping.primary != self.mapping.primary {
                history.same_primary_since = epoch;
            }
            history.same_interval_since = epoch;
            self.mapping = mapping;
            self.pool = pool;
            if gap && self.enough() && self.mapping.primary.is_some() {
                // The maps between are gone. The interval may be older than this map: then an OSD
                // that was alive in it is not found, and it would seem that nothing was written.
                // The PG was clean in it, or in a later one.
                let acting = self.mapping.acting.to_vec();
                self.past.add(PastInterval { first: epoch, last: epoch, acting }, true, &*self.map);
            }
            self.leave_interval();
            let mut persist = Persist::default();
            self.info_rows(&mut persist);
            self.persist_info(persist);
        } else {
            self.pool = pool;
            if self.map.epoch().0 - self.persisted_epoch.0 >= self.conf.epoch_persisted_max_stale {
                self.persist_all();
            }
        }
    }

    /// If maps before this one are missing: monitors keep every map that a PG needs which was not
    /// clean since, so this one was, without this copy. What was written since then, and in which
    /// intervals, is not known here. The copy counts for nothing until it is filled anew, and asks
    /// no OSD on the strength of intervals that may not have been the last: copies that saw all
    /// maps tell of theirs.
    pub(super) fn note_gap(&mut self, map: &dyn MapView) {
        if self.gap
            || map.epoch() <= self.map.epoch().next()
            || matches!(self.phase, Phase::Gone | Phase::Removing)
        {
            return;
        }
        self.gap = true;
        self.lose_standing();
    }

    /// The copy counts for nothing any more, and its knowledge of intervals neither.
    pub(super) fn lose_standing(&mut self) {
        let mut persist = Persist::default();
        persist.forget_undo.extend(std::mem::take(&mut self.undo));
        for (oid, item) in self.missing.iter() {
            persist.rows.remove.push(rows::missing_key(oid));
            // Half a copy can have the right version: without its missing item that would not be
            // known.
            if item.have == Eversion::default() {
                persist.remove_objects.push(oid.clone());
            }
        }
        self.missing = MissingSet::default();
        self.info.last_backfill = Backfill::Nothing;
        self.info.last_complete = self.info.last_update;
        let holders = std::mem::take(&mut self.past.holders);
        self.past = PastIntervals { holders, ..PastIntervals::default() };
        self.leave_interval();
        self.info_rows(&mut persist);
        self.persist(persist);
    }

    /// Forgets everything that belongs to the interval that ended.
    pub(super) fn leave_interval(&mut self) {
        self.phase = Phase::Reset;
        (self.settle, self.settling) = (self.changed, false);
        self.deferred.clear();
        self.peers.clear();
        self.inflight.clear();
        self.recovery = Default::default();
        self.repairs = Default::default();
        self.scrub = Default::default();
        self.backfill = Default::default();
        self.reservation = Default::default();
        self.trimming = None;
        self.leases.leave_interval();
        self.clean = false;
        self.actions.push_back(Action::IntervalChange);
    }

    pub(super) fn activate_map(&mut self) {
        match self.phase {
            Phase::Gone | Phase::Removing => {}
            Phase::Reset if self.committed < self.settle => self.settling = true,
            Phase::Reset => {
                if self.is_primary() {
                    self.start_peering();
                } else {
                    self.phase = Phase::Stray;
                    self.tell_of_copy();
                }
            }
            // The primary forgot those that were called down, be it by mistake.
            Phase::Stray if self.told_since != self.map.up_from(self.me.osd) => self.tell_of_copy(),
            Phase::Stray | Phase::ReplicaActive => {}
            Phase::GetInfo { .. }
            | Phase::Down
            | Phase::GetLog { .. }
            | Phase::Incomplete
            | Phase::WaitActing
            | Phase::GetMissing { .. } => self.check_prior_set(),
            Phase::WaitUpThru => {
                self.check_prior_set();
                if self.phase == Phase::WaitUpThru {
                    self.activate_if_up_thru();
                }
            }
            Phase::Activating { .. } => {}
            Phase::Active => self.active_map(),
        }
        let waiting = std::mem::take(&mut self.future);
        for (osd, header, msg) in waiting {
            self.handle_peer(osd, header, msg);
        }
    }

    pub(super) fn handle_peer(&mut self, osd: OsdId, header: PeerHeader, msg: PeerMsg) {
        if self.phase == Phase::Gone || header.receiver() != self.info.spgid() {
            return;
        }
        let from = header.sender(osd);
        if self.phase == Phase::Removing {
            let question = matches!(msg, PeerMsg::Query { query: Query::Info, .. });
            if question && self.mapping.primary == Some(from) && header.sent <= self.map.epoch() {
                // That this copy counts for nothing can be said at once; the removal may take long.
                let msg = self.notify();
                self.answer(from, header.sent, msg);
                return;
            }
            // Once this copy is gone, its OSD may be given a new one.
            self.future.push((osd, header, msg));
            return;
        }
        if header.sent > self.map.epoch() {
            if self.future.is_empty() {
                self.actions.push_back(Action::WantMap(header.sent));
            }
            self.future.push((osd, header, msg));
            return;
        }
        let since = self.info.history.same_interval_since;
        if header.sent < since || header.asked < since {
            return;
        }
        if self.phase == Phase::Reset {
            self.future.push((osd, header, msg));
            return;
        }
        let primary = self.mapping.primary == Some(from);
        match msg {
            PeerMsg::Query { query, history } if primary => {
                self.answer_query(from, header, query, history)
            }
            PeerMsg::Notify { info, past, promises } if self.is_primary() => {
                self.take_promises(promises);
                self.handle_notify(from, info, past);
            }
            PeerMsg::Log { info, log, missing, undo } if self.is_primary() => {
                self.handle_log(from, info, log, missing, undo)
            }
            PeerMsg::Activate { info, log, past } if primary => {
                self.handle_activate(from, header, info, log, past)
            }
            PeerMsg::Activated if self.is_primary() => self.handle_activated(from),
            PeerMsg::History { history, purged_snaps } if primary => {
                self.handle_history(history, purged_snaps)
            }
            PeerMsg::RepOp(op) if primary => self.handle_rep_op(*op),
            PeerMsg::RepOpReply { version } if self.is_primary() => {
                self.handle_rep_op_reply(from, version)
            }
            PeerMsg::Pull { oid, version, from: at, urgent } if primary => {
                self.handle_pull(from, header.sent, oid, version, at, urgent)
            }
            PeerMsg::Push(chunk) => self.handle_push(from, header.sent, chunk),
            PeerMsg::PullFailed { oid, version } if self.is_primary() => {
                self.handle_pull_failed(from, oid, version)
            }
            PeerMsg::PushReply { oid, version, to } if self.is_primary() => {
                self.handle_push_reply(from, oid, version, to)
            }
            PeerMsg::Trim(to) if primary => self.handle_trim(to),
            PeerMsg::StartBackfill { info, log, dups, past } if primary => {
                self.handle_start_backfill(from, header, info, log, dups, past);
            }
            PeerMsg::Reserve { backfill, priority } if primary => {
                self.actions.push_back(Action::Reserve { side: Side::Target, backfill, priority });
            }
            PeerMsg::ReserveSource { priority, round } if primary => {
                self.handle_reserve_source(priority, round)
            }
            PeerMsg::SourceReserved { round } if self.is_primary() => {
                self.handle_source_reserved(from, round)
            }
            PeerMsg::SourceRevoked { round } if self.is_primary() => {
                self.handle_source_revoked(from, round)
            }
            PeerMsg::Release if primary => self.actions.push_back(Action::Release),
            PeerMsg::Revoked if self.is_primary() => self.handle_revoked(from),
            PeerMsg::Reserved if self.is_primary() => self.handle_peer_reserved(from),
            PeerMsg::BackfillTooFull if self.is_primary() => self.handle_target_too_full(from),
            PeerMsg::ListObjects { after, max } if primary => {
                self.list_for(from, header.sent, after, max)
            }
            PeerMsg::Objects { after, listing } if self.is_primary() => {
                self.handle_objects(from, &after, listing)
            }
            PeerMsg::AdvanceBackfill { upto, missing, remove } if primary => {
                self.handle_advance_backfill(from, header.sent, upto, missing, remove);
            }
            PeerMsg::BackfillAdvanced { upto } if self.is_primary() => {
                self.handle_backfill_advanced(from, &upto)
            }
            PeerMsg::Lease { round, length, committed } if primary => {
                self.handle_lease(from, round, length, committed)
            }
            PeerMsg::LeaseAck { round } if self.is_primary() => self.handle_lease_ack(from, round),
            PeerMsg::MarkMissing { objects } if primary => self.handle_mark_missing(objects),
            PeerMsg::ScrubReserve if primary => self.handle_scrub_reserve(),
            PeerMsg::ScrubReserved { granted } if self.is_primary() => {
                self.handle_scrub_reserved(from, granted)
            }
            PeerMsg::ScrubRelease if primary => self.actions.push_back(Action::ReleaseScrub),
            PeerMsg::Scan { id, after, upto, deep, max } if primary => {
                self.handle_scan(from, header.sent, id, after, upto, deep, max)
            }
            PeerMsg::ScanResult { id, map } if self.is_primary() => self.take_scan(from, id, *map),
            PeerMsg::Scrubbed { history, scrub } if primary => self.handle_scrubbed(history, scrub),
            PeerMsg::RollBack(to) if primary => self.handle_roll_back(to),
            PeerMsg::ReadShard { id, query } if primary => {
                self.handle_read_shard(from, header.sent, id, *query)
            }
            PeerMsg::ShardRead { id, answer } if self.is_primary() => {
                self.actions.push_back(Action::ShardAnswer { id, from, answer })
            }
            PeerMsg::Remove if primary => self.handle_remove(),
            // From a copy that is not what it takes itself for; the map will tell it.
            _ => {}
        }
    }

    /// The primary may need this copy, or know that it is not needed.
    fn tell_of_copy(&mut self) {
        self.told_since = self.map.up_from(self.me.osd);
        if let Some(primary) = self.mapping.primary {
            let msg = self.notify();
            self.send(primary, msg);
        }
    }

    fn notify(&self) -> PeerMsg {
        PeerMsg::Notify {
            info: self.info.clone(),
            past: self.past.clone(),
            promises: self.promises(),
        }
    }

    fn answer_query(
        &mut self,
        from: PgShard,
        header: PeerHeader,
        query: Query,
        history: crate::info::PgHistory,
    ) {
        if self.info.history.merge(&history) {
            self.past.trim(self.info.history.last_epoch_started);
            self.persist_all();
        }
        let msg = match query {
            Query::Info => self.notify(),
            Query::Log(since) => PeerMsg::Log {
                info: self.info.clone(),
                log: self.log.after(since),
                missing: self.missing.clone(),
                undo: self.undo.iter().copied().collect(),
            },
        };
        self.answer(from, header.sent, msg);
    }
}
