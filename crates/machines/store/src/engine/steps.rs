//! How long a checkpoint has the processor at a time.
//!
//! It lives on the thread that serves clients, and requests that come while it computes wait. So it
//! computes in steps, and lets others run after each. A request that passes several OSDs meets
//! several threads, and each of them several times: were there a step between all that others do,
//! it would wait for as many. So a checkpoint rests after a step. That makes it many times as long:
//! with rests, the last one must have been a small part of the time from one to the next. If it was
//! not, its steps become longer, up to some times as long; and if that is not enough, or something
//! waits for its end, or writers catch up with it, it does not rest. It takes the longest steps
//! then: all others have a turn after each, so that it would get little of a busy processor with
//! short ones.

use crate::options::Options;
use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::time::{Duration, Instant};

/// A step is at most so many times as long, and is that where there is no time to rest.
const HURRIED: u32 = 4;
/// The part of the time that work may be under way, to rest: one of so many. Writers have room for
/// about twice that while it is.
const UNDER_WAY: u32 = 4;

/// The pace of a checkpoint on its thread.
pub(super) struct Steps {
    step: Duration,
    rest: Duration,
    /// When the work was given the processor, and for how long it had had that since it rested.
    since: Cell<Instant>,
    had: Cell<Duration>,
    /// When the work began, and for how long it has had it since.
    began: Cell<Instant>,
    spent: Cell<Duration>,
    /// How long its steps are if it rests; none if it is too often for that.
    affordable: Cell<Option<Duration>>,
    /// Callers that wait until the work is done.
    awaited: Cell<u32>,
}

/// Something waits for the work.
pub(super) struct Awaited<'a>(&'a Steps);

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        self.0.awaited.set(self.0.awaited.get() - 1);
    }
}

impl Steps {
    pub(super) fn new(opts: &Options) -> Steps {
        let (step, rest) =
            (Duration::from_micros(opts.step_us), Duration::from_micros(opts.rest_us));
        let now = || Cell::new(Instant::now());
        Steps {
            step,
            rest,
            since: now(),
            had: Cell::default(),
            began: now(),
            spent: Cell::default(),
            affordable: Cell::default(),
            awaited: Cell::new(0),
        }
    }

    /// Does work that breathes.
    pub(super) async fn run<F: Future>(&self, work: F) -> F::Output {
        let mut work = pin!(work);
        let before = self.began.replace(Instant::now()).elapsed();
        self.affordable.set(self.affordable(self.spent.take(), before));
        poll_fn(|cx| {
            self.since.set(Instant::now());
            let done = work.as_mut().poll(cx);
            // It may wait for the device more often than it breathes.
            let had = self.since.get().elapsed();
            self.had.set(self.had.get() + had);
            self.spent.set(self.spent.get() + had);
            done
        })
        .await
    }

    /// The steps in which work that has the processor for so long, once in so long, is only a small
    /// part of the time under way, with its rests.
    fn affordable(&self, spent: Duration, every: Duration) -> Option<Duration> {
        let nanos = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        let rests = nanos((every / UNDER_WAY).checked_sub(spent)?) / nanos(self.rest).max(1);
        // Nothing is known of the first one.
        let wanted = if spent.is_zero() { 0 } else { nanos(spent).checked_div(rests)? };
        let step = self.step.max(Duration::from_nanos(wanted));
        (step <= self.step * HURRIED).then_some(step)
    }

    /// Until this is dropped, the work does not rest.
    pub(super) fn awaited(&self) -> Awaited<'_> {
        self.awaited.set(self.awaited.get() + 1);
        Awaited(self)
    }

    /// Lets others run if the work has had the processor for a step. Whether there is time to rest
    /// is asked only then.
    pub(super) async fn breathe(&self, has_time: impl FnOnce() -> bool) {
        let had = self.had.get() + self.since.get().elapsed();
        if had < self.step {
            return;
        }
        match self.affordable.get().filter(|_| !self.rest.is_zero() && self.awaited.get() == 0) {
            Some(step) if had < step => return,
            Some(_) if has_time() => tokio::time::sleep(self.rest).await,
            _ if had >= self.step * HURRIED => tokio::task::yield_now().await,
            _ => return,
        }
        self.had.set(Duration::ZERO);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_much_to_do_takes_longer_steps_or_does_not_rest() {
        let s = Steps::new(&Options { step_us: 50, rest_us: 1000, ..Options::default() });
        let (ms, us) = (Duration::from_millis, Duration::from_micros);
        // 20 ms in 400 steps are 420 ms with rests, and may come every 1,680.
        assert_eq!(s.affordable(ms(20), ms(1680)), Some(us(50)));
        assert_eq!(s.affordable(ms(20), ms(880)), Some(us(100)));
        assert_eq!(s.affordable(ms(20), ms(480)), Some(us(200)));
        assert_eq!(s.affordable(ms(20), ms(476)), None);
        assert_eq!(s.affordable(ms(20), ms(80)), None);
        assert_eq!(s.affordable(ms(20), ms(0)), None);
        assert_eq!(s.affordable(ms(0), ms(0)), Some(us(50)), "nothing is known");
        assert_eq!(s.affordable(Duration::from_secs(1 << 40), Duration::from_secs(1 << 41)), None);
        // Without rests it is never long.
        let s = Steps::new(&Options { step_us: 0, rest_us: 0, ..Options::default() });
        assert_eq!((s.affordable(ms(1), ms(400)), s.affordable(ms(2), ms(4))), (Some(ms(0)), None));
    }
}
