//! The OSD map of a process, and where its placement groups are served.
//!
//! The objecters of all threads read one map. Increments are applied to it in place, so an epoch
//! costs what it changes; only a caller that holds on to an older epoch makes it cost a copy.
//! Beside the map stands where each PG that is in use is served: CRUSH runs once for a PG and a
//! change, not once for a request.
//!
//! Every epoch counts: OSDs forget the requests of a PG that moves away and back again. A thread
//! that looks only at the second of the two epochs must still send its requests again, so a PG's
//! entry has a serial number that each change of its placement makes new.

use crate::placement::{Placement, is_full, is_paused};
use crate::scope::Scope;
use messages::OsdMapMsg;
use rustc_hash::FxHashMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use tokio::sync::watch;
use types::rados::OsdFlags;
use types::{Epoch, Fsid, OsdMap, OsdMapIncremental, PgId};

/// The OSD map that the threads of a process share. Cheap to clone, and `Send`: each thread makes
/// its own [`Objecter`](crate::Objecter) with [`Objecter::with_map`](crate::Objecter::with_map).
/// One of them subscribes to maps for all; when it ends, another takes that over.
#[derive(Clone, Debug, Default)]
pub struct SharedMap(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: RwLock<State>,
    /// Counts what may concern other threads: new maps, and the end of the subscriber.
    news: watch::Sender<u64>,
}

impl Default for Shared {
    fn default() -> Self {
        Shared { state: RwLock::default(), news: watch::Sender::new(0) }
    }
}

#[derive(Debug, Default)]
struct State {
    map: Option<Arc<OsdMap>>,
    placed: FxHashMap<PgId, Arc<Placed>>,
    last_serial: u64,
    members: u64,
    /// The member that subscribes.
    subscriber: Option<u64>,
}

/// A PG in use.
#[derive(Debug)]
pub(crate) struct Placed {
    pub at: Placement,
    /// A request that was sent under another serial must be sent again.
    pub serial: u64,
    full: bool,
}

/// The target of a request by the newest map.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    pub epoch: Epoch,
    /// The object's raw hash.
    pub hash: u32,
    pub placed: Arc<Placed>,
    /// It must wait for another map.
    pub paused: bool,
}

/// What [`SharedMap::offer`] made of maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offer {
    Advanced,
    Known,
    /// They begin behind a gap: what follows this epoch is missing.
    Gap(Epoch),
    /// One cannot be applied; all is to begin with a full map.
    Broken,
}

impl SharedMap {
    /// Without a map yet.
    pub fn new() -> Self {
        Self::default()
    }

    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.0.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.0.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The newest map, once there is one. Code that keeps it makes the next epoch cost a copy.
    pub fn get(&self) -> Option<Arc<OsdMap>> {
        self.read().map.clone()
    }

    /// The newest map's epoch, 0 if there is none.
    pub fn epoch(&self) -> Epoch {
        self.read().map.as_ref().map_or(Epoch(0), |m| m.epoch)
    }

    /// Looks at the map.
    pub(crate) fn with<R>(&self, look: impl FnOnce(&OsdMap) -> R) -> Option<R> {
        self.read().map.as_deref().map(look)
    }

    pub(crate) fn news(&self) -> watch::Receiver<u64> {
        self.0.news.subscribe()
    }

    pub(crate) fn join(&self) -> Member {
        let mut state = self.write();
        state.members += 1;
        Member { map: self.clone(), id: state.members }
    }

    /// Where a request goes; `None` without a map, `Some(None)` without its pool.
    pub(crate) fn route(&self, scope: &Scope, flags: OsdFlags) -> Option<Option<Route>> {
        let (pgid, route) = {
            let state = self.read();
            let map = state.map.as_deref()?;
            let Some(pool) = map.pool(scope.pool()) else { return Some(None) };
            let raw = scope.raw_pg(pool);
            let pgid = pool.raw_pg_to_pg(raw);
            let route = state.placed.get(&pgid).map(|placed| Route {
                epoch: map.epoch,
                hash: raw.seed,
                placed: placed.clone(),
                paused: is_paused(map, pool, flags),
            });
            (pgid, route)
        };
        if route.is_some() {
            return Some(route);
        }
        self.write().place(pgid);
        // The map may be another by now.
        self.route(scope, flags)
    }

