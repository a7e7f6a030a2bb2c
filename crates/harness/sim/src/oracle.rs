//! What must be true across OSDs after every event.
//!
//! The history of what clients saw tells that something went wrong. This tells when, and also of
//! what no client happened to look at:
//!
//! * All OSDs that would answer a client for an object at a moment are in the same interval, and
//!   one of them at most is a primary.
//! * An answer comes from an acting set of at least `min_size`. That of a change comes when it is
//!   durable on all of them.
//! * A monitor shows no map that a majority has not agreed on, and an OSD acts on no other, and on
//!   none that is older than one before it.
//! * A process that is marked up again knows that it was down.
//! * Once a copy counts, every change that was answered is in it: as content, as a deletion, or as
//!   a missing object.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use pg::MapView;
use types::{Epoch, Eversion, ObjectId, OsdId, PgId, PgShard, PoolId, SpgId};

use crate::content::{object_id, value_if_whole};
use crate::map::MapModel;
use crate::monitor::Monitor;
use crate::object::Object;
use crate::osd::{Osd, Proof};
use crate::quorum::{Entry, Group};
use crate::snaps::After;

/// Changes of one object.
#[derive(Debug, Default)]
struct Known {
    /// What was ever proposed: the value after it, or none.
    proposed: BTreeMap<Eversion, Option<u64>>,
    /// Requests that changed nothing: the version that the object still had.
    still: BTreeMap<Eversion, Eversion>,
    /// The newest change that was answered, by the interval of its primary.
    answered: BTreeMap<Epoch, Eversion>,
}

/// Sees all OSDs at once.
#[derive(Debug)]
pub struct Oracle {
    pool: PoolId,
    /// Objects by number.
    oids: Vec<ObjectId>,
    known: Vec<Known>,
    /// The newest map that processes have acted on.
    acted: BTreeMap<(OsdId, u64), Epoch>,
    /// The disks on which an entry of a log was ever durable.
    landed: BTreeMap<(PgId, Eversion), BTreeSet<PgShard>>,
    /// An operator may give objects up: what was answered may be gone.
    gives_up: bool,
    /// Cells of an object: what is in them is on several shards.
    cells: u64,
    /// How often there was something to look at.
    pub marks: BTreeMap<&'static str, u64>,
}

impl Oracle {
    /// Knows the objects of a pool by number.
    pub fn new(pool: PoolId, objects: u64, cells: u64, gives_up: bool) -> Self {
        let oids = (0..objects).map(|n| object_id(pool, n / cells)).collect();
        Self {
            pool,
            oids,
            known: (0..objects).map(|_| Known::default()).collect(),
            acted: BTreeMap::new(),
            landed: BTreeMap::new(),
            gives_up,
            cells,
            marks: BTreeMap::new(),
        }
    }

    /// Entries of a log are durable here.
    pub fn landed(&mut self, osd: OsdId, entries: Vec<(SpgId, Eversion)>) {
        for (SpgId { pgid, shard }, version) in entries {
            if pgid.pool == self.pool {
                let on = self.landed.entry((pgid, version)).or_default();
                on.insert(PgShard { osd, shard });
            }
        }
    }

    /// A primary proposed a change.
    pub fn proposed(&mut self, object: u64, version: Eversion, after: After) {
        let Known { proposed, still, .. } = &mut self.known[object as usize];
        let value = match after {
            After::Value(value) => value,
            After::As(earlier) => proposed.get(&earlier).copied().flatten(),
            After::Still(earlier) => {
                still.insert(version, earlier);
                return;
            }
        };
        proposed.insert(version, value);
    }

