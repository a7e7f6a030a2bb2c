//! The scheduler of an OSD: one of those of [`qos`], as `osd_op_queue` says, with the profile that the
//! configuration asks for. What an image's limits do not allow yet waits in front of it.

use crate::ceilings::ImageCeilings;
use crate::op::OpExt;
use crate::work::{Kind, Next, Queue, Work};
use conf::{Config, find};
use qos::{Capacity, Dequeued, DeviceKind, Mclock, MclockProfile, Op, OpClass, Scheduler, Wpq, cut_off};
use messages::{ImageDemand, ImageShare};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Priorities by kind of work, for the scheduler that goes by them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Priorities {
    client: u32,
    recovery: u32,
    snap_trim: u32,
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
            other: 5,
        }
    }
}

const DAY: u64 = 86_400_000_000_000;

enum Kinds {
    Mclock(Box<Mclock<Work>>),
    Wpq(Box<Wpq<Work>>),
}

/// See the module.
pub struct OsdQueue {
    kind: Kinds,
    priorities: Priorities,
    images: ImageCeilings,
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
        let wpq = find("osd_op_queue").is_some() && c.str("osd_op_queue") == "wpq";
        let low = find("osd_op_queue_cut_off").is_some() && c.str("osd_op_queue_cut_off") == "low";
        let cut = if low { cut_off::LOW } else { cut_off::HIGH };
        let kind = if wpq { Kinds::Wpq(Box::new(Wpq::new(cut, 1))) } else { Kinds::Mclock(Box::new(Mclock::new(spec(c)))) };
        OsdQueue { kind, priorities: Priorities::of(c), images: ImageCeilings::default(), start: Instant::now() }
    }

    /// Notified when the manager should be told of demand before the next round.
    pub fn news(&self) -> Rc<Notify> {
        self.images.news()
    }

    fn schedule(&mut self, work: Work, now: u64) {
        let (class, tenant, cost, priority) = classify(&work, &self.priorities);
        let op = Op { item: work, class, tenant, cost: cost.min(u32::MAX.into()) as u32, priority };
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
        match scheduled.into_iter().chain(self.images.next()).min() {
            // A day is for ever; adding more could leave what the clock can say.
            Some(t) => Next::At(self.start + Duration::from_nanos(t.min(self.at(Instant::now()).saturating_add(DAY)))),
            None => Next::Empty,
        }
    }
}

/// Class, tenant, cost in bytes, priority.
fn classify(work: &Work, p: &Priorities) -> (OpClass, u64, u64, u32) {
    match work {
        Work::Client(op) => {
            let asked = |o: &messages::Op| if o.code.is_read() { o.extent().length } else { 0 };
            // A read of everything asks for 0 bytes; what it costs shows only afterwards.
            let bytes: u64 = op.m().ops.iter().map(|o| o.indata.len() as u64 + asked(o).min(8 << 20)).sum();
            (OpClass::Client, op.pgid.pool.0 as u64, bytes, p.client)
        }
        Work::Background(job) => {
            let (class, priority) = match job.kind {
                Kind::Recover | Kind::ReadObject(_) => (OpClass::BackgroundRecovery, p.recovery),
                Kind::SnapTrim(_) => (OpClass::BackgroundBestEffort, p.snap_trim),
                Kind::RemoveObjects(_) => (OpClass::BackgroundBestEffort, p.other),
            };
            (class, job.pgid.pool.0 as u64, job.cost, priority)
        }
    }
}

impl Queue for OsdQueue {
    fn enqueue(&mut self, work: Work, now: Instant) {
        let now = self.at(now);
        let work = match work {
            Work::Client(op) => match self.images.admit(op, now) {
                Some(op) => Work::Client(op),
                None => return,
            },
            other => other,
        };
        self.schedule(work, now);
    }

    fn dequeue(&mut self, now: Instant) -> Next {
        let at = self.at(now);
        while let Some(op) = self.images.release(at) {
            self.schedule(Work::Client(op), at);
        }
        let next = match &mut self.kind {
            Kinds::Mclock(q) => q.dequeue(at),
            Kinds::Wpq(q) => q.dequeue(at),
        };
        match next {
            Dequeued::Item(op, _) => Next::Work(op.item),
            Dequeued::WaitUntil(t) => self.later(Some(t)),
            Dequeued::Empty => self.later(None),
        }
    }

    fn len(&self) -> usize {
        let scheduled = match &self.kind {
            Kinds::Mclock(q) => q.len(),
            Kinds::Wpq(q) => q.len(),
        };
        scheduled + self.images.len()
    }

    fn name(&self) -> &'static str {
        match &self.kind {
            Kinds::Mclock(_) => "mclock_scheduler",
            Kinds::Wpq(_) => "wpq",
        }
    }

    fn demand(&mut self, now: Instant) -> Vec<ImageDemand> {
        self.images.demand(self.at(now))
    }

    fn take_shares(&mut self, shares: Vec<ImageShare>, now: Instant) {
        self.images.take_shares(shares, self.at(now));
    }

    fn has_limited(&self) -> bool {
        self.images.has_limited()
    }

    fn configure(&mut self, c: &Config, now: Instant) {
        let now = self.at(now);
        self.priorities = Priorities::of(c);
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
        Work::Background(Background { pgid: PgId { pool: PoolId(1), seed: 0 }, kind, cost: 1 << 20 })
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
