//! A cluster in virtual time: its OSDs, its manager and what they tell each other. Requests
//! come from [`Clients`].

use crate::random::Random;
use crate::report::Seen;
use crate::scenario::SECOND;
use admission::limited::{DEMAND_PERIOD, NEWS_PAUSE};
use admission::plain::{PlainRequest, Session};
use admission::{Next, OsdQueue, Queue, Request, Work};
use bytes::Bytes;
use conf::Config;
use denc::Features;
use messages::{AnyMessage, Payload, QosDemand, TenantShare};
use promises::{Resolved, Tenants};
use qos::{Access, Window};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::rc::Rc;
use std::time::{Duration, Instant};
use types::message::Message;
use types::{OsdId, PoolId};

/// The manager's pauses, as in its daemon.
const ROUND_PAUSE: u64 = 5_000_000;
const ROUND_PERIOD: u64 = 100_000_000;
/// A new manager has read specifications after so many nanoseconds at most.
const READS: f64 = 0.4e9;
/// Everything is old enough to be later than nothing.
pub(crate) const BEGIN: u64 = SECOND;
/// A header and the checks of a frame, in crc mode.
const FRAME: usize = 32 + 41 + 21;

/// What happens. `C` is what happens to clients.
pub(crate) enum Event<C> {
    Client(C),
    Done {
        osd: usize,
        life: u32,
        op: Rc<PlainRequest>,
        began: u64,
    },
    Wake(usize),
    Tell(usize, u32),
    ToManager {
        osd: usize,
        session: u32,
        message: Box<Message>,
    },
    ToOsd {
        osd: usize,
        session: u32,
        message: Box<Message>,
    },
    Round(u32),
    Connect(usize, u32),
    ManagerDown,
    ManagerUp,
    /// The manager has read what tenants there are.
    Specifications,
    Down(usize),
    Up(usize),
    Reset(usize),
}

/// The clients of the OSDs, and how long their requests take.
pub(crate) trait Clients: Sized {
    /// What happens to them.
    type Event;

    /// It happens.
    fn handle(w: &mut World<Self>, event: Self::Event);

    /// The primaries of a pool's PGs. The caller leaves out those that are down.
    fn leads(&self, pool: PoolId) -> Vec<usize>;

    /// An OSD begins an operation: when it has answered.
    fn begins(w: &mut World<Self>, osd: usize, op: &PlainRequest) -> u64;

    /// An OSD has answered. It has room for another one: that is for this to tell it, after it has
    /// sent what it sends at once.
    fn ended(w: &mut World<Self>, osd: usize, op: &PlainRequest);

    /// An OSD is gone, with all that it had to do.
    fn down(w: &mut World<Self>, osd: usize);

    /// It is there again.
    fn up(w: &mut World<Self>, osd: usize);
}

pub(crate) struct Host {
    pub up: bool,
    /// Counts restarts.
    life: u32,
    queue: OsdQueue<PlainRequest>,
    window: Window,
    running: usize,
    config: Config,
    /// Until then it does nothing at all: what would happen to it happens at this moment.
    pub paused: u64,
    /// When it is to be woken.
    wake: Option<u64>,
    /// Counts plans to tell demand; older ones are void.
    plan: u32,
    telling: Option<u64>,
    session: u32,
    connected: bool,
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

/// What a world is like before anybody is in it.
pub(crate) struct Ground {
    /// Of all that chance decides from now on.
    pub seed: u64,
    /// Of each OSD.
    pub configs: Vec<Config>,
    /// What the manager reads of tenants.
    pub resolved: Vec<Resolved>,
    /// How late messages of OSDs and the manager may be, one of some thirty, in milliseconds.
    pub late: f64,
    /// OSDs wake up at multiples of this, in nanoseconds.
    pub tick: u64,
    /// How long something can be counted.
    pub seconds: usize,
}

/// The cluster, its clients, and the events that are still to come.
pub(crate) struct World<C: Clients> {
    pub clients: C,
    pub random: Random,
    pub now: u64,
    pub hosts: Vec<Host>,
    pub seen: Seen,
    base: Instant,
    count: u64,
    events: BinaryHeap<Reverse<(u64, u64, usize)>>,
    slots: Vec<Option<Event<C::Event>>>,
    free: Vec<usize>,
    manager: Option<Manager>,
    resolved: Vec<Resolved>,
    late: f64,
    tick: u64,
}

/// What a client asks an OSD for, again and again.
#[derive(Clone)]
pub(crate) struct Ask {
    pool: PoolId,
    namespace: Bytes,
    object: Bytes,
    what: (Access, u64),
    tid: u64,
}

impl Ask {
    /// Of a tenant's client. `number` names the object; `tid` is the client's number for it.
    pub fn new(
        whose: &TenantShare,
        pool: PoolId,
        number: usize,
        what: (Access, u64),
        tid: u64,
    ) -> Self {
        let object = match &whose.prefix {
            Some(prefix) => format!("{}.{number:x}", String::from_utf8_lossy(prefix)),
            None => format!("object-{number}"),
        };
        let namespace = whose.namespace.clone().unwrap_or_default();
        Ask { pool, namespace, object: object.into(), what, tid }
    }

