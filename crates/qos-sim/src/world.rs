//! A cluster in virtual time.

use crate::random::Random;
use crate::report::{Report, Seen};
use crate::scenario::{PHASES, Phase, Plan, SECOND, SMALLEST, Scenario};
use bytes::Bytes;
use cls::Registry;
use denc::Features;
use messages::{AnyMessage, OsdOp, OsdOpReply, Payload, QosDemand};
use mgr::qos::Tenants;
use msgr::Message;
use osd::client_op::{ClientOp, ReplySink, Request};
use osd::limited::{DEMAND_PERIOD, NEWS_PAUSE};
use osd::op::code::on_extent;
use osd::op::{OpCode, OpInfo, OsdFlags};
use osd::scheduler::OsdQueue;
use osd::tracker::{HistoryLimits, Tracker};
use osd::work::{Next, Queue, Work};
use qos::Window;
use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::future::Future;
use std::rc::Rc;
use std::time::{Duration, Instant};
use types::{EntityAddr, EntityName, ObjectLocator, OsdId, PgId, PoolId, SnapId, SpgId};

/// Operations that a client has under way with one OSD.
const DEPTH: u32 = 24;
/// The manager's pauses, as in its daemon.
const ROUND_PAUSE: u64 = 5_000_000;
const ROUND_PERIOD: u64 = 100_000_000;
/// Everything is old enough to be later than nothing.
const BEGIN: u64 = SECOND;
/// A header and the checks of a frame, in crc mode.
const FRAME: usize = 32 + 41 + 21;

enum Event {
    Arrive(usize),
    Done { osd: usize, life: u32, stream: usize, began: u64 },
    Wake(usize),
    Tell(usize, u32),
    ToManager { osd: usize, session: u32, message: Box<Message> },
    ToOsd { osd: usize, session: u32, message: Box<Message> },
    Round(u32),
    Connect(usize, u32),
    Shift,
    ManagerDown,
    ManagerUp,
    Down(usize),
    Up(usize),
    Reset(usize),
}

struct Client {
    tenant: usize,
    osd: usize,
    rate: f64,
    request: Rc<Request>,
    info: OpInfo,
    session: Rc<Session>,
    under_way: u32,
    /// There is one that could not be sent yet.
    held: bool,
    /// Clients of before the shift end with it.
    ended: bool,
}

struct Host {
    up: bool,
    /// Counts restarts.
    life: u32,
    queue: OsdQueue,
    window: Window,
    running: usize,
    /// Until when the device is busy.
    busy: u64,
    /// When it is to be woken.
    wake: Option<u64>,
    /// Counts plans to tell demand; older ones are void.
    plan: u32,
    telling: Option<u64>,
    session: u32,
    connected: bool,
    tracker: Rc<Tracker>,
    /// When the last message arrives, to the manager and from it.
    last: [u64; 2],
}

struct Manager {
    tenants: Tenants,
    here: BTreeSet<OsdId>,
    plan: u32,
    last: u64,
    planned: u64,
}

/// Who a client is.
struct Session {
    number: u64,
    name: String,
    open: Cell<bool>,
}

impl ReplySink for Session {
    fn reply(&self, _: OsdOpReply, _: u64, _: u16) {}

    fn is_open(&self) -> bool {
        self.open.get()
    }

    fn session(&self) -> u64 {
        self.number
    }

    fn entity(&self) -> &str {
        &self.name
    }
}

struct World<'a> {
    s: &'a Scenario,
    plan: Plan,
    random: Random,
    base: Instant,
    now: u64,
    count: u64,
    events: BinaryHeap<Reverse<(u64, u64, usize)>>,
    slots: Vec<Option<Event>>,
    free: Vec<usize>,
    hosts: Vec<Host>,
    clients: Vec<Client>,
    manager: Option<Manager>,
    seen: Seen,
}

