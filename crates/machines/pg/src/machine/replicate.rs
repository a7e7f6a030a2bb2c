//! Writes: the primary orders them, everybody persists them, the client hears when all have.

use types::{Eversion, PgShard};

use crate::action::{Action, Persist, Source};
use crate::log_entry::{LogEntry, LogOp, Logged};
use crate::merge;
use crate::msg::{PeerMsg, RepOp};
use crate::proposal::{NotActive, Proposal};
use crate::rows;

use super::{Deferred, InFlight, Pg, Phase};

impl Pg {
    /// Orders a change and replicates it. The host has checked [`Pg::object_status`] and
    /// [`Pg::find_dup`], and has built the payload for [`Pg::next_version`]. Causes one
    /// [`Action::Persist`] with [`Source::Proposal`], and [`Action::Reply`] when every acting OSD
    /// has it. Returns the version of the last entry.
    pub fn propose(&mut self, proposal: Proposal) -> Result<Eversion, NotActive> {
        if !self.is_active() || proposal.entries.is_empty() {
            return Err(NotActive);
        }
        let epoch = self.map.epoch();
        let mut persist =
            Persist { source: Source::Proposal(proposal.token), ..Persist::default() };
        let mut op = RepOp {
            entries: Default::default(),
            stats: proposal.stats,
            trim_to: self.trim_target(),
            payload: proposal.payload,
            log_only: false,
        };
        let mut oids = smallvec::SmallVec::new();
        for new in proposal.entries {
            debug_assert!(!self.missing.contains(&new.oid), "a write to a missing object");
            let version = Eversion { epoch, version: self.info.last_update.version + 1 };
            oids.push(new.oid.clone());
            let logged = Logged::new(LogEntry {
                op: new.op,
                oid: new.oid,
                version,
                prior_version: new.prior_version,
                user_version: new.user_version,
                reqid: new.reqid,
                mtime: new.mtime,
                return_code: new.return_code,
                snaps: new.snaps,
                op_returns: new.op_returns,
                reverting_to: None,
                written: ec::ShardSet::EMPTY,
            });
            self.info.last_user_version = self.info.last_user_version.max(new.user_version);
            self.info.last_update = version;
            persist.rows.set.push(rows::log_row(&logged));
            self.log.push(logged.clone());
            self.note_change(&logged.entry);
            self.disturb_scrub(&logged.entry.oid);
            op.entries.push(logged);
        }
        self.info.stats.add(&op.stats);
        if let Some(logged) = op.entries.first() {
            self.scrub_follows(&logged.entry.oid, &op.stats);
        }
        if self.missing.is_empty() {
            self.info.last_complete = self.info.last_update;
        }
        let trim_to = op.trim_to;
        let replicas = self.replicas();
        let repeat = self.send_to_followers(&op);
        if !replicas.is_empty() {
            // Before the own transaction, so that the network works while the disk does.
            self.send_all(replicas, PeerMsg::RepOp(Box::new(op)));
        }
        self.trim_log(trim_to, &mut persist);
        persist.rows.set.push(rows::fast_row(&self.info));
        let persist = self.persist(persist);
        let version = self.info.last_update;
        self.inflight.push_back(InFlight { version, token: proposal.token, persist, oids });
        for oid in repeat {
            self.repeat_copy(oid);
        }
        Ok(version)
    }

