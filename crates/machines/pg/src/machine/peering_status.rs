//! Why a primary does not serve, and what would help, for people (Ceph: what the states of
//! `PeeringState` answer to `QueryState`).

use std::collections::BTreeSet;

use types::{Epoch, Eversion, OsdId, PgShard, Utime};

use crate::info::{Backfill, PgInfo};
use crate::past_intervals::PastIntervals;

use super::peering::{is_candidate, newest_started};
use super::{Pg, Phase};

/// The OSDs that a primary asks, and those that keep it from going on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeeringStatus<'a> {
    /// Earlier intervals that may have taken writes.
    pub past: &'a PastIntervals,
    /// The OSDs that are asked, or were.
    pub probing: Vec<PgShard>,
    /// Of some interval no OSD can be asked.
    pub blocked: bool,
    /// The OSDs that would be asked as well if they were up.
    pub down: Vec<OsdId>,
    /// Those of them that may end the wait by their start or loss, and when they were last declared
    /// lost.
    pub blocked_by: Vec<(OsdId, Epoch)>,
    /// Where copies are shards: which are too few.
    pub shortage: Vec<String>,
    /// What the state waits for.
    pub waits: WaitsFor,
}

/// The reason why a primary does not serve yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WaitsFor {
    /// Infos of these.
    Infos(BTreeSet<PgShard>),
    /// OSDs that are down ([`PeeringStatus::blocked_by`]).
    Down,
    /// A copy that can be trusted.
    Complete(Incomplete),
    /// The log of this one.
    Log(PgShard),
    /// Another acting set in the map.
    Acting,
    /// What these lack.
    Missing(BTreeSet<PgShard>),
    /// Its `up_thru` in the map.
    UpThru,
    /// The end of the read leases of earlier intervals.
    Leases,
    /// The beginning.
    Nothing,
}

/// Why no copy can be trusted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Incomplete {
    /// The newest activation that any copy knows of: a copy that did not take part in it may lack
    /// what was acknowledged since.
    pub started: Epoch,
    /// Whether only the history of copies tells of it, and no whole copy that is here took part.
    pub history_only: bool,
    /// The copies that are here.
    pub copies: Vec<RuledOut>,
    /// OSDs that are down and acted in that activation or later, and when they were last declared
    /// lost.
    pub may_help: Vec<(OsdId, Epoch)>,
}

/// A copy that cannot be trusted, at least not alone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RuledOut {
    /// The copy.
    pub shard: PgShard,
    /// The last activation that it took part in.
    pub last_epoch_started: Epoch,
    /// Up to where it is filled.
    pub last_backfill: Backfill,
    /// Its newest log entry.
    pub last_update: Eversion,
    /// The reason why it does not count.
    pub why: &'static str,
}

impl RuledOut {
    fn new(shard: PgShard, info: &PgInfo, started: Epoch) -> Self {
        let why = if info.is_empty() && !info.is_incomplete() {
            "there is no copy"
        } else if info.removing {
            "the copy is being removed"
        } else if info.is_incomplete() {
            "the copy was never filled completely"
        } else if !is_candidate(info, started) {
            "the copy did not take part in the newest activation"
        } else {
            "its log and that of this OSD have nothing in common"
        };
        let (last_backfill, last_update) = (info.last_backfill.clone(), info.last_update);
        Self { shard, last_epoch_started: info.last_epoch_started, last_backfill, last_update, why }
    }
}

impl Pg {
    /// The states that the machine is in, the innermost first, and since when, as `pg query` of
    /// Ceph lists them. What [`Pg::phase_name`] tells of a PG that is active is not one of them.
    pub fn states(&self) -> Vec<(&'static str, Utime)> {
        let (phase, outer, t) = (self.phase_name(), self.outer_name(), &self.times);
        let mut states = Vec::new();
        if outer != "Started/Primary/Active" {
            states.push((phase, t.entered));
        }
        if outer != phase {
            states.push((outer, t.within));
        }
        if phase.starts_with("Started/") {
            states.push(("Started", t.started));
        }
        states
    }

