//! A copy that is being filled: it takes over the log, gets every write, and moves its cursor as
//! the primary says.

use std::collections::BTreeSet;

use types::{Epoch, Eversion, ObjectId, PgShard};

use crate::action::Persist;
use crate::info::{Backfill, PgInfo};
use crate::log::{DupEntry, PgLog};
use crate::missing::{MissingItem, MissingSet};
use crate::msg::{LogSegment, PeerHeader, PeerMsg};
use crate::past_intervals::PastIntervals;
use crate::rows;

use super::{Deferred, Pg, Phase};

impl Pg {
    pub(super) fn tell_primary(&mut self, msg: PeerMsg) {
        if let Some(primary) = self.mapping.primary.filter(|_| self.phase == Phase::ReplicaActive) {
            self.send(primary, msg);
        }
    }

    pub(super) fn handle_start_backfill(
        &mut self,
        from: PgShard,
        header: PeerHeader,
        info: PgInfo,
        log: LogSegment,
        dups: Vec<DupEntry>,
        past: PastIntervals,
    ) {
        if self.mapping.acting.contains(&self.me) || !self.mapping.up.contains(&self.me) {
            return;
        }
        let Some(log) = PgLog::new(log.tail, info.last_update, log.entries, dups) else { return };
        self.forget_promises();
        let mut persist = Persist::default();
        persist.forget_undo.extend(std::mem::take(&mut self.undo));
        persist.rows.set.extend(log.iter().map(|e| rows::log_row(e)));
        persist.rows.set.extend(log.dups().map(rows::dup_row));
        let kept: BTreeSet<_> = persist.rows.set.iter().map(|(k, _)| k.clone()).collect();
        let old = self
            .log
            .iter()
            .map(|e| rows::log_key(e.entry.version))
            .chain(self.log.dups().map(rows::dup_key));
        persist.rows.remove.extend(old.filter(|k| !kept.contains(k)));
        for (oid, item) in self.missing.iter() {
            persist.rows.remove.push(rows::missing_key(oid));
            // Half a copy can have the right version: without its missing item that would not be
            // known.
            if item.have == Eversion::default() {
                persist.remove_objects.push(oid.clone());
            }
        }
        self.missing = MissingSet::default();
        self.log = log;
        let history = &mut self.info.history;
        history.merge(&info.history);
        self.past = past;
        self.past.trim(history.last_epoch_started);
        self.info = PgInfo {
            shard: self.me.shard,
            last_complete: info.last_update,
            log_tail: self.log.tail(),
            last_backfill: Backfill::Nothing,
            // Its primary did; this copy begins anew.
            last_interval_acted: Some(Epoch(0)),
            history: *history,
            ..info
        };
        self.info_rows(&mut persist);
        let token = self.persist(persist);
        self.defer(token, Deferred::Send(from, header.sent, PeerMsg::Activated));
        self.phase = Phase::ReplicaActive;
    }

    pub(super) fn handle_advance_backfill(
        &mut self,
        from: PgShard,
        asked: Epoch,
        upto: Backfill,
        missing: Vec<(ObjectId, Eversion)>,
        remove: Vec<ObjectId>,
    ) {
        if self.phase != Phase::ReplicaActive
            || self.mapping.acting.contains(&self.me)
            || upto < self.info.last_backfill
        {
            return;
        }
        let mut persist = Persist { remove_objects: remove, ..Persist::default() };
        for (oid, need) in missing {
            let item = MissingItem { need, have: Eversion::default() };
            persist.rows.set.push(rows::missing_row(&oid, &item));
            self.missing.set(oid, item);
        }
        self.info.last_backfill = upto.clone();
        self.update_last_complete();
        self.info_rows(&mut persist);
        let token = self.persist(persist);
        self.defer(token, Deferred::Send(from, asked, PeerMsg::BackfillAdvanced { upto }));
    }
}
