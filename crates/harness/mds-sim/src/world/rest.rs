//! All owners come to rest together, end one after the other, and come back: what the monitors do.

use super::{Flight, World};
use mds::{ClientId, Event, Ino, Mds, Rank};
use std::collections::{BTreeMap, BTreeSet};

/// What the map says of it.
#[derive(Default)]
pub(super) struct Night {
    /// The file system is to be down.
    down: bool,
    /// The owner that is to end.
    pub ending: Option<Rank>,
    /// Owners that have ended.
    pub asleep: BTreeSet<Rank>,
    /// Counts maps.
    pub map: u64,
    /// When an owner hears of the last one.
    heard: BTreeMap<Rank, u64>,
}

impl World {
    /// Whether owners are to rest: until all of them are back.
    pub(super) fn rests(&self) -> bool {
        let night = &self.night;
        night.down || night.ending.is_some() || !night.asleep.is_empty()
    }

    /// Goes on with what the monitors do, now and then.
    pub(super) fn watch_over_rest(&mut self) -> Result<(), String> {
        if !self.rests() {
            let begins = self.scenario.nights > 0
                && !self.alone
                && !self.flushed
                && self.leaving.is_none()
                && (self.calm || self.rng.permille(10));
            if begins {
                self.scenario.nights -= 1;
                self.mark("to rest");
                self.night.down = true;
                self.new_map();
            }
            return Ok(());
        }
        if !self.rng.permille(200) {
            return Ok(());
        }
        let awake: Vec<Rank> = self.ranks().filter(|r| !self.night.asleep.contains(r)).collect();
        let active =
            |r: &Rank| self.owners[usize::from(r.0)].mds.as_ref().is_some_and(Mds::is_active);
        let all_active = awake.iter().all(active);
        if self.night.down && !awake.is_empty() && self.rng.permille(20) {
            self.mark("called back");
            self.night.down = false;
            self.new_map();
        } else if self.night.down && awake.is_empty() {
            self.night.down = false;
        } else if self.night.ending.is_some() || !all_active {
            // One at a time.
        } else if self.night.down {
            self.night.ending = awake.last().copied();
            self.new_map();
            if let Some(rank) = self.night.ending {
                let at = self.night.heard.get(&rank).copied().unwrap_or(self.now) + 1;
                self.launch(at, Flight::End(rank));
            }
        } else if let Some(rank) = self.night.asleep.pop_first() {
            self.mark("woken");
            self.new_map();
            self.restart(rank)?;
        }
        Ok(())
    }

    /// A new map, of which owners hear sooner or later.
    fn new_map(&mut self) {
        self.night.map += 1;
        for rank in self.ranks() {
            if self.owner(rank).mds.is_none() {
                continue;
            }
            let at = self.soon(5_000);
            let last = self.night.heard.entry(rank).or_default();
            let at = at.max(*last + 1);
            *last = at;
            let (rests, asleep) = (self.rests(), self.night.asleep.clone());
            self.launch(at, Flight::Rest(rank, rests, asleep, self.night.map));
        }
    }

    /// An owner hears of a map.
    pub(super) fn hears_of_rest(
        &mut self,
        rank: Rank,
        rests: bool,
        asleep: BTreeSet<Rank>,
        map: u64,
    ) -> Result<(), String> {
        self.say((rank, "map", map, rests, &asleep));
        self.hears_of_owners(rank);
        if let Some(mds) = &mut self.owner(rank).mds {
            mds.set_rest(rests, asleep, map);
        }
        self.event(rank, Event::Wake)?;
        if !self.serves(rank) {
            return Ok(());
        }
        for id in self.clients.keys().copied().collect::<Vec<_>>() {
            self.open_again(id, rank);
        }
        Ok(())
    }

    fn serves(&self, rank: Rank) -> bool {
        self.owners[usize::from(rank.0)].mds.as_ref().is_some_and(|m| !m.rests())
    }

    pub(super) fn open_again(&mut self, id: ClientId, rank: Rank) {
        let blocked = self.blocked.contains(&id);
        let client = self.clients.get_mut(&id).filter(|c| !c.dead && !blocked);
        let steps = client.map(|c| c.woke(rank)).unwrap_or_default();
        self.carry_out(id, steps);
    }

    /// An owner has ended a client's session, or begins none.
    pub(super) fn session_ended(&mut self, id: ClientId, rank: Rank) -> Result<(), String> {
        if let Some(client) = self.clients.get_mut(&id).filter(|c| !c.dead) {
            client.slept(rank)?;
        }
        if self.serves(rank) {
            self.open_again(id, rank);
        }
        Ok(())
    }

    /// An owner has ended: it has nothing to say, and no other one needs it.
    pub(super) fn has_ended(&mut self, rank: Rank) -> Result<(), String> {
        self.mark("ended");
        self.say(("ended", rank));
        if self.night.ending.take() != Some(rank) {
            return Err(format!("{rank:?} ended, and was not to"));
        }
        let owner = self.owner(rank);
        if !owner.log.log.is_empty() {
            return Err(format!("{rank:?} ended, and there is something in its log"));
        }
        owner.mds = None;
        owner.life += 1;
        self.night.asleep.insert(rank);
        self.new_map();
        if self.ranks().all(|r| self.night.asleep.contains(&r)) {
            self.mark("all at rest");
            self.disk.check_names(&self.model()?)?;
            // Inodes of parts' roots are not at rest alone.
            let tables = self.owners.iter().map(|owner| &owner.log.tables.owners);
            let roots: BTreeSet<Ino> = tables.flat_map(|t| t.roots.keys().copied()).collect();
            let rng = &mut self.rng;
            if self.disk.split_some(|ino| !roots.contains(&ino) && rng.permille(300)) > 0 {
                self.mark("split");
            }
        }
        Ok(())
    }
}
