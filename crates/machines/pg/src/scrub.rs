//! What copies of a PG hold, and how it is compared.
//!
//! Every acting OSD makes a [`ScrubMap`] of the objects in a range. [`compare`] decides, object by
//! object, which copy is authoritative and what is wrong with the others (Ceph:
//! `PGBackend::be_select_auth_object`, `be_compare_scrub_objects`).

pub mod shards;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use denc::{Decode, Features};
use denc_derive::Denc;
use types::scrub::{
    InconsistentObject, InconsistentSnapset, OsdShard, ScrubObjectId, ShardInfo, object_error,
    shard_error, snapset_error,
};
use types::{Eversion, ObjectId, ObjectInfo, PgShard, SnapId, SnapSet};

use crate::info::Backfill;
use crate::stats::StatSum;

/// The kind of a scrub.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ScrubKind {
    /// Read data and omap too.
    pub deep: bool,
    /// Repair what is found.
    pub repair: bool,
    /// It looks whether a repair has helped.
    pub check: bool,
}

impl ScrubKind {
    /// Its name in commands and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self { repair: true, .. } => "repair",
            Self { deep: true, .. } => "deep-scrub",
            _ => "scrub",
        }
    }
}

/// Attribute with an object's info.
pub(crate) const OI_ATTR: &[u8] = b"_";
/// Attribute of a head with its snap set.
const SS_ATTR: &[u8] = b"snapset";

/// An object in one copy.
#[derive(Denc, Clone, PartialEq, Eq, Debug, Default)]
#[denc(version = 2, compat = 2)]
pub struct ScrubObject {
    /// Size of the data.
    pub size: u64,
    /// All attributes.
    pub attrs: BTreeMap<Bytes, Bytes>,
    /// Nothing could be found out about it.
    pub stat_error: bool,
    /// Data or omap could not be read, although a deep scrub wanted to.
    pub read_error: bool,
    /// Checksum of the data, after a deep scrub.
    pub data_digest: Option<u32>,
    /// Checksum of omap header and rows, after a deep scrub.
    pub omap_digest: Option<u32>,
    /// Omap rows, after a deep scrub.
    pub omap_keys: u64,
    /// Bytes of omap rows, after a deep scrub.
    pub omap_bytes: u64,
    /// Of a shard, after a deep scrub: its data folded ([`shards::fold`]).
    pub fold: Option<Bytes>,
}

/// The objects of a range in one copy.
#[derive(Denc, Clone, PartialEq, Eq, Debug, Default)]
#[denc(version = 1, compat = 1)]
pub struct ScrubMap {
    /// Everything up to here, from where the question began, is in it.
    pub upto: Backfill,
    /// The objects.
    pub objects: BTreeMap<ObjectId, ScrubObject>,
}

/// What a comparison depends on besides the maps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    /// `osd_max_object_size`.
    pub max_object_size: u64,
    /// `osd_deep_scrub_large_omap_object_key_threshold`.
    pub large_omap_keys: u64,
    /// `osd_deep_scrub_large_omap_object_value_sum_threshold`.
    pub large_omap_bytes: u64,
}

/// An object of which some copies are bad and at least one is good.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Repairable {
    /// The object.
    pub oid: ObjectId,
    /// The version of the good copy.
    pub version: Eversion,
    /// The OSDs without a copy.
    pub missing: Vec<PgShard>,
    /// The OSDs with a bad copy.
    pub bad: Vec<PgShard>,
}

/// The findings of a range.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Found {
    /// Errors that sizes and attributes show.
    pub shallow_errors: u64,
    /// Errors in data and omap.
    pub deep_errors: u64,
    /// For clients that ask.
    pub objects: Vec<(ObjectId, InconsistentObject)>,
    /// The same for objects with clones that do not fit.
    pub snapsets: Vec<(ObjectId, InconsistentSnapset)>,
    /// The copies that can be repaired.
    pub repairable: Vec<Repairable>,
    /// Lines for the cluster log.
    pub lines: Vec<String>,
    /// Warnings for it.
    pub warnings: Vec<String>,
    /// Objects with very many omap rows.
    pub large_omap_objects: u64,
    /// What there is, as far as scrubs can count it.
    pub stats: StatSum,
}

/// What one copy says of itself.
#[derive(Default)]
struct Look {
    errors: u64,
    why: Vec<String>,
    info: Option<ObjectInfo>,
}

