//! What the scheduler orders.

use crate::legs::Spent;
use crate::meter::Receipt;
use crate::request::Payer;
use messages::{QosDemand, QosSeen, QosShares};
use serde_json::Value;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Instant;
use types::{ObjectId, PgShard, PoolId, SnapId, SpgId};

/// Something to do that costs the device or the processor.
pub enum Work<R> {
    /// A client's request.
    Client(Rc<R>),
    /// Everything else.
    Background(Background),
}

/// Work of a PG that no client waits for.
pub struct Background {
    /// The PG.
    pub pgid: SpgId,
    /// Which of the copies that this OSD has had of the PG, one after the other: the next one knows
    /// nothing of it.
    pub copy: u64,
    /// What to do.
    pub kind: Kind,
    /// About how many bytes it moves.
    pub cost: u64,
    /// It moves objects that have all their copies, if not all where they should be.
    pub misplaced: bool,
    /// What the scheduler charged for it.
    pub receipt: Receipt,
    /// When it came to the scheduler, by the scheduler's clock.
    pub queued: u64,
}

/// Kinds of background work.
#[derive(Debug)]
pub enum Kind {
    /// Start recovering an object.
    Recover,
    /// Read a part of an object for another OSD.
    ReadObject(Box<ReadObject>),
    /// Read a part of a shard for another OSD.
    ReadShard(pg::ReadToken, Box<pg::ShardQuery>),
    /// Make a part of lost shards of an object.
    Rebuild(Box<Rebuild>),
    /// List objects for a backfill: for this token, after this cursor, about so many.
    ListObjects(pg::ReadToken, pg::Backfill, usize),
    /// Trim an object of a removed snapshot.
    SnapTrim(SnapId),
    /// Count a page of the clones that removed snapshots have.
    CountClones,
    /// One slice of a scan for a scrub.
    Scan(pg::ReadToken),
    /// Remove objects of a PG that goes away.
    RemoveObjects(usize),
}

/// See [`pg::Action::ReadObject`].
#[derive(Debug)]
pub struct ReadObject {
    /// Goes into the answer.
    pub token: pg::ReadToken,
    /// The object.
    pub oid: ObjectId,
    /// The version that it must have.
    pub version: types::Eversion,
    /// Where to start.
    pub from: pg::Progress,
    /// Bounds the data.
    pub max_bytes: u64,
    /// Bounds the omap rows.
    pub max_omap: u64,
    /// Clients wait for it.
    pub urgent: bool,
}

/// See [`pg::Action::Rebuild`].
#[derive(Debug)]
pub struct Rebuild {
    /// Goes into the answer.
    pub token: pg::ReadToken,
    /// The object.
    pub oid: ObjectId,
    /// The version that it must have.
    pub version: types::Eversion,
    /// Copies that lack their shard.
    pub targets: Vec<PgShard>,
    /// Copies that have theirs.
    pub sources: Vec<PgShard>,
    /// Where to start.
    pub from: pg::Progress,
    /// Bounds the data of each shard.
    pub max_bytes: u64,
    /// Bounds the omap rows.
    pub max_omap: u64,
    /// Clients wait for it.
    pub urgent: bool,
}

/// What to do next.
pub enum Next<R> {
    /// This, and what was charged for it.
    Work(Work<R>, Receipt),
    /// Nothing before this time.
    At(Instant),
    /// Nothing.
    Empty,
}

