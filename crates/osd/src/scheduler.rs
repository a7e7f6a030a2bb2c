//! The scheduler of an OSD: one of those of [`qos`], as `osd_op_queue` says, with the profile that the
//! configuration asks for. What an image's limits do not allow yet waits in front of it.

use crate::ceilings::ImageCeilings;
use crate::client_op::ClientOp;
use crate::op::OpExt;
use crate::tenants::{Promises, TenantBy, Tenants};
use crate::work::{Kind, Next, Queue, Work};
use conf::{Config, find};
use messages::{ClassSeen, OsdOp, QosDemand, QosSeen, QosShares};
use qos::{Capacity, Dequeued, DeviceKind, Mclock, MclockProfile, Op, OpClass, Phase, Scheduler, Wpq, cut_off};
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
}

/// What a class was served.
#[derive(Clone, Copy, Default)]
struct Served {
    ops: u64,
    bytes: u64,
    by_reservation: u64,
    by_floor: u64,
}

/// See the module.
pub struct OsdQueue {
    kind: Kinds,
    priorities: Priorities,
    images: ImageCeilings,
    tenants: Tenants,
    served: [Served; 3],
    /// Notified when the manager should be told of demand before the next round.
    news: Rc<Notify>,
    /// Where its time begins.
    start: Instant,
}

fn spec(c: &Config) -> qos::MclockSpec {
    let float = |name: &str, otherwise: f64| if find(name).is_some() { c.f64(name) } else { otherwise };
    let default = Capacity::default_of(DeviceKind::Ssd);
    let capacity = Capacity {
        iops: float("osd_mclock_max_capacity_iops_ssd", default.iops),
        bandwidth: float("osd_mclock_max_sequential_bandwidth_ssd", default.bandwidth as f64) as u64,
    };
    let custom = ["client", "background_recovery", "background_best_effort"].map(|class| {
        let part = |what: &str, otherwise| float(&format!("osd_mclock_scheduler_{class}_{what}"), otherwise);
        (part("res", 0.0), part("wgt", 1.0) as u32, part("lim", 0.0))
    });
    let name = if find("osd_mclock_profile").is_some() { c.str("osd_mclock_profile") } else { "balanced".into() };
    MclockProfile::from_name(&name).unwrap_or(MclockProfile::Balanced).spec(capacity, custom)
}

impl OsdQueue {
    /// The scheduler that the configuration asks for. Which one it is, is decided once.
    pub fn new(c: &Config) -> Self {
        OsdQueue::starting(c, Instant::now())
    }

