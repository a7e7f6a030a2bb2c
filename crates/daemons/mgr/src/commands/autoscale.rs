//! `ceph osd pool autoscale-status`: how many PGs each pool should have for what it holds (Ceph
//! 17.2: `src/pybind/mgr/pg_autoscaler/module.py`; the JSON and the columns are those of 16.2.15).
//!
//! This is the proposal; [`crate::autoscaler`] acts on it for pools with the `pg_autoscale_mode`
//! `on`. Where statistics are absent or stale there is no proposal at all, only what is.

use super::{Answer, Context};
use crate::autoscaler::{Goals, Proposal};
use crate::state::MgrState;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use types::pool::{AutoscaleMode, PoolOptValue, flag};
use types::stats::PgState;
use types::{OsdId, OsdMap, PgId, PgPool, PoolId};

/// Fewest PGs of a pool that does not say `pg_num_min`.
const LEAST: u32 = 32;

/// A subtree of the CRUSH map in which pools are.
#[derive(Default)]
struct Root {
    capacity: u64,
    left: f64,
    pools: f64,
    used: f64,
    ratios: f64,
    bytes: f64,
}

/// One line.
struct Line {
    id: PoolId,
    name: String,
    root: i32,
    mode: AutoscaleMode,
    pg_num_target: u32,
    stored: u64,
    target_bytes: u64,
    rate: f64,
    capacity: u64,
    capacity_ratio: f64,
    target_ratio: f64,
    effective_ratio: f64,
    ideal: f64,
    last: u32,
    bias: f64,
    bulk: bool,
    adjust: bool,
}

fn option(p: &PgPool, name: &str) -> f64 {
    match p.opts.get(name) {
        Some(PoolOptValue::Double(d)) => *d,
        Some(PoolOptValue::Int(n)) => *n as f64,
        _ => 0.0,
    }
}

/// The power of two that is next to a number.
fn nearest_power_of_two(n: f64) -> u32 {
    let v = (n.max(0.0) as u32).checked_next_power_of_two().unwrap_or(1 << 31);
    let v = if n < 1.0 { 0 } else { v };
    let x = v >> 1;
    if f64::from(v) - n > n - f64::from(x) { x } else { v }
}

fn root_of(map: &OsdMap, p: &PgPool) -> Option<i32> {
    map.crush.rule(i32::from(p.crush_rule))?.takes().next()
}

/// Whether everything that matters for a pool has been reported, and is not stale. An OSD that is
/// down may come back: while it is not known what it holds, sizes and capacity are not.
fn is_known(state: &MgrState, map: &OsdMap, id: PoolId, p: &PgPool, osds: &BTreeSet<i32>) -> bool {
    let groups =
        state.pg_map.pgs.range(PgId { pool: id, seed: 0 }..=PgId { pool: id, seed: u32::MAX });
    let told =
        groups.filter(|(_, s)| s.state != PgState(0) && !s.state.has(PgState::STALE)).count();
    let reported =
        |o: &i32| state.pg_map.osds.get(&OsdId(*o)).is_some_and(|r| r.stat.statfs.total > 0);
    told == p.pg_num as usize
        && osds
            .iter()
            .filter(|o| map.is_up(OsdId(**o)) || map.weight(OsdId(**o)) > 0.0)
            .all(reported)
}

