//! Tenants that always have something to ask for: what `bench/promises.py` measures, in virtual
//! time.
//!
//! Three OSDs do 1000 operations a second each, and the tenants of that file's table share them. A
//! session keeps so many operations under way: when one is answered it sends the next one, to a
//! group of its pool that chance chooses. So what a tenant asks an OSD for follows from what all
//! OSDs give it, and is different in each moment. What is counted is what ended in whole seconds.
//!
//! An OSD does any number of operations at the same time; it is its scheduler that lets no more of
//! them begin. Now and then it does nothing at all for a moment, as one that waits for a processor
//! or a device.

use crate::random::Random;
use crate::scenario::SECOND;
use crate::world::{Ask, BEGIN, Clients, Event, Ground, World};
use admission::Request;
use admission::plain::{PlainRequest, Session};
use messages::TenantShare;
use promises::Resolved;
use promises::spec::Spec;
use qos::Access;
use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use types::PoolId;

/// A tenant, and what it is promised.
#[derive(Clone, Copy, Debug)]
pub struct Tenant {
    /// Its name.
    pub name: &'static str,
    /// What it is promised.
    pub promise: Promised,
    /// The pool: [`MANY`] or [`ONE`].
    pub pool: usize,
    /// Sessions.
    pub sessions: usize,
    /// Operations under way in each.
    pub depth: usize,
}

/// What a tenant is promised: operations each second at most, or at least, or a part of what others
/// leave.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Promised {
    /// At most, with a weight that lets it have as much.
    Ceiling(u64),
    /// At least, with a weight that gives it next to nothing else.
    Floor(u64),
    /// Share.
    Weight(u32),
}

/// The pool with many groups.
pub const MANY: usize = 0;
/// The pool with one group.
pub const ONE: usize = 1;
const POOLS: [&str; 2] = ["many", "one"];
const GROUPS: [usize; 2] = [128, 1];
const OSDS: usize = 3;
/// Operations each second that an OSD is told that it can do.
const CAPACITY: u64 = 1000;

const fn tenant(
    name: &'static str,
    promise: Promised,
    pool: usize,
    sessions: usize,
    depth: usize,
) -> Tenant {
    Tenant { name, promise, pool, sessions, depth }
}

/// Those of `bench/promises.py`.
pub const TENANTS: [Tenant; 10] = [
    tenant("ceiling-100", Promised::Ceiling(100), MANY, 1, 16),
    tenant("ceiling-300", Promised::Ceiling(300), MANY, 1, 16),
    tenant("ceiling-600", Promised::Ceiling(600), MANY, 1, 16),
    tenant("floor-200", Promised::Floor(200), MANY, 1, 48),
    tenant("floor-400", Promised::Floor(400), MANY, 1, 64),
    tenant("floor-200-on-one-osd", Promised::Floor(200), ONE, 1, 48),
    tenant("weight-100", Promised::Weight(100), MANY, 1, 48),
    tenant("weight-200", Promised::Weight(200), MANY, 1, 48),
    tenant("weight-300", Promised::Weight(300), MANY, 1, 48),
    tenant("weight-400-of-100-sessions", Promised::Weight(400), MANY, 100, 1),
];

/// The tenant with bursts, and its floor.
const BURSTS: usize = 4;
const FLOOR: u64 = 400;
/// Operations of a burst, and how long it is quiet when the last of them has ended.
const BLOCKS: u64 = 2 * FLOOR;
const QUIET: u64 = SECOND;
/// What is beside bursts: sessions of the last tenant, and what each has under way.
const BESIDE: [usize; 2] = [16, 16];

/// A client has an answer, and the OSD the next request, after so long together.
pub(crate) const WAY: u64 = 200_000;
/// How long an OSD takes for an operation, in nanoseconds.
pub(crate) const TAKES: [f64; 2] = [1e6, 5e6];
/// How long it does nothing at all, now and then.
const PAUSES: [f64; 2] = [20e6, 50e6];
/// After so long a new map names the primaries.
const MAP: u64 = 200_000_000;
/// What is done to the cluster is done to this OSD.
const VICTIM: usize = 1;
/// How long it, or the manager, is gone.
const GONE: u64 = SECOND;

/// How long, and what goes wrong.
#[derive(Clone, Debug)]
pub struct Steady {
    /// Everything follows from it.
    pub seed: u64,
    /// Virtual seconds until something is counted.
    pub warm_up: u64,
    /// Virtual seconds that are counted.
    pub seconds: u64,
    /// An OSD does nothing for a moment about every so many seconds; 0 for never.
    pub pauses: f64,
    /// So many times as many operations under way as in the table, in each session.
    pub deeper: usize,
    /// After a third of the time the manager fails, and another takes its place.
    pub manager_fails: bool,
    /// After a third of the time an OSD restarts. Others lead its groups meanwhile, and it has them
    /// back.
    pub osd_restarts: bool,
}

