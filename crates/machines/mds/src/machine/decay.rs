//! Counts of what happened lately.

use crate::conf::SECOND;
use crate::types::Steady;

/// Half-life of what limits how fast the requests follow each other, in seconds.
pub(crate) const BURST_RATE: f64 = 0.5;

/// A count that halves itself.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Decay {
    value: f64,
    at: Steady,
}

impl Decay {
    /// Now, with a half-life in seconds.
    pub fn get(self, now: Steady, half_life: f64) -> f64 {
        let seconds = now.saturating_sub(self.at) as f64 / SECOND as f64;
        self.value * (-seconds / half_life.max(0.001)).exp2()
    }

    /// Counts so many more, and not below 0.
    pub fn hit(&mut self, count: f64, now: Steady, half_life: f64) {
        self.value = (self.get(now, half_life) + count).max(0.0);
        self.at = now;
    }
}

/// What a client was asked for lately: by two counts that limit how fast the requests follow each
/// other, and in all.
#[derive(Clone, Default, Debug)]
pub(crate) struct Recalls {
    pub throttle: Decay,
    pub burst: Decay,
    /// What it was asked for and did not give back.
    pub missing: Decay,
    /// How often it used capabilities.
    pub liveness: Decay,
    /// Since when it has more than it may.
    pub over_since: Option<Steady>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_halves_itself() {
        let mut count = Decay::default();
        count.hit(100.0, 5 * SECOND, 2.0);
        assert!((count.get(7 * SECOND, 2.0) - 50.0).abs() < 0.001);
        count.hit(-80.0, 7 * SECOND, 2.0);
        assert_eq!(count.get(7 * SECOND, 2.0), 0.0);
        count.hit(8.0, 9 * SECOND, 2.0);
        assert!((count.get(13 * SECOND, 2.0) - 2.0).abs() < 0.001);
    }
}
