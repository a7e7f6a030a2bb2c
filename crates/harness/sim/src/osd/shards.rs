//! Objects of erasure-coded pools: requests of clients are planned, read and told to shards, and
//! lost shards are made of others.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use bytes::Bytes;
use ec::{
    Change as Plan, Code, Layout, Pieces, ReadPlan, RebuildPlan, Recipes, Shard, ShardExtents,
    ShardOp, ShardSet, Sources, Stripe, Stripes, WritePlan,
};
use pg::{
    Event, LogOp, NewEntry, ObjectChunk, ObjectStatus, Payloads, PoolKind, Progress, Proposal,
    ReadToken, ShardAnswer, ShardBytes, ShardQuery, StatSum,
};
use smallvec::smallvec;
use types::{Eversion, ObjectId, PgShard, ShardId, SpgId, Utime};

use super::effect::Rebuild;
use super::{Effect, Local, Osd};
use crate::bug::Bug;
use crate::cells;
use crate::change::{Change, ShardChange, encode_payload};
use crate::content::{attrs_of, number_of};
use crate::object::{Cut, Lead, Object};
use crate::request::{Ask, ClientOp};
use crate::rng::mix;
use crate::snaps::After;

/// Bytes of stripes that a primary keeps: few, so that some have to go.
const STRIPES_BYTES: u64 = 256 << 10;

/// What an OSD knows of erasure-coded pools.
#[derive(Debug)]
pub(super) struct Shards {
    recipes: Option<Recipes>,
    gathers: BTreeMap<u64, Gather>,
    /// What was asked of other shards: for which gathering, of whom, which ranges.
    asked: BTreeMap<u64, Asked>,
    next: u64,
    /// Of objects that are being changed.
    stripes: Stripes<(SpgId, ObjectId), Eversion>,
}

impl Default for Shards {
    fn default() -> Self {
        Shards {
            recipes: None,
            gathers: BTreeMap::new(),
            asked: BTreeMap::new(),
            next: 0,
            stripes: Stripes::new(STRIPES_BYTES),
        }
    }
}

#[derive(Debug)]
struct Asked {
    gather: u64,
    shard: Shard,
    from: PgShard,
    extents: Vec<Range<u64>>,
}

/// Bytes of shards that are read for something.
#[derive(Debug)]
struct Gather {
    pgid: SpgId,
    generation: u64,
    what: What,
    oid: ObjectId,
    /// What the object was when this was planned.
    known: Known,
    pieces: Pieces,
    waits: BTreeSet<u64>,
}

#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "a model need not be fast")]
enum What {
    Read(ClientOp, ReadPlan),
    Write(ClientOp, Write, WritePlan, Stripe),
    /// All of the object, before it is replaced.
    Whole(ClientOp, ReadPlan),
    Rebuild(Rebuild, Option<RebuildPlan>),
}

#[derive(Clone, Debug)]
struct Write {
    change: Plan,
    new: Vec<u8>,
    rows: Vec<(Bytes, Option<Bytes>)>,
    after: Option<u64>,
}

/// What is known of an object.
#[derive(Clone, Debug, Default)]
struct Known {
    version: Eversion,
    lead: Lead,
    rows: BTreeMap<Bytes, Bytes>,
}

impl Known {
    fn of(object: Option<&Object>) -> Known {
        let Some(object) = object else { return Known::default() };
        let lead = object.lead().cloned().expect("the primary knows its objects");
        Known { version: object.version, lead, rows: object.omap.clone() }
    }

    fn version_of(&self, shard: Shard) -> Eversion {
        self.lead.shards.get(&position(shard)).copied().unwrap_or(self.version)
    }
}

fn position(shard: Shard) -> ShardId {
    ShardId(shard as i8)
}

fn shard_of(copy: PgShard) -> Shard {
    copy.shard.0 as Shard
}

impl Osd {
    /// How the pool of a PG cuts its objects, if it does.
    pub(super) fn layout(&self, pgid: SpgId) -> Option<Layout> {
        let map = self.newest.as_ref()?;
        map.pools.get(&pgid.pgid.pool)?.kind.layout()
    }

    fn recipes(&mut self, pgid: SpgId) -> &mut Recipes {
        let kind = self.newest.as_ref().and_then(|m| m.pools.get(&pgid.pgid.pool)).map(|p| p.kind);
        self.shards.recipes.get_or_insert_with(|| {
            let Some(PoolKind::Erasure(e)) = kind else { panic!("{pgid} has no shards") };
            let code = Code::new(e.technique, e.layout.k(), e.layout.m()).expect("a code");
            Recipes::new(Rc::new(code))
        })
    }

