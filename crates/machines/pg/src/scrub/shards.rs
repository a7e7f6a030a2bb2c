//! Shards of objects, and how they are compared.
//!
//! Copies that may lead have all metadata, and are compared in it as whole copies are. Each shard
//! says which version it has, and all shards together must be what the code makes of them. For
//! that each is *folded*: its bytes are cut into pieces of [`FOLD_BYTES`], and these are XORed. The
//! code is linear, so folds of shards are shards of folds.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use denc::{Decode, Encode, Features};
use ec::{Code, Shard, ShardSet};
use types::scrub::{
    InconsistentObject, OsdShard, ScrubObjectId, ShardInfo, object_error, shard_error,
};
use types::{Eversion, ObjectId, ObjectInfo, PgShard, ShardId};

use super::{Found, OI_ATTR, Repairable, ScrubMap, ScrubObject};
use crate::backend::{Backend, Compared, Erasure, shard_at};

/// Attribute of a shard that has no object info: the version of the last change that named it.
pub const SHARD_ATTR: &[u8] = b"@shard";
/// Attribute of a shard with object info: versions of shards that differ from the object's.
pub const SHARDS_ATTR: &[u8] = b"@shards";
/// Length of a fold.
pub const FOLD_BYTES: usize = 64;

/// Adds bytes of a shard to a fold, of a part that begins at `offset`.
pub fn fold(fold: &mut [u8; FOLD_BYTES], offset: u64, bytes: &[u8]) {
    let mut at = (offset % FOLD_BYTES as u64) as usize;
    for b in bytes {
        fold[at] ^= b;
        at = (at + 1) % FOLD_BYTES;
    }
}

/// Value of [`SHARD_ATTR`].
pub fn shard_attr(version: Eversion) -> Bytes {
    version.to_bytes(Features::ALL)
}

/// Value of [`SHARDS_ATTR`].
pub fn shards_attr(versions: &BTreeMap<ShardId, Eversion>) -> Bytes {
    versions.to_bytes(Features::ALL)
}

/// Which versions shards have, where they are other than the object's, of its attributes.
pub fn shard_versions(
    shards: Option<&Bytes>,
) -> Result<BTreeMap<ShardId, Eversion>, denc::DecodeError> {
    shards.map_or_else(|| Ok(BTreeMap::new()), BTreeMap::from_bytes)
}

/// What one copy of an object is found to have.
struct Wrong {
    errors: u64,
    why: String,
}

/// Compares shards.
pub(crate) fn compare(
    erasure: &Erasure,
    what: &Compared<'_>,
    skip: &dyn Fn(&ObjectId) -> bool,
) -> Found {
    let layout = erasure.layout;
    // Copies that may lead, as if each had the whole object: as far as metadata goes, it does.
    let whole = |shard: Shard, o: &ScrubObject| {
        let mut o = o.clone();
        let info = o.attrs.get(OI_ATTR).and_then(|v| ObjectInfo::from_bytes(v).ok());
        if let Some(info) = info.filter(|i| o.size <= layout.shard_size(shard, i.size)) {
            o.size = info.size;
        }
        o.data_digest = None;
        o
    };
    let leads = what.maps.iter().filter(|(c, _)| erasure.leads(c.shard));
    let leading: BTreeMap<PgShard, ScrubMap> = leads
        .filter_map(|(c, map)| {
            let shard = shard_at(c.shard)?;
            let objects = map.objects.iter().map(|(o, s)| (o.clone(), whole(shard, s))).collect();
            Some((*c, ScrubMap { upto: map.upto.clone(), objects }))
        })
        .collect();
    let mut found = super::compare(what.pg, what.primary, &leading, what.rules, skip);
    let all: BTreeSet<&ObjectId> = what.maps.values().flat_map(|m| m.objects.keys()).collect();
    for oid in all.into_iter().filter(|oid| !skip(oid)) {
        compare_object(erasure, what, oid, &mut found);
    }
    found
}

