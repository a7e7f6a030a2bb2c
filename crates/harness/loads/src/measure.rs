//! What a piece of work measured.

use hdrhistogram::Histogram;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// A longer latency counts as this one: an hour.
const LATENCY_US_MAX: u64 = 3_600_000_000;
/// Digits of a latency that count.
const DIGITS: u8 = 3;
/// How many failures are told in full.
const SAMPLES_MAX: usize = 10;

/// Operations of one kind.
#[derive(Clone)]
pub struct Kind {
    latency_us: Histogram<u64>,
    bytes: u64,
    failed: u64,
}

impl Default for Kind {
    fn default() -> Kind {
        let latency_us = Histogram::new_with_bounds(1, LATENCY_US_MAX, DIGITS)
            .unwrap_or_else(|e| unreachable!("constant bounds: {e}"));
        Kind { latency_us, bytes: 0, failed: 0 }
    }
}

impl Kind {
    /// How many succeeded.
    pub fn count(&self) -> u64 {
        self.latency_us.len()
    }

    /// The latency that this part of the operations (0 to 1) does not exceed, in microseconds.
    pub fn quantile_us(&self, part: f64) -> u64 {
        self.latency_us.value_at_quantile(part)
    }

    fn json(&self, seconds: f64) -> Value {
        let rate = |n: u64| if seconds > 0.0 { n as f64 / seconds } else { 0.0 };
        json!({
            "count": self.count(),
            "per_second": rate(self.count()),
            "bytes_per_second": rate(self.bytes),
            "failed": self.failed,
            "mean_us": self.latency_us.mean(),
            "p50_us": self.quantile_us(0.5),
            "p95_us": self.quantile_us(0.95),
            "p99_us": self.quantile_us(0.99),
            "p999_us": self.quantile_us(0.999),
            "max_us": self.latency_us.max(),
        })
    }
}

/// Operations that ended in one second, of all kinds.
#[derive(Clone, Copy, Default)]
struct Second {
    ended: u64,
    latency_us: u64,
    longest_us: u64,
}

impl Second {
    fn merge(&mut self, other: &Second) {
        self.ended += other.ended;
        self.latency_us = self.latency_us.saturating_add(other.latency_us);
        self.longest_us = self.longest_us.max(other.longest_us);
    }

    /// None if nothing ended.
    fn mean_us(&self) -> Option<u64> {
        self.latency_us.checked_div(self.ended)
    }
}

/// What one worker, or all of them, measured.
#[derive(Clone, Default)]
pub struct Measure {
    kinds: BTreeMap<&'static str, Kind>,
    /// The seconds since the beginning.
    seconds: Vec<Second>,
    wrong: u64,
    left_out: u64,
    samples: Vec<String>,
}

