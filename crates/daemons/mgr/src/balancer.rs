//! The balancer: its settings, plans, and when it may act (Ceph 16.2:
//! `src/pybind/mgr/balancer/module.py`). What it proposes, the crate `placement` works out.
//!
//! Plans live as long as this manager serves. An upmap stays, and needs no balancer to hold.

use crate::state::MgrState;
use command::Refusal;
use conf::Config;
use placement::balance::{Bounds, Measure, Proposal, propose};
use placement::leads::{Lead, propose_leads};
use placement::stats::{Holds, Stats, Usage};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use types::errno::Errno;
use types::stats::PgState;
use types::{OsdMap, PgId, PoolId, Release, Utime};

/// The operator's settings.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// It acts by itself.
    pub active: bool,
    /// `upmap`, `read`, `upmap-read`, or `none`.
    pub mode: String,
    /// Pools that it is limited to; all if there are none.
    pub pools: Vec<PoolId>,
    /// Upmaps that a plan changes at most.
    pub changes: usize,
    /// Bytes are to be even, within this part.
    pub by_bytes: Option<f64>,
    /// PGs are to be even, within so many.
    pub pgs: f64,
    /// The part of objects that may be misplaced while it acts.
    pub max_misplaced: f64,
    /// From when to when it acts by itself, in UTC: time of day (HHMM)
    pub hours: (String, String),
    /// and day of the week (0 is Sunday).
    pub days: (u64, u64),
    /// For `osd reweight-by-*`: PGs and bytes that an OSD has at least,
    pub min_pgs: u64,
    /// so many,
    pub min_bytes: u64,
    /// and by how much the weights
    pub max_change: f64,
    /// of how many OSDs change.
    pub max_osds: u64,
}

impl Settings {
    /// From the configuration.
    pub fn from_conf(conf: &Config) -> Settings {
        let ids = conf.str("mgr/balancer/pool_ids");
        let deviation = conf.f64("mgr/balancer/upmap_max_deviation_bytes");
        let by_bytes = conf.str("mgr/balancer/upmap_metric") == "bytes";
        Settings {
            active: conf.bool("mgr/balancer/active"),
            mode: conf.str("mgr/balancer/mode"),
            pools: ids.split(',').filter_map(|p| p.trim().parse().ok()).map(PoolId).collect(),
            changes: conf.u64("mgr/balancer/upmap_max_optimizations") as usize,
            by_bytes: by_bytes.then_some(deviation),
            pgs: conf.u64("mgr/balancer/upmap_max_deviation") as f64,
            max_misplaced: conf.f64("target_max_misplaced_ratio"),
            hours: (conf.str("mgr/balancer/begin_time"), conf.str("mgr/balancer/end_time")),
            days: (conf.u64("mgr/balancer/begin_weekday"), conf.u64("mgr/balancer/end_weekday")),
            min_pgs: conf.u64("mon_reweight_min_pgs_per_osd"),
            min_bytes: conf.u64("mon_reweight_min_bytes_per_osd"),
            max_change: conf.f64("mon_reweight_max_change"),
            max_osds: conf.u64("mon_reweight_max_osds"),
        }
    }

    fn measure(&self) -> Measure {
        self.by_bytes.map_or(Measure::Pgs(self.pgs), Measure::Bytes)
    }

    /// Whether it may act by itself at this time.
    pub fn permits(&self, now: Utime) -> bool {
        let (day, seconds) = (u64::from(now.sec) / 86_400, now.sec % 86_400);
        let time = format!("{:02}{:02}", seconds / 3600, seconds / 60 % 60);
        // The first of January 1970 was a Thursday.
        let weekday = (day + 4) % 7;
        let within = |begin: bool, end: bool, straight: bool| match straight {
            true => begin && end,
            false => begin || end,
        };
        let ((begin, end), (first, last)) = (&self.hours, self.days);
        within(time >= *begin, time < *end, begin <= end)
            && within(weekday >= first, weekday < last, first <= last)
    }
}

/// The changes of a plan.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Its name.
    pub name: String,
    /// The mode that it was made in.
    pub mode: String,
    /// The map that it was made from.
    pub map: Arc<OsdMap>,
    /// The pools that it is limited to.
    pub pools: Vec<PoolId>,
    /// The changes of where copies are,
    pub proposals: Vec<Proposal>,
    /// and of which copies lead.
    pub leads: Vec<Lead>,
}