impl Default for Steady {
    fn default() -> Self {
        Steady {
            seed: 1,
            warm_up: 10,
            seconds: 20,
            pauses: 2.0,
            deeper: 1,
            manager_fails: false,
            osd_restarts: false,
        }
    }
}

enum Change {
    /// A request comes to the OSD that leads its group.
    Comes(usize),
    /// A tenant with bursts begins one.
    Begin,
    /// There is another map.
    Map,
    /// Some OSD does nothing for a moment.
    Pause,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    /// Its session is quiet.
    Rests,
    /// It is on its way.
    Coming,
    /// Its PG has no primary.
    Waits,
    /// An OSD has it.
    At(usize),
}

/// One of the operations that a session keeps under way.
struct Slot {
    tenant: usize,
    ask: Ask,
    session: u64,
    /// Where it was sent last: what was sent again elsewhere is not answered.
    sent: Option<Rc<Session>>,
    group: usize,
    state: State,
}

/// A PG's OSDs, the one before the other, and which of them is the primary.
struct Group {
    osds: Vec<usize>,
    leader: Option<usize>,
}

/// Bursts of one tenant.
#[derive(Default)]
struct Bursts {
    /// May still be sent in this one, and are under way.
    left: u64,
    under_way: u64,
    /// When they began.
    began: Vec<u64>,
}

struct Sessions {
    slots: Vec<Slot>,
    name: Rc<str>,
    groups: [Vec<Group>; 2],
    pauses: f64,
    bursts: Option<Bursts>,
    /// When operations of each tenant ended.
    ended: Vec<Vec<u64>>,
}

/// How many operations of each tenant ended in each second.
pub type Counts = Vec<Vec<u32>>;

/// The settings of an OSD that is told that it can do so many operations each second.
pub(crate) fn bounded(capacity: u64) -> conf::Config {
    let mut c = conf::Config::new();
    let capacity = capacity.to_string();
    for (option, value) in [
        ("osd_mclock_profile", "custom"),
        ("osd_mclock_max_capacity_iops_ssd", &capacity),
        ("osd_mclock_scheduler_client_lim", "1"),
    ] {
        assert!(
            c.set(conf::effective::Source::File, option, value).is_ok(),
            "{option} is an option"
        );
    }
    c
}

/// What the manager reads of a tenant, which is an image.
fn resolved(at: usize, t: &Tenant) -> Resolved {
    let (weight, floor_iops, ceiling_iops) = match t.promise {
        Promised::Ceiling(rate) => (1000, None, Some(rate)),
        Promised::Floor(rate) => (1, Some(rate), None),
        Promised::Weight(weight) => (weight, None, None),
    };
    let whose = TenantShare {
        name: format!("{}//{}", POOLS[t.pool], t.name),
        pool: Some(PoolId(t.pool as i64)),
        namespace: Some("".into()),
        prefix: Some(format!("rbd_data.{at:x}").into()),
        ..TenantShare::default()
    };
    Resolved {
        whose,
        promise: Spec { weight: Some(weight), floor_iops, ceiling_iops, ..Spec::default() }
            .promise(None),
    }
}

impl Sessions {
    /// So many sessions of each of these tenants, with so many operations under way.
    fn new(r: &mut Random, loads: &[(usize, usize, usize)], pauses: f64) -> Self {
        let mut group = || {
            let osds = r.some(OSDS, OSDS);
            let leader = osds.first().copied();
            Group { osds, leader }
        };
        let groups = GROUPS.map(|n| (0..n).map(|_| group()).collect());
        let (mut slots, mut session) = (Vec::new(), 0);
        for (tenant, sessions, depth) in loads {
            let (whose, pool) =
                (resolved(*tenant, &TENANTS[*tenant]).whose, PoolId(TENANTS[*tenant].pool as i64));
            for _ in 0..*sessions {
                for _ in 0..*depth {
                    let tid = slots.len();
                    let ask = Ask::new(&whose, pool, tid, (Access::Write, 4096), tid as u64);
                    slots.push(Slot {
                        tenant: *tenant,
                        ask,
                        session,
                        sent: None,
                        group: 0,
                        state: State::Rests,
                    });
                }
                session += 1;
            }
        }
        Sessions {
            slots,
            name: "client.admin".into(),
            groups,
            pauses,
            bursts: None,
            ended: vec![Vec::new(); TENANTS.len()],
        }
    }

