//! The tenants of a class, and the sessions of each.
//!
//! ```text
//! class ─► floor behind? ─────────────► tenant ─► next session in turn ─────► its first operation
//!      └─► least share below ceiling ─┘
//! ```
//!
//! Tenants, sessions and operations lie in arrays with places that are used again, and are linked
//! by index: on the steady path nothing is allocated. A tenant is in the heap of shares once while
//! it may be served by share; an entry with a key that has become too low is put right when it
//! comes to the top. The heaps of floors and ceilings hold only tenants with promises.

use crate::Op;
use crate::fetch::fetch;
use crate::heap::Heap;
use hashbrown::HashTable;
use rustc_hash::{FxBuildHasher, FxHashMap};
use std::collections::VecDeque;
use std::hash::BuildHasher;

mod state;

/// A rate of operations and of bytes. Both hold, so the lower one decides.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Pace {
    /// Thousandths of operations each second; 0 for no such rate.
    pub iops_milli: u64,
    /// Bytes each second; 0 for no such rate.
    pub bps: u64,
}

impl Pace {
    /// Whether it says nothing.
    pub fn is_none(&self) -> bool {
        self.iops_milli == 0 && self.bps == 0
    }

    /// Nanoseconds that an operation takes at this rate, rounded up. The product fits: 2^32 * 10^9
    /// < 2^62.
    fn span(&self, bytes: u32) -> u64 {
        let by_op =
            if self.iops_milli == 0 { 0 } else { 1_000_000_000_000u64.div_ceil(self.iops_milli) };
        let by_byte =
            if self.bps == 0 { 0 } else { (u64::from(bytes) * 1_000_000_000).div_ceil(self.bps) };
        by_op.max(by_byte)
    }
}

/// The promise to a tenant within its class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TenantSpec {
    /// Floor: at least this much if it is asked for, whatever classes and others want.
    pub floor: Pace,
    /// Share of what floors leave, among the tenants of the class. At least 1 is used.
    pub weight: u32,
    /// Ceiling; above the floor if both are given.
    pub ceiling: Pace,
}

impl TenantSpec {
    /// Weight of a tenant of whom nothing is said: others can have less, or more.
    pub const WEIGHT: u32 = 100;
}

impl Default for TenantSpec {
    fn default() -> Self {
        TenantSpec { floor: Pace::default(), weight: TenantSpec::WEIGHT, ceiling: Pace::default() }
    }
}

const NONE: u32 = u32::MAX;
/// No valid entry in a heap.
const NOT_QUEUED: u64 = u64::MAX;
/// Up to so many sessions of a tenant are found by walking over them.
const WALK: u32 = 8;
/// A tenant of whom nothing waits is forgotten after so many nanoseconds.
const GRACE: u64 = 10_000_000_000;
/// Timers are late by about so much, and a tenant at its ceiling may make up for it. What it could
/// not have because others were served is not made up for: that would go over the ceiling later.
const LATE: u64 = 2_000_000;
/// When a floor changes, what was owed for longer than this is forgotten.
const DEBT: u64 = 1_000_000_000;
/// Of so many bytes is the operation by which rates are compared.
const TYPICAL: u32 = 4096;
/// A tenant that begins to ask is owed its floor of so many nanoseconds at once: its first
/// operations take some time to be done, and are to be its floor of the first tenth of a second
/// nevertheless. A tenant with few operations under way, spread over many OSDs, has none on this
/// one now and then, and would lose its floor of each such moment.
const BURST: u64 = 50_000_000;
/// Units of a share clock for a byte at [`TenantSpec::WEIGHT`].
const SHARE_SCALE: u64 = 1 << 10;

/// Service by floor counts for the share, but only so many operations of it: a tenant that lived on
/// its floor for an hour would otherwise wait, when there is more again, until all others had as
/// much.
const LEAD: u64 = 16;

