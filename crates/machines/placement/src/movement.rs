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

use crate::Stats;
use crate::balance::{Bounds, Measure, propose};
use crate::pace::{self, Arrivals, ClientLatency, Eta};
use crate::stats::groups;
use crate::upmap::{Refused, Trial, Upmap, same_place};
use denc_derive::Denc;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use types::{Epoch, Fsid, OsdId, OsdMap, PgId, PoolId, Release, Utime};

/// What is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Denc)]
#[denc(repr = "u8")]
pub enum Verb {
    /// OSDs are to have nothing, and no weight in CRUSH afterwards.
    #[default]
    Drain = 1,
    /// OSDs get a weight in CRUSH, and their part of the data.
    Grow = 2,
    /// A pool gets another rule.
    Rule = 3,
    /// An OSD is to have nothing, and to have the same again with another device.
    Replace = 4,
    /// OSDs are to have their part.
    Balance = 5,
}

impl Verb {
    /// As commands name it.
    pub fn name(self) -> &'static str {
        match self {
            Verb::Drain => "drain",
            Verb::Grow => "grow",
            Verb::Rule => "rule",
            Verb::Replace => "replace",
            Verb::Balance => "balance",
        }
    }
}

/// What is wanted, of what.
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct Goal {
    /// What.
    pub verb: Verb,
    /// Of these OSDs; to grow: with these weights in CRUSH, 16.16 fixed point.
    pub osds: Vec<(OsdId, u32)>,
    /// Of this pool,
    pub pool: PoolId,
    /// which gets this rule.
    pub rule: u8,
    /// To balance: bytes, within so many per mille of an OSD's part. 0: PGs.
    pub bytes_within: u32,
    /// To balance: PGs of each pool, within so many.
    pub pgs_within: u32,
}

/// How much at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Denc)]
#[denc(version = 2, compat = 1)]
pub struct Limits {
    /// PGs that move at a time.
    pub pgs: u32,
    /// PGs that move from or to one OSD at a time.
    pub per_osd: u32,
    /// Bytes a second over all; 0 for as fast as it goes.
    pub rate: u64,
    /// Minutes of the day in UTC from which on
    pub from: u16,
    /// and until which something begins to move; the same for always.
    pub until: u16,
    /// Microseconds that 99 of 100 operations of clients take at most, or less begins to move; 0
    /// for no such ceiling.
    #[denc(since = 2)]
    pub p99: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { pgs: 16, per_osd: 2, rate: 0, from: 0, until: 0, p99: 0 }
    }
}

impl Limits {
    fn permit(&self, now: Utime) -> bool {
        let minute = (now.sec % 86_400 / 60) as u16;
        match self.from.cmp(&self.until) {
            std::cmp::Ordering::Equal => true,
            std::cmp::Ordering::Less => minute >= self.from && minute < self.until,
            std::cmp::Ordering::Greater => minute >= self.from || minute < self.until,
        }
    }
}

/// Whether a job does something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Denc)]
#[denc(repr = "u8")]
pub enum State {
    /// It goes on.
    #[default]
    Running = 1,
    /// Nothing begins to move.
    Paused = 2,
    /// An OSD has nothing, and a new device is awaited.
    Waits = 3,
    /// It has reached its goal.
    Done = 4,
    /// All is as it was.
    Undone = 5,
}

impl State {
    /// As commands show it.
    pub fn name(self) -> &'static str {
        match self {
            State::Running => "running",
            State::Paused => "paused",
            State::Waits => "waits for the new device",
            State::Done => "done",
            State::Undone => "undone",
        }
    }

    /// Whether the job may still change the map.
    pub fn is_open(self) -> bool {
        !matches!(self, State::Done | State::Undone)
    }
}

/// Where a job goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Denc)]
#[denc(repr = "u8")]
pub enum Way {
    /// To its goal.
    #[default]
    Forward = 1,
    /// To how it was before.
    Back = 2,
    /// To a new device.
    Return = 3,
}

/// A change of what CRUSH chooses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct Change {
    /// Weights of OSDs in CRUSH.
    pub weights: Vec<(OsdId, u32)>,
    /// Rules of pools.
    pub rules: Vec<(PoolId, u8)>,
}