    /// The state that [`Pg::phase_name`] is a part of: peering or active, if it is one of these.
    pub(super) fn outer_name(&self) -> &'static str {
        let phase = self.phase_name();
        ["Started/Primary/Peering", "Started/Primary/Active"]
            .into_iter()
            .find(|outer| phase.starts_with(outer))
            .unwrap_or(phase)
    }

    /// OSDs that the PG waits for (Ceph: `pg_stat_t::blocked_by`).
    pub(super) fn blocked_by(&self) -> BTreeSet<OsdId> {
        match &self.phase {
            Phase::Down => self.prior.down.clone(),
            Phase::Incomplete => self
                .prior
                .down
                .iter()
                .copied()
                .chain(self.incomplete().may_help.into_iter().map(|(osd, _)| osd))
                .collect(),
            Phase::GetInfo { waiting }
            | Phase::GetMissing { waiting }
            | Phase::Activating { waiting, .. } => waiting.iter().map(|c| c.osd).collect(),
            Phase::GetLog { from, .. } => [from.osd].into(),
            _ => BTreeSet::new(),
        }
    }

    /// Whom this primary asks, and what keeps it from serving; `None` if this copy does not lead or
    /// serves.
    pub fn peering_status(&self) -> Option<PeeringStatus<'_>> {
        if !self.is_primary() {
            return None;
        }
        let waits = match &self.phase {
            Phase::GetInfo { waiting } => WaitsFor::Infos(waiting.clone()),
            Phase::Down => WaitsFor::Down,
            Phase::Incomplete => WaitsFor::Complete(self.incomplete()),
            Phase::GetLog { from, .. } => WaitsFor::Log(*from),
            Phase::WaitActing => WaitsFor::Acting,
            Phase::GetMissing { waiting } => WaitsFor::Missing(waiting.clone()),
            Phase::WaitUpThru if self.needs_up_thru() => WaitsFor::UpThru,
            Phase::WaitUpThru => WaitsFor::Leases,
            Phase::Reset => WaitsFor::Nothing,
            _ => return None,
        };
        Some(PeeringStatus {
            past: &self.past,
            probing: self.prior.probe.keys().copied().collect(),
            blocked: self.prior.blocked,
            down: self.prior.down.iter().copied().collect(),
            blocked_by: self.prior.blocked_by.iter().map(|(osd, lost)| (*osd, *lost)).collect(),
            shortage: self.shortage(),
            waits,
        })
    }

    /// Which shards are here and too few, and which of the others are down.
    fn shortage(&self) -> Vec<String> {
        let told = |what: String, all: &[PgShard], here: &dyn Fn(&PgShard) -> bool| {
            let mut survivors = all.iter().copied().filter(|c| here(c));
            let text = self.backend().shortage(&mut survivors)?;
            let away = all.iter().filter(|c| !here(c) && self.map.exists(c.osd));
            let away: Vec<String> =
                away.map(|c| format!("shard {} on osd.{}", c.shard.0, c.osd)).collect();
            let away = if away.is_empty() { "no other".to_owned() } else { away.join(", ") };
            Some(format!("{what}: {text}; {away} may help"))
        };
        match self.phase {
            Phase::Down => {
                let since = self.info.history.last_epoch_started;
                let open = self.past.intervals.iter().filter(|i| i.last >= since);
                open.filter_map(|i| {
                    let here =
                        |c: &PgShard| self.map.is_up(c.osd) && self.map.lost_at(c.osd) <= i.first;
                    told(format!("epochs {} to {}", i.first, i.last), &i.acting, &here)
                })
                .collect()
            }
            Phase::Incomplete => {
                let whole = |i: &PgInfo| !i.is_incomplete() && !i.is_empty();
                let here = |c: &PgShard| self.info_of(*c).is_some_and(whole);
                let mut all: Vec<PgShard> = self.peers.keys().copied().chain([self.me]).collect();
                let held = self.past.holders.keys().filter(|c| !self.map.is_up(c.osd));
                all.extend(held);
                all.sort();
                all.dedup();
                told("now".into(), &all, &here).into_iter().collect()
            }
            _ => Vec::new(),
        }
    }

    fn incomplete(&self) -> Incomplete {
        let infos =
            || self.peers.iter().map(|(shard, p)| (*shard, &p.info)).chain([(self.me, &self.info)]);
        let started = newest_started(infos().map(|(_, i)| i)).unwrap_or_default();
        let mut copies: Vec<RuledOut> =
            infos().map(|(shard, info)| RuledOut::new(shard, info, started)).collect();
        copies.sort_by_key(|c| c.shard);
        let acted =
            self.past.holders.iter().filter(|(_, until)| **until >= started).map(|(c, _)| c.osd);
        let may_help: BTreeSet<OsdId> =
            acted.filter(|osd| self.map.exists(*osd) && !self.map.is_up(*osd)).collect();
        Incomplete {
            started,
            history_only: !infos().any(|(_, i)| is_candidate(i, started)),
            copies,
            may_help: may_help.into_iter().map(|osd| (osd, self.map.lost_at(osd))).collect(),
        }
    }
}
