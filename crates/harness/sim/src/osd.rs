//! An OSD that does the least an OSD must do: it drives its PGs and a disk, and executes a few
//! operations.

mod actions;
mod clients;
mod effect;
mod maps;
mod shards;
mod trim;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use bytes::Bytes;
use pg::creation::{self, Stranger, UnbornPgs};
use pg::{
    Backfill, Event, GiveUp, Listing, LogOp, LostRefused, OpToken, PeerHeader, PeerMsg, Pg, PgConf,
    Reserver, ScrubKind, ScrubMap, ScrubObject, Side, Steady, Turn,
};
use smallvec::smallvec;
use types::{Epoch, Eversion, ObjectId, OsdId, PgId, PgShard, ShardId, SnapId, SpgId, Utime};

use self::clients::read_of;
pub use self::effect::{Effect, Local, Proof, ReadObject, Serves};
use crate::bug::Bug;
use crate::change::Change;
use crate::content::{object_id, scrubbed};
use crate::disk::{Disk, StoreOp};
use crate::map::MapModel;
use crate::object::Object;
use crate::request::ClientOp;

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
    txns: BTreeMap<OpToken, Vec<(ObjectId, Change)>>,
    /// The snapshot that is trimmed, and the change that is under way.
    trimming: Option<(SnapId, Option<OpToken>)>,
    removal: Option<(u64, bool)>,
    /// The epoch in which the monitor was told that the PG is ready to be joined. It is told again
    /// in every epoch, as by statistics.
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
    /// The newest map that any of its PGs may have.
    newest: Option<Rc<MapModel>>,
    booted: bool,
    wishes: Wishes,
    /// The disk was replaced since the monitors marked a process up that ran on it.
    pub new_disk: bool,
    /// Permille: a backfill finds no room.
    pub tight: u64,
    unborn: UnbornPgs,
    pgs: BTreeMap<SpgId, Hosted>,
    early: Vec<(OsdId, PeerHeader, PeerMsg)>,
    early_ops: Vec<ClientOp>,
    tokens: u64,
    /// Turns of recovery: of PGs that this OSD leads, and of others.
    turns: BTreeMap<Side, Reserver<SpgId>>,
    /// The PGs that wait for room before they get a turn, and did not give up.
    without_room: BTreeSet<SpgId>,
    /// Counts chances of scrubs.
    scrubs: u64,
    /// What is read of other shards.
    shards: shards::Shards,
    /// Bytes of a cell.
    pub cell: u64,
    out: Vec<Effect>,
    /// PGs to which something happened since the last look.
    pub touched: BTreeSet<SpgId>,
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
            newest: None,
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
            shards: shards::Shards::default(),
            cell: 0,
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
    pub fn pgs(&self) -> impl Iterator<Item = (&SpgId, &Pg)> {
        self.pgs.iter().map(|(id, h)| (id, &h.pg))
    }

    /// The machine of a PG.
    pub fn pg(&self, pgid: SpgId) -> Option<&Pg> {
        self.pgs.get(&pgid).map(|h| &h.pg)
    }

    /// How clients of a PG would be served at a microsecond of the world, if they would be. A
    /// process that stands still has its clock all the same.
    pub fn serves(&self, pgid: SpgId, time: u64) -> Option<Serves> {
        let pg = self.pg(pgid)?;
        let now = self.clock.shows(time);
        let primary = pg.is_primary();
        let reads = if primary {
            pg.is_active() && self.may_answer(pg, now)
        } else {
            self.may_answer_for(pg, &object_id(pgid.pgid.pool, u64::MAX), now)
        };
        reads.then(|| Serves {
            bits: pgid.pgid.split_bits(pg.pg_num()),
            since: pg.info().history.same_interval_since,
            primary,
        })
    }

    /// The process dies.
    pub fn stop(&mut self, survivors: usize) {
        self.incarnation = 0;
        self.disk.crash(survivors);
        self.pgs.clear();
        self.early.clear();
        self.early_ops.clear();
        self.shards = shards::Shards::default();
        self.turns = Default::default();
        self.without_room.clear();
        self.map = None;
        self.newest = None;
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
        self.now =
            Utime { sec: (time / 1_000_000) as u32, nsec: (time % 1_000_000) as u32 * 1_000 };
    }

    fn steady(&self) -> Steady {
        self.clock.shows(self.time)
    }

    /// The newest map that it has.
    pub fn map(&self) -> Option<&Rc<MapModel>> {
        self.map.as_ref()
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
        if let PeerMsg::Notify { info, .. } = &mut msg
            && self.bug == Bug::RollForward
            && let Some(hosted) = self.pgs.get(&header.receiver())
            && info.last_epoch_started == hosted.pg.info().last_epoch_started
            && info.last_update < hosted.pg.info().last_update
        {
            info.last_update = hosted.pg.info().last_update;
            info.last_complete = info.last_update;
        }
        if let PeerMsg::Notify { promises, .. } = &msg
            && !promises.is_empty()
        {
            *self.marks.entry("told of promises").or_default() += 1;
        }
        match &msg {
            PeerMsg::StartBackfill { .. } => {
                *self.marks.entry("backfill started over").or_default() += 1
            }
            PeerMsg::Activate { .. }
                if self
                    .pgs
                    .get(&header.receiver())
                    .is_some_and(|h| matches!(h.pg.info().last_backfill, Backfill::UpTo(_))) =>
            {
                *self.marks.entry("backfill resumed").or_default() += 1;
            }
            PeerMsg::AdvanceBackfill { missing, remove, .. } => {
                let mark = if missing.is_empty() {
                    "cursor moved over equal objects"
                } else {
                    "cursor moved over different objects"
                };
                *self.marks.entry(mark).or_default() += 1;
                *self.marks.entry("superfluous objects removed").or_default() +=
                    remove.len() as u64;
            }
            PeerMsg::RepOp(_)
                if self.pgs.get(&header.receiver()).is_some_and(|h| {
                    let pg = &h.pg;
                    pg.mapping().acting.contains(&pg.whoami()) && pg.whoami().shard != ShardId::NONE
                }) =>
            {
                if let PeerMsg::RepOp(op) = &msg
                    && (op.log_only || op.entries.len() > 1)
                {
                    *self.marks.entry("entries came later").or_default() += 1;
                }
            }
            PeerMsg::RepOp(op) if op.log_only => {
                let pg = self.pgs.get(&header.receiver()).map(|h| &h.pg);
                if pg.is_some_and(|p| p.info().last_backfill == Backfill::Complete) {
                    *self.marks.entry("write to a copy that recovers beside").or_default() += 1;
                }
                let known = pg.is_some_and(|p| {
                    op.entries.iter().any(|e| p.info().last_backfill.covers(&e.entry.oid))
                });
                *self
                    .marks
                    .entry(if known {
                        "write to a copy in progress"
                    } else {
                        "write behind the cursor"
                    })
                    .or_default() += 1;
            }
            PeerMsg::RepOp(_)
                if self
                    .pgs
                    .get(&header.receiver())
                    .is_some_and(|h| h.pg.info().is_incomplete()) =>
            {
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
        if self.pgs.contains_key(&header.receiver()) {
            self.feed(header.receiver(), Event::Peer { from, header, msg });
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
                let to = PgShard { osd: from, shard: header.to };
                self.out.push(Effect::Peer { to: smallvec![to], front, data });
            }
            Stranger::Adopt => {
                if let Some(pg) =
                    Pg::adopt(self.id, self.view(&map), self.conf.clone(), &header, &msg, self.now)
                {
                    *self.marks.entry("adopted").or_default() += 1;
                    self.host(header.receiver(), pg);
                    self.feed(header.receiver(), Event::Peer { from, header, msg });
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
    pub fn local(&mut self, pgid: SpgId, local: Local, time: u64) {
        self.set_time(time);
        match local {
            Local::Grant => self.feed(pgid, Event::StartRecovery { max_objects: 1 }),
            Local::ReadObject(ReadObject {
                token,
                oid,
                version,
                from,
                most: (bytes, omap),
                ..
            }) => {
                if !self.disk.state().colls.contains_key(&pgid) {
                    return;
                }
                let chunk = self.disk.read_chunk(&pgid, &oid, version, from, bytes, omap);
                if chunk.is_none() {
                    *self.marks.entry("read failed").or_default() += 1;
                }
                let judges = self.bug == Bug::ReplicaJudges && chunk.is_none();
                self.out.push(Effect::Later(pgid, Local::Read(token, chunk)));
                let Some(pg) =
                    self.pgs.get(&pgid).map(|h| &h.pg).filter(|pg| judges && !pg.is_primary())
                else {
                    return;
                };
                if let Some(from) = pg.mapping().primary {
                    let header = PeerHeader {
                        pgid: pgid.pgid,
                        from: from.shard,
                        to: pgid.shard,
                        sent: pg.epoch(),
                        asked: pg.epoch(),
                    };
                    self.feed(
                        pgid,
                        Event::Peer {
                            from: from.osd,
                            header,
                            msg: PeerMsg::MarkMissing { objects: vec![(oid, version)] },
                        },
                    );
                }
            }
            Local::Read(token, chunk) => self.feed(pgid, Event::ObjectRead { token, chunk }),
            Local::List(token, after, max) => {
                let Some(coll) = self.disk.state().colls.get(&pgid) else { return };
                let Some(hosted) = self.pgs.get(&pgid) else { return };
                let stale = self.bug == Bug::StaleListing && hosted.pg.is_primary();
                let all: BTreeMap<ObjectId, Eversion> = if stale {
                    hosted.stale.clone()
                } else {
                    coll.objects.iter().map(|(o, c)| (o.clone(), c.version)).collect()
                };
                let mut rest = all.into_iter().filter(|(o, _)| !after.covers(o)).peekable();
                let mut objects: BTreeMap<_, _> = rest.by_ref().take(max.max(1)).collect();
                while objects.keys().next_back().is_some_and(|o| !o.is_head())
                    && let Some((oid, version)) = rest.next()
                {
                    // Objects of one name are listed together.
                    objects.insert(oid, version);
                }
                let last = objects.keys().next_back();
                let upto = if rest.peek().is_none() {
                    Backfill::Complete
                } else {
                    last.map_or(Backfill::Complete, Backfill::after)
                };
                *self.marks.entry("listed").or_default() += 1;
                let lead = |oid: &ObjectId| coll_of(&self.disk, pgid, oid);
                let shards = objects.keys().filter_map(|oid| Some((oid.clone(), lead(oid)?)));
                let listing = Listing { shards: shards.collect(), upto, objects };
                self.feed(pgid, Event::Listed { token, listing });
            }
            Local::Execute(generation, op) => {
                let Some(hosted) = self.pgs.get_mut(&pgid).filter(|h| h.generation == generation)
                else {
                    return;
                };
                hosted.executing.remove(&op.oid());
                let overtakes = self.overtakes_copy(&op);
                let hosted = self.pgs.get_mut(&pgid).expect("it was there");
                let pg = &hosted.pg;
                if pg.must_wait(&op.oid(), !overtakes) || pg.scrub_blocks(&op.oid()) {
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
                let Some(hosted) = self.pgs.get(&pgid).filter(|h| h.generation == generation)
                else {
                    // Begun in an interval that is over.
                    return self.client(op, time);
                };
                let now = self.steady();
                if hosted.pg.is_primary() {
                    self.answer_read(op, value);
                } else if hosted.pg.may_read_replica(&op.oid(), now)
                    || self.bug == Bug::ReplicaWithoutLease
                {
                    *self.marks.entry("replica read").or_default() += 1;
                    self.answer_with(op, read_of(op, value), None, false);
                } else {
                    self.out.push(Effect::Refused { client: op.client, tid: op.tid, again: true });
                }
                self.drain(pgid);
            }
            Local::Rebuild(r) => self.rebuild_shards(pgid, r),
            Local::ReadShard(token, query) => self.read_own_shard(pgid, token, &query),
            Local::Hedge(number) => self.hedge(pgid, number),
            Local::RunWaiting => {
                self.run_waiting(pgid);
                self.drain(pgid);
            }
            Local::Wake => self.feed(pgid, Event::Wake),
            Local::Scan(token, after, upto) => {
                let state = if self.bug == Bug::ScanDurable {
                    self.disk.durable()
                } else {
                    self.disk.state()
                };
                let Some(coll) = state.colls.get(&pgid) else { return };
                let here = coll.objects.iter().filter(|(o, _)| upto.covers(o) && !after.covers(o));
                let skims = self.bug == Bug::ScrubSkims;
                let bad = |oid: &ObjectId, object: &Object| {
                    self.disk.is_bad(pgid, oid) || !object.is_sound()
                };
                let seen = |oid: &ObjectId, object: &Object| match skims {
                    true => ScrubObject {
                        data_digest: None,
                        omap_digest: None,
                        ..scrubbed(object, false)
                    },
                    false => scrubbed(object, bad(oid, object)),
                };
                let objects = here.map(|(oid, object)| (oid.clone(), seen(oid, object))).collect();
                self.feed(pgid, Event::Scanned { token, map: ScrubMap { upto, objects } });
            }
            Local::Scrub(kind) => {
                *self.marks.entry("repair followed a scrub").or_default() += 1;
                self.feed(pgid, Event::StartScrub(kind));
            }
            Local::TrimTurn(generation, snap) => self.begin_trim(pgid, generation, snap),
            Local::Trim(generation, snap) => self.trim_step(pgid, generation, snap),
            Local::ScrubSlot => {
                self.scrubs += 1;
                let granted = !crate::rng::mix(self.scrubs).is_multiple_of(10);
                self.feed(pgid, Event::ScrubSlot { granted });
            }
            Local::Turn(Turn::Granted(_), side) => {
                if side == Side::Source {
                    *self.marks.entry("copy let read by reservation").or_default() += 1;
                }
                self.feed(pgid, Event::Reserved { side });
            }
            Local::Turn(Turn::Preempted(_), side) => {
                *self
                    .marks
                    .entry(match side {
                        Side::Lead => "turn taken back",
                        Side::Source => "turn of a source taken back",
                        Side::Target => "remote turn taken back",
                    })
                    .or_default() += 1;
                self.feed(pgid, Event::Preempted { side });
            }
            Local::TooFull(priority) => {
                *self.marks.entry("too full").or_default() += 1;
                self.feed(pgid, Event::BackfillTooFull);
                self.out.push(Effect::Later(pgid, Local::Room(priority)));
            }
            Local::Room(priority) => {
                if self.without_room.remove(&pgid) {
                    self.turns.entry(Side::Target).or_default().ask(pgid, priority, true);
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
                let seq = self
                    .disk
                    .submit(gone.into_iter().map(|o| StoreOp::Remove(pgid, o)).collect(), None);
                self.out.push(Effect::Flush(seq));
                if let Some(hosted) = self.pgs.get_mut(&pgid) {
                    hosted.removal = Some((seq, more));
                }
            }
        }
    }

    /// An operator wants a PG compared and repaired.
    pub fn repair(&mut self, pgid: SpgId, time: u64) {
        self.set_time(time);
        self.feed(pgid, Event::StartScrub(ScrubKind { deep: true, repair: true, check: false }));
    }

    /// An operator gives up what is unfound. Says what that is, or why it is refused.
    pub fn give_up(
        &mut self,
        pgid: SpgId,
        how: GiveUp,
        time: u64,
    ) -> Result<Vec<ObjectId>, LostRefused> {
        self.set_time(time);
        self.tokens += 1;
        let token = OpToken(self.tokens);
        let hosted = self
            .pgs
            .get_mut(&pgid)
            .filter(|h| h.giving_up.is_none())
            .ok_or(LostRefused::NotPrimary)?;
        let oids: Vec<ObjectId> = hosted
            .pg
            .lacking()
            .into_iter()
            .filter(|(_, l)| l.unfound)
            .map(|(o, _)| o.clone())
            .collect();
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

    fn host(&mut self, pgid: SpgId, pg: Pg) {
        let mut hosted = Hosted::new(pg);
        hosted.waiting = self.early_ops.extract_if(.., |op| op.pgid == pgid).collect();
        let split = hosted.pg.info().history.last_epoch_split;
        hosted.waiting.retain(|op| op.epoch >= split);
        self.pgs.insert(pgid, hosted);
        self.drain(pgid);
    }

    fn feed(&mut self, pgid: SpgId, event: Event) {
        let Some(hosted) = self.pgs.get_mut(&pgid) else { return };
        self.touched.insert(pgid);
        let steady = self.clock.shows(self.time);
        hosted.pg.set_clock(steady);
        if hosted.pg.phase_name() == "Started/Primary/Peering/WaitUpThru"
            && hosted.pg.state().has(pg::PgState::WAIT)
        {
            *self.marks.entry("lease wait").or_default() += 1;
        }
        hosted.pg.handle(event, self.now);
        if !cfg!(debug_assertions) {
            assert_eq!(hosted.pg.check_invariants(), Ok(()));
        }
        self.drain(pgid);
    }
}

/// Versions of shards of an object that are other than its own, where they are known.
fn coll_of(disk: &Disk, pgid: SpgId, oid: &ObjectId) -> Option<Vec<(ShardId, Eversion)>> {
    let lead = disk.state().colls.get(&pgid)?.objects.get(oid)?.lead()?;
    Some(lead.shards.iter().map(|(s, v)| (*s, *v)).collect())
}

impl Hosted {
    fn new(pg: Pg) -> Self {
        Self {
            pg,
            waiting: Vec::new(),
            laggy: Vec::new(),
            running: BTreeMap::new(),
            executing: BTreeMap::new(),
            generation: 0,
            txns: BTreeMap::new(),
            trimming: None,
            removal: None,
            told_ready: None,
            giving_up: None,
            stale: BTreeMap::new(),
        }
    }
}
