//! What a job would do, before it begins.

use super::Job;
use super::batch::Look;
use super::record::{Limits, State, Stop};
use crate::Stats;
use crate::pace::ClientLatency;
use std::collections::{BTreeMap, BTreeSet};
use types::{OsdId, OsdMap, Utime};

/// What a job would do.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Maps that it makes.
    pub maps: u64,
    /// Placements that change.
    pub pgs: u64,
    /// Bytes that move.
    pub bytes: u64,
    /// The part of its device that each OSD that something comes to has taken at most.
    pub peak: BTreeMap<OsdId, f64>,
    /// Why it does not reach its goal, as things are.
    pub stuck: Option<String>,
    /// PGs that stay where they are although they should not.
    pub skipped: u64,
}

/// Steps of a plan at most.
pub(super) const PLAN_STEPS_MAX: u64 = 100_000;

/// Goes through a job that was just begun, as if all went well. `map` has what beginning it
/// changed.
pub fn plan(job: &Job, map: &OsdMap, stats: &Stats) -> Result<(Plan, OsdMap), Stop> {
    let (mut job, mut map, mut stats) = (job.clone(), map.clone(), stats.clone());
    // Hours, rate and ceiling make it longer, not other.
    job.limits = Limits { rate: 0, from: 0, until: 0, p99: 0, ..job.limits };
    let (unclean, acting, serials) = (BTreeSet::new(), BTreeMap::new(), BTreeMap::new());
    let mut plan = Plan::default();
    for _ in 0..PLAN_STEPS_MAX {
        let next = map.epoch.next();
        let look = Look {
            map: &map,
            stats: &stats,
            unclean: &unclean,
            degraded: false,
            acting: &acting,
            told: map.epoch,
            next,
            now: Utime::default(),
            clients: ClientLatency::default(),
            serials: &serials,
        };
        let edits = job.step(look);
        if let Some(edits) = &edits {
            edits.apply(&mut map)?;
            map.epoch = next;
        }
        for m in job.moving.values() {
            plan.pgs += 1;
            plan.bytes += m.bytes * m.to.len() as u64;
            for osd in &m.to {
                if let Some(u) = stats.usage.get_mut(osd) {
                    u.used += m.bytes;
                }
            }
        }
        for osd in job.moving.values().flat_map(|m| &m.to) {
            if let Some(u) = stats.usage.get(osd).filter(|u| u.total > 0) {
                let peak = plan.peak.entry(*osd).or_default();
                *peak = peak.max(u.used as f64 / u.total as f64);
            }
        }
        for m in job.moving.values() {
            for osd in &m.from {
                if let Some(u) = stats.usage.get_mut(osd) {
                    u.used = u.used.saturating_sub(m.bytes);
                }
            }
        }
        if !job.state.is_open() || job.state == State::Waits {
            break;
        }
        if edits.is_none() && job.moving.is_empty() {
            plan.stuck = Some(job.note.clone());
            break;
        }
    }
    (plan.maps, plan.skipped) = (job.maps, job.skipped);
    Ok((plan, map))
}
