//! What images do: rates and sums of the counters that the OSDs report (Ceph: module `rbd_support`,
//! `perf.py`).
//!
//! A pool is looked at from the first question about it until a minute after the last. Rates are
//! those of the last round, sums begin with the first question.

use super::spec::PoolKey;
use messages::ImageCounters;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use types::PoolId;

/// A question keeps its pool in view for so many seconds (Ceph: `QUERY_EXPIRE_INTERVAL`).
const EXPIRE: f64 = 60.0;
/// Rounds farther apart than this give no rate (Ceph: `STATS_RATE_INTERVAL`).
const RATE_INTERVAL: f64 = 60.0;
/// Images of an answer (Ceph: `REPORT_MAX_RESULTS`).
const MOST_IMAGES: usize = 64;
/// Different pools that may be looked at; the one that was not asked about for longest makes room.
const MOST_QUERIES: usize = 256;
/// Images that the OSDs report between two rounds; more are not taken.
const MOST_PENDING: usize = 1 << 16;

/// The counters, in the order of the answers.
pub const COUNTERS: [&str; 6] =
    ["write_ops", "read_ops", "write_bytes", "read_bytes", "write_latency", "read_latency"];

type Values = [u64; 6];

/// Pool, namespace and id of an image.
pub type ImageKey = (PoolId, String, String);

/// Rates or sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `rbd perf image stats`.
    Stats,
    /// `rbd perf image counters`.
    Counters,
}

#[derive(Default)]
struct Image {
    /// The last round and the one before, with their times.
    rounds: [Option<(f64, Values)>; 2],
    sum: Values,
}

struct Query {
    asked: f64,
    images: BTreeMap<ImageKey, Image>,
}

/// Names and counters of images.
#[derive(Default)]
pub struct Perf {
    /// Reported since the last round.
    pending: BTreeMap<ImageKey, Values>,
    queries: BTreeMap<PoolKey, Query>,
    names: BTreeMap<(PoolId, String), BTreeMap<String, String>>,
}

/// Which pools there are.
pub trait Pools {
    /// The pool with this name.
    fn id(&self, name: &str) -> Option<PoolId>;
    /// Its name, if it is a pool of block devices.
    fn name(&self, id: PoolId) -> Option<String>;
}

fn values(c: &ImageCounters) -> Values {
    [c.write_ops, c.read_ops, c.write_bytes, c.read_bytes, c.write_latency, c.read_latency]
}

fn add(to: &mut Values, from: &Values) {
    to.iter_mut().zip(from).for_each(|(t, f)| *t = t.saturating_add(*f));
}

impl Image {
    fn round(&mut self, now: f64, values: Values) {
        self.rounds = [Some((now, values)), self.rounds[0]];
        add(&mut self.sum, &values);
    }

    /// A value per second; of the latencies, nanoseconds for each operation.
    fn rate(&self, index: usize) -> f64 {
        let [Some((now, values)), Some((before, _))] = &self.rounds else { return 0.0 };
        let passed = now - before;
        if passed <= 0.0 || passed > RATE_INTERVAL {
            return 0.0;
        }
        let rate = |i: usize| values.get(i).copied().unwrap_or_default() as f64 / passed;
        match index {
            // Operations come in the same order.
            4 | 5 => rate(index) / rate(index - 4).max(1.0),
            _ => rate(index),
        }
    }
}

fn matches(query: &PoolKey, pools: &dyn Pools, image: &ImageKey) -> bool {
    match query {
        PoolKey::All => pools.name(image.0).is_some(),
        PoolKey::Pool { pool, namespace } => {
            pools.id(pool) == Some(image.0) && *namespace == image.1
        }
    }
}

impl Perf {
    /// Takes what an OSD counted.
    pub fn handle_report(&mut self, counters: &[ImageCounters]) {
        if self.queries.is_empty() {
            return;
        }
        for c in counters {
            let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
            let key = (c.pool, text(&c.namespace), text(&c.id));
            if self.pending.len() < MOST_PENDING || self.pending.contains_key(&key) {
                add(self.pending.entry(key).or_default(), &values(c));
            }
        }
    }

