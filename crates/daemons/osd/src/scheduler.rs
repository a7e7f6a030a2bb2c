//! The scheduler of an OSD: one of those of [`qos`], as `osd_op_queue` says, with the profile that
//! the configuration asks for. What an image's limits do not allow yet waits in front of it.

use crate::ceilings::ImageCeilings;
use crate::classes::Classes;
use crate::client_op::ClientOp;
use crate::front::Front;
use crate::legs::Spent;
use crate::meter::Receipt;
use crate::overridden::{self, Ignored, Scheme};
use crate::tenants::{MANAGER, MANAGER_SPEC, Promises, TenantBy, Tenants};
use crate::work::{Background, Kind, Next, Queue, Work};
use conf::{Config, find};
use messages::{ClassSeen, OsdOp, QosDemand, QosSeen, QosShares};
use objops::{OpCode, OpExt};
use qos::{
    Access, Allocations, Capacity, Charges, ClassState, Dequeued, DeviceKind, Fifo, Mclock,
    MclockProfile, Op, OpClass, Phase, Scheduler, Wpq, cut_off,
};
use serde_json::{Value, json};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
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

const DAY: u64 = 86_400_000_000_000;

enum Kinds {
    Mclock(Box<Mclock<Work>>),
    Wpq(Box<Wpq<Work>>),
    Fifo(Fifo<Work>),
}

