//! A store that applies transactions at once and makes them durable later, in order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use denc::{Decode, Encode, Features};
use pg::{ObjectChunk, PersistToken, Progress};
use types::{Epoch, Eversion, ObjectId, ObjectInfo, PgId};

/// Content of an object.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Object {
    /// Its version, as the object info says.
    pub version: Eversion,
    /// Data.
    pub data: Vec<u8>,
    /// Omap rows.
    pub omap: BTreeMap<Bytes, Bytes>,
    /// An attribute of the client's. No client of this model reads it, and no checksum covers it.
    pub attr: u64,
    /// Checksum of data and rows, from when they were written.
    pub sum: u32,
}

impl Object {
    fn checksum(&self) -> u32 {
        let rows = self.omap.iter().fold(0, |sum, (k, v)| denc::crc::crc32c(denc::crc::crc32c(sum, k), v));
        denc::crc::crc32c(rows, &self.data)
    }

    /// Whether it is what was written, as far as the checksum tells.
    pub fn is_sound(&self) -> bool {
        self.sum == self.checksum()
    }

    fn written(mut self) -> Self {
        self.sum = self.checksum();
        self
    }

    /// One bit of the data changes.
    fn flip(&mut self, bit: u64) {
        let bit = bit % (self.data.len() as u64 * 8).max(1);
        if let Some(byte) = self.data.get_mut((bit / 8) as usize) {
            *byte ^= 1 << (bit % 8);
        }
    }
}

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
}

/// Everything on a disk.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct State {
    /// Maps up to this epoch were processed.
    pub epoch: Epoch,
    /// Encoded [`pg::creation::UnbornPgs`].
    pub unborn: Bytes,
    /// Collections.
    pub colls: BTreeMap<PgId, Coll>,
}

/// The version of a log entry, if that is its row's key.
fn logged_version(key: &[u8]) -> Option<Eversion> {
    let &[b'l', ref rest @ ..] = key else { return None };
    let (epoch, version) = rest.split_first_chunk()?;
    Some(Eversion { epoch: Epoch(u32::from_be_bytes(*epoch)), version: u64::from_be_bytes(version.try_into().ok()?) })
}

/// One change.
#[derive(Clone, Debug)]
pub enum StoreOp {
    /// New collection.
    Create(PgId),
    /// A collection gives the objects of another PG, of which these many bits of the hash decide, to a new one.
    Split(PgId, PgId, u32),
    /// Collections become part of one; its rows go.
    Join(PgId, Vec<PgId>),
    /// No collection.
    Drop(PgId),
    /// Set a row.
    Set(PgId, Bytes, Bytes),
    /// Remove a row.
    Unset(PgId, Bytes),
    /// Replace an object.
    Write(PgId, ObjectId, Object),
    /// Remove an object.
    Remove(PgId, ObjectId),
    /// The object counts as this version.
    Version(PgId, ObjectId, Eversion),
    /// Part of a recovered object.
    Push(PgId, Box<ObjectChunk>),
    /// Progress of the OSD itself.
    Super(Epoch, Bytes),
}

impl State {
    /// The version of the object that is there.
    pub fn version(&self, pg: PgId, oid: &ObjectId) -> Option<Eversion> {
        Some(self.colls.get(&pg)?.objects.get(oid)?.version)
    }

    fn apply(&mut self, op: &StoreOp) {
        match op {
            StoreOp::Create(pg) => {
                let old = self.colls.insert(*pg, Coll::default());
                assert!(old.is_none(), "{pg} is created twice");
            }
            StoreOp::Split(parent, child, bits) => {
                let objects = &mut self.coll(parent).objects;
                let objects = objects.extract_if(.., |oid, _| child.contains_hash(*bits, oid.hash)).collect();
                let old = self.colls.insert(*child, Coll { rows: BTreeMap::new(), objects });
                assert!(old.is_none(), "{child} is split off twice");
            }
            StoreOp::Join(target, parts) => {
                let objects: Vec<_> = parts.iter().flat_map(|p| self.colls.remove(p).expect("it is here").objects).collect();
                let coll = self.coll(target);
                coll.rows.clear();
                for (oid, object) in objects {
                    let old = coll.objects.insert(oid, object);
                    assert!(old.is_none(), "{target} had an object of another PG");
                }
            }
            StoreOp::Drop(pg) => drop(self.colls.remove(pg)),
            StoreOp::Super(epoch, unborn) => (self.epoch, self.unborn) = (*epoch, unborn.clone()),
            StoreOp::Set(pg, k, v) => drop(self.coll(pg).rows.insert(k.clone(), v.clone())),
            StoreOp::Unset(pg, k) => drop(self.coll(pg).rows.remove(k)),
            StoreOp::Write(pg, oid, object) => drop(self.coll(pg).objects.insert(oid.clone(), object.clone().written())),
            StoreOp::Remove(pg, oid) => drop(self.coll(pg).objects.remove(oid)),
            StoreOp::Version(pg, oid, version) => self.coll(pg).objects.get_mut(oid).expect("it is there").version = *version,
            StoreOp::Push(pg, chunk) => {
                let objects = &mut self.coll(pg).objects;
                if chunk.first() {
                    objects.remove(&chunk.oid);
                }
                let object = objects.entry(chunk.oid.clone()).or_default();
                if let Some((_, v)) = chunk.attrs.first() {
                    object.version = ObjectInfo::from_bytes(v).expect("written by this model").version;
                }
                if let Some((_, v)) = chunk.attrs.get(1) {
                    object.attr = u64::from_be_bytes(v[..].try_into().expect("written by this model"));
                }
                object.data.resize(chunk.size as usize, 0);
                let mut at = 0;
                for &(offset, len) in &chunk.extents {
                    object.data[offset as usize..(offset + len) as usize].copy_from_slice(&chunk.data[at..at + len as usize]);
                    at += len as usize;
                }
                object.omap.extend(chunk.omap.iter().cloned());
                object.sum = object.checksum();
            }
        }
    }