/// Runs a scenario.
pub fn run(s: &Scenario) -> Report {
    let plan = Plan::new(s);
    let fair = [plan.fair(false), plan.fair(true)];
    let began = Instant::now();
    let mut w = World::new(s, plan);
    w.start();
    let end = BEGIN + s.phase * PHASES.len() as u64 * SECOND;
    while let Some(Reverse((at, _, slot))) = w.events.pop() {
        if at >= end {
            break;
        }
        w.now = at;
        w.free.push(slot);
        if let Some(event) = w.slots[slot].take() {
            w.handle(event);
        }
    }
    let mut seen = std::mem::take(&mut w.seen);
    seen.took = began.elapsed();
    Report::new(s, &w.plan, &fair, seen)
}

fn config(iops: f64) -> conf::Config {
    let mut c = conf::Config::new();
    for (name, value) in [("iops", iops), ("bandwidth", iops * f64::from(SMALLEST))] {
        let option = if name == "iops" { "osd_mclock_max_capacity_iops_ssd" } else { "osd_mclock_max_sequential_bandwidth_ssd" };
        let set = c.set(conf::effective::Source::File, option, &format!("{}", value.round() as u64));
        assert!(set.is_ok(), "{option} is an option");
    }
    c
}

impl<'a> World<'a> {
    fn new(s: &'a Scenario, plan: Plan) -> Self {
        let base = Instant::now();
        let hosts = plan.devices.iter().map(|d| Host {
            up: true,
            life: 0,
            queue: OsdQueue::starting(&config(d.iops), base),
            window: Window::new(4, 256, 0),
            running: 0,
            busy: 0,
            wake: None,
            plan: 0,
            telling: None,
            session: 0,
            connected: false,
            tracker: tracker(),
            last: [0; 2],
        });
        World {
            s,
            random: Random::new(s.seed ^ 0x5151),
            base,
            now: BEGIN,
            count: 0,
            events: BinaryHeap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            hosts: hosts.collect(),
            clients: Vec::new(),
            manager: None,
            seen: Seen::new(s.tenants, s.osds, s.phase as usize * PHASES.len()),
            plan,
        }
    }

