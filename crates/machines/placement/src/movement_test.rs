//! Movement jobs on random clusters: whatever happens when, each map in between holds.

use crate::movement::{Goal, Job, Limits, Look, State, Verb, Way, plan, shift};
use crate::pace::ClientLatency;
use crate::stats::{Stats, Usage, groups};
use crate::testing::{Rng, Shape, add_osd, cluster, up};
use crate::upmap::{Upmap, same_place};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use types::osdmap::RuleWeights;
use types::{Epoch, Fsid, OsdId, OsdMap, PgId, PoolId, Utime};

const SHAPES: [Shape; 3] = [
    Shape { racks: 3, hosts: 2, osds: 2, pools: &[(3, 64), (2, 16)], erasure: false, mixed: false },
    Shape { racks: 4, hosts: 2, osds: 2, pools: &[(3, 32), (4, 32)], erasure: true, mixed: true },
    Shape { racks: 4, hosts: 1, osds: 3, pools: &[(2, 32), (3, 32)], erasure: false, mixed: true },
];

/// A cluster in which a job runs. A PG that moves takes room at both ends until it has arrived.
struct World {
    map: OsdMap,
    stats: Stats,
    job: Job,
    unclean: BTreeSet<PgId>,
    degraded: bool,
    /// Where the data is.
    data: BTreeMap<PgId, Vec<OsdId>>,
    now: Utime,
    bytes: u64,
    clients: ClientLatency,
    serials: BTreeMap<OsdId, String>,
}

fn all(map: &OsdMap) -> Vec<PgId> {
    map.pools.keys().flat_map(|p| groups(map, *p)).collect()
}

fn placed(map: &OsdMap) -> BTreeMap<PgId, Vec<OsdId>> {
    all(map).into_iter().map(|pg| (pg, map.pg_to_raw_upmap(pg))).collect()
}

impl World {
    fn begin(map: OsdMap, stats: Stats, goal: Goal, limits: Limits) -> Result<World, String> {
        let now = Utime::new(1_000_000, 0);
        let (job, edits) = Job::begin(1, goal, limits, &map, &stats, now).map_err(|e| e.0)?;
        let data = placed(&map);
        let (unclean, serials) = (BTreeSet::new(), BTreeMap::new());
        let (degraded, clients) = (false, ClientLatency::default());
        let mut w =
            World { map, stats, job, unclean, degraded, data, now, bytes: 0, clients, serials };
        w.take(edits);
        Ok(w)
    }

    /// The next map, which the monitors make: it must hold.
    fn take(&mut self, edits: crate::movement::Edits) {
        if edits == Default::default() {
            return;
        }
        let moves_nothing = !edits.change.is_empty();
        let mut next = self.map.clone();
        edits.apply(&mut next).unwrap();
        next.epoch = next.epoch.next();
        let mut weights = RuleWeights::default();
        for pg in next.upmapped() {
            assert_eq!(
                next.check_upmap(pg, &mut weights),
                Ok(()),
                "{pg} {:?}",
                Upmap::of(&next, pg)
            );
        }
        assert_eq!(next.clone().clean_upmaps(), [], "nothing is needless");
        for pg in all(&next) {
            let replicated = next.pools[&pg.pool].is_replicated();
            let (was, is) = (self.map.pg_to_raw_upmap(pg), next.pg_to_raw_upmap(pg));
            assert_eq!(was.len(), is.len(), "{pg}");
            if same_place(replicated, &was, &is) {
                continue;
            }
            assert!(!moves_nothing, "a change of CRUSH moves {pg} from {was:?} to {is:?}");
            self.unclean.insert(pg);
        }
        self.map = next;
        self.check();
    }

