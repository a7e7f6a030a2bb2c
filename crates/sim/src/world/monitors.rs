//! Maps on their way, and monitors that are away or forget them.

use pg::MapView;
use types::{Epoch, OsdId};

use super::{Ev, MON, MS, World};
use crate::bug::Bug;
use crate::monitor::MonMsg;

impl World {
    pub(super) fn publish(&mut self) {
        let epoch = self.monitor.map().epoch;
        for osd in 0..self.osds.len() {
            let osd = OsdId(osd as i32);
            if self.osds[osd.0 as usize].incarnation == 0 {
                continue;
            }
            let first = self.told.get(&osd).map_or(Epoch(1), |e| e.next());
            if self.rng.permille(self.scenario.lost_maps) && !self.calm {
                self.told.insert(osd, epoch);
                self.mark("maps lost");
                let found = self.rng.range(200 * MS, 3_000 * MS);
                self.after(found, Ev::Session(osd));
                continue;
            }
            if self.rng.permille(self.scenario.late_maps) && !self.calm {
                self.mark("maps late");
                let late = self.now + self.rng.range(100 * MS, 2_000 * MS);
                let last = self.links.entry((MON, osd.0.into())).or_default();
                *last = (*last).max(late);
            }
            self.send_maps(osd, first);
        }
        for client in 0..self.clients.len() {
            self.on_link((MON, 1000 + client as i64), Ev::ClientMap(client, epoch));
        }
    }

    /// The monitor sends an OSD all maps from one on, as far as it has them.
    pub(super) fn send_maps(&mut self, osd: OsdId, first: Epoch) {
        let (newest, oldest) = (self.monitor.map().epoch, self.monitor.oldest);
        if first <= newest {
            self.told.insert(osd, newest);
            self.on_link((MON, osd.0.into()), Ev::OsdMap(osd, first.max(oldest), newest, oldest));
        }
    }

    /// The monitors are away for a while. What was on its way to them, and what comes meanwhile, may be lost; OSDs have new
    /// sessions when they are back.
    pub(super) fn monitors_away(&mut self) {
        self.mark("monitors away");
        self.away = self.away.max(self.now + self.rng.range(300 * MS, 5_000 * MS));
        let asked: Vec<u64> = self.events.iter().filter(|(_, ev)| matches!(ev, Ev::FromOsd(..))).map(|(n, _)| *n).collect();
        for event in asked {
            if self.rng.permille(500) {
                self.mark("request to the monitors lost");
                self.events.remove(&event);
            }
        }
        for osd in 0..self.osds.len() {
            let when = self.away + self.rng.range(1, 200 * MS);
            self.at(when, Ev::Session(OsdId(osd as i32)));
        }
    }

    /// The monitors forget maps that no group needs: those from before it was last clean, as its primary says. Whether any went.
    pub(super) fn trim_maps(&mut self) -> bool {
        let map = self.monitor.map();
        let needs = |pgid| {
            let primary = map.mapping(pgid).primary?;
            let pg = self.osds[primary.0 as usize].pg(pgid).filter(|pg| pg.is_primary())?;
            let clean = pg.is_clean() || self.scenario.bug == Bug::TrimUnclean;
            Some(if clean { pg.epoch() } else { pg.info().history.last_epoch_clean })
        };
        let needed = self.pgids().into_iter().map(needs).min().flatten();
        let Some(needed) = needed.filter(|e| *e > self.monitor.oldest) else { return false };
        self.mark("old maps trimmed");
        self.after(0, Ev::Mon(MonMsg::Trim(needed)));
        true
    }
}
