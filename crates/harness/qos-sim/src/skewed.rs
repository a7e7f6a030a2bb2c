//! What tenants keep beside each other of what they have alone, when their objects lie unevenly
//! over the OSDs.
//!
//! A share is one of each OSD. So a tenant with half of the weights keeps at least half of what it
//! has alone, wherever its own objects and those of others lie, and however many sessions others
//! have: the OSD that bounds it alone, because most of its objects are there, gives it half of what
//! it can do. (Ghodsi and others, Dominant Resource Fairness, NSDI 2011: that sharing is worth it
//! for all tenants. Each OSD is a resource.) Equal totals promise less: a tenant that hammers one
//! object would have most of that OSD, and slow all tenants with operations that wait for it.
//!
//! Sessions keep operations under way as those of [`crate::steady`] do.

use crate::random::Random;
use crate::scenario::SECOND;
use crate::steady::{TAKES, WAY, bounded};
use crate::world::{Ask, BEGIN, Clients, Event, Ground, World};
use admission::plain::{PlainRequest, Session};
use messages::TenantShare;
use promises::Resolved;
use promises::spec::Spec;
use qos::Access;
use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use types::PoolId;

/// Operations each second that an OSD is told that it can do.
const CAPACITY: u64 = 400;
/// Operations that a session keeps under way.
const DEPTH: usize = 16;
/// Virtual seconds until something is counted: what many sessions have under way takes that long to
/// gather where it is waited for. And of those that are counted.
const WARM_UP: u64 = 20;
const SECONDS: u64 = 20;

/// A tenant that keeps so much of its part has it: of a half this is 48 %.
pub const ENOUGH: f64 = 0.96;

/// A tenant, which is a pool.
#[derive(Clone, Debug)]
pub struct Load {
    /// Share.
    pub weight: u32,
    /// Sessions.
    pub sessions: usize,
    /// Which part of its objects each OSD leads.
    pub places: Vec<f64>,
}

impl Load {
    /// The largest part of its objects that one OSD leads.
    pub fn most(&self) -> f64 {
        self.places.iter().copied().fold(0.0, f64::max)
    }
}

/// The tenants that share a cluster.
#[derive(Clone, Debug)]
pub struct Skewed {
    /// Everything follows from it.
    pub seed: u64,
    /// Tenants.
    pub loads: Vec<Load>,
}

impl Skewed {
    /// Chance decides: three to ten OSDs, two to four tenants, 1 to 64 sessions, objects anyhow or
    /// all on one OSD.
    pub fn new(seed: u64) -> Self {
        let mut r = Random::new(seed);
        let (osds, tenants) = (3 + r.below(8), 2 + r.below(3));
        let load = |_| {
            let weight = [50, 100, 100, 200][r.below(4)];
            let sessions = [1, 4, 16, 64][r.below(4)];
            let mut places: Vec<f64> = (0..osds).map(|_| r.log(1.0, 6.0)).collect();
            if r.below(5) == 0 {
                let one = r.below(osds);
                places
                    .iter_mut()
                    .enumerate()
                    .for_each(|(osd, part)| *part = f64::from(u8::from(osd == one)));
            }
            let all: f64 = places.iter().sum();
            Load { weight, sessions, places: places.into_iter().map(|part| part / all).collect() }
        };
        Skewed { seed, loads: (0..tenants).map(load).collect() }
    }

    /// Operations each second of each of these tenants, beside each other.
    pub fn rates(&self, who: &[usize]) -> Vec<f64> {
        let osds = self.loads[0].places.len();
        let ground = Ground {
            seed: self.seed ^ 0x5151,
            configs: vec![bounded(CAPACITY); osds],
            resolved: self.loads.iter().enumerate().map(|(at, l)| resolved(at, l.weight)).collect(),
            late: 20.0,
            tick: 1_000_000,
            seconds: (WARM_UP + SECONDS) as usize,
        };
        let mut w = World::new(ground, Sessions::new(self, who));
        w.manager_up();
        for slot in 0..w.clients.slots.len() {
            let after = w.random.below((SECOND / 2) as usize) as u64;
            w.next(slot, after);
        }
        w.run(BEGIN + (WARM_UP + SECONDS) * SECOND);
        who.iter().map(|tenant| w.clients.ended[*tenant] as f64 / SECONDS as f64).collect()
    }

    /// What each tenant has alone, and beside the others, in operations each second.
    pub fn kept(&self) -> Vec<[f64; 2]> {
        let all: Vec<usize> = (0..self.loads.len()).collect();
        let beside = self.rates(&all);
        all.iter().map(|at| [self.rates(&[*at])[0], beside[*at]]).collect()
    }

    /// The part of all weights that a tenant has.
    pub fn share(&self, tenant: usize) -> f64 {
        f64::from(self.loads[tenant].weight)
            / f64::from(self.loads.iter().map(|l| l.weight).sum::<u32>())
    }
}

/// One of the operations that a session keeps under way.
struct Slot {
    tenant: usize,
    ask: Ask,
    sink: Rc<Session>,
    osd: usize,
}

struct Sessions {
    slots: Vec<Slot>,
    /// Of each tenant, the part of its objects up to and with each OSD.
    up_to: Vec<Vec<f64>>,
    ended: Vec<u64>,
}

