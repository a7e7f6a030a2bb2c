//! Changes on their way to a commit, and which commits subscribers were told of.

use crate::state::{ClusterState, Pending};
use bytes::Bytes;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use tokio::sync::Notify;
use types::Utime;

/// A batch was not committed: this monitor is not the leader any more, or stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the change was not committed")]
pub struct NotCommitted;

pub(super) type Waiter = Box<dyn FnOnce(Result<(), NotCommitted>)>;

pub(crate) struct Proposer {
    pub pending: RefCell<Pending>,
    /// Number of the open batch.
    pub open: Cell<u64>,
    /// Number of the last batch that was committed or given up.
    pub done: Cell<u64>,
    pub waiters: RefCell<Vec<(u64, Waiter)>>,
    pub wake: Notify,
    /// A batch is on its way.
    pub in_flight: Cell<bool>,
    /// No batch is on its way any more.
    pub idle: Notify,
}

impl Proposer {
    pub fn new(state: ClusterState, now: Utime) -> Self {
        Proposer {
            pending: RefCell::new(Pending::new(state, now)),
            open: Cell::new(1),
            done: Cell::new(0),
            waiters: RefCell::default(),
            wake: Notify::new(),
            in_flight: Cell::new(false),
            idle: Notify::new(),
        }
    }

    /// Touches the open batch, which goes on as it was otherwise.
    pub fn with_pending(&self, f: impl FnOnce(&mut Pending)) {
        f(&mut self.pending.borrow_mut());
    }
}

/// Versions that were published last: what did not change needs no look at the sessions.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Published {
    pub osd: u32,
    pub mon: u32,
    pub mgr: u32,
    pub fs: u32,
    pub service: u32,
    pub config: u64,
    /// Of a movement job, which OSDs are told as a setting.
    pub ceiling: Option<u64>,
    pub kv: u64,
    pub log: u64,
    pub auth: (u64, u64),
    /// Full OSD maps by epoch and significant features, so that a thousand subscribers cost one
    /// encoding.
    pub full_cache: BTreeMap<(u32, u64), Bytes>,
}