/// A tenant that asked for less than its share, and comes back, is as many operations behind the
/// others as it then was, and so first; but only so many, and only after a short [`PAUSE`]. A
/// tenant with few operations under way, spread over many OSDs, has none on this one now and then.
/// It would lose its share of each such moment for ever, and wait among others that always have
/// some.
const KEPT: u64 = 32;
/// A tenant that had nothing to do for so many nanoseconds starts at the clock of the others: that
/// was not a moment between two operations, and the others took nothing from it meanwhile. But it
/// is one operation behind them: a tenant that asks this OSD for little has such a pause before
/// each of its operations, and always had less than the others.
const PAUSE: u64 = 100_000_000;

/// So many tenants and what waits of them do not fit into a core's own caches.
const MANY: usize = 4096;

/// An entry of a heap: key, then the order of arrival, so that equal tenants take turns; and a
/// tenant's place. In one number, as heaps of many tenants do little but compare.
fn entry(key: u64, order: u32, at: u32) -> u128 {
    u128::from(key) << 64 | u128::from(order) << 32 | u128::from(at)
}

/// Key and place.
fn parts(entry: u128) -> (u64, u32) {
    ((entry >> 64) as u64, entry as u32)
}

/// One line of the processor's cache: of many tenants, none is there when its turn comes.
#[derive(Clone, Debug)]
#[repr(align(64))]
struct Tenant {
    id: u64,
    /// Cost served, by weight. Waiting tenants stay close to each other.
    share: u64,
    /// When it last had nothing waiting.
    idle_since: u64,
    /// The busy period in which its clock was last set.
    period: u32,
    /// Operations that wait.
    len: u32,
    weight: u32,
    /// The last session of the ring; the one after it is the next in turn.
    ring: u32,
    sessions: u32,
    /// The operation that goes next, when something waits.
    first: u32,
    /// What a session may spend in its turn: the largest charge seen while something waits.
    quantum: u32,
    /// It has a floor or a ceiling, which lie at its place in `promises`.
    promised: bool,
    /// It has a ceiling; else `promises` need not be looked at when it is served by share.
    ceiled: bool,
    /// It has its entry in the heap of shares.
    in_share: bool,
    /// Its sessions are in the table.
    mapped: bool,
    /// It is in the list of those that may be forgotten.
    listed: bool,
}

/// What a tenant is served by and what it is promised are a line each.
const _: () = assert!(size_of::<Tenant>() == 64 && size_of::<Promise>() == 64);

impl Tenant {
    /// What its share clock moves by for a charge. At least one, so that no weight lets a tenant
    /// stand still and win for ever.
    fn step(&self, charge: u32) -> u64 {
        (u64::from(charge) * SHARE_SCALE * u64::from(TenantSpec::WEIGHT) / u64::from(self.weight))
            .max(1)
    }
}

#[derive(Clone, Debug)]
#[repr(align(64))]
struct Promise {
    floor: Pace,
    ceiling: Pace,
    /// From when on the next operation is owed.
    floor_due: u64,
    /// From when on the next operation is allowed.
    ceiling_due: u64,
    /// Keys of the valid entries in the heaps.
    floor_key: u64,
    ceiling_key: u64,
}

impl Promise {
    const NONE: Promise = {
        let none = Pace { iops_milli: 0, bps: 0 };
        Promise {
            floor: none,
            ceiling: none,
            floor_due: 0,
            ceiling_due: 0,
            floor_key: NOT_QUEUED,
            ceiling_key: NOT_QUEUED,
        }
    };
}

#[derive(Clone, Debug)]
#[repr(align(32))]
struct Session {
    id: u64,
    /// Its operations, in order.
    head: u32,
    tail: u32,
    /// The session after it in the ring.
    next: u32,
    /// What it may still spend in this turn; above 0 when its turn comes.
    balance: i64,
}

#[derive(Clone, Debug)]
struct Waiting<T> {
    next: u32,
    cost: u32,
    charge: u32,
    priority: u32,
    item: Option<T>,
}

/// An array with places that are used again.
#[derive(Clone, Debug)]
struct Places<V> {
    all: Vec<V>,
    free: Vec<u32>,
}