impl Change {
    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.weights.is_empty() && self.rules.is_empty()
    }

    /// Makes the change; returns the one that takes it back.
    pub fn apply(&self, map: &mut OsdMap) -> Result<Change, Stop> {
        let mut back = Change::default();
        if !self.weights.is_empty() {
            let mut crush = (*map.crush).clone();
            for (osd, weight) in &self.weights {
                let gone = || Stop(format!("osd.{osd} is not in the CRUSH map"));
                back.weights.push((*osd, crush.item_weight(osd.0).ok_or_else(gone)?));
                crush.adjust_item_weight(osd.0, *weight, true).map_err(|e| Stop(e.to_string()))?;
            }
            map.crush = Arc::new(crush);
        }
        for (id, rule) in &self.rules {
            let gone = || Stop(format!("pool {id} does not exist"));
            let pool = map.pools.get_mut(id).ok_or_else(gone)?;
            back.rules.push((*id, std::mem::replace(&mut pool.crush_rule, *rule)));
        }
        Ok(back)
    }
}

/// What one map changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edits {
    /// What CRUSH chooses.
    pub change: Change,
    /// Upmaps.
    pub upmaps: BTreeMap<PgId, Upmap>,
}

impl Edits {
    /// Makes the changes.
    pub fn apply(&self, map: &mut OsdMap) -> Result<(), Stop> {
        self.change.apply(map)?;
        for (pg, upmap) in &self.upmaps {
            upmap.put(map, *pg);
        }
        Ok(())
    }
}

/// Why a job does not begin, or does not go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Stop(pub String);

/// A PG on its way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct Moving {
    /// The map that moves it.
    pub epoch: Epoch,
    /// Bytes of one copy.
    pub bytes: u64,
    /// The OSDs that it leaves,
    pub from: Vec<OsdId>,
    /// and those that it comes to.
    pub to: Vec<OsdId>,
}

/// A job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 2, compat = 1)]
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
}

/// What a step is chosen from.
#[derive(Clone, Copy)]
pub struct Look<'a> {
    /// The map.
    pub map: &'a OsdMap,
    /// What is known of data.
    pub stats: &'a Stats,
    /// PGs that are not active and clean.
    pub unclean: &'a BTreeSet<PgId>,
    /// How many PGs each OSD acts for.
    pub acting: &'a BTreeMap<OsdId, u32>,
    /// All OSDs that are up have told what they have with this map or a later one.
    pub told: Epoch,
    /// The epoch that the next map gets.
    pub next: Epoch,
    /// The time.
    pub now: Utime,
    /// How long clients' operations took.
    pub clients: ClientLatency,
    /// Model and serial number of devices that have one OSD.
    pub serials: &'a BTreeMap<OsdId, String>,
}

/// Upmaps that keep all data where the old map has it when the new one takes its place.
pub fn hold(old: &OsdMap, new: OsdMap) -> Result<BTreeMap<PgId, Upmap>, Stop> {
    let mut trial = Trial::new(new);
    for pg in old.pools.keys().flat_map(|p| groups(old, *p)) {
        let was = old.pg_to_raw_upmap(pg);
        let by_hand = !Upmap::of(&trial.map, pg).is_empty();
        let same = same_place(is_replicated(old, pg), &trial.map.pg_to_raw_upmap(pg), &was);
        if same && (!by_hand || trial.is_sound(pg)) {
            continue;
        }
        let why = |e: Refused| Stop(format!("pg {pg} cannot stay on {}: {e}", show(&was)));
        trial.place(pg, &was).map_err(why)?;
    }
    trial.map.clean_upmaps();
    let touched: BTreeSet<PgId> = old.upmapped().into_iter().chain(trial.map.upmapped()).collect();
    let mut upmaps = BTreeMap::new();
    for pg in touched {
        let was = old.pg_to_raw_upmap(pg);
        if !same_place(is_replicated(old, pg), &trial.map.pg_to_raw_upmap(pg), &was) {
            return Err(Stop(format!("pg {pg} cannot stay on {}", show(&was))));
        }
        let upmap = Upmap::of(&trial.map, pg);
        if upmap != Upmap::of(old, pg) {
            upmaps.insert(pg, upmap);
        }
    }
    Ok(upmaps)
}