/// A scheduler as the OSD uses it.
pub trait Queue<R> {
    /// Adds work.
    fn enqueue(&mut self, work: Work<R>, now: Instant);
    /// Takes the next.
    fn dequeue(&mut self, now: Instant) -> Next<R>;
    /// Takes the next request of a client that need not wait for what others have in execution, if
    /// there is one.
    fn dequeue_behind(&mut self, _: Instant) -> Option<(Work<R>, Receipt)> {
        None
    }
    /// Takes out clients' requests that need not be done here any more. That costs no tenant
    /// anything.
    fn take_out(&mut self, gone: &dyn Fn(&R) -> bool, now: Instant) -> Vec<Rc<R>>;
    /// How much waits.
    fn len(&self) -> usize;
    /// Whether nothing waits.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The scheduler's name (`osd_op_queue`).
    fn name(&self) -> &'static str;
    /// What images and specified tenants are asked for, for the manager.
    fn demand(&mut self, _: Instant) -> QosDemand {
        QosDemand::default()
    }
    /// There is another manager, or another connection with it: what was told may be lost.
    fn forget_told(&mut self) {}
    /// Takes the manager's answer.
    fn take_shares(&mut self, _: QosShares, _: Instant) {}
    /// What was seen of classes and tenants, for people and programs. The function names pools.
    fn dump(&self, _: &dyn Fn(PoolId) -> Option<String>) -> Value {
        Value::Null
    }
    /// What waits and by which clocks, with so many tenants of each class. The function names
    /// pools.
    fn state(&self, _most: usize, _: &dyn Fn(PoolId) -> Option<String>, _: Instant) -> Value {
        Value::Null
    }
    /// What is set and does not hold under this scheduler.
    fn ignored(&self, _: &conf::Config) -> Vec<crate::ignored::Ignored> {
        Vec::new()
    }
    /// What classes got, and tenants since this was asked last, for the manager. The function names
    /// pools.
    fn take_seen(&mut self, _: &dyn Fn(PoolId) -> Option<String>) -> QosSeen {
        QosSeen::default()
    }
    /// Whether demand is to be told regularly.
    fn has_limited(&self) -> bool {
        false
    }
    /// What operations cost; what the OSD can do, in random writes of 4 KiB each second, if that is
    /// known; and whether it did all it could a moment ago.
    fn learned(&mut self, _: &qos::Charges, _: Option<f64>, _saturated: bool, _: Instant) {}
    /// Something really moved so many bytes, and took so much of the processor beyond what that
    /// says, in nanoseconds.
    fn settle(&mut self, _: &Receipt, _bytes: u64, _nanos: u64) {}
    /// A part of a client's operation that another OSD leads was done here: its tenant pays for it.
    fn part(&mut self, _: &Payer<'_>, _: qos::Access, _bytes: u64, _: Instant) {}
    /// For the manager: counters of promises and capacity.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
    /// No operation of a client is in execution any more.
    fn clients_left(&mut self, _: Instant) {}
    /// A client's operation was answered, so long after it came.
    fn answered(&mut self, _took: std::time::Duration, _: Instant) {}
    /// Where the time of a client's operation went that was answered.
    fn spent(&mut self, _: &R, _: &Spent) {}
    /// Whether limits and pauses of background work are the scheduler's business.
    fn overrides_limits(&self) -> bool {
        false
    }
    /// Which scheduler it is to be. That is decided before the OSD has anything to do; later
    /// nothing changes.
    fn choose(&mut self, _: &conf::Config) {}
    /// The configuration has changed.
    fn configure(&mut self, _: &conf::Config, _: Instant) {}
}

/// First come, first served: for tests.
pub struct Fifo<R>(VecDeque<Work<R>>);

impl<R> Default for Fifo<R> {
    fn default() -> Self {
        Fifo(VecDeque::new())
    }
}

impl<R> Queue<R> for Fifo<R> {
    fn enqueue(&mut self, work: Work<R>, _: Instant) {
        self.0.push_back(work);
    }

    fn dequeue(&mut self, _: Instant) -> Next<R> {
        self.0.pop_front().map_or(Next::Empty, |work| Next::Work(work, Receipt::default()))
    }

    fn take_out(&mut self, gone: &dyn Fn(&R) -> bool, _: Instant) -> Vec<Rc<R>> {
        let mut out = Vec::new();
        self.0.retain(|work| match work {
            Work::Client(op) if gone(op) => {
                out.push(op.clone());
                false
            }
            _ => true,
        });
        out
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn name(&self) -> &'static str {
        "fifo"
    }
}