impl Plan {
    /// The monitors' commands that execute it.
    pub fn orders(&self) -> Vec<Value> {
        let upmaps = self.proposals.iter().map(|p| match p.upmap.items.as_slice() {
            [] => json!({"prefix": "osd rm-pg-upmap-items", "pgid": p.pg.to_string()}),
            items => {
                let ids: Vec<_> =
                    items.iter().flat_map(|(a, b)| [a.to_string(), b.to_string()]).collect();
                json!({"prefix": "osd pg-upmap-items", "pgid": p.pg.to_string(), "id": ids})
            }
        });
        let leads = self.leads.iter().map(|l| match l.unasked {
            true => json!({"prefix": "osd rm-pg-upmap-primary", "pgid": l.pg.to_string()}),
            false => json!({
                "prefix": "osd pg-upmap-primary", "pgid": l.pg.to_string(), "id": l.to.to_string()
            }),
        });
        upmaps.chain(leads).collect()
    }

    /// The map with its changes.
    pub fn outcome(&self) -> OsdMap {
        let mut map = (*self.map).clone();
        for p in &self.proposals {
            p.upmap.put(&mut map, p.pg);
        }
        for l in &self.leads {
            match l.unasked {
                true => drop(map.pg_upmap_primaries.remove(&l.pg)),
                false => drop(map.pg_upmap_primaries.insert(l.pg, l.to)),
            }
        }
        map
    }

    /// As `ceph balancer show` prints it.
    pub fn show(&self) -> String {
        let mut lines = vec![
            format!("# starting osdmap epoch {}", self.map.epoch),
            format!("# starting crush version {}", self.map.crush_version),
            format!("# mode {}", self.mode),
        ];
        let removed = self.proposals.iter().filter(|p| p.upmap.is_empty());
        lines.extend(removed.map(|p| format!("ceph osd rm-pg-upmap-items {}", p.pg)));
        for p in self.proposals.iter().filter(|p| !p.upmap.is_empty()) {
            let ids: Vec<_> = p.upmap.items.iter().map(|(a, b)| format!("{a} {b}")).collect();
            lines.push(format!("ceph osd pg-upmap-items {} {}", p.pg, ids.join(" ")));
        }
        lines.extend(self.leads.iter().map(|l| match l.unasked {
            true => format!("ceph osd rm-pg-upmap-primary {}", l.pg),
            false => format!("ceph osd pg-upmap-primary {} {}", l.pg, l.to),
        }));
        lines.join("\n")
    }

    /// As `ceph balancer dump` prints it: the changes of the map.
    pub fn dump(&self) -> Value {
        let (old, new): (Vec<_>, Vec<_>) = self.proposals.iter().partition(|p| p.upmap.is_empty());
        let pairs = |p: &&Proposal| {
            let pairs: Vec<_> =
                p.upmap.items.iter().map(|(a, b)| json!({"from": a.0, "to": b.0})).collect();
            json!({"pgid": p.pg.to_string(), "mappings": pairs})
        };
        let (fewer, more): (Vec<_>, Vec<_>) = self.leads.iter().partition(|l| l.unasked);
        let lead = |l: &&Lead| json!({"pgid": l.pg.to_string(), "primary_osd": l.to.0});
        json!({
            "epoch": self.map.epoch.0 + 1,
            "new_pg_upmap_items": new.iter().map(pairs).collect::<Vec<_>>(),
            "old_pg_upmap_items": old.iter().map(|p| p.pg.to_string()).collect::<Vec<_>>(),
            "new_pg_upmap_primaries": more.iter().map(lead).collect::<Vec<_>>(),
            "old_pg_upmap_primaries": fewer.iter().map(|l| l.pg.to_string()).collect::<Vec<_>>(),
        })
    }
}

/// A movement job of the monitors (their command `move ls`).
#[derive(Clone, Debug, Default, PartialEq, serde::Deserialize)]
pub struct Move {
    /// Its number.
    pub id: u64,
    /// Its work, in words.
    pub what: String,
    /// Whether it goes on.
    pub state: String,
    /// The part that is done.
    pub progress: f64,
    /// Bytes that move in all,
    pub bytes: u64,
    /// and that have moved.
    pub bytes_moved: u64,
    /// The reason why it waits.
    pub note: String,
    ended: Option<String>,
}

