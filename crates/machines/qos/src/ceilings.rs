use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Slack of a rate without a burst: so much of it may be saved up.
pub const SLACK_MILLIS: u64 = 200;

/// A ceiling on a rate, in thousandths of operations or bytes. The default is none.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Rate {
    /// Each second; 0 for no ceiling.
    pub each_second: u64,
    /// What may be saved up while less is asked for.
    pub saved: u64,
    /// Ceiling while what was saved up is spent; 0 for none.
    pub peak: u64,
}

impl Rate {
    /// A ceiling of operations or bytes each second, which a burst may exceed for some seconds if
    /// it was saved up before. A burst below the ceiling is no burst (Ceph:
    /// `TokenBucketThrottle::set_limit`).
    pub fn new(limit: u64, burst: u64, burst_seconds: u64) -> Self {
        let each_second = limit.saturating_mul(1000);
        if limit == 0 || burst < limit {
            let saved = (u128::from(each_second) * u128::from(SLACK_MILLIS) / 1000) as u64;
            return Rate { each_second, saved, peak: 0 };
        }
        let peak = burst.saturating_mul(1000);
        Rate { each_second, saved: peak.saturating_mul(burst_seconds.max(1)), peak }
    }

    /// Whether there is no ceiling.
    pub fn is_unlimited(&self) -> bool {
        self.each_second == 0
    }

    /// The part of it that has `each_second`. A part is a ceiling, even if it rounds to nothing.
    pub fn part(&self, each_second: u64) -> Self {
        if self.is_unlimited() {
            return *self;
        }
        let each_second = each_second.max(1);
        let scale = |v: u64| {
            let scaled = u128::from(v) * u128::from(each_second) / u128::from(self.each_second);
            u64::try_from(scaled).unwrap_or(u64::MAX)
        };
        let peak = if self.peak == 0 { 0 } else { scale(self.peak).max(1) };
        Rate { each_second, saved: scale(self.saved), peak }
    }
}

/// The access of an operation to data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// It reads.
    Read = 0,
    /// It writes.
    Write = 1,
}

/// The ceilings of a tenant (Ceph: `rbd_qos_*_limit`). All of those that concern an operation hold.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Operations.
    pub iops: Rate,
    /// Bytes.
    pub bps: Rate,
    /// Operations that read.
    pub read_iops: Rate,
    /// Operations that write.
    pub write_iops: Rate,
    /// Bytes read.
    pub read_bps: Rate,
    /// Bytes written.
    pub write_bps: Rate,
}

impl Limits {
    /// Names of the limits, in the order of [`Limits::rates`].
    pub const NAMES: [&str; 6] =
        ["iops", "bps", "read_iops", "write_iops", "read_bps", "write_bps"];

    /// All rates.
    pub fn rates(&self) -> [Rate; 6] {
        [self.iops, self.bps, self.read_iops, self.write_iops, self.read_bps, self.write_bps]
    }

    /// From all rates.
    pub fn from_rates([iops, bps, read_iops, write_iops, read_bps, write_bps]: [Rate; 6]) -> Self {
        Limits { iops, bps, read_iops, write_iops, read_bps, write_bps }
    }

    /// Whether there is no ceiling at all.
    pub fn is_unlimited(&self) -> bool {
        self.rates().iter().all(Rate::is_unlimited)
    }
}

/// Places in [`Limits::rates`] that concern an access, and whether they count bytes.
const fn concerned(access: Access) -> [(usize, bool); 4] {
    match access {
        Access::Read => [(0, false), (1, true), (2, false), (4, true)],
        Access::Write => [(0, false), (1, true), (3, false), (5, true)],
    }
}

const SECOND: u128 = 1_000_000_000;

/// Nanoseconds in which a rate gives an amount, both in thousandths.
fn span(amount: u64, each_second: u64) -> u64 {
    let nanos = (u128::from(amount) * SECOND).checked_div(u128::from(each_second)).unwrap_or(0);
    u64::try_from(nanos).unwrap_or(u64::MAX)
}

