//! The monitors: requests that are passed on and decided, and what is agreed on.

use std::rc::Rc;

use pg::MapView;
use types::{Epoch, OsdId, SpgId};

use super::parts::{Between, Party};
use super::{Ev, MGR, MS, World, mon_end};
use crate::bug::Bug;
use crate::monitor::MonMsg;
use crate::quorum::{Entry, Kept};

impl World {
    /// A command of an operator, or what is said again until it is heard.
    pub(super) fn command(&mut self, msg: MonMsg) {
        let number = self.group.number();
        self.group.commands.push((number, msg));
        self.decide();
    }

    /// An OSD tells its monitor something.
    pub(super) fn tell_monitor(&mut self, osd: OsdId, msg: MonMsg) {
        // The manager, which has no sessions, tells the leader.
        if matches!(msg, MonMsg::Ready(..)) {
            return self.on_link((osd.0.into(), MGR), Ev::Mon(msg));
        }
        match self.sessions.get(&Party::Osd(osd)).copied() {
            Some(s) => self.on_link(
                (osd.0.into(), mon_end(s.mon)),
                Ev::FromOsd { osd, mon: s.mon, session: s.number, msg },
            ),
            // It is told with the next session.
            None => self.mark("no session"),
        }
    }

    /// A message of an OSD arrives.
    pub(super) fn hear_osd(&mut self, osd: OsdId, mon: usize, session: u64, msg: MonMsg) {
        let party = Party::Osd(osd);
        let current = self.session_of(party, session).is_some();
        if !self.group.mons[mon].running
            || !current && (self.group.mons[mon].out || self.rng.permille(500))
        {
            return self.mark("request to the monitors lost");
        }
        if let MonMsg::Subscribe(_, first) = msg {
            if let Some(s) = self.session_of(party, session) {
                s.told = Some(Epoch(first.0.saturating_sub(1)));
                self.send_maps(party);
            }
            return;
        }
        if !current {
            self.mark("request of a session that is over");
        }
        let request = self.group.number();
        self.group.mons[mon].kept.insert(request, Kept { osd, session, msg, sent: None });
        self.pass_on(mon);
    }

    /// A monitor hands what its sessions ask for to the leader: once to each.
    pub(super) fn pass_on(&mut self, mon: usize) {
        let m = &self.group.mons[mon];
        let (Some(leader), term) = (m.follows, m.term) else { return };
        let due: Vec<u64> = m
            .kept
            .iter()
            .filter(|(_, k)| k.sent != Some(term))
            .map(|(request, _)| *request)
            .collect();
        for request in due {
            let Some(kept) = self.group.mons[mon].kept.get_mut(&request) else { continue };
            let again = kept.sent.replace(term).is_some();
            let msg = kept.msg.clone();
            if again {
                self.mark("request passed on twice");
            }
            if leader == mon {
                self.asked(mon, mon, request, term, msg);
            } else {
                self.between(mon, leader, Between::Passed { request, term, msg });
            }
        }
    }

    /// A request is at the monitor that led in this term.
    fn asked(&mut self, via: usize, mon: usize, request: u64, term: u64, msg: MonMsg) {
        // What is for another term than this monitor leads in, its follower passes on again.
        if self.group.leader == Some(mon) && self.group.term == term {
            self.group.inbox.push((via, request, msg));
            self.decide();
        }
    }

    /// A monitor tells another something.
    pub(super) fn between(&mut self, from: usize, to: usize, what: Between) {
        let link = (mon_end(from), mon_end(to));
        if matches!(what, Between::Agreed { .. })
            && self.rng.permille(self.scenario.late_maps)
            && !self.calm
        {
            self.mark("monitor behind");
            let late = self.now + self.rng.range(100 * MS, 3_000 * MS);
            let last = self.links.entry(link).or_default();
            *last = (*last).max(late);
        }
        self.on_link(link, Ev::Between { from, to, what });
    }

    /// The leader decides what it was asked for.
    pub(super) fn decide(&mut self) {
        let Some(leader) = self.group.deciding().filter(|l| self.is_up(*l)) else { return };
        let (inbox, commands) =
            (std::mem::take(&mut self.group.inbox), self.group.commands.clone());
        if inbox.is_empty() && commands.is_empty() {
            return;
        }
        for (_, request, msg) in &inbox {
            if self.group.executed.contains(request) {
                self.mark("request executed twice");
            }
            if self.monitor.is_late_boot(msg) {
                self.mark("late boot");
            }
        }
        let asked: Vec<_> = inbox.iter().map(|(via, request, _)| (*via, *request)).collect();
        let numbers: Vec<_> = commands.iter().map(|(number, _)| *number).collect();
        let draft = self.monitor.draft(
            commands
                .into_iter()
                .chain(inbox.into_iter().map(|(_, n, m)| (n, m)))
                .map(|(_, msg)| msg),
        );
        if draft.maps.is_empty() && draft.oldest == self.monitor.oldest {
            self.group.commands.clear();
            return self.answer_requests(leader, &asked);
        }
        let entry = Entry {
            term: self.group.term,
            at: self.group.commits.len(),
            maps: draft.maps,
            oldest: draft.oldest,
            asked,
            commands: numbers,
        };
        let entry = self.group.propose(entry);
        self.replicate(leader, &entry);
    }

