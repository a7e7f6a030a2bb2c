//! What an operation changes on each shard of objects of an erasure-coded pool.
//!
//! A primary works out changes of whole objects ([`Mutations`]). [`Draft`] says which old bytes
//! are needed to encode them, and cuts them into one [`ShardChange`] for each shard: bytes of its
//! own, and object info, attributes and omap if it may lead.
//!
//! * Shards that may lead (the first with data, and all with parity) have the attribute
//!   [`SHARDS_ATTR`]: the version of the last entry that named a shard, where it is not the
//!   object's.
//! * Other data shards have one attribute, [`SHARD_ATTR`]: that version of their own.
//!
//! Parity is encoded anew, or gets what data changed (a delta), whichever [`WritePlan`] finds
//! cheaper. A delta must come to the very bytes that it was made for, once: the shard's change is
//! refused unless its object info is the one that the primary had ([`Change::Expect`]).
//!
//! An object that is made has all its shards, however short it is. Each entry that makes, replaces
//! or removes an object names all shards; one that changes bytes names the shards of these,
//! and those that may lead.

mod overlay;
mod undo;

#[cfg(test)]
mod coded_test;

pub use undo::{ASIDE, KeptChange, aside_of};

use crate::OI_ATTR;
use crate::small::SMALL_BYTES;
use crate::txn::{Mutations, SnapsChange};
use bytes::Bytes;
use denc::{BufMut, BytesMut, Decode, DecodeError, Encode, Features, Reader};
use ec::{Band, Code, Extents, How, Layout, Shard, ShardSet, Sources, Stripe, WritePlan};
use overlay::{Base, Overlay};
use smallvec::smallvec;
use std::collections::BTreeMap;
use std::ops::Range;
use store::{Buffers, Change, WriteHint};
use thiserror::Error;
use types::{Eversion, ObjectId, ObjectInfo, ShardId};

/// Attribute of data shards that never lead: the version of the last entry that named the shard.
pub const SHARD_ATTR: &[u8] = b"@shard";
/// Attribute of shards that may lead: such a version for each shard that has another than the
/// object.
pub const SHARDS_ATTR: &[u8] = b"@shards";

/// Parts of a change that are planned; of more, parity is encoded.
const PLANNED_MAX: usize = 16;

/// Shard bytes that are encoded at a time.
const ENCODE_BYTES_MAX: u64 = 1 << 20;

/// What is known of an object before a change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Before {
    /// Its size in bytes.
    pub size: u64,
    /// The version that each of its shards has; zero where there is none. Empty if there is no
    /// object.
    pub shards: Vec<Eversion>,
    /// Its object info, as shards that may lead have it; empty if that is not known.
    pub info: Bytes,
}

impl Before {
    /// What object info and [`SHARDS_ATTR`] say.
    pub fn new(layout: Layout, info: &ObjectInfo, shards: Option<&Bytes>) -> denc::Result<Before> {
        let mut versions = vec![info.version; layout.shards().len()];
        if let Some(bytes) = shards {
            for (shard, version) in BTreeMap::<ShardId, Eversion>::from_bytes(bytes)? {
                if let Some(v) = usize::try_from(shard.0).ok().and_then(|s| versions.get_mut(s)) {
                    *v = version;
                }
            }
        }
        Ok(Before { size: info.size, shards: versions, info: Bytes::new() })
    }

    /// The value of [`SHARDS_ATTR`] of an object of this version.
    pub fn attr(&self, version: Eversion) -> Bytes {
        let other: BTreeMap<ShardId, Eversion> = self.others(version).into_iter().collect();
        other.to_bytes(Features::ALL)
    }

    /// Shards that have another version than this.
    pub fn others(&self, version: Eversion) -> Vec<(ShardId, Eversion)> {
        let other = self.shards.iter().enumerate().filter(|(_, v)| **v != version);
        other.map(|(s, v)| (ShardId(s as i8), *v)).collect()
    }