impl Measure {
    /// An operation succeeded, `at` after the beginning of the work.
    pub fn done(&mut self, kind: &'static str, at: Duration, took: Duration, bytes: u64) {
        let k = self.kinds.entry(kind).or_default();
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).clamp(1, LATENCY_US_MAX);
        k.latency_us.saturating_record(us);
        k.bytes += bytes;
        let second = at.as_secs() as usize;
        if self.seconds.len() <= second {
            self.seconds.resize(second + 1, Second::default());
        }
        self.seconds[second].merge(&Second { ended: 1, latency_us: us, longest_us: us });
    }

    /// An operation was refused, or its connection broke.
    pub fn failed(&mut self, kind: &'static str, why: String) {
        self.kinds.entry(kind).or_default().failed += 1;
        self.sample(format!("{kind}: {why}"));
    }

    /// An answer was not the one that what was acknowledged asks for.
    pub fn wrong(&mut self, kind: &'static str, why: String) {
        self.wrong += 1;
        self.kinds.entry(kind).or_default().failed += 1;
        self.sample(format!("WRONG: {kind}: {why}"));
    }

    /// Operations of an open loop did not begin: the server was too slow for their rate.
    pub fn left_out(&mut self, count: u64) {
        self.left_out += count;
    }

    fn sample(&mut self, text: String) {
        if self.samples.len() < SAMPLES_MAX {
            self.samples.push(text);
        }
    }

    /// Adds the measurements of another worker of the same work.
    pub fn merge(&mut self, other: &Measure) {
        for (kind, theirs) in &other.kinds {
            let k = self.kinds.entry(kind).or_default();
            k.latency_us
                .add(&theirs.latency_us)
                .unwrap_or_else(|e| unreachable!("histograms of the same bounds: {e}"));
            k.bytes += theirs.bytes;
            k.failed += theirs.failed;
        }
        if self.seconds.len() < other.seconds.len() {
            self.seconds.resize(other.seconds.len(), Second::default());
        }
        for (mine, theirs) in self.seconds.iter_mut().zip(&other.seconds) {
            mine.merge(theirs);
        }
        self.wrong += other.wrong;
        self.left_out += other.left_out;
        other.samples.iter().for_each(|s| self.sample(s.clone()));
    }

    /// Operations of a kind.
    pub fn kind(&self, name: &str) -> Option<&Kind> {
        self.kinds.get(name)
    }

    /// Operations that succeeded.
    pub fn count(&self) -> u64 {
        self.kinds.values().map(Kind::count).sum()
    }

    /// Operations that were refused or broken, and wrong answers.
    pub fn failures(&self) -> u64 {
        self.kinds.values().map(|k| k.failed).sum()
    }

    /// Answers that were not the ones that what was acknowledged asks for.
    pub fn wrong_answers(&self) -> u64 {
        self.wrong
    }

    /// What was measured in this time. What is told of each second has none that is not whole, and
    /// null for the latencies of one in which nothing ended.
    pub fn json(&self, took: Duration) -> Value {
        let seconds = took.as_secs_f64();
        // Nothing may have ended in the last ones: those are told, too.
        let mut each = self.seconds.clone();
        each.resize(took.as_secs() as usize, Second::default());
        let kinds: serde_json::Map<String, Value> =
            self.kinds.iter().map(|(name, k)| ((*name).to_owned(), k.json(seconds))).collect();
        json!({
            "seconds": seconds,
            "count": self.count(),
            "failed": self.failures(),
            "wrong": self.wrong,
            "left_out": self.left_out,
            "kinds": kinds,
            "ended_each_second": each.iter().map(|s| s.ended).collect::<Vec<_>>(),
            "mean_us_each_second": each.iter().map(Second::mean_us).collect::<Vec<_>>(),
            "max_us_each_second":
                each.iter().map(|s| s.mean_us().map(|_| s.longest_us)).collect::<Vec<_>>(),
            "samples": self.samples,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn workers_together_have_the_histogram_of_one_that_did_it_all() {
        let (mut a, mut b, mut all) = <(Measure, Measure, Measure)>::default();
        for n in 1..=1000 {
            let half = if n % 2 == 0 { &mut a } else { &mut b };
            for m in [half, &mut all] {
                m.done("get", ms(3 * n), ms(n), 10);
            }
        }
        b.failed("put", "503".into());
        a.wrong("get", "a byte differs".into());
        a.merge(&b);
        let (joined, whole) = (a.kind("get").unwrap(), all.kind("get").unwrap());
        for part in [0.0, 0.5, 0.99, 0.999, 1.0] {
            assert_eq!(joined.quantile_us(part), whole.quantile_us(part), "{part}");
        }
        let p99 = joined.quantile_us(0.99);
        assert!((989_000..=991_000).contains(&p99), "three digits: {p99}");
        assert_eq!((a.count(), a.failures(), a.wrong_answers()), (1000, 2, 1));
        let text = a.json(Duration::from_millis(2500));
        assert_eq!(text["kinds"]["get"]["per_second"], 400.0);
        assert_eq!(text["kinds"]["get"]["bytes_per_second"], 4000.0);
        assert_eq!(text["ended_each_second"], json!([333, 333]));
        assert_eq!(text["mean_us_each_second"], json!([167_000, 500_000]));
        assert_eq!(text["max_us_each_second"], json!([333_000, 666_000]));
        let longer = a.json(Duration::from_millis(4500));
        assert_eq!(longer["ended_each_second"], json!([333, 333, 333, 1]));
        let silent = b.json(Duration::from_secs(5));
        assert_eq!(silent["max_us_each_second"][4], Value::Null, "nothing ended");
        assert_eq!(text["samples"].as_array().unwrap().len(), 2);
    }

    #[test]
    fn a_latency_out_of_bounds_counts_as_the_bound() {
        let mut m = Measure::default();
        m.done("get", ms(0), Duration::ZERO, 0);
        m.done("get", ms(0), Duration::from_secs(100_000), 0);
        let k = m.kind("get").unwrap();
        assert_eq!((k.count(), k.quantile_us(0.0)), (2, 1));
        assert!(k.quantile_us(1.0) >= LATENCY_US_MAX);
    }
}
