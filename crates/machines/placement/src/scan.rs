//! Looking at all placement groups of a map.

use crate::stats::groups;
use types::{OsdMap, PgId};

/// PGs that are worth a thread of their own.
const THREAD_PGS_MIN: usize = 16_384;
/// Threads at most: what else runs on the host shall go on.
const THREADS_MAX: usize = 4;

/// The PGs of a map for which the answer is yes, in their order. Each thread that looks makes its
/// own `look`, so that it has its own memory; the result does not depend on how many there are.
pub fn scan<L, F>(map: &OsdMap, look: F) -> Vec<PgId>
where
    F: Fn() -> L + Sync,
    L: FnMut(PgId) -> bool,
{
    let all: Vec<PgId> = map.pools.keys().flat_map(|p| groups(map, *p)).collect();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = cores.min(THREADS_MAX).min(all.len() / THREAD_PGS_MIN).max(1);
    let look = &look;
    let of = move |part: &[PgId]| {
        let mut look = look();
        part.iter().copied().filter(|pg| look(*pg)).collect::<Vec<_>>()
    };
    if threads == 1 {
        return of(&all);
    }
    std::thread::scope(|scope| {
        let parts = all.chunks(all.len().div_ceil(threads));
        let running: Vec<_> = parts.map(|part| scope.spawn(move || of(part))).collect();
        let found = running.into_iter().map(|t| match t.join() {
            Ok(found) => found,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        found.flatten().collect()
    })
}
