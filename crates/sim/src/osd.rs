//! An OSD that does the least an OSD must do: it drives its PGs and a disk, and executes three operations.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use bytes::{BufMut, Bytes, BytesMut};
use denc::{Decode, Encode, Features, Reader};
use pg::creation::{self, Stranger, UnbornPgs};
use pg::{
    Action, Backfill, Event, GiveUp, Listing, LogOp, LostRefused, MapRef, MapView, NewEntry, ObjectChunk, ObjectStatus, OpToken, Payload, Peers, PeerHeader,
    PeerMsg, Persist, PersistToken, Pg, PgConf, PgState, Proposal, ReadToken, ScrubKind, ScrubMap, ScrubObject, Reserver, Source, StatSum,
    Steady, Turn,
};
use smallvec::smallvec;
use types::{Epoch, Eversion, ObjectId, ObjectInfo, OsdId, PgId, PoolId, ReqId, SnapId, Utime};

use crate::disk::{Disk, Object, StoreOp};
use crate::history::Did;
use crate::monitor::{MapModel, MonMsg, Monitor};

/// Bugs to put back, to see that they are caught.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Bug {
    /// None.
    #[default]
    None,
    /// Replicas acknowledge before their disk has it.
    AckBeforeCommit,
    /// A log merge forgets what became missing.
    ForgetMissing,
    /// A log merge leaves divergent and deleted objects where they are.
    KeepDivergent,
    /// Reads do not wait for writes in flight.
    ReadUncommitted,
    /// Resent writes are executed again.
    NoDups,
    /// The primary answers without waiting for replicas.
    AckAlone,
    /// A replica takes the head of the authoritative log without what is between.
    SkipMerge,
    /// Recovery writes nothing but the last part of an object.
    PushLastOnly,
    /// A copy that is filled moves its cursor in one transaction, and notes what it lacks before it in the next.
    CursorFirst,
    /// A primary that fills a copy compares what it had when it began to serve.
    StaleListing,
    /// A copy that is filled does not apply writes to what it has.
    FollowerSleeps,
    /// A copy that is filled says that it is complete.
    ClaimComplete,
    /// Requests from before a split are executed.
    OldRequests,
    /// A split is durable in two steps: the parent's part first.
    SplitInSteps,
    /// Copies that do not act do not split.
    StraysDoNotSplit,
    /// What comes out of a split takes itself for complete.
    SplitForgetsMissing,
    /// Reads are answered without a lease.
    NoLease,
    /// Who is silent counts as gone for sure, so that nobody waits for its lease.
    SilentIsDead,
    /// A replica serves reads of objects that are being written.
    ReplicaReadsUncommitted,
    /// A replica serves reads without a lease.
    ReplicaWithoutLease,
    /// A copy that is scrubbed tells what is on its disk, and not what it was told to write.
    ScanDurable,
    /// Clients are served by fewer than `min_size`.
    BelowMinSize,
    /// The store does not verify what it reads for clients.
    NoChecksum,
    /// A deep scrub looks at sizes only.
    ScrubSkims,
    /// The monitors forget maps that groups that are not clean need.
    TrimUnclean,
}

/// What a client asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ask {
    /// Replace the object by this value, in this many words.
    Write(u64, u32),
    /// Delete it.
    Delete,
    /// Read it.
    Read,
}

/// A client's operation.
#[derive(Clone, Copy, Debug)]
pub struct ClientOp {
    /// Who.
    pub client: usize,
    /// Number of the request; the same when resent.
    pub tid: u64,
    /// Which object.
    pub object: u64,
    /// Which PG it is in.
    pub pgid: PgId,
    /// What.
    pub ask: Ask,
    /// The client's map.
    pub epoch: Epoch,
    /// Any acting OSD may answer.
    pub balanced: bool,
}

/// How fast an OSD's clock is, and what it shows when the world begins.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock {
    /// Nanoseconds.
    pub offset: u64,
    /// Nanoseconds that it shows for a microsecond of the world.
    pub rate: u64,
}

impl Clock {
    /// What it shows at a microsecond of the world.
    pub fn shows(&self, time: u64) -> Steady {
        Steady(self.offset + time * self.rate)
    }

    /// The first microsecond at which it shows no less.
    pub fn when(&self, at: Steady) -> u64 {
        at.0.saturating_sub(self.offset).div_ceil(self.rate)
    }
}

impl ClientOp {
    fn reqid(&self) -> ReqId {
        ReqId { name: types::EntityName::new(types::EntityType::CLIENT, self.client as i64), tid: self.tid, inc: 0 }
    }

    /// The object's identifier.
    pub fn oid(&self) -> ObjectId {
        object_id(self.pgid.pool, self.object)
    }
}

/// The identifier of an object.
pub fn object_id(pool: PoolId, object: u64) -> ObjectId {
    let name = Bytes::copy_from_slice(format!("object{object}").as_bytes());
    ObjectId::with_hash(pool, Bytes::new(), name, Bytes::new(), SnapId::NOSNAP, crate::rng::mix(object) as u32)
}

/// Of what an answer is made.
#[derive(Clone, Debug)]
pub struct Proof {
    /// The PG.
    pub pgid: PgId,
    /// The map of the one who answers.
    pub epoch: Epoch,
    /// Since when its interval lasts.
    pub since: Epoch,
    /// Who acts in it.
    pub acting: Vec<OsdId>,
    /// The version of the change.
    pub version: Option<Eversion>,
    /// It is answered when everybody has it, and was not before.
    pub first: bool,
}

/// How an OSD would serve clients of a PG.
#[derive(Clone, Copy, Debug)]
pub struct Serves {
    /// How many bits of a hash decide that an object is in the PG.
    pub bits: u32,
    /// Since when its interval lasts.
    pub since: Epoch,
    /// It leads the PG.
    pub primary: bool,
}

/// What an OSD causes outside.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "a model need not be fast")]
pub enum Effect {
    /// A message to peers, encoded.
    Peer {
        /// Receivers.
        to: Peers,
        /// Front.
        front: Bytes,
        /// Data.
        data: Bytes,
    },
    /// A message to the monitor.
    Mon(MonMsg),
    /// An answer to a client.
    Answer {
        /// Who asked.
        client: usize,
        /// Which request.
        tid: u64,
        /// What was done.
        did: Did,
        /// Of what the answer is made.
        proof: Proof,
    },
    /// A change was proposed: the value after it.
    Proposed {
        /// Which object.
        object: u64,
        /// Its version.
        version: Eversion,
        /// The value, or nothing.
        value: Option<u64>,
    },
    /// The disk has work up to here.
    Flush(u64),
    /// The operation cannot be done here, or has failed: an error that says nothing of the object.
    Refused {
        /// Who asked.
        client: usize,
        /// Which request.
        tid: u64,
        /// The primary should be asked.
        again: bool,
    },
    /// A line of the cluster log that says that something is wrong.
    Complaint(String),
    /// A PG wants to be woken.
    Wake(PgId, Steady),
    /// Objects that were given up; it is durable everywhere.
    GaveUp(Vec<ObjectId>),
    /// Something of a PG that takes time.
    Later(PgId, Local),
}

/// Something of a PG that takes time.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "a model need not be fast")]
pub enum Local {
    /// A recovery grant.
    Grant,
    /// A read for recovery.
    Read(ReadToken, Option<ObjectChunk>),
    /// A write was prepared, in this interval, while others went on.
    Execute(u64, ClientOp),
    /// Objects for a comparison are to be listed.
    List(ReadToken, Backfill, usize),
    /// A turn was given or taken back; of groups that others lead, if so.
    Turn(Turn<PgId>, bool),
    /// There is no room for a backfill, for a while.
    TooFull(u8),
    /// There may be room for it.
    Room(u8),
    /// A step of removal.
    RemoveObjects(usize),
    /// An object was read, in this interval.
    ReadDone(u64, ClientOp, Option<u64>),
    /// The moment has come that the PG asked for.
    Wake,
    /// A scrub wants to know what is in a range.
    Scan(ReadToken, Backfill, Backfill),
    /// A scrub wants its turn.
    ScrubSlot,
    /// A scrub that follows from another.
    Scrub(ScrubKind),
}