    /// The version of one shard, zero if there is none.
    pub fn shard(&self, shard: Shard) -> Eversion {
        self.shards.get(usize::from(shard)).copied().unwrap_or_default()
    }

    /// The object's version.
    pub fn version(&self) -> Eversion {
        // Every entry names the shards that may lead.
        self.shards.iter().copied().max().unwrap_or_default()
    }

    fn exists(&self) -> bool {
        !self.shards.is_empty()
    }
}

/// Bytes of objects as they were before a change.
#[derive(Clone, Debug, Default)]
pub struct OldBytes(BTreeMap<(ObjectId, u64), Bytes>);

impl OldBytes {
    /// Puts a range there. Fewer bytes than were asked for are an object's end.
    pub fn insert(&mut self, oid: &ObjectId, offset: u64, bytes: Bytes) {
        self.0.insert((oid.clone(), offset), bytes);
    }

    /// Copies a range to `out`.
    fn copy(&self, oid: &ObjectId, offset: u64, out: &mut [u8]) -> Result<(), CodedError> {
        let mut at = offset;
        let end = offset + out.len() as u64;
        while at < end {
            let lacking =
                || CodedError::Lacking { oid: Box::new(oid.clone()), offset: at, length: end - at };
            let from = (oid.clone(), 0)..=(oid.clone(), at);
            let ((_, start), bytes) = self.0.range(from).next_back().ok_or_else(lacking)?;
            let n = (start + bytes.len() as u64).min(end).saturating_sub(at);
            if n == 0 {
                return Err(lacking());
            }
            out[(at - offset) as usize..][..n as usize]
                .copy_from_slice(&bytes[(at - start) as usize..][..n as usize]);
            at += n;
        }
        Ok(())
    }
}

/// Why a change cannot be cut.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CodedError {
    /// A change that no operation makes of objects of these pools.
    #[error("{oid}: {change} has no form for shards")]
    Unsupported {
        /// Of which object.
        oid: Box<ObjectId>,
        /// Which change.
        change: &'static str,
    },
    /// The draft asked for bytes that were not put there.
    #[error("{oid}: {length} old bytes at {offset} were asked for and are not there")]
    Lacking {
        /// Of which object.
        oid: Box<ObjectId>,
        /// Where.
        offset: u64,
        /// How many.
        length: u64,
    },
}

/// What one shard is told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardChange {
    /// The version that the shard of each object has before; zero if there is none.
    pub before: Vec<(ObjectId, Eversion)>,
    /// What changes.
    pub txn: Mutations,
    /// The name that the client has a key for, if it is a client's operation.
    pub payer: String,
}

/// A change, cut.
#[derive(Clone, Debug, Default)]
pub struct Cut {
    /// For each object that changes, the shards that its entry names.
    pub written: Vec<(ObjectId, ShardSet)>,
    /// What each of them is told.
    pub shards: BTreeMap<Shard, ShardChange>,
}

impl Cut {
    /// The shards that the entry of an object names. Empty for an object of which only metadata
    /// changes: those that may lead are meant.
    pub fn written(&self, oid: &ObjectId) -> ShardSet {
        self.written.iter().find(|(o, _)| o == oid).map_or(ShardSet::EMPTY, |(_, set)| *set)
    }
}

/// Notes old bytes of a range of an object in what is known of its data shards.
pub fn note_bytes(layout: Layout, stripe: &mut Stripe, start: u64, bytes: &[u8]) {
    let range = start..start + bytes.len() as u64;
    for shard in layout.data().iter() {
        let extent = layout.extent(shard, &range);
        layout.pieces(shard, extent, |on_shard, in_object, n| {
            let from = (in_object - start) as usize;
            stripe.insert(shard, on_shard, bytes[from..from + n as usize].to_vec());
        });
    }
}

/// Where parity gets what data changed: objects, shard offsets, and the data shards that change
/// there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choices(Vec<(ObjectId, Range<u64>, ShardSet)>);

impl Choices {
    /// Whether parity is encoded everywhere.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Changes of objects, worked out as far as is possible without old bytes.
#[derive(Debug)]
pub struct Draft<'a> {
    layout: Layout,
    txn: &'a Mutations,
    objects: Vec<Object>,
}

