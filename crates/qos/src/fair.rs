use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

/// Tenants that share one queue fairly by cost (start-time fair queueing).
///
/// Each tenant has a virtual time: the cost that it was served. The one with the least is next. A tenant
/// that comes back after a pause starts at the virtual time of whoever was served last, so a pause earns
/// nothing; while its own is ahead of that, it keeps its own, so leaving and coming back earns nothing
/// either. Between a tenant's turns every other waiting tenant is served at most one operation more than
/// its share.
#[derive(Clone, Debug)]
pub(crate) struct FairQueue<T> {
    index: BTreeMap<u64, usize>,
    tenants: Vec<Tenant<T>>,
    /// Places in `tenants` to use again; their queues keep their memory.
    free: Vec<usize>,
    /// Waiting tenants by (virtual time, order of entry).
    turns: BinaryHeap<Reverse<(u64, u64, usize)>>,
    /// Virtual time of the turn served last.
    now: u64,
    entries: u64,
    len: usize,
}

#[derive(Clone, Debug)]
struct Tenant<T> {
    id: u64,
    served: u64,
    queue: VecDeque<(u32, T)>,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        FairQueue {
            index: BTreeMap::new(),
            tenants: Vec::new(),
            free: Vec::new(),
            turns: BinaryHeap::new(),
            now: 0,
            entries: 0,
            len: 0,
        }
    }
}

impl<T> FairQueue<T> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn push(&mut self, tenant: u64, cost: u32, item: T) {
        let at = match self.index.get(&tenant) {
            Some(at) => *at,
            None => self.admit(tenant),
        };
        let t = &mut self.tenants[at];
        t.queue.push_back((cost, item));
        self.len += 1;
        if t.queue.len() == 1 {
            t.served = t.served.max(self.now);
            self.entries += 1;
            self.turns.push(Reverse((t.served, self.entries, at)));
        }
    }

    fn admit(&mut self, id: u64) -> usize {
        if self.index.len() >= 64 + 2 * self.turns.len() {
            self.forget_idle();
        }
        let at = self.free.pop().unwrap_or_else(|| {
            self.tenants.push(Tenant { id, served: 0, queue: VecDeque::new() });
            self.tenants.len() - 1
        });
        (self.tenants[at].id, self.tenants[at].served) = (id, 0);
        self.index.insert(id, at);
        at
    }

    /// Forgets tenants that wait for nothing and are not ahead of the others. What is left is at most as
    /// many as were served since; the sweep's cost is spread over those that it follows.
    fn forget_idle(&mut self) {
        let (tenants, free, now) = (&self.tenants, &mut self.free, self.now);
        self.index.retain(|_, at| {
            let keep = !tenants[*at].queue.is_empty() || tenants[*at].served > now;
            if !keep {
                free.push(*at);
            }
            keep
        });
    }

    /// Cost of the next operation.
    pub(crate) fn peek(&self) -> Option<u32> {
        let Reverse((_, _, at)) = self.turns.peek()?;
        self.tenants[*at].queue.front().map(|f| f.0)
    }

    /// The next operation with its tenant and cost.
    pub(crate) fn pop(&mut self) -> Option<(u64, u32, T)> {
        let Reverse((time, _, at)) = self.turns.pop()?;
        self.now = time;
        let t = &mut self.tenants[at];
        let (cost, item) = t.queue.pop_front()?;
        self.len -= 1;
        t.served = time + u64::from(cost.max(1));
        if !t.queue.is_empty() {
            self.entries += 1;
            self.turns.push(Reverse((t.served, self.entries, at)));
        }
        Some((t.id, cost, item))
    }
}
