//! How even a distribution is (Ceph 16.2: `calc_eval` of `src/pybind/mgr/balancer/module.py`).
//!
//! The score of a root is above zero where OSDs have more than their part; the more, the higher.

use crate::Stats;
use crate::stats::{Holds, groups};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use types::{OsdId, OsdMap, PoolId};

/// PGs, objects, bytes.
type Triple<T> = [T; 3];

const MEASURES: [&str; 3] = ["pgs", "objects", "bytes"];

/// Numbers of one measure over the OSDs of a root.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Spread {
    empty: bool,
    max: f64,
    min: f64,
    avg: f64,
    stddev: f64,
    sum_weight: f64,
    score: f64,
}

/// A distribution and its scores.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evaluation {
    target_by_root: Vec<(String, BTreeMap<OsdId, f64>)>,
    count_by_pool: Vec<(String, BTreeMap<OsdId, Triple<u64>>)>,
    total_by_pool: Vec<(String, Triple<u64>)>,
    count_by_root: Vec<(String, BTreeMap<OsdId, Triple<u64>>)>,
    total_by_root: Vec<(String, Triple<u64>)>,
    stats_by_root: Vec<(String, Triple<Spread>)>,
    /// The mean of the scores of all roots and measures; 0 is perfect, and all are below 1.
    pub score: f64,
}

/// The error function; its series converges fast for what is asked here.
fn erf(x: f64) -> f64 {
    if x > 5.0 {
        return 1.0;
    }
    let (mut term, mut sum, mut n) = (x, x, 0.0);
    while f64::abs(term) > 1e-17 && n < 200.0 {
        n += 1.0;
        term *= -x * x / n;
        sum += term / (2.0 * n + 1.0);
    }
    sum * std::f64::consts::FRAC_2_SQRT_PI
}

impl Evaluation {
    /// Of these pools, or of all if there are none.
    pub fn new(map: &OsdMap, stats: &Stats, pools: &[PoolId]) -> Evaluation {
        let mut e = Evaluation::default();
        let chosen: Vec<PoolId> =
            map.pools.keys().copied().filter(|p| pools.is_empty() || pools.contains(p)).collect();
        let takes_of = |pool: &PoolId| -> Vec<i32> {
            let rule = map.pool(*pool).and_then(|p| map.crush.rule(p.crush_rule.into()));
            rule.map(|r| r.takes().collect()).unwrap_or_default()
        };
        let roots: BTreeSet<i32> = chosen.iter().flat_map(takes_of).collect();
        let mut by_root: BTreeMap<i32, BTreeMap<OsdId, Triple<u64>>> = BTreeMap::new();
        for root in &roots {
            let target = target(map, *root);
            by_root.insert(*root, target.keys().map(|o| (*o, [0; 3])).collect());
            let name = map.crush.names.name(*root).unwrap_or_default().to_owned();
            e.target_by_root.push((name, target));
        }
        for pool in &chosen {
            let roots: BTreeSet<i32> = takes_of(pool).into_iter().collect();
            let (mut count, mut total) = (BTreeMap::<OsdId, Triple<u64>>::new(), [0; 3]);
            for pg in groups(map, *pool) {
                let Holds { objects, bytes } = stats.groups.get(&pg).copied().unwrap_or_default();
                for osd in map.pg_to_raw_up(pg).0.into_iter().filter(|o| o.is_some()) {
                    add(count.entry(osd).or_default(), [1, objects, bytes]);
                    let has = |r: &&i32| by_root.get(r).is_some_and(|c| c.contains_key(&osd));
                    let Some(root) = roots.iter().find(has) else { continue };
                    if let Some(sum) = by_root.get_mut(root).and_then(|c| c.get_mut(&osd)) {
                        add(sum, [1, objects, bytes]);
                        add(&mut total, [1, objects, bytes]);
                    }
                }
            }
            let name = map.pool_names.get(pool).cloned().unwrap_or_default();
            e.count_by_pool.push((name.clone(), count));
            e.total_by_pool.push((name, total));
        }
        for ((name, target), count) in e.target_by_root.iter().zip(by_root.into_values()) {
            let mut total = [0; 3];
            count.values().for_each(|c| add(&mut total, *c));
            let spreads = [0, 1, 2].map(|m| spread(m, &count, target, total));
            e.stats_by_root.push((name.clone(), spreads));
            e.count_by_root.push((name.clone(), count));
            e.total_by_root.push((name.clone(), total));
        }
        let scores: f64 = e.stats_by_root.iter().flat_map(|(_, s)| s).map(|s| s.score).sum();
        if !e.stats_by_root.is_empty() {
            e.score = scores / (3 * e.stats_by_root.len()) as f64;
        }
        e
    }

