//! Movement of data as a job: steps that are chosen from the map, so that each map in between
//! satisfies every rule, no OSD is filled above the backfillfull ratio, and the job can be paused
//! and undone from any state.
//!
//! A change of CRUSH never moves data by itself. Either it comes first, and upmaps in the same map
//! keep all data where it is ([`hold`]); then they go one by one. Or it comes last, when upmaps
//! have already brought all data to where it leaves it. Which of both is possible depends on which
//! of both rules allows what is in between.
//!
//! [`Job`] is all that there is: the monitors keep it in their replicated state and change it in
//! the batch that changes the map. Whichever monitor leads goes on with it.

mod batch;
mod plan;
mod record;

pub use batch::{Look, hold};
pub use plan::{Plan, plan};
pub use record::{Change, Edits, Goal, Limits, Moving, State, Stop, Verb, Way};

use crate::Stats;
use crate::balance::{Bounds, Measure, propose};
use crate::pace::{self, Arrivals, ClientLatency, Eta};
use crate::scan::scan;
use crate::stats::groups;
use crate::upmap::{Refused, Trial, Upmap, same_place};
pub(crate) use batch::shift;
use batch::{Batch, differing, hold_these, is_replicated, show};
use denc_derive::Denc;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use types::{Fsid, OsdId, OsdMap, PgId, PoolId, Release, Utime};

/// A job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 3, compat = 1)]
pub struct Job {
    /// Counts jobs.
    pub id: u64,
    /// What is wanted.
    pub goal: Goal,
    /// How much at a time.
    pub limits: Limits,
    /// Whether it does something.
    pub state: State,
    /// Where it goes.
    pub way: Way,
    /// The change of CRUSH comes first.
    pub first: bool,
    /// It is in the map.
    pub changed: bool,
    /// What takes it back.
    pub reverse: Change,
    /// Upmaps of all PGs that the job touched, as they were before.
    pub before: BTreeMap<PgId, Upmap>,
    /// What is left to do: the upmaps that PGs get. PGs that leave OSDs have empty ones here; where
    /// they go is decided when they go.
    pub todo: BTreeMap<PgId, Upmap>,
    /// What is on its way.
    pub moving: BTreeMap<PgId, Moving>,
    /// The device of an OSD that is replaced, as the map knows it.
    pub device: Fsid,
    /// When it began,
    pub began: Utime,
    /// and when it ended.
    pub ended: Utime,
    /// Nothing begins to move before.
    pub not_before: Utime,
    /// Bytes that are to move in all, as far as is known,
    pub total: u64,
    /// and that have moved.
    pub moved: u64,
    /// Maps that it made.
    pub maps: u64,
    /// PGs that could not be brought to where they should be.
    pub skipped: u64,
    /// What it waits for.
    pub note: String,
    /// How much of its limits clients' latency leaves it, in thousandths.
    #[denc(since = 2)]
    pub pace: u32,
    /// The last measurement of latency that counted.
    #[denc(since = 2)]
    pub paced: u64,
    /// How fast data arrived.
    #[denc(since = 2)]
    pub arrivals: Arrivals,
    /// Model and serial number of the device of an OSD that is replaced; empty if it is not known,
    /// or if the device has more than one OSD.
    #[denc(since = 2)]
    pub serial: String,
    /// The OSD is back on that device.
    #[denc(since = 2)]
    pub same_device: bool,
    /// The same device is taken back, by wish.
    #[denc(since = 2)]
    pub takes_same: bool,
    /// Objects lack copies: recovery does not wait for the ceiling on clients' p99.
    #[denc(since = 3)]
    pub degraded: bool,
}

