//! Futures that seldom wait.

use std::task::Waker;

/// Runs a future to its end if it need not wait, otherwise leaves it to the thread's executor. Most
/// operations never wait, and then cost no task.
pub(crate) fn run_now(f: impl Future<Output = ()> + 'static) {
    let mut f = Box::pin(f);
    if f.as_mut().poll(&mut std::task::Context::from_waker(Waker::noop())).is_pending() {
        // It is polled again with the task's waker, whatever woke in between.
        tokio::task::spawn_local(f);
    }
}