    /// Ends a round: works on what was reported since the last one. Returns the pools and
    /// namespaces with images of unknown names.
    pub fn round(&mut self, now: f64, pools: &dyn Pools) -> BTreeSet<(PoolId, String)> {
        self.queries.retain(|_, q| now - q.asked <= EXPIRE);
        let pending = std::mem::take(&mut self.pending);
        let mut unknown = BTreeSet::new();
        for (pool, query) in &mut self.queries {
            for (key, image) in &mut query.images {
                if !pending.contains_key(key) {
                    image.round(now, Values::default());
                }
            }
            for (key, values) in &pending {
                if !matches(pool, pools, key) {
                    continue;
                }
                query.images.entry(key.clone()).or_default().round(now, *values);
                let place = (key.0, key.1.clone());
                if self.names.get(&place).is_none_or(|names| !names.contains_key(&key.2)) {
                    unknown.insert(place);
                }
            }
        }
        if self.queries.is_empty() {
            self.names.clear();
        }
        unknown
    }

    /// Takes over the names by id of a namespace's images. Images without a name are gone.
    pub fn set_names(&mut self, pool: PoolId, namespace: &str, names: BTreeMap<String, String>) {
        for query in self.queries.values_mut() {
            query
                .images
                .retain(|(p, n, id), _| *p != pool || n != namespace || names.contains_key(id));
        }
        self.names.insert((pool, namespace.to_owned()), names);
    }

    /// Forgets the names, so that images that were renamed are shown under their new names.
    pub fn forget_names(&mut self) {
        self.names.clear();
    }