    pub(super) fn handle_rep_op(&mut self, op: RepOp) {
        if self.phase != Phase::ReplicaActive {
            return;
        }
        let source = if op.log_only { Source::None } else { Source::RepOp(op.payload) };
        let mut persist = Persist { source, ..Persist::default() };
        let mut learned = merge::Outcome::default();
        let mut given_up = false;
        for logged in op.entries {
            let v = logged.entry.version;
            if v <= self.log.head() || v.version != self.log.head().version + 1 {
                // A primary that skips or repeats is broken. Not to acknowledge keeps data safe.
                return;
            }
            self.info.last_update = v;
            self.info.last_user_version =
                self.info.last_user_version.max(logged.entry.user_version);
            persist.rows.set.push(rows::log_row(&logged));
            if op.log_only {
                merge::learn(
                    &mut self.missing,
                    &self.info.last_backfill,
                    &logged.entry,
                    &mut learned,
                );
            }
            given_up |= matches!(logged.entry.op, LogOp::LostRevert | LogOp::LostDelete);
            self.log.push(logged);
        }
        self.missing_rows(&learned.touched, &mut persist);
        persist.remove_objects.extend(learned.remove);
        self.info.stats.add(&op.stats);
        if self.missing.is_empty() {
            self.info.last_complete = self.info.last_update;
        }
        self.trim_log(op.trim_to, &mut persist);
        if given_up {
            // Nobody knows how large it was.
            self.info.stats_invalid = true;
            self.info_rows(&mut persist);
        } else {
            persist.rows.set.push(rows::fast_row(&self.info));
        }
        let token = self.persist(persist);
        self.defer(token, Deferred::AckWrite(self.info.last_update));
    }

    pub(super) fn handle_rep_op_reply(&mut self, from: PgShard, version: Eversion) {
        if let Some(peer) = self.peers.get_mut(&from) {
            peer.acked = peer.acked.max(version);
            self.complete_writes();
        }
    }

    /// Replies to the writes that everybody has.
    pub(super) fn complete_writes(&mut self) {
        if self.inflight.is_empty() {
            return;
        }
        let me = self.me;
        let acked = self
            .mapping
            .acting
            .iter()
            .copied()
            .chain(self.acknowledging())
            .filter(|&o| o != me)
            .map(|o| self.peers.get(&o).map_or(Eversion::default(), |p| p.acked))
            .min()
            .unwrap_or(Eversion::MAX);
        while let Some(op) =
            self.inflight.pop_front_if(|op| op.persist <= self.committed && op.version <= acked)
        {
            self.all_committed = op.version;
            self.actions.push_back(Action::Reply { token: op.token, version: op.version });
        }
        self.lost_committed();
        if self.all_recovered() {
            self.min_last_complete_ondisk = self.all_committed;
        }
    }

    /// Up to where the log may be trimmed now; zero if nothing should be.
    fn trim_target(&self) -> Eversion {
        let conf = &self.conf;
        let keep = if self.clean {
            conf.target_pg_log_entries.max(conf.min_pg_log_entries).min(conf.max_pg_log_entries)
        } else {
            conf.max_pg_log_entries
        };
        let len = self.log.len() as u64;
        if len < keep + conf.pg_log_trim_min.max(1) {
            return Eversion::default();
        }
        let nth = (len - keep - 1) as usize;
        let target = self.log.iter().nth(nth).map_or(Eversion::default(), |e| e.entry.version);
        target.min(self.min_last_complete_ondisk)
    }

    /// Trims the log. Nothing that this copy has not completed is trimmed, whatever the primary
    /// says. While a copy is filled it never completes anything for long; what it lacks is in its
    /// missing set, not in the log alone.
    fn trim_log(&mut self, to: Eversion, persist: &mut Persist) {
        let to = if self.info.is_incomplete() {
            to.min(self.info.last_update)
        } else {
            to.min(self.info.last_complete)
        };
        if to > self.log.tail() {
            self.log.trim(to, self.conf.pg_log_dups_tracked, &mut persist.rows);
            self.info.log_tail = self.log.tail();
        }
    }

    /// A degraded PG kept a long log; now that it is clean, nobody needs so much of it.
    pub(super) fn trim_idle(&mut self) {
        let to = self.trim_target();
        if to <= self.log.tail() {
            return;
        }
        self.send_all(self.replicas(), PeerMsg::Trim(to));
        let mut persist = Persist::default();
        self.trim_log(to, &mut persist);
        persist.rows.set.push(rows::fast_row(&self.info));
        self.persist(persist);
    }

    pub(super) fn handle_trim(&mut self, to: Eversion) {
        if self.phase != Phase::ReplicaActive {
            return;
        }
        let mut persist = Persist::default();
        self.trim_log(to, &mut persist);
        persist.rows.set.push(rows::fast_row(&self.info));
        self.persist(persist);
    }
}
