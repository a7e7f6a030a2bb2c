//! Lost shards of objects, made of the shards that are left.

use crate::client_op::Slot;
use crate::coding::Coding;
use crate::host::PgHost;
use crate::host_shards::{Copies, Why};
use admission::meter::Receipt;
use admission::work::Rebuild;
use bytes::Bytes;
use ec::{Layout, Pieces, RebuildPlan, Shard, ShardExtents, ShardSet, Sources};
use objops::coded::{Before, SHARD_ATTR, SHARDS_ATTR};
use objops::object::{ObjectInfo, SnapSet, decode_attr};
use objops::{OI_ATTR, ObjectReader, SS_ATTR};
use pg::{Event, ObjectChunk, Progress, ShardAnswer, ShardBytes, ShardQuery};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use types::{Eversion, ObjectId, PgShard, SnapId};

/// A part of an object of which shards are made.
struct Part {
    before: Before,
    /// The copies to read from.
    copies: Copies,
    /// The bytes of a shard that are made.
    range: Range<u64>,
    /// The part is the last one of the object's bytes.
    whole: bool,
    /// Shards that a copy at the same position has.
    copied: ShardSet,
    /// What computes the others.
    plan: Option<RebuildPlan>,
    /// What is read for all of that.
    reads: ShardExtents,
}

/// What each chunk of one answer has in common.
struct Made {
    part: Part,
    layout: Layout,
    bytes: BTreeMap<Shard, Vec<u8>>,
    meta: ShardBytes,
    to: Progress,
    last: bool,
    snaps: Vec<SnapId>,
}

impl PgHost {
    /// Makes a part of lost shards of an object.
    pub(crate) async fn rebuild(self: &Rc<Self>, r: Rebuild, receipt: Receipt, slot: Slot) {
        let token = r.token;
        let generation = self.generation.get();
        // What is read of another OSD has its turn in the admission window there. Were the place in
        // the window here kept meanwhile, two OSDs could wait for each other for ever.
        drop(slot);
        let made = self.make_shards(&r).await;
        if self.reader.is_damaged() {
            self.note_damage().await;
        }
        if self.generation.get() != generation {
            return;
        }
        match made {
            Ok(chunks) => {
                let bytes: usize = chunks.iter().map(|(_, c)| c.data.len()).sum();
                self.core.admission.has_read(&receipt, bytes as u64);
                self.read_for_copies(token, Event::Rebuilt { token, chunks });
            }
            Err(bad) => {
                tracing::warn!(pg = %self.id, oid = %r.oid, ?bad, "shards cannot be made");
                self.read_for_copies(token, Event::RebuildFailed { token, bad });
            }
        }
    }

    /// Attributes and omap of an object, as a copy that may lead has them; or the copies that
    /// should have them and do not.
    async fn metadata(
        self: &Rc<Self>,
        r: &Rebuild,
        omap: bool,
    ) -> Result<ShardBytes, Vec<PgShard>> {
        let Some(coding) = self.coding() else { return Err(Vec::new()) };
        let lead = coding.layout.primary_capable();
        let me = self.with_pg(|pg| pg.whoami());
        let query = ShardQuery {
            oid: r.oid.clone(),
            version: r.version,
            attrs: true,
            omap,
            omap_after: r.from.omap_to.clone(),
            max_omap: r.max_omap.max(1),
            urgent: r.urgent,
            ..ShardQuery::default()
        };
        let leads = |c: &&PgShard| Shard::try_from(c.shard.0).is_ok_and(|s| lead.contains(s));
        let mut able: Vec<PgShard> = r.sources.iter().filter(leads).copied().collect();
        able.sort_by_key(|c| *c != me);
        let mut bad = Vec::new();
        for copy in able {
            let answer = if copy == me {
                Some(self.read_shard(&query).await)
            } else {
                let (_, answer) = self.ask(copy, query.clone());
                self.pump();
                answer.await.ok()
            };
            match answer {
                Some(ShardAnswer::Bytes(bytes)) => return Ok(*bytes),
                // The object has changed, or its info: it is asked for again.
                Some(ShardAnswer::Lacks { version }) if version > r.version => {
                    return Err(Vec::new());
                }
                Some(_) => bad.push(copy),
                None => return Err(Vec::new()),
            }
        }
        Err(bad)
    }

    /// The chunk for each target; or the copies that should have given something and did not.
    async fn make_shards(
        self: &Rc<Self>,
        r: &Rebuild,
    ) -> Result<Vec<(PgShard, ObjectChunk)>, Vec<PgShard>> {
        let coding = self.coding().ok_or_else(Vec::new)?.clone();
        let layout = coding.layout;
        let mut meta = self.metadata(r, false).await?;
        let part = self.part(r, layout, &meta).ok_or_else(Vec::new)?;
        let bytes = self.shard_bytes(r, &coding, &part).await?;
        let mut to = r.from.clone();
        to.data_to = part.range.end;
        if part.whole {
            // The same copy's, of the same version.
            let rows = self.metadata(r, true).await?;
            if rows.version != meta.version {
                return Err(Vec::new());
            }
            if let Some((last, _)) = rows.omap.last() {
                to.omap_to = Some(last.clone());
            }
            (meta.omap, meta.omap_more) = (rows.omap, rows.omap_more);
        }
        let last = part.whole && !meta.omap_more;
        let snaps = if last { self.snaps_of(&r.oid).await } else { Vec::new() };
        let made = Made { part, layout, bytes, meta, to, last, snaps };
        Ok(r.targets.iter().map(|copy| (*copy, made.chunk(r, *copy))).collect())
    }

