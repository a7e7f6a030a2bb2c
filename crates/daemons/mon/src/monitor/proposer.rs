//! Putting changes together and proposing them.
//!
//! Changes join the open batch. While a batch is on its way to a commit, the next one collects; it
//! is proposed as soon as the first is through. So an idle monitor answers at the latency of one
//! commit, and a busy one makes few, large batches: a thousand booting OSDs are a handful of map
//! epochs.

use super::Inner;
use super::clock::now;
use super::commits::{NotCommitted, Waiter};
use crate::replica::ProposeError;
use crate::state::{Outcome, Pending};
use denc::{Encode, Features};
use std::rc::Rc;
use tokio::sync::oneshot;

impl Inner {
    /// Adds to the open batch. `then` runs once everything that `change` saw or did is committed;
    /// at once if it already is.
    pub fn change<T: 'static>(
        &self,
        change: impl FnOnce(&mut Pending) -> T,
        then: impl FnOnce(Result<T, NotCommitted>) + 'static,
    ) {
        let p = &self.proposer;
        let (value, dirty) = {
            let mut pending = p.pending.borrow_mut();
            pending.set_now(now());
            let value = change(&mut pending);
            (value, !pending.is_empty())
        };
        let batch = if dirty { p.open.get() } else { p.open.get() - 1 };
        if batch <= p.done.get() {
            return then(Ok(value));
        }
        p.waiters.borrow_mut().push((batch, Box::new(move |r| then(r.map(|()| value)))));
        p.wake.notify_one();
    }

    /// Adds to the open batch, without a wait for the commit.
    pub fn change_and_forget(&self, change: impl FnOnce(&mut Pending)) {
        self.change(change, |_| ());
    }

    /// Adds to the open batch and waits for the commit.
    pub async fn change_async<T: 'static>(
        &self,
        change: impl FnOnce(&mut Pending) -> T,
    ) -> Result<T, NotCommitted> {
        let (tx, rx) = oneshot::channel();
        self.change(change, |r| drop(tx.send(r)));
        rx.await.unwrap_or(Err(NotCommitted))
    }

    fn finish(&self, batch: u64, result: Result<(), NotCommitted>) {
        let p = &self.proposer;
        p.done.set(batch);
        let ready: Vec<Waiter> = {
            let mut waiters = p.waiters.borrow_mut();
            let (ready, wait): (Vec<_>, Vec<_>) =
                std::mem::take(&mut *waiters).into_iter().partition(|(b, _)| *b <= batch);
            *waiters = wait;
            ready.into_iter().map(|(_, w)| w).collect()
        };
        for w in ready {
            w(result);
        }
    }

    /// Waits until no batch is on its way.
    pub async fn proposer_idle(&self) {
        loop {
            let idle = self.proposer.idle.notified();
            if !self.proposer.in_flight.get() {
                return;
            }
            idle.await;
        }
    }

    /// Throws away what was put together, and goes on from the committed state.
    pub fn start_batches_anew(&self) {
        let p = &self.proposer;
        *p.pending.borrow_mut() = Pending::new(self.committed(), now());
        let lost = p.open.get();
        p.open.set(lost + 1);
        self.finish(lost, Err(NotCommitted));
    }

    /// Proposes batches until the monitor stops.
    pub async fn run_proposer(self: Rc<Self>) {
        while !self.stopping.get() {
            self.proposer.wake.notified().await;
            // Whatever else is ready to run may join the batch.
            tokio::task::yield_now().await;
            while !self.proposer.pending.borrow().is_empty() {
                self.before_close();
                let (batch, update) = {
                    let p = &self.proposer;
                    let update = p.pending.borrow_mut().close();
                    let batch = p.open.get();
                    p.open.set(batch + 1);
                    (batch, update)
                };
                let Some(update) = update else {
                    // The changes cancelled each other.
                    self.finish(batch, Ok(()));
                    continue;
                };
                self.proposer.in_flight.set(true);
                let outcome = self.replica.propose(update.to_bytes(Features::ALL)).await;
                self.proposer.in_flight.set(false);
                self.proposer.idle.notify_waiters();
                let result = match outcome {
                    Ok(answer) if Outcome::from_bytes(&answer) == Outcome::Applied => Ok(()),
                    Ok(answer) => {
                        tracing::error!("a batch was refused: {:?}", Outcome::from_bytes(&answer));
                        Err(NotCommitted)
                    }
                    Err(ProposeError::NotLeader { leader }) => {
                        tracing::warn!(?leader, "not the leader any more");
                        Err(NotCommitted)
                    }
                    // The log ends with the monitor, maybe while a batch is under way.
                    Err(_) if self.stopping.get() => Err(NotCommitted),
                    Err(e) => {
                        tracing::error!("{e}");
                        Err(NotCommitted)
                    }
                };
                if result.is_err() {
                    // What was built on the lost batch is lost with it.
                    self.start_batches_anew();
                    if self.stopping.get() {
                        break;
                    }
                    continue;
                }
                self.publish();
                self.finish(batch, Ok(()));
            }
            // Requests that changed nothing may wait for a batch that just finished.
            self.finish(self.proposer.open.get() - 1, Ok(()));
        }
        let last = self.proposer.open.get();
        self.finish(last, Err(NotCommitted));
    }
}
