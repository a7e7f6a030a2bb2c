//! The token of a submitted transaction.

use crate::error::StoreError;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

type Callback = Box<dyn FnOnce(Result<(), StoreError>)>;

/// Resolves when its transaction is durable. Cheap to make, to drop and to clone; dropping it
/// changes nothing.
///
/// Either await it or give it a callback. Both are answered in the order of submission.
#[derive(Clone)]
pub struct Commit {
    seq: u64,
    line: Rc<CommitLine>,
}

impl Commit {
    /// The position of the transaction in the order of submission, counted from 1 since the store
    /// was opened.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// True when the transaction is durable.
    pub fn is_durable(&self) -> bool {
        self.line.durable.get() >= self.seq
    }

    /// Calls `f` when the transaction is durable or has failed; at once if that is so already. The
    /// callback may submit further transactions.
    pub fn then(self, f: impl FnOnce(Result<(), StoreError>) + 'static) {
        if let Some(result) = self.line.state(self.seq) {
            f(result);
        } else {
            self.line.insert(self.seq, Waiter::Call(Box::new(f)));
        }
    }
}

impl std::fmt::Debug for Commit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Commit")
            .field("seq", &self.seq)
            .field("durable", &self.is_durable())
            .finish()
    }
}

impl Future for Commit {
    type Output = Result<(), StoreError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.line.state(self.seq) {
            Some(result) => Poll::Ready(result),
            None => {
                self.line.insert(self.seq, Waiter::Wake(cx.waker().clone()));
                Poll::Pending
            }
        }
    }
}

enum Waiter {
    Wake(Waker),
    Call(Callback),
}

/// The callers that wait for transactions to become durable.
#[derive(Default)]
pub(crate) struct CommitLine {
    submitted: Cell<u64>,
    durable: Cell<u64>,
    failed: RefCell<Option<StoreError>>,
    /// Ordered by sequence.
    waiters: RefCell<VecDeque<(u64, Waiter)>>,
}

impl CommitLine {
    pub(crate) fn new() -> Rc<CommitLine> {
        Rc::default()
    }

    /// The token for the next transaction.
    pub(crate) fn next(self: &Rc<Self>) -> Commit {
        self.submitted.set(self.submitted.get() + 1);
        Commit { seq: self.submitted.get(), line: self.clone() }
    }

    pub(crate) fn submitted(&self) -> u64 {
        self.submitted.get()
    }

    pub(crate) fn durable(&self) -> u64 {
        self.durable.get()
    }

    /// A token for what has been submitted so far.
    pub(crate) fn last(self: &Rc<Self>) -> Commit {
        Commit { seq: self.submitted.get(), line: self.clone() }
    }

    /// Everything up to `seq` is durable.
    pub(crate) fn advance(&self, seq: u64) {
        debug_assert!(seq <= self.submitted.get());
        if seq <= self.durable.get() {
            return;
        }
        self.durable.set(seq);
        // A callback may come back into this queue, so that it is not borrowed while one runs.
        loop {
            let next = {
                let mut waiters = self.waiters.borrow_mut();
                match waiters.front() {
                    Some((s, _)) if *s <= seq => waiters.pop_front(),
                    _ => None,
                }
            };
            match next {
                Some((_, Waiter::Wake(w))) => w.wake(),
                Some((_, Waiter::Call(f))) => f(Ok(())),
                None => break,
            }
        }
    }

    /// Nothing more will become durable.
    pub(crate) fn fail(&self, e: StoreError) {
        self.failed.borrow_mut().get_or_insert(e.clone());
        let waiters = std::mem::take(&mut *self.waiters.borrow_mut());
        for (_, w) in waiters {
            match w {
                Waiter::Wake(w) => w.wake(),
                Waiter::Call(f) => f(Err(e.clone())),
            }
        }
    }

    fn state(&self, seq: u64) -> Option<Result<(), StoreError>> {
        if self.durable.get() >= seq {
            return Some(Ok(()));
        }
        self.failed.borrow().clone().map(Err)
    }

    fn insert(&self, seq: u64, w: Waiter) {
        let mut waiters = self.waiters.borrow_mut();
        if let Waiter::Wake(new) = &w {
            let same = |(s, old): &&(u64, Waiter)| {
                *s == seq && matches!(old, Waiter::Wake(o) if o.will_wake(new))
            };
            if waiters.iter().rev().take_while(|(s, _)| *s >= seq).any(|w| same(&w)) {
                return;
            }
        }
        // Nearly always the newest one, so that this is a push at the end.
        let at = waiters.iter().rposition(|(s, _)| *s <= seq).map_or(0, |i| i + 1);
        waiters.insert(at, (seq, w));
    }
}
