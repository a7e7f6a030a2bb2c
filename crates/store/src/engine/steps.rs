//! How long a checkpoint has the processor at a time.
//!
//! It lives on the thread that serves clients, and who comes while it computes waits. So it computes in steps, and lets others
//! run after each. A request that passes several OSDs meets several threads, and each of them several times: were there a step between all that
//! others do, it would wait for as many. So a checkpoint rests after a step, except if somebody waits for it, or writers catch up with it. Then it takes
//! longer steps without a rest: all others have a turn after each, so that it would get little of a busy processor with short ones.

use crate::options::Options;
use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::time::{Duration, Instant};

/// So many steps are one where there is no time to rest.
const HURRIED: u32 = 4;

/// See the module.
pub(super) struct Steps {
    step: Duration,
    rest: Duration,
    /// When the work was given the processor, and for how long it had had that since it rested.
    since: Cell<Instant>,
    had: Cell<Duration>,
    /// Callers that wait until the work is done.
    awaited: Cell<u32>,
}

/// Somebody waits for the work.
pub(super) struct Awaited<'a>(&'a Steps);

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        self.0.awaited.set(self.0.awaited.get() - 1);
    }
}

impl Steps {
    pub(super) fn new(opts: &Options) -> Steps {
        let (step, rest) = (Duration::from_micros(opts.step_us), Duration::from_micros(opts.rest_us));
        Steps { step, rest, since: Cell::new(Instant::now()), had: Cell::default(), awaited: Cell::new(0) }
    }

    /// Does work that breathes.
    pub(super) async fn run<F: Future>(&self, work: F) -> F::Output {
        let mut work = pin!(work);
        poll_fn(|cx| {
            self.since.set(Instant::now());
            let done = work.as_mut().poll(cx);
            // It may wait for the device more often than it breathes.
            self.had.set(self.had.get() + self.since.get().elapsed());
            done
        })
        .await
    }

    /// Until this is dropped, the work does not rest.
    pub(super) fn awaited(&self) -> Awaited<'_> {
        self.awaited.set(self.awaited.get() + 1);
        Awaited(self)
    }

    /// Lets others run if the work has had the processor for a step. Whether there is time to rest is asked only then.
    pub(super) async fn breathe(&self, has_time: impl FnOnce() -> bool) {
        let had = self.had.get() + self.since.get().elapsed();
        if had < self.step {
            return;
        }
        if !self.rest.is_zero() && self.awaited.get() == 0 && has_time() {
            tokio::time::sleep(self.rest).await;
        } else if had >= self.step * HURRIED {
            tokio::task::yield_now().await;
        } else {
            return;
        }
        self.had.set(Duration::ZERO);
    }
}