fn lines(state: &MgrState, map: &OsdMap, goals: Goals) -> Vec<Line> {
    let mut roots: BTreeMap<i32, Root> = BTreeMap::new();
    let mut lines = Vec::new();
    for (id, p) in &map.pools {
        let Some(at) = root_of(map, p) else { continue };
        let osds = map.crush.leaves(at);
        let root = roots.entry(at).or_insert_with(|| Root {
            capacity: osds
                .iter()
                .filter_map(|o| state.pg_map.osds.get(&OsdId(*o)))
                .map(|r| r.stat.statfs.total)
                .sum(),
            left: osds.len() as f64 * goals.per_osd,
            ..Root::default()
        });
        let rate = map.raw_used_rate(p);
        let (target_ratio, bytes) =
            (option(p, "target_size_ratio"), option(p, "target_size_bytes"));
        let target_bytes = if target_ratio == 0.0 { bytes as u64 } else { 0 };
        root.pools += 1.0;
        root.ratios += target_ratio;
        root.bytes += target_bytes as f64 * rate;
        lines.push(Line {
            id: *id,
            name: map.pool_names.get(id).cloned().unwrap_or_default(),
            root: at,
            mode: p.pg_autoscale_mode,
            pg_num_target: p.pg_num_target,
            stored: state.pg_map.pool_stat(*id).stats.sum.num_bytes.max(0) as u64,
            target_bytes,
            rate,
            capacity: root.capacity,
            capacity_ratio: 0.0,
            target_ratio,
            effective_ratio: 0.0,
            ideal: f64::from(p.pg_num_target),
            last: p.pg_num_target,
            bias: if p.opts.get("pg_autoscale_bias").is_some() {
                option(p, "pg_autoscale_bias")
            } else {
                1.0
            },
            bulk: p.has_flag(flag::BULK),
            adjust: false,
        });
    }
    lines.retain(|l| l.capacity > 0);
    for l in &mut lines {
        let Some(root) = roots.get(&l.root) else { continue };
        let capacity = l.capacity as f64;
        l.effective_ratio =
            if root.ratios > 0.0 { l.target_ratio / root.ratios } else { l.target_ratio };
        l.effective_ratio *= 1.0 - (root.bytes / capacity).min(1.0);
        l.capacity_ratio =
            (l.stored.max(l.target_bytes) as f64 * l.rate / capacity).max(l.effective_ratio);
    }
    // Pools get what they use; bulk pools share the rest, those first that use more than an equal
    // share.
    let mut even = Vec::new();
    for pass in 0..3 {
        for (i, l) in lines.iter_mut().enumerate() {
            let Some(root) = roots.get_mut(&l.root) else { continue };
            let share = 1.0 / (root.pools - root.used).max(1.0);
            let ratio = match pass {
                0 if !l.bulk => l.capacity_ratio,
                1 if l.bulk && l.capacity_ratio > share => l.capacity_ratio,
                1 if l.bulk => {
                    even.push(i);
                    continue;
                }
                2 if even.contains(&i) => share,
                _ => continue,
            };
            let groups = ratio * root.left;
            if pass < 2 {
                root.left -= groups.floor();
                root.used += 1.0;
            }
            let Some(p) = map.pools.get(&l.id) else { continue };
            if !is_known(state, map, l.id, p, &map.crush.leaves(l.root)) {
                continue;
            }
            // Each PG is on that many OSDs, whatever a byte of it takes.
            l.ideal = groups / f64::from(p.size) * l.bias;
            let least = match option(p, "pg_num_min") as u32 {
                0 => LEAST,
                n => n,
            };
            l.last = nearest_power_of_two(l.ideal).max(least);
            match option(p, "pg_num_max") as u32 {
                0 => {}
                most => l.last = l.last.min(most),
            }
            let (last, now) = (f64::from(l.last), f64::from(l.pg_num_target));
            l.adjust = (last > now * goals.threshold || last < now / goals.threshold)
                && (0.0..=1.0).contains(&ratio);
        }
    }
    lines
}

/// What pools should have instead of what they have.
pub(crate) fn proposals(state: &MgrState, map: &OsdMap, goals: Goals) -> Vec<Proposal> {
    let wrong = lines(state, map, goals).into_iter().filter(|l| l.adjust);
    wrong
        .map(|l| Proposal {
            pool: l.id,
            name: l.name,
            mode: l.mode,
            pg_num: l.pg_num_target,
            should: l.last,
        })
        .collect()
}