    /// What each OSD has if all that comes has come and nothing has left.
    fn check(&self) {
        let mut used: BTreeMap<OsdId, u64> = BTreeMap::new();
        for (pg, at) in &self.data {
            let bytes = self.stats.copy_bytes(&self.map, *pg);
            let to = self.map.pg_to_raw_upmap(*pg);
            for osd in at.iter().chain(to.iter().filter(|o| !at.contains(o))) {
                *used.entry(*osd).or_default() += bytes;
            }
        }
        for (osd, used) in used {
            let Usage { total, .. } = self.stats.usage[&osd];
            assert!(used as f64 <= total as f64 * 0.9, "osd.{osd} has {used} of {total}");
        }
        let job = &self.job;
        if job.way == Way::Forward {
            assert!(job.moving.len() <= job.limits.pgs as usize);
            for osd in self.stats.usage.keys() {
                let busy =
                    job.moving.values().filter(|m| m.from.contains(osd) || m.to.contains(osd));
                assert!(busy.count() <= job.limits.per_osd as usize, "osd.{osd}");
            }
        }
    }

    fn arrive(&mut self, pg: PgId) {
        self.unclean.remove(&pg);
        let to = self.map.pg_to_raw_upmap(pg);
        let bytes = self.stats.copy_bytes(&self.map, pg);
        let at = self.data.insert(pg, to.clone()).unwrap();
        for osd in at.iter().filter(|o| !to.contains(o)) {
            self.stats.usage.get_mut(osd).unwrap().used -= bytes;
        }
        for osd in to.iter().filter(|o| !at.contains(o)) {
            self.stats.usage.get_mut(osd).unwrap().used += bytes;
        }
        let come = shift(self.map.pools[&pg.pool].is_replicated(), &at, &to).1;
        self.bytes += bytes * come.len() as u64;
    }

    fn step(&mut self) -> bool {
        let mut acting = BTreeMap::new();
        for osd in self.data.values().flatten() {
            *acting.entry(*osd).or_insert(0) += 1;
        }
        let look = Look {
            map: &self.map,
            stats: &self.stats,
            unclean: &self.unclean,
            degraded: self.degraded,
            acting: &acting,
            told: self.map.epoch,
            next: self.map.epoch.next(),
            now: self.now,
            clients: self.clients,
            serials: &self.serials,
        };
        let edits = self.job.step(look);
        let took = edits.is_some();
        if let Some(edits) = edits {
            self.take(edits);
        }
        took
    }

    /// Until it ends, with what happens drawn at random.
    fn run(&mut self, rng: &mut Rng, until: impl Fn(&World) -> bool) {
        for _ in 0..20_000 {
            if until(self) || !self.job.state.is_open() {
                return;
            }
            match rng.below(10) {
                0 => drop(self.job.pause()),
                1..4 => drop(self.job.resume()),
                _ => {}
            }
            // The monitors that lead next have what was stored.
            let stored = denc::Encode::to_bytes(&self.job, denc::Features::ALL);
            self.job = denc::Decode::from_bytes(&stored).unwrap();
            self.now = self.now + Duration::from_secs(1 + rng.below(5));
            if rng.below(4) == 0 {
                let p99 = (rng.below(3) > 0).then(|| 2_000 + rng.below(10_000));
                self.clients = ClientLatency { number: self.clients.number + 1, p99 };
            }
            self.step();
            for pg in self.unclean.clone() {
                if rng.below(3) == 0 {
                    self.arrive(pg);
                }
            }
        }
        panic!("it does not end: {:?}", self.job);
    }
}