fn look(oid: &ObjectId, o: &ScrubObject) -> Look {
    let mut l = Look::default();
    let mut wrong = |bit, why: String| {
        l.errors |= bit;
        l.why.push(format!("candidate had {why}"));
    };
    if o.read_error {
        wrong(shard_error::READ, "a read error".into());
    }
    if o.stat_error {
        wrong(shard_error::STAT, "a stat error".into());
        return l;
    }
    if oid.is_head() {
        // A head without a snap set attribute never had snapshots.
        if o.attrs.get(SS_ATTR).is_some_and(|v| SnapSet::from_bytes(v).is_err()) {
            wrong(shard_error::SNAPSET_CORRUPTED, "a corrupt snapset".into());
        }
    }
    match o.attrs.get(OI_ATTR).map(ObjectInfo::from_bytes) {
        None => wrong(shard_error::INFO_MISSING, "a missing info key".into()),
        Some(Err(_)) => wrong(shard_error::INFO_CORRUPTED, "a corrupt info".into()),
        Some(Ok(info)) => {
            if info.size != o.size {
                wrong(
                    shard_error::OBJ_SIZE_INFO,
                    format!("size {} info size {} mismatch", o.size, info.size),
                );
            }
            l.info = Some(info);
        }
    }
    l
}

/// Whether one info is better than another, both of copies without errors of their own: newer, then
/// one that knows more checksums.
fn better(a: &ObjectInfo, b: &ObjectInfo) -> bool {
    let known =
        |i: &ObjectInfo| u32::from(i.data_digest.is_some()) + u32::from(i.omap_digest.is_some());
    (a.version, known(a)) > (b.version, known(b))
}

fn digest(d: u32) -> String {
    format!("{d:#x}")
}

/// In what a copy differs from the authoritative one: errors of the copy, errors of the object, and
/// words.
fn differences(
    auth_copy: PgShard,
    auth: &ScrubObject,
    info: &ObjectInfo,
    o: &ScrubObject,
    errors: u64,
    rules: &Rules,
) -> (u64, u64, Vec<String>) {
    let (mut shard, mut object, mut why) = (0, 0, Vec::new());
    let pairs = [
        (
            "data",
            auth.data_digest,
            info.data_digest,
            o.data_digest,
            object_error::DATA_DIGEST,
            shard_error::DATA_DIGEST_INFO,
        ),
        (
            "omap",
            auth.omap_digest,
            info.omap_digest,
            o.omap_digest,
            object_error::OMAP_DIGEST,
            shard_error::OMAP_DIGEST_INFO,
        ),
    ];
    for (what, good, told, found, object_bit, shard_bit) in pairs {
        let Some(found) = found else { continue };
        if let Some(good) = good.filter(|g| *g != found) {
            object |= object_bit;
            why.push(format!(
                "{what}_digest {} != {what}_digest {} from shard {}",
                digest(found),
                digest(good),
                auth_copy
            ));
        }
        if let Some(told) = told.filter(|t| *t != found) {
            shard |= shard_bit;
            why.push(format!(
                "{what}_digest {} != {what}_digest {} from auth oi",
                digest(found),
                digest(told)
            ));
        }
    }
    if o.stat_error {
        return (shard, object, why);
    }
    if errors & (shard_error::INFO_MISSING | shard_error::INFO_CORRUPTED) == 0
        && o.attrs.get(OI_ATTR) != auth.attrs.get(OI_ATTR)
    {
        object |= object_error::INFO;
        why.push("object info inconsistent".into());
    }
    if errors & shard_error::SNAPSET_CORRUPTED == 0
        && o.attrs.get(SS_ATTR) != auth.attrs.get(SS_ATTR)
    {
        object |= object_error::SNAPSET;
        why.push("snapset inconsistent".into());
    }
    if o.size != info.size {
        shard |= shard_error::SIZE_INFO;
        why.push(format!("size {} != size {} from auth oi", o.size, info.size));
    }
    if o.size != auth.size {
        object |= object_error::SIZE;
        why.push(format!("size {} != size {} from shard {auth_copy}", o.size, auth.size));
    }
    if o.size > rules.max_object_size {
        object |= object_error::SIZE_TOO_LARGE;
        why.push(format!("size {} > {} is too large", o.size, rules.max_object_size));
    }
    let ours = |name: &&Bytes| name[..] != *OI_ATTR && name[..] != *SS_ATTR;
    let names: BTreeSet<&Bytes> = auth.attrs.keys().chain(o.attrs.keys()).filter(ours).collect();
    for name in names {
        let name_of = || name.escape_ascii();
        match (auth.attrs.get(name), o.attrs.get(name)) {
            (Some(a), Some(b)) if a == b => {}
            (Some(_), Some(_)) => {
                object |= object_error::ATTR_VALUE;
                why.push(format!("attr value mismatch '{}'", name_of()));
            }
            _ => {
                object |= object_error::ATTR_NAME;
                why.push(format!("attr name mismatch '{}'", name_of()));
            }
        }
    }
    (shard, object, why)
}