/// Shard offsets in which parity gets what data changed.
#[derive(Debug)]
struct Delta {
    range: Range<u64>,
    /// Data shards that change over all of it.
    changed: ShardSet,
}

/// One object of a change.
#[derive(Debug)]
struct Object {
    oid: ObjectId,
    before: Before,
    overlay: Overlay,
    /// Parity offsets that are encoded anew.
    bands: Extents,
    deltas: Vec<Delta>,
    /// The shards that its entry names.
    written: ShardSet,
}

impl<'a> Draft<'a> {
    /// `before` tells of the objects that change, and of those that copies are made of.
    pub fn new(
        layout: Layout,
        txn: &'a Mutations,
        before: impl Fn(&ObjectId) -> Option<Before>,
    ) -> Result<Draft<'a>, CodedError> {
        let mut objects: Vec<Object> = Vec::new();
        for (oid, change) in txn.iter() {
            let at = match objects.iter().position(|o| o.oid == *oid) {
                Some(at) => at,
                None => {
                    let before = before(oid).unwrap_or_default();
                    let overlay = Overlay::new(before.exists().then_some(before.size));
                    objects.push(Object {
                        oid: oid.clone(),
                        before,
                        overlay,
                        bands: Extents::new(),
                        deltas: Vec::new(),
                        written: ShardSet::EMPTY,
                    });
                    objects.len() - 1
                }
            };
            let unsupported =
                |change| CodedError::Unsupported { oid: Box::new(oid.clone()), change };
            let source = match change {
                Change::CloneOf { from } => {
                    let source = ObjectId::from_key(from)
                        .map_err(|_| unsupported("a copy of an object without a name"))?;
                    if objects.iter().any(|o| o.oid == source && o.overlay.changes_data()) {
                        return Err(unsupported("a copy of an object that the same change wrote"));
                    }
                    let size = before(&source).unwrap_or_default().size;
                    Some((source, size))
                }
                _ => None,
            };
            objects[at].overlay.add(change, source).map_err(unsupported)?;
        }
        for object in &mut objects {
            object.settle(&layout);
        }
        Ok(Draft { layout, txn, objects })
    }

    /// Lets parity get what data changed where that costs less than to encode it anew. `sources`
    /// tells of the shards of an object; of one that it says nothing of, parity is encoded.
    pub fn choose<'s>(&mut self, sources: impl Fn(&ObjectId) -> Option<Sources<'s>>) {
        for object in &mut self.objects {
            if let Some(sources) = sources(&object.oid) {
                object.choose(self.layout, sources);
            }
        }
    }

    /// What was chosen.
    pub fn choices(&self) -> Choices {
        let each = self.objects.iter().flat_map(|o| o.deltas.iter().map(move |d| (&o.oid, d)));
        Choices(each.map(|(oid, d)| (oid.clone(), d.range.clone(), d.changed)).collect())
    }

    /// Does as a draft of the same change of data has chosen.
    pub fn follow(&mut self, choices: &Choices) {
        for (oid, range, changed) in &choices.0 {
            if let Some(object) = self.objects.iter_mut().find(|o| o.oid == *oid) {
                object.bands.remove(range.clone());
                object.deltas.push(Delta { range: range.clone(), changed: *changed });
            }
        }
    }

    /// What is known of the bytes of an object after the change, if anything is: of data shards,
    /// what was known before and what is written. `None` if other bytes change in some way that is
    /// seldom: then all has to be read again.
    pub fn stripe_after(&self, oid: &ObjectId, mut before: Stripe) -> Option<Stripe> {
        let object = self.objects.iter().find(|o| o.oid == *oid)?;
        let o = &object.overlay;
        let plain = o.exists() && !o.remade() && o.kept() == o.base_size();
        if !plain || o.zeroes().next().is_some() {
            return None;
        }
        for (start, data, _) in o.writes() {
            let range = start..start + data.len();
            for shard in self.layout.data().iter() {
                let r = self.layout.extent(shard, &range);
                if r.is_empty() {
                    continue;
                }
                let mut bytes = vec![0; (r.end - r.start) as usize];
                self.layout.pieces(shard, r.clone(), |on_shard, at, n| {
                    o.new_bytes(at, &mut bytes[(on_shard - r.start) as usize..][..n as usize]);
                });
                before.insert(shard, r.start, bytes);
            }
        }
        Some(before)
    }

    /// Old bytes that are needed, as ranges of objects.
    pub fn needs(&self) -> Vec<(ObjectId, Range<u64>)> {
        let mut out = Vec::new();
        for object in &self.objects {
            let Some(base) = object.overlay.base_of(&object.oid) else { continue };
            let mut needs = Extents::new();
            for band in object.bands.iter() {
                for shard in self.layout.data().iter() {
                    self.layout.pieces(shard, band.clone(), |_, at, n| {
                        object.overlay.old_parts(at..at + n).for_each(|r| needs.insert(r));
                    });
                }
            }
            for delta in &object.deltas {
                for shard in delta.changed.iter() {
                    self.layout.pieces(shard, delta.range.clone(), |_, at, n| {
                        needs.insert(at..(at + n).min(object.overlay.base_size()).max(at));
                    });
                }
            }
            out.extend(needs.iter().map(|r| (base.clone(), r)));
        }
        out
    }

    /// Cuts the changes. `versions` tells the version that each object's entry will have.
    pub fn cut(
        &self,
        code: &Code,
        old: &OldBytes,
        versions: impl Fn(&ObjectId) -> Eversion,
    ) -> Result<Cut, CodedError> {
        let mut cut = Cut::default();
        let lead = self.layout.primary_capable();
        for object in &self.objects {
            cut.written.push((object.oid.clone(), object.written));
            for shard in object.written.iter() {
                let told = cut.shards.entry(shard).or_default();
                told.before.push((object.oid.clone(), object.before.shard(shard)));
            }
        }
        self.structure(&mut cut);
        for object in self.objects.iter().filter(|o| o.overlay.exists()) {
            self.data(object, code, old, &mut cut)?;
            let version = versions(&object.oid);
            let mut after = object.before.clone();
            after.shards.resize(self.layout.shards().len(), Eversion::ZERO);
            object.written.iter().for_each(|s| after.shards[usize::from(s)] = version);
            let shards = after.attr(version);
            let f = Features::ALL;
            for shard in object.written.iter() {
                let attr = if lead.contains(shard) {
                    (Bytes::from_static(SHARDS_ATTR), shards.clone())
                } else {
                    (Bytes::from_static(SHARD_ATTR), version.to_bytes(f))
                };
                cut.tell(shard, &object.oid, Change::SetAttrs(smallvec![attr]));
            }
        }
        for (oid, SnapsChange { old, new }) in self.txn.snaps() {
            for shard in lead.iter() {
                let told = cut.shards.entry(shard).or_default();
                told.txn.push_snaps(oid, old.clone(), new.clone());
            }
        }
        Ok(cut)
    }

    /// All but data, in the order of the changes.
    fn structure(&self, cut: &mut Cut) {
        let lead = self.layout.primary_capable();
        // On which shards there is an object, while changes go on.
        let mut there: BTreeMap<&ObjectId, ShardSet> = BTreeMap::new();
        let begins = |o: &Object| {
            self.layout.shards().iter().filter(|s| o.before.shard(*s) != Eversion::ZERO).collect()
        };
        for object in &self.objects {
            there.insert(&object.oid, begins(object));
        }
        for (oid, change) in self.txn.iter() {
            let Some(object) = self.objects.iter().find(|o| o.oid == *oid) else { continue };
            let here = there.get(oid).copied().unwrap_or_default();
            match change {
                Change::Write { .. } | Change::Zero { .. } | Change::Truncate { .. } => {
                    // Bytes come later; that they make the object comes now.
                    for shard in object.written.without(here).iter() {
                        cut.tell(shard, oid, Change::Touch);
                    }
                    there.insert(&object.oid, here.or(object.written));
                }
                Change::Touch => {
                    for shard in object.written.iter() {
                        cut.tell(shard, oid, Change::Touch);
                    }
                    there.insert(&object.oid, here.or(object.written));
                }
                Change::Remove => {
                    for shard in object.written.and(here).iter() {
                        cut.tell(shard, oid, Change::Remove);
                    }
                    there.insert(&object.oid, here.without(object.written));
                }
                Change::CloneOf { from } => {
                    for shard in object.written.iter() {
                        cut.tell(shard, oid, Change::CloneOf { from: from.clone() });
                    }
                    there.insert(&object.oid, here.or(object.written));
                }
                _ => {
                    for shard in object.written.and(lead).iter() {
                        cut.tell(shard, oid, change.clone());
                    }
                    there.insert(&object.oid, here.or(object.written.and(lead)));
                }
            }
        }
        for object in self.objects.iter().filter(|o| o.overlay.exists()) {
            let here = there.get(&object.oid).copied().unwrap_or_default();
            for shard in object.written.without(here).iter() {
                cut.tell(shard, &object.oid, Change::Touch);
            }
        }
    }

    /// Bytes of all shards.
    fn data(
        &self,
        object: &Object,
        code: &Code,
        old: &OldBytes,
        cut: &mut Cut,
    ) -> Result<(), CodedError> {
        let (layout, overlay, oid) = (self.layout, &object.overlay, &object.oid);
        for shard in object.written.iter() {
            let left = layout.shard_size(shard, overlay.kept());
            if left < layout.shard_size(shard, overlay.base_size()) {
                cut.tell(shard, oid, Change::Truncate { size: left });
            }
        }
        for shard in layout.data().and(object.written).iter() {
            for range in overlay.zeroes() {
                let r = layout.extent(shard, &range);
                if !r.is_empty() {
                    cut.tell(shard, oid, Change::Zero { off: r.start, len: r.end - r.start });
                }
            }
            for (start, data, hint) in overlay.writes() {
                let range = start..start + data.len();
                let r = layout.extent(shard, &range);
                if r.is_empty() {
                    continue;
                }
                let mut out = Buffers::new();
                layout.pieces(shard, r.clone(), |_, at, n| {
                    data.slice(at - start, n).into_iter().for_each(|b| out.push(b));
                });
                cut.tell(
                    shard,
                    oid,
                    Change::Write { off: r.start, data: own(out, data.len()), hint },
                );
            }
        }
        let base = overlay.base_of(oid);
        let parity = layout.parity();
        let hint = overlay.writes().map(|(.., hint)| hint).next().unwrap_or(WriteHint::Normal);
        for band in object.bands.iter() {
            let mut at = band.start;
            while at < band.end {
                let range = at..band.end.min(at + ENCODE_BYTES_MAX);
                at = range.end;
                let length = (range.end - range.start) as usize;
                let mut data = Vec::with_capacity(layout.k());
                for shard in layout.data().iter() {
                    let mut bytes = vec![0; length];
                    let mut result = Ok(());
                    layout.pieces(shard, range.clone(), |on_shard, in_object, n| {
                        let out = &mut bytes[(on_shard - range.start) as usize..][..n as usize];
                        overlay.new_bytes(in_object, out);
                        for part in overlay.old_parts(in_object..in_object + n) {
                            let from = (part.start - in_object) as usize;
                            let to = (part.end - in_object) as usize;
                            if let (Some(base), Ok(())) = (&base, &result) {
                                result = old.copy(base, part.start, &mut out[from..to]);
                            }
                        }
                    });
                    result?;
                    data.push(bytes);
                }
                if data.iter().all(|d| d.iter().all(|b| *b == 0)) {
                    for shard in parity.iter() {
                        let len = range.end - range.start;
                        cut.tell(shard, oid, Change::Zero { off: range.start, len });
                    }
                    continue;
                }
                let mut encoded = vec![vec![0; length]; parity.len()];
                code.encode(
                    &data.iter().map(|d| &d[..]).collect::<Vec<_>>(),
                    &mut encoded.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>(),
                );
                for (shard, bytes) in parity.iter().zip(encoded) {
                    let data = Buffers::from(bytes);
                    cut.tell(shard, oid, Change::Write { off: range.start, data, hint });
                }
            }
        }
        self.parity_changes(object, code, old, cut)
    }

    /// What parity gets of what data changed.
    fn parity_changes(
        &self,
        object: &Object,
        code: &Code,
        old: &OldBytes,
        cut: &mut Cut,
    ) -> Result<(), CodedError> {
        let (layout, overlay, oid) = (self.layout, &object.overlay, &object.oid);
        for shard in layout.parity().iter().filter(|_| !object.deltas.is_empty()) {
            let (attr, value) = (Bytes::from_static(OI_ATTR), object.before.info.clone());
            cut.tell(shard, oid, Change::Expect { attr, value });
        }
        for Delta { range, changed } in &object.deltas {
            let mut at = range.start;
            while at < range.end {
                let range = at..range.end.min(at + ENCODE_BYTES_MAX);
                at = range.end;
                let length = (range.end - range.start) as usize;
                let mut bytes: Vec<(Shard, Vec<u8>, Vec<u8>)> = Vec::new();
                for shard in changed.iter() {
                    let (mut was, mut is) = (vec![0; length], vec![0; length]);
                    let mut result = Ok(());
                    layout.pieces(shard, range.clone(), |on_shard, in_object, n| {
                        let here = (on_shard - range.start) as usize..;
                        overlay.new_bytes(in_object, &mut is[here.clone()][..n as usize]);
                        // What is behind the old end was zero.
                        let end = (in_object + n).min(overlay.base_size());
                        let n = end.saturating_sub(in_object) as usize;
                        if result.is_ok() && n > 0 {
                            result = old.copy(oid, in_object, &mut was[here][..n]);
                        }
                    });
                    result?;
                    bytes.push((shard, was, is));
                }
                let changes: Vec<(Shard, &[u8], &[u8])> =
                    bytes.iter().map(|(s, was, is)| (*s, &was[..], &is[..])).collect();
                for shard in layout.parity().iter() {
                    let mut delta = vec![0; length];
                    code.apply_changes(shard, &changes, &mut delta);
                    let data = Buffers::from(delta);
                    cut.tell(shard, oid, Change::Xor { off: range.start, data });
                }
            }
        }
        Ok(())
    }
}

