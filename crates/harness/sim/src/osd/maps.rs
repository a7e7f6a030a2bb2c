//! Processes that start, and maps that arrive.

use std::collections::BTreeMap;
use std::rc::Rc;

use denc::{Decode, Encode, Features};
use pg::creation::UnbornPgs;
use pg::{Backfill, Event, MapRef, MapView, Pg, PgState};
use types::{Epoch, SpgId};

use super::{Effect, Hosted, Osd, Wishes};
use crate::bug::Bug;
use crate::disk::StoreOp;
use crate::map::MapModel;
use crate::monitor::{MonMsg, Monitor};

impl Osd {
    /// A process starts, with what is on the disk.
    pub fn start(&mut self, incarnation: u64, monitor: &Monitor, time: u64) {
        self.incarnation = incarnation;
        self.set_time(time);
        let now = self.now;
        let state = self.disk.state();
        self.unborn = if state.unborn.is_empty() {
            UnbornPgs::default()
        } else {
            UnbornPgs::from_bytes(&state.unborn).expect("own bytes")
        };
        self.map = monitor.at(state.epoch);
        self.newest = self.map.clone();
        for (pgid, coll) in &state.colls {
            let loaded = pg::rows::load(*pgid, coll.rows.clone())
                .unwrap_or_else(|e| panic!("{} {pgid}: {e}", self.id));
            let map = self.view(&monitor.at(loaded.epoch).expect("maps are kept"));
            let mut pg = Pg::load(self.id, loaded, map, self.conf.clone(), now);
            pg.set_clock(self.clock.shows(time));
            self.pgs.insert(*pgid, Hosted::new(pg));
        }
        if self.pgs.values().any(|h| matches!(h.pg.info().last_backfill, Backfill::UpTo(_))) {
            *self.marks.entry("restart in the middle of backfill").or_default() += 1;
        }
        for pgid in self.pgs.keys().copied().collect::<Vec<_>>() {
            self.drain(pgid);
        }
        // PGs are as old as their rows; bring them to the OSD's epoch.
        for pgid in self.pgs.keys().copied().collect::<Vec<_>>() {
            let (from, to) = (self.pgs[&pgid].pg.epoch(), self.disk.state().epoch);
            let mut all = vec![pgid];
            for e in from.0 + 1..=to.0 {
                let Some(map) = monitor.at(Epoch(e)) else { break };
                let map = self.view(&map);
                for pgid in all.clone() {
                    all.extend(self.next_map(pgid, &map));
                }
            }
        }
        self.boot(self.new_disk);
    }

    fn boot(&mut self, new_disk: bool) {
        self.wishes.boot = Some(new_disk);
        self.out.push(Effect::Mon(MonMsg::Boot(self.id, self.incarnation, new_disk, self.has())));
    }

    /// The newest map that it has.
    pub(super) fn has(&self) -> Epoch {
        self.map.as_ref().map_or(Epoch(0), |m| m.epoch)
    }

    /// There is a new session with a monitor: everything again.
    pub fn session(&mut self, time: u64) {
        self.set_time(time);
        let Wishes { up_thru, pg_temp, boot } = &self.wishes;
        let (me, incarnation, has) = (self.id, self.incarnation, self.has());
        let boot = boot.map(|new_disk| MonMsg::Boot(me, incarnation, new_disk, has));
        let up_thru = up_thru.map(|epoch| MonMsg::UpThru(me, incarnation, epoch.max(has)));
        let temps = pg_temp.iter().map(|(pgid, want)| MonMsg::PgTemp(*pgid, want.clone(), has));
        let again: Vec<_> = boot.into_iter().chain(up_thru).chain(temps).collect();
        *self.marks.entry("asked the monitors again").or_default() += again.len() as u64;
        self.out.extend(again.into_iter().map(Effect::Mon));
        self.out.push(Effect::Mon(MonMsg::Subscribe(me, has.next())));
        for pgid in self.pgs.keys().copied().collect::<Vec<_>>() {
            if let Some(hosted) = self.pgs.get_mut(&pgid) {
                hosted.told_ready = None;
            }
            self.drain(pgid);
        }
    }

    pub(super) fn want_map(&mut self, epoch: Epoch) {
        let has = self.has();
        if epoch > has {
            *self.marks.entry("asked for a map").or_default() += 1;
            self.out.push(Effect::Mon(MonMsg::Subscribe(self.id, has.next())));
        }
    }

    /// A map as its PGs see it.
    pub(super) fn view(&self, map: &Rc<MapModel>) -> MapRef {
        if self.bug != Bug::BelowMinSize {
            return map.clone();
        }
        let mut map = MapModel::clone(map);
        map.pools.values_mut().for_each(|p| p.min_size = 1);
        Rc::new(map)
    }