impl Job {
    /// Begins a job. The map gets what is returned, together with the job.
    pub fn begin(
        id: u64,
        goal: Goal,
        limits: Limits,
        map: &OsdMap,
        stats: &Stats,
        now: Utime,
    ) -> Result<(Job, Edits), Stop> {
        let pace = pace::first(limits.p99);
        let mut job = Job { id, goal, limits, began: now, pace, ..Job::default() };
        job.check(map)?;
        let edits = match job.goal.verb {
            Verb::Grow => {
                let change = Change { weights: job.goal.osds.clone(), ..Change::default() };
                job.change_first(map, change)?
            }
            Verb::Rule => {
                let change =
                    Change { rules: vec![(job.goal.pool, job.goal.rule)], ..Change::default() };
                match job.change_first(map, change.clone()) {
                    Ok(edits) => edits,
                    Err(first) => {
                        job.change_last(map, &change, &first)?;
                        Edits::default()
                    }
                }
            }
            Verb::Drain | Verb::Replace => {
                job.todo =
                    job.on_leaving(map).into_iter().map(|pg| (pg, Upmap::default())).collect();
                job.feasible(map)?;
                Edits::default()
            }
            Verb::Balance => Edits::default(),
        };
        if let (Verb::Replace, Some((osd, _))) = (job.goal.verb, job.goal.osds.first()) {
            job.device = map.osd(*osd).map(|o| o.uuid).unwrap_or_default();
        }
        job.total = job.left(map, stats);
        job.maps = u64::from(edits != Edits::default());
        Ok((job, edits))
    }

    fn check(&self, map: &OsdMap) -> Result<(), Stop> {
        let stop = |text: String| Err(Stop(text));
        if map.require_min_compat_client < Release::LUMINOUS {
            return stop(
                "clients must know upmaps: ceph osd set-require-min-compat-client luminous".into(),
            );
        }
        let verb = self.goal.verb;
        let crush_changes = !matches!(verb, Verb::Balance | Verb::Replace);
        if crush_changes && !map.crush.choose_args.is_empty() {
            return stop(
                "the CRUSH map has weight sets, and how they follow is not known: remove them with \
                 ceph osd crush weight-set rm-compat (or rm POOL)"
                    .into(),
            );
        }
        let busy = map.pools.iter().find(|(_, p)| {
            p.pg_num != p.pg_num_target || p.pgp_num != p.pgp_num_target || p.pgp_num != p.pg_num
        });
        if let Some((id, _)) = busy {
            return stop(format!("pool {id} gets another number of PGs: wait until it has it"));
        }
        match verb {
            Verb::Rule => {
                if map.pool(self.goal.pool).is_none() {
                    return stop(format!("pool {} does not exist", self.goal.pool));
                }
                if map.crush.rule(self.goal.rule.into()).is_none() {
                    return stop(format!("rule {} does not exist", self.goal.rule));
                }
                if map.pool(self.goal.pool).is_some_and(|p| p.crush_rule == self.goal.rule) {
                    return stop("the pool has this rule".into());
                }
            }
            Verb::Balance => {}
            Verb::Drain | Verb::Grow | Verb::Replace => {
                if self.goal.osds.is_empty() {
                    return stop("no OSD is named".into());
                }
                for (osd, weight) in &self.goal.osds {
                    if !map.exists(*osd) || map.crush.item_weight(osd.0).is_none() {
                        return stop(format!("osd.{osd} is not in both maps"));
                    }
                    if verb == Verb::Grow && (!map.is_up(*osd) || map.is_out(*osd)) {
                        return stop(format!("osd.{osd} is not up and in"));
                    }
                    if verb == Verb::Grow && *weight == 0 {
                        return stop(format!("osd.{osd} has no weight to grow to"));
                    }
                }
                if verb == Verb::Replace && self.goal.osds.len() != 1 {
                    return stop("one OSD is replaced at a time".into());
                }
            }
        }
        Ok(())
    }

    /// OSDs that are left.
    fn leaving(&self) -> BTreeSet<OsdId> {
        match (self.goal.verb, self.way) {
            (Verb::Drain | Verb::Replace, Way::Forward) => {
                self.goal.osds.iter().map(|(o, _)| *o).collect()
            }
            _ => BTreeSet::new(),
        }
    }