    /// The process died, or an interval ended: nothing that was read counts.
    pub(super) fn forget_gathers(&mut self, pgid: Option<SpgId>) -> Vec<ClientOp> {
        let mut ops = Vec::new();
        let ended = |g: &Gather| pgid.is_none_or(|p| p == g.pgid);
        for (_, gather) in self.shards.gathers.extract_if(.., |_, g| ended(g)) {
            if let What::Read(op, _) = gather.what {
                ops.push(op);
            }
        }
        let gathers = &self.shards.gathers;
        self.shards.asked.retain(|_, a| gathers.contains_key(&a.gather));
        if self.bug != Bug::StaleStripe {
            self.shards.stripes.clear();
        }
        ops
    }

    /// What is known of the bytes of an object that is being changed.
    fn stripe(&self, pgid: SpgId, oid: &ObjectId, version: Eversion) -> Stripe {
        let (stripes, key) = (&self.shards.stripes, (pgid, oid.clone()));
        let stripe = match self.bug {
            Bug::StaleStripe => stripes.any(&key),
            _ => stripes.get(&key, &version),
        };
        stripe.cloned().unwrap_or_default()
    }

    /// Keeps what was read for a change, and what it wrote.
    fn keep_stripe(
        &mut self,
        (pgid, oid, version): (SpgId, &ObjectId, Eversion),
        (plan, pieces): (&WritePlan, &Pieces),
        mut stripe: Stripe,
        writes: &[ec::ShardWrite],
    ) {
        let data = self.layout(pgid).expect("a pool of shards").data();
        for (shard, extents) in plan.reads().iter().filter(|(s, _)| data.contains(**s)) {
            for r in extents.iter() {
                let bytes = pieces.get(*shard, r.clone()).expect("it was read").into_owned();
                stripe.insert(*shard, r.start, bytes);
            }
        }
        for w in writes.iter().filter(|w| data.contains(w.shard)) {
            for op in &w.ops {
                match op {
                    ShardOp::Write { offset, bytes } => {
                        stripe.insert(w.shard, *offset, bytes.clone());
                    }
                    _ if self.bug == Bug::StaleStripe => {}
                    // Seldom enough: all is read again.
                    _ => stripe = Stripe::default(),
                }
            }
        }
        // What is told to no shard is not among the writes.
        let told = data.and(plan.written()).without(plan.available()).is_empty();
        let cut = writes.iter().flat_map(|w| &w.ops).any(|o| matches!(o, ShardOp::Cut { .. }));
        if told && !cut || self.bug == Bug::StaleStripe {
            self.shards.stripes.set((pgid, oid.clone()), version, stripe);
        } else {
            self.shards.stripes.remove(&(pgid, oid.clone()));
        }
    }

    /// A change is over: of objects that are not being changed nothing is kept.
    pub(super) fn stripe_rests(&mut self, pgid: SpgId, oid: &ObjectId) {
        let changing = self.pgs.get(&pgid).is_some_and(|h| h.pg.has_writes_in_flight(oid));
        if !changing && self.bug != Bug::StaleStripe {
            self.shards.stripes.remove(&(pgid, oid.clone()));
        }
    }

    fn cell(&self, op: &ClientOp) -> Range<u64> {
        let cell = op.object % op.cells;
        cell * self.cell..(cell + 1) * self.cell
    }

    /// Copies that have an object.
    fn holders(&self, pgid: SpgId, oid: &ObjectId) -> Vec<PgShard> {
        self.pgs[&pgid].pg.shards_with(oid)
    }

    fn known(&self, pgid: SpgId, oid: &ObjectId) -> Known {
        Known::of(self.disk.state().colls[&pgid].objects.get(oid))
    }

