//! A store that applies transactions at once and makes them durable later, in order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use pg::{ObjectChunk, PersistToken, Progress, snap_mapper};
use types::{Epoch, Eversion, ObjectId, SnapId, SnapSet, SpgId};

use crate::change::{ShardChange, apply};
use crate::content::{attrs_of, set_attrs};
use crate::object::{Cut, Object};

/// What was read is not what was written, or nothing was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Damaged;

/// One PG's collection.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Coll {
    /// Rows of the PG.
    pub rows: BTreeMap<Bytes, Bytes>,
    /// Objects.
    pub objects: BTreeMap<ObjectId, Object>,
    /// Rows that find the clones of snapshots, by the keys of [`snap_mapper`].
    pub mapper: BTreeMap<Bytes, Bytes>,
    /// What objects were before changes that may be taken back.
    pub undo: BTreeMap<Eversion, (ObjectId, Option<Object>)>,
}

impl Coll {
    /// The snapshots of a clone, as its row says.
    pub fn snaps(&self, oid: &ObjectId) -> Vec<SnapId> {
        let row = self.mapper.get(&snap_mapper::object_key(oid));
        row.map(|value| snap_mapper::snaps_of_row(value).expect("own bytes")).unwrap_or_default()
    }

    /// The first row of a snapshot.
    pub fn first_of(&self, snap: SnapId) -> Option<(&Bytes, ObjectId)> {
        let prefix = snap_mapper::snap_prefix(snap);
        let (key, value) = self
            .mapper
            .range(prefix.clone()..)
            .next()
            .filter(|(key, _)| key.starts_with(&prefix))?;
        Some((key, snap_mapper::object_of_row(value).expect("own bytes")))
    }

    fn set_snaps(&mut self, oid: &ObjectId, old: &[SnapId], new: &[SnapId]) {
        let (set, remove) = snap_mapper::change(oid, old, new);
        self.mapper.extend(set);
        self.mapper.retain(|key, _| !remove.contains(key));
    }
}

/// The object of a row.
fn mapped(key: &[u8], value: &Bytes) -> ObjectId {
    match key {
        [snap_mapper::BY_OBJECT, object @ ..] => ObjectId::from_key(object).expect("own bytes"),
        _ => snap_mapper::object_of_row(value).expect("own bytes"),
    }
}

/// Everything on a disk.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct State {
    /// Maps up to this epoch were processed.
    pub epoch: Epoch,
    /// Encoded [`pg::creation::UnbornPgs`].
    pub unborn: Bytes,
    /// Collections.
    pub colls: BTreeMap<SpgId, Coll>,
}

/// The version of a log entry, if that is its row's key.
fn logged_version(key: &[u8]) -> Option<Eversion> {
    let &[b'l', ref rest @ ..] = key else { return None };
    let (epoch, version) = rest.split_first_chunk()?;
    Some(Eversion {
        epoch: Epoch(u32::from_be_bytes(*epoch)),
        version: u64::from_be_bytes(version.try_into().ok()?),
    })
}

/// One change.
#[derive(Clone, Debug)]
pub enum StoreOp {
    /// New collection.
    Create(SpgId),
    /// A collection gives the objects of another PG, of which these many bits of the hash decide,
    /// to a new one.
    Split(SpgId, SpgId, u32),
    /// Collections become part of one; its rows go.
    Join(SpgId, Vec<SpgId>),
    /// No collection.
    Drop(SpgId),
    /// Set a row.
    Set(SpgId, Bytes, Bytes),
    /// Remove a row.
    Unset(SpgId, Bytes),
    /// Replace an object.
    Write(SpgId, ObjectId, Object),
    /// Remove an object.
    Remove(SpgId, ObjectId),
    /// A clone of a head as it is, with this version.
    Clone(SpgId, ObjectId, Eversion),
    /// A clone stands for other snapshots than before.
    Snaps(SpgId, ObjectId, Vec<SnapId>, Vec<SnapId>),
    /// A head has other clones, and this version.
    Clones(SpgId, ObjectId, Eversion, SnapSet),
    /// A row that finds a clone goes.
    Unmap(SpgId, Bytes),
    /// Change a shard.
    Shard(SpgId, ObjectId, Box<ShardChange>),
    /// Keep what an object is, to take this change back.
    Keep(SpgId, Eversion, ObjectId),
    /// Take this change back.
    Undo(SpgId, Eversion),
    /// It is not taken back any more.
    Forget(SpgId, Eversion),
    /// The object counts as this version.
    Version(SpgId, ObjectId, Eversion),
    /// Part of a recovered object.
    Push(SpgId, Box<ObjectChunk>),
    /// Progress of the OSD itself.
    Super(Epoch, Bytes),
}

