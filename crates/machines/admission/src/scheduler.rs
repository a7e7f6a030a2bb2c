//! The scheduler of an OSD: one of those of [`qos`], as `osd_op_queue` says, with the profile that
//! the configuration asks for. What an image's limits do not allow yet waits in front of it.

use crate::ceilings::ImageCeilings;
use crate::classes::Classes;
use crate::costs::{Costs, capacity_options};
use crate::front::Front;
use crate::ignored::{self, Ignored, Scheme};
use crate::legs::Spent;
use crate::meter::Receipt;
use crate::news::News;
use crate::owners::Owners;
use crate::request::{Payer, Request};
use crate::tenants::{MANAGER, MANAGER_SPEC, Promises, TenantBy, Tenants};
use crate::work::{Background, Kind, Next, Queue, Work};
use conf::Config;
use messages::{ClassSeen, QosDemand, QosSeen, QosShares};
use qos::{
    Access, Charges, ClassState, Dequeued, DeviceKind, Fifo, Mclock, MclockProfile, Op, OpClass,
    Phase, Scheduler, Wpq, cut_off,
};
use serde_json::{Value, json};
use std::rc::Rc;
use std::time::{Duration, Instant};
use types::PoolId;

/// Priorities by kind of work, for the scheduler that goes by them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Priorities {
    client: u32,
    recovery: u32,
    snap_trim: u32,
    scrub: u32,
    /// The rest of the background work.
    other: u32,
}

impl Priorities {
    fn of(c: &Config) -> Self {
        let read = |name| c.u64(name) as u32;
        Priorities {
            client: read("osd_client_op_priority"),
            recovery: read("osd_recovery_op_priority"),
            snap_trim: read("osd_snap_trim_priority"),
            scrub: read("osd_scrub_priority"),
            other: 5,
        }
    }
}

const DAY_NANOS: u64 = 86_400_000_000_000;

enum Kinds<R> {
    Mclock(Box<Mclock<Work<R>>>),
    Wpq(Box<Wpq<Work<R>>>),
    Fifo(Fifo<Work<R>>),
}

impl<R: Request> Kinds<R> {
    /// The one that a configuration asks for.
    fn of(c: &Config, costs: &Costs) -> Self {
        let cut = if c.str("osd_op_queue_cut_off") == "low" { cut_off::LOW } else { cut_off::HIGH };
        match &*c.str("osd_op_queue") {
            "wpq" => Kinds::Wpq(Box::new(Wpq::new(cut, 1))),
            "fifo" => Kinds::Fifo(Fifo::default()),
            _ => Kinds::Mclock(Box::new(Mclock::new(costs.spec()))),
        }
    }

    /// What there is to do with any of them.
    fn any(&mut self) -> &mut dyn Scheduler<Work<R>> {
        match self {
            Kinds::Mclock(q) => &mut **q,
            Kinds::Wpq(q) => &mut **q,
            Kinds::Fifo(q) => q,
        }
    }

    /// How many operations of a class wait, if that is known.
    fn class_len(&self, class: OpClass) -> Option<usize> {
        match self {
            Kinds::Mclock(q) => Some(q.class_len(class)),
            Kinds::Wpq(_) | Kinds::Fifo(_) => None,
        }
    }
}

/// The queue of an OSD: a scheduler, with ceilings, tenants and background work in front of it.
pub struct OsdQueue<R> {
    kind: Kinds<R>,
    priorities: Priorities,
    images: ImageCeilings<R>,
    tenants: Tenants<R>,
    classes: Classes,
    costs: Costs,
    /// Background work that clients hold back; unused under WPQ.
    front: Front,
    /// What is set and does not hold.
    ignored: Vec<Ignored>,
    /// How long clients' operations took, since the manager was told.
    latencies: qos::Latencies,
    /// Notified when the manager should be told of demand before the next round.
    news: Rc<News>,
    /// Where its time begins.
    start: Instant,
}

/// Promises to classes follow the capacity when it has changed by so much, ...
const CHANGED_PART: f64 = 0.1;
/// ... and floors when they have to by so many thousandths.
const RESCALED_THOUSANDTHS: u32 = 50;
/// A floor that was not kept for so long is one that cannot be kept, in nanoseconds.
const DEBT_NANOS: u64 = 1_000_000_000;
impl<R: Request> OsdQueue<R> {
    /// The scheduler that the configuration asks for, with the moment from which its clock counts.
    /// Which one it is, is decided once.
    pub fn starting(c: &Config, start: Instant) -> Self {
        OsdQueue::on(DeviceKind::Ssd, c, start)
    }