    /// Runs an operation on an object of shards, or says that it must wait.
    pub(super) fn run_on_shards(&mut self, op: ClientOp) -> bool {
        let oid = op.oid();
        let hosted = self.pgs.get_mut(&op.pgid).expect("checked by the caller");
        let mixes = self.bug == Bug::MixedShards;
        if self.disk.read(op.pgid, &oid, true).is_err() {
            *self.marks.entry("client met damage").or_default() += 1;
            let version = self.disk.state().version(op.pgid, &oid).expect("damaged, but there");
            hosted.pg.handle(Event::ObjectDamaged { oid, version }, self.now);
            return false;
        }
        if !op.ask.is_write() {
            if hosted.pg.has_writes_in_flight(&oid) && !mixes {
                return false;
            }
            if hosted.pg.object_status(&oid) == ObjectStatus::Degraded {
                *self.marks.entry("degraded read of shards").or_default() += 1;
            }
            return self.read_shards(op, &[]);
        }
        if self.full || hosted.executing.contains_key(&oid) {
            return false;
        }
        let known = self.known(op.pgid, &oid);
        let cell = self.cell(&op);
        let row = cells::row(op.object % op.cells);
        self.tokens += 1;
        let dice = mix(self.tokens);
        let whole = dice.is_multiple_of(5) && known.version != Eversion::default();
        let change = match op.ask {
            Ask::Write(value, _) => Write {
                change: Plan::Write { offset: cell.start, length: self.cell },
                new: cells::content(value, self.cell),
                rows: vec![(row, Some(cells::row_value(value)))],
                after: Some(value),
            },
            _ if !known.rows.contains_key(&row) => {
                self.propose_nothing(op, known.version);
                return true;
            }
            _ if known.rows.len() == 1 => {
                if self.pgs[&op.pgid].pg.object_status(&oid) == ObjectStatus::Degraded {
                    *self.marks.entry("delete went ahead of a copy").or_default() += 1;
                }
                self.propose_removal(op, &known);
                return true;
            }
            _ => Write {
                change: if cell.end >= known.lead.size && dice.is_multiple_of(2) {
                    Plan::Truncate { size: cell.start }
                } else {
                    Plan::Zero { offset: cell.start, length: self.cell }
                },
                new: Vec::new(),
                rows: vec![(row, None)],
                after: None,
            },
        };
        let hosted = self.pgs.get_mut(&op.pgid).expect("checked by the caller");
        hosted.executing.insert(oid.clone(), op);
        let done = if whole && matches!(change.change, Plan::Write { .. }) {
            self.plan_whole(op, known)
        } else {
            self.plan_write(op, change, known)
        };
        if !done {
            let hosted = self.pgs.get_mut(&op.pgid).expect("checked by the caller");
            hosted.executing.remove(&oid);
        }
        done
    }

    /// Whether nothing is left of an object when a request has deleted its cell.
    pub(super) fn removes_shards(&self, op: &ClientOp) -> bool {
        let rows = self.known(op.pgid, &op.oid()).rows;
        rows.len() == 1 && rows.contains_key(&cells::row(op.object % op.cells))
    }

    /// Plans a read, without these copies.
    fn read_shards(&mut self, op: ClientOp, without: &[PgShard]) -> bool {
        let oid = op.oid();
        let layout = self.layout(op.pgid).expect("a pool of shards");
        let known = self.known(op.pgid, &oid);
        let mut holders = self.holders(op.pgid, &oid);
        holders.retain(|c| !without.contains(c));
        let cell = self.cell(&op);
        let available = self.available(layout, &holders);
        let cached = ShardExtents::new();
        let local = Some(shard_of(self.pgs[&op.pgid].pg.whoami()));
        let sources = Sources { available, local, slow: ShardSet::EMPTY, cached: &cached };
        let length = cell.end - cell.start;
        let Ok(plan) = ReadPlan::new(layout, cell.start, length, known.lead.size, sources) else {
            return false;
        };
        if !plan.rebuilds().is_empty() {
            *self.marks.entry("read made of other shards").or_default() += 1;
        }
        let reads = plan.reads().clone();
        self.gather(op.pgid, oid, What::Read(op, plan), known, &reads, &holders);
        true
    }

    fn available(&self, layout: Layout, holders: &[PgShard]) -> ShardSet {
        if self.bug == Bug::HoleIsAShard {
            return layout.shards();
        }
        holders.iter().map(|c| shard_of(*c)).collect()
    }

    fn plan_whole(&mut self, op: ClientOp, known: Known) -> bool {
        let oid = op.oid();
        let layout = self.layout(op.pgid).expect("a pool of shards");
        let holders = self.holders(op.pgid, &oid);
        let cached = ShardExtents::new();
        let available = self.available(layout, &holders);
        let sources = Sources { available, local: None, slow: ShardSet::EMPTY, cached: &cached };
        let Ok(plan) = ReadPlan::new(layout, 0, u64::MAX, known.lead.size, sources) else {
            return false;
        };
        *self.marks.entry("object replaced as a whole").or_default() += 1;
        let reads = plan.reads().clone();
        self.gather(op.pgid, oid, What::Whole(op, plan), known, &reads, &holders);
        true
    }

    fn plan_write(&mut self, op: ClientOp, write: Write, known: Known) -> bool {
        let oid = op.oid();
        let layout = self.layout(op.pgid).expect("a pool of shards");
        let holders = self.holders(op.pgid, &oid);
        let stripe = self.stripe(op.pgid, &oid, known.version);
        let cached = stripe.extents();
        let available = self.available(layout, &holders);
        let local = Some(shard_of(self.pgs[&op.pgid].pg.whoami()));
        let sources = Sources { available, local, slow: ShardSet::EMPTY, cached: &cached };
        let Ok(plan) = WritePlan::new(layout, write.change, known.lead.size, sources) else {
            return false;
        };
        if !stripe.is_empty() {
            let nothing = ShardExtents::new();
            let without = Sources { cached: &nothing, ..sources };
            let cold = WritePlan::new(layout, write.change, known.lead.size, without);
            if cold.is_ok_and(|cold| cold.reads() != plan.reads()) {
                *self.marks.entry("stripe was in memory").or_default() += 1;
            }
        }
        let reads = plan.reads().clone();
        let what = What::Write(op, write, plan, stripe);
        self.gather(op.pgid, oid, what, known, &reads, &holders);
        true
    }