    /// The PGs that have copies on OSDs that are left.
    fn on_leaving(&self, map: &OsdMap) -> Vec<PgId> {
        let leaving = self.leaving();
        let leaving: Vec<i32> = leaving.into_iter().map(|o| o.0).collect();
        scan(map, || {
            let (mut placer, leaving) = (map.placer(), &leaving);
            move |pg| placer.raw_upmap(pg).iter().any(|o| leaving.binary_search(o).is_ok())
        })
    }

    /// The map as if the OSDs that are left had no weight.
    fn without(&self, map: &OsdMap) -> Result<OsdMap, Stop> {
        let mut without = map.clone();
        let weights = self.leaving().into_iter().map(|o| (o, 0)).collect();
        Change { weights, ..Change::default() }.apply(&mut without)?;
        Ok(without)
    }

    /// Whether every PG can leave, as far as the rule says.
    fn feasible(&self, map: &OsdMap) -> Result<(), Stop> {
        let without = self.without(map)?;
        for pg in self.todo.keys() {
            let Some(pool) = map.pool(pg.pool) else { continue };
            let placed = without.pg_to_raw_osds(*pg);
            let whole = placed.iter().filter(|o| o.is_some()).count();
            if whole < usize::from(pool.size) && map.pg_to_raw_upmap(*pg).len() > whole {
                return Err(Stop(format!(
                    "pg {pg} has no place for {} copies without these OSDs: add OSDs, or lower the \
                     pool's size",
                    pool.size
                )));
            }
        }
        Ok(())
    }

    fn change_first(&mut self, map: &OsdMap, change: Change) -> Result<Edits, Stop> {
        let mut new = map.clone();
        let reverse = change.apply(&mut new)?;
        let mut goal = new.clone();
        goal.clean_upmaps();
        let upmaps = hold(map, new)?;
        let touched: BTreeSet<PgId> = upmaps.keys().copied().chain(goal.upmapped()).collect();
        for pg in touched {
            let wanted = Upmap::of(&goal, pg);
            let now = upmaps.get(&pg).cloned().unwrap_or_else(|| Upmap::of(map, pg));
            if wanted != now {
                self.todo.insert(pg, wanted);
            }
        }
        (self.first, self.changed, self.reverse) = (true, true, reverse);
        for pg in upmaps.keys().chain(self.todo.keys()) {
            self.before.entry(*pg).or_insert_with(|| Upmap::of(map, *pg));
        }
        Ok(Edits { change, upmaps })
    }

    fn change_last(&mut self, map: &OsdMap, change: &Change, first: &Stop) -> Result<(), Stop> {
        let mut new = map.clone();
        change.apply(&mut new)?;
        let mut trial = Trial::new(map.clone());
        for pg in groups(map, self.goal.pool) {
            let (was, wanted) = (map.pg_to_raw_upmap(pg), new.pg_to_raw_osds(pg));
            if same_place(is_replicated(map, pg), &was, &wanted) {
                continue;
            }
            let why = |e: Refused| {
                Stop(format!(
                    "neither rule allows what would be in between: {first}; and pg {pg} cannot go \
                     to {} before: {e}",
                    show(&wanted)
                ))
            };
            self.todo.insert(pg, trial.place(pg, &wanted).map_err(why)?);
        }
        (self.first, self.changed) = (false, false);
        Ok(())
    }

    /// Bytes that are still to move, as far as is known.
    fn left(&self, map: &OsdMap, stats: &Stats) -> u64 {
        let leaving = self.leaving();
        let mut then = map.clone();
        let mut left = 0;
        for (pg, upmap) in &self.todo {
            let was = map.pg_to_raw_upmap(*pg);
            let copies = if leaving.is_empty() {
                upmap.put(&mut then, *pg);
                let is = then.pg_to_raw_upmap(*pg);
                shift(is_replicated(map, *pg), &was, &is).1.len()
            } else {
                was.iter().filter(|o| leaving.contains(o)).count()
            };
            left += stats.copy_bytes(map, *pg) * copies as u64;
        }
        left
    }