    /// Takes maps from wherever they come.
    pub(crate) fn offer(&self, cluster: Option<Fsid>, maps: &OsdMapMsg) -> Offer {
        if cluster.is_some_and(|fsid| fsid != maps.fsid) {
            tracing::warn!("OSD maps of another cluster");
            return Offer::Known;
        }
        let offer = self.write().offer(maps);
        if offer == Offer::Advanced {
            self.tell();
        }
        offer
    }

    fn tell(&self) {
        self.0.news.send_modify(|n| *n += 1);
    }
}

impl State {
    fn place(&mut self, pgid: PgId) {
        let Some(map) = self.map.as_deref() else { return };
        if self.placed.contains_key(&pgid) {
            return;
        }
        if let Some(at) = Placement::of(map, pgid) {
            let full = map.pool(pgid.pool).is_some_and(|pool| is_full(map, pool));
            self.last_serial += 1;
            let serial = self.last_serial;
            self.placed.insert(pgid, Arc::new(Placed { at, serial, full }));
        }
    }

    fn offer(&mut self, maps: &OsdMapMsg) -> Offer {
        let mut offer = Offer::Known;
        loop {
            let next = match &self.map {
                // The first map is a full one, whichever is newest.
                None => maps.maps.last_key_value().map(|(epoch, _)| *epoch),
                Some(map) => Some(map.epoch.next()),
            };
            let Some(next) = next else { break };
            let applied = match (maps.maps.get(&next), maps.incremental_maps.get(&next)) {
                (_, Some(inc)) if self.map.is_some() => self.step(inc),
                (Some(full), _) => self.replace(full),
                // A full map further on bridges a gap; otherwise the missing maps are asked for.
                _ => match maps.maps.range(next..).next_back() {
                    Some((_, full)) => self.replace(full),
                    None => break,
                },
            };
            if let Err(error) = applied {
                tracing::warn!(error, epoch = next.0, "cannot apply an OSD map");
                // Better all over again than on with a wrong map.
                self.map = None;
                self.placed.clear();
                return Offer::Broken;
            }
            offer = Offer::Advanced;
        }
        let have = self.map.as_ref().map_or(Epoch(0), |m| m.epoch);
        match maps.first() {
            Some(first) if offer == Offer::Known && first > have.next() => Offer::Gap(have),
            _ => offer,
        }
    }

    /// A whole map. What happened since the last one is not known: every placement is new.
    fn replace(&mut self, full: &bytes::Bytes) -> Result<(), String> {
        let map: OsdMap = denc::Decode::from_bytes(full).map_err(|e| e.to_string())?;
        self.placed.clear();
        self.map = Some(Arc::new(map));
        Ok(())
    }

    /// The next epoch.
    fn step(&mut self, bytes: &bytes::Bytes) -> Result<(), String> {
        let inc: OsdMapIncremental = denc::Decode::from_bytes(bytes).map_err(|e| e.to_string())?;
        let Some(map) = &mut self.map else { return Ok(()) };
        if !inc.fullmap.is_empty() {
            self.placed.clear();
        }
        // As in Ceph's clients, the map's checksum is not computed: that would encode all of it.
        // The increment's own was checked when it was decoded.
        Arc::make_mut(map).apply_incremental(&inc).map_err(|e| e.to_string())?;
        let map = map.clone();
        if may_move_all(&inc) {
            self.placed.retain(|pgid, placed| keep(&map, *pgid, placed, &mut self.last_serial));
        } else {
            for pgid in moved(&inc) {
                if let Some(placed) = self.placed.get_mut(&pgid)
                    && !keep(&map, pgid, placed, &mut self.last_serial)
                {
                    self.placed.remove(&pgid);
                }
            }
        }
        Ok(())
    }
}

/// Brings a PG up to date if a request of some thread is about it; the others are placed anew when
/// they are needed.
fn keep(map: &OsdMap, pgid: PgId, placed: &mut Arc<Placed>, last_serial: &mut u64) -> bool {
    if Arc::strong_count(placed) == 1 {
        return false;
    }
    let (Some(at), Some(pool)) = (Placement::of(map, pgid), map.pool(pgid.pool)) else {
        return false;
    };
    let full = is_full(map, pool);
    // An OSD without room may have dropped a write.
    let same = at == placed.at && (full || !placed.full);
    if !same {
        *last_serial += 1;
    }
    if !same || full != placed.full {
        let serial = if same { placed.serial } else { *last_serial };
        *placed = Arc::new(Placed { at, serial, full });
    }
    true
}