impl<V> Places<V> {
    fn new() -> Self {
        Places { all: Vec::new(), free: Vec::new() }
    }

    fn put(&mut self, v: V) -> u32 {
        match self.free.pop() {
            Some(at) => {
                self.all[at as usize] = v;
                at
            }
            None => {
                self.all.push(v);
                (self.all.len() - 1) as u32
            }
        }
    }

    fn release(&mut self, at: u32) {
        self.free.push(at);
    }
}

impl<V> std::ops::Index<u32> for Places<V> {
    type Output = V;
    fn index(&self, at: u32) -> &V {
        &self.all[at as usize]
    }
}

impl<V> std::ops::IndexMut<u32> for Places<V> {
    fn index_mut(&mut self, at: u32) -> &mut V {
        &mut self.all[at as usize]
    }
}

/// Tenants of a class, with their sessions and operations, in the order in which they are served.
#[derive(Clone, Debug)]
pub(crate) struct Tenants<T> {
    /// Places of tenants, by their ids, which stand there: with many tenants it is a quarter of a
    /// map of both, and stays in the caches.
    index: HashTable<u32>,
    tenants: Places<Tenant>,
    /// At the place of its tenant, so that the processor fetches both at once: up to the last
    /// tenant that ever had one.
    promises: Vec<Promise>,
    /// Tenants that have one.
    promised: usize,
    sessions: Places<Session>,
    /// Sessions of tenants that have many, by tenant and id.
    by_id: FxHashMap<(u32, u64), u32>,
    ops: Places<Waiting<T>>,
    shares: Heap,
    floors: Heap,
    ceilings: Heap,
    /// Counts entries; wrapping around only swaps equal ones.
    entries: u32,
    /// The share clock of tenants that have neither more nor less than their share: the furthest at
    /// which one was served by share. It never goes back: a tenant that comes back behind it must
    /// not make the next one come back further behind.
    now: u64,
    /// The furthest to which service by share has moved a share clock. When nothing waits any more,
    /// tenants that had most are there, and those that had less are behind: on an OSD that has time
    /// many requests come alone, and service of their tenants would never count otherwise.
    furthest: u64,
    /// Counts busy periods: one ends when nothing waits.
    period: u32,
    idle: VecDeque<u32>,
    len: usize,
}

/// An operation that was taken out.
pub(crate) struct Taken<T> {
    pub(crate) tenant: u64,
    pub(crate) session: u64,
    pub(crate) cost: u32,
    pub(crate) charge: u32,
    pub(crate) priority: u32,
    pub(crate) item: T,
}

impl<T> Default for Tenants<T> {
    fn default() -> Self {
        Tenants {
            index: HashTable::new(),
            tenants: Places::new(),
            promises: Vec::new(),
            promised: 0,
            sessions: Places::new(),
            by_id: FxHashMap::default(),
            ops: Places::new(),
            shares: Heap::new(),
            floors: Heap::new(),
            ceilings: Heap::new(),
            entries: 0,
            now: 0,
            furthest: 0,
            period: 0,
            idle: VecDeque::new(),
            len: 0,
        }
    }
}

