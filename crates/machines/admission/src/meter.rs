//! What operations cost on this OSD, and what it can do: gathers what [`qos::CostModel`] and
//! [`qos::CapacityEstimator`] learn from.
//!
//! An operation adds a few numbers here. Everything else is done once in a period, which is a tenth
//! of a second, or longer while little happens.

use denc_derive::Denc;
use qos::{
    Access, CapacityEstimator, CostModel, OpClass, Period, Phase, REFERENCE, Seen, Taken, Verdict,
};
use serde_json::{Value, json};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// What the scheduler charged for something, until it is known what it really cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The class that paid.
    pub class: OpClass,
    /// The tenant that paid.
    pub tenant: u64,
    /// What was paid, in the scheduler's unit.
    pub charged: u32,
    /// Why it was served.
    pub phase: Phase,
    /// What it does.
    pub access: Access,
    /// The bytes that it was expected to move.
    pub bytes: u64,
    /// Whether its bytes tell what it costs.
    pub sure: bool,
}

impl Default for Receipt {
    fn default() -> Self {
        Receipt {
            class: OpClass::Immediate,
            tenant: 0,
            charged: 0,
            phase: Phase::Strict,
            access: Access::Read,
            bytes: 0,
            sure: true,
        }
    }
}

/// A period is at least so long, ...
const PERIOD_MIN: Duration = Duration::from_millis(100);
/// ... and longer, up to this, while there are fewer operations than ...
const PERIOD_MAX: Duration = Duration::from_secs(1);
/// ... these.
const ENOUGH_OPS: u64 = 32;
/// With fewer than these, a period says nothing of costs.
const SOME_OPS: u64 = 8;

/// Something waited all the time if it did not for less than one in so many parts of it: while
/// operations come in rounds, the scheduler is empty for a moment between them, and the device is
/// busy with those that it has.
const IDLE: u32 = 5;
/// The OSD was saturated a moment ago if it was within this.
const RECENTLY: Duration = Duration::from_secs(5);

/// Sizes of requests to a device are told apart by powers of two.
pub const SIZES: usize = 16;

/// What a store did since it was opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Transactions that were submitted.
    pub transactions: u64,
    /// Bytes of objects' data in them.
    pub data: u64,
    /// Reads and writes of the device, by size.
    pub device: [[Taken; SIZES]; 2],
    /// How long the device was busy, in nanoseconds.
    pub busy: u64,
}

/// What a thread took of the processor, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Thread<'a> {
    /// CPU time since the thread began.
    pub cpu: u64,
    /// What starting operations took on it, for all its OSDs.
    pub starting: &'a Cell<u64>,
}

/// What an OSD has learned of costs and of its capacity, so that a restart need not learn it anew.
#[derive(Clone, Debug, Default, PartialEq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct Learned {
    /// See [`qos::CostModel::save`].
    pub costs: Vec<u64>,
    /// Thousandths of random 4 KiB writes each second.
    pub capacity_milli: u64,
    /// See [`qos::CapacityEstimator::save`].
    pub trust: u32,
}

/// What a store and a thread had done at some time.
#[derive(Clone, Copy, Default)]
struct Before {
    usage: Usage,
    thread: u64,
    starting: u64,
}

/// What operations cost here, and what this OSD can do, as it is learned.
pub struct Meter {
    begun: Instant,
    /// Looked at whether the period is over.
    looked: Instant,
    seen: Seen,
    /// Since when nothing waits that may go on; and for how long that was so before, in this
    /// period.
    idle_since: Option<Instant>,
    idle: Duration,
    before: Before,
    model: CostModel,
    capacity: CapacityEstimator,
    /// The last period that said something: parts of it in which device and thread were busy, in
    /// percent.
    last: (Verdict, u64, u64),
    exact: u64,
    /// When the last period ended in which the OSD did what it could.
    saturated: Option<Instant>,
}

impl Meter {
    /// Begins a period.
    pub fn new(now: Instant) -> Self {
        Meter {
            begun: now,
            looked: now,
            seen: Seen::default(),
            idle_since: Some(now),
            idle: Duration::ZERO,
            before: Before::default(),
            model: CostModel::default(),
            capacity: CapacityEstimator::default(),
            last: (Verdict::Nothing, 0, 0),
            exact: 0,
            saturated: None,
        }
    }

    /// A client's operation was started.
    #[inline]
    pub fn started(&mut self, receipt: &Receipt, took: Option<Duration>) {
        let (access, bytes) = (receipt.access, receipt.bytes);
        // Writes are counted by the store: those for other primaries are work as well.
        if access == Access::Read {
            self.read(bytes);
        }
        // Of others, the bytes do not tell the time.
        if let Some(took) = took.filter(|_| receipt.sure) {
            let took = took.as_nanos() as u64;
            // What another process did meanwhile is not this operation's.
            let most = 8 * self.model.start_nanos(access, 1, bytes);
            let known = self.model.seen()[access as usize] > 3;
            self.seen.cpu[access as usize].add(bytes, if known { took.min(most) } else { took });
        }
    }