    /// The same, on a device of a kind.
    pub fn on(kind: DeviceKind, c: &Config, start: Instant) -> Self {
        let costs = Costs::new(c, kind);
        let kind = Kinds::of(c, &costs);
        let images = ImageCeilings::default();
        let news = images.news();
        let tenants = Tenants::new(tenant_by(c));
        let mut front = Front::new(qos::parts(costs.profile.1), costs.per_ms());
        front.set_profile(costs.profile.0, c);
        let priorities = Priorities::of(c);
        let mut q = OsdQueue {
            kind,
            priorities,
            images,
            tenants,
            classes: Classes::default(),
            costs,
            front,
            ignored: Vec::new(),
            latencies: qos::Latencies::default(),
            news,
            start,
        };
        q.ignored = q.ignored(c);
        q.promise(vec![(MANAGER, MANAGER_SPEC)], 0);
        q
    }

    /// Notified when the manager should be told of demand before the next round.
    pub fn news(&self) -> Rc<News> {
        self.news.clone()
    }

    /// Recognises owners of objects by this table. What waits keeps its tenant.
    pub fn recognise(&mut self, owners: Owners) {
        let owners = Rc::new(owners);
        self.images.recognise(owners.clone());
        self.tenants.recognise(owners);
    }

    /// Takes a request that its image's limits allow.
    fn admit(&mut self, op: Rc<R>, now: u64) {
        if let Some(op) = self.tenants.admit(op, now) {
            self.schedule(Work::Client(op), now);
        } else if self.tenants.take_urgent() {
            self.news.notify();
        }
    }

    /// Tells the scheduler of promises.
    fn promise(&mut self, promises: Promises, now: u64) {
        if let Kinds::Mclock(q) = &mut self.kind {
            for (tenant, spec) in promises {
                q.set_tenant(OpClass::Client, tenant, spec, now);
            }
        }
    }

    /// Requests may belong to other tenants than before: all that wait are admitted again, in
    /// order.
    fn admit_again(&mut self, behind: Vec<Rc<R>>, now: u64) {
        let scheduled = match &mut self.kind {
            Kinds::Mclock(q) => q.drain(OpClass::Client),
            // It does not go by these tenants.
            Kinds::Wpq(_) | Kinds::Fifo(_) => Vec::new(),
        };
        for op in scheduled {
            match op.item {
                Work::Client(op) => self.admit(op, now),
                other => self.schedule(other, now),
            }
        }
        for op in behind {
            self.admit(op, now);
        }
    }

    /// Takes background work, which may have to wait in front of the scheduler.
    fn background(&mut self, mut job: Background, now: u64) {
        job.queued = now;
        self.classes.offered(of_background(&job, &self.priorities).0, job.cost);
        if matches!(self.kind, Kinds::Mclock(_)) && Front::takes(&job.kind) {
            let cost = self.costs.beside(&job);
            let (class, ..) = of_background(&job, &self.priorities);
            self.front.push(class, job, cost);
        } else {
            self.schedule(Work::Background(job), now);
        }
    }

    /// Lets what may begin beside clients into the scheduler; when to ask again.
    fn begin_background(&mut self, now: u64) -> Option<u64> {
        while !self.front.is_empty() {
            let kind = &self.kind;
            let inside = |class| kind.class_len(class).unwrap_or(0);
            match self.front.next(inside, now) {
                Ok((mut job, held)) => {
                    if held {
                        let class = of_background(&job, &self.priorities).0;
                        self.classes.throttled(class, 1, now.saturating_sub(job.queued));
                    }
                    job.queued = now;
                    self.schedule(Work::Background(job), now);
                }
                Err(later) => return later,
            }
        }
        None
    }

    fn schedule(&mut self, work: Work<R>, now: u64) {
        let (class, mut tenant, cost, mut priority) = classify(&work, &self.priorities);
        if is_waited_for(&work) {
            // Clients had their turn for it. With floors that take all there is, theirs behind it
            // would be worth nothing.
            priority = if matches!(self.kind, Kinds::Mclock(_)) {
                cut_off::HIGH
            } else {
                self.priorities.client
            };
        }
        let mut session = 0;
        if let (Work::Client(op), Kinds::Mclock(_)) = (&work, &self.kind) {
            (tenant, session) = (op.tags().tenant.get(), op.session());
        }
        let charge = match &work {
            // What these are worth is for an operator to say (`osd_snap_trim_cost`): in bytes, as
            // Ceph counts.
            Work::Background(Background {
                kind: Kind::SnapTrim(_) | Kind::RemoveObjects(_),
                ..
            }) => self.costs.charge_bytes(cost),
            _ => self.costs.charge(access(&work), cost),
        };
        let op = Op {
            item: work,
            class,
            tenant,
            session,
            cost: cost.min(u32::MAX.into()) as u32,
            charge,
            priority,
        };
        match &mut self.kind {
            // The one that counts is called without a detour.
            Kinds::Mclock(q) => q.enqueue(op, now),
            other => other.any().enqueue(op, now),
        }
    }

    /// What the scheduler promises classes.
    fn promised(&self) -> Option<qos::MclockSpec> {
        matches!(self.kind, Kinds::Mclock(_)).then(|| self.costs.spec())
    }