    /// As `ceph balancer eval` and `eval-verbose` print it.
    pub fn show(&self, what: &str, verbose: bool) -> String {
        let score = format!("score {:.6} (lower is better)\n", self.score);
        if !verbose {
            return format!("{what} {score}");
        }
        let part = |n: u64, total: u64| Py::Float(n as f64 / total.max(1) as f64);
        let by_measure = |f: &dyn Fn(usize) -> Py| {
            Py::Map(MEASURES.iter().enumerate().map(|(m, name)| (text(name), f(m))).collect())
        };
        let counts = |all: &Vec<(String, BTreeMap<OsdId, Triple<u64>>)>,
                      show: &dyn Fn(usize, usize, u64) -> Py| {
            let entry = |(i, (name, count)): (usize, &(String, BTreeMap<OsdId, Triple<u64>>))| {
                let shown = by_measure(&|m| {
                    let of = count.iter().map(|(o, c)| (o.0.to_string(), show(i, m, c[m])));
                    Py::Map(of.collect())
                });
                (text(name), shown)
            };
            Py::Map(all.iter().enumerate().map(entry).collect())
        };
        let totals = |all: &Vec<(String, Triple<u64>)>| {
            let entry =
                |(name, t): &(String, Triple<u64>)| (text(name), by_measure(&|m| Py::Int(t[m])));
            Py::Map(all.iter().map(entry).collect())
        };
        let target = Py::Map(
            self.target_by_root
                .iter()
                .map(|(name, target)| {
                    let of = target.iter().map(|(o, w)| (o.0.to_string(), Py::Float(*w)));
                    (text(name), Py::Map(of.collect()))
                })
                .collect(),
        );
        let per_root = |f: &dyn Fn(&Spread) -> Py| {
            let entry =
                |(name, s): &(String, Triple<Spread>)| (text(name), by_measure(&|m| f(&s[m])));
            Py::Map(self.stats_by_root.iter().map(entry).collect())
        };
        let number = |s: &Spread, n: f64| if s.empty { Py::Int(0) } else { Py::Float(n) };
        let stats = per_root(&|s| {
            let fields = [
                ("max", s.max),
                ("min", s.min),
                ("avg", s.avg),
                ("stddev", s.stddev),
                ("sum_weight", s.sum_weight),
                ("score", s.score),
            ];
            Py::Map(fields.iter().map(|(k, n)| (text(k), number(s, *n))).collect())
        });
        let of_pool = |i: usize, m: usize, n: u64| part(n, self.total_by_pool[i].1[m]);
        let of_root = |i: usize, m: usize, n: u64| part(n, self.total_by_root[i].1[m]);
        let score_by_pool = Py::Map(Vec::new());
        let lines = [
            ("target_by_root", target),
            ("actual_by_pool", counts(&self.count_by_pool, &of_pool)),
            ("actual_by_root", counts(&self.count_by_root, &of_root)),
            ("count_by_pool", counts(&self.count_by_pool, &|_, _, n| Py::Int(n))),
            ("count_by_root", counts(&self.count_by_root, &|_, _, n| Py::Float(n as f64))),
            ("total_by_pool", totals(&self.total_by_pool)),
            ("total_by_root", totals(&self.total_by_root)),
            ("stats_by_root", stats),
            ("score_by_pool", score_by_pool),
            ("score_by_root", per_root(&|s| number(s, s.score))),
        ];
        let mut out = format!("{what}\n");
        for (name, value) in lines {
            let _ = writeln!(out, "{name} {value}");
        }
        out + &score
    }
}