    /// Something was read.
    pub fn read(&mut self, bytes: u64) {
        self.seen.ops[0].add(Taken { count: 1, bytes, nanos: 0 });
    }

    /// The scheduler was found empty, or at a ceiling: nothing waits that may go on.
    #[inline]
    pub fn idle(&mut self, now: Instant) {
        self.idle_since.get_or_insert(now);
    }

    /// Whether nothing was seen waiting since [`Meter::idle`].
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.idle_since.is_some()
    }

    /// Something waits, and the window is full.
    pub fn waits(&mut self, now: Instant) {
        if let Some(since) = self.idle_since.take() {
            self.idle += now.saturating_duration_since(since.max(self.begun));
        }
    }

    /// Whether it is time to ask [`Meter::look`].
    #[inline]
    pub fn is_due(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.looked) >= PERIOD_MIN
    }

    /// What the processor needs beyond what was to be expected of an operation that took so many
    /// nanoseconds of it.
    pub fn excess(&self, receipt: &Receipt, took: u64) -> u64 {
        took.saturating_sub(2 * self.model.start_nanos(receipt.access, 1, receipt.bytes))
    }

    /// Ends the period if it has lasted long enough.
    pub fn look(&mut self, usage: Usage, thread: Thread<'_>, now: Instant) -> bool {
        self.looked = now;
        let length = now.saturating_duration_since(self.begun);
        let reads = self.seen.ops[0].count;
        let ops = reads + usage.transactions.saturating_sub(self.before.usage.transactions);
        if length < PERIOD_MIN || (ops < ENOUGH_OPS && length < PERIOD_MAX) {
            return false;
        }
        let mut seen = std::mem::take(&mut self.seen);
        let was = &self.before.usage;
        seen.ops[1] = Taken {
            count: usage.transactions - was.transactions,
            bytes: usage.data.saturating_sub(was.data),
            nanos: 0,
        };
        for (i, (new, old)) in usage.device.iter().zip(&was.device).enumerate() {
            for (n, o) in new.iter().zip(old) {
                seen.device[i].add_all(since(n, o));
            }
        }
        // What is written for other primaries needs about as much.
        let starting = self.model.start_nanos(Access::Read, reads, seen.ops[0].bytes)
            + self.model.start_nanos(Access::Write, seen.ops[1].count, seen.ops[1].bytes);
        let starting_all = thread.starting.get().saturating_add(starting);
        thread.starting.set(starting_all);
        let cpu = thread.cpu.saturating_sub(self.before.thread);
        let started = starting_all.saturating_sub(self.before.starting);
        let device = usage.busy.saturating_sub(was.busy);
        let known = self.before.thread > 0;
        self.before = Before { usage, thread: thread.cpu, starting: starting_all };
        let open = self
            .idle_since
            .map_or(Duration::ZERO, |since| now.saturating_duration_since(since.max(self.begun)));
        let idle = std::mem::take(&mut self.idle) + open;
        self.begun = now;
        let backlogged = idle * IDLE < length;
        if !known {
            // What was before the first period is of no account.
            return false;
        }
        // What maps and pings need of the processor is not operations' while there are hardly any.
        if ops >= ENOUGH_OPS {
            seen.thread = (cpu, started);
        }
        if ops >= SOME_OPS {
            self.model.learn(&seen);
        }
        let charges = self.model.charges();
        let work = charges.work(&seen.ops);
        let cost_nanos = (work as f64 / f64::from(REFERENCE) * charges.reference_nanos()) as u64;
        let nanos = length.as_nanos() as u64;
        let verdict =
            self.capacity.observe(&Period { nanos, work, cost_nanos, device, cpu, backlogged });
        if verdict == Verdict::Exact {
            self.exact += 1;
            self.saturated = Some(now);
        }
        if verdict != Verdict::Nothing {
            self.last = (verdict, device.min(nanos) * 100 / nanos, cpu.min(nanos) * 100 / nanos);
        }
        true
    }

    /// Whether the OSD did all it could a moment ago.
    pub fn is_saturated(&self, now: Instant) -> bool {
        self.saturated.is_some_and(|at| now.saturating_duration_since(at) < RECENTLY)
    }

    /// What operations cost.
    pub fn model(&self) -> &CostModel {
        &self.model
    }

    /// What the OSD can do.
    pub fn capacity(&self) -> &CapacityEstimator {
        &self.capacity
    }

    /// Goes on where an earlier run of this OSD has stopped. What makes no sense is left away.
    pub fn restore(&mut self, learned: &Learned) {
        if let Some(model) = CostModel::restore(&learned.costs) {
            self.model = model;
            self.capacity = CapacityEstimator::restore((learned.capacity_milli, learned.trust));
        }
    }

    /// What a restart needs, if anything was learned; and a number that grows when there is news.
    pub fn save(&self) -> Option<(Learned, u64)> {
        let seen: u32 = self.model.seen().iter().sum();
        let (capacity_milli, trust) = self.capacity.save();
        let learned = Learned { costs: self.model.save(), capacity_milli, trust };
        (seen > 0).then_some((learned, u64::from(seen) + self.exact))
    }

    /// What was learned, for people.
    pub fn dump(&self) -> (Value, Value) {
        let c = &self.capacity;
        let verdict = match self.last.0 {
            Verdict::Exact => "saturated",
            Verdict::AtLeast => "not saturated",
            Verdict::Nothing => "idle",
            Verdict::Refused => "refused",
        };
        let capacity = json!({
            "learned_iops": c.iops().round(), "confidence": c.confidence(), "trusted": c.trusted().is_some(),
            "saturated_periods": self.exact, "refused_periods": c.refused(),
            "last_period": {"was": verdict, "device_busy_percent": self.last.1, "thread_busy_percent": self.last.2},
        });
        let charges = self.model.charges();
        let of = |access| {
            let (fixed, per_byte) = self.model.line(access);
            let cost = |bytes| {
                (f64::from(charges.charge(access, bytes)) / f64::from(REFERENCE) * 1000.0).round()
                    / 1000.0
            };
            json!({
                "fixed_us": (fixed / 10.0).round() / 100.0, "us_per_kib": (per_byte * 1024.0 / 10.0).round() / 100.0,
                "cost_4k": cost(4096), "cost_64k": cost(65536), "cost_4m": cost(4 << 20),
                "periods": self.model.seen()[access as usize],
            })
        };
        (capacity, json!({"read": of(Access::Read), "write": of(Access::Write)}))
    }
}