    /// Reads ranges of shards; what is not here is asked for.
    fn gather(
        &mut self,
        pgid: SpgId,
        oid: ObjectId,
        what: What,
        known: Known,
        reads: &ShardExtents,
        holders: &[PgShard],
    ) {
        let layout = self.layout(pgid).expect("a pool of shards");
        let mut pieces = Pieces::new(layout, known.lead.size);
        if let What::Write(.., stripe) = &what {
            stripe.fill(&mut pieces);
        }
        self.shards.next += 1;
        let number = self.shards.next;
        let me = self.pgs[&pgid].pg.whoami();
        let urgent = !matches!(what, What::Rebuild(..));
        let mut waits = BTreeSet::new();
        if let What::Rebuild(r, _) = &what
            && r.sources.contains(&me)
            && self.disk.read(pgid, &oid, true).is_err()
        {
            *self.marks.entry("rebuild met damage").or_default() += 1;
            let event = Event::RebuildFailed { token: r.token, bad: vec![me] };
            return self.feed(pgid, event);
        }
        for (&shard, extents) in reads {
            let extents: Vec<Range<u64>> = extents.iter().collect();
            if known.version_of(shard) == Eversion::default() {
                // It has no shard of the object: nothing but zeroes.
                extents.iter().for_each(|r| pieces.insert(shard, r.clone(), Vec::new()));
                continue;
            }
            let holder = holders.iter().filter(|c| shard_of(**c) == shard);
            let Some(from) = holder.max_by_key(|c| **c == me) else {
                // A hole that was taken for a shard.
                extents.iter().for_each(|r| pieces.insert(shard, r.clone(), Vec::new()));
                continue;
            };
            if *from == me {
                let object = self.disk.state().colls[&pgid].objects.get(&oid);
                let stored = object.map_or(&[][..], |o| &o.data);
                for r in extents {
                    let end = stored.len().min(r.end as usize);
                    pieces.insert(shard, r.clone(), &stored[end.min(r.start as usize)..end]);
                }
                continue;
            }
            self.shards.next += 1;
            let id = self.shards.next;
            let any = self.bug == Bug::MixedShards;
            let query = ShardQuery {
                oid: oid.clone(),
                version: if any { Eversion::default() } else { known.version_of(shard) },
                extents: extents.iter().map(|r| (r.start, r.end - r.start)).collect(),
                urgent,
                ..ShardQuery::default()
            };
            let hosted = self.pgs.get_mut(&pgid).expect("checked by the caller");
            hosted.pg.read_shard(*from, id, query);
            self.shards.asked.insert(id, Asked { gather: number, shard, from: *from, extents });
            waits.insert(id);
        }
        let generation = self.pgs[&pgid].generation;
        let ready = waits.is_empty();
        let gather = Gather { pgid, generation, what, oid, known, pieces, waits };
        self.shards.gathers.insert(number, gather);
        if ready {
            self.gathered(number);
        } else {
            self.out.push(Effect::Later(pgid, Local::Hedge(number)));
        }
    }

    /// Reads that wait long go around copies that do not answer.
    pub(super) fn hedge(&mut self, pgid: SpgId, number: u64) {
        let Some(gather) = self.shards.gathers.get(&number) else { return };
        let What::Read(op, _) = gather.what else { return };
        let late: Vec<PgShard> =
            gather.waits.iter().filter_map(|id| Some(self.shards.asked.get(id)?.from)).collect();
        let layout = self.layout(pgid).expect("a pool of shards");
        let mut holders = self.holders(pgid, &op.oid());
        holders.retain(|c| !late.contains(c));
        if late.is_empty()
            || holders.iter().map(|c| c.shard).collect::<BTreeSet<_>>().len() < layout.k()
        {
            return;
        }
        *self.marks.entry("read went around a late shard").or_default() += 1;
        self.drop_gather(number);
        // The object may have been written since the read began: it is read again when that is
        // certain.
        let written = self.pgs[&pgid].pg.has_writes_in_flight(&op.oid());
        if written || !self.read_shards(op, &late) {
            self.wait_again(op);
        }
        self.drain(pgid);
    }

