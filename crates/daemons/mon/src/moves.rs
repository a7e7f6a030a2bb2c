//! Movement jobs: what a step is chosen from, and the steps of the job that is open. What is
//! chosen, the crate `placement` says.

use crate::osd_state::OsdMapExt;
use crate::state::{Change, Pending};
use pgmap::Digest;
use placement::movement::{Edits, Job, Look, State, Stop};
use placement::stats::{Holds, Stats, Usage};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use types::{Epoch, OsdId, OsdMap, PgId, Utime};

/// Jobs that have ended and are kept.
const ENDED_MAX: usize = 64;

/// What the manager's digest says of data.
#[derive(Debug)]
pub struct Known {
    /// Bytes of PGs, use of OSDs.
    pub stats: Stats,
    unclean: BTreeSet<PgId>,
    acting: BTreeMap<OsdId, u32>,
    told: Epoch,
}

impl Known {
    /// From a digest.
    pub fn new(map: &OsdMap, digest: &Digest) -> Known {
        let groups = digest.group_kib.iter().flat_map(|(pool, sizes)| {
            sizes.iter().enumerate().map(|(seed, kib)| {
                let bytes = u64::from(*kib) << 10;
                (PgId::new(*pool, seed as u32), Holds { objects: 0, bytes })
            })
        });
        let usage = digest.usage_by_osd.iter().filter(|(_, (total, _))| *total > 0);
        let usage = usage.map(|(osd, (total, available))| {
            (*osd, Usage { total: *total, used: total.saturating_sub(*available) })
        });
        // PGs that were not reported are not known to be clean.
        let unreported = map.pools.iter().flat_map(|(pool, p)| {
            let known = digest.group_kib.get(pool).map_or(0, |s| s.len() as u32);
            (known..p.pg_num).map(|seed| PgId::new(*pool, seed))
        });
        let told = map.osds().filter(|o| map.is_up(*o));
        let told = told.map(|o| digest.osd_epochs.get(&o).copied().unwrap_or(Epoch(0)));
        Known {
            stats: Stats { groups: groups.collect(), usage: usage.collect() },
            unclean: digest.unclean.iter().copied().chain(unreported).collect(),
            acting: digest.pgs_by_osd.clone(),
            told: told.min().unwrap_or(Epoch(0)),
        }
    }

    fn look<'a>(&'a self, map: &'a OsdMap, next: Epoch, now: Utime) -> Look<'a> {
        let Known { stats, unclean, acting, told } = self;
        Look { map, stats, unclean, acting, told: *told, next, now }
    }
}

/// The job that may still change the map.
pub fn open(moves: &BTreeMap<u64, Arc<Job>>) -> Option<&Arc<Job>> {
    moves.values().find(|j| j.state.is_open())
}

/// Keeps a job, with what it changes, in the batch.
pub fn keep(p: &mut Pending, job: Job, edits: &Edits) -> Result<(), Stop> {
    if *edits != Edits::default() {
        let mut next = p.osd().clone();
        edits.apply(&mut next)?;
        let epoch = p.osd_epoch();
        let map = p.osd_mut();
        map.crush = next.crush;
        map.pools = next.pools;
        for (pool, _) in &edits.change.rules {
            if let Some(pool) = map.pools.get_mut(pool) {
                pool.last_change = epoch;
            }
        }
        map.pg_upmap = next.pg_upmap;
        map.pg_upmap_items = next.pg_upmap_items;
    }
    p.put(Change::Move(job.id, Some(Box::new(job))));
    let ended: Vec<u64> =
        p.state().moves.values().filter(|j| !j.state.is_open()).map(|j| j.id).collect();
    for id in ended.iter().take(ended.len().saturating_sub(ENDED_MAX)) {
        p.put(Change::Move(*id, None));
    }
    Ok(())
}

/// The next step of the open job; a line for the cluster log if it came to another state.
pub fn step(p: &mut Pending, digest: &Digest) -> Option<String> {
    let before = open(&p.state().moves)?.clone();
    let (mut job, map) = ((*before).clone(), p.osd().clone());
    let known = Known::new(&map, digest);
    let edits = job.step(known.look(&map, p.osd_epoch(), p.now()));
    if job == *before && edits.is_none() {
        return None;
    }
    let (id, state, note) = (job.id, job.state, job.note.clone());
    if let Err(Stop(why)) = keep(p, job, &edits.unwrap_or_default()) {
        return Some(format!("movement job {id} cannot take its step: {why}"));
    }
    let stuck = note.starts_with("stuck") && note != before.note;
    match state {
        State::Running if stuck => Some(format!("movement job {id} is {note}")),
        _ if state == before.state => None,
        _ => Some(format!("movement job {id} is {}", state.name())),
    }
}
