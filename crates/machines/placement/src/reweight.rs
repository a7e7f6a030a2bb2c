//! Weights of OSDs by what they have (Ceph 16.2: `reweight::by_utilization`, `mon/PGMap.cc`, and
//! `OSDMap::summarize_mapping_stats`): those that are too full get less, at most so many of them
//! and by at most so much.

use crate::stats::{Stats, groups};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;
use types::osdmap::general;
use types::{OsdId, OsdMap, PgId, PoolId};

/// A weight of one.
const ONE: f64 = 65536.0;

/// What to do.
#[derive(Clone, Debug)]
pub struct Order<'a> {
    /// Percent of the mean above which an OSD gets less.
    pub oload: i64,
    /// By how much a weight changes at most.
    pub max_change: f64,
    /// Of how many OSDs.
    pub max_osds: usize,
    /// By PGs, each with the OSDs that act for it, instead of by use of the device.
    pub acting: Option<BTreeMap<PgId, Vec<OsdId>>>,
    /// Of these pools alone.
    pub pools: &'a [PoolId],
    /// Weights only shrink.
    pub no_increasing: bool,
    /// The least PGs that an OSD must have on average (`mon_reweight_min_pgs_per_osd`),
    pub min_pgs: u64,
    /// and the least bytes (`mon_reweight_min_bytes_per_osd`).
    pub min_bytes: u64,
}

/// Why weights stay as they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The order makes no sense.
    Invalid(String),
    /// There is too little to go by.
    TooLittle(String),
}

/// What came out.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// New weights, 16.16 fixed point.
    pub weights: BTreeMap<OsdId, u32>,
    /// The report for programs,
    pub json: Value,
    /// and for people.
    pub text: String,
}

/// Works out new weights.
pub fn reweight(map: &OsdMap, stats: &Stats, order: &Order<'_>) -> Result<Outcome, Refused> {
    if order.oload <= 100 {
        return Err(Refused::Invalid(
            "You must give a percentage higher than 100. The reweighting threshold will be \
             calculated as <average-utilization> times <input-percentage>. For example, an \
             argument of 200 would reweight OSDs which are twice as utilized as the average OSD.\n"
                .into(),
        ));
    }
    let (mean, mut used) = match &order.acting {
        Some(acting) => by_pgs(map, acting, order)?,
        None => by_use(stats, order)?,
    };
    let overload = mean * order.oload as f64 / 100.0;
    let change = (order.max_change * ONE) as u32;
    let far = |util: f64| (util - mean).abs();
    used.sort_by(|a, b| far(b.1).total_cmp(&far(a.1)).then(a.0.cmp(&b.0)));
    let (mut weights, mut lines, mut shown) = (BTreeMap::new(), String::new(), Vec::new());
    for (osd, util) in used {
        let weight = map.weight_fixed(osd);
        let wanted = |util: f64| (mean / util * f64::from(weight)) as u32;
        let new = match weight {
            0 => continue,
            w if util >= overload => wanted(util).max(w.saturating_sub(change)),
            w if !order.no_increasing && util <= mean => {
                wanted(util).min(w.saturating_add(change)).min(0x10000)
            }
            w => w,
        };
        let less = util >= overload;
        if !less && new <= weight {
            continue;
        }
        let part = |w: u32| f64::from(w) / ONE;
        let _ = writeln!(lines, "osd.{osd} weight {:.4} -> {:.4}", part(weight), part(new));
        if less {
            // Stock's form for programs has only these.
            shown.push(json!({"osd": osd.0, "weight": part(weight), "new_weight": part(new)}));
        }
        weights.insert(osd, new);
        if weights.len() >= order.max_osds {
            break;
        }
    }
    let mut after = map.clone();
    for (osd, w) in &weights {
        if let Some(slot) = usize::try_from(osd.0).ok().and_then(|i| after.weights.get_mut(i)) {
            *slot = *w;
        }
    }
    let pools: Vec<PoolId> = match order.pools {
        [] => map.pools.keys().copied().collect(),
        some => some.to_vec(),
    };
    let summary = Summary::new(map, &after, &pools);
    let text = format!(
        "{}\noload {}\nmax_change {}\nmax_change_osds {}\naverage_utilization {mean:.4}\n\
         overload_utilization {overload:.4}\n{lines}",
        summary.text(),
        order.oload,
        general(order.max_change),
        order.max_osds
    );
    let json = json!({
        "overload_min": order.oload,
        "max_change": order.max_change,
        "max_change_osds": order.max_osds,
        "average_utilization": mean,
        "overload_utilization": overload,
        "reweights": shown,
        "utilization": summary.json(),
    });
    Ok(Outcome { weights, json, text })
}

type Utilization = (f64, Vec<(OsdId, f64)>);