/// A cluster and something to do with it.
fn scene(shape: usize, verb: u64, rng: &mut Rng) -> (OsdMap, Stats, Goal) {
    let (mut map, mut stats) = cluster(SHAPES[shape], rng);
    let osds = map.osds.len() as u64;
    // Upmaps that are there already.
    for p in crate::balance::propose(
        &map,
        &stats,
        &[PoolId(1)],
        crate::balance::Bounds {
            measure: crate::balance::Measure::Pgs(1.0),
            changes: rng.below(8) as usize,
        },
        &|_| true,
    ) {
        p.upmap.put(&mut map, p.pg);
    }
    for u in stats.usage.values_mut() {
        u.used = 0;
    }
    for pg in all(&map) {
        let bytes = stats.copy_bytes(&map, pg);
        for osd in map.pg_to_raw_upmap(pg) {
            stats.usage.get_mut(&osd).unwrap().used += bytes;
        }
    }
    let one = OsdId(rng.below(osds) as i32);
    let goal = match verb {
        0 => Goal { verb: Verb::Drain, osds: vec![(one, 0)], ..Goal::default() },
        1 => {
            // Two OSDs on a new host, without weight until the job gives them one.
            let mut crush = (*map.crush).clone();
            for n in 0..2 {
                let osd = osds as i32 + n;
                add_osd(&mut crush, osd, 0, rng.below(2) as i32, 1000);
                map.osds.push(up());
                map.weights.push(0x10000);
                stats.usage.insert(OsdId(osd), Usage { total: 1 << 30, used: 0 });
            }
            map.crush = Arc::new(crush);
            let osds = (osds as i32..osds as i32 + 2).map(|o| (OsdId(o), 0x10000)).collect();
            Goal { verb: Verb::Grow, osds, ..Goal::default() }
        }
        2 => {
            // From hosts to racks, or back.
            let rule = 1;
            if rng.below(2) == 0 {
                Goal { verb: Verb::Rule, pool: PoolId(1), rule, ..Goal::default() }
            } else {
                map.pools.get_mut(&PoolId(1)).unwrap().crush_rule = rule;
                map.clean_upmaps();
                for u in stats.usage.values_mut() {
                    u.used = 0;
                }
                for pg in all(&map) {
                    let bytes = stats.copy_bytes(&map, pg);
                    for osd in map.pg_to_raw_upmap(pg) {
                        stats.usage.get_mut(&osd).unwrap().used += bytes;
                    }
                }
                Goal { verb: Verb::Rule, pool: PoolId(1), rule: 0, ..Goal::default() }
            }
        }
        3 => Goal { verb: Verb::Replace, osds: vec![(one, 0)], ..Goal::default() },
        _ => Goal {
            verb: Verb::Balance,
            pgs_within: 1,
            bytes_within: rng.below(2) as u32 * 20,
            ..Goal::default()
        },
    };
    (map, stats, goal)
}

fn limits(rng: &mut Rng) -> Limits {
    Limits {
        pgs: 1 + rng.below(12) as u32,
        per_osd: 1 + rng.below(3) as u32,
        rate: [0, 100 << 20][rng.below(2) as usize],
        p99: [0, 10_000][rng.below(2) as usize],
        ..Limits::default()
    }
}

