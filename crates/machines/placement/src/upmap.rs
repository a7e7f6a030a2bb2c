//! The upmap of one placement group.

use denc_derive::Denc;
use types::osdmap::{RuleWeights, UpmapFault};
use types::{OsdId, OsdMap, PgId};

/// How a PG is placed by hand (Ceph: `pg_upmap` and `pg_upmap_items` of the OSD map). Empty is not
/// at all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct Upmap {
    /// The whole placement.
    pub whole: Vec<OsdId>,
    /// Pairs of the OSD that is replaced and the one that takes its place.
    pub items: Vec<(OsdId, OsdId)>,
}

impl Upmap {
    /// That of a PG.
    pub fn of(map: &OsdMap, pg: PgId) -> Upmap {
        Upmap {
            whole: map.pg_upmap.get(&pg).cloned().unwrap_or_default(),
            items: map.pg_upmap_items.get(&pg).cloned().unwrap_or_default(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.whole.is_empty() && self.items.is_empty()
    }

    /// Gives it to a PG.
    pub fn put(&self, map: &mut OsdMap, pg: PgId) {
        if self.whole.is_empty() {
            map.pg_upmap.remove(&pg);
        } else {
            map.pg_upmap.insert(pg, self.whole.clone());
        }
        if self.items.is_empty() {
            map.pg_upmap_items.remove(&pg);
        } else {
            map.pg_upmap_items.insert(pg, self.items.clone());
        }
    }

    /// The upmap that places a PG on these OSDs, in a map that has room for the attempt: its upmap
    /// of the PG is another one afterwards. `None` if there is none that does.
    pub fn placing(map: &mut OsdMap, pg: PgId, wanted: &[OsdId]) -> Option<Upmap> {
        let replicated = map.pool(pg.pool)?.is_replicated();
        let size = usize::from(map.pool(pg.pool)?.size);
        let raw = map.pg_to_raw_osds(pg);
        let mut upmap = Upmap::default();
        if replicated {
            let gone = raw.iter().filter(|o| !wanted.contains(o));
            let come = wanted.iter().filter(|o| !raw.contains(o));
            upmap.items = gone.copied().zip(come.copied()).collect();
        } else if raw.len() == wanted.len() {
            let pairs = raw.iter().copied().zip(wanted.iter().copied());
            upmap.items = pairs.filter(|(from, to)| from != to).collect();
        }
        upmap.put(map, pg);
        if same_place(replicated, &map.pg_to_raw_upmap(pg), wanted) {
            return Some(upmap);
        }
        let whole = Upmap { whole: wanted.to_vec(), items: Vec::new() };
        whole.put(map, pg);
        let complete = wanted.len() == size && wanted.iter().all(|o| o.is_some());
        let placed = same_place(replicated, &map.pg_to_raw_upmap(pg), wanted);
        (complete && placed).then_some(whole)
    }
}

/// Whether two placements have the same data in the same place: the order of copies of a replicated
/// pool does not matter.
pub fn same_place<T: Copy + Ord>(replicated: bool, a: &[T], b: &[T]) -> bool {
    if a == b {
        return true;
    }
    if !replicated || a.len() != b.len() {
        return false;
    }
    let sorted = |osds: &[T]| {
        let mut osds = osds.to_vec();
        osds.sort_unstable();
        osds
    };
    sorted(a) == sorted(b)
}

/// A map in which upmaps are tried.
pub struct Trial {
    /// The map with what was accepted.
    pub map: OsdMap,
    weights: RuleWeights,
}

impl Trial {
    /// Begins with a map as it is.
    pub fn new(map: OsdMap) -> Self {
        Trial { map, weights: RuleWeights::default() }
    }

    /// Places a PG on these OSDs if an upmap does and the pool's rule allows it. The map stays as
    /// it is otherwise.
    pub fn place(&mut self, pg: PgId, wanted: &[OsdId]) -> Result<Upmap, Refused> {
        let before = Upmap::of(&self.map, pg);
        let tried = match Upmap::placing(&mut self.map, pg, wanted) {
            None => Err(Refused::NoUpmap),
            Some(_) if before.is_empty() && Upmap::of(&self.map, pg).is_empty() => {
                Ok(Upmap::default())
            }
            Some(upmap) => match self.map.check_upmap(pg, &mut self.weights) {
                Ok(()) => Ok(upmap),
                Err(fault) => Err(Refused::Fault(fault)),
            },
        };
        if tried.is_err() {
            before.put(&mut self.map, pg);
        }
        tried
    }

    /// Whether the rule allows a PG's upmap.
    pub fn is_sound(&mut self, pg: PgId) -> bool {
        self.map.check_upmap(pg, &mut self.weights).is_ok()
    }

    /// Gives a PG this upmap if the pool's rule allows it and all of it is of use.
    pub fn put(&mut self, pg: PgId, upmap: &Upmap) -> Result<(), Refused> {
        let before = Upmap::of(&self.map, pg);
        upmap.put(&mut self.map, pg);
        if upmap.is_empty() {
            return Ok(());
        }
        let checked = self.map.check_upmap(pg, &mut self.weights).map_err(Refused::Fault);
        if checked.is_err() {
            before.put(&mut self.map, pg);
        }
        checked
    }
}

/// Why a PG is not placed somewhere.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Upmaps do not express it.
    #[error("no upmap gives this placement")]
    NoUpmap,
    /// The rule does not allow it.
    #[error(transparent)]
    Fault(UpmapFault),
}
