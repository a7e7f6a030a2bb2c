//! What operators do: OSDs that come and go, other sizes, other acting sets, objects that are given
//! up.

use pg::{GiveUp, LostRefused, MapView};
use types::{Epoch, ObjectId, OsdId, SpgId};

use super::parts::Party;
use super::{Ev, MS, POOL, World, new_osd};
use crate::content::object_id;
use crate::history::{Did, Done};
use crate::monitor::MonMsg;

impl World {
    /// An operator looks after unfound objects.
    pub(super) fn operator(&mut self) {
        let lost = self.rng.permille(self.scenario.give_up);
        let (destroyed, how) = (
            self.rng.permille(500),
            if self.rng.permille(700) { GiveUp::Revert } else { GiveUp::Delete },
        );
        let now = self.now;
        for osd in 0..self.osds.len() {
            let found = |(pgid, pg): (&SpgId, &pg::Pg)| {
                (pg.status().unfound > 0).then(|| (*pgid, pg.unfound_holders()))
            };
            let unfound: Vec<_> = self.osds[osd].pgs().filter_map(found).collect();
            for (pgid, holders) in unfound {
                for holder in holders.iter().filter(|h| lost && h.status == "osd is down") {
                    let away = &mut self.osds[holder.shard.osd.0 as usize];
                    if destroyed && away.incarnation == 0 {
                        away.replace_disk();
                    }
                    self.mark("declared lost");
                    self.after(0, Ev::Mon(MonMsg::Lost(holder.shard.osd)));
                }
                match self.osds[osd].give_up(pgid, how, now) {
                    Ok(oids) => {
                        self.mark("gave up");
                        for oid in oids {
                            let object = self.object_of(&oid);
                            let op = Done {
                                client: usize::MAX,
                                did: Did::GiveUp,
                                epoch: Epoch(0),
                                start: self.processed,
                                end: u64::MAX - 2,
                            };
                            self.history.objects.entry(object).or_default().push(op);
                        }
                    }
                    Err(LostRefused::NotAllAsked(_)) => self.mark("somebody may have it"),
                    Err(_) => {}
                }
                self.carry_out(OsdId(osd as i32));
            }
        }
        let next = self.rng.range(100 * MS, 1_500 * MS);
        self.after(next, Ev::Operator);
    }

    pub(super) fn object_of(&self, oid: &ObjectId) -> u64 {
        (0..self.scenario.objects)
            .find(|n| object_id(oid.pool, *n) == *oid)
            .expect("an object of this world")
    }

    /// Whether enough OSDs are left if one goes out.
    pub(super) fn may_go_out(&self) -> bool {
        let map = self.monitor.map();
        let size = map.pools.get(&POOL).map_or(0, |p| p.size).max(self.scenario.size);
        map.osds.iter().filter(|o| o.exists && o.is_in).count() > size as usize
    }

    /// An OSD with an empty disk comes, when the map knows its number.
    pub(super) fn add_osd(&mut self) {
        let again = self.gone.iter().copied().find(|osd| self.monitor.map().osd(*osd).is_none());
        let osd = match again {
            Some(osd) if self.rng.permille(600) => {
                self.gone.remove(&osd);
                self.osds[osd.0 as usize].replace_disk();
                self.mark("OSD of an old number added");
                osd
            }
            _ if self.osds.len() < self.scenario.osds + 3 => {
                let osd = new_osd(self.osds.len(), &self.scenario);
                let id = osd.id;
                self.osds.push(osd);
                self.mark("OSD added");
                id
            }
            _ => return,
        };
        self.after(0, Ev::Mon(MonMsg::Add(osd)));
    }

    /// An OSD is to go for ever.
    pub(super) fn remove_osd(&mut self, osd: OsdId) {
        if self.gone.contains(&osd) || !self.may_go_out() || !self.draining.insert(osd) {
            return;
        }
        self.after(0, Ev::Mon(MonMsg::SetIn(osd, false)));
        self.after(300 * MS, Ev::Drained(osd));
    }

    /// Whether nothing is left on an OSD that is to go. If so, it goes.
    pub(super) fn drained(&mut self, osd: OsdId) {
        let is_in = self.monitor.map().osd(osd).is_none_or(|o| o.is_in);
        if self.calm || is_in {
            // The order is taken back.
            self.draining.remove(&osd);
            return;
        }
        let map = self.monitor.map();
        let placed = |pgid| {
            let pg::Mapping { up, acting, .. } = map.mapping(pgid);
            up.on(osd).is_some() || acting.on(osd).is_some()
        };
        let o = &self.osds[osd.0 as usize];
        let empty = o.pgs().next().is_none() && o.disk.state().colls.is_empty();
        if !empty || !self.all_clean() || self.pgids().into_iter().any(placed) {
            self.after(200 * MS, Ev::Drained(osd));
            return;
        }
        let incarnation = o.incarnation;
        let unflushed = o.disk.unflushed();
        self.osds[osd.0 as usize].stop(unflushed);
        self.end_session(Party::Osd(osd));
        self.draining.remove(&osd);
        self.gone.insert(osd);
        self.mark("OSD removed");
        self.after(0, Ev::Mon(MonMsg::Failed(osd, incarnation, true)));
        self.after(1, Ev::Mon(MonMsg::Purge(osd)));
    }

    /// Another size and `min_size`.
    pub(super) fn resize(&mut self) {
        let (size, min_size) = (self.scenario.size, self.scenario.min_size);
        let ins = self.monitor.map().osds.iter().filter(|o| o.exists && o.is_in).count();
        let size = match self.rng.range(0, 3) {
            0 if size > 2 => size - 1,
            1 if ins > size as usize => size + 1,
            _ => size,
        };
        let min_size = if self.rng.permille(400) {
            min_size
        } else {
            self.rng.range(1, u64::from(size)) as u32
        };
        self.mark("size changed");
        self.after(0, Ev::Mon(MonMsg::Size(POOL, size, min_size.min(size))));
    }

    /// An operator asks for another acting set: mostly the same in another order.
    pub(super) fn churn(&mut self) {
        let pgids = self.pgids();
        let Some(&pgid) = pgids.get(self.rng.range(0, pgids.len() as u64) as usize) else { return };
        let map = self.monitor.map().clone();
        let mut want = map.mapping(pgid).up.slots();
        if !want.is_empty() {
            let by = self.rng.range(0, want.len() as u64) as usize;
            want.rotate_left(by);
        }
        if self.rng.permille(200) {
            want.truncate(1);
        }
        self.mark("acting set asked for");
        self.after(0, Ev::Mon(MonMsg::PgTemp(pgid, want, map.epoch)));
    }
}
