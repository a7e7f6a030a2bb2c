//! What a gateway counts of its requests, over all of its threads (RGW 16.2:
//! `rgw/rgw_perf_counters.cc`, names and kinds).

use s3::Operation;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Counters of a gateway.
#[derive(Debug, Default)]
pub struct Counters {
    requests: AtomicU64,
    failed: AtomicU64,
    active: AtomicU64,
    behind: AtomicU64,
    gets: Transfers,
    puts: Transfers,
}

/// Transfers of objects' data one way.
#[derive(Debug, Default)]
struct Transfers {
    count: AtomicU64,
    bytes: AtomicU64,
    answered: AtomicU64,
    nanos: AtomicU64,
}

/// The kind of a counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// It only grows.
    Grows,
    /// It goes up and down.
    Gauge,
}

/// A value of a counter: a number, or a count and seconds in all.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Value {
    /// A number.
    Number(Kind, u64),
    /// How often something took how many seconds in all.
    Time(u64, f64),
}

/// A request that is counted as active until it is dropped.
pub(crate) struct Active<'a>(&'a Counters);

impl Drop for Active<'_> {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Relaxed);
    }
}

impl Counters {
    /// A request came.
    pub(crate) fn begin(&self) -> Active<'_> {
        self.requests.fetch_add(1, Relaxed);
        self.active.fetch_add(1, Relaxed);
        Active(self)
    }

    /// Lifecycle is so many seconds behind.
    pub fn lifecycle_is_behind(&self, seconds: u64) {
        self.behind.store(seconds, Relaxed);
    }

    /// How many seconds lifecycle is behind, when it was last looked at.
    pub fn behind(&self) -> u64 {
        self.behind.load(Relaxed)
    }

    /// A request was refused, or could not be served.
    pub(crate) fn failed(&self) {
        self.failed.fetch_add(1, Relaxed);
    }

    /// A request was answered: `sent` and `received` bytes of bodies, after `took`.
    pub(crate) fn answered(&self, operation: Operation, sent: u64, received: u64, took: Duration) {
        let (of, bytes) = match operation {
            Operation::GetObject => (&self.gets, sent),
            Operation::PutObject | Operation::UploadPart | Operation::PostObject => {
                (&self.puts, received)
            }
            _ => return,
        };
        of.count.fetch_add(1, Relaxed);
        of.bytes.fetch_add(bytes, Relaxed);
        of.answered.fetch_add(1, Relaxed);
        of.nanos.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    /// All counters: name, meaning, value.
    pub fn all(&self) -> [(&'static str, &'static str, Value); 10] {
        let number = |kind, n: &AtomicU64| Value::Number(kind, n.load(Relaxed));
        let grows = |n| number(Kind::Grows, n);
        let time = |t: &Transfers| {
            Value::Time(t.answered.load(Relaxed), t.nanos.load(Relaxed) as f64 / 1e9)
        };
        [
            ("req", "Requests", grows(&self.requests)),
            ("failed_req", "Aborted requests", grows(&self.failed)),
            ("qactive", "Active requests queue", number(Kind::Gauge, &self.active)),
            ("get", "Gets", grows(&self.gets.count)),
            ("get_b", "Size of gets", grows(&self.gets.bytes)),
            ("get_initial_lat", "Get latency", time(&self.gets)),
            ("put", "Puts", grows(&self.puts.count)),
            ("put_b", "Size of puts", grows(&self.puts.bytes)),
            ("put_initial_lat", "Put latency", time(&self.puts)),
            ("lc_behind_seconds", "How far lifecycle is behind", number(Kind::Gauge, &self.behind)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_what_they_move() {
        let c = Counters::default();
        let second = Duration::from_secs(1);
        let active = c.begin();
        c.answered(Operation::GetObject, 100, 7, second);
        c.answered(Operation::PutObject, 7, 50, second);
        c.answered(Operation::UploadPart, 0, 5, second);
        c.answered(Operation::ListBuckets, 9, 9, second);
        c.failed();
        c.lifecycle_is_behind(90);
        let value = |c: &Counters, name| c.all().iter().find(|(n, ..)| *n == name).unwrap().2;
        assert_eq!(value(&c, "qactive"), Value::Number(Kind::Gauge, 1));
        drop(active);
        for (name, expected) in [
            ("req", Value::Number(Kind::Grows, 1)),
            ("failed_req", Value::Number(Kind::Grows, 1)),
            ("lc_behind_seconds", Value::Number(Kind::Gauge, 90)),
            ("qactive", Value::Number(Kind::Gauge, 0)),
            ("get", Value::Number(Kind::Grows, 1)),
            ("get_b", Value::Number(Kind::Grows, 100)),
            ("put", Value::Number(Kind::Grows, 2)),
            ("put_b", Value::Number(Kind::Grows, 55)),
            ("put_initial_lat", Value::Time(2, 2.0)),
        ] {
            assert_eq!(value(&c, name), expected, "{name}");
        }
    }
}