    /// A client is answered.
    pub fn answered(
        &mut self,
        object: u64,
        proof: &Proof,
        osds: &[Osd],
        monitor: &Monitor,
    ) -> Result<(), String> {
        let Proof { pgid, epoch, since, acting, named, version, first } = proof;
        let min_size = monitor
            .at(*epoch)
            .and_then(|m| m.pool(pgid.pgid.pool))
            .map_or(0, |p| p.min_size as usize);
        if acting.len() < min_size {
            return Err(format!(
                "{pgid}: {acting:?} answer a client in epoch {epoch}, which are fewer than min_size {min_size}"
            ));
        }
        let Some(version) = version else { return Ok(()) };
        if *first {
            let on = self.landed.get(&(pgid.pgid, *version));
            *self.marks.entry("first answer looked at").or_default() += 1;
            if let Some(osd) = named.iter().find(|o| on.is_none_or(|on| !on.contains(o))) {
                return Err(format!(
                    "{pgid}: {version:?} is acknowledged, and is not durable on osd.{osd} of {acting:?}"
                ));
            }
        }
        let Known { answered, still, .. } = &mut self.known[object as usize];
        let newest = answered.entry(*since).or_default();
        *newest = (*newest).max(*still.get(version).unwrap_or(version));
        for copy in acting {
            let here = SpgId { shard: copy.shard, ..*pgid };
            self.contents(&osds[copy.osd.0 as usize], here)?;
        }
        Ok(())
    }

    /// A monitor shows maps to a session.
    pub fn shown(
        &mut self,
        mon: usize,
        maps: &[Rc<MapModel>],
        monitor: &Monitor,
    ) -> Result<(), String> {
        match maps.iter().find(|m| !is_agreed(m, monitor)) {
            Some(map) => Err(format!("mon.{mon} shows a map {} that was not agreed on", map.epoch)),
            None => Ok(()),
        }
    }

    /// The monitors agree on a change.
    pub fn agreed(&mut self, entry: &Entry, group: &Group) -> Result<(), String> {
        let with = |m: &&crate::quorum::Mon| {
            m.logged >= entry.at
                || m.pending.as_ref().is_some_and(|e| (e.term, e.at) == (entry.term, entry.at))
        };
        let count = group.mons.iter().filter(with).count();
        if group.is_majority(count) {
            Ok(())
        } else {
            Err(format!("a minority of {count} agrees on {entry:?}"))
        }
    }

    /// Maps from one on are agreed on. A process that they mark up again knows that it was down:
    /// others that hear of it do not wait for what it may have served before.
    pub fn came_up(&mut self, since: Epoch, osds: &[Osd], monitor: &Monitor) -> Result<(), String> {
        let Some(before) = monitor.at(Epoch(since.0 - 1)) else { return Ok(()) };
        let newest = monitor.map();
        for osd in osds.iter().filter(|o| {
            newest.incarnation(o.id) == Some(o.incarnation) && newest.up_from(o.id) >= since
        }) {
            let Some(was) = before.osd(osd.id).filter(|was| was.incarnation == osd.incarnation)
            else {
                continue;
            };
            let is_down = |e: &u32| monitor.at(Epoch(*e)).is_some_and(|m| !m.is_up(osd.id));
            let down = (was.up_from.0..since.0).find(is_down).map_or(newest.up_from(osd.id), Epoch);
            *self.marks.entry("up again").or_default() += 1;
            if osd.map().is_none_or(|has| has.epoch < down) {
                return Err(format!(
                    "osd.{} is up again in map {}, and does not know that it was down in {down}",
                    osd.id, newest.epoch
                ));
            }
        }
        Ok(())
    }

    /// An OSD has taken maps.
    pub fn acts_on(&mut self, osd: &Osd, monitor: &Monitor) -> Result<(), String> {
        let Some(map) = osd.map() else { return Ok(()) };
        if !is_agreed(map, monitor) {
            return Err(format!(
                "osd.{} acts on a map {} that was not agreed on",
                osd.id, map.epoch
            ));
        }
        let before = self.acted.insert((osd.id, osd.incarnation), map.epoch);
        let back = before.is_some_and(|before| before > map.epoch);
        // After a crash a PG may be ahead of the OSD's own record, and a monitor that lags may hand
        // out fewer maps than the PG has seen. The map that marks the OSD up is newer than those.
        let is_up = map.incarnation(osd.id) == Some(osd.incarnation);
        let ahead = osd.pgs().any(|(_, pg)| pg.epoch() > map.epoch);
        if ahead && !is_up {
            *self.marks.entry("a PG ahead of its OSD after a crash").or_default() += 1;
        }
        if back || ahead && is_up {
            return Err(format!(
                "osd.{} goes back to map {} from {before:?}, or a group of it does",
                osd.id, map.epoch
            ));
        }
        Ok(())
    }

