//! What an OSD keeps of admission: the scheduler, the admission window and the meter, and what is
//! in execution.

use crate::client_op::ClientOp;
use crate::clock::{thread_cpu, with_starting};
use admission::legs::Peers;
use admission::meter::{Learned, Meter, Receipt, Thread, Usage};
use admission::work::Queue;
use std::cell::{Cell, RefCell};
use std::time::Instant;
use store::dev::Served;
use tokio::sync::Notify;

/// Fewer operations than these are not worth ordering, ...
const LEAST_IN_FLIGHT: usize = 4;
/// ... and more than these are not needed by any store.
const MOST_IN_FLIGHT: usize = 256;

/// The scheduler, the window below it, and what they learn of this OSD.
pub(crate) struct Admission {
    pub(crate) queue: RefCell<Box<dyn Queue<ClientOp>>>,
    pub(crate) window: RefCell<qos::Window>,
    /// The window's size if the settings say it, else 0.
    pub(crate) fixed: Cell<usize>,
    pub(crate) meter: RefCell<Meter>,
    /// How long other OSDs take for their copies.
    pub(crate) peers: RefCell<Peers>,
    /// Operations in execution.
    pub(crate) running: Cell<usize>,
    /// Requests of clients among that.
    pub(crate) clients_running: Cell<usize>,
    pub(crate) clients_started: Cell<u64>,
    /// Where the window's time begins.
    start: Instant,
    /// Counts rounds that ended without a look at the clock.
    pub(crate) unmeasured: Cell<u32>,
    /// Work is being let in.
    pub(crate) dispatching: Cell<bool>,
    /// Wakes the task that lets queued work in, if there is one.
    pub(crate) work_waits: Notify,
    pub(crate) has_runner: Cell<bool>,
    /// When the earliest timer for the scheduler fires.
    pub(crate) timer: Cell<Option<Instant>>,
}

/// What a store did, for the meter.
fn used(usage: &store::Usage) -> Usage {
    let of = |served: &[Served; admission::meter::SIZES]| {
        served.map(|s| qos::Taken { count: s.count, bytes: s.bytes, nanos: s.nanos })
    };
    Usage {
        transactions: usage.transactions,
        data: usage.data,
        device: [of(&usage.device.reads), of(&usage.device.writes)],
        busy: usage.device.busy,
    }
}

impl Admission {
    /// Nothing is in execution. `begin` seeds the window.
    pub(crate) fn new(queue: Box<dyn Queue<ClientOp>>, fixed: usize, begin: u64) -> Self {
        let now = Instant::now();
        Admission {
            queue: RefCell::new(queue),
            window: RefCell::new(qos::Window::new(LEAST_IN_FLIGHT, MOST_IN_FLIGHT, begin)),
            fixed: Cell::new(fixed),
            meter: RefCell::new(Meter::new(now)),
            peers: RefCell::default(),
            running: Cell::new(0),
            clients_running: Cell::new(0),
            clients_started: Cell::new(0),
            start: now,
            unmeasured: Cell::new(0),
            dispatching: Cell::new(false),
            work_waits: Notify::new(),
            has_runner: Cell::new(false),
            timer: Cell::new(None),
        }
    }

    /// Work that may be in execution at a time.
    pub(crate) fn window(&self) -> usize {
        match self.fixed.get() {
            0 => self.window.borrow().size(self.since_start(Instant::now())),
            fixed => fixed,
        }
    }

    /// The window's time, in nanoseconds.
    pub(crate) fn since_start(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.start).as_nanos() as u64
    }

    /// What the window goes by, for people.
    pub(crate) fn window_taken(&self) -> serde_json::Value {
        let of = |(took, among): (u64, u64)| serde_json::json!({"seconds": took as f64 / 1e9, "among": among as f64 / 100.0});
        let [few, last] = self.window.borrow().taken();
        serde_json::json!({"among_few": of(few), "last": of(last), "enough": self.window.borrow().enough()})
    }

    /// Whether the admission window is full.
    pub(crate) fn is_full(&self) -> bool {
        self.running.get() >= self.window()
    }

    /// Whether a client that has had less than others may go, although the window is full.
    pub(crate) fn has_room_beyond(&self, now: Instant) -> bool {
        self.fixed.get() == 0
            && self.running.get()
                < self.window() + self.window.borrow().beyond(self.since_start(now))
    }

    /// Whether what would wait for the window is in execution, because there is nothing to order.
    pub(crate) fn has_more_than_enough(&self) -> bool {
        self.fixed.get() == 0 && self.running.get() > self.window.borrow().enough()
    }

    /// Tells the meter that the scheduler has nothing that may go on.
    pub(crate) fn nothing_waits(&self, now: Instant) {
        if !self.has_more_than_enough() {
            self.meter.borrow_mut().idle(now);
        }
    }

    /// Learns from what was done since the last time, if that is enough. Called now and then.
    pub(crate) fn measure(&self, usage: &store::Usage, now: Instant) {
        let usage = used(usage);
        let mut meter = self.meter.borrow_mut();
        let looked = with_starting(|starting| {
            meter.look(usage, Thread { cpu: thread_cpu(), starting }, now)
        });
        if looked {
            let saturated = meter.is_saturated(now);
            self.queue.borrow_mut().learned(
                meter.model().charges(),
                meter.capacity().trusted(),
                saturated,
                now,
            );
        }
    }

    /// What was learned of costs and capacity: for people, and to be kept.
    pub(crate) fn with_meter<R>(&self, f: impl FnOnce(&mut Meter) -> R) -> R {
        f(&mut self.meter.borrow_mut())
    }

    /// Takes what an earlier run has learned.
    pub(crate) fn restore_learned(&self, learned: &Learned) {
        let mut meter = self.meter.borrow_mut();
        meter.restore(learned);
        self.queue.borrow_mut().learned(
            meter.model().charges(),
            meter.capacity().trusted(),
            false,
            Instant::now(),
        );
    }

    /// Background work has really read so many bytes.
    pub(crate) fn has_read(&self, receipt: &Receipt, bytes: u64) {
        self.meter.borrow_mut().read(bytes);
        self.queue.borrow_mut().settle(receipt, bytes, 0);
    }

    /// A client's operation is not in execution any more.
    pub(crate) fn client_ended(&self) {
        let left = self.clients_running.get() - 1;
        self.clients_running.set(left);
        // The code that has the queue looks for this before it goes on.
        if left == 0
            && let Ok(mut queue) = self.queue.try_borrow_mut()
        {
            queue.clients_left(Instant::now());
        }
    }

    /// Requests of clients started so far.
    pub(crate) fn clients_started(&self) -> u64 {
        self.clients_started.get()
    }
}