impl State {
    /// The version of the object that is there.
    pub fn version(&self, pg: SpgId, oid: &ObjectId) -> Option<Eversion> {
        Some(self.colls.get(&pg)?.objects.get(oid)?.version)
    }

    fn apply(&mut self, op: &StoreOp) {
        match op {
            StoreOp::Create(pg) => {
                let old = self.colls.insert(*pg, Coll::default());
                assert!(old.is_none(), "{pg} is created twice");
            }
            StoreOp::Split(parent, child, bits) => {
                let coll = self.coll(parent);
                let objects = coll
                    .objects
                    .extract_if(.., |oid, _| child.pgid.contains_hash(*bits, oid.hash))
                    .collect();
                let mapper = coll
                    .mapper
                    .extract_if(.., |k, v| child.pgid.contains_hash(*bits, mapped(k, v).hash))
                    .collect();
                let undo: BTreeMap<_, _> = coll
                    .undo
                    .extract_if(.., |_, (oid, _)| child.pgid.contains_hash(*bits, oid.hash))
                    .collect();
                let rows = coll
                    .rows
                    .extract_if(.., |k, _| undo.keys().any(|v| pg::rows::undo_key(*v) == *k))
                    .collect();
                let old = self.colls.insert(*child, Coll { rows, objects, mapper, undo });
                assert!(old.is_none(), "{child} is split off twice");
            }
            StoreOp::Join(target, parts) => {
                let parts: Vec<_> =
                    parts.iter().map(|p| self.colls.remove(p).expect("it is here")).collect();
                let coll = self.coll(target);
                coll.rows.clear();
                coll.undo.clear();
                for part in parts {
                    coll.mapper.extend(part.mapper);
                    for (oid, object) in part.objects {
                        let old = coll.objects.insert(oid, object);
                        assert!(old.is_none(), "{target} had an object of another PG");
                    }
                }
            }
            StoreOp::Drop(pg) => drop(self.colls.remove(pg)),
            StoreOp::Super(epoch, unborn) => (self.epoch, self.unborn) = (*epoch, unborn.clone()),
            StoreOp::Set(pg, k, v) => drop(self.coll(pg).rows.insert(k.clone(), v.clone())),
            StoreOp::Unset(pg, k) => drop(self.coll(pg).rows.remove(k)),
            StoreOp::Write(pg, oid, object) => {
                drop(self.coll(pg).objects.insert(oid.clone(), object.clone().written()))
            }
            StoreOp::Remove(pg, oid) => drop(self.coll(pg).objects.remove(oid)),
            StoreOp::Shard(pg, oid, change) => {
                let objects = &mut self.coll(pg).objects;
                let has = objects.get(oid).map(|o| o.version).unwrap_or_default();
                assert_eq!(has, change.before, "{pg}: a change of another version of {oid}");
                if change.remove {
                    objects.remove(oid);
                    return;
                }
                let object = objects.entry(oid.clone()).or_default();
                // Blocks that are not written as a whole stay damaged.
                let sound = object.is_sound() || *object == Object::default();
                for op in &change.ops {
                    apply(&mut object.data, op);
                }
                object.version = change.version;
                match &change.lead {
                    None => object.cut = Cut::Data,
                    Some((lead, rows)) => {
                        object.cut = Cut::Lead(lead.clone());
                        for (key, value) in rows {
                            match value {
                                Some(value) => drop(object.omap.insert(key.clone(), value.clone())),
                                None => drop(object.omap.remove(key)),
                            }
                        }
                    }
                }
                object.sum = object.checksum() ^ u32::from(!sound);
            }
            StoreOp::Keep(pg, version, oid) => {
                let coll = self.coll(pg);
                let old = coll.objects.get(oid).cloned();
                coll.undo.insert(*version, (oid.clone(), old));
                coll.rows.insert(pg::rows::undo_key(*version), Bytes::new());
            }
            StoreOp::Undo(pg, version) => {
                let coll = self.coll(pg);
                coll.rows.remove(&pg::rows::undo_key(*version));
                let (oid, old) = coll.undo.remove(version).expect("it was kept");
                match old {
                    Some(old) => drop(coll.objects.insert(oid, old)),
                    None => drop(coll.objects.remove(&oid)),
                }
            }
            StoreOp::Forget(pg, version) => {
                let coll = self.coll(pg);
                coll.rows.remove(&pg::rows::undo_key(*version));
                coll.undo.remove(version);
            }
            StoreOp::Clone(pg, clone, version) => {
                let objects = &mut self.coll(pg).objects;
                let head = objects.get(&clone.head()).expect("the head is there").clone();
                objects.insert(
                    clone.clone(),
                    Object { version: *version, snapset: SnapSet::default(), ..head },
                );
            }
            StoreOp::Snaps(pg, oid, old, new) => self.coll(pg).set_snaps(oid, old, new),
            StoreOp::Clones(pg, oid, version, set) => {
                let head = self.coll(pg).objects.get_mut(oid).expect("the head is there");
                (head.version, head.snapset) = (*version, set.clone());
            }
            StoreOp::Unmap(pg, key) => drop(self.coll(pg).mapper.remove(key)),
            StoreOp::Version(pg, oid, version) => {
                self.coll(pg).objects.get_mut(oid).expect("it is there").version = *version
            }
            StoreOp::Push(pg, chunk) => {
                let coll = self.coll(pg);
                if chunk.last && !chunk.snaps.is_empty() {
                    coll.set_snaps(&chunk.oid, &[], &chunk.snaps);
                }
                let objects = &mut coll.objects;
                if chunk.first() {
                    objects.remove(&chunk.oid);
                }
                if chunk.first() && chunk.attrs.is_empty()
                    || !chunk.first() && !objects.contains_key(&chunk.oid)
                {
                    // The shard has nothing of the object.
                    return;
                }
                let object = objects.entry(chunk.oid.clone()).or_default();
                set_attrs(object, &chunk.attrs);
                object.data.resize(chunk.size as usize, 0);
                let mut at = 0;
                for &(offset, len) in &chunk.extents {
                    object.data[offset as usize..(offset + len) as usize]
                        .copy_from_slice(&chunk.data[at..at + len as usize]);
                    at += len as usize;
                }
                object.omap.extend(chunk.omap.iter().cloned());
                object.sum = object.checksum();
            }
        }
    }