/// Bytes of a shard, of a write of `whole` bytes: small ones get memory of their own, since the
/// store keeps blocks as they are.
fn own(data: Buffers, whole: u64) -> Buffers {
    let small = data.len() <= SMALL_BYTES as u64;
    if !small || data.len() == whole {
        return data;
    }
    Buffers::from(aligned::AlignedBuf::copy_of(&data.to_bytes()).freeze())
}

impl Object {
    /// Works out bands, and which shards are named.
    fn settle(&mut self, layout: &Layout) {
        let o = &self.overlay;
        let lead = layout.primary_capable();
        if !self.before.exists() || o.remade() || !o.exists() {
            self.written = layout.shards();
        } else {
            self.written = lead;
        }
        if !o.exists() {
            return;
        }
        let parity_end = layout.shard_size(layout.k() as Shard, o.size());
        for range in o.changed() {
            for shard in layout.data().iter() {
                let extent = layout.extent(shard, &range);
                if extent.is_empty() {
                    continue;
                }
                self.written.insert(shard);
                self.bands.insert(extent.start..extent.end.min(parity_end));
            }
        }
    }
}

impl Object {
    /// See [`Draft::choose`]. Each write, and each range of zeroes, is planned alone. Where two
    /// change the same part of parity it is encoded, and so is what cuts bytes off and writes
    /// others, or makes an object: that is seldom.
    fn choose(&mut self, layout: Layout, sources: Sources<'_>) {
        let size = self.overlay.base_size();
        let Some(changes) = self.plain_changes() else { return };
        let plans = changes.into_iter().map(|c| WritePlan::new(layout, c, size, sources));
        // Without enough shards the reads say so.
        let Ok(plans) = plans.collect::<Result<Vec<_>, _>>() else { return };
        let bands: Vec<&Band> = plans.iter().flat_map(|p| p.bands()).collect();
        for (i, band) in bands.iter().enumerate().filter(|(_, b)| b.how == How::Delta) {
            let apart = |r: &Range<u64>| r.end <= band.range.start || band.range.end <= r.start;
            if bands.iter().enumerate().all(|(j, other)| i == j || apart(&other.range)) {
                self.bands.remove(band.range.clone());
                self.deltas.push(Delta { range: band.range.clone(), changed: band.changed });
            }
        }
    }

