//! Reads of shards: for clients, and for changes that need old bytes.
//!
//! A read says which version each shard must have, so that it never mixes two. A shard that is
//! gone, late, damaged or of another version is left out, and what it has is computed of others.

use crate::coding::joined;
use crate::host::PgHost;
use bytes::Bytes;
use denc::Decode;
use denc::crc::Sum;
use ec::{Pieces, PlanError, ReadPlan, Shard, ShardExtents, ShardSet, Sources, Stripe};
use objops::coded::{Before, SHARD_ATTR};
use objops::object::{ObjectInfo, decode_attr};
use objops::{OI_ATTR, ObjectReader, OmapRows};
use pg::{Event, ReadToken, ShardAnswer, ShardBytes, ShardQuery};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use types::{Errno, Eversion, ObjectId, PgShard};

/// How often a shard of an older version is asked again: a change may be on its way to it.
const TRIES: u32 = 12;

/// What reading shards has found out about them.
#[derive(Default)]
pub(crate) struct Fetched {
    /// Not there in this version, and which there is.
    pub(crate) lacks: Vec<Shard>,
    /// Cannot be read.
    pub(crate) damaged: Vec<Shard>,
    /// Without an answer.
    pub(crate) late: ShardSet,
}

/// For what shards are read.
#[derive(Clone, Copy)]
pub(crate) struct Why<'a> {
    /// Clients wait for it.
    pub(crate) urgent: bool,
    /// The client, if it is its operation.
    pub(crate) payer: &'a str,
}

/// Copies that have an object, by the shard that they have.
pub(crate) type Copies = BTreeMap<Shard, PgShard>;

impl PgHost {
    pub(crate) fn copies_of(&self, copies: &[PgShard]) -> Copies {
        let mut out = Copies::new();
        let me = self.with_pg(|pg| pg.whoami());
        for copy in copies {
            let Ok(shard) = Shard::try_from(copy.shard.0) else { continue };
            if *copy == me {
                out.insert(shard, *copy);
            } else {
                out.entry(shard).or_insert(*copy);
            }
        }
        out
    }

    /// Ranges of an object, of which `kept` is in memory. The caller's interval may be over when
    /// this fails.
    pub(crate) async fn read_ranges(
        self: &Rc<Self>,
        oid: &ObjectId,
        before: &Before,
        ranges: &[Range<u64>],
        kept: &Stripe,
        payer: &str,
    ) -> Result<Vec<Bytes>, Errno> {
        let coding = self.coding().ok_or(Errno::EAGAIN)?.clone();
        let generation = self.generation.get();
        let (mut bad, mut late, mut tries, mut patient) =
            (ShardSet::EMPTY, ShardSet::EMPTY, 0, false);
        let cached = kept.extents();
        loop {
            let copies = self.copies_of(&self.with_pg(|pg| pg.shards_with(oid)));
            let there = |s: &Shard| before.shard(*s) != Eversion::ZERO;
            let known: ShardSet = copies.keys().copied().filter(there).collect();
            let available = known.without(bad).without(late);
            let own = self.own_shard();
            let sources = Sources {
                available,
                local: available.contains(own).then_some(own),
                slow: ShardSet::EMPTY,
                cached: &cached,
            };
            let plan = |r: &Range<u64>| {
                ReadPlan::new(coding.layout, r.start, r.end - r.start, before.size, sources)
            };
            let plans: Vec<ReadPlan> = match ranges.iter().map(plan).collect() {
                Ok(plans) => plans,
                Err(PlanError::TooFew { .. }) if !late.is_empty() => {
                    // Those that are late have to be waited for.
                    (late, patient) = (ShardSet::EMPTY, true);
                    continue;
                }
                Err(e) => {
                    tracing::error!(pg = %self.id, %oid, ?bad, "the object cannot be read: {e}");
                    return Err(Errno::EIO);
                }
            };
            let mut reads = ShardExtents::new();
            for (shard, extents) in plans.iter().flat_map(|p| p.reads()) {
                extents.iter().for_each(|r| reads.entry(*shard).or_default().insert(r));
            }
            let mut pieces = Pieces::new(coding.layout, before.size);
            kept.fill(&mut pieces);
            let perf = &self.core.perf;
            perf.ec_read.inc();
            if reads.is_empty() {
                perf.ec_read_kept.inc();
            }
            if plans.iter().any(|p| !p.rebuilds().is_empty()) {
                perf.ec_read_degraded.inc();
            }
            perf.ec_shard_read.add(reads.len() as u64);
            let remote = || reads.iter().filter(|(s, _)| sources.local != Some(**s));
            perf.ec_shard_read_remote.add(remote().count() as u64);
            perf.ec_shard_read_remote_bytes.add(remote().map(|(_, e)| e.bytes()).sum());
            perf.ec_shard_read_bytes.add(reads.values().map(|e| e.bytes()).sum());
            // A shard that has not answered for so long is left out, if others are enough.
            let limit = (!patient).then_some(self.core.hedge.limit());
            let why = Why { urgent: true, payer };
            let got = self.fetch(oid, before, &copies, &reads, limit, why, &mut pieces).await;
            if self.generation.get() != generation {
                return Err(Errno::EIO);
            }
            if got.lacks.is_empty() && got.damaged.is_empty() && got.late.is_empty() {
                let mut recipes = coding.recipes.borrow_mut();
                if let [plan] = &plans[..] {
                    // Most reads are of one range, and need no copy of what was read.
                    let read = plan.assemble(&mut recipes, pieces).map(|b| vec![b.into()]);
                    return read.map_err(|e| self.torn(oid, &e));
                }
                let one = |p: &ReadPlan| p.assemble(&mut recipes, pieces.clone()).map(Bytes::from);
                let all: Result<_, PlanError> = plans.iter().map(one).collect();
                return all.map_err(|e| self.torn(oid, &e));
            }
            late = late.or(got.late);
            if !got.lacks.is_empty() && tries < TRIES {
                // The change that it lacks is on its way, or the primary's knowledge of it is.
                tokio::time::sleep(Duration::from_millis(1 << tries.min(6))).await;
                tries += 1;
                if self.generation.get() != generation {
                    return Err(Errno::EIO);
                }
                continue;
            }
            for shard in got.lacks.into_iter().chain(got.damaged) {
                bad.insert(shard);
                if let Some(copy) = copies.get(&shard).filter(|_| shard != own) {
                    tracing::error!(pg = %self.id, %oid, osd = copy.osd.0, shard, "the shard is damaged");
                    let (oid, version) = (oid.detached(), before.version());
                    self.handle(Event::ShardDamaged { shard: *copy, oid, version });
                }
            }
        }
    }

