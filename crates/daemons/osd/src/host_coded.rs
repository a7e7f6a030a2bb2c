//! Changes in erasure-coded pools: what each shard is told, and what undoes it.

use crate::coding::{Coding, Gathered, Kept, joined};
use crate::host::PgHost;
use admission::Payer;
use ec::{Code, Recipes, Shard, ShardExtents, ShardSet, Sources, Stripe};
use objops::coded::{Before, CodedError, Cut, Draft, KeptChange, SHARDS_ATTR, note_bytes};
use objops::object::{ObjectInfo, decode_attr};
use objops::txn::Mutations;
use objops::{OI_ATTR, ObjectReader};
use pg::{NewEntry, Payload, Payloads, PoolKind};
use qos::Access;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use store::{Change, Transaction};
use types::{Errno, Eversion, ObjectId, ShardId, SnapId};

/// Of larger changes nothing is kept: their stripes are written whole.
const KEPT_CHANGE_BYTES_MAX: u64 = 64 << 10;

impl PgHost {
    /// Whether copies are shards of objects.
    pub(crate) fn is_coded(&self) -> bool {
        self.id.shard != ShardId::NONE
    }

    /// The shard that this copy has; only where copies are shards.
    pub(crate) fn own_shard(&self) -> Shard {
        self.id.shard.0 as Shard
    }

    /// Whether this copy has metadata whole.
    pub(crate) fn leads(&self) -> bool {
        self.coding().is_none_or(|c| c.layout.primary_capable().contains(self.own_shard()))
    }

    /// The pool's code; `None` where copies are whole, and as long as no map tells.
    pub(crate) fn coding(&self) -> Option<&Rc<Coding>> {
        if !self.is_coded() {
            return None;
        }
        if let Some(coding) = self.coding.get() {
            return Some(coding);
        }
        let PoolKind::Erasure(rules) = self.core.map()?.pool(self.pgid.pool)?.kind else {
            return None;
        };
        let (layout, technique) = (rules.layout, rules.technique);
        let code = Code::new(technique, layout.k(), layout.m()).ok()?;
        let recipes = RefCell::new(Recipes::new(Rc::new(code)));
        Some(self.coding.get_or_init(|| Rc::new(Coding { layout, recipes })))
    }

    /// Size and versions of the shards of an object, `None` if there is none. Only on a copy that
    /// may lead.
    pub(crate) async fn before(&self, oid: &ObjectId) -> Result<Option<Before>, Errno> {
        let layout = self.coding().ok_or(Errno::EAGAIN)?.layout;
        let key = oid.to_key();
        let info = match self.reader.attr(&key, OI_ATTR).await {
            Ok(info) => info,
            Err(Errno::ENOENT) => return Ok(None),
            Err(e) => return Err(e),
        };
        let shards = match self.reader.attr(&key, SHARDS_ATTR).await {
            Ok(shards) => Some(shards),
            Err(Errno::ENODATA) => None,
            Err(e) => return Err(e),
        };
        let encoded = info;
        let info: ObjectInfo = decode_attr(&encoded)?;
        let mut before = Before::new(layout, &info, shards.as_ref()).map_err(|_| Errno::EIO)?;
        before.info = encoded;
        Ok(Some(before))
    }

    /// Reads what a change needs to be cut for shards: of the objects that it is about, of those
    /// that it makes copies of, and of `also`, which gets an entry in any case. Nothing else may
    /// change these until the change is proposed.
    pub(crate) async fn gather(
        self: &Rc<Self>,
        txn: &Mutations,
        also: &[&ObjectId],
        payer: &str,
    ) -> Result<Gathered, Errno> {
        let mut gathered = Gathered::default();
        if !self.is_coded() {
            return Ok(gathered);
        }
        let layout = self.coding().ok_or(Errno::EAGAIN)?.layout;
        let mut names: Vec<ObjectId> = also.iter().map(|o| (*o).clone()).collect();
        for (oid, change) in txn.iter() {
            names.push(oid.clone());
            if let Change::CloneOf { from } = change {
                names.extend(ObjectId::from_key(from));
            }
        }
        names.sort();
        names.dedup();
        for oid in names {
            if let Some(before) = self.before(&oid).await? {
                gathered.before.push((oid, before));
            }
        }
        if txn.bytes_written() <= KEPT_CHANGE_BYTES_MAX {
            let kept = self.stripes.borrow();
            let known = |oid: &ObjectId, b: &Before| kept.get(oid, &b.version()).cloned();
            let each = gathered.before.iter();
            gathered.stripes =
                each.map(|(o, b)| (o.clone(), known(o, b).unwrap_or_default())).collect();
        }
        let needs = match Draft::new(layout, txn, |o| gathered.find(o)) {
            Ok(mut draft) => {
                self.choose(&mut draft, &gathered);
                gathered.choices = draft.choices();
                draft.needs()
            }
            Err(e) => {
                tracing::error!(pg = %self.id, "a change is refused: {e}");
                return Err(Errno::EOPNOTSUPP);
            }
        };
        let mut by_object: BTreeMap<ObjectId, Vec<Range<u64>>> = BTreeMap::new();
        for (oid, range) in needs {
            by_object.entry(oid).or_default().push(range);
        }
        for (oid, ranges) in by_object {
            let Some(before) = gathered.find(&oid) else { return Err(Errno::EIO) };
            let known = gathered.stripes.get(&oid).cloned().unwrap_or_default();
            let read = self.read_ranges(&oid, &before, &ranges, &known, payer).await?;
            for (range, bytes) in ranges.iter().zip(read) {
                if let Some(stripe) = gathered.stripes.get_mut(&oid) {
                    note_bytes(layout, stripe, range.start, &bytes);
                }
                gathered.old.insert(&oid, range.start, bytes);
            }
        }
        Ok(gathered)
    }

