//! Movement jobs: what a step is chosen from, and the steps of the job that is open. What is
//! chosen, the crate `placement` says.

use crate::osd_state::OsdMapExt;
use crate::state::{Change, ClusterState, Metadata, Pending};
use pgmap::Digest;
use placement::movement::{Edits, Job, Look, State, Stop};
use placement::pace::ClientLatency;
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
    degraded: bool,
    acting: BTreeMap<OsdId, u32>,
    told: Epoch,
    clients: ClientLatency,
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
            degraded: digest.pg_sum.stats.sum.num_objects_degraded > 0,
            acting: digest.pgs_by_osd.clone(),
            told: told.min().unwrap_or(Epoch(0)),
            clients: ClientLatency {
                number: digest.clients.number,
                p99: (digest.clients.count > 0).then_some(digest.clients.p99),
            },
        }
    }

    fn look<'a>(
        &'a self,
        map: &'a OsdMap,
        serials: &'a BTreeMap<OsdId, String>,
        next: Epoch,
        now: Utime,
    ) -> Look<'a> {
        let Known { stats, unclean, degraded, acting, told, clients } = self;
        let (degraded, told, clients) = (*degraded, *told, *clients);
        Look { map, stats, unclean, degraded, acting, told, next, now, clients, serials }
    }
}

/// Models and serial numbers of devices by their OSDs, as those tell them. A device that has
/// several OSDs is left out: it does not tell one from the other.
pub fn serials(metadata: &BTreeMap<OsdId, Metadata>) -> BTreeMap<OsdId, String> {
    let mut count: BTreeMap<&str, u32> = BTreeMap::new();
    let ids = metadata.iter().filter_map(|(osd, m)| {
        let ids = m.get("device_ids")?;
        ids.contains('=').then_some((*osd, ids.as_str()))
    });
    let ids: Vec<(OsdId, &str)> = ids.collect();
    for (_, id) in &ids {
        *count.entry(serial(id)).or_default() += 1;
    }
    let alone = ids.iter().filter(|(_, id)| count.get(serial(id)) == Some(&1));
    alone.map(|(osd, id)| (*osd, serial(id).to_owned())).collect()
}

/// `MODEL_SERIAL` of `sda=MODEL_SERIAL`: the kernel's name says nothing of the device.
fn serial(id: &str) -> &str {
    id.split_once('=').map_or(id, |(_, serial)| serial)
}

/// The job that may still change the map.
pub fn open(moves: &BTreeMap<u64, Arc<Job>>) -> Option<&Arc<Job>> {
    moves.values().find(|j| j.state.is_open())
}

/// The ceiling on clients' p99 that the open job has for OSDs, in microseconds.
pub fn ceiling(state: &ClusterState) -> Option<u64> {
    open(&state.moves)?.ceiling()
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
    let serials = match job.state {
        State::Waits => serials(&p.state().osd_metadata),
        _ => BTreeMap::new(),
    };
    let edits = job.step(known.look(&map, &serials, p.osd_epoch(), p.now()));
    if job == *before && edits.is_none() {
        return None;
    }
    let (id, state, note) = (job.id, job.state, job.note.clone());
    if let Err(Stop(why)) = keep(p, job, &edits.unwrap_or_default()) {
        return Some(format!("movement job {id} cannot take its step: {why}"));
    }
    let stuck = note.starts_with("stuck") && note != before.note;
    let same_device = state == State::Waits && !note.is_empty() && note != before.note;
    match state {
        _ if same_device => Some(format!("movement job {id} waits: {note}")),
        State::Running if stuck => Some(format!("movement job {id} is {note}")),
        _ if state == before.state => None,
        _ => Some(format!("movement job {id} is {}", state.name())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_of_several_osds_tells_none_from_the_other() {
        let of = |id: &str| Metadata::from([("device_ids".to_owned(), id.to_owned())]);
        let metadata = BTreeMap::from([
            (OsdId(0), of("sda=M_1")),
            // Another host calls its device the same.
            (OsdId(1), of("sda=M_2")),
            (OsdId(2), of("nvme0n1=M_3")),
            (OsdId(3), of("nvme0n1=M_3")),
            (OsdId(4), of("")),
            (OsdId(5), Metadata::new()),
        ]);
        let known = [(OsdId(0), "M_1".to_owned()), (OsdId(1), "M_2".to_owned())];
        assert_eq!(serials(&metadata), known.into());
    }
}