    fn torn(&self, oid: &ObjectId, e: &PlanError) -> Errno {
        tracing::error!(pg = %self.id, %oid, "the object cannot be put together: {e}");
        Errno::EIO
    }

    /// Reads shards into `pieces`. With a limit, the time after which a shard counts as late.
    #[allow(clippy::too_many_arguments, reason = "one read, said once")]
    pub(crate) async fn fetch(
        self: &Rc<Self>,
        oid: &ObjectId,
        before: &Before,
        copies: &Copies,
        reads: &ShardExtents,
        limit: Option<Duration>,
        why: Why<'_>,
        pieces: &mut Pieces,
    ) -> Fetched {
        let mut fetched = Fetched::default();
        let me = self.with_pg(|pg| pg.whoami());
        let begun = tokio::time::Instant::now();
        let mut asked: SmallVec<[(Shard, u64, oneshot::Receiver<ShardAnswer>); 4]> =
            SmallVec::new();
        for (shard, extents) in reads {
            let Some(copy) = copies.get(shard) else {
                fetched.damaged.push(*shard);
                continue;
            };
            if *copy == me {
                continue;
            }
            let query = ShardQuery {
                oid: oid.clone(),
                version: before.shard(*shard),
                extents: extents.iter().map(|r| (r.start, r.end - r.start)).collect(),
                urgent: why.urgent,
                payer: why.payer.to_owned(),
                ..ShardQuery::default()
            };
            let (id, answer) = self.ask(*copy, query);
            asked.push((*shard, id, answer));
        }
        self.pump();
        let key = oid.to_key();
        let losses = self.losses();
        for (shard, extents) in reads.iter().filter(|(s, _)| copies.get(s) == Some(&me)) {
            for r in extents.iter() {
                match self.reader.read(&key, r.start, r.end - r.start).await {
                    // The own shard may be half made again.
                    Ok(_) if self.losses() != losses => {
                        fetched.lacks.push(*shard);
                        break;
                    }
                    Ok(bytes) => pieces.insert(*shard, r, joined(bytes)),
                    Err(_) => {
                        fetched.damaged.push(*shard);
                        break;
                    }
                }
            }
        }
        let deadline = limit.map(|l| begun + l);
        for (shard, id, mut answer) in asked {
            let answer = match deadline {
                None => (&mut answer).await.ok(),
                Some(at) => match tokio::time::timeout_at(at, &mut answer).await {
                    Ok(answer) => answer.ok(),
                    Err(_) => {
                        self.shard_reads.borrow_mut().remove(&id);
                        self.core.hedge.late(begun.elapsed());
                        self.core.perf.ec_shard_read_late.inc();
                        None
                    }
                },
            };
            let Some(extents) = reads.get(&shard) else { continue };
            match answer {
                None => fetched.late.insert(shard),
                Some(ShardAnswer::Bytes(b)) if b.lengths.len() == extents.iter().count() => {
                    let mut at = 0usize;
                    for (r, n) in extents.iter().zip(&b.lengths) {
                        // The machine has checked that these are as many as there is data.
                        let end = at.saturating_add(*n as usize).min(b.data.len());
                        let most = (r.end - r.start) as usize;
                        pieces.insert(shard, r, b.data.slice(at..end.min(at + most)));
                        at = end;
                    }
                }
                Some(ShardAnswer::Bytes(_) | ShardAnswer::Damaged) => fetched.damaged.push(shard),
                Some(ShardAnswer::Lacks { .. }) => fetched.lacks.push(shard),
            }
        }
        fetched
    }