    fn leader(&self, slot: usize) -> Option<usize> {
        let s = &self.slots[slot];
        self.groups[TENANTS[s.tenant].pool][s.group].leader
    }
}

fn world(s: &Steady, loads: &[(usize, usize, usize)], seconds: u64) -> World<Sessions> {
    let sessions = Sessions::new(&mut Random::new(s.seed), loads, s.pauses);
    let ground = Ground {
        seed: s.seed ^ 0x5151,
        configs: vec![bounded(CAPACITY); OSDS],
        resolved: TENANTS.iter().enumerate().map(|(at, t)| resolved(at, t)).collect(),
        late: 20.0,
        // Timers of the daemons.
        tick: 1_000_000,
        seconds: seconds as usize,
    };
    let mut w = World::new(ground, sessions);
    w.manager_up();
    w.pause_later();
    w
}

/// Runs all tenants beside each other.
pub fn run(s: &Steady) -> Counts {
    let loads: Vec<_> =
        TENANTS.iter().enumerate().map(|(at, t)| (at, t.sessions, t.depth * s.deeper)).collect();
    let all = s.warm_up + s.seconds;
    let mut w = world(s, &loads, all);
    for slot in 0..w.clients.slots.len() {
        let after = w.random.below((SECOND / 2) as usize) as u64;
        w.next(slot, after);
    }
    let third = BEGIN + s.warm_up * SECOND + s.seconds * SECOND / 3;
    if s.manager_fails {
        w.at(third, Event::ManagerDown);
        w.at(third + GONE, Event::ManagerUp);
    }
    if s.osd_restarts {
        w.at(third, Event::Down(VICTIM));
        w.at(third + GONE, Event::Up(VICTIM));
    }
    w.run(BEGIN + all * SECOND);
    let count = |ended: &Vec<u64>| windows(ended, s.warm_up * SECOND, SECOND, s.seconds as usize);
    w.clients.ended.iter().map(count).collect()
}

/// Operations of a tenant with a floor in each tenth of a second from the first request of a burst
/// on, beside one that takes all. So many bursts; before each the tenant asked for nothing for a
/// second.
pub fn bursts(s: &Steady, bursts: usize) -> Vec<Vec<u32>> {
    let others = TENANTS.len() - 1;
    let loads =
        [(others, BESIDE[0], BESIDE[1]), (BURSTS, TENANTS[BURSTS].sessions, TENANTS[BURSTS].depth)];
    let (begin, longest) = (5, 4);
    let all = begin + longest * (bursts as u64 + 1);
    let mut w = world(s, &loads, all);
    w.clients.bursts = Some(Bursts::default());
    for slot in 0..BESIDE[0] * BESIDE[1] {
        w.next(slot, 0);
    }
    w.at(BEGIN + begin * SECOND, Event::Client(Change::Begin));
    w.run(BEGIN + all * SECOND);
    let ended = &w.clients.ended[BURSTS];
    let began = w.clients.bursts.as_ref().map(|b| &b.began[..]).unwrap_or_default();
    // The first is that of a new client.
    let whole = began.iter().skip(1).filter(|at| **at + SECOND <= all * SECOND).take(bursts);
    whole.map(|at| windows(ended, *at, SECOND / 10, 10)).collect()
}

/// How many there are in each of so many windows.
fn windows(ended: &[u64], begin: u64, width: u64, n: usize) -> Vec<u32> {
    let mut counts = vec![0; n];
    for at in ended.iter().filter(|at| **at >= begin) {
        if let Some(count) = counts.get_mut(((at - begin) / width) as usize) {
            *count += 1;
        }
    }
    counts
}

impl World<Sessions> {
    fn pause_later(&mut self) {
        if self.clients.pauses > 0.0 {
            let after = 2.0 * self.clients.pauses * self.random.unit() * SECOND as f64;
            self.at(self.now + after as u64, Event::Client(Change::Pause));
        }
    }

    fn between(&mut self, [least, most]: [f64; 2]) -> u64 {
        (least + self.random.unit() * (most - least)) as u64
    }

    /// An operation for some group is on its way.
    fn next(&mut self, slot: usize, after: u64) {
        let s = &mut self.clients.slots[slot];
        s.group = self.random.below(GROUPS[TENANTS[s.tenant].pool]);
        s.state = State::Coming;
        self.at(self.now + after, Event::Client(Change::Comes(slot)));
    }