    /// The same, with the moment from which its clock counts.
    pub fn starting(c: &Config, start: Instant) -> Self {
        let wpq = find("osd_op_queue").is_some() && c.str("osd_op_queue") == "wpq";
        let low = find("osd_op_queue_cut_off").is_some() && c.str("osd_op_queue_cut_off") == "low";
        let cut = if low { cut_off::LOW } else { cut_off::HIGH };
        let kind = if wpq { Kinds::Wpq(Box::new(Wpq::new(cut, 1))) } else { Kinds::Mclock(Box::new(Mclock::new(spec(c)))) };
        let images = ImageCeilings::default();
        let news = images.news();
        let tenants = Tenants::new(tenant_by(c));
        OsdQueue { kind, priorities: Priorities::of(c), images, tenants, served: Default::default(), news, start }
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

    /// Requests may belong to other tenants than before: all that wait are admitted again, in order.
    fn admit_again(&mut self, behind: Vec<Rc<ClientOp>>, now: u64) {
        let scheduled = match &mut self.kind {
            Kinds::Mclock(q) => q.drain(OpClass::Client),
            // It does not go by these tenants.
            Kinds::Wpq(_) => Vec::new(),
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

    fn schedule(&mut self, work: Work, now: u64) {
        let (class, mut tenant, cost, priority) = classify(&work, &self.priorities);
        let mut session = 0;
        if let (Work::Client(op), Kinds::Mclock(_)) = (&work, &self.kind) {
            (tenant, session) = (op.tenant.get(), op.sink().session());
        }
        let op = Op { item: work, class, tenant, session, cost: cost.min(u32::MAX.into()) as u32, priority };
        match &mut self.kind {
            Kinds::Mclock(q) => q.enqueue(op, now),
            Kinds::Wpq(q) => q.enqueue(op, now),
        }
    }

    fn at(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.start).as_nanos() as u64
    }
}

impl OsdQueue {
    /// Nothing before this time, or before an image's limit allows something.
    fn later(&mut self, scheduled: Option<u64>) -> Next {
        match scheduled.into_iter().chain(self.images.next()).chain(self.tenants.next()).min() {
            // A day is for ever; adding more could leave what the clock can say.
            Some(t) => Next::At(self.start + Duration::from_nanos(t.min(self.at(Instant::now()).saturating_add(DAY)))),
            None => Next::Empty,
        }
    }
}

/// What the scheduler has of a tenant of clients.
fn waiting(kind: &Kinds, id: u64) -> usize {
    match kind {
        Kinds::Mclock(q) => q.tenant_len(OpClass::Client, id),
        Kinds::Wpq(_) => 0,
    }
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

/// Class, tenant, cost in bytes, priority.
fn classify(work: &Work, p: &Priorities) -> (OpClass, u64, u64, u32) {
    match work {
        Work::Client(op) => {
            (OpClass::Client, op.pgid.pool.0 as u64, cost(op.m()), p.client)
        }
        Work::Background(job) => {
            let (class, priority) = match job.kind {
                // As in Ceph: what is at risk goes before what is only misplaced.
                Kind::Recover | Kind::ReadObject(_) | Kind::ListObjects(..) if job.misplaced => {
                    (OpClass::BackgroundBestEffort, p.recovery)
                }
                Kind::Recover | Kind::ReadObject(_) | Kind::ListObjects(..) => (OpClass::BackgroundRecovery, p.recovery),
                Kind::SnapTrim(_) => (OpClass::BackgroundBestEffort, p.snap_trim),
                Kind::Scan(_) => (OpClass::BackgroundBestEffort, p.scrub),
                Kind::RemoveObjects(_) => (OpClass::BackgroundBestEffort, p.other),
            };
            (class, job.pgid.pool.0 as u64, job.cost, priority)
        }
    }
}

impl Queue for OsdQueue {
    fn enqueue(&mut self, work: Work, now: Instant) {
        let now = self.at(now);
        match work {
            Work::Client(op) => {
                if let Some(op) = self.images.admit(op, now) {
                    self.admit(op, now);
                }
            }
            other => self.schedule(other, now),
        }
    }

    fn dequeue(&mut self, now: Instant) -> Next {
        let at = self.at(now);
        while let Some(op) = self.images.release(at) {
            self.admit(op, at);
        }
        while let Some(op) = self.tenants.release(at) {
            self.schedule(Work::Client(op), at);
        }
        let next = match &mut self.kind {
            Kinds::Mclock(q) => q.dequeue(at),
            Kinds::Wpq(q) => q.dequeue(at),
        };
        match next {
            Dequeued::Item(op, phase) => {
                let by_floor = phase == Phase::Floor;
                if let Some(class) = OpClass::SHARED.iter().position(|c| *c == op.class) {
                    let s = &mut self.served[class];
                    s.ops += 1;
                    s.bytes = s.bytes.saturating_add(op.cost.into());
                    s.by_reservation += u64::from(phase == Phase::Reservation);
                    s.by_floor += u64::from(by_floor);
                }
                if let Work::Client(request) = &op.item {
                    self.tenants.served(request, op.cost.into(), by_floor, at);
                }
                Next::Work(op.item)
            }
            Dequeued::WaitUntil(t) => self.later(Some(t)),
            Dequeued::Empty => self.later(None),
        }
    }

    fn len(&self) -> usize {
        let scheduled = match &self.kind {
            Kinds::Mclock(q) => q.len(),
            Kinds::Wpq(q) => q.len(),
        };
        scheduled + self.images.len() + self.tenants.len()
    }

    fn name(&self) -> &'static str {
        match &self.kind {
            Kinds::Mclock(_) => "mclock_scheduler",
            Kinds::Wpq(_) => "wpq",
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
        let classes = OpClass::SHARED.iter().zip(&self.served).map(|(class, s)| {
            let waiting = match &self.kind {
                Kinds::Mclock(q) => json!(q.class_len(*class)),
                Kinds::Wpq(_) => Value::Null,
            };
            let counts = json!({
                "waiting": waiting, "served": s.ops, "served_bytes": s.bytes,
                "served_by_reservation": s.by_reservation, "served_by_floor": s.by_floor,
            });
            (class.name().to_owned(), counts)
        });
        let mut v = self.tenants.dump(pool_name, &|id| waiting(&self.kind, id));
        v["scheduler"] = self.name().into();
        v["classes"] = classes.collect::<serde_json::Map<_, _>>().into();
        v
    }

    fn take_seen(&mut self, pool_name: &dyn Fn(PoolId) -> Option<String>) -> QosSeen {
        let classes = OpClass::SHARED.iter().zip(&self.served).map(|(class, s)| ClassSeen {
            name: class.name().to_owned(),
            waiting: match &self.kind {
                Kinds::Mclock(q) => q.class_len(*class) as u64,
                Kinds::Wpq(_) => 0,
            },
            served: s.ops,
            served_bytes: s.bytes,
            by_reservation: s.by_reservation,
            by_floor: s.by_floor,
        });
        QosSeen { classes: classes.collect(), tenants: self.tenants.take_seen(pool_name) }
    }

    fn configure(&mut self, c: &Config, now: Instant) {
        let now = self.at(now);
        self.priorities = Priorities::of(c);
        if self.tenants.set_by(tenant_by(c)) {
            self.admit_again(Vec::new(), now);
        }
        if let Kinds::Mclock(q) = &mut self.kind {
            q.set_spec(spec(c), now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::Background;
    use conf::effective::Source;
    use types::{PgId, PoolId, SnapId};

    fn job(kind: Kind) -> Work {
        Work::Background(Background { pgid: PgId { pool: PoolId(1), seed: 0 }, kind, cost: 1 << 20, misplaced: false })
    }

    #[test]
    fn everything_comes_out_of_either_scheduler() {
        for name in ["mclock_scheduler", "wpq"] {
            let mut c = Config::new();
            c.set(Source::File, "osd_op_queue", name).unwrap();
            let mut q = OsdQueue::new(&c);
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
                    Next::Work(_) => out += 1,
                    Next::At(t) => {
                        assert!(t > now, "{name} waits for the past");
                        now = t;
                    }
                    Next::Empty => panic!("{name} lost work"),
                }
            }
            assert!(q.is_empty());
        }
    }
}