fn add(to: &mut Triple<u64>, more: Triple<u64>) {
    to.iter_mut().zip(more).for_each(|(a, b)| *a += b);
}

/// The part of each OSD below a root, of one.
fn target(map: &OsdMap, root: i32) -> BTreeMap<OsdId, f64> {
    let weight = |osd: i32| {
        let crush = map.crush.item_weight(osd).map_or(0.0, |w| f64::from(w) / 65536.0);
        crush * map.weight(OsdId(osd))
    };
    let weights: BTreeMap<OsdId, f64> = map
        .crush
        .leaves(root)
        .into_iter()
        .map(|o| (OsdId(o), weight(o)))
        .filter(|(_, w)| *w > 0.0)
        .collect();
    let sum: f64 = weights.values().sum();
    weights.into_iter().map(|(o, w)| (o, w / sum)).collect()
}

fn spread(
    measure: usize,
    count: &BTreeMap<OsdId, Triple<u64>>,
    target: &BTreeMap<OsdId, f64>,
    total: Triple<u64>,
) -> Spread {
    let num = target.len().max(1) as f64;
    if total[measure] == 0 {
        return Spread { empty: true, ..Spread::default() };
    }
    let avg = total[measure] as f64 / num;
    let mut s = Spread { avg, min: f64::INFINITY, ..Spread::default() };
    let mut squares = 0.0;
    for (osd, c) in count {
        let v = c[measure] as f64;
        let part = target.get(osd).copied().unwrap_or(0.0);
        let adjusted = if part > 0.0 { v / part / num } else { 0.0 };
        if adjusted > avg {
            s.score += part * erf((adjusted - avg) / avg * std::f64::consts::FRAC_1_SQRT_2);
            s.sum_weight += part;
        }
        squares += (avg - adjusted) * (avg - adjusted);
        s.max = s.max.max(v);
        s.min = s.min.min(v);
    }
    s.stddev = (squares / (num - 1.0).max(1.0)).sqrt();
    s.score /= s.sum_weight.max(1.0);
    s
}

/// A value as Python prints it.
enum Py {
    Int(u64),
    Float(f64),
    Map(Vec<(String, Py)>),
}

fn text(name: &str) -> String {
    format!("'{name}'")
}

impl std::fmt::Display for Py {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Py::Int(n) => write!(f, "{n}"),
            Py::Float(v) if *v != 0.0 && (v.abs() < 1e-4 || v.abs() >= 1e16) => {
                let shown = format!("{v:e}");
                let (digits, exponent) = shown.split_once('e').unwrap_or((&shown, "0"));
                let exponent: i32 = exponent.parse().unwrap_or(0);
                let sign = if exponent < 0 { '-' } else { '+' };
                write!(f, "{digits}e{sign}{:02}", exponent.abs())
            }
            Py::Float(v) => write!(f, "{v:?}"),
            Py::Map(entries) => {
                f.write_char('{')?;
                for (i, (key, value)) in entries.iter().enumerate() {
                    let comma = if i > 0 { ", " } else { "" };
                    write!(f, "{comma}{key}: {value}")?;
                }
                f.write_char('}')
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_function_and_numbers() {
        for (x, want) in [(0.0, 0.0), (0.5, 0.5204998778130465), (2.0, 0.9953222650189527)] {
            assert!((erf(x) - want).abs() < 1e-12, "{x}");
        }
        assert!((erf(4.5) - 1.0).abs() < 1e-6);
        let shown = |v: f64| Py::Float(v).to_string();
        assert_eq!([shown(8.0), shown(0.25), shown(0.00001)], ["8.0", "0.25", "1e-05"]);
    }
}
