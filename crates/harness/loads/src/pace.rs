//! When the operations of a worker begin.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::time::Duration;
use tokio::time::Instant;

/// The beginnings of one worker's operations.
///
/// In a closed loop an operation begins when the one before it has ended. In an open loop
/// operations have intended beginnings at random distances, whatever the server does; an operation
/// that begins late because of the one before it is measured from its intended beginning, so that
/// a pause of the server counts for all that it delayed.
pub struct Pace {
    open: Option<Open>,
}

struct Open {
    /// Seconds between two beginnings, on average.
    mean: f64,
    /// Since the start of the work.
    next: f64,
    random: StdRng,
}

impl Pace {
    /// A closed loop.
    pub fn closed() -> Pace {
        Pace { open: None }
    }

    /// An open loop of `rate` operations a second, with exponential distances (a Poisson process).
    pub fn open(rate: f64, seed: u64) -> Pace {
        let mut open = Open { mean: 1.0 / rate, next: 0.0, random: StdRng::seed_from_u64(seed) };
        open.step();
        Pace { open: Some(open) }
    }

    /// The beginning of the next operation as time since the start; none in a closed loop.
    pub fn next_beginning(&mut self) -> Option<Duration> {
        let open = self.open.as_mut()?;
        let at = Duration::try_from_secs_f64(open.next).unwrap_or(Duration::MAX);
        open.step();
        Some(at)
    }

    /// Waits for the beginning of the next operation of a work that started at `start`. Latency is
    /// measured from what is returned.
    pub async fn wait(&mut self, start: Instant) -> Instant {
        let Some(at) = self.next_beginning() else { return Instant::now() };
        let intended = start + at;
        tokio::time::sleep_until(intended).await;
        intended
    }
}

impl Open {
    fn step(&mut self) {
        let part: f64 = self.random.random();
        self.next += -(1.0 - part).ln() * self.mean;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_loop_has_its_rate_and_does_not_wait_for_answers() {
        let mut pace = Pace::open(1000.0, 7);
        let times: Vec<f64> =
            (0..20_000).map(|_| pace.next_beginning().unwrap().as_secs_f64()).collect();
        assert!(times.is_sorted());
        let last = times[times.len() - 1];
        assert!((19.0..21.0).contains(&last), "20,000 operations in {last} s");
        // Of exponential distances, one in e is longer than the mean.
        let longer = times.windows(2).filter(|w| w[1] - w[0] > 0.001).count();
        assert!((7000..7700).contains(&longer), "{longer}");
        assert!(Pace::closed().next_beginning().is_none());
    }

    #[tokio::test]
    async fn what_begins_late_is_measured_from_its_intended_beginning() {
        let (mut pace, mut same) = (Pace::open(100.0, 7), Pace::open(100.0, 7));
        // The server stood still for five seconds.
        let start = Instant::now() - Duration::from_secs(5);
        for _ in 0..10 {
            let began = pace.wait(start).await;
            assert_eq!(began, start + same.next_beginning().unwrap());
            assert!(began.elapsed() > Duration::from_secs(4));
        }
    }
}