#[derive(Debug)]
struct Hosted {
    pg: Pg,
    waiting: Vec<ClientOp>,
    /// Reads that wait for a lease.
    laggy: Vec<ClientOp>,
    running: BTreeMap<OpToken, (ClientOp, Eversion)>,
    /// Writes that are being prepared, one for each object.
    executing: BTreeMap<ObjectId, ClientOp>,
    /// Counts intervals.
    generation: u64,
    txns: BTreeMap<OpToken, (ObjectId, Change)>,
    removal: Option<(u64, bool)>,
    /// The epoch in which the monitor was told that the PG is ready to be joined. It is told again in every epoch, as by
    /// statistics.
    told_ready: Option<Epoch>,
    /// Objects that an operator gives up.
    giving_up: Option<(OpToken, Vec<ObjectId>)>,
    /// For a bug: the objects when the PG became active.
    stale: BTreeMap<ObjectId, Eversion>,
}

/// What was asked of the monitors and has not come. It is asked for again with every session.
#[derive(Debug, Default)]
struct Wishes {
    /// To be noted as alive in this epoch.
    up_thru: Option<Epoch>,
    /// Acting sets.
    pg_temp: BTreeMap<PgId, Vec<OsdId>>,
    /// To be up; whether with a new disk.
    boot: Option<bool>,
}

/// An OSD: a disk, and a process when it runs.
#[derive(Debug)]
pub struct Osd {
    /// Its number.
    pub id: OsdId,
    /// Incarnation of the process, 0 if it does not run.
    pub incarnation: u64,
    /// Its disk.
    pub disk: Disk,
    bug: Bug,
    conf: PgConf,
    now: Utime,
    /// Its clock.
    pub clock: Clock,
    /// Microseconds of the world.
    time: u64,
    /// The store takes no writes of clients.
    pub full: bool,
    map: Option<Rc<MapModel>>,
    booted: bool,
    wishes: Wishes,
    /// The disk was replaced since the last start.
    pub new_disk: bool,
    /// Permille: a backfill finds no room.
    pub tight: u64,
    unborn: UnbornPgs,
    pgs: BTreeMap<PgId, Hosted>,
    early: Vec<(OsdId, PeerHeader, PeerMsg)>,
    early_ops: Vec<ClientOp>,
    tokens: u64,
    /// Turns of recovery: of PGs that this OSD leads, and of others.
    turns: [Reserver<PgId>; 2],
    /// Who waits for room before it gets a turn, and did not give up.
    without_room: BTreeSet<PgId>,
    /// Counts chances of scrubs.
    scrubs: u64,
    out: Vec<Effect>,
    /// PGs to which something happened since the last look.
    pub touched: BTreeSet<PgId>,
    /// How often something rare happened.
    pub marks: BTreeMap<&'static str, u64>,
}

impl Osd {
    /// An OSD with an empty disk that does not run.
    pub fn new(id: OsdId, conf: PgConf, bug: Bug) -> Self {
        Self {
            id,
            incarnation: 0,
            disk: Disk::default(),
            bug,
            conf,
            now: Utime::default(),
            clock: Clock { offset: 0, rate: 1_000 },
            time: 0,
            full: false,
            map: None,
            booted: false,
            wishes: Wishes::default(),
            new_disk: false,
            tight: 0,
            unborn: UnbornPgs::default(),
            pgs: BTreeMap::new(),
            early: Vec::new(),
            early_ops: Vec::new(),
            tokens: 0,
            turns: Default::default(),
            without_room: BTreeSet::new(),
            scrubs: 0,
            out: Vec::new(),
            touched: BTreeSet::new(),
            marks: BTreeMap::new(),
        }
    }