fn is_full(e: &str) -> bool {
    e.contains("no place for") || e.contains("neither rule allows")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn a_job_reaches_its_goal(seed in any::<u64>(), shape in 0..SHAPES.len(), verb in 0..5u64) {
        let mut rng = Rng(seed);
        let (map, stats, goal) = scene(shape, verb, &mut rng);
        let before = placed(&map);
        let leaves: u64 = goal.osds.iter().map(|(o, _)| stats.usage[o].used).sum();
        let begun = World::begin(map.clone(), stats.clone(), goal.clone(), limits(&mut rng));
        let mut w = match begun {
            Ok(w) => w,
            Err(e) => { prop_assert!(is_full(&e), "{}", e); return Ok(()); }
        };
        for (pg, was) in &before {
            let is = w.map.pg_to_raw_upmap(*pg);
            prop_assert!(same_place(map.pools[&pg.pool].is_replicated(), was, &is), "beginning moves nothing");
        }
        let (planned, _) = plan(&w.job, &w.map, &stats).unwrap();
        w.run(&mut rng, |w| w.job.state == State::Waits);
        match goal.verb {
            Verb::Drain => {
                let osd = goal.osds[0].0;
                prop_assert!(placed(&w.map).values().all(|p| !p.contains(&osd)));
                prop_assert_eq!(w.map.crush.item_weight(osd.0), Some(0));
                prop_assert_eq!(w.bytes, leaves, "nothing else moves");
                prop_assert_eq!(planned.bytes, leaves);
            }
            Verb::Grow => {
                for (osd, weight) in &goal.osds {
                    prop_assert_eq!(w.map.crush.item_weight(osd.0), Some(*weight));
                    prop_assert!(placed(&w.map).values().any(|p| p.contains(osd)));
                }
                prop_assert!(w.bytes > 0 && planned.bytes == w.bytes);
            }
            Verb::Rule => {
                prop_assert_eq!(w.map.pools[&PoolId(1)].crush_rule, goal.rule);
                prop_assert!(planned.stuck.is_none());
            }
            Verb::Replace => {
                let osd = goal.osds[0].0;
                prop_assert!(placed(&w.map).values().all(|p| !p.contains(&osd)));
                prop_assert_eq!(w.job.state, State::Waits);
                w.run(&mut rng, |w| w.job.state == State::Waits && w.unclean.is_empty());
                // The same device back is not a new one.
                for _ in 0..3 { w.step(); }
                prop_assert_eq!(w.job.state, State::Waits);
                w.map.osds[osd.0 as usize].uuid = Fsid([7; 16]);
                w.run(&mut rng, |_| false);
                let same = |a: &BTreeMap<PgId, Vec<OsdId>>, b: &BTreeMap<PgId, Vec<OsdId>>| {
                    a.iter().all(|(pg, p)| same_place(w.map.pools[&pg.pool].is_replicated(), p, &b[pg]))
                };
                prop_assert!(same(&placed(&w.map), &before), "all is where it was");
                prop_assert_eq!(w.bytes, 2 * leaves);
            }
            Verb::Balance => {}
        }
        prop_assert_eq!(w.job.skipped, 0);
        prop_assert!(w.job.moving.is_empty() && w.job.todo.is_empty());
    }

    #[test]
    fn undo_brings_everything_back(seed in any::<u64>(), shape in 0..SHAPES.len(), verb in 0..5u64, after in 0..60u64) {
        let mut rng = Rng(seed);
        let (map, stats, goal) = scene(shape, verb, &mut rng);
        let begun = World::begin(map.clone(), stats.clone(), goal.clone(), limits(&mut rng));
        let mut w = match begun {
            Ok(w) => w,
            Err(e) => { prop_assert!(is_full(&e), "{}", e); return Ok(()); }
        };
        let stop = std::cell::Cell::new(after);
        w.run(&mut rng, |_| { stop.set(stop.get().saturating_sub(1)); stop.get() == 0 });
        let here = placed(&w.map);
        let edits = w.job.undo(&w.map, &w.stats).unwrap();
        w.take(edits);
        prop_assert_eq!(placed(&w.map).len(), here.len());
        prop_assert!(w.job.undo(&w.map, &w.stats).is_err(), "once");
        w.run(&mut rng, |_| false);
        prop_assert_eq!(w.job.state, State::Undone);
        prop_assert_eq!(w.job.skipped, 0);
        for (pg, was) in placed(&map) {
            let is = w.map.pg_to_raw_upmap(pg);
            prop_assert!(same_place(map.pools[&pg.pool].is_replicated(), &was, &is), "{} {:?} {:?}", pg, was, is);
        }
        prop_assert_eq!(&w.map.crush, &map.crush);
        prop_assert_eq!(&w.map.pg_upmap, &map.pg_upmap);
        prop_assert_eq!(&w.map.pg_upmap_items, &map.pg_upmap_items);
        prop_assert_eq!(w.map.pools[&PoolId(1)].crush_rule, map.pools[&PoolId(1)].crush_rule);
        for pg in w.unclean.clone() { w.arrive(pg); }
        for (osd, u) in &stats.usage {
            prop_assert_eq!(w.stats.usage[osd], *u, "osd.{}", osd);
        }
    }
}