    /// The changes of an object that stays; `None` if parity is to be encoded.
    fn plain_changes(&self) -> Option<Vec<ec::Change>> {
        let o = &self.overlay;
        let stays = o.exists() && !o.remade() && self.before.exists();
        if !stays || self.before.info.is_empty() {
            return None;
        }
        let writes =
            o.writes().map(|(offset, data, _)| ec::Change::Write { offset, length: data.len() });
        let zeroes =
            o.zeroes().map(|r| ec::Change::Zero { offset: r.start, length: r.end - r.start });
        let mut all: Vec<ec::Change> = writes.chain(zeroes).collect();
        if o.kept() < o.base_size() {
            let cut_only = all.is_empty() && o.size() == o.kept();
            return cut_only.then(|| vec![ec::Change::Truncate { size: o.kept() }]);
        }
        let inside = o.zeroes().all(|r| r.end <= o.base_size());
        all.truncate(PLANNED_MAX + 1);
        (inside && all.len() <= PLANNED_MAX).then_some(all)
    }
}

impl Cut {
    fn tell(&mut self, shard: Shard, oid: &ObjectId, change: Change) {
        self.shards.entry(shard).or_default().txn.push(oid, change);
    }
}

const VERSION: u8 = 1;
const WHAT: &str = "ShardChange";