    /// Which bytes of which shards are made, and of what. None if the object is not as `meta` says.
    fn part(&self, r: &Rebuild, layout: Layout, meta: &ShardBytes) -> Option<Part> {
        let attr = |name: &[u8]| meta.attrs.iter().find(|(n, _)| n == name).map(|(_, v)| v);
        let info: ObjectInfo = decode_attr(attr(OI_ATTR)?).ok()?;
        let before = Before::new(layout, &info, attr(SHARDS_ATTR)).ok()?;
        let copies = self.copies_of(&r.sources);
        let there = |s: &Shard| before.shard(*s) != Eversion::ZERO;
        let wanted: ShardSet = r.targets.iter().map(shard_of).filter(there).collect();
        let have: ShardSet = copies.keys().copied().filter(there).collect();
        // Those that a copy at the same position has are copied.
        let (copied, computed) = (wanted.and(have), wanted.without(have));
        let size = layout.shard_size(0, before.size);
        let start = r.from.data_to.min(size);
        let range = start..size.min(start.saturating_add(r.max_bytes.max(1)));
        let own = self.own_shard();
        let cached = ShardExtents::new();
        let sources = Sources {
            available: have,
            local: (copies.get(&own) == Some(&self.with_pg(|pg| pg.whoami()))).then_some(own),
            slow: ShardSet::EMPTY,
            cached: &cached,
        };
        let mut reads = ShardExtents::new();
        let mut plan = None;
        if !range.is_empty() {
            if !computed.is_empty() {
                let p =
                    RebuildPlan::new(layout, computed, range.clone(), before.size, sources).ok()?;
                reads.clone_from(p.reads());
                plan = Some(p);
            }
            for shard in copied.iter() {
                let end = range.end.min(layout.shard_size(shard, before.size));
                if range.start < end {
                    reads.entry(shard).or_default().insert(range.start..end);
                }
            }
        }
        let whole = range.end >= size;
        Some(Part { before, copies, range, whole, copied, plan, reads })
    }

    /// The bytes of each shard; or the copies that did not give theirs.
    async fn shard_bytes(
        self: &Rc<Self>,
        r: &Rebuild,
        coding: &Coding,
        part: &Part,
    ) -> Result<BTreeMap<Shard, Vec<u8>>, Vec<PgShard>> {
        let Part { before, copies, reads, .. } = part;
        let perf = &self.core.perf;
        perf.ec_rebuild.inc();
        perf.ec_rebuild_read_bytes.add(reads.values().map(|e| e.bytes()).sum());
        let mut pieces = Pieces::new(coding.layout, before.size);
        let why = Why { urgent: r.urgent, payer: "" };
        let got = self.fetch(&r.oid, before, copies, reads, None, why, &mut pieces).await;
        let bad: Vec<PgShard> =
            got.lacks.iter().chain(&got.damaged).filter_map(|s| copies.get(s).copied()).collect();
        if !bad.is_empty() || !got.late.is_empty() {
            return Err(bad);
        }
        let mut bytes: BTreeMap<Shard, Vec<u8>> = BTreeMap::new();
        if let Some(plan) = &part.plan {
            let mut recipes = coding.recipes.borrow_mut();
            let made = plan.compute(&mut recipes, pieces.clone()).map_err(|_| Vec::new())?;
            bytes.extend(made);
        }
        for shard in part.copied.iter() {
            let read = pieces.get(shard, part.range.clone()).map_err(|_| Vec::new())?;
            bytes.insert(shard, read.into_owned());
        }
        Ok(bytes)
    }

    /// The snapshots of a clone, as its head tells.
    async fn snaps_of(&self, oid: &ObjectId) -> Vec<SnapId> {
        if !oid.is_snap() {
            return Vec::new();
        }
        let set = self.reader.attr(&oid.head().to_key(), SS_ATTR).await;
        let set: Option<SnapSet> = set.ok().and_then(|s| decode_attr(&s).ok());
        set.and_then(|s| s.clone_snaps.get(&oid.snap).cloned()).unwrap_or_default()
    }
}

impl Made {
    /// What one target gets.
    fn chunk(&self, r: &Rebuild, copy: PgShard) -> ObjectChunk {
        let Part { before, range, .. } = &self.part;
        let shard = shard_of(&copy);
        let mut c = ObjectChunk {
            oid: r.oid.clone(),
            version: r.version,
            from: r.from.clone(),
            to: self.to.clone(),
            last: self.last,
            ..ObjectChunk::default()
        };
        if before.shard(shard) == Eversion::ZERO {
            return c;
        }
        c.size = self.layout.shard_size(shard, before.size);
        let end = range.end.min(c.size);
        if let Some(mut data) = self.bytes.get(&shard).cloned()
            && range.start < end
        {
            data.truncate((end - range.start) as usize);
            // Zeroes need no place.
            if data.iter().any(|b| *b != 0) {
                c.extents.push((range.start, end - range.start));
                c.data = data.into();
            }
        }
        let first = r.from == Progress::default();
        if !self.layout.primary_capable().contains(shard) {
            let version = (Bytes::from_static(SHARD_ATTR), denc_bytes(before.shard(shard)));
            c.attrs.extend(first.then_some(version));
            return c;
        }
        if first {
            c.attrs.clone_from(&self.meta.attrs);
            c.omap_header = self.meta.omap_header.clone();
        }
        c.omap.clone_from(&self.meta.omap);
        c.snaps.clone_from(&self.snaps);
        c
    }
}

/// The shard that a copy has, or should have.
fn shard_of(copy: &PgShard) -> Shard {
    Shard::try_from(copy.shard.0).unwrap_or(Shard::MAX)
}

fn denc_bytes(version: Eversion) -> Bytes {
    use denc::Encode;
    version.to_bytes(denc::Features::ALL)
}