/// Compares shards of one object with the info that counts, and with one another.
fn compare_object(erasure: &Erasure, what: &Compared<'_>, oid: &ObjectId, found: &mut Found) {
    let layout = erasure.layout;
    let known_bad: Vec<PgShard> = found
        .repairable
        .iter()
        .filter(|r| r.oid == *oid)
        .flat_map(|r| r.missing.iter().chain(&r.bad).copied())
        .collect();
    let object = |copy: &PgShard| what.maps.get(copy).and_then(|m| m.objects.get(oid));
    let good = what.maps.keys().filter(|c| erasure.leads(c.shard) && !known_bad.contains(c));
    let infos = good.filter_map(|c| {
        let o = object(c)?;
        let info = ObjectInfo::from_bytes(o.attrs.get(OI_ATTR)?).ok()?;
        let versions = shard_versions(o.attrs.get(SHARDS_ATTR)).ok()?;
        Some((info, versions))
    });
    let Some((info, versions)) = infos.max_by_key(|(info, _)| info.version) else {
        // Without an object info that counts, what shards there are is no object.
        return;
    };
    let mut wrong: BTreeMap<PgShard, Wrong> = BTreeMap::new();
    for copy in what.maps.keys().filter(|c| !erasure.leads(c.shard)) {
        let expected = versions.get(&copy.shard).copied().unwrap_or(info.version);
        let end = shard_at(copy.shard).map_or(0, |s| layout.shard_size(s, info.size));
        if let Some(w) = look(object(copy), expected, end) {
            wrong.insert(*copy, w);
        }
    }
    if wrong.is_empty() && known_bad.is_empty() {
        match parity(erasure, what, oid) {
            Parity::Right | Parity::Unknown => {}
            Parity::Wrong(Some(copy)) => {
                let why = "data is not what the other shards make of it".into();
                wrong.insert(copy, Wrong { errors: shard_error::DATA_DIGEST_INFO, why });
            }
            Parity::Wrong(None) => {
                found.deep_errors += 1;
                found.lines.push(format!(
                    "{} soid {oid} : shards do not fit together, and which of them is wrong cannot \
                     be told",
                    what.pg
                ));
                record(what, oid, &info, found).errors |= object_error::DATA_DIGEST;
            }
        }
    }
    if wrong.is_empty() {
        return;
    }
    let (mut missing, mut bad) = (Vec::new(), Vec::new());
    for (copy, w) in wrong {
        found.lines.push(format!("{} shard {copy} soid {oid} : {}", what.pg, w.why));
        if w.errors & shard_error::DEEP != 0 {
            found.deep_errors += 1;
        } else {
            found.shallow_errors += 1;
        }
        let place = if w.errors & shard_error::MISSING != 0 { &mut missing } else { &mut bad };
        place.push(copy);
        let r = record(what, oid, &info, found);
        r.union_errors |= w.errors;
        let shard = r.shards.entry(OsdShard { osd: copy.osd, shard: copy.shard.0 }).or_default();
        shard.errors |= w.errors;
    }
    match found.repairable.iter_mut().find(|r| r.oid == *oid) {
        Some(r) => {
            r.missing.extend(missing);
            r.bad.extend(bad);
        }
        None => {
            let version = info.version;
            found.repairable.push(Repairable { oid: oid.clone(), version, missing, bad });
        }
    }
}

/// The record of an object, with all its shards.
fn record<'a>(
    what: &Compared<'_>,
    oid: &ObjectId,
    info: &ObjectInfo,
    found: &'a mut Found,
) -> &'a mut InconsistentObject {
    let at = found.objects.iter().position(|(o, _)| o == oid).unwrap_or_else(|| {
        let object = ScrubObjectId::of(oid);
        let version = info.user_version;
        let record = InconsistentObject { object, version, ..InconsistentObject::default() };
        found.objects.push((oid.clone(), record));
        found.objects.len() - 1
    });
    let record = &mut found.objects[at].1;
    for (copy, map) in what.maps {
        let name = OsdShard { osd: copy.osd, shard: copy.shard.0 };
        record.shards.entry(name).or_insert_with(|| {
            let o = map.objects.get(oid);
            ShardInfo {
                primary: *copy == what.primary,
                attrs: o.map(|o| o.attrs.clone()).unwrap_or_default(),
                size: o.map_or(0, |o| o.size),
                omap_digest: o.and_then(|o| o.omap_digest),
                data_digest: o.and_then(|o| o.data_digest),
                ..ShardInfo::default()
            }
        });
    }
    record
}

/// What is wrong with a shard that has no object info.
fn look(o: Option<&ScrubObject>, expected: Eversion, end: u64) -> Option<Wrong> {
    let wrong = |errors, why: String| Some(Wrong { errors, why });
    let Some(o) = o else {
        return if expected == Eversion::default() {
            None
        } else {
            wrong(shard_error::MISSING, "missing".into())
        };
    };
    if o.stat_error {
        return wrong(shard_error::STAT, "candidate had a stat error".into());
    }
    if o.read_error {
        return wrong(shard_error::READ, "candidate had a read error".into());
    }
    match o.attrs.get(SHARD_ATTR).map(Eversion::from_bytes) {
        None => wrong(shard_error::INFO_MISSING, "candidate had no version".into()),
        Some(Err(_)) => {
            wrong(shard_error::INFO_CORRUPTED, "candidate had a corrupt version".into())
        }
        Some(Ok(v)) if v != expected => wrong(
            shard_error::INFO_CORRUPTED,
            format!("version {v} != version {expected} from auth oi"),
        ),
        Some(Ok(_)) if o.size > end => wrong(
            shard_error::SIZE_INFO,
            format!("size {} > size {end} of the shard from auth oi", o.size),
        ),
        Some(Ok(_)) => None,
    }
}