impl<T> Tenants<T> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// How many tenants are known.
    pub(crate) fn known(&self) -> usize {
        self.index.len()
    }

    /// The number of waiting operations of a tenant.
    pub(crate) fn waiting(&self, id: u64) -> usize {
        self.find(id).map_or(0, |at| self.tenants[at].len as usize)
    }

    fn find(&self, id: u64) -> Option<u32> {
        self.index.find(hash(id), |at| self.tenants[*at].id == id).copied()
    }

    fn tenant(&mut self, id: u64) -> u32 {
        if let Some(at) = self.find(id) {
            return at;
        }
        let at = self.tenants.put(Tenant {
            id,
            // It is not known whether it had less than others, so it is taken to have had as much.
            share: self.now,
            idle_since: 0,
            period: self.period,
            len: 0,
            weight: TenantSpec::WEIGHT,
            ring: NONE,
            sessions: 0,
            first: NONE,
            quantum: 0,
            promised: false,
            ceiled: false,
            in_share: false,
            mapped: false,
            listed: false,
        });
        self.index.insert_unique(hash(id), at, |at| hash(self.tenants[*at].id));
        at
    }

    /// Makes or changes a promise. A tenant with anything but the usual one is kept until it has
    /// that again.
    pub(crate) fn set(&mut self, id: u64, spec: TenantSpec, now: u64) {
        if spec == TenantSpec::default() && self.find(id).is_none() {
            return;
        }
        let at = self.tenant(id);
        self.tenants[at].weight = spec.weight.max(1);
        let TenantSpec { floor, ceiling, .. } = spec;
        self.tenants[at].ceiled = !ceiling.is_none();
        let place = at as usize;
        if floor.is_none() && ceiling.is_none() {
            if std::mem::take(&mut self.tenants[at].promised) {
                self.promises[place] = Promise::NONE;
                self.promised -= 1;
            }
        } else if !std::mem::replace(&mut self.tenants[at].promised, true) {
            self.promised += 1;
            if self.promises.len() <= place {
                self.promises.resize(place + 1, Promise::NONE);
            }
            self.promises[place] =
                Promise { floor, ceiling, floor_due: now, ceiling_due: now, ..Promise::NONE };
        } else {
            let p = &mut self.promises[place];
            // A clock that a lower rate had put ahead would delay what the new one owes; one
            // operation at the new rate is as far as it may be ahead.
            if p.floor != floor {
                p.floor_due = p.floor_due.min(now.saturating_add(floor.span(0)));
                // What is owed stays the same amount, not the same time: parts of floors go from
                // one OSD to another with what waits, and a moment owed at a low rate would be paid
                // at a high one. What could not be kept for long is not owed for ever.
                let (before, span) =
                    (u128::from(p.floor.span(TYPICAL)), u128::from(floor.span(TYPICAL)));
                let owed = (u128::from(now.saturating_sub(p.floor_due)) * span)
                    .checked_div(before)
                    .unwrap_or(0);
                if p.floor_due < now {
                    p.floor_due =
                        now.saturating_sub(u64::try_from(owed).unwrap_or(u64::MAX).min(DEBT));
                }
            }
            if p.ceiling != ceiling {
                p.ceiling_due = p.ceiling_due.min(now.saturating_add(ceiling.span(0)));
            }
            (p.floor, p.ceiling) = (floor, ceiling);
        }
        if self.tenants[at].len > 0 {
            self.queue_floor(at);
            self.queue_share(at);
        } else {
            self.list_idle(at, now);
        }
    }

    fn list_idle(&mut self, at: u32, now: u64) {
        let t = &mut self.tenants[at];
        t.idle_since = now;
        if !std::mem::replace(&mut t.listed, true) {
            self.idle.push_back(at);
        }
    }

    /// Looks at the one or two tenants that have been idle for longest.
    fn forget_some(&mut self, now: u64) {
        for _ in 0..2 {
            let Some(at) = self.idle.front().copied() else { return };
            let t = &mut self.tenants[at];
            if t.len > 0 || t.promised || t.weight != TenantSpec::WEIGHT {
                t.listed = false;
                self.idle.pop_front();
                continue;
            }
            if now.saturating_sub(t.idle_since) < GRACE {
                // It may have been in use since it was listed; then it goes behind the others.
                if let Some(at) = self.idle.pop_front() {
                    self.idle.push_back(at);
                }
                return;
            }
            // A tenant that is ahead of the others must not lose that by being forgotten.
            if t.in_share || (self.len > 0 && t.share > self.now) {
                self.idle.rotate_left(1);
                return;
            }
            let id = t.id;
            self.idle.pop_front();
            if let Ok(entry) = self.index.find_entry(hash(id), |found| *found == at) {
                entry.remove();
            }
            self.tenants.release(at);
        }
    }

    fn next_entry(&mut self) -> u32 {
        self.entries = self.entries.wrapping_add(1);
        self.entries
    }

    fn queue_share(&mut self, at: u32) {
        if !std::mem::replace(&mut self.tenants[at].in_share, true) {
            let order = self.next_entry();
            self.shares.push(entry(self.tenants[at].share, order, at));
        }
    }

    /// Enters a tenant with a floor by when it is owed and allowed something.
    fn queue_floor(&mut self, at: u32) {
        if promise_of(&self.tenants, &self.promises, at).is_none_or(|p| p.floor.is_none()) {
            return;
        }
        let order = self.next_entry();
        let p = &mut self.promises[at as usize];
        let key = p.floor_due.max(p.ceiling_due);
        if p.floor_key != key {
            p.floor_key = key;
            self.floors.push(entry(key, order, at));
        }
        if self.floors.len() > 64 + 4 * self.promised {
            let promises = &self.promises;
            self.floors.retain(|e| {
                let (key, at) = parts(e);
                promises[at as usize].floor_key == key
            });
        }
    }

    fn queue_ceiling(&mut self, at: u32) {
        let order = self.next_entry();
        let p = &mut self.promises[at as usize];
        if p.ceiling_key != p.ceiling_due {
            p.ceiling_key = p.ceiling_due;
            self.ceilings.push(entry(p.ceiling_key, order, at));
        }
        if self.ceilings.len() > 64 + 4 * self.promised {
            let promises = &self.promises;
            self.ceilings.retain(|e| {
                let (key, at) = parts(e);
                promises[at as usize].ceiling_key == key
            });
        }
    }

    pub(crate) fn push(&mut self, op: Op<T>, charge: u32, now: u64) {
        self.forget_some(now);
        let at = self.tenant(op.tenant);
        let t = &mut self.tenants[at];
        if t.len == 0 {
            // A tenant that was ahead when nothing waited any more has no other tenant left to be
            // ahead of.
            if t.period != self.period {
                (t.share, t.period) = (t.share.min(self.now), self.period);
            }
            let kept = if now.saturating_sub(t.idle_since) < PAUSE { KEPT } else { 1 };
            t.share = t.share.max(self.now.saturating_sub(t.step(charge).saturating_mul(kept)));
            t.quantum = 0;
            if t.promised {
                let p = &mut self.promises[at as usize];
                p.floor_due = p.floor_due.max(now.saturating_sub(BURST));
                p.ceiling_due = p.ceiling_due.max(now);
            }
        }
        let waiting = Waiting {
            next: NONE,
            cost: op.cost,
            charge,
            priority: op.priority,
            item: Some(op.item),
        };
        let place = self.ops.put(waiting);
        let session = self.session(at, op.session);
        let s = &mut self.sessions[session];
        let last = std::mem::replace(&mut s.tail, place);
        if last == NONE {
            s.head = place;
        } else {
            self.ops[last].next = place;
        }
        let t = &mut self.tenants[at];
        if t.len == 0 {
            t.first = place;
        }
        t.quantum = t.quantum.max(charge);
        t.len += 1;
        self.len += 1;
        if t.len == 1 {
            self.queue_share(at);
            self.queue_floor(at);
        }
    }

    /// A tenant's session, put behind the others if nothing of it waits.
    fn session(&mut self, at: u32, id: u64) -> u32 {
        let (ring, count, mapped) =
            (self.tenants[at].ring, self.tenants[at].sessions, self.tenants[at].mapped);
        let found = if mapped {
            self.by_id.get(&(at, id)).copied()
        } else {
            let mut next = ring;
            (0..count).find_map(|_| {
                let this = next;
                next = self.sessions[this].next;
                (self.sessions[this].id == id).then_some(this)
            })
        };
        if let Some(found) = found {
            return found;
        }
        let new = self.sessions.put(Session { id, head: NONE, tail: NONE, next: NONE, balance: 1 });
        if ring == NONE {
            self.sessions[new].next = new;
        } else {
            self.sessions[new].next = self.sessions[ring].next;
            self.sessions[ring].next = new;
        }
        let t = &mut self.tenants[at];
        t.ring = new;
        t.sessions += 1;
        if mapped {
            self.by_id.insert((at, id), new);
        } else if t.sessions > WALK {
            t.mapped = true;
            let mut next = new;
            for _ in 0..t.sessions {
                let s = &self.sessions[next];
                self.by_id.insert((at, s.id), next);
                next = s.next;
            }
        }
        new
    }

    /// Since when a floor is owed something; later than now if none is behind.
    pub(crate) fn floor_due(&mut self) -> Option<u64> {
        loop {
            let (key, at) = parts(self.floors.top()?);
            let p = &mut self.promises[at as usize];
            if p.floor_key != key {
                self.floors.pop();
                continue;
            }
            let due = p.floor_due.max(p.ceiling_due);
            if self.tenants[at].len == 0 || p.floor.is_none() {
                p.floor_key = NOT_QUEUED;
                self.floors.pop();
            } else if due > key {
                self.floors.pop();
                self.queue_floor(at);
            } else {
                return Some(key);
            }
        }
    }

    /// The tenant that is next by share, if one is below its ceiling.
    fn by_share(&mut self, now: u64) -> Option<u32> {
        while let Some((key, at)) = self.ceilings.top().map(parts).filter(|(key, _)| *key <= now) {
            self.ceilings.pop();
            let p = &mut self.promises[at as usize];
            if p.ceiling_key == key {
                p.ceiling_key = NOT_QUEUED;
                if self.tenants[at].len > 0 {
                    self.queue_share(at);
                }
            }
        }
        loop {
            let (key, at) = parts(self.shares.top()?);
            let t = &mut self.tenants[at];
            let full = t.ceiled && self.promises[at as usize].ceiling_due > now;
            if t.len > 0 && t.share <= key && !full {
                return Some(at);
            }
            if t.len > 0 && !full {
                // It was served by floor, or charged more: its entry goes where it belongs now.
                let share = t.share;
                let order = self.next_entry();
                self.shares.replace_top(entry(share, order, at));
                continue;
            }
            self.shares.pop();
            t.in_share = false;
            if t.len > 0 {
                self.queue_ceiling(at);
            }
        }
    }

    /// Whether some tenant may be served by share.
    pub(crate) fn is_ready(&mut self, now: u64) -> bool {
        self.by_share(now).is_some()
    }

    /// Whether the tenant that is next by share has had less than others, even with its next
    /// operation.
    pub(crate) fn is_behind(&mut self, now: u64) -> bool {
        let Some(at) = self.by_share(now) else { return false };
        let t = &self.tenants[at];
        t.share.saturating_add(t.step(self.ops[t.first].charge)) <= self.now
    }

    /// When a tenant that is at its ceiling may go on.
    pub(crate) fn next_ready(&self) -> Option<u64> {
        self.ceilings.top().map(|e| parts(e).0)
    }

    /// Takes the operation of the tenant with the floor that is furthest behind.
    pub(crate) fn pop_floor(&mut self, now: u64) -> Option<Taken<T>> {
        self.floor_due().filter(|due| *due <= now)?;
        let (_, at) = parts(self.floors.top()?);
        self.take(at, true, now)
    }

    /// Takes the operation of the tenant that is next by share.
    pub(crate) fn pop_share(&mut self, now: u64) -> Option<Taken<T>> {
        let at = self.by_share(now)?;
        self.now = self.now.max(self.tenants[at].share);
        self.take(at, false, now)
    }

    fn take(&mut self, at: u32, floor: bool, now: u64) -> Option<Taken<T>> {
        let t = &self.tenants[at];
        let (id, last, place) = (t.id, t.ring, t.first);
        let first = self.sessions[last].next;
        let op = &mut self.ops[place];
        let (next, cost, charge, priority) = (op.next, op.cost, op.charge, op.priority);
        let item = op.item.take()?;
        self.ops.release(place);
        self.pay(at, cost, charge, floor, now);
        let t = &mut self.tenants[at];
        t.len -= 1;
        self.len -= 1;
        let s = &mut self.sessions[first];
        let session = s.id;
        s.head = next;
        s.balance -= i64::from(charge);
        if next == NONE {
            // The session leaves; what it had left in its turn is gone.
            let after = s.next;
            self.sessions[last].next = after;
            t.sessions -= 1;
            if t.sessions == 0 {
                t.ring = NONE;
            }
            if t.mapped {
                self.by_id.remove(&(at, session));
                t.mapped = t.sessions > 0;
            }
            self.sessions.release(first);
        } else if s.balance <= 0 {
            s.balance += i64::from(t.quantum);
            t.ring = first;
        }
        let empty = t.len == 0;
        t.first = if empty { NONE } else { self.sessions[self.sessions[t.ring].next].head };
        if empty {
            self.list_idle(at, now);
        }
        if !floor {
            self.furthest = self.furthest.max(self.tenants[at].share);
        }
        if self.len == 0 {
            self.now = self.now.max(self.furthest);
            self.period = self.period.wrapping_add(1);
        }
        // The top of its heap has a new key now. Nothing else has it in its hands.
        if floor {
            let order = self.next_entry();
            let p = &mut self.promises[at as usize];
            p.floor_key = if empty { NOT_QUEUED } else { p.floor_due.max(p.ceiling_due) };
            let key = p.floor_key;
            if empty {
                self.floors.pop();
            } else {
                self.floors.replace_top(entry(key, order, at));
            }
        } else {
            let share = self.tenants[at].share;
            let order = self.next_entry();
            if empty {
                self.shares.pop();
                self.tenants[at].in_share = false;
            } else {
                self.shares.replace_top(entry(share, order, at));
            }
        }
        self.foresee();
        Some(Taken { tenant: id, session, cost, charge, priority, item })
    }

    /// Has the processor fetch what the next steps will look at, one after the other: of many
    /// tenants, nothing is in its caches.
    fn foresee(&self) {
        if self.tenants.all.len() < MANY {
            return;
        }
        for heap in [&self.shares, &self.floors] {
            if let Some((_, at)) = heap.top().map(parts) {
                let t = &self.tenants[at];
                if t.len > 0 {
                    fetch(&self.sessions[t.ring]);
                    fetch(&self.ops[t.first]);
                }
            }
            if let Some((_, at)) = heap.second().map(parts) {
                fetch(&self.tenants[at]);
                if let Some(p) = self.promises.get(at as usize) {
                    fetch(p);
                }
            }
        }
    }

    /// An operation of a tenant was charged something and cost something else. What it was charged
    /// too much comes back when its entry in the heap is looked at next.
    pub(crate) fn settle(&mut self, id: u64, charged: u32, really: u32) {
        let Some(at) = self.find(id) else { return };
        let t = &mut self.tenants[at];
        let step = t.step(charged.abs_diff(really));
        if really > charged {
            t.share = t.share.saturating_add(step);
        } else {
            t.share = t.share.saturating_sub(step);
        }
    }

    /// Moves a tenant's clocks.
    fn pay(&mut self, at: u32, cost: u32, charge: u32, floor: bool, now: u64) {
        let t = &mut self.tenants[at];
        let step = t.step(charge);
        let paid = t.share.saturating_add(step);
        t.share = if floor {
            paid.min(self.now.saturating_add(step.saturating_mul(LEAD))).max(t.share)
        } else {
            paid
        };
        if floor || t.ceiled {
            let p = &mut self.promises[at as usize];
            if floor {
                p.floor_due = p.floor_due.saturating_add(p.floor.span(cost));
            }
            if !p.ceiling.is_none() {
                p.ceiling_due = p
                    .ceiling_due
                    .max(now.saturating_sub(LATE))
                    .saturating_add(p.ceiling.span(cost));
            }
        }
    }

    /// Takes out operations that are not wanted any more, at no tenant's cost. The others keep
    /// their places, and their sessions their turns.
    pub(crate) fn take_out(
        &mut self,
        gone: &mut dyn FnMut(&T) -> bool,
        out: &mut Vec<T>,
        now: u64,
    ) {
        let before = self.len;
        let waiting: Vec<u32> =
            self.index.iter().copied().filter(|at| self.tenants[*at].len > 0).collect();
        let mut stay: Vec<u32> = Vec::new();
        for at in waiting {
            let (len, sessions, mapped) =
                (self.tenants[at].len, self.tenants[at].sessions, self.tenants[at].mapped);
            let mut left = 0;
            let mut session = self.sessions[self.tenants[at].ring].next;
            for _ in 0..sessions {
                let (id, mut place, after) = (
                    self.sessions[session].id,
                    self.sessions[session].head,
                    self.sessions[session].next,
                );
                let (mut head, mut tail) = (NONE, NONE);
                while place != NONE {
                    let op = &mut self.ops[place];
                    let next = std::mem::replace(&mut op.next, NONE);
                    if let Some(item) = op.item.take_if(|item| gone(item)) {
                        out.push(item);
                        self.ops.release(place);
                    } else {
                        if tail == NONE {
                            head = place
                        } else {
                            self.ops[tail].next = place
                        }
                        tail = place;
                        left += 1;
                    }
                    place = next;
                }
                if tail == NONE {
                    if mapped {
                        self.by_id.remove(&(at, id));
                    }
                    self.sessions.release(session);
                } else {
                    let s = &mut self.sessions[session];
                    (s.head, s.tail) = (head, tail);
                    stay.push(session);
                }
                session = after;
            }
            // Those that stay are a ring again, in the order in which they take turns.
            for (n, session) in stay.iter().enumerate() {
                self.sessions[*session].next = stay[(n + 1) % stay.len()];
            }
            let t = &mut self.tenants[at];
            (t.ring, t.sessions) = (stay.last().copied().unwrap_or(NONE), stay.len() as u32);
            t.first = stay.first().map_or(NONE, |first| self.sessions[*first].head);
            t.mapped &= t.sessions > 0;
            t.len = left;
            self.len -= (len - left) as usize;
            if left == 0 {
                self.list_idle(at, now);
            }
            stay.clear();
        }
        if before > 0 && self.len == 0 {
            self.now = self.now.max(self.furthest);
            self.period = self.period.wrapping_add(1);
        }
    }

    /// Takes out everything that waits, each session's operations in order.
    pub(crate) fn drain(&mut self) -> Vec<Taken<T>> {
        let mut all = Vec::with_capacity(self.len);
        let waiting: Vec<u32> =
            self.index.iter().copied().filter(|at| self.tenants[*at].len > 0).collect();
        for at in waiting {
            let t = self.tenants[at].clone();
            let mut session = t.ring;
            for _ in 0..t.sessions {
                let s = self.sessions[session].clone();
                let mut place = s.head;
                while place != NONE {
                    let op = &mut self.ops[place];
                    if let Some(item) = op.item.take() {
                        all.push(Taken {
                            tenant: t.id,
                            session: s.id,
                            cost: op.cost,
                            charge: op.charge,
                            priority: op.priority,
                            item,
                        });
                    }
                    let next = op.next;
                    self.ops.release(place);
                    place = next;
                }
                if t.mapped {
                    self.by_id.remove(&(at, s.id));
                }
                self.sessions.release(session);
                session = s.next;
            }
            let t = &mut self.tenants[at];
            (t.len, t.sessions, t.ring, t.first, t.mapped) = (0, 0, NONE, NONE, false);
            let since = t.idle_since;
            self.list_idle(at, since);
        }
        self.len = 0;
        self.period = self.period.wrapping_add(1);
        all
    }
}

fn hash(id: u64) -> u64 {
    FxBuildHasher.hash_one(id)
}

fn promise_of<'a>(
    tenants: &Places<Tenant>,
    promises: &'a [Promise],
    at: u32,
) -> Option<&'a Promise> {
    tenants[at].promised.then(|| &promises[at as usize])
}