    /// Stops to begin anything. What is on its way arrives.
    pub fn pause(&mut self) -> Result<(), Stop> {
        if !self.state.is_open() {
            return Err(Stop(format!("job {} is {}", self.id, self.state.name())));
        }
        self.state = State::Paused;
        self.arrivals.stand();
        Ok(())
    }

    /// Goes on. A job that waits for a new device takes the same one, if that is there.
    pub fn resume(&mut self) -> Result<(), Stop> {
        if self.state == State::Waits && self.same_device {
            self.takes_same = true;
            return Ok(());
        }
        if self.state != State::Paused {
            return Err(Stop(format!("job {} is {}", self.id, self.state.name())));
        }
        self.state = State::Running;
        Ok(())
    }

    /// Turns back, from any state. The map gets what is returned.
    pub fn undo(&mut self, map: &OsdMap, stats: &Stats) -> Result<Edits, Stop> {
        if self.way == Way::Back {
            return Err(Stop(format!("job {} is being undone, or was", self.id)));
        }
        let mut edits = Edits::default();
        let mut job = self.clone();
        job.todo.clear();
        if job.changed && job.first {
            // The change goes last, when all is where it was.
            let mut origin = map.clone();
            job.reverse.apply(&mut origin)?;
            job.before.iter().for_each(|(pg, upmap)| upmap.put(&mut origin, *pg));
            let mut trial = Trial::new(map.clone());
            for pg in job.before.keys() {
                let (is, was) = (map.pg_to_raw_upmap(*pg), origin.pg_to_raw_upmap(*pg));
                if same_place(is_replicated(map, *pg), &is, &was) {
                    continue;
                }
                match trial.place(*pg, &was) {
                    Ok(upmap) => drop(job.todo.insert(*pg, upmap)),
                    Err(_) => job.skipped += 1,
                }
            }
        } else {
            if job.changed {
                let mut new = map.clone();
                job.reverse.apply(&mut new)?;
                edits = Edits { upmaps: hold(map, new)?, change: job.reverse.clone() };
                job.changed = false;
            }
            job.todo = job.before.clone();
        }
        (job.way, job.state, job.ended) = (Way::Back, State::Running, Utime::default());
        job.arrivals.forget();
        let mut then = map.clone();
        edits.apply(&mut then)?;
        (job.moved, job.total) = (0, job.left(&then, stats));
        job.maps += u64::from(edits != Edits::default());
        *self = job;
        Ok(edits)
    }