    /// What it caused since the last call.
    pub fn effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.out)
    }

    /// The PGs and their machines.
    pub fn pgs(&self) -> impl Iterator<Item = (&PgId, &Pg)> {
        self.pgs.iter().map(|(id, h)| (id, &h.pg))
    }

    /// The machine of a PG.
    pub fn pg(&self, pgid: PgId) -> Option<&Pg> {
        self.pgs.get(&pgid).map(|h| &h.pg)
    }

    /// How clients of a PG would be served at a microsecond of the world, if they would be. A process that stands still has
    /// its clock all the same.
    pub fn serves(&self, pgid: PgId, time: u64) -> Option<Serves> {
        let pg = self.pg(pgid)?;
        let now = self.clock.shows(time);
        let primary = pg.is_primary();
        let reads = if primary { pg.is_active() && self.may_answer(pg, now) } else { self.may_answer_for(pg, &object_id(pgid.pool, u64::MAX), now) };
        reads.then(|| Serves { bits: pgid.split_bits(pg.pg_num()), since: pg.info().history.same_interval_since, primary })
    }

    /// Whether a primary may answer what was read up to now.
    fn may_answer(&self, pg: &Pg, now: Steady) -> bool {
        pg.is_readable(now) || self.bug == Bug::NoLease
    }

    /// Whether a replica may answer what was read of an object up to now.
    fn may_answer_for(&self, pg: &Pg, oid: &ObjectId, now: Steady) -> bool {
        let without = self.bug == Bug::ReplicaWithoutLease && pg.phase_name() == "Started/ReplicaActive";
        pg.may_read_replica(oid, now) || without && !pg.info().is_incomplete() && !pg.missing().contains(oid)
    }

    fn proof(&self, pgid: PgId, version: Option<Eversion>, first: bool) -> Proof {
        let pg = &self.pgs[&pgid].pg;
        let since = pg.info().history.same_interval_since;
        Proof { pgid, epoch: pg.epoch(), since, acting: pg.mapping().acting.clone(), version, first }
    }

    fn answer_with(&mut self, op: ClientOp, did: Did, version: Option<Eversion>, first: bool) {
        let proof = self.proof(op.pgid, version, first);
        self.out.push(Effect::Answer { client: op.client, tid: op.tid, did, proof });
    }

    /// The process dies.
    pub fn stop(&mut self, survivors: usize) {
        self.incarnation = 0;
        self.disk.crash(survivors);
        self.pgs.clear();
        self.early.clear();
        self.early_ops.clear();
        self.turns = Default::default();
        self.without_room.clear();
        self.map = None;
        self.booted = false;
        self.wishes = Wishes::default();
        self.out.clear();
    }

    /// The process is dead; its disk is replaced by an empty one.
    pub fn replace_disk(&mut self) {
        self.disk = Disk::default();
        self.new_disk = true;
        *self.marks.entry("disk replaced").or_default() += 1;
    }

    fn set_time(&mut self, time: u64) {
        self.time = time;
        self.now = Utime { sec: (time / 1_000_000) as u32, nsec: (time % 1_000_000) as u32 * 1_000 };
    }

    fn steady(&self) -> Steady {
        self.clock.shows(self.time)
    }

    /// The newest map that it has.
    pub fn map(&self) -> Option<&Rc<MapModel>> {
        self.map.as_ref()
    }

    /// A process starts, with what is on the disk.
    pub fn start(&mut self, incarnation: u64, monitor: &Monitor, time: u64) {
        self.incarnation = incarnation;
        self.set_time(time);
        let now = self.now;
        let state = self.disk.state();
        self.unborn = if state.unborn.is_empty() { UnbornPgs::default() } else { UnbornPgs::from_bytes(&state.unborn).expect("own bytes") };
        self.map = monitor.at(state.epoch);
        for (pgid, coll) in &state.colls {
            let loaded = pg::rows::load(coll.rows.clone()).unwrap_or_else(|e| panic!("{} {pgid}: {e}", self.id));
            let map = self.view(&monitor.at(loaded.epoch).expect("maps are kept"));
            let mut pg = Pg::load(self.id, loaded, map, self.conf.clone(), now);
            pg.set_clock(self.clock.shows(time));
            self.pgs.insert(*pgid, Hosted::new(pg));
        }
        if self.pgs.values().any(|h| matches!(h.pg.info().last_backfill, Backfill::UpTo(_))) {
            *self.marks.entry("restart in the middle of backfill").or_default() += 1;
        }
        for pgid in self.pgs.keys().copied().collect::<Vec<_>>() {
            self.drain(pgid);
        }
        // PGs are as old as their rows; bring them to the OSD's epoch.
        for pgid in self.pgs.keys().copied().collect::<Vec<_>>() {
            let (from, to) = (self.pgs[&pgid].pg.epoch(), self.disk.state().epoch);
            let mut all = vec![pgid];
            for e in from.0 + 1..=to.0 {
                let Some(map) = monitor.at(Epoch(e)) else { break };
                let map = self.view(&map);
                for pgid in all.clone() {
                    all.extend(self.next_map(pgid, &map));
                }
            }
        }
        let new_disk = std::mem::take(&mut self.new_disk);
        self.boot(new_disk);
    }

    fn boot(&mut self, new_disk: bool) {
        self.wishes.boot = Some(new_disk);
        self.out.push(Effect::Mon(MonMsg::Boot(self.id, self.incarnation, new_disk)));
    }

    /// The newest map that it has.
    fn has(&self) -> Epoch {
        self.map.as_ref().map_or(Epoch(0), |m| m.epoch)
    }

    /// There is a new session with a monitor: everything again.
    pub fn session(&mut self, time: u64) {
        self.set_time(time);
        let Wishes { up_thru, pg_temp, boot } = &self.wishes;
        let (me, incarnation, has) = (self.id, self.incarnation, self.has());
        let boot = boot.map(|new_disk| MonMsg::Boot(me, incarnation, new_disk));
        let up_thru = up_thru.map(|epoch| MonMsg::UpThru(me, incarnation, epoch));
        let temps = pg_temp.iter().map(|(pgid, want)| MonMsg::PgTemp(*pgid, want.clone(), has));
        let again: Vec<_> = boot.into_iter().chain(up_thru).chain(temps).collect();
        *self.marks.entry("asked the monitors again").or_default() += again.len() as u64;
        self.out.extend(again.into_iter().map(Effect::Mon));
        self.out.push(Effect::Mon(MonMsg::Subscribe(me, has.next())));
        for pgid in self.pgs.keys().copied().collect::<Vec<_>>() {
            if let Some(hosted) = self.pgs.get_mut(&pgid) {
                hosted.told_ready = None;
            }
            self.drain(pgid);
        }
    }

    fn want_map(&mut self, epoch: Epoch) {
        let has = self.has();
        if epoch > has {
            *self.marks.entry("asked for a map").or_default() += 1;
            self.out.push(Effect::Mon(MonMsg::Subscribe(self.id, has.next())));
        }
    }

    /// A map as its PGs see it.
    fn view(&self, map: &Rc<MapModel>) -> MapRef {
        if self.bug != Bug::BelowMinSize {
            return map.clone();
        }
        let mut map = MapModel::clone(map);
        map.pools.values_mut().for_each(|p| p.min_size = 1);
        Rc::new(map)
    }

    /// Maps from `first` up to `epoch` arrived. There are none before `oldest`.
    pub fn maps(&mut self, monitor: &Monitor, first: Epoch, epoch: Epoch, oldest: Epoch, time: u64) {
        self.set_time(time);
        let from = self.has().0;
        let mut begin = from + 1;
        if first.0 > begin {
            if oldest.0 <= begin {
                *self.marks.entry("gap of maps").or_default() += 1;
                return self.want_map(first);
            }
            // They are gone.
            let what = if self.pgs.is_empty() { "hole in the maps, without groups" } else { "hole in the maps" };
            *self.marks.entry(what).or_default() += 1;
            begin = first.0;
        }
        let mut was_up = self.booted;
        for e in begin..=epoch.0 {
            let Some(map) = monitor.at(Epoch(e)) else { break };
            let view = self.view(&map);
            self.join(&view);
            was_up |= map.incarnation(self.id) == Some(self.incarnation);
            for pgid in self.pgs.keys().copied().collect::<Vec<_>>() {
                self.next_map(pgid, &view);
            }
            let pools: Vec<_> = map.pools.keys().copied().collect();
            let born = if e == begin && begin > from + 1 {
                self.unborn.skip(&*map, &pools);
                Vec::new()
            } else {
                self.unborn.advance(self.id, &*map, &pools)
            };
            self.wishes.up_thru.take_if(|want| map.up_thru(self.id) >= *want);
            let before = self.map.clone();
            self.wishes.pg_temp.retain(|pgid, _| before.as_ref().is_some_and(|b| b.mapping(*pgid) == map.mapping(*pgid)));
            for pgid in born {
                if let Some(pg) = Pg::create(self.id, pgid, view.clone(), self.conf.clone(), self.now)
                    && !self.pgs.contains_key(&pgid)
                {
                    self.host(pgid, pg);
                }
            }
            self.map = Some(map);
        }
        let Some(map) = self.map.clone() else { return };
        if map.epoch.0 == from {
            return;
        }
        if map.osds.iter().any(|o| o.full) && self.pgs.values().any(|h| h.pg.state().has(PgState::RECOVERY_TOOFULL)) {
            *self.marks.entry("recovery found no room").or_default() += 1;
        }
        let seq = self.disk.submit(vec![StoreOp::Super(map.epoch, self.unborn.to_bytes(Features::ALL))], None);
        self.out.push(Effect::Flush(seq));
        if map.incarnation(self.id) != Some(self.incarnation) {
            self.booted = false;
            if was_up {
                // Somebody was mistaken.
                *self.marks.entry("booted again").or_default() += 1;
                self.boot(false);
            }
        } else {
            self.booted = true;
            self.wishes.boot = None;
            for pgid in self.pgs.keys().copied().collect::<Vec<_>>() {
                self.feed(pgid, Event::ActivateMap);
            }
            for (from, header, msg) in std::mem::take(&mut self.early) {
                self.deliver(from, header, msg);
            }
        }
    }

    /// PGs that become part of others take the next map.
    fn join(&mut self, map: &MapRef) {
        let mut joins: BTreeMap<PgId, Vec<PgId>> = BTreeMap::new();
        for (pgid, hosted) in &self.pgs {
            if let Some(target) = hosted.pg.target_in(&**map) {
                joins.entry(target).or_default().push(*pgid);
            } else if hosted.pg.takes_in(&**map) {
                joins.entry(*pgid).or_default();
            }
        }
        for (target, sources) in joins {
            for source in &sources {
                self.leave_turns(*source);
            }
            let mut sources: Vec<Pg> = sources.iter().filter_map(|s| self.pgs.remove(s)).map(|h| h.pg).collect();
            let mut mark = |what| *self.marks.entry(what).or_default() += 1;
            if let (None, Some(source)) = (self.pgs.get(&target), sources.first()) {
                mark("join of remains");
                let remains = Pg::remains(self.id, target, source, self.conf.clone(), self.now);
                self.pgs.insert(target, Hosted::new(remains));
            }
            let Some(hosted) = self.pgs.get_mut(&target) else { continue };
            if hosted.pg.info().removing {
                mark("join while being removed");
            }
            hosted.pg.join(&mut sources.iter_mut().collect::<Vec<_>>(), map, self.now);
            mark(if hosted.pg.info().removing { "join of what counts for nothing" } else { "join" });
            self.drain(target);
        }
    }

    /// A PG takes the next map. Returns the PGs that come out of it.
    fn next_map(&mut self, pgid: PgId, map: &MapRef) -> Vec<PgId> {
        let Some(hosted) = self.pgs.get_mut(&pgid) else { return Vec::new() };
        let acts = hosted.pg.mapping().acting.contains(&self.id);
        if hosted.pg.children_in(&**map).is_empty() || (!acts && self.bug == Bug::StraysDoNotSplit) {
            self.feed(pgid, Event::AdvanceMap(map.clone()));
            return Vec::new();
        }
        let mut mark = |what| *self.marks.entry(what).or_default() += 1;
        mark("split");
        let pg = &hosted.pg;
        if !pg.missing().is_empty() || !pg.is_clean() && pg.is_active() {
            mark("split during recovery");
        }
        if matches!(pg.info().last_backfill, Backfill::UpTo(_)) {
            mark("split during backfill");
        }
        if pg.info().removing {
            mark("split while being removed");
        }
        if !acts {
            mark("stray split");
        }
        if !hosted.running.is_empty() {
            mark("split with writes in flight");
        }
        let children = hosted.pg.split(map, self.now);
        let ids = children.iter().map(Pg::pgid).collect();
        self.drain(pgid);
        for pg in children {
            self.host(pg.pgid(), pg);
        }
        ids
    }

    /// A message from a peer arrived.
    pub fn peer(&mut self, from: OsdId, front: Bytes, data: Bytes, time: u64) {
        self.set_time(time);
        let (header, mut msg) = PeerMsg::decode(front, data).expect("a peer's bytes decode");
        if let PeerMsg::Notify { info, .. } = &mut msg
            && self.bug == Bug::ClaimComplete
            && !info.removing
        {
            info.last_backfill = Backfill::Complete;
        }
        if let PeerMsg::Notify { promises, .. } = &msg
            && !promises.is_empty()
        {
            *self.marks.entry("told of promises").or_default() += 1;
        }
        match &msg {
            PeerMsg::StartBackfill { .. } => *self.marks.entry("backfill started over").or_default() += 1,
            PeerMsg::Activate { .. } if self.pgs.get(&header.pgid).is_some_and(|h| matches!(h.pg.info().last_backfill, Backfill::UpTo(_))) => {
                *self.marks.entry("backfill resumed").or_default() += 1;
            }
            PeerMsg::AdvanceBackfill { missing, remove, .. } => {
                let mark = if missing.is_empty() { "cursor moved over equal objects" } else { "cursor moved over different objects" };
                *self.marks.entry(mark).or_default() += 1;
                *self.marks.entry("superfluous objects removed").or_default() += remove.len() as u64;
            }
            PeerMsg::RepOp(op) if op.log_only => {
                let pg = self.pgs.get(&header.pgid).map(|h| &h.pg);
                if pg.is_some_and(|p| p.info().last_backfill == Backfill::Complete) {
                    *self.marks.entry("write to a copy that recovers beside").or_default() += 1;
                }
                let known = pg.is_some_and(|p| op.entries.iter().any(|e| p.info().last_backfill.covers(&e.entry.oid)));
                *self.marks.entry(if known { "write to a copy in progress" } else { "write behind the cursor" }).or_default() += 1;
            }
            PeerMsg::RepOp(_) if self.pgs.get(&header.pgid).is_some_and(|h| h.pg.info().is_incomplete()) => {
                *self.marks.entry("write before the cursor").or_default() += 1;
            }
            _ => {}
        }
        if let PeerMsg::Activate { log, .. } = &mut msg
            && self.bug == Bug::SkipMerge
        {
            // As if every object named were there already.
            for entry in &mut log.entries {
                let mut changed = entry.entry.clone();
                changed.op = LogOp::Error;
                *entry = pg::log_entry::Logged::new(changed);
            }
        }
        self.deliver(from, header, msg);
    }

    fn deliver(&mut self, from: OsdId, header: PeerHeader, msg: PeerMsg) {
        if self.pgs.contains_key(&header.pgid) {
            self.feed(header.pgid, Event::Peer { from, header, msg });
            return;
        }
        let Some(map) = self.map.clone().filter(|_| self.booted) else {
            self.early.push((from, header, msg));
            return;
        };
        match creation::stranger(self.id, from, &header, &msg, &*map) {
            Stranger::WaitForMap => {
                self.want_map(header.sent);
                self.early.push((from, header, msg));
            }
            Stranger::Drop => {}
            Stranger::Answer(header, msg) => {
                let (front, data) = msg.encode(&header);
                self.out.push(Effect::Peer { to: smallvec![from], front, data });
            }
            Stranger::Adopt => {
                if let Some(pg) = Pg::adopt(self.id, self.view(&map), self.conf.clone(), &header, &msg, self.now) {
                    *self.marks.entry("adopted").or_default() += 1;
                    self.host(header.pgid, pg);
                    self.feed(header.pgid, Event::Peer { from, header, msg });
                }
            }
        }
    }

    /// The disk flushed up to `seq`.
    pub fn flushed(&mut self, seq: u64, time: u64) {
        self.set_time(time);
        for (pgid, token) in self.disk.flush(seq) {
            self.feed(pgid, Event::Committed(token));
        }
        for pgid in self.pgs.keys().copied().collect::<Vec<_>>() {
            let Some(hosted) = self.pgs.get_mut(&pgid) else { continue };
            if let Some((_, more)) = hosted.removal.take_if(|(s, _)| *s <= seq) {
                self.feed(pgid, Event::ObjectsRemoved { more });
            }
        }
    }

    /// Something of a PG is done.
    pub fn local(&mut self, pgid: PgId, local: Local, time: u64) {
        self.set_time(time);
        match local {
            Local::Grant => self.feed(pgid, Event::StartRecovery { max_objects: 1 }),
            Local::Read(token, chunk) => self.feed(pgid, Event::ObjectRead { token, chunk }),
            Local::List(token, after, max) => {
                let Some(coll) = self.disk.state().colls.get(&pgid) else { return };
                let Some(hosted) = self.pgs.get(&pgid) else { return };
                let stale = self.bug == Bug::StaleListing && hosted.pg.is_primary();
                let all: BTreeMap<ObjectId, Eversion> =
                    if stale { hosted.stale.clone() } else { coll.objects.iter().map(|(o, c)| (o.clone(), c.version)).collect() };
                let mut rest = all.into_iter().filter(|(o, _)| !after.covers(o)).peekable();
                let objects: BTreeMap<_, _> = rest.by_ref().take(max.max(1)).collect();
                let last = objects.keys().next_back();
                let upto = if rest.peek().is_none() { Backfill::Complete } else { last.map_or(Backfill::Complete, Backfill::after) };
                *self.marks.entry("listed").or_default() += 1;
                self.feed(pgid, Event::Listed { token, listing: Listing { upto, objects } });
            }
            Local::Execute(generation, op) => {
                let Some(hosted) = self.pgs.get_mut(&pgid).filter(|h| h.generation == generation) else { return };
                hosted.executing.remove(&op.oid());
                if hosted.pg.must_wait(&op.oid(), true) || hosted.pg.scrub_blocks(&op.oid()) {
                    // The copy turned out to be bad meanwhile, or a scrub had to wait too often.
                    *self.marks.entry("write waited again after it was prepared").or_default() += 1;
                    hosted.waiting.push(op);
                } else {
                    self.execute(op);
                }
                self.run_waiting(pgid);
                self.drain(pgid);
            }
            Local::ReadDone(generation, op, value) => {
                let Some(hosted) = self.pgs.get(&pgid).filter(|h| h.generation == generation) else {
                    // Begun in an interval that is over.
                    return self.client(op, time);
                };
                let now = self.steady();
                if hosted.pg.is_primary() {
                    self.answer_read(op, value);
                } else if hosted.pg.may_read_replica(&op.oid(), now) || self.bug == Bug::ReplicaWithoutLease {
                    *self.marks.entry("replica read").or_default() += 1;
                    self.answer_with(op, Did::Read(value), None, false);
                } else {
                    self.out.push(Effect::Refused { client: op.client, tid: op.tid, again: true });
                }
                self.drain(pgid);
            }
            Local::Wake => self.feed(pgid, Event::Wake),
            Local::Scan(token, after, upto) => {
                let state = if self.bug == Bug::ScanDurable { self.disk.durable() } else { self.disk.state() };
                let Some(coll) = state.colls.get(&pgid) else { return };
                let here = coll.objects.iter().filter(|(o, _)| upto.covers(o) && !after.covers(o));
                let skims = self.bug == Bug::ScrubSkims;
                let bad = |oid: &ObjectId, object: &Object| self.disk.is_bad(pgid, oid) || !object.is_sound();
                let seen = |oid: &ObjectId, object: &Object| match skims {
                    true => ScrubObject { data_digest: None, omap_digest: None, ..scrubbed(object, false) },
                    false => scrubbed(object, bad(oid, object)),
                };
                let objects = here.map(|(oid, object)| (oid.clone(), seen(oid, object))).collect();
                self.feed(pgid, Event::Scanned { token, map: ScrubMap { upto, objects } });
            }
            Local::Scrub(kind) => {
                *self.marks.entry("repair followed a scrub").or_default() += 1;
                self.feed(pgid, Event::StartScrub(kind));
            }
            Local::ScrubSlot => {
                self.scrubs += 1;
                let granted = crate::rng::mix(self.scrubs) % 10 > 0;
                self.feed(pgid, Event::ScrubSlot { granted });
            }
            Local::Turn(Turn::Granted(_), target) => self.feed(pgid, Event::Reserved { target }),
            Local::Turn(Turn::Preempted(_), target) => {
                *self.marks.entry(if target { "remote turn taken back" } else { "turn taken back" }).or_default() += 1;
                self.feed(pgid, Event::Preempted { target });
            }
            Local::TooFull(priority) => {
                *self.marks.entry("too full").or_default() += 1;
                self.feed(pgid, Event::BackfillTooFull);
                self.out.push(Effect::Later(pgid, Local::Room(priority)));
            }
            Local::Room(priority) => {
                if self.without_room.remove(&pgid) {
                    self.turns[1].ask(pgid, priority, true);
                    self.next_turns();
                }
            }
            Local::RemoveObjects(max) => {
                let Some(coll) = self.disk.state().colls.get(&pgid) else { return };
                if self.pgs.get(&pgid).is_none_or(|h| !h.pg.info().removing) {
                    return;
                }
                let gone: Vec<_> = coll.objects.keys().take(max).cloned().collect();
                let more = coll.objects.len() > gone.len();
                let seq = self.disk.submit(gone.into_iter().map(|o| StoreOp::Remove(pgid, o)).collect(), None);
                self.out.push(Effect::Flush(seq));
                if let Some(hosted) = self.pgs.get_mut(&pgid) {
                    hosted.removal = Some((seq, more));
                }
            }
        }
    }

    /// A client's operation arrived.
    pub fn client(&mut self, op: ClientOp, time: u64) {
        self.set_time(time);
        let here = self.pgs.get(&op.pgid);
        let leads = here.is_some_and(|h| h.pg.is_primary() && op.epoch <= h.pg.epoch());
        if here.is_some_and(|h| op.epoch < h.pg.info().history.last_epoch_split) && self.bug != Bug::OldRequests {
            *self.marks.entry("request from before a split").or_default() += 1;
            return;
        }
        if op.balanced && !leads {
            self.read_replica(op);
            return;
        }
        let Some(hosted) = self.pgs.get_mut(&op.pgid) else {
            // The client knows the PG from a newer map.
            self.early_ops.push(op);
            return;
        };
        if !hosted.pg.is_primary() && op.epoch <= hosted.pg.epoch() {
            return;
        }
        if op.epoch < hosted.pg.info().history.same_primary_since {
            // Its sender sends it again when it sees the map; this copy may be older than anything that is remembered.
            return;
        }
        hosted.waiting.push(op);
        self.scrubs += 1;
        if hosted.pg.is_clean() && crate::rng::mix(self.scrubs).is_multiple_of(32) {
            *self.marks.entry("scrub wanted").or_default() += 1;
            // With bad disks, some scrubs repair at once, and others in a second pass.
            let repair = self.conf.scrub_auto_repair && self.scrubs.is_multiple_of(2);
            self.feed(op.pgid, Event::StartScrub(ScrubKind { deep: true, repair, check: false }));
        }
        self.run_waiting(op.pgid);
        self.drain(op.pgid);
    }

    /// A replica reads, if it may.
    fn read_replica(&mut self, op: ClientOp) {
        let (now, bug) = (self.steady(), self.bug);
        let refused = Effect::Refused { client: op.client, tid: op.tid, again: true };
        let Some(hosted) = self.pgs.get(&op.pgid) else {
            self.out.push(refused);
            return;
        };
        let lacks = hosted.pg.missing().contains(&op.oid());
        let anyway = bug == Bug::ReplicaReadsUncommitted && hosted.pg.may_read_replica(&object_id(op.pgid.pool, u64::MAX), now) && !lacks;
        if !self.may_answer_for(&hosted.pg, &op.oid(), now) && !anyway {
            *self.marks.entry("replica did not read").or_default() += 1;
            self.out.push(refused);
            return;
        }
        let Ok(object) = self.disk.read(op.pgid, &op.oid(), bug != Bug::NoChecksum) else {
            *self.marks.entry("replica found damage").or_default() += 1;
            self.out.push(refused);
            return;
        };
        let value = object.map(value_of);
        if bug == Bug::ReplicaReadsUncommitted {
            self.answer_with(op, Did::Read(value), None, false);
            return;
        }
        self.out.push(Effect::Later(op.pgid, Local::ReadDone(hosted.generation, op, value)));
    }

    /// Answers a read if no later interval can have begun before now.
    fn answer_read(&mut self, op: ClientOp, value: Option<u64>) {
        let now = self.steady();
        if self.may_answer(&self.pgs[&op.pgid].pg, now) {
            self.answer_with(op, Did::Read(value), None, false);
            return;
        }
        let hosted = self.pgs.get_mut(&op.pgid).expect("checked by the caller");
        *self.marks.entry("read waited for a lease").or_default() += 1;
        hosted.pg.set_clock(now);
        hosted.pg.wait_readable();
        hosted.laggy.push(op);
    }

    /// An operator wants a PG compared and repaired.
    pub fn repair(&mut self, pgid: PgId, time: u64) {
        self.set_time(time);
        self.feed(pgid, Event::StartScrub(ScrubKind { deep: true, repair: true, check: false }));
    }

    /// An operator gives up what is unfound. Says what that is, or why it is refused.
    pub fn give_up(&mut self, pgid: PgId, how: GiveUp, time: u64) -> Result<Vec<ObjectId>, LostRefused> {
        self.set_time(time);
        self.tokens += 1;
        let token = OpToken(self.tokens);
        let hosted = self.pgs.get_mut(&pgid).filter(|h| h.giving_up.is_none()).ok_or(LostRefused::NotPrimary)?;
        let oids: Vec<ObjectId> = hosted.pg.lacking().into_iter().filter(|(_, l)| l.unfound).map(|(o, _)| o.clone()).collect();
        let count = hosted.pg.mark_unfound_lost(token, how)?;
        assert_eq!(count, oids.len());
        hosted.giving_up = Some((token, oids.clone()));
        self.drain(pgid);
        Ok(oids)
    }

    /// There is room again, or none any more.
    pub fn set_full(&mut self, full: bool, time: u64) {
        self.set_time(time);
        self.full = full;
        for pgid in self.pgs.keys().copied().collect::<Vec<_>>() {
            self.run_waiting(pgid);
            self.drain(pgid);
        }
    }

    fn host(&mut self, pgid: PgId, pg: Pg) {
        let mut hosted = Hosted::new(pg);
        hosted.waiting = self.early_ops.extract_if(.., |op| op.pgid == pgid).collect();
        let split = hosted.pg.info().history.last_epoch_split;
        hosted.waiting.retain(|op| op.epoch >= split);
        self.pgs.insert(pgid, hosted);
        self.drain(pgid);
    }

    fn feed(&mut self, pgid: PgId, event: Event) {
        let Some(hosted) = self.pgs.get_mut(&pgid) else { return };
        self.touched.insert(pgid);
        let steady = self.clock.shows(self.time);
        hosted.pg.set_clock(steady);
        if hosted.pg.phase_name() == "Started/Primary/Peering/WaitUpThru" && hosted.pg.state().has(pg::PgState::WAIT) {
            *self.marks.entry("lease wait").or_default() += 1;
        }
        hosted.pg.handle(event, self.now);
        if !cfg!(debug_assertions) {
            assert_eq!(hosted.pg.check_invariants(), Ok(()));
        }
        self.drain(pgid);
    }

    fn drain(&mut self, pgid: PgId) {
        self.touched.insert(pgid);
        let (mut run, mut leave) = (false, false);
        loop {
            if std::mem::take(&mut leave) {
                self.leave_turns(pgid);
            }
            let Some(hosted) = self.pgs.get_mut(&pgid) else { return };
            let Some(action) = hosted.pg.poll_action() else {
                if std::mem::take(&mut run) {
                    self.run_waiting(pgid);
                    continue;
                }
                let pg = &hosted.pg;
                if pg.is_ready_to_join() && hosted.told_ready.replace(pg.epoch()) != Some(pg.epoch()) {
                    let acting = pg.mapping().acting.clone();
                    self.out.push(Effect::Mon(MonMsg::Ready(pgid, pg.epoch(), pg.info().last_update, acting)));
                }
                return;
            };
            match action {
                Action::Persist(persist) => self.persist(pgid, *persist),
                Action::Send { to, header, msg } => {
                    note_filling(&hosted.pg, &to, &msg, &mut self.marks);
                    let (front, data) = msg.encode(&header);
                    self.out.push(Effect::Peer { to, front, data });
                }
                Action::Reply { token, version } => {
                    run = true;
                    if let Some((op, v)) = hosted.running.remove(&token) {
                        assert_eq!(v, version);
                        self.answer(op, version, true);
                    } else if let Some((_, oids)) = hosted.giving_up.take_if(|(t, _)| *t == token) {
                        self.out.push(Effect::GaveUp(oids));
                    }
                }
                Action::IntervalChange => {
                    leave = true;
                    let Hosted { pg, waiting, laggy, running, executing, generation, txns, giving_up, .. } = hosted;
                    txns.clear();
                    giving_up.take();
                    waiting.append(laggy);
                    *generation += 1;
                    waiting.extend(std::mem::take(executing).into_values());
                    waiting.extend(std::mem::take(running).into_values().map(|(op, _)| op));
                    let split = pg.info().history.last_epoch_split;
                    waiting.retain(|op| op.epoch >= split || self.bug == Bug::OldRequests);
                    if !pg.is_primary() {
                        // Those of a client with a newer map wait for that map.
                        let epoch = pg.epoch();
                        waiting.retain(|op| op.epoch > epoch);
                    }
                }
                Action::Active => {
                    run = true;
                    let objects = &self.disk.state().colls[&pgid].objects;
                    hosted.stale = objects.iter().map(|(o, c)| (o.clone(), c.version)).collect();
                }
                Action::ObjectReady(_) => run = true,
                Action::Readable => {
                    run = true;
                    let Hosted { waiting, laggy, .. } = hosted;
                    waiting.append(laggy);
                }
                Action::WakeAt(at) => self.out.push(Effect::Wake(pgid, at)),
                Action::ObjectUnfound(_) => *self.marks.entry("unfound").or_default() += 1,
                Action::ReadObject { token, oid, version, from, max_bytes, max_omap, urgent: _ } => {
                    let chunk = self.disk.read_chunk(&pgid, &oid, version, from, max_bytes, max_omap);
                    if chunk.is_none() {
                        *self.marks.entry("read failed").or_default() += 1;
                    }
                    self.out.push(Effect::Later(pgid, Local::Read(token, chunk)));
                }
                Action::ListObjects { token, after, max } => self.out.push(Effect::Later(pgid, Local::List(token, after, max))),
                Action::Reserve { target, backfill, priority } => {
                    self.tokens += 1;
                    if target && backfill && crate::rng::mix(self.tokens) % 1_000 < self.tight {
                        self.without_room.insert(pgid);
                        self.out.push(Effect::Later(pgid, Local::TooFull(priority)));
                    } else {
                        self.turns[usize::from(target)].ask(pgid, priority, backfill);
                        self.next_turns();
                    }
                }
                Action::Release => {
                    if hosted.pg.backfills().any(|b| b.running && b.last_backfill == Backfill::Complete && b.missing == 0) {
                        *self.marks.entry("backfill finished").or_default() += 1;
                    }
                    self.leave_turns(pgid);
                }
                Action::QueueRecovery => self.out.push(Effect::Later(pgid, Local::Grant)),
                Action::WantUpThru(epoch) => {
                    if self.wishes.up_thru.is_none_or(|want| want < epoch) {
                        self.wishes.up_thru = Some(epoch);
                        self.out.push(Effect::Mon(MonMsg::UpThru(self.id, self.incarnation, epoch)));
                    }
                }
                Action::WantPgTemp(want) => {
                    *self.marks.entry("pg_temp").or_default() += 1;
                    self.wishes.pg_temp.insert(pgid, want.clone());
                    self.out.push(Effect::Mon(MonMsg::PgTemp(pgid, want, hosted.pg.epoch())));
                }
                Action::WantMap(epoch) => self.want_map(epoch),
                Action::Scan { token, after, upto, .. } => self.out.push(Effect::Later(pgid, Local::Scan(token, after, upto))),
                Action::ReserveScrub => self.out.push(Effect::Later(pgid, Local::ScrubSlot)),
                Action::ReleaseScrub => {}
                Action::ScrubRangeReady => run = true,
                Action::ScrubEnded { ran, again } => {
                    *self.marks.entry(if ran { "scrubbed" } else { "scrub given up" }).or_default() += 1;
                    self.out.extend(again.map(|kind| Effect::Later(pgid, Local::Scrub(kind))));
                }
                Action::CopyRepaired(_) => *self.marks.entry("repaired").or_default() += 1,
                Action::ClusterLog { error, text } => self.out.extend(error.then_some(Effect::Complaint(text))),
                Action::SnapTrim(_) => unreachable!("no snapshots in this model"),
                Action::RemoveObjects { max } => self.out.push(Effect::Later(pgid, Local::RemoveObjects(max))),
                Action::Gone { undelivered } => {
                    *self.marks.entry("removed").or_default() += 1;
                    let seq = self.disk.submit(vec![StoreOp::Drop(pgid)], None);
                    self.out.push(Effect::Flush(seq));
                    self.leave_turns(pgid);
                    if let Some(hosted) = self.pgs.remove(&pgid) {
                        self.early_ops.extend(hosted.waiting);
                    }
                    for (from, header, msg) in undelivered {
                        self.deliver(from, header, msg);
                    }
                    return;
                }
            }
        }
    }

    fn leave_turns(&mut self, pgid: PgId) {
        self.turns.iter_mut().for_each(|t| t.leave(pgid));
        self.without_room.remove(&pgid);
        self.next_turns();
    }

    /// Who has a turn, or not any more, hears of it a little later.
    fn next_turns(&mut self) {
        for (turns, target) in self.turns.iter_mut().zip([false, true]) {
            while let Some(turn) = turns.next(1, true) {
                let (Turn::Granted(pgid) | Turn::Preempted(pgid)) = turn;
                self.out.push(Effect::Later(pgid, Local::Turn(turn, target)));
            }
        }
    }

    fn persist(&mut self, pgid: PgId, persist: Persist) {
        let mut ops = Vec::new();
        if persist.create_collection {
            ops.push(StoreOp::Create(pgid));
        }
        let mut early_ack = false;
        match persist.source {
            Source::None => {}
            Source::Attrs(oid, attrs) => {
                *self.marks.entry("reverted").or_default() += 1;
                let (_, info) = attrs.first().expect("an object has its info");
                let version = ObjectInfo::from_bytes(info).expect("own bytes").version;
                ops.push(StoreOp::Version(pgid, oid, version));
            }
            Source::Proposal(token) => {
                let hosted = self.pgs.get_mut(&pgid).expect("it just asked");
                let (oid, object) = hosted.txns.remove(&token).expect("it was proposed");
                ops.extend(object.into_store(pgid, oid));
            }
            Source::RepOp(_) if self.bug == Bug::FollowerSleeps && self.pgs[&pgid].pg.info().is_incomplete() => {}
            Source::RepOp(payload) => {
                early_ack = self.bug == Bug::AckBeforeCommit;
                let (oid, object) = decode_payload(payload);
                ops.extend(object.into_store(pgid, oid));
            }
            Source::Push(chunk) => {
                *self.marks.entry(if chunk.last { "pushed" } else { "pushed part" }).or_default() += 1;
                if self.bug != Bug::PushLastOnly || chunk.last {
                    ops.push(StoreOp::Push(pgid, chunk));
                }
            }
        }
        if !persist.remove_objects.is_empty() {
            *self.marks.entry("merge removed objects").or_default() += 1;
            if self.bug != Bug::KeepDivergent {
                ops.extend(persist.remove_objects.into_iter().map(|o| StoreOp::Remove(pgid, o)));
            }
        }
        for (k, v) in persist.rows.set {
            if k.first() == Some(&b'm') {
                *self.marks.entry("missing").or_default() += 1;
                if self.bug == Bug::ForgetMissing {
                    continue;
                }
            }
            ops.push(StoreOp::Set(pgid, k, v));
        }
        ops.extend(persist.rows.remove.into_iter().map(|k| StoreOp::Unset(pgid, k)));
        if self.bug == Bug::CursorFirst && self.pgs[&pgid].pg.info().is_incomplete() {
            let cursor = |op: &StoreOp| matches!(op, StoreOp::Set(_, k, _) if k[..] == b"info"[..]);
            let first = ops.extract_if(.., |op| cursor(op)).collect();
            let seq = self.disk.submit(first, None);
            self.out.push(Effect::Flush(seq));
        }
        if let Some(join) = persist.join {
            let here = join.parts.iter().filter(|(_, here)| *here).map(|(p, _)| *p).collect();
            ops.push(StoreOp::Join(pgid, here));
            ops.extend(join.rows.set.into_iter().map(|(k, v)| StoreOp::Set(pgid, k, v)));
        }
        let mut split = Vec::new();
        for child in persist.split {
            split.push(StoreOp::Split(pgid, child.pgid, child.pgid.split_bits(child.pg_num)));
            let rows = child.rows.set.into_iter().filter(|(k, _)| self.bug != Bug::SplitForgetsMissing || k[0] != b'm');
            split.extend(rows.map(|(k, v)| StoreOp::Set(child.pgid, k, v)));
        }
        let later = if self.bug == Bug::SplitInSteps { std::mem::take(&mut split) } else { Vec::new() };
        ops.splice(0..0, split);
        let mut seq = self.disk.submit(ops, Some((pgid, persist.token)));
        if !later.is_empty() {
            seq = self.disk.submit(later, None);
        }
        self.out.push(Effect::Flush(seq));
        if early_ack {
            self.early_commit(pgid, persist.token);
        }
    }

    fn early_commit(&mut self, pgid: PgId, token: PersistToken) {
        if let Some(hosted) = self.pgs.get_mut(&pgid) {
            hosted.pg.handle(Event::Committed(token), self.now);
        }
    }

    /// Answers a change that has this version.
    fn answer(&mut self, op: ClientOp, version: Eversion, first: bool) {
        let did = match op.ask {
            Ask::Write(value, _) => Did::Write(value),
            Ask::Delete => Did::Delete,
            Ask::Read => unreachable!("reads are not logged"),
        };
        self.answer_with(op, did, Some(version), first);
    }

    /// Tries every waiting operation of a PG once.
    fn run_waiting(&mut self, pgid: PgId) {
        let Some(hosted) = self.pgs.get_mut(&pgid) else { return };
        if !hosted.pg.is_active() {
            return;
        }
        for op in std::mem::take(&mut hosted.waiting) {
            if !self.run(op) {
                let hosted = self.pgs.get_mut(&pgid).expect("operations do not remove PGs");
                hosted.waiting.push(op);
            }
        }
    }

    /// Runs an operation, or says that it must wait.
    fn run(&mut self, op: ClientOp) -> bool {
        let oid = op.oid();
        let hosted = self.pgs.get_mut(&op.pgid).expect("checked by the caller");
        let status = hosted.pg.object_status(&oid);
        if status == ObjectStatus::Missing || (status == ObjectStatus::Degraded && op.ask != Ask::Read) {
            *self.marks.entry("operation waited for recovery").or_default() += 1;
            hosted.pg.handle(Event::RecoverNow(oid), self.now);
            return false;
        }
        if status == ObjectStatus::Unfound {
            return false;
        }
        if op.ask != Ask::Read && hosted.pg.scrub_blocks(&oid) {
            *self.marks.entry("write waited for scrub").or_default() += 1;
            return false;
        }
        let dup = hosted.pg.find_dup(&op.reqid()).filter(|_| self.bug != Bug::NoDups);
        if let Some(dup) = dup {
            *self.marks.entry("resent write recognised").or_default() += 1;
            if dup.committed {
                self.answer(op, dup.version, false);
            }
            return dup.committed;
        }
        if op.ask == Ask::Read {
            if hosted.pg.has_writes_in_flight(&oid) && self.bug != Bug::ReadUncommitted {
                return false;
            }
            let Ok(object) = self.disk.read(op.pgid, &oid, self.bug != Bug::NoChecksum) else {
                *self.marks.entry("client met damage").or_default() += 1;
                let version = self.disk.state().version(op.pgid, &oid).expect("damaged, but there");
                hosted.pg.handle(Event::ObjectDamaged { oid: oid.clone(), version }, self.now);
                if hosted.pg.must_wait(&oid, false) {
                    return false;
                }
                // Without another acting copy.
                *self.marks.entry("client got an error").or_default() += 1;
                self.out.push(Effect::Refused { client: op.client, tid: op.tid, again: false });
                return true;
            };
            let value = object.map(value_of);
            let generation = hosted.generation;
            self.tokens += 1;
            if crate::rng::mix(self.tokens).is_multiple_of(4) {
                // Data may have to come from the disk.
                self.out.push(Effect::Later(op.pgid, Local::ReadDone(generation, op, value)));
            } else {
                self.answer_read(op, value);
            }
            return true;
        }
        if self.full {
            *self.marks.entry("write waited for room").or_default() += 1;
            return false;
        }
        if hosted.executing.contains_key(&oid) {
            return false;
        }
        self.tokens += 1;
        if crate::rng::mix(self.tokens).is_multiple_of(4) {
            // An object may have to be read before it is changed.
            hosted.executing.insert(oid, op);
            self.out.push(Effect::Later(op.pgid, Local::Execute(hosted.generation, op)));
            return true;
        }
        self.execute(op);
        true
    }

    /// Works out what a write does, and proposes it.
    fn execute(&mut self, op: ClientOp) {
        let oid = op.oid();
        let exists = self.disk.state().colls[&op.pgid].objects.get(&oid).map(|o| o.version);
        let hosted = self.pgs.get_mut(&op.pgid).expect("checked by the caller");
        let version = hosted.pg.next_version();
        self.tokens += 1;
        let token = OpToken(self.tokens);
        let object = match op.ask {
            Ask::Write(value, words) => Change::Write(object_with(value, words, version)),
            _ if exists.is_some() => Change::Remove,
            // Nothing to do, but it must be remembered: the same request may come again, late.
            _ => Change::Nothing,
        };
        let payload = encode_payload(&oid, &object);
        let (log_op, now_there) = match object {
            Change::Write(_) => (LogOp::Modify, true),
            Change::Remove => (LogOp::Delete, false),
            Change::Nothing => (LogOp::Error, false),
        };
        let stats = StatSum { num_objects: i64::from(now_there) - i64::from(exists.is_some()), ..StatSum::default() };
        let entry = NewEntry {
            op: log_op,
            oid: oid.clone(),
            prior_version: exists.unwrap_or_default(),
            user_version: version.version,
            reqid: op.reqid(),
            mtime: self.now,
            return_code: 0,
            snaps: Vec::new(),
            op_returns: Vec::new(),
        };
        let value = if let Ask::Write(value, _) = op.ask { Some(value) } else { None };
        self.out.push(Effect::Proposed { object: op.object, version, value });
        hosted.txns.insert(token, (oid, object));
        hosted.running.insert(token, (op, version));
        let got = hosted.pg.propose(Proposal { token, entries: smallvec![entry], payload, stats });
        assert_eq!(got, Ok(version));
        // Apply at once: the next operation reads what this one wrote.
        self.drain_persists(op.pgid);
        if self.bug == Bug::AckAlone
            && let Some((op, _)) = self.pgs.get_mut(&op.pgid).and_then(|h| h.running.remove(&token))
        {
            self.answer(op, version, true);
        }
    }

    /// Carries out what a proposal caused: messages and one transaction.
    fn drain_persists(&mut self, pgid: PgId) {
        self.drain(pgid);
    }
}

