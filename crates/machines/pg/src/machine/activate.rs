//! Making all copies ready for writes.

use std::collections::BTreeSet;

use types::{IntervalSet, PgShard};

use crate::action::Action;
use crate::info::{PgHistory, PgInfo};
use crate::merge;
use crate::msg::{LogSegment, PeerHeader, PeerMsg};
use crate::past_intervals::PastIntervals;
use crate::stats::StatSum;

use super::{Deferred, Pg, Phase};

impl Pg {
    /// The primary has its log and knows what each replica lacks: hand the log out.
    pub(super) fn activate(&mut self) {
        // An interval in which too few took part never counts as started: its log must not beat
        // that of an interval in which clients were served.
        if self.enough() {
            self.info.last_epoch_started = self.activation_epoch();
            self.info.last_interval_started = self.info.history.same_interval_since;
            self.info.last_interval_acted = Some(self.info.last_interval_started);
        }
        self.forget_promises();
        let own = self.persist_all();
        let mut waiting = BTreeSet::new();
        for shard in self.replicas() {
            let Some(peer) = self.peers.get_mut(&shard) else { continue };
            peer.acked = self.info.last_update;
            waiting.insert(shard);
            self.send_activate(shard);
        }
        self.begin_round();
        self.phase = Phase::Activating { waiting, own: Some(own) };
        self.check_activated();
    }

    pub(super) fn send_activate(&mut self, shard: PgShard) {
        let head = self.info.last_update;
        let Some(peer) = self.peers.get_mut(&shard) else { return };
        (peer.sent, peer.owed) = (Some(head), StatSum::default());
        let log = self.log.after(peer.common);
        self.send(
            shard,
            PeerMsg::Activate { info: self.info.clone(), log, past: self.past.clone() },
        );
    }

    /// A replica takes over the authoritative log.
    pub(super) fn handle_activate(
        &mut self,
        from: PgShard,
        header: PeerHeader,
        info: PgInfo,
        log: LogSegment,
        past: PastIntervals,
    ) {
        if !self.mapping.acting.contains(&self.me) && !self.mapping.up.contains(&self.me) {
            return;
        }
        // The primary worked out from our log which point we share with it.
        let Some(common) = merge::newest_common(&self.log, &log, &info) else { return };
        self.info.history.merge(&info.history);
        self.info.last_epoch_started = info.last_epoch_started;
        self.info.last_interval_started = info.last_interval_started;
        if self.mapping.acting.contains(&self.me) {
            self.info.last_interval_acted = Some(info.last_interval_started);
        }
        // The primary has seen what every copy knows of the past.
        self.past = past;
        self.past.trim(self.info.history.last_epoch_started);
        self.forget_promises();
        let token = self.merge_log(common, &info, &log.entries);
        self.defer(token, Deferred::Send(from, header.sent, PeerMsg::Activated));
        self.phase = Phase::ReplicaActive;
    }

    pub(super) fn handle_activated(&mut self, from: PgShard) {
        if let Phase::Activating { waiting, .. } = &mut self.phase {
            waiting.remove(&from);
            self.check_activated();
        } else {
            self.follower_activated(from);
        }
    }

    /// Goes active once the activation is durable everywhere.
    pub(super) fn check_activated(&mut self) {
        let Phase::Activating { waiting, own } = &mut self.phase else { return };
        if own.is_some_and(|token| token <= self.committed) {
            *own = None;
        }
        if own.is_some() || !waiting.is_empty() {
            return;
        }
        self.phase = Phase::Active;
        self.all_committed = self.info.last_update;
        if self.enough() {
            self.info.history.last_epoch_started = self.info.last_epoch_started;
            self.info.history.last_interval_started = self.info.last_interval_started;
            self.past.trim(self.info.history.last_epoch_started);
            self.persist_all();
            self.share_history();
            self.actions.push_back(Action::Active);
        }
        if self.all_recovered() {
            self.min_last_complete_ondisk = self.info.last_update;
        }
        self.find_unfound();
        self.check_recovery();
    }

    /// Tells replicas what all copies should know.
    pub(super) fn share_history(&mut self) {
        let msg = PeerMsg::History {
            history: self.info.history,
            purged_snaps: self.info.purged_snaps.clone(),
        };
        self.send_all(self.replicas(), msg);
    }

    pub(super) fn handle_history(&mut self, history: PgHistory, purged_snaps: IntervalSet) {
        self.info.history.merge(&history);
        self.info.purged_snaps = purged_snaps;
        self.past.trim(self.info.history.last_epoch_started);
        if self.info.history.last_epoch_clean >= self.info.history.same_interval_since {
            self.past.clear();
        }
        self.persist_all();
    }

    /// Marks the PG clean if it is.
    pub(super) fn check_clean(&mut self) {
        if self.phase != Phase::Active || !self.all_recovered() {
            return;
        }
        let (up, acting) = (&self.mapping.up, &self.mapping.acting);
        if acting.len() < self.pool.size as usize
            || up.len() != acting.len()
            || !up.iter().all(|o| acting.contains(o))
        {
            return;
        }
        if !self.clean {
            self.clean = true;
            self.info.history.last_epoch_clean = self.map.epoch();
            self.info.history.last_interval_clean = self.info.history.same_interval_since;
            self.past.clear();
            self.persist_all();
            self.share_history();
        }
        self.trim_idle();
        // Every OSD that should have the PG has it.
        let strays: Vec<_> =
            self.peers.keys().copied().filter(|o| !self.mapping.acting.contains(o)).collect();
        for shard in strays {
            self.peers.remove(&shard);
            self.send(shard, PeerMsg::Remove);
        }
        self.check_snap_trim();
    }
}