    /// Counts what ceilings of tenants held back, for the class of clients.
    fn count_throttled(&mut self) {
        let (ops, nanos) = self.tenants.take_throttled();
        if ops > 0 || nanos > 0 {
            self.classes.throttled(OpClass::Client, ops, nanos);
        }
    }

    /// What the scheduler's tenant of a class is called.
    fn tenant_name(
        &self,
        class: OpClass,
        id: u64,
        pool_name: &dyn Fn(PoolId) -> Option<String>,
    ) -> String {
        let name = match class {
            OpClass::Client => self.tenants.name(id, pool_name),
            _ => pool_name(PoolId(id as i64)),
        };
        name.unwrap_or_else(|| id.to_string())
    }

    fn at(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.start).as_nanos() as u64
    }

    /// Counts what the scheduler lets go.
    fn begins(&mut self, op: Op<Work<R>>, phase: Phase, at: u64) -> (Work<R>, Receipt) {
        let by_floor = phase == Phase::Floor;
        let queued = match &op.item {
            Work::Client(request) => request.tags().queued.get(),
            Work::Background(job) => job.queued,
        };
        let paid = self.costs.in_writes(op.charge);
        self.classes.served(op.class, (op.cost.into(), paid), phase, at.saturating_sub(queued), at);
        if let Work::Client(request) = &op.item {
            self.tenants.served(request, op.cost.into(), paid, by_floor, at);
        }
        if op.class == OpClass::Client {
            self.front.client_begins(op.charge, at);
            self.costs.mean = self.costs.mean - self.costs.mean / 64 + u64::from(op.charge);
        }
        let sure = if let Work::Client(request) = &op.item { request.is_sure() } else { true };
        let (bytes, access) = (op.cost.into(), access(&op.item));
        let receipt = Receipt {
            class: op.class,
            tenant: op.tenant,
            charged: op.charge,
            phase,
            access,
            bytes,
            sure,
        };
        (op.item, receipt)
    }
}

impl<R: Request> OsdQueue<R> {
    /// Nothing before this time, or before an image's limit allows something.
    fn later(&mut self, scheduled: Option<u64>, now: u64) -> Next<R> {
        match scheduled.into_iter().chain(self.images.next_at()).chain(self.tenants.next_at()).min()
        {
            // A day is for ever; adding more could leave what the clock can say.
            Some(t) => {
                Next::At(self.start + Duration::from_nanos(t.min(now.saturating_add(DAY_NANOS))))
            }
            None => Next::Empty,
        }
    }
}

/// What the scheduler has of a tenant of clients.
fn waiting<R: Request>(kind: &Kinds<R>, id: u64) -> usize {
    match kind {
        Kinds::Mclock(q) => q.tenant_len(OpClass::Client, id),
        Kinds::Wpq(_) | Kinds::Fifo(_) => 0,
    }
}

impl<R: Request> OsdQueue<R> {
    /// Makes floors fit into what this OSD can do, when it was seen that they do not: the OSD does
    /// all it can, and a floor was not kept for a while. Then what floors cost together has to be
    /// less than what there is, or debts grow for ever and others starve. An estimate alone lowers
    /// no floor, and an OSD that has time keeps all.
    fn scale_floors(&mut self, saturated: bool, debt: u64, now: u64) {
        let before = self.tenants.scale();
        let behind = before < qos::AHEAD || debt >= DEBT_NANOS;
        let scale = match self.costs.really().filter(|_| saturated && behind) {
            Some(capacity) => {
                let mean = (self.costs.mean / 64) as u32;
                let per_mib = self.costs.charge(Access::Write, 1 << 20);
                qos::room_for(self.tenants.promised(mean, per_mib, now), capacity)
            }
            None => qos::AHEAD,
        };
        if scale.abs_diff(before) >= RESCALED_THOUSANDTHS
            || (scale == qos::AHEAD && before != scale)
        {
            let promises = self.tenants.set_scale(scale);
            self.promise(promises, now);
        }
    }
}

/// A class as `dump_op_pq_state` shows it: seconds until it is owed or allowed something, and how
/// many small writes it is ahead.
fn class_state(c: &ClassState, in_front: usize, name: impl Fn(u64) -> String) -> Value {
    let seconds = |nanos: Option<i64>| nanos.map(|n| n as f64 / 1e9);
    let tenants = c.busiest.iter().map(|t| {
        json!({
            "tenant": name(t.tenant), "queued": t.waiting, "sessions": t.sessions, "weight": t.weight,
            "reservation": seconds(t.floor), "proportion": t.share as f64 / 1000.0,
        })
    });
    json!({
        "queued": c.waiting, "held_in_front": in_front, "reservation": seconds(c.reservation), "limit": seconds(c.limit),
        "proportion": c.share as f64 / 1000.0, "tenant_count": c.tenants, "tenants": tenants.collect::<Vec<_>>(),
    })
}

fn tenant_by(c: &Config) -> TenantBy {
    TenantBy::from_name(&c.str("osd_qos_tenant"))
}