fn is_replicated(map: &OsdMap, pg: PgId) -> bool {
    map.pool(pg.pool).is_some_and(|p| p.is_replicated())
}

fn show(osds: &[OsdId]) -> String {
    let names: Vec<String> = osds.iter().map(|o| o.to_string()).collect();
    format!("[{}]", names.join(","))
}

/// Which OSDs leave a PG's placement, and which come.
pub(crate) fn shift(replicated: bool, was: &[OsdId], is: &[OsdId]) -> (Vec<OsdId>, Vec<OsdId>) {
    if replicated {
        let not_in = |a: &[OsdId], b: &[OsdId]| {
            a.iter().filter(|o| o.is_some() && !b.contains(o)).copied().collect()
        };
        return (not_in(was, is), not_in(is, was));
    }
    let pairs = || was.iter().zip(is).filter(|(a, b)| a != b);
    (
        pairs().map(|(a, _)| *a).filter(|o| o.is_some()).collect(),
        pairs().map(|(_, b)| *b).filter(|o| o.is_some()).collect(),
    )
}

/// How one step fills up: what is chosen, and what bounds the rest.
struct Batch<'a> {
    look: Look<'a>,
    trial: Trial,
    limits: Limits,
    /// PGs that may move at a time.
    most: u32,
    /// PGs that move, by OSD, and bytes that come.
    busy: BTreeMap<OsdId, (u32, u64)>,
    count: u32,
    chosen: BTreeMap<PgId, (Upmap, Moving)>,
    /// Why something does not move now.
    blocked: BTreeSet<String>,
}

