//! `siphon qos top`: what tenants ask for and get, over all OSDs.

use crate::qos::Cluster;
use anyhow::Result;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Counters of a tenant, over all OSDs.
#[derive(Clone, Default)]
struct Counters {
    numbers: BTreeMap<&'static str, u64>,
    /// By powers of two of microseconds.
    waits: Vec<u64>,
    waiting: u64,
    weight: u64,
}

const NUMBERS: [&str; 6] = ["offered", "served", "served_bytes", "served_by_floor", "throttled", "waited_ns"];

/// Adds what an OSD says. Each OSD counts for itself since it started.
fn add(all: &mut BTreeMap<String, Counters>, dump: &Value) {
    for t in dump["tenants"].as_array().into_iter().flatten() {
        let Some(name) = t["tenant"].as_str() else { continue };
        let c = all.entry(name.to_owned()).or_default();
        for n in NUMBERS {
            *c.numbers.entry(n).or_default() += t[n].as_u64().unwrap_or(0);
        }
        c.waiting += t["waiting"].as_u64().unwrap_or(0) + t["over_ceiling"].as_u64().unwrap_or(0);
        c.weight = t["weight"].as_u64().unwrap_or(0);
        for (i, n) in t["waits_log2_us"].as_array().into_iter().flatten().enumerate() {
            if c.waits.len() <= i {
                c.waits.resize(i + 1, 0);
            }
            c.waits[i] += n.as_u64().unwrap_or(0);
        }
    }
}

impl Counters {
    /// What came since.
    fn since(&self, before: &Counters) -> Counters {
        let mut d = self.clone();
        for (name, n) in &mut d.numbers {
            // Of an OSD that began anew, everything is new.
            *n = n.checked_sub(before.numbers.get(name).copied().unwrap_or(0)).unwrap_or(*n);
        }
        for (i, n) in d.waits.iter_mut().enumerate() {
            *n = n.checked_sub(before.waits.get(i).copied().unwrap_or(0)).unwrap_or(*n);
        }
        d
    }

    fn get(&self, name: &str) -> u64 {
        self.numbers.get(name).copied().unwrap_or(0)
    }

    /// A percentile of the waiting times, in microseconds: the upper end of its bucket.
    fn percentile(&self, part: f64) -> u64 {
        let wanted = (self.waits.iter().sum::<u64>() as f64 * part).ceil() as u64;
        let mut seen = 0;
        let bucket = self.waits.iter().position(|n| {
            seen += n;
            seen >= wanted && wanted > 0
        });
        bucket.map_or(0, |b| 1 << b)
    }
}

/// Prints rows in columns; the first row is the heading.
pub fn print<const N: usize>(rows: &[[String; N]]) {
    let widths: [usize; N] = std::array::from_fn(|i| rows.iter().map(|r| r[i].chars().count()).max().unwrap_or(0));
    for row in rows {
        let cells = row.iter().zip(widths).enumerate().map(|(i, (cell, w))| if i == 0 { format!("{cell:<w$}") } else { format!("{cell:>w$}") });
        println!("{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
}

async fn counters(cluster: &Cluster) -> Result<BTreeMap<String, Counters>> {
    let mut all = BTreeMap::new();
    for dump in cluster.dumps().await?.values() {
        add(&mut all, dump);
    }
    Ok(all)
}

/// Runs the command.
pub async fn run(cluster: &Cluster, once: bool, period: f64, as_json: bool) -> Result<()> {
    let period = Duration::try_from_secs_f64(period.max(0.1))?;
    let (mut before, mut at) = (counters(cluster).await?, Instant::now());
    loop {
        tokio::time::sleep(period).await;
        let (after, now) = (counters(cluster).await?, Instant::now());
        let seconds = (now - at).as_secs_f64();
        let mut rows: Vec<(String, Counters)> =
            after.iter().map(|(name, c)| (name.clone(), c.since(before.get(name).unwrap_or(&Counters::default())))).collect();
        rows.retain(|(_, c)| c.get("offered") > 0 || c.get("served") > 0 || c.waiting > 0);
        rows.sort_by_key(|(_, c)| std::cmp::Reverse(c.get("served")));
        let served: u64 = rows.iter().map(|(_, c)| c.get("served")).sum();
        let each = |n: u64| n as f64 / seconds;
        let part = |n: u64, of: u64| if of == 0 { 0.0 } else { 100.0 * n as f64 / of as f64 };
        if as_json {
            let rows = rows.iter().map(|(name, c)| {
                json!({
                    "tenant": name, "weight": c.weight, "waiting": c.waiting,
                    "offered_iops": each(c.get("offered")), "served_iops": each(c.get("served")), "served_bps": each(c.get("served_bytes")),
                    "throttled_iops": each(c.get("throttled")), "by_floor": part(c.get("served_by_floor"), c.get("served")) / 100.0,
                    "share": part(c.get("served"), served) / 100.0,
                    "wait_us": {"mean": c.get("waited_ns") / c.get("served").max(1) / 1000, "p50": c.percentile(0.5), "p99": c.percentile(0.99)},
                })
            });
            println!("{}", json!({"seconds": seconds, "tenants": rows.collect::<Vec<_>>()}));
        } else {
            let heading = ["TENANT", "WEIGHT", "OFFERED/s", "SERVED/s", "MiB/s", "SHARE %", "BY FLOOR %", "THROTTLED/s", "WAITING", "WAIT p50 us", "p99 us"];
            let mut table = vec![heading.map(str::to_owned)];
            for (name, c) in &rows {
                table.push([
                    name.clone(),
                    c.weight.to_string(),
                    format!("{:.0}", each(c.get("offered"))),
                    format!("{:.0}", each(c.get("served"))),
                    format!("{:.1}", each(c.get("served_bytes")) / f64::from(1 << 20)),
                    format!("{:.1}", part(c.get("served"), served)),
                    format!("{:.1}", part(c.get("served_by_floor"), c.get("served"))),
                    format!("{:.0}", each(c.get("throttled"))),
                    c.waiting.to_string(),
                    c.percentile(0.5).to_string(),
                    c.percentile(0.99).to_string(),
                ]);
            }
            if !once {
                // Clears a terminal.
                print!("\x1b[H\x1b[2J");
            }
            print(&table);
        }
        if once {
            return Ok(());
        }
        (before, at) = (after, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_add_up_and_percentiles_are_of_what_came_since() {
        let dump = |served: u64, waits: &[u64]| json!({"tenants": [{"tenant": "a", "weight": 100, "served": served, "waiting": 1, "waits_log2_us": waits}]});
        let (mut before, mut after) = (BTreeMap::new(), BTreeMap::new());
        add(&mut before, &dump(10, &[10]));
        for _ in 0..2 {
            add(&mut after, &dump(60, &[10, 0, 48, 2]));
        }
        let d = after["a"].since(&before["a"]);
        assert_eq!((d.get("served"), d.waiting), (110, 2));
        assert_eq!((d.percentile(0.5), d.percentile(0.99), Counters::default().percentile(0.5)), (4, 8, 0));
    }
}
