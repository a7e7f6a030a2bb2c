//! How long clients' operations take on all OSDs together, stretch by stretch.

use pgmap::ClientLatency;
use qos::Latencies;

/// A stretch lasts so many seconds at least,
const STRETCH: f64 = 5.0;
/// and has so many operations: the highest of a hundred has to be among them,
const ENOUGH: u64 = 200;
/// or lasts so many seconds.
const LONG: f64 = 15.0;

/// Counts what OSDs report.
#[derive(Default)]
pub struct Clients {
    seen: Latencies,
    since: f64,
    last: ClientLatency,
}

impl Clients {
    /// An OSD tells of operations since its last report.
    pub fn take(&mut self, bins: &[u32]) {
        self.seen.add_bins(bins);
    }

    /// What the last whole stretch had. One is over if it is time; its number is that time, so that
    /// a manager that takes over does not repeat one.
    pub fn measured(&mut self, now: f64) -> ClientLatency {
        // A clock that was set back begins anew.
        if self.since == 0.0 || now < self.since {
            self.since = now;
        }
        let length = now - self.since;
        if length >= LONG || length >= STRETCH && self.seen.count() >= ENOUGH {
            let micros = |nanos: u64| nanos.div_ceil(1000);
            self.last = ClientLatency {
                number: (now * 1000.0) as u64,
                count: self.seen.count(),
                p99: self.seen.at(99.0).map_or(0, micros),
            };
            self.seen.clear();
            self.since = now;
        }
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stretch_ends_when_it_has_enough() {
        let mut c = Clients::default();
        let mut osd = Latencies::default();
        (0..190).for_each(|_| osd.add(1_000_000));
        (0..10).for_each(|_| osd.add(80_000_000));
        assert_eq!(c.measured(100.0), ClientLatency::default());
        c.take(osd.bins());
        assert_eq!(c.measured(104.0).number, 0, "too short");
        let first = c.measured(105.0);
        assert_eq!((first.number, first.count), (105_000, 200));
        assert!(first.p99.abs_diff(80_000) < 10_000, "{first:?}");
        // Few operations: it lasts longer. None: it is said that there are none.
        (0..20).for_each(|_| c.take(&[0, 1]));
        assert_eq!(c.measured(115.0), first);
        let second = c.measured(120.0);
        assert_eq!((second.number, second.count, second.p99), (120_000, 20, 2));
        assert_eq!(c.measured(135.0).count, 0);
        assert_eq!(c.measured(1.0).number, 135_000, "the clock was set back");
        assert_eq!(c.measured(16.0).number, 16_000);
    }
}