impl Batch<'_> {
    fn is_full(&self) -> bool {
        self.count >= self.most
    }

    /// Whether a PG may go now. An OSD that it comes to must be up, and have room for all that
    /// comes.
    fn may(&mut self, pg: PgId, from: &[OsdId], to: &[OsdId]) -> bool {
        let bytes = self.look.stats.copy_bytes(self.look.map, pg);
        for osd in to {
            let coming = self.busy.get(osd).map_or(0, |b| b.1);
            let why = if !self.look.map.is_up(*osd) {
                format!("osd.{osd} is down")
            } else if !self.look.stats.has_room(self.look.map, *osd, coming + bytes) {
                format!("osd.{osd} has no room below backfillfull")
            } else {
                continue;
            };
            self.blocked.insert(why);
            return false;
        }
        let busy = |o: &OsdId| self.busy.get(o).is_some_and(|b| b.0 >= self.limits.per_osd);
        !from.iter().chain(to).any(busy)
    }

    /// A PG is on its way already.
    fn note(&mut self, m: &Moving) {
        for osd in m.from.iter().chain(&m.to) {
            self.busy.entry(*osd).or_default().0 += 1;
        }
        for osd in &m.to {
            self.busy.entry(*osd).or_default().1 += m.bytes;
        }
        self.count += 1;
    }

    /// It is not any more.
    fn forget(&mut self, m: &Moving) {
        for osd in m.from.iter().chain(&m.to) {
            let busy = self.busy.entry(*osd).or_default();
            busy.0 = busy.0.saturating_sub(1);
        }
        for osd in &m.to {
            let busy = self.busy.entry(*osd).or_default();
            busy.1 = busy.1.saturating_sub(m.bytes);
        }
        self.count = self.count.saturating_sub(1);
    }

    fn take(&mut self, pg: PgId, upmap: Upmap, from: Vec<OsdId>, to: Vec<OsdId>) {
        let bytes = self.look.stats.copy_bytes(self.look.map, pg);
        for osd in from.iter().chain(&to) {
            self.busy.entry(*osd).or_default().0 += 1;
        }
        for osd in &to {
            self.busy.entry(*osd).or_default().1 += bytes;
        }
        self.count += u32::from(!to.is_empty());
        self.chosen.insert(pg, (upmap, Moving { epoch: self.look.next, bytes, from, to }));
    }

    /// Gives a PG this upmap, if it may go now. An error if it never may.
    fn put(&mut self, pg: PgId, upmap: &Upmap) -> Result<bool, Refused> {
        let was = self.trial.map.pg_to_raw_upmap(pg);
        let before = Upmap::of(&self.trial.map, pg);
        self.trial.put(pg, upmap)?;
        let is = self.trial.map.pg_to_raw_upmap(pg);
        let (from, to) = shift(is_replicated(self.look.map, pg), &was, &is);
        if !to.is_empty() && !self.may(pg, &from, &to) {
            before.put(&mut self.trial.map, pg);
            return Ok(false);
        }
        self.take(pg, upmap.clone(), from, to);
        Ok(true)
    }

    /// Brings a PG away from OSDs: to where CRUSH has it without them, if that is allowed, or else
    /// to the emptiest OSDs that are.
    fn leave(&mut self, pg: PgId, leaving: &BTreeSet<OsdId>, without: &OsdMap) -> bool {
        let was = self.trial.map.pg_to_raw_upmap(pg);
        let crush = without.pg_to_raw_osds(pg);
        let rule = self.look.map.pool(pg.pool).map_or(0, |p| p.crush_rule);
        let (map, stats) = (self.look.map, self.look.stats);
        let fill = |o: &OsdId| {
            let coming = self.busy.get(o).map_or(0, |b| b.1);
            stats.usage.get(o).map_or(2.0, |u| (u.used + coming) as f64 / u.total.max(1) as f64)
        };
        let mut others: Vec<(f64, OsdId)> = without
            .crush
            .rule_weights(rule.into())
            .into_iter()
            .filter(|(o, w)| *w > 0.0 && map.is_in(OsdId(*o)) && map.is_up(OsdId(*o)))
            .map(|(o, _)| (fill(&OsdId(o)), OsdId(o)))
            .collect();
        others.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let candidates: Vec<OsdId> = crush
            .into_iter()
            .filter(|o| o.is_some())
            .chain(others.into_iter().map(|o| o.1))
            .collect();
        let Some((upmap, is)) = self.replace(pg, was.clone(), leaving, &candidates) else {
            if self.blocked.is_empty() {
                self.blocked.insert(format!("no OSD can take pg {pg}"));
            }
            return false;
        };
        let (from, to) = shift(is_replicated(map, pg), &was, &is);
        self.take(pg, upmap, from, to);
        true
    }

    /// Replaces one leaving OSD after the other; each by the first candidate that may.
    fn replace(
        &mut self,
        pg: PgId,
        set: Vec<OsdId>,
        leaving: &BTreeSet<OsdId>,
        candidates: &[OsdId],
    ) -> Option<(Upmap, Vec<OsdId>)> {
        let Some(at) = set.iter().position(|o| leaving.contains(o)) else {
            let before = Upmap::of(&self.trial.map, pg);
            let was = self.trial.map.pg_to_raw_upmap(pg);
            let upmap = self.trial.place(pg, &set).ok()?;
            let (from, to) = shift(is_replicated(self.look.map, pg), &was, &set);
            if self.may(pg, &from, &to) {
                return Some((upmap, set));
            }
            before.put(&mut self.trial.map, pg);
            return None;
        };
        for new in candidates {
            if set.contains(new) || leaving.contains(new) || !self.may(pg, &[], &[*new]) {
                continue;
            }
            let mut next = set.clone();
            next[at] = *new;
            if let Some(found) = self.replace(pg, next, leaving, candidates) {
                return Some(found);
            }
        }
        None
    }
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
        let mut job = Job { id, goal, limits, began: now, pace: pace::WHOLE, ..Job::default() };
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
                job.todo = job.on_leaving(map).map(|pg| (pg, Upmap::default())).collect();
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

    fn on_leaving<'a>(&self, map: &'a OsdMap) -> impl Iterator<Item = PgId> + use<'a> {
        let leaving = self.leaving();
        map.pools
            .keys()
            .flat_map(|p| groups(map, *p))
            .filter(move |pg| map.pg_to_raw_upmap(*pg).iter().any(|o| leaving.contains(o)))
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
                return self.finish(look);
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
            if self.todo.is_empty() && self.moving.is_empty() {
                self.todo = self.on_leaving(map).map(|pg| (pg, Upmap::default())).collect();
            }
            if self.todo.is_empty() {
                return Ok(());
            }
            let without = self.without(map)?;
            let here = |pg: &PgId| map.pg_to_raw_upmap(*pg).iter().any(|o| leaving.contains(o));
            let moving = &self.moving;
            self.todo.retain(|pg, _| here(pg) || moving.contains_key(pg));
            for pg in self.todo.keys().filter(|pg| !moving.contains_key(pg)) {
                if batch.is_full() {
                    break;
                }
                batch.leave(*pg, &leaving, &without);
            }
            return Ok(());
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

    fn finish(&mut self, look: Look<'_>) -> Option<Edits> {
        let finished = match (self.way, self.goal.verb) {
            (Way::Forward, Verb::Drain) => {
                let acts = |o: &OsdId| look.acting.get(o).is_some_and(|n| *n > 0);
                if let Some(osd) = self.leaving().iter().find(|o| acts(o)) {
                    self.note = format!("osd.{osd} still acts for PGs");
                    return None;
                }
                let weights = self.goal.osds.iter().map(|(o, _)| (*o, 0)).collect();
                self.change_at_last(look.map, Change { weights, ..Change::default() })
            }
            (Way::Forward, Verb::Rule) if !self.changed => {
                let rules = vec![(self.goal.pool, self.goal.rule)];
                self.change_at_last(look.map, Change { rules, ..Change::default() })
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
    fn change_at_last(&mut self, map: &OsdMap, change: Change) -> Result<Edits, Stop> {
        let mut new = map.clone();
        let reverse = change.apply(&mut new)?;
        let upmaps = hold(map, new)?;
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

/// What a job would do.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Maps that it makes.
    pub maps: u64,
    /// Placements that change.
    pub pgs: u64,
    /// Bytes that move.
    pub bytes: u64,
    /// The part of its device that each OSD that something comes to has taken at most.
    pub peak: BTreeMap<OsdId, f64>,
    /// Why it does not reach its goal, as things are.
    pub stuck: Option<String>,
    /// PGs that stay where they are although they should not.
    pub skipped: u64,
}

/// Steps of a plan at most.
const PLAN_STEPS_MAX: u64 = 100_000;

/// Goes through a job that was just begun, as if all went well. `map` has what beginning it
/// changed.
pub fn plan(job: &Job, map: &OsdMap, stats: &Stats) -> Result<(Plan, OsdMap), Stop> {
    let (mut job, mut map, mut stats) = (job.clone(), map.clone(), stats.clone());
    // Hours, rate and ceiling make it longer, not other.
    job.limits = Limits { rate: 0, from: 0, until: 0, p99: 0, ..job.limits };
    let (unclean, acting, serials) = (BTreeSet::new(), BTreeMap::new(), BTreeMap::new());
    let mut plan = Plan::default();
    for _ in 0..PLAN_STEPS_MAX {
        let next = map.epoch.next();
        let look = Look {
            map: &map,
            stats: &stats,
            unclean: &unclean,
            acting: &acting,
            told: map.epoch,
            next,
            now: Utime::default(),
            clients: ClientLatency::default(),
            serials: &serials,
        };
        let edits = job.step(look);
        if let Some(edits) = &edits {
            edits.apply(&mut map)?;
            map.epoch = next;
        }
        for m in job.moving.values() {
            plan.pgs += 1;
            plan.bytes += m.bytes * m.to.len() as u64;
            for osd in &m.to {
                if let Some(u) = stats.usage.get_mut(osd) {
                    u.used += m.bytes;
                }
            }
        }
        for osd in job.moving.values().flat_map(|m| &m.to) {
            if let Some(u) = stats.usage.get(osd).filter(|u| u.total > 0) {
                let peak = plan.peak.entry(*osd).or_default();
                *peak = peak.max(u.used as f64 / u.total as f64);
            }
        }
        for m in job.moving.values() {
            for osd in &m.from {
                if let Some(u) = stats.usage.get_mut(osd) {
                    u.used = u.used.saturating_sub(m.bytes);
                }
            }
        }
        if !job.state.is_open() || job.state == State::Waits {
            break;
        }
        if edits.is_none() && job.moving.is_empty() {
            plan.stuck = Some(job.note.clone());
            break;
        }
    }
    (plan.maps, plan.skipped) = (job.maps, job.skipped);
    Ok((plan, map))
}
