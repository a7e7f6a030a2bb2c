//! From the scheduler to execution: lets work in as far as the admission window goes, and counts
//! what has ended.

use super::{Core, TURN};
use crate::client_op::{ClientOp, Slot, Work};
use crate::clock::thread_cpu;
use crate::tracker::Stage;
use admission::legs::{Marks, Spent, Took};
use admission::meter::Receipt;
use admission::work::Next;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Lets queued work in, a little at a time, and lets all other tasks on this thread run in between.
///
/// An operation that the processor does at once never waits for a place in the admission window.
/// Were it started as soon as it has been read, the order in which sockets are read would decide,
/// and a client with many of them would get most. Reading goes first, therefore: what has arrived
/// is in the scheduler before it decides.
pub(crate) fn run_queued(core: &Rc<Core>) -> impl Future<Output = ()> + use<> {
    core.admission.has_runner.set(true);
    let core = Rc::downgrade(core);
    async move {
        while let Some(c) = core.upgrade() {
            if c.run_some(Some(TURN)) {
                drop(c);
                // Wakes this task when sockets have been looked at and the tasks that got something
                // have run.
                tokio::task::yield_now().await;
            } else {
                c.admission.work_waits.notified().await;
            }
        }
    }
}

impl Core {
    /// Queues work.
    pub fn enqueue(&self, work: Work) {
        let now = Instant::now();
        if let Work::Client(op) = &work {
            self.admission.window.borrow_mut().comes(
                op.sink().session(),
                op.info.may_write(),
                self.admission.since_start(now),
            );
        }
        self.admission.queue.borrow_mut().enqueue(work, now);
        self.dispatch();
    }

    /// Runs queued work while the admission window has room: at once, or by the task of
    /// [`run_queued`].
    pub fn dispatch(&self) {
        if self.admission.has_runner.get() {
            self.admission.work_waits.notify_one();
        } else {
            self.run_some(None);
        }
    }

    /// Runs queued work for a while; whether there is more that may run.
    pub(super) fn run_some(&self, turn: Option<Duration>) -> bool {
        if self.admission.dispatching.replace(true) {
            return false;
        }
        let mut begun = None;
        let mut more = false;
        // What was started last, and when.
        let mut last: Option<(Instant, Receipt)> = None;
        loop {
            let now = Instant::now();
            let full = self.admission.is_full();
            if full && !self.admission.has_room_beyond(now) {
                break;
            }
            if let Some((since, receipt)) = last.take() {
                self.admission
                    .meter
                    .borrow_mut()
                    .started(&receipt, Some(now.saturating_duration_since(since)));
            }
            if self.admission.meter.borrow().is_due(now) {
                self.measure(now);
            }
            if turn
                .is_some_and(|turn| now.saturating_duration_since(*begun.get_or_insert(now)) > turn)
            {
                more = true;
                break;
            }
            let next = {
                let mut queue = self.admission.queue.borrow_mut();
                if self.admission.clients_running.get() == 0 {
                    queue.clients_left(now);
                }
                if full {
                    queue.dequeue_behind(now).map(|(work, receipt)| Next::Work(work, receipt))
                } else {
                    Some(queue.dequeue(now))
                }
            };
            let Some(next) = next else { break };
            match next {
                Next::Work(work, receipt) => {
                    last = matches!(work, Work::Client(_)).then_some((now, receipt));
                    self.start(work, receipt);
                }
                Next::Empty => {
                    self.admission.nothing_waits(now);
                    break;
                }
                Next::At(t) => {
                    self.admission.nothing_waits(now);
                    self.arm_timer(t);
                    break;
                }
            }
        }
        if let Some((since, receipt)) = last {
            // The clock is looked at for some of these: they are like the others.
            let n =
                self.admission.unmeasured.replace(self.admission.unmeasured.get().wrapping_add(1));
            let took = n.is_multiple_of(8).then(|| since.elapsed());
            self.admission.meter.borrow_mut().started(&receipt, took);
        }
        if self.admission.meter.borrow().is_idle()
            && (self.admission.is_full() && !self.admission.queue.borrow().is_empty()
                || self.admission.has_more_than_enough())
        {
            self.admission.meter.borrow_mut().waits(Instant::now());
        }
        self.admission.dispatching.set(false);
        more
    }