impl Kinds {
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
    fn any(&mut self) -> &mut dyn Scheduler<Work> {
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

/// See the module.
pub struct OsdQueue {
    kind: Kinds,
    priorities: Priorities,
    images: ImageCeilings,
    tenants: Tenants,
    classes: Classes,
    costs: Costs,
    /// Background work that clients hold back; unused under WPQ.
    front: Front,
    /// What is set and does not hold.
    ignored: Vec<Ignored>,
    /// Notified when the manager should be told of demand before the next round.
    news: Rc<Notify>,
    /// Where its time begins.
    start: Instant,
}

/// What operations cost, and what there is for all.
struct Costs {
    /// What the device is.
    kind: DeviceKind,
    charges: Charges,
    /// What an operator says; then costs are as Ceph has them, too.
    set: Option<Capacity>,
    /// What was learned, once it can be trusted.
    learned: Option<f64>,
    /// More than this is not believed (`osd_mclock_iops_capacity_threshold_*`), ...
    threshold: f64,
    /// ... as this was not.
    refused: Option<f64>,
    /// What the promises to classes were last made of.
    applied: Capacity,
    /// The mean charge of clients' operations, times 64.
    mean: u64,
    /// The profile, and what it promises classes.
    profile: (MclockProfile, [(f64, u32, f64); 3]),
}

/// Options of devices: writes of 4 KiB each second, bytes each second, and what of the former is
/// not believed.
pub(crate) fn capacity_options(kind: DeviceKind) -> [&'static str; 3] {
    match kind {
        DeviceKind::Ssd => [
            "osd_mclock_max_capacity_iops_ssd",
            "osd_mclock_max_sequential_bandwidth_ssd",
            "osd_mclock_iops_capacity_threshold_ssd",
        ],
        DeviceKind::Hdd => [
            "osd_mclock_max_capacity_iops_hdd",
            "osd_mclock_max_sequential_bandwidth_hdd",
            "osd_mclock_iops_capacity_threshold_hdd",
        ],
    }
}

/// Promises to classes follow the capacity when it has changed by so much, ...
const CHANGED: f64 = 0.1;
/// ... and floors when they have to by so many thousandths.
const SCALED: u32 = 50;
/// A floor that was not kept for so long is one that cannot be kept, in nanoseconds.
const BEHIND: u64 = 1_000_000_000;
/// A capacity that is set contradicts what was learned if one is so many times the other.
const CONTRADICTS: f64 = 2.0;

impl Costs {
    fn new(c: &Config, kind: DeviceKind) -> Self {
        let applied = Capacity::default_of(kind);
        let mut costs = Costs {
            kind,
            charges: Charges::default(),
            set: None,
            learned: None,
            threshold: f64::INFINITY,
            refused: None,
            applied,
            mean: 64 * u64::from(qos::REFERENCE),
            profile: (MclockProfile::Balanced, [(0.0, 1, 0.0); 3]),
        };
        costs.configure(c);
        costs
    }

    fn configure(&mut self, c: &Config) {
        let own = |name| {
            c.lookup(name).is_ok_and(|(_, source)| source != conf::effective::Source::Default)
        };
        let [iops, bandwidth, threshold] = capacity_options(self.kind);
        self.set = (own(iops) || own(bandwidth))
            .then(|| Capacity { iops: c.f64(iops), bandwidth: c.u64(bandwidth) });
        self.threshold = c.f64(threshold);
        if let Some(learned) = self.learned.take_if(|learned| *learned > self.threshold) {
            self.refused = Some(learned);
        }
        let profile = MclockProfile::from_name(&c.str("osd_mclock_profile")).unwrap_or_default();
        let of = Allocations::from_name(&c.str("osd_mclock_allocations")).unwrap_or_default();
        self.profile = (profile, profile.parts(of, custom(c)));
        self.applied = self.capacity();
    }

    /// Takes what was learned, if it can be: a figure that no such device reaches is one of a cache
    /// or an error, and what held before holds on. True if it is the first such figure.
    fn learn(&mut self, iops: Option<f64>) -> bool {
        let refused = iops.filter(|iops| *iops > self.threshold);
        if refused.is_none() {
            self.learned = iops;
        }
        std::mem::replace(&mut self.refused, refused).is_none() && refused.is_some()
    }

    /// What Ceph takes the device for.
    fn default(&self) -> Capacity {
        Capacity::default_of(self.kind)
    }

    /// What holds, in the unit of charges.
    fn capacity(&self) -> Capacity {
        self.set.unwrap_or_else(|| self.in_charges(self.learned.unwrap_or(self.default().iops)))
    }

    fn in_charges(&self, iops: f64) -> Capacity {
        Capacity { iops, bandwidth: (iops * f64::from(qos::REFERENCE)) as u64 }
    }

    fn source(&self) -> &'static str {
        match (&self.set, self.learned) {
            (Some(_), _) => "set",
            (None, Some(_)) => "learned",
            (None, None) => "default",
        }
    }

    fn contradicted(&self) -> bool {
        self.set.zip(self.learned).is_some_and(|(set, learned)| {
            set.iops > CONTRADICTS * learned || learned > CONTRADICTS * set.iops
        })
    }

    #[inline]
    fn charge(&self, access: Access, bytes: u64) -> u32 {
        match &self.set {
            None => self.charges.charge(access, bytes),
            Some(c) => bytes.min(u32::MAX.into()).max(c.cost_per_io().into()) as u32,
        }
    }

    /// By bytes alone, at the ratio of bytes to random writes that Ceph has by default.
    fn charge_bytes(&self, bytes: u64) -> u32 {
        let default = self.default().cost_per_io();
        match &self.set {
            None => (bytes.min(1 << 40) * u64::from(qos::REFERENCE) / u64::from(default))
                .clamp(1, u32::MAX.into()) as u32,
            Some(_) => self.charge(Access::Write, bytes),
        }
    }

    /// What a time of the processor is worth.
    fn units(&self, nanos: u64) -> u32 {
        match &self.set {
            None => self.charges.units(nanos),
            Some(c) => (u128::from(nanos) * u128::from(c.bytes_per_sec()) / 1_000_000_000)
                .min(u32::MAX.into()) as u32,
        }
    }

    /// Reservations are parts of what holds. What was learned raises ceilings, and never lowers
    /// them: who is alone on an OSD that idles must not be slowed down because of a wrong estimate.
    fn spec(&self) -> qos::MclockSpec {
        let of = |capacity: Capacity| capacity.spec(self.profile.1);
        let mut spec = of(self.applied);
        let default = self.in_charges(self.default().iops);
        if self.set.is_none() && self.applied.iops < default.iops {
            let open = of(default);
            spec.client.limit = open.client.limit;
            spec.background_recovery.limit = open.background_recovery.limit;
            spec.background_best_effort.limit = open.background_best_effort.limit;
        }
        spec
    }

    /// What work costs beside clients, all that follows from it included; in time of device and
    /// processor, whatever an operator says that it is worth.
    fn beside(&self, job: &Background) -> u64 {
        let (read, small) = (
            |bytes| u64::from(self.charge(Access::Read, bytes)),
            u64::from(self.charge(Access::Write, 4096)),
        );
        match job.kind {
            // The object is read here or elsewhere, and written there or here. What was learned of
            // a byte says how long large requests take among others, not what they keep others
            // from: it was tens of times Ceph's ratio.
            Kind::Recover | Kind::ReadObject(_) => {
                2 * small + u64::from(self.charge_bytes(job.cost))
            }
            // The clone's object is read, and a small change made of several rows.
            Kind::SnapTrim(_) => 2 * small,
            Kind::Scan(_) | Kind::ListObjects(..) | Kind::CountClones => read(job.cost),
            // Many objects go with one change.
            Kind::RemoveObjects(objects) => small + small * objects as u64 / 8,
        }
    }

    /// What the OSD can do in a millisecond, in cost.
    fn per_ms(&self) -> u64 {
        u64::from(self.units(1_000_000))
    }

    /// What a random write of 4 KiB is charged.
    fn each(&self) -> u32 {
        self.set.map_or(qos::REFERENCE, |set| set.cost_per_io()).max(1)
    }

    /// A charge in thousandths of such writes.
    #[inline]
    fn in_writes(&self, charge: u32) -> u64 {
        u64::from(charge) * 1000 / u64::from(self.each())
    }

    /// What floors are measured by: what was seen, whatever an operator says.
    fn really(&self) -> Option<u64> {
        Some((self.learned? * f64::from(self.each())) as u64)
    }
}

fn custom(c: &Config) -> [(f64, u32, f64); 3] {
    let float =
        |name: &str, otherwise: f64| if find(name).is_some() { c.f64(name) } else { otherwise };
    ["client", "background_recovery", "background_best_effort"].map(|class| {
        let part = |what: &str, otherwise| {
            float(&format!("osd_mclock_scheduler_{class}_{what}"), otherwise)
        };
        (part("res", 0.0), part("wgt", 1.0) as u32, part("lim", 0.0))
    })
}

impl OsdQueue {
    /// The scheduler that the configuration asks for. Which one it is, is decided once.
    pub fn new(c: &Config) -> Self {
        OsdQueue::starting(c, Instant::now())
    }