impl Line {
    fn json(&self) -> Value {
        let raw = |bytes: u64| bytes as f64 * self.rate;
        json!({
            "actual_capacity_ratio": raw(self.stored) / self.capacity as f64,
            "actual_raw_used": raw(self.stored),
            "bias": self.bias,
            "bulk": self.bulk,
            "capacity_ratio": self.capacity_ratio,
            "crush_root_id": self.root,
            "effective_target_ratio": self.effective_ratio,
            "logical_used": self.stored,
            "pg_autoscale_mode": self.mode.name(),
            "pg_num_final": self.last,
            "pg_num_ideal": self.ideal as i64,
            "pg_num_target": self.pg_num_target,
            "pool_id": self.id.0,
            "pool_name": self.name,
            "raw_used": raw(self.stored.max(self.target_bytes)),
            "raw_used_rate": self.rate,
            "subtree_capacity": self.capacity,
            "target_bytes": self.target_bytes,
            "target_ratio": self.target_ratio,
            "would_adjust": self.adjust,
        })
    }

    fn cells(&self) -> Vec<String> {
        let ratio = |r: f64| if r > 0.0 { format!("{r:.4}") } else { String::new() };
        vec![
            self.name.clone(),
            size(self.stored),
            if self.target_bytes > 0 { size(self.target_bytes) } else { String::new() },
            format!("{:.1}", self.rate),
            size(self.capacity),
            format!("{:.4}", self.capacity_ratio),
            ratio(self.target_ratio),
            ratio(self.effective_ratio),
            format!("{:.1}", self.bias),
            self.pg_num_target.to_string(),
            if self.adjust { self.last.to_string() } else { String::new() },
            self.mode.name().to_owned(),
            if self.bulk { "True" } else { "False" }.to_owned(),
        ]
    }
}

/// Bytes in six columns (Ceph: `mgr_util.format_bytes`).
fn size(n: u64) -> String {
    let mut unit = 0u32;
    while unit < 6 && (n >> (10 * unit)).to_string().len() > 5 {
        unit += 1;
    }
    if unit == 0 {
        return format!("{n:5} ");
    }
    let mut text: String =
        format!("{:.6}", n as f64 / (1u64 << (10 * unit)) as f64).chars().take(5).collect();
    if text.ends_with('.') {
        text = format!(" {}", &text[..4]);
    }
    format!("{text}{}", ["", "k", "M", "G", "T", "P", "E"][unit as usize])
}

pub(super) fn status(cx: &Context<'_>) -> Answer {
    let lines = lines(cx.state, cx.map, cx.state.goals);
    let text = || {
        let head = [
            "POOL",
            "SIZE",
            "TARGET SIZE",
            "RATE",
            "RAW CAPACITY",
            "RATIO",
            "TARGET RATIO",
            "EFFECTIVE RATIO",
            "BIAS",
            "PG_NUM",
            "NEW PG_NUM",
            "AUTOSCALE",
            "BULK",
        ];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        rows.extend(lines.iter().map(Line::cells));
        let width = |i: usize| rows.iter().map(|r| r[i].len()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..head.len()).map(width).collect();
        let line = |r: &Vec<String>| {
            let cell = |(i, c): (usize, &String)| {
                if matches!(i, 0 | 11 | 12) {
                    format!("{c:<w$}  ", w = widths[i])
                } else {
                    format!("{c:>w$}  ", w = widths[i])
                }
            };
            r.iter().enumerate().map(cell).collect::<String>()
        };
        rows.iter().map(line).collect::<Vec<_>>().join("\n")
    };
    Ok(cx.format.reply(|| lines.iter().map(Line::json).collect(), text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_take_six_columns() {
        for (n, text) in [
            (0, "    0 "),
            (99_999, "99999 "),
            (100_000, "97.65k"),
            (1 << 30, " 1024M"),
            (12 << 30, "12288M"),
            (300 << 30, "300.0G"),
        ] {
            assert_eq!(size(n), text);
        }
    }

    #[test]
    fn powers_of_two_are_the_nearest() {
        for (n, power) in
            [(0.0, 0), (1.0, 1), (3.0, 4), (5.0, 4), (6.1, 8), (95.0, 64), (97.0, 128)]
        {
            assert_eq!(nearest_power_of_two(n), power, "{n}");
        }
    }
}