    /// Looks at a pool from now on, and answers with what is known of its images; the busiest come
    /// first.
    pub fn report(
        &mut self,
        query: &PoolKey,
        kind: Kind,
        sort_by: &str,
        now: f64,
        pools: &dyn Pools,
    ) -> Value {
        if !self.queries.contains_key(query)
            && self.queries.len() >= MOST_QUERIES
            && let Some(oldest) = self
                .queries
                .iter()
                .min_by(|a, b| a.1.asked.total_cmp(&b.1.asked))
                .map(|(k, _)| k.clone())
        {
            self.queries.remove(&oldest);
        }
        let entry = self
            .queries
            .entry(query.clone())
            .or_insert_with(|| Query { asked: now, images: BTreeMap::new() });
        entry.asked = now;
        let by = COUNTERS.iter().position(|c| *c == sort_by).unwrap_or(0);
        let mut images: Vec<(&ImageKey, &Image)> = entry.images.iter().collect();
        images.sort_by(|a, b| b.1.rate(by).total_cmp(&a.1.rate(by)));
        let mut descriptors: Vec<String> = Vec::new();
        let mut found = Vec::new();
        for ((pool, namespace, id), image) in images.into_iter().take(MOST_IMAGES) {
            let place = (*pool, namespace.clone());
            let (Some(pool), Some(name)) =
                (pools.name(*pool), self.names.get(&place).and_then(|n| n.get(id)))
            else {
                continue;
            };
            let data: Vec<Value> = match kind {
                Kind::Stats => (0..COUNTERS.len()).map(|i| image.rate(i).into()).collect(),
                Kind::Counters => image.sum.iter().map(|v| (*v).into()).collect(),
            };
            if data.iter().all(|v| v.as_f64() == Some(0.0)) {
                continue;
            }
            let descriptor =
                if namespace.is_empty() { pool } else { format!("{pool}/{namespace}") };
            let at = descriptors.iter().position(|d| *d == descriptor).unwrap_or_else(|| {
                descriptors.push(descriptor);
                descriptors.len() - 1
            });
            let mut entry = serde_json::Map::new();
            entry.insert(format!("{at}/{name}"), data.into());
            found.push(Value::Object(entry));
        }
        let word = match kind {
            Kind::Stats => "stat",
            Kind::Counters => "counter",
        };
        let descriptors: serde_json::Map<String, Value> =
            descriptors.into_iter().enumerate().map(|(i, d)| (i.to_string(), d.into())).collect();
        let mut report = serde_json::Map::new();
        report.insert("timestamp".into(), now.floor().into());
        report.insert(format!("{word}_descriptors"), json!(COUNTERS));
        report.insert("pool_descriptors".into(), descriptors.into());
        report.insert(format!("{word}s"), found.into());
        report.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct One;
    impl Pools for One {
        fn id(&self, name: &str) -> Option<PoolId> {
            (name == "rbd").then_some(PoolId(2))
        }
        fn name(&self, id: PoolId) -> Option<String> {
            (id == PoolId(2)).then(|| "rbd".to_owned())
        }
    }

    fn counted(id: &'static str, namespace: &'static str, ops: u64) -> ImageCounters {
        ImageCounters {
            pool: PoolId(2),
            namespace: namespace.into(),
            id: id.into(),
            write_ops: ops,
            write_bytes: ops * 4096,
            write_latency: ops * 1_000_000,
            ..ImageCounters::default()
        }
    }

    #[test]
    fn rates_need_two_rounds() {
        let mut p = Perf::default();
        p.handle_report(&[counted("a", "", 1000)]);
        assert!(p.round(0.0, &One).is_empty(), "nobody asked");
        let empty = p.report(&PoolKey::All, Kind::Stats, "write_ops", 1.0, &One);
        assert_eq!(
            empty,
            json!({"timestamp": 1.0, "stat_descriptors": COUNTERS, "pool_descriptors": {}, "stats": []})
        );
        p.handle_report(&[counted("a", "", 10), counted("b", "ns", 20)]);
        let unknown = p.round(5.0, &One);
        assert_eq!(unknown, BTreeSet::from([(PoolId(2), String::new()), (PoolId(2), "ns".into())]));
        p.set_names(PoolId(2), "", [("a".into(), "one".into())].into());
        p.set_names(PoolId(2), "ns", [("b".into(), "two".into())].into());
        assert_eq!(
            p.report(&PoolKey::All, Kind::Stats, "write_ops", 6.0, &One)["stats"],
            json!([])
        );
        p.handle_report(&[counted("a", "", 50), counted("b", "ns", 100)]);
        p.handle_report(&[counted("b", "ns", 100)]);
        assert!(p.round(10.0, &One).is_empty());
        let r = p.report(&PoolKey::All, Kind::Stats, "write_ops", 10.0, &One);
        assert_eq!(r["pool_descriptors"], json!({"0": "rbd/ns", "1": "rbd"}));
        assert_eq!(
            r["stats"],
            json!([
                {"0/two": [40.0, 0.0, 163840.0, 0.0, 1_000_000.0, 0.0]},
                {"1/one": [10.0, 0.0, 40960.0, 0.0, 1_000_000.0, 0.0]},
            ])
        );
        let c = p.report(&PoolKey::All, Kind::Counters, "write_ops", 10.0, &One);
        assert_eq!(c["counters"][0]["0/two"][0], 220);
        assert_eq!(c["counter_descriptors"], json!(COUNTERS));
        // An idle round has no rate, but the sums stay.
        p.round(15.0, &One);
        assert_eq!(
            p.report(&PoolKey::All, Kind::Stats, "write_ops", 15.0, &One)["stats"],
            json!([])
        );
        assert_eq!(
            p.report(&PoolKey::All, Kind::Counters, "write_ops", 15.0, &One)["counters"]
                .as_array()
                .map(Vec::len),
            Some(2)
        );
    }

    #[test]
    fn a_pool_is_its_own_namespace_and_is_forgotten() {
        let mut p = Perf::default();
        let pool = PoolKey::Pool { pool: "rbd".into(), namespace: String::new() };
        p.report(&pool, Kind::Stats, "read_ops", 0.0, &One);
        p.handle_report(&[counted("a", "", 10), counted("b", "ns", 20), counted("gone", "", 1)]);
        assert_eq!(p.round(5.0, &One).len(), 1);
        p.set_names(PoolId(2), "", [("a".into(), "one".into())].into());
        let c = p.report(&pool, Kind::Counters, "read_ops", 5.0, &One);
        assert_eq!(c["counters"], json!([{"0/one": [10, 0, 40960, 0, 10_000_000, 0]}]));
        p.round(70.0, &One);
        assert!(p.queries.is_empty() && p.names.is_empty());
    }
}