    /// Asks another copy. What comes next must pump the machine.
    pub(crate) fn ask(
        self: &Rc<Self>,
        copy: PgShard,
        query: ShardQuery,
    ) -> (u64, oneshot::Receiver<ShardAnswer>) {
        let id = self.core.new_token();
        let (tell, answer) = oneshot::channel();
        let begun = query.urgent.then(Instant::now);
        self.shard_reads.borrow_mut().insert(id, (begun, tell));
        self.st.borrow_mut().pg.read_shard(copy, id, query);
        (id, answer)
    }

    /// Another copy has answered.
    pub(crate) fn shard_answered(&self, id: u64, answer: ShardAnswer) {
        let waiting = self.shard_reads.borrow_mut().remove(&id);
        if let Some((begun, tell)) = waiting {
            if let Some(begun) = begun {
                self.core.hedge.answered(begun.elapsed());
                let limit = self.core.hedge.limit().as_micros() as u64;
                self.core.perf.ec_shard_read_limit_us.set(limit);
            }
            // A read that did not wait for it is over.
            let _ = tell.send(answer);
        }
    }

    // --- what others read here ---

    /// Answers the primary.
    pub(crate) async fn serve_shard(self: &Rc<Self>, token: ReadToken, query: ShardQuery) -> u64 {
        let answer = self.read_shard(&query).await;
        if self.reader.is_damaged() {
            self.note_damage().await;
        }
        let bytes = if let ShardAnswer::Bytes(b) = &answer { b.data.len() as u64 } else { 0 };
        self.charge_part(&query.payer, &query.oid, qos::Access::Read, bytes);
        self.handle(Event::ShardRead { token, answer });
        bytes
    }

    /// The version of the own shard of an object; zero if there is none.
    pub(crate) async fn shard_version(&self, key: &Bytes) -> Result<Eversion, Errno> {
        let name = if self.leads() { OI_ATTR } else { SHARD_ATTR };
        match self.reader.attr(key, name).await {
            Ok(value) if self.leads() => Ok(decode_attr::<ObjectInfo>(&value)?.version),
            Ok(value) => Eversion::from_bytes(&value).map_err(|_| Errno::EIO),
            Err(Errno::ENOENT) => Ok(Eversion::ZERO),
            Err(e) => Err(e),
        }
    }

    /// How often objects were found bad here.
    fn losses(&self) -> u64 {
        self.st.borrow().pg.losses()
    }

    pub(crate) async fn read_shard(&self, query: &ShardQuery) -> ShardAnswer {
        let key = query.oid.to_key();
        let losses = self.losses();
        let version = match self.shard_version(&key).await {
            Ok(version) => version,
            Err(_) => return ShardAnswer::Damaged,
        };
        let wanted = query.version;
        if version == Eversion::ZERO || (wanted != Eversion::ZERO && wanted != version) {
            return ShardAnswer::Lacks { version };
        }
        let Ok(mut bytes) = self.read_own(&key, query).await else { return ShardAnswer::Damaged };
        bytes.version = version;
        // It may have changed while it was read; then the parts do not fit together.
        match self.shard_version(&key).await {
            Ok(_) if self.losses() != losses => ShardAnswer::Lacks { version: Eversion::ZERO },
            Ok(after) if after == version => ShardAnswer::Bytes(Box::new(bytes)),
            Ok(after) => ShardAnswer::Lacks { version: after },
            Err(_) => ShardAnswer::Damaged,
        }
    }