    fn come(&mut self, slot: usize) {
        let Some(osd) = self.clients.leader(slot) else {
            self.clients.slots[slot].state = State::Waits;
            return;
        };
        let resumes = self.hosts[osd].paused;
        if resumes > self.now {
            return self.at(resumes, Event::Client(Change::Comes(slot)));
        }
        let (c, s) = (&self.clients, &self.clients.slots[slot]);
        let sink =
            Rc::new(Session { number: s.session, name: c.name.clone(), open: Cell::new(true) });
        let ask = s.ask.clone();
        let s = &mut self.clients.slots[slot];
        (s.state, s.sent) = (State::At(osd), Some(sink.clone()));
        self.comes(osd, &ask, sink);
    }

    /// What is elsewhere than where its group is led is sent again.
    fn send_again(&mut self) {
        for slot in 0..self.clients.slots.len() {
            let leader = self.clients.leader(slot);
            let s = &mut self.clients.slots[slot];
            if matches!(s.state, State::At(osd) if leader != Some(osd)) {
                if let Some(sent) = s.sent.take() {
                    sent.open.set(false);
                }
                s.state = State::Waits;
            }
            if s.state == State::Waits && leader.is_some() {
                s.state = State::Coming;
                self.at(self.now + WAY, Event::Client(Change::Comes(slot)));
            }
        }
        self.drop_closed();
    }

    fn begin_burst(&mut self) {
        let now = self.now;
        let Some(b) = &mut self.clients.bursts else { return };
        b.began.push(now - BEGIN);
        let all: Vec<usize> = (0..self.clients.slots.len())
            .filter(|slot| self.clients.slots[*slot].tenant == BURSTS)
            .collect();
        (b.left, b.under_way) = (BLOCKS - all.len() as u64, all.len() as u64);
        for slot in all {
            self.next(slot, WAY / 2);
        }
    }

    /// Whether a session that has had an answer is quiet now.
    fn rests(&mut self, slot: usize) -> bool {
        let s = &mut self.clients.slots[slot];
        let Some(b) = self.clients.bursts.as_mut().filter(|_| s.tenant == BURSTS) else {
            return false;
        };
        if b.left > 0 {
            b.left -= 1;
            return false;
        }
        s.state = State::Rests;
        b.under_way -= 1;
        if b.under_way == 0 {
            self.at(self.now + QUIET, Event::Client(Change::Begin));
        }
        true
    }
}

impl Clients for Sessions {
    type Event = Change;

    fn handle(w: &mut World<Self>, event: Change) {
        match event {
            Change::Comes(slot) => w.come(slot),
            Change::Begin => w.begin_burst(),
            Change::Map => {
                for g in w.clients.groups.iter_mut().flatten() {
                    g.leader = g.osds.iter().copied().find(|osd| w.hosts[*osd].up);
                }
                w.send_again();
                w.map_changed();
            }
            Change::Pause => {
                let (osd, pause) = (w.random.below(OSDS), w.between(PAUSES));
                w.hosts[osd].paused = w.now + pause;
                w.pause_later();
            }
        }
    }

    fn leads(&self, pool: PoolId) -> Vec<usize> {
        self.groups.get(pool.0 as usize).into_iter().flatten().filter_map(|g| g.leader).collect()
    }

    fn begins(w: &mut World<Self>, _: usize, op: &PlainRequest) -> u64 {
        let tenant = w.clients.slots[op.tid as usize].tenant;
        w.seen.served(w.now - BEGIN, tenant);
        w.now + w.between(TAKES)
    }

    fn ended(w: &mut World<Self>, osd: usize, op: &PlainRequest) {
        let slot = op.tid as usize;
        // What was sent again elsewhere is counted there.
        if op.is_open() {
            let now = w.now - BEGIN;
            let tenant = w.clients.slots[slot].tenant;
            w.clients.ended[tenant].push(now);
            if !w.rests(slot) {
                w.next(slot, WAY);
            }
        }
        w.pump(osd);
    }

    fn down(w: &mut World<Self>, osd: usize) {
        for g in w.clients.groups.iter_mut().flatten() {
            g.leader = g.leader.filter(|leader| *leader != osd);
        }
        w.send_again();
        w.at(w.now + MAP, Event::Client(Change::Map));
    }

    fn up(w: &mut World<Self>, _: usize) {
        w.at(w.now + MAP, Event::Client(Change::Map));
    }
}

impl Promised {
    /// Whether a second with so many is one in which it was not kept: with a floor 98 % of it, with
    /// a ceiling 102 %.
    fn misses(self, count: u32) -> bool {
        match self {
            Promised::Ceiling(rate) => f64::from(count) > 1.02 * rate as f64,
            Promised::Floor(rate) => f64::from(count) < 0.98 * rate as f64,
            Promised::Weight(_) => false,
        }
    }

