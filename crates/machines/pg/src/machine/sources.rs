//! Reservations of OSDs that are read for recovery and backfill.
//!
//! ```text
//!   own OSD ─► ReserveSource to each OSD that is read, in order ─► replicas or targets
//! ```
//!
//! Of an OSD with an acting copy, recovery has a reservation anyway. So this is about copies that
//! do not act, and, where objects are made of shards, about those that a backfill reads: the old
//! holder of a shard that moves, or all acting copies if a shard must be computed. An object that
//! cannot be had from these adds the copies that have it; then all reservations are given back and
//! asked for anew, so that their order stays. Objects that clients wait for need none.
//!
//! An OSD is asked once for a PG, whatever copies it has, or it might wait for itself. An answer
//! names its question, because one to an earlier question may be on its way.

use std::collections::{BTreeMap, BTreeSet};

use types::{ObjectId, OsdId, PgShard};

use crate::action::Action;
use crate::info::Backfill;
use crate::msg::PeerMsg;
use crate::reserver::Side;

use super::parts::backfill::{self, OwnTurn};
use super::parts::reservation::Stage;
use super::{Pg, Phase};

impl Pg {
    /// Copies that are read, and of which OSDs a reservation was asked: those of recovery or of a
    /// backfill, whichever goes on.
    pub fn sources_asked(&self) -> impl Iterator<Item = PgShard> {
        self.reservation.sources.asked.iter().copied()
    }

    fn recovery_has_turn(&self) -> bool {
        self.reservation.stage != Stage::Idle
    }

    /// Whether a copy that does not take part can be read.
    fn is_stray_source(&self, copy: PgShard) -> bool {
        !self.mapping.acting.contains(&copy)
            && !self.backfill.targets.contains_key(&copy)
            && self.map.is_up(copy.osd)
            && self.peers.get(&copy).is_some_and(|p| {
                !p.info.removing && p.info.last_backfill != Backfill::Nothing && p.missing.is_some()
            })
    }

    /// The copy from which a shard is copied to another copy at the same position.
    fn holder(&self, of: PgShard) -> Option<PgShard> {
        let others = self.mapping.acting.iter().copied();
        let strays = self.peers.keys().copied().filter(|c| self.is_stray_source(*c));
        others.chain(strays).find(|c| c.shard == of.shard && *c != of)
    }

    /// What is to be read: a copy on each OSD, in the order of the OSDs.
    fn wanted_sources(&self) -> BTreeMap<OsdId, PgShard> {
        let recovery = self.recovery_has_turn();
        let mut wanted: Vec<PgShard> = self.reservation.sources.more.iter().copied().collect();
        if self.backend().rebuilds() {
            let lacks = |c: &PgShard| match *c == self.me {
                true => !self.missing.is_empty(),
                false => self
                    .peers
                    .get(c)
                    .and_then(|p| p.missing.as_ref())
                    .is_some_and(|m| !m.is_empty()),
            };
            let gets: Vec<PgShard> = if recovery {
                self.mapping.acting.iter().copied().filter(lacks).collect()
            } else {
                let filled = |t: &backfill::Target| t.stage != backfill::Stage::Done;
                self.backfill.targets.iter().filter(|(_, t)| filled(t)).map(|(c, _)| *c).collect()
            };
            for copy in gets {
                match self.holder(copy) {
                    Some(holder) => wanted.push(holder),
                    None if recovery => {}
                    None => wanted.extend(self.replicas()),
                }
            }
        }
        let acts = |osd: OsdId| self.mapping.acting.iter().any(|c| c.osd == osd);
        let mut by_osd = BTreeMap::new();
        for copy in wanted {
            let granted = copy.osd == self.me.osd || (recovery && acts(copy.osd));
            if !granted && self.map.is_up(copy.osd) {
                by_osd.entry(copy.osd).or_insert(copy);
            }
        }
        by_osd
    }

    /// Whether a copy may be read with the reservations that are held.
    pub(super) fn may_read_from(&self, copy: PgShard) -> bool {
        let sources = &self.reservation.sources;
        copy.osd == self.me.osd
            || (self.reservation.is_held() && self.mapping.acting.contains(&copy))
            || self.filling().any(|t| t == copy)
            || (sources.held && sources.asked.iter().any(|c| c.osd == copy.osd))
    }

    /// This OSD has its reservation: those of the OSDs that are read come next.
    pub(super) fn ask_sources(&mut self) {
        let sources = &mut self.reservation.sources;
        sources.round += 1;
        sources.held = false;
        sources.asked.clear();
        self.ask_next_source();
    }

    fn source_priority(&self) -> u8 {
        if self.recovery_has_turn() { self.recovery_priority() } else { self.backfill_priority() }
    }

