//! What goes wrong with monitors.

use types::OsdId;

use super::parts::Party;
use super::{Ev, MS, Time, World, mon_end};

impl World {
    /// Something goes wrong with one monitor, or between them.
    pub(super) fn monitor_fault(&mut self) {
        let mons = self.group.mons.len();
        let any = self.rng.range(0, mons as u64) as usize;
        // The leader is the one that matters most.
        let mon = self.group.leader.filter(|_| self.rng.permille(400)).unwrap_or(any);
        match self.rng.range(0, 10) {
            0..=2 => {
                let back = self.now + self.rng.range(20 * MS, 5_000 * MS);
                self.kill_monitor(mon, back);
            }
            3..=4 => self.stop_monitor(mon),
            5..=6 => self.cut_monitors(mon),
            7 => {
                // It was not heard for too long, by chance.
                self.group.leader = None;
                self.watch_monitors();
            }
            _ => self.cut_from_monitor(),
        }
    }

    fn kill_monitor(&mut self, mon: usize, back: Time) {
        self.at(back, Ev::MonitorStarts(mon));
        let m = &mut self.group.mons[mon];
        if !std::mem::replace(&mut m.running, false) {
            return;
        }
        m.kept.clear();
        (m.follows, m.out) = (None, true);
        let led = self.group.leader == Some(mon);
        if led {
            self.group.leader = None;
        }
        self.mark(if led { "leader killed" } else { "monitor killed" });
        for party in self.parties(mon) {
            let number = self.sessions[&party].number;
            let when = self.rng.range(MS, 300 * MS);
            self.after(when, Ev::Doubt(party, number, true));
        }
        self.watch_monitors();
    }

    fn stop_monitor(&mut self, mon: usize) {
        let until = self.now + self.rng.range(200 * MS, 6_000 * MS);
        self.stopped[mon] = self.stopped[mon].max(until);
        self.at(until, Ev::MonitorStarts(mon));
        self.mark(if self.group.leader == Some(mon) {
            "leader stopped"
        } else {
            "monitor stopped"
        });
        for party in self.parties(mon) {
            self.doubt_soon(party, 500 * MS, 3_000 * MS);
        }
        self.watch_monitors();
    }

    /// Monitors are cut off from the others, but not from their sessions: one, or a few that reach
    /// each other.
    fn cut_monitors(&mut self, mon: usize) {
        let mons = self.group.mons.len();
        let until = self.now + self.rng.range(300 * MS, 8_000 * MS);
        let few: Vec<bool> = (0..mons).map(|m| m == mon || self.rng.permille(250)).collect();
        for a in 0..mons {
            for b in (0..mons).filter(|b| few[a] != few[*b]) {
                self.block((mon_end(a), mon_end(b)), until);
            }
        }
        if mons > 1 {
            self.mark("monitors cut off from others");
            self.after_cut();
        }
    }

    /// Links of monitors were cut: the network between them, or between them and others.
    pub(super) fn after_cut(&mut self) {
        for mon in 0..self.group.mons.len() {
            let minority = !self.group.is_majority(self.reaches(mon).len());
            if self.is_up(mon) && minority && !self.parties(mon).is_empty() {
                self.mark("minority monitor");
            }
        }
        self.watch_monitors();
    }

    /// A party and its monitor do not hear each other, or one does not hear the other.
    fn cut_from_monitor(&mut self) {
        let client = self.rng.permille(250);
        let party = match client {
            true => Party::Client(self.rng.range(0, self.clients.len() as u64) as usize),
            false => Party::Osd(OsdId(self.rng.range(0, self.osds.len() as u64) as i32)),
        };
        let Some(mon) = self.sessions.get(&party).map(|s| s.mon) else { return };
        let until = self.now + self.rng.range(300 * MS, 8_000 * MS);
        let (there, back) = ((party.end(), mon_end(mon)), (mon_end(mon), party.end()));
        let way = self.rng.range(0, 4);
        for link in [(way != 0).then_some(there), (way != 1).then_some(back)].into_iter().flatten()
        {
            self.block(link, until);
        }
        self.mark("cut from its monitor");
        self.doubt_soon(party, 500 * MS, 3_000 * MS);
    }

    /// All monitors are away for a while.
    pub(super) fn monitors_away(&mut self) {
        self.mark("monitors away");
        let until = self.now + self.rng.range(300 * MS, 5_000 * MS);
        for mon in 0..self.group.mons.len() {
            let back = until + self.rng.range(0, 500 * MS);
            self.kill_monitor(mon, back);
        }
    }
}