    /// The same, with the moment from which its clock counts.
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
            news,
            start,
        };
        q.ignored = q.ignored(c);
        q.promise(vec![(MANAGER, MANAGER_SPEC)], 0);
        q
    }

    /// Notified when the manager should be told of demand before the next round.
    pub fn news(&self) -> Rc<Notify> {
        self.news.clone()
    }

    /// Takes a request of a client whose image allows it.
    fn admit(&mut self, op: Rc<ClientOp>, now: u64) {
        if let Some(op) = self.tenants.admit(op, now) {
            self.schedule(Work::Client(op), now);
        } else if self.tenants.take_urgent() {
            self.news.notify_one();
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
    fn admit_again(&mut self, behind: Vec<Rc<ClientOp>>, now: u64) {
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

    fn schedule(&mut self, work: Work, now: u64) {
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
            (tenant, session) = (op.tenant.get(), op.sink().session());
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
    fn begins(&mut self, op: Op<Work>, phase: Phase, at: u64) -> (Work, Receipt) {
        let by_floor = phase == Phase::Floor;
        let queued = match &op.item {
            Work::Client(request) => request.queued.get(),
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
        let sure = if let Work::Client(request) = &op.item { is_sure(request.m()) } else { true };
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

impl OsdQueue {
    /// Nothing before this time, or before an image's limit allows something.
    fn later(&mut self, scheduled: Option<u64>) -> Next {
        match scheduled.into_iter().chain(self.images.next()).chain(self.tenants.next()).min() {
            // A day is for ever; adding more could leave what the clock can say.
            Some(t) => Next::At(
                self.start
                    + Duration::from_nanos(t.min(self.at(Instant::now()).saturating_add(DAY))),
            ),
            None => Next::Empty,
        }
    }
}

/// What the scheduler has of a tenant of clients.
fn waiting(kind: &Kinds, id: u64) -> usize {
    match kind {
        Kinds::Mclock(q) => q.tenant_len(OpClass::Client, id),
        Kinds::Wpq(_) | Kinds::Fifo(_) => 0,
    }
}

impl OsdQueue {
    /// Makes floors fit into what this OSD can do, when it was seen that they do not: the OSD does
    /// all it can, and somebody's floor was not kept for a while. Then what floors cost together
    /// has to be less than what there is, or debts grow for ever and others starve. An estimate
    /// alone lowers nobody's floor, and an OSD that has time keeps all.
    fn scale_floors(&mut self, saturated: bool, debt: u64, now: u64) {
        let before = self.tenants.scale();
        let behind = before < qos::AHEAD || debt >= BEHIND;
        let scale = match self.costs.really().filter(|_| saturated && behind) {
            Some(capacity) => {
                let mean = (self.costs.mean / 64) as u32;
                let per_mib = self.costs.charge(Access::Write, 1 << 20);
                qos::room_for(self.tenants.promised(mean, per_mib, now), capacity)
            }
            None => qos::AHEAD,
        };
        if scale.abs_diff(before) >= SCALED || (scale == qos::AHEAD && before != scale) {
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

/// About how many bytes a request moves.
fn cost(m: &OsdOp) -> u64 {
    let asked = |o: &messages::Op| if o.code.is_read() { o.extent().length } else { 0 };
    // A read of everything asks for 0 bytes; what it costs shows only afterwards.
    m.ops.iter().map(|o| o.indata.len() as u64 + asked(o).min(8 << 20)).sum()
}

/// Whether bytes tell what a request costs.
fn is_sure(m: &OsdOp) -> bool {
    m.ops.iter().all(|o| {
        matches!(
            o.code,
            OpCode::READ
                | OpCode::SPARSE_READ
                | OpCode::STAT
                | OpCode::GETXATTR
                | OpCode::GETXATTRS
                | OpCode::CMPXATTR
                | OpCode::SETXATTR
                | OpCode::CREATE
                | OpCode::WRITE
                | OpCode::WRITEFULL
                | OpCode::APPEND
                | OpCode::SETALLOCHINT
                | OpCode::WATCH
        )
    })
}

fn access(work: &Work) -> Access {
    match work {
        Work::Client(op) if op.info.may_write() => Access::Write,
        Work::Client(_) => Access::Read,
        Work::Background(job) => match job.kind {
            Kind::ReadObject(_) | Kind::ListObjects(..) | Kind::Scan(_) | Kind::CountClones => {
                Access::Read
            }
            Kind::Recover | Kind::SnapTrim(_) | Kind::RemoveObjects(_) => Access::Write,
        },
    }
}

/// Class, tenant, cost in bytes, priority.
fn classify(work: &Work, p: &Priorities) -> (OpClass, u64, u64, u32) {
    match work {
        Work::Client(op) => (OpClass::Client, op.pgid.pool.0 as u64, cost(op.m()), p.client),
        Work::Background(job) => {
            let (class, priority) = of_background(job, p);
            (class, job.pgid.pgid.pool.0 as u64, job.cost, priority)
        }
    }
}

/// Whether clients wait for background work.
fn is_waited_for(work: &Work) -> bool {
    matches!(work, Work::Background(Background { kind: Kind::ReadObject(read), .. }) if read.urgent)
}

/// Class and priority of background work.
fn of_background(job: &Background, p: &Priorities) -> (OpClass, u32) {
    match job.kind {
        // As in Ceph: what is at risk goes before what is only misplaced.
        Kind::Recover | Kind::ReadObject(_) | Kind::ListObjects(..) if job.misplaced => {
            (OpClass::BackgroundBestEffort, p.recovery)
        }
        Kind::Recover | Kind::ReadObject(_) | Kind::ListObjects(..) => {
            (OpClass::BackgroundRecovery, p.recovery)
        }
        Kind::SnapTrim(_) | Kind::CountClones => (OpClass::BackgroundBestEffort, p.snap_trim),
        Kind::Scan(_) => (OpClass::BackgroundBestEffort, p.scrub),
        Kind::RemoveObjects(_) => (OpClass::BackgroundBestEffort, p.other),
    }
}

impl Queue for OsdQueue {
    fn enqueue(&mut self, work: Work, now: Instant) {
        let now = self.at(now);
        match work {
            Work::Client(op) => {
                self.classes.offered(OpClass::Client, cost(op.m()));
                op.queued.set(now);
                match self.images.admit(op, now) {
                    Some(op) => self.admit(op, now),
                    None => self.classes.throttled(OpClass::Client, 1, 0),
                }
            }
            Work::Background(job) => self.background(job, now),
        }
    }

    fn dequeue(&mut self, now: Instant) -> Next {
        let at = self.at(now);
        while let Some(op) = self.images.release(at) {
            self.classes.throttled(OpClass::Client, 0, at.saturating_sub(op.queued.get()));
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
            Dequeued::WaitUntil(t) => self.later(Some(held.map_or(t, |held| held.min(t)))),
            Dequeued::Empty => self.later(held),
        }
    }

    fn dequeue_behind(&mut self, now: Instant) -> Option<(Work, Receipt)> {
        let at = self.at(now);
        let Kinds::Mclock(q) = &mut self.kind else { return None };
        let (op, phase) = q.dequeue_behind(at)?;
        Some(self.begins(op, phase, at))
    }

    fn take_out(&mut self, gone: &dyn Fn(&ClientOp) -> bool, now: Instant) -> Vec<Rc<ClientOp>> {
        let now = self.at(now);
        let mut out = self.images.take_out(gone);
        out.append(&mut self.tenants.take_out(gone));
        let mut gone = |work: &Work| matches!(work, Work::Client(op) if gone(op));
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
            self.news.notify_one();
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
        overridden::ignored(c, scheme)
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
        QosSeen {
            classes,
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
        self.front.answered(took.as_nanos().min(u64::MAX.into()) as u64, self.at(now));
    }

    fn spent(&mut self, op: &ClientOp, spent: &Spent) {
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
        if (capacity.iops - self.costs.applied.iops).abs() > CHANGED * self.costs.applied.iops {
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
    use conf::effective::Source;
    use types::{PgId, PoolId, SnapId};

    fn job(kind: Kind) -> Work {
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
            let early = (source == Source::Mon).then(|| OsdQueue::new(&c));
            c.set(source, "osd_op_queue", name).unwrap();
            let mut q = early.unwrap_or_else(|| OsdQueue::new(&c));
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
        let mut q = OsdQueue::new(&c);
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
        let mut q = OsdQueue::new(&Config::new());
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
        assert_eq!(scale(None, true, BEHIND), ALL, "what an OSD can do is not known");
        assert_eq!(
            scale(Some(2000.0), true, BEHIND - 1),
            ALL,
            "they are kept, whatever the estimate says"
        );
        assert_eq!(scale(Some(2000.0), false, BEHIND), ALL, "there is time for them");
        assert_eq!(scale(Some(2000.0), true, BEHIND), (450, 0.45), "nine tenths of 2000 for 4000");
        assert_eq!(scale(Some(2050.0), true, 0), (450, 0.45), "that is about the same");
        assert_eq!(scale(Some(3000.0), true, 0), (675, 0.675), "the device becomes faster");
        assert_eq!(scale(Some(4888.0), true, 0), (1099, 1.0), "all are kept, with less to spare");
        assert_eq!(scale(Some(9000.0), true, 0), ALL);
        assert_eq!(scale(Some(2000.0), true, BEHIND), (450, 0.45));
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
        let mut q = OsdQueue::new(&c);
        let iops = |units: u64| (units + u64::from(qos::REFERENCE / 2)) / u64::from(qos::REFERENCE);
        let of = |q: &OsdQueue| {
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