    fn drop_gather(&mut self, number: u64) -> Option<Gather> {
        self.shards.asked.retain(|_, a| a.gather != number);
        self.shards.gathers.remove(&number)
    }

    /// The operation is tried again, soon.
    fn wait_again(&mut self, op: ClientOp) {
        if let Some(hosted) = self.pgs.get_mut(&op.pgid) {
            hosted.waiting.push(op);
            self.out.push(Effect::Later(op.pgid, Local::RunWaiting));
        }
    }

    /// The primary reads of this copy's shard.
    pub(super) fn read_own_shard(&mut self, pgid: SpgId, token: ReadToken, query: &ShardQuery) {
        let Some(coll) = self.disk.state().colls.get(&pgid) else { return };
        let object = coll.objects.get(&query.oid);
        let version = object.map(|o| o.version).unwrap_or_default();
        let any = query.version == Eversion::default();
        let damaged = self.disk.read(pgid, &query.oid, true).is_err();
        let answer = match object {
            Some(_) if damaged => ShardAnswer::Damaged,
            Some(object) if any || version == query.version => {
                let stored = &object.data;
                let mut bytes = ShardBytes {
                    version,
                    size: stored.len() as u64,
                    attrs: if query.attrs { attrs_of(object) } else { Vec::new() },
                    omap: if query.omap {
                        object.omap.iter().map(|(k, v)| (k.clone(), v.clone())).collect()
                    } else {
                        Vec::new()
                    },
                    ..ShardBytes::default()
                };
                let mut data = Vec::new();
                for (offset, length) in &query.extents {
                    let end = stored.len().min((offset + length) as usize);
                    let part = &stored[end.min(*offset as usize)..end];
                    bytes.lengths.push(part.len() as u64);
                    data.extend_from_slice(part);
                }
                bytes.data = data.into();
                ShardAnswer::Bytes(Box::new(bytes))
            }
            _ => ShardAnswer::Lacks { version },
        };
        self.feed(pgid, Event::ShardRead { token, answer });
    }

    /// Another shard answers.
    pub(super) fn shard_answer(&mut self, id: u64, from: PgShard, answer: ShardAnswer) {
        let Some(Asked { gather: number, shard, extents, .. }) = self.shards.asked.remove(&id)
        else {
            return;
        };
        let Some(gather) = self.shards.gathers.get_mut(&number) else { return };
        gather.waits.remove(&id);
        match answer {
            ShardAnswer::Bytes(bytes) => {
                if let What::Rebuild(_, plan @ None) = &gather.what {
                    assert!(plan.is_none());
                    let mut object = Object::default();
                    crate::content::set_attrs(&mut object, &bytes.attrs);
                    object.omap.extend(bytes.omap);
                    gather.known = Known::of(Some(&object));
                } else {
                    let mut at = 0;
                    for (r, n) in extents.into_iter().zip(&bytes.lengths) {
                        let end = at + *n as usize;
                        gather.pieces.insert(shard, r, &bytes.data[at..end]);
                        at = end;
                    }
                }
                if gather.waits.is_empty() {
                    self.gathered(number);
                }
            }
            ShardAnswer::Lacks { .. } | ShardAnswer::Damaged => {
                let Some(gather) = self.drop_gather(number) else { return };
                if answer == ShardAnswer::Damaged && !matches!(gather.what, What::Rebuild(..)) {
                    *self.marks.entry("client met damage on another shard").or_default() += 1;
                    let (oid, version) = (gather.oid.clone(), gather.known.version);
                    self.feed(gather.pgid, Event::ShardDamaged { shard: from, oid, version });
                }
                match gather.what {
                    What::Read(op, _) => {
                        *self.marks.entry("shard had another version").or_default() += 1;
                        self.wait_again(op);
                    }
                    What::Write(op, ..) | What::Whole(op, _) => {
                        *self.marks.entry("shard had another version").or_default() += 1;
                        if let Some(hosted) = self.pgs.get_mut(&op.pgid) {
                            hosted.executing.remove(&gather.oid);
                        }
                        self.wait_again(op);
                    }
                    What::Rebuild(r, _) => {
                        *self.marks.entry("rebuild failed").or_default() += 1;
                        let event = Event::RebuildFailed { token: r.token, bad: vec![from] };
                        self.feed(gather.pgid, event);
                    }
                }
            }
        }
    }