#[test]
fn an_osd_that_is_too_full_stops_a_job_and_not_the_cluster() {
    let (map, mut stats, _) = scene(0, 4, &mut Rng(5));
    for u in stats.usage.values_mut() {
        u.total = u.used * 100 / 88;
    }
    let goal = Goal { verb: Verb::Drain, osds: vec![(OsdId(0), 0)], ..Goal::default() };
    let mut w = World::begin(map, stats, goal, Limits::default()).unwrap();
    let (planned, _) = plan(&w.job, &w.map, &w.stats).unwrap();
    assert!(planned.stuck.unwrap().contains("no room below backfillfull"));
    for _ in 0..50 {
        w.step();
        for pg in w.unclean.clone() {
            w.arrive(pg);
        }
    }
    assert!(w.job.note.contains("stuck") && w.job.state == State::Running, "{}", w.job.note);
    let edits = w.job.undo(&w.map, &w.stats).unwrap();
    w.take(edits);
    w.run(&mut Rng(1), |_| false);
    assert_eq!(w.job.state, State::Undone);
}

#[test]
fn hours_rates_and_other_troubles_hold_a_job_back() {
    let (map, stats, _) = scene(0, 4, &mut Rng(5));
    let goal = Goal { verb: Verb::Drain, osds: vec![(OsdId(1), 0)], ..Goal::default() };
    let night = Limits { from: 22 * 60, until: 6 * 60, ..Limits::default() };
    let mut w = World::begin(map.clone(), stats.clone(), goal.clone(), night).unwrap();
    w.now = Utime::new(86_400 + 12 * 3600, 0);
    assert!(!w.step() && w.job.note == "outside of its hours");
    w.now = Utime::new(86_400 + 23 * 3600, 0);
    assert!(w.step());
    let slow = Limits { rate: 1 << 20, ..Limits::default() };
    let mut w = World::begin(map.clone(), stats.clone(), goal.clone(), slow).unwrap();
    assert!(w.step());
    let bytes: u64 = w.job.moving.values().map(|m| m.bytes).sum();
    for pg in w.unclean.clone() {
        w.arrive(pg);
    }
    assert!(!w.step() && w.job.note == "its rate is used up");
    w.now = w.now + Duration::from_secs(1 + (bytes >> 20));
    assert!(w.step());
    let mut w = World::begin(map, stats, goal, Limits::default()).unwrap();
    let other = all(&w.map).into_iter().find(|pg| !w.map.pg_to_raw_upmap(*pg).contains(&OsdId(1)));
    w.unclean.insert(other.unwrap());
    assert!(!w.step() && w.job.note == "1 other PGs are not clean");
    // Nothing counts as arrived before all OSDs have told of the map that moved it.
    w.unclean.clear();
    assert!(w.step());
    let (n, unclean, acting) = (w.job.moving.len(), BTreeSet::new(), BTreeMap::new());
    let look = Look {
        map: &w.map,
        stats: &w.stats,
        unclean: &unclean,
        degraded: false,
        acting: &acting,
        told: Epoch(w.map.epoch.0 - 1),
        next: w.map.epoch.next(),
        now: w.now,
        clients: w.clients,
        serials: &w.serials,
    };
    w.job.step(look);
    assert!(w.job.moving.len() >= n);
}

#[test]
fn what_cannot_be_is_refused() {
    let (map, stats, _) = scene(0, 4, &mut Rng(5));
    let begin = |map: &OsdMap, goal: Goal| {
        World::begin(map.clone(), stats.clone(), goal, Limits::default()).err().unwrap_or_default()
    };
    let drain = |osds: &[i32]| Goal {
        verb: Verb::Drain,
        osds: osds.iter().map(|o| (OsdId(*o), 0)).collect(),
        ..Goal::default()
    };
    assert!(begin(&map, drain(&[])).contains("no OSD is named"));
    assert!(begin(&map, drain(&[99])).contains("osd.99 is not in both maps"));
    let most: Vec<i32> = (0..10).collect();
    assert!(begin(&map, drain(&most)).contains("has no place for"));
    let rule = |rule| Goal { verb: Verb::Rule, pool: PoolId(1), rule, ..Goal::default() };
    assert!(begin(&map, rule(9)).contains("rule 9 does not exist"));
    assert!(begin(&map, rule(0)).contains("has this rule"));
    let mut splitting = map.clone();
    splitting.pools.get_mut(&PoolId(1)).unwrap().pg_num_target = 128;
    assert!(begin(&splitting, drain(&[1])).contains("another number of PGs"));
    let mut old = map.clone();
    old.require_min_compat_client = types::Release::JEWEL;
    assert!(begin(&old, drain(&[1])).contains("set-require-min-compat-client luminous"));
}