/// Whether an increment may move any PG, or end its interval.
fn may_move_all(inc: &OsdMapIncremental) -> bool {
    !inc.fullmap.is_empty()
        || !inc.crush.is_empty()
        || !inc.new_state.is_empty()
        || !inc.new_up_client.is_empty()
        || !inc.new_weight.is_empty()
        || !inc.new_primary_affinity.is_empty()
        || !inc.new_pools.is_empty()
        || !inc.old_pools.is_empty()
        || inc.new_flags >= 0
        || inc.new_max_osd >= 0
        || inc.new_require_osd_release.is_change()
        || inc.new_stretch.is_some()
}

/// The PGs that an increment names one by one.
fn moved(inc: &OsdMapIncremental) -> impl Iterator<Item = PgId> {
    let new = inc.new_pg_temp.keys().chain(inc.new_primary_temp.keys());
    let upmaps = inc.new_pg_upmap.keys().chain(&inc.old_pg_upmap);
    let items = inc.new_pg_upmap_items.keys().chain(&inc.old_pg_upmap_items);
    let primaries = inc.new_pg_upmap_primaries.keys().chain(&inc.old_pg_upmap_primaries);
    new.chain(upmaps).chain(items).chain(primaries).copied()
}

/// One objecter's part in a map. The subscription is free for another when it is dropped.
#[derive(Debug)]
pub(crate) struct Member {
    map: SharedMap,
    id: u64,
}

impl Member {
    /// Takes the subscription if no other member has it. True if that is news.
    pub(crate) fn claim(&self) -> bool {
        let mut state = self.map.write();
        let free = state.subscriber.is_none();
        if free {
            state.subscriber = Some(self.id);
        }
        free
    }

    /// Whether this member subscribes.
    pub(crate) fn subscribes(&self) -> bool {
        self.map.read().subscriber == Some(self.id)
    }