/// Notes how far several copies of a group are filled together.
fn note_filling(pg: &Pg, to: &Peers, msg: &PeerMsg, marks: &mut BTreeMap<&'static str, u64>) {
    let mut mark = |what| *marks.entry(what).or_default() += 1;
    let target = |o: &&OsdId| !pg.mapping().acting.contains(o);
    match msg {
        PeerMsg::AdvanceBackfill { .. } => {
            let at: Vec<_> = pg.backfills().filter(|b| b.running).map(|b| b.last_backfill).collect();
            if at.len() > 1 {
                mark(if at.iter().all(|c| *c == at[0]) { "several copies filled together" } else { "a copy catches up with another" });
            }
        }
        PeerMsg::Push(_) if to.iter().filter(target).count() > 1 => mark("an object read once for several targets"),
        PeerMsg::RepOp(op) if !op.log_only && to.iter().any(|o| target(&o)) && pg.backfills().filter(|b| b.running).count() > 1 => {
            mark("write while several copies are filled");
        }
        _ => {}
    }
}

impl Hosted {
    fn new(pg: Pg) -> Self {
        Self { pg, waiting: Vec::new(), laggy: Vec::new(), running: BTreeMap::new(), executing: BTreeMap::new(), generation: 0, txns: BTreeMap::new(), removal: None, told_ready: None, giving_up: None, stale: BTreeMap::new() }
    }
}