/// An operation comes to its OSD.
struct Comes(usize);

/// What the manager reads of a tenant.
fn resolved(at: usize, weight: u32) -> Resolved {
    let whose = TenantShare {
        name: format!("pool-{at}"),
        pool: Some(PoolId(at as i64)),
        ..TenantShare::default()
    };
    Resolved { whose, promise: Spec { weight: Some(weight), ..Spec::default() }.promise(None) }
}

impl Sessions {
    fn new(s: &Skewed, who: &[usize]) -> Self {
        let (mut slots, mut number): (Vec<Slot>, _) = (Vec::new(), 0);
        for tenant in who {
            let whose = resolved(*tenant, 1).whose;
            for _ in 0..s.loads[*tenant].sessions {
                let sink =
                    Rc::new(Session { number, name: "client.admin".into(), open: Cell::new(true) });
                for _ in 0..DEPTH {
                    let (tid, pool) = (slots.len(), PoolId(*tenant as i64));
                    let ask = Ask::new(&whose, pool, tid, (Access::Write, 4096), tid as u64);
                    slots.push(Slot { tenant: *tenant, ask, sink: sink.clone(), osd: 0 });
                }
                number += 1;
            }
        }
        let up_to = s.loads.iter().map(|l| {
            let sums = l.places.iter().scan(0.0, |sum, part| {
                *sum += part;
                Some(*sum)
            });
            sums.collect()
        });
        Sessions { slots, up_to: up_to.collect(), ended: vec![0; s.loads.len()] }
    }
}

impl World<Sessions> {
    /// An operation on some object is on its way.
    fn next(&mut self, slot: usize, after: u64) {
        let chance = self.random.unit();
        let s = &mut self.clients.slots[slot];
        let up_to = &self.clients.up_to[s.tenant];
        s.osd = up_to.iter().position(|part| chance < *part).unwrap_or(up_to.len() - 1);
        self.at(self.now + after, Event::Client(Comes(slot)));
    }
}

impl Clients for Sessions {
    type Event = Comes;

    fn handle(w: &mut World<Self>, Comes(slot): Comes) {
        let s = &w.clients.slots[slot];
        let (osd, ask, sink) = (s.osd, s.ask.clone(), s.sink.clone());
        w.comes(osd, &ask, sink);
    }

    fn leads(&self, pool: PoolId) -> Vec<usize> {
        let up_to = self.up_to.get(pool.0 as usize).into_iter();
        up_to.flat_map(|parts| 0..parts.len()).collect()
    }

    fn begins(w: &mut World<Self>, _: usize, _: &PlainRequest) -> u64 {
        let [least, most] = TAKES;
        w.now + (least + w.random.unit() * (most - least)) as u64
    }

    fn ended(w: &mut World<Self>, osd: usize, op: &PlainRequest) {
        let slot = op.tid as usize;
        if w.now >= BEGIN + WARM_UP * SECOND {
            let tenant = w.clients.slots[slot].tenant;
            w.clients.ended[tenant] += 1;
        }
        w.next(slot, WAY);
        w.pump(osd);
    }

    fn down(_: &mut World<Self>, _: usize) {}

    fn up(_: &mut World<Self>, _: usize) {}
}

/// What is kept with these seeds.
pub struct Table(pub Vec<(Skewed, Vec<[f64; 2]>)>);

impl Table {
    /// Lets all of them run.
    pub fn of(all: impl IntoIterator<Item = Skewed>) -> Self {
        let rows = all.into_iter().map(|s| {
            let kept = s.kept();
            (s, kept)
        });
        Table(rows.collect())
    }

    /// What each tenant keeps, as a multiple of its part of all weights, the least first.
    pub fn of_share(&self) -> Vec<f64> {
        let tenants = self.0.iter().flat_map(|(s, kept)| {
            kept.iter().enumerate().map(move |(at, [alone, beside])| beside / alone / s.share(at))
        });
        let mut all: Vec<f64> = tenants.collect();
        all.sort_by(f64::total_cmp);
        all
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "| seed | OSDs | sessions | most on one OSD | of all weights | alone | beside | kept |\n| --- | --- | --- | --- | --- | --- | --- | --- |"
        )?;
        for (s, kept) in &self.0 {
            for (at, ([alone, beside], l)) in kept.iter().zip(&s.loads).enumerate() {
                let [most, share, kept] =
                    [l.most(), s.share(at), beside / alone].map(|part| 100.0 * part);
                writeln!(
                    f,
                    "| {} | {} | {} | {most:.0} % | {share:.1} % | {alone:.0} | {beside:.0} | {kept:.1} % |",
                    s.seed,
                    l.places.len(),
                    l.sessions
                )?;
            }
        }
        let all = self.of_share();
        let (least, below) = (
            all.first().copied().unwrap_or(f64::NAN),
            all.iter().filter(|of| **of < ENOUGH).count(),
        );
        writeln!(
            f,
            "\nOf what each of {} tenants has alone, the least that one keeps is {least:.3} of its part of all weights; {below} keep less than {ENOUGH}.",
            all.len()
        )
    }
}
