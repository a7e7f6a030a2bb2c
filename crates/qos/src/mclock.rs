use crate::fair::FairQueue;
use crate::{Dequeued, Op, OpClass, Phase, Scheduler, cut_off};
use std::collections::{BTreeMap, VecDeque};

/// What one class is promised, in bytes of cost each second.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClassSpec {
    /// Floor: at least this much if it is asked for. 0 for none.
    pub reservation: u64,
    /// Share of what the floors leave. At least 1 is used, so that nobody starves.
    pub weight: u32,
    /// Ceiling: no more than this except to keep the floor. 0 for none.
    pub limit: u64,
}

/// Parameters of [`Mclock`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MclockSpec {
    /// Clients.
    pub client: ClassSpec,
    /// Recovery.
    pub background_recovery: ClassSpec,
    /// The rest.
    pub background_best_effort: ClassSpec,
    /// Operations that cost less are charged this.
    pub cost_per_io: u32,
}

/// mClock over the classes, fair queueing over the tenants of each.
///
/// A class has three clocks. The *reservation* clock advances by `cost / floor` whenever the class is
/// served to keep its floor; the *limit* clock by `cost / ceiling` whenever it is served; the *share*
/// clock, in virtual time, by `cost / weight` whenever it is served. Then
///
/// 1. of the classes whose reservation clock is not ahead of now, the one furthest behind is served;
/// 2. else, of the classes whose limit clock is not ahead of now, the one with the least share clock;
/// 3. else everybody is at a ceiling, and the first clock to be reached says when to ask again.
///
/// Being served by share does not advance the reservation clock: the floor holds on top of it. A class
/// that comes back after a pause starts from now; a pause earns nothing.
///
/// Operations of class [`OpClass::Immediate`], and those at or above the cut-off priority, go before all
/// that, by priority.
#[derive(Clone, Debug)]
pub struct Mclock<T> {
    strict: Strict<T>,
    classes: [Class<T>; 3],
    cost_per_io: u32,
    /// Share clock of the class served last.
    virtual_now: u64,
}

/// Strict priorities, the highest first.
#[derive(Clone, Debug)]
pub(crate) struct Strict<T> {
    by_priority: BTreeMap<u32, VecDeque<Op<T>>>,
    len: usize,
}

impl<T> Default for Strict<T> {
    fn default() -> Self {
        Strict { by_priority: BTreeMap::new(), len: 0 }
    }
}

impl<T> Strict<T> {
    pub(crate) fn push(&mut self, op: Op<T>) {
        // The empty queues of priorities in use are kept; there are few of them.
        self.by_priority.entry(op.priority).or_default().push_back(op);
        self.len += 1;
    }