    /// Everything that was wanted is here.
    fn gathered(&mut self, number: u64) {
        let Some(gather) = self.drop_gather(number) else { return };
        let Gather { pgid, generation, what, oid, known, pieces, .. } = gather;
        let Some(hosted) = self.pgs.get(&pgid).filter(|h| h.generation == generation) else {
            return;
        };
        match what {
            What::Read(op, plan) => {
                let got = plan.assemble(self.recipes(pgid), pieces).expect("all was read");
                let row = known.rows.get(&cells::row(op.object % op.cells));
                // What is behind the end of the object was never written.
                let mut cell = got;
                cell.resize(self.cell as usize, 0);
                let value = match cells::value_of(&cell, self.cell) {
                    Ok(value) => value,
                    Err(torn) => {
                        self.out.push(Effect::Wrong(format!("{pgid}: {oid}: {torn}")));
                        return;
                    }
                };
                if row != value.map(cells::row_value).as_ref() {
                    let text = format!("{pgid}: {oid} says {row:?} and holds {value:?}");
                    self.out.push(Effect::Wrong(text));
                    return;
                }
                self.out.push(Effect::Later(pgid, Local::ReadDone(generation, op, value)));
            }
            What::Whole(op, plan) => {
                let mut bytes = plan.assemble(self.recipes(pgid), pieces).expect("all was read");
                let Ask::Write(value, _) = op.ask else { unreachable!("only writes replace") };
                let cell = self.cell(&op);
                bytes.resize(bytes.len().max(cell.end as usize), 0);
                bytes[cell.start as usize..cell.end as usize]
                    .copy_from_slice(&cells::content(value, self.cell));
                let write = Write {
                    change: Plan::Replace { length: bytes.len() as u64 },
                    new: bytes,
                    rows: vec![(cells::row(op.object % op.cells), Some(cells::row_value(value)))],
                    after: Some(value),
                };
                if self.known(pgid, &oid).version != known.version
                    || !self.plan_write(op, write, known)
                {
                    self.give_back(op);
                }
            }
            What::Write(op, write, plan, stripe) => {
                let now = self.known(pgid, &oid);
                let waits = hosted.pg.must_wait(&oid, true)
                    || hosted.pg.scrub_blocks(&oid)
                    || !hosted.pg.is_active();
                let layout = self.layout(pgid).expect("a pool of shards");
                let available = self.available(layout, &self.holders(pgid, &oid));
                if now.version != known.version || waits || available != plan.available() {
                    *self.marks.entry("write planned again").or_default() += 1;
                    self.give_back(op);
                    return;
                }
                let writes = plan
                    .shard_writes(self.recipes(pgid), pieces.clone(), &write.new)
                    .expect("all was read");
                let version = self.pgs[&pgid].pg.next_version();
                self.keep_stripe((pgid, &oid, version), (&plan, &pieces), stripe, &writes);
                self.propose_shards(op, &write, &plan, writes, &known);
            }
            What::Rebuild(r, None) => self.plan_rebuild(pgid, r, known),
            What::Rebuild(r, Some(plan)) => self.rebuilt(pgid, r, &plan, known, pieces),
        }
    }

    fn give_back(&mut self, op: ClientOp) {
        if let Some(hosted) = self.pgs.get_mut(&op.pgid) {
            hosted.executing.remove(&op.oid());
        }
        self.wait_again(op);
    }

    fn entry(op: &ClientOp, what: LogOp, prior: Eversion, at: u64, written: ShardSet) -> NewEntry {
        NewEntry {
            op: what,
            oid: op.oid(),
            prior_version: prior,
            user_version: at,
            reqid: op.reqid(),
            mtime: Utime::default(),
            return_code: 0,
            snaps: Vec::new(),
            op_returns: Vec::new(),
            written,
        }
    }

    fn propose_nothing(&mut self, op: ClientOp, prior: Eversion) {
        let entry = Self::entry(&op, LogOp::Error, prior, 0, ShardSet::EMPTY);
        self.propose_each(
            op,
            entry,
            Vec::new(),
            Payloads::Each(BTreeMap::new()),
            After::Value(None),
            0,
        );
    }

    fn propose_removal(&mut self, op: ClientOp, known: &Known) {
        *self.marks.entry("object of shards removed").or_default() += 1;
        let layout = self.layout(op.pgid).expect("a pool of shards");
        let oid = op.oid();
        if self.bug != Bug::StaleStripe {
            self.shards.stripes.remove(&(op.pgid, oid.clone()));
        }
        let change = |shard: Shard| ShardChange {
            before: known.version_of(shard),
            remove: true,
            ..ShardChange::default()
        };
        let me = self.pgs[&op.pgid].pg.whoami();
        let payloads = self
            .holders(op.pgid, &oid)
            .iter()
            .map(|c| {
                let change = Change::Shard(Box::new(change(shard_of(*c))));
                (c.shard, encode_payload(&[(oid.clone(), change)]))
            })
            .collect();
        let own = vec![(oid.clone(), Change::Shard(Box::new(change(shard_of(me)))))];
        let entry = Self::entry(&op, LogOp::Delete, known.version, 0, layout.shards());
        self.propose_each(op, entry, own, Payloads::Each(payloads), After::Value(None), -1);
    }

