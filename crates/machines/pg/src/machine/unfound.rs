//! Objects of which no reachable OSD has the newest content, and how operators give them up.
//!
//! An object is unfound when this copy lacks it and every copy that has told everything lacks it,
//! too. Each OSD that acted since the PG was clean, and each that has told of a copy, may have it;
//! when all of them have been asked, or are declared lost, an operator may give it up. (Ceph:
//! `MissingLoc`, `PrimaryLogPG::mark_all_unfound_lost`.)

use std::collections::{BTreeMap, BTreeSet};

use types::{Eversion, LogPriority, ObjectId, PgShard, ReqId};

use crate::action::{Action, Persist};
use crate::log_entry::{LogEntry, LogOp, Logged, LoggedRef};
use crate::merge;
use crate::missing::MissingItem;
use crate::msg::{Payload, PeerMsg, RepOp};
use crate::proposal::OpToken;
use crate::rows;
use crate::stats::StatSum;

use super::{InFlight, Pg, Phase, Waits};

/// The ways to give up unfound objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GiveUp {
    /// The newest version that a copy has counts again; without any, the object is deleted.
    Revert,
    /// They are deleted.
    Delete,
}

/// Why nothing was given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LostRefused {
    /// This copy does not lead, or does not serve yet.
    #[error("not primary")]
    NotPrimary,
    /// There are none.
    #[error("pg has no unfound objects")]
    NothingUnfound,
    /// An OSD that may have them was not asked.
    #[error("pg has {0} unfound objects but we haven't probed all sources, not marking lost")]
    NotAllAsked(usize),
    /// Copies are shards: no older version can be put together.
    #[error("mode must be 'delete' for ec pool")]
    OnlyDelete,
}

/// A copy that may have what is unfound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holder {
    /// The copy.
    pub shard: PgShard,
    /// In Ceph's words: already probed, querying, osd is down, not queried.
    pub status: &'static str,
}

/// An object that this copy or an acting replica lacks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lacking {
    /// The missing item.
    pub item: MissingItem,
    /// The copies that have it.
    pub locations: Vec<PgShard>,
    /// No copy has it.
    pub unfound: bool,
}

impl Pg {
    /// Looks for missing objects that no copy is known to have, and asks the OSDs that may have
    /// them.
    pub(super) fn find_unfound(&mut self) {
        let lost = |(oid, item): &(&ObjectId, &MissingItem)| {
            !self.recovery.is_active(oid) && !self.can_be_had(oid, item)
        };
        let unfound: BTreeSet<ObjectId> = if self.backend().rebuilds() {
            self.unreadable()
        } else {
            self.missing.iter().filter(lost).map(|(oid, _)| oid.clone()).collect()
        };
        let some = !unfound.is_empty();
        for oid in self.recovery.set_unfound(unfound) {
            self.actions.push_back(Action::ObjectUnfound(oid));
        }
        if some {
            self.ask_strays();
        }
    }

    /// Other OSDs that may have what is unfound.
    pub(super) fn might_have_unfound(&self) -> impl Iterator<Item = PgShard> {
        let clean = self.info.history.last_epoch_clean;
        let acted = self
            .past
            .holders
            .iter()
            .filter(move |(_, until)| **until >= clean)
            .map(|(shard, _)| *shard);
        let all: BTreeSet<PgShard> =
            acted.chain(self.peers.keys().copied()).filter(|o| *o != self.me).collect();
        all.into_iter()
    }

    /// Other OSDs that may have what is unfound, and whether they told.
    pub fn unfound_holders(&self) -> Vec<Holder> {
        let status = |shard| match self.peers.get(&shard) {
            Some(p) if p.missing.is_some() || p.useless || p.info.is_empty() => "already probed",
            _ if !self.map.is_up(shard.osd) => "osd is down",
            Some(p) if p.asked_full => "querying",
            None if self.recovery.was_asked(shard, self.map.up_from(shard.osd)) => "querying",
            _ => "not queried",
        };
        self.might_have_unfound().map(|shard| Holder { shard, status: status(shard) }).collect()
    }

    /// Whether every OSD that may have an unfound object was asked, is gone from the map, or is
    /// declared lost.
    fn all_asked_or_lost(&self) -> bool {
        self.unfound_holders().iter().all(|h| {
            let declared = self.map.lost_at(h.shard.osd) > self.map.up_from(h.shard.osd);
            h.status == "already probed" || declared || !self.map.exists(h.shard.osd)
        })
    }

    /// Objects that this copy or an acting replica lacks.
    pub fn lacking(&self) -> BTreeMap<&ObjectId, Lacking> {
        let peers = || self.peers.iter().filter_map(|(o, p)| Some((*o, p, p.missing.as_ref()?)));
        let mut all: BTreeMap<&ObjectId, MissingItem> = BTreeMap::new();
        for (_, _, missing) in peers().filter(|(o, ..)| self.mapping.acting.contains(o)) {
            all.extend(missing.iter().map(|(oid, item)| (oid, *item)));
        }
        all.extend(self.missing.iter().map(|(oid, item)| (oid, *item)));
        let with = |(oid, item): (_, MissingItem)| {
            let mut locations: Vec<PgShard> = peers()
                .filter(|(o, p, m)| {
                    let knows = p.info.last_update >= item.need || self.mapping.acting.contains(o);
                    self.map.is_up(o.osd)
                        && knows
                        && !p.info.removing
                        && p.info.last_backfill.covers(oid)
                        && !m.contains(oid)
                })
                .map(|(o, ..)| o)
                .collect();
            if !self.missing.contains(oid) {
                locations.push(self.me);
                locations.sort();
            }
            (oid, Lacking { item, locations, unfound: self.recovery.is_unfound(oid) })
        };
        all.into_iter().map(with).collect()
    }