fn access<R: Request>(work: &Work<R>) -> Access {
    match work {
        Work::Client(op) => op.access(),
        Work::Background(job) => match job.kind {
            Kind::ReadObject(_)
            | Kind::ReadShard(..)
            | Kind::Rebuild(_)
            | Kind::ListObjects(..)
            | Kind::Scan(_)
            | Kind::CountClones => Access::Read,
            Kind::Recover | Kind::SnapTrim(_) | Kind::RemoveObjects(_) => Access::Write,
        },
    }
}

/// Class, tenant, cost in bytes, priority.
fn classify<R: Request>(work: &Work<R>, p: &Priorities) -> (OpClass, u64, u64, u32) {
    match work {
        Work::Client(op) => (OpClass::Client, op.pool().0 as u64, op.cost(), p.client),
        Work::Background(job) => {
            let (class, priority) = of_background(job, p);
            (class, job.pgid.pgid.pool.0 as u64, job.cost, priority)
        }
    }
}

/// Whether clients wait for background work.
fn is_waited_for<R>(work: &Work<R>) -> bool {
    let Work::Background(job) = work else { return false };
    match &job.kind {
        Kind::ReadObject(read) => read.urgent,
        Kind::Rebuild(rebuild) => rebuild.urgent,
        _ => false,
    }
}

/// Class and priority of background work.
fn of_background(job: &Background, p: &Priorities) -> (OpClass, u32) {
    match job.kind {
        // As in Ceph: what is at risk goes before what is only misplaced.
        Kind::Recover
        | Kind::ReadObject(_)
        | Kind::ReadShard(..)
        | Kind::Rebuild(_)
        | Kind::ListObjects(..) => match job.misplaced {
            true => (OpClass::BackgroundBestEffort, p.recovery),
            false => (OpClass::BackgroundRecovery, p.recovery),
        },
        Kind::SnapTrim(_) | Kind::CountClones => (OpClass::BackgroundBestEffort, p.snap_trim),
        Kind::Scan(_) => (OpClass::BackgroundBestEffort, p.scrub),
        Kind::RemoveObjects(_) => (OpClass::BackgroundBestEffort, p.other),
    }
}

impl<R: Request> Queue<R> for OsdQueue<R> {
    fn enqueue(&mut self, work: Work<R>, now: Instant) {
        let now = self.at(now);
        match work {
            Work::Client(op) => {
                self.classes.offered(OpClass::Client, op.cost());
                op.tags().queued.set(now);
                match self.images.admit(op, now) {
                    Some(op) => self.admit(op, now),
                    None => self.classes.throttled(OpClass::Client, 1, 0),
                }
            }
            Work::Background(job) => self.background(job, now),
        }
    }

    fn dequeue(&mut self, now: Instant) -> Next<R> {
        let at = self.at(now);
        while let Some(op) = self.images.release(at) {
            self.classes.throttled(OpClass::Client, 0, at.saturating_sub(op.tags().queued.get()));
            self.admit(op, at);
        }
        while let Some(op) = self.tenants.release(at) {
            self.schedule(Work::Client(op), at);
        }
        self.count_throttled();
        let held = if self.front.is_empty() { None } else { self.begin_background(at) };
        let next = match &mut self.kind {
            Kinds::Mclock(q) => {
                // A built-in profile's ceilings are there for clients. Those of `custom` are the
                // operator's, and hold always.
                let next = match q.dequeue(at) {
                    Dequeued::Item(op, Phase::Strict) => {
                        // Background work pays for what of it could not wait.
                        if matches!(op.item, Work::Background(_)) {
                            q.charge(op.class, op.charge);
                        }
                        Dequeued::Item(op, Phase::Strict)
                    }
                    Dequeued::WaitUntil(_)
                        if self.costs.profile.0 != MclockProfile::Custom
                            && self
                                .front
                                .clients_are_away(q.class_len(OpClass::Client) > 0, at) =>
                    {
                        q.dequeue_beyond(at)
                    }
                    next => next,
                };
                let beyond = matches!(next, Dequeued::Item(_, Phase::Beyond));
                self.classes.at_ceiling(
                    OpClass::SHARED.map(|class| q.at_ceiling(class, at).filter(|_| !beyond)),
                    at,
                );
                next
            }
            other => other.any().dequeue(at),
        };
        match next {
            Dequeued::Item(op, phase) => {
                let (work, receipt) = self.begins(op, phase, at);
                Next::Work(work, receipt)
            }
            Dequeued::WaitUntil(t) => self.later(Some(held.map_or(t, |held| held.min(t))), at),
            Dequeued::Empty => self.later(held, at),
        }
    }

    fn dequeue_behind(&mut self, now: Instant) -> Option<(Work<R>, Receipt)> {
        let at = self.at(now);
        let Kinds::Mclock(q) = &mut self.kind else { return None };
        let (op, phase) = q.dequeue_behind(at)?;
        Some(self.begins(op, phase, at))
    }