/// Attributes in the form in which clients decode them.
fn attrs_for_clients(
    oid: &ObjectId,
    o: &ScrubObject,
    info: Option<&ObjectInfo>,
) -> BTreeMap<Bytes, Bytes> {
    let mut attrs = o.attrs.clone();
    if let Some(info) = info {
        attrs.insert(Bytes::from_static(OI_ATTR), types::scrub::object_info_for_clients(oid, info));
    }
    if oid.is_head() {
        attrs.entry(Bytes::from_static(SS_ATTR)).or_insert_with(|| {
            use denc::Encode;
            SnapSet::default().to_bytes(Features::ALL)
        });
    }
    attrs
}

/// Compares copies. `pg` is how the log names the PG; `primary` is among the maps. Objects for
/// which `skip` is true are being recovered: copies that lack them are known already.
pub fn compare(
    pg: &str,
    primary: PgShard,
    maps: &BTreeMap<PgShard, ScrubMap>,
    rules: &Rules,
    skip: impl Fn(&ObjectId) -> bool,
) -> Found {
    let mut found = Found::default();
    let all: BTreeSet<&ObjectId> = maps.values().flat_map(|m| m.objects.keys()).collect();
    let mut good: BTreeMap<&ObjectId, &ScrubObject> = BTreeMap::new();
    for oid in all {
        if skip(oid) {
            continue;
        }
        if let Some(object) = compare_object(pg, primary, maps, rules, oid, &mut found) {
            good.insert(oid, object);
        }
    }
    check_snapsets(pg, &good, &mut found);
    for (oid, o) in good {
        count(pg, oid, o, rules, &mut found);
    }
    found
}

/// The copies of one object.
struct Copies<'a> {
    oid: &'a ObjectId,
    primary: PgShard,
    /// What each OSD that was asked has, and what that says of itself.
    held: BTreeMap<PgShard, Option<(&'a ScrubObject, Look)>>,
}

/// The copy that others are compared with.
struct Authority<'a> {
    holder: PgShard,
    object: &'a ScrubObject,
    info: ObjectInfo,
}