    fn request(&self, session: Rc<Session>) -> PlainRequest {
        let (namespace, object) = (self.namespace.clone(), self.object.clone());
        PlainRequest::new(self.pool, namespace, object, self.what, session, self.tid)
    }
}

impl<C: Clients> World<C> {
    /// All OSDs are there and know nothing.
    pub fn new(ground: Ground, clients: C) -> Self {
        let base = Instant::now();
        let Ground { seed, configs, resolved, late, tick, seconds } = ground;
        let seen = Seen::new(resolved.len(), configs.len(), seconds);
        let hosts = configs.into_iter().map(|config| Host {
            up: true,
            life: 0,
            queue: OsdQueue::starting(&config, base),
            window: Window::new(4, 256, 0),
            running: 0,
            config,
            paused: 0,
            wake: None,
            plan: 0,
            telling: None,
            session: 0,
            connected: false,
            last: [0; 2],
        });
        World {
            random: Random::new(seed),
            base,
            now: BEGIN,
            count: 0,
            events: BinaryHeap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            hosts: hosts.collect(),
            clients,
            manager: None,
            seen,
            resolved,
            late,
            tick,
        }
    }

    /// All that happens before this time.
    pub fn run(&mut self, end: u64) {
        while let Some(Reverse((at, _, slot))) = self.events.pop() {
            if at >= end {
                break;
            }
            self.now = at;
            self.free.push(slot);
            if let Some(event) = self.slots[slot].take() {
                self.handle(event);
            }
        }
    }