    fn propose_shards(
        &mut self,
        op: ClientOp,
        write: &Write,
        plan: &WritePlan,
        writes: Vec<ec::ShardWrite>,
        known: &Known,
    ) {
        let layout = self.layout(op.pgid).expect("a pool of shards");
        let (oid, pgid) = (op.oid(), op.pgid);
        let version = self.pgs[&pgid].pg.next_version();
        let me = shard_of(self.pgs[&pgid].pg.whoami());
        let mut lead = Lead { size: plan.size_after(), shards: BTreeMap::new() };
        for shard in layout.shards().without(plan.written()).iter() {
            lead.shards.insert(position(shard), known.version_of(shard));
        }
        let (mut own, mut payloads) = (Vec::new(), BTreeMap::new());
        for w in writes {
            if w.ops.iter().any(|o| matches!(o, ShardOp::Xor { .. })) {
                *self.marks.entry("delta of parity").or_default() += 1;
            }
            let leads = layout.primary_capable().contains(w.shard);
            let change = Change::Shard(Box::new(ShardChange {
                before: known.version_of(w.shard),
                version,
                remove: false,
                ops: w.ops,
                lead: leads.then(|| (lead.clone(), write.rows.clone())),
            }));
            let changes = vec![(oid.clone(), change)];
            // Another copy at the position of this one may be filled.
            payloads.insert(position(w.shard), encode_payload(&changes));
            if w.shard == me {
                own = changes;
            }
        }
        if plan.written() != layout.shards() {
            *self.marks.entry("write of some shards").or_default() += 1;
        }
        let entry = Self::entry(&op, LogOp::Modify, known.version, version.version, plan.written());
        let new = i64::from(known.version == Eversion::default());
        self.propose_each(op, entry, own, Payloads::Each(payloads), After::Value(write.after), new);
    }

    fn propose_each(
        &mut self,
        op: ClientOp,
        entry: NewEntry,
        own: Vec<(ObjectId, Change)>,
        mut payloads: Payloads,
        after: After,
        objects: i64,
    ) {
        let hosted = self.pgs.get_mut(&op.pgid).expect("checked by the caller");
        if self.bug == Bug::OwnPositionUntold
            && let Payloads::Each(each) = &mut payloads
        {
            each.remove(&hosted.pg.whoami().shard);
        }
        hosted.executing.remove(&op.oid());
        let version = hosted.pg.next_version();
        self.tokens += 1;
        let token = pg::OpToken(self.tokens);
        assert!(number_of(&entry.oid).is_some(), "an object of this world");
        self.out.push(Effect::Proposed { object: op.object, version, after });
        hosted.txns.insert(token, own);
        let stats = StatSum { num_objects: objects, ..StatSum::default() };
        let entries = smallvec![entry];
        let got = hosted.pg.propose(Proposal { token, entries, payloads, stats });
        assert_eq!(got, Ok(version));
        hosted.running.insert(token, (op, version));
        self.drain(op.pgid);
    }

    // --- recovery ---

    /// Makes a part of shards that copies lack.
    pub(super) fn rebuild_shards(&mut self, pgid: SpgId, r: Rebuild) {
        let Some(hosted) = self.pgs.get(&pgid) else { return };
        let me = hosted.pg.whoami();
        *self.marks.entry("shards rebuilt").or_default() += 1;
        if !r.targets.contains(&me) {
            let known = self.known(pgid, &r.oid);
            if known.version != r.version {
                // It changed since; the machine asks again.
                self.feed(pgid, Event::RebuildFailed { token: r.token, bad: Vec::new() });
                return;
            }
            self.plan_rebuild(pgid, r, known);
            return;
        }
        // The primary does not know the object: another copy does.
        *self.marks.entry("primary lacks its shard").or_default() += 1;
        let layout = self.layout(pgid).expect("a pool of shards");
        let lead = r.sources.iter().find(|c| layout.primary_capable().contains(shard_of(**c)));
        let from = *lead.expect("one of the sources knows the object");
        self.shards.next += 2;
        let (number, id) = (self.shards.next - 1, self.shards.next);
        let query = ShardQuery {
            oid: r.oid.clone(),
            version: r.version,
            attrs: true,
            omap: true,
            max_omap: u64::MAX,
            ..ShardQuery::default()
        };
        let asked = Asked { gather: number, shard: shard_of(from), from, extents: Vec::new() };
        self.shards.asked.insert(id, asked);
        let generation = hosted.generation;
        let oid = r.oid.clone();
        let (known, pieces) = (Known::default(), Pieces::new(layout, 0));
        let what = What::Rebuild(r, None);
        let waits = [id].into();
        let gather = Gather { pgid, generation, what, oid, known, pieces, waits };
        self.shards.gathers.insert(number, gather);
        let hosted = self.pgs.get_mut(&pgid).expect("checked by the caller");
        hosted.pg.read_shard(from, id, query);
        self.drain(pgid);
    }

