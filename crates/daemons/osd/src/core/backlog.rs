//! Transactions on their way into the store.

use super::health::Health;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use store::{Commit, StatFs, Store, StoreError, Transaction};
use tokio::sync::Notify;

/// Called with the outcome of a transaction.
type Done = Box<dyn FnOnce(Result<(), StoreError>)>;

/// The store, and what it could not take yet.
pub(crate) struct Backlog {
    store: Rc<Store>,
    health: Rc<Health>,
    /// Transactions that wait, in order.
    waiting: RefCell<VecDeque<(Transaction, Done)>>,
    /// What they write: space that is as good as used.
    bytes: Cell<u64>,
    /// Notified when nothing waits any more.
    flows: Notify,
}

impl Backlog {
    /// Nothing waits.
    pub(crate) fn new(store: Rc<Store>, health: Rc<Health>) -> Rc<Self> {
        Rc::new(Backlog {
            store,
            health,
            waiting: RefCell::default(),
            bytes: Cell::new(0),
            flows: Notify::new(),
        })
    }

    /// Applies a transaction and calls `done` when it is durable. Transactions take effect in the
    /// order of the calls. When the OSD has failed, nothing is applied any more: a transaction that
    /// follows one that was refused would be there without it.
    pub(crate) fn submit(
        self: &Rc<Self>,
        txn: Transaction,
        done: impl FnOnce(Result<(), StoreError>) + 'static,
    ) {
        if let Some(why) = self.health.failed() {
            return done(Err(StoreError::Failed(why)));
        }
        if self.waiting.borrow().is_empty() && !self.store.congested() {
            match self.store.submit(txn) {
                Ok(commit) => return commit.then(done),
                Err(e) => return done(Err(e)),
            }
        }
        let first = {
            let mut waiting = self.waiting.borrow_mut();
            self.bytes.set(self.bytes.get() + txn.room());
            waiting.push_back((txn, Box::new(done)));
            waiting.len() == 1
        };
        if first {
            tokio::task::spawn_local(self.clone().drain());
        }
    }

    /// Whether transactions wait for the store. What they change cannot be read yet, so nothing may
    /// be executed meanwhile.
    pub(crate) fn is_stalled(&self) -> bool {
        !self.waiting.borrow().is_empty()
    }

    /// Waits, if transactions wait for the store, until those are in it. A request does this when
    /// it has its place in the order of its object: then what is there is what all before it have
    /// made of it. It keeps its place in the admission window, so that a store that cannot follow
    /// does not empty the scheduler. It goes on even if transactions wait again by then: those are
    /// about other objects, and while others write there might always be some.
    pub(crate) async fn store_takes(&self) {
        if self.is_stalled() {
            self.flows.notified().await;
        }
    }

    /// Waits while transactions wait for the store, whatever they are about.
    pub(crate) async fn store_flows(&self) {
        while self.is_stalled() {
            let mut flows = std::pin::pin!(self.flows.notified());
            flows.as_mut().enable();
            if self.is_stalled() {
                flows.await;
            }
        }
    }

    /// The store takes nothing until [`Backlog::flow`].
    #[cfg(test)]
    pub(crate) fn stall(&self) {
        self.waiting.borrow_mut().push_back((Transaction::new(), Box::new(|_| ())));
    }

    /// Transactions that wait for the store.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.waiting.borrow().len()
    }

    /// See [`Backlog::stall`].
    #[cfg(test)]
    pub(crate) fn flow(self: &Rc<Self>) {
        tokio::task::spawn_local(self.clone().drain());
    }

    /// When the store has room, all that waits goes in together, though that be more than a
    /// checkpoint's pace allows at that moment, and then requests that wait to be executed go on.
    /// One at a time, what others send would keep these waiting for ever. How much it is, is
    /// bounded by the admission windows of all OSDs.
    async fn drain(self: Rc<Self>) {
        while self.is_stalled() {
            if let Err(e) = self.store.admit().await {
                self.health.fail(format!("the store does not take transactions: {e}"));
                return;
            }
            while let Some((txn, done)) = self.next() {
                if let Some(why) = self.health.failed() {
                    done(Err(StoreError::Failed(why)));
                    continue;
                }
                let submitted: Result<Commit, StoreError> = self.store.submit(txn);
                match submitted {
                    Ok(commit) => commit.then(done),
                    Err(e) => done(Err(e)),
                }
                if self.store.is_full() {
                    break;
                }
            }
        }
        self.flows.notify_waiters();
    }

    fn next(&self) -> Option<(Transaction, Done)> {
        let next = self.waiting.borrow_mut().pop_front();
        if let Some((txn, _)) = &next {
            self.bytes.set(self.bytes.get() - txn.room());
        }
        next
    }

    /// The store's space, as it will be when what waits for the store is in it.
    pub(crate) fn space(&self) -> StatFs {
        let space = self.store.statfs();
        StatFs { available: space.available.saturating_sub(self.bytes.get()), ..space }
    }
}
