//! Scheduling of operations by class: mClock and WPQ behind one trait, without I/O.
//!
//! Every operation that will reach a device waits in one [`Scheduler`]. It is tagged with a class
//! ([`OpClass`]), a tenant and a cost, and comes out when its turn has come. Time is an argument,
//! in nanoseconds from any fixed point; it must not run backwards.
//!
//! * [`Fifo`]: first come, first served. The baseline.
//! * [`Wpq`]: priorities are shares; Ceph's `osd_op_queue = wpq`.
//! * [`Mclock`]: each class has a floor, a share and a ceiling, and so has each tenant of a class;
//!   the sessions of a tenant share its part. Ceph's `osd_op_queue = mclock_scheduler`, with
//!   [`MclockProfile`]s.
//!
//! In front of it, operations of tenants with [`Limits`] wait in [`Ceilings`] until these allow
//! them. What an operation costs is learned ([`CostModel`]), and so is how much the device can do
//! ([`CapacityEstimator`]). Behind it, [`Window`] says how many operations may be in execution,
//! where they can no longer be ordered. [`Beside`] says how much background work is begun beside
//! clients that do not wait in the scheduler, and [`Auto`] finds how much their latency allows.
//! [`split`] and [`Fraction`] divide what a tenant is promised over the places that serve it.

mod auto;
mod beside;
mod capacity;
mod ceilings;
mod cost;
mod fetch;
mod fifo;
mod heap;
mod latencies;
mod mclock;
mod profile;
mod split;
mod tenants;
mod window;
mod wpq;

pub use auto::{Auto, Objective};
pub use beside::{Begun, Beside, Part, parts};
pub use capacity::{AHEAD, CapacityEstimator, Period, Verdict, room_for, set_aside};
pub use ceilings::{Access, Backlog, Ceilings, Demand, Limits, Rate, SLACK_MILLIS, TenantId};
pub use cost::{Charges, CostModel, Line, REFERENCE, REFERENCE_BYTES, Samples, Seen, Taken};
pub use fifo::Fifo;
pub use latencies::Latencies;
pub use mclock::state::{ClassState, TenantState};
pub use mclock::{ClassSpec, Mclock, MclockSpec};
pub use profile::{Allocations, Capacity, DeviceKind, MclockProfile};
pub use split::{Fraction, split};
pub use tenants::{Pace, TenantSpec};
pub use window::Window;
pub use wpq::Wpq;

/// What an operation is for (Ceph: `op_scheduler_class`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum OpClass {
    /// Recovery of data that has fewer copies than it should.
    BackgroundRecovery,
    /// Everything that can wait: backfill of misplaced data, scrub, snapshot trimming, deletion.
    BackgroundBestEffort,
    /// Clients.
    Client,
    /// Control: heartbeats, peering, maps. Never waits behind the others.
    Immediate,
}

impl OpClass {
    /// The classes that share the device.
    pub const SHARED: [OpClass; 3] =
        [OpClass::Client, OpClass::BackgroundRecovery, OpClass::BackgroundBestEffort];

    /// Ceph's name of it.
    pub fn name(self) -> &'static str {
        match self {
            OpClass::BackgroundRecovery => "background_recovery",
            OpClass::BackgroundBestEffort => "background_best_effort",
            OpClass::Client => "client",
            OpClass::Immediate => "immediate",
        }
    }
}

/// An operation that waits. Operations of one class, tenant, session and priority leave in the
/// order in which they came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Op<T> {
    /// The item that is scheduled.
    pub item: T,
    /// Its class.
    pub class: OpClass,
    /// For whom: a pool, a client, an image; whatever is to be treated fairly.
    pub tenant: u64,
    /// The session that sends it: operations of one session stay in order, and sessions of a tenant
    /// take turns.
    pub session: u64,
    /// What it costs, in bytes. A scheduler may charge more for small ones.
    pub cost: u32,
    /// What it is charged by [`Mclock`], in the unit of the promises to classes; 0 for its bytes,
    /// but at least [`MclockSpec::cost_per_io`]. What comes out has what it was charged.
    pub charge: u32,
    /// Ceph's message priority (63 for clients). At or above the scheduler's cut-off it goes first.
    pub priority: u32,
}

/// Why an operation was chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// It may not wait.
    Strict,
    /// To keep its tenant's floor.
    Floor,
    /// To keep its class's floor.
    Reservation,
    /// By its class's share of what is left.
    Weight,
    /// Beyond its class's ceiling, because there was nothing to protect
    /// ([`Mclock::dequeue_beyond`]).
    Beyond,
}

/// What [`Scheduler::dequeue`] found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Dequeued<T> {
    /// An operation that is served next.
    Item(Op<T>, Phase),
    /// Operations wait, and all of them are at their ceiling until this time.
    WaitUntil(u64),
    /// Nothing waits.
    Empty,
}

/// A queue that decides which operation is next.
pub trait Scheduler<T> {
    /// Takes an operation in at time `now`.
    fn enqueue(&mut self, op: Op<T>, now: u64);

    /// Gives the next operation at time `now`.
    fn dequeue(&mut self, now: u64) -> Dequeued<T>;

    /// Takes out operations that are not wanted any more, at no tenant's cost. The others stay in
    /// order.
    fn take_out(&mut self, gone: &mut dyn FnMut(&T) -> bool, now: u64) -> Vec<T>;

    /// How many operations wait.
    fn len(&self) -> usize;

    /// Whether nothing waits.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Takes out of a queue the operations that are not wanted any more.
pub(crate) fn take_out_of<T>(
    queue: &mut std::collections::VecDeque<Op<T>>,
    gone: &mut dyn FnMut(&T) -> bool,
    out: &mut Vec<T>,
) {
    for _ in 0..queue.len() {
        if let Some(op) = queue.pop_front() {
            if gone(&op.item) { out.push(op.item) } else { queue.push_back(op) }
        }
    }
}

/// Cut-offs for the strict part (Ceph: `osd_op_queue_cut_off`).
pub mod cut_off {
    /// Only what is above client operations is strict (`high`, the default since Octopus).
    pub const HIGH: u32 = 196;
    /// Client operations are weighted, everything above is strict (`low`).
    pub const LOW: u32 = 64;
}