impl<'a> Copies<'a> {
    fn of(
        oid: &'a ObjectId,
        primary: PgShard,
        maps: &'a BTreeMap<PgShard, ScrubMap>,
    ) -> Copies<'a> {
        let held = |map: &'a ScrubMap| map.objects.get(oid).map(|o| (o, look(oid, o)));
        Copies {
            oid,
            primary,
            held: maps.iter().map(|(holder, map)| (*holder, held(map))).collect(),
        }
    }

    /// The best copy without errors of its own.
    fn authority(&self) -> Option<Authority<'a>> {
        let mut best: Option<(PgShard, &'a ScrubObject, &ObjectInfo)> = None;
        // The primary first: it is chosen if nothing speaks for another.
        let others = self.held.keys().copied().filter(|o| *o != self.primary);
        for holder in [self.primary].into_iter().chain(others) {
            let Some(Some((object, look))) = self.held.get(&holder) else { continue };
            if look.errors == 0
                && let Some(info) = &look.info
                && best.is_none_or(|(.., b)| better(info, b))
            {
                best = Some((holder, object, info));
            }
        }
        best.map(|(holder, object, info)| Authority { holder, object, info: info.clone() })
    }

    /// Notes for clients what one OSD has, and its errors.
    fn note(&self, record: &mut InconsistentObject, holder: PgShard, errors: u64, selected: bool) {
        let primary = holder == self.primary;
        let shard = match self.held.get(&holder).and_then(Option::as_ref) {
            None => ShardInfo { errors: shard_error::MISSING, primary, ..ShardInfo::default() },
            Some((o, look)) => ShardInfo {
                errors,
                primary,
                attrs: attrs_for_clients(self.oid, o, look.info.as_ref()),
                size: o.size,
                omap_digest: o.omap_digest,
                data_digest: o.data_digest,
                selected_oi: selected,
            },
        };
        record.union_errors |= shard.errors;
        record.shards.insert(OsdShard { osd: holder.osd, shard: holder.shard.0 }, shard);
    }

    /// Compares each copy with the authoritative one.
    fn judge(
        &self,
        pg: &str,
        auth: &Authority<'_>,
        rules: &Rules,
        record: &mut InconsistentObject,
        found: &mut Found,
    ) -> Verdicts {
        let oid = self.oid;
        let mut verdicts = Verdicts::default();
        for (&holder, held) in &self.held {
            let Some((o, own)) = held else {
                found.shallow_errors += 1;
                found.lines.push(format!("{pg} shard {holder} {oid} : missing"));
                verdicts.missing.push(holder);
                self.note(record, holder, 0, false);
                continue;
            };
            let (shard, object, mut why) =
                differences(auth.holder, auth.object, &auth.info, o, own.errors, rules);
            record.errors |= object;
            let errors = own.errors | shard;
            why.splice(0..0, own.why.iter().cloned());
            if errors != 0 {
                found.count_errors(errors & shard_error::DEEP != 0);
                found.lines.push(format!("{pg} shard {holder} soid {oid} : {}", why.join(", ")));
                verdicts.bad.push(holder);
            } else if object != 0 {
                found.lines.push(format!("{pg} soid {oid} : {}", why.join(", ")));
                verdicts.differ.push(holder);
            } else {
                verdicts.right += 1;
            }
            self.note(record, holder, errors, holder == auth.holder);
        }
        verdicts
    }
}

/// The copies of one object by what is wrong with them.
#[derive(Default)]
struct Verdicts {
    /// There is none.
    missing: Vec<PgShard>,
    /// It has errors of its own.
    bad: Vec<PgShard>,
    /// It is not like the authoritative copy, and no checksum says which of them is wrong.
    differ: Vec<PgShard>,
    /// How many are right.
    right: usize,
}

impl Verdicts {
    /// Whether there is a copy to repair the others from. Without one that is right, it is one that
    /// only differs, the authoritative one before others.
    fn keep_one(&mut self, auth: PgShard) -> bool {
        if self.right > 0 {
            return true;
        }
        let keep =
            if self.differ.contains(&auth) { Some(auth) } else { self.differ.first().copied() };
        self.differ.retain(|o| Some(*o) != keep);
        keep.is_some()
    }
}

impl Found {
    /// Counts one copy, or one object, with errors.
    fn count_errors(&mut self, deep: bool) {
        *(if deep { &mut self.deep_errors } else { &mut self.shallow_errors }) += 1;
    }
}

/// Compares copies of one object; returns the authoritative one.
fn compare_object<'a>(
    pg: &str,
    primary: PgShard,
    maps: &'a BTreeMap<PgShard, ScrubMap>,
    rules: &Rules,
    oid: &'a ObjectId,
    found: &mut Found,
) -> Option<&'a ScrubObject> {
    let copies = Copies::of(oid, primary, maps);
    let mut record =
        InconsistentObject { object: ScrubObjectId::of(oid), ..InconsistentObject::default() };
    let Some(auth) = copies.authority() else {
        for (holder, held) in &copies.held {
            let errors = held.as_ref().map_or(shard_error::MISSING, |(_, look)| look.errors);
            found.count_errors(errors & shard_error::DEEP != 0);
            copies.note(&mut record, *holder, errors, false);
        }
        found.lines.push(format!("{pg} soid {oid} : failed to pick suitable object info"));
        found.objects.push((oid.clone(), record));
        return None;
    };
    record.version = auth.info.user_version;
    let mut verdicts = copies.judge(pg, &auth, rules, &mut record, found);
    if record.errors != 0 {
        found.count_errors(record.errors & object_error::DEEP != 0);
    }
    if !verdicts.keep_one(auth.holder) {
        found.lines.push(format!("{pg} soid {oid} : failed to pick suitable auth object"));
        found.objects.push((oid.clone(), record));
        return Some(auth.object);
    }
    let Verdicts { missing, mut bad, differ, .. } = verdicts;
    bad.extend(differ);
    if !missing.is_empty() || !bad.is_empty() {
        let version = auth.info.version;
        found.repairable.push(Repairable { oid: oid.clone(), version, missing, bad });
    }
    if record.errors != 0 || record.union_errors != 0 {
        found.objects.push((oid.clone(), record));
    }
    Some(auth.object)
}