enum Parity {
    Right,
    /// The one shard that is wrong, if there is one of which that can be told.
    Wrong(Option<PgShard>),
    /// Not all was read.
    Unknown,
}

fn parity(erasure: &Erasure, what: &Compared<'_>, oid: &ObjectId) -> Parity {
    let layout = erasure.layout;
    let mut folds: BTreeMap<Shard, Vec<u8>> = BTreeMap::new();
    let mut copies: BTreeMap<Shard, PgShard> = BTreeMap::new();
    for (copy, map) in what.maps {
        let Some(shard) = shard_at(copy.shard) else { continue };
        let fold = match map.objects.get(oid) {
            Some(ScrubObject { fold: Some(fold), .. }) if fold.len() == FOLD_BYTES => fold.to_vec(),
            Some(_) => return Parity::Unknown,
            None => vec![0; FOLD_BYTES],
        };
        folds.insert(shard, fold);
        copies.insert(shard, *copy);
    }
    let all: ShardSet = folds.keys().copied().collect();
    let Ok(code) = Code::new(erasure.technique, layout.k(), layout.m()) else {
        return Parity::Unknown;
    };
    if !layout.shards().is_within(all) {
        return Parity::Unknown;
    }
    // Whether these shards fit together: each is what the first k of them make of it.
    let fits = |shards: ShardSet| {
        let Ok(recipe) = code.recipe(shards, shards) else { return false };
        let sources: Vec<&[u8]> = recipe.sources().iter().map(|s| &folds[&s][..]).collect();
        let mut out = vec![vec![0; FOLD_BYTES]; shards.len()];
        recipe.apply(&sources, &mut out.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
        shards.iter().zip(out).all(|(s, bytes)| folds[&s] == bytes)
    };
    if fits(layout.shards()) {
        return Parity::Right;
    }
    // k shards always fit together.
    let suspects: Vec<Shard> = layout
        .shards()
        .iter()
        .filter(|s| layout.m() > 1 && fits(layout.shards().without(ShardSet::one(*s))))
        .collect();
    match suspects[..] {
        [one] => Parity::Wrong(copies.get(&one).copied()),
        _ => Parity::Wrong(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::info::Backfill;
    use crate::scrub::Rules;
    use ec::{Layout, Technique};
    use types::{Epoch, OsdId, PoolId, SnapId};

    const RULES: Rules =
        Rules { max_object_size: 1 << 30, large_omap_keys: 100, large_omap_bytes: 1 << 20 };

    fn oid() -> ObjectId {
        let name = Bytes::from_static(b"a");
        ObjectId::with_hash(PoolId(1), Bytes::new(), name, Bytes::new(), SnapId::NOSNAP, 7)
    }

    fn v(version: u64) -> Eversion {
        Eversion { epoch: Epoch(1), version }
    }

    fn copy(shard: u8) -> PgShard {
        PgShard { osd: OsdId(shard.into()), shard: ShardId(shard as i8) }
    }

    /// Maps of an object, the last change of which was not about data shard 1.
    fn maps(erasure: &Erasure) -> BTreeMap<PgShard, ScrubMap> {
        let layout = erasure.layout;
        let code = Code::new(erasure.technique, layout.k(), layout.m()).unwrap();
        let mut shards: Vec<Vec<u8>> =
            (0..layout.k()).map(|s| (0..4096).map(|i| (i * 7 + s * 31) as u8).collect()).collect();
        let mut rows = vec![vec![0; 4096]; layout.m()];
        code.encode(
            &shards.iter().map(Vec::as_slice).collect::<Vec<_>>(),
            &mut rows.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>(),
        );
        shards.extend(rows);
        let size = layout.stripe_width();
        let info = ObjectInfo { version: v(5), size, ..ObjectInfo::default() };
        let versions = BTreeMap::from([(ShardId(1), v(3))]);
        let of = |shard: Shard, bytes: &[u8]| {
            let mut sum = [0; FOLD_BYTES];
            // In parts, as a host reads it.
            fold(&mut sum, 0, &bytes[..100]);
            fold(&mut sum, 100, &bytes[100..]);
            let attrs = if erasure.leads(copy(shard).shard) {
                vec![
                    (Bytes::from_static(OI_ATTR), info.to_bytes(Features::ALL)),
                    (Bytes::from_static(SHARDS_ATTR), shards_attr(&versions)),
                ]
            } else {
                let expected = versions.get(&copy(shard).shard).copied().unwrap_or(v(5));
                vec![(Bytes::from_static(SHARD_ATTR), shard_attr(expected))]
            };
            ScrubObject {
                size: bytes.len() as u64,
                attrs: attrs.into_iter().collect(),
                fold: Some(Bytes::copy_from_slice(&sum)),
                ..ScrubObject::default()
            }
        };
        let map = |(s, bytes): (usize, Vec<u8>)| {
            let objects = BTreeMap::from([(oid(), of(s as Shard, &bytes))]);
            (copy(s as Shard), ScrubMap { upto: Backfill::Complete, objects })
        };
        shards.into_iter().enumerate().map(map).collect()
    }

    fn scrub(erasure: &Erasure, maps: &BTreeMap<PgShard, ScrubMap>) -> Found {
        let what = Compared { pg: "1.0", primary: copy(0), maps, rules: &RULES };
        erasure.compare(&what, &|_| false)
    }

    fn erasure(k: usize, m: usize) -> Erasure {
        let layout = Layout::new(k, m, 4096).unwrap();
        Erasure { layout, technique: Technique::JerasureReedSolVan }
    }

    fn change(maps: &mut BTreeMap<PgShard, ScrubMap>, shard: u8, f: impl FnOnce(&mut ScrubObject)) {
        f(maps.get_mut(&copy(shard)).unwrap().objects.get_mut(&oid()).unwrap());
    }

    fn flip(o: &mut ScrubObject) {
        let mut fold = o.fold.clone().unwrap().to_vec();
        fold[9] ^= 4;
        o.fold = Some(fold.into());
    }

    #[test]
    fn shards_that_fit_are_right() {
        for (k, m) in [(2, 1), (2, 2), (4, 2)] {
            let found = scrub(&erasure(k, m), &maps(&erasure(k, m)));
            assert_eq!((found.shallow_errors, found.deep_errors), (0, 0), "{:?}", found.lines);
            assert_eq!((found.repairable.len(), found.stats.num_objects), (0, 1));
        }
    }

    #[test]
    fn one_flipped_shard_is_found_and_told_if_there_is_more_than_one_of_parity() {
        for shard in 0..6 {
            let e = erasure(4, 2);
            let mut maps = maps(&e);
            change(&mut maps, shard, flip);
            let found = scrub(&e, &maps);
            assert_eq!((found.shallow_errors, found.deep_errors), (0, 1), "{shard}");
            assert_eq!(found.repairable[0].bad, [copy(shard)], "{shard}");
            assert_eq!(found.repairable[0].version, v(5));
        }
        for shard in 0..3 {
            let e = erasure(2, 1);
            let mut maps = maps(&e);
            change(&mut maps, shard, flip);
            let found = scrub(&e, &maps);
            assert_eq!((found.deep_errors, found.repairable.len()), (1, 0));
            assert!(found.lines[0].contains("cannot be told"));
        }
        let e = erasure(4, 2);
        let mut maps = maps(&e);
        change(&mut maps, 1, flip);
        change(&mut maps, 3, |o| o.fold = Some(vec![7; FOLD_BYTES].into()));
        let found = scrub(&e, &maps);
        assert_eq!((found.deep_errors, found.repairable.len()), (1, 0), "two are too many to tell");
    }

    #[test]
    fn a_shard_of_another_version_is_bad_and_one_that_was_never_named_need_not_be() {
        let e = erasure(2, 2);
        let mut all = maps(&e);
        change(&mut all, 1, |o| {
            o.attrs.insert(Bytes::from_static(SHARD_ATTR), shard_attr(v(5)));
        });
        let found = scrub(&e, &all);
        assert_eq!((found.shallow_errors, found.repairable[0].bad.len()), (1, 1));
        assert_eq!(found.repairable[0].bad, [copy(1)]);
        // It is not there.
        let mut all = maps(&e);
        all.get_mut(&copy(1)).unwrap().objects.clear();
        let found = scrub(&e, &all);
        assert_eq!(found.repairable[0].missing, [copy(1)]);
        // It need not be.
        for shard in [0, 2, 3] {
            change(&mut all, shard, |o| {
                let none = BTreeMap::from([(ShardId(1), Eversion::default())]);
                o.attrs.insert(Bytes::from_static(SHARDS_ATTR), shards_attr(&none));
                o.fold = None;
            });
        }
        let found = scrub(&e, &all);
        assert_eq!(found.shallow_errors + found.deep_errors, 0, "{:?}", found.lines);
    }
}