    /// What the leader has proposed goes to all.
    pub(super) fn replicate(&mut self, leader: usize, entry: &Rc<Entry>) {
        for mon in 0..self.group.mons.len() {
            if mon == leader {
                self.group.append(leader, leader, entry);
                let flushed = self.rng.range(200, 5 * MS);
                let what = Between::Has { term: entry.term, at: entry.at };
                self.after(flushed, Ev::Between { from: leader, to: leader, what });
            } else {
                self.between(leader, mon, Between::Append(entry.clone()));
            }
        }
        if self.scenario.bug == Bug::ShowUncommitted {
            self.publish(leader);
        }
    }

    /// A message between monitors arrives.
    pub(super) fn hear_monitor(&mut self, from: usize, to: usize, what: Between) {
        if !self.group.mons[to].running {
            return;
        }
        let led = self.group.mons[to].follows == Some(to);
        match what {
            Between::Passed { request, term, msg } => self.asked(from, to, request, term, msg),
            Between::Answered { request } => drop(self.group.mons[to].kept.remove(&request)),
            Between::Append(entry) => {
                if self.group.append(to, from, &entry) {
                    let flushed = Between::Has { term: entry.term, at: entry.at };
                    self.between(to, from, flushed);
                }
                self.hears_of_leader(to, led);
            }
            Between::Has { term, at } => {
                if self.group.leader == Some(to)
                    && let Some(entry) = self.group.acknowledged(from, term, at)
                {
                    self.agreed(to, &entry);
                }
            }
            Between::Agreed { term, upto } => {
                if self.group.apply(to, from, term, upto) {
                    self.publish(to);
                }
                self.hears_of_leader(to, led);
            }
        }
    }

    /// A majority has what the leader proposed.
    fn agreed(&mut self, leader: usize, entry: &Rc<Entry>) {
        let found = self.oracle.agreed(entry, &self.group);
        self.note(found);
        for map in &entry.maps {
            self.monitor.commit(map);
            self.note_snapshots();
        }
        self.monitor.trim(entry.oldest);
        if let Some(first) = entry.maps.first() {
            self.find_dead(first.epoch);
            let found = self.oracle.came_up(first.epoch, &self.osds, &self.monitor);
            self.note(found);
        }
        let (term, upto) = (entry.term, entry.at);
        for mon in (0..self.group.mons.len()).filter(|m| *m != leader) {
            self.between(leader, mon, Between::Agreed { term, upto });
        }
        self.group.apply(leader, leader, term, upto);
        self.publish(leader);
        self.answer_requests(leader, &entry.asked);
        self.pass_on(leader);
        self.decide();
    }

    fn answer_requests(&mut self, leader: usize, asked: &[(usize, u64)]) {
        for &(via, request) in asked {
            self.group.executed.insert(request);
            if via == leader {
                self.group.mons[via].kept.remove(&request);
            } else {
                self.between(leader, via, Between::Answered { request });
            }
        }
    }

    /// Others notice processes that came up in these maps and are not there: they were spoken for
    /// late.
    fn find_dead(&mut self, since: Epoch) {
        let map = self.monitor.map().clone();
        for osd in 0..self.osds.len() {
            let (osd, runs) = (self.osds[osd].id, self.osds[osd].incarnation);
            let up = map.incarnation(osd).filter(|i| *i != runs && map.up_from(osd) >= since);
            if let Some(incarnation) = up {
                let noticed = self.rng.range(100 * MS, 2_000 * MS);
                self.after(noticed, Ev::Mon(MonMsg::Failed(osd, incarnation, true)));
            }
        }
    }

    /// The monitors forget maps that no group needs, those from before it was last clean, as its
    /// primary says, and that no OSD lacks that is up or in. Whether any go.
    pub(super) fn trim_maps(&mut self) -> bool {
        let map = self.monitor.map();
        let needs = |pgid| {
            let primary = map.mapping(pgid).primary?;
            let led = SpgId { pgid, shard: primary.shard };
            let pg = self.osds[primary.osd.0 as usize].pg(led).filter(|pg| pg.is_primary())?;
            let clean = pg.is_clean() || self.scenario.bug == Bug::TrimUnclean;
            Some(if clean { pg.epoch() } else { pg.info().history.last_epoch_clean })
        };
        let there = self.osds.iter().filter(|o| map.osd(o.id).is_some_and(|m| m.up || m.is_in));
        let lacking = there.map(|o| o.disk.durable().epoch).min();
        let needed = self.pgids().into_iter().map(needs).chain([lacking]).min().flatten();
        let Some(needed) = needed.filter(|e| *e > self.monitor.oldest) else { return false };
        self.mark("old maps trimmed");
        self.after(0, Ev::Mon(MonMsg::Trim(needed)));
        true
    }
}