    /// Notes what has arrived, and chooses what moves next. The map gets what is returned.
    pub fn step(&mut self, look: Look<'_>) -> Option<Edits> {
        let map = look.map;
        self.degraded = look.degraded;
        let arrived = |pg: &PgId, m: &Moving| {
            m.epoch <= look.told && !look.unclean.contains(pg) && map.pool(pg.pool).is_some()
        };
        let gone = |pg: &PgId| map.pool(pg.pool).is_none_or(|p| pg.seed >= p.pg_num);
        let arrives = self
            .moving
            .iter()
            .filter(|(pg, m)| arrived(pg, m))
            .map(|(_, m)| m.bytes * m.to.len() as u64)
            .sum::<u64>();
        self.moved += arrives;
        self.arrivals.note(arrives, look.now);
        self.moving.retain(|pg, m| !arrived(pg, m) && !gone(pg));
        self.todo.retain(|pg, _| !gone(pg));
        if self.state == State::Waits {
            self.await_device(look);
        }
        if self.state != State::Running {
            return None;
        }
        let held = self.keep_pace(look.clients).or_else(|| self.holds_back(look));
        if let Some(why) = held {
            if self.moving.is_empty() {
                self.arrivals.stand();
            }
            self.note = why;
            return None;
        }
        let mut batch = Batch {
            look,
            trial: Trial::new(map.clone()),
            limits: self.limits,
            most: self.most(),
            busy: BTreeMap::new(),
            count: 0,
            chosen: BTreeMap::new(),
            blocked: BTreeSet::new(),
            differing: None,
        };
        self.moving.values().for_each(|m| batch.note(m));
        if let Err(Stop(why)) = self.fill(&mut batch) {
            self.note = why;
            return None;
        }
        if batch.chosen.is_empty() {
            if !self.moving.is_empty() {
                self.note.clear();
                return None;
            }
            if self.todo.is_empty() {
                return self.finish(look, batch.differing);
            }
            let why: Vec<String> = batch.blocked.into_iter().take(3).collect();
            self.note = format!("stuck: {}", why.join("; "));
            return None;
        }
        let mut edits = Edits::default();
        let mut bytes = 0;
        for (pg, (upmap, moving)) in batch.chosen {
            self.todo.remove(&pg);
            if self.way == Way::Forward {
                self.before.entry(pg).or_insert_with(|| Upmap::of(map, pg));
            }
            bytes += moving.bytes * moving.to.len() as u64;
            if moving.to.is_empty() {
                self.moving.remove(&pg);
            } else {
                self.moving.insert(pg, moving);
            }
            edits.upmaps.insert(pg, upmap);
        }
        if self.limits.rate > 0 {
            let pause = Duration::from_secs_f64(bytes as f64 / self.limits.rate as f64);
            self.not_before = look.now + pause;
        }
        self.note.clear();
        self.arrivals.go(look.now);
        self.maps += 1;
        Some(edits)
    }

    /// The store of an OSD that is replaced has another identity: data may come back. A new store
    /// on the device that was to be replaced gets nothing unless that is asked for.
    fn await_device(&mut self, look: Look<'_>) {
        let Some((osd, _)) = self.goal.osds.first() else { return };
        let new = |o: &types::osdmap::Osd| o.uuid != self.device && !o.uuid.is_zero();
        if !look.map.is_up(*osd) || !look.map.osd(*osd).is_some_and(new) {
            self.same_device = false;
            self.note.clear();
            return;
        }
        let serial = look.serials.get(osd);
        self.same_device = !self.serial.is_empty() && serial == Some(&self.serial);
        if self.same_device && !self.takes_same {
            self.note = format!(
                "osd.{osd} is back on the device that was to be replaced, {}: start it on another \
                 one, or take this one with siphon move resume {}",
                self.serial, self.id
            );
            return;
        }
        (self.state, self.way, self.same_device) = (State::Running, Way::Return, false);
        self.note.clear();
        self.arrivals.forget();
        self.todo = self.before.clone();
    }

    /// The ceiling that recovery on OSDs has to keep, in microseconds.
    pub fn ceiling(&self) -> Option<u64> {
        (self.state.is_open() && !self.degraded && self.limits.p99 > 0).then_some(self.limits.p99)
    }

    /// PGs that may move at a time.
    fn most(&self) -> u32 {
        match self.limits.p99 {
            0 => self.limits.pgs,
            _ => pace::allowed(self.limits.pgs, self.pace),
        }
    }

    /// Takes a measurement of clients' latency into account; why nothing begins to move.
    fn keep_pace(&mut self, clients: ClientLatency) -> Option<String> {
        let ceiling = self.limits.p99;
        if ceiling == 0 {
            return None;
        }
        if clients.number != self.paced {
            self.paced = clients.number;
            self.pace = pace::pace(self.pace, clients.p99, ceiling);
        }
        let millis = |us: u64| us as f64 / 1000.0;
        (self.most() == 0).then(|| match clients.p99 {
            Some(p99) => format!(
                "clients' p99 is {:.1} ms, and its ceiling {:.1} ms",
                millis(p99),
                millis(ceiling)
            ),
            None => "clients' p99 was above its ceiling".into(),
        })
    }