    /// Something happens then.
    pub fn at(&mut self, time: u64, event: Event<C::Event>) {
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

    fn handle(&mut self, event: Event<C::Event>) {
        if let Event::Done { osd, .. }
        | Event::Wake(osd)
        | Event::Tell(osd, _)
        | Event::ToOsd { osd, .. } = &event
        {
            let resumes = self.hosts[*osd].paused;
            if resumes > self.now {
                let wake = &mut self.hosts[*osd].wake;
                if matches!(event, Event::Wake(_)) && *wake == Some(self.now) {
                    *wake = Some(resumes);
                }
                return self.at(resumes, event);
            }
        }
        match event {
            Event::Client(event) => C::handle(self, event),
            Event::Done { osd, life, op, began } => self.done(osd, life, &op, began),
            Event::Wake(osd) => {
                if self.hosts[osd].wake == Some(self.now) {
                    self.hosts[osd].wake = None;
                }
                self.pump(osd);
            }
            Event::Tell(osd, plan) => self.tell(osd, plan),
            Event::ToManager { osd, session, message } => {
                self.manager_hears(osd, session, &message)
            }
            Event::ToOsd { osd, session, message } => self.osd_hears(osd, session, &message),
            Event::Round(plan) => self.round(plan),
            Event::Connect(osd, session) => self.connect(osd, session),
            Event::ManagerDown => {
                self.manager = None;
                for h in &mut self.hosts {
                    (h.session, h.connected) = (h.session + 1, false);
                }
            }
            Event::ManagerUp => self.manager_up(),
            Event::Specifications => {
                let seconds = self.seconds();
                if let Some(m) = &mut self.manager {
                    m.tenants.take(Some(self.resolved.clone()), seconds);
                }
                self.plan_round(self.now);
            }
            Event::Down(osd) => {
                self.disconnect(osd);
                let h = &mut self.hosts[osd];
                (h.up, h.life, h.running) = (false, h.life + 1, 0);
                h.queue = OsdQueue::starting(&h.config, self.base);
                h.window = Window::new(4, 256, 0);
                C::down(self, osd);
            }
            Event::Up(osd) => {
                self.hosts[osd].up = true;
                self.meet(osd);
                C::up(self, osd);
            }
            Event::Reset(osd) => {
                self.disconnect(osd);
                self.meet(osd);
            }
        }
    }

    /// A manager begins.
    pub fn manager_up(&mut self) {
        let mut tenants = Tenants::default();
        tenants.due(self.seconds());
        self.manager = Some(Manager {
            tenants,
            here: BTreeSet::new(),
            plan: 0,
            last: self.now,
            planned: u64::MAX,
        });
        self.map_changed();
        let reads = (self.random.unit() * READS) as u64;
        self.at(self.now + reads, Event::Specifications);
        self.plan_round(self.now);
        for osd in 0..self.hosts.len() {
            if self.hosts[osd].up {
                self.meet(osd);
            }
        }
    }

    /// The manager has another map.
    pub fn map_changed(&mut self) {
        let up = self
            .hosts
            .iter()
            .enumerate()
            .filter(|(_, h)| h.up)
            .map(|(osd, _)| OsdId(osd as i32))
            .collect();
        if let Some(m) = &mut self.manager {
            m.tenants.map_changed(up);
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
        let Some(m) = self.manager.as_mut().filter(|_| h.session == session && h.up) else {
            return;
        };
        h.connected = true;
        h.queue.forget_told();
        m.here.insert(OsdId(osd as i32));
        m.tenants.forget_told(OsdId(osd as i32));
        self.plan_tell(osd, self.now + DEMAND_PERIOD.as_nanos() as u64);
    }

    /// A request comes to an OSD that is up.
    pub fn comes(&mut self, osd: usize, ask: &Ask, session: Rc<Session>) {
        let now = self.instant();
        let h = &mut self.hosts[osd];
        let op = ask.request(session);
        h.window.comes(op.session(), true, self.now);
        h.queue.enqueue(Work::Client(Rc::new(op)), now);
        self.news(osd);
        self.pump(osd);
    }

    /// The OSD runs what its scheduler gives, as far as the window lets it.
    pub fn pump(&mut self, osd: usize) {
        let now = self.instant();
        loop {
            let h = &mut self.hosts[osd];
            if !h.up || h.running >= h.window.size(self.now) {
                return;
            }
            match h.queue.dequeue(now) {
                Next::Work(Work::Client(op), _) => {
                    h.running += 1;
                    let (life, began) = (h.life, self.now);
                    let at = C::begins(self, osd, &op);
                    self.at(at, Event::Done { osd, life, op, began });
                }
                Next::Work(Work::Background(_), _) => {}
                Next::At(t) => {
                    let at = (t.saturating_duration_since(self.base).as_nanos() as u64)
                        .max(self.now + 1)
                        .next_multiple_of(self.tick);
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

    /// What waits of closed sessions goes, as in an OSD that lost the connection of its client.
    pub fn drop_closed(&mut self) {
        let now = self.instant();
        for h in &mut self.hosts {
            h.queue.take_out(&|op| !op.is_open(), now);
        }
    }

    fn done(&mut self, osd: usize, life: u32, op: &PlainRequest, began: u64) {
        let h = &mut self.hosts[osd];
        if h.life != life {
            return;
        }
        h.running -= 1;
        h.window.ended(self.now - began, true, h.running, !h.queue.is_empty(), self.now);
        C::ended(self, osd, op);
    }

    /// Whether the OSD wants to tell demand before the next turn.
    fn news(&mut self, osd: usize) {
        if self.hosts[osd].queue.news().take() {
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
            let message =
                Box::new(QosDemand { osd: OsdId(osd as i32), ..demand }.encode(Features::ALL));
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
        let late = if self.random.below(33) == 0 { self.late } else { 2.0 };
        let at = self.now + (self.random.unit() * late * 1e6) as u64 + 100_000;
        let last = &mut self.hosts[osd].last[direction];
        *last = at.max(*last + 1);
        *last
    }

    fn manager_hears(&mut self, osd: usize, session: u32, message: &Message) {
        if self.hosts[osd].session != session {
            return;
        }
        let seconds = self.seconds();
        let Some(m) = &mut self.manager else { return };
        let began = Instant::now();
        let Ok(AnyMessage::QosDemand(d)) = AnyMessage::decode(message) else {
            panic!("the manager cannot read what an OSD wrote")
        };
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
        let (hosts, clients) = (&self.hosts, &self.clients);
        let leads = |pool: PoolId| {
            clients
                .leads(pool)
                .into_iter()
                .filter(|o| hosts[*o].up)
                .map(|o| OsdId(o as i32))
                .collect::<BTreeSet<_>>()
        };
        let told = m.tenants.round(seconds, &m.here, leads);
        let messages: Vec<(usize, Box<Message>)> = told
            .into_iter()
            .map(|(osd, m)| (osd.0 as usize, Box::new(m.encode(Features::ALL))))
            .collect();
        self.seen.worked(self.now - BEGIN, began.elapsed());
        for (osd, message) in messages {
            self.seen.sent(self.now - BEGIN, osd, size(&message), false);
            let (at, session) = (self.arrival(osd, 1), self.hosts[osd].session);
            self.at(at, Event::ToOsd { osd, session, message });
        }
        self.plan_round(self.now + ROUND_PAUSE + ROUND_PERIOD);
    }

    fn osd_hears(&mut self, osd: usize, session: u32, message: &Message) {
        let now = self.instant();
        let h = &mut self.hosts[osd];
        if h.session != session {
            return;
        }
        let Ok(AnyMessage::QosShares(shares)) = AnyMessage::decode(message) else {
            panic!("an OSD cannot read what the manager wrote")
        };
        h.queue.take_shares(shares, now);
        self.news(osd);
        self.pump(osd);
    }
}

fn size(m: &Message) -> usize {
    FRAME + m.front.len() + m.middle.len() + m.data.iter().map(Bytes::len).sum::<usize>()
}