    fn rate(self) -> Option<u64> {
        match self {
            Promised::Ceiling(rate) | Promised::Floor(rate) => Some(rate),
            Promised::Weight(_) => None,
        }
    }

    fn weight(self) -> u32 {
        if let Promised::Weight(weight) = self { weight } else { 0 }
    }
}

/// The table of `bench/promises.py`, of one or several runs, each with its seed.
pub struct Table<'a>(pub &'a [(u64, Counts)]);

impl Table<'_> {
    /// All seconds of a tenant.
    pub fn of(&self, tenant: usize) -> Vec<u32> {
        self.0.iter().flat_map(|(_, counts)| counts[tenant].iter().copied()).collect()
    }

    /// Seconds in which it had what it is promised.
    pub fn kept(&self, tenant: usize) -> usize {
        self.of(tenant).iter().filter(|count| !TENANTS[tenant].promise.misses(**count)).count()
    }

    /// What a tenant has each second.
    pub fn mean(&self, tenant: usize) -> f64 {
        let all = self.of(tenant);
        all.iter().map(|n| f64::from(*n)).sum::<f64>() / all.len().max(1) as f64
    }

    /// Its part of what all tenants with a promised part have, and the part that it is promised; in
    /// percent.
    pub fn share(&self, tenant: usize) -> [f64; 2] {
        let had = |t: usize| if TENANTS[t].promise.weight() > 0 { self.mean(t) } else { 0.0 };
        let weight = |t: usize| f64::from(TENANTS[t].promise.weight());
        let part = |of: &dyn Fn(usize) -> f64| {
            100.0 * of(tenant) / (0..TENANTS.len()).map(of).sum::<f64>()
        };
        [part(&had), part(&weight)]
    }
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "| tenant | promised | mean | least second | most | seconds within 98 and 102 % | share, of what weights divide | by weight |"
        )?;
        writeln!(f, "| --- | --- | --- | --- | --- | --- | --- | --- |")?;
        for (at, t) in TENANTS.iter().enumerate() {
            let (all, rate) = (self.of(at), t.promise.rate());
            let [least, most] =
                [all.iter().min(), all.iter().max()].map(|n| n.copied().unwrap_or(0));
            let of = |n: u32| {
                rate.map_or(n.to_string(), |rate| {
                    format!("{n} ({:.0} %)", 100.0 * f64::from(n) / rate as f64)
                })
            };
            let promised = rate.map_or(String::new(), |rate| rate.to_string());
            let within =
                rate.map_or(String::new(), |_| format!("{} of {}", self.kept(at), all.len()));
            let [had, by_weight] = self.share(at);
            let share =
                if rate.is_none() { format!("{had:.1} % | {by_weight:.1} %") } else { "| ".into() };
            writeln!(
                f,
                "| {} | {promised} | {:.0} | {} | {} | {within} | {share} |",
                t.name,
                self.mean(at),
                of(least),
                of(most)
            )?;
        }
        for (at, t) in TENANTS.iter().enumerate() {
            for (seed, counts) in self.0 {
                let missed =
                    counts[at].iter().enumerate().filter(|(_, count)| t.promise.misses(**count));
                let missed: Vec<String> =
                    missed.map(|(second, count)| format!("{second}: {count}")).collect();
                if !missed.is_empty() {
                    writeln!(
                        f,
                        "missed by {} with seed {seed}, in second: {}",
                        t.name,
                        missed.join(", ")
                    )?;
                }
            }
        }
        Ok(())
    }
}

/// Bursts, as `bench/promises.py` shows them.
pub struct BurstTable<'a>(pub &'a [Vec<u32>]);

impl fmt::Display for BurstTable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let floor = FLOOR as f64 / 10.0;
        writeln!(
            f,
            "bursts of a tenant with a floor of {FLOOR}: operations in each 100 ms from its first request on, where its floor is {floor}"
        )?;
        for counts in self.0 {
            writeln!(f, "  {counts:?}")?;
        }
        let n = self.0.len().max(1) as f64;
        let mean: Vec<u32> = (0..10)
            .map(|at| (self.0.iter().map(|c| f64::from(c[at])).sum::<f64>() / n).round() as u32)
            .collect();
        let had = |windows: usize| {
            let enough = |c: &&Vec<u32>| {
                f64::from(c[..windows].iter().sum::<u32>()) >= 0.98 * floor * windows as f64
            };
            self.0.iter().filter(enough).count()
        };
        writeln!(
            f,
            "mean: {mean:?}; {} of {} bursts had it in the first, {} in the first two together",
            had(1),
            self.0.len(),
            had(2)
        )
    }
}