    /// When it ends.
    pub fn eta(&self, now: Utime) -> Option<Eta> {
        let left = self.total.saturating_sub(self.moved);
        (self.state == State::Running)
            .then(|| pace::eta(&self.arrivals, left, &self.limits, now))
            .flatten()
    }

    /// Why nothing begins to move now.
    fn holds_back(&self, look: Look<'_>) -> Option<String> {
        if !self.limits.permit(look.now) {
            return Some("outside of its hours".into());
        }
        if look.now < self.not_before {
            return Some("its rate is used up".into());
        }
        let leaving = self.leaving();
        let ours = |pg: &&PgId| {
            self.moving.contains_key(pg)
                || self.todo.contains_key(pg) && self.way == Way::Back
                || look.map.pg_to_raw_upmap(**pg).iter().any(|o| leaving.contains(o))
        };
        let others = look.unclean.iter().filter(|pg| !ours(pg)).count();
        (others > 0).then(|| format!("{others} other PGs are not clean"))
    }

    fn fill(&mut self, batch: &mut Batch<'_>) -> Result<(), Stop> {
        let map = batch.look.map;
        let leaving = self.leaving();
        if self.goal.verb == Verb::Balance && self.way == Way::Forward {
            self.fill_balance(batch);
            return Ok(());
        }
        if !leaving.is_empty() {
            return self.fill_leaving(batch, &leaving);
        }
        let mut never = Vec::new();
        // On the way back, what is on its way turns round first.
        let back = self.way == Way::Back;
        let (turning, waiting): (Vec<_>, Vec<_>) =
            self.todo.iter().partition(|(pg, _)| self.moving.contains_key(pg));
        let turning = turning.into_iter().filter(|_| back);
        for (pg, upmap) in turning.chain(waiting) {
            let turns = self.moving.get(pg);
            if turns.is_none() && batch.is_full() {
                break;
            }
            if let Some(m) = turns {
                batch.forget(m);
            }
            let chosen = batch.chosen.len();
            if Upmap::of(map, *pg) == *upmap {
                never.push((*pg, 0));
            } else if let Err(why) = batch.put(*pg, upmap) {
                batch.blocked.insert(format!("pg {pg}: {why}"));
                never.push((*pg, 1));
            }
            if let Some(m) = turns.filter(|_| batch.chosen.len() == chosen) {
                batch.note(m);
            }
        }
        for (pg, skipped) in never {
            self.todo.remove(&pg);
            self.skipped += skipped;
        }
        Ok(())
    }

    /// What is left of OSDs goes elsewhere.
    fn fill_leaving(
        &mut self,
        batch: &mut Batch<'_>,
        leaving: &BTreeSet<OsdId>,
    ) -> Result<(), Stop> {
        let map = batch.look.map;
        if self.todo.is_empty() && self.moving.is_empty() {
            // If nothing is left, weights come next: one look at all PGs serves both.
            let found = differing(map, &self.without(map)?, leaving);
            let mut placer = map.placer();
            let here =
                |pg: &PgId| placer.raw_upmap(*pg).iter().any(|o| leaving.contains(&OsdId(*o)));
            let here: Vec<PgId> = found.iter().copied().filter(here).collect();
            self.todo = here.into_iter().map(|pg| (pg, Upmap::default())).collect();
            batch.differing = Some(found);
        }
        if self.todo.is_empty() || batch.is_full() {
            return Ok(());
        }
        let without = self.without(map)?;
        let mut gone = Vec::new();
        for pg in self.todo.keys().filter(|pg| !self.moving.contains_key(pg)) {
            if batch.is_full() {
                break;
            }
            if !batch.leave(*pg, leaving, &without) {
                gone.push(*pg);
            }
        }
        gone.iter().for_each(|pg| drop(self.todo.remove(pg)));
        Ok(())
    }