    fn coll(&mut self, pg: &PgId) -> &mut Coll {
        self.colls.get_mut(pg).expect("the collection was created")
    }
}

/// A transaction and whom to tell.
#[derive(Debug)]
struct Txn {
    seq: u64,
    ops: Vec<StoreOp>,
    tell: Option<(PgId, PersistToken)>,
}

/// The disk of one OSD. Survives its process.
#[derive(Debug, Default)]
pub struct Disk {
    durable: State,
    applied: State,
    pending: VecDeque<Txn>,
    seq: u64,
    /// Entries of logs that became durable since the last look.
    pub landed: Vec<(PgId, Eversion)>,
    /// Objects with a block that cannot be read, until they are written anew.
    bad: BTreeSet<(PgId, ObjectId)>,
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
    pub fn submit(&mut self, ops: Vec<StoreOp>, tell: Option<(PgId, PersistToken)>) -> u64 {
        for op in &ops {
            self.applied.apply(op);
            match op {
                StoreOp::Write(pg, oid, _) | StoreOp::Remove(pg, oid) => drop(self.bad.remove(&(*pg, oid.clone()))),
                StoreOp::Push(pg, chunk) if chunk.first() => drop(self.bad.remove(&(*pg, chunk.oid.clone()))),
                StoreOp::Drop(pg) => self.bad.retain(|(p, _)| p != pg),
                _ => {}
            }
        }
        self.seq += 1;
        self.pending.push_back(Txn { seq: self.seq, ops, tell });
        self.seq
    }

    /// Makes everything up to `seq` durable. Returns whom to tell.
    pub fn flush(&mut self, seq: u64) -> Vec<(PgId, PersistToken)> {
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

    /// The process died, or the power went: of what was not yet durable, some first transactions happen to
    /// have reached the disk.
    pub fn crash(&mut self, survivors: usize) {
        if let Some(txn) = self.pending.get(survivors.wrapping_sub(1)) {
            let seq = txn.seq;
            self.flush(seq);
        }
        self.pending.clear();
        self.applied = self.durable.clone();
    }

    /// A block of the object goes bad. False if the object is not there.
    pub fn spoil(&mut self, pg: PgId, oid: &ObjectId) -> bool {
        self.applied.colls.get(&pg).is_some_and(|c| c.objects.contains_key(oid)) && self.bad.insert((pg, oid.clone()))
    }

    /// A bit of the object's data changes on the medium, without a word; or of its attribute, where no checksum sees it.
    /// False if the object is not there, or not durable as it is.
    pub fn flip(&mut self, pg: PgId, oid: &ObjectId, bit: u64, attr: bool) -> bool {
        if self.durable.version(pg, oid) != self.applied.version(pg, oid) {
            return false;
        }
        let states = [&mut self.durable, &mut self.applied].map(|s| s.colls.get_mut(&pg).and_then(|c| c.objects.get_mut(oid)));
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
    pub fn read(&self, pg: PgId, oid: &ObjectId, verify: bool) -> Result<Option<&Object>, Damaged> {
        let Some(object) = self.applied.colls.get(&pg).and_then(|c| c.objects.get(oid)) else { return Ok(None) };
        let bad = self.is_bad(pg, oid) || verify && !object.is_sound();
        if bad { Err(Damaged) } else { Ok(Some(object)) }
    }

    /// Whether reads of the object fail.
    pub fn is_bad(&self, pg: PgId, oid: &ObjectId) -> bool {
        self.bad.contains(&(pg, oid.clone()))
    }

    /// How many transactions are not durable.
    pub fn unflushed(&self) -> usize {
        self.pending.len()
    }

    /// Reads one part of an object, and verifies all of it.
    pub fn read_chunk(&self, pg: &PgId, oid: &ObjectId, version: Eversion, from: Progress, max_bytes: u64, max_omap: u64) -> Option<ObjectChunk> {
        let object = self.read(*pg, oid, true).ok()??;
        if object.version != version {
            return None;
        }
        let size = object.data.len() as u64;
        let end = size.min(from.data_to + max_bytes.max(1));
        let data = Bytes::copy_from_slice(&object.data[from.data_to as usize..end as usize]);
        let mut omap: Vec<(Bytes, Bytes)> = Vec::new();
        if end == size {
            let rows = object.omap.iter().filter(|(k, _)| from.omap_to.as_ref().is_none_or(|to| *k > to));
            omap.extend(rows.take(max_omap.max(1) as usize).map(|(k, v)| (k.clone(), v.clone())));
        }
        let omap_to = omap.last().map(|(k, _)| k.clone()).or(from.omap_to.clone());
        let last = end == size && omap_to.as_ref() == object.omap.keys().next_back();
        let first = from == Progress::default();
        let info = ObjectInfo { version, ..ObjectInfo::default() }.to_bytes(Features::ALL);
        let attrs = vec![(Bytes::from_static(b"_"), info), (Bytes::from_static(b"_attr"), Bytes::copy_from_slice(&object.attr.to_be_bytes()))];
        Some(ObjectChunk {
            oid: oid.clone(),
            version,
            to: Progress { data_to: end, omap_to },
            last,
            size,
            extents: if end > from.data_to { vec![(from.data_to, end - from.data_to)] } else { Vec::new() },
            from,
            data,
            attrs: if first { attrs } else { Vec::new() },
            omap_header: Bytes::new(),
            omap,
            snaps: Vec::new(),
        })
    }
}