    pub(crate) fn pop(&mut self) -> Option<Op<T>> {
        if self.len == 0 {
            return None;
        }
        let op = self.by_priority.values_mut().rev().find_map(VecDeque::pop_front)?;
        self.len -= 1;
        if self.len == 0 && self.by_priority.len() > 16 {
            self.by_priority.clear();
        }
        Some(op)
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

#[derive(Clone, Debug)]
struct Class<T> {
    name: OpClass,
    spec: ClassSpec,
    queue: FairQueue<(u32, u32, T)>,
    /// Since when operations wait without a break.
    active_since: u64,
    reservation: u64,
    limit: u64,
    share: u64,
}

/// Nanoseconds in which a rate allows a cost, rounded up. The product fits: 2^32 * 10^9 < 2^62.
fn span(cost: u32, rate: u64) -> u64 {
    (u64::from(cost) * 1_000_000_000).div_ceil(rate)
}

/// Units of the share clock for a byte at weight 1; fine enough for weights in the hundreds.
const SHARE_SCALE: u64 = 1 << 10;

/// Where a class's clocks would stand after its next operation was served.
struct Tags {
    reservation: Option<u64>,
    limit: u64,
    share: u64,
}

impl<T> Class<T> {
    fn new(name: OpClass, spec: ClassSpec) -> Self {
        Class { name, spec, queue: FairQueue::default(), active_since: 0, reservation: 0, limit: 0, share: 0 }
    }

    fn tags(&self) -> Option<Tags> {
        let cost = self.queue.peek()?;
        let after = |clock: u64, rate: u64| match rate {
            0 => self.active_since,
            rate => self.active_since.max(clock.saturating_add(span(cost, rate))),
        };
        // At least one, so that no weight lets a class stand still and win for ever.
        let step = (u64::from(cost) * SHARE_SCALE / u64::from(self.spec.weight.max(1))).max(1);
        Some(Tags {
            reservation: (self.spec.reservation > 0).then(|| after(self.reservation, self.spec.reservation)),
            limit: after(self.limit, self.spec.limit),
            share: self.share.saturating_add(step),
        })
    }
}

impl<T> Mclock<T> {
    /// A scheduler with these promises.
    pub fn new(spec: MclockSpec) -> Self {
        Mclock {
            strict: Strict::default(),
            classes: [
                Class::new(OpClass::Client, spec.client),
                Class::new(OpClass::BackgroundRecovery, spec.background_recovery),
                Class::new(OpClass::BackgroundBestEffort, spec.background_best_effort),
            ],
            cost_per_io: spec.cost_per_io,
            virtual_now: 0,
        }
    }

    /// Changes the promises; what waits stays where it is. Clocks that a former, lower rate had put
    /// ahead of now start again from now.
    pub fn set_spec(&mut self, spec: MclockSpec, now: u64) {
        self.cost_per_io = spec.cost_per_io;
        let specs = [spec.client, spec.background_recovery, spec.background_best_effort];
        for (class, spec) in self.classes.iter_mut().zip(specs) {
            class.spec = spec;
            class.reservation = class.reservation.min(now);
            class.limit = class.limit.min(now);
        }
    }

    /// How many operations of a class wait.
    pub fn class_len(&self, class: OpClass) -> usize {
        match self.classes.iter().find(|c| c.name == class) {
            Some(c) => c.queue.len(),
            None => self.strict.len(),
        }
    }
}

impl<T> Scheduler<T> for Mclock<T> {
    fn enqueue(&mut self, op: Op<T>, now: u64) {
        let class = self.classes.iter_mut().find(|c| c.name == op.class);
        let Some(class) = class.filter(|_| op.priority < cut_off::HIGH) else {
            self.strict.push(op);
            return;
        };
        if class.queue.len() == 0 {
            class.active_since = now;
            class.share = class.share.max(self.virtual_now);
        }
        let charged = op.cost.max(self.cost_per_io).max(1);
        class.queue.push(op.tenant, charged, (op.cost, op.priority, op.item));
    }

    fn dequeue(&mut self, now: u64) -> Dequeued<T> {
        if let Some(op) = self.strict.pop() {
            return Dequeued::Item(op, Phase::Strict);
        }
        let mut floor: Option<(u64, usize)> = None;
        let mut share: Option<(u64, usize)> = None;
        let mut next: Option<u64> = None;
        for (i, class) in self.classes.iter().enumerate() {
            let Some(tags) = class.tags() else { continue };
            if let Some(r) = tags.reservation {
                if r <= now && floor.is_none_or(|best| r < best.0) {
                    floor = Some((r, i));
                }
                next = Some(next.map_or(r, |n| n.min(r)));
            }
            if tags.limit <= now && share.is_none_or(|best| tags.share < best.0) {
                share = Some((tags.share, i));
            }
            next = Some(next.map_or(tags.limit, |n| n.min(tags.limit)));
        }
        let (i, phase) = match (floor, share, next) {
            (Some((_, i)), _, _) => (i, Phase::Reservation),
            (None, Some((_, i)), _) => (i, Phase::Weight),
            (None, None, Some(at)) => return Dequeued::WaitUntil(at),
            (None, None, None) => return Dequeued::Empty,
        };
        let class = &mut self.classes[i];
        let Some(tags) = class.tags() else { return Dequeued::Empty };
        if phase == Phase::Reservation {
            class.reservation = tags.reservation.unwrap_or(class.reservation);
        }
        class.limit = tags.limit;
        // The class's share clock before this operation is the virtual time of this moment.
        self.virtual_now = self.virtual_now.max(class.share);
        class.share = tags.share;
        let Some((tenant, _, (cost, priority, item))) = class.queue.pop() else { return Dequeued::Empty };
        Dequeued::Item(Op { item, class: class.name, tenant, cost, priority }, phase)
    }

    fn len(&self) -> usize {
        self.strict.len() + self.classes.iter().map(|c| c.queue.len()).sum::<usize>()
    }
}
