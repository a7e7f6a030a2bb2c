//! How a socket's task is woken, and how much of what it read may lie around.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Poll, Waker};

/// Wakes one task from the same thread.
#[derive(Debug, Default)]
pub(super) struct Wake {
    set: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Wake {
    pub fn wake(&self) {
        self.set.set(true);
        if let Some(w) = self.waker.take() {
            w.wake();
        }
    }

    /// Ready if [`Self::wake`] was called since the last time it was ready.
    pub fn poll(&self, cx: &mut std::task::Context<'_>) -> Poll<()> {
        if self.set.take() {
            return Poll::Ready(());
        }
        self.waker.replace(Some(cx.waker().clone()));
        Poll::Pending
    }
}

/// Counts the bytes of messages that a dispatcher has not released. It cannot make the sender wait
/// for a message of which a part was read already, so it is a threshold: reading stops above it.
#[derive(Debug)]
pub(super) struct Throttle {
    held: Cell<usize>,
    limit: usize,
    wake: Rc<Wake>,
}

impl Throttle {
    pub fn new(limit: usize, wake: Rc<Wake>) -> Rc<Self> {
        Rc::new(Throttle { held: Cell::new(0), limit, wake })
    }

    pub fn is_open(&self) -> bool {
        self.held.get() < self.limit
    }

    pub fn take(self: &Rc<Self>, bytes: usize) -> ReceiveGuard {
        self.held.set(self.held.get() + bytes);
        ReceiveGuard { bytes, throttle: Some(self.clone()) }
    }
}

/// Holds a received message's bytes against its connection's receive throttle until it is dropped.
#[derive(Debug, Default)]
pub struct ReceiveGuard {
    bytes: usize,
    throttle: Option<Rc<Throttle>>,
}

impl Drop for ReceiveGuard {
    fn drop(&mut self) {
        let Some(t) = &self.throttle else { return };
        let was_open = t.is_open();
        t.held.set(t.held.get() - self.bytes);
        if !was_open && t.is_open() {
            t.wake.wake();
        }
    }
}
