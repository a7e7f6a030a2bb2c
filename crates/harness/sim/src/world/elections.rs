//! Which monitors reach each other, which of them leads, and which sessions there are.

use types::OsdId;

use super::parts::Between;
use super::parts::Party;
use super::{Ev, MS, World, mon_end};

impl World {
    /// Whether a monitor's process runs, and does not stand still.
    pub(super) fn is_up(&self, mon: usize) -> bool {
        self.group.mons[mon].running && self.stopped[mon] <= self.now
    }

    /// Whether nothing is silent between two ends.
    pub(super) fn connected(&self, a: i64, b: i64) -> bool {
        [(a, b), (b, a)].iter().all(|link| self.blocked.get(link).is_none_or(|t| *t <= self.now))
    }

    /// The monitors that one reaches, and which reach it.
    pub(super) fn reaches(&self, mon: usize) -> Vec<usize> {
        let there = |other: &usize| {
            *other == mon || self.is_up(*other) && self.connected(mon_end(mon), mon_end(*other))
        };
        (0..self.group.mons.len()).filter(there).collect()
    }

    /// The leader, if it can do anything.
    pub(super) fn working_leader(&self) -> Option<usize> {
        self.group
            .leader
            .filter(|l| self.is_up(*l) && self.group.is_majority(self.reaches(*l).len()))
    }

    /// Whether a monitor leads, or hears of a leader that can do anything.
    fn is_in_quorum(&self, mon: usize) -> bool {
        self.is_up(mon)
            && self.working_leader().is_some_and(|l| {
                self.group.mons[mon].follows == Some(l) && self.reaches(l).contains(&mon)
            })
    }

    /// Whether a monitor takes new sessions. One that is alone does until it notices.
    pub(super) fn takes_sessions(&self, mon: usize) -> bool {
        self.is_up(mon) && (!self.group.mons[mon].out || self.is_in_quorum(mon))
    }

    /// Something happened to monitors, or between them. If none leads any more there is an
    /// election, and a monitor that hears of no leader closes its sessions after a while.
    pub(super) fn watch_monitors(&mut self) {
        if self.working_leader().is_none() {
            let when = self.rng.range(300 * MS, 2_500 * MS);
            self.after(when, Ev::Elect(self.group.term));
        }
        for mon in 0..self.group.mons.len() {
            if !self.is_in_quorum(mon) {
                let when = self.rng.range(1_000 * MS, 4_000 * MS);
                self.after(when, Ev::Out(mon));
            }
        }
    }

    /// The monitors elect a leader, if none leads as in this term.
    pub(super) fn elect(&mut self, term: u64) {
        if self.group.term != term || self.working_leader().is_some() {
            return;
        }
        let able = |m: &usize| self.is_up(*m) && self.group.wins(*m, &self.reaches(*m));
        let able: Vec<usize> = (0..self.group.mons.len()).filter(able).collect();
        let Some(&leader) = able.get(self.rng.range(0, able.len() as u64) as usize) else {
            self.mark("no quorum");
            let when = self.rng.range(300 * MS, 1_000 * MS);
            return self.after(when, Ev::Elect(term));
        };
        if term > 0 {
            self.mark("leader elected");
        }
        let lost = self.group.under_way.clone();
        let voters = self.reaches(leader);
        let deposed: Vec<usize> = voters
            .iter()
            .copied()
            .filter(|v| *v != leader && self.group.mons[*v].follows == Some(*v))
            .collect();
        let first = self.group.elect(leader, &voters);
        for mon in deposed {
            self.step_down(mon);
        }
        if lost.is_some_and(|e| !e.maps.is_empty()) {
            self.mark(if first.maps.is_empty() {
                "change lost with its leader"
            } else {
                "change kept by the next leader"
            });
        }
        self.group.mons[leader].out = false;
        self.replicate(leader, &first);
        let upto = first.at - 1;
        if self.group.apply(leader, leader, first.term, upto) {
            self.publish(leader);
        }
        self.pass_on(leader);
    }

    /// A monitor that still hears of no leader closes its sessions.
    pub(super) fn out(&mut self, mon: usize) {
        if self.group.mons[mon].out || !self.is_up(mon) || self.is_in_quorum(mon) {
            return;
        }
        self.group.mons[mon].out = true;
        self.group.mons[mon].kept.clear();
        let parties = self.parties(mon);
        if !parties.is_empty() {
            self.mark("sessions closed without quorum");
        }
        for party in parties {
            let (low, high) = if self.connected(party.end(), mon_end(mon)) {
                (MS, 100 * MS)
            } else {
                (300 * MS, 3_000 * MS)
            };
            let number = self.sessions[&party].number;
            let when = self.rng.range(low, high);
            self.after(when, Ev::Doubt(party, number, true));
        }
    }

    /// A monitor's process starts, with what is on its disk, or goes on where it stood still.
    pub(super) fn start_monitor(&mut self, mon: usize) {
        if self.stopped[mon] > self.now {
            return;
        }
        if !std::mem::replace(&mut self.group.mons[mon].running, true)
            && let Some(leader) = self.group.leader
        {
            // What was on its way to it was lost.
            if let Some(entry) = self.group.under_way.clone() {
                self.between(leader, mon, Between::Append(entry));
            }
            let (term, upto) = (self.group.term, self.group.commits.len() - 1);
            self.between(leader, mon, Between::Agreed { term, upto });
        }
        self.watch_monitors();
        self.decide();
    }

    /// A monitor has heard of its leader, perhaps of a new one.
    pub(super) fn hears_of_leader(&mut self, mon: usize, led: bool) {
        self.group.mons[mon].out = false;
        if led && self.group.mons[mon].follows != Some(mon) {
            self.step_down(mon);
        }
        self.pass_on(mon);
    }

    /// A monitor does not lead any more. What it was to decide is dropped: the senders ask
    /// again elsewhere.
    fn step_down(&mut self, mon: usize) {
        self.mark("leader stepped down");
        let kept = &mut self.group.mons[mon].kept;
        let asked: Vec<(OsdId, u64)> =
            kept.values().filter(|k| k.sent.is_some()).map(|k| (k.osd, k.session)).collect();
        kept.retain(|_, k| k.sent.is_none());
        for (osd, session) in asked {
            self.doubt(Party::Osd(osd), session, true);
        }
    }
}
