//! How long operations waited.

/// How long operations waited: numbers by powers of two of microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits([u32; 32]);

impl Waits {
    /// Counts one.
    pub fn add(&mut self, nanos: u64) {
        let bucket = (u64::BITS - (nanos / 1000).leading_zeros()).min(31) as usize;
        self.0[bucket] = self.0[bucket].wrapping_add(1);
    }

    /// Those that are not 0, and what lies before.
    pub(crate) fn used(&self) -> &[u32] {
        let used = self.0.iter().rposition(|n| *n > 0).map_or(0, |last| last + 1);
        &self.0[..used]
    }

    /// Those that came since another time.
    pub(crate) fn since(&self, before: &Waits) -> Waits {
        let mut since = *self;
        since.0.iter_mut().zip(before.0).for_each(|(n, before)| *n = n.wrapping_sub(before));
        since
    }

    /// Below how many microseconds this part of them waited, if there are any.
    pub(crate) fn quantile(&self, part: f64) -> Option<f64> {
        let all: f64 = self.0.iter().map(|n| f64::from(*n)).sum();
        let mut below = 0.0;
        for (n, count) in self.0.iter().enumerate().filter(|(_, count)| **count > 0) {
            let count = f64::from(*count);
            if below + count >= part * all {
                // Bucket n ends at 2^n, and the first begins at 0.
                let (from, to) =
                    (if n == 0 { 0.0 } else { 2f64.powi(n as i32 - 1) }, 2f64.powi(n as i32));
                return Some((from + (to - from) * (part * all - below) / count).round());
            }
            below += count;
        }
        None
    }
}
