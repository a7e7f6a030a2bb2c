//! What the library runs on in tests: tokio, or the simulation of this thread if there is one.

use super::exec::{self, Timer};
use openraft::{AsyncRuntime, OptionalSend, TokioRuntime};
use std::fmt;
use std::future::Future;
use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::pin::Pin;
use std::sync::OnceLock;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::oneshot;

/// The library's runtime, over the tasks and timers of a run.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Runtime;

/// Why a task has no result.
#[derive(Debug)]
pub enum Ended {
    Tokio(tokio::task::JoinError),
    Dropped,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ended::Tokio(e) => e.fmt(f),
            Ended::Dropped => f.write_str("the task was dropped"),
        }
    }
}

impl std::error::Error for Ended {}

pub enum Join<T> {
    Tokio(tokio::task::JoinHandle<T>),
    Simulated(oneshot::Receiver<T>),
}

impl<T> Future for Join<T> {
    type Output = Result<T, Ended>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Join::Tokio(h) => Pin::new(h).poll(cx).map_err(Ended::Tokio),
            Join::Simulated(r) => Pin::new(r).poll(cx).map_err(|_| Ended::Dropped),
        }
    }
}

pub enum Sleep {
    Tokio(Pin<Box<tokio::time::Sleep>>),
    Simulated(Timer),
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match self.get_mut() {
            Sleep::Tokio(s) => s.as_mut().poll(cx),
            Sleep::Simulated(t) => Pin::new(t).poll(cx),
        }
    }
}

/// It took too long.
#[derive(Debug)]
pub struct Elapsed;

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it took too long")
    }
}

impl std::error::Error for Elapsed {}

pub struct Timeout<F> {
    future: Pin<Box<F>>,
    sleep: Sleep,
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, Elapsed>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if let Poll::Ready(done) = this.future.as_mut().poll(cx) {
            return Poll::Ready(Ok(done));
        }
        Pin::new(&mut this.sleep).poll(cx).map(|()| Err(Elapsed))
    }
}

/// A moment in the time that passes here: since the process began, or since the simulation did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(Duration);

/// Moments before the beginning are asked for, too.
const BEFORE: Duration = Duration::from_secs(3600);

impl Moment {
    pub fn now() -> Self {
        static FIRST: OnceLock<std::time::Instant> = OnceLock::new();
        let passed = exec::here().map(|e| e.now());
        Moment(
            BEFORE + passed.unwrap_or_else(|| FIRST.get_or_init(std::time::Instant::now).elapsed()),
        )
    }

    pub fn elapsed(&self) -> Duration {
        Self::now() - *self
    }
}

impl openraft::Instant for Moment {
    fn now() -> Self {
        Moment::now()
    }
}

impl Add<Duration> for Moment {
    type Output = Self;
    fn add(self, d: Duration) -> Self {
        Moment(self.0 + d)
    }
}

impl AddAssign<Duration> for Moment {
    fn add_assign(&mut self, d: Duration) {
        self.0 += d;
    }
}

impl Sub<Duration> for Moment {
    type Output = Self;
    fn sub(self, d: Duration) -> Self {
        Moment(self.0 - d)
    }
}

impl SubAssign<Duration> for Moment {
    fn sub_assign(&mut self, d: Duration) {
        self.0 -= d;
    }
}

impl Sub for Moment {
    type Output = Duration;
    fn sub(self, other: Self) -> Duration {
        self.0.saturating_sub(other.0)
    }
}

/// Random numbers: the simulation's, or any.
pub struct Dice;

impl rand_core::RngCore for Dice {
    fn next_u32(&mut self) -> u32 {
        self.next_u64() as u32
    }

    fn next_u64(&mut self) -> u64 {
        exec::here().map_or_else(rand::random, |e| e.rng.borrow_mut().next())
    }

    fn fill_bytes(&mut self, out: &mut [u8]) {
        for chunk in out.chunks_mut(8) {
            chunk.copy_from_slice(&self.next_u64().to_le_bytes()[..chunk.len()]);
        }
    }

    fn try_fill_bytes(&mut self, out: &mut [u8]) -> Result<(), rand_core::Error> {
        self.fill_bytes(out);
        Ok(())
    }
}

impl AsyncRuntime for Runtime {
    type JoinError = Ended;
    type JoinHandle<T: OptionalSend + 'static> = Join<T>;
    type Sleep = Sleep;
    type Instant = Moment;
    type TimeoutError = Elapsed;
    type Timeout<R, T: Future<Output = R> + OptionalSend> = Timeout<T>;
    type ThreadLocalRng = Dice;
    type OneshotSender<T: OptionalSend> = <TokioRuntime as AsyncRuntime>::OneshotSender<T>;
    type OneshotReceiver<T: OptionalSend> = <TokioRuntime as AsyncRuntime>::OneshotReceiver<T>;
    type OneshotReceiverError = <TokioRuntime as AsyncRuntime>::OneshotReceiverError;

    fn spawn<T>(future: T) -> Join<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        match exec::here() {
            Some(e) => Join::Simulated(e.spawn_in(e.current(), future)),
            None => Join::Tokio(tokio::task::spawn(future)),
        }
    }

    fn sleep(duration: Duration) -> Sleep {
        match exec::here() {
            Some(e) => Sleep::Simulated(Timer::new(&e, e.now() + duration)),
            None => Sleep::Tokio(Box::pin(tokio::time::sleep(duration))),
        }
    }

    fn sleep_until(deadline: Moment) -> Sleep {
        Self::sleep(deadline - Moment::now())
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(
        duration: Duration,
        future: F,
    ) -> Timeout<F> {
        Timeout { future: Box::pin(future), sleep: Self::sleep(duration) }
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(
        deadline: Moment,
        future: F,
    ) -> Timeout<F> {
        Timeout { future: Box::pin(future), sleep: Self::sleep_until(deadline) }
    }

    fn is_panic(e: &Ended) -> bool {
        matches!(e, Ended::Tokio(e) if e.is_panic())
    }

    fn thread_rng() -> Dice {
        Dice
    }

    fn oneshot<T: OptionalSend>() -> (Self::OneshotSender<T>, Self::OneshotReceiver<T>) {
        TokioRuntime::oneshot()
    }
}

/// Runs what blocks, while the thread goes on: it takes as long as the disk of the process does.
pub async fn blocking<T: Send + 'static>(
    f: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Ended> {
    let time = exec::here().map(|e| super::disk::flush_time(e.current()));
    match time {
        Some(time) => {
            Runtime::sleep(time).await;
            Ok(super::disk::flushing(f))
        }
        None => tokio::task::spawn_blocking(f).await.map_err(Ended::Tokio),
    }
}
