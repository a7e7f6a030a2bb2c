//! How long operations took.

/// Latencies, told apart by an eighth.
#[derive(Clone, Debug)]
pub struct Latencies {
    bins: [u32; Latencies::BINS],
    count: u64,
}

impl Default for Latencies {
    fn default() -> Self {
        Latencies { bins: [0; Latencies::BINS], count: 0 }
    }
}

impl Latencies {
    /// Eight for each power of two of microseconds, up to more than an hour.
    const BINS: usize = 8 * 32;

    /// Counts one, in nanoseconds.
    #[inline]
    pub fn add(&mut self, nanos: u64) {
        // In eighths of a microsecond, so that the smallest bin is one.
        let n = (nanos / 125).max(8);
        let power = n.ilog2() - 3;
        let bin = (power as usize * 8 + (n >> power) as usize - 8).min(Latencies::BINS - 1);
        self.bins[bin] = self.bins[bin].saturating_add(1);
        self.count += 1;
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The middle of the bin in which a percentile is, in nanoseconds.
    pub fn at(&self, percentile: f64) -> Option<u64> {
        let rank =
            ((self.count as f64 * percentile / 100.0).ceil() as u64).clamp(1, self.count.max(1));
        let mut below = 0;
        let bin = self.bins.iter().position(|n| {
            below += u64::from(*n);
            below >= rank
        })?;
        let (power, eighth) = (bin / 8, bin as u64 % 8);
        Some(((8 + eighth) * 2 + 1) * 125 * (1 << power) / 2)
    }

    /// Forgets all of them.
    pub fn clear(&mut self) {
        if self.count > 0 {
            *self = Latencies::default();
        }
    }

    /// The numbers in the bins, without those at the end that are 0.
    pub fn bins(&self) -> &[u32] {
        let used = self.bins.iter().rposition(|n| *n > 0).map_or(0, |last| last + 1);
        &self.bins[..used]
    }

    /// Adds numbers of the same bins; what is beyond the last bin counts there.
    pub fn add_bins(&mut self, bins: &[u32]) {
        for (bin, n) in bins.iter().enumerate() {
            let bin = &mut self.bins[bin.min(Latencies::BINS - 1)];
            *bin = bin.saturating_add(*n);
            self.count = self.count.saturating_add(u64::from(*n));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn percentiles_are_right_within_an_eighth() {
        let mut seen = Latencies::default();
        assert_eq!(seen.at(95.0), None);
        for us in 1..=10_000u64 {
            seen.add(us * 1000);
        }
        for (percentile, us) in [(1.0, 100u64), (50.0, 5000), (95.0, 9500), (99.9, 9990)] {
            let at = seen.at(percentile).unwrap() / 1000;
            assert!(at.abs_diff(us) <= us / 8, "{percentile}: {at}");
        }
        let mut extremes = Latencies::default();
        extremes.add(0);
        extremes.add(u64::MAX);
        assert!(
            extremes.at(1.0).unwrap() < 2000 && extremes.at(100.0).unwrap() > 3_600_000_000_000
        );
    }

    #[test]
    fn numbers_of_others_add_up() {
        let (mut one, mut both) = (Latencies::default(), Latencies::default());
        (0..90).for_each(|_| one.add(2 * MS));
        both.add_bins(one.bins());
        let mut other = Latencies::default();
        (0..10).for_each(|_| other.add(40 * MS));
        both.add_bins(other.bins());
        assert_eq!((both.count(), one.bins().len() < other.bins().len()), (100, true));
        assert!(both.at(90.0).unwrap().abs_diff(2 * MS) <= MS / 4);
        assert!(both.at(91.0).unwrap().abs_diff(40 * MS) <= 5 * MS);
        // More bins than there are, from a peer: bounded.
        both.add_bins(&vec![1; 10_000]);
        assert_eq!((both.count(), both.bins().len()), (10_100, Latencies::BINS));
    }
}