/// The content that stands for a value: every word of it and every row says so.
fn object_with(value: u64, words: u32, version: Eversion) -> Object {
    let data = (0..words).flat_map(|_| value.to_le_bytes()).collect();
    let rows = value % 4;
    let omap = (0..rows).map(|i| (Bytes::from(format!("row{i}")), Bytes::copy_from_slice(&value.to_le_bytes()))).collect();
    Object { version, data, omap, attr: attr_of(value), sum: 0 }
}

/// The attribute of an object with this value.
pub fn attr_of(value: u64) -> u64 {
    crate::rng::mix(value)
}

/// The value of an object; all parts of it must agree.
pub fn value_of(object: &Object) -> u64 {
    value_if_whole(object).unwrap_or_else(|| panic!("an object is torn: {object:?}"))
}

/// The value of an object, if all parts of it agree.
pub fn value_if_whole(object: &Object) -> Option<u64> {
    let word = |b: &[u8]| b.try_into().ok().map(u64::from_le_bytes);
    let value = word(object.data.get(..8)?)?;
    let data = object.data.chunks(8).all(|c| word(c) == Some(value));
    let rows = object.omap.len() as u64 == value % 4 && object.omap.values().all(|v| word(v) == Some(value));
    (data && rows).then_some(value)
}

/// What a scrub sees of an object. Of one that cannot be read: its attributes.
fn scrubbed(object: &Object, bad: bool) -> ScrubObject {
    let info = ObjectInfo { version: object.version, size: object.data.len() as u64, ..ObjectInfo::default() };
    let rows = object.omap.to_bytes(Features::ALL);
    ScrubObject {
        size: info.size,
        attrs: [
            (Bytes::from_static(b"_"), info.to_bytes(Features::ALL)),
            (Bytes::from_static(b"_attr"), Bytes::copy_from_slice(&object.attr.to_be_bytes())),
        ]
        .into(),
        read_error: bad,
        data_digest: (!bad).then(|| denc::crc::crc32c(u32::MAX, &object.data)),
        omap_digest: (!bad).then(|| denc::crc::crc32c(u32::MAX, &rows)),
        ..ScrubObject::default()
    }
}