/// A rate and the time until which everything that was served under it is paid for.
#[derive(Clone, Copy, Default, Debug)]
struct Clock {
    each_second: u64,
    /// So far it may be ahead of now.
    slack: u64,
    paid_until: u64,
}

impl Clock {
    /// Takes another rate. What was saved up or is owed stays, but no more than the slack may be
    /// saved.
    fn set(&mut self, each_second: u64, saved: u64, now: u64) {
        let slack = span(saved, each_second);
        let even = now.saturating_add(slack);
        self.paid_until = match self.each_second {
            _ if each_second == 0 => 0,
            // Nothing was saved up under a ceiling that did not hold.
            0 => even,
            before => {
                let was_even = now.saturating_add(self.slack);
                // A debt stays the same amount, not the same time.
                let convert = |nanos: u64| {
                    let converted =
                        u128::from(nanos) * u128::from(before) / u128::from(each_second);
                    u64::try_from(converted).unwrap_or(u64::MAX)
                };
                match self.paid_until.checked_sub(was_even) {
                    Some(debt) => even.saturating_add(convert(debt)),
                    // A pause longer than the slack had saved up no more than it.
                    None => even.saturating_sub(
                        convert((was_even - self.paid_until).min(self.slack)).min(slack),
                    ),
                }
            }
        };
        (self.each_second, self.slack) = (each_second, slack);
    }

    /// From when on the next operation may go.
    fn due(&self) -> u64 {
        self.paid_until.saturating_sub(self.slack)
    }

    fn charge(&mut self, amount: u64, now: u64) {
        if self.each_second > 0 {
            self.paid_until = self
                .paid_until
                .max(now)
                .saturating_add(span(amount.saturating_mul(1000), self.each_second));
        }
    }
}

/// Names a tenant of [`Ceilings`]. Used again after the tenant was removed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TenantId(usize);

/// An operation as ceilings see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Demand {
    /// Its access to data.
    pub access: Access,
    /// How many bytes it moves.
    pub bytes: u64,
    /// Whether it must stay in order with writes. Writes must.
    pub ordered: bool,
}

impl Demand {
    /// In order if it writes.
    pub fn new(access: Access, bytes: u64) -> Self {
        Demand { access, bytes, ordered: access == Access::Write }
    }

    /// The queue that it waits in.
    fn lane(&self) -> usize {
        usize::from(self.ordered || self.access == Access::Write)
    }
}

#[derive(Debug)]
struct Waiting<T> {
    /// Orders the two queues.
    order: u64,
    demand: Demand,
    item: T,
}

#[derive(Debug)]
struct Tenant<T> {
    limits: Limits,
    /// For each rate the ceiling and that of its bursts.
    clocks: [[Clock; 2]; 6],
    /// What need not stay in order with writes, and what must.
    lanes: [VecDeque<Waiting<T>>; 2],
    /// The waiting reads and writes.
    backlog: [Backlog; 2],
    /// Its valid entry among the turns.
    turn: u64,
    /// When something last came.
    used: u64,
}

impl<T> Tenant<T> {
    fn set(&mut self, limits: Limits, now: u64) {
        for (clocks, rate) in self.clocks.iter_mut().zip(limits.rates()) {
            clocks[0].set(rate.each_second, rate.saved, now);
            // A burst's own rate has the slack of any rate.
            clocks[1].set(
                rate.peak,
                (u128::from(rate.peak) * u128::from(SLACK_MILLIS) / 1000) as u64,
                now,
            );
        }
        self.limits = limits;
    }

    fn due(&self, access: Access) -> u64 {
        let clocks = concerned(access).into_iter().flat_map(|(i, _)| &self.clocks[i]);
        clocks.map(Clock::due).max().unwrap_or(0)
    }