    /// Maps arrived that follow on each other. The monitor has none before `oldest`.
    pub fn maps(&mut self, maps: &[Rc<MapModel>], oldest: Epoch, time: u64) {
        self.set_time(time);
        let Some(first) = maps.first().map(|m| m.epoch) else { return };
        let from = self.has().0;
        let mut begin = from + 1;
        if first.0 > begin {
            if oldest.0 <= begin {
                *self.marks.entry("gap of maps").or_default() += 1;
                return self.want_map(first);
            }
            // They are gone.
            let what = if self.pgs.is_empty() {
                "hole in the maps, without groups"
            } else {
                "hole in the maps"
            };
            *self.marks.entry(what).or_default() += 1;
            begin = first.0;
        }
        let mut was_up = self.booted;
        for map in maps.iter().filter(|m| m.epoch.0 >= begin).cloned() {
            let view = self.view(&map);
            self.newest = Some(map.clone());
            self.join(&view);
            was_up |= map.incarnation(self.id) == Some(self.incarnation);
            for pgid in self.pgs.keys().copied().collect::<Vec<_>>() {
                self.next_map(pgid, &view);
            }
            let pools: Vec<_> = map.pools.keys().copied().collect();
            let born = if map.epoch.0 == begin && begin > from + 1 {
                self.unborn.skip(&*map, &pools);
                Vec::new()
            } else {
                self.unborn.advance(self.id, &*map, &pools)
            };
            self.wishes.up_thru.take_if(|want| map.up_thru(self.id) >= *want);
            let before = self.map.clone();
            self.wishes.pg_temp.retain(|pgid, _| {
                before.as_ref().is_some_and(|b| b.mapping(*pgid) == map.mapping(*pgid))
            });
            for pgid in born {
                if let Some(pg) =
                    Pg::create(self.id, pgid, view.clone(), self.conf.clone(), self.now)
                    && !self.pgs.contains_key(&pgid)
                {
                    self.host(pgid, pg);
                }
            }
            self.map = Some(map);
        }
        let Some(map) = self.map.clone() else { return };
        if map.epoch.0 == from {
            return;
        }
        // The monitors know it now.
        self.new_disk &= !was_up;
        if map.osds.iter().any(|o| o.full)
            && self.pgs.values().any(|h| h.pg.state().has(PgState::RECOVERY_TOOFULL))
        {
            *self.marks.entry("recovery found no room").or_default() += 1;
        }
        let seq = self
            .disk
            .submit(vec![StoreOp::Super(map.epoch, self.unborn.to_bytes(Features::ALL))], None);
        self.out.push(Effect::Flush(seq));
        if map.incarnation(self.id) != Some(self.incarnation) {
            self.booted = false;
            if was_up {
                // A report was wrong.
                *self.marks.entry("booted again").or_default() += 1;
                self.boot(false);
            } else if let Some(new_disk) = self.wishes.boot {
                // With a map that is no older than the one in which another process of this number
                // came up.
                self.boot(new_disk);
            }
        } else {
            self.booted = true;
            self.wishes.boot = None;
            for pgid in self.pgs.keys().copied().collect::<Vec<_>>() {
                self.feed(pgid, Event::ActivateMap);
                // Requests may have waited for the map.
                self.run_waiting(pgid);
                self.drain(pgid);
            }
            for (from, header, msg) in std::mem::take(&mut self.early) {
                self.deliver(from, header, msg);
            }
        }
    }

    /// PGs that become part of others take the next map.
    fn join(&mut self, map: &MapRef) {
        let mut joins: BTreeMap<SpgId, Vec<SpgId>> = BTreeMap::new();
        for (pgid, hosted) in &self.pgs {
            if let Some(target) = hosted.pg.target_in(&**map) {
                let target = SpgId { pgid: target, ..*pgid };
                joins.entry(target).or_default().push(*pgid);
            } else if hosted.pg.takes_in(&**map) {
                joins.entry(*pgid).or_default();
            }
        }
        for (target, sources) in joins {
            for source in &sources {
                self.leave_turns(*source);
            }
            let mut sources: Vec<Pg> =
                sources.iter().filter_map(|s| self.pgs.remove(s)).map(|h| h.pg).collect();
            let mut mark = |what| *self.marks.entry(what).or_default() += 1;
            if let (None, Some(source)) = (self.pgs.get(&target), sources.first()) {
                mark("join of remains");
                let remains =
                    Pg::remains(self.id, target.pgid, source, self.conf.clone(), self.now);
                self.pgs.insert(target, Hosted::new(remains));
            }
            let Some(hosted) = self.pgs.get_mut(&target) else { continue };
            if hosted.pg.info().removing {
                mark("join while being removed");
            }
            hosted.pg.join(&mut sources.iter_mut().collect::<Vec<_>>(), map, self.now);
            mark(if hosted.pg.info().removing {
                "join of what counts for nothing"
            } else {
                "join"
            });
            self.drain(target);
        }
    }

    /// A PG takes the next map. Returns the PGs that come out of it.
    fn next_map(&mut self, pgid: SpgId, map: &MapRef) -> Vec<SpgId> {
        let Some(hosted) = self.pgs.get_mut(&pgid) else { return Vec::new() };
        let acts = hosted.pg.mapping().acting.contains(&hosted.pg.whoami());
        if hosted.pg.children_in(&**map).is_empty() || (!acts && self.bug == Bug::StraysDoNotSplit)
        {
            self.feed(pgid, Event::AdvanceMap(map.clone()));
            return Vec::new();
        }
        let mut mark = |what| *self.marks.entry(what).or_default() += 1;
        mark("split");
        let pg = &hosted.pg;
        if !pg.missing().is_empty() || !pg.is_clean() && pg.is_active() {
            mark("split during recovery");
        }
        if matches!(pg.info().last_backfill, Backfill::UpTo(_)) {
            mark("split during backfill");
        }
        if pg.info().removing {
            mark("split while being removed");
        }
        if !acts {
            mark("stray split");
        }
        if !hosted.running.is_empty() {
            mark("split with writes in flight");
        }
        let children = hosted.pg.split(map, self.now);
        let ids = children.iter().map(Pg::spgid).collect();
        self.drain(pgid);
        for pg in children {
            self.host(pg.spgid(), pg);
        }
        ids
    }
}