#[test]
fn clients_that_are_slow_hold_a_job_back_and_let_it_go_on() {
    let (map, stats, _) = scene(0, 4, &mut Rng(5));
    let goal = Goal { verb: Verb::Drain, osds: vec![(OsdId(1), 0)], ..Goal::default() };
    let limits = Limits { pgs: 64, per_osd: 8, p99: 10_000, ..Limits::default() };
    let mut w = World::begin(map, stats, goal, limits).unwrap();
    let mut measured = 0;
    let mut measure = |w: &mut World, p99| {
        measured += 1;
        w.clients = ClientLatency { number: measured, p99 };
    };
    // It begins with one PG, and comes to its limits while there is room.
    measure(&mut w, Some(2_000));
    assert!(w.step());
    assert_eq!(w.job.moving.len(), 1);
    for _ in 0..5 {
        measure(&mut w, Some(2_000));
        w.step();
    }
    assert_eq!(w.job.moving.len(), 8);
    // Clients take four times as long as they should, again and again.
    for _ in 0..4 {
        measure(&mut w, Some(40_000));
        w.step();
    }
    for pg in w.unclean.clone() {
        w.arrive(pg);
    }
    assert!(!w.step());
    assert_eq!(w.job.note, "clients' p99 is 40.0 ms, and its ceiling 10.0 ms");
    assert!(w.job.moving.is_empty(), "what was on its way has arrived");
    // The same measurement counts once: it neither falls nor rises with digests.
    let held = w.job.clone();
    w.step();
    assert_eq!(w.job, held);
    // It comes back one PG after the other.
    let mut at_a_time = Vec::new();
    while w.job.state == State::Running && at_a_time.len() < 100 {
        measure(&mut w, Some(3_000));
        w.step();
        at_a_time.push(w.job.moving.len());
        for pg in w.unclean.clone() {
            w.arrive(pg);
        }
    }
    assert_eq!(w.job.state, State::Done);
    let most = at_a_time.iter().max().unwrap();
    assert!(at_a_time[0] == 1 && (2..8).contains(most), "{at_a_time:?}");
}

#[test]
fn recovery_of_objects_that_lack_copies_waits_for_no_ceiling() {
    let (map, stats, _) = scene(0, 4, &mut Rng(5));
    let goal = Goal { verb: Verb::Drain, osds: vec![(OsdId(1), 0)], ..Goal::default() };
    let limits = Limits { p99: 10_000, ..Limits::default() };
    let mut w = World::begin(map.clone(), stats.clone(), goal.clone(), limits).unwrap();
    assert_eq!(w.job.ceiling(), Some(10_000));
    for degraded in [true, false] {
        w.degraded = degraded;
        w.step();
        assert_eq!(w.job.ceiling(), (!degraded).then_some(10_000));
    }
    w.run(&mut Rng(3), |_| false);
    assert_eq!((w.job.state, w.job.ceiling()), (State::Done, None));
    let without = World::begin(map, stats, goal, Limits::default()).unwrap();
    assert_eq!(without.job.ceiling(), None);
}