/// Whether heads and clones of each name fit together. A range never ends between them.
fn check_snapsets(pg: &str, good: &BTreeMap<&ObjectId, &ScrubObject>, found: &mut Found) {
    let mut clones: BTreeMap<ObjectId, Vec<(SnapId, u64)>> = BTreeMap::new();
    for (oid, o) in good.iter().filter(|(oid, _)| !oid.is_head()) {
        clones.entry(oid.head()).or_default().push((oid.snap, o.size));
    }
    let heads = good.iter().filter(|(oid, _)| oid.is_head()).map(|(oid, o)| ((*oid).clone(), *o));
    for (head, o) in heads {
        let here = clones.remove(&head).unwrap_or_default();
        let Some(value) = o.attrs.get(SS_ATTR) else {
            if !here.is_empty() {
                snapset_error_found(
                    pg,
                    &head,
                    snapset_error::SNAPSET_MISSING,
                    "no 'snapset' attr",
                    &here,
                    Vec::new(),
                    Bytes::new(),
                    found,
                );
            }
            continue;
        };
        let Ok(set) = SnapSet::from_bytes(value) else { continue };
        let missing: Vec<SnapId> =
            set.clones.iter().copied().filter(|c| !here.iter().any(|(h, _)| h == c)).collect();
        let extra: Vec<(SnapId, u64)> =
            here.iter().copied().filter(|(c, _)| !set.clones.contains(c)).collect();
        let sizes = here.iter().any(|(c, size)| set.clone_size.get(c).is_some_and(|s| s != size));
        let mut errors = 0;
        let mut why = Vec::new();
        if let Some(c) = missing.first() {
            errors |= snapset_error::CLONE_MISSING;
            why.push(format!("expected clone {c} missing"));
        }
        if let Some((c, _)) = extra.first() {
            errors |= snapset_error::EXTRA_CLONES;
            why.push(format!("is an unexpected clone {c}"));
        }
        if sizes {
            errors |= snapset_error::SIZE_MISMATCH;
            why.push("clone size differs from clone_size".into());
        }
        if errors != 0 {
            snapset_error_found(
                pg,
                &head,
                errors,
                &why.join(", "),
                &extra,
                missing,
                value.clone(),
                found,
            );
        }
    }
    for (head, here) in clones {
        // One that was counted as an error of its own (the head has no good copy) is not told
        // twice.
        if !found.objects.iter().any(|(oid, _)| *oid == head) {
            snapset_error_found(
                pg,
                &head,
                snapset_error::HEADLESS_CLONE,
                "clones without a head",
                &here,
                Vec::new(),
                Bytes::new(),
                found,
            );
        }
    }
}

#[allow(clippy::too_many_arguments, reason = "the fields of one record")]
fn snapset_error_found(
    pg: &str,
    head: &ObjectId,
    errors: u64,
    why: &str,
    clones: &[(SnapId, u64)],
    missing: Vec<SnapId>,
    snapset: Bytes,
    found: &mut Found,
) {
    found.shallow_errors += 1;
    found.lines.push(format!("{pg} {head} : {why}"));
    let clones = clones.iter().map(|(c, _)| *c).collect();
    let object = ScrubObjectId::of(head);
    found
        .snapsets
        .push((head.clone(), InconsistentSnapset { errors, object, clones, missing, snapset }));
}

/// Counts an object.
fn count(pg: &str, oid: &ObjectId, o: &ScrubObject, rules: &Rules, found: &mut Found) {
    found.stats.num_objects += 1;
    found.stats.num_object_clones += i64::from(!oid.is_head());
    if o.omap_keys > rules.large_omap_keys || o.omap_bytes > rules.large_omap_bytes {
        found.large_omap_objects += 1;
        found.warnings.push(format!(
            "Large omap object found. Object: {oid} PG: {pg} Key count: {} Size (bytes): {}",
            o.omap_keys, o.omap_bytes
        ));
    }
    found.stats.num_omap_keys += o.omap_keys as i64;
    found.stats.num_omap_bytes += o.omap_bytes as i64;
}

#[cfg(test)]
#[path = "scrub_test.rs"]
mod tests;