    /// Looks at one PG of one OSD, after something happened to it.
    pub fn look(&mut self, osd: &Osd, copy: SpgId, osds: &[Osd], time: u64) -> Result<(), String> {
        let pgid = copy.pgid;
        if pgid.pool != self.pool {
            return Ok(());
        }
        self.contents(osd, copy)?;
        let Some(mine) = osd.serves(copy, time) else { return Ok(()) };
        for other in osds.iter().filter(|o| o.id != osd.id && o.incarnation != 0) {
            for (id, _) in other.pgs() {
                if id.pgid.pool != self.pool {
                    continue;
                }
                let Some(its) = other.serves(*id, time) else { continue };
                let bits = mine.bits.min(its.bits);
                if (pgid.seed ^ id.pgid.seed) & ((1 << bits) - 1) != 0 {
                    continue;
                }
                *self.marks.entry("two may serve").or_default() += 1;
                if mine.since != its.since || mine.primary && its.primary {
                    return Err(format!(
                        "two serve the same objects: {pgid} on osd.{} {mine:?}, {id} on osd.{} {its:?}",
                        osd.id, other.id
                    ));
                }
            }
        }
        Ok(())
    }

    /// A copy that counts has what was answered.
    fn contents(&mut self, osd: &Osd, copy: SpgId) -> Result<(), String> {
        let pgid = copy.pgid;
        if self.gives_up || osd.incarnation == 0 {
            return Ok(());
        }
        let Some(pg) = osd.pg(copy).filter(|pg| counts(pg)) else { return Ok(()) };
        let Some(coll) = osd.disk.state().colls.get(&copy) else { return Ok(()) };
        let since = pg.info().history.same_interval_since;
        let bits = pgid.split_bits(pg.pg_num());
        for (oid, known) in
            self.oids.iter().zip(&self.known).filter(|(oid, _)| pgid.contains_hash(bits, oid.hash))
        {
            let Some(need) = known.answered.range(..=since).map(|(_, v)| *v).max() else {
                continue;
            };
            *self.marks.entry("acknowledged change looked for").or_default() += 1;
            if self.cells > 1 {
                // A copy that may lead knows every change.
                let kind = osd.map().and_then(|m| m.pool(pgid.pool)).unwrap_or_default().kind;
                if kind.backend().leads(copy.shard) && pg.info().last_update < need {
                    return Err(format!(
                        "{pgid}: osd.{} lacks an acknowledged change, {need:?} of {oid}: it knows \
                         {:?}",
                        osd.id,
                        pg.info().last_update
                    ));
                }
                continue;
            }
            let lacks = |what: &str| {
                Err(format!(
                    "{pgid}: osd.{} lacks an acknowledged change, {need:?} of {oid}: {what}",
                    osd.id
                ))
            };
            if let Some(item) = pg.missing().get(oid) {
                if item.need < need {
                    return lacks(&format!("it wants {item:?}"));
                }
                continue;
            }
            match coll.objects.get(oid) {
                None if known.proposed.range(need..).any(|(_, value)| value.is_none()) => {}
                None => return lacks("it has nothing"),
                Some(object) if object.version < need => {
                    return lacks(&format!("it has {:?}", object.version));
                }
                // What a disk has done to it is found by reading it.
                Some(object) if object.is_sound() && !as_proposed(object, known) => {
                    return Err(format!(
                        "{pgid}: osd.{} has another content of {oid} than was written: {object:?}",
                        osd.id
                    ));
                }
                Some(_) => {}
            }
        }
        Ok(())
    }
}

/// The copy was activated in this interval, and is one of those that have everything.
fn counts(pg: &pg::Pg) -> bool {
    let phase = pg.phase_name();
    let active = phase.starts_with("Started/Primary/Active/")
        && phase != "Started/Primary/Active/Activating";
    pg.mapping().acting.contains(&pg.whoami()) && (active || phase == "Started/ReplicaActive")
}

/// The map is the one of its epoch.
fn is_agreed(map: &Rc<MapModel>, monitor: &Monitor) -> bool {
    monitor.at(map.epoch).is_some_and(|agreed| Rc::ptr_eq(&agreed, map))
}

/// The content is what was proposed under its version.
fn as_proposed(object: &Object, known: &Known) -> bool {
    let value = if object.whiteout { Some(None) } else { value_if_whole(object).map(Some) };
    value.is_some_and(|value| known.proposed.get(&object.version) == Some(&value))
}