    async fn read_own(&self, key: &Bytes, query: &ShardQuery) -> Result<ShardBytes, Errno> {
        let mut out = ShardBytes::default();
        let mut data = Vec::new();
        out.size =
            self.core.store.stat(self.coll, key).await.map_err(objops::store_reader::errno)?.size;
        for (offset, length) in &query.extents {
            let mut n = 0;
            for piece in self.reader.read(key, *offset, *length).await? {
                n += piece.len() as u64;
                data.push(piece);
            }
            out.lengths.push(n);
        }
        out.data = joined(data);
        if query.attrs {
            out.attrs = self.reader.attrs(key).await?;
            out.omap_header = self.reader.omap_header(key).await?;
        }
        if query.omap {
            let start = query.omap_after.clone().unwrap_or_default();
            let rows = query.max_omap.clamp(1, 1 << 20) as usize;
            let inclusive = query.omap_after.is_none();
            let page = self.reader.omap_list(key, &start, inclusive, rows, OMAP_BYTES_MAX).await?;
            (out.omap, out.omap_more) = (page.rows, page.more);
        }
        Ok(out)
    }
}

/// Bytes of omap rows that one answer has.
const OMAP_BYTES_MAX: usize = 1 << 20;

/// The objects of a PG as operations read them: whole, whether or not copies are.
pub(crate) struct Objects<'a> {
    pub(crate) host: &'a Rc<PgHost>,
    /// The name of the client that pays for the reads.
    pub(crate) payer: &'a str,
}

impl Objects<'_> {
    async fn coded(
        &self,
        key: &Bytes,
        offset: u64,
        length: u64,
    ) -> Result<(ObjectId, Before, Range<u64>), Errno> {
        let oid = ObjectId::from_key(key).map_err(|_| Errno::EINVAL)?;
        let before = self.host.before(&oid).await?.ok_or(Errno::ENOENT)?;
        let range = offset.min(before.size)..offset.saturating_add(length).min(before.size);
        Ok((oid, before, range))
    }
}

impl ObjectReader for Objects<'_> {
    async fn read_summed(
        &self,
        key: &Bytes,
        offset: u64,
        length: u64,
    ) -> Result<(Vec<Bytes>, Option<Sum>), Errno> {
        if !self.host.is_coded() {
            return self.host.reader.read_summed(key, offset, length).await;
        }
        let (oid, before, range) = self.coded(key, offset, length).await?;
        if range.is_empty() {
            return Ok((Vec::new(), None));
        }
        Ok((
            self.host.read_ranges(&oid, &before, &[range], &Stripe::default(), self.payer).await?,
            None,
        ))
    }

    /// Where shards have holes is not asked for: all of an object counts as written, as in Ceph's
    /// erasure-coded pools.
    async fn extents(
        &self,
        key: &Bytes,
        offset: u64,
        length: u64,
    ) -> Result<Vec<(u64, u64)>, Errno> {
        if !self.host.is_coded() {
            return self.host.reader.extents(key, offset, length).await;
        }
        let (_, _, r) = self.coded(key, offset, length).await?;
        Ok(if r.is_empty() { Vec::new() } else { vec![(r.start, r.end - r.start)] })
    }

    async fn attr(&self, key: &Bytes, name: &[u8]) -> Result<Bytes, Errno> {
        self.host.reader.attr(key, name).await
    }

    async fn attrs(&self, key: &Bytes) -> Result<Vec<(Bytes, Bytes)>, Errno> {
        self.host.reader.attrs(key).await
    }

    async fn omap_header(&self, key: &Bytes) -> Result<Bytes, Errno> {
        self.host.reader.omap_header(key).await
    }

    async fn omap_get(&self, key: &Bytes, names: Vec<Bytes>) -> Result<Vec<(Bytes, Bytes)>, Errno> {
        self.host.reader.omap_get(key, names).await
    }

    async fn omap_list(
        &self,
        key: &Bytes,
        start: &Bytes,
        inclusive: bool,
        max_rows: usize,
        max_bytes: usize,
    ) -> Result<OmapRows, Errno> {
        self.host.reader.omap_list(key, start, inclusive, max_rows, max_bytes).await
    }
}