    /// An operator gives up everything that is unfound. Returns how many objects that are; the host
    /// hears with [`Action::Reply`] when it is durable everywhere.
    pub fn mark_unfound_lost(&mut self, token: OpToken, how: GiveUp) -> Result<usize, LostRefused> {
        let unfound = self.may_be_given_up(how)?;
        let count = unfound.len();
        let mut op = RepOp {
            entries: Default::default(),
            stats: StatSum::default(),
            trim_to: Eversion::default(),
            committed: self.final_to(),
            payload: Payload::default(),
            log_only: true,
        };
        let mut persist = Persist::default();
        let mut learned = merge::Outcome::default();
        for (oid, item) in unfound {
            let logged = Logged::new(self.loss(oid, &item, how));
            persist.rows.set.push(rows::log_row(&logged));
            self.log_loss(logged.clone(), &mut learned);
            op.entries.push(logged);
        }
        self.tell_of_losses(&op);
        // It is not known how large they were.
        self.info.stats_invalid = true;
        self.update_last_complete();
        self.missing_rows(&learned.touched, &mut persist);
        persist.remove_objects.extend(learned.remove);
        self.info_rows(&mut persist);
        let persist = self.persist(persist);
        let version = self.info.last_update;
        let deleted = op.entries.iter().filter(|e| e.entry.op == LogOp::LostDelete);
        let gone: Vec<ObjectId> = deleted.map(|e| e.entry.oid.clone()).collect();
        self.recovery.note_losing(version, gone.iter().cloned());
        let waits = Waits::All;
        self.inflight.push_back(InFlight { version, token, persist, oids: gone.into(), waits });
        self.find_unfound();
        self.check_recovery();
        let text = format!("pg has {count} objects unfound and apparently lost marking");
        self.actions.push_back(Action::ClusterLog { prio: LogPriority::DEBUG, text });
        Ok(count)
    }

    /// What is unfound, if an operator may give it up.
    fn may_be_given_up(&self, how: GiveUp) -> Result<Vec<(ObjectId, MissingItem)>, LostRefused> {
        if self.phase != Phase::Active {
            return Err(LostRefused::NotPrimary);
        }
        if self.backend().rebuilds() && how == GiveUp::Revert {
            return Err(LostRefused::OnlyDelete);
        }
        let unfound: Vec<(ObjectId, MissingItem)> = self
            .recovery
            .unfound_objects()
            .filter_map(|o| Some((o.clone(), self.lacked(o)?)))
            .collect();
        if unfound.is_empty() {
            return Err(LostRefused::NothingUnfound);
        }
        if !self.all_asked_or_lost() {
            return Err(LostRefused::NotAllAsked(unfound.len()));
        }
        Ok(unfound)
    }

    /// The log entry with which an unfound object is given up.
    fn loss(&self, oid: ObjectId, item: &MissingItem, how: GiveUp) -> LogEntry {
        let older = match how {
            GiveUp::Revert => {
                Some(self.newest_available(&oid, item)).filter(|v| *v != Eversion::default())
            }
            GiveUp::Delete => None,
        };
        LogEntry {
            op: if older.is_some() { LogOp::LostRevert } else { LogOp::LostDelete },
            oid,
            version: Eversion {
                epoch: self.map.epoch(),
                version: self.info.last_update.version + 1,
            },
            prior_version: item.need,
            user_version: 0,
            reqid: ReqId::default(),
            mtime: self.now,
            return_code: 0,
            snaps: Vec::new(),
            op_returns: Vec::new(),
            reverting_to: older,
            written: self.backend().names_all(),
        }
    }

    /// This copy logs a loss, and learns what it says.
    fn log_loss(&mut self, logged: LoggedRef, learned: &mut merge::Outcome) {
        let filled = &self.info.last_backfill;
        merge::learn(&mut self.missing, filled, &logged.entry, learned, merge::WHOLE);
        self.info.last_update = logged.entry.version;
        self.log.push(logged.clone());
        self.note_change(&logged.entry);
        self.disturb_scrub(&logged.entry.oid);
    }

    /// The other copies learn of losses, also if one should have the content: it is copied then.
    fn tell_of_losses(&mut self, op: &RepOp) {
        for shard in self.replicas().into_iter().chain(self.followers().collect::<Vec<_>>()) {
            if let Some(peer) = self.peers.get_mut(&shard)
                && let Some(missing) = &mut peer.missing
            {
                let mut theirs = merge::Outcome::default();
                for e in &op.entries {
                    let filled = &peer.info.last_backfill;
                    merge::learn(missing, filled, &e.entry, &mut theirs, merge::WHOLE);
                }
            }
            if self.backend().is_lazy() {
                self.send_log(shard, Eversion::default(), Payload::default(), true);
            } else {
                self.send(shard, PeerMsg::RepOp(Box::new(op.clone())));
            }
        }
    }

    /// The newest version of an object that this copy, an acting replica or a copy that is filled
    /// has.
    fn newest_available(&self, oid: &ObjectId, own: &MissingItem) -> Eversion {
        let theirs = self
            .mapping
            .acting
            .iter()
            .copied()
            .chain(self.followers())
            .filter_map(|o| Some(self.peers.get(&o)?.missing.as_ref()?.get(oid)?.have))
            .max();
        own.have.max(theirs.unwrap_or_default())
    }
}