    fn charge(&mut self, demand: Demand, now: u64) {
        for (i, in_bytes) in concerned(demand.access) {
            for clock in &mut self.clocks[i] {
                clock.charge(if in_bytes { demand.bytes } else { 1 }, now);
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.lanes.iter().all(VecDeque::is_empty)
    }

    /// The first operations of the queues: when each may go, its number, its queue.
    fn heads(&self) -> impl Iterator<Item = (u64, u64, usize)> {
        self.lanes
            .iter()
            .enumerate()
            .filter_map(|(lane, q)| q.front().map(|w| (self.due(w.demand.access), w.order, lane)))
    }
}

/// The waiting operations of a tenant.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Backlog {
    /// Operations.
    pub ops: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Backlog {
    fn add(&mut self, bytes: u64) {
        self.ops += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }

    fn take(&mut self, bytes: u64) {
        self.ops -= 1;
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

/// Ceilings of tenants: an operation that its tenant's limits do not allow yet waits here, in front
/// of a scheduler. Others are not touched by it.
///
/// Each limit is a clock: the time until which everything served is paid for. An operation may go
/// when none of the clocks that concern it is ahead of now by more than its slack; then each moves
/// by `cost / rate`. An operation that is larger than what a second allows goes like any other, and
/// the next one waits for longer. What is in order with writes and other reads wait in two queues
/// of a tenant, each in order.
///
/// A tenant without limits costs nothing but its place. Time is in nanoseconds and does not run
/// backwards.
#[derive(Debug)]
pub struct Ceilings<T> {
    tenants: Vec<Option<Tenant<T>>>,
    free: Vec<usize>,
    /// Tenants with waiting operations by the time at which one may go. Entries with another number
    /// than the tenant's are void.
    turns: BinaryHeap<Reverse<(u64, u64, usize)>>,
    /// Numbers operations and entries.
    count: u64,
    waiting: usize,
}

impl<T> Default for Ceilings<T> {
    fn default() -> Self {
        Ceilings {
            tenants: Vec::new(),
            free: Vec::new(),
            turns: BinaryHeap::new(),
            count: 0,
            waiting: 0,
        }
    }
}

impl<T> Ceilings<T> {
    /// A new tenant.
    pub fn add(&mut self, limits: Limits, now: u64) -> TenantId {
        let mut tenant = Tenant {
            limits: Limits::default(),
            clocks: Default::default(),
            lanes: Default::default(),
            backlog: Default::default(),
            turn: 0,
            used: now,
        };
        tenant.set(limits, now);
        let at = self.free.pop().unwrap_or_else(|| {
            self.tenants.push(None);
            self.tenants.len() - 1
        });
        self.tenants[at] = Some(tenant);
        TenantId(at)
    }

    fn tenant(&self, id: TenantId) -> Option<&Tenant<T>> {
        self.tenants.get(id.0)?.as_ref()
    }

    /// Changes a tenant's limits. What waits is given the new ones.
    pub fn set(&mut self, id: TenantId, limits: Limits, now: u64) {
        if let Some(Some(t)) = self.tenants.get_mut(id.0)
            && t.limits != limits
        {
            t.set(limits, now);
            self.take_turn(id.0);
        }
    }

    /// The limits of a tenant.
    pub fn limits(&self, id: TenantId) -> Option<Limits> {
        self.tenant(id).map(|t| t.limits)
    }

    /// Enters a tenant by its earliest operation. Its former entry becomes void.
    fn take_turn(&mut self, at: usize) {
        let Some(Some(t)) = self.tenants.get_mut(at) else { return };
        self.count += 1;
        t.turn = self.count;
        let next = t.heads().map(|(due, ..)| due).min();
        if let Some(due) = next {
            self.turns.push(Reverse((due, t.turn, at)));
        }
        // Changes of limits leave void entries that lie far ahead.
        if self.turns.len() > 64 + 2 * self.tenants.len() {
            let tenants = &self.tenants;
            self.turns.retain(|Reverse((_, turn, at))| {
                tenants[*at].as_ref().is_some_and(|t| t.turn == *turn)
            });
        }
    }

    /// Brings an operation of a tenant. It comes back at once if it may go; else it waits.
    pub fn offer(&mut self, id: TenantId, demand: Demand, item: T, now: u64) -> Option<T> {
        let Some(Some(t)) = self.tenants.get_mut(id.0) else { return Some(item) };
        t.used = now;
        if t.is_idle() && t.due(demand.access) <= now {
            t.charge(demand, now);
            return Some(item);
        }
        self.count += 1;
        let lane = demand.lane();
        t.lanes[lane].push_back(Waiting { order: self.count, demand, item });
        t.backlog[demand.access as usize].add(demand.bytes);
        self.waiting += 1;
        // Behind another it changes nothing.
        if t.lanes[lane].len() == 1 {
            self.take_turn(id.0);
        }
        None
    }

    /// The next operation that has waited for long enough. Operations that are not wanted any more
    /// are dropped, and cost their tenant nothing.
    pub fn release(&mut self, now: u64, wanted: impl Fn(&T) -> bool) -> Option<T> {
        loop {
            self.drop_void();
            let Reverse((due, _, at)) = *self.turns.peek()?;
            if due > now {
                return None;
            }
            self.turns.pop();
            let t = self.tenants.get_mut(at)?.as_mut()?;
            let (_, _, lane) =
                t.heads().filter(|(due, ..)| *due <= now).min_by_key(|(_, order, _)| *order)?;
            let op = t.lanes[lane].pop_front()?;
            t.backlog[op.demand.access as usize].take(op.demand.bytes);
            self.waiting -= 1;
            let wanted = wanted(&op.item);
            if wanted {
                // Being asked late costs the tenant nothing: the slack is longer than that.
                t.charge(op.demand, now);
            }
            self.take_turn(at);
            if wanted {
                return Some(op.item);
            }
        }
    }

    /// Takes out operations that are not wanted any more. They cost their tenant nothing.
    pub fn take_out(&mut self, gone: &mut dyn FnMut(&T) -> bool) -> Vec<T> {
        let mut out = Vec::new();
        if self.waiting == 0 {
            return out;
        }
        for at in 0..self.tenants.len() {
            let Some(t) = self.tenants[at].as_mut().filter(|t| !t.is_idle()) else { continue };
            let before = out.len();
            let backlog = &mut t.backlog;
            for lane in &mut t.lanes {
                for _ in 0..lane.len() {
                    let Some(op) = lane.pop_front() else { break };
                    if gone(&op.item) {
                        backlog[op.demand.access as usize].take(op.demand.bytes);
                        out.push(op.item);
                    } else {
                        lane.push_back(op);
                    }
                }
            }
            if out.len() > before {
                self.waiting -= out.len() - before;
                self.take_turn(at);
            }
        }
        out
    }

    fn drop_void(&mut self) {
        while let Some(Reverse((_, turn, at))) = self.turns.peek() {
            if self.tenants.get(*at).and_then(Option::as_ref).is_some_and(|t| t.turn == *turn) {
                return;
            }
            self.turns.pop();
        }
    }

    /// When the next operation may go; nothing if none waits.
    pub fn next_due(&mut self) -> Option<u64> {
        self.drop_void();
        self.turns.peek().map(|Reverse((due, ..))| *due)
    }

    /// How many operations wait.
    pub fn len(&self) -> usize {
        self.waiting
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// How many tenants there are.
    pub fn tenants(&self) -> usize {
        self.tenants.len() - self.free.len()
    }

    /// What of a tenant waits to read, or to write.
    pub fn backlog(&self, id: TenantId, access: Access) -> Backlog {
        self.tenant(id).map_or(Backlog::default(), |t| t.backlog[access as usize])
    }

    /// Forgets a tenant if nothing of it waits; false if something does.
    pub fn remove(&mut self, id: TenantId) -> bool {
        if self.tenant(id).is_some_and(|t| !t.is_idle()) {
            return false;
        }
        if let Some(slot) = self.tenants.get_mut(id.0)
            && slot.take().is_some()
        {
            self.free.push(id.0);
        }
        true
    }

    /// Forgets a tenant to whom nothing came for `after` nanoseconds and of whom nothing waits;
    /// whether it did.
    pub fn forget_idle(&mut self, id: TenantId, after: u64, now: u64) -> bool {
        self.tenant(id).is_some_and(|t| t.is_idle() && now.saturating_sub(t.used) >= after)
            && self.remove(id)
    }
}
