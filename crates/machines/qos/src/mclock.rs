use crate::tenants::{Taken, TenantSpec, Tenants};
use crate::{Dequeued, Op, OpClass, Phase, Scheduler, cut_off};
use std::collections::{BTreeMap, VecDeque};

pub(crate) mod state;

/// What one class is promised, in bytes of cost each second.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClassSpec {
    /// Floor: at least this much if it is asked for. 0 for none.
    pub reservation: u64,
    /// Share of what the floors leave. At least 1 is used, so that no class starves.
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
    /// Operations without a charge of their own that cost less are charged this.
    pub cost_per_io: u32,
}

/// mClock over the classes, mClock over the tenants of each, turns for the sessions of a tenant.
///
/// A class has three clocks. The *reservation* clock advances by `cost / floor` whenever the class
/// is served to keep its floor; the *limit* clock by `cost / ceiling` whenever it is served; the
/// *share* clock, in virtual time, by `cost / weight` whenever it is served. A tenant has the same
/// clocks, with its own promises ([`TenantSpec`]). Then
///
/// 1. of the classes and tenants with a reservation clock that is not ahead of now, the one
///    furthest behind is served: these clocks are all in real time, so promises that cannot all be
///    kept fall behind alike;
/// 2. else, of the classes with a limit clock that is not ahead of now, the one with the least
///    share clock. For a tenant that has had less than others it may be ahead by some operations,
///    which these pay for;
/// 3. else all are at a ceiling, and the first clock to be reached says when to ask again.
///
/// Before all that comes a class that is not at its ceiling and was not served for a second, or
/// only for floors of tenants.
///
/// Within a class that was chosen, the tenant with the least share clock below its ceiling is
/// served, and of its sessions the next in turn: many sessions of a tenant get no more than one.
///
/// Being served by share does not advance the reservation clock, but being served by reservation
/// advances the share clock, to some operations ahead of others: a tenant with a floor gets that or
/// its share, whatever is more. A class that comes back after a pause starts from now, or where the
/// others are: a pause earns it nothing. A tenant comes back as far behind the others as it was, up
/// to some operations, is owed a twentieth of a second of its floor, and is served at once.
///
/// Operations of class [`OpClass::Immediate`], and those at or above the cut-off priority, go
/// before all that, by priority.
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

    pub(crate) fn take_out(&mut self, gone: &mut dyn FnMut(&T) -> bool) -> Vec<T> {
        let mut out = Vec::new();
        for queue in self.by_priority.values_mut() {
            crate::take_out_of(queue, gone, &mut out);
        }
        self.len -= out.len();
        out
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

#[derive(Clone, Debug)]
struct Class<T> {
    name: OpClass,
    spec: ClassSpec,
    queue: Tenants<T>,
    /// From when on the next operation is owed.
    reservation: u64,
    /// From when on the next operation is allowed.
    limit: u64,
    share: u64,
    /// When it was served last other than for a floor of a tenant, or began to wait.
    served: u64,
}

/// Nanoseconds in which a rate allows a cost, rounded up; none for no rate. The product fits: 2^32
/// times 10^9 is below 2^62.
fn span(cost: u32, rate: u64) -> u64 {
    if rate == 0 { 0 } else { (u64::from(cost) * 1_000_000_000).div_ceil(rate) }
}

/// A class that waits and is not at its ceiling is served at least so often, in nanoseconds, and by
/// shares within it: reservations of classes, or floors of tenants, that add up to more than there
/// is would leave those without one nothing.
const STARVED: u64 = 1_000_000_000;

/// What is served by reservation counts for the share, but only so many operations of it.
const LEAD: u64 = 64;

/// The ceiling of clients is one for all of them together. What they do not use they save, up to so
/// many small operations: some come at the same time, and where there is room none of them is to
/// wait. A tenant that asks for less than its share does not wait for the moment at which the
/// ceiling lets the next operation go, which others would have had: it goes at once, up to so many
/// small operations ahead, and they wait for longer.
const SLACK: u64 = 16;

/// Units of the share clock for a byte at weight 1; fine enough for weights in the hundreds.
const SHARE_SCALE: u64 = 1 << 10;

/// The choice of the next operation.
enum Turn {
    /// A tenant with a floor that is behind.
    Tenant(usize),
    /// A class with a floor that is behind.
    Class(usize),
    /// A class by its share, which counts so.
    Share(usize, Phase),
}

impl<T> Class<T> {
    fn new(name: OpClass, spec: ClassSpec) -> Self {
        Class {
            name,
            spec,
            queue: Tenants::default(),
            reservation: 0,
            limit: 0,
            share: 0,
            served: 0,
        }
    }

    /// By how much its ceiling's clock may be behind now, when nothing has waited, or ahead of it,
    /// for a tenant that is behind others.
    fn slack(&self, cost_per_io: u32) -> u64 {
        if self.name == OpClass::Client { SLACK * span(cost_per_io, self.spec.limit) } else { 0 }
    }

    /// Whether its ceiling lets the next tenant go because that has had less than others.
    fn lends(&mut self, cost_per_io: u32, now: u64) -> bool {
        let ahead = self.limit.saturating_sub(now);
        (ahead == 0 || ahead < self.slack(cost_per_io)) && self.queue.is_behind(now)
    }

    /// Moves the clocks for an operation that is served, by share or, where others are on theirs,
    /// not by share.
    fn pay(&mut self, charge: u32, reserved: bool, phase: Phase, ahead_of: Option<u64>) {
        if reserved {
            self.reservation = self.reservation.saturating_add(span(charge, self.spec.reservation));
        }
        // What is served beyond a ceiling is not owed later, when there are clients to protect.
        if phase != Phase::Beyond {
            self.limit = self.limit.saturating_add(span(charge, self.spec.limit));
        }
        // At least one, so that no weight lets a class stand still and win for ever.
        let step = (u64::from(charge) * SHARE_SCALE / u64::from(self.spec.weight.max(1))).max(1);
        let paid = self.share.saturating_add(step);
        self.share = match ahead_of {
            Some(others) => {
                paid.min(others.saturating_add(step.saturating_mul(LEAD))).max(self.share)
            }
            None => paid,
        };
    }
}

impl Phase {
    /// Chosen to keep a floor, and not by share.
    fn is_reserved(self) -> bool {
        matches!(self, Phase::Floor | Phase::Reservation)
    }
}

impl<T> Class<T> {
    /// Moves the clocks for an operation that really cost something else.
    fn settle(&mut self, charged: u32, really: u32, phase: Phase) {
        let reserved = phase.is_reserved();
        if really >= charged {
            return self.pay(really - charged, reserved, phase, None);
        }
        let back = charged - really;
        if reserved {
            self.reservation = self.reservation.saturating_sub(span(back, self.spec.reservation));
        }
        if phase != Phase::Beyond {
            self.limit = self.limit.saturating_sub(span(back, self.spec.limit));
        }
        self.share = self
            .share
            .saturating_sub(u64::from(back) * SHARE_SCALE / u64::from(self.spec.weight.max(1)));
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

    fn class(&self, name: OpClass) -> Option<&Class<T>> {
        self.classes.iter().find(|c| c.name == name)
    }

    /// Makes or changes the promise to a tenant of a class. Tenants have [`TenantSpec::default`]
    /// until then, and one that has something else is remembered until it has that again.
    pub fn set_tenant(&mut self, class: OpClass, tenant: u64, spec: TenantSpec, now: u64) {
        if let Some(class) = self.classes.iter_mut().find(|c| c.name == class) {
            class.queue.set(tenant, spec, now);
        }
    }

    /// A class pays, by its share, for an operation that was served before all others. It falls
    /// behind by some operations at most.
    pub fn charge(&mut self, class: OpClass, charge: u32) {
        let others = self.virtual_now;
        if let Some(class) = self.classes.iter_mut().find(|c| c.name == class) {
            class.pay(charge, false, Phase::Beyond, Some(others));
        }
    }

    /// An operation that was served, and charged, turned out to cost something else. Class and
    /// tenant pay the difference, or get it back: never more than was charged. Nothing else moves.
    pub fn settle(&mut self, class: OpClass, tenant: u64, charged: u32, really: u32, phase: Phase) {
        if phase == Phase::Strict || charged == really {
            return;
        }
        if let Some(class) = self.classes.iter_mut().find(|c| c.name == class) {
            class.settle(charged, really, phase);
            class.queue.settle(tenant, charged, really);
        }
    }

    /// For how long the tenant with the oldest claim to its floor, of those that wait, has not got
    /// it, in nanoseconds.
    pub fn floor_debt(&mut self, now: u64) -> u64 {
        self.classes
            .iter_mut()
            .filter_map(|c| c.queue.floor_due())
            .min()
            .map_or(0, |due| now.saturating_sub(due))
    }

    /// Takes out all operations of a class, each session's in order: their tenants are to be
    /// others.
    pub fn drain(&mut self, class: OpClass) -> Vec<Op<T>> {
        let Some(c) = self.classes.iter_mut().find(|c| c.name == class) else { return Vec::new() };
        c.queue.drain().into_iter().map(|t| t.op(class)).collect()
    }

    /// How many operations of a class wait.
    pub fn class_len(&self, class: OpClass) -> usize {
        self.class(class).map_or(self.strict.len(), |c| c.queue.len())
    }

    /// How many tenants of a class are remembered.
    pub fn tenants(&self, class: OpClass) -> usize {
        self.class(class).map_or(0, |c| c.queue.known())
    }

    /// How many operations of a tenant wait.
    pub fn tenant_len(&self, class: OpClass, tenant: u64) -> usize {
        self.class(class).map_or(0, |c| c.queue.waiting(tenant))
    }
}

impl<T> Taken<T> {
    fn op(self, class: OpClass) -> Op<T> {
        Op {
            item: self.item,
            class,
            tenant: self.tenant,
            session: self.session,
            cost: self.cost,
            charge: self.charge,
            priority: self.priority,
        }
    }
}

impl<T> Scheduler<T> for Mclock<T> {
    fn enqueue(&mut self, op: Op<T>, now: u64) {
        let at = self
            .classes
            .iter()
            .position(|c| c.name == op.class)
            .filter(|_| op.priority < cut_off::HIGH);
        let Some(at) = at else {
            self.strict.push(op);
            return;
        };
        let others = self.classes.iter().filter(|c| c.queue.len() > 0).map(|c| c.share).min();
        let class = &mut self.classes[at];
        if class.queue.len() == 0 {
            class.reservation = class.reservation.max(now);
            class.limit = class.limit.max(now.saturating_sub(class.slack(self.cost_per_io)));
            class.share = class.share.max(others.unwrap_or(self.virtual_now));
            class.served = now;
        }
        let charged = if op.charge == 0 { op.cost.max(self.cost_per_io).max(1) } else { op.charge };
        class.queue.push(op, charged, now);
    }

    fn dequeue(&mut self, now: u64) -> Dequeued<T> {
        self.next(true, now)
    }

    fn take_out(&mut self, gone: &mut dyn FnMut(&T) -> bool, now: u64) -> Vec<T> {
        let mut out = self.strict.take_out(gone);
        for class in &mut self.classes {
            class.queue.take_out(gone, &mut out, now);
        }
        out
    }

    fn len(&self) -> usize {
        self.strict.len() + self.classes.iter().map(|c| c.queue.len()).sum::<usize>()
    }
}

impl<T> Mclock<T> {
    /// As [`Scheduler::dequeue`], but ceilings of background classes do not hold: for an OSD
    /// without active clients. Those of clients and of tenants do. What is served so
    /// ([`Phase::Beyond`]) does not count for the ceiling later.
    pub fn dequeue_beyond(&mut self, now: u64) -> Dequeued<T> {
        self.next(false, now)
    }

    fn next(&mut self, ceilings: bool, now: u64) -> Dequeued<T> {
        if let Some(op) = self.strict.pop() {
            return Dequeued::Item(op, Phase::Strict);
        }
        let mut floor: Option<(u64, Turn)> = None;
        let mut share: Option<(u64, Turn)> = None;
        let mut next: Option<u64> = None;
        let mut starved: Option<(u64, Turn)> = None;
        let cost_per_io = self.cost_per_io;
        for (i, class) in self.classes.iter_mut().enumerate() {
            if class.queue.len() == 0 {
                continue;
            }
            let mut wait_until = |t: u64| next = Some(next.map_or(t, |n| n.min(t)));
            if let Some(due) = class.queue.floor_due() {
                if due > now {
                    wait_until(due);
                } else if floor.as_ref().is_none_or(|best| due < best.0) {
                    floor = Some((due, Turn::Tenant(i)));
                }
            }
            if !class.queue.is_ready(now) {
                class.queue.next_ready().into_iter().for_each(wait_until);
                continue;
            }
            if class.spec.reservation > 0 {
                if class.reservation > now {
                    wait_until(class.reservation);
                } else if floor.as_ref().is_none_or(|best| class.reservation < best.0) {
                    floor = Some((class.reservation, Turn::Class(i)));
                }
            }
            let phase = if class.limit <= now || class.lends(cost_per_io, now) {
                Phase::Weight
            } else if ceilings || class.name == OpClass::Client {
                wait_until(class.limit);
                continue;
            } else {
                Phase::Beyond
            };
            if now.saturating_sub(class.served) >= STARVED
                && starved.as_ref().is_none_or(|longest| class.served < longest.0)
            {
                starved = Some((class.served, Turn::Share(i, phase)));
            }
            if share.as_ref().is_none_or(|best| class.share < best.0) {
                share = Some((class.share, Turn::Share(i, phase)));
            }
        }
        let turn = match (starved.or(floor).or(share), next) {
            (Some((_, turn)), _) => turn,
            (None, Some(at)) => return Dequeued::WaitUntil(at),
            (None, None) => return Dequeued::Empty,
        };
        let (i, phase, taken) = match turn {
            Turn::Tenant(i) => (i, Phase::Floor, self.classes[i].queue.pop_floor(now)),
            Turn::Class(i) => (i, Phase::Reservation, self.classes[i].queue.pop_share(now)),
            Turn::Share(i, phase) => (i, phase, self.classes[i].queue.pop_share(now)),
        };
        let Some(taken) = taken else { return Dequeued::Empty };
        Dequeued::Item(self.serve(i, taken, phase, now), phase)
    }

    /// The next operation of clients, if its tenant has had less than others even with it, and a
    /// ceiling of clients lends it: for tenants that need not wait for what others have in
    /// execution.
    pub fn dequeue_behind(&mut self, now: u64) -> Option<(Op<T>, Phase)> {
        let at = self.classes.iter().position(|c| c.name == OpClass::Client)?;
        let cost_per_io = self.cost_per_io;
        let class = &mut self.classes[at];
        let taken = class.lends(cost_per_io, now).then(|| class.queue.pop_share(now))??;
        Some((self.serve(at, taken, Phase::Weight, now), Phase::Weight))
    }

    /// Moves the clocks of a class for what was taken.
    fn serve(&mut self, i: usize, taken: Taken<T>, phase: Phase, now: u64) -> Op<T> {
        let others = self
            .classes
            .iter()
            .enumerate()
            .filter(|(at, c)| *at != i && c.queue.len() > 0)
            .map(|(_, c)| c.share)
            .min();
        let class = &mut self.classes[i];
        if phase != Phase::Floor {
            class.served = now;
        }
        // The class's share clock before this operation is the virtual time of this moment.
        self.virtual_now = self.virtual_now.max(class.share);
        // What a tenant's floor takes counts for its class's, which is owed that much less.
        class.pay(
            taken.charge,
            phase.is_reserved() && class.reservation <= now,
            phase,
            others.filter(|_| phase.is_reserved()),
        );
        taken.op(class.name)
    }
}