/// What an operation does to an object.
#[derive(Debug)]
enum Change {
    Nothing,
    Write(Object),
    Remove,
}

impl Change {
    fn into_store(self, pgid: PgId, oid: ObjectId) -> Option<StoreOp> {
        match self {
            Self::Nothing => None,
            Self::Write(object) => Some(StoreOp::Write(pgid, oid, object)),
            Self::Remove => Some(StoreOp::Remove(pgid, oid)),
        }
    }
}

fn encode_payload(oid: &ObjectId, change: &Change) -> Payload {
    let mut ops = BytesMut::new();
    oid.encode(&mut ops, Features::ALL);
    let mut data = Bytes::new();
    match change {
        Change::Nothing => ops.put_u8(2),
        Change::Remove => ops.put_u8(0),
        Change::Write(object) => {
            ops.put_u8(1);
            object.version.encode(&mut ops, Features::ALL);
            object.omap.encode(&mut ops, Features::ALL);
            object.attr.encode(&mut ops, Features::ALL);
            data = Bytes::copy_from_slice(&object.data);
        }
    }
    Payload { ops: ops.freeze(), data }
}

fn decode_payload(payload: Payload) -> (ObjectId, Change) {
    let mut r = Reader::new(payload.ops);
    let oid = r.get().expect("own bytes");
    let change = match r.get::<u8>().expect("own bytes") {
        0 => Change::Remove,
        1 => Change::Write(Object {
            version: r.get().expect("own bytes"),
            omap: r.get().expect("own bytes"),
            attr: r.get().expect("own bytes"),
            sum: 0,
            data: payload.data.to_vec(),
        }),
        _ => Change::Nothing,
    };
    (oid, change)
}