impl ShardChange {
    /// The form that goes to the shard: the list, and the data beside it.
    pub fn to_wire(&self) -> (Bytes, Vec<Bytes>) {
        let f = Features::ALL;
        let wire = self.txn.to_wire();
        let mut out = BytesMut::with_capacity(wire.meta.len() + 128);
        out.put_u8(VERSION);
        out.put_u32_le(self.before.len() as u32);
        for (oid, version) in &self.before {
            oid.encode(&mut out, f);
            version.encode(&mut out, f);
        }
        wire.meta.encode(&mut out, f);
        self.payer.encode(&mut out, f);
        (out.freeze(), wire.data)
    }

    /// Reads what [`ShardChange::to_wire`] wrote. No bytes at all are no change.
    pub fn from_wire(meta: &Bytes, data: &[Bytes]) -> denc::Result<ShardChange> {
        if meta.is_empty() {
            return Ok(ShardChange::default());
        }
        let mut r = Reader::new(meta.clone());
        let version: u8 = r.get()?;
        if version != VERSION {
            return Err(DecodeError::Invalid { what: WHAT, found: version.into() });
        }
        let n = r.count(WHAT, 8)?;
        let mut before = Vec::with_capacity(n);
        for _ in 0..n {
            before.push((ObjectId::decode(&mut r)?, Eversion::decode(&mut r)?));
        }
        let (list, payer): (Bytes, String) = (r.get()?, r.get()?);
        r.expect_end(WHAT)?;
        Ok(ShardChange { before, txn: Mutations::from_wire(&list, data)?, payer })
    }
}

impl Overlay {
    /// The object that old bytes are of.
    fn base_of(&self, own: &ObjectId) -> Option<ObjectId> {
        match self.base() {
            Base::Nothing => None,
            Base::Own => Some(own.clone()),
            Base::Other(oid) => Some(oid.clone()),
        }
    }
}