    /// Chooses how parity follows, by what it costs.
    fn choose(&self, draft: &mut Draft<'_>, gathered: &Gathered) {
        let own = self.own_shard();
        type Have = (ShardSet, ShardExtents);
        let have: BTreeMap<&ObjectId, Have> = gathered
            .before
            .iter()
            .map(|(oid, before)| {
                let copies = self.with_pg(|pg| pg.shards_with(oid));
                let shards = copies.iter().filter_map(|c| Shard::try_from(c.shard.0).ok());
                let there = shards.filter(|s| before.shard(*s) != Eversion::ZERO).collect();
                let cached = gathered.stripes.get(oid).map(Stripe::extents).unwrap_or_default();
                (oid, (there, cached))
            })
            .collect();
        draft.choose(|oid| {
            let (available, cached) = have.get(oid)?;
            let local = available.contains(own).then_some(own);
            Some(Sources { available: *available, local, slow: ShardSet::EMPTY, cached })
        });
    }

    /// Notes what is known of objects after a change.
    fn keep_stripes(
        &self,
        draft: &Draft<'_>,
        cut: &Cut,
        gathered: &Gathered,
        version: impl Fn(&ObjectId) -> Eversion,
    ) {
        let mut stripes = self.stripes.borrow_mut();
        for (oid, _) in &cut.written {
            let before = gathered.stripes.get(oid).cloned();
            match before.and_then(|stripe| draft.stripe_after(oid, stripe)) {
                Some(stripe) => stripes.set(oid.clone(), version(oid), stripe),
                None => stripes.remove(oid),
            }
        }
    }

    /// A change of an object is over: of objects that are not being changed nothing is kept.
    pub(crate) fn stripe_rests(&self, oid: &ObjectId) {
        let mut stripes = self.stripes.borrow_mut();
        if !stripes.is_empty() && !self.with_pg(|pg| pg.has_writes_in_flight(oid)) {
            stripes.remove(oid);
        }
    }

    /// Cuts a change of which the first entry gets version `first`, and notes in the entries which
    /// shards they name.
    pub(crate) fn cut(
        &self,
        entries: &mut [NewEntry],
        txn: &Mutations,
        gathered: &Gathered,
        first: Eversion,
    ) -> Result<Cut, CodedError> {
        let Some(coding) = self.coding() else { return Ok(Cut::default()) };
        let mut draft = Draft::new(coding.layout, txn, |o| gathered.find(o))?;
        draft.follow(&gathered.choices);
        let version = |i: usize| Eversion { version: first.version + i as u64, ..first };
        let of = |oid: &ObjectId| {
            let own = entries.iter().position(|e| e.oid == *oid);
            version(own.unwrap_or(entries.len().saturating_sub(1)))
        };
        let recipes = coding.recipes.borrow();
        let cut = draft.cut(recipes.code(), &gathered.old, of)?;
        self.keep_stripes(&draft, &cut, gathered, of);
        if !gathered.choices.is_empty() {
            self.core.perf.ec_write_delta.inc();
        }
        for entry in entries {
            entry.written = cut.written(&entry.oid);
        }
        Ok(cut)
    }

    /// Counts a change that is about to be proposed.
    pub(crate) fn count_change(&self, cut: &Cut) {
        let perf = &self.core.perf;
        perf.ec_write.inc();
        perf.ec_shard_write.add(cut.shards.len() as u64);
        perf.ec_shard_write_bytes.add(cut.shards.values().map(|c| c.txn.bytes_written()).sum());
    }