    fn at(&mut self, time: u64, event: Event) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[slot] = Some(event);
        self.count += 1;
        self.events.push(Reverse((time, self.count, slot)));
    }

    fn instant(&self) -> Instant {
        self.base + Duration::from_nanos(self.now)
    }

    fn start(&mut self) {
        self.manager_up();
        self.clients_of(0);
        let phase = |p: Phase| BEGIN + PHASES.iter().position(|x| *x == p).unwrap_or(0) as u64 * self.s.phase * SECOND;
        let half = self.s.phase * SECOND / 2;
        let (shift, failover, faults) = (phase(Phase::Shift), phase(Phase::Failover), phase(Phase::Faults));
        self.at(shift, Event::Shift);
        self.at(failover, Event::ManagerDown);
        self.at(failover + half, Event::ManagerUp);
        let few = self.s.osds.div_ceil(20);
        for osd in self.random.some(few, self.s.osds) {
            let at = faults + (self.random.unit() * half as f64) as u64;
            self.at(at, Event::Down(osd));
            self.at(at + SECOND, Event::Up(osd));
        }
        for osd in self.random.some(few, self.s.osds) {
            let at = faults + (self.random.unit() * half as f64) as u64;
            self.at(at, Event::Reset(osd));
        }
    }

    /// Adds the clients of before or after the shift.
    fn clients_of(&mut self, which: usize) {
        let registry = Registry::builtin();
        for at in 0..self.plan.streams[which].len() {
            let s = &self.plan.streams[which][at];
            let t = &self.plan.tenants[s.tenant];
            let pgid = PgId { pool: PoolId(t.pool as i64), seed: 0 };
            let whose = &t.resolved.whose;
            let object = match &whose.prefix {
                Some(prefix) => format!("{}.{at:x}", String::from_utf8_lossy(prefix)),
                None => format!("object-{at}"),
            };
            let m = OsdOp {
                pgid: SpgId { pgid, ..SpgId::default() },
                locator: ObjectLocator { pool: pgid.pool, namespace: whose.namespace.clone().unwrap_or_default(), ..ObjectLocator::default() },
                object: Bytes::from(object),
                ops: vec![on_extent(OpCode::READ, 0, u64::from(t.bytes))],
                flags: OsdFlags(0),
                snapid: SnapId::NOSNAP,
                ..OsdOp::default()
            };
            let Ok(info) = OpInfo::new(m.flags, &m.ops, &registry) else { continue };
            let tid = self.clients.len();
            let request = Request { m, source: EntityName::client(s.tenant as i64), addr: EntityAddr::default(), tid: tid as u64 };
            let (tenant, osd, rate) = (s.tenant, s.osd, s.rate);
            let session = Rc::new(Session { number: tid as u64, name: format!("client.tenant-{tenant}"), open: Cell::new(true) });
            self.clients.push(Client { tenant, osd, rate, request: Rc::new(request), info, session, under_way: 0, held: false, ended: false });
            let first = self.now + (self.random.unit() * SECOND as f64 / rate) as u64;
            self.at(first, Event::Arrive(tid));
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Arrive(client) => self.arrive(client),
            Event::Done { osd, life, stream, began } => self.done(osd, life, stream, began),
            Event::Wake(osd) => {
                if self.hosts[osd].wake == Some(self.now) {
                    self.hosts[osd].wake = None;
                }
                self.pump(osd);
            }
            Event::Tell(osd, plan) => self.tell(osd, plan),
            Event::ToManager { osd, session, message } => self.to_manager(osd, session, &message),
            Event::ToOsd { osd, session, message } => self.to_osd(osd, session, &message),
            Event::Round(plan) => self.round(plan),
            Event::Connect(osd, session) => self.connect(osd, session),
            Event::Shift => {
                for c in &mut self.clients {
                    c.ended = true;
                    c.session.open.set(false);
                }
                self.clients_of(1);
            }
            Event::ManagerDown => {
                self.manager = None;
                for h in &mut self.hosts {
                    (h.session, h.connected) = (h.session + 1, false);
                }
            }
            Event::ManagerUp => self.manager_up(),
            Event::Down(osd) => {
                self.disconnect(osd);
                let h = &mut self.hosts[osd];
                (h.up, h.life, h.running, h.busy) = (false, h.life + 1, 0, 0);
                h.queue = OsdQueue::starting(&config(self.plan.devices[osd].iops), self.base);
                h.window = Window::new(4, 256, 0);
                for c in self.clients.iter_mut().filter(|c| c.osd == osd) {
                    // What was under way is sent again when the OSD is back.
                    (c.held, c.under_way) = (c.under_way > 0 || c.held, 0);
                }
            }
            Event::Up(osd) => {
                self.hosts[osd].up = true;
                self.meet(osd);
                for client in 0..self.clients.len() {
                    let c = &mut self.clients[client];
                    if c.osd == osd && std::mem::take(&mut c.held) && !c.ended {
                        self.send(client);
                    }
                }
            }
            Event::Reset(osd) => {
                self.disconnect(osd);
                self.meet(osd);
            }
        }
    }

    fn manager_up(&mut self) {
        let mut tenants = Tenants::default();
        let resolved = self.plan.tenants.iter().map(|t| t.resolved.clone()).collect();
        tenants.due(self.seconds());
        tenants.take(Some(resolved), self.seconds());
        self.manager = Some(Manager { tenants, here: BTreeSet::new(), plan: 0, last: self.now, planned: u64::MAX });
        self.plan_round(self.now);
        for osd in 0..self.hosts.len() {
            if self.hosts[osd].up {
                self.meet(osd);
            }
        }
    }

    fn seconds(&self) -> f64 {
        self.now as f64 / SECOND as f64
    }

    fn disconnect(&mut self, osd: usize) {
        let h = &mut self.hosts[osd];
        (h.session, h.connected) = (h.session + 1, false);
        if let Some(m) = &mut self.manager {
            m.here.remove(&OsdId(osd as i32));
        }
    }

    /// An OSD finds the manager, after a while.
    fn meet(&mut self, osd: usize) {
        let after = (self.random.unit() * 0.2 * SECOND as f64) as u64;
        let session = self.hosts[osd].session;
        self.at(self.now + after, Event::Connect(osd, session));
    }

    fn connect(&mut self, osd: usize, session: u32) {
        let h = &mut self.hosts[osd];
        let Some(m) = self.manager.as_mut().filter(|_| h.session == session && h.up) else { return };
        h.connected = true;
        h.queue.forget_told();
        m.here.insert(OsdId(osd as i32));
        m.tenants.forget_told(OsdId(osd as i32));
        self.plan_tell(osd, self.now + DEMAND_PERIOD.as_nanos() as u64);
    }

    fn arrive(&mut self, client: usize) {
        let c = &mut self.clients[client];
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
        self.at(self.now + pause as u64, Event::Arrive(client));
    }

    fn send(&mut self, client: usize) {
        let now = self.instant();
        let c = &mut self.clients[client];
        c.under_way += 1;
        let (osd, sink) = (c.osd, c.session.clone());
        let h = &mut self.hosts[osd];
        let tracked = h.tracker.start(c.request.clone(), now);
        let op = ClientOp::new(c.request.clone(), c.info.clone(), c.request.m.pgid.pgid, sink, tracked, None);
        h.window.comes(op.sink().session(), true, self.now);
        h.queue.enqueue(Work::Client(Rc::new(op)), now);
        self.news(osd);
        self.pump(osd);
    }

    /// The OSD runs what its scheduler gives, as far as the window lets it.
    fn pump(&mut self, osd: usize) {
        let now = self.instant();
        let device = self.plan.devices[osd];
        loop {
            let h = &mut self.hosts[osd];
            if !h.up || h.running >= h.window.size(self.now) {
                return;
            }
            match h.queue.dequeue(now) {
                // Nobody waits for it any more.
                Next::Work(Work::Client(op), _) if !op.sink().is_open() => {}
                Next::Work(Work::Client(op), _) => {
                    let stream = op.request.tid as usize;
                    let cost = self.plan.tenants[self.clients[stream].tenant].cost();
                    let mut took = cost / f64::from(SMALLEST) / device.iops * SECOND as f64;
                    if device.hiccup < usize::MAX && self.random.below(device.hiccup) == 0 {
                        took += 20e6;
                    }
                    h.running += 1;
                    h.busy = h.busy.max(self.now) + took as u64;
                    let (at, life) = (h.busy + device.latency, h.life);
                    self.seen.served(self.now - BEGIN, self.clients[stream].tenant);
                    self.at(at, Event::Done { osd, life, stream, began: self.now });
                }
                Next::Work(Work::Background(_), _) => {}
                Next::At(t) => {
                    let at = (t.saturating_duration_since(self.base).as_nanos() as u64).max(self.now + 1);
                    if h.wake.is_none_or(|w| w > at || w <= self.now) {
                        h.wake = Some(at);
                        self.at(at, Event::Wake(osd));
                    }
                    return;
                }
                Next::Empty => return,
            }
        }
    }

    fn done(&mut self, osd: usize, life: u32, stream: usize, began: u64) {
        let h = &mut self.hosts[osd];
        if h.life != life {
            return;
        }
        h.running -= 1;
        h.window.ended(self.now - began, true, h.running, !h.queue.is_empty(), self.now);
        let c = &mut self.clients[stream];
        c.under_way = c.under_way.saturating_sub(1);
        if std::mem::take(&mut c.held) && !c.ended {
            self.send(stream);
        } else {
            self.pump(osd);
        }
    }

    /// Whether the OSD wants to tell demand before the next turn.
    fn news(&mut self, osd: usize) {
        let news = self.hosts[osd].queue.news();
        let notified = std::pin::pin!(news.notified());
        if notified.poll(&mut std::task::Context::from_waker(std::task::Waker::noop())).is_ready() {
            self.plan_tell(osd, self.now + NEWS_PAUSE.as_nanos() as u64);
        }
    }

    fn plan_tell(&mut self, osd: usize, at: u64) {
        let h = &mut self.hosts[osd];
        if h.telling.is_some_and(|t| t <= at && t > self.now) {
            return;
        }
        h.plan += 1;
        h.telling = Some(at);
        let plan = h.plan;
        self.at(at, Event::Tell(osd, plan));
    }

    fn tell(&mut self, osd: usize, plan: u32) {
        let now = self.instant();
        let h = &mut self.hosts[osd];
        if h.plan != plan || !h.up {
            return;
        }
        h.telling = None;
        let demand = h.queue.demand(now);
        if h.connected && !(demand.images.is_empty() && demand.tenants.is_empty()) {
            let session = h.session;
            let message = Box::new(QosDemand { osd: OsdId(osd as i32), ..demand }.encode(Features::ALL));
            self.seen.sent(self.now - BEGIN, osd, size(&message), true);
            let at = self.arrival(osd, 0);
            self.at(at, Event::ToManager { osd, session, message });
        }
        if self.hosts[osd].queue.has_limited() {
            self.plan_tell(osd, self.now + DEMAND_PERIOD.as_nanos() as u64);
        }
        self.pump(osd);
    }

    /// When a message arrives. Some are late, and those behind it on its connection with it.
    fn arrival(&mut self, osd: usize, direction: usize) -> u64 {
        let late = if self.random.below(33) == 0 { 300.0 } else { 2.0 };
        let at = self.now + (self.random.unit() * late * 1e6) as u64 + 100_000;
        let last = &mut self.hosts[osd].last[direction];
        *last = at.max(*last + 1);
        *last
    }

    fn to_manager(&mut self, osd: usize, session: u32, message: &Message) {
        if self.hosts[osd].session != session {
            return;
        }
        let seconds = self.seconds();
        let Some(m) = &mut self.manager else { return };
        let began = Instant::now();
        let Ok(AnyMessage::QosDemand(d)) = AnyMessage::decode(message) else { panic!("the manager cannot read what an OSD wrote") };
        let urgent = m.tenants.handle_demand(d.osd, &d.tenants, seconds);
        self.seen.worked(self.now - BEGIN, began.elapsed());
        if urgent {
            let at = self.now.max(m.last + ROUND_PAUSE);
            self.plan_round(at);
        }
    }

    fn plan_round(&mut self, at: u64) {
        let Some(m) = &mut self.manager else { return };
        if m.planned <= at {
            return;
        }
        m.plan += 1;
        m.planned = at;
        let plan = m.plan;
        self.at(at, Event::Round(plan));
    }

    fn round(&mut self, plan: u32) {
        let seconds = self.seconds();
        let Some(m) = self.manager.as_mut().filter(|m| m.plan == plan) else { return };
        (m.last, m.planned) = (self.now, u64::MAX);
        let began = Instant::now();
        let (hosts, serving) = (&self.hosts, &self.plan.serving);
        let leads = |pool: PoolId| -> BTreeSet<OsdId> {
            let all = serving.get(pool.0 as usize).into_iter().flatten();
            all.filter(|o| hosts[**o].up).map(|o| OsdId(*o as i32)).collect()
        };
        let told = m.tenants.round(seconds, &m.here, leads);
        let messages: Vec<(usize, Box<Message>)> = told.into_iter().map(|(osd, m)| (osd.0 as usize, Box::new(m.encode(Features::ALL)))).collect();
        self.seen.worked(self.now - BEGIN, began.elapsed());
        for (osd, message) in messages {
            self.seen.sent(self.now - BEGIN, osd, size(&message), false);
            let (at, session) = (self.arrival(osd, 1), self.hosts[osd].session);
            self.at(at, Event::ToOsd { osd, session, message });
        }
        self.plan_round(self.now + ROUND_PAUSE + ROUND_PERIOD);
    }

    fn to_osd(&mut self, osd: usize, session: u32, message: &Message) {
        let now = self.instant();
        let h = &mut self.hosts[osd];
        if h.session != session {
            return;
        }
        let Ok(AnyMessage::QosShares(shares)) = AnyMessage::decode(message) else { panic!("an OSD cannot read what the manager wrote") };
        h.queue.take_shares(shares, now);
        self.news(osd);
        self.pump(osd);
    }
}

fn tracker() -> Rc<Tracker> {
    let t: Rc<Tracker> = Rc::default();
    t.set_limits(HistoryLimits { size: 0, slow_size: 0, ..HistoryLimits::default() });
    t
}

fn size(m: &Message) -> usize {
    FRAME + m.front.len() + m.middle.len() + m.data.iter().map(Bytes::len).sum::<usize>()
}