fn by_pgs(
    map: &OsdMap,
    acting: &BTreeMap<PgId, Vec<OsdId>>,
    order: &Order<'_>,
) -> Result<Utilization, Refused> {
    let weight = |osd: OsdId| map.crush.item_weight(osd.0).map_or(0.0, |w| f64::from(w) / ONE);
    let mut pgs: BTreeMap<OsdId, u64> = BTreeMap::new();
    for (pg, osds) in acting {
        if !order.pools.is_empty() && !order.pools.contains(&pg.pool) {
            continue;
        }
        for osd in osds.iter().filter(|o| map.exists(**o) && weight(**o) > 0.0) {
            *pgs.entry(*osd).or_default() += 1;
        }
    }
    let (copies, osds) = (pgs.values().sum::<u64>(), pgs.len() as u64);
    if osds == 0 || copies / osds < order.min_pgs {
        return Err(Refused::TooLittle(format!(
            "Refusing to reweight: we only have {copies} PGs across {osds} osds!\n"
        )));
    }
    let weights: f64 = pgs.keys().map(|o| weight(*o)).sum();
    let used = pgs.iter().map(|(o, n)| (*o, *n as f64 / weight(*o))).collect();
    Ok((copies as f64 / weights, used))
}

fn by_use(stats: &Stats, order: &Order<'_>) -> Result<Utilization, Refused> {
    let osds = stats.usage.len().max(1) as u64;
    let total: u64 = stats.usage.values().map(|u| u.total).sum();
    let used: u64 = stats.usage.values().map(|u| u.used).sum();
    if total / osds < order.min_bytes {
        return Err(Refused::TooLittle(format!(
            "Refusing to reweight: we only have {} kb across all osds!\n",
            total >> 10
        )));
    }
    if used / osds < order.min_bytes {
        return Err(Refused::TooLittle(format!(
            "Refusing to reweight: we only have {} kb used across all osds!\n",
            used >> 10
        )));
    }
    let part = |used: u64, total: u64| if total > 0 { used as f64 / total as f64 } else { 0.0 };
    let each = stats.usage.iter().filter(|(_, u)| u.total > 0);
    Ok((part(used, total), each.map(|(o, u)| (*o, part(u.used, u.total))).collect()))
}

/// How PGs lie on OSDs before and after.
struct Summary {
    moved: u64,
    total: u64,
    average: f64,
    deviation: (f64, f64),
    expected: f64,
    least: Option<(OsdId, u64, u64)>,
    most: Option<(OsdId, u64, u64)>,
}

impl Summary {
    fn new(map: &OsdMap, after: &OsdMap, pools: &[PoolId]) -> Summary {
        let (mut moved, mut total) = (0, 0);
        let mut count: BTreeMap<OsdId, (u64, u64)> =
            map.up_osds().into_iter().filter(|o| map.is_in(*o)).map(|o| (o, (0, 0))).collect();
        for pool in pools {
            let Some(p) = map.pool(*pool) else { continue };
            for pg in groups(map, *pool) {
                total += u64::from(p.size);
                let (up, up2) = (map.pg_to_up_acting(pg).up, after.pg_to_up_acting(pg).up);
                for (at, osd) in up.iter().enumerate() {
                    let stays = match p.is_replicated() {
                        true => up2.contains(osd),
                        false => up2.get(at) == Some(osd),
                    };
                    moved += u64::from(!stays);
                    if let Some((n, _)) = count.get_mut(osd) {
                        *n += 1;
                    }
                }
                for osd in &up2 {
                    if let Some((_, n)) = count.get_mut(osd) {
                        *n += 1;
                    }
                }
            }
        }
        let num = count.len().max(1) as f64;
        let average = total as f64 / num;
        let deviation = |n: &dyn Fn(&(u64, u64)) -> u64| {
            let squares = count.values().map(|c| (n(c) as f64 - average).powi(2));
            (squares.sum::<f64>() / num).sqrt()
        };
        let of = |o: (&OsdId, &(u64, u64))| (*o.0, o.1.0, o.1.1);
        Summary {
            moved,
            total,
            average,
            deviation: (deviation(&|c| c.0), deviation(&|c| c.1)),
            expected: (average * (1.0 - 1.0 / num)).sqrt(),
            least: count.iter().min_by_key(|(o, c)| (c.0, **o)).map(of),
            most: count.iter().max_by_key(|(o, c)| (c.0, std::cmp::Reverse(**o))).map(of),
        }
    }

    fn text(&self) -> String {
        let percent = match self.total {
            0 => 0.0,
            total => self.moved as f64 * 100.0 / total as f64,
        };
        let mut out = format!("moved {} / {} ({}%)\n", self.moved, self.total, general(percent));
        let _ = writeln!(out, "avg {}", general(self.average));
        let (before, after) = (general(self.deviation.0), general(self.deviation.1));
        let expected = general(self.expected);
        let _ = writeln!(out, "stddev {before} -> {after} (expected baseline {expected})");
        for (what, osd) in [("min", self.least), ("max", self.most)] {
            let Some((osd, before, after)) = osd else { continue };
            let mean = |n: u64| general(n as f64 / self.average);
            let _ = writeln!(
                out,
                "{what} osd.{osd} with {before} -> {after} pgs ({} -> {} * mean)",
                mean(before),
                mean(after)
            );
        }
        out
    }

    fn json(&self) -> Value {
        let mut out = json!({
            "moved_pgs": self.moved,
            "total_pgs": self.total,
            "avg_pgs": self.average,
            "std_dev": self.deviation.0,
            "expected_baseline_std_dev": self.expected,
            "new_std_dev": self.deviation.1,
        });
        for (what, osd) in [("min", self.least), ("max", self.most)] {
            if let Some((osd, before, after)) = osd {
                out[format!("{what}_osd")] = osd.0.into();
                out[format!("{what}_osd_pgs")] = before.into();
                out[format!("new_{what}_osd_pgs")] = after.into();
            }
        }
        out
    }
}