    /// The tenant of a client pays for a part of its operation that this copy did for another one.
    pub(crate) fn charge_part(&self, payer: &str, oid: &ObjectId, access: Access, bytes: u64) {
        if payer.is_empty() {
            // A trim, say: clients had their turn for it where it is led.
            return;
        }
        let tenant =
            Payer { pool: oid.pool, namespace: &oid.namespace, object: &oid.name, entity: payer };
        let now = std::time::Instant::now();
        self.core.admission.queue.borrow_mut().part(&tenant, access, bytes, now);
    }

    /// What other copies are told, by their positions. One of them may have that of this copy: when
    /// a shard moves, the copy that takes over is filled beside the one that leads.
    pub(crate) fn payloads(&self, cut: &mut Cut, payer: &str, pledged: bool) -> Payloads {
        cut.shards.values_mut().for_each(|change| change.payer = payer.to_owned());
        let told = self.with_pg(|pg| {
            let position = |shard: &Shard| ShardId(*shard as i8);
            let all = cut.shards.iter().map(|(shard, change)| (position(shard), change));
            all.filter(|(position, _)| pg.tells(*position)).collect::<Vec<_>>()
        });
        let each = told.into_iter().map(|(position, change)| {
            let (ops, data) = change.to_wire();
            let room = if pledged { change.txn.room() } else { 0 };
            (position, Payload { ops, data: joined(data), room })
        });
        Payloads::Each(each.collect())
    }

    /// Adds what takes changes back.
    pub(crate) fn put_back(
        &self,
        t: &mut Transaction,
        undo: &[(Eversion, ObjectId)],
        snaps: impl Fn(&mut Transaction, &ObjectId, &[SnapId], &[SnapId]) + Copy,
    ) -> Result<(), String> {
        for (version, oid) in undo {
            let Some(kept) = self.kept.borrow_mut().remove(version) else {
                return Err(format!("nothing is kept that undoes {version} of {oid}"));
            };
            tracing::info!(pg = %self.id, %version, %oid, "a change is taken back");
            kept.objects.iter().for_each(|(o, _)| self.forget(o));
            self.forget(oid);
            kept.undo(*version, self.coll, t, snaps);
            t.omap_rm(self.coll, &self.meta, vec![pg::rows::undo_key(*version)]);
        }
        Ok(())
    }

    /// Adds the rows of what was kept for changes of this transaction.
    pub(crate) fn keep(
        &self,
        t: &mut Transaction,
        keep: &[(Eversion, ObjectId)],
        kept: Vec<(Eversion, KeptChange)>,
    ) {
        if keep.is_empty() {
            return;
        }
        let mut all: Kept = keep.iter().map(|(v, _)| (*v, KeptChange::default())).collect();
        all.extend(kept);
        let rows = all.iter().map(|(v, k)| (pg::rows::undo_key(*v), k.encode())).collect();
        t.omap_set(self.coll, &self.meta, rows);
        self.kept.borrow_mut().extend(all);
    }

    /// Adds what lets go what undoes changes.
    pub(crate) fn let_go(&self, t: &mut Transaction, versions: &[Eversion]) {
        let mut rows = Vec::with_capacity(versions.len());
        for version in versions {
            if let Some(kept) = self.kept.borrow_mut().remove(version) {
                kept.forget(*version, self.coll, t);
            }
            rows.push(pg::rows::undo_key(*version));
        }
        if !rows.is_empty() {
            t.omap_rm(self.coll, &self.meta, rows);
        }
    }

    /// Adds what moves that of objects of a new group to it.
    pub(crate) fn hand_over(&self, t: &mut Transaction, child: types::SpgId, pg_num: u32) {
        let window = crate::collections::window_of(child, pg_num);
        let coll = crate::collections::coll_of(child);
        let goes =
            |k: &KeptChange| k.objects.first().is_some_and(|(o, _)| window.covers(&o.to_key()));
        let moved: Kept = self.kept.borrow_mut().extract_if(.., |_, k| goes(k)).collect();
        for (version, kept) in &moved {
            for (oid, undo) in &kept.objects {
                if *undo != store::Undo::Absent {
                    let aside = objops::coded::aside_of(*version, oid);
                    t.move_object(self.coll, &aside, coll, &aside);
                }
            }
            let key = pg::rows::undo_key(*version);
            t.omap_rm(self.coll, &self.meta, vec![key.clone()]);
            t.omap_set(coll, &self.meta, vec![(key, kept.encode())]);
        }
        self.handed_over.borrow_mut().insert(child, moved);
    }
}