    fn coll(&mut self, pg: &SpgId) -> &mut Coll {
        self.colls.get_mut(pg).expect("the collection was created")
    }
}

/// A transaction and whom to tell.
#[derive(Debug)]
struct Txn {
    seq: u64,
    ops: Vec<StoreOp>,
    tell: Option<(SpgId, PersistToken)>,
}

/// The disk of one OSD. Survives its process.
#[derive(Debug, Default)]
pub struct Disk {
    durable: State,
    applied: State,
    pending: VecDeque<Txn>,
    seq: u64,
    /// Entries of logs that became durable since the last look.
    pub landed: Vec<(SpgId, Eversion)>,
    /// Objects with a block that cannot be read, until they are written anew.
    bad: BTreeSet<(SpgId, ObjectId)>,
}

impl Disk {
    /// What the process sees.
    pub fn state(&self) -> &State {
        &self.applied
    }

    /// What a crash now would leave.
    pub fn durable(&self) -> &State {
        &self.durable
    }

    /// Applies a transaction. Returns its number.
    pub fn submit(&mut self, ops: Vec<StoreOp>, tell: Option<(SpgId, PersistToken)>) -> u64 {
        for op in &ops {
            self.applied.apply(op);
            match op {
                StoreOp::Write(pg, oid, _) | StoreOp::Remove(pg, oid) => {
                    self.bad.remove(&(*pg, oid.clone()));
                }
                // It shares the blocks of its head.
                StoreOp::Clone(pg, clone, _) if self.is_bad(*pg, &clone.head()) => {
                    self.bad.insert((*pg, clone.clone()));
                }
                StoreOp::Clone(pg, clone, _) => {
                    self.bad.remove(&(*pg, clone.clone()));
                }
                StoreOp::Push(pg, chunk) if chunk.first() => {
                    self.bad.remove(&(*pg, chunk.oid.clone()));
                }
                StoreOp::Drop(pg) => self.bad.retain(|(p, _)| p != pg),
                _ => {}
            }
        }
        self.seq += 1;
        self.pending.push_back(Txn { seq: self.seq, ops, tell });
        self.seq
    }

