//! How long movement jobs take to be planned and to take a step:
//! `cargo bench -p placement --bench plan`, with numbers of racks (each 20 hosts of 20 OSDs) as
//! arguments. The largest of the default ones is 10,000 OSDs with 320,000 PGs.

// It measures time.
#![allow(clippy::disallowed_methods)]

use placement::movement::{Goal, Job, Limits, Look, State, Verb, plan};
use placement::pace::ClientLatency;
use placement::stats;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use testing::{Rng, Shape, cluster};
use types::{OsdId, OsdMap, Utime};

#[allow(dead_code)]
#[path = "../src/testing.rs"]
mod testing;

const HOSTS: i32 = 20;
const OSDS: i32 = 20;
/// For 25 racks.
const POOLS: &[(u8, u32)] = &[(3, 262_144), (3, 57_856)];

fn main() {
    let given = std::env::args().skip(1).filter_map(|a| a.parse().ok());
    let mut racks: Vec<i32> = given.collect();
    if racks.is_empty() {
        racks = vec![5, 25];
    }
    println!("OSDs PGs job: begin, whole plan, steps (mean, longest)");
    for racks in racks {
        let parts: &'static [(u8, u32)] = Vec::leak(
            POOLS.iter().map(|(size, pgs)| (*size, pgs * racks as u32 / 25)).collect::<Vec<_>>(),
        );
        let shape =
            Shape { racks, hosts: HOSTS, osds: OSDS, pools: parts, erasure: false, mixed: false };
        let (map, stats) = cluster(shape, &mut Rng(1));
        let host: Vec<OsdId> = (0..OSDS).map(OsdId).collect();
        let goal = |verb, weight| Goal {
            verb,
            osds: host.iter().map(|o| (*o, weight)).collect(),
            ..Goal::default()
        };
        let emptied = measure("drain a host", goal(Verb::Drain, 0), &map, &stats);
        let mut fresh = stats.clone();
        for osd in &host {
            fresh.usage.get_mut(osd).unwrap().used = 0;
        }
        measure("grow by a host", goal(Verb::Grow, 0x10000), &emptied, &fresh);
    }
}

fn measure(name: &str, goal: Goal, map: &OsdMap, stats: &stats::Stats) -> OsdMap {
    let limits = Limits { pgs: 64, per_osd: 8, ..Limits::default() };
    let began = Instant::now();
    let (job, edits) = Job::begin(1, goal, limits, map, stats, Utime::default()).unwrap();
    let begin = began.elapsed();
    let mut map = map.clone();
    edits.apply(&mut map).unwrap();
    let began = Instant::now();
    let (planned, end) = plan(&job, &map, stats).unwrap();
    let whole = began.elapsed();
    assert_eq!(planned.stuck, None);
    let steps = steps(job, map.clone(), stats);
    let (sum, longest) = (steps.iter().sum::<Duration>(), steps.iter().max());
    println!(
        "{} {} {name}: {begin:.1?}, {whole:.1?} for {} maps and {} placements, {} steps \
         ({:.2?}, {:.2?})",
        map.osds.len(),
        map.pools.values().map(|p| p.pg_num).sum::<u32>(),
        planned.maps,
        planned.pgs,
        steps.len(),
        sum / steps.len() as u32,
        longest.unwrap(),
    );
    end
}

/// The time that each step takes while all that moves arrives at once.
fn steps(mut job: Job, mut map: OsdMap, stats: &stats::Stats) -> Vec<Duration> {
    let (unclean, acting, serials) = (BTreeSet::new(), BTreeMap::new(), BTreeMap::new());
    let mut took = Vec::new();
    while job.state == State::Running {
        let look = Look {
            map: &map,
            stats,
            unclean: &unclean,
            degraded: false,
            acting: &acting,
            told: map.epoch,
            next: map.epoch.next(),
            now: Utime::default(),
            clients: ClientLatency::default(),
            serials: &serials,
        };
        let began = Instant::now();
        let edits = job.step(look);
        took.push(began.elapsed());
        if let Some(edits) = edits {
            edits.apply(&mut map).unwrap();
            map.epoch = map.epoch.next();
        }
    }
    took
}