#[test]
fn the_device_that_was_to_be_replaced_is_not_taken_back_unasked() {
    let (map, stats, _) = scene(0, 4, &mut Rng(5));
    let goal = Goal { verb: Verb::Replace, osds: vec![(OsdId(1), 0)], ..Goal::default() };
    let waits = |stats: &Stats| {
        let limits = Limits::default();
        let mut w = World::begin(map.clone(), stats.clone(), goal.clone(), limits).unwrap();
        w.job.serial = "M_1".into();
        w.run(&mut Rng(3), |w| w.job.state == State::Waits && w.unclean.is_empty());
        assert_eq!(w.job.state, State::Waits);
        w.map.osds[1].uuid = Fsid([7; 16]);
        w
    };
    // Another device: data comes back by itself. Likewise if its number is not known.
    for serial in [Some("M_2"), None] {
        let mut w = waits(&stats);
        w.serials.extend(serial.map(|s| (OsdId(1), s.to_owned())));
        w.run(&mut Rng(3), |_| false);
        assert_eq!((w.job.state, w.job.way), (State::Done, Way::Return));
    }
    // A new store on the same one.
    let mut w = waits(&stats);
    assert!(w.job.resume().is_err(), "there is nothing to take");
    w.serials.insert(OsdId(1), "M_1".into());
    for _ in 0..5 {
        assert!(!w.step());
    }
    assert!(w.job.state == State::Waits && w.job.same_device, "{:?}", w.job);
    assert!(w.job.note.contains("to be replaced, M_1"), "{}", w.job.note);
    // The right one after all.
    let mut other = World { job: w.job.clone(), map: w.map.clone(), ..waits(&stats) };
    other.serials.insert(OsdId(1), "M_2".into());
    other.run(&mut Rng(3), |_| false);
    assert_eq!(other.job.state, State::Done);
    // Or the same, by wish.
    w.job.resume().unwrap();
    w.run(&mut Rng(3), |_| false);
    assert_eq!((w.job.state, w.job.way), (State::Done, Way::Return));
}

/// 200 OSDs on 20 hosts in 5 racks, and 10,000 PGs.
const LARGE: Shape = Shape {
    racks: 5,
    hosts: 4,
    osds: 10,
    pools: &[(3, 8192), (3, 1808)],
    erasure: false,
    mixed: false,
};

/// Each map is checked against rules, room and limits, PG by PG; and so is the way back.
#[test]
fn ten_thousand_groups_move_within_rule_and_room() {
    let mut rng = Rng(200);
    let (map, mut stats) = cluster(LARGE, &mut rng);
    // Two thirds full: little room is left below backfillfull.
    for u in stats.usage.values_mut() {
        u.total /= 2;
    }
    assert_eq!((map.osds.len(), all(&map).len()), (200, 10_000));
    let host: Vec<(OsdId, u32)> = (0..10).map(|o| (OsdId(o), 0)).collect();
    let goal = Goal { verb: Verb::Drain, osds: host.clone(), ..Goal::default() };
    let leaves: u64 = host.iter().map(|(o, _)| stats.usage[o].used).sum();
    let limits = Limits { pgs: 600, per_osd: 100, ..Limits::default() };
    let before = placed(&map);
    let mut w = World::begin(map, stats, goal, limits).unwrap();
    let finish = |w: &mut World| {
        for _ in 0..1000 {
            if !w.job.state.is_open() {
                return;
            }
            w.step();
            for pg in w.unclean.clone() {
                w.arrive(pg);
            }
        }
        panic!("it does not end: {}", w.job.note);
    };
    finish(&mut w);
    assert_eq!((w.bytes, w.job.skipped), (leaves, 0), "what leaves the host moves, once");
    assert!(placed(&w.map).values().flatten().all(|o| o.0 >= 10));
    let edits = w.job.undo(&w.map, &w.stats).unwrap();
    w.take(edits);
    finish(&mut w);
    assert_eq!(w.job.state, State::Undone);
    let same = |(pg, was): (&PgId, &Vec<OsdId>)| same_place(true, was, &w.map.pg_to_raw_upmap(*pg));
    assert!(before.iter().all(same));
}