    /// Makes everything up to `seq` durable. Returns whom to tell.
    pub fn flush(&mut self, seq: u64) -> Vec<(SpgId, PersistToken)> {
        let mut told = Vec::new();
        while let Some(txn) = self.pending.pop_front_if(|t| t.seq <= seq) {
            for op in &txn.ops {
                self.durable.apply(op);
                if let StoreOp::Set(pgid, key, _) = op
                    && let Some(version) = logged_version(key)
                {
                    self.landed.push((*pgid, version));
                }
            }
            told.extend(txn.tell);
        }
        told
    }

    /// The process died, or the power went: of what was not yet durable, some first transactions
    /// happen to have reached the disk.
    pub fn crash(&mut self, survivors: usize) {
        if let Some(txn) = self.pending.get(survivors.wrapping_sub(1)) {
            let seq = txn.seq;
            self.flush(seq);
        }
        self.pending.clear();
        self.applied = self.durable.clone();
    }

    /// A block of the object goes bad. False if the object is not there.
    pub fn spoil(&mut self, pg: SpgId, oid: &ObjectId) -> bool {
        self.applied.colls.get(&pg).is_some_and(|c| c.objects.contains_key(oid))
            && self.bad.insert((pg, oid.clone()))
    }

    /// A bit of the object's data changes on the medium, without a word; or of its attribute, where
    /// no checksum sees it. False if the object is not there, or not durable as it is.
    pub fn flip(&mut self, pg: SpgId, oid: &ObjectId, bit: u64, attr: bool) -> bool {
        if self.durable.version(pg, oid) != self.applied.version(pg, oid) {
            return false;
        }
        let states = [&mut self.durable, &mut self.applied]
            .map(|s| s.colls.get_mut(&pg).and_then(|c| c.objects.get_mut(oid)));
        let [Some(durable), Some(applied)] = states else { return false };
        for object in [durable, applied] {
            if attr {
                object.attr ^= 1 << (bit % 64);
            } else {
                object.flip(bit);
            }
        }
        true
    }

    /// Reads an object, and verifies what was read.
    pub fn read(
        &self,
        pg: SpgId,
        oid: &ObjectId,
        verify: bool,
    ) -> Result<Option<&Object>, Damaged> {
        let Some(object) = self.applied.colls.get(&pg).and_then(|c| c.objects.get(oid)) else {
            return Ok(None);
        };
        let bad = self.is_bad(pg, oid) || verify && !object.is_sound();
        if bad { Err(Damaged) } else { Ok(Some(object)) }
    }

    /// Whether reads of the object fail.
    pub fn is_bad(&self, pg: SpgId, oid: &ObjectId) -> bool {
        self.bad.contains(&(pg, oid.clone()))
    }

    /// How many transactions are not durable.
    pub fn unflushed(&self) -> usize {
        self.pending.len()
    }

    /// Reads one part of an object, and verifies all of it.
    pub fn read_chunk(
        &self,
        pg: &SpgId,
        oid: &ObjectId,
        version: Eversion,
        from: Progress,
        max_bytes: u64,
        max_omap: u64,
    ) -> Option<ObjectChunk> {
        let object = self.read(*pg, oid, true).ok()??;
        if object.version != version {
            return None;
        }
        let size = object.data.len() as u64;
        let end = size.min(from.data_to + max_bytes.max(1));
        let data = Bytes::copy_from_slice(&object.data[from.data_to as usize..end as usize]);
        let mut omap: Vec<(Bytes, Bytes)> = Vec::new();
        if end == size {
            let rows =
                object.omap.iter().filter(|(k, _)| from.omap_to.as_ref().is_none_or(|to| *k > to));
            omap.extend(rows.take(max_omap.max(1) as usize).map(|(k, v)| (k.clone(), v.clone())));
        }
        let omap_to = omap.last().map(|(k, _)| k.clone()).or(from.omap_to.clone());
        let last = end == size && omap_to.as_ref() == object.omap.keys().next_back();
        let first = from == Progress::default();
        Some(ObjectChunk {
            oid: oid.clone(),
            version,
            to: Progress { data_to: end, omap_to },
            last,
            size,
            extents: if end > from.data_to {
                vec![(from.data_to, end - from.data_to)]
            } else {
                Vec::new()
            },
            from,
            data,
            attrs: if first { attrs_of(object) } else { Vec::new() },
            omap_header: Bytes::new(),
            omap,
            snaps: if last { self.applied.colls[pg].snaps(oid) } else { Vec::new() },
        })
    }
}