    /// Gives the subscription up.
    pub(crate) fn leave(&self) {
        {
            let mut state = self.map.write();
            if state.subscriber != Some(self.id) {
                return;
            }
            state.subscriber = None;
        }
        self.map.tell();
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use denc::{Encode, Features};
    use std::collections::BTreeMap;
    use types::rados::{osd_state, osdmap_flag};
    use types::{OsdId, PgPool, PoolId};

    const POOL: PoolId = PoolId(1);

    fn map() -> OsdMap {
        let mut map = OsdMap { epoch: Epoch(5), ..OsdMap::default() };
        let pool = PgPool { pg_num: 8, pgp_num: 8, size: 2, min_size: 1, ..PgPool::default() };
        map.pools.insert(POOL, pool);
        map.set_max_osd(3);
        for osd in &mut map.osds {
            osd.state = osd_state::EXISTS | osd_state::UP;
        }
        for seed in 0..8 {
            map.pg_temp.insert(PgId::new(POOL, seed), vec![OsdId(1), OsdId(2)]);
        }
        map
    }

    fn inc(epoch: u32, change: impl FnOnce(&mut OsdMapIncremental)) -> OsdMapIncremental {
        let mut inc = OsdMapIncremental { epoch: Epoch(epoch), ..OsdMapIncremental::default() };
        change(&mut inc);
        inc
    }

    fn full(map: &OsdMap) -> OsdMapMsg {
        let bytes = map.to_bytes(Features::ALL);
        OsdMapMsg { maps: BTreeMap::from([(map.epoch, bytes)]), ..OsdMapMsg::default() }
    }

    fn steps(incs: &[OsdMapIncremental]) -> OsdMapMsg {
        let steps = incs.iter().map(|i| (i.epoch, i.to_bytes(Features::ALL)));
        OsdMapMsg { incremental_maps: steps.collect(), ..OsdMapMsg::default() }
    }

    fn pg(seed: u32) -> Scope {
        Scope::Pg { pgid: PgId::new(POOL, seed), namespace: bytes::Bytes::new() }
    }

    fn route(shared: &SharedMap, seed: u32) -> Route {
        shared.route(&pg(seed), OsdFlags::WRITE).unwrap().unwrap()
    }

    fn temp(seed: u32, osds: &[i32]) -> impl FnOnce(&mut OsdMapIncremental) {
        let osds = osds.iter().map(|o| OsdId(*o)).collect();
        move |inc| drop(inc.new_pg_temp.insert(PgId::new(POOL, seed), osds))
    }

    #[test]
    fn maps_come_in_order_and_gaps_are_seen() {
        let shared = SharedMap::new();
        assert!(shared.route(&pg(0), OsdFlags::READ).is_none());
        let later = steps(&[inc(6, |_| ()), inc(7, |_| ())]);
        assert_eq!(shared.offer(None, &later), Offer::Gap(Epoch(0)));
        assert_eq!(shared.offer(None, &full(&map())), Offer::Advanced);
        assert_eq!(shared.offer(None, &later), Offer::Advanced);
        assert_eq!(shared.epoch(), Epoch(7));
        assert_eq!(shared.offer(None, &later), Offer::Known);
        assert_eq!(shared.offer(None, &steps(&[inc(9, |_| ())])), Offer::Gap(Epoch(7)));
        let no_room = inc(8, |i| {
            i.new_weight.insert(OsdId(99), 0);
        });
        assert_eq!(shared.offer(None, &steps(&[no_room])), Offer::Broken);
        assert!(shared.get().is_none(), "the next map must be a full one");
        assert_eq!(shared.offer(Some(Fsid([1; 16])), &full(&map())), Offer::Known);
    }

    #[test]
    fn a_pg_that_moves_and_moves_back_has_another_serial() {
        let shared = SharedMap::new();
        shared.offer(None, &full(&map()));
        let (moved, stayed) = (route(&shared, 1), route(&shared, 2));
        assert_eq!(moved.placed.at.primary, Some(OsdId(1)));
        shared.offer(None, &steps(&[inc(6, temp(1, &[2, 1])), inc(7, temp(1, &[1, 2]))]));
        let again = route(&shared, 1);
        assert_eq!(again.placed.at, moved.placed.at);
        assert_ne!(again.placed.serial, moved.placed.serial);
        assert_eq!(route(&shared, 2).placed.serial, stayed.placed.serial);
        // What no request is about is forgotten when anything may move.
        drop((moved, again));
        shared.offer(
            None,
            &steps(&[inc(8, |i| {
                i.new_state.insert(OsdId(0), osd_state::UP);
            })]),
        );
        assert_eq!(shared.read().placed.len(), 1);
        assert_eq!(route(&shared, 2).placed.serial, stayed.placed.serial);
    }

    #[test]
    fn writes_are_repeated_when_there_is_room_again() {
        let shared = SharedMap::new();
        shared.offer(None, &full(&map()));
        let before = route(&shared, 0);
        let flags = |epoch, flags: u32| steps(&[inc(epoch, |i| i.new_flags = flags as i32)]);
        shared.offer(None, &flags(6, osdmap_flag::FULL));
        let full = route(&shared, 0);
        assert!(full.paused && !before.paused);
        assert_eq!(full.placed.serial, before.placed.serial);
        shared.offer(None, &flags(7, 0));
        let after = route(&shared, 0);
        assert!(!after.paused && after.placed.serial != before.placed.serial);
    }

    #[test]
    fn an_epoch_copies_the_map_only_for_those_who_hold_it() {
        let shared = SharedMap::new();
        shared.offer(None, &full(&map()));
        let at = |s: &SharedMap| s.with(|m| m as *const OsdMap as usize).unwrap();
        let before = at(&shared);
        shared.offer(None, &steps(&[inc(6, temp(1, &[2]))]));
        assert_eq!(at(&shared), before);
        let held = shared.get().unwrap();
        shared.offer(None, &steps(&[inc(7, temp(1, &[1]))]));
        assert_ne!(at(&shared), before);
        assert_eq!((held.epoch, shared.epoch()), (Epoch(6), Epoch(7)));
    }

    #[test]
    fn one_member_subscribes_and_another_takes_over() {
        let shared = SharedMap::new();
        let (a, b) = (shared.join(), shared.join());
        assert!(a.claim() && !b.claim() && !a.claim());
        assert!(a.subscribes() && !b.subscribes());
        let mut news = shared.news();
        drop(a);
        assert!(news.has_changed().unwrap());
        news.mark_unchanged();
        assert!(b.claim());
    }
}
