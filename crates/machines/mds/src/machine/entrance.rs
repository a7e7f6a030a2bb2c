//! The way in: requests wait in the scheduler, while as many are carried out as keep the server
//! and its log busy.
//!
//! A request is in the window from its beginning until its answer may leave, which is when the log
//! has what it tells of. One that waits for a client, or for another owner, leaves the window: what
//! it waits for may be a request behind it.

use super::operation::OpId;
use crate::types::{Batch, Steady};
use qos::{Dequeued, Scheduler};
use std::collections::{BTreeMap, BTreeSet};

/// Fewer requests than these are not worth ordering.
const LEAST: usize = 4;

/// The scheduler, and the window below it.
#[derive(Debug)]
pub(crate) struct Entrance {
    pub sched: qos::Mclock<OpId>,
    window: qos::Window,
    /// The size of the window while one subvolume alone asks.
    most: usize,
    /// Requests that may begin at this event.
    pub turns: usize,
    /// Requests that are carried out, and since when.
    running: BTreeMap<OpId, Steady>,
    /// Those that wait for a client, or for another owner.
    aside: BTreeSet<OpId>,
    /// Those that are not safe before the log has them.
    committing: BTreeMap<Batch, Vec<Committing>>,
    committing_len: usize,
    /// The current operation waits for something to be read.
    pub reads: bool,
}

/// A request that was carried out.
#[derive(Debug)]
struct Committing {
    since: Steady,
    /// When it was carried out.
    at: Steady,
    wrote: bool,
}

/// What may begin.
pub(crate) enum Next {
    Item(qos::Op<OpId>),
    WaitUntil(Steady),
    /// Nothing waits, or the window is full.
    None,
}

impl Entrance {
    /// With so many requests in the window at most.
    pub fn new(spec: qos::MclockSpec, most: usize) -> Self {
        Entrance {
            sched: qos::Mclock::new(spec),
            window: qos::Window::new(LEAST, most, 0),
            most,
            turns: 0,
            running: BTreeMap::new(),
            aside: BTreeSet::new(),
            committing: BTreeMap::new(),
            committing_len: 0,
            reads: false,
        }
    }

    fn len(&self) -> usize {
        self.running.len() + self.committing_len
    }

    /// A request has come.
    pub fn comes(&mut self, op: qos::Op<OpId>, writes: bool, now: Steady) {
        // One tenant alone has no others to be ordered among, and does not pay what order costs.
        self.window.comes(op.tenant, writes, now);
        self.sched.enqueue(op, now);
    }

    /// Whether the window may have room for a request that waits.
    pub fn has_work(&self, now: Steady) -> bool {
        !self.sched.is_empty() && self.len() < self.window.size(now) + self.window.beyond(now)
    }

    /// What the window goes by.
    pub fn seen(&self, now: Steady) -> (usize, [(u64, u64); 2]) {
        (self.window.size(now), self.window.taken())
    }

    /// Takes the next request out of the scheduler.
    pub fn next(&mut self, now: Steady) -> Next {
        let (size, len) = (self.window.size(now), self.len());
        if len >= size {
            // One of a tenant that has had less than others does not wait for theirs.
            if len >= size + self.window.beyond(now) {
                return Next::None;
            }
            return self.sched.dequeue_behind(now).map_or(Next::None, |(op, _)| Next::Item(op));
        }
        match self.sched.dequeue(now) {
            Dequeued::Item(op, _) => Next::Item(op),
            Dequeued::WaitUntil(at) => Next::WaitUntil(at),
            Dequeued::Empty => Next::None,
        }
    }

    /// A request begins.
    pub fn begins(&mut self, op: OpId, now: Steady) {
        self.running.insert(op, now);
    }

    /// An operation is tried.
    pub fn tries(&mut self, op: OpId, now: Steady) {
        self.reads = false;
        if self.aside.remove(&op) {
            self.running.insert(op, now);
        }
    }

    /// The operation that was tried waits.
    pub fn waits(&mut self, op: OpId) {
        if !self.reads && self.running.remove(&op).is_some() {
            self.aside.insert(op);
        }
    }

    /// A request is done, and its answer leaves when a batch is durable.
    pub fn done(&mut self, op: OpId, wrote: bool, batch: Batch, durable: Batch, now: Steady) {
        let Some(since) = self.running.remove(&op) else { return };
        if batch <= durable {
            return self.ended(since, wrote, now);
        }
        self.committing.entry(batch).or_default().push(Committing { since, at: now, wrote });
        self.committing_len += 1;
    }

    /// Batches up to this one are durable.
    pub fn durable(&mut self, batch: Batch, now: Steady) {
        while let Some(entry) = self.committing.first_entry().filter(|e| *e.key() <= batch) {
            for Committing { since, wrote, .. } in entry.remove() {
                self.committing_len -= 1;
                self.ended(since, wrote, now);
            }
        }
    }

    /// A batch is sealed for which nothing has waited. How long that was says nothing of the log.
    pub fn was_put_off(&mut self, batch: Batch, now: Steady) {
        for request in self.committing.get_mut(&batch).into_iter().flatten() {
            request.since += now.saturating_sub(request.at);
        }
    }

    /// Whether requests wait for others to be safe, or will: order among subvolumes is kept by a
    /// small window.
    pub fn needs_room(&self, now: Steady) -> bool {
        let size = self.window.size(now);
        size < self.most || (!self.sched.is_empty() && self.len() >= size)
    }

    fn ended(&mut self, since: Steady, wrote: bool, now: Steady) {
        let waits = !self.sched.is_empty();
        self.window.ended(now.saturating_sub(since), wrote, self.len(), waits, now);
    }

    /// Whether a request has begun, and has no answer.
    pub fn has_begun(&self, op: OpId) -> bool {
        self.running.contains_key(&op) || self.aside.contains(&op)
    }

    /// A request is given up.
    pub fn forget(&mut self, op: OpId) {
        self.running.remove(&op);
        self.aside.remove(&op);
    }
}
