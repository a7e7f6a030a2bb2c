//! Clients that ask each OSD for so much, whether they are answered or not: the phases of a
//! [`Scenario`].

use crate::report::Report;
use crate::scenario::{PHASES, Phase, Plan, SECOND, SMALLEST, Scenario};
use crate::world::{Ask, BEGIN, Clients, Event, Ground, World};
use admission::plain::{PlainRequest, Session};
use qos::Access;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Instant;
use types::PoolId;

/// Operations that a client has under way with one OSD.
const DEPTH: u32 = 24;

struct Client {
    tenant: usize,
    osd: usize,
    rate: f64,
    ask: Ask,
    session: Rc<Session>,
    under_way: u32,
    /// There is one that could not be sent yet.
    held: bool,
    /// Clients of before the shift end with it.
    ended: bool,
}

enum Change {
    Arrive(usize),
    Shift,
}

struct Streams {
    plan: Plan,
    clients: Vec<Client>,
    /// Until when devices are busy.
    busy: Vec<u64>,
}

/// Runs a scenario.
pub fn run(s: &Scenario) -> Report {
    let plan = Plan::new(s);
    let fair = [plan.fair(false), plan.fair(true)];
    let began = Instant::now();
    let ground = Ground {
        seed: s.seed ^ 0x5151,
        configs: plan.devices.iter().map(|d| config(d.iops)).collect(),
        resolved: plan.tenants.iter().map(|t| t.resolved.clone()).collect(),
        late: 300.0,
        tick: 1,
        seconds: s.phase as usize * PHASES.len(),
    };
    let busy = vec![0; s.osds];
    let mut w = World::new(ground, Streams { plan, clients: Vec::new(), busy });
    w.start(s);
    w.run(BEGIN + s.phase * PHASES.len() as u64 * SECOND);
    let mut seen = std::mem::take(&mut w.seen);
    seen.took = began.elapsed();
    Report::new(s, &w.clients.plan, &fair, seen)
}

fn config(iops: f64) -> conf::Config {
    let mut c = conf::Config::new();
    for (name, value) in [("iops", iops), ("bandwidth", iops * f64::from(SMALLEST))] {
        let option = if name == "iops" {
            "osd_mclock_max_capacity_iops_ssd"
        } else {
            "osd_mclock_max_sequential_bandwidth_ssd"
        };
        let set =
            c.set(conf::effective::Source::File, option, &format!("{}", value.round() as u64));
        assert!(set.is_ok(), "{option} is an option");
    }
    c
}

impl World<Streams> {
    fn start(&mut self, s: &Scenario) {
        self.manager_up();
        self.clients_of(0);
        let phase = |p: Phase| {
            BEGIN + PHASES.iter().position(|x| *x == p).unwrap_or(0) as u64 * s.phase * SECOND
        };
        let half = s.phase * SECOND / 2;
        let (shift, failover, faults) =
            (phase(Phase::Shift), phase(Phase::Failover), phase(Phase::Faults));
        self.at(shift, Event::Client(Change::Shift));
        self.at(failover, Event::ManagerDown);
        self.at(failover + half, Event::ManagerUp);
        let few = s.osds.div_ceil(20);
        for osd in self.random.some(few, s.osds) {
            let at = faults + (self.random.unit() * half as f64) as u64;
            self.at(at, Event::Down(osd));
            self.at(at + SECOND, Event::Up(osd));
        }
        for osd in self.random.some(few, s.osds) {
            let at = faults + (self.random.unit() * half as f64) as u64;
            self.at(at, Event::Reset(osd));
        }
    }

    /// Adds the clients of before or after the shift.
    fn clients_of(&mut self, which: usize) {
        for at in 0..self.clients.plan.streams[which].len() {
            let s = &self.clients.plan.streams[which][at];
            let t = &self.clients.plan.tenants[s.tenant];
            let tid = self.clients.clients.len();
            let (pool, read) = (PoolId(t.pool as i64), (Access::Read, u64::from(t.bytes)));
            let ask = Ask::new(&t.resolved.whose, pool, at, read, tid as u64);
            let (tenant, osd, rate) = (s.tenant, s.osd, s.rate);
            let session = Rc::new(Session {
                number: tid as u64,
                name: format!("client.tenant-{tenant}").into(),
                open: Cell::new(true),
            });
            self.clients.clients.push(Client {
                tenant,
                osd,
                rate,
                ask,
                session,
                under_way: 0,
                held: false,
                ended: false,
            });
            let first = self.now + (self.random.unit() * SECOND as f64 / rate) as u64;
            self.at(first, Event::Client(Change::Arrive(tid)));
        }
    }

    fn arrive(&mut self, client: usize) {
        let c = &mut self.clients.clients[client];
        if c.ended {
            return;
        }
        self.seen.asked(self.now - BEGIN, c.tenant);
        let pause = SECOND as f64 / c.rate * (0.5 + self.random.unit());
        if c.under_way >= DEPTH || !self.hosts[c.osd].up {
            c.held = true;
        } else {
            self.send(client);
        }
        self.at(self.now + pause as u64, Event::Client(Change::Arrive(client)));
    }

    fn send(&mut self, client: usize) {
        let c = &mut self.clients.clients[client];
        c.under_way += 1;
        let (osd, ask, session) = (c.osd, c.ask.clone(), c.session.clone());
        self.comes(osd, &ask, session);
    }
}

impl Clients for Streams {
    type Event = Change;

    fn handle(w: &mut World<Self>, event: Change) {
        match event {
            Change::Arrive(client) => w.arrive(client),
            Change::Shift => {
                for c in &mut w.clients.clients {
                    c.ended = true;
                    c.session.open.set(false);
                }
                w.drop_closed();
                w.clients_of(1);
            }
        }
    }

    fn leads(&self, pool: PoolId) -> Vec<usize> {
        self.plan.serving.get(pool.0 as usize).cloned().unwrap_or_default()
    }

    fn begins(w: &mut World<Self>, osd: usize, op: &PlainRequest) -> u64 {
        let (plan, device) = (&w.clients.plan, w.clients.plan.devices[osd]);
        let tenant = w.clients.clients[op.tid as usize].tenant;
        let mut took =
            plan.tenants[tenant].cost() / f64::from(SMALLEST) / device.iops * SECOND as f64;
        if device.hiccup < usize::MAX && w.random.below(device.hiccup) == 0 {
            took += 20e6;
        }
        w.seen.served(w.now - BEGIN, tenant);
        let busy = &mut w.clients.busy[osd];
        *busy = (*busy).max(w.now) + took as u64;
        *busy + device.latency
    }

    fn ended(w: &mut World<Self>, osd: usize, op: &PlainRequest) {
        let client = op.tid as usize;
        let c = &mut w.clients.clients[client];
        c.under_way = c.under_way.saturating_sub(1);
        if std::mem::take(&mut c.held) && !c.ended {
            w.send(client);
        } else {
            w.pump(osd);
        }
    }

    fn down(w: &mut World<Self>, osd: usize) {
        w.clients.busy[osd] = 0;
        for c in w.clients.clients.iter_mut().filter(|c| c.osd == osd) {
            // What was under way is sent again when the OSD is back.
            (c.held, c.under_way) = (c.under_way > 0 || c.held, 0);
        }
    }

    fn up(w: &mut World<Self>, osd: usize) {
        for client in 0..w.clients.clients.len() {
            let c = &mut w.clients.clients[client];
            if c.osd == osd && std::mem::take(&mut c.held) && !c.ended {
                w.send(client);
            }
        }
    }
}