    fn fill_balance(&self, batch: &mut Batch<'_>) {
        let (look, goal) = (batch.look, &self.goal);
        let measure = match goal.bytes_within {
            0 => Measure::Pgs(f64::from(goal.pgs_within.max(1))),
            n => Measure::Bytes(f64::from(n) / 1000.0),
        };
        let mut stats = look.stats.clone();
        for (osd, (_, coming)) in &batch.busy {
            if let Some(u) = stats.usage.get_mut(osd) {
                u.used += coming;
            }
        }
        let pools: Vec<PoolId> = look.map.pools.keys().copied().collect();
        let changes = batch.most.saturating_sub(batch.count) as usize;
        let movable = |pg: PgId| !self.moving.contains_key(&pg) && !look.unclean.contains(&pg);
        for p in propose(look.map, &stats, &pools, Bounds { measure, changes }, &movable) {
            // What it moves is one copy; it is checked again, for limits of OSDs.
            let _ = batch.put(p.pg, &p.upmap);
        }
    }

    /// `differing`: the PGs that a drain's change of CRUSH may place otherwise, if they are known.
    fn finish(&mut self, look: Look<'_>, differing: Option<Vec<PgId>>) -> Option<Edits> {
        let finished = match (self.way, self.goal.verb) {
            (Way::Forward, Verb::Drain) => {
                let acts = |o: &OsdId| look.acting.get(o).is_some_and(|n| *n > 0);
                if let Some(osd) = self.leaving().iter().find(|o| acts(o)) {
                    self.note = format!("osd.{osd} still acts for PGs");
                    return None;
                }
                let weights = self.goal.osds.iter().map(|(o, _)| (*o, 0)).collect();
                self.change_at_last(look.map, Change { weights, ..Change::default() }, differing)
            }
            (Way::Forward, Verb::Rule) if !self.changed => {
                let rules = vec![(self.goal.pool, self.goal.rule)];
                self.change_at_last(look.map, Change { rules, ..Change::default() }, None)
            }
            (Way::Forward, Verb::Replace) => {
                self.state = State::Waits;
                self.note.clear();
                return None;
            }
            (Way::Back, _) if self.changed => self.change_back(look.map),
            _ => Ok(Edits::default()),
        };
        match finished {
            Ok(edits) => {
                let back = self.way == Way::Back;
                self.state = if back { State::Undone } else { State::Done };
                self.ended = look.now;
                self.note.clear();
                self.maps += u64::from(edits != Edits::default());
                (edits != Edits::default()).then_some(edits)
            }
            Err(Stop(why)) => {
                self.note = format!("stuck: {why}");
                None
            }
        }
    }

    /// All data is where the change leaves it.
    fn change_at_last(
        &mut self,
        map: &OsdMap,
        change: Change,
        differing: Option<Vec<PgId>>,
    ) -> Result<Edits, Stop> {
        let mut new = map.clone();
        let reverse = change.apply(&mut new)?;
        let upmaps = match differing {
            Some(these) => hold_these(map, new, these)?,
            None => hold(map, new)?,
        };
        (self.changed, self.reverse) = (true, reverse);
        for pg in upmaps.keys() {
            self.before.entry(*pg).or_insert_with(|| Upmap::of(map, *pg));
        }
        Ok(Edits { change, upmaps })
    }

    /// All data is where it was before the change.
    fn change_back(&mut self, map: &OsdMap) -> Result<Edits, Stop> {
        let mut new = map.clone();
        self.reverse.apply(&mut new)?;
        self.before.iter().for_each(|(pg, upmap)| upmap.put(&mut new, *pg));
        let upmaps = hold(map, new)?;
        self.changed = false;
        Ok(Edits { change: self.reverse.clone(), upmaps })
    }

    /// What part has moved.
    pub fn progress(&self) -> f64 {
        if !self.state.is_open() || self.state == State::Waits {
            return 1.0;
        }
        if self.total == 0 { 0.0 } else { (self.moved as f64 / self.total as f64).min(1.0) }
    }
}
