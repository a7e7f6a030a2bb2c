use crate::mclock::Strict;
use crate::{Dequeued, Op, OpClass, Phase, Scheduler};
use std::collections::{BTreeMap, VecDeque};

/// Weighted priorities (Ceph: `common/WeightedPriorityQueue.h`).
///
/// Operations at or above the cut-off leave strictly by priority. Below it, a priority is drawn
/// with a probability in proportion to its number, and then accepted with a probability that falls
/// with the cost of its next operation, down to a tenth for the largest cost seen. Within a
/// priority, tenants take turns, one operation each.
#[derive(Clone, Debug)]
pub struct Wpq<T> {
    cut_off: u32,
    strict: Strict<T>,
    priorities: BTreeMap<u32, Level<T>>,
    total_priority: u64,
    max_cost: u64,
    len: usize,
    rng: u64,
    /// Empty queues that keep their memory.
    spare: Vec<VecDeque<Op<T>>>,
}

#[derive(Clone, Debug)]
struct Level<T> {
    tenants: BTreeMap<u64, VecDeque<Op<T>>>,
    /// The tenant that is next in turn, or the first one after it.
    next: u64,
}

impl<T> Level<T> {
    fn turn(&self) -> Option<u64> {
        let after = self.tenants.range(self.next..).next();
        after.or_else(|| self.tenants.iter().next()).map(|t| *t.0)
    }

    fn next_cost(&self) -> u64 {
        let queue = self.turn().and_then(|t| self.tenants.get(&t));
        queue.and_then(|q| q.front()).map_or(0, |op| u64::from(op.cost))
    }
}

const SPARE_MAX: usize = 64;

impl<T> Wpq<T> {
    /// An empty queue; see [`crate::cut_off`]. The seed decides all draws.
    pub fn new(cut_off: u32, seed: u64) -> Self {
        Wpq {
            cut_off,
            strict: Strict::default(),
            priorities: BTreeMap::new(),
            total_priority: 0,
            max_cost: 0,
            len: 0,
            rng: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            spare: Vec::new(),
        }
    }

    /// What waits before everything else: priorities, and how many operations of each.
    pub fn strict(&self) -> impl Iterator<Item = (u32, usize)> {
        self.strict.queues()
    }

    /// The other priorities, the highest first: how many operations of each, and of how many
    /// tenants.
    pub fn queues(&self) -> impl Iterator<Item = (u32, usize, usize)> {
        self.priorities.iter().rev().map(|(priority, level)| {
            (*priority, level.tenants.values().map(VecDeque::len).sum(), level.tenants.len())
        })
    }

    /// A number below `n` (xorshift64*).
    fn draw(&mut self, n: u64) -> u64 {
        self.rng ^= self.rng >> 12;
        self.rng ^= self.rng << 25;
        self.rng ^= self.rng >> 27;
        (self.rng.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) % n.max(1)
    }

    /// The priority to serve; at least one is waiting.
    fn pick(&mut self) -> Option<u32> {
        if self.priorities.len() == 1 {
            return self.priorities.keys().next().copied();
        }
        loop {
            let mut left = self.draw(self.total_priority);
            let drawn =
                self.priorities.iter().rev().find(|(p, _)| match left.checked_sub(weight(**p)) {
                    Some(rest) => {
                        left = rest;
                        false
                    }
                    None => true,
                });
            let (priority, cost) = drawn.map(|(p, level)| (*p, level.next_cost()))?;
            // Accepted with at least a tenth of probability, so this ends.
            if self.max_cost == 0
                || self.draw(self.max_cost) <= self.max_cost - cost.min(self.max_cost) * 9 / 10
            {
                return Some(priority);
            }
        }
    }
}

/// Priority 0 has the least share rather than none.
fn weight(priority: u32) -> u64 {
    u64::from(priority.max(1))
}

impl<T> Scheduler<T> for Wpq<T> {
    fn enqueue(&mut self, op: Op<T>, _: u64) {
        if op.class == OpClass::Immediate || op.priority >= self.cut_off {
            self.strict.push(op);
            return;
        }
        let (priority, tenant) = (op.priority, op.tenant);
        self.max_cost = self.max_cost.max(u64::from(op.cost));
        let level = self.priorities.entry(priority).or_insert_with(|| {
            self.total_priority += weight(priority);
            Level { tenants: BTreeMap::new(), next: 0 }
        });
        let spare = &mut self.spare;
        level
            .tenants
            .entry(tenant)
            .or_insert_with(|| spare.pop().unwrap_or_default())
            .push_back(op);
        self.len += 1;
    }

    fn dequeue(&mut self, _: u64) -> Dequeued<T> {
        if let Some(op) = self.strict.pop() {
            return Dequeued::Item(op, Phase::Strict);
        }
        if self.len == 0 {
            return Dequeued::Empty;
        }
        let Some(priority) = self.pick() else { return Dequeued::Empty };
        let Some(level) = self.priorities.get_mut(&priority) else { return Dequeued::Empty };
        let Some(tenant) = level.turn() else { return Dequeued::Empty };
        let Some(queue) = level.tenants.get_mut(&tenant) else { return Dequeued::Empty };
        let Some(op) = queue.pop_front() else { return Dequeued::Empty };
        self.len -= 1;
        level.next = tenant.wrapping_add(1);
        if queue.is_empty() {
            if let Some(queue) = level.tenants.remove(&tenant)
                && self.spare.len() < SPARE_MAX
            {
                self.spare.push(queue);
            }
            if level.tenants.is_empty() {
                self.priorities.remove(&priority);
                self.total_priority -= weight(priority);
            }
        }
        Dequeued::Item(op, Phase::Weight)
    }

    fn take_out(&mut self, gone: &mut dyn FnMut(&T) -> bool, _: u64) -> Vec<T> {
        let mut out = self.strict.take_out(gone);
        let before = out.len();
        let (spare, total) = (&mut self.spare, &mut self.total_priority);
        self.priorities.retain(|priority, level| {
            level.tenants.retain(|_, queue| {
                crate::take_out_of(queue, gone, &mut out);
                if queue.is_empty() && spare.len() < SPARE_MAX {
                    spare.push(std::mem::take(queue));
                    return false;
                }
                !queue.is_empty()
            });
            if level.tenants.is_empty() {
                *total -= weight(*priority);
            }
            !level.tenants.is_empty()
        });
        self.len -= out.len() - before;
        out
    }

    fn len(&self) -> usize {
        self.strict.len() + self.len
    }
}