    /// The shards that have something, of those that are wanted.
    fn wanted(r: &Rebuild, known: &Known) -> ShardSet {
        let has = |s: &Shard| known.version_of(*s) != Eversion::default();
        r.targets.iter().map(|c| shard_of(*c)).filter(has).collect()
    }

    fn part(layout: Layout, r: &Rebuild, known: &Known) -> Range<u64> {
        let sizes = Self::wanted(r, known).iter().map(|s| layout.shard_size(s, known.lead.size));
        let end = sizes.max().unwrap_or(0);
        r.from.data_to.min(end)..end.min(r.from.data_to + r.max.max(1))
    }

    fn plan_rebuild(&mut self, pgid: SpgId, r: Rebuild, known: Known) {
        let layout = self.layout(pgid).expect("a pool of shards");
        let want = Self::wanted(&r, &known);
        let has: ShardSet = r.sources.iter().map(|c| shard_of(*c)).collect();
        let part = Self::part(layout, &r, &known);
        if !want.and(has).is_empty() {
            *self.marks.entry("shard copied from its old holder").or_default() += 1;
        }
        let cached = ShardExtents::new();
        let sources =
            Sources { available: has, local: None, slow: ShardSet::EMPTY, cached: &cached };
        let lost = want.without(has);
        let plan = RebuildPlan::new(layout, lost, part.clone(), known.lead.size, sources);
        let Ok(plan) = plan else {
            self.feed(pgid, Event::RebuildFailed { token: r.token, bad: Vec::new() });
            return;
        };
        let mut reads = plan.reads().clone();
        for shard in want.and(has).iter() {
            let end = layout.shard_size(shard, known.lead.size);
            let range = part.start.min(end)..part.end.min(end);
            if !range.is_empty() {
                reads.entry(shard).or_default().insert(range);
            }
        }
        let (oid, sources) = (r.oid.clone(), r.sources.clone());
        self.gather(pgid, oid, What::Rebuild(r, Some(plan)), known, &reads, &sources);
        self.drain(pgid);
    }

    fn rebuilt(
        &mut self,
        pgid: SpgId,
        r: Rebuild,
        plan: &RebuildPlan,
        known: Known,
        pieces: Pieces,
    ) {
        let layout = self.layout(pgid).expect("a pool of shards");
        let want = Self::wanted(&r, &known);
        let part = Self::part(layout, &r, &known);
        let made = plan.compute(self.recipes(pgid), pieces.clone()).expect("all was read");
        let made: BTreeMap<Shard, Vec<u8>> = made.into_iter().collect();
        let end = want.iter().map(|s| layout.shard_size(s, known.lead.size)).max().unwrap_or(0);
        let last = part.end >= end;
        let to = Progress { data_to: part.end, omap_to: None };
        let first = r.from == Progress::default();
        if !last {
            *self.marks.entry("part of a shard rebuilt").or_default() += 1;
        }
        let chunk = |target: &PgShard| {
            let shard = shard_of(*target);
            let mut chunk = ObjectChunk {
                oid: r.oid.clone(),
                version: r.version,
                from: r.from.clone(),
                to: to.clone(),
                last,
                ..ObjectChunk::default()
            };
            if !want.contains(shard) {
                return (*target, chunk);
            }
            let leads = layout.primary_capable().contains(shard);
            let size = layout.shard_size(shard, known.lead.size);
            let range = part.start.min(size)..part.end.min(size);
            let bytes = match made.get(&shard) {
                Some(bytes) => bytes[..(range.end - range.start) as usize].to_vec(),
                None => pieces.get(shard, range.clone()).expect("it was read").into_owned(),
            };
            if !bytes.is_empty() {
                chunk.extents.push((range.start, bytes.len() as u64));
            }
            (chunk.size, chunk.data) = (size, bytes.into());
            if first {
                let (version, cut) = if leads {
                    (known.version, Cut::Lead(known.lead.clone()))
                } else {
                    (known.version_of(shard), Cut::Data)
                };
                chunk.attrs = attrs_of(&Object { version, cut, ..Object::default() });
                if leads {
                    chunk.omap = known.rows.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
                }
            }
            (*target, chunk)
        };
        let chunks = r.targets.iter().map(chunk).collect();
        self.feed(pgid, Event::Rebuilt { token: r.token, chunks });
    }
}
