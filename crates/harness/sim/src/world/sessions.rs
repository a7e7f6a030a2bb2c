//! Sessions of OSDs and clients with monitors, and maps on their way.

use types::Epoch;

use super::parts::{Maps, Party, Session, Time};
use super::{Ev, MS, World, mon_end};
use crate::bug::Bug;

impl World {
    /// The session, if it is the one of this number.
    pub(super) fn session_of(&mut self, party: Party, number: u64) -> Option<&mut Session> {
        self.sessions.get_mut(&party).filter(|s| s.number == number)
    }

    fn epoch_of(&self, party: Party) -> Epoch {
        match party {
            Party::Osd(osd) => self.osds[osd.0 as usize].map().map_or(Epoch(0), |m| m.epoch),
            Party::Client(client) => self.clients[client].epoch,
        }
    }

    /// Looks for a monitor that takes sessions, in any order.
    pub(super) fn hunt(&mut self, party: Party) {
        let lives = match party {
            Party::Osd(osd) => self.osds[osd.0 as usize].incarnation != 0,
            Party::Client(_) => true,
        };
        if !lives || self.sessions.contains_key(&party) {
            return;
        }
        let open: Vec<usize> = (0..self.group.mons.len())
            .filter(|m| self.takes_sessions(*m) && self.connected(party.end(), mon_end(*m)))
            .collect();
        let Some(&mon) = open.get(self.rng.range(0, open.len() as u64) as usize) else {
            let pause = self.rng.range(100 * MS, 800 * MS);
            return self.after(pause, Ev::Hunt(party));
        };
        let has = self.epoch_of(party);
        if self.group.shows(mon).newest < has {
            self.mark("session moved to one behind");
        }
        self.mark("session begun");
        let number = self.group.number();
        // A client subscribes with its first message; an OSD says what else it wants with it.
        let told = matches!(party, Party::Client(_)).then_some(has);
        self.sessions.insert(party, Session { mon, number, told });
        match party {
            Party::Osd(osd) => {
                self.osds[osd.0 as usize].session(self.now);
                self.carry_out(osd);
            }
            Party::Client(_) => self.send_maps(party),
        }
    }

    /// A session is over, and another is looked for.
    fn leave(&mut self, party: Party) {
        self.end_session(party);
        let pause = self.rng.range(MS, 100 * MS);
        self.after(pause, Ev::Hunt(party));
    }

    /// There is no session any more. The monitor knows it only if it hears of it: if not, it may
    /// still pass on what it was asked for.
    pub(super) fn end_session(&mut self, party: Party) {
        let Some(Session { mon, number, .. }) = self.sessions.remove(&party) else { return };
        if self.connected(party.end(), mon_end(mon)) && self.is_up(mon) {
            self.group.mons[mon].kept.retain(|_, k| k.session != number);
        }
    }

    /// Looks whether the monitor of a session is there, a while after something happened.
    pub(super) fn doubt_soon(&mut self, party: Party, low: Time, high: Time) {
        if let Some(Session { number, .. }) = self.sessions.get(&party).copied() {
            let when = self.rng.range(low, high);
            self.after(when, Ev::Doubt(party, number, false));
        }
    }

    /// A session is left if its monitor is not there. `surely` if it is known to be broken.
    pub(super) fn doubt(&mut self, party: Party, number: u64, surely: bool) {
        let Some(Session { mon, .. }) = self.session_of(party, number).copied() else { return };
        if surely || !self.is_up(mon) || !self.connected(party.end(), mon_end(mon)) {
            self.leave(party);
        }
    }

    /// The parties that have a session with a monitor.
    pub(super) fn parties(&self, mon: usize) -> Vec<Party> {
        self.sessions.iter().filter(|(_, s)| s.mon == mon).map(|(p, _)| *p).collect()
    }

    /// A monitor has more to show to its sessions.
    pub(super) fn publish(&mut self, mon: usize) {
        for party in self.parties(mon) {
            if let Party::Osd(osd) = party
                && !self.calm
            {
                if self.rng.permille(self.scenario.lost_maps) {
                    self.lose_maps(party);
                    continue;
                }
                if self.rng.permille(self.scenario.late_maps) {
                    self.mark("maps late");
                    let late = self.now + self.rng.range(100 * MS, 2_000 * MS);
                    let last = self.links.entry((mon_end(mon), osd.0.into())).or_default();
                    *last = (*last).max(late);
                }
            }
            self.send_maps(party);
        }
    }

    /// Maps are lost with a session, which is found out late.
    fn lose_maps(&mut self, party: Party) {
        let Some(session) = self.sessions.get_mut(&party) else { return };
        let newest = self.group.shows(session.mon).newest;
        let Some(told) = session.told.as_mut().filter(|t| **t < newest) else { return };
        *told = newest;
        let number = session.number;
        self.mark("maps lost");
        let found = self.rng.range(200 * MS, 3_000 * MS);
        self.after(found, Ev::Doubt(party, number, true));
    }

    /// The monitor of a session sends it the maps that it has not sent, as far as it has them.
    pub(super) fn send_maps(&mut self, party: Party) {
        let Some(Session { mon, number, told: Some(told) }) = self.sessions.get(&party).copied()
        else {
            return;
        };
        let shown = self.group.shows(mon);
        let mut maps: Vec<_> = (told.next().max(shown.oldest).0..=shown.newest.0)
            .filter_map(|e| self.monitor.at(Epoch(e)))
            .collect();
        if self.scenario.bug == Bug::ShowUncommitted && self.group.leader == Some(mon) {
            maps.extend(
                self.group
                    .under_way
                    .iter()
                    .flat_map(|e| &e.maps)
                    .filter(|m| m.epoch > told)
                    .cloned(),
            );
        }
        let Some(newest) = maps.last().map(|m| m.epoch) else { return };
        let found = self.oracle.shown(mon, &maps, &self.monitor);
        self.note(found);
        if let Some(session) = self.sessions.get_mut(&party) {
            session.told = Some(newest);
        }
        let link = (mon_end(mon), party.end());
        match party {
            Party::Osd(osd) => self.on_link(
                link,
                Ev::OsdMap { osd, session: number, maps: Maps(maps), oldest: shown.oldest },
            ),
            Party::Client(client) => {
                self.on_link(link, Ev::ClientMap { client, session: number, epoch: newest })
            }
        }
    }
}
