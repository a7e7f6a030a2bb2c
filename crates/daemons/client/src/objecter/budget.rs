//! How much may be under way at a time.

use std::cell::Cell;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Bounds of an objecter's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests in flight (`objecter_inflight_ops`).
    pub ops: usize,
    /// Their data, written or to be read, in bytes (`objecter_inflight_op_bytes`).
    pub bytes: usize,
}

impl Limits {
    /// Ceph's limits.
    pub const DEFAULT: Limits = Limits { ops: 1024, bytes: 100 << 20 };
}

impl Default for Limits {
    fn default() -> Self {
        Limits::DEFAULT
    }
}

/// What a request in flight occupies; free again when dropped.
pub(super) struct Share<'a> {
    _op: SemaphorePermit<'a>,
    _bytes: SemaphorePermit<'a>,
}

/// The room that is left. Requests get theirs in the order in which they asked.
pub(super) struct Budget {
    limits: Cell<Limits>,
    ops: Semaphore,
    bytes: Semaphore,
}

impl Budget {
    pub(super) fn new(limits: Limits) -> Self {
        let limits = within(limits);
        Budget {
            limits: Cell::new(limits),
            ops: Semaphore::new(limits.ops),
            bytes: Semaphore::new(limits.bytes),
        }
    }

    /// Waits for room. A request larger than all the room gets all of it.
    pub(super) async fn take(&self, bytes: usize) -> Option<Share<'_>> {
        let op = self.ops.acquire().await.ok()?;
        let bytes = u32::try_from(bytes.min(self.limits.get().bytes)).unwrap_or(u32::MAX);
        let bytes = self.bytes.acquire_many(bytes).await.ok()?;
        Some(Share { _op: op, _bytes: bytes })
    }

    /// Nothing begins any more.
    pub(super) fn close(&self) {
        self.ops.close();
        self.bytes.close();
    }
}

/// At least one request of one byte, and no more than can be counted.
fn within(limits: Limits) -> Limits {
    Limits {
        ops: limits.ops.clamp(1, u32::MAX as usize >> 4),
        bytes: limits.bytes.clamp(1, u32::MAX as usize),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn requests_wait_in_order_and_a_large_one_gets_all_the_room() {
        let budget = Budget::new(Limits { ops: 2, bytes: 100 });
        let Poll::Ready(first) = poll(pin!(budget.take(60))) else { panic!() };
        let mut large = pin!(budget.take(1 << 40));
        assert!(poll(large.as_mut()).is_pending());
        let mut third = pin!(budget.take(1));
        assert!(poll(third.as_mut()).is_pending(), "two requests are there");
        drop(first);
        let Poll::Ready(share) = poll(large.as_mut()) else { panic!() };
        assert!(poll(third.as_mut()).is_pending(), "all the room is taken");
        drop(share);
        assert!(poll(third.as_mut()).is_ready());
    }

    #[test]
    fn a_dropped_request_leaves_no_hole() {
        let budget = Budget::new(Limits { ops: 1, bytes: 10 });
        let Poll::Ready(first) = poll(pin!(budget.take(10))) else { panic!() };
        {
            let mut gone = pin!(budget.take(10));
            assert!(poll(gone.as_mut()).is_pending());
        }
        let mut next = pin!(budget.take(10));
        assert!(poll(next.as_mut()).is_pending());
        drop(first);
        let Poll::Ready(Some(_)) = poll(next.as_mut()) else { panic!() };
        budget.close();
        assert!(matches!(poll(pin!(budget.take(1))), Poll::Ready(None)));
    }
}