    fn take_out(&mut self, gone: &dyn Fn(&R) -> bool, now: Instant) -> Vec<Rc<R>> {
        let now = self.at(now);
        let mut out = self.images.take_out(gone);
        out.append(&mut self.tenants.take_out(gone));
        let mut gone = |work: &Work<R>| matches!(work, Work::Client(op) if gone(op));
        let scheduled = self.kind.any().take_out(&mut gone, now);
        out.extend(scheduled.into_iter().filter_map(|work| match work {
            Work::Client(op) => Some(op),
            Work::Background(_) => None,
        }));
        out
    }

    fn len(&self) -> usize {
        let scheduled = match &self.kind {
            Kinds::Mclock(q) => q.len(),
            Kinds::Wpq(q) => q.len(),
            Kinds::Fifo(q) => q.len(),
        };
        scheduled + self.images.len() + self.tenants.len() + self.front.len()
    }

    fn name(&self) -> &'static str {
        match &self.kind {
            Kinds::Mclock(_) => "mclock_scheduler",
            Kinds::Wpq(_) => "wpq",
            Kinds::Fifo(_) => "fifo",
        }
    }

    fn demand(&mut self, now: Instant) -> QosDemand {
        let now = self.at(now);
        let kind = &self.kind;
        let (tenants, promises) = self.tenants.demand(&|id| waiting(kind, id), now);
        self.promise(promises, now);
        QosDemand { images: self.images.demand(now), tenants, ..QosDemand::default() }
    }

    fn forget_told(&mut self) {
        self.tenants.forget_told();
    }

    fn take_shares(&mut self, mut shares: QosShares, now: Instant) {
        let now = self.at(now);
        let limited = self.has_limited();
        self.images.take_shares(std::mem::take(&mut shares.images), now);
        let promises = self.tenants.heard(now);
        self.promise(promises, now);
        let (promises, again) = self.tenants.take_shares(shares, now);
        self.promise(promises, now);
        if let Some(again) = again {
            self.admit_again(again, now);
        }
        // From now on demand is told regularly.
        if !limited && self.has_limited() {
            self.news.notify();
        }
    }

    fn has_limited(&self) -> bool {
        self.images.has_limited() || self.tenants.has_limited()
    }

    fn dump(&self, pool_name: &dyn Fn(PoolId) -> Option<String>) -> Value {
        let mut v = self.tenants.dump(pool_name, &|id| waiting(&self.kind, id));
        let capacity = &self.costs;
        v["capacity"] = json!({
            "iops": capacity.capacity().iops.round(), "source": capacity.source(), "rotational": capacity.kind == DeviceKind::Hdd,
            "refused_iops": capacity.refused.map(f64::round),
            "set_iops": capacity.set.map(|s| s.iops), "contradicted": capacity.contradicted(),
            "mean_client_cost": (capacity.mean / 64) as f64 / f64::from(capacity.charge(Access::Write, qos::REFERENCE_BYTES)),
            "floors_scaled": f64::from(self.tenants.kept()) / 1000.0,
        });
        v["scheduler"] = self.name().into();
        let waiting = |class| Some(self.kind.class_len(class)? + self.front.class_len(class));
        v["classes"] = self.classes.dump(waiting, self.promised().as_ref());
        if let Kinds::Mclock(_) = &self.kind {
            v["background"] = self.front.dump(self.costs.profile.0);
        }
        let ignored = self
            .ignored
            .iter()
            .map(|i| (i.name.to_owned(), json!({"value": i.value, "why": i.why})));
        v["ignored"] = ignored.collect::<serde_json::Map<_, _>>().into();
        v
    }

    fn state(
        &self,
        most: usize,
        pool_name: &dyn Fn(PoolId) -> Option<String>,
        now: Instant,
    ) -> Value {
        let in_front = |class: OpClass| self.front.class_len(class);
        let high = match &self.kind {
            Kinds::Mclock(q) => q.strict().collect(),
            Kinds::Wpq(q) => q.strict().collect(),
            Kinds::Fifo(_) => Vec::new(),
        };
        let strict: usize = high.iter().map(|(_, n)| n).sum();
        let scheduled = match &self.kind {
            Kinds::Mclock(q) => q.len(),
            Kinds::Wpq(q) => q.len(),
            Kinds::Fifo(q) => q.len(),
        };
        let mut state = json!({
            "queue_sizes": {
                "high_priority_queue": strict, "scheduler": scheduled - strict,
                "limits_of_images": self.images.len(), "ceilings_of_tenants": self.tenants.len(), "beside_clients": self.front.len(),
            },
            "HighPriorityQueue": high.iter().map(|(priority, n)| json!({"priority": priority, "queue_size": n})).collect::<Vec<_>>(),
        });
        match &self.kind {
            Kinds::Mclock(q) => {
                let classes = q.state(most, self.at(now));
                state["mClockClients"] =
                    json!({"client_count": classes.iter().map(|c| c.tenants).sum::<usize>()});
                let class = |c: &ClassState| {
                    (
                        c.class.name().to_owned(),
                        class_state(c, in_front(c.class), |id| {
                            self.tenant_name(c.class, id, pool_name)
                        }),
                    )
                };
                state["mClockQueues"] =
                    classes.iter().map(class).collect::<serde_json::Map<_, _>>().into();
            }
            Kinds::Wpq(q) => {
                let queue = |(priority, n, tenants): (u32, usize, usize)| json!({"priority": priority, "queue_size": n, "num_klasses": tenants});
                state["queues"] = q.queues().map(queue).collect();
            }
            Kinds::Fifo(_) => {}
        }
        state
    }

    fn ignored(&self, c: &Config) -> Vec<Ignored> {
        let scheme = match &self.kind {
            Kinds::Mclock(_) => Scheme::Mclock(self.costs.kind),
            Kinds::Wpq(_) => Scheme::Wpq,
            Kinds::Fifo(_) => Scheme::Fifo,
        };
        ignored::ignored(c, scheme)
    }

    fn take_seen(&mut self, pool_name: &dyn Fn(PoolId) -> Option<String>) -> QosSeen {
        let classes = self.classes.all().map(|(class, c)| ClassSeen {
            name: class.name().to_owned(),
            waiting: self
                .kind
                .class_len(class)
                .map_or(0, |n| (n + self.front.class_len(class)) as u64),
            served: c.served,
            served_bytes: c.served_bytes,
            by_reservation: c.by_reservation,
            by_floor: c.by_floor,
        });
        let classes = classes.collect();
        let promised = self.promised();
        let latencies = self.latencies.bins().to_vec();
        self.latencies.clear();
        QosSeen {
            classes,
            latencies,
            tenants: self.tenants.take_seen(pool_name),
            work: self.classes.take_work(promised.as_ref()),
        }
    }

    fn choose(&mut self, c: &Config) {
        let wanted = Kinds::of(c, &self.costs);
        // The same one keeps what it was promised for tenants.
        if self.is_empty() && std::mem::discriminant(&wanted) != std::mem::discriminant(&self.kind)
        {
            self.kind = wanted;
            self.promise(vec![(MANAGER, MANAGER_SPEC)], 0);
        }
    }

    fn configure(&mut self, c: &Config, now: Instant) {
        let now = self.at(now);
        self.priorities = Priorities::of(c);
        if self.tenants.set_by(tenant_by(c)) {
            self.admit_again(Vec::new(), now);
        }
        self.costs.configure(c);
        self.front.configure(qos::parts(self.costs.profile.1), self.costs.per_ms());
        self.front.set_profile(self.costs.profile.0, c);
        if let Kinds::Mclock(q) = &mut self.kind {
            q.set_spec(self.costs.spec(), now);
        }
        self.ignored = self.ignored(c);
    }

    fn clients_left(&mut self, now: Instant) {
        self.front.clients_left(self.at(now));
    }

    fn answered(&mut self, took: Duration, now: Instant) {
        let took = took.as_nanos().min(u64::MAX.into()) as u64;
        self.latencies.add(took);
        self.front.answered(took, self.at(now));
    }

    fn spent(&mut self, op: &R, spent: &Spent) {
        self.tenants.spent(op, spent);
    }

    fn overrides_limits(&self) -> bool {
        !matches!(self.kind, Kinds::Wpq(_))
    }

    fn learned(&mut self, charges: &Charges, iops: Option<f64>, saturated: bool, now: Instant) {
        let now = self.at(now);
        self.costs.charges = *charges;
        self.front.set_per_ms(self.costs.per_ms());
        let contradicted = self.costs.contradicted();
        let [option, _, threshold] = capacity_options(self.costs.kind);
        if self.costs.learn(iops) {
            tracing::warn!(
                "it was learned that this OSD does {:.0} IOPS: more than {threshold} allows ({:.0}), so {:.0} holds; if it is true, set {option}",
                iops.unwrap_or(0.0),
                self.costs.threshold,
                self.costs.capacity().iops
            );
        }
        if let (Some(set), Some(learned), false, true) =
            (self.costs.set, self.costs.learned, contradicted, self.costs.contradicted())
        {
            tracing::warn!(
                "{option} is {:.0}, and what this OSD really does is {learned:.0}",
                set.iops
            );
        }
        let capacity = self.costs.capacity();
        if (capacity.iops - self.costs.applied.iops).abs() > CHANGED_PART * self.costs.applied.iops
        {
            self.costs.applied = capacity;
            if let Kinds::Mclock(q) = &mut self.kind {
                q.set_spec(self.costs.spec(), now);
            }
        }
        let debt = if let Kinds::Mclock(q) = &mut self.kind { q.floor_debt(now) } else { 0 };
        self.scale_floors(saturated, debt, now);
    }

    fn settle(&mut self, receipt: &Receipt, bytes: u64, nanos: u64) {
        let Kinds::Mclock(q) = &mut self.kind else { return };
        let mut really = self.costs.charge(receipt.access, bytes);
        if nanos > 0 {
            really = really.saturating_add(self.costs.units(nanos));
        }
        // What is about right is left alone.
        if really.abs_diff(receipt.charged) > receipt.charged / 8 {
            q.settle(receipt.class, receipt.tenant, receipt.charged, really, receipt.phase);
            let (paid, really) =
                (self.costs.in_writes(receipt.charged), self.costs.in_writes(really));
            self.classes.settled(receipt.class, paid, really);
            if receipt.class == OpClass::Client {
                self.tenants.settled(receipt.tenant, paid, really);
            }
        }
    }

    fn part(&mut self, payer: &Payer<'_>, access: Access, bytes: u64, now: Instant) {
        let now = self.at(now);
        let charge = self.costs.charge(access, bytes);
        let paid = self.costs.in_writes(charge);
        let tenant = self.tenants.part(payer, bytes, paid, now);
        self.classes.settled(OpClass::Client, 0, paid);
        if let Kinds::Mclock(q) = &mut self.kind {
            q.settle(OpClass::Client, tenant, 0, charge, Phase::Weight);
        }
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut all = vec![
            ("qos_floors_scaled", self.tenants.kept().into()),
            ("qos_capacity", self.costs.capacity().iops as u64),
        ];
        all.extend((self.costs.kind == DeviceKind::Hdd).then_some(("qos_rotational", 1)));
        all.extend(self.costs.set.map(|s| ("qos_capacity_set", s.iops as u64)));
        all.extend(self.costs.learned.map(|l| ("qos_capacity_learned", l as u64)));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plain::PlainRequest;
    use conf::effective::Source;
    use types::{PgId, PoolId, SnapId};

    fn job(kind: Kind) -> Work<PlainRequest> {
        Work::Background(Background {
            pgid: PgId { pool: PoolId(1), seed: 0 }.into(),
            copy: 0,
            kind,
            cost: 1 << 20,
            misplaced: false,
            receipt: Receipt::default(),
            queued: 0,
        })
    }

    fn queue(c: &Config) -> OsdQueue<PlainRequest> {
        OsdQueue::starting(c, Instant::now())
    }

    #[test]
    fn everything_comes_out_of_each_scheduler() {
        for (name, source) in [
            ("mclock_scheduler", Source::File),
            ("wpq", Source::File),
            ("fifo", Source::File),
            ("wpq", Source::Mon),
            ("fifo", Source::Mon),
        ] {
            let mut c = Config::new();
            // What the monitors have comes after the OSD has begun, and before it has anything to
            // do.
            let early = (source == Source::Mon).then(|| queue(&c));
            c.set(source, "osd_op_queue", name).unwrap();
            let mut q = early.unwrap_or_else(|| queue(&c));
            q.choose(&c);
            assert_eq!(q.name(), name);
            let mut now = Instant::now();
            q.enqueue(job(Kind::Recover), now);
            q.enqueue(job(Kind::SnapTrim(SnapId(1))), now);
            c.set(Source::Override, "osd_recovery_op_priority", "7").unwrap();
            q.configure(&c, now);
            assert_eq!(classify(&job(Kind::Recover), &q.priorities).3, 7);
            let mut out = 0;
            while out < 2 {
                match q.dequeue(now) {
                    Next::Work(..) => out += 1,
                    Next::At(t) => {
                        assert!(t > now, "{name} waits for the past");
                        now = t;
                    }
                    Next::Empty => panic!("{name} lost work"),
                }
            }
            assert!(q.is_empty());
            q.enqueue(job(Kind::Recover), now);
            q.choose(&Config::new());
            assert_eq!(q.name(), name, "something waits");
        }
    }

    #[test]
    fn what_was_learned_holds_unless_an_operator_says_otherwise() {
        let (mut c, now) = (Config::new(), Instant::now());
        let mut q = queue(&c);
        assert_eq!(q.costs.source(), "default");
        assert!(
            q.costs.charge(Access::Read, 4096).abs_diff(q.costs.charge(Access::Write, 4096)) < 10,
            "as in Ceph"
        );
        let mut model = qos::CostModel::default();
        let mut seen = qos::Seen {
            ops: [qos::Taken { count: 100, bytes: 409_600, nanos: 0 }; 2],
            thread: (1, 1),
            ..Default::default()
        };
        (0..100).for_each(|_| seen.cpu[0].add(4096, 10_000));
        (0..100).for_each(|_| seen.cpu[1].add(4096, 20_000));
        (0..100).for_each(|_| seen.device[1].add(4096, 80_000));
        (0..50).for_each(|_| model.learn(&seen));
        q.learned(model.charges(), Some(5000.0), false, now);
        assert_eq!(
            (q.costs.source(), q.costs.applied.iops, q.costs.capacity().iops),
            ("learned", 5000.0, 5000.0)
        );
        let part = f64::from(q.costs.charge(Access::Read, 4096))
            / f64::from(q.costs.charge(Access::Write, 4096));
        assert!((0.09..0.11).contains(&part), "{part}: 10 of 100 us");
        // A small change moves no clocks.
        q.learned(model.charges(), Some(5100.0), false, now);
        assert_eq!(q.costs.applied.iops, 5000.0);
        c.set(Source::Override, capacity_options(DeviceKind::Ssd)[0], "200").unwrap();
        q.configure(&c, now);
        assert_eq!((q.costs.source(), q.costs.applied.iops), ("set", 200.0));
        assert_eq!(q.costs.charge(Access::Read, 512), (1200 << 20) / 200, "costs are Ceph's, then");
        assert!(q.costs.contradicted());
        let counters = [
            ("qos_floors_scaled", 1000),
            ("qos_capacity", 200),
            ("qos_capacity_set", 200),
            ("qos_capacity_learned", 5100),
        ];
        assert_eq!(q.counters(), counters);
        let dump = q.dump(&|_| None);
        assert!(
            dump["capacity"]["contradicted"] == true && dump["capacity"]["iops"] == 200.0,
            "{dump}"
        );
        c.unset(Source::Override, capacity_options(DeviceKind::Ssd)[0]).unwrap();
        q.configure(&c, now);
        assert_eq!((q.costs.source(), q.costs.applied.iops), ("learned", 5100.0));
    }

    #[test]
    fn floors_that_do_not_fit_are_scaled_and_come_back() {
        let now = Instant::now();
        let mut q = queue(&Config::new());
        let rate =
            messages::ShareOfRate { each_second: 4_000_000, part: 4_000_000, ..Default::default() };
        let floors = vec![rate, messages::ShareOfRate::default()];
        let share = messages::TenantShare {
            name: "a".into(),
            pool: Some(PoolId(1)),
            weight: 100,
            osds: 1,
            floors,
            ..Default::default()
        };
        let parts =
            vec![messages::TenantPart { number: share.number, ops: 0, bytes: 0, floor: u32::MAX }];
        q.take_shares(
            QosShares { tenants: vec![share], all_tenants: true, parts, ..Default::default() },
            now,
        );
        let mut scale = |iops: Option<f64>, saturated, debt| {
            q.learned(&Charges::default(), iops, saturated, now);
            q.scale_floors(saturated, debt, q.at(now));
            (q.tenants.scale(), q.dump(&|_| None)["capacity"]["floors_scaled"].as_f64().unwrap())
        };
        const ALL: (u32, f64) = (qos::AHEAD, 1.0);
        assert_eq!(scale(None, true, DEBT_NANOS), ALL, "what an OSD can do is not known");
        assert_eq!(
            scale(Some(2000.0), true, DEBT_NANOS - 1),
            ALL,
            "they are kept, whatever the estimate says"
        );
        assert_eq!(scale(Some(2000.0), false, DEBT_NANOS), ALL, "there is time for them");
        assert_eq!(
            scale(Some(2000.0), true, DEBT_NANOS),
            (450, 0.45),
            "nine tenths of 2000 for 4000"
        );
        assert_eq!(scale(Some(2050.0), true, 0), (450, 0.45), "that is about the same");
        assert_eq!(scale(Some(3000.0), true, 0), (675, 0.675), "the device becomes faster");
        assert_eq!(scale(Some(4888.0), true, 0), (1099, 1.0), "all are kept, with less to spare");
        assert_eq!(scale(Some(9000.0), true, 0), ALL);
        assert_eq!(scale(Some(2000.0), true, DEBT_NANOS), (450, 0.45));
        assert_eq!(
            scale(Some(2000.0), false, 0),
            ALL,
            "and whoever comes to an OSD that has time gets all"
        );
    }

    #[test]
    fn what_was_learned_lowers_no_ceiling() {
        let (mut c, now) = (Config::new(), Instant::now());
        c.set(Source::Override, "osd_mclock_profile", "high_client_ops").unwrap();
        let mut q = queue(&c);
        let iops = |units: u64| (units + u64::from(qos::REFERENCE / 2)) / u64::from(qos::REFERENCE);
        let of = |q: &OsdQueue<PlainRequest>| {
            (
                iops(q.costs.spec().client.reservation),
                iops(q.costs.spec().background_best_effort.limit),
            )
        };
        let reserved = |iops: f64| (iops * 0.6) as u64;
        let default = of(&q);
        assert_eq!(default, (reserved(21_500.0), 15_050));
        q.learned(&Charges::default(), Some(1000.0), true, now);
        assert_eq!(of(&q), (reserved(1000.0), 15_050));
        q.learned(&Charges::default(), Some(40_000.0), true, now);
        assert_eq!(of(&q), (reserved(40_000.0), 28_000));
    }
}