    fn arm_timer(&self, at: Instant) {
        if self.admission.timer.get().is_some_and(|t| t <= at) {
            return;
        }
        self.admission.timer.set(Some(at));
        let me = self.me.clone();
        tokio::task::spawn_local(async move {
            tokio::time::sleep_until(at.into()).await;
            if let Some(core) = me.upgrade() {
                if core.admission.timer.get() == Some(at) {
                    core.admission.timer.set(None);
                }
                core.dispatch();
            }
        });
    }

    fn slot(&self, client: bool) -> Slot {
        self.admission.running.set(self.admission.running.get() + 1);
        self.admission
            .clients_running
            .set(self.admission.clients_running.get() + usize::from(client));
        let me = self.me.clone();
        Slot(Box::new(move || {
            if let Some(core) = me.upgrade() {
                core.admission.running.set(core.admission.running.get() - 1);
                if client {
                    core.admission.client_ended();
                }
                core.dispatch();
            }
        }))
    }

    fn start(&self, work: Work, receipt: Receipt) {
        if receipt.sure {
            return self.start_now(work, receipt);
        }
        let before = thread_cpu();
        self.start_now(work, receipt);
        let took = thread_cpu().saturating_sub(before);
        let excess = self.admission.meter.borrow().excess(&receipt, took);
        if excess > 0 {
            self.admission.queue.borrow_mut().settle(&receipt, receipt.bytes, excess);
        }
    }

    fn start_now(&self, work: Work, receipt: Receipt) {
        let slot = self.slot(matches!(work, Work::Client(_)));
        match work {
            Work::Client(op) => {
                op.tracked.mark(Stage::ReachedPg);
                self.admission.clients_started.set(self.admission.clients_started.get() + 1);
                *op.slot.borrow_mut() = Some(slot);
                op.tags.receipt.set(receipt);
                op.had_turn.set(true);
                self.run(op);
            }
            Work::Background(mut job) => {
                job.receipt = receipt;
                // What a copy left behind that is gone is not for the one that came after it: least
                // of all its removal.
                if let Some(host) = self.host(job.pgid).filter(|h| h.copy == job.copy) {
                    host.run_background(job, slot);
                }
            }
        }
    }

    /// Runs a request that has had its turn before, and was charged then. It is in the admission
    /// window, which may hold more than its size for a moment.
    pub(super) fn start_again(&self, op: Rc<ClientOp>) {
        let slot = self.slot(true);
        // One that it still has is given back only when it has the new one, so that the window does
        // not let others in between.
        let old = op.slot.borrow_mut().replace(slot);
        drop(old);
        self.run(op);
    }

    fn run(&self, op: Rc<ClientOp>) {
        match self.host(op.copy()) {
            Some(host) => host.run_client_op(op),
            None => self.drop_request(&op),
        }
    }

    /// Counts a finished request, and what the change was that it made.
    pub(crate) fn count(&self, op: &ClientOp, in_bytes: u64, out_bytes: u64, flight: Option<Took>) {
        let total = op.received.elapsed();
        let queued = op.tracked.reached(Stage::ReachedPg).unwrap_or(Duration::ZERO);
        let began = op.tracked.reached(Stage::Started).unwrap_or(queued);
        let took = total.saturating_sub(began).as_nanos() as u64;
        let waiting = !self.admission.queue.borrow().is_empty();
        let now = self.admission.since_start(op.received + total);
        self.admission.window.borrow_mut().ended(
            took,
            op.info.may_write(),
            self.admission.running.get().saturating_sub(1),
            waiting,
            now,
        );
        let moved = if op.info.may_write() { in_bytes } else { out_bytes };
        let receipt = op.tags.receipt.get();
        let reached = |stage| op.tracked.reached(stage);
        let marks = Marks {
            reached: reached(Stage::ReachedPg),
            started: reached(Stage::Started),
            proposed: reached(Stage::WaitingForSubOps),
        };
        let spent = Spent::new(&op.tags.legs, marks, total, flight);
        let mut queue = self.admission.queue.borrow_mut();
        if moved != receipt.bytes {
            queue.settle(&receipt, moved, 0);
        }
        queue.answered(total, op.received + total);
        queue.spent(op, &spent);
        drop(queue);
        let (r, w) = (op.info.may_read(), op.info.may_write());
        self.images.count(op.pgid.pool, &op.oid, r, w, in_bytes, out_bytes, total);
        self.perf.client_op(r, w, in_bytes, out_bytes, total, total.saturating_sub(queued));
    }
}