impl Move {
    /// Those of a list that have not ended.
    pub fn open(list: &[u8]) -> Option<Vec<Move>> {
        let mut all: Vec<Move> = serde_json::from_slice(list).ok()?;
        all.retain(|m| m.ended.is_none());
        Some(all)
    }
}

/// The state of the balancer.
#[derive(Clone, Debug, Default)]
pub struct Balancer {
    /// The operator's settings.
    pub settings: Settings,
    /// Plans by name.
    pub plans: BTreeMap<String, Plan>,
    /// When the last attempt began, how long it took, and what came of it.
    pub started: String,
    /// How long.
    pub took: String,
    /// The outcome.
    pub result: String,
    /// Movement jobs that are open, as the monitors describe them; it waits for them.
    pub moves: Vec<Move>,
}

impl Balancer {
    /// As `ceph balancer status` shows it.
    pub fn status(&self) -> Value {
        json!({
            "active": self.settings.active,
            "last_optimize_duration": self.took,
            "last_optimize_started": self.started,
            "mode": self.settings.mode,
            "optimize_result": self.result,
            "plans": self.plans.keys().collect::<Vec<_>>(),
        })
    }

    /// Notes an attempt.
    pub fn note(&mut self, began: Utime, took: Duration, result: &Result<Plan, Refusal>) {
        self.started = began.ctime();
        let (s, micros) = (took.as_secs(), took.subsec_micros());
        self.took = format!("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
        if micros > 0 {
            self.took += &format!(".{micros:06}");
        }
        self.result = match result {
            Ok(_) => "Optimization plan created successfully".into(),
            Err(refusal) => refusal.message.clone(),
        };
    }
}

/// Objects and bytes of PGs, by the newest statistics.
pub fn stats(state: &MgrState) -> Stats {
    let groups = state.pg_map.pgs.iter().map(|(pg, s)| {
        let sum = &s.stats.sum;
        let count = |n: i64| n.max(0) as u64;
        (*pg, Holds { objects: count(sum.num_objects), bytes: count(sum.num_bytes) })
    });
    let usage = state.pg_map.osds.iter().filter(|(_, r)| !r.at.is_zero()).map(|(osd, r)| {
        (*osd, Usage { total: r.stat.statfs.total, used: r.stat.statfs.used_raw() })
    });
    Stats { groups: groups.collect(), usage: usage.collect() }
}

/// Whether clients understand what a mode changes.
pub fn clients_know(map: &OsdMap, mode: &str) -> Result<(), Refusal> {
    let (needed, name, what) = match mode {
        "upmap" => (Release::LUMINOUS, "luminous", "pg-upmap"),
        "read" | "upmap-read" => (Release::REEF, "reef", "pg-upmap-primary"),
        _ => return Ok(()),
    };
    if map.require_min_compat_client >= needed {
        return Ok(());
    }
    Err(Refusal::new(
        Errno::EPERM,
        format!(
            "min_compat_client \"{}\" < \"{name}\", which is required for {what}. Try \"ceph \
             osd set-require-min-compat-client {name}\" before enabling this mode",
            map.require_min_compat_client
        ),
    ))
}

/// Makes a plan, if the cluster is in a state for one.
pub fn optimize(state: &MgrState, name: &str, pools: Vec<PoolId>) -> Result<Plan, Refusal> {
    let Some(map) = &state.osd_map else {
        return Err(Refusal::new(Errno::EAGAIN, "the manager has no OSD map yet"));
    };
    let balancer = state.balancer.borrow();
    let settings = &balancer.settings;
    let again = |text: String| Err(Refusal::new(Errno::EAGAIN, text));
    let all = state.pg_map.pgs.len().max(1) as f64;
    let part = |f: &dyn Fn(PgState) -> bool| {
        state.pg_map.pgs.values().filter(|s| f(s.state)).count() as f64 / all
    };
    let sum = state.pg_map.pgs.values().fold((0i64, 0i64, 0i64), |(copies, bad, misplaced), s| {
        let s = &s.stats.sum;
        (
            copies + s.num_object_copies,
            bad + s.num_objects_degraded,
            misplaced + s.num_objects_misplaced,
        )
    });
    let of_copies = |n: i64| n.max(0) as f64 / sum.0.max(1) as f64;
    let (unknown, inactive) = (part(&|s| s == PgState(0)), part(&|s| !s.has(PgState::ACTIVE)));
    let (degraded, misplaced) = (of_copies(sum.1), of_copies(sum.2));
    if let Some(job) = balancer.moves.first() {
        return again(format!("The movement job {} is under way; try again later", job.id));
    } else if unknown > 0.0 {
        return again(format!("Some PGs ({unknown:.6}) are unknown; try again later"));
    } else if degraded > 0.0 {
        return again(format!("Some objects ({degraded:.6}) are degraded; try again later"));
    } else if inactive > 0.0 {
        return again(format!("Some PGs ({inactive:.6}) are inactive; try again later"));
    } else if misplaced >= settings.max_misplaced {
        return again(format!(
            "Too many objects ({misplaced:.6} > {:.6}) are misplaced; try again later",
            settings.max_misplaced
        ));
    }
    let (upmaps, reads) = match settings.mode.as_str() {
        "upmap" => (true, false),
        "read" => (false, true),
        "upmap-read" => (true, true),
        "none" => {
            let text = "Please do \"ceph balancer mode\" to choose a valid mode first";
            return Err(Refusal::new(Errno::ENOEXEC, text));
        }
        mode => return Err(Refusal::invalid(format!("Unrecognized mode {mode}"))),
    };
    clients_know(map, &settings.mode)?;
    if map.pools.is_empty() {
        return Err(Refusal::new(Errno::ENOENT, "No pools available"));
    }
    // Pools that get another number of PGs are left alone.
    let settled = |id: &PoolId| {
        map.pool(*id).is_some_and(|p| {
            p.pg_num == p.pg_num_target
                && p.pgp_num == p.pgp_num_target
                && p.pg_num_pending == p.pg_num
        })
    };
    let chosen: Vec<PoolId> = match pools.as_slice() {
        [] => map.pools.keys().copied().filter(settled).collect(),
        some => some.iter().copied().filter(settled).collect(),
    };
    let whole = PgState::ACTIVE | PgState::CLEAN;
    let movable = |pg: PgId| state.pg_map.pgs.get(&pg).is_some_and(|s| s.state == whole);
    let bounds = Bounds { measure: settings.measure(), changes: settings.changes };
    let proposals = match upmaps {
        true => propose(map, &stats(state), &chosen, bounds, &movable),
        false => Vec::new(),
    };
    // Copies first: a copy that moves may be the one that would lead.
    let leads = match reads && proposals.is_empty() {
        true => propose_leads(map, &chosen, settings.changes, &movable),
        false => Vec::new(),
    };
    if proposals.is_empty() && leads.is_empty() {
        return Err(Refusal::new(
            Errno::EALREADY,
            "Unable to find further optimization, or pool(s) pg_num is decreasing, or distribution \
             is already perfect",
        ));
    }
    Ok(Plan {
        name: name.to_owned(),
        mode: settings.mode.clone(),
        map: map.clone(),
        pools,
        proposals,
        leads,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_acts_when_it_may() {
        let settings = |hours: [&str; 2], days| Settings {
            hours: (hours[0].into(), hours[1].into()),
            days,
            ..Settings::default()
        };
        // Thursday, 01:30.
        let now = Utime::new(5400, 0);
        assert!(settings(["0000", "2400"], (0, 7)).permits(now));
        assert!(settings(["2200", "0600"], (0, 7)).permits(now), "over midnight");
        assert!(!settings(["0600", "2200"], (0, 7)).permits(now));
        assert!(!settings(["0000", "0130"], (0, 7)).permits(now), "the end is not part of it");
        assert!(settings(["0000", "2400"], (4, 5)).permits(now));
        assert!(!settings(["0000", "2400"], (5, 7)).permits(now));
        assert!(settings(["0000", "2400"], (6, 5)).permits(now), "over the weekend");
    }

    #[test]
    fn an_attempt_is_noted_as_stock_notes_it() {
        let mut b = Balancer::default();
        let refusal = Err(Refusal::new(Errno::EAGAIN, "later"));
        b.note(Utime::new(1_000_000_000, 0), Duration::from_micros(3_661_000_012), &refusal);
        assert_eq!(
            b.status(),
            json!({
                "active": false, "mode": "", "plans": [],
                "last_optimize_duration": "1:01:01.000012",
                "last_optimize_started": "Sun Sep  9 01:46:40 2001",
                "optimize_result": "later",
            })
        );
    }
}