    fn ask_next_source(&mut self) {
        let last = self.reservation.sources.asked.last().map(|c| c.osd);
        let next = self.wanted_sources().into_values().find(|c| last.is_none_or(|l| c.osd > l));
        let Some(copy) = next else {
            self.reservation.sources.held = true;
            self.sources_reserved();
            return;
        };
        let up_from = self.map.up_from(copy.osd);
        self.reservation.sources.asked.push(copy);
        self.reservation.sources.up_from.insert(copy.osd, up_from);
        let (priority, round) = (self.source_priority(), self.reservation.sources.round);
        self.send(copy, PeerMsg::ReserveSource { priority, round });
    }

    fn sources_reserved(&mut self) {
        if self.reservation.stage == Stage::Sources {
            self.ask_next_replica();
        } else {
            self.backfill_sources_reserved();
        }
    }

    /// An OSD lets this one read.
    pub(super) fn handle_source_reserved(&mut self, from: PgShard, round: u32) {
        let sources = &self.reservation.sources;
        if sources.round == round && !sources.held && sources.asked.last() == Some(&from) {
            self.ask_next_source();
        }
    }

    /// An OSD does not let this one read any more.
    pub(super) fn handle_source_revoked(&mut self, from: PgShard, round: u32) {
        let sources = &self.reservation.sources;
        if sources.round == round && sources.asked.contains(&from) {
            self.reserve_anew();
        }
    }

    /// All reservations are given back, and asked for in their order.
    fn reserve_anew(&mut self) {
        if self.recovery_has_turn() {
            self.release_recovery();
        } else {
            self.release_backfill();
        }
        self.check_recovery();
    }

    /// Gives the reservations of OSDs that are read back.
    pub(super) fn release_sources(&mut self) {
        let sources = &mut self.reservation.sources;
        sources.held = false;
        sources.round += 1;
        sources.up_from.clear();
        let asked = std::mem::take(&mut sources.asked);
        for copy in asked {
            self.send(copy, PeerMsg::Release);
        }
    }

    /// How urgent this is has changed.
    pub(super) fn ask_sources_again(&mut self) {
        let (priority, round) = (self.source_priority(), self.reservation.sources.round);
        for copy in self.reservation.sources.asked.clone() {
            self.send(copy, PeerMsg::ReserveSource { priority, round });
        }
    }

    /// An object cannot be had from the copies that may be read. Those that have it are asked too,
    /// if they can be; false if that does not help.
    pub(super) fn read_more(&mut self, oid: &ObjectId, from: &[PgShard]) -> bool {
        if self.phase != Phase::Active || self.recovery.urgent.contains(oid) {
            return false;
        }
        if matches!(self.reservation.stage, Stage::Own | Stage::Sources | Stage::Replica(_))
            || matches!(self.backfill.turn, OwnTurn::Asked | OwnTurn::Sources)
        {
            // It begins when they have come.
            self.recovery.active.remove(oid);
            return true;
        }
        let new: BTreeSet<PgShard> = from
            .iter()
            .copied()
            .filter(|c| !self.may_read_from(*c) && !self.backfill.targets.contains_key(c))
            .filter(|c| self.map.is_up(c.osd) && !self.reservation.sources.more.contains(c))
            .collect();
        if new.is_empty() || !(self.recovery_has_turn() || self.backfill_wants_turn()) {
            return false;
        }
        self.recovery.active.remove(oid);
        self.reservation.sources.more.extend(new);
        self.reserve_anew();
        true
    }

    /// Asks anew if other OSDs are to be read, or one that was asked has gone or forgotten it.
    pub(super) fn check_sources(&mut self) {
        let sources = &self.reservation.sources;
        let asked = |osd: OsdId| sources.asked.iter().any(|c| c.osd == osd);
        let lost = sources.asked.iter().any(|c| {
            !self.map.is_up(c.osd) || sources.up_from.get(&c.osd) != Some(&self.map.up_from(c.osd))
        });
        let more = sources.held && !self.wanted_sources().into_keys().all(asked);
        if !lost && !more {
            return;
        }
        if self.recovery_has_turn() {
            self.release_recovery();
        } else {
            self.release_backfill();
        }
    }

    // --- the other side ---

    pub(super) fn handle_reserve_source(&mut self, priority: u8, round: u32) {
        self.reservation.source_round = round;
        self.actions.push_back(Action::Reserve { side: Side::Source, backfill: false, priority });
    }

    /// What this OSD says of reading here. The copy need not act.
    pub(super) fn tell_reader(&mut self, granted: bool) {
        let there = !matches!(self.phase, Phase::Reset | Phase::Removing | Phase::Gone);
        let Some(primary) = self.mapping.primary.filter(|_| there) else { return };
        let round = self.reservation.source_round;
        let msg = match granted {
            true => PeerMsg::SourceReserved { round },
            false => PeerMsg::SourceRevoked { round },
        };
        self.send(primary, msg);
    }
}