fn since(new: &Taken, old: &Taken) -> Taken {
    Taken {
        count: new.count.saturating_sub(old.count),
        bytes: new.bytes.saturating_sub(old.bytes),
        nanos: new.nanos.saturating_sub(old.nanos),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread that has only just begun.
    fn thread(starting: &Cell<u64>) -> Thread<'_> {
        Thread { cpu: 1, starting }
    }

    /// A store that commits 20 writes of 4 KiB together in 2 ms.
    fn worked(usage: &mut Usage, times: u64, each: u64) {
        for _ in 0..times {
            usage.transactions += 20;
            usage.data += 20 * 4096;
            let s = &mut usage.device[1][9];
            s.count += 1;
            s.bytes += 20 * 5000;
            s.nanos += each;
            usage.busy += each;
        }
    }

    #[test]
    fn capacity_is_learned_under_load_kept_and_follows() {
        let (mut now, mut usage) = (Instant::now(), Usage::default());
        let starting = Cell::new(0);
        let mut m = Meter::new(now);
        let mut run = |m: &mut Meter, periods: u64, commits: u64, each: u64, idle: bool| {
            for _ in 0..periods {
                worked(&mut usage, commits, each);
                now += Duration::from_millis(commits * each / 1_000_000).max(PERIOD_MIN);
                if idle {
                    m.idle(now - PERIOD_MIN / 2);
                }
                m.waits(now);
                assert!(m.is_due(now));
                m.look(usage, thread(&starting), now);
            }
        };
        run(&mut m, 20, 40, 2_000_000, true);
        assert_eq!(m.capacity().trusted(), None, "something was always allowed to wait");
        run(&mut m, 30, 50, 2_000_000, false);
        let fast = m.capacity().trusted().unwrap();
        assert!((9000.0..11_000.0).contains(&fast), "{fast}");
        // Ten times slower: the periods are as long as a few commits take.
        run(&mut m, 10, 10, 20_000_000, false);
        let slow = m.capacity().trusted().unwrap();
        assert!((900.0..1500.0).contains(&slow), "{slow}");
        let (learned, news) = m.save().unwrap();
        assert!(news > 0);
        let mut again = Meter::new(now);
        again.restore(&learned);
        assert!((again.capacity().trusted().unwrap() - slow).abs() < 1.0);
        again.restore(&Learned { costs: vec![1, 2, 3], capacity_milli: 5_000, trust: 100 });
        assert!(
            (again.capacity().trusted().unwrap() - slow).abs() < 1.0,
            "nonsense changes nothing"
        );
        let (capacity, costs) = again.dump();
        assert!(
            capacity["trusted"] == true
                && costs["write"]["cost_4k"].as_f64().is_some_and(|c| (0.95..1.05).contains(&c)),
            "{capacity} {costs}"
        );
    }

    #[test]
    fn a_period_without_operations_ends_and_says_nothing() {
        let (now, starting) = (Instant::now(), Cell::new(0));
        let mut m = Meter::new(now);
        assert!(!m.look(Usage::default(), thread(&starting), now + PERIOD_MIN), "it goes on");
        assert!(!m.look(Usage::default(), thread(&starting), now + PERIOD_MAX), "the first one");
        assert!(m.look(Usage::default(), thread(&starting), now + 2 * PERIOD_MAX));
        assert_eq!((m.capacity().iops(), m.capacity().refused(), m.save()), (0.0, 0, None));
    }
}
